/* Graph rules: what every op demands of its inputs, weights and attributes, and what a finished
 * graph must look like. mxc_graph_check_node is used twice: by the builder for each new node and by
 * finish for the whole list, so that nothing a family (or a test) wrote into the public arrays
 * escapes. finish also names the marked values and fills producer and last_use. */
#include "graph/private.h"

#include "base/mem.h"

#include <math.h>

struct op_limits {
    int32_t in_min, in_max, weights_min, weights_max;
};

static const struct op_limits limits[MXC_N_OPS] = {
#define OP(NAME, name, in0, in1, w0, w1, doc) [MXC_OP_##NAME] = {in0, in1, w0, w1},
#include "graph/ops.def"
#undef OP
};

bool mxc_extent_equal(struct mxc_extent a, struct mxc_extent b) {
    if (a.kind != b.kind)
        return false;
    return a.kind != MXC_ROWS_TOWER || (a.slot == b.slot && a.divisor == b.divisor);
}

enum mxc_code mxc_kv_check(const struct mxc_kv *kv, struct mxc_err *err) {
    if ((unsigned)kv->kind >= MXC_N_KV_KINDS)
        return mxc_err_set(err, MXC_E_INTERNAL, "kv: kind %d", (int)kv->kind);
    if (kv->n_heads < 1 || kv->k_dim < 1 || kv->v_dim < 0 ||
        (int64_t)kv->n_heads * kv->k_dim > MXC_GRAPH_MAX_EXTENT ||
        (int64_t)kv->n_heads * kv->v_dim > MXC_GRAPH_MAX_EXTENT)
        return mxc_err_set(err, MXC_E_LIMIT, "kv: %d heads of %d + %d", kv->n_heads, kv->k_dim,
                           kv->v_dim);
    if ((kv->kind == MXC_KV_WINDOW) != (kv->window > 0) || kv->window < 0)
        return mxc_err_set(err, MXC_E_INTERNAL, "kv: window %d does not go with its kind",
                           kv->window);
    return MXC_OK;
}

enum mxc_code mxc_graph_check_view(const struct mxc_weight *weight,
                                   const struct mxc_weight_view *view, struct mxc_err *err) {
    bool vector = weight->role == MXC_W_VECTOR;
    if (view->n_dims < 1 || view->n_dims > (view->flat ? MXC_MAX_VIEW_DIMS : 3) ||
        weight->n_dims < 1 || weight->n_dims > 3)
        return mxc_err_set(err, MXC_E_INTERNAL, "view: %d dimensions of %d", weight->n_dims,
                           view->n_dims);
    if (view->flat && (view->stride || view->row0 || view->row_step != 1 || view->col0 ||
                       view->col_step || view->transposed))
        return mxc_err_set(err, MXC_E_INTERNAL, "view: a flat one has no steps");
    if (view->stride < 0 || view->row0 < 0 || view->row_step < (view->transposed ? 0 : 1) ||
        view->col0 < 0 || view->col_step < (view->transposed ? 1 : 0))
        return mxc_err_set(err, MXC_E_INTERNAL, "view: a stride or step is out of range");
    if (!view->transposed && (view->col0 || view->col_step > 1))
        return mxc_err_set(err, MXC_E_INTERNAL, "view: only a transposed one picks columns");
    if (vector && view->transposed)
        return mxc_err_set(err, MXC_E_INTERNAL, "view: a vector cannot be transposed");
    if (weight->role == MXC_W_TABLE && !view->flat)
        return mxc_err_set(err, MXC_E_INTERNAL, "view: of a table, and not flat");
    return MXC_OK;
}

struct context {
    const struct mxc_graph *g;
    const struct mxc_node *node;
    struct mxc_err *err;
};

#define BAD(c, ...) mxc_err_set((c)->err, MXC_E_INTERNAL, __VA_ARGS__)

static const struct mxc_value *input(const struct context *c, int i) {
    return &c->g->values[c->node->in[i]];
}

/* Ids in range, inputs made by an earlier node, counts as ops.def says. */
static enum mxc_code check_ids(const struct context *c, int32_t index) {
    const struct mxc_node *n = c->node;
    const struct op_limits *l = &limits[n->op];
    if (n->n_in < l->in_min || n->n_in > l->in_max)
        return BAD(c, "%d inputs are not in [%d, %d]", n->n_in, l->in_min, l->in_max);
    if (n->n_weights < l->weights_min || n->n_weights > l->weights_max)
        return BAD(c, "%d weights are not in [%d, %d]", n->n_weights, l->weights_min,
                   l->weights_max);
    for (int i = 0; i < n->n_in; i++) {
        if (n->in[i] < 0 || n->in[i] >= c->g->n_values)
            return BAD(c, "input %d: there is no value %d", i, n->in[i]);
        if (input(c, i)->producer < 0 || input(c, i)->producer >= index)
            return BAD(c, "input %d: value %d is used before it is defined", i, n->in[i]);
    }
    for (int i = 0; i < n->n_weights; i++) {
        if (n->weights[i] != MXC_NONE && (n->weights[i] < 0 || n->weights[i] >= c->g->n_weights))
            return BAD(c, "there is no weight %d", n->weights[i]);
    }
    return MXC_OK;
}

