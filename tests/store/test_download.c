/* Downloads from a hub on loopback: whole, interrupted, refused, lied to. Every test has a store of
 * its own under a temporary folder. */
#define _GNU_SOURCE
#include "test.h"

#include "hub_server.h"

#include "base/file.h"
#include "base/mem.h"
#include "store/store.h"
#include "store/tree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <fcntl.h>
#include <unistd.h>

enum { BIG = 3 << 20 };
static char *big; /* content of the weights */
static const char config[] = "{\"model_type\": \"llama\"}";

struct world {
    char root[64];
    struct hub hub;
    struct mxc_store *store;
    struct mxc_download_request request;
    struct mxc_download_result result;
    struct mxc_err err;
};

static struct world *world_new(void) {
    struct world *w = calloc(1, sizeof *w);
    struct mxc_err err;
    assert_non_null(w);
    (void)snprintf(w->root, sizeof w->root, "/tmp/mxc-store-XXXXXX");
    assert_non_null(mkdtemp(w->root));
    assert_int_equal(mxc_store_open(w->root, &w->store, &err), MXC_OK);
    hub_add(&w->hub, "config.json", config, sizeof config - 1, false);
    hub_add(&w->hub, "model.safetensors", big, BIG, true);
    hub_add(&w->hub, "README.md", "read me", 7, false);
    hub_add(&w->hub, "pytorch_model.bin", "pickle", 6, true);
    hub_add(&w->hub, "onnx/model.onnx", "onnx", 4, true);
    w->request = (struct mxc_download_request){
        .repo = "own/tiny", .endpoint = w->hub.url, .retry_ms = 1, .retries = 3};
    return w;
}

static void world_start(struct world *w) {
    hub_start(&w->hub);
    w->request.endpoint = w->hub.url;
}

static enum mxc_code download(struct world *w) {
    mxc_download_result_fini(&w->result);
    w->err.message[0] = 0;
    return mxc_store_download(w->store, &w->request, &w->result, &w->err);
}

static void world_free(struct world *w) {
    struct mxc_err err;
    if (w->hub.thread)
        hub_stop(&w->hub);
    mxc_download_result_fini(&w->result);
    mxc_store_close(w->store);
    assert_int_equal(mxc_tree_remove(w->root, &err), MXC_OK);
    free(w);
}

static bool has(const struct world *w, const char *name) {
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", w->root, name);
    return !access(path, F_OK);
}

static void check_file(const struct world *w, const char *name, const void *data, size_t length) {
    char path[512], *text = NULL;
    size_t n = 0;
    (void)snprintf(path, sizeof path, "%s/%s", w->root, name);
    assert_int_equal(mxc_file_read(path, 64 << 20, &text, &n, NULL), MXC_OK);
    assert_int_equal(n, length);
    assert_memory_equal(text, data, n);
    mxc_mem_free(text);
}

static void put_file(const struct world *w, const char *name, const char *text) {
    char path[512], dir[512];
    struct mxc_err err;
    (void)snprintf(path, sizeof path, "%s/%s", w->root, name);
    (void)snprintf(dir, sizeof dir, "%.*s", (int)(strrchr(path, '/') - path), path);
    assert_int_equal(mxc_dir_make(dir, &err), MXC_OK);
    assert_int_equal(mxc_file_write(path, text, strlen(text), &err), MXC_OK);
}

static void expect(struct world *w, enum mxc_code code, const char *part) {
    enum mxc_code got = download(w);
    if (got != code || !strstr(w->err.message, part))
        fail_msg("code %d, message \"%s\"; expected %d and \"%s\"", (int)got, w->err.message,
                 (int)code, part);
}

