/* Pack: matrices of any storage to the compute layouts, in the same bytes for every ISA level. A
 * strip is decoded row by row into scratch (codes and group scales, or f32) and then interleaved.
 * Scratch rows are an odd number of cache lines apart, or 32 of them would share two L1 sets.
 * In: a view of a tensor that the loader has checked. The layout follows from storage and shape
 * alone; only `unit` needs a look at the scales. */
#include "backend/cpu/kernels/layout.h"
#include "base/half.h"
#include "quant/decode.h"

#include <assert.h>
#include <string.h>

enum { S = MXC_STRIP, LINE = 64 };

static uint16_t load_u16(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return h;
}

/* ---- scales */

/* Whether scales and biases are f16 in the file and stay what they are. */
static bool has_f16_scales(const struct mxc_tensor *t) {
    switch (t->storage) {
    case MXC_ST_Q4_0:
    case MXC_ST_Q4_1:
    case MXC_ST_Q5_0:
    case MXC_ST_Q5_1:
    case MXC_ST_Q8_0:
    case MXC_ST_IQ4_NL:
    case MXC_ST_TQ1_0:
    case MXC_ST_TQ2_0:
        return true;
    default:
        return t->storage == MXC_ST_MLX_AFFINE && t->scale_storage == MXC_ST_F16;
    }
}

static bool has_e8m0_scales(const struct mxc_tensor *t) {
    return t->storage == MXC_ST_MXFP4_BLOCK ||
           (t->parts && t->parts->scale_storage == MXC_ST_F8_E8M0 && t->parts->factor == 0);
}

/* Where the scales of a block storage stand: bounds |scale| and |bias| by the f16 numbers at these
 * offsets times `factor` (the largest of the sub-scales they are multiplied with). */
struct scale_field {
    size_t block_bytes, offset, offset2;
    float factor; /* 0: not such a storage */
};

static struct scale_field scale_field(enum mxc_storage storage) {
    switch (storage) {
    case MXC_ST_Q2_K:
        return (struct scale_field){84, 80, 82, 15};
    case MXC_ST_Q3_K:
        return (struct scale_field){110, 108, 108, 32};
    case MXC_ST_Q4_K:
        return (struct scale_field){144, 0, 2, 63};
    case MXC_ST_Q5_K:
        return (struct scale_field){176, 0, 2, 63};
    case MXC_ST_Q6_K:
        return (struct scale_field){210, 208, 208, 128};
    case MXC_ST_IQ4_XS:
        return (struct scale_field){136, 0, 0, 32};
    default:
        return (struct scale_field){0};
    }
}

/* |f16| as an integer orders as the numbers do; infinities and NaN count as nothing. */
static uint32_t larger_half(uint32_t max, const uint8_t *p) {
    uint32_t magnitude = load_u16(p) & 0x7FFFu;
    return magnitude > max && magnitude < 0x7C00 ? magnitude : max;
}

static float max_of_blocks(const struct mxc_tensor *t, int64_t row, struct scale_field f) {
    size_t row_bytes = t->bytes / (size_t)mxc_tensor_rows(t);
    const uint8_t *p = t->data + (size_t)row * row_bytes, *end = p + row_bytes;
    uint32_t max = 0;
    for (; p + f.block_bytes <= end; p += f.block_bytes)
        max = larger_half(larger_half(max, p + f.offset), p + f.offset2);
    return mxc_f16_to_f32((uint16_t)max) * f.factor;
}

/* |bf16| as an integer orders as the numbers do; infinities and NaN count as nothing. */
static float max_of_bf16(const uint8_t *p, size_t n) {
    int16_t max = 0;
    for (size_t i = 0; i < n; i++) {
        int16_t x = (int16_t)(load_u16(p + 2 * i) & 0x7FFF);
        x = x < 0x7F80 ? x : 0;
        max = x > max ? x : max;
    }
    return mxc_bf16_to_f32((uint16_t)max);
}

