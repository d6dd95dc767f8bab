/* Pictures to float planes and patch rows, through a table of the 256 levels of each channel. */
#include "image/pixels.h"

#include <string.h>

void mxc_levels_init(struct mxc_levels *levels, const struct mxc_level_rule *rule) {
    for (int c = 0; c < 3; c++) {
        const float mean = (float)rule->mean[c], std = (float)rule->std[c];
        for (int v = 0; v < 256; v++) {
            float x = rule->rescale ? (float)((double)v * rule->factor) : (float)v;
            levels->value[c][v] = rule->normalise ? (x - mean) / std : x;
        }
    }
}

void mxc_pixels_planes(const struct mxc_image *image, const struct mxc_rect *rect,
                       const struct mxc_levels *levels, float *out) {
    size_t width = (size_t)rect->width, plane = width * (size_t)rect->height;
    for (size_t y = 0; y < (size_t)rect->height; y++) {
        const uint8_t *in =
            image->rgb + (((size_t)rect->top + y) * (size_t)image->width + (size_t)rect->left) * 3;
        float *r = out + y * width, *g = r + plane, *b = g + plane;
        for (size_t x = 0; x < width; x++, in += 3) {
            r[x] = levels->value[0][in[0]];
            g[x] = levels->value[1][in[1]];
            b[x] = levels->value[2][in[2]];
        }
    }
}

/* One patch at in; out: [3, temporal, patch, patch]. */
static void patch_row(const uint8_t *in, size_t row_bytes, const struct mxc_patching *p,
                      const struct mxc_levels *levels, float *out) {
    size_t side = (size_t)p->patch, area = side * side;
    for (size_t c = 0; c < 3; c++) {
        float *first = out;
        for (size_t y = 0; y < side; y++)
            for (size_t x = 0; x < side; x++)
                *out++ = levels->value[c][in[y * row_bytes + x * 3 + c]];
        for (int t = 1; t < p->temporal; t++, out += area)
            memcpy(out, first, area * sizeof *out);
    }
}

void mxc_pixels_patches(const struct mxc_image *image, const struct mxc_patching *patching,
                        const struct mxc_levels *levels, float *out) {
    int patch = patching->patch, merge = patching->merge;
    int rows = image->height / patch, columns = image->width / patch;
    size_t row_bytes = (size_t)image->width * 3;
    size_t values = 3 * (size_t)patching->temporal * (size_t)patch * (size_t)patch;
    for (int y0 = 0; y0 < rows; y0 += merge)
        for (int x0 = 0; x0 < columns; x0 += merge)
            for (int i = 0; i < merge * merge; i++, out += values) {
                size_t y = (size_t)(y0 + i / merge) * (size_t)patch;
                size_t x = (size_t)(x0 + i % merge) * (size_t)patch;
                patch_row(image->rgb + y * row_bytes + x * 3, row_bytes, patching, levels, out);
            }
}
