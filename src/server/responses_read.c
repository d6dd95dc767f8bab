/* From a request of OpenAI's responses API to a chat request.
 *   instructions, system and developer messages -> system messages
 *   reasoning, assistant messages, function_call -> one assistant message per run of them
 *   function_call_output                         -> tool messages
 *   text.format                                  -> response_format
 * The items of a stored conversation come first, and are read as if the client had sent them. */
#define _GNU_SOURCE
#include "base/buf.h"
#include "server/fields.h"
#include "server/params.h"
#include "server/responses.h"

#include <string.h>

enum { MAX_TEXT = 1 << 30, MAX_METADATA = 16 };

static const struct mxc_dialect_name names[] = {{"max_completion_tokens", "max_output_tokens"},
                                                {"reasoning_effort", "reasoning.effort"},
                                                {"response_format.json_schema", "text.format"},
                                                {"response_format", "text.format"},
                                                {".function", ""},
                                                {NULL, NULL}};

/* The assistant's message that is being put together. */
struct turn {
    json_t *parts, *calls; /* NULL: none yet */
    struct mxc_buf thought;
    int32_t origin;
};

struct reader {
    struct mxc_dialect dialect;
    struct turn turn;
    int32_t origin; /* of the item that is read */
};

static enum mxc_code nomem(struct mxc_fault *fault) {
    return mxc_fault_set(fault, MXC_E_NOMEM, NULL, "out of memory");
}

static bool is(const json_t *text, const char *word) {
    const char *s = json_string_value(text);
    return s && !strcmp(s, word);
}

static json_t *ref(const json_t *value) {
    return json_incref((json_t *)(uintptr_t)value);
}

/* ---- the turn */

static void clear_turn(struct turn *t) {
    json_decref(t->parts);
    json_decref(t->calls);
    t->parts = t->calls = NULL;
    mxc_buf_fini(&t->thought);
    mxc_buf_init(&t->thought, MAX_TEXT);
}

/* Ends the assistant's message. Thoughts that nothing followed are dropped. */
static enum mxc_code flush(struct reader *r, struct mxc_fault *fault) {
    struct turn *t = &r->turn;
    enum mxc_code code = MXC_OK;
    if (t->parts || t->calls) {
        json_t *content = t->parts ? mxc_dialect_content(json_incref(t->parts)) : json_null();
        json_t *m = json_pack("{s:s,s:o}", "role", "assistant", "content", content);
        if (m && t->calls && json_object_set(m, "tool_calls", t->calls))
            code = nomem(fault);
        if (!code && m && t->thought.length &&
            json_object_set_new(m, "reasoning_content",
                                json_stringn(mxc_buf_text(&t->thought), t->thought.length)))
            code = nomem(fault);
        if (code)
            json_decref(m);
        else
            code = mxc_dialect_add(&r->dialect, m, t->origin, fault);
    }
    clear_turn(t);
    return code;
}

static enum mxc_code add_message(struct reader *r, json_t *message, struct mxc_fault *fault) {
    return mxc_dialect_add(&r->dialect, message, r->origin, fault);
}

/* ---- parts */

static enum mxc_code read_image(const json_t *part, const struct mxc_place *at, json_t **out,
                                struct mxc_fault *fault) {
    const json_t *url = NULL, *detail = mxc_field(part, "detail");
    const struct mxc_place place = mxc_place_member(at, "file_id");
    if (mxc_field(part, "file_id"))
        return mxc_fault_set(fault, MXC_E_UNSUPPORTED, place.text,
                             "%s: files are not stored; send the image in image_url", place.text);
    enum mxc_code code = mxc_place_text(part, at, "image_url", true, &url, fault);
    if (!code && !(*out = mxc_dialect_image(json_string_value(url))))
        code = nomem(fault);
    if (!code && detail && json_object_set(*out, "detail", (json_t *)(uintptr_t)detail)) {
        json_decref(*out);
        code = nomem(fault);
    }
    return code;
}

