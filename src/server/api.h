/* API: the handlers of all routes, one file per family (surface.def is the table), and what they
 * share: prompts, token texts, usage. */
#ifndef MXC_SERVER_API_H
#define MXC_SERVER_API_H

#include "server/constrain.h"
#include "server/internal.h"
#include "server/job.h"

/* ---- api_info.c */
enum mxc_code mxc_get_health(struct mxc_exchange *x, struct mxc_fault *fault);
enum mxc_code mxc_get_metrics(struct mxc_exchange *x, struct mxc_fault *fault);
enum mxc_code mxc_get_models(struct mxc_exchange *x, struct mxc_fault *fault);
enum mxc_code mxc_get_model(struct mxc_exchange *x, struct mxc_fault *fault);
enum mxc_code mxc_get_props(struct mxc_exchange *x, struct mxc_fault *fault);
enum mxc_code mxc_get_slots(struct mxc_exchange *x, struct mxc_fault *fault);
enum mxc_code mxc_get_lora(struct mxc_exchange *x, struct mxc_fault *fault);
/* The model that ?model= names, else the first one; READY. */
enum mxc_code mxc_model_of_query(struct mxc_exchange *x, struct mxc_host_info *info, int *model,
                                 struct mxc_fault *fault) MXC_MUST;
/* ---- slots.c */
enum mxc_code mxc_post_slot(struct mxc_exchange *x, struct mxc_fault *fault);
/* ---- page/page.c */
enum mxc_code mxc_get_page(struct mxc_exchange *x, struct mxc_fault *fault);
enum mxc_code mxc_get_page_file(struct mxc_exchange *x, struct mxc_fault *fault);
/* ---- api_embeddings.c */
enum mxc_code mxc_post_embeddings(struct mxc_exchange *x, struct mxc_fault *fault);
enum mxc_code mxc_post_embedding(struct mxc_exchange *x, struct mxc_fault *fault);
/* ---- openapi.c */
enum mxc_code mxc_get_openapi(struct mxc_exchange *x, struct mxc_fault *fault);
/* ---- api_chat.c, api_completions.c */
enum mxc_code mxc_post_chat(struct mxc_exchange *x, struct mxc_fault *fault);
enum mxc_code mxc_post_completions(struct mxc_exchange *x, struct mxc_fault *fault);
/* ---- api_responses.c */
enum mxc_code mxc_post_responses(struct mxc_exchange *x, struct mxc_fault *fault);
enum mxc_code mxc_count_response_tokens(struct mxc_exchange *x, struct mxc_fault *fault);
enum mxc_code mxc_get_response(struct mxc_exchange *x, struct mxc_fault *fault);
enum mxc_code mxc_delete_response(struct mxc_exchange *x, struct mxc_fault *fault);
enum mxc_code mxc_cancel_response(struct mxc_exchange *x, struct mxc_fault *fault);
enum mxc_code mxc_get_response_items(struct mxc_exchange *x, struct mxc_fault *fault);
/* ---- api_anthropic.c */
enum mxc_code mxc_post_messages(struct mxc_exchange *x, struct mxc_fault *fault);
enum mxc_code mxc_post_count_tokens(struct mxc_exchange *x, struct mxc_fault *fault);
/* ---- api_llama.c */
enum mxc_code mxc_post_completion(struct mxc_exchange *x, struct mxc_fault *fault);
enum mxc_code mxc_post_infill(struct mxc_exchange *x, struct mxc_fault *fault);
enum mxc_code mxc_post_tokenize(struct mxc_exchange *x, struct mxc_fault *fault);
enum mxc_code mxc_post_detokenize(struct mxc_exchange *x, struct mxc_fault *fault);
enum mxc_code mxc_post_apply_template(struct mxc_exchange *x, struct mxc_fault *fault);

/* ---- shared: prompts.c */

/* Prompts of a request that are token ids or text. */
struct mxc_prompts {
    struct mxc_job_prompt *items; /* ids and pictures owned */
    int n;
    char **echoes; /* the prompts' text, when asked for; take it by setting NULL */
};
void mxc_prompts_fini(struct mxc_prompts *prompts);
/* The field "prompt": text, ids, a list of these (one prompt each) or, when mixed, one list of text
 * and ids that is one prompt. */
enum mxc_code mxc_prompts_read(const json_t *json, const struct mxc_params *params, bool echo,
                               bool mixed, struct mxc_prompts *out,
                               struct mxc_fault *fault) MXC_MUST;
/* Text that cannot fit the context, whatever its tokens are, is refused before the tokeniser spends
 * seconds on it. */
enum mxc_code mxc_prompts_check_bytes(const struct mxc_params *params, size_t bytes,
                                      const char *param, struct mxc_fault *fault) MXC_MUST;
/* Takes the ids of one prompt in. */
enum mxc_code mxc_prompts_one(struct mxc_ids *ids, bool inside, struct mxc_prompts *out,
                              struct mxc_fault *fault) MXC_MUST;

/* What a chat request says to the template. Borrowed from the JSON but for variables. */
struct mxc_chat_input {
    const json_t *messages;
    json_t *variables; /* owned */
    bool no_generation_prompt, continue_final, no_split;
    int32_t budget; /* tokens of thought, -1: no bound; for mxc_constraint_budget */
};
enum mxc_code mxc_chat_input_read(const struct mxc_exchange *x, const json_t *json,
                                  const struct mxc_chat *chat,
                                  const struct mxc_constraint *constraint,
                                  struct mxc_chat_input *out, struct mxc_fault *fault) MXC_MUST;
/* The prompt of the messages. */
enum mxc_code mxc_chat_input_build(const struct mxc_params *params,
                                   const struct mxc_chat_input *input, struct mxc_prompts *out,
                                   struct mxc_fault *fault) MXC_MUST;

/* ---- shared: tokens.c */

/* Text of a token as JSON, bytes that are no UTF-8 as U+FFFD. */
void mxc_put_token(struct mxc_buf *out, const struct mxc_chat *chat, int32_t id);
/* The token's bytes as a JSON list of numbers. */
void mxc_put_token_bytes(struct mxc_buf *out, const struct mxc_chat *chat, int32_t id);
/* "token":...,"logprob":...,"bytes":[...] of OpenAI's chat, without braces. */
void mxc_put_logprob(struct mxc_buf *out, const struct mxc_chat *chat, int32_t id, float logprob);
/* One entry of OpenAI's chat logprobs, with "top_logprobs". */
void mxc_put_logprobs(struct mxc_buf *out, const struct mxc_chat *chat,
                      const struct mxc_piece *piece);
/* {"prompt_tokens":...} of OpenAI. */
void mxc_put_usage(struct mxc_buf *out, const struct mxc_job *job);
/* llama-server's {"prompt_n":...} of a choice. */
void mxc_put_timings(struct mxc_buf *out, const struct mxc_choice *c);

#endif
