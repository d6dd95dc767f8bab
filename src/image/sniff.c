/* Which format a file is, by its first bytes. What is not read is refused by the name people know
 * it by, so that a phone's HEIC does not look like a damaged file. */
#include "image/codec.h"

#include <stdbool.h>
#include <string.h>

static bool at(struct mxc_bytes in, size_t offset, const char *bytes, size_t n) {
    return in.size >= offset && in.size - offset >= n && !memcmp(in.data + offset, bytes, n);
}

#define AT(in, offset, literal) at(in, offset, "" literal, sizeof(literal) - 1)

static bool is_bmp(struct mxc_bytes in) {
    static const uint8_t headers[] = {12, 40, 52, 56, 64, 108, 124};
    if (!AT(in, 0, "BM"))
        return false;
    if (in.size < 18)
        return true; /* too short, and bmp.c says so */
    uint32_t header = mxc_le32(in.data + 14);
    for (size_t i = 0; i < sizeof headers; i++)
        if (header == headers[i])
            return true;
    return false;
}

/* Markup: SVG has a root element of that name within its first kilobytes. */
static bool is_svg(struct mxc_bytes in) {
    size_t n = in.size < 4096 ? in.size : 4096, i = AT(in, 0, "\xef\xbb\xbf") ? 3 : 0;
    while (i < n && strchr(" \t\r\n", in.data[i]) && in.data[i])
        i++;
    if (i >= n || in.data[i] != '<')
        return false;
    for (; i + 4 <= n; i++)
        if (!memcmp(in.data + i, "<svg", 4))
            return true;
    return false;
}

/* ISO base media files: the brand decides. */
static const char *iso_media(struct mxc_bytes in) {
    static const struct {
        char brand[5];
        const char *name;
    } brands[] = {{"avif", "AVIF"}, {"avis", "AVIF"}, {"heic", "HEIC"}, {"heix", "HEIC"},
                  {"heim", "HEIC"}, {"heis", "HEIC"}, {"hevc", "HEIC"}, {"hevx", "HEIC"},
                  {"mif1", "HEIF"}, {"msf1", "HEIF"}, {"crx ", "CR3"}};
    if (!AT(in, 4, "ftyp"))
        return NULL;
    for (size_t i = 0; i < sizeof brands / sizeof *brands; i++)
        if (at(in, 8, brands[i].brand, 4))
            return brands[i].name;
    return "MP4 (video)";
}

static const char *foreign(struct mxc_bytes in) {
    static const struct {
        const char *bytes;
        size_t length, offset;
        const char *name;
    } known[] = {
        {"II*\0", 4, 0, "TIFF"},
        {"MM\0*", 4, 0, "TIFF"},
        {"II+\0", 4, 0, "TIFF"},
        {"MM\0+", 4, 0, "TIFF"},
        {"\xff\x0a", 2, 0, "JPEG XL"},
        {"\0\0\0\x0cJXL \r\n\x87\n", 12, 0, "JPEG XL"},
        {"\0\0\0\x0cjP  \r\n\x87\n", 12, 0, "JPEG 2000"},
        {"\xff\x4f\xff\x51", 4, 0, "JPEG 2000"},
        {"%PDF-", 5, 0, "PDF"},
        {"%!PS", 4, 0, "PostScript"},
        {"8BPS", 4, 0, "Photoshop"},
        {"\0\0\1\0", 4, 0, "ICO"},
        {"qoif", 4, 0, "QOI"},
        {"DDS ", 4, 0, "DDS"},
        {"\x1a\x45\xdf\xa3", 4, 0, "Matroska (video)"},
        {"\x1f\x8b", 2, 0, "gzip"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (at(in, known[i].offset, known[i].bytes, known[i].length))
            return known[i].name;
    const char *iso = iso_media(in);
    if (iso)
        return iso;
    if (in.size > 2 && in.data[0] == 'P' && in.data[1] >= '1' && in.data[1] <= '7' &&
        strchr(" \t\r\n", in.data[2]) && in.data[2])
        return "PPM";
    return is_svg(in) ? "SVG" : NULL;
}

enum mxc_code mxc_image_sniff(struct mxc_bytes in, enum mxc_image_format *format,
                              struct mxc_err *err) {
    if (!in.size)
        return mxc_err_set(err, MXC_E_FORMAT, "the picture is empty (0 bytes)");
    if (AT(in, 0, "\xff\xd8\xff"))
        *format = MXC_IMAGE_JPEG;
    else if (AT(in, 0, "\x89PNG\r\n\x1a\n"))
        *format = MXC_IMAGE_PNG;
    else if (AT(in, 0, "RIFF") && AT(in, 8, "WEBP"))
        *format = MXC_IMAGE_WEBP;
    else if (AT(in, 0, "GIF87a") || AT(in, 0, "GIF89a"))
        *format = MXC_IMAGE_GIF;
    else if (is_bmp(in))
        *format = MXC_IMAGE_BMP;
    else {
        const char *name = foreign(in);
        if (name)
            return mxc_err_set(err, MXC_E_UNSUPPORTED,
                               "%s is not read; JPEG, PNG, WebP, GIF and BMP are", name);
        return mxc_err_set(err, MXC_E_FORMAT, "no picture: not JPEG, PNG, WebP, GIF or BMP");
    }
    return MXC_OK;
}
