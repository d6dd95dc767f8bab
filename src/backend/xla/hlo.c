/* HLO text, see hlo.h. In come values and attributes, out goes one line of StableHLO each.
 * The forms of the lines are those of StableHLO's pretty printer, and its generic form where it has
 * none (gather, scatter, sort). Numbers are written with nine digits, which give every f32 back. */
#include "backend/xla/hlo.h"

#include "base/mem.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int bits;
} types[MXC_XLA_N_TYPES] = {
    [MXC_XLA_F32] = {"f32", 32}, [MXC_XLA_BF16] = {"bf16", 16}, [MXC_XLA_F16] = {"f16", 16},
    [MXC_XLA_S64] = {"i64", 64}, [MXC_XLA_S32] = {"i32", 32},   [MXC_XLA_S16] = {"i16", 16},
    [MXC_XLA_S8] = {"i8", 8},    [MXC_XLA_U32] = {"ui32", 32},  [MXC_XLA_U16] = {"ui16", 16},
    [MXC_XLA_U8] = {"ui8", 8},   [MXC_XLA_S4] = {"i4", 4},      [MXC_XLA_U4] = {"ui4", 4},
    [MXC_XLA_PRED] = {"i1", 8},
};

enum { MAX_DIMS = MXC_XLA_MAX_DIMS, LIST = 256 };

void mxc_hlo_init(struct mxc_hlo *h) {
    *h = (struct mxc_hlo){.indent = 4};
    mxc_buf_init(&h->text, MXC_HLO_MAX_BYTES);
}

void mxc_hlo_fini(struct mxc_hlo *h) {
    mxc_buf_fini(&h->text);
}

static void open_line(struct mxc_hlo *h) {
    for (int i = 0; i < h->indent; i++)
        (void)mxc_buf_putc(&h->text, ' ');
}

void mxc_hlo_line(struct mxc_hlo *h, const char *fmt, ...) {
    char line[8192];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= sizeof line) {
        h->text.failed = true;
        return;
    }
    open_line(h);
    (void)mxc_buf_append(&h->text, line, (size_t)n);
    (void)mxc_buf_putc(&h->text, '\n');
}

const char *mxc_hlo_type_name(enum mxc_xla_type type) {
    return types[type].name;
}

int mxc_hlo_type_bits(enum mxc_xla_type type) {
    return types[type].bits;
}

struct mxc_xla_shape mxc_hlo_shape(enum mxc_xla_type type, int n_dims, const int64_t *dims) {
    struct mxc_xla_shape shape = {.type = type, .n_dims = n_dims};
    assert(n_dims <= MAX_DIMS);
    for (int i = 0; i < n_dims; i++) {
        assert(dims[i] > 0);
        shape.dims[i] = dims[i];
    }
    return shape;
}

const char *mxc_hlo_type(const struct mxc_xla_shape *shape, char text[MXC_HLO_TYPE]) {
    size_t used = (size_t)snprintf(text, MXC_HLO_TYPE, "tensor<");
    for (int i = 0; i < shape->n_dims; i++)
        used +=
            (size_t)snprintf(text + used, MXC_HLO_TYPE - used, "%lldx", (long long)shape->dims[i]);
    (void)snprintf(text + used, MXC_HLO_TYPE - used, "%s>", types[shape->type].name);
    return text;
}

struct mxc_hlo_value mxc_hlo_named(const struct mxc_xla_shape *shape, const char *fmt, ...) {
    struct mxc_hlo_value v = {.shape = *shape};
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(v.name, sizeof v.name, fmt, ap);
    va_end(ap);
    return v;
}

static struct mxc_hlo_value fresh(struct mxc_hlo *h, const struct mxc_xla_shape *shape) {
    return mxc_hlo_named(shape, "%%%d", h->next++);
}

static struct mxc_hlo_value made(struct mxc_hlo *h, enum mxc_xla_type type, int n_dims,
                                 const int64_t *dims) {
    struct mxc_xla_shape shape = mxc_hlo_shape(type, n_dims, dims);
    return fresh(h, &shape);
}

