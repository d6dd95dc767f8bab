/* Vocabularies with ranks (lines, tekken.json), base64, and which file of a folder is read. */
#include "test.h"

#include "base/json.h"
#include "base/mem.h"
#include "files.h"
#include "format/base64.h"
#include "format/tiktoken.h"
#include "format/tokenizer_file.h"

#include <stdio.h>
#include <string.h>

#define LENGTH(a) (sizeof(a) / sizeof *(a))

static void test_base64(void **state) {
    (void)state;
    static const struct {
        const char *text, *bytes; /* NULL: no base64 */
    } cases[] = {
        {"", ""},       {"YQ==", "a"},  {"YWI=", "ab"}, {"YWJj", "abc"},       {"+/8=", "\xFB\xFF"},
        {"YQ=", NULL},  {"YQ", NULL},   {"YR==", NULL}, {"Y===", NULL},        {"====", NULL},
        {"YW J", NULL}, {"YWJ*", NULL}, {"Y=Jj", NULL}, {"YWJjYQ==YQ==", NULL}};
    for (size_t i = 0; i < LENGTH(cases); i++) {
        char out[64];
        size_t n = 99;
        bool good = mxc_base64_into(mxc_str_of(cases[i].text), out, &n);
        assert_int_equal(good, cases[i].bytes != NULL);
        if (good) {
            assert_int_equal(n, strlen(cases[i].bytes));
            assert_memory_equal(out, cases[i].bytes, n);
        }
    }
}

static const struct mxc_tiktoken_hints llama = {.model_type = "llama"};

static void refuse_lines(const char *text, enum mxc_code code, const char *words) {
    struct mxc_tokdesc d;
    struct mxc_err err = {0};
    assert_int_equal(mxc_tiktoken_parse(text, strlen(text), "r.model", llama, &d, &err), code);
    files_expect(&err, words);
    files_expect(&err, "r.model");
    assert_null(strchr(err.message, '\n'));
}

static void test_lines(void **state) {
    (void)state;
    struct mxc_tokdesc d;
    static const char text[] = "YQ== 0\r\nIA== 1\n\nYSA= 2";
    assert_int_equal(mxc_tiktoken_parse(text, sizeof text - 1, "r", llama, &d, NULL), MXC_OK);
    assert_int_equal(d.model, MXC_TOK_TIKTOKEN);
    assert_int_equal(d.n_ids, 3 + 256);
    assert_true(mxc_str_is(mxc_tokdesc_bytes(&d, 2), "a\xC4\xA0")); /* the space is mapped */
    assert_true(d.tokens[2].score == -2);
    assert_true(mxc_str_is(mxc_tokdesc_bytes(&d, d.bos), "<|begin_of_text|>"));
    assert_int_equal(d.bos, 3);
    assert_int_equal(d.prefix.count, 1);
    assert_true(mxc_str_is(mxc_tokdesc_bytes(&d, 258), "<|reserved_special_token_245|>"));
    mxc_tokdesc_fini(&d);
    struct mxc_tiktoken_hints own = {.model_type = "qwen", .has_specials = true};
    assert_int_equal(mxc_tiktoken_parse(text, sizeof text - 1, "r", own, &d, NULL), MXC_OK);
    assert_int_equal(d.n_ids, 3);
    assert_int_equal(d.normalizers.count, 1);
    mxc_tokdesc_fini(&d);

    refuse_lines("", MXC_E_FORMAT, "empty");
    refuse_lines("YQ==", MXC_E_FORMAT, "line 1 rank");
    refuse_lines("YQ== ", MXC_E_FORMAT, "line 1 rank");
    refuse_lines("YQ== 0\nYg== x", MXC_E_FORMAT, "line 2 \"x\" rank");
    refuse_lines("YQ== -1", MXC_E_FORMAT, "line 1 \"-1\"");
    refuse_lines("YQ== 0\nYg== 0", MXC_E_FORMAT, "line 2 rank 0 twice");
    refuse_lines("YQ== 0\nYQ== 1", MXC_E_FORMAT, "token 1 twice");
    refuse_lines("Y?== 0", MXC_E_FORMAT, "line 1 base64");
    refuse_lines(" 0", MXC_E_FORMAT, "line 1 base64");
    refuse_lines("YQ== 99999999", MXC_E_FORMAT, "line 1 large");
    refuse_lines("YQ== 99999999999999999999999", MXC_E_FORMAT, "line 1 rank");
    struct mxc_err err = {0};
    const struct mxc_tiktoken_hints none = {.model_type = "other"};
    assert_int_equal(mxc_tiktoken_parse("YQ== 0", 6, "r", none, &d, &err), MXC_E_UNSUPPORTED);
    files_expect(&err, "split pattern 1 ranks other");
    char big[9000];
    memset(big, 'A', sizeof big);
    memcpy(big + sizeof big - 3, " 0", 3);
    refuse_lines(big, MXC_E_FORMAT, "line 1 long");
    refuse_lines(big + 2000, MXC_E_FORMAT, "line 1 long");
}

