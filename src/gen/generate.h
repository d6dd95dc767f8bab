/* Generate: one request from ids to text events. Ties an engine's token events to the text side:
 * decoding, stop strings, reasoning, EOS ids. Events come on the thread that steps the engine.
 * What a server or a command line adds is only where the events go. */
#ifndef MXC_GEN_GENERATE_H
#define MXC_GEN_GENERATE_H

#include "engine/engine.h"
#include "gen/chat.h"
#include "gen/deltas.h"
#include "gen/pictures.h"

enum mxc_gen_event_kind { MXC_GEN_PROGRESS, MXC_GEN_TEXT, MXC_GEN_DONE };

/* Borrowed for the call. */
struct mxc_gen_event {
    enum mxc_gen_event_kind kind;
    uint64_t request;
    const struct mxc_event *token;  /* PROGRESS, TEXT: the engine's event; NULL for held-back text
                                       that is released at the end */
    struct mxc_str answer, thought; /* TEXT: what became certain, perhaps nothing; valid UTF-8 */
    enum mxc_done_reason reason;    /* DONE; from here on */
    int32_t stop_id;                /* the token that ended it, or -1 */
    int stop;                       /* index of the stop string that ended it, or -1 */
    const struct mxc_err *err;      /* with MXC_DONE_ERROR, else NULL */
    const struct mxc_request_stats *stats;
};
/* Returns false to end the request. Called once with DONE, and never after it. */
typedef bool mxc_gen_event_fn(void *user, const struct mxc_gen_event *event);

struct mxc_gen_params {
    /* event and user are not read; eos_ids NULL: the model's; without DRY breakers, and with DRY,
     * the customary ones (newline, colon, quote, star). */
    struct mxc_request_params request;
    const char *const *stops;
    size_t n_stops;
    bool no_split;            /* reasoning is part of the answer, marks included */
    bool inside;              /* the prompt ended inside an open mark (mxc_prompt_ids.inside) */
    bool keep_special;        /* special tokens are text too */
    const char *const *shown; /* special tokens that are text all the same; static (tools.h) */
    size_t n_shown;
    /* Of the prompt (mxc_pictures_prompt); held until the request is done. NULL: none. */
    struct mxc_pictures *pictures;
    mxc_gen_event_fn *event;
    void *user;
};
/* Greedy, to the end of the context. */
void mxc_gen_params_init(struct mxc_gen_params *params);

/* As mxc_engine_submit; chat must outlive the request. Cancel with mxc_engine_cancel. */
enum mxc_code mxc_gen_submit(struct mxc_engine *engine, const struct mxc_chat *chat,
                             const struct mxc_prompt *prompt, const struct mxc_gen_params *params,
                             uint64_t *id, struct mxc_err *err) MXC_MUST;

/* Token lists for texts that DRY must not reach across: every token that holds one of the texts,
 * and the ids of a text that is no single token. Released with one mxc_mem_free(*lists). */
enum mxc_code mxc_gen_breakers(const struct mxc_tokenizer *tokenizer, int32_t vocab,
                               const char *const *texts, size_t n_texts,
                               struct mxc_token_list **lists, int32_t *n_lists,
                               struct mxc_err *err) MXC_MUST;

#endif