/* weights[i] is a vector of n numbers (or absent, when optional). */
static enum mxc_code check_vector(const struct context *c, int i, int64_t n, bool optional) {
    if (c->node->weights[i] == MXC_NONE)
        return optional ? MXC_OK : BAD(c, "weight %d is absent", i);
    const struct mxc_weight *w = &c->g->weights[c->node->weights[i]];
    if (w->role != MXC_W_VECTOR)
        return BAD(c, "%s is not a vector", w->name);
    int64_t has = w->n_dims == 2 ? w->shape[0] * w->shape[1] : w->shape[0];
    if (has != n)
        return BAD(c, "%s has %lld numbers, not %lld", w->name, (long long)has, (long long)n);
    return MXC_OK;
}

static enum mxc_code check_embed(const struct context *c, struct mxc_shape *out) {
    if (c->node->weights[0] == MXC_NONE)
        return BAD(c, "the table is absent");
    const struct mxc_weight *w = &c->g->weights[c->node->weights[0]];
    if (w->role != MXC_W_TABLE || w->n_dims != 2)
        return BAD(c, "%s is not a table", w->name);
    if (!isfinite(c->node->u.embed.scale))
        return BAD(c, "scale is not finite");
    *out = (struct mxc_shape){{.kind = MXC_ROWS_T}, (int32_t)w->shape[1]};
    return MXC_OK;
}

static enum mxc_code check_norm(const struct context *c, struct mxc_shape *out) {
    const struct mxc_value *x = input(c, 0);
    int32_t id = c->node->weights[0], groups = c->node->u.norm.groups;
    if (!(c->node->u.norm.eps >= 0) || !isfinite(c->node->u.norm.eps) ||
        !isfinite(c->node->u.norm.offset))
        return BAD(c, "eps or offset is out of range");
    if (groups < 1 || x->width % groups)
        return BAD(c, "%d groups of an input of %d", groups, x->width);
    *out = (struct mxc_shape){x->rows, x->width};
    if (groups == 1 && id != MXC_NONE && c->g->weights[id].shape[0] < x->width)
        return check_vector(c, 0, c->g->weights[id].shape[0], false); /* the rest passes through */
    return check_vector(c, 0, x->width / groups, false);
}

static enum mxc_code check_layer_norm(const struct context *c, struct mxc_shape *out) {
    const struct mxc_value *x = input(c, 0);
    if (!(c->node->u.norm.eps >= 0) || !isfinite(c->node->u.norm.eps))
        return BAD(c, "eps is out of range");
    *out = (struct mxc_shape){x->rows, x->width};
    enum mxc_code code = check_vector(c, 0, x->width, false);
    return code ? code : check_vector(c, 1, x->width, true);
}

static enum mxc_code check_add_position(const struct context *c, struct mxc_shape *out) {
    const struct mxc_value *x = input(c, 0);
    int32_t id = c->node->weights[0];
    if (id == MXC_NONE || c->g->weights[id].role != MXC_W_TABLE)
        return BAD(c, "the weight is not a table");
    if (x->rows.kind != MXC_ROWS_T || c->g->weights[id].shape[1] != x->width)
        return BAD(c, "%s does not fit an input of %d", c->g->weights[id].name, x->width);
    if (c->node->u.position.offset < 0)
        return BAD(c, "offset %d", c->node->u.position.offset);
    if (c->node->u.position.fixed && c->node->u.position.offset >= c->g->weights[id].shape[0])
        return BAD(c, "row %d of %s, which has %lld", c->node->u.position.offset,
                   c->g->weights[id].name, (long long)c->g->weights[id].shape[0]);
    *out = (struct mxc_shape){x->rows, x->width};
    return MXC_OK;
}

/* weights[i] is a stack of `slices` matrices [rows, columns]. */
static enum mxc_code check_stack(const struct context *c, int i, int64_t slices, int64_t rows,
                                 int64_t columns) {
    int32_t id = c->node->weights[i];
    if (id == MXC_NONE)
        return BAD(c, "weight %d is absent", i);
    const struct mxc_weight *w = &c->g->weights[id];
    if (w->role != MXC_W_STACK || w->n_dims != 3 || w->shape[0] != slices || w->shape[1] != rows ||
        w->shape[2] != columns)
        return BAD(c, "%s is not a stack of %lld matrices [%lld, %lld]", w->name, (long long)slices,
                   (long long)rows, (long long)columns);
    return MXC_OK;
}

static enum mxc_code check_heads_linear(const struct context *c, struct mxc_shape *out) {
    const struct mxc_value *x = input(c, 0);
    int32_t id = c->node->weights[0], heads = c->node->u.heads.n_heads;
    if (id == MXC_NONE || c->g->weights[id].role != MXC_W_STACK)
        return BAD(c, "the weight is not a stack");
    const struct mxc_weight *w = &c->g->weights[id];
    if (heads < 1 || x->width % heads || w->shape[0] != heads || w->shape[2] > x->width / heads)
        return BAD(c, "%s does not fit %d heads of an input of %d", w->name, heads, x->width);
    int64_t width = heads * (w->shape[1] + x->width / heads - w->shape[2]);
    if (width > MXC_GRAPH_MAX_EXTENT)
        return mxc_err_set(c->err, MXC_E_LIMIT, "%lld outputs are more than %d", (long long)width,
                           MXC_GRAPH_MAX_EXTENT);
    *out = (struct mxc_shape){x->rows, (int32_t)width};
    return MXC_OK;
}

