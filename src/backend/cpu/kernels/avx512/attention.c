/* Attention, AVX-512: online softmax over pages of 32 keys for up to 16 columns of one KV head.
 * Both products (scores from K, outputs from V) are the micro-kernel of the matmuls: one f32
 * accumulator per output visits its sum in order, so neither the number of columns nor the number
 * of vectors of a call changes a bit. Masked scores never enter arithmetic; weights of masked keys
 * are exact zeros, and slots of V past the last visible key are not read (they may hold NaN). */
#include "backend/cpu/kernels/avx512/avx512.h"

#include <string.h>

enum { PAGE = MXC_ATTN_PAGE, BLOCK = MXC_ATTN_BLOCK, COLUMNS = MXC_ATTN_COLUMNS };
/* Columns of a call: up to FEW with four vectors and prefetch; HALF when there are more than WIDE.
 * The first HALF prefetches when there are LONG keys or more, which no cache keeps (16 query heads
 * on one KV head at depth 8192: 47 -> 61 % of the bf16 peak; short prefills lose 10 % by it). */
enum { WIDE = 12, FEW = 4, HALF = 8, HALF_AHEAD = WIDE + 1, LONG = 1024 };

/* o[c][lanes] (+)= sum over steps of a[c][step] * w[step][lanes] */
struct product {
    const uint8_t *w0, *w1;   /* 32 lanes each; w1 only with four vectors */
    ptrdiff_t ahead0, ahead1; /* what to prefetch, relative to w0, w1 */
    size_t step;              /* bytes from one step of w to the next */
    int64_t steps;
    const uint8_t *a; /* 4 bytes a step: a float or two bf16 */
    size_t a_stride;  /* bytes */
    float *o;
    size_t o_stride;         /* numbers */
    const float *correction; /* [column] o is multiplied by it first; NULL: 1 */
    bool zero;               /* start from zero */
    __mmask16 mask;          /* lanes, with one vector */
};
typedef void product_fn(const struct product *p);

MXC_INLINE void product(const struct product *p, const int N, const int NV, const bool bf16,
                        const bool fetch) {
    mxc_vf acc[4][WIDE];
    for (int v = 0; v < NV; v++)
        for (int c = 0; c < N; c++) {
            acc[v][c] = p->zero ? _mm512_setzero_ps()
                                : _mm512_loadu_ps(p->o + (size_t)c * p->o_stride + 16 * v);
            if (p->correction)
                acc[v][c] = _mm512_mul_ps(acc[v][c], _mm512_set1_ps(p->correction[c]));
        }
    const uint8_t *w0 = p->w0, *w1 = p->w1, *a = p->a;
    const size_t a_stride = p->a_stride, step = p->step;
    const ptrdiff_t ahead0 = p->ahead0, ahead1 = p->ahead1;
#pragma GCC unroll 4
    for (int64_t k = 0; k < p->steps; k++, w0 += step, w1 += step, a += 4) {
        mxc_vi w[4];
        for (int v = 0; v < NV; v++)
            w[v] = NV == 1 ? _mm512_maskz_loadu_epi32(p->mask, w0)
                           : _mm512_loadu_si512((v < 2 ? w0 : w1) + 64 * (v & 1));
        for (int v = 0; fetch && v < NV; v++)
            mxc_prefetch_l2((v < 2 ? w0 + ahead0 : w1 + ahead1) + 64 * (v & 1));
        for (int c = 0; c < N; c++) {
            int32_t four;
            memcpy(&four, a + (size_t)c * a_stride, sizeof four);
            mxc_vi b = _mm512_set1_epi32(four);
            for (int v = 0; v < NV; v++)
                acc[v][c] = bf16 ? _mm512_dpbf16_ps(acc[v][c], (__m512bh)w[v], (__m512bh)b)
                                 : _mm512_fmadd_ps(_mm512_castsi512_ps(w[v]),
                                                   _mm512_castsi512_ps(b), acc[v][c]);
        }
    }
    for (int v = 0; v < NV; v++)
        for (int c = 0; c < N; c++)
            _mm512_storeu_ps(p->o + (size_t)c * p->o_stride + 16 * v, acc[v][c]);
}

#define PRODUCT(name, suffix, N, NV, bf16, fetch)                                                  \
    static __attribute__((noinline)) void name##_##NV##suffix(const struct product *p) {           \
        product(p, N, NV, bf16, fetch);                                                            \
    }