/* "[1, 2, 3]" */
static const char *list64(const int64_t *numbers, int n, char text[LIST]) {
    size_t used = (size_t)snprintf(text, LIST, "[");
    for (int i = 0; i < n; i++)
        used += (size_t)snprintf(text + used, LIST - used, "%s%lld", i ? ", " : "",
                                 (long long)numbers[i]);
    (void)snprintf(text + used, LIST - used, "]");
    return text;
}

static const char *list(const int *numbers, int n, char text[LIST]) {
    int64_t wide[MAX_DIMS];
    assert(n <= MAX_DIMS);
    for (int i = 0; i < n; i++)
        wide[i] = numbers[i];
    return list64(wide, n, text);
}

static bool same_dims(const struct mxc_xla_shape *a, const struct mxc_xla_shape *b) {
    if (a->n_dims != b->n_dims)
        return false;
    for (int i = 0; i < a->n_dims; i++)
        if (a->dims[i] != b->dims[i])
            return false;
    return true;
}

static bool is_float(enum mxc_xla_type type) {
    return type == MXC_XLA_F32 || type == MXC_XLA_BF16 || type == MXC_XLA_F16;
}

/* "name = op a, b : type" for ops whose operands and result have one type. */
static void write_same(struct mxc_hlo *h, const struct mxc_hlo_value *out, const char *op,
                       const char *a, const char *b) {
    char type[MXC_HLO_TYPE];
    mxc_hlo_line(h, "%s = stablehlo.%s %s%s%s : %s", out->name, op, a, b ? ", " : "", b ? b : "",
                 mxc_hlo_type(&out->shape, type));
}

/* "name = op a, extra : (type) -> type" */
static void write_to(struct mxc_hlo *h, const struct mxc_hlo_value *out, const char *op,
                     const struct mxc_hlo_value *a, const char *extra) {
    char from[MXC_HLO_TYPE], to[MXC_HLO_TYPE];
    mxc_hlo_line(h, "%s = stablehlo.%s %s%s : (%s) -> %s", out->name, op, a->name, extra,
                 mxc_hlo_type(&a->shape, from), mxc_hlo_type(&out->shape, to));
}

/* ---- constants */

static void number(enum mxc_xla_type type, double x, char text[48]) {
    if (!is_float(type))
        (void)snprintf(text, 48, "%lld", (long long)x);
    else if (isfinite(x))
        (void)snprintf(text, 48, "%.9e", x);
    else if (type == MXC_XLA_F32)
        (void)snprintf(text, 48, "0x%s", isnan(x) ? "7FC00000" : x < 0 ? "FF800000" : "7F800000");
    else
        (void)snprintf(text, 48, "0x%s",
                       type == MXC_XLA_BF16 ? (x < 0 ? "FF80" : "7F80")
                                            : (x < 0 ? "FC00" : "7C00"));
}

struct mxc_hlo_value mxc_hlo_splat(struct mxc_hlo *h, enum mxc_xla_type type, double x, int n_dims,
                                   const int64_t *dims) {
    struct mxc_hlo_value out = made(h, type, n_dims, dims);
    char text[48], name[MXC_HLO_TYPE];
    number(type, x, text);
    mxc_hlo_line(h, "%s = stablehlo.constant dense<%s> : %s", out.name, text,
                 mxc_hlo_type(&out.shape, name));
    return out;
}

struct mxc_hlo_value mxc_hlo_like(struct mxc_hlo *h, struct mxc_hlo_value v, double x) {
    return mxc_hlo_splat(h, v.shape.type, x, v.shape.n_dims, v.shape.dims);
}

struct mxc_hlo_value mxc_hlo_scalar(struct mxc_hlo *h, enum mxc_xla_type type, double x) {
    return mxc_hlo_splat(h, type, x, 0, NULL);
}

