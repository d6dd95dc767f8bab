/* Engine: continuous batching over one plan. Requests go in from any thread, token events come out
 * on the thread that steps the engine. It knows tokens, block tables and logits: no text, no
 * families.
 *
 * One call of mxc_engine_step drains the inbox, schedules, runs the plan once, samples and emits.
 * What a request generates does not depend on other requests: its sampler is its own, and the
 * backend's rows do not depend on their neighbours. Scheduling is a function of the order of
 * arrival: a step first takes one row of every sequence that decodes, then prompt rows up to a
 * limit; when blocks run out the youngest sequence gives its blocks up and is recomputed later.
 * A step that fails ends the requests that had rows in it; a device that is lost ends the engine.
 *
 * Thread rules: submit, cancel and stats from any thread, also from inside an event; all else from
 * the one thread that steps (see thread.h for a thread that does). */
#ifndef MXC_ENGINE_ENGINE_H
#define MXC_ENGINE_ENGINE_H

#include "backend/backend.h"
#include "base/blake2b.h"
#include "engine/sample.h"

#include <stdbool.h>

enum { MXC_MAX_STOP_IDS = 256, MXC_MAX_TOP_LOGPROBS = 128, MXC_MAX_PICTURES = 256 };

/* ---- requests */

/* Rows of a prompt whose embeddings are given: row i of the run is prompt token row0 + i. */
struct mxc_embed_run {
    int32_t row0, n_rows;
    const float *rows;  /* [n_rows][1 + n_levels][hidden], borrowed until the request's DONE event;
                           NULL: rows feature0.. of a picture of the prompt */
    uint8_t digest[32]; /* of the content and of everything done to it: the cache's key */
    int32_t picture, feature0;
};

/* A picture of a prompt. The tower sees it before the prompt is worked off, unless its features are
 * kept from an earlier request. */
struct mxc_prompt_picture {
    const struct mxc_tower_input *input; /* borrowed until the request's DONE event */
    uint8_t digest[32];
    int32_t n_rows; /* that the tower gives */
};

/* All arrays but embedding rows are copied by submit. */
struct mxc_prompt {
    const int32_t *tokens;
    int32_t n_tokens;
    const int32_t *positions; /* [3][n_tokens] for M-RoPE; NULL: token number on every axis */
    int32_t rope_delta;       /* position of a generated token = its number + rope_delta */
    const int32_t *row_end;   /* [n_tokens] a row sees keys < row_end, > its number; NULL: causal */
    const struct mxc_embed_run *embeds; /* ascending, not overlapping */
    int32_t n_embeds;
    const struct mxc_prompt_picture *pictures;
    int32_t n_pictures;
    /* Models with cross attention: [2][n_tokens] tokens of the CROSS store that a row sees;
     * generated tokens see what the last row does. The runs fill the store from token 0 on (row0
     * counts its tokens), without gaps. NULL: pictures are embedded. */
    const int32_t *cross_range;
    const struct mxc_embed_run *cross_runs;
    int32_t n_cross_runs;
    int32_t adapter;     /* -1: none */
    uint64_t cache_salt; /* requests with another salt share no cached blocks */
};

enum mxc_event_kind { MXC_EVENT_PROGRESS, MXC_EVENT_TOKEN, MXC_EVENT_ROWS, MXC_EVENT_DONE };
enum mxc_done_reason {
    MXC_DONE_STOP,   /* an end-of-sequence or stop token (stop_id), or the receiver said so (-1) */
    MXC_DONE_LENGTH, /* max_tokens, the context, or the KV pool is used up */
    MXC_DONE_CANCELLED,
    MXC_DONE_ERROR
};

struct mxc_request_stats {
    int32_t n_prompt, n_cached; /* n_cached: prompt tokens taken from the prefix cache */
    int32_t n_generated;        /* sampled tokens, a stop token included */
    int32_t n_preempted;
    int32_t n_kept; /* tokens, from the first, whose KV is in the prefix cache at the end */
    uint8_t kept[MXC_BLAKE2B_BYTES];          /* their digest, for mxc_engine_kept_record */
    uint64_t queue_ns, prefill_ns, decode_ns; /* to admission, to the first token, to the end */
};

