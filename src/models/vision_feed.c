/* Feeding: prepared pixels into the arrays that a tower's graph declares. Patches become rows in
 * the order in which the tower joins them, and in the layout of its kernel. In: pixels as the image
 * planner made them. Out: arrays owned by the picture. Nothing here looks at weights. */
#include "base/mem.h"
#include "models/vision_family.h"

#include <math.h>
#include <string.h>

static void *array(int64_t n, int64_t m, size_t size, struct mxc_err *err) {
    size_t count;
    void *out = NULL;
    if (n >= 0 && m >= 0 && mxc_size_mul((size_t)n, (size_t)m, &count))
        out = mxc_mem_zalloc(count ? count : 1, size);
    if (!out)
        (void)mxc_err_nomem(err);
    return out;
}

float *mxc_feed_rows(struct mxc_vision_picture *picture, int64_t rows, int64_t width,
                     struct mxc_err *err) {
    float *out = array(rows, width, sizeof *out, err);
    picture->input.rows = out;
    picture->input.n_rows[0] = (int32_t)rows;
    return out;
}

int32_t *mxc_feed_index(struct mxc_vision_picture *picture, int32_t index, int64_t n,
                        struct mxc_err *err) {
    int32_t *out = array(n, 1, sizeof *out, err);
    picture->input.index[index] = out;
    return out;
}

float *mxc_feed_factor(struct mxc_vision_picture *picture, int32_t index, int64_t n,
                       struct mxc_err *err) {
    float *out = array(n, 1, sizeof *out, err);
    picture->input.factor[index] = out;
    return out;
}

int32_t *mxc_feed_range(struct mxc_vision_picture *picture, int32_t range, int64_t rows,
                        struct mxc_err *err) {
    int32_t *out = array(rows, 2, sizeof *out, err);
    picture->input.range[range] = out;
    return out;
}

void mxc_feed_patch(const struct mxc_vision *v, const struct mxc_pixels *pixels, int32_t plane,
                    int32_t y, int32_t x, float *row) {
    size_t p = (size_t)v->shape.patch, w = (size_t)pixels->plan.plane_width,
           h = (size_t)pixels->plan.plane_height;
    for (size_t c = 0; c < 3; c++) {
        const float *from =
            pixels->data + (((size_t)plane * 3 + c) * h + (size_t)y * p) * w + (size_t)x * p;
        for (size_t i = 0; i < p; i++) {
            if (!v->shape.channels_last) {
                memcpy(row + (c * p + i) * p, from + i * w, p * sizeof *row);
                continue;
            }
            for (size_t j = 0; j < p; j++)
                row[(i * p + j) * 3 + c] = from[i * w + j];
        }
    }
}

struct mxc_cell mxc_feed_cell(int32_t i, int32_t across, int32_t merge) {
    int32_t square = i / (merge * merge), in = i % (merge * merge), squares = across / merge;
    return (struct mxc_cell){.y = square / squares * merge + in / merge,
                             .x = square % squares * merge + in % merge};
}

/* Where patch i of n stands in a table of `side` rows. Idefics3 looks it up by its share of the
 * plane, in single precision; with as many patches as rows that is its own number (the reference's
 * roundings, which vary with the processor there, are not followed). */
static int32_t bucket(int32_t i, int32_t n, int32_t side) {
    float at = (float)i * (1.0f / (float)n), most = (float)(1.0 - 1e-6);
    double step = 1.0 / side;
    int32_t out = 0;
    if (n == side)
        return i;
    at = at < most ? at : most;
    while (out < side - 1 && (float)(step + out * step) <= at)
        out++;
    return out;
}

enum mxc_code mxc_feed_planes(const struct mxc_vision *v, const struct mxc_pixels *pixels,
                              struct mxc_vision_picture *picture, struct mxc_err *err) {
    const struct mxc_vision_shape *s = &v->shape;
    int32_t down = pixels->plan.plane_height / s->patch, first = s->class_row,
            across = pixels->plan.plane_width / s->patch, n = down * across + first;
    int64_t rows = (int64_t)n * pixels->plan.n_tiles, width = (int64_t)3 * s->patch * s->patch;
    float *out = mxc_feed_rows(picture, rows, width, err);
    int32_t *position = mxc_feed_index(picture, 0, rows, err);
    int32_t *classes = first ? mxc_feed_index(picture, 1, rows, err) : NULL;
    int32_t *range = mxc_feed_range(picture, 0, rows, err);
    if (!out || !position || !range || (first && !classes))
        return MXC_E_NOMEM;
    for (int32_t plane = 0, row = 0; plane < pixels->plan.n_tiles; plane++) {
        for (int32_t i = 0; i < n; i++, row++) {
            range[row] = plane * n;
            range[rows + row] = plane * n + n;
            if (first)
                classes[row] = i ? -1 : 0;
            if (first && !i)
                continue; /* a row of zeros, to which the class is added */
            struct mxc_cell cell = mxc_feed_cell(i - first, across, s->merge);
            position[row] = first + bucket(cell.y, down, s->table) * s->table +
                            bucket(cell.x, across, s->table);
            mxc_feed_patch(v, pixels, plane, cell.y, cell.x, out + row * width);
        }
    }
    return MXC_OK;
}