struct mxc_hlo_value mxc_hlo_ints(struct mxc_hlo *h, int n, const int32_t *numbers) {
    struct mxc_hlo_value out = made(h, MXC_XLA_S32, MXC_DIMS(n));
    char name[MXC_HLO_TYPE];
    open_line(h);
    (void)mxc_buf_printf(&h->text, "%s = stablehlo.constant dense<[", out.name);
    for (int i = 0; i < n; i++)
        (void)mxc_buf_printf(&h->text, "%s%d", i ? ", " : "", numbers[i]);
    (void)mxc_buf_printf(&h->text, "]> : %s\n", mxc_hlo_type(&out.shape, name));
    return out;
}

struct mxc_hlo_value mxc_hlo_iota(struct mxc_hlo *h, enum mxc_xla_type type, int axis, int n_dims,
                                  const int64_t *dims) {
    struct mxc_hlo_value out = made(h, type, n_dims, dims);
    char name[MXC_HLO_TYPE];
    mxc_hlo_line(h, "%s = stablehlo.iota dim = %d : %s", out.name, axis,
                 mxc_hlo_type(&out.shape, name));
    return out;
}

/* ---- number by number */

struct mxc_hlo_value mxc_hlo_unary(struct mxc_hlo *h, const char *op, struct mxc_hlo_value a) {
    struct mxc_hlo_value out = fresh(h, &a.shape);
    write_same(h, &out, op, a.name, NULL);
    return out;
}

struct mxc_hlo_value mxc_hlo_binary(struct mxc_hlo *h, const char *op, struct mxc_hlo_value a,
                                    struct mxc_hlo_value b) {
    assert(same_dims(&a.shape, &b.shape) && a.shape.type == b.shape.type);
    struct mxc_hlo_value out = fresh(h, &a.shape);
    write_same(h, &out, op, a.name, b.name);
    return out;
}

struct mxc_hlo_value mxc_hlo_binary_x(struct mxc_hlo *h, const char *op, struct mxc_hlo_value a,
                                      double x) {
    struct mxc_hlo_value b = mxc_hlo_like(h, a, x);
    return mxc_hlo_binary(h, op, a, b);
}

struct mxc_hlo_value mxc_hlo_compare(struct mxc_hlo *h, const char *direction,
                                     struct mxc_hlo_value a, struct mxc_hlo_value b) {
    assert(same_dims(&a.shape, &b.shape) && a.shape.type == b.shape.type);
    struct mxc_hlo_value out = made(h, MXC_XLA_PRED, a.shape.n_dims, a.shape.dims);
    char from[MXC_HLO_TYPE], to[MXC_HLO_TYPE];
    mxc_hlo_type(&a.shape, from);
    mxc_hlo_line(h, "%s = stablehlo.compare %s, %s, %s : (%s, %s) -> %s", out.name, direction,
                 a.name, b.name, from, from, mxc_hlo_type(&out.shape, to));
    return out;
}

struct mxc_hlo_value mxc_hlo_select(struct mxc_hlo *h, struct mxc_hlo_value condition,
                                    struct mxc_hlo_value yes, struct mxc_hlo_value no) {
    assert(same_dims(&yes.shape, &no.shape) && yes.shape.type == no.shape.type);
    assert(same_dims(&yes.shape, &condition.shape) && condition.shape.type == MXC_XLA_PRED);
    struct mxc_hlo_value out = fresh(h, &yes.shape);
    char from[MXC_HLO_TYPE], to[MXC_HLO_TYPE];
    mxc_hlo_line(h, "%s = stablehlo.select %s, %s, %s : %s, %s", out.name, condition.name, yes.name,
                 no.name, mxc_hlo_type(&condition.shape, from), mxc_hlo_type(&out.shape, to));
    return out;
}

struct mxc_hlo_value mxc_hlo_convert(struct mxc_hlo *h, struct mxc_hlo_value a,
                                     enum mxc_xla_type type) {
    if (a.shape.type == type)
        return a;
    struct mxc_hlo_value out = made(h, type, a.shape.n_dims, a.shape.dims);
    write_to(h, &out, "convert", &a, "");
    return out;
}

/* ---- moving numbers */

