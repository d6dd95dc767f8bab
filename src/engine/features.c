/* Features: a list in no order, since there are few pictures and each is large. The limit is kept
 * by making room before an entry goes in and after one is given back. Invariants: bytes is the sum
 * over the list; an entry with holders is never freed. */
#include "engine/features.h"

#include "base/mem.h"

#include <assert.h>
#include <string.h>

void mxc_features_init(struct mxc_features *features, size_t limit_bytes) {
    *features = (struct mxc_features){.limit = limit_bytes};
}

static void drop(struct mxc_features *f, struct mxc_feature **link) {
    struct mxc_feature *entry = *link;
    *link = entry->next;
    f->bytes -= entry->bytes;
    mxc_mem_free(entry->rows);
    mxc_mem_free(entry);
}

void mxc_features_fini(struct mxc_features *f) {
    while (f->list) {
        assert(!f->list->n_holders);
        drop(f, &f->list);
    }
}

/* Frees the least recently used entries that nobody holds until `more` bytes fit. */
static void make_room(struct mxc_features *f, size_t more) {
    while (f->bytes + more > f->limit) {
        struct mxc_feature **oldest = NULL;
        for (struct mxc_feature **link = &f->list; *link; link = &(*link)->next)
            if (!(*link)->n_holders && (!oldest || (*link)->stamp < (*oldest)->stamp))
                oldest = link;
        if (!oldest)
            return;
        drop(f, oldest);
    }
}

struct mxc_feature *mxc_features_take(struct mxc_features *f, const uint8_t *digest) {
    for (struct mxc_feature *e = f->list; e; e = e->next)
        if (!memcmp(e->digest, digest, sizeof e->digest)) {
            e->n_holders++;
            e->stamp = ++f->tick;
            f->n_hits++;
            return e;
        }
    f->n_misses++;
    return NULL;
}

enum mxc_code mxc_features_add(struct mxc_features *f, const uint8_t *digest, const float *rows,
                               int32_t n_rows, int32_t width, struct mxc_feature **feature,
                               struct mxc_err *err) {
    size_t n, bytes;
    if (!mxc_size_mul((size_t)n_rows, (size_t)width, &n) || !mxc_size_mul(n, sizeof *rows, &bytes))
        return mxc_err_nomem(err);
    make_room(f, bytes);
    struct mxc_feature *e = mxc_mem_zalloc(1, sizeof *e);
    float *copy = e ? mxc_mem_array(n, sizeof *copy) : NULL;
    if (!copy) {
        mxc_mem_free(e);
        return mxc_err_nomem(err);
    }
    memcpy(copy, rows, bytes);
    *e = (struct mxc_feature){.next = f->list,
                              .rows = copy,
                              .n_rows = n_rows,
                              .width = width,
                              .n_holders = 1,
                              .stamp = ++f->tick,
                              .bytes = bytes};
    memcpy(e->digest, digest, sizeof e->digest);
    f->list = e;
    f->bytes += bytes;
    *feature = e;
    return MXC_OK;
}

void mxc_features_give_back(struct mxc_features *f, struct mxc_feature *feature) {
    if (!feature)
        return;
    feature->n_holders--;
    make_room(f, 0);
}
