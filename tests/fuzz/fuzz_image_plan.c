/* Settings and a size -> plan, and for what is small the values. Input: width, height (16 bits
 * each, little-endian), a budget of most pixels (32 bits; odd: an eighth of it is the least), then
 * the text of a preprocessor_config.json. */
#define _GNU_SOURCE
#include "base/json.h"
#include "image/preprocess.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void run(const struct mxc_preprocess *p, int width, int height,
                const struct mxc_pixel_budget *budget) {
    struct mxc_image image;
    struct mxc_pixels pixels;
    struct mxc_err err;
    if (mxc_image_init(width, height, &image, &err))
        abort();
    memset(image.rgb, 77, (size_t)width * (size_t)height * 3);
    if (!mxc_pixels_init(p, &image, budget, &pixels, &err)) {
        volatile float last = pixels.data[pixels.count - 1];
        (void)last;
        mxc_pixels_fini(&pixels);
    }
    mxc_image_fini(&image);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct mxc_preprocess p;
    struct mxc_picture_plan plan;
    struct mxc_err err = {0};
    json_t *root = NULL;
    if (size < 8)
        return 0;
    int width = data[0] | data[1] << 8, height = data[2] | data[3] << 8;
    int64_t most = data[4] | data[5] << 8 | data[6] << 16 | (int64_t)data[7] << 24;
    const struct mxc_pixel_budget budget = {most & 1 ? most >> 3 : 0, most};
    if (mxc_json_parse((const char *)data + 8, size - 8, "x", &root, &err))
        return 0;
    enum mxc_code code = mxc_preprocess_parse(root, "qwen2_vl", &p, &err);
    json_decref(root);
    if (code || mxc_picture_plan_init(&p, width, height, &budget, &plan, &err)) {
        if (!*err.message || strchr(err.message, '\n'))
            abort();
        return 0;
    }
    double values = (double)plan.n_patches * (double)plan.patch_values +
                    3.0 * plan.n_planes * plan.plane_width * plan.plane_height;
    if (values < 1 || plan.resized_width < 1 || plan.resized_height < 1)
        abort();
    if (values < 300000 && (double)plan.resized_width * plan.resized_height < 300000 &&
        (double)width * height < 100000)
        run(&p, width, height, &budget);
    return 0;
}
