/* Merging against a plain quadratic reference: random vocabularies, both kinds of model, short and
 * long pieces; byte fallback, unknowns, and that control tokens never come out of text. */
#include "test.h"

#include "base/mem.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <string.h>

#define LENGTH(a) (sizeof(a) / sizeof *(a))
#define META      "\xE2\x96\x81"

enum { MAX_TEXT = 600 };

static uint64_t seed = 12345;

static unsigned random_below(unsigned n) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)((seed >> 33) % n);
}

static void add(struct mxc_tokdesc *d, size_t id, const char *text, float score,
                enum mxc_tok_type type) {
    assert_int_equal(mxc_tokdesc_add_token(d, id, mxc_str_of(text), score, type, NULL), MXC_OK);
}

static void add_merge(struct mxc_tokdesc *d, const char *left, const char *right) {
    struct mxc_tok_pair pair = {mxc_str_of(left), mxc_str_of(right)};
    assert_int_equal(mxc_tokdesc_add_merges(d, &pair, 1, false, NULL), MXC_OK);
}

static struct mxc_tokenizer *make(struct mxc_tokdesc *d) {
    struct mxc_err err = {0};
    struct mxc_tokenizer *t = NULL;
    if (mxc_tokenizer_new(d, &t, &err))
        fail_msg("%s", err.message);
    return t;
}

static struct mxc_ids encode(const struct mxc_tokenizer *t, const char *text) {
    struct mxc_ids ids = {0};
    struct mxc_text_span span = {text, strlen(text), false};
    assert_int_equal(
        mxc_tokenizer_encode(t, &span, 1, (struct mxc_encode_options){false, true}, &ids, NULL),
        MXC_OK);
    return ids;
}

/* A vocabulary over a to d: the letters, then random joins of two known tokens. */
static void random_vocabulary(struct mxc_tokdesc *d, bool scores) {
    static const char *const letters[] = {"a", "b", "c", "d"};
    mxc_tokdesc_init(d);
    for (size_t i = 0; i < 4; i++)
        add(d, i, letters[i], -100, MXC_TOKEN_NORMAL);
    assert_int_equal(mxc_tokdesc_index(d, NULL), MXC_OK);
    for (int i = 0; i < 60; i++) {
        char text[64];
        struct mxc_str a = mxc_tokdesc_bytes(d, random_below((unsigned)d->n_ids));
        struct mxc_str b = mxc_tokdesc_bytes(d, random_below((unsigned)d->n_ids));
        if (a.length + b.length > 8)
            continue;
        snprintf(text, sizeof text, "%.*s%.*s", (int)a.length, a.ptr, (int)b.length, b.ptr);
        char left[16];
        snprintf(left, sizeof left, "%.*s", (int)a.length, a.ptr);
        if (mxc_tokdesc_find(d, mxc_str_of(text)) == MXC_TOK_NO_ID)
            add(d, d->n_ids, text, -(float)random_below(20), MXC_TOKEN_NORMAL);
        if (!scores)
            add_merge(d, left, text + a.length);
    }
    d->model = scores ? MXC_TOK_SPM : MXC_TOK_BPE_CHARS;
    d->has_decoder = true;
}

/* Always the best pair, leftmost first. */
static size_t reference(const struct mxc_tokdesc *d, const char *text, uint32_t *ids) {
    size_t n = strlen(text);
    for (size_t i = 0; i < n; i++)
        ids[i] = (uint32_t)(text[i] - 'a');
    for (;;) {
        size_t best = SIZE_MAX;
        double best_key = 0;
        uint32_t result = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            uint32_t to = MXC_TOK_NO_ID;
            double key = 0;
            struct mxc_str a = mxc_tokdesc_bytes(d, ids[i]), b = mxc_tokdesc_bytes(d, ids[i + 1]);
            for (size_t k = 0; k < d->n_merges && d->model != MXC_TOK_SPM; k++)
                if (d->merges[k].left == ids[i] && d->merges[k].right == ids[i + 1]) {
                    to = d->merges[k].result; /* the last of equal pairs counts */
                    key = -(double)k;
                }
            if (d->model == MXC_TOK_SPM) {
                char joined[64];
                snprintf(joined, sizeof joined, "%.*s%.*s", (int)a.length, a.ptr, (int)b.length,
                         b.ptr);
                to = mxc_tokdesc_find(d, mxc_str_of(joined));
                key = to == MXC_TOK_NO_ID ? 0 : (double)d->tokens[to].score;
            }
            if (to != MXC_TOK_NO_ID && (best == SIZE_MAX || key > best_key)) {
                best = i;
                best_key = key;
                result = to;
            }
        }
        if (best == SIZE_MAX)
            return n;
        ids[best] = result;
        memmove(ids + best + 1, ids + best + 2, (n - best - 2) * sizeof *ids);
        n--;
    }
}

static void test_random(void **state) {
    (void)state;
    for (int round = 0; round < 40; round++) {
        struct mxc_tokdesc d;
        random_vocabulary(&d, round % 2);
        struct mxc_tokenizer *t = make(&d);
        for (int i = 0; i < 12; i++) {
            char text[MAX_TEXT + 1];
            uint32_t want[MAX_TEXT];
            size_t n = i < 8 ? 1 + random_below(40) : 33 + random_below(MAX_TEXT - 33);
            unsigned letters = 1 + random_below(4);
            for (size_t k = 0; k < n; k++)
                text[k] = (char)('a' + random_below(letters));
            text[n] = 0;
            size_t m = reference(mxc_tokenizer_desc(t), text, want);
            struct mxc_ids got = encode(t, text);
            assert_int_equal(got.count, m);
            assert_memory_equal(got.items, want, m * sizeof *want);
            mxc_ids_fini(&got);
        }
        mxc_tokenizer_free(t);
    }
}

