/* The SQLite file of stored responses. Its sum of bytes is kept by triggers in a table of its own,
 * so that a put costs the same however many rows there are, and servers that share the file agree.
 * SQLite's word about a damaged file (SQLITE_CORRUPT, SQLITE_NOTADB) leads to set_aside, once per
 * operation; any other failure is an error of that operation only. */
#define _GNU_SOURCE
#include "server/responses_store.h"

#include "base/file.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SALT = 32, ROW_OVERHEAD = 512, BUSY_MS = 1000, VERSION = 1 };

struct mxc_response_store {
    pthread_mutex_t mutex;
    char *path, *aside;
    uint64_t max_bytes;
    void (*warn)(const char *line, void *user);
    void *user;
    unsigned char salt[SALT];
    sqlite3 *db; /* NULL: could not be opened again */
};

void mxc_stored_fini(struct mxc_stored *stored) {
    mxc_mem_free(stored->response);
    mxc_mem_free(stored->input);
    stored->response = stored->input = NULL;
}

/* ---- the file */

static bool is_damage(int rc) {
    return (rc & 0xFF) == SQLITE_CORRUPT || (rc & 0xFF) == SQLITE_NOTADB;
}

static enum mxc_code fail(const struct mxc_response_store *s, int rc, struct mxc_err *err) {
    if ((rc & 0xFF) == SQLITE_NOMEM)
        return mxc_err_nomem(err);
    return mxc_err_set(err, MXC_E_IO, "%s: %s", s->path,
                       s->db ? sqlite3_errmsg(s->db) : sqlite3_errstr(rc));
}

