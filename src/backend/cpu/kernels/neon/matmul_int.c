/* Matmul I4, I8 and N4, NEON with dot products: codes times int8 activations, four rows to a vector
 * and four numbers to a lane. A tile is 16 rows of the weights x N columns; N = 1 is decode, N = 3
 * prefill, and both do the same work for a column in the same order: per piece of K (a cell, or
 * half a cell when groups are 16) an exact integer sum, to float, times the cell's scale, then
 * acc = fma(weight scale, that, acc) and, when affine, acc = acc - bias * scaled negated sum.
 * I8 codes are taken as signed, code - 128, with a zero point 128 lower; N4 looks its codes up. */
#include "backend/cpu/kernels/neon/neon.h"

#include <arm_neon.h>

enum { S = MXC_STRIP, MOST = 3, VECTORS = 4, HALF = 16, AHEAD = 2048 };

struct tile {
    const struct mxc_packed *w;
    const uint8_t *strip;
    const struct mxc_i8_view *v;
    size_t c0, ci, width; /* tile of activations; columns [ci, ci + N) of it */
    float *out;
    size_t ld;
    int32_t row, column; /* of the first output */
    const struct mxc_epilogue *epilogue;
};

/* 16 codes of K of four rows, at p: the bytes of lane l are times x[4 l ...]. */
#define DOT(d, v, x, lane) vdotq_laneq_s32(d, v, x, lane)

/* d += codes of 16 rows (from byte 64 * half of each line pair) times x; n is 16 or 32. */
MXC_INLINE void dot(const struct tile *t, const uint8_t *p, const int8_t *x, int n,
                    int32x4_t d[MOST][VECTORS], const int N, const enum mxc_layout layout) {
    const uint8x16_t low = vdupq_n_u8(15), high_bit = vdupq_n_u8(128);
    int8x16_t table = vdupq_n_s8(0);
    if (layout == MXC_LAYOUT_N4)
        table = vld1q_s8(t->w->table);
    for (; n > 0; n -= 16, x += 16) {
        int8x16_t y[MOST];
        for (int c = 0; c < N; c++)
            y[c] = vld1q_s8(x + c * MXC_CELL_I8);
        for (int q = 0; q < VECTORS; q++) {
            const uint8_t *at = p + 16 * q;
            int8x16_t v[4];
            if (layout == MXC_LAYOUT_I8) {
                for (int j = 0; j < 4; j++)
                    v[j] = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(at + 4 * S * j), high_bit));
            } else {
                for (int j = 0; j < 2; j++) {
                    uint8x16_t both = vld1q_u8(at + 4 * S * j);
                    uint8x16_t a = vandq_u8(both, low), b = vshrq_n_u8(both, 4);
                    v[2 * j] =
                        layout == MXC_LAYOUT_N4 ? vqtbl1q_s8(table, a) : vreinterpretq_s8_u8(a);
                    v[2 * j + 1] =
                        layout == MXC_LAYOUT_N4 ? vqtbl1q_s8(table, b) : vreinterpretq_s8_u8(b);
                }
            }
            for (int c = 0; c < N; c++) {
                d[c][q] = DOT(d[c][q], v[0], y[c], 0);
                d[c][q] = DOT(d[c][q], v[1], y[c], 1);
                d[c][q] = DOT(d[c][q], v[2], y[c], 2);
                d[c][q] = DOT(d[c][q], v[3], y[c], 3);
            }
        }
        p += 16 / (layout == MXC_LAYOUT_I8 ? 4 : 8) * 4 * S;
    }
}

/* Four stored scales. */
MXC_INLINE float32x4_t scales(const uint8_t *p, bool bf16) {
    if (bf16)
        return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16((const uint16_t *)(const void *)p), 16));
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t *)(const void *)p)));
}

static void store(const struct tile *t, int c, const float acc[HALF]) {
    for (int32_t r = 0; r < HALF && t->column + r < t->w->n; r++) {
        size_t column = (size_t)(t->column + r);
        size_t at = (size_t)(t->row + c) * t->ld + column;
        t->out[at] = mxc_epilogue_one(t->epilogue, acc[r], column, at);
    }
}

