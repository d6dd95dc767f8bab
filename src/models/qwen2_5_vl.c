/* Qwen2.5-VL. Text: as Qwen2-VL. Tower: RMS norms, gated feed-forward, and attention within windows
 * on all layers but those that fullatt_block_indexes names. Rows come in window by window, so that
 * a window is a stretch of rows; merged rows are put back at the end. In: a config and the names of
 * the weights. Out: both graphs. */
#include "base/mem.h"
#include "models/families.h"
#include "models/vision_family.h"

#include <stdio.h>

static const int sections[MXC_MAX_ROPE_AXES] = {16, 24, 24};
enum { MAX_LAYERS = 1024, MAX_EXTENT = 1 << 20, WINDOWS = 1 /* range */, BACK = 1 /* index */ };

static enum mxc_code build(const struct mxc_config *config, const struct mxc_weights *weights,
                           struct mxc_graph *graph, struct mxc_err *err) {
    struct mxc_decoder d;
    enum mxc_code code = mxc_decoder_open(&d, graph, config, weights, NULL, err);
    if (code || (code = mxc_hyper_read_windows(config, &d.h, err)) ||
        (code = mxc_vision_sections(&d.h.rope, sections, err)))
        return code;
    d.h.qkv_bias = MXC_PRESENT;
    d.h.o_bias = d.h.mlp_bias = MXC_ABSENT;
    return mxc_decoder_run(&d, mxc_layer_llama, err);
}

static int32_t glu(const struct mxc_tower_build *t, int32_t x, int32_t residual, const char *name) {
    static const char *const modules[] = {"gate_proj", "up_proj"};
    struct mxc_linear_part parts[2];
    for (int i = 0; i < 2; i++) {
        parts[i].weight =
            mxc_graph_matrix(t->g, t->ffn, t->hidden, "%s.%s.weight", name, modules[i]);
        parts[i].bias = mxc_tower_has(t, "%s.%s.bias", name, modules[i])
                            ? mxc_graph_vector(t->g, t->ffn, "%s.%s.bias", name, modules[i])
                            : MXC_NONE;
    }
    x = mxc_graph_glu(t->g, mxc_graph_linear(t->g, x, 2, parts, 1, MXC_NONE), t->act);
    return mxc_tower_linear(t, x, t->hidden, residual, "%s.down_proj", name);
}

static int32_t block(const struct mxc_tower_build *t, const char *prefix, int32_t x, int32_t i) {
    char attn[MXC_MAX_WEIGHT_NAME], mlp[MXC_MAX_WEIGHT_NAME];
    (void)snprintf(attn, sizeof attn, "%sblocks.%d.attn", prefix, i);
    (void)snprintf(mlp, sizeof mlp, "%sblocks.%d.mlp", prefix, i);
    mxc_graph_begin_layer(t->g, i);
    x = mxc_tower_attention(t, mxc_tower_rms_norm(t, x, "%sblocks.%d.norm1", prefix, i), x, attn);
    return glu(t, mxc_tower_rms_norm(t, x, "%sblocks.%d.norm2", prefix, i), x, mlp);
}

static enum mxc_code read(const struct mxc_vision_source *source, struct mxc_tower_build *t,
                          bool *whole, struct mxc_err *err) {
    struct mxc_vision_shape *s = &source->into->shape;
    int32_t window, out, full[MAX_LAYERS] = {7, 15, 23, 31}, n_full = 4;
    const struct mxc_vision_key keys[] = {
        {"intermediate_size", &t->ffn, 3420, MAX_EXTENT},
        {"window_size", &window, 112, 1 << 14},
        {"out_hidden_size", &out, source->text_hidden, MAX_EXTENT},
    };
    enum mxc_code code = mxc_qwen_read(source, "hidden_size", t, err);
    const int32_t range[2] = {0, t->layers - 1};
    if (code || (code = mxc_vision_ints(source->vision, keys, sizeof keys / sizeof *keys, err)) ||
        (code = mxc_read_act(source->vision, "hidden_act", "silu", &t->act, err)) ||
        (code = mxc_vision_list(source->vision, "fullatt_block_indexes", range, MAX_LAYERS, full,
                                &n_full, err)))
        return code;
    if (out != source->text_hidden)
        return mxc_err_set(err, MXC_E_FORMAT, "out_hidden_size: %d is not hidden_size (%d)", out,
                           source->text_hidden);
    s->window = window / s->merge / s->patch;
    if (s->window < 1)
        return mxc_err_set(err, MXC_E_FORMAT, "window_size: %d holds no %d x %d patches", window,
                           s->merge, s->merge);
    for (int32_t i = 0; i < n_full; i++) {
        if (full[i] < t->layers)
            whole[full[i]] = true;
    }
    return MXC_OK;
}

