/* The store without a network: where it is, names, resolve, list, rm, the Hugging Face cache. */
#define _GNU_SOURCE
#include "test.h"

#include "base/file.h"
#include "base/mem.h"
#include "store/names.h"
#include "store/store.h"
#include "store/tree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[64];
static struct mxc_store *store;

static void put(const char *name, const char *text) {
    char path[512], dir[512];
    struct mxc_err err;
    (void)snprintf(path, sizeof path, "%s/%s", root, name);
    (void)snprintf(dir, sizeof dir, "%.*s", (int)(strrchr(path, '/') - path), path);
    assert_int_equal(mxc_dir_make(dir, &err), MXC_OK);
    assert_int_equal(mxc_file_write(path, text, strlen(text), &err), MXC_OK);
}

static bool has(const char *name) {
    char path[512];
    struct stat st;
    (void)snprintf(path, sizeof path, "%s/%s", root, name);
    return !lstat(path, &st);
}

static int setup(void **state) {
    (void)state;
    char path[128];
    struct mxc_err err;
    (void)snprintf(root, sizeof root, "/tmp/mxc-store-XXXXXX");
    if (!mkdtemp(root))
        return -1;
    (void)snprintf(path, sizeof path, "%s/hf", root);
    setenv("HF_HUB_CACHE", path, 1);
    unsetenv("MLXCEL_DEFAULT_ORG");
    (void)snprintf(path, sizeof path, "%s/store", root);
    return mxc_store_open(path, &store, &err) ? -1 : 0;
}

static int teardown(void **state) {
    (void)state;
    struct mxc_err err;
    mxc_store_close(store);
    return mxc_tree_remove(root, &err) ? -1 : 0;
}

static void check(const char *model, const char *path, const char *name, enum mxc_model_kind kind,
                  enum mxc_model_source source) {
    struct mxc_model_place place;
    struct mxc_err err = {0};
    char full[512];
    (void)snprintf(full, sizeof full, "%s/%s", root, path);
    if (mxc_store_resolve(store, model, &place, &err))
        fail_msg("%s: %s", model, err.message);
    assert_string_equal(place.path, full);
    assert_string_equal(place.name, name);
    assert_int_equal(place.kind, kind);
    assert_int_equal(place.source, source);
    mxc_model_place_fini(&place);
}

static void check_bad(const char *model, enum mxc_code code, const char *part) {
    struct mxc_model_place place;
    struct mxc_err err = {0};
    enum mxc_code got = mxc_store_resolve(store, model, &place, &err);
    if (got != code || !strstr(err.message, part))
        fail_msg("%s: code %d, message \"%s\"", model, (int)got, err.message);
}

static void roots(void **state) {
    (void)state;
    struct mxc_store *s;
    struct mxc_err err;
    setenv("MLXCEL_MODELS_DIR", "/a/b/", 1);
    setenv("MLXCEL_CACHE_DIR", "/c", 1);
    assert_int_equal(mxc_store_open("/flag", &s, &err), MXC_OK);
    assert_string_equal(mxc_store_root(s), "/flag");
    mxc_store_close(s);
    assert_int_equal(mxc_store_open(NULL, &s, &err), MXC_OK);
    assert_string_equal(mxc_store_root(s), "/a/b");
    mxc_store_close(s);
    unsetenv("MLXCEL_MODELS_DIR");
    assert_int_equal(mxc_store_open("", &s, &err), MXC_OK);
    assert_string_equal(mxc_store_root(s), "/c/models");
    mxc_store_close(s);
    unsetenv("MLXCEL_CACHE_DIR");
    setenv("HOME", "/h", 1);
    assert_int_equal(mxc_store_open(NULL, &s, &err), MXC_OK);
    assert_string_equal(mxc_store_root(s), "/h/.cache/mlxcel/models");
    mxc_store_close(s);
    setenv("MLXCEL_DEFAULT_ORG", "../x", 1);
    assert_int_equal(mxc_store_open(NULL, &s, &err), MXC_E_ARG);
    unsetenv("MLXCEL_DEFAULT_ORG");
}

