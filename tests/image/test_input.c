/* Data URIs and base64 as clients write them, and as they break them; files with a limit. */
#define _GNU_SOURCE
#include "data.h"

#include "base/mem.h"
#include "image/input.h"

#include <stdio.h>
#include <string.h>

static void gives(const char *uri, const char *bytes, size_t n) {
    uint8_t *data;
    size_t size;
    struct mxc_err err;
    if (mxc_image_from_uri(mxc_str_of(uri), 1000, &data, &size, &err))
        fail_msg("%s: %s", uri, err.message);
    assert_int_equal(size, n);
    assert_memory_equal(data, bytes, n);
    mxc_mem_free(data);
}

static void refuses(const char *uri, size_t max_bytes, enum mxc_code expected, const char *words) {
    uint8_t *data;
    size_t size;
    struct mxc_err err;
    enum mxc_code code = mxc_image_from_uri(mxc_str_of(uri), max_bytes, &data, &size, &err);
    if (code != expected || !strstr(err.message, words))
        fail_msg("%s: %d %s", uri, code, code ? err.message : "");
}

static void uris(void **state) {
    (void)state;
    gives("data:image/png;base64,aGVsbG8=", "hello", 5);
    gives("DATA:IMAGE/PNG;BASE64,aGVsbG8=", "hello", 5);
    gives(" data:image/png;charset=utf-8;name=\"a\";base64,aGVsbG8=\n", "hello", 5);
    gives("data:;base64,aGVsbG8=", "hello", 5);
    gives("data:image/png; base64 ,aGVsbG8=", "hello", 5);
    gives("data:image/png;base64,aGVsbG8", "hello", 5);
    gives("data:image/png;base64,aGVs\r\n bG8=\n", "hello", 5);
    gives("data:image/png;base64,aGVsbG8%3D", "hello", 5);
    gives("data:image/png;base64,aGVs%0AbG8%3d", "hello", 5);
    gives("data:image/png;base64,_-%2B/", "\xff\xef\xbf", 3);
    gives("data:image/png;base64,AA==", "\0", 1);
    gives("data:image/png,%89PNG%0d%0A", "\x89PNG\r\n", 6);
    gives("data:,base64", "base64", 6);
    gives("data:text/base64,aGVsbG8=", "aGVsbG8=", 8);
}

static void broken_uris(void **state) {
    (void)state;
    refuses("image/png;base64,aGVs", 99, MXC_E_FORMAT, "not a data URI");
    refuses("data:image/png;base64", 99, MXC_E_FORMAT, "comma");
    refuses("data:image/png;base64,", 99, MXC_E_FORMAT, "empty");
    refuses("data:image/png;base64,a", 99, MXC_E_FORMAT, "cut");
    refuses("data:image/png;base64,aGVsb", 99, MXC_E_FORMAT, "cut");
    refuses("data:image/png;base64,aGVs====", 99, MXC_E_FORMAT, "padded");
    refuses("data:image/png;base64,aGVsbA=", 99, MXC_E_FORMAT, "padded");
    refuses("data:image/png;base64,aG=sbG8=", 99, MXC_E_FORMAT, "after the padding");
    refuses("data:image/png;base64,aGVs*G8=", 99, MXC_E_FORMAT, "byte 4");
    refuses("data:image/png;base64,aGVs%zz", 99, MXC_E_FORMAT, "percent");
    refuses("data:image/png;base64,aGVs%2", 99, MXC_E_FORMAT, "percent");
    refuses("data:image/png,abc%", 99, MXC_E_FORMAT, "percent");
    refuses("data:image/png;base64,aGVsbG8=", 4, MXC_E_LIMIT, "4 bytes");
    refuses("data:image/png,hello", 4, MXC_E_LIMIT, "4 bytes");
    uint8_t *data;
    size_t size;
    assert_int_equal(
        mxc_image_from_uri(MXC_STR("data:image/png;base64,aGVsbG8="), 5, &data, &size, NULL),
        MXC_OK);
    assert_int_equal(size, 5);
    mxc_mem_free(data);
}

static void bare(void **state) {
    (void)state;
    uint8_t *data;
    size_t size;
    assert_int_equal(mxc_image_from_base64(MXC_STR("aGVs\nbG8\n"), 100, &data, &size, NULL),
                     MXC_OK);
    assert_int_equal(size, 5);
    mxc_mem_free(data);
    assert_int_equal(mxc_image_from_base64(MXC_STR("aGVsbG8%3D"), 100, &data, &size, NULL),
                     MXC_E_FORMAT);
    assert_int_equal(mxc_image_from_base64(MXC_STR(" \n"), 100, &data, &size, NULL), MXC_E_FORMAT);
}

static void sources(void **state) {
    (void)state;
#define OF(literal) mxc_image_source_of(MXC_STR(literal))
    assert_int_equal(OF("data:image/png;base64,xx"), MXC_SOURCE_DATA);
    assert_int_equal(OF("Data:,"), MXC_SOURCE_DATA);
    assert_int_equal(OF("https://host/a.png"), MXC_SOURCE_HTTP);
    assert_int_equal(OF("HTTP://host/a.png"), MXC_SOURCE_HTTP);
    assert_int_equal(OF("file:///tmp/a.png"), MXC_SOURCE_FILE);
    assert_int_equal(OF("iVBORw0KGgoAAAANSUhEUgAAACUAAAA1"), MXC_SOURCE_BASE64);
    assert_int_equal(OF("/9j/4AAQSkZJRgABAQEASABIAAD/2wBD"), MXC_SOURCE_BASE64);
    assert_int_equal(OF("/pictures/of/my/cat/and/my/dog"), MXC_SOURCE_OTHER);
    assert_int_equal(OF("/pics/a.png"), MXC_SOURCE_OTHER);
    assert_int_equal(OF("ftp://host/a.png"), MXC_SOURCE_OTHER);
    assert_int_equal(OF(""), MXC_SOURCE_OTHER);
#undef OF
}

static void files(void **state) {
    (void)state;
    char path[512];
    uint8_t *data;
    size_t size;
    struct mxc_err err;
    (void)snprintf(path, sizeof path, "%s/image/rgb.png", MXC_TEST_DATA);
    assert_int_equal(mxc_image_from_file(path, 1 << 20, &data, &size, &err), MXC_OK);
    assert_memory_equal(data, "\x89PNG", 4);
    mxc_mem_free(data);
    assert_int_equal(mxc_image_from_file(path, size - 1, &data, &size, &err), MXC_E_LIMIT);
    assert_non_null(strstr(err.message, "rgb.png"));
    assert_int_equal(mxc_image_from_file("/nowhere/a.png", 99, &data, &size, &err),
                     MXC_E_NOT_FOUND);
    assert_int_not_equal(mxc_image_from_file("/dev/zero", 99, &data, &size, &err), MXC_OK);
}

static bool uri_step(void *context) {
    uint8_t *data;
    size_t size;
    (void)context;
    enum mxc_code code = mxc_image_from_uri(MXC_STR("data:,abc"), 99, &data, &size, NULL);
    if (code) {
        assert_int_equal(code, MXC_E_NOMEM);
        return false;
    }
    mxc_mem_free(data);
    return true;
}

static void no_memory(void **state) {
    (void)state;
    data_fail_each(uri_step, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(uris),    cmocka_unit_test(broken_uris), cmocka_unit_test(bare),
        cmocka_unit_test(sources), cmocka_unit_test(files),       cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests_name("image_input", tests, NULL, NULL);
}