static enum mxc_code read_part(const json_t *part, const struct mxc_place *at, json_t **out,
                               struct mxc_fault *fault) {
    static const char *const texts[][2] = {
        {"input_text", "text"}, {"output_text", "text"}, {"text", "text"}, {"refusal", "refusal"}};
    const json_t *type, *text;
    if (!json_is_object(part))
        return mxc_field_wrong(fault, at->text, "an object", part);
    enum mxc_code code = mxc_place_text(part, at, "type", true, &type, fault);
    if (code)
        return code;
    if (is(type, "input_image"))
        return read_image(part, at, out, fault);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (!is(type, texts[i][0]))
            continue;
        code = mxc_place_text(part, at, texts[i][1], true, &text, fault);
        if (!code && !(*out = mxc_dialect_text(text)))
            code = nomem(fault);
        return code;
    }
    const struct mxc_place place = mxc_place_member(at, "type");
    return mxc_fault_set(fault, MXC_E_UNSUPPORTED, place.text,
                         "%s: parts of type \"%.40s\" are not supported; use input_text or "
                         "input_image",
                         place.text, json_string_value(type));
}

/* Text or a list of parts, appended to parts. */
static enum mxc_code read_parts(const json_t *value, const struct mxc_place *at, json_t *parts,
                                struct mxc_fault *fault) {
    size_t i;
    const json_t *item;
    enum mxc_code code = MXC_OK;
    if (!value)
        return mxc_place_missing(at, fault);
    if (json_is_string(value))
        return json_array_append_new(parts, mxc_dialect_text(value)) ? nomem(fault) : MXC_OK;
    if (!json_is_array(value))
        return mxc_field_wrong(fault, at->text, "a string or a list of parts", value);
    json_array_foreach(value, i, item) {
        const struct mxc_place place = mxc_place_item(at, i);
        json_t *part = NULL;
        code = read_part(item, &place, &part, fault);
        if (!code && json_array_append_new(parts, part))
            code = nomem(fault);
        if (code)
            break;
    }
    return code;
}

/* As the content of a message. */
static enum mxc_code read_content(const json_t *value, const struct mxc_place *at, json_t **out,
                                  struct mxc_fault *fault) {
    json_t *parts = json_array();
    enum mxc_code code = parts ? read_parts(value, at, parts, fault) : nomem(fault);
    if (!code && !json_array_size(parts))
        code = mxc_fault_set(fault, MXC_E_ARG, at->text, "%s: the list is empty", at->text);
    if (code)
        json_decref(parts);
    else
        *out = mxc_dialect_content(parts);
    return code;
}

/* ---- items */

static enum mxc_code read_message(struct reader *r, const json_t *item, const struct mxc_place *at,
                                  struct mxc_fault *fault) {
    static const char *const roles[] = {"user", "system", "developer"};
    const struct mxc_place where = mxc_place_member(at, "content");
    const json_t *role, *value = mxc_field(item, "content");
    json_t *content = NULL;
    enum mxc_code code = mxc_place_text(item, at, "role", true, &role, fault);
    if (code)
        return code;
    if (is(role, "assistant")) {
        if (r->turn.parts || r->turn.calls)
            code = flush(r, fault);
        r->turn.origin = r->origin;
        if (!code && !(r->turn.parts = json_array()))
            code = nomem(fault);
        if (!code)
            code = read_parts(value, &where, r->turn.parts, fault);
        if (!code && !json_array_size(r->turn.parts) &&
            json_array_append_new(r->turn.parts,
                                  json_pack("{s:s,s:s}", "type", "text", "text", "")))
            code = nomem(fault);
        return code;
    }
    size_t i = 0, n = sizeof roles / sizeof *roles;
    while (i < n && !is(role, roles[i]))
        i++;
    if (i == n) {
        const struct mxc_place place = mxc_place_member(at, "role");
        return mxc_fault_set(fault, MXC_E_ARG, place.text,
                             "%s: not user, assistant, system or developer", place.text);
    }
    code = flush(r, fault);
    if (!code)
        code = read_content(value, &where, &content, fault);
    return code ? code
                : add_message(r, json_pack("{s:O,s:o}", "role", role, "content", content), fault);
}

