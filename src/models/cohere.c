/* Command-R: attention and feed-forward stand side by side behind one layer norm without bias; q
 * and k rotate in adjacent pairs; logits are multiplied by logit_scale; with use_qk_norm the heads
 * of q and k have layer norms of their own. In: a config and the names of the weights. Out: the
 * graph. The head is the embedding table. */
#include "models/blocks.h"
#include "models/families.h"

static int32_t layer(struct mxc_decoder *d, int32_t x) {
    int32_t y = mxc_block_norm(d, x, "input_layernorm");
    return mxc_block_glu(d, y, mxc_block_attention(d, y, x));
}

static enum mxc_code build(const struct mxc_config *config, const struct mxc_weights *weights,
                           struct mxc_graph *graph, struct mxc_err *err) {
    struct mxc_decoder d;
    static const char *const accepts[] = {"logit_scale", "use_qk_norm", NULL};
    static const struct mxc_hyper_rules rules = {
        .eps_key = "layer_norm_eps", .eps = 1e-5, .theta = 5e5, .accepts = accepts};
    enum mxc_code code = mxc_decoder_open(&d, graph, config, weights, &rules, err);
    if (code)
        return code;
    d.h.logit_scale = 0.0625f; /* the reference's default */
    if ((code = mxc_read_positive(config->text, "logit_scale", &d.h.logit_scale, err)) ||
        (code = mxc_json_get_bool(config->text, "use_qk_norm", &d.h.qk_norm, err)))
        return code;
    if (config->from_gguf)
        d.h.qk_norm = mxc_block_has(&d, "self_attn.q_norm.weight");
    d.h.norm = MXC_NORM_LAYER;
    d.h.norm_bias = MXC_ABSENT;
    d.h.qk_norm_kind = MXC_QK_LAYER_HEADS;
    d.h.rope.interleaved = true;
    return mxc_decoder_run(&d, layer, err);
}

static const char *const model_types[] = {"cohere", NULL};
static const char *const gguf_archs[] = {"command-r", NULL};

const struct mxc_family mxc_family_cohere = {
    .name = "cohere",
    .summary = "Command-R and Command-R+",
    .notes = "attention and feed-forward in parallel, layer norms, logit_scale, use_qk_norm",
    .model_types = model_types,
    .gguf_archs = gguf_archs,
    .build = build,
};
