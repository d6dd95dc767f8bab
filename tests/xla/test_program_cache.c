/* The disk cache of compiled programs: what a key depends on, damaged files, the bound, digests of
 * plugins, and the client's use of it, with the fake plugin. */
#define _GNU_SOURCE
#include "test.h"

#ifndef MLXCEL_XLA_DEVICE_RUNTIME

int main(void) {
    return 0; /* nothing to test: the client is not in this build */
}

#else

#include "backend/xla/client.h"
#include "backend/xla/pjrt.h"
#include "backend/xla/program_cache.h"
#include "base/file.h"
#include "base/mem.h"

#include "fake_plugin.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[64];

/* Calls see(path) for every file of the folder whose name ends so; the number of them. */
static int each(const char *ending, void (*see)(const char *path)) {
    DIR *d = opendir(dir);
    assert_non_null(d);
    int n = 0;
    for (const struct dirent *e; (e = readdir(d));) {
        char path[400];
        size_t length = strlen(e->d_name), tail = strlen(ending);
        if (e->d_name[0] == '.' || length < tail || strcmp(e->d_name + length - tail, ending) != 0)
            continue;
        (void)snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        n++;
        if (see)
            see(path);
    }
    closedir(d);
    return n;
}

static void delete (const char *path) {
    assert_int_equal(unlink(path), 0);
}

