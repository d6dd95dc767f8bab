/* Graph builder: owns the arrays of a graph while a family writes it. In come ids that earlier
 * calls returned, out go the ids of new values, weights, ropes and KV stores. The first failure is
 * kept and turns every later call into a no-op that returns 0. Each node is checked by check.c as
 * soon as it is appended, so a mistake is reported at its own op; counts and sizes are bounded
 * before an array grows. */
#include "graph/private.h"

#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MAX_NAME = 256 };

static const char *const op_names[MXC_N_OPS] = {
#define OP(NAME, name, in0, in1, w0, w1, doc) [MXC_OP_##NAME] = name,
#include "graph/ops.def"
#undef OP
};

const char *mxc_op_name(enum mxc_op op) {
    return (unsigned)op < MXC_N_OPS ? op_names[op] : "?";
}

enum mxc_code mxc_graph_new(const char *family, struct mxc_graph **graph, struct mxc_err *err) {
    struct mxc_graph *g = mxc_mem_zalloc(1, sizeof *g);
    struct mxc_graph_private *p = mxc_mem_zalloc(1, sizeof *p);
    if (!g || !p) {
        mxc_mem_free(g);
        mxc_mem_free(p);
        return mxc_err_nomem(err);
    }
    g->private_ = p;
    g->logits = g->input = MXC_NONE;
    p->layer = MXC_NONE;
    mxc_arena_init(&p->names, 0);
    mxc_map_init(&p->weight_ids);
    g->family = mxc_arena_strdup(&p->names, family);
    if (!g->family) {
        mxc_graph_free(g);
        return mxc_err_nomem(err);
    }
    *graph = g;
    return MXC_OK;
}

void mxc_graph_free(struct mxc_graph *g) {
    if (!g)
        return;
    mxc_arena_fini(&g->private_->names);
    mxc_map_fini(&g->private_->weight_ids);
    mxc_mem_free(g->private_);
    mxc_mem_free(g->nodes);
    mxc_mem_free(g->values);
    mxc_mem_free(g->weights);
    mxc_mem_free(g->ropes);
    mxc_mem_free(g->kvs);
    mxc_mem_free(g->layer_values);
    mxc_mem_free(g);
}

static bool failed(const struct mxc_graph *g) {
    return g->private_->err.code != MXC_OK || g->private_->finished;
}

static int32_t fail_nomem(struct mxc_graph *g) {
    (void)mxc_err_nomem(&g->private_->err);
    return 0;
}

void mxc_graph_fail(struct mxc_graph *g, enum mxc_code code, const char *fmt, ...) {
    if (failed(g))
        return;
    char text[sizeof g->private_->err.message];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    (void)mxc_err_set(&g->private_->err, code ? code : MXC_E_INTERNAL, "%s", text);
}

/* Makes room for one more element; false: the graph has failed. */
static bool grow(struct mxc_graph *g, void *array, int32_t n, int32_t *cap, int32_t max,
                 size_t size, const char *what) {
    if (n < *cap)
        return true;
    if (n >= max) {
        mxc_graph_fail(g, MXC_E_LIMIT, "more than %d %s", max, what);
        return false;
    }
    int32_t want = *cap ? *cap * 2 : 16;
    void *old, *grown;
    memcpy(&old, array, sizeof old);
    grown = mxc_mem_realloc(old, (size_t)want, size);
    if (!grown) {
        (void)fail_nomem(g);
        return false;
    }
    memcpy(array, &grown, sizeof grown);
    *cap = want;
    return true;
}

/* The key of a weight: its name, and where in the tensor it stands. */
static bool weight_key(const struct mxc_weight *w, const char *name, char *key, size_t size) {
    const struct mxc_weight_view *v = &w->view;
    int n = !v->n_dims
                ? snprintf(key, size, "%s", name)
                : snprintf(key, size, "%s|%lld,%lld,%lld,%lld,%lld,%d,%d", name,
                           (long long)v->stride, (long long)v->row0, (long long)v->row_step,
                           (long long)v->col0, (long long)v->col_step, v->transposed, v->flat);
    return n > 0 && (size_t)n < size;
}

