/* RoPE frequencies against tests/data/graph/rope.json (tools/rope_reference.py, double precision),
 * and the range check of every field. */
#include "test.h"

#include "base/json.h"
#include "graph/private.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static double number(const json_t *o, const char *key, double otherwise) {
    const json_t *v = json_object_get(o, key);
    return v ? json_number_value(v) : otherwise;
}

static void numbers(const json_t *o, const char *key, float *out) {
    const json_t *list = json_object_get(o, key), *v;
    size_t i;
    json_array_foreach(list, i, v) {
        out[i] = (float)json_number_value(v);
    }
}

static struct mxc_rope parse(const json_t *o) {
    static const char *const kinds[] = {"none", "linear", "dynamic", "yarn", "llama3", "longrope"};
    struct mxc_rope r = {
        .dims = (int)number(o, "dims", 0),
        .theta = number(o, "theta", 0),
        .factor = number(o, "factor", 0),
        .original_max = number(o, "original_max", 0),
        .max_position = number(o, "max_position", 0),
        .low_freq_factor = number(o, "low_freq_factor", 0),
        .high_freq_factor = number(o, "high_freq_factor", 0),
        .beta_fast = number(o, "beta_fast", 32),
        .beta_slow = number(o, "beta_slow", 1),
        .mscale = number(o, "mscale", 0),
        .mscale_all_dim = number(o, "mscale_all_dim", 0),
        .attention_factor = number(o, "attention_factor", 0),
        .truncate = !json_is_false(json_object_get(o, "truncate")),
    };
    const char *kind = json_string_value(json_object_get(o, "scaling"));
    for (unsigned i = 0; i < 6; i++) {
        if (!strcmp(kind, kinds[i]))
            r.scaling = (enum mxc_rope_scaling)i;
    }
    numbers(o, "short_factor", r.short_factor);
    numbers(o, "long_factor", r.long_factor);
    numbers(o, "freq_factor", r.freq_factor);
    return r;
}

static void frequencies(void **state) {
    (void)state;
    json_t *root = NULL;
    const json_t *c;
    size_t i, n_scaled = 0;
    assert_int_equal(mxc_json_load(MXC_TEST_DATA "/graph/rope.json", 1 << 20, &root, NULL), MXC_OK);
    assert_true(json_array_size(root) >= 20);
    json_array_foreach(root, i, c) {
        const char *name = json_string_value(json_object_get(c, "name"));
        struct mxc_rope rope = parse(json_object_get(c, "rope"));
        float inv_freq[MXC_MAX_ROPE_HALF], factor;
        assert_int_equal(mxc_rope_check(&rope, NULL), MXC_OK);
        mxc_rope_frequencies(&rope, (int64_t)number(c, "length", 0), inv_freq, &factor);
        const json_t *want = json_object_get(c, "inv_freq");
        assert_int_equal(json_array_size(want), (size_t)rope.dims / 2);
        for (size_t j = 0; j < json_array_size(want); j++) {
            double w = json_number_value(json_array_get(want, j));
            if (fabs((double)inv_freq[j] - w) > 5e-7 * w)
                fail_msg("%s: inv_freq[%zu] is %.9g, not %.9g", name, j, (double)inv_freq[j], w);
        }
        if (fabs((double)factor - number(c, "factor", 0)) > 1e-6)
            fail_msg("%s: factor is %.9g", name, (double)factor);
        n_scaled += rope.scaling != MXC_ROPE_NONE;
    }
    assert_true(n_scaled >= 15);
    json_decref(root);
}

static void length_dependence(void **state) {
    (void)state;
    for (int i = MXC_ROPE_NONE; i <= MXC_ROPE_LONGROPE; i++) {
        struct mxc_rope rope = {.scaling = (enum mxc_rope_scaling)i};
        assert_int_equal(mxc_rope_length_dependent(&rope),
                         i == MXC_ROPE_DYNAMIC || i == MXC_ROPE_LONGROPE);
    }
}

static struct mxc_rope good(enum mxc_rope_scaling scaling) {
    struct mxc_rope r = {.dims = 8,
                         .theta = 1e4,
                         .scaling = scaling,
                         .factor = 2,
                         .original_max = 64,
                         .max_position = 128,
                         .low_freq_factor = 1,
                         .high_freq_factor = 4,
                         .beta_fast = 32,
                         .beta_slow = 1};
    for (int i = 0; i < 4; i++)
        r.short_factor[i] = r.long_factor[i] = 1;
    return r;
}

