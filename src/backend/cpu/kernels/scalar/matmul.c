/* Matmul, scalar: the five layouts. One accumulator per output visits K in order; the arrays of 32
 * are the lanes of a strip, so that a compiler can use whatever vectors the base ISA has. */
#include "backend/cpu/kernels/scalar/scalar.h"

#include <string.h>

enum { S = MXC_STRIP };

static void store(const struct mxc_packed *w, int32_t strip, int32_t row, const float acc[S],
                  float *out, size_t ld, const struct mxc_epilogue *epilogue) {
    for (int32_t r = 0; r < S; r++) {
        int32_t column = strip * S + r;
        if (column >= w->n)
            return;
        size_t at = (size_t)row * ld + (size_t)column;
        out[at] = mxc_epilogue_one(epilogue, acc[r], (size_t)column, at);
    }
}

/* Where cell `cell` of row c begins, in numbers. */
static size_t cell_at(const struct mxc_activation *a, int32_t c, size_t kp, size_t cell_size) {
    int32_t tile = mxc_tile_rows(a->form), c0 = c / tile * tile;
    return (size_t)c0 * kp + (size_t)(c - c0) * cell_size;
}

static void matmul_f(const struct mxc_packed *w, const struct mxc_activation *a, int32_t strip0,
                     int32_t strip1, float *out, size_t ld, const struct mxc_epilogue *epilogue) {
    size_t k = (size_t)w->k, kp = mxc_padded_k(a->form, a->k);
    for (int32_t s = strip0; s < strip1; s++)
        for (int32_t c = 0; c < a->m; c++) {
            int32_t c0 = c / MXC_TILE_F32 * MXC_TILE_F32;
            size_t step = (size_t)mxc_tile_width(a, c0) * MXC_CELL_F32;
            const float *x = (const float *)(const void *)a->data + cell_at(a, c, kp, MXC_CELL_F32);
            const uint8_t *data = w->data + (size_t)s * w->strip_bytes;
            float acc[S] = {0};
            for (size_t i = 0; i < k; i++) {
                float v = x[i / MXC_CELL_F32 * step + i % MXC_CELL_F32], row[S];
                if (w->layout == MXC_LAYOUT_F32) {
                    memcpy(row, data + i * sizeof row, sizeof row);
                } else {
                    const uint16_t *h = (const uint16_t *)(const void *)data + i * S;
                    for (int r = 0; r < S; r++)
                        row[r] = mxc_f16_to_f32(h[r]);
                }
                for (int r = 0; r < S; r++)
                    acc[r] += row[r] * v;
            }
            store(w, s, c, acc, out, ld, epilogue);
        }
}

void mxc_scalar_matmul_f32(const struct mxc_packed *w, const struct mxc_activation *a,
                           int32_t strip0, int32_t strip1, float *out, size_t ld,
                           const struct mxc_epilogue *epilogue) {
    matmul_f(w, a, strip0, strip1, out, ld, epilogue);
}

void mxc_scalar_matmul_f16(const struct mxc_packed *w, const struct mxc_activation *a,
                           int32_t strip0, int32_t strip1, float *out, size_t ld,
                           const struct mxc_epilogue *epilogue) {
    matmul_f(w, a, strip0, strip1, out, ld, epilogue);
}

void mxc_scalar_matmul_bf16(const struct mxc_packed *w, const struct mxc_activation *a,
                            int32_t strip0, int32_t strip1, float *out, size_t ld,
                            const struct mxc_epilogue *epilogue) {
    size_t pairs = ((size_t)w->k + 1) / 2, kp = mxc_padded_k(a->form, a->k);
    for (int32_t s = strip0; s < strip1; s++)
        for (int32_t c = 0; c < a->m; c++) {
            int32_t c0 = c / MXC_TILE_BF16 * MXC_TILE_BF16;
            size_t step = (size_t)mxc_tile_width(a, c0) * MXC_CELL_BF16;
            const uint16_t *x = (const uint16_t *)(const void *)a->data;
            x += cell_at(a, c, kp, MXC_CELL_BF16);
            const uint16_t *h =
                (const uint16_t *)(const void *)(w->data + (size_t)s * w->strip_bytes);
            float acc[S] = {0};
            for (size_t i = 0; i < pairs; i++, h += 2 * S) {
                const uint16_t *p = x + 2 * i / MXC_CELL_BF16 * step + 2 * i % MXC_CELL_BF16;
                float v0 = mxc_bf16_to_f32(p[0]), v1 = mxc_bf16_to_f32(p[1]);
                for (int r = 0; r < S; r++)
                    acc[r] += mxc_bf16_to_f32(h[2 * r + 1]) * v1 + mxc_bf16_to_f32(h[2 * r]) * v0;
            }
            store(w, s, c, acc, out, ld, epilogue);
        }
}

