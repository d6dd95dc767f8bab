/* Attention: every level against a double-precision softmax over what the pages hold, windows,
 * soft caps, sinks, garbage in unused slots, and equal bits for a column alone and in any group. */
#include "synthetic.h"

#include "backend/cpu/kernels/layout.h"
#include "base/half.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

enum { PAGE = MXC_ATTN_PAGE, MAX_TOKENS = 1400, N_PAGES = (MAX_TOKENS + PAGE - 1) / PAGE };

/* One KV head's cache in shuffled pages, and the numbers as stored. */
struct cache {
    enum mxc_kv_type type;
    int32_t k_dim, v_dim, n_tokens;
    size_t page_bytes;
    uint8_t *pages;
    int32_t table[N_PAGES];
    float *k, *v; /* [token][dim] */
};

static float stored(enum mxc_kv_type type, float x) {
    return type == MXC_KV_F32 ? x : mxc_bf16_to_f32(mxc_f32_to_bf16(x));
}

static struct cache cache_new(const struct mxc_kernels *kernels, enum mxc_kv_type type,
                              int32_t k_dim, int32_t v_dim, int32_t n_tokens) {
    struct cache c = {.type = type, .k_dim = k_dim, .v_dim = v_dim, .n_tokens = n_tokens};
    size_t kd = (size_t)k_dim, vd = (size_t)v_dim, n = (size_t)n_tokens;
    c.page_bytes = mxc_page_bytes(type, k_dim, v_dim);
    c.pages = mxc_mem_aligned(MXC_ALIGN, c.page_bytes * N_PAGES, false);
    c.k = mxc_mem_array(n * kd, sizeof(float));
    c.v = mxc_mem_array(n * vd, sizeof(float));
    assert_true(c.pages && c.k && c.v);
    memset(c.pages, 0xFF, c.page_bytes * N_PAGES); /* NaN everywhere */
    for (int32_t i = 0; i < N_PAGES; i++)
        c.table[i] = i;
    for (int32_t i = N_PAGES - 1; i > 0; i--) {
        int32_t j = (int32_t)(rnd_u32() % (uint32_t)(i + 1)), t = c.table[i];
        c.table[i] = c.table[j];
        c.table[j] = t;
    }
    rnd_fill(c.k, n * kd, 1);
    rnd_fill(c.v, n * vd, 1);
    for (size_t t = 0; t < n; t++) {
        uint8_t *page = c.pages + (size_t)c.table[t / PAGE] * c.page_bytes;
        kernels->append[type](page, (int32_t)(t % PAGE), c.k + t * kd, c.v + t * vd, k_dim, v_dim);
    }
    for (size_t i = 0; i < n * kd; i++)
        c.k[i] = stored(type, c.k[i]);
    for (size_t i = 0; i < n * vd; i++)
        c.v[i] = stored(type, c.v[i]);
    return c;
}

static void cache_free(struct cache *c) {
    mxc_mem_free_aligned(c->pages, c->page_bytes * N_PAGES);
    mxc_mem_free(c->k);
    mxc_mem_free(c->v);
}

/* Columns that a test attends with. */
struct queries {
    int32_t n;
    float scale, softcap;
    int32_t begin[MXC_ATTN_COLUMNS], end[MXC_ATTN_COLUMNS];
    float sinks[MXC_ATTN_COLUMNS];
    bool use_sinks;
    float *q;       /* [n][k_dim] */
    uint8_t *ready; /* prepared */
};

static size_t ready_bytes(const struct cache *c) {
    return (size_t)c->k_dim * (c->type == MXC_KV_F32 ? 4 : 2);
}

static struct queries queries_new(const struct mxc_kernels *kernels, const struct cache *c,
                                  int32_t n, float softcap) {
    struct queries s = {.n = n, .scale = 1.0f / sqrtf((float)c->k_dim), .softcap = softcap};
    size_t kd = (size_t)c->k_dim;
    s.q = mxc_mem_array((size_t)n * kd, sizeof(float));
    s.ready = mxc_mem_array((size_t)n, ready_bytes(c));
    assert_true(s.q && s.ready);
    rnd_fill(s.q, (size_t)n * kd, 4);
    for (int32_t i = 0; i < n; i++) {
        kernels->prepare_q[c->type](s.ready + (size_t)i * ready_bytes(c), s.q + (size_t)i * kd,
                                    c->k_dim, s.scale);
        s.end[i] = c->n_tokens - n + 1 + i; /* causal, the last column sees all */
        s.sinks[i] = rnd_float();
    }
    return s;
}

