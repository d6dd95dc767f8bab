/* Decoders of matrices in parts. In: a description whose sizes the loader has checked. Out: floats
 * or group views of a strip of rows. Codes are taken in pieces of the columns, all rows of the
 * strip per piece, so that layouts along columns find their words in the cache; what a code means
 * is written once, in scale_of, zero_of and number_row. */
#include "quant/parts.h"

#include "quant/decode.h"
#include "quant/float8.h"
#include "quant/unpack.h"

#include <string.h>

enum { PIECE = 512, ROWS = 8, MAX_TABLE = 512 }; /* columns and rows taken at a time */

static uint32_t load_u32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Where row r of eight stands in an AWQ word: rows 0 2 4 6 1 3 5 7 from the lowest bits up. */
static unsigned awq_shift(size_t row) {
    return 4 * (unsigned)(row % 8 / 2 + row % 2 * 4);
}

/* ---- codes: n codes of rows [row, row + n_rows) from column c0; n is a multiple of 8 and, along
 * columns, of 32. Row i goes to out + i * ld. */

static void row_codes(const struct mxc_quant_parts *p, size_t row, size_t c0, size_t n,
                      uint8_t *out) {
    const uint8_t *from = p->codes + row * p->row_bytes + c0 * p->bits / 8;
    if (p->bits != 8) {
        mxc_unpack_stream(from, n, p->bits, out);
        return;
    }
    memcpy(out, from, n);
    for (size_t i = 0; p->layout == MXC_CODES_I8 && i < n; i++)
        out[i] ^= 128;
}

/* The words of a row stand n words apart: gathered, they are a stream like any other. */
static void column_codes(const struct mxc_quant_parts *p, size_t row, size_t c0, size_t n,
                         uint8_t *out) {
    const uint8_t *from = p->codes + (c0 * p->bits / 32 * p->n + row) * 4;
    const size_t step = p->n * 4, words = n * p->bits / 32;
    uint8_t stream[PIECE];
    for (size_t i = 0; i < words; i++, from += step)
        memcpy(stream + 4 * i, from, 4);
    mxc_unpack_stream(stream, n, p->bits, out);
}

/* All eight rows of a word at once. */
static void awq_codes8(const struct mxc_quant_parts *p, size_t row, size_t c0, size_t n,
                       uint8_t *out, size_t ld) {
    const size_t step = p->n / 8 * 4;
    const uint8_t *from = p->codes + c0 * step + row / 8 * 4;
    for (size_t i = 0; i < n; i++, from += step)
        for (size_t r = 0; r < 8; r += 2) {
            out[r * ld + i] = from[r / 4] >> (r % 4 ? 4 : 0) & 15;
            out[(r + 1) * ld + i] = from[2 + r / 4] >> (r % 4 ? 4 : 0) & 15;
        }
}

static void awq_codes(const struct mxc_quant_parts *p, size_t row, size_t c0, size_t n,
                      uint8_t *out) {
    const size_t step = p->n / 8 * 4;
    const uint8_t *from = p->codes + c0 * step + row / 8 * 4 + awq_shift(row) / 8;
    const unsigned shift = awq_shift(row) % 8;
    for (size_t i = 0; i < n; i++, from += step)
        out[i] = *from >> shift & 15;
}

static void strip_codes(const struct mxc_quant_parts *p, size_t row, size_t n_rows, size_t c0,
                        size_t n, uint8_t *out, size_t ld) {
    for (size_t i = 0; i < n_rows;) {
        if (p->layout == MXC_CODES_AWQ && (row + i) % 8 == 0 && i + 8 <= n_rows) {
            awq_codes8(p, row + i, c0, n, out + i * ld, ld);
            i += 8;
            continue;
        }
        if (p->layout == MXC_CODES_COLUMNS)
            column_codes(p, row + i, c0, n, out + i * ld);
        else if (p->layout == MXC_CODES_AWQ)
            awq_codes(p, row + i, c0, n, out + i * ld);
        else
            row_codes(p, row + i, c0, n, out + i * ld);
        i++;
    }
}

