/* Helpers of the picture tests; see data.h. */
#define _GNU_SOURCE
#include "data.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"

#include <inttypes.h>
#include <stdio.h>

struct file data_file(const char *name) {
    struct file f;
    char path[512];
    struct mxc_err err;
    (void)snprintf(path, sizeof path, "%s/image/%s", MXC_TEST_DATA, name);
    if (mxc_file_read(path, 16 << 20, &f.data, &f.size, &err))
        fail_msg("%s", err.message);
    return f;
}

void data_free(struct file *file) {
    mxc_mem_free(file->data);
    *file = (struct file){0};
}

json_t *data_json(const char *name) {
    json_t *root = NULL;
    char path[512];
    struct mxc_err err;
    (void)snprintf(path, sizeof path, "%s/image/%s", MXC_TEST_DATA, name);
    if (mxc_json_load(path, 16 << 20, &root, &err))
        fail_msg("%s", err.message);
    return root;
}

struct mxc_image data_image(const char *name) {
    struct mxc_image image = {0};
    struct mxc_err err;
    struct file f = data_file(name);
    if (mxc_image_decode(f.data, f.size, NULL, &image, &err))
        fail_msg("%s: %s", name, err.message);
    data_free(&f);
    return image;
}

void data_hash(const void *bytes, size_t length, char out[17]) {
    (void)snprintf(out, 17, "%016" PRIx64, mxc_hash_bytes(bytes, length, 0));
}

struct mxc_image data_noise(int width, int height, uint32_t seed) {
    struct mxc_image image;
    assert_int_equal(mxc_image_init(width, height, &image, NULL), MXC_OK);
    for (size_t i = 0; i < (size_t)width * (size_t)height * 3; i++) {
        seed = seed * 1664525u + 1013904223u;
        image.rgb[i] = (uint8_t)(seed >> 24);
    }
    return image;
}

void data_fail_each(bool (*step)(void *context), void *context) {
    for (uint64_t n = 1; n < 100; n++) {
        mxc_mem_fail_at(n);
        bool ok = step(context);
        bool reached = mxc_mem_calls() >= n;
        mxc_mem_fail_at(0);
        assert_true(ok != reached);
        if (ok) {
            assert_true(n > 1);
            return;
        }
    }
    fail_msg("never succeeds");
}
