/* Matmul I4, I8 and N4, AVX-512: codes times int8 activations with vpdpbusd. A tile is 32 rows of
 * the weights x N columns (rows of activations); N = 1 is decode, N = 6 prefill, and both do the
 * same work for a column in the same order. Per cell of 32 activations: integer sums (exact), to
 * float, times the cell's scale; then acc = fma(weight scale, that, acc) for every group and, when
 * affine, acc = fma(-bias, scaled negated sum of the activations, acc). Groups of 16 are taken two
 * at a time, with the biases ahead of the cell's scale. N4 looks its codes up with a byte shuffle,
 * as table + 128: unsigned numbers with a zero point. */
#include "backend/cpu/kernels/avx512/int_tile.h"

/* Of the scales: with a zero point, with biases beside them, or bf16 (N4). */
enum kind { PLAIN, AFFINE, BF16 };

/* Integer sums of `codes` (16 or 32) numbers of one cell; x: of the first column. */
MXC_INLINE void dot(const struct tile *t, const uint8_t *w, const int8_t *x, const int32_t *sum,
                    mxc_vi d[2][WIDE], const int N, const int codes, const bool affine,
                    const enum mxc_layout layout, const bool ahead, const ptrdiff_t distance) {
    const bool nibbles = layout != MXC_LAYOUT_I8;
    const mxc_vi low = _mm512_set1_epi8(15), zero_point = _mm512_set1_epi32(t->zero_point);
    mxc_vi table = low;
    if (layout == MXC_LAYOUT_N4)
        table = _mm512_xor_si512(_mm512_broadcast_i32x4(_mm_loadu_si128((const void *)t->table)),
                                 _mm512_set1_epi8(-128));
    MXC_UNROLL
    for (int c = 0; c < N; c++) {
        d[0][c] = affine ? _mm512_setzero_si512()
                         : _mm512_mullo_epi32(_mm512_set1_epi32(sum[c]), zero_point);
        d[1][c] = d[0][c];
    }
#pragma GCC unroll 8
    for (int j = 0; j < codes / 4; j++) {
        const int nibble = nibbles ? j & 1 : 0;
        const uint8_t *p = w + 128 * (nibbles ? j / 2 : j);
        mxc_vi v[2];
        MXC_UNROLL
        for (int h = 0; h < 2; h++) {
            v[h] = _mm512_load_si512(p + 64 * h);
            if (ahead && !nibble)
                fetch(N, p + 64 * h + distance);
            if (nibbles)
                v[h] = _mm512_and_si512(nibble ? _mm512_srli_epi16(v[h], 4) : v[h], low);
            if (layout == MXC_LAYOUT_N4)
                v[h] = _mm512_shuffle_epi8(table, v[h]);
        }
        MXC_UNROLL
        for (int c = 0; c < N; c++) {
            mxc_vi b = mxc_broadcast4(x + c * MXC_CELL_I8 + 4 * j);
            d[0][c] = _mm512_dpbusd_epi32(d[0][c], v[0], b);
            d[1][c] = _mm512_dpbusd_epi32(d[1][c], v[1], b);
        }
    }
}

/* Scales or biases of 16 rows. */
MXC_INLINE mxc_vf halves(const uint8_t *f, const enum kind kind) {
    __m256i h = _mm256_load_si256((const void *)f);
    return kind == BF16 ? _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))
                        : _mm512_cvtph_ps(h);
}

/* Negated sum of the activations of a group of 16, in every lane. */
MXC_INLINE mxc_vf sum16(const int32_t *sum) {
    return _mm512_cvtepi32_ps(_mm512_set1_epi32(*sum));
}