static void expect(const struct mxc_tokenizer *t, const char *text, const char *want) {
    char got[256];
    size_t k = 0;
    struct mxc_ids ids = encode(t, text);
    got[0] = 0;
    for (size_t i = 0; i < ids.count; i++)
        k += (size_t)snprintf(got + k, sizeof got - k, "%s%u", i ? " " : "", ids.items[i]);
    assert_string_equal(got, want);
    mxc_ids_fini(&ids);
}

/* Cutting before U+2581 is only done where no token reaches across it. */
static void test_meta_inside_tokens(void **state) {
    (void)state;
    for (int across = 0; across < 2; across++) {
        struct mxc_tokdesc d;
        mxc_tokdesc_init(&d);
        add(&d, 0, "a", 0, MXC_TOKEN_NORMAL);
        add(&d, 1, META, 0, MXC_TOKEN_NORMAL);
        add(&d, 2, META "a", 0, MXC_TOKEN_NORMAL);
        add(&d, 3, META META, 0, MXC_TOKEN_NORMAL);
        add(&d, 4, "a" META, 0, MXC_TOKEN_NORMAL);
        assert_int_equal(mxc_tokdesc_index(&d, NULL), MXC_OK);
        if (across)
            add_merge(&d, "a", META);
        add_merge(&d, META, "a");
        add_merge(&d, META, META);
        d.model = MXC_TOK_BPE_CHARS;
        struct mxc_tokenizer *t = make(&d);
        expect(t, "a" META "a" META META "a", across ? "4 4 2" : "0 2 1 2");
        expect(t, META META META, "3 1");
        mxc_tokenizer_free(t);
    }
}

static void test_unknown_and_bytes(void **state) {
    (void)state;
    for (int mode = 0; mode < 4; mode++) { /* bit 0: fuse, bit 1: no unk */
        struct mxc_tokdesc d;
        mxc_tokdesc_init(&d);
        add(&d, 0, "a", 0, MXC_TOKEN_NORMAL);
        add(&d, 1, "<unk>", 0, MXC_TOKEN_UNKNOWN);
        add(&d, 2, "<0xC3>", 0, MXC_TOKEN_BYTE);
        add(&d, 3, "<0xA9>", 0, MXC_TOKEN_BYTE);
        assert_int_equal(mxc_tokdesc_index(&d, NULL), MXC_OK);
        d.model = MXC_TOK_BPE_CHARS;
        d.byte_fallback = true;
        d.fuse_unk = mode & 1;
        d.unk = mode & 2 ? MXC_TOK_NO_ID : 1;
        struct mxc_tokenizer *t = make(&d);
        static const char *const want[] = {"0 1 1 0 2 3 1", "0 1 0 2 3 1", "0 0 2 3", "0 0 2 3"};
        expect(t, "axya\xC3\xA9z", want[mode]);
        mxc_tokenizer_free(t);
    }
}

/* sentencepiece: bytes for unknown characters, tokens of control type never from text. */
static void test_spm(void **state) {
    (void)state;
    struct mxc_tokdesc d;
    char spelling[8];
    mxc_tokdesc_init(&d);
    add(&d, 0, "<unk>", 0, MXC_TOKEN_UNKNOWN);
    add(&d, 1, "ab", 0, MXC_TOKEN_CONTROL);
    add(&d, 2, "a", -1, MXC_TOKEN_NORMAL);
    add(&d, 3, "b", -1, MXC_TOKEN_NORMAL);
    add(&d, 4, "b\xC3\xA9", -1, MXC_TOKEN_NORMAL); /* the accented letter alone is no token */
    for (unsigned b = 0; b < 256; b++) {
        snprintf(spelling, sizeof spelling, "<0x%02X>", b);
        add(&d, 100 + b, spelling, 0, MXC_TOKEN_BYTE);
    }
    assert_int_equal(mxc_tokdesc_index(&d, NULL), MXC_OK);
    d.model = MXC_TOK_SPM;
    d.byte_fallback = true;
    struct mxc_tokenizer *t = make(&d);
    expect(t, "ab", "2 3");
    expect(t, "ab\xC3\xA9\xC3\xA9", "2 4 295 269");
    expect(t, "<0x41>", "160 148 220 152 149 162");
    mxc_tokenizer_free(t);
}

/* A whole word that is a token comes first, unless it is a control token. */
static void test_ignore_merges(void **state) {
    (void)state;
    struct mxc_tokdesc d;
    mxc_tokdesc_init(&d);
    static const char *const tokens[] = {"a", "b", "c", "abc", "cab"};
    for (size_t i = 0; i < LENGTH(tokens); i++)
        add(&d, i, tokens[i], 0, i == 4 ? MXC_TOKEN_CONTROL : MXC_TOKEN_NORMAL);
    assert_int_equal(mxc_tokdesc_index(&d, NULL), MXC_OK);
    d.model = MXC_TOK_BPE_BYTES;
    d.ignore_merges = true;
    struct mxc_tokenizer *t = make(&d);
    expect(t, "abc", "3");
    expect(t, "cab", "2 0 1");
    expect(t, "abca", "0 1 2 0");
    mxc_tokenizer_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_meta_inside_tokens),
        cmocka_unit_test(test_unknown_and_bytes),
        cmocka_unit_test(test_spm),
        cmocka_unit_test(test_ignore_merges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