static bool extents_in_range(struct mxc_graph *g, const char *name, int n_dims,
                             const int64_t *shape, int64_t min) {
    for (int i = 0; i < n_dims; i++) {
        if (shape[i] < min || shape[i] > MXC_GRAPH_MAX_EXTENT) {
            mxc_graph_fail(g, MXC_E_LIMIT, "weight %s: extent %lld is not in [1, %d]", name,
                           (long long)shape[i], MXC_GRAPH_MAX_EXTENT);
            return false;
        }
    }
    return true;
}

/* weight: all but the name. */
static int32_t add_weight(struct mxc_graph *g, struct mxc_weight weight, const char *fmt,
                          va_list ap) {
    struct mxc_graph_private *p = g->private_;
    if (failed(g))
        return 0;
    char name[MAX_NAME], key[2 * MAX_NAME];
    int length = vsnprintf(name, sizeof name, fmt, ap);
    if (length <= 0 || length >= MAX_NAME || !weight_key(&weight, name, key, sizeof key)) {
        mxc_graph_fail(g, MXC_E_LIMIT, "a weight's name is empty or longer than %d bytes",
                       MAX_NAME - 1);
        return 0;
    }
    if (!extents_in_range(g, name, weight.n_dims, weight.shape, 1) ||
        !extents_in_range(g, name, weight.view.n_dims, weight.view.shape, 0))
        return 0;
    uint64_t known;
    if (mxc_map_get(&p->weight_ids, mxc_str_of(key), &known)) {
        const struct mxc_weight *w = &g->weights[known];
        if (w->role == weight.role && w->n_dims == weight.n_dims &&
            !memcmp(w->shape, weight.shape, sizeof w->shape))
            return (int32_t)known;
        mxc_graph_fail(g, MXC_E_INTERNAL, "weight %s is declared twice with different shapes",
                       name);
        return 0;
    }
    if (!grow(g, &g->weights, g->n_weights, &p->weights_cap, MXC_GRAPH_MAX_WEIGHTS,
              sizeof *g->weights, "weights"))
        return 0;
    const char *kept = mxc_arena_strdup(&p->names, key);
    weight.name = weight.view.n_dims ? mxc_arena_strdup(&p->names, name) : kept;
    if (!kept || !weight.name ||
        !mxc_map_put_borrowed(&p->weight_ids, mxc_str_of(kept), (uint64_t)g->n_weights))
        return fail_nomem(g);
    g->weights[g->n_weights] = weight;
    return g->n_weights++;
}

#define ADD_WEIGHT(g, fmt, ...)                                                                    \
    va_list ap;                                                                                    \
    va_start(ap, fmt);                                                                             \
    int32_t id = add_weight(g, (struct mxc_weight){__VA_ARGS__}, fmt, ap);                         \
    va_end(ap);                                                                                    \
    return id

int32_t mxc_graph_matrix(struct mxc_graph *g, int64_t out, int64_t in, const char *fmt, ...) {
    ADD_WEIGHT(g, fmt, .role = MXC_W_MATRIX, .n_dims = 2, .shape = {out, in});
}

int32_t mxc_graph_vector(struct mxc_graph *g, int64_t n, const char *fmt, ...) {
    ADD_WEIGHT(g, fmt, .role = MXC_W_VECTOR, .n_dims = 1, .shape = {n});
}

int32_t mxc_graph_table(struct mxc_graph *g, int64_t rows, int64_t width, const char *fmt, ...) {
    ADD_WEIGHT(g, fmt, .role = MXC_W_TABLE, .n_dims = 2, .shape = {rows, width});
}

int32_t mxc_graph_stack(struct mxc_graph *g, int64_t slices, int64_t out, int64_t in,
                        const char *fmt, ...) {
    ADD_WEIGHT(g, fmt, .role = MXC_W_STACK, .n_dims = 3, .shape = {slices, out, in});
}

