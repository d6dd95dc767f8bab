/* Plugins out of wheels, from an index on loopback: whole, interrupted, refused, lied to; pip's
 * configuration; pages of both forms. Every test has folders of its own. */
#define _GNU_SOURCE
#include "test.h"

#include "hub_server.h"

#include "base/file.h"
#include "base/mem.h"
#include "store/pip_index.h"
#include "store/tree.h"
#include "store/xla_place.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <fcntl.h>
#include <unistd.h>

#ifdef MLXCEL_XLA_DEVICE_RUNTIME

#include "store/digest.h"
#include "store/wheel.h"

#include <zip.h>

/* ---- a wheel of our own ---- */

enum { PLUGIN_BYTES = 3 << 20 };
static char *plugin, *wheel;
static size_t wheel_bytes;
static char wheel_hash[MXC_DIGEST_HEX];

static int make_wheel(void **state) {
    (void)state;
    struct mxc_err err;
    char path[] = "/tmp/mxc-wheel-XXXXXX";
    int fd = mkstemp(path), why;
    if (fd < 0 || close(fd) || !(plugin = malloc(PLUGIN_BYTES)))
        return -1;
    for (uint32_t i = 0, x = 1; i < PLUGIN_BYTES; i++, x = x * 1664525 + 1013904223)
        plugin[i] = (char)(x >> 28); /* packs to half */
    zip_t *zip = zip_open(path, ZIP_TRUNCATE | ZIP_CREATE, &why);
    if (!zip || zip_file_add(zip, "demo/readme", zip_source_buffer(zip, "hello", 5, 0), 0) < 0 ||
        zip_file_add(zip, "demo/x/plugin.so", zip_source_buffer(zip, plugin, PLUGIN_BYTES, 0), 0) <
            0 ||
        zip_close(zip) < 0)
        return -1;
    struct mxc_digest *digest = NULL;
    if (mxc_file_read(path, 64 << 20, &wheel, &wheel_bytes, &err) ||
        mxc_digest_new(true, 0, &digest, &err) || !mxc_digest_add(digest, wheel, wheel_bytes) ||
        !mxc_digest_hex(digest, wheel_hash))
        return -1;
    mxc_digest_free(digest);
    return unlink(path);
}

static int drop_wheel(void **state) {
    (void)state;
    free(plugin);
    mxc_mem_free(wheel);
    return 0;
}

struct world {
    char root[64], page[1024], index[128];
    struct hub hub;
    struct mxc_wheel_pin pin;
    struct mxc_wheel_request request;
    struct mxc_err err;
    char *path;
    uint64_t cancel_at; /* bytes; 0: never */
    bool unpacked;
};

static bool watch(const struct mxc_wheel_progress *p, void *user) {
    struct world *w = user;
    w->unpacked |= !strcmp(p->doing, "unpacking") && p->done == p->total;
    return !w->cancel_at || p->done < w->cancel_at;
}

static struct world *world_new(void) {
    struct world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    (void)snprintf(w->root, sizeof w->root, "/tmp/mxc-xla-XXXXXX");
    assert_non_null(mkdtemp(w->root));
    w->pin = (struct mxc_wheel_pin){.kind = "demo",
                                    .project = "demo-plugin",
                                    .version = "1.2",
                                    .file = "demo_plugin-1.2-py3-none-any.whl",
                                    .sha256 = wheel_hash,
                                    .bytes = wheel_bytes,
                                    .plugin = "demo/x/plugin.so"};
    (void)snprintf(w->page, sizeof w->page,
                   "<!DOCTYPE html><html><body>\n<a href=\"x.whl\">demo_plugin-1.1-py3-none-any.whl"
                   "</a><br/>\n<a data-x='1'\n href=\"../../../o/n/resolve/main/wheel?a=1&amp;b=2"
                   "#sha256=%s\" >\n demo_plugin-1.2-py3-none-any.whl </a></body></html>",
                   wheel_hash);
    hub_add(&w->hub, "simple/demo-plugin/", w->page, strlen(w->page), false);
    hub_add(&w->hub, "main/wheel?a=1&b=2", wheel, wheel_bytes, false);
    hub_add(&w->hub, "wheel?a=1&b=2", wheel, wheel_bytes, false);
    w->request = (struct mxc_wheel_request){
        .pin = &w->pin, .root = w->root, .retry_ms = 1, .retries = 3, .progress = watch, .user = w};
    return w;
}

