/* Products with weights: LINEAR, HEADS_LINEAR, and what other ops read of weights. A quantised
 * matrix is dequantised where it is used, so that the device holds integers. Two ways to multiply:
 * a dot with the dequantised matrix; or, for few rows, multiply and reduce group by group, where
 * scales come after the sums of their groups and no matrix of floats is ever made. */
#include "backend/xla/model.h"

static const struct mxc_xla_stack *stack_of(const struct mxc_xla_lower *l, int32_t weight) {
    return &l->model->stacks[l->model->places[weight].stack];
}

static bool has_part(const struct mxc_xla_lower *l, int32_t weight, enum mxc_xla_part part) {
    return stack_of(l, weight)->arrays[part].shape.n_dims > 0;
}

struct mxc_hlo_value mxc_xla_vector(struct mxc_xla_lower *l, int32_t weight) {
    return mxc_xla_weight_part(l, weight, MXC_XLA_NUMBERS, NULL);
}

struct mxc_hlo_value mxc_xla_column_norms(struct mxc_xla_lower *l, int32_t weight) {
    return mxc_xla_weight_part(l, weight, MXC_XLA_NORMS, NULL);
}

/* a [..., k] as [..., k / group, group]. */
static struct mxc_hlo_value in_groups(struct mxc_hlo *h, struct mxc_hlo_value a, int64_t group) {
    int64_t dims[MXC_XLA_MAX_DIMS];
    int n = a.shape.n_dims;
    for (int i = 0; i < n; i++)
        dims[i] = a.shape.dims[i];
    dims[n] = group;
    dims[n - 1] /= group;
    return mxc_hlo_reshape(h, a, n + 1, dims);
}

/* Codes (in any shape [..., k]) with their scales and biases as F32. */
static struct mxc_hlo_value dequantise(struct mxc_hlo *h, struct mxc_hlo_value codes,
                                       struct mxc_hlo_value scales, struct mxc_hlo_value biases,
                                       int64_t group) {
    static const int axes[] = {0, 1, 2, 3, 4, 5, 6, 7};
    struct mxc_hlo_value x = in_groups(h, mxc_hlo_convert(h, codes, MXC_XLA_F32), group);
    x = mxc_hlo_binary(h, "multiply", x, mxc_hlo_spread(h, scales, axes, x));
    if (!mxc_hlo_none(biases))
        x = mxc_hlo_binary(h, "add", x, mxc_hlo_spread(h, biases, axes, x));
    return mxc_hlo_reshape(h, x, codes.shape.n_dims, codes.shape.dims);
}

static struct mxc_hlo_value dense_slice(struct mxc_xla_lower *l, int32_t weight,
                                        const struct mxc_hlo_value *slice) {
    int64_t group = stack_of(l, weight)->group;
    struct mxc_hlo_value x = mxc_xla_weight_part(l, weight, MXC_XLA_NUMBERS, slice), biases = {0};
    if (!group)
        return mxc_hlo_convert(l->h, x, MXC_XLA_F32);
    if (has_part(l, weight, MXC_XLA_BIASES))
        biases = mxc_xla_weight_part(l, weight, MXC_XLA_BIASES, slice);
    return dequantise(l->h, x, mxc_xla_weight_part(l, weight, MXC_XLA_SCALES, slice), biases,
                      group);
}

struct mxc_hlo_value mxc_xla_dense(struct mxc_xla_lower *l, int32_t weight) {
    return dense_slice(l, weight, NULL);
}

struct mxc_hlo_value mxc_xla_table_rows(struct mxc_xla_lower *l, int32_t weight,
                                        struct mxc_hlo_value index) {
    int64_t group = stack_of(l, weight)->group;
    struct mxc_hlo_value part[3] = {{{0}, {0}}}, biases = {0};
    part[0] = mxc_hlo_gather(l->h, mxc_xla_weight_part(l, weight, MXC_XLA_NUMBERS, NULL), index, 1);
    if (!group)
        return mxc_hlo_convert(l->h, part[0], MXC_XLA_F32);
    part[1] = mxc_hlo_gather(l->h, mxc_xla_weight_part(l, weight, MXC_XLA_SCALES, NULL), index, 1);
    if (has_part(l, weight, MXC_XLA_BIASES))
        biases =
            mxc_hlo_gather(l->h, mxc_xla_weight_part(l, weight, MXC_XLA_BIASES, NULL), index, 1);
    return dequantise(l->h, part[0], part[1], biases, group);
}

