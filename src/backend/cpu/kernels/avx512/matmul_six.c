/* Matmul I6 and K6, AVX-512: codes of six bits times int8 activations with vpdpbusd. A tile is 32
 * rows of the weights x N columns, a half of the rows after the other inside every cell of 32
 * numbers; N = 1 is decode, N = 6 prefill, and both do the same work for a column in the same
 * order. I6: as I8 in matmul_int.c, to the bit: sums of a cell, to float, times the cell's scale,
 * then acc = fma(weight scale, that, acc), and with biases acc = fma(-bias, scaled sum, acc). K6:
 * as I8 in groups of 16, with factor * int8 scale for the weight scale, exact in f32. */
#include "backend/cpu/kernels/avx512/int_tile.h"

/* Keeps a compiler from loading the numbers of all columns once for both halves of the rows: they
 * do not fit the registers (I6 with many columns: 20 %). */
MXC_INLINE const void *afresh(const void *p) {
    __asm__ volatile("" : "+r"(p));
    return p;
}

/* e[c] += 16 codes of 16 rows, at p, times those of column c. */
MXC_INLINE void dot16(const uint8_t *p, const int8_t *x, mxc_vi e[WIDE], const int N,
                      const bool ahead, const ptrdiff_t distance) {
    enum { SELECT = 0xCA }; /* of the second where the first has ones, else of the third */
    const mxc_vi two = _mm512_set1_epi8(3), four = _mm512_set1_epi8(15), six = _mm512_set1_epi8(63);
    mxc_vi b[3], v[4];
    for (int j = 0; j < 3; j++) {
        b[j] = _mm512_load_si512(p + 64 * j);
        if (ahead)
            fetch(N, p + 64 * j + distance);
        v[j] = _mm512_and_si512(b[j], six);
    }
    v[3] = _mm512_ternarylogic_epi32(two, _mm512_srli_epi16(b[0], 6), _mm512_srli_epi16(b[1], 4),
                                     SELECT);
    v[3] = _mm512_ternarylogic_epi32(four, v[3], _mm512_srli_epi16(b[2], 2), SELECT);
    v[3] = _mm512_and_si512(v[3], six);
    for (int j = 0; j < 4; j++)
        for (int c = 0; c < N; c++)
            e[c] = _mm512_dpbusd_epi32(e[c], v[j], mxc_broadcast4(x + c * MXC_CELL_I8 + 4 * j));
}

/* A negated sum times the zero point, where integer sums begin. A shift leaves the multiply pipes
 * to vpdpbusd (I6 with many columns: 6 %). */
MXC_INLINE mxc_vi times_zero(int32_t sum, const unsigned log2) {
    return _mm512_slli_epi32(_mm512_set1_epi32(sum), log2);
}

/* Scales, biases or factors of 16 rows. */
MXC_INLINE mxc_vf halves(const uint8_t *f) {
    return _mm512_cvtph_ps(_mm256_load_si256((const void *)f));
}

MXC_INLINE void store(const struct tile *t, mxc_vf acc[2][WIDE], const int N) {
    const mxc_vf unit = _mm512_set1_ps(t->inverse_unit);
    for (int c = 0; c < N; c++)
        for (size_t h = 0; h < 2; h++)
            mxc_store(t->out, t->at + (size_t)c * t->ld + 16 * h, t->column + 16 * h, t->n,
                      _mm512_mul_ps(acc[h][c], unit), t->epilogue);
}

/* Integer sums of one cell, of half a strip at p. */
MXC_INLINE void cell_i6(const uint8_t *p, const int8_t *x, const int32_t *sum, mxc_vi e[WIDE],
                        const int N, const bool affine, const bool ahead,
                        const ptrdiff_t distance) {
    for (int c = 0; c < N; c++)
        e[c] = affine ? _mm512_setzero_si512() : times_zero(sum[c], MXC_I6_ZERO_LOG2);
    dot16(p, x, e, N, ahead, distance);
    dot16(p + MXC_SIX_PIECE, x + 16, e, N, ahead, distance);
}

