/* Tools: what a request may call, how a model writes a call, and the way back from its text to
 * calls. Four parts, each usable alone:
 *   1. mxc_tools: the request's `tools`, `tool_choice` and `parallel_tool_calls`, checked.
 *   2. mxc_tool_shape: the wire shape that a model was trained on, found in its chat template.
 *   3. mxc_tool_parser: streamed answer text to events (text, call begins, arguments, call ends).
 *   4. mxc_tools_grammar: the shape with the tools' schemas in it, as a grammar that enforces
 * calls. A server: mxc_tools_read; mxc_tool_shape_of; the variables "tools" =
 * mxc_tools_for_template to mxc_prompt_build; mxc_gen_params.shown = the shape's; every answer
 * delta (not thoughts) into mxc_tool_parser_push; mxc_tool_parser_finish on DONE. Thread rules:
 * mxc_tools is immutable after read; a parser belongs to one answer and one thread.
 */
#ifndef MXC_GEN_TOOLS_TOOLS_H
#define MXC_GEN_TOOLS_TOOLS_H

#include "base/buf.h"
#include "base/json.h"
#include "base/str.h"
#include "engine/rng.h"
#include "gen/chat.h"
#include "gen/grammar/grammar.h"

enum { MXC_MAX_TOOLS = 1024, MXC_MAX_TOOL_NAME = 128, MXC_TOOL_ID_BYTES = 32 };

/* ---- 1. what may be called */

enum mxc_tool_choice {
    MXC_TOOLS_NONE,     /* no parser, and the template sees no tools */
    MXC_TOOLS_AUTO,     /* the model decides */
    MXC_TOOLS_REQUIRED, /* at least one call */
    MXC_TOOLS_NAMED     /* exactly one call, of items[named] */
};

struct mxc_tool {
    const char *name;         /* 1 to MXC_MAX_TOOL_NAME of [A-Za-z0-9_.-], unique */
    const json_t *parameters; /* a JSON schema of type object; never NULL */
    bool strict;              /* arguments must keep to the schema */
};

struct mxc_tools {
    json_t *list; /* [{"type": "function", "function": {...}}], complete; owned */
    struct mxc_tool *items;
    size_t n;
    enum mxc_tool_choice choice; /* NONE when there are no tools */
    size_t named;
    bool parallel; /* more than one call in an answer; false with NAMED */
};

/* tools: a list of {"type": "function", "function": {"name", "description", "parameters",
 * "strict"}}, also without the inner object; choice: "auto", "none", "required", {"type":
 * "function", "function": {"name"}} or {"type": "function", "name"}; parallel: a boolean. Each may
 * be NULL or JSON null: none, auto, true. MXC_E_ARG names the place ("tools[2].function.name:
 * ..."); MXC_E_UNSUPPORTED: a kind of tool that the server does not have. */
enum mxc_code mxc_tools_read(const json_t *tools, const json_t *choice, const json_t *parallel,
                             struct mxc_tools *out, struct mxc_err *err) MXC_MUST;
void mxc_tools_fini(struct mxc_tools *tools); /* zeroed is fine */
/* The variable "tools" for the template; NULL: leave it out. Borrowed. */
json_t *mxc_tools_for_template(const struct mxc_tools *tools);
/* NULL: no tool of that name. */
const struct mxc_tool *mxc_tools_get(const struct mxc_tools *tools, struct mxc_str name);

/* Checks a conversation's calls and answers: roles of tool_calls, names, unique ids, arguments as
 * text or object, and that every "tool" message answers a call of the assistant message before it,
 * in any order, each once. All calls must be answered unless the message is the last one. Missing
 * ids and names of tool messages are filled in (by order). id_length 9: other ids become 9
 * alphanumerics, which some templates insist on; 0: as they are. MXC_E_ARG names the place.
 * Changes messages. mxc_prompt_build calls it. */
enum mxc_code mxc_tools_check_history(json_t *messages, int id_length,
                                      struct mxc_err *err) MXC_MUST;

/* ---- 2. how a model writes calls */

struct mxc_tool_shape; /* a row of the table in shapes.c */

/* Never NULL: the first row that the template's text shows (has_token: or the vocabulary; may be
 * NULL), else the generic one, "hermes". Texts may be empty. */
const struct mxc_tool_shape *
mxc_tool_shape_find(struct mxc_str template_text,
                    bool (*has_token)(void *user, const char *spelling), void *user);
/* Of the template that a chat uses with tools. Never NULL. */
const struct mxc_tool_shape *mxc_tool_shape_of(const struct mxc_chat *chat);
/* Whether a template speaks of tools at all. */
bool mxc_tool_template_knows(struct mxc_str template_text);
/* By name, for an option of the server; NULL: unknown. */
const struct mxc_tool_shape *mxc_tool_shape_named(const char *name);
const char *mxc_tool_shape_name(const struct mxc_tool_shape *shape);
/* The i-th row's name; NULL: no more. */
const char *mxc_tool_shape_list(size_t i);
/* Spellings of special tokens that the parser must see as text: for mxc_gen_params.shown. */
const char *const *mxc_tool_shape_shown(const struct mxc_tool_shape *shape, size_t *n);
/* 9 where call ids must be 9 alphanumerics (Mistral), else 0. */
int mxc_tool_shape_id_length(const struct mxc_tool_shape *shape);

