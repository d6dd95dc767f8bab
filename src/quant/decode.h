/* Decoders of storage formats: bytes as they stand in a file -> floats, or -> codes with scales.
 * Sources may be unaligned. Nothing here fails: sizes are the caller's to check (the loaders do).
 * Thread rules: pure functions.
 *
 * Definitions, in f32 arithmetic without contraction (d, m, dmin: f16 widened; q: code):
 *   Q4_0 Q5_0 Q8_0   d * (q - zero)          zero = 8, 16, 128 (Q8_0 stores q - 128)
 *   Q4_1 Q5_1        d * q + m
 *   Q4_K Q5_K        (d * sc) * q - dmin * mn     sc, mn: 6 bits per 32 numbers
 *   Q2_K             (d * sc) * q - dmin * mn     sc, mn: 4 bits per 16 numbers
 *   Q3_K             (d * sc) * (q - 4)           sc: 6 bits, less 32, per 16 numbers
 *   Q6_K             (d * sc) * (q - 32)          sc: 8 bits signed per 16 numbers
 *   IQ4_NL           d * table[q]                 table: mxc_table_iq4
 *   IQ4_XS           (d * sc) * table[q]          sc: 6 bits, less 32, per 32 numbers
 *   MXFP4            2^(e - 128) * table[q]       table: mxc_table_e2m1 (twice the e2m1 numbers)
 *   TQ1_0 TQ2_0      d * (q - 1)                  q: 0..2 (TQ2_0 can hold 3)
 *   F8_E4M3 E5M2     the number; E8M0: 2^(byte - 127)
 *   MLX affine       scale * q + bias
 * The group form holds biases as -zero * scale where the format has a zero point. */
#ifndef MXC_QUANT_DECODE_H
#define MXC_QUANT_DECODE_H

#include "quant/storage.h"

/* 4-bit codes that are no integers: IQ4's numbers, and twice those of e2m1. */
extern const int8_t mxc_table_iq4[16], mxc_table_e2m1[16];

/* The largest block of any block format, in numbers. */
enum { MXC_QUANT_MAX_BLOCK = 256 };

/* Bytes of n numbers; n is a multiple of the block. false: overflow, not a multiple, or a storage
 * whose bytes depend on more than n (MLX affine and the storages of parts.h). */
bool mxc_quant_bytes(enum mxc_storage storage, uint64_t n, size_t *bytes);
/* Decodes n numbers that stand one after another from data. Not for storages without a block. */
void mxc_quant_decode(enum mxc_storage storage, const uint8_t *data, size_t n, float *out);
/* The group form of a block format; false for others (for MLX affine see below, for the storages
 * of parts.h mxc_parts_form). */
bool mxc_quant_group_form(enum mxc_storage storage, struct mxc_group_form *form);
/* Codes, scales and biases of n numbers in a block format. */
void mxc_quant_groups(enum mxc_storage storage, const uint8_t *data, size_t n,
                      const struct mxc_group_row *out);

/* One row of an MLX affine matrix. codes: the row's little-endian bit stream, n * bits / 8 bytes;
 * scales and biases: n / group numbers of type `scale_storage` (F16, BF16, F32). */
struct mxc_mlx_row {
    const uint8_t *codes, *scales, *biases;
    size_t n; /* a multiple of group */
    uint32_t bits, group;
    enum mxc_storage scale_storage;
};
/* bits in {2,3,4,5,6,8} and group in {32,64,128}. */
bool mxc_mlx_supported(uint32_t bits, uint32_t group);
void mxc_mlx_decode(const struct mxc_mlx_row *row, float *out);
void mxc_mlx_groups(const struct mxc_mlx_row *row, const struct mxc_group_row *out);

#endif
