/* Reading a model's picture settings, in the spellings of all versions of transformers, and running
 * them. Every key is optional: a family's table has the defaults of its reference processor. What a
 * key may be is checked here, which keys a family needs in its plan_*.c. */
#include "image/preprocess.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "image/family.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_FILE_BYTES = 4 << 20, MAX_EDGE = 1 << 16 };

static const struct mxc_picture_family *const families[] = {
    &mxc_picture_qwen2_vl, &mxc_picture_clip,     &mxc_picture_llava,  &mxc_picture_siglip,
    &mxc_picture_mllama,   &mxc_picture_idefics3, &mxc_picture_gemma3,
};
enum { N_FAMILIES = sizeof families / sizeof *families };

const char *mxc_preprocess_family(const struct mxc_preprocess *p) {
    return p->family->name;
}

/* ---- which family ---- */

static bool ends(const char *text, const char *suffix, size_t *length) {
    size_t n = strlen(suffix);
    if (*length <= n || memcmp(text + *length - n, suffix, n) != 0)
        return false;
    *length -= n;
    return true;
}

/* "CLIPFeatureExtractor" and "CLIPImageProcessorFast" are "CLIPImageProcessor". */
static bool same_type(const char *type, const char *known) {
    size_t n = strlen(type), m = strlen(known);
    (void)(ends(type, "Fast", &n) || ends(type, "Pil", &n));
    if (!ends(type, "ImageProcessor", &n) && !ends(type, "FeatureExtractor", &n))
        return false;
    (void)ends(known, "ImageProcessor", &m);
    return n == m && !memcmp(type, known, n);
}

static bool in_list(const char *const *list, size_t n, const char *text, bool types) {
    for (size_t i = 0; i < n && list[i]; i++)
        if (types ? same_type(text, list[i]) : !strcmp(text, list[i]))
            return true;
    return false;
}

static enum mxc_code find_family(const json_t *o, const char *model_type,
                                 const struct mxc_picture_family **family, struct mxc_err *err) {
    const char *type = NULL;
    enum mxc_code code = mxc_json_get_string(o, "image_processor_type", &type, err);
    if (!code && !type)
        code = mxc_json_get_string(o, "feature_extractor_type", &type, err);
    if (code)
        return code;
    for (size_t i = 0; i < N_FAMILIES; i++) {
        const struct mxc_picture_family *f = families[i];
        if (type ? in_list(f->types, sizeof f->types / sizeof *f->types, type, true)
                 : model_type &&
                       in_list(f->model_types, sizeof f->model_types / sizeof *f->model_types,
                               model_type, false)) {
            *family = f;
            return MXC_OK;
        }
    }
    if (!type)
        return mxc_err_set(err, MXC_E_FORMAT,
                           "image_processor_type: missing, and model_type \"%s\" "
                           "does not tell",
                           model_type ? model_type : "");
    return mxc_err_set(
        err, MXC_E_UNSUPPORTED,
        "image_processor_type: \"%s\" is not supported; Qwen2VL, Qwen3VL, CLIP, Llava, "
        "Siglip, Mllama, Idefics3, SmolVLM and Gemma3 are",
        type);
}

/* ---- values ---- */

static enum mxc_code get_int(const json_t *o, const char *key, int max, int *out,
                             struct mxc_err *err) {
    int64_t v = *out;
    enum mxc_code code = mxc_json_get_int(o, key, 1, max, &v, err);
    if (!code)
        *out = (int)v;
    return code;
}

/* A number for all channels, or three. */
static enum mxc_code get_channels(const json_t *o, const char *key, double out[3],
                                  struct mxc_err *err) {
    const json_t *v = json_object_get(o, key);
    if (!v || json_is_null(v))
        return MXC_OK;
    if (json_is_number(v)) {
        out[0] = out[1] = out[2] = json_number_value(v);
        return MXC_OK;
    }
    if (json_array_size(v) != 3)
        return mxc_err_set(err, MXC_E_FORMAT, "%s: not three numbers", key);
    for (size_t c = 0; c < 3; c++) {
        const json_t *e = json_array_get(v, c);
        if (!json_is_number(e))
            return mxc_err_set(err, MXC_E_FORMAT, "%s: not three numbers", key);
        out[c] = json_number_value(e);
    }
    return MXC_OK;
}

