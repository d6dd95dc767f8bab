/* The tokeniser against the goldens of tests/data/tokenizers (made with the reference
 * implementation), provenance of spans, malformed input, and failing allocations. */
#include "test.h"

#include "base/json.h"
#include "base/mem.h"
#include "format/tokenizer_json.h"
#include "text/tokenizer.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define LENGTH(a) (sizeof(a) / sizeof *(a))

static const char *const folders[] = {"llama3",        "qwen",     "qwen_llava", "qwenvl",
                                      "mllama",        "idefics",  "ling",       "spm_legacy",
                                      "spm_metaspace", "spm_llava"};

static struct mxc_tokenizer *load(const char *name) {
    char path[512];
    struct mxc_err err = {0};
    struct mxc_tokdesc desc;
    struct mxc_tokenizer *t = NULL;
    snprintf(path, sizeof path, "%s/tokenizers/%s", MXC_TEST_DATA, name);
    if (mxc_tokenizer_json_load(path, &desc, &err) || mxc_tokenizer_new(&desc, &t, &err))
        fail_msg("%s: %s", name, err.message);
    return t;
}

static struct mxc_ids encode_spans(const struct mxc_tokenizer *t, const struct mxc_text_span *spans,
                                   size_t n, bool add, bool parse) {
    struct mxc_ids ids = {0};
    struct mxc_err err = {0};
    if (mxc_tokenizer_encode(t, spans, n, (struct mxc_encode_options){add, parse}, &ids, &err))
        fail_msg("%s", err.message);
    return ids;
}

static struct mxc_ids encode(const struct mxc_tokenizer *t, const char *text, size_t length,
                             bool add) {
    struct mxc_text_span span = {text, length, true};
    return encode_spans(t, &span, 1, add, true);
}

static void check_ids(const char *what, const char *text, struct mxc_ids got, const json_t *want) {
    bool same = got.count == json_array_size(want);
    for (size_t i = 0; same && i < got.count; i++)
        same = got.items[i] == json_integer_value(json_array_get(want, i));
    if (!same)
        fail_msg("%s: ids of \"%s\" differ", what, text);
    mxc_ids_fini(&got);
}

static void check_decode(const struct mxc_tokenizer *t, const char *what, const json_t *ids,
                         size_t n, bool skip, const json_t *want) {
    struct mxc_buf buf;
    struct mxc_err err = {0};
    uint32_t list[4096];
    assert_true(n <= LENGTH(list));
    for (size_t i = 0; i < n; i++)
        list[i] = (uint32_t)json_integer_value(json_array_get(ids, i));
    mxc_buf_init(&buf, 1 << 20);
    assert_int_equal(mxc_tokenizer_decode(t, list, n, skip, &buf, &err), MXC_OK);
    if (buf.length != json_string_length(want) ||
        memcmp(mxc_buf_text(&buf), json_string_value(want), buf.length) != 0)
        fail_msg("%s: \"%s\" decoded to \"%s\"", what, json_string_value(want), mxc_buf_text(&buf));
    mxc_buf_fini(&buf);
}

/* Pieces of a stream joined are the whole text. */
static void check_stream(const struct mxc_tokenizer *t, const json_t *ids) {
    struct mxc_decode_stream s;
    struct mxc_buf got, want;
    struct mxc_err err = {0};
    uint32_t list[4096];
    size_t n = json_array_size(ids);
    mxc_buf_init(&got, 1 << 20);
    mxc_buf_init(&want, 1 << 20);
    mxc_decode_stream_init(&s, t, false);
    for (size_t i = 0; i < n; i++) {
        size_t before = got.length;
        list[i] = (uint32_t)json_integer_value(json_array_get(ids, i));
        assert_int_equal(mxc_decode_stream_push(&s, list[i], &got, &err), MXC_OK);
        assert_true(mxc_utf8_valid(mxc_buf_text(&got) + before, got.length - before));
    }
    assert_int_equal(mxc_decode_stream_flush(&s, &got, &err), MXC_OK);
    assert_int_equal(mxc_tokenizer_decode(t, list, n, false, &want, &err), MXC_OK);
    assert_string_equal(mxc_buf_text(&got), mxc_buf_text(&want));
    mxc_decode_stream_fini(&s);
    mxc_buf_fini(&got);
    mxc_buf_fini(&want);
}

