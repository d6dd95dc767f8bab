/* Matmul I4 and I8, AVX-512: codes times int8 activations with vpdpbusd. A tile is 32 rows of the
 * weights x N columns (rows of activations); N = 1 is decode, N = 6 prefill, and both do the same
 * work for a column in the same order. Per cell of 32 activations: integer sums (exact), to float,
 * times the cell's scale; then acc = fma(weight scale, that, acc) for every group and, when affine,
 * acc = fma(-bias, scaled negated sum of the activations, acc). */
#include "backend/cpu/kernels/avx512/avx512.h"

#include <string.h>

/* Few columns: the weights come from memory, prefetch AHEAD bytes ahead of use. */
enum { WIDE = MXC_TILE_I8, FEW = 4, AHEAD = 7680 };

struct tile {
    const uint8_t *w;    /* strip */
    const int8_t *x;     /* codes: [cell][column][32] */
    const float *scale;  /* [cell][column] */
    const int32_t *sum;  /* negated, [cell or half cell][column] */
    const float *scaled; /* affine: [group][column] */
    int64_t n_groups;
    int32_t zero_point;
    float inverse_unit;
    float *out;
    size_t at, ld, column; /* of the first output */
    int32_t n;
    const struct mxc_epilogue *epilogue;
};
typedef void tile_fn(const struct tile *t);

/* Four codes of a column in every lane. */
MXC_INLINE mxc_vi broadcast4(const int8_t *x) {
    int32_t four;
    memcpy(&four, x, sizeof four);
    return _mm512_set1_epi32(four);
}

/* Integer sums of `codes` (16 or 32) numbers of one cell; x: of the first column. */
MXC_INLINE void dot(const struct tile *t, const uint8_t *w, const int8_t *x, const int32_t *sum,
                    mxc_vi d[2][WIDE], const int N, const int codes, const bool affine,
                    const enum mxc_layout layout) {
    const mxc_vi low = _mm512_set1_epi8(15), zero_point = _mm512_set1_epi32(t->zero_point);
    for (int c = 0; c < N; c++) {
        d[0][c] = affine ? _mm512_setzero_si512()
                         : _mm512_mullo_epi32(_mm512_set1_epi32(sum[c]), zero_point);
        d[1][c] = d[0][c];
    }
#pragma GCC unroll 8
    for (int j = 0; j < codes / 4; j++) {
        const int nibble = layout == MXC_LAYOUT_I4 ? j & 1 : 0;
        const uint8_t *p = w + 128 * (layout == MXC_LAYOUT_I4 ? j / 2 : j);
        mxc_vi v[2];
        for (int h = 0; h < 2; h++) {
            v[h] = _mm512_load_si512(p + 64 * h);
            if (N <= FEW && !nibble)
                mxc_prefetch(p + 64 * h + AHEAD);
            if (layout == MXC_LAYOUT_I4)
                v[h] = _mm512_and_si512(nibble ? _mm512_srli_epi16(v[h], 4) : v[h], low);
        }
        for (int c = 0; c < N; c++) {
            mxc_vi b = broadcast4(x + c * MXC_CELL_I8 + 4 * j);
            d[0][c] = _mm512_dpbusd_epi32(d[0][c], v[0], b);
            d[1][c] = _mm512_dpbusd_epi32(d[1][c], v[1], b);
        }
    }
}

/* Scales or biases of 16 rows. */
MXC_INLINE mxc_vf halves(const uint8_t *f) {
    return _mm512_cvtph_ps(_mm256_load_si256((const void *)f));
}

