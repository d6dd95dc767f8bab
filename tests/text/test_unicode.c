/* Unicode tables and normalisation: fixed facts, and every code point against utf8proc. */
#include "test.h"

#include "base/mem.h"
#include "text/normalize.h"
#include "text/unicode.h"

#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

#define LENGTH(a) (sizeof(a) / sizeof *(a))

static void test_categories(void **state) {
    (void)state;
    assert_int_equal(mxc_unicode_category_of('A'), MXC_UNICODE_LU);
    assert_int_equal(mxc_unicode_category_of(0x180E), MXC_UNICODE_CF);
    assert_int_equal(mxc_unicode_category_of(0x10D50), MXC_UNICODE_LU); /* new in 16 */
    assert_int_equal(mxc_unicode_category_of(0x11F50), MXC_UNICODE_ND); /* new in 15 */
    assert_int_equal(mxc_unicode_category_of(0x10FFFF), MXC_UNICODE_CN);
    assert_int_equal(mxc_unicode_category_of(0x110000), MXC_UNICODE_CN);
    assert_false(mxc_unicode_is_space(0x180E));
    assert_true(mxc_unicode_is_space(0x85));
    assert_true(mxc_unicode_is_space(0x3000));
    assert_true(mxc_unicode_is_word('_'));
    assert_false(mxc_unicode_is_word('-'));
    assert_true(mxc_unicode_in(MXC_UNICODE_SET_HAN, 0x4E00));
    assert_false(mxc_unicode_in(MXC_UNICODE_SET_HAN, 0x3042));
}

static void test_names(void **state) {
    (void)state;
    uint32_t mask;
    enum mxc_unicode_set set;
    assert_true(mxc_unicode_categories_by_name(MXC_STR("Lu"), &mask));
    assert_int_equal(mask, 1u << MXC_UNICODE_LU);
    assert_true(mxc_unicode_categories_by_name(MXC_STR("N"), &mask));
    assert_int_equal(mask, 1u << MXC_UNICODE_ND | 1u << MXC_UNICODE_NL | 1u << MXC_UNICODE_NO);
    assert_false(mxc_unicode_categories_by_name(MXC_STR("Xx"), &mask));
    assert_false(mxc_unicode_categories_by_name(MXC_STR(""), &mask));
    assert_true(mxc_unicode_set_by_name(MXC_STR("han"), &set));
    assert_int_equal(set, MXC_UNICODE_SET_HAN);
    assert_false(mxc_unicode_set_by_name(MXC_STR("Klingon"), &set));
}

static void test_case(void **state) {
    (void)state;
    uint32_t out[2];
    assert_int_equal(mxc_unicode_lower('Q', out), 1);
    assert_int_equal(out[0], 'q');
    assert_int_equal(mxc_unicode_lower(0x130, out), 2); /* I with dot */
    assert_int_equal(out[1], 0x307);
    assert_int_equal(mxc_unicode_lower(0x10D50, out), 1);
    assert_int_equal(out[0], 0x10D70);
}

static struct mxc_normalizer *make(enum mxc_tok_step_kind kind) {
    struct mxc_tok_step step = {.kind = kind};
    struct mxc_tok_steps steps = {.items = &step, .count = 1};
    struct mxc_normalizer *n = NULL;
    assert_int_equal(mxc_normalizer_new(&steps, &n, NULL), MXC_OK);
    return n;
}

static void run(const struct mxc_normalizer *n, const char *in, size_t length,
                struct mxc_text *text, struct mxc_text *spare) {
    mxc_text_clear(text);
    mxc_text_append(text, in, length, NULL, 0);
    assert_int_equal(mxc_normalizer_run(n, text, spare, NULL, NULL), MXC_OK);
}

static size_t put(char *out, const uint32_t *cps, size_t n) {
    size_t k = 0;
    for (size_t i = 0; i < n; i++)
        k += mxc_utf8_encode(cps[i], out + k);
    return k;
}

