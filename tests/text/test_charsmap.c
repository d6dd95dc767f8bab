/* Character maps: whole and damaged ones, keys that never end; grapheme clusters; the normalisers
 * that are made of per-character rules. */
#include "test.h"

#include "base/buf.h"
#include "text/charsmap.h"
#include "text/normalize.h"
#include "text/trie.h"

#include <string.h>

#define LENGTH(a) (sizeof(a) / sizeof *(a))

static void put_u32(struct mxc_buf *b, uint32_t v) {
    for (int i = 0; i < 4; i++)
        mxc_buf_putc(b, (char)(v >> 8 * i & 0xFF));
}

/* A map of n units and a pool. */
static enum mxc_code make(const uint32_t *units, size_t n, const char *pool, size_t pool_bytes,
                          struct mxc_charsmap **map, struct mxc_err *err) {
    struct mxc_buf b;
    mxc_buf_init(&b, 1 << 20);
    put_u32(&b, (uint32_t)(4 * n));
    for (size_t i = 0; i < n; i++)
        put_u32(&b, units[i]);
    mxc_buf_append(&b, pool, pool_bytes);
    enum mxc_code code = mxc_charsmap_new((struct mxc_str){b.data, b.length}, map, err);
    mxc_buf_fini(&b);
    return code;
}

/* Keys "a" -> "xy" and "ab" -> "z". Unit 0 is the root with offset 128, so that 'a' is at
 * 128 ^ 'a'; a unit holds its label, bit 8 when a value is at its offset, and the offset << 10. */
enum { N_UNITS = 512, ROOT = 128, AFTER_A = 256, AFTER_B = 384 };

static void fill(uint32_t *units) {
    memset(units, 0, N_UNITS * sizeof *units);
    for (size_t i = 0; i < N_UNITS; i++)
        units[i] = 0x80000000u | 1; /* no label: never followed */
    units[0] = ROOT << 10;
    uint32_t a = ROOT ^ 'a', b = AFTER_A ^ 'b';
    units[a] = (a ^ AFTER_A) << 10 | 1u << 8 | 'a';
    units[AFTER_A] = 0x80000000u | 0;
    units[b] = (b ^ AFTER_B) << 10 | 1u << 8 | 'b';
    units[AFTER_B] = 0x80000000u | 3;
}

static void test_find(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool shortest;
        size_t length;
        const char *to;
    } cases[] = {{"abc", false, 2, "z"}, {"abc", true, 1, "xy"}, {"ac", false, 1, "xy"},
                 {"b", false, 0, NULL},  {"", false, 0, NULL},   {"a", false, 1, "xy"}};
    uint32_t units[N_UNITS];
    struct mxc_charsmap *map = NULL;
    struct mxc_str to;
    fill(units);
    assert_int_equal(make(units, N_UNITS, "xy\0z", 5, &map, NULL), MXC_OK);
    for (size_t i = 0; i < LENGTH(cases); i++) {
        size_t n =
            mxc_charsmap_find(map, cases[i].text, strlen(cases[i].text), cases[i].shortest, &to);
        assert_int_equal(n, cases[i].length);
        if (n)
            assert_true(mxc_str_is(to, cases[i].to));
    }
    mxc_charsmap_free(map);
}

