/* safetensors reader: good headers, one mutation per check, every truncation, failed allocations.
 */
#include "test.h"

#include "base/mem.h"
#include "files.h"
#include "format/safetensors.h"

#include <string.h>

/* Two tensors: a [2,3] F32 in bytes 0..24, b [4] U8 in 24..28. */
#define A      "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}"
#define B      "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[24,28]}"
#define GOOD   "{" A "," B "}"
#define LEVELS "[[[[[[[[[[[[[[[["
#define DEEP   LEVELS LEVELS LEVELS LEVELS LEVELS LEVELS LEVELS LEVELS LEVELS
#define ONE(dtype, shape, offsets)                                                                 \
    "{\"a\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static const char *write_file(const char *header, size_t n_data) {
    struct mxc_buf buf;
    mxc_buf_init(&buf, 1 << 20);
    files_safetensors(&buf, header, n_data);
    const char *path = files_write("x.safetensors", buf.data, buf.length);
    mxc_buf_fini(&buf);
    return path;
}

static void test_good(void **unused) {
    (void)unused;
    static const char *const headers[] = {
        GOOD,
        "{" B "," A "}",
        GOOD "      \n",
        "{\"__metadata__\":{\"format\":\"pt\",\"x\":\"\\u0000\\n\"}," A "," B "}",
        "{" A ", \"__metadata__\" : {\"format\":\"pt\"} ," B "}",
        "{\"\\u0061\":{\"shape\":[2,3],\"data_offsets\":[0,24],\"dtype\":\"F32\"}," B "}",
        "{\"a\":{\"dtype\":\"F32\",\"extra\":[1,{\"y\":null}],\"shape\":[2,3],"
        "\"data_offsets\":[0,24]}," B "}",
    };
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        struct mxc_safetensors *st;
        struct mxc_err err = {0};
        if (mxc_safetensors_open(write_file(headers[i], 28), &st, &err))
            fail_msg("header %zu: %s", i, err.message);
        assert_int_equal(st->n_tensors, 2);
        assert_string_equal(st->tensors[0].name, "a");
        assert_int_equal(st->tensors[0].storage, MXC_ST_F32);
        assert_int_equal(st->tensors[0].n_dims, 2);
        assert_int_equal(st->tensors[0].shape[0], 2);
        assert_int_equal(st->tensors[0].shape[1], 3);
        assert_int_equal(st->tensors[0].data[5], 5);
        assert_string_equal(st->tensors[1].name, "b");
        assert_int_equal(st->tensors[1].data[3], 27);
        if (strstr(headers[i], "pt"))
            assert_string_equal(st->format, "pt");
        else
            assert_null(st->format);
        mxc_safetensors_close(st);
    }
}

static void test_scalars_and_empty(void **unused) {
    (void)unused;
    struct mxc_safetensors *st;
    const char *header = "{\"s\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
                         "\"e\":{\"dtype\":\"F16\",\"shape\":[0,7],\"data_offsets\":[8,8]},"
                         "\"\\ud83d\\ude00\":{\"dtype\":\"BOOL\",\"shape\":[1],"
                         "\"data_offsets\":[8,9]}}";
    assert_int_equal(mxc_safetensors_open(write_file(header, 9), &st, NULL), MXC_OK);
    assert_int_equal(st->n_tensors, 3);
    assert_int_equal(st->tensors[0].n_dims, 0);
    assert_string_equal(st->tensors[2].name, "\xF0\x9F\x98\x80");
    mxc_safetensors_close(st);
}