static void resolve(void **state) {
    (void)state;
    char path[256];
    put("store/own/st/config.json", "{}");
    put("store/own/st/model.safetensors", "x");
    put("store/mlx-community/org/config.json", "{}");
    put("store/mlx-community/org/model.safetensors", "x");
    put("store/own/one/m.gguf", "x");
    put("store/own/two/m-Q4_0.gguf", "x");
    put("store/own/two/m-Q8_0.gguf", "x");
    put("store/own/tok/tokenizer.json", "{}");
    put("dir/tokenizer.json", "{}");
    put("file.gguf", "x");
    put("file.txt", "x");
    check("own/st", "store/own/st", "own/st", MXC_MODEL_SAFETENSORS, MXC_PLACE_STORE);
    check("st", "store/own/st", "own/st", MXC_MODEL_SAFETENSORS, MXC_PLACE_STORE);
    check("org", "store/mlx-community/org", "mlx-community/org", MXC_MODEL_SAFETENSORS,
          MXC_PLACE_STORE);
    check("one", "store/own/one/m.gguf", "own/one", MXC_MODEL_GGUF, MXC_PLACE_STORE);
    check("own/two:q8_0", "store/own/two/m-Q8_0.gguf", "own/two", MXC_MODEL_GGUF, MXC_PLACE_STORE);
    check("tok", "store/own/tok", "own/tok", MXC_MODEL_UNKNOWN, MXC_PLACE_STORE);
    (void)snprintf(path, sizeof path, "%s/dir//", root);
    check(path, "dir", "dir", MXC_MODEL_UNKNOWN, MXC_PLACE_PATH);
    (void)snprintf(path, sizeof path, "%s/file.gguf", root);
    check(path, "file.gguf", "file.gguf", MXC_MODEL_GGUF, MXC_PLACE_PATH);
    (void)snprintf(path, sizeof path, "%s/file.txt", root);
    check_bad(path, MXC_E_UNSUPPORTED, "folder or a .gguf");
    check_bad("own/two", MXC_E_ARG, "m-Q4_0.gguf, m-Q8_0.gguf");
    check_bad("own/st:Q4", MXC_E_NOT_FOUND, "no .gguf");
    check_bad("own/sx", MXC_E_NOT_FOUND, "did you mean own/st?");
    check_bad("../store/own/nothing", MXC_E_NOT_FOUND, "no model");
    check_bad("", MXC_E_ARG, "empty");
    put("store/other/st/config.json", "{}");
    check_bad("st", MXC_E_ARG, "2 owners");
    put("store/own/st/.mlxcel-updating", "");
    check_bad("own/st", MXC_E_FORMAT, "interrupted");
    put("store/.partial/own/half/config.json", "{}");
    check_bad("own/half", MXC_E_NOT_FOUND, "no model");
}

static void hf_cache(void **state) {
    (void)state;
    char target[256], link_name[256];
    put("hf/models--o--n/refs/main", "abc\n");
    put("hf/models--o--n/blobs/1", "x");
    put("hf/models--o--n/snapshots/abc/config.json", "{}");
    put("hf/models--o--n/snapshots/abc/model.safetensors.index.json",
        "{\"weight_map\": {\"a\": \"model-1.safetensors\", \"b\": \"model-2.safetensors\"}}");
    put("hf/models--o--n/snapshots/abc/model-1.safetensors", "x");
    check_bad("o/n", MXC_E_NOT_FOUND, "no model"); /* a shard is missing */
    (void)snprintf(target, sizeof target, "%s/hf/models--o--n/blobs/1", root);
    (void)snprintf(link_name, sizeof link_name, "%s/hf/models--o--n/snapshots/abc/%s", root,
                   "model-2.safetensors");
    assert_int_equal(symlink(target, link_name), 0);
    check("o/n", "hf/models--o--n/snapshots/abc", "o/n", MXC_MODEL_SAFETENSORS, MXC_PLACE_HF_CACHE);
    put("store/o/n/config.json", "{}");
    put("store/o/n/m.safetensors", "x");
    check("o/n", "store/o/n", "o/n", MXC_MODEL_SAFETENSORS, MXC_PLACE_STORE);
    /* rm never touches the cache */
    assert_int_equal(mxc_store_remove(store, "o/n", NULL, NULL), MXC_OK);
    assert_int_equal(mxc_store_remove(store, "o/n", NULL, NULL), MXC_E_NOT_FOUND);
    check("o/n", "hf/models--o--n/snapshots/abc", "o/n", MXC_MODEL_SAFETENSORS, MXC_PLACE_HF_CACHE);
    put("hf/models--o--n/refs/main", "../../../store");
    check_bad("o/n", MXC_E_NOT_FOUND, "no model");
}

