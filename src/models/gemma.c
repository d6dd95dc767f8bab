/* Gemma 1: Llama with the embedding scaled by sqrt(hidden), norms that multiply by 1 + w, and a
 * GELU (tanh form, whatever hidden_act says: the releases' "gelu" meant that). In: a config and the
 * names of the weights. Out: the graph. A GGUF's norm weights already hold the 1. The head is the
 * embedding table. */
#include "models/blocks.h"
#include "models/families.h"

#include <math.h>

static enum mxc_code build(const struct mxc_config *config, const struct mxc_weights *weights,
                           struct mxc_graph *graph, struct mxc_err *err) {
    struct mxc_decoder d;
    static const struct mxc_hyper_rules rules = {
        .head_dim = 256, .act_key = "hidden_activation", .act = "gelu_pytorch_tanh"};
    enum mxc_code code = mxc_decoder_open(&d, graph, config, weights, &rules, err);
    if (code)
        return code;
    d.h.embed_scale = sqrtf((float)d.h.hidden);
    d.h.norm_offset = config->from_gguf ? 0 : 1;
    return mxc_decoder_run(&d, mxc_layer_llama, err);
}

static const char *const model_types[] = {"gemma", NULL};
static const char *const gguf_archs[] = {"gemma", NULL};

const struct mxc_family mxc_family_gemma = {
    .name = "gemma",
    .summary = "Gemma 1 (2B, 7B)",
    .notes = "embedding times sqrt(hidden), norms 1 + w",
    .model_types = model_types,
    .gguf_archs = gguf_archs,
    .build = build,
};
