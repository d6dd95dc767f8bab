/* What decode.c and the decoders of one format each (jpeg.c, png.c, webp.c, gif.c, bmp.c) share.
 * A decoder's probe reads the header and fills the info with the sides as stored; decode.c checks
 * them and turns the picture. Messages leave the format's name out: decode.c puts it in front. */
#ifndef MXC_IMAGE_CODEC_H
#define MXC_IMAGE_CODEC_H

#include "image/decode.h"

struct mxc_bytes {
    const uint8_t *data;
    size_t size;
};

/* rgb has room for info->width * info->height pixels and is fully written on success. */
struct mxc_codec {
    const char *name;
    enum mxc_code (*probe)(struct mxc_bytes in, struct mxc_image_info *info, struct mxc_err *err);
    enum mxc_code (*decode)(struct mxc_bytes in, const struct mxc_image_info *info,
                            const uint8_t background[3], uint8_t *rgb, struct mxc_err *err);
};
extern const struct mxc_codec mxc_codec_jpeg, mxc_codec_png, mxc_codec_webp, mxc_codec_gif,
    mxc_codec_bmp;

/* The format by content; what is not read is refused by name. */
enum mxc_code mxc_image_sniff(struct mxc_bytes in, enum mxc_image_format *format,
                              struct mxc_err *err) MXC_MUST;

/* EXIF data (with or without the "Exif\0\0" before the TIFF header): orientation 1 to 8; 1 when it
 * says nothing that makes sense. */
int mxc_exif_orientation(struct mxc_bytes exif);
/* Turns the stored picture upright; the sides are swapped for 5 to 8. */
enum mxc_code mxc_image_turn(struct mxc_image *image, int orientation,
                             struct mxc_err *err) MXC_MUST;

static inline uint32_t mxc_be16(const uint8_t *p) {
    return (uint32_t)p[0] << 8 | p[1];
}
static inline uint32_t mxc_be32(const uint8_t *p) {
    return mxc_be16(p) << 16 | mxc_be16(p + 2);
}
static inline uint32_t mxc_le16(const uint8_t *p) {
    return (uint32_t)p[1] << 8 | p[0];
}
static inline uint32_t mxc_le32(const uint8_t *p) {
    return mxc_le16(p + 2) << 16 | mxc_le16(p);
}

/* A sample of this alpha over an opaque one, rounded as Pillow's alpha_composite does. */
static inline uint8_t mxc_image_over(uint32_t value, uint32_t alpha, uint32_t under) {
    uint32_t t = (value * alpha + under * (255 - alpha) + 128) << 7;
    return (uint8_t)((((t >> 8) + t) >> 8) >> 7);
}

#endif
