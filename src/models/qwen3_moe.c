/* Qwen3 MoE: Qwen3's attention with a mixture of experts in the layers that decoder_sparse_step and
 * mlp_only_layers do not leave dense.
 * In: a config and the names of the weights. Out: the graph.
 * The router's softmax is over all experts; norm_topk_prob divides the chosen ones by their sum. */
#include "models/blocks.h"
#include "models/families.h"

static int32_t layer(struct mxc_decoder *d, int32_t x) {
    const struct mxc_moe_hyper *moe = d->family;
    x = mxc_block_attention(d, mxc_block_norm(d, x, "input_layernorm"), x);
    int32_t y = mxc_block_norm(d, x, "post_attention_layernorm");
    return mxc_moe_is_dense(moe, d->layer) ? mxc_block_glu(d, y, x) : mxc_block_moe(d, moe, y, x);
}

static enum mxc_code build(const struct mxc_config *config, const struct mxc_weights *weights,
                           struct mxc_graph *graph, struct mxc_err *err) {
    struct mxc_decoder d;
    struct mxc_moe_hyper moe;
    static const struct mxc_hyper_rules rules = {.head_dim = 128, .accepts = mxc_moe_keys};
    enum mxc_code code = mxc_decoder_open(&d, graph, config, weights, &rules, err);
    if (!code)
        code = mxc_hyper_read_windows(config, &d.h, err);
    if (!code)
        code = mxc_moe_read(config, &d.h, &moe, err);
    if (code)
        return code;
    d.h.qk_norm = true;
    d.h.mlp_bias = MXC_ABSENT;
    if (config->from_gguf)
        moe.attr.normalise = true; /* the key is not in the file; every release has it */
    d.family = &moe;
    return mxc_decoder_run(&d, layer, err);
}

static const char *const model_types[] = {"qwen3_moe", NULL};
static const char *const gguf_archs[] = {"qwen3moe", NULL};

const struct mxc_family mxc_family_qwen3_moe = {
    .name = "qwen3_moe",
    .summary = "Qwen3 mixture of experts (30B-A3B, 235B-A22B)",
    .notes = "norms on the heads of q and k; norm_topk_prob",
    .model_types = model_types,
    .gguf_archs = gguf_archs,
    .build = build,
};
