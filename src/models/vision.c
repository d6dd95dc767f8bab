/* Vision: opening what a checkpoint sees with, and what is the same for all families: the
 * processor's file against the config, costs, preparing pictures, and the digest that caches go by.
 * In: config, preprocessor file, tensors. Out: a tower's graph whose every weight exists, and
 * pictures ready for it. Errors name config.json or the processor's file, and what in it. */
#include "base/blake2b.h"
#include "base/mem.h"
#include "models/vision_family.h"

#include <stdio.h>
#include <string.h>

enum { MAX_MARK_TEXT = 1 << 20 };
static const int64_t cap_pixels = 1 << 20;

/* The prefix under which the checkpoint has the family's tower; NULL: it has none. */
static const char *tower_prefix(const struct mxc_vision_family *family,
                                const struct mxc_weights *weights) {
    char name[MXC_MAX_WEIGHT_NAME];
    for (const char *const *p = family->prefixes; *p; p++) {
        (void)snprintf(name, sizeof name, "%s%s", *p, family->probe);
        if (mxc_weights_find(weights, name))
            return *p;
    }
    return NULL;
}

/* The id stands in the config under an old or a new key. */
static enum mxc_code read_token(const struct mxc_config *config, const char *stem, int32_t *out,
                                struct mxc_err *err) {
    static const char *const ends[] = {"_id", "_index"};
    char key[64];
    int64_t id = -1;
    for (size_t i = 0; i < 2 && id < 0; i++) {
        (void)snprintf(key, sizeof key, "%s%s", stem, ends[i]);
        enum mxc_code code = mxc_json_get_int(config->root, key, 0, INT32_MAX, &id, err);
        if (code)
            return code;
    }
    if (id < 0)
        return mxc_err_set(err, MXC_E_FORMAT, "%s_id: missing", stem);
    *out = (int32_t)id;
    return MXC_OK;
}

static enum mxc_code read_tokens(struct mxc_vision *v, const struct mxc_config *config,
                                 struct mxc_err *err) {
    enum mxc_code code = read_token(config, "image_token", &v->image_token, err);
    v->mark_token = v->image_token;
    if (code || v->family->layout != MXC_LAYOUT_BOTH_WAYS)
        return code;
    code = read_token(config, "boi_token", &v->mark_token, err);
    return code ? code : read_token(config, "eoi_token", &v->shape.end_token, err);
}

/* The processor makes what the tower takes: checked with a picture of some size. */
static enum mxc_code check_processor(const struct mxc_vision *v, struct mxc_err *err) {
    const struct mxc_vision_shape *s = &v->shape;
    const char *name = mxc_preprocess_family(&v->pre);
    const char *const *known = v->family->processors;
    struct mxc_picture_plan plan;
    while (*known && strcmp(*known, name))
        known++;
    if (!*known)
        return mxc_err_set(err, MXC_E_UNSUPPORTED,
                           "image_processor_type: a processor of %s does not go with %s", name,
                           v->name);
    enum mxc_code code = mxc_picture_plan_init(&v->pre, 256, 256, NULL, &plan, err);
    if (code)
        return code;
    if (plan.n_patches) {
        if (v->pre.patch_size != s->patch || v->pre.temporal_patch_size != s->temporal ||
            v->pre.merge_size != s->merge)
            return mxc_err_set(err, MXC_E_FORMAT,
                               "patch_size, temporal_patch_size, merge_size: %d, %d, %d, where "
                               "vision_config has %d, %d, %d",
                               v->pre.patch_size, v->pre.temporal_patch_size, v->pre.merge_size,
                               s->patch, s->temporal, s->merge);
        return MXC_OK;
    }
    int32_t step = s->patch * s->merge;
    bool any = v->family == &mxc_vision_idefics3; /* any size within the position table */
    if (any ? plan.plane_width % step || plan.plane_height % step ||
                  plan.plane_width != plan.plane_height || plan.plane_width > s->image
            : plan.plane_width != s->image || plan.plane_height != s->image)
        return mxc_err_set(err, MXC_E_FORMAT,
                           "size: planes of %d x %d pixels, where vision_config's image_size is %d "
                           "(patch_size %d)",
                           plan.plane_width, plan.plane_height, s->image, s->patch);
    if (s->tiles && plan.n_planes != s->tiles)
        return mxc_err_set(err, MXC_E_FORMAT,
                           "max_image_tiles: %d, where vision_config's max_num_tiles is %d",
                           plan.n_planes, s->tiles);
    return MXC_OK;
}

