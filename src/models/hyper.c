/* Hyper-parameters: reading and checking what the configs of decoder families share. In come a
 * config object and the list of tensors a checkpoint holds, out go numbers in range and flags.
 * Every number is bounded here, with the config key's name in the error, before a graph sees it,
 * and every option that would change the arithmetic is either read by the family or refused. */
#include "models/blocks.h"

#include "base/str.h"

#include <math.h>
#include <string.h>

enum { MAX_LAYERS = 1024, MAX_EXTENT = 1 << 24, MAX_HEADS = 1 << 16, MAX_HEAD_DIM = 1024 };

const char *mxc_models_nearest(const char *text, const char *const *list) {
    const char *best = NULL;
    unsigned distance = 0;
    for (; *list; list++) {
        unsigned d = mxc_str_distance(text, *list);
        if (!best || d < distance) {
            best = *list;
            distance = d;
        }
    }
    return best;
}

/* ---- hyper-parameters */

static enum mxc_code need_int(const json_t *object, const char *key, int64_t max, int32_t *out,
                              struct mxc_err *err) {
    int64_t n = 0;
    enum mxc_code code = mxc_json_get_int(object, key, 1, max, &n, err);
    if (code)
        return code;
    if (!n)
        return mxc_err_set(err, MXC_E_FORMAT, "%s: missing", key);
    *out = (int32_t)n;
    return MXC_OK;
}

static enum mxc_code read_heads(const json_t *text, int32_t default_head_dim, struct mxc_hyper *h,
                                struct mxc_err *err) {
    enum mxc_code code = need_int(text, "num_attention_heads", MAX_HEADS, &h->n_heads, err);
    if (code)
        return code;
    int64_t kv = h->n_heads, dim = default_head_dim;
    if ((code = mxc_json_get_int(text, "num_key_value_heads", 1, MAX_HEADS, &kv, err)) ||
        (code = mxc_json_get_int(text, "head_dim", 1, MAX_HEAD_DIM, &dim, err)))
        return code;
    if (h->n_heads % kv)
        return mxc_err_set(err, MXC_E_FORMAT,
                           "num_key_value_heads: %lld does not divide num_attention_heads (%d)",
                           (long long)kv, h->n_heads);
    if (!dim) {
        if (h->hidden % h->n_heads)
            return mxc_err_set(err, MXC_E_FORMAT,
                               "num_attention_heads: %d does not divide hidden_size (%d), and "
                               "head_dim is not given",
                               h->n_heads, h->hidden);
        dim = h->hidden / h->n_heads;
    }
    if (dim % 2 || dim > MAX_HEAD_DIM)
        return mxc_err_set(err, MXC_E_FORMAT, "head_dim: %lld is odd or above %d", (long long)dim,
                           MAX_HEAD_DIM);
    h->n_kv_heads = (int32_t)kv;
    h->head_dim = (int32_t)dim;
    return MXC_OK;
}

enum mxc_code mxc_read_act(const json_t *object, const char *key, const char *absent,
                           enum mxc_act *act, struct mxc_err *err) {
    static const char *const names[] = {"silu",     "swish",      "gelu",
                                        "gelu_new", "gelu_fast",  "gelu_pytorch_tanh",
                                        "relu",     "quick_gelu", NULL};
    static const enum mxc_act acts[] = {MXC_ACT_SILU,      MXC_ACT_SILU,      MXC_ACT_GELU,
                                        MXC_ACT_GELU_TANH, MXC_ACT_GELU_TANH, MXC_ACT_GELU_TANH,
                                        MXC_ACT_RELU,      MXC_ACT_GELU_QUICK};
    const char *name = absent;
    enum mxc_code code = mxc_json_get_string(object, key, &name, err);
    if (code)
        return code;
    for (int i = 0; names[i]; i++) {
        if (!strcmp(name, names[i])) {
            *act = acts[i];
            return MXC_OK;
        }
    }
    return mxc_err_set(err, MXC_E_UNSUPPORTED, "%s: \"%s\" is not supported (nearest: \"%s\")", key,
                       name, mxc_models_nearest(name, names));
}

/* Options of relatives that change what a layer computes. Refused unless off (null, false, 0, or
 * the neutral number). */
