/* Streamed decoding: pieces joined equal the whole for any ids, characters are held back, broken
 * bytes become U+FFFD; byte-level and byte-fallback vocabularies, and decoders that do not fit. */
#include "test.h"

#include "base/mem.h"
#include "format/tokenizer_json.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <string.h>

#define LENGTH(a) (sizeof(a) / sizeof *(a))

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

/* The id of one byte, in both kinds of vocabulary. */
static uint32_t byte_id(const struct mxc_tokenizer *t, unsigned byte) {
    char text[8];
    snprintf(text, sizeof text, "<0x%02X>", byte);
    uint32_t id = mxc_tokenizer_id(t, mxc_str_of(text));
    struct mxc_buf buf;
    mxc_buf_init(&buf, 64);
    for (uint32_t k = 0; id == MXC_TOK_NO_ID && k < mxc_tokenizer_n_ids(t); k++) {
        mxc_buf_clear(&buf);
        assert_true(mxc_tokenizer_piece(t, k, &buf));
        if (buf.length == 1 && (unsigned char)buf.data[0] == byte)
            id = k;
    }
    mxc_buf_fini(&buf);
    assert_int_not_equal(id, MXC_TOK_NO_ID);
    return id;
}

/* Bytes as tokens; pieces joined by '|', the flush after "||". */
static void check_pieces(const struct mxc_tokenizer *t, const char *bytes, const char *want) {
    struct mxc_decode_stream s;
    struct mxc_buf out;
    mxc_buf_init(&out, 4096);
    mxc_decode_stream_init(&s, t, false);
    for (size_t i = 0; bytes[i]; i++) {
        assert_int_equal(
            mxc_decode_stream_push(&s, byte_id(t, (unsigned char)bytes[i]), &out, NULL), MXC_OK);
        mxc_buf_putc(&out, '|');
    }
    mxc_buf_putc(&out, '|');
    assert_int_equal(mxc_decode_stream_flush(&s, &out, NULL), MXC_OK);
    assert_string_equal(mxc_buf_text(&out), want);
    mxc_decode_stream_fini(&s);
    mxc_buf_fini(&out);
}

#define BAD "\xEF\xBF\xBD"

static void test_characters_are_held(void **state) {
    (void)state;
    struct mxc_tokenizer *t = load("llama3");
    check_pieces(t, "a\xC3\xA9z", "a||\xC3\xA9|z||");
    check_pieces(t, "\xF0\x9F\x99\x82", "|||\xF0\x9F\x99\x82||");
    check_pieces(t, "\xF0\x9F", "|||" BAD);        /* never finished */
    check_pieces(t, "\xF0\x9Fx", "||" BAD "x||");  /* one bad sequence */
    check_pieces(t, "\x80x", BAD "|x||");          /* can never begin */
    check_pieces(t, "\xC0\xAF", BAD "|" BAD "||"); /* overlong */
    check_pieces(t, "\xED\xA0", "|" BAD BAD "||"); /* surrogate: no byte may follow ED A0 */
    check_pieces(t, "\xE6\xC3\xA9", "|" BAD "|\xC3\xA9||");
    mxc_tokenizer_free(t);
    t = load("spm_legacy");
    check_pieces(t, "\xC3\xA9\xE6\x97", "|\xC3\xA9||||" BAD BAD); /* one mark a byte */
    mxc_tokenizer_free(t);
}

static uint64_t next_random(uint64_t *seed) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

