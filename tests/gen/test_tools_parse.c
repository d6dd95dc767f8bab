/* The parser of calls: every wire shape, what is no call, what breaks off, and that no way of
 * cutting a text changes the joined result. A result is written "text<name|arguments>text", with
 * "!" before the last bracket of a call that is incomplete. */
#include "test.h"

#include "base/mem.h"
#include "gen/tools/tools.h"

#include <stdlib.h>
#include <string.h>

#define BAR         "\xEF\xBD\x9C"
#define LOW         "\xE2\x96\x81"
#define DS(x)       "<" BAR x BAR ">"
#define CALLS_BEGIN DS("tool" LOW "calls" LOW "begin")
#define CALLS_END   DS("tool" LOW "calls" LOW "end")
#define CALL_BEGIN  DS("tool" LOW "call" LOW "begin")
#define CALL_END    DS("tool" LOW "call" LOW "end")
#define SEP         DS("tool" LOW "sep")

static struct mxc_tools tools;

static json_t *json_of(const char *text) {
    json_t *value = NULL;
    struct mxc_err err;
    if (mxc_json_parse(text, strlen(text), "test", &value, &err))
        fail_msg("%s: %s", text, err.message);
    return value;
}

static int setup(void **state) {
    (void)state;
    json_t *list = json_of(
        "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":"
        "\"object\",\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"},"
        "\"exact\":{\"type\":\"boolean\"},\"places\":{\"type\":\"array\"},\"unit\":{\"anyOf\":[{"
        "\"type\":\"string\"},{\"type\":\"null\"}]},\"opts\":{\"$ref\":\"#/$defs/opts\"}},"
        "\"$defs\":{\"opts\":{\"type\":\"object\"}}}}},"
        "{\"type\":\"function\",\"function\":{\"name\":\"now\"}},"
        "{\"type\":\"function\",\"function\":{\"name\":\"a.b-c_1\",\"parameters\":{}}}]");
    struct mxc_err err;
    enum mxc_code code = mxc_tools_read(list, NULL, NULL, &tools, &err);
    json_decref(list);
    return code == MXC_OK ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    mxc_tools_fini(&tools);
    return 0;
}

struct result {
    struct mxc_buf text;
    size_t n_calls, open;
    struct mxc_buf arguments; /* of the open call */
    bool in_call;
};

static bool take(void *user, const struct mxc_tool_event *e) {
    struct result *r = user;
    switch (e->kind) {
    case MXC_TOOL_TEXT:
        assert_false(r->in_call);
        assert_true(e->text.length > 0);
        (void)mxc_buf_append(&r->text, e->text.ptr, e->text.length);
        break;
    case MXC_TOOL_BEGIN:
        assert_false(r->in_call);
        assert_int_equal(e->index, r->n_calls++);
        assert_true(strlen(e->id) == 29 || strlen(e->id) == 9);
        (void)mxc_buf_printf(&r->text, "<%s|", e->name);
        mxc_buf_clear(&r->arguments);
        r->in_call = true;
        break;
    case MXC_TOOL_ARGUMENTS:
        assert_true(r->in_call);
        assert_int_equal(e->index, r->n_calls - 1);
        (void)mxc_buf_append(&r->arguments, e->text.ptr, e->text.length);
        (void)mxc_buf_append(&r->text, e->text.ptr, e->text.length);
        break;
    default:
        assert_true(r->in_call);
        assert_int_equal(e->index, r->n_calls - 1);
        if (e->complete) {
            json_t *value =
                json_loadb(mxc_buf_text(&r->arguments), r->arguments.length, JSON_ALLOW_NUL, NULL);
            if (!json_is_object(value))
                fail_msg("not an object: %s", mxc_buf_text(&r->arguments));
            json_decref(value);
        }
        (void)mxc_buf_puts(&r->text, e->complete ? ">" : "!>");
        r->in_call = false;
    }
    return true;
}

