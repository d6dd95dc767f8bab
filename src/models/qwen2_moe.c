/* Qwen2 MoE and Qwen1.5 MoE: Qwen2's attention, routed experts, and one shared expert whose output
 * is multiplied with a sigmoid gate of its own.
 * In: a config and the names of the weights. Out: the graph.
 * The router's softmax is over all experts and not normalised unless norm_topk_prob is set; layers
 * are dense as decoder_sparse_step and mlp_only_layers say. */
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
    static const struct mxc_hyper_rules rules = {.accepts = mxc_moe_keys};
    int64_t shared = 5632; /* the reference's default */
    enum mxc_code code = mxc_decoder_open(&d, graph, config, weights, &rules, err);
    if (!code)
        code = mxc_hyper_read_windows(config, &d.h, err);
    if (!code)
        code = mxc_moe_read(config, &d.h, &moe, err);
    if (!code)
        code = mxc_json_get_int(config->text, "shared_expert_intermediate_size", 1, 1 << 23,
                                &shared, err);
    if (code)
        return code;
    d.h.qkv_bias = MXC_PRESENT;
    d.h.o_bias = d.h.mlp_bias = MXC_ABSENT;
    moe.shared_width = (int32_t)shared;
    moe.shared = "shared_expert";
    moe.shared_gate = "shared_expert_gate";
    d.family = &moe;
    return mxc_decoder_run(&d, layer, err);
}

static const char *const model_types[] = {"qwen2_moe", NULL};
static const char *const gguf_archs[] = {"qwen2moe", NULL};

const struct mxc_family mxc_family_qwen2_moe = {
    .name = "qwen2_moe",
    .summary = "Qwen1.5 and Qwen2 mixture of experts",
    .notes = "shared expert with a sigmoid gate; dense layers by decoder_sparse_step and "
             "mlp_only_layers",
    .model_types = model_types,
    .gguf_archs = gguf_archs,
    .build = build,
};
