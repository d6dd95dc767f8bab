/* Unpack functions of block formats, private to quant/: each writes the codes of one block
 * [block], and the scales and biases of its groups [block / group]. Biases are not written where
 * the format has a zero point or a table. Thread rules: pure functions. */
#ifndef MXC_QUANT_UNPACK_H
#define MXC_QUANT_UNPACK_H

#include "base/half.h"

#include <stddef.h>

typedef void mxc_unpack_fn(const uint8_t *b, uint8_t *codes, float *scales, float *biases);

mxc_unpack_fn mxc_unpack_q2_k, mxc_unpack_q3_k, mxc_unpack_iq4_nl, mxc_unpack_iq4_xs,
    mxc_unpack_mxfp4, mxc_unpack_tq1_0, mxc_unpack_tq2_0;

/* n codes (a multiple of 8) of 2, 3, 4, 5, 6 or 8 bits out of a little-endian bit stream. */
void mxc_unpack_stream(const uint8_t *p, size_t n, uint32_t bits, uint8_t *codes);

static inline float mxc_load_half(const uint8_t *p) {
    return mxc_f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

/* 32 codes of 4 bits: number j is the low half of byte j, number j + 16 the high half. */
static inline void mxc_nibbles32(const uint8_t *qs, uint8_t *codes) {
    for (int j = 0; j < 16; j++) {
        codes[j] = qs[j] & 15;
        codes[j + 16] = qs[j] >> 4;
    }
}

#endif