/* ---- products */

struct mxc_hlo_value mxc_xla_dot(struct mxc_xla_lower *l, struct mxc_hlo_value a,
                                 struct mxc_hlo_value b, const struct mxc_hlo_dot *dot) {
    if (l->form->narrow == MXC_XLA_PRECISION_BF16 || l->form->narrow == MXC_XLA_PRECISION_F16) {
        enum mxc_xla_type type =
            l->form->narrow == MXC_XLA_PRECISION_BF16 ? MXC_XLA_BF16 : MXC_XLA_F16;
        a = mxc_hlo_convert(l->h, a, type);
        b = mxc_hlo_convert(l->h, b, type);
    }
    return mxc_hlo_dot(l->h, a, b, dot);
}

/* x [m, k] and a dense matrix [n, k], number by number: sums along k. */
static struct mxc_hlo_value reduce_dense(struct mxc_hlo *h, struct mxc_hlo_value x,
                                         struct mxc_hlo_value w) {
    int64_t m = x.shape.dims[0], n = w.shape.dims[0], k = w.shape.dims[1];
    struct mxc_hlo_value wide = mxc_hlo_broadcast(h, w, MXC_AXES(0, 2), MXC_DIMS(n, m, k));
    struct mxc_hlo_value y =
        mxc_hlo_binary(h, "multiply", wide, mxc_hlo_spread(h, x, MXC_AXES(1, 2), wide));
    y = mxc_hlo_reduce(h, "add", y, 1, MXC_AXES(2));
    return mxc_hlo_transpose(h, y, MXC_AXES(1, 0));
}

/* The same with groups: sum over groups of scale * (sum of code * x) + bias * (sum of x). */
static struct mxc_hlo_value reduce_groups(struct mxc_hlo *h, struct mxc_hlo_value x,
                                          struct mxc_hlo_value codes, struct mxc_hlo_value scales,
                                          struct mxc_hlo_value biases, int64_t group) {
    int64_t m = x.shape.dims[0], n = codes.shape.dims[0], groups = scales.shape.dims[1];
    x = in_groups(h, x, group);
    struct mxc_hlo_value w = in_groups(h, mxc_hlo_convert(h, codes, MXC_XLA_F32), group);
    w = mxc_hlo_broadcast(h, w, MXC_AXES(0, 2, 3), MXC_DIMS(n, m, groups, group));
    struct mxc_hlo_value y =
        mxc_hlo_binary(h, "multiply", w, mxc_hlo_spread(h, x, MXC_AXES(1, 2, 3), w));
    y = mxc_hlo_reduce(h, "add", y, 1, MXC_AXES(3));
    y = mxc_hlo_binary(h, "multiply", y, mxc_hlo_spread(h, scales, MXC_AXES(0, 2), y));
    if (!mxc_hlo_none(biases)) {
        struct mxc_hlo_value sums = mxc_hlo_reduce(h, "add", x, 1, MXC_AXES(2));
        struct mxc_hlo_value more =
            mxc_hlo_binary(h, "multiply", mxc_hlo_spread(h, biases, MXC_AXES(0, 2), y),
                           mxc_hlo_spread(h, sums, MXC_AXES(1, 2), y));
        y = mxc_hlo_binary(h, "add", y, more);
    }
    y = mxc_hlo_reduce(h, "add", y, 1, MXC_AXES(2));
    return mxc_hlo_transpose(h, y, MXC_AXES(1, 0));
}

