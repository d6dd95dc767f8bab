/* Rulers, aarch64 with matrix products: the most smmla and bfmmla on this core. Sixteen
 * accumulators cover the latency on four pipes; the empty asm makes every round's result wanted. */
#include "backend/cpu/kernels/rulers.h"

#include <arm_neon.h>

#define SIXTEEN(X)                                                                                 \
    X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
#define DECLARE(i)  acc##i = zero,
#define MULTIPLY(i) acc##i = vmmlaq_s32(acc##i, a, a);
#define BF16(i)     acc##i = vbfmmlaq_f32(acc##i, a, a);
#define KEEP(i)     __asm__ volatile("" : "+w"(acc##i));

double mxc_i8mm_ruler_int8(long rounds) {
    int32x4_t zero = vdupq_n_s32(0), SIXTEEN(DECLARE) last = zero;
    int8x16_t a = vreinterpretq_s8_s32(last);
    __asm__ volatile("" : "+w"(a));
    for (long i = 0; i < rounds; i++) {
        SIXTEEN(MULTIPLY)
        SIXTEEN(KEEP)
    }
    return 16 * 64;
}

double mxc_i8mm_ruler_bf16(long rounds) {
    float32x4_t zero = vdupq_n_f32(0), SIXTEEN(DECLARE) last = zero;
    bfloat16x8_t a = vreinterpretq_bf16_f32(last);
    __asm__ volatile("" : "+w"(a));
    for (long i = 0; i < rounds; i++) {
        SIXTEEN(BF16)
        SIXTEEN(KEEP)
    }
    return 16 * 32;
}
