/* Decoder: writes a family's graph, piece by piece: embedding, the layers by the family's own layer
 * function, final norm and head. In come hyper-parameters that hyper.c has checked and the names of
 * a family's modules; weights are only asked for presence (biases, a head of its own).
 * Invariants: the residual is added by the linear that ends a branch, every attention has a KV
 * store of its own, output rows are picked before the final norm, and all layer values are marked.
 */
#include "models/blocks.h"

#include "base/str.h"

#include <stdio.h>
#include <string.h>

/* PREFIXlayers.LAYER.PARENT.MODULE; parent may be "". */
static void module_name(const struct mxc_decoder *d, const char *parent, const char *module,
                        char name[MXC_MAX_WEIGHT_NAME]) {
    (void)snprintf(name, MXC_MAX_WEIGHT_NAME, "%slayers.%d.%s%s%s", d->prefix, d->layer, parent,
                   *parent ? "." : "", module);
}

bool mxc_block_has(const struct mxc_decoder *d, const char *name) {
    char full[MXC_MAX_WEIGHT_NAME];
    module_name(d, "", name, full);
    return d->weights && mxc_weights_find(d->weights, full) != NULL;
}

static bool has_bias(const struct mxc_decoder *d, enum mxc_presence rule, const char *module) {
    char bias[MXC_MAX_WEIGHT_NAME];
    if (rule != MXC_BY_FILE || !d->weights)
        return rule == MXC_PRESENT;
    int n = snprintf(bias, sizeof bias, "%s.bias", module);
    return n > 0 && (size_t)n < sizeof bias && mxc_weights_find(d->weights, bias) != NULL;
}

struct mxc_linear_part mxc_block_part(const struct mxc_decoder *d, const char *parent,
                                      const char *module, int64_t out, int64_t in,
                                      enum mxc_presence bias) {
    struct mxc_linear_part p = {.bias = MXC_NONE};
    char name[MXC_MAX_WEIGHT_NAME];
    module_name(d, parent, module, name);
    p.weight = mxc_graph_matrix(d->g, out, in, "%s.weight", name);
    if (has_bias(d, bias, name))
        p.bias = mxc_graph_vector(d->g, out, "%s.bias", name);
    return p;
}

/* A norm of rows as the family has it, by the full name of its module. */
static int32_t norm_of(const struct mxc_decoder *d, int32_t x, const char *name) {
    int32_t w = mxc_graph_vector(d->g, d->h.hidden, "%s.weight", name);
    if (d->h.norm == MXC_NORM_RMS)
        return mxc_graph_rms_norm(d->g, x, w, d->h.eps, d->h.norm_offset);
    int32_t b = has_bias(d, d->h.norm_bias, name)
                    ? mxc_graph_vector(d->g, d->h.hidden, "%s.bias", name)
                    : MXC_NONE;
    return mxc_graph_layer_norm(d->g, x, w, b, d->h.eps);
}

int32_t mxc_block_norm(const struct mxc_decoder *d, int32_t x, const char *module) {
    char name[MXC_MAX_WEIGHT_NAME];
    module_name(d, "", module, name);
    return norm_of(d, x, name);
}

/* ---- attention */

static int32_t project_qkv(const struct mxc_decoder *d, int32_t x) {
    const struct mxc_hyper *h = &d->h;
    int64_t q = (int64_t)h->n_heads * h->head_dim, kv = (int64_t)h->n_kv_heads * h->head_dim;
    struct mxc_linear_part parts[3];
    if (d->qkv) {
        parts[0] = mxc_block_part(d, d->attn, d->qkv, q + 2 * kv, h->hidden, h->qkv_bias);
        return mxc_graph_linear(d->g, x, 1, parts, 1, MXC_NONE);
    }
    parts[0] = mxc_block_part(d, d->attn, "q_proj", q, h->hidden, h->qkv_bias);
    parts[1] = mxc_block_part(d, d->attn, "k_proj", kv, h->hidden, h->qkv_bias);
    parts[2] = mxc_block_part(d, d->attn, "v_proj", kv, h->hidden, h->qkv_bias);
    return mxc_graph_linear(d->g, x, 3, parts, 1, MXC_NONE);
}

/* Weights of the norm of q or k: one vector, or one per head in a tensor or in tensors of its own.
 */
static int32_t qk_norm_weight(const struct mxc_decoder *d, const char *module, int32_t heads) {
    const struct mxc_hyper *h = &d->h;
    char name[MXC_MAX_WEIGHT_NAME];
    module_name(d, d->attn, module, name);
    if (h->qk_norm_kind == MXC_QK_RMS_HEAD)
        return mxc_graph_vector(d->g, h->head_dim, "%s.weight", name);
    if (h->qk_norm_kind == MXC_QK_RMS_WHOLE)
        return mxc_graph_vector(d->g, (int64_t)heads * h->head_dim, "%s.weight", name);
    return mxc_graph_vectors(d->g, heads, h->head_dim, "%s.weight", name);
}

