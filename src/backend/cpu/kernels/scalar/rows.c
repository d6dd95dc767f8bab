/* Rows, scalar: RMS norm, gated activations, addition, rotary embedding. The definition that the
 * vector levels are tested against; it uses the C library's exp, erf and tanh. Sums over a row use
 * eight lanes and one fixed tree. */
#include "backend/cpu/kernels/scalar/scalar.h"

#include <math.h>

void mxc_scalar_rms_norm(float *y, const float *x, const float *w, int32_t n, float eps,
                         float offset) {
    float lane[8] = {0};
    int32_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++)
            lane[j] += x[i + j] * x[i + j];
    for (int j = 0; i < n; i++, j++)
        lane[j] += x[i] * x[i];
    float sum =
        ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
    float r = 1.0f / sqrtf(sum / (float)n + eps);
    for (i = 0; i < n; i++)
        y[i] = x[i] * r * (w[i] + offset);
}

void mxc_scalar_glu_silu(float *y, const float *g, const float *u, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        y[i] = g[i] / (1.0f + expf(-g[i])) * u[i];
}

void mxc_scalar_glu_gelu(float *y, const float *g, const float *u, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        y[i] = 0.5f * g[i] * (1.0f + erff(g[i] * 0.70710678118654752440f)) * u[i];
}

void mxc_scalar_glu_gelu_tanh(float *y, const float *g, const float *u, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        float z = 0.79788456080286535588f * (g[i] + 0.044715f * g[i] * g[i] * g[i]);
        y[i] = 0.5f * g[i] * (1.0f + tanhf(z)) * u[i];
    }
}

void mxc_scalar_glu_relu(float *y, const float *g, const float *u, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        y[i] = (g[i] > 0 ? g[i] : 0.0f) * u[i];
}

void mxc_scalar_add(float *y, const float *a, const float *b, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        y[i] = a[i] + b[i];
}

void mxc_scalar_rope_half(float *v, const float *cos, const float *sin, int32_t dims) {
    int32_t h = dims / 2;
    for (int32_t i = 0; i < h; i++) {
        float a = v[i], b = v[h + i];
        v[i] = a * cos[i] - b * sin[i];
        v[h + i] = b * cos[i] + a * sin[i];
    }
}

void mxc_scalar_rope_pairs(float *v, const float *cos, const float *sin, int32_t dims) {
    for (int32_t i = 0; i < dims / 2; i++) {
        float a = v[2 * i], b = v[2 * i + 1];
        v[2 * i] = a * cos[i] - b * sin[i];
        v[2 * i + 1] = b * cos[i] + a * sin[i];
    }
}
