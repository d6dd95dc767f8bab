/* From a request of Anthropic's messages API to a chat request.
 *   system                      -> a system message in front
 *   tool_result blocks          -> tool messages, before what else their message says
 *   tool_use, thinking blocks   -> tool_calls, reasoning_content of the assistant's message
 *   tools[].input_schema        -> tools[].function.parameters
 *   tool_choice any, tool       -> required, that function
 *   output_config.format        -> response_format
 * What the server cannot do (server-run tools, files, search results) is refused by name. */
#define _GNU_SOURCE
#include "server/anthropic.h"

#include "base/buf.h"
#include "server/fields.h"
#include "server/params.h"

#include <stdio.h>
#include <string.h>

enum { MAX_TEXT = 1 << 30 };

static const struct mxc_dialect_name names[] = {
    {"stop", "stop_sequences"},
    {"response_format.json_schema.schema", "output_config.format.schema"},
    {"response_format.json_schema", "output_config.format"},
    {"response_format", "output_config.format"},
    {"reasoning_effort", "output_config.effort"},
    {".function.parameters", ".input_schema"},
    {".function", ""},
    {NULL, NULL}};

static enum mxc_code nomem(struct mxc_fault *fault) {
    return mxc_fault_set(fault, MXC_E_NOMEM, NULL, "out of memory");
}

static bool is(const json_t *text, const char *word) {
    const char *s = json_string_value(text);
    return s && !strcmp(s, word);
}

/* Takes the item in; NULL: out of memory. */
static enum mxc_code push(json_t *list, json_t *item, struct mxc_fault *fault) {
    return json_array_append_new(list, item) ? nomem(fault) : MXC_OK;
}

/* ---- blocks */

static enum mxc_code add_text(const json_t *block, const struct mxc_place *at, json_t *parts,
                              struct mxc_fault *fault) {
    const json_t *text;
    enum mxc_code code = mxc_place_text(block, at, "text", true, &text, fault);
    return code ? code : push(parts, mxc_dialect_text(text), fault);
}

/* {"type": "base64", "media_type", "data"} or {"type": "url", "url"}. */
static enum mxc_code add_image(const json_t *block, const struct mxc_place *at, json_t *parts,
                               struct mxc_fault *fault) {
    static const char *const kinds[] = {"image/jpeg", "image/png", "image/gif", "image/webp"};
    const json_t *source = mxc_field(block, "source"), *type, *media = NULL, *data = NULL;
    const struct mxc_place from = mxc_place_member(at, "source");
    struct mxc_buf url;
    if (!json_is_object(source))
        return source ? mxc_field_wrong(fault, from.text, "an object", source)
                      : mxc_place_missing(&from, fault);
    enum mxc_code code = mxc_place_text(source, &from, "type", true, &type, fault);
    if (!code && is(type, "url")) {
        code = mxc_place_text(source, &from, "url", true, &data, fault);
        return code ? code : push(parts, mxc_dialect_image(json_string_value(data)), fault);
    }
    if (!code && !is(type, "base64"))
        return mxc_fault_set(fault, MXC_E_UNSUPPORTED, from.text,
                             "%s.type: \"%.40s\" is not supported; use base64 or url", from.text,
                             json_string_value(type));
    if (!code)
        code = mxc_place_text(source, &from, "media_type", true, &media, fault);
    if (!code)
        code = mxc_place_text(source, &from, "data", true, &data, fault);
    if (code)
        return code;
    size_t i = 0, n = sizeof kinds / sizeof *kinds;
    while (i < n && !is(media, kinds[i]))
        i++;
    if (i == n) {
        const struct mxc_place place = mxc_place_member(&from, "media_type");
        return mxc_fault_set(fault, MXC_E_ARG, place.text,
                             "%s: not image/jpeg, image/png, image/gif or image/webp", place.text);
    }
    mxc_buf_init(&url, MAX_TEXT);
    (void)mxc_buf_printf(&url, "data:%s;base64,", kinds[i]);
    (void)mxc_buf_puts(&url, json_string_value(data));
    code = url.failed ? nomem(fault) : push(parts, mxc_dialect_image(mxc_buf_text(&url)), fault);
    mxc_buf_fini(&url);
    return code;
}