static enum mxc_code read_call(struct reader *r, const json_t *item, const struct mxc_place *at,
                               struct mxc_fault *fault) {
    const json_t *id, *name, *arguments;
    enum mxc_code code = mxc_place_text(item, at, "call_id", true, &id, fault);
    if (!code)
        code = mxc_place_text(item, at, "name", true, &name, fault);
    if (!code)
        code = mxc_place_text(item, at, "arguments", true, &arguments, fault);
    if (code)
        return code;
    if (!r->turn.parts && !r->turn.calls)
        r->turn.origin = r->origin;
    if (!r->turn.calls)
        r->turn.calls = json_array();
    return json_array_append_new(r->turn.calls,
                                 json_pack("{s:O,s:s,s:{s:O,s:O}}", "id", id, "type", "function",
                                           "function", "name", name, "arguments", arguments))
               ? nomem(fault)
               : MXC_OK;
}

static enum mxc_code read_output(struct reader *r, const json_t *item, const struct mxc_place *at,
                                 struct mxc_fault *fault) {
    const struct mxc_place where = mxc_place_member(at, "output");
    const json_t *id;
    json_t *content = NULL;
    enum mxc_code code = flush(r, fault);
    if (!code)
        code = mxc_place_text(item, at, "call_id", true, &id, fault);
    if (!code)
        code = read_content(mxc_field(item, "output"), &where, &content, fault);
    return code ? code
                : add_message(r,
                              json_pack("{s:s,s:O,s:o}", "role", "tool", "tool_call_id", id,
                                        "content", content),
                              fault);
}

/* Thoughts: content, or else the summary. */
static enum mxc_code read_thought(struct reader *r, const json_t *item, const struct mxc_place *at,
                                  struct mxc_fault *fault) {
    const char *name = json_array_size(mxc_field(item, "content")) ? "content" : "summary";
    const struct mxc_place list_at = mxc_place_member(at, name);
    const json_t *list = mxc_field(item, name), *part, *text;
    size_t i;
    if (list && !json_is_array(list))
        return mxc_field_wrong(fault, list_at.text, "a list", list);
    json_array_foreach(list, i, part) {
        const struct mxc_place place = mxc_place_item(&list_at, i);
        if (!json_is_object(part))
            return mxc_field_wrong(fault, place.text, "an object", part);
        enum mxc_code code = mxc_place_text(part, &place, "text", true, &text, fault);
        if (code)
            return code;
        if (r->turn.thought.length)
            (void)mxc_buf_putc(&r->turn.thought, '\n');
        (void)mxc_buf_append(&r->turn.thought, json_string_value(text), json_string_length(text));
    }
    return r->turn.thought.failed ? nomem(fault) : MXC_OK;
}

static enum mxc_code read_item(struct reader *r, const json_t *item, const struct mxc_place *at,
                               struct mxc_fault *fault) {
    static const struct {
        const char *type;
        enum mxc_code (*read)(struct reader *, const json_t *, const struct mxc_place *,
                              struct mxc_fault *);
    } kinds[] = {{"message", read_message},
                 {"function_call", read_call},
                 {"function_call_output", read_output},
                 {"reasoning", read_thought}};
    const json_t *type = NULL;
    if (!json_is_object(item))
        return mxc_field_wrong(fault, at->text, "an object", item);
    enum mxc_code code = mxc_place_text(item, at, "type", false, &type, fault);
    if (code)
        return code;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (type ? is(type, kinds[i].type) : i == 0)
            return kinds[i].read(r, item, at, fault);
    const struct mxc_place place = mxc_place_member(at, "type");
    return mxc_fault_set(fault, MXC_E_UNSUPPORTED, place.text,
                         "%s: items of type \"%.40s\" are not supported; use message, "
                         "function_call, function_call_output or reasoning",
                         place.text, json_string_value(type));
}

/* The item as it is stored: a copy with a type. NULL: out of memory. */
static json_t *stored_item(const json_t *item) {
    json_t *copy = json_copy((json_t *)(uintptr_t)item);
    if (copy && !mxc_field(copy, "type") &&
        json_object_set_new(copy, "type", json_string("message"))) {
        json_decref(copy);
        return NULL;
    }
    return copy;
}

