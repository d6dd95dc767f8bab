/* Pictures: bytes of a file in, upright 8-bit RGB out. The format is decided by content, never by a
 * name. JPEG, PNG, WebP, GIF and BMP are read; of an animation the first frame. EXIF orientation is
 * applied, and transparency is laid over the background colour, before a caller sees a size or a
 * pixel. Colour values are taken as stored: gamma, ICC profiles and bit-depth hints are not
 * applied; 16-bit samples keep their high byte.
 *
 * A damaged or truncated file is an error that names the format and the cause ("PNG: ..."), never a
 * partly filled picture: MXC_E_FORMAT. More pixels than the limit: MXC_E_LIMIT, found in the header
 * before anything is allocated. Other formats (TIFF, PPM, HEIC, AVIF, JPEG XL, SVG, PDF, ...) are
 * MXC_E_UNSUPPORTED by name. Pure functions: safe from any thread. */
#ifndef MXC_IMAGE_DECODE_H
#define MXC_IMAGE_DECODE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum mxc_image_format {
    MXC_IMAGE_JPEG,
    MXC_IMAGE_PNG,
    MXC_IMAGE_WEBP,
    MXC_IMAGE_GIF,
    MXC_IMAGE_BMP,
    MXC_N_IMAGE_FORMATS
};
#define MXC_IMAGE_MAX_PIXELS (UINT64_C(64) << 20)
#define MXC_IMAGE_MAX_SIDE   (1 << 20) /* of one side, whatever the limit of pixels */

struct mxc_image_options {
    uint64_t max_pixels;   /* width * height; 0: MXC_IMAGE_MAX_PIXELS */
    uint8_t background[3]; /* RGB under transparent pixels */
};
/* What NULL options mean: 64 Mi pixels, white. */
extern const struct mxc_image_options mxc_image_defaults;
/* "RRGGBB" or "#RRGGBB", in any case; false, and rgb untouched: it is neither. */
bool mxc_image_colour(const char *text, uint8_t rgb[3]);

struct mxc_image_info {
    enum mxc_image_format format;
    int width, height; /* upright, both at least 1 */
    int orientation;   /* of EXIF: 1 to 8; 5 to 8 swap the sides of what is stored */
};

struct mxc_image {
    int width, height;
    uint8_t *rgb; /* [height, width, 3], rows without padding */
};

/* Reads the header only. */
enum mxc_code mxc_image_probe(const void *data, size_t size,
                              const struct mxc_image_options *options, struct mxc_image_info *info,
                              struct mxc_err *err) MXC_MUST;
/* Decodes the whole picture; release it with mxc_image_fini. */
enum mxc_code mxc_image_decode(const void *data, size_t size,
                               const struct mxc_image_options *options, struct mxc_image *image,
                               struct mxc_err *err) MXC_MUST;
/* A picture of this size, its pixels not set. Both sides are at least 1, else MXC_E_ARG. */
enum mxc_code mxc_image_init(int width, int height, struct mxc_image *image,
                             struct mxc_err *err) MXC_MUST;
void mxc_image_fini(struct mxc_image *image);
const char *mxc_image_format_name(enum mxc_image_format format); /* "JPEG" */

#endif
