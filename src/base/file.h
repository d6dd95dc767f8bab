/* Files: read-only maps, whole small files, atomic writes, paths. */
#ifndef MXC_BASE_FILE_H
#define MXC_BASE_FILE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

/* A read-only map of a regular file. size may be 0 (data is then not NULL but empty). */
struct mxc_file {
    const unsigned char *data;
    size_t size;
    char *path; /* owned, for messages */
};

/* Maps path privately, read-only. Errors name the path. Close with mxc_file_close. */
enum mxc_code mxc_file_open(const char *path, struct mxc_file *file, struct mxc_err *err) MXC_MUST;
void mxc_file_close(struct mxc_file *file);
/* Tells the system that the pages of [offset, offset + bytes) are not needed soon. They stay
 * readable (and are read again from disk). Safe from any thread. */
void mxc_file_drop(const struct mxc_file *file, size_t offset, size_t bytes);

/* Reads a whole file of at most max_bytes into a NUL-terminated buffer owned by the caller. */
enum mxc_code mxc_file_read(const char *path, size_t max_bytes, char **data, size_t *length,
                            struct mxc_err *err) MXC_MUST;
/* Writes a file beside it, syncs, renames: readers see the old file or the whole new one. A path
 * that is there and no regular file (a device, a pipe) is written to, not replaced. */
enum mxc_code mxc_file_write(const char *path, const void *data, size_t length,
                             struct mxc_err *err) MXC_MUST;
/* "path: cannot verb: reason" of errno, for callers that make their own system calls. Returns
 * MXC_E_NOT_FOUND when there is no such file or folder, else MXC_E_IO. */
enum mxc_code mxc_file_error(struct mxc_err *err, const char *path, const char *verb);
bool mxc_file_exists(const char *path); /* regular file or link to one */
bool mxc_dir_exists(const char *path);
/* mkdir -p */
enum mxc_code mxc_dir_make(const char *path, struct mxc_err *err) MXC_MUST;
/* "dir/name", owned by the caller (mxc_mem_free); NULL: out of memory. */
char *mxc_path_join(const char *dir, const char *name);

#endif