static void refuse(const struct mxc_rope *rope, const char *text) {
    struct mxc_err err = {0};
    assert_int_not_equal(mxc_rope_check(rope, &err), MXC_OK);
    if (!strstr(err.message, text))
        fail_msg("\"%s\" does not say \"%s\"", err.message, text);
}

#define REFUSE(scaling, change, text)                                                              \
    do {                                                                                           \
        struct mxc_rope r = good(scaling);                                                         \
        assert_int_equal(mxc_rope_check(&r, NULL), MXC_OK);                                        \
        r.change;                                                                                  \
        refuse(&r, text);                                                                          \
    } while (0)

static void checks(void **state) {
    (void)state;
    REFUSE(MXC_ROPE_NONE, dims = 0, "rotated dimensions");
    REFUSE(MXC_ROPE_NONE, dims = 7, "rotated dimensions");
    REFUSE(MXC_ROPE_NONE, dims = 2 * MXC_MAX_ROPE_HALF + 2, "rotated dimensions");
    REFUSE(MXC_ROPE_NONE, theta = 0, "theta");
    REFUSE(MXC_ROPE_NONE, theta = (double)NAN, "theta");
    REFUSE(MXC_ROPE_NONE, theta = (double)INFINITY, "theta");
    REFUSE(MXC_ROPE_NONE, scaling = (enum mxc_rope_scaling)17, "scaling 17");
    REFUSE(MXC_ROPE_NONE, sections[1] = -1, "section 1");
    REFUSE(MXC_ROPE_NONE, sections[1] = 3, "3 pairs, not 4");
    REFUSE(MXC_ROPE_NONE, freq_factor[3] = -1, "frequency factor 3");
    REFUSE(MXC_ROPE_LINEAR, factor = 0, "factor 0");
    REFUSE(MXC_ROPE_DYNAMIC, max_position = 0, "dynamic");
    REFUSE(MXC_ROPE_DYNAMIC, dims = 2, "dynamic");
    REFUSE(MXC_ROPE_YARN, original_max = 0, "original context");
    REFUSE(MXC_ROPE_YARN, beta_fast = 0, "yarn");
    REFUSE(MXC_ROPE_YARN, theta = 1, "yarn");
    REFUSE(MXC_ROPE_LLAMA3, original_max = -1, "original context");
    REFUSE(MXC_ROPE_LLAMA3, high_freq_factor = 1, "out of order");
    REFUSE(MXC_ROPE_LLAMA3, low_freq_factor = 0, "out of order");
    REFUSE(MXC_ROPE_LONGROPE, long_factor[2] = 0, "long factor 2");
    REFUSE(MXC_ROPE_LONGROPE, original_max = 1, "too short");
}

/* Sections that begin anew: each has the frequencies of a rope of its own size. */
static void restart(void **state) {
    (void)state;
    struct mxc_rope rope = {.dims = 16, .theta = 1e4, .sections = {5, 0, 3}, .restart = true};
    struct mxc_rope first = {.dims = 10, .theta = 1e4}, second = {.dims = 6, .theta = 1e4};
    float have[MXC_MAX_ROPE_HALF], want[MXC_MAX_ROPE_HALF], factor;
    struct mxc_err err;
    assert_int_equal(mxc_rope_check(&rope, NULL), MXC_OK);
    mxc_rope_frequencies(&first, 0, want, &factor);
    mxc_rope_frequencies(&second, 0, want + 5, &factor);
    mxc_rope_frequencies(&rope, 0, have, &factor);
    assert_memory_equal(have, want, 8 * sizeof *have);
    assert_true(factor == 1);
    struct mxc_rope wrong[3] = {rope, rope, rope};
    wrong[0].sections_interleaved = true;
    wrong[1].sections[0] = wrong[1].sections[2] = 0;
    wrong[2].scaling = MXC_ROPE_LINEAR;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(mxc_rope_check(&wrong[i], &err), MXC_E_FORMAT);
        assert_non_null(strstr(err.message, "begin anew"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(frequencies),
                                       cmocka_unit_test(length_dependence),
                                       cmocka_unit_test(checks), cmocka_unit_test(restart)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