/* Only documents that are plain text. */
static enum mxc_code add_document(const json_t *block, const struct mxc_place *at, json_t *parts,
                                  struct mxc_fault *fault) {
    const json_t *source = mxc_field(block, "source"), *type = NULL, *text;
    const struct mxc_place from = mxc_place_member(at, "source");
    if (!json_is_object(source))
        return source ? mxc_field_wrong(fault, from.text, "an object", source)
                      : mxc_place_missing(&from, fault);
    enum mxc_code code = mxc_place_text(source, &from, "type", true, &type, fault);
    if (!code && !is(type, "text"))
        code = mxc_fault_set(fault, MXC_E_UNSUPPORTED, from.text,
                             "%s.type: \"%.40s\" is not supported; documents are plain text",
                             from.text, json_string_value(type));
    if (!code)
        code = mxc_place_text(source, &from, "data", true, &text, fault);
    return code ? code : push(parts, mxc_dialect_text(text), fault);
}

/* Text, images and documents: what may stand in user messages, results and system. */
static enum mxc_code add_part(const json_t *block, const struct mxc_place *at, bool text_only,
                              json_t *parts, struct mxc_fault *fault) {
    const json_t *type;
    if (!json_is_object(block))
        return mxc_field_wrong(fault, at->text, "an object", block);
    enum mxc_code code = mxc_place_text(block, at, "type", true, &type, fault);
    if (code)
        return code;
    if (is(type, "text"))
        return add_text(block, at, parts, fault);
    if (!text_only && is(type, "image"))
        return add_image(block, at, parts, fault);
    if (!text_only && is(type, "document"))
        return add_document(block, at, parts, fault);
    const struct mxc_place place = mxc_place_member(at, "type");
    return mxc_fault_set(fault, MXC_E_UNSUPPORTED, place.text,
                         "%s: blocks of type \"%.40s\" are not supported here", place.text,
                         json_string_value(type));
}

/* Text, or a list of blocks, as the content of a chat message. */
static enum mxc_code read_content(const json_t *value, const struct mxc_place *at, bool text_only,
                                  json_t **out, struct mxc_fault *fault) {
    size_t i;
    const json_t *block;
    enum mxc_code code = MXC_OK;
    if (json_is_string(value)) {
        *out = json_incref((json_t *)(uintptr_t)value);
        return MXC_OK;
    }
    if (!json_is_array(value))
        return mxc_field_wrong(fault, at->text, "a string or a list of blocks", value);
    json_t *parts = json_array();
    if (!parts)
        return nomem(fault);
    json_array_foreach(value, i, block) {
        const struct mxc_place place = mxc_place_item(at, i);
        if ((code = add_part(block, &place, text_only, parts, fault)))
            break;
    }
    if (code)
        json_decref(parts);
    else
        *out = mxc_dialect_content(parts);
    return code;
}

/* ---- messages */

/* "Error: " before the text of a result that is one. */
static json_t *mark_error(json_t *content) {
    struct mxc_buf text;
    mxc_buf_init(&text, MAX_TEXT);
    (void)mxc_buf_puts(&text, "Error: ");
    if (json_is_string(content)) {
        (void)mxc_buf_append(&text, json_string_value(content), json_string_length(content));
        json_decref(content);
        content = text.failed ? NULL : json_stringn(mxc_buf_text(&text), text.length);
    } else {
        json_t *part = json_pack("{s:s,s:s}", "type", "text", "text", "Error:");
        if (json_array_insert_new(content, 0, part)) {
            json_decref(content);
            content = NULL;
        }
    }
    mxc_buf_fini(&text);
    return content;
}

static enum mxc_code add_result(struct mxc_dialect *d, const json_t *block,
                                const struct mxc_place *at, int32_t origin,
                                struct mxc_fault *fault) {
    const json_t *id, *value = mxc_field(block, "content"), *flag = mxc_field(block, "is_error");
    const struct mxc_place place = mxc_place_member(at, "content");
    const struct mxc_place flag_place = mxc_place_member(at, "is_error");
    json_t *content = NULL;
    enum mxc_code code = mxc_place_text(block, at, "tool_use_id", true, &id, fault);
    if (code)
        return code;
    if (flag && !json_is_boolean(flag))
        return mxc_field_wrong(fault, flag_place.text, "true or false", flag);
    if (value)
        code = read_content(value, &place, false, &content, fault);
    else if (!(content = json_string("")))
        code = nomem(fault);
    if (code)
        return code;
    if (json_is_true(flag))
        content = mark_error(content);
    return mxc_dialect_add(
        d, json_pack("{s:s,s:O,s:o}", "role", "tool", "tool_call_id", id, "content", content),
        origin, fault);
}

