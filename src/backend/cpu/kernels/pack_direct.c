/* Pack, direct: strips of the storages that most files have, from file bytes to the layout in one
 * pass, a group at a time with all rows side by side: Q4_0, Q4_1, Q8_0, MLX affine of 4 and 8 bits,
 * BF16. The same bytes as pack.c makes of them through codes and f32, at the speed of memory. In: a
 * view that the loader has checked, rows of whole strips. Out: the strip, or "not one of these". */
#include "backend/cpu/kernels/layout.h"
#include "base/half.h"

#include <string.h>

enum { S = MXC_STRIP, AHEAD = 320, NIBBLES = 0x0F0F0F0F };

/* Rows of a strip: codes (or everything), and for MLX scales and biases. */
struct rows {
    const uint8_t *data[S], *scales[S], *biases[S];
    float unit;
    bool bf16;
};

static uint32_t load_u32(const uint8_t *p) {
    uint32_t u;
    memcpy(&u, p, sizeof u);
    return u;
}

static uint16_t load_u16(const uint8_t *p) {
    uint16_t u;
    memcpy(&u, p, sizeof u);
    return u;
}

static void store_u32(uint8_t *p, size_t i, uint32_t u) {
    memcpy(p + 4 * i, &u, sizeof u);
}

static void store_u16(uint8_t *p, size_t i, uint16_t u) {
    memcpy(p + 2 * i, &u, sizeof u);
}

/* One group of 32: GGUF blocks of a scale, a bias (Q4_1) and 16 bytes, number j in the low half of
 * byte j, number j + 16 in the high half. */
static void group_q4(const struct rows *rows, size_t g, bool affine, uint8_t *out) {
    const size_t head = affine ? 4 : 2, bytes = head + 16;
    uint8_t *tail = out + 16 * S;
    for (size_t r = 0; r < S; r++) {
        const uint8_t *b = rows->data[r] + g * bytes, *q = b + head;
        uint32_t a0 = load_u32(q), a1 = load_u32(q + 4);
        uint32_t a2 = load_u32(q + 8), a3 = load_u32(q + 12);
        __builtin_prefetch(b + AHEAD);
        store_u32(out, r, (a0 & NIBBLES) | (a1 & NIBBLES) << 4);
        store_u32(out, S + r, (a2 & NIBBLES) | (a3 & NIBBLES) << 4);
        store_u32(out, 2 * S + r, (a0 >> 4 & NIBBLES) | (a1 & ~(uint32_t)NIBBLES));
        store_u32(out, 3 * S + r, (a2 >> 4 & NIBBLES) | (a3 & ~(uint32_t)NIBBLES));
        store_u16(tail, r, load_u16(b));
        if (affine)
            store_u16(tail + MXC_BLOCK_TAIL, r, load_u16(b + 2));
    }
}

/* A scale and 32 signed bytes. */
static void group_q8(const struct rows *rows, size_t g, uint8_t *out) {
    for (size_t r = 0; r < S; r++) {
        const uint8_t *b = rows->data[r] + g * 34;
        __builtin_prefetch(b + AHEAD);
        for (size_t j = 0; j < 8; j++)
            store_u32(out, j * S + r, load_u32(b + 2 + 4 * j) ^ 0x80808080u);
        store_u16(out + 32 * S, r, load_u16(b));
    }
}

/* Number g of every row, as f16. bf16 times a power of two has no more bits than f16 keeps, so only
 * numbers out of the range of normal ones need care. */
static void scales_of(const struct rows *rows, const uint8_t *const from[S], size_t g,
                      uint8_t *out) {
    uint16_t h[S];
    uint32_t outside = 0;
    for (size_t r = 0; r < S; r++)
        h[r] = load_u16(from[r] + 2 * g);
    for (size_t r = 0; rows->bf16 && r < S; r++) {
        uint32_t u = mxc_f32_bits(mxc_bf16_to_f32(h[r]) * rows->unit), a = u & 0x7FFFFFFFu;
        outside |= a - 0x38800000u >= 0x47800000u - 0x38800000u;
        store_u16(out, r, (uint16_t)((u >> 16 & 0x8000) | (a - 0x38000000u) >> 13));
    }
    for (size_t r = 0; (outside || !rows->bf16) && r < S; r++)
        store_u16(out, r, rows->bf16 ? mxc_f32_to_f16(mxc_bf16_to_f32(h[r]) * rows->unit) : h[r]);
}

