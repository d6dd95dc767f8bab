/* Config: what config.json, generation_config.json or GGUF metadata say about a model, as one JSON
 * object in Hugging Face spelling. Families read hyper-parameters from it with mxc_json_get_*;
 * the fields below are the ones that other layers need too. */
#ifndef MXC_FORMAT_CONFIG_H
#define MXC_FORMAT_CONFIG_H

#include "base/json.h"

enum { MXC_MAX_EOS = 16 };

/* Sampling defaults of generation_config.json; NaN / -1: not given. */
struct mxc_generation_defaults {
    double temperature, top_p, min_p, repetition_penalty;
    int64_t top_k;
    int do_sample; /* -1 not given, 0, 1 */
};

struct mxc_config {
    char *model_type; /* raw, of the whole model ("llama", "qwen2_vl") */
    json_t *root;     /* whole config; GGUF metadata is translated to the same keys */
    json_t *text;     /* the language model's object: text_config / llm_config, or root. Borrowed */
    json_t *quantization;     /* "quantization" or "quantization_config", or NULL. Borrowed */
    int32_t eos[MXC_MAX_EOS]; /* union of config (root and text) and generation_config */
    int n_eos;
    int32_t bos, pad;     /* -1: none */
    int64_t max_position; /* max_position_embeddings; 0: not given */
    struct mxc_generation_defaults defaults;
    bool from_gguf;
};

/* path: folder with config.json, or a .gguf file. */
enum mxc_code mxc_config_open(const char *path, struct mxc_config **config,
                              struct mxc_err *err) MXC_MUST;
void mxc_config_close(struct mxc_config *config);

#endif
