/* Calls for templates that cannot write them: as text of the assistant, and for those that know no
 * tools at all the description of tools and the answers too. */
#define _GNU_SOURCE
#include "base/mem.h"
#include "gen/tools/shapes.h"

#include <string.h>

enum { MAX_BYTES = 1 << 26 };

/* Puts text before (or behind) a message's content, which is text, parts, or nothing. */
static bool add_text(json_t *message, const struct mxc_buf *text, bool behind) {
    json_t *content = json_object_get(message, "content");
    const char *old = json_string_value(content);
    size_t n = json_string_length(content);
    if (text->failed)
        return false;
    if (json_is_array(content)) {
        json_t *part =
            json_pack("{s:s,s:s%}", "type", "text", "text", mxc_buf_text(text), text->length);
        return !(behind ? json_array_append_new(content, part)
                        : json_array_insert_new(content, 0, part));
    }
    struct mxc_buf joined;
    mxc_buf_init(&joined, MAX_BYTES);
    if (behind)
        (void)mxc_buf_append(&joined, old, n);
    if (behind && n)
        (void)mxc_buf_putc(&joined, '\n');
    (void)mxc_buf_append(&joined, mxc_buf_text(text), text->length);
    if (!behind && n)
        (void)mxc_buf_puts(&joined, "\n\n");
    if (!behind)
        (void)mxc_buf_append(&joined, old, n);
    json_t *value = joined.failed ? NULL : json_stringn(mxc_buf_text(&joined), joined.length);
    mxc_buf_fini(&joined);
    return !json_object_set_new(message, "content", value);
}

/* {"name": ..., "arguments": ...}; arguments stand as text or as an object. */
static void write_call(const struct mxc_tool_shape *shape, const json_t *call,
                       struct mxc_buf *text) {
    const json_t *function = json_object_get(call, "function");
    const json_t *arguments = json_object_get(function, "arguments");
    char *name = mxc_json_dump(json_object_get(function, "name"));
    char *dump = json_is_object(arguments) ? mxc_json_dump(arguments) : NULL;
    const char *given = dump                            ? dump
                        : json_string_length(arguments) ? json_string_value(arguments)
                                                        : "{}";
    if (!name || (json_is_object(arguments) && !dump))
        text->failed = true;
    else if (shape->name_key)
        (void)mxc_buf_printf(text, "{\"%s\": %s, \"%s\": %s}", shape->name_key, name,
                             shape->arguments_key, given);
    else
        (void)mxc_buf_printf(text, "{%s: %s}", name, given);
    mxc_mem_free(name);
    mxc_mem_free(dump);
}

static void write_calls(const struct mxc_tool_shape *shape, const json_t *calls,
                        struct mxc_buf *text) {
    size_t i;
    const json_t *call;
    const char *open = shape->open ? shape->open : "", *close = shape->close ? shape->close : "";
    (void)mxc_buf_puts(text, open);
    (void)mxc_buf_puts(text, shape->list ? "[" : "");
    json_array_foreach(calls, i, call) {
        if (i && shape->between)
            (void)mxc_buf_puts(text, shape->between);
        else if (i)
            (void)mxc_buf_printf(text, "%s\n%s", close, open);
        write_call(shape, call, text);
    }
    (void)mxc_buf_puts(text, shape->list ? "]" : "");
    (void)mxc_buf_puts(text, close);
}

static bool move_calls(const struct mxc_tool_shape *shape, json_t *message) {
    struct mxc_buf text;
    json_t *calls = json_object_get(message, "tool_calls");
    if (!json_array_size(calls))
        return true;
    mxc_buf_init(&text, MAX_BYTES);
    write_calls(shape, calls, &text);
    bool ok = add_text(message, &text, true) && !json_object_del(message, "tool_calls");
    mxc_buf_fini(&text);
    return ok;
}

/* Answers that follow each other. While there are pictures among them: parts, then text. */
struct responses {
    struct mxc_buf text;
    json_t *parts; /* NULL: text only */
};

/* The text so far becomes a part. */
static bool cut_text(struct responses *r) {
    bool ok = !r->text.failed;
    if (!r->parts)
        r->parts = json_array();
    if (ok && r->text.length)
        ok = !json_array_append_new(r->parts, json_pack("{s:s,s:s%}", "type", "text", "text",
                                                        mxc_buf_text(&r->text), r->text.length));
    mxc_buf_clear(&r->text);
    return ok && r->parts;
}

static bool add_response(struct responses *r, const json_t *message) {
    json_t *content = json_object_get(message, "content"), *part;
    size_t i;
    bool ok = true;
    if (r->text.length)
        (void)mxc_buf_putc(&r->text, '\n');
    (void)mxc_buf_puts(&r->text, "<tool_response>\n");
    (void)mxc_buf_append(&r->text, json_string_value(content), json_string_length(content));
    json_array_foreach(content, i, part) {
        const json_t *value = json_object_get(part, "text");
        if (json_is_string(value))
            (void)mxc_buf_append(&r->text, json_string_value(value), json_string_length(value));
        else
            ok = ok && cut_text(r) && !json_array_append(r->parts, part);
    }
    (void)mxc_buf_puts(&r->text, "\n</tool_response>");
    return ok;
}

