/* Prompt: OpenAI-style messages through the chat template to ids. Control tokens come from the
 * template's own text only, never from what a message says.
 * Thread rules: any number of threads may build prompts for one chat. */
#ifndef MXC_GEN_PROMPT_H
#define MXC_GEN_PROMPT_H

#include "gen/chat.h"
#include "gen/pictures.h"

struct mxc_prompt_input {
    /* Non-empty list of {"role", "content", ...}. content: text, null, or a list of
     * {"type": "text", "text": ...} and pictures. tool_calls may carry arguments as text or as an
     * object. */
    const json_t *messages;
    const json_t *variables; /* more for the template ("tools", ...), an object or NULL; wins */
    bool no_generation_prompt;
    bool continue_final; /* the last message, the assistant's, is the beginning of the answer */
    /* How the model sees; NULL: parts that are pictures are refused. pictures: limits and policy,
     * or NULL. */
    const struct mxc_vision *vision;
    const struct mxc_picture_options *pictures;
};

struct mxc_prompt_ids {
    struct mxc_ids ids;            /* release with mxc_ids_fini; with pictures laid out */
    struct mxc_pictures *pictures; /* NULL: none; release with mxc_pictures_release */
    bool inside;                   /* the prompt leaves the model inside its reasoning marks */
};

/* *out is written on success only. MXC_E_ARG: messages that are malformed (the error names the
 * place); MXC_E_UNSUPPORTED: parts that the model cannot take; MXC_E_TEMPLATE: the template's word.
 */
enum mxc_code mxc_prompt_build(struct mxc_chat *chat, const struct mxc_prompt_input *input,
                               struct mxc_prompt_ids *out, struct mxc_err *err) MXC_MUST;
/* The messages as the template will get them: content as text or as parts, whatever it takes,
 * arguments as objects. *out is owned by the caller (json_decref). */
enum mxc_code mxc_prompt_normalise(struct mxc_chat *chat, const json_t *messages,
                                   const json_t *variables, json_t **out,
                                   struct mxc_err *err) MXC_MUST;
/* Shortens the rendered text of messages (as normalised) to the last place where the final message,
 * the assistant's, stands: what the template puts after a finished message is not there. MXC_E_ARG:
 * it is no such message, or has no text; MXC_E_TEMPLATE: the template does not show it. */
enum mxc_code mxc_prompt_cut_final(const json_t *messages, const char *text, size_t *length,
                                   struct mxc_err *err) MXC_MUST;

#endif