static int setup(void **state) {
    (void)state;
    (void)snprintf(dir, sizeof dir, "/tmp/mlxcel-cache-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    (void)each("", delete);
    return rmdir(dir);
}

/* ---- the cache alone ---- */

static void key_set(uint8_t key[MXC_XLA_DIGEST_BYTES], int n) {
    memset(key, 0, MXC_XLA_DIGEST_BYTES);
    key[0] = (uint8_t)n;
}

static bool has(struct mxc_xla_cache *cache, int n, const void *content, size_t size) {
    uint8_t key[MXC_XLA_DIGEST_BYTES];
    struct mxc_xla_cached cached;
    key_set(key, n);
    if (!mxc_xla_cache_get(cache, key, &cached))
        return false;
    assert_int_equal(cached.size, size);
    assert_memory_equal(cached.content, content, size);
    mxc_xla_cache_release(&cached);
    return true;
}

static void put(struct mxc_xla_cache *cache, int n, const void *content, size_t size) {
    uint8_t key[MXC_XLA_DIGEST_BYTES];
    struct mxc_err err;
    key_set(key, n);
    if (mxc_xla_cache_put(cache, key, content, size, &err))
        fail_msg("%s", err.message);
}

static struct mxc_xla_cache *open_cache(uint64_t bytes) {
    struct mxc_xla_cache *cache = NULL;
    struct mxc_err err;
    if (mxc_xla_cache_open(dir, bytes, &cache, &err))
        fail_msg("%s", err.message);
    return cache;
}

static size_t flip_at;
static void flip(const char *path) {
    int fd = open(path, O_RDWR);
    char c = 0;
    assert_true(fd >= 0 && pread(fd, &c, 1, (off_t)flip_at) == 1);
    c = (char)(c ^ 4);
    assert_int_equal(pwrite(fd, &c, 1, (off_t)flip_at), 1);
    close(fd);
}

static void cut(const char *path) {
    assert_int_equal(truncate(path, (off_t)flip_at), 0);
}

static void lengthen(const char *path) {
    int fd = open(path, O_WRONLY | O_APPEND);
    assert_true(fd >= 0 && write(fd, "x", 1) == 1);
    close(fd);
}

static void what_is_damaged_reads_as_absent_and_goes(void **state) {
    (void)state;
    struct mxc_xla_cache *cache = open_cache(1 << 20);
    static const char text[] = "machine code";
    const size_t whole = 88 + sizeof text;
    assert_false(has(cache, 1, text, sizeof text));
    put(cache, 1, text, sizeof text);
    assert_true(has(cache, 1, text, sizeof text));
    assert_false(has(cache, 2, text, sizeof text));
    for (flip_at = 0; flip_at < whole; flip_at++)
        for (int way = 0; way < 2; way++) {
            put(cache, 1, text, sizeof text);
            assert_int_equal(each(".xlaprog", way ? cut : flip), 1);
            assert_false(has(cache, 1, text, sizeof text));
            assert_int_equal(each("", NULL), 0);
        }
    put(cache, 1, text, sizeof text);
    (void)each(".xlaprog", lengthen);
    assert_false(has(cache, 1, text, sizeof text));
    put(cache, 3, "", 0);
    assert_true(has(cache, 3, "", 0));
    uint8_t key[MXC_XLA_DIGEST_BYTES];
    key_set(key, 3);
    mxc_xla_cache_drop(cache, key);
    assert_false(has(cache, 3, "", 0));
    mxc_xla_cache_close(cache);
}

/* Sets the times of use of programs 1, 2, ... back so that the first are the oldest. */
static void age(int n, int seconds) {
    char path[200];
    uint8_t key[MXC_XLA_DIGEST_BYTES];
    char hex[2 * MXC_XLA_DIGEST_BYTES + 1];
    key_set(key, n);
    mxc_xla_cache_hex(key, hex);
    (void)snprintf(path, sizeof path, "%s/%s.xlaprog", dir, hex);
    const struct timespec when[2] = {{1000000 - seconds, 0}, {1000000 - seconds, 0}};
    assert_int_equal(utimensat(AT_FDCWD, path, when, 0), 0);
}

static void the_least_recently_used_go(void **state) {
    (void)state;
    char content[1000 - 88];
    memset(content, 7, sizeof content);
    struct mxc_xla_cache *cache = open_cache(3500);
    for (int i = 1; i <= 3; i++) {
        put(cache, i, content, sizeof content);
        age(i, 100 - i);
    }
    assert_true(has(cache, 1, content, sizeof content)); /* now the most recently used */
    put(cache, 4, content, sizeof content);
    assert_false(has(cache, 2, content, sizeof content));
    assert_true(has(cache, 3, content, sizeof content));
    assert_true(has(cache, 1, content, sizeof content));
    assert_true(has(cache, 4, content, sizeof content));
    /* larger than the whole bound: not kept, and nothing else goes for it */
    char large[4000] = {0};
    put(cache, 5, large, sizeof large);
    assert_int_equal(each(".xlaprog", NULL), 3);
    /* leftovers of writers: old ones go, young ones may be at work; what is not ours stays */
    char old[100], young[100], foreign[100];
    (void)snprintf(old, sizeof old, "%s/a.1.tmp", dir);
    (void)snprintf(young, sizeof young, "%s/b.2.tmp", dir);
    (void)snprintf(foreign, sizeof foreign, "%s/notes.txt", dir);
    const char *const names[] = {old, young, foreign};
    for (int i = 0; i < 3; i++)
        close(open(names[i], O_CREAT | O_WRONLY, 0600));
    const struct timespec when[2] = {{1000, 0}, {1000, 0}};
    assert_int_equal(utimensat(AT_FDCWD, old, when, 0), 0);
    assert_int_equal(utimensat(AT_FDCWD, foreign, when, 0), 0);
    put(cache, 6, content, sizeof content);
    assert_int_equal(access(old, F_OK), -1);
    assert_int_equal(access(young, F_OK), 0);
    assert_int_equal(access(foreign, F_OK), 0);
    mxc_xla_cache_close(cache);
}

static void put_text(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    assert_true(f && fputs(text, f) >= 0 && !fclose(f));
}

static void a_files_digest_is_remembered_until_it_changes(void **state) {
    (void)state;
    struct mxc_xla_cache *cache = open_cache(1 << 20);
    char path[100], first[65], again[65], other[65];
    struct mxc_err err;
    (void)snprintf(path, sizeof path, "%s/p.so", dir);
    put_text(path, "abc");
    assert_int_equal(mxc_xla_cache_file_digest(NULL, path, first, &err), MXC_OK);
    assert_int_equal(each(".plugin", NULL), 0);
    assert_string_equal(first, "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319");
    assert_int_equal(mxc_xla_cache_file_digest(cache, path, again, &err), MXC_OK);
    assert_string_equal(again, first);
    assert_int_equal(each(".plugin", NULL), 1);
    flip_at = 0; /* a note that is none: computed anew */
    (void)each(".plugin", cut);
    assert_int_equal(mxc_xla_cache_file_digest(cache, path, again, &err), MXC_OK);
    assert_string_equal(again, first);
    put_text(path, "abcd");
    assert_int_equal(mxc_xla_cache_file_digest(cache, path, other, &err), MXC_OK);
    assert_string_not_equal(other, first);
    assert_int_equal(mxc_xla_cache_file_digest(cache, "/nowhere", other, &err), MXC_E_NOT_FOUND);
    mxc_xla_cache_close(cache);
}

/* Digest of a processor that is described so. */
static void processor(const char *text, uint8_t digest[MXC_XLA_DIGEST_BYTES]) {
    struct mxc_blake2b state;
    char path[100];
    (void)snprintf(path, sizeof path, "%s/cpuinfo", dir);
    put_text(path, text);
    mxc_blake2b_init(&state);
    mxc_xla_cache_add_cpu_of(&state, path);
    mxc_blake2b_end(&state, digest);
}

static void features_of_the_processor_count(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool same;
    } rows[] = {
        {"processor : 0\nmodel : 17\ncpu MHz : 1.0\nflags : sse avx2\n\nflags : none\n", true},
        {"processor : 0\nmodel : 17\ncpu MHz : 9.5\nflags : sse avx2\n\nflags : other\n", true},
        {"processor : 0\nmodel : 17\ncpu MHz : 1.0\nflags : sse avx2 avx512f\n\n", false},
        {"processor : 0\nmodel : 18\ncpu MHz : 1.0\nflags : sse avx2\n\n", false},
        {"", false}};
    uint8_t first[MXC_XLA_DIGEST_BYTES], other[MXC_XLA_DIGEST_BYTES];
    processor(rows[0].text, first);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        processor(rows[i].text, other);
        assert_int_equal(!memcmp(first, other, sizeof first), rows[i].same);
    }
}