/* Units that lead out of the array, in a circle, or to a value outside the pool. */
static void test_damaged_units(void **state) {
    (void)state;
    uint32_t units[N_UNITS];
    struct mxc_charsmap *map = NULL;
    struct mxc_str to;
    char text[1000];
    memset(text, 'a', sizeof text);
    fill(units);
    uint32_t a = ROOT ^ 'a';
    units[a] = (a ^ ROOT) << 10 | 1u << 8 | 'a'; /* the root again: "aaaa..." has no end */
    units[ROOT] = 0x80000000u | 0;
    assert_int_equal(make(units, N_UNITS, "xy\0z", 5, &map, NULL), MXC_OK);
    size_t n = mxc_charsmap_find(map, text, sizeof text, false, &to);
    assert_true(n && n <= 128);
    mxc_charsmap_free(map);
    fill(units);
    units[a] = 0x3FFFFFu << 10 | 1u << 9 | 'a';
    assert_int_equal(make(units, N_UNITS, "xy\0z", 5, &map, NULL), MXC_OK);
    assert_int_equal(mxc_charsmap_find(map, "a", 1, false, &to), 0);
    mxc_charsmap_free(map);
    fill(units);
    units[AFTER_A] = 0x80000000u | 5; /* the pool has 5 bytes */
    assert_int_equal(make(units, N_UNITS, "xy\0z", 5, &map, NULL), MXC_OK);
    assert_int_equal(mxc_charsmap_find(map, "a", 1, false, &to), 0);
    mxc_charsmap_free(map);
    fill(units);
    units[AFTER_A] = 0x80000000u | 1; /* within a character */
    assert_int_equal(make(units, N_UNITS, "\xC3\xA9\0z", 5, &map, NULL), MXC_OK);
    assert_int_equal(mxc_charsmap_find(map, "a", 1, false, &to), 0);
    mxc_charsmap_free(map);
    assert_int_equal(make(units, 1, "x", 2, &map, NULL), MXC_OK); /* a root alone */
    assert_int_equal(mxc_charsmap_find(map, "a", 1, false, &to), 0);
    mxc_charsmap_free(map);
}

static void test_damaged_maps(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        size_t n;
    } blobs[] = {{"", 0},
                 {"\4\0\0\0", 4},
                 {"\0\0\0\0\0\0\0\0", 8},
                 {"\5\0\0\0\0\0\0\0\0\0", 10},
                 {"\xFF\xFF\xFF\xFF\0\0\0\0\0\0", 10},
                 {"\10\0\0\0\0\0\0\0", 8}};
    uint32_t units[N_UNITS];
    struct mxc_charsmap *map = NULL;
    struct mxc_err err;
    for (size_t i = 0; i < LENGTH(blobs); i++) {
        struct mxc_str blob = {blobs[i].bytes, blobs[i].n};
        assert_int_equal(mxc_charsmap_new(blob, &map, &err), MXC_E_FORMAT);
        assert_non_null(strstr(err.message, "character map"));
    }
    fill(units);
    assert_int_equal(make(units, N_UNITS, "xy", 2, &map, &err), MXC_E_FORMAT); /* no end */
    assert_int_equal(make(units, N_UNITS, "x\xFF", 3, &map, &err), MXC_E_FORMAT);
    char big[5000];
    memset(big, 'b', sizeof big);
    big[sizeof big - 1] = 0;
    assert_int_equal(make(units, N_UNITS, big, sizeof big, &map, &err), MXC_E_FORMAT);
}

static void test_graphemes(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t length;
    } cases[] = {{"ab", 1},
                 {"a", 1},
                 {"a\xCC\x81z", 3}, /* a mark */
                 {"\r\nx", 2},      /* CR LF */
                 {"\n\xCC\x81", 1}, /* nothing joins a control */
                 {"a\r", 1},        /* nor does it join */
                 {"\xD8\x80"
                  "7",
                  3},                                                     /* Prepend */
                 {"\xC2\xA9\xE2\x80\x8D\xC2\xA9", 7},                     /* picture ZWJ picture */
                 {"a\xE2\x80\x8D\xC2\xA9", 4},                            /* no picture before */
                 {"\xF0\x9F\x87\xA9\xF0\x9F\x87\xAA\xF0\x9F\x87\xAB", 8}, /* flags pair up */
                 {"\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB"
                  "a",
                  9},                                          /* L V T */
                 {"\xEA\xB0\x80\xE1\x86\xA8x", 6},             /* LV T */
                 {"\xEA\xB0\x81\xE1\x86\xA8\xE1\x84\x80", 6}}; /* LVT T, L */
    for (size_t i = 0; i < LENGTH(cases); i++)
        assert_int_equal(mxc_grapheme_length(cases[i].text, strlen(cases[i].text)),
                         cases[i].length);
}