static bool accepted(const struct mxc_hyper_rules *rules, const char *key) {
    for (const char *const *k = rules->accepts; k && *k; k++) {
        if (!strcmp(*k, key))
            return true;
    }
    return false;
}

static enum mxc_code refuse_options(const json_t *text, const struct mxc_hyper_rules *rules,
                                    struct mxc_err *err) {
    static const struct {
        const char *key;
        double neutral;
    } options[] = {
        {"attention_chunk_size", 0},
        {"attn_logit_softcapping", 0},
        {"final_logit_softcapping", 0},
        {"embedding_multiplier", 1},
        {"residual_multiplier", 1},
        {"attention_multiplier", 0},
        {"logits_scaling", 1},
        {"logit_scale", 1},
        {"scale_emb", 1},
        {"scale_depth", 0},
        {"query_pre_attn_scalar", 0},
        {"num_local_experts", 0},
        {"num_experts", 0},
        {"n_routed_experts", 0},
        {"kv_lora_rank", 0},
        {"use_qk_norm", 0},
        {"qk_layernorm", 0},
        {"use_parallel_residual", 0},
        {"parallel_attn", 0},
        {"alibi", 0},
        {"clip_qkv", 0},
        {"attention_sinks", 0},
        {"no_rope_layers", 0},
        {"num_nextn_predict_layers", 0},
        {"cross_attention_layers", 0},
    };
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        const json_t *v = json_object_get(text, options[i].key);
        bool off = accepted(rules, options[i].key) || !v || json_is_null(v) || json_is_false(v) ||
                   (json_is_array(v) && !json_array_size(v)) ||
                   (json_is_number(v) &&
                    (json_number_value(v) == 0 || json_number_value(v) == options[i].neutral));
        if (!off)
            return mxc_err_set(err, MXC_E_UNSUPPORTED, "%s: this option is not supported",
                               options[i].key);
    }
    const char *embedding = "rope";
    enum mxc_code code = mxc_json_get_string(text, "position_embedding_type", &embedding, err);
    if (!code && strcmp(embedding, "rope"))
        code = mxc_err_set(err, MXC_E_UNSUPPORTED,
                           "position_embedding_type: \"%s\" is not supported (nearest: \"rope\")",
                           embedding);
    return code;
}

static enum mxc_code read_presence(const json_t *text, const char *key, enum mxc_presence *out,
                                   struct mxc_err *err) {
    const json_t *v = json_object_get(text, key);
    bool flag = false;
    if (!v || json_is_null(v)) {
        *out = MXC_BY_FILE;
        return MXC_OK;
    }
    enum mxc_code code = mxc_json_get_bool(text, key, &flag, err);
    if (!code)
        *out = flag ? MXC_PRESENT : MXC_ABSENT;
    return code;
}

enum mxc_code mxc_hyper_read(const struct mxc_config *config, const struct mxc_weights *weights,
                             const struct mxc_hyper_rules *rules, struct mxc_hyper *hyper,
                             struct mxc_err *err) {
    static const struct mxc_hyper_rules plain = {0};
    const json_t *text = config->text;
    struct mxc_hyper h = {
        .norm = MXC_NORM_RMS, .embed_scale = 1, .residual_scale = 1, .logit_scale = 1};
    rules = rules ? rules : &plain;
    double eps = rules->eps > 0 ? rules->eps : 1e-6;
    const char *eps_key = rules->eps_key ? rules->eps_key : "rms_norm_eps";
    int64_t max_position = 0;
    enum mxc_code code;
    if ((code = need_int(text, "hidden_size", MAX_EXTENT, &h.hidden, err)) ||
        (code = need_int(text, "num_hidden_layers", MAX_LAYERS, &h.n_layers, err)) ||
        (!rules->no_ffn &&
         (code = need_int(text, "intermediate_size", MAX_EXTENT / 2, &h.ffn, err))) ||
        (code = need_int(text, "vocab_size", MAX_EXTENT, &h.vocab, err)) ||
        (code =
             mxc_json_get_int(text, "max_position_embeddings", 1, INT32_MAX, &max_position, err)) ||
        (code = mxc_json_get_real(text, eps_key, &eps, err)) ||
        (code = read_heads(text, rules->head_dim, &h, err)) ||
        (code = mxc_read_act(text, rules->act_key ? rules->act_key : "hidden_act",
                             rules->act ? rules->act : "silu", &h.act, err)) ||
        (code = read_presence(text, "attention_bias", &h.qkv_bias, err)) ||
        (code = read_presence(text, "mlp_bias", &h.mlp_bias, err)) ||
        (code = refuse_options(text, rules, err)))
        return code;
    if (!(eps >= 0 && eps < 1))
        return mxc_err_set(err, MXC_E_FORMAT, "%s: %g is not in [0, 1)", eps_key, eps);
    if (config->from_gguf) /* its flags are derived from one tensor each */
        h.qkv_bias = h.mlp_bias = MXC_BY_FILE;
    h.eps = (float)eps;
    h.o_bias = h.qkv_bias;
    h.norm_bias = MXC_BY_FILE;
    h.attn_scale = (float)(1 / sqrt((double)h.head_dim));
    h.max_position = max_position;
    h.window_from = h.n_layers;
    code = mxc_rope_read(config, weights, rules, rules->rotary ? rules->rotary : h.head_dim,
                         max_position, &h.rope, err);
    if (!code)
        *hyper = h;
    return code;
}

