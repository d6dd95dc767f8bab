/* Grammars from text: what each front end accepts, and what it refuses and how it says so. */
#include "test.h"

#include "base/mem.h"
#include "gen/grammar/grammar.h"

#include <stdio.h>
#include <string.h>

static bool accepts(const struct mxc_grammar *g, const char *text, size_t length) {
    bool yes = false;
    assert_int_equal(mxc_grammar_accepts(g, (struct mxc_str){text, length}, &yes, NULL), MXC_OK);
    return yes;
}

/* yes and no: texts, each list ends with NULL. */
static void check(struct mxc_grammar *g, const char *what, const char *const *yes,
                  const char *const *no) {
    for (; *yes; yes++)
        if (!accepts(g, *yes, strlen(*yes)))
            fail_msg("%s: refuses %s", what, *yes);
    for (; *no; no++)
        if (accepts(g, *no, strlen(*no)))
            fail_msg("%s: accepts %s", what, *no);
    mxc_grammar_free(g);
}

static void gbnf_case(const char *text, const char *const *yes, const char *const *no) {
    struct mxc_grammar *g = NULL;
    struct mxc_err err = {0};
    if (mxc_grammar_parse_gbnf(mxc_str_of(text), &g, &err))
        fail_msg("%s: %s", text, err.message);
    check(g, text, yes, no);
}
#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})

static void gbnf(void **state) {
    (void)state;
    gbnf_case("root ::= \"a\" | \"bc\"", LIST("a", "bc"), LIST("", "b", "abc", "aa"));
    gbnf_case("# a comment\nroot ::= item+ # more\nitem ::= [a-c] \"\\n\"\n", LIST("a\n", "b\nc\n"),
              LIST("", "a", "d\n"));
    gbnf_case("root ::= (\"x\" |\n \"y\")*\n", LIST("", "xyx"), LIST("z", "xz"));
    gbnf_case("root ::= \"a\"\n  | \"b\"\n", LIST("a", "b"), LIST("", "ab"));
    gbnf_case("root ::= \"a\"{2} \"b\"{1,2} \"c\"{0,1} \"d\"{2,}", LIST("aabdd", "aabbcddd"),
              LIST("aabd", "abdd", "aabbbdd", "aabccdd"));
    gbnf_case("root ::= [^\\n\"]* \"\\\"\"", LIST("\"", "abc\"", "\xc3\xa4\xf0\x9f\x98\x80\""),
              LIST("a", "\"\"", "\n\"", "\xc3\""));
    gbnf_case("root ::= [\\u00e4-\\u00f6] \"\\U0001F600\" \"\\x41\"",
              LIST("\xc3\xa4\xf0\x9f\x98\x80"
                   "A",
                   "\xc3\xb6\xf0\x9f\x98\x80"
                   "A"),
              LIST("\xc3\xb7\xf0\x9f\x98\x80"
                   "A",
                   "\xc3\xa4"
                   "A"));
    gbnf_case("root ::= . .", LIST("ab", "\xe2\x82\xac\n"), LIST("a", "abc", "\xff\xff"));
    /* recursion: balanced brackets, right and middle */
    gbnf_case("root ::= \"(\" root \")\" | \"\"", LIST("", "()", "((()))"), LIST("(", "(()", ")("));
    gbnf_case("root ::= a\na ::= \"x\" a | \"y\"", LIST("y", "xxxxxxxxy"), LIST("x", "yy"));
    gbnf_case("root ::= expr\nexpr ::= term (\"+\" term)*\nterm ::= num | \"(\" expr \")\"\n"
              "num ::= [0-9]+",
              LIST("1", "12+3", "(1+2)+(3)"), LIST("", "1+", "(1", "1)"));
    /* an alternative that is a beginning of another */
    gbnf_case("root ::= \"a\" | \"ab\" | \"abc\"", LIST("a", "ab", "abc"), LIST("abcd", "b"));
    /* nullable parts in repetitions, written out and counted */
    gbnf_case("root ::= ([ ]*){0,5} \"x\" (ws \"y\"?){3,200}\nws ::= [ \\t]*",
              LIST("x", "   x y  y", "xyyyyy"), LIST("", "yx", "xz"));
    gbnf_case("root ::= list{2,300}\nlist ::= (\"[\" list \"]\")? ", LIST("", "[[]]", "[][][]"),
              LIST("[", "[]]"));
    /* a long counted repetition */
    gbnf_case("root ::= ([a-z] [0-9]){3,1000} \"!\"", LIST("a1b2c3!", "a1b2c3d4e5f6!"),
              LIST("a1b2!", "a1b2c!", "!"));
}

