/* GGUF architectures one by one. In: a config object that the tables have filled. Out: the same
 * with keys that Hugging Face's families read under other names or that files do not spell out.
 * Facts are those of the converter and the loader of llama.cpp; each rule names its architecture.
 */
#include "format/gguf_arch.h"

#include "quant/decode.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct mxc_gguf_context context;

static bool is_arch(const context *c, const char *name) {
    return !strcmp(c->arch, name);
}

static enum mxc_code put_int(context *c, const char *key, int64_t value) {
    return mxc_gguf_put(c, c->root, key, json_integer(value));
}

static enum mxc_code put_text(context *c, const char *key, const char *value) {
    return mxc_gguf_put(c, c->root, key, json_string(value));
}

/* Moves root[from] to root[to]; the latter stays when there is no former. */
static enum mxc_code rename_key(context *c, const char *from, const char *to) {
    json_t *value = json_object_get(c->root, from);
    if (!value)
        return MXC_OK;
    enum mxc_code code = mxc_gguf_put(c, c->root, to, json_incref(value));
    if (!code)
        (void)json_object_del(c->root, from);
    return code;
}

/* ---- model types */

enum mxc_code mxc_gguf_arch_type(context *c) {
    int64_t window = mxc_gguf_int_of(c, "sliding_window");
    if (is_arch(c, "llama") && mxc_gguf_int_of(c, "num_experts") > 0)
        return put_text(c, "model_type", "mixtral");
    if (is_arch(c, "olmo2") && window > 0) /* OLMo 3 goes by the name of its predecessor */
        return put_text(c, "model_type", "olmo3");
    return MXC_OK;
}

/* ---- deepseek2 */

/* Files tell the dimensions of the compressed cache (one key head of rank + rope numbers), and
 * those of the heads beside them; older ones only the latter. */
static enum mxc_code deepseek_shape(context *c) {
    int64_t rope = 0, key = 0, value = 0, heads = mxc_gguf_int_of(c, "num_attention_heads");
    enum mxc_code code;
    if ((code = mxc_gguf_get_int(c->g, mxc_gguf_key_of(c, "rope.dimension_count"), 2, 4096, &rope,
                                 c->err)) ||
        (code = mxc_gguf_get_int(c->g, mxc_gguf_key_of(c, "attention.value_length"), 1, 65536,
                                 &value, c->err)) ||
        (code = mxc_gguf_get_int(c->g, mxc_gguf_key_of(c, "attention.value_length_mla"), 1, 65536,
                                 &value, c->err)) ||
        (code = mxc_gguf_get_int(c->g, mxc_gguf_key_of(c, "attention.key_length"), 1, 65536, &key,
                                 c->err)) ||
        (code = mxc_gguf_get_int(c->g, mxc_gguf_key_of(c, "attention.key_length_mla"), 1, 65536,
                                 &key, c->err)))
        return code;
    if (!rope || !value || key <= rope)
        return mxc_err_set(c->err, MXC_E_FORMAT,
                           "%s: %s: keys of %lld and values of %lld numbers do not go with %lld "
                           "rotated ones",
                           c->path, c->key, (long long)key, (long long)value, (long long)rope);
    (void)json_object_del(c->root, "head_dim");
    if ((code = put_int(c, "qk_rope_head_dim", rope)) ||
        (code = put_int(c, "qk_nope_head_dim", key - rope)) ||
        (code = put_int(c, "v_head_dim", value)) ||
        (code = put_int(c, "num_key_value_heads", heads)))
        return code;
    return MXC_OK;
}

static enum mxc_code deepseek_finish(context *c) {
    enum mxc_code code = rename_key(c, "num_experts", "n_routed_experts");
    if (!code)
        code = rename_key(c, "num_shared_experts", "n_shared_experts");
    if (code)
        return code;
    char name[64]; /* the first layer with experts tells */
    (void)snprintf(name, sizeof name, "blk.%lld.exp_probs_b.bias",
                   (long long)mxc_gguf_int_of(c, "first_k_dense_replace"));
    bool choice = mxc_gguf_tensor_of(c, name) != NULL;
    const char *method = choice                              ? "noaux_tc"
                         : mxc_gguf_int_of(c, "n_group") > 1 ? "group_limited_greedy"
                                                             : "greedy";
    return put_text(c, "topk_method", method);
}

/* ---- windows and tables */

/* attention.sliding_window_pattern: every how many layers one sees everything, or a flag for each
 * layer that does not. */