static void whole(void **state) {
    (void)state;
    struct world *w = world_new();
    world_start(w);
    assert_int_equal(download(w), MXC_OK);
    check_file(w, "own/tiny/config.json", config, sizeof config - 1);
    check_file(w, "own/tiny/model.safetensors", big, BIG);
    assert_false(has(w, "own/tiny/README.md"));
    assert_false(has(w, "own/tiny/pytorch_model.bin"));
    assert_false(has(w, "own/tiny/onnx"));
    assert_false(has(w, ".partial"));
    assert_string_equal(w->result.name, "own/tiny");
    assert_string_equal(w->result.commit, w->hub.commit);
    assert_int_equal(w->result.received, BIG + sizeof config - 1);
    assert_int_equal(w->result.n_files, 2);

    /* Again: nothing is transferred. */
    int before = atomic_load(&w->hub.n_file_requests);
    assert_int_equal(download(w), MXC_OK);
    assert_int_equal(w->result.received, 0);
    assert_int_equal(atomic_load(&w->hub.n_file_requests), before);
    assert_false(has(w, ".partial"));
    world_free(w);
}

static void update(void **state) {
    (void)state;
    static const char newer[] = "{\"model_type\": \"qwen2\"}";
    struct world *w = world_new();
    hub_add(&w->hub, "tokenizer.json", "{}", 2, false);
    world_start(w);
    assert_int_equal(download(w), MXC_OK);
    put_file(w, "own/tiny/mine.txt", "mine");
    /* A new commit: another config, no tokenizer, the same weights. */
    hub_stop(&w->hub);
    w->hub.commit = "2222222222222222222222222222222222222222";
    w->hub.files[0].data = newer;
    w->hub.files[0].length = sizeof newer - 1;
    w->hub.n_files--;
    world_start(w);
    assert_int_equal(download(w), MXC_OK);
    assert_int_equal(w->result.received, sizeof newer - 1);
    check_file(w, "own/tiny/config.json", newer, sizeof newer - 1);
    check_file(w, "own/tiny/model.safetensors", big, BIG);
    check_file(w, "own/tiny/mine.txt", "mine", 4);
    assert_false(has(w, "own/tiny/tokenizer.json"));
    assert_false(has(w, "own/tiny/.mlxcel-updating"));
    world_free(w);
}

/* A hub that breaks off: this run goes on by itself; so does a later run. */
static void resumed(void **state) {
    (void)state;
    struct world *w = world_new();
    w->hub.n_cuts = 2;
    w->hub.cut_bytes = 1 << 20;
    world_start(w);
    assert_int_equal(download(w), MXC_OK);
    check_file(w, "own/tiny/model.safetensors", big, BIG);
    assert_int_equal(atomic_load(&w->hub.n_range_requests), 2);
    assert_int_equal(w->result.received, BIG + sizeof config - 1);
    world_free(w);
}

static bool stop_midway(const struct mxc_download_progress *p, void *user) {
    (void)user;
    return p->received < BIG / 2;
}

static void interrupted(void **state) {
    (void)state;
    struct world *w = world_new();
    struct mxc_store_list list;
    struct mxc_model_place place;
    world_start(w);
    w->request.progress = stop_midway;
    expect(w, MXC_E_CANCELLED, "cancelled");
    /* Half an entry is none. */
    assert_false(has(w, "own/tiny"));
    assert_true(has(w, ".partial/own/tiny"));
    assert_int_equal(mxc_store_list(w->store, &list, NULL), MXC_OK);
    assert_int_equal(list.n, 0);
    assert_int_equal(mxc_store_resolve(w->store, "own/tiny", &place, NULL), MXC_E_NOT_FOUND);
    w->request.progress = NULL;
    assert_int_equal(download(w), MXC_OK);
    assert_in_range(w->result.received, 1, BIG / 2 + (64 << 10));
    assert_int_equal(atomic_load(&w->hub.n_range_requests), 1);
    check_file(w, "own/tiny/model.safetensors", big, BIG);
    world_free(w);
}

