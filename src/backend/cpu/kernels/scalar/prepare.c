/* What is laid out before a product or attention runs, scalar level: activations to the tiles that
 * the products read (f32, bf16, int8), query rows to the KV type's query form.
 * In: rows of f32. Out: the layouts of layout.h; the padding of a tile is zero. This is the
 * definition: the vector levels make the same bytes.
 * Invariant: a row's bytes depend on that row alone. int8 codes round to nearest, ties to even;
 * a cell with an infinity or NaN gets codes of 0 and a scale that is NaN, so the fault is seen
 * later. */
#include "backend/cpu/kernels/scalar/scalar.h"

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
static float cell_max(const float *x, size_t n) {
    uint32_t max = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t u = mxc_f32_bits(x[i]) & 0x7FFFFFFFu;
        max = u > max ? u : max;
    }
    return mxc_f32_of_bits(max);
}

/* Codes of n numbers, zeros up to 16; the negated sum. */
static int32_t half_cell(const float *x, size_t n, float inverse, int8_t *codes) {
    int32_t total = 0;
    for (size_t j = 0; j < 16; j++) {
        /* adding 1.5 * 2^23 rounds to the nearest integer, ties to even */
        float t = j < n ? x[j] * inverse + 12582912.0f : 12582912.0f;
        codes[j] = (int8_t)((int32_t)mxc_f32_bits(t) - 0x4B400000); /* 0 of 0 * infinity */
        total -= codes[j];
    }
    return total;
}

void mxc_scalar_prepare_i8(struct mxc_activation *a, const float *x, size_t ldx, int32_t row0,
                           int32_t row1) {
    struct mxc_i8_view v = mxc_i8_view(a);
    size_t k = (size_t)a->k, cells = v.kp / MXC_CELL_I8;
    for (int32_t c = row0; c < row1; c++) {
        size_t c0 = (size_t)(c / MXC_TILE_I8 * MXC_TILE_I8), ci = (size_t)c - c0;
        size_t width = (size_t)mxc_tile_width(a, (int32_t)c0);
        const float *row = x + (size_t)c * ldx;
        float before = 0;
        for (size_t i = 0; i < cells; i++) {
            size_t first = i * MXC_CELL_I8, left = k > first ? k - first : 0;
            size_t n = left < MXC_CELL_I8 ? left : MXC_CELL_I8, at = c0 * cells + i * width + ci;
            int8_t *q = v.codes + at * MXC_CELL_I8;
            float inverse, scale = mxc_i8_scale(cell_max(row + first, n), &inverse);
            size_t n0 = n < 16 ? n : 16;
            int32_t s0 = half_cell(row + first, n0, inverse, q);
            int32_t s1 = half_cell(row + first + n0, n - n0, inverse, q + 16);
            size_t at16 = c0 * 2 * cells + 2 * i * width + ci;
            v.sum16[at16] = s0;
            v.sum16[at16 + width] = s1;
            v.sum32[at] = s0 + s1;
            v.scale[at] = scale;
            float scaled = scale * (float)(s0 + s1);
            v.scaled32[at] = scaled;
            if (i % 2)
                v.scaled64[c0 * (cells / 2) + i / 2 * width + ci] = before + scaled;
            before = scaled;
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
