/* The SQLite file of the prompt cache. Every statement is prepared when it is used: a few a second
 * at most. A power failure may lose rows or damage the file (it is not synced at each change); the
 * records carry their own checksums, so that costs cache entries and no more. */
#define _GNU_SOURCE
#include "server/prompt_index.h"

#include "base/file.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BUSY_MS = 1000, VERSION = 1, PIECE = 1 << 20 };

struct mxc_prompt_index {
    sqlite3 *db;
    char *path;
};

static bool is_damage(int rc) {
    return (rc & 0xFF) == SQLITE_CORRUPT || (rc & 0xFF) == SQLITE_NOTADB;
}

static enum mxc_code fail(const struct mxc_prompt_index *x, int rc, struct mxc_err *err) {
    if ((rc & 0xFF) == SQLITE_NOMEM)
        return mxc_err_nomem(err);
    return mxc_err_set(err, MXC_E_IO, "%s: %s", x->path,
                       x->db ? sqlite3_errmsg(x->db) : sqlite3_errstr(rc));
}

static int check(sqlite3 *db) {
    sqlite3_stmt *st = NULL;
    int64_t version = -1;
    int rc = sqlite3_prepare_v2(db, "PRAGMA user_version", -1, &st, NULL);
    if (rc == SQLITE_OK && (rc = sqlite3_step(st)) == SQLITE_ROW)
        version = sqlite3_column_int64(st, 0);
    (void)sqlite3_finalize(st);
    if (rc != SQLITE_ROW)
        return rc;
    if (version != 0 && version != VERSION)
        return SQLITE_NOTADB;
    rc = sqlite3_prepare_v2(db, "PRAGMA quick_check(1)", -1, &st, NULL);
    bool fine = rc == SQLITE_OK && sqlite3_step(st) == SQLITE_ROW &&
                !strcmp((const char *)sqlite3_column_text(st, 0), "ok");
    (void)sqlite3_finalize(st);
    return rc != SQLITE_OK ? rc : fine ? SQLITE_OK : SQLITE_CORRUPT;
}

static int open_file(struct mxc_prompt_index *x) {
    int rc = sqlite3_open_v2(
        x->path, &x->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_busy_timeout(x->db, BUSY_MS);
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(x->db,
                          "PRAGMA trusted_schema = OFF; PRAGMA journal_mode = WAL;"
                          "PRAGMA synchronous = OFF; PRAGMA journal_size_limit = 8388608;",
                          NULL, NULL, NULL);
    if (rc == SQLITE_OK)
        rc = check(x->db);
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(x->db,
                          "CREATE TABLE IF NOT EXISTS records(key BLOB PRIMARY KEY,"
                          " parent BLOB NOT NULL, bytes INTEGER NOT NULL, used INTEGER NOT NULL)"
                          " WITHOUT ROWID;"
                          "CREATE TABLE IF NOT EXISTS weights(path TEXT PRIMARY KEY,"
                          " stamp BLOB NOT NULL, digest BLOB NOT NULL);"
                          "PRAGMA user_version = 1;",
                          NULL, NULL, NULL);
    return rc;
}

/* Removes the file and what SQLite keeps beside it. */
static void remove_files(const struct mxc_prompt_index *x) {
    static const char *const tails[] = {"", "-wal", "-shm"};
    char path[4096];
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        (void)snprintf(path, sizeof path, "%s%s", x->path, tails[i]);
        (void)unlink(path);
    }
}

enum mxc_code mxc_prompt_index_open(const char *path, struct mxc_prompt_index **index,
                                    bool *renewed, struct mxc_err *err) {
    struct mxc_prompt_index *x = mxc_mem_zalloc(1, sizeof *x);
    if (!x)
        return mxc_err_nomem(err);
    *renewed = false;
    enum mxc_code code = MXC_OK;
    if (!(x->path = mxc_mem_strdup(path))) {
        code = mxc_err_nomem(err);
        goto out;
    }
    /* made here, so that others cannot read it; SQLite gives its helpers the same mode */
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY, 0600);
    if (fd < 0) {
        code = mxc_file_error(err, path, "open");
        goto out;
    }
    (void)close(fd);
    int rc = open_file(x);
    if (is_damage(rc)) {
        (void)sqlite3_close_v2(x->db);
        x->db = NULL;
        remove_files(x);
        *renewed = true;
        rc = open_file(x);
    }
    if (rc != SQLITE_OK) {
        code = fail(x, rc, err);
        goto out;
    }
    *index = x;
    x = NULL;
