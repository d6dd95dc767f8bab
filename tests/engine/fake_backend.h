/* A backend for engine tests. What a row yields is a hash of what it reads through its span's block
 * tables: of every token before it, of their positions, embeddings and RoPE length. A wrong table,
 * a stale block, a lost copy, a cut image: each changes the logits or is counted in `bad`. */
#ifndef MXC_TESTS_FAKE_BACKEND_H
#define MXC_TESTS_FAKE_BACKEND_H

#include "engine/engine.h"

struct fake_model {
    struct mxc_graph graph;
    struct mxc_kv kvs[2];
    struct mxc_rope ropes[1];
    /* knobs */
    uint64_t fail_run_at; /* this run (1 = first) fails; 0: none */
    int32_t nan_token;    /* rows of this token yield NaN; -1: none */
    int tower_pieces;     /* steps that a tower takes; 0: the model has no eye */
    int fail_tower_at;    /* this tower (1 = first) fails in its last step; 0: none */
    enum mxc_code fails;  /* with that code; MXC_OK: MXC_E_BACKEND */
    /* what was seen */
    uint64_t n_runs, n_copies;
    int32_t most_rows, most_spans;
    int32_t last_rows, last_spans, last_out;
    int bad; /* broken contracts */
    int n_states;
    int n_towers, n_live_towers; /* started; not freed */
};

/* What the fake tower makes of a number of its input. */
static inline float fake_feature(float x) {
    return 2 * x + 1;
}

extern const struct mxc_backend_ops fake_backend;
/* full: with a full KV kind; window > 0: with a window kind. */
void fake_model_init(struct fake_model *model, bool full, int32_t window);
struct mxc_engine_target fake_target(struct fake_model *model);
/* Greedy continuation of a prompt, one row at a time, without an engine. */
void fake_reference(struct fake_model *model, const struct mxc_prompt *prompt, int32_t n,
                    int32_t *ids);

/* Collects a request's events; user of sink_event. */
struct sink {
    int32_t ids[4096];
    float logprobs[4096];
    struct mxc_top_logprob top[8];
    int32_t n, n_top, n_progress, last_progress, n_done, stop_after; /* stop_after 0: never */
    enum mxc_done_reason reason;
    int32_t stop_id;
    struct mxc_err err;
    struct mxc_request_stats stats;
    struct mxc_engine *cancel_in; /* cancels itself from inside its first token's event */
};
bool sink_event(void *user, const struct mxc_event *event);

enum { FAKE_VOCAB = 61, FAKE_HIDDEN = 2 };

#endif
