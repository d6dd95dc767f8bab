/* Gemma 3: one plane of a fixed size; with pan and scan, a picture that is much longer than wide
 * (or the other way round) is followed by crops along its longer side, each stretched to the same
 * size. */
#include "image/family.h"

#include <math.h>

static enum mxc_code check(const struct mxc_preprocess *p, struct mxc_err *err) {
    if (!p->do_resize)
        return mxc_err_set(err, MXC_E_UNSUPPORTED,
                           "do_resize: false, but the tower takes one size");
    if (p->do_pan_and_scan &&
        (!p->pan_min_crop_size || !p->pan_max_crops || !(p->pan_min_ratio > 0)))
        return mxc_err_set(err, MXC_E_FORMAT,
                           "do_pan_and_scan: without pan_and_scan_min_crop_size, "
                           "pan_and_scan_max_num_crops and pan_and_scan_min_ratio_to_activate");
    if (!(p->size.height && p->size.width))
        return mxc_err_set(err, MXC_E_FORMAT, "size: without height and width");
    return MXC_OK;
}

/* Crops along the longer side; 0: none. */
static int crops(const struct mxc_preprocess *p, int longer, int shorter, int most) {
    double ratio = (double)longer / shorter;
    if (ratio < p->pan_min_ratio)
        return 0;
    int fitting = longer / p->pan_min_crop_size;
    double n = floor(ratio + 0.5);
    n = n < fitting ? n : fitting;
    n = n < 2 ? 2 : n;
    int count = n < most ? (int)n : most;
    double step = ceil((double)longer / count);
    return (step < shorter ? step : shorter) < p->pan_min_crop_size ? 0 : count;
}

static enum mxc_code plan(const struct mxc_preprocess *p, const struct mxc_pixel_budget *budget,
                          struct mxc_picture_plan *plan, struct mxc_err *err) {
    int n = 0, most = p->pan_max_crops;
    if (budget->max_pixels) {
        int64_t planes = budget->max_pixels / ((int64_t)p->size.height * p->size.width);
        most = planes < 2 ? 0 : planes - 1 < most ? (int)(planes - 1) : most;
    }
    if (p->do_pan_and_scan && most > 0) {
        bool wide = plan->width >= plan->height;
        int longer = wide ? plan->width : plan->height;
        n = crops(p, longer, wide ? plan->height : plan->width, most);
        /* crops are rounded up, so that of very few pixels the last one would be empty */
        if (n && (longer + n - 1) / n * (n - 1) >= longer)
            return mxc_err_set(err, MXC_E_ARG, "a picture of %d x %d pixels gives an empty crop",
                               plan->width, plan->height);
        plan->rows = !n ? 0 : wide ? 1 : n;
        plan->columns = !n ? 0 : wide ? n : 1;
    }
    plan->resized_width = plan->plane_width = p->size.width;
    plan->resized_height = plan->plane_height = p->size.height;
    plan->n_planes = plan->n_tiles = n + 1;
    return MXC_OK;
}

static enum mxc_code run(const struct mxc_preprocess *p, const struct mxc_image *image,
                         const struct mxc_picture_plan *plan, float *data, struct mxc_err *err) {
    static const uint8_t black[3] = {0};
    enum mxc_code code = mxc_picture_fixed(p, image, plan, 0, data, err);
    int n = plan->n_planes - 1;
    int step_x = n ? (image->width + plan->columns - 1) / plan->columns : 0;
    int step_y = n ? (image->height + plan->rows - 1) / plan->rows : 0;
    for (int i = 0; !code && i < n; i++) {
        int left = i % plan->columns * step_x, top = i / plan->columns * step_y;
        int w = image->width - left < step_x ? image->width - left : step_x;
        int h = image->height - top < step_y ? image->height - top : step_y;
        struct mxc_image crop;
        code = mxc_image_cut(image, left, top, w, h, black, &crop, err);
        if (code)
            return code;
        code = mxc_picture_fixed(p, &crop, plan, i + 1, data, err);
        mxc_image_fini(&crop);
    }
    return code;
}

const struct mxc_picture_family mxc_picture_gemma3 = {
    .name = "gemma3",
    .types = {"Gemma3ImageProcessor"},
    .model_types = {"gemma3"},
    .int_is_square = true,
    .defaults = {.do_resize = true,
                 .resample = MXC_FILTER_BILINEAR,
                 .size = {.height = 224, .width = 224},
                 .rule = MXC_HALF_LEVELS},
    .check = check,
    .plan = plan,
    .run = run,
};
