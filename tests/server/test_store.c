/* The store of responses: owners, the byte limit, damage, files of other versions, restarts,
 * several threads and processes. */
#define _GNU_SOURCE
#include "test.h"

#include "base/mem.h"
#include "folder.h"
#include "server/responses_store.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

struct fixture {
    char folder[64], path[96];
    int n_warnings;
    char warning[512];
    struct mxc_response_store *store;
    unsigned char owner[MXC_STORED_OWNER], other[MXC_STORED_OWNER];
};

static void on_warning(const char *line, void *user) {
    struct fixture *f = user;
    f->n_warnings++;
    (void)snprintf(f->warning, sizeof f->warning, "%s", line);
}

static void open_store(struct fixture *f, uint64_t max_bytes) {
    const struct mxc_response_store_options o = {f->folder, max_bytes, on_warning, f};
    struct mxc_err err;
    if (mxc_response_store_open(&o, &f->store, &err))
        fail_msg("%s", err.message);
    assert_int_equal(mxc_response_store_owner(f->store, MXC_STR("key"), f->owner, &err), MXC_OK);
    assert_int_equal(mxc_response_store_owner(f->store, MXC_STR(""), f->other, &err), MXC_OK);
    assert_memory_not_equal(f->owner, f->other, MXC_STORED_OWNER);
}

static int setup(void **state) {
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    (void)snprintf(f->folder, sizeof f->folder, "/tmp/mlxcel_store_XXXXXX");
    assert_non_null(mkdtemp(f->folder));
    (void)snprintf(f->path, sizeof f->path, "%s/responses.db", f->folder);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    mxc_response_store_close(f->store);
    assert_int_equal(folder_remove(f->folder), 0);
    free(f);
    return 0;
}

/* A row whose texts have n bytes each. */
static enum mxc_code put(struct fixture *f, const unsigned char *owner, const char *id, size_t n,
                         struct mxc_err *err) {
    struct mxc_stored row = {.created = 7, .n_response = n, .n_input = n};
    (void)snprintf(row.id, sizeof row.id, "%s", id);
    (void)snprintf(row.previous, sizeof row.previous, "before-%.50s", id);
    row.response = malloc(n + 1);
    row.input = malloc(n + 1);
    assert_true(row.response && row.input);
    memset(row.response, 'r', n);
    memset(row.input, 'i', n);
    enum mxc_code code = mxc_response_store_put(f->store, owner, &row, err);
    free(row.response);
    free(row.input);
    return code;
}

static bool has(struct fixture *f, const unsigned char *owner, const char *id) {
    struct mxc_stored row;
    struct mxc_err err;
    enum mxc_code code = mxc_response_store_get(f->store, owner, id, &row, &err);
    if (!code) {
        assert_string_equal(row.id, id);
        assert_int_equal(row.created, 7);
        assert_int_equal(strncmp(row.previous, "before-", 7), 0);
        assert_int_equal(row.n_response, row.n_input);
        for (size_t i = 0; i < row.n_response; i++)
            assert_true(row.response[i] == 'r' && row.input[i] == 'i');
        mxc_stored_fini(&row);
    } else if (code != MXC_E_NOT_FOUND) {
        fail_msg("%s", err.message);
    }
    return !code;
}

static void sizes(struct fixture *f, uint64_t *rows, uint64_t *bytes) {
    struct mxc_err err;
    assert_int_equal(mxc_response_store_size(f->store, rows, bytes, &err), MXC_OK);
}

