/* What KV depends on besides its text, with operations on weights: the identity is the same again
 * for the same files, and another one with a document, with another document of the same name, and
 * with other contents of a source that the document names. */
#define _GNU_SOURCE
#include "test.h"

#include "folder.h"
#include "server/prompt_cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HEAD "version: 1\noperations:\n"
#define ADD                                                                                        \
    HEAD "  - {op: add, pattern: model.norm.weight, source: donor.safetensors, alpha: 0.5}\n"

struct identity {
    uint8_t bytes[MXC_BLAKE2B_BYTES];
};

static void identify(const char *surgery, struct identity *id) {
    struct mxc_host *host = NULL;
    struct mxc_host_model_options o;
    struct mxc_host_info info;
    struct mxc_err err = {.message = ""};
    mxc_host_model_options_init(&o);
    o.path = MXC_TEST_DATA "/golden/llama";
    o.name = "tiny";
    o.n_threads = 1;
    o.context = 64;
    o.surgery = surgery;
    if (mxc_host_new(&host, &err) || mxc_host_add(host, &o, &err) ||
        mxc_host_start(host, NULL, NULL, &err))
        fail_msg("%s", err.message);
    do {
        (void)usleep(1000);
        mxc_host_info(host, 0, &info);
    } while (info.state == MXC_HOST_LOADING);
    if (info.state != MXC_HOST_READY)
        fail_msg("%s", info.err.message);
    if (mxc_prompt_identity(host, 0, NULL, NULL, id->bytes, &err))
        fail_msg("%s", err.message);
    mxc_host_free(host);
}

static const char *in(const char *folder, const char *name, char path[128]) {
    (void)snprintf(path, 128, "%s/%s", folder, name);
    return path;
}

static void write_file(const char *path, const void *bytes, size_t n) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* A safetensors file with model.norm.weight, 64 numbers that are all x. */
static void write_donor(const char *path, float x) {
    static const char head[] = "{\"model.norm.weight\":{\"dtype\":\"F32\",\"shape\":[64],"
                               "\"data_offsets\":[0,256]}}";
    struct {
        uint8_t bytes[8 + sizeof head - 1 + 256];
    } file;
    const uint64_t length = sizeof head - 1;
    memcpy(file.bytes, &length, 8);
    memcpy(file.bytes + 8, head, sizeof head - 1);
    for (size_t i = 0; i < 64; i++)
        memcpy(file.bytes + 8 + sizeof head - 1 + i * sizeof x, &x, sizeof x);
    write_file(path, file.bytes, sizeof file.bytes);
}

static bool same(const struct identity *a, const struct identity *b) {
    return !memcmp(a, b, sizeof *a);
}

static void documents_and_sources(void **state) {
    (void)state;
    static const char once[] = HEAD "  - {op: scale, pattern: lm_head.weight, factor: 2}\n";
    static const char twice[] = HEAD "  - {op: scale, pattern: lm_head.weight, factor: 3}\n";
    char folder[] = "/tmp/mlxcel_identity_XXXXXX", yaml[128], donor[128];
    struct identity ids[6], again;
    assert_non_null(mkdtemp(folder));
    (void)in(folder, "cut.yaml", yaml);
    (void)in(folder, "donor.safetensors", donor);
    identify("", &ids[0]);
    identify("", &again);
    assert_true(same(&again, &ids[0]));
    write_file(yaml, once, sizeof once - 1);
    identify(yaml, &ids[1]);
    identify(yaml, &again);
    assert_true(same(&again, &ids[1]));
    write_file(yaml, twice, sizeof twice - 1);
    identify(yaml, &ids[2]);
    write_file(yaml, ADD, sizeof ADD - 1);
    write_donor(donor, 1);
    identify(yaml, &ids[3]);
    write_donor(donor, 2); /* the document says the same */
    identify(yaml, &ids[4]);
    write_file(yaml, "version: 1\n", 11);
    identify(yaml, &ids[5]);
    for (int i = 0; i < 6; i++)
        for (int k = 0; k < i; k++)
            if (same(&ids[i], &ids[k]))
                fail_msg("%d and %d are the same", k, i);
    write_file(yaml, ADD, sizeof ADD - 1);
    write_donor(donor, 1);
    identify(yaml, &again);
    assert_true(same(&again, &ids[3]));
    assert_int_equal(folder_remove(folder), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(documents_and_sources)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
