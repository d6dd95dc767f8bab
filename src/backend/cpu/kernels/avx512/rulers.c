/* Rulers, AVX-512: the most that this level's instructions do on this core.
 * Reads: eight independent chains of OR over aligned data. Arithmetic on registers only: vpdpbusd
 * (int8), vdpbf16ps (bf16), fma (f32), with sixteen accumulators to cover their latency.
 * In: bytes or rounds. Out: what keeps the reads alive, or the operations of one round.
 * The empty asm makes every round's result wanted, so that the compiler drops and merges none. */
#include "backend/cpu/kernels/rulers.h"

#include <immintrin.h>

#define SIXTEEN(X)                                                                                 \
    X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)

uint64_t mxc_avx512_ruler_read(const uint8_t *p, size_t bytes) {
    __m512i sum[8];
    for (int j = 0; j < 8; j++)
        sum[j] = _mm512_setzero_si512();
    for (size_t i = 0; i < bytes; i += 512)
        for (int j = 0; j < 8; j++)
            sum[j] = _mm512_or_si512(sum[j], _mm512_load_si512(p + i + 64 * (size_t)j));
    for (int j = 1; j < 8; j++)
        sum[0] = _mm512_or_si512(sum[0], sum[j]);
    return (uint64_t)_mm512_reduce_or_epi64(sum[0]);
}

#define DECLARE(i)  acc##i = zero,
#define DOT_INT8(i) acc##i = _mm512_dpbusd_epi32(acc##i, a, a);
#define DOT_BF16(i) acc##i = _mm512_dpbf16_ps(acc##i, (__m512bh)b, (__m512bh)b);
#define FMA(i)      acc##i = _mm512_fmadd_ps(a, a, acc##i);
#define KEEP(i)     __asm__ volatile("" : "+v"(acc##i));

double mxc_avx512_ruler_int8(long rounds) {
    __m512i zero = _mm512_setzero_si512(), SIXTEEN(DECLARE) a = zero;
    __asm__ volatile("" : "+v"(a));
    for (long i = 0; i < rounds; i++) {
        SIXTEEN(DOT_INT8)
        SIXTEEN(KEEP)
    }
    return 16 * 128;
}

double mxc_avx512_ruler_bf16(long rounds) {
    __m512i b = _mm512_setzero_si512();
    __m512 zero = _mm512_setzero_ps(), SIXTEEN(DECLARE) unused = zero;
    (void)unused;
    __asm__ volatile("" : "+v"(b));
    for (long i = 0; i < rounds; i++) {
        SIXTEEN(DOT_BF16)
        SIXTEEN(KEEP)
    }
    return 16 * 64;
}

double mxc_avx512_ruler_f32(long rounds) {
    __m512 zero = _mm512_setzero_ps(), SIXTEEN(DECLARE) a = zero;
    __asm__ volatile("" : "+v"(a));
    for (long i = 0; i < rounds; i++) {
        SIXTEEN(FMA)
        SIXTEEN(KEEP)
    }
    return 16 * 32;
}
