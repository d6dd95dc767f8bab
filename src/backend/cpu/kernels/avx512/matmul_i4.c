/* Matmul I4, AVX-512: 4-bit codes times int8 activations with vpdpbusd. A tile is 32 rows of the
 * weights x N columns (rows of activations); N = 1 is decode, N = 6 prefill, and both do the same
 * work for a column in the same order. Per group: integer sums (exact), then
 * acc = fma(scale, sum, acc) and, when affine, acc = fma(-bias, negated sum of activations, acc).
 */
#include "backend/cpu/kernels/avx512/avx512.h"
#include "backend/cpu/kernels/avx512/tile_i8.h"

MXC_INLINE void tile(const struct mxc_tile_i8 *t, mxc_vf acc[2][MXC_TILE_I8], const int N,
                     const int G, const bool affine) {
    const uint8_t *w = t->w;
    const int8_t *x = t->x;
    const int32_t *sum = t->sum;
    const mxc_vi low = _mm512_set1_epi8(15), zero_point = _mm512_set1_epi32(t->zero_point);
    const int codes = G * MXC_STRIP / 2;
    for (int64_t g = 0; g < t->n_groups; g++) {
        mxc_vi d[2][MXC_TILE_I8];
        for (int c = 0; c < N; c++) {
            d[0][c] = affine ? _mm512_setzero_si512()
                             : _mm512_mullo_epi32(_mm512_set1_epi32(sum[c]), zero_point);
            d[1][c] = d[0][c];
        }
#pragma GCC unroll 16
        for (int j = 0; j < G / 4; j++) {
            mxc_vi v[2];
            for (int h = 0; h < 2; h++) {
                const uint8_t *p = w + 128 * (j / 2) + 64 * h;
                mxc_vi q = _mm512_load_si512(p);
                if (N <= MXC_FEW && !(j & 1))
                    mxc_prefetch(p + MXC_AHEAD);
                v[h] = _mm512_and_si512(j & 1 ? _mm512_srli_epi16(q, 4) : q, low);
            }
            for (int c = 0; c < N; c++) {
                mxc_vi b = mxc_broadcast4(x + mxc_cell_offset(4 * j, c, N));
                d[0][c] = _mm512_dpbusd_epi32(d[0][c], v[0], b);
                d[1][c] = _mm512_dpbusd_epi32(d[1][c], v[1], b);
            }
        }
        mxc_scale_group(w + codes, d, sum, acc, N, affine);
        w += codes + (affine ? 2 : 1) * MXC_BLOCK_TAIL;
        x += N * G;
        sum += N;
    }
}

MXC_TILES_I8(tile, 32)
MXC_TILES_I8(tile, 64)

void mxc_avx512_matmul_i4(const struct mxc_packed *w, const struct mxc_activation *a,
                          int32_t strip0, int32_t strip1, float *out, size_t ld,
                          const struct mxc_epilogue *epilogue) {
    mxc_tile_i8_fn *const *tiles = w->group == 32 ? (w->affine ? tile_32_affine : tile_32_plain)
                                                  : (w->affine ? tile_64_affine : tile_64_plain);
    mxc_run_tiles_i8(tiles, w, a, strip0, strip1, out, ld, epilogue);
}