int32_t mxc_block_attention(const struct mxc_decoder *d, int32_t x, int32_t residual) {
    const struct mxc_hyper *h = &d->h;
    int32_t qkv = project_qkv(d, x);
    struct mxc_kv store = {.kind = d->window ? MXC_KV_WINDOW : MXC_KV_FULL,
                           .n_heads = h->n_kv_heads,
                           .k_dim = h->head_dim,
                           .v_dim = h->head_dim,
                           .window = d->window};
    struct mxc_attn_attr attr = {.n_heads = h->n_heads,
                                 .n_kv_heads = h->n_kv_heads,
                                 .head_dim = h->head_dim,
                                 .scale = h->attn_scale,
                                 .softcap = h->attn_softcap,
                                 .window = d->window,
                                 .rope = d->rope,
                                 .kv = mxc_graph_kv(d->g, &store),
                                 .qk_norm = h->qk_norm_kind,
                                 .qk_norm_eps = h->qk_norm ? h->eps : 0,
                                 .qk_norm_offset = h->qk_norm ? h->norm_offset : 0};
    int32_t q_norm = MXC_NONE, k_norm = MXC_NONE, sinks = MXC_NONE;
    if (h->qk_norm) {
        q_norm = qk_norm_weight(d, d->q_norm, h->n_heads);
        k_norm = qk_norm_weight(d, d->k_norm, h->n_kv_heads);
    }
    if (d->sinks) {
        char name[MXC_MAX_WEIGHT_NAME];
        module_name(d, d->attn, d->sinks, name);
        sinks = mxc_graph_vector(d->g, h->n_heads, "%s", name);
    }
    int32_t y = mxc_graph_attention(d->g, qkv, &attr, q_norm, k_norm, sinks);
    struct mxc_linear_part o = mxc_block_part(d, d->attn, d->o_proj, h->hidden,
                                              (int64_t)h->n_heads * h->head_dim, h->o_bias);
    return mxc_graph_linear(d->g, y, 1, &o, h->residual_scale, residual);
}

/* ---- feed-forward */

int32_t mxc_block_glu_of(const struct mxc_decoder *d, const char *parent, int32_t width, int32_t x,
                         int32_t residual) {
    const struct mxc_hyper *h = &d->h;
    struct mxc_linear_part parts[2];
    int n_parts = 2;
    if (d->gate_up) {
        parts[0] =
            mxc_block_part(d, parent, d->gate_up, 2 * (int64_t)width, h->hidden, h->mlp_bias);
        n_parts = 1;
    } else {
        parts[0] = mxc_block_part(d, parent, "gate_proj", width, h->hidden, h->mlp_bias);
        parts[1] = mxc_block_part(d, parent, "up_proj", width, h->hidden, h->mlp_bias);
    }
    int32_t y = mxc_graph_linear(d->g, x, n_parts, parts, 1, MXC_NONE);
    y = mxc_graph_glu(d->g, y, h->act);
    struct mxc_linear_part down =
        mxc_block_part(d, parent, "down_proj", h->hidden, width, h->mlp_bias);
    return mxc_graph_linear(d->g, y, 1, &down, h->residual_scale, residual);
}

int32_t mxc_block_glu(const struct mxc_decoder *d, int32_t x, int32_t residual) {
    return mxc_block_glu_of(d, d->mlp, d->h.ffn, x, residual);
}

int32_t mxc_block_mlp(const struct mxc_decoder *d, int32_t x, int32_t residual) {
    const struct mxc_hyper *h = &d->h;
    struct mxc_linear_part up = mxc_block_part(d, d->mlp, d->up, h->ffn, h->hidden, h->mlp_bias);
    int32_t y = mxc_graph_act(d->g, mxc_graph_linear(d->g, x, 1, &up, 1, MXC_NONE), h->act);
    struct mxc_linear_part down =
        mxc_block_part(d, d->mlp, d->down, h->hidden, h->ffn, h->mlp_bias);
    return mxc_graph_linear(d->g, y, 1, &down, h->residual_scale, residual);
}

/* ---- the whole */

/* Where a language model stands in a checkpoint: by itself, or inside a vision model as Hugging
 * Face (old and new) and MLX name it. */