/* dot[r] += codes of row r times activations, one group. */
static void dot_i4(const uint8_t *codes, size_t group, const int8_t *x, size_t step,
                   int32_t dot[S]) {
    for (size_t j = 0; j < group / 8; j++, codes += 4 * S) {
        const int8_t *p = x + 8 * j / MXC_CELL_I8 * step + 8 * j % MXC_CELL_I8;
        for (size_t r = 0; r < S; r++)
            for (size_t i = 0; i < 4; i++) {
                uint8_t q = codes[4 * r + i];
                dot[r] += (q & 15) * p[i] + (q >> 4) * p[4 + i];
            }
    }
}

static void dot_i8(const uint8_t *codes, size_t group, const int8_t *x, size_t step,
                   int32_t dot[S]) {
    for (size_t j = 0; j < group / 4; j++, codes += 4 * S) {
        const int8_t *p = x + 4 * j / MXC_CELL_I8 * step + 4 * j % MXC_CELL_I8;
        for (size_t r = 0; r < S; r++)
            for (size_t i = 0; i < 4; i++)
                dot[r] += codes[4 * r + i] * p[i];
    }
}

static void matmul_i(const struct mxc_packed *w, const struct mxc_activation *a, int32_t strip0,
                     int32_t strip1, float *out, size_t ld, const struct mxc_epilogue *epilogue) {
    struct mxc_i8_view v = mxc_i8_view(a);
    size_t group = (size_t)w->group, code_bytes = mxc_block_codes(w), block = mxc_block_bytes(w);
    for (int32_t s = strip0; s < strip1; s++)
        for (int32_t c = 0; c < a->m; c++) {
            size_t c0 = (size_t)(c / MXC_TILE_I8 * MXC_TILE_I8), ci = (size_t)c - c0;
            size_t width = (size_t)mxc_tile_width(a, (int32_t)c0), step = width * MXC_CELL_I8;
            const int8_t *x = v.codes + c0 * v.kp + ci * MXC_CELL_I8;
            const int32_t *sum = v.sums[mxc_sum_index(w->group)] + c0 * (v.kp / group) + ci;
            const uint8_t *data = w->data + (size_t)s * w->strip_bytes;
            float acc[S] = {0};
            for (size_t g = 0; g < (size_t)w->k / group; g++, data += block) {
                const int8_t *p = x + g * group / MXC_CELL_I8 * step + g * group % MXC_CELL_I8;
                const uint16_t *f = (const uint16_t *)(const void *)(data + code_bytes);
                int32_t negated = sum[g * width], start = w->affine ? 0 : negated * w->zero_point;
                int32_t dot[S];
                for (int r = 0; r < S; r++)
                    dot[r] = start;
                (w->layout == MXC_LAYOUT_I4 ? dot_i4 : dot_i8)(data, group, p, step, dot);
                for (int r = 0; r < S; r++)
                    acc[r] += mxc_f16_to_f32(f[r]) * (float)dot[r];
                for (int r = 0; w->affine && r < S; r++)
                    acc[r] -= mxc_f16_to_f32(f[S + r]) * (float)negated;
            }
            float scale = v.scale[c] / w->unit;
            for (int r = 0; r < S; r++)
                acc[r] *= scale;
            store(w, s, c, acc, out, ld, epilogue);
        }
}

void mxc_scalar_matmul_i4(const struct mxc_packed *w, const struct mxc_activation *a,
                          int32_t strip0, int32_t strip1, float *out, size_t ld,
                          const struct mxc_epilogue *epilogue) {
    matmul_i(w, a, strip0, strip1, out, ld, epilogue);
}

void mxc_scalar_matmul_i8(const struct mxc_packed *w, const struct mxc_activation *a,
                          int32_t strip0, int32_t strip1, float *out, size_t ld,
                          const struct mxc_epilogue *epilogue) {
    matmul_i(w, a, strip0, strip1, out, ld, epilogue);
}