static void list(void **state) {
    (void)state;
    struct mxc_store_list entries;
    struct mxc_err err;
    assert_int_equal(mxc_store_list(store, &entries, &err), MXC_OK);
    assert_int_equal(entries.n, 0);
    mxc_store_list_fini(&entries);
    put("store/b/x/config.json", "{}");
    put("store/b/x/sub/model.safetensors", "12345");
    put("store/b/x/model.safetensors", "12345");
    put("store/a/y/m.gguf", "123");
    put("store/.partial/a/z/m.gguf", "123");
    put("store/a/u/.mlxcel-updating", "");
    put("store/stray.txt", "");
    assert_int_equal(mxc_store_list(store, &entries, &err), MXC_OK);
    assert_int_equal(entries.n, 2);
    assert_string_equal(entries.entries[0].name, "a/y");
    assert_int_equal(entries.entries[0].kind, MXC_MODEL_GGUF);
    assert_int_equal(entries.entries[0].bytes, 3);
    assert_string_equal(entries.entries[1].name, "b/x");
    assert_int_equal(entries.entries[1].bytes, 12);
    assert_int_equal(entries.entries[1].n_files, 3);
    assert_true(entries.entries[1].modified > 1600000000);
    mxc_store_list_fini(&entries);
}

static void removal(void **state) {
    (void)state;
    char target[256], link_name[256];
    struct mxc_err err;
    uint64_t freed = 0;
    put("store/own/m/config.json", "{}");
    put("store/own/m/deep/er/x", "123");
    put("store/own/n/x", "1");
    put("store/.partial/own/m/y", "1234");
    put("outside/keep", "x");
    (void)snprintf(target, sizeof target, "%s/outside", root);
    (void)snprintf(link_name, sizeof link_name, "%s/store/own/m/escape", root);
    assert_int_equal(symlink(target, link_name), 0);
    assert_int_equal(mxc_store_remove(store, "own/m", &freed, &err), MXC_OK);
    assert_int_equal(freed, 2 + 3 + 4);
    assert_false(has("store/own/m"));
    assert_false(has("store/.partial"));
    assert_true(has("outside/keep"));
    assert_true(has("store/own/n/x"));
    /* an entry that is a link: the link goes, its target stays */
    (void)snprintf(link_name, sizeof link_name, "%s/store/own/link", root);
    assert_int_equal(symlink(target, link_name), 0);
    assert_int_equal(mxc_store_remove(store, "own/link", &freed, &err), MXC_OK);
    assert_false(has("store/own/link"));
    assert_true(has("outside/keep"));
    /* an owner that is a link leads out of the store */
    (void)snprintf(link_name, sizeof link_name, "%s/store/far", root);
    assert_int_equal(symlink(target, link_name), 0);
    put("outside/keep2/x", "1");
    assert_int_equal(mxc_store_remove(store, "far/keep2", &freed, &err), MXC_E_ARG);
    assert_true(has("outside/keep2/x"));
    assert_int_equal(mxc_store_remove(store, "../outside", &freed, &err), MXC_E_ARG);
    assert_int_equal(mxc_store_remove(store, "own/n:Q4", &freed, &err), MXC_E_ARG);
    assert_int_equal(mxc_store_remove(store, "own/none", &freed, &err), MXC_E_NOT_FOUND);
    assert_int_equal(mxc_store_remove(store, "own/n", &freed, &err), MXC_OK);
    assert_false(has("store/own")); /* empty */
}

