/* Selection without a full sort: the k highest logits by a heap behind a quick reject, and the
 * smallest keys up to a mass by a histogram of keys of which only one bucket is sorted.
 * Ties are always broken by the lower id, so the outcome is one and the same everywhere. */
#include "engine/sample.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>

/* Order of candidates: a goes before b. */
static bool higher(const struct mxc_candidate *a, const struct mxc_candidate *b) {
    return a->logit != b->logit ? a->logit > b->logit : a->id < b->id;
}

static bool smaller_key(const struct mxc_candidate *a, const struct mxc_candidate *b) {
    return a->key != b->key ? a->key < b->key : a->id < b->id;
}

typedef bool before_fn(const struct mxc_candidate *a, const struct mxc_candidate *b);

/* Heap whose root is the one that goes last. */
static void sift(struct mxc_candidate *h, int32_t n, int32_t i, before_fn *before) {
    struct mxc_candidate x = h[i];
    for (;;) {
        int32_t child = 2 * i + 1;
        if (child >= n)
            break;
        if (child + 1 < n && before(&h[child], &h[child + 1]))
            child++;
        if (!before(&x, &h[child]))
            break;
        h[i] = h[child];
        i = child;
    }
    h[i] = x;
}

static void sort(struct mxc_candidate *h, int32_t n, before_fn *before) {
    for (int32_t i = n / 2 - 1; i >= 0; i--)
        sift(h, n, i, before);
    for (int32_t i = n - 1; i > 0; i--) {
        struct mxc_candidate last = h[0];
        h[0] = h[i];
        h[i] = last;
        sift(h, i, 0, before);
    }
}

int32_t mxc_select_top(const float *logits, int32_t vocab, int32_t k, struct mxc_candidate *out) {
    enum { STRIDE = 16 };
    if (k > vocab)
        k = vocab;
    assert(k > 0);
    for (int32_t i = 0; i < k; i++)
        out[i] = (struct mxc_candidate){.id = i, .logit = logits[i]};
    for (int32_t i = k / 2 - 1; i >= 0; i--)
        sift(out, k, i, higher);
    for (int32_t i = k; i < vocab;) {
        float bar = out[0].logit;
        if (vocab - i >= STRIDE) {
            int any = 0;
            for (int j = 0; j < STRIDE; j++)
                any |= logits[i + j] > bar;
            if (!any) {
                i += STRIDE;
                continue;
            }
        }
        int32_t end = vocab - i >= STRIDE ? i + STRIDE : vocab;
        for (; i < end; i++)
            if (logits[i] > out[0].logit) { /* an equal one has a higher id: it goes after */
                out[0] = (struct mxc_candidate){.id = i, .logit = logits[i]};
                sift(out, k, 0, higher);
            }
    }
    sort(out, k, higher);
    return k;
}

static int bucket_of(float key) {
    float x = key * 32.0f;
    return x < (float)(MXC_N_BUCKETS - 1) ? (int)x : MXC_N_BUCKETS - 1;
}

int32_t mxc_select_mass(struct mxc_sample_work *work, int32_t n, double limit, int32_t min_keep) {
    struct mxc_candidate *c = work->candidates;
    int32_t counts[MXC_N_BUCKETS] = {0};
    for (int i = 0; i < MXC_N_BUCKETS; i++)
        work->bucket_mass[i] = 0;
    for (int32_t i = 0; i < n; i++) {
        int b = bucket_of(c[i].key);
        work->bucket_mass[b] += (double)c[i].mass;
        counts[b]++;
    }
    int last = 0;
    double mass = 0;
    int32_t sure = 0;
    for (; last < MXC_N_BUCKETS - 1; last++) {
        if (mass + work->bucket_mass[last] >= limit && sure + counts[last] >= min_keep)
            break;
        mass += work->bucket_mass[last];
        sure += counts[last];
    }
    /* whole buckets first, in their order of ids, then the split bucket, sorted */
    int32_t kept = 0, edge = 0;
    for (int32_t i = 0; i < n; i++) {
        int b = bucket_of(c[i].key);
        if (b > last)
            continue;
        struct mxc_candidate x = c[i];
        if (b < last) {
            c[kept + edge] = c[kept];
            c[kept++] = x;
        } else {
            c[kept + edge++] = x;
        }
    }
    sort(c + kept, edge, smaller_key);
    for (int32_t i = 0; i < edge; i++) {
        if (kept >= min_keep && kept && mass >= limit)
            break;
        mass += (double)c[kept++].mass;
    }
    return kept;
}
