/* Llama 3.2 Vision. Text: Llama whose cross_attention_layers look, instead of at the text, at what
 * pictures left in the CROSS store, behind gates; without a picture they add nothing. The table has
 * eight rows more than the vocabulary, the first for the picture's mark. Tower: up to max_num_tiles
 * tiles seen together, learned embeddings of tile and canvas behind gates, a second run of layers
 * with gates; features are the last rows beside those of intermediate layers, and leave the graph
 * as K and V of every cross layer.
 *
 * Rows of a plane are the class's and its patches; to those of all planes come rows of zeros that
 * fill each plane up to a multiple of 8. Rows of empty planes and fill see only the picture's, the
 * picture's see all, as in the reference.
 * In: a config and the names of the weights. Out: both graphs. */
#include "base/mem.h"
#include "models/families.h"
#include "models/vision_family.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    MAX_LAYERS = 1024,
    MAX_EXTENT = 1 << 20,
    MAX_TILES = 64,
    MAX_IMAGE = 1 << 14,
    MAX_PATCH = 1 << 10,
    MAX_CROSS = 1 << 24,
    EXTRA_ROWS = 8,
    FILL = 8,
    FILLED = 1, /* slot: all rows with the fill */
    KEPT = 2    /* slot: without */
};

/* Indices of the tower's graph in the order of their making. */
enum { PRE_TILE, CLASS, POSITION, TILE_POSITION, TO_FILLED, POST_TILE, TO_KEPT };

/* ---- text */

static enum mxc_code read_cross_layers(const json_t *text, int32_t n_layers, int32_t *layers,
                                       int32_t *n, struct mxc_err *err) {
    const int32_t range[2] = {0, n_layers - 1};
    *n = 0;
    return mxc_vision_list(text, "cross_attention_layers", range, MAX_LAYERS, layers, n, err);
}

static int32_t gate(const struct mxc_decoder *d, const char *name) {
    return mxc_graph_vector(d->g, 1, "%slayers.%d.%s", d->prefix, d->layer, name);
}

static int32_t cross_layer(struct mxc_decoder *d, int32_t x) {
    const struct mxc_hyper *h = &d->h;
    int64_t width = (int64_t)h->n_heads * h->head_dim;
    const struct mxc_kv store = {
        .kind = MXC_KV_CROSS, .n_heads = h->n_kv_heads, .k_dim = h->head_dim, .v_dim = h->head_dim};
    struct mxc_cross_attr attr = {.n_heads = h->n_heads,
                                  .n_kv_heads = h->n_kv_heads,
                                  .head_dim = h->head_dim,
                                  .scale = h->attn_scale,
                                  .q_norm_eps = h->eps,
                                  .kv = mxc_graph_kv(d->g, &store)};
    struct mxc_linear_part q =
        mxc_block_part(d, "cross_attn", "q_proj", width, h->hidden, MXC_ABSENT);
    struct mxc_linear_part o =
        mxc_block_part(d, "cross_attn", "o_proj", h->hidden, width, MXC_ABSENT);
    int32_t y = mxc_block_norm(d, x, "input_layernorm");
    y = mxc_graph_linear(d->g, y, 1, &q, 1, MXC_NONE);
    int32_t norm = mxc_graph_vector(d->g, h->head_dim, "%slayers.%d.cross_attn.q_norm.weight",
                                    d->prefix, d->layer);
    y = mxc_graph_cross(d->g, y, &attr, norm);
    y = mxc_graph_linear(d->g, y, 1, &o, 1, MXC_NONE);
    x = mxc_graph_tanh_scale(d->g, y, gate(d, "cross_attn_attn_gate"), x);
    y = mxc_block_glu(d, mxc_block_norm(d, x, "post_attention_layernorm"), MXC_NONE);
    y = mxc_graph_row_mask(d->g, y);
    return mxc_graph_tanh_scale(d->g, y, gate(d, "cross_attn_mlp_gate"), x);
}

static int32_t layer(struct mxc_decoder *d, int32_t x) {
    const bool *crosses = d->family;
    return crosses[d->layer] ? cross_layer(d, x) : mxc_layer_llama(d, x);
}

