/* Tokenisers from GGUF metadata: both models, defaults, refusals, damaged lists, failing
 * allocations. Ids are checked in the description; text/ has its own tests. */
#include "test.h"

#include "base/mem.h"
#include "files.h"
#include "format/gguf_tokenizer.h"

#include <string.h>

#define LENGTH(a) (sizeof(a) / sizeof *(a))
#define META      "\xE2\x96\x81"

enum { U32 = 4, I32 = 5, F32 = 6, BOOL = 7, STRING = 8, ARRAY = 9 };

static struct mxc_buf kv;
static uint64_t n_kv;

static void begin(void) {
    mxc_buf_init(&kv, 1 << 20);
    n_kv = 0;
}

static void key(const char *name, uint32_t type) {
    files_string(&kv, name);
    files_uint(&kv, type, 4);
    n_kv++;
}

static void put_string(const char *name, const char *value) {
    key(name, STRING);
    files_string(&kv, value);
}

static void put_int(const char *name, uint32_t value) {
    key(name, U32);
    files_uint(&kv, value, 4);
}

static void put_bool(const char *name, bool value) {
    key(name, BOOL);
    files_uint(&kv, value, 1);
}

static void put_strings(const char *name, const char *const *values, size_t n) {
    key(name, ARRAY);
    files_uint(&kv, STRING, 4);
    files_uint(&kv, n, 8);
    for (size_t i = 0; i < n; i++)
        files_string(&kv, values[i]);
}

static void put_types(const int *values, size_t n) {
    key("tokenizer.ggml.token_type", ARRAY);
    files_uint(&kv, I32, 4);
    files_uint(&kv, n, 8);
    for (size_t i = 0; i < n; i++)
        files_uint(&kv, (uint32_t)values[i], 4);
}

static void put_scores(const float *values, size_t n) {
    key("tokenizer.ggml.scores", ARRAY);
    files_uint(&kv, F32, 4);
    files_uint(&kv, n, 8);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], 4);
        files_uint(&kv, bits, 4);
    }
}

/* Writes the file and loads its tokeniser. */
static enum mxc_code finish(struct mxc_tokdesc *d, struct mxc_err *err) {
    struct mxc_buf out;
    struct mxc_gguf *g = NULL;
    mxc_buf_init(&out, 1 << 20);
    mxc_buf_append(&out, "GGUF", 4);
    files_uint(&out, 3, 4);
    files_uint(&out, 0, 8);
    files_uint(&out, n_kv, 8);
    mxc_buf_append(&out, mxc_buf_text(&kv), kv.length);
    files_pad(&out, 32);
    const char *path = files_write("t.gguf", out.data, out.length);
    mxc_buf_fini(&out);
    mxc_buf_fini(&kv);
    enum mxc_code code = mxc_gguf_open(path, &g, err);
    if (code)
        fail_msg("%s", err->message);
    code = mxc_gguf_tokenizer_load(g, d, err);
    mxc_gguf_close(g);
    return code;
}

static const char *const bpe_tokens[] = {"a", "b", "ab", "\xC4\xA0", "<s>", "<tool>", "<|x|>"};
static const int bpe_types[] = {1, 1, 1, 1, 3, 4, 4};
static const char *const bpe_merges[] = {"a b", "a z"};

static void put_bpe(const char *pre) {
    put_string("tokenizer.ggml.model", "gpt2");
    if (pre)
        put_string("tokenizer.ggml.pre", pre);
    put_strings("tokenizer.ggml.tokens", bpe_tokens, LENGTH(bpe_tokens));
    put_types(bpe_types, LENGTH(bpe_types));
    put_strings("tokenizer.ggml.merges", bpe_merges, LENGTH(bpe_merges));
    put_int("tokenizer.ggml.bos_token_id", 4);
}

