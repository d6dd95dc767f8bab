/* Shared by the AVX-512 kernels: vector names, exponentials, the store behind every matmul.
 * Everything here is inline; a result depends on its inputs alone. */
#ifndef MXC_BACKEND_CPU_KERNELS_AVX512_H
#define MXC_BACKEND_CPU_KERNELS_AVX512_H

#include "backend/cpu/kernels/layout.h"

#include <immintrin.h>
#include <string.h>

#define MXC_INLINE static inline __attribute__((always_inline))

#define MXC_KERNEL_SCALAR(isa, slot, name)
#define MXC_KERNEL_AVX2(isa, slot, name)
#define MXC_KERNEL_AVX512(isa, slot, name)                                                         \
    extern __typeof__(*((struct mxc_kernels *)0)->slot) mxc_##isa##_##name;
#define MXC_KERNEL(LEVEL, isa, KIND, slot, index, name) MXC_KERNEL_##LEVEL(isa, slot, name)
#include "backend/cpu/kernels/kernels.def"
#undef MXC_KERNEL

typedef __m512 mxc_vf;
typedef __m512i mxc_vi;

/* Four bytes of an array in every lane. */
MXC_INLINE mxc_vi mxc_broadcast4(const void *p) {
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm512_set1_epi32(four);
}

/* Prefetch that stays where it is written: compilers gather the intrinsic's into bursts, which
 * overrun the miss buffers (decode fell from 97 % to 40 % of the read bandwidth). */
MXC_INLINE void mxc_prefetch(const void *p) {
    __asm__ volatile("prefetcht0 %0" : : "m"(*(const char *)p));
}

/* To L2: for short pieces in random order, where the first level's few miss buffers are the limit
 * (KV pages, Zen 4: 20 GB/s against 11 with prefetcht0). */
MXC_INLINE void mxc_prefetch_l2(const void *p) {
    __asm__ volatile("prefetcht1 %0" : : "m"(*(const char *)p));
}

/* Lanes [0, n) of 16; n may be negative or above 16. */
MXC_INLINE __mmask16 mxc_lanes(int64_t n) {
    return (__mmask16)(n >= 16 ? 0xFFFFu : n <= 0 ? 0u : (1u << n) - 1);
}

/* 2^x for x <= 127; exactly 0 below -126. Relative error below 1.2e-7 (the polynomial, degree 6 on
 * [-1/2, 1/2] through its Chebyshev points: 5e-9). */
MXC_INLINE mxc_vf mxc_exp2(mxc_vf x) {
    __mmask16 keep = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126), _CMP_NLT_UQ);
    mxc_vf n = _mm512_roundscale_ps(x, 8), f = _mm512_sub_ps(x, n);
    mxc_vf p = _mm512_set1_ps(1.545316295e-4f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.339086336e-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.618082557e-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.550357114e-2f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.402265076e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.931471880e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1));
    return _mm512_maskz_scalef_ps(keep, p, n);
}

/* e^x, relative error below 1.2e-7; 0 and infinity where f32 ends. ln 2 is split in two so that
 * the reduced argument is exact. */
MXC_INLINE mxc_vf mxc_exp(mxc_vf x) {
    /* NaN passes: max and min return their second operand then */
    x = _mm512_max_ps(_mm512_set1_ps(-126), _mm512_min_ps(_mm512_set1_ps(126), x));
    mxc_vf n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(MXC_LOG2E)), 8);
    mxc_vf r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    mxc_vf p = _mm512_set1_ps(1.392692661e-3f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.363773874e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.166655011e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.666657338e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(_mm512_mul_ps(r, r), p, r);
    return _mm512_scalef_ps(_mm512_add_ps(p, _mm512_set1_ps(1)), n);
}

/* tanh, absolute error below 1.5e-7. */
MXC_INLINE mxc_vf mxc_tanh(mxc_vf x) {
    mxc_vf one = _mm512_set1_ps(1), e = mxc_exp(_mm512_add_ps(x, x));
    return _mm512_sub_ps(one, _mm512_div_ps(_mm512_set1_ps(2), _mm512_add_ps(e, one)));
}

/* Sixteen outputs at out[at ...], columns from `column`; those >= n are not written. */
MXC_INLINE void mxc_store(float *out, size_t at, size_t column, int32_t n, mxc_vf y,
                          const struct mxc_epilogue *e) {
    __mmask16 mask = mxc_lanes((int64_t)n - (int64_t)column);
    if (e) {
        if (e->bias)
            y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(mask, e->bias + column));
        y = _mm512_mul_ps(y, _mm512_set1_ps(e->scale));
        if (e->residual)
            y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(mask, e->residual + at));
    }
    _mm512_mask_storeu_ps(out + at, mask, y);
}

#endif
