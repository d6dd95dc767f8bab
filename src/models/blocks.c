/* Blocks of the llama line: reading and checking hyper-parameters, and the decoder that Llama,
 * Mistral, Qwen2 and Qwen3 share. In come a config object and the list of tensors a checkpoint
 * holds (only asked for presence), out goes a graph. Every number is bounded here, with the config
 * key's name in the error, before the graph sees it. */
#include "models/blocks.h"

#include "base/str.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    MAX_LAYERS = 1024,
    MAX_EXTENT = 1 << 24,
    MAX_HEADS = 1 << 16,
    MAX_HEAD_DIM = 1024,
    MAX_TENSOR_NAME = 256
};

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

static enum mxc_code read_act(const json_t *text, enum mxc_act *act, struct mxc_err *err) {
    static const char *const names[] = {
        "silu", "swish", "gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "relu", NULL};
    static const enum mxc_act acts[] = {MXC_ACT_SILU,      MXC_ACT_SILU,      MXC_ACT_GELU,
                                        MXC_ACT_GELU_TANH, MXC_ACT_GELU_TANH, MXC_ACT_GELU_TANH,
                                        MXC_ACT_RELU};
    const char *name = "silu";
    enum mxc_code code = mxc_json_get_string(text, "hidden_act", &name, err);
    if (code)
        return code;
    for (int i = 0; names[i]; i++) {
        if (!strcmp(name, names[i])) {
            *act = acts[i];
            return MXC_OK;
        }
    }
    return mxc_err_set(err, MXC_E_UNSUPPORTED,
                       "hidden_act: \"%s\" is not supported (nearest: \"%s\")", name,
                       mxc_models_nearest(name, names));
}

/* Options of relatives that change what a layer computes. Refused unless off (null, false, 0, or
 * the neutral number). */
static enum mxc_code refuse_options(const json_t *text, struct mxc_err *err) {
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
        bool off = !v || json_is_null(v) || json_is_false(v) ||
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
                             int32_t default_head_dim, struct mxc_hyper *hyper,
                             struct mxc_err *err) {
    const json_t *text = config->text;
    struct mxc_hyper h = {0};
    int64_t max_position = 0;
    double eps = 1e-6;
    enum mxc_code code;
    if ((code = need_int(text, "hidden_size", MAX_EXTENT, &h.hidden, err)) ||
        (code = need_int(text, "num_hidden_layers", MAX_LAYERS, &h.n_layers, err)) ||
        (code = need_int(text, "intermediate_size", MAX_EXTENT / 2, &h.ffn, err)) ||
        (code = need_int(text, "vocab_size", MAX_EXTENT, &h.vocab, err)) ||
        (code =
             mxc_json_get_int(text, "max_position_embeddings", 1, INT32_MAX, &max_position, err)) ||
        (code = mxc_json_get_real(text, "rms_norm_eps", &eps, err)) ||
        (code = read_heads(text, default_head_dim, &h, err)) ||
        (code = read_act(text, &h.act, err)) ||
        (code = read_presence(text, "attention_bias", &h.qkv_bias, err)) ||
        (code = read_presence(text, "mlp_bias", &h.mlp_bias, err)) ||
        (code = refuse_options(text, err)))
        return code;
    if (!(eps >= 0 && eps < 1))
        return mxc_err_set(err, MXC_E_FORMAT, "rms_norm_eps: %g is not in [0, 1)", eps);
    if (config->from_gguf) /* its flags are derived from one tensor each */
        h.qkv_bias = h.mlp_bias = MXC_BY_FILE;
    h.eps = (float)eps;
    h.o_bias = h.qkv_bias;
    h.max_position = max_position;
    h.window_from = h.n_layers;
    code = mxc_rope_read(config, weights, h.head_dim, max_position, &h.rope, err);
    if (!code)
        *hyper = h;
    return code;
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
    const json_t *types = json_object_get(text, "layer_types");
    if (types && !json_is_null(types)) {
        if (!json_is_array(types) || json_array_size(types) != (size_t)hyper->n_layers)
            return mxc_err_set(err, MXC_E_FORMAT, "layer_types: not a list of %d names",
                               hyper->n_layers);
        for (int32_t i = 0; i < hyper->n_layers; i++) {
            const char *type = json_string_value(json_array_get(types, (size_t)i));
            if (!type || (strcmp(type, "full_attention") && strcmp(type, "sliding_attention")))
                return mxc_err_set(
                    err, MXC_E_UNSUPPORTED,
                    "layer_types[%d]: \"%.40s\" is not supported (\"full_attention\" "
                    "and \"sliding_attention\" are)",
                    i, type ? type : "?");
        }
        hyper->layer_types = types;
    }
    hyper->window = (int32_t)window;
    hyper->window_from = (int32_t)from;
    return MXC_OK;
}

/* ---- the decoder */

struct decoder {
    struct mxc_graph *g;
    const struct mxc_weights *weights;
    const struct mxc_hyper *h;
    const char *prefix;
    int32_t rope, layer;
    bool q_bias, k_bias, v_bias, o_bias, gate_bias, up_bias, down_bias;
};

static bool present(const struct decoder *d, enum mxc_presence rule, const char *module) {
    char name[MAX_TENSOR_NAME];
    if (rule != MXC_BY_FILE || !d->weights)
        return rule == MXC_PRESENT;
    (void)snprintf(name, sizeof name, "%slayers.0.%s.bias", d->prefix, module);
    return mxc_weights_find(d->weights, name) != NULL;
}

static struct mxc_linear_part part(const struct decoder *d, const char *module, int64_t out,
                                   int64_t in, bool bias) {
    struct mxc_linear_part p = {.bias = MXC_NONE};
    p.weight =
        mxc_graph_matrix(d->g, out, in, "%slayers.%d.%s.weight", d->prefix, d->layer, module);
    if (bias)
        p.bias = mxc_graph_vector(d->g, out, "%slayers.%d.%s.bias", d->prefix, d->layer, module);
    return p;
}

static int32_t norm(const struct decoder *d, int32_t x, const char *module) {
    int32_t w =
        mxc_graph_vector(d->g, d->h->hidden, "%slayers.%d.%s.weight", d->prefix, d->layer, module);
    return mxc_graph_rms_norm(d->g, x, w, d->h->eps, 0);
}

static int32_t window_of(const struct mxc_hyper *h, int32_t layer) {
    if (!h->window)
        return 0;
    if (h->layer_types)
        return strcmp(json_string_value(json_array_get(h->layer_types, (size_t)layer)),
                      "sliding_attention")
                   ? 0
                   : h->window;
    return layer >= h->window_from ? h->window : 0;
}

static int32_t attention(const struct decoder *d, int32_t x) {
    const struct mxc_hyper *h = d->h;
    struct mxc_graph *g = d->g;
    int64_t q = (int64_t)h->n_heads * h->head_dim, kv = (int64_t)h->n_kv_heads * h->head_dim;
    struct mxc_linear_part qkv[] = {
        part(d, "self_attn.q_proj", q, h->hidden, d->q_bias),
        part(d, "self_attn.k_proj", kv, h->hidden, d->k_bias),
        part(d, "self_attn.v_proj", kv, h->hidden, d->v_bias),
    };
    int32_t window = window_of(h, d->layer), q_norm = MXC_NONE, k_norm = MXC_NONE;
    if (h->qk_norm) {
        q_norm = mxc_graph_vector(g, h->head_dim, "%slayers.%d.self_attn.q_norm.weight", d->prefix,
                                  d->layer);
        k_norm = mxc_graph_vector(g, h->head_dim, "%slayers.%d.self_attn.k_norm.weight", d->prefix,
                                  d->layer);
    }
    struct mxc_kv store = {.kind = window ? MXC_KV_WINDOW : MXC_KV_FULL,
                           .n_heads = h->n_kv_heads,
                           .k_dim = h->head_dim,
                           .v_dim = h->head_dim,
                           .window = window};
    struct mxc_attn_attr attr = {.n_heads = h->n_heads,
                                 .n_kv_heads = h->n_kv_heads,
                                 .head_dim = h->head_dim,
                                 .scale = (float)(1 / sqrt((double)h->head_dim)),
                                 .window = window,
                                 .rope = d->rope,
                                 .kv = mxc_graph_kv(g, &store),
                                 .qk_norm_eps = h->qk_norm ? h->eps : 0};
    int32_t y = mxc_graph_linear(g, norm(d, x, "input_layernorm"), 3, qkv, 1, MXC_NONE);
    y = mxc_graph_attention(g, y, &attr, q_norm, k_norm, MXC_NONE);
    struct mxc_linear_part o = part(d, "self_attn.o_proj", h->hidden, q, d->o_bias);
    return mxc_graph_linear(g, y, 1, &o, 1, x);
}

static int32_t mlp(const struct decoder *d, int32_t x) {
    const struct mxc_hyper *h = d->h;
    struct mxc_linear_part gate_up[] = {
        part(d, "mlp.gate_proj", h->ffn, h->hidden, d->gate_bias),
        part(d, "mlp.up_proj", h->ffn, h->hidden, d->up_bias),
    };
    struct mxc_linear_part down = part(d, "mlp.down_proj", h->hidden, h->ffn, d->down_bias);
    int32_t y = norm(d, x, "post_attention_layernorm");
    y = mxc_graph_linear(d->g, y, 2, gate_up, 1, MXC_NONE);
    y = mxc_graph_glu(d->g, y, h->act);
    return mxc_graph_linear(d->g, y, 1, &down, 1, x);
}

int32_t mxc_blocks_decoder(struct mxc_graph *g, const struct mxc_config *config,
                           const struct mxc_weights *weights, const struct mxc_hyper *h,
                           const char *prefix, const char *head) {
    struct decoder d = {.g = g, .weights = weights, .h = h, .prefix = prefix};
    d.q_bias = present(&d, h->qkv_bias, "self_attn.q_proj");
    d.k_bias = present(&d, h->qkv_bias, "self_attn.k_proj");
    d.v_bias = present(&d, h->qkv_bias, "self_attn.v_proj");
    d.o_bias = present(&d, h->o_bias, "self_attn.o_proj");
    d.gate_bias = present(&d, h->mlp_bias, "mlp.gate_proj");
    d.up_bias = present(&d, h->mlp_bias, "mlp.up_proj");
    d.down_bias = present(&d, h->mlp_bias, "mlp.down_proj");
    d.rope = mxc_graph_rope(g, &h->rope);
    g->max_position = h->max_position;

    int32_t table = mxc_graph_table(g, h->vocab, h->hidden, "%sembed_tokens.weight", prefix);
    int32_t x = mxc_graph_embed(g, table, 1);
    mxc_graph_mark_layer_value(g, 0, x);
    for (d.layer = 0; d.layer < h->n_layers; d.layer++) {
        mxc_graph_begin_layer(g, d.layer);
        x = mlp(&d, attention(&d, x));
        mxc_graph_mark_layer_value(g, d.layer + 1, x);
    }
    mxc_graph_begin_layer(g, MXC_NONE);
    x = mxc_graph_select_out(g, x);
    x = mxc_graph_rms_norm(g, x, mxc_graph_vector(g, h->hidden, "%snorm.weight", prefix), h->eps,
                           0);
    mxc_graph_mark_layer_value(g, h->n_layers + 1, x);

    /* The file decides: a head that is there is used, as transformers 5 does even where the config
     * says tied; one that is not there can only be the table. */
    bool untied = weights ? mxc_weights_find(weights, head) != NULL
                          : json_is_false(json_object_get(config->text, "tie_word_embeddings"));
    struct mxc_linear_part out = {.weight = table, .bias = MXC_NONE};
    if (untied)
        out.weight = mxc_graph_matrix(g, h->vocab, h->hidden, "%s", head);
    return mxc_graph_linear(g, x, 1, &out, 1, MXC_NONE);
}