static void run(const char *shape, const struct mxc_tools *offered, const char *text, size_t length,
                const size_t *ends, size_t n_ends, struct result *r) {
    struct mxc_tool_parser *parser;
    struct mxc_tool_parser_options options = {.shape = mxc_tool_shape_named(shape),
                                              .tools = offered,
                                              .seed = 1,
                                              .event = take,
                                              .user = r};
    *r = (struct result){.n_calls = 0};
    mxc_buf_init(&r->text, 1 << 20);
    mxc_buf_init(&r->arguments, 1 << 20);
    assert_non_null(options.shape);
    assert_int_equal(mxc_tool_parser_new(&options, &parser, NULL), MXC_OK);
    size_t at = 0;
    for (size_t i = 0; i < n_ends; at = ends[i++])
        assert_int_equal(mxc_tool_parser_push(parser, text + at, ends[i] - at, NULL), MXC_OK);
    assert_int_equal(mxc_tool_parser_push(parser, text + at, length - at, NULL), MXC_OK);
    assert_int_equal(mxc_tool_parser_finish(parser, NULL), MXC_OK);
    assert_int_equal(mxc_tool_parser_count(parser), r->n_calls);
    assert_false(r->in_call);
    mxc_tool_parser_free(parser);
}

static void release(struct result *r) {
    mxc_buf_fini(&r->text);
    mxc_buf_fini(&r->arguments);
}

static void check(const char *shape, const char *text, const char *expect) {
    struct result r;
    size_t length = strlen(text);
    size_t *ends = malloc((length + 1) * sizeof *ends);
    for (size_t i = 0; i < length; i++)
        ends[i] = i + 1;
    for (size_t cut = 0; cut <= length; cut++) { /* two pieces, and byte by byte */
        run(shape, &tools, text, length, cut ? &cut : ends, cut ? 1 : length, &r);
        if (strcmp(mxc_buf_text(&r.text), expect) != 0)
            fail_msg("%s, cut %zu: %s\n  gives  %s\n  not    %s", shape, cut, text,
                     mxc_buf_text(&r.text), expect);
        release(&r);
    }
    free(ends);
}

struct row {
    const char *shape, *text, *expect;
};

static void check_all(const struct row *rows, size_t n) {
    for (size_t i = 0; i < n; i++)
        check(rows[i].shape, rows[i].text, rows[i].expect);
}

