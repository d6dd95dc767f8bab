/* Step arrays: the plain arrays of struct mxc_step, filled from the scheduler's plan. Allocated
 * once for the largest step. Thread rules: the stepping thread only.
 * This is what a backend, or another rank, sees of the engine. */
#ifndef MXC_ENGINE_STEP_H
#define MXC_ENGINE_STEP_H

#include "engine/sched.h"

struct mxc_step_arrays {
    int32_t max_rows, max_spans, n_axes;
    int32_t splice_width; /* numbers of a spliced row */
    bool all_rows;        /* every row is an output row */
    int32_t *tokens, *positions, *row_end, *out_row, *cross_range;
    struct mxc_span *spans;
    struct mxc_splice *splices;
    struct mxc_step step; /* points into the arrays */
};

enum mxc_code mxc_step_arrays_init(struct mxc_step_arrays *arrays, int32_t max_rows,
                                   int32_t max_spans, const struct mxc_graph *graph,
                                   struct mxc_err *err) MXC_MUST;
void mxc_step_arrays_fini(struct mxc_step_arrays *arrays);
/* Valid until the next build or until a table of the plan changes. */
void mxc_step_arrays_build(struct mxc_step_arrays *arrays, const struct mxc_sched *sched);
/* 3 when a rope of the graph has M-RoPE sections, else 1. */
int32_t mxc_step_axes(const struct mxc_graph *graph);

#endif