static void rows_belong_to_their_owner(void **state) {
    struct fixture *f = *state;
    struct mxc_err err;
    struct stat st;
    open_store(f, 1 << 20);
    assert_int_equal(put(f, f->owner, "resp_1", 100, &err), MXC_OK);
    assert_true(has(f, f->owner, "resp_1"));
    assert_false(has(f, f->other, "resp_1"));
    assert_false(has(f, f->owner, "resp_2"));
    assert_false(has(f, f->owner, ""));
    char long_id[300];
    memset(long_id, 'x', sizeof long_id);
    long_id[sizeof long_id - 1] = 0;
    assert_false(has(f, f->owner, long_id));
    assert_int_equal(mxc_response_store_remove(f->store, f->other, "resp_1", &err),
                     MXC_E_NOT_FOUND);
    assert_true(has(f, f->owner, "resp_1"));
    assert_int_equal(mxc_response_store_remove(f->store, f->owner, "resp_1", &err), MXC_OK);
    assert_int_equal(mxc_response_store_remove(f->store, f->owner, "resp_1", &err),
                     MXC_E_NOT_FOUND);
    assert_false(has(f, f->owner, "resp_1"));
    assert_int_equal(stat(f->path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(f->n_warnings, 0);
}

static void rows_outlive_the_server(void **state) {
    struct fixture *f = *state;
    struct mxc_err err;
    uint64_t rows, bytes, again;
    open_store(f, 1 << 20);
    assert_int_equal(put(f, f->owner, "resp_1", 5000, &err), MXC_OK);
    assert_int_equal(put(f, f->owner, "resp_1", 6000, &err), MXC_OK); /* in its place */
    sizes(f, &rows, &bytes);
    assert_int_equal(rows, 1);
    mxc_response_store_close(f->store);
    open_store(f, 1 << 20); /* the owners are the same ones, too */
    assert_true(has(f, f->owner, "resp_1"));
    sizes(f, &rows, &again);
    assert_int_equal(again, bytes);
    assert_int_equal(f->n_warnings, 0);
}

static void the_oldest_go_first(void **state) {
    struct fixture *f = *state;
    struct mxc_err err;
    uint64_t rows, bytes;
    char id[32];
    open_store(f, 100000);
    for (int i = 0; i < 100; i++) {
        (void)snprintf(id, sizeof id, "resp_%d", i);
        assert_int_equal(put(f, f->owner, id, 4000, &err), MXC_OK);
        sizes(f, &rows, &bytes);
        assert_true(bytes <= 100000);
        assert_true(has(f, f->owner, id));
    }
    assert_true(rows >= 10 && rows <= 12);
    assert_false(has(f, f->owner, "resp_80"));
    assert_true(has(f, f->owner, "resp_90"));
    /* one that is larger than the limit is refused and costs the others nothing */
    assert_int_equal(put(f, f->owner, "resp_big", 60000, &err), MXC_E_LIMIT);
    assert_true(has(f, f->owner, "resp_99"));
    /* one that just fits takes the place of all */
    assert_int_equal(put(f, f->owner, "resp_big", 49700, &err), MXC_OK);
    sizes(f, &rows, &bytes);
    assert_int_equal(rows, 1);
    mxc_response_store_close(f->store);
    open_store(f, 20000); /* a smaller limit holds from the next row on */
    assert_int_equal(put(f, f->owner, "resp_small", 10, &err), MXC_OK);
    sizes(f, &rows, &bytes);
    assert_int_equal(rows, 1);
}

static void put_bytes(const char *path, off_t offset, const void *bytes, size_t n) {
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, bytes, n, offset), (ssize_t)n);
    assert_int_equal(close(fd), 0);
}

static void expect_fresh(struct fixture *f) {
    struct mxc_err err;
    char aside[128];
    (void)snprintf(aside, sizeof aside, "%s.damaged", f->path);
    assert_int_equal(f->n_warnings, 1);
    assert_non_null(strstr(f->warning, f->path));
    assert_int_equal(access(aside, F_OK), 0);
    assert_false(has(f, f->owner, "resp_1"));
    assert_int_equal(put(f, f->owner, "resp_2", 100, &err), MXC_OK);
    assert_true(has(f, f->owner, "resp_2"));
    assert_int_equal(f->n_warnings, 1);
}

static void a_damaged_file_is_set_aside(void **state) {
    struct fixture *f = *state;
    struct mxc_err err;
    static const char garbage[8192] = "this is no database";
    put_bytes(f->path, 0, garbage, sizeof garbage);
    open_store(f, 1 << 20);
    expect_fresh(f);
    /* pages in the middle */
    for (int i = 0; i < 20; i++) {
        char id[32];
        (void)snprintf(id, sizeof id, "resp_m%d", i);
        assert_int_equal(put(f, f->owner, id, 5000, &err), MXC_OK);
    }
    mxc_response_store_close(f->store);
    char noise[3 * 4096];
    memset(noise, 0xA5, sizeof noise);
    put_bytes(f->path, 4096, noise, sizeof noise);
    f->n_warnings = 0;
    open_store(f, 1 << 20);
    expect_fresh(f);
    /* a file that was cut off */
    mxc_response_store_close(f->store);
    assert_int_equal(truncate(f->path, 5000), 0);
    f->n_warnings = 0;
    open_store(f, 1 << 20);
    expect_fresh(f);
}

