/* BMP, decoded here: 1, 4, 8, 16, 24 and 32 bits, bit fields, RLE4 and RLE8, both row orders, the
 * headers of OS/2 (12, 64 bytes) and Windows (40 to 124). A fourth byte is alpha only where the
 * header has a mask for it. Pixels that run-length data skips have colour 0. */
#include "base/mem.h"
#include "image/codec.h"

#include <stdbool.h>
#include <string.h>

enum { FILE_HEADER = 14 };
enum { PLAIN, RLE8, RLE4, BITFIELDS, ALPHA_BITFIELDS = 6 };

struct header {
    uint32_t offset, size, depth, compression, colours;
    int width, height;
    bool top_down;
    uint32_t mask[4]; /* red, green, blue, alpha */
};

static enum mxc_code read_masks(struct mxc_bytes in, struct header *h, struct mxc_err *err) {
    static const uint32_t plain16[3] = {0x7C00, 0x3E0, 0x1F}, plain32[3] = {0xFF0000, 0xFF00, 0xFF};
    if (h->compression == PLAIN) {
        memcpy(h->mask, h->depth == 16 ? plain16 : plain32, sizeof plain16);
        return MXC_OK;
    }
    /* behind the first 40 bytes, whether or not the header's size counts them */
    size_t n = h->size >= 56 || h->compression == ALPHA_BITFIELDS ? 4 : 3;
    if (in.size < FILE_HEADER + 40 + n * 4)
        return mxc_err_set(err, MXC_E_FORMAT, "truncated in its bit masks");
    uint32_t seen = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t m = mxc_le32(in.data + FILE_HEADER + 40 + i * 4);
        uint32_t low = m & (~m + 1);
        if ((i < 3 && !m) || (m & seen) || (m && ((m / low + 1) & (m / low))) ||
            (h->depth == 16 && m > 0xFFFF))
            return mxc_err_set(err, MXC_E_FORMAT, "a colour mask of 0x%lx", (unsigned long)m);
        seen |= m;
        h->mask[i] = m;
    }
    return MXC_OK;
}

static enum mxc_code read_header(struct mxc_bytes in, struct header *h, struct mxc_err *err) {
    const uint8_t *p = in.data;
    *h = (struct header){0};
    if (in.size < FILE_HEADER + 12)
        return mxc_err_set(err, MXC_E_FORMAT, "truncated in its header");
    h->offset = mxc_le32(p + 10);
    h->size = mxc_le32(p + 14);
    if (in.size < (size_t)FILE_HEADER + h->size)
        return mxc_err_set(err, MXC_E_FORMAT, "truncated in its header");
    if (h->size == 12) {
        h->width = (int)mxc_le16(p + 18);
        h->height = (int)mxc_le16(p + 20);
        h->depth = mxc_le16(p + 24);
    } else {
        uint32_t w = mxc_le32(p + 18), y = mxc_le32(p + 22);
        h->top_down = y > INT32_MAX;
        if (h->top_down)
            y = ~y + 1;
        if (w > INT32_MAX || y > INT32_MAX)
            return mxc_err_set(err, MXC_E_FORMAT, "a width or height below zero");
        h->width = (int)w;
        h->height = (int)y;
        h->depth = mxc_le16(p + 28);
        h->compression = mxc_le32(p + 30);
        h->colours = mxc_le32(p + 46);
    }
    uint32_t d = h->depth, c = h->compression;
    bool bits = (c == BITFIELDS || c == ALPHA_BITFIELDS) && (d == 16 || d == 32);
    if (d != 1 && d != 4 && d != 8 && d != 16 && d != 24 && d != 32)
        return mxc_err_set(err, MXC_E_UNSUPPORTED, "%lu bits a pixel", (unsigned long)d);
    if (c != PLAIN && !bits && !(c == RLE8 && d == 8) && !(c == RLE4 && d == 4))
        return mxc_err_set(err, MXC_E_UNSUPPORTED, "compression %lu with %lu bits a pixel",
                           (unsigned long)c, (unsigned long)d);
    if ((c == RLE8 || c == RLE4) && h->top_down)
        return mxc_err_set(err, MXC_E_FORMAT, "run-length data from the top down");
    return d == 16 || d == 32 ? read_masks(in, h, err) : MXC_OK;
}

static enum mxc_code probe(struct mxc_bytes in, struct mxc_image_info *info, struct mxc_err *err) {
    struct header h;
    enum mxc_code code = read_header(in, &h, err);
    if (code)
        return code;
    info->width = h.width;
    info->height = h.height;
    return MXC_OK;
}

/* Entries that the file does not have are black. */
static enum mxc_code read_palette(struct mxc_bytes in, const struct header *h,
                                  uint8_t palette[256][3], struct mxc_err *err) {
    size_t entry = h->size == 12 ? 3 : 4, at = FILE_HEADER + (size_t)h->size;
    size_t n = (size_t)1 << h->depth;
    if (h->colours && h->colours < n)
        n = h->colours;
    if (h->offset > at && n > (h->offset - at) / entry)
        n = (h->offset - at) / entry; /* OS/2 writers leave the count out */
    if (at > in.size || (in.size - at) / entry < n)
        return mxc_err_set(err, MXC_E_FORMAT, "truncated in its palette");
    memset(palette, 0, 256 * 3);
    for (size_t i = 0; i < n; i++, at += entry)
        for (size_t c = 0; c < 3; c++)
            palette[i][c] = in.data[at + 2 - c];
    return MXC_OK;
}