#ifndef NDEBUG
static int64_t count(const int64_t *dims, int n_dims) {
    int64_t n = 1;
    for (int i = 0; i < n_dims; i++)
        n *= dims[i];
    return n;
}
#endif

struct mxc_hlo_value mxc_hlo_reshape(struct mxc_hlo *h, struct mxc_hlo_value a, int n_dims,
                                     const int64_t *dims) {
    struct mxc_xla_shape shape = mxc_hlo_shape(a.shape.type, n_dims, dims);
    assert(count(dims, n_dims) == count(a.shape.dims, a.shape.n_dims));
    if (same_dims(&shape, &a.shape))
        return a;
    struct mxc_hlo_value out = fresh(h, &shape);
    write_to(h, &out, "reshape", &a, "");
    return out;
}

struct mxc_hlo_value mxc_hlo_broadcast(struct mxc_hlo *h, struct mxc_hlo_value a, const int *axes,
                                       int n_dims, const int64_t *dims) {
    struct mxc_hlo_value out = made(h, a.shape.type, n_dims, dims);
    char extra[LIST + 16], text[LIST];
    for (int i = 0; i < a.shape.n_dims; i++)
        assert(axes[i] < n_dims && (a.shape.dims[i] == dims[axes[i]] || a.shape.dims[i] == 1));
    (void)snprintf(extra, sizeof extra, ", dims = %s", list(axes, a.shape.n_dims, text));
    write_to(h, &out, "broadcast_in_dim", &a, extra);
    return out;
}

struct mxc_hlo_value mxc_hlo_spread(struct mxc_hlo *h, struct mxc_hlo_value a, const int *axes,
                                    struct mxc_hlo_value v) {
    return mxc_hlo_broadcast(h, a, axes, v.shape.n_dims, v.shape.dims);
}

struct mxc_hlo_value mxc_hlo_transpose(struct mxc_hlo *h, struct mxc_hlo_value a,
                                       const int *order) {
    int64_t dims[MAX_DIMS];
    char extra[LIST + 16], text[LIST];
    for (int i = 0; i < a.shape.n_dims; i++)
        dims[i] = a.shape.dims[order[i]];
    struct mxc_hlo_value out = made(h, a.shape.type, a.shape.n_dims, dims);
    (void)snprintf(extra, sizeof extra, ", dims = %s", list(order, a.shape.n_dims, text));
    write_to(h, &out, "transpose", &a, extra);
    return out;
}

struct mxc_hlo_value mxc_hlo_slice(struct mxc_hlo *h, struct mxc_hlo_value a, int axis,
                                   int64_t begin, int64_t end) {
    struct mxc_xla_shape shape = a.shape;
    char ranges[LIST];
    assert(axis < a.shape.n_dims && begin >= 0 && begin < end && end <= a.shape.dims[axis]);
    if (end - begin == a.shape.dims[axis])
        return a;
    shape.dims[axis] = end - begin;
    struct mxc_hlo_value out = fresh(h, &shape);
    size_t used = (size_t)snprintf(ranges, sizeof ranges, " [");
    for (int i = 0; i < a.shape.n_dims; i++)
        used += (size_t)snprintf(ranges + used, sizeof ranges - used, "%s%lld:%lld", i ? ", " : "",
                                 (long long)(i == axis ? begin : 0),
                                 (long long)(i == axis ? end : a.shape.dims[i]));
    (void)snprintf(ranges + used, sizeof ranges - used, "]");
    write_to(h, &out, "slice", &a, ranges);
    return out;
}

