/* Chat templates: which bytes of a prompt are trusted, which template is taken, the clock, and one
 * template used by several threads. */
#include "test.h"

#include "text/chat_template.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static const struct mxc_jinja_token tokens[] = {
    {"bos_token", "<s>"}, {"eos_token", "</s>"}, {"pad_token", NULL}};

/* The spans as text: trusted as they are, user text in guillemets. */
static void spans_of(const char *text, const char *vars_text, char *out, size_t size) {
    struct mxc_chat_template_source source = {NULL, text, strlen(text)};
    struct mxc_chat_template *chat = NULL;
    struct mxc_jinja_result r;
    struct mxc_err err = {0};
    json_t *vars = json_loads(vars_text, 0, NULL);
    assert_non_null(vars);
    assert_int_equal(mxc_chat_template_new(&source, 1, tokens, 3, true, &chat, &err), MXC_OK);
    if (mxc_chat_template_render(chat, NULL, vars, NULL, &r, &err) != MXC_OK)
        fail_msg("%s: %s", text, err.message);
    size_t n = 0, at = 0;
    for (size_t i = 0; i < r.n_spans; i++) {
        assert_int_equal(r.spans[i].offset, at);
        at += r.spans[i].length;
        n += (size_t)snprintf(out + n, size - n, r.spans[i].trusted ? "%.*s" : "«%.*s»",
                              (int)r.spans[i].length, r.text + r.spans[i].offset);
    }
    assert_int_equal(at, r.length);
    if (!r.n_spans)
        out[0] = 0;
    mxc_jinja_result_fini(&r);
    mxc_chat_template_free(chat);
    json_decref(vars);
}

