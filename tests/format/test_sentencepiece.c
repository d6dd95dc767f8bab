/* tokenizer.model: fields of the message, damage of every kind, truncation at every byte, failing
 * allocations. */
#include "test.h"

#include "base/mem.h"
#include "files.h"
#include "format/sentencepiece.h"

#include <math.h>
#include <string.h>

#define LENGTH(a) (sizeof(a) / sizeof *(a))

static struct mxc_buf model;

static void varint(struct mxc_buf *b, uint64_t v) {
    for (; v > 127; v >>= 7)
        mxc_buf_putc(b, (char)(v | 128));
    mxc_buf_putc(b, (char)v);
}

static void number(struct mxc_buf *b, unsigned field, uint64_t v) {
    varint(b, field << 3);
    varint(b, v);
}

static void bytes(struct mxc_buf *b, unsigned field, const void *p, size_t n) {
    varint(b, field << 3 | 2);
    varint(b, n);
    mxc_buf_append(b, p, n);
}

static void piece(const char *text, float score, unsigned type) {
    struct mxc_buf b;
    mxc_buf_init(&b, 1000);
    bytes(&b, 1, text, strlen(text));
    varint(&b, 2 << 3 | 5);
    mxc_buf_append(&b, &score, 4);
    number(&b, 3, type);
    bytes(&model, 1, b.data, b.length);
    mxc_buf_fini(&b);
}

static void trainer(uint64_t kind, bool byte_fallback) {
    struct mxc_buf b;
    mxc_buf_init(&b, 1000);
    number(&b, 3, kind);
    number(&b, 35, byte_fallback);
    number(&b, 40, 0);
    number(&b, 41, 1);
    number(&b, 42, 2);
    number(&b, 43, (uint64_t)-1);
    bytes(&b, 7, "passed over", 11);
    bytes(&model, 2, b.data, b.length);
    mxc_buf_fini(&b);
}

static void normalizer(bool prefix, bool strip, bool escape) {
    struct mxc_buf b;
    mxc_buf_init(&b, 1000);
    bytes(&b, 1, "identity", 8);
    number(&b, 3, prefix);
    number(&b, 4, strip);
    number(&b, 5, escape);
    bytes(&model, 3, b.data, b.length);
    mxc_buf_fini(&b);
}

static void begin(void) {
    mxc_buf_clear(&model);
    piece("<unk>", 0, MXC_TOKEN_UNKNOWN);
    piece("<s>", 0, MXC_TOKEN_CONTROL);
    piece("</s>", 0, MXC_TOKEN_CONTROL);
    piece("ab", -1.5f, MXC_TOKEN_NORMAL);
    piece("<tool>", 0, MXC_TOKEN_USER);
}

static enum mxc_code parse(struct mxc_tokdesc *d, struct mxc_err *err) {
    return mxc_sentencepiece_parse(model.data, model.length, "x.model", d, err);
}

static void test_fields(void **state) {
    (void)state;
    struct mxc_tokdesc d;
    struct mxc_err err;
    begin();
    trainer(2, true);
    normalizer(true, false, true);
    assert_int_equal(parse(&d, &err), MXC_OK);
    assert_int_equal(d.model, MXC_TOK_SPM);
    assert_true(d.sentencepiece && d.byte_fallback && d.add_space_prefix && d.has_decoder);
    assert_int_equal(d.n_ids, 5);
    assert_int_equal(d.unk, 0);
    assert_int_equal(d.bos, 1);
    assert_int_equal(d.eos, 2);
    assert_int_equal(d.pad, MXC_TOK_NO_ID);
    assert_true(d.tokens[3].score == -1.5f && d.scores[3] == -1.5);
    assert_int_equal(d.prefix.count, 1);
    assert_int_equal(d.prefix.items[0], 1);
    assert_int_equal(d.suffix.count, 0);
    assert_int_equal(d.n_added, 4);
    assert_true(d.added[3].normalized && !d.added[3].special && d.added[0].special);
    assert_int_equal(d.normalizers.count, 1);
    assert_int_equal(d.normalizers.items[0].kind, MXC_TOK_SPM_TEXT);
    assert_true(d.normalizers.items[0].add_prefix_space && d.normalizers.items[0].escape);
    assert_false(d.normalizers.items[0].strip_extra);
    mxc_tokdesc_fini(&d);
    begin();
    assert_int_equal(parse(&d, &err), MXC_OK); /* all defaults */
    assert_int_equal(d.model, MXC_TOK_UNIGRAM);
    assert_true(d.normalizers.items[0].strip_extra && d.normalizers.items[0].add_prefix_space);
    mxc_tokdesc_fini(&d);
}

