/* Answer: sends one request to an engine and prints what comes back. Shared by run and generate. */
#ifndef MXC_CLI_ANSWER_H
#define MXC_CLI_ANSWER_H

#include "base/buf.h"
#include "mlxcel.h"

struct mxc_answer_options {
    bool show_reasoning, json, stats;
    bool quiet; /* nothing is printed while it streams */
};

struct mxc_answer {
    struct mxc_buf text, reasoning; /* whole */
    mlxcel_finish finish;
    int64_t n_prompt, n_cached, n_generated;
    double queue_seconds, prompt_seconds, generate_seconds;
};

void mxc_answer_init(struct mxc_answer *answer);
void mxc_answer_fini(struct mxc_answer *answer);
/* Streams to standard output; Ctrl-C cancels the request. 0 or an exit status after a message. */
int mxc_answer_run(struct mlxcel_engine *engine, const struct mlxcel_request *request,
                   const struct mxc_answer_options *options, struct mxc_answer *answer);
/* The line of figures, on standard error. */
void mxc_answer_stats(const struct mlxcel_model *model, const struct mxc_answer *answer);
/* The answer as one JSON object, on standard output. 0 or an exit status. */
int mxc_answer_json(const struct mlxcel_model *model, const struct mxc_answer *answer);

#endif