#define PRODUCTS_FEW(name, NV, bf16)                                                               \
    PRODUCT(name, _1, 1, NV, bf16, true)                                                           \
    PRODUCT(name, _2, 2, NV, bf16, true)                                                           \
    PRODUCT(name, _3, 3, NV, bf16, true)                                                           \
    PRODUCT(name, _4, 4, NV, bf16, true)
#define PRODUCTS(name, NV, bf16)                                                                   \
    PRODUCTS_FEW(name, NV, bf16)                                                                   \
    PRODUCT(name, _5, 5, NV, bf16, false)                                                          \
    PRODUCT(name, _6, 6, NV, bf16, false)                                                          \
    PRODUCT(name, _7, 7, NV, bf16, false)                                                          \
    PRODUCT(name, _8, 8, NV, bf16, false)                                                          \
    PRODUCT(name, _9, 9, NV, bf16, false)                                                          \
    PRODUCT(name, _10, 10, NV, bf16, false)                                                        \
    PRODUCT(name, _11, 11, NV, bf16, false)                                                        \
    PRODUCT(name, _12, 12, NV, bf16, false)                                                        \
    PRODUCT(name, _8_ahead, 8, NV, bf16, true)
#define LIST_FEW(n)  NULL, n##_1, n##_2, n##_3, n##_4
#define LIST_MANY(n) n##_5, n##_6, n##_7, n##_8, n##_9, n##_10, n##_11, n##_12, n##_8_ahead
#define LIST(n)      LIST_FEW(n), LIST_MANY(n)
PRODUCTS(f32, 1, false)
PRODUCTS(f32, 2, false)
PRODUCTS_FEW(f32, 4, false)
PRODUCTS(bf16, 1, true)
PRODUCTS(bf16, 2, true)
PRODUCTS_FEW(bf16, 4, true)
/* by number of vectors (1, 2, 4) and of columns, or HALF_AHEAD */
static product_fn *const f32_products[3][HALF_AHEAD + 1] = {
    {LIST(f32_1)}, {LIST(f32_2)}, {LIST_FEW(f32_4)}};
static product_fn *const bf16_products[3][HALF_AHEAD + 1] = {
    {LIST(bf16_1)}, {LIST(bf16_2)}, {LIST_FEW(bf16_4)}};

