/* For fuzz targets of code that takes a path: the input in files of a scratch folder that is made
 * once (in TMPDIR, or /tmp) and removed at exit. Include it first, after #define _GNU_SOURCE. */
#ifndef MXC_TESTS_FUZZ_SCRATCH_H
#define MXC_TESTS_FUZZ_SCRATCH_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SCRATCH_MAX = 8 };

static char scratch_dir[256], scratch_file[SCRATCH_MAX][320];

static void scratch_remove(void) {
    for (int i = 0; i < SCRATCH_MAX; i++)
        (void)unlink(scratch_file[i]);
    (void)rmdir(scratch_dir);
}

/* The folder; aborts when it cannot be made. */
static const char *scratch_folder(void) {
    if (!*scratch_dir) {
        const char *base = getenv("TMPDIR");
        int n = snprintf(scratch_dir, sizeof scratch_dir, "%s/mxc-fuzz-XXXXXX",
                         base && *base ? base : "/tmp");
        if (n < 0 || (size_t)n >= sizeof scratch_dir || !mkdtemp(scratch_dir) ||
            atexit(scratch_remove))
            abort();
    }
    return scratch_dir;
}

/* Writes file number i (always the same name within a program); returns its path. */
static const char *scratch_put(int i, const char *name, const uint8_t *data, size_t size) {
    int n = snprintf(scratch_file[i], sizeof *scratch_file, "%s/%s", scratch_folder(), name);
    FILE *f = n > 0 && (size_t)n < sizeof *scratch_file ? fopen(scratch_file[i], "wb") : NULL;
    if (!f || (size && fwrite(data, 1, size, f) != size) || fclose(f))
        abort();
    return scratch_file[i];
}

static inline const char *scratch_write(const char *name, const uint8_t *data, size_t size) {
    return scratch_put(0, name, data, size);
}

/* Cuts an input of several files at lines "%%": part i becomes names[i], an empty part no file. */
#define SCRATCH_CUT "\n%%\n"
static inline void scratch_parts(const char *const *names, int n, const uint8_t *data,
                                 size_t size) {
    for (int i = 0; i < n; i++) {
        const uint8_t *cut =
            i + 1 < n && size ? memmem(data, size, SCRATCH_CUT, sizeof SCRATCH_CUT - 1) : NULL;
        size_t length = cut ? (size_t)(cut - data) : size;
        (void)scratch_put(i, names[i], data, length);
        if (!length)
            (void)unlink(scratch_file[i]);
        size_t skip = cut ? length + sizeof SCRATCH_CUT - 1 : length;
        data += skip;
        size -= skip;
    }
}

#endif