static enum mxc_code read_text_hidden(const struct mxc_vision *v, const struct mxc_config *config,
                                      int32_t *hidden, struct mxc_err *err) {
    const struct mxc_vision_key key = {"hidden_size", hidden, 0, 1 << 20};
    const char *type = v->family == &mxc_vision_gemma3   ? "gemma3_text"
                       : v->family == &mxc_vision_mllama ? "mllama_text_model"
                                                         : "llama";
    json_t *text = mxc_vision_text_config(config, type);
    if (!text)
        return mxc_err_nomem(err);
    enum mxc_code code = mxc_vision_ints(text, &key, 1, err);
    json_decref(text);
    return code;
}

static enum mxc_code open_tower(struct mxc_vision *v, const struct mxc_config *config,
                                const struct mxc_weights *weights, struct mxc_err *err) {
    struct mxc_vision_source source = {.config = config,
                                       .vision = json_object_get(config->root, "vision_config"),
                                       .weights = weights,
                                       .prefix = tower_prefix(v->family, weights),
                                       .into = v};
    enum mxc_code code;
    if ((code = read_tokens(v, config, err)) ||
        (code = read_text_hidden(v, config, &source.text_hidden, err)) ||
        (code = mxc_graph_new(v->name, &v->tower, err)))
        return code;
    if ((code = v->family->open(&source, err)))
        return code;
    return mxc_models_check_weights(v->tower, weights, err);
}

enum mxc_code mxc_vision_open(const char *path, const struct mxc_config *config,
                              const struct mxc_weights *weights, struct mxc_vision **vision,
                              struct mxc_err *err) {
    const struct mxc_family *family;
    enum mxc_code code = mxc_family_find(config, &family, err);
    if (code)
        return code;
    if (!family->vision || config->from_gguf ||
        !json_is_object(json_object_get(config->root, "vision_config")) ||
        !tower_prefix(family->vision, weights)) {
        *vision = NULL;
        return MXC_OK;
    }
    struct mxc_vision *v = mxc_mem_zalloc(1, sizeof *v);
    if (!v)
        return mxc_err_nomem(err);
    v->family = family->vision;
    v->name = family->name;
    code = open_tower(v, config, weights, err);
    if (code) {
        if (code != MXC_E_NOMEM)
            (void)mxc_err_context(err, "config.json: vision");
        goto out;
    }
    if ((code = mxc_preprocess_load(path, config->model_type, &v->pre, err)))
        goto out;
    if ((code = check_processor(v, err))) {
        (void)mxc_err_context(err, "preprocessor_config.json or processor_config.json");
        goto out;
    }
    *vision = v;
    v = NULL;
out:
    mxc_vision_close(v);
    return code;
}

void mxc_vision_close(struct mxc_vision *vision) {
    if (!vision)
        return;
    mxc_graph_free(vision->tower);
    mxc_mem_free(vision);
}

const struct mxc_graph *mxc_vision_tower(const struct mxc_vision *vision) {
    return vision->tower;
}

int32_t mxc_vision_image_token(const struct mxc_vision *vision) {
    return vision->mark_token;
}

int64_t mxc_vision_limit(const struct mxc_vision *vision, int64_t max_pixels) {
    const struct mxc_preprocess *p = &vision->pre;
    if (!vision->family->cap_pixels)
        return max_pixels;
    int64_t most = vision->family == &mxc_vision_idefics3
                       ? (int64_t)p->size.longest_edge * p->size.longest_edge
                       : p->max_pixels;
    return most < max_pixels ? most : max_pixels;
}

void mxc_vision_default_budget(const struct mxc_vision *vision, struct mxc_vision_budget *budget) {
    *budget = (struct mxc_vision_budget){0};
    if (vision->family->cap_pixels && mxc_vision_limit(vision, INT64_MAX) > cap_pixels)
        budget->max_pixels = cap_pixels;
}

/* ---- pictures */

static enum mxc_code cost_of(const struct mxc_vision *v, const struct mxc_picture_plan *plan,
                             struct mxc_vision_cost *cost, struct mxc_err *err) {
    bool planes = plan->n_planes > 0;
    *cost = (struct mxc_vision_cost){.width = planes ? plan->plane_width : plan->resized_width,
                                     .height = planes ? plan->plane_height : plan->resized_height,
                                     .n_tiles = planes ? plan->n_tiles : 1};
    v->family->cost(v, plan, cost);
    /* indices and ranges are [terms][rows]: room for four terms in 32 bits */
    return cost->n_patches > INT32_MAX / 8
               ? mxc_err_set(err, MXC_E_LIMIT, "a picture of %d x %d pixels is %lld patches",
                             plan->width, plan->height, (long long)cost->n_patches)
               : MXC_OK;
}

