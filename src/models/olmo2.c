/* OLMo 2: norms stand after attention and feed-forward, on what they add to the residual, and q and
 * k are normalised over all heads together. In: a config and the names of the weights. Out: the
 * graph. */
#include "models/blocks.h"
#include "models/families.h"

static int32_t layer(struct mxc_decoder *d, int32_t x) {
    int32_t y = mxc_block_norm(d, mxc_block_attention(d, x, MXC_NONE), "post_attention_layernorm");
    x = mxc_graph_add(d->g, y, x);
    y = mxc_block_norm(d, mxc_block_glu(d, x, MXC_NONE), "post_feedforward_layernorm");
    return mxc_graph_add(d->g, y, x);
}

static enum mxc_code build(const struct mxc_config *config, const struct mxc_weights *weights,
                           struct mxc_graph *graph, struct mxc_err *err) {
    struct mxc_decoder d;
    enum mxc_code code = mxc_decoder_open(&d, graph, config, weights, NULL, err);
    if (code)
        return code;
    d.h.qk_norm = true;
    d.h.qk_norm_kind = MXC_QK_RMS_WHOLE;
    return mxc_decoder_run(&d, layer, err);
}

static const char *const model_types[] = {"olmo2", NULL};
static const char *const gguf_archs[] = {"olmo2", NULL};

const struct mxc_family mxc_family_olmo2 = {
    .name = "olmo2",
    .summary = "OLMo 2",
    .notes = "norms after, q and k normalised over all heads",
    .model_types = model_types,
    .gguf_archs = gguf_archs,
    .build = build,
};
