/* Reads quantization_config: method and the options that change what bytes mean.
 * In: the config's object. Out: a small struct that hf_join.c uses. Options that only say how a
 * checkpoint was made (damping, calibration, activation schemes) are not looked at: activations are
 * never quantised by what a checkpoint asks for. */
#include "format/hf_quant.h"

#include <string.h>
#include <strings.h>

static enum mxc_code unsupported(struct mxc_err *err, const char *key, const char *value,
                                 const char *known) {
    return mxc_err_set(err, MXC_E_UNSUPPORTED, "%s %.60s is not supported (%s)", key, value, known);
}

static bool one_of(const char *text, const char *const *list) {
    for (; *list; list++)
        if (!strcasecmp(text, *list))
            return true;
    return false;
}

/* A string option that must be one of a NULL-ended list, when it is given. */
static enum mxc_code check_option(const json_t *q, const char *key, const char *const *list,
                                  const char *known, struct mxc_err *err) {
    const char *text = NULL;
    enum mxc_code code = mxc_json_get_string(q, key, &text, err);
    if (!code && text && !one_of(text, list))
        code = unsupported(err, key, text, known);
    return code;
}

static enum mxc_code read_method(const json_t *q, enum mxc_hf_method *out, struct mxc_err *err) {
    static const struct {
        const char *name;
        enum mxc_hf_method method;
    } rows[] = {
        {"mlx", MXC_HF_NONE},     {"gptq", MXC_HF_GPTQ},
        {"awq", MXC_HF_AWQ},      {"compressed-tensors", MXC_HF_COMPRESSED},
        {"fp8", MXC_HF_FP8},      {"fbgemm_fp8", MXC_HF_FP8},
        {"modelopt", MXC_HF_FP8}, {"mxfp4", MXC_HF_MXFP4},
    };
    const char *name = NULL;
    enum mxc_code code = mxc_json_get_string(q, "quant_method", &name, err);
    if (code || !name)
        return code;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!strcmp(rows[i].name, name)) {
            *out = rows[i].method;
            return MXC_OK;
        }
    }
    return unsupported(err, "quantization method", name,
                       "MLX, gptq, awq, compressed-tensors, fp8 and mxfp4 are");
}

static enum mxc_code read_gptq(const json_t *q, struct mxc_hf_quant *out, struct mxc_err *err) {
    static const char *const formats[] = {"gptq", "gptq_v2", NULL};
    const char *format = NULL;
    enum mxc_code code = check_option(q, "checkpoint_format", formats, "gptq and gptq_v2 are", err);
    if (!code)
        code = mxc_json_get_string(q, "checkpoint_format", &format, err);
    if (!code && format && !strcasecmp(format, "gptq_v2"))
        out->zero_offset = 0;
    const json_t *dynamic = json_object_get(q, "dynamic");
    out->dynamic = json_object_size(dynamic) > 0;
    return code;
}

static enum mxc_code read_awq(const json_t *q, struct mxc_err *err) {
    static const char *const versions[] = {"gemm", "exllama", "ipex", NULL};
    return check_option(q, "version", versions, "gemm is", err);
}

static enum mxc_code read_compressed(const json_t *q, struct mxc_err *err) {
    static const char *const formats[] = {"pack-quantized",
                                          "int-quantized",
                                          "float-quantized",
                                          "naive-quantized",
                                          "nvfp4-pack-quantized",
                                          "mxfp4-pack-quantized",
                                          "mixed-precision",
                                          "dense",
                                          NULL};
    static const char *const sparsity[] = {"dense", NULL};
    enum mxc_code code = check_option(q, "format", formats,
                                      "pack-, int-, float-, naive-, nvfp4-pack- and "
                                      "mxfp4-pack-quantized are",
                                      err);
    const json_t *sparse = json_object_get(q, "sparsity_config");
    if (!code && json_is_object(sparse))
        code = check_option(sparse, "format", sparsity, "dense is", err);
    if (!code && json_object_size(json_object_get(q, "transform_config")) > 0)
        code = unsupported(err, "transform_config", "", "weights must be used as they are");
    return code;
}

static enum mxc_code read_block(const json_t *q, struct mxc_hf_quant *out, struct mxc_err *err) {
    const json_t *block = json_object_get(q, "weight_block_size");
    if (!block || json_is_null(block))
        return MXC_OK;
    const json_t *a = json_array_get(block, 0), *b = json_array_get(block, 1);
    if (json_array_size(block) != 2 || !json_is_integer(a) || !json_is_integer(b) ||
        json_integer_value(a) < 1 || json_integer_value(b) < 1 || json_integer_value(a) > 1 << 20 ||
        json_integer_value(b) > 1 << 20)
        return mxc_err_set(err, MXC_E_FORMAT, "weight_block_size: not two positive numbers");
    out->block_rows = json_integer_value(a);
    out->block_columns = json_integer_value(b);
    return MXC_OK;
}

enum mxc_code mxc_hf_quant_read(const json_t *quantization, struct mxc_hf_quant *out,
                                struct mxc_err *err) {
    struct mxc_hf_quant q = {.zero_offset = 1};
    enum mxc_code code = MXC_OK;
    if (!quantization) {
        *out = q;
        return MXC_OK;
    }
    code = read_method(quantization, &q.method, err);
    if (!code && (q.method == MXC_HF_GPTQ || q.method == MXC_HF_AWQ)) {
        const char *group_key =
            json_object_get(quantization, "group_size") ? "group_size" : "q_group_size";
        const char *bits_key = json_object_get(quantization, "bits") ? "bits" : "w_bit";
        code = mxc_json_get_int(quantization, bits_key, 1, 16, &q.bits, err);
        if (!code)
            code = mxc_json_get_int(quantization, group_key, -1, 1 << 20, &q.group, err);
    }
    if (!code && q.method == MXC_HF_GPTQ)
        code = read_gptq(quantization, &q, err);
    else if (!code && q.method == MXC_HF_AWQ)
        code = read_awq(quantization, err);
    else if (!code && q.method == MXC_HF_COMPRESSED)
        code = read_compressed(quantization, err);
    else if (!code && q.method == MXC_HF_FP8)
        code = read_block(quantization, &q, err);
    if (!code)
        *out = q;
    return code;
}