/* For templates that cannot write calls: the calls of assistant messages become part of their text,
 * in the shape. With describe the template knows no tools at all: tool messages become user
 * messages, and tools (may be NULL) are described, with the generic shape to call them, in the
 * system message or, when there is none, in the first user message. *out is owned by the caller.
 * mxc_prompt_build calls it. */
enum mxc_code mxc_tools_write_out(const struct mxc_tool_shape *shape, const json_t *messages,
                                  const json_t *tools, bool describe, json_t **out,
                                  struct mxc_err *err) MXC_MUST;

/* ---- 3. from text to calls */

enum mxc_tool_event_kind {
    MXC_TOOL_TEXT,      /* text: the answer's */
    MXC_TOOL_BEGIN,     /* index, id, name */
    MXC_TOOL_ARGUMENTS, /* index, text: all of a call joined are a JSON object, if complete */
    MXC_TOOL_END        /* index, complete */
};

/* Borrowed for the call. */
struct mxc_tool_event {
    enum mxc_tool_event_kind kind;
    size_t index; /* of the call, from 0 */
    const char *id, *name;
    struct mxc_str text;
    bool
        complete; /* false: the text ended, or went wrong, inside the call; arguments as they are */
};
/* false: stop; push and finish then give MXC_E_CANCELLED. */
typedef bool mxc_tool_event_fn(void *user, const struct mxc_tool_event *event);

/* A call counts from where its name is known, is one of the tools' and its arguments begin; what
 * fails before that, a name that is no tool's included, is text byte for byte: clients of this API
 * look calls up by name and fail on ones they did not offer. What goes wrong later ends the call
 * incomplete, and the rest is text. White space around calls belongs to neither. Joined results do
 * not depend on how the text was cut. */
struct mxc_tool_parser;
struct mxc_tool_parser_options {
    const struct mxc_tool_shape *shape;
    const struct mxc_tools *tools; /* outlives the parser */
    uint64_t seed; /* for ids; should differ between the answers of one conversation */
    mxc_tool_event_fn *event;
    void *user;
};
enum mxc_code mxc_tool_parser_new(const struct mxc_tool_parser_options *options,
                                  struct mxc_tool_parser **parser, struct mxc_err *err) MXC_MUST;
void mxc_tool_parser_free(struct mxc_tool_parser *parser); /* NULL is fine */
enum mxc_code mxc_tool_parser_push(struct mxc_tool_parser *parser, const char *text, size_t length,
                                   struct mxc_err *err) MXC_MUST;
/* The text is complete, for whatever reason. */
enum mxc_code mxc_tool_parser_finish(struct mxc_tool_parser *parser, struct mxc_err *err) MXC_MUST;
/* Calls begun so far: finish reason "tool_calls" when > 0 (and the text did not end by length). */
size_t mxc_tool_parser_count(const struct mxc_tool_parser *parser);
/* The one call of a request without parallel calls has ended: all further text is dropped, and the
 * generation may be ended. */
bool mxc_tool_parser_is_done(const struct mxc_tool_parser *parser);

/* "call_" and 24 of [A-Za-z0-9], or with id_length 9 that many. */
void mxc_tool_id(struct mxc_rng *rng, int id_length, char id[MXC_TOOL_ID_BYTES]);

/* ---- 4. enforcement */

enum mxc_tool_force {
    MXC_TOOL_FORCE_NONE,
    MXC_TOOL_FORCE_LAZY, /* free text, but what begins as a call keeps to the schemas */
    MXC_TOOL_FORCE_ALL   /* calls from the first token of the answer on */
};
/* ALL for required and named, LAZY for auto with a strict tool, else NONE. */
enum mxc_tool_force mxc_tools_force(const struct mxc_tools *tools);

struct mxc_tools_grammar_options {
    const struct mxc_tool_shape *shape;
    const struct mxc_tools *tools;
    const struct mxc_tokenizer *tokenizer; /* says which marks are special tokens */
    enum mxc_json_space space;
    bool lazy; /* begins behind the trigger */
};
/* Schemas that the grammar cannot honour are an error (that names the tool) when it is strict, and
 * any object otherwise. Answers of the grammar, its end included, are calls for the parser. */
enum mxc_code mxc_tools_grammar(const struct mxc_tools_grammar_options *options,
                                struct mxc_grammar **out, struct mxc_err *err) MXC_MUST;
/* What mxc_grammar_state_new needs for a lazy one; *lazy points to *trigger, and its text is
 * static. */
void mxc_tools_lazy(const struct mxc_tools_grammar_options *options,
                    struct mxc_grammar_trigger *trigger, struct mxc_grammar_lazy *lazy);

#endif
