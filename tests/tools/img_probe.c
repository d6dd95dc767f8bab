/* What tools/oracle_img.py asks. Reads lines "PICTURE<tab>OUT[<tab>FOLDER]" and answers each with
 * one line of JSON. Without FOLDER it decodes, and OUT gets the RGB bytes; with it, the picture
 * goes through FOLDER/preprocessor_config.json, and OUT gets the float32 values. */
#define _GNU_SOURCE
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "image/preprocess.h"

#include <stdio.h>
#include <string.h>

static enum mxc_code decode(const char *path, struct mxc_image *image, struct mxc_err *err) {
    struct mxc_file file;
    struct mxc_image_info info;
    enum mxc_code code = mxc_file_open(path, &file, err);
    if (code)
        return code;
    code = mxc_image_decode(file.data, file.size, NULL, image, err);
    if (!code)
        code = mxc_image_probe(file.data, file.size, NULL, &info, err);
    if (!code && (info.width != image->width || info.height != image->height)) {
        code = mxc_err_set(err, MXC_E_INTERNAL, "the header's size is not the picture's");
        mxc_image_fini(image);
    }
    mxc_file_close(&file);
    return code;
}

static json_t *answer(const char *path, const char *out, const char *folder) {
    struct mxc_err err;
    struct mxc_image image;
    struct mxc_preprocess p;
    struct mxc_pixels pixels = {0};
    enum mxc_code code = decode(path, &image, &err);
    if (code)
        return json_pack("{ss}", "error", err.message);
    if (folder)
        code = mxc_preprocess_load(folder, NULL, &p, &err);
    if (!code && folder)
        code = mxc_pixels_init(&p, &image, NULL, &pixels, &err);
    if (!code && folder)
        code = mxc_file_write(out, pixels.data, pixels.count * sizeof *pixels.data, &err);
    else if (!code)
        code = mxc_file_write(out, image.rgb, (size_t)image.width * (size_t)image.height * 3, &err);
    const struct mxc_picture_plan *plan = &pixels.plan;
    json_t *result =
        code ? json_pack("{ss}", "error", err.message)
             : json_pack("{s[ii]s[iii]sIsisisi}", "size_wh", image.width, image.height, "grid_thw",
                         plan->grid_thw[0], plan->grid_thw[1], plan->grid_thw[2], "count",
                         (json_int_t)pixels.count, "n_planes", plan->n_planes, "n_tiles",
                         plan->n_tiles, "aspect_ratio_id", plan->aspect_ratio_id);
    mxc_pixels_fini(&pixels);
    mxc_image_fini(&image);
    return result;
}

int main(void) {
    char line[8192];
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        char *out = strchr(line, '\t'), *folder = out ? strchr(out + 1, '\t') : NULL;
        if (!out)
            return 2;
        *out++ = 0;
        if (folder)
            *folder++ = 0;
        json_t *result = answer(line, out, folder);
        char *text = mxc_json_dump(result);
        if (!text || puts(text) < 0 || fflush(stdout))
            return 1;
        mxc_mem_free(text);
        json_decref(result);
    }
    return 0;
}