MXC_INLINE void tile(const struct tile *t, const int N, const enum mxc_layout layout) {
    const struct mxc_packed *w = t->w;
    const struct mxc_i8_view *v = t->v;
    const int half = t->column % S / HALF, group = w->group, piece = group == 16 ? 16 : 32;
    const size_t cells = v->kp / MXC_CELL_I8, code_bytes = mxc_block_codes(w);
    const size_t piece_bytes = code_bytes / (size_t)group * (size_t)piece;
    const int32_t *sum = group == 16 ? v->sum16 + t->c0 * 2 * cells : v->sum32 + t->c0 * cells;
    const int32_t zero = layout == MXC_LAYOUT_I8   ? w->zero_point - 128
                         : layout == MXC_LAYOUT_N4 ? 0
                                                   : w->zero_point;
    float32x4_t acc[MOST][VECTORS];
    for (int c = 0; c < N; c++)
        for (int q = 0; q < VECTORS; q++)
            acc[c][q] = vdupq_n_f32(0);
    const uint8_t *block = t->strip;
    for (int32_t k = 0; k < w->k;) {
        const uint8_t *p = block + 64 * half, *f = block + code_bytes + 2 * HALF * half;
        for (int in = 0; in < group; in += piece, k += piece, p += piece_bytes) {
            size_t cell = t->c0 * cells + (size_t)(k / MXC_CELL_I8) * t->width + t->ci;
            size_t s = (size_t)(k / piece) * t->width + t->ci;
            int32x4_t d[MOST][VECTORS];
            for (int c = 0; c < N; c++)
                for (int q = 0; q < VECTORS; q++)
                    d[c][q] = vdupq_n_s32(sum[s + (size_t)c] * zero);
            __builtin_prefetch(p + AHEAD);
            dot(t, p, v->codes + cell * MXC_CELL_I8 + k % MXC_CELL_I8, piece, d, N, layout);
            for (int q = 0; q < VECTORS; q++) {
                float32x4_t scale = scales(f + 8 * q, w->bf16_scales);
                float32x4_t bias = vdupq_n_f32(0);
                if (w->affine)
                    bias = scales(f + MXC_BLOCK_TAIL + 8 * q, false);
                for (int c = 0; c < N; c++) {
                    float x = v->scale[cell + (size_t)c];
                    float scaled =
                        group == 16 ? x * (float)sum[s + (size_t)c] : v->scaled32[cell + (size_t)c];
                    float32x4_t y = vmulq_n_f32(vcvtq_f32_s32(d[c][q]), x);
                    acc[c][q] = vfmaq_f32(acc[c][q], scale, y);
                    if (w->affine)
                        acc[c][q] = vfmsq_f32(acc[c][q], bias, vdupq_n_f32(scaled));
                }
            }
        }
        block += mxc_block_bytes(w);
    }
    for (int c = 0; c < N; c++) {
        float numbers[HALF];
        for (int q = 0; q < VECTORS; q++)
            vst1q_f32(numbers + 4 * q, vmulq_n_f32(acc[c][q], 1.0f / w->unit));
        store(t, c, numbers);
    }
}

MXC_INLINE void run(const struct mxc_packed *w, const struct mxc_activation *a, int32_t strip0,
                    int32_t strip1, float *out, size_t ld, const struct mxc_epilogue *epilogue,
                    const enum mxc_layout layout) {
    struct mxc_i8_view v = mxc_i8_view(a);
    struct tile t = {.w = w, .v = &v, .out = out, .ld = ld, .epilogue = epilogue};
    for (int32_t s = strip0; s < strip1; s++)
        for (int32_t c = 0; c < a->m;) {
            int32_t c0 = c / MXC_TILE_I8 * MXC_TILE_I8, left;
            t.c0 = (size_t)c0;
            t.ci = (size_t)(c - c0);
            t.width = (size_t)mxc_tile_width(a, c0);
            t.row = c;
            t.strip = w->data + (size_t)s * w->strip_bytes;
            left = (int32_t)t.width - (c - c0);
            for (int half = 0; half < S / HALF; half++) {
                t.column = s * S + half * HALF;
                if (left >= 3)
                    tile(&t, 3, layout);
                else if (left == 2)
                    tile(&t, 2, layout);
                else
                    tile(&t, 1, layout);
            }
            c += left < MOST ? left : MOST;
        }
}

void mxc_neon_matmul_i4(const struct mxc_packed *w, const struct mxc_activation *a, int32_t strip0,
                        int32_t strip1, float *out, size_t ld,
                        const struct mxc_epilogue *epilogue) {
    run(w, a, strip0, strip1, out, ld, epilogue, MXC_LAYOUT_I4);
}

void mxc_neon_matmul_i8(const struct mxc_packed *w, const struct mxc_activation *a, int32_t strip0,
                        int32_t strip1, float *out, size_t ld,
                        const struct mxc_epilogue *epilogue) {
    run(w, a, strip0, strip1, out, ld, epilogue, MXC_LAYOUT_I8);
}

void mxc_neon_matmul_n4(const struct mxc_packed *w, const struct mxc_activation *a, int32_t strip0,
                        int32_t strip1, float *out, size_t ld,
                        const struct mxc_epilogue *epilogue) {
    run(w, a, strip0, strip1, out, ld, epilogue, MXC_LAYOUT_N4);
}
