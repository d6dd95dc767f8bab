/* Text of a request -> bytes of a picture: what source the text looks like, data: URIs and bare
 * base64 within a limit, and what decodes from the bytes. Input: the text. */
#define _GNU_SOURCE
#include "base/mem.h"
#include "image/decode.h"
#include "image/input.h"
#include "must_say.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LIMIT = 1 << 12 };

static void look(const uint8_t *bytes, size_t size) {
    const struct mxc_image_options options = {.max_pixels = 1 << 14};
    struct mxc_image image;
    struct mxc_err err = {0};
    if (size > LIMIT)
        abort();
    if (mxc_image_decode(bytes, size, &options, &image, &err))
        must_say(&err);
    else
        mxc_image_fini(&image);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *copy = malloc(size ? size : 1); /* of exactly that size, for the sanitizer */
    if (!copy)
        abort();
    if (size)
        memcpy(copy, data, size);
    const struct mxc_str text = {copy, size};
    enum mxc_image_source source = mxc_image_source_of(text);
    for (int base64 = 0; base64 < 2; base64++) {
        struct mxc_err err = {0};
        uint8_t *bytes = NULL;
        size_t n = 0;
        enum mxc_code code = base64 ? mxc_image_from_base64(text, LIMIT, &bytes, &n, &err)
                                    : mxc_image_from_uri(text, LIMIT, &bytes, &n, &err);
        if (code) {
            must_say(&err);
            if (bytes)
                abort();
            continue;
        }
        if (!base64 && source != MXC_SOURCE_DATA)
            abort(); /* only what looks like one is a data: URI */
        look(bytes, n);
        mxc_mem_free(bytes);
    }
    free(copy);
    return 0;
}
