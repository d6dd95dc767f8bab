/* Joins the pieces of matrices that were quantised by Hugging Face's methods: GPTQ and AWQ
 * (.qweight, .qzeros, .scales, .g_idx), compressed-tensors (.weight_packed, .weight_scale,
 * .weight_zero_point, .weight_g_idx, .weight_shape, .weight_global_scale), fp8 and int8 (.weight
 * with .weight_scale or .weight_scale_inv), gpt_oss experts (_blocks, _scales). Each becomes one
 * tensor ".weight" (for gpt_oss the name without _blocks). Errors name file and tensor: missing
 * pieces, shapes or types that contradict each other or the config, indices out of range. */
#ifndef MXC_FORMAT_HF_JOIN_H
#define MXC_FORMAT_HF_JOIN_H

#include "format/join.h"

enum mxc_code mxc_hf_join(struct mxc_join *j) MXC_MUST;

#endif