static const char *prefix_of(const struct mxc_weights *weights) {
    static const char *const prefixes[] = {"model.",
                                           "language_model.model.",
                                           "model.language_model.",
                                           "model.text_model.",
                                           "language_model.",
                                           ""};
    char name[MXC_MAX_WEIGHT_NAME];
    for (size_t i = 0; weights && i < sizeof prefixes / sizeof *prefixes; i++) {
        (void)snprintf(name, sizeof name, "%sembed_tokens.weight", prefixes[i]);
        if (mxc_weights_find(weights, name))
            return prefixes[i];
    }
    return prefixes[0];
}

static const char *head_of(const struct mxc_weights *weights) {
    static const char *const inside = "language_model.lm_head.weight";
    return weights && mxc_weights_find(weights, inside) ? inside : "lm_head.weight";
}

enum mxc_code mxc_decoder_open(struct mxc_decoder *d, struct mxc_graph *g,
                               const struct mxc_config *config, const struct mxc_weights *weights,
                               const struct mxc_hyper_rules *rules, struct mxc_err *err) {
    *d = (struct mxc_decoder){.g = g,
                              .config = config,
                              .weights = weights,
                              .prefix = prefix_of(weights),
                              .embed = "embed_tokens",
                              .norm = "norm",
                              .head = head_of(weights),
                              .attn = "self_attn",
                              .o_proj = "o_proj",
                              .q_norm = "q_norm",
                              .k_norm = "k_norm",
                              .mlp = "mlp",
                              .up = "up_proj",
                              .down = "down_proj"};
    return mxc_hyper_read(config, weights, rules, &d->h, err);
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

/* Logits of the rows that are wanted. */
static int32_t head(const struct mxc_decoder *d, int32_t x, int32_t table) {
    const struct mxc_hyper *h = &d->h;
    /* The file decides: a head that is there is used, as transformers 5 does even where the config
     * says tied; one that is not there can only be the table. */
    bool untied = d->weights
                      ? mxc_weights_find(d->weights, d->head) != NULL
                      : json_is_false(json_object_get(d->config->text, "tie_word_embeddings"));
    struct mxc_linear_part out = {.weight = table, .bias = MXC_NONE};
    if (untied)
        out.weight = mxc_graph_matrix(d->g, h->vocab, h->hidden, "%s", d->head);
    size_t stem = strlen(d->head) - strlen("weight"); /* phi's and others' heads have a bias */
    char bias[MXC_MAX_WEIGHT_NAME];
    (void)snprintf(bias, sizeof bias, "%.*sbias", (int)stem, d->head);
    if (untied && d->weights && mxc_weights_find(d->weights, bias))
        out.bias = mxc_graph_vector(d->g, h->vocab, "%s", bias);
    if (d->unit_head)
        x = mxc_graph_unit_columns(d->g, x, out.weight);
    x = mxc_graph_linear(d->g, x, 1, &out, h->logit_scale, MXC_NONE);
    return h->logit_softcap > 0 ? mxc_graph_softcap(d->g, x, h->logit_softcap) : x;
}

enum mxc_code mxc_decoder_run(struct mxc_decoder *d, mxc_layer_fn *layer, struct mxc_err *err) {
    struct mxc_graph *g = d->g;
    const struct mxc_hyper *h = &d->h;
    char norm[MXC_MAX_WEIGHT_NAME];
    int32_t rope = mxc_graph_rope(g, &h->rope);
    g->max_position = h->max_position;
    int32_t table = mxc_graph_table(g, (int64_t)h->vocab + d->extra_rows, h->hidden, "%s%s.weight",
                                    d->prefix, d->embed);
    int32_t x = mxc_graph_embed(g, table, h->embed_scale);
    mxc_graph_mark_layer_value(g, 0, x);
    for (d->layer = 0; d->layer < h->n_layers; d->layer++) {
        mxc_graph_begin_layer(g, d->layer);
        d->rope = rope;
        d->window = window_of(h, d->layer);
        x = layer(d, x);
        mxc_graph_mark_layer_value(g, d->layer + 1, x);
    }
    mxc_graph_begin_layer(g, MXC_NONE);
    x = mxc_graph_select_out(g, x);
    (void)snprintf(norm, sizeof norm, "%s%s", d->prefix, d->norm);
    x = norm_of(d, x, norm);
    mxc_graph_mark_layer_value(g, h->n_layers + 1, x);
    if (g->hidden_out)
        g->vocab = h->vocab;
    return mxc_graph_finish(g, g->hidden_out ? x : head(d, x, table), err);
}

int32_t mxc_layer_llama(struct mxc_decoder *d, int32_t x) {
    x = mxc_block_attention(d, mxc_block_norm(d, x, "input_layernorm"), x);
    return mxc_block_glu(d, mxc_block_norm(d, x, "post_attention_layernorm"), x);
}
