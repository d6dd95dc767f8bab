/* LLaVA: a language model of another family behind a CLIP or SigLIP tower. Features are the rows of
 * a layer before the last (vision_feature_layer; several stand side by side), without the class's
 * row where vision_feature_select_strategy is "default", through two linears.
 * In: a config and the names of the weights. Out: both graphs. */
#include "base/mem.h"
#include "models/families.h"
#include "models/vision_family.h"

#include <string.h>

enum { AFTER_DROP = 1 /* slot */ };

static enum mxc_code build(const struct mxc_config *config, const struct mxc_weights *weights,
                           struct mxc_graph *graph, struct mxc_err *err) {
    return mxc_vision_text_build(config, weights, "llama", graph, err);
}

/* Numbers of layers whose output is taken; 0: the input of the first. */
static enum mxc_code read_layers(const struct mxc_config *config, int32_t n_layers, int32_t *layers,
                                 int32_t *n, struct mxc_err *err) {
    const char *key = "vision_feature_layer";
    const json_t *given = json_object_get(config->root, key);
    const int32_t range[2] = {-n_layers - 1, n_layers};
    int64_t one = -2;
    enum mxc_code code = MXC_OK;
    *n = 1;
    if (json_is_array(given))
        code = mxc_vision_list(config->root, key, range, MXC_MAX_IN, layers, n, err);
    else if (!(code = mxc_json_get_int(config->root, key, range[0], range[1], &one, err)))
        layers[0] = (int32_t)one;
    if (!code && *n < 1)
        code = mxc_err_set(err, MXC_E_FORMAT, "%s: empty", key);
    for (int32_t i = 0; !code && i < *n; i++)
        layers[i] += layers[i] < 0 ? n_layers + 1 : 0;
    return code;
}

static enum mxc_code read_strategy(const struct mxc_config *config, bool *drop,
                                   struct mxc_err *err) {
    const char *key = "vision_feature_select_strategy", *name = "default";
    enum mxc_code code = mxc_json_get_string(config->root, key, &name, err);
    if (code)
        return code;
    *drop = !strcmp(name, "default");
    return *drop || !strcmp(name, "full")
               ? MXC_OK
               : mxc_err_set(err, MXC_E_UNSUPPORTED,
                             "%s: \"%.40s\" is not supported (\"default\" and \"full\" are)", key,
                             name);
}

static const char *projector(const struct mxc_tower_build *t) {
    return mxc_tower_has(t, "model.multi_modal_projector.linear_1.weight")
               ? "model.multi_modal_projector"
               : "multi_modal_projector";
}

static enum mxc_code write_tower(const struct mxc_vision_source *source, struct mxc_encoder *e,
                                 enum mxc_act act, int32_t *values, struct mxc_err *err) {
    struct mxc_graph *g = e->t.g;
    int32_t layers[MXC_MAX_IN], parts[MXC_MAX_IN], n, deepest = 0;
    enum mxc_code code = read_layers(source->config, e->t.layers, layers, &n, err);
    if (code)
        return code;
    for (int32_t i = 0; i < n; i++)
        deepest = layers[i] > deepest ? layers[i] : deepest;
    (void)mxc_encoder_build(e, deepest, values);
    for (int32_t i = 0; i < n; i++)
        parts[i] = values[layers[i]];
    int32_t x = n > 1 ? mxc_graph_concat(g, n, parts, false) : parts[0];
    if (e->shape->drop_first)
        x = mxc_graph_gather(g, x);
    x = mxc_tower_linear(&e->t, x, source->text_hidden, MXC_NONE, "%s.linear_1", projector(&e->t));
    x = mxc_graph_act(g, x, act);
    x = mxc_tower_linear(&e->t, x, source->text_hidden, MXC_NONE, "%s.linear_2", projector(&e->t));
    return mxc_graph_finish(g, x, err);
}

static enum mxc_code open_tower(const struct mxc_vision_source *source, struct mxc_err *err) {
    struct mxc_encoder e;
    enum mxc_act act;
    enum mxc_code code;
    if ((code = mxc_encoder_read(source, "clip_vision_model", &e, err)) ||
        (code = read_strategy(source->config, &e.shape->drop_first, err)) ||
        (code = mxc_read_act(source->config->root, "projector_hidden_act", "gelu", &act, err)))
        return code;
    int32_t *values = mxc_mem_zalloc((size_t)e.t.layers + 1, sizeof *values);
    if (!values)
        return mxc_err_nomem(err);
    code = write_tower(source, &e, act, values, err);
    mxc_mem_free(values);
    return code;
}

static int32_t plane_rows(const struct mxc_vision *v) {
    return v->shape.table * v->shape.table + v->shape.class_row;
}

static void cost(const struct mxc_vision *v, const struct mxc_picture_plan *plan,
                 struct mxc_vision_cost *c) {
    (void)plan;
    c->n_patches = plane_rows(v);
    c->n_features = plane_rows(v) - v->shape.drop_first;
    c->n_tokens = c->n_features;
}

static enum mxc_code feed(const struct mxc_vision *v, struct mxc_pixels *pixels,
                          struct mxc_vision_picture *picture, struct mxc_err *err) {
    enum mxc_code code = mxc_feed_planes(v, pixels, picture, err);
    if (code || !v->shape.drop_first)
        return code;
    int32_t n = plane_rows(v) - 1;
    int32_t *index = mxc_feed_index(picture, v->tower->n_indices - 1, n, err);
    if (!index)
        return MXC_E_NOMEM;
    for (int32_t i = 0; i < n; i++)
        index[i] = i + 1;
    picture->input.n_rows[AFTER_DROP] = n;
    return MXC_OK;
}

static const char *const prefixes[] = {"vision_tower.vision_model.",
                                       "model.vision_tower.vision_model.", "vision_tower.",
                                       "model.vision_tower.", NULL};
static const char *const processors[] = {"clip", "llava", "siglip", NULL};
static const char *const model_types[] = {"llava", NULL};
static const char *const gguf_archs[] = {NULL};

const struct mxc_vision_family mxc_vision_llava = {
    .prefixes = prefixes,
    .probe = "embeddings.patch_embedding.weight",
    .processors = processors,
    .layout = MXC_LAYOUT_PLAIN,
    .open = open_tower,
    .cost = cost,
    .feed = feed,
};

const struct mxc_family mxc_family_llava = {
    .name = "llava",
    .summary = "LLaVA 1.5 with a CLIP or SigLIP tower (pictures)",
    .notes = "text_config names the language model; vision_feature_layer and -_select_strategy",
    .model_types = model_types,
    .gguf_archs = gguf_archs,
    .build = build,
    .vision = &mxc_vision_llava,
};
