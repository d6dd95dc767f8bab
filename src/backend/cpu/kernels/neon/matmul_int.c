/* Matmul I4, I8, N4, I6 and K6, NEON with dot products: codes times int8 activations, four rows to
 * a vector and four numbers to a lane. A tile is 16 rows of the weights x 2 or 3 columns, or a
 * whole strip x 1 column (K6, which has more sums: half of that); a column's work and order are the
 * same in all of them: per cell (half a cell in groups of 16) an exact integer sum, to float, times
 * the cell's scale, then acc = fma(weight scale, that, acc), and at the end of an affine group acc
 * = acc
 * - bias * scaled negated sum. K6: the integer sum of a cell has the weights' int8 scales in it,
 * part = fma(cell's scale, that, part), and at the end of a block acc = fma(factor, part, acc).
 * I8 codes are taken as signed, code - 128, with a zero point 128 lower; N4 looks its codes up. */
#include "backend/cpu/kernels/neon/neon.h"

enum { ROWS = 4 /* of a vector */, MOST = 3, VECTORS = MXC_STRIP / ROWS };

/* d += 16 codes of K of V vectors of rows, at w, times x. */
MXC_INLINE void dot(const uint8_t *w, const int8_t *x, int8x16_t table, int32x4_t d[VECTORS][MOST],
                    const int N, const int V, const enum mxc_layout layout) {
    mxc_fetch(w, V == VECTORS, layout);
    int8x16_t y[MOST];
    for (int c = 0; c < N; c++)
        y[c] = vld1q_s8(x + c * MXC_CELL_I8);
    for (int v = 0; v < V; v++) {
        uint8x16_t codes[4];
        int8x16_t q[4];
        mxc_codes(w + mxc_codes_at((size_t)(ROWS * v), layout), table, layout, codes);
        for (int j = 0; j < 4; j++) {
            if (layout == MXC_LAYOUT_I8)
                codes[j] = veorq_u8(codes[j], vdupq_n_u8(128));
            q[j] = vreinterpretq_s8_u8(codes[j]);
        }
        for (int c = 0; c < N; c++) {
            d[v][c] = vdotq_laneq_s32(d[v][c], q[0], y[c], 0);
            d[v][c] = vdotq_laneq_s32(d[v][c], q[1], y[c], 1);
            d[v][c] = vdotq_laneq_s32(d[v][c], q[2], y[c], 2);
            d[v][c] = vdotq_laneq_s32(d[v][c], q[3], y[c], 3);
        }
    }
}

MXC_INLINE void begin(int32x4_t d[VECTORS][MOST], const int32_t *sum, int32_t start, const int N,
                      const int V) {
    for (int v = 0; v < V; v++)
        for (int c = 0; c < N; c++)
            d[v][c] = vdupq_n_s32(sum[c] * start);
}

MXC_INLINE void clear(float32x4_t acc[VECTORS][MOST], const int N, const int V) {
    for (int v = 0; v < V; v++)
        for (int c = 0; c < N; c++)
            acc[v][c] = vdupq_n_f32(0);
}

MXC_INLINE void store(const struct mxc_int_tile *t, float32x4_t acc[VECTORS][MOST], const int N,
                      const int V) {
    float32x4_t y[VECTORS * MOST];
    for (int c = 0; c < N; c++)
        for (int v = 0; v < V; v++)
            y[c * V + v] = acc[v][c];
    mxc_finish(t, y, N, V);
}

MXC_INLINE void tile(const struct mxc_int_tile *t, const int N, const int V,
                     const enum mxc_layout layout) {
    const struct mxc_packed *m = t->matrix;
    const bool halves = m->group == 16;
    const int piece = halves ? 16 : MXC_CELL_I8;
    const size_t step = halves ? mxc_step16(layout) : mxc_step32(layout);
    const int8x16_t table = vld1q_s8(m->table);
    const ptrdiff_t cell = (ptrdiff_t)t->width * MXC_CELL_I8;
    const size_t row = t->column % MXC_STRIP;
    const size_t to_codes = mxc_codes_at(row, layout), to_scales = mxc_block_codes(m) + 2 * row;
    const uint8_t *w = t->w - 4 * row;
    const int8_t *x = t->x;
    const int32_t *sum = t->sum;
    const float *scale = t->scale, *scaled = t->scaled;
    float32x4_t acc[VECTORS][MOST];
    clear(acc, N, V);
    for (int64_t g = 0; g < t->n_groups; g++, w += t->block) {
        const uint8_t *p = w + to_codes, *f = w + to_scales;
        float z[MOST] = {0}; /* what the biases are multiplied with */
        for (int c = 0; m->affine && c < N; c++)
            z[c] = halves ? scale[c] * (float)sum[c] : scaled[c];
        for (int in = 0; in < m->group; in += piece, p += step) {
            int32x4_t d[VECTORS][MOST];
            begin(d, sum, t->start, N, V);
            for (int i = 0; i < piece; i += 16)
                dot(p + (i ? mxc_step16(layout) : 0), x + i, table, d, N, V, layout);
            for (int v = 0; v < V; v++) {
                float32x4_t s = mxc_halves(f + 2 * ROWS * v, m->bf16_scales);
                for (int c = 0; c < N; c++) {
                    float32x4_t y = vmulq_n_f32(vcvtq_f32_s32(d[v][c]), scale[c]);
                    acc[v][c] = vfmaq_f32(acc[v][c], s, y);
                }
            }
            bool more = halves && g % 2 == 0; /* of this cell */
            x += more ? 16 : cell - (halves ? 16 : 0);
            scale += more ? 0 : t->width;
            sum += t->width;
        }
        for (int v = 0; m->affine && v < V; v++) {
            float32x4_t b = mxc_halves(f + MXC_BLOCK_TAIL + 2 * ROWS * v, false);
            for (int c = 0; c < N; c++)
                acc[v][c] = vfmsq_f32(acc[v][c], b, vdupq_n_f32(z[c]));
        }
        scaled += m->affine && !halves ? t->width : 0;
    }
    store(t, acc, N, V);
}

