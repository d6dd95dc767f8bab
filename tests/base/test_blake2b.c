/* BLAKE2b-256: digests that another implementation (Python's hashlib) gives, in any pieces. */
#include "test.h"

#include "base/blake2b.h"

#include <stdio.h>
#include <string.h>

static void digest_of(const uint8_t *data, size_t n, size_t piece, char hex[65]) {
    struct mxc_blake2b state;
    uint8_t out[MXC_BLAKE2B_BYTES];
    mxc_blake2b_init(&state);
    for (size_t i = 0; i < n; i += piece)
        mxc_blake2b_add(&state, data + i, n - i < piece ? n - i : piece);
    mxc_blake2b_end(&state, out);
    for (size_t i = 0; i < sizeof out; i++)
        (void)snprintf(hex + 2 * i, 3, "%02x", out[i]);
}

static void vectors(void **state) {
    (void)state;
    static const struct {
        size_t n;
        const char *hex;
    } cases[] = {
        {0, "0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8"},
        {128, "c3582f71ebb2be66fa5dd750f80baae97554f3b015663c8be377cfcb2488c1d1"},
        {129, "f7f3c46ba2564ff4c4c162da1f5b605f9f1c4aa6a20652a9f9a337c1a2f5b9c9"},
        {1000, "b372d0608f720c8c3dd41e9c8eecb10143b41abe520b616607e754bf79c08331"},
    };
    static const size_t pieces[] = {1, 7, 64, 127, 128, 129, 300, 1000};
    uint8_t data[1000];
    char hex[65];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i % 251);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t k = 0; k < sizeof pieces / sizeof *pieces; k++) {
            digest_of(data, cases[i].n, pieces[k], hex);
            assert_string_equal(hex, cases[i].hex);
        }
    digest_of((const uint8_t *)"abc", 3, 3, hex);
    assert_string_equal(hex, "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(vectors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
