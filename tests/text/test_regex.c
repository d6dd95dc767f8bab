/* Regular expressions: what patterns match, what is refused and how, and pre-tokeniser splits. */
#include "test.h"

#include "base/mem.h"
#include "text/pretok.h"

#include <stdio.h>
#include <string.h>

#define LENGTH(a) (sizeof(a) / sizeof *(a))

/* All matches as "[a][b]"; text must be short. */
static const char *matches(const char *pattern, const char *text) {
    static char out[1024];
    struct mxc_regex *r = NULL;
    struct mxc_regex_scratch *s = NULL;
    struct mxc_err err = {0};
    uint8_t classes[256];
    size_t length = strlen(text), from = 0, k = 0;
    if (mxc_regex_new(mxc_str_of(pattern), &r, &err))
        fail_msg("%s: %s", pattern, err.message);
    assert_int_equal(mxc_regex_scratch_new(&s, &err), MXC_OK);
    size_t n = mxc_regex_classify(r, text, length, classes);
    while (from <= n) {
        bool found;
        size_t a, b, at = 0;
        assert_int_equal(mxc_regex_next(r, s, classes, n, from, &found, &a, &b, &err), MXC_OK);
        if (!found)
            break;
        out[k++] = '[';
        for (const char *p = text; *p; at++) {
            uint32_t cp;
            size_t m = mxc_utf8_decode(p, strlen(p), &cp);
            if (at >= a && at < b) {
                memcpy(out + k, p, m);
                k += m;
            }
            p += m;
        }
        out[k++] = ']';
        from = b > a ? b : b + 1;
    }
    out[k] = 0;
    mxc_regex_scratch_free(s);
    mxc_regex_free(r);
    return out;
}

static void test_matches(void **state) {
    (void)state;
    static const char *const cases[][3] = {
        {"a", "banana", "[a][a][a]"},
        {"\\p{L}+", "ab1\xC3\xA9z \xE6\x97\xA5", "[ab][\xC3\xA9z][\xE6\x97\xA5]"},
        {"\\P{L}", "a1", "[1]"},
        {"\\p{^L}", "a1", "[1]"},
        {"\\pN", "a1", "[1]"},
        {"\\p{Lu}\\p{Ll}*", "AbCd", "[Ab][Cd]"},
        {"\\p{Han}", "a\xE4\xB8\x80\xE3\x81\x82", "[\xE4\xB8\x80]"},
        {"\\s",
         "a\xE1\xA0\x8E"
         "b\xC2\x85",
         "[\xC2\x85]"}, /* U+180E is no space */
        {"[^\\s\\p{L}\\p{N}]+", "a-!b 1", "[-!]"},
        {"\\p{L}", "\xF0\x90\xB5\x90", "[\xF0\x90\xB5\x90]"}, /* a letter since Unicode 16 */
        {"\\p{N}{1,3}", "12345", "[123][45]"},
        {"\\p{N}{1,3}+", "12345", "[12345]"}, /* a quantifier of the quantified */
        {"a{,2}b", "aaab", "[aab]"},
        {"a{2}", "aaaaa", "[aa][aa]"},
        {"a{2,}", "aaaaa", "[aaaaa]"},
        {"a{x", "a{x", "[a{x]"},
        {"a+?", "aaa", "[a][a][a]"},
        {"a++b", "aab", "[aab]"},
        {"a?+a", "a", ""},
        {"(?>a|ab)c", "abc", ""},
        {"(?:a|b)+", "abc", "[ab]"},
        {"(a)(b)", "ab", "[ab]"},
        {"(?i:'s|'re)", "it'S 'Re '\xC5\xBF", "['S]['Re]['\xC5\xBF]"}, /* long s */
        {"(?i:k)", "kK\xE2\x84\xAA", "[k][K][\xE2\x84\xAA]"},          /* kelvin */
        {"a(?i)b|c", "aB aC C", "[aB][aC]"},
        {"(?i:[b-d])", "aBcE", "[B][c]"},
        {"(?i:[^a])", "Aab", "[b]"},
        {"\\s+(?!\\S)|\\s+", "a   b", "[  ][ ]"},
        {"(?<=a)b", "abcb", "[b]"},
        {"(?<!a)b", "abcb", "[b]"},
        {"\\s+$", "a  \nb  ", "[  ][  ]"},
        {"^b", "a\nb", "[b]"},
        {"\\Ab", "bb", "[b]"},
        {"b\\z", "bb", "[b]"},
        {"\\bfoo\\b", "foo food", "[foo]"},
        {"\\Boo", "oo foo", "[oo]"},
        {".", "a\nb", "[a][b]"},
        {"[]a]", "]a", "[]][a]"},
        {"[a-]", "a-b", "[a][-]"},
        {"[\\-x]", "-x", "[-][x]"},
        {"[a[bc]]", "abcd", "[a][b][c]"},
        {"[\\x41\\x{42}\\u0043]", "ABCD", "[A][B][C]"},
        {"[\xE4\xB8\x80-\xE9\xBE\xA5]+", "\xE6\x97\xA5x", "[\xE6\x97\xA5]"},
        {"\\.\\[\\]\\{\\}\\/", ".[]{}/", "[.[]{}/]"},
        {"\\w+|[^\\w\\s]+", "a_1 --", "[a_1][--]"},
        {"\\d", "1\xC2\xB2", "[1]"},
        {"\\w", "\xC2\xBD-\xC2\xB2", "[\xC2\xBD][\xC2\xB2]"}, /* Latin-1 table */
        {"[\\w]",
         "\xC2\xBD"
         "a",
         "[a]"},
        {"\\W", "\xC2\xBD-", "[-]"},
        {"\xC3\xA9|e",
         "\xC3\xA9"
         "e",
         "[\xC3\xA9][e]"},
        {"[^a]", "\xF4\x8F\xBF\xBF", "[\xF4\x8F\xBF\xBF]"},
    };
    for (size_t i = 0; i < LENGTH(cases); i++)
        assert_string_equal(matches(cases[i][0], cases[i][1]), cases[i][2]);
}

