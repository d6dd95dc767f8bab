/* Numbers of 8 bits as f32, exactly. Pure functions without branches, so that loops vectorise. */
#ifndef MXC_QUANT_FLOAT8_H
#define MXC_QUANT_FLOAT8_H

#include "base/half.h"

/* 4 bits of exponent (bias 7), 3 of mantissa; all ones is NaN and there is no infinity. */
static inline float mxc_e4m3_to_f32(uint8_t b) {
    uint32_t u = (uint32_t)(b & 0x7F) << 20, sign = (uint32_t)(b & 0x80) << 24;
    uint32_t scaled = mxc_f32_bits(mxc_f32_of_bits(u) * 0x1p120f);
    uint32_t nan = (0u - (uint32_t)((b & 0x7F) == 0x7F)) & 0x7FC00000u;
    return mxc_f32_of_bits(scaled | nan | sign);
}

/* The upper byte of an f16. */
static inline float mxc_e5m2_to_f32(uint8_t b) {
    uint32_t u = (uint32_t)(b & 0x7F) << 21, sign = (uint32_t)(b & 0x80) << 24;
    uint32_t scaled = mxc_f32_bits(mxc_f32_of_bits(u) * 0x1p112f);
    uint32_t infinite = (0u - (uint32_t)((b & 0x7F) >= 0x7C)) & 0x7F800000u;
    return mxc_f32_of_bits(scaled | infinite | sign);
}

/* 2^(b - 128): half of the power that b stands for, to go with doubled e2m1 numbers. Never
 * infinite; below 2^-126 the numbers are subnormal. */
static inline float mxc_e8m0_half(uint8_t b) {
    return mxc_f32_of_bits(b < 2 ? 0x00200000u << b : (uint32_t)(b - 1) << 23);
}

#endif
