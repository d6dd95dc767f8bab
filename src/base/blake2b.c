/* BLAKE2b-256, as RFC 7693 writes it. In: bytes in any pieces. Out: 32 bytes. The last block is
 * kept back until the end is known, since it is compressed with a flag of its own. */
#include "base/blake2b.h"

#include <stdbool.h>
#include <string.h>

static const uint64_t iv[8] = {UINT64_C(0x6a09e667f3bcc908), UINT64_C(0xbb67ae8584caa73b),
                               UINT64_C(0x3c6ef372fe94f82b), UINT64_C(0xa54ff53a5f1d36f1),
                               UINT64_C(0x510e527fade682d1), UINT64_C(0x9b05688c2b3e6c1f),
                               UINT64_C(0x1f83d9abfb41bd6b), UINT64_C(0x5be0cd19137e2179)};

static const uint8_t sigma[10][16] = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
                                      {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
                                      {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
                                      {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
                                      {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
                                      {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
                                      {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
                                      {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
                                      {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
                                      {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

static inline uint64_t rotate(uint64_t x, int n) {
    return x >> n | x << (64 - n);
}

static inline uint64_t load(const uint8_t *p) {
    uint64_t x;
    memcpy(&x, p, sizeof x);
    return __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? x : __builtin_bswap64(x);
}

/* A macro, so that the sixteen words stay in registers. */
#define MIX(a, b, c, d, x, y)                                                                      \
    do {                                                                                           \
        a += b + (x);                                                                              \
        d = rotate(d ^ a, 32);                                                                     \
        c += d;                                                                                    \
        b = rotate(b ^ c, 24);                                                                     \
        a += b + (y);                                                                              \
        d = rotate(d ^ a, 16);                                                                     \
        c += d;                                                                                    \
        b = rotate(b ^ c, 63);                                                                     \
    } while (0)

static void compress(struct mxc_blake2b *s, const uint8_t *block, bool last) {
    uint64_t v[16], m[16];
    for (int i = 0; i < 16; i++)
        m[i] = load(block + 8 * i);
    for (int i = 0; i < 8; i++) {
        v[i] = s->h[i];
        v[i + 8] = iv[i];
    }
    v[12] ^= s->length[0];
    v[13] ^= s->length[1];
    if (last)
        v[14] = ~v[14];
    for (int round = 0; round < 12; round++) {
        const uint8_t *o = sigma[round % 10];
        MIX(v[0], v[4], v[8], v[12], m[o[0]], m[o[1]]);
        MIX(v[1], v[5], v[9], v[13], m[o[2]], m[o[3]]);
        MIX(v[2], v[6], v[10], v[14], m[o[4]], m[o[5]]);
        MIX(v[3], v[7], v[11], v[15], m[o[6]], m[o[7]]);
        MIX(v[0], v[5], v[10], v[15], m[o[8]], m[o[9]]);
        MIX(v[1], v[6], v[11], v[12], m[o[10]], m[o[11]]);
        MIX(v[2], v[7], v[8], v[13], m[o[12]], m[o[13]]);
        MIX(v[3], v[4], v[9], v[14], m[o[14]], m[o[15]]);
    }
    for (int i = 0; i < 8; i++)
        s->h[i] ^= v[i] ^ v[i + 8];
}

static void count(struct mxc_blake2b *s, size_t n) {
    s->length[0] += n;
    s->length[1] += s->length[0] < n;
}

void mxc_blake2b_init(struct mxc_blake2b *state) {
    *state = (struct mxc_blake2b){.used = 0};
    memcpy(state->h, iv, sizeof iv);
    state->h[0] ^= UINT64_C(0x01010000) ^ MXC_BLAKE2B_BYTES; /* no key, depth and fanout 1 */
}

void mxc_blake2b_add(struct mxc_blake2b *state, const void *data, size_t length) {
    const uint8_t *p = data;
    if (state->used + length > MXC_BLAKE2B_BLOCK) {
        size_t fill = MXC_BLAKE2B_BLOCK - state->used;
        memcpy(state->block + state->used, p, fill);
        count(state, MXC_BLAKE2B_BLOCK);
        compress(state, state->block, false);
        p += fill;
        length -= fill;
        state->used = 0;
        for (; length > MXC_BLAKE2B_BLOCK; p += MXC_BLAKE2B_BLOCK, length -= MXC_BLAKE2B_BLOCK) {
            count(state, MXC_BLAKE2B_BLOCK);
            compress(state, p, false);
        }
    }
    if (length)
        memcpy(state->block + state->used, p, length);
    state->used += length;
}

void mxc_blake2b_end(struct mxc_blake2b *state, uint8_t digest[MXC_BLAKE2B_BYTES]) {
    count(state, state->used);
    memset(state->block + state->used, 0, MXC_BLAKE2B_BLOCK - state->used);
    compress(state, state->block, true);
    for (size_t i = 0; i < MXC_BLAKE2B_BYTES; i++)
        digest[i] = (uint8_t)(state->h[i / 8] >> 8 * (i % 8));
}
