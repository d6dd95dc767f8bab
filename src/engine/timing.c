/* Timing: probes with random tokens under a clock.
 * In: a plan, the case (sequences, depth, prompt, generated tokens), a seed. Out: seconds of the
 * prompt and generation part; the depth is filled before the clock starts.
 * Tokens are drawn, not sampled, so the time is the model's alone. Prompts take steps of the plan's
 * size, with logits only after the last one. */
#include "engine/timing.h"

#include "base/clock.h"
#include "base/mem.h"
#include "engine/probe.h"

struct timing {
    struct mxc_probe *probe;
    const struct mxc_graph *graph;
    int32_t n_sequences, max_rows;
    uint64_t random;
    int32_t *tokens; /* [max_rows] */
    float *logits;   /* [n_sequences][vocab] */
};

static void fill_tokens(struct timing *t, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        t->random = t->random * 6364136223846793005u + 1442695040888963407u;
        t->tokens[i] = (int32_t)((t->random >> 33) % (uint64_t)t->graph->vocab);
    }
}

/* n tokens per sequence in steps of up to max_rows rows; logits after the last if wanted. */
static enum mxc_code feed(struct timing *t, int32_t n, bool want_logits, struct mxc_err *err) {
    int32_t chunk = t->max_rows / t->n_sequences;
    enum mxc_code code = MXC_OK;
    while (!code && n > 0) {
        int32_t take = n < chunk ? n : chunk;
        fill_tokens(t, take * t->n_sequences);
        const struct mxc_probe_run run = {.tokens = t->tokens,
                                          .n_rows = take * t->n_sequences,
                                          .no_output = !want_logits || take < n,
                                          .logits = t->logits};
        code = mxc_probe_step(t->probe, &run, err);
        n -= take;
    }
    return code;
}

enum mxc_code mxc_timing_run(const struct mxc_backend_ops *ops, struct mxc_plan *plan,
                             const struct mxc_graph *graph, int32_t max_rows,
                             const struct mxc_timing_case *timing, uint64_t seed, double *seconds,
                             struct mxc_err *err) {
    struct timing t = {.graph = graph,
                       .n_sequences = timing->n_sequences,
                       .max_rows = max_rows,
                       .random = seed * 0x9E3779B97F4A7C15u + 1};
    if (timing->n_sequences < 1 || timing->n_sequences > max_rows || timing->n_prompt < 0 ||
        timing->n_gen < 0 || timing->n_depth < 0)
        return mxc_err_set(err, MXC_E_ARG, "bench: %d sequences, %d + %d tokens at depth %d",
                           timing->n_sequences, timing->n_prompt, timing->n_gen, timing->n_depth);
    int64_t total = (int64_t)timing->n_depth + timing->n_prompt + timing->n_gen;
    enum mxc_code code = mxc_probe_new(ops, plan, graph, timing->n_sequences, total, &t.probe, err);
    size_t n_logits;
    if (code)
        return code;
    int32_t width = graph->hidden_out ? graph->hidden : graph->vocab;
    if (!mxc_size_mul((size_t)timing->n_sequences, (size_t)width, &n_logits) ||
        !(t.logits = mxc_mem_array(n_logits, sizeof(float))) ||
        !(t.tokens = mxc_mem_array((size_t)max_rows, sizeof(int32_t)))) {
        code = mxc_err_nomem(err);
        goto out;
    }
    mxc_probe_reset(t.probe, (int32_t)total);
    code = feed(&t, timing->n_depth, false, err);
    uint64_t start = mxc_clock_ns();
    if (!code)
        code = feed(&t, timing->n_prompt, true, err);
    for (int32_t i = 0; !code && i < timing->n_gen; i++)
        code = feed(&t, 1, true, err);
    if (!code)
        *seconds = (double)(mxc_clock_ns() - start) * 1e-9;
out:
    mxc_mem_free(t.logits);
    mxc_mem_free(t.tokens);
    mxc_probe_free(t.probe);
    return code;
}
