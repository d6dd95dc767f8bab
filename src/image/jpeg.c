/* JPEG through libjpeg-turbo with its default (accurate integer) transform and smooth upsampling:
 * baseline, progressive, grey, YCbCr, RGB, CMYK and YCCK. CMYK is taken as Adobe writes it,
 * inverted, as Pillow does. A warning of the library that means lost or corrupt data is an error
 * here. The header is walked by our own code, which also finds EXIF orientation. */
#include "base/mem.h"
#include "image/codec.h"

#include <stdbool.h>
#include <stdio.h> /* jpeglib.h needs FILE */
#include <string.h>

#include <jpeglib.h>
#include <jerror.h>
#include <setjmp.h>

/* A progressive file may repeat scans without end; each costs a pass over all coefficients. */
enum { MAX_SCANS = 500 };

enum {
    M_SOF0 = 0xC0,
    M_DHT = 0xC4,
    M_JPG = 0xC8,
    M_DAC = 0xCC,
    M_SOF15 = 0xCF,
    M_RST0 = 0xD0,
    M_EOI = 0xD9,
    M_SOS = 0xDA,
    M_APP1 = 0xE1,
    M_TEM = 0x01
};

static bool is_frame(int marker) {
    return marker >= M_SOF0 && marker <= M_SOF15 && marker != M_DHT && marker != M_JPG &&
           marker != M_DAC;
}

static enum mxc_code probe(struct mxc_bytes in, struct mxc_image_info *info, struct mxc_err *err) {
    const uint8_t *p = in.data;
    size_t at = 2, n = in.size;
    bool have_exif = false;
    for (;;) {
        while (at < n && p[at] != 0xFF) /* padding between segments is skipped, as libjpeg does */
            at++;
        while (at < n && p[at] == 0xFF)
            at++;
        if (at >= n)
            return mxc_err_set(err, MXC_E_FORMAT, "truncated in its header");
        int marker = p[at++];
        if (marker == 0 || marker == M_TEM || (marker >= M_RST0 && marker < M_EOI))
            continue;
        if (marker == M_EOI || marker == M_SOS)
            return mxc_err_set(err, MXC_E_FORMAT, "no frame header");
        if (n - at < 2 || n - at < mxc_be16(p + at) || mxc_be16(p + at) < 2)
            return mxc_err_at(err, MXC_E_FORMAT, (int64_t)at,
                              "a segment of its header is cut or damaged");
        size_t length = mxc_be16(p + at);
        if (is_frame(marker)) {
            if (length < 8)
                return mxc_err_set(err, MXC_E_FORMAT, "a frame header of %zu bytes", length);
            info->height = (int)mxc_be16(p + at + 3);
            info->width = (int)mxc_be16(p + at + 5);
            return MXC_OK;
        }
        if (marker == M_APP1 && !have_exif && length > 8 && !memcmp(p + at + 2, "Exif\0", 5)) {
            info->orientation = mxc_exif_orientation((struct mxc_bytes){p + at + 2, length - 2});
            have_exif = true;
        }
        at += length;
    }
}

struct session {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf out;
    bool limit; /* too many scans, not damage */
    char message[JMSG_LENGTH_MAX];
};

static _Noreturn void fail(j_common_ptr jpeg) {
    struct session *s = jpeg->client_data;
    jpeg->err->format_message(jpeg, s->message);
    longjmp(s->out, 1);
}

/* The library goes on after these with made-up data. */
static void warn(j_common_ptr jpeg, int level) {
    if (level >= 0)
        return;
    switch (jpeg->err->msg_code) {
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_ARITH_BAD_CODE:
    case JWRN_JPEG_EOF:
    case JWRN_MUST_RESYNC:
    case JWRN_BOGUS_PROGRESSION:
        fail(jpeg);
    default: /* surplus bytes, unknown version numbers: nothing is lost */
        break;
    }
}

static void watch(j_common_ptr jpeg) {
    struct session *s = jpeg->client_data;
    if (((j_decompress_ptr)jpeg)->input_scan_number > MAX_SCANS) {
        s->limit = true;
        (void)snprintf(s->message, sizeof s->message, "more than %d scans", MAX_SCANS);
        longjmp(s->out, 1);
    }
}

static void silent(j_common_ptr jpeg) {
    (void)jpeg;
}

