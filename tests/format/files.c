/* Scratch files and builders for the format tests. */
#define _GNU_SOURCE
#include "test.h"

#include "files.h"

#include "base/file.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[64];

int files_setup(void **state) {
    (void)state;
    (void)snprintf(folder, sizeof folder, "/tmp/mxc-format-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw) {
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

int files_teardown(void **state) {
    (void)state;
    return nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

const char *files_path(const char *name) {
    static char paths[8][300];
    static unsigned turn;
    char *path = paths[turn++ % 8];
    int n = snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    assert_true(n > 0 && (size_t)n < sizeof paths[0]);
    return path;
}

const char *files_write(const char *name, const void *data, size_t length) {
    const char *path = files_path(name);
    char *dir = strdup(path);
    struct mxc_err err;
    assert_non_null(dir);
    *strrchr(dir, '/') = 0;
    assert_int_equal(mxc_dir_make(dir, &err), MXC_OK);
    free(dir);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_true(!length || fwrite(data, 1, length, f) == length);
    assert_int_equal(fclose(f), 0);
    return path;
}

const char *files_text(const char *name, const char *text) {
    return files_write(name, text, strlen(text));
}

void files_remove(const char *name) {
    assert_int_equal(unlink(files_path(name)), 0);
}

void files_uint(struct mxc_buf *out, uint64_t value, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        assert_true(mxc_buf_putc(out, (char)(unsigned char)(value >> 8 * i)));
}

void files_string(struct mxc_buf *out, const char *text) {
    files_uint(out, strlen(text), 8);
    assert_true(mxc_buf_puts(out, text));
}

void files_pad(struct mxc_buf *out, size_t alignment) {
    while (out->length % alignment)
        assert_true(mxc_buf_putc(out, 0));
}

void files_safetensors(struct mxc_buf *out, const char *header, size_t n_data) {
    files_string(out, header);
    for (size_t i = 0; i < n_data; i++)
        assert_true(mxc_buf_putc(out, (char)(unsigned char)i));
}

void files_expect(const struct mxc_err *err, const char *words) {
    char copy[256], *rest = NULL;
    assert_true(strlen(words) < sizeof copy);
    memcpy(copy, words, strlen(words) + 1);
    assert_null(strchr(err->message, '\n'));
    for (char *w = strtok_r(copy, " ", &rest); w; w = strtok_r(NULL, " ", &rest)) {
        if (!strstr(err->message, w))
            fail_msg("\"%s\" is not in: %s", w, err->message);
    }
}