static void spoiled_rest(void **state) {
    (void)state;
    struct world *w = world_new();
    world_start(w);
    w->request.progress = stop_midway;
    expect(w, MXC_E_CANCELLED, "cancelled");
    /* Someone wrote into the unfinished file: noticed, and fetched from the start. */
    char dir[256], path[512];
    struct mxc_names names;
    size_t spoiled = 0;
    (void)snprintf(dir, sizeof dir, "%s/.partial/own/tiny", w->root);
    assert_int_equal(mxc_names_read(dir, &names, NULL), MXC_OK);
    for (size_t i = 0; i < names.n; i++) {
        if (!strstr(names.items[i], ".partial"))
            continue;
        (void)snprintf(path, sizeof path, "%s/%s", dir, names.items[i]);
        int fd = open(path, O_WRONLY | O_CLOEXEC);
        assert_int_equal(pwrite(fd, "XXXX", 4, 0), 4);
        close(fd);
        spoiled++;
    }
    mxc_names_fini(&names);
    assert_int_equal(spoiled, 1);
    w->request.progress = NULL;
    assert_int_equal(download(w), MXC_OK);
    check_file(w, "own/tiny/model.safetensors", big, BIG);
    world_free(w);
}

static void range_unsupported(void **state) {
    (void)state;
    struct world *w = world_new();
    w->hub.no_range = true;
    w->hub.n_cuts = 1;
    w->hub.cut_bytes = 1 << 20;
    world_start(w);
    assert_int_equal(download(w), MXC_OK);
    check_file(w, "own/tiny/model.safetensors", big, BIG);
    assert_int_equal(w->result.received, BIG + (1 << 20) + sizeof config - 1);
    world_free(w);
}

static void range_wrong(void **state) {
    (void)state;
    struct world *w = world_new();
    w->hub.bad_range = true;
    w->hub.n_cuts = 1;
    w->hub.cut_bytes = 1 << 20;
    world_start(w);
    expect(w, MXC_E_NETWORK, "another part");
    assert_false(has(w, "own/tiny"));
    world_free(w);
}

static void wrong_hash(void **state) {
    (void)state;
    struct world *w = world_new();
    w->hub.files[1].hash = "00000000000000000000000000000000000000000000000000000000deadbeef";
    world_start(w);
    expect(w, MXC_E_FORMAT, "model.safetensors: wrong hash");
    assert_false(has(w, "own/tiny"));
    /* git's hash of a small file is checked as well */
    w->hub.files[1].hash = NULL;
    w->hub.files[0].hash = "00000000000000000000000000000000deadbeef";
    expect(w, MXC_E_FORMAT, "config.json: wrong hash");
    w->hub.files[0].hash = NULL;
    w->hub.files[1].listed_bytes = BIG - 5;
    expect(w, MXC_E_FORMAT, "longer than");
    w->hub.files[1].listed_bytes = BIG + 5;
    expect(w, MXC_E_NETWORK, "");
    assert_false(has(w, "own/tiny"));
    world_free(w);
}

static void refusals(void **state) {
    (void)state;
    struct world *w = world_new();
    world_start(w);
    w->request.revision = "missing";
    expect(w, MXC_E_NOT_FOUND, "own/tiny (missing)");
    w->request.revision = NULL;
    w->hub.status = 403;
    expect(w, MXC_E_NETWORK, "403");
    w->hub.status = 404;
    expect(w, MXC_E_NOT_FOUND, "config.json");
    w->hub.status = 0;
    w->hub.token = "secret";
    expect(w, MXC_E_NOT_FOUND, "HF_TOKEN");
    w->request.token = "secret";
    assert_int_equal(download(w), MXC_OK);
    w->request.token = "two\nlines";
    expect(w, MXC_E_ARG, "token");
    world_free(w);
}