/* Borrowed for the call. */
struct mxc_event {
    enum mxc_event_kind kind;
    uint64_t request;
    int32_t n_done, n_total; /* PROGRESS: prompt tokens in KV, cached ones included */
    int32_t n_cached;        /* PROGRESS */
    int32_t id, index;       /* TOKEN; stop tokens are not reported. index counts from 0 */
    int32_t row0, n_rows;    /* ROWS: prompt rows [row0, row0 + n_rows), in order; after a
                                preemption they come again, from row 0 */
    const float *rows;       /* ROWS: [n_rows][hidden], the last hidden rows */
    float logprob;           /* TOKEN, when asked for: of the raw logits, finite */
    const struct mxc_top_logprob *top;
    int32_t n_top;
    enum mxc_done_reason reason;           /* DONE */
    int32_t stop_id;                       /* DONE: the token that ended it, or -1 */
    const struct mxc_err *err;             /* DONE with MXC_DONE_ERROR, else NULL */
    const struct mxc_request_stats *stats; /* DONE */
};
/* Returns false to end the request now (DONE with MXC_DONE_STOP follows, unless it was that).
 * Called once with DONE for every submitted request, and never after it. */
typedef bool mxc_event_fn(void *user, const struct mxc_event *event);

struct mxc_request_params {
    struct mxc_sampling sampling;
    int32_t max_tokens;     /* -1: to the end of the context; 0: prefill only */
    const int32_t *eos_ids; /* not honoured with ignore_eos */
    int32_t n_eos_ids;
    bool ignore_eos;
    const int32_t *stop_ids; /* always honoured */
    int32_t n_stop_ids;
    int32_t n_logprobs;   /* -1: none; 0: of the token; n: and of the n likeliest */
    bool no_cache;        /* neither reads nor fills the prefix cache */
    bool progress;        /* PROGRESS events while the prompt is worked off */
    bool rows;            /* ROWS events of the whole prompt, no tokens (max_tokens must be 0, the
                             cache is not used): what graphs with hidden_out do, and only they */
    int32_t priority;     /* higher goes first */
    uint64_t group;       /* requests of one group (not 0) with equal prompts prefill once */
    uint64_t deadline_ns; /* on the engine's clock; 0: none. Late is MXC_E_LIMIT */
    mxc_event_fn *event;
    void *user;
};
/* Greedy (temperature 0), max_tokens -1, no logprobs. */
void mxc_request_params_init(struct mxc_request_params *params);

/* ---- engine */

struct mxc_engine_target {
    const struct mxc_backend_ops *ops;
    struct mxc_plan *plan;         /* compiled for at least max_rows, max_batch out and spans */
    const struct mxc_graph *graph; /* both outlive the engine */
    struct mxc_plan *tower;        /* the model's eye, or NULL; and its graph */
    const struct mxc_graph *tower_graph;
    const struct mxc_backend_ops *tower_ops; /* of the eye's backend; NULL: ops */
    /* Another eye, asked for once, on the stepping thread, when the first one's backend could not
     * run it (why); what it gives outlives the engine. NULL: there is none. */
    enum mxc_code (*spare_tower)(void *user, const struct mxc_err *why,
                                 const struct mxc_backend_ops **ops, struct mxc_plan **plan,
                                 struct mxc_err *err);
    void *spare_user;
    bool admit_whole; /* a request whose prompt and max_tokens exceed the context together is
                         refused, not cut short */
};

struct mxc_engine_options {
    int32_t max_rows;     /* rows of a step; > max_batch */
    int32_t max_batch;    /* sequences in flight */
    int32_t max_prefills; /* of them, working off a prompt at once */
    int32_t prefill_rows; /* most prompt rows of a step in which others decode */
    double stall;         /* such a step takes about this many times as long as one without prompt
                             rows, at most, if that leaves a few rows; 0: no such limit */
    int32_t max_queue;    /* requests that wait; more is MXC_E_BUSY */
    int32_t context;      /* tokens of a sequence, prompt and answer */
    int32_t n_blocks[MXC_N_KV_KINDS];
    size_t feature_bytes;    /* pictures' features that are kept */
    uint64_t (*clock)(void); /* NULL: mxc_clock_ns */
    /* Called after a submit or cancel, on the caller's thread. May be NULL. */
    void (*wake)(void *user);
    void *wake_user;
    /* Called once, on the stepping thread, when a backend says MXC_E_DEVICE_LOST: all requests are
     * about to end with that error, submit refuses others with it, and there is nothing to step any
     * more. May be NULL. */
    void (*lost)(void *user, const struct mxc_err *err);
    void *lost_user;
};
/* 512 rows, batch 16, 4 prefills, 256 prefill rows, stall 2.2, queue 64, context 4096, 256 MiB of
 * features, no blocks. */
