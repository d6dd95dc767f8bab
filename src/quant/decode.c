/* Scalar decoders of plain and block formats. In: file bytes. Out: floats or group views.
 * One unpack function per block format is its definition: it writes the codes of one block and the
 * scale and bias of each of its groups; floats follow from those by one formula, so the two views
 * cannot drift apart. */
#include "quant/decode.h"

#include "quant/float8.h"
#include "quant/unpack.h"

#include <string.h>

struct block_format {
    mxc_unpack_fn *unpack;
    struct mxc_group_form form;
};

static uint32_t load_u32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Adds bit j of high as bit 4 of code j, eight at a time: a byte is copied to eight, each keeps
 * the bit of its place, and a carry turns "not zero" into the top bit. */
static void fifth_bits(uint32_t high, uint8_t *codes) {
    for (int j = 0; j < 4; j++) {
        uint64_t c, v = (uint64_t)(high >> 8 * j & 255) * 0x0101010101010101u;
        v = (v & 0x8040201008040201u) + 0x7F7F7F7F7F7F7F7Fu;
        memcpy(&c, codes + 8 * j, sizeof c);
        c |= (v >> 7 & 0x0101010101010101u) << 4;
        memcpy(codes + 8 * j, &c, sizeof c);
    }
}

static void unpack_q4_0(const uint8_t *b, uint8_t *codes, float *scales, float *biases) {
    (void)biases;
    scales[0] = mxc_load_half(b);
    mxc_nibbles32(b + 2, codes);
}

static void unpack_q4_1(const uint8_t *b, uint8_t *codes, float *scales, float *biases) {
    scales[0] = mxc_load_half(b);
    biases[0] = mxc_load_half(b + 2);
    mxc_nibbles32(b + 4, codes);
}

static void unpack_q5_0(const uint8_t *b, uint8_t *codes, float *scales, float *biases) {
    (void)biases;
    scales[0] = mxc_load_half(b);
    mxc_nibbles32(b + 6, codes);
    fifth_bits(load_u32(b + 2), codes);
}

static void unpack_q5_1(const uint8_t *b, uint8_t *codes, float *scales, float *biases) {
    scales[0] = mxc_load_half(b);
    biases[0] = mxc_load_half(b + 2);
    mxc_nibbles32(b + 8, codes);
    fifth_bits(load_u32(b + 4), codes);
}

static void unpack_q8_0(const uint8_t *b, uint8_t *codes, float *scales, float *biases) {
    (void)biases;
    scales[0] = mxc_load_half(b);
    for (int j = 0; j < 32; j++)
        codes[j] = b[2 + j] ^ 128; /* q + 128 in two's complement */
}

/* The 12 bytes of Q4_K and Q5_K: eight 6-bit scales and eight 6-bit minima. The first four of each
 * are the low bits of bytes 0..3 and 4..7; the others take 4 bits from bytes 8..11 and 2 from the
 * top of the first eight. */
static void k_scales(const uint8_t *b, float *scales, float *biases) {
    float d = mxc_load_half(b), dmin = mxc_load_half(b + 2);
    const uint8_t *p = b + 4;
    for (int g = 0; g < 4; g++) {
        scales[g] = d * (float)(p[g] & 63);
        biases[g] = -(dmin * (float)(p[g + 4] & 63));
        scales[g + 4] = d * (float)((p[g + 8] & 15) | (p[g] >> 6) << 4);
        biases[g + 4] = -(dmin * (float)((p[g + 8] >> 4) | (p[g + 4] >> 6) << 4));
    }
}

/* 256 codes of 4 bits in runs of 64: low halves of 32 bytes, then their high halves. */
static void nibbles256(const uint8_t *qs, uint8_t *codes) {
    for (int run = 0; run < 4; run++) {
        for (int j = 0; j < 32; j++) {
            codes[64 * run + j] = qs[32 * run + j] & 15;
            codes[64 * run + 32 + j] = qs[32 * run + j] >> 4;
        }
    }
}

static void unpack_q4_k(const uint8_t *b, uint8_t *codes, float *scales, float *biases) {
    k_scales(b, scales, biases);
    nibbles256(b + 16, codes);
}

static void unpack_q5_k(const uint8_t *b, uint8_t *codes, float *scales, float *biases) {
    k_scales(b, scales, biases);
    nibbles256(b + 48, codes);
    for (int g = 0; g < 8; g++) /* bit g of high byte j belongs to number j of group g */
        for (int j = 0; j < 32; j++)
            codes[32 * g + j] = (uint8_t)(codes[32 * g + j] | (b[16 + j] >> g & 1) << 4);
}

