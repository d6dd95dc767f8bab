/* What a request says about tools, and what its history says of calls and answers. In: JSON from a
 * client. Out: checked and complete, or one error that names the place. */
#define _GNU_SOURCE
#include "gen/tools/tools.h"

#include "base/mem.h"

#include <string.h>

enum { MAX_CALLS = 256 /* of one message */ };

static bool is_name_byte(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           c == '-' || c == '.';
}

static bool is_name(const json_t *value) {
    const char *s = json_string_value(value);
    size_t n = json_string_length(value);
    bool ok = n > 0 && n <= MXC_MAX_TOOL_NAME;
    for (size_t i = 0; ok && i < n; i++)
        ok = is_name_byte(s[i]);
    return ok;
}

static bool is_absent(const json_t *value) {
    return !value || json_is_null(value);
}

/* ---- tools */

/* Copies a member into the complete function; `fallback` (taken in) when it is absent. */
static bool copy_member(json_t *to, const json_t *from, const char *key, json_t *fallback) {
    json_t *value = json_object_get(from, key);
    if (is_absent(value))
        return !fallback || !json_object_set_new(to, key, fallback);
    json_decref(fallback);
    return !json_object_set(to, key, value);
}

static enum mxc_code check_function(const json_t *function, const char *at, struct mxc_err *err) {
    const json_t *parameters = json_object_get(function, "parameters"), *value;
    if (!is_name(json_object_get(function, "name")))
        return mxc_err_set(err, MXC_E_ARG,
                           "%s.name: not 1 to %d of the characters A-Z, a-z, 0-9, _, - and .", at,
                           MXC_MAX_TOOL_NAME);
    value = json_object_get(function, "description");
    if (!is_absent(value) && !json_is_string(value))
        return mxc_err_set(err, MXC_E_ARG, "%s.description: not text", at);
    value = json_object_get(function, "strict");
    if (!is_absent(value) && !json_is_boolean(value))
        return mxc_err_set(err, MXC_E_ARG, "%s.strict: not true or false", at);
    if (is_absent(parameters))
        return MXC_OK;
    if (!json_is_object(parameters))
        return mxc_err_set(err, MXC_E_ARG, "%s.parameters: not an object", at);
    value = json_object_get(parameters, "type");
    const char *type = json_string_value(value);
    if (!is_absent(value) && (!type || strcmp(type, "object") != 0))
        return mxc_err_set(err, MXC_E_ARG, "%s.parameters.type: not \"object\"", at);
    value = json_object_get(parameters, "properties");
    if (!is_absent(value) && !json_is_object(value))
        return mxc_err_set(err, MXC_E_ARG, "%s.parameters.properties: not an object", at);
    return MXC_OK;
}

static enum mxc_code read_tool(struct mxc_tools *t, const json_t *item, struct mxc_err *err) {
    const json_t *type = json_object_get(item, "type"), *inner = json_object_get(item, "function");
    struct mxc_buf place;
    mxc_buf_init(&place, 64);
    if (!json_is_object(item))
        return mxc_err_set(err, MXC_E_ARG, "tools[%zu]: not an object", t->n);
    if (!json_is_string(type))
        return mxc_err_set(err, MXC_E_ARG, "tools[%zu].type: not text", t->n);
    if (strcmp(json_string_value(type), "function") != 0)
        return mxc_err_set(err, MXC_E_UNSUPPORTED,
                           "tools[%zu].type: \"%.40s\" is not supported; the tools of this server "
                           "are of type \"function\"",
                           t->n, json_string_value(type));
    if (inner && !json_is_object(inner))
        return mxc_err_set(err, MXC_E_ARG, "tools[%zu].function: not an object", t->n);
    bool ok = mxc_buf_printf(&place, inner ? "tools[%zu].function" : "tools[%zu]", t->n);
    const json_t *function = inner ? inner : item;
    enum mxc_code code =
        ok ? check_function(function, mxc_buf_text(&place), err) : mxc_err_nomem(err);
    const char *name = json_string_value(json_object_get(function, "name"));
    if (!code && mxc_tools_get(t, mxc_str_of(name)))
        code = mxc_err_set(err, MXC_E_ARG, "%s.name: there are two tools \"%s\"",
                           mxc_buf_text(&place), name);
    mxc_buf_fini(&place);
    if (code)
        return code;
    json_t *f = json_object();
    json_t *tool = json_pack("{s:s,s:O}", "type", "function", "function", f);
    ok = tool && copy_member(f, function, "name", NULL) &&
         copy_member(f, function, "description", json_string("")) &&
         copy_member(f, function, "parameters",
                     json_pack("{s:s,s:{}}", "type", "object", "properties")) &&
         copy_member(f, function, "strict", NULL) && !json_array_append(t->list, tool);
    t->items[t->n] = (struct mxc_tool){.name = json_string_value(json_object_get(f, "name")),
                                       .parameters = json_object_get(f, "parameters"),
                                       .strict = json_is_true(json_object_get(function, "strict"))};
    json_decref(f);
    json_decref(tool);
    if (!ok)
        return mxc_err_nomem(err);
    t->n++;
    return MXC_OK;
}