static void busy_server(void **state) {
    (void)state;
    struct world *w = world_new();
    w->hub.n_failures = 3;
    world_start(w);
    assert_int_equal(download(w), MXC_OK);
    atomic_store(&w->hub.n_failures, 100);
    w->request.repo = "own/other";
    int before = atomic_load(&w->hub.n_file_requests);
    expect(w, MXC_E_NETWORK, "503");
    assert_int_equal(atomic_load(&w->hub.n_file_requests) - before, 4); /* one and three tries */
    world_free(w);
}

/* The token stays with the hub; another port is another host. */
static void redirected(void **state) {
    (void)state;
    struct world *w = world_new();
    struct hub *cdn = calloc(1, sizeof *cdn);
    assert_non_null(cdn);
    memcpy(cdn->files, w->hub.files, sizeof cdn->files);
    cdn->n_files = w->hub.n_files;
    hub_start(cdn);
    w->hub.redirect = cdn->url;
    w->hub.token = "secret";
    world_start(w);
    w->request.token = "secret";
    assert_int_equal(download(w), MXC_OK);
    check_file(w, "own/tiny/model.safetensors", big, BIG);
    assert_int_equal(atomic_load(&cdn->n_file_requests), 2);
    assert_int_equal(atomic_load(&cdn->n_tokens_seen), 0);
    assert_int_equal(atomic_load(&w->hub.n_tokens_seen), 4);
    /* out to plain http elsewhere: refused */
    w->hub.redirect = "http://192.0.2.1";
    w->request.repo = "own/other";
    expect(w, MXC_E_NETWORK, "plain http");
    w->hub.redirect = "ftp://127.0.0.1";
    expect(w, MXC_E_NETWORK, "not an http(s) address");
    world_free(w);
    hub_stop(cdn);
    free(cdn);
}

static void endless_redirect(void **state) {
    (void)state;
    struct world *w = world_new();
    world_start(w);
    w->hub.redirect_loop = true;
    expect(w, MXC_E_NETWORK, "too many redirects");
    assert_int_equal(atomic_load(&w->hub.n_file_requests), 11);
    w->hub.redirect_loop = false;
    w->hub.status = 302; /* without a Location */
    expect(w, MXC_E_NETWORK, "302");
    world_free(w);
}

static void plain_http(void **state) {
    (void)state;
    struct world *w = world_new();
    w->request.endpoint = "http://192.0.2.1";
    expect(w, MXC_E_ARG, "plain http to 192.0.2.1 is refused");
    w->request.endpoint = "http://127.0.0.1.example.org";
    expect(w, MXC_E_ARG, "plain http");
    w->request.endpoint = "file:///etc";
    expect(w, MXC_E_ARG, "not an http(s) address");
    w->request.endpoint = "http://user:pass@127.0.0.1";
    expect(w, MXC_E_ARG, "not an http(s) address");
    world_free(w);
}

/* A certificate that nobody vouches for is refused, until it is named as one to trust. */
static void certificates(void **state) {
    (void)state;
    struct world *w = world_new();
    char pem[128];
    (void)snprintf(pem, sizeof pem, "%s/hub.pem", w->root);
    hub_tls(&w->hub, pem);
    w->request.retries = 1;
    world_start(w);
    expect(w, MXC_E_NETWORK, "certificate");
    assert_int_equal(atomic_load(&w->hub.n_requests), 0);
    assert_int_equal(setenv("MLXCEL_EXTRA_CA_CERTS", pem, 1), 0);
    enum mxc_code code = download(w);
    unsetenv("MLXCEL_EXTRA_CA_CERTS");
    assert_int_equal(code, MXC_OK);
    check_file(w, "own/tiny/model.safetensors", big, BIG);
    /* from https to plain http: refused, even to loopback */
    w->hub.redirect = "http://127.0.0.1:1";
    w->request.repo = "own/other";
    assert_int_equal(setenv("MLXCEL_EXTRA_CA_CERTS", pem, 1), 0);
    code = download(w);
    unsetenv("MLXCEL_EXTRA_CA_CERTS");
    assert_int_equal(code, MXC_E_NETWORK);
    assert_non_null(strstr(w->err.message, "from https to plain http"));
    world_free(w);
}