/* Four numbers of 4 bits to a byte each. */
static uint32_t spread(uint32_t x) {
    x &= 0xFFFF;
    x = (x | x << 8) & 0x00FF00FF;
    return (x | x << 4) & NIBBLES;
}

/* A group of the file is `repeat` groups of the layout. */
static void group_mlx(const struct rows *rows, const struct mxc_packed *w, size_t g, size_t repeat,
                      uint8_t *out) {
    const size_t group = (size_t)w->group;
    const bool nibbles = w->layout == MXC_LAYOUT_I4;
    uint8_t *tail = out + mxc_block_codes(w);
    for (size_t r = 0; r < S; r++) {
        const uint8_t *q = rows->data[r] + g * group / (nibbles ? 2 : 1);
        __builtin_prefetch(q + AHEAD);
        for (size_t j = 0; j < group / (nibbles ? 8 : 4); j++) {
            uint32_t u = load_u32(q + 4 * j);
            store_u32(out, j * S + r, nibbles ? spread(u) | spread(u >> 16) << 4 : u);
        }
    }
    scales_of(rows, rows->scales, g / repeat, tail);
    scales_of(rows, rows->biases, g / repeat, tail + MXC_BLOCK_TAIL);
}

/* Pairs of numbers; k is even. */
static void all_bf16(const struct rows *rows, size_t k, uint8_t *out) {
    for (size_t i = 0; i < k / 2; i += 16) { /* a line of every row */
        size_t n = k / 2 - i < 16 ? k / 2 - i : 16;
        for (size_t r = 0; r < S; r++) {
            const uint8_t *b = rows->data[r] + 4 * i;
            __builtin_prefetch(b + AHEAD);
            for (size_t j = 0; j < n; j++)
                store_u32(out, (i + j) * S + r, load_u32(b + 4 * j));
        }
    }
}

static bool is_direct(const struct mxc_view *view, const struct mxc_packed *w) {
    const struct mxc_tensor *t = view->tensor;
    if (view->transposed || t->parts)
        return false;
    switch (t->storage) {
    case MXC_ST_Q4_0:
    case MXC_ST_Q4_1:
        return w->layout == MXC_LAYOUT_I4 && w->group == 32;
    case MXC_ST_Q8_0:
        return w->layout == MXC_LAYOUT_I8 && w->group == 32;
    case MXC_ST_BF16:
        return w->layout == MXC_LAYOUT_BF16 && w->k % 2 == 0;
    case MXC_ST_MLX_AFFINE:
        return (t->bits == 4 || t->bits == 8) && w->group && w->affine &&
               (t->scale_storage == MXC_ST_F16 || t->scale_storage == MXC_ST_BF16);
    default:
        return false;
    }
}

bool mxc_pack_direct(const struct mxc_view *view, const struct mxc_packed *w, int32_t strip,
                     uint8_t *out) {
    const struct mxc_tensor *t = view->tensor;
    const bool mlx = t->storage == MXC_ST_MLX_AFFINE;
    struct rows rows = {.unit = w->unit, .bf16 = t->scale_storage == MXC_ST_BF16};
    if (!is_direct(view, w) || w->n - strip * S < S)
        return false;
    for (int r = 0; r < S; r++) {
        int64_t row = view->row0 + (int64_t)(strip * S + r) * view->row_step;
        rows.data[r] = mxc_tensor_row_data(t, row);
        if (!mlx)
            continue;
        size_t at = (size_t)row * 2 * ((size_t)w->k / t->group);
        rows.scales[r] = t->scales + at;
        rows.biases[r] = t->biases + at;
    }
    if (!w->group) {
        all_bf16(&rows, (size_t)w->k, out);
        return true;
    }
    for (size_t g = 0; g < (size_t)(w->k / w->group); g++, out += mxc_block_bytes(w)) {
        if (mlx)
            group_mlx(&rows, w, g, t->group / (size_t)w->group, out);
        else if (t->storage == MXC_ST_Q8_0)
            group_q8(&rows, g, out);
        else
            group_q4(&rows, g, t->storage == MXC_ST_Q4_1, out);
    }
    return true;
}
