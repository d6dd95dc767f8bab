/* Ops that go number by number or row by row: EMBED, ADD_POSITION, norms, GLU, ACT, SOFTCAP, GATE,
 * UNIT_COLUMNS, ADD, SELECT_OUT. Formulas: graph/graph.h and ops.def. */
#include "backend/xla/lower.h"

#include <math.h>

#define UNARY(op, a)     mxc_hlo_unary(h, op, a)
#define BINARY(op, a, b) mxc_hlo_binary(h, op, a, b)
#define WITH(op, a, x)   mxc_hlo_binary_x(h, op, a, x)

/* ---- activations */

/* erf by Abramowitz and Stegun 7.1.26: within 1.5e-7. */
static struct mxc_hlo_value erf_of(struct mxc_hlo *h, struct mxc_hlo_value x) {
    static const double c[5] = {1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592};
    struct mxc_hlo_value a = UNARY("abs", x), one = mxc_hlo_like(h, x, 1);
    struct mxc_hlo_value t = BINARY("divide", one, WITH("add", WITH("multiply", a, 0.3275911), 1));
    struct mxc_hlo_value p = WITH("multiply", t, c[0]);
    for (int i = 1; i < 5; i++)
        p = BINARY("multiply", WITH("add", p, c[i]), t);
    struct mxc_hlo_value e = UNARY("exponential", UNARY("negate", BINARY("multiply", a, a)));
    return BINARY("multiply", UNARY("sign", x), BINARY("subtract", one, BINARY("multiply", p, e)));
}

struct mxc_hlo_value mxc_xla_act(struct mxc_hlo *h, enum mxc_act act, struct mxc_hlo_value x) {
    struct mxc_hlo_value t;
    switch (act) {
    case MXC_ACT_SILU:
        return BINARY("multiply", x, UNARY("logistic", x));
    case MXC_ACT_GELU_QUICK:
        return BINARY("multiply", x, UNARY("logistic", WITH("multiply", x, 1.702)));
    case MXC_ACT_RELU:
        return WITH("maximum", x, 0);
    case MXC_ACT_GELU:
        t = erf_of(h, WITH("multiply", x, sqrt(0.5)));
        break;
    default: /* GELU_TANH: tanh(sqrt(2 / pi) (x + 0.044715 x^3)) */
        t = BINARY("multiply", x, BINARY("multiply", x, x));
        t = BINARY("add", x, WITH("multiply", t, 0.044715));
        t = UNARY("tanh", WITH("multiply", t, 0.79788456080286535588));
        break;
    }
    return BINARY("multiply", WITH("multiply", x, 0.5), WITH("add", t, 1));
}

struct mxc_hlo_value mxc_xla_glu(struct mxc_hlo *h, enum mxc_act act, struct mxc_hlo_value gate,
                                 struct mxc_hlo_value up) {
    if (act != MXC_ACT_SWIGLU_CLIP)
        return BINARY("multiply", mxc_xla_act(h, act, gate), up);
    gate = WITH("minimum", gate, 7);
    up = WITH("add", WITH("maximum", WITH("minimum", up, 7), -7), 1);
    return BINARY("multiply", mxc_xla_act(h, MXC_ACT_GELU_QUICK, gate), up);
}

enum mxc_code mxc_xla_lower_glu(struct mxc_xla_lower *l, const struct mxc_node *node,
                                struct mxc_hlo_value *out, struct mxc_err *err) {
    struct mxc_hlo_value x = mxc_xla_in(l, node, 0);
    int64_t width = x.shape.dims[1] / 2;
    (void)err;
    *out = mxc_xla_glu(l->h, node->u.glu.act, mxc_hlo_slice(l->h, x, 1, 0, width),
                       mxc_hlo_slice(l->h, x, 1, width, 2 * width));
    return MXC_OK;
}

enum mxc_code mxc_xla_lower_act(struct mxc_xla_lower *l, const struct mxc_node *node,
                                struct mxc_hlo_value *out, struct mxc_err *err) {
    (void)err;
    *out = mxc_xla_act(l->h, node->u.glu.act, mxc_xla_in(l, node, 0));
    return MXC_OK;
}

/* ---- norms, along the last axis */

static struct mxc_hlo_value mean(struct mxc_hlo *h, struct mxc_hlo_value x) {
    int last = x.shape.n_dims - 1;
    struct mxc_hlo_value sum = mxc_hlo_reduce(h, "add", x, 1, MXC_AXES(last));
    return WITH("divide", sum, (double)x.shape.dims[last]);
}

/* One number a row, for every number of the row. */
static struct mxc_hlo_value along(struct mxc_hlo *h, struct mxc_hlo_value row,
                                  struct mxc_hlo_value x) {
    return mxc_hlo_spread(h, row, MXC_AXES(0, 1, 2, 3), x);
}

static struct mxc_hlo_value per_column(struct mxc_hlo *h, struct mxc_hlo_value w,
                                       struct mxc_hlo_value x) {
    int last = x.shape.n_dims - 1;
    w = mxc_hlo_reshape(h, w, MXC_DIMS(x.shape.dims[last]));
    return mxc_hlo_spread(h, w, MXC_AXES(last), x);
}

struct mxc_hlo_value mxc_xla_rms(struct mxc_hlo *h, struct mxc_hlo_value x, struct mxc_hlo_value w,
                                 float eps, float offset) {
    struct mxc_hlo_value r = mean(h, BINARY("multiply", x, x));
    r = UNARY("rsqrt", WITH("add", r, (double)eps));
    x = BINARY("multiply", x, along(h, r, x));
    if (mxc_hlo_none(w))
        return x;
    if (offset != 0)
        w = WITH("add", w, (double)offset);
    return BINARY("multiply", x, per_column(h, w, x));
}

