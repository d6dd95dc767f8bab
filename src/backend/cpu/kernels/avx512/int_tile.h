/* Int tile: what a tile of an integer matrix is told, AVX-512, and how a product goes over its
 * tiles. In: packed strips, prepared I8 activations, the tiles of a layout. Out: every output
 * number is in one tile that was called. Shared by the layouts of 4, 8 and 6 bits. */
#ifndef MXC_BACKEND_CPU_KERNELS_AVX512_INT_TILE_H
#define MXC_BACKEND_CPU_KERNELS_AVX512_INT_TILE_H

#include "backend/cpu/kernels/avx512/avx512.h"

/* Weights that come from memory (a strip's first tile; always where columns are few) are prefetched
 * AHEAD bytes ahead of use. */
enum { WIDE = MXC_TILE_I8, FEW = 4, AHEAD = 7680 };

struct tile {
    const uint8_t *w;   /* strip */
    const uint8_t *end; /* of the last strip; what is prefetched behind it is moved by `jump` */
    ptrdiff_t jump;
    const int8_t *x;     /* codes: [cell][column][32] */
    const float *scale;  /* [cell][column] */
    const int32_t *sum;  /* negated, [cell or half cell][column] */
    const float *scaled; /* affine: [group][column] */
    int64_t n_blocks;
    const int8_t *table; /* N4 */
    int32_t zero_point;
    float inverse_unit;
    float *out;
    size_t at, ld, column; /* of the first output */
    int32_t n;
    const struct mxc_epilogue *epilogue;
};
typedef void tile_fn(const struct tile *t);

/* To L2 where many columns leave time for the rest of the way. */
MXC_INLINE void fetch(const int N, const void *p) {
    if (N <= FEW)
        mxc_prefetch(p);
    else
        mxc_prefetch_l2(p);
}

/* Calls the tile of every strip and group of columns. In *t: out, ld, epilogue, and what the tiles
 * of a layout want. tiles: by columns, and WIDE - FEW more with more than FEW, which prefetch. A
 * strip stays in L1 or L2 while the activations stream past it. */
static inline void walk(tile_fn *const *tiles, struct tile *t, const struct mxc_packed *w,
                        const struct mxc_activation *a, int32_t strip0, int32_t strip1) {
    struct mxc_i8_view v = mxc_i8_view(a);
    size_t cells = v.kp / MXC_CELL_I8;
    t->n_blocks = w->k / mxc_block_numbers(w);
    t->inverse_unit = 1.0f / w->unit;
    t->n = w->n;
    t->end = w->data + (size_t)strip1 * w->strip_bytes;
    t->jump = w->next ? mxc_jump(t->end, w->next) : 0;
    for (int32_t s = strip0; s < strip1; s++) {
        t->w = w->data + (size_t)s * w->strip_bytes;
        t->column = (size_t)s * MXC_STRIP;
        for (int32_t c = 0; c < a->m; c += WIDE) {
            size_t of32 = (size_t)c * cells;
            t->x = v.codes + of32 * MXC_CELL_I8;
            t->scale = v.scale + of32;
            t->sum = w->group == 16 ? v.sum16 + 2 * of32 : v.sum32 + of32;
            t->scaled = w->group == 32 ? v.scaled32 + of32 : v.scaled64 + of32 / 2;
            t->at = (size_t)c * t->ld + t->column;
            int32_t width = mxc_tile_width(a, c);
            tiles[width > FEW && !c ? width + WIDE - FEW : width](t);
        }
    }
}

#endif
