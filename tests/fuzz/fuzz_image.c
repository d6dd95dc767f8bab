/* Bytes -> picture: every decoder, chosen by content. A first byte of 'c' means that the checksums
 * of a PNG are made right first, so that what lies behind them is reached. */
#define _GNU_SOURCE
#include "image/decode.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint32_t crc32(const uint8_t *p, size_t n) {
    uint32_t crc = 0xFFFFFFFFu;
    while (n--) {
        crc ^= *p++;
        for (int i = 0; i < 8; i++)
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    }
    return ~crc;
}

static void mend(uint8_t *png, size_t size) {
    for (size_t at = 8; size > at && size - at >= 12;) {
        size_t n = (size_t)png[at] << 24 | (size_t)png[at + 1] << 16 | (size_t)png[at + 2] << 8 |
                   png[at + 3];
        if (n > size - at - 12)
            return;
        uint32_t crc = crc32(png + at + 4, n + 4);
        for (int i = 0; i < 4; i++)
            png[at + 8 + n + (size_t)i] = (uint8_t)(crc >> (24 - 8 * i));
        at += n + 12;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct mxc_image_options options = {.max_pixels = 1 << 16};
    struct mxc_image_info info;
    struct mxc_image image;
    struct mxc_err err = {0};
    bool checksums = size && *data == 'c';
    size_t n = size - checksums;
    uint8_t *bytes = malloc(n ? n : 1);
    if (!bytes)
        abort();
    memcpy(bytes, data + checksums, n);
    if (checksums)
        mend(bytes, n);
    bool probed = !mxc_image_probe(bytes, n, &options, &info, &err);
    if (!mxc_image_decode(bytes, n, &options, &image, &err)) {
        if (!probed || info.width != image.width || info.height != image.height)
            abort();
        volatile uint8_t last = image.rgb[(size_t)image.width * (size_t)image.height * 3 - 1];
        (void)last;
        mxc_image_fini(&image);
    } else if (!*err.message || strchr(err.message, '\n')) {
        abort();
    }
    free(bytes);
    return 0;
}
