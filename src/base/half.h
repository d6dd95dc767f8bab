/* Scalar conversions: IEEE binary16 and bfloat16 to and from float (round to nearest even). */
#ifndef MXC_BASE_HALF_H
#define MXC_BASE_HALF_H

#include <stdint.h>
#include <string.h>

static inline float mxc_f32_of_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint32_t mxc_f32_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float mxc_bf16_to_f32(uint16_t h) {
    return mxc_f32_of_bits((uint32_t)h << 16);
}

static inline uint16_t mxc_f32_to_bf16(float f) {
    uint32_t u = mxc_f32_bits(f);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7FFFu + (u >> 16 & 1)) >> 16);
}

static inline float mxc_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 0x3FF;
    if (e == 31)
        return mxc_f32_of_bits(sign | 0x7F800000u | m << 13);
    if (e)
        return mxc_f32_of_bits(sign | (e + 112) << 23 | m << 13);
    float f = (float)m * 0x1p-24f;
    return sign ? -f : f;
}

static inline uint16_t mxc_f32_to_f16(float f) {
    uint32_t u = mxc_f32_bits(f), sign = u >> 16 & 0x8000, a = u & 0x7FFFFFFFu;
    if (a >= 0x7F800000u)
        return (uint16_t)(sign | 0x7C00 | (a > 0x7F800000u ? 0x200 | (a >> 13 & 0x3FF) : 0));
    if (a >= 0x477FF000u)
        return (uint16_t)(sign | 0x7C00);
    if (a < 0x38800000u) { /* subnormal: 2^-24 units, the addition rounds to nearest even */
        float r = mxc_f32_of_bits(a) + 0.5f;
        return (uint16_t)(sign | (mxc_f32_bits(r) - 0x3F000000u));
    }
    return (uint16_t)(sign | (a - 0x38000000u + 0xFFFu + (a >> 13 & 1)) >> 13);
}

#endif
