/* Weights of a model: every weight that some program reads is found in the checkpoint, through its
 * view and slice by slice (weight_view.h); like ones become stacks; each stack gets its storage:
 * dense in the type of the file, or integers with scales where all of its weights have a group
 * form. Integers are signed bytes that hold the code less the zero point, or the number of a table,
 * so that most formats need no bias. Deciding reads headers only; packing (pack.c) reads the
 * numbers. */
#include "backend/xla/pack.h"

#include "backend/weight_view.h"
#include "base/mem.h"

#include <assert.h>
#include <string.h>

/* ---- finding */

static enum mxc_code find_weight(const struct mxc_weights *weights, const struct mxc_weight *w,
                                 struct mxc_xla_source *s, struct mxc_err *err) {
    enum mxc_code code = mxc_weight_find(weights, w, err);
    if (code)
        return code;
    s->n = mxc_weight_n_views(w);
    s->views = mxc_mem_zalloc((size_t)s->n, sizeof *s->views);
    if (w->view.flat)
        s->flats = mxc_mem_zalloc((size_t)s->n, sizeof *s->flats);
    if (!s->views || (w->view.flat && !s->flats))
        return mxc_err_nomem(err);
    return mxc_weight_views(weights, w, s->views, s->flats, err);
}

/* ---- uses */

static struct mxc_xla_stack *stack_of(struct mxc_xla_model *m, int32_t weight) {
    return &m->stacks[m->places[weight].stack];
}

static void use(struct mxc_xla_model *m, int32_t weight, bool multiplied) {
    if (weight == MXC_NONE)
        return;
    stack_of(m, weight)->used = true;
    stack_of(m, weight)->matrix |= multiplied;
}

/* A router's matrix: rounding that changes which experts are chosen changes everything after it. */
static void keep_exact(struct mxc_xla_model *m, int32_t value) {
    const struct mxc_node *node = &m->graph->nodes[m->graph->values[value].producer];
    for (int32_t p = 0; node->op == MXC_OP_LINEAR && p < node->n_weights; p += 2)
        stack_of(m, node->weights[p])->exact = true;
}

/* Megatron's rule: a product over what attention or a gate has made is over parts that devices have
 * already, and its sums are added over the devices; other products give parts. */
static enum mxc_xla_split split_of(const struct mxc_graph *g, const struct mxc_node *node,
                                   int32_t p) {
    enum mxc_op from;
    if (node->op == MXC_OP_MOE)
        return p == MXC_MOE_DOWN ? MXC_XLA_SPLIT_COLUMNS : MXC_XLA_SPLIT_ROWS;
    if (node->op != MXC_OP_LINEAR)
        return MXC_XLA_WHOLE;
    from = g->nodes[g->values[node->in[0]].producer].op;
    return from == MXC_OP_ATTENTION || from == MXC_OP_CROSS || from == MXC_OP_GLU ||
                   from == MXC_OP_ACT || from == MXC_OP_HEADS_LINEAR
               ? MXC_XLA_SPLIT_COLUMNS
               : MXC_XLA_SPLIT_ROWS;
}

static void find_uses(struct mxc_xla_model *m) {
    for (int32_t i = 0; i < m->graph->n_nodes; i++) {
        const struct mxc_node *node = &m->graph->nodes[i];
        if (node->op == MXC_OP_EMBED)
            continue; /* its rows come with the step */
        for (int32_t p = 0; p < node->n_weights; p++) {
            if (node->op == MXC_OP_UNIT_COLUMNS) {
                stack_of(m, node->weights[p])->norms = true;
                continue;
            }
            bool multiplied = (node->op == MXC_OP_LINEAR && p % 2 == 0) ||
                              node->op == MXC_OP_HEADS_LINEAR ||
                              (node->op == MXC_OP_MOE && p <= MXC_MOE_DOWN);
            use(m, node->weights[p], multiplied);
            if (multiplied && node->weights[p] != MXC_NONE)
                stack_of(m, node->weights[p])->split = split_of(m->graph, node, p);
        }
        if (node->op == MXC_OP_MOE)
            keep_exact(m, node->in[1]);
    }
}

/* ---- stacks */

static void put(struct mxc_xla_model *m, int32_t weight, int32_t *next) {
    struct mxc_xla_stack *s = &m->stacks[m->n_stacks - 1];
    m->places[weight] = (struct mxc_xla_place){m->n_stacks - 1, s->n++};
    m->order[(*next)++] = weight;
}

static void start_stack(struct mxc_xla_model *m, int32_t next) {
    m->stacks[m->n_stacks++] = (struct mxc_xla_stack){.first = next};
}

static void stack_run(struct mxc_xla_model *m, const struct mxc_xla_run *r, int32_t *next) {
    for (int32_t j = 0; j < r->n_nodes; j++) {
        const struct mxc_node *node = &m->graph->nodes[r->node0 + j];
        for (int32_t k = 0; k < node->n_weights; k++) {
            if (node->weights[k] == MXC_NONE || node->weights[k] == node[r->n_nodes].weights[k])
                continue;
            start_stack(m, *next);
            for (int32_t turn = 0; turn < r->turns; turn++)
                put(m, node[turn * r->n_nodes].weights[k], next);
        }
    }
}

static void make_stacks(struct mxc_xla_model *m) {
    int32_t next = 0;
    for (int32_t i = 0; i < m->graph->n_weights; i++)
        m->places[i] = (struct mxc_xla_place){MXC_NONE, 0};
    for (int32_t i = 0; i < m->n_runs; i++)
        stack_run(m, &m->runs[i], &next);
    for (int32_t i = 0; i < m->graph->n_weights; i++)
        if (m->places[i].stack == MXC_NONE) {
            start_stack(m, next);
            put(m, i, &next);
        }
}

