/* Ops on one row, AVX-512: norms and activations, gated or not.
 * In: rows of f32 of any length; masks stop at the row's end. Out: one row of f32. What only waits
 * for memory (additions, gates, rotary embedding) has no version here: the AVX2 one serves.
 * Invariant: sums over a row use two vectors and one fixed tree, so they never depend on the
 * batch. exp and erf are short formulas: near to the scalar level, not bit-equal to it. */
#include "backend/cpu/kernels/avx512/avx512.h"

void mxc_avx512_rms_norm(float *y, const float *x, const float *w, int32_t n, float eps,
                         float offset) {
    mxc_vf s0 = _mm512_setzero_ps(), s1 = _mm512_setzero_ps();
    for (int32_t i = 0; i < n; i += 32) {
        mxc_vf a = _mm512_maskz_loadu_ps(mxc_lanes(n - i), x + i);
        mxc_vf b = _mm512_maskz_loadu_ps(mxc_lanes(n - i - 16), x + i + 16);
        s0 = _mm512_fmadd_ps(a, a, s0);
        s1 = _mm512_fmadd_ps(b, b, s1);
    }
    float sum = _mm512_reduce_add_ps(_mm512_add_ps(s0, s1));
    mxc_vf r = _mm512_set1_ps(1.0f / sqrtf(sum / (float)n + eps)), o = _mm512_set1_ps(offset);
    for (int32_t i = 0; i < n; i += 16) {
        __mmask16 mask = mxc_lanes(n - i);
        mxc_vf a = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + i), r);
        mxc_vf b = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, w + i), o);
        _mm512_mask_storeu_ps(y + i, mask, _mm512_mul_ps(a, b));
    }
}

void mxc_avx512_layer_norm(float *y, const float *x, const float *w, const float *b, int32_t n,
                           float eps) {
    mxc_vf s0 = _mm512_setzero_ps(), s1 = _mm512_setzero_ps();
    for (int32_t i = 0; i < n; i += 32) {
        s0 = _mm512_add_ps(s0, _mm512_maskz_loadu_ps(mxc_lanes(n - i), x + i));
        s1 = _mm512_add_ps(s1, _mm512_maskz_loadu_ps(mxc_lanes(n - i - 16), x + i + 16));
    }
    mxc_vf mean = _mm512_set1_ps(_mm512_reduce_add_ps(_mm512_add_ps(s0, s1)) / (float)n);
    s0 = s1 = _mm512_setzero_ps();
    for (int32_t i = 0; i < n; i += 32) {
        __mmask16 m0 = mxc_lanes(n - i), m1 = mxc_lanes(n - i - 16);
        mxc_vf c0 = _mm512_maskz_sub_ps(m0, _mm512_maskz_loadu_ps(m0, x + i), mean);
        mxc_vf c1 = _mm512_maskz_sub_ps(m1, _mm512_maskz_loadu_ps(m1, x + i + 16), mean);
        s0 = _mm512_fmadd_ps(c0, c0, s0);
        s1 = _mm512_fmadd_ps(c1, c1, s1);
    }
    float sum = _mm512_reduce_add_ps(_mm512_add_ps(s0, s1));
    mxc_vf r = _mm512_set1_ps(1.0f / sqrtf(sum / (float)n + eps));
    for (int32_t i = 0; i < n; i += 16) {
        __mmask16 mask = mxc_lanes(n - i);
        mxc_vf a = _mm512_mul_ps(_mm512_sub_ps(_mm512_maskz_loadu_ps(mask, x + i), mean), r);
        mxc_vf z = b ? _mm512_maskz_loadu_ps(mask, b + i) : _mm512_setzero_ps();
        z = _mm512_fmadd_ps(a, _mm512_maskz_loadu_ps(mask, w + i), z);
        _mm512_mask_storeu_ps(y + i, mask, z);
    }
}

/* g / (1 + e^-z) */
MXC_INLINE mxc_vf sigmoid_gate(mxc_vf g, mxc_vf z) {
    mxc_vf e = mxc_exp(_mm512_sub_ps(_mm512_setzero_ps(), z));
    return _mm512_div_ps(g, _mm512_add_ps(_mm512_set1_ps(1), e));
}

/* tanh gives 0.5 (1 + tanh z) = 1 / (1 + e^-2z). */
MXC_INLINE mxc_vf gelu_tanh(mxc_vf g) {
    mxc_vf cube = _mm512_mul_ps(_mm512_mul_ps(g, g), g);
    mxc_vf z = _mm512_fmadd_ps(_mm512_set1_ps(0.044715f), cube, g);
    return sigmoid_gate(g, _mm512_mul_ps(z, _mm512_set1_ps(1.59576912160573071176f)));
}

