/* Matrix products with F32, F16 and BF16 weights, AVX2.
 * In: packed strips of 32 output rows, prepared tiles of activations. Out: those columns of the
 * output, through the epilogue.
 * One template makes all kernels: 16 rows x up to 6 columns (bf16, which needs twice the weight
 * registers: 4), or a whole strip x 1 column with prefetch, for decode.
 * Invariant: each output has one f32 accumulator that visits K in order (bf16: the two of a pair
 * one after the other), so a column's bits are the same whatever stands beside it. */
#include "backend/cpu/kernels/avx2/avx2.h"

enum { AHEAD = 4096, ROWS = 8, VECTORS = MXC_STRIP / ROWS, MOST = 6, MOST_BF16 = 4 };

struct tile {
    const uint8_t *w; /* strip, moved to the tile's first row */
    const uint8_t *x; /* activations: [cell of 64 bytes][width], moved to the first column */
    size_t width;     /* columns of the prepared tile */
    int64_t steps;    /* of K: pairs (bf16) or numbers */
    float *out;
    size_t at, ld, column;
    int32_t n;
    const struct mxc_epilogue *epilogue;
};
typedef void tile_fn(const struct tile *t);

MXC_INLINE void step(const uint8_t *w, const uint8_t *x, mxc_vf acc[VECTORS][MOST], const int N,
                     const int V, const enum mxc_layout layout) {
    mxc_vf low[VECTORS], high[VECTORS];
    for (int v = 0; v < V; v++)
        if (layout == MXC_LAYOUT_BF16) {
            mxc_vi pair = _mm256_load_si256((const void *)(w + 32 * v));
            low[v] = mxc_pair_low(pair);
            high[v] = mxc_pair_high(pair);
        } else if (layout == MXC_LAYOUT_F16) {
            low[v] = _mm256_cvtph_ps(_mm_load_si128((const void *)(w + 16 * v)));
        } else {
            low[v] = _mm256_load_ps((const float *)(const void *)(w + 32 * v));
        }
    for (int c = 0; c < N; c++) {
        mxc_vi four = mxc_broadcast4(x + 64 * c);
        mxc_vf a = layout == MXC_LAYOUT_BF16 ? mxc_pair_low(four) : _mm256_castsi256_ps(four);
        for (int v = 0; v < V; v++)
            acc[v][c] = _mm256_fmadd_ps(low[v], a, acc[v][c]);
        if (layout == MXC_LAYOUT_BF16) {
            a = mxc_pair_high(four);
            for (int v = 0; v < V; v++)
                acc[v][c] = _mm256_fmadd_ps(high[v], a, acc[v][c]);
        }
    }
}

MXC_INLINE void tile(const struct tile *t, const int N, const int V, const enum mxc_layout layout) {
    const int bytes = layout == MXC_LAYOUT_F16 ? 64 : 128; /* of weights, one step */
    const uint8_t *w = t->w, *x = t->x;
    mxc_vf acc[VECTORS][MOST];
    for (int v = 0; v < V; v++)
        for (int c = 0; c < N; c++)
            acc[v][c] = _mm256_setzero_ps();
    for (int64_t left = t->steps; left > 0; left -= 16, x += 64 * t->width) {
        int n = left < 16 ? (int)left : 16;
        for (int j = 0; j < n; j++, w += bytes) {
            if (N == 1) {
                mxc_prefetch(w + AHEAD);
                if (bytes == 128)
                    mxc_prefetch(w + AHEAD + 64);
            }
            step(w, x + 4 * j, acc, N, V, layout);
        }
    }
    for (int c = 0; c < N; c++)
        for (int v = 0; v < V; v++)
            mxc_store(t->out, t->at + (size_t)c * t->ld + (size_t)(ROWS * v),
                      t->column + (size_t)(ROWS * v), t->n, acc[v][c], t->epilogue);
}

#define TILE(name, N, V, layout)                                                                   \
    static __attribute__((noinline)) void name##_##N(const struct tile *t) {                       \
        tile(t, N, V, layout);                                                                     \
    }
#define TILES_FOUR(name, layout)                                                                   \
    TILE(name, 1, 4, layout)                                                                       \
    TILE(name, 2, 2, layout)                                                                       \
    TILE(name, 3, 2, layout)                                                                       \
    TILE(name, 4, 2, layout)
#define TILES_SIX(name, layout)                                                                    \
    TILES_FOUR(name, layout)                                                                       \
    TILE(name, 5, 2, layout)                                                                       \
    TILE(name, 6, 2, layout)                                                                       \
    static tile_fn *const name[] = {NULL,     name##_1, name##_2, name##_3,                        \
                                    name##_4, name##_5, name##_6};
TILES_SIX(f32_tiles, MXC_LAYOUT_F32)
TILES_SIX(f16_tiles, MXC_LAYOUT_F16)
TILES_FOUR(bf16_tiles, MXC_LAYOUT_BF16)
static tile_fn *const bf16_tiles[] = {NULL, bf16_tiles_1, bf16_tiles_2, bf16_tiles_3, bf16_tiles_4};

static void run(tile_fn *const *tiles, const struct mxc_packed *w, const struct mxc_activation *a,
                int32_t strip0, int32_t strip1, float *out, size_t ld,
                const struct mxc_epilogue *epilogue) {
    bool bf16 = a->form == MXC_ACT_FORM_BF16;
    size_t row_bytes = mxc_padded_k(a->form, a->k) * (bf16 ? 2 : 4);
    int32_t tile_rows = mxc_tile_rows(a->form), most = bf16 ? MOST_BF16 : MOST;
    struct tile t = {.steps = bf16 ? (w->k + 1) / 2 : w->k,
                     .out = out,
                     .ld = ld,
                     .n = w->n,
                     .epilogue = epilogue};
    for (int32_t s = strip0; s < strip1; s++)
        for (int32_t c0 = 0; c0 < a->m; c0 += tile_rows) {
            int32_t width = mxc_tile_width(a, c0);
            t.width = (size_t)width;
            for (int32_t c = 0, n; c < width; c += n) {
                n = width - c < most ? width - c : most;
                t.x = a->data + (size_t)c0 * row_bytes + (size_t)c * 64;
                for (size_t r = 0; r < MXC_STRIP; r += n == 1 ? MXC_STRIP : 16) {
                    t.w = w->data + (size_t)s * w->strip_bytes;
                    t.w += r * (w->layout == MXC_LAYOUT_F16 ? 2 : 4);
                    t.column = (size_t)s * MXC_STRIP + r;
                    t.at = (size_t)(c0 + c) * ld + t.column;
                    tiles[n](&t);
                }
            }
        }
}

void mxc_avx2_matmul_f32(const struct mxc_packed *w, const struct mxc_activation *a, int32_t strip0,
                         int32_t strip1, float *out, size_t ld,
                         const struct mxc_epilogue *epilogue) {
    run(f32_tiles, w, a, strip0, strip1, out, ld, epilogue);
}

void mxc_avx2_matmul_f16(const struct mxc_packed *w, const struct mxc_activation *a, int32_t strip0,
                         int32_t strip1, float *out, size_t ld,
                         const struct mxc_epilogue *epilogue) {
    run(f16_tiles, w, a, strip0, strip1, out, ld, epilogue);
}

void mxc_avx2_matmul_bf16(const struct mxc_packed *w, const struct mxc_activation *a,
                          int32_t strip0, int32_t strip1, float *out, size_t ld,
                          const struct mxc_epilogue *epilogue) {
    run(bf16_tiles, w, a, strip0, strip1, out, ld, epilogue);
}
