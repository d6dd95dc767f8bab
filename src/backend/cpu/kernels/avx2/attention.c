/* Attention, AVX2: online softmax over pages of 32 keys for up to 16 columns of one KV head. The
 * steps are those of the other levels: both products visit their sums in order with one accumulator
 * per output; masked scores never enter arithmetic, weights of masked keys are exact zeros, and
 * slots of V past the last visible key are not read (they may hold NaN). */
#include "backend/cpu/kernels/avx2/avx2.h"

enum { PAGE = MXC_ATTN_PAGE, BLOCK = MXC_ATTN_BLOCK, COLUMNS = MXC_ATTN_COLUMNS };
enum { MOST = 4, LANES = 16 }; /* columns and lanes of one product */

/* o[c][16 lanes] (+)= sum over steps of a[c][step] * w[step][lanes] */
struct product {
    const uint8_t *w;
    ptrdiff_t ahead; /* what to prefetch, relative to w; 0: nothing */
    size_t step;     /* bytes from one step of w to the next */
    int64_t steps;
    const uint8_t *a; /* 4 bytes a step: a float or two bf16 */
    size_t a_stride;  /* bytes */
    float *o;
    size_t o_stride;         /* numbers */
    const float *correction; /* [column] o is multiplied by it first; NULL: 1 */
    bool zero;               /* start from zero */
    int64_t lanes;           /* below 16: only so many lanes are read */
};
typedef void product_fn(const struct product *p);

MXC_INLINE void product(const struct product *p, const int N, const bool whole, const bool bf16) {
    mxc_vf acc[2][MOST];
    MXC_UNROLL
    for (int c = 0; c < N; c++) {
        MXC_UNROLL
        for (int v = 0; v < 2; v++) {
            acc[v][c] = p->zero ? _mm256_setzero_ps()
                                : _mm256_loadu_ps(p->o + (size_t)c * p->o_stride + 8 * v);
            if (p->correction)
                acc[v][c] = _mm256_mul_ps(acc[v][c], _mm256_set1_ps(p->correction[c]));
        }
    }
    const uint8_t *w = p->w, *a = p->a;
    const mxc_vi mask0 = mxc_lanes(p->lanes), mask1 = mxc_lanes(p->lanes - 8);
    for (int64_t k = 0; k < p->steps; k++, w += p->step, a += 4) {
        const int *q = (const int *)(const void *)w;
        mxc_vi v0 = whole ? _mm256_loadu_si256((const void *)q) : _mm256_maskload_epi32(q, mask0);
        mxc_vi v1 =
            whole ? _mm256_loadu_si256((const void *)(q + 8)) : _mm256_maskload_epi32(q + 8, mask1);
        if (whole)
            mxc_prefetch_l2(w + p->ahead);
        MXC_UNROLL
        for (int c = 0; c < N; c++) {
            mxc_vi b = mxc_broadcast4(a + (size_t)c * p->a_stride);
            if (bf16) {
                mxc_vf low = mxc_pair_low(b), high = mxc_pair_high(b);
                acc[0][c] = _mm256_fmadd_ps(mxc_pair_low(v0), low, acc[0][c]);
                acc[1][c] = _mm256_fmadd_ps(mxc_pair_low(v1), low, acc[1][c]);
                acc[0][c] = _mm256_fmadd_ps(mxc_pair_high(v0), high, acc[0][c]);
                acc[1][c] = _mm256_fmadd_ps(mxc_pair_high(v1), high, acc[1][c]);
            } else {
                mxc_vf y = _mm256_castsi256_ps(b);
                acc[0][c] = _mm256_fmadd_ps(_mm256_castsi256_ps(v0), y, acc[0][c]);
                acc[1][c] = _mm256_fmadd_ps(_mm256_castsi256_ps(v1), y, acc[1][c]);
            }
        }
    }
    MXC_UNROLL
    for (int c = 0; c < N; c++) {
        MXC_UNROLL
        for (int v = 0; v < 2; v++)
            _mm256_storeu_ps(p->o + (size_t)c * p->o_stride + 8 * v, acc[v][c]);
    }
}

#define PRODUCT(name, N, whole, bf16)                                                              \
    static __attribute__((noinline)) void name##_##N(const struct product *p) {                    \
        product(p, N, whole, bf16);                                                                \
    }
#define PRODUCTS(name, whole, bf16)                                                                \
    PRODUCT(name, 1, whole, bf16)                                                                  \
    PRODUCT(name, 2, whole, bf16)                                                                  \
    PRODUCT(name, 3, whole, bf16)                                                                  \
    PRODUCT(name, 4, whole, bf16)
#define LIST(n) NULL, n##_1, n##_2, n##_3, n##_4
PRODUCTS(f32_whole, true, false)
PRODUCTS(f32_part, false, false)
PRODUCTS(bf16_whole, true, true)
PRODUCTS(bf16_part, false, true)
/* by "bf16", "all 16 lanes", columns */
static product_fn *const products[2][2][MOST + 1] = {{{LIST(f32_part)}, {LIST(f32_whole)}},
                                                     {{LIST(bf16_part)}, {LIST(bf16_whole)}}};