/* Steps that make a text longer and longer meet a bound, not the end of memory. */
static void test_bound(void **state) {
    (void)state;
    struct mxc_err err;
    struct mxc_text text;
    mxc_text_init(&text, true);
    mxc_text_append(&text, "ab", 2, NULL, 1);
    assert_int_equal(mxc_text_status(&text, &err), MXC_OK);
    mxc_text_append(&text, "", (size_t)MXC_TEXT_MAX_BYTES - 1, NULL, 1); /* not read */
    assert_int_equal(mxc_text_status(&text, &err), MXC_E_LIMIT);
    assert_int_equal(text.length, 2);
    mxc_text_clear(&text);
    assert_int_equal(mxc_text_status(&text, &err), MXC_OK);
    mxc_text_fini(&text);
}

/* Forty times "a" to "aa": refused long before memory is full. */
static void test_growth(void **state) {
    (void)state;
    enum { N = 40 };
    struct mxc_tok_step list[N];
    struct mxc_tok_steps steps = {.items = list, .count = N};
    struct mxc_normalizer *n = NULL;
    struct mxc_text text, spare;
    struct mxc_err err;
    for (size_t i = 0; i < N; i++)
        list[i] = (struct mxc_tok_step){
            .kind = MXC_TOK_REPLACE, .pattern = MXC_STR("a"), .content = MXC_STR("aa")};
    assert_int_equal(mxc_normalizer_new(&steps, &n, NULL), MXC_OK);
    mxc_text_init(&text, false);
    mxc_text_init(&spare, false);
    mxc_text_append(&text, "abc", 3, NULL, 0);
    assert_int_equal(mxc_normalizer_run(n, &text, &spare, NULL, &err), MXC_E_LIMIT);
    assert_non_null(strstr(err.message, "after steps"));
    assert_true(text.capacity < 1 << 16 && spare.capacity < 1 << 16);
    mxc_text_fini(&text);
    mxc_text_fini(&spare);
    mxc_normalizer_free(n);
}