/* Several processes put and get the same programs: what is read is whole, or not there. */
static void processes_share_a_folder(void **state) {
    (void)state;
    enum { PROCESSES = 3, TURNS = 300, PROGRAMS = 4 };
    static char content[PROGRAMS][20000];
    for (int i = 0; i < PROGRAMS; i++)
        memset(content[i], 'a' + i, sizeof content[i]);
    pid_t pids[PROCESSES];
    for (int p = 0; p < PROCESSES; p++) {
        if ((pids[p] = fork()) != 0) {
            assert_true(pids[p] > 0);
            continue;
        }
        struct mxc_xla_cache *cache = NULL;
        int found = 0;
        if (mxc_xla_cache_open(dir, 60000, &cache, NULL)) /* not all of them at once */
            _exit(2);
        for (int t = 0; t < TURNS; t++) {
            uint8_t key[MXC_XLA_DIGEST_BYTES];
            struct mxc_xla_cached cached;
            int n = (t * 7 + p) % PROGRAMS;
            key_set(key, n);
            if (mxc_xla_cache_get(cache, key, &cached)) {
                found++;
                if (cached.size != sizeof content[n] ||
                    memcmp(cached.content, content[n], cached.size) != 0)
                    _exit(3);
                mxc_xla_cache_release(&cached);
            } else if (mxc_xla_cache_put(cache, key, content[n], sizeof content[n], NULL)) {
                _exit(4);
            }
        }
        mxc_xla_cache_close(cache);
        _exit(found ? 0 : 5);
    }
    for (int p = 0; p < PROCESSES; p++) {
        int status;
        assert_int_equal(waitpid(pids[p], &status, 0), pids[p]);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
    assert_int_equal(each(".tmp", NULL), 0);
    assert_in_range(each(".xlaprog", NULL), 1, 3);
}

/* ---- with a client ---- */

static const char TEXT[] = "func.func public @main(%a: tensor<f32>) -> tensor<f32> {}";
static const char OTHER[] = "func.func public @main(%a: tensor<f32>) -> tensor<f32> { }";

struct made {
    uint64_t compiled, cached;
};

/* Opens a client, compiles the text, runs it once, closes. */
static struct made compile_on(const char *plugin, const char *text, const char *flag,
                              int n_threads) {
    struct mxc_xla_client *client = NULL;
    struct mxc_xla_program *program = NULL;
    struct mxc_xla_buffer *in = NULL, *out = NULL;
    struct mxc_err err;
    const float one = 1;
    const struct mxc_xla_param scalar = {.shape = {.type = MXC_XLA_F32}};
    const struct mxc_xla_flag flags = {.name = flag, .kind = MXC_XLA_FLAG_BOOL, .value = 1};
    const struct mxc_xla_client_options open = {
        .plugin = plugin, .cache_dir = dir, .n_threads = n_threads};
    const struct mxc_xla_compile_options options = {.inputs = &scalar,
                                                    .outputs = &scalar,
                                                    .n_inputs = 1,
                                                    .n_outputs = 1,
                                                    .flags = &flags,
                                                    .n_flags = flag ? 1 : 0};
    if (mxc_xla_client_open(&open, &client, &err) ||
        mxc_xla_compile(client, "p", text, strlen(text), &options, &program, &err) ||
        mxc_xla_buffer_new(client, 0, &scalar.shape, &one, MXC_XLA_COPY, &in, &err) ||
        mxc_xla_execute(program, &in, 1, &out, 1, &err))
        fail_msg("%s", err.message);
    struct mxc_xla_counters n;
    mxc_xla_client_counters(client, &n);
    assert_int_equal(mxc_xla_program_from_cache(program), n.cached == 1);
    assert_int_equal(strlen(mxc_xla_client_info(client)->digest), 64);
    mxc_xla_buffer_free(in);
    mxc_xla_buffer_free(out);
    mxc_xla_program_free(program);
    mxc_xla_client_close(client);
    return (struct made){n.compiled, n.cached};
}

static struct made compile_once(const char *text, const char *flag, int n_threads) {
    return compile_on(MXC_FAKE_PLUGIN, text, flag, n_threads);
}

static void expect(struct made made, bool compiled) {
    assert_int_equal(made.compiled, compiled);
    assert_int_equal(made.cached, !compiled);
}

static void a_second_start_need_not_compile(void **state) {
    (void)state;
    struct fake_plugin *fake = mxc_fake_plugin_open();
    expect(compile_once(TEXT, NULL, 0), true);
    expect(compile_once(TEXT, NULL, 0), false);
    expect(compile_once(OTHER, NULL, 0), true); /* text, flags, threads, platform: all count */
    expect(compile_once(TEXT, "xla_a", 0), true);
    expect(compile_once(TEXT, "xla_b", 0), true);
    expect(compile_once(TEXT, NULL, 2), true);
    fake->platform = "cuda";
    expect(compile_once(TEXT, NULL, 0), true);
    expect(compile_once(TEXT, NULL, 0), false);
    fake->platform = "cpu";
    expect(compile_once(TEXT, NULL, 0), false);
    assert_int_equal(fake->calls[FAKE_COMPILE], 6);
    mxc_fake_plugin_check(fake);
}

/* Its content counts, and not where it is. */
static void another_plugin_compiles_for_itself(void **state) {
    (void)state;
    struct fake_plugin *fake = mxc_fake_plugin_open();
    char *data = NULL, copy[100], other[100];
    size_t length;
    (void)snprintf(copy, sizeof copy, "%s/copy.so", dir);
    (void)snprintf(other, sizeof other, "%s/other.so", dir);
    assert_int_equal(mxc_file_read(MXC_FAKE_PLUGIN, 64 << 20, &data, &length, NULL), MXC_OK);
    assert_int_equal(mxc_file_write(copy, data, length, NULL), MXC_OK);
    assert_int_equal(mxc_file_write(other, data, length + 1, NULL), MXC_OK); /* and a zero */
    mxc_mem_free(data);
    expect(compile_once(TEXT, NULL, 0), true);
    expect(compile_on(copy, TEXT, NULL, 0), false);
    expect(compile_on(other, TEXT, NULL, 0), true);
    expect(compile_on(other, TEXT, NULL, 0), false);
    expect(compile_once(TEXT, NULL, 0), false);
    mxc_fake_plugin_check(fake);
}

static void damaged_programs_are_compiled_again(void **state) {
    (void)state;
    struct fake_plugin *fake = mxc_fake_plugin_open();
    expect(compile_once(TEXT, NULL, 0), true);
    flip_at = 100;
    (void)each(".xlaprog", flip);
    expect(compile_once(TEXT, NULL, 0), true);
    expect(compile_once(TEXT, NULL, 0), false);
    /* whole, but the plugin does not take it */
    fake->fail_call = FAKE_DESERIALIZE;
    fake->fail_code = PJRT_INTERNAL;
    expect(compile_once(TEXT, NULL, 0), true);
    fake->fail_call = -1;
    expect(compile_once(TEXT, NULL, 0), false);
    mxc_fake_plugin_check(fake);
}

static void a_cache_that_fails_is_only_slower(void **state) {
    (void)state;
    struct fake_plugin *fake = mxc_fake_plugin_open();
    fake->no_serialize = true;
    expect(compile_once(TEXT, NULL, 0), true);
    expect(compile_once(TEXT, NULL, 0), true);
    assert_int_equal(each(".xlaprog", NULL), 0);
    mxc_fake_plugin_check(fake);
    fake = mxc_fake_plugin_open(); /* a folder that cannot be made */
    struct mxc_xla_client *client = NULL;
    struct mxc_err err;
    const struct mxc_xla_client_options open = {.plugin = MXC_FAKE_PLUGIN,
                                                .cache_dir = "/dev/null/cache"};
    assert_int_equal(mxc_xla_client_open(&open, &client, &err), MXC_OK);
    assert_string_equal(mxc_xla_client_info(client)->digest, "");
    mxc_xla_client_close(client);
    mxc_fake_plugin_check(fake);
}

/* With every allocation failing in its turn: an error or a program, never a leak. */
static void memory_may_run_out(void **state) {
    (void)state;
    struct fake_plugin *fake;
    struct mxc_err err;
    const struct mxc_xla_param scalar = {.shape = {.type = MXC_XLA_F32}};
    const struct mxc_xla_client_options open = {.plugin = MXC_FAKE_PLUGIN, .cache_dir = dir};
    const struct mxc_xla_compile_options options = {
        .inputs = &scalar, .outputs = &scalar, .n_inputs = 1, .n_outputs = 1};
    for (uint64_t i = 1;; i++) {
        struct mxc_xla_client *client = NULL;
        struct mxc_xla_program *program = NULL;
        fake = mxc_fake_plugin_open();
        mxc_mem_fail_at(i);
        enum mxc_code code = mxc_xla_client_open(&open, &client, &err);
        if (!code)
            code = mxc_xla_compile(client, "p", TEXT, strlen(TEXT), &options, &program, &err);
        bool done = mxc_mem_calls() < i;
        mxc_mem_fail_at(0);
        mxc_xla_program_free(program);
        mxc_xla_client_close(client);
        mxc_fake_plugin_check(fake);
        if (code)
            assert_int_equal(code, MXC_E_NOMEM);
        if (done)
            break;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_damaged_reads_as_absent_and_goes, setup, teardown),
        cmocka_unit_test_setup_teardown(the_least_recently_used_go, setup, teardown),
        cmocka_unit_test_setup_teardown(a_files_digest_is_remembered_until_it_changes, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(features_of_the_processor_count, setup, teardown),
        cmocka_unit_test_setup_teardown(processes_share_a_folder, setup, teardown),
        cmocka_unit_test_setup_teardown(a_second_start_need_not_compile, setup, teardown),
        cmocka_unit_test_setup_teardown(another_plugin_compiles_for_itself, setup, teardown),
        cmocka_unit_test_setup_teardown(damaged_programs_are_compiled_again, setup, teardown),
        cmocka_unit_test_setup_teardown(a_cache_that_fails_is_only_slower, setup, teardown),
        cmocka_unit_test_setup_teardown(memory_may_run_out, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
