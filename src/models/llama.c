/* Llama: RMS norm, grouped-query attention, SwiGLU; biases where attention_bias and mlp_bias say so
 * (or, in a GGUF, where the tensors are). SmolLM2, TinyLlama and most GGUF files of Mistral models
 * name this family. A sliding_window in such a config is not used, as in the reference. */
#include "models/blocks.h"
#include "models/families.h"

static enum mxc_code build(const struct mxc_config *config, const struct mxc_weights *weights,
                           struct mxc_graph *graph, struct mxc_err *err) {
    struct mxc_decoder d;
    enum mxc_code code = mxc_decoder_open(&d, graph, config, weights, NULL, err);
    return code ? code : mxc_decoder_run(&d, mxc_layer_llama, err);
}

static const char *const model_types[] = {"llama", NULL};
static const char *const gguf_archs[] = {"llama", NULL};

const struct mxc_family mxc_family_llama = {
    .name = "llama",
    .summary = "Llama 1 to 3.3, SmolLM2, TinyLlama",
    .notes = "biases by config; RoPE scaling linear, dynamic, yarn, llama3",
    .model_types = model_types,
    .gguf_archs = gguf_archs,
    .build = build,
};
