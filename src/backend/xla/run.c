/* Running a step: it is cut into parts, each part takes a program of the smallest buckets that hold
 * it, and results come back to the host row by row. A span of several rows is a part (in pieces of
 * at most PIECE rows, unless rows see later ones); spans of one row go together, at most
 * MOST_DECODED at a time. The KV arrays of the state are given away to every run and come back as
 * its results; a run that fails leaves nothing of them, so the state is lost then. */
#include "backend/xla/plan.h"

#ifdef MLXCEL_XLA_DEVICE_RUNTIME

#include "backend/check.h"
#include "backend/xla/split.h"
#include "base/mem.h"

#include <string.h>

enum { PIECE = 512, MOST_DECODED = 16, FIRST_BLOCKS = 8 };

/* A step on its way. */
struct walk {
    struct mxc_plan *plan;
    struct mxc_state *state;
    const struct mxc_step *step;
    const struct mxc_out *out;
    int32_t *out_of; /* [n_rows] number of the row among the wanted ones; -1: not wanted */
    float **taps;    /* [n_values] rows of named values; NULL: no tap */
};

/* ---- buckets */

static int32_t row_bucket(int32_t rows, bool decode) {
    static const int32_t prefill[] = {16, 64, 256, 512}, decoded[] = {1, 4, 8, 16};
    const int32_t *sizes = decode ? decoded : prefill;
    for (int i = 0; i < 4; i++)
        if (rows <= sizes[i])
            return sizes[i];
    int32_t size = PIECE;
    while (size < rows)
        size *= 2;
    return size;
}

/* Blocks for so many tokens: 256, 1024, 4096 ... tokens; the model's context where that is less. */
static int32_t block_bucket(const struct mxc_graph *graph, int kind, int32_t tokens) {
    int64_t need = ((int64_t)tokens + MXC_KV_BLOCK - 1) / MXC_KV_BLOCK, size = FIRST_BLOCKS;
    int64_t most =
        ((kind == MXC_KV_CROSS ? 0 : graph->max_position) + MXC_KV_BLOCK - 1) / MXC_KV_BLOCK;
    while (size < need)
        size *= 4;
    return (int32_t)(most >= need && most < size && most > 0 ? most : size);
}

static void buckets_of(const struct walk *w, const struct mxc_xla_part_of_step *part,
                       struct mxc_xla_buckets *b) {
    const struct mxc_plan *plan = w->plan;
    bool decode = part->rows != NULL;
    int32_t longest[MXC_N_KV_KINDS] = {0};
    *b =
        (struct mxc_xla_buckets){.rows = row_bucket(part->n_rows, decode), .taps = w->taps != NULL};
    b->seqs = decode ? b->rows : 1;
    b->out = decode || part->n_out > 1 ? b->rows : 1;
    for (int32_t i = 0; i < (decode ? part->n_rows : 1); i++) {
        const struct mxc_span *span = &w->step->spans[part->spans[i]];
        int32_t tokens = span->context + span->n_rows;
        if (!decode && !w->step->row_end) /* a piece sees nothing of the later ones */
            tokens = span->context + (part->row0 - span->row0) + part->n_rows;
        for (int k = 0; k < MXC_N_KV_KINDS; k++) {
            int32_t n = k == MXC_KV_CROSS ? span->cross_tokens : tokens;
            longest[k] = n > longest[k] ? n : longest[k];
        }
    }
    for (int k = 0; k < MXC_N_KV_KINDS; k++) {
        if (!plan->model->block_bytes[k])
            continue;
        b->blocks[k] = block_bucket(plan->graph, k, longest[k]);
        b->state[k] = w->state->blocks[k];
    }
}

/* Of decoders, which have no slots. */
static bool same_buckets(const struct mxc_xla_buckets *a, const struct mxc_xla_buckets *b) {
    return a->rows == b->rows && a->out == b->out && a->seqs == b->seqs && a->taps == b->taps &&
           !memcmp(a->blocks, b->blocks, sizeof a->blocks) &&
           !memcmp(a->state, b->state, sizeof a->state);
}

enum mxc_code mxc_xla_program_for(struct mxc_plan *plan, const struct mxc_xla_buckets *buckets,
                                  struct mxc_xla_step_program **out, struct mxc_err *err) {
    for (struct mxc_xla_step_program *p = plan->programs; p; p = p->next)
        if (same_buckets(&p->buckets, buckets)) {
            *out = p;
            return MXC_OK;
        }
    struct mxc_xla_step_program *p = mxc_mem_zalloc(1, sizeof *p);
    if (!p)
        return mxc_err_nomem(err);
    p->buckets = *buckets;
    enum mxc_code code =
        mxc_xla_module_make(plan->model, buckets, &plan->form, NULL, &p->module, err);
    if (!code)
        code = mxc_xla_plan_program(plan,
                                    buckets->seqs > 1 || buckets->rows == 1 ? "decode" : "prefill",
                                    &p->module, &p->program, err);
    if (code) {
        mxc_xla_module_fini(&p->module);
        mxc_mem_free(p);
        return code;
    }
    p->next = plan->programs;
    plan->programs = p;
    *out = p;
    return MXC_OK;
}

