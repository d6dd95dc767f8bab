/* The template interpreter against what jinja2 rendered (tests/data/templates, written by
 * tools/gen_template_cases.py), its bounds, and its error lines. */
#include "test.h"

#include "base/file.h"
#include "base/mem.h"
#include "text/chat_template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct tm now;

static enum mxc_code render(const char *text, size_t length, const json_t *vars,
                            struct mxc_jinja_options options, struct mxc_jinja_result *result,
                            struct mxc_err *err) {
    struct mxc_jinja *jinja = NULL;
    enum mxc_code code = mxc_jinja_compile(text, length, true, &jinja, err);
    if (code != MXC_OK)
        return code;
    options.now = &now;
    code = mxc_jinja_render(jinja, vars, &options, result, err);
    mxc_jinja_free(jinja);
    return code;
}

/* One case a line; returns the number of them that differ. */
static int run_file(const char *name, int *n) {
    char path[512];
    char *data = NULL;
    size_t length = 0;
    struct mxc_err err = {0};
    int bad = 0;
    (void)snprintf(path, sizeof path, "%s/templates/%s", MXC_TEST_DATA, name);
    assert_int_equal(mxc_file_read(path, 4 << 20, &data, &length, &err), MXC_OK);
    for (char *line = data; *line;) {
        char *end = strchr(line, '\n');
        size_t len = end ? (size_t)(end - line) : strlen(line);
        json_t *c = json_loadb(line, len, JSON_ALLOW_NUL, NULL);
        json_t *text = json_object_get(c, "template"), *want = json_object_get(c, "expected");
        struct mxc_jinja_result r = {0};
        assert_non_null(text);
        enum mxc_code code =
            render(json_string_value(text), json_string_length(text), json_object_get(c, "vars"),
                   (struct mxc_jinja_options){0}, &r, &err);
        bool same = want ? code == MXC_OK && r.length == json_string_length(want) &&
                               !memcmp(r.text, json_string_value(want), r.length)
                         : code != MXC_OK && strncmp(err.message, "line ", 5) == 0 &&
                               !strchr(err.message, '\n');
        if (!same) {
            bad++;
            print_message("%s\n  want %s\n  got  %s\n", json_string_value(text),
                          want ? json_string_value(want) : "an error",
                          code == MXC_OK ? r.text : err.message);
        }
        ++*n;
        mxc_jinja_result_fini(&r);
        json_decref(c);
        line += len + (end != NULL);
    }
    mxc_mem_free(data);
    return bad;
}

static void agrees(const char *name, int at_least) {
    int n = 0;
    assert_int_equal(run_file(name, &n), 0);
    assert_true(n >= at_least);
}

static void expressions_agree(void **state) {
    (void)state;
    agrees("expressions.jsonl", 700);
}
static void statements_agree(void **state) {
    (void)state;
    agrees("statements.jsonl", 110);
}
static void errors_agree(void **state) {
    (void)state;
    agrees("errors.jsonl", 190);
}

static void fails(const char *text, enum mxc_code code, const char *message) {
    struct mxc_err err = {0};
    struct mxc_jinja_result r;
    json_t *vars = json_pack("{s:[]}", "messages");
    enum mxc_code got = render(text, strlen(text), vars, (struct mxc_jinja_options){0}, &r, &err);
    json_decref(vars);
    if (got != code || !strstr(err.message, message))
        print_message("%.80s: %s\n", text, err.message);
    assert_int_equal(got, code);
    assert_non_null(strstr(err.message, message));
}

static void error_lines_name_line_and_cause(void **state) {
    (void)state;
    fails("a\n{{ x.y }}", MXC_E_TEMPLATE, "line 2: UndefinedError: 'x' is undefined");
    fails("\n\n{{ raise_exception('no\nway') }}", MXC_E_TEMPLATE, "line 3: TemplateError: no way");
    fails("{{ 'a' +\n 1 }}", MXC_E_TEMPLATE, "can only concatenate str (not \"int\") to str");
    fails("{% for %}", MXC_E_TEMPLATE, "line 1: TemplateSyntaxError: expected an expression");
    fails("{% if 1 %}\n", MXC_E_TEMPLATE, "'elif'");
    fails("{{ messages.append(1) }}", MXC_E_TEMPLATE,
          "access to attribute 'append' of 'list' object is unsafe");
    fails("{% include 'x' %}", MXC_E_TEMPLATE, "'include' is refused");
    fails("{{ messages[0].role }}", MXC_E_TEMPLATE, "list object has no element 0");
    fails("{{ 9223372036854775807 + 1 }}", MXC_E_TEMPLATE, "64 bits");
    fails("\xff", MXC_E_TEMPLATE, "not UTF-8");
}

static char *repeat(const char *head, const char *part, size_t n, const char *tail) {
    size_t one = strlen(part), h = strlen(head), t = strlen(tail);
    char *text = malloc(h + n * one + t + 1);
    assert_non_null(text);
    memcpy(text, head, h);
    for (size_t i = 0; i < n; i++)
        memcpy(text + h + i * one, part, one);
    memcpy(text + h + n * one, tail, t + 1);
    return text;
}