static void picks(void **state) {
    (void)state;
    const char *const paths[] = {"a.json",
                                 "x-Q4_K_M.gguf",
                                 "x-Q4_K.gguf",
                                 "mmproj-x.gguf",
                                 "x-Q8_0.gguf",
                                 "big-00001-of-00002.gguf",
                                 "big-00002-of-00002.gguf"};
    size_t n = sizeof paths / sizeof paths[0], index = 99;
    unsigned part;
    struct mxc_err err;
    assert_int_equal(mxc_gguf_pick(paths, n, "q4_k", false, &index, &err), MXC_OK);
    assert_int_equal(index, 2);
    assert_int_equal(mxc_gguf_pick(paths, n, "Q8", false, &index, &err), MXC_OK);
    assert_int_equal(index, 4);
    assert_int_equal(mxc_gguf_pick(paths, n, "big", false, &index, &err), MXC_OK);
    assert_int_equal(index, 5);
    assert_int_equal(mxc_gguf_pick(paths, n, NULL, true, &index, &err), MXC_OK);
    assert_int_equal(index, 1);
    assert_int_equal(mxc_gguf_pick(paths, n, NULL, false, &index, &err), MXC_E_ARG);
    assert_int_equal(mxc_gguf_pick(paths, n, "Q5", true, &index, &err), MXC_E_NOT_FOUND);
    assert_int_equal(mxc_gguf_pick(paths, 1, NULL, true, &index, &err), MXC_E_NOT_FOUND);
    assert_int_equal(mxc_gguf_stem("a-00002-of-00010.gguf", &part), 1);
    assert_int_equal(part, 2);
    assert_int_equal(mxc_gguf_stem("a.gguf", &part), 1);
    assert_int_equal(part, 1);
    assert_int_equal(mxc_gguf_stem("-0000x-of-00010.gguf", &part), 15);
}

/* Each allocation in turn fails: an error or the right answer, never a crash or a leak. */
static void no_memory(void **state) {
    (void)state;
    char path[128];
    (void)snprintf(path, sizeof path, "%s/store", root);
    put("store/own/st/config.json", "{}");
    put("store/own/st/model.safetensors", "x");
    for (unsigned n = 1;; n++) {
        struct mxc_store *s = NULL;
        struct mxc_model_place place = {0};
        struct mxc_store_list entries = {0};
        mxc_mem_fail_at(n);
        enum mxc_code code = mxc_store_open(path, &s, NULL);
        if (!code && !(code = mxc_store_resolve(s, "st", &place, NULL)))
            code = mxc_store_list(s, &entries, NULL);
        uint64_t calls = mxc_mem_calls();
        mxc_mem_fail_at(0);
        assert_true(code == MXC_OK || code == MXC_E_NOMEM || code == MXC_E_NOT_FOUND);
        if (!code)
            assert_int_equal(entries.n, 1);
        mxc_store_list_fini(&entries);
        mxc_model_place_fini(&place);
        mxc_store_close(s);
        if (calls < n) {
            assert_int_equal(code, MXC_OK);
            break;
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(roots, setup, teardown),
        cmocka_unit_test_setup_teardown(resolve, setup, teardown),
        cmocka_unit_test_setup_teardown(hf_cache, setup, teardown),
        cmocka_unit_test_setup_teardown(list, setup, teardown),
        cmocka_unit_test_setup_teardown(removal, setup, teardown),
        cmocka_unit_test_setup_teardown(picks, setup, teardown),
        cmocka_unit_test_setup_teardown(no_memory, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
