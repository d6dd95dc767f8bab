/* Attention, AVX-512: online softmax over pages of 32 keys for up to 16 columns of one KV head.
 * Both products (scores from K, outputs from V) are the micro-kernel of the matmuls: one f32
 * accumulator per output visits its sum in order, so neither the number of columns nor the number
 * of vectors of a call changes a bit. Few columns go page by page, with four vectors and prefetch;
 * more of them walk all pages of a block in one call, so that outputs stay in registers and the
 * ends of calls are few. Masked scores never enter arithmetic; weights of masked keys are exact
 * zeros, and slots of V past the last visible key are not read (they may hold NaN). */
#include "backend/cpu/kernels/avx512/avx512.h"

#include <string.h>

enum { PAGE = MXC_ATTN_PAGE, BLOCK = MXC_ATTN_BLOCK, COLUMNS = MXC_ATTN_COLUMNS };
/* Columns of a call: up to FEW with four vectors and prefetch; HALF when there are more than WIDE.
 * The first HALF prefetches when there are LONG keys or more, which no cache keeps (16 query heads
 * on one KV head at depth 8192: 47 -> 61 % of the bf16 peak; short prefills lose 10 % by it). */
enum { WIDE = 12, FEW = 4, HALF = 8, HALF_AHEAD = WIDE + 1, LONG = 1024 };

/* acc[vector][column] += a * w over some steps: 4 bytes of a column (a float or two bf16) with 16
 * lanes of each vector. */
MXC_INLINE __m512 multiply_add(mxc_vf acc, mxc_vi w, mxc_vi b, const bool bf16) {
    return bf16 ? _mm512_dpbf16_ps(acc, (__m512bh)w, (__m512bh)b)
                : _mm512_fmadd_ps(_mm512_castsi512_ps(w), _mm512_castsi512_ps(b), acc);
}

/* ---- few columns: o[c][lanes] (+)= sum over steps of a[c][step] * w[step][lanes] */

struct product {
    const uint8_t *w0, *w1;   /* 32 lanes each; w1 only with four vectors */
    ptrdiff_t ahead0, ahead1; /* what to prefetch, relative to w0, w1 */
    size_t step;              /* bytes from one step of w to the next */
    int64_t steps;
    const uint8_t *a;
    size_t a_stride; /* bytes */
    float *o;
    size_t o_stride;         /* numbers */
    const float *correction; /* [column] o is multiplied by it first; NULL: 1 */
    bool zero;               /* start from zero */
    __mmask16 mask;          /* lanes, with one vector */
};
typedef void product_fn(const struct product *p);

MXC_INLINE void product(const struct product *p, const int N, const int NV, const bool bf16) {
    mxc_vf acc[4][FEW]; /* without unrolling gcc keeps it in memory */
    MXC_UNROLL
    for (int v = 0; v < NV; v++) {
        MXC_UNROLL
        for (int c = 0; c < N; c++) {
            acc[v][c] = p->zero ? _mm512_setzero_ps()
                                : _mm512_loadu_ps(p->o + (size_t)c * p->o_stride + 16 * v);
            if (p->correction)
                acc[v][c] = _mm512_mul_ps(acc[v][c], _mm512_set1_ps(p->correction[c]));
        }
    }
    const uint8_t *w0 = p->w0, *w1 = p->w1, *a = p->a;
    const size_t a_stride = p->a_stride, step = p->step;
    const ptrdiff_t ahead0 = p->ahead0, ahead1 = p->ahead1;
#pragma GCC unroll 4
    for (int64_t k = 0; k < p->steps; k++, w0 += step, w1 += step, a += 4) {
        mxc_vi w[4];
        MXC_UNROLL
        for (int v = 0; v < NV; v++)
            w[v] = NV == 1 ? _mm512_maskz_loadu_epi32(p->mask, w0)
                           : _mm512_loadu_si512((v < 2 ? w0 : w1) + 64 * (v & 1));
        MXC_UNROLL
        for (int v = 0; v < NV; v++)
            mxc_prefetch_l2((v < 2 ? w0 + ahead0 : w1 + ahead1) + 64 * (v & 1));
        MXC_UNROLL
        for (int c = 0; c < N; c++) {
            mxc_vi b = mxc_broadcast4(a + (size_t)c * a_stride);
            MXC_UNROLL
            for (int v = 0; v < NV; v++)
                acc[v][c] = multiply_add(acc[v][c], w[v], b, bf16);
        }
    }
    MXC_UNROLL
    for (int v = 0; v < NV; v++) {
        MXC_UNROLL
        for (int c = 0; c < N; c++)
            _mm512_storeu_ps(p->o + (size_t)c * p->o_stride + 16 * v, acc[v][c]);
    }
}

