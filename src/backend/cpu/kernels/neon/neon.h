/* Shared by the NEON and I8MM kernels (aarch64): declarations made from kernels.def, codes and
 * scales of four rows, the store behind every matmul. Everything here is inline. */
#ifndef MXC_BACKEND_CPU_KERNELS_NEON_H
#define MXC_BACKEND_CPU_KERNELS_NEON_H

#include "backend/cpu/kernels/walk.h"

#include <arm_neon.h>
#include <string.h>

#define MXC_INLINE static inline __attribute__((always_inline))

#define MXC_KERNEL_SCALAR(isa, slot, name)
#define MXC_KERNEL_NEON(isa, slot, name)                                                           \
    extern __typeof__(*((struct mxc_kernels *)0)->slot) mxc_##isa##_##name;
#define MXC_KERNEL_I8MM(isa, slot, name)                MXC_KERNEL_NEON(isa, slot, name)
#define MXC_KERNEL(LEVEL, isa, KIND, slot, index, name) MXC_KERNEL_##LEVEL(isa, slot, name)
#include "backend/cpu/kernels/kernels.def"
#undef MXC_KERNEL

/* Codes of six bits. */
#define MXC_SIX(layout) ((layout) == MXC_LAYOUT_I6 || (layout) == MXC_LAYOUT_K6)

/* From the codes of 16 numbers to those of the next 16, in a cell; from a cell to the next. */
MXC_INLINE size_t mxc_step16(const enum mxc_layout layout) {
    return MXC_SIX(layout)           ? MXC_SIX_PIECE
           : layout == MXC_LAYOUT_I8 ? 16 * MXC_STRIP
                                     : 8 * MXC_STRIP;
}
MXC_INLINE size_t mxc_step32(const enum mxc_layout layout) {
    return MXC_SIX(layout) ? MXC_SIX_CELL : 2 * mxc_step16(layout);
}

/* Where a row's codes stand, from those of the strip's first row on. */
MXC_INLINE size_t mxc_codes_at(size_t row, const enum mxc_layout layout) {
    return MXC_SIX(layout) ? row / 16 * MXC_SIX_HALF + row % 16 * 4 : row * 4;
}

/* The lines of 16 numbers of K of half a strip, or a whole one. */
MXC_INLINE void mxc_fetch(const uint8_t *w, const bool whole, const enum mxc_layout layout) {
    enum { AHEAD = 2048 };
    for (size_t b = 0; b < mxc_step16(layout); b += MXC_SIX(layout) || whole ? 64 : 128) {
        __builtin_prefetch(w + AHEAD + b);
        if (MXC_SIX(layout) && whole)
            __builtin_prefetch(w + AHEAD + MXC_SIX_HALF + b);
    }
}

/* 16 codes of K of the four rows at w, four to a lane: lane l of q[j] has row l, numbers 4j to
 * 4j + 3. N4: what the table has for them. */
MXC_INLINE void mxc_codes(const uint8_t *w, int8x16_t table, const enum mxc_layout layout,
                          uint8x16_t q[4]) {
    if (MXC_SIX(layout)) {
        uint8x16_t a = vld1q_u8(w), b = vld1q_u8(w + 64), c = vld1q_u8(w + 128);
        q[0] = vandq_u8(a, vdupq_n_u8(63));
        q[1] = vandq_u8(b, vdupq_n_u8(63));
        q[2] = vandq_u8(c, vdupq_n_u8(63));
        /* the upper pairs of c, b, a side by side */
        q[3] = vshrq_n_u8(vsriq_n_u8(vsriq_n_u8(c, b, 2), a, 4), 2);
        return;
    }
    for (int j = 0; j < 4; j++) {
        if (layout == MXC_LAYOUT_I8) {
            q[j] = vld1q_u8(w + 4 * MXC_STRIP * j);
            continue;
        }
        uint8x16_t both = vld1q_u8(w + 4 * MXC_STRIP * (j / 2));
        q[j] = j % 2 ? vshrq_n_u8(both, 4) : vandq_u8(both, vdupq_n_u8(15));
        if (layout == MXC_LAYOUT_N4)
            q[j] = vreinterpretq_u8_s8(vqtbl1q_s8(table, q[j]));
    }
}

/* Scales or biases of four rows. */
MXC_INLINE float32x4_t mxc_halves(const uint8_t *f, bool bf16) {
    uint16x4_t h = vld1_u16((const uint16_t *)(const void *)f);
    return bf16 ? vreinterpretq_f32_u32(vshll_n_u16(h, 16)) : vcvt_f32_f16(vreinterpret_f16_u16(h));
}

/* int8 scales of four rows (K6). */
MXC_INLINE int32x4_t mxc_bytes(const uint8_t *p) {
    uint32_t four;
    memcpy(&four, p, sizeof four);
    return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(four)))));
}

/* Four outputs at out[at ...], columns from `column`; those >= n are not written. */
MXC_INLINE void mxc_store(float *out, size_t at, size_t column, int32_t n, float32x4_t y,
                          const struct mxc_epilogue *e) {
    int64_t left = (int64_t)n - (int64_t)column;
    if (left < 4) {
        float numbers[4];
        vst1q_f32(numbers, y);
        for (size_t r = 0; (int64_t)r < left; r++)
            out[at + r] = mxc_epilogue_one(e, numbers[r], column + r, at + r);
        return;
    }
    if (e) {
        if (e->bias)
            y = vaddq_f32(y, vld1q_f32(e->bias + column));
        y = vmulq_n_f32(y, e->scale);
        if (e->residual)
            y = vaddq_f32(y, vld1q_f32(e->residual + at));
    }
    vst1q_f32(out + at, y);
}

/* Stores the sums of a tile, [column][vector of four rows]. Not inline: a loop over the tile's own
 * sums would keep them in memory from the start. */
static __attribute__((noinline)) void mxc_finish(const struct mxc_int_tile *t,
                                                 const float32x4_t *acc, int columns, int vectors) {
    for (int c = 0; c < columns; c++)
        for (int v = 0; v < vectors; v++, acc++)
            mxc_store(t->out, t->at + (size_t)c * t->ld + (size_t)(4 * v),
                      t->column + (size_t)(4 * v), t->matrix->n, vmulq_n_f32(*acc, t->inverse_unit),
                      t->epilogue);
}

#endif