/* State of one attend call. */
struct run {
    const struct mxc_attend *job;
    struct mxc_attn_part *part;
    bool bf16;
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

static int32_t columns_at(const struct run *r, int32_t c0) {
    int32_t left = r->job->n_columns - c0;
    return left < MOST ? left : MOST;
}

static void scores(struct run *r, int32_t c0, int32_t n) {
    size_t q_bytes = (size_t)r->job->k_dim * (r->bf16 ? 2 : 4);
    struct product p = {.step = PAGE * 4,
                        .steps = (int64_t)(q_bytes / 4),
                        .a = (const uint8_t *)r->job->q + (size_t)c0 * q_bytes,
                        .a_stride = q_bytes,
                        .ahead = (ptrdiff_t)r->k_bytes, /* V, needed next */
                        .o_stride = BLOCK,
                        .zero = true,
                        .lanes = LANES};
    for (int32_t i = r->page0; i < r->page1; i++)
        for (int32_t half = 0; half < 2; half++) {
            p.w = r->pages[i] + half * LANES * 4;
            p.o = &r->s[c0][PAGE * i + LANES * half];
            products[r->bf16][1][n](&p);
        }
}

/* Lanes of keys [i, i + 8) that lie in [lo, hi). */
MXC_INLINE mxc_vf visible(int32_t i, int32_t lo, int32_t hi) {
    mxc_vi key = _mm256_add_epi32(_mm256_set1_epi32(i), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    mxc_vi below = _mm256_cmpgt_epi32(_mm256_set1_epi32(hi), key);
    return _mm256_castsi256_ps(
        _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(lo), key), below));
}

/* m, l, correction and weights of column c from its scores. */
static void softmax(struct run *r, int32_t c) {
    const struct mxc_attend *job = r->job;
    const int32_t lo = job->begin[c] - r->b, hi = job->end[c] - r->b;
    const int32_t first = PAGE * r->page0, last = PAGE * r->page1;
    const mxc_vf none = _mm256_set1_ps(MXC_ATTN_NONE);
    const mxc_vf to_cap = _mm256_set1_ps(MXC_LN2 / job->softcap);
    const mxc_vf cap = _mm256_set1_ps(MXC_LOG2E * job->softcap);
    float *s = r->s[c];
    mxc_vf max = none;
    for (int32_t i = first; i < last; i += 8) {
        mxc_vf x = _mm256_load_ps(s + i);
        if (job->softcap > 0) {
            x = _mm256_mul_ps(cap, mxc_tanh(_mm256_mul_ps(x, to_cap)));
            _mm256_store_ps(s + i, x);
        }
        max = _mm256_max_ps(max, _mm256_blendv_ps(none, x, visible(i, lo, hi)));
    }
    float old = r->part->m[c], m = mxc_max(max);
    m = old > m ? old : m;
    r->part->m[c] = m;
    r->correction[c] = old - m;
    const mxc_vf top = _mm256_set1_ps(m);
    mxc_vf sum = _mm256_setzero_ps();
    for (int32_t i = first; i < last; i += 8) {
        mxc_vf e = mxc_exp2(_mm256_sub_ps(_mm256_load_ps(s + i), top));
        e = _mm256_and_ps(e, visible(i, lo, hi));
        sum = _mm256_add_ps(sum, e);
        if (r->bf16)
            _mm_store_si128((void *)((uint16_t *)(void *)r->p[c] + i), mxc_bf16(e));
        else
            _mm256_store_ps(r->p[c] + i, e);
    }
    r->s[c][0] = mxc_sum(sum); /* the scores are done with */
}

/* l and correction of all columns at once. */
static void corrections(struct run *r) {
    for (int32_t i = 0; i < COLUMNS; i += 8)
        _mm256_store_ps(r->correction + i, mxc_exp2(_mm256_load_ps(r->correction + i)));
    for (int32_t c = 0; c < r->job->n_columns; c++)
        r->part->l[c] = r->part->l[c] * r->correction[c] + r->s[c][0];
}

/* Outputs of one page. */
static void page_outputs(struct run *r, struct product *p, const uint8_t *v, float *o, int32_t n) {
    for (int32_t d = 0; d < r->job->v_dim; d += LANES) {
        p->w = v + 4 * (size_t)d;
        p->lanes = r->job->v_dim - d;
        p->o = o + d;
        products[r->bf16][p->lanes >= LANES][n](p);
    }
}

