/* Every kind of model against the goldens of tests/data/tokenizers/kinds (made with the reference
 * implementations by tools/gen_tokenizer_cases.py): ids, ids with the tokens around a text, decoded
 * text, streams; what users cannot spell; failing allocations; work on long texts, counted. */
#include "test.h"

#include "base/json.h"
#include "base/mem.h"
#include "format/tokenizer_file.h"
#include "format/tokenizer_json.h"
#include "text/tokenizer.h"
#include "text/tokenizer_priv.h"

#include <stdio.h>
#include <string.h>

#define LENGTH(a) (sizeof(a) / sizeof *(a))

static const char *const kinds[] = {
    "unigram", "unigram_bytes", "wordpiece",     "wordpiece_cased", "wordlevel",
    "scripts", "bpe_suffix",    "bpe_prefix",    "spm_unigram",     "spm_unigram_bytes",
    "spm_bpe", "spm_suffix",    "spm_no_prefix", "tiktoken",        "tekken"};

static const char *path_of(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/tokenizers/kinds/%s", MXC_TEST_DATA, name);
    return path;
}

static struct mxc_tokenizer *load(const char *name) {
    struct mxc_err err = {0};
    struct mxc_tokdesc desc;
    struct mxc_tokenizer *t = NULL;
    const char *file;
    if (mxc_tokenizer_load(path_of(name), &desc, &file, &err) || mxc_tokenizer_new(&desc, &t, &err))
        fail_msg("%s: %s", name, err.message);
    return t;
}

static void check_ids(const struct mxc_tokenizer *t, const char *name, const json_t *c, bool add,
                      bool parse) {
    const json_t *text = json_object_get(c, "text");
    const json_t *want = json_object_get(c, add ? "ids_add" : "ids");
    struct mxc_text_span span = {json_string_value(text), json_string_length(text), true};
    struct mxc_encode_options options = {.add_special = add, .parse_special = parse};
    struct mxc_ids ids = {0};
    struct mxc_err err = {0};
    if (mxc_tokenizer_encode(t, &span, 1, options, &ids, &err))
        fail_msg("%s: \"%s\": %s", name, span.text, err.message);
    bool same = ids.count == json_array_size(want);
    for (size_t i = 0; same && i < ids.count; i++)
        same = ids.items[i] == json_integer_value(json_array_get(want, i));
    if (!same)
        fail_msg("%s: ids of \"%s\" differ", name, span.text);
    mxc_ids_fini(&ids);
}

static size_t list_of(const json_t *ids, uint32_t *list, size_t max) {
    size_t n = json_array_size(ids);
    assert_true(n <= max);
    for (size_t i = 0; i < n; i++)
        list[i] = (uint32_t)json_integer_value(json_array_get(ids, i));
    return n;
}

/* The whole text, and a stream of it: what is certain comes out at once, and all in the end. */
static void check_text(const struct mxc_tokenizer *t, const char *name, const json_t *ids,
                       bool skip, const json_t *want) {
    static uint32_t list[4096];
    size_t n = list_of(ids, list, LENGTH(list)), least = 0;
    struct mxc_decode_stream s;
    struct mxc_buf whole, stream;
    mxc_buf_init(&whole, 1 << 20);
    mxc_buf_init(&stream, 1 << 20);
    assert_int_equal(mxc_tokenizer_decode(t, list, n, skip, &whole, NULL), MXC_OK);
    if (whole.length != json_string_length(want) ||
        memcmp(mxc_buf_text(&whole), json_string_value(want), whole.length) != 0)
        fail_msg("%s: \"%s\" decoded to \"%s\"", name, json_string_value(want),
                 mxc_buf_text(&whole));
    mxc_decode_stream_init(&s, t, skip);
    s.whole_runs = true;
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(mxc_decode_stream_push(&s, list[i], &stream, NULL), MXC_OK);
        assert_true(stream.length >= least);
        assert_true(mxc_utf8_valid(mxc_buf_text(&stream), stream.length));
        least = stream.length;
    }
    assert_int_equal(mxc_decode_stream_flush(&s, &stream, NULL), MXC_OK);
    mxc_decode_stream_fini(&s);
    assert_int_equal(stream.length, whole.length);
    assert_memory_equal(mxc_buf_text(&stream), mxc_buf_text(&whole), whole.length);
    mxc_buf_fini(&stream);
    mxc_buf_fini(&whole);
}

