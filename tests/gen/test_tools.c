/* Tools of a request and calls of a history: what is checked, completed, and refused with the place
 * named; the wire shape found in a template; calls written out for templates without tools. */
#include "test.h"

#include "base/mem.h"
#include "gen/deltas.h"
#include "gen/prompt.h"
#include "gen/tools/tools.h"

#include <string.h>

static json_t *json_of(const char *text) {
    json_t *value = text ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
    if (text && !value)
        fail_msg("not JSON: %s", text);
    return value;
}

#define TOOL(name) "{\"type\":\"function\",\"function\":{\"name\":\"" name "\"}}"

static void reads(void **state) {
    (void)state;
    static const struct {
        const char *tools, *choice, *parallel;
        enum mxc_tool_choice expect;
        size_t n;
        bool parallel_expect, strict;
    } table[] = {
        {NULL, NULL, NULL, MXC_TOOLS_NONE, 0, true, false},
        {"null", "null", "null", MXC_TOOLS_NONE, 0, true, false},
        {"[]", "\"auto\"", NULL, MXC_TOOLS_NONE, 0, true, false},
        {"[" TOOL("f") "]", NULL, NULL, MXC_TOOLS_AUTO, 1, true, false},
        {"[" TOOL("f") "]", "\"auto\"", "false", MXC_TOOLS_AUTO, 1, false, false},
        {"[" TOOL("f") "]", "\"none\"", NULL, MXC_TOOLS_NONE, 1, true, false},
        {"[" TOOL("f") "," TOOL("g-1.x_") "]", "\"required\"", "true", MXC_TOOLS_REQUIRED, 2, true,
         false},
        {"[" TOOL("f") "," TOOL("g") "]", "{\"type\":\"function\",\"function\":{\"name\":\"g\"}}",
         NULL, MXC_TOOLS_NAMED, 2, false, false},
        {"[" TOOL("g") "," TOOL("f") "]", "{\"type\":\"function\",\"name\":\"f\"}", NULL,
         MXC_TOOLS_NAMED, 2, false, false},
        {"[{\"type\":\"function\",\"name\":\"f\",\"strict\":true,\"description\":\"d\","
         "\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{}}}}]",
         NULL, NULL, MXC_TOOLS_AUTO, 1, true, true},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct mxc_tools t;
        json_t *tools = json_of(table[i].tools), *choice = json_of(table[i].choice);
        json_t *parallel = json_of(table[i].parallel);
        struct mxc_err err;
        if (mxc_tools_read(tools, choice, parallel, &t, &err))
            fail_msg("row %zu: %s", i, err.message);
        assert_int_equal(t.choice, table[i].expect);
        assert_int_equal(t.n, table[i].n);
        assert_int_equal(json_array_size(t.list), t.n);
        assert_int_equal(t.parallel, table[i].parallel_expect);
        for (size_t k = 0; k < t.n; k++) { /* complete, whatever was left out */
            const json_t *f = json_object_get(json_array_get(t.list, k), "function");
            assert_string_equal(json_string_value(json_object_get(f, "name")), t.items[k].name);
            assert_true(json_is_string(json_object_get(f, "description")));
            assert_ptr_equal(json_object_get(f, "parameters"), t.items[k].parameters);
            assert_true(json_is_object(t.items[k].parameters));
            assert_int_equal(t.items[k].strict, table[i].strict);
            assert_ptr_equal(mxc_tools_get(&t, mxc_str_of(t.items[k].name)), &t.items[k]);
        }
        if (t.choice == MXC_TOOLS_NAMED)
            assert_int_equal(t.named, 1);
        assert_int_equal(mxc_tools_for_template(&t) != NULL, t.choice != MXC_TOOLS_NONE);
        assert_null(mxc_tools_get(&t, MXC_STR("nobody")));
        enum mxc_tool_force force = t.choice >= MXC_TOOLS_REQUIRED ? MXC_TOOL_FORCE_ALL
                                    : table[i].strict              ? MXC_TOOL_FORCE_LAZY
                                                                   : MXC_TOOL_FORCE_NONE;
        assert_int_equal(mxc_tools_force(&t), force);
        mxc_tools_fini(&t);
        mxc_tools_fini(&t);
        json_decref(tools);
        json_decref(choice);
        json_decref(parallel);
    }
}