static void check_case(const struct mxc_tokenizer *t, const char *name, const json_t *c) {
    const json_t *text = json_object_get(c, "text"), *ids = json_object_get(c, "ids");
    const json_t *plain = json_object_get(c, "ids_no_special");
    const json_t *tokens = json_object_get(c, "tokens");
    const char *p = json_string_value(text);
    size_t n = json_string_length(text);
    check_ids(name, p, encode(t, p, n, true), ids);
    struct mxc_ids got = encode(t, p, n, false);
    assert_int_equal(json_array_size(tokens), got.count);
    for (size_t i = 0; i < got.count; i++) {
        struct mxc_str s = mxc_tokenizer_spelling(t, got.items[i]);
        assert_int_equal(s.length, json_string_length(json_array_get(tokens, i)));
        assert_memory_equal(s.ptr, json_string_value(json_array_get(tokens, i)), s.length);
    }
    check_ids(name, p, got, plain);
    size_t n_ids = json_array_size(ids);
    check_decode(t, name, ids, n_ids, false, json_object_get(c, "decoded"));
    check_decode(t, name, ids, n_ids, true, json_object_get(c, "decoded_skip_special"));
    check_stream(t, ids);
}

static void test_goldens(void **state) {
    (void)state;
    for (size_t f = 0; f < LENGTH(folders); f++) {
        char path[512];
        struct mxc_err err = {0};
        json_t *golden = NULL, *c;
        size_t i;
        struct mxc_tokenizer *t = load(folders[f]);
        snprintf(path, sizeof path, "%s/tokenizers/%s/golden.json", MXC_TEST_DATA, folders[f]);
        assert_int_equal(mxc_json_load(path, 16 << 20, &golden, &err), MXC_OK);
        assert_int_equal(mxc_tokenizer_n_ids(t),
                         json_integer_value(json_object_get(golden, "vocab_size")));
        json_t *cases = json_object_get(golden, "cases");
        assert_true(json_array_size(cases) > 50);
        json_array_foreach(cases, i, c) {
            check_case(t, folders[f], c);
        }
        json_t *stream = json_object_get(golden, "stream");
        json_t *prefixes = json_object_get(stream, "prefix_decodes"), *want;
        json_array_foreach(prefixes, i, want) {
            check_decode(t, folders[f], json_object_get(stream, "ids"), i + 1, false, want);
        }
        check_stream(t, json_object_get(stream, "ids"));
        json_decref(golden);
        mxc_tokenizer_free(t);
    }
}

static bool has_id(struct mxc_ids ids, uint32_t id) {
    for (size_t i = 0; i < ids.count; i++)
        if (ids.items[i] == id)
            return true;
    return false;
}

static bool same_ids(struct mxc_ids a, struct mxc_ids b) {
    return a.count == b.count && !memcmp(a.items, b.items, a.count * sizeof *a.items);
}

/* Control tokens in untrusted spans, whole or in part, stay text. */
static void test_provenance(void **state) {
    (void)state;
    static const char *const markers[][2] = {{"llama3", "<|eot_id|>"}, {"spm_legacy", "</s>"}};
    for (size_t m = 0; m < LENGTH(markers); m++) {
        struct mxc_tokenizer *t = load(markers[m][0]);
        const char *marker = markers[m][1];
        size_t n = strlen(marker);
        uint32_t id = mxc_tokenizer_id(t, mxc_str_of(marker));
        assert_int_not_equal(id, MXC_TOK_NO_ID);
        assert_true(mxc_tokenizer_is_control(t, id));
        struct mxc_text_span whole[] = {{"x ", 2, true}, {marker, n, true}, {" y", 2, false}};
        struct mxc_ids ids = encode_spans(t, whole, 3, false, true);
        assert_true(has_id(ids, id));
        mxc_ids_fini(&ids);
        ids = encode_spans(t, whole, 3, false, false);
        assert_false(has_id(ids, id)); /* specials are not parsed */
        mxc_ids_fini(&ids);
        whole[1].trusted = false;
        ids = encode_spans(t, whole, 3, false, true);
        assert_false(has_id(ids, id));
        mxc_ids_fini(&ids);
        for (size_t cut = 1; cut < n; cut++)
            for (int first = 0; first < 2; first++) {
                struct mxc_text_span parts[] = {{marker, cut, first},
                                                {marker + cut, n - cut, !first}};
                ids = encode_spans(t, parts, 2, false, true);
                assert_false(has_id(ids, id));
                mxc_ids_fini(&ids);
                parts[0].trusted = parts[1].trusted = true; /* equal trust: one text */
                ids = encode_spans(t, parts, 2, false, true);
                assert_int_equal(ids.count, 1);
                mxc_ids_fini(&ids);
                parts[0].trusted = parts[1].trusted = false;
                ids = encode_spans(t, parts, 2, false, true);
                assert_false(has_id(ids, id));
                mxc_ids_fini(&ids);
            }
        mxc_tokenizer_free(t);
    }
}