static void outputs(struct run *r, int32_t c0, int32_t n) {
    const size_t v_row = (size_t)r->job->v_dim * 4; /* bytes of a step: a key, or two in bf16 */
    struct product p = {.step = v_row, .a_stride = sizeof r->p[0], .o_stride = r->o_stride};
    float *o = r->part->o + (size_t)c0 * r->o_stride;
    for (int32_t i = r->page0; i < r->page1; i++) {
        int32_t keys = r->end - (r->b + i * PAGE);
        keys = keys > PAGE ? PAGE : keys;
        const uint8_t *v = r->pages[i] + r->k_bytes;
        p.ahead = r->ahead[i];
        p.a = (const uint8_t *)r->p[c0] + (size_t)i * PAGE * (r->bf16 ? 2 : 4);
        p.zero = !r->started && i == r->page0;
        p.correction = r->started && i == r->page0 ? r->correction + c0 : NULL;
        p.steps = r->bf16 ? keys / 2 : keys;
        if (p.steps)
            page_outputs(r, &p, v, o, n);
        if (r->bf16 && keys % 2) { /* the second half of the last pair may be anything */
            uint32_t pair[MXC_ATTN_MAX_DIM];
            memcpy(pair, v + (size_t)(keys / 2) * v_row, v_row);
            for (int32_t d = 0; d < r->job->v_dim; d++)
                pair[d] &= 0xFFFF;
            if (p.steps) {
                p.zero = false;
                p.correction = NULL;
            }
            p.ahead = 0;
            p.a += (size_t)p.steps * 4;
            p.steps = 1;
            page_outputs(r, &p, (const uint8_t *)pair, o, n);
        }
    }
}

static void attend(const struct mxc_attend *job, int32_t k0, struct mxc_attn_part *part,
                   enum mxc_kv_type type) {
    struct run r;
    r.job = job;
    r.part = part;
    r.bf16 = type == MXC_KV_BF16;
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
    memset(r.correction, 0, sizeof r.correction);
    for (r.b = k0 + (r.begin - k0) / BLOCK * BLOCK; r.b < r.end; r.b += BLOCK) {
        find_pages(&r);
        for (int32_t c = 0; c < job->n_columns; c += MOST)
            scores(&r, c, columns_at(&r, c));
        for (int32_t c = 0; c < job->n_columns; c++)
            softmax(&r, c);
        corrections(&r);
        for (int32_t c = 0; c < job->n_columns; c += MOST)
            outputs(&r, c, columns_at(&r, c));
        r.started = true;
    }
    if (!r.started)
        memset(part->o, 0, (size_t)job->n_columns * r.o_stride * sizeof(float));
}

void mxc_avx2_attend_f32(const struct mxc_attend *job, int32_t k0, struct mxc_attn_part *part) {
    attend(job, k0, part, MXC_KV_F32);
}

void mxc_avx2_attend_bf16(const struct mxc_attend *job, int32_t k0, struct mxc_attn_part *part) {
    attend(job, k0, part, MXC_KV_BF16);
}

void mxc_avx2_attn_merge(struct mxc_attn_part *total, const struct mxc_attn_part *part, bool first,
                         int32_t n_columns, int32_t v_dim) {
    size_t stride = mxc_attn_stride(v_dim);
    if (first) {
        memcpy(total->m, part->m, sizeof total->m);
        memcpy(total->l, part->l, sizeof total->l);
        memcpy(total->o, part->o, (size_t)n_columns * stride * sizeof(float));
        return;
    }
    for (int32_t c = 0; c < n_columns; c++) {
        float m = total->m[c] > part->m[c] ? total->m[c] : part->m[c];
        mxc_vf a = mxc_exp2(_mm256_set1_ps(total->m[c] - m));
        mxc_vf b = mxc_exp2(_mm256_set1_ps(part->m[c] - m));
        total->m[c] = m;
        total->l[c] = total->l[c] * _mm256_cvtss_f32(a) + part->l[c] * _mm256_cvtss_f32(b);
        float *to = total->o + (size_t)c * stride;
        const float *from = part->o + (size_t)c * stride;
        for (size_t i = 0; i < stride; i += 8) {
            mxc_vf y = _mm256_mul_ps(_mm256_loadu_ps(from + i), b);
            _mm256_storeu_ps(to + i, _mm256_fmadd_ps(_mm256_loadu_ps(to + i), a, y));
        }
    }
}

void mxc_avx2_attn_finish(const struct mxc_attn_part *total, const float *sinks, float *out,
                          size_t ld_out, int32_t n_columns, int32_t v_dim) {
    size_t stride = mxc_attn_stride(v_dim);
    for (int32_t c = 0; c < n_columns; c++) {
        const float *o = total->o + (size_t)c * stride;
        mxc_vf f =
            _mm256_set1_ps(mxc_attn_factor(total->m[c], total->l[c], sinks ? sinks + c : NULL));
        for (int32_t i = 0; i < v_dim; i += 8)
            mxc_save(out + (size_t)c * ld_out + (size_t)i, v_dim - i,
                     _mm256_mul_ps(_mm256_loadu_ps(o + i), f));
    }
}
