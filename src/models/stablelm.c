/* StableLM: layer norms with biases, a quarter of a head rotated; with use_parallel_residual
 * attention and feed-forward stand side by side behind one norm; with qk_layernorm every head of q
 * and k has a layer norm of its own. In: a config and the names of the weights. Out: the graph. */
#include "models/blocks.h"
#include "models/families.h"

static int32_t parallel_layer(struct mxc_decoder *d, int32_t x) {
    int32_t y = mxc_block_norm(d, x, "input_layernorm");
    return mxc_block_glu(d, y, mxc_block_attention(d, y, x));
}

static enum mxc_code build(const struct mxc_config *config, const struct mxc_weights *weights,
                           struct mxc_graph *graph, struct mxc_err *err) {
    struct mxc_decoder d;
    static const char *const accepts[] = {"use_parallel_residual", "qk_layernorm", NULL};
    static const struct mxc_hyper_rules rules = {
        .eps_key = "layer_norm_eps", .eps = 1e-5, .rotary_part = 0.25, .accepts = accepts};
    bool qkv_bias = false, parallel = false;
    enum mxc_code code = mxc_decoder_open(&d, graph, config, weights, &rules, err);
    if (code || (code = mxc_json_get_bool(config->text, "use_qkv_bias", &qkv_bias, err)) ||
        (code = mxc_json_get_bool(config->text, "use_parallel_residual", &parallel, err)) ||
        (code = mxc_json_get_bool(config->text, "qk_layernorm", &d.h.qk_norm, err)))
        return code;
    if (config->from_gguf) {
        d.h.qk_norm = mxc_block_has(&d, "self_attn.q_norm.weight");
        parallel = !mxc_block_has(&d, "post_attention_layernorm.weight");
    }
    d.h.qkv_bias = config->from_gguf ? MXC_BY_FILE : qkv_bias ? MXC_PRESENT : MXC_ABSENT;
    d.h.o_bias = d.h.mlp_bias = MXC_ABSENT;
    d.h.norm = MXC_NORM_LAYER;
    d.h.norm_bias = MXC_BY_FILE;
    d.h.qk_norm_kind = MXC_QK_LAYER_HEADS;
    if (!config->from_gguf) { /* one tensor per head */
        d.q_norm = "q_layernorm.norms.*";
        d.k_norm = "k_layernorm.norms.*";
    }
    return mxc_decoder_run(&d, parallel ? parallel_layer : mxc_layer_llama, err);
}

static const char *const model_types[] = {"stablelm", NULL};
static const char *const gguf_archs[] = {"stablelm", NULL};

const struct mxc_family mxc_family_stablelm = {
    .name = "stablelm",
    .summary = "StableLM (3B, 1.6B, 12B)",
    .notes = "layer norms, partial rotation, use_parallel_residual, qk_layernorm",
    .model_types = model_types,
    .gguf_archs = gguf_archs,
    .build = build,
};
