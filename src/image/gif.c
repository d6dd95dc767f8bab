/* GIF through giflib: the first frame on its canvas. The canvas grows to a frame that reaches
 * beyond it, and is of colour 0 (or transparent, if the frame has a transparent colour) where the
 * frame does not cover it, as Pillow has it. The blocks before the first frame are walked by our
 * own code, which finds the size without allocating. */
#include "base/mem.h"
#include "image/codec.h"

#include <gif_lib.h>
#include <stdbool.h>
#include <string.h>

enum { HEADER = 13, DESCRIPTOR = 10, LABEL_CONTROL = 0xF9 };

struct frame {
    int left, top, width, height;
    int transparent; /* colour index, -1: none */
};

/* Finds the first image descriptor. */
static enum mxc_code walk(struct mxc_bytes in, struct frame *frame, struct mxc_err *err) {
    const uint8_t *p = in.data;
    size_t n = in.size, at = HEADER;
    frame->transparent = -1;
    if (n < HEADER)
        return mxc_err_set(err, MXC_E_FORMAT, "truncated in its header");
    if (p[10] & 0x80)
        at += (size_t)3 << ((p[10] & 7) + 1);
    for (;;) {
        if (at >= n)
            return mxc_err_set(err, MXC_E_FORMAT, "truncated before its first frame");
        if (p[at] == ',') {
            if (n - at < DESCRIPTOR)
                return mxc_err_set(err, MXC_E_FORMAT, "truncated in a frame header");
            frame->left = (int)mxc_le16(p + at + 1);
            frame->top = (int)mxc_le16(p + at + 3);
            frame->width = (int)mxc_le16(p + at + 5);
            frame->height = (int)mxc_le16(p + at + 7);
            return MXC_OK;
        }
        if (p[at] == ';')
            return mxc_err_set(err, MXC_E_FORMAT, "no frame");
        if (p[at] != '!')
            return mxc_err_at(err, MXC_E_FORMAT, (int64_t)at, "an unknown block");
        if (n - at < 3)
            return mxc_err_set(err, MXC_E_FORMAT, "truncated before its first frame");
        if (p[at + 1] == LABEL_CONTROL && p[at + 2] >= 4 && n - at >= 7)
            frame->transparent = p[at + 3] & 1 ? p[at + 6] : -1;
        for (at += 2; at < n && p[at]; at += (size_t)p[at] + 1)
            ;
        at++;
    }
}

static enum mxc_code probe(struct mxc_bytes in, struct mxc_image_info *info, struct mxc_err *err) {
    struct frame f;
    enum mxc_code code = walk(in, &f, err);
    if (code)
        return code;
    if (!f.width || !f.height)
        return mxc_err_set(err, MXC_E_FORMAT, "a frame of %d x %d pixels", f.width, f.height);
    info->width = (int)mxc_le16(in.data + 6);
    info->height = (int)mxc_le16(in.data + 8);
    if (info->width < f.left + f.width)
        info->width = f.left + f.width;
    if (info->height < f.top + f.height)
        info->height = f.top + f.height;
    return MXC_OK;
}

static int read_bytes(GifFileType *gif, GifByteType *to, int n) {
    struct mxc_bytes *rest = gif->UserData;
    size_t take = n < 0 ? 0 : (size_t)n;
    if (take > rest->size)
        take = rest->size;
    memcpy(to, rest->data, take);
    rest->data += take;
    rest->size -= take;
    return (int)take;
}

static enum mxc_code fail(int code, struct mxc_err *err) {
    const char *text = GifErrorString(code);
    switch (code) {
    case D_GIF_ERR_NOT_ENOUGH_MEM:
        return mxc_err_nomem(err);
    case D_GIF_ERR_READ_FAILED:
    case D_GIF_ERR_EOF_TOO_SOON:
        return mxc_err_set(err, MXC_E_FORMAT, "truncated");
    default:
        return mxc_err_set(err, MXC_E_FORMAT, "%s", text ? text : "damaged");
    }
}