#define PRODUCT(name, N, NV, bf16)                                                                 \
    static __attribute__((noinline)) void name##_##NV##_##N(const struct product *p) {             \
        product(p, N, NV, bf16);                                                                   \
    }
#define PRODUCTS(name, NV, bf16)                                                                   \
    PRODUCT(name, 1, NV, bf16)                                                                     \
    PRODUCT(name, 2, NV, bf16)                                                                     \
    PRODUCT(name, 3, NV, bf16)                                                                     \
    PRODUCT(name, 4, NV, bf16)
#define PRODUCT_LIST(name, NV)                                                                     \
    { NULL, name##_##NV##_1, name##_##NV##_2, name##_##NV##_3, name##_##NV##_4 }
PRODUCTS(f32, 1, false)
PRODUCTS(f32, 2, false)
PRODUCTS(f32, 4, false)
PRODUCTS(bf16, 1, true)
PRODUCTS(bf16, 2, true)
PRODUCTS(bf16, 4, true)
/* by type, number of vectors (1, 2, 4) and of columns */
static product_fn *const products[MXC_N_KV_TYPES][3][FEW + 1] = {
    {PRODUCT_LIST(f32, 1), PRODUCT_LIST(f32, 2), PRODUCT_LIST(f32, 4)},
    {PRODUCT_LIST(bf16, 1), PRODUCT_LIST(bf16, 2), PRODUCT_LIST(bf16, 4)}};

/* ---- more columns, over all pages of a block */

struct walk {
    const uint8_t *const *pages;
    int32_t n_pages;
    size_t offset;       /* of the first w in a page */
    size_t step;         /* bytes from one step of w to the next */
    int64_t steps, last; /* of a page; of the last page */
    const uint8_t *a;
    size_t a_stride;         /* bytes from column to column; outputs: of a row of p */
    float *o;                /* scores: [column][BLOCK] */
    size_t o_stride;         /* outputs: numbers from column to column */
    const float *correction; /* [column] outputs are multiplied by it first */
    bool zero;               /* outputs start from zero */
    __mmask16 mask;          /* lanes, with one vector */
    const ptrdiff_t *ahead;  /* by page: what to prefetch, relative to w */
};
typedef void walk_fn(const struct walk *t);

/* Bytes of a row of p that a page takes. */
#define P_PAGE(bf16) ((size_t)PAGE * ((bf16) ? 2 : 4))

MXC_INLINE void walk_page(const struct walk *t, int32_t page, mxc_vf acc[3][WIDE], const uint8_t *a,
                          const size_t a_stride, const int N, const int NV, const bool bf16,
                          const bool fetch) {
    const uint8_t *w = t->pages[page] + t->offset;
    const size_t step = t->step;
    const ptrdiff_t ahead = fetch ? t->ahead[page] : 0;
    const int64_t steps = page + 1 < t->n_pages ? t->steps : t->last;
#pragma GCC unroll 4
    for (int64_t k = 0; k < steps; k++, w += step, a += 4) {
        mxc_vi x[3];
        MXC_UNROLL
        for (int v = 0; v < NV; v++)
            x[v] = NV == 1 ? _mm512_maskz_loadu_epi32(t->mask, w) : _mm512_loadu_si512(w + 64 * v);
        MXC_UNROLL
        for (int v = 0; fetch && v < NV; v++)
            mxc_prefetch_l2(w + ahead + 64 * v);
        MXC_UNROLL
        for (int c = 0; c < N; c++) {
            mxc_vi b = mxc_broadcast4(a + (size_t)c * a_stride);
            MXC_UNROLL
            for (int v = 0; v < NV; v++)
                acc[v][c] = multiply_add(acc[v][c], x[v], b, bf16);
        }
    }
}

/* Scores of N columns: a page's keys are two vectors of lanes, steps go along K. */
MXC_INLINE void score_pages(const struct walk *t, const int N, const bool bf16, const bool fetch) {
    for (int32_t i = 0; i < t->n_pages; i++) {
        mxc_vf acc[3][WIDE];
        MXC_UNROLL
        for (int c = 0; c < N; c++)
            acc[0][c] = acc[1][c] = _mm512_setzero_ps();
        walk_page(t, i, acc, t->a, t->a_stride, N, 2, bf16, fetch);
        MXC_UNROLL
        for (int c = 0; c < N; c++) {
            _mm512_storeu_ps(t->o + c * BLOCK + i * PAGE, acc[0][c]);
            _mm512_storeu_ps(t->o + c * BLOCK + i * PAGE + 16, acc[1][c]);
        }
    }
}

/* Outputs of N columns, 16 NV lanes of V: steps go along the keys of all pages. */
MXC_INLINE void add_pages(const struct walk *t, const int N, const int NV, const bool bf16,
                          const bool fetch) {
    mxc_vf acc[3][WIDE];
    MXC_UNROLL
    for (int v = 0; v < NV; v++) {
        MXC_UNROLL
        for (int c = 0; c < N; c++)
            acc[v][c] = _mm512_setzero_ps();
    }
    if (!t->zero) {
        MXC_UNROLL
        for (int v = 0; v < NV; v++) {
            MXC_UNROLL
            for (int c = 0; c < N; c++)
                acc[v][c] = _mm512_mul_ps(_mm512_loadu_ps(t->o + (size_t)c * t->o_stride + 16 * v),
                                          _mm512_set1_ps(t->correction[c]));
        }
    }
    for (int32_t i = 0; i < t->n_pages; i++)
        walk_page(t, i, acc, t->a + (size_t)i * P_PAGE(bf16), BLOCK * sizeof(float), N, NV, bf16,
                  fetch);
    MXC_UNROLL
    for (int v = 0; v < NV; v++) {
        MXC_UNROLL
        for (int c = 0; c < N; c++)
            _mm512_storeu_ps(t->o + (size_t)c * t->o_stride + 16 * v, acc[v][c]);
    }
}

#define WALK(name, suffix, N, bf16, fetch)                                                         \
    static __attribute__((noinline)) void name##_score##suffix(const struct walk *t) {             \
        score_pages(t, N, bf16, fetch);                                                            \
    }                                                                                              \
    static __attribute__((noinline)) void name##_add_1##suffix(const struct walk *t) {             \
        add_pages(t, N, 1, bf16, fetch);                                                           \
    }                                                                                              \
    static __attribute__((noinline)) void name##_add_2##suffix(const struct walk *t) {             \
        add_pages(t, N, 2, bf16, fetch);                                                           \
    }
