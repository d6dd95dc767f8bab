/* Runs of towers, see tower.h. A run goes part by part: the arrays that the part's program reads
 * are made, padded and uploaded (like parts read the same, so mostly that is done once), values
 * that parts hand on stay on the device until their last reader, and what the graph puts out is
 * read back when the last part is done. In: a checked input, borrowed. Out: rows in host memory. */
#include "backend/xla/tower.h"

#ifdef MLXCEL_XLA_DEVICE_RUNTIME
#include "backend/xla/plan.h"

#include "base/mem.h"

#include <string.h>

struct mxc_tower {
    struct mxc_plan *plan;
    struct mxc_xla_tower_set *set;
    struct mxc_tower_input input;
    struct mxc_xla_buffer **values;   /* [n_values] on the device; NULL: not made, or not needed */
    const struct mxc_xla_module *fed; /* whose feeds the next two are */
    struct mxc_xla_buffer *ints, *floats;
    int32_t part;
    float *result; /* [bucket of the output][its width] */
    mxc_tap_fn *tap;
    void *tap_user;
    float **shown; /* [n_values] named values, read as they are made; NULL without a tap */
};

/* ---- feeds */

/* Whether two modules read the same arrays of a run. */
static bool same_feeds(const struct mxc_xla_module *a, const struct mxc_xla_module *b) {
    if (!a || a->n_feeds != b->n_feeds || a->n_ints != b->n_ints || a->n_floats != b->n_floats)
        return false;
    for (int32_t i = 0; i < a->n_feeds; i++) {
        const struct mxc_xla_feed *f = &a->feeds[i], *g = &b->feeds[i];
        if (f->kind != g->kind || f->which != g->which || f->offset != g->offset ||
            !mxc_xla_shape_equal(&f->shape, &g->shape))
            return false;
    }
    return true;
}

static void drop_feeds(struct mxc_tower *t) {
    mxc_xla_buffer_free(t->ints);
    mxc_xla_buffer_free(t->floats);
    t->ints = t->floats = NULL;
    t->fed = NULL;
}

/* All feeds of a type, as one array on the device. */
static enum mxc_code upload(const struct mxc_tower *t, const struct mxc_xla_module *m,
                            enum mxc_xla_type type, size_t n, struct mxc_xla_buffer **out,
                            struct mxc_err *err) {
    const struct mxc_xla_shape shape = {type, 1, {(int64_t)n}};
    uint8_t *array = mxc_mem_array(n, sizeof(float));
    if (!array)
        return mxc_err_nomem(err);
    for (int32_t i = 0; i < m->n_feeds; i++)
        if (m->feeds[i].shape.type == type)
            mxc_xla_tower_fill(t->plan->graph, &t->input, &t->set->buckets, &m->feeds[i],
                               array + m->feeds[i].offset * sizeof(float));
    enum mxc_code code =
        mxc_xla_buffer_new(t->plan->client, 0, &shape, array, MXC_XLA_COPY, out, err);
    mxc_mem_free(array);
    return code;
}

static enum mxc_code feed(struct mxc_tower *t, const struct mxc_xla_module *m,
                          struct mxc_err *err) {
    enum mxc_code code = MXC_OK;
    if (same_feeds(t->fed, m))
        return MXC_OK;
    drop_feeds(t);
    if (m->n_ints)
        code = upload(t, m, MXC_XLA_S32, m->n_ints, &t->ints, err);
    if (!code && m->n_floats)
        code = upload(t, m, MXC_XLA_F32, m->n_floats, &t->floats, err);
    if (!code)
        t->fed = m;
    return code;
}

/* ---- parts */