enum mxc_code mxc_hyper_read_layer_types(const struct mxc_config *config, struct mxc_hyper *hyper,
                                         struct mxc_err *err) {
    const json_t *types = json_object_get(config->text, "layer_types");
    if (!types || json_is_null(types))
        return MXC_OK;
    if (!json_is_array(types) || json_array_size(types) != (size_t)hyper->n_layers)
        return mxc_err_set(err, MXC_E_FORMAT, "layer_types: not a list of %d names",
                           hyper->n_layers);
    for (int32_t i = 0; i < hyper->n_layers; i++) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        if (!type || (strcmp(type, "full_attention") && strcmp(type, "sliding_attention")))
            return mxc_err_set(err, MXC_E_UNSUPPORTED,
                               "layer_types[%d]: \"%.40s\" is not supported (\"full_attention\" "
                               "and \"sliding_attention\" are)",
                               i, type ? type : "?");
    }
    hyper->layer_types = types;
    return MXC_OK;
}

enum mxc_code mxc_hyper_read_window(const struct mxc_config *config, int32_t absent,
                                    struct mxc_hyper *hyper, struct mxc_err *err) {
    const json_t *given = json_object_get(config->text, "sliding_window");
    if (json_is_null(given) || (!given && (config->from_gguf || !absent)))
        return MXC_OK;
    int64_t window = absent, min = config->from_gguf ? 0 : 1; /* a GGUF's 0 means none */
    enum mxc_code code =
        mxc_json_get_int(config->text, "sliding_window", min, INT32_MAX, &window, err);
    if (code)
        return code;
    hyper->window = (int32_t)window;
    hyper->window_from = 0;
    return MXC_OK;
}

enum mxc_code mxc_read_positive(const json_t *text, const char *key, float *out,
                                struct mxc_err *err) {
    const json_t *v = json_object_get(text, key);
    double x = (double)*out;
    enum mxc_code code = mxc_json_get_real(text, key, &x, err);
    if (code || !v || json_is_null(v))
        return code;
    if (!((float)x > 0) || !isfinite((float)x))
        return mxc_err_set(err, MXC_E_FORMAT, "%s: %g is not a positive number", key, x);
    *out = (float)x;
    return MXC_OK;
}

enum mxc_code mxc_hyper_read_windows(const struct mxc_config *config, struct mxc_hyper *hyper,
                                     struct mxc_err *err) {
    const json_t *text = config->text;
    bool use = false;
    int64_t window = 4096, from = 28;
    enum mxc_code code = mxc_json_get_bool(text, "use_sliding_window", &use, err);
    if (code || !use)
        return code;
    const json_t *given = json_object_get(text, "sliding_window");
    if (given && json_is_null(given))
        return MXC_OK;
    if ((code = mxc_json_get_int(text, "sliding_window", 1, INT32_MAX, &window, err)) ||
        (code = mxc_json_get_int(text, "max_window_layers", 0, INT32_MAX, &from, err)))
        return code;
    if ((code = mxc_hyper_read_layer_types(config, hyper, err)))
        return code;
    hyper->window = (int32_t)window;
    hyper->window_from = (int32_t)from;
    return MXC_OK;
}