/* An int, [height, width], or an object. pixels: bounds of pixels that an object may hold, in two
 * spellings (Qwen); NULL: none, and edges are sides. */
static enum mxc_code get_size(const json_t *o, const char *key, bool int_is_square,
                              struct mxc_picture_size *out, int64_t *pixels, struct mxc_err *err) {
    const json_t *v = json_object_get(o, key);
    struct mxc_picture_size s = {0};
    enum mxc_code code = MXC_OK;
    if (!v || json_is_null(v))
        return MXC_OK;
    if (json_is_object(v) && pixels) {
        code = mxc_json_get_int(v, "min_pixels", 1, INT64_C(1) << 40, &pixels[0], err);
        if (!code)
            code = mxc_json_get_int(v, "max_pixels", 1, INT64_C(1) << 40, &pixels[1], err);
        if (!code)
            code = mxc_json_get_int(v, "shortest_edge", 1, INT64_C(1) << 40, &pixels[0], err);
        if (!code)
            code = mxc_json_get_int(v, "longest_edge", 1, INT64_C(1) << 40, &pixels[1], err);
    } else if (json_is_object(v)) {
        code = get_int(v, "height", MAX_EDGE, &s.height, err);
        if (!code)
            code = get_int(v, "width", MAX_EDGE, &s.width, err);
        if (!code)
            code = get_int(v, "shortest_edge", MAX_EDGE, &s.shortest_edge, err);
        if (!code)
            code = get_int(v, "longest_edge", MAX_EDGE, &s.longest_edge, err);
        if (!code && !s.height != !s.width)
            return mxc_err_set(err, MXC_E_FORMAT, "%s: height and width go together", key);
        if (!code && !s.height && !s.shortest_edge && !s.longest_edge)
            return mxc_err_set(err, MXC_E_FORMAT, "%s: no key that is known", key);
    } else if (json_array_size(v) == 2) {
        json_t *pair =
            json_pack("{sOsO}", "height", json_array_get(v, 0), "width", json_array_get(v, 1));
        if (!pair)
            return mxc_err_nomem(err);
        code = get_int(pair, "height", MAX_EDGE, &s.height, err);
        if (!code)
            code = get_int(pair, "width", MAX_EDGE, &s.width, err);
        json_decref(pair);
    } else if (json_is_number(v)) {
        int side = 0;
        code = get_int(o, key, MAX_EDGE, &side, err);
        if (code)
            return code;
        if (int_is_square)
            s.height = s.width = side;
        else
            s.shortest_edge = side;
    } else {
        return mxc_err_set(err, MXC_E_FORMAT, "%s: neither a number nor an object", key);
    }
    if (code)
        return mxc_err_context(err, "%s", key);
    if (!pixels)
        *out = s;
    return MXC_OK;
}

static enum mxc_code get_flags(const json_t *o, struct mxc_preprocess *p, struct mxc_err *err) {
    const struct {
        const char *key;
        bool *flag;
    } flags[] = {
        {"do_resize", &p->do_resize},
        {"do_center_crop", &p->do_center_crop},
        {"do_rescale", &p->rule.rescale},
        {"do_normalize", &p->rule.normalise},
        {"do_pad", &p->do_pad},
        {"do_image_splitting", &p->do_image_splitting},
        {"do_pan_and_scan", &p->do_pan_and_scan},
    };
    enum mxc_code code = MXC_OK;
    for (size_t i = 0; !code && i < sizeof flags / sizeof *flags; i++)
        code = mxc_json_get_bool(o, flags[i].key, flags[i].flag, err);
    return code;
}

