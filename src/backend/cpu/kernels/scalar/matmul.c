/* Matrix products, scalar level: F32, F16, BF16, and groups of 4- and 8-bit codes or table entries
 * with int8 activations.
 * In: packed strips of 32 output rows, prepared tiles. Out: those columns of the output, through
 * the epilogue. This is the definition that the vector levels are tested against.
 * Invariant: one accumulator per output visits K in order; sums of integers inside a piece of 16 or
 * 32 are exact, each piece is scaled once.
 * The arrays of 32 are the lanes of a strip, so that a compiler can use whatever vectors the base
 * ISA has. */
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

/* dot[r] += codes of row r times the activations at x, n of them (16 or 32). */
static void dot_i4(const uint8_t *codes, size_t n, const int8_t *x, int32_t dot[S]) {
    for (size_t j = 0; j < n; j += 8, codes += 4 * S)
        for (size_t r = 0; r < S; r++)
            for (size_t i = 0; i < 4; i++) {
                uint8_t q = codes[4 * r + i];
                dot[r] += (q & 15) * x[j + i] + (q >> 4) * x[j + 4 + i];
            }
}

static void dot_n4(const uint8_t *codes, const int8_t table[16], size_t n, const int8_t *x,
                   int32_t dot[S]) {
    for (size_t j = 0; j < n; j += 8, codes += 4 * S)
        for (size_t r = 0; r < S; r++)
            for (size_t i = 0; i < 4; i++) {
                uint8_t q = codes[4 * r + i];
                dot[r] += table[q & 15] * x[j + i] + table[q >> 4] * x[j + 4 + i];
            }
}

static void dot_i8(const uint8_t *codes, size_t n, const int8_t *x, int32_t dot[S]) {
    for (size_t j = 0; j < n; j += 4, codes += 4 * S)
        for (size_t r = 0; r < S; r++)
            for (size_t i = 0; i < 4; i++)
                dot[r] += codes[4 * r + i] * x[j + i];
}

/* One column, one strip. Pieces of K: a cell, or half a cell when groups are 16. */
static void column_i(const struct mxc_packed *w, const uint8_t *data, const struct mxc_i8_view *v,
                     size_t c0, size_t ci, size_t width, float acc[S]) {
    size_t group = (size_t)w->group, piece = group == 16 ? 16 : 32, cells = v->kp / MXC_CELL_I8;
    size_t block = mxc_block_bytes(w), code_bytes = mxc_block_codes(w), of_one = code_bytes / group;
    const int32_t *sum = group == 16 ? v->sum16 + c0 * 2 * cells : v->sum32 + c0 * cells;
    for (size_t k = 0; k < (size_t)w->k; k += piece) {
        const uint8_t *b = data + k / group * block;
        const uint16_t *f = (const uint16_t *)(const void *)(b + code_bytes);
        size_t cell = c0 * cells + k / MXC_CELL_I8 * width + ci;
        const int8_t *x = v->codes + cell * MXC_CELL_I8 + k % MXC_CELL_I8;
        int32_t dot[S], piece_sum = sum[k / piece * width + ci];
        for (int r = 0; r < S; r++)
            dot[r] = piece_sum * w->zero_point;
        b += k % group * of_one;
        if (w->layout == MXC_LAYOUT_N4)
            dot_n4(b, w->table, piece, x, dot);
        else
            (w->layout == MXC_LAYOUT_I4 ? dot_i4 : dot_i8)(b, piece, x, dot);
        for (int r = 0; r < S; r++)
            acc[r] += (w->bf16_scales ? mxc_bf16_to_f32(f[r]) : mxc_f16_to_f32(f[r])) *
                      ((float)dot[r] * v->scale[cell]);
        float scaled = group == 16 ? v->scale[cell] * (float)piece_sum : v->scaled32[cell];
        for (int r = 0; w->affine && r < S; r++)
            acc[r] -= mxc_f16_to_f32(f[S + r]) * scaled;
    }
}

static void matmul_i(const struct mxc_packed *w, const struct mxc_activation *a, int32_t strip0,
                     int32_t strip1, float *out, size_t ld, const struct mxc_epilogue *epilogue) {
    struct mxc_i8_view v = mxc_i8_view(a);
    float inverse_unit = 1.0f / w->unit;
    for (int32_t s = strip0; s < strip1; s++)
        for (int32_t c = 0; c < a->m; c++) {
            int32_t c0 = c / MXC_TILE_I8 * MXC_TILE_I8;
            float acc[S] = {0};
            column_i(w, w->data + (size_t)s * w->strip_bytes, &v, (size_t)c0, (size_t)(c - c0),
                     (size_t)mxc_tile_width(a, c0), acc);
            for (int r = 0; r < S; r++)
                acc[r] *= inverse_unit;
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

void mxc_scalar_matmul_n4(const struct mxc_packed *w, const struct mxc_activation *a,
                          int32_t strip0, int32_t strip1, float *out, size_t ld,
                          const struct mxc_epilogue *epilogue) {
    matmul_i(w, a, strip0, strip1, out, ld, epilogue);
}