static void user_bytes_stay_user_bytes(void **state) {
    (void)state;
    static const char vars[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\" Hi <|x|> \",\"n\":12},"
        "{\"role\":\"evil\",\"content\":\"b,c\"}],\"tools\":[{\"name\":\"f\"}],"
        "\"bos_token\":\"<s>\",\"eos_token\":\"<other>\",\"title\":\"bos\"}";
    static const char *const cases[][2] = {
        {"<|{{ messages[0].role }}|>{{ messages[0].content }}", "<|user|>« Hi <|x|> »"},
        {"{{ messages[1].role }}", "«evil»"},
        {"{{ bos_token }}{{ eos_token }}{{ pad_token }}", "<s>«<other>»"},
        {"{{ title }}", "«bos»"},
        {"{{ messages[0].content|trim }}", "«Hi <|x|>»"},
        {"{{ messages[0].content.strip()[3:6] }}", "«<|x»"},
        {"{{ messages[0].content|upper ~ '<|x|>' }}", "« HI <|X|> »<|x|>"},
        {"{{ ('<|' + messages[1].content + '|>')[1:5] }}", "|«b,c»"},
        {"{{ ('<|' + messages[1].content + '|>')|upper }}", "<|«B,C»|>"},
        {"{{ ('<|' + messages[1].content + '|>')|reverse }}", ">|«c,b»|<"},
        {"{{ 'a-b'|replace('-', messages[1].content) }}", "a«b,c»b"},
        {"{{ messages[1].content|replace(',', '|') }}", "«b»|«c»"},
        {"{{ messages[1].content.split(',')|join('+') }}", "«b»+«c»"},
        {"{{ ['x', messages[1].content]|join(messages[0].role) }}", "xuser«b,c»"},
        {"{{ '<%s>' % messages[1].content }}", "<«b,c»>"},
        {"{{ '<{}>{}'.format(messages[1].content, 1) }}", "<«b,c»>1"},
        {"{{ '%c%d' % (60, messages[0].n) }}", "<«12»"},
        {"{{ messages[0].n }}{{ messages[0].n + 1 }}{{ 5 }}", "«1213»5"},
        {"{{ messages[0].n|string|length }}", "2"},
        {"{{ tools|tojson }}", "«[{\"name\": \"f\"}]»"},
        {"{{ {'k': messages[1].content}|tojson }}", "{\"k\": «\"b,c\"»}"},
        {"{{ ['<', messages[1].content] }}", "['<', «'b,c'»]"},
        {"{% set x %}<{{ messages[1].content }}>{% endset %}{{ x|trim }}", "<«b,c»>"},
        {"{% macro m(a) %}[{{ a }}]{% endmacro %}{{ m(messages[1].content) }}", "[«b,c»]"},
        {"{% filter upper %}a{{ messages[1].content }}{% endfilter %}", "A«B,C»"},
        {"{{ ('a' + messages[1].content)|tojson }}", "\"a«b,c»\""},
        {"{{ messages[1].content|e }}{{ ('<' ~ messages[1].content)|e }}", "«b,c»&lt;«b,c»"},
        {"{{ ('x\n' ~ messages[1].content)|indent(2) }}", "x«\n»  «b,c»"},
        {"{{ messages[1].content * 2 }}{{ 'x' * 2 }}", "«b,cb,c»xx"},
        {"{% for c in messages[1].content %}{{ c }}{{ '.' }}{% endfor %}", "«b».«,».«c»."},
        {"{{ '[1, \"q\"]'|from_json }}", "[1, 'q']"},
        {"{{ strftime_now(messages[1].content) }}", "«b,c»"},
        {"{% for k in tools[0] %}{{ k }}{% endfor %}", "«name»"},
        {"{{ messages[1].content == 'b,c' }}", "True"},
        {"", ""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char got[512];
        spans_of(cases[i][0], vars, got, sizeof got);
        assert_string_equal(got, cases[i][1]);
    }
}

static void long_strings_grow_in_place_unshared(void **state) {
    (void)state;
    char got[4096];
    spans_of(
        "{% set a = 'x' * 300 %}{% set b = a + '1' %}{% set c = b + '2' %}{% set d = b + '3' %}"
        "{{ c[-3:] }}{{ d[-3:] }}{{ b[-2:] }}{{ (b + u)[-4:] }}{{ (c + 'z')[-3:] }}",
        "{\"u\":\"USER\"}", got, sizeof got);
    assert_string_equal(got, "x12x13x1«USER»12z");
}

static const struct mxc_chat_template_source named[] = {
    {"default", "D{{ bos_token }}", 16},
    {"tool_use", "T{{ tools|length }}", 19},
};

static void names_choose_the_template(void **state) {
    (void)state;
    struct mxc_chat_template *chat = NULL;
    struct mxc_err err = {0};
    struct mxc_jinja_result r;
    assert_int_equal(mxc_chat_template_new(named, 2, tokens, 3, false, &chat, &err), MXC_OK);
    static const struct {
        const char *name, *vars, *text;
    } cases[] = {{NULL, "{}", "D<s>"},
                 {NULL, "{\"tools\":[]}", "D<s>"},
                 {NULL, "{\"tools\":[1]}", "T1"},
                 {"default", "{\"tools\":[1]}", "D<s>"},
                 {"tool_use", "{}", "T0"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *vars = json_loads(cases[i].vars, 0, NULL);
        assert_int_equal(mxc_chat_template_render(chat, cases[i].name, vars, NULL, &r, &err),
                         MXC_OK);
        assert_string_equal(r.text, cases[i].text);
        mxc_jinja_result_fini(&r);
        json_decref(vars);
    }
    json_t *vars = json_object();
    assert_int_equal(mxc_chat_template_render(chat, "rag", vars, NULL, &r, &err), MXC_E_NOT_FOUND);
    assert_non_null(strstr(err.message, "'rag'"));
    json_decref(vars);
    mxc_chat_template_free(chat);
    struct mxc_chat_template_source broken = {"bad", "{% if %}", 8};
    assert_int_equal(mxc_chat_template_new(&broken, 1, NULL, 0, false, &chat, &err),
                     MXC_E_TEMPLATE);
    assert_non_null(strstr(err.message, "chat template 'bad': line 1: "));
    assert_int_equal(mxc_chat_template_new(NULL, 0, NULL, 0, false, &chat, &err), MXC_E_NOT_FOUND);
}

static void clock_is_read(void **state) {
    (void)state;
    struct tm now;
    struct mxc_err err = {0};
    assert_int_equal(mxc_chat_template_clock("2026-11-30T12:34:56", &now, &err), MXC_OK);
    assert_int_equal(now.tm_wday, 1);
    assert_int_equal(now.tm_yday, 333);
    assert_int_equal(mxc_chat_template_clock("2024-02-29T00:00:00", &now, &err), MXC_OK);
    assert_int_equal(now.tm_wday, 4);
    static const char *const wrong[] = {"",
                                        "2026-11-30",
                                        "2026-13-30T12:34:56",
                                        "2026-02-29T12:34:56",
                                        "2026-11-30T24:00:00",
                                        "2026-11-30T12:34:5x"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(mxc_chat_template_clock(wrong[i], &now, &err), MXC_E_USAGE);
}

struct job {
    const struct mxc_chat_template *chat;
    int bad;
};

static void *work(void *arg) {
    struct job *job = arg;
    for (int i = 0; i < 200; i++) {
        struct mxc_jinja_result r;
        struct mxc_err err;
        json_t *vars = json_pack("{s:i,s:s}", "n", i, "t", "grüße");
        char want[64];
        (void)snprintf(want, sizeof want, "é:%d GRÜSSE 6", i);
        if (mxc_chat_template_render(job->chat, NULL, vars, NULL, &r, &err) != MXC_OK) {
            job->bad++;
        } else {
            job->bad += strcmp(r.text, want) != 0;
            mxc_jinja_result_fini(&r);
        }
        json_decref(vars);
    }
    return NULL;
}

static void threads_share_a_template(void **state) {
    (void)state;
    static const char text[] =
        "{% set c = 'é' ~ ':' %}{{ c ~ n }} {{ t|upper }} {{ 'éé'|length + 4 }}";
    struct mxc_chat_template_source source = {NULL, text, sizeof text - 1};
    struct mxc_chat_template *chat = NULL;
    struct mxc_err err = {0};
    assert_int_equal(mxc_chat_template_new(&source, 1, NULL, 0, false, &chat, &err), MXC_OK);
    pthread_t threads[4];
    struct job jobs[4];
    for (int i = 0; i < 4; i++) {
        jobs[i] = (struct job){chat, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &jobs[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(jobs[i].bad, 0);
    }
    mxc_chat_template_free(chat);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(user_bytes_stay_user_bytes),
                                       cmocka_unit_test(long_strings_grow_in_place_unshared),
                                       cmocka_unit_test(names_choose_the_template),
                                       cmocka_unit_test(clock_is_read),
                                       cmocka_unit_test(threads_share_a_template)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