static enum mxc_code read_choice(struct mxc_tools *t, const json_t *choice, struct mxc_err *err) {
    static const char *const words[] = {"none", "auto", "required"};
    const char *word = json_string_value(choice);
    if (is_absent(choice)) {
        t->choice = t->n ? MXC_TOOLS_AUTO : MXC_TOOLS_NONE;
        return MXC_OK;
    }
    if (word) {
        for (int i = 0; i < 3; i++)
            if (!strcmp(word, words[i]))
                t->choice = (enum mxc_tool_choice)i;
        if (strcmp(word, words[t->choice]) != 0)
            return mxc_err_set(err, MXC_E_ARG,
                               "tool_choice: \"%.40s\" is none of \"auto\", \"none\", \"required\"",
                               word);
    } else {
        const json_t *type = json_object_get(choice, "type");
        const json_t *inner = json_object_get(choice, "function");
        const json_t *name = json_object_get(inner ? inner : choice, "name");
        if (!json_is_object(choice))
            return mxc_err_set(err, MXC_E_ARG, "tool_choice: neither text nor an object");
        if (!json_is_string(type))
            return mxc_err_set(err, MXC_E_ARG, "tool_choice.type: not text");
        if (strcmp(json_string_value(type), "function") != 0)
            return mxc_err_set(err, MXC_E_UNSUPPORTED,
                               "tool_choice.type: \"%.40s\" is not supported; use \"function\", or "
                               "offer only the tools that may be called",
                               json_string_value(type));
        if (!json_is_string(name))
            return mxc_err_set(err, MXC_E_ARG, "tool_choice%s.name: not text",
                               inner ? ".function" : "");
        const struct mxc_tool *tool =
            mxc_tools_get(t, (struct mxc_str){json_string_value(name), json_string_length(name)});
        if (!tool)
            return mxc_err_set(err, MXC_E_ARG, "tool_choice%s.name: no tool is named \"%.128s\"",
                               inner ? ".function" : "", json_string_value(name));
        t->choice = MXC_TOOLS_NAMED;
        t->named = (size_t)(tool - t->items);
    }
    if (!t->n && t->choice == MXC_TOOLS_REQUIRED)
        return mxc_err_set(err, MXC_E_ARG, "tool_choice: \"required\", but there are no tools");
    if (!t->n)
        t->choice = MXC_TOOLS_NONE;
    return MXC_OK;
}

enum mxc_code mxc_tools_read(const json_t *tools, const json_t *choice, const json_t *parallel,
                             struct mxc_tools *out, struct mxc_err *err) {
    struct mxc_tools t = {.parallel = true};
    size_t n = json_array_size(tools), i;
    const json_t *item;
    enum mxc_code code = MXC_OK;
    if (!is_absent(tools) && !json_is_array(tools))
        return mxc_err_set(err, MXC_E_ARG, "tools: not a list");
    if (n > MXC_MAX_TOOLS)
        return mxc_err_set(err, MXC_E_ARG, "tools: %zu of them; the limit is %d", n, MXC_MAX_TOOLS);
    if (!is_absent(parallel) && !json_is_boolean(parallel))
        return mxc_err_set(err, MXC_E_ARG, "parallel_tool_calls: not true or false");
    t.list = json_array();
    t.items = mxc_mem_zalloc(n, sizeof *t.items);
    if (!t.list || (n && !t.items))
        code = mxc_err_nomem(err);
    for (i = 0; !code && i < n; i++) {
        item = json_array_get(tools, i);
        code = read_tool(&t, item, err);
    }
    if (!code)
        code = read_choice(&t, choice, err);
    if (code) {
        mxc_tools_fini(&t);
        return code;
    }
    t.parallel = !json_is_false(parallel) && t.choice != MXC_TOOLS_NAMED;
    *out = t;
    return MXC_OK;
}

void mxc_tools_fini(struct mxc_tools *tools) {
    json_decref(tools->list);
    mxc_mem_free(tools->items);
    *tools = (struct mxc_tools){.n = 0};
}

json_t *mxc_tools_for_template(const struct mxc_tools *tools) {
    return tools->n && tools->choice != MXC_TOOLS_NONE ? tools->list : NULL;
}

