/* Replays inputs through a fuzz target without libFuzzer: every file given on the command line and
 * every file below a folder given there. No input at all is a failure, so that a lost corpus does
 * not pass for a tested one. */
#define _GNU_SOURCE
#include <ftw.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static unsigned long n_files;

static int replay(const char *path, const struct stat *st, int kind, struct FTW *ftw) {
    (void)ftw;
    if (kind != FTW_F)
        return kind == FTW_DNR || kind == FTW_NS;
    size_t size = (size_t)st->st_size;
    uint8_t *data = malloc(size ? size : 1); /* exact: a read past the end is seen */
    FILE *f = fopen(path, "rb");
    if (!data || !f || fread(data, 1, size, f) != size) {
        fprintf(stderr, "%s: cannot read\n", path);
        return 1;
    }
    (void)fclose(f);
    (void)LLVMFuzzerTestOneInput(data, size);
    free(data);
    n_files++;
    return 0;
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (nftw(argv[i], replay, 16, FTW_PHYS)) {
            fprintf(stderr, "%s: cannot replay\n", argv[i]);
            return 1;
        }
    }
    printf("%lu inputs\n", n_files);
    return n_files ? 0 : 1;
}