static enum mxc_code read_user(struct mxc_dialect *d, const json_t *blocks,
                               const struct mxc_place *at, int32_t origin,
                               struct mxc_fault *fault) {
    size_t i, n_results = 0;
    const json_t *block;
    enum mxc_code code = MXC_OK;
    json_t *parts = json_array();
    if (!parts)
        return nomem(fault);
    json_array_foreach(blocks, i, block) {
        const struct mxc_place place = mxc_place_item(at, i);
        if (is(json_object_get(block, "type"), "tool_result")) {
            n_results++;
            code = add_result(d, block, &place, origin, fault);
        } else {
            code = add_part(block, &place, false, parts, fault);
        }
        if (code)
            break;
    }
    if (!code && !n_results && !json_array_size(parts))
        code = mxc_fault_set(fault, MXC_E_ARG, at->text, "%s: the list is empty", at->text);
    if (code || !json_array_size(parts)) {
        json_decref(parts);
        return code;
    }
    return mxc_dialect_add(
        d, json_pack("{s:s,s:o}", "role", "user", "content", mxc_dialect_content(parts)), origin,
        fault);
}

/* What an assistant's message is put together from. */
struct answer {
    json_t *parts, *calls;
    struct mxc_buf thought;
};

static enum mxc_code add_call(struct answer *a, const json_t *block, const struct mxc_place *at,
                              struct mxc_fault *fault) {
    const json_t *id, *name;
    json_t *input = json_object_get(block, "input");
    const struct mxc_place place = mxc_place_member(at, "input");
    enum mxc_code code = mxc_place_text(block, at, "id", true, &id, fault);
    if (!code)
        code = mxc_place_text(block, at, "name", true, &name, fault);
    if (code)
        return code;
    if (input && !json_is_null(input) && !json_is_object(input))
        return mxc_field_wrong(fault, place.text, "an object", input);
    if (json_is_object(input))
        json_incref(input);
    else
        input = json_object();
    return push(a->calls,
                json_pack("{s:O,s:s,s:{s:O,s:o}}", "id", id, "type", "function", "function", "name",
                          name, "arguments", input),
                fault);
}

static enum mxc_code add_thought(struct answer *a, const json_t *block, const struct mxc_place *at,
                                 struct mxc_fault *fault) {
    const json_t *text;
    enum mxc_code code = mxc_place_text(block, at, "thinking", true, &text, fault);
    if (code)
        return code;
    if (a->thought.length)
        (void)mxc_buf_putc(&a->thought, '\n');
    (void)mxc_buf_append(&a->thought, json_string_value(text), json_string_length(text));
    return a->thought.failed ? nomem(fault) : MXC_OK;
}

static enum mxc_code add_block(struct answer *a, const json_t *block, const struct mxc_place *at,
                               struct mxc_fault *fault) {
    const json_t *type = json_object_get(block, "type");
    if (is(type, "tool_use"))
        return add_call(a, block, at, fault);
    if (is(type, "thinking"))
        return add_thought(a, block, at, fault);
    if (is(type, "redacted_thinking"))
        return MXC_OK; /* nobody here can read it */
    return add_part(block, at, true, a->parts, fault);
}

/* The message; takes what the answer holds. NULL: out of memory. */
static json_t *assistant(struct answer *a) {
    json_t *content = json_array_size(a->parts) ? json_incref(a->parts) : NULL;
    if (content)
        content = mxc_dialect_content(content);
    else
        content = json_array_size(a->calls) ? json_null() : json_string("");
    json_t *m = json_pack("{s:s,s:o}", "role", "assistant", "content", content);
    if (m && a->thought.length &&
        json_object_set_new(m, "reasoning_content",
                            json_stringn(mxc_buf_text(&a->thought), a->thought.length)))
        goto fail;
    if (m && json_array_size(a->calls) && json_object_set(m, "tool_calls", a->calls))
        goto fail;
    return m;
fail:
    json_decref(m);
    return NULL;
}

