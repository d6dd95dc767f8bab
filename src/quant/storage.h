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
    /* GGUF blocks: `block` numbers in `block_bytes` bytes */
    MXC_ST_Q4_0,
    MXC_ST_Q4_1,
    MXC_ST_Q5_0,
    MXC_ST_Q5_1,
    MXC_ST_Q8_0,
    MXC_ST_Q4_K,
    MXC_ST_Q5_K,
    MXC_ST_Q6_K,
    /* MLX affine: u32 code words, and per group a scale and a bias in tensors of their own */
    MXC_ST_MLX_AFFINE,
    MXC_N_STORAGES
};

struct mxc_storage_info {
    const char *name; /* "F32", "Q4_K", "MLX affine" */
    uint32_t block;   /* numbers per block; 1 for plain types; 0 for MLX affine */
    uint32_t block_bytes;
    bool quantised;
};
/* Never NULL for a valid storage. */
const struct mxc_storage_info *mxc_storage_info(enum mxc_storage storage);

/* Group view of one quantised row: weight[i] = scale[g] * code[i] + bias[g], g = i / group.
 * The product form is exact: it gives the decoder's numbers up to one f32 rounding. */
struct mxc_group_row {
    uint8_t *codes; /* [k], unsigned, < 2^bits */
    float *scales;  /* [k / group] */
    float *biases;  /* [k / group] */
};
/* What the group view of a storage looks like: group size (16, 32, 64, 128), bits of a code (2..8),
 * and zero_point >= 0 when bias[g] == -zero_point * scale[g] for every group, else -1. */
struct mxc_group_form {
    uint32_t group, bits;
    int zero_point;
};

#endif
