/* What the I4 and I8 matmuls share: the job of one tile, group scaling, the walk over strips and
 * column tiles. */
#ifndef MXC_BACKEND_CPU_KERNELS_AVX512_TILE_I8_H
#define MXC_BACKEND_CPU_KERNELS_AVX512_TILE_I8_H

#include "backend/cpu/kernels/avx512/avx512.h"

#include <string.h>

/* With few columns the weights come from memory: prefetch this many bytes ahead of use. */
enum { MXC_FEW = 4, MXC_AHEAD = 7680 };

struct mxc_tile_i8 {
    const uint8_t *w;   /* strip */
    const int8_t *x;    /* tile of codes: [cell][column][32] */
    const int32_t *sum; /* negated sums: [group][column] */
    int64_t n_groups;
    int32_t zero_point;
    /* where the outputs go */
    const float *scale; /* [column] */
    float inverse_unit;
    float *out;
    size_t at, ld, column; /* of the first output */
    int32_t n;
    const struct mxc_epilogue *epilogue;
};
typedef void mxc_tile_i8_fn(const struct mxc_tile_i8 *t);

/* Four codes of a column in every lane. */
MXC_INLINE mxc_vi mxc_broadcast4(const int8_t *x) {
    int32_t four;
    memcpy(&four, x, sizeof four);
    return _mm512_set1_epi32(four);
}

/* Number e of a group in column c of N: cells of 32. */
MXC_INLINE int mxc_cell_offset(int e, int c, int N) {
    return (e / MXC_CELL_I8 * N + c) * MXC_CELL_I8 + e % MXC_CELL_I8;
}

/* f: 32 scales, then 32 biases when affine. */
MXC_INLINE void mxc_scale_group(const uint8_t *f, mxc_vi d[2][MXC_TILE_I8], const int32_t *sum,
                                mxc_vf acc[2][MXC_TILE_I8], const int N, const bool affine) {
    if (N <= MXC_FEW) {
        mxc_prefetch(f + MXC_AHEAD);
        if (affine)
            mxc_prefetch(f + MXC_BLOCK_TAIL + MXC_AHEAD);
    }
    for (int h = 0; h < 2; h++) {
        mxc_vf s = _mm512_cvtph_ps(_mm256_load_si256((const void *)(f + 32 * h)));
        for (int c = 0; c < N; c++)
            acc[h][c] = _mm512_fmadd_ps(s, _mm512_cvtepi32_ps(d[h][c]), acc[h][c]);
    }
    if (!affine)
        return;
    mxc_vf b0 = _mm512_cvtph_ps(_mm256_load_si256((const void *)(f + MXC_BLOCK_TAIL)));
    mxc_vf b1 = _mm512_cvtph_ps(_mm256_load_si256((const void *)(f + MXC_BLOCK_TAIL + 32)));
    for (int c = 0; c < N; c++) {
        mxc_vf t = _mm512_cvtepi32_ps(_mm512_set1_epi32(sum[c]));
        acc[0][c] = _mm512_fnmadd_ps(b0, t, acc[0][c]);
        acc[1][c] = _mm512_fnmadd_ps(b1, t, acc[1][c]);
    }
}

MXC_INLINE void mxc_store_i8(const struct mxc_tile_i8 *t, mxc_vf acc[2][MXC_TILE_I8], const int N) {
    for (int c = 0; c < N; c++) {
        mxc_vf scale = _mm512_set1_ps(t->scale[c] * t->inverse_unit);
        for (int h = 0; h < 2; h++)
            mxc_store(t->out, t->at + (size_t)c * t->ld + 16 * (size_t)h,
                      t->column + 16 * (size_t)h, t->n, _mm512_mul_ps(acc[h][c], scale),
                      t->epilogue);
    }
}

/* Functions tile_<G>_<plain|affine>[N] made from the template `tile`. */
#define MXC_TILE_I8_ONE(tile, G, kind, affine, N)                                                  \
    static __attribute__((noinline)) void tile##_##G##_##kind##_##N(const struct mxc_tile_i8 *t) { \
        mxc_vf acc[2][MXC_TILE_I8];                                                                \
        for (int c = 0; c < N; c++)                                                                \
            acc[0][c] = acc[1][c] = _mm512_setzero_ps();                                           \
        tile(t, acc, N, G, affine);                                                                \
        mxc_store_i8(t, acc, N);                                                                   \
    }
#define MXC_TILES_I8_KIND(tile, G, kind, affine)                                                   \
    MXC_TILE_I8_ONE(tile, G, kind, affine, 1)                                                      \
    MXC_TILE_I8_ONE(tile, G, kind, affine, 2)                                                      \
    MXC_TILE_I8_ONE(tile, G, kind, affine, 3)                                                      \
    MXC_TILE_I8_ONE(tile, G, kind, affine, 4)                                                      \
    MXC_TILE_I8_ONE(tile, G, kind, affine, 5)                                                      \
    MXC_TILE_I8_ONE(tile, G, kind, affine, 6)                                                      \
    static mxc_tile_i8_fn *const tile##_##G##_##kind[] = {                                         \
        NULL,                                                                                      \
        tile##_##G##_##kind##_1,                                                                   \
        tile##_##G##_##kind##_2,                                                                   \
        tile##_##G##_##kind##_3,                                                                   \
        tile##_##G##_##kind##_4,                                                                   \
        tile##_##G##_##kind##_5,                                                                   \
        tile##_##G##_##kind##_6,                                                                   \
    };
#define MXC_TILES_I8(tile, G)                                                                      \
    MXC_TILES_I8_KIND(tile, G, plain, false)                                                       \
    MXC_TILES_I8_KIND(tile, G, affine, true)

/* A strip stays in L1 or L2 while the activations stream past it. */
static inline void mxc_run_tiles_i8(mxc_tile_i8_fn *const *tiles, const struct mxc_packed *w,
                                    const struct mxc_activation *a, int32_t strip0, int32_t strip1,
                                    float *out, size_t ld, const struct mxc_epilogue *epilogue) {
    struct mxc_i8_view v = mxc_i8_view(a);
    size_t groups = (size_t)(w->k / w->group), sums_of_row = v.kp / (size_t)w->group;
    struct mxc_tile_i8 t = {.n_groups = (int64_t)groups,
                            .zero_point = w->zero_point,
                            .inverse_unit = 1.0f / w->unit,
                            .out = out,
                            .ld = ld,
                            .n = w->n,
                            .epilogue = epilogue};
    for (int32_t s = strip0; s < strip1; s++) {
        t.w = w->data + (size_t)s * w->strip_bytes;
        t.column = (size_t)s * MXC_STRIP;
        for (int32_t c = 0; c < a->m; c += MXC_TILE_I8) {
            t.x = v.codes + (size_t)c * v.kp;
            t.sum = v.sums[mxc_sum_index(w->group)] + (size_t)c * sums_of_row;
            t.scale = v.scale + c;
            t.at = (size_t)c * ld + t.column;
            tiles[mxc_tile_width(a, c)](&t);
        }
    }
}

#endif