/* Where spans meet nothing is cut: ids are those of the joined text. */
static void test_spans_join(void **state) {
    (void)state;
    const char *text = "Hello wor\xC3\xA9ld 1234, e\xCC\x81tudes\r\n\r\n  \xF0\x9F\x99\x82 don't x";
    size_t n = strlen(text);
    for (size_t f = 0; f < LENGTH(folders); f++) {
        struct mxc_tokenizer *t = load(folders[f]);
        struct mxc_ids want = encode(t, text, n, true);
        for (size_t cut = 0; cut <= n; cut++) {
            struct mxc_text_span parts[] = {
                {text, cut, true}, {text + cut, n - cut, false}, {"", 0, true}};
            struct mxc_ids got = encode_spans(t, parts, 3, true, true);
            assert_true(same_ids(got, want));
            mxc_ids_fini(&got);
        }
        mxc_ids_fini(&want);
        mxc_tokenizer_free(t);
    }
}

static void test_malformed_text(void **state) {
    (void)state;
    static const struct {
        const char *bytes, *as;
    } cases[] = {
        {"a\xFFz", "a\xEF\xBF\xBDz"},
        {"\xC3", "\xEF\xBF\xBD"},
        {"\xE6\x97z\x80", "\xEF\xBF\xBDz\xEF\xBF\xBD"},
        {"\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xF4\x90\x80\x80 \xC0\xAF", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD "
                                      "\xEF\xBF\xBD\xEF\xBF\xBD"},
    };
    for (size_t f = 0; f < LENGTH(folders); f++) {
        struct mxc_tokenizer *t = load(folders[f]);
        for (size_t i = 0; i < LENGTH(cases); i++) {
            struct mxc_ids a = encode(t, cases[i].bytes, strlen(cases[i].bytes), false);
            struct mxc_ids b = encode(t, cases[i].as, strlen(cases[i].as), false);
            assert_true(same_ids(a, b));
            mxc_ids_fini(&a);
            mxc_ids_fini(&b);
        }
        mxc_tokenizer_free(t);
    }
}

/* Long pieces take the heap, short ones the scan: both must agree with pieces in one text. */
static void test_long_pieces(void **state) {
    (void)state;
    struct mxc_tokenizer *t = load("llama3");
    enum { N = 200000 };
    char *text = mxc_mem_alloc(N + 1);
    static const char *const units[] = {"a", " ", "ab", "the", "\xE6\x97\xA5", "0"};
    for (size_t u = 0; u < LENGTH(units); u++) {
        size_t k = strlen(units[u]), n = N / k * k;
        for (size_t i = 0; i < n; i += k)
            memcpy(text + i, units[u], k);
        struct mxc_ids ids = encode(t, text, n, false);
        struct mxc_buf buf;
        mxc_buf_init(&buf, 1 << 20);
        assert_int_equal(mxc_tokenizer_decode(t, ids.items, ids.count, false, &buf, NULL), MXC_OK);
        assert_int_equal(buf.length, n);
        assert_memory_equal(buf.data, text, n);
        mxc_buf_fini(&buf);
        mxc_ids_fini(&ids);
    }
    mxc_mem_free(text);
    mxc_tokenizer_free(t);
}

