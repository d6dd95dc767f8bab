/* tokenizer.json and its two companions: every spelling we read, hostile variants with the message
 * they must give, and failing allocations. */
#include "test.h"

#include "base/json.h"
#include "base/mem.h"
#include "files.h"
#include "format/json_reader.h"
#include "format/tokenizer_json.h"

#include <stdio.h>
#include <string.h>

#define LENGTH(a) (sizeof(a) / sizeof *(a))

/* A small byte-level tokeniser; the parts that tests vary are arguments. */
static const char *whole(const char *top, const char *model) {
    static char text[8192];
    snprintf(text, sizeof text, "{\"version\": \"1.0\", %s \"model\": {%s}}", top, model);
    return text;
}

#define VOCAB                                                                                      \
    "\"vocab\": {\"a\": 0, \"b\": 1, \"c\": 2, \"ab\": 3, \"abc\": 4, \"\\u0120a\": 5, "           \
    "\"\\u0120\": 6}"
#define MERGES "\"merges\": [\"a b\", \"ab c\", \"\\u0120 a\"]"
#define MODEL  VOCAB ", " MERGES

static enum mxc_code parse(const char *text, struct mxc_tokdesc *desc, struct mxc_err *err) {
    return mxc_tokenizer_json_parse(text, strlen(text), "t.json", desc, err);
}

static void parse_ok(const char *text, struct mxc_tokdesc *desc) {
    struct mxc_err err = {0};
    if (parse(text, desc, &err))
        fail_msg("%s", err.message);
}

static void check_merges(const struct mxc_tokdesc *d) {
    static const struct mxc_tok_merge want[] = {{0, 1, 3}, {3, 2, 4}, {6, 0, 5}};
    assert_int_equal(d->n_ids, 7);
    assert_int_equal(d->n_merges, 3);
    assert_memory_equal(d->merges, want, sizeof want);
}

static void test_spellings(void **state) {
    (void)state;
    static const char *const models[] = {
        "\"type\": \"BPE\", " VOCAB ", " MERGES,
        MERGES ", " VOCAB, /* merges first, no type */
        VOCAB ", \"merges\": [[\"a\", \"b\"], [\"ab\", \"c\"], [\"\xC4\xA0\", \"a\"]]",
        "\"merges\": [ [\"a\" , \"b\"] , \"ab c\",\"\xC4\xA0 a\"],\"dropout\": null, " VOCAB
        ", \"continuing_subword_prefix\": \"\", \"end_of_word_suffix\": null, \"new\": [{}, "
        "-1.5e3]",
    };
    for (size_t i = 0; i < LENGTH(models); i++) {
        struct mxc_tokdesc d;
        parse_ok(whole("", models[i]), &d);
        check_merges(&d);
        assert_int_equal(d.model, MXC_TOK_BPE_CHARS);
        assert_false(d.has_decoder);
        mxc_tokdesc_fini(&d);
    }
}

