/* tok_probe MODEL: answers questions about a tokeniser, for tools/oracle_tok.py.
 * In: MODEL, a folder or a .gguf file; lines of JSON on standard input: {"text", "add", "parse"} or
 * {"ids", "skip"} or {"ids", "pieces": true}. Out: a line of JSON for each: ids, text, or the texts
 * that a streamed decode gave id by id (what it still holds then is left out).
 * Only what the public programs do not offer: special tokens left out, single pieces. */
#define _GNU_SOURCE
#include "base/json.h"
#include "format/gguf.h"
#include "format/gguf_tokenizer.h"
#include "format/tokenizer_file.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail(const struct mxc_err *err) {
    (void)fprintf(stderr, "error: %s\n", err->message);
    exit(1);
}

static struct mxc_tokenizer *open_model(const char *path) {
    struct mxc_tokdesc desc;
    struct mxc_tokenizer *t = NULL;
    struct mxc_gguf *gguf = NULL;
    const char *file;
    struct mxc_err err = {0};
    enum mxc_code code;
    if (mxc_gguf_is_path(path)) {
        if (!(code = mxc_gguf_open(path, &gguf, &err)))
            code = mxc_gguf_tokenizer_load(gguf, &desc, &err);
    } else {
        code = mxc_tokenizer_load(path, &desc, &file, &err);
    }
    if (code || mxc_tokenizer_new(&desc, &t, &err))
        fail(&err);
    mxc_gguf_close(gguf);
    return t;
}

static json_t *encode(const struct mxc_tokenizer *t, const json_t *q) {
    const json_t *text = json_object_get(q, "text");
    struct mxc_text_span span = {json_string_value(text), json_string_length(text), true};
    struct mxc_encode_options options = {json_is_true(json_object_get(q, "add")),
                                         json_is_true(json_object_get(q, "parse"))};
    struct mxc_ids ids = {0};
    struct mxc_err err = {0};
    if (mxc_tokenizer_encode(t, &span, 1, options, &ids, &err))
        fail(&err);
    json_t *out = json_array();
    for (size_t i = 0; i < ids.count; i++)
        (void)json_array_append_new(out, json_integer(ids.items[i]));
    mxc_ids_fini(&ids);
    return out;
}

static json_t *decode(const struct mxc_tokenizer *t, const json_t *q) {
    bool pieces = json_is_true(json_object_get(q, "pieces"));
    bool skip = json_is_true(json_object_get(q, "skip"));
    const json_t *ids = json_object_get(q, "ids"), *id;
    struct mxc_decode_stream s;
    struct mxc_err err = {0};
    struct mxc_buf text;
    json_t *out = json_array();
    size_t i;
    mxc_buf_init(&text, 64u << 20);
    mxc_decode_stream_init(&s, t, skip);
    s.whole_runs = !pieces;
    json_array_foreach(ids, i, id) {
        if (mxc_decode_stream_push(&s, (uint32_t)json_integer_value(id), &text, &err))
            fail(&err);
        if (pieces) {
            (void)json_array_append_new(out, json_stringn(mxc_buf_text(&text), text.length));
            mxc_buf_clear(&text);
        }
    }
    if (!pieces) {
        if (mxc_decode_stream_flush(&s, &text, &err))
            fail(&err);
        json_decref(out);
        out = json_stringn(mxc_buf_text(&text), text.length);
    }
    mxc_buf_fini(&text);
    mxc_decode_stream_fini(&s);
    return out;
}

int main(int argc, char **argv) {
    char *line = NULL;
    size_t capacity = 0;
    ssize_t n;
    if (argc != 2) {
        (void)fputs("usage: tok_probe MODEL\n", stderr);
        return 2;
    }
    struct mxc_tokenizer *t = open_model(argv[1]);
    while ((n = getline(&line, &capacity, stdin)) > 0) {
        json_t *q = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, NULL);
        json_t *answer = json_object_get(q, "text") ? encode(t, q) : decode(t, q);
        (void)json_dumpf(answer, stdout, JSON_COMPACT | JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
        (void)putchar('\n');
        json_decref(answer);
        json_decref(q);
    }
    free(line);
    mxc_tokenizer_free(t);
    return 0;
}
