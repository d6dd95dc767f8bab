/* Ling (BailingMoE): routed and shared experts, fused projections under names of its own. Ling 1
 * scores experts by softmax; Ling 2 (in the same model_type, or "bailing_moe_v2") by sigmoid with a
 * bias for the choice, in groups, with norms on the heads of q and k and half of a head rotated.
 * In: a config and the names of the weights. Out: the graph.
 * norm_head divides the head's columns by their length. */
#include "models/blocks.h"
#include "models/families.h"

#include <string.h>

static int32_t layer(struct mxc_decoder *d, int32_t x) {
    const struct mxc_moe_hyper *moe = d->family;
    x = mxc_block_attention(d, mxc_block_norm(d, x, "input_layernorm"), x);
    int32_t y = mxc_block_norm(d, x, "post_attention_layernorm");
    return mxc_moe_is_dense(moe, d->layer) ? mxc_block_glu(d, y, x) : mxc_block_moe(d, moe, y, x);
}

static enum mxc_code read_moe(const struct mxc_config *config, struct mxc_decoder *d,
                              struct mxc_moe_hyper *moe, struct mxc_err *err) {
    const json_t *text = config->text;
    const char *score = "softmax";
    bool bias = false;
    int64_t n_shared = 0, width = 0;
    enum mxc_code code;
    if ((code = mxc_moe_read(config, &d->h, moe, err)) ||
        (code = mxc_moe_read_groups(config, moe, err)) ||
        (code = mxc_json_get_string(text, "score_function", &score, err)) ||
        (code = mxc_json_get_bool(text, "moe_router_enable_expert_bias", &bias, err)) ||
        (code = mxc_json_get_int(text, "num_shared_experts", 0, 1024, &n_shared, err)))
        return code;
    width = moe->attr.width;
    if ((code = mxc_json_get_int(text, "moe_shared_expert_intermediate_size", 1, 1 << 20, &width,
                                 err)))
        return code;
    if (strcmp(score, "softmax") != 0 && strcmp(score, "sigmoid") != 0)
        return mxc_err_set(err, MXC_E_UNSUPPORTED,
                           "score_function: \"%.40s\" is not supported (\"softmax\" and "
                           "\"sigmoid\" are)",
                           score);
    if (!strcmp(score, "sigmoid")) {
        moe->attr.score = MXC_MOE_SIGMOID;
        moe->attr.normalise_eps = 1e-20f;
    }
    moe->choice = bias ? "gate.expert_bias" : NULL;
    moe->shared = "shared_experts";
    moe->shared_width = (int32_t)(n_shared * width);
    return MXC_OK;
}

static enum mxc_code build(const struct mxc_config *config, const struct mxc_weights *weights,
                           struct mxc_graph *graph, struct mxc_err *err) {
    struct mxc_decoder d;
    static const char *const accepts[] = {"num_experts", "use_qk_norm", "num_nextn_predict_layers",
                                          NULL};
    static const struct mxc_hyper_rules rules = {.accepts = accepts};
    struct mxc_moe_hyper moe;
    bool bias = false, qkv_bias = false;
    enum mxc_code code = mxc_decoder_open(&d, graph, config, weights, &rules, err);
    if (code || (code = read_moe(config, &d, &moe, err)) ||
        (code = mxc_json_get_bool(config->text, "use_bias", &bias, err)) ||
        (code = mxc_json_get_bool(config->text, "use_qkv_bias", &qkv_bias, err)) ||
        (code = mxc_json_get_bool(config->text, "norm_head", &d.unit_head, err)) ||
        (code = mxc_json_get_bool(config->text, "use_qk_norm", &d.h.qk_norm, err)))
        return code;
    if (bias)
        return mxc_err_set(err, MXC_E_UNSUPPORTED,
                           "use_bias: experts with biases are not supported");
    d.h.qkv_bias = config->from_gguf ? MXC_BY_FILE : qkv_bias ? MXC_PRESENT : MXC_ABSENT;
    d.h.o_bias = d.h.mlp_bias = MXC_ABSENT;
    if (!mxc_block_has(&d, "self_attn.o_proj.weight")) { /* a GGUF has the customary names */
        d.embed = "word_embeddings";
        d.attn = "attention";
        d.qkv = "query_key_value";
        d.o_proj = "dense";
        d.q_norm = "query_layernorm";
        d.k_norm = "key_layernorm";
    }
    d.layer = moe.first_dense;
    if (mxc_block_has(&d, "mlp.gate.gate_proj.weight")) /* conversions to MLX */
        moe.router = "gate.gate_proj";
    d.family = &moe;
    return mxc_decoder_run(&d, layer, err);
}

static const char *const model_types[] = {"bailing_moe", "bailing_moe_v2", NULL};
static const char *const gguf_archs[] = {"bailingmoe", "bailingmoe2", NULL};

const struct mxc_family mxc_family_bailing_moe = {
    .name = "bailing_moe",
    .summary = "Ling (lite, plus, 2.0)",
    .notes = "shared and routed experts, groups, norm_head, use_qk_norm",
    .model_types = model_types,
    .gguf_archs = gguf_archs,
    .build = build,
};