static void objects(void **state) {
    (void)state;
    static const struct row rows[] = {
        {"hermes", "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>", "<now|{}>"},
        {"hermes",
         "Let me see.\n\n<tool_call>{\"name\":\"get_weather\",\"arguments\":{\"city\":"
         "\"Z\xC3\xBCrich <tool_call> \\\"x\\\" {\"}}</tool_call>\n<tool_call>\n{\"name\": "
         "\"now\"}\n</tool_call>\n",
         "Let me see.<get_weather|{\"city\":\"Z\xC3\xBCrich <tool_call> \\\"x\\\" {\"}><now|{}>"},
        {"hermes",
         "<tool_call>{\"arguments\": {\"city\": \"x\", \"name\": 1}, \"name\": "
         "\"get_weather\", \"id\": \"7\"}</tool_call> done. ",
         "<get_weather|{\"city\": \"x\", \"name\": 1}>done. "},
        {"hermes",
         "<tool_call>{\"name\":\"get_weather\",\"arguments\":\"{\\\"city\\\": \\\"x\\\"}"
         "\"}</tool_call>",
         "<get_weather|{\"city\": \"x\"}>"},
        {"hermes", "<tool_call>{\"name\":\"now\",\"arguments\":null}</tool_call>", "<now|{}>"},
        {"hermes",
         "<tool_call>{\"type\": \"function\", \"function\": {\"name\": \"now\", "
         "\"arguments\": {}}}</tool_call>",
         "<now|{}>"},
        {"hermes",
         "<tool_call>[{\"name\":\"now\"}, {\"name\":\"now\",\"arguments\":{\"a\":[1,2.5e3"
         ",{}]}}]</tool_call>",
         "<now|{}><now|{\"a\":[1,2.5e3,{}]}>"},
        {"hermes",
         "<tool_call>{\"name\":\"get_weather\",\"arguments\":{\"city\":\"a\nb\"}}"
         "</tool_call>",
         "<get_weather|{\"city\":\"a\\u000ab\"}>"},
        {"mistral",
         "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": {\"city\": \"[]\"}, "
         "\"id\": \"abcdefghi\"}, {\"name\": \"now\", \"arguments\": {}}]",
         "<get_weather|{\"city\": \"[]\"}><now|{}>"},
        {"mistral", "[TOOL_CALLS] [{\"name\": \"now\", \"arguments\": {}}] and text",
         "<now|{}>and text"},
        {"cohere",
         "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"now\", "
         "\"parameters\": {}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \"a.b-c_1\", "
         "\"parameters\": {\"x\": 1}}\n]<|END_ACTION|>",
         "<now|{}><a.b-c_1|{\"x\": 1}>"},
        {"cohere-action",
         "I will.\nAction: ```json\n[\n  {\"tool_name\": \"now\", \"parameters\": "
         "{}}\n]\n```",
         "I will.<now|{}>"},
        {"granite", "<|tool_call|>[{\"name\": \"now\", \"arguments\": {}}]", "<now|{}>"},
        {"granite", "<tool_call>[{\"name\": \"now\", \"arguments\": {}}]", "<now|{}>"},
        {"granite", "<|tool_call|>[]", "<|tool_call|>[]"},
        {"phi", "<|tool_call|>[{\"name\": \"now\", \"arguments\": {}}]<|/tool_call|>", "<now|{}>"},
        {"apertus",
         "<|tools_prefix|>[{\"get_weather\": {\"city\": \"x\"}}, {\"now\": {}}]"
         "<|tools_suffix|>",
         "<get_weather|{\"city\": \"x\"}><now|{}>"},
        {"tool-calls",
         "<tool_calls>\n{\"name\": \"now\", \"arguments\": {}}\n{\"name\": \"now\", "
         "\"arguments\": {}}\n</tool_calls>",
         "<now|{}><now|{}>"},
        {"functools", " functools[{\"name\": \"now\", \"arguments\": {}}]", "<now|{}>"},
        {"gigachat",
         "x<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"now\", "
         "\"arguments\": {\"a\": 1}}",
         "x<now|{\"a\": 1}>"},
        {"llama-json", "{\"name\": \"now\", \"parameters\": {\"a\": \"b\"}}",
         "<now|{\"a\": \"b\"}>"},
        {"llama-json",
         "<|python_tag|>{\"name\": \"now\", \"parameters\": {}}; {\"name\": "
         "\"get_weather\", \"parameters\": {}}",
         "<now|{}><get_weather|{}>"},
        {"llama-json", "\n{\"type\": \"function\", \"name\": \"now\", \"parameters\": {}}\n",
         "<now|{}>"},
    };
    check_all(rows, sizeof rows / sizeof *rows);
}

static void named_json(void **state) {
    (void)state;
    static const struct row rows[] = {
        {"mistral-args",
         "[TOOL_CALLS]get_weather[ARGS]{\"city\": \"x\"}[TOOL_CALLS]now[CALL_ID]"
         "abcdefghi[ARGS]{}",
         "<get_weather|{\"city\": \"x\"}><now|{}>"},
        {"deepseek",
         CALLS_BEGIN CALL_BEGIN "function" SEP "get_weather\n```json\n{\"city\": \"x\"}"
                                "\n```" CALL_END "\n" CALL_BEGIN "function" SEP
                                "now\n```json\n{}\n```" CALL_END CALLS_END,
         "<get_weather|{\"city\": \"x\"}><now|{}>"},
        {"deepseek-v3.1",
         "Hm. " CALLS_BEGIN CALL_BEGIN "now" SEP "{\"a\": 1}" CALL_END CALL_BEGIN "now" SEP
         "{}" CALL_END CALLS_END " x",
         "Hm.<now|{\"a\": 1}><now|{}>x"},
        {"kimi",
         "<|tool_calls_section_begin|><|tool_call_begin|>functions.a.b-c_1:0<|tool_call_"
         "argument_begin|>{\"a\": 1}<|tool_call_end|><|tool_call_begin|>functions.now:1"
         "<|tool_call_argument_begin|><|tool_call_end|><|tool_calls_section_end|>",
         "<a.b-c_1|{\"a\": 1}><now|{}>"},
        {"solar",
         "<|tool_calls|><|tool_call:begin|>abcdefghi<|tool_call:name|>now<|tool_call:args|>"
         "{\"a\": 1}<|tool_call:end|><|calls|>",
         "<now|{\"a\": 1}>"},
        {"functionary", ">>>get_weather\n{\"city\": \"x\"}>>>now\n{}",
         "<get_weather|{\"city\": \"x\"}><now|{}>"},
        {"function-tag", "<function=now>{\"a\": 1}</function>", "<now|{\"a\": 1}>"},
        {"harmony", "<|channel|>commentary to=functions.now<|message|>{\"a\": 1}<|call|>",
         "<now|{\"a\": 1}>"},
        {"gemma",
         "<|tool_call>call:get_weather{city:<|\"|>Z\xC3\xBCrich \"x\" <|<|\"|>,days:3,"
         "opts:{a:[1,<|\"|>b<|\"|>,],b:{}},exact:true}<tool_call|><|tool_call>call:now{}"
         "<tool_call|>",
         "<get_weather|{\"city\": \"Z\xC3\xBCrich \\\"x\\\" <|\", \"days\": 3, \"opts\": {\"a\": "
         "[1, \"b\"], \"b\": {}}, \"exact\": true}><now|{}>"},
    };
    check_all(rows, sizeof rows / sizeof *rows);
}

static void xml(void **state) {
    (void)state;
    static const struct row rows[] = {
        {"qwen-xml",
         "I see.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nZ\xC3\xBCrich "
         "\"x\"\n\n</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=exact>\n"
         "True\n</parameter>\n<parameter=places>\n[1, \"a\"]\n</parameter>\n<parameter="
         "opts>\n{'a': None}\n</parameter>\n</function>\n</tool_call>\n",
         "I see.<get_weather|{\"city\": \"Z\xC3\xBCrich \\\"x\\\"\\n\", \"days\": 3, \"exact\": "
         "true, "
         "\"places\": [1, \"a\"], \"opts\": {\"a\": null}}>"},
        {"qwen-xml", "<function=now>\n</function>\n</tool_call>", "<now|{}>"},
        {"qwen-xml",
         "<tool_call><function=get_weather><parameter=city>3</parameter><parameter=days>"
         "many</parameter><parameter=other>{\"a\":1}</parameter><parameter=other2>07"
         "</parameter></function></tool_call>",
         "<get_weather|{\"city\": \"3\", \"days\": \"many\", \"other\": {\"a\":1}, \"other2\": "
         "\"07\"}>"},
        {"qwen-xml",
         "<tool_call>\n<function=get_weather>\n<parameter=unit>\nnull\n</parameter>\n"
         "<parameter=city>\n<b></param</parameter>\n</tool_call>x",
         "<get_weather|{\"unit\": null, \"city\": \"<b></param\"}>x"},
        {"glm",
         "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>a\nb</arg_value>\n"
         "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>\n<tool_call>now"
         "</tool_call>",
         "<get_weather|{\"city\": \"a\\nb\", \"days\": 2}><now|{}>"},
        {"dsml",
         "\n\n<" BAR "DSML" BAR "function_calls>\n<" BAR "DSML" BAR "invoke name=\"get_weather"
         "\">\n<" BAR "DSML" BAR "parameter name=\"unit\" string=\"true\">5</" BAR "DSML" BAR
         "parameter>\n<" BAR "DSML" BAR "parameter name=\"days\" string=\"false\">5</" BAR
         "DSML" BAR "parameter>\n</" BAR "DSML" BAR "invoke>\n</" BAR "DSML" BAR "function_calls>",
         "<get_weather|{\"unit\": \"5\", \"days\": 5}>"},
        {"invoke",
         "<minimax:tool_call>\n<invoke name=\"now\">\n<parameter name=\"a\">[1]"
         "</parameter>\n</invoke>\n<invoke name=\"now\">\n</invoke>\n</minimax:tool_call>",
         "<now|{\"a\": [1]}><now|{}>"},
        {"seed-xml",
         "<seed:tool_call>\n<function=now>\n<parameter=a>x</parameter>\n</function>\n"
         "</seed:tool_call>",
         "<now|{\"a\": \"x\"}>"},
    };
    check_all(rows, sizeof rows / sizeof *rows);
}

static void pythonic(void **state) {
    (void)state;
    static const struct row rows[] = {
        {"pythonic",
         "[get_weather(city=\"S\xC3\xA3o 'P' \\\"q\\\"\\n\", days=3, exact=True, "
         "places=['a', (1, 2.5,), None,], opts={'k': -1e3, \"m\": {}}), now()]",
         "<get_weather|{\"city\": \"S\xC3\xA3o 'P' \\\"q\\\"\\n\", \"days\": 3, \"exact\": true, "
         "\"places\": [\"a\", [1, 2.5], null], \"opts\": {\"k\": -1e3, \"m\": {}}}><now|{}>"},
        {"pythonic", "<|python_start|>[now()]<|python_end|>", "<now|{}>"},
        {"pythonic", "[now(a = Paris,b=1.)]\n", "<now|{\"a\": \"Paris\", \"b\": 1}>"},
        {"pythonic-marked", "<|tool_call_start|>[now(a='\\x41\\u00e9\\d\\'')]<|tool_call_end|>So.",
         "<now|{\"a\": \"\\u0041\\u00e9\\\\d'\"}>So."},
        {"pythonic", "[1, 2] is a list", "[1, 2] is a list"},
        {"pythonic", "[now] is a list", "[now] is a list"},
        {"pythonic", "[now(1)]", "[now(1)]"},
        {"pythonic", "[now(a=[)]x", "<now|{\"a\": [!>)]x"},
    };
    check_all(rows, sizeof rows / sizeof *rows);
}

/* What is no call is text, byte for byte. */
static void no_calls(void **state) {
    (void)state;
    static const struct row same[] = {
        {"hermes", "Plain text with < and <tool_ and <tool_call>.\n", NULL},
        {"hermes", "<tool_call>{\"name\": \"nobody\", \"arguments\": {}}</tool_call>\n", NULL},
        {"hermes", "<tool_call>{\"arguments\": {\"a\": [1, {}]}, \"name\": \"nobody\"}</tool_call>",
         NULL},
        {"hermes", " <tool_call>\n\n{\"name\": 3}</tool_call>", NULL},
        {"hermes", "<tool_call>{}</tool_call>", NULL},
        {"hermes", "<tool_call></tool_call>", NULL},
        {"hermes", "<tool_call>{\"name\": \"now\", \"arguments\": [1]}</tool_call>", NULL},
        {"hermes", "<tool_call>{\"name\": \"now\", \"arguments\": \"{\"}</tool_call>", NULL},
        {"hermes", "<tool_call>{\"name\": \"no", NULL},
        {"hermes", "<tool_call>{\"name\": \"now\", \"argum", NULL},
        {"hermes", "<tool_cal", NULL},
        {"hermes", "  \n", NULL},
        {"hermes", "", NULL},
        {"llama-json", "{\"name\": \"Bob\", \"age\": 3}", NULL},
        {"llama-json", "{\"answer\": {\"name\": \"now\", \"parameters\": {}}}", NULL},
        {"llama-json", "It is {\"name\": \"now\", \"parameters\": {}}", NULL},
        {"llama-json", "<|python_tag|>print(1)", NULL},
        {"mistral-args", "[TOOL_CALLS]nobody[ARGS]{}", NULL},
        {"mistral-args", "[TOOL_CALLS]now is not it", NULL},
        {"mistral-args", "[TOOL_CALLS]", NULL},
        {"deepseek", CALLS_BEGIN CALLS_END, NULL},
        {"deepseek", CALLS_BEGIN CALL_BEGIN "function" SEP "now\n```json\n[]", NULL},
        {"qwen-xml",
         "<tool_call>\n<function=nobody>\n<parameter=a>\n1\n</parameter>\n</function>\n"
         "</tool_call>",
         NULL},
        {"qwen-xml", "<tool_call>\n<func", NULL},
        {"glm", "<tool_call>now is the time</tool_call>", NULL},
        {"gemma", "<|tool_call>call:now is it<tool_call|>", NULL},
        {"pythonic", "[now(", NULL},
        {"pythonic", "See [now()].", NULL},
    };
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        check(same[i].shape, same[i].text, same[i].text);
    static const struct row rows[] = {
        {"hermes", "<tool_call><tool_call>{\"name\": \"now\"}</tool_call>", "<tool_call><now|{}>"},
        {"hermes", "<tool_<<tool_call>{\"name\": \"now\"}</tool_call>", "<tool_<<now|{}>"},
        {"hermes",
         "<tool_call>{\"name\": \"no\"}</tool_call><tool_call>{\"name\": \"now\"}"
         "</tool_call>",
         "<tool_call>{\"name\": \"no\"}</tool_call><now|{}>"},
        {"hermes", "<tool_call>{\"name\": \"now\"}<tool_call>{\"name\": \"now\"}",
         "<now|{}><now|{}>"},
        {"hermes", "<tool_call>{\"name\": \"now\"}</tool_x", "<now|{}></tool_x"},
    };
    check_all(rows, sizeof rows / sizeof *rows);
}

/* What breaks off inside a call is reported as far as it came. */
static void broken_calls(void **state) {
    (void)state;
    static const struct row rows[] = {
        {"hermes", "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Par",
         "<get_weather|{\"city\": \"Par!>"},
        {"hermes", "<tool_call>{\"name\": \"now\", \"arguments\": {}", "<now|{}>"},
        {"hermes", "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_c", "<now|{}>"},
        {"hermes", "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": tru3}}</tool_call>",
         "<now|{\"a\": tru!>3}}</tool_call>"},
        {"hermes", "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": 01}} x",
         "<now|{\"a\": 0!>1}} x"},
        {"mistral-args", "[TOOL_CALLS]now[ARGS]{\"a\": [1", "<now|{\"a\": [1!>"},
        {"qwen-xml", "<tool_call>\n<function=get_weather>\n<parameter=city>\nPar\n",
         "<get_weather|{\"city\": \"Par!>"},
        {"qwen-xml", "<tool_call>\n<function=get_weather>\n<parameter=days>\n3\n</parameter>\nwhat",
         "<get_weather|{\"days\": 3!>what"},
        {"glm", "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_val", "<get_weather|!>"},
        {"deepseek-v3.1", CALLS_BEGIN CALL_BEGIN "now" SEP "{}", "<now|{}>"},
        {"deepseek-v3.1", CALLS_BEGIN CALL_BEGIN "now" SEP "{}" CALL_END "text", "<now|{}>text"},
        {"pythonic", "[get_weather(city=\"a", "<get_weather|{\"city\": \"a!>"},
    };
    check_all(rows, sizeof rows / sizeof *rows);
}