static void counted(void **state) {
    (void)state;
    struct mxc_grammar *g = NULL;
    char text[4000];
    assert_int_equal(mxc_grammar_parse_gbnf(MXC_STR("root ::= [a-z]{1000,2000}"), &g, NULL),
                     MXC_OK);
    assert_true(mxc_grammar_n_states(g) < 20);
    memset(text, 'k', sizeof text);
    assert_false(accepts(g, text, 999));
    assert_true(accepts(g, text, 1000));
    assert_true(accepts(g, text, 2000));
    assert_false(accepts(g, text, 2001));
    mxc_grammar_free(g);
}

static void refused(enum mxc_code code, const struct mxc_err *err, enum mxc_code expect,
                    const char *part) {
    if (code != expect || !strstr(err->message, part))
        fail_msg("code %d, %s; expected %d, %s", code, err->message, expect, part);
    assert_null(strchr(err->message, '\n'));
}

static void gbnf_errors(void **state) {
    (void)state;
    static const struct {
        const char *text, *part;
        enum mxc_code code;
    } table[] = {
        {"", "no rule root", MXC_E_ARG},
        {"a ::= \"x\"", "no rule root", MXC_E_ARG},
        {"root ::= b", "the rule b is used but not defined", MXC_E_ARG},
        {"root ::= \"a", "line 1, column 12", MXC_E_ARG},
        {"root ::= \"a\"\nroot ::= \"b\"", "line 2, column 1: the rule is defined twice",
         MXC_E_ARG},
        {"root ::= (\"a\"", ") is missing", MXC_E_ARG},
        {"root = \"a\"", "line 1, column 6: ::= is missing", MXC_E_ARG},
        {"root ::= \"a\" )", "unexpected", MXC_E_ARG},
        {"root ::= [z-a]", "range", MXC_E_ARG},
        {"root ::= \"\\q\"", "unknown escape", MXC_E_ARG},
        {"root ::= \"\\ud800\"", "no character", MXC_E_ARG},
        {"root ::= \"a\"{3,2}", "less than its beginning", MXC_E_ARG},
        {"root ::= \"a\"{99999}", "65536", MXC_E_LIMIT},
        {"root ::= <think>", "tokens", MXC_E_UNSUPPORTED},
        {"root ::= root \"a\" | \"b\"", "left recursion: the rule root", MXC_E_ARG},
        {"root ::= x\nx ::= [ ]* y \"b\" | \"c\"\ny ::= x x | \"d\"", "left recursion", MXC_E_ARG},
        {"root ::= \"a\" root", "matches nothing", MXC_E_ARG},
        {"root ::= [a-z]* [a-z] [a-z]{19} \"!\" | ([ab]* \"a\" [ab]{18})", "limit", MXC_E_LIMIT},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct mxc_grammar *g = NULL;
        struct mxc_err err = {0};
        enum mxc_code code = mxc_grammar_parse_gbnf(mxc_str_of(table[i].text), &g, &err);
        if (!code)
            fail_msg("%s is accepted", table[i].text);
        refused(code, &err, table[i].code, table[i].part);
    }
    /* nesting */
    char deep[2000] = "root ::= ";
    size_t n = strlen(deep);
    memset(deep + n, '(', 200);
    deep[n + 200] = 0;
    struct mxc_grammar *g = NULL;
    struct mxc_err err = {0};
    refused(mxc_grammar_parse_gbnf(mxc_str_of(deep), &g, &err), &err, MXC_E_LIMIT, "128");
}

static void regex_case(const char *pattern, const char *const *yes, const char *const *no) {
    struct mxc_grammar *g = NULL;
    struct mxc_err err = {0};
    if (mxc_grammar_parse_regex(mxc_str_of(pattern), &g, &err))
        fail_msg("%s: %s", pattern, err.message);
    check(g, pattern, yes, no);
}