static void hostile_templates_stop(void **state) {
    (void)state;
    static const char *const limited[] = {
        "{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}",
        "{{ 'a' * 1000000000000 }}",
        "{{ [1] * 1000000000 }}",
        "{{ '%999999999d' % 1 }}",
        "{{ 'x'|center(10000000000) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{% set n = namespace(s='a') %}{% for i in range(64) %}{% set n.s = n.s+n.s %}{% endfor %}",
        ("{% set n = namespace(s=[]) %}{% for i in range(99999) %}{% set n.s = [n.s] %}{% endfor %}"
         "{{ n.s }}"),
        "{% set n = namespace(s=1) %}{% set n.s = n %}{{ n }}"};
    for (size_t i = 0; i < sizeof limited / sizeof *limited; i++)
        fails(limited[i], MXC_E_LIMIT, "line 1: the template ");
    fails("{{ range(100001) }}", MXC_E_TEMPLATE, "MAX_RANGE");
    static const char *const nested[][3] = {{"{{ ", "[", ""},
                                            {"{{ ", "-", "1 }}"},
                                            {"{{ ", "not ", "1 }}"},
                                            {"{{ 1", "+1", " }}"},
                                            {"{{ 1", "|abs", " }}"},
                                            {"", "{% if 1 %}", ""},
                                            {"{{ 1", " if 1 else 1", " }}"}};
    for (size_t i = 0; i < sizeof nested / sizeof *nested; i++) {
        char *text = repeat(nested[i][0], nested[i][1], 5000, nested[i][2]);
        struct mxc_err err = {0};
        struct mxc_jinja *jinja = NULL;
        enum mxc_code code = mxc_jinja_compile(text, strlen(text), false, &jinja, &err);
        free(text);
        assert_true(code == MXC_E_LIMIT || code == MXC_E_TEMPLATE);
        assert_non_null(strstr(err.message, "deep"));
    }
}

static void options_bound_the_render(void **state) {
    (void)state;
    static const char text[] = "{% for i in range(1000) %}abcdefghij{% endfor %}";
    struct mxc_err err = {0};
    struct mxc_jinja_result r;
    json_t *vars = json_object();
    enum mxc_code code = render(text, sizeof text - 1, vars,
                                (struct mxc_jinja_options){.max_output_bytes = 9999}, &r, &err);
    assert_int_equal(code, MXC_E_LIMIT);
    assert_non_null(strstr(err.message, "output is too long"));
    code =
        render(text, sizeof text - 1, vars, (struct mxc_jinja_options){.max_steps = 500}, &r, &err);
    assert_int_equal(code, MXC_E_LIMIT);
    code = render(text, sizeof text - 1, vars, (struct mxc_jinja_options){.max_memory_bytes = 1},
                  &r, &err);
    assert_int_equal(code, MXC_E_LIMIT);
    code = render(text, sizeof text - 1, vars,
                  (struct mxc_jinja_options){.max_output_bytes = 10000}, &r, &err);
    assert_int_equal(code, MXC_OK);
    assert_int_equal(r.length, 10000);
    mxc_jinja_result_fini(&r);
    json_decref(vars);
}

static void failed_allocations_are_errors(void **state) {
    (void)state;
    static const char text[] =
        "{% macro m(a, b=2) %}{{ a|upper ~ b }}{% endmacro %}{% set n = namespace(s='') %}"
        "{% for k, v in {'x': 1, 'y': [1, 2]}|dictsort %}{% set n.s = n.s + m(k) + (v|tojson) %}"
        "{% endfor %}{{ n.s }}{% filter trim %} {{ messages|map(attribute='content')|join('-') }} "
        "{% endfilter %}{{ '%s{}' % 'a' }}{{ 'x,y'.split(',')|sort|reverse|list }}";
    json_t *vars = json_pack("{s:[{s:s,s:s}]}", "messages", "role", "user", "content", "hello");
    struct mxc_err err = {0};
    bool done = false;
    for (uint64_t n = 1; n < 2000 && !done; n++) {
        struct mxc_jinja_result r = {0};
        mxc_mem_fail_at(n);
        enum mxc_code code =
            render(text, sizeof text - 1, vars, (struct mxc_jinja_options){0}, &r, &err);
        mxc_mem_fail_at(0);
        assert_true(code == MXC_OK || code == MXC_E_NOMEM);
        done = code == MXC_OK;
        if (done)
            assert_string_equal(r.text, "X21Y2[1, 2]helloa{}['y', 'x']");
        else
            assert_true(n > 0 && r.text == NULL);
        mxc_jinja_result_fini(&r);
    }
    assert_true(done);
    json_decref(vars);
}

int main(void) {
    struct mxc_err err;
    if (mxc_chat_template_clock("2026-11-30T12:34:56", &now, &err) != MXC_OK)
        return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(expressions_agree),
                                       cmocka_unit_test(statements_agree),
                                       cmocka_unit_test(errors_agree),
                                       cmocka_unit_test(error_lines_name_line_and_cause),
                                       cmocka_unit_test(hostile_templates_stop),
                                       cmocka_unit_test(options_bound_the_render),
                                       cmocka_unit_test(failed_allocations_are_errors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