static enum mxc_code put_pattern(context *c) {
    const struct mxc_gguf_value *v =
        mxc_gguf_find(c->g, mxc_gguf_key_of(c, "attention.sliding_window_pattern"));
    int64_t every = 0;
    if (!v || mxc_gguf_int_of(c, "sliding_window") < 1)
        return MXC_OK;
    if (v->type != MXC_GGUF_ARRAY) {
        enum mxc_code code = mxc_gguf_get_int(c->g, c->key, 1, 10000, &every, c->err);
        return code ? code : put_int(c, "sliding_window_pattern", every);
    }
    bool flags = v->element == MXC_GGUF_BOOL;
    const struct mxc_gguf_value *list = v;
    enum mxc_code code = flags ? MXC_OK : mxc_gguf_get_ints(c->g, c->key, &list, c->err);
    if (code)
        return code;
    if ((int64_t)list->count < mxc_gguf_int_of(c, "num_hidden_layers") || list->count > 10000)
        return mxc_err_set(c->err, MXC_E_FORMAT, "%s: %s: a list of %zu flags", c->path, c->key,
                           list->count);
    json_t *types = json_array();
    for (int64_t i = 0; types && i < mxc_gguf_int_of(c, "num_hidden_layers"); i++) {
        bool window = mxc_gguf_int_at(list, (size_t)i) != 0;
        if (json_array_append_new(types,
                                  json_string(window ? "sliding_attention" : "full_attention"))) {
            json_decref(types);
            types = NULL;
        }
    }
    return mxc_gguf_put(c, c->root, "layer_types", types);
}

/* Gemma scales attention by this number's root; only the 27B of each generation has another than
 * the head's. */
static enum mxc_code put_gemma_scalar(context *c, int64_t layers) {
    int64_t heads = mxc_gguf_int_of(c, "num_attention_heads");
    int64_t scalar = mxc_gguf_int_of(c, "head_dim");
    if (mxc_gguf_int_of(c, "num_hidden_layers") == layers && heads)
        scalar = mxc_gguf_int_of(c, "hidden_size") / heads;
    return scalar ? put_int(c, "query_pre_attn_scalar", scalar) : MXC_OK;
}

/* A vector of factors as a list of numbers. */
static enum mxc_code put_factors(context *c, json_t *object, const char *tensor, const char *key) {
    float row[1024];
    const struct mxc_gguf_tensor *t = mxc_gguf_tensor_of(c, tensor);
    if (!t)
        return MXC_OK;
    if (t->n_dims != 1 || t->dims[0] > 1024 || t->storage != MXC_ST_F32)
        return mxc_err_set(c->err, MXC_E_FORMAT, "%s: tensor %s: not a vector of F32 factors",
                           c->path, tensor);
    mxc_quant_decode(t->storage, t->data, (size_t)t->dims[0], row);
    json_t *list = json_array();
    for (size_t i = 0; list && i < t->dims[0]; i++) {
        if (json_array_append_new(list,
                                  isfinite(row[i]) ? json_real((double)row[i]) : json_null())) {
            json_decref(list);
            list = NULL;
        }
    }
    return mxc_gguf_put(c, object, key, list);
}

/* Phi 3: two tables of factors and no type. The general keys are there already. */
static enum mxc_code put_longrope(context *c) {
    double attn = 0;
    int64_t original = 0;
    if (!mxc_gguf_tensor_of(c, "rope_factors_long.weight"))
        return MXC_OK;
    json_t *s = json_object();
    if (!s)
        return mxc_err_nomem(c->err);
    enum mxc_code code;
    if ((code = mxc_gguf_put(c, s, "rope_type", json_string("longrope"))) ||
        (code = put_factors(c, s, "rope_factors_long.weight", "long_factor")) ||
        (code = put_factors(c, s, "rope_factors_short.weight", "short_factor")) ||
        (code = mxc_gguf_get_real(c->g, mxc_gguf_key_of(c, "rope.scaling.attn_factor"), &attn,
                                  c->err)))
        goto out;
    if (attn > 0 && (code = mxc_gguf_put(c, s, "attention_factor", json_real(attn))))
        goto out;
    if ((code = mxc_gguf_get_int(c->g, mxc_gguf_key_of(c, "rope.scaling.original_context_length"),
                                 1, UINT32_MAX, &original, c->err)))
        goto out;
    if (original &&
        (code = mxc_gguf_put(c, s, "original_max_position_embeddings", json_integer(original))))
        goto out;
    code = mxc_gguf_put(c, c->root, "rope_scaling", json_incref(s));
out:
    json_decref(s);
    return code;
}

/* ---- bailingmoe */