static enum mxc_code argument(struct mxc_tower *t, const struct mxc_xla_module_param *param,
                              struct mxc_xla_buffer **out, struct mxc_err *err) {
    struct mxc_xla_buffer *const *weight;
    enum mxc_code code;
    switch (param->kind) {
    case MXC_XLA_PARAM_INTS:
        *out = t->ints;
        return MXC_OK;
    case MXC_XLA_PARAM_FLOATS:
        *out = t->floats;
        return MXC_OK;
    case MXC_XLA_PARAM_VALUE:
        *out = t->values[param->which];
        return MXC_OK;
    case MXC_XLA_PARAM_WEIGHT:
        code = mxc_xla_plan_weight(t->plan, param, &weight, err);
        *out = code ? NULL : *weight;
        return code;
    case MXC_XLA_PARAM_KV:
        break;
    }
    return mxc_err_set(err, MXC_E_INTERNAL, "XLA: a tower reads a KV store");
}

static enum mxc_code read_value(const struct mxc_xla_buffer *buffer, float **out,
                                struct mxc_err *err) {
    size_t bytes = 0;
    float *data = NULL;
    if (mxc_xla_shape_bytes(mxc_xla_buffer_shape(buffer), &bytes))
        data = mxc_mem_alloc(bytes);
    if (!data)
        return mxc_err_nomem(err);
    enum mxc_code code =
        mxc_xla_buffer_read((struct mxc_xla_buffer *)(uintptr_t)buffer, data, bytes, err);
    if (code)
        mxc_mem_free(data);
    else
        *out = data;
    return code;
}

/* Values that nobody reads behind node `end` go. */
static void drop_values(struct mxc_tower *t, int32_t end) {
    const struct mxc_graph *g = t->plan->graph;
    for (int32_t v = 0; v < g->n_values; v++)
        if (t->values[v] && g->values[v].last_use < end && v != g->logits) {
            mxc_xla_buffer_free(t->values[v]);
            t->values[v] = NULL;
        }
}

static enum mxc_code keep_results(struct mxc_tower *t, const struct mxc_xla_module *m,
                                  struct mxc_xla_buffer **results, struct mxc_err *err) {
    enum mxc_code code = MXC_OK;
    for (int32_t i = 0; i < m->n_results; i++) {
        int32_t v = m->results[i];
        t->values[v] = results[i];
        if (!code && t->tap && t->plan->graph->values[v].name[0])
            code = read_value(results[i], &t->shown[v], err);
    }
    return code;
}

static enum mxc_code run_part(struct mxc_tower *t, int32_t node1, struct mxc_err *err) {
    const struct mxc_xla_module *m = &t->set->modules[t->part];
    struct mxc_xla_program *program;
    enum mxc_code code = mxc_xla_towers_program(t->plan->towers, t->set, t->part, &program, err);
    if (code || (code = feed(t, m, err)))
        return code;
    struct mxc_xla_buffer **inputs = mxc_mem_zalloc((size_t)m->n_params + 1, sizeof *inputs);
    struct mxc_xla_buffer **results = mxc_mem_zalloc((size_t)m->n_results + 1, sizeof *results);
    if (!inputs || !results)
        code = mxc_err_nomem(err);
    for (int32_t i = 0; !code && i < m->n_params; i++)
        code = argument(t, &m->params[i], &inputs[i], err);
    if (!code)
        code = mxc_xla_execute(program, inputs, (size_t)m->n_params, results, (size_t)m->n_results,
                               err);
    if (!code)
        code = keep_results(t, m, results, err);
    if (!code)
        drop_values(t, node1);
    mxc_mem_free(inputs);
    mxc_mem_free(results);
    return code;
}