struct mxc_hlo_value mxc_hlo_concat(struct mxc_hlo *h, const struct mxc_hlo_value *parts, int n,
                                    int axis) {
    struct mxc_xla_shape shape = parts[0].shape;
    char type[MXC_HLO_TYPE];
    if (n == 1)
        return parts[0];
    for (int i = 1; i < n; i++) {
        assert(parts[i].shape.n_dims == shape.n_dims && parts[i].shape.type == shape.type);
        shape.dims[axis] += parts[i].shape.dims[axis];
    }
    struct mxc_hlo_value out = fresh(h, &shape);
    open_line(h);
    (void)mxc_buf_printf(&h->text, "%s = stablehlo.concatenate ", out.name);
    for (int i = 0; i < n; i++)
        (void)mxc_buf_printf(&h->text, "%s%s", i ? ", " : "", parts[i].name);
    (void)mxc_buf_printf(&h->text, ", dim = %d : (", axis);
    for (int i = 0; i < n; i++)
        (void)mxc_buf_printf(&h->text, "%s%s", i ? ", " : "", mxc_hlo_type(&parts[i].shape, type));
    (void)mxc_buf_printf(&h->text, ") -> %s\n", mxc_hlo_type(&out.shape, type));
    return out;
}

struct mxc_hlo_value mxc_hlo_pad(struct mxc_hlo *h, struct mxc_hlo_value a, int axis, int64_t n,
                                 double x) {
    if (!n)
        return a;
    struct mxc_xla_shape shape = a.shape;
    shape.dims[axis] = n;
    struct mxc_hlo_value tail = mxc_hlo_splat(h, shape.type, x, shape.n_dims, shape.dims);
    return mxc_hlo_concat(h, (struct mxc_hlo_value[]){a, tail}, 2, axis);
}

/* ", %1, %2" and ", tensor<i32>, tensor<i32>" */
static void starts(const struct mxc_hlo_value *at, int n, char names[LIST], char types_[LIST]) {
    size_t a = 0, b = 0;
    names[0] = types_[0] = '\0';
    for (int i = 0; i < n; i++) {
        assert(at[i].shape.type == MXC_XLA_S32 && at[i].shape.n_dims == 0);
        a += (size_t)snprintf(names + a, LIST - a, ", %s", at[i].name);
        b += (size_t)snprintf(types_ + b, LIST - b, ", tensor<i32>");
    }
}

struct mxc_hlo_value mxc_hlo_dynamic_slice(struct mxc_hlo *h, struct mxc_hlo_value a,
                                           const struct mxc_hlo_value *at, const int64_t *sizes) {
    struct mxc_hlo_value out = made(h, a.shape.type, a.shape.n_dims, sizes);
    char names[LIST], kinds[LIST], text[LIST], from[MXC_HLO_TYPE], to[MXC_HLO_TYPE];
    starts(at, a.shape.n_dims, names, kinds);
    mxc_hlo_line(h, "%s = stablehlo.dynamic_slice %s%s, sizes = %s : (%s%s) -> %s", out.name,
                 a.name, names, list64(sizes, a.shape.n_dims, text), mxc_hlo_type(&a.shape, from),
                 kinds, mxc_hlo_type(&out.shape, to));
    return out;
}

struct mxc_hlo_value mxc_hlo_dynamic_update(struct mxc_hlo *h, struct mxc_hlo_value a,
                                            struct mxc_hlo_value part,
                                            const struct mxc_hlo_value *at) {
    struct mxc_hlo_value out = fresh(h, &a.shape);
    char names[LIST], kinds[LIST], to[MXC_HLO_TYPE], from[MXC_HLO_TYPE];
    assert(part.shape.n_dims == a.shape.n_dims && part.shape.type == a.shape.type);
    starts(at, a.shape.n_dims, names, kinds);
    mxc_hlo_type(&a.shape, to);
    mxc_hlo_line(h, "%s = stablehlo.dynamic_update_slice %s, %s%s : (%s, %s%s) -> %s", out.name,
                 a.name, part.name, names, to, mxc_hlo_type(&part.shape, from), kinds, to);
    return out;
}

/* "[a, a + 1, ... b)" */
static const char *counted(int a, int b, char text[LIST]) {
    int numbers[MAX_DIMS];
    for (int i = a; i < b; i++)
        numbers[i - a] = i;
    return list(numbers, b - a, text);
}