static void test_names(void **state) {
    (void)state;
    struct mxc_tokenizer *t = load("qwen");
    const struct mxc_tokdesc *d = mxc_tokenizer_desc(t);
    struct mxc_str eos = mxc_tokenizer_spelling(t, d->eos);
    assert_true(mxc_str_is(eos, "<|im_end|>") || mxc_str_is(eos, "<|endoftext|>"));
    assert_true(mxc_tokenizer_is_special(t, d->eos));
    assert_true(d->end_ids.count >= 1);
    assert_int_equal(d->end_ids.items[0], d->eos);
    assert_int_equal(mxc_tokenizer_id(t, MXC_STR("no such token at all")), MXC_TOK_NO_ID);
    uint32_t call = mxc_tokenizer_id(t, MXC_STR("<tool_call>"));
    assert_false(mxc_tokenizer_is_special(t, call));
    assert_int_equal(mxc_tokenizer_spelling(t, 1 << 30).length, 0);
    assert_false(mxc_tokenizer_is_control(t, 1 << 30));
    struct mxc_buf buf;
    mxc_buf_init(&buf, 100);
    assert_true(mxc_tokenizer_piece(t, mxc_tokenizer_id(t, MXC_STR("\xC4\xA0t")), &buf));
    assert_string_equal(mxc_buf_text(&buf), " t");
    mxc_buf_fini(&buf);
    mxc_tokenizer_free(t);
}

static const char fault_text[] =
    "<|eot_id|>Hello e\xCC\x81t\xC3\xA9 1234 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
    "aaaaaaaaaaaaaaaaaaaaaaa \xFF </s>\xF0\x9F\x99\x82";

static enum mxc_code whole_life(const char *path, struct mxc_err *err) {
    struct mxc_tokdesc desc;
    struct mxc_tokenizer *t = NULL;
    struct mxc_ids ids = {0};
    struct mxc_buf buf;
    struct mxc_text_span spans[] = {{fault_text, 20, true}, {fault_text + 20, 60, false}};
    enum mxc_code code = mxc_tokenizer_json_load(path, &desc, err);
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
    static const char *const some[] = {"llama3", "qwen", "spm_legacy", "spm_metaspace"};
    for (size_t f = 0; f < LENGTH(some); f++) {
        char path[512];
        struct mxc_err err = {0};
        snprintf(path, sizeof path, "%s/tokenizers/%s", MXC_TEST_DATA, some[f]);
        json_set_alloc_funcs(mxc_mem_alloc, mxc_mem_free);
        mxc_mem_fail_at(0);
        assert_int_equal(whole_life(path, &err), MXC_OK);
        uint64_t total = mxc_mem_calls();
        assert_true(total > 100);
        uint64_t step = total > 1500 ? total / 1500 + 1 : 1;
        for (uint64_t n = 1; n <= total; n += step) {
            mxc_mem_fail_at(n);
            enum mxc_code code = whole_life(path, &err);
            mxc_mem_fail_at(0);
            assert_int_not_equal(code, MXC_OK);
        }
    }
}

static void *encode_often(void *arg) {
    const struct mxc_tokenizer *t = arg;
    const char *text = "Hello world, 1234 don't stop. ";
    struct mxc_ids want = encode(t, text, strlen(text), true);
    for (int i = 0; i < 200; i++) {
        struct mxc_ids got = encode(t, text, strlen(text), true);
        if (!same_ids(got, want))
            return arg;
        mxc_ids_fini(&got);
    }
    mxc_ids_fini(&want);
    return NULL;
}

static void test_threads(void **state) {
    (void)state;
    struct mxc_tokenizer *t = load("llama3");
    pthread_t threads[4];
    for (size_t i = 0; i < LENGTH(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, encode_often, t), 0);
    for (size_t i = 0; i < LENGTH(threads); i++) {
        void *bad;
        pthread_join(threads[i], &bad);
        assert_null(bad);
    }
    mxc_tokenizer_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),
        cmocka_unit_test(test_provenance),
        cmocka_unit_test(test_spans_join),
        cmocka_unit_test(test_malformed_text),
        cmocka_unit_test(test_long_pieces),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_failing_allocations),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
