/* BERT: an encoder. Word, type and position tables are added and normalised; a layer is attention
 * over the whole text and a plain feed-forward, each followed by a layer norm over the sum with
 * what it read; biases everywhere, no norm at the end. In: a config and the names of the weights.
 * Out: a graph whose result is the last layer's rows (hidden_out, both_ways); pooling is not its
 * business. Every token has type 0: texts come alone, not in pairs. Checkpoints name things with
 * and without "bert." in front, and the norms' weights gamma and beta or weight and bias; heads for
 * masked words, next sentences and the pooler are not looked at. */
#include "models/blocks.h"
#include "models/families.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_LAYERS = 1024, MAX_EXTENT = 1 << 20, MAX_HEAD_DIM = 1024 };

struct bert {
    struct mxc_graph *g;
    const struct mxc_weights *weights; /* NULL: names as they are customary */
    const char *prefix;                /* "" or "bert." */
    int32_t layer;
    int64_t n_layers, hidden, ffn, n_heads, head_dim, vocab, n_positions, n_types;
    float eps;
    enum mxc_act act;
};

/* ---- the config */

static enum mxc_code need(const json_t *text, const char *key, int64_t max, int64_t *out,
                          struct mxc_err *err) {
    enum mxc_code code = mxc_json_get_int(text, key, 1, max, out, err);
    return code || *out ? code : mxc_err_set(err, MXC_E_FORMAT, "%s: missing", key);
}

/* Options of relatives that would change what a layer computes. */
static enum mxc_code refuse_options(const json_t *text, struct mxc_err *err) {
    static const char *const off[] = {"is_decoder", "add_cross_attention", "embedding_size"};
    const char *positions = "absolute";
    for (size_t i = 0; i < sizeof off / sizeof *off; i++) {
        const json_t *value = json_object_get(text, off[i]);
        if (value && !json_is_null(value) && !json_is_false(value))
            return mxc_err_set(err, MXC_E_UNSUPPORTED, "%s: this option is not supported", off[i]);
    }
    enum mxc_code code = mxc_json_get_string(text, "position_embedding_type", &positions, err);
    if (!code && strcmp(positions, "absolute") != 0)
        code = mxc_err_set(err, MXC_E_UNSUPPORTED,
                           "position_embedding_type: \"%.40s\" is not supported (\"absolute\" is)",
                           positions);
    return code;
}

static enum mxc_code read_config(const json_t *text, struct bert *b, struct mxc_err *err) {
    double eps = 1e-12;
    enum mxc_code code;
    b->n_types = 2;
    if ((code = need(text, "num_hidden_layers", MAX_LAYERS, &b->n_layers, err)) ||
        (code = need(text, "hidden_size", MAX_EXTENT, &b->hidden, err)) ||
        (code = need(text, "intermediate_size", MAX_EXTENT, &b->ffn, err)) ||
        (code = need(text, "num_attention_heads", MAX_EXTENT, &b->n_heads, err)) ||
        (code = need(text, "vocab_size", MAX_EXTENT, &b->vocab, err)) ||
        (code = need(text, "max_position_embeddings", MAX_EXTENT, &b->n_positions, err)) ||
        (code = mxc_json_get_int(text, "type_vocab_size", 1, MAX_EXTENT, &b->n_types, err)) ||
        (code = mxc_json_get_real(text, "layer_norm_eps", &eps, err)) ||
        (code = mxc_read_act(text, "hidden_act", "gelu", &b->act, err)) ||
        (code = refuse_options(text, err)))
        return code;
    if (!(eps >= 0 && eps < 1))
        return mxc_err_set(err, MXC_E_FORMAT, "layer_norm_eps: %g is not in [0, 1)", eps);
    b->eps = (float)eps;
    b->head_dim = b->hidden / b->n_heads;
    if (b->hidden % b->n_heads || b->head_dim > MAX_HEAD_DIM || b->head_dim % 2)
        return mxc_err_set(err, MXC_E_FORMAT,
                           "num_attention_heads: %lld heads do not make even parts of at most %d "
                           "of hidden_size (%lld)",
                           (long long)b->n_heads, MAX_HEAD_DIM, (long long)b->hidden);
    return MXC_OK;
}

/* ---- the graph */

/* "embeddings.LayerNorm", or with a layer "encoder.layer.3.output.LayerNorm". */
static void name_of(const struct bert *b, const char *module, char name[MXC_MAX_WEIGHT_NAME]) {
    if (b->layer < 0)
        (void)snprintf(name, MXC_MAX_WEIGHT_NAME, "%s%s", b->prefix, module);
    else
        (void)snprintf(name, MXC_MAX_WEIGHT_NAME, "%sencoder.layer.%d.%s", b->prefix, b->layer,
                       module);
}

static int32_t table(const struct bert *b, int64_t rows, const char *module) {
    char name[MXC_MAX_WEIGHT_NAME];
    name_of(b, module, name);
    return mxc_graph_table(b->g, rows, b->hidden, "%s.weight", name);
}

