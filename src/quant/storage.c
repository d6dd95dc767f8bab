/* The table of storage formats: name, numbers and bytes of a block, and the size of n numbers.
 * In: a storage and a count. Out: facts; false or NULL for a storage that is not in the table, a
 * count that is no whole number of blocks, or a size that overflows.
 * Storages with parts in several tensors have no block of their own: bits and group size are the
 * tensor's, so sizes are computed where they are joined. The decoders stand in other files here. */
#include "quant/storage.h"

#include "base/mem.h"
#include "quant/decode.h"

static const struct mxc_storage_info infos[MXC_N_STORAGES] = {
    [MXC_ST_F32] = {"F32", 1, 4, false},
    [MXC_ST_F16] = {"F16", 1, 2, false},
    [MXC_ST_BF16] = {"BF16", 1, 2, false},
    [MXC_ST_F64] = {"F64", 1, 8, false},
    [MXC_ST_I8] = {"I8", 1, 1, false},
    [MXC_ST_U8] = {"U8", 1, 1, false},
    [MXC_ST_I16] = {"I16", 1, 2, false},
    [MXC_ST_U16] = {"U16", 1, 2, false},
    [MXC_ST_I32] = {"I32", 1, 4, false},
    [MXC_ST_U32] = {"U32", 1, 4, false},
    [MXC_ST_I64] = {"I64", 1, 8, false},
    [MXC_ST_U64] = {"U64", 1, 8, false},
    [MXC_ST_BOOL] = {"BOOL", 1, 1, false},
    [MXC_ST_F8_E4M3] = {"F8_E4M3", 1, 1, true},
    [MXC_ST_F8_E5M2] = {"F8_E5M2", 1, 1, true},
    [MXC_ST_F8_E8M0] = {"F8_E8M0", 1, 1, false},
    [MXC_ST_Q4_0] = {"Q4_0", 32, 18, true},
    [MXC_ST_Q4_1] = {"Q4_1", 32, 20, true},
    [MXC_ST_Q5_0] = {"Q5_0", 32, 22, true},
    [MXC_ST_Q5_1] = {"Q5_1", 32, 24, true},
    [MXC_ST_Q8_0] = {"Q8_0", 32, 34, true},
    [MXC_ST_Q4_K] = {"Q4_K", 256, 144, true},
    [MXC_ST_Q5_K] = {"Q5_K", 256, 176, true},
    [MXC_ST_Q6_K] = {"Q6_K", 256, 210, true},
    [MXC_ST_Q2_K] = {"Q2_K", 256, 84, true},
    [MXC_ST_Q3_K] = {"Q3_K", 256, 110, true},
    [MXC_ST_IQ4_NL] = {"IQ4_NL", 32, 18, true},
    [MXC_ST_IQ4_XS] = {"IQ4_XS", 256, 136, true},
    [MXC_ST_MXFP4_BLOCK] = {"MXFP4", 32, 17, true},
    [MXC_ST_TQ1_0] = {"TQ1_0", 256, 54, true},
    [MXC_ST_TQ2_0] = {"TQ2_0", 256, 66, true},
    [MXC_ST_MLX_AFFINE] = {"MLX affine", 0, 0, true},
    [MXC_ST_MXFP4] = {"MXFP4", 0, 0, true},
    [MXC_ST_MXFP8] = {"MXFP8", 0, 0, true},
    [MXC_ST_NVFP4] = {"NVFP4", 0, 0, true},
    [MXC_ST_GPTQ] = {"GPTQ", 0, 0, true},
    [MXC_ST_AWQ] = {"AWQ", 0, 0, true},
    [MXC_ST_INT_GROUPS] = {"int groups", 0, 0, true},
    [MXC_ST_FP8] = {"FP8", 0, 0, true},
};

const struct mxc_storage_info *mxc_storage_info(enum mxc_storage storage) {
    return (unsigned)storage < MXC_N_STORAGES ? &infos[storage] : NULL;
}

bool mxc_quant_bytes(enum mxc_storage storage, uint64_t n, size_t *bytes) {
    const struct mxc_storage_info *info = mxc_storage_info(storage);
    if (!info || !info->block || n % info->block)
        return false;
    return mxc_size_mul((size_t)(n / info->block), info->block_bytes, bytes);
}
