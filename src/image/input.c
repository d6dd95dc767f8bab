/* Data URIs, base64 and files to bytes. One pass over the text, one buffer of at most the size that
 * the text can give. */
#include "image/input.h"

#include "base/file.h"
#include "base/mem.h"

#include <stdbool.h>
#include <string.h>

static bool is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static char lower(char c) {
    return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
}

static struct mxc_str trimmed(struct mxc_str s) {
    while (s.length && is_space(*s.ptr)) {
        s.ptr++;
        s.length--;
    }
    while (s.length && is_space(s.ptr[s.length - 1]))
        s.length--;
    return s;
}

/* Whether s starts with a lower-case word, in any case. */
static bool starts(struct mxc_str s, const char *word) {
    size_t n = strlen(word);
    if (s.length < n)
        return false;
    for (size_t i = 0; i < n; i++)
        if (lower(s.ptr[i]) != word[i])
            return false;
    return true;
}

/* 0 to 63; -1: none */
static int sextet(char c) {
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    if (c == '+' || c == '-')
        return 62;
    return c == '/' || c == '_' ? 63 : -1;
}

enum mxc_image_source mxc_image_source_of(struct mxc_str text) {
    enum { ENOUGH = 24 };
    text = trimmed(text);
    if (starts(text, "data:"))
        return MXC_SOURCE_DATA;
    if (starts(text, "http://") || starts(text, "https://"))
        return MXC_SOURCE_HTTP;
    if (starts(text, "file:"))
        return MXC_SOURCE_FILE;
    size_t n = 0;
    for (size_t i = 0; i < text.length; i++) {
        if (is_space(text.ptr[i]) || text.ptr[i] == '=')
            continue;
        if (sextet(text.ptr[i]) < 0)
            return MXC_SOURCE_OTHER;
        n++;
    }
    /* A path is made of the same characters: pictures are longer, and their first bytes are known.
     */
    static const char *const heads[] = {"/9j/", "iVBORw0KGgo", "UklGR", "R0lGOD", "Qk"};
    for (size_t i = 0; n >= ENOUGH && i < sizeof heads / sizeof *heads; i++) {
        size_t k = strlen(heads[i]);
        if (text.length >= k && !memcmp(text.ptr, heads[i], k))
            return MXC_SOURCE_BASE64;
    }
    return n >= 256 ? MXC_SOURCE_BASE64 : MXC_SOURCE_OTHER;
}

/* The next character, with percent-encoding undone where asked; false at the end or, with *bad set,
 * at what is not an encoding. */
static bool next(struct mxc_str s, size_t *at, bool percent, char *c, bool *bad) {
    if (*at >= s.length)
        return false;
    *c = s.ptr[(*at)++];
    if (!percent || *c != '%')
        return true;
    int high = s.length - *at >= 2 ? mxc_hex_digit(s.ptr[*at]) : -1;
    int low = high >= 0 ? mxc_hex_digit(s.ptr[*at + 1]) : -1;
    *bad = low < 0;
    if (*bad)
        return false;
    *c = (char)(high * 16 + low);
    *at += 2;
    return true;
}

struct sink {
    uint8_t *data;
    size_t size, max;
    bool full;
};

static void put(struct sink *s, uint8_t byte) {
    if (s->size >= s->max)
        s->full = true;
    else
        s->data[s->size++] = byte;
}