static enum mxc_code get_numbers(const json_t *o, struct mxc_preprocess *p, struct mxc_err *err) {
    const struct {
        const char *key;
        int max, *out;
    } numbers[] = {
        {"patch_size", 1024, &p->patch_size},
        {"temporal_patch_size", 16, &p->temporal_patch_size},
        {"merge_size", 64, &p->merge_size},
        {"max_image_tiles", 256, &p->max_image_tiles},
        {"pan_and_scan_min_crop_size", MAX_EDGE, &p->pan_min_crop_size},
        {"pan_and_scan_max_num_crops", 256, &p->pan_max_crops},
    };
    int64_t resample = p->resample;
    enum mxc_code code = MXC_OK;
    for (size_t i = 0; !code && i < sizeof numbers / sizeof *numbers; i++)
        code = get_int(o, numbers[i].key, numbers[i].max, numbers[i].out, err);
    if (!code)
        code = mxc_json_get_int(o, "resample", 0, MXC_N_FILTERS - 1, &resample, err);
    p->resample = (enum mxc_filter)resample;
    if (!code)
        code = mxc_json_get_real(o, "pan_and_scan_min_ratio_to_activate", &p->pan_min_ratio, err);
    if (!code)
        code = mxc_json_get_real(o, "rescale_factor", &p->rule.factor, err);
    if (!code)
        code = get_channels(o, "image_mean", p->rule.mean, err);
    if (!code)
        code = get_channels(o, "image_std", p->rule.std, err);
    for (int c = 0; !code && c < 3; c++)
        if (p->rule.normalise && !(fabs(p->rule.std[c]) > 1e-30))
            code = mxc_err_set(err, MXC_E_FORMAT, "image_std: %g would divide by nothing",
                               p->rule.std[c]);
    return code;
}

static enum mxc_code get_sizes(const json_t *o, struct mxc_preprocess *p, struct mxc_err *err) {
    bool qwen = p->family == &mxc_picture_qwen2_vl;
    int64_t pixels[2] = {p->min_pixels, p->max_pixels};
    enum mxc_code code =
        get_size(o, "size", p->family->int_is_square, &p->size, qwen ? pixels : NULL, err);
    if (!code)
        code = get_size(o, "crop_size", true, &p->crop_size, NULL, err);
    if (!code && json_is_number(json_object_get(o, "max_image_size")))
        code = get_int(o, "max_image_size", MAX_EDGE, &p->max_image_size.longest_edge, err);
    else if (!code)
        code = get_size(o, "max_image_size", true, &p->max_image_size, NULL, err);
    if (!code)
        code = mxc_json_get_int(o, "min_pixels", 1, INT64_C(1) << 40, &pixels[0], err);
    if (!code)
        code = mxc_json_get_int(o, "max_pixels", 1, INT64_C(1) << 40, &pixels[1], err);
    p->min_pixels = pixels[0];
    p->max_pixels = pixels[1];
    return code;
}

enum mxc_code mxc_preprocess_parse(const json_t *object, const char *model_type,
                                   struct mxc_preprocess *p, struct mxc_err *err) {
    const struct mxc_picture_family *family = NULL;
    if (!json_is_object(object))
        return mxc_err_set(err, MXC_E_FORMAT, "not an object");
    enum mxc_code code = find_family(object, model_type, &family, err);
    if (code)
        return code;
    struct mxc_preprocess read = family->defaults;
    read.family = family;
    code = get_flags(object, &read, err);
    if (!code)
        code = get_numbers(object, &read, err);
    if (!code)
        code = get_sizes(object, &read, err);
    if (!code)
        code = family->check(&read, err);
    if (code)
        return code;
    mxc_levels_init(&read.levels, &read.rule);
    *p = read;
    return MXC_OK;
}

/* *root: the object with the settings, a reference of its own; path: the file it is from. Both NULL
 * where the folder has no such file. */
static enum mxc_code load_json(const char *folder, const char *name, char **path, json_t **root,
                               struct mxc_err *err) {
    char *full = mxc_path_join(folder, name);
    if (!full)
        return mxc_err_nomem(err);
    *path = NULL;
    *root = NULL;
    if (!mxc_file_exists(full)) {
        mxc_mem_free(full);
        return MXC_OK;
    }
    enum mxc_code code = mxc_json_load(full, MAX_FILE_BYTES, root, err);
    if (code)
        mxc_mem_free(full);
    else
        *path = full;
    return code;
}

