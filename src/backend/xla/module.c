/* Modules: a graph (or a cut of it) and sizes become the text of one program.
 *
 * The execution model. Shapes are static, so there is a program for each combination of buckets
 * that is met. A step of the engine is split (run.c): every span of several rows runs alone in a
 * prefill program (seqs = 1), all spans of one row together in a decode program (seqs = rows). What
 * changes from step to step comes in two arrays, S32 and F32, cut apart at the head of the program
 * (feeds). Rows of embeddings and the angles of RoPE are made by the host, which knows every
 * storage and scaling. KV stores of a kind lie in one donated array [layers, blocks, tokens, heads,
 * dim] per group; K and V of new rows are scattered into it, block tables are gathered from it.
 * Runs of like layers are a loop over stacked weights where the form says so.
 *
 * The body is written first: it asks for feeds and weights as it goes, and the head is made of what
 * was asked for. */
#include "backend/xla/module.h"

#include "backend/xla/split.h"
#include "base/mem.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct mxc_xla_writer {
    struct mxc_xla_module *module;
    const struct mxc_xla_run *run; /* being rolled; NULL: none */
    struct mxc_hlo_value turn;     /* S32 scalar, number of the turn */
    int32_t params_cap, feeds_cap;
    bool failed; /* out of memory */
};

/* ---- arguments */

static bool grow(void **array, int32_t n, int32_t *cap, size_t size) {
    if (n < *cap)
        return true;
    int32_t more = *cap ? *cap * 2 : 32;
    void *grown = mxc_mem_realloc(*array, (size_t)more, size);
    if (!grown)
        return false;
    *array = grown;
    *cap = more;
    return true;
}

static int axis_of(const struct mxc_xla_lower *l, const struct mxc_xla_module_param *p) {
    int devices = l->writer->module->devices, axis;
    if (p->kind == MXC_XLA_PARAM_KV)
        return mxc_xla_split_kv(&l->model->groups[p->which / 2], devices);
    if (p->kind != MXC_XLA_PARAM_WEIGHT)
        return MXC_NONE;
    axis = mxc_xla_split_weight(&l->model->stacks[p->which], p->part, devices);
    return axis != MXC_NONE && p->index == MXC_NONE ? axis + 1 : axis;
}

/* The argument with that meaning, made when it is new. */
static struct mxc_hlo_value argument(struct mxc_xla_lower *l, struct mxc_xla_module_param want) {
    struct mxc_xla_module *m = l->writer->module;
    int32_t i = 0;
    while (i < m->n_params && (m->params[i].kind != want.kind || m->params[i].which != want.which ||
                               m->params[i].part != want.part || m->params[i].index != want.index))
        i++;
    if (i == m->n_params) {
        if (!grow((void **)&m->params, i, &l->writer->params_cap, sizeof *m->params)) {
            l->writer->failed = true;
            return mxc_hlo_named(&want.shape, "%%a0");
        }
        want.axis = axis_of(l, &want);
        m->params[m->n_params++] = want;
    }
    return mxc_hlo_named(&want.shape, "%%a%d", i);
}

struct mxc_hlo_value mxc_xla_feed(struct mxc_xla_lower *l, enum mxc_xla_feed_kind kind,
                                  int32_t which, int n_dims, const int64_t *dims) {
    struct mxc_xla_module *m = l->writer->module;
    enum mxc_xla_type type = MXC_XLA_S32;
    if (kind == MXC_XLA_FEED_EMBED || kind == MXC_XLA_FEED_COS || kind == MXC_XLA_FEED_SIN ||
        kind == MXC_XLA_FEED_LEVEL || kind == MXC_XLA_FEED_INPUT || kind == MXC_XLA_FEED_FACTOR ||
        kind == MXC_XLA_FEED_TOWER_COS || kind == MXC_XLA_FEED_TOWER_SIN)
        type = MXC_XLA_F32;
    struct mxc_xla_feed feed = {
        .kind = kind, .which = which, .shape = mxc_hlo_shape(type, n_dims, dims), .n = 1};
    for (int i = 0; i < n_dims; i++)
        feed.n *= (size_t)dims[i];
    int32_t at = 0;
    while (at < m->n_feeds && (m->feeds[at].kind != kind || m->feeds[at].which != which))
        at++;
    if (at == m->n_feeds) {
        if (!grow((void **)&m->feeds, at, &l->writer->feeds_cap, sizeof *m->feeds)) {
            l->writer->failed = true;
            return mxc_hlo_named(&feed.shape, "%%f0");
        }
        size_t *used = type == MXC_XLA_S32 ? &m->n_ints : &m->n_floats;
        feed.offset = *used;
        *used += feed.n;
        m->feeds[m->n_feeds++] = feed;
    }
    assert(mxc_xla_shape_equal(&m->feeds[at].shape, &feed.shape));
    return mxc_hlo_named(&feed.shape, "%%f%d", at);
}

