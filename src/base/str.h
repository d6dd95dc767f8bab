/* Slices of bytes and small text helpers. A slice borrows; it is not NUL-terminated. */
#ifndef MXC_BASE_STR_H
#define MXC_BASE_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mxc_str {
    const char *ptr;
    size_t length;
};

#define MXC_STR(literal) ((struct mxc_str){(literal), sizeof(literal) - 1})
struct mxc_str mxc_str_of(const char *text); /* NULL gives an empty slice */
bool mxc_str_equal(struct mxc_str a, struct mxc_str b);
bool mxc_str_is(struct mxc_str a, const char *text);
bool mxc_str_starts(struct mxc_str a, const char *prefix);
bool mxc_str_ends(struct mxc_str a, const char *suffix);

/* Decodes one code point; returns its length in bytes, 1 with *cp = 0xFFFFFFFF when the byte is not
 * the start of a well-formed sequence (RFC 3629), 0 at the end. */
size_t mxc_utf8_decode(const char *bytes, size_t length, uint32_t *cp);
/* Writes 1 to 4 bytes; surrogates and values above U+10FFFF become U+FFFD. Returns the length. */
size_t mxc_utf8_encode(uint32_t cp, char out[4]);
bool mxc_utf8_valid(const char *bytes, size_t length);
int mxc_hex_digit(char c); /* its value, -1: none */
/* Whole-string parses: false (and *out untouched) on rest, overflow, or emptiness. */
bool mxc_parse_i64(const char *text, int64_t *out);
bool mxc_parse_f64(const char *text, double *out);
/* Levenshtein distance, for "did you mean"; strings over 63 bytes are cut. */
unsigned mxc_str_distance(const char *a, const char *b);
/* FNV-1a, 64 bits. */
uint64_t mxc_hash_bytes(const void *bytes, size_t length, uint64_t seed);

#endif
