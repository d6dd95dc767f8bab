/* Ops on one row, AVX2: norms, activations, gated or not, additions, rotary embedding of halves.
 * In: rows of f32 of any length; loads and saves stop at the row's end. Out: one row of f32.
 * Invariant: sums over a row use two vectors and one fixed tree, so they never depend on the
 * batch. exp and erf are short formulas: near to the scalar level, not bit-equal to it.
 * Additions, gates and rotary embedding wait for memory, so the AVX-512 level uses them from here.
 */
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

void mxc_avx2_layer_norm(float *y, const float *x, const float *w, const float *b, int32_t n,
                         float eps) {
    mxc_vf s0 = _mm256_setzero_ps(), s1 = _mm256_setzero_ps();
    for (int32_t i = 0; i < n; i += 16) {
        s0 = _mm256_add_ps(s0, mxc_load(x + i, n - i));
        s1 = _mm256_add_ps(s1, mxc_load(x + i + 8, n - i - 8));
    }
    mxc_vf mean = _mm256_set1_ps(mxc_sum(_mm256_add_ps(s0, s1)) / (float)n);
    s0 = s1 = _mm256_setzero_ps();
    for (int32_t i = 0; i < n; i += 16) {
        mxc_vf c0 = _mm256_sub_ps(mxc_load(x + i, n - i), mean);
        mxc_vf c1 = _mm256_sub_ps(mxc_load(x + i + 8, n - i - 8), mean);
        if (n - i < 16) { /* what is not there has no distance */
            c0 = _mm256_and_ps(c0, _mm256_castsi256_ps(mxc_lanes(n - i)));
            c1 = _mm256_and_ps(c1, _mm256_castsi256_ps(mxc_lanes(n - i - 8)));
        }
        s0 = _mm256_fmadd_ps(c0, c0, s0);
        s1 = _mm256_fmadd_ps(c1, c1, s1);
    }
    float sum = mxc_sum(_mm256_add_ps(s0, s1));
    mxc_vf r = _mm256_set1_ps(1.0f / sqrtf(sum / (float)n + eps));
    for (int32_t i = 0; i < n; i += 8) {
        mxc_vf a = _mm256_mul_ps(_mm256_sub_ps(mxc_load(x + i, n - i), mean), r);
        mxc_vf z = b ? mxc_load(b + i, n - i) : _mm256_setzero_ps();
        mxc_save(y + i, n - i, _mm256_fmadd_ps(a, mxc_load(w + i, n - i), z));
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

MXC_INLINE mxc_vf gelu_quick(mxc_vf g) {
    return sigmoid_gate(g, _mm256_mul_ps(g, _mm256_set1_ps(MXC_CLIP_SLOPE)));
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

/* min and max return their second operand for NaN. */
MXC_INLINE mxc_vf swiglu_clip(mxc_vf g, mxc_vf u) {
    const mxc_vf clip = _mm256_set1_ps(MXC_CLIP);
    g = _mm256_min_ps(clip, g);
    u = _mm256_max_ps(_mm256_set1_ps(-MXC_CLIP), _mm256_min_ps(clip, u));
    g = sigmoid_gate(g, _mm256_mul_ps(g, _mm256_set1_ps(MXC_CLIP_SLOPE)));
    return _mm256_mul_ps(g, _mm256_add_ps(u, _mm256_set1_ps(1)));
}

#define GLU(name, act)                                                                             \
    void mxc_avx2_glu_##name(float *y, const float *g, const float *u, int32_t n) {                \
        for (int32_t i = 0; i < n; i += 8) {                                                       \
            mxc_vf a = mxc_load(g + i, n - i), b = mxc_load(u + i, n - i);                         \
            mxc_save(y + i, n - i, act);                                                           \
        }                                                                                          \
    }
#define ACT(name, act)                                                                             \
    void mxc_avx2_act_##name(float *y, const float *x, int32_t n) {                                \
        for (int32_t i = 0; i < n; i += 8) {                                                       \
            mxc_vf a = mxc_load(x + i, n - i);                                                     \
            mxc_save(y + i, n - i, act);                                                           \
        }                                                                                          \
    }
GLU(silu, _mm256_mul_ps(sigmoid_gate(a, a), b))
GLU(gelu, _mm256_mul_ps(gelu(a), b))
GLU(gelu_tanh, _mm256_mul_ps(gelu_tanh(a), b))
GLU(gelu_quick, _mm256_mul_ps(gelu_quick(a), b))
GLU(swiglu_clip, swiglu_clip(a, b))
ACT(silu, sigmoid_gate(a, a))
ACT(gelu, gelu(a))
ACT(gelu_tanh, gelu_tanh(a))
ACT(gelu_quick, gelu_quick(a))

void mxc_avx2_softcap(float *y, const float *x, float cap, int32_t n) {
    const mxc_vf c = _mm256_set1_ps(cap);
    for (int32_t i = 0; i < n; i += 8)
        mxc_save(y + i, n - i,
                 _mm256_mul_ps(c, mxc_tanh(_mm256_div_ps(mxc_load(x + i, n - i), c))));
}

void mxc_avx2_gate(float *y, const float *x, float g, int32_t n) {
    mxc_vf s = sigmoid_gate(_mm256_set1_ps(1), _mm256_set1_ps(g));
    for (int32_t i = 0; i < n; i += 8)
        mxc_save(y + i, n - i, _mm256_mul_ps(mxc_load(x + i, n - i), s));
}

void mxc_avx2_add(float *y, const float *a, const float *b, int32_t n) {
    for (int32_t i = 0; i < n; i += 8)
        mxc_save(y + i, n - i, _mm256_add_ps(mxc_load(a + i, n - i), mxc_load(b + i, n - i)));
}

void mxc_avx2_weighted_add(float *y, const float *x, float p, bool first, int32_t n) {
    const mxc_vf w = _mm256_set1_ps(p);
    for (int32_t i = 0; i < n; i += 8) {
        mxc_vf z = _mm256_mul_ps(w, mxc_load(x + i, n - i));
        mxc_save(y + i, n - i, first ? z : _mm256_add_ps(mxc_load(y + i, n - i), z));
    }
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