enum mxc_code mxc_xla_lower_rms_norm(struct mxc_xla_lower *l, const struct mxc_node *node,
                                     struct mxc_hlo_value *out, struct mxc_err *err) {
    struct mxc_hlo *h = l->h;
    struct mxc_hlo_value x = mxc_xla_in(l, node, 0), w = mxc_xla_vector(l, node->weights[0]);
    int64_t rows = x.shape.dims[0], width = x.shape.dims[1], groups = node->u.norm.groups;
    int64_t n = w.shape.n_dims > 1 ? w.shape.dims[0] * w.shape.dims[1] : w.shape.dims[0];
    float eps = node->u.norm.eps, offset = node->u.norm.offset;
    (void)err;
    w = mxc_hlo_reshape(h, w, MXC_DIMS(n));
    if (groups > 1) {
        x = mxc_hlo_reshape(h, x, MXC_DIMS(rows, groups, width / groups));
        *out = mxc_hlo_reshape(h, mxc_xla_rms(h, x, w, eps, offset), MXC_DIMS(rows, width));
        return MXC_OK;
    }
    struct mxc_hlo_value parts[2] = {
        mxc_xla_rms(h, mxc_hlo_slice(h, x, 1, 0, n < width ? n : width), w, eps, offset)};
    if (n < width)
        parts[1] = mxc_hlo_slice(h, x, 1, n, width);
    *out = mxc_hlo_concat(h, parts, n < width ? 2 : 1, 1);
    return MXC_OK;
}

enum mxc_code mxc_xla_lower_layer_norm(struct mxc_xla_lower *l, const struct mxc_node *node,
                                       struct mxc_hlo_value *out, struct mxc_err *err) {
    struct mxc_hlo *h = l->h;
    struct mxc_hlo_value x = mxc_xla_in(l, node, 0);
    (void)err;
    x = BINARY("subtract", x, along(h, mean(h, x), x));
    x = mxc_xla_rms(h, x, mxc_xla_vector(l, node->weights[0]), node->u.norm.eps, 0);
    if (node->weights[1] != MXC_NONE)
        x = BINARY("add", x, per_column(h, mxc_xla_vector(l, node->weights[1]), x));
    *out = x;
    return MXC_OK;
}

/* ---- the rest */

enum mxc_code mxc_xla_lower_embed(struct mxc_xla_lower *l, const struct mxc_node *node,
                                  struct mxc_hlo_value *out, struct mxc_err *err) {
    (void)err;
    *out = mxc_xla_feed(l, MXC_XLA_FEED_EMBED, (int32_t)(node - l->graph->nodes),
                        MXC_DIMS(l->buckets->rows, l->graph->values[node->out].width));
    return MXC_OK;
}

enum mxc_code mxc_xla_lower_add_position(struct mxc_xla_lower *l, const struct mxc_node *node,
                                         struct mxc_hlo_value *out, struct mxc_err *err) {
    struct mxc_hlo_value x = mxc_xla_in(l, node, 0);
    struct mxc_hlo_value at = mxc_xla_feed(
        l, MXC_XLA_FEED_POSITION, (int32_t)(node - l->graph->nodes), MXC_DIMS(x.shape.dims[0]));
    (void)err;
    *out = mxc_hlo_binary(l->h, "add", x, mxc_xla_table_rows(l, node->weights[0], at));
    return MXC_OK;
}

enum mxc_code mxc_xla_lower_softcap(struct mxc_xla_lower *l, const struct mxc_node *node,
                                    struct mxc_hlo_value *out, struct mxc_err *err) {
    struct mxc_hlo *h = l->h;
    double cap = (double)node->u.softcap.cap;
    (void)err;
    *out = WITH("multiply", UNARY("tanh", WITH("divide", mxc_xla_in(l, node, 0), cap)), cap);
    return MXC_OK;
}

enum mxc_code mxc_xla_lower_gate(struct mxc_xla_lower *l, const struct mxc_node *node,
                                 struct mxc_hlo_value *out, struct mxc_err *err) {
    struct mxc_hlo *h = l->h;
    struct mxc_hlo_value x = mxc_xla_in(l, node, 0);
    struct mxc_hlo_value g = UNARY("logistic", mxc_xla_in(l, node, 1));
    (void)err;
    *out = BINARY("multiply", x, mxc_hlo_spread(h, g, MXC_AXES(0, 1), x));
    return MXC_OK;
}

enum mxc_code mxc_xla_lower_unit_columns(struct mxc_xla_lower *l, const struct mxc_node *node,
                                         struct mxc_hlo_value *out, struct mxc_err *err) {
    struct mxc_hlo *h = l->h;
    struct mxc_hlo_value x = mxc_xla_in(l, node, 0);
    (void)err;
    *out = BINARY("divide", x, per_column(h, mxc_xla_column_norms(l, node->weights[0]), x));
    return MXC_OK;
}

enum mxc_code mxc_xla_lower_add(struct mxc_xla_lower *l, const struct mxc_node *node,
                                struct mxc_hlo_value *out, struct mxc_err *err) {
    (void)err;
    *out = mxc_hlo_binary(l->h, "add", mxc_xla_in(l, node, 0), mxc_xla_in(l, node, 1));
    return MXC_OK;
}

enum mxc_code mxc_xla_lower_select_out(struct mxc_xla_lower *l, const struct mxc_node *node,
                                       struct mxc_hlo_value *out, struct mxc_err *err) {
    struct mxc_hlo_value at = mxc_xla_feed(l, MXC_XLA_FEED_OUT, 0, MXC_DIMS(l->buckets->out));
    (void)err;
    *out = mxc_hlo_gather(l->h, mxc_xla_in(l, node, 0), at, 1);
    return MXC_OK;
}
