/* Ops on one row, AVX2: RMS norm, gated activations (SiLU, GELU by erf and by tanh), addition,
 * rotary embedding of halves.
 * In: rows of f32 of any length; loads and saves stop at the row's end. Out: one row of f32.
 * Invariant: the sum of squares uses two vectors and one fixed tree, so it never depends on the
 * batch. exp and erf are short formulas: near to the scalar level, not bit-equal to it.
 * Addition and rotary embedding wait for memory, so the AVX-512 level uses them from here. */
#include "backend/cpu/kernels/avx2/avx2.h"

void mxc_avx2_rms_norm(float *y, const float *x, const float *w, int32_t n, float eps,
                       float offset) {
    mxc_vf s0 = _mm256_setzero_ps(), s1 = _mm256_setzero_ps();
    for (int32_t i = 0; i < n; i += 16) {
        mxc_vf a = mxc_load(x + i, n - i), b = mxc_load(x + i + 8, n - i - 8);
        s0 = _mm256_fmadd_ps(a, a, s0);
        s1 = _mm256_fmadd_ps(b, b, s1);
    }
    float sum = mxc_sum(_mm256_add_ps(s0, s1));
    mxc_vf r = _mm256_set1_ps(1.0f / sqrtf(sum / (float)n + eps)), o = _mm256_set1_ps(offset);
    for (int32_t i = 0; i < n; i += 8) {
        mxc_vf a = _mm256_mul_ps(mxc_load(x + i, n - i), r);
        mxc_vf b = _mm256_add_ps(mxc_load(w + i, n - i), o);
        mxc_save(y + i, n - i, _mm256_mul_ps(a, b));
    }
}

/* g / (1 + e^-z) */
MXC_INLINE mxc_vf sigmoid_gate(mxc_vf g, mxc_vf z) {
    mxc_vf e = mxc_exp(_mm256_sub_ps(_mm256_setzero_ps(), z));
    return _mm256_div_ps(g, _mm256_add_ps(_mm256_set1_ps(1), e));
}

/* tanh gives 0.5 (1 + tanh z) = 1 / (1 + e^-2z). */
MXC_INLINE mxc_vf gelu_tanh(mxc_vf g) {
    mxc_vf cube = _mm256_mul_ps(_mm256_mul_ps(g, g), g);
    mxc_vf z = _mm256_fmadd_ps(_mm256_set1_ps(0.044715f), cube, g);
    return sigmoid_gate(g, _mm256_mul_ps(z, _mm256_set1_ps(1.59576912160573071176f)));
}

/* erf by Abramowitz and Stegun 7.1.26, absolute error below 1.5e-7. */
MXC_INLINE mxc_vf gelu(mxc_vf g) {
    mxc_vf one = _mm256_set1_ps(1), z = _mm256_mul_ps(g, _mm256_set1_ps(0.70710678118654752440f));
    mxc_vf a = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), z);
    mxc_vf t = _mm256_div_ps(one, _mm256_fmadd_ps(a, _mm256_set1_ps(0.3275911f), one));
    mxc_vf p = _mm256_set1_ps(1.061405429f);
    p = _mm256_fmadd_ps(p, t, _mm256_set1_ps(-1.453152027f));
    p = _mm256_fmadd_ps(p, t, _mm256_set1_ps(1.421413741f));
    p = _mm256_fmadd_ps(p, t, _mm256_set1_ps(-0.284496736f));
    p = _mm256_fmadd_ps(p, t, _mm256_set1_ps(0.254829592f));
    mxc_vf e = mxc_exp(_mm256_sub_ps(_mm256_setzero_ps(), _mm256_mul_ps(a, a)));
    mxc_vf tail = _mm256_mul_ps(_mm256_mul_ps(p, t), e); /* 1 - erf |z| */
    /* 1 + erf z: 2 - tail for z >= 0, tail below; the sign bit of z chooses */
    mxc_vf sum = _mm256_blendv_ps(_mm256_sub_ps(_mm256_set1_ps(2), tail), tail, z);
    return _mm256_mul_ps(_mm256_mul_ps(g, _mm256_set1_ps(0.5f)), sum);
}

#define GLU(name, act)                                                                             \
    void mxc_avx2_glu_##name(float *y, const float *g, const float *u, int32_t n) {                \
        for (int32_t i = 0; i < n; i += 8) {                                                       \
            mxc_vf a = mxc_load(g + i, n - i), b = mxc_load(u + i, n - i);                         \
            mxc_save(y + i, n - i, _mm256_mul_ps(act, b));                                         \
        }                                                                                          \
    }
GLU(silu, sigmoid_gate(a, a))
GLU(gelu, gelu(a))
GLU(gelu_tanh, gelu_tanh(a))

void mxc_avx2_add(float *y, const float *a, const float *b, int32_t n) {
    for (int32_t i = 0; i < n; i += 8)
        mxc_save(y + i, n - i, _mm256_add_ps(mxc_load(a + i, n - i), mxc_load(b + i, n - i)));
}

void mxc_avx2_rope_half(float *v, const float *cos, const float *sin, int32_t dims) {
    int32_t h = dims / 2;
    for (int32_t i = 0; i < h; i += 8) {
        mxc_vf a = mxc_load(v + i, h - i), b = mxc_load(v + h + i, h - i);
        mxc_vf c = mxc_load(cos + i, h - i), s = mxc_load(sin + i, h - i);
        mxc_save(v + i, h - i, _mm256_sub_ps(_mm256_mul_ps(a, c), _mm256_mul_ps(b, s)));
        mxc_save(v + h + i, h - i, _mm256_add_ps(_mm256_mul_ps(b, c), _mm256_mul_ps(a, s)));
    }
}