enum mxc_code mxc_preprocess_load(const char *folder, const char *model_type,
                                  struct mxc_preprocess *p, struct mxc_err *err) {
    char *path = NULL;
    json_t *root = NULL, *settings = NULL;
    enum mxc_code code = load_json(folder, "processor_config.json", &path, &root, err);
    if (code)
        return code;
    settings = json_object_get(root, "image_processor");
    if (!json_is_object(settings)) {
        json_decref(root);
        mxc_mem_free(path);
        code = load_json(folder, "preprocessor_config.json", &path, &root, err);
        if (code)
            return code;
        settings = root;
    }
    if (!root) {
        code = mxc_err_set(err, MXC_E_NOT_FOUND,
                           "%s: neither preprocessor_config.json nor an image_processor in "
                           "processor_config.json",
                           folder);
    } else {
        code = mxc_preprocess_parse(settings, model_type, p, err);
        if (code)
            (void)mxc_err_context(err, "%s", path);
    }
    json_decref(root);
    mxc_mem_free(path);
    return code;
}

/* ---- running ---- */

enum mxc_code mxc_picture_need_square(const struct mxc_preprocess *p, struct mxc_err *err) {
    if (!p->size.height || p->size.height != p->size.width)
        return mxc_err_set(err, MXC_E_FORMAT, "size: height and width must be there and equal");
    return MXC_OK;
}

enum mxc_code mxc_picture_fixed(const struct mxc_preprocess *p, const struct mxc_image *image,
                                const struct mxc_picture_plan *plan, int at, float *data,
                                struct mxc_err *err) {
    struct mxc_image resized;
    enum mxc_code code =
        mxc_image_resize(image, plan->plane_width, plan->plane_height, p->resample, &resized, err);
    if (code)
        return code;
    const struct mxc_rect all = {0, 0, plan->plane_width, plan->plane_height};
    size_t plane = 3 * (size_t)plan->plane_width * (size_t)plan->plane_height;
    mxc_pixels_planes(&resized, &all, &p->levels, data + (size_t)at * plane);
    mxc_image_fini(&resized);
    return MXC_OK;
}

enum mxc_code mxc_picture_plan_init(const struct mxc_preprocess *p, int width, int height,
                                    const struct mxc_pixel_budget *budget,
                                    struct mxc_picture_plan *plan, struct mxc_err *err) {
    static const struct mxc_pixel_budget none = {0};
    struct mxc_picture_plan made = {.width = width, .height = height};
    if (width < 1 || height < 1 || width > MXC_IMAGE_MAX_SIDE || height > MXC_IMAGE_MAX_SIDE)
        return mxc_err_set(err, MXC_E_ARG, "a picture of %d x %d pixels", width, height);
    if (!budget)
        budget = &none;
    if (budget->min_pixels < 0 || budget->max_pixels < 0)
        return mxc_err_set(err, MXC_E_ARG, "a pixel budget below zero");
    enum mxc_code code = p->family->plan(p, budget, &made, err);
    if (!code)
        *plan = made;
    return code;
}

enum mxc_code mxc_pixels_init(const struct mxc_preprocess *p, const struct mxc_image *image,
                              const struct mxc_pixel_budget *budget, struct mxc_pixels *pixels,
                              struct mxc_err *err) {
    struct mxc_pixels made = {0};
    size_t side, plane;
    enum mxc_code code =
        mxc_picture_plan_init(p, image->width, image->height, budget, &made.plan, err);
    if (code)
        return code;
    const struct mxc_picture_plan *plan = &made.plan;
    bool fits = plan->n_patches
                    ? mxc_size_mul((size_t)plan->n_patches, (size_t)plan->patch_values, &made.count)
                    : mxc_size_mul((size_t)plan->plane_width, (size_t)plan->plane_height, &side) &&
                          mxc_size_mul(side, 3, &plane) &&
                          mxc_size_mul(plane, (size_t)plan->n_planes, &made.count);
    if (fits)
        made.data = mxc_mem_zalloc(made.count, sizeof *made.data);
    if (!made.data)
        return mxc_err_nomem(err);
    code = p->family->run(p, image, plan, made.data, err);
    if (code) {
        mxc_pixels_fini(&made);
        return code;
    }
    *pixels = made;
    return MXC_OK;
}

void mxc_pixels_fini(struct mxc_pixels *pixels) {
    if (pixels) {
        mxc_mem_free(pixels->data);
        *pixels = (struct mxc_pixels){0};
    }
}
