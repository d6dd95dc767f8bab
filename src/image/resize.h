/* Resampling and cutting of 8-bit RGB, equal to Pillow's to the last bit: filters stretched when
 * shrinking (antialiasing), coefficients of 22 fractional bits, a horizontal pass rounded to 8
 * bits, then a vertical one. Any level of the CPU gives the same bytes. Pure functions. */
#ifndef MXC_IMAGE_RESIZE_H
#define MXC_IMAGE_RESIZE_H

#include "image/decode.h"

/* Pillow's numbers, which is what "resample" in preprocessor_config.json holds. */
enum mxc_filter {
    MXC_FILTER_NEAREST,
    MXC_FILTER_LANCZOS,
    MXC_FILTER_BILINEAR,
    MXC_FILTER_BICUBIC,
    MXC_FILTER_BOX,
    MXC_FILTER_HAMMING,
    MXC_N_FILTERS
};

/* A new picture of width x height; both between 1 and MXC_IMAGE_MAX_SIDE, else MXC_E_ARG. */
enum mxc_code mxc_image_resize(const struct mxc_image *from, int width, int height,
                               enum mxc_filter filter, struct mxc_image *to,
                               struct mxc_err *err) MXC_MUST;
/* Only the columns [left, left + width) and rows [top, top + height) of what a resize to
 * whole_width x whole_height gives: the same bytes, without the cost of the rest. The part lies
 * inside the whole; its sides are bounded as above. */
struct mxc_resize {
    int whole_width, whole_height, left, top, width, height;
    enum mxc_filter filter;
};
enum mxc_code mxc_image_resize_part(const struct mxc_image *from, const struct mxc_resize *resize,
                                    struct mxc_image *to, struct mxc_err *err) MXC_MUST;
/* The rectangle of width x height at (left, top) as a new picture. It may reach beyond the picture
 * on any side; there it has the colour. Crops, centre crops (left = floor((w - width) / 2)) and
 * padding are this. */
enum mxc_code mxc_image_cut(const struct mxc_image *from, int left, int top, int width, int height,
                            const uint8_t colour[3], struct mxc_image *to,
                            struct mxc_err *err) MXC_MUST;

#endif