static void damage_while_it_runs_is_set_aside(void **state) {
    struct fixture *f = *state;
    struct mxc_err err;
    char noise[4096], id[32], wal[128];
    open_store(f, 64 << 20);
    for (int i = 0; i < 40; i++) {
        (void)snprintf(id, sizeof id, "resp_%d", i);
        assert_int_equal(put(f, f->owner, id, 200000, &err), MXC_OK); /* past SQLite's cache */
    }
    memset(noise, 0xA5, sizeof noise);
    (void)snprintf(wal, sizeof wal, "%s-wal", f->path);
    for (off_t at = 0; at < 20 << 20; at += 4096) {
        put_bytes(f->path, at, noise, sizeof noise);
        if (at < 4096 * 40)
            put_bytes(wal, at, noise, sizeof noise);
    }
    struct mxc_stored row;
    for (int i = 0; i < 40 && !f->n_warnings; i++) {
        (void)snprintf(id, sizeof id, "resp_%d", i);
        if (!mxc_response_store_get(f->store, f->owner, id, &row, &err))
            mxc_stored_fini(&row);
    }
    (void)put(f, f->owner, "resp_1", 300000, &err);
    assert_int_equal(f->n_warnings, 1);
    assert_int_equal(put(f, f->owner, "resp_3", 100, &err), MXC_OK);
    assert_true(has(f, f->owner, "resp_3"));
}

