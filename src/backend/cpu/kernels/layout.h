/* Layouts: where every number stands in packed weights, prepared activations and KV pages. Private
 * to kernels/: the same bytes at every ISA level, so any level can read what another one wrote.
 *
 * Weights, one strip of MXC_STRIP (32) rows:
 *   F32  [k][32] f32      F16 [k][32] f16      BF16 [ceil(k/2)][32][2] bf16
 *   I4   [k/G] blocks of: codes [G/8][32][4], scales [32] f16, biases [32] f16 (when affine)
 *        byte i of step j: low nibble q[8j + i], high nibble q[8j + 4 + i]
 *   I8   the same with codes [G/4][32][4]: byte i of step j is q[4j + i]
 *   N4   as I4 without biases; the scales may be bf16
 *   I6   the same as I4 with codes in cells of 32 numbers: [2 halves of the strip][2][3][16][4];
 *        byte i of the three words of 16 numbers: low six bits q[i], q[4 + i], q[8 + i], and in
 *        their upper pairs of bits, lowest first, q[12 + i]
 *   K6   [k/256] blocks of: factors [32] f16, 8 x (scales [2 halves][2][16] int8 of 16 numbers, a
 *        cell as in I6). w = factor * scale * (q - 32)
 *   So a strip is read as one forward stream, whatever the layout. (The two halves of a block one
 *   after the other cost half of the read bandwidth at groups of 64.)
 * Activations: tiles of F32 12, BF16 12, I8 6 rows (the last tile is narrower); in a tile, cells of
 * [kp/cell][rows][cell] numbers, cell = 16 (F32), 32 (BF16, I8), zeros beyond k. I8 then has, tile
 * by tile and [..][rows] like the cells: the scale of each cell, the negated sums of 16 and of 32
 * codes, and for affine weights the latter times their scales, of one cell and of two. */
#ifndef MXC_BACKEND_CPU_KERNELS_LAYOUT_H
#define MXC_BACKEND_CPU_KERNELS_LAYOUT_H

#include "backend/cpu/kernels/kernels.h"

#include <math.h>

/* All divide MXC_PREPARE_TILE. */
enum { MXC_TILE_F32 = 12, MXC_TILE_BF16 = 12, MXC_TILE_I8 = 6 };
enum { MXC_CELL_F32 = 16, MXC_CELL_BF16 = 32, MXC_CELL_I8 = 32 };
enum { MXC_BLOCK_TAIL = 64 }; /* bytes of the scales of a block; of its biases */

static inline size_t mxc_round_up(size_t n, size_t unit) {
    return (n + unit - 1) / unit * unit;
}

static inline int32_t mxc_tile_rows(enum mxc_activation_form form) {
    return form == MXC_ACT_FORM_I8 ? MXC_TILE_I8 : MXC_TILE_F32;
}

/* Columns of the prepared activations. */
static inline size_t mxc_padded_k(enum mxc_activation_form form, int32_t k) {
    return mxc_round_up((size_t)k, form == MXC_ACT_FORM_I8     ? 64
                                   : form == MXC_ACT_FORM_BF16 ? MXC_CELL_BF16
                                                               : MXC_CELL_F32);
}

/* Rows in the tile that starts at row c0. */
static inline int32_t mxc_tile_width(const struct mxc_activation *a, int32_t c0) {
    int32_t tile = mxc_tile_rows(a->form);
    return a->m - c0 < tile ? a->m - c0 : tile;
}

/* Layouts of codes and group scales. */
static inline bool mxc_layout_integer(enum mxc_layout layout) {
    return layout == MXC_LAYOUT_I4 || layout == MXC_LAYOUT_I8 || layout == MXC_LAYOUT_N4 ||
           layout == MXC_LAYOUT_I6 || layout == MXC_LAYOUT_K6;
}

/* From one address to another, of different regions. */
static inline ptrdiff_t mxc_jump(const uint8_t *from, const uint8_t *to) {
    return (ptrdiff_t)((intptr_t)to - (intptr_t)from);
}

