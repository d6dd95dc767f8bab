/* Rows, scalar: norms, activations, additions, rotary embedding. The definition that the
 * vector levels are tested against; it uses the C library's exp, erf and tanh. Sums over a row use
 * eight lanes and one fixed tree. */
#include "backend/cpu/kernels/scalar/scalar.h"

#include <math.h>

static float tree(const float lane[8]) {
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

static float sum(const float *x, int32_t n) {
    float lane[8] = {0};
    int32_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++)
            lane[j] += x[i + j];
    for (int j = 0; i < n; i++, j++)
        lane[j] += x[i];
    return tree(lane);
}

static float sum_squares(const float *x, float mean, int32_t n) {
    float lane[8] = {0};
    int32_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++)
            lane[j] += (x[i + j] - mean) * (x[i + j] - mean);
    for (int j = 0; i < n; i++, j++)
        lane[j] += (x[i] - mean) * (x[i] - mean);
    return tree(lane);
}

void mxc_scalar_rms_norm(float *y, const float *x, const float *w, int32_t n, float eps,
                         float offset) {
    float r = 1.0f / sqrtf(sum_squares(x, 0, n) / (float)n + eps);
    for (int32_t i = 0; i < n; i++)
        y[i] = x[i] * r * (w[i] + offset);
}

void mxc_scalar_layer_norm(float *y, const float *x, const float *w, const float *b, int32_t n,
                           float eps) {
    float mean = sum(x, n) / (float)n;
    float r = 1.0f / sqrtf(sum_squares(x, mean, n) / (float)n + eps);
    for (int32_t i = 0; i < n; i++)
        y[i] = (x[i] - mean) * r * w[i] + (b ? b[i] : 0.0f);
}

static float silu(float g) {
    return g / (1.0f + expf(-g));
}

static float gelu(float g) {
    return 0.5f * g * (1.0f + erff(g * 0.70710678118654752440f));
}

static float gelu_tanh(float g) {
    float z = 0.79788456080286535588f * (g + 0.044715f * g * g * g);
    return 0.5f * g * (1.0f + tanhf(z));
}

static float gelu_quick(float g) {
    return g / (1.0f + expf(-MXC_CLIP_SLOPE * g));
}

static float relu(float g) {
    return g > 0 ? g : 0.0f;
}

#define ACT(name)                                                                                  \
    void mxc_scalar_glu_##name(float *y, const float *g, const float *u, int32_t n) {              \
        for (int32_t i = 0; i < n; i++)                                                            \
            y[i] = name(g[i]) * u[i];                                                              \
    }                                                                                              \
    void mxc_scalar_act_##name(float *y, const float *x, int32_t n) {                              \
        for (int32_t i = 0; i < n; i++)                                                            \
            y[i] = name(x[i]);                                                                     \
    }
ACT(silu)
ACT(gelu)
ACT(gelu_tanh)
ACT(relu)
ACT(gelu_quick)

/* The comparisons let NaN pass. */
void mxc_scalar_glu_swiglu_clip(float *y, const float *g, const float *u, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        float a = g[i] > MXC_CLIP ? MXC_CLIP : g[i];
        float b = u[i] > MXC_CLIP ? MXC_CLIP : u[i] < -MXC_CLIP ? -MXC_CLIP : u[i];
        y[i] = a / (1.0f + expf(-MXC_CLIP_SLOPE * a)) * (b + 1.0f);
    }
}

void mxc_scalar_softcap(float *y, const float *x, float cap, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        y[i] = cap * tanhf(x[i] / cap);
}

void mxc_scalar_gate(float *y, const float *x, float g, int32_t n) {
    float s = 1.0f / (1.0f + expf(-g));
    for (int32_t i = 0; i < n; i++)
        y[i] = x[i] * s;
}

void mxc_scalar_weighted_add(float *y, const float *x, float p, bool first, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        y[i] = first ? p * x[i] : y[i] + p * x[i];
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
