/* Rulers, scalar level: what the base ISA does through the compiler's own vectors.
 * In: bytes or rounds. Out: what keeps the reads alive, or the operations of one round on 32 lanes.
 * The int8 ruler counts 32-bit integer multiply-adds.
 * Start values and results pass through volatile variables, so that the compiler can neither
 * compute the loops beforehand nor leave them out. */
#include "backend/cpu/kernels/rulers.h"

enum { LANES = 32 };

uint64_t mxc_scalar_ruler_read(const uint8_t *p, size_t bytes) {
    const uint64_t *q = (const uint64_t *)(const void *)p;
    uint64_t sum[8] = {0};
    for (size_t i = 0; i < bytes / sizeof *q; i += 8)
        for (size_t j = 0; j < 8; j++)
            sum[j] |= q[i + j];
    return sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7];
}

double mxc_scalar_ruler_int8(long rounds) {
    volatile int8_t seed[2] = {3, -5};
    int32_t sum[LANES] = {0};
    int8_t a = seed[0], b = seed[1];
    for (long i = 0; i < rounds; i++)
        for (int j = 0; j < LANES; j++)
            sum[j] = (int32_t)((uint32_t)sum[j] * 3u + (uint32_t)(a * b));
    volatile int32_t sink = 0;
    for (int j = 0; j < LANES; j++)
        sink = sum[j];
    (void)sink;
    return 2 * LANES;
}

double mxc_scalar_ruler_f32(long rounds) {
    volatile float seed[2] = {0.999f, 0.5f};
    float sum[LANES] = {0}, a = seed[0], b = seed[1];
    for (long i = 0; i < rounds; i++)
        for (int j = 0; j < LANES; j++)
            sum[j] = sum[j] * a + b;
    volatile float sink = 0;
    for (int j = 0; j < LANES; j++)
        sink = sum[j];
    (void)sink;
    return 2 * LANES;
}