MXC_INLINE void tile(const struct tile *t, const int N, const int G, const bool affine,
                     const enum mxc_layout layout) {
    const int code_bytes = G * (layout == MXC_LAYOUT_I4 ? MXC_STRIP / 2 : MXC_STRIP);
    const int block = code_bytes + (affine ? 2 : 1) * MXC_BLOCK_TAIL, cell_step = N * MXC_CELL_I8;
    const uint8_t *w = t->w;
    const int8_t *x = t->x;
    const int32_t *sum = t->sum;
    const float *scale = t->scale, *scaled = t->scaled;
    mxc_vf acc[2][WIDE];
    for (int c = 0; c < N; c++)
        acc[0][c] = acc[1][c] = _mm512_setzero_ps();
    /* one step: one group, or two groups of 16 */
    for (int64_t g = 0; g < t->n_groups; g += G == 16 ? 2 : 1) {
        mxc_vi d[2][WIDE];
        mxc_vf y[2][WIDE];
        dot(t, w, x, sum, d, N, G == 16 ? 16 : 32, affine, layout);
        const uint8_t *f = w + code_bytes;
        if (N <= FEW)
            mxc_prefetch(f + AHEAD);
        for (int h = 0; h < 2; h++)
            for (int c = 0; c < N; c++) {
                y[h][c] = _mm512_cvtepi32_ps(d[h][c]);
                y[h][c] =
                    _mm512_mul_ps(y[h][c], G == 16 ? halves(f + 32 * h) : _mm512_set1_ps(scale[c]));
            }
        if (G == 16) { /* scales of two groups, then the one of their cell */
            sum += N;
            w += block;
            f += block;
            dot(t, w, x + 16, sum, d, N, 16, affine, layout);
            if (N <= FEW)
                mxc_prefetch(f + AHEAD);
            for (int h = 0; h < 2; h++)
                for (int c = 0; c < N; c++) {
                    y[h][c] =
                        _mm512_fmadd_ps(halves(f + 32 * h), _mm512_cvtepi32_ps(d[h][c]), y[h][c]);
                    acc[h][c] = _mm512_fmadd_ps(_mm512_set1_ps(scale[c]), y[h][c], acc[h][c]);
                }
        } else {
            if (G == 64) { /* a second cell under the same scale */
                x += cell_step;
                sum += N;
                scale += N;
                dot(t, w + code_bytes / 2, x, sum, d, N, 32, affine, layout);
                for (int h = 0; h < 2; h++)
                    for (int c = 0; c < N; c++)
                        y[h][c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(d[h][c]),
                                                  _mm512_set1_ps(scale[c]), y[h][c]);
            }
            for (int h = 0; h < 2; h++) {
                mxc_vf s = halves(f + 32 * h);
                for (int c = 0; c < N; c++)
                    acc[h][c] = _mm512_fmadd_ps(s, y[h][c], acc[h][c]);
            }
        }
        if (affine) {
            if (N <= FEW)
                mxc_prefetch(f + MXC_BLOCK_TAIL + AHEAD);
            mxc_vf b0 = halves(f + MXC_BLOCK_TAIL), b1 = halves(f + MXC_BLOCK_TAIL + 32);
            for (int c = 0; c < N; c++) {
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
    for (int c = 0; c < N; c++)
        for (size_t h = 0; h < 2; h++)
            mxc_store(t->out, t->at + (size_t)c * t->ld + 16 * h, t->column + 16 * h, t->n,
                      _mm512_mul_ps(acc[h][c], unit), t->epilogue);
}

#define TILE(name, G, affine, layout, N)                                                           \
    static __attribute__((noinline)) void name##_##N(const struct tile *t) {                       \
        tile(t, N, G, affine, layout);                                                             \
    }
#define TILES(name, G, affine, layout)                                                             \
    TILE(name, G, affine, layout, 1)                                                               \
    TILE(name, G, affine, layout, 2)                                                               \
    TILE(name, G, affine, layout, 3)                                                               \
    TILE(name, G, affine, layout, 4)                                                               \
    TILE(name, G, affine, layout, 5)                                                               \
    TILE(name, G, affine, layout, 6)                                                               \
    static tile_fn *const name[] = {NULL,     name##_1, name##_2, name##_3,                        \
                                    name##_4, name##_5, name##_6};
TILES(i4_32, 32, false, MXC_LAYOUT_I4)
TILES(i4_32_affine, 32, true, MXC_LAYOUT_I4)
TILES(i4_64_affine, 64, true, MXC_LAYOUT_I4)
TILES(i8_16, 16, false, MXC_LAYOUT_I8)
TILES(i8_32, 32, false, MXC_LAYOUT_I8)
TILES(i8_32_affine, 32, true, MXC_LAYOUT_I8)
TILES(i8_64_affine, 64, true, MXC_LAYOUT_I8)

/* A strip stays in L1 or L2 while the activations stream past it. */
static void run(tile_fn *const *tiles, const struct mxc_packed *w, const struct mxc_activation *a,
                int32_t strip0, int32_t strip1, float *out, size_t ld,
                const struct mxc_epilogue *epilogue) {
    struct mxc_i8_view v = mxc_i8_view(a);
    size_t cells = v.kp / MXC_CELL_I8;
    struct tile t = {.n_groups = w->k / w->group,
                     .zero_point = w->zero_point,
                     .inverse_unit = 1.0f / w->unit,
                     .out = out,
                     .ld = ld,
                     .n = w->n,
                     .epilogue = epilogue};
    for (int32_t s = strip0; s < strip1; s++) {
        t.w = w->data + (size_t)s * w->strip_bytes;
        t.column = (size_t)s * MXC_STRIP;
        for (int32_t c = 0; c < a->m; c += WIDE) {
            size_t of32 = (size_t)c * cells;
            t.x = v.codes + of32 * MXC_CELL_I8;
            t.scale = v.scale + of32;
            t.sum = w->group == 16 ? v.sum16 + 2 * of32 : v.sum32 + of32;
            t.scaled = w->group == 32 ? v.scaled32 + of32 : v.scaled64 + of32 / 2;
            t.at = (size_t)c * ld + t.column;
            tiles[mxc_tile_width(a, c)](&t);
        }
    }
}

void mxc_avx512_matmul_i4(const struct mxc_packed *w, const struct mxc_activation *a,
                          int32_t strip0, int32_t strip1, float *out, size_t ld,
                          const struct mxc_epilogue *epilogue) {
    tile_fn *const *tiles = w->group == 64 ? i4_64_affine : w->affine ? i4_32_affine : i4_32;
    run(tiles, w, a, strip0, strip1, out, ld, epilogue);
}

void mxc_avx512_matmul_i8(const struct mxc_packed *w, const struct mxc_activation *a,
                          int32_t strip0, int32_t strip1, float *out, size_t ld,
                          const struct mxc_epilogue *epilogue) {
    tile_fn *const *tiles = w->group == 64   ? i8_64_affine
                            : w->group == 16 ? i8_16
                            : w->affine      ? i8_32_affine
                                             : i8_32;
    run(tiles, w, a, strip0, strip1, out, ld, epilogue);
}
