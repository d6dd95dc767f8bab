/* Matmul I4, I8, N4, I6 and K6, aarch64 with int8 matrix products: an instruction multiplies two
 * rows of the weights with two columns, over eight numbers of K. A tile is 8 rows (K6, which has
 * more sums: 4) x 1 to 6 columns; of an odd number of columns the last one is paired with itself. A
 * matrix with one column goes to the NEON kernel: it waits for memory, and half of every product
 * would be thrown away.
 * Invariant: the NEON kernel's bits. The sum of a cell is an exact integer, and float steps and
 * their order for an output are the same; here a vector has the outputs of two rows and two columns
 * [r][c], there of four rows.
 * Codes are taken unsigned as they are; N4 looks them up. */
#include "backend/cpu/kernels/neon/neon.h"

enum { ROWS = 4 /* of codes at once */, VECTORS = 2, MOST = 6, PAIRS = MOST / 2 };

/* Vectors of outputs: [of rows][of two rows][of two columns]. */
#define EACH(v, h, p, N, V)                                                                        \
    for (int v = 0; v < (V); v++)                                                                  \
        for (int h = 0; h < 2; h++)                                                                \
            for (int p = 0; 2 * p < (N); p++)

/* Whether pair p has a second column. */
#define SECOND(p, N) (2 * (p) + 1 < (N))

MXC_INLINE float32x4_t pair_f32(const float *p, const bool second) {
    float32x2_t two = second ? vld1_f32(p) : vld1_dup_f32(p);
    return vcombine_f32(two, two);
}

MXC_INLINE int32x4_t pair_s32(const int32_t *p, const bool second) {
    int32x2_t two = second ? vld1_s32(p) : vld1_dup_s32(p);
    return vcombine_s32(two, two);
}

MXC_INLINE int32x4_t multiply(int32x4_t d, uint32x4_t q, int8x16_t y,
                              const enum mxc_layout layout) {
    return layout == MXC_LAYOUT_N4 ? vmmlaq_s32(d, vreinterpretq_s8_u32(q), y)
                                   : vusmmlaq_s32(d, vreinterpretq_u8_u32(q), y);
}

/* d += 16 codes of K of V vectors of rows, at w, times x. */
MXC_INLINE void dot(const uint8_t *w, const int8_t *x, int8x16_t table,
                    int32x4_t d[VECTORS][2][PAIRS], const int N, const int V,
                    const enum mxc_layout layout) {
    mxc_fetch(w, false, layout);
    int8x16_t y[2][PAIRS]; /* eight numbers of two columns */
    for (int p = 0; 2 * p < N; p++) {
        const int8_t *first = x + 2 * p * MXC_CELL_I8;
        int64x2_t a = vreinterpretq_s64_s8(vld1q_s8(first));
        int64x2_t b = vreinterpretq_s64_s8(vld1q_s8(first + SECOND(p, N) * MXC_CELL_I8));
        y[0][p] = vreinterpretq_s8_s64(vzip1q_s64(a, b));
        y[1][p] = vreinterpretq_s8_s64(vzip2q_s64(a, b));
    }
    for (int v = 0; v < V; v++) {
        uint8x16_t q[4];
        mxc_codes(w + 4 * ROWS * v, table, layout, q);
        for (int i = 0; i < 2; i++) {
            uint32x4_t a = vreinterpretq_u32_u8(q[2 * i]), b = vreinterpretq_u32_u8(q[2 * i + 1]);
            uint32x4_t low = vzip1q_u32(a, b), high = vzip2q_u32(a, b); /* two rows each */
            for (int p = 0; 2 * p < N; p++) {
                d[v][0][p] = multiply(d[v][0][p], low, y[i][p], layout);
                d[v][1][p] = multiply(d[v][1][p], high, y[i][p], layout);
            }
        }
    }
}

MXC_INLINE void begin(int32x4_t d[VECTORS][2][PAIRS], const int32_t *sum, int32_t start,
                      const int N, const int V) {
    EACH(v, h, p, N, V)
    d[v][h][p] = vmulq_n_s32(pair_s32(sum + 2 * p, SECOND(p, N)), start);
}

/* acc += numbers of four rows times y; those of two rows go to a vector. */
MXC_INLINE void add(float32x4_t acc[2][PAIRS], float32x4_t rows, float32x4_t y[2][PAIRS],
                    const int N) {
    float32x4_t low = vzip1q_f32(rows, rows), high = vzip2q_f32(rows, rows);
    for (int p = 0; 2 * p < N; p++) {
        acc[0][p] = vfmaq_f32(acc[0][p], low, y[0][p]);
        acc[1][p] = vfmaq_f32(acc[1][p], high, y[1][p]);
    }
}