int32_t mxc_graph_vectors(struct mxc_graph *g, int64_t slices, int64_t n, const char *fmt, ...) {
    ADD_WEIGHT(g, fmt, .role = MXC_W_VECTOR, .n_dims = 2, .shape = {slices, n});
}

int32_t mxc_graph_view(struct mxc_graph *g, const struct mxc_weight *weight,
                       const struct mxc_weight_view *view, const char *fmt, ...) {
    struct mxc_err err;
    if (failed(g))
        return 0;
    if (mxc_graph_check_view(weight, view, &err)) {
        g->private_->err = err;
        return 0;
    }
    struct mxc_weight w = *weight;
    w.view = *view;
    va_list ap;
    va_start(ap, fmt);
    int32_t id = add_weight(g, w, fmt, ap);
    va_end(ap);
    return id;
}

static const char *slice_mark(const struct mxc_weight *weight) {
    return weight->n_dims > 1 ? strchr(weight->name, '*') : NULL;
}

int64_t mxc_weight_tensors(const struct mxc_weight *weight) {
    return slice_mark(weight) ? weight->shape[0] : 1;
}

void mxc_weight_tensor_name(const struct mxc_weight *weight, int64_t i,
                            char name[MXC_MAX_WEIGHT_NAME]) {
    const char *mark = slice_mark(weight);
    if (!mark)
        (void)snprintf(name, MXC_MAX_WEIGHT_NAME, "%s", weight->name);
    else
        (void)snprintf(name, MXC_MAX_WEIGHT_NAME, "%.*s%lld%s", (int)(mark - weight->name),
                       weight->name, (long long)i, mark + 1);
}

int mxc_weight_tensor_shape(const struct mxc_weight *weight, int64_t shape[MXC_MAX_VIEW_DIMS]) {
    bool viewed = weight->view.n_dims > 0;
    int n_dims = viewed ? weight->view.n_dims : weight->n_dims;
    const int64_t *from = viewed ? weight->view.shape : weight->shape;
    if (!viewed && slice_mark(weight)) {
        from++;
        n_dims--;
    }
    for (int i = 0; i < n_dims; i++)
        shape[i] = from[i] ? from[i] : -1;
    return n_dims;
}

/* Keeps a check's error as the graph's. */
static bool checked(struct mxc_graph *g, enum mxc_code code, const struct mxc_err *err) {
    if (code)
        g->private_->err = *err;
    return !code;
}

int32_t mxc_graph_rope(struct mxc_graph *g, const struct mxc_rope *rope) {
    struct mxc_err err;
    if (failed(g) || !checked(g, mxc_rope_check(rope, &err), &err) ||
        !grow(g, &g->ropes, g->n_ropes, &g->private_->ropes_cap, MXC_GRAPH_MAX_ROPES,
              sizeof *g->ropes, "rope settings"))
        return 0;
    g->ropes[g->n_ropes] = *rope;
    return g->n_ropes++;
}

int32_t mxc_graph_kv(struct mxc_graph *g, const struct mxc_kv *kv) {
    struct mxc_err err;
    if (failed(g) || !checked(g, mxc_kv_check(kv, &err), &err) ||
        !grow(g, &g->kvs, g->n_kvs, &g->private_->kvs_cap, MXC_GRAPH_MAX_KVS, sizeof *g->kvs,
              "KV stores"))
        return 0;
    g->kvs[g->n_kvs] = *kv;
    return g->n_kvs++;
}

void mxc_graph_begin_layer(struct mxc_graph *g, int32_t layer) {
    if (failed(g))
        return;
    if (layer == MXC_NONE) {
        g->private_->layer = MXC_NONE;
    } else if (layer >= MXC_GRAPH_MAX_LAYERS) {
        mxc_graph_fail(g, MXC_E_LIMIT, "more than %d layers", MXC_GRAPH_MAX_LAYERS);
    } else if (layer != g->n_layers) {
        mxc_graph_fail(g, MXC_E_INTERNAL, "layer %d begins after layer %d", layer, g->n_layers - 1);
    } else {
        g->private_->layer = layer;
        g->n_layers++;
    }
}

