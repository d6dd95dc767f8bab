/* Qwen2-VL. Text: Qwen2 with rotation on three position axes (M-RoPE). Tower: patches of two equal
 * frames, layer norms, one attention over the whole picture, and a merger that joins 2 x 2 rows.
 * In: a config and the names of the weights. Out: both graphs. */
#include "models/families.h"
#include "models/vision_family.h"

#include <math.h>
#include <stdio.h>

static const int sections[MXC_MAX_ROPE_AXES] = {16, 24, 24};

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

static int32_t block(const struct mxc_tower_build *t, const char *prefix, int32_t x, int32_t i) {
    char name[3][MXC_MAX_WEIGHT_NAME];
    static const char *const modules[] = {"attn", "mlp.fc1", "mlp.fc2"};
    for (int k = 0; k < 3; k++)
        (void)snprintf(name[k], sizeof name[k], "%sblocks.%d.%s", prefix, i, modules[k]);
    mxc_graph_begin_layer(t->g, i);
    int32_t y = mxc_tower_layer_norm(t, x, "%sblocks.%d.norm1", prefix, i);
    x = mxc_tower_attention(t, y, x, name[0]);
    y = mxc_tower_layer_norm(t, x, "%sblocks.%d.norm2", prefix, i);
    return mxc_tower_mlp(t, y, x, name[1], name[2]);
}

static enum mxc_code open_tower(const struct mxc_vision_source *source, struct mxc_err *err) {
    struct mxc_tower_build t;
    struct mxc_vision_shape *s = &source->into->shape;
    const char *prefix = source->prefix;
    double ratio = 4;
    enum mxc_code code;
    if ((code = mxc_qwen_read(source, "embed_dim", &t, err)) ||
        (code = mxc_json_get_real(source->vision, "mlp_ratio", &ratio, err)) ||
        (code = mxc_read_act(source->vision, "hidden_act", "quick_gelu", &t.act, err)))
        return code;
    if (!(ratio > 0) || !(ratio * t.hidden < 1 << 24) || ratio * t.hidden < 1)
        return mxc_err_set(err, MXC_E_FORMAT, "mlp_ratio: %g is out of range", ratio);
    t.ffn = (int32_t)floor(ratio * t.hidden);
    int32_t x = mxc_tower_patches(&t, s, &s->channels_last, "%spatch_embed.proj", prefix);
    mxc_tower_rope_2d(&t, x);
    t.range = mxc_graph_range(t.g, x);
    for (int32_t i = 0; i < t.layers; i++)
        x = block(&t, prefix, x, i);
    mxc_graph_begin_layer(t.g, MXC_NONE);
    int32_t square = s->merge * s->merge;
    x = mxc_graph_merge(t.g, mxc_tower_layer_norm(&t, x, "%smerger.ln_q", prefix), square);
    x = mxc_tower_linear(&t, x, (int64_t)square * t.hidden, MXC_NONE, "%smerger.mlp.0", prefix);
    x = mxc_graph_act(t.g, x, MXC_ACT_GELU);
    x = mxc_tower_linear(&t, x, source->text_hidden, MXC_NONE, "%smerger.mlp.2", prefix);
    return mxc_graph_finish(t.g, x, err);
}

static enum mxc_code feed(const struct mxc_vision *v, struct mxc_pixels *pixels,
                          struct mxc_vision_picture *picture, struct mxc_err *err) {
    return mxc_qwen_feed(v, pixels, NULL, picture, err);
}

static const char *const model_types[] = {"qwen2_vl", NULL};
static const char *const gguf_archs[] = {NULL};

const struct mxc_vision_family mxc_vision_qwen2_vl = {
    .prefixes = mxc_qwen_prefixes,
    .probe = "patch_embed.proj.weight",
    .processors = mxc_qwen_processors,
    .layout = MXC_LAYOUT_MROPE,
    .open = open_tower,
    .cost = mxc_qwen_cost,
    .feed = feed,
    .cap_pixels = true,
};

const struct mxc_family mxc_family_qwen2_vl = {
    .name = "qwen2_vl",
    .summary = "Qwen2-VL (pictures)",
    .notes = "rotation on three position axes; pictures of any size, 2 x 2 patches a token",
    .model_types = model_types,
    .gguf_archs = gguf_archs,
    .build = build,
    .vision = &mxc_vision_qwen2_vl,
};
