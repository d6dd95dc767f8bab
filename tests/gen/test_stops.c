/* Stop strings: whatever way the text is cut into pieces, what comes out is the text up to the
 * earliest stop. */
#include "test.h"

#include "base/mem.h"
#include "gen/stops.h"

#include <stdlib.h>
#include <string.h>

/* By definition, on the whole text. */
static size_t reference(const char *text, const char *const *stops, size_t n, int *hit) {
    for (size_t at = 0; text[at]; at++)
        for (size_t i = 0; i < n; i++)
            if (!strncmp(text + at, stops[i], strlen(stops[i]))) {
                *hit = (int)i;
                return at;
            }
    *hit = -1;
    return strlen(text);
}

/* Streams text in pieces of random length; returns bytes that were released before the end. */
static size_t stream(const char *text, const char *const *stops, size_t n, unsigned seed) {
    struct mxc_stops s;
    struct mxc_buf out;
    int hit;
    size_t length = strlen(text), expect = reference(text, stops, n, &hit);
    assert_int_equal(mxc_stops_init(&s, stops, n, NULL), MXC_OK);
    mxc_buf_init(&out, 1 << 20);
    srand(seed);
    for (size_t at = 0; at < length;) {
        size_t piece = 1 + (seed ? (size_t)rand() % 5 : 0);
        piece = piece < length - at ? piece : length - at;
        assert_int_equal(mxc_stops_push(&s, text + at, piece, &out, NULL), MXC_OK);
        at += piece;
        /* nothing of a stop, or behind it, is ever let go */
        assert_true(out.length <= expect);
        /* and what is held back is no more than the longest stop string, less one byte */
        size_t longest = 0;
        for (size_t i = 0; i < n; i++)
            longest = strlen(stops[i]) > longest ? strlen(stops[i]) : longest;
        assert_true(s.hit >= 0 || at - out.length < (longest ? longest : 1) || at > expect);
    }
    size_t early = out.length;
    assert_int_equal(mxc_stops_finish(&s, &out, NULL), MXC_OK);
    assert_int_equal(out.length, expect);
    assert_memory_equal(mxc_buf_text(&out), text, expect);
    assert_int_equal(s.hit, hit);
    mxc_buf_fini(&out);
    mxc_stops_fini(&s);
    return early;
}

static void cases(void **state) {
    (void)state;
    static const struct {
        const char *text, *stops[4];
    } table[] = {{"Hello world, and more", {"world", NULL}},
                 {"Hello world, and more", {"worlds", NULL}},
                 {"Hello wor", {"world", NULL}},
                 {"abc", {"abc", "b", NULL}},
                 {"abx", {"abc", "b", NULL}},
                 {"ab", {"abc", "b", NULL}},
                 {"xaby", {"ab", "abc", NULL}},
                 {"xabcy", {"abc", "ab", NULL}},
                 {"xabc", {"ab", "abc", NULL}},
                 {"aaaaaab", {"aab", NULL}},
                 {"abababac", {"ababac", NULL}},
                 {"\n\nUser: hi", {"\nUser:", "\n\n\n", NULL}},
                 {"na\xC3\xAFve \xF0\x9F\x98\x80!", {"\xF0\x9F\x98\x80", NULL}},
                 {"na\xC3\xAFve \xF0\x9F\x98\x81!", {"\xF0\x9F\x98\x80", NULL}},
                 {"no stops at all", {NULL}},
                 {"", {"x", NULL}}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        size_t n = 0;
        while (table[i].stops[n])
            n++;
        for (unsigned seed = 0; seed < 20; seed++)
            stream(table[i].text, table[i].stops, n, seed);
    }
    /* without stop strings nothing is held back */
    assert_int_equal(stream("plain", NULL, 0, 0), 5);
}

static void random_texts(void **state) {
    (void)state;
    for (unsigned round = 0; round < 3000; round++) {
        char text[60], strings[3][8];
        const char *stops[3] = {strings[0], strings[1], strings[2]};
        srand(round + 1);
        size_t length = (size_t)rand() % 59;
        for (size_t i = 0; i < length; i++)
            text[i] = (char)('a' + rand() % 3);
        text[length] = 0;
        for (int i = 0; i < 3; i++) {
            size_t n = 1 + (size_t)rand() % 7;
            for (size_t j = 0; j < n; j++)
                strings[i][j] = (char)('a' + rand() % 3);
            strings[i][n] = 0;
        }
        stream(text, stops, 1 + round % 3, round % 7);
    }
}

static void refused(void **state) {
    (void)state;
    struct mxc_stops s;
    struct mxc_err err;
    const char *empty[] = {"a", ""}, *bad[] = {"\x80z"}, *many[MXC_MAX_STOPS + 1];
    assert_int_equal(mxc_stops_init(&s, empty, 2, &err), MXC_E_ARG);
    assert_int_equal(mxc_stops_init(&s, bad, 1, &err), MXC_E_ARG);
    for (int i = 0; i <= MXC_MAX_STOPS; i++)
        many[i] = "x";
    assert_int_equal(mxc_stops_init(&s, many, MXC_MAX_STOPS + 1, &err), MXC_E_ARG);
    char *longer = calloc(MXC_MAX_STOP_BYTES + 2, 1);
    memset(longer, 'x', MXC_MAX_STOP_BYTES + 1);
    const char *one[] = {longer};
    assert_int_equal(mxc_stops_init(&s, one, 1, &err), MXC_E_ARG);
    longer[MXC_MAX_STOP_BYTES] = 0;
    mxc_mem_fail_at(1);
    enum mxc_code code = mxc_stops_init(&s, one, 1, &err);
    mxc_mem_fail_at(0);
    assert_int_equal(code, MXC_E_NOMEM);
    assert_int_equal(mxc_stops_init(&s, one, 1, &err), MXC_OK);
    struct mxc_buf out;
    mxc_buf_init(&out, 1 << 20);
    mxc_mem_fail_at(1);
    code = mxc_stops_push(&s, "xx", 2, &out, &err);
    mxc_mem_fail_at(0);
    assert_int_equal(code, MXC_E_NOMEM);
    mxc_buf_fini(&out);
    mxc_stops_fini(&s);
    free(longer);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(cases), cmocka_unit_test(random_texts),
                                       cmocka_unit_test(refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