/* Random cuts of random mixtures of pieces, valid and not: one result, whatever the cuts. */
static void any_cut(void **state) {
    (void)state;
    static const char *const pieces[] = {"<tool_call>",
                                         "</tool_call>",
                                         "{\"name\": \"now\", ",
                                         "\"arguments\": {}}",
                                         "\n",
                                         "<",
                                         "{",
                                         "}",
                                         "\"",
                                         "[",
                                         "]",
                                         "now",
                                         "(",
                                         ")",
                                         "a=1",
                                         ", ",
                                         "<function=now>",
                                         "<parameter=city>",
                                         "</parameter>",
                                         "</function>",
                                         "[TOOL_CALLS]",
                                         "[ARGS]",
                                         CALLS_BEGIN,
                                         CALL_BEGIN,
                                         SEP,
                                         CALL_END,
                                         CALLS_END,
                                         "<arg_key>",
                                         "</arg_key>",
                                         "<arg_value>",
                                         "</arg_value>",
                                         "text ",
                                         "<|tool_call>call:",
                                         "<tool_call|>",
                                         "<|\"|>",
                                         ":",
                                         "```json\n",
                                         "function",
                                         "\\",
                                         "<|python_tag|>",
                                         ";",
                                         "get_weather",
                                         "=",
                                         "\xC3\xBC",
                                         "\xF0\x9F\xA4\x96",
                                         "1.5"};
    enum { N = sizeof pieces / sizeof *pieces };
    uint32_t seed = 12345;
    for (int round = 0; round < 6000; round++) {
        char text[1024];
        size_t length = 0, ends[64], n_ends = 0;
        struct result whole, cut;
        seed = seed * 1664525 + 1013904223;
        for (int i = 0, n = 1 + (int)(seed >> 16) % 24; i < n; i++) {
            seed = seed * 1664525 + 1013904223;
            const char *piece = pieces[(seed >> 16) % N];
            size_t m = strlen(piece);
            memcpy(text + length, piece, m);
            length += m;
        }
        for (size_t at = 0; at < length && n_ends < 60;) {
            seed = seed * 1664525 + 1013904223;
            at += 1 + (seed >> 16) % 9;
            if (at < length)
                ends[n_ends++] = at;
        }
        for (size_t s = 0; mxc_tool_shape_list(s); s++) {
            run(mxc_tool_shape_list(s), &tools, text, length, NULL, 0, &whole);
            run(mxc_tool_shape_list(s), &tools, text, length, ends, n_ends, &cut);
            if (strcmp(mxc_buf_text(&whole.text), mxc_buf_text(&cut.text)) != 0)
                fail_msg("%s: %.*s\n  gives %s\n  and   %s", mxc_tool_shape_list(s), (int)length,
                         text, mxc_buf_text(&whole.text), mxc_buf_text(&cut.text));
            if (!whole.n_calls) { /* then it is text, byte for byte */
                assert_int_equal(whole.text.length, length);
                assert_memory_equal(whole.text.data, text, length);
            }
            release(&whole);
            release(&cut);
        }
    }
}