/* Each code point that utf8proc knows: alone, after a letter, before marks, among Jamo. */
static void test_forms(void **state) {
    (void)state;
    static const struct {
        enum mxc_tok_step_kind kind;
        utf8proc_option_t options;
    } forms[] = {{MXC_TOK_NFC, UTF8PROC_STABLE | UTF8PROC_COMPOSE},
                 {MXC_TOK_NFD, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE},
                 {MXC_TOK_NFKC, UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
                 {MXC_TOK_NFKD, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT}};
    struct mxc_text text, spare;
    mxc_text_init(&text, false);
    mxc_text_init(&spare, false);
    for (size_t f = 0; f < LENGTH(forms); f++) {
        struct mxc_normalizer *n = make(forms[f].kind);
        for (uint32_t cp = 1; cp < 0x30000; cp++) {
            if (utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_CN ||
                utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_CS)
                continue;
            if (cp > 0x3400 && cp < 0xF900 && cp % 7 && cp > 0x4E10)
                continue; /* Han and Hangul: a sample */
            uint32_t cps[] = {cp, 'e', cp, 0x301, 0x323, cp, 0x1100, cp, 0x11A8, 'x', 0x327, cp};
            char in[64];
            utf8proc_uint8_t *want = NULL;
            size_t length = put(in, cps, LENGTH(cps));
            utf8proc_ssize_t k = utf8proc_map((const utf8proc_uint8_t *)in,
                                              (utf8proc_ssize_t)length, &want, forms[f].options);
            assert_true(k > 0);
            run(n, in, length, &text, &spare);
            if ((size_t)k != text.length || memcmp(want, text.data, text.length) != 0)
                fail_msg("form %zu of U+%04X", f, cp);
            free(want);
        }
        mxc_normalizer_free(n);
    }
    mxc_text_fini(&text);
    mxc_text_fini(&spare);
}

/* A long run of marks is sorted, not shifted. */
static void test_many_marks(void **state) {
    (void)state;
    struct mxc_normalizer *n = make(MXC_TOK_NFC);
    struct mxc_text text, spare, in;
    mxc_text_init(&text, false);
    mxc_text_init(&spare, false);
    mxc_text_init(&in, false);
    mxc_text_append(&in, "a", 1, NULL, 0);
    for (int i = 0; i < 100000; i++)
        mxc_text_append(&in, "\xCC\x81\xCC\xA3", 4, NULL, 0);
    run(n, in.data, in.length, &text, &spare);
    assert_int_equal(text.length, in.length);          /* a with dot below: 3 bytes for 1 + 2 */
    assert_memory_equal(text.data, "\xE1\xBA\xA1", 3); /* then dots, then acutes */
    assert_memory_equal(text.data + 3, "\xCC\xA3\xCC\xA3", 4);
    mxc_text_fini(&text);
    mxc_text_fini(&spare);
    mxc_text_fini(&in);
    mxc_normalizer_free(n);
}

static void test_tags_follow(void **state) {
    (void)state;
    struct mxc_normalizer *n = make(MXC_TOK_NFC);
    struct mxc_text text, spare;
    mxc_text_init(&text, true);
    mxc_text_init(&spare, true);
    mxc_text_append(&text, "xe", 2, NULL, 0);
    mxc_text_append(&text, "\xCC\x81z", 3, NULL, 1); /* the accent is untrusted */
    mxc_text_append(&text, "q", 1, NULL, 0);
    assert_int_equal(mxc_normalizer_run(n, &text, &spare, NULL, NULL), MXC_OK);
    assert_int_equal(text.length, 5);
    assert_memory_equal(text.data, "x\xC3\xA9zq", 5);
    static const uint8_t want[] = {0, 1, 1, 1, 0};
    assert_memory_equal(text.tags, want, 5);
    mxc_text_fini(&text);
    mxc_text_fini(&spare);
    mxc_normalizer_free(n);
}

static void test_other_steps(void **state) {
    (void)state;
    struct mxc_tok_step list[] = {
        {.kind = MXC_TOK_STRIP_SPACE, .left = true, .right = true},
        {.kind = MXC_TOK_LOWERCASE},
        {.kind = MXC_TOK_NFD},
        {.kind = MXC_TOK_STRIP_ACCENTS},
        {.kind = MXC_TOK_REPLACE, .pattern = MXC_STR("ab"), .content = MXC_STR("-")},
        {.kind = MXC_TOK_REPLACE,
         .pattern = MXC_STR("\\s+"),
         .content = MXC_STR("_"),
         .is_regex = true},
        {.kind = MXC_TOK_PREPEND, .content = MXC_STR(">")},
    };
    struct mxc_tok_steps steps = {.items = list, .count = LENGTH(list)};
    struct mxc_normalizer *n = NULL;
    struct mxc_regex_scratch *scratch = NULL;
    struct mxc_text text, spare;
    assert_int_equal(mxc_normalizer_new(&steps, &n, NULL), MXC_OK);
    assert_int_equal(mxc_regex_scratch_new(&scratch, NULL), MXC_OK);
    mxc_text_init(&text, false);
    mxc_text_init(&spare, false);
    const char *in = " \xC2\xA0\xC3\x89t\xC3\xA9 \t ABa\xC3\xA0 \xE2\x80\x83x\n";
    mxc_text_append(&text, in, strlen(in), NULL, 0);
    assert_int_equal(mxc_normalizer_run(n, &text, &spare, scratch, NULL), MXC_OK);
    mxc_text_append(&text, "", 1, NULL, 0);
    assert_string_equal(text.data, ">ete_-aa_x");
    mxc_text_fini(&text);
    mxc_text_fini(&spare);
    mxc_regex_scratch_free(scratch);
    mxc_normalizer_free(n);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_categories),  cmocka_unit_test(test_names),
        cmocka_unit_test(test_case),        cmocka_unit_test(test_bound),
        cmocka_unit_test(test_forms),       cmocka_unit_test(test_many_marks),
        cmocka_unit_test(test_tags_follow), cmocka_unit_test(test_other_steps),
        cmocka_unit_test(test_growth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