static void queries_free(struct queries *s) {
    mxc_mem_free(s->q);
    mxc_mem_free(s->ready);
}

/* Columns [c0, c0 + n) through all chunks from `first_chunk`. out: [n][v_dim]. */
static void run(const struct mxc_kernels *kernels, const struct cache *cache,
                const struct queries *s, int32_t c0, int32_t n, int32_t first_chunk, float *out) {
    struct mxc_attend job = {.k_dim = cache->k_dim,
                             .v_dim = cache->v_dim,
                             .n_columns = n,
                             .q = s->ready + (size_t)c0 * ready_bytes(cache),
                             .pages = cache->pages,
                             .page_stride = cache->page_bytes,
                             .table = cache->table,
                             .begin = s->begin + c0,
                             .end = s->end + c0,
                             .softcap = s->softcap};
    struct mxc_attn_part *part = mxc_mem_aligned(MXC_ALIGN, 2 * sizeof *part, false);
    assert_non_null(part);
    memset(part, 0xFF, 2 * sizeof *part);
    int32_t end = 0;
    for (int32_t i = 0; i < n; i++)
        end = job.end[i] > end ? job.end[i] : end;
    bool first = true;
    for (int32_t k0 = first_chunk; k0 < end; k0 += MXC_ATTN_CHUNK, first = false) {
        kernels->attend[cache->type](&job, k0, part + 1);
        kernels->attn_merge(part, part + 1, first, n, cache->v_dim);
    }
    kernels->attn_finish(part, s->use_sinks ? s->sinks + c0 : NULL, out, (size_t)cache->v_dim, n,
                         cache->v_dim);
    mxc_mem_free_aligned(part, 2 * sizeof *part);
}

/* Double-precision reference of column i; also the largest |v| weighted, for the bound. */
static void reference(const struct cache *c, const struct queries *s, int32_t i, double *out) {
    static double w[MAX_TOKENS];
    size_t kd = (size_t)c->k_dim, vd = (size_t)c->v_dim;
    double sum = 0, max = s->use_sinks ? (double)s->sinks[i] : -1e300;
    for (int32_t t = s->begin[i]; t < s->end[i]; t++) {
        double z = 0;
        for (size_t d = 0; d < kd; d++) {
            double q = (double)s->q[(size_t)i * kd + d];
            if (c->type == MXC_KV_BF16) /* the query is rounded after scaling */
                q = (double)stored(MXC_KV_BF16, s->q[(size_t)i * kd + d] * (s->scale * MXC_LOG2E)) /
                    ((double)s->scale * 1.4426950408889634);
            z += q * (double)c->k[(size_t)t * kd + d];
        }
        z *= (double)s->scale;
        if (s->softcap > 0)
            z = (double)s->softcap * tanh(z / (double)s->softcap);
        w[t] = z;
        max = z > max ? z : max;
    }
    memset(out, 0, vd * sizeof *out);
    for (int32_t t = s->begin[i]; t < s->end[i]; t++) {
        double e = exp(w[t] - max);
        sum += e;
        for (size_t d = 0; d < vd; d++)
            out[d] += e * (double)c->v[(size_t)t * vd + d];
    }
    if (s->use_sinks)
        sum += exp((double)s->sinks[i] - max);
    for (size_t d = 0; d < vd; d++)
        out[d] = sum > 0 ? out[d] / sum : 0;
}