static int32_t norm(const struct bert *b, int32_t x, const char *module) {
    char name[MXC_MAX_WEIGHT_NAME], gamma[MXC_MAX_WEIGHT_NAME + 8];
    name_of(b, module, name);
    (void)snprintf(gamma, sizeof gamma, "%s.gamma", name);
    bool old = b->weights && mxc_weights_find(b->weights, gamma);
    int32_t weight = mxc_graph_vector(b->g, b->hidden, "%s.%s", name, old ? "gamma" : "weight");
    int32_t bias = mxc_graph_vector(b->g, b->hidden, "%s.%s", name, old ? "beta" : "bias");
    return mxc_graph_layer_norm(b->g, x, weight, bias, b->eps);
}

static struct mxc_linear_part part(const struct bert *b, int64_t out, int64_t in,
                                   const char *module) {
    char name[MXC_MAX_WEIGHT_NAME];
    name_of(b, module, name);
    return (struct mxc_linear_part){.weight = mxc_graph_matrix(b->g, out, in, "%s.weight", name),
                                    .bias = mxc_graph_vector(b->g, out, "%s.bias", name)};
}

static int32_t layer(const struct bert *b, int32_t x) {
    struct mxc_graph *g = b->g;
    int32_t heads = (int32_t)b->n_heads, dim = (int32_t)b->head_dim;
    struct mxc_linear_part qkv[3] = {part(b, b->hidden, b->hidden, "attention.self.query"),
                                     part(b, b->hidden, b->hidden, "attention.self.key"),
                                     part(b, b->hidden, b->hidden, "attention.self.value")};
    struct mxc_kv store = {.kind = MXC_KV_FULL, .n_heads = heads, .k_dim = dim, .v_dim = dim};
    struct mxc_attn_attr attention = {.n_heads = heads,
                                      .n_kv_heads = heads,
                                      .head_dim = dim,
                                      .scale = (float)(1 / sqrt((double)dim)),
                                      .rope = MXC_NONE,
                                      .kv = mxc_graph_kv(g, &store)};
    int32_t y = mxc_graph_linear(g, x, 3, qkv, 1, MXC_NONE);
    y = mxc_graph_attention(g, y, &attention, MXC_NONE, MXC_NONE, MXC_NONE);
    struct mxc_linear_part out = part(b, b->hidden, b->hidden, "attention.output.dense");
    x = norm(b, mxc_graph_linear(g, y, 1, &out, 1, x), "attention.output.LayerNorm");

    struct mxc_linear_part up = part(b, b->ffn, b->hidden, "intermediate.dense");
    struct mxc_linear_part down = part(b, b->hidden, b->ffn, "output.dense");
    y = mxc_graph_act(g, mxc_graph_linear(g, x, 1, &up, 1, MXC_NONE), b->act);
    return norm(b, mxc_graph_linear(g, y, 1, &down, 1, x), "output.LayerNorm");
}

static enum mxc_code build(const struct mxc_config *config, const struct mxc_weights *weights,
                           struct mxc_graph *g, struct mxc_err *err) {
    struct bert b = {.g = g, .weights = weights, .prefix = "", .layer = -1};
    if (config->from_gguf)
        return mxc_err_set(err, MXC_E_UNSUPPORTED,
                           "bert in a GGUF is not supported; its safetensors folder is");
    enum mxc_code code = read_config(config->text, &b, err);
    if (code)
        return code;
    if (weights && mxc_weights_find(weights, "bert.embeddings.word_embeddings.weight"))
        b.prefix = "bert.";
    g->max_position = b.n_positions;
    g->vocab = (int32_t)b.vocab;
    g->hidden_out = g->both_ways = true;
    int32_t x = mxc_graph_embed(g, table(&b, b.vocab, "embeddings.word_embeddings"), 1);
    x = mxc_graph_add_table_row(g, x, table(&b, b.n_types, "embeddings.token_type_embeddings"), 0);
    x = mxc_graph_add_position(g, x, table(&b, b.n_positions, "embeddings.position_embeddings"), 0);
    x = norm(&b, x, "embeddings.LayerNorm");
    mxc_graph_mark_layer_value(g, 0, x);
    for (int32_t i = 0; i < b.n_layers; i++) {
        mxc_graph_begin_layer(g, b.layer = i);
        x = layer(&b, x);
        mxc_graph_mark_layer_value(g, i + 1, x);
    }
    mxc_graph_begin_layer(g, MXC_NONE);
    x = mxc_graph_select_out(g, x);
    mxc_graph_mark_layer_value(g, (int32_t)b.n_layers + 1, x);
    return mxc_graph_finish(g, x, err);
}

static const char *const model_types[] = {"bert", NULL};
static const char *const gguf_archs[] = {NULL};

const struct mxc_family mxc_family_bert = {
    .name = "bert",
    .summary = "BERT (embeddings only)",
    .notes = "encoder: every token sees the whole text; post-norm, no logits",
    .model_types = model_types,
    .gguf_archs = gguf_archs,
    .build = build,
};