static void test_bpe(void **state) {
    (void)state;
    struct mxc_tokdesc d;
    struct mxc_err err = {0};
    begin();
    put_bpe("llama-bpe");
    put_int("tokenizer.ggml.eos_token_id", 5);
    put_int("tokenizer.ggml.eot_token_id", 6);
    put_int("tokenizer.ggml.padding_token_id", 0xFFFFFFFF);
    assert_int_equal(finish(&d, &err), MXC_OK);
    assert_int_equal(d.model, MXC_TOK_BPE_BYTES);
    assert_true(d.ignore_merges);
    assert_int_equal(d.n_merges, 1); /* the other is not closed in the vocabulary */
    assert_int_equal(d.merges[0].result, 2);
    assert_int_equal(d.n_added, 3);
    assert_true(d.added[0].special && d.added[0].control);
    assert_false(d.added[1].special || d.added[1].control);
    assert_true(!d.added[2].special && d.added[2].control);
    assert_int_equal(d.bos, 4);
    assert_int_equal(d.eos, 5);
    assert_int_equal(d.pad, MXC_TOK_NO_ID);
    assert_int_equal(d.prefix.count, 1); /* this pre-tokeniser adds BOS unless told otherwise */
    assert_int_equal(d.end_ids.count, 2);
    mxc_tokdesc_fini(&d);

    begin();
    put_bpe("smollm");
    assert_int_equal(finish(&d, &err), MXC_OK);
    assert_int_equal(d.prefix.count, 0);
    assert_int_equal(d.pretokenizers.count, 2);
    mxc_tokdesc_fini(&d);

    begin();
    put_bpe(NULL);
    put_bool("tokenizer.ggml.add_bos_token", true);
    assert_int_equal(finish(&d, &err), MXC_OK);
    assert_int_equal(d.prefix.count, 1);
    mxc_tokdesc_fini(&d);
}

static void test_spm(void **state) {
    (void)state;
    static const char *const tokens[] = {"<unk>", "<s>", "</s>", "<0x41>", META, (META "a")};
    static const int types[] = {2, 3, 3, 6, 1, 1};
    static const float scores[] = {0, 0, 0, 0, -1, -2};
    struct mxc_tokdesc d;
    struct mxc_err err = {0};
    for (int prefix = 0; prefix < 2; prefix++) {
        begin();
        put_string("tokenizer.ggml.model", "llama");
        put_strings("tokenizer.ggml.tokens", tokens, LENGTH(tokens));
        put_types(types, LENGTH(types));
        put_scores(scores, LENGTH(scores));
        put_bool("tokenizer.ggml.add_eos_token", true);
        put_bool("tokenizer.ggml.add_space_prefix", prefix);
        assert_int_equal(finish(&d, &err), MXC_OK);
        assert_int_equal(d.model, MXC_TOK_SPM);
        assert_int_equal(d.unk, 0);
        assert_int_equal(d.bos, 1);
        assert_int_equal(d.prefix.items[0], 1);
        assert_int_equal(d.suffix.items[0], 2);
        assert_true(d.tokens[5].score == -2);
        assert_int_equal(d.normalizers.count, 1 + prefix);
        assert_int_equal(d.decoders.count, 3 + prefix);
        assert_int_equal(d.n_added, 3);
        mxc_tokdesc_fini(&d);
    }
}

/* Unigram, with a character map as an array of bytes, and WordPiece, whose tokens are respelled. */
static void test_other_models(void **state) {
    (void)state;
    static const char *const tokens[] = {"<unk>", META "a", "b", "<user>"};
    static const int types[] = {2, 1, 1, 4};
    static const float scores[] = {0, -1, -2.5f, 0};
    struct mxc_tokdesc d;
    struct mxc_err err = {0};
    for (int bert = 0; bert < 2; bert++) {
        begin();
        put_string("tokenizer.ggml.model", bert ? "bert" : "t5");
        put_strings("tokenizer.ggml.tokens", tokens, LENGTH(tokens));
        put_types(types, LENGTH(types));
        put_scores(scores, LENGTH(scores));
        put_bool("tokenizer.ggml.remove_extra_whitespaces", false);
        assert_int_equal(finish(&d, &err), MXC_OK);
        assert_int_equal(d.model, bert ? MXC_TOK_WORDPIECE : MXC_TOK_UNIGRAM);
        assert_int_equal(d.sentencepiece, !bert);
        assert_true(mxc_str_is(mxc_tokdesc_bytes(&d, 1), bert ? "a" : META "a"));
        assert_true(mxc_str_is(mxc_tokdesc_bytes(&d, 2), bert ? "##b" : "b"));
        assert_true(mxc_str_is(mxc_tokdesc_bytes(&d, 0), "<unk>"));
        assert_int_equal(d.normalizers.count, bert ? 5 : 1);
        assert_int_equal(d.pretokenizers.count, bert ? 2 : 0);
        assert_true(bert || (d.n_scores == 4 && d.scores[2] == -2.5));
        mxc_tokdesc_fini(&d);
    }
}