const struct mxc_tool *mxc_tools_get(const struct mxc_tools *tools, struct mxc_str name) {
    for (size_t i = 0; i < tools->n; i++)
        if (mxc_str_is(name, tools->items[i].name))
            return &tools->items[i];
    return NULL;
}

/* ---- history */

/* The calls of the assistant message that tool messages answer now. */
struct open_calls {
    json_t *calls;                 /* NULL: none; borrowed */
    size_t message;                /* which has them */
    uint64_t seen[MAX_CALLS / 64]; /* bit per call: answered */
    size_t n_open;
};

static bool is_short_id(const json_t *id, size_t length) {
    const char *s = json_string_value(id);
    bool ok = json_string_length(id) == length;
    for (size_t i = 0; ok && i < length; i++)
        ok = is_name_byte(s[i]) && s[i] != '_' && s[i] != '-' && s[i] != '.';
    return ok;
}

/* The id as the template takes it. NULL: out of memory. */
static json_t *fit_id(const json_t *id, int id_length) {
    if (!id_length || is_short_id(id, (size_t)id_length))
        return json_string(json_string_value(id));
    struct mxc_rng rng;
    char fitting[MXC_TOOL_ID_BYTES];
    mxc_rng_seed(&rng, mxc_hash_bytes(json_string_value(id), json_string_length(id), 0));
    mxc_tool_id(&rng, id_length, fitting);
    return json_string(fitting);
}

static enum mxc_code check_call(json_t *calls, size_t message, size_t i, int id_length,
                                struct mxc_err *err) {
    json_t *call = json_array_get(calls, i), *function = json_object_get(call, "function");
    json_t *id = json_object_get(call, "id"), *made = NULL;
    const json_t *type = json_object_get(call, "type");
    if (!json_is_object(call))
        return mxc_err_set(err, MXC_E_ARG, "messages[%zu].tool_calls[%zu]: not an object", message,
                           i);
    if (!is_absent(type) &&
        (!json_is_string(type) || strcmp(json_string_value(type), "function") != 0))
        return mxc_err_set(err, MXC_E_ARG, "messages[%zu].tool_calls[%zu].type: not \"function\"",
                           message, i);
    if (!json_is_object(function) || !json_string_length(json_object_get(function, "name")))
        return mxc_err_set(err, MXC_E_ARG,
                           "messages[%zu].tool_calls[%zu].function: not a function with a name",
                           message, i);
    if (!is_absent(id) && !json_string_length(id))
        return mxc_err_set(err, MXC_E_ARG, "messages[%zu].tool_calls[%zu].id: empty, or not text",
                           message, i);
    if (is_absent(id)) {
        struct mxc_buf text;
        mxc_buf_init(&text, 64);
        if (mxc_buf_printf(&text, "call_%zu_%zu", message, i))
            id = made = json_string(mxc_buf_text(&text));
        mxc_buf_fini(&text);
        if (!made)
            return mxc_err_nomem(err);
    }
    json_t *fitting = fit_id(id, id_length);
    json_decref(made);
    for (size_t other = 0; fitting && other < i; other++) {
        if (json_equal(json_object_get(json_array_get(calls, other), "id"), fitting)) {
            json_decref(fitting);
            return mxc_err_set(err, MXC_E_ARG,
                               "messages[%zu].tool_calls[%zu].id: the same as that of call %zu",
                               message, i, other);
        }
    }
    if (json_object_set_new(call, "id", fitting) ||
        json_object_set_new(call, "type", json_string("function")))
        return mxc_err_nomem(err);
    return MXC_OK;
}

static enum mxc_code check_arguments(const json_t *arguments, size_t message, size_t i,
                                     struct mxc_err *err) {
    json_t *parsed = NULL;
    size_t length = json_string_length(arguments);
    if (!is_absent(arguments) && !json_is_string(arguments) && !json_is_object(arguments))
        return mxc_err_set(err, MXC_E_ARG,
                           "messages[%zu].tool_calls[%zu].function.arguments: neither text nor an "
                           "object",
                           message, i);
    if (!length)
        return MXC_OK;
    enum mxc_code code =
        mxc_json_parse(json_string_value(arguments), length, "arguments", &parsed, err);
    bool ok = json_is_object(parsed);
    json_decref(parsed);
    if (code == MXC_E_NOMEM || (!code && ok))
        return code;
    return mxc_err_set(err, MXC_E_ARG,
                       "messages[%zu].tool_calls[%zu].function.arguments: not a JSON object",
                       message, i);
}

static enum mxc_code check_answered(const struct open_calls *open, struct mxc_err *err) {
    size_t i = 0;
    if (!open->n_open)
        return MXC_OK;
    while (open->seen[i / 64] >> (i % 64) & 1)
        i++;
    return mxc_err_set(err, MXC_E_ARG,
                       "messages[%zu].tool_calls[%zu]: no tool message after it answers the call "
                       "\"%.100s\"",
                       open->message, i,
                       json_string_value(json_object_get(json_array_get(open->calls, i), "id")));
}