/* weights[i] holds n numbers for each expert (or is absent). */
static enum mxc_code check_expert_vectors(const struct context *c, int i, int64_t n) {
    int32_t id = c->node->weights[i];
    if (id == MXC_NONE)
        return MXC_OK;
    const struct mxc_weight *w = &c->g->weights[id];
    if (w->role != MXC_W_VECTOR || w->n_dims != 2 || w->shape[0] != c->node->u.moe.n_experts ||
        w->shape[1] != n)
        return BAD(c, "%s does not hold %lld numbers for each expert", w->name, (long long)n);
    return MXC_OK;
}

static enum mxc_code check_moe_attr(const struct context *c) {
    const struct mxc_moe_attr *a = &c->node->u.moe;
    if (a->n_experts < 1 || a->top_k < 1 || a->top_k > a->n_experts ||
        a->top_k > MXC_MAX_TOP_EXPERTS || a->width < 1 || a->width > MXC_GRAPH_MAX_EXTENT)
        return BAD(c, "%d of %d experts, %d wide", a->top_k, a->n_experts, a->width);
    if (a->n_groups < 1 || a->n_experts % a->n_groups || a->top_groups < 1 ||
        a->top_groups > a->n_groups)
        return BAD(c, "%d of %d groups of %d experts", a->top_groups, a->n_groups, a->n_experts);
    if (a->n_groups > 1 && !a->group_best && a->n_experts / a->n_groups < 2)
        return BAD(c, "groups of one expert have no two best");
    if ((unsigned)a->score > MXC_MOE_SIGMOID || (unsigned)a->act >= MXC_N_ACTS)
        return BAD(c, "there is no score %d or activation %d", (int)a->score, (int)a->act);
    if (!isfinite(a->scale) || !(a->normalise_eps >= 0) || !isfinite(a->normalise_eps))
        return BAD(c, "scale or normalise_eps is out of range");
    return MXC_OK;
}

static enum mxc_code check_moe(const struct context *c, struct mxc_shape *out) {
    const struct mxc_value *x = input(c, 0), *router = input(c, 1);
    const struct mxc_moe_attr *a = &c->node->u.moe;
    enum mxc_code code = check_moe_attr(c);
    if (code)
        return code;
    if (router->width != a->n_experts || !mxc_extent_equal(x->rows, router->rows))
        return BAD(c, "router logits are %d wide for %d experts, or differ in rows", router->width,
                   a->n_experts);
    if ((code = check_stack(c, MXC_MOE_GATE, a->n_experts, a->width, x->width)) ||
        (code = check_stack(c, MXC_MOE_UP, a->n_experts, a->width, x->width)) ||
        (code = check_stack(c, MXC_MOE_DOWN, a->n_experts, x->width, a->width)) ||
        (code = check_expert_vectors(c, MXC_MOE_GATE_BIAS, a->width)) ||
        (code = check_expert_vectors(c, MXC_MOE_UP_BIAS, a->width)) ||
        (code = check_expert_vectors(c, MXC_MOE_DOWN_BIAS, x->width)) ||
        (code = check_vector(c, MXC_MOE_CHOICE, a->n_experts, true)))
        return code;
    *out = (struct mxc_shape){x->rows, x->width};
    return MXC_OK;
}

static enum mxc_code check_gate(const struct context *c, struct mxc_shape *out) {
    const struct mxc_value *x = input(c, 0), *gate = input(c, 1);
    if (gate->width != 1 || !mxc_extent_equal(x->rows, gate->rows))
        return BAD(c, "the gate is %d wide, or differs in rows", gate->width);
    *out = (struct mxc_shape){x->rows, x->width};
    return MXC_OK;
}

static enum mxc_code check_unit_columns(const struct context *c, struct mxc_shape *out) {
    const struct mxc_value *x = input(c, 0);
    int32_t id = c->node->weights[0];
    if (id == MXC_NONE || c->g->weights[id].n_dims != 2 || c->g->weights[id].shape[1] != x->width)
        return BAD(c, "the weight is not a matrix with %d columns", x->width);
    *out = (struct mxc_shape){x->rows, x->width};
    return MXC_OK;
}

static enum mxc_code check_act(const struct context *c, struct mxc_shape *out) {
    const struct mxc_value *x = input(c, 0);
    if ((unsigned)c->node->u.glu.act >= MXC_ACT_SWIGLU_CLIP)
        return BAD(c, "there is no activation %d of one input", (int)c->node->u.glu.act);
    *out = (struct mxc_shape){x->rows, x->width};
    return MXC_OK;
}