#define CONFIG(size, n)                                                                            \
    "\"config\": {\"pattern\": \"\\\\S+|\\\\s+\", \"default_vocab_size\": " size                   \
    ", \"default_num_special_tokens\": " n "}"
#define VOCAB "\"vocab\": [{\"rank\": 0, \"token_bytes\": \"YQ==\", \"token_str\": \"a\"}]"

static void test_tekken(void **state) {
    (void)state;
    struct mxc_tokdesc d;
    struct mxc_err err = {0};
    static const char text[] = "{" CONFIG(
        "5", "3") ", \"vocab\": [{\"rank\": 1, \"token_bytes\": \"Yg==\"}, "
                  "{\"rank\": 0, \"token_bytes\": \"YQ==\", \"token_str\": \"a\"}, "
                  "{\"rank\": 2, \"token_bytes\": \"Yw==\"}], \"special_tokens\": [{\"rank\": 1, "
                  "\"token_str\": \"<s>\", \"is_control\": true}, {\"rank\": 2, \"token_str\": "
                  "\"[THINK]\", "
                  "\"is_control\": false}], \"image\": {\"x\": [1]}}";
    assert_int_equal(mxc_tekken_parse(text, sizeof text - 1, "t", &d, &err), MXC_OK);
    assert_int_equal(d.n_ids, 5); /* rank 2 does not fit */
    assert_true(mxc_str_is(mxc_tokdesc_bytes(&d, 4), "b"));
    assert_true(mxc_str_is(mxc_tokdesc_bytes(&d, 0), "<SPECIAL_0>"));
    assert_int_equal(d.bos, 1);
    assert_int_equal(d.tokens[2].type, MXC_TOKEN_USER);
    assert_int_equal(d.prefix.count, 1);
    mxc_tokdesc_fini(&d);
    static const char plain[] = "{" VOCAB ", " CONFIG("30", "24") "}";
    assert_int_equal(mxc_tekken_parse(plain, sizeof plain - 1, "t", &d, &err), MXC_OK);
    assert_int_equal(d.eos, 2);
    assert_true(mxc_str_is(mxc_tokdesc_bytes(&d, 3), "[INST]"));
    assert_true(mxc_str_is(mxc_tokdesc_bytes(&d, 23), "<SPECIAL_23>"));
    mxc_tokdesc_fini(&d);
    for (size_t n = 0; n + 1 < sizeof text; n++)
        assert_int_not_equal(mxc_tekken_parse(text, n, "t", &d, &err), MXC_OK);

    static const struct {
        const char *text, *words;
    } bad[] = {
        {"{" CONFIG("5", "3") "}", "vocab missing"},
        {"{" VOCAB "}", "pattern missing"},
        {"{" VOCAB ", " CONFIG("3", "3") "}", "sizes"},
        {"{" VOCAB ", " CONFIG("3", "0") "}", "sizes"},
        {"{" VOCAB ", " CONFIG("99999999", "3") "}", "sizes"},
        {"{\"vocab\": [], " CONFIG("5", "3") "}", "empty"},
        {"{\"vocab\": [{\"rank\": 0}], " CONFIG("5", "3") "}", "without rank text"},
        {"{\"vocab\": [{\"token_bytes\": \"YQ==\"}], " CONFIG("5", "3") "}", "without rank"},
        {"{\"vocab\": [{\"rank\": 0, \"token_bytes\": \"Y\"}], " CONFIG("5", "3") "}", "base64"},
        {"{\"vocab\": [{\"rank\": 0, \"token_bytes\": \"YQ==\"}, {\"rank\": 0, \"token_bytes\": "
         "\"Yg==\"}], " CONFIG("5", "3") "}",
         "rank 0 twice"},
        {"{\"vocab\": [{\"rank\": 0, \"token_bytes\": \"YQ==\"}, {\"rank\": 1, \"token_bytes\": "
         "\"YQ==\"}], " CONFIG("5", "3") "}",
         "twice"},
        {"{" VOCAB
         ", \"special_tokens\": [{\"rank\": 3, \"token_str\": \"<s>\"}], " CONFIG("5", "3") "}",
         "special rank large"},
    };
    for (size_t i = 0; i < LENGTH(bad); i++) {
        enum mxc_code code = mxc_tekken_parse(bad[i].text, strlen(bad[i].text), "t.json", &d, &err);
        assert_int_equal(code, MXC_E_FORMAT);
        files_expect(&err, bad[i].words);
    }
}

static const char *load(void) {
    struct mxc_tokdesc d;
    struct mxc_err err = {0};
    const char *file = NULL;
    if (mxc_tokenizer_load(files_path("f"), &d, &file, &err))
        fail_msg("%s", err.message);
    mxc_tokdesc_fini(&d);
    return file;
}