struct mxc_hlo_value mxc_hlo_gather(struct mxc_hlo *h, struct mxc_hlo_value a,
                                    struct mxc_hlo_value index, int n) {
    assert(index.shape.type == MXC_XLA_S32);
    int lead = index.shape.n_dims - 1;
    if (lead < 0 || index.shape.dims[lead] != n || (n == 1 && lead == 0)) {
        assert(n == 1);
        int64_t dims[MAX_DIMS];
        lead = index.shape.n_dims;
        memcpy(dims, index.shape.dims, sizeof dims);
        dims[lead] = 1;
        index = mxc_hlo_reshape(h, index, lead + 1, dims);
    }
    struct mxc_xla_shape shape = {.type = a.shape.type, .n_dims = lead + a.shape.n_dims - n};
    char offsets[LIST], collapsed[LIST], sizes[LIST], from[MXC_HLO_TYPE], by[MXC_HLO_TYPE],
        to[MXC_HLO_TYPE];
    size_t used = 0;
    for (int i = 0; i < lead; i++)
        shape.dims[i] = index.shape.dims[i];
    for (int i = 0; i < a.shape.n_dims; i++) {
        if (i >= n)
            shape.dims[lead + i - n] = a.shape.dims[i];
        used += (size_t)snprintf(sizes + used, sizeof sizes - used, "%s%lld", i ? ", " : "",
                                 (long long)(i < n ? 1 : a.shape.dims[i]));
    }
    struct mxc_hlo_value out = fresh(h, &shape);
    counted(0, n, collapsed);
    mxc_hlo_line(h,
                 "%s = \"stablehlo.gather\"(%s, %s) <{dimension_numbers = "
                 "#stablehlo.gather<offset_dims = %s, collapsed_slice_dims = %s, start_index_map = "
                 "%s, index_vector_dim = %d>, slice_sizes = array<i64: %s>}> : (%s, %s) -> %s",
                 out.name, a.name, index.name, counted(lead, shape.n_dims, offsets), collapsed,
                 collapsed, lead, sizes, mxc_hlo_type(&a.shape, from),
                 mxc_hlo_type(&index.shape, by), mxc_hlo_type(&out.shape, to));
    return out;
}

struct mxc_hlo_value mxc_hlo_scatter(struct mxc_hlo *h, struct mxc_hlo_value a,
                                     struct mxc_hlo_value index, struct mxc_hlo_value updates) {
    int n = (int)index.shape.dims[1];
    assert(index.shape.n_dims == 2 && index.shape.type == MXC_XLA_S32);
    assert(updates.shape.n_dims == 1 + a.shape.n_dims - n && updates.shape.type == a.shape.type);
    struct mxc_hlo_value out = fresh(h, &a.shape);
    char windows[LIST], inserted[LIST], to[MXC_HLO_TYPE], by[MXC_HLO_TYPE], from[MXC_HLO_TYPE];
    const char *number_type = types[a.shape.type].name;
    mxc_hlo_type(&a.shape, to);
    counted(0, n, inserted);
    mxc_hlo_line(h,
                 "%s = \"stablehlo.scatter\"(%s, %s, %s) <{scatter_dimension_numbers = "
                 "#stablehlo.scatter<update_window_dims = %s, inserted_window_dims = %s, "
                 "scatter_dims_to_operand_dims = %s, index_vector_dim = 1>, "
                 "indices_are_sorted = false, unique_indices = false}> ({",
                 out.name, a.name, index.name, updates.name,
                 counted(1, updates.shape.n_dims, windows), inserted, inserted);
    mxc_hlo_line(h, "^bb0(%%old%d: tensor<%s>, %%new%d: tensor<%s>):", h->next, number_type,
                 h->next, number_type);
    mxc_hlo_line(h, "  stablehlo.return %%new%d : tensor<%s>", h->next, number_type);
    mxc_hlo_line(h, "}) : (%s, %s, %s) -> %s", to, mxc_hlo_type(&index.shape, by),
                 mxc_hlo_type(&updates.shape, from), to);
    h->next++;
    return out;
}

