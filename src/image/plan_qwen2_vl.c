/* Qwen2-VL, Qwen2.5-VL, Qwen3-VL: any size, both sides multiples of patch * merge, the number of
 * pixels within bounds, the sides' ratio at most 200. Out come patch rows in blocks that the merger
 * joins. */
#include "image/family.h"

#include <math.h>

enum { MAX_RATIO = 200 };

static enum mxc_code check(const struct mxc_preprocess *p, struct mxc_err *err) {
    if (p->min_pixels > p->max_pixels)
        return mxc_err_set(err, MXC_E_FORMAT, "min_pixels: %lld is above max_pixels",
                           (long long)p->min_pixels);
    return MXC_OK;
}

/* A side as a multiple of factor. floor and ceil of the scaled sides as the reference divides. */
static enum mxc_code smart_resize(int width, int height, int factor, int64_t min_pixels,
                                  int64_t max_pixels, double out[2], struct mxc_err *err) {
    int small = width < height ? width : height, large = width < height ? height : width;
    if ((double)large / small > MAX_RATIO)
        return mxc_err_set(err, MXC_E_ARG,
                           "a picture of %d x %d pixels: the sides' ratio is above %d", width,
                           height, MAX_RATIO);
    double f = factor, w = rint(width / f) * f, h = rint(height / f) * f;
    double area = (double)width * height;
    if (h * w > (double)max_pixels) {
        double beta = sqrt(area / (double)max_pixels);
        h = fmax(f, floor(height / beta / f) * f);
        w = fmax(f, floor(width / beta / f) * f);
    } else if (h * w < (double)min_pixels) {
        double beta = sqrt((double)min_pixels / area);
        h = ceil(height * beta / f) * f;
        w = ceil(width * beta / f) * f;
    }
    out[0] = w;
    out[1] = h;
    return MXC_OK;
}

static enum mxc_code plan(const struct mxc_preprocess *p, const struct mxc_pixel_budget *budget,
                          struct mxc_picture_plan *plan, struct mxc_err *err) {
    int factor = p->patch_size * p->merge_size;
    int64_t lo = p->min_pixels, hi = p->max_pixels;
    double side[2] = {plan->width, plan->height};
    if (budget->min_pixels)
        lo = budget->min_pixels;
    if (budget->max_pixels)
        hi = budget->max_pixels;
    lo = lo > hi ? hi : lo;
    if (p->do_resize) {
        enum mxc_code code = smart_resize(plan->width, plan->height, factor, lo, hi, side, err);
        if (code)
            return code;
    }
    if (side[0] > MXC_IMAGE_MAX_SIDE || side[1] > MXC_IMAGE_MAX_SIDE)
        return mxc_err_set(err, MXC_E_LIMIT, "a picture of %d x %d pixels becomes %.0f x %.0f",
                           plan->width, plan->height, side[0], side[1]);
    plan->resized_width = (int)side[0];
    plan->resized_height = (int)side[1];
    if (plan->resized_width < 1 || plan->resized_height < 1 || plan->resized_width % factor ||
        plan->resized_height % factor)
        return mxc_err_set(err, MXC_E_ARG,
                           "a picture of %d x %d pixels: its sides are no multiples of %d",
                           plan->width, plan->height, factor);
    plan->grid_thw[0] = 1;
    plan->grid_thw[1] = plan->resized_height / p->patch_size;
    plan->grid_thw[2] = plan->resized_width / p->patch_size;
    plan->n_patches = (int64_t)plan->grid_thw[1] * plan->grid_thw[2];
    plan->patch_values = (int64_t)3 * p->temporal_patch_size * p->patch_size * p->patch_size;
    return MXC_OK;
}

static enum mxc_code run(const struct mxc_preprocess *p, const struct mxc_image *image,
                         const struct mxc_picture_plan *plan, float *data, struct mxc_err *err) {
    const struct mxc_patching patching = {p->patch_size, p->merge_size, p->temporal_patch_size};
    struct mxc_image resized;
    enum mxc_code code = mxc_image_resize(image, plan->resized_width, plan->resized_height,
                                          p->resample, &resized, err);
    if (code)
        return code;
    mxc_pixels_patches(&resized, &patching, &p->levels, data);
    mxc_image_fini(&resized);
    return MXC_OK;
}

const struct mxc_picture_family mxc_picture_qwen2_vl = {
    .name = "qwen2_vl",
    .types = {"Qwen2VLImageProcessor", "Qwen2_5_VLImageProcessor", "Qwen2_5VLImageProcessor",
              "Qwen3VLImageProcessor"},
    .model_types = {"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"},
    .defaults = {.do_resize = true,
                 .resample = MXC_FILTER_BICUBIC,
                 .min_pixels = 56 * 56,
                 .max_pixels = 28 * 28 * 1280,
                 .patch_size = 14,
                 .temporal_patch_size = 2,
                 .merge_size = 2,
                 .rule = MXC_CLIP_LEVELS},
    .check = check,
    .plan = plan,
    .run = run,
};
