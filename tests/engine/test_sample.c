/* Samplers against their definitions, computed here the slow and plain way. */
#include "test.h"

#include "base/mem.h"
#include "engine/sample.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { VOCAB = 1000, CONTEXT = 512, DRAWS = 2000 };

static struct mxc_sample_work work;
static float base[VOCAB];

static int setup(void **state) {
    (void)state;
    struct mxc_rng rng;
    mxc_rng_seed(&rng, 7);
    for (int i = 0; i < VOCAB; i++) /* a peaked distribution with ties */
        base[i] = floorf((float)(mxc_rng_uniform(&rng) * 64 + (i % 97 == 3) * 80)) / 16;
    return (int)mxc_sample_work_init(&work, VOCAB, CONTEXT, NULL);
}

static int teardown(void **state) {
    (void)state;
    for (int i = 0; i < VOCAB; i++)
        if (work.count[i])
            return -1;
    mxc_sample_work_fini(&work);
    return 0;
}

static int32_t next(struct mxc_sampler *s, const float *from, const int32_t *history, int32_t n) {
    static float logits[VOCAB];
    int32_t id = -1;
    memcpy(logits, from, sizeof logits);
    assert_int_equal(mxc_sampler_next(s, &work, logits, history, n, &id, NULL), MXC_OK);
    assert_in_range(id, 0, VOCAB - 1);
    return id;
}

static struct mxc_sampler sampler_of(const struct mxc_sampling *params) {
    struct mxc_sampler s;
    assert_int_equal(mxc_sampling_check(params, VOCAB, NULL), MXC_OK);
    assert_int_equal(mxc_sampler_init(&s, params, VOCAB, NULL), MXC_OK);
    return s;
}

/* Draws many times; counts must be near p (sum 1), and exactly 0 where p is 0. */
static void assert_distribution(const struct mxc_sampling *params, const double *p) {
    static int counts[VOCAB];
    struct mxc_sampler s = sampler_of(params);
    memset(counts, 0, sizeof counts);
    for (int i = 0; i < DRAWS; i++)
        counts[next(&s, base, NULL, 0)]++;
    for (int i = 0; i < VOCAB; i++) {
        double expect = p[i] * DRAWS;
        if (p[i] == 0)
            assert_int_equal(counts[i], 0);
        assert_true(fabs(counts[i] - expect) < 5.5 * sqrt(expect + 1) + 1);
    }
    mxc_sampler_fini(&s);
}

static void softmax(const bool *keep, double temperature, double *p) {
    double max = -INFINITY, total = 0;
    for (int i = 0; i < VOCAB; i++)
        if (keep[i] && (double)base[i] > max)
            max = (double)base[i];
    for (int i = 0; i < VOCAB; i++)
        total += p[i] = keep[i] ? exp(((double)base[i] - max) / temperature) : 0;
    for (int i = 0; i < VOCAB; i++)
        p[i] /= total;
}

static int order[VOCAB];
static int by_logit(const void *a, const void *b) {
    int i = *(const int *)a, j = *(const int *)b;
    return base[i] != base[j] ? (base[i] > base[j] ? -1 : 1) : i - j;
}

static void sort_all(void) {
    for (int i = 0; i < VOCAB; i++)
        order[i] = i;
    qsort(order, VOCAB, sizeof *order, by_logit);
}

static bool keep[VOCAB];
static double p[VOCAB];

static void keep_all(bool value) {
    for (int i = 0; i < VOCAB; i++)
        keep[i] = value;
}

static void reference_top_p(double top_p) {
    double mass = 0, q[VOCAB];
    softmax(keep, 1, q);
    for (int i = 0; i < VOCAB; i++) {
        bool in = keep[order[i]] && mass < top_p;
        mass += q[order[i]];
        keep[order[i]] = in;
    }
}

static void temperature_and_top_k(void **state) {
    (void)state;
    struct mxc_sampling params;
    mxc_sampling_init(&params);
    sort_all();
    keep_all(true);
    softmax(keep, 1, p);
    assert_distribution(&params, p);
    params.temperature = 0.7f;
    softmax(keep, 0.7, p);
    assert_distribution(&params, p);
    static const int ks[] = {1, 2, 12, 300, 999, 5000};
    for (size_t i = 0; i < sizeof ks / sizeof *ks; i++) {
        params.top_k = ks[i];
        for (int j = 0; j < VOCAB; j++)
            keep[order[j]] = j < ks[i];
        softmax(keep, 0.7, p);
        assert_distribution(&params, p);
    }
}

