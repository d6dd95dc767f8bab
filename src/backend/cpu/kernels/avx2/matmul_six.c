/* Matmul I6 and K6, AVX2: codes of six bits with vpmaddubsw. A tile is 16 rows of the weights x 2
 * or 3 columns, or a whole strip x 1 column; a column's work and order are the same in all of them.
 * Codes are below 64, so the 16-bit sums of four products (64 * 127 * 4 < 2^15) cannot overflow;
 * what widens them to 32 bits multiplies them with one (I6) or with the int8 scale (K6). */
#include "backend/cpu/kernels/avx2/avx2.h"
#include "backend/cpu/kernels/walk.h"

enum {
    AHEAD = 4096,
    ROWS = 8 /* of a vector */,
    MOST = 3,
    HALVES = 2,
    VECTORS = 2 /* of a half */
};

/* The two halves of a strip, or one, of VECTORS vectors of rows. */
#define EACH(h, v, H)                                                                              \
    for (int h = 0; h < (H); h++)                                                                  \
        for (int v = 0; v < VECTORS; v++)

/* d[c] += 16 codes of 8 rows, at p, times those of column c times the numbers of `weight`. */
MXC_INLINE void dot16(const uint8_t *p, const int8_t *x, const mxc_vi weight, mxc_vi d[MOST],
                      const int N) {
    const mxc_vi six = _mm256_set1_epi8(63);
    mxc_vi b[3], q[4];
    for (int j = 0; j < 3; j++) {
        b[j] = _mm256_load_si256((const void *)(p + 64 * j));
        q[j] = _mm256_and_si256(b[j], six);
        b[j] = _mm256_andnot_si256(six, b[j]);
    }
    q[3] = _mm256_or_si256(_mm256_srli_epi16(b[0], 6), _mm256_srli_epi16(b[1], 4));
    q[3] = _mm256_or_si256(q[3], _mm256_srli_epi16(b[2], 2));
    for (int c = 0; c < N; c++) {
        mxc_vi y[4];
        for (int j = 0; j < 4; j++)
            y[j] = _mm256_maddubs_epi16(q[j], mxc_broadcast4(x + c * MXC_CELL_I8 + 4 * j));
        for (int j = 0; j < 4; j += 2)
            d[c] =
                _mm256_add_epi32(d[c], _mm256_madd_epi16(_mm256_add_epi16(y[j], y[j + 1]), weight));
    }
}

/* The codes of a cell, of both halves: a tile that asks for this is the first over its strip. */
MXC_INLINE void fetch(const uint8_t *cell) {
    for (int i = 0; i < MXC_SIX_CELL; i += 64)
        mxc_prefetch(cell + AHEAD + i);
}

MXC_INLINE mxc_vf halves(const uint8_t *f) {
    return _mm256_cvtph_ps(_mm_load_si128((const void *)f));
}

MXC_INLINE void store(const struct mxc_int_tile *t, mxc_vf acc[HALVES][VECTORS][MOST], const int N,
                      const int H) {
    const mxc_vf unit = _mm256_set1_ps(t->inverse_unit);
    for (int c = 0; c < N; c++)
        EACH(h, v, H) {
            size_t row = (size_t)(16 * h + ROWS * v);
            mxc_store(t->out, t->at + (size_t)c * t->ld + row, t->column + row, t->matrix->n,
                      _mm256_mul_ps(acc[h][v][c], unit), t->epilogue);
        }
}

/* t->w is moved by 4 bytes a row; what is wanted is the strip, and how many rows were passed. */
MXC_INLINE const uint8_t *strip_of(const struct mxc_int_tile *t, int *half) {
    size_t row = t->column % MXC_STRIP;
    *half = row / 16 != 0;
    return t->w - 4 * row;
}

