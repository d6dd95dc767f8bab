/* From 8-bit RGB to what a vision tower takes: numbers in float32, in the order of the family. The
 * 256 values of a channel are computed once, in numpy's steps: float32(float64(v) * rescale), then
 * (that - mean) / std in float32. */
#ifndef MXC_IMAGE_PIXELS_H
#define MXC_IMAGE_PIXELS_H

#include "image/decode.h"

#include <stdbool.h>

struct mxc_levels {
    float value[3][256];
};

/* Rescale and normalise, each only when its flag is set. */
struct mxc_level_rule {
    bool rescale, normalise;
    double factor, mean[3], std[3];
};
void mxc_levels_init(struct mxc_levels *levels, const struct mxc_level_rule *rule);

/* The rectangle [top, top + height) x [left, left + width) of image, which lies inside, as
 * out: [3, height, width]. */
struct mxc_rect {
    int left, top, width, height;
};
void mxc_pixels_planes(const struct mxc_image *image, const struct mxc_rect *rect,
                       const struct mxc_levels *levels, float *out);

/* Patch rows as Qwen2-VL's processor orders them: blocks of merge x merge patches, row by row, and
 * within a row channel, time (one picture repeated temporal times), y, x.
 * out: [(h / patch) * (w / patch), 3 * temporal * patch * patch]; the sides are multiples of
 * patch * merge. */
struct mxc_patching {
    int patch, merge, temporal;
};
void mxc_pixels_patches(const struct mxc_image *image, const struct mxc_patching *patching,
                        const struct mxc_levels *levels, float *out);

#endif
