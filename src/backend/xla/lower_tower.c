/* Lowering of the ops that move rows about: INPUT, LOOKUP, GATHER, MERGE, MEAN_ROWS, CONCAT (text
 * models have it too) and TANH_SCALE. In: values [rows, width] of a tower's buckets, the side
 * inputs of a run as feeds. Out: values of the same kind. Rows behind the real ones have index -1
 * everywhere (tower.c), so that they add nothing and are zeros where they are gathered. */
#include "backend/xla/lower.h"

static struct mxc_hlo_value zeros_like(struct mxc_hlo *h, struct mxc_hlo_value v) {
    return mxc_hlo_like(h, v, 0);
}

/* Rows and columns of what a node makes. */
static void out_shape(const struct mxc_xla_lower *l, const struct mxc_node *node, int64_t dims[2]) {
    dims[0] = mxc_xla_rows(l, &l->graph->values[node->out].rows);
    dims[1] = l->graph->values[node->out].width;
}

enum mxc_code mxc_xla_lower_input(struct mxc_xla_lower *l, const struct mxc_node *node,
                                  struct mxc_hlo_value *out, struct mxc_err *err) {
    int64_t dims[2];
    (void)err;
    out_shape(l, node, dims);
    *out = mxc_xla_feed(l, MXC_XLA_FEED_INPUT, 0, 2, dims);
    return MXC_OK;
}

/* Side input i of a graph, laid out as one row: S32 [terms * rows]. */
static struct mxc_hlo_value flat_index(struct mxc_xla_lower *l, int32_t i, int64_t rows) {
    int64_t terms = l->graph->indices[i].terms;
    struct mxc_hlo_value index = mxc_xla_feed(l, MXC_XLA_FEED_INDEX, i, MXC_DIMS(terms, rows));
    return mxc_hlo_reshape(l->h, index, MXC_DIMS(terms * rows));
}

/* x, or zeros in the rows whose index is below 0. x: [rows, width]. */
static struct mxc_hlo_value where_indexed(struct mxc_hlo *h, struct mxc_hlo_value index,
                                          struct mxc_hlo_value x) {
    struct mxc_hlo_value there = mxc_hlo_compare(h, "GE", index, zeros_like(h, index));
    struct mxc_xla_shape shape = x.shape;
    there = mxc_hlo_broadcast(h, there, MXC_AXES(0), shape.n_dims, shape.dims);
    return mxc_hlo_select(h, there, x, zeros_like(h, x));
}

/* tanh of a weight of one number, or 1 - tanh, spread to v's shape. */
static struct mxc_hlo_value gate_of(struct mxc_xla_lower *l, int32_t weight, bool complement,
                                    struct mxc_hlo_value v) {
    struct mxc_hlo_value g = mxc_hlo_unary(l->h, "tanh", mxc_xla_vector(l, weight));
    if (complement)
        g = mxc_hlo_binary(l->h, "subtract", mxc_hlo_like(l->h, g, 1), g);
    g = mxc_hlo_reshape(l->h, g, 0, NULL);
    return mxc_hlo_spread(l->h, g, NULL, v);
}

enum mxc_code mxc_xla_lower_lookup(struct mxc_xla_lower *l, const struct mxc_node *node,
                                   struct mxc_hlo_value *out, struct mxc_err *err) {
    struct mxc_hlo *h = l->h;
    int32_t i = node->u.lookup.index;
    int64_t dims[2], terms = l->graph->indices[i].terms;
    (void)err;
    out_shape(l, node, dims);
    struct mxc_hlo_value index = flat_index(l, i, dims[0]);
    struct mxc_hlo_value at = mxc_hlo_binary(h, "maximum", index, zeros_like(h, index));
    struct mxc_hlo_value rows = mxc_xla_table_rows(l, node->weights[0], at);
    if (l->graph->indices[i].weighted) {
        struct mxc_hlo_value c = mxc_xla_feed(l, MXC_XLA_FEED_FACTOR, i, MXC_DIMS(terms, dims[0]));
        c = mxc_hlo_reshape(h, c, MXC_DIMS(terms * dims[0]));
        rows = mxc_hlo_binary(h, "multiply", rows, mxc_hlo_spread(h, c, MXC_AXES(0), rows));
    }
    rows = where_indexed(h, index, rows);
    if (terms > 1) {
        rows = mxc_hlo_reshape(h, rows, MXC_DIMS(terms, dims[0], dims[1]));
        rows = mxc_hlo_reduce(h, "add", rows, 1, MXC_AXES(0));
    }
    if (node->weights[1] != MXC_NONE)
        rows = mxc_hlo_binary(h, "multiply", rows,
                              gate_of(l, node->weights[1], node->u.lookup.complement, rows));
    *out = mxc_hlo_binary(h, "add", mxc_xla_in(l, node, 0), rows);
    return MXC_OK;
}