/* A statement that has no arguments and at most one number as its result. */
static int number_of(sqlite3 *db, const char *sql, int64_t *out) {
    sqlite3_stmt *st = NULL;
    int rc = sqlite3_prepare_v2(db, sql, -1, &st, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(st);
    if (rc == SQLITE_ROW)
        *out = sqlite3_column_int64(st, 0);
    int end = sqlite3_finalize(st);
    return rc == SQLITE_ROW || rc == SQLITE_DONE ? SQLITE_OK : end != SQLITE_OK ? end : rc;
}

static int check_pages(sqlite3 *db) {
    sqlite3_stmt *st = NULL;
    int rc = sqlite3_prepare_v2(db, "PRAGMA quick_check(1)", -1, &st, NULL);
    bool fine = rc == SQLITE_OK && sqlite3_step(st) == SQLITE_ROW &&
                !strcmp((const char *)sqlite3_column_text(st, 0), "ok");
    int end = sqlite3_finalize(st);
    if (rc != SQLITE_OK || end != SQLITE_OK)
        return rc != SQLITE_OK ? rc : end;
    return fine ? SQLITE_OK : SQLITE_CORRUPT;
}

static int make_tables(struct mxc_response_store *s) {
    static const char sql[] =
        "BEGIN IMMEDIATE;"
        "CREATE TABLE IF NOT EXISTS responses(seq INTEGER PRIMARY KEY AUTOINCREMENT,"
        " id TEXT UNIQUE NOT NULL, owner BLOB NOT NULL, previous TEXT NOT NULL,"
        " created INTEGER NOT NULL, bytes INTEGER NOT NULL, response BLOB NOT NULL,"
        " input BLOB NOT NULL);"
        "CREATE TABLE IF NOT EXISTS sums(one INTEGER PRIMARY KEY CHECK(one = 1),"
        " bytes INTEGER NOT NULL, salt BLOB NOT NULL);"
        "CREATE TRIGGER IF NOT EXISTS added AFTER INSERT ON responses BEGIN"
        " UPDATE sums SET bytes = bytes + new.bytes; END;"
        "CREATE TRIGGER IF NOT EXISTS removed AFTER DELETE ON responses BEGIN"
        " UPDATE sums SET bytes = bytes - old.bytes; END;"
        "PRAGMA user_version = 1;";
    sqlite3_stmt *st = NULL;
    int rc = sqlite3_exec(s->db, sql, NULL, NULL, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_prepare_v2(s->db, "INSERT OR IGNORE INTO sums VALUES(1, 0, ?)", -1, &st, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_blob(st, 1, s->salt, SALT, SQLITE_STATIC);
    if (rc == SQLITE_OK && (rc = sqlite3_step(st)) == SQLITE_DONE)
        rc = SQLITE_OK;
    (void)sqlite3_finalize(st);
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(s->db, "COMMIT", NULL, NULL, NULL);
    return rc;
}

/* The salt that the file has, which another server may have put there. */
static int read_salt(struct mxc_response_store *s) {
    sqlite3_stmt *st = NULL;
    int rc = sqlite3_prepare_v2(s->db, "SELECT salt FROM sums", -1, &st, NULL);
    if (rc == SQLITE_OK && (rc = sqlite3_step(st)) == SQLITE_ROW) {
        rc = sqlite3_column_bytes(st, 0) == SALT ? SQLITE_OK : SQLITE_CORRUPT;
        if (rc == SQLITE_OK)
            memcpy(s->salt, sqlite3_column_blob(st, 0), SALT);
    } else if (rc == SQLITE_DONE) {
        rc = SQLITE_CORRUPT;
    }
    (void)sqlite3_finalize(st);
    return rc;
}

/* Opens s->db; on failure it is left for errmsg, and for shut. */
static int open_file(struct mxc_response_store *s) {
    int64_t version = 0;
    int rc = sqlite3_open_v2(
        s->path, &s->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_busy_timeout(s->db, BUSY_MS);
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(s->db,
                          "PRAGMA trusted_schema = OFF; PRAGMA journal_mode = WAL;"
                          "PRAGMA synchronous = NORMAL; PRAGMA journal_size_limit = 8388608;",
                          NULL, NULL, NULL);
    if (rc == SQLITE_OK)
        rc = number_of(s->db, "PRAGMA user_version", &version);
    if (rc == SQLITE_OK && version != 0 && version != VERSION)
        rc = SQLITE_NOTADB;
    if (rc == SQLITE_OK)
        rc = check_pages(s->db);
    if (rc == SQLITE_OK)
        rc = make_tables(s);
    return rc == SQLITE_OK ? read_salt(s) : rc;
}

static void shut(struct mxc_response_store *s) {
    (void)sqlite3_close_v2(s->db);
    s->db = NULL;
}

/* Renames a damaged file and begins a new one. */
static int set_aside(struct mxc_response_store *s) {
    char line[512], other[4096];
    shut(s);
    (void)snprintf(line, sizeof line,
                   "%s is damaged, or of another version: it is now %s, and stored responses begin "
                   "anew",
                   s->path, s->aside);
    static const char *const tails[] = {"-wal", "-shm"};
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        (void)snprintf(other, sizeof other, "%s%s", s->path, tails[i]);
        (void)unlink(other); /* of no use without the file */
    }
    if (rename(s->path, s->aside) && unlink(s->path) && errno != ENOENT)
        return SQLITE_CANTOPEN;
    if (s->warn)
        s->warn(line, s->user);
    return open_file(s);
}

/* An empty file that others cannot read; SQLite gives its helpers the same mode. */
static enum mxc_code make_file(const char *path, struct mxc_err *err) {
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY, 0600);
    struct stat st;
    if (fd < 0)
        return mxc_file_error(err, path, "open");
    bool regular = !fstat(fd, &st) && S_ISREG(st.st_mode);
    (void)close(fd);
    return regular ? MXC_OK : mxc_err_set(err, MXC_E_IO, "%s: not a regular file", path);
}

enum mxc_code mxc_response_store_open(const struct mxc_response_store_options *options,
                                      struct mxc_response_store **store, struct mxc_err *err) {
    enum mxc_code code = mxc_dir_make(options->folder, err);
    if (code)
        return code;
    struct mxc_response_store *s = mxc_mem_zalloc(1, sizeof *s);
    if (!s)
        return mxc_err_nomem(err);
    pthread_mutex_init(&s->mutex, NULL); /* cannot fail with default attributes */
    s->path = mxc_path_join(options->folder, "responses.db");
    s->aside = mxc_path_join(options->folder, "responses.db.damaged");
    s->max_bytes = options->max_bytes;
    s->warn = options->warn;
    s->user = options->user;
    if (!s->path || !s->aside)
        code = mxc_err_nomem(err);
    else if (getrandom(s->salt, SALT, 0) != SALT)
        code = mxc_err_set(err, MXC_E_IO, "no random bytes: %s", strerror(errno));
    else
        code = make_file(s->path, err);
    if (!code) {
        int rc = open_file(s);
        if (is_damage(rc))
            rc = set_aside(s);
        code = rc == SQLITE_OK ? MXC_OK : fail(s, rc, err);
    }
    if (code)
        mxc_response_store_close(s);
    else
        *store = s;
    return code;
}

void mxc_response_store_close(struct mxc_response_store *s) {
    if (!s)
        return;
    shut(s);
    pthread_mutex_destroy(&s->mutex);
    mxc_mem_free(s->path);
    mxc_mem_free(s->aside);
    mxc_mem_free(s);
}

enum mxc_code mxc_response_store_owner(struct mxc_response_store *s, struct mxc_str key,
                                       unsigned char owner[MXC_STORED_OWNER], struct mxc_err *err) {
    unsigned char salt[SALT];
    pthread_mutex_lock(&s->mutex);
    memcpy(salt, s->salt, SALT);
    pthread_mutex_unlock(&s->mutex);
    if (gnutls_hmac_fast(GNUTLS_MAC_SHA256, salt, SALT, key.length ? key.ptr : "", key.length,
                         owner) < 0)
        return mxc_err_nomem(err);
    return MXC_OK;
}

/* ---- operations */

/* What an operation works on; get fills out. */
struct call {
    struct mxc_response_store *store;
    const unsigned char *owner;
    const char *id;
    const struct mxc_stored *in;
    struct mxc_stored *out;
    int64_t numbers[2];
    bool found, nomem;
};

/* Runs an operation as one transaction, twice when the file turns out to be damaged. */
static enum mxc_code run(struct call *call, int (*operation)(struct call *call),
                         struct mxc_err *err) {
    struct mxc_response_store *s = call->store;
    enum mxc_code code = MXC_OK;
    pthread_mutex_lock(&s->mutex);
    int rc = s->db ? SQLITE_OK : open_file(s);
    for (int tries = 0; tries < 2; tries++) {
        if (rc == SQLITE_OK)
            rc = sqlite3_exec(s->db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
        if (rc == SQLITE_OK)
            rc = operation(call);
        if (rc == SQLITE_OK)
            rc = sqlite3_exec(s->db, "COMMIT", NULL, NULL, NULL);
        if (rc != SQLITE_OK) {
            code = fail(s, rc, err);
            (void)sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
        }
        if (!is_damage(rc) || tries)
            break;
        code = MXC_OK;
        rc = set_aside(s);
        if (rc != SQLITE_OK)
            code = fail(s, rc, err);
    }
    if (rc != SQLITE_OK && is_damage(rc))
        shut(s);
    pthread_mutex_unlock(&s->mutex);
    return rc == SQLITE_OK ? MXC_OK : code;
}

static int finish(sqlite3_stmt *st, int rc) {
    int end = sqlite3_finalize(st);
    return rc == SQLITE_DONE || rc == SQLITE_ROW ? SQLITE_OK : end != SQLITE_OK ? end : rc;
}

static int remove_row(struct call *c) {
    sqlite3_stmt *st = NULL;
    int rc = sqlite3_prepare_v2(c->store->db, "DELETE FROM responses WHERE id = ? AND owner = ?",
                                -1, &st, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_text(st, 1, c->id, -1, SQLITE_STATIC);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_blob(st, 2, c->owner, MXC_STORED_OWNER, SQLITE_STATIC);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(st);
    c->found = rc == SQLITE_DONE && sqlite3_changes(c->store->db) > 0;
    return finish(st, rc);
}

static int insert_row(struct call *c, int64_t bytes) {
    const struct mxc_stored *in = c->in;
    sqlite3_stmt *st = NULL;
    int rc = sqlite3_prepare_v2(c->store->db,
                                "INSERT INTO responses(id, owner, previous, created, bytes,"
                                " response, input) VALUES(?, ?, ?, ?, ?, ?, ?)",
                                -1, &st, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_text(st, 1, in->id, -1, SQLITE_STATIC);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_blob(st, 2, c->owner, MXC_STORED_OWNER, SQLITE_STATIC);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_text(st, 3, in->previous, -1, SQLITE_STATIC);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_int64(st, 4, in->created);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_int64(st, 5, bytes);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_blob64(st, 6, in->response, in->n_response, SQLITE_STATIC);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_blob64(st, 7, in->input, in->n_input, SQLITE_STATIC);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(st);
    return finish(st, rc);
}

static int64_t bytes_of(const struct mxc_stored *in) {
    return (int64_t)(in->n_response + in->n_input + strlen(in->id) + strlen(in->previous) +
                     ROW_OVERHEAD);
}

/* Makes room first, so that the limit holds at every moment. */
static int put_row(struct call *c) {
    struct mxc_response_store *s = c->store;
    int64_t bytes = bytes_of(c->in), sum = 0, rows = 1;
    int rc = remove_row(c);
    while (rc == SQLITE_OK) {
        rc = number_of(s->db, "SELECT bytes FROM sums", &sum);
        if (rc != SQLITE_OK || sum + bytes <= (int64_t)s->max_bytes || !rows)
            break;
        rc = sqlite3_exec(s->db,
                          "DELETE FROM responses WHERE seq = (SELECT MIN(seq) FROM responses)",
                          NULL, NULL, NULL);
        rows = sqlite3_changes(s->db);
    }
    return rc == SQLITE_OK ? insert_row(c, bytes) : rc;
}

enum mxc_code mxc_response_store_put(struct mxc_response_store *store,
                                     const unsigned char owner[MXC_STORED_OWNER],
                                     const struct mxc_stored *stored, struct mxc_err *err) {
    struct call call = {.store = store, .owner = owner, .id = stored->id, .in = stored};
    if (bytes_of(stored) > (int64_t)store->max_bytes)
        return mxc_err_set(err, MXC_E_LIMIT, "a response of %lld bytes; the store holds %llu",
                           (long long)bytes_of(stored), (unsigned long long)store->max_bytes);
    return run(&call, put_row, err);
}

static char *column(sqlite3_stmt *st, int i, size_t *length) {
    *length = (size_t)sqlite3_column_bytes(st, i);
    const void *bytes = sqlite3_column_blob(st, i);
    return mxc_mem_dup(bytes ? bytes : "", *length);
}

static int get_row(struct call *c) {
    sqlite3_stmt *st = NULL;
    mxc_stored_fini(c->out); /* of a first try */
    int rc = sqlite3_prepare_v2(c->store->db,
                                "SELECT previous, created, response, input FROM responses"
                                " WHERE id = ? AND owner = ?",
                                -1, &st, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_text(st, 1, c->id, -1, SQLITE_STATIC);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_blob(st, 2, c->owner, MXC_STORED_OWNER, SQLITE_STATIC);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(st);
    c->found = rc == SQLITE_ROW;
    if (c->found) {
        struct mxc_stored *out = c->out;
        (void)snprintf(out->id, sizeof out->id, "%s", c->id);
        const unsigned char *previous = sqlite3_column_text(st, 0);
        (void)snprintf(out->previous, sizeof out->previous, "%s",
                       previous ? (const char *)previous : "");
        out->created = sqlite3_column_int64(st, 1);
        out->response = column(st, 2, &out->n_response);
        out->input = column(st, 3, &out->n_input);
        c->nomem = !out->response || !out->input;
    }
    return finish(st, rc);
}

static enum mxc_code not_found(const char *id, struct mxc_err *err) {
    return mxc_err_set(err, MXC_E_NOT_FOUND, "there is no response \"%.64s\"", id);
}

enum mxc_code mxc_response_store_get(struct mxc_response_store *store,
                                     const unsigned char owner[MXC_STORED_OWNER], const char *id,
                                     struct mxc_stored *stored, struct mxc_err *err) {
    struct mxc_stored made = {.response = NULL};
    struct call call = {.store = store, .owner = owner, .id = id, .out = &made};
    if (strlen(id) >= MXC_STORED_ID)
        return not_found(id, err);
    enum mxc_code code = run(&call, get_row, err);
    if (!code && call.nomem)
        code = mxc_err_nomem(err);
    if (!code && !call.found)
        code = not_found(id, err);
    if (code)
        mxc_stored_fini(&made);
    else
        *stored = made;
    return code;
}

enum mxc_code mxc_response_store_remove(struct mxc_response_store *store,
                                        const unsigned char owner[MXC_STORED_OWNER], const char *id,
                                        struct mxc_err *err) {
    struct call call = {.store = store, .owner = owner, .id = id};
    enum mxc_code code = run(&call, remove_row, err);
    return code || call.found ? code : not_found(id, err);
}

static int count_rows(struct call *c) {
    int rc = number_of(c->store->db, "SELECT COUNT(*) FROM responses", &c->numbers[0]);
    return rc != SQLITE_OK ? rc : number_of(c->store->db, "SELECT bytes FROM sums", &c->numbers[1]);
}

enum mxc_code mxc_response_store_size(struct mxc_response_store *store, uint64_t *rows,
                                      uint64_t *bytes, struct mxc_err *err) {
    struct call call = {.store = store};
    enum mxc_code code = run(&call, count_rows, err);
    if (!code) {
        *rows = (uint64_t)call.numbers[0];
        *bytes = (uint64_t)call.numbers[1];
    }
    return code;
}
