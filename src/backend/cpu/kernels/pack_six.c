/* Pack, codes of six bits: how they are interleaved and read back (I6, K6), and Q6_K to K6 straight
 * from file bytes, with its int8 scales and f16 factors as they are, so that nothing is rounded.
 * In: rows of codes, or a view of a Q6_K tensor that the loader has checked. Out: bytes of a strip.
 */
#include "backend/cpu/kernels/layout.h"
#include "base/half.h"

#include <string.h>

enum { S = MXC_STRIP, Q6_BYTES = 210, Q6_HIGH = 128, Q6_SCALES = 192, Q6_FACTOR = 208 };
enum { AHEAD = 2 * Q6_BYTES, LOW4 = 0x0F0F0F0F, LOW2 = 0x03030303, HIGH2 = 0x30303030 };

static uint32_t load_u32(const uint8_t *p) {
    uint32_t u;
    memcpy(&u, p, sizeof u);
    return u;
}

/* 16 numbers of a row in four words. */
static void put16(const uint32_t q[4], uint8_t *out) {
    for (int j = 0; j < 3; j++) {
        uint32_t u = q[j] | (q[3] >> 2 * j & LOW2) << 6;
        memcpy(out + 64 * j, &u, sizeof u);
    }
}

void mxc_six_put(const uint8_t *codes, size_t group, size_t row, uint8_t *block) {
    for (size_t i = 0; i < group; i += 16) {
        uint32_t q[4];
        memcpy(q, codes + i, sizeof q);
        put16(q, block + mxc_six_at(i, row));
    }
}

uint8_t mxc_six_get(const uint8_t *block, size_t i, size_t row) {
    const uint8_t *p = block + mxc_six_at(i / 16 * 16, row) + i % 4;
    if (i % 16 < 12)
        return p[64 * (i % 16 / 4)] & 63;
    return (uint8_t)(p[0] >> 6 | p[64] >> 6 << 2 | p[128] >> 6 << 4);
}

/* One block of one row; a block of the file has low halves, high pairs, scales, factor. */
static void put_block(const uint8_t *b, size_t row, uint8_t *out) {
    memcpy(out + 2 * row, b + Q6_FACTOR, sizeof(uint16_t));
    out += MXC_BLOCK_TAIL;
    for (size_t half = 0; half < 2; half++) {
        uint32_t q[4][8]; /* runs of 32 numbers */
        for (size_t j = 0; j < 8; j++) {
            uint32_t low0 = load_u32(b + 64 * half + 4 * j);
            uint32_t low1 = load_u32(b + 64 * half + 32 + 4 * j);
            uint32_t high = load_u32(b + Q6_HIGH + 32 * half + 4 * j);
            q[0][j] = (low0 & LOW4) | (high << 4 & HIGH2);
            q[1][j] = (low1 & LOW4) | (high << 2 & HIGH2);
            q[2][j] = (low0 >> 4 & LOW4) | (high & HIGH2);
            q[3][j] = (low1 >> 4 & LOW4) | (high >> 2 & HIGH2);
        }
        for (size_t run = 0; run < 4; run++, out += MXC_K6_CELL)
            for (size_t g = 0; g < 2; g++) {
                put16(q[run] + 4 * g, out + MXC_K6_SCALES + mxc_six_at(16 * g, row));
                out[mxc_k6_scale_at(g, row)] = b[Q6_SCALES + 8 * half + 2 * run + g];
            }
    }
}

void mxc_pack_k6(const struct mxc_view *view, const struct mxc_packed *w, int32_t strip,
                 uint8_t *out) {
    const uint8_t *rows[S];
    int32_t left = w->n - strip * S;
    size_t n = left < S ? (size_t)left : S;
    for (size_t r = 0; r < n; r++)
        rows[r] = mxc_tensor_row_data(view->tensor, view->row0 + ((int64_t)strip * S + (int64_t)r) *
                                                                     view->row_step);
    if (n < S)
        memset(out, 0, w->strip_bytes);
    for (int32_t k = 0; k < w->k; k += MXC_K6_BLOCK, out += MXC_K6_BYTES)
        for (size_t r = 0; r < n; r++) {
            __builtin_prefetch(rows[r] + AHEAD);
            put_block(rows[r], r, out);
            rows[r] += Q6_BYTES;
        }
}

void mxc_k6_row(const struct mxc_packed *w, const uint8_t *strip, size_t row, float *out) {
    for (int32_t k = 0; k < w->k; k += MXC_K6_BLOCK, strip += MXC_K6_BYTES) {
        uint16_t half;
        memcpy(&half, strip + 2 * row, sizeof half);
        float factor = mxc_f16_to_f32(half) / w->unit;
        for (size_t i = 0; i < MXC_K6_BLOCK; i++) {
            const uint8_t *cell = strip + MXC_BLOCK_TAIL + i / MXC_CELL_I8 * MXC_K6_CELL;
            int8_t scale = (int8_t)cell[mxc_k6_scale_at(i % MXC_CELL_I8 / 16, row)];
            int code = mxc_six_get(cell + MXC_K6_SCALES, i % MXC_CELL_I8, row);
            *out++ = factor * (float)scale * (float)(code - MXC_K6_ZERO);
        }
    }
}