/* Packs one whole strip if it is of a storage with a way of its own (pack_direct.c); false: not. */
bool mxc_pack_direct(const struct mxc_view *view, const struct mxc_packed *w, int32_t strip,
                     uint8_t *out);

/* Codes of six bits: bytes of 16 numbers of half a strip, and of a cell of 32 numbers. */
enum { MXC_SIX_PIECE = 192, MXC_SIX_HALF = 2 * MXC_SIX_PIECE, MXC_SIX_CELL = 2 * MXC_SIX_HALF };
enum { MXC_I6_ZERO_LOG2 = 4, MXC_I6_ZERO = 1 << MXC_I6_ZERO_LOG2 };
enum { MXC_K6_ZERO_LOG2 = 5, MXC_K6_ZERO = 1 << MXC_K6_ZERO_LOG2 };
enum { MXC_K6_BLOCK = 256, MXC_K6_SCALES = 64, MXC_K6_CELL = MXC_K6_SCALES + MXC_SIX_CELL };
enum { MXC_K6_BYTES = MXC_BLOCK_TAIL + MXC_K6_BLOCK / MXC_CELL_I8 * MXC_K6_CELL };

/* Where in the codes of a block the first word of numbers [i, i + 16) of a row stands; the other
 * two are 64 bytes apart. i is a multiple of 16. */
static inline size_t mxc_six_at(size_t i, size_t row) {
    return i / 32 * MXC_SIX_CELL + row / 16 * MXC_SIX_HALF + i % 32 / 16 * MXC_SIX_PIECE +
           row % 16 * 4;
}
/* Where in a cell of K6 the scale of the g-th 16 numbers stands. */
static inline size_t mxc_k6_scale_at(size_t g, size_t row) {
    return row / 16 * 32 + g * 16 + row % 16;
}
/* pack_six.c: the codes of a row's group into a block; one code of a block; a strip of Q6_K; a row
 * of K6. */
void mxc_six_put(const uint8_t *codes, size_t group, size_t row, uint8_t *block);
uint8_t mxc_six_get(const uint8_t *block, size_t i, size_t row);
void mxc_pack_k6(const struct mxc_view *view, const struct mxc_packed *w, int32_t strip,
                 uint8_t *out);
void mxc_k6_row(const struct mxc_packed *w, const uint8_t *strip, size_t row, float *out);

/* A block of a matrix of codes: its numbers of K, the bytes of its codes, and its own. K6 has its
 * f16 numbers in front of the codes. */
static inline int32_t mxc_block_numbers(const struct mxc_packed *w) {
    return w->layout == MXC_LAYOUT_K6 ? (int32_t)MXC_K6_BLOCK : w->group;
}
static inline size_t mxc_block_codes(const struct mxc_packed *w) {
    return w->layout == MXC_LAYOUT_K6 ? 0
           : w->layout == MXC_LAYOUT_I6
               ? (size_t)w->group / MXC_CELL_I8 * MXC_SIX_CELL
               : (size_t)w->group * (w->layout == MXC_LAYOUT_I8 ? MXC_STRIP : MXC_STRIP / 2);
}
static inline size_t mxc_block_bytes(const struct mxc_packed *w) {
    return w->layout == MXC_LAYOUT_K6 ? (size_t)MXC_K6_BYTES
                                      : mxc_block_codes(w) + (w->affine ? 2u : 1u) * MXC_BLOCK_TAIL;
}

/* The parts of I8 activations. In the tile at row c0 each part begins at part + c0 * (numbers of
 * one row): kp codes, kp/32 scales, kp/16 and kp/32 sums, kp/32 and kp/64 scaled sums. */