#define WALK_NARROW(name, suffix, N, bf16, fetch)                                                  \
    WALK(name, suffix, N, bf16, fetch)                                                             \
    static __attribute__((noinline)) void name##_add_3##suffix(const struct walk *t) {             \
        add_pages(t, N, 3, bf16, fetch);                                                           \
    }
#define WALKS(name, bf16)                                                                          \
    WALK_NARROW(name, _5, 5, bf16, false)                                                          \
    WALK_NARROW(name, _6, 6, bf16, false)                                                          \
    WALK_NARROW(name, _7, 7, bf16, false)                                                          \
    WALK_NARROW(name, _8, 8, bf16, false)                                                          \
    WALK_NARROW(name, _8_ahead, 8, bf16, true)                                                     \
    WALK(name, _9, 9, bf16, false)                                                                 \
    WALK(name, _10, 10, bf16, false)                                                               \
    WALK(name, _11, 11, bf16, false)                                                               \
    WALK(name, _12, 12, bf16, false)
#define WALK_LIST(n)                                                                               \
    {                                                                                              \
        [5] = n##_5, [6] = n##_6, [7] = n##_7, [8] = n##_8, [9] = n##_9, [10] = n##_10,            \
        [11] = n##_11, [12] = n##_12, [HALF_AHEAD] = n##_8_ahead                                   \
    }
