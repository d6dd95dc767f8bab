/* Folders on disk: listing, sums, deletion; and the messages of failed system calls.
 * In: paths the store has made. Out: sorted names without the hidden ones, bytes and newest date of
 * a tree, or the tree gone.
 * Walks go through file descriptors of the folders they are in, so that a link put in the way is
 * never followed; deletion stays on one file system. Depth is bounded, and with it stack and open
 * files. */
#define _GNU_SOURCE
#include "store/tree.h"

#include "base/file.h"
#include "base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_DEPTH = 16, MAX_NAMES = 1 << 20 };

char *mxc_text_printf(const char *fmt, ...) {
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    char *text = n < 0 ? NULL : mxc_mem_alloc((size_t)n + 1);
    if (text)
        (void)vsnprintf(text, (size_t)n + 1, fmt, again);
    va_end(again);
    va_end(args);
    return text;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void mxc_names_fini(struct mxc_names *names) {
    for (size_t i = 0; i < names->n; i++)
        mxc_mem_free(names->items[i]);
    mxc_mem_free(names->items);
    *names = (struct mxc_names){0};
}

enum mxc_code mxc_names_read(const char *dir, struct mxc_names *names, struct mxc_err *err) {
    struct mxc_names out = {0};
    size_t room = 0;
    DIR *stream = opendir(dir);
    if (!stream) {
        if (errno != ENOENT)
            return mxc_file_error(err, dir, "read");
        *names = out;
        return MXC_OK;
    }
    enum mxc_code code = MXC_OK;
    for (struct dirent *d; !code && (d = readdir(stream));) {
        if (d->d_name[0] == '.')
            continue;
        if (out.n == room) {
            char **more = mxc_mem_realloc(out.items, room = room ? room * 2 : 16, sizeof *more);
            if (!more) {
                code = mxc_err_nomem(err);
                break;
            }
            out.items = more;
        }
        if (out.n >= MAX_NAMES)
            code = mxc_err_set(err, MXC_E_LIMIT, "%s: too many files", dir);
        else if (!(out.items[out.n] = mxc_mem_strdup(d->d_name)))
            code = mxc_err_nomem(err);
        else
            out.n++;
    }
    closedir(stream);
    if (code) {
        mxc_names_fini(&out);
        return code;
    }
    if (out.n)
        qsort(out.items, out.n, sizeof *out.items, by_name);
    *names = out;
    return MXC_OK;
}

/* Opens a folder inside at; the stream owns the descriptor. */
static DIR *open_in(int at, const char *name, int flags) {
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | flags);
    if (fd < 0)
        return NULL;
    DIR *stream = fdopendir(fd);
    if (!stream)
        close(fd);
    return stream;
}

static void sum_in(DIR *dir, unsigned depth, struct mxc_tree_sum *sum) {
    for (struct dirent *d; (d = readdir(dir));) {
        struct stat link, st;
        if (!strcmp(d->d_name, ".") || !strcmp(d->d_name, "..") ||
            fstatat(dirfd(dir), d->d_name, &link, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        if (S_ISDIR(link.st_mode) && depth < MAX_DEPTH) {
            DIR *inner = open_in(dirfd(dir), d->d_name, O_NOFOLLOW);
            if (inner) {
                sum_in(inner, depth + 1, sum);
                closedir(inner);
            }
            continue;
        }
        if (fstatat(dirfd(dir), d->d_name, &st, 0) < 0 || !S_ISREG(st.st_mode))
            continue;
        sum->n_files++;
        sum->bytes += (uint64_t)st.st_size;
        if (st.st_mtime > sum->modified)
            sum->modified = st.st_mtime;
    }
}

enum mxc_code mxc_tree_sum(const char *dir, struct mxc_tree_sum *sum, struct mxc_err *err) {
    DIR *stream = open_in(AT_FDCWD, dir, 0);
    if (!stream)
        return mxc_file_error(err, dir, "read");
    struct mxc_tree_sum out = {0};
    sum_in(stream, 0, &out);
    closedir(stream);
    *sum = out;
    return MXC_OK;
}

/* Returns 0 or -1 with errno. */
static int remove_in(int at, const char *name, dev_t device, unsigned depth) {
    struct stat st;
    if (fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : -1;
    if (!S_ISDIR(st.st_mode))
        return unlinkat(at, name, 0);
    if (depth > MAX_DEPTH || (depth && st.st_dev != device)) {
        errno = depth > MAX_DEPTH ? ELOOP : EXDEV;
        return -1;
    }
    DIR *dir = open_in(at, name, O_NOFOLLOW);
    if (!dir)
        return -1;
    int status = 0;
    for (struct dirent *d; !status && (d = readdir(dir));)
        if (strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0)
            status = remove_in(dirfd(dir), d->d_name, st.st_dev, depth + 1);
    closedir(dir);
    return status ? status : unlinkat(at, name, AT_REMOVEDIR);
}

enum mxc_code mxc_tree_remove(const char *path, struct mxc_err *err) {
    return remove_in(AT_FDCWD, path, 0, 0) < 0 ? mxc_file_error(err, path, "delete") : MXC_OK;
}