static enum mxc_code check_softcap(const struct context *c, struct mxc_shape *out) {
    const struct mxc_value *x = input(c, 0);
    if (!(c->node->u.softcap.cap > 0) || !isfinite(c->node->u.softcap.cap))
        return BAD(c, "cap is out of range");
    *out = (struct mxc_shape){x->rows, x->width};
    return MXC_OK;
}

static enum mxc_code check_linear(const struct context *c, struct mxc_shape *out) {
    const struct mxc_node *n = c->node;
    const struct mxc_value *x = input(c, 0);
    if (n->u.linear.n_parts < 1 || n->n_weights != 2 * n->u.linear.n_parts)
        return BAD(c, "%d parts with %d weights", n->u.linear.n_parts, n->n_weights);
    if (!isfinite(n->u.linear.scale))
        return BAD(c, "scale is not finite");
    int64_t width = 0;
    for (int i = 0; i < n->n_weights; i += 2) {
        if (n->weights[i] == MXC_NONE)
            return BAD(c, "the matrix of part %d is absent", i / 2);
        const struct mxc_weight *w = &c->g->weights[n->weights[i]];
        if (w->role == MXC_W_VECTOR || w->role == MXC_W_STACK || w->n_dims != 2)
            return BAD(c, "%s is not a matrix", w->name);
        if (w->shape[1] != x->width)
            return BAD(c, "%s has %lld columns, its input %d", w->name, (long long)w->shape[1],
                       x->width);
        enum mxc_code code = check_vector(c, i + 1, w->shape[0], true);
        if (code)
            return code;
        width += w->shape[0];
    }
    if (width > MXC_GRAPH_MAX_EXTENT)
        return mxc_err_set(c->err, MXC_E_LIMIT, "%lld outputs are more than %d", (long long)width,
                           MXC_GRAPH_MAX_EXTENT);
    *out = (struct mxc_shape){x->rows, (int32_t)width};
    if (n->n_in == 2) {
        const struct mxc_value *r = input(c, 1);
        if (r->width != out->width)
            return BAD(c, "residual is %d wide, the output %d", r->width, out->width);
        if (!mxc_extent_equal(r->rows, out->rows))
            return BAD(c, "residual and output differ in rows");
    }
    return MXC_OK;
}

/* Numbers of q_norm's (heads = n_heads) or k_norm's weights. */
static int64_t qk_norm_width(const struct mxc_attn_attr *a, int32_t heads) {
    return a->qk_norm == MXC_QK_RMS_HEAD ? a->head_dim : (int64_t)heads * a->head_dim;
}

static enum mxc_code check_attention_weights(const struct context *c) {
    const struct mxc_node *n = c->node;
    const struct mxc_attn_attr *a = &n->u.attn;
    enum mxc_code code;
    if (n->n_weights != 3)
        return BAD(c, "%d weights, not 3", n->n_weights);
    if ((unsigned)a->qk_norm > MXC_QK_LAYER_HEADS)
        return BAD(c, "there is no qk_norm %d", (int)a->qk_norm);
    if ((code = check_vector(c, 0, qk_norm_width(a, a->n_heads), true)) ||
        (code = check_vector(c, 1, qk_norm_width(a, a->n_kv_heads), true)) ||
        (code = check_vector(c, 2, a->n_heads, true)))
        return code;
    if ((n->weights[0] != MXC_NONE || n->weights[1] != MXC_NONE) &&
        (!(a->qk_norm_eps >= 0) || !isfinite(a->qk_norm_eps) || !isfinite(a->qk_norm_offset)))
        return BAD(c, "qk_norm_eps or qk_norm_offset is out of range");
    if (n->n_in == 2 && (n->weights[0] != MXC_NONE || n->weights[1] != MXC_NONE))
        return BAD(c, "attention over a latent has no norms of q and k");
    return MXC_OK;
}

static enum mxc_code check_attention_inputs(const struct context *c) {
    const struct mxc_attn_attr *a = &c->node->u.attn;
    const struct mxc_value *x = input(c, 0);
    if (x->rows.kind != MXC_ROWS_T)
        return BAD(c, "rows are not those of the step");
    if (c->node->n_in == 1) {
        if (((int64_t)a->n_heads + 2 * (int64_t)a->n_kv_heads) * a->head_dim != x->width)
            return BAD(c, "input is %d wide, (%d + 2 * %d) * %d are needed", x->width, a->n_heads,
                       a->n_kv_heads, a->head_dim);
        if (a->v_dim && a->v_dim != a->head_dim)
            return BAD(c, "v_dim %d is not head_dim", a->v_dim);
        return MXC_OK;
    }
    if (input(c, 1)->rows.kind != MXC_ROWS_T || input(c, 1)->width != a->head_dim ||
        (int64_t)a->n_heads * a->head_dim != x->width || a->n_kv_heads != 1)
        return BAD(c, "q is %d wide, the latent %d, %d heads of %d", x->width, input(c, 1)->width,
                   a->n_heads, a->head_dim);
    if (a->v_dim < 1 || a->v_dim > a->head_dim)
        return BAD(c, "v_dim %d is not in [1, %d]", a->v_dim, a->head_dim);
    return MXC_OK;
}

