/* Request: everything the engine knows about one sequence. Made on the submitting thread, then
 * owned by the stepping thread; only `cancelled` is written by others.
 * A request is in one of: the inbox, the queue, the running set (see engine.c, sched.c). */
#ifndef MXC_ENGINE_REQUEST_H
#define MXC_ENGINE_REQUEST_H

#include "engine/blocks.h"
#include "engine/engine.h"

#include <stdatomic.h>

struct mxc_request {
    uint64_t id;                   /* grows with arrival */
    struct mxc_request *next_live; /* list of all requests not done (engine's mutex) */
    struct mxc_request *next_inbox;
    atomic_bool cancelled;

    struct mxc_request_params params; /* arrays owned */
    struct mxc_embed_run *embeds;
    int32_t n_embeds;
    struct mxc_request_picture {
        const struct mxc_tower_input *input;
        uint8_t digest[32];
        int32_t n_rows, width;
        struct mxc_feature *feature; /* NULL: not seen yet */
    } * pictures;
    int32_t n_pictures;
    bool seen;            /* all pictures have features (or there is none) */
    int32_t *cross_range; /* [2][n_prompt], or NULL */
    struct mxc_embed_run *cross_runs;
    int32_t n_cross_runs;
    int32_t cross_tokens;         /* of the CROSS store */
    bool cross_written;           /* the store holds the features */
    int32_t *positions, *row_end; /* of the prompt, or NULL */
    int32_t *reach;               /* [n_prompt] max of row_end[0..i]; with row_end */
    int32_t rope_delta, rope_length, adapter;
    uint64_t cache_salt;

    int32_t *tokens; /* [limit] prompt, then answer */
    int32_t n_prompt, n_tokens;
    int32_t limit; /* n_tokens ends here */
    struct mxc_table table;
    struct mxc_sampler sampler;
    struct mxc_top_logprob *top;

    bool fetched;            /* what the shelf has of its prompt is in the prefix cache */
    int32_t n_fetched;       /* blocks that it took from there */
    bool running, scheduled; /* scheduled: has rows in the step being planned */
    int32_t n_reported;      /* prompt tokens of the last PROGRESS event: it never goes back */
    struct mxc_request_stats stats;
    uint64_t submit_ns, admit_ns, first_ns;
};

struct mxc_request_limits {
    int32_t context, max_group_rows, vocab;
    int32_t table_rows;    /* of the embedding: tokens of a prompt are below it; >= vocab */
    int32_t feature_width; /* of the tower's rows; 0: the model does not see */
    int32_t cross_tokens;  /* that the CROSS pool holds; 0: pictures are embedded */
    bool admit_whole;      /* prompt and max_tokens must fit the context together */
};

/* Validates and copies; see mxc_engine_submit. */
enum mxc_code mxc_request_new(const struct mxc_request_limits *limits,
                              const struct mxc_graph *graph, const struct mxc_blocks *blocks,
                              const struct mxc_prompt *prompt,
                              const struct mxc_request_params *params, struct mxc_request **request,
                              struct mxc_err *err) MXC_MUST;
/* The table must have been released. NULL is fine. */
void mxc_request_free(struct mxc_request *request);

/* Rows still to run before a token can be sampled; 1 while it decodes. */
static inline int32_t mxc_request_pending(const struct mxc_request *r) {
    return r->n_tokens - r->table.n_tokens;
}
/* Position of token i on an axis. */
int32_t mxc_request_position(const struct mxc_request *request, int32_t i, int axis);
/* Whether rows may be cut before token n. */
bool mxc_request_may_cut(const struct mxc_request *request, int32_t n);
/* Keys of its blocks, for the prefix cache. */
struct mxc_block_source mxc_request_source(struct mxc_request *request);
/* Whether two requests have the same prompt, to the last bit that matters to KV. */
bool mxc_request_same_prompt(const struct mxc_request *a, const struct mxc_request *b);
/* Embedding of a prompt row, or NULL; width: numbers of a spliced row. */
const float *mxc_request_embedding(const struct mxc_request *request, int32_t row, int32_t width);
/* Tokens of the CROSS store that token i sees: *begin, *end; equal when it sees none. */
void mxc_request_cross(const struct mxc_request *request, int32_t i, int32_t *begin, int32_t *end);

#endif
