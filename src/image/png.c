/* PNG through libspng, rows as they are stored; unpacking, palettes, transparency and 16 bits are
 * done here, so that each follows our rules (transparency over the background, 16 bits by their
 * high byte, a palette index without an entry is black). All checksums count. Of an animated PNG
 * the default image. The chunk list is walked first: size, and EXIF orientation wherever it is. */
#include "base/mem.h"
#include "image/codec.h"

#include <spng.h>
#include <stdbool.h>
#include <string.h>

enum {
    GREY = SPNG_COLOR_TYPE_GRAYSCALE,
    RGB = SPNG_COLOR_TYPE_TRUECOLOR,
    INDEXED = SPNG_COLOR_TYPE_INDEXED,
    GREY_ALPHA = SPNG_COLOR_TYPE_GRAYSCALE_ALPHA,
    RGB_ALPHA = SPNG_COLOR_TYPE_TRUECOLOR_ALPHA
};
/* One chunk after inflating (colour profiles, texts), and all that are kept. */
#define MAX_CHUNK_BYTES (16u << 20)
#define MAX_CACHE_BYTES (32u << 20)

static enum mxc_code probe(struct mxc_bytes in, struct mxc_image_info *info, struct mxc_err *err) {
    const uint8_t *p = in.data;
    if (in.size < 33)
        return mxc_err_set(err, MXC_E_FORMAT, "truncated in its header");
    if (mxc_be32(p + 8) != 13 || memcmp(p + 12, "IHDR", 4))
        return mxc_err_set(err, MXC_E_FORMAT, "the first chunk is not IHDR");
    uint32_t w = mxc_be32(p + 16), h = mxc_be32(p + 20);
    if (w > INT32_MAX || h > INT32_MAX)
        return mxc_err_set(err, MXC_E_FORMAT, "%lu x %lu pixels", (unsigned long)w,
                           (unsigned long)h);
    info->width = (int)w;
    info->height = (int)h;
    for (size_t at = 33; in.size - at >= 12;) {
        size_t length = mxc_be32(p + at);
        if (length > in.size - at - 12)
            break; /* libspng will say what is wrong */
        if (!memcmp(p + at + 4, "eXIf", 4)) {
            info->orientation = mxc_exif_orientation((struct mxc_bytes){p + at + 8, length});
            break;
        }
        at += length + 12;
    }
    return MXC_OK;
}

/* What turns a stored row into RGB. */
struct rows {
    size_t width, row_bytes;
    uint8_t type, depth, channels;
    uint8_t background[3];
    bool has_key; /* tRNS of grey and RGB: the colour that is transparent, as stored */
    uint16_t key[3];
    uint8_t palette[256][3]; /* INDEXED; also grey below 8 bits. Over the background already */
};

/* Grey below 8 bits goes through the palette, too. */
static void fill_palette(struct rows *r, const struct spng_plte *plte,
                         const struct spng_trns *trns) {
    unsigned n = 1u << (r->depth > 8 ? 8 : r->depth);
    memset(r->palette, 0, sizeof r->palette);
    if (r->type == GREY) {
        for (unsigned i = 0; i < n; i++)
            if (r->has_key && r->key[0] == i)
                memcpy(r->palette[i], r->background, 3);
            else
                memset(r->palette[i], (int)(i * 255 / (n - 1)), 3);
        return;
    }
    for (unsigned i = 0; i < plte->n_entries && i < 256; i++) {
        const struct spng_plte_entry *e = &plte->entries[i];
        uint32_t alpha = trns && i < trns->n_type3_entries ? trns->type3_alpha[i] : 255;
        r->palette[i][0] = mxc_image_over(e->red, alpha, r->background[0]);
        r->palette[i][1] = mxc_image_over(e->green, alpha, r->background[1]);
        r->palette[i][2] = mxc_image_over(e->blue, alpha, r->background[2]);
    }
}

static void packed_row(const struct rows *r, const uint8_t *row, uint8_t *rgb) {
    unsigned depth = r->depth, mask = (1u << depth) - 1;
    for (size_t x = 0; x < r->width; x++, rgb += 3) {
        size_t bit = x * depth;
        unsigned v = (unsigned)row[bit >> 3] >> (8 - depth - (bit & 7)) & mask;
        memcpy(rgb, r->palette[v], 3);
    }
}

/* 8 and 16 bits; big-endian, so the high byte comes first. */
static void wide_row(const struct rows *r, const uint8_t *row, uint8_t *rgb) {
    size_t step = r->depth / 8, pixel = step * r->channels;
    bool colour = r->channels >= 3, alpha = r->type == GREY_ALPHA || r->type == RGB_ALPHA;
    for (size_t x = 0; x < r->width; x++, row += pixel, rgb += 3) {
        for (size_t c = 0; c < 3; c++)
            rgb[c] = row[colour ? c * step : 0];
        if (alpha) {
            uint32_t a = row[pixel - step];
            for (size_t c = 0; c < 3 && a != 255; c++)
                rgb[c] = mxc_image_over(rgb[c], a, r->background[c]);
        } else if (r->has_key) {
            bool same = true;
            for (size_t c = 0; c < r->channels; c++)
                same = same && (step == 2 ? mxc_be16(row + c * 2) : row[c]) == r->key[c];
            if (same)
                memcpy(rgb, r->background, 3);
        }
    }
}

static void convert(const struct rows *r, const uint8_t *row, uint8_t *rgb) {
    if (r->depth < 8 || r->type == INDEXED)
        packed_row(r, row, rgb);
    else if (r->type == RGB && r->depth == 8 && !r->has_key)
        memcpy(rgb, row, r->width * 3);
    else
        wide_row(r, row, rgb);
}

