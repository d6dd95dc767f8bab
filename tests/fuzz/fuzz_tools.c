/* Fuzz target: the parser of calls. In: a first line with a shape's name, then the text of an
 * answer. Invariants: no crash; whole, by bytes, and in uneven pieces the joined result is one;
 * complete calls have a JSON object; a text without calls comes out byte for byte. Built with
 * -fsanitize=fuzzer, or with MXC_FUZZ_REPLAY as a program that reads files. */
#include "gen/tools/tools.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char offered[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"s\":{\"type\":\"string\"},\"i\":{\"type\":\"integer\"},\"o\":{\"type\":"
    "[\"object\",\"null\"]},\"a\":{\"type\":\"array\"}}}}},{\"type\":\"function\",\"function\":{"
    "\"name\":\"now\"}}]";

struct result {
    struct mxc_buf text, arguments;
    size_t n_calls;
};

static bool take(void *user, const struct mxc_tool_event *e) {
    struct result *r = user;
    if (e->kind == MXC_TOOL_TEXT) {
        (void)mxc_buf_append(&r->text, e->text.ptr, e->text.length);
    } else if (e->kind == MXC_TOOL_BEGIN) {
        r->n_calls++;
        (void)mxc_buf_printf(&r->text, "<%s|", e->name);
        mxc_buf_clear(&r->arguments);
    } else if (e->kind == MXC_TOOL_ARGUMENTS) {
        (void)mxc_buf_append(&r->text, e->text.ptr, e->text.length);
        (void)mxc_buf_append(&r->arguments, e->text.ptr, e->text.length);
    } else {
        (void)mxc_buf_puts(&r->text, e->complete ? ">" : "!>");
        const char *s = mxc_buf_text(&r->arguments);
        json_error_t why;
        json_t *value = json_loadb(s, r->arguments.length, JSON_ALLOW_NUL, &why);
        /* Jansson wants more than JSON's grammar: numbers in range, no half pairs, UTF-8, and no
         * NUL in a key */
        enum json_error_code code = value ? json_error_unknown : json_error_code(&why);
        bool strict = code == json_error_invalid_utf8 || code == json_error_null_byte_in_key ||
                      code == json_error_numeric_overflow || code == json_error_invalid_syntax;
        if (e->complete && !json_is_object(value) &&
            !(strict && (strstr(s, "\\u") || code != json_error_invalid_syntax)))
            abort();
        json_decref(value);
    }
    return true;
}

static struct result run(const struct mxc_tools *tools, const struct mxc_tool_shape *shape,
                         const char *text, size_t length, size_t piece) {
    struct result r = {.n_calls = 0};
    struct mxc_tool_parser *parser;
    struct mxc_tool_parser_options options = {
        .shape = shape, .tools = tools, .event = take, .user = &r};
    mxc_buf_init(&r.text, SIZE_MAX / 2);
    mxc_buf_init(&r.arguments, SIZE_MAX / 2);
    if (mxc_tool_parser_new(&options, &parser, NULL))
        abort();
    for (size_t at = 0, i = 0; at < length; i++) {
        size_t n = piece + i % 3 < length - at ? piece + i % 3 : length - at;
        if (mxc_tool_parser_push(parser, text + at, n, NULL))
            abort();
        at += n;
    }
    if (mxc_tool_parser_finish(parser, NULL))
        abort();
    mxc_tool_parser_free(parser);
    mxc_buf_fini(&r.arguments);
    return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *text = (const char *)data, *end = size ? memchr(text, '\n', size) : NULL;
    const struct mxc_tool_shape *shape = mxc_tool_shape_named("hermes");
    struct mxc_tools tools;
    char name[32];
    if (size > 1 << 16)
        return 0;
    if (end && (size_t)(end - text) < sizeof name) {
        size_t n = (size_t)(end - text);
        memcpy(name, text, n);
        name[n] = 0;
        if (mxc_tool_shape_named(name))
            shape = mxc_tool_shape_named(name);
        text = end + 1;
        size -= n + 1;
    }
    json_t *list = json_loads(offered, 0, NULL);
    if (!list || mxc_tools_read(list, NULL, NULL, &tools, NULL))
        abort();
    struct result whole = run(&tools, shape, text, size, size + 1);
    static const size_t sizes[] = {1, 2, 7};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct result r = run(&tools, shape, text, size, sizes[i]);
        if (r.text.length != whole.text.length || r.n_calls != whole.n_calls ||
            memcmp(mxc_buf_text(&r.text), mxc_buf_text(&whole.text), r.text.length) != 0)
            abort();
        mxc_buf_fini(&r.text);
    }
    if (!whole.n_calls &&
        (whole.text.length != size || memcmp(mxc_buf_text(&whole.text), text, size) != 0))
        abort();
    mxc_buf_fini(&whole.text);
    mxc_tools_fini(&tools);
    json_decref(list);
    return 0;
}
