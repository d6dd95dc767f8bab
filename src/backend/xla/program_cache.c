/* Program cache: reading, writing, bounding the folder. See program_cache.h.
 * A file <key>.xlaprog is: 16 bytes of mark, 32 of key, 32 of the content's digest, 8 of its
 * length (little-endian), content. A file <digest of path, size, time, inode>.plugin holds the
 * hexadecimal digest of a plugin. Deleting is safe at any time, also while another process has a
 * file mapped. Invariant: nothing is handed out whose digest was not verified in this call.
 * Failures to read, touch or delete are misses, not errors: the program is then compiled. */
#define _GNU_SOURCE
#ifdef MLXCEL_XLA_DEVICE_RUNTIME

#include "backend/xla/program_cache.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

static const char MARK[16] = "mlxcel-program1";
#define ENDING        ".xlaprog"
#define PLUGIN_ENDING ".plugin"
#define TMP_ENDING    ".tmp"

enum {
    KEY_AT = 16,
    DIGEST_AT = KEY_AT + MXC_XLA_DIGEST_BYTES,
    LENGTH_AT = DIGEST_AT + MXC_XLA_DIGEST_BYTES,
    HEAD_BYTES = LENGTH_AT + 8,
    STALE_S = 3600 /* a temporary file older than this was left by a process that ended */
};

struct mxc_xla_cache {
    char *dir;
    uint64_t max_bytes;
};

void mxc_xla_cache_hex(const uint8_t digest[MXC_XLA_DIGEST_BYTES],
                       char hex[2 * MXC_XLA_DIGEST_BYTES + 1]) {
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < MXC_XLA_DIGEST_BYTES; i++) {
        hex[2 * i] = digits[digest[i] >> 4];
        hex[2 * i + 1] = digits[digest[i] & 15];
    }
    hex[2 * MXC_XLA_DIGEST_BYTES] = 0;
}

enum mxc_code mxc_xla_cache_open(const char *dir, uint64_t max_bytes, struct mxc_xla_cache **cache,
                                 struct mxc_err *err) {
    enum mxc_code code = mxc_dir_make(dir, err);
    if (code)
        return code;
    struct mxc_xla_cache *c = mxc_mem_zalloc(1, sizeof *c);
    char *copy = mxc_mem_strdup(dir);
    if (!c || !copy) {
        mxc_mem_free(c);
        mxc_mem_free(copy);
        return mxc_err_nomem(err);
    }
    c->dir = copy;
    c->max_bytes = max_bytes;
    *cache = c;
    return MXC_OK;
}

void mxc_xla_cache_close(struct mxc_xla_cache *cache) {
    if (!cache)
        return;
    mxc_mem_free(cache->dir);
    mxc_mem_free(cache);
}

/* <dir>/<hex of digest><ending>; NULL: out of memory. */
static char *path_of(const struct mxc_xla_cache *cache, const uint8_t digest[MXC_XLA_DIGEST_BYTES],
                     const char *ending) {
    char hex[2 * MXC_XLA_DIGEST_BYTES + 1], name[sizeof hex + 16];
    mxc_xla_cache_hex(digest, hex);
    (void)snprintf(name, sizeof name, "%s%s", hex, ending);
    return mxc_path_join(cache->dir, name);
}

static void digest_of(const void *data, size_t size, uint8_t digest[MXC_XLA_DIGEST_BYTES]) {
    struct mxc_blake2b state;
    mxc_blake2b_init(&state);
    mxc_blake2b_add(&state, data, size);
    mxc_blake2b_end(&state, digest);
}

static bool whole(const struct mxc_file *file, const uint8_t key[MXC_XLA_DIGEST_BYTES]) {
    if (file->size < HEAD_BYTES || memcmp(file->data, MARK, sizeof MARK) != 0 ||
        memcmp(file->data + KEY_AT, key, MXC_XLA_DIGEST_BYTES) != 0)
        return false;
    uint64_t length = 0;
    for (int i = 0; i < 8; i++)
        length |= (uint64_t)file->data[LENGTH_AT + i] << (8 * i);
    if (length != file->size - HEAD_BYTES)
        return false;
    uint8_t digest[MXC_XLA_DIGEST_BYTES];
    digest_of(file->data + HEAD_BYTES, file->size - HEAD_BYTES, digest);
    return memcmp(digest, file->data + DIGEST_AT, sizeof digest) == 0;
}