/* Multiply-adds of nodes, about. */
static uint64_t cost_of(const struct mxc_graph *g, const struct mxc_xla_buckets *b,
                        const struct mxc_xla_cut *cut) {
    uint64_t cost = 1;
    for (int32_t i = cut->node0; i < cut->node1; i++) {
        const struct mxc_node *node = &g->nodes[i];
        uint64_t rows = (uint64_t)mxc_xla_tower_bucket(b, g->values[node->out].rows);
        uint64_t each = (uint64_t)g->values[node->out].width;
        if (node->op == MXC_OP_ATTEND)
            each *= 2 * (uint64_t)b->keys[node->u.attend.range];
        for (int32_t k = 0; node->op == MXC_OP_LINEAR && k < node->n_weights; k += 2) {
            const struct mxc_weight *w = &g->weights[node->weights[k]];
            each += (uint64_t)w->shape[0] * (uint64_t)w->shape[1];
        }
        cost += rows * each;
    }
    return cost;
}

static void show(const struct mxc_tower *t) {
    const struct mxc_graph *g = t->plan->graph;
    for (int32_t v = 0; v < g->n_values; v++)
        if (t->shown[v])
            t->tap(t->tap_user, g, v, t->shown[v], mxc_tower_rows(&t->input, g->values[v].rows),
                   g->values[v].width);
}

enum mxc_code mxc_xla_tower_step(struct mxc_tower *t, uint64_t budget, bool *done,
                                 struct mxc_err *err) {
    const struct mxc_graph *g = t->plan->graph;
    int32_t n;
    const struct mxc_xla_cut *parts = mxc_xla_towers_parts(t->plan->towers, &n);
    for (uint64_t spent = 0; t->part < n && (!spent || spent < budget); t->part++) {
        enum mxc_code code = run_part(t, parts[t->part].node1, err);
        if (code)
            return code;
        spent += cost_of(g, &t->set->buckets, &parts[t->part]);
    }
    if (t->part == n && !t->result) {
        enum mxc_code code = read_value(t->values[g->logits], &t->result, err);
        if (code)
            return code;
        drop_feeds(t);
        mxc_xla_buffer_free(t->values[g->logits]);
        t->values[g->logits] = NULL;
        if (t->tap)
            show(t);
    }
    *done = t->part == n;
    return MXC_OK;
}

/* ---- beginning and end */

enum mxc_code mxc_xla_tower_new(struct mxc_plan *plan, const struct mxc_tower_input *input,
                                struct mxc_tower **out, struct mxc_err *err) {
    struct mxc_xla_buckets buckets;
    if (plan->graph->input == MXC_NONE)
        return mxc_err_set(err, MXC_E_ARG, "tower: the plan is a decoder's");
    enum mxc_code code = mxc_tower_check(plan->graph, input, err);
    if (code)
        return code;
    if (!plan->towers && (code = mxc_xla_towers_new(plan, &plan->towers, err)))
        return code;
    struct mxc_tower *t = mxc_mem_zalloc(1, sizeof *t);
    if (!t)
        return mxc_err_nomem(err);
    t->plan = plan;
    t->input = *input;
    t->values = mxc_mem_zalloc((size_t)plan->graph->n_values, sizeof *t->values);
    mxc_xla_tower_buckets(plan->graph, input, &buckets);
    code =
        t->values ? mxc_xla_towers_take(plan->towers, &buckets, &t->set, err) : mxc_err_nomem(err);
    if (code)
        mxc_xla_tower_free(t);
    else
        *out = t;
    return code;
}

void mxc_xla_tower_free(struct mxc_tower *t) {
    if (!t)
        return;
    for (int32_t v = 0; v < t->plan->graph->n_values; v++) {
        if (t->values)
            mxc_xla_buffer_free(t->values[v]);
        if (t->shown)
            mxc_mem_free(t->shown[v]);
    }
    drop_feeds(t);
    if (t->set)
        mxc_xla_towers_let_go(t->set);
    mxc_mem_free(t->values);
    mxc_mem_free(t->shown);
    mxc_mem_free(t->result);
    mxc_mem_free(t);
}