#define WALK_LIST_NARROW(n)                                                                        \
    { [5] = n##_5, [6] = n##_6, [7] = n##_7, [8] = n##_8, [HALF_AHEAD] = n##_8_ahead }
WALKS(f32, false)
WALKS(bf16, true)
/* by type and number of columns, or HALF_AHEAD; outputs also by number of vectors - 1 */
static walk_fn *const score_walks[MXC_N_KV_TYPES][HALF_AHEAD + 1] = {WALK_LIST(f32_score),
                                                                     WALK_LIST(bf16_score)};
static walk_fn *const add_walks[MXC_N_KV_TYPES][3][HALF_AHEAD + 1] = {
    {WALK_LIST(f32_add_1), WALK_LIST(f32_add_2), WALK_LIST_NARROW(f32_add_3)},
    {WALK_LIST(bf16_add_1), WALK_LIST(bf16_add_2), WALK_LIST_NARROW(bf16_add_3)}};

/* State of one attend call. */
struct run {
    const struct mxc_attend *job;
    struct mxc_attn_part *part;
    enum mxc_kv_type type;
    size_t k_bytes; /* of K in a page */
    size_t o_stride;
    int32_t begin, end; /* visible to any column, within the chunk */
    int32_t horizon;    /* the same end, not cut to the chunk */
    bool started;       /* o holds sums */
    /* the block: pages [page0, page1) of it take part */
    int32_t b, page0, page1;
    const uint8_t *pages[BLOCK / PAGE];
    ptrdiff_t ahead[BLOCK / PAGE];    /* from a page's V to the K of the page a block later */
    ptrdiff_t to_value[BLOCK / PAGE]; /* from K to V */
    _Alignas(MXC_ALIGN) float s[COLUMNS][BLOCK];
    _Alignas(MXC_ALIGN) float p[COLUMNS][BLOCK]; /* f32, or bf16 in the first half of a row */
    _Alignas(MXC_ALIGN) float correction[COLUMNS];
};

static const uint8_t *page_of(const struct mxc_attend *job, int32_t token) {
    return job->pages + (size_t)job->table[token / PAGE] * job->page_stride;
}

static void find_pages(struct run *r) {
    r->page0 = r->begin > r->b ? (r->begin - r->b) / PAGE : 0;
    r->page1 = (r->end - r->b + PAGE - 1) / PAGE;
    r->page1 = r->page1 > BLOCK / PAGE ? BLOCK / PAGE : r->page1;
    for (int32_t i = r->page0; i < r->page1; i++) {
        int32_t token = r->b + i * PAGE, next = token + BLOCK;
        r->pages[i] = page_of(r->job, token);
        const uint8_t *ahead = next < r->horizon ? page_of(r->job, next) : r->pages[i];
        r->ahead[i] = (ptrdiff_t)((intptr_t)ahead - (intptr_t)(r->pages[i] + r->k_bytes));
        r->to_value[i] = (ptrdiff_t)r->k_bytes;
    }
}

/* Columns [c0, c0 + n) of one call: all up to WIDE, else 8 and the rest. */
static int32_t columns_at(const struct run *r, int32_t c0) {
    int32_t left = r->job->n_columns - c0;
    return left <= WIDE ? left : HALF;
}

/* Which product does n columns from c0. */
static int32_t kind_of(const struct run *r, int32_t c0, int32_t n) {
    return r->job->n_columns > WIDE && !c0 && r->horizon >= LONG ? HALF_AHEAD : n;
}

/* Few columns: two pages at a time. */
static void scores_few(struct run *r) {
    const int32_t n = r->job->n_columns;
    size_t q_bytes = (size_t)r->job->k_dim * (r->type == MXC_KV_F32 ? 4 : 2);
    struct product p = {.step = PAGE * 4,
                        .steps = (int64_t)(q_bytes / 4),
                        .a = r->job->q,
                        .a_stride = q_bytes,
                        .ahead0 = (ptrdiff_t)r->k_bytes, /* V, needed next */
                        .ahead1 = (ptrdiff_t)r->k_bytes,
                        .o_stride = BLOCK,
                        .zero = true};
    for (int32_t i = r->page0; i < r->page1;) {
        int two = i + 1 < r->page1;
        p.w0 = r->pages[i];
        p.w1 = r->pages[i + two];
        p.o = &r->s[0][PAGE * i];
        products[r->type][1 + two][n](&p);
        i += 1 + two;
    }
}

static void scores(struct run *r) {
    size_t q_bytes = (size_t)r->job->k_dim * (r->type == MXC_KV_F32 ? 4 : 2);
    struct walk t = {.pages = r->pages + r->page0,
                     .n_pages = r->page1 - r->page0,
                     .step = PAGE * 4,
                     .steps = (int64_t)(q_bytes / 4),
                     .last = (int64_t)(q_bytes / 4),
                     .a_stride = q_bytes,
                     .ahead = r->to_value + r->page0}; /* V, needed next */
    for (int32_t c = 0, n; c < r->job->n_columns; c += n) {
        n = columns_at(r, c);
        t.a = (const uint8_t *)r->job->q + (size_t)c * q_bytes;
        t.o = &r->s[c][PAGE * r->page0];
        score_walks[r->type][kind_of(r, c, n)](&t);
    }
}

/* Lanes of keys [i, i + 16) that lie in [lo, hi). */
MXC_INLINE __mmask16 visible(int32_t i, int32_t lo, int32_t hi) {
    return (__mmask16)(mxc_lanes(hi - i) & ~mxc_lanes(lo - i));
}

/* Sixteen lanes that hold the largest of the column's scores: soft caps are applied here. */
MXC_INLINE mxc_vf largest(struct run *r, int32_t c) {
    const struct mxc_attend *job = r->job;
    const int32_t lo = job->begin[c] - r->b, hi = job->end[c] - r->b;
    const bool cut = lo > PAGE * r->page0 || hi < PAGE * r->page1;
    const mxc_vf to_cap = _mm512_set1_ps(MXC_LN2 / job->softcap);
    const mxc_vf cap = _mm512_set1_ps(MXC_LOG2E * job->softcap);
    float *s = r->s[c];
    mxc_vf max = _mm512_set1_ps(MXC_ATTN_NONE);
    for (int32_t i = PAGE * r->page0; i < PAGE * r->page1; i += 16) {
        mxc_vf x = _mm512_load_ps(s + i);
        if (job->softcap > 0) {
            x = _mm512_mul_ps(cap, mxc_tanh(_mm512_mul_ps(x, to_cap)));
            _mm512_store_ps(s + i, x);
        }
        __mmask16 mask = cut ? visible(i, lo, hi) : 0xFFFF;
        max = _mm512_mask_max_ps(max, mask, max, x);
    }
    return max;
}

/* 2^x as a weight. bf16, which is rounded to 8 bits next: a polynomial of degree 4 through its
 * Chebyshev points, relative error below 3.6e-6. Exactly 0 below -126, like mxc_exp2. */
MXC_INLINE mxc_vf weight(mxc_vf x, const bool bf16) {
    if (!bf16)
        return mxc_exp2(x);
    __mmask16 keep = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126), _CMP_NLT_UQ);
    mxc_vf n = _mm512_roundscale_ps(x, 8), f = _mm512_sub_ps(x, n);
    mxc_vf p = _mm512_set1_ps(9.666368515e-3f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.592197584e-2f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.402234904e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.931210452e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1));
    return _mm512_maskz_scalef_ps(keep, p, n);
}