/* What a picture leaves in the CROSS store: rows of all its planes, empty ones too. */
static enum mxc_code read_cross_tokens(const struct mxc_config *config, int32_t *tokens,
                                       struct mxc_err *err) {
    const json_t *vision = json_object_get(config->root, "vision_config");
    int32_t image, patch, tiles;
    const struct mxc_vision_key keys[] = {{"image_size", &image, 448, MAX_IMAGE},
                                          {"patch_size", &patch, 14, MAX_PATCH},
                                          {"max_num_tiles", &tiles, 4, MAX_TILES}};
    enum mxc_code code = mxc_vision_ints(vision, keys, sizeof keys / sizeof *keys, err);
    if (code)
        return mxc_err_context(err, "vision_config");
    int64_t side = image / patch, n = tiles * (side * side + 1);
    if (n > MAX_CROSS)
        return mxc_err_set(err, MXC_E_LIMIT, "vision_config: %lld rows of one picture",
                           (long long)n);
    *tokens = (int32_t)n;
    return MXC_OK;
}

static enum mxc_code write_text(const struct mxc_config *config, const struct mxc_weights *weights,
                                struct mxc_graph *graph, struct mxc_err *err) {
    struct mxc_decoder d;
    static const char *const accepts[] = {"cross_attention_layers", NULL};
    static const struct mxc_hyper_rules rules = {.accepts = accepts, .eps = 1e-5, .theta = 5e5};
    int32_t layers[MAX_LAYERS], n;
    bool crosses[MAX_LAYERS] = {false};
    enum mxc_code code = mxc_decoder_open(&d, graph, config, weights, &rules, err);
    if (code || (code = read_cross_layers(config->text, d.h.n_layers, layers, &n, err)) ||
        (code = read_cross_tokens(config, &graph->cross_tokens, err)))
        return code;
    for (int32_t i = 0; i < n; i++)
        crosses[layers[i]] = true;
    d.family = crosses;
    d.extra_rows = EXTRA_ROWS;
    d.h.qkv_bias = d.h.o_bias = d.h.mlp_bias = MXC_ABSENT;
    return mxc_decoder_run(&d, layer, err);
}

static enum mxc_code build(const struct mxc_config *config, const struct mxc_weights *weights,
                           struct mxc_graph *graph, struct mxc_err *err) {
    struct mxc_config whole = *config;
    whole.text = mxc_vision_text_config(config, "mllama_text_model");
    if (!whole.text)
        return mxc_err_nomem(err);
    enum mxc_code code = write_text(&whole, weights, graph, err);
    json_decref(whole.text);
    return code;
}

/* ---- tower */

struct tower {
    struct mxc_tower_build t;
    const char *prefix;
    int32_t global_layers, n_taps, shapes; /* shapes of the canvas, and none */
    int32_t taps[MXC_MAX_IN];              /* layers beside the last */
    /* text */
    int32_t kv_heads, head_dim, n_cross, n_layers, cross[MAX_LAYERS];
    float text_eps;
};

static enum mxc_code read_text(const struct mxc_vision_source *source, struct tower *w,
                               struct mxc_err *err) {
    json_t *text = mxc_vision_text_config(source->config, "mllama_text_model");
    int32_t heads = 0;
    double eps = 1e-5;
    const struct mxc_vision_key keys[] = {
        {"num_attention_heads", &heads, 0, MAX_EXTENT},
        {"num_key_value_heads", &w->kv_heads, 0, MAX_EXTENT},
        {"num_hidden_layers", &w->n_layers, 0, MAX_LAYERS},
    };
    enum mxc_code code;
    if (!text)
        return mxc_err_nomem(err);
    if (!(code = mxc_vision_ints(text, keys, sizeof keys / sizeof *keys, err)) &&
        !(code = mxc_json_get_real(text, "rms_norm_eps", &eps, err)))
        code = read_cross_layers(text, w->n_layers, w->cross, &w->n_cross, err);
    json_decref(text);
    if (code)
        return code;
    w->head_dim = source->text_hidden / heads;
    w->text_eps = (float)eps;
    if (source->text_hidden % heads || w->n_cross < 1)
        return mxc_err_set(err, MXC_E_FORMAT,
                           "text_config: num_attention_heads does not divide hidden_size, or there "
                           "are no cross_attention_layers");
    return MXC_OK;
}

