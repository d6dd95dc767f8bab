/* Block formats of few bits: Q2_K, Q3_K, the 4-bit formats with a table, and the ternary ones.
 * In: one block as it stands in a GGUF file. Out: codes and the scales of groups; decode.c makes
 * numbers of them. Ternary blocks have one scale for 256 numbers and show it once per 32. */
#include "quant/unpack.h"

#include "quant/decode.h"
#include "quant/float8.h"

const int8_t mxc_table_iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                  1,    13,   25,  38,  53,  69,  89,  113};
const int8_t mxc_table_e2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* 256 codes of 2 bits: in each half of 128, 32 bytes hold four runs of 32. */
static void pairs256(const uint8_t *qs, uint8_t *codes) {
    for (int half = 0; half < 2; half++)
        for (int run = 0; run < 4; run++)
            for (int j = 0; j < 32; j++)
                codes[128 * half + 32 * run + j] = qs[32 * half + j] >> 2 * run & 3;
}

/* 16 bytes of scale (low half) and minimum, codes, d, dmin. */
void mxc_unpack_q2_k(const uint8_t *b, uint8_t *codes, float *scales, float *biases) {
    float d = mxc_load_half(b + 80), dmin = mxc_load_half(b + 82);
    for (int g = 0; g < 16; g++) {
        scales[g] = d * (float)(b[g] & 15);
        biases[g] = -(dmin * (float)(b[g] >> 4));
    }
    pairs256(b + 16, codes);
}

/* 32 bytes of third bits, codes, 12 bytes of scales (4 low bits of sixteen, then 2 high ones), d.
 */
void mxc_unpack_q3_k(const uint8_t *b, uint8_t *codes, float *scales, float *biases) {
    (void)biases;
    const uint8_t *sc = b + 96;
    float d = mxc_load_half(b + 108);
    for (int g = 0; g < 16; g++) {
        int low = g < 8 ? sc[g] & 15 : sc[g - 8] >> 4;
        int high = sc[8 + g % 4] >> 2 * (g / 4) & 3;
        scales[g] = d * (float)((low | high << 4) - 32);
    }
    pairs256(b + 32, codes);
    for (int run = 0; run < 8; run++)
        for (int j = 0; j < 32; j++)
            codes[32 * run + j] = (uint8_t)(codes[32 * run + j] | (b[j] >> run & 1) << 2);
}

void mxc_unpack_iq4_nl(const uint8_t *b, uint8_t *codes, float *scales, float *biases) {
    (void)biases;
    scales[0] = mxc_load_half(b);
    mxc_nibbles32(b + 2, codes);
}

/* d, 16 bits with the two high bits of eight scales, 4 bytes with their low halves, codes. */
void mxc_unpack_iq4_xs(const uint8_t *b, uint8_t *codes, float *scales, float *biases) {
    (void)biases;
    float d = mxc_load_half(b);
    unsigned high = (unsigned)(b[2] | b[3] << 8);
    for (int g = 0; g < 8; g++) {
        int low = b[4 + g / 2] >> 4 * (g % 2) & 15;
        scales[g] = d * (float)((low | (int)(high >> 2 * g & 3) << 4) - 32);
        mxc_nibbles32(b + 8 + 16 * g, codes + 32 * g);
    }
}

void mxc_unpack_mxfp4(const uint8_t *b, uint8_t *codes, float *scales, float *biases) {
    (void)biases;
    scales[0] = mxc_e8m0_half(b[0]);
    mxc_nibbles32(b + 1, codes);
}

static void one_scale(float d, float *scales) {
    for (int g = 0; g < 8; g++)
        scales[g] = d;
}

/* Digit `place` of bytes that hold fractions in base 3: after a multiplication by 3^place the digit
 * is the whole part of three times what is left of the byte. */
static void digits(const uint8_t *p, int n, int places, uint8_t *codes) {
    static const uint8_t powers[5] = {1, 3, 9, 27, 81};
    for (int place = 0; place < places; place++) {
        for (int j = 0; j < n; j++) {
            uint8_t rest = (uint8_t)(p[j] * powers[place]);
            codes[place * n + j] = (uint8_t)(rest * 3 >> 8);
        }
    }
}

/* 5 digits of each of 32 and of 16 bytes, 4 digits of 4 bytes, d. */
void mxc_unpack_tq1_0(const uint8_t *b, uint8_t *codes, float *scales, float *biases) {
    (void)biases;
    digits(b, 32, 5, codes);
    digits(b + 32, 16, 5, codes + 160);
    digits(b + 48, 4, 4, codes + 240);
    one_scale(mxc_load_half(b + 52), scales);
}

void mxc_unpack_tq2_0(const uint8_t *b, uint8_t *codes, float *scales, float *biases) {
    (void)biases;
    pairs256(b, codes);
    one_scale(mxc_load_half(b + 64), scales);
}