static void test_refused(void **state) {
    (void)state;
    struct mxc_tokdesc d;
    struct mxc_err err = {0};
    static const int short_types[] = {1, 1};
    static const char *const broken[] = {"ab"};

    begin();
    put_string("general.architecture", "llama");
    assert_int_equal(finish(&d, &err), MXC_E_NOT_FOUND);
    files_expect(&err, "t.gguf tokenizer.ggml.model");

    begin();
    put_string("tokenizer.ggml.model", "rwkv");
    assert_int_equal(finish(&d, &err), MXC_E_UNSUPPORTED);
    files_expect(&err, "\"rwkv\"");

    begin();
    put_bpe("nobody-knows");
    assert_int_equal(finish(&d, &err), MXC_E_UNSUPPORTED);
    files_expect(&err, "tokenizer.ggml.pre \"nobody-knows\"");

    begin();
    put_bpe("llama"); /* a part of a name is not a name */
    assert_int_equal(finish(&d, &err), MXC_E_UNSUPPORTED);

    begin();
    put_string("tokenizer.ggml.model", "gpt2");
    assert_int_equal(finish(&d, &err), MXC_E_FORMAT);
    files_expect(&err, "tokenizer.ggml.tokens");

    begin();
    put_string("tokenizer.ggml.model", "gpt2");
    put_strings("tokenizer.ggml.tokens", bpe_tokens, LENGTH(bpe_tokens));
    put_types(short_types, 2);
    assert_int_equal(finish(&d, &err), MXC_E_FORMAT);
    files_expect(&err, "token_type 2 7");

    begin();
    put_string("tokenizer.ggml.model", "gpt2");
    put_strings("tokenizer.ggml.tokens", bpe_tokens, LENGTH(bpe_tokens));
    assert_int_equal(finish(&d, &err), MXC_E_FORMAT);
    files_expect(&err, "tokenizer.ggml.merges");

    begin();
    put_string("tokenizer.ggml.model", "gpt2");
    put_strings("tokenizer.ggml.tokens", bpe_tokens, LENGTH(bpe_tokens));
    put_strings("tokenizer.ggml.merges", broken, 1);
    assert_int_equal(finish(&d, &err), MXC_E_FORMAT);
    files_expect(&err, "merges[0]");

    begin();
    put_int("tokenizer.ggml.model", 5);
    assert_int_equal(finish(&d, &err), MXC_E_FORMAT);
    files_expect(&err, "tokenizer.ggml.model");
}

static void test_failing_allocations(void **state) {
    (void)state;
    struct mxc_tokdesc d;
    struct mxc_err err = {0};
    struct mxc_gguf *g = NULL;
    begin();
    put_bpe("qwen2");
    put_bool("tokenizer.ggml.add_bos_token", true);
    assert_int_equal(finish(&d, &err), MXC_OK);
    mxc_tokdesc_fini(&d);
    assert_int_equal(mxc_gguf_open(files_path("t.gguf"), &g, &err), MXC_OK);
    mxc_mem_fail_at(0);
    assert_int_equal(mxc_gguf_tokenizer_load(g, &d, &err), MXC_OK);
    uint64_t total = mxc_mem_calls();
    mxc_tokdesc_fini(&d);
    for (uint64_t n = 1; n <= total; n++) {
        mxc_mem_fail_at(n);
        enum mxc_code code = mxc_gguf_tokenizer_load(g, &d, &err);
        mxc_mem_fail_at(0);
        assert_int_equal(code, MXC_E_NOMEM);
    }
    mxc_gguf_close(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bpe),
        cmocka_unit_test(test_spm),
        cmocka_unit_test(test_other_models),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests(tests, files_setup, files_teardown);
}