/* ---- weights as arguments */

struct mxc_hlo_value mxc_xla_weight_part(struct mxc_xla_lower *l, int32_t weight, int part,
                                         const struct mxc_hlo_value *slice) {
    const struct mxc_xla_place *place = &l->model->places[weight];
    const struct mxc_xla_stack *stack = &l->model->stacks[place->stack];
    const struct mxc_xla_shape *own = &stack->arrays[part].shape;
    struct mxc_xla_module_param param = {.kind = MXC_XLA_PARAM_WEIGHT,
                                         .which = place->stack,
                                         .part = (enum mxc_xla_part)part,
                                         .index = place->index,
                                         .shape = *own};
    bool stacked = l->writer->run && stack->n > 1;
    assert(own->n_dims > 0);
    if (stacked) {
        param.index = MXC_NONE;
        param.shape.n_dims = own->n_dims + 1;
        param.shape.dims[0] = stack->n;
        memcpy(param.shape.dims + 1, own->dims, (size_t)own->n_dims * sizeof *own->dims);
    }
    struct mxc_hlo_value v = argument(l, param);
    if (!stacked && !slice)
        return v;
    struct mxc_hlo_value zero = mxc_hlo_scalar(l->h, MXC_XLA_S32, 0), at[MXC_XLA_MAX_DIMS];
    int64_t sizes[MXC_XLA_MAX_DIMS];
    int n = 0, skipped = (stacked ? 1 : 0) + (slice ? 1 : 0);
    if (stacked)
        at[n++] = l->writer->turn;
    if (slice)
        at[n++] = *slice;
    for (int i = 0; i < v.shape.n_dims; i++) {
        if (i >= n)
            at[i] = zero;
        sizes[i] = i < skipped ? 1 : v.shape.dims[i];
    }
    v = mxc_hlo_dynamic_slice(l->h, v, at, sizes);
    return mxc_hlo_reshape(l->h, v, v.shape.n_dims - skipped, v.shape.dims + skipped);
}

/* ---- KV */

struct mxc_xla_shape mxc_xla_kv_shape(const struct mxc_xla_kv_group *g, bool v, int32_t blocks) {
    return mxc_hlo_shape(
        MXC_XLA_F32, MXC_DIMS(g->layers, blocks, MXC_KV_BLOCK, g->heads, v ? g->v_dim : g->k_dim));
}

int32_t mxc_xla_kv_group(const struct mxc_xla_lower *l, int32_t kv) {
    return l->model->kv_places[kv].stack;
}

/* Stores of the same place in the next turn. */
static int32_t next_kv(const struct mxc_xla_lower *l, int32_t kv) {
    const struct mxc_xla_run *r = l->writer->run;
    for (int32_t i = r->node0; i < r->node0 + r->n_nodes; i++) {
        const struct mxc_node *a = &l->graph->nodes[i], *b = a + r->n_nodes;
        if (a->op == MXC_OP_ATTENTION && a->u.attn.kv == kv)
            return b->u.attn.kv;
        if (a->op == MXC_OP_CROSS && a->u.cross.kv == kv)
            return b->u.cross.kv;
    }
    return kv;
}

struct mxc_hlo_value mxc_xla_kv_layer(struct mxc_xla_lower *l, int32_t kv) {
    const struct mxc_xla_place *places = l->model->kv_places;
    struct mxc_hlo_value at = mxc_hlo_scalar(l->h, MXC_XLA_S32, places[kv].index);
    if (!l->writer->run)
        return at;
    int32_t step = places[next_kv(l, kv)].index - places[kv].index;
    return mxc_hlo_binary(l->h, "add", at,
                          mxc_hlo_binary_x(l->h, "multiply", l->writer->turn, step));
}