static void names(void **state) {
    (void)state;
    static const char *const bad[] = {"../x", "x/../y", "a/b/c", "a/..", ".a/b", "a/.b",
                                      "",     "a//b",   "/a/b",  "a/b:", "a b/c"};
    struct world *w = world_new();
    world_start(w);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        w->request.repo = bad[i];
        expect(w, MXC_E_ARG, "is not a model name");
    }
    assert_int_equal(atomic_load(&w->hub.n_requests), 0);
    world_free(w);
}

/* What the hub lists cannot leave the entry. */
static void traversal(void **state) {
    (void)state;
    static const char *const bad[] = {"../x.json", "/etc/x.json", "a/../../x.json", "a//b.json",
                                      "./x.json",  "a\\\\b.json", "a\\u0001.json"};
    char lists[sizeof bad / sizeof bad[0]]
              [512]; /* the server's thread may still hold the last one */
    struct world *w = world_new();
    world_start(w);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char *list = lists[i];
        (void)snprintf(list, sizeof lists[i],
                       "[{\"type\":\"file\",\"path\":\"%s\",\"size\":1,"
                       "\"oid\":\"0123456789012345678901234567890123456789\"}]",
                       bad[i]);
        w->hub.raw_list = list;
        expect(w, MXC_E_FORMAT, "not safe");
    }
    w->hub.raw_list = "{}";
    expect(w, MXC_E_FORMAT, "not an array");
    w->hub.raw_list = "[{\"type\":\"file\",\"path\":\"config.json\",\"size\":1}]";
    expect(w, MXC_E_FORMAT, "config.json: no size or no git hash");
    w->hub.raw_list = "[{\"type\":\"file\",\"path\":\"config.json\",\"size\":-1,"
                      "\"oid\":\"0123456789012345678901234567890123456789\"}]";
    expect(w, MXC_E_FORMAT, "size");
    w->hub.raw_list = "[";
    expect(w, MXC_E_FORMAT, "");
    w->hub.raw_list = "[]";
    expect(w, MXC_E_NOT_FOUND, "no file that a model needs");
    world_free(w);
}

static void pages(void **state) {
    (void)state;
    struct world *w = world_new();
    w->hub.page = 2;
    world_start(w);
    assert_int_equal(download(w), MXC_OK);
    assert_int_equal(w->result.n_files, 2);
    assert_int_equal(atomic_load(&w->hub.n_requests), 1 + 3 + 2);
    world_free(w);
}

static void gguf(void **state) {
    (void)state;
    struct world *w = world_new();
    w->hub.n_files = 0;
    hub_add(&w->hub, "m-Q4_K_M.gguf", "k", 1, true);
    hub_add(&w->hub, "m-Q4_K_S.gguf", "s", 1, true);
    hub_add(&w->hub, "m-F16-00001-of-00002.gguf", "1", 1, true);
    hub_add(&w->hub, "m-F16-00002-of-00002.gguf", "2", 1, true);
    hub_add(&w->hub, "mmproj-F16.gguf", "p", 1, true);
    world_start(w);
    assert_int_equal(download(w), MXC_OK);
    assert_true(has(w, "own/tiny/m-Q4_K_M.gguf"));
    assert_false(has(w, "own/tiny/m-Q4_K_S.gguf"));
    w->request.repo = "own/tiny:q4_k";
    expect(w, MXC_E_ARG, "2 .gguf files match q4_k");
    w->request.repo = "own/tiny:f16";
    assert_int_equal(download(w), MXC_OK);
    assert_true(has(w, "own/tiny/m-F16-00001-of-00002.gguf"));
    assert_true(has(w, "own/tiny/m-F16-00002-of-00002.gguf"));
    assert_false(has(w, "own/tiny/mmproj-F16.gguf"));
    assert_true(has(w, "own/tiny/m-Q4_K_M.gguf")); /* the earlier one is kept */
    w->request.repo = "own/tiny:Q9";
    expect(w, MXC_E_NOT_FOUND, "Q9");
    world_free(w);
}