static void world_start(struct world *w) {
    hub_start(&w->hub);
    (void)snprintf(w->index, sizeof w->index, "%s/cdn/simple/", w->hub.url);
    w->request.index_url = w->index;
}

static enum mxc_code install(struct world *w) {
    mxc_mem_free(w->path);
    w->path = NULL;
    w->err.message[0] = 0;
    return mxc_wheel_install(&w->request, &w->path, &w->err);
}

static void expect(struct world *w, enum mxc_code code, const char *part) {
    enum mxc_code got = install(w);
    if (got != code || !strstr(w->err.message, part))
        fail_msg("code %d, message \"%s\"; expected %d and \"%s\"", (int)got, w->err.message,
                 (int)code, part);
    assert_null(w->path);
}

static bool has(const struct world *w, const char *name) {
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", w->root, name);
    return !access(path, F_OK);
}

static void check_installed(const struct world *w) {
    char *data;
    size_t n;
    char link[128];
    (void)snprintf(link, sizeof link, "%s/plugin", w->root);
    const char *const paths[] = {w->path, link};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(mxc_file_read(paths[i], 64 << 20, &data, &n, NULL), MXC_OK);
        assert_int_equal(n, PLUGIN_BYTES);
        assert_memory_equal(data, plugin, n);
        mxc_mem_free(data);
    }
    assert_false(has(w, "plugins/.partial"));
    assert_false(has(w, "plugins/demo-1.2/demo/readme"));
}

static void world_free(struct world *w) {
    struct mxc_err err;
    if (w->hub.thread)
        hub_stop(&w->hub);
    mxc_mem_free(w->path);
    assert_int_equal(mxc_tree_remove(w->root, &err), MXC_OK);
    free(w);
}

static void must(struct world *w) {
    if (install(w))
        fail_msg("%s", w->err.message);
    check_installed(w);
}

static void whole(void **state) {
    (void)state;
    struct world *w = world_new();
    world_start(w);
    must(w);
    assert_true(w->unpacked);
    int before = atomic_load(&w->hub.n_requests);
    must(w); /* again: nothing is asked */
    assert_int_equal(atomic_load(&w->hub.n_requests), before);
    /* a later version takes its place, another kind stays */
    assert_true(has(w, "plugins/demo-1.2/demo/x/plugin.so"));
    char path[128];
    struct mxc_err err;
    (void)snprintf(path, sizeof path, "%s/plugins/other-1", w->root);
    assert_int_equal(mxc_dir_make(path, &err), MXC_OK);
    w->pin.version = "1.3";
    must(w);
    assert_false(has(w, "plugins/demo-1.2"));
    assert_true(has(w, "plugins/other-1"));
    assert_non_null(strstr(w->path, "/plugins/demo-1.3/demo/x/plugin.so"));
    world_free(w);
}

static void interrupted(void **state) {
    (void)state;
    struct world *w = world_new();
    atomic_store(&w->hub.n_failures, 1);
    atomic_store(&w->hub.n_cuts, 2);
    w->hub.cut_bytes = 1 << 19;
    world_start(w);
    must(w); /* within one run */
    assert_int_equal(atomic_load(&w->hub.n_range_requests), 2);
    world_free(w);

    w = world_new(); /* and from one run to the next */
    world_start(w);
    w->cancel_at = 1 << 19;
    expect(w, MXC_E_CANCELLED, "what has arrived is kept");
    assert_true(has(w, "plugins/.partial"));
    w->cancel_at = 0;
    must(w);
    assert_int_equal(atomic_load(&w->hub.n_range_requests), 1);
    world_free(w);

    w = world_new(); /* of a server that knows no ranges */
    w->hub.no_range = true;
    world_start(w);
    w->cancel_at = 1 << 19;
    expect(w, MXC_E_CANCELLED, "");
    w->cancel_at = 0;
    must(w);
    world_free(w);

    w = world_new(); /* cancelled while it is unpacked: nothing half is there */
    world_start(w);
    w->cancel_at = wheel_bytes + 1;
    assert_true(wheel_bytes < PLUGIN_BYTES);
    expect(w, MXC_E_CANCELLED, "");
    assert_false(has(w, "plugins/demo-1.2/demo/x/plugin.so"));
    w->cancel_at = 0;
    must(w);
    world_free(w);
}