static enum mxc_code read_input(struct reader *r, const json_t *json, json_t *items,
                                struct mxc_fault *fault) {
    static const struct mxc_place list = {"input"};
    const json_t *input = mxc_field(json, "input"), *item;
    enum mxc_code code = MXC_OK;
    size_t i;
    if (!input)
        return mxc_place_missing(&list, fault);
    if (json_is_string(input)) {
        r->origin = 0;
        if (json_array_append_new(items, json_pack("{s:s,s:s,s:O}", "type", "message", "role",
                                                   "user", "content", input)))
            return nomem(fault);
        code = flush(r, fault);
        return code ? code
                    : add_message(r, json_pack("{s:s,s:O}", "role", "user", "content", input),
                                  fault);
    }
    if (!json_is_array(input))
        return mxc_field_wrong(fault, "input", "a string or a list of items", input);
    json_array_foreach(input, i, item) {
        const struct mxc_place at = mxc_place_item(&list, i);
        r->origin = (int32_t)i;
        if ((code = read_item(r, item, &at, fault)))
            return code;
        if (json_array_append_new(items, stored_item(item)))
            return nomem(fault);
    }
    return flush(r, fault);
}

static enum mxc_code read_messages(struct reader *r, const json_t *json, const json_t *history,
                                   json_t *items, struct mxc_fault *fault) {
    static const struct mxc_place past = {"previous_response_id"};
    struct mxc_str instructions = {NULL, 0};
    const json_t *item;
    size_t i;
    enum mxc_code code = mxc_field_text(json, "instructions", &instructions, fault);
    r->origin = MXC_FROM_HEAD;
    if (!code && instructions.ptr)
        code = add_message(r,
                           json_pack("{s:s,s:O}", "role", "system", "content",
                                     json_object_get(json, "instructions")),
                           fault);
    r->origin = MXC_FROM_HISTORY;
    json_array_foreach(history, i, item) {
        if (code || (code = read_item(r, item, &past, fault)))
            break;
    }
    if (!code)
        code = read_input(r, json, items, fault);
    if (!code && !json_array_size(r->dialect.messages))
        code = mxc_fault_set(fault, MXC_E_ARG, "input", "input: the list is empty");
    return code;
}

/* ---- the rest */

static enum mxc_code read_schema(struct reader *r, const json_t *format, struct mxc_fault *fault) {
    static const struct mxc_place at = {"text.format"}, inside = {"text.format.schema"};
    json_t *schema = json_object_get(format, "schema");
    const json_t *name;
    enum mxc_code code = mxc_place_text(format, &at, "name", true, &name, fault);
    if (code)
        return code;
    if (!json_is_object(schema))
        return schema && !json_is_null(schema)
                   ? mxc_field_wrong(fault, inside.text, "an object", schema)
                   : mxc_place_missing(&inside, fault);
    return mxc_dialect_set(&r->dialect, "response_format",
                           json_pack("{s:s,s:{s:O,s:O}}", "type", "json_schema", "json_schema",
                                     "name", name, "schema", schema),
                           fault);
}

static enum mxc_code read_text(struct reader *r, const json_t *json, json_t *echo,
                               struct mxc_fault *fault) {
    static const struct mxc_place at = {"text"}, inside = {"text.format"};
    const json_t *text = NULL, *verbosity = NULL, *type;
    enum mxc_code code = mxc_field_object(json, "text", &text, fault);
    const json_t *format = mxc_field(text, "format");
    if (!code && text)
        code = mxc_place_text(text, &at, "verbosity", false, &verbosity, fault);
    if (!code && verbosity && !is(verbosity, "medium"))
        code = mxc_fault_set(fault, MXC_E_UNSUPPORTED, "text.verbosity",
                             "text.verbosity: only medium is supported; say it in instructions");
    if (!code && format && !json_is_object(format))
        code = mxc_field_wrong(fault, inside.text, "an object", format);
    if (code)
        return code;
    if (json_object_set_new(echo, "text",
                            format ? json_pack("{s:O}", "format", format)
                                   : json_pack("{s:{s:s}}", "format", "type", "text")))
        return nomem(fault);
    if (!format)
        return MXC_OK;
    if ((code = mxc_place_text(format, &inside, "type", true, &type, fault)))
        return code;
    if (is(type, "text"))
        return MXC_OK;
    if (is(type, "json_object"))
        return mxc_dialect_set(&r->dialect, "response_format",
                               json_pack("{s:s}", "type", "json_object"), fault);
    if (is(type, "json_schema"))
        return read_schema(r, format, fault);
    return mxc_fault_set(fault, MXC_E_ARG, "text.format.type",
                         "text.format.type: not text, json_object or json_schema");
}

