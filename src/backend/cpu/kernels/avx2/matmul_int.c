/* Matmul I4 and I8, AVX2: vpmaddubsw in place of vpdpbusd. A tile is 16 rows of the weights x 2 or
 * 3 columns, or a whole strip x 1 column; a column's work and order are the same in all of them.
 *   I4: codes < 16, so the 16-bit sums of a cell (32 numbers) cannot overflow and are widened once.
 *   I8: codes - 128 as a sign on the activations and a magnitude, |128 * 127 * 2| < 2^15; the sums
 *       then miss 128 times the sum of the activations, which the start of the sum makes good. */
#include "backend/cpu/kernels/avx2/avx2.h"

enum { AHEAD = 4096, ROWS = 8 /* of a vector */, MOST = 3, VECTORS = MXC_STRIP / ROWS };

struct tile {
    const uint8_t *w;    /* strip, moved to the tile's first row */
    const int8_t *x;     /* codes: [cell][width][32], moved to the first column */
    const float *scale;  /* [cell][width], likewise */
    const int32_t *sum;  /* negated: [cell or half cell][width], likewise */
    const float *scaled; /* affine: [group][width], likewise */
    int64_t n_groups;
    size_t width;  /* columns of the prepared tile */
    size_t block;  /* bytes of a group */
    int32_t start; /* what the negated sum is multiplied with to begin the integer sum */
    float inverse_unit;
    float *out;
    size_t at, ld, column;
    int32_t n;
    const struct mxc_epilogue *epilogue;
};
typedef void tile_fn(const struct tile *t);