static struct mxc_pixel_budget budget_of(const struct mxc_vision_budget *budget) {
    return budget ? (struct mxc_pixel_budget){budget->min_pixels, budget->max_pixels}
                  : (struct mxc_pixel_budget){0, 0};
}

enum mxc_code mxc_vision_measure(const struct mxc_vision *vision, int32_t width, int32_t height,
                                 const struct mxc_vision_budget *budget,
                                 struct mxc_vision_cost *cost, struct mxc_err *err) {
    struct mxc_pixel_budget pixels = budget_of(budget);
    struct mxc_picture_plan plan;
    enum mxc_code code = mxc_picture_plan_init(&vision->pre, width, height, &pixels, &plan, err);
    return code ? code : cost_of(vision, &plan, cost, err);
}

static void hash_int(struct mxc_blake2b *state, int64_t n) {
    uint8_t bytes[8];
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)((uint64_t)n >> 8 * i);
    mxc_blake2b_add(state, bytes, sizeof bytes);
}

/* What the input follows from: the picture's pixels, or the rows where they are fewer bytes, and
 * all that was decided about it. The processor's settings are the model's. */
static void take_digest(const struct mxc_vision *v, const struct mxc_image *image,
                        struct mxc_vision_picture *p) {
    struct mxc_blake2b state;
    size_t width = (size_t)v->tower->values[v->tower->input].width;
    size_t rows = (size_t)p->input.n_rows[0] * width * sizeof *p->input.rows;
    size_t pixels = (size_t)image->width * (size_t)image->height * 3;
    const int64_t facts[] = {p->cost.width, p->cost.height, p->cost.n_tiles, p->cost.n_patches,
                             p->grid[0],    p->grid[1],     p->grid[2],      p->aspect,
                             image->width,  image->height,  pixels < rows};
    mxc_blake2b_init(&state);
    mxc_blake2b_add(&state, v->name, strlen(v->name) + 1);
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++)
        hash_int(&state, facts[i]);
    if (pixels < rows)
        mxc_blake2b_add(&state, image->rgb, pixels);
    else
        mxc_blake2b_add(&state, p->input.rows, rows);
    mxc_blake2b_end(&state, p->digest);
}

enum mxc_code mxc_vision_prepare(const struct mxc_vision *vision, const struct mxc_image *image,
                                 const struct mxc_vision_budget *budget,
                                 struct mxc_vision_picture *picture, struct mxc_err *err) {
    struct mxc_pixel_budget asked = budget_of(budget);
    struct mxc_vision_picture p = {.aspect = 0};
    struct mxc_pixels pixels;
    enum mxc_code code =
        mxc_vision_measure(vision, image->width, image->height, budget, &p.cost, err);
    if (code || (code = mxc_pixels_init(&vision->pre, image, &asked, &pixels, err)))
        return code;
    code = vision->family->feed(vision, &pixels, &p, err);
    mxc_pixels_fini(&pixels);
    if (code) {
        mxc_vision_picture_fini(&p);
        return code;
    }
    take_digest(vision, image, &p);
    *picture = p;
    return MXC_OK;
}

void mxc_vision_picture_fini(struct mxc_vision_picture *picture) {
    struct mxc_tower_input *in = &picture->input;
    mxc_mem_free((void *)in->rows);
    for (int i = 0; i < MXC_MAX_INDICES; i++) {
        mxc_mem_free((void *)in->index[i]);
        mxc_mem_free((void *)in->factor[i]);
    }
    for (int i = 0; i < MXC_MAX_RANGES; i++)
        mxc_mem_free((void *)in->range[i]);
    *picture = (struct mxc_vision_picture){.aspect = 0};
}

enum mxc_code mxc_vision_mark_text(const struct mxc_vision *vision,
                                   const struct mxc_vision_picture *picture, const char *mark,
                                   char **text, struct mxc_err *err) {
    if (!vision->family->mark_text) {
        *text = NULL;
        return MXC_OK;
    }
    struct mxc_buf out;
    mxc_buf_init(&out, MAX_MARK_TEXT);
    vision->family->mark_text(vision, picture, mark, &out);
    enum mxc_code code = mxc_buf_status(&out, err);
    char *taken = code ? NULL : mxc_buf_take(&out);
    mxc_buf_fini(&out);
    if (code)
        return code;
    if (!taken)
        return mxc_err_nomem(err);
    *text = taken;
    return MXC_OK;
}