MXC_INLINE void tile_k6(const struct mxc_int_tile *t, const int N, const int V,
                        const enum mxc_layout layout) {
    const int8x16_t none = vdupq_n_s8(0);
    const size_t row = t->column % MXC_STRIP, width = t->width;
    const uint8_t *w = t->w - 4 * row;
    const int8_t *x = t->x;
    const int32_t *sum = t->sum;
    const float *scale = t->scale;
    float32x4_t acc[VECTORS][MOST], part[VECTORS][MOST];
    clear(acc, N, V);
    for (int32_t k = 0; k < t->matrix->k; k += MXC_K6_BLOCK) {
        const uint8_t *factors = w + 2 * row;
        clear(part, N, V);
        w += MXC_BLOCK_TAIL;
        for (int i = 0; i < MXC_K6_BLOCK / MXC_CELL_I8; i++, w += MXC_K6_CELL) {
            const uint8_t *p = w + MXC_K6_SCALES + mxc_codes_at(row, layout);
            int32x4_t total[VECTORS][MOST];
            for (int v = 0; v < V; v++)
                for (int c = 0; c < N; c++)
                    total[v][c] = vdupq_n_s32(0);
            for (size_t g = 0; g < 2; g++, sum += width) {
                int32x4_t d[VECTORS][MOST];
                begin(d, sum, t->start, N, V);
                dot(p + g * MXC_SIX_PIECE, x + 16 * g, none, d, N, V, layout);
                for (int v = 0; v < V; v++) {
                    int32x4_t s = mxc_bytes(w + mxc_k6_scale_at(g, row + (size_t)(ROWS * v)));
                    for (int c = 0; c < N; c++)
                        total[v][c] = vmlaq_s32(total[v][c], d[v][c], s);
                }
            }
            for (int v = 0; v < V; v++)
                for (int c = 0; c < N; c++)
                    part[v][c] = vfmaq_n_f32(part[v][c], vcvtq_f32_s32(total[v][c]), scale[c]);
            x += width * MXC_CELL_I8;
            scale += width;
        }
        for (int v = 0; v < V; v++) {
            float32x4_t f = mxc_halves(factors + 2 * ROWS * v, false);
            for (int c = 0; c < N; c++)
                acc[v][c] = vfmaq_f32(acc[v][c], f, part[v][c]);
        }
    }
    store(t, acc, N, V);
}

/* V: vectors of a tile; of one with a single column */
#define TILE(name, tile, N, V, layout)                                                             \
    static __attribute__((noinline)) void name##_##N(const struct mxc_int_tile *t) {               \
        tile(t, N, V, layout);                                                                     \
    }
#define TILES(name, tile, V, single, layout)                                                       \
    TILE(name, tile, 1, single, layout)                                                            \
    TILE(name, tile, 2, V, layout)                                                                 \
    TILE(name, tile, 3, V, layout)                                                                 \
    static const struct mxc_int_walk name = {                                                      \
        .tiles = (mxc_int_tile_fn *const[]){NULL, name##_1, name##_2, name##_3},                   \
        .most = MOST,                                                                              \
        .tile_rows = ROWS * (V),                                                                   \
        .single_rows = ROWS * (single)};
TILES(i4, tile, 4, VECTORS, MXC_LAYOUT_I4)
TILES(i8, tile, 4, VECTORS, MXC_LAYOUT_I8)
TILES(n4, tile, 4, VECTORS, MXC_LAYOUT_N4)
TILES(i6, tile, 4, VECTORS, MXC_LAYOUT_I6)
TILES(k6, tile_k6, 2, 4, MXC_LAYOUT_K6)

#define MATMUL(name, zero)                                                                         \
    void mxc_neon_matmul_##name(const struct mxc_packed *w, const struct mxc_activation *a,        \
                                int32_t strip0, int32_t strip1, float *out, size_t ld,             \
                                const struct mxc_epilogue *epilogue) {                             \
        struct mxc_int_walk walk = name;                                                           \
        walk.start = zero;                                                                         \
        mxc_walk_int(&walk, w, a, strip0, strip1, out, ld, epilogue);                              \
    }
MATMUL(i4, w->zero_point)
MATMUL(i8, w->zero_point - 128)
MATMUL(n4, 0)
MATMUL(i6, w->zero_point)
MATMUL(k6, w->zero_point)