struct mxc_i8_view {
    int8_t *codes;
    float *scale;
    int32_t *sum16, *sum32;     /* negated: what zero points are multiplied with */
    float *scaled32, *scaled64; /* the same times the scales of their cells */
    size_t kp;
};
static inline struct mxc_i8_view mxc_i8_view(const struct mxc_activation *a) {
    size_t m = (size_t)a->m, kp = mxc_padded_k(MXC_ACT_FORM_I8, a->k);
    size_t of16 = mxc_round_up(m * (kp / 16) * 4, MXC_ALIGN);
    size_t of32 = mxc_round_up(m * (kp / 32) * 4, MXC_ALIGN);
    uint8_t *p = a->data + m * kp;
    return (struct mxc_i8_view){.codes = (int8_t *)a->data,
                                .scale = (float *)(void *)p,
                                .sum32 = (int32_t *)(void *)(p + of32),
                                .scaled32 = (float *)(void *)(p + 2 * of32),
                                .sum16 = (int32_t *)(void *)(p + 3 * of32),
                                .scaled64 = (float *)(void *)(p + 3 * of32 + of16),
                                .kp = kp};
}

/* The largest |number| of a table that AVX2 may add up in 16 bits over a cell. */
enum { MXC_TABLE_SMALL = 16 };
static inline bool mxc_table_is_small(const int8_t table[16]) {
    for (int i = 0; i < 16; i++)
        if (table[i] > MXC_TABLE_SMALL || table[i] < -MXC_TABLE_SMALL)
            return false;
    return true;
}

/* Scale of a cell whose largest magnitude is max, and what a number is multiplied with to get its
 * code. A cell that is zero or nearly so has codes 0 and scale 0; a cell with an infinity or a NaN
 * has codes 0 and scale NaN, so that the fault stays visible. */
static inline float mxc_i8_scale(float max, float *inverse) {
    bool plain = max > 1e-30f && max <= 3.0e38f;
    *inverse = plain ? 127.0f / max : 0.0f;
    return plain ? max * (1.0f / 127.0f) : max <= 1e-30f ? 0.0f : NAN;
}

/* Row stride of mxc_attn_part.o. */
static inline size_t mxc_attn_stride(int32_t v_dim) {
    return mxc_round_up((size_t)v_dim, 16);
}

/* First byte of V in a page. */
static inline size_t mxc_page_v(enum mxc_kv_type type, int32_t k_dim) {
    return (size_t)k_dim * MXC_ATTN_PAGE * (type == MXC_KV_F32 ? sizeof(float) : sizeof(uint16_t));
}

/* m of a column that has seen no key; scores are in units of log2. */
#define MXC_ATTN_NONE (-1e30f)
#define MXC_LOG2E     1.44269504088896340736f
#define MXC_LN2       0.69314718055994530942f
/* Of MXC_ACT_SWIGLU_CLIP; the slope of MXC_ACT_GELU_QUICK too. */
#define MXC_CLIP       7.0f
#define MXC_CLIP_SLOPE 1.702f
enum { MXC_ATTN_BLOCK = 128 }; /* keys of one online-softmax step, at absolute multiples */

/* What o is multiplied with at the end: 1 / l, or with a sink logit, which takes part in the
 * softmax but has no value. 0 for a column that saw no key. */
static inline float mxc_attn_factor(float m, float l, const float *sink) {
    if (l == 0)
        return 0;
    if (!sink)
        return 1.0f / l;
    float s = *sink * MXC_LOG2E, top = s > m ? s : m, a = exp2f(m - top);
    return a / (l * a + exp2f(s - top));
}

/* y = scale * (acc + bias) + residual, one number; every level does these three roundings. */
static inline float mxc_epilogue_one(const struct mxc_epilogue *e, float acc, size_t column,
                                     size_t at) {
    if (!e)
        return acc;
    if (e->bias)
        acc += e->bias[column];
    acc *= e->scale;
    return e->residual ? acc + e->residual[at] : acc;
}

/* In front of a loop over accumulators, which gcc else keeps in memory. clang needs no telling, and
 * with sanitizers unrolling only takes time. */
#if defined(__clang__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MXC_UNROLL
#else
#define MXC_UNROLL _Pragma("GCC unroll 12")
#endif

#endif