static enum mxc_code open_tower(const struct mxc_vision_source *source, struct mxc_err *err) {
    struct mxc_tower_build t;
    struct mxc_vision_shape *s = &source->into->shape;
    const char *prefix = source->prefix;
    bool whole[MAX_LAYERS] = {false};
    enum mxc_code code = read(source, &t, whole, err);
    if (code)
        return code;
    int32_t x = mxc_tower_patches(&t, s, &s->channels_last, "%spatch_embed.proj", prefix);
    mxc_tower_rope_2d(&t, x);
    int32_t all = mxc_graph_range(t.g, x), windows = mxc_graph_range(t.g, x);
    for (int32_t i = 0; i < t.layers; i++) {
        t.range = whole[i] ? all : windows;
        x = block(&t, prefix, x, i);
    }
    mxc_graph_begin_layer(t.g, MXC_NONE);
    int32_t square = s->merge * s->merge;
    x = mxc_graph_merge(t.g, mxc_tower_rms_norm(&t, x, "%smerger.ln_q", prefix), square);
    x = mxc_tower_linear(&t, x, (int64_t)square * t.hidden, MXC_NONE, "%smerger.mlp.0", prefix);
    x = mxc_graph_act(t.g, x, MXC_ACT_GELU);
    x = mxc_tower_linear(&t, x, source->text_hidden, MXC_NONE, "%smerger.mlp.2", prefix);
    return mxc_graph_finish(t.g, mxc_graph_gather(t.g, x), err);
}

static int32_t least(int32_t a, int32_t b) {
    return a < b ? a : b;
}

/* Squares window by window: fills the order of patches, the windows' ranges, and where every square
 * of the picture has gone. */
static void order_windows(const struct mxc_vision_shape *s, int32_t down, int32_t across,
                          int32_t *order, int32_t *range, int32_t *back) {
    int32_t square = s->merge * s->merge, n = down * across * square, at = 0;
    for (int32_t y0 = 0; y0 < down; y0 += s->window)
        for (int32_t x0 = 0; x0 < across; x0 += s->window) {
            int32_t begin = at, y1 = least(y0 + s->window, down),
                    x1 = least(x0 + s->window, across);
            for (int32_t y = y0; y < y1; y++)
                for (int32_t x = x0; x < x1; x++) {
                    back[y * across + x] = at / square;
                    for (int32_t k = 0; k < square; k++)
                        order[at++] = (y * across + x) * square + k;
                }
            for (int32_t i = begin; i < at; i++) {
                range[i] = begin;
                range[n + i] = at;
            }
        }
}

static enum mxc_code feed(const struct mxc_vision *v, struct mxc_pixels *pixels,
                          struct mxc_vision_picture *picture, struct mxc_err *err) {
    int32_t n = (int32_t)pixels->plan.n_patches, square = v->shape.merge * v->shape.merge;
    int32_t *order = mxc_mem_array((size_t)n, sizeof *order);
    int32_t *range = mxc_feed_range(picture, WINDOWS, n, err);
    int32_t *back = mxc_feed_index(picture, BACK, n / square, err);
    enum mxc_code code = order && range && back ? MXC_OK : mxc_err_nomem(err);
    if (!code) {
        order_windows(&v->shape, pixels->plan.grid_thw[1] / v->shape.merge,
                      pixels->plan.grid_thw[2] / v->shape.merge, order, range, back);
        picture->input.n_rows[1] = n / square;
        code = mxc_qwen_feed(v, pixels, order, picture, err);
    }
    mxc_mem_free(order);
    return code;
}

static const char *const model_types[] = {"qwen2_5_vl", NULL};
static const char *const gguf_archs[] = {NULL};

const struct mxc_vision_family mxc_vision_qwen2_5_vl = {
    .prefixes = mxc_qwen_prefixes,
    .probe = "patch_embed.proj.weight",
    .processors = mxc_qwen_processors,
    .layout = MXC_LAYOUT_MROPE,
    .open = open_tower,
    .cost = mxc_qwen_cost,
    .feed = feed,
    .cap_pixels = true,
};

const struct mxc_family mxc_family_qwen2_5_vl = {
    .name = "qwen2_5_vl",
    .summary = "Qwen2.5-VL (pictures)",
    .notes = "as Qwen2-VL; the tower sees in windows but for fullatt_block_indexes",
    .model_types = model_types,
    .gguf_archs = gguf_archs,
    .build = build,
    .vision = &mxc_vision_qwen2_5_vl,
};