static void regex(void **state) {
    (void)state;
    regex_case("abc", LIST("abc"), LIST("", "ab", "xabc", "abcx"));
    regex_case("^a|b$", LIST("a", "b"), LIST("ab", ""));
    regex_case("(?:ab)+c?", LIST("ab", "ababc"), LIST("", "abcc", "aab"));
    regex_case("(?<year>\\d{4})-(\\d{2})", LIST("2024-01"), LIST("2024-1", "20240-01"));
    regex_case("[^a-c\\d]{2,3}", LIST("xy", "xyz", "\xc3\xa4\xc3\xb6"),
               LIST("x", "xa", "x1", "wxyz"));
    regex_case(".*", LIST("", "abc \xf0\x9f\x98\x80"), LIST("a\nb"));
    regex_case("\\w+@\\w+\\.(com|org)", LIST("me_1@x.com"),
               LIST("@x.com", "me@x.net", "m\xc3\xa4@x.com"));
    regex_case("[\\]\\-a]+|\\u00e4|\\x41|\\t", LIST("]-a", "\xc3\xa4", "A", "\t"), LIST("", "b"));
    regex_case("[a-]", LIST("a", "-"), LIST("b"));
    regex_case("\\p{Lu}\\p{Ll}*", LIST("Abc", "\xc3\x84h"), LIST("abc", "AB"));
    regex_case("a{2}b{2,}c{0,2}", LIST("aabb", "aabbbbcc"), LIST("abb", "aab", "aabbccc"));
    regex_case("\\s\\S", LIST(" a", "\xc2\xa0\xc3\xa4"),
               LIST("ab",
                    "\xef\xbb\xbf"
                    "a",
                    " \xc2\x85"));
    regex_case("a{x}", LIST("a{x}"), LIST("ax"));
    regex_case("x*?y+?", LIST("y", "xxyy"), LIST("x"));
    regex_case("(a|b)*abb", LIST("abb", "babababb"), LIST("ab", "abba"));
    regex_case("()|a", LIST("", "a"), LIST("aa"));
}

static void regex_errors(void **state) {
    (void)state;
    static const struct {
        const char *text, *part;
        enum mxc_code code;
    } table[] = {
        {"(a", "character 1: a ( that is not closed", MXC_E_ARG},
        {"a)", "character 2", MXC_E_ARG},
        {"[a", "not closed", MXC_E_ARG},
        {"*a", "nothing to repeat", MXC_E_ARG},
        {"a**", "nothing to repeat", MXC_E_ARG},
        {"a\\", "ends with a backslash", MXC_E_ARG},
        {"a{3,1}", "less than its beginning", MXC_E_ARG},
        {"[z-a]", "range", MXC_E_ARG},
        {"(?=a)b", "lookaround", MXC_E_UNSUPPORTED},
        {"(?<!a)b", "lookaround", MXC_E_UNSUPPORTED},
        {"(a)\\1", "back references", MXC_E_UNSUPPORTED},
        {"\\bword", "word boundaries", MXC_E_UNSUPPORTED},
        {"(?i)a", "flags", MXC_E_UNSUPPORTED},
        {"a++", "possessive", MXC_E_UNSUPPORTED},
        {"a^b", "^ is supported", MXC_E_UNSUPPORTED},
        {"\\p{Nonsense}", "Unicode property", MXC_E_UNSUPPORTED},
        {"a{70000}", "65536", MXC_E_LIMIT},
        {"[ab]*a[ab]{20}", "limit", MXC_E_LIMIT},
        {"\xff", "UTF-8", MXC_E_ARG},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct mxc_grammar *g = NULL;
        struct mxc_err err = {0};
        enum mxc_code code = mxc_grammar_parse_regex(mxc_str_of(table[i].text), &g, &err);
        if (!code)
            fail_msg("%s is accepted", table[i].text);
        refused(code, &err, table[i].code, table[i].part);
    }
}

static void choice(void **state) {
    (void)state;
    struct mxc_str items[] = {MXC_STR("yes"), MXC_STR("no"), MXC_STR("not sure"), MXC_STR("")};
    struct mxc_grammar *g = NULL;
    struct mxc_err err = {0};
    assert_int_equal(mxc_grammar_choice(items, 4, &g, NULL), MXC_OK);
    check(g, "choice", LIST("yes", "no", "not sure", ""), LIST("not", "yesno", "maybe"));
    refused(mxc_grammar_choice(items, 0, &g, &err), &err, MXC_E_ARG, "no strings");
    refused(mxc_grammar_choice(&MXC_STR("\xff"), 1, &g, &err), &err, MXC_E_ARG, "UTF-8");
}