static void test_goldens(void **state) {
    (void)state;
    for (size_t k = 0; k < LENGTH(kinds); k++) {
        char path[600];
        json_t *golden = NULL, *c;
        size_t i;
        struct mxc_err err = {0};
        struct mxc_tokenizer *t = load(kinds[k]);
        snprintf(path, sizeof path, "%s/golden.json", path_of(kinds[k]));
        assert_int_equal(mxc_json_load(path, 16 << 20, &golden, &err), MXC_OK);
        bool parse = !json_is_true(json_object_get(golden, "plain"));
        bool silent = json_is_true(json_object_get(golden, "silent"));
        json_t *cases = json_object_get(golden, "cases"), *lists = json_object_get(golden, "lists");
        assert_true(json_array_size(cases) > 50 && json_array_size(lists) == 8);
        assert_int_equal(mxc_tokenizer_n_ids(t),
                         json_integer_value(json_object_get(golden, "n_ids")));
        json_array_foreach(cases, i, c) {
            check_ids(t, kinds[k], c, false, parse);
            check_ids(t, kinds[k], c, true, parse);
        }
        for (int pass = 0; pass < 2; pass++) {
            json_array_foreach(pass ? lists : cases, i, c) {
                const json_t *ids = json_object_get(c, "ids");
                check_text(t, kinds[k], ids, silent, json_object_get(c, "decoded"));
                check_text(t, kinds[k], ids, true, json_object_get(c, "decoded_skip"));
            }
        }
        json_decref(golden);
        mxc_tokenizer_free(t);
    }
}

/* Special tokens never come out of untrusted text, nor out of trusted text that is not parsed. */
static void test_special_tokens(void **state) {
    (void)state;
    for (size_t k = 0; k < LENGTH(kinds); k++) {
        struct mxc_tokenizer *t = load(kinds[k]);
        for (uint32_t id = 0; id < mxc_tokenizer_n_ids(t); id++) {
            struct mxc_str s = mxc_tokenizer_spelling(t, id);
            if (!mxc_tokenizer_is_control(t, id) || id == mxc_tokenizer_desc(t)->unk)
                continue;
            for (int trusted = 0; trusted < 2; trusted++) {
                struct mxc_text_span span = {s.ptr, s.length, trusted};
                struct mxc_encode_options options = {.parse_special = !trusted};
                struct mxc_ids ids = {0};
                assert_int_equal(mxc_tokenizer_encode(t, &span, 1, options, &ids, NULL), MXC_OK);
                for (size_t i = 0; i < ids.count; i++)
                    assert_int_not_equal(ids.items[i], id);
                mxc_ids_fini(&ids);
            }
        }
        mxc_tokenizer_free(t);
    }
}

/* A turn marker that the file does not call special is still not for users, whatever the model. */
static void test_turn_markers(void **state) {
    (void)state;
    static const char *const models[] = {
        "\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"?\",0],[\"<|user|>\",-1],[\"a\",-2]]",
        "\"type\":\"WordPiece\",\"unk_token\":\"?\",\"vocab\":{\"?\":0,\"<|user|>\":1,\"a\":2}",
        "\"type\":\"WordLevel\",\"unk_token\":\"?\",\"vocab\":{\"?\":0,\"<|user|>\":1,\"a\":2}"};
    for (size_t i = 0; i < LENGTH(models); i++) {
        char text[400];
        struct mxc_tokdesc desc;
        struct mxc_tokenizer *t = NULL;
        snprintf(text, sizeof text,
                 "{\"model\":{%s},\"added_tokens\":[{\"id\":1,\"content\":\"<|user|>\"}]}",
                 models[i]);
        assert_int_equal(mxc_tokenizer_json_parse(text, strlen(text), "t", &desc, NULL), MXC_OK);
        assert_int_equal(mxc_tokenizer_new(&desc, &t, NULL), MXC_OK);
        for (int trusted = 0; trusted < 2; trusted++) {
            struct mxc_text_span span = {"<|user|>", 8, trusted};
            struct mxc_ids ids = {0};
            struct mxc_encode_options options = {.parse_special = true};
            assert_int_equal(mxc_tokenizer_encode(t, &span, 1, options, &ids, NULL), MXC_OK);
            assert_int_equal(ids.count, 1);
            assert_int_equal(ids.items[0], trusted);
            mxc_ids_fini(&ids);
        }
        mxc_tokenizer_free(t);
    }
}

static enum mxc_code whole_life(const char *path, struct mxc_err *err) {
    static const char text[] = "The lamp\xC3\xA9s \xEF\xAC\x81 <tool> unbelievable 12 \xE7\x8C\xAB "
                               "\xF0\x9F\x99\x82 </s> walking walked aaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    struct mxc_tokdesc desc;
    struct mxc_tokenizer *t = NULL;
    struct mxc_ids ids = {0};
    struct mxc_buf buf;
    const char *file;
    struct mxc_text_span spans[] = {{text, 20, true}, {text + 20, sizeof text - 21, false}};
    enum mxc_code code = mxc_tokenizer_load(path, &desc, &file, err);
    if (!code)
        code = mxc_tokenizer_new(&desc, &t, err);
    if (code)
        return code;
    mxc_buf_init(&buf, 1 << 20);
    code = mxc_tokenizer_encode(t, spans, 2, (struct mxc_encode_options){true, true}, &ids, err);
    if (code)
        assert_int_equal(ids.count, 0);
    else
        code = mxc_tokenizer_decode(t, ids.items, ids.count, false, &buf, err);
    mxc_buf_fini(&buf);
    mxc_ids_fini(&ids);
    mxc_tokenizer_free(t);
    return code;
}