static enum mxc_code read_reasoning(struct reader *r, const json_t *json, json_t *echo,
                                    struct mxc_fault *fault) {
    static const struct mxc_place at = {"reasoning"};
    const json_t *reasoning = NULL, *effort = NULL, *summary = NULL;
    enum mxc_code code = mxc_field_object(json, "reasoning", &reasoning, fault);
    if (!code && reasoning)
        code = mxc_place_text(reasoning, &at, "effort", false, &effort, fault);
    if (!code && reasoning)
        code = mxc_place_text(reasoning, &at, "summary", false, &summary, fault);
    if (!code && summary && !is(summary, "auto"))
        code = mxc_fault_set(fault, MXC_E_UNSUPPORTED, "reasoning.summary",
                             "reasoning.summary: only auto is supported; thoughts are sent in "
                             "full, not summarised");
    if (code)
        return code;
    if (json_object_set_new(
            echo, "reasoning",
            json_pack("{s:o,s:n}", "effort", effort ? ref(effort) : json_null(), "summary")))
        return nomem(fault);
    return effort ? mxc_dialect_set(&r->dialect, "reasoning_effort", ref(effort), fault) : MXC_OK;
}

static enum mxc_code read_logprobs(struct reader *r, const json_t *json, json_t *echo,
                                   struct mxc_fault *fault) {
    static const char *const known[] = {"message.output_text.logprobs",
                                        "reasoning.encrypted_content",
                                        "file_search_call.results",
                                        "web_search_call.results",
                                        "web_search_call.action.sources",
                                        "message.input_image.image_url",
                                        "computer_call_output.output.image_url",
                                        "code_interpreter_call.outputs"};
    static const struct mxc_place list = {"include"};
    const json_t *include = NULL, *item;
    int64_t top = 0;
    size_t i, k = 1, n = sizeof known / sizeof *known;
    bool wanted = false;
    enum mxc_code code = mxc_field_list(json, "include", &include, fault);
    json_array_foreach(include, i, item) {
        const struct mxc_place at = mxc_place_item(&list, i);
        if (!json_is_string(item))
            return mxc_field_wrong(fault, at.text, "a string", item);
        for (k = 0; k < n && !is(item, known[k]); k++)
            ;
        if (k == n)
            return mxc_fault_set(fault, MXC_E_ARG, at.text, "%s: \"%.60s\" is nothing to include",
                                 at.text, json_string_value(item));
        wanted = wanted || k == 0;
    }
    if (!code)
        code = mxc_field_int(json, "top_logprobs", 0, 20, &top, fault);
    if (!code && json_object_set_new(echo, "top_logprobs", json_integer(top)))
        code = nomem(fault);
    if (code || (!wanted && !top))
        return code;
    code = mxc_dialect_set(&r->dialect, "logprobs", json_true(), fault);
    return code ? code : mxc_dialect_set(&r->dialect, "top_logprobs", json_integer(top), fault);
}

static enum mxc_code read_metadata(const json_t *json, json_t *echo, struct mxc_fault *fault) {
    json_t *metadata = json_object_get(json, "metadata");
    const json_t *checked = NULL, *value;
    const char *key;
    enum mxc_code code = mxc_field_object(json, "metadata", &checked, fault);
    if (code)
        return code;
    if (json_object_size(checked) > MAX_METADATA)
        return mxc_fault_set(fault, MXC_E_ARG, "metadata", "metadata: more than %d pairs",
                             MAX_METADATA);
    json_object_foreach(metadata, key, value) {
        if (!json_is_string(value))
            return mxc_fault_set(fault, MXC_E_ARG, "metadata",
                                 "metadata: \"%.60s\" is not a string", key);
    }
    return json_object_set_new(echo, "metadata", checked ? json_copy(metadata) : json_object())
               ? nomem(fault)
               : MXC_OK;
}

