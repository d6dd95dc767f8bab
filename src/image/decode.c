/* Decoding a picture: the format by content, its size held against the limit, the format's decoder
 * into a buffer of ours, then EXIF orientation. In: bytes; out: upright RGB. Nothing is allocated
 * before the header's size is known to be within the limit. */
#include "image/decode.h"

#include "base/mem.h"
#include "base/str.h"
#include "image/codec.h"

#include <string.h>

const struct mxc_image_options mxc_image_defaults = {MXC_IMAGE_MAX_PIXELS, {255, 255, 255}};

static const struct mxc_codec *const codecs[MXC_N_IMAGE_FORMATS] = {
    [MXC_IMAGE_JPEG] = &mxc_codec_jpeg, [MXC_IMAGE_PNG] = &mxc_codec_png,
    [MXC_IMAGE_WEBP] = &mxc_codec_webp, [MXC_IMAGE_GIF] = &mxc_codec_gif,
    [MXC_IMAGE_BMP] = &mxc_codec_bmp,
};

const char *mxc_image_format_name(enum mxc_image_format format) {
    return (unsigned)format < MXC_N_IMAGE_FORMATS ? codecs[format]->name : "unknown format";
}

bool mxc_image_colour(const char *text, uint8_t rgb[3]) {
    uint8_t made[3];
    text += *text == '#';
    if (strlen(text) != 6)
        return false;
    for (int i = 0; i < 3; i++) {
        int high = mxc_hex_digit(text[2 * i]), low = mxc_hex_digit(text[2 * i + 1]);
        if (high < 0 || low < 0)
            return false;
        made[i] = (uint8_t)(high * 16 + low);
    }
    memcpy(rgb, made, sizeof made);
    return true;
}

/* info with the sides as stored. */
static enum mxc_code probe(struct mxc_bytes in, uint64_t max_pixels, struct mxc_image_info *info,
                           struct mxc_err *err) {
    struct mxc_image_info found = {.orientation = 1};
    enum mxc_code code = mxc_image_sniff(in, &found.format, err);
    if (code)
        return code;
    const struct mxc_codec *codec = codecs[found.format];
    code = codec->probe(in, &found, err);
    if (!code && (found.width < 1 || found.height < 1))
        code = mxc_err_set(err, MXC_E_FORMAT, "%d x %d pixels", found.width, found.height);
    if (!max_pixels)
        max_pixels = MXC_IMAGE_MAX_PIXELS;
    if (!code && (found.width > MXC_IMAGE_MAX_SIDE || found.height > MXC_IMAGE_MAX_SIDE))
        code = mxc_err_set(err, MXC_E_LIMIT, "%d x %d pixels, a side of more than %d", found.width,
                           found.height, MXC_IMAGE_MAX_SIDE);
    if (!code && (uint64_t)found.width * (uint64_t)found.height > max_pixels)
        code = mxc_err_set(err, MXC_E_LIMIT, "%d x %d pixels, more than the limit of %llu",
                           found.width, found.height, (unsigned long long)max_pixels);
    if (code) {
        (void)mxc_err_context(err, "%s", codec->name);
        return code;
    }
    *info = found;
    return MXC_OK;
}

enum mxc_code mxc_image_probe(const void *data, size_t size,
                              const struct mxc_image_options *options, struct mxc_image_info *info,
                              struct mxc_err *err) {
    struct mxc_image_info found;
    if (!options)
        options = &mxc_image_defaults;
    enum mxc_code code = probe((struct mxc_bytes){data, size}, options->max_pixels, &found, err);
    if (code)
        return code;
    *info = found;
    if (found.orientation > 4) {
        info->width = found.height;
        info->height = found.width;
    }
    return MXC_OK;
}

enum mxc_code mxc_image_decode(const void *data, size_t size,
                               const struct mxc_image_options *options, struct mxc_image *image,
                               struct mxc_err *err) {
    struct mxc_bytes in = {data, size};
    struct mxc_image_info info;
    struct mxc_image result;
    if (!options)
        options = &mxc_image_defaults;
    enum mxc_code code = probe(in, options->max_pixels, &info, err);
    if (code)
        return code;
    code = mxc_image_init(info.width, info.height, &result, err);
    if (!code) {
        code = codecs[info.format]->decode(in, &info, options->background, result.rgb, err);
        if (!code && info.orientation > 1)
            code = mxc_image_turn(&result, info.orientation, err);
        if (code)
            mxc_image_fini(&result);
    }
    if (code) {
        (void)mxc_err_context(err, "%s", codecs[info.format]->name);
        return code;
    }
    *image = result;
    return MXC_OK;
}

enum mxc_code mxc_image_init(int width, int height, struct mxc_image *image, struct mxc_err *err) {
    size_t n;
    if (width < 1 || height < 1)
        return mxc_err_set(err, MXC_E_ARG, "a picture of %d x %d pixels", width, height);
    if (!mxc_size_mul((size_t)width, (size_t)height, &n))
        return mxc_err_nomem(err);
    uint8_t *rgb = mxc_mem_array(n, 3);
    if (!rgb)
        return mxc_err_nomem(err);
    *image = (struct mxc_image){width, height, rgb};
    return MXC_OK;
}

void mxc_image_fini(struct mxc_image *image) {
    if (image) {
        mxc_mem_free(image->rgb);
        *image = (struct mxc_image){0};
    }
}
