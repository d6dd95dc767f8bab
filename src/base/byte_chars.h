/* The byte <-> character map of byte-level vocabularies: printable Latin-1 bytes stand for
 * themselves, the other 68 for U+0100 upwards in order. */
#ifndef MXC_BASE_BYTE_CHARS_H
#define MXC_BASE_BYTE_CHARS_H

#include <stdbool.h>
#include <stdint.h>

static inline bool mxc_byte_is_plain(uint32_t c) {
    return (c >= 0x21 && c <= 0x7E) || (c >= 0xA1 && c <= 0xAC) || (c >= 0xAE && c <= 0xFF);
}

/* Code point of a byte. */
static inline uint32_t mxc_byte_to_cp(uint8_t byte) {
    if (mxc_byte_is_plain(byte))
        return byte;
    if (byte <= 0x20)
        return 0x100u + byte;
    if (byte <= 0xA0) /* 7F to A0 */
        return 0x121u + (byte - 0x7Fu);
    return 0x143; /* AD */
}

/* Byte of a code point; -1: none. */
static inline int mxc_cp_to_byte(uint32_t cp) {
    if (cp < 0x100)
        return mxc_byte_is_plain(cp) ? (int)cp : -1;
    if (cp <= 0x120)
        return (int)(cp - 0x100);
    if (cp <= 0x142)
        return (int)(cp - 0x121 + 0x7F);
    return cp == 0x143 ? 0xAD : -1;
}

#endif