/* The answers before a user message's own content. */
static bool join_responses(struct responses *r, json_t *message) {
    json_t *content = json_object_get(message, "content");
    if (!r->parts)
        return add_text(message, &r->text, false);
    if (!cut_text(r))
        return false;
    if (json_is_array(content)
            ? json_array_extend(r->parts, content)
            : json_string_length(content) &&
                  json_array_append_new(r->parts,
                                        json_pack("{s:s,s:O}", "type", "text", "text", content)))
        return false;
    return !json_object_set(message, "content", r->parts);
}

/* The same as a message of their own. */
static bool put_responses(struct responses *r, json_t *out) {
    if (r->text.failed || (r->parts && !cut_text(r)))
        return false;
    json_t *message = r->parts ? json_pack("{s:s,s:O}", "role", "user", "content", r->parts)
                               : json_pack("{s:s,s:s%}", "role", "user", "content",
                                           mxc_buf_text(&r->text), r->text.length);
    return !json_array_append_new(out, message);
}

/* Runs of tool messages as one user message each; a user message that follows joins them, because
 * many such templates insist on turns. */
static bool move_responses(const json_t *messages, json_t *out) {
    size_t i, n = json_array_size(messages);
    struct responses r = {.parts = NULL};
    bool ok = true;
    mxc_buf_init(&r.text, MAX_BYTES);
    for (i = 0; ok && i <= n; i++) {
        json_t *message = json_array_get(messages, i);
        const char *role = json_string_value(json_object_get(message, "role"));
        if (role && !strcmp(role, "tool")) {
            ok = add_response(&r, message);
            continue;
        }
        if (r.text.length && role && !strcmp(role, "user"))
            ok = join_responses(&r, message);
        else if (r.text.length || r.text.failed)
            ok = put_responses(&r, out);
        mxc_buf_clear(&r.text);
        json_decref(r.parts);
        r.parts = NULL;
        if (message)
            ok = ok && !json_array_append(out, message);
    }
    json_decref(r.parts);
    mxc_buf_fini(&r.text);
    return ok;
}

static bool describe_tools(json_t *messages, const json_t *tools) {
    static const char before[] =
        "You can call functions. These are the ones there are, each as a JSON object with its "
        "JSON schema:\n<tools>\n";
    static const char after[] =
        "</tools>\nTo call one, write exactly this, with its name and arguments as one JSON "
        "object:\n<tool_call>\n{\"name\": \"the function's name\", \"arguments\": {\"parameter\": "
        "\"value\"}}\n</tool_call>\nWrite one such block for each call, and nothing behind them. "
        "The results are then given to you in <tool_response> blocks. Answer as usual when no "
        "function is needed.";
    struct mxc_buf text;
    size_t i;
    const json_t *tool;
    bool ok = false, done = false;
    mxc_buf_init(&text, MAX_BYTES);
    (void)mxc_buf_puts(&text, before);
    json_array_foreach(tools, i, tool) {
        const json_t *function = json_object_get(tool, "function");
        char *line = mxc_json_dump(function ? function : tool);
        if (line)
            (void)mxc_buf_printf(&text, "%s\n", line);
        else
            text.failed = true;
        mxc_mem_free(line);
    }
    (void)mxc_buf_puts(&text, after);
    json_t *message;
    json_array_foreach(messages, i, message) {
        const char *role = json_string_value(json_object_get(message, "role"));
        bool system = role && (!strcmp(role, "system") || !strcmp(role, "developer"));
        if (done || !role || (!system && strcmp(role, "user") != 0))
            continue;
        ok = add_text(message, &text, system);
        done = true;
    }
    if (!done)
        ok = !text.failed &&
             !json_array_insert_new(messages, 0,
                                    json_pack("{s:s,s:s%}", "role", "system", "content",
                                              mxc_buf_text(&text), text.length));
    mxc_buf_fini(&text);
    return ok;
}

enum mxc_code mxc_tools_write_out(const struct mxc_tool_shape *shape, const json_t *messages,
                                  const json_t *tools, bool describe, json_t **out,
                                  struct mxc_err *err) {
    json_t *copy = json_deep_copy(messages), *made = json_array(), *message;
    size_t i;
    bool ok = copy && made;
    if (shape->body != MXC_TOOL_OBJECTS || describe)
        shape = mxc_tool_shape_named("hermes");
    json_array_foreach(copy, i, message) ok = ok && move_calls(shape, message);
    if (describe)
        ok = ok && move_responses(copy, made);
    else
        ok = ok && !json_array_extend(made, copy);
    if (describe && json_array_size(tools))
        ok = ok && describe_tools(made, tools);
    json_decref(copy);
    if (!ok) {
        json_decref(made);
        return mxc_err_nomem(err);
    }
    *out = made;
    return MXC_OK;
}