void mxc_engine_options_init(struct mxc_engine_options *options);
/* Blocks for n_sequences sequences of `context` tokens each, for every KV kind of the graph. */
void mxc_engine_blocks_for(const struct mxc_graph *graph, int32_t context, int32_t n_sequences,
                           int32_t max_rows, int32_t n_blocks[MXC_N_KV_KINDS]);

struct mxc_engine_stats {
    int32_t n_queued, n_running;
    int32_t n_blocks[MXC_N_KV_KINDS], n_free[MXC_N_KV_KINDS], n_idle[MXC_N_KV_KINDS];
    uint64_t n_requests, n_steps, n_rows, n_generated, n_preempted, n_failed_steps;
    uint64_t n_lookup_tokens, n_hit_tokens, n_evicted; /* prefix cache */
    uint64_t n_feature_hits, n_feature_misses, feature_bytes;
    uint64_t n_shelf_in, n_shelf_out; /* blocks from the shelf, and to it */
};

struct mxc_engine;
enum mxc_code mxc_engine_new(const struct mxc_engine_target *target,
                             const struct mxc_engine_options *options, struct mxc_engine **engine,
                             struct mxc_err *err) MXC_MUST;
/* Ends what is in flight with MXC_DONE_CANCELLED. */
void mxc_engine_free(struct mxc_engine *engine);

/* Checks everything that can be checked, copies, and queues. *id is never 0. MXC_E_CONTEXT: the
 * prompt does not fit the context or the KV pool (the message has both numbers), or, where the
 * target admits whole requests only, prompt and max_tokens do not (all three); MXC_E_BUSY: the
 * queue is full; MXC_E_UNSUPPORTED: rows of a model with logits, or tokens of one without;
 * MXC_E_ARG: a value out of range; MXC_E_DEVICE_LOST: see the options. No event comes for a refused
 * request. */
enum mxc_code mxc_engine_submit(struct mxc_engine *engine, const struct mxc_prompt *prompt,
                                const struct mxc_request_params *params, uint64_t *id,
                                struct mxc_err *err) MXC_MUST;
/* Asks for an early end, at the next step; unknown ids are ignored. Never fails. */
void mxc_engine_cancel(struct mxc_engine *engine, uint64_t id);
/* One round. Returns whether there is more to do. */
bool mxc_engine_step(struct mxc_engine *engine);
bool mxc_engine_has_work(struct mxc_engine *engine);
/* Its device was lost: it takes no request and never has work. On the stepping thread. */
bool mxc_engine_is_lost(const struct mxc_engine *engine);
/* Ids are below it. Fixed: from any thread. */
int32_t mxc_engine_vocab(const struct mxc_engine *engine);
/* A snapshot from the end of the last step; the queue counts are current. */
void mxc_engine_get_stats(struct mxc_engine *engine, struct mxc_engine_stats *stats);
/* Forgets all cached prefixes that no request uses. */
void mxc_engine_clear_cache(struct mxc_engine *engine);

/* ---- KV outside the engine (shelf.h); on the stepping thread */

struct mxc_shelf;
/* Borrowed until another one, or NULL for none, is set. Without effect when the backend cannot take
 * KV out and in. */
void mxc_engine_set_shelf(struct mxc_engine *engine, const struct mxc_shelf *shelf);
/* Puts what waits, as much as the shelf takes now. Returns whether something is left. */
bool mxc_engine_shelve(struct mxc_engine *engine);
/* Block `number` (from 0) of the cached prefix with that digest as a record (shelf.h; mxc_mem, not
 * sealed). MXC_E_NOT_FOUND: the prefix is not there (any more), or ends before it. */
enum mxc_code mxc_engine_kept_record(struct mxc_engine *engine,
                                     const uint8_t digest[MXC_BLAKE2B_BYTES], int32_t number,
                                     uint8_t **record, size_t *n_bytes,
                                     struct mxc_err *err) MXC_MUST;
/* A checked record becomes a block of the cache. MXC_E_NOT_FOUND: the one before it is not there;
 * MXC_E_LIMIT: no room; MXC_E_FORMAT: it does not fit the model. */
enum mxc_code mxc_engine_adopt(struct mxc_engine *engine, const uint8_t *record,
                               struct mxc_err *err) MXC_MUST;
/* Forgets a prefix, on the shelf too, as far as nobody else's goes the same way. Returns how many
 * tokens went. */
int32_t mxc_engine_forget(struct mxc_engine *engine, const uint8_t digest[MXC_BLAKE2B_BYTES]);

#endif