MXC_INLINE void store(const struct mxc_int_tile *t, float32x4_t acc[VECTORS][2][PAIRS], const int N,
                      const int V) {
    float32x4_t y[VECTORS * MOST];
    for (int c = 0; c < N; c++)
        for (int v = 0; v < V; v++) {
            float32x4_t low = acc[v][0][c / 2], high = acc[v][1][c / 2];
            y[c * V + v] = c % 2 ? vuzp2q_f32(low, high) : vuzp1q_f32(low, high);
        }
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
    float32x4_t acc[VECTORS][2][PAIRS], y[VECTORS][2][PAIRS], z[2][PAIRS];
    EACH(v, h, p, N, V)
    acc[v][h][p] = vdupq_n_f32(0);
    for (int64_t g = 0; g < t->n_groups; g++, w += t->block) {
        const uint8_t *codes = w + to_codes, *f = w + to_scales;
        EACH(v, h, p, N, 1) { /* what the biases are multiplied with, with the sign turned */
            z[h][p] = vdupq_n_f32(0);
            if (m->affine)
                z[h][p] =
                    vnegq_f32(halves ? vmulq_f32(pair_f32(scale + 2 * p, SECOND(p, N)),
                                                 vcvtq_f32_s32(pair_s32(sum + 2 * p, SECOND(p, N))))
                                     : pair_f32(scaled + 2 * p, SECOND(p, N)));
        }
        for (int in = 0; in < m->group; in += piece, codes += step) {
            int32x4_t d[VECTORS][2][PAIRS];
            begin(d, sum, t->start, N, V);
            for (int i = 0; i < piece; i += 16)
                dot(codes + (i ? mxc_step16(layout) : 0), x + i, table, d, N, V, layout);
            EACH(v, h, p, N, V)
            y[v][h][p] =
                vmulq_f32(vcvtq_f32_s32(d[v][h][p]), pair_f32(scale + 2 * p, SECOND(p, N)));
            for (int v = 0; v < V; v++)
                add(acc[v], mxc_halves(f + 2 * ROWS * v, m->bf16_scales), y[v], N);
            bool more = halves && g % 2 == 0; /* of this cell */
            x += more ? 16 : cell - (halves ? 16 : 0);
            scale += more ? 0 : t->width;
            sum += t->width;
        }
        for (int v = 0; m->affine && v < V; v++)
            add(acc[v], mxc_halves(f + MXC_BLOCK_TAIL + 2 * ROWS * v, false), z, N);
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
    float32x4_t acc[VECTORS][2][PAIRS], part[VECTORS][2][PAIRS];
    EACH(v, h, p, N, V)
    acc[v][h][p] = vdupq_n_f32(0);
    for (int32_t k = 0; k < t->matrix->k; k += MXC_K6_BLOCK) {
        const uint8_t *factors = w + 2 * row;
        EACH(v, h, p, N, V)
        part[v][h][p] = vdupq_n_f32(0);
        w += MXC_BLOCK_TAIL;
        for (int i = 0; i < MXC_K6_BLOCK / MXC_CELL_I8; i++, w += MXC_K6_CELL) {
            const uint8_t *codes = w + MXC_K6_SCALES + mxc_codes_at(row, layout);
            int32x4_t total[VECTORS][2][PAIRS];
            EACH(v, h, p, N, V)
            total[v][h][p] = vdupq_n_s32(0);
            for (size_t g = 0; g < 2; g++, sum += width) {
                int32x4_t d[VECTORS][2][PAIRS];
                begin(d, sum, t->start, N, V);
                dot(codes + g * MXC_SIX_PIECE, x + 16 * g, none, d, N, V, layout);
                EACH(v, h, p, N, V) {
                    int32x4_t s = mxc_bytes(w + mxc_k6_scale_at(g, row + (size_t)(ROWS * v)));
                    s = h ? vzip2q_s32(s, s) : vzip1q_s32(s, s);
                    total[v][h][p] = vmlaq_s32(total[v][h][p], d[v][h][p], s);
                }
            }
            EACH(v, h, p, N, V)
            part[v][h][p] = vfmaq_f32(part[v][h][p], vcvtq_f32_s32(total[v][h][p]),
                                      pair_f32(scale + 2 * p, SECOND(p, N)));
            x += width * MXC_CELL_I8;
            scale += width;
        }
        for (int v = 0; v < V; v++)
            add(acc[v], mxc_halves(factors + 2 * ROWS * v, false), part[v], N);
    }
    store(t, acc, N, V);
}

#define TILE(name, tile, N, V, layout)                                                             \
    static __attribute__((noinline)) void name##_##N(const struct mxc_int_tile *t) {               \
        tile(t, N, V, layout);                                                                     \
    }
#define TILES(name, tile, V, layout)                                                               \
    TILE(name, tile, 1, V, layout)                                                                 \
    TILE(name, tile, 2, V, layout)                                                                 \
    TILE(name, tile, 3, V, layout)                                                                 \
    TILE(name, tile, 4, V, layout)                                                                 \
    TILE(name, tile, 5, V, layout)                                                                 \
    TILE(name, tile, 6, V, layout)                                                                 \
    static const struct mxc_int_walk name = {                                                      \
        .tiles = (mxc_int_tile_fn *const[]){NULL, name##_1, name##_2, name##_3, name##_4,          \
                                            name##_5, name##_6},                                   \
        .most = MOST,                                                                              \
        .tile_rows = ROWS * (V),                                                                   \
        .single_rows = ROWS * (V)};
TILES(i4, tile, 2, MXC_LAYOUT_I4)
TILES(i8, tile, 2, MXC_LAYOUT_I8)
TILES(n4, tile, 2, MXC_LAYOUT_N4)
TILES(i6, tile, 2, MXC_LAYOUT_I6)
TILES(k6, tile_k6, 1, MXC_LAYOUT_K6)

#define MATMUL(name)                                                                               \
    void mxc_i8mm_matmul_##name(const struct mxc_packed *w, const struct mxc_activation *a,        \
                                int32_t strip0, int32_t strip1, float *out, size_t ld,             \
                                const struct mxc_epilogue *epilogue) {                             \
        if (a->m == 1) {                                                                           \
            mxc_neon_matmul_##name(w, a, strip0, strip1, out, ld, epilogue);                       \
            return;                                                                                \
        }                                                                                          \
        struct mxc_int_walk walk = name;                                                           \
        walk.start = w->zero_point;                                                                \
        mxc_walk_int(&walk, w, a, strip0, strip1, out, ld, epilogue);                              \
    }
MATMUL(i4)
MATMUL(i8)
MATMUL(n4)
MATMUL(i6)
MATMUL(k6)