/* What else the answer repeats, with what it is when the client left it out. */
static enum mxc_code read_echo(const json_t *json, json_t *echo, struct mxc_fault *fault) {
    static const struct {
        const char *name, *fallback;
    } rows[] = {{"instructions", "null"},
                {"max_output_tokens", "null"},
                {"parallel_tool_calls", "true"},
                {"previous_response_id", "null"},
                {"temperature", "null"},
                {"top_p", "null"},
                {"tool_choice", "\"auto\""},
                {"tools", "[]"},
                {"user", "null"},
                {"truncation", "\"disabled\""}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const json_t *value = mxc_field(json, rows[i].name);
        json_t *set = value ? ref(value) : json_loads(rows[i].fallback, JSON_DECODE_ANY, NULL);
        if (json_object_set_new(echo, rows[i].name, set))
            return nomem(fault);
    }
    return MXC_OK;
}

static enum mxc_code read_all(struct reader *r, const json_t *json, const json_t *history,
                              struct mxc_responses_request *q, struct mxc_fault *fault) {
    static const char *const same[] = {"model",
                                       "stream",
                                       "temperature",
                                       "top_p",
                                       "top_k",
                                       "min_p",
                                       "seed",
                                       "cache_prompt",
                                       "priority",
                                       "tools",
                                       "tool_choice",
                                       "parallel_tool_calls",
                                       "chat_template_kwargs",
                                       NULL};
    int64_t most = 0;
    if (!q->echo || !q->items)
        return nomem(fault);
    enum mxc_code code = read_messages(r, json, history, q->items, fault);
    if (!code)
        code = mxc_field_int(json, "max_output_tokens", 1, INT32_MAX, &most, fault);
    if (!code && most)
        code = mxc_dialect_set(&r->dialect, "max_completion_tokens", json_integer(most), fault);
    if (!code)
        code = read_text(r, json, q->echo, fault);
    if (!code)
        code = read_reasoning(r, json, q->echo, fault);
    if (!code)
        code = read_logprobs(r, json, q->echo, fault);
    if (!code)
        code = read_metadata(json, q->echo, fault);
    if (!code)
        code = mxc_field_bool(json, "store", &q->store, fault);
    if (!code)
        code = read_echo(json, q->echo, fault);
    return code ? code : mxc_dialect_copy(&r->dialect, json, same, fault);
}

enum mxc_code mxc_responses_previous(const json_t *json, const char **id, struct mxc_fault *fault) {
    struct mxc_str text = {NULL, 0};
    enum mxc_code code = mxc_field_text(json, "previous_response_id", &text, fault);
    if (!code)
        *id = text.ptr;
    return code;
}

enum mxc_code mxc_responses_read(const json_t *json, const json_t *history,
                                 struct mxc_responses_request *out, struct mxc_fault *fault) {
    struct reader r = {.origin = 0};
    struct mxc_responses_request q = {.echo = NULL};
    enum mxc_code code = mxc_params_refused(json, MXC_FIELDS_RESPONSES, fault);
    if (code)
        return code;
    q.echo = json_object();
    q.items = json_array();
    q.store = true;
    mxc_buf_init(&r.turn.thought, MAX_TEXT);
    code = mxc_dialect_init(&r.dialect, "input", "instructions", names, fault);
    if (!code)
        code = read_all(&r, json, history, &q, fault);
    clear_turn(&r.turn);
    q.dialect = r.dialect;
    if (code)
        mxc_responses_request_fini(&q);
    else
        *out = q;
    return code;
}

void mxc_responses_request_fini(struct mxc_responses_request *q) {
    mxc_dialect_fini(&q->dialect);
    json_decref(q->echo);
    json_decref(q->items);
    q->echo = q->items = NULL;
}
