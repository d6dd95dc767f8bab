/* Idefics3 and SmolVLM: the longest edge is scaled, both sides go up to whole tiles, the picture is
 * cut into tiles row by row, and the whole picture follows as one more tile. Without splitting it
 * is one square tile. Three resizes in a row, as the reference has it. */
#include "image/family.h"

#include <math.h>

/* the reference's bound of a side, whatever size says */
enum { MAX_SIDE = 4096 };

static enum mxc_code check(const struct mxc_preprocess *p, struct mxc_err *err) {
    if (p->do_resize && !p->size.longest_edge && !(p->size.height && p->size.width))
        return mxc_err_set(err, MXC_E_FORMAT, "size: neither longest_edge nor height and width");
    if (!p->max_image_size.longest_edge)
        return mxc_err_set(err, MXC_E_FORMAT, "max_image_size: without longest_edge");
    return MXC_OK;
}

/* The size of the first resize: to the longest edge, the other side even, within MAX_SIDE. */
static void scale_edge(int longest, int *w, int *h) {
    double aspect = (double)*w / *h;
    if (*w >= *h) {
        *w = longest;
        *h = (int)(*w / aspect);
        *h += *h & 1;
    } else {
        *h = longest;
        *w = (int)(*h * aspect);
        *w += *w & 1;
    }
    *w = *w < 1 ? 1 : *w;
    *h = *h < 1 ? 1 : *h;
    aspect = (double)*w / *h;
    if (*w >= *h && *w > MAX_SIDE) {
        *w = MAX_SIDE;
        *h = (int)(*w / aspect);
    } else if (*h > *w && *h > MAX_SIDE) {
        *h = MAX_SIDE;
        *w = (int)(*h * aspect);
    }
    *w = *w < 1 ? 1 : *w;
    *h = *h < 1 ? 1 : *h;
}

static double up_to(double side, double tile) {
    return ceil(side / tile) * tile;
}

static void first_size(const struct mxc_preprocess *p, const struct mxc_pixel_budget *budget,
                       int *w, int *h) {
    int tile = p->max_image_size.longest_edge, longest = p->size.longest_edge;
    if (!p->do_resize)
        return;
    if (!longest) {
        *w = p->size.width;
        *h = p->size.height;
        return;
    }
    if (budget->max_pixels) {
        double side = floor(sqrt((double)budget->max_pixels) / tile) * tile;
        longest = side < tile      ? (tile < longest ? tile : longest)
                  : side < longest ? (int)side
                                   : longest;
    }
    scale_edge(longest, w, h);
}

static enum mxc_code plan(const struct mxc_preprocess *p, const struct mxc_pixel_budget *budget,
                          struct mxc_picture_plan *plan, struct mxc_err *err) {
    int tile = p->max_image_size.longest_edge, w = plan->width, h = plan->height;
    first_size(p, budget, &w, &h);
    plan->resized_width = w;
    plan->resized_height = h;
    plan->plane_width = plan->plane_height = tile;
    plan->n_planes = plan->n_tiles = 1;
    if (!p->do_image_splitting)
        return MXC_OK;
    double aspect = (double)w / h, wide, high;
    if (w >= h) {
        wide = up_to(w, tile);
        high = up_to(trunc(wide / aspect), tile);
    } else {
        high = up_to(h, tile);
        wide = up_to(trunc(high * aspect), tile);
    }
    /* a side of less than one pixel before it goes up to a tile would be none */
    wide = wide < tile ? tile : wide;
    high = high < tile ? tile : high;
    double tiles = wide / tile * (high / tile);
    if (tiles > 4096)
        return mxc_err_set(err, MXC_E_LIMIT, "a picture of %d x %d pixels becomes %.0f tiles",
                           plan->width, plan->height, tiles);
    if (tiles > 1) {
        plan->rows = (int)(high / tile);
        plan->columns = (int)(wide / tile);
        plan->n_planes = plan->n_tiles = plan->rows * plan->columns + 1;
    }
    return MXC_OK;
}

static enum mxc_code run(const struct mxc_preprocess *p, const struct mxc_image *image,
                         const struct mxc_picture_plan *plan, float *data, struct mxc_err *err) {
    struct mxc_image resized, tiled, whole;
    int tile = plan->plane_width;
    size_t plane = 3 * (size_t)tile * (size_t)tile;
    int columns = plan->columns ? plan->columns : 1, rows = plan->rows ? plan->rows : 1;
    enum mxc_code code = mxc_image_resize(image, plan->resized_width, plan->resized_height,
                                          p->resample, &resized, err);
    if (code)
        return code;
    code = mxc_image_resize(&resized, columns * tile, rows * tile, p->resample, &tiled, err);
    mxc_image_fini(&resized);
    if (code)
        return code;
    for (int i = 0; i < rows * columns; i++, data += plane) {
        const struct mxc_rect rect = {i % columns * tile, i / columns * tile, tile, tile};
        mxc_pixels_planes(&tiled, &rect, &p->levels, data);
    }
    if (plan->rows) {
        const struct mxc_rect all = {0, 0, tile, tile};
        code = mxc_image_resize(&tiled, tile, tile, p->resample, &whole, err);
        if (!code) {
            mxc_pixels_planes(&whole, &all, &p->levels, data);
            mxc_image_fini(&whole);
        }
    }
    mxc_image_fini(&tiled);
    return code;
}

const struct mxc_picture_family mxc_picture_idefics3 = {
    .name = "idefics3",
    .types = {"Idefics3ImageProcessor", "SmolVLMImageProcessor"},
    .model_types = {"idefics3", "smolvlm"},
    .defaults = {.do_resize = true,
                 .do_pad = true,
                 .do_image_splitting = true,
                 .resample = MXC_FILTER_LANCZOS,
                 .size = {.longest_edge = 4 * 364},
                 .max_image_size = {.longest_edge = 364},
                 .rule = MXC_HALF_LEVELS},
    .check = check,
    .plan = plan,
    .run = run,
};