/* Of n numbers, `step` of them from one to the next. */
static float max_of_array(enum mxc_storage storage, const uint8_t *p, size_t n, size_t step) {
    size_t width = mxc_storage_info(storage)->block_bytes;
    float max = 0, x;
    if (storage == MXC_ST_BF16 && step == 1)
        return max_of_bf16(p, n);
    for (size_t i = 0; i < n; i++, p += step * width) {
        if (storage == MXC_ST_BF16)
            x = mxc_bf16_to_f32(load_u16(p));
        else
            mxc_quant_decode(storage, p, 1, &x);
        max = fabsf(x) > max && isfinite(x) ? fabsf(x) : max;
    }
    return max;
}

static float max_of_mlx(const struct mxc_tensor *t, int64_t row) {
    size_t n = (size_t)mxc_tensor_columns(t) / t->group;
    size_t at = (size_t)row * n * mxc_storage_info(t->scale_storage)->block_bytes;
    float scale = max_of_array(t->scale_storage, t->scales + at, n, 1);
    float bias = max_of_array(t->scale_storage, t->biases + at, n, 1);
    return bias > scale ? bias : scale;
}

/* A bias is its zero point times its scale. */
static float max_of_parts(const struct mxc_quant_parts *p, int64_t row) {
    size_t at = (size_t)row / p->scale_rows * p->scale_step_r;
    at *= mxc_storage_info(p->scale_storage)->block_bytes;
    float max = max_of_array(p->scale_storage, p->scales + at, p->n_groups, p->scale_step_g);
    if (p->factor != 0)
        max = p->divides ? max / p->factor : max * p->factor;
    return p->zero_layout == MXC_ZEROS_NONE ? fabsf(max) : fabsf(ldexpf(max, (int)p->bits));
}

/* A bound of all scales and biases. Drops the pages behind: only the scales are looked at, but all
 * of the file's pages are touched. */
static float max_scale(const struct mxc_view *view) {
    enum { PIECE_BYTES = 4 << 20 };
    const struct mxc_tensor *t = view->tensor;
    struct scale_field field = scale_field(t->storage);
    struct mxc_view v = t->permuted_heads ? mxc_view_whole(t) : *view; /* rows in another order */
    size_t row_bytes = mxc_view_bytes(&v) / (size_t)v.n;
    int64_t step = row_bytes ? (int64_t)(PIECE_BYTES / row_bytes) + 1 : 1;
    float max = 0;
    for (int64_t r = 0; r < v.n; r++) {
        int64_t row = v.row0 + r * v.row_step;
        float bound = field.factor > 0                  ? max_of_blocks(t, row, field)
                      : t->storage == MXC_ST_MLX_AFFINE ? max_of_mlx(t, row)
                      : t->parts                        ? max_of_parts(t->parts, row)
                                                        : 0;
        max = bound > max ? bound : max;
        if ((r + 1) % step == 0)
            mxc_view_drop(&v, r + 1 - step, r + 1);
    }
    return isfinite(max) ? max : 1;
}

/* The power of two that brings max into [2^10, 2^11): f16 then keeps 24 binary orders of magnitude
 * below it at full precision. */
static float unit_of(float max) {
    if (max <= 0)
        return 1;
    int exponent;
    (void)frexpf(max, &exponent); /* max = f * 2^exponent, f in [0.5, 1) */
    int shift = 11 - exponent;    /* at least -117 */
    return ldexpf(1, shift > 117 ? 117 : shift);
}

/* ---- choosing a layout */

static enum mxc_code refuse(const struct mxc_view *view, const char *why, struct mxc_err *err) {
    const struct mxc_tensor *t = view->tensor;
    return mxc_err_set(err, MXC_E_UNSUPPORTED, "%s: tensor %s: %s of %lld x %lld: %s",
                       t->file && t->file->path ? t->file->path : "", t->name,
                       mxc_storage_info(t->storage)->name, (long long)view->n, (long long)view->k,
                       why);
}

