/* Qwen2 and 2.5: Llama with biases on q, k and v whatever attention_bias says, none elsewhere, and
 * a sliding window on the layers from max_window_layers (or those that layer_types names) when
 * use_sliding_window is set. */
#include "models/blocks.h"
#include "models/families.h"

static enum mxc_code build(const struct mxc_config *config, const struct mxc_weights *weights,
                           struct mxc_graph *graph, struct mxc_err *err) {
    struct mxc_decoder d;
    enum mxc_code code = mxc_decoder_open(&d, graph, config, weights, NULL, err);
    if (!code)
        code = mxc_hyper_read_windows(config, &d.h, err);
    if (code)
        return code;
    d.h.qkv_bias = MXC_PRESENT;
    d.h.o_bias = d.h.mlp_bias = MXC_ABSENT;
    return mxc_decoder_run(&d, mxc_layer_llama, err);
}

static const char *const model_types[] = {"qwen2", NULL};
static const char *const gguf_archs[] = {"qwen2", NULL};

const struct mxc_family mxc_family_qwen2 = {
    .name = "qwen2",
    .summary = "Qwen2 and Qwen2.5",
    .notes = "biases on q, k, v; windows by use_sliding_window",
    .model_types = model_types,
    .gguf_archs = gguf_archs,
    .build = build,
};