static void test_refused(void **state) {
    (void)state;
    static const struct {
        const char *pattern, *in_message;
        enum mxc_code code;
    } cases[] = {
        {"[a-z&&[^b]]", "&&", MXC_E_UNSUPPORTED},
        {"\\h", "\\h", MXC_E_UNSUPPORTED},
        {"\\R", "\\R", MXC_E_UNSUPPORTED},
        {"(a)\\1", "\\1", MXC_E_UNSUPPORTED},
        {"\\G", "\\G", MXC_E_UNSUPPORTED},
        {"(?<name>a)", "(?<n", MXC_E_UNSUPPORTED},
        {"(?m:a)", "(?m:", MXC_E_UNSUPPORTED},
        {"(?x)a", "(?x)", MXC_E_UNSUPPORTED},
        {"[[:alpha:]]", "[: :]", MXC_E_UNSUPPORTED},
        {"\\p{Klingon}", "Klingon", MXC_E_UNSUPPORTED},
        {"\\xE9", "\\x80", MXC_E_UNSUPPORTED},
        {"a{2}?", "{n}?", MXC_E_UNSUPPORTED},
        {"(?<=a+)b", "lookbehind", MXC_E_UNSUPPORTED},
        {"(", "( without )", MXC_E_FORMAT},
        {")", ") without (", MXC_E_FORMAT},
        {"[a", "[ without ]", MXC_E_FORMAT},
        {"*a", "nothing to repeat", MXC_E_FORMAT},
        {"a{5,2}", "repeat", MXC_E_FORMAT},
        {"a{5000}", "repeat", MXC_E_FORMAT},
        {"[z-a]", "range", MXC_E_FORMAT},
        {"\\", "backslash", MXC_E_FORMAT},
        {"\\x{110000}", "hexadecimal", MXC_E_FORMAT},
        {"\\p{L", "without }", MXC_E_FORMAT},
        {"a\xFF", "UTF-8", MXC_E_FORMAT},
    };
    for (size_t i = 0; i < LENGTH(cases); i++) {
        struct mxc_regex *r = NULL;
        struct mxc_err err = {0};
        assert_int_equal(mxc_regex_new(mxc_str_of(cases[i].pattern), &r, &err), cases[i].code);
        if (!strstr(err.message, cases[i].in_message))
            fail_msg("%s: \"%s\" names nothing", cases[i].pattern, err.message);
        assert_null(r);
    }
    char deep[400];
    memset(deep, '(', 200);
    memset(deep + 200, ')', 199);
    deep[399] = 0;
    struct mxc_regex *r = NULL;
    assert_int_equal(mxc_regex_new(mxc_str_of(deep), &r, NULL), MXC_E_LIMIT);
}