static void json_object_text(void **state) {
    (void)state;
    struct mxc_grammar *g = NULL;
    assert_int_equal(mxc_grammar_json_object(MXC_JSON_SPACED, &g, NULL), MXC_OK);
    check(g, "json object",
          LIST("{}", "{ }", "{\"a\":1}",
               "{\"a\": [1, 2.5e-3, {\"b\": null}], \"\": \"\\u00e4\\n\"}",
               "{\"a\": -0.5, \"b\": true, \"c\": [], \"d\": \"\\ud83d\\ude00\"}"),
          LIST("", "[]", "1", "{a:1}", "{\"a\":1,}", "{\"a\":  1}", "{\"a\":\n1}", "{\"a\":01}",
               "{\"a\":\"\n\"}", "{\"a\":\"\\ud800\"}", "{\"a\":\"\\u0000\"}", "{\"a\":+1}",
               "{\"a\":.5}", "{\"a\":1}x", "{\"a\":1e999}", "{\"a\":\"\\x\"}", "{}{}"));
    assert_int_equal(mxc_grammar_json_object(MXC_JSON_COMPACT, &g, NULL), MXC_OK);
    check(g, "compact", LIST("{\"a\":[1,2]}"), LIST("{\"a\": 1}", "{\"a\":[1, 2]}"));
    assert_int_equal(mxc_grammar_json_object(MXC_JSON_PRETTY, &g, NULL), MXC_OK);
    check(g, "pretty", LIST("{\n  \"a\": [\n    1\n  ]\n}", "{\"a\": 1}"), LIST("{\n\n\"a\":1}"));
}

static void builder(void **state) {
    (void)state;
    struct mxc_grammar_builder *b = NULL;
    struct mxc_grammar *g = NULL;
    struct mxc_err err = {0};
    json_t *schema =
        json_loads("{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"}},"
                   "\"required\":[\"city\"]}",
                   0, NULL);
    assert_int_equal(mxc_grammar_builder_new(MXC_JSON_SPACED, &b, NULL), MXC_OK);
    int32_t name = mxc_grammar_add_choice(b, (struct mxc_str[]){MXC_STR("f"), MXC_STR("g")}, 2);
    int32_t parts[] = {mxc_grammar_add_literal(b, MXC_STR("<tool_call>\n{\"name\": \"")), name,
                       mxc_grammar_add_literal(b, MXC_STR("\", \"arguments\": ")),
                       mxc_grammar_add_schema(b, schema),
                       mxc_grammar_add_literal(b, MXC_STR("}\n</tool_call>"))};
    int32_t call = mxc_grammar_add_seq(b, parts, 5);
    int32_t more = mxc_grammar_add_repeat(
        b, mxc_grammar_add_seq(b, (int32_t[]){mxc_grammar_add_literal(b, MXC_STR("\n")), call}, 2),
        0, -1);
    int32_t all = mxc_grammar_add_seq(b, (int32_t[]){call, more}, 2);
    assert_int_equal(mxc_grammar_builder_finish(b, all, &g, &err), MXC_OK);
    check(g, "calls",
          LIST("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>",
               "<tool_call>\n{\"name\": \"g\", \"arguments\": {\"city\":\"\"}}\n</tool_call>\n"
               "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"city\": \"x\"}}\n</tool_call>"),
          LIST("<tool_call>\n{\"name\": \"h\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>",
               "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>"));
    /* text up to a mark, in UTF-8 */
    int32_t until = mxc_grammar_add_seq(b,
                                        (int32_t[]){mxc_grammar_add_until(b, MXC_STR("</p>")),
                                                    mxc_grammar_add_literal(b, MXC_STR("</p>"))},
                                        2);
    assert_int_equal(mxc_grammar_builder_finish(b, until, &g, &err), MXC_OK);
    check(g, "until", LIST("</p>", "a < b </ <</p>", "\xf0\x9f\x98\x80</p>", "<</</p</p>"),
          LIST("", "a", "</p></p>", "</p>a</p>", "\xff</p>", "\xc3</p>"));
    /* a rule that is defined later, and errors that stick */
    int32_t rule = mxc_grammar_add_rule(b, MXC_STR("nest"));
    int32_t open = mxc_grammar_add_literal(b, MXC_STR("(")),
            close = mxc_grammar_add_literal(b, MXC_STR(")"));
    int32_t inner =
        mxc_grammar_add_seq(b, (int32_t[]){open, mxc_grammar_add_ref(b, rule), close}, 3);
    refused(mxc_grammar_builder_finish(b, inner, &g, &err), &err, MXC_E_ARG, "nest is not defined");
    mxc_grammar_set_rule(b, rule, mxc_grammar_add_repeat(b, inner, 0, 1));
    assert_int_equal(mxc_grammar_builder_finish(b, inner, &g, &err), MXC_OK);
    check(g, "nest", LIST("()", "((()))"), LIST("", "(()"));
    assert_int_equal(mxc_grammar_add_regex(b, MXC_STR("(")), -1);
    assert_int_equal(mxc_grammar_add_literal(b, MXC_STR("x")), -1);
    refused(mxc_grammar_builder_finish(b, inner, &g, &err), &err, MXC_E_ARG, "not closed");
    mxc_grammar_builder_free(b);
    json_decref(schema);
}

