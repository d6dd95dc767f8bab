/* Trace: runs a prompt in chunks with a tap for the layer values, then greedy steps.
 * In: a plan and token ids, checked against the vocabulary. Out: logits of every row, the L2 norm
 * of every layer's value in every row, and the greedy continuation.
 * Norms are summed in double, so that they are no less exact than what they are compared with. Of
 * equal logits the lowest id is taken. The last greedy id needs no step of its own. */
#include "engine/trace.h"

#include "base/mem.h"
#include "engine/probe.h"

#include <math.h>

struct tap {
    struct mxc_trace *trace;
    int32_t first; /* prompt position of the step's first row */
};

static float norm(const float *x, int32_t n) {
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return (float)sqrt(sum);
}

static void on_value(void *user, const struct mxc_graph *graph, int32_t value, const float *data,
                     int32_t rows, int32_t width) {
    const struct tap *tap = user;
    struct mxc_trace *t = tap->trace;
    for (int32_t i = 0; i < graph->n_layers + 2; i++) {
        if (graph->layer_values[i] != value)
            continue;
        float *out = t->layer_l2 + (ptrdiff_t)i * t->n_tokens + tap->first;
        for (int32_t r = 0; r < rows; r++)
            out[r] = norm(data + (ptrdiff_t)r * width, width);
    }
}

/* The largest logit, the lowest id among equals. */
static int32_t best(const float *logits, int32_t n) {
    int32_t id = 0;
    for (int32_t i = 1; i < n; i++)
        if (logits[i] > logits[id])
            id = i;
    return id;
}

static enum mxc_code check(const struct mxc_graph *graph, const int32_t *ids, int32_t n_tokens,
                           int32_t n_steps, struct mxc_err *err) {
    if (graph->hidden_out)
        return mxc_err_set(err, MXC_E_UNSUPPORTED, "trace: a model for embeddings has no logits");
    if (n_tokens < 1 || n_steps < 0)
        return mxc_err_set(err, MXC_E_ARG, "trace: %d tokens and %d steps", n_tokens, n_steps);
    for (int32_t i = 0; i < n_tokens; i++)
        if (ids[i] < 0 || ids[i] >= graph->vocab)
            return mxc_err_set(err, MXC_E_ARG, "trace: token id %d is not in [0, %d)", ids[i],
                               graph->vocab);
    return MXC_OK;
}

static enum mxc_code prompt(struct mxc_probe *probe, struct mxc_trace *t, const int32_t *ids,
                            int32_t max_rows, struct mxc_err *err) {
    for (int32_t i = 0; i < t->n_tokens;) {
        int32_t n = t->n_tokens - i < max_rows ? t->n_tokens - i : max_rows;
        struct tap tap = {.trace = t, .first = i};
        const struct mxc_probe_run run = {.tokens = ids + i,
                                          .n_rows = n,
                                          .all_rows = true,
                                          .logits = t->logits + (size_t)i * (size_t)t->vocab,
                                          .tap = on_value,
                                          .tap_user = &tap};
        enum mxc_code code = mxc_probe_step(probe, &run, err);
        if (code)
            return code;
        i += n;
    }
    return MXC_OK;
}

static enum mxc_code greedy(struct mxc_probe *probe, struct mxc_trace *t, struct mxc_err *err) {
    enum mxc_code code = MXC_OK;
    float *logits = mxc_mem_array((size_t)t->vocab, sizeof *logits);
    if (!logits)
        return mxc_err_nomem(err);
    int32_t id = best(t->logits + (size_t)(t->n_tokens - 1) * (size_t)t->vocab, t->vocab);
    for (int32_t i = 0; !code && i < t->n_steps; i++) {
        t->greedy[i] = id;
        if (i + 1 == t->n_steps)
            break;
        const struct mxc_probe_run run = {.tokens = &id, .n_rows = 1, .logits = logits};
        code = mxc_probe_step(probe, &run, err);
        if (!code)
            id = best(logits, t->vocab);
    }
    mxc_mem_free(logits);
    return code;
}

enum mxc_code mxc_trace_new(const struct mxc_backend_ops *ops, struct mxc_plan *plan,
                            const struct mxc_graph *graph, int32_t max_rows, const int32_t *ids,
                            int32_t n_tokens, int32_t n_steps, struct mxc_trace **out,
                            struct mxc_err *err) {
    enum mxc_code code = check(graph, ids, n_tokens, n_steps, err);
    if (code)
        return code;
    struct mxc_probe *probe = NULL;
    struct mxc_trace *t = mxc_mem_zalloc(1, sizeof *t);
    size_t n_logits, n_l2;
    if (!t)
        return mxc_err_nomem(err);
    *t = (struct mxc_trace){.n_tokens = n_tokens,
                            .vocab = graph->vocab,
                            .n_layers = graph->n_layers,
                            .n_steps = n_steps};
    if (!mxc_size_mul((size_t)n_tokens, (size_t)t->vocab, &n_logits) ||
        !mxc_size_mul((size_t)n_tokens, (size_t)t->n_layers + 2, &n_l2) ||
        !(t->logits = mxc_mem_array(n_logits, sizeof(float))) ||
        !(t->layer_l2 = mxc_mem_zalloc(n_l2, sizeof(float))) ||
        !(t->greedy = mxc_mem_zalloc((size_t)n_steps, sizeof(int32_t)))) {
        code = mxc_err_nomem(err);
        goto out;
    }
    code = mxc_probe_new(ops, plan, graph, 1, (int64_t)n_tokens + n_steps, &probe, err);
    if (code)
        goto out;
    mxc_probe_reset(probe, n_tokens);
    code = prompt(probe, t, ids, max_rows, err);
    if (!code)
        code = greedy(probe, t, err);
out:
    mxc_probe_free(probe);
    if (code)
        mxc_trace_free(t);
    else
        *out = t;
    return code;
}

void mxc_trace_free(struct mxc_trace *trace) {
    if (!trace)
        return;
    mxc_mem_free(trace->logits);
    mxc_mem_free(trace->layer_l2);
    mxc_mem_free(trace->greedy);
    mxc_mem_free(trace);
}