/* ---- one part */

static bool room(void **array, size_t *have, size_t need, size_t size) {
    if (need <= *have)
        return true;
    void *grown = mxc_mem_array(need, size);
    if (!grown)
        return false;
    mxc_mem_free(*array);
    *array = grown;
    *have = need;
    return true;
}

/* Feeds of one type, as one array, on every device: buffers [devices]. */
static enum mxc_code upload(const struct walk *w, const struct mxc_xla_part_of_step *part,
                            const struct mxc_xla_step_program *p,
                            const struct mxc_xla_module_param *param,
                            struct mxc_xla_buffer **buffers, struct mxc_err *err) {
    struct mxc_plan *plan = w->plan;
    bool ints = param->kind == MXC_XLA_PARAM_INTS;
    size_t n = ints ? p->module.n_ints : p->module.n_floats;
    if (ints ? !room((void **)&plan->feed_ints, &plan->feed_ints_n, n, sizeof(int32_t))
             : !room((void **)&plan->feed_floats, &plan->feed_floats_n, n, sizeof(float)))
        return mxc_err_nomem(err);
    for (int32_t i = 0; i < p->module.n_feeds; i++) {
        const struct mxc_xla_feed *f = &p->module.feeds[i];
        if ((f->shape.type == MXC_XLA_S32) == ints)
            mxc_xla_feed_fill(plan, part, &p->buckets, f,
                              ints ? (void *)(plan->feed_ints + f->offset)
                                   : (void *)(plan->feed_floats + f->offset));
    }
    return mxc_xla_split_upload(plan->client, plan->devices, &param->shape, MXC_NONE,
                                ints ? (void *)plan->feed_ints : (void *)plan->feed_floats,
                                MXC_XLA_COPY, buffers, err);
}

/* Everything of one run. in: [devices][n_in], results: [devices][n_out]; ours[i]: argument i was
 * made for this run. */
struct call {
    size_t n_in, n_out, devices;
    struct mxc_xla_buffer **in, **results, **made; /* made: [devices], of one argument */
    bool *ours;
};

static void call_fini(struct call *c) {
    for (size_t i = 0; c->ours && i < c->n_in; i++)
        for (size_t d = 0; c->ours[i] && d < c->devices; d++)
            mxc_xla_buffer_free(c->in[d * c->n_in + i]);
    for (size_t i = 0; c->results && i < c->devices * c->n_out; i++)
        mxc_xla_buffer_free(c->results[i]);
    mxc_mem_free(c->in);
    mxc_mem_free(c->results);
    mxc_mem_free(c->made);
    mxc_mem_free(c->ours);
}

static enum mxc_code call_init(struct call *c, const struct mxc_xla_module *m,
                               struct mxc_err *err) {
    *c = (struct call){.n_in = (size_t)m->n_params,
                       .n_out = (size_t)m->n_results + (size_t)m->n_kv,
                       .devices = (size_t)m->devices};
    c->in = mxc_mem_zalloc(c->devices * c->n_in + 1, sizeof(struct mxc_xla_buffer *));
    c->results = mxc_mem_zalloc(c->devices * c->n_out + 1, sizeof(struct mxc_xla_buffer *));
    c->made = mxc_mem_zalloc(c->devices, sizeof(struct mxc_xla_buffer *));
    c->ours = mxc_mem_zalloc(c->n_in + 1, sizeof *c->ours);
    if (c->in && c->results && c->made && c->ours)
        return MXC_OK;
    call_fini(c);
    return mxc_err_nomem(err);
}

static enum mxc_code arguments(const struct walk *w, const struct mxc_xla_part_of_step *part,
                               const struct mxc_xla_step_program *p, struct call *c,
                               struct mxc_err *err) {
    const struct mxc_xla_module *m = &p->module;
    for (int32_t i = 0; i < m->n_params; i++) {
        const struct mxc_xla_module_param *param = &m->params[i];
        struct mxc_xla_buffer *const *from = c->made;
        size_t step = 1;
        enum mxc_code code = MXC_OK;
        switch (param->kind) {
        case MXC_XLA_PARAM_INTS:
        case MXC_XLA_PARAM_FLOATS:
            code = upload(w, part, p, param, c->made, err);
            c->ours[i] = !code;
            break;
        case MXC_XLA_PARAM_KV:
            from = w->state->kv + param->which;
            step = mxc_xla_state_arrays(w->state);
            break;
        case MXC_XLA_PARAM_WEIGHT:
            code = mxc_xla_plan_weight(w->plan, param, &from, err);
            break;
        default:
            code = mxc_err_set(err, MXC_E_INTERNAL, "XLA: a step reads a value from outside");
        }
        if (code)
            return code;
        for (size_t d = 0; d < c->devices; d++)
            c->in[d * c->n_in + (size_t)i] = from[d * step];
    }
    return MXC_OK;
}