static void lied_to(void **state) {
    (void)state;
    static const char zeros[65] =
        "0000000000000000000000000000000000000000000000000000000000000000";
    struct world *w = world_new(); /* the page says another hash */
    memcpy(strstr(w->page, "sha256=") + 7, zeros, 64);
    world_start(w);
    expect(w, MXC_E_FORMAT, "the package index has another demo_plugin-1.2-py3-none-any.whl: hash");
    world_free(w);

    w = world_new(); /* the page says nothing, the bytes are others */
    memcpy(strstr(w->page, "#sha256="), "\" class=", 8);
    char *other = malloc(wheel_bytes);
    assert_non_null(other);
    memcpy(other, wheel, wheel_bytes);
    other[wheel_bytes / 2] ^= 1;
    w->hub.files[1].data = w->hub.files[2].data = other;
    world_start(w);
    expect(w, MXC_E_FORMAT, "has the wrong hash: ");
    assert_false(has(w, "plugin"));
    w->hub.files[1].data = w->hub.files[2].data =
        wheel; /* mended: not gone on from what is wrong */
    must(w);
    world_free(w);
    free(other);

    w = world_new(); /* longer than it must be */
    w->pin.bytes = wheel_bytes - 1;
    world_start(w);
    expect(w, MXC_E_FORMAT, "is longer than the ");
    world_free(w);

    w = world_new(); /* no such member */
    w->pin.plugin = "demo/y.so";
    world_start(w);
    expect(w, MXC_E_FORMAT, "demo/y.so cannot be found in it");
    world_free(w);

    w = world_new(); /* not a zip file */
    static const char text[] = "no zip";
    char hash[MXC_DIGEST_HEX];
    struct mxc_digest *digest;
    assert_int_equal(mxc_digest_new(true, 0, &digest, &w->err), MXC_OK);
    assert_true(mxc_digest_add(digest, text, 6) && mxc_digest_hex(digest, hash));
    mxc_digest_free(digest);
    memcpy(strstr(w->page, "sha256=") + 7, hash, 64);
    w->pin.sha256 = hash;
    w->pin.bytes = 6;
    w->hub.files[1].data = w->hub.files[2].data = text;
    w->hub.files[1].length = w->hub.files[2].length = 6;
    world_start(w);
    expect(w, MXC_E_FORMAT, "cannot be found in it: not a zip file");
    world_free(w);
}

static void refused(void **state) {
    (void)state;
    struct world *w = world_new(); /* the index does not list the file, or not the project */
    w->pin.file = "demo_plugin-9-py3-none-any.whl";
    world_start(w);
    expect(w, MXC_E_NOT_FOUND, "the package index does not list demo_plugin-9-py3-none-any.whl");
    w->pin.project = "other";
    expect(w, MXC_E_NOT_FOUND, "not found (404)");
    world_free(w);

    w = world_new(); /* another process is at it */
    world_start(w);
    char path[256];
    (void)snprintf(path, sizeof path, "%s/plugins/.partial", w->root);
    assert_int_equal(mxc_dir_make(path, &w->err), MXC_OK);
    (void)snprintf(path, sizeof path, "%s/plugins/.partial/%s", w->root, wheel_hash);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0 && !flock(fd, LOCK_EX));
    expect(w, MXC_E_BUSY, "another process is installing this plugin");
    close(fd);
    must(w);
    world_free(w);

    w = world_new(); /* plain http to elsewhere, and an address that is none */
    w->request.index_url = "http://index.example/simple";
    expect(w, MXC_E_ARG, "plain http to index.example is refused");
    w->request.index_url = "ftp://index.example/simple";
    expect(w, MXC_E_ARG, "is not an http(s) address");
    w->request.index_url = "https://me:secret@index.example/simple";
    expect(w, MXC_E_UNSUPPORTED, "holds a user name");
    assert_null(strstr(w->err.message, "secret"));
    world_free(w);
}