/* Appends a node and its output value. The node is checked in place, then counted. */
static int32_t add_node(struct mxc_graph *g, struct mxc_node node) {
    struct mxc_graph_private *p = g->private_;
    if (failed(g))
        return 0;
    if (!grow(g, &g->nodes, g->n_nodes, &p->nodes_cap, MXC_GRAPH_MAX_NODES, sizeof *g->nodes,
              "ops") ||
        !grow(g, &g->values, g->n_values, &p->values_cap, MXC_GRAPH_MAX_NODES, sizeof *g->values,
              "values"))
        return 0;
    node.layer = p->layer;
    node.out = g->n_values;
    g->nodes[g->n_nodes] = node;
    struct mxc_shape shape;
    struct mxc_err err;
    if (!checked(g, mxc_graph_check_node(g, g->n_nodes, &shape, &err), &err))
        return 0;
    g->values[g->n_values] = (struct mxc_value){.name = "",
                                                .rows = shape.rows,
                                                .width = shape.width,
                                                .producer = g->n_nodes,
                                                .last_use = g->n_nodes};
    if (node.op == MXC_OP_EMBED && !g->hidden)
        g->hidden = shape.width;
    g->n_nodes++;
    return g->n_values++;
}

int32_t mxc_graph_embed(struct mxc_graph *g, int32_t table, float scale) {
    return add_node(
        g, (struct mxc_node){
               .op = MXC_OP_EMBED, .n_weights = 1, .weights = {table}, .u.embed.scale = scale});
}

int32_t mxc_graph_add_position(struct mxc_graph *g, int32_t x, int32_t table, int32_t offset) {
    return add_node(g, (struct mxc_node){.op = MXC_OP_ADD_POSITION,
                                         .n_in = 1,
                                         .in = {x},
                                         .n_weights = 1,
                                         .weights = {table},
                                         .u.position.offset = offset});
}

int32_t mxc_graph_add_table_row(struct mxc_graph *g, int32_t x, int32_t table, int32_t row) {
    return add_node(g, (struct mxc_node){.op = MXC_OP_ADD_POSITION,
                                         .n_in = 1,
                                         .in = {x},
                                         .n_weights = 1,
                                         .weights = {table},
                                         .u.position = {.offset = row, .fixed = true}});
}

int32_t mxc_graph_group_norm(struct mxc_graph *g, int32_t x, int32_t weight, float eps,
                             int32_t groups) {
    return add_node(g, (struct mxc_node){.op = MXC_OP_RMS_NORM,
                                         .n_in = 1,
                                         .in = {x},
                                         .n_weights = 1,
                                         .weights = {weight},
                                         .u.norm = {eps, 0, groups}});
}

int32_t mxc_graph_layer_norm(struct mxc_graph *g, int32_t x, int32_t weight, int32_t bias,
                             float eps) {
    return add_node(g, (struct mxc_node){.op = MXC_OP_LAYER_NORM,
                                         .n_in = 1,
                                         .in = {x},
                                         .n_weights = 2,
                                         .weights = {weight, bias},
                                         .u.norm = {eps, 0, 1}});
}

int32_t mxc_graph_rms_norm(struct mxc_graph *g, int32_t x, int32_t weight, float eps,
                           float offset) {
    return add_node(g, (struct mxc_node){.op = MXC_OP_RMS_NORM,
                                         .n_in = 1,
                                         .in = {x},
                                         .n_weights = 1,
                                         .weights = {weight},
                                         .u.norm = {eps, offset, 1}});
}

