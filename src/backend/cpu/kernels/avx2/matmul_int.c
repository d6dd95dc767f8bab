/* Matmul I4, I8 and N4, AVX2: vpmaddubsw in place of vpdpbusd. A tile is 16 rows of the weights x 2
 * or 3 columns, or a whole strip x 1 column; a column's work and order are the same in all of them.
 *   I4: codes < 16, so the 16-bit sums of a cell (32 numbers) cannot overflow and are widened once.
 *   I8: codes - 128 as a sign on the activations and a magnitude, |128 * 127 * 2| < 2^15; the sums
 *       then miss 128 times the sum of the activations, which the start of the sum makes good.
 *   N4: a byte shuffle looks up numbers with a sign, taken as in I8; of a table of small numbers
 * the sums of a cell are widened once, as in I4. */
#include "backend/cpu/kernels/avx2/avx2.h"
#include "backend/cpu/kernels/walk.h"

enum { AHEAD = 4096, ROWS = 8 /* of a vector */, MOST = 3, VECTORS = MXC_STRIP / ROWS };

/* I4 codes of a cell or half a cell: steps of 128 bytes. */
MXC_INLINE void steps_i4(const uint8_t *w, const int8_t *x, mxc_vi d[VECTORS][MOST],
                         const int n_steps, const int N, const int V, const bool ahead) {
    const mxc_vi low = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    mxc_vi s[VECTORS][MOST];
    for (int j = 0; j < n_steps; j++, w += 4 * MXC_STRIP) {
        if (ahead) {
            mxc_prefetch(w + AHEAD);
            mxc_prefetch(w + AHEAD + 64);
        }
        for (int c = 0; c < N; c++) {
            const int8_t *p = x + c * MXC_CELL_I8 + 8 * j;
            mxc_vi a = mxc_broadcast4(p), b = mxc_broadcast4(p + 4);
            for (int v = 0; v < V; v++) {
                mxc_vi q = _mm256_load_si256((const void *)(w + 32 * v));
                mxc_vi y = _mm256_maddubs_epi16(_mm256_and_si256(q, low), a);
                q = _mm256_and_si256(_mm256_srli_epi16(q, 4), low);
                y = _mm256_add_epi16(y, _mm256_maddubs_epi16(q, b));
                s[v][c] = j ? _mm256_add_epi16(s[v][c], y) : y;
            }
        }
    }
    for (int v = 0; v < V; v++)
        for (int c = 0; c < N; c++)
            d[v][c] = _mm256_add_epi32(d[v][c], _mm256_madd_epi16(s[v][c], ones));
}

MXC_INLINE void steps_i8(const uint8_t *w, const int8_t *x, mxc_vi d[VECTORS][MOST],
                         const int n_steps, const int N, const int V, const bool ahead) {
    const mxc_vi flip = _mm256_set1_epi8(-128), ones = _mm256_set1_epi16(1);
    for (int j = 0; j < n_steps; j++, w += 4 * MXC_STRIP) {
        if (ahead) {
            mxc_prefetch(w + AHEAD);
            mxc_prefetch(w + AHEAD + 64);
        }
        for (int v = 0; v < V; v++) {
            mxc_vi q = _mm256_load_si256((const void *)(w + 32 * v));
            q = _mm256_xor_si256(q, flip);
            mxc_vi magnitude = _mm256_abs_epi8(q);
            for (int c = 0; c < N; c++) {
                mxc_vi a = _mm256_sign_epi8(mxc_broadcast4(x + c * MXC_CELL_I8 + 4 * j), q);
                mxc_vi y = _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude, a), ones);
                d[v][c] = _mm256_add_epi32(d[v][c], y);
            }
        }
    }
}

/* N4 codes, a nibble of every byte at a time. */
MXC_INLINE void steps_n4(const uint8_t *w, const int8_t *x, const int8_t *numbers,
                         mxc_vi d[VECTORS][MOST], const int n_steps, const int N, const int V,
                         const bool small, const bool ahead) {
    const mxc_vi low = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    const mxc_vi table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)numbers));
    mxc_vi s[VECTORS][MOST] = {{{0}}};
    for (int j = 0; j < 2 * n_steps; j++, w += j % 2 ? 0 : 4 * MXC_STRIP) {
        if (ahead && j % 2 == 0) {
            mxc_prefetch(w + AHEAD);
            mxc_prefetch(w + AHEAD + 64);
        }
        for (int v = 0; v < V; v++) {
            mxc_vi q = _mm256_load_si256((const void *)(w + 32 * v));
            q = _mm256_and_si256(j % 2 ? _mm256_srli_epi16(q, 4) : q, low);
            q = _mm256_shuffle_epi8(table, q);
            mxc_vi magnitude = _mm256_abs_epi8(q);
            for (int c = 0; c < N; c++) {
                mxc_vi a = _mm256_sign_epi8(mxc_broadcast4(x + c * MXC_CELL_I8 + 4 * j), q);
                mxc_vi y = _mm256_maddubs_epi16(magnitude, a);
                if (small)
                    s[v][c] = _mm256_add_epi16(s[v][c], y);
                else
                    d[v][c] = _mm256_add_epi32(d[v][c], _mm256_madd_epi16(y, ones));
            }
        }
    }
    for (int v = 0; small && v < V; v++)
        for (int c = 0; c < N; c++)
            d[v][c] = _mm256_add_epi32(d[v][c], _mm256_madd_epi16(s[v][c], ones));
}

