/* Mistral: Llama without biases and with a sliding window on every layer, unless sliding_window is
 * null. A config.json that does not mention it means 4096, the default of the reference; a GGUF
 * that does not means none. */
#include "models/blocks.h"
#include "models/families.h"

static enum mxc_code build(const struct mxc_config *config, const struct mxc_weights *weights,
                           struct mxc_graph *graph, struct mxc_err *err) {
    struct mxc_decoder d;
    enum mxc_code code = mxc_decoder_open(&d, graph, config, weights, NULL, err);
    if (!code)
        code = mxc_hyper_read_window(config, 4096, &d.h, err);
    if (code)
        return code;
    d.h.qkv_bias = d.h.o_bias = d.h.mlp_bias = MXC_ABSENT;
    return mxc_decoder_run(&d, mxc_layer_llama, err);
}

static const char *const model_types[] = {"mistral", NULL};
static const char *const gguf_archs[] = {NULL};

const struct mxc_family mxc_family_mistral = {
    .name = "mistral",
    .summary = "Mistral 7B and Nemo",
    .notes = "a window on every layer (default 4096, null: none)",
    .model_types = model_types,
    .gguf_archs = gguf_archs,
    .build = build,
};
