/* Base64: vocabularies write the bytes of their tokens so, tokenizer.json the character maps of
 * sentencepiece, and clients may ask for embeddings in it. Decoding is strict: a character outside
 * the alphabet, a length that is no multiple of four, or bits left over mean that the file is
 * damaged. */
#include "format/base64.h"

#include "base/mem.h"

static int digit(char c) {
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

bool mxc_base64_into(struct mxc_str text, char *out, size_t *length) {
    size_t n = text.length, pad = 0, at = 0;
    if (n % 4)
        return false;
    while (n && pad < 2 && text.ptr[n - 1] == '=') {
        n--;
        pad++;
    }
    uint32_t bits = 0;
    unsigned count = 0;
    for (size_t i = 0; i < n; i++) {
        int d = digit(text.ptr[i]);
        if (d < 0)
            return false;
        bits = bits << 6 | (uint32_t)d;
        count += 6;
        if (count >= 8) {
            count -= 8;
            out[at++] = (char)(bits >> count & 0xFF);
        }
    }
    if (bits & ((1u << count) - 1))
        return false;
    *length = at;
    return true;
}

enum mxc_code mxc_base64_decode(struct mxc_str text, char **out, size_t *length,
                                struct mxc_err *err) {
    char *bytes = mxc_mem_alloc(text.length / 4 * 3 + 1);
    if (!bytes)
        return mxc_err_nomem(err);
    if (!mxc_base64_into(text, bytes, length)) {
        mxc_mem_free(bytes);
        return mxc_err_set(err, MXC_E_FORMAT, "not base64");
    }
    *out = bytes;
    return MXC_OK;
}

void mxc_base64_encode(const void *bytes, size_t length, struct mxc_buf *out) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *in = bytes;
    for (size_t i = 0; i < length; i += 3) {
        size_t left = length - i;
        uint32_t bits = (uint32_t)in[i] << 16 | (left > 1 ? (uint32_t)in[i + 1] << 8 : 0) |
                        (left > 2 ? (uint32_t)in[i + 2] : 0);
        const char quad[4] = {digits[bits >> 18], digits[bits >> 12 & 63],
                              left > 1 ? digits[bits >> 6 & 63] : '=',
                              left > 2 ? digits[bits & 63] : '='};
        (void)mxc_buf_append(out, quad, sizeof quad);
    }
}