/* The state's arrays are consumed; those of the results take their places. */
static void take_state(struct mxc_state *state, const struct mxc_xla_module *m, struct call *c,
                       bool failed) {
    for (size_t d = 0; d < c->devices; d++) {
        struct mxc_xla_buffer **next = c->results + d * c->n_out + (size_t)m->n_results;
        for (int32_t i = 0; i < m->n_params; i++) {
            if (m->params[i].kind != MXC_XLA_PARAM_KV)
                continue;
            struct mxc_xla_buffer **slot =
                &state->kv[d * mxc_xla_state_arrays(state) + (size_t)m->params[i].which];
            mxc_xla_buffer_free(*slot);
            *slot = failed ? NULL : *next;
            *next++ = NULL;
        }
    }
    state->lost |= failed;
}

/* Rows of a result to where they belong. */
static enum mxc_code read_result(const struct walk *w, const struct mxc_xla_part_of_step *part,
                                 int32_t value, struct mxc_xla_buffer *buffer,
                                 struct mxc_err *err) {
    struct mxc_plan *plan = w->plan;
    const struct mxc_xla_shape *shape = mxc_xla_buffer_shape(buffer);
    size_t width = (size_t)shape->dims[1], n = (size_t)shape->dims[0] * width;
    bool picked = plan->graph->values[value].rows.kind == MXC_ROWS_R;
    float *tap = w->taps ? w->taps[value] : NULL;
    if (picked && !part->n_out)
        return MXC_OK;
    if (!room((void **)&plan->out_rows, &plan->out_rows_n, n, sizeof(float)))
        return mxc_err_nomem(err);
    enum mxc_code code = mxc_xla_buffer_read(buffer, plan->out_rows, n * sizeof(float), err);
    for (int32_t i = 0; !code && i < (picked ? part->n_out : part->n_rows); i++) {
        int32_t own = picked ? part->out[i] : i;
        int32_t row = part->rows ? part->rows[own] : part->row0 + own;
        size_t to = (size_t)(picked ? w->out_of[row] : row) * width;
        if (value == plan->graph->logits)
            memcpy(w->out->logits + to, plan->out_rows + (size_t)i * width, width * sizeof(float));
        if (tap)
            memcpy(tap + to, plan->out_rows + (size_t)i * width, width * sizeof(float));
    }
    return code;
}

static enum mxc_code run_part(const struct walk *w, const struct mxc_xla_part_of_step *part,
                              struct mxc_err *err) {
    struct mxc_xla_buckets buckets;
    struct mxc_xla_step_program *p;
    buckets_of(w, part, &buckets);
    enum mxc_code code = mxc_xla_program_for(w->plan, &buckets, &p, err);
    if (code)
        return code;
    const struct mxc_xla_module *m = &p->module;
    struct call c;
    if ((code = call_init(&c, m, err)))
        return code;
    if ((code = arguments(w, part, p, &c, err)))
        goto out;
    code =
        mxc_xla_execute(p->program, c.in, c.devices * c.n_in, c.results, c.devices * c.n_out, err);
    take_state(w->state, m, &c, code != MXC_OK);
    for (int32_t i = 0; !code && i < m->n_results; i++) /* the first device has all of it */
        code = read_result(w, part, m->results[i], c.results[i], err);
out:
    call_fini(&c);
    return code;
}

/* ---- parts of a step */

/* The rows of one span, in pieces. out: room for the wanted rows of one. */
static enum mxc_code run_span(const struct walk *w, int32_t index, int32_t *out,
                              struct mxc_err *err) {
    const struct mxc_span *span = &w->step->spans[index];
    int32_t piece = w->step->row_end ? span->n_rows : PIECE;
    for (int32_t at = 0, n; at < span->n_rows; at += n) {
        n = span->n_rows - at < piece ? span->n_rows - at : piece;
        struct mxc_xla_part_of_step part = {.step = w->step,
                                            .state = w->state,
                                            .row0 = span->row0 + at,
                                            .n_rows = n,
                                            .spans = &index,
                                            .out = out};
        for (int32_t i = 0; i < n; i++)
            if (w->out_of[part.row0 + i] >= 0)
                out[part.n_out++] = i;
        enum mxc_code code = run_part(w, &part, err);
        if (code)
            return code;
    }
    return MXC_OK;
}