static enum mxc_code from_base64(struct mxc_str s, bool percent, struct sink *out,
                                 struct mxc_err *err) {
    size_t at = 0, digits = 0, padding = 0;
    uint32_t bits = 0;
    bool bad = false;
    char c;
    while (!out->full && next(s, &at, percent, &c, &bad)) {
        if (is_space(c))
            continue;
        int v = sextet(c);
        if (c == '=') {
            padding++;
            continue;
        }
        if (v < 0 || padding)
            return mxc_err_at(err, MXC_E_FORMAT, (int64_t)at - 1, "base64: %s at byte %zu",
                              padding ? "more data after the padding" : "no base64 character",
                              at - 1);
        bits = bits << 6 | (uint32_t)v;
        if (++digits % 4 == 0) {
            put(out, (uint8_t)(bits >> 16));
            put(out, (uint8_t)(bits >> 8));
            put(out, (uint8_t)bits);
        }
    }
    if (bad)
        return mxc_err_at(err, MXC_E_FORMAT, (int64_t)at - 1,
                          "a broken percent-encoding at byte %zu", at - 1);
    if (out->full)
        return MXC_OK; /* the caller says so */
    size_t rest = digits % 4;
    if (rest == 1 || padding > 2 || (padding && rest + padding != 4))
        return mxc_err_set(err, MXC_E_FORMAT,
                           "base64: cut, or padded wrongly, after %zu characters", digits);
    if (rest >= 2)
        put(out, (uint8_t)(rest == 2 ? bits >> 4 : bits >> 10));
    if (rest == 3)
        put(out, (uint8_t)(bits >> 2));
    return MXC_OK;
}

static enum mxc_code from_percent(struct mxc_str s, struct sink *out, struct mxc_err *err) {
    size_t at = 0;
    bool bad = false;
    char c;
    while (!out->full && next(s, &at, true, &c, &bad))
        put(out, (uint8_t)c);
    return bad ? mxc_err_at(err, MXC_E_FORMAT, (int64_t)at - 1,
                            "a broken percent-encoding at byte %zu", at - 1)
               : MXC_OK;
}

static enum mxc_code collect(struct mxc_str s, bool base64, bool percent, size_t max_bytes,
                             uint8_t **data, size_t *size, struct mxc_err *err) {
    size_t room = base64 ? s.length / 4 * 3 + 3 : s.length;
    room = room < max_bytes ? room : max_bytes;
    struct sink out = {.max = room};
    out.data = mxc_mem_alloc(room ? room : 1);
    if (!out.data)
        return mxc_err_nomem(err);
    enum mxc_code code = base64 ? from_base64(s, percent, &out, err) : from_percent(s, &out, err);
    if (!code && out.full)
        code = mxc_err_set(err, MXC_E_LIMIT, "the picture takes more than %zu bytes", max_bytes);
    if (!code && !out.size)
        code = mxc_err_set(err, MXC_E_FORMAT, "the picture is empty (0 bytes)");
    if (code) {
        mxc_mem_free(out.data);
        return code;
    }
    *data = out.data;
    *size = out.size;
    return MXC_OK;
}

enum mxc_code mxc_image_from_uri(struct mxc_str uri, size_t max_bytes, uint8_t **data, size_t *size,
                                 struct mxc_err *err) {
    uri = trimmed(uri);
    if (!starts(uri, "data:"))
        return mxc_err_set(err, MXC_E_FORMAT, "not a data URI");
    const char *comma = memchr(uri.ptr, ',', uri.length);
    if (!comma)
        return mxc_err_set(err, MXC_E_FORMAT, "a data URI without a comma before its data");
    struct mxc_str head = {uri.ptr, (size_t)(comma - uri.ptr)};
    struct mxc_str body = {comma + 1, uri.length - head.length - 1};
    size_t last = head.length;
    while (last && head.ptr[last - 1] != ';')
        last--;
    struct mxc_str parameter = trimmed((struct mxc_str){head.ptr + last, head.length - last});
    bool base64 = last && parameter.length == 6 && starts(parameter, "base64");
    return collect(body, base64, true, max_bytes, data, size, err);
}

enum mxc_code mxc_image_from_base64(struct mxc_str text, size_t max_bytes, uint8_t **data,
                                    size_t *size, struct mxc_err *err) {
    return collect(text, true, false, max_bytes, data, size, err);
}

enum mxc_code mxc_image_from_file(const char *path, size_t max_bytes, uint8_t **data, size_t *size,
                                  struct mxc_err *err) {
    char *bytes;
    size_t n;
    enum mxc_code code = mxc_file_read(path, max_bytes, &bytes, &n, err);
    if (code)
        return code;
    *data = (uint8_t *)bytes;
    *size = n;
    return MXC_OK;
}