static void kv_arguments(struct mxc_xla_lower *l) {
    for (int32_t g = 0; g < l->model->n_groups; g++) {
        const struct mxc_xla_kv_group *group = &l->model->groups[g];
        for (int v = 0; v < (group->v_dim ? 2 : 1); v++) {
            struct mxc_hlo_value value = argument(
                l, (struct mxc_xla_module_param){
                       .kind = MXC_XLA_PARAM_KV,
                       .which = 2 * g + v,
                       .shape = mxc_xla_kv_shape(group, v, l->buckets->state[group->kind])});
            *(v ? &l->kv[g].v : &l->kv[g].k) = value;
        }
    }
}

/* ---- nodes */

int32_t mxc_xla_rows(const struct mxc_xla_lower *l, const struct mxc_extent *extent) {
    if (extent->kind == MXC_ROWS_TOWER)
        return l->buckets->slots[extent->slot] / extent->divisor;
    return extent->kind == MXC_ROWS_R ? l->buckets->out : l->buckets->rows;
}

static struct mxc_xla_shape value_shape(const struct mxc_xla_lower *l, int32_t value) {
    const struct mxc_value *v = &l->graph->values[value];
    return mxc_hlo_shape(MXC_XLA_F32, MXC_DIMS(mxc_xla_rows(l, &v->rows), v->width));
}

static enum mxc_code lower_node(struct mxc_xla_lower *l, const struct mxc_node *node,
                                struct mxc_err *err) {
    struct mxc_hlo_value out = {0};
    enum mxc_code code = mxc_xla_lower_find(node->op)(l, node, &out, err);
    if (code)
        return code;
    struct mxc_xla_shape want = value_shape(l, node->out);
    if (!mxc_xla_shape_equal(&want, &out.shape))
        return mxc_err_set(err, MXC_E_INTERNAL, "XLA: %s of layer %d has another shape",
                           mxc_op_name(node->op), node->layer);
    l->values[node->out] = out;
    return MXC_OK;
}

/* A run as a loop: carried values, then the KV arrays. */
static enum mxc_code lower_run(struct mxc_xla_lower *l, const struct mxc_xla_run *r,
                               struct mxc_err *err) {
    struct mxc_hlo_value carried[MXC_HLO_MAX_PARTS], starts[MXC_XLA_MAX_CARRIED];
    const struct mxc_node *nodes = &l->graph->nodes[r->node0];
    int n = 0;
    if (r->n_carried + 2 * l->model->n_groups > MXC_HLO_MAX_PARTS)
        return mxc_err_set(err, MXC_E_UNSUPPORTED, "XLA: %d kinds of KV stores",
                           l->model->n_groups);
    for (int32_t i = 0; i < r->n_carried; i++) {
        struct mxc_xla_shape shape = value_shape(l, nodes[r->carried[i].node].out);
        carried[n] = r->carried[i].start != MXC_NONE
                         ? l->values[r->carried[i].start]
                         : mxc_hlo_splat(l->h, shape.type, 0, shape.n_dims, shape.dims);
        starts[n] = carried[n];
        n++;
    }
    for (int32_t g = 0; g < l->model->n_groups; g++) {
        carried[n++] = l->kv[g].k;
        if (!mxc_hlo_none(l->kv[g].v))
            carried[n++] = l->kv[g].v;
    }
    struct mxc_hlo_loop loop;
    mxc_hlo_loop_begin(l->h, &loop, mxc_hlo_scalar(l->h, MXC_XLA_S32, r->turns), carried, n);
    l->writer->run = r;
    l->writer->turn = loop.index;
    n = 0;
    for (int32_t i = 0; i < r->n_carried; i++, n++)
        if (r->carried[i].start != MXC_NONE)
            l->values[r->carried[i].start] = carried[n];
    for (int32_t g = 0; g < l->model->n_groups; g++) {
        l->kv[g].k = carried[n++];
        if (!mxc_hlo_none(l->kv[g].v))
            l->kv[g].v = carried[n++];
    }
    for (int32_t i = 0; i < r->n_nodes; i++) {
        enum mxc_code code = lower_node(l, &nodes[i], err);
        if (code)
            return code;
    }
    n = 0;
    for (int32_t i = 0; i < r->n_carried; i++)
        carried[n++] = l->values[nodes[r->carried[i].node].out];
    for (int32_t g = 0; g < l->model->n_groups; g++) {
        carried[n++] = l->kv[g].k;
        if (!mxc_hlo_none(l->kv[g].v))
            carried[n++] = l->kv[g].v;
    }
    mxc_hlo_loop_end(l->h, &loop, carried);
    l->writer->run = NULL;
    n = 0;
    for (int32_t i = 0; i < r->n_carried; i++, n++) {
        if (r->carried[i].start != MXC_NONE)
            l->values[r->carried[i].start] = starts[i];
        l->values[nodes[(r->turns - 1) * r->n_nodes + r->carried[i].node].out] = carried[n];
    }
    for (int32_t g = 0; g < l->model->n_groups; g++) {
        l->kv[g].k = carried[n++];
        if (!mxc_hlo_none(l->kv[g].v))
            l->kv[g].v = carried[n++];
    }
    return MXC_OK;
}