int32_t mxc_graph_linear(struct mxc_graph *g, int32_t x, int n_parts,
                         const struct mxc_linear_part *parts, float scale, int32_t residual) {
    if (failed(g))
        return 0;
    if (n_parts < 1 || n_parts > MXC_MAX_NODE_WEIGHTS / 2) {
        mxc_graph_fail(g, MXC_E_INTERNAL, "linear: %d parts are not in [1, %d]", n_parts,
                       MXC_MAX_NODE_WEIGHTS / 2);
        return 0;
    }
    struct mxc_node node = {.op = MXC_OP_LINEAR,
                            .n_in = residual == MXC_NONE ? 1 : 2,
                            .in = {x, residual},
                            .n_weights = 2 * n_parts,
                            .u.linear = {n_parts, scale}};
    for (int i = 0; i < n_parts; i++) {
        node.weights[2 * i] = parts[i].weight;
        node.weights[2 * i + 1] = parts[i].bias;
    }
    return add_node(g, node);
}

int32_t mxc_graph_attention(struct mxc_graph *g, int32_t qkv, const struct mxc_attn_attr *attr,
                            int32_t q_norm, int32_t k_norm, int32_t sinks) {
    return add_node(g, (struct mxc_node){.op = MXC_OP_ATTENTION,
                                         .n_in = 1,
                                         .in = {qkv},
                                         .n_weights = 3,
                                         .weights = {q_norm, k_norm, sinks},
                                         .u.attn = *attr});
}

int32_t mxc_graph_latent_attention(struct mxc_graph *g, int32_t q, int32_t latent,
                                   const struct mxc_attn_attr *attr) {
    return add_node(g, (struct mxc_node){.op = MXC_OP_ATTENTION,
                                         .n_in = 2,
                                         .in = {q, latent},
                                         .n_weights = 3,
                                         .weights = {MXC_NONE, MXC_NONE, MXC_NONE},
                                         .u.attn = *attr});
}

int32_t mxc_graph_heads_linear(struct mxc_graph *g, int32_t x, int32_t stack, int32_t n_heads) {
    return add_node(g, (struct mxc_node){.op = MXC_OP_HEADS_LINEAR,
                                         .n_in = 1,
                                         .in = {x},
                                         .n_weights = 1,
                                         .weights = {stack},
                                         .u.heads.n_heads = n_heads});
}

int32_t mxc_graph_act(struct mxc_graph *g, int32_t x, enum mxc_act act) {
    return add_node(g, (struct mxc_node){.op = MXC_OP_ACT, .n_in = 1, .in = {x}, .u.glu.act = act});
}

int32_t mxc_graph_softcap(struct mxc_graph *g, int32_t x, float cap) {
    return add_node(
        g, (struct mxc_node){.op = MXC_OP_SOFTCAP, .n_in = 1, .in = {x}, .u.softcap.cap = cap});
}

int32_t mxc_graph_moe(struct mxc_graph *g, int32_t x, int32_t router,
                      const struct mxc_moe_attr *attr, const int32_t weights[MXC_N_MOE_WEIGHTS]) {
    struct mxc_node node = {.op = MXC_OP_MOE,
                            .n_in = 2,
                            .in = {x, router},
                            .n_weights = MXC_N_MOE_WEIGHTS,
                            .u.moe = *attr};
    memcpy(node.weights, weights, sizeof *weights * MXC_N_MOE_WEIGHTS);
    return add_node(g, node);
}

int32_t mxc_graph_gate(struct mxc_graph *g, int32_t x, int32_t gate) {
    return add_node(g, (struct mxc_node){.op = MXC_OP_GATE, .n_in = 2, .in = {x, gate}});
}

int32_t mxc_graph_unit_columns(struct mxc_graph *g, int32_t x, int32_t matrix) {
    return add_node(
        g,
        (struct mxc_node){
            .op = MXC_OP_UNIT_COLUMNS, .n_in = 1, .in = {x}, .n_weights = 1, .weights = {matrix}});
}

int32_t mxc_graph_glu(struct mxc_graph *g, int32_t x, enum mxc_act act) {
    return add_node(g, (struct mxc_node){.op = MXC_OP_GLU, .n_in = 1, .in = {x}, .u.glu.act = act});
}

int32_t mxc_graph_add(struct mxc_graph *g, int32_t a, int32_t b) {
    return add_node(g, (struct mxc_node){.op = MXC_OP_ADD, .n_in = 2, .in = {a, b}});
}

