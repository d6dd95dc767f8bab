/* Probe: sequences run by hand on a compiled plan, past the scheduler. Trace, benchmarks and
 * accuracy measurements stand on it. Every sequence has a block table of its own of consecutive
 * blocks; kinds that a window bounds keep all their blocks.
 * Thread rules: the thread that may use the backend. */
#ifndef MXC_ENGINE_PROBE_H
#define MXC_ENGINE_PROBE_H

#include "backend/backend.h"

struct mxc_probe;

/* Room for n_sequences (1 to 1024) of max_tokens (1 to 2^27) each. ops, plan and graph are borrowed
 * until free. */
enum mxc_code mxc_probe_new(const struct mxc_backend_ops *ops, struct mxc_plan *plan,
                            const struct mxc_graph *graph, int32_t n_sequences, int64_t max_tokens,
                            struct mxc_probe **probe, struct mxc_err *err) MXC_MUST;
void mxc_probe_free(struct mxc_probe *probe);

struct mxc_probe_run {
    const int32_t *tokens; /* [n_rows]: the next tokens of the sequences, one after the other */
    int32_t n_rows;        /* a multiple of the number of sequences; each gets an equal share */
    bool all_rows;         /* logits of every row, else of the last row of each sequence */
    bool no_output;        /* no logits at all */
    float *logits;         /* [rows wanted][vocab] */
    mxc_tap_fn *tap;       /* as in struct mxc_out */
    void *tap_user;
};
/* Appends tokens to every sequence and runs one step. n_rows and the rows wanted must be within the
 * plan's limits. MXC_E_CONTEXT: the sequences are full. */
enum mxc_code mxc_probe_step(struct mxc_probe *probe, const struct mxc_probe_run *run,
                             struct mxc_err *err) MXC_MUST;
/* Forgets all tokens; length is what later length-dependent RoPE uses (0: grows with the tokens).
 */
void mxc_probe_reset(struct mxc_probe *probe, int32_t rope_length);

#endif
