/* Qwen3-VL. Text: Qwen3 with rotation on three position axes that take turns, and with features of
 * early tower layers added to the picture's rows after the first layers (DeepStack). Tower: learned
 * positions interpolated to the picture's grid besides the rotation, and a merger for every level.
 * In: a config and the names of the weights. Out: both graphs; a feature row is the merged row,
 * then the levels. */
#include "models/families.h"
#include "models/vision_family.h"

#include <math.h>
#include <stdio.h>

enum {
    MAX_LEVELS = MXC_MAX_IN - 1,
    MAX_EXTENT = 1 << 20,
    MAX_TABLE = 1 << 24,
    TABLE = 1,
    TAPS = 4
};
static const int sections[MXC_MAX_ROPE_AXES] = {24, 20, 20};

/* Layers of the tower whose features are levels. */
static enum mxc_code read_levels(const json_t *vision, int32_t depth, int32_t *levels, int32_t *n,
                                 struct mxc_err *err) {
    const int32_t range[2] = {0, depth - 1};
    *n = 0;
    if (!json_object_get(vision, "deepstack_visual_indexes") && depth > 24) {
        levels[0] = 8;
        levels[1] = 16;
        levels[2] = 24;
        *n = 3;
    }
    return mxc_vision_list(vision, "deepstack_visual_indexes", range, MAX_LEVELS, levels, n, err);
}

/* ---- text */

static int32_t layer(struct mxc_decoder *d, int32_t x) {
    const int32_t *n_levels = d->family;
    x = mxc_layer_llama(d, x);
    return d->layer < *n_levels ? mxc_graph_add_level(d->g, x) : x;
}

static enum mxc_code build(const struct mxc_config *config, const struct mxc_weights *weights,
                           struct mxc_graph *graph, struct mxc_err *err) {
    struct mxc_decoder d;
    static const struct mxc_hyper_rules rules = {.head_dim = 128, .theta = 5e5};
    const json_t *vision = json_object_get(config->root, "vision_config");
    int32_t levels[MAX_LEVELS], n_levels = 0, depth = 27;
    const struct mxc_vision_key key = {"depth", &depth, 27, 1024};
    enum mxc_code code = mxc_decoder_open(&d, graph, config, weights, &rules, err);
    if (code || (code = mxc_vision_sections(&d.h.rope, sections, err)) ||
        (json_is_object(vision) && ((code = mxc_vision_ints(vision, &key, 1, err)) ||
                                    (code = read_levels(vision, depth, levels, &n_levels, err)))))
        return code;
    if (n_levels > d.h.n_layers)
        return mxc_err_set(err, MXC_E_FORMAT, "deepstack_visual_indexes: %d levels for %d layers",
                           n_levels, d.h.n_layers);
    d.family = &n_levels;
    d.h.rope.sections_interleaved = true;
    d.h.qk_norm = true;
    d.h.mlp_bias = MXC_ABSENT;
    return mxc_decoder_run(&d, layer, err);
}

/* ---- tower */

static int32_t block(const struct mxc_tower_build *t, const char *prefix, int32_t x, int32_t i) {
    char name[3][MXC_MAX_WEIGHT_NAME];
    static const char *const modules[] = {"attn", "mlp.linear_fc1", "mlp.linear_fc2"};
    for (int k = 0; k < 3; k++)
        (void)snprintf(name[k], sizeof name[k], "%sblocks.%d.%s", prefix, i, modules[k]);
    mxc_graph_begin_layer(t->g, i);
    int32_t y = mxc_tower_layer_norm(t, x, "%sblocks.%d.norm1", prefix, i);
    x = mxc_tower_attention(t, y, x, name[0]);
    y = mxc_tower_layer_norm(t, x, "%sblocks.%d.norm2", prefix, i);
    return mxc_tower_mlp(t, y, x, name[1], name[2]);
}

/* A level is normalised after joining, the tower's last rows before. */
static int32_t merger(const struct mxc_tower_build *t, int32_t x, int32_t square, int32_t out,
                      bool level, const char *name) {
    if (level)
        x = mxc_graph_merge(t->g, x, square);
    x = mxc_tower_layer_norm(t, x, "%s.norm", name);
    if (!level)
        x = mxc_graph_merge(t->g, x, square);
    x = mxc_tower_linear(t, x, (int64_t)square * t->hidden, MXC_NONE, "%s.linear_fc1", name);
    x = mxc_graph_act(t->g, x, MXC_ACT_GELU);
    return mxc_tower_linear(t, x, out, MXC_NONE, "%s.linear_fc2", name);
}

static enum mxc_code read(const struct mxc_vision_source *source, struct mxc_tower_build *t,
                          int32_t *levels, int32_t *n_levels, struct mxc_err *err) {
    struct mxc_vision_shape *s = &source->into->shape;
    int32_t positions, out;
    const struct mxc_vision_key keys[] = {
        {"intermediate_size", &t->ffn, 4304, MAX_EXTENT},
        {"num_position_embeddings", &positions, 2304, MAX_TABLE},
        {"out_hidden_size", &out, source->text_hidden, MAX_EXTENT},
    };
    enum mxc_code code = mxc_qwen_read(source, "hidden_size", t, err);
    if (code || (code = mxc_vision_ints(source->vision, keys, sizeof keys / sizeof *keys, err)) ||
        (code = mxc_read_act(source->vision, "hidden_act", "gelu_pytorch_tanh", &t->act, err)) ||
        (code = read_levels(source->vision, t->layers, levels, n_levels, err)))
        return code;
    s->table = (int32_t)sqrt((double)positions);
    if (s->table * s->table != positions)
        return mxc_err_set(err, MXC_E_FORMAT, "num_position_embeddings: %d is no square",
                           positions);
    if (out != source->text_hidden)
        return mxc_err_set(err, MXC_E_FORMAT, "out_hidden_size: %d is not hidden_size (%d)", out,
                           source->text_hidden);
    return MXC_OK;
}

