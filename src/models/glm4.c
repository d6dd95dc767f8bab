/* GLM-4: norms before and after both branches, gate and up fused, half of a head rotated in
 * adjacent pairs, biases on q, k and v only. GLM-4-9B of 2024 ("glm") is the same without the norms
 * after. In: a config and the names of the weights. Out: the graph. */
#include "models/blocks.h"
#include "models/families.h"

static int32_t after(const struct mxc_decoder *d, int32_t y, const char *module, int32_t x) {
    return mxc_graph_add(d->g, mxc_block_norm(d, y, module), x);
}

static int32_t layer(struct mxc_decoder *d, int32_t x) {
    int32_t y = mxc_block_attention(d, mxc_block_norm(d, x, "input_layernorm"), MXC_NONE);
    x = after(d, y, "post_self_attn_layernorm", x);
    y = mxc_block_glu(d, mxc_block_norm(d, x, "post_attention_layernorm"), MXC_NONE);
    return after(d, y, "post_mlp_layernorm", x);
}

static enum mxc_code build(const struct mxc_config *config, const struct mxc_weights *weights,
                           struct mxc_graph *graph, struct mxc_err *err) {
    struct mxc_decoder d;
    static const struct mxc_hyper_rules rules = {.head_dim = 128, .rotary_part = 0.5};
    enum mxc_code code = mxc_decoder_open(&d, graph, config, weights, &rules, err);
    if (code)
        return code;
    d.h.o_bias = d.h.mlp_bias = MXC_ABSENT;
    d.h.rope.interleaved = true;
    d.gate_up = "gate_up_proj";
    bool four = config->model_type[3] == '4'; /* glm4, not glm */
    return mxc_decoder_run(&d, four ? layer : mxc_layer_llama, err);
}

static const char *const model_types[] = {"glm4", "glm", NULL};
static const char *const gguf_archs[] = {"glm4", NULL};

const struct mxc_family mxc_family_glm4 = {
    .name = "glm4",
    .summary = "GLM-4 (9B, 32B, Z1)",
    .notes = "norms before and after, half of a head rotated in pairs, fused gate and up",
    .model_types = model_types,
    .gguf_archs = gguf_archs,
    .build = build,
};
