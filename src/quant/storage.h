/* Storage formats: how a tensor's numbers stand in a file. One scalar decoder per format is its
 * definition; everything else (packing, tests) is checked against it. */
#ifndef MXC_QUANT_STORAGE_H
#define MXC_QUANT_STORAGE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum mxc_storage {
    MXC_ST_F32,
    MXC_ST_F16,
    MXC_ST_BF16,
    MXC_ST_F64,
    MXC_ST_I8,
    MXC_ST_U8,
    MXC_ST_I16,
    MXC_ST_U16,
    MXC_ST_I32,
    MXC_ST_U32,
    MXC_ST_I64,
    MXC_ST_U64,
    MXC_ST_BOOL,
    MXC_ST_F8_E4M3, /* without infinities; 0x7F and 0xFF are NaN */
    MXC_ST_F8_E5M2,
    MXC_ST_F8_E8M0, /* a power of two, 2^(byte - 127): scales only */
    /* GGUF blocks: `block` numbers in `block_bytes` bytes */
    MXC_ST_Q4_0,
    MXC_ST_Q4_1,
    MXC_ST_Q5_0,
    MXC_ST_Q5_1,
    MXC_ST_Q8_0,
    MXC_ST_Q4_K,
    MXC_ST_Q5_K,
    MXC_ST_Q6_K,
    MXC_ST_Q2_K,
    MXC_ST_Q3_K,
    MXC_ST_IQ4_NL,
    MXC_ST_IQ4_XS,
    MXC_ST_MXFP4_BLOCK, /* GGUF's MXFP4: scale and codes of 32 numbers side by side */
    MXC_ST_TQ1_0,
    MXC_ST_TQ2_0,
    /* MLX affine: u32 code words, and per group a scale and a bias in tensors of their own */
    MXC_ST_MLX_AFFINE,
    /* Codes, scales and more in tensors of their own; quant/parts.h describes each matrix */
    MXC_ST_MXFP4, /* e2m1 in groups of 32, scales e8m0: MLX mxfp4, gpt_oss experts */
    MXC_ST_MXFP8, /* e4m3 in groups of 32, scales e8m0: MLX mxfp8 */
    MXC_ST_NVFP4, /* e2m1 in groups of 16, scales e4m3: MLX nvfp4, compressed-tensors */
    MXC_ST_GPTQ,  /* integers packed along columns, and so on: see parts.h */
    MXC_ST_AWQ,
    MXC_ST_INT_GROUPS, /* rows of integers: compressed-tensors */
    MXC_ST_FP8,        /* e4m3 or e5m2 with scales per tensor, row or block */
    MXC_N_STORAGES
};

struct mxc_storage_info {
    const char *name; /* "F32", "Q4_K", "MLX affine" */
    uint32_t block;   /* numbers per block; 1 for plain types; 0 where parts are apart */
    uint32_t block_bytes;
    bool quantised;
};
/* Never NULL for a valid storage. */
const struct mxc_storage_info *mxc_storage_info(enum mxc_storage storage);

/* Group view of one quantised row, g = i / group:
 *   weight[i] = scale[g] * code[i] + bias[g]      linear codes
 *   weight[i] = scale[g] * table[code[i]]         codes with a table (biases are 0)
 * The product form is exact: it gives the decoder's numbers up to one f32 rounding. */
struct mxc_group_row {
    uint8_t *codes; /* [k], unsigned, < 2^bits */
    float *scales;  /* [k / group] */
    float *biases;  /* [k / group] */
};
/* What the group view of a storage looks like: group size (16, 32, 64, 128), bits of a code (2..8),
 * and zero_point >= 0 when bias[g] == -zero_point * scale[g] for every group, else -1. A stored
 * group that is larger, or has one zero point throughout, is shown as smaller groups with equal
 * scales. */
struct mxc_group_form {
    uint32_t group, bits;
    int zero_point;      /* 0 with a table */
    const int8_t *table; /* [16], static, for codes of 4 bits; NULL: linear codes */
};

#endif
