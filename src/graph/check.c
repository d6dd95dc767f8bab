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
    return a.kind != MXC_ROWS_TOWER || (a.a == b.a && a.b == b.b && a.c == b.c);
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
    if (w->role != MXC_W_VECTOR || w->n_dims != 1)
        return BAD(c, "%s is not a vector", w->name);
    if (w->shape[0] != n)
        return BAD(c, "%s has %lld numbers, not %lld", w->name, (long long)w->shape[0],
                   (long long)n);
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
    if (!(c->node->u.norm.eps >= 0) || !isfinite(c->node->u.norm.eps) ||
        !isfinite(c->node->u.norm.offset))
        return BAD(c, "eps or offset is out of range");
    *out = (struct mxc_shape){x->rows, x->width};
    return check_vector(c, 0, x->width, false);
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
        if (w->role == MXC_W_VECTOR || w->n_dims != 2)
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

static enum mxc_code check_attention(const struct context *c, struct mxc_shape *out) {
    const struct mxc_node *n = c->node;
    const struct mxc_attn_attr *a = &n->u.attn;
    const struct mxc_value *x = input(c, 0);
    if (a->n_heads < 1 || a->n_kv_heads < 1 || a->head_dim < 1 || a->n_heads % a->n_kv_heads)
        return BAD(c, "%d heads, %d kv heads of %d", a->n_heads, a->n_kv_heads, a->head_dim);
    if (((int64_t)a->n_heads + 2 * (int64_t)a->n_kv_heads) * a->head_dim != x->width)
        return BAD(c, "input is %d wide, (%d + 2 * %d) * %d are needed", x->width, a->n_heads,
                   a->n_kv_heads, a->head_dim);
    if (x->rows.kind != MXC_ROWS_T)
        return BAD(c, "rows are not those of the step");
    if (!(a->scale > 0) || !isfinite(a->scale) || !(a->softcap >= 0) || !isfinite(a->softcap))
        return BAD(c, "scale or softcap is out of range");
    if (a->rope != MXC_NONE && (a->rope < 0 || a->rope >= c->g->n_ropes))
        return BAD(c, "there is no rope %d", a->rope);
    if (a->rope != MXC_NONE && c->g->ropes[a->rope].dims > a->head_dim)
        return BAD(c, "rope rotates %d dimensions of %d", c->g->ropes[a->rope].dims, a->head_dim);
    if (a->kv < 0 || a->kv >= c->g->n_kvs)
        return BAD(c, "there is no kv %d", a->kv);
    const struct mxc_kv *kv = &c->g->kvs[a->kv];
    if (kv->n_heads != a->n_kv_heads || kv->k_dim != a->head_dim || kv->v_dim != a->head_dim)
        return BAD(c, "kv %d has other heads than the op", a->kv);
    if (kv->window != a->window || (kv->kind != MXC_KV_FULL && kv->kind != MXC_KV_WINDOW))
        return BAD(c, "kv %d has another kind or window than the op", a->kv);
    if (n->n_weights != 3)
        return BAD(c, "%d weights, not 3", n->n_weights);
    enum mxc_code code = check_vector(c, 0, a->head_dim, true);
    if (!code)
        code = check_vector(c, 1, a->head_dim, true);
    if (!code)
        code = check_vector(c, 2, a->n_heads, true);
    if (code)
        return code;
    if ((n->weights[0] != MXC_NONE || n->weights[1] != MXC_NONE) &&
        (!(a->qk_norm_eps >= 0) || !isfinite(a->qk_norm_eps)))
        return BAD(c, "qk_norm_eps is out of range");
    *out = (struct mxc_shape){x->rows, a->n_heads * a->head_dim};
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

typedef enum mxc_code check_fn(const struct context *c, struct mxc_shape *out);

static check_fn *const checks[MXC_N_OPS] = {
    [MXC_OP_EMBED] = check_embed,       [MXC_OP_RMS_NORM] = check_norm,
    [MXC_OP_LINEAR] = check_linear,     [MXC_OP_ATTENTION] = check_attention,
    [MXC_OP_GLU] = check_glu,           [MXC_OP_ADD] = check_add,
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
        if (g->nodes[i].op != MXC_OP_ATTENTION)
            continue;
        int32_t kv = g->nodes[i].u.attn.kv;
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
    if (!code && g->values[logits].rows.kind != MXC_ROWS_R)
        code = mxc_err_set(&local, MXC_E_INTERNAL, "the logits' rows are not the step's outputs");
    if (!code)
        code = check_kv_owners(g, &local);
    if (!code)
        code = finish_marks(g, &local);
    if (!code && !(g->values[logits].name[0]))
        g->values[logits].name = "logits";
    if (code) {
        if (!p->err.code)
            p->err = local;
        if (err)
            *err = local;
        return code;
    }
    g->logits = logits;
    g->vocab = g->values[logits].width;
    find_last_uses(g);
    p->finished = true;
    return MXC_OK;
}
