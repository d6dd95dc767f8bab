/* Matrix products with BF16, F32 and F16 weights, AVX-512.
 * In: packed strips of 32 output rows, prepared tiles of up to 12 columns. Out: those columns of
 * the output, through the epilogue.
 * One template makes all kernels, 32 rows x N columns with N from 1 (decode) to 12 (prefill); up to
 * 4 columns wait for weights and therefore prefetch. With more, the tiles of a strip share out the
 * next strip: each brings a piece of it into the second cache, so that no tile waits for memory.
 * Invariant: each output has one f32 accumulator that visits K in order (bf16: in pairs, by
 * vdpbf16ps), so a column's bits do not depend on N. */
#include "backend/cpu/kernels/avx512/avx512.h"

#include <string.h>

enum { FEW = 4, AHEAD = 8192, WIDE = 12, MOST = 512 << 10 };

struct tile {
    const uint8_t *w;   /* strip */
    const uint8_t *end; /* of the last strip; what is prefetched behind it is moved by `jump` */
    ptrdiff_t jump;
    const uint8_t
        *ahead; /* more than FEW columns: what to bring, `lines` every 16 steps, up to ... */
    const uint8_t *ahead_end;
    int lines;
    const uint8_t *x; /* tile of activations: [cell of 64 bytes][column] */
    int64_t steps;    /* of K: pairs (bf16) or numbers */
    float *out;
    size_t at, ld, column;
    int32_t n;
    const struct mxc_epilogue *epilogue;
};
typedef void tile_fn(const struct tile *t);

/* One step of K: one 32-bit element of each column. */
MXC_INLINE void step(const uint8_t *w, const uint8_t *x, mxc_vf acc[2][WIDE], const int N,
                     const enum mxc_layout layout) {
    if (layout == MXC_LAYOUT_BF16) {
        mxc_vi v0 = _mm512_load_si512(w), v1 = _mm512_load_si512(w + 64);
        MXC_UNROLL
        for (int c = 0; c < N; c++) {
            int32_t pair;
            memcpy(&pair, x + 64 * c, sizeof pair);
            mxc_vi b = _mm512_set1_epi32(pair);
            acc[0][c] = _mm512_dpbf16_ps(acc[0][c], (__m512bh)v0, (__m512bh)b);
            acc[1][c] = _mm512_dpbf16_ps(acc[1][c], (__m512bh)v1, (__m512bh)b);
        }
        return;
    }
    mxc_vf v0, v1;
    if (layout == MXC_LAYOUT_F32) {
        v0 = _mm512_load_ps(w);
        v1 = _mm512_load_ps(w + 64);
    } else {
        v0 = _mm512_cvtph_ps(_mm256_load_si256((const void *)w));
        v1 = _mm512_cvtph_ps(_mm256_load_si256((const void *)(w + 32)));
    }
    MXC_UNROLL
    for (int c = 0; c < N; c++) {
        float number;
        memcpy(&number, x + 64 * c, sizeof number);
        mxc_vf b = _mm512_set1_ps(number);
        acc[0][c] = _mm512_fmadd_ps(v0, b, acc[0][c]);
        acc[1][c] = _mm512_fmadd_ps(v1, b, acc[1][c]);
    }
}

MXC_INLINE void tile(const struct tile *t, const int N, const enum mxc_layout layout) {
    const int bytes = layout == MXC_LAYOUT_F16 ? 64 : 128; /* of weights, one step */
    const uint8_t *w = t->w, *x = t->x, *ahead = t->ahead, *const ahead_end = t->ahead_end;
    const int lines = t->lines;
    mxc_vf acc[2][WIDE];
    MXC_UNROLL
    for (int c = 0; c < N; c++)
        acc[0][c] = acc[1][c] = _mm512_setzero_ps();
    int64_t left = t->steps;
    for (; left >= 16; left -= 16, x += 64 * N) {
        const ptrdiff_t distance = AHEAD + (N <= FEW && w + AHEAD >= t->end ? t->jump : 0);
        for (int i = 0; N > FEW && i < lines && ahead < ahead_end; i++, ahead += 64)
            mxc_prefetch_l2(ahead);
#pragma GCC unroll 4
        for (int j = 0; j < 16; j++, w += bytes) {
            if (N <= FEW) {
                mxc_prefetch(w + distance);
                if (bytes == 128)
                    mxc_prefetch(w + distance + 64);
            }
            step(w, x + 4 * j, acc, N, layout);
        }
    }
    for (int64_t j = 0; j < left; j++, w += bytes)
        step(w, x + 4 * j, acc, N, layout);
    MXC_UNROLL
    for (int c = 0; c < N; c++) {
        MXC_UNROLL
        for (size_t h = 0; h < 2; h++)
            mxc_store(t->out, t->at + (size_t)c * t->ld + 16 * h, t->column + 16 * h, t->n,
                      acc[h][c], t->epilogue);
    }
}

