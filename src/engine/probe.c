/* Probe: a KV state, consecutive block tables, and one step at a time.
 * In: a compiled plan; equal numbers of tokens for each of its sequences. Out: logits and taps of
 * the step. Owns the state and the arrays of the step; borrows the plan and the graph.
 * All KV kinds share one block table, and a sequence has the same number of blocks in each: simple,
 * at the price of memory that a window would not need.
 * Invariant: length counts the tokens of every sequence, and grows only when a step has
 * succeeded. */
#include "engine/probe.h"

#include "base/mem.h"

#include <string.h>

enum { MAX_SEQUENCES = 1024, MAX_TOKENS = 1 << 27 };

struct mxc_probe {
    const struct mxc_backend_ops *ops;
    struct mxc_plan *plan;
    struct mxc_state *state;
    const struct mxc_graph *graph;
    int32_t n_sequences, n_blocks; /* blocks per sequence */
    int32_t length, rope_length;
    int32_t *tables;    /* [n_sequences][n_blocks], shared by all kinds */
    int32_t *positions; /* of the step, grown on demand */
    int32_t *out_row;
    int32_t capacity; /* rows that positions and out_row hold */
    struct mxc_span *spans;
};

enum mxc_code mxc_probe_new(const struct mxc_backend_ops *ops, struct mxc_plan *plan,
                            const struct mxc_graph *graph, int32_t n_sequences, int64_t max_tokens,
                            struct mxc_probe **out, struct mxc_err *err) {
    if (n_sequences < 1 || n_sequences > MAX_SEQUENCES || max_tokens < 1 || max_tokens > MAX_TOKENS)
        return mxc_err_set(err, MXC_E_ARG, "probe: %d sequences of %lld tokens are out of range",
                           n_sequences, (long long)max_tokens);
    struct mxc_probe *p = mxc_mem_zalloc(1, sizeof *p);
    if (!p)
        return mxc_err_nomem(err);
    *p = (struct mxc_probe){.ops = ops, .plan = plan, .graph = graph, .n_sequences = n_sequences};
    p->n_blocks = (int32_t)((max_tokens + MXC_KV_BLOCK - 1) / MXC_KV_BLOCK);
    enum mxc_code code = MXC_OK;
    int32_t n_blocks[MXC_N_KV_KINDS] = {0}, total;
    if (__builtin_mul_overflow(p->n_blocks, n_sequences, &total)) {
        code = mxc_err_set(err, MXC_E_LIMIT, "probe: too many KV blocks");
        goto out;
    }
    for (int32_t i = 0; i < graph->n_kvs; i++)
        n_blocks[graph->kvs[i].kind] = total;
    p->tables = mxc_mem_array((size_t)total, sizeof *p->tables);
    p->spans = mxc_mem_zalloc((size_t)n_sequences, sizeof *p->spans);
    if (!p->tables || !p->spans) {
        code = mxc_err_nomem(err);
        goto out;
    }
    for (int32_t i = 0; i < total; i++)
        p->tables[i] = i;
    code = ops->state_new(plan, n_blocks, &p->state, err);
out:
    if (code)
        mxc_probe_free(p);
    else
        *out = p;
    return code;
}

void mxc_probe_free(struct mxc_probe *probe) {
    if (!probe)
        return;
    if (probe->state)
        probe->ops->state_free(probe->state);
    mxc_mem_free(probe->tables);
    mxc_mem_free(probe->positions);
    mxc_mem_free(probe->out_row);
    mxc_mem_free(probe->spans);
    mxc_mem_free(probe);
}

void mxc_probe_reset(struct mxc_probe *probe, int32_t rope_length) {
    probe->length = 0;
    probe->rope_length = rope_length;
}

static enum mxc_code reserve(struct mxc_probe *p, int32_t n, struct mxc_err *err) {
    if (n <= p->capacity)
        return MXC_OK;
    int32_t *positions = mxc_mem_realloc(p->positions, (size_t)n, sizeof *positions);
    if (positions)
        p->positions = positions;
    int32_t *out_row = mxc_mem_realloc(p->out_row, (size_t)n, sizeof *out_row);
    if (out_row)
        p->out_row = out_row;
    if (!positions || !out_row)
        return mxc_err_nomem(err);
    p->capacity = n;
    return MXC_OK;
}

enum mxc_code mxc_probe_step(struct mxc_probe *p, const struct mxc_probe_run *run,
                             struct mxc_err *err) {
    int32_t n = p->n_sequences ? run->n_rows / p->n_sequences : 0, n_out = 0;
    if (n < 1 || n * p->n_sequences != run->n_rows)
        return mxc_err_set(err, MXC_E_ARG, "probe: %d rows for %d sequences", run->n_rows,
                           p->n_sequences);
    if (p->length + n > p->n_blocks * MXC_KV_BLOCK)
        return mxc_err_set(err, MXC_E_CONTEXT, "probe: %d tokens do not fit %d", p->length + n,
                           p->n_blocks * MXC_KV_BLOCK);
    enum mxc_code code = reserve(p, run->n_rows, err);
    if (code)
        return code;
    for (int32_t s = 0; s < p->n_sequences; s++) {
        struct mxc_span *span = &p->spans[s];
        *span = (struct mxc_span){.row0 = s * n, .n_rows = n, .context = p->length, .adapter = -1};
        span->rope_length = p->rope_length ? p->rope_length : p->length + n;
        for (int k = 0; k < MXC_N_KV_KINDS; k++) {
            span->blocks[k] = p->tables + (ptrdiff_t)s * p->n_blocks;
            span->n_blocks[k] = p->n_blocks;
        }
        for (int32_t i = 0; i < n; i++) {
            p->positions[s * n + i] = p->length + i;
            if (!run->no_output && (run->all_rows || i == n - 1))
                p->out_row[n_out++] = s * n + i;
        }
    }
    const struct mxc_step step = {.n_rows = run->n_rows,
                                  .tokens = run->tokens,
                                  .positions = p->positions,
                                  .n_axes = 1,
                                  .n_spans = p->n_sequences,
                                  .spans = p->spans,
                                  .n_out = n_out,
                                  .out_row = p->out_row};
    const struct mxc_out out = {.logits = run->logits, .tap = run->tap, .tap_user = run->tap_user};
    code = p->ops->run(p->plan, p->state, &step, &out, err);
    if (!code)
        p->length += n;
    return code;
}
