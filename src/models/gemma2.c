/* Gemma 2: norms before and after both branches, softcaps on attention scores and on logits,
 * windows on every other layer (the first has one), q . k scaled by query_pre_attn_scalar. In: a
 * config and the names of the weights. Out: the graph. Embedding scale and norms are those of
 * Gemma 1. */
#include "models/blocks.h"
#include "models/families.h"

#include <math.h>

static int32_t layer(struct mxc_decoder *d, int32_t x) {
    if (!d->h.layer_types)
        d->window = d->layer % 2 ? 0 : d->h.window;
    int32_t y = mxc_block_attention(d, mxc_block_norm(d, x, "input_layernorm"), MXC_NONE);
    x = mxc_graph_add(d->g, mxc_block_norm(d, y, "post_attention_layernorm"), x);
    y = mxc_block_glu(d, mxc_block_norm(d, x, "pre_feedforward_layernorm"), MXC_NONE);
    return mxc_graph_add(d->g, mxc_block_norm(d, y, "post_feedforward_layernorm"), x);
}

static enum mxc_code build(const struct mxc_config *config, const struct mxc_weights *weights,
                           struct mxc_graph *graph, struct mxc_err *err) {
    struct mxc_decoder d;
    static const char *const accepts[] = {"attn_logit_softcapping", "final_logit_softcapping",
                                          "query_pre_attn_scalar", NULL};
    static const struct mxc_hyper_rules rules = {.head_dim = 256,
                                                 .act_key = "hidden_activation",
                                                 .act = "gelu_pytorch_tanh",
                                                 .accepts = accepts};
    float scalar = 256; /* and the softcaps: the reference's defaults; null means none */
    enum mxc_code code = mxc_decoder_open(&d, graph, config, weights, &rules, err);
    d.h.attn_softcap =
        json_is_null(json_object_get(config->text, "attn_logit_softcapping")) ? 0 : 50;
    d.h.logit_softcap =
        json_is_null(json_object_get(config->text, "final_logit_softcapping")) ? 0 : 30;
    if (code || (code = mxc_hyper_read_window(config, 4096, &d.h, err)) ||
        (code = mxc_hyper_read_layer_types(config, &d.h, err)) ||
        (code = mxc_read_positive(config->text, "query_pre_attn_scalar", &scalar, err)) ||
        (code =
             mxc_read_positive(config->text, "attn_logit_softcapping", &d.h.attn_softcap, err)) ||
        (code =
             mxc_read_positive(config->text, "final_logit_softcapping", &d.h.logit_softcap, err)))
        return code;
    d.h.attn_scale = 1 / sqrtf(scalar);
    d.h.embed_scale = sqrtf((float)d.h.hidden);
    d.h.norm_offset = config->from_gguf ? 0 : 1;
    return mxc_decoder_run(&d, layer, err);
}

static const char *const model_types[] = {"gemma2", NULL};
static const char *const gguf_archs[] = {"gemma2", NULL};

const struct mxc_family mxc_family_gemma2 = {
    .name = "gemma2",
    .summary = "Gemma 2 (2B, 9B, 27B)",
    .notes = "norms before and after, softcaps, windows on every other layer",
    .model_types = model_types,
    .gguf_archs = gguf_archs,
    .build = build,
};