/* Canvases are numbered as the processor does it: all of at most so many tiles, in order. */
static enum mxc_code read_shapes(const json_t *vision, int32_t tiles, int32_t *n,
                                 struct mxc_err *err) {
    const char *key = "supported_aspect_ratios";
    const json_t *list = json_object_get(vision, key);
    *n = 0;
    for (int32_t a = 1; a <= tiles; a++)
        for (int32_t b = 1; a * b <= tiles; b++, (*n)++) {
            const json_t *pair = json_array_get(list, (size_t)*n);
            if (list && !json_is_null(list) &&
                (json_array_size(pair) != 2 || json_integer_value(json_array_get(pair, 0)) != a ||
                 json_integer_value(json_array_get(pair, 1)) != b))
                return mxc_err_set(err, MXC_E_UNSUPPORTED, "%s[%d]: not [%d, %d]", key, *n, a, b);
        }
    return !json_is_array(list) || json_array_size(list) == (size_t)*n
               ? MXC_OK
               : mxc_err_set(err, MXC_E_UNSUPPORTED, "%s: more than %d canvases for %d tiles", key,
                             *n, tiles);
}

static enum mxc_code read_vision(const struct mxc_vision_source *source, struct tower *w,
                                 struct mxc_err *err) {
    struct mxc_vision_shape *s = &source->into->shape;
    const json_t *vision = source->vision;
    static const int32_t usual[] = {3, 7, 15, 23, 30};
    double eps = 1e-5;
    int32_t channels;
    const struct mxc_vision_key keys[] = {
        {"hidden_size", &w->t.hidden, 1280, MAX_EXTENT},
        {"intermediate_size", &w->t.ffn, 5120, MAX_EXTENT},
        {"num_hidden_layers", &w->t.layers, 32, MAX_LAYERS},
        {"num_global_layers", &w->global_layers, 8, MAX_LAYERS},
        {"attention_heads", &w->t.heads, 16, MAX_EXTENT},
        {"image_size", &s->image, 448, MAX_IMAGE},
        {"patch_size", &s->patch, 14, MAX_PATCH},
        {"max_num_tiles", &s->tiles, 4, MAX_TILES},
        {"num_channels", &channels, 3, 16},
    };
    enum mxc_code code = mxc_vision_ints(vision, keys, sizeof keys / sizeof *keys, err);
    const int32_t range[2] = {0, w->t.layers - 1};
    memcpy(w->taps, usual, sizeof usual);
    w->n_taps = sizeof usual / sizeof *usual;
    if (code || (code = mxc_json_get_real(vision, "norm_eps", &eps, err)) ||
        (code = mxc_read_act(vision, "hidden_act", "gelu", &w->t.act, err)) ||
        (code = mxc_vision_list(vision, "intermediate_layers_indices", range, MXC_MAX_IN, w->taps,
                                &w->n_taps, err)))
        return code;
    if (channels != 3 || s->image < s->patch || w->t.hidden % w->t.heads || !(eps >= 0 && eps < 1))
        return mxc_err_set(err, MXC_E_FORMAT,
                           "num_channels, image_size, attention_heads or norm_eps: out of range");
    for (int32_t i = 0; i < w->n_taps; i++) {
        if (w->taps[i] >= w->t.layers)
            return mxc_err_set(err, MXC_E_FORMAT, "intermediate_layers_indices: %d of %d layers",
                               w->taps[i], w->t.layers);
    }
    if ((code = read_shapes(vision, s->tiles, &w->shapes, err)))
        return code;
    w->t.eps = (float)eps;
    s->table = s->image / s->patch;
    s->temporal = s->merge = 1;
    s->class_row = true;
    return MXC_OK;
}

