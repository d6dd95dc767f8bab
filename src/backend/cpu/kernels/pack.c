/* Pack: tensors of any storage to the compute layouts, in the same bytes for every ISA level. A
 * strip is decoded row by row into scratch (codes and group scales, or f32) and then interleaved.
 * Scratch rows are an odd number of cache lines apart, or 32 of them would share two L1 sets. */
#include "backend/cpu/kernels/layout.h"
#include "base/half.h"

#include <assert.h>
#include <string.h>

enum { S = MXC_STRIP, LINE = 64 };

/* ---- choosing a layout */

/* Where the scales of a block storage stand: bounds |scale| and |bias| by the f16 numbers at these
 * offsets times `factor` (the largest of the 6-bit or 8-bit sub-scales they are multiplied with).
 * factor 0: the scales are f16 as they are and need no unit. */
struct scale_field {
    size_t block_bytes, offset, offset2;
    float factor;
};

static struct scale_field scale_field(enum mxc_storage storage) {
    switch (storage) {
    case MXC_ST_Q4_K:
        return (struct scale_field){144, 0, 2, 63};
    case MXC_ST_Q5_K:
        return (struct scale_field){176, 0, 2, 63};
    case MXC_ST_Q6_K:
        return (struct scale_field){210, 208, 208, 128};
    default:
        return (struct scale_field){0};
    }
}

static float load_f16(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return mxc_f16_to_f32(h);
}

static float larger(float max, float x) {
    return fabsf(x) > max && isfinite(x) ? fabsf(x) : max;
}

/* Walks the tensor in pieces and drops the pages behind it: only the scales are looked at, but all
 * of the file's pages are touched. */
static float max_block_scale(const struct mxc_tensor *tensor, struct scale_field f) {
    enum { PIECE_BYTES = 4 << 20 };
    int64_t rows = mxc_tensor_rows(tensor);
    size_t row_bytes = rows > 0 ? tensor->bytes / (size_t)rows : 0;
    int64_t step = row_bytes ? (int64_t)(PIECE_BYTES / row_bytes) + 1 : 1;
    float max = 0;
    for (int64_t r = 0; r < rows; r += step) {
        int64_t end = r + step < rows ? r + step : rows;
        const uint8_t *p = tensor->data + (size_t)r * row_bytes;
        const uint8_t *stop = tensor->data + (size_t)end * row_bytes;
        for (; p + f.block_bytes <= stop; p += f.block_bytes) {
            max = larger(max, load_f16(p + f.offset));
            max = larger(max, load_f16(p + f.offset2));
        }
        if (rows > step)
            mxc_tensor_drop(tensor, r, end);
    }
    return max * f.factor;
}

static float max_array(const uint8_t *p, enum mxc_storage storage, size_t n) {
    float max = 0;
    for (size_t i = 0; i < n; i++) {
        float x;
        uint16_t h;
        if (storage == MXC_ST_F32) {
            memcpy(&x, p + i * sizeof x, sizeof x);
        } else {
            memcpy(&h, p + i * sizeof h, sizeof h);
            x = mxc_bf16_to_f32(h);
        }
        max = larger(max, x);
    }
    return max;
}

/* The power of two that brings max into [2^10, 2^11): f16 then keeps 24 binary orders of magnitude
 * below it at full precision. 1 where the scales are f16 already. */
static float choose_unit(const struct mxc_tensor *tensor) {
    float max = 0;
    struct scale_field field = scale_field(tensor->storage);
    if (field.factor > 0) {
        max = max_block_scale(tensor, field);
    } else if (tensor->storage == MXC_ST_MLX_AFFINE && tensor->scale_storage != MXC_ST_F16) {
        size_t n =
            (size_t)mxc_tensor_rows(tensor) * ((size_t)mxc_tensor_columns(tensor) / tensor->group);
        max = max_array(tensor->scales, tensor->scale_storage, n);
        float bias = max_array(tensor->biases, tensor->scale_storage, n);
        max = bias > max ? bias : max;
    }
    if (max <= 0)
        return 1;
    int exponent;
    (void)frexpf(max, &exponent); /* max = f * 2^exponent, f in [0.5, 1) */
    int shift = 11 - exponent;
    return ldexpf(1, shift > 100 ? 100 : shift < -100 ? -100 : shift);
}

