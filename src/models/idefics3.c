/* Idefics3 and SmolVLM: a Llama behind a SigLIP-like tower. A picture is cut into tiles, followed
 * by the whole of it; every tile is seen by itself. Squares of rows (scale_factor on each side)
 * stand side by side and go through one matrix. Rows come in square by square, so that a square is
 * a stretch of rows. Marks name every tile's row and column. In: a config and the names of the
 * weights. Out: both graphs. */
#include "models/families.h"
#include "models/vision_family.h"

static enum mxc_code build(const struct mxc_config *config, const struct mxc_weights *weights,
                           struct mxc_graph *graph, struct mxc_err *err) {
    return mxc_vision_text_build(config, weights, "llama", graph, err);
}

static enum mxc_code open_tower(const struct mxc_vision_source *source, struct mxc_err *err) {
    struct mxc_encoder e;
    enum mxc_code code = mxc_encoder_read(source, "idefics3_vision", &e, err);
    if (code)
        return code;
    const struct mxc_vision_key key = {"scale_factor", &e.shape->merge, 2, 16};
    if ((code = mxc_vision_ints(source->config->root, &key, 1, err)))
        return code;
    const char *projection = mxc_tower_has(&e.t, "connector.modality_projection.proj.weight")
                                 ? "connector.modality_projection.proj"
                                 : "model.connector.modality_projection.proj";
    int32_t x = mxc_encoder_build(&e, -1, NULL);
    x = mxc_tower_layer_norm(&e.t, x, "%spost_layernorm", source->prefix);
    x = mxc_graph_merge(e.t.g, x, e.shape->merge * e.shape->merge);
    x = mxc_tower_linear(&e.t, x, source->text_hidden, MXC_NONE, "%s", projection);
    return mxc_graph_finish(e.t.g, x, err);
}

static void cost(const struct mxc_vision *v, const struct mxc_picture_plan *plan,
                 struct mxc_vision_cost *c) {
    int32_t rows = plan->plane_width / v->shape.patch * (plan->plane_height / v->shape.patch);
    c->n_patches = (int64_t)rows * plan->n_tiles;
    c->n_features = rows / (v->shape.merge * v->shape.merge) * plan->n_tiles;
    /* two marks before every tile, a line's end after every row of them, one mark at the end */
    c->n_tokens = c->n_features + 2 * plan->n_tiles + plan->rows + 2;
}

static enum mxc_code feed(const struct mxc_vision *v, struct mxc_pixels *pixels,
                          struct mxc_vision_picture *picture, struct mxc_err *err) {
    picture->grid[0] = 1;
    picture->grid[1] = pixels->plan.rows;
    picture->grid[2] = pixels->plan.columns;
    return mxc_feed_planes(v, pixels, picture, err);
}

/* As the reference's processor words it. */
static void mark_text(const struct mxc_vision *v, const struct mxc_vision_picture *picture,
                      const char *mark, struct mxc_buf *out) {
    static const char *const around = "<fake_token_around_image>";
    (void)v;
    for (int32_t y = 0; y < picture->grid[1]; y++) {
        for (int32_t x = 0; x < picture->grid[2]; x++)
            (void)mxc_buf_printf(out, "%s<row_%d_col_%d>%s", around, y + 1, x + 1, mark);
        (void)mxc_buf_putc(out, '\n');
    }
    (void)mxc_buf_printf(out, "%s%s<global-img>%s%s", picture->grid[1] ? "\n" : "", around, mark,
                         around);
}

static const char *const prefixes[] = {"model.vision_model.", "vision_model.", "vision_tower.",
                                       "model.vision_tower.", NULL};
static const char *const processors[] = {"idefics3", NULL};
static const char *const model_types[] = {"idefics3", "smolvlm", NULL};
static const char *const gguf_archs[] = {NULL};

const struct mxc_vision_family mxc_vision_idefics3 = {
    .prefixes = prefixes,
    .probe = "embeddings.patch_embedding.weight",
    .processors = processors,
    .layout = MXC_LAYOUT_PLAIN,
    .mark_per_tile = true,
    .open = open_tower,
    .cost = cost,
    .feed = feed,
    .mark_text = mark_text,
    .cap_pixels = true,
};

const struct mxc_family mxc_family_idefics3 = {
    .name = "idefics3",
    .summary = "Idefics3, SmolVLM (pictures)",
    .notes = "pictures in tiles, named by row and column, and the whole after them",
    .model_types = model_types,
    .gguf_archs = gguf_archs,
    .build = build,
    .vision = &mxc_vision_idefics3,
};