/* A run of layers; with gates where gated. values: every layer's output, or NULL. */
static int32_t encoder(struct tower *w, int32_t x, const char *run, int32_t n, bool gated,
                       int32_t *values) {
    struct mxc_tower_build *t = &w->t;
    char name[3][MXC_MAX_WEIGHT_NAME];
    static const char *const modules[] = {"self_attn", "mlp.fc1", "mlp.fc2"};
    for (int32_t i = 0; i < n; i++) {
        for (int k = 0; k < 3; k++)
            (void)snprintf(name[k], sizeof name[k], "%s%s.layers.%d.%s", w->prefix, run, i,
                           modules[k]);
        mxc_graph_begin_layer(t->g, t->g->n_layers);
        int32_t y = mxc_tower_layer_norm(t, x, "%s%s.layers.%d.input_layernorm", w->prefix, run, i);
        y = mxc_tower_attention(t, y, gated ? MXC_NONE : x, name[0]);
        if (gated)
            y = mxc_graph_tanh_scale(
                t->g, y, mxc_graph_vector(t->g, 1, "%s%s.layers.%d.gate_attn", w->prefix, run, i),
                x);
        x = y;
        y = mxc_tower_layer_norm(t, x, "%s%s.layers.%d.post_attention_layernorm", w->prefix, run,
                                 i);
        y = mxc_tower_mlp(t, y, gated ? MXC_NONE : x, name[1], name[2]);
        if (gated)
            y = mxc_graph_tanh_scale(
                t->g, y, mxc_graph_vector(t->g, 1, "%s%s.layers.%d.gate_ffn", w->prefix, run, i),
                x);
        x = y;
        if (values)
            values[i] = x;
    }
    mxc_graph_begin_layer(t->g, MXC_NONE);
    return x;
}

/* Adds what a table of canvas and tile has, behind its gate. */
static int32_t tile_embedding(struct tower *w, int32_t x, const char *name, int32_t tiles) {
    struct mxc_tower_build *t = &w->t;
    int32_t index = mxc_graph_index(t->g, x, 1, false);
    int32_t table = mxc_tower_table(t, ((int64_t)w->shapes + 1) * tiles, "%s%s.embedding.weight",
                                    w->prefix, name);
    int32_t g = mxc_graph_vector(t->g, 1, "%s%s.gate", w->prefix, name);
    return mxc_graph_lookup(t->g, x, table, index, g, false);
}

static int32_t embeddings(struct tower *w, struct mxc_vision_shape *s) {
    struct mxc_tower_build *t = &w->t;
    int64_t rows = (int64_t)s->table * s->table + 1;
    static const char *const gated = "gated_positional_embedding";
    int32_t x = mxc_tower_patches(t, s, &s->channels_last, "%spatch_embedding", w->prefix);
    x = tile_embedding(w, x, "pre_tile_positional_embedding", s->tiles);
    int32_t index = mxc_graph_index(t->g, x, 1, false);
    int32_t table = mxc_tower_table(t, 1, "%sclass_embedding", w->prefix);
    x = mxc_graph_lookup(t->g, x, table, index, MXC_NONE, false);
    int32_t g = mxc_graph_vector(t->g, 1, "%s%s.gate", w->prefix, gated);
    index = mxc_graph_index(t->g, x, 1, false);
    table = mxc_tower_table(t, rows, "%s%s.embedding", w->prefix, gated);
    x = mxc_graph_lookup(t->g, x, table, index, g, true);
    index = mxc_graph_index(t->g, x, 1, false);
    table = mxc_tower_table(t, ((int64_t)w->shapes + 1) * s->tiles * rows,
                            "%s%s.tile_embedding.weight", w->prefix, gated);
    return mxc_graph_lookup(t->g, x, table, index, g, false);
}

