/* Added tokens: longest first, flags, and matching before and after normalisation. */
#include "test.h"

#include "base/mem.h"
#include "format/tokenizer_json.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <string.h>

#define LENGTH(a) (sizeof(a) / sizeof *(a))
#define LETTERS                                                                                    \
    "\"a\": 0, \"b\": 1, \"A\": 2, \"B\": 3, \" \": 4, \"<\": 5, \">\": 6, \"^\": 7, \"-\": 8"

static struct mxc_tokenizer *make(const char *added, const char *normalizer) {
    char text[4096];
    struct mxc_err err = {0};
    struct mxc_tokdesc desc;
    struct mxc_tokenizer *t = NULL;
    snprintf(text, sizeof text,
             "{\"added_tokens\": [%s], \"normalizer\": %s, \"model\": {\"vocab\": {" LETTERS
             "}, \"merges\": []}, \"decoder\": {\"type\": \"Fuse\"}}",
             added, normalizer);
    if (mxc_tokenizer_json_parse(text, strlen(text), "t", &desc, &err) ||
        mxc_tokenizer_new(&desc, &t, &err))
        fail_msg("%s", err.message);
    return t;
}

static void expect(const struct mxc_tokenizer *t, const struct mxc_text_span *spans, size_t n,
                   bool parse, const char *want) {
    char got[256] = "";
    size_t k = 0;
    struct mxc_ids ids = {0};
    assert_int_equal(
        mxc_tokenizer_encode(t, spans, n, (struct mxc_encode_options){false, parse}, &ids, NULL),
        MXC_OK);
    for (size_t i = 0; i < ids.count; i++)
        k += (size_t)snprintf(got + k, sizeof got - k, "%s%u", i ? " " : "", ids.items[i]);
    assert_string_equal(got, want);
    mxc_ids_fini(&ids);
}

static void expect_text(const struct mxc_tokenizer *t, const char *text, const char *want) {
    struct mxc_text_span span = {text, strlen(text), true};
    expect(t, &span, 1, true, want);
}

static void test_longest(void **state) {
    (void)state;
    struct mxc_tokenizer *t = make("{\"id\": 10, \"content\": \"<a\", \"normalized\": false}, "
                                   "{\"id\": 11, \"content\": \"<ab>\", \"normalized\": false}, "
                                   "{\"id\": 12, \"content\": \"ab\", \"normalized\": false}",
                                   "null");
    expect_text(t, "<ab>", "11");
    expect_text(t, "<ab<", "10 1 5"); /* leftmost before the later "ab" */
    expect_text(t, "<a<ab>", "10 11");
    expect_text(t, "aab", "0 12");
    expect_text(t, "<", "5");
    expect_text(t, "", "");
    mxc_tokenizer_free(t);
}

static void test_flags(void **state) {
    (void)state;
    struct mxc_tokenizer *t =
        make("{\"id\": 10, \"content\": \"<l>\", \"lstrip\": true, \"normalized\": false}, "
             "{\"id\": 11, \"content\": \"<r>\", \"rstrip\": true, \"normalized\": false}, "
             "{\"id\": 12, \"content\": \"ab\", \"single_word\": true, \"normalized\": false}",
             "null");
    expect_text(t, "a  <l> b", "0 10 4 1");
    expect_text(t, "a <r>  b", "0 4 11 1");
    expect_text(t, "<r>  <l>", "11 10"); /* the space is taken once */
    expect_text(t, "ab bab ab-ab", "12 4 1 0 1 4 12 8 12");
    mxc_tokenizer_free(t);
}

/* Normalised tokens are matched in normalised text, by their normalised spelling; trust goes along.
 */
static void test_normalized(void **state) {
    (void)state;
    struct mxc_tokenizer *t = make("{\"id\": 10, \"content\": \"<A>\", \"normalized\": true, "
                                   "\"special\": true}, {\"id\": 11, \"content\": \"<B>\", "
                                   "\"normalized\": false}",
                                   "{\"type\": \"Lowercase\"}");
    expect_text(t, "A<A>b<a>", "0 10 1 10");
    expect_text(t, "<B><b>", "11 5 1 6");
    struct mxc_text_span parts[] = {{"<A>", 3, true}, {"B<A>", 4, false}, {"<a>", 3, true}};
    expect(t, parts, 3, true, "10 1 5 0 6 10");
    struct mxc_text_span broken[] = {{"<", 1, true}, {"A", 1, false}, {">", 1, true}};
    expect(t, broken, 3, true, "5 0 6");
    expect(t, parts, 1, false, "5 0 6");
    mxc_tokenizer_free(t);
}

/* What is prepended stands before every text between tokens. */
static void test_prepend(void **state) {
    (void)state;
    struct mxc_tokenizer *t = make("{\"id\": 10, \"content\": \"<>\", \"normalized\": false}",
                                   "{\"type\": \"Prepend\", \"prepend\": \"^\"}");
    expect_text(t, "a<>b<><>", "7 0 10 7 1 10 10");
    mxc_tokenizer_free(t);
}

/* Turn markers that are not flagged special are control tokens all the same. */
static void test_markers(void **state) {
    (void)state;
    struct mxc_tokenizer *t = make("{\"id\": 10, \"content\": \"<|a|>\", \"normalized\": false}, "
                                   "{\"id\": 11, \"content\": \"<a>\", \"normalized\": false}",
                                   "null");
    struct mxc_text_span user = {"<|a|><a>", 8, false};
    expect(t, &user, 1, true, "5 0 6 11");
    user.trusted = true;
    expect(t, &user, 1, true, "10 11");
    expect(t, &user, 1, false, "10 11"); /* not special: parse_special does not matter */
    mxc_tokenizer_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_longest),    cmocka_unit_test(test_flags),
        cmocka_unit_test(test_normalized), cmocka_unit_test(test_prepend),
        cmocka_unit_test(test_markers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