/* Rows of a matrix that are multiplied at once; all of them when it is small. */
static int64_t chunk_rows(const struct mxc_xla_lower *l, int64_t n, int64_t k) {
    int64_t chunk = l->form->chunk;
    if (!chunk || n * k <= chunk + chunk / 2 || l->form->devices > 1) /* pieces of parts: no gain */
        return n;
    int64_t pieces = (n * k + chunk - 1) / chunk, rows = (n + pieces - 1) / pieces;
    return (rows + 15) / 16 * 16 < n ? (rows + 15) / 16 * 16 : n;
}

/* Rows of a part [n, ..] from `row` on. */
static struct mxc_hlo_value piece(struct mxc_xla_lower *l, struct mxc_hlo_value part,
                                  struct mxc_hlo_value row, int64_t rows) {
    struct mxc_hlo_value at[2] = {row, mxc_hlo_scalar(l->h, MXC_XLA_S32, 0)};
    return mxc_hlo_dynamic_slice(l->h, part, at, (const int64_t[]){rows, part.shape.dims[1]});
}

/* A large matrix, some rows at a time, so that what is dequantised stays in a cache. The last piece
 * begins where it fits, and does a few rows again. */
static struct mxc_hlo_value multiply_pieces(struct mxc_xla_lower *l, struct mxc_hlo_value x,
                                            int32_t weight, int64_t rows) {
    const struct mxc_xla_stack *s = stack_of(l, weight);
    struct mxc_hlo *h = l->h;
    struct mxc_hlo_value part[3] = {{{0}, {0}}};
    part[0] = mxc_xla_weight_part(l, weight, MXC_XLA_NUMBERS, NULL);
    if (s->group)
        part[1] = mxc_xla_weight_part(l, weight, MXC_XLA_SCALES, NULL);
    if (s->group && has_part(l, weight, MXC_XLA_BIASES))
        part[2] = mxc_xla_weight_part(l, weight, MXC_XLA_BIASES, NULL);
    int64_t m = x.shape.dims[0], n = part[0].shape.dims[0], pieces = (n + rows - 1) / rows;
    struct mxc_hlo_value y = mxc_hlo_splat(h, MXC_XLA_F32, 0, MXC_DIMS(m, n));
    struct mxc_hlo_loop loop;
    mxc_hlo_loop_begin(h, &loop, mxc_hlo_scalar(h, MXC_XLA_S32, (double)pieces), &y, 1);
    struct mxc_hlo_value row = mxc_hlo_binary_x(h, "multiply", loop.index, (double)rows);
    for (int i = 0; i < 3; i++)
        if (!mxc_hlo_none(part[i]))
            part[i] = piece(l, part[i], row, rows);
    struct mxc_hlo_value w = s->group ? dequantise(h, part[0], part[1], part[2], s->group)
                                      : mxc_hlo_convert(h, part[0], MXC_XLA_F32);
    const struct mxc_hlo_dot dot = {.a_axis = 1, .b_axis = 1};
    struct mxc_hlo_value made = s->exact ? mxc_hlo_dot(h, x, w, &dot) : mxc_xla_dot(l, x, w, &dot);
    struct mxc_hlo_value at[2] = {mxc_hlo_scalar(h, MXC_XLA_S32, 0), row};
    y = mxc_hlo_dynamic_update(h, y, made, at);
    mxc_hlo_loop_end(h, &loop, &y);
    return y;
}

static struct mxc_hlo_value multiply(struct mxc_xla_lower *l, struct mxc_hlo_value x,
                                     int32_t weight, const struct mxc_hlo_value *slice) {
    const struct mxc_xla_stack *s = stack_of(l, weight);
    const struct mxc_xla_shape *own = &s->arrays[MXC_XLA_NUMBERS].shape;
    int64_t rows = own->n_dims == 2 ? chunk_rows(l, own->dims[0], own->dims[1]) : 0;
    if (own->n_dims == 2 && rows < own->dims[0] &&
        (s->group || own->type != MXC_XLA_F32)) /* F32 is multiplied where it lies */
        return multiply_pieces(l, x, weight, rows);
    bool few = x.shape.dims[0] <= l->form->reduce;
    if (few && s->group) {
        struct mxc_hlo_value biases = {0};
        if (has_part(l, weight, MXC_XLA_BIASES))
            biases = mxc_xla_weight_part(l, weight, MXC_XLA_BIASES, slice);
        return reduce_groups(l->h, x, mxc_xla_weight_part(l, weight, MXC_XLA_NUMBERS, slice),
                             mxc_xla_weight_part(l, weight, MXC_XLA_SCALES, slice), biases,
                             s->group);
    }
    struct mxc_hlo_value w = dense_slice(l, weight, slice);
    if (few)
        return reduce_dense(l->h, x, w);
    const struct mxc_hlo_dot dot = {.a_axis = 1, .b_axis = 1};
    return s->exact ? mxc_hlo_dot(l->h, x, w, &dot) : mxc_xla_dot(l, x, w, &dot);
}