static enum mxc_code check_attention(const struct context *c, struct mxc_shape *out) {
    const struct mxc_node *n = c->node;
    const struct mxc_attn_attr *a = &n->u.attn;
    bool latent = n->n_in == 2;
    int32_t v_dim = a->v_dim ? a->v_dim : a->head_dim;
    if (a->n_heads < 1 || a->n_kv_heads < 1 || a->head_dim < 1 || a->n_heads % a->n_kv_heads)
        return BAD(c, "%d heads, %d kv heads of %d", a->n_heads, a->n_kv_heads, a->head_dim);
    enum mxc_code code = check_attention_inputs(c);
    if (code)
        return code;
    if (!(a->scale > 0) || !isfinite(a->scale) || !(a->softcap >= 0) || !isfinite(a->softcap))
        return BAD(c, "scale or softcap is out of range");
    if (a->rope != MXC_NONE && (a->rope < 0 || a->rope >= c->g->n_ropes))
        return BAD(c, "there is no rope %d", a->rope);
    if (a->rope_offset < 0 || a->rope_offset > a->head_dim ||
        (a->rope != MXC_NONE && c->g->ropes[a->rope].dims > a->head_dim - a->rope_offset))
        return BAD(c, "rope rotates %d dimensions of %d from %d on",
                   a->rope == MXC_NONE ? 0 : c->g->ropes[a->rope].dims, a->head_dim,
                   a->rope_offset);
    if (a->kv < 0 || a->kv >= c->g->n_kvs)
        return BAD(c, "there is no kv %d", a->kv);
    const struct mxc_kv *kv = &c->g->kvs[a->kv];
    if (kv->n_heads != a->n_kv_heads || kv->k_dim != a->head_dim || kv->v_dim != v_dim)
        return BAD(c, "kv %d has other heads than the op", a->kv);
    if (kv->window != a->window || (latent != (kv->kind == MXC_KV_LATENT)) ||
        kv->kind == MXC_KV_CROSS)
        return BAD(c, "kv %d has another kind or window than the op", a->kv);
    if ((code = check_attention_weights(c)))
        return code;
    *out = (struct mxc_shape){input(c, 0)->rows, a->n_heads * v_dim};
    return MXC_OK;
}

static enum mxc_code check_glu(const struct context *c, struct mxc_shape *out) {
    const struct mxc_value *x = input(c, 0);
    if (x->width % 2)
        return BAD(c, "input width %d is odd", x->width);
    if ((unsigned)c->node->u.glu.act >= MXC_N_ACTS)
        return BAD(c, "there is no activation %d", (int)c->node->u.glu.act);
    *out = (struct mxc_shape){x->rows, x->width / 2};
    return MXC_OK;
}

static enum mxc_code check_add(const struct context *c, struct mxc_shape *out) {
    const struct mxc_value *a = input(c, 0), *b = input(c, 1);
    if (a->width != b->width || !mxc_extent_equal(a->rows, b->rows))
        return BAD(c, "inputs differ in shape (%d and %d wide)", a->width, b->width);
    *out = (struct mxc_shape){a->rows, a->width};
    return MXC_OK;
}

static enum mxc_code check_select(const struct context *c, struct mxc_shape *out) {
    const struct mxc_value *x = input(c, 0);
    if (x->rows.kind != MXC_ROWS_T)
        return BAD(c, "rows are not those of the step");
    *out = (struct mxc_shape){{.kind = MXC_ROWS_R}, x->width};
    return MXC_OK;
}

/* ---- towers, and decoders that see */

static enum mxc_code check_input(const struct context *c, struct mxc_shape *out) {
    if (c->g->hidden < 1 || c->g->n_slots < 1)
        return BAD(c, "the input has no width or no slot");
    *out = (struct mxc_shape){{.kind = MXC_ROWS_TOWER, .slot = 0, .divisor = 1}, c->g->hidden};
    return MXC_OK;
}

/* Index i has entries for rows of that extent. */
static enum mxc_code check_index(const struct context *c, int32_t i, struct mxc_extent rows) {
    if (i < 0 || i >= c->g->n_indices)
        return BAD(c, "there is no index %d", i);
    if (rows.kind != MXC_ROWS_TOWER || c->g->indices[i].slot != rows.slot ||
        c->g->indices[i].divisor != rows.divisor)
        return BAD(c, "index %d is not for these rows", i);
    return MXC_OK;
}

static enum mxc_code check_lookup(const struct context *c, struct mxc_shape *out) {
    const struct mxc_value *x = input(c, 0);
    int32_t id = c->node->weights[0];
    if (id == MXC_NONE || c->g->weights[id].role != MXC_W_TABLE ||
        c->g->weights[id].shape[1] != x->width)
        return BAD(c, "the weight is not a table with rows of %d", x->width);
    if (c->node->n_weights != 2)
        return BAD(c, "%d weights, not 2", c->node->n_weights);
    *out = (struct mxc_shape){x->rows, x->width};
    enum mxc_code code = check_vector(c, 1, 1, true);
    return code ? code : check_index(c, c->node->u.lookup.index, x->rows);
}