MXC_INLINE mxc_vf gelu_quick(mxc_vf g) {
    return sigmoid_gate(g, _mm512_mul_ps(g, _mm512_set1_ps(MXC_CLIP_SLOPE)));
}

/* erf by Abramowitz and Stegun 7.1.26, absolute error below 1.5e-7. */
MXC_INLINE mxc_vf gelu(mxc_vf g) {
    mxc_vf one = _mm512_set1_ps(1), z = _mm512_mul_ps(g, _mm512_set1_ps(0.70710678118654752440f));
    mxc_vf a = _mm512_abs_ps(z);
    mxc_vf t = _mm512_div_ps(one, _mm512_fmadd_ps(a, _mm512_set1_ps(0.3275911f), one));
    mxc_vf p = _mm512_set1_ps(1.061405429f);
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-1.453152027f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(1.421413741f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-0.284496736f));
    p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(0.254829592f));
    mxc_vf e = mxc_exp(_mm512_sub_ps(_mm512_setzero_ps(), _mm512_mul_ps(a, a)));
    mxc_vf tail = _mm512_mul_ps(_mm512_mul_ps(p, t), e); /* 1 - erf |z| */
    /* 1 + erf z: 2 - tail for z >= 0, tail below */
    __mmask16 below = _mm512_cmp_ps_mask(z, _mm512_setzero_ps(), _CMP_LT_OQ);
    mxc_vf sum = _mm512_mask_mov_ps(_mm512_sub_ps(_mm512_set1_ps(2), tail), below, tail);
    return _mm512_mul_ps(_mm512_mul_ps(g, _mm512_set1_ps(0.5f)), sum);
}

/* min and max return their second operand for NaN. */
MXC_INLINE mxc_vf swiglu_clip(mxc_vf g, mxc_vf u) {
    const mxc_vf clip = _mm512_set1_ps(MXC_CLIP);
    g = _mm512_min_ps(clip, g);
    u = _mm512_max_ps(_mm512_set1_ps(-MXC_CLIP), _mm512_min_ps(clip, u));
    g = sigmoid_gate(g, _mm512_mul_ps(g, _mm512_set1_ps(MXC_CLIP_SLOPE)));
    return _mm512_mul_ps(g, _mm512_add_ps(u, _mm512_set1_ps(1)));
}

#define GLU(name, act)                                                                             \
    void mxc_avx512_glu_##name(float *y, const float *g, const float *u, int32_t n) {              \
        for (int32_t i = 0; i < n; i += 16) {                                                      \
            __mmask16 mask = mxc_lanes(n - i);                                                     \
            mxc_vf a = _mm512_maskz_loadu_ps(mask, g + i);                                         \
            mxc_vf b = _mm512_maskz_loadu_ps(mask, u + i);                                         \
            _mm512_mask_storeu_ps(y + i, mask, act);                                               \
        }                                                                                          \
    }
#define ACT(name, act)                                                                             \
    void mxc_avx512_act_##name(float *y, const float *x, int32_t n) {                              \
        for (int32_t i = 0; i < n; i += 16) {                                                      \
            __mmask16 mask = mxc_lanes(n - i);                                                     \
            mxc_vf a = _mm512_maskz_loadu_ps(mask, x + i);                                         \
            _mm512_mask_storeu_ps(y + i, mask, act);                                               \
        }                                                                                          \
    }
GLU(silu, _mm512_mul_ps(sigmoid_gate(a, a), b))
GLU(gelu, _mm512_mul_ps(gelu(a), b))
GLU(gelu_tanh, _mm512_mul_ps(gelu_tanh(a), b))
GLU(gelu_quick, _mm512_mul_ps(gelu_quick(a), b))
GLU(swiglu_clip, swiglu_clip(a, b))
ACT(silu, sigmoid_gate(a, a))
ACT(gelu, gelu(a))
ACT(gelu_tanh, gelu_tanh(a))
ACT(gelu_quick, gelu_quick(a))

void mxc_avx512_softcap(float *y, const float *x, float cap, int32_t n) {
    const mxc_vf c = _mm512_set1_ps(cap);
    for (int32_t i = 0; i < n; i += 16) {
        __mmask16 mask = mxc_lanes(n - i);
        mxc_vf z = _mm512_div_ps(_mm512_maskz_loadu_ps(mask, x + i), c);
        _mm512_mask_storeu_ps(y + i, mask, _mm512_mul_ps(c, mxc_tanh(z)));
    }
}
