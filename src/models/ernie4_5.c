/* ERNIE 4.5, dense: Llama with q and k rotated in adjacent pairs and biases everywhere when
 * use_bias is set. In: a config and the names of the weights. Out: the graph. Heads are 128 wide
 * unless head_dim says otherwise. */
#include "models/blocks.h"
#include "models/families.h"

static enum mxc_code build(const struct mxc_config *config, const struct mxc_weights *weights,
                           struct mxc_graph *graph, struct mxc_err *err) {
    struct mxc_decoder d;
    static const struct mxc_hyper_rules rules = {.head_dim = 128, .theta = 5e5, .eps = 1e-5};
    bool bias = false;
    enum mxc_code code = mxc_decoder_open(&d, graph, config, weights, &rules, err);
    if (!code)
        code = mxc_json_get_bool(config->text, "use_bias", &bias, err);
    if (code)
        return code;
    enum mxc_presence rule = config->from_gguf ? MXC_BY_FILE : bias ? MXC_PRESENT : MXC_ABSENT;
    d.h.qkv_bias = d.h.o_bias = d.h.mlp_bias = rule;
    d.h.rope.interleaved = true;
    return mxc_decoder_run(&d, mxc_layer_llama, err);
}

static const char *const model_types[] = {"ernie4_5", NULL};
static const char *const gguf_archs[] = {"ernie4_5", NULL};

const struct mxc_family mxc_family_ernie4_5 = {
    .name = "ernie4_5",
    .summary = "ERNIE 4.5 (0.3B, dense)",
    .notes = "rotation in pairs, use_bias",
    .model_types = model_types,
    .gguf_archs = gguf_archs,
    .build = build,
};