static const struct mxc_xla_run *run_at(const struct mxc_xla_lower *l, int32_t node, int32_t end) {
    for (int32_t i = 0; l->form->roll && !l->buckets->taps && i < l->model->n_runs; i++) {
        const struct mxc_xla_run *r = &l->model->runs[i];
        if (r->node0 == node && r->node0 + r->turns * r->n_nodes <= end)
            return r;
    }
    return NULL;
}

static enum mxc_code lower_nodes(struct mxc_xla_lower *l, const struct mxc_xla_cut *cut,
                                 struct mxc_err *err) {
    for (int32_t i = cut->node0; i < cut->node1; i++)
        for (int32_t k = 0; k < l->graph->nodes[i].n_in; k++) {
            int32_t v = l->graph->nodes[i].in[k];
            if (l->graph->values[v].producer < cut->node0 && mxc_hlo_none(l->values[v]))
                l->values[v] = argument(
                    l, (struct mxc_xla_module_param){
                           .kind = MXC_XLA_PARAM_VALUE, .which = v, .shape = value_shape(l, v)});
        }
    for (int32_t i = cut->node0; i < cut->node1;) {
        const struct mxc_xla_run *r = run_at(l, i, cut->node1);
        enum mxc_code code = r ? lower_run(l, r, err) : lower_node(l, &l->graph->nodes[i], err);
        if (code)
            return code;
        i += r ? r->turns * r->n_nodes : 1;
    }
    return MXC_OK;
}

/* ---- results and the head */

static bool is_result(const struct mxc_xla_lower *l, const struct mxc_xla_cut *cut, int32_t value) {
    if (value == l->graph->logits || (l->buckets->taps && l->graph->values[value].name[0]))
        return true;
    for (int32_t i = cut->node1; i < l->graph->n_nodes; i++)
        for (int32_t k = 0; k < l->graph->nodes[i].n_in; k++)
            if (l->graph->nodes[i].in[k] == value)
                return true;
    return false;
}

static enum mxc_code find_results(struct mxc_xla_lower *l, const struct mxc_xla_cut *cut,
                                  struct mxc_err *err) {
    struct mxc_xla_module *m = l->writer->module;
    size_t most = (size_t)(cut->node1 - cut->node0) + 2 * (size_t)l->model->n_groups + 1;
    m->results = mxc_mem_zalloc(most, sizeof *m->results);
    m->outputs = mxc_mem_zalloc(most, sizeof *m->outputs);
    if (!m->results || !m->outputs)
        return mxc_err_nomem(err);
    for (int32_t i = cut->node0; i < cut->node1; i++) {
        int32_t value = l->graph->nodes[i].out;
        if (!is_result(l, cut, value))
            continue;
        m->outputs[m->n_results] = l->values[value].shape;
        m->results[m->n_results++] = value;
    }
    for (int32_t g = 0; g < l->model->n_groups; g++) {
        m->outputs[m->n_results + m->n_kv++] = l->kv[g].k.shape;
        if (!mxc_hlo_none(l->kv[g].v))
            m->outputs[m->n_results + m->n_kv++] = l->kv[g].v.shape;
    }
    return MXC_OK;
}