/* Of the scales: with a zero point, with biases beside them, or bf16 (N4). */
enum kind { PLAIN, AFFINE, BF16 };

/* Scales or biases of 8 rows. */
MXC_INLINE mxc_vf halves(const uint8_t *f, const enum kind kind) {
    __m128i h = _mm_load_si128((const void *)f);
    return kind == BF16 ? _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16))
                        : _mm256_cvtph_ps(h);
}

MXC_INLINE void tile(const struct mxc_int_tile *t, const int N, const int V, const int G,
                     const enum kind kind, const enum mxc_layout layout, const bool small,
                     const bool ahead) {
    const bool affine = kind == AFFINE;
    mxc_vf acc[VECTORS][MOST];
    for (int v = 0; v < V; v++)
        for (int c = 0; c < N; c++)
            acc[v][c] = _mm256_setzero_ps();
    const uint8_t *w = t->w;
    const int8_t *x = t->x;
    const int32_t *sum = t->sum;
    const float *scale = t->scale, *scaled = t->scaled;
    const ptrdiff_t cell = (ptrdiff_t)t->width * MXC_CELL_I8;
    const int codes = G * (layout == MXC_LAYOUT_I8 ? MXC_STRIP : MXC_STRIP / 2);
    const int steps = G == 16 ? 2 : 4;  /* of 8 numbers */
    const int pieces = G == 64 ? 2 : 1; /* cells, or half a cell, under one weight scale */
    /* w is moved by 4 bytes a row, a scale has 2 */
    const ptrdiff_t to_scales = codes - 2 * (ptrdiff_t)(t->column % MXC_STRIP);
    for (int64_t g = 0; g < t->n_groups; g++) {
        const uint8_t *f = w + to_scales;
        float z[MOST] = {0}; /* what the biases of groups of 16 are multiplied with */
        for (int c = 0; affine && G == 16 && c < N; c++)
            z[c] = scale[c] * (float)sum[c];
        for (int p = 0; p < pieces; p++) {
            mxc_vi d[VECTORS][MOST];
            for (int c = 0; c < N; c++)
                for (int v = 0; v < V; v++)
                    d[v][c] = layout == MXC_LAYOUT_N4 || (layout == MXC_LAYOUT_I4 && affine)
                                  ? _mm256_setzero_si256()
                                  : _mm256_set1_epi32(sum[c] * t->start);
            if (layout == MXC_LAYOUT_I4)
                steps_i4(w + p * codes / pieces, x, d, steps, N, V, ahead);
            else if (layout == MXC_LAYOUT_I8)
                steps_i8(w + p * codes / pieces, x, d, 2 * steps, N, V, ahead);
            else
                steps_n4(w, x, t->matrix->table, d, steps, N, V, small, ahead);
            for (int v = 0; v < V; v++) {
                mxc_vf s = halves(f + 2 * ROWS * v, kind);
                for (int c = 0; c < N; c++) {
                    mxc_vf y = _mm256_mul_ps(_mm256_cvtepi32_ps(d[v][c]), _mm256_set1_ps(scale[c]));
                    acc[v][c] = _mm256_fmadd_ps(s, y, acc[v][c]);
                }
            }
            sum += t->width;
            if (G == 16 && g % 2 == 0) {
                x += 16;
            } else {
                x += cell - (G == 16 ? 16 : 0);
                scale += t->width;
            }
        }
        for (int v = 0; affine && v < V; v++) {
            mxc_vf b = halves(f + MXC_BLOCK_TAIL + 2 * ROWS * v, kind);
            for (int c = 0; c < N; c++)
                acc[v][c] =
                    _mm256_fnmadd_ps(b, _mm256_set1_ps(G == 16 ? z[c] : scaled[c]), acc[v][c]);
        }
        scaled += affine && G != 16 ? t->width : 0;
        w += t->block;
    }
    for (int c = 0; c < N; c++)
        for (int v = 0; v < V; v++)
            mxc_store(t->out, t->at + (size_t)c * t->ld + (size_t)(ROWS * v),
                      t->column + (size_t)(ROWS * v), t->matrix->n,
                      _mm256_mul_ps(acc[v][c], _mm256_set1_ps(t->inverse_unit)), t->epilogue);
}

#define TILE(name, suffix, N, V, ahead, G, kind, layout, small)                                    \
    static __attribute__((noinline)) void name##suffix(const struct mxc_int_tile *t) {             \
        tile(t, N, V, G, kind, layout, small, ahead);                                              \
    }
#define TILES(name, G, kind, layout, small)                                                        \
    TILE(name, _1, 1, 4, true, G, kind, layout, small)                                             \
    TILE(name, _2, 2, 2, false, G, kind, layout, small)                                            \
    TILE(name, _3, 3, 2, false, G, kind, layout, small)                                            \
    TILE(name, _2_ahead, 2, 2, true, G, kind, layout, small)                                       \
    TILE(name, _3_ahead, 3, 2, true, G, kind, layout, small)
