/* Gemma 3 with pictures: the text model of gemma3_text.c behind a SigLIP tower. A square of the
 * tower's rows becomes their mean, an RMS norm of 1 + w and a matrix that is stored transposed make
 * a token of it. Rows come in square by square, so that a square is a stretch of rows. A picture's
 * tokens see each other both ways. With pan and scan, crops follow the picture.
 * In: a config and the names of the weights. Out: both graphs. */
#include "models/families.h"
#include "models/vision_family.h"

#include <math.h>

static enum mxc_code build(const struct mxc_config *config, const struct mxc_weights *weights,
                           struct mxc_graph *graph, struct mxc_err *err) {
    return mxc_vision_text_build(config, weights, "gemma3_text", graph, err);
}

static enum mxc_code read_square(const struct mxc_vision_source *source, struct mxc_err *err) {
    struct mxc_vision_shape *s = &source->into->shape;
    int32_t tokens, side;
    const struct mxc_vision_key key = {"mm_tokens_per_image", &tokens, 256, 1 << 16};
    enum mxc_code code = mxc_vision_ints(source->config->root, &key, 1, err);
    if (code)
        return code;
    side = (int32_t)sqrt((double)tokens);
    if (side * side != tokens || s->table % side)
        return mxc_err_set(err, MXC_E_FORMAT,
                           "mm_tokens_per_image: %d is no square that divides %d x %d patches",
                           tokens, s->table, s->table);
    s->merge = s->table / side;
    return MXC_OK;
}

static enum mxc_code open_tower(const struct mxc_vision_source *source, struct mxc_err *err) {
    struct mxc_encoder e;
    enum mxc_code code;
    if ((code = mxc_encoder_read(source, "siglip_vision_model", &e, err)) ||
        (code = read_square(source, err)))
        return code;
    struct mxc_graph *g = e.t.g;
    int64_t hidden = e.t.hidden, out = source->text_hidden;
    const char *projector =
        mxc_tower_has(&e.t, "model.multi_modal_projector.mm_soft_emb_norm.weight")
            ? "model.multi_modal_projector"
            : "multi_modal_projector";
    const struct mxc_weight matrix = {.role = MXC_W_MATRIX, .n_dims = 2, .shape = {out, hidden}};
    const struct mxc_weight_view view = {
        .n_dims = 2, .shape = {hidden, out}, .col_step = 1, .transposed = true};
    int32_t x = mxc_encoder_build(&e, -1, NULL);
    x = mxc_tower_layer_norm(&e.t, x, "%spost_layernorm", source->prefix);
    x = mxc_graph_mean_rows(g, x, e.shape->merge * e.shape->merge);
    int32_t w = mxc_graph_vector(g, hidden, "%s.mm_soft_emb_norm.weight", projector);
    x = mxc_graph_rms_norm(g, x, w, e.t.eps, 1);
    struct mxc_linear_part p = {
        mxc_graph_view(g, &matrix, &view, "%s.mm_input_projection_weight", projector), MXC_NONE};
    return mxc_graph_finish(g, mxc_graph_linear(g, x, 1, &p, 1, MXC_NONE), err);
}

static void cost(const struct mxc_vision *v, const struct mxc_picture_plan *plan,
                 struct mxc_vision_cost *c) {
    int32_t rows = v->shape.table * v->shape.table, tokens = rows / v->shape.merge / v->shape.merge;
    c->n_patches = (int64_t)rows * plan->n_tiles;
    c->n_features = tokens * plan->n_tiles;
    c->n_tokens = c->n_features + 4 * plan->n_tiles; /* start and end, lines around */
}

static enum mxc_code feed(const struct mxc_vision *v, struct mxc_pixels *pixels,
                          struct mxc_vision_picture *picture, struct mxc_err *err) {
    return mxc_feed_planes(v, pixels, picture, err);
}

static void full_sequence(const char *mark, struct mxc_buf *out) {
    (void)mxc_buf_printf(out, "\n\n%s<end_of_image>\n\n", mark);
}

/* As the reference's processor words it. */
static void mark_text(const struct mxc_vision *v, const struct mxc_vision_picture *picture,
                      const char *mark, struct mxc_buf *out) {
    (void)v;
    if (picture->cost.n_tiles == 1) {
        full_sequence(mark, out);
        return;
    }
    (void)mxc_buf_puts(out, "Here is the original image ");
    full_sequence(mark, out);
    (void)mxc_buf_puts(out, " and here are some crops to help you see better ");
    for (int32_t i = 1; i < picture->cost.n_tiles; i++) {
        (void)mxc_buf_puts(out, i > 1 ? " " : "");
        full_sequence(mark, out);
    }
}

static const char *const prefixes[] = {"vision_tower.vision_model.",
                                       "model.vision_tower.vision_model.", "vision_tower.",
                                       "model.vision_tower.", NULL};
static const char *const processors[] = {"gemma3", NULL};
static const char *const model_types[] = {"gemma3", NULL};
static const char *const gguf_archs[] = {NULL};

const struct mxc_vision_family mxc_vision_gemma3 = {
    .prefixes = prefixes,
    .probe = "embeddings.patch_embedding.weight",
    .processors = processors,
    .layout = MXC_LAYOUT_BOTH_WAYS,
    .mark_per_tile = true,
    .open = open_tower,
    .cost = cost,
    .feed = feed,
    .mark_text = mark_text,
};

const struct mxc_family mxc_family_gemma3 = {
    .name = "gemma3",
    .summary = "Gemma 3 (4B, 12B, 27B; pictures)",
    .notes = "a picture is mm_tokens_per_image tokens that see each other both ways",
    .model_types = model_types,
    .gguf_archs = gguf_archs,
    .build = build,
    .vision = &mxc_vision_gemma3,
};
