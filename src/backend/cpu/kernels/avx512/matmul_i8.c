/* Matmul I8, AVX-512: 8-bit codes times int8 activations with vpdpbusd, groups of 16, 32, 64. The
 * tile is that of the I4 matmul without the unpacking; a vector holds four codes of 16 rows. */
#include "backend/cpu/kernels/avx512/avx512.h"
#include "backend/cpu/kernels/avx512/tile_i8.h"

/* One group of G whose activations begin at x (column 0). */
MXC_INLINE void group(const struct mxc_tile_i8 *t, const uint8_t *w, const int8_t *x,
                      const int32_t *sum, mxc_vf acc[2][MXC_TILE_I8], const int N, const int G,
                      const bool affine) {
    const mxc_vi zero_point = _mm512_set1_epi32(t->zero_point);
    mxc_vi d[2][MXC_TILE_I8];
    for (int c = 0; c < N; c++) {
        d[0][c] = affine ? _mm512_setzero_si512()
                         : _mm512_mullo_epi32(_mm512_set1_epi32(sum[c]), zero_point);
        d[1][c] = d[0][c];
    }
#pragma GCC unroll 16
    for (int j = 0; j < G / 4; j++) {
        const uint8_t *p = w + 128 * j;
        mxc_vi v0 = _mm512_load_si512(p), v1 = _mm512_load_si512(p + 64);
        if (N <= MXC_FEW) {
            mxc_prefetch(p + MXC_AHEAD);
            mxc_prefetch(p + 64 + MXC_AHEAD);
        }
        for (int c = 0; c < N; c++) {
            mxc_vi b = mxc_broadcast4(x + mxc_cell_offset(4 * j, c, N));
            d[0][c] = _mm512_dpbusd_epi32(d[0][c], v0, b);
            d[1][c] = _mm512_dpbusd_epi32(d[1][c], v1, b);
        }
    }
    mxc_scale_group(w + G * MXC_STRIP, d, sum, acc, N, affine);
}

MXC_INLINE void tile(const struct mxc_tile_i8 *t, mxc_vf acc[2][MXC_TILE_I8], const int N,
                     const int G, const bool affine) {
    const uint8_t *w = t->w;
    const int8_t *x = t->x;
    const int32_t *sum = t->sum;
    const int block = G * MXC_STRIP + (affine ? 2 : 1) * MXC_BLOCK_TAIL;
    const int at_once = G == 16 ? 2 : 1; /* groups of 16 share a cell */
    for (int64_t g = 0; g < t->n_groups; g += at_once) {
        for (int i = 0; i < at_once; i++)
            group(t, w + i * block, x + 16 * i, sum + N * i, acc, N, G, affine);
        w += at_once * block;
        x += N * G * at_once;
        sum += N * at_once;
    }
}

MXC_TILES_I8(tile, 16)
MXC_TILES_I8(tile, 32)
MXC_TILES_I8(tile, 64)

void mxc_avx512_matmul_i8(const struct mxc_packed *w, const struct mxc_activation *a,
                          int32_t strip0, int32_t strip1, float *out, size_t ld,
                          const struct mxc_epilogue *epilogue) {
    mxc_tile_i8_fn *const *tiles = w->affine ? tile_64_affine : tile_64_plain;
    if (w->group == 16)
        tiles = w->affine ? tile_16_affine : tile_16_plain;
    else if (w->group == 32)
        tiles = w->affine ? tile_32_affine : tile_32_plain;
    mxc_run_tiles_i8(tiles, w, a, strip0, strip1, out, ld, epilogue);
}
