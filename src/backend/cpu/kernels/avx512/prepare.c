/* Prepare, AVX-512: activations to tiles, query rows and new keys and values to the KV types. The
 * bytes are those of the scalar level. */
#include "backend/cpu/kernels/avx512/avx512.h"

#include <string.h>

void mxc_avx512_prepare_f32(struct mxc_activation *a, const float *x, size_t ldx, int32_t row0,
                            int32_t row1) {
    size_t kp = mxc_padded_k(a->form, a->k);
    for (int32_t c = row0; c < row1; c++) {
        int32_t c0 = c / MXC_TILE_F32 * MXC_TILE_F32;
        size_t width = (size_t)mxc_tile_width(a, c0);
        float *q = (float *)(void *)a->data + (size_t)c0 * kp + (size_t)(c - c0) * MXC_CELL_F32;
        const float *row = x + (size_t)c * ldx;
        for (int32_t i = 0; i < a->k; i += MXC_CELL_F32, q += width * MXC_CELL_F32)
            _mm512_store_ps(q, _mm512_maskz_loadu_ps(mxc_lanes(a->k - i), row + i));
    }
}

void mxc_avx512_prepare_bf16(struct mxc_activation *a, const float *x, size_t ldx, int32_t row0,
                             int32_t row1) {
    size_t kp = mxc_padded_k(a->form, a->k);
    for (int32_t c = row0; c < row1; c++) {
        int32_t c0 = c / MXC_TILE_BF16 * MXC_TILE_BF16;
        size_t width = (size_t)mxc_tile_width(a, c0);
        uint16_t *q = (uint16_t *)(void *)a->data + (size_t)c0 * kp;
        q += (size_t)(c - c0) * MXC_CELL_BF16;
        const float *row = x + (size_t)c * ldx;
        for (int32_t i = 0; i < a->k; i += MXC_CELL_BF16, q += width * MXC_CELL_BF16) {
            mxc_vf low = _mm512_maskz_loadu_ps(mxc_lanes(a->k - i), row + i);
            mxc_vf high = _mm512_maskz_loadu_ps(mxc_lanes(a->k - i - 16), row + i + 16);
            _mm512_store_si512(q, (mxc_vi)_mm512_cvtne2ps_pbh(high, low));
        }
    }
}

/* Largest |x|; as integers, so that NaN is above infinity and is not lost. */
static float row_max(const float *x, int32_t k) {
    mxc_vi m0 = _mm512_setzero_si512(), m1 = m0, magnitude = _mm512_set1_epi32(0x7FFFFFFF);
    for (int32_t i = 0; i < k; i += 32) {
        mxc_vi a = _mm512_maskz_loadu_epi32(mxc_lanes(k - i), x + i);
        mxc_vi b = _mm512_maskz_loadu_epi32(mxc_lanes(k - i - 16), x + i + 16);
        m0 = _mm512_max_epi32(m0, _mm512_and_si512(a, magnitude));
        m1 = _mm512_max_epi32(m1, _mm512_and_si512(b, magnitude));
    }
    int32_t bits = _mm512_reduce_max_epi32(_mm512_max_epi32(m0, m1));
    float max;
    memcpy(&max, &bits, sizeof max);
    return max;
}

MXC_INLINE __m128i codes_of(const float *x, int64_t left, mxc_vf inverse) {
    mxc_vf v = left >= 16 ? _mm512_loadu_ps(x) : _mm512_maskz_loadu_ps(mxc_lanes(left), x);
    /* a row with an infinity has inverse 0; 0 * inf is no number and converts to INT32_MIN, whose
     * low byte is the 0 it should be */
    return _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(v, inverse)));
}