static uint8_t times255(uint32_t a, uint32_t b) {
    uint32_t t = a * b + 128;
    return (uint8_t)(((t >> 8) + t) >> 8);
}

/* Stored inverted: what is stored is 255 minus the ink. */
static void cmyk_row(const uint8_t *cmyk, size_t n, uint8_t *rgb) {
    for (size_t i = 0; i < n; i++, cmyk += 4, rgb += 3) {
        int white = cmyk[3];
        for (int c = 0; c < 3; c++) {
            int v = white - times255((uint32_t)(255 - cmyk[c]), (uint32_t)white);
            rgb[c] = (uint8_t)(v < 0 ? 0 : v);
        }
    }
}

/* The calls that may jump, with nothing in locals that changes in between. inks: a row of 4 bytes a
 * pixel, for CMYK. */
static void read_rows(struct session *s, uint8_t *rgb, uint8_t *inks) {
    j_decompress_ptr jpeg = &s->jpeg;
    size_t width = jpeg->output_width;
    while (jpeg->output_scanline < jpeg->output_height) {
        uint8_t *out = rgb + (size_t)jpeg->output_scanline * width * 3;
        JSAMPROW row = inks ? inks : out;
        if (jpeg_read_scanlines(jpeg, &row, 1) == 1 && inks)
            cmyk_row(inks, width, out);
    }
    (void)jpeg_finish_decompress(jpeg);
}

static void start(struct session *s, struct mxc_bytes in) {
    j_decompress_ptr jpeg = &s->jpeg;
    jpeg->err = jpeg_std_error(&s->errors);
    s->errors.error_exit = fail;
    s->errors.emit_message = warn;
    s->errors.output_message = silent;
    jpeg->client_data = s;
    jpeg_create_decompress(jpeg);
    s->progress.progress_monitor = watch;
    jpeg->progress = &s->progress;
    jpeg_mem_src(jpeg, in.data, (unsigned long)in.size);
    (void)jpeg_read_header(jpeg, TRUE);
    switch (jpeg->jpeg_color_space) {
    case JCS_CMYK:
    case JCS_YCCK:
        jpeg->out_color_space = JCS_CMYK;
        break;
    default:
        jpeg->out_color_space = JCS_RGB;
    }
}

/* The only caller of setjmp: none of its locals changes after it. */
static enum mxc_code guarded(struct session *s, struct mxc_bytes in,
                             const struct mxc_image_info *info, uint8_t *rgb, uint8_t *inks,
                             struct mxc_err *err) {
    if (setjmp(s->out)) {
        if (!s->limit && s->errors.msg_code == JERR_OUT_OF_MEMORY)
            return mxc_err_nomem(err);
        return mxc_err_set(err, s->limit ? MXC_E_LIMIT : MXC_E_FORMAT, "%s", s->message);
    }
    start(s, in);
    if (s->jpeg.image_width != (JDIMENSION)info->width ||
        s->jpeg.image_height != (JDIMENSION)info->height)
        return mxc_err_set(err, MXC_E_FORMAT, "two frame headers that differ");
    if (s->jpeg.num_components != 1 && s->jpeg.num_components != 3 && s->jpeg.num_components != 4)
        return mxc_err_set(err, MXC_E_UNSUPPORTED, "%d colour components", s->jpeg.num_components);
    (void)jpeg_start_decompress(&s->jpeg);
    read_rows(s, rgb, s->jpeg.out_color_space == JCS_CMYK ? inks : NULL);
    return MXC_OK;
}

static enum mxc_code decode(struct mxc_bytes in, const struct mxc_image_info *info,
                            const uint8_t background[3], uint8_t *rgb, struct mxc_err *err) {
    (void)background;
    struct session *s = mxc_mem_zalloc(1, sizeof *s);
    uint8_t *inks = mxc_mem_array((size_t)info->width, 4);
    enum mxc_code code;
    if (s && inks) {
        code = guarded(s, in, info, rgb, inks, err);
        jpeg_destroy_decompress(&s->jpeg);
    } else {
        code = mxc_err_nomem(err);
    }
    mxc_mem_free(inks);
    mxc_mem_free(s);
    return code;
}

const struct mxc_codec mxc_codec_jpeg = {"JPEG", probe, decode};
