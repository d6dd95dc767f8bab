/* The prompt index: digests of files, which are remembered while a file is as it was, and whose
 * reading ends when it is told to. */
#define _GNU_SOURCE
#include "test.h"

#include "base/file.h"
#include "folder.h"
#include "server/prompt_index.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void write_file(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void digests(void **state) {
    char folder[] = "/tmp/mxc-index-XXXXXX", path[64], db[64];
    struct mxc_prompt_index *index;
    struct mxc_err err;
    uint8_t first[MXC_BLAKE2B_BYTES], again[MXC_BLAKE2B_BYTES], zeros[MXC_BLAKE2B_BYTES] = {0};
    const atomic_bool stop = true, go = false;
    bool renewed;
    (void)state;
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/weights", folder);
    (void)snprintf(db, sizeof db, "%s/index.db", folder);
    write_file(path, "some weights");
    assert_int_equal(mxc_prompt_index_open(db, &index, &renewed, &err), MXC_OK);

    memset(again, 0, sizeof again);
    assert_int_equal(mxc_prompt_index_digest(index, path, &stop, again, &err), MXC_E_CANCELLED);
    assert_memory_equal(again, zeros, sizeof again);
    assert_int_equal(mxc_prompt_index_digest(index, path, &go, first, &err), MXC_OK);
    assert_int_equal(mxc_prompt_index_digest(NULL, path, NULL, again, &err), MXC_OK);
    assert_memory_equal(first, again, sizeof first);
    /* remembered: nothing is read that could be stopped */
    assert_int_equal(mxc_prompt_index_digest(index, path, &stop, again, &err), MXC_OK);
    assert_memory_equal(first, again, sizeof first);
    write_file(path, "other weights");
    assert_int_equal(mxc_prompt_index_digest(index, path, &stop, again, &err), MXC_E_CANCELLED);
    assert_int_equal(mxc_prompt_index_digest(index, path, NULL, again, &err), MXC_OK);
    assert_memory_not_equal(first, again, sizeof first);
    (void)snprintf(path, sizeof path, "%s/none", folder);
    assert_int_equal(mxc_prompt_index_digest(index, path, NULL, again, &err), MXC_E_NOT_FOUND);
    assert_non_null(strstr(err.message, "none"));

    mxc_prompt_index_close(index);
    assert_int_equal(folder_remove(folder), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(digests)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