static enum mxc_code open_tower(const struct mxc_vision_source *source, struct mxc_err *err) {
    struct mxc_tower_build t;
    struct mxc_vision_shape *s = &source->into->shape;
    char name[MXC_MAX_WEIGHT_NAME];
    int32_t levels[MAX_LEVELS], n_levels, out[MXC_MAX_IN] = {0};
    enum mxc_code code = read(source, &t, levels, &n_levels, err);
    if (code)
        return code;
    int32_t square = s->merge * s->merge, width = source->text_hidden;
    int32_t x = mxc_tower_patches(&t, s, &s->channels_last, "%spatch_embed.proj", source->prefix);
    mxc_tower_rope_2d(&t, x);
    t.range = mxc_graph_range(t.g, x);
    int32_t taps = mxc_graph_index(t.g, x, TAPS, true);
    int32_t table =
        mxc_tower_table(&t, (int64_t)s->table * s->table, "%spos_embed.weight", source->prefix);
    x = mxc_graph_lookup(t.g, x, table, taps, MXC_NONE, false);
    for (int32_t i = 0; i < t.layers; i++) {
        x = block(&t, source->prefix, x, i);
        for (int32_t k = 0; k < n_levels; k++) {
            if (levels[k] != i)
                continue;
            (void)snprintf(name, sizeof name, "%sdeepstack_merger_list.%d", source->prefix, k);
            out[k + 1] = merger(&t, x, square, width, true, name);
        }
    }
    mxc_graph_begin_layer(t.g, MXC_NONE);
    (void)snprintf(name, sizeof name, "%smerger", source->prefix);
    out[0] = merger(&t, x, square, width, false, name);
    x = n_levels ? mxc_graph_concat(t.g, n_levels + 1, out, false) : out[0];
    return mxc_graph_finish(t.g, x, err);
}

/* ---- feeding */

/* Where patch i of n stands between the rows of a table whose ends are the picture's. */
struct tap {
    int32_t at[2];
    float weight[2];
};

static struct tap tap_of(int32_t i, int32_t n, int32_t side) {
    float from = (float)i * (float)(side - 1) / (float)(n > 1 ? n - 1 : 1), low = floorf(from);
    struct tap t;
    for (int k = 0; k < 2; k++) {
        int32_t at = (int32_t)low + k;
        float w = 1 - fabsf(from - low - (float)k);
        t.at[k] = at < side ? at : side - 1;
        t.weight[k] = w > 0 ? w : 0;
    }
    return t;
}

static enum mxc_code feed(const struct mxc_vision *v, struct mxc_pixels *pixels,
                          struct mxc_vision_picture *picture, struct mxc_err *err) {
    int32_t n = (int32_t)pixels->plan.n_patches, side = v->shape.table;
    enum mxc_code code = mxc_qwen_feed(v, pixels, NULL, picture, err);
    if (code)
        return code;
    int32_t *index = mxc_feed_index(picture, TABLE, (int64_t)TAPS * n, err);
    float *factor = mxc_feed_factor(picture, TABLE, (int64_t)TAPS * n, err);
    if (!index || !factor)
        return MXC_E_NOMEM;
    for (int32_t i = 0; i < n; i++) {
        struct mxc_cell cell = mxc_feed_cell(i, picture->grid[2], v->shape.merge);
        struct tap y = tap_of(cell.y, picture->grid[1], side),
                   x = tap_of(cell.x, picture->grid[2], side);
        for (int k = 0; k < TAPS; k++) {
            index[(size_t)k * (size_t)n + (size_t)i] = y.at[k / 2] * side + x.at[k % 2];
            factor[(size_t)k * (size_t)n + (size_t)i] = y.weight[k / 2] * x.weight[k % 2];
        }
    }
    return MXC_OK;
}

static const char *const model_types[] = {"qwen3_vl", NULL};
static const char *const gguf_archs[] = {NULL};

const struct mxc_vision_family mxc_vision_qwen3_vl = {
    .prefixes = mxc_qwen_prefixes,
    .probe = "patch_embed.proj.weight",
    .processors = mxc_qwen_processors,
    .layout = MXC_LAYOUT_MROPE,
    .open = open_tower,
    .cost = mxc_qwen_cost,
    .feed = feed,
    .cap_pixels = true,
};

const struct mxc_family mxc_family_qwen3_vl = {
    .name = "qwen3_vl",
    .summary = "Qwen3-VL, dense (pictures)",
    .notes = "rotation on three axes in turns; features of early tower layers in the first layers",
    .model_types = model_types,
    .gguf_archs = gguf_archs,
    .build = build,
    .vision = &mxc_vision_qwen3_vl,
};