static void unpack_q6_k(const uint8_t *b, uint8_t *codes, float *scales, float *biases) {
    (void)biases;
    float d = mxc_load_half(b + 208);
    for (int g = 0; g < 16; g++)
        scales[g] = d * (float)(int8_t)b[192 + g];
    for (int half = 0; half < 2; half++) {
        const uint8_t *low = b + 64 * half, *high = b + 128 + 32 * half;
        uint8_t *c = codes + 128 * half;
        for (int j = 0; j < 32; j++) {
            c[j] = (uint8_t)((low[j] & 15) | (high[j] & 3) << 4);
            c[j + 32] = (uint8_t)((low[j + 32] & 15) | (high[j] >> 2 & 3) << 4);
            c[j + 64] = (uint8_t)(low[j] >> 4 | (high[j] >> 4 & 3) << 4);
            c[j + 96] = (uint8_t)(low[j + 32] >> 4 | (high[j] >> 6) << 4);
        }
    }
}

static const struct block_format formats[MXC_N_STORAGES] = {
    [MXC_ST_Q4_0] = {unpack_q4_0, {32, 4, 8, NULL}},
    [MXC_ST_Q4_1] = {unpack_q4_1, {32, 4, -1, NULL}},
    [MXC_ST_Q5_0] = {unpack_q5_0, {32, 5, 16, NULL}},
    [MXC_ST_Q5_1] = {unpack_q5_1, {32, 5, -1, NULL}},
    [MXC_ST_Q8_0] = {unpack_q8_0, {32, 8, 128, NULL}},
    [MXC_ST_Q4_K] = {unpack_q4_k, {32, 4, -1, NULL}},
    [MXC_ST_Q5_K] = {unpack_q5_k, {32, 5, -1, NULL}},
    [MXC_ST_Q6_K] = {unpack_q6_k, {16, 6, 32, NULL}},
    [MXC_ST_Q2_K] = {mxc_unpack_q2_k, {16, 2, -1, NULL}},
    [MXC_ST_Q3_K] = {mxc_unpack_q3_k, {16, 3, 4, NULL}},
    [MXC_ST_IQ4_NL] = {mxc_unpack_iq4_nl, {32, 4, 0, mxc_table_iq4}},
    [MXC_ST_IQ4_XS] = {mxc_unpack_iq4_xs, {32, 4, 0, mxc_table_iq4}},
    [MXC_ST_MXFP4_BLOCK] = {mxc_unpack_mxfp4, {32, 4, 0, mxc_table_e2m1}},
    [MXC_ST_TQ1_0] = {mxc_unpack_tq1_0, {32, 2, 1, NULL}},
    [MXC_ST_TQ2_0] = {mxc_unpack_tq2_0, {32, 2, 1, NULL}},
};

static void decode_f32(const uint8_t *data, size_t n, float *out) {
    if (n)
        memcpy(out, data, n * sizeof *out);
}

/* Equal to mxc_f16_to_f32, without branches so that compilers vectorise it. */
static void decode_f16(const uint8_t *data, size_t n, float *out) {
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, data + 2 * i, 2);
        uint32_t u = (uint32_t)(h & 0x7FFF) << 13, sign = (uint32_t)(h & 0x8000) << 16;
        uint32_t scaled = mxc_f32_bits(mxc_f32_of_bits(u) * 0x1p112f);
        uint32_t infinite = (0u - (uint32_t)(u >= 0x0F800000u)) & 0x7F800000u;
        out[i] = mxc_f32_of_bits(scaled | infinite | sign);
    }
}

static void decode_bf16(const uint8_t *data, size_t n, float *out) {
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, data + 2 * i, 2);
        out[i] = mxc_bf16_to_f32(h);
    }
}

#define DECODE_PLAIN(name, type)                                                                   \
    static void decode_##name(const uint8_t *data, size_t n, float *out) {                         \
        for (size_t i = 0; i < n; i++) {                                                           \
            type v;                                                                                \
            memcpy(&v, data + sizeof v * i, sizeof v);                                             \
            out[i] = (float)v;                                                                     \
        }                                                                                          \
    }