static enum mxc_code open_calls(struct open_calls *open, json_t *message, size_t index,
                                int id_length, struct mxc_err *err) {
    const char *role = json_string_value(json_object_get(message, "role"));
    json_t *calls = json_object_get(message, "tool_calls");
    size_t n = json_array_size(calls);
    if (is_absent(calls) || (json_is_array(calls) && !n)) {
        if (calls)
            (void)json_object_del(message, "tool_calls"); /* templates ask whether it is there */
        return MXC_OK;
    }
    if (!json_is_array(calls))
        return mxc_err_set(err, MXC_E_ARG, "messages[%zu].tool_calls: not a list", index);
    if (!role || strcmp(role, "assistant") != 0)
        return mxc_err_set(err, MXC_E_ARG,
                           "messages[%zu].tool_calls: only assistant messages make calls", index);
    if (n > MAX_CALLS)
        return mxc_err_set(err, MXC_E_ARG, "messages[%zu].tool_calls: %zu of them; the limit is %d",
                           index, n, MAX_CALLS);
    for (size_t i = 0; i < n; i++) {
        enum mxc_code code = check_call(calls, index, i, id_length, err);
        const json_t *function = json_object_get(json_array_get(calls, i), "function");
        if (!code)
            code = check_arguments(json_object_get(function, "arguments"), index, i, err);
        if (code)
            return code;
    }
    memset(open->seen, 0, sizeof open->seen);
    open->calls = calls;
    open->message = index;
    open->n_open = n;
    return MXC_OK;
}

static enum mxc_code answer_call(struct open_calls *open, json_t *message, size_t index,
                                 int id_length, struct mxc_err *err) {
    json_t *id = json_object_get(message, "tool_call_id"), *fitting = NULL;
    size_t n = json_array_size(open->calls), i = 0;
    if (!is_absent(id) && !json_is_string(id))
        return mxc_err_set(err, MXC_E_ARG, "messages[%zu].tool_call_id: not text", index);
    if (!open->calls)
        return mxc_err_set(err, MXC_E_ARG,
                           "messages[%zu]: a tool message, but no assistant message with "
                           "tool_calls stands before it",
                           index);
    if (is_absent(id)) {
        while (i < n && open->seen[i / 64] >> (i % 64) & 1)
            i++;
        if (i == n)
            return mxc_err_set(err, MXC_E_ARG,
                               "messages[%zu]: a tool message, but all %zu calls before it are "
                               "answered",
                               index, n);
    } else {
        if (!(fitting = fit_id(id, id_length)))
            return mxc_err_nomem(err);
        while (i < n && !json_equal(json_object_get(json_array_get(open->calls, i), "id"), fitting))
            i++;
        json_decref(fitting);
        if (i == n)
            return mxc_err_set(err, MXC_E_ARG,
                               "messages[%zu].tool_call_id: messages[%zu] has no call \"%.100s\"",
                               index, open->message, json_string_value(id));
        if (open->seen[i / 64] >> (i % 64) & 1)
            return mxc_err_set(err, MXC_E_ARG,
                               "messages[%zu].tool_call_id: the call \"%.100s\" is answered twice",
                               index, json_string_value(id));
    }
    open->seen[i / 64] |= (uint64_t)1 << (i % 64);
    open->n_open--;
    json_t *call = json_array_get(open->calls, i);
    if (json_object_set(message, "tool_call_id", json_object_get(call, "id")) ||
        (!json_is_string(json_object_get(message, "name")) &&
         json_object_set(message, "name",
                         json_object_get(json_object_get(call, "function"), "name"))))
        return mxc_err_nomem(err);
    return MXC_OK;
}

enum mxc_code mxc_tools_check_history(json_t *messages, int id_length, struct mxc_err *err) {
    struct open_calls open = {.calls = NULL};
    enum mxc_code code = MXC_OK;
    size_t i;
    json_t *message;
    json_array_foreach(messages, i, message) {
        const char *role = json_string_value(json_object_get(message, "role"));
        if (!json_is_object(message))
            code = mxc_err_set(err, MXC_E_ARG, "messages[%zu]: not an object", i);
        else if (role && !strcmp(role, "tool"))
            code = answer_call(&open, message, i, id_length, err);
        else if (!(code = check_answered(&open, err))) {
            open.calls = NULL;
            open.n_open = 0;
            code = open_calls(&open, message, i, id_length, err);
        }
        if (code)
            break;
    }
    if (!code && open.calls && open.message + 1 != json_array_size(messages))
        code = check_answered(&open, err);
    return code;
}