/* Random ids. The stream that holds whole runs equals decode; the other one for byte-level. */
static void test_joined_pieces(void **state) {
    (void)state;
    static const char *const names[] = {"llama3", "qwen", "spm_legacy", "spm_metaspace"};
    uint64_t seed = 7;
    for (size_t f = 0; f < LENGTH(names); f++) {
        struct mxc_tokenizer *t = load(names[f]);
        bool level = f < 2;
        for (int round = 0; round < 400; round++) {
            uint32_t ids[24];
            size_t n = (size_t)next_random(&seed) % LENGTH(ids) + 1;
            for (size_t i = 0; i < n; i++)
                ids[i] = round % 2 ? (uint32_t)(next_random(&seed) % (mxc_tokenizer_n_ids(t) + 3))
                                   : byte_id(t, 0x80 + (unsigned)next_random(&seed) % 0x7F);
            for (int skip = 0; skip < 2; skip++)
                for (int runs = level ? 0 : 1; runs < 2; runs++) {
                    struct mxc_decode_stream s;
                    struct mxc_buf whole, pieces;
                    mxc_buf_init(&whole, 1 << 16);
                    mxc_buf_init(&pieces, 1 << 16);
                    mxc_decode_stream_init(&s, t, skip);
                    s.whole_runs = runs;
                    for (size_t i = 0; i < n; i++)
                        assert_int_equal(mxc_decode_stream_push(&s, ids[i], &pieces, NULL), MXC_OK);
                    assert_int_equal(mxc_decode_stream_flush(&s, &pieces, NULL), MXC_OK);
                    assert_int_equal(mxc_tokenizer_decode(t, ids, n, skip, &whole, NULL), MXC_OK);
                    assert_string_equal(mxc_buf_text(&pieces), mxc_buf_text(&whole));
                    assert_true(mxc_utf8_valid(mxc_buf_text(&whole), whole.length));
                    mxc_decode_stream_fini(&s);
                    mxc_buf_fini(&whole);
                    mxc_buf_fini(&pieces);
                }
        }
        mxc_tokenizer_free(t);
    }
}

/* A run of bytes that ends badly: whole decoding spoils it, as the reference does; the stream keeps
 * what it has shown. */
static void test_broken_runs(void **state) {
    (void)state;
    struct mxc_tokenizer *t = load("spm_legacy");
    uint32_t ids[3] = {byte_id(t, 0xC3), byte_id(t, 0xA9), byte_id(t, 0xE6)};
    struct mxc_buf out;
    mxc_buf_init(&out, 100);
    assert_int_equal(mxc_tokenizer_decode(t, ids, 3, false, &out, NULL), MXC_OK);
    assert_string_equal(mxc_buf_text(&out), BAD BAD BAD);
    mxc_buf_fini(&out);
    mxc_tokenizer_free(t);
}

/* Only the very first space is dropped. */
static void test_strip(void **state) {
    (void)state;
    struct mxc_tokenizer *t = load("spm_legacy");
    uint32_t space = mxc_tokenizer_id(t, MXC_STR("\xE2\x96\x81"));
    uint32_t ids[] = {space, space, space};
    struct mxc_decode_stream s;
    struct mxc_buf out;
    mxc_buf_init(&out, 100);
    mxc_decode_stream_init(&s, t, false);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(mxc_decode_stream_push(&s, ids[i], &out, NULL), MXC_OK);
        assert_int_equal(out.length, i);
    }
    mxc_decode_stream_fini(&s);
    mxc_buf_fini(&out);
    mxc_tokenizer_free(t);
}

static void test_decoders_that_do_not_fit(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"{\"type\": \"Fuse\"}, {\"type\": \"ByteFallback\"}", "ByteFallback"},
        {"{\"type\": \"Fuse\"}, {\"type\": \"Replace\", \"pattern\": {\"String\": \"a\"}, "
         "\"content\": \"b\"}",
         "Replace"},
        {"{\"type\": \"Replace\", \"pattern\": {\"Regex\": \"a\"}, \"content\": \"b\"}", "Replace"},
        {"{\"type\": \"Fuse\"}, {\"type\": \"Strip\", \"content\": \" \", \"start\": 0, \"stop\": "
         "1}",
         "Strip"},
    };
    for (size_t i = 0; i < LENGTH(cases); i++) {
        char text[1024];
        struct mxc_err err = {0};
        struct mxc_tokdesc desc;
        struct mxc_tokenizer *t = NULL;
        snprintf(text, sizeof text,
                 "{\"decoder\": {\"type\": \"Sequence\", \"decoders\": [%s]}, \"model\": "
                 "{\"vocab\": {\"a\": 0}, \"merges\": []}}",
                 cases[i][0]);
        assert_int_equal(mxc_tokenizer_json_parse(text, strlen(text), "t", &desc, &err), MXC_OK);
        assert_int_equal(mxc_tokenizer_new(&desc, &t, &err), MXC_E_UNSUPPORTED);
        assert_non_null(strstr(err.message, cases[i][1]));
        assert_null(t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_characters_are_held),
        cmocka_unit_test(test_joined_pieces),
        cmocka_unit_test(test_broken_runs),
        cmocka_unit_test(test_strip),
        cmocka_unit_test(test_decoders_that_do_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