/* The order of the header; each file is removed once it was taken. */
static void test_order(void **state) {
    (void)state;
    struct mxc_tokdesc d;
    struct mxc_err err = {0};
    const char *file = NULL;
    static const char piece[] = "\x0A\x09\x0A\x05<unk>\x18\x02\x0A\x03\x0A\x01z";
    files_text("f/tokenizer.json", "{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": []}}");
    files_text("f/tekken.json", "{" VOCAB ", " CONFIG("30", "24") "}");
    files_write("f/tokenizer.model", piece, sizeof piece - 1);
    files_write("f/spiece.model", piece, sizeof piece - 1);
    files_text("f/qwen.tiktoken", "YQ== 0\n");
    files_text("f/config.json", "{\"model_type\": \"qwen\"}");
    assert_string_equal(load(), "tokenizer.json");
    files_remove("f/tokenizer.json");
    assert_string_equal(load(), "tekken.json");
    files_remove("f/tekken.json");
    assert_string_equal(load(), "tokenizer.model");
    files_text("f/tokenizer.model", "YQ== 0\n"); /* ranks under the same name */
    assert_int_equal(mxc_tokenizer_load(files_path("f"), &d, &file, &err), MXC_OK);
    assert_int_equal(d.model, MXC_TOK_TIKTOKEN);
    mxc_tokdesc_fini(&d);
    files_remove("f/tokenizer.model");
    assert_string_equal(load(), "spiece.model");
    files_remove("f/spiece.model");
    assert_string_equal(load(), "qwen.tiktoken");
    files_text("f/config.json", "{\"model_type\": 5}");
    assert_int_equal(mxc_tokenizer_load(files_path("f"), &d, &file, &err), MXC_E_UNSUPPORTED);
    files_expect(&err, "f/qwen.tiktoken");
    files_text("f/config.json", "{");
    assert_int_equal(mxc_tokenizer_load(files_path("f"), &d, &file, &err), MXC_E_FORMAT);
    files_expect(&err, "f/config.json");
    files_remove("f/config.json");
    files_remove("f/qwen.tiktoken");
    assert_int_equal(mxc_tokenizer_load(files_path("f"), &d, &file, &err), MXC_E_NOT_FOUND);
    files_expect(&err, "tokenizer.json tokenizer.model");
}

/* What stands beside a model without a tokenizer.json. */
static void test_beside(void **state) {
    (void)state;
    struct mxc_tokdesc d;
    struct mxc_err err = {0};
    const char *file = NULL;
    static const char piece[] = "\x0A\x09\x0A\x05<unk>\x18\x02\x0A\x03\x0A\x01z\x0A\x07\x0A\x03<s>"
                                "\x18\x03\x12\x05\xC8\x02\x02\x18\x02";
    files_write("f/tokenizer.model", piece, sizeof piece - 1);
    files_text("f/added_tokens.json", "{\"<x>\": 7, \"z\": 1}");
    files_text("f/tokenizer_config.json", "{\"add_bos_token\": false, \"pad_token\": \"<x>\"}");
    if (mxc_tokenizer_load(files_path("f"), &d, &file, &err))
        fail_msg("%s", err.message);
    assert_int_equal(d.model, MXC_TOK_SPM);
    assert_int_equal(d.n_ids, 8);
    assert_int_equal(d.prefix.count, 0);
    assert_int_equal(d.pad, 7);
    assert_true(d.tokens[7].added && d.tokens[1].added);
    mxc_tokdesc_fini(&d);
    static const char *const bad[] = {"{\"\": 1}", "{\"<y>\": -1}", "{\"<y>\": \"1\"}",
                                      "{\"<y>\": 1}"};
    for (size_t i = 0; i < LENGTH(bad); i++) {
        files_text("f/added_tokens.json", bad[i]);
        assert_int_equal(mxc_tokenizer_load(files_path("f"), &d, &file, &err), MXC_E_FORMAT);
        files_expect(&err, "f/added_tokens.json");
    }
    files_remove("f/added_tokens.json");
    files_remove("f/tokenizer_config.json");
    files_remove("f/tokenizer.model");
}

static void test_failing_allocations(void **state) {
    (void)state;
    struct mxc_tokdesc d;
    struct mxc_err err;
    const char *file;
    json_set_alloc_funcs(mxc_mem_alloc, mxc_mem_free);
    files_text("f/tokenizer.model", "YQ== 0\nYg== 1\nYWI= 2\n");
    files_text("f/config.json", "{\"model_type\": \"llama\"}");
    files_text("f/added_tokens.json", "{\"<x>\": 700}");
    const char *folder = files_path("f");
    mxc_mem_fail_at(0);
    assert_int_equal(mxc_tokenizer_load(folder, &d, &file, &err), MXC_OK);
    uint64_t total = mxc_mem_calls();
    mxc_tokdesc_fini(&d);
    for (uint64_t n = 1; n <= total; n++) {
        mxc_mem_fail_at(n);
        enum mxc_code code = mxc_tokenizer_load(folder, &d, &file, &err);
        mxc_mem_fail_at(0);
        assert_int_not_equal(code, MXC_OK);
    }
    files_remove("f/tokenizer.model");
    files_remove("f/config.json");
    files_remove("f/added_tokens.json");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base64), cmocka_unit_test(test_lines),
        cmocka_unit_test(test_tekken), cmocka_unit_test(test_order),
        cmocka_unit_test(test_beside), cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests(tests, files_setup, files_teardown);
}