DECODE_PLAIN(f64, double)
DECODE_PLAIN(i8, int8_t)
DECODE_PLAIN(u8, uint8_t)
DECODE_PLAIN(i16, int16_t)
DECODE_PLAIN(u16, uint16_t)
DECODE_PLAIN(i32, int32_t)
DECODE_PLAIN(u32, uint32_t)
DECODE_PLAIN(i64, int64_t)
DECODE_PLAIN(u64, uint64_t)

static void decode_bool(const uint8_t *data, size_t n, float *out) {
    for (size_t i = 0; i < n; i++)
        out[i] = data[i] ? 1.0f : 0.0f;
}

static void decode_e4m3(const uint8_t *data, size_t n, float *out) {
    for (size_t i = 0; i < n; i++)
        out[i] = mxc_e4m3_to_f32(data[i]);
}

static void decode_e5m2(const uint8_t *data, size_t n, float *out) {
    for (size_t i = 0; i < n; i++)
        out[i] = mxc_e5m2_to_f32(data[i]);
}

static void decode_e8m0(const uint8_t *data, size_t n, float *out) {
    for (size_t i = 0; i < n; i++)
        out[i] = 2 * mxc_e8m0_half(data[i]);
}

typedef void plain_fn(const uint8_t *data, size_t n, float *out);
static plain_fn *const plains[MXC_N_STORAGES] = {
    [MXC_ST_F32] = decode_f32,      [MXC_ST_F16] = decode_f16,      [MXC_ST_BF16] = decode_bf16,
    [MXC_ST_F64] = decode_f64,      [MXC_ST_I8] = decode_i8,        [MXC_ST_U8] = decode_u8,
    [MXC_ST_I16] = decode_i16,      [MXC_ST_U16] = decode_u16,      [MXC_ST_I32] = decode_i32,
    [MXC_ST_U32] = decode_u32,      [MXC_ST_I64] = decode_i64,      [MXC_ST_U64] = decode_u64,
    [MXC_ST_BOOL] = decode_bool,    [MXC_ST_F8_E4M3] = decode_e4m3, [MXC_ST_F8_E5M2] = decode_e5m2,
    [MXC_ST_F8_E8M0] = decode_e8m0,
};

static void decode_group(const struct mxc_group_form *form, const uint8_t *codes, float scale,
                         float bias, float *out) {
    const size_t n = form->group;
    if (form->table) {
        for (size_t j = 0; j < n; j++)
            out[j] = scale * (float)form->table[codes[j]];
    } else if (form->zero_point >= 0) {
        for (size_t j = 0; j < n; j++)
            out[j] = scale * (float)(codes[j] - form->zero_point);
    } else {
        for (size_t j = 0; j < n; j++)
            out[j] = scale * (float)codes[j] + bias;
    }
}

static void decode_blocks(enum mxc_storage storage, const uint8_t *data, size_t n, float *out) {
    const struct block_format *format = &formats[storage];
    const struct mxc_storage_info *info = mxc_storage_info(storage);
    const size_t group = format->form.group, n_groups = info->block / group;
    uint8_t codes[MXC_QUANT_MAX_BLOCK];
    float scales[16], biases[16] = {0};
    for (size_t i = 0; i < n; i += info->block, data += info->block_bytes) {
        format->unpack(data, codes, scales, biases);
        for (size_t g = 0; g < n_groups; g++)
            decode_group(&format->form, codes + g * group, scales[g], biases[g],
                         out + i + g * group);
    }
}

void mxc_quant_decode(enum mxc_storage storage, const uint8_t *data, size_t n, float *out) {
    if (plains[storage])
        plains[storage](data, n, out);
    else if (formats[storage].unpack)
        decode_blocks(storage, data, n, out);
}

bool mxc_quant_group_form(enum mxc_storage storage, struct mxc_group_form *form) {
    if (!formats[storage].unpack)
        return false;
    *form = formats[storage].form;
    return true;
}

void mxc_quant_groups(enum mxc_storage storage, const uint8_t *data, size_t n,
                      const struct mxc_group_row *out) {
    const struct block_format *format = &formats[storage];
    const struct mxc_storage_info *info = mxc_storage_info(storage);
    const size_t n_groups = info->block / format->form.group;
    const int zero = format->form.zero_point;
    for (size_t i = 0, g = 0; i < n; i += info->block, g += n_groups, data += info->block_bytes) {
        format->unpack(data, out->codes + i, out->scales + g, out->biases + g);
        for (size_t j = g; zero >= 0 && j < g + n_groups; j++)
            out->biases[j] = zero ? -(float)zero * out->scales[j] : 0;
    }
}