void mxc_avx512_prepare_i8(struct mxc_activation *a, const float *x, size_t ldx, int32_t row0,
                           int32_t row1) {
    struct mxc_i8_view v = mxc_i8_view(a);
    const mxc_vi ones = _mm512_set1_epi8(1);
    for (int32_t c = row0; c < row1; c++) {
        size_t c0 = (size_t)(c / MXC_TILE_I8 * MXC_TILE_I8), ci = (size_t)c - c0;
        size_t width = (size_t)mxc_tile_width(a, (int32_t)c0);
        const float *row = x + (size_t)c * ldx;
        float inverse;
        v.scale[c] = mxc_i8_scale(row_max(row, a->k), &inverse);
        mxc_vf factor = _mm512_set1_ps(inverse);
        int8_t *q = v.codes + c0 * v.kp + ci * MXC_CELL_I8;
        int32_t *s16 = v.sums[0] + c0 * (v.kp / 16) + ci, *s32 = v.sums[1] + c0 * (v.kp / 32) + ci;
        int32_t *s64 = v.sums[2] + c0 * (v.kp / 64) + ci;
        for (size_t i = 0; i < v.kp; i += 64, row += 64, q += 2 * width * MXC_CELL_I8) {
            int64_t left = a->k - (int64_t)i;
            __m128i b0 = codes_of(row, left, factor), b1 = codes_of(row + 16, left - 16, factor);
            __m128i b2 = codes_of(row + 32, left - 32, factor);
            __m128i b3 = codes_of(row + 48, left - 48, factor);
            __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(b0), b1, 1);
            __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(b2), b3, 1);
            _mm256_store_si256((void *)q, low);
            _mm256_store_si256((void *)(q + width * MXC_CELL_I8), high);
            /* sums of 16 codes in every lane of a 128-bit part */
            mxc_vi all = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
            mxc_vi s = _mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, all);
            s = _mm512_add_epi32(s, _mm512_shuffle_epi32(s, (_MM_PERM_ENUM)0x4E));
            s = _mm512_add_epi32(s, _mm512_shuffle_epi32(s, (_MM_PERM_ENUM)0xB1));
            s = _mm512_sub_epi32(_mm512_setzero_si512(), s);
            __m128i p0 = _mm512_castsi512_si128(s), p1 = _mm512_extracti32x4_epi32(s, 1);
            __m128i p2 = _mm512_extracti32x4_epi32(s, 2), p3 = _mm512_extracti32x4_epi32(s, 3);
            int32_t t0 = _mm_cvtsi128_si32(p0), t1 = _mm_cvtsi128_si32(p1);
            int32_t t2 = _mm_cvtsi128_si32(p2), t3 = _mm_cvtsi128_si32(p3);
            s16[0] = t0;
            s16[width] = t1;
            s16[2 * width] = t2;
            s16[3 * width] = t3;
            s32[0] = t0 + t1;
            s32[width] = t2 + t3;
            s64[0] = t0 + t1 + t2 + t3;
            s16 += 4 * width;
            s32 += 2 * width;
            s64 += width;
        }
    }
}

void mxc_avx512_prepare_q_f32(void *out, const float *q, int32_t k_dim, float scale) {
    mxc_vf s = _mm512_set1_ps(scale * MXC_LOG2E);
    for (int32_t i = 0; i < k_dim; i += 16) {
        __mmask16 mask = mxc_lanes(k_dim - i);
        mxc_vf y = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, q + i), s);
        _mm512_mask_storeu_ps((float *)out + i, mask, y);
    }
}

void mxc_avx512_prepare_q_bf16(void *out, const float *q, int32_t k_dim, float scale) {
    mxc_vf s = _mm512_set1_ps(scale * MXC_LOG2E);
    for (int32_t i = 0; i < k_dim; i += 16) {
        __mmask16 mask = mxc_lanes(k_dim - i);
        __m256i y =
            (__m256i)_mm512_cvtneps_pbh(_mm512_mul_ps(_mm512_maskz_loadu_ps(mask, q + i), s));
        _mm256_mask_storeu_epi16((uint16_t *)out + i, mask, y);
    }
}

void mxc_avx512_append_bf16(uint8_t *page, int32_t slot, const float *k, const float *v,
                            int32_t k_dim, int32_t v_dim) {
    uint32_t *to = (uint32_t *)(void *)page + slot;
    for (int32_t i = 0; i < k_dim; i += 16) {
        uint32_t pairs[8];
        __m256i y = (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mxc_lanes(k_dim - i), k + i));
        _mm256_storeu_si256((void *)pairs, y);
        for (int32_t j = 0; j < 8 && i + 2 * j < k_dim; j++, to += MXC_ATTN_PAGE)
            *to = pairs[j];
    }
    /* the other key of the pair may be written by another thread: only our halves are stored */
    uint8_t *row = page + mxc_page_v(MXC_KV_BF16, k_dim) + (size_t)(slot / 2) * (size_t)v_dim * 4;
    __mmask32 ours = slot % 2 ? 0xAAAAAAAAu : 0x55555555u;
    for (int32_t i = 0; i < v_dim; i += 16, row += 64) {
        __m256i y = (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mxc_lanes(v_dim - i), v + i));
        mxc_vi wide = _mm512_cvtepu16_epi32(y);
        if (slot % 2)
            wide = _mm512_slli_epi32(wide, 16);
        __mmask32 mask = v_dim - i >= 16 ? ours : ours & ((1u << (2 * (v_dim - i))) - 1);
        _mm512_mask_storeu_epi16(row, mask, wide);
    }
}
