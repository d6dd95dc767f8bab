/* Globs over tensor names: what matches, what each star takes, what is no glob, and a pattern made
 * to be slow. */
#include "test.h"

#include "surgery/glob.h"

#include <string.h>

static bool is(const char *pattern, const char *name, struct mxc_glob_match *match) {
    struct mxc_arena arena;
    struct mxc_glob glob;
    struct mxc_err err = {.message = ""};
    mxc_arena_init(&arena, 0);
    if (mxc_glob_parse(&arena, pattern, &glob, &err))
        fail_msg("%s: %s", pattern, err.message);
    bool found = mxc_glob_matches(&glob, name, match);
    mxc_arena_fini(&arena);
    return found;
}

static void matching(void **state) {
    (void)state;
    static const struct {
        const char *pattern, *name;
        bool is;
    } rows[] = {
        {"lm_head.weight", "lm_head.weight", true},
        {"lm_head.weight", "lm_head.weights", false},
        {"lm_head.weight", "xlm_head.weight", false},
        {"*", "", true},
        {"*", "a.b.c", true},
        {"*.weight", "a.b.weight", true},
        {"*.weight", "a.b.bias", false},
        {"a*b*c", "axbxbxc", true},
        {"a*b*c", "axbxbx", false},
        {"a**c", "abc", true},
        {"layers.?.w", "layers.7.w", true},
        {"layers.?.w", "layers.17.w", false},
        {"layers.[0-3].w", "layers.2.w", true},
        {"layers.[0-3].w", "layers.4.w", false},
        {"layers.[!0-3].w", "layers.4.w", true},
        {"x[]a]y", "x]y", true},
        {"x[a-]y", "x-y", true},
        {"{q,k}_proj", "q_proj", true},
        {"{q,k}_proj", "k_proj", true},
        {"{q,k}_proj", "v_proj", false},
        {"{a,b}.{c,}x", "b.x", true},
        {"{a,b}.{c,}x", "a.cx", true},
        {"a\\*b", "a*b", true},
        {"a\\*b", "axb", false},
        {"a\\{b", "a{b", true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (is(rows[i].pattern, rows[i].name, NULL) != rows[i].is)
            fail_msg("%s on %s", rows[i].pattern, rows[i].name);
}

static void expect_stars(const char *pattern, const char *name, const char *want) {
    struct mxc_glob_match match;
    char have[128] = "";
    assert_true(is(pattern, name, &match));
    size_t at = 0;
    for (size_t i = 0; i < match.n_stars; i++) {
        memcpy(have + at, match.stars[i].ptr, match.stars[i].length);
        at += match.stars[i].length;
        have[at++] = '|';
    }
    have[at] = 0;
    assert_string_equal(have, want);
}

static void stars(void **state) {
    (void)state;
    expect_stars("model.layers.*.self_attn.*.weight", "model.layers.12.self_attn.q_proj.weight",
                 "12|q_proj|");
    expect_stars("*.weight", "a.b.weight", "a.b|");
    expect_stars("a.*", "a.b.c", "b.c|");
    expect_stars("*.x.*.y", "a.x.b.x.c.y", "a|b.x.c|");
    expect_stars("a**b", "aXYZb", "XYZ|");
    expect_stars("*a", "aa", "a|");
    expect_stars("x", "x", "");
    assert_int_equal(mxc_glob_stars("a*b**c\\*d[*]"), 2);
}

static void refuse(const char *pattern, const char *why) {
    struct mxc_arena arena;
    struct mxc_glob glob;
    struct mxc_err err = {.message = ""};
    mxc_arena_init(&arena, 0);
    assert_int_not_equal(mxc_glob_parse(&arena, pattern, &glob, &err), MXC_OK);
    if (!strstr(err.message, why))
        fail_msg("%s: \"%s\"", pattern, err.message);
    mxc_arena_fini(&arena);
}

static void malformed(void **state) {
    (void)state;
    refuse("", "the pattern is empty");
    refuse("model.layers.{0", "a { of the pattern is not closed");
    refuse("a}", "a } of the pattern has no {");
    refuse("{a,{b}}", "braces inside of braces");
    refuse("a[b", "a [ of the pattern is not closed");
    refuse("a\\", "ends in a backslash");
    refuse("*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*", "more than 16 stars");
    refuse("{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}", "more than 256 alternatives");
}

static void slow_pattern(void **state) {
    (void)state;
    static char name[100001];
    memset(name, 'a', sizeof name - 1);
    assert_false(is("*a*a*a*a*a*a*a*a*b", name, NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(matching), cmocka_unit_test(stars),
                                       cmocka_unit_test(malformed), cmocka_unit_test(slow_pattern)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
