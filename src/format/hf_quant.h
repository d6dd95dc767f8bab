/* The quantization_config of Hugging Face checkpoints. Pure functions. */
#ifndef MXC_FORMAT_HF_QUANT_H
#define MXC_FORMAT_HF_QUANT_H

#include "base/json.h"

enum mxc_hf_method {
    MXC_HF_NONE, /* no method given: MLX's section, or nothing */
    MXC_HF_GPTQ,
    MXC_HF_AWQ,
    MXC_HF_COMPRESSED, /* compressed-tensors */
    MXC_HF_FP8,        /* fp8, fbgemm_fp8, modelopt */
    MXC_HF_MXFP4,
};

struct mxc_hf_quant {
    enum mxc_hf_method method;
    int64_t bits, group;               /* 0: not given; group -1: a whole row */
    int zero_offset;                   /* GPTQ: what is added to stored zero points */
    bool dynamic;                      /* GPTQ: modules may have other bits than these */
    int64_t block_rows, block_columns; /* fp8: of a scale; 0: not given */
};

/* Reads the section; NULL gives method NONE and GPTQ's defaults. A method, or an option of one,
 * that is not done here is MXC_E_UNSUPPORTED by name. What the file's tensors show by themselves
 * (which modules are quantised, most shapes) is not asked of the config. */
enum mxc_code mxc_hf_quant_read(const json_t *quantization, struct mxc_hf_quant *out,
                                struct mxc_err *err) MXC_MUST;

#endif
