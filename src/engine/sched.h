/* Scheduler: which rows of which requests make the next step. Deterministic in the order of
 * arrival (ids) and priorities. Owns the queue, the running set and the blocks.
 * Thread rules: the stepping thread only. */
#ifndef MXC_ENGINE_SCHED_H
#define MXC_ENGINE_SCHED_H

#include "engine/pace.h"
#include "engine/request.h"

struct mxc_sched_item {
    struct mxc_request *request;
    int32_t n_rows; /* rows table.n_tokens .. + n_rows of it */
    bool out;       /* the last row's logits are wanted */
};

struct mxc_sched {
    struct mxc_engine_options options;
    struct mxc_blocks blocks;
    /* Both sorted by rank: higher priority, then lower id. */
    struct mxc_request **queue, **running;
    int32_t n_queue, n_running, max_queue;
    struct mxc_sched_item *items; /* [max_batch] the plan */
    int32_t n_items, n_rows, n_out;
    int32_t n_decoders; /* items that are one row of a sequence that generates; they come first */
    struct mxc_pace pace;
    uint64_t n_preempted;
};

/* max_queue: room for the inbox's limit and preempted requests. */
enum mxc_code mxc_sched_init(struct mxc_sched *sched, const struct mxc_engine_options *options,
                             const struct mxc_blocks_options *blocks, struct mxc_err *err) MXC_MUST;
void mxc_sched_fini(struct mxc_sched *sched);
void mxc_sched_queue(struct mxc_sched *sched, struct mxc_request *request);
/* Takes a request out of the queue or the running set; its blocks go back. */
void mxc_sched_remove(struct mxc_sched *sched, struct mxc_request *request);
/* Fills items (none: nothing to do). Blocks for their rows are in place. */
void mxc_sched_plan(struct mxc_sched *sched, uint64_t now_ns);

#endif