bool mxc_xla_cache_get(struct mxc_xla_cache *cache, const uint8_t key[MXC_XLA_DIGEST_BYTES],
                       struct mxc_xla_cached *cached) {
    char *path = path_of(cache, key, ENDING);
    struct mxc_file file;
    bool found = false;
    if (!path || mxc_file_open(path, &file, NULL))
        goto out;
    if (!whole(&file, key)) {
        mxc_file_close(&file);
        (void)unlink(path);
        goto out;
    }
    (void)utimensat(AT_FDCWD, path, NULL, 0);
    *cached = (struct mxc_xla_cached){
        .file = file, .content = file.data + HEAD_BYTES, .size = file.size - HEAD_BYTES};
    found = true;
out:
    mxc_mem_free(path);
    return found;
}

void mxc_xla_cache_release(struct mxc_xla_cached *cached) {
    mxc_file_close(&cached->file);
}

void mxc_xla_cache_drop(struct mxc_xla_cache *cache, const uint8_t key[MXC_XLA_DIGEST_BYTES]) {
    char *path = path_of(cache, key, ENDING);
    if (path)
        (void)unlink(path);
    mxc_mem_free(path);
}

/* ---- the bound ---- */

struct entry {
    char name[2 * MXC_XLA_DIGEST_BYTES + sizeof ENDING];
    struct timespec used;
    uint64_t bytes;
};

