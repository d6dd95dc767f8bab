/* Prepare, scalar: activations to the tiles that the matmuls read (layout.h), query rows to the KV
 * type's query form. A row's bytes depend on that row alone. */
#include "backend/cpu/kernels/scalar/scalar.h"

#include <string.h>

void mxc_scalar_prepare_f32(struct mxc_activation *a, const float *x, size_t ldx, int32_t row0,
                            int32_t row1) {
    size_t k = (size_t)a->k, kp = mxc_padded_k(a->form, a->k);
    for (int32_t c = row0; c < row1; c++) {
        int32_t c0 = c / MXC_TILE_F32 * MXC_TILE_F32;
        size_t width = (size_t)mxc_tile_width(a, c0);
        float *q = (float *)(void *)a->data + (size_t)c0 * kp + (size_t)(c - c0) * MXC_CELL_F32;
        const float *row = x + (size_t)c * ldx;
        for (size_t i = 0; i < kp; i += MXC_CELL_F32, q += width * MXC_CELL_F32)
            for (size_t j = 0; j < MXC_CELL_F32; j++)
                q[j] = i + j < k ? row[i + j] : 0.0f;
    }
}

void mxc_scalar_prepare_bf16(struct mxc_activation *a, const float *x, size_t ldx, int32_t row0,
                             int32_t row1) {
    size_t k = (size_t)a->k, kp = mxc_padded_k(a->form, a->k);
    for (int32_t c = row0; c < row1; c++) {
        int32_t c0 = c / MXC_TILE_BF16 * MXC_TILE_BF16;
        size_t width = (size_t)mxc_tile_width(a, c0);
        uint16_t *q = (uint16_t *)(void *)a->data + (size_t)c0 * kp;
        q += (size_t)(c - c0) * MXC_CELL_BF16;
        const float *row = x + (size_t)c * ldx;
        for (size_t i = 0; i < kp; i += MXC_CELL_BF16, q += width * MXC_CELL_BF16)
            for (size_t j = 0; j < MXC_CELL_BF16; j++)
                q[j] = i + j < k ? mxc_f32_to_bf16(row[i + j]) : 0;
    }
}

/* Largest |x|, NaN above infinity: bits of non-negative floats order as integers do. */
static float row_max(const float *x, size_t k) {
    uint32_t max = 0;
    for (size_t i = 0; i < k; i++) {
        uint32_t u = mxc_f32_bits(x[i]) & 0x7FFFFFFFu;
        max = u > max ? u : max;
    }
    return mxc_f32_of_bits(max);
}

void mxc_scalar_prepare_i8(struct mxc_activation *a, const float *x, size_t ldx, int32_t row0,
                           int32_t row1) {
    struct mxc_i8_view v = mxc_i8_view(a);
    size_t k = (size_t)a->k;
    for (int32_t c = row0; c < row1; c++) {
        size_t c0 = (size_t)(c / MXC_TILE_I8 * MXC_TILE_I8), ci = (size_t)c - c0;
        size_t width = (size_t)mxc_tile_width(a, (int32_t)c0);
        const float *row = x + (size_t)c * ldx;
        float max = row_max(row, k), inverse;
        v.scale[c] = mxc_i8_scale(max, &inverse);
        int8_t *codes = v.codes + c0 * v.kp + ci * MXC_CELL_I8;
        int32_t *sum[3];
        for (size_t s = 0; s < 3; s++)
            sum[s] = v.sums[s] + c0 * (v.kp / (16u << s)) + ci;
        int32_t total32 = 0, total64 = 0;
        for (size_t i = 0; i < v.kp; i += 16) {
            int8_t *q = codes + i / MXC_CELL_I8 * width * MXC_CELL_I8 + i % MXC_CELL_I8;
            int32_t total = 0;
            for (size_t j = 0; j < 16; j++) {
                /* adding 1.5 * 2^23 rounds to the nearest integer, ties to even */
                float t = i + j < k ? row[i + j] * inverse + 12582912.0f : 12582912.0f;
                q[j] = (int8_t)((int32_t)mxc_f32_bits(t) - 0x4B400000); /* 0 of 0 * infinity */
                total -= q[j];
            }
            sum[0][i / 16 * width] = total;
            total32 = i % 32 ? total32 + total : total;
            total64 = i % 64 ? total64 + total : total;
            sum[1][i / 32 * width] = total32;
            sum[2][i / 64 * width] = total64;
        }
    }
}

void mxc_scalar_prepare_q_f32(void *out, const float *q, int32_t k_dim, float scale) {
    float *y = out;
    for (int32_t i = 0; i < k_dim; i++)
        y[i] = q[i] * (scale * MXC_LOG2E);
}

void mxc_scalar_prepare_q_bf16(void *out, const float *q, int32_t k_dim, float scale) {
    uint16_t *y = out;
    for (int32_t i = 0; i < k_dim; i++)
        y[i] = mxc_f32_to_bf16(q[i] * (scale * MXC_LOG2E));
}