static enum mxc_code fail(int status, struct mxc_err *err) {
    switch (status) {
    case SPNG_EMEM:
        return mxc_err_nomem(err);
    case SPNG_IO_EOF:
    case SPNG_IO_ERROR:
    case SPNG_EIDAT_TOO_SHORT:
        return mxc_err_set(err, MXC_E_FORMAT, "truncated (%s)", spng_strerror(status));
    case SPNG_ECHUNK_LIMITS:
        return mxc_err_set(err, MXC_E_LIMIT, "a chunk takes more than %u bytes inflated",
                           MAX_CHUNK_BYTES);
    default:
        return mxc_err_set(err, MXC_E_FORMAT, "%s", spng_strerror(status));
    }
}

/* Everything that stands before the pixels. */
static int read_header(spng_ctx *spng, const struct mxc_image_info *info, struct rows *r) {
    static const uint8_t channels[] = {
        [GREY] = 1, [RGB] = 3, [INDEXED] = 1, [GREY_ALPHA] = 2, [RGB_ALPHA] = 4};
    struct spng_ihdr ihdr;
    struct spng_plte plte = {0};
    struct spng_trns trns = {0};
    int status = spng_get_ihdr(spng, &ihdr);
    if (status)
        return status;
    if (ihdr.width != (uint32_t)info->width || ihdr.height != (uint32_t)info->height ||
        ihdr.color_type > RGB_ALPHA)
        return SPNG_EINTERNAL;
    r->width = ihdr.width;
    r->type = ihdr.color_type;
    r->depth = ihdr.bit_depth;
    r->channels = channels[ihdr.color_type];
    if (ihdr.color_type == INDEXED && (status = spng_get_plte(spng, &plte)) != 0)
        return status == SPNG_ECHUNKAVAIL ? SPNG_ENOPLTE : status;
    status = spng_get_trns(spng, &trns);
    if (status && status != SPNG_ECHUNKAVAIL)
        return status;
    if (!status && r->type != INDEXED) {
        r->has_key = true;
        r->key[0] = r->type == GREY ? trns.gray : trns.red;
        r->key[1] = trns.green;
        r->key[2] = trns.blue;
    }
    if (r->type == INDEXED || (r->type == GREY && r->depth < 8))
        fill_palette(r, &plte, status ? NULL : &trns);
    return 0;
}

/* whole: room for all stored rows of an interlaced picture, else one row. */
static int read_rows(spng_ctx *spng, const struct rows *r, size_t height, bool interlaced,
                     uint8_t *stored, uint8_t *rgb) {
    int status;
    do {
        struct spng_row_info row;
        status = spng_get_row_info(spng, &row);
        if (status)
            return status == SPNG_EOI ? 0 : status;
        if (row.row_num >= height)
            return SPNG_EINTERNAL;
        uint8_t *at = stored + (interlaced ? row.row_num * r->row_bytes : 0);
        status = spng_decode_row(spng, at, r->row_bytes);
        if (status && status != SPNG_EOI)
            return status;
        if (!interlaced)
            convert(r, at, rgb + row.row_num * r->width * 3);
    } while (!status);
    for (size_t y = 0; interlaced && y < height; y++)
        convert(r, stored + y * r->row_bytes, rgb + y * r->width * 3);
    return 0;
}

static enum mxc_code decode(struct mxc_bytes in, const struct mxc_image_info *info,
                            const uint8_t background[3], uint8_t *rgb, struct mxc_err *err) {
    enum mxc_code code = MXC_OK;
    struct rows rows = {0};
    struct spng_ihdr ihdr = {0};
    size_t all;
    uint8_t *stored = NULL;
    spng_ctx *spng = spng_ctx_new(0);
    if (!spng)
        return mxc_err_nomem(err);
    memcpy(rows.background, background, 3);
    int status = spng_set_crc_action(spng, SPNG_CRC_ERROR, SPNG_CRC_ERROR);
    if (!status)
        status = spng_set_image_limits(spng, (uint32_t)info->width, (uint32_t)info->height);
    if (!status)
        status = spng_set_chunk_limits(spng, MAX_CHUNK_BYTES, MAX_CACHE_BYTES);
    if (!status)
        status = spng_set_png_buffer(spng, in.data, in.size);
    if (!status)
        status = read_header(spng, info, &rows);
    if (!status)
        status = spng_get_ihdr(spng, &ihdr);
    if (!status)
        status = spng_decode_image(spng, NULL, 0, SPNG_FMT_RAW, SPNG_DECODE_PROGRESSIVE);
    if (status)
        goto out;
    rows.row_bytes = (rows.width * rows.channels * rows.depth + 7) / 8;
    all = rows.row_bytes;
    if (ihdr.interlace_method && !mxc_size_mul(all, ihdr.height, &all)) {
        code = mxc_err_nomem(err);
        goto out;
    }
    stored = mxc_mem_zalloc(all, 1);
    if (!stored) {
        code = mxc_err_nomem(err);
        goto out;
    }
    status = read_rows(spng, &rows, ihdr.height, ihdr.interlace_method != 0, stored, rgb);
    if (!status)
        status = spng_decode_chunks(spng); /* to the end: nothing cut, all checksums right */
out:
    if (status)
        code = fail(status, err);
    mxc_mem_free(stored);
    spng_ctx_free(spng);
    return code;
}

const struct mxc_codec mxc_codec_png = {"PNG", probe, decode};
