/* CLIP, LLaVA and SigLIP: one plane of a fixed size. CLIP scales the shortest edge and cuts the
 * centre; SigLIP stretches both sides; LLaVA's own processor may pad to a square first. */
#include "image/family.h"

#include <math.h>

static enum mxc_code check(const struct mxc_preprocess *p, struct mxc_err *err) {
    if (p->do_resize && !p->size.shortest_edge && !(p->size.height && p->size.width))
        return mxc_err_set(err, MXC_E_FORMAT, "size: neither shortest_edge nor height and width");
    if (p->do_resize && p->size.shortest_edge && p->size.longest_edge)
        return mxc_err_set(err, MXC_E_UNSUPPORTED,
                           "size: shortest_edge together with longest_edge");
    if (p->do_center_crop && !(p->crop_size.height && p->crop_size.width))
        return mxc_err_set(err, MXC_E_FORMAT, "crop_size: without height and width");
    if (!p->do_center_crop && (!p->do_resize || !(p->size.height && p->size.width)))
        return mxc_err_set(err, MXC_E_UNSUPPORTED,
                           "size: leaves planes of different sizes, which needs do_center_crop");
    return MXC_OK;
}

static bool pads(const struct mxc_preprocess *p) {
    return p->family == &mxc_picture_llava && p->do_pad;
}

static enum mxc_code plan(const struct mxc_preprocess *p, const struct mxc_pixel_budget *budget,
                          struct mxc_picture_plan *plan, struct mxc_err *err) {
    (void)budget;
    int w = plan->width, h = plan->height;
    if (pads(p))
        w = h = w > h ? w : h;
    double wide = w, high = h;
    if (p->do_resize && p->size.shortest_edge) {
        double shortest = p->size.shortest_edge;
        wide = w <= h ? shortest : floor(shortest * w / h);
        high = w <= h ? floor(shortest * h / w) : shortest;
    } else if (p->do_resize) {
        wide = p->size.width;
        high = p->size.height;
    }
    if (wide > INT32_MAX || high > INT32_MAX)
        return mxc_err_set(err, MXC_E_LIMIT, "a picture of %d x %d pixels is too long and thin",
                           plan->width, plan->height);
    plan->resized_width = (int)wide;
    plan->resized_height = (int)high;
    plan->n_planes = plan->n_tiles = 1;
    plan->plane_width = p->do_center_crop ? p->crop_size.width : plan->resized_width;
    plan->plane_height = p->do_center_crop ? p->crop_size.height : plan->resized_height;
    return MXC_OK;
}

/* floor((whole - part) / 2), also where the part is larger. */
static int centre(int whole, int part) {
    int d = whole - part;
    return d >= 0 ? d / 2 : -((1 - d) / 2);
}

/* Resizes and cuts in one step: of a long and thin picture most would be thrown away. */
static enum mxc_code resize_centre(const struct mxc_preprocess *p, const struct mxc_image *image,
                                   const struct mxc_picture_plan *plan, struct mxc_image *out,
                                   struct mxc_err *err) {
    static const uint8_t black[3] = {0};
    int w = plan->resized_width, h = plan->resized_height;
    int left = centre(w, plan->plane_width), top = centre(h, plan->plane_height);
    struct mxc_resize r = {.whole_width = w,
                           .whole_height = h,
                           .left = left > 0 ? left : 0,
                           .top = top > 0 ? top : 0,
                           .width = w < plan->plane_width ? w : plan->plane_width,
                           .height = h < plan->plane_height ? h : plan->plane_height,
                           .filter = p->resample};
    struct mxc_image part;
    enum mxc_code code = mxc_image_resize_part(image, &r, &part, err);
    if (code)
        return code;
    if (left >= 0 && top >= 0) {
        *out = part;
        return MXC_OK;
    }
    code = mxc_image_cut(&part, left < 0 ? left : 0, top < 0 ? top : 0, plan->plane_width,
                         plan->plane_height, black, out, err);
    mxc_image_fini(&part);
    return code;
}

static enum mxc_code run(const struct mxc_preprocess *p, const struct mxc_image *image,
                         const struct mxc_picture_plan *plan, float *data, struct mxc_err *err) {
    struct mxc_image square = {0}, cut;
    if (pads(p) && image->width != image->height) {
        int side = image->width > image->height ? image->width : image->height;
        uint8_t colour[3];
        for (int c = 0; c < 3; c++) {
            double v = p->rule.mean[c] * 255;
            colour[c] = (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
        }
        enum mxc_code code =
            mxc_image_cut(image, -((side - image->width) / 2), -((side - image->height) / 2), side,
                          side, colour, &square, err);
        if (code)
            return code;
        image = &square;
    }
    enum mxc_code code = resize_centre(p, image, plan, &cut, err);
    mxc_image_fini(&square);
    if (code)
        return code;
    const struct mxc_rect all = {0, 0, cut.width, cut.height};
    mxc_pixels_planes(&cut, &all, &p->levels, data);
    mxc_image_fini(&cut);
    return MXC_OK;
}

#define CROPPED                                                                                    \
    {                                                                                              \
        .do_resize = true, .do_center_crop = true, .resample = MXC_FILTER_BICUBIC,                 \
        .size = {.shortest_edge = 224}, .crop_size = {.height = 224, .width = 224},                \
        .rule = MXC_CLIP_LEVELS                                                                    \
    }

const struct mxc_picture_family mxc_picture_clip = {
    .name = "clip",
    .types = {"CLIPImageProcessor"},
    .model_types = {"llava", "clip"},
    .defaults = CROPPED,
    .check = check,
    .plan = plan,
    .run = run,
};

const struct mxc_picture_family mxc_picture_llava = {
    .name = "llava",
    .types = {"LlavaImageProcessor"},
    .defaults = CROPPED,
    .check = check,
    .plan = plan,
    .run = run,
};

const struct mxc_picture_family mxc_picture_siglip = {
    .name = "siglip",
    .types = {"SiglipImageProcessor"},
    .model_types = {"siglip"},
    .int_is_square = true,
    .defaults = {.do_resize = true,
                 .resample = MXC_FILTER_BICUBIC,
                 .size = {.height = 224, .width = 224},
                 .rule = MXC_HALF_LEVELS},
    .check = check,
    .plan = plan,
    .run = run,
};
