/* Slices, UTF-8, parsing of numbers, edit distance, hashing. Pure functions without allocation.
 * In: borrowed bytes, which may hold anything. Out: values; nothing is kept.
 * UTF-8 decoding takes a malformed byte as one character 0xFFFFFFFF and goes on behind it, so a
 * loop over any input ends. Overlong forms and surrogates count as malformed; encoding turns what
 * is no character into U+FFFD.
 * Numbers must reach to the end of the text. The distance looks at 63 bytes at most. */
#define _GNU_SOURCE
#include "base/str.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct mxc_str mxc_str_of(const char *text) {
    return (struct mxc_str){text ? text : "", text ? strlen(text) : 0};
}

bool mxc_str_equal(struct mxc_str a, struct mxc_str b) {
    return a.length == b.length && (!a.length || !memcmp(a.ptr, b.ptr, a.length));
}

bool mxc_str_is(struct mxc_str a, const char *text) {
    return mxc_str_equal(a, mxc_str_of(text));
}

bool mxc_str_starts(struct mxc_str a, const char *prefix) {
    size_t n = strlen(prefix);
    return a.length >= n && !memcmp(a.ptr, prefix, n);
}

bool mxc_str_ends(struct mxc_str a, const char *suffix) {
    size_t n = strlen(suffix);
    return a.length >= n && !memcmp(a.ptr + a.length - n, suffix, n);
}

size_t mxc_utf8_decode(const char *bytes, size_t length, uint32_t *cp) {
    const unsigned char *s = (const unsigned char *)bytes;
    if (!length)
        return 0;
    if (s[0] < 0x80) {
        *cp = s[0];
        return 1;
    }
    size_t n = s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : 2;
    *cp = 0xFFFFFFFF;
    if (s[0] < 0xC2 || s[0] > 0xF4 || length < n)
        return 1;
    uint32_t v = s[0] & (0x7Fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xC0) != 0x80)
            return 1;
        v = v << 6 | (s[i] & 0x3Fu);
    }
    if ((n == 3 && (v < 0x800 || (v >= 0xD800 && v < 0xE000))) ||
        (n == 4 && (v < 0x10000 || v > 0x10FFFF)))
        return 1;
    *cp = v;
    return n;
}

size_t mxc_utf8_encode(uint32_t cp, char out[4]) {
    if (cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000))
        cp = 0xFFFD;
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (char)(0x80 | (cp & 0x3F));
    return 4;
}

bool mxc_utf8_valid(const char *bytes, size_t length) {
    while (length) {
        uint32_t cp;
        size_t n = mxc_utf8_decode(bytes, length, &cp);
        if (cp == 0xFFFFFFFF)
            return false;
        bytes += n;
        length -= n;
    }
    return true;
}

int mxc_hex_digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

bool mxc_parse_i64(const char *text, int64_t *out) {
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end || errno)
        return false;
    *out = v;
    return true;
}

bool mxc_parse_f64(const char *text, double *out) {
    char *end;
    errno = 0;
    double v = strtod(text, &end);
    if (end == text || *end || errno == ERANGE)
        return false;
    *out = v;
    return true;
}

unsigned mxc_str_distance(const char *a, const char *b) {
    enum { MAX = 63 };
    unsigned row[MAX + 1];
    size_t na = strnlen(a, MAX), nb = strnlen(b, MAX);
    for (size_t j = 0; j <= nb; j++)
        row[j] = (unsigned)j;
    for (size_t i = 1; i <= na; i++) {
        unsigned diagonal = row[0];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= nb; j++) {
            unsigned best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[nb];
}

uint64_t mxc_hash_bytes(const void *bytes, size_t length, uint64_t seed) {
    const unsigned char *s = bytes;
    uint64_t h = 0xCBF29CE484222325u ^ seed;
    for (size_t i = 0; i < length; i++)
        h = (h ^ s[i]) * 0x100000001B3u;
    return h;
}
