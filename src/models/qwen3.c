/* Qwen3, dense: Llama with an RMS norm on every head of q and k.
 * In: a config and the names of the weights. Out: the graph.
 * Heads are 128 wide unless head_dim says otherwise, whatever hidden_size / heads would give. The
 * attention has biases by attention_bias, the MLP never; the keys of the sliding window are those
 * of Qwen2. */
#include "models/blocks.h"
#include "models/families.h"

static enum mxc_code build(const struct mxc_config *config, const struct mxc_weights *weights,
                           struct mxc_graph *graph, struct mxc_err *err) {
    struct mxc_hyper hyper;
    enum mxc_code code = mxc_hyper_read(config, weights, 128, &hyper, err);
    if (!code)
        code = mxc_hyper_read_windows(config, &hyper, err);
    if (code)
        return code;
    hyper.qk_norm = true;
    hyper.mlp_bias = MXC_ABSENT;
    return mxc_graph_finish(
        graph, mxc_blocks_decoder(graph, config, weights, &hyper, "model.", "lm_head.weight"), err);
}

static const char *const model_types[] = {"qwen3", NULL};
static const char *const gguf_archs[] = {"qwen3", NULL};

const struct mxc_family mxc_family_qwen3 = {
    .name = "qwen3",
    .summary = "Qwen3 (dense)",
    .model_types = model_types,
    .gguf_archs = gguf_archs,
    .build = build,
};