int32_t mxc_graph_select_out(struct mxc_graph *g, int32_t x) {
    return add_node(g, (struct mxc_node){.op = MXC_OP_SELECT_OUT, .n_in = 1, .in = {x}});
}

/* ---- towers, and decoders that see */

int32_t mxc_graph_input(struct mxc_graph *g, int32_t width) {
    if (failed(g))
        return 0;
    if (g->n_nodes || width < 1 || width > MXC_GRAPH_MAX_EXTENT) {
        mxc_graph_fail(g, MXC_E_INTERNAL, "input: %d wide, after %d ops", width, g->n_nodes);
        return 0;
    }
    g->n_slots = 1;
    g->hidden = width; /* what INPUT's check reads; the output sets vocab */
    g->input = add_node(g, (struct mxc_node){.op = MXC_OP_INPUT});
    return g->input;
}

/* The extent of a tower's value; false: the graph has failed. */
static bool tower_rows(struct mxc_graph *g, int32_t value, struct mxc_extent *rows) {
    if (failed(g))
        return false;
    if (value < 0 || value >= g->n_values || g->values[value].rows.kind != MXC_ROWS_TOWER) {
        mxc_graph_fail(g, MXC_E_INTERNAL, "value %d has no tower rows", value);
        return false;
    }
    *rows = g->values[value].rows;
    return true;
}

int32_t mxc_graph_index(struct mxc_graph *g, int32_t rows_of, int32_t terms, bool weighted) {
    struct mxc_extent rows;
    if (!tower_rows(g, rows_of, &rows))
        return 0;
    if (g->n_indices == MXC_MAX_INDICES || terms < 1 || terms > 16) {
        mxc_graph_fail(g, MXC_E_LIMIT, "index %d with %d terms", g->n_indices, terms);
        return 0;
    }
    int32_t i = g->n_indices++;
    g->indices[i].slot = rows.slot;
    g->indices[i].divisor = rows.divisor;
    g->indices[i].terms = terms;
    g->indices[i].weighted = weighted;
    g->indices[i].limit = INT32_MAX;
    return i;
}

int32_t mxc_graph_range(struct mxc_graph *g, int32_t rows_of) {
    struct mxc_extent rows;
    if (!tower_rows(g, rows_of, &rows))
        return 0;
    if (g->n_ranges == MXC_MAX_RANGES) {
        mxc_graph_fail(g, MXC_E_LIMIT, "more than %d ranges", MXC_MAX_RANGES);
        return 0;
    }
    g->ranges[g->n_ranges] = rows;
    return g->n_ranges++;
}

int32_t mxc_graph_lookup(struct mxc_graph *g, int32_t x, int32_t table, int32_t index, int32_t gate,
                         bool complement) {
    int32_t y = add_node(g, (struct mxc_node){.op = MXC_OP_LOOKUP,
                                              .n_in = 1,
                                              .in = {x},
                                              .n_weights = 2,
                                              .weights = {table, gate},
                                              .u.lookup = {index, complement}});
    if (!failed(g))
        g->indices[index].limit = (int32_t)g->weights[table].shape[0];
    return y;
}

int32_t mxc_graph_gather(struct mxc_graph *g, int32_t x) {
    struct mxc_extent rows;
    if (!tower_rows(g, x, &rows))
        return 0;
    if (g->n_slots == MXC_MAX_SLOTS || g->n_indices == MXC_MAX_INDICES) {
        mxc_graph_fail(g, MXC_E_LIMIT, "more than %d slots or %d indices", MXC_MAX_SLOTS,
                       MXC_MAX_INDICES);
        return 0;
    }
    int32_t i = g->n_indices++;
    g->indices[i].slot = g->n_slots++;
    g->indices[i].divisor = 1;
    g->indices[i].terms = 1;
    g->indices[i].weighted = false;
    g->indices[i].limit = INT32_MAX; /* the rows of x, checked with each run */
    return add_node(
        g, (struct mxc_node){.op = MXC_OP_GATHER, .n_in = 1, .in = {x}, .u.lookup = {i, false}});
}

