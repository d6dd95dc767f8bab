/* What is laid out before a product or attention runs, AVX-512: activations to tiles, query rows
 * and new keys and values to the KV types.
 * In: rows of f32. Out: the layouts of layout.h; the padding of a tile is zero. Two int8 cells of
 * 32 numbers are made at a time.
 * Invariants: the bytes are those of the scalar level, and a row's bytes depend on that row alone.
 * A new value is stored by masked halves, because another thread may write the other key of the
 * pair. Maxima are compared as integers, so a NaN in the input reaches the scale. */
#include "backend/cpu/kernels/avx512/avx512.h"

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

/* Cell by cell over the rows of a tile, so that the tile is written as one stream. */
void mxc_avx512_prepare_bf16(struct mxc_activation *a, const float *x, size_t ldx, int32_t row0,
                             int32_t row1) {
    size_t kp = mxc_padded_k(a->form, a->k);
    for (int32_t c = row0; c < row1; c += MXC_TILE_BF16) {
        int32_t width = mxc_tile_width(a, c);
        uint16_t *q = (uint16_t *)(void *)a->data + (size_t)c * kp;
        const float *rows = x + (size_t)c * ldx;
        for (int32_t i = 0; i < a->k; i += MXC_CELL_BF16, rows += MXC_CELL_BF16) {
            __mmask16 m0 = mxc_lanes(a->k - i), m1 = mxc_lanes(a->k - i - 16);
            const float *row = rows;
            for (int32_t r = 0; r < width; r++, q += MXC_CELL_BF16, row += ldx) {
                mxc_vf low = _mm512_maskz_loadu_ps(m0, row);
                mxc_vf high = _mm512_maskz_loadu_ps(m1, row + 16);
                _mm512_store_si512(q, (mxc_vi)_mm512_cvtne2ps_pbh(high, low));
            }
        }
    }
}

/* Largest |x| of two cells of 32, in the lower and the upper eight lanes; compared as integers, so
 * that NaN is above infinity and is not lost. */
MXC_INLINE mxc_vf cells_max(const mxc_vf y[4]) {
    mxc_vi m[2], magnitude = _mm512_set1_epi32(0x7FFFFFFF);
    for (int i = 0; i < 2; i++)
        m[i] = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(y[2 * i]), magnitude),
                                _mm512_and_si512(_mm512_castps_si512(y[2 * i + 1]), magnitude));
    mxc_vi t = _mm512_max_epi32(_mm512_inserti64x4(m[0], _mm512_castsi512_si256(m[1]), 1),
                                _mm512_shuffle_i64x2(m[0], m[1], 0xEE));
    t = _mm512_max_epi32(t, _mm512_shuffle_i32x4(t, t, 0xB1));
    t = _mm512_max_epi32(t, _mm512_shuffle_epi32(t, (_MM_PERM_ENUM)0x4E));
    t = _mm512_max_epi32(t, _mm512_shuffle_epi32(t, (_MM_PERM_ENUM)0xB1));
    return _mm512_castsi512_ps(t);
}

/* mxc_i8_scale for every lane. */
MXC_INLINE mxc_vf cells_scale(mxc_vf max, mxc_vf *inverse) {
    __mmask16 some = _mm512_cmp_ps_mask(max, _mm512_set1_ps(1e-30f), _CMP_NLE_UQ);
    __mmask16 finite = _mm512_cmp_ps_mask(max, _mm512_set1_ps(3.0e38f), _CMP_LE_OQ);
    *inverse = _mm512_maskz_div_ps(some & finite, _mm512_set1_ps(127), max);
    mxc_vf scale = _mm512_maskz_mul_ps(some, max, _mm512_set1_ps(1.0f / 127.0f));
    return _mm512_mask_mov_ps(_mm512_set1_ps(NAN), finite, scale);
}

/* A cell with an infinity has factor 0; 0 * inf is no number and converts to INT32_MIN, whose low
 * byte is the 0 it should be. */
MXC_INLINE __m128i codes_of(mxc_vf x, mxc_vf factor) {
    return _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(x, factor)));
}

void mxc_avx512_prepare_i8(struct mxc_activation *a, const float *x, size_t ldx, int32_t row0,
                           int32_t row1) {
    struct mxc_i8_view v = mxc_i8_view(a);
    const mxc_vi ones = _mm512_set1_epi8(1);
    const size_t cells = v.kp / MXC_CELL_I8;
    for (int32_t c = row0; c < row1; c++) {
        size_t c0 = (size_t)(c / MXC_TILE_I8 * MXC_TILE_I8), ci = (size_t)c - c0;
        size_t width = (size_t)mxc_tile_width(a, (int32_t)c0);
        const float *row = x + (size_t)c * ldx;
        size_t at = c0 * cells + ci, at16 = c0 * 2 * cells + ci, at64 = c0 * (cells / 2) + ci;
        for (size_t i = 0; i < v.kp; i += 64, row += 64) {
            mxc_vf y[4];
            int64_t left = a->k - (int64_t)i;
            for (int64_t j = 0; j < 4; j++)
                y[j] = left >= 64 ? _mm512_loadu_ps(row + 16 * j)
                                  : _mm512_maskz_loadu_ps(mxc_lanes(left - 16 * j), row + 16 * j);
            mxc_vf inverse, scales = cells_scale(cells_max(y), &inverse);
            mxc_vf first = _mm512_shuffle_f32x4(inverse, inverse, 0x00);
            mxc_vf second = _mm512_shuffle_f32x4(inverse, inverse, 0xFF);
            __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(codes_of(y[0], first)),
                                                  codes_of(y[1], first), 1);
            __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(codes_of(y[2], second)),
                                                   codes_of(y[3], second), 1);
            float scale0 = _mm512_cvtss_f32(scales);
            float scale1 = _mm_cvtss_f32(_mm512_extractf32x4_ps(scales, 2));
            _mm256_store_si256((void *)(v.codes + at * MXC_CELL_I8), low);
            _mm256_store_si256((void *)(v.codes + (at + width) * MXC_CELL_I8), high);
            /* negated sums of 16 codes in every lane of a 128-bit part */
            mxc_vi all = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
            mxc_vi s = _mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, all);
            s = _mm512_add_epi32(s, _mm512_shuffle_epi32(s, (_MM_PERM_ENUM)0x4E));
            s = _mm512_add_epi32(s, _mm512_shuffle_epi32(s, (_MM_PERM_ENUM)0xB1));
            s = _mm512_sub_epi32(_mm512_setzero_si512(), s);
            int32_t t0 = _mm_cvtsi128_si32(_mm512_castsi512_si128(s));
            int32_t t1 = _mm_cvtsi128_si32(_mm512_extracti32x4_epi32(s, 1));
            int32_t t2 = _mm_cvtsi128_si32(_mm512_extracti32x4_epi32(s, 2));
            int32_t t3 = _mm_cvtsi128_si32(_mm512_extracti32x4_epi32(s, 3));
            float f0 = scale0 * (float)(t0 + t1), f1 = scale1 * (float)(t2 + t3);
            v.sum16[at16] = t0;
            v.sum16[at16 + width] = t1;
            v.sum16[at16 + 2 * width] = t2;
            v.sum16[at16 + 3 * width] = t3;
            v.sum32[at] = t0 + t1;
            v.sum32[at + width] = t2 + t3;
            v.scale[at] = scale0;
            v.scale[at + width] = scale1;
            v.scaled32[at] = f0;
            v.scaled32[at + width] = f1;
            v.scaled64[at64] = f0 + f1;
            at += 2 * width;
            at16 += 4 * width;
            at64 += width;
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
