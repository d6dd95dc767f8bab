/* StarCoder 2: layer norms, a plain feed-forward (c_fc, GELU, c_proj), biases everywhere when
 * use_bias is set, a window on every layer when sliding_window is given. In: a config and the names
 * of the weights. Out: the graph. */
#include "models/blocks.h"
#include "models/families.h"

static int32_t layer(struct mxc_decoder *d, int32_t x) {
    x = mxc_block_attention(d, mxc_block_norm(d, x, "input_layernorm"), x);
    return mxc_block_mlp(d, mxc_block_norm(d, x, "post_attention_layernorm"), x);
}

static enum mxc_code build(const struct mxc_config *config, const struct mxc_weights *weights,
                           struct mxc_graph *graph, struct mxc_err *err) {
    struct mxc_decoder d;
    static const struct mxc_hyper_rules rules = {
        .eps_key = "norm_epsilon", .eps = 1e-5, .act = "gelu_pytorch_tanh"};
    bool bias = true;
    enum mxc_code code = mxc_decoder_open(&d, graph, config, weights, &rules, err);
    if (!code)
        code = mxc_hyper_read_window(config, 0, &d.h, err);
    if (!code)
        code = mxc_json_get_bool(config->text, "use_bias", &bias, err);
    if (code)
        return code;
    enum mxc_presence rule = config->from_gguf ? MXC_BY_FILE : bias ? MXC_PRESENT : MXC_ABSENT;
    d.h.qkv_bias = d.h.o_bias = d.h.mlp_bias = rule;
    d.h.norm = MXC_NORM_LAYER;
    d.h.norm_bias = MXC_PRESENT;
    d.up = mxc_block_has(&d, "mlp.up_proj.weight") ? "up_proj" : "c_fc";
    d.down = mxc_block_has(&d, "mlp.down_proj.weight") ? "down_proj" : "c_proj";
    return mxc_decoder_run(&d, layer, err);
}

static const char *const model_types[] = {"starcoder2", NULL};
static const char *const gguf_archs[] = {"starcoder2", NULL};

const struct mxc_family mxc_family_starcoder2 = {
    .name = "starcoder2",
    .summary = "StarCoder 2",
    .notes = "layer norms, plain feed-forward, window when given",
    .model_types = model_types,
    .gguf_archs = gguf_archs,
    .build = build,
};