/* ---- scales and zero points */

static float scale_of(const struct mxc_quant_parts *p, size_t row, size_t g) {
    size_t at = row / p->scale_rows * p->scale_step_r + g * p->scale_step_g;
    const uint8_t *from = p->scales + at * mxc_storage_info(p->scale_storage)->block_bytes;
    float s;
    mxc_quant_decode(p->scale_storage, from, 1, &s);
    if (p->factor != 0)
        s = p->divides ? s / p->factor : s * p->factor;
    return s;
}

/* Of a number that is stored doubled as an integer: half of the scale. A power of two is halved
 * before it could overflow. */
static float half_scale_of(const struct mxc_quant_parts *p, size_t row, size_t g) {
    if (p->scale_storage != MXC_ST_F8_E8M0)
        return 0.5f * scale_of(p, row, g);
    return mxc_e8m0_half(p->scales[row / p->scale_rows * p->scale_step_r + g * p->scale_step_g]);
}

/* Code i of a bit stream, whole bytes of which are there. */
static int stream_code(const uint8_t *p, uint32_t bits, size_t i) {
    size_t at = i * bits;
    unsigned shift = (unsigned)(at % 8), v = p[at / 8];
    if (shift + bits > 8)
        v |= (unsigned)p[at / 8 + 1] << 8;
    return (int)(v >> shift & ((1u << bits) - 1));
}

static int zero_of(const struct mxc_quant_parts *p, size_t row, size_t g) {
    const uint32_t mask = (1u << p->bits) - 1;
    const uint8_t *z = p->zeros;
    switch (p->zero_layout) {
    case MXC_ZEROS_GROUPS:
        return stream_code(z + g * (p->n * p->bits / 32 * 4), p->bits, row) + p->zero_point;
    case MXC_ZEROS_AWQ:
        return (int)(load_u32(z + (g * (p->n / 8) + row / 8) * 4) >> awq_shift(row) & 15);
    case MXC_ZEROS_WORDS: {
        size_t per = 32 / p->bits;
        uint32_t word = load_u32(z + (row / per * p->n_groups + g) * 4);
        return (int)(word >> row % per * p->bits & mask);
    }
    case MXC_ZEROS_I8:
        return (int8_t)z[row * p->n_groups + g] + p->zero_point;
    default:
        return p->zero_point;
    }
}

static size_t ordered(const struct mxc_quant_parts *p, size_t column) {
    return load_u32(p->order + 4 * column);
}

/* ---- numbers */

/* n numbers that share scale and zero. */
static void number_run(const struct mxc_quant_parts *p, const uint8_t *codes, size_t n, size_t row,
                       size_t g, float *out) {
    if (p->number == MXC_ST_U8) {
        const float s = scale_of(p, row, g);
        const int zero = zero_of(p, row, g);
        for (size_t i = 0; i < n; i++)
            out[i] = s * (float)(codes[i] - zero);
    } else if (p->number == MXC_ST_MXFP4) {
        const float s = half_scale_of(p, row, g);
        for (size_t i = 0; i < n; i++)
            out[i] = s * (float)mxc_table_e2m1[codes[i]];
    } else {
        const float s = scale_of(p, row, g);
        mxc_quant_decode(p->number, codes, n, out);
        for (size_t i = 0; i < n; i++)
            out[i] *= s;
    }
}

/* Integer codes whose groups are not runs of columns: the row's scales are read once per piece
 * where they are few. */