static void memory_may_run_out(void **state) {
    (void)state;
    struct world *w = world_new();
    world_start(w);
    for (uint64_t i = 1;; i++) {
        mxc_mem_fail_at(i);
        enum mxc_code code = install(w);
        bool done = mxc_mem_calls() < i;
        mxc_mem_fail_at(0);
        if (done) {
            assert_int_equal(code, MXC_OK);
            break;
        }
        assert_true(code != MXC_OK);
        assert_null(w->path);
    }
    check_installed(w);
    world_free(w);
}

static void kinds_are_pinned(void **state) {
    (void)state;
    const struct mxc_wheel_pin *pin = NULL;
    struct mxc_err err;
    static const char *const kinds[] = {"cpu", "cuda12", "cuda13", "rocm"};
    for (int i = 0; i < 4; i++) {
        if (mxc_wheel_pin_find(kinds[i], &pin, &err) == MXC_E_UNSUPPORTED)
            continue; /* another processor */
        assert_string_equal(pin->kind, kinds[i]);
        assert_true(mxc_digest_valid(pin->sha256, true));
        assert_non_null(strstr(pin->file, pin->version));
        assert_true(pin->bytes > 1 << 20);
    }
    assert_int_equal(mxc_wheel_pin_find("gpu", &pin, &err), MXC_E_ARG);
    assert_string_equal(err.message, "\"gpu\" is not a kind of plugin: cpu, cuda12, cuda13, rocm");
}

static void what_is_installed_is_found(void **state) {
    (void)state;
    struct world *w = world_new();
    struct mxc_xla_place place;
    world_start(w);
    char xla[128];
    (void)snprintf(xla, sizeof xla, "%s/xla", w->root);
    (void)setenv("MLXCEL_CACHE_DIR", w->root, 1);
    assert_int_equal(mxc_xla_place_find(&place, &w->err), MXC_OK);
    assert_null(place.plugin);
    assert_string_equal(place.root, xla);
    mxc_xla_place_fini(&place);
    w->request.root = NULL;
    if (install(w))
        fail_msg("%s", w->err.message);
    assert_int_equal(mxc_xla_place_find(&place, &w->err), MXC_OK);
    assert_string_equal(place.plugin, w->path);
    mxc_xla_place_fini(&place);
    (void)unlink(w->path); /* a link to nothing is no plugin */
    assert_int_equal(mxc_xla_place_find(&place, &w->err), MXC_OK);
    assert_null(place.plugin);
    mxc_xla_place_fini(&place);
    (void)unsetenv("MLXCEL_CACHE_DIR");
    world_free(w);
}

#endif

/* ---- configuration ---- */

static void write_text(const char *dir, const char *name, const char *text) {
    char path[256], parent[256];
    struct mxc_err err;
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    (void)snprintf(parent, sizeof parent, "%.*s", (int)(strrchr(path, '/') - path), path);
    assert_int_equal(mxc_dir_make(parent, &err), MXC_OK);
    assert_int_equal(mxc_file_write(path, text, strlen(text), &err), MXC_OK);
}

static void expect_index(const char *given, const char *expected) {
    char *url = NULL;
    struct mxc_err err;
    if (mxc_pip_index_find(given, &url, &err))
        fail_msg("%s", err.message);
    assert_string_equal(url, expected);
    mxc_mem_free(url);
}

