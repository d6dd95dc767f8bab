/* WebP through libwebp: lossy, lossless, alpha. Of an animation the first frame, laid on the
 * canvas: its chunk is found by our own walk of the RIFF container, which also finds EXIF
 * orientation and checks that the file is whole. */
#include "base/mem.h"
#include "image/codec.h"

#include <stdbool.h>
#include <string.h>
#include <webp/decode.h>

enum { FILE_HEADER = 12, CHUNK_HEADER = 8, ANMF_HEADER = 16 };

/* Finds the first chunk of a kind; false: none. */
static bool find_chunk(struct mxc_bytes in, const char *kind, struct mxc_bytes *found) {
    size_t at = FILE_HEADER;
    while (in.size > at && in.size - at >= CHUNK_HEADER) {
        size_t length = mxc_le32(in.data + at + 4), rest = in.size - at - CHUNK_HEADER;
        if (length > rest)
            return false;
        if (!memcmp(in.data + at, kind, 4)) {
            *found = (struct mxc_bytes){in.data + at + CHUNK_HEADER, length};
            return true;
        }
        if (length + (length & 1) > rest)
            return false;
        at += CHUNK_HEADER + length + (length & 1);
    }
    return false;
}

static enum mxc_code status_error(VP8StatusCode status, struct mxc_err *err) {
    switch (status) {
    case VP8_STATUS_OUT_OF_MEMORY:
        return mxc_err_nomem(err);
    case VP8_STATUS_NOT_ENOUGH_DATA:
        return mxc_err_set(err, MXC_E_FORMAT, "truncated");
    case VP8_STATUS_UNSUPPORTED_FEATURE:
        return mxc_err_set(err, MXC_E_UNSUPPORTED, "a feature that libwebp does not decode");
    default:
        return mxc_err_set(err, MXC_E_FORMAT, "damaged bit stream");
    }
}

static enum mxc_code probe(struct mxc_bytes in, struct mxc_image_info *info, struct mxc_err *err) {
    WebPBitstreamFeatures f;
    struct mxc_bytes exif;
    if (in.size < FILE_HEADER + CHUNK_HEADER || mxc_le32(in.data + 4) > in.size - 8)
        return mxc_err_set(err, MXC_E_FORMAT, "truncated: %zu bytes of %llu", in.size,
                           in.size < 8 ? 0ull : mxc_le32(in.data + 4) + 8ull);
    VP8StatusCode status = WebPGetFeatures(in.data, in.size, &f);
    if (status)
        return status_error(status, err);
    info->width = f.width;
    info->height = f.height;
    if (find_chunk(in, "EXIF", &exif))
        info->orientation = mxc_exif_orientation(exif);
    return MXC_OK;
}

/* Decodes one bit stream of width * height into out: 3 bytes a pixel, or 4 with alpha. */
static enum mxc_code bitstream(struct mxc_bytes in, int width, int height, bool alpha, uint8_t *out,
                               struct mxc_err *err) {
    WebPDecoderConfig config;
    int stride;
    if (!WebPInitDecoderConfig(&config))
        return mxc_err_set(err, MXC_E_INTERNAL, "libwebp of another version");
    if (__builtin_mul_overflow(width, alpha ? 4 : 3, &stride))
        return mxc_err_nomem(err);
    config.output.colorspace = alpha ? MODE_RGBA : MODE_RGB;
    config.output.is_external_memory = 1;
    config.output.u.RGBA.rgba = out;
    config.output.u.RGBA.stride = stride;
    config.output.u.RGBA.size = (size_t)stride * (size_t)height;
    VP8StatusCode status = WebPGetFeatures(in.data, in.size, &config.input);
    if (!status && (config.input.width != width || config.input.height != height))
        return mxc_err_set(err, MXC_E_FORMAT, "a frame of %d x %d pixels where %d x %d were said",
                           config.input.width, config.input.height, width, height);
    if (!status)
        status = WebPDecode(in.data, in.size, &config);
    WebPFreeDecBuffer(&config.output);
    return status ? status_error(status, err) : MXC_OK;
}

/* A frame with alpha over the rectangle of the canvas that starts at rgb. */
static enum mxc_code blend(struct mxc_bytes in, int width, int height, size_t canvas_width,
                           const uint8_t background[3], uint8_t *rgb, struct mxc_err *err) {
    size_t n = (size_t)width * (size_t)height;
    uint8_t *rgba = mxc_mem_array(n, 4);
    if (!rgba)
        return mxc_err_nomem(err);
    enum mxc_code code = bitstream(in, width, height, true, rgba, err);
    const uint8_t *from = rgba;
    for (int y = 0; !code && y < height; y++) {
        uint8_t *to = rgb + (size_t)y * canvas_width * 3;
        for (int x = 0; x < width; x++, from += 4, to += 3)
            for (int c = 0; c < 3; c++)
                to[c] = mxc_image_over(from[c], from[3], background[c]);
    }
    mxc_mem_free(rgba);
    return code;
}

static enum mxc_code first_frame(struct mxc_bytes in, const struct mxc_image_info *info,
                                 const uint8_t background[3], uint8_t *rgb, struct mxc_err *err) {
    struct mxc_bytes frame;
    WebPBitstreamFeatures f;
    if (!find_chunk(in, "ANMF", &frame) || frame.size < ANMF_HEADER)
        return mxc_err_set(err, MXC_E_FORMAT, "an animation without a whole frame");
    const uint8_t *p = frame.data;
    uint32_t x = (mxc_le32(p) & 0xFFFFFF) * 2, y = (mxc_le32(p + 3) & 0xFFFFFF) * 2;
    frame.data += ANMF_HEADER;
    frame.size -= ANMF_HEADER;
    VP8StatusCode status = WebPGetFeatures(frame.data, frame.size, &f);
    if (status)
        return status_error(status, err);
    if (f.width < 1 || f.height < 1 || x > (uint32_t)info->width || y > (uint32_t)info->height ||
        (uint32_t)f.width > (uint32_t)info->width - x ||
        (uint32_t)f.height > (uint32_t)info->height - y)
        return mxc_err_set(err, MXC_E_FORMAT, "a frame that is not inside the canvas");
    size_t width = (size_t)info->width, n = width * (size_t)info->height;
    for (size_t i = 0; i < n; i++)
        memcpy(rgb + i * 3, background, 3);
    return blend(frame, f.width, f.height, width, background, rgb + (y * width + x) * 3, err);
}

static enum mxc_code decode(struct mxc_bytes in, const struct mxc_image_info *info,
                            const uint8_t background[3], uint8_t *rgb, struct mxc_err *err) {
    WebPBitstreamFeatures f;
    VP8StatusCode status = WebPGetFeatures(in.data, in.size, &f);
    if (status)
        return status_error(status, err);
    if (f.has_animation)
        return first_frame(in, info, background, rgb, err);
    if (f.has_alpha)
        return blend(in, info->width, info->height, (size_t)info->width, background, rgb, err);
    return bitstream(in, info->width, info->height, false, rgb, err);
}

const struct mxc_codec mxc_codec_webp = {"WebP", probe, decode};