/* A pattern that backtracks without end stops with an error. */
static void test_limit(void **state) {
    (void)state;
    struct mxc_regex *r = NULL;
    struct mxc_regex_scratch *s = NULL;
    struct mxc_err err = {0};
    uint8_t classes[64];
    char text[64];
    bool found;
    size_t a, b;
    memset(text, 'a', 60);
    text[60] = 'b';
    text[61] = 'c';
    assert_int_equal(mxc_regex_new(MXC_STR("(?:a|aa)+c"), &r, &err), MXC_OK);
    assert_int_equal(mxc_regex_scratch_new(&s, &err), MXC_OK);
    size_t n = mxc_regex_classify(r, text, 62, classes);
    assert_int_equal(mxc_regex_next(r, s, classes, n, 0, &found, &a, &b, &err), MXC_E_LIMIT);
    mxc_regex_scratch_free(s);
    mxc_regex_free(r);
}

static const char *split(struct mxc_tok_step step, const char *in) {
    static char out[512];
    struct mxc_tok_steps steps = {.items = &step, .count = 1};
    struct mxc_pretok *p = NULL;
    struct mxc_pretok_scratch scratch = {0};
    struct mxc_regex_scratch *regex = NULL;
    struct mxc_text text;
    size_t k = 0;
    mxc_text_init(&text, false);
    mxc_text_append(&text, in, strlen(in), NULL, 0);
    assert_int_equal(mxc_pretok_new(&steps, &p, NULL), MXC_OK);
    assert_int_equal(mxc_regex_scratch_new(&regex, NULL), MXC_OK);
    assert_int_equal(mxc_pretok_run(p, &text, true, &scratch, regex, NULL), MXC_OK);
    for (size_t i = 0; i < scratch.pieces.count; i++) {
        struct mxc_piece piece = scratch.pieces.items[i];
        k += (size_t)snprintf(out + k, sizeof out - k, "%s%.*s", i ? "|" : "", (int)piece.length,
                              text.data + piece.start);
    }
    out[k] = 0;
    mxc_pretok_scratch_fini(&scratch);
    mxc_regex_scratch_free(regex);
    mxc_pretok_free(p);
    mxc_text_fini(&text);
    return out;
}

static void test_behaviors(void **state) {
    (void)state;
    static const struct {
        enum mxc_tok_behavior behavior;
        bool invert;
        const char *want;
    } cases[] = {
        {MXC_TOK_REMOVED, false, "the|final|countdown"},
        {MXC_TOK_ISOLATED, false, "the|-|final|-|-|countdown"},
        {MXC_TOK_MERGED_WITH_PREVIOUS, false, "the-|final-|-|countdown"},
        {MXC_TOK_MERGED_WITH_NEXT, false, "the|-final|-|-countdown"},
        {MXC_TOK_CONTIGUOUS, false, "the|-|final|--|countdown"},
        {MXC_TOK_REMOVED, true, "-|-|-"},
    };
    for (size_t i = 0; i < LENGTH(cases); i++)
        for (int regex = 0; regex < 2; regex++) {
            struct mxc_tok_step step = {.kind = MXC_TOK_SPLIT,
                                        .pattern = MXC_STR("-"),
                                        .is_regex = regex,
                                        .behavior = cases[i].behavior,
                                        .invert = cases[i].invert};
            assert_string_equal(split(step, "the-final--countdown"), cases[i].want);
        }
}

static void test_rewriting(void **state) {
    (void)state;
    struct mxc_tok_step bytes = {
        .kind = MXC_TOK_BYTE_LEVEL, .add_prefix_space = true, .use_regex = true};
    assert_string_equal(split(bytes, "it's 12  x"), " it|'s| 12| | x");
    assert_string_equal(split(bytes, " a"), " a");
    struct mxc_tok_step meta = {.kind = MXC_TOK_METASPACE, .pattern = MXC_STR("_")};
    assert_string_equal(split(meta, "a b"), "a_b");
    meta.prepend = MXC_TOK_PREPEND_FIRST;
    assert_string_equal(split(meta, "a b"), "_a_b");
    assert_string_equal(split(meta, " b"), "_b");
    meta.split = true;
    assert_string_equal(split(meta, "a  b"), "_a|_|_b");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matches),   cmocka_unit_test(test_refused),
        cmocka_unit_test(test_limit),     cmocka_unit_test(test_behaviors),
        cmocka_unit_test(test_rewriting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