static void one_call_only(void **state) {
    (void)state;
    static const char text[] = "<tool_call>{\"name\": \"now\"}</tool_call>\n<tool_call>{\"name\": "
                               "\"now\"}</tool_call>";
    struct mxc_tools one = tools;
    struct result r;
    one.parallel = false;
    run("hermes", &one, text, strlen(text), NULL, 0, &r);
    assert_string_equal(mxc_buf_text(&r.text), "<now|{}>");
    release(&r);
    one.choice = MXC_TOOLS_NONE;
    run("hermes", &one, text, strlen(text), NULL, 0, &r);
    assert_string_equal(mxc_buf_text(&r.text), text);
    release(&r);
}

/* Deltas come as soon as they are certain. */
static void streams(void **state) {
    (void)state;
    struct result r = {.n_calls = 0};
    struct mxc_tool_parser *parser;
    struct mxc_tool_parser_options options = {
        .shape = mxc_tool_shape_named("hermes"), .tools = &tools, .event = take, .user = &r};
    mxc_buf_init(&r.text, 1 << 16);
    mxc_buf_init(&r.arguments, 1 << 16);
    assert_int_equal(mxc_tool_parser_new(&options, &parser, NULL), MXC_OK);
    static const struct {
        const char *push, *sofar;
    } steps[] = {{"Hel", "Hel"},
                 {"lo <", "Hello"},
                 {"b> ", "Hello <b>"},
                 {"<tool_call>{\"name\": \"now\", \"arguments\"", "Hello <b>"},
                 {": {\"a", "Hello <b><now|{\"a"},
                 {"\": \"x y", "Hello <b><now|{\"a\": \"x y"},
                 {"\"}", "Hello <b><now|{\"a\": \"x y\"}"},
                 {"}", "Hello <b><now|{\"a\": \"x y\"}>"}};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        assert_int_equal(mxc_tool_parser_push(parser, steps[i].push, strlen(steps[i].push), NULL),
                         MXC_OK);
        assert_string_equal(mxc_buf_text(&r.text), steps[i].sofar);
    }
    mxc_tool_parser_free(parser);
    release(&r);
}