static void another_version_is_set_aside(void **state) {
    struct fixture *f = *state;
    struct mxc_err err;
    sqlite3 *db;
    open_store(f, 1 << 20);
    assert_int_equal(put(f, f->owner, "resp_1", 100, &err), MXC_OK);
    mxc_response_store_close(f->store);
    assert_int_equal(sqlite3_open(f->path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "PRAGMA user_version = 9", NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
    open_store(f, 1 << 20);
    expect_fresh(f);
}

static void places_that_cannot_be_are_errors(void **state) {
    struct fixture *f = *state;
    struct mxc_err err;
    char path[128];
    struct mxc_response_store_options o = {path, 1 << 20, on_warning, f};
    (void)snprintf(path, sizeof path, "%s/file", f->folder);
    put_bytes(path, 0, "x", 1);
    assert_int_not_equal(mxc_response_store_open(&o, &f->store, &err), MXC_OK);
    assert_non_null(strstr(err.message, path));
    /* a link is not followed, a folder is no file */
    (void)snprintf(path, sizeof path, "%s", f->folder);
    assert_int_equal(symlink("/etc/passwd", f->path), 0);
    assert_int_equal(mxc_response_store_open(&o, &f->store, &err), MXC_E_IO);
    assert_int_equal(unlink(f->path), 0);
    assert_int_equal(mkdir(f->path, 0700), 0);
    assert_int_equal(mxc_response_store_open(&o, &f->store, &err), MXC_E_IO);
    assert_int_equal(f->n_warnings, 0);
}

static void failed_allocations_are_errors(void **state) {
    struct fixture *f = *state;
    const struct mxc_response_store_options o = {f->folder, 1 << 20, on_warning, f};
    struct mxc_stored row;
    struct mxc_err err;
    mxc_mem_fail_at(0);
    open_store(f, 1 << 20);
    assert_int_equal(put(f, f->owner, "resp_1", 100, &err), MXC_OK);
    assert_true(has(f, f->owner, "resp_1"));
    uint64_t calls = mxc_mem_calls();
    mxc_response_store_close(f->store);
    f->store = NULL;
    for (uint64_t n = 1; n <= calls; n++) {
        mxc_mem_fail_at(n);
        enum mxc_code code = mxc_response_store_open(&o, &f->store, &err);
        if (!code)
            code = mxc_response_store_get(f->store, f->owner, "resp_1", &row, &err);
        mxc_mem_fail_at(0);
        assert_int_equal(code, MXC_E_NOMEM);
        mxc_response_store_close(f->store);
        f->store = NULL;
    }
    open_store(f, 1 << 20);
    assert_true(has(f, f->owner, "resp_1"));
}

enum { N_THREADS = 4, N_ROWS = 40 };
struct worker {
    struct fixture *f;
    int number;
    int n_bad;
};

static void *work(void *arg) {
    struct worker *w = arg;
    struct mxc_err err;
    struct mxc_stored row;
    for (int i = 0; i < N_ROWS; i++) {
        char id[32];
        (void)snprintf(id, sizeof id, "resp_%d_%d", w->number, i);
        w->n_bad += put(w->f, w->f->owner, id, 500, &err) != MXC_OK;
        enum mxc_code code = mxc_response_store_get(w->f->store, w->f->owner, id, &row, &err);
        w->n_bad += code != MXC_OK;
        if (!code)
            mxc_stored_fini(&row);
        if (i % 2)
            w->n_bad += mxc_response_store_remove(w->f->store, w->f->owner, id, &err) != MXC_OK;
    }
    return NULL;
}

static void many_threads(void **state) {
    struct fixture *f = *state;
    struct worker workers[N_THREADS];
    pthread_t threads[N_THREADS];
    uint64_t rows, bytes;
    open_store(f, 4 << 20);
    for (int i = 0; i < N_THREADS; i++) {
        workers[i] = (struct worker){f, i, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < N_THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(workers[i].n_bad, 0);
    }
    sizes(f, &rows, &bytes);
    assert_int_equal(rows, N_THREADS * N_ROWS / 2);
    assert_true(bytes > rows * 1000);
}

/* Two servers share the file, and the limit. */
static void two_stores_agree(void **state) {
    struct fixture *f = *state;
    struct fixture second = *f;
    struct mxc_err err;
    uint64_t rows, bytes;
    open_store(f, 30000);
    open_store(&second, 30000);
    assert_memory_equal(f->owner, second.owner, MXC_STORED_OWNER);
    for (int i = 0; i < 20; i++) {
        char id[32];
        struct fixture *turn = i % 2 ? &second : f;
        (void)snprintf(id, sizeof id, "resp_%d", i);
        assert_int_equal(put(turn, turn->owner, id, 2000, &err), MXC_OK);
        assert_true(has(i % 2 ? f : &second, f->owner, id));
    }
    sizes(f, &rows, &bytes);
    assert_true(bytes <= 30000 && rows >= 5);
    mxc_response_store_close(second.store);
    assert_int_equal(f->n_warnings + second.n_warnings, 0);
}

/* A process that is killed in the middle of puts leaves a file in which every row is whole. */
static void a_killed_process_loses_nothing(void **state) {
    struct fixture *f = *state;
    int pipes[2], last = -1, n;
    assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        struct mxc_err err;
        open_store(f, 64 << 20);
        for (int i = 0;; i++) {
            char id[32];
            (void)snprintf(id, sizeof id, "resp_%d", i);
            if (put(f, f->owner, id, 3000, &err) ||
                write(pipes[1], &i, sizeof i) != (ssize_t)sizeof i)
                _exit(1);
        }
    }
    assert_int_equal(close(pipes[1]), 0);
    while (last < 50 && read(pipes[0], &n, sizeof n) == (ssize_t)sizeof n)
        last = n;
    assert_int_equal(kill(child, SIGKILL), 0);
    while (read(pipes[0], &n, sizeof n) == (ssize_t)sizeof n)
        last = n;
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(close(pipes[0]), 0);
    assert_true(last >= 50);
    open_store(f, 64 << 20);
    for (int i = 0; i <= last; i++) {
        char id[32];
        (void)snprintf(id, sizeof id, "resp_%d", i);
        assert_true(has(f, f->owner, id));
    }
    assert_int_equal(f->n_warnings, 0);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(rows_belong_to_their_owner),
        TEST(rows_outlive_the_server),
        TEST(the_oldest_go_first),
        TEST(a_damaged_file_is_set_aside),
        TEST(damage_while_it_runs_is_set_aside),
        TEST(another_version_is_set_aside),
        TEST(places_that_cannot_be_are_errors),
        TEST(failed_allocations_are_errors),
        TEST(many_threads),
        TEST(two_stores_agree),
        TEST(a_killed_process_loses_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
