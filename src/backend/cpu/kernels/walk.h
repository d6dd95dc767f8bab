/* Walk: how a product of an integer matrix goes over its output in tiles of rows x columns, and
 * what a tile is told. In: packed strips, prepared I8 activations, the tiles of a level. Out: every
 * output number is in one tile that was called. Shared by the levels that split a strip into tiles
 * of fewer rows: AVX2, NEON, I8MM.
 * Invariant: which tile a column falls into depends on the number of columns, so all tiles of a
 * level must give a column the same bits. */
#ifndef MXC_BACKEND_CPU_KERNELS_WALK_H
#define MXC_BACKEND_CPU_KERNELS_WALK_H

#include "backend/cpu/kernels/layout.h"

struct mxc_int_tile {
    const uint8_t *w;    /* strip, moved to the tile's first row */
    const int8_t *x;     /* codes: [cell][width][32], moved to the first column */
    const float *scale;  /* [cell][width], likewise */
    const int32_t *sum;  /* negated: [cell or half cell][width], likewise */
    const float *scaled; /* affine, groups of 32 and 64: [group][width], likewise */
    int64_t n_groups;
    const struct mxc_packed *matrix;
    size_t width;  /* columns of the prepared tile */
    size_t block;  /* bytes of a group */
    int32_t start; /* what the negated sum is multiplied with to begin the integer sum */
    float inverse_unit;
    float *out;
    size_t at, ld, column; /* of the first output: its place, from a row to the next, output row */
    const struct mxc_epilogue *epilogue;
};
typedef void mxc_int_tile_fn(const struct mxc_int_tile *t);

struct mxc_int_walk {
    mxc_int_tile_fn *const *tiles;  /* by columns, 1 to most */
    int32_t most;                   /* columns of a tile, 3 or more */
    int32_t ahead;                  /* tiles[n + ahead] prefetches, for n > 1 columns; 0: no such */
    int32_t tile_rows, single_rows; /* output rows of a tile; of a tile of one column */
    int32_t start;
};

/* A strip stays in L1 or L2 while the activations stream past it. */
static inline void mxc_walk_int(const struct mxc_int_walk *walk, const struct mxc_packed *w,
                                const struct mxc_activation *a, int32_t strip0, int32_t strip1,
                                float *out, size_t ld, const struct mxc_epilogue *epilogue) {
    struct mxc_i8_view view = mxc_i8_view(a);
    size_t cells = view.kp / MXC_CELL_I8;
    struct mxc_int_tile t = {.n_groups = w->k / w->group,
                             .matrix = w,
                             .block = mxc_block_bytes(w),
                             .start = walk->start,
                             .inverse_unit = 1.0f / w->unit,
                             .out = out,
                             .ld = ld,
                             .epilogue = epilogue};
    for (int32_t s = strip0; s < strip1; s++)
        for (int32_t c0 = 0; c0 < a->m; c0 += MXC_TILE_I8) {
            int32_t width = mxc_tile_width(a, c0);
            t.width = (size_t)width;
            for (int32_t c = 0, n; c < width; c += n) {
                n = width - c < walk->most ? width - c : walk->most;
                if (width - c == walk->most + 1) /* a single column costs more than its share */
                    n = walk->most - 1;
                bool first = !c0 && !c; /* the weights come from memory */
                size_t of32 = (size_t)c0 * cells;
                t.x = view.codes + of32 * MXC_CELL_I8 + c * MXC_CELL_I8;
                t.scale = view.scale + of32 + c;
                t.sum = (w->group == 16 ? view.sum16 + 2 * of32 : view.sum32 + of32) + c;
                t.scaled = (w->group == 32 ? view.scaled32 + of32 : view.scaled64 + of32 / 2) + c;
                size_t rows = (size_t)(n == 1 ? walk->single_rows : walk->tile_rows);
                for (size_t r = 0; r < MXC_STRIP; r += rows) {
                    t.w = w->data + (size_t)s * w->strip_bytes + 4 * r;
                    t.column = (size_t)s * MXC_STRIP + r;
                    t.at = (size_t)(c0 + c) * ld + t.column;
                    walk->tiles[n > 1 && first && !r ? n + walk->ahead : n](&t);
                }
            }
        }
}

#endif