struct mxc_hlo_value mxc_xla_multiply(struct mxc_xla_lower *l, struct mxc_hlo_value x,
                                      int32_t weight) {
    return multiply(l, x, weight, NULL);
}

struct mxc_hlo_value mxc_xla_multiply_slice(struct mxc_xla_lower *l, struct mxc_hlo_value x,
                                            int32_t weight, struct mxc_hlo_value slice) {
    return multiply(l, x, weight, &slice);
}

/* ---- ops */

enum mxc_code mxc_xla_lower_linear(struct mxc_xla_lower *l, const struct mxc_node *node,
                                   struct mxc_hlo_value *out, struct mxc_err *err) {
    struct mxc_hlo_value parts[MXC_MAX_NODE_WEIGHTS], x = mxc_xla_in(l, node, 0);
    (void)err;
    for (int32_t i = 0; i < node->u.linear.n_parts; i++) {
        int32_t bias = node->weights[2 * i + 1];
        parts[i] = mxc_xla_multiply(l, x, node->weights[2 * i]);
        if (bias != MXC_NONE) {
            struct mxc_hlo_value b = mxc_xla_vector(l, bias);
            b = mxc_hlo_reshape(l->h, b, MXC_DIMS(parts[i].shape.dims[1]));
            parts[i] = mxc_hlo_binary(l->h, "add", parts[i],
                                      mxc_hlo_spread(l->h, b, MXC_AXES(1), parts[i]));
        }
    }
    struct mxc_hlo_value y = mxc_hlo_concat(l->h, parts, node->u.linear.n_parts, 1);
    if (node->u.linear.scale != 1.0f)
        y = mxc_hlo_binary_x(l->h, "multiply", y, (double)node->u.linear.scale);
    if (node->n_in > 1)
        y = mxc_hlo_binary(l->h, "add", y, mxc_xla_in(l, node, 1));
    *out = y;
    return MXC_OK;
}

enum mxc_code mxc_xla_lower_heads_linear(struct mxc_xla_lower *l, const struct mxc_node *node,
                                         struct mxc_hlo_value *out, struct mxc_err *err) {
    struct mxc_hlo_value x = mxc_xla_in(l, node, 0), w = mxc_xla_dense(l, node->weights[0]);
    int64_t rows = x.shape.dims[0], heads = node->u.heads.n_heads;
    int64_t width = x.shape.dims[1] / heads, in = w.shape.dims[2], made = w.shape.dims[1];
    (void)err;
    x = mxc_hlo_reshape(l->h, x, MXC_DIMS(rows, heads, width));
    const struct mxc_hlo_dot dot = {
        .n_batch = 1, .a_batch = MXC_AXES(1), .b_batch = MXC_AXES(0), .a_axis = 2, .b_axis = 2};
    struct mxc_hlo_value parts[2] = {
        mxc_xla_dot(l, mxc_hlo_slice(l->h, x, 2, 0, in), w, &dot)}; /* [heads, rows, made] */
    parts[0] = mxc_hlo_transpose(l->h, parts[0], MXC_AXES(1, 0, 2));
    if (width > in)
        parts[1] = mxc_hlo_slice(l->h, x, 2, in, width);
    struct mxc_hlo_value y = mxc_hlo_concat(l->h, parts, width > in ? 2 : 1, 2);
    *out = mxc_hlo_reshape(l->h, y, MXC_DIMS(rows, heads * (made + width - in)));
    return MXC_OK;
}