static const struct {
    const char *header;
    size_t n_data;
    const char *words; /* that the message must hold */
} bad[] = {
    {"[]", 0, "not an object"},
    {"null", 0, "not an object"},
    {"{", 0, "header byte"},
    {"{\"a\"", 0, "header byte"},
    {"{\"a\":7}", 0, "tensor a entry"},
    {"{\"a\":[]}", 0, "tensor a entry"},
    {"{\"a\":{}}", 0, "missing dtype"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "missing data_offsets"},
    {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "missing shape"},
    {GOOD " x", 28, "trailing"},
    {GOOD "{}", 28, "trailing"},
    {"{" A "," A "}", 24, "tensor a twice"},
    {"{" A "," B ",}", 28, "header byte"},
    {"{" A B "}", 28, "header byte"},
    {"{}", 0, "no tensors"},
    {"{\"__metadata__\":{\"a\":\"b\"}}", 0, "no tensors"},
    {"{\"__metadata__\":[[[[]]]]}", 0, "__metadata__"},
    {"{\"__metadata__\":{\"a\":" DEEP "}}", 0, "deep"},
    {"{\"a\x01\":{}}", 0, "control"},
    {"{\"a\\n\":{}}", 0, "control"},
    {"{\"a\\u000\":{}}", 0, "escape"},
    {"{\"a\\x\":{}}", 0, "escape"},
    {"{\"\\ud83d\":{}}", 0, "surrogate"},
    {"{\"\\ude00\":{}}", 0, "surrogate"},
    {"{\"\xFF\":{}}", 0, "UTF-8"},
    {"{\"\xED\xA0\x80\":{}}", 0, "UTF-8"},
    {"{\"a", 0, "string without end"},
    {ONE("\"F12\"", "[1]", "[0,4]"), 4, "tensor a dtype F12"},
    {ONE("\"F4\"", "[4]", "[0,4]"), 4, "dtype F4 not supported"},
    {ONE("7", "[1]", "[0,4]"), 4, "dtype"},
    {ONE("\"F32\"", "7", "[0,4]"), 4, "shape"},
    {ONE("\"F32\"", "[-1]", "[0,4]"), 4, "shape"},
    {ONE("\"F32\"", "[1.0]", "[0,4]"), 4, "shape"},
    {ONE("\"F32\"", "[\"1\"]", "[0,4]"), 4, "shape"},
    {ONE("\"F32\"", "[1,1,1,1,1,1]", "[0,4]"), 4, "rank"},
    {ONE("\"F32\"", "[4294967296,4294967296]", "[0,4]"), 4, "overflows"},
    {ONE("\"F32\"", "[0,4294967296,4294967296]", "[0,0]"), 0, "overflows"},
    {ONE("\"F32\"", "[99999999999999999999]", "[0,4]"), 4, "shape large"},
    {ONE("\"F32\"", "[18446744073709551615]", "[0,4]"), 4, "shape large"},
    {ONE("\"F32\"", "[2]", "[0,4]"), 4, "size mismatch"},
    {ONE("\"F32\"", "[1]", "[0,8]"), 4, "out of range"},
    {ONE("\"F32\"", "[1]", "[4,0]"), 4, "begin after end"},
    {ONE("\"F32\"", "[1]", "[-4,0]"), 4, "data_offsets"},
    {ONE("\"F32\"", "[1]", "[0]"), 4, "data_offsets"},
    {ONE("\"F32\"", "[1]", "[0,4,8]"), 4, "data_offsets"},
    {ONE("\"F32\"", "[1]", "[18446744073709551612,18446744073709551616]"), 4, "data_offsets"},
    {ONE("\"F32\"", "[1]", "[4503599627370488,4503599627370492]"), 4, "out of range"},
    {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
     "twice"},
    {"{" A ",\"c\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[20,24]}}", 24, "overlap"},
    {"{" A ",\"c\":{\"dtype\":\"F32\",\"shape\":[6],\"data_offsets\":[0,24]}}", 24, "overlap"},
};

static void test_bad(void **unused) {
    (void)unused;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct mxc_safetensors *st = NULL;
        struct mxc_err err = {0};
        const char *path = write_file(bad[i].header, bad[i].n_data);
        if (!mxc_safetensors_open(path, &st, &err))
            fail_msg("accepted: %s", bad[i].header);
        assert_null(st);
        files_expect(&err, "x.safetensors:");
        files_expect(&err, bad[i].words);
    }
}

/* Bytes that no tensor names are allowed: the tensor that is missing is named by its user. */
static void test_holes(void **unused) {
    (void)unused;
    struct mxc_safetensors *st;
    assert_int_equal(mxc_safetensors_open(write_file("{" B "}", 40), &st, NULL), MXC_OK);
    assert_int_equal(st->tensors[0].data[0], 24);
    mxc_safetensors_close(st);
}

static void test_lengths(void **unused) {
    (void)unused;
    static const unsigned char huge[16] = {255, 255, 255, 255, 255, 255, 255, 255, '{', '}'};
    static const unsigned char zero[16] = {0};
    struct mxc_safetensors *st;
    struct mxc_err err;
    assert_int_equal(mxc_safetensors_open(files_write("x", huge, 16), &st, &err), MXC_E_FORMAT);
    files_expect(&err, "header length");
    assert_int_equal(mxc_safetensors_open(files_write("x", zero, 16), &st, &err), MXC_E_FORMAT);
    files_expect(&err, "empty header");
    assert_int_equal(mxc_safetensors_open(files_write("x", zero, 0), &st, &err), MXC_E_FORMAT);
    files_expect(&err, "too short");
    assert_int_equal(mxc_safetensors_open(files_path("none"), &st, &err), MXC_E_NOT_FOUND);
    files_expect(&err, "none");
}

static void test_truncated(void **unused) {
    (void)unused;
    struct mxc_buf buf;
    mxc_buf_init(&buf, 1 << 20);
    files_safetensors(&buf, GOOD, 28);
    for (size_t n = 0; n < buf.length; n++) {
        struct mxc_safetensors *st;
        struct mxc_err err = {0};
        if (!mxc_safetensors_open(files_write("x.safetensors", buf.data, n), &st, &err))
            fail_msg("accepted with %zu of %zu bytes", n, buf.length);
        files_expect(&err, "x.safetensors");
    }
    mxc_buf_fini(&buf);
}

static void test_no_memory(void **unused) {
    (void)unused;
    const char *path = write_file("{\"__metadata__\":{\"format\":\"pt\"}," A "," B "}", 28);
    enum mxc_code code = MXC_E_NOMEM;
    for (uint64_t n = 1; code; n++) {
        struct mxc_safetensors *st = NULL;
        struct mxc_err err = {0};
        assert_true(n < 100);
        mxc_mem_fail_at(n);
        code = mxc_safetensors_open(path, &st, &err);
        mxc_mem_fail_at(0);
        if (code)
            assert_int_equal(code, MXC_E_NOMEM);
        else
            mxc_safetensors_close(st);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),      cmocka_unit_test(test_scalars_and_empty),
        cmocka_unit_test(test_bad),       cmocka_unit_test(test_holes),
        cmocka_unit_test(test_lengths),   cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, files_setup, files_teardown);
}