/* Without BOS a unigram model ends its texts with EOS. */
static void test_framing(void **state) {
    (void)state;
    struct mxc_tokdesc d;
    struct mxc_buf b;
    begin();
    mxc_buf_init(&b, 100);
    number(&b, 41, (uint64_t)-1);
    bytes(&model, 2, b.data, b.length);
    mxc_buf_fini(&b);
    assert_int_equal(parse(&d, NULL), MXC_OK);
    assert_int_equal(d.bos, MXC_TOK_NO_ID);
    assert_int_equal(d.prefix.count, 0);
    assert_int_equal(d.suffix.count, 1);
    assert_int_equal(d.suffix.items[0], 2);
    mxc_tokdesc_fini(&d);
}

static void expect(enum mxc_code code, const char *words) {
    struct mxc_tokdesc d;
    struct mxc_err err = {0};
    assert_int_equal(parse(&d, &err), code);
    files_expect(&err, words);
    files_expect(&err, "x.model");
}

static void test_refused(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        size_t n;
        const char *words;
    } tails[] = {
        {"\x0A", 1, "ends number"},
        {"\x0A\x05"
         "ab",
         4, "longer file"},
        {"\x0A\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F", 10, "longer file"},
        {"\x0A\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F", 11, "64 bits"},
        {"\x0A\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01", 12, "64 bits"},
        {"\x0B", 1, "unknown kind field"},
        {"\x0D\x01", 2, "ends number"},
        {"\x09\x01", 2, "ends number"},
        {"\x0A\x00", 2, "piece 5 empty"},
        {"\x0A\x04\x0A\x02\xC3\x28", 6, "piece 5 UTF-8"},
        {"\x0A\x05\x0A\x01z\x18\x07", 7, "piece 5 type 7"},
        {"\x0A\x05\x0A\x01z\x18\x00", 7, "piece 5 type 0"},
        {"\x0A\x08\x0A\x01z\x15\x00\x00\xC0\x7F", 10, "score piece 5 finite"},
        {"\x0A\x08\x0A\x01z\x15\x00\x00\x80\xFF", 10, "score piece 5 finite"},
    };
    for (size_t i = 0; i < LENGTH(tails); i++) {
        begin();
        mxc_buf_append(&model, tails[i].bytes, tails[i].n);
        expect(MXC_E_FORMAT, tails[i].words);
    }
    mxc_buf_clear(&model);
    expect(MXC_E_FORMAT, "no pieces");
    mxc_buf_clear(&model);
    piece("a", -1, MXC_TOKEN_NORMAL);
    expect(MXC_E_FORMAT, "no piece unknown");
    for (uint64_t kind = 3; kind < 6; kind++) {
        begin();
        trainer(kind, false);
        expect(MXC_E_UNSUPPORTED, "model_type unigram bpe");
    }
    begin();
    bytes(&model, 5, "\x12\x01x", 3);
    expect(MXC_E_UNSUPPORTED, "denormalizer_spec");
}

static void test_truncated(void **state) {
    (void)state;
    begin();
    trainer(2, true);
    normalizer(true, true, true);
    size_t whole = model.length, good = 0;
    for (size_t n = 0; n < whole; n++) {
        struct mxc_tokdesc d;
        struct mxc_err err = {0};
        char *copy = mxc_mem_alloc(n + 1); /* so that a byte too far is seen */
        memcpy(copy, model.data, n);
        if (mxc_sentencepiece_parse(copy, n, "x", &d, &err) == MXC_OK) {
            good++; /* cut between two fields */
            mxc_tokdesc_fini(&d);
        } else {
            assert_true(err.message[0]);
        }
        mxc_mem_free(copy);
    }
    assert_true(good >= 3 && good <= 8);
}

static void test_failing_allocations(void **state) {
    (void)state;
    struct mxc_tokdesc d;
    struct mxc_err err;
    begin();
    trainer(1, false);
    normalizer(true, true, true);
    mxc_mem_fail_at(0);
    assert_int_equal(parse(&d, &err), MXC_OK);
    uint64_t total = mxc_mem_calls();
    mxc_tokdesc_fini(&d);
    assert_true(total > 5);
    for (uint64_t n = 1; n <= total; n++) {
        mxc_mem_fail_at(n);
        enum mxc_code code = parse(&d, &err);
        mxc_mem_fail_at(0);
        assert_int_equal(code, MXC_E_NOMEM);
    }
}

static int setup(void **state) {
    (void)state;
    mxc_buf_init(&model, 1 << 20);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    mxc_buf_fini(&model);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_framing),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