static void ambiguous(void **state) {
    (void)state;
    /* Every a may or may not want a b later: one more reading with each a. */
    static const char text[] = "root ::= s | \"z\" x y\ns ::= \"a\" x | \"a\" y | \"a\"\n"
                               "x ::= s \"b\"\ny ::= s\n";
    struct mxc_grammar *g = NULL;
    struct mxc_err err = {0};
    char input[400];
    bool yes;
    assert_int_equal(mxc_grammar_parse_gbnf(mxc_str_of(text), &g, &err), MXC_OK);
    memset(input, 'a', sizeof input);
    enum mxc_code code = mxc_grammar_accepts(g, (struct mxc_str){input, sizeof input}, &yes, &err);
    refused(code, &err, MXC_E_LIMIT, "256");
    mxc_grammar_free(g);
}

static enum mxc_code make_all(struct mxc_err *err) {
    static const char schema_text[] =
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"^[a-z]+$\","
        "\"maxLength\":4},\"b\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/"
        "n\"},\"minItems\":1},"
        "\"c\":{\"enum\":[1,\"x\",null]},\"d\":{\"type\":\"integer\",\"minimum\":3}},"
        "\"required\":[\"a\"],\"additionalProperties\":{\"type\":\"number\",\"maximum\":2.5},"
        "\"$defs\":{\"n\":{\"allOf\":[{\"type\":\"object\",\"properties\":{\"k\":{\"$ref\":"
        "\"#/$defs/n\"}}},{\"required\":[]}]}}}";
    json_t *schema = json_loads(schema_text, 0, NULL);
    struct mxc_grammar *g = NULL;
    if (!schema)
        return mxc_err_nomem(err);
    enum mxc_code code = mxc_grammar_parse_schema(schema, MXC_JSON_PRETTY, &g, err);
    json_decref(schema);
    if (code)
        return code;
    mxc_grammar_free(g);
    g = NULL;
    code = mxc_grammar_parse_gbnf(
        MXC_STR(
            "root ::= [a-z\\u00e4]{3,200} (\"x\" root | r)\nr ::= \"\\n\"? r2\nr2 ::= \"q\" r2?"),
        &g, err);
    mxc_grammar_free(g);
    return code;
}

static void memory(void **state) {
    (void)state;
    struct mxc_err err = {0};
    mxc_mem_fail_at(0);
    uint64_t before = mxc_mem_calls();
    if (make_all(&err))
        fail_msg("%s", err.message);
    uint64_t calls = mxc_mem_calls() - before;
    for (uint64_t n = 1; n <= calls; n += n < 300 ? 1 : 7) {
        mxc_mem_fail_at(n);
        enum mxc_code code = make_all(&err);
        mxc_mem_fail_at(0);
        if (code != MXC_E_NOMEM)
            fail_msg("call %llu of %llu: code %d, %s", (unsigned long long)n,
                     (unsigned long long)calls, code, err.message);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gbnf),
        cmocka_unit_test(counted),
        cmocka_unit_test(gbnf_errors),
        cmocka_unit_test(regex),
        cmocka_unit_test(regex_errors),
        cmocka_unit_test(choice),
        cmocka_unit_test(json_object_text),
        cmocka_unit_test(builder),
        cmocka_unit_test(ambiguous),
        cmocka_unit_test(memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
