/* Checks: what callers tell a backend, looked at alike by all of them before anything is written or
 * sent: options of plans, steps, blocks of KV stores. What is wrong is an error of the caller
 * (MXC_E_ARG that names it), never a stray read. And what is looked up in a checked step. */
#ifndef MXC_BACKEND_CHECK_H
#define MXC_BACKEND_CHECK_H

#include "backend/backend.h"

/* Precision, and, of a decoder (a tower's rows come with each run), rows, outputs and spans; a
 * decoder's result must be logits of the output rows (MXC_E_UNSUPPORTED). */
enum mxc_code mxc_plan_options_check(const struct mxc_plan_options *options,
                                     const struct mxc_graph *graph, struct mxc_err *err) MXC_MUST;

/* What a plan and a state have room for. */
struct mxc_step_limits {
    const struct mxc_graph *graph;
    int32_t max_rows, max_out, max_spans;
    const int32_t *n_blocks; /* [MXC_N_KV_KINDS] of the state; 0: there is no store of the kind */
};
/* Every array of the step. Sequences and their CROSS stores have at most INT32_MAX / 2 tokens;
 * adapters are MXC_E_UNSUPPORTED. */
enum mxc_code mxc_step_check(const struct mxc_step *step, const struct mxc_out *out,
                             const struct mxc_step_limits *limits, struct mxc_err *err) MXC_MUST;
/* Blocks of a kind that hold a checked span's tokens. */
int32_t mxc_span_blocks(const struct mxc_span *span, int kind);
/* The embedding that replaces a row's, or NULL. */
const float *mxc_step_splice(const struct mxc_step *step, int32_t row);
/* Tokens of the CROSS store that a row sees; false: none, its range is empty. */
bool mxc_step_cross_range(const struct mxc_step *step, int32_t row, int32_t *begin, int32_t *end);

/* Whether a state of n_blocks has that block. */
enum mxc_code mxc_kv_block_check(const int32_t n_blocks[MXC_N_KV_KINDS], enum mxc_kv_kind kind,
                                 int32_t block, struct mxc_err *err) MXC_MUST;
/* The same of what state_put is given (backend.h). */
enum mxc_code mxc_kv_put_check(const int32_t n_blocks[MXC_N_KV_KINDS], const int32_t *blocks,
                               int32_t token0, int32_t n, const float *rows,
                               struct mxc_err *err) MXC_MUST;

#endif