/* "%3, %7#1" or the types of results. */
static void list_results(const struct mxc_xla_lower *l, struct mxc_buf *to, bool types) {
    const struct mxc_xla_module *m = l->writer->module;
    char type[MXC_HLO_TYPE];
    for (int32_t i = 0; i < m->n_results + m->n_kv; i++) {
        const char *name = "";
        if (i < m->n_results)
            name = l->values[m->results[i]].name;
        for (int32_t g = 0, at = m->n_results; i >= m->n_results && g < l->model->n_groups; g++) {
            if (at++ == i)
                name = l->kv[g].k.name;
            if (!mxc_hlo_none(l->kv[g].v) && at++ == i)
                name = l->kv[g].v.name;
        }
        (void)mxc_buf_printf(to, "%s%s", i ? ", " : "",
                             types ? mxc_hlo_type(&m->outputs[i], type) : name);
    }
}

static void write_arguments(const struct mxc_xla_lower *l, struct mxc_buf *to) {
    const struct mxc_xla_module *m = l->writer->module;
    char type[MXC_HLO_TYPE];
    int32_t n_kv = 0;
    for (int32_t i = 0; i < m->n_params; i++) {
        (void)mxc_buf_printf(to, "%s\n      %%a%d: %s", i ? "," : "", i,
                             mxc_hlo_type(&m->params[i].shape, type));
        bool kv = m->params[i].kind == MXC_XLA_PARAM_KV, split = m->devices > 1;
        if (kv || split)
            (void)mxc_buf_puts(to, " {");
        mxc_xla_split_attribute(to, m->params[i].shape.n_dims, m->params[i].axis, m->devices);
        if (kv)
            (void)mxc_buf_printf(to, "%stf.aliasing_output = %d : i32", split ? ", " : "",
                                 m->n_results + n_kv++);
        if (kv || split)
            (void)mxc_buf_puts(to, "}");
    }
}

/* Axis of KV result i. */
static int kv_axis(const struct mxc_xla_module *m, int32_t i) {
    for (int32_t k = 0; k < m->n_params; k++)
        if (m->params[k].kind == MXC_XLA_PARAM_KV && i-- == 0)
            return m->params[k].axis;
    return MXC_NONE;
}

static void write_result_types(const struct mxc_xla_module *m, struct mxc_buf *to) {
    char type[MXC_HLO_TYPE];
    for (int32_t i = 0; i < m->n_results + m->n_kv; i++) {
        int axis = i < m->n_results ? MXC_NONE : kv_axis(m, i - m->n_results);
        (void)mxc_buf_printf(to, "%s%s", i ? ", " : "", mxc_hlo_type(&m->outputs[i], type));
        if (m->devices < 2)
            continue;
        (void)mxc_buf_puts(to, " {");
        mxc_xla_split_attribute(to, m->outputs[i].n_dims, axis, m->devices);
        (void)mxc_buf_puts(to, "}");
    }
}

/* The feeds out of their two arrays. */
static void write_feeds(struct mxc_xla_lower *l, struct mxc_buf *to, int32_t ints, int32_t floats) {
    const struct mxc_xla_module *m = l->writer->module;
    char from[MXC_HLO_TYPE], flat[MXC_HLO_TYPE], type[MXC_HLO_TYPE];
    for (int32_t i = 0; i < m->n_feeds; i++) {
        const struct mxc_xla_feed *f = &m->feeds[i];
        bool whole = f->shape.type == MXC_XLA_S32;
        struct mxc_xla_shape all =
            mxc_hlo_shape(f->shape.type, MXC_DIMS((int64_t)(whole ? m->n_ints : m->n_floats)));
        struct mxc_xla_shape part = mxc_hlo_shape(f->shape.type, MXC_DIMS((int64_t)f->n));
        mxc_hlo_type(&all, from);
        mxc_hlo_type(&part, flat);
        (void)mxc_buf_printf(to,
                             "    %%p%d = stablehlo.slice %%a%d [%zu:%zu] : (%s) -> %s\n"
                             "    %%f%d = stablehlo.reshape %%p%d : (%s) -> %s\n",
                             i, whole ? ints : floats, f->offset, f->offset + f->n, from, flat, i,
                             i, flat, mxc_hlo_type(&f->shape, type));
    }
}