static void test_steps(void **state) {
    (void)state;
    struct mxc_tokdesc d;
    const char *top =
        "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}, "
        "{\"type\": \"Replace\", \"pattern\": {\"Regex\": \" +\"}, \"content\": \"_\"}, "
        "{\"type\": \"Prepend\", \"prepend\": \"^\"}, {\"type\": \"Strip\", \"strip_left\": "
        "false}]},"
        "\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": ["
        "{\"type\": \"Split\", \"pattern\": {\"String\": \"x\"}, \"behavior\": \"MergedWithNext\", "
        "\"invert\": true}, {\"type\": \"Digits\", \"individual_digits\": true}, "
        "{\"type\": \"Metaspace\", \"replacement\": \"_\", \"prepend_scheme\": \"first\", "
        "\"split\": false}, {\"type\": \"ByteLevel\", \"use_regex\": false}]},"
        "\"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Replace\", \"pattern\": "
        "{\"String\": \"_\"}, \"content\": \" \"}, {\"type\": \"ByteFallback\"}, {\"type\": "
        "\"Fuse\"}, {\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}]},"
        "\"added_tokens\": [{\"id\": 9, \"content\": \"<s>\", \"special\": true}, {\"id\": 77, "
        "\"content\": \"ab\", \"special\": false, \"lstrip\": true, \"normalized\": false}],"
        "\"post_processor\": {\"type\": \"Sequence\", \"processors\": [{\"type\": \"ByteLevel\"}, "
        "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<s>\"}}, "
        "{\"Sequence\": {\"id\": \"A\"}}, {\"SpecialToken\": {\"id\": \"x\"}}], "
        "\"special_tokens\": "
        "{\"<s>\": {\"ids\": [9]}, \"x\": {\"ids\": [0, 1]}}}]},";
    parse_ok(whole(top, VOCAB ", " MERGES ", \"byte_fallback\": true, \"ignore_merges\": true, "
                              "\"fuse_unk\": true, \"unk_token\": \"c\""),
             &d);
    assert_int_equal(d.model, MXC_TOK_BPE_BYTES);
    assert_true(d.byte_fallback && d.ignore_merges && d.fuse_unk && d.has_decoder);
    assert_int_equal(d.unk, 2);
    assert_int_equal(d.normalizers.count, 4);
    assert_true(d.normalizers.items[1].is_regex);
    assert_true(mxc_str_is(d.normalizers.items[2].content, "^"));
    assert_false(d.normalizers.items[3].left);
    assert_true(d.normalizers.items[3].right);
    assert_int_equal(d.pretokenizers.count, 4);
    assert_int_equal(d.pretokenizers.items[0].behavior, MXC_TOK_MERGED_WITH_NEXT);
    assert_true(d.pretokenizers.items[0].invert);
    assert_int_equal(d.pretokenizers.items[2].prepend, MXC_TOK_PREPEND_FIRST);
    assert_true(d.pretokenizers.items[3].add_prefix_space);
    assert_int_equal(d.decoders.count, 4);
    assert_int_equal(d.decoders.items[3].n_start, 1);
    assert_int_equal(d.n_added, 2);
    assert_int_equal(d.n_ids, 10);
    assert_true(d.added[0].special && d.added[0].control && !d.added[0].normalized);
    assert_int_equal(d.added[1].id, 3); /* the vocabulary's id counts */
    assert_true(d.added[1].lstrip && !d.added[1].control);
    assert_int_equal(d.prefix.count, 1);
    assert_int_equal(d.prefix.items[0], 9);
    assert_int_equal(d.suffix.count, 2);
    assert_int_equal(d.suffix.items[1], 1);
    mxc_tokdesc_fini(&d);
}

static void test_turn_markers(void **state) {
    (void)state;
    struct mxc_tokdesc d;
    parse_ok(
        whole("\"added_tokens\": [{\"id\": 9, \"content\": \"<|user|>\"}, {\"id\": 10, "
              "\"content\": \"<\\uff5cUser\\uff5c>\"}, {\"id\": 11, \"content\": \"<think>\"}],",
              VOCAB ", " MERGES),
        &d);
    assert_true(d.added[0].control && !d.added[0].special);
    assert_true(d.added[1].control);
    assert_false(d.added[2].control);
    mxc_tokdesc_fini(&d);
}

static void test_refused(void **state) {
    (void)state;
    static const struct {
        const char *top, *model, *words;
        enum mxc_code code;
    } cases[] = {
        {"", "\"type\": \"Trigram\", " VOCAB, "Trigram", MXC_E_UNSUPPORTED},
        {"", "\"type\": \"BPE\", \"vocab\": [[\"a\", -1.5]], \"merges\": []", "vocab BPE",
         MXC_E_FORMAT},
        {"", "\"type\": \"Unigram\", " VOCAB, "vocab Unigram", MXC_E_FORMAT},
        {"", "\"vocab\": [[\"a\", -1.5], [\"b\", 1e999]]", "number", MXC_E_FORMAT},
        {"", "\"vocab\": [[\"a\", -1.5], [\"b\", nan]]", "score finite", MXC_E_FORMAT},
        {"", "\"vocab\": [[\"a\", -1.5, 3]]", "more than two", MXC_E_FORMAT},
        {"", "\"vocab\": [[\"a\"]]", "without score", MXC_E_FORMAT},
        {"", "\"vocab\": [[]]", "empty token", MXC_E_FORMAT},
        {"", "\"vocab\": [\"a\"]", "list expected", MXC_E_FORMAT},
        {"", "\"vocab\": [[\"a\", \"b\"]]", "number", MXC_E_FORMAT},
        {"", "\"unk_id\": 1, \"vocab\": [[\"a\", -1.5]]", "unk_id", MXC_E_FORMAT},
        {"\"pre_tokenizer\": {\"type\": \"ByteLevel\"},", "\"vocab\": [[\"a\", -1.5]]", "ByteLevel",
         MXC_E_UNSUPPORTED},
        {"", "\"type\": \"BPE\"", "vocab missing", MXC_E_FORMAT},
        {"", VOCAB, "merges missing", MXC_E_FORMAT},
        {"", VOCAB ", \"dropout\": 0.1", "dropout", MXC_E_UNSUPPORTED},
        {"", VOCAB ", " MERGES ", \"continuing_subword_prefix\": \"##\"", "continuing",
         MXC_E_UNSUPPORTED},
        {"", VOCAB ", \"merges\": [\"a b\", \"a z\"]", "merge 1 \"z\"", MXC_E_FORMAT},
        {"", VOCAB ", \"merges\": [\"z b\"]", "merge 0 \"z\"", MXC_E_FORMAT},
        {"", VOCAB ", \"merges\": [\"b a\"]", "merge 0 \"ba\"", MXC_E_FORMAT},
        {"", VOCAB ", \"merges\": [\"ab\"]", "two parts", MXC_E_FORMAT},
        {"", VOCAB ", \"merges\": [\"a b c\"]", "two parts", MXC_E_FORMAT},
        {"", VOCAB ", \"merges\": [[\"a\"]]", "string expected", MXC_E_FORMAT},
        {"", VOCAB ", \"merges\": [[\"a\", \"b\", \"c\"]]", "two parts", MXC_E_FORMAT},
        {"", VOCAB ", \"merges\": 5", "list expected", MXC_E_FORMAT},
        {"", VOCAB ", " MERGES ", \"unk_token\": \"nope\"", "unk_token", MXC_E_FORMAT},
        {"", "\"vocab\": {\"a\": 0, \"b\": 0}", "id 0 both \"a\" \"b\"", MXC_E_FORMAT},
        {"", "\"vocab\": {\"a\": 4194304}", "4194304 large", MXC_E_FORMAT},
        {"", "\"vocab\": {\"a\": 99999999999999999999}", "too large", MXC_E_FORMAT},
        {"", "\"vocab\": {\"a\": -1}", "number", MXC_E_FORMAT},
        {"", "\"vocab\": {\"a\": 1.5}", "whole number", MXC_E_FORMAT},
        {"", "\"vocab\": {\"a\" 1}", "\":\"", MXC_E_FORMAT},
        {"", "\"vocab\": {\"a\": 1 \"b\": 2}", "\",\"", MXC_E_FORMAT},
        {"", "\"vocab\": {\"\xFF\": 1}", "UTF-8", MXC_E_FORMAT},
        {"", "\"vocab\": {\"\\ud800\": 1}", "surrogate", MXC_E_FORMAT},
        {"", "\"vocab\": {\"\\q\": 1}", "escape", MXC_E_FORMAT},
        {"", "\"vocab\": {\"a\nb\": 1}", "control character", MXC_E_FORMAT},
        {"", VOCAB ", " VOCAB, "second \"vocab\"", MXC_E_FORMAT},
        {"\"model\": {" MODEL "},", MODEL, "second \"model\"", MXC_E_FORMAT},
        {"\"normalizer\": {\"type\": \"ByteLevel\"},", MODEL, "normalizer \"ByteLevel\"",
         MXC_E_UNSUPPORTED},
        {"\"normalizer\": {\"type\": \"Precompiled\"},", MODEL, "precompiled_charsmap",
         MXC_E_FORMAT},
        {"\"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"a?\"},", MODEL,
         "precompiled_charsmap base64", MXC_E_FORMAT},
        {"\"normalizer\": {\"type\": 5},", MODEL, "normalizer type", MXC_E_FORMAT},
        {"\"normalizer\": [],", MODEL, "normalizer object", MXC_E_FORMAT},
        {"\"pre_tokenizer\": {\"type\": \"Odd\"},", MODEL, "\"Odd\"", MXC_E_UNSUPPORTED},
        {"\"pre_tokenizer\": {\"type\": \"CharDelimiterSplit\"},", MODEL, "delimiter",
         MXC_E_FORMAT},
        {"\"pre_tokenizer\": {\"type\": \"Sequence\"},", MODEL, "pretokenizers", MXC_E_FORMAT},
        {"\"pre_tokenizer\": {\"type\": \"Split\"},", MODEL, "pattern", MXC_E_FORMAT},
        {"\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"a\"}, \"behavior\": "
         "\"Odd\"},",
         MODEL, "behavior \"Odd\"", MXC_E_UNSUPPORTED},
        {"\"decoder\": {\"type\": \"Odd\"},", MODEL, "decoder \"Odd\"", MXC_E_UNSUPPORTED},
        {"\"decoder\": {\"type\": \"CTC\"},", MODEL, "decoder pad_token", MXC_E_FORMAT},
        {"\"post_processor\": {\"type\": \"Odd\"},", MODEL, "post_processor \"Odd\"",
         MXC_E_UNSUPPORTED},
        {"\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": "
         "{\"id\": \"<s>\"}}], \"special_tokens\": {\"<s>\": {\"ids\": [99]}}},",
         MODEL, "vocabulary", MXC_E_FORMAT},
        {"\"added_tokens\": [{\"id\": 1}],", MODEL, "added token content", MXC_E_FORMAT},
        {"\"added_tokens\": [{\"id\": 1, \"content\": \"q\"}],", MODEL, "id 1 \"b\" \"q\"",
         MXC_E_FORMAT},
        {"\"added_tokens\": [{\"id\": 9, \"content\": \"q\", \"special\": 1}],", MODEL,
         "true or false", MXC_E_FORMAT},
    };
    for (size_t i = 0; i < LENGTH(cases); i++) {
        struct mxc_tokdesc d;
        struct mxc_err err = {0};
        enum mxc_code code = parse(whole(cases[i].top, cases[i].model), &d, &err);
        if (code != cases[i].code)
            fail_msg("case %zu: code %d, \"%s\"", i, (int)code, err.message);
        files_expect(&err, cases[i].words);
        files_expect(&err, "t.json");
        assert_null(strchr(err.message, '\n'));
    }
}

/* Every prefix of a good file is an error, and so is what follows the end. */
static void test_cut_short(void **state) {
    (void)state;
    const char *text = whole("\"normalizer\": null, \"added_tokens\": [{\"id\": 9, \"content\": "
                             "\"<s>\", \"special\": true}],",
                             VOCAB ", " MERGES);
    size_t n = strlen(text);
    struct mxc_tokdesc d;
    for (size_t k = 0; k < n; k++) {
        char *copy = mxc_mem_alloc(k ? k : 1); /* exact size: a read past the end shows */
        memcpy(copy, text, k);
        struct mxc_err err = {0};
        assert_int_not_equal(mxc_tokenizer_json_parse(copy, k, "t.json", &d, &err), MXC_OK);
        assert_true(err.message[0] != 0);
        mxc_mem_free(copy);
    }
    char longer[8300];
    snprintf(longer, sizeof longer, "%s x", text);
    assert_int_equal(parse(longer, &d, NULL), MXC_E_FORMAT);
}

static void test_depth(void **state) {
    (void)state;
    char deep[4096], text[8192];
    memset(deep, '[', 2000);
    memset(deep + 2000, ']', 2000);
    deep[4000] = 0;
    snprintf(text, sizeof text, "{\"x\": %s, \"model\": {" VOCAB "}}", deep);
    struct mxc_tokdesc d;
    struct mxc_err err = {0};
    assert_int_equal(parse(text, &d, &err), MXC_E_FORMAT);
    files_expect(&err, "deep");
    size_t k = 0;
    for (int i = 0; i < 20; i++)
        k += (size_t)snprintf(deep + k, sizeof deep - k,
                              "{\"type\": \"Sequence\", \"normalizers\": [");
    for (int i = 0; i < 20; i++)
        k += (size_t)snprintf(deep + k, sizeof deep - k, "]}");
    snprintf(text, sizeof text, "{\"normalizer\": %s, \"model\": {" VOCAB ", " MERGES "}}", deep);
    assert_int_equal(parse(text, &d, &err), MXC_E_LIMIT);
    files_expect(&err, "normalizer deep");
}

static void write_model(const char *config, const char *map) {
    files_text("m/tokenizer.json", whole("\"added_tokens\": [{\"id\": 9, \"content\": \"<s>\", "
                                         "\"special\": false, \"normalized\": false}],",
                                         VOCAB ", " MERGES));
    (void)remove(files_path("m/tokenizer_config.json"));
    (void)remove(files_path("m/special_tokens_map.json"));
    if (config)
        files_text("m/tokenizer_config.json", config);
    if (map)
        files_text("m/special_tokens_map.json", map);
}

static void test_config(void **state) {
    (void)state;
    struct mxc_tokdesc d;
    struct mxc_err err = {0};
    write_model("{\"bos_token\": {\"content\": \"<s>\"}, \"eos_token\": \"abc\", \"pad_token\": "
                "\"a\", \"add_bos_token\": true, \"add_eos_token\": true, "
                "\"added_tokens_decoder\": {\"12\": {\"content\": \"<x>\", \"special\": true}}, "
                "\"additional_special_tokens\": [\"<x>\", \"not there\"]}",
                "{\"eos_token\": \"ab\"}");
    assert_int_equal(mxc_tokenizer_json_load(files_path("m"), &d, &err), MXC_OK);
    assert_int_equal(d.bos, 9);
    assert_int_equal(d.eos, 4); /* the config outranks the map */
    assert_int_equal(d.pad, 0);
    assert_int_equal(d.n_ids, 13);
    assert_true(d.added[0].special);
    assert_int_equal(d.prefix.count, 1);
    assert_int_equal(d.prefix.items[0], 9);
    assert_int_equal(d.suffix.count, 1);
    assert_int_equal(d.suffix.items[0], 4);
    assert_int_equal(d.end_ids.count, 1);
    mxc_tokdesc_fini(&d);
    write_model(NULL, "{\"eos_token\": \"abc\"}");
    assert_int_equal(mxc_tokenizer_json_load(files_path("m"), &d, &err), MXC_OK);
    assert_int_equal(d.eos, 4);
    assert_int_equal(d.prefix.count, 0);
    mxc_tokdesc_fini(&d);
    write_model("[]", NULL);
    assert_int_equal(mxc_tokenizer_json_load(files_path("m"), &d, &err), MXC_E_FORMAT);
    files_expect(&err, "tokenizer_config.json object");
    write_model("{\"added_tokens_decoder\": {\"x\": {\"content\": \"y\"}}}", NULL);
    assert_int_equal(mxc_tokenizer_json_load(files_path("m"), &d, &err), MXC_E_FORMAT);
    files_expect(&err, "tokenizer_config.json added_tokens_decoder.x");
    assert_int_equal(mxc_tokenizer_json_load(files_path("none"), &d, &err), MXC_E_NOT_FOUND);
    files_expect(&err, "none/tokenizer.json");
}

static void test_reader(void **state) {
    (void)state;
    static const char text[] =
        "[\"plain\", \"t\\u00e9st \\ud83d\\ude42 \\n\\\"\\\\\\/\", \"\xC3\xA9t\xC3\xA9 and more\"]";
    struct mxc_jr jr;
    struct mxc_err err = {0};
    struct mxc_str s;
    bool more;
    mxc_jr_init(&jr, text, sizeof text - 1, "n", &err);
    assert_int_equal(mxc_jr_open(&jr, '['), MXC_OK);
    static const char *const want[] = {"plain", "t\xC3\xA9st \xF0\x9F\x99\x82 \n\"\\/",
                                       "\xC3\xA9t\xC3\xA9 and more"};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(mxc_jr_item(&jr, i, &more), MXC_OK);
        assert_true(more);
        assert_int_equal(mxc_jr_string(&jr, &s), MXC_OK);
        assert_true(mxc_str_is(s, want[i]));
    }
    assert_int_equal(mxc_jr_item(&jr, 3, &more), MXC_OK);
    assert_false(more);
    assert_int_equal(mxc_jr_peek(&jr), 0);
    mxc_jr_fini(&jr);
}

static void test_failing_allocations(void **state) {
    (void)state;
    struct mxc_tokdesc d;
    struct mxc_err err;
    write_model("{\"bos_token\": \"<s>\", \"eos_token\": \"abc\", \"add_bos_token\": true, "
                "\"added_tokens_decoder\": {\"12\": {\"content\": \"<x>\"}}}",
                NULL);
    json_set_alloc_funcs(mxc_mem_alloc, mxc_mem_free);
    const char *path = files_path("m");
    mxc_mem_fail_at(0);
    assert_int_equal(mxc_tokenizer_json_load(path, &d, &err), MXC_OK);
    uint64_t total = mxc_mem_calls();
    mxc_tokdesc_fini(&d);
    for (uint64_t n = 1; n <= total; n++) {
        mxc_mem_fail_at(n);
        enum mxc_code code = mxc_tokenizer_json_load(path, &d, &err);
        mxc_mem_fail_at(0);
        assert_int_not_equal(code, MXC_OK);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spellings),
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_turn_markers),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_cut_short),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_config),
        cmocka_unit_test(test_reader),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests(tests, files_setup, files_teardown);
}
