/* Shared by the AVX2 kernels: vector names, lane masks, exponentials, the store behind every
 * matmul. Everything here is inline; a result depends on its inputs alone. */
#ifndef MXC_BACKEND_CPU_KERNELS_AVX2_H
#define MXC_BACKEND_CPU_KERNELS_AVX2_H

#include "backend/cpu/kernels/layout.h"

#include <immintrin.h>
#include <string.h>

#define MXC_INLINE static inline __attribute__((always_inline))

#define MXC_KERNEL_SCALAR(isa, slot, name)
#define MXC_KERNEL_AVX512(isa, slot, name)
#define MXC_KERNEL_AVX2(isa, slot, name)                                                           \
    extern __typeof__(*((struct mxc_kernels *)0)->slot) mxc_##isa##_##name;
#define MXC_KERNEL(LEVEL, isa, KIND, slot, index, name) MXC_KERNEL_##LEVEL(isa, slot, name)
#include "backend/cpu/kernels/kernels.def"
#undef MXC_KERNEL

typedef __m256 mxc_vf;
typedef __m256i mxc_vi;

/* Prefetch that stays where it is written: compilers gather the intrinsic's into bursts. */
MXC_INLINE void mxc_prefetch(const void *p) {
    __asm__ volatile("prefetcht0 %0" : : "m"(*(const char *)p));
}

/* To L2: for short pieces in random order, where the first level's few miss buffers are the limit
 * (KV pages, Zen 4: 20 GB/s against 11 with prefetcht0). */
MXC_INLINE void mxc_prefetch_l2(const void *p) {
    __asm__ volatile("prefetcht1 %0" : : "m"(*(const char *)p));
}

/* All bits in lanes [0, n) of 8; n may be negative or above 8. */
MXC_INLINE mxc_vi mxc_lanes(int64_t n) {
    int32_t k = n >= 8 ? 8 : n <= 0 ? 0 : (int32_t)n;
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(k), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

MXC_INLINE mxc_vf mxc_load(const float *p, int64_t n) {
    return n >= 8 ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, mxc_lanes(n));
}

MXC_INLINE void mxc_save(float *p, int64_t n, mxc_vf x) {
    if (n >= 8)
        _mm256_storeu_ps(p, x);
    else
        _mm256_maskstore_ps(p, mxc_lanes(n), x);
}

/* One fixed tree. */
MXC_INLINE float mxc_sum(mxc_vf x) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

MXC_INLINE float mxc_max(mxc_vf x) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

MXC_INLINE mxc_vf mxc_round(mxc_vf x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* 2^n for integral n in [-126, 127]. */
MXC_INLINE mxc_vf mxc_power(mxc_vi n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}

/* 2^x for x <= 127; exactly 0 below -126. Relative error below 1.2e-7 (the polynomial, degree 6 on
 * [-1/2, 1/2] through its Chebyshev points: 5e-9). */
MXC_INLINE mxc_vf mxc_exp2(mxc_vf x) {
    mxc_vf keep = _mm256_cmp_ps(x, _mm256_set1_ps(-126), _CMP_NLT_UQ);
    mxc_vf n = mxc_round(x), f = _mm256_sub_ps(x, n), p = _mm256_set1_ps(1.545316295e-4f);
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.339086336e-3f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(9.618082557e-3f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(5.550357114e-2f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(2.402265076e-1f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(6.931471880e-1f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1));
    return _mm256_and_ps(keep, _mm256_mul_ps(p, mxc_power(_mm256_cvtps_epi32(n))));
}

/* e^x, relative error below 1.2e-7; 0 and infinity where f32 ends. ln 2 is split in two so that
 * the reduced argument is exact; the power is applied in two steps to reach both ends. */
MXC_INLINE mxc_vf mxc_exp(mxc_vf x) {
    /* NaN passes: max and min return their second operand then */
    x = _mm256_max_ps(_mm256_set1_ps(-126), _mm256_min_ps(_mm256_set1_ps(126), x));
    mxc_vf n = mxc_round(_mm256_mul_ps(x, _mm256_set1_ps(MXC_LOG2E)));
    mxc_vf r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
    mxc_vf p = _mm256_set1_ps(1.392692661e-3f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(8.363773874e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(4.166655011e-2f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.666657338e-1f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
    p = _mm256_fmadd_ps(_mm256_mul_ps(r, r), p, r);
    mxc_vi i = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(i, 1);
    p = _mm256_mul_ps(_mm256_add_ps(p, _mm256_set1_ps(1)), mxc_power(half));
    return _mm256_mul_ps(p, mxc_power(_mm256_sub_epi32(i, half)));
}

/* tanh, absolute error below 1.5e-7. */
MXC_INLINE mxc_vf mxc_tanh(mxc_vf x) {
    mxc_vf one = _mm256_set1_ps(1), e = mxc_exp(_mm256_add_ps(x, x));
    return _mm256_sub_ps(one, _mm256_div_ps(_mm256_set1_ps(2), _mm256_add_ps(e, one)));
}

/* Eight bf16, rounded to nearest even; NaN stays NaN. */
MXC_INLINE __m128i mxc_bf16(mxc_vf x) {
    mxc_vi u = _mm256_castps_si256(x), high = _mm256_srli_epi32(u, 16);
    mxc_vi odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    mxc_vi y = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    mxc_vi nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    y = _mm256_blendv_epi8(_mm256_srli_epi32(y, 16), _mm256_or_si256(high, _mm256_set1_epi32(0x40)),
                           nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
}

/* The two halves of eight bf16 pairs as f32. */
MXC_INLINE mxc_vf mxc_pair_low(mxc_vi pair) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16));
}
MXC_INLINE mxc_vf mxc_pair_high(mxc_vi pair) {
    return _mm256_castsi256_ps(_mm256_and_si256(pair, _mm256_set1_epi32(-65536)));
}

/* Four bytes of an array in every lane. */
MXC_INLINE mxc_vi mxc_broadcast4(const void *p) {
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm256_set1_epi32(four);
}

/* Eight outputs at out[at ...], columns from `column`; those >= n are not written. */
MXC_INLINE void mxc_store(float *out, size_t at, size_t column, int32_t n, mxc_vf y,
                          const struct mxc_epilogue *e) {
    int64_t left = (int64_t)n - (int64_t)column;
    if (e) {
        if (e->bias)
            y = _mm256_add_ps(y, mxc_load(e->bias + column, left));
        y = _mm256_mul_ps(y, _mm256_set1_ps(e->scale));
        if (e->residual)
            y = _mm256_add_ps(y, mxc_load(e->residual + at, left));
    }
    mxc_save(out + at, left, y);
}

#endif
