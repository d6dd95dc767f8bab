/* Mixtral: Mistral with a mixture of experts in every layer; the router's softmax is normalised
 * over the chosen experts. In: a config and the names of the weights. Out: the graph. Its experts
 * are w1, w3 (gate, up) and w2 (down) under block_sparse_moe; a GGUF, which calls this family
 * llama, has them stacked under mlp. The window is off unless sliding_window is given. */
#include "models/blocks.h"
#include "models/families.h"

static int32_t layer(struct mxc_decoder *d, int32_t x) {
    x = mxc_block_attention(d, mxc_block_norm(d, x, "input_layernorm"), x);
    int32_t y = mxc_block_norm(d, x, "post_attention_layernorm");
    return mxc_block_moe(d, d->family, y, x);
}

static enum mxc_code build(const struct mxc_config *config, const struct mxc_weights *weights,
                           struct mxc_graph *graph, struct mxc_err *err) {
    struct mxc_decoder d;
    struct mxc_moe_hyper moe;
    static const struct mxc_hyper_rules rules = {.theta = 1e6, .accepts = mxc_moe_keys};
    enum mxc_code code = mxc_decoder_open(&d, graph, config, weights, &rules, err);
    if (!code)
        code = mxc_hyper_read_window(config, 0, &d.h, err);
    if (!code)
        code = mxc_moe_read(config, &d.h, &moe, err);
    if (code)
        return code;
    d.h.qkv_bias = d.h.o_bias = MXC_ABSENT;
    if (!mxc_block_has(&d, "mlp.gate.weight"))
        moe.parent = "block_sparse_moe";
    moe.gate = "w1";
    moe.up = "w3";
    moe.down = "w2";
    moe.attr.normalise = true;
    d.family = &moe;
    return mxc_decoder_run(&d, layer, err);
}

static const char *const model_types[] = {"mixtral", NULL};
static const char *const gguf_archs[] = {NULL};

const struct mxc_family mxc_family_mixtral = {
    .name = "mixtral",
    .summary = "Mixtral 8x7B and 8x22B",
    .notes = "softmax over the chosen experts; window when given",
    .model_types = model_types,
    .gguf_archs = gguf_archs,
    .build = build,
};