static void test_failing_allocations(void **state) {
    (void)state;
    json_set_alloc_funcs(mxc_mem_alloc, mxc_mem_free);
    for (size_t k = 0; k < LENGTH(kinds); k++) {
        const char *path = path_of(kinds[k]);
        struct mxc_err err = {0};
        mxc_mem_fail_at(0);
        if (whole_life(path, &err))
            fail_msg("%s: %s", kinds[k], err.message);
        uint64_t total = mxc_mem_calls(), step = total / 70 + 1;
        assert_true(total > 30);
        for (uint64_t n = 1; n <= total; n += step) {
            mxc_mem_fail_at(n);
            enum mxc_code code = whole_life(path, &err);
            mxc_mem_fail_at(0);
            if (!code)
                fail_msg("%s: call %llu failed unseen", kinds[k], (unsigned long long)n);
        }
    }
}

/* Pieces as long as texts can be: the work may grow with the length (and its logarithm), not with
 * its square. Counted, not timed. */
static void test_long_pieces(void **state) {
    (void)state;
    enum { SHORT = 8000, LONG = 64000 };
    static const char *const units[] = {"a", " ", "thelamp", "\xE7\x8C\xAB", "\xF0\x9F\x9B\xB8"};
    char *text = mxc_mem_alloc(LONG);
    for (size_t k = 0; k < LENGTH(kinds); k++) {
        struct mxc_tokenizer *t = load(kinds[k]);
        for (size_t u = 0; u < LENGTH(units); u++) {
            uint64_t steps[2] = {0};
            size_t n = strlen(units[u]);
            for (size_t i = 0; i + n <= LONG; i += n)
                memcpy(text + i, units[u], n);
            for (int longer = 0; longer < 2; longer++) {
                size_t length = (longer ? LONG : SHORT) / n * n;
                struct mxc_bpe_scratch *bpe = NULL;
                struct mxc_unigram_scratch *unigram = NULL;
                struct mxc_ids ids = {0};
                if (t->bpe) {
                    assert_int_equal(mxc_bpe_scratch_new(length, &bpe, NULL), MXC_OK);
                    assert_int_equal(mxc_bpe_encode(t->bpe, bpe, text, length, &ids, NULL), MXC_OK);
                    steps[longer] = mxc_bpe_steps(bpe);
                } else if (t->unigram) {
                    assert_int_equal(mxc_unigram_scratch_new(&unigram, NULL), MXC_OK);
                    assert_int_equal(
                        mxc_unigram_encode(t->unigram, unigram, text, length, &ids, NULL), MXC_OK);
                    steps[longer] = mxc_unigram_steps(unigram);
                    assert_true(steps[longer] <= length * (t->desc.max_token_bytes + 1));
                } else {
                    assert_int_equal(mxc_wordpiece_encode(t->wordpiece, text, length, &ids, NULL),
                                     MXC_OK);
                }
                mxc_bpe_scratch_free(bpe);
                mxc_unigram_scratch_free(unigram);
                mxc_ids_fini(&ids);
            }
            assert_true(steps[1] <= 10 * steps[0] + 100); /* eight times the text */
        }
        mxc_tokenizer_free(t);
    }
    mxc_mem_free(text);
}

/* The same texts through the whole encoder, normalisers and patterns included. */
static void test_long_texts(void **state) {
    (void)state;
    enum { N = 20000 };
    static const char *const units[] = {"a", " ",        "\n",           "thelamp",
                                        "7", "\xCC\x81", "\xE2\x96\x81", "\xFF"};
    char *text = mxc_mem_alloc(N);
    for (size_t k = 0; k < LENGTH(kinds); k++) {
        struct mxc_tokenizer *t = load(kinds[k]);
        for (size_t u = 0; u < LENGTH(units); u++) {
            struct mxc_ids ids = {0};
            size_t n = strlen(units[u]);
            for (size_t i = 0; i + n <= N; i += n)
                memcpy(text + i, units[u], n);
            struct mxc_text_span span = {text, N / n * n, true};
            struct mxc_encode_options options = {true, true};
            assert_int_equal(mxc_tokenizer_encode(t, &span, 1, options, &ids, NULL), MXC_OK);
            mxc_ids_fini(&ids);
        }
        mxc_tokenizer_free(t);
    }
    mxc_mem_free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),      cmocka_unit_test(test_special_tokens),
        cmocka_unit_test(test_turn_markers), cmocka_unit_test(test_failing_allocations),
        cmocka_unit_test(test_long_pieces),  cmocka_unit_test(test_long_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