static void choices(void **state) {
    (void)state;
    const char *const include[] = {"*.md", "onnx/*"}, *const exclude[] = {"*.safetensors"};
    struct world *w = world_new();
    char local[128];
    world_start(w);
    (void)snprintf(local, sizeof local, "%s/here", w->root);
    w->request.local_dir = local;
    w->request.include = include;
    w->request.n_include = 2;
    assert_int_equal(download(w), MXC_OK);
    assert_true(has(w, "here/README.md"));
    assert_true(has(w, "here/onnx/model.onnx"));
    assert_false(has(w, "here/config.json"));
    assert_false(has(w, "here.partial"));
    w->request.local_dir = NULL;
    w->request.n_include = 0;
    w->request.exclude = exclude;
    w->request.n_exclude = 1;
    assert_int_equal(download(w), MXC_OK);
    assert_true(has(w, "own/tiny/config.json"));
    assert_false(has(w, "own/tiny/model.safetensors"));
    world_free(w);
}

static void locked(void **state) {
    (void)state;
    struct world *w = world_new();
    char path[128];
    world_start(w);
    put_file(w, ".partial/own/tiny/lock", "");
    (void)snprintf(path, sizeof path, "%s/.partial/own/tiny/lock", w->root);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    expect(w, MXC_E_BUSY, "another process");
    close(fd);
    assert_int_equal(download(w), MXC_OK);
    world_free(w);
}

/* Each allocation in turn fails: an error, no entry, and the next run succeeds. */
static void no_memory(void **state) {
    (void)state;
    struct world *w = world_new();
    w->hub.files[1].length = 1000;
    world_start(w);
    assert_int_equal(download(w), MXC_OK);
    unsigned n = 1, failed = 0;
    for (;; n++) {
        struct mxc_err err;
        assert_int_equal(mxc_store_remove(w->store, "own/tiny", NULL, &err), MXC_OK);
        mxc_mem_fail_at(n);
        enum mxc_code code = download(w);
        uint64_t calls = mxc_mem_calls();
        mxc_mem_fail_at(0);
        if (code) {
            failed++;
            /* nothing, or (when it failed after the rename) the whole */
            if (has(w, "own/tiny/config.json"))
                check_file(w, "own/tiny/model.safetensors", big, 1000);
            put_file(w, "own/tiny/x", ""); /* something for remove to find */
        }
        if (calls < n)
            break;
    }
    assert_true(failed > 20);
    world_free(w);
}

static int setup(void **state) {
    (void)state;
    if (!(big = malloc(BIG)))
        return -1;
    unsigned x = 1;
    for (size_t i = 0; i < BIG; i++) {
        x = x * 1664525u + 1013904223u;
        big[i] = (char)(x >> 24);
    }
    return 0;
}

static int teardown(void **state) {
    (void)state;
    free(big);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole),        cmocka_unit_test(update),
        cmocka_unit_test(resumed),      cmocka_unit_test(interrupted),
        cmocka_unit_test(spoiled_rest), cmocka_unit_test(range_unsupported),
        cmocka_unit_test(range_wrong),  cmocka_unit_test(wrong_hash),
        cmocka_unit_test(refusals),     cmocka_unit_test(busy_server),
        cmocka_unit_test(redirected),   cmocka_unit_test(endless_redirect),
        cmocka_unit_test(plain_http),   cmocka_unit_test(names),
        cmocka_unit_test(traversal),    cmocka_unit_test(pages),
        cmocka_unit_test(gguf),         cmocka_unit_test(choices),
        cmocka_unit_test(locked),       cmocka_unit_test(certificates),
        cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