void mxc_hlo_sort(struct mxc_hlo *h, struct mxc_hlo_value *keys, struct mxc_hlo_value *payload) {
    char a[MXC_HLO_TYPE], b[MXC_HLO_TYPE];
    const char *key = types[keys->shape.type].name, *load = types[payload->shape.type].name;
    int id = h->next++;
    assert(same_dims(&keys->shape, &payload->shape));
    mxc_hlo_type(&keys->shape, a);
    mxc_hlo_type(&payload->shape, b);
    mxc_hlo_line(
        h, "%%%d:2 = \"stablehlo.sort\"(%s, %s) <{dimension = %d : i64, is_stable = true}> ({", id,
        keys->name, payload->name, keys->shape.n_dims - 1);
    mxc_hlo_line(h,
                 "^bb0(%%ka%d: tensor<%s>, %%kb%d: tensor<%s>, %%pa%d: tensor<%s>, %%pb%d: "
                 "tensor<%s>):",
                 id, key, id, key, id, load, id, load);
    mxc_hlo_line(h,
                 "  %%s%d = stablehlo.compare %s, %%ka%d, %%kb%d : (tensor<%s>, tensor<%s>) -> "
                 "tensor<i1>",
                 id, is_float(keys->shape.type) ? "GT" : "LT", id, id, key, key);
    mxc_hlo_line(h, "  stablehlo.return %%s%d : tensor<i1>", id);
    mxc_hlo_line(h, "}) : (%s, %s) -> (%s, %s)", a, b, a, b);
    *keys = mxc_hlo_named(&keys->shape, "%%%d#0", id);
    *payload = mxc_hlo_named(&payload->shape, "%%%d#1", id);
}

/* ---- sums and products */

struct mxc_hlo_value mxc_hlo_reduce(struct mxc_hlo *h, const char *op, struct mxc_hlo_value a,
                                    int n, const int *axes) {
    struct mxc_xla_shape shape = {.type = a.shape.type};
    char text[LIST], from[MXC_HLO_TYPE], single[MXC_HLO_TYPE], to[MXC_HLO_TYPE];
    double start = !strcmp(op, "maximum") ? -INFINITY : !strcmp(op, "minimum") ? INFINITY : 0;
    if (!is_float(a.shape.type) && isinf(start))
        start = start < 0 ? INT32_MIN : INT32_MAX;
    for (int i = 0; i < a.shape.n_dims; i++) {
        bool gone = false;
        for (int k = 0; k < n; k++)
            gone |= axes[k] == i;
        if (!gone)
            shape.dims[shape.n_dims++] = a.shape.dims[i];
    }
    struct mxc_hlo_value init = mxc_hlo_scalar(h, a.shape.type, start), out = fresh(h, &shape);
    mxc_hlo_line(h,
                 "%s = stablehlo.reduce(%s init: %s) applies stablehlo.%s across dimensions = %s : "
                 "(%s, %s) -> %s",
                 out.name, a.name, init.name, op, list(axes, n, text), mxc_hlo_type(&a.shape, from),
                 mxc_hlo_type(&init.shape, single), mxc_hlo_type(&out.shape, to));
    return out;
}

static bool has(const int *axes, int n, int axis) {
    for (int i = 0; i < n; i++)
        if (axes[i] == axis)
            return true;
    return false;
}

