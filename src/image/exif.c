/* EXIF orientation: found in the TIFF structure that cameras put into APP1, eXIf or EXIF, and
 * applied to pixels. Anything odd in there means "upright"; metadata never makes a picture fail. */
#include "image/codec.h"

#include <stdbool.h>
#include <string.h>

enum { TAG_ORIENTATION = 0x0112, TYPE_BYTE = 1, TYPE_SHORT = 3, TYPE_LONG = 4 };

int mxc_exif_orientation(struct mxc_bytes exif) {
    const uint8_t *p = exif.data;
    size_t n = exif.size;
    if (n >= 6 && !memcmp(p, "Exif\0\0", 6)) {
        p += 6;
        n -= 6;
    }
    if (n < 8 || (memcmp(p, "II*\0", 4) && memcmp(p, "MM\0*", 4)))
        return 1;
    bool big = *p == 'M';
    size_t offset = big ? mxc_be32(p + 4) : mxc_le32(p + 4);
    if (offset > n - 2)
        return 1;
    size_t count = big ? mxc_be16(p + offset) : mxc_le16(p + offset);
    for (offset += 2; count && n - offset >= 12; count--, offset += 12) {
        const uint8_t *e = p + offset;
        if ((big ? mxc_be16(e) : mxc_le16(e)) != TAG_ORIENTATION)
            continue;
        uint32_t type = big ? mxc_be16(e + 2) : mxc_le16(e + 2), value = 0;
        if (type == TYPE_BYTE)
            value = e[8];
        else if (type == TYPE_SHORT)
            value = big ? mxc_be16(e + 8) : mxc_le16(e + 8);
        else if (type == TYPE_LONG)
            value = big ? mxc_be32(e + 8) : mxc_le32(e + 8);
        return value >= 1 && value <= 8 ? (int)value : 1;
    }
    return 1;
}

enum mxc_code mxc_image_turn(struct mxc_image *image, int orientation, struct mxc_err *err) {
    if (orientation < 2 || orientation > 8)
        return MXC_OK;
    struct mxc_image to;
    bool swap = orientation > 4;
    int w = image->width, h = image->height;
    enum mxc_code code = mxc_image_init(swap ? h : w, swap ? w : h, &to, err);
    if (code)
        return code;
    /* Stored (x, y) goes to origin + x * step_x + y * step_y: the 8 orientations are which stored
     * edge is up and which one is left. */
    bool flip_x = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
    bool flip_y = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
    ptrdiff_t step_x = swap ? (ptrdiff_t)to.width * 3 : 3,
              step_y = swap ? 3 : (ptrdiff_t)to.width * 3;
    ptrdiff_t origin = (flip_x ? step_x * (w - 1) : 0) + (flip_y ? step_y * (h - 1) : 0);
    if (flip_x)
        step_x = -step_x;
    if (flip_y)
        step_y = -step_y;
    /* In squares, so that neither side of a turn by 90 degrees misses the cache at each pixel. */
    enum { SQUARE = 32 };
    for (int y0 = 0; y0 < h; y0 += SQUARE)
        for (int x0 = 0; x0 < w; x0 += SQUARE)
            for (int y = y0; y < h && y < y0 + SQUARE; y++) {
                const uint8_t *from = image->rgb + ((size_t)y * (size_t)w + (size_t)x0) * 3;
                uint8_t *out = to.rgb + origin + y * step_y + x0 * step_x;
                for (int x = x0; x < w && x < x0 + SQUARE; x++, from += 3, out += step_x)
                    memcpy(out, from, 3);
            }
    mxc_image_fini(image);
    *image = to;
    return MXC_OK;
}