static bool refuse(void *user, const struct mxc_tool_event *event) {
    (void)event;
    ++*(int *)user;
    return false;
}

static void refused_and_failing(void **state) {
    (void)state;
    static const char text[] = "Text <tool_call>{\"arguments\": {\"a\": 1}, \"name\": \"now\"}"
                               "</tool_call>";
    struct mxc_tool_parser *parser;
    int n = 0;
    struct mxc_tool_parser_options options = {
        .shape = mxc_tool_shape_named("hermes"), .tools = &tools, .event = refuse, .user = &n};
    assert_int_equal(mxc_tool_parser_new(&options, &parser, NULL), MXC_OK);
    assert_int_equal(mxc_tool_parser_push(parser, text, strlen(text), NULL), MXC_E_CANCELLED);
    assert_int_equal(mxc_tool_parser_finish(parser, NULL), MXC_E_CANCELLED);
    assert_int_equal(n, 1);
    mxc_tool_parser_free(parser);
    mxc_tool_parser_free(NULL);
    for (uint64_t at = 1; at < 40; at++) { /* the n-th allocation fails */
        struct result r = {.n_calls = 0};
        mxc_buf_init(&r.text, 1 << 16);
        mxc_buf_init(&r.arguments, 1 << 16);
        (void)mxc_buf_puts(&r.text,
                           "room for all of it, so that only the parser allocates......."
                           "..............................................................");
        (void)mxc_buf_puts(&r.arguments, "{");
        options.event = take;
        options.user = &r;
        mxc_mem_fail_at(at);
        enum mxc_code code = mxc_tool_parser_new(&options, &parser, NULL);
        if (!code) {
            code = mxc_tool_parser_push(parser, text, strlen(text), NULL);
            if (!code)
                code = mxc_tool_parser_finish(parser, NULL);
            mxc_mem_fail_at(0);
            mxc_tool_parser_free(parser);
        }
        mxc_mem_fail_at(0);
        assert_true(code == MXC_OK || code == MXC_E_NOMEM);
        release(&r);
        if (code == MXC_OK)
            return;
    }
    fail_msg("never enough memory");
}

/* A long hostile text takes time in proportion. */
static void hostile(void **state) {
    (void)state;
    enum { N = 200000 };
    char *text = malloc(N * 24);
    size_t length = 0;
    struct result r;
    for (int i = 0; i < N; i++) {
        static const char piece[] = "<tool_call>{\"x\": \"";
        memcpy(text + length, piece, sizeof piece - 1);
        length += sizeof piece - 1;
    }
    for (size_t at = 0; at < length; at += 1 << 19) { /* results of a test are bounded */
        size_t n = length - at < 1 << 19 ? length - at : 1 << 19;
        run("hermes", &tools, text + at, n, NULL, 0, &r);
        assert_int_equal(r.text.length, n);
        release(&r);
    }
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(objects),  cmocka_unit_test(named_json),
        cmocka_unit_test(xml),      cmocka_unit_test(pythonic),
        cmocka_unit_test(no_calls), cmocka_unit_test(broken_calls),
        cmocka_unit_test(any_cut),  cmocka_unit_test(one_call_only),
        cmocka_unit_test(streams),  cmocka_unit_test(refused_and_failing),
        cmocka_unit_test(hostile)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