static enum mxc_code check_gather(const struct context *c, struct mxc_shape *out) {
    const struct mxc_value *x = input(c, 0);
    int32_t i = c->node->u.lookup.index;
    if (x->rows.kind != MXC_ROWS_TOWER)
        return BAD(c, "the input has no tower rows");
    if (i < 0 || i >= c->g->n_indices || c->g->indices[i].terms != 1 || c->g->indices[i].weighted)
        return BAD(c, "index %d is none of one plain term", i);
    *out = (struct mxc_shape){{.kind = MXC_ROWS_TOWER,
                               .slot = c->g->indices[i].slot,
                               .divisor = c->g->indices[i].divisor},
                              x->width};
    return MXC_OK;
}

static enum mxc_code check_merge(const struct context *c, struct mxc_shape *out) {
    const struct mxc_value *x = input(c, 0);
    int64_t n = c->node->u.merge.rows,
            width = c->node->op == MXC_OP_MERGE ? n * x->width : x->width;
    if (x->rows.kind != MXC_ROWS_TOWER || n < 1 || n > 1 << 16 ||
        n * x->rows.divisor > MXC_GRAPH_MAX_EXTENT || width > MXC_GRAPH_MAX_EXTENT)
        return BAD(c, "%lld rows of %d", (long long)n, x->width);
    *out = (struct mxc_shape){x->rows, (int32_t)width};
    out->rows.divisor *= (int32_t)n;
    return MXC_OK;
}

static enum mxc_code check_concat(const struct context *c, struct mxc_shape *out) {
    int64_t width = 0;
    for (int i = 0; i < c->node->n_in; i++) {
        if (!mxc_extent_equal(input(c, i)->rows, input(c, 0)->rows))
            return BAD(c, "inputs differ in rows");
        if (c->node->u.concat.turns && input(c, i)->width != input(c, 0)->width)
            return BAD(c, "inputs that take turns differ in width");
        width += input(c, i)->width;
    }
    if (width > MXC_GRAPH_MAX_EXTENT)
        return mxc_err_set(c->err, MXC_E_LIMIT, "%lld columns are more than %d", (long long)width,
                           MXC_GRAPH_MAX_EXTENT);
    *out = (struct mxc_shape){input(c, 0)->rows, (int32_t)width};
    return MXC_OK;
}

static enum mxc_code check_tanh_scale(const struct context *c, struct mxc_shape *out) {
    const struct mxc_value *x = input(c, 0);
    if (c->node->n_in == 2 &&
        (input(c, 1)->width != x->width || !mxc_extent_equal(input(c, 1)->rows, x->rows)))
        return BAD(c, "residual and input differ in shape");
    *out = (struct mxc_shape){x->rows, x->width};
    return check_vector(c, 0, 1, false);
}

static enum mxc_code check_attend(const struct context *c, struct mxc_shape *out) {
    const struct mxc_attend_attr *a = &c->node->u.attend;
    const struct mxc_value *x = input(c, 0);
    if (a->n_heads < 1 || a->head_dim < 1 || x->rows.kind != MXC_ROWS_TOWER ||
        3 * (int64_t)a->n_heads * a->head_dim != x->width)
        return BAD(c, "input is %d wide for %d heads of %d", x->width, a->n_heads, a->head_dim);
    if (!(a->scale > 0) || !isfinite(a->scale))
        return BAD(c, "scale is out of range");
    if (a->range < 0 || a->range >= c->g->n_ranges ||
        !mxc_extent_equal(c->g->ranges[a->range], x->rows))
        return BAD(c, "range %d is not for these rows", a->range);
    *out = (struct mxc_shape){x->rows, a->n_heads * a->head_dim};
    if (a->rope == MXC_NONE)
        return MXC_OK;
    if (a->rope < 0 || a->rope >= c->g->n_ropes || c->g->ropes[a->rope].dims > a->head_dim)
        return BAD(c, "there is no rope %d for heads of %d", a->rope, a->head_dim);
    enum mxc_code code = check_index(c, a->positions, x->rows);
    if (code)
        return code;
    for (int axis = 1; axis < MXC_MAX_ROPE_AXES; axis++)
        if (c->g->ropes[a->rope].sections[axis] && c->g->indices[a->positions].terms <= axis)
            return BAD(c, "index %d has %d terms for more axes", a->positions,
                       c->g->indices[a->positions].terms);
    return MXC_OK;
}

static enum mxc_code check_cross(const struct context *c, struct mxc_shape *out) {
    const struct mxc_cross_attr *a = &c->node->u.cross;
    const struct mxc_value *x = input(c, 0);
    if (a->n_heads < 1 || a->n_kv_heads < 1 || a->n_heads % a->n_kv_heads || a->head_dim < 1 ||
        (int64_t)a->n_heads * a->head_dim != x->width || x->rows.kind != MXC_ROWS_T)
        return BAD(c, "input is %d wide for %d heads of %d", x->width, a->n_heads, a->head_dim);
    if (!(a->scale > 0) || !isfinite(a->scale) || !(a->q_norm_eps >= 0) || !isfinite(a->q_norm_eps))
        return BAD(c, "scale or q_norm_eps is out of range");
    if (a->kv < 0 || a->kv >= c->g->n_kvs || c->g->kvs[a->kv].kind != MXC_KV_CROSS ||
        c->g->kvs[a->kv].n_heads != a->n_kv_heads || c->g->kvs[a->kv].k_dim != a->head_dim ||
        c->g->kvs[a->kv].v_dim != a->head_dim)
        return BAD(c, "kv %d is not a cross store of such heads", a->kv);
    if (c->node->n_weights != 1)
        return BAD(c, "%d weights, not 1", c->node->n_weights);
    *out = (struct mxc_shape){x->rows, x->width};
    return check_vector(c, 0, a->head_dim, true);
}