struct mxc_hlo_value mxc_hlo_dot(struct mxc_hlo *h, struct mxc_hlo_value a, struct mxc_hlo_value b,
                                 const struct mxc_hlo_dot *dot) {
    struct mxc_xla_shape shape = {.type = MXC_XLA_F32};
    char batch[2 * LIST + 32] = "", at[LIST], bt[LIST], to[MXC_HLO_TYPE], left[LIST], right[LIST];
    assert(a.shape.type == b.shape.type && a.shape.dims[dot->a_axis] == b.shape.dims[dot->b_axis]);
    for (int i = 0; i < dot->n_batch; i++) {
        assert(a.shape.dims[dot->a_batch[i]] == b.shape.dims[dot->b_batch[i]]);
        shape.dims[shape.n_dims++] = a.shape.dims[dot->a_batch[i]];
    }
    for (int i = 0; i < a.shape.n_dims; i++)
        if (i != dot->a_axis && !has(dot->a_batch, dot->n_batch, i))
            shape.dims[shape.n_dims++] = a.shape.dims[i];
    for (int i = 0; i < b.shape.n_dims; i++)
        if (i != dot->b_axis && !has(dot->b_batch, dot->n_batch, i))
            shape.dims[shape.n_dims++] = b.shape.dims[i];
    if (dot->n_batch)
        (void)snprintf(batch, sizeof batch, "batching_dims = %s x %s, ",
                       list(dot->a_batch, dot->n_batch, left),
                       list(dot->b_batch, dot->n_batch, right));
    struct mxc_hlo_value out = fresh(h, &shape);
    mxc_hlo_line(h,
                 "%s = stablehlo.dot_general %s, %s, %scontracting_dims = [%d] x [%d]%s : (%s, %s) "
                 "-> %s",
                 out.name, a.name, b.name, batch, dot->a_axis, dot->b_axis,
                 a.shape.type == MXC_XLA_F32 ? ", precision = [HIGHEST, HIGHEST]" : "",
                 mxc_hlo_type(&a.shape, at), mxc_hlo_type(&b.shape, bt),
                 mxc_hlo_type(&out.shape, to));
    return out;
}

/* ---- loops */

static void carried_types(struct mxc_hlo *h, const struct mxc_hlo_value *carried, int n) {
    char type[MXC_HLO_TYPE];
    (void)mxc_buf_puts(&h->text, "tensor<i32>");
    for (int i = 0; i < n; i++)
        (void)mxc_buf_printf(&h->text, ", %s", mxc_hlo_type(&carried[i].shape, type));
}

void mxc_hlo_loop_begin(struct mxc_hlo *h, struct mxc_hlo_loop *loop, struct mxc_hlo_value n,
                        struct mxc_hlo_value *carried, int n_carried) {
    struct mxc_hlo_value zero = mxc_hlo_scalar(h, MXC_XLA_S32, 0);
    *loop = (struct mxc_hlo_loop){.id = h->next++, .n = n_carried};
    loop->index = mxc_hlo_named(&zero.shape, "%%i%d", loop->id);
    open_line(h);
    (void)mxc_buf_printf(&h->text, "%%%d:%d = stablehlo.while(%s = %s", loop->id, n_carried + 1,
                         loop->index.name, zero.name);
    for (int i = 0; i < n_carried; i++) {
        struct mxc_hlo_value inside = mxc_hlo_named(&carried[i].shape, "%%c%d_%d", loop->id, i);
        (void)mxc_buf_printf(&h->text, ", %s = %s", inside.name, carried[i].name);
        carried[i] = inside;
    }
    (void)mxc_buf_puts(&h->text, ") : ");
    carried_types(h, carried, n_carried);
    (void)mxc_buf_puts(&h->text, " cond {\n");
    h->indent += 2;
    struct mxc_hlo_value more = mxc_hlo_compare(h, "LT", loop->index, n);
    mxc_hlo_line(h, "stablehlo.return %s : tensor<i1>", more.name);
    h->indent -= 2;
    mxc_hlo_line(h, "} do {");
    h->indent += 2;
}

void mxc_hlo_loop_end(struct mxc_hlo *h, struct mxc_hlo_loop *loop, struct mxc_hlo_value *carried) {
    struct mxc_hlo_value next = mxc_hlo_binary_x(h, "add", loop->index, 1);
    open_line(h);
    (void)mxc_buf_printf(&h->text, "stablehlo.return %s", next.name);
    for (int i = 0; i < loop->n; i++)
        (void)mxc_buf_printf(&h->text, ", %s", carried[i].name);
    (void)mxc_buf_puts(&h->text, " : ");
    carried_types(h, carried, loop->n);
    (void)mxc_buf_putc(&h->text, '\n');
    h->indent -= 2;
    mxc_hlo_line(h, "}");
    for (int i = 0; i < loop->n; i++)
        carried[i] = mxc_hlo_named(&carried[i].shape, "%%%d#%d", loop->id, i + 1);
}