/* The integer layout of a view that has one. */
static bool integer_layout(const struct mxc_view *view, struct mxc_packed *p) {
    struct mxc_group_form form;
    if (!mxc_view_group_form(view, &form) || form.bits > 8 || !form.group || form.group % 16 ||
        view->k % (int64_t)form.group || view->k % 32 || (form.table && form.bits > 4))
        return false;
    p->group = form.group % 64 == 0 && !form.table ? 64 : form.group % 32 == 0 ? 32 : 16;
    bool six =
        form.bits <= 6 && p->group != 16 && (form.zero_point < 0 || form.zero_point == MXC_I6_ZERO);
    p->layout = form.table       ? MXC_LAYOUT_N4
                : form.bits <= 4 ? MXC_LAYOUT_I4
                : six            ? MXC_LAYOUT_I6
                                 : MXC_LAYOUT_I8;
    if (view->tensor->storage == MXC_ST_Q6_K && view->k % MXC_K6_BLOCK == 0)
        p->layout = MXC_LAYOUT_K6;
    p->affine = form.zero_point < 0 && !form.table;
    p->zero_point = p->affine || form.table ? 0 : form.zero_point;
    p->bf16_scales = form.table && has_e8m0_scales(view->tensor);
    if (form.table)
        memcpy(p->table, form.table, sizeof p->table);
    return true;
}

static enum mxc_code float_layout(const struct mxc_view *view, struct mxc_packed *p,
                                  struct mxc_err *err) {
    enum mxc_storage storage = view->tensor->storage;
    if (storage == MXC_ST_F32 || storage == MXC_ST_F64)
        p->layout = MXC_LAYOUT_F32;
    else if (storage == MXC_ST_F16)
        p->layout = MXC_LAYOUT_F16;
    else if (storage == MXC_ST_BF16 || mxc_storage_info(storage)->quantised)
        p->layout = MXC_LAYOUT_BF16;
    else
        return refuse(view, "no matrix type", err);
    return MXC_OK;
}

enum mxc_code mxc_pack_plan(const struct mxc_view *view, bool exact, struct mxc_packed *packed,
                            struct mxc_err *err) {
    const struct mxc_storage_info *info = mxc_storage_info(view->tensor->storage);
    if (view->n < 1 || view->k < 1 || view->n > INT32_MAX - S || view->k > INT32_MAX / 2)
        return refuse(view, "not a size for a matrix", err);
    if (info->block > 1 && mxc_tensor_columns(view->tensor) % (int64_t)info->block)
        return refuse(view, "rows are no whole number of blocks", err);
    struct mxc_packed p = {.n = (int32_t)view->n, .k = (int32_t)view->k, .unit = 1};
    enum mxc_code code = float_layout(view, &p, err);
    if (code)
        return code;
    if (exact)
        p.layout = MXC_LAYOUT_F32;
    else
        (void)integer_layout(view, &p);
    p.strip_bytes = (size_t)p.k * S * (p.layout == MXC_LAYOUT_F32 ? 4 : 2);
    if (p.layout == MXC_LAYOUT_BF16)
        p.strip_bytes = ((size_t)p.k + 1) / 2 * 2 * S * 2;
    else if (p.group)
        p.strip_bytes = (size_t)(p.k / mxc_block_numbers(&p)) * mxc_block_bytes(&p);
    *packed = p;
    return MXC_OK;
}

enum mxc_code mxc_pack_form(const struct mxc_view *view, bool exact, struct mxc_packed *packed,
                            struct mxc_err *err) {
    struct mxc_packed p;
    enum mxc_code code = mxc_pack_plan(view, exact, &p, err);
    if (code)
        return code;
    if (p.group && !p.bf16_scales && p.layout != MXC_LAYOUT_K6 && !has_f16_scales(view->tensor))
        p.unit = unit_of(max_scale(view));
    *packed = p;
    return MXC_OK;
}

int32_t mxc_packed_strips(const struct mxc_packed *packed) {
    return (packed->n + S - 1) / S;
}

size_t mxc_packed_bytes(const struct mxc_packed *packed) {
    return (size_t)mxc_packed_strips(packed) * packed->strip_bytes;
}