MXC_INLINE void tile_i6(const struct mxc_int_tile *t, const int N, const int H, const bool affine,
                        const bool ahead) {
    const mxc_vi ones = _mm256_set1_epi16(1);
    const int cells = t->matrix->group / MXC_CELL_I8, width = (int)t->width;
    int half;
    const uint8_t *w = strip_of(t, &half);
    const int8_t *x = t->x;
    const int32_t *sum = t->sum;
    const float *scale = t->scale, *scaled = t->scaled;
    mxc_vf acc[HALVES][VECTORS][MOST];
    EACH(h, v, H)
    for (int c = 0; c < N; c++)
        acc[h][v][c] = _mm256_setzero_ps();
    for (int64_t g = 0; g < t->n_groups; g++) {
        const uint8_t *f = w + cells * MXC_SIX_CELL + 32 * half, *p = w + MXC_SIX_HALF * half;
        for (int i = 0; i < cells; i++) {
            if (ahead)
                fetch(w + i * MXC_SIX_CELL);
            EACH(h, v, H) {
                const uint8_t *q = p + MXC_SIX_HALF * h + 32 * v;
                mxc_vf s = halves(f + 32 * h + 16 * v);
                mxc_vi d[MOST];
                for (int c = 0; c < N; c++)
                    d[c] = affine ? _mm256_setzero_si256() : _mm256_set1_epi32(sum[c] * t->start);
                dot16(q, x, ones, d, N);
                dot16(q + MXC_SIX_PIECE, x + 16, ones, d, N);
                for (int c = 0; c < N; c++) {
                    mxc_vf y = _mm256_mul_ps(_mm256_cvtepi32_ps(d[c]), _mm256_set1_ps(scale[c]));
                    acc[h][v][c] = _mm256_fmadd_ps(s, y, acc[h][v][c]);
                }
            }
            p += MXC_SIX_CELL;
            x += width * MXC_CELL_I8;
            sum += width;
            scale += width;
        }
        if (ahead) {
            mxc_prefetch(f + AHEAD);
            mxc_prefetch(f + AHEAD + MXC_BLOCK_TAIL);
        }
        if (affine) {
            EACH(h, v, H) {
                mxc_vf b = halves(f + MXC_BLOCK_TAIL + 32 * h + 16 * v);
                for (int c = 0; c < N; c++)
                    acc[h][v][c] = _mm256_fnmadd_ps(b, _mm256_set1_ps(scaled[c]), acc[h][v][c]);
            }
            scaled += width;
        }
        w += t->block;
    }
    store(t, acc, N, H);
}

/* 16 numbers of a cell: d[c] += scale * (codes - 32) * activations. s: scales of 8 rows. */
MXC_INLINE void piece_k6(const uint8_t *p, const uint8_t *scales, const int8_t *x,
                         const int32_t *sum, mxc_vi d[MOST], const int N) {
    mxc_vi s = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)scales));
    /* |sum| is below 2^11: its low half is the number, and the other half meets a zero */
    mxc_vi zero =
        _mm256_blend_epi16(_mm256_slli_epi32(s, MXC_K6_ZERO_LOG2), _mm256_setzero_si256(), 0xAA);
    for (int c = 0; c < N; c++)
        d[c] = _mm256_add_epi32(d[c], _mm256_madd_epi16(_mm256_set1_epi32(sum[c]), zero));
    dot16(p, x, _mm256_blend_epi16(s, _mm256_slli_epi32(s, 16), 0xAA), d, N);
}