enum mxc_code mxc_xla_lower_gather(struct mxc_xla_lower *l, const struct mxc_node *node,
                                   struct mxc_hlo_value *out, struct mxc_err *err) {
    struct mxc_hlo *h = l->h;
    int64_t dims[2];
    (void)err;
    out_shape(l, node, dims);
    struct mxc_hlo_value index = flat_index(l, node->u.lookup.index, dims[0]);
    struct mxc_hlo_value at = mxc_hlo_binary(h, "maximum", index, zeros_like(h, index));
    *out = where_indexed(h, index, mxc_hlo_gather(h, mxc_xla_in(l, node, 0), at, 1));
    return MXC_OK;
}

enum mxc_code mxc_xla_lower_merge(struct mxc_xla_lower *l, const struct mxc_node *node,
                                  struct mxc_hlo_value *out, struct mxc_err *err) {
    int64_t dims[2];
    (void)err;
    out_shape(l, node, dims);
    *out = mxc_hlo_reshape(l->h, mxc_xla_in(l, node, 0), 2, dims);
    return MXC_OK;
}

enum mxc_code mxc_xla_lower_mean_rows(struct mxc_xla_lower *l, const struct mxc_node *node,
                                      struct mxc_hlo_value *out, struct mxc_err *err) {
    int64_t dims[2], b = node->u.merge.rows;
    (void)err;
    out_shape(l, node, dims);
    struct mxc_hlo_value x =
        mxc_hlo_reshape(l->h, mxc_xla_in(l, node, 0), MXC_DIMS(dims[0], b, dims[1]));
    x = mxc_hlo_reduce(l->h, "add", x, 1, MXC_AXES(1));
    *out = mxc_hlo_binary_x(l->h, "divide", x, (double)b);
    return MXC_OK;
}

enum mxc_code mxc_xla_lower_concat(struct mxc_xla_lower *l, const struct mxc_node *node,
                                   struct mxc_hlo_value *out, struct mxc_err *err) {
    struct mxc_hlo_value parts[MXC_MAX_IN];
    bool turns = node->u.concat.turns;
    int64_t dims[2];
    (void)err;
    out_shape(l, node, dims);
    for (int i = 0; i < node->n_in; i++) {
        parts[i] = mxc_xla_in(l, node, i);
        if (turns)
            parts[i] = mxc_hlo_reshape(l->h, parts[i], MXC_DIMS(dims[0], dims[1] / node->n_in, 1));
    }
    *out = mxc_hlo_concat(l->h, parts, node->n_in, turns ? 2 : 1);
    *out = mxc_hlo_reshape(l->h, *out, 2, dims);
    return MXC_OK;
}

enum mxc_code mxc_xla_lower_tanh_scale(struct mxc_xla_lower *l, const struct mxc_node *node,
                                       struct mxc_hlo_value *out, struct mxc_err *err) {
    struct mxc_hlo_value x = mxc_xla_in(l, node, 0);
    (void)err;
    x = mxc_hlo_binary(l->h, "multiply", x, gate_of(l, node->weights[0], false, x));
    if (node->n_in > 1)
        x = mxc_hlo_binary(l->h, "add", x, mxc_xla_in(l, node, 1));
    *out = x;
    return MXC_OK;
}