enum mxc_activation_form mxc_packed_form(const struct mxc_packed *packed) {
    switch (packed->layout) {
    case MXC_LAYOUT_BF16:
        return MXC_ACT_FORM_BF16;
    case MXC_LAYOUT_I4:
    case MXC_LAYOUT_I8:
    case MXC_LAYOUT_N4:
    case MXC_LAYOUT_I6:
    case MXC_LAYOUT_K6:
        return MXC_ACT_FORM_I8;
    default:
        return MXC_ACT_FORM_F32;
    }
}

size_t mxc_activation_bytes(enum mxc_activation_form form, int32_t m, int32_t k) {
    size_t numbers = (size_t)m * mxc_padded_k(form, k);
    if (form == MXC_ACT_FORM_F32)
        return mxc_round_up(numbers * sizeof(float), MXC_ALIGN);
    if (form == MXC_ACT_FORM_BF16)
        return mxc_round_up(numbers * sizeof(uint16_t), MXC_ALIGN);
    size_t of16 = mxc_round_up(numbers / 16 * 4, MXC_ALIGN);
    size_t of32 = mxc_round_up(numbers / 32 * 4, MXC_ALIGN);
    size_t of64 = mxc_round_up(numbers / 64 * 4, MXC_ALIGN);
    return numbers + of16 + 3 * of32 + of64; /* numbers is a multiple of 64 */
}

size_t mxc_page_bytes(enum mxc_kv_type type, int32_t k_dim, int32_t v_dim) {
    return mxc_round_up(mxc_page_v(type, k_dim) + mxc_page_v(type, v_dim), MXC_ALIGN);
}

/* ---- interleaving */

/* Scratch of one strip: rows of codes (or f32), then scales, then biases, or a row of the tensor
 * for a transposed view. */
struct scratch {
    uint8_t *rows;
    float *scales, *biases;
    size_t row_bytes;   /* an odd number of lines */
    size_t n_groups;    /* stored groups of a row */
    size_t group_bytes; /* of the scales of all rows */
};

static struct scratch scratch_sizes(const struct mxc_packed *w) {
    bool integer = mxc_layout_integer(w->layout);
    struct scratch s = {.n_groups = integer ? (size_t)(w->k / w->group) : 0};
    size_t lines = ((size_t)w->k * (integer ? 1 : sizeof(float)) + LINE - 1) / LINE;
    s.row_bytes = (lines | 1) * LINE;
    s.group_bytes = mxc_round_up(s.n_groups * S * sizeof(float), LINE);
    return s;
}

size_t mxc_pack_scratch_bytes(const struct mxc_view *view, const struct mxc_packed *packed) {
    struct scratch s = scratch_sizes(packed);
    return s.row_bytes * S + 2 * s.group_bytes + mxc_view_scratch(view) * sizeof(float) +
           LINE; /* one line to align by */
}

static uint32_t load_u32(const uint8_t *p) {
    uint32_t u;
    memcpy(&u, p, sizeof u);
    return u;
}

/* Codes of one group: 4 bytes of a row at a time. */
static void interleave_codes(const struct mxc_packed *w, const struct scratch *s, size_t g,
                             uint8_t *out) {
    size_t group = (size_t)w->group, step = w->layout == MXC_LAYOUT_I8 ? 4 : 8;
    const uint8_t *from = s->rows + g * group;
    if (w->layout == MXC_LAYOUT_I6) {
        for (size_t r = 0; r < S; r++)
            mxc_six_put(from + r * s->row_bytes, group, r, out);
        return;
    }
    for (size_t j = 0; j < group; j += step, from += step, out += 4 * S) {
        uint32_t word[S];
        if (step == 8)
            for (size_t r = 0; r < S; r++)
                word[r] = load_u32(from + r * s->row_bytes) | load_u32(from + r * s->row_bytes + 4)
                                                                  << 4;
        else
            for (size_t r = 0; r < S; r++)
                word[r] = load_u32(from + r * s->row_bytes);
        memcpy(out, word, sizeof word);
    }
}

static void interleave_halves(const struct mxc_packed *w, const float *from, size_t n_groups,
                              size_t g, uint8_t *out) {
    uint16_t half[S];
    for (size_t r = 0; r < S; r++) {
        float x = from[r * n_groups + g];
        half[r] = w->bf16_scales ? mxc_f32_to_bf16(x) : mxc_f32_to_f16(x * w->unit);
    }
    memcpy(out, half, sizeof half);
}