/* Programs that give every named value are others. */
enum mxc_code mxc_xla_tower_tap(struct mxc_tower *t, mxc_tap_fn *tap, void *user,
                                struct mxc_err *err) {
    struct mxc_xla_buckets buckets = t->set->buckets;
    struct mxc_xla_tower_set *set;
    float **shown = mxc_mem_zalloc((size_t)t->plan->graph->n_values, sizeof *shown);
    buckets.taps = true;
    enum mxc_code code =
        shown ? mxc_xla_towers_take(t->plan->towers, &buckets, &set, err) : mxc_err_nomem(err);
    if (code) {
        mxc_mem_free(shown);
        return code;
    }
    mxc_xla_towers_let_go(t->set);
    mxc_mem_free(t->shown);
    t->set = set;
    t->shown = shown;
    t->tap = tap;
    t->tap_user = user;
    return MXC_OK;
}

const float *mxc_xla_tower_output(const struct mxc_tower *t, int32_t *rows) {
    const struct mxc_graph *g = t->plan->graph;
    *rows = mxc_tower_rows(&t->input, g->values[g->logits].rows);
    return t->result;
}

/* ---- memory */

static uint64_t value_bytes(const struct mxc_graph *g, const struct mxc_xla_buckets *b, int32_t v) {
    return (uint64_t)mxc_xla_tower_bucket(b, g->values[v].rows) * (uint64_t)g->values[v].width *
           sizeof(float);
}

/* Input and side inputs on both sides of the upload. */
static uint64_t feed_bytes(const struct mxc_graph *g, const struct mxc_xla_buckets *b) {
    uint64_t bytes = value_bytes(g, b, g->input);
    for (int32_t i = 0; i < g->n_indices; i++)
        bytes += (uint64_t)mxc_xla_tower_bucket(b, mxc_tower_index_rows(g, i)) *
                 (uint64_t)g->indices[i].terms * 8;
    for (int32_t i = 0; i < g->n_nodes; i++) {
        const struct mxc_attend_attr *a = &g->nodes[i].u.attend;
        if (g->nodes[i].op == MXC_OP_ATTEND && a->rope != MXC_NONE &&
            mxc_xla_tower_angles_node(g, i) == i)
            bytes += (uint64_t)mxc_xla_tower_bucket(b, g->ranges[a->range]) *
                     (uint64_t)g->ropes[a->rope].dims * sizeof(float);
    }
    return 2 * bytes;
}

/* q, k and v apart, and the scores of a tile. */
static uint64_t attend_bytes(const struct mxc_graph *g, const struct mxc_xla_buckets *b,
                             const struct mxc_node *node) {
    const struct mxc_attend_attr *a = &node->u.attend;
    int32_t rows = mxc_xla_tower_bucket(b, g->ranges[a->range]);
    uint64_t scores = (uint64_t)a->n_heads * (uint64_t)mxc_xla_tower_tile(rows) *
                      (uint64_t)b->keys[a->range] * sizeof(float);
    return 2 * scores + 4 * value_bytes(g, b, node->out);
}

/* The node at which most is alive; what XLA fuses is counted, so it is rather too much. */
uint64_t mxc_xla_tower_bytes(const struct mxc_plan *plan, const struct mxc_tower_input *input) {
    const struct mxc_graph *g = plan->graph;
    struct mxc_xla_buckets b;
    uint64_t most = 0;
    if (g->input == MXC_NONE || mxc_tower_check(g, input, NULL))
        return 0;
    mxc_xla_tower_buckets(g, input, &b);
    for (int32_t i = 0; i < g->n_nodes; i++) {
        uint64_t bytes = g->nodes[i].op == MXC_OP_ATTEND ? attend_bytes(g, &b, &g->nodes[i]) : 0;
        for (int32_t v = 0; v < g->n_values; v++)
            if (g->values[v].producer <= i && g->values[v].last_use >= i)
                bytes += value_bytes(g, &b, v);
        most = bytes > most ? bytes : most;
    }
    return most + feed_bytes(g, &b) + 2 * value_bytes(g, &b, g->logits);
}
#endif