static enum mxc_code read_assistant(struct mxc_dialect *d, const json_t *blocks,
                                    const struct mxc_place *at, int32_t origin,
                                    struct mxc_fault *fault) {
    struct answer a = {.parts = json_array(), .calls = json_array()};
    size_t i;
    const json_t *block;
    enum mxc_code code = a.parts && a.calls ? MXC_OK : nomem(fault);
    mxc_buf_init(&a.thought, MAX_TEXT);
    json_array_foreach(blocks, i, block) {
        const struct mxc_place place = mxc_place_item(at, i);
        if (!code)
            code = add_block(&a, block, &place, fault);
    }
    if (!code)
        code = mxc_dialect_add(d, assistant(&a), origin, fault);
    json_decref(a.parts);
    json_decref(a.calls);
    mxc_buf_fini(&a.thought);
    return code;
}

static enum mxc_code read_message(struct mxc_dialect *d, const json_t *m, size_t i,
                                  struct mxc_fault *fault) {
    static const struct mxc_place list = {"messages"};
    const struct mxc_place at = mxc_place_item(&list, i);
    const struct mxc_place where = mxc_place_member(&at, "content");
    const json_t *role, *value = mxc_field(m, "content");
    json_t *content = NULL;
    if (!json_is_object(m))
        return mxc_field_wrong(fault, at.text, "an object", m);
    enum mxc_code code = mxc_place_text(m, &at, "role", true, &role, fault);
    if (code)
        return code;
    bool user = is(role, "user"), ours = is(role, "assistant");
    if (!user && !ours && !is(role, "system")) {
        const struct mxc_place place = mxc_place_member(&at, "role");
        return mxc_fault_set(fault, MXC_E_ARG, place.text, "%s: not user or assistant", place.text);
    }
    if (!value)
        return mxc_place_missing(&where, fault);
    if (user && json_is_array(value))
        return read_user(d, value, &where, (int32_t)i, fault);
    if (ours && json_is_array(value))
        return read_assistant(d, value, &where, (int32_t)i, fault);
    code = read_content(value, &where, true, &content, fault);
    return code ? code
                : mxc_dialect_add(d, json_pack("{s:O,s:o}", "role", role, "content", content),
                                  (int32_t)i, fault);
}

static enum mxc_code read_messages(struct mxc_dialect *d, const json_t *json,
                                   struct mxc_fault *fault) {
    static const struct mxc_place list = {"messages"}, head = {"system"};
    const json_t *system = mxc_field(json, "system"), *messages = NULL, *m;
    json_t *content = NULL;
    size_t i;
    enum mxc_code code = MXC_OK;
    if (system && !(code = read_content(system, &head, true, &content, fault)))
        code = mxc_dialect_add(d, json_pack("{s:s,s:o}", "role", "system", "content", content),
                               MXC_FROM_HEAD, fault);
    if (!code)
        code = mxc_field_list(json, "messages", &messages, fault);
    if (!code && !messages)
        code = mxc_place_missing(&list, fault);
    if (!code && !json_array_size(messages))
        code = mxc_fault_set(fault, MXC_E_ARG, "messages", "messages: the list is empty");
    json_array_foreach(messages, i, m) {
        if (code || (code = read_message(d, m, i, fault)))
            break;
    }
    return code;
}

/* ---- tools */

static enum mxc_code read_tool(const json_t *tool, size_t i, json_t *out, struct mxc_fault *fault) {
    static const struct mxc_place list = {"tools"};
    static const char *const members[] = {"name", "description", "strict"};
    const struct mxc_place at = mxc_place_item(&list, i);
    const struct mxc_place schema_at = mxc_place_member(&at, "input_schema");
    const json_t *type = NULL;
    if (!json_is_object(tool))
        return mxc_field_wrong(fault, at.text, "an object", tool);
    enum mxc_code code = mxc_place_text(tool, &at, "type", false, &type, fault);
    if (code)
        return code;
    if (type && !is(type, "custom") && !is(type, "function")) {
        const struct mxc_place place = mxc_place_member(&at, "type");
        return mxc_fault_set(fault, MXC_E_UNSUPPORTED, place.text,
                             "%s: \"%.40s\" is not supported; tools have a name and an "
                             "input_schema, and run at the client",
                             place.text, json_string_value(type));
    }
    json_t *schema = json_object_get(tool, "input_schema"), *function = json_object();
    if (!schema || json_is_null(schema))
        code = mxc_place_missing(&schema_at, fault);
    else if (!function || json_object_set(function, "parameters", schema))
        code = nomem(fault);
    for (size_t k = 0; k < sizeof members / sizeof *members && !code; k++) {
        json_t *value = json_object_get(tool, members[k]);
        if (value && json_object_set(function, members[k], value))
            code = nomem(fault);
    }
    if (!code)
        code = push(out, json_pack("{s:s,s:O}", "type", "function", "function", function), fault);
    json_decref(function);
    return code;
}

