/* What is laid out before a product or attention runs, AVX2: activations to tiles, query rows and
 * new keys and values to the KV types.
 * In: rows of f32. Out: the layouts of layout.h; the padding of a tile is zero. int8 codes come
 * with a scale per 32 numbers and with negated sums, which let the products treat codes with a zero
 * point.
 * Invariants: the bytes are those of the scalar level, and a row's bytes depend on that row alone.
 * Maxima are compared as integers, so a NaN in the input reaches the scale. */
#include "backend/cpu/kernels/avx2/avx2.h"

void mxc_avx2_prepare_f32(struct mxc_activation *a, const float *x, size_t ldx, int32_t row0,
                          int32_t row1) {
    size_t kp = mxc_padded_k(a->form, a->k);
    for (int32_t c = row0; c < row1; c++) {
        int32_t c0 = c / MXC_TILE_F32 * MXC_TILE_F32;
        size_t width = (size_t)mxc_tile_width(a, c0);
        float *q = (float *)(void *)a->data + (size_t)c0 * kp + (size_t)(c - c0) * MXC_CELL_F32;
        const float *row = x + (size_t)c * ldx;
        for (int32_t i = 0; i < a->k; i += MXC_CELL_F32, q += width * MXC_CELL_F32) {
            _mm256_store_ps(q, mxc_load(row + i, a->k - i));
            _mm256_store_ps(q + 8, mxc_load(row + i + 8, a->k - i - 8));
        }
    }
}

void mxc_avx2_prepare_bf16(struct mxc_activation *a, const float *x, size_t ldx, int32_t row0,
                           int32_t row1) {
    size_t kp = mxc_padded_k(a->form, a->k);
    for (int32_t c = row0; c < row1; c++) {
        int32_t c0 = c / MXC_TILE_BF16 * MXC_TILE_BF16;
        size_t width = (size_t)mxc_tile_width(a, c0);
        uint16_t *q = (uint16_t *)(void *)a->data + (size_t)c0 * kp;
        q += (size_t)(c - c0) * MXC_CELL_BF16;
        const float *row = x + (size_t)c * ldx;
        for (int32_t i = 0; i < a->k; i += MXC_CELL_BF16, q += width * MXC_CELL_BF16)
            for (int32_t j = 0; j < MXC_CELL_BF16; j += 8)
                _mm_store_si128((void *)(q + j), mxc_bf16(mxc_load(row + i + j, a->k - i - j)));
    }
}

/* Largest |x| of a cell; as integers, so that NaN is above infinity and is not lost. */
MXC_INLINE float cell_max(const mxc_vf y[4]) {
    mxc_vi m = _mm256_setzero_si256(), magnitude = _mm256_set1_epi32(0x7FFFFFFF);
    for (int j = 0; j < 4; j++)
        m = _mm256_max_epi32(m, _mm256_and_si256(_mm256_castps_si256(y[j]), magnitude));
    __m128i h = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0x4E));
    h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0xB1));
    return _mm_cvtss_f32(_mm_castsi128_ps(h));
}

/* Codes of eight numbers as integers in [-127, 127]. A cell with an infinity has factor 0; 0 * inf
 * is no number, which must become 0. */
MXC_INLINE mxc_vi codes_of(mxc_vf x, mxc_vf factor) {
    mxc_vf y = _mm256_mul_ps(x, factor);
    y = _mm256_and_ps(y, _mm256_cmp_ps(y, y, _CMP_ORD_Q));
    return _mm256_cvtps_epi32(y);
}

