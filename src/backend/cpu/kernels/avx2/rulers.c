/* Rulers, AVX2: the most that this level's instructions do on this core.
 * Reads: eight independent chains of OR over aligned data, so that nothing but loads can limit
 * them. int8: vpmaddubsw with the two instructions that must follow it, as in the products. f32:
 * fma.
 * Ten accumulators per loop cover the latency of their instruction. The empty asm makes every
 * round's result wanted, so that the compiler drops and merges none. */
#include "backend/cpu/kernels/rulers.h"

#include <immintrin.h>

#define TEN(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9)

uint64_t mxc_avx2_ruler_read(const uint8_t *p, size_t bytes) {
    __m256i sum[8];
    for (int j = 0; j < 8; j++)
        sum[j] = _mm256_setzero_si256();
    for (size_t i = 0; i < bytes; i += 256)
        for (int j = 0; j < 8; j++) {
            const void *q = p + i + 32 * (size_t)j;
            sum[j] = _mm256_or_si256(sum[j], _mm256_load_si256(q));
        }
    for (int j = 1; j < 8; j++)
        sum[0] = _mm256_or_si256(sum[0], sum[j]);
    return (uint64_t)_mm256_extract_epi64(sum[0], 0) ^ (uint64_t)_mm256_extract_epi64(sum[0], 3);
}

#define DECLARE(i) acc##i = zero,
#define DOT_INT8(i)                                                                                \
    acc##i = _mm256_add_epi32(acc##i, _mm256_madd_epi16(_mm256_maddubs_epi16(a, acc##i), ones));
#define FMA(i)  acc##i = _mm256_fmadd_ps(a, a, acc##i);
#define KEEP(i) __asm__ volatile("" : "+x"(acc##i));

double mxc_avx2_ruler_int8(long rounds) {
    __m256i ones = _mm256_set1_epi16(1);
    __m256i zero = _mm256_setzero_si256(), TEN(DECLARE) a = zero;
    __asm__ volatile("" : "+x"(a));
    for (long i = 0; i < rounds; i++) {
        TEN(DOT_INT8)
        TEN(KEEP)
    }
    return 10 * 64;
}

double mxc_avx2_ruler_f32(long rounds) {
    __m256 zero = _mm256_setzero_ps(), TEN(DECLARE) a = zero;
    __asm__ volatile("" : "+x"(a));
    for (long i = 0; i < rounds; i++) {
        TEN(FMA)
        TEN(KEEP)
    }
    return 10 * 16;
}