static void refuses(void **state) {
    (void)state;
    static const struct {
        const char *tools, *choice, *parallel;
        enum mxc_code code;
        const char *message;
    } table[] = {
        {"5", NULL, NULL, MXC_E_ARG, "tools: "},
        {"[5]", NULL, NULL, MXC_E_ARG, "tools[0]: "},
        {"[" TOOL("f") ",{}]", NULL, NULL, MXC_E_ARG, "tools[1].type: "},
        {"[{\"type\":\"web_search\"}]", NULL, NULL, MXC_E_UNSUPPORTED, "tools[0].type: \"web_se"},
        {"[{\"type\":\"function\"}]", NULL, NULL, MXC_E_ARG, "tools[0].name: "},
        {"[{\"type\":\"function\",\"function\":3}]", NULL, NULL, MXC_E_ARG, "tools[0].function: "},
        {"[" TOOL("a b") "]", NULL, NULL, MXC_E_ARG, "tools[0].function.name: "},
        {"[" TOOL("") "]", NULL, NULL, MXC_E_ARG, "tools[0].function.name: "},
        {"[" TOOL("f") "," TOOL("f") "]", NULL, NULL, MXC_E_ARG, "tools[1].function.name: there"},
        {"[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":[]}}]", NULL, NULL,
         MXC_E_ARG, "tools[0].function.parameters: "},
        {"[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"array\"}"
         "}}]",
         NULL, NULL, MXC_E_ARG, "tools[0].function.parameters.type: "},
        {"[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":3}}}"
         "]",
         NULL, NULL, MXC_E_ARG, "tools[0].function.parameters.properties: "},
        {"[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":1}}]", NULL, NULL,
         MXC_E_ARG, "tools[0].function.strict: "},
        {"[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":1}}]", NULL, NULL,
         MXC_E_ARG, "tools[0].function.description: "},
        {"[" TOOL("f") "]", "\"maybe\"", NULL, MXC_E_ARG, "tool_choice: \"maybe\""},
        {"[" TOOL("f") "]", "7", NULL, MXC_E_ARG, "tool_choice: "},
        {"[" TOOL("f") "]", "{}", NULL, MXC_E_ARG, "tool_choice.type: "},
        {"[" TOOL("f") "]", "{\"type\":\"allowed_tools\"}", NULL, MXC_E_UNSUPPORTED,
         "tool_choice.type: \"allowed"},
        {"[" TOOL("f") "]", "{\"type\":\"function\"}", NULL, MXC_E_ARG, "tool_choice.name: "},
        {"[" TOOL("f") "]", "{\"type\":\"function\",\"function\":{\"name\":\"nope\"}}", NULL,
         MXC_E_ARG, "tool_choice.function.name: no tool"},
        {NULL, "\"required\"", NULL, MXC_E_ARG, "tool_choice: "},
        {NULL, NULL, "\"yes\"", MXC_E_ARG, "parallel_tool_calls: "},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct mxc_tools t = {.n = 77};
        struct mxc_err err;
        json_t *tools = json_of(table[i].tools), *choice = json_of(table[i].choice);
        json_t *parallel = json_of(table[i].parallel);
        enum mxc_code code = mxc_tools_read(tools, choice, parallel, &t, &err);
        if (code != table[i].code || strstr(err.message, table[i].message) != err.message)
            fail_msg("row %zu: %d %s", i, (int)code, code ? err.message : "");
        assert_int_equal(t.n, 77);
        json_decref(tools);
        json_decref(choice);
        json_decref(parallel);
    }
}

#define CALL(id, name)                                                                             \
    "{\"id\":\"" id "\",\"type\":\"function\",\"function\":{\"name\":\"" name                      \
    "\",\"arguments\":\"{}\"}}"
#define ASSISTANT(calls) "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[" calls "]}"
#define ANSWER(id)       "{\"role\":\"tool\",\"tool_call_id\":\"" id "\",\"content\":\"x\"}"
#define USER             "{\"role\":\"user\",\"content\":\"u\"}"