enum mxc_code mxc_pack_form(const struct mxc_tensor *tensor, bool exact, struct mxc_packed *packed,
                            struct mxc_err *err) {
    int64_t n = mxc_tensor_rows(tensor), k = mxc_tensor_columns(tensor);
    const char *path = tensor->file && tensor->file->path ? tensor->file->path : "";
    const char *storage = mxc_storage_info(tensor->storage)->name;
    if (n < 1 || k < 1 || n > INT32_MAX - S || k > INT32_MAX / 2)
        return mxc_err_set(err, MXC_E_UNSUPPORTED, "%s: tensor %s: a matrix of %lld x %lld", path,
                           tensor->name, (long long)n, (long long)k);
    struct mxc_packed p = {.n = (int32_t)n, .k = (int32_t)k, .zero_point = 0, .unit = 1};
    struct mxc_group_form form;
    if (mxc_tensor_group_form(tensor, &form)) {
        p.layout = exact ? MXC_LAYOUT_F32 : form.bits <= 4 ? MXC_LAYOUT_I4 : MXC_LAYOUT_I8;
        p.group = form.group > 64 ? 64 : (int32_t)form.group;
        p.affine = form.zero_point < 0;
        p.zero_point = p.affine ? 0 : form.zero_point;
        /* what the storages have: groups of 16 have zero points, groups of 64 have biases */
        bool known = exact || p.group == 32 || (p.group == 64 && p.affine) ||
                     (p.group == 16 && !p.affine && p.layout == MXC_LAYOUT_I8);
        if (form.bits > 8 || !known || form.group % (uint32_t)p.group || k % (int64_t)form.group ||
            k % 32)
            return mxc_err_set(err, MXC_E_UNSUPPORTED,
                               "%s: tensor %s: %s with %u bits, groups of %u, rows of %lld", path,
                               tensor->name, storage, form.bits, form.group, (long long)k);
        if (exact)
            p.group = 0, p.affine = false, p.zero_point = 0;
        else
            p.unit = choose_unit(tensor);
    } else {
        switch (tensor->storage) {
        case MXC_ST_F32:
        case MXC_ST_F64:
            p.layout = MXC_LAYOUT_F32;
            break;
        case MXC_ST_F16:
            p.layout = exact ? MXC_LAYOUT_F32 : MXC_LAYOUT_F16;
            break;
        case MXC_ST_BF16:
            p.layout = exact ? MXC_LAYOUT_F32 : MXC_LAYOUT_BF16;
            break;
        default:
            return mxc_err_set(err, MXC_E_UNSUPPORTED, "%s: tensor %s: %s is no matrix type", path,
                               tensor->name, storage);
        }
    }
    p.strip_bytes = (size_t)k * S * (p.layout == MXC_LAYOUT_F32 ? 4 : 2);
    if (p.layout == MXC_LAYOUT_BF16)
        p.strip_bytes = ((size_t)k + 1) / 2 * 2 * S * 2;
    else if (p.layout == MXC_LAYOUT_I4 || p.layout == MXC_LAYOUT_I8)
        p.strip_bytes = (size_t)(p.k / p.group) * mxc_block_bytes(&p);
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

/* Scratch of one strip: rows of codes (or f32), then scales, then biases. */
struct scratch {
    uint8_t *rows;
    float *scales, *biases;
    size_t row_bytes;   /* an odd number of lines */
    size_t n_groups;    /* stored groups of a row */
    size_t group_bytes; /* of the scales of all rows */
};

static struct scratch scratch_sizes(const struct mxc_packed *w) {
    bool integer = w->layout == MXC_LAYOUT_I4 || w->layout == MXC_LAYOUT_I8;
    struct scratch s = {.n_groups = integer ? (size_t)(w->k / w->group) : 0};
    size_t lines = ((size_t)w->k * (integer ? 1 : sizeof(float)) + LINE - 1) / LINE;
    s.row_bytes = (lines | 1) * LINE;
    s.group_bytes = mxc_round_up(s.n_groups * S * sizeof(float), LINE);
    return s;
}

size_t mxc_pack_scratch_bytes(const struct mxc_packed *packed) {
    struct scratch s = scratch_sizes(packed);
    return s.row_bytes * S + 2 * s.group_bytes + LINE; /* one line to align by */
}

static uint32_t load_u32(const uint8_t *p) {
    uint32_t u;
    memcpy(&u, p, sizeof u);
    return u;
}

/* Codes of one group: 4 bytes of a row at a time. */
static void interleave_codes(const struct mxc_packed *w, const struct scratch *s, size_t g,
                             uint8_t *out) {
    size_t group = (size_t)w->group, step = w->layout == MXC_LAYOUT_I4 ? 8 : 4;
    const uint8_t *from = s->rows + g * group;
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

static void interleave_halves(const float *from, size_t n_groups, size_t g, float unit,
                              uint8_t *out) {
    uint16_t half[S];
    for (size_t r = 0; r < S; r++)
        half[r] = mxc_f32_to_f16(from[r * n_groups + g] * unit);
    memcpy(out, half, sizeof half);
}

static void pack_integer_strip(const struct mxc_tensor *tensor, const struct mxc_packed *w,
                               int32_t strip, struct scratch *s, uint8_t *out) {
    struct mxc_group_form form;
    bool has_groups = mxc_tensor_group_form(tensor, &form);
    assert(has_groups);
    (void)has_groups;
    size_t repeat = form.group / (size_t)w->group; /* 128 is stored as two groups of 64 */
    for (size_t r = 0; r < S; r++) {
        int64_t row = (int64_t)strip * S + (int64_t)r;
        float *scales = s->scales + r * s->n_groups, *biases = s->biases + r * s->n_groups;
        uint8_t *codes = s->rows + r * s->row_bytes;
        if (row >= w->n) {
            memset(codes, 0, (size_t)w->k);
            memset(scales, 0, s->n_groups * sizeof *scales);
            memset(biases, 0, s->n_groups * sizeof *biases);
            continue;
        }
        struct mxc_group_row to = {.codes = codes, .scales = scales, .biases = biases};
        mxc_tensor_group_row(tensor, row, &to);
        for (size_t g = repeat > 1 ? s->n_groups : 0; g-- > 0;) {
            scales[g] = scales[g / repeat];
            biases[g] = biases[g / repeat];
        }
    }
    for (size_t g = 0; g < s->n_groups; g++) {
        interleave_codes(w, s, g, out);
        out += mxc_block_codes(w);
        interleave_halves(s->scales, s->n_groups, g, w->unit, out);
        out += MXC_BLOCK_TAIL;
        if (w->affine) {
            interleave_halves(s->biases, s->n_groups, g, w->unit, out);
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

static void pack_float_strip(const struct mxc_tensor *tensor, const struct mxc_packed *w,
                             int32_t strip, struct scratch *s, uint8_t *out) {
    size_t k = (size_t)w->k, step = s->row_bytes / sizeof(float);
    float *rows = (float *)(void *)s->rows;
    for (size_t r = 0; r < S; r++) {
        int64_t row = (int64_t)strip * S + (int64_t)r;
        if (row < w->n)
            mxc_tensor_row(tensor, row, rows + r * step);
        else
            memset(rows + r * step, 0, k * sizeof(float));
    }
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
    } else { /* f32 that came from bf16: the low half is zero */
        for (size_t i = 0; i < k; i += 2, out += S * sizeof(uint32_t)) {
            uint32_t line[S];
            for (size_t r = 0; r < S; r++) {
                const float *p = rows + r * step + i;
                uint32_t high = i + 1 < k ? mxc_f32_bits(p[1]) & 0xFFFF0000u : 0;
                line[r] = mxc_f32_bits(p[0]) >> 16 | high;
            }
            memcpy(out, line, sizeof line);
        }
    }
}

void mxc_pack_strips(const struct mxc_tensor *tensor, struct mxc_packed *packed, int32_t strip0,
                     int32_t strip1, void *scratch) {
    uintptr_t address = (uintptr_t)scratch;
    struct scratch s = scratch_sizes(packed);
    s.rows = (uint8_t *)scratch + ((LINE - address % LINE) % LINE);
    s.scales = (float *)(void *)(s.rows + s.row_bytes * S);
    s.biases = (float *)(void *)(s.rows + s.row_bytes * S + s.group_bytes);
    bool integer = s.n_groups > 0;
    for (int32_t i = strip0; i < strip1; i++) {
        uint8_t *out = packed->data + (size_t)i * packed->strip_bytes;
        (integer ? pack_integer_strip : pack_float_strip)(tensor, packed, i, &s, out);
    }
}

/* ---- reading back */

static uint16_t load_u16(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return h;
}

static void integer_row(const struct mxc_packed *w, const uint8_t *strip, size_t r, float *out) {
    size_t group = (size_t)w->group, codes = mxc_block_codes(w), k = (size_t)w->k;
    for (size_t i = 0; i < k; i++) {
        const uint8_t *block = strip + i / group * mxc_block_bytes(w);
        const uint8_t *lane = block + r * 4;
        size_t e = i % group;
        int32_t code = w->layout == MXC_LAYOUT_I4
                           ? lane[e / 8 * 4 * S + e % 4] >> (e % 8 < 4 ? 0 : 4) & 15
                           : lane[e / 4 * 4 * S + e % 4];
        float scale = mxc_f16_to_f32(load_u16(block + codes + 2 * r)) / w->unit;
        out[i] = w->affine ? scale * (float)code +
                                 mxc_f16_to_f32(load_u16(block + codes + MXC_BLOCK_TAIL + 2 * r)) /
                                     w->unit
                           : scale * (float)(code - w->zero_point);
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
    default:
        integer_row(packed, strip, r, out);
    }
}
