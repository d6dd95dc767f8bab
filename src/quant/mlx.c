/* MLX affine rows: one little-endian bit stream of codes per row, and a scale and a bias per group.
 * For 2, 4 and 8 bits that is the same as codes in u32 words, lowest bits first; for 3, 5 and 6
 * bits codes cross byte and word borders. Groups are multiples of 32, so a row is a whole number of
 * runs of eight codes in `bits` bytes. */
#include "quant/decode.h"
#include "quant/unpack.h"

#include <string.h>

bool mxc_mlx_supported(uint32_t bits, uint32_t group) {
    bool b = bits == 2 || bits == 3 || bits == 4 || bits == 5 || bits == 6 || bits == 8;
    return b && (group == 32 || group == 64 || group == 128);
}

/* Eight codes per step in one 64-bit word: the upper half of the codes moves to the upper 32 bits,
 * then within each half, then within each quarter. */
static inline void unpack_bits(const uint8_t *p, size_t n, unsigned bits, uint8_t *codes) {
    const uint64_t one = (1u << bits) - 1, two = (1u << 2 * bits) - 1;
    const uint64_t low1 = one * 0x0001000100010001u, low2 = two * 0x0000000100000001u;
    const uint64_t low4 = ((uint64_t)1 << 4 * bits) - 1;
    for (size_t i = 0; i < n; i += 8, p += bits) {
        uint64_t x = 0;
        for (unsigned j = 0; j < bits; j++)
            x |= (uint64_t)p[j] << 8 * j;
        x = (x & low4) | x >> 4 * bits << 32;
        x = (x & low2) | (x >> 2 * bits & low2) << 16;
        x = (x & low1) | (x >> bits & low1) << 8;
        memcpy(codes + i, &x, sizeof x);
    }
}

/* Constant bits per case, so that each becomes straight-line code. */
void mxc_unpack_stream(const uint8_t *p, size_t n, uint32_t bits, uint8_t *codes) {
    switch (bits) {
    case 2:
        unpack_bits(p, n, 2, codes);
        break;
    case 3:
        unpack_bits(p, n, 3, codes);
        break;
    case 4:
        unpack_bits(p, n, 4, codes);
        break;
    case 5:
        unpack_bits(p, n, 5, codes);
        break;
    case 6:
        unpack_bits(p, n, 6, codes);
        break;
    default:
        memcpy(codes, p, n);
        break;
    }
}

void mxc_mlx_groups(const struct mxc_mlx_row *row, const struct mxc_group_row *out) {
    size_t n_groups = row->n / row->group;
    mxc_unpack_stream(row->codes, row->n, row->bits, out->codes);
    mxc_quant_decode(row->scale_storage, row->scales, n_groups, out->scales);
    mxc_quant_decode(row->scale_storage, row->biases, n_groups, out->biases);
}

void mxc_mlx_decode(const struct mxc_mlx_row *row, float *out) {
    const size_t width = mxc_storage_info(row->scale_storage)->block_bytes;
    uint8_t codes[128];
    for (size_t i = 0, g = 0; i < row->n; i += row->group, g++) {
        float scale, bias;
        mxc_quant_decode(row->scale_storage, row->scales + g * width, 1, &scale);
        mxc_quant_decode(row->scale_storage, row->biases + g * width, 1, &bias);
        mxc_unpack_stream(row->codes + i * row->bits / 8, row->group, row->bits, codes);
        for (size_t j = 0; j < row->group; j++)
            out[i + j] = scale * (float)codes[j] + bias;
    }
}