static void history(void **state) {
    (void)state;
    static const struct {
        const char *messages, *error; /* NULL: fine */
    } table[] = {
        {"[" USER "]", NULL},
        {"[" USER "," ASSISTANT(CALL("a", "f")) "," ANSWER("a") "," USER "]", NULL},
        {"[" ASSISTANT(CALL("a", "f") "," CALL("b", "g")) "," ANSWER("b") "," ANSWER("a") "]",
         NULL},
        {"[" ASSISTANT(CALL("a", "f")) "," ANSWER("a") "," ASSISTANT(CALL("a", "f")) "," ANSWER(
             "a") "]",
         NULL},
        {"[" USER "," ASSISTANT(CALL("a", "f")) "]", NULL}, /* not answered yet */
        {"[{\"role\":\"assistant\",\"content\":\"x\",\"tool_calls\":[]}]", NULL},
        {"[" ASSISTANT(
             "{\"function\":{\"name\":\"f\",\"arguments\":{\"a\":1}}}") ",{\"role\":"
                                                                        "\"tool\",\"content\":"
                                                                        "\"x\"}]",
         NULL},
        {"[" ASSISTANT("{\"function\":{\"name\":\"f\"}}") "]", NULL},
        {"[3]", "messages[0]: "},
        {"[" ANSWER("a") "]", "messages[0]: a tool message"},
        {"[" USER "," ANSWER("a") "]", "messages[1]: a tool message"},
        {"[" ASSISTANT(CALL("a", "f")) "," USER "," ANSWER("a") "]",
         "messages[0].tool_calls[0]: no tool message after it"},
        {"[" ASSISTANT(CALL("a", "f") "," CALL("b", "g")) "," ANSWER("a") "," USER "]",
         "messages[0].tool_calls[1]: no tool message after it answers the call \"b\""},
        {"[" ASSISTANT(CALL("a", "f") "," CALL("b", "g")) "," ANSWER("a") "]",
         "messages[0].tool_calls[1]: no tool message"},
        {"[" ASSISTANT(CALL("a", "f")) "," ANSWER("c") "]",
         "messages[1].tool_call_id: messages[0] has no call \"c\""},
        {"[" ASSISTANT(CALL("a", "f")) "," ANSWER("a") "," ANSWER("a") "]",
         "messages[2].tool_call_id: the call \"a\" is answered twice"},
        {"[" ASSISTANT(CALL("a", "f")) "," ANSWER("a") ",{\"role\":\"tool\",\"content\":\"\"}]",
         "messages[2]: a tool message, but all"},
        {"[" ASSISTANT(CALL("a", "f")) ",{\"role\":\"tool\",\"tool_call_id\":4}]",
         "messages[1].tool_call_id: "},
        {"[" ASSISTANT(CALL("a", "f") "," CALL("a", "g")) "]", "messages[0].tool_calls[1].id: "},
        {"[" ASSISTANT("7") "]", "messages[0].tool_calls[0]: "},
        {"[" ASSISTANT("{\"id\":5,\"function\":{\"name\":\"f\"}}") "]",
         "messages[0].tool_calls[0].id: "},
        {"[" ASSISTANT("{\"type\":\"custom\",\"function\":{\"name\":\"f\"}}") "]",
         "messages[0].tool_calls[0].type: "},
        {"[" ASSISTANT("{\"function\":{}}") "]", "messages[0].tool_calls[0].function: "},
        {"[{\"role\":\"assistant\",\"tool_calls\":3}]", "messages[0].tool_calls: "},
        {"[{\"role\":\"user\",\"tool_calls\":[{}]}]", "messages[0].tool_calls: "},
        {"[" USER "," USER "," USER "," ASSISTANT("{\"function\":{\"name\":\"f\",\"arguments\":"
                                                  "\"{not json\"}}") "]",
         "messages[3].tool_calls[0].function.arguments: "},
        {"[" ASSISTANT("{\"function\":{\"name\":\"f\",\"arguments\":\"[1]\"}}") "]",
         "messages[0].tool_calls[0].function.arguments: "},
        {"[" ASSISTANT("{\"function\":{\"name\":\"f\",\"arguments\":4}}") "]",
         "messages[0].tool_calls[0].function.arguments: "},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        json_t *messages = json_of(table[i].messages);
        struct mxc_err err = {.message = ""};
        enum mxc_code code = mxc_tools_check_history(messages, 0, &err);
        if (code != (table[i].error ? MXC_E_ARG : MXC_OK) ||
            (table[i].error && strstr(err.message, table[i].error) != err.message))
            fail_msg("%s\n%d %s", table[i].messages, (int)code, err.message);
        json_decref(messages);
    }
}

static const char *text_at(const json_t *messages, size_t i, const char *key) {
    return json_string_value(json_object_get(json_array_get(messages, i), key));
}

