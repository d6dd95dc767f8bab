/* Files: read-only maps of regular files, whole reads under a bound, writes that replace a file by
 * rename, directories and paths. What comes in is a path of a user or of a checkpoint, so a pipe or
 * a device in the place of a file is refused, and every message names path and reason. A map is
 * private and read-only; its pages may be dropped at any time and are read again when needed. */
#define _GNU_SOURCE
#include "base/file.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum mxc_code mxc_file_error(struct mxc_err *err, const char *path, const char *verb) {
    enum mxc_code code = errno == ENOENT || errno == ENOTDIR ? MXC_E_NOT_FOUND : MXC_E_IO;
    char text[128];
    return mxc_err_set(err, code, "%s: cannot %s: %s", path, verb,
                       strerror_r(errno, text, sizeof text));
}

static enum mxc_code open_regular(const char *path, int *fd, size_t *size, struct mxc_err *err) {
    int f = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (f < 0)
        return mxc_file_error(err, path, "open");
    struct stat st;
    if (fstat(f, &st) < 0) {
        enum mxc_code code = mxc_file_error(err, path, "stat");
        close(f);
        return code;
    }
    if (!S_ISREG(st.st_mode)) {
        close(f);
        return mxc_err_set(err, MXC_E_IO, "%s: not a regular file", path);
    }
    *fd = f;
    *size = (size_t)st.st_size;
    return MXC_OK;
}

enum mxc_code mxc_file_open(const char *path, struct mxc_file *file, struct mxc_err *err) {
    int fd;
    size_t size;
    enum mxc_code code = open_regular(path, &fd, &size, err);
    if (code)
        return code;
    void *data = "";
    char *name = mxc_mem_strdup(path);
    if (!name) {
        code = mxc_err_nomem(err);
    } else if (size) {
        data = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED)
            code = mxc_file_error(err, path, "map");
    }
    close(fd);
    if (code) {
        mxc_mem_free(name);
        return code;
    }
    *file = (struct mxc_file){.data = data, .size = size, .path = name};
    return MXC_OK;
}

void mxc_file_close(struct mxc_file *file) {
    if (file->size)
        munmap((void *)(uintptr_t)file->data, file->size);
    mxc_mem_free(file->path);
    *file = (struct mxc_file){0};
}

void mxc_file_drop(const struct mxc_file *file, size_t offset, size_t bytes) {
    const size_t page = 4096;
    size_t first = (offset + page - 1) / page * page, last = (offset + bytes) / page * page;
    if (offset + bytes == file->size)
        last = (file->size + page - 1) / page * page;
    if (last > first)
        (void)madvise((void *)(uintptr_t)(file->data + first), last - first, MADV_DONTNEED);
}

enum mxc_code mxc_file_read(const char *path, size_t max_bytes, char **data, size_t *length,
                            struct mxc_err *err) {
    int fd;
    size_t size, used = 0;
    enum mxc_code code = open_regular(path, &fd, &size, err);
    if (code)
        return code;
    char *text = NULL;
    if (size > max_bytes) {
        code = mxc_err_set(err, MXC_E_LIMIT, "%s: %zu bytes, more than the limit of %zu", path,
                           size, max_bytes);
        goto out;
    }
    if (!(text = mxc_mem_alloc(size + 1))) {
        code = mxc_err_nomem(err);
        goto out;
    }
    while (used < size) {
        ssize_t n = read(fd, text + used, size - used);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            code = mxc_file_error(err, path, "read");
            goto out;
        }
        if (!n)
            break;
        used += (size_t)n;
    }
    text[used] = 0;
    *data = text;
    *length = used;
    text = NULL;
out:
    mxc_mem_free(text);
    close(fd);
    return code;
}

enum mxc_code mxc_file_write(const char *path, const void *data, size_t length,
                             struct mxc_err *err) {
    struct stat st;
    bool in_place = !stat(path, &st) && !S_ISREG(st.st_mode);
    size_t n = strlen(path) + 32;
    char *tmp = mxc_mem_alloc(n);
    if (!tmp)
        return mxc_err_nomem(err);
    /* a name of our own that must not exist: two writers do not meet, no link is followed */
    int flags = in_place ? O_WRONLY | O_CLOEXEC : O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
    (void)snprintf(tmp, n, in_place ? "%s" : "%s.%ld.tmp", path, (long)getpid());
    enum mxc_code code = MXC_OK;
    if (!in_place)
        (void)unlink(tmp); /* of an earlier process with our number */
    int fd = open(tmp, flags, 0644);
    if (fd < 0) {
        code = mxc_file_error(err, tmp, "create");
        goto out;
    }
    for (size_t used = 0; !code && used < length;) {
        ssize_t w = write(fd, (const char *)data + used, length - used);
        if (w < 0 && errno != EINTR)
            code = mxc_file_error(err, tmp, "write");
        else if (w > 0)
            used += (size_t)w;
    }
    if (!code && !in_place && fsync(fd) < 0)
        code = mxc_file_error(err, tmp, "sync");
    if (close(fd) < 0 && !code)
        code = mxc_file_error(err, tmp, "close");
    if (!code && !in_place && rename(tmp, path) < 0)
        code = mxc_file_error(err, path, "rename");
    if (code && !in_place)
        (void)unlink(tmp);
out:
    mxc_mem_free(tmp);
    return code;
}

bool mxc_file_exists(const char *path) {
    struct stat st;
    return !stat(path, &st) && S_ISREG(st.st_mode);
}

bool mxc_dir_exists(const char *path) {
    struct stat st;
    return !stat(path, &st) && S_ISDIR(st.st_mode);
}

enum mxc_code mxc_dir_make(const char *path, struct mxc_err *err) {
    char *copy = mxc_mem_strdup(path);
    if (!copy)
        return mxc_err_nomem(err);
    enum mxc_code code = MXC_OK;
    for (char *p = copy + 1; !code; p++) {
        if (*p && *p != '/')
            continue;
        char c = *p;
        *p = 0;
        if (mkdir(copy, 0755) < 0 && errno != EEXIST)
            code = mxc_file_error(err, copy, "create directory");
        *p = c;
        if (!c)
            break;
    }
    if (!code && !mxc_dir_exists(path))
        code = mxc_err_set(err, MXC_E_IO, "%s: exists and is not a directory", path);
    mxc_mem_free(copy);
    return code;
}

char *mxc_path_join(const char *dir, const char *name) {
    size_t a = strlen(dir), b = strlen(name);
    bool slash = a && dir[a - 1] != '/';
    char *path = mxc_mem_alloc(a + b + 2);
    if (path)
        (void)snprintf(path, a + b + 2, "%s%s%s", dir, slash ? "/" : "", name);
    return path;
}