int32_t mxc_graph_merge(struct mxc_graph *g, int32_t x, int32_t rows) {
    return add_node(
        g, (struct mxc_node){.op = MXC_OP_MERGE, .n_in = 1, .in = {x}, .u.merge.rows = rows});
}

int32_t mxc_graph_mean_rows(struct mxc_graph *g, int32_t x, int32_t rows) {
    return add_node(
        g, (struct mxc_node){.op = MXC_OP_MEAN_ROWS, .n_in = 1, .in = {x}, .u.merge.rows = rows});
}

int32_t mxc_graph_concat(struct mxc_graph *g, int n, const int32_t *values, bool turns) {
    if (failed(g))
        return 0;
    if (n < 1 || n > MXC_MAX_IN) {
        mxc_graph_fail(g, MXC_E_INTERNAL, "concat: %d inputs are not in [1, %d]", n, MXC_MAX_IN);
        return 0;
    }
    struct mxc_node node = {.op = MXC_OP_CONCAT, .n_in = n, .u.concat.turns = turns};
    memcpy(node.in, values, (size_t)n * sizeof *values);
    return add_node(g, node);
}

int32_t mxc_graph_tanh_scale(struct mxc_graph *g, int32_t x, int32_t gate, int32_t residual) {
    return add_node(g, (struct mxc_node){.op = MXC_OP_TANH_SCALE,
                                         .n_in = residual == MXC_NONE ? 1 : 2,
                                         .in = {x, residual},
                                         .n_weights = 1,
                                         .weights = {gate}});
}

int32_t mxc_graph_attend(struct mxc_graph *g, int32_t qkv, const struct mxc_attend_attr *attr) {
    return add_node(
        g, (struct mxc_node){.op = MXC_OP_ATTEND, .n_in = 1, .in = {qkv}, .u.attend = *attr});
}

int32_t mxc_graph_cross(struct mxc_graph *g, int32_t q, const struct mxc_cross_attr *attr,
                        int32_t q_norm) {
    return add_node(g, (struct mxc_node){.op = MXC_OP_CROSS,
                                         .n_in = 1,
                                         .in = {q},
                                         .n_weights = 1,
                                         .weights = {q_norm},
                                         .u.cross = *attr});
}

int32_t mxc_graph_row_mask(struct mxc_graph *g, int32_t x) {
    return add_node(g, (struct mxc_node){.op = MXC_OP_ROW_MASK, .n_in = 1, .in = {x}});
}

int32_t mxc_graph_add_level(struct mxc_graph *g, int32_t x) {
    if (failed(g))
        return 0;
    int32_t y = add_node(
        g,
        (struct mxc_node){.op = MXC_OP_ADD_LEVEL, .n_in = 1, .in = {x}, .u.level = {g->n_levels}});
    if (!failed(g))
        g->n_levels++;
    return y;
}

void mxc_graph_mark_layer_value(struct mxc_graph *g, int32_t index, int32_t value) {
    struct mxc_graph_private *p = g->private_;
    if (failed(g))
        return;
    if (index < 0 || index > MXC_GRAPH_MAX_LAYERS + 1 || value < 0 || value >= g->n_values) {
        mxc_graph_fail(g, MXC_E_INTERNAL, "layer mark %d names value %d", index, value);
        return;
    }
    for (; p->n_marks <= index; p->n_marks++) {
        if (!grow(g, &g->layer_values, p->n_marks, &p->marks_cap, MXC_GRAPH_MAX_LAYERS + 2,
                  sizeof *g->layer_values, "layer marks"))
            return;
        g->layer_values[p->n_marks] = MXC_NONE;
    }
    if (g->layer_values[index] != MXC_NONE) {
        mxc_graph_fail(g, MXC_E_INTERNAL, "layer mark %d is set twice", index);
        return;
    }
    g->layer_values[index] = value;
}
