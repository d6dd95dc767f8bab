/* bench_tokenizer MODEL [TEXT...]: seconds to open a tokeniser (a folder or a .gguf file), to
 * encode each TEXT, and to encode 1 MB of what is hard: one letter, spaces, letters without spaces,
 * random bytes, marks, one line of digits. The best of three runs each; ids are counted and hashed,
 * so that two programs can be seen to do the same. */
#define _GNU_SOURCE
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "format/gguf.h"
#include "format/gguf_tokenizer.h"
#include "format/tokenizer_file.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIZE = 1000000, RUNS = 3 };

static int die(const struct mxc_err *err) {
    (void)fprintf(stderr, "bench_tokenizer: %s\n", err->message);
    return 1;
}

static enum mxc_code open_model(const char *path, struct mxc_tokenizer **t, struct mxc_err *err) {
    struct mxc_tokdesc desc;
    struct mxc_gguf *gguf = NULL;
    const char *file;
    enum mxc_code code;
    if (mxc_gguf_is_path(path)) {
        if (!(code = mxc_gguf_open(path, &gguf, err)))
            code = mxc_gguf_tokenizer_load(gguf, &desc, err);
        mxc_gguf_close(gguf);
    } else {
        code = mxc_tokenizer_load(path, &desc, &file, err);
    }
    return code ? code : mxc_tokenizer_new(&desc, t, err);
}

static enum mxc_code measure(const struct mxc_tokenizer *t, const char *name, const char *text,
                             size_t length, struct mxc_err *err) {
    struct mxc_text_span span = {text, length, true};
    double best = 0;
    size_t count = 0;
    uint64_t hash = 0;
    for (int run = 0; run < RUNS; run++) {
        struct mxc_ids ids = {0};
        uint64_t start = mxc_clock_ns();
        enum mxc_code code =
            mxc_tokenizer_encode(t, &span, 1, (struct mxc_encode_options){0}, &ids, err);
        double s = (double)(mxc_clock_ns() - start) * 1e-9;
        if (code)
            return code;
        if (!run || s < best)
            best = s;
        count = ids.count;
        hash = mxc_hash_bytes(ids.items, ids.count * sizeof *ids.items, 0);
        mxc_ids_fini(&ids);
    }
    printf("%-28s %8zu bytes %8zu ids %7.3f s %6.2f MB/s  %016llx\n", name, length, count, best,
           (double)length * 1e-6 / best, (unsigned long long)hash);
    return MXC_OK;
}

/* Fills SIZE bytes with copies of a unit. */
static size_t repeat(char *text, const char *unit) {
    size_t n = strlen(unit), at = 0;
    for (; at + n <= SIZE; at += n)
        memcpy(text + at, unit, n);
    return at;
}

static enum mxc_code hard_texts(const struct mxc_tokenizer *t, char *text, struct mxc_err *err) {
    static const char *const units[][2] = {{"one letter", "a"},
                                           {"spaces", " "},
                                           {"words, no spaces", "thelampuponthedeskisgreen"},
                                           {"ideographs", "\xE7\x8C\xAB\xE3\x81\xAF\xE6\x9C\xBA"},
                                           {"combining marks", "\xCC\x81"},
                                           {"digits", "7"},
                                           {"line feeds", "\n"},
                                           {"metaspaces", "\xE2\x96\x81"},
                                           {"unknown characters", "\xF0\x9F\x9B\xB8"}};
    enum mxc_code code = MXC_OK;
    for (size_t i = 0; i < sizeof units / sizeof *units && !code; i++)
        code = measure(t, units[i][0], text, repeat(text, units[i][1]), err);
    uint64_t x = 88172645463325252u;
    for (size_t i = 0; i < SIZE; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        text[i] = (char)(x >> 24);
    }
    return code ? code : measure(t, "random bytes", text, SIZE, err);
}

int main(int argc, char **argv) {
    struct mxc_err err = {0};
    struct mxc_tokenizer *t = NULL;
    if (argc < 2) {
        (void)fputs("usage: bench_tokenizer MODEL [TEXT...]\n", stderr);
        return 2;
    }
    uint64_t start = mxc_clock_ns();
    enum mxc_code code = open_model(argv[1], &t, &err);
    if (code)
        return die(&err);
    printf("open %.3f s\n", (double)(mxc_clock_ns() - start) * 1e-9);
    for (int i = 2; i < argc && !code; i++) {
        char *text;
        size_t length;
        if (!(code = mxc_file_read(argv[i], 1u << 30, &text, &length, &err))) {
            const char *base = strrchr(argv[i], '/');
            code = measure(t, base ? base + 1 : argv[i], text, length, &err);
            mxc_mem_free(text);
        }
    }
    char *text = mxc_mem_alloc(SIZE + 1);
    if (!code && text)
        code = hard_texts(t, text, &err);
    mxc_mem_free(text);
    mxc_tokenizer_free(t);
    return code ? die(&err) : 0;
}
