/* Qwen3, dense: Llama with an RMS norm on every head of q and k.
 * In: a config and the names of the weights. Out: the graph.
 * Heads are 128 wide unless head_dim says otherwise, whatever hidden_size / heads would give. The
 * attention has biases by attention_bias, the MLP never; the keys of the sliding window are those
 * of Qwen2. */
#include "models/blocks.h"
#include "models/families.h"

static enum mxc_code build(const struct mxc_config *config, const struct mxc_weights *weights,
                           struct mxc_graph *graph, struct mxc_err *err) {
    struct mxc_decoder d;
    static const struct mxc_hyper_rules rules = {.head_dim = 128};
    enum mxc_code code = mxc_decoder_open(&d, graph, config, weights, &rules, err);
    if (!code)
        code = mxc_hyper_read_windows(config, &d.h, err);
    if (code)
        return code;
    d.h.qk_norm = true;
    d.h.mlp_bias = MXC_ABSENT;
    return mxc_decoder_run(&d, mxc_layer_llama, err);
}

static const char *const model_types[] = {"qwen3", NULL};
static const char *const gguf_archs[] = {"qwen3", NULL};

const struct mxc_family mxc_family_qwen3 = {
    .name = "qwen3",
    .summary = "Qwen3 (dense)",
    .notes = "norms on the heads of q and k",
    .model_types = model_types,
    .gguf_archs = gguf_archs,
    .build = build,
};