static void normalize(enum mxc_tok_step_kind kind, const char *text, const char *want) {
    struct mxc_tokdesc d;
    struct mxc_tok_step step = {.kind = kind};
    struct mxc_normalizer *n = NULL;
    struct mxc_text in, spare;
    mxc_tokdesc_init(&d);
    assert_int_equal(mxc_tokdesc_add_step(&d, &d.normalizers, &step, NULL), MXC_OK);
    assert_int_equal(mxc_normalizer_new(&d.normalizers, &n, NULL), MXC_OK);
    mxc_text_init(&in, true);
    mxc_text_init(&spare, true);
    mxc_text_append(&in, text, strlen(text), NULL, 1);
    assert_int_equal(mxc_normalizer_run(n, &in, &spare, NULL, NULL), MXC_OK);
    assert_int_equal(in.length, strlen(want));
    assert_memory_equal(in.data, want, in.length);
    for (size_t i = 0; i < in.length; i++)
        assert_int_equal(in.tags[i], 1); /* what was untrusted stays so */
    mxc_text_fini(&in);
    mxc_text_fini(&spare);
    mxc_normalizer_free(n);
    mxc_tokdesc_fini(&d);
}

static void test_per_character(void **state) {
    (void)state;
    normalize(MXC_TOK_BERT_CLEAN,
              "a\tb\r\n\x01\x7F"
              "c\xC2\xA0"
              "d\xE2\x80\x8B\xEF\xBF\xBD"
              "e",
              "a b  c de");
    normalize(MXC_TOK_BERT_CJK,
              "a\xE7\x8C\xAB"
              "b\xE3\x81\x82",
              "a \xE7\x8C\xAB b\xE3\x81\x82");
    normalize(MXC_TOK_STRIP_NONSPACING, "e\xCC\x81\xE0\xA4\x83", "e\xE0\xA4\x83");
    normalize(MXC_TOK_STRIP_ACCENTS, "e\xCC\x81\xE0\xA4\x83", "e");
    normalize(MXC_TOK_NMT,
              "a\tb\x0B\xE2\x96\x81"
              "c\xEF\xBB\xBF"
              "d\x7F",
              "a b c d");
    normalize(MXC_TOK_LOWERCASE, "aBC\xC3\x89z", "abc\xC3\xA9z");
}

static void test_trie(void **state) {
    (void)state;
    static const char *const tokens[] = {"a", "ab", "abcd", "b", "\xC3\xA9", "a"};
    struct mxc_tokdesc d;
    struct mxc_trie trie;
    struct mxc_err err;
    uint8_t wanted[] = {1, 1, 1, 0, 1, 1};
    uint32_t id = 99;
    mxc_tokdesc_init(&d);
    for (size_t i = 0; i < LENGTH(tokens); i++)
        assert_int_equal(
            mxc_tokdesc_add_token(&d, i, mxc_str_of(tokens[i]), 0, MXC_TOKEN_NORMAL, NULL), MXC_OK);
    assert_int_equal(mxc_trie_init(&trie, &d, wanted, 16, NULL), MXC_OK);
    assert_int_equal(mxc_trie_longest(&trie, "abc", 3, &id), 2);
    assert_int_equal(id, 1);
    assert_int_equal(mxc_trie_longest(&trie, "abcde", 5, &id), 4);
    assert_int_equal(id, 2);
    assert_int_equal(mxc_trie_longest(&trie, "ax", 2, &id), 1);
    assert_int_equal(id, 0); /* of equal spellings the lowest */
    assert_int_equal(mxc_trie_longest(&trie, "b", 1, &id), 0);
    assert_int_equal(mxc_trie_longest(&trie, "", 0, &id), 0);
    mxc_trie_fini(&trie);
    assert_int_equal(mxc_trie_init(&trie, &d, wanted, 3, &err), MXC_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "token 2"));
    memset(wanted, 0, sizeof wanted);
    assert_int_equal(mxc_trie_init(&trie, &d, wanted, 3, &err), MXC_OK);
    assert_int_equal(mxc_trie_longest(&trie, "a", 1, &id), 0);
    mxc_trie_fini(&trie);
    mxc_tokdesc_fini(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_find),          cmocka_unit_test(test_damaged_units),
        cmocka_unit_test(test_damaged_maps),  cmocka_unit_test(test_graphemes),
        cmocka_unit_test(test_per_character), cmocka_unit_test(test_trie),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