/* State of one attend call. */
struct run {
    const struct mxc_attend *job;
    struct mxc_attn_part *part;
    enum mxc_kv_type type;
    product_fn *const (*products)[HALF_AHEAD + 1];
    size_t k_bytes; /* of K in a page */
    size_t o_stride;
    int32_t begin, end; /* visible to any column, within the chunk */
    int32_t horizon;    /* the same end, not cut to the chunk */
    bool started;       /* o holds sums */
    /* the block: pages [page0, page1) of it take part */
    int32_t b, page0, page1;
    const uint8_t *pages[BLOCK / PAGE];
    ptrdiff_t ahead[BLOCK / PAGE]; /* from a page's V to the K of the page a block later */
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

static void scores(struct run *r, int32_t c0, int32_t n) {
    size_t q_bytes = (size_t)r->job->k_dim * (r->type == MXC_KV_F32 ? 4 : 2);
    struct product p = {.step = PAGE * 4,
                        .steps = (int64_t)(q_bytes / 4),
                        .a = (const uint8_t *)r->job->q + (size_t)c0 * q_bytes,
                        .a_stride = q_bytes,
                        .ahead0 = (ptrdiff_t)r->k_bytes, /* V, needed next */
                        .ahead1 = (ptrdiff_t)r->k_bytes,
                        .o_stride = BLOCK,
                        .zero = true};
    for (int32_t i = r->page0; i < r->page1;) {
        int two = n <= FEW && i + 1 < r->page1;
        p.w0 = r->pages[i];
        p.w1 = r->pages[i + two];
        p.o = &r->s[c0][PAGE * i];
        r->products[1 + two][two ? n : kind_of(r, c0, n)](&p);
        i += 1 + two;
    }
}

/* Lanes of keys [i, i + 16) that lie in [lo, hi). */
MXC_INLINE __mmask16 visible(int32_t i, int32_t lo, int32_t hi) {
    return (__mmask16)(mxc_lanes(hi - i) & ~mxc_lanes(lo - i));
}

/* m, l, correction and weights of column c from its scores. */
MXC_INLINE void softmax(struct run *r, int32_t c, const bool bf16) {
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
    float old = r->part->m[c], m = _mm512_reduce_max_ps(max);
    m = old > m ? old : m;
    r->part->m[c] = m;
    r->correction[c] = old - m;
    const mxc_vf top = _mm512_set1_ps(m);
    mxc_vf sum = _mm512_setzero_ps();
    for (int32_t i = PAGE * r->page0; i < PAGE * r->page1; i += PAGE) {
        mxc_vf e0 = mxc_exp2(_mm512_sub_ps(_mm512_load_ps(s + i), top));
        mxc_vf e1 = mxc_exp2(_mm512_sub_ps(_mm512_load_ps(s + i + 16), top));
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
    r->s[c][0] = _mm512_reduce_add_ps(sum); /* the scores are done with */
}

/* l and correction of all columns at once. */
static void corrections(struct run *r) {
    _mm512_store_ps(r->correction, mxc_exp2(_mm512_load_ps(r->correction)));
    for (int32_t c = 0; c < r->job->n_columns; c++)
        r->part->l[c] = r->part->l[c] * r->correction[c] + r->s[c][0];
}

/* Outputs of one page, lanes of v_dim in vectors of 64, 32 and the rest. */
static void page_outputs(struct run *r, struct product *p, const uint8_t *v, ptrdiff_t ahead,
                         int32_t c0, int32_t n) {
    const int32_t v_dim = r->job->v_dim, columns = kind_of(r, c0, n);
    float *o = r->part->o + (size_t)c0 * r->o_stride;
    for (int32_t d = 0; d < v_dim;) {
        int32_t left = v_dim - d;
        int kind = n <= FEW && left >= 64 ? 2 : left >= 32 ? 1 : 0;
        p->w0 = v + 4 * (size_t)d;
        p->w1 = kind == 2 ? p->w0 + 128 : p->w0;
        p->ahead0 = p->ahead1 = ahead;
        p->mask = mxc_lanes(left);
        p->o = o + d;
        r->products[kind][kind == 2 ? n : columns](p);
        d += kind == 2 ? 64 : kind == 1 ? 32 : 16;
    }
}

static void outputs(struct run *r, int32_t c0, int32_t n) {
    const bool bf16 = r->type == MXC_KV_BF16;
    const size_t v_row = (size_t)r->job->v_dim * 4; /* bytes of a step: a key, or two in bf16 */
    struct product p = {.step = v_row, .a_stride = sizeof r->p[0], .o_stride = r->o_stride};
    for (int32_t i = r->page0; i < r->page1; i++) {
        int32_t keys = r->end - (r->b + i * PAGE);
        keys = keys > PAGE ? PAGE : keys;
        const uint8_t *v = r->pages[i] + r->k_bytes;
        p.a = (const uint8_t *)r->p[c0] + (size_t)i * PAGE * (bf16 ? 2 : 4);
        p.zero = !r->started && i == r->page0;
        p.correction = r->started && i == r->page0 ? r->correction + c0 : NULL;
        p.steps = bf16 ? keys / 2 : keys;
        if (p.steps)
            page_outputs(r, &p, v, r->ahead[i], c0, n);
        if (bf16 && keys % 2) { /* the second half of the last pair may be anything */
            uint32_t pair[MXC_ATTN_MAX_DIM];
            memcpy(pair, v + (size_t)(keys / 2) * v_row, v_row);
            for (int32_t d = 0; d < r->job->v_dim; d++)
                pair[d] &= 0xFFFF;
            if (p.steps) {
                p.zero = false;
                p.correction = NULL;
            }
            p.a += (size_t)p.steps * 4;
            p.steps = 1;
            page_outputs(r, &p, (const uint8_t *)pair, 0, c0, n);
        }
    }
}

static void attend(const struct mxc_attend *job, int32_t k0, struct mxc_attn_part *part,
                   enum mxc_kv_type type) {
    const bool bf16 = type == MXC_KV_BF16;
    struct run r;
    r.job = job;
    r.part = part;
    r.type = type;
    r.products = bf16 ? bf16_products : f32_products;
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
    _mm512_store_ps(r.correction, _mm512_setzero_ps());
    for (r.b = k0 + (r.begin - k0) / BLOCK * BLOCK; r.b < r.end; r.b += BLOCK) {
        find_pages(&r);
        for (int32_t c = 0; c < job->n_columns; c += columns_at(&r, c))
            scores(&r, c, columns_at(&r, c));
        for (int32_t c = 0; c < job->n_columns; c++)
            if (bf16)
                softmax(&r, c, true);
            else
                softmax(&r, c, false);
        corrections(&r);
        for (int32_t c = 0; c < job->n_columns; c += columns_at(&r, c))
            outputs(&r, c, columns_at(&r, c));
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
