/* Quantised matrices whose codes, scales and zero points stand in tensors of their own: MLX's
 * mxfp4, mxfp8 and nvfp4, gpt_oss experts, GPTQ, AWQ, compressed-tensors, fp8. One description fits
 * all:
 *
 *   weight(r, c) = scale(r, g) * (code(r, c) - zero(r, g))     integer codes
 *   weight(r, c) = scale(r, g) * number(code(r, c))            e2m1 (as integer and half scale),
 * fp8 g = order ? order[c] : c / group scale(r, g) = scales[r / scale_rows * scale_step_r + g *
 * scale_step_g], times factor if that is not 0 (divided by it with `divides`); f32 arithmetic
 *
 * Sources of the formulas: the MLX quantization modes; AutoGPTQ and GPTQModel (v1 files hold zero
 * points less one); AutoAWQ's gemm packing; the compressed-tensors package; the fp8 and mxfp4
 * integrations of transformers.
 * Thread rules: pure functions of a description that nobody changes. */
#ifndef MXC_QUANT_PARTS_H
#define MXC_QUANT_PARTS_H

#include "quant/storage.h"

/* How codes are packed. Words are u32, little-endian. */
enum mxc_code_layout {
    MXC_CODES_ROWS,    /* a row's codes are one bit stream of row_bytes bytes, lowest bits first */
    MXC_CODES_I8,      /* the same with signed bytes, shown as codes + 128 */
    MXC_CODES_COLUMNS, /* words [k * bits / 32, n]: the words of a row are one such stream (GPTQ) */
    MXC_CODES_AWQ,     /* words [k, n / 8] of 4-bit codes of eight rows, 0 2 4 6 1 3 5 7 */
};

enum mxc_zero_layout {
    MXC_ZEROS_NONE,   /* zero_point everywhere */
    MXC_ZEROS_GROUPS, /* [groups] streams over rows, as long as whole words, plus zero_point (GPTQ)
                       */
    MXC_ZEROS_AWQ,    /* words [groups, n / 8] in AWQ's order */
    MXC_ZEROS_WORDS, /* words [n * bits / 32, groups]: eight rows of 4 bits, or four of 8, a word */
    MXC_ZEROS_I8,    /* [n, groups] signed bytes, plus zero_point */
};

struct mxc_quant_parts {
    enum mxc_storage number; /* MXC_ST_U8: integer codes; MXC_ST_MXFP4: e2m1; or an fp8 storage */
    enum mxc_code_layout layout;
    enum mxc_zero_layout zero_layout;
    uint32_t bits;    /* of a code: 2, 3, 4 or 8 */
    int zero_point;   /* integer codes: see mxc_zero_layout */
    size_t n, k;      /* all rows (of every expert), columns */
    size_t group;     /* columns of a scale; k is a multiple unless codes are decoded only */
    size_t n_groups;  /* of a row */
    size_t row_bytes; /* MXC_CODES_ROWS */
    const uint8_t *codes, *scales, *zeros;
    const uint8_t *order; /* i32 [k], each in [0, n_groups), or NULL */
    enum mxc_storage scale_storage;
    size_t scale_rows, scale_step_r, scale_step_g;
    float factor; /* 0: none */
    bool divides;
};

/* Decodes rows [row, row + n_rows) to out[i * ld]. Where codes are packed along columns, a strip of
 * rows in one call reads each word once while it is in cache: ask for 8 to 64 rows at a time. */
void mxc_parts_decode(const struct mxc_quant_parts *p, size_t row, size_t n_rows, float *out,
                      size_t ld);
/* false where there is none: fp8, an order, groups that are no multiple of 16. */
bool mxc_parts_form(const struct mxc_quant_parts *p, struct mxc_group_form *form);
/* Group view of rows [row, row + n_rows): row i at codes + i * code_ld, scales + i * group_ld, and
 * biases likewise. Only when there is a form. */
void mxc_parts_groups(const struct mxc_quant_parts *p, size_t row, size_t n_rows,
                      const struct mxc_group_row *out, size_t code_ld, size_t group_ld);

#endif