static void check(const struct mxc_kernels *kernels, const struct cache *c,
                  const struct queries *s) {
    size_t vd = (size_t)c->v_dim;
    struct guarded got = guarded_new((size_t)s->n * vd);
    run(kernels, c, s, 0, s->n, 0, got.data);
    double want[MXC_ATTN_MAX_DIM], bound = c->type == MXC_KV_F32 ? 3e-6 : 4e-3;
    for (int32_t i = 0; i < s->n; i++) {
        reference(c, s, i, want);
        for (size_t d = 0; d < vd; d++)
            if (!(fabs((double)got.data[(size_t)i * vd + d] - want[d]) <= bound))
                fail_msg("%s type %d k %d v %d column %d of %d dim %zu: %g, not %g",
                         mxc_cpu_level_name(kernels->level), c->type, c->k_dim, c->v_dim, i, s->n,
                         d, (double)got.data[(size_t)i * vd + d], want[d]);
    }
    guarded_free(&got);
}

typedef void level_fn(const struct mxc_kernels *kernels, enum mxc_kv_type type);

static void for_each_attend(level_fn *fn) {
    for (size_t i = 0; i < n_kernel_rows; i++) {
        const struct kernel_row *row = kernel_row(i, KIND_ATTEND);
        if (row)
            fn(mxc_kernels_get(row->level), (enum mxc_kv_type)row->index);
    }
}

static void check_shapes(const struct mxc_kernels *kernels, enum mxc_kv_type type) {
    static const int32_t dims[][2] = {{64, 64},   {80, 80},   {96, 96},   {128, 128}, {2, 2},
                                      {18, 34},   {192, 128}, {40, 256},  {256, 6},   {24, 24},
                                      {40, 40},   {72, 72},   {112, 112}, {160, 160}, {256, 256},
                                      {576, 512}, {576, 576}, {34, 520}};
    static const int32_t tokens[] = {1, 2, 31, 32, 33, 129, 512, 513, 700};
    for (size_t d = 0; d < sizeof dims / sizeof *dims; d++)
        for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++) {
            if (dims[d][0] * tokens[t] > 600 * 64 && t % 2 == 0 && tokens[t] != 513)
                continue; /* time: the reference is plain */
            int32_t n = (int32_t)(rnd_u32() % MXC_ATTN_COLUMNS) + 1;
            struct cache c = cache_new(kernels, type, dims[d][0], dims[d][1], tokens[t]);
            struct queries s = queries_new(kernels, &c, n < tokens[t] ? n : tokens[t], 0);
            check(kernels, &c, &s);
            queries_free(&s);
            cache_free(&c);
        }
}

static void check_options(const struct mxc_kernels *kernels, enum mxc_kv_type type) {
    struct cache c = cache_new(kernels, type, 64, 64, 1200);
    struct queries s = queries_new(kernels, &c, 11, 3.0f);
    check(kernels, &c, &s); /* soft cap */
    s.use_sinks = true;
    check(kernels, &c, &s);
    s.softcap = 0;
    check(kernels, &c, &s);
    for (int32_t i = 0; i < s.n; i++)
        s.begin[i] = s.end[i] - 600 + i; /* windows that begin in the middle of a page */
    for (int32_t i = 0; i < (1200 - 11 + 1 - 600) / PAGE; i++)
        c.table[i] = -1; /* pages before every window are gone */
    check(kernels, &c, &s);
    s.begin[3] = s.end[3]; /* a column that sees nothing */
    check(kernels, &c, &s);
    s.use_sinks = false;
    check(kernels, &c, &s);
    queries_free(&s);
    cache_free(&c);
}