MXC_INLINE void tile_i6(const struct tile *t, const int N, const int G, const bool affine,
                        const bool ahead) {
    const int code_bytes = G / MXC_CELL_I8 * MXC_SIX_CELL;
    const uint8_t *w = t->w;
    const int8_t *x = t->x;
    const int32_t *sum = t->sum;
    const float *scale = t->scale, *scaled = t->scaled;
    mxc_vf acc[2][WIDE];
    for (int c = 0; c < N; c++)
        acc[0][c] = acc[1][c] = _mm512_setzero_ps();
    for (int64_t g = 0; g < t->n_blocks; g++) {
        const ptrdiff_t distance = AHEAD + (ahead && w + AHEAD >= t->end ? t->jump : 0);
        const uint8_t *f = w + code_bytes;
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            const uint8_t *p = w + MXC_SIX_HALF * h;
            const int8_t *xh = afresh(x);
            sum = afresh(sum);
            mxc_vf y[WIDE], s = halves(f + 32 * h);
            mxc_vi e[WIDE];
            cell_i6(p, xh, sum, e, N, affine, ahead, distance);
            for (int c = 0; c < N; c++)
                y[c] = _mm512_mul_ps(_mm512_cvtepi32_ps(e[c]), _mm512_set1_ps(scale[c]));
            if (G == 64) { /* a second cell under the same scale */
                cell_i6(p + MXC_SIX_CELL, xh + N * MXC_CELL_I8, sum + N, e, N, affine, ahead,
                        distance);
                for (int c = 0; c < N; c++)
                    y[c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(e[c]), _mm512_set1_ps(scale[N + c]),
                                           y[c]);
            }
            if (ahead && !h)
                fetch(N, f + distance);
            if (ahead && h && affine)
                fetch(N, f + MXC_BLOCK_TAIL + distance);
            for (int c = 0; c < N; c++)
                acc[h][c] = _mm512_fmadd_ps(s, y[c], acc[h][c]);
            if (affine) {
                mxc_vf b = halves(f + MXC_BLOCK_TAIL + 32 * h);
                for (int c = 0; c < N; c++)
                    acc[h][c] = _mm512_fnmadd_ps(b, _mm512_set1_ps(scaled[c]), acc[h][c]);
            }
        }
        w += code_bytes + (affine ? 2 : 1) * MXC_BLOCK_TAIL;
        x += N * G;
        sum += N * (G / MXC_CELL_I8);
        scale += N * (G / MXC_CELL_I8);
        scaled += affine ? N : 0;
    }
    store(t, acc, N);
}

/* One cell: acc[h][c] += its numbers. d: factors of the rows. */
MXC_INLINE void cell_k6(const uint8_t *w, const int8_t *x, const int32_t *sum, const float *scale,
                        const uint8_t *factors, mxc_vf acc[2][WIDE], const int N, const bool ahead,
                        const ptrdiff_t distance) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
        const int8_t *xh = afresh(x);
        sum = afresh(sum);
        mxc_vf y[WIDE] = {{0}}, d = halves(factors + 32 * h);
#pragma GCC unroll 2
        for (int g = 0; g < 2; g++) {
            const __m128i *p = (const void *)(w + 32 * h + 16 * g);
            mxc_vf s = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_load_si128(p)));
            mxc_vi e[WIDE];
            s = _mm512_mul_ps(d, s);
            for (int c = 0; c < N; c++)
                e[c] = times_zero(sum[g * N + c], MXC_K6_ZERO_LOG2);
            dot16(w + MXC_K6_SCALES + MXC_SIX_HALF * h + MXC_SIX_PIECE * g, xh + 16 * g, e, N,
                  ahead, distance);
            for (int c = 0; c < N; c++) {
                mxc_vf z = _mm512_cvtepi32_ps(e[c]);
                y[c] = g ? _mm512_fmadd_ps(s, z, y[c]) : _mm512_mul_ps(s, z);
            }
        }
        for (int c = 0; c < N; c++)
            acc[h][c] = _mm512_fmadd_ps(_mm512_set1_ps(scale[c]), y[c], acc[h][c]);
    }
}