/* K, normalised, and V of every cross layer side by side. */
static int32_t keys_and_values(const struct mxc_vision_source *source, struct tower *w, int32_t x,
                               int32_t *parts) {
    struct mxc_graph *g = w->t.g;
    const char *text = mxc_tower_has(&w->t, "model.language_model.norm.weight")
                           ? "model.language_model."
                           : "language_model.model.";
    int64_t width = (int64_t)w->kv_heads * w->head_dim;
    (void)source;
    for (int32_t i = 0; i < w->n_cross; i++) {
        char name[MXC_MAX_WEIGHT_NAME];
        (void)snprintf(name, sizeof name, "%slayers.%d.cross_attn", text, w->cross[i]);
        int32_t pair[2] = {mxc_tower_linear(&w->t, x, width, MXC_NONE, "%s.k_proj", name),
                           mxc_tower_linear(&w->t, x, width, MXC_NONE, "%s.v_proj", name)};
        int32_t norm = mxc_graph_vector(g, w->head_dim, "%s.k_norm.weight", name);
        pair[0] = mxc_graph_group_norm(g, pair[0], norm, w->text_eps, w->kv_heads);
        parts[i] = mxc_graph_concat(g, 2, pair, false);
    }
    /* a concat takes a few; what it makes is taken again */
    for (int32_t n = w->n_cross; n > 1;) {
        int32_t made = 0;
        for (int32_t i = 0; i < n; i += MXC_MAX_IN) {
            int32_t few = n - i < MXC_MAX_IN ? n - i : MXC_MAX_IN;
            parts[made++] = few > 1 ? mxc_graph_concat(g, few, parts + i, false) : parts[i];
        }
        n = made;
    }
    return parts[0];
}

static enum mxc_code write_tower(const struct mxc_vision_source *source, struct tower *w,
                                 int32_t *values, struct mxc_err *err) {
    struct mxc_tower_build *t = &w->t;
    struct mxc_vision_shape *s = &source->into->shape;
    int32_t taps[MXC_MAX_IN], parts[MAX_LAYERS];
    const char *projector = mxc_tower_has(t, "model.multi_modal_projector.weight")
                                ? "model.multi_modal_projector"
                                : "multi_modal_projector";
    struct mxc_tower_build outer = *t; /* these two norms have an eps of their own */
    outer.eps = 1e-5f;
    t->rope = t->positions = MXC_NONE;
    int32_t x = embeddings(w, s);
    x = mxc_tower_layer_norm(&outer, x, "%slayernorm_pre", w->prefix);
    x = mxc_graph_gather(t->g, x);
    t->range = mxc_graph_range(t->g, x);
    x = encoder(w, x, "transformer", t->layers, false, values);
    x = mxc_tower_layer_norm(&outer, x, "%slayernorm_post", w->prefix);
    x = tile_embedding(w, x, "post_tile_positional_embedding", s->tiles);
    x = encoder(w, x, "global_transformer", w->global_layers, true, NULL);
    if (w->n_taps) {
        for (int32_t i = 0; i < w->n_taps; i++)
            taps[i] = values[w->taps[i]];
        int32_t both[2] = {x, mxc_graph_concat(t->g, w->n_taps, taps, true)};
        x = mxc_graph_concat(t->g, 2, both, false);
    }
    x = mxc_graph_gather(t->g, x);
    x = mxc_tower_linear(t, x, source->text_hidden, MXC_NONE, "%s", projector);
    return mxc_graph_finish(t->g, keys_and_values(source, w, x, parts), err);
}

static enum mxc_code open_tower(const struct mxc_vision_source *source, struct mxc_err *err) {
    struct tower w = {.prefix = source->prefix,
                      .t = {.g = source->into->tower, .weights = source->weights}};
    enum mxc_code code;
    if ((code = read_text(source, &w, err)) || (code = read_vision(source, &w, err)))
        return code;
    int32_t *values = mxc_mem_zalloc((size_t)w.t.layers, sizeof *values);
    if (!values)
        return mxc_err_nomem(err);
    code = write_tower(source, &w, values, err);
    mxc_mem_free(values);
    return code;
}

/* ---- feeding */

static int32_t plane_rows(const struct mxc_vision *v) {
    return v->shape.table * v->shape.table + 1;
}

static void cost(const struct mxc_vision *v, const struct mxc_picture_plan *plan,
                 struct mxc_vision_cost *c) {
    (void)plan;
    c->n_features = plane_rows(v) * v->shape.tiles; /* those of empty planes, too */
    c->n_patches = c->n_features;
    c->n_tokens = 1;
}

