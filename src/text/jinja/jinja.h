/* Template interpreter: the Jinja2 dialect of Hugging Face chat templates (immutable sandbox,
 * trim_blocks, lstrip_blocks, loop controls, generation blocks,
 * tojson/raise_exception/strftime_now). A template is compiled once and immutable: any number of
 * threads may render it at the same time. Every output byte is known as trusted (template text,
 * constants, declared tokens) or as coming from the caller's variables; the spans say which. */
#ifndef MXC_TEXT_JINJA_JINJA_H
#define MXC_TEXT_JINJA_JINJA_H

#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <time.h>

struct mxc_jinja;

/* A run of output bytes; runs are in order, adjoin, cover the text and alternate in trusted. */
struct mxc_jinja_span {
    size_t offset, length;
    bool trusted;
};

/* A variable whose text the caller vouches for (bos_token, ...): it is defined when the variables
 * lack it, and a variable of that name is trusted only when it is this very text. */
struct mxc_jinja_token {
    const char *name, *text;
};

/* 0 takes the default. */
struct mxc_jinja_options {
    const struct tm *now;    /* the clock of strftime_now; NULL: local time */
    size_t max_output_bytes; /* 16 MiB */
    size_t max_memory_bytes; /* 48 MiB and 8 times the text in the variables */
    uint64_t max_steps;      /* 20 million evaluations or 64-byte pieces of string work */
    size_t max_stack_bytes;  /* 400 KiB of the C stack */
    const struct mxc_jinja_token *tokens;
    size_t n_tokens;
};

struct mxc_jinja_result {
    char *text; /* NUL-terminated UTF-8 */
    size_t length;
    struct mxc_jinja_span *spans; /* NULL when the text is empty */
    size_t n_spans;
};

/* text is UTF-8 of at most 1 MiB. from_json: offer llama.cpp's from_json filter, which Hugging
 * Face lacks. Errors are MXC_E_TEMPLATE "line N: cause" with position N; nesting over the bounds
 * is MXC_E_LIMIT. */
enum mxc_code mxc_jinja_compile(const char *text, size_t length, bool from_json,
                                struct mxc_jinja **jinja, struct mxc_err *err) MXC_MUST;
void mxc_jinja_free(struct mxc_jinja *jinja);

/* vars: an object, read only. Strings and numbers in it are user content, except a "role" that is
 * one of the six well-known names. Errors are MXC_E_TEMPLATE or MXC_E_LIMIT "line N: cause" with
 * position N. Release the result with mxc_jinja_result_fini. */
enum mxc_code mxc_jinja_render(const struct mxc_jinja *jinja, const json_t *vars,
                               const struct mxc_jinja_options *options,
                               struct mxc_jinja_result *result, struct mxc_err *err) MXC_MUST;
void mxc_jinja_result_fini(struct mxc_jinja_result *result);

#endif