/* Weights of column c; returns lanes that add up to their sum. */
MXC_INLINE mxc_vf weights(struct run *r, int32_t c, mxc_vf top, const bool bf16) {
    const int32_t lo = r->job->begin[c] - r->b, hi = r->job->end[c] - r->b;
    const bool cut = lo > PAGE * r->page0 || hi < PAGE * r->page1;
    const float *s = r->s[c];
    mxc_vf sum = _mm512_setzero_ps();
    for (int32_t i = PAGE * r->page0; i < PAGE * r->page1; i += PAGE) {
        mxc_vf e0 = weight(_mm512_sub_ps(_mm512_load_ps(s + i), top), bf16);
        mxc_vf e1 = weight(_mm512_sub_ps(_mm512_load_ps(s + i + 16), top), bf16);
        if (cut) {
            e0 = _mm512_maskz_mov_ps(visible(i, lo, hi), e0);
            e1 = _mm512_maskz_mov_ps(visible(i + 16, lo, hi), e1);
        }
        sum = _mm512_add_ps(sum, _mm512_add_ps(e0, e1));
        if (bf16) {
            __m512bh pair = _mm512_cvtne2ps_pbh(e1, e0);
            _mm512_store_si512((uint16_t *)(void *)r->p[c] + i, (mxc_vi)pair);
        } else {
            _mm512_store_ps(r->p[c] + i, e0);
            _mm512_store_ps(r->p[c] + i + 16, e1);
        }
    }
    return sum;
}

MXC_INLINE mxc_vf either(mxc_vf a, mxc_vf b, const bool sum) {
    return sum ? _mm512_add_ps(a, b) : _mm512_max_ps(a, b);
}