static enum mxc_code check_step_rows(const struct context *c, struct mxc_shape *out) {
    const struct mxc_value *x = input(c, 0);
    if (x->rows.kind != MXC_ROWS_T)
        return BAD(c, "rows are not those of the step");
    if (c->node->op == MXC_OP_ADD_LEVEL && x->width != c->g->hidden)
        return BAD(c, "a level is %d wide, not %d", c->g->hidden, x->width);
    *out = (struct mxc_shape){x->rows, x->width};
    return MXC_OK;
}

typedef enum mxc_code check_fn(const struct context *c, struct mxc_shape *out);

static check_fn *const checks[MXC_N_OPS] = {
    [MXC_OP_EMBED] = check_embed,
    [MXC_OP_ADD_POSITION] = check_add_position,
    [MXC_OP_INPUT] = check_input,
    [MXC_OP_LOOKUP] = check_lookup,
    [MXC_OP_GATHER] = check_gather,
    [MXC_OP_MERGE] = check_merge,
    [MXC_OP_MEAN_ROWS] = check_merge,
    [MXC_OP_CONCAT] = check_concat,
    [MXC_OP_TANH_SCALE] = check_tanh_scale,
    [MXC_OP_ATTEND] = check_attend,
    [MXC_OP_CROSS] = check_cross,
    [MXC_OP_ROW_MASK] = check_step_rows,
    [MXC_OP_ADD_LEVEL] = check_step_rows,
    [MXC_OP_RMS_NORM] = check_norm,
    [MXC_OP_LAYER_NORM] = check_layer_norm,
    [MXC_OP_LINEAR] = check_linear,
    [MXC_OP_HEADS_LINEAR] = check_heads_linear,
    [MXC_OP_ATTENTION] = check_attention,
    [MXC_OP_GLU] = check_glu,
    [MXC_OP_ACT] = check_act,
    [MXC_OP_SOFTCAP] = check_softcap,
    [MXC_OP_MOE] = check_moe,
    [MXC_OP_GATE] = check_gate,
    [MXC_OP_UNIT_COLUMNS] = check_unit_columns,
    [MXC_OP_ADD] = check_add,
    [MXC_OP_SELECT_OUT] = check_select,
};

enum mxc_code mxc_graph_check_node(const struct mxc_graph *g, int32_t node, struct mxc_shape *out,
                                   struct mxc_err *err) {
    const struct mxc_node *n = &g->nodes[node];
    if ((unsigned)n->op >= MXC_N_OPS)
        return mxc_err_set(err, MXC_E_INTERNAL, "op %d: there is no op %d", node, (int)n->op);
    struct mxc_shape shape = {{0}, 0};
    struct mxc_err local;
    struct context c = {g, n, &local};
    enum mxc_code code = check_ids(&c, node);
    if (!code)
        code = checks[n->op](&c, &shape);
    if (!code) {
        *out = shape;
        return MXC_OK;
    }
    if (n->layer == MXC_NONE)
        return mxc_err_set(err, code, "%s (op %d): %s", mxc_op_name(n->op), node, local.message);
    return mxc_err_set(err, code, "layer %d: %s (op %d): %s", n->layer, mxc_op_name(n->op), node,
                       local.message);
}

static enum mxc_code check_nodes(const struct mxc_graph *g, struct mxc_err *err) {
    if (g->n_values != g->n_nodes)
        return mxc_err_set(err, MXC_E_INTERNAL, "%d ops make %d values", g->n_nodes, g->n_values);
    for (int32_t i = 0; i < g->n_nodes; i++) {
        struct mxc_shape shape;
        enum mxc_code code = mxc_graph_check_node(g, i, &shape, err);
        if (code)
            return code;
        const struct mxc_value *v = &g->values[i];
        if (g->nodes[i].out != i || v->producer != i || v->width != shape.width ||
            !mxc_extent_equal(v->rows, shape.rows))
            return mxc_err_set(err, MXC_E_INTERNAL, "op %d does not make value %d as declared", i,
                               g->nodes[i].out);
    }
    return MXC_OK;
}