/* Alone, in pairs, in groups of five and all together: the same bits. */
static void check_grouping(const struct mxc_kernels *kernels, enum mxc_kv_type type) {
    enum { N = MXC_ATTN_COLUMNS };
    static const int32_t dims[][2] = {{64, 64}, {80, 80}, {128, 128}, {36, 52}, {576, 512}};
    for (size_t d = 0; d < sizeof dims / sizeof *dims; d++)
        for (int windowed = 0; windowed < 2; windowed++) {
            struct cache c = cache_new(kernels, type, dims[d][0], dims[d][1], 1061);
            struct queries s = queries_new(kernels, &c, N, windowed ? 20.0f : 0.0f);
            /* ends far apart: some columns end chunks before others */
            for (int32_t i = 0; i < N; i++) {
                s.end[i] = 1 + i * i * 1060 / (15 * 15);
                s.begin[i] = windowed && s.end[i] > 200 ? s.end[i] - 200 : 0;
            }
            size_t vd = (size_t)c.v_dim;
            struct guarded alone = guarded_new(N * vd), group = guarded_new(N * vd);
            for (int32_t i = 0; i < N; i++) /* alone it may start at its own first chunk */
                run(kernels, &c, &s, i, 1, s.begin[i] / MXC_ATTN_CHUNK * MXC_ATTN_CHUNK,
                    alone.data + (size_t)i * vd);
            static const int32_t sizes[] = {2, 3, 4, 5, 8, 9, 12, 13, 16};
            for (size_t g = 0; g < sizeof sizes / sizeof *sizes; g++) {
                for (int32_t i = 0; i < N; i += sizes[g])
                    run(kernels, &c, &s, i, N - i < sizes[g] ? N - i : sizes[g], 0,
                        group.data + (size_t)i * vd);
                if (memcmp(alone.data, group.data, N * vd * sizeof(float)))
                    fail_msg("%s type %d dims %d, groups of %d", mxc_cpu_level_name(kernels->level),
                             type, c.k_dim, sizes[g]);
            }
            guarded_free(&alone);
            guarded_free(&group);
            queries_free(&s);
            cache_free(&c);
        }
}

static void test_shapes(void **unused) {
    (void)unused;
    for_each_attend(check_shapes);
}

static void test_options(void **unused) {
    (void)unused;
    for_each_attend(check_options);
}

static void test_grouping(void **unused) {
    (void)unused;
    for_each_attend(check_grouping);
}

/* Keys, values and queries are stored in the same bytes at every level, and one token's append
 * leaves its neighbours alone. */
static void test_append_and_query_equal_scalar(void **unused) {
    (void)unused;
    static const int32_t dims[][2] = {{64, 64}, {80, 96},   {2, 6},   {34, 18},
                                      {24, 24}, {576, 512}, {72, 40}, {18, 575}};
    for (size_t i = 0; i < n_kernel_rows; i++) {
        const struct kernel_row *append = kernel_row(i, KIND_APPEND);
        const struct kernel_row *query = kernel_row(i, KIND_PREPARE_Q);
        for (size_t d = 0; d < sizeof dims / sizeof *dims; d++) {
            int32_t kd = dims[d][0], vd = dims[d][1];
            float k[MXC_ATTN_MAX_DIM], v[MXC_ATTN_MAX_DIM];
            rnd_fill(k, MXC_ATTN_MAX_DIM, 1);
            rnd_fill(v, MXC_ATTN_MAX_DIM, 1);
            if (append) {
                enum mxc_kv_type type = (enum mxc_kv_type)append->index;
                size_t bytes = mxc_page_bytes(type, kd, vd);
                uint8_t *pages[2];
                for (int32_t p = 0; p < 2; p++) {
                    pages[p] = mxc_mem_aligned(MXC_ALIGN, bytes + 64, false);
                    assert_non_null(pages[p]);
                    memset(pages[p], 0xA5, bytes + 64);
                    enum mxc_cpu_level level = p ? append->level : MXC_CPU_SCALAR;
                    for (int32_t slot = 0; slot < PAGE; slot += 3)
                        mxc_kernels_get(level)->append[type](pages[p], slot, k, v, kd, vd);
                }
                assert_memory_equal(pages[0], pages[1], bytes + 64);
                mxc_mem_free_aligned(pages[0], bytes + 64);
                mxc_mem_free_aligned(pages[1], bytes + 64);
            }
            if (query) {
                uint32_t q[2][MXC_ATTN_MAX_DIM];
                memset(q, 0xA5, sizeof q);
                mxc_kernels_get(MXC_CPU_SCALAR)->prepare_q[query->index](q[0], k, kd, 0.3f);
                mxc_kernels_get(query->level)->prepare_q[query->index](q[1], k, kd, 0.3f);
                assert_memory_equal(q[0], q[1], sizeof q[0]);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_grouping),
        cmocka_unit_test(test_append_and_query_equal_scalar),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
