/* Decoders of plain and block formats against a second reading of each definition that finds one
 * number at a time by index, and the group view against the decoder. */
#include "test.h"

#include "base/half.h"
#include "quant/decode.h"

#include <math.h>
#include <string.h>

static uint32_t next(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static float half_at(const uint8_t *p) {
    return mxc_f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

/* Writes a finite half of moderate size. */
static void put_half(uint8_t *p, uint32_t *state) {
    uint16_t h = mxc_f32_to_f16(((float)(next(state) % 4001) - 2000.0f) / 977.0f);
    p[0] = (uint8_t)h;
    p[1] = (uint8_t)(h >> 8);
}

static unsigned bit(const uint8_t *p, unsigned index) {
    return p[index / 8] >> index % 8 & 1;
}

static unsigned k_scale(const uint8_t *p, unsigned g, bool minimum) {
    unsigned at = minimum ? 4 : 0;
    if (g < 4)
        return p[at + g] & 63;
    unsigned low = minimum ? p[4 + g] >> 4 : p[4 + g] & 15;
    return low | (unsigned)(p[at + g - 4] >> 6) << 4;
}

/* Number j of a block: code, scale and bias. Formats with a zero point give the shifted code. */
static float reference(enum mxc_storage storage, const uint8_t *b, unsigned j) {
    unsigned n = j % 16, nibble = 4 * (j / 16);
    switch (storage) {
    case MXC_ST_Q4_0:
        return half_at(b) * (float)((int)(b[2 + n] >> nibble & 15) - 8);
    case MXC_ST_Q4_1:
        return half_at(b) * (float)(b[4 + n] >> nibble & 15) + half_at(b + 2);
    case MXC_ST_Q5_0:
        return half_at(b) * (float)((int)((b[6 + n] >> nibble & 15) | bit(b + 2, j) << 4) - 16);
    case MXC_ST_Q5_1:
        return half_at(b) * (float)((b[8 + n] >> nibble & 15) | bit(b + 4, j) << 4) +
               half_at(b + 2);
    case MXC_ST_Q8_0:
        return half_at(b) * (float)(int8_t)b[2 + j];
    case MXC_ST_Q4_K:
    case MXC_ST_Q5_K: {
        unsigned g = j / 32, l = j % 32, five = storage == MXC_ST_Q5_K;
        const uint8_t *qs = b + (five ? 48 : 16);
        unsigned q = qs[32 * (g / 2) + l] >> 4 * (g % 2) & 15;
        if (five)
            q |= (b[16 + l] >> g & 1u) << 4;
        float s = half_at(b) * (float)k_scale(b + 4, g, false);
        float m = half_at(b + 2) * (float)k_scale(b + 4, g, true);
        return s * (float)q - m;
    }
    case MXC_ST_Q2_K: {
        unsigned g = j / 16, at = j / 128 * 32 + j % 32, q = b[16 + at] >> 2 * (j % 128 / 32) & 3;
        float s = half_at(b + 80) * (float)(b[g] & 15), m = half_at(b + 82) * (float)(b[g] >> 4);
        return s * (float)q - m;
    }
    case MXC_ST_Q3_K: {
        unsigned g = j / 16, at = j / 128 * 32 + j % 32, q = b[32 + at] >> 2 * (j % 128 / 32) & 3;
        unsigned low = g < 8 ? b[96 + g] & 15u : b[96 + g - 8] >> 4;
        unsigned high = b[96 + 8 + g % 4] >> 2 * (g / 4) & 3;
        q |= (b[j % 32] >> j / 32 & 1u) << 2;
        return half_at(b + 108) * (float)((int)(low | high << 4) - 32) * (float)((int)q - 4);
    }
    case MXC_ST_IQ4_NL:
        return half_at(b) * (float)mxc_table_iq4[b[2 + n] >> nibble & 15];
    case MXC_ST_IQ4_XS: {
        unsigned g = j / 32, q = b[8 + 16 * g + j % 16] >> 4 * (j % 32 / 16) & 15;
        unsigned low = b[4 + g / 2] >> 4 * (g % 2) & 15;
        unsigned high = (unsigned)(b[2] | b[3] << 8) >> 2 * g & 3;
        return half_at(b) * (float)((int)(low | high << 4) - 32) * (float)mxc_table_iq4[q];
    }
    case MXC_ST_MXFP4_BLOCK: {
        static const float e2m1[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
        unsigned q = b[1 + n] >> nibble & 15;
        return ldexpf(q < 8 ? e2m1[q] : q == 8 ? 0 : -e2m1[q - 8], b[0] - 127);
    }
    case MXC_ST_TQ1_0: {
        /* the byte is a fraction of 243 in base 3, rounded up to 256ths */
        unsigned at = j < 160 ? j % 32 : j < 240 ? 32 + (j - 160) % 16 : 48 + (j - 240) % 4;
        unsigned place = j < 160 ? j / 32 : j < 240 ? (j - 160) / 16 : (j - 240) / 4;
        unsigned rest = b[at];
        for (; place; place--)
            rest = rest * 3 % 256;
        return half_at(b + 52) * (float)((int)(rest * 3 / 256) - 1);
    }
    case MXC_ST_TQ2_0: {
        unsigned q = b[j / 128 * 32 + j % 32] >> 2 * (j % 128 / 32) & 3;
        return half_at(b + 64) * (float)((int)q - 1);
    }
    default: { /* Q6_K */
        unsigned part = j / 128, r = j % 128, quarter = r / 32, l = r % 32;
        unsigned low = b[64 * part + 32 * (quarter % 2) + l] >> 4 * (quarter / 2) & 15;
        unsigned high = b[128 + 32 * part + l] >> 2 * quarter & 3;
        float s = half_at(b + 208) * (float)(int8_t)b[192 + j / 16];
        return s * (float)((int)(low | high << 4) - 32);
    }
    }
}

static const enum mxc_storage blocks[] = {
    MXC_ST_Q4_0,   MXC_ST_Q4_1,   MXC_ST_Q5_0,        MXC_ST_Q5_1,  MXC_ST_Q8_0,
    MXC_ST_Q4_K,   MXC_ST_Q5_K,   MXC_ST_Q6_K,        MXC_ST_Q2_K,  MXC_ST_Q3_K,
    MXC_ST_IQ4_NL, MXC_ST_IQ4_XS, MXC_ST_MXFP4_BLOCK, MXC_ST_TQ1_0, MXC_ST_TQ2_0};

/* Where a block's f16 scales stand; the second one -1: none; both: the block has none. */
static void scale_places(enum mxc_storage storage, int at[2]) {
    at[0] = 0;
    at[1] = -1;
    switch (storage) {
    case MXC_ST_Q4_1:
    case MXC_ST_Q5_1:
    case MXC_ST_Q4_K:
    case MXC_ST_Q5_K:
        at[1] = 2;
        break;
    case MXC_ST_Q6_K:
        at[0] = 208;
        break;
    case MXC_ST_Q2_K:
        at[0] = 80;
        at[1] = 82;
        break;
    case MXC_ST_Q3_K:
        at[0] = 108;
        break;
    case MXC_ST_TQ1_0:
        at[0] = 52;
        break;
    case MXC_ST_TQ2_0:
        at[0] = 64;
        break;
    case MXC_ST_MXFP4_BLOCK:
        at[0] = -1;
        break;
    default:
        break;
    }
}

/* Three blocks of random bytes at an odd address, with finite scales. */
static const uint8_t *random_blocks(enum mxc_storage storage, uint8_t *room, uint32_t *state) {
    const struct mxc_storage_info *info = mxc_storage_info(storage);
    uint8_t *data = room + 1;
    for (unsigned i = 0; i < 3 * info->block_bytes; i++)
        data[i] = (uint8_t)next(state);
    for (unsigned k = 0; k < 3; k++) {
        uint8_t *b = data + k * info->block_bytes;
        int at[2];
        scale_places(storage, at);
        for (int i = 0; i < 2; i++)
            if (at[i] >= 0)
                put_half(b + at[i], state);
    }
    return data;
}

static void test_blocks(void **unused) {
    (void)unused;
    uint8_t room[3 * 256 + 1];
    float out[3 * 256 + 1];
    uint32_t state = 7;
    for (size_t s = 0; s < sizeof blocks / sizeof *blocks; s++) {
        const struct mxc_storage_info *info = mxc_storage_info(blocks[s]);
        for (int round = 0; round < 50; round++) {
            const uint8_t *data = random_blocks(blocks[s], room, &state);
            size_t n = (size_t)3 * info->block;
            out[n] = 42;
            mxc_quant_decode(blocks[s], data, n, out);
            assert_true(out[n] == 42);
            for (unsigned i = 0; i < n; i++) {
                const uint8_t *b = data + i / info->block * info->block_bytes;
                float want = reference(blocks[s], b, i % info->block);
                assert_memory_equal(&out[i], &want, sizeof want);
            }
        }
    }
}

static void test_groups(void **unused) {
    (void)unused;
    uint8_t room[3 * 256 + 1], codes[3 * 256 + 1];
    float out[3 * 256], scales[49], biases[49];
    uint32_t state = 11;
    for (size_t s = 0; s < sizeof blocks / sizeof *blocks; s++) {
        struct mxc_group_form form;
        size_t n = (size_t)3 * mxc_storage_info(blocks[s])->block;
        const uint8_t *data = random_blocks(blocks[s], room, &state);
        assert_true(mxc_quant_group_form(blocks[s], &form));
        codes[n] = 77;
        scales[n / form.group] = biases[n / form.group] = 5;
        mxc_quant_decode(blocks[s], data, n, out);
        mxc_quant_groups(
            blocks[s], data, n,
            &(struct mxc_group_row){.codes = codes, .scales = scales, .biases = biases});
        assert_int_equal(codes[n], 77);
        assert_true(scales[n / form.group] == 5 && biases[n / form.group] == 5);
        for (size_t i = 0; i < n; i++) {
            float scale = scales[i / form.group], bias = biases[i / form.group];
            assert_true(codes[i] < 1u << form.bits);
            float code = form.table ? (float)form.table[codes[i]] : (float)codes[i];
            assert_true(scale * code + bias == out[i]);
            assert_true(!form.table || (form.bits == 4 && form.zero_point == 0 && bias == 0));
            if (form.zero_point >= 0)
                assert_true(bias == -(float)form.zero_point * scale);
        }
    }
    struct mxc_group_form form;
    assert_false(mxc_quant_group_form(MXC_ST_F16, &form));
    assert_false(mxc_quant_group_form(MXC_ST_MLX_AFFINE, &form));
}

static void test_half_formats(void **unused) {
    (void)unused;
    for (uint32_t h = 0; h < 65536; h++) {
        uint8_t data[3] = {0, (uint8_t)h, (uint8_t)(h >> 8)};
        float f16, bf16;
        mxc_quant_decode(MXC_ST_F16, data + 1, 1, &f16);
        mxc_quant_decode(MXC_ST_BF16, data + 1, 1, &bf16);
        assert_int_equal(mxc_f32_bits(f16), mxc_f32_bits(mxc_f16_to_f32((uint16_t)h)));
        assert_int_equal(mxc_f32_bits(bf16), h << 16);
    }
}

/* Every number of 8 bits against its definition. */
static void test_float8(void **unused) {
    (void)unused;
    for (int i = 0; i < 256; i++) {
        const uint8_t byte = (uint8_t)i;
        int e4 = i >> 3 & 15, m3 = i & 7, e5 = i >> 2 & 31, m2 = i & 3;
        float sign = i & 128 ? -1 : 1, want, e4m3, e5m2, e8m0;
        mxc_quant_decode(MXC_ST_F8_E4M3, &byte, 1, &e4m3);
        mxc_quant_decode(MXC_ST_F8_E5M2, &byte, 1, &e5m2);
        mxc_quant_decode(MXC_ST_F8_E8M0, &byte, 1, &e8m0);
        want = e4 ? ldexpf(1 + (float)m3 / 8, e4 - 7) : ldexpf((float)m3, -9);
        assert_true((i & 127) == 127 ? isnan(e4m3) : e4m3 == sign * want);
        want = e5 ? ldexpf(1 + (float)m2 / 4, e5 - 15) : ldexpf((float)m2, -16);
        if (e5 == 31)
            assert_true(m2 ? isnan(e5m2) : e5m2 == sign * INFINITY);
        else
            assert_true(e5m2 == sign * want);
        assert_true(e8m0 == ldexpf(1, i - 127));
    }
}

static void test_plain(void **unused) {
    (void)unused;
    const float f32[] = {1.5f, -0.0f, 3e38f};
    const double f64[] = {1.5, -2.25, 1e-300};
    const int8_t i8[] = {-128, 0, 127};
    const uint8_t u8[] = {0, 128, 255}, flags[] = {0, 1, 2};
    const int16_t i16[] = {-32768, 5, 32767};
    const uint16_t u16[] = {0, 5, 65535};
    const int32_t i32[] = {INT32_MIN, 5, 7};
    const uint32_t u32[] = {UINT32_MAX, 5, 7};
    const int64_t i64[] = {INT64_MIN, 5, 7};
    const uint64_t u64[] = {UINT64_MAX, 5, 7};
    const struct {
        enum mxc_storage storage;
        const void *data;
        float want[3];
    } rows[] = {
        {MXC_ST_F32, f32, {1.5f, -0.0f, 3e38f}}, {MXC_ST_F64, f64, {1.5f, -2.25f, 0}},
        {MXC_ST_I8, i8, {-128, 0, 127}},         {MXC_ST_U8, u8, {0, 128, 255}},
        {MXC_ST_BOOL, flags, {0, 1, 1}},         {MXC_ST_I16, i16, {-32768, 5, 32767}},
        {MXC_ST_U16, u16, {0, 5, 65535}},        {MXC_ST_I32, i32, {-0x1p31f, 5, 7}},
        {MXC_ST_U32, u32, {0x1p32f, 5, 7}},      {MXC_ST_I64, i64, {-0x1p63f, 5, 7}},
        {MXC_ST_U64, u64, {0x1p64f, 5, 7}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint8_t odd[33];
        float out[3];
        memcpy(odd + 1, rows[i].data, 3 * mxc_storage_info(rows[i].storage)->block_bytes);
        mxc_quant_decode(rows[i].storage, odd + 1, 3, out);
        assert_memory_equal(out, rows[i].want, sizeof out);
    }
}

static void test_bytes(void **unused) {
    (void)unused;
    size_t bytes = 1;
    assert_true(mxc_quant_bytes(MXC_ST_F16, 3, &bytes));
    assert_int_equal(bytes, 6);
    assert_true(mxc_quant_bytes(MXC_ST_Q6_K, 512, &bytes));
    assert_int_equal(bytes, 420);
    assert_true(mxc_quant_bytes(MXC_ST_Q4_0, 0, &bytes));
    assert_int_equal(bytes, 0);
    assert_false(mxc_quant_bytes(MXC_ST_Q4_0, 31, &bytes));
    assert_false(mxc_quant_bytes(MXC_ST_F64, UINT64_MAX / 4, &bytes));
    assert_false(mxc_quant_bytes(MXC_ST_MLX_AFFINE, 64, &bytes));
    assert_false(mxc_quant_bytes(MXC_N_STORAGES, 64, &bytes));
    for (int s = 0; s < MXC_N_STORAGES; s++)
        assert_non_null(mxc_storage_info((enum mxc_storage)s)->name);
    assert_null(mxc_storage_info(MXC_N_STORAGES));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks),       cmocka_unit_test(test_groups),
        cmocka_unit_test(test_half_formats), cmocka_unit_test(test_float8),
        cmocka_unit_test(test_plain),        cmocka_unit_test(test_bytes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
