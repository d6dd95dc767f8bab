/* gpt-oss: every layer a mixture of experts with biases and a clipped SwiGLU; a learned logit per
 * head takes part in the attention's softmax (a sink); every other layer has a window, the first
 * one too. In: a config and the names of the weights. Out: the graph. Gate and up rows take turns
 * in the fused expert tensors; the router's softmax is over the chosen experts, which is the
 * softmax over all of them, normalised. */
#include "models/blocks.h"
#include "models/families.h"

static int32_t layer(struct mxc_decoder *d, int32_t x) {
    if (!d->h.layer_types)
        d->window = d->layer % 2 ? 0 : d->h.window;
    x = mxc_block_attention(d, mxc_block_norm(d, x, "input_layernorm"), x);
    int32_t y = mxc_block_norm(d, x, "post_attention_layernorm");
    return mxc_block_moe(d, d->family, y, x);
}

static enum mxc_code check_clip(const json_t *text, struct mxc_err *err) {
    double limit = 7;
    enum mxc_code code = mxc_json_get_real(text, "swiglu_limit", &limit, err);
    if (!code && limit != 7)
        code =
            mxc_err_set(err, MXC_E_UNSUPPORTED, "swiglu_limit: %g is not supported (7 is)", limit);
    return code;
}

static enum mxc_code build(const struct mxc_config *config, const struct mxc_weights *weights,
                           struct mxc_graph *graph, struct mxc_err *err) {
    struct mxc_decoder d;
    static const struct mxc_hyper_rules rules = {
        .head_dim = 64, .theta = 15e4, .eps = 1e-5, .accepts = mxc_moe_keys};
    struct mxc_moe_hyper moe;
    enum mxc_code code = mxc_decoder_open(&d, graph, config, weights, &rules, err);
    if (code || (code = mxc_hyper_read_window(config, 128, &d.h, err)) ||
        (code = mxc_hyper_read_layer_types(config, &d.h, err)) ||
        (code = mxc_moe_read(config, &d.h, &moe, err)) || (code = check_clip(config->text, err)))
        return code;
    moe.router = "router";
    moe.router_bias = MXC_PRESENT;
    moe.biases = moe.interleaved = true;
    moe.attr.act = MXC_ACT_SWIGLU_CLIP;
    moe.attr.normalise = true;
    d.sinks = "sinks";
    d.family = &moe;
    return mxc_decoder_run(&d, layer, err);
}

static const char *const model_types[] = {"gpt_oss", NULL};
static const char *const gguf_archs[] = {"gpt-oss", NULL};

const struct mxc_family mxc_family_gpt_oss = {
    .name = "gpt_oss",
    .summary = "gpt-oss (20B, 120B)",
    .notes = "attention sinks, windows on every other layer, mxfp4 experts with biases",
    .model_types = model_types,
    .gguf_archs = gguf_archs,
    .build = build,
};
