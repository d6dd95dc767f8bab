/* Anthropic's messages API: reading a request (anthropic_read.c) and writing an answer
 * (anthropic_write.c). The handlers are in api_anthropic.c. */
#ifndef MXC_SERVER_ANTHROPIC_H
#define MXC_SERVER_ANTHROPIC_H

#include "server/dialect.h"

/* The request as a chat request. counting: of /v1/messages/count_tokens, which needs no max_tokens.
 * MXC_E_ARG, MXC_E_UNSUPPORTED name the field. *out on success only; release with
 * mxc_dialect_fini. */
enum mxc_code mxc_anthropic_read(const json_t *json, bool counting, struct mxc_dialect *out,
                                 struct mxc_fault *fault) MXC_MUST;

/* Of one answer; zeroed, in mxc_mem. Moved into the job. */
struct mxc_anthropic_state {
    json_t *stops; /* of the chat request: the params borrow its strings; owned */
    int32_t n_prompt;
    int n_blocks; /* begun */
    bool open;    /* the last one is not ended */
    enum mxc_delta_kind kind;
    size_t call;
    bool failed; /* an error was sent: nothing more */
};
extern const struct mxc_format mxc_anthropic_format;

#endif