static void ordered_row(const struct mxc_quant_parts *p, const uint8_t *codes, size_t row,
                        size_t c0, size_t n, float *out) {
    float scales[MAX_TABLE];
    int zeros[MAX_TABLE];
    const bool few = p->n_groups <= MAX_TABLE;
    for (size_t g = 0; few && g < p->n_groups; g++) {
        scales[g] = scale_of(p, row, g);
        zeros[g] = zero_of(p, row, g);
    }
    for (size_t i = 0; i < n; i++) {
        size_t g = ordered(p, c0 + i);
        float s = few ? scales[g] : scale_of(p, row, g);
        out[i] = s * (float)(codes[i] - (few ? zeros[g] : zero_of(p, row, g)));
    }
}

static void number_row(const struct mxc_quant_parts *p, const uint8_t *codes, size_t row, size_t c0,
                       size_t n, float *out) {
    if (p->order) {
        ordered_row(p, codes, row, c0, n, out);
        return;
    }
    for (size_t i = 0; i < n;) {
        size_t g = (c0 + i) / p->group, end = (g + 1) * p->group - c0;
        if (end > n)
            end = n;
        number_run(p, codes + i, end - i, row, g, out + i);
        i = end;
    }
}

void mxc_parts_decode(const struct mxc_quant_parts *p, size_t row, size_t n_rows, float *out,
                      size_t ld) {
    uint8_t codes[ROWS * PIECE];
    for (size_t c0 = 0; c0 < p->k; c0 += PIECE) {
        size_t n = p->k - c0 < PIECE ? p->k - c0 : PIECE, rows;
        for (size_t r = 0; r < n_rows; r += rows) {
            rows = ROWS - (row + r) % ROWS; /* pieces end where words of eight rows do */
            rows = rows < n_rows - r ? rows : n_rows - r;
            strip_codes(p, row + r, rows, c0, n, codes, PIECE);
            for (size_t i = 0; i < rows; i++)
                number_row(p, codes + i * PIECE, row + r + i, c0, n, out + (r + i) * ld + c0);
        }
    }
}

/* ---- group view */

static bool is_float8(const struct mxc_quant_parts *p) {
    return p->number != MXC_ST_U8 && p->number != MXC_ST_MXFP4;
}

bool mxc_parts_form(const struct mxc_quant_parts *p, struct mxc_group_form *form) {
    if (is_float8(p) || p->order)
        return false;
    const bool fixed = p->number == MXC_ST_MXFP4 || p->zero_layout == MXC_ZEROS_NONE;
    uint32_t group = fixed ? 32 : 128;
    while (group >= 16 && (p->group % group || p->k % group))
        group /= 2;
    if (group < 16)
        return false;
    *form = (struct mxc_group_form){.group = group, .bits = p->bits, .zero_point = -1};
    if (p->number == MXC_ST_MXFP4) {
        form->zero_point = 0;
        form->table = mxc_table_e2m1;
    } else if (fixed) {
        form->zero_point = p->zero_point;
    }
    return true;
}

void mxc_parts_groups(const struct mxc_quant_parts *p, size_t row, size_t n_rows,
                      const struct mxc_group_row *out, size_t code_ld, size_t group_ld) {
    struct mxc_group_form form;
    if (!mxc_parts_form(p, &form))
        return;
    for (size_t c0 = 0; c0 < p->k; c0 += PIECE) {
        size_t n = p->k - c0 < PIECE ? p->k - c0 : PIECE;
        strip_codes(p, row, n_rows, c0, n, out->codes + c0, code_ld);
    }
    const size_t shown = p->k / form.group, per = p->group / form.group;
    for (size_t i = 0; i < n_rows; i++) {
        float *scales = out->scales + i * group_ld, *biases = out->biases + i * group_ld;
        for (size_t s = 0; s < shown; s += per) {
            size_t g = s / per;
            float scale = form.table ? half_scale_of(p, row + i, g) : scale_of(p, row + i, g);
            int zero = form.table ? 0 : zero_of(p, row + i, g);
            for (size_t j = s; j < s + per && j < shown; j++) {
                scales[j] = scale;
                biases[j] = zero ? -(float)zero * scale : 0;
            }
        }
    }
}