#define TILE(name, layout, N)                                                                      \
    static __attribute__((noinline)) void name##_##N(const struct tile *t) {                       \
        tile(t, N, layout);                                                                        \
    }
#define TILES(name, layout)                                                                        \
    TILE(name, layout, 1)                                                                          \
    TILE(name, layout, 2)                                                                          \
    TILE(name, layout, 3)                                                                          \
    TILE(name, layout, 4)                                                                          \
    TILE(name, layout, 5)                                                                          \
    TILE(name, layout, 6)                                                                          \
    TILE(name, layout, 7)                                                                          \
    TILE(name, layout, 8)                                                                          \
    TILE(name, layout, 9)                                                                          \
    TILE(name, layout, 10)                                                                         \
    TILE(name, layout, 11)                                                                         \
    TILE(name, layout, 12)                                                                         \
    static tile_fn *const name[] = {NULL,      name##_1,  name##_2, name##_3, name##_4,            \
                                    name##_5,  name##_6,  name##_7, name##_8, name##_9,            \
                                    name##_10, name##_11, name##_12};
TILES(tile_bf16, MXC_LAYOUT_BF16)
TILES(tile_f32, MXC_LAYOUT_F32)
TILES(tile_f16, MXC_LAYOUT_F16)

_Static_assert((int)MXC_TILE_F32 == (int)WIDE && (int)MXC_TILE_BF16 == (int)WIDE, "one width");

/* What the tile at column c of m brings of the strip at `next`: nothing when there is but one tile
 * or two strips would fill the cache. */
static void bring(struct tile *t, const uint8_t *next, size_t strip_bytes, int32_t c, int32_t m) {
    size_t lines = strip_bytes / 64, n = (size_t)((m + WIDE - 1) / WIDE), i = (size_t)(c / WIDE);
    size_t turns = (size_t)t->steps / 16;
    if (!next || !turns || n < 2 || strip_bytes > MOST)
        return;
    t->ahead = next + lines * i / n * 64;
    t->ahead_end = next + lines * (i + 1) / n * 64;
    t->lines = (int)((lines / n + turns) / turns);
}

static void run(tile_fn *const *tiles, const struct mxc_packed *w, const struct mxc_activation *a,
                int32_t strip0, int32_t strip1, float *out, size_t ld,
                const struct mxc_epilogue *epilogue) {
    bool bf16 = a->form == MXC_ACT_FORM_BF16;
    size_t row_bytes = mxc_padded_k(a->form, a->k) * (bf16 ? 2 : 4);
    struct tile t = {.steps = bf16 ? (w->k + 1) / 2 : w->k,
                     .out = out,
                     .ld = ld,
                     .n = w->n,
                     .end = w->data + (size_t)strip1 * w->strip_bytes,
                     .epilogue = epilogue};
    t.jump = w->next ? mxc_jump(t.end, w->next) : 0;
    for (int32_t s = strip0; s < strip1; s++) {
        t.w = w->data + (size_t)s * w->strip_bytes;
        t.column = (size_t)s * MXC_STRIP;
        for (int32_t c = 0; c < a->m; c += WIDE) {
            t.x = a->data + (size_t)c * row_bytes;
            t.at = (size_t)c * ld + t.column;
            bring(&t, s + 1 < strip1 ? t.w + w->strip_bytes : w->next, w->strip_bytes, c, a->m);
            tiles[mxc_tile_width(a, c)](&t);
        }
    }
}

void mxc_avx512_matmul_bf16(const struct mxc_packed *w, const struct mxc_activation *a,
                            int32_t strip0, int32_t strip1, float *out, size_t ld,
                            const struct mxc_epilogue *epilogue) {
    run(tile_bf16, w, a, strip0, strip1, out, ld, epilogue);
}

void mxc_avx512_matmul_f32(const struct mxc_packed *w, const struct mxc_activation *a,
                           int32_t strip0, int32_t strip1, float *out, size_t ld,
                           const struct mxc_epilogue *epilogue) {
    run(tile_f32, w, a, strip0, strip1, out, ld, epilogue);
}

void mxc_avx512_matmul_f16(const struct mxc_packed *w, const struct mxc_activation *a,
                           int32_t strip0, int32_t strip1, float *out, size_t ld,
                           const struct mxc_epilogue *epilogue) {
    run(tile_f16, w, a, strip0, strip1, out, ld, epilogue);
}