static void ids(void **state) {
    (void)state;
    json_t *m = json_of("[" ASSISTANT(CALL("call_0123456789", "f") "," CALL(
        "Abc45678z", "g")) "," ANSWER("call_0123456789") "," ANSWER("Abc45678z") "]");
    assert_int_equal(mxc_tools_check_history(m, 9, NULL), MXC_OK);
    const json_t *calls = json_object_get(json_array_get(m, 0), "tool_calls");
    const char *made = text_at(calls, 0, "id");
    assert_int_equal(strlen(made), 9);
    assert_string_equal(text_at(m, 1, "tool_call_id"), made);
    assert_string_equal(text_at(calls, 1, "id"), "Abc45678z");
    assert_string_equal(text_at(m, 2, "name"), "g");
    json_decref(m);
    struct mxc_rng rng;
    char a[MXC_TOOL_ID_BYTES], b[MXC_TOOL_ID_BYTES];
    mxc_rng_seed(&rng, 5);
    mxc_tool_id(&rng, 0, a);
    mxc_tool_id(&rng, 0, b);
    assert_int_equal(strlen(a), 29);
    assert_memory_equal(a, "call_", 5);
    assert_string_not_equal(a, b);
    assert_int_equal(
        strspn(a + 5, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"), 24);
    mxc_tool_id(&rng, 9, a);
    assert_int_equal(strlen(a), 9);
}

static bool has_token(void *user, const char *spelling) {
    return strstr(user, spelling) != NULL;
}

static void shapes(void **state) {
    (void)state;
    static const char *const table[][2] = {
        {"", "hermes"},
        {"no such thing, but [TOOL_CALLS]", "hermes"},
        {"tools <tool_call>\\n{\"name\"", "hermes"},
        {"tools <tool_call> <function=f> <parameter=p>", "qwen-xml"},
        {"tools <tool_call>f <arg_key>k</arg_key>", "glm"},
        {"tools [TOOL_CALLS] [", "mistral"},
        {"tools [TOOL_CALLS]f[ARGS]", "mistral-args"},
        {"tools {\"name\": f, \"parameters\": {}} ipython", "llama-json"},
        {"tools [func_name1(a=b)]", "pythonic"},
        {"tools <|tool_call_start|>", "pythonic-marked"},
        {"tools <|START_ACTION|>", "cohere"},
        {"tools Action: ```json tool_name", "cohere-action"},
        {"tools <|tool_call|>", "granite"},
        {"tools <|tool_call|><|/tool_call|>", "phi"},
        {"tools <|channel|>commentary", "harmony"},
        {"tools <|tool_call>call:<tool_call|>", "gemma"},
        {"tools <\xEF\xBD\x9Ctool\xE2\x96\x81"
         "calls\xE2\x96\x81"
         "begin\xEF\xBD\x9C> ```json",
         "deepseek"},
        {"tools <\xEF\xBD\x9Ctool\xE2\x96\x81"
         "calls\xE2\x96\x81"
         "begin\xEF\xBD\x9C>",
         "deepseek-v3.1"},
        {"tools \xEF\xBD\x9C"
         "DSML\xEF\xBD\x9C function_calls>",
         "dsml"},
        {"tools \xEF\xBD\x9C"
         "DSML\xEF\xBD\x9C tool_calls>",
         "dsml-v4"},
        {"tools, of which nothing is said", "hermes"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const struct mxc_tool_shape *s = mxc_tool_shape_find(mxc_str_of(table[i][0]), NULL, NULL);
        assert_string_equal(mxc_tool_shape_name(s), table[i][1]);
    }
    char vocabulary[] = "[TOOL_CALLS]";
    assert_string_equal(mxc_tool_shape_name(mxc_tool_shape_find(mxc_str_of("tools, of which "
                                                                           "nothing is said"),
                                                                has_token, vocabulary)),
                        "mistral");
    size_t n;
    const char *const *shown = mxc_tool_shape_shown(mxc_tool_shape_named("mistral"), &n);
    assert_int_equal(n, 1);
    assert_string_equal(shown[0], "[TOOL_CALLS]");
    assert_int_equal(mxc_tool_shape_id_length(mxc_tool_shape_named("mistral")), 9);
    assert_null(mxc_tool_shape_named("nobody"));
    for (size_t i = 0; mxc_tool_shape_list(i); i++) {
        const struct mxc_tool_shape *s = mxc_tool_shape_named(mxc_tool_shape_list(i));
        assert_string_equal(mxc_tool_shape_name(s), mxc_tool_shape_list(i)); /* names differ */
        (void)mxc_tool_shape_shown(s, &n);
        assert_true(n <= MXC_MAX_SHOWN);
    }
}

static json_t *normalised(const char *template_text, const char *messages, const char *variables) {
    struct mxc_chat *chat = NULL;
    json_t *m = json_of(messages), *v = json_of(variables), *out = NULL;
    struct mxc_err err;
    assert_int_equal(mxc_chat_new(NULL, template_text, &chat, NULL), MXC_OK);
    if (mxc_prompt_normalise(chat, m, v, &out, &err))
        fail_msg("%s", err.message);
    json_decref(m);
    json_decref(v);
    mxc_chat_close(chat);
    return out;
}

/* A template that knows no tools sees text only, in turns. */
static void written_out(void **state) {
    (void)state;
    static const char plain[] =
        "{% for m in messages %}{{ m.role + ': ' + m.content }}\n{% endfor %}";
    static const char talk[] =
        "[{\"role\":\"user\",\"content\":\"Q\"},{\"role\":\"assistant\",\"content\":\"A\","
        "\"tool_calls\":[{\"id\":\"a\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"x\\\": 1}"
        "\"}},{\"id\":\"b\",\"function\":{\"name\":\"g\",\"arguments\":{}}}]}," ANSWER(
            "b") "," ANSWER("a") "," USER "]";
    json_t *m = normalised(plain, talk, "{\"tools\":[" TOOL("f") "]}");
    assert_int_equal(json_array_size(m), 3);
    assert_string_equal(text_at(m, 1, "content"),
                        "A\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n"
                        "</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n"
                        "</tool_call>");
    assert_string_equal(text_at(m, 2, "role"), "user");
    assert_string_equal(text_at(m, 2, "content"),
                        "<tool_response>\nx\n</tool_response>\n<tool_response>\nx\n"
                        "</tool_response>\n\nu");
    assert_non_null(strstr(text_at(m, 0, "content"), "{\"name\":\"f\"}"));
    assert_non_null(strstr(text_at(m, 0, "content"), "</tool_call>"));
    assert_string_equal(text_at(m, 0, "content") + strlen(text_at(m, 0, "content")) - 3, "\n\nQ");
    json_decref(m);
    m = normalised(plain, "[{\"role\":\"system\",\"content\":\"S\"}," USER "]",
                   "{\"tools\":[" TOOL("f") "]}");
    assert_memory_equal(text_at(m, 0, "content"), "S\n", 2);
    assert_string_equal(text_at(m, 1, "content"), "u");
    json_decref(m);
    /* knows tools, but writes no calls: they become text in its own shape */
    m = normalised("{% if tools %}<|tool_call|>{% endif %}{% for m in messages %}{{ m.role + ': ' "
                   "+ m.content }}\n{% endfor %}",
                   talk, "{\"tools\":[" TOOL("f") "]}");
    assert_int_equal(json_array_size(m), 5);
    assert_string_equal(text_at(m, 1, "content"),
                        "A\n<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"x\": 1}}, {\"name\": "
                        "\"g\", \"arguments\": {}}]");
    assert_string_equal(text_at(m, 2, "role"), "tool");
    assert_string_equal(text_at(m, 0, "content"), "Q");
    json_decref(m);
}

/* Every allocation of ours may fail. (Jansson's are not ours.) */
static void memory_fails(void **state) {
    (void)state;
    json_t *tools = json_of("[" TOOL("f") "," TOOL("g") "]"), *out;
    json_t *messages = json_of(
        "[" ASSISTANT("{\"function\":{\"name\":\"f\"}}") ",{\"role\":"
                                                         "\"tool\",\"content\":\"x\"}," USER "]");
    for (uint64_t n = 1; n < 60; n++) {
        struct mxc_tools t;
        json_t *copy = json_deep_copy(messages);
        mxc_mem_fail_at(n);
        enum mxc_code read = mxc_tools_read(tools, NULL, NULL, &t, NULL);
        enum mxc_code check = mxc_tools_check_history(copy, 9, NULL);
        enum mxc_code write =
            mxc_tools_write_out(mxc_tool_shape_named("hermes"), messages, tools, true, &out, NULL);
        mxc_mem_fail_at(0);
        if (!read)
            mxc_tools_fini(&t);
        if (!write)
            json_decref(out);
        assert_true(!read || read == MXC_E_NOMEM);
        assert_true(!check || check == MXC_E_NOMEM);
        assert_true(!write || write == MXC_E_NOMEM);
        json_decref(copy);
        if (!read && !check && !write) {
            json_decref(tools);
            json_decref(messages);
            return;
        }
    }
    fail_msg("never enough memory");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(reads),       cmocka_unit_test(refuses),
                                       cmocka_unit_test(history),     cmocka_unit_test(ids),
                                       cmocka_unit_test(shapes),      cmocka_unit_test(written_out),
                                       cmocka_unit_test(memory_fails)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
