/* Removing what a test of the server wrote: the tree from its leaves up, links not followed. */
#define _GNU_SOURCE
#include "folder.h"

#include <ftw.h>
#include <stdio.h>

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw) {
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

int folder_remove(const char *folder) {
    return nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}
