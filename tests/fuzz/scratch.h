/* For fuzz targets of code that takes a path: the input in a file of a scratch folder that is made
 * once and removed at exit. Include it first, after #define _GNU_SOURCE. */
#ifndef MXC_TESTS_FUZZ_SCRATCH_H
#define MXC_TESTS_FUZZ_SCRATCH_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char scratch_dir[64], scratch_file[128];

static void scratch_remove(void) {
    (void)unlink(scratch_file);
    (void)rmdir(scratch_dir);
}

/* The folder; aborts when it cannot be made. */
static const char *scratch_folder(void) {
    if (!*scratch_dir) {
        (void)snprintf(scratch_dir, sizeof scratch_dir, "%s", "/tmp/mxc-fuzz-XXXXXX");
        if (!mkdtemp(scratch_dir) || atexit(scratch_remove))
            abort();
    }
    return scratch_dir;
}

/* Writes the one file of the folder (always the same name within a program); returns its path. */
static const char *scratch_write(const char *name, const uint8_t *data, size_t size) {
    (void)snprintf(scratch_file, sizeof scratch_file, "%s/%s", scratch_folder(), name);
    FILE *f = fopen(scratch_file, "wb");
    if (!f || (size && fwrite(data, 1, size, f) != size) || fclose(f))
        abort();
    return scratch_file;
}

#endif
