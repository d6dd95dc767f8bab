/* Llama 3.2 Vision: the picture is fitted into a canvas of up to max_image_tiles square tiles,
 * padded with black, cut into tiles. The canvas is the one that needs the least upscaling, else the
 * least downscaling; among equals the smallest. Its shape has an id: the place of (rows, columns)
 * in the list of all shapes, from 1. Planes that no tile fills stay zero. */
#include "image/family.h"

#include <math.h>

static enum mxc_code check(const struct mxc_preprocess *p, struct mxc_err *err) {
    if (!p->do_resize)
        return mxc_err_set(err, MXC_E_UNSUPPORTED, "do_resize: false, which mllama does not have");
    if (!p->do_pad)
        return mxc_err_set(err, MXC_E_UNSUPPORTED, "do_pad: false, which mllama does not have");
    return mxc_picture_need_square(p, err);
}

static double fit(const struct mxc_picture_plan *plan, int tile, int rows, int columns) {
    double high = (double)(rows * tile) / plan->height,
           wide = (double)(columns * tile) / plan->width;
    return wide > high ? high : wide;
}

/* Fills rows and columns with the canvas of at most n tiles. */
static void choose(struct mxc_picture_plan *plan, int tile, int n) {
    double best = 0;
    for (int rows = 1; rows <= n; rows++)
        for (int columns = 1; rows * columns <= n; columns++) {
            double scale = fit(plan, tile, rows, columns);
            bool better;
            if (best == 0)
                better = true;
            else if (scale == best)
                better = rows * columns < plan->rows * plan->columns;
            else if (scale >= 1)
                better = best < 1 || scale < best;
            else
                better = best < 1 && scale > best;
            if (better) {
                best = scale;
                plan->rows = rows;
                plan->columns = columns;
            }
        }
}

static int clamp(int v, int lo, int hi) {
    return v < lo ? lo : v > hi ? hi : v;
}

static enum mxc_code plan(const struct mxc_preprocess *p, const struct mxc_pixel_budget *budget,
                          struct mxc_picture_plan *plan, struct mxc_err *err) {
    (void)err;
    int tile = p->size.height, n = p->max_image_tiles;
    if (budget->max_pixels) {
        int64_t allowed = budget->max_pixels / ((int64_t)tile * tile);
        n = allowed < 1 ? 1 : allowed < n ? (int)allowed : n;
    }
    choose(plan, tile, n);
    /* the id counts the shapes of the file's number of tiles, whatever the budget */
    plan->aspect_ratio_id = plan->columns;
    for (int rows = 1; rows < plan->rows; rows++)
        plan->aspect_ratio_id += p->max_image_tiles / rows;
    int target_w = clamp(plan->width, tile, plan->columns * tile);
    int target_h = clamp(plan->height, tile, plan->rows * tile);
    double scale_h = (double)target_h / plan->height, scale_w = (double)target_w / plan->width;
    if (scale_w < scale_h) {
        double h = floor(plan->height * scale_w);
        plan->resized_width = target_w;
        plan->resized_height = h < 1 ? 1 : h > target_h ? target_h : (int)h;
    } else {
        double w = floor(plan->width * scale_h);
        plan->resized_height = target_h;
        plan->resized_width = w < 1 ? 1 : w > target_w ? target_w : (int)w;
    }
    plan->n_planes = p->max_image_tiles;
    plan->n_tiles = plan->rows * plan->columns;
    plan->plane_width = plan->plane_height = tile;
    return MXC_OK;
}

static enum mxc_code run(const struct mxc_preprocess *p, const struct mxc_image *image,
                         const struct mxc_picture_plan *plan, float *data, struct mxc_err *err) {
    static const uint8_t black[3] = {0};
    struct mxc_image resized, canvas;
    int tile = plan->plane_width;
    enum mxc_code code = mxc_image_resize(image, plan->resized_width, plan->resized_height,
                                          p->resample, &resized, err);
    if (code)
        return code;
    code =
        mxc_image_cut(&resized, 0, 0, plan->columns * tile, plan->rows * tile, black, &canvas, err);
    mxc_image_fini(&resized);
    if (code)
        return code;
    for (int i = 0; i < plan->n_tiles; i++) {
        const struct mxc_rect rect = {i % plan->columns * tile, i / plan->columns * tile, tile,
                                      tile};
        mxc_pixels_planes(&canvas, &rect, &p->levels,
                          data + (size_t)i * 3 * (size_t)tile * (size_t)tile);
    }
    mxc_image_fini(&canvas);
    return MXC_OK;
}

const struct mxc_picture_family mxc_picture_mllama = {
    .name = "mllama",
    .types = {"MllamaImageProcessor"},
    .model_types = {"mllama"},
    .int_is_square = true,
    .defaults = {.do_resize = true,
                 .do_pad = true,
                 .resample = MXC_FILTER_BILINEAR,
                 .size = {.height = 224, .width = 224},
                 .max_image_tiles = 4,
                 .rule = MXC_HALF_LEVELS},
    .check = check,
    .plan = plan,
    .run = run,
};
