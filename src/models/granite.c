/* Granite 3, dense: Llama with four multipliers: of the embedding, of what a branch adds to the
 * residual, of q . k (in place of 1 / sqrt(head_dim)), and a divisor of the logits.
 * In: a config and the names of the weights. Out: the graph. */
#include "models/blocks.h"
#include "models/families.h"

#include <math.h>

static enum mxc_code build(const struct mxc_config *config, const struct mxc_weights *weights,
                           struct mxc_graph *graph, struct mxc_err *err) {
    struct mxc_decoder d;
    static const char *const accepts[] = {"embedding_multiplier", "residual_multiplier",
                                          "attention_multiplier", "logits_scaling", NULL};
    static const struct mxc_hyper_rules rules = {.accepts = accepts};
    float divisor = 1;
    enum mxc_code code = mxc_decoder_open(&d, graph, config, weights, &rules, err);
    if (code)
        return code;
    d.h.attn_scale = 1; /* the reference's default */
    if ((code = mxc_read_positive(config->text, "embedding_multiplier", &d.h.embed_scale, err)) ||
        (code = mxc_read_positive(config->text, "residual_multiplier", &d.h.residual_scale, err)) ||
        (code = mxc_read_positive(config->text, "attention_multiplier", &d.h.attn_scale, err)) ||
        (code = mxc_read_positive(config->text, "logits_scaling", &divisor, err)))
        return code;
    d.h.logit_scale = 1 / divisor;
    return mxc_decoder_run(&d, mxc_layer_llama, err);
}

static const char *const model_types[] = {"granite", NULL};
static const char *const gguf_archs[] = {"granite", NULL};

const struct mxc_family mxc_family_granite = {
    .name = "granite",
    .summary = "Granite 3 (dense)",
    .notes = "embedding, residual, attention and logit multipliers",
    .model_types = model_types,
    .gguf_archs = gguf_archs,
    .build = build,
};