/* Reads up to and with the descriptor of the first frame. */
static int to_first_frame(GifFileType *gif) {
    for (;;) {
        GifRecordType record;
        GifByteType *block;
        int label;
        if (DGifGetRecordType(gif, &record) == GIF_ERROR)
            return gif->Error;
        switch (record) {
        case IMAGE_DESC_RECORD_TYPE:
            return DGifGetImageDesc(gif) == GIF_ERROR ? gif->Error : 0;
        case EXTENSION_RECORD_TYPE:
            if (DGifGetExtension(gif, &label, &block) == GIF_ERROR)
                return gif->Error;
            while (block)
                if (DGifGetExtensionNext(gif, &block) == GIF_ERROR)
                    return gif->Error;
            break;
        default:
            return D_GIF_ERR_NO_IMAG_DSCR;
        }
    }
}

/* Colours over the background; an index without an entry is black. */
static void fill_palette(const ColorMapObject *map, int transparent, const uint8_t background[3],
                         uint8_t palette[256][3]) {
    memset(palette, 0, 256 * 3);
    for (int i = 0; map && i < map->ColorCount && i < 256; i++) {
        palette[i][0] = map->Colors[i].Red;
        palette[i][1] = map->Colors[i].Green;
        palette[i][2] = map->Colors[i].Blue;
    }
    if (transparent >= 0)
        memcpy(palette[transparent], background, 3);
}

static int read_lines(GifFileType *gif, const struct frame *f, size_t canvas_width,
                      const uint8_t palette[256][3], uint8_t *line, uint8_t *rgb) {
    static const struct {
        int first, step;
    } interlaced[] = {{0, 8}, {4, 8}, {2, 4}, {1, 2}}, plain[] = {{0, 1}};
    int passes = gif->Image.Interlace ? 4 : 1;
    for (int pass = 0; pass < passes; pass++) {
        int step = passes == 4 ? interlaced[pass].step : plain[0].step;
        for (int y = passes == 4 ? interlaced[pass].first : 0; y < f->height; y += step) {
            if (DGifGetLine(gif, line, f->width) == GIF_ERROR)
                return gif->Error ? gif->Error : D_GIF_ERR_IMAGE_DEFECT;
            uint8_t *to = rgb + ((size_t)(f->top + y) * canvas_width + (size_t)f->left) * 3;
            for (int x = 0; x < f->width; x++, to += 3)
                memcpy(to, palette[line[x]], 3);
        }
    }
    return 0;
}

static enum mxc_code decode(struct mxc_bytes in, const struct mxc_image_info *info,
                            const uint8_t background[3], uint8_t *rgb, struct mxc_err *err) {
    struct frame f;
    struct mxc_bytes rest = in;
    uint8_t palette[256][3];
    int error = 0;
    enum mxc_code code = walk(in, &f, err);
    if (code)
        return code;
    uint8_t *line = mxc_mem_alloc((size_t)f.width);
    if (!line)
        return mxc_err_nomem(err);
    GifFileType *gif = DGifOpen(&rest, read_bytes, &error);
    if (!gif) {
        code = fail(error, err);
        goto out;
    }
    error = to_first_frame(gif);
    if (error) {
        code = fail(error, err);
        goto out;
    }
    if (gif->Image.Width != f.width || gif->Image.Height != f.height || gif->Image.Left != f.left ||
        gif->Image.Top != f.top) {
        code = mxc_err_set(err, MXC_E_FORMAT, "damaged blocks before the first frame");
        goto out;
    }
    fill_palette(gif->Image.ColorMap ? gif->Image.ColorMap : gif->SColorMap, f.transparent,
                 background, palette);
    for (size_t i = 0, n = (size_t)info->width * (size_t)info->height; i < n; i++)
        memcpy(rgb + i * 3, palette[f.transparent >= 0 ? f.transparent : 0], 3);
    error = read_lines(gif, &f, (size_t)info->width, (const uint8_t(*)[3])palette, line, rgb);
    if (error)
        code = fail(error, err);
out:
    if (gif)
        (void)DGifCloseFile(gif, NULL);
    mxc_mem_free(line);
    return code;
}

const struct mxc_codec mxc_codec_gif = {"GIF", probe, decode};
