/* Rulers, NEON: the most that this level's instructions do on this core.
 * Reads: eight independent chains of OR, so that nothing but loads can limit them. int8: sdot. f32:
 * fmla.
 * Sixteen accumulators per loop cover the latency of their instruction on four pipes. The empty asm
 * makes every round's result wanted, so that the compiler drops and merges none. */
#include "backend/cpu/kernels/rulers.h"

#include <arm_neon.h>

#define SIXTEEN(X)                                                                                 \
    X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)

uint64_t mxc_neon_ruler_read(const uint8_t *p, size_t bytes) {
    uint8x16_t sum[8];
    for (int j = 0; j < 8; j++)
        sum[j] = vdupq_n_u8(0);
    for (size_t i = 0; i < bytes; i += 128)
        for (int j = 0; j < 8; j++)
            sum[j] = vorrq_u8(sum[j], vld1q_u8(p + i + 16 * (size_t)j));
    for (int j = 1; j < 8; j++)
        sum[0] = vorrq_u8(sum[0], sum[j]);
    uint64x2_t all = vreinterpretq_u64_u8(sum[0]);
    return vgetq_lane_u64(all, 0) ^ vgetq_lane_u64(all, 1);
}

#define DECLARE(i)  acc##i = zero,
#define DOT_INT8(i) acc##i = vdotq_s32(acc##i, a, a);
#define FMA(i)      acc##i = vfmaq_f32(acc##i, a, a);
#define KEEP(i)     __asm__ volatile("" : "+w"(acc##i));

double mxc_neon_ruler_int8(long rounds) {
    int32x4_t zero = vdupq_n_s32(0), SIXTEEN(DECLARE) last = zero;
    int8x16_t a = vreinterpretq_s8_s32(last);
    __asm__ volatile("" : "+w"(a));
    for (long i = 0; i < rounds; i++) {
        SIXTEEN(DOT_INT8)
        SIXTEEN(KEEP)
    }
    return 16 * 32;
}

double mxc_neon_ruler_f32(long rounds) {
    float32x4_t zero = vdupq_n_f32(0), SIXTEEN(DECLARE) a = zero;
    __asm__ volatile("" : "+w"(a));
    for (long i = 0; i < rounds; i++) {
        SIXTEEN(FMA)
        SIXTEEN(KEEP)
    }
    return 16 * 8;
}