/* One cell of I4 codes: 4 steps of 128 bytes. */
MXC_INLINE void cell_i4(const uint8_t *w, const int8_t *x, mxc_vi d[VECTORS][MOST], const int N,
                        const int V) {
    const mxc_vi low = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    mxc_vi s[VECTORS][MOST];
    for (int j = 0; j < MXC_CELL_I8 / 8; j++, w += 4 * MXC_STRIP) {
        if (N == 1) {
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
                         const int n_steps, const int N, const int V) {
    const mxc_vi flip = _mm256_set1_epi8(-128), ones = _mm256_set1_epi16(1);
    for (int j = 0; j < n_steps; j++, w += 4 * MXC_STRIP) {
        if (N == 1) {
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

MXC_INLINE void tile(const struct tile *t, const int N, const int V, const int G, const bool affine,
                     const enum mxc_layout layout) {
    mxc_vf acc[VECTORS][MOST];
    for (int v = 0; v < V; v++)
        for (int c = 0; c < N; c++)
            acc[v][c] = _mm256_setzero_ps();
    const uint8_t *w = t->w;
    const int8_t *x = t->x;
    const int32_t *sum = t->sum;
    const float *scale = t->scale, *scaled = t->scaled;
    const ptrdiff_t cell = (ptrdiff_t)t->width * MXC_CELL_I8;
    const int codes = G * (layout == MXC_LAYOUT_I4 ? MXC_STRIP / 2 : MXC_STRIP);
    const int pieces = G == 64 ? 2 : 1; /* cells, or half a cell, under one weight scale */
    /* w is moved by 4 bytes a row, a scale has 2 */
    const ptrdiff_t to_scales = codes - 2 * (ptrdiff_t)(t->column % MXC_STRIP);
    for (int64_t g = 0; g < t->n_groups; g++) {
        const uint8_t *f = w + to_scales;
        for (int p = 0; p < pieces; p++) {
            mxc_vi d[VECTORS][MOST];
            for (int c = 0; c < N; c++)
                for (int v = 0; v < V; v++)
                    d[v][c] = layout == MXC_LAYOUT_I4 && affine
                                  ? _mm256_setzero_si256()
                                  : _mm256_set1_epi32(sum[c] * t->start);
            if (layout == MXC_LAYOUT_I4)
                cell_i4(w + p * codes / pieces, x, d, N, V);
            else
                steps_i8(w + p * codes / pieces, x, d, G == 16 ? 4 : 8, N, V);
            for (int v = 0; v < V; v++) {
                mxc_vf s = _mm256_cvtph_ps(_mm_load_si128((const void *)(f + 2 * ROWS * v)));
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
            const void *p = f + MXC_BLOCK_TAIL + 2 * ROWS * v;
            mxc_vf b = _mm256_cvtph_ps(_mm_load_si128(p));
            for (int c = 0; c < N; c++)
                acc[v][c] = _mm256_fnmadd_ps(b, _mm256_set1_ps(scaled[c]), acc[v][c]);
        }
        scaled += affine ? t->width : 0;
        w += t->block;
    }
    for (int c = 0; c < N; c++)
        for (int v = 0; v < V; v++)
            mxc_store(t->out, t->at + (size_t)c * t->ld + (size_t)(ROWS * v),
                      t->column + (size_t)(ROWS * v), t->n,
                      _mm256_mul_ps(acc[v][c], _mm256_set1_ps(t->inverse_unit)), t->epilogue);
}

#define TILE(name, N, V, G, affine, layout)                                                        \
    static __attribute__((noinline)) void name##_##N(const struct tile *t) {                       \
        tile(t, N, V, G, affine, layout);                                                          \
    }
#define TILES(name, G, affine, layout)                                                             \
    TILE(name, 1, 4, G, affine, layout)                                                            \
    TILE(name, 2, 2, G, affine, layout)                                                            \
    TILE(name, 3, 2, G, affine, layout)                                                            \
    static tile_fn *const name[] = {NULL, name##_1, name##_2, name##_3};
TILES(i4_32, 32, false, MXC_LAYOUT_I4)
TILES(i4_32_affine, 32, true, MXC_LAYOUT_I4)
TILES(i4_64_affine, 64, true, MXC_LAYOUT_I4)
TILES(i8_16, 16, false, MXC_LAYOUT_I8)
TILES(i8_32, 32, false, MXC_LAYOUT_I8)
TILES(i8_32_affine, 32, true, MXC_LAYOUT_I8)
TILES(i8_64_affine, 64, true, MXC_LAYOUT_I8)

static void run(tile_fn *const *tiles, const struct mxc_packed *w, const struct mxc_activation *a,
                int32_t strip0, int32_t strip1, float *out, size_t ld,
                const struct mxc_epilogue *epilogue) {
    struct mxc_i8_view view = mxc_i8_view(a);
    size_t cells = view.kp / MXC_CELL_I8;
    struct tile t = {.n_groups = w->k / w->group,
                     .block = mxc_block_bytes(w),
                     .start = w->layout == MXC_LAYOUT_I4 ? w->zero_point : w->zero_point - 128,
                     .inverse_unit = 1.0f / w->unit,
                     .out = out,
                     .ld = ld,
                     .n = w->n,
                     .epilogue = epilogue};
    for (int32_t s = strip0; s < strip1; s++)
        for (int32_t c0 = 0; c0 < a->m; c0 += MXC_TILE_I8) {
            int32_t width = mxc_tile_width(a, c0);
            t.width = (size_t)width;
            for (int32_t c = 0; c < width;) {
                int32_t n = width - c == 4 ? 2 : width - c < MOST ? width - c : MOST;
                size_t of32 = (size_t)c0 * cells;
                t.x = view.codes + of32 * MXC_CELL_I8 + c * MXC_CELL_I8;
                t.scale = view.scale + of32 + c;
                t.sum = (w->group == 16 ? view.sum16 + 2 * of32 : view.sum32 + of32) + c;
                t.scaled = (w->group == 32 ? view.scaled32 + of32 : view.scaled64 + of32 / 2) + c;
                for (size_t r = 0; r < MXC_STRIP; r += n == 1 ? MXC_STRIP : 16) {
                    t.w = w->data + (size_t)s * w->strip_bytes + 4 * r;
                    t.column = (size_t)s * MXC_STRIP + r;
                    t.at = (size_t)(c0 + c) * ld + t.column;
                    tiles[n](&t);
                }
                c += n;
            }
        }
}

void mxc_avx2_matmul_i4(const struct mxc_packed *w, const struct mxc_activation *a, int32_t strip0,
                        int32_t strip1, float *out, size_t ld,
                        const struct mxc_epilogue *epilogue) {
    tile_fn *const *tiles = w->group == 64 ? i4_64_affine : w->affine ? i4_32_affine : i4_32;
    run(tiles, w, a, strip0, strip1, out, ld, epilogue);
}

void mxc_avx2_matmul_i8(const struct mxc_packed *w, const struct mxc_activation *a, int32_t strip0,
                        int32_t strip1, float *out, size_t ld,
                        const struct mxc_epilogue *epilogue) {
    tile_fn *const *tiles = w->group == 64   ? i8_64_affine
                            : w->group == 16 ? i8_16
                            : w->affine      ? i8_32_affine
                                             : i8_32;
    run(tiles, w, a, strip0, strip1, out, ld, epilogue);
}