out:
    mxc_prompt_index_close(x);
    return code;
}

void mxc_prompt_index_close(struct mxc_prompt_index *x) {
    if (!x)
        return;
    (void)sqlite3_close_v2(x->db);
    mxc_mem_free(x->path);
    mxc_mem_free(x);
}

enum mxc_code mxc_prompt_index_each(struct mxc_prompt_index *x,
                                    bool (*each)(void *user, const struct mxc_prompt_row *row),
                                    void *user, struct mxc_err *err) {
    sqlite3_stmt *st = NULL;
    int rc = sqlite3_prepare_v2(x->db, "SELECT key, parent, bytes, used FROM records ORDER BY used",
                                -1, &st, NULL);
    while (rc == SQLITE_OK && (rc = sqlite3_step(st)) == SQLITE_ROW) {
        struct mxc_prompt_row row;
        rc = SQLITE_OK;
        if (sqlite3_column_bytes(st, 0) != sizeof row.key ||
            sqlite3_column_bytes(st, 1) != sizeof row.parent || sqlite3_column_int64(st, 2) < 0)
            continue;
        memcpy(row.key, sqlite3_column_blob(st, 0), sizeof row.key);
        memcpy(row.parent, sqlite3_column_blob(st, 1), sizeof row.parent);
        row.bytes = (uint64_t)sqlite3_column_int64(st, 2);
        row.used = (uint64_t)sqlite3_column_int64(st, 3);
        if (!each(user, &row))
            break;
    }
    (void)sqlite3_finalize(st);
    return rc == SQLITE_DONE || rc == SQLITE_OK ? MXC_OK : fail(x, rc, err);
}

static enum mxc_code finish(struct mxc_prompt_index *x, sqlite3_stmt *st, int rc,
                            struct mxc_err *err) {
    if (rc == SQLITE_OK)
        rc = sqlite3_step(st);
    enum mxc_code code = rc == SQLITE_DONE || rc == SQLITE_ROW ? MXC_OK : fail(x, rc, err);
    (void)sqlite3_finalize(st);
    return code;
}