static enum mxc_code read_tools(struct mxc_dialect *d, const json_t *json,
                                struct mxc_fault *fault) {
    const json_t *tools = NULL, *tool;
    size_t i;
    enum mxc_code code = mxc_field_list(json, "tools", &tools, fault);
    if (code || !tools)
        return code;
    json_t *list = json_array();
    json_array_foreach(tools, i, tool) {
        if ((code = read_tool(tool, i, list, fault)))
            break;
    }
    if (code)
        json_decref(list);
    return code ? code : mxc_dialect_set(d, "tools", list, fault);
}

static enum mxc_code read_choice(struct mxc_dialect *d, const json_t *json,
                                 struct mxc_fault *fault) {
    static const struct mxc_place at = {"tool_choice"};
    static const char *const kinds[][2] = {{"auto", "auto"}, {"any", "required"}, {"none", "none"}};
    const json_t *choice = NULL, *type, *name;
    bool single = false;
    enum mxc_code code = mxc_field_object(json, "tool_choice", &choice, fault);
    if (code || !choice)
        return code;
    code = mxc_place_text(choice, &at, "type", true, &type, fault);
    if (!code && (code = mxc_field_bool(choice, "disable_parallel_tool_use", &single, fault)))
        return mxc_field_wrong(fault, "tool_choice.disable_parallel_tool_use", "true or false",
                               json_object_get(choice, "disable_parallel_tool_use"));
    if (!code && single)
        code = mxc_dialect_set(d, "parallel_tool_calls", json_false(), fault);
    if (code)
        return code;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (is(type, kinds[i][0]))
            return mxc_dialect_set(d, "tool_choice", json_string(kinds[i][1]), fault);
    if (!is(type, "tool"))
        return mxc_fault_set(fault, MXC_E_ARG, "tool_choice.type",
                             "tool_choice.type: not auto, any, tool or none");
    code = mxc_place_text(choice, &at, "name", true, &name, fault);
    return code ? code
                : mxc_dialect_set(
                      d, "tool_choice",
                      json_pack("{s:s,s:{s:O}}", "type", "function", "function", "name", name),
                      fault);
}

/* ---- the rest */

static enum mxc_code read_length(struct mxc_dialect *d, const json_t *json, bool counting,
                                 struct mxc_fault *fault) {
    static const struct mxc_place at = {"max_tokens"};
    int64_t n = 0;
    enum mxc_code code = mxc_field_int(json, "max_tokens", 1, INT32_MAX, &n, fault);
    if (code || !n)
        return code || counting ? code : mxc_place_missing(&at, fault);
    return mxc_dialect_set(d, "max_tokens", json_integer(n), fault);
}

static enum mxc_code read_stops(struct mxc_dialect *d, const json_t *json,
                                struct mxc_fault *fault) {
    const json_t *stops = NULL;
    enum mxc_code code = mxc_field_list(json, "stop_sequences", &stops, fault);
    if (code || !stops)
        return code;
    return mxc_dialect_set(d, "stop", json_incref((json_t *)(uintptr_t)stops), fault);
}

static enum mxc_code read_metadata(const json_t *json, struct mxc_fault *fault) {
    static const struct mxc_place at = {"metadata"};
    const json_t *metadata = NULL, *user;
    enum mxc_code code = mxc_field_object(json, "metadata", &metadata, fault);
    return code || !metadata ? code : mxc_place_text(metadata, &at, "user_id", false, &user, fault);
}

/* {"type": "enabled", "budget_tokens"}, {"type": "disabled"}, {"type": "adaptive"}. Absent: as the
 * model's template has it. */