MXC_INLINE void tile_k6(const struct tile *t, const int N, const bool ahead) {
    const uint8_t *w = t->w;
    const int8_t *x = t->x;
    const int32_t *sum = t->sum;
    const float *scale = t->scale;
    mxc_vf acc[2][WIDE];
    for (int c = 0; c < N; c++)
        acc[0][c] = acc[1][c] = _mm512_setzero_ps();
    for (int64_t b = 0; b < t->n_blocks; b++) {
        const uint8_t *factors = w;
        if (ahead)
            fetch(N, w + AHEAD + (w + AHEAD >= t->end ? t->jump : 0));
        w += MXC_BLOCK_TAIL;
        for (int i = 0; i < MXC_K6_BLOCK / MXC_CELL_I8; i++) {
            const ptrdiff_t distance = AHEAD + (ahead && w + AHEAD >= t->end ? t->jump : 0);
            if (ahead)
                fetch(N, w + distance);
            cell_k6(w, x, sum, scale, factors, acc, N, ahead, distance);
            w += MXC_K6_CELL;
            x += N * MXC_CELL_I8;
            sum += 2 * N;
            scale += N;
        }
    }
    store(t, acc, N);
}

#define TILE(name, N, ahead, call)                                                                 \
    static __attribute__((noinline)) void name(const struct tile *t) {                             \
        call(t, N, ahead);                                                                         \
    }
#define TILES(name, call)                                                                          \
    TILE(name##_1, 1, true, call)                                                                  \
    TILE(name##_2, 2, true, call)                                                                  \
    TILE(name##_3, 3, true, call)                                                                  \
    TILE(name##_4, 4, true, call)                                                                  \
    TILE(name##_5, 5, false, call)                                                                 \
    TILE(name##_6, 6, false, call)                                                                 \
    TILE(name##_5_ahead, 5, true, call)                                                            \
    TILE(name##_6_ahead, 6, true, call)                                                            \
    static tile_fn *const name[] = {NULL,     name##_1, name##_2,       name##_3,      name##_4,   \
                                    name##_5, name##_6, name##_5_ahead, name##_6_ahead};
#define I6_32(t, N, ahead)        tile_i6(t, N, 32, false, ahead)
#define I6_64(t, N, ahead)        tile_i6(t, N, 64, false, ahead)
#define I6_32_AFFINE(t, N, ahead) tile_i6(t, N, 32, true, ahead)
#define I6_64_AFFINE(t, N, ahead) tile_i6(t, N, 64, true, ahead)
TILES(i6_32, I6_32)
TILES(i6_64, I6_64)
TILES(i6_32_affine, I6_32_AFFINE)
TILES(i6_64_affine, I6_64_AFFINE)
TILES(k6, tile_k6)

static void run(tile_fn *const *tiles, const struct mxc_packed *w, const struct mxc_activation *a,
                int32_t strip0, int32_t strip1, float *out, size_t ld,
                const struct mxc_epilogue *epilogue) {
    struct tile t = {.out = out, .ld = ld, .epilogue = epilogue};
    walk(tiles, &t, w, a, strip0, strip1);
}

void mxc_avx512_matmul_i6(const struct mxc_packed *w, const struct mxc_activation *a,
                          int32_t strip0, int32_t strip1, float *out, size_t ld,
                          const struct mxc_epilogue *epilogue) {
    tile_fn *const *plain = w->group == 32 ? i6_32 : i6_64;
    tile_fn *const *affine = w->group == 32 ? i6_32_affine : i6_64_affine;
    run(w->affine ? affine : plain, w, a, strip0, strip1, out, ld, epilogue);
}

void mxc_avx512_matmul_k6(const struct mxc_packed *w, const struct mxc_activation *a,
                          int32_t strip0, int32_t strip1, float *out, size_t ld,
                          const struct mxc_epilogue *epilogue) {
    run(k6, w, a, strip0, strip1, out, ld, epilogue);
}