/* A field of up to 32 bits as 8 bits. */
static uint8_t field(uint32_t v, uint32_t mask) {
    uint32_t top = mask / (mask & (~mask + 1)), value = (v & mask) / (mask & (~mask + 1));
    return (uint8_t)((uint64_t)value * 255 / top);
}

static void masked_row(const struct header *h, const uint8_t *row, const uint8_t background[3],
                       uint8_t *rgb) {
    size_t step = h->depth / 8;
    for (int x = 0; x < h->width; x++, row += step, rgb += 3) {
        uint32_t v = step == 2 ? mxc_le16(row) : mxc_le32(row);
        for (int c = 0; c < 3; c++) {
            rgb[c] = field(v, h->mask[c]);
            if (h->mask[3])
                rgb[c] = mxc_image_over(rgb[c], field(v, h->mask[3]), background[c]);
        }
    }
}

static void packed_row(const struct header *h, const uint8_t *row, const uint8_t palette[256][3],
                       uint8_t *rgb) {
    unsigned depth = h->depth, mask = (1u << depth) - 1;
    for (size_t x = 0; x < (size_t)h->width; x++, rgb += 3) {
        size_t bit = x * depth;
        memcpy(rgb, palette[(unsigned)row[bit >> 3] >> (8 - depth - (bit & 7)) & mask], 3);
    }
}

static enum mxc_code plain_rows(struct mxc_bytes in, const struct header *h,
                                const uint8_t palette[256][3], const uint8_t background[3],
                                uint8_t *rgb, struct mxc_err *err) {
    size_t width = (size_t)h->width, height = (size_t)h->height;
    size_t row_bytes = (width * h->depth + 31) / 32 * 4, need;
    /* the padding of the last row may be missing */
    size_t last = (width * h->depth + 7) / 8;
    if (!mxc_size_mul(row_bytes, height - 1, &need) || !mxc_size_add(need, last, &need) ||
        h->offset > in.size || in.size - h->offset < need)
        return mxc_err_set(err, MXC_E_FORMAT, "truncated: its pixels end outside the file");
    for (size_t y = 0; y < height; y++) {
        const uint8_t *row = in.data + h->offset + y * row_bytes;
        uint8_t *to = rgb + (h->top_down ? y : height - 1 - y) * width * 3;
        if (h->depth <= 8)
            packed_row(h, row, palette, to);
        else if (h->depth == 24)
            for (size_t x = 0; x < width; x++, row += 3, to += 3)
                to[0] = row[2], to[1] = row[1], to[2] = row[0];
        else
            masked_row(h, row, background, to);
    }
    return MXC_OK;
}

/* One pixel of a run: 4-bit runs alternate between two halves. */
static uint8_t nth(const struct header *h, const uint8_t *from, bool run, size_t i) {
    if (h->depth == 8)
        return from[run ? 0 : i];
    uint8_t pair = from[run ? 0 : i / 2];
    return i & 1 ? pair & 15 : pair >> 4;
}

static enum mxc_code run_rows(struct mxc_bytes in, const struct header *h,
                              const uint8_t palette[256][3], uint8_t *rgb, struct mxc_err *err) {
    size_t width = (size_t)h->width, height = (size_t)h->height, x = 0, y = 0;
    size_t at = h->offset, n = in.size;
    const uint8_t *p = in.data;
    for (size_t i = 0; i < width * height; i++)
        memcpy(rgb + i * 3, palette[0], 3);
    while (at < n && n - at >= 2) {
        size_t count = p[at], code = p[at + 1], bytes = 0;
        at += 2;
        bool run = count > 0;
        if (!run && code == 0) {
            x = 0;
            y++;
            continue;
        }
        if (!run && code == 1)
            return MXC_OK;
        if (!run && code == 2) {
            if (n - at < 2)
                break;
            x += p[at];
            y += p[at + 1];
            at += 2;
            if (x > width || y >= height)
                return mxc_err_set(err, MXC_E_FORMAT, "run-length data outside the picture");
            continue;
        }
        if (!run) {
            count = code;
            bytes = h->depth == 8 ? count : (count + 1) / 2;
            bytes += bytes & 1;
            if (n - at < bytes)
                break;
        }
        if (y >= height || count > width - x)
            return mxc_err_set(err, MXC_E_FORMAT, "run-length data outside the picture");
        uint8_t *to = rgb + ((height - 1 - y) * width + x) * 3;
        for (size_t i = 0; i < count; i++, to += 3)
            memcpy(to, palette[nth(h, run ? p + at - 1 : p + at, run, i)], 3);
        x += count;
        at += bytes;
    }
    return mxc_err_set(err, MXC_E_FORMAT, "truncated: its run-length data does not end");
}

static enum mxc_code decode(struct mxc_bytes in, const struct mxc_image_info *info,
                            const uint8_t background[3], uint8_t *rgb, struct mxc_err *err) {
    struct header h;
    uint8_t palette[256][3];
    enum mxc_code code = read_header(in, &h, err);
    (void)info;
    if (!code && h.depth <= 8)
        code = read_palette(in, &h, palette, err);
    if (code)
        return code;
    if (h.compression == RLE8 || h.compression == RLE4)
        return run_rows(in, &h, (const uint8_t(*)[3])palette, rgb, err);
    return plain_rows(in, &h, (const uint8_t(*)[3])palette, background, rgb, err);
}

const struct mxc_codec mxc_codec_bmp = {"BMP", probe, decode};