enum mxc_code mxc_prompt_index_put(struct mxc_prompt_index *x, const struct mxc_prompt_row *row,
                                   struct mxc_err *err) {
    sqlite3_stmt *st = NULL;
    int rc = sqlite3_prepare_v2(x->db, "INSERT OR REPLACE INTO records VALUES(?, ?, ?, ?)", -1, &st,
                                NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_blob(st, 1, row->key, sizeof row->key, SQLITE_STATIC);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_blob(st, 2, row->parent, sizeof row->parent, SQLITE_STATIC);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_int64(st, 3, (sqlite3_int64)row->bytes);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_int64(st, 4, (sqlite3_int64)row->used);
    return finish(x, st, rc, err);
}

enum mxc_code mxc_prompt_index_remove(struct mxc_prompt_index *x,
                                      const uint8_t key[MXC_BLAKE2B_BYTES], struct mxc_err *err) {
    sqlite3_stmt *st = NULL;
    int rc = sqlite3_prepare_v2(x->db, "DELETE FROM records WHERE key = ?", -1, &st, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_blob(st, 1, key, MXC_BLAKE2B_BYTES, SQLITE_STATIC);
    return finish(x, st, rc, err);
}

enum mxc_code mxc_prompt_index_begin(struct mxc_prompt_index *x, struct mxc_err *err) {
    int rc = sqlite3_exec(x->db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
    return rc == SQLITE_OK ? MXC_OK : fail(x, rc, err);
}

enum mxc_code mxc_prompt_index_end(struct mxc_prompt_index *x, struct mxc_err *err) {
    int rc = sqlite3_exec(x->db, "COMMIT", NULL, NULL, NULL);
    if (rc == SQLITE_OK)
        return MXC_OK;
    enum mxc_code code = fail(x, rc, err);
    (void)sqlite3_exec(x->db, "ROLLBACK", NULL, NULL, NULL);
    return code;
}

/* ---- digests of files */

struct stamp {
    uint64_t device, inode, bytes;
    int64_t changed_s, changed_ns, made_s, made_ns;
};

static struct stamp stamp_of(const struct stat *st) {
    return (struct stamp){(uint64_t)st->st_dev,        (uint64_t)st->st_ino, (uint64_t)st->st_size,
                          st->st_mtim.tv_sec,          st->st_mtim.tv_nsec,  st->st_ctim.tv_sec,
                          (int64_t)st->st_ctim.tv_nsec};
}

static enum mxc_code read_all(int fd, const char *path, const atomic_bool *stop,
                              uint8_t digest[MXC_BLAKE2B_BYTES], struct mxc_err *err) {
    struct mxc_blake2b hash;
    uint8_t *piece = mxc_mem_alloc(PIECE);
    ssize_t n = 0;
    if (!piece)
        return mxc_err_nomem(err);
    mxc_blake2b_init(&hash);
    bool stopped = false;
    do {
        n = read(fd, piece, PIECE);
        if (n > 0)
            mxc_blake2b_add(&hash, piece, (size_t)n);
        stopped = stop && atomic_load(stop);
    } while (!stopped && (n > 0 || (n < 0 && errno == EINTR)));
    mxc_mem_free(piece);
    if (stopped)
        return mxc_err_set(err, MXC_E_CANCELLED, "%s was not read to its end", path);
    if (n < 0)
        return mxc_file_error(err, path, "read");
    mxc_blake2b_end(&hash, digest);
    return MXC_OK;
}

static bool remembered(struct mxc_prompt_index *x, const char *path, const struct stamp *stamp,
                       uint8_t digest[MXC_BLAKE2B_BYTES]) {
    sqlite3_stmt *st = NULL;
    int rc = sqlite3_prepare_v2(x->db, "SELECT stamp, digest FROM weights WHERE path = ?", -1, &st,
                                NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_text(st, 1, path, -1, SQLITE_STATIC);
    bool found = rc == SQLITE_OK && sqlite3_step(st) == SQLITE_ROW &&
                 sqlite3_column_bytes(st, 0) == sizeof *stamp &&
                 sqlite3_column_bytes(st, 1) == MXC_BLAKE2B_BYTES &&
                 !memcmp(sqlite3_column_blob(st, 0), stamp, sizeof *stamp);
    if (found)
        memcpy(digest, sqlite3_column_blob(st, 1), MXC_BLAKE2B_BYTES);
    (void)sqlite3_finalize(st);
    return found;
}

static void remember(struct mxc_prompt_index *x, const char *path, const struct stamp *stamp,
                     const uint8_t digest[MXC_BLAKE2B_BYTES]) {
    sqlite3_stmt *st = NULL;
    struct mxc_err err;
    int rc =
        sqlite3_prepare_v2(x->db, "INSERT OR REPLACE INTO weights VALUES(?, ?, ?)", -1, &st, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_text(st, 1, path, -1, SQLITE_STATIC);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_blob(st, 2, stamp, sizeof *stamp, SQLITE_STATIC);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_blob(st, 3, digest, MXC_BLAKE2B_BYTES, SQLITE_STATIC);
    enum mxc_code code = finish(x, st, rc, &err);
    (void)code; /* then it is read again next time */
}

enum mxc_code mxc_prompt_index_digest(struct mxc_prompt_index *x, const char *path,
                                      const atomic_bool *stop, uint8_t digest[MXC_BLAKE2B_BYTES],
                                      struct mxc_err *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    struct stat before, after;
    enum mxc_code code = MXC_OK;
    if (fd < 0)
        return mxc_file_error(err, path, "open");
    if (fstat(fd, &before)) {
        code = mxc_file_error(err, path, "read");
        goto out;
    }
    struct stamp stamp = stamp_of(&before);
    if (x && remembered(x, path, &stamp, digest))
        goto out;
    if ((code = read_all(fd, path, stop, digest, err)))
        goto out;
    struct stamp then = fstat(fd, &after) ? (struct stamp){0} : stamp_of(&after);
    if (x && !memcmp(&then, &stamp, sizeof stamp))
        remember(x, path, &stamp, digest);
out:
    (void)close(fd);
    return code;
}
