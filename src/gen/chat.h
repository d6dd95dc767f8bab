/* Chat: what turns messages and text into a model's ids and back - tokeniser, chat template,
 * reasoning marks, end-of-sequence ids - read from a checkpoint without its weights. Immutable
 * after open, but for what it finds out about its template once; any number of threads may use it.
 */
#ifndef MXC_GEN_CHAT_H
#define MXC_GEN_CHAT_H

#include "format/config.h"
#include "gen/reasoning.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

#include <stdatomic.h>

enum { MXC_MAX_CHAT_EOS = 64 };

/* What a template was found to take (0: not yet known, 1: no, 2: yes). */
struct mxc_chat_habits {
    atomic_int text, parts, object_arguments, pictures;
};

struct mxc_chat {
    struct mxc_tokenizer *tokenizer;
    struct mxc_chat_template *templates; /* NULL: none, or one does not compile */
    struct mxc_err template_err;         /* why not */
    char *text, *tool_text; /* of the default template and the one for tools; NULL: none */
    struct mxc_chat_habits habits, tool_habits;
    int32_t bos_id;                          /* -1: none */
    const struct mxc_reasoning_marks *marks; /* NULL: the model does not think aloud */
    int32_t eos_ids[MXC_MAX_CHAT_EOS];       /* union of config, generation_config and tokeniser */
    int32_t n_eos_ids;
};

/* path: a folder with tokenizer.json (and, perhaps, tokenizer_config.json, chat_template.jinja,
 * chat_template.json), or a .gguf file. config: for its EOS ids; NULL: none. vocab: ids at or above
 * it are no EOS ids; 0: no limit. A template that does not compile is no error here, but for those
 * who use it. */
enum mxc_code mxc_chat_open(const char *path, const struct mxc_config *config, int32_t vocab,
                            struct mxc_chat **chat, struct mxc_err *err) MXC_MUST;
/* From parts: takes the tokeniser (NULL: none, then only render works) in, copies the template. */
enum mxc_code mxc_chat_new(struct mxc_tokenizer *tokenizer, const char *template_text,
                           struct mxc_chat **chat, struct mxc_err *err) MXC_MUST;
void mxc_chat_close(struct mxc_chat *chat); /* NULL is fine */

/* Renders the template with an object of variables as they are; bos_token and the like are defined
 * when the variables lack them. options: clock and bounds, or NULL. MXC_E_TEMPLATE: no template,
 * one that does not compile, or it raised. Release the result with mxc_jinja_result_fini. */
enum mxc_code mxc_chat_render(const struct mxc_chat *chat, const json_t *variables,
                              const struct mxc_jinja_options *options,
                              struct mxc_jinja_result *result, struct mxc_err *err) MXC_MUST;
/* Ids of text as it is, appended. With add_special a BOS written in the text is not doubled. */
enum mxc_code mxc_chat_text(const struct mxc_chat *chat, const char *text, size_t length,
                            struct mxc_encode_options options, struct mxc_ids *ids,
                            struct mxc_err *err) MXC_MUST;

#endif