#define LIST(name) NULL, name##_1, name##_2, name##_3, name##_2_ahead, name##_3_ahead
TILES(i4_16, 16, PLAIN, MXC_LAYOUT_I4, false)
TILES(i4_32, 32, PLAIN, MXC_LAYOUT_I4, false)
TILES(i4_64, 64, PLAIN, MXC_LAYOUT_I4, false)
TILES(i4_16_affine, 16, AFFINE, MXC_LAYOUT_I4, false)
TILES(i4_32_affine, 32, AFFINE, MXC_LAYOUT_I4, false)
TILES(i4_64_affine, 64, AFFINE, MXC_LAYOUT_I4, false)
TILES(i8_16, 16, PLAIN, MXC_LAYOUT_I8, false)
TILES(i8_32, 32, PLAIN, MXC_LAYOUT_I8, false)
TILES(i8_64, 64, PLAIN, MXC_LAYOUT_I8, false)
TILES(i8_16_affine, 16, AFFINE, MXC_LAYOUT_I8, false)
TILES(i8_32_affine, 32, AFFINE, MXC_LAYOUT_I8, false)
TILES(i8_64_affine, 64, AFFINE, MXC_LAYOUT_I8, false)
TILES(n4_16, 16, PLAIN, MXC_LAYOUT_N4, false)
TILES(n4_32, 32, PLAIN, MXC_LAYOUT_N4, false)
TILES(n4_16_bf16, 16, BF16, MXC_LAYOUT_N4, false)
TILES(n4_32_bf16, 32, BF16, MXC_LAYOUT_N4, false)
TILES(n4_16_small, 16, PLAIN, MXC_LAYOUT_N4, true)
TILES(n4_32_small, 32, PLAIN, MXC_LAYOUT_N4, true)
TILES(n4_16_bf16_small, 16, BF16, MXC_LAYOUT_N4, true)
TILES(n4_32_bf16_small, 32, BF16, MXC_LAYOUT_N4, true)
/* by "affine" (N4: bf16 scales), log2 of the group / 16, columns (and MOST - 1 more with 2 and 3
 * columns: those that prefetch) */
typedef mxc_int_tile_fn *const tile_table[2][3][2 * MOST];
static tile_table i4_tiles = {{{LIST(i4_16)}, {LIST(i4_32)}, {LIST(i4_64)}},
                              {{LIST(i4_16_affine)}, {LIST(i4_32_affine)}, {LIST(i4_64_affine)}}};
static tile_table i8_tiles = {{{LIST(i8_16)}, {LIST(i8_32)}, {LIST(i8_64)}},
                              {{LIST(i8_16_affine)}, {LIST(i8_32_affine)}, {LIST(i8_64_affine)}}};
static tile_table n4_tiles = {{{LIST(n4_16)}, {LIST(n4_32)}},
                              {{LIST(n4_16_bf16)}, {LIST(n4_32_bf16)}}};
static tile_table n4_small_tiles = {{{LIST(n4_16_small)}, {LIST(n4_32_small)}},
                                    {{LIST(n4_16_bf16_small)}, {LIST(n4_32_bf16_small)}}};

static void run(const tile_table table, const struct mxc_packed *w, const struct mxc_activation *a,
                int32_t strip0, int32_t strip1, float *out, size_t ld,
                const struct mxc_epilogue *epilogue) {
    bool second = w->layout == MXC_LAYOUT_N4 ? w->bf16_scales : w->affine;
    struct mxc_int_walk walk = {.tiles = table[second][w->group / 32],
                                .most = MOST,
                                .ahead = MOST - 1,
                                .tile_rows = 2 * ROWS,
                                .single_rows = MXC_STRIP,
                                .start = w->layout == MXC_LAYOUT_I4 ? w->zero_point
                                                                    : w->zero_point - 128};
    mxc_walk_int(&walk, w, a, strip0, strip1, out, ld, epilogue);
}

void mxc_avx2_matmul_i4(const struct mxc_packed *w, const struct mxc_activation *a, int32_t strip0,
                        int32_t strip1, float *out, size_t ld,
                        const struct mxc_epilogue *epilogue) {
    run(i4_tiles, w, a, strip0, strip1, out, ld, epilogue);
}

void mxc_avx2_matmul_i8(const struct mxc_packed *w, const struct mxc_activation *a, int32_t strip0,
                        int32_t strip1, float *out, size_t ld,
                        const struct mxc_epilogue *epilogue) {
    run(i8_tiles, w, a, strip0, strip1, out, ld, epilogue);
}

void mxc_avx2_matmul_n4(const struct mxc_packed *w, const struct mxc_activation *a, int32_t strip0,
                        int32_t strip1, float *out, size_t ld,
                        const struct mxc_epilogue *epilogue) {
    run(mxc_table_is_small(w->table) ? n4_small_tiles : n4_tiles, w, a, strip0, strip1, out, ld,
        epilogue);
}
