/* How long a model may think: what a request says of it (effort, budget, on or off) as variables of
 * the template and a number of tokens, and the logit filter that closes a thought at that number.
 * Thread rules: mxc_thinking is the caller's; a budget belongs to one request, and is used on the
 * engine thread while that runs. */
#ifndef MXC_GEN_BUDGET_H
#define MXC_GEN_BUDGET_H

#include "engine/sampling.h"
#include "gen/chat.h"

/* Fields of a request; each may be NULL or JSON null. */
struct mxc_thinking_request {
    const json_t
        *effort; /* reasoning_effort: "none", "minimal", "low", "medium", "high", "xhigh" */
    const json_t *thinking; /* {"type": "enabled" or "disabled", "budget_tokens"} */
    const json_t *enable;   /* enable_thinking */
    const json_t *kwargs;   /* chat_template_kwargs: variables as they are; these win */
    int64_t budget;         /* of the server or a field thinking_budget; -1: none */
};
struct mxc_thinking {
    json_t *variables; /* an object; owned (json_decref) */
    int32_t budget;    /* tokens of thought; -1: no bound */
};
/* An effort is the template's affair when its text speaks of reasoning_effort; else it is a budget
 * of 256 (minimal), 1024 (low) or 4096 (medium) tokens, or none (high). "none", "disabled" and
 * false switch thoughts off, by the variables enable_thinking and thinking, and by a budget of 0. A
 * budget that is given wins over an effort. MXC_E_ARG names the field. *out on success only. */
enum mxc_code mxc_thinking_read(const struct mxc_chat *chat,
                                const struct mxc_thinking_request *request,
                                struct mxc_thinking *out, struct mxc_err *err) MXC_MUST;

struct mxc_reasoning_budget_options {
    const struct mxc_tokenizer *tokenizer;
    const struct mxc_reasoning_marks *marks; /* NULL: there are no thoughts */
    bool inside;         /* the prompt ended inside an open mark (mxc_prompt_ids.inside) */
    int32_t budget;      /* tokens of thought, -1: no bound; once used up, no mark opens */
    const char *message; /* said before a thought is cut off; NULL: nothing */
    /* The filter of the answer (a grammar), or all NULL. It sees no token of a thought, and may
     * therefore hold from the first token of the answer; but with channels it sees all tokens. */
    struct mxc_logit_filter answer;
};
struct mxc_reasoning_budget;
/* Tokeniser and marks must outlive it. */
enum mxc_code mxc_reasoning_budget_new(const struct mxc_reasoning_budget_options *options,
                                       struct mxc_reasoning_budget **out,
                                       struct mxc_err *err) MXC_MUST;
void mxc_reasoning_budget_free(struct mxc_reasoning_budget *budget); /* NULL is fine */
struct mxc_logit_filter mxc_reasoning_budget_filter(struct mxc_reasoning_budget *budget);
/* Tokens inside thoughts so far, the closing mark's included. */
int64_t mxc_reasoning_budget_used(const struct mxc_reasoning_budget *budget);

#endif
