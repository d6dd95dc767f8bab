/* Matrix products with BF16 weights, aarch64 with bf16 matrix products: an instruction multiplies
 * two rows of the weights with two columns, over four numbers of K. A tile is 8 rows x 2 to 6
 * columns, or a whole strip x 1 column with prefetch; of an odd number of columns the last one is
 * paired with itself.
 * In: packed strips of 32 output rows, prepared tiles of activations. Out: those columns of the
 * output, through the epilogue.
 * Invariant: each output has one f32 accumulator that takes four numbers of K at a time, in order,
 * in the same instruction whatever stands beside it. */
#include "backend/cpu/kernels/neon/neon.h"

enum { AHEAD = 4096, ROWS = 4, VECTORS = MXC_STRIP / ROWS, MOST = 6, PAIRS = MOST / 2 };
enum { STEP = 2 * 4 * MXC_STRIP, CELL = 64 }; /* bytes: four numbers of a strip; cell of a column */

/* Vectors of outputs: [of rows][of two rows][of two columns]. */
#define EACH(v, h, p, N, V)                                                                        \
    for (int v = 0; v < (V); v++)                                                                  \
        for (int h = 0; h < 2; h++)                                                                \
            for (int p = 0; 2 * p < (N); p++)

/* Four numbers of K, or two: then the weights of the others are zero. */
MXC_INLINE void step(const uint8_t *w, const uint8_t *x, float32x4_t acc[VECTORS][2][PAIRS],
                     const int N, const int V, const bool four) {
    bfloat16x8_t y[PAIRS];
    for (int p = 0; 2 * p < N; p++) {
        const uint8_t *first = x + 2 * p * CELL, *second = first + (2 * p + 1 < N ? CELL : 0);
        y[p] = vreinterpretq_bf16_u8(vcombine_u8(vld1_u8(first), vld1_u8(second)));
    }
    for (int v = 0; v < V; v++) {
        uint32x4_t a = vreinterpretq_u32_u8(vld1q_u8(w + 4 * ROWS * v)), b = vdupq_n_u32(0);
        if (four)
            b = vreinterpretq_u32_u8(vld1q_u8(w + STEP / 2 + 4 * ROWS * v));
        bfloat16x8_t low = vreinterpretq_bf16_u32(vzip1q_u32(a, b));
        bfloat16x8_t high = vreinterpretq_bf16_u32(vzip2q_u32(a, b));
        for (int p = 0; 2 * p < N; p++) {
            acc[v][0][p] = vbfmmlaq_f32(acc[v][0][p], low, y[p]);
            acc[v][1][p] = vbfmmlaq_f32(acc[v][1][p], high, y[p]);
        }
    }
}

/* pairs: of numbers of K. */
MXC_INLINE void tile(const struct mxc_int_tile *t, const uint8_t *x, int64_t pairs, const int N,
                     const int V) {
    const uint8_t *w = t->w;
    float32x4_t acc[VECTORS][2][PAIRS], y[VECTORS * MOST];
    EACH(v, h, p, N, V)
    acc[v][h][p] = vdupq_n_f32(0);
    for (int64_t left = pairs; left > 0; left -= CELL / 4, x += CELL * t->width) {
        int n = left < CELL / 4 ? (int)left : CELL / 4, j = 0;
        for (; j + 1 < n; j += 2, w += STEP) {
            for (int b = 0; N == 1 && b < STEP; b += 64)
                __builtin_prefetch(w + AHEAD + b);
            step(w, x + 4 * j, acc, N, V, true);
        }
        if (j < n)
            step(w, x + 4 * j, acc, N, V, false);
    }
    for (int c = 0; c < N; c++)
        for (int v = 0; v < V; v++) {
            float32x4_t low = acc[v][0][c / 2], high = acc[v][1][c / 2];
            y[c * V + v] = c % 2 ? vuzp2q_f32(low, high) : vuzp1q_f32(low, high);
        }
    mxc_finish(t, y, N, V);
}

typedef void tile_fn(const struct mxc_int_tile *t, const uint8_t *x, int64_t pairs);
#define TILE(N, V)                                                                                 \
    static __attribute__((noinline)) void tile_##N(const struct mxc_int_tile *t, const uint8_t *x, \
                                                   int64_t pairs) {                                \
        tile(t, x, pairs, N, V);                                                                   \
    }
TILE(1, VECTORS)
TILE(2, 2)
TILE(3, 2)
TILE(4, 2)
TILE(5, 2)
TILE(6, 2)

void mxc_i8mm_matmul_bf16(const struct mxc_packed *w, const struct mxc_activation *a,
                          int32_t strip0, int32_t strip1, float *out, size_t ld,
                          const struct mxc_epilogue *epilogue) {
    static tile_fn *const tiles[MOST + 1] = {NULL, tile_1, tile_2, tile_3, tile_4, tile_5, tile_6};
    size_t row_bytes = 2 * mxc_padded_k(a->form, a->k);
    struct mxc_int_tile t = {
        .matrix = w, .inverse_unit = 1, .out = out, .ld = ld, .epilogue = epilogue};
    for (int32_t s = strip0; s < strip1; s++)
        for (int32_t c0 = 0; c0 < a->m; c0 += MXC_TILE_BF16) {
            int32_t width = mxc_tile_width(a, c0);
            t.width = (size_t)width;
            for (int32_t c = 0, n; c < width; c += n) {
                n = width - c < MOST ? width - c : MOST;
                if (width - c == MOST + 1) /* not one column alone */
                    n = MOST - 2;
                const uint8_t *x = a->data + (size_t)c0 * row_bytes + (size_t)c * CELL;
                for (size_t r = 0; r < MXC_STRIP; r += n == 1 ? MXC_STRIP : 2 * ROWS) {
                    t.w = w->data + (size_t)s * w->strip_bytes + 4 * r;
                    t.column = (size_t)s * MXC_STRIP + r;
                    t.at = (size_t)(c0 + c) * ld + t.column;
                    tiles[n](&t, x, (w->k + 1) / 2);
                }
            }
        }
}