static enum mxc_code bailing_finish(context *c) {
    int64_t layer = mxc_gguf_int_of(c, "first_k_dense_replace");
    int64_t shared = mxc_gguf_int_of(c, "num_shared_experts");
    char name[64];
    enum mxc_code code = rename_key(c, "scoring_func", "score_function");
    (void)json_object_del(c->root, "shared_expert_intermediate_size");
    if (code)
        return code;
    (void)snprintf(name, sizeof name, "blk.%lld.exp_probs_b.bias", (long long)layer);
    code = mxc_gguf_put(c, c->root, "moe_router_enable_expert_bias",
                        json_boolean(mxc_gguf_tensor_of(c, name) != NULL));
    if (!code)
        code =
            mxc_gguf_put(c, c->root, "use_qk_norm",
                         json_boolean(mxc_gguf_tensor_of(c, "blk.0.attn_q_norm.weight") != NULL));
    /* the width of one shared expert, from the tensor of all of them */
    (void)snprintf(name, sizeof name, "blk.%lld.ffn_up_shexp.weight", (long long)layer);
    const struct mxc_gguf_tensor *t = mxc_gguf_tensor_of(c, name);
    if (!code && t && shared > 0 && t->n_dims == 2 && t->dims[1] % (uint64_t)shared == 0 &&
        t->dims[1] < 1 << 24)
        code = put_int(c, "moe_shared_expert_intermediate_size",
                       (int64_t)(t->dims[1] / (uint64_t)shared));
    return code;
}

/* ---- all */

enum mxc_code mxc_gguf_arch_shape(context *c) {
    int64_t next = 0, layers = mxc_gguf_int_of(c, "num_hidden_layers");
    enum mxc_code code =
        mxc_gguf_get_int(c->g, mxc_gguf_key_of(c, "nextn_predict_layers"), 0, 10000, &next, c->err);
    if (code)
        return code;
    if (next && next >= layers)
        return mxc_err_set(c->err, MXC_E_FORMAT, "%s: %s: %lld of %lld layers", c->path, c->key,
                           (long long)next, (long long)layers);
    if (next) /* the last ones predict further tokens and take no part here */
        code = put_int(c, "num_hidden_layers", layers - next);
    if (!code && is_arch(c, "deepseek2"))
        code = deepseek_shape(c);
    return code;
}

static enum mxc_code put_scoring(context *c) {
    int64_t kind = 0;
    enum mxc_code code =
        mxc_gguf_get_int(c->g, mxc_gguf_key_of(c, "expert_gating_func"), 0, 1 << 20, &kind, c->err);
    if (code)
        return code;
    if (kind > 2)
        return mxc_err_set(c->err, MXC_E_UNSUPPORTED, "%s: %s: %lld is not supported", c->path,
                           c->key, (long long)kind);
    bool moe = is_arch(c, "deepseek2") || !strncmp(c->arch, "bailing", 7);
    if (!kind && !moe)
        return MXC_OK;
    return put_text(c, "scoring_func", kind == 2 ? "sigmoid" : "softmax");
}

/* deepseek2 files hold a tenth of what configs call mscale_all_dim. */
static enum mxc_code put_mscale(context *c) {
    double tenth = 0;
    json_t *scaling = json_object_get(c->root, "rope_scaling");
    enum mxc_code code = mxc_gguf_get_real(
        c->g, mxc_gguf_key_of(c, "rope.scaling.yarn_log_multiplier"), &tenth, c->err);
    if (code || !scaling || !(tenth > 0 && tenth < 1e6))
        return code;
    double scale = round(tenth * 10 * 1e6) / 1e6;
    code = mxc_gguf_put(c, scaling, "mscale_all_dim", json_real(scale));
    return code ? code : mxc_gguf_put(c, scaling, "mscale", json_real(scale));
}

enum mxc_code mxc_gguf_arch_finish(context *c) {
    enum mxc_code code;
    if ((code = put_scoring(c)) || (code = put_pattern(c)) || (code = put_longrope(c)))
        return code;
    if (is_arch(c, "gemma2"))
        return put_gemma_scalar(c, 46);
    if (is_arch(c, "gemma3"))
        return put_gemma_scalar(c, 62);
    if (!strncmp(c->arch, "granite", 7))
        return rename_key(c, "logit_scale", "logits_scaling");
    if (is_arch(c, "starcoder2"))
        return rename_key(c, "layer_norm_eps", "norm_epsilon");
    if (is_arch(c, "deepseek2"))
        return (code = put_mscale(c)) ? code : deepseek_finish(c);
    if (is_arch(c, "bailingmoe") || is_arch(c, "bailingmoe2"))
        return bailing_finish(c);
    json_t *scaling = json_object_get(c->root, "rope_scaling");
    if (is_arch(c, "gpt-oss") && scaling) /* bounds of yarn's ramp are not rounded there */
        return mxc_gguf_put(c, scaling, "truncate", json_false());
    return MXC_OK;
}