MXC_INLINE void tile(const struct tile *t, const int N, const int G, const enum kind kind,
                     const enum mxc_layout layout, const bool first) {
    const bool affine = kind == AFFINE;
    /* 4-bit groups of 64 with many columns lose by it (M = 6: 7 %), the others win (M = 8: 8 to 23
     * %) */
    const bool ahead = first && (N <= FEW || G != 64 || layout == MXC_LAYOUT_I8);
    const int code_bytes = G * (layout == MXC_LAYOUT_I8 ? MXC_STRIP : MXC_STRIP / 2);
    const int block = code_bytes + (affine ? 2 : 1) * MXC_BLOCK_TAIL, cell_step = N * MXC_CELL_I8;
    const uint8_t *w = t->w;
    const int8_t *x = t->x;
    const int32_t *sum = t->sum;
    const float *scale = t->scale, *scaled = t->scaled;
    mxc_vf acc[2][WIDE];
    MXC_UNROLL
    for (int c = 0; c < N; c++)
        acc[0][c] = acc[1][c] = _mm512_setzero_ps();
    /* one step: one group, or two groups of 16 */
    for (int64_t g = 0; g < t->n_blocks; g += G == 16 ? 2 : 1) {
        mxc_vi d[2][WIDE];
        mxc_vf y[2][WIDE];
        const ptrdiff_t distance = AHEAD + (ahead && w + AHEAD >= t->end ? t->jump : 0);
        dot(t, w, x, sum, d, N, G == 16 ? 16 : 32, affine, layout, ahead, distance);
        const uint8_t *f = w + code_bytes;
        if (ahead)
            fetch(N, f + distance);
        MXC_UNROLL
        for (int h = 0; h < 2; h++) {
            MXC_UNROLL
            for (int c = 0; c < N; c++) {
                y[h][c] = _mm512_cvtepi32_ps(d[h][c]);
                y[h][c] = _mm512_mul_ps(y[h][c], G == 16 ? halves(f + 32 * h, kind)
                                                         : _mm512_set1_ps(scale[c]));
                if (G == 16 && affine)
                    y[h][c] = _mm512_fnmadd_ps(halves(f + MXC_BLOCK_TAIL + 32 * h, kind),
                                               sum16(sum + c), y[h][c]);
            }
        }
        if (G == 16) { /* scales of two groups, then the one of their cell */
            if (ahead && affine)
                fetch(N, f + MXC_BLOCK_TAIL + distance);
            sum += N;
            w += block;
            f += block;
            dot(t, w, x + 16, sum, d, N, 16, affine, layout, ahead, distance);
            if (ahead)
                fetch(N, f + distance);
            MXC_UNROLL
            for (int h = 0; h < 2; h++) {
                MXC_UNROLL
                for (int c = 0; c < N; c++) {
                    y[h][c] = _mm512_fmadd_ps(halves(f + 32 * h, kind), _mm512_cvtepi32_ps(d[h][c]),
                                              y[h][c]);
                    if (affine)
                        y[h][c] = _mm512_fnmadd_ps(halves(f + MXC_BLOCK_TAIL + 32 * h, kind),
                                                   sum16(sum + c), y[h][c]);
                    acc[h][c] = _mm512_fmadd_ps(_mm512_set1_ps(scale[c]), y[h][c], acc[h][c]);
                }
            }
        } else {
            if (G == 64) { /* a second cell under the same scale */
                x += cell_step;
                sum += N;
                scale += N;
                dot(t, w + code_bytes / 2, x, sum, d, N, 32, affine, layout, ahead, distance);
                MXC_UNROLL
                for (int h = 0; h < 2; h++) {
                    MXC_UNROLL
                    for (int c = 0; c < N; c++)
                        y[h][c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(d[h][c]),
                                                  _mm512_set1_ps(scale[c]), y[h][c]);
                }
            }
            MXC_UNROLL
            for (int h = 0; h < 2; h++) {
                mxc_vf s = halves(f + 32 * h, kind);
                MXC_UNROLL
                for (int c = 0; c < N; c++)
                    acc[h][c] = _mm512_fmadd_ps(s, y[h][c], acc[h][c]);
            }
        }
        if (affine) {
            if (ahead)
                fetch(N, f + MXC_BLOCK_TAIL + distance);
            mxc_vf b0 = halves(f + MXC_BLOCK_TAIL, kind),
                   b1 = halves(f + MXC_BLOCK_TAIL + 32, kind);
            MXC_UNROLL
            for (int c = 0; G != 16 && c < N; c++) {
                mxc_vf z = _mm512_set1_ps(scaled[c]);
                acc[0][c] = _mm512_fnmadd_ps(b0, z, acc[0][c]);
                acc[1][c] = _mm512_fnmadd_ps(b1, z, acc[1][c]);
            }
            scaled += N;
        }
        w += block;
        x += cell_step;
        sum += N;
        scale += N;
    }
    const mxc_vf unit = _mm512_set1_ps(t->inverse_unit);
    MXC_UNROLL
    for (int c = 0; c < N; c++) {
        MXC_UNROLL
        for (size_t h = 0; h < 2; h++)
            mxc_store(t->out, t->at + (size_t)c * t->ld + 16 * h, t->column + 16 * h, t->n,
                      _mm512_mul_ps(acc[h][c], unit), t->epilogue);
    }
}

#define TILE(name, suffix, N, ahead, G, kind, layout)                                              \
    static __attribute__((noinline)) void name##suffix(const struct tile *t) {                     \
        tile(t, N, G, kind, layout, ahead);                                                        \
    }
