/* Timing: how long a prompt, or a number of decode steps, takes on a compiled plan. What
 * llama-bench calls pp and tg. Thread rules: the thread that may use the backend. */
#ifndef MXC_ENGINE_TIMING_H
#define MXC_ENGINE_TIMING_H

#include "backend/backend.h"

struct mxc_timing_case {
    int32_t n_prompt;    /* tokens of a prompt per sequence; one row of logits at its end */
    int32_t n_gen;       /* decode steps, each one token per sequence with logits */
    int32_t n_depth;     /* tokens in the cache before the clock starts */
    int32_t n_sequences; /* run together */
};

/* Runs the case once with random tokens (seeded: each call gets new ones) and puts the time into
 * *seconds. max_rows: the plan's. Memory for KV is allocated before the clock starts. */
enum mxc_code mxc_timing_run(const struct mxc_backend_ops *ops, struct mxc_plan *plan,
                             const struct mxc_graph *graph, int32_t max_rows,
                             const struct mxc_timing_case *timing, uint64_t seed, double *seconds,
                             struct mxc_err *err) MXC_MUST;

#endif
