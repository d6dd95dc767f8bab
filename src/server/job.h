/* Job: the generation of one exchange - its prompts and choices in the engine, the bounded queue
 * from the engine's thread to the HTTP thread, and the format that makes bytes of it.
 *
 *   loop thread: token events -> pieces -> queue, wake
 *   HTTP thread: queue -> pieces -> deltas (text, thought, tool calls) -> format -> bytes
 *
 * An API family is one struct mxc_format. A stream calls begin, then delta and progress as they
 * come, done for every choice, end; a whole reply collects the choices' texts and calls whole.
 * Thread rules: start on a prep worker; format functions on the exchange's HTTP thread, one at a
 * time. Format functions append and check nothing: a failed buffer ends the connection. */
#ifndef MXC_SERVER_JOB_H
#define MXC_SERVER_JOB_H

#include "server/params.h"

struct mxc_job;
struct mxc_constraint;
struct mxc_call_parser;
struct mxc_grammar_state;
struct mxc_reasoning_budget;
struct mxc_jobs;

/* One token of a choice, or a step of its prompt. */
struct mxc_piece {
    struct mxc_piece *next;
    int choice;
    enum { MXC_PIECE_TEXT, MXC_PIECE_PROGRESS, MXC_PIECE_DONE } kind;
    int32_t id;    /* TEXT: the token, -1: text that was held back */
    float logprob; /* when asked for */
    const struct mxc_top_logprob *top;
    int32_t n_top;
    struct mxc_str answer, thought;
    int32_t n_done, n_total, n_cached; /* PROGRESS */
    size_t bytes;
};

struct mxc_call {
    char *id, *name;
    struct mxc_buf arguments;
};

struct mxc_choice {
    struct mxc_job *job;
    int index;  /* in the reply */
    int prompt; /* which prompt it continues */
    /* engine side */
    uint64_t id;
    bool submitted;
    atomic_bool over;
    int slot; /* -1: none yet */
    atomic_int n_prompt_done, n_sampled;
    struct mxc_piece *last; /* DONE, made in advance */
    /* HTTP side */
    bool began, finished;
    enum mxc_done_reason reason;
    int32_t stop_id;
    int stop; /* index of the stop string, -1 */
    struct mxc_err err;
    struct mxc_request_stats stats;
    struct mxc_buf answer, thought;         /* so far; when the job keeps them */
    struct mxc_piece *pieces, **pieces_end; /* with ids; when logprobs or tokens are asked for */
    struct mxc_call *calls;
    size_t n_calls;
    int32_t n_thoughts; /* tokens that had thought in them */
    size_t text_offset; /* /v1/completions: where the next token's text begins */
    /* set by constrain.h */
    struct mxc_call_parser *parser;      /* of tool calls; NULL: none */
    struct mxc_grammar_state *grammar;   /* NULL: none */
    struct mxc_reasoning_budget *budget; /* of tokens of thought; NULL: none */
    struct mxc_logit_filter filter;
    bool enough; /* the one call is complete: the rest is not wanted */
};

enum mxc_delta_kind {
    MXC_DELTA_TEXT,
    MXC_DELTA_THOUGHT,
    MXC_DELTA_CALL,     /* a call begins: call, with id and name */
    MXC_DELTA_ARGUMENTS /* of that call */
};
struct mxc_delta {
    enum mxc_delta_kind kind;
    struct mxc_str text;
    size_t call;
    const char *call_id, *call_name; /* CALL */
    const struct mxc_piece *piece;   /* the first delta of a token has it, others NULL */
};

struct mxc_format {
    const char *id_prefix; /* "chatcmpl-" */
    bool keep_whole;       /* the texts of a stream are collected too */
    void (*begin)(struct mxc_job *job, struct mxc_buf *out);
    void (*progress)(struct mxc_job *job, const struct mxc_choice *c, const struct mxc_piece *p,
                     struct mxc_buf *out); /* may be NULL */
    void (*delta)(struct mxc_job *job, struct mxc_choice *c, const struct mxc_delta *d,
                  struct mxc_buf *out);
    void (*done)(struct mxc_job *job, struct mxc_choice *c, struct mxc_buf *out);
    void (*fault)(struct mxc_job *job, const struct mxc_fault *fault, struct mxc_buf *out);
    void (*end)(struct mxc_job *job, struct mxc_buf *out);
    void (*whole)(struct mxc_job *job, struct mxc_buf *out); /* the body, as JSON */
    void (*free_state)(void *state);                         /* of job->state; may be NULL */
};

struct mxc_job {
    struct mxc_exchange *x;
    const struct mxc_format *format;
    struct mxc_params params;
    struct mxc_constraint *constraint; /* NULL: none */
    void *state;                       /* the format's own */
    char id[64];
    int64_t created; /* Unix time */
    struct mxc_choice *choices;
    int n_choices, n_prompts;
    char **echoes; /* text of the prompts, when it is asked for; [n_prompts] or NULL */
    struct mxc_job_private *private;
};

struct mxc_usage {
    int64_t prompt, cached, generated, reasoning; /* reasoning: tokens of thoughts */
};

struct mxc_job_prompt {
    const int32_t *ids;
    int32_t n_ids;
    bool inside;                   /* the prompt ends inside a thought */
    struct mxc_pictures *pictures; /* that the ids were laid out around; NULL: none */
};

struct mxc_job_start {
    struct mxc_params *params;         /* moved in, also on failure */
    struct mxc_constraint *constraint; /* the same */
    const struct mxc_format *format;
    void *state; /* the same */
    const struct mxc_job_prompt *prompts;
    int n_prompts;
    char **echoes; /* [n_prompts], moved in; NULL: none */
};
/* Submits every choice of every prompt and makes the job the source of x's reply. On failure
 * nothing goes on. 429: the key's cap; MXC_E_BUSY: the engine's queue is full. */
enum mxc_code mxc_job_start(struct mxc_exchange *x, const struct mxc_job_start *start,
                            struct mxc_fault *fault) MXC_MUST;

/* Counts of the choices that are finished. */
void mxc_job_usage(const struct mxc_job *job, struct mxc_usage *usage);
/* "stop", "length", "tool_calls". */
const char *mxc_choice_finish(const struct mxc_choice *c);

/* ---- all jobs of a server */

enum mxc_code mxc_jobs_new(struct mxc_jobs **jobs, struct mxc_err *err) MXC_MUST;
void mxc_jobs_free(struct mxc_jobs *jobs);
/* llama-server's list of slots of a model. NULL: out of memory. */
json_t *mxc_jobs_slots(struct mxc_jobs *jobs, const struct mxc_host_info *info, int model);

#endif