static enum mxc_code write_module(struct mxc_xla_lower *l, struct mxc_err *err) {
    struct mxc_xla_module *m = l->writer->module;
    int32_t ints = m->n_params, floats = ints;
    struct mxc_buf out;
    if (m->n_ints) {
        (void)argument(l, (struct mxc_xla_module_param){
                              .kind = MXC_XLA_PARAM_INTS,
                              .shape = mxc_hlo_shape(MXC_XLA_S32, MXC_DIMS((int64_t)m->n_ints))});
        floats++;
    }
    if (m->n_floats)
        (void)argument(l, (struct mxc_xla_module_param){
                              .kind = MXC_XLA_PARAM_FLOATS,
                              .shape = mxc_hlo_shape(MXC_XLA_F32, MXC_DIMS((int64_t)m->n_floats))});
    mxc_buf_init(&out, 2 * (size_t)MXC_HLO_MAX_BYTES);
    (void)mxc_buf_puts(&out, "module @step {\n  func.func public @main(");
    write_arguments(l, &out);
    (void)mxc_buf_puts(&out, ") -> (");
    write_result_types(m, &out);
    (void)mxc_buf_puts(&out, ") {\n");
    write_feeds(l, &out, ints, floats);
    (void)mxc_buf_append(&out, mxc_buf_text(&l->h->text), l->h->text.length);
    (void)mxc_buf_puts(&out, "    return ");
    list_results(l, &out, false);
    (void)mxc_buf_puts(&out, " : ");
    list_results(l, &out, true);
    (void)mxc_buf_puts(&out, "\n  }\n}\n");
    enum mxc_code code = mxc_buf_status(&out, err);
    if (!code && l->writer->failed)
        code = mxc_err_nomem(err);
    if (!code) {
        m->length = out.length;
        m->text = mxc_buf_take(&out);
        code = m->text ? MXC_OK : mxc_err_nomem(err);
    }
    mxc_buf_fini(&out);
    return code;
}

enum mxc_code mxc_xla_module_make(const struct mxc_xla_model *model,
                                  const struct mxc_xla_buckets *buckets,
                                  const struct mxc_xla_form *form, const struct mxc_xla_cut *cut,
                                  struct mxc_xla_module *out, struct mxc_err *err) {
    struct mxc_xla_module made = {.devices = form->devices > 1 ? form->devices : 1};
    struct mxc_xla_writer writer = {.module = &made};
    struct mxc_hlo hlo;
    struct mxc_xla_cut all = {0, model->graph->n_nodes};
    struct mxc_xla_lower l = {.h = &hlo,
                              .model = model,
                              .graph = model->graph,
                              .buckets = buckets,
                              .form = form,
                              .writer = &writer};
    enum mxc_code code = MXC_E_NOMEM;
    mxc_hlo_init(&hlo);
    l.values = mxc_mem_zalloc((size_t)model->graph->n_values + 1, sizeof *l.values);
    l.kv = mxc_mem_zalloc((size_t)model->n_groups + 1, sizeof *l.kv);
    if (!l.values || !l.kv) {
        code = mxc_err_nomem(err);
        goto out;
    }
    cut = cut ? cut : &all;
    kv_arguments(&l);
    if ((code = lower_nodes(&l, cut, err)) || (code = find_results(&l, cut, err)) ||
        (code = mxc_buf_status(&hlo.text, err)) || (code = write_module(&l, err)))
        goto out;
    *out = made;
    made = (struct mxc_xla_module){0};
out:
    mxc_xla_module_fini(&made);
    mxc_hlo_fini(&hlo);
    mxc_mem_free(l.values);
    mxc_mem_free(l.kv);
    return code;
}

void mxc_xla_module_fini(struct mxc_xla_module *m) {
    mxc_mem_free(m->text);
    mxc_mem_free(m->params);
    mxc_mem_free(m->feeds);
    mxc_mem_free(m->results);
    mxc_mem_free(m->outputs);
    *m = (struct mxc_xla_module){0};
}