/* Rows of all planes: the class's, then patches. Empty planes stay zero. */
static enum mxc_code feed_planes(const struct mxc_vision *v, const struct mxc_pixels *pixels,
                                 struct mxc_vision_picture *p, struct mxc_err *err) {
    const struct mxc_vision_shape *s = &v->shape;
    int32_t n = plane_rows(v), rows = n * s->tiles, id = pixels->plan.aspect_ratio_id;
    int64_t width = (int64_t)3 * s->patch * s->patch;
    float *out = mxc_feed_rows(p, rows, width, err);
    int32_t *pre = mxc_feed_index(p, PRE_TILE, rows, err);
    int32_t *class = mxc_feed_index(p, CLASS, rows, err);
    int32_t *position = mxc_feed_index(p, POSITION, rows, err);
    int32_t *tile_position = mxc_feed_index(p, TILE_POSITION, rows, err);
    if (!out || !pre || !class || !position || !tile_position)
        return MXC_E_NOMEM;
    for (int32_t plane = 0, row = 0; plane < s->tiles; plane++) {
        int32_t tile = id * s->tiles + plane;
        for (int32_t i = 0; i < n; i++, row++) {
            pre[row] = i ? tile : -1;
            class[row] = i ? -1 : 0;
            position[row] = i;
            tile_position[row] = tile * n + i;
            if (i && plane < pixels->plan.n_tiles)
                mxc_feed_patch(v, pixels, plane, (i - 1) / s->table, (i - 1) % s->table,
                               out + row * width);
        }
    }
    return MXC_OK;
}

static enum mxc_code feed(const struct mxc_vision *v, struct mxc_pixels *pixels,
                          struct mxc_vision_picture *p, struct mxc_err *err) {
    const struct mxc_vision_shape *s = &v->shape;
    int32_t n = plane_rows(v), rows = n * s->tiles, fill = (FILL - n % FILL) % FILL,
            all = rows + fill * s->tiles, real = n * pixels->plan.n_tiles;
    enum mxc_code code = feed_planes(v, pixels, p, err);
    if (code)
        return code;
    int32_t *filled = mxc_feed_index(p, TO_FILLED, all, err);
    int32_t *post = mxc_feed_index(p, POST_TILE, all, err);
    int32_t *kept = mxc_feed_index(p, TO_KEPT, rows, err);
    int32_t *range = mxc_feed_range(p, 0, all, err);
    if (!filled || !post || !kept || !range)
        return MXC_E_NOMEM;
    p->aspect = pixels->plan.aspect_ratio_id;
    p->input.n_rows[FILLED] = all;
    p->input.n_rows[KEPT] = rows;
    for (int32_t i = 0; i < all; i++) {
        bool fills = i >= rows; /* the rows of fill stand behind all others */
        filled[i] = fills ? -1 : i;
        post[i] = p->aspect * s->tiles + (fills ? (i - rows) / fill : i / n);
        range[i] = 0;
        range[all + i] = i < real ? all : real;
        if (!fills)
            kept[i] = i;
    }
    return MXC_OK;
}

static const char *const prefixes[] = {"vision_model.", "model.vision_model.", "vision_tower.",
                                       "model.vision_tower.", NULL};
static const char *const processors[] = {"mllama", NULL};
static const char *const model_types[] = {"mllama", NULL};
static const char *const gguf_archs[] = {NULL};

const struct mxc_vision_family mxc_vision_mllama = {
    .prefixes = prefixes,
    .probe = "gated_positional_embedding.embedding",
    .processors = processors,
    .layout = MXC_LAYOUT_CROSS,
    .open = open_tower,
    .cost = cost,
    .feed = feed,
};

const struct mxc_family mxc_family_mllama = {
    .name = "mllama",
    .summary = "Llama 3.2 Vision (11B, 90B; pictures)",
    .notes = "cross attention to pictures in cross_attention_layers, pictures in tiles",
    .model_types = model_types,
    .gguf_archs = gguf_archs,
    .build = build,
    .vision = &mxc_vision_mllama,
};