/* A KV store belongs to one attention op: a second one would overwrite its rows. */
static enum mxc_code check_kv_owners(const struct mxc_graph *g, struct mxc_err *err) {
    enum mxc_code code = MXC_OK;
    int32_t *owner = mxc_mem_array((size_t)g->n_kvs, sizeof *owner);
    if (!owner)
        return mxc_err_nomem(err);
    for (int32_t i = 0; i < g->n_kvs; i++)
        owner[i] = MXC_NONE;
    for (int32_t i = 0; i < g->n_nodes && !code; i++) {
        if (g->nodes[i].op != MXC_OP_ATTENTION && g->nodes[i].op != MXC_OP_CROSS)
            continue;
        int32_t kv =
            g->nodes[i].op == MXC_OP_CROSS ? g->nodes[i].u.cross.kv : g->nodes[i].u.attn.kv;
        if (owner[kv] != MXC_NONE)
            code = mxc_err_set(err, MXC_E_INTERNAL, "ops %d and %d write the same kv %d", owner[kv],
                               i, kv);
        owner[kv] = i;
    }
    for (int32_t i = 0; i < g->n_kvs && !code; i++) {
        if (owner[i] == MXC_NONE)
            code = mxc_err_set(err, MXC_E_INTERNAL, "kv %d is used by no op", i);
    }
    mxc_mem_free(owner);
    return code;
}

/* No mark at all is fine (graphs of tests); otherwise all n_layers + 2. */
static enum mxc_code finish_marks(struct mxc_graph *g, struct mxc_err *err) {
    struct mxc_graph_private *p = g->private_;
    int32_t n = g->n_layers + 2;
    if (p->n_marks != 0 && p->n_marks != n)
        return mxc_err_set(err, MXC_E_INTERNAL, "%d layer values are marked, not %d", p->n_marks,
                           n);
    for (int32_t i = 0; i < p->n_marks; i++) {
        if (g->layer_values[i] == MXC_NONE)
            return mxc_err_set(err, MXC_E_INTERNAL, "layer value %d is not marked", i);
    }
    if (p->n_marks == 0) {
        int32_t *marks = mxc_mem_realloc(g->layer_values, (size_t)n, sizeof *marks);
        if (!marks)
            return mxc_err_nomem(err);
        for (int32_t i = 0; i < n; i++)
            marks[i] = MXC_NONE;
        g->layer_values = marks;
        return MXC_OK;
    }
    for (int32_t i = 0; i < n; i++) {
        const char *name = i == 0       ? mxc_arena_strdup(&p->names, "layer.0.in")
                           : i == n - 1 ? mxc_arena_strdup(&p->names, "final_norm")
                                        : mxc_arena_printf(&p->names, "layer.%d.out", i - 1);
        if (!name)
            return mxc_err_nomem(err);
        g->values[g->layer_values[i]].name = name;
    }
    return MXC_OK;
}

static void find_last_uses(struct mxc_graph *g) {
    for (int32_t i = 0; i < g->n_nodes; i++) {
        for (int32_t j = 0; j < g->nodes[i].n_in; j++)
            g->values[g->nodes[i].in[j]].last_use = i;
    }
    g->values[g->logits].last_use = g->n_nodes - 1;
}

/* What hidden_out and both_ways promise. */
static enum mxc_code check_promises(const struct mxc_graph *g, int32_t logits,
                                    struct mxc_err *err) {
    if (g->hidden_out && (g->values[logits].width != g->hidden || g->vocab < 1))
        return mxc_err_set(err, MXC_E_INTERNAL,
                           "a hidden output %d wide, where hidden is %d and the vocabulary %d",
                           g->values[logits].width, g->hidden, g->vocab);
    for (int32_t i = 0; g->both_ways && i < g->n_kvs; i++)
        if (g->kvs[i].kind != MXC_KV_FULL)
            return mxc_err_set(err, MXC_E_INTERNAL, "a window in a graph that sees both ways");
    return g->both_ways && !g->hidden_out
               ? mxc_err_set(err, MXC_E_INTERNAL, "an encoder with logits")
               : MXC_OK;
}

enum mxc_code mxc_graph_finish(struct mxc_graph *g, int32_t logits, struct mxc_err *err) {
    struct mxc_graph_private *p = g->private_;
    enum mxc_code code = p->err.code;
    if (code) {
        if (err)
            *err = p->err;
        return code;
    }
    struct mxc_err local;
    code = p->finished ? mxc_err_set(&local, MXC_E_INTERNAL, "the graph is finished already")
                       : check_nodes(g, &local);
    if (!code && (logits < 0 || logits >= g->n_values))
        code = mxc_err_set(&local, MXC_E_INTERNAL, "there is no value %d for the logits", logits);
    if (!code && g->input == MXC_NONE && g->values[logits].rows.kind != MXC_ROWS_R)
        code = mxc_err_set(&local, MXC_E_INTERNAL, "the logits' rows are not the step's outputs");
    if (!code)
        code = check_promises(g, logits, &local);
    if (!code)
        code = check_kv_owners(g, &local);
    if (!code)
        code = finish_marks(g, &local);
    if (!code && !(g->values[logits].name[0]))
        g->values[logits].name = g->input == MXC_NONE ? "logits" : "features";
    if (code) {
        if (!p->err.code)
            p->err = local;
        if (err)
            *err = local;
        return code;
    }
    g->logits = logits;
    if (!g->hidden_out)
        g->vocab = g->values[logits].width;
    find_last_uses(g);
    p->finished = true;
    return MXC_OK;
}
