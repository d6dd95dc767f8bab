/* What the towers of Qwen2-VL, Qwen2.5-VL and Qwen3-VL share: any size of picture, patch rows in
 * squares that the merger joins, rotation by row and column, one merged row per prompt token.
 * In: vision_config and pixels. Out: checked sizes, costs, input arrays. Index 0 of their graphs is
 * the position (row and column), range 0 all rows of the picture. */
#include "base/mem.h"
#include "models/vision_family.h"

#include <string.h>

enum { MAX_LAYERS = 1024, MAX_EXTENT = 1 << 20, MAX_PATCH = 1 << 10, MAX_MERGE = 16 };

const char *const mxc_qwen_prefixes[] = {"visual.", "model.visual.", "vision_tower.",
                                         "model.vision_tower.", NULL};
const char *const mxc_qwen_processors[] = {"qwen2_vl", NULL};

enum mxc_code mxc_qwen_read(const struct mxc_vision_source *source, const char *hidden_key,
                            struct mxc_tower_build *t, struct mxc_err *err) {
    const json_t *vision = source->vision;
    struct mxc_vision_shape *s = &source->into->shape;
    int32_t channels;
    const struct mxc_vision_key keys[] = {
        {hidden_key, &t->hidden, 0, MAX_EXTENT},
        {"depth", &t->layers, 0, MAX_LAYERS},
        {"num_heads", &t->heads, 16, MAX_EXTENT},
        {"patch_size", &s->patch, 0, MAX_PATCH},
        {"temporal_patch_size", &s->temporal, 2, 16},
        {"spatial_merge_size", &s->merge, 2, MAX_MERGE},
        {json_object_get(vision, "in_channels") ? "in_channels" : "in_chans", &channels, 3, 16},
    };
    enum mxc_code code = mxc_vision_ints(vision, keys, sizeof keys / sizeof *keys, err);
    if (code)
        return code;
    if (channels != 3)
        return mxc_err_set(err, MXC_E_UNSUPPORTED, "in_channels: %d is not supported (3 is)",
                           channels);
    if (t->hidden % t->heads)
        return mxc_err_set(err, MXC_E_FORMAT, "num_heads: %d does not divide %s (%d)", t->heads,
                           hidden_key, t->hidden);
    t->theta = 1e4;
    if ((code = mxc_json_get_real(json_object_get(vision, "rope_parameters"), "rope_theta",
                                  &t->theta, err)))
        return mxc_err_context(err, "rope_parameters");
    t->g = source->into->tower;
    t->weights = source->weights;
    t->eps = 1e-6f;
    return MXC_OK;
}

void mxc_qwen_cost(const struct mxc_vision *v, const struct mxc_picture_plan *plan,
                   struct mxc_vision_cost *cost) {
    cost->n_patches = plan->n_patches;
    cost->n_features = (int32_t)(plan->n_patches / (v->shape.merge * v->shape.merge));
    cost->n_tokens = cost->n_features + 2; /* the template's start and end */
}

/* [3][time][y][x] of a patch as the planner has it, to [time][y][x][3]. */
static void channels_last(const struct mxc_vision_shape *s, const float *from, float *to) {
    size_t n = (size_t)s->temporal * (size_t)s->patch * (size_t)s->patch;
    for (size_t c = 0; c < 3; c++)
        for (size_t i = 0; i < n; i++)
            to[i * 3 + c] = from[c * n + i];
}

static enum mxc_code feed_rows(const struct mxc_vision *v, struct mxc_pixels *pixels,
                               const int32_t *order, struct mxc_vision_picture *picture,
                               struct mxc_err *err) {
    size_t width = (size_t)pixels->plan.patch_values;
    int32_t n = (int32_t)pixels->plan.n_patches;
    if (!order && !v->shape.channels_last) {
        picture->input.rows = pixels->data;
        picture->input.n_rows[0] = n;
        pixels->data = NULL;
        return MXC_OK;
    }
    float *rows = mxc_feed_rows(picture, n, (int64_t)width, err);
    if (!rows)
        return MXC_E_NOMEM;
    for (int32_t i = 0; i < n; i++) {
        const float *from = pixels->data + (size_t)(order ? order[i] : i) * width;
        if (v->shape.channels_last)
            channels_last(&v->shape, from, rows + (size_t)i * width);
        else
            memcpy(rows + (size_t)i * width, from, width * sizeof *rows);
    }
    return MXC_OK;
}

enum mxc_code mxc_qwen_feed(const struct mxc_vision *v, struct mxc_pixels *pixels,
                            const int32_t *order, struct mxc_vision_picture *picture,
                            struct mxc_err *err) {
    int32_t n = (int32_t)pixels->plan.n_patches;
    enum mxc_code code = feed_rows(v, pixels, order, picture, err);
    if (code)
        return code;
    int32_t *position = mxc_feed_index(picture, 0, 2 * (int64_t)n, err);
    int32_t *range = mxc_feed_range(picture, 0, n, err);
    if (!position || !range)
        return MXC_E_NOMEM;
    for (int i = 0; i < 3; i++)
        picture->grid[i] = pixels->plan.grid_thw[i];
    for (int32_t i = 0; i < n; i++) {
        struct mxc_cell cell =
            mxc_feed_cell(order ? order[i] : i, picture->grid[2], v->shape.merge);
        position[i] = cell.y;
        position[n + i] = cell.x;
        range[i] = 0;
        range[n + i] = n;
    }
    return MXC_OK;
}