/* ---- storage */

static bool group_form(const struct mxc_xla_source *s, struct mxc_xla_stack *stack, bool *biased) {
    for (int64_t i = 0; i < s->n; i++) {
        struct mxc_group_form form;
        if (!mxc_view_group_form(&s->views[i], &form) || form.bits > 8 ||
            s->views[i].k % form.group != 0)
            return false;
        if (!stack->group || (int32_t)form.group < stack->group)
            stack->group = (int32_t)form.group;
        *biased |= form.zero_point < 0;
    }
    return true;
}

static enum mxc_xla_type dense_type(const struct mxc_xla_source *s) {
    enum mxc_storage storage = s->views[0].tensor->storage;
    for (int64_t i = 1; i < s->n; i++)
        if (s->views[i].tensor->storage != storage)
            return MXC_XLA_F32;
    return storage == MXC_ST_BF16  ? MXC_XLA_BF16
           : storage == MXC_ST_F16 ? MXC_XLA_F16
                                   : MXC_XLA_F32;
}

static bool add_array(struct mxc_xla_model *m, struct mxc_xla_stack *s, enum mxc_xla_part part,
                      enum mxc_xla_type type, int n_dims, const int64_t *dims) {
    struct mxc_xla_array *a = &s->arrays[part];
    size_t bytes = (size_t)mxc_hlo_type_bits(type) / 8, all;
    for (int i = 0; i < n_dims; i++)
        if (!mxc_size_mul(bytes, (size_t)dims[i], &bytes))
            return false;
    a->shape = mxc_hlo_shape(type, n_dims, dims);
    a->bytes = bytes;
    a->offset = m->bytes;
    return mxc_size_mul(bytes, (size_t)s->n, &all) && mxc_size_add(all, MXC_XLA_ALIGN - 1, &all) &&
           mxc_size_add(m->bytes, all / MXC_XLA_ALIGN * MXC_XLA_ALIGN, &m->bytes);
}

static enum mxc_code store(struct mxc_xla_model *m, struct mxc_xla_stack *s, struct mxc_err *err) {
    const struct mxc_weight *w = &m->graph->weights[m->order[s->first]];
    int64_t dims[3];
    bool grouped = s->matrix && m->sources, biased = false, ok = true;
    enum mxc_xla_type type = MXC_XLA_F32;
    for (int i = 0; i < w->n_dims; i++)
        dims[i] = w->shape[i];
    for (int32_t i = 0; grouped && i < s->n; i++)
        grouped = group_form(&m->sources[m->order[s->first + i]], s, &biased);
    if (!grouped)
        s->group = 0;
    for (int32_t i = 0; m->sources && !grouped && w->role != MXC_W_VECTOR && i < s->n; i++) {
        enum mxc_xla_type own = dense_type(&m->sources[m->order[s->first + i]]);
        type = i && own != type ? MXC_XLA_F32 : own;
        if (type == MXC_XLA_F32)
            break;
    }
    if (s->used)
        ok = add_array(m, s, MXC_XLA_NUMBERS, grouped ? MXC_XLA_S8 : type, w->n_dims, dims);
    if (s->norms)
        ok = ok && add_array(m, s, MXC_XLA_NORMS, MXC_XLA_F32, 1, &dims[w->n_dims - 1]);
    if (s->group)
        dims[w->n_dims - 1] /= s->group;
    if (s->used && grouped)
        ok = ok && add_array(m, s, MXC_XLA_SCALES, MXC_XLA_F32, w->n_dims, dims);
    if (s->used && grouped && biased)
        ok = ok && add_array(m, s, MXC_XLA_BIASES, MXC_XLA_F32, w->n_dims, dims);
    return ok ? MXC_OK : mxc_err_nomem(err);
}

enum mxc_code mxc_xla_weights_plan(struct mxc_xla_model *m, const struct mxc_weights *weights,
                                   struct mxc_err *err) {
    size_t n = (size_t)m->graph->n_weights;
    enum mxc_code code = MXC_OK;
    m->stacks = mxc_mem_zalloc(n + 1, sizeof *m->stacks);
    m->places = mxc_mem_zalloc(n + 1, sizeof *m->places);
    m->order = mxc_mem_zalloc(n + 1, sizeof *m->order);
    if (!m->stacks || !m->places || !m->order)
        return mxc_err_nomem(err);
    if (weights && !(m->sources = mxc_mem_zalloc(n + 1, sizeof *m->sources)))
        return mxc_err_nomem(err);
    for (int32_t i = 0; weights && !code && i < m->graph->n_weights; i++)
        code = find_weight(weights, &m->graph->weights[i], &m->sources[i], err);
    if (code)
        return code;
    make_stacks(m);
    find_uses(m);
    for (int32_t i = 0; !code && i < m->n_stacks; i++)
        code = store(m, &m->stacks[i], err);
    m->bytes = m->bytes ? m->bytes : MXC_XLA_ALIGN;
    return code;
}

void mxc_xla_weights_fini(struct mxc_xla_model *m) {
    for (int32_t i = 0; m->sources && i < m->graph->n_weights; i++) {
        mxc_mem_free(m->sources[i].views);
        mxc_mem_free(m->sources[i].flats);
    }
    mxc_mem_free(m->sources);
    mxc_mem_free(m->stacks);
    mxc_mem_free(m->places);
    mxc_mem_free(m->order);
    mxc_mem_free_aligned(m->memory, m->bytes);
}