MXC_INLINE void tile_k6(const struct mxc_int_tile *t, const int N, const int H, const bool affine,
                        const bool ahead) {
    (void)affine;
    const size_t width = t->width;
    int half;
    const uint8_t *w = strip_of(t, &half);
    const int8_t *x = t->x;
    const int32_t *sum = t->sum;
    const float *scale = t->scale;
    mxc_vf acc[HALVES][VECTORS][MOST], part[HALVES][VECTORS][MOST];
    EACH(h, v, H)
    for (int c = 0; c < N; c++)
        acc[h][v][c] = _mm256_setzero_ps();
    for (int32_t k = 0; k < t->matrix->k; k += MXC_K6_BLOCK) {
        const uint8_t *factors = w + 32 * half;
        w += MXC_BLOCK_TAIL;
        EACH(h, v, H)
        for (int c = 0; c < N; c++)
            part[h][v][c] = _mm256_setzero_ps();
        for (int i = 0; i < MXC_K6_BLOCK / MXC_CELL_I8; i++) {
            if (ahead) {
                mxc_prefetch(w + AHEAD);
                fetch(w + MXC_K6_SCALES);
            }
            EACH(h, v, H) {
                const uint8_t *scales = w + 32 * (half + h) + 8 * v;
                const uint8_t *p = w + MXC_K6_SCALES + MXC_SIX_HALF * (half + h) + 32 * v;
                mxc_vi d[MOST];
                for (int c = 0; c < N; c++)
                    d[c] = _mm256_setzero_si256();
                piece_k6(p, scales, x, sum, d, N);
                piece_k6(p + MXC_SIX_PIECE, scales + 16, x + 16, sum + width, d, N);
                for (int c = 0; c < N; c++)
                    part[h][v][c] = _mm256_fmadd_ps(_mm256_set1_ps(scale[c]),
                                                    _mm256_cvtepi32_ps(d[c]), part[h][v][c]);
            }
            w += MXC_K6_CELL;
            x += width * MXC_CELL_I8;
            sum += 2 * width;
            scale += width;
        }
        EACH(h, v, H) {
            mxc_vf f = halves(factors + 32 * h + 16 * v);
            for (int c = 0; c < N; c++)
                acc[h][v][c] = _mm256_fmadd_ps(f, part[h][v][c], acc[h][v][c]);
        }
    }
    store(t, acc, N, H);
}

#define TILE(name, N, H, ahead, tile, affine)                                                      \
    static __attribute__((noinline)) void name(const struct mxc_int_tile *t) {                     \
        tile(t, N, H, affine, ahead);                                                              \
    }
#define TILES(name, tile, affine)                                                                  \
    TILE(name##_1, 1, 2, true, tile, affine)                                                       \
    TILE(name##_2, 2, 1, false, tile, affine)                                                      \
    TILE(name##_3, 3, 1, false, tile, affine)                                                      \
    TILE(name##_2_ahead, 2, 1, true, tile, affine)                                                 \
    TILE(name##_3_ahead, 3, 1, true, tile, affine)                                                 \
    static mxc_int_tile_fn *const name[] = {NULL,     name##_1,       name##_2,                    \
                                            name##_3, name##_2_ahead, name##_3_ahead};
TILES(i6, tile_i6, false)
TILES(i6_affine, tile_i6, true)
TILES(k6, tile_k6, false)

static void run(mxc_int_tile_fn *const *tiles, const struct mxc_packed *w,
                const struct mxc_activation *a, int32_t strip0, int32_t strip1, float *out,
                size_t ld, const struct mxc_epilogue *epilogue) {
    struct mxc_int_walk walk = {.tiles = tiles,
                                .most = MOST,
                                .ahead = MOST - 1,
                                .tile_rows = 16,
                                .single_rows = MXC_STRIP,
                                .start = w->zero_point};
    mxc_walk_int(&walk, w, a, strip0, strip1, out, ld, epilogue);
}

void mxc_avx2_matmul_i6(const struct mxc_packed *w, const struct mxc_activation *a, int32_t strip0,
                        int32_t strip1, float *out, size_t ld,
                        const struct mxc_epilogue *epilogue) {
    run(w->affine ? i6_affine : i6, w, a, strip0, strip1, out, ld, epilogue);
}

void mxc_avx2_matmul_k6(const struct mxc_packed *w, const struct mxc_activation *a, int32_t strip0,
                        int32_t strip1, float *out, size_t ld,
                        const struct mxc_epilogue *epilogue) {
    run(k6, w, a, strip0, strip1, out, ld, epilogue);
}