static void pack_integer_strip(const struct mxc_view *view, const struct mxc_packed *w,
                               int32_t strip, struct scratch *s, uint8_t *out) {
    struct mxc_group_form form;
    bool has_groups = mxc_view_group_form(view, &form);
    assert(has_groups);
    (void)has_groups;
    size_t repeat = form.group / (size_t)w->group; /* 128 is stored as two groups of 64 */
    int64_t row = (int64_t)strip * S, left = (int64_t)w->n - row;
    size_t n = left < S ? (size_t)left : S, padding = S - n;
    struct mxc_group_row to = {s->rows, s->scales, s->biases};
    mxc_view_group_rows(view, row, (int64_t)n, &to, s->row_bytes, s->n_groups);
    memset(s->rows + n * s->row_bytes, 0, padding * s->row_bytes);
    memset(s->scales + n * s->n_groups, 0, padding * s->n_groups * sizeof(float));
    memset(s->biases + n * s->n_groups, 0, padding * s->n_groups * sizeof(float));
    for (size_t r = 0; repeat > 1 && r < n; r++) { /* in place, from the last */
        float *scales = s->scales + r * s->n_groups, *biases = s->biases + r * s->n_groups;
        for (size_t g = s->n_groups; g-- > 0;) {
            scales[g] = scales[g / repeat];
            biases[g] = biases[g / repeat];
        }
    }
    for (size_t g = 0; g < s->n_groups; g++) {
        interleave_codes(w, s, g, out);
        out += mxc_block_codes(w);
        interleave_halves(w, s->scales, s->n_groups, g, out);
        out += MXC_BLOCK_TAIL;
        if (w->affine) {
            interleave_halves(w, s->biases, s->n_groups, g, out);
            out += MXC_BLOCK_TAIL;
        }
    }
}

/* f32 that came from f16: nothing to round, so the common case needs no branches on the value. */
static uint16_t narrow_f16(float x) {
    uint32_t u = mxc_f32_bits(x), a = u & 0x7FFFFFFFu;
    if (a - 0x38800000u < 0x47800000u - 0x38800000u)
        return (uint16_t)((u >> 16 & 0x8000) | (a - 0x38000000u) >> 13);
    return mxc_f32_to_f16(x);
}

static void pack_float_strip(const struct mxc_view *view, const struct mxc_packed *w, int32_t strip,
                             struct scratch *s, uint8_t *out) {
    size_t k = (size_t)w->k, step = s->row_bytes / sizeof(float);
    float *rows = (float *)(void *)s->rows;
    int64_t row = (int64_t)strip * S, left = (int64_t)w->n - row;
    size_t n = left < S ? (size_t)left : S;
    mxc_view_rows(view, row, (int64_t)n, rows, step, s->scales);
    for (size_t r = n; r < S; r++)
        memset(rows + r * step, 0, k * sizeof(float));
    if (w->layout == MXC_LAYOUT_F32) {
        for (size_t i = 0; i < k; i++, out += S * sizeof(float)) {
            float line[S];
            for (size_t r = 0; r < S; r++)
                line[r] = rows[r * step + i];
            memcpy(out, line, sizeof line);
        }
    } else if (w->layout == MXC_LAYOUT_F16) {
        for (size_t i = 0; i < k; i++, out += S * sizeof(uint16_t)) {
            uint16_t line[S];
            for (size_t r = 0; r < S; r++)
                line[r] = narrow_f16(rows[r * step + i]);
            memcpy(out, line, sizeof line);
        }
    } else if (view->tensor->storage == MXC_ST_BF16) { /* the low half is zero */
        for (size_t i = 0; i < k; i += 2, out += S * sizeof(uint32_t)) {
            uint32_t line[S];
            for (size_t r = 0; r < S; r++) {
                const float *p = rows + r * step + i;
                uint32_t high = i + 1 < k ? mxc_f32_bits(p[1]) & 0xFFFF0000u : 0;
                line[r] = mxc_f32_bits(p[0]) >> 16 | high;
            }
            memcpy(out, line, sizeof line);
        }
    } else {
        for (size_t i = 0; i < k; i += 2, out += S * sizeof(uint32_t)) {
            uint32_t line[S];
            for (size_t r = 0; r < S; r++) {
                const float *p = rows + r * step + i;
                uint32_t high = i + 1 < k ? (uint32_t)mxc_f32_to_bf16(p[1]) << 16 : 0;
                line[r] = mxc_f32_to_bf16(p[0]) | high;
            }
            memcpy(out, line, sizeof line);
        }
    }
}