static void truncations(void **state) {
    (void)state;
    struct mxc_sampling params;
    sort_all();
    static const struct {
        int32_t k;
        float top_p, min_p;
    } cases[] = {{0, 0.5f, 0},      {0, 0.95f, 0},     {0, 0.999f, 0},     {0, 0, 0},
                 {50, 0.9f, 0},     {0, 1, 0.05f},     {0, 1, 1},          {0, 0.9f, 0.1f},
                 {100, 0.8f, 0.2f}, {7, 0.3f, 0.001f}, {0, 1, 0.0000001f}, {900, 0.99f, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mxc_sampling_init(&params);
        params.temperature = 1.5f; /* truncation looks at the untempered distribution */
        params.top_k = cases[i].k;
        params.top_p = cases[i].top_p;
        params.min_p = cases[i].min_p;
        keep_all(true);
        for (int j = 0; j < VOCAB && cases[i].k; j++)
            keep[order[j]] = j < cases[i].k;
        if (cases[i].top_p < 1) {
            reference_top_p((double)cases[i].top_p);
            keep[order[0]] = true;
        }
        double max = (double)base[order[0]];
        for (int j = 0; j < VOCAB && cases[i].min_p > 0; j++)
            keep[j] = keep[j] && (double)base[j] >= max + log((double)cases[i].min_p);
        softmax(keep, 1.5, p);
        assert_distribution(&params, p);
    }
}

static double typical_key[VOCAB];
static int by_key(const void *a, const void *b) {
    int i = *(const int *)a, j = *(const int *)b;
    double d = typical_key[i] - typical_key[j];
    return fabs(d) > 1e-6 ? (d < 0 ? -1 : 1) : i - j;
}

static void typical_xtc_dynatemp(void **state) {
    (void)state;
    struct mxc_sampling params;
    double q[VOCAB], entropy = 0, mass = 0;
    mxc_sampling_init(&params);
    params.typical_p = 0.6f;
    keep_all(true);
    softmax(keep, 1, q);
    for (int i = 0; i < VOCAB; i++)
        entropy -= q[i] * log(q[i]);
    for (int i = 0; i < VOCAB; i++) {
        typical_key[i] = fabs(-log(q[i]) - entropy);
        order[i] = i;
    }
    qsort(order, VOCAB, sizeof *order, by_key);
    for (int i = 0; i < VOCAB; i++) {
        keep[order[i]] = mass < 0.6;
        mass += q[order[i]];
    }
    softmax(keep, 1, p);
    assert_distribution(&params, p);

    /* XTC: with the threshold between the 3rd and 4th, only the 3rd and what is below stay */
    mxc_sampling_init(&params);
    sort_all();
    keep_all(true);
    softmax(keep, 1, q);
    params.xtc_probability = 1;
    int above = 0;
    params.xtc_threshold = (float)(q[order[0]] * 0.6);
    while (q[order[above]] >= (double)params.xtc_threshold)
        above++;
    assert_in_range(above, 2, VOCAB / 2);
    for (int i = 0; i < above - 1; i++)
        keep[order[i]] = false;
    softmax(keep, 1, p);
    assert_distribution(&params, p);
    params.xtc_probability = 0.25f; /* a mixture */
    keep_all(true);
    softmax(keep, 1, q);
    for (int i = 0; i < VOCAB; i++)
        p[i] = p[i] * 0.25 + q[i] * 0.75;
    assert_distribution(&params, p);

    mxc_sampling_init(&params);
    params.temperature = 1;
    params.dynatemp_range = 0.5f;
    params.dynatemp_exponent = 2;
    entropy = 0;
    for (int i = 0; i < VOCAB; i++)
        entropy -= q[i] * log(q[i]);
    keep_all(true);
    softmax(keep, 0.5 + pow(entropy / log(VOCAB), 2), p);
    assert_distribution(&params, p);
}

static void greedy(void **state) {
    (void)state;
    struct mxc_sampling params;
    mxc_sampling_init(&params);
    params.temperature = 0;
    params.mirostat = 2;
    float logits[VOCAB] = {0};
    struct mxc_sampler s = sampler_of(&params);
    assert_int_equal(next(&s, logits, NULL, 0), 0);
    logits[700] = logits[41] = logits[999] = 2;
    assert_int_equal(next(&s, logits, NULL, 0), 41);
    logits[999] = nextafterf(2, 3);
    assert_int_equal(next(&s, logits, NULL, 0), 999);
    mxc_sampler_fini(&s);
}

static void bad_logits(void **state) {
    (void)state;
    struct mxc_sampling params;
    struct mxc_err err;
    float logits[VOCAB];
    int32_t id = 77;
    double lse;
    mxc_sampling_init(&params);
    for (int mode = 0; mode < 3; mode++) {
        params.temperature = (float)(mode % 2);
        struct mxc_sampler s = sampler_of(&params);
        for (int i = 0; i < VOCAB; i++)
            logits[i] = mode == 2 ? -INFINITY : 0;
        if (mode < 2)
            logits[VOCAB - 1] = mode ? INFINITY : NAN;
        assert_int_equal(mxc_logsumexp(logits, VOCAB, &lse, &err), MXC_E_BACKEND);
        assert_int_equal(mxc_sampler_next(&s, &work, logits, NULL, 0, &id, &err), MXC_E_BACKEND);
        assert_int_equal(id, 77);
        mxc_sampler_fini(&s);
    }
}

static void log_probabilities(void **state) {
    (void)state;
    static float logits[VOCAB];
    struct mxc_top_logprob top[20];
    double lse, sum = 0, max = 0;
    memcpy(logits, base, sizeof logits);
    logits[5] = -INFINITY;
    logits[6] = -3e38f;
    assert_int_equal(mxc_logsumexp(logits, VOCAB, &lse, NULL), MXC_OK);
    for (int i = 0; i < VOCAB; i++) {
        sum += exp((double)logits[i]);
        float logprob = mxc_logprob(logits, i, lse);
        assert_true(isfinite(logprob) && logprob <= 0);
        max += exp((double)logprob);
    }
    assert_true(fabs(lse - log(sum)) < 1e-5);
    assert_true(fabs(max - 1) < 1e-5);
    mxc_top_logprobs(logits, VOCAB, lse, 20, top);
    sort_all();
    for (int i = 0, j = 0; i < 20; j++) {
        if (order[j] == 5 || order[j] == 6)
            continue;
        assert_int_equal(top[i].id, order[j]);
        assert_true(top[i].logprob == mxc_logprob(logits, order[j], lse));
        i++;
    }
    for (double x = -100; x <= 0; x += 0.0371) {
        double e = (double)mxc_exp_nonpositive((float)x), exact = exp((double)(float)x);
        assert_true(fabs(e - exact) <= exact * 4e-7 + 2e-38);
    }
    assert_true(mxc_exp_nonpositive(0) == 1);
    assert_true(mxc_exp_nonpositive(-INFINITY) == 0);
}

static void penalties(void **state) {
    (void)state;
    struct mxc_sampling params;
    static const int32_t history[] = {9, 5, 6, 5, 7, 5, 6};
    float logits[VOCAB];
    mxc_sampling_init(&params);
    struct mxc_logit_bias bias[] = {{8, 3}, {10, -INFINITY}};
    params.bias = bias;
    params.n_bias = 2;
    params.repetition_penalty = 2;
    params.frequency_penalty = 0.25f;
    params.presence_penalty = 0.5f;
    params.penalty_last_n = 6; /* without the 9 */
    struct mxc_sampler s = sampler_of(&params);
    bias[0].bias = 100; /* the sampler has a copy */
    for (int i = 0; i < VOCAB; i++)
        logits[i] = i == 7 ? -1.0f : 1.0f;
    mxc_sample_penalise(&s, &work, logits, history, 7);
    assert_true(logits[8] == 4 && logits[10] == -INFINITY && logits[9] == 1 && logits[11] == 1);
    assert_true(logits[5] == 0.5f - 3 * 0.25f - 0.5f);
    assert_true(logits[6] == 0.5f - 2 * 0.25f - 0.5f);
    assert_true(logits[7] == -2 - 0.25f - 0.5f);
    mxc_sampler_fini(&s);
    params.penalty_last_n = 0;
    s = sampler_of(&params);
    logits[5] = 1;
    mxc_sample_penalise(&s, &work, logits, history, 7);
    assert_true(logits[5] == 1);
    mxc_sampler_fini(&s);
}

/* DRY by its definition: the longest match of the end of the history with an earlier place. */
static int dry_length(const int32_t *h, int n, int window, int token) {
    int best = 0;
    for (int end = n - window; end < n - 1; end++) { /* h[end] would be followed by h[end + 1] */
        int length = 0;
        while (end - length >= n - window && h[end - length] == h[n - 1 - length])
            length++;
        if (h[end + 1] == token && length > best)
            best = length;
    }
    return best;
}

static void dry(void **state) {
    (void)state;
    struct mxc_rng rng;
    mxc_rng_seed(&rng, 3);
    for (int round = 0; round < 300; round++) {
        int32_t h[60];
        float logits[VOCAB] = {0};
        int n = 2 + (int)(mxc_rng_next(&rng) % 58);
        for (int i = 0; i < n; i++)
            h[i] = (int32_t)(mxc_rng_next(&rng) % (uint64_t)(round % 5 + 2));
        struct mxc_sampling params;
        mxc_sampling_init(&params);
        params.dry_multiplier = 0.8f;
        params.dry_last_n = round % 2 ? -1 : 25;
        static const int32_t pair[] = {0, 1}, single[] = {4};
        struct mxc_token_list breakers[] = {{pair, 2}, {single, 1}};
        params.dry_breakers = breakers;
        params.n_dry_breakers = round % 3;
        struct mxc_sampler s = sampler_of(&params);
        mxc_sample_penalise(&s, &work, logits, h, n);
        int window = round % 2 || n < 25 ? n : 25, limit = window;
        for (int after = window - 1; after >= 0; after--) {
            int end = n - after;
            if (round % 3 >= 1 && window - after >= 2 && h[end - 2] == 0 && h[end - 1] == 1)
                limit = after;
            if (round % 3 == 2 && h[end - 1] == 4)
                limit = after;
        }
        for (int t = 0; t < 8; t++) {
            int length = dry_length(h, n, window, t);
            length = length < limit ? length : limit;
            bool free = round % 3 == 2 && t == 4;
            float expect = length >= 2 && !free ? -0.8f * powf(1.75f, (float)(length - 2)) : 0;
            assert_true(fabsf(logits[t] - expect) <= fabsf(expect) * 1e-5f);
        }
        mxc_sampler_fini(&s);
    }
}

/* Mirostat holds the mean surprise near tau, whatever the distribution. */
static void mirostat(void **state) {
    (void)state;
    double q[VOCAB];
    keep_all(true);
    softmax(keep, 1, q);
    for (int version = 1; version <= 2; version++)
        for (int tau = 2; tau <= 5; tau += 3) {
            struct mxc_sampling params;
            mxc_sampling_init(&params);
            params.mirostat = version;
            params.mirostat_tau = (float)tau;
            params.top_k = 1; /* replaced by mirostat */
            struct mxc_sampler s = sampler_of(&params);
            bool seen[VOCAB] = {false};
            int distinct = 0;
            double mu = 0;
            for (int i = 0; i < 3000; i++) {
                int32_t id = next(&s, base, NULL, 0);
                distinct += !seen[id];
                seen[id] = true;
                mu += (double)s.mirostat_mu / 3000;
            }
            assert_true(distinct > 1 && distinct < VOCAB);
            assert_true(mu > 0 && mu < 40);
            mxc_sampler_fini(&s);
        }
    /* version 2 in one step: only surprises up to mu (2 tau at first) may be drawn */
    for (uint64_t seed = 0; seed < 500; seed++) {
        struct mxc_sampling params;
        mxc_sampling_init(&params);
        params.mirostat = 2;
        params.mirostat_tau = 3;
        params.seed = seed;
        struct mxc_sampler s = sampler_of(&params);
        int32_t id = next(&s, base, NULL, 0);
        assert_true(-log2(q[id]) <= 6.0001);
        double total = 0;
        for (int i = 0; i < VOCAB; i++)
            total += -log2(q[i]) <= 6 ? q[i] : 0;
        assert_true(fabs((double)s.mirostat_mu - (6 - 0.1 * (-log2(q[id] / total) - 3))) < 1e-4);
        mxc_sampler_fini(&s);
    }
}

static int32_t forced = -1, accepted = -1;
static void force(void *user, float *logits, int32_t vocab) {
    for (int32_t i = 0; i < vocab; i++)
        if (i != *(int32_t *)user)
            logits[i] = -INFINITY;
}
static void accept(void *user, int32_t id) {
    (void)user;
    accepted = id;
}

static void seeds_and_filter(void **state) {
    (void)state;
    struct mxc_sampling params;
    mxc_sampling_init(&params);
    params.xtc_probability = 0.5f;
    params.top_k = 100;
    int32_t first[100];
    for (int round = 0; round < 3; round++) {
        params.seed = round < 2 ? 12345 : 12346;
        struct mxc_sampler s = sampler_of(&params), other = sampler_of(&params);
        bool equal = true;
        for (int i = 0; i < 100; i++) {
            int32_t id = next(&s, base, NULL, 0);
            for (int j = 0; j < i % 3; j++)
                (void)next(&other, base, NULL, 0); /* a neighbour draws too */
            equal = equal && (!round || id == first[i]);
            if (!round)
                first[i] = id;
        }
        assert_int_equal(equal, round < 2);
        mxc_sampler_fini(&s);
        mxc_sampler_fini(&other);
    }
    params.filter = (struct mxc_logit_filter){force, accept, &forced};
    struct mxc_sampler s = sampler_of(&params);
    for (forced = 0; forced < 50; forced++) {
        assert_int_equal(next(&s, base, NULL, 0), forced);
        assert_int_equal(accepted, forced);
    }
    mxc_sampler_fini(&s);
}

/* Selection with many ties, at the borders of the histogram's buckets, and with min_keep. */
static void selection(void **state) {
    (void)state;
    struct mxc_rng rng;
    mxc_rng_seed(&rng, 11);
    static float logits[VOCAB];
    for (int round = 0; round < 200; round++) {
        int32_t n = 1 + (int32_t)(mxc_rng_next(&rng) % VOCAB), k;
        for (int i = 0; i < n; i++)
            logits[i] = (float)(int)(mxc_rng_uniform(&rng) * (round + 1)) * 0.25f;
        k = 1 + (int32_t)(mxc_rng_next(&rng) % (uint64_t)n);
        assert_int_equal(mxc_select_top(logits, n, k, work.candidates), k);
        for (int32_t i = 0; i < k; i++) {
            int32_t better = 0; /* the rank of an item is how many go before it */
            struct mxc_candidate c = work.candidates[i];
            for (int32_t j = 0; j < n; j++)
                better += logits[j] > c.logit || (logits[j] == c.logit && j < c.id);
            assert_int_equal(better, i);
        }
        for (int32_t i = 0; i < n; i++)
            work.candidates[i] = (struct mxc_candidate){i, 0, 1, 60 - logits[i]};
        int32_t min_keep = round % 3;
        int32_t kept = mxc_select_mass(&work, n, (double)k - 0.5, min_keep);
        assert_int_equal(kept, k > min_keep ? k : min_keep < n ? min_keep : n);
        for (int32_t i = 0; i < kept; i++) {
            struct mxc_candidate c = work.candidates[i];
            int32_t better = 0;
            for (int32_t j = 0; j < n; j++)
                better += logits[j] > logits[c.id] || (logits[j] == logits[c.id] && j < c.id);
            assert_true(better < kept);
        }
    }
}

/* A vocabulary of several blocks; a few likely tokens in each, the last block short, some banned.
 */
static void large_vocabulary(void **state) {
    (void)state;
    enum { N = 3 * MXC_EXP_BLOCK + 77, LIKELY = 7, ROUNDS = 500 };
    static const int32_t likely[LIKELY] = {0, 4095, 4096, 9000, 12287, 12288, N - 1};
    static float from[N], logits[N];
    struct mxc_sample_work w;
    struct mxc_sampling params;
    assert_int_equal(mxc_sample_work_init(&w, N, 16, NULL), MXC_OK);
    for (int mode = 0; mode < 4; mode++) {
        int counts[LIKELY] = {0}, others = 0;
        /* mode 0: all else banned; 1: a tail of e^-13 each, 2.4 % of the mass in all */
        for (int32_t i = 0; i < N; i++)
            from[i] = mode == 0 ? -INFINITY : -13;
        for (int i = 0; i < LIKELY; i++)
            from[likely[i]] = logf((float)(i + 1));
        mxc_sampling_init(&params);
        params.seed = (uint64_t)mode;
        if (mode >= 2) /* 2: the tail is cut off; 3: it is needed, beyond what is near the top */
            params.top_p = mode == 2 ? 0.99f : 0.9995f;
        struct mxc_sampler s = sampler_of(&params);
        for (int round = 0; round < ROUNDS; round++) {
            int32_t id = -1;
            memcpy(logits, from, sizeof logits);
            assert_int_equal(mxc_sampler_next(&s, &w, logits, NULL, 0, &id, NULL), MXC_OK);
            int which = 0;
            while (which < LIKELY && likely[which] != id)
                which++;
            if (which < LIKELY)
                counts[which]++;
            else
                others++;
        }
        double tail = mode == 0 ? 0 : (N - LIKELY) * exp(-13), total = 28 + tail;
        double kept = mode < 2 ? total : fmax(28, (double)params.top_p * total);
        assert_true(fabs(others - ROUNDS * (kept - 28) / kept) < 5.5 * sqrt(others + 1) + 1);
        for (int i = 0; i < LIKELY; i++) {
            double expect = ROUNDS * (i + 1) / kept;
            assert_true(fabs(counts[i] - expect) < 5.5 * sqrt(expect + 1) + 1);
        }
        mxc_sampler_fini(&s);
    }
    mxc_sample_work_fini(&w);
    assert_int_equal(mxc_sample_work_init(&w, 1 << 23, 16, NULL), MXC_E_LIMIT);
}

static void checks(void **state) {
    (void)state;
    struct mxc_sampling good, s;
    struct mxc_err err;
    struct mxc_logit_bias bias = {VOCAB, 0};
    mxc_sampling_init(&good);
    assert_int_equal(mxc_sampling_check(&good, VOCAB, &err), MXC_OK);
    s = good, s.temperature = NAN;
    assert_int_equal(mxc_sampling_check(&s, VOCAB, &err), MXC_E_ARG);
    assert_non_null(strstr(err.message, "temperature"));
    s = good, s.mirostat = 3;
    assert_int_equal(mxc_sampling_check(&s, VOCAB, &err), MXC_E_ARG);
    s = good, s.repetition_penalty = 0;
    assert_int_equal(mxc_sampling_check(&s, VOCAB, &err), MXC_E_ARG);
    s = good, s.bias = &bias, s.n_bias = 1;
    assert_int_equal(mxc_sampling_check(&s, VOCAB, &err), MXC_E_ARG);
    bias = (struct mxc_logit_bias){0, NAN};
    assert_int_equal(mxc_sampling_check(&s, VOCAB, &err), MXC_E_ARG);
    bias.bias = INFINITY;
    assert_int_equal(mxc_sampling_check(&s, VOCAB, &err), MXC_E_ARG);
    bias.bias = -INFINITY;
    assert_int_equal(mxc_sampling_check(&s, VOCAB, &err), MXC_OK);
    struct mxc_token_list list = {NULL, 0};
    s = good, s.dry_breakers = &list, s.n_dry_breakers = 1;
    assert_int_equal(mxc_sampling_check(&s, VOCAB, &err), MXC_E_ARG);
    for (uint64_t n = 1; n <= 3; n++) {
        struct mxc_sample_work w;
        mxc_mem_fail_at(n);
        assert_int_equal(mxc_sample_work_init(&w, VOCAB, CONTEXT, &err), MXC_E_NOMEM);
        mxc_mem_fail_at(0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(temperature_and_top_k),
                                       cmocka_unit_test(truncations),
                                       cmocka_unit_test(typical_xtc_dynatemp),
                                       cmocka_unit_test(greedy),
                                       cmocka_unit_test(bad_logits),
                                       cmocka_unit_test(log_probabilities),
                                       cmocka_unit_test(penalties),
                                       cmocka_unit_test(dry),
                                       cmocka_unit_test(mirostat),
                                       cmocka_unit_test(seeds_and_filter),
                                       cmocka_unit_test(selection),
                                       cmocka_unit_test(large_vocabulary),
                                       cmocka_unit_test(checks)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