#define TILES(name, G, kind, layout)                                                               \
    TILE(name, _1, 1, true, G, kind, layout)                                                       \
    TILE(name, _2, 2, true, G, kind, layout)                                                       \
    TILE(name, _3, 3, true, G, kind, layout)                                                       \
    TILE(name, _4, 4, true, G, kind, layout)                                                       \
    TILE(name, _5, 5, false, G, kind, layout)                                                      \
    TILE(name, _6, 6, false, G, kind, layout)                                                      \
    TILE(name, _5_ahead, 5, true, G, kind, layout)                                                 \
    TILE(name, _6_ahead, 6, true, G, kind, layout)
#define LIST(name)                                                                                 \
    NULL, name##_1, name##_2, name##_3, name##_4, name##_5, name##_6, name##_5_ahead, name##_6_ahead
TILES(i4_16, 16, PLAIN, MXC_LAYOUT_I4)
TILES(i4_32, 32, PLAIN, MXC_LAYOUT_I4)
TILES(i4_64, 64, PLAIN, MXC_LAYOUT_I4)
TILES(i4_16_affine, 16, AFFINE, MXC_LAYOUT_I4)
TILES(i4_32_affine, 32, AFFINE, MXC_LAYOUT_I4)
TILES(i4_64_affine, 64, AFFINE, MXC_LAYOUT_I4)
TILES(i8_16, 16, PLAIN, MXC_LAYOUT_I8)
TILES(i8_32, 32, PLAIN, MXC_LAYOUT_I8)
TILES(i8_64, 64, PLAIN, MXC_LAYOUT_I8)
TILES(i8_16_affine, 16, AFFINE, MXC_LAYOUT_I8)
TILES(i8_32_affine, 32, AFFINE, MXC_LAYOUT_I8)
TILES(i8_64_affine, 64, AFFINE, MXC_LAYOUT_I8)
TILES(n4_16, 16, PLAIN, MXC_LAYOUT_N4)
TILES(n4_32, 32, PLAIN, MXC_LAYOUT_N4)
TILES(n4_16_bf16, 16, BF16, MXC_LAYOUT_N4)
TILES(n4_32_bf16, 32, BF16, MXC_LAYOUT_N4)
/* by "affine" (N4: bf16 scales), log2 of the group / 16, columns (and WIDE - FEW more with
 * more than FEW: those that prefetch) */
typedef tile_fn *const tile_table[2][3][2 * WIDE - FEW + 1];
static tile_table i4_tiles = {{{LIST(i4_16)}, {LIST(i4_32)}, {LIST(i4_64)}},
                              {{LIST(i4_16_affine)}, {LIST(i4_32_affine)}, {LIST(i4_64_affine)}}};
static tile_table i8_tiles = {{{LIST(i8_16)}, {LIST(i8_32)}, {LIST(i8_64)}},
                              {{LIST(i8_16_affine)}, {LIST(i8_32_affine)}, {LIST(i8_64_affine)}}};
static tile_table n4_tiles = {{{LIST(n4_16)}, {LIST(n4_32)}},
                              {{LIST(n4_16_bf16)}, {LIST(n4_32_bf16)}}};

static void run(const tile_table table, const struct mxc_packed *w, const struct mxc_activation *a,
                int32_t strip0, int32_t strip1, float *out, size_t ld,
                const struct mxc_epilogue *epilogue) {
    bool n4 = w->layout == MXC_LAYOUT_N4;
    struct tile t = {.table = w->table,
                     .zero_point = n4 ? 128 : w->zero_point,
                     .out = out,
                     .ld = ld,
                     .epilogue = epilogue};
    walk(table[n4 ? w->bf16_scales : w->affine][w->group / 32], &t, w, a, strip0, strip1);
}

void mxc_avx512_matmul_i4(const struct mxc_packed *w, const struct mxc_activation *a,
                          int32_t strip0, int32_t strip1, float *out, size_t ld,
                          const struct mxc_epilogue *epilogue) {
    run(i4_tiles, w, a, strip0, strip1, out, ld, epilogue);
}

void mxc_avx512_matmul_i8(const struct mxc_packed *w, const struct mxc_activation *a,
                          int32_t strip0, int32_t strip1, float *out, size_t ld,
                          const struct mxc_epilogue *epilogue) {
    run(i8_tiles, w, a, strip0, strip1, out, ld, epilogue);
}

void mxc_avx512_matmul_n4(const struct mxc_packed *w, const struct mxc_activation *a,
                          int32_t strip0, int32_t strip1, float *out, size_t ld,
                          const struct mxc_epilogue *epilogue) {
    run(n4_tiles, w, a, strip0, strip1, out, ld, epilogue);
}