/* Halves of a and b, added up (or the larger), side by side; then quarters, pairs and numbers. */
MXC_INLINE mxc_vf halves(mxc_vf a, mxc_vf b, const bool sum) {
    return either(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE), sum);
}
MXC_INLINE mxc_vf quarters(mxc_vf a, mxc_vf b, const bool sum) {
    return either(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD), sum);
}
MXC_INLINE mxc_vf pairs(mxc_vf a, mxc_vf b, const bool sum) {
    return either(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xEE), sum);
}
MXC_INLINE mxc_vf numbers(mxc_vf a, mxc_vf b, const bool sum) {
    return either(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xDD), sum);
}

/* Lane c: the sum (or the largest) of the lanes of x[c], by one tree, that of
 * _mm512_reduce_add_ps, however many columns there are. */
MXC_INLINE mxc_vf across(const mxc_vf *x, int32_t n_columns, const bool sum) {
    if (n_columns <= FEW) {
        mxc_vf y = _mm512_setzero_ps();
        for (int32_t c = 0; c < n_columns; c++) {
            float one = sum ? _mm512_reduce_add_ps(x[c]) : _mm512_reduce_max_ps(x[c]);
            y = _mm512_mask_mov_ps(y, (__mmask16)(1u << c), _mm512_set1_ps(one));
        }
        return y;
    }
    mxc_vf q[4];
    for (int i = 0; i < 4; i++)
        q[i] = quarters(halves(x[i], x[i + 4], sum), halves(x[i + 8], x[i + 12], sum), sum);
    return numbers(pairs(q[0], q[1], sum), pairs(q[2], q[3], sum), sum);
}

/* m, l, correction and weights of all columns from their scores. */
MXC_INLINE void softmax(struct run *r, const bool bf16) {
    struct mxc_attn_part *part = r->part;
    const int32_t n = r->job->n_columns;
    const __mmask16 mask = mxc_lanes(n);
    mxc_vf x[COLUMNS];
    for (int32_t c = 0; c < n; c++)
        x[c] = largest(r, c);
    for (int32_t c = n; c < COLUMNS && n > FEW; c++)
        x[c] = _mm512_setzero_ps();
    mxc_vf old = _mm512_maskz_loadu_ps(mask, part->m);
    mxc_vf m = _mm512_max_ps(old, across(x, n, false));
    mxc_vf correction = mxc_exp2(_mm512_sub_ps(old, m));
    _mm512_mask_storeu_ps(part->m, mask, m);
    _mm512_store_ps(r->correction, correction);
    for (int32_t c = 0; c < n; c++)
        x[c] = weights(r, c, _mm512_permutexvar_ps(_mm512_set1_epi32(c), m), bf16);
    mxc_vf l = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, part->l), correction);
    _mm512_mask_storeu_ps(part->l, mask, _mm512_add_ps(l, across(x, n, true)));
}

static void softmax_f32(struct run *r) {
    softmax(r, false);
}

static void softmax_bf16(struct run *r) {
    softmax(r, true);
}

/* The last key of an odd number of keys: the second half of its pair may be anything. */
static void mask_pair(const struct run *r, int32_t page, int32_t keys,
                      uint32_t pair[MXC_ATTN_MAX_DIM]) {
    const size_t v_row = (size_t)r->job->v_dim * 4;
    memcpy(pair, r->pages[page] + r->k_bytes + (size_t)(keys / 2) * v_row, v_row);
    for (int32_t d = 0; d < r->job->v_dim; d++)
        pair[d] &= 0xFFFF;
}

/* Visible keys of a page. */
static int32_t keys_of(const struct run *r, int32_t page) {
    int32_t keys = r->end - (r->b + page * PAGE);
    return keys > PAGE ? PAGE : keys;
}

/* Outputs of one page, lanes of v_dim in vectors of 64, 32 and the rest. */
static void page_outputs(struct run *r, struct product *p, const uint8_t *v, ptrdiff_t ahead) {
    const int32_t v_dim = r->job->v_dim;
    for (int32_t d = 0; d < v_dim;) {
        int32_t left = v_dim - d;
        int kind = left >= 64 ? 2 : left >= 32 ? 1 : 0;
        p->w0 = v + 4 * (size_t)d;
        p->w1 = kind == 2 ? p->w0 + 128 : p->w0;
        p->ahead0 = p->ahead1 = ahead;
        p->mask = mxc_lanes(left);
        p->o = r->part->o + d;
        products[r->type][kind][r->job->n_columns](p);
        d += kind == 2 ? 64 : kind == 1 ? 32 : 16;
    }
}