static int older_first(const void *a, const void *b) {
    const struct entry *x = a, *y = b;
    if (x->used.tv_sec != y->used.tv_sec)
        return x->used.tv_sec < y->used.tv_sec ? -1 : 1;
    if (x->used.tv_nsec != y->used.tv_nsec)
        return x->used.tv_nsec < y->used.tv_nsec ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Programs of the folder; temporary files that nobody will finish are deleted on the way. */
static bool list(const struct mxc_xla_cache *cache, struct entry **entries, size_t *n) {
    DIR *dir = opendir(cache->dir);
    if (!dir)
        return false;
    size_t room = 0;
    bool ok = true;
    for (const struct dirent *d; ok && (d = readdir(dir));) {
        struct mxc_str name = mxc_str_of(d->d_name);
        struct stat st;
        bool program = mxc_str_ends(name, ENDING), tmp = mxc_str_ends(name, TMP_ENDING);
        if ((!program && !tmp) || fstatat(dirfd(dir), d->d_name, &st, AT_SYMLINK_NOFOLLOW) ||
            !S_ISREG(st.st_mode))
            continue;
        if (tmp) {
            if (time(NULL) - st.st_mtime > STALE_S)
                (void)unlinkat(dirfd(dir), d->d_name, 0);
            continue;
        }
        if (name.length != 2 * MXC_XLA_DIGEST_BYTES + sizeof ENDING - 1)
            continue; /* not of our making */
        if (*n == room) {
            size_t more = room ? 2 * room : 64;
            struct entry *grown = mxc_mem_realloc(*entries, more, sizeof *grown);
            if (!(ok = grown != NULL))
                break;
            *entries = grown;
            room = more;
        }
        struct entry *e = &(*entries)[(*n)++];
        *e = (struct entry){.used = st.st_mtim, .bytes = (uint64_t)st.st_size};
        memcpy(e->name, d->d_name, name.length + 1);
    }
    closedir(dir);
    return ok;
}

/* The newest stays: it is the one just written. */
static void prune(const struct mxc_xla_cache *cache) {
    struct entry *entries = NULL;
    size_t n = 0;
    uint64_t total = 0;
    if (!list(cache, &entries, &n))
        goto out;
    for (size_t i = 0; i < n; i++)
        total += entries[i].bytes;
    if (total <= cache->max_bytes)
        goto out;
    qsort(entries, n, sizeof *entries, older_first);
    for (size_t i = 0; i + 1 < n && total > cache->max_bytes; i++) {
        char *path = mxc_path_join(cache->dir, entries[i].name);
        if (path && !unlink(path))
            total -= entries[i].bytes;
        mxc_mem_free(path);
    }
out:
    mxc_mem_free(entries);
}

enum mxc_code mxc_xla_cache_put(struct mxc_xla_cache *cache,
                                const uint8_t key[MXC_XLA_DIGEST_BYTES], const void *content,
                                size_t size, struct mxc_err *err) {
    size_t bytes;
    if (!mxc_size_add(size, HEAD_BYTES, &bytes) || bytes > cache->max_bytes)
        return MXC_OK;
    enum mxc_code code = MXC_OK;
    unsigned char *file = mxc_mem_alloc(bytes);
    char *path = path_of(cache, key, ENDING);
    if (!file || !path) {
        code = mxc_err_nomem(err);
        goto out;
    }
    memcpy(file, MARK, sizeof MARK);
    memcpy(file + KEY_AT, key, MXC_XLA_DIGEST_BYTES);
    digest_of(content, size, file + DIGEST_AT);
    for (int i = 0; i < 8; i++)
        file[LENGTH_AT + i] = (unsigned char)((uint64_t)size >> (8 * i));
    memcpy(file + HEAD_BYTES, content, size);
    code = mxc_file_write(path, file, bytes, err);
    if (!code)
        prune(cache);
out:
    mxc_mem_free(path);
    mxc_mem_free(file);
    return code;
}

/* ---- digests of plugins ---- */

enum mxc_code mxc_xla_cache_file_digest(struct mxc_xla_cache *cache, const char *path,
                                        char hex[2 * MXC_XLA_DIGEST_BYTES + 1],
                                        struct mxc_err *err) {
    struct stat st;
    if (stat(path, &st) < 0)
        return mxc_file_error(err, path, "open");
    char *memo = NULL, *known = NULL;
    size_t length;
    uint8_t digest[MXC_XLA_DIGEST_BYTES];
    if (cache) {
        const uint64_t facts[] = {(uint64_t)st.st_size, (uint64_t)st.st_mtim.tv_sec,
                                  (uint64_t)st.st_mtim.tv_nsec, (uint64_t)st.st_ino,
                                  (uint64_t)st.st_dev};
        struct mxc_blake2b state;
        mxc_blake2b_init(&state);
        mxc_blake2b_add(&state, facts, sizeof facts);
        mxc_blake2b_add(&state, path, strlen(path));
        mxc_blake2b_end(&state, digest);
        if (!(memo = path_of(cache, digest, PLUGIN_ENDING)))
            return mxc_err_nomem(err);
        if (!mxc_file_read(memo, 2 * MXC_XLA_DIGEST_BYTES, &known, &length, NULL)) {
            bool good = length == 2 * MXC_XLA_DIGEST_BYTES;
            for (size_t i = 0; good && i < length; i++)
                good = mxc_hex_digit(known[i]) >= 0;
            if (good)
                memcpy(hex, known, length + 1);
            mxc_mem_free(known);
            if (good) {
                mxc_mem_free(memo);
                return MXC_OK;
            }
        }
    }
    struct mxc_file file;
    enum mxc_code code = mxc_file_open(path, &file, err);
    if (code)
        goto out;
    digest_of(file.data, file.size, digest);
    mxc_file_close(&file);
    mxc_xla_cache_hex(digest, hex);
    if (memo && mxc_file_write(memo, hex, 2 * MXC_XLA_DIGEST_BYTES, NULL))
        mxc_log(MXC_LOG_DEBUG, "XLA: %s cannot be written", memo);
out:
    mxc_mem_free(memo);
    return code;
}

/* ---- the processor ---- */

void mxc_xla_cache_add_cpu_of(struct mxc_blake2b *state, const char *cpuinfo) {
    struct utsname name;
    if (!uname(&name))
        mxc_blake2b_add(state, name.machine, strlen(name.machine));
    /* The first processor's model and flags; every line up to the first empty one but those that
     * change by the minute. */
    FILE *f = fopen(cpuinfo, "re");
    char line[8192];
    static const char *const facts[] = {"vendor_id", "cpu family",      "model",    "stepping",
                                        "flags",     "CPU implementer", "CPU part", "Features"};
    while (f && fgets(line, sizeof line, f) && line[0] != '\n')
        for (size_t i = 0; i < sizeof facts / sizeof *facts; i++)
            if (!strncmp(line, facts[i], strlen(facts[i])))
                mxc_blake2b_add(state, line, strlen(line));
    if (f)
        (void)fclose(f);
}

void mxc_xla_cache_add_cpu(struct mxc_blake2b *state) {
    mxc_xla_cache_add_cpu_of(state, "/proc/cpuinfo");
}

#endif