void mxc_avx2_prepare_i8(struct mxc_activation *a, const float *x, size_t ldx, int32_t row0,
                         int32_t row1) {
    struct mxc_i8_view v = mxc_i8_view(a);
    const mxc_vi order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const mxc_vi ones8 = _mm256_set1_epi8(1), minus_ones = _mm256_set1_epi16(-1);
    const size_t cells = v.kp / MXC_CELL_I8;
    for (int32_t c = row0; c < row1; c++) {
        size_t c0 = (size_t)(c / MXC_TILE_I8 * MXC_TILE_I8), ci = (size_t)c - c0;
        size_t width = (size_t)mxc_tile_width(a, (int32_t)c0);
        const float *row = x + (size_t)c * ldx;
        size_t at = c0 * cells + ci, at16 = c0 * 2 * cells + ci;
        float before = 0;
        for (size_t i = 0; i < cells; i++, row += MXC_CELL_I8) {
            mxc_vf y[4];
            for (int64_t j = 0; j < 4; j++)
                y[j] = mxc_load(row + 8 * j, a->k - (int64_t)i * MXC_CELL_I8 - 8 * j);
            float inverse, scale = mxc_i8_scale(cell_max(y), &inverse);
            mxc_vf factor = _mm256_set1_ps(inverse);
            mxc_vi p0 = _mm256_packs_epi32(codes_of(y[0], factor), codes_of(y[1], factor));
            mxc_vi p1 = _mm256_packs_epi32(codes_of(y[2], factor), codes_of(y[3], factor));
            mxc_vi all = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(p0, p1), order);
            _mm256_store_si256((void *)(v.codes + at * MXC_CELL_I8), all);
            /* negated sums: four codes a lane, then the four lanes of each half */
            mxc_vi s = _mm256_madd_epi16(_mm256_maddubs_epi16(ones8, all), minus_ones);
            s = _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0x4E));
            s = _mm256_add_epi32(s, _mm256_shuffle_epi32(s, 0xB1));
            int32_t t0 = _mm256_extract_epi32(s, 0), t1 = _mm256_extract_epi32(s, 4);
            float scaled = scale * (float)(t0 + t1);
            v.sum16[at16] = t0;
            v.sum16[at16 + width] = t1;
            v.sum32[at] = t0 + t1;
            v.scale[at] = scale;
            v.scaled32[at] = scaled;
            if (i % 2)
                v.scaled64[c0 * (cells / 2) + i / 2 * width + ci] = before + scaled;
            before = scaled;
            at += width;
            at16 += 2 * width;
        }
    }
}

void mxc_avx2_prepare_q_f32(void *out, const float *q, int32_t k_dim, float scale) {
    mxc_vf s = _mm256_set1_ps(scale * MXC_LOG2E);
    for (int32_t i = 0; i < k_dim; i += 8)
        mxc_save((float *)out + i, k_dim - i, _mm256_mul_ps(mxc_load(q + i, k_dim - i), s));
}

void mxc_avx2_prepare_q_bf16(void *out, const float *q, int32_t k_dim, float scale) {
    mxc_vf s = _mm256_set1_ps(scale * MXC_LOG2E);
    for (int32_t i = 0; i < k_dim; i += 8) {
        uint16_t half[8];
        size_t n = k_dim - i < 8 ? (size_t)(k_dim - i) : 8;
        _mm_storeu_si128((void *)half, mxc_bf16(_mm256_mul_ps(mxc_load(q + i, k_dim - i), s)));
        memcpy((uint16_t *)out + i, half, n * sizeof *half);
    }
}

void mxc_avx2_append_bf16(uint8_t *page, int32_t slot, const float *k, const float *v,
                          int32_t k_dim, int32_t v_dim) {
    uint32_t *to = (uint32_t *)(void *)page + slot, pairs[4];
    for (int32_t i = 0; i < k_dim; i += 8) {
        _mm_storeu_si128((void *)pairs, mxc_bf16(mxc_load(k + i, k_dim - i)));
        for (int32_t j = 0; j < 4 && i + 2 * j < k_dim; j++, to += MXC_ATTN_PAGE)
            *to = pairs[j];
    }
    uint16_t *row = (uint16_t *)(void *)(page + mxc_page_v(MXC_KV_BF16, k_dim)), half[8];
    row += (size_t)(slot / 2) * 2 * (size_t)v_dim + (size_t)(slot % 2);
    for (int32_t i = 0; i < v_dim; i += 8) {
        _mm_storeu_si128((void *)half, mxc_bf16(mxc_load(v + i, v_dim - i)));
        for (int32_t j = 0; j < 8 && i + j < v_dim; j++)
            row[2 * (i + j)] = half[j];
    }
}