static void outputs_few(struct run *r) {
    const bool bf16 = r->type == MXC_KV_BF16;
    const size_t v_row = (size_t)r->job->v_dim * 4; /* bytes of a step: a key, or two in bf16 */
    struct product p = {.step = v_row, .a_stride = sizeof r->p[0], .o_stride = r->o_stride};
    for (int32_t i = r->page0; i < r->page1; i++) {
        int32_t keys = keys_of(r, i);
        p.a = (const uint8_t *)r->p[0] + (size_t)i * P_PAGE(bf16);
        p.zero = !r->started && i == r->page0;
        p.correction = r->started && i == r->page0 ? r->correction : NULL;
        p.steps = bf16 ? keys / 2 : keys;
        if (p.steps)
            page_outputs(r, &p, r->pages[i] + r->k_bytes, r->ahead[i]);
        if (bf16 && keys % 2) {
            uint32_t pair[MXC_ATTN_MAX_DIM];
            mask_pair(r, i, keys, pair);
            if (p.steps) {
                p.zero = false;
                p.correction = NULL;
            }
            p.a += (size_t)p.steps * 4;
            p.steps = 1;
            page_outputs(r, &p, (const uint8_t *)pair, 0);
        }
    }
}

/* Outputs of columns [c0, c0 + n): lanes of v_dim in threes and twos of vectors, and the rest. */
static void walk_outputs(struct run *r, struct walk *t, int32_t c0, int32_t n) {
    const int32_t v_dim = r->job->v_dim, kind = kind_of(r, c0, n);
    const size_t offset = t->offset;
    for (int32_t d = 0; d < v_dim;) {
        int32_t left = (v_dim - d) / 16; /* whole vectors */
        int vectors = left < 2 ? 1 : left == 2 || left == 4 || n > HALF ? 2 : 3;
        t->offset = offset + 4 * (size_t)d;
        t->mask = mxc_lanes(v_dim - d);
        t->o = r->part->o + (size_t)c0 * r->o_stride + d;
        add_walks[r->type][vectors - 1][kind](t);
        d += 16 * vectors;
    }
    t->offset = offset;
}

static void outputs(struct run *r) {
    static const float ones[COLUMNS] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    const bool bf16 = r->type == MXC_KV_BF16;
    const int32_t keys = keys_of(r, r->page1 - 1);
    struct walk t = {.pages = r->pages + r->page0,
                     .n_pages = r->page1 - r->page0,
                     .offset = r->k_bytes,
                     .step = (size_t)r->job->v_dim * 4,
                     .steps = bf16 ? PAGE / 2 : PAGE,
                     .last = bf16 ? keys / 2 : keys,
                     .o_stride = r->o_stride,
                     .ahead = r->ahead + r->page0};
    uint32_t pair[MXC_ATTN_MAX_DIM];
    const uint8_t *odd = (const uint8_t *)pair;
    const bool tail = bf16 && keys % 2, body = t.n_pages > 1 || t.last;
    const ptrdiff_t nothing = 0;
    if (tail)
        mask_pair(r, r->page1 - 1, keys, pair);
    for (int32_t c = 0, n; c < r->job->n_columns; c += n) {
        struct walk one = t;
        n = columns_at(r, c);
        one.a = (const uint8_t *)r->p[c] + (size_t)r->page0 * P_PAGE(bf16);
        one.zero = !r->started;
        one.correction = r->correction + c;
        if (body)
            walk_outputs(r, &one, c, n);
        if (!tail)
            continue;
        one.a += (size_t)(one.n_pages - 1) * P_PAGE(bf16) + (size_t)one.last * 4;
        one.pages = &odd;
        one.n_pages = 1;
        one.offset = 0;
        one.last = 1;
        one.ahead = &nothing;
        if (body) {
            one.zero = false;
            one.correction = ones;
        }
        walk_outputs(r, &one, c, n);
    }
}