void mxc_pack_strips(const struct mxc_view *view, struct mxc_packed *packed, int32_t strip0,
                     int32_t strip1, void *scratch) {
    uintptr_t address = (uintptr_t)scratch;
    struct scratch s = scratch_sizes(packed);
    s.rows = (uint8_t *)scratch + ((LINE - address % LINE) % LINE);
    s.scales = (float *)(void *)(s.rows + s.row_bytes * S);
    s.biases = (float *)(void *)(s.rows + s.row_bytes * S + s.group_bytes);
    bool integer = s.n_groups > 0;
    for (int32_t i = strip0; i < strip1; i++) {
        uint8_t *out = packed->data + (size_t)i * packed->strip_bytes;
        if (packed->layout == MXC_LAYOUT_K6)
            mxc_pack_k6(view, packed, i, out);
        else if (!mxc_pack_direct(view, packed, i, out))
            (integer ? pack_integer_strip : pack_float_strip)(view, packed, i, &s, out);
    }
}

/* ---- reading back */

static float load_f16(const uint8_t *p) {
    return mxc_f16_to_f32(load_u16(p));
}

static void integer_row(const struct mxc_packed *w, const uint8_t *strip, size_t r, float *out) {
    size_t group = (size_t)w->group, codes = mxc_block_codes(w), k = (size_t)w->k;
    for (size_t i = 0; i < k; i++) {
        const uint8_t *block = strip + i / group * mxc_block_bytes(w);
        const uint8_t *lane = block + r * 4, *tail = block + codes + 2 * r;
        size_t e = i % group;
        int32_t code = w->layout == MXC_LAYOUT_I8 ? lane[e / 4 * 4 * S + e % 4]
                       : w->layout == MXC_LAYOUT_I6
                           ? mxc_six_get(block, e, r)
                           : lane[e / 8 * 4 * S + e % 4] >> (e % 8 < 4 ? 0 : 4) & 15;
        float scale = w->bf16_scales ? mxc_bf16_to_f32(load_u16(tail)) : load_f16(tail) / w->unit;
        if (w->layout == MXC_LAYOUT_N4)
            out[i] = scale * (float)w->table[code];
        else if (w->affine)
            out[i] = scale * (float)code + load_f16(tail + MXC_BLOCK_TAIL) / w->unit;
        else
            out[i] = scale * (float)(code - w->zero_point);
    }
}

void mxc_packed_row(const struct mxc_packed *packed, int32_t row, float *out) {
    const uint8_t *strip = packed->data + (size_t)(row / S) * packed->strip_bytes;
    size_t r = (size_t)(row % S), k = (size_t)packed->k;
    switch (packed->layout) {
    case MXC_LAYOUT_F32:
        for (size_t i = 0; i < k; i++)
            out[i] = mxc_f32_of_bits(load_u32(strip + (i * S + r) * sizeof(float)));
        break;
    case MXC_LAYOUT_F16:
        for (size_t i = 0; i < k; i++)
            out[i] = mxc_f16_to_f32(load_u16(strip + (i * S + r) * sizeof(uint16_t)));
        break;
    case MXC_LAYOUT_BF16:
        for (size_t i = 0; i < k; i++)
            out[i] = mxc_bf16_to_f32(load_u16(strip + (i / 2 * 2 * S + 2 * r + i % 2) * 2));
        break;
    case MXC_LAYOUT_K6:
        mxc_k6_row(packed, strip, r, out);
        break;
    default:
        integer_row(packed, strip, r, out);
    }
}
