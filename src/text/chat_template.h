/* Chat template: the template of a model, compiled once, immutable, usable by several threads.
 * The caller hands in the template texts and the special tokens (this folder reads no model files)
 * and renders objects of variables to text with trusted and user spans. */
#ifndef MXC_TEXT_CHAT_TEMPLATE_H
#define MXC_TEXT_CHAT_TEMPLATE_H

#include "text/jinja/jinja.h"

struct mxc_chat_template;

/* name: "default", "tool_use", ... or NULL for the only one. */
struct mxc_chat_template_source {
    const char *name;
    const char *text;
    size_t length;
};

/* Compiles every source; tokens ("bos_token", ...) are copied. The default is the one named
 * "default", else the first. from_json: offer llama.cpp's filter of that name. Errors are
 * MXC_E_TEMPLATE or MXC_E_LIMIT and name the template, the line and the cause. */
enum mxc_code mxc_chat_template_new(const struct mxc_chat_template_source *sources,
                                    size_t n_sources, const struct mxc_jinja_token *tokens,
                                    size_t n_tokens, bool from_json,
                                    struct mxc_chat_template **chat, struct mxc_err *err) MXC_MUST;
void mxc_chat_template_free(struct mxc_chat_template *chat);

/* Renders vars (messages, tools, add_generation_prompt, any others; tokens are filled in). Which
 * template: name, or with NULL the one named "tool_use" when vars holds a non-empty "tools" and
 * there is one, else the default. options may be NULL; its tokens are ignored. As in
 * mxc_jinja_render otherwise. */
enum mxc_code mxc_chat_template_render(const struct mxc_chat_template *chat, const char *name,
                                       const json_t *vars, const struct mxc_jinja_options *options,
                                       struct mxc_jinja_result *result,
                                       struct mxc_err *err) MXC_MUST;

/* "2026-11-30T12:34:56" to a clock for the options. MXC_E_USAGE when it is no such date. */
enum mxc_code mxc_chat_template_clock(const char *text, struct tm *now,
                                      struct mxc_err *err) MXC_MUST;

#endif