static enum mxc_code run_single_rows(const struct walk *w, const int32_t *spans, int32_t n,
                                     struct mxc_err *err) {
    int32_t rows[MOST_DECODED], out[MOST_DECODED];
    struct mxc_xla_part_of_step part = {
        .step = w->step, .state = w->state, .n_rows = n, .rows = rows, .spans = spans, .out = out};
    for (int32_t i = 0; i < n; i++) {
        rows[i] = w->step->spans[spans[i]].row0;
        if (w->out_of[rows[i]] >= 0)
            out[part.n_out++] = i;
    }
    return run_part(w, &part, err);
}

static enum mxc_code run_parts(const struct walk *w, struct mxc_err *err) {
    int32_t single[MOST_DECODED], n = 0;
    int32_t *out = mxc_mem_array((size_t)w->step->n_rows, sizeof *out);
    enum mxc_code code = out ? MXC_OK : mxc_err_nomem(err);
    for (int32_t i = 0; !code && i < w->step->n_spans; i++) {
        if (w->step->spans[i].n_rows > 1) {
            code = run_span(w, i, out, err);
            continue;
        }
        single[n++] = i;
        if (n < MOST_DECODED)
            continue;
        code = run_single_rows(w, single, n, err);
        n = 0;
    }
    if (!code && n)
        code = run_single_rows(w, single, n, err);
    mxc_mem_free(out);
    return code;
}

/* ---- taps */

static enum mxc_code open_taps(struct walk *w, struct mxc_err *err) {
    const struct mxc_graph *g = w->plan->graph;
    w->taps = mxc_mem_zalloc((size_t)g->n_values, sizeof *w->taps);
    if (!w->taps)
        return mxc_err_nomem(err);
    for (int32_t v = 0; v < g->n_values; v++)
        if (g->values[v].name[0] &&
            !(w->taps[v] = mxc_mem_array((size_t)w->step->n_rows * (size_t)g->values[v].width,
                                         sizeof(float))))
            return mxc_err_nomem(err);
    return MXC_OK;
}

static void show_taps(const struct walk *w) {
    const struct mxc_graph *g = w->plan->graph;
    for (int32_t i = 0; i < g->n_nodes; i++) {
        int32_t v = g->nodes[i].out;
        int32_t rows = g->values[v].rows.kind == MXC_ROWS_R ? w->step->n_out : w->step->n_rows;
        if (w->taps[v] && rows)
            w->out->tap(w->out->tap_user, g, v, w->taps[v], rows, g->values[v].width);
    }
}

static enum mxc_code check_step(const struct walk *w, struct mxc_err *err) {
    const struct mxc_step_limits limits = {.graph = w->plan->graph,
                                           .max_rows = w->plan->max_rows,
                                           .max_out = w->plan->max_out,
                                           .max_spans = w->plan->max_spans,
                                           .n_blocks = w->state ? w->state->n_blocks : NULL};
    if (!w->state || w->state->plan != w->plan)
        return mxc_err_set(err, MXC_E_ARG, "step: the KV state is not one of this plan");
    enum mxc_code code = mxc_step_check(w->step, w->out, &limits, err);
    if (!code && w->state->lost)
        code =
            mxc_err_set(err, MXC_E_DEVICE_LOST, "XLA: the KV store was lost by an earlier failure");
    return code;
}

enum mxc_code mxc_xla_run_step(struct mxc_plan *plan, struct mxc_state *state,
                               const struct mxc_step *step, const struct mxc_out *out,
                               struct mxc_err *err) {
    struct walk w = {.plan = plan, .state = state, .step = step, .out = out};
    enum mxc_code code = check_step(&w, err);
    if (code)
        return code;
    w.out_of = mxc_mem_array((size_t)step->n_rows, sizeof *w.out_of);
    if (!w.out_of)
        return mxc_err_nomem(err);
    for (int32_t i = 0, next = 0; i < step->n_rows; i++)
        w.out_of[i] = next < step->n_out && step->out_row[next] == i ? next++ : -1;
    if (out && out->tap && (code = open_taps(&w, err)))
        goto out;
    code = run_parts(&w, err);
    if (!code && w.taps)
        show_taps(&w);
out:
    for (int32_t v = 0; w.taps && v < plan->graph->n_values; v++)
        mxc_mem_free(w.taps[v]);
    mxc_mem_free(w.taps);
    mxc_mem_free(w.out_of);
    return code;
}

#endif