static enum mxc_code read_thinking(struct mxc_dialect *d, const json_t *json,
                                   struct mxc_fault *fault) {
    static const struct mxc_place at = {"thinking"};
    const json_t *thinking = NULL, *type;
    int64_t budget = -1;
    enum mxc_code code = mxc_field_object(json, "thinking", &thinking, fault);
    if (code || !thinking)
        return code;
    if ((code = mxc_place_text(thinking, &at, "type", true, &type, fault)))
        return code;
    if (is(type, "adaptive"))
        return MXC_OK;
    bool on = is(type, "enabled");
    if (!on && !is(type, "disabled"))
        return mxc_fault_set(fault, MXC_E_ARG, "thinking.type",
                             "thinking.type: not enabled, disabled or adaptive");
    if ((code = mxc_field_int(thinking, "budget_tokens", 1, INT32_MAX, &budget, fault))) {
        char text[sizeof fault->err.message];
        (void)snprintf(text, sizeof text, "%s", fault->err.message);
        (void)mxc_fault_set(fault, code, "thinking.budget_tokens", "thinking.%s", text);
        return code;
    }
    if (on && budget < 0)
        return mxc_fault_set(fault, MXC_E_ARG, "thinking.budget_tokens",
                             "thinking.budget_tokens: it is missing");
    json_t *copy =
        on ? json_pack("{s:s,s:I}", "type", "enabled", "budget_tokens", (json_int_t)budget)
           : json_pack("{s:s}", "type", "disabled");
    return mxc_dialect_set(d, "thinking", copy, fault);
}

/* {"format": {"type": "json_schema", "schema"}, "effort"}; the format also as output_format. */
static enum mxc_code read_output(struct mxc_dialect *d, const json_t *json,
                                 struct mxc_fault *fault) {
    static const struct mxc_place inside = {"output_config.format"}, old = {"output_format"};
    static const struct mxc_place at = {"output_config"};
    const struct mxc_place *place = &old;
    const json_t *config = NULL, *format = NULL, *type, *effort = NULL;
    enum mxc_code code = mxc_field_object(json, "output_config", &config, fault);
    if (!code)
        code = mxc_field_object(json, "output_format", &format, fault);
    if (!code && config)
        code = mxc_place_text(config, &at, "effort", false, &effort, fault);
    if (!code && effort)
        code = mxc_dialect_set(d, "reasoning_effort",
                               is(effort, "max") ? json_string("xhigh")
                                                 : json_incref((json_t *)(uintptr_t)effort),
                               fault);
    if (!code && mxc_field(config, "format")) {
        format = mxc_field(config, "format");
        place = &inside;
        if (!json_is_object(format))
            code = mxc_field_wrong(fault, inside.text, "an object", format);
    }
    if (code || !format)
        return code;
    if ((code = mxc_place_text(format, place, "type", true, &type, fault)))
        return code;
    const struct mxc_place schema_at = mxc_place_member(place, "schema");
    json_t *schema = json_object_get(format, "schema");
    if (!is(type, "json_schema"))
        return mxc_fault_set(fault, MXC_E_ARG, place->text, "%s.type: not json_schema",
                             place->text);
    if (!json_is_object(schema))
        return schema ? mxc_field_wrong(fault, schema_at.text, "an object", schema)
                      : mxc_place_missing(&schema_at, fault);
    return mxc_dialect_set(d, "response_format",
                           json_pack("{s:s,s:{s:s,s:O}}", "type", "json_schema", "json_schema",
                                     "name", "answer", "schema", schema),
                           fault);
}

enum mxc_code mxc_anthropic_read(const json_t *json, bool counting, struct mxc_dialect *out,
                                 struct mxc_fault *fault) {
    static const char *const same[] = {
        "model",        "stream",   "temperature",          "top_p", "top_k", "min_p", "seed",
        "cache_prompt", "priority", "chat_template_kwargs", NULL};
    struct mxc_dialect d;
    enum mxc_code code = mxc_params_refused(json, MXC_FIELDS_MESSAGES, fault);
    if (code)
        return code;
    code = mxc_dialect_init(&d, "messages", "system", names, fault);
    if (!code)
        code = read_length(&d, json, counting, fault);
    if (!code)
        code = read_messages(&d, json, fault);
    if (!code)
        code = read_tools(&d, json, fault);
    if (!code)
        code = read_choice(&d, json, fault);
    if (!code)
        code = read_stops(&d, json, fault);
    if (!code)
        code = read_metadata(json, fault);
    if (!code)
        code = read_output(&d, json, fault);
    if (!code)
        code = mxc_dialect_copy(&d, json, same, fault);
    if (!code)
        code = read_thinking(&d, json, fault);
    if (code)
        mxc_dialect_fini(&d);
    else
        *out = d;
    return code;
}