static void attend(const struct mxc_attend *job, int32_t k0, struct mxc_attn_part *part,
                   enum mxc_kv_type type) {
    const bool few = job->n_columns <= FEW;
    struct run r;
    r.job = job;
    r.part = part;
    r.type = type;
    r.k_bytes = mxc_page_v(type, job->k_dim);
    r.o_stride = mxc_attn_stride(job->v_dim);
    r.begin = k0 + MXC_ATTN_CHUNK;
    r.end = k0;
    for (int32_t c = 0; c < job->n_columns; c++) {
        part->m[c] = MXC_ATTN_NONE;
        part->l[c] = 0;
        if (job->begin[c] < job->end[c]) {
            r.begin = job->begin[c] < r.begin ? job->begin[c] : r.begin;
            r.end = job->end[c] > r.end ? job->end[c] : r.end;
        }
    }
    r.horizon = r.end;
    r.end = r.end > k0 + MXC_ATTN_CHUNK ? k0 + MXC_ATTN_CHUNK : r.end;
    r.begin = r.begin < k0 ? k0 : r.begin;
    r.started = false;
    for (r.b = k0 + (r.begin - k0) / BLOCK * BLOCK; r.b < r.end; r.b += BLOCK) {
        find_pages(&r);
        (few ? scores_few : scores)(&r);
        (type == MXC_KV_BF16 ? softmax_bf16 : softmax_f32)(&r);
        (few ? outputs_few : outputs)(&r);
        r.started = true;
    }
    if (!r.started)
        memset(part->o, 0, (size_t)job->n_columns * r.o_stride * sizeof(float));
}

void mxc_avx512_attend_f32(const struct mxc_attend *job, int32_t k0, struct mxc_attn_part *part) {
    attend(job, k0, part, MXC_KV_F32);
}

void mxc_avx512_attend_bf16(const struct mxc_attend *job, int32_t k0, struct mxc_attn_part *part) {
    attend(job, k0, part, MXC_KV_BF16);
}

void mxc_avx512_attn_merge(struct mxc_attn_part *total, const struct mxc_attn_part *part,
                           bool first, int32_t n_columns, int32_t v_dim) {
    size_t stride = mxc_attn_stride(v_dim);
    if (first) {
        memcpy(total->m, part->m, sizeof total->m);
        memcpy(total->l, part->l, sizeof total->l);
        memcpy(total->o, part->o, (size_t)n_columns * stride * sizeof(float));
        return;
    }
    float a[COLUMNS], b[COLUMNS];
    __mmask16 mask = mxc_lanes(n_columns);
    mxc_vf mt = _mm512_maskz_loadu_ps(mask, total->m), mp = _mm512_maskz_loadu_ps(mask, part->m);
    mxc_vf m = _mm512_max_ps(mt, mp);
    mxc_vf va = mxc_exp2(_mm512_sub_ps(mt, m)), vb = mxc_exp2(_mm512_sub_ps(mp, m));
    mxc_vf l = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, total->l), va);
    l = _mm512_add_ps(l, _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, part->l), vb));
    _mm512_mask_storeu_ps(total->m, mask, m);
    _mm512_mask_storeu_ps(total->l, mask, l);
    _mm512_storeu_ps(a, va);
    _mm512_storeu_ps(b, vb);
    for (int32_t c = 0; c < n_columns; c++) {
        mxc_vf ac = _mm512_set1_ps(a[c]), bc = _mm512_set1_ps(b[c]);
        float *to = total->o + (size_t)c * stride;
        const float *from = part->o + (size_t)c * stride;
        for (size_t i = 0; i < stride; i += 16) {
            mxc_vf y = _mm512_mul_ps(_mm512_loadu_ps(from + i), bc);
            _mm512_storeu_ps(to + i, _mm512_fmadd_ps(_mm512_loadu_ps(to + i), ac, y));
        }
    }
}

void mxc_avx512_attn_finish(const struct mxc_attn_part *total, const float *sinks, float *out,
                            size_t ld_out, int32_t n_columns, int32_t v_dim) {
    size_t stride = mxc_attn_stride(v_dim);
    for (int32_t c = 0; c < n_columns; c++) {
        const float *o = total->o + (size_t)c * stride;
        mxc_vf f =
            _mm512_set1_ps(mxc_attn_factor(total->m[c], total->l[c], sinks ? sinks + c : NULL));
        for (int32_t i = 0; i < v_dim; i += 16)
            _mm512_mask_storeu_ps(out + (size_t)c * ld_out + (size_t)i, mxc_lanes(v_dim - i),
                                  _mm512_mul_ps(_mm512_loadu_ps(o + i), f));
    }
}