static void the_index_is_pips(void **state) {
    (void)state;
    char dir[] = "/tmp/mxc-pip-XXXXXX", file[64];
    struct mxc_err err;
    assert_non_null(mkdtemp(dir));
    (void)snprintf(file, sizeof file, "%s/own.conf", dir);
    (void)unsetenv("PIP_INDEX_URL");
    (void)unsetenv("VIRTUAL_ENV");
    (void)unsetenv("XDG_CONFIG_HOME");
    (void)setenv("HOME", dir, 1);
    (void)setenv("PIP_CONFIG_FILE", "/dev/null", 1); /* pip's way to have no files at all */
    char *url = NULL;
    write_text(dir, ".config/pip/pip.conf", "[global]\nindex-url = https://user/simple\n");
    assert_int_equal(mxc_pip_index_find(NULL, &url, &err), MXC_E_NOT_FOUND);
    assert_non_null(strstr(err.message, "set PIP_INDEX_URL"));
    (void)unsetenv("PIP_CONFIG_FILE");
    expect_index(NULL, "https://user/simple");
    write_text(dir, "own.conf",
               "; a comment\n[list]\nindex-url=https://wrong\n[Global]\r\n# index-url = no\n"
               "Index_URL: https://own/simple \r\nindex-url-not = x\n");
    (void)setenv("PIP_CONFIG_FILE", file, 1);
    expect_index(NULL, "https://own/simple");
    write_text(dir, "own.conf",
               "[install]\nindex-url = https://install/\n[global]\nindex-url=https://global\n");
    expect_index(NULL, "https://install/");
    write_text(dir, "own.conf", "[global]\nno-index\n");
    write_text(dir, "venv/pip.conf", "[global]\nindex-url=https://venv\n");
    char venv[64];
    (void)snprintf(venv, sizeof venv, "%s/venv", dir);
    (void)setenv("VIRTUAL_ENV", venv, 1);
    expect_index("", "https://venv");
    (void)setenv("PIP_INDEX_URL", "https://set", 1);
    expect_index(NULL, "https://set");
    expect_index("https://given", "https://given");
    (void)unsetenv("PIP_INDEX_URL");
    (void)unsetenv("PIP_CONFIG_FILE");
    (void)unsetenv("VIRTUAL_ENV");
    assert_int_equal(mxc_tree_remove(dir, &err), MXC_OK);
}

static void expect_file(const char *page, enum mxc_code code, const char *expected,
                        const char *hash) {
    char *url = NULL, sha256[65] = "x";
    struct mxc_err err;
    enum mxc_code got = mxc_pip_index_file(page, strlen(page), "https://i.example/s/p/", "f-1.whl",
                                           &url, sha256, &err);
    if (got != code)
        fail_msg("%d for %s", (int)got, page);
    if (!code) {
        assert_string_equal(url, expected);
        assert_string_equal(sha256, hash);
    }
    mxc_mem_free(url);
}

static void pages_of_both_forms_are_read(void **state) {
    (void)state;
#define HASH "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
    expect_file("<a href='f-1.whl'>f-1.whl</a>", MXC_OK, "https://i.example/s/p/f-1.whl", "");
    expect_file("<A HREF='x'>y</A><a href=\"/d/f-1.whl#sha256=" HASH "\">f-1.whl</a>", MXC_OK,
                "https://i.example/d/f-1.whl", HASH);
    expect_file("<a href=\"https://o.example/f#md5=1\">f-1.whl</a>", MXC_OK, "https://o.example/f",
                "");
    expect_file("<abbr>f-1.whl</abbr> <a href='g'>f-1.whl.metadata</a>", MXC_E_NOT_FOUND, "", "");
    expect_file("<a name=x>f-1.whl</a>", MXC_E_NOT_FOUND, "", "");
    expect_file("<a href='f", MXC_E_NOT_FOUND, "", "");
    expect_file("<a href='f>f-1.whl</a>", MXC_E_NOT_FOUND, "", "");
    expect_file("", MXC_E_NOT_FOUND, "", "");
    expect_file(
        "{\"files\": [{\"filename\": \"a\"}, {\"filename\": \"f-1.whl\", \"url\": \"../f\", "
        "\"hashes\": {\"sha256\": \"" HASH "\"}}]}",
        MXC_OK, "https://i.example/s/f", HASH);
    expect_file("{\"files\": 3}", MXC_E_NOT_FOUND, "", "");
    expect_file("{\"files\": ", MXC_E_FORMAT, "", "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_index_is_pips),
        cmocka_unit_test(pages_of_both_forms_are_read),
#ifdef MLXCEL_XLA_DEVICE_RUNTIME
        cmocka_unit_test(whole),
        cmocka_unit_test(interrupted),
        cmocka_unit_test(lied_to),
        cmocka_unit_test(refused),
        cmocka_unit_test(memory_may_run_out),
        cmocka_unit_test(kinds_are_pinned),
        cmocka_unit_test(what_is_installed_is_found),
    };
    return cmocka_run_group_tests(tests, make_wheel, drop_wheel);
#else
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
#endif
}
