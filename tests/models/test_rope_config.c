/* RoPE settings: old and new spellings give the same numbers, defaults as the reference has them, a
 * GGUF's frequency table, and every refusal with the option's name. */
#include "test.h"

#include "base/mem.h"
#include "checkpoint.h"

#include <math.h>
#include <string.h>

static const struct mxc_hyper_rules plain = {0};

static enum mxc_code read_rope(const char *json, struct mxc_rope *rope, struct mxc_err *err) {
    struct mxc_config config = test_config(json);
    enum mxc_code code = mxc_rope_read(&config, NULL, &plain, 16, config.max_position, rope, err);
    test_config_fini(&config);
    return code;
}

static struct mxc_rope must_read(const char *json) {
    struct mxc_rope rope;
    struct mxc_err err;
    if (read_rope(json, &rope, &err))
        fail_msg("%s: %s", json, err.message);
    return rope;
}

static void same(const char *a, const char *b) {
    struct mxc_rope x = must_read(a), y = must_read(b);
    float fx[8], fy[8], sx, sy;
    mxc_rope_frequencies(&x, 5000, fx, &sx);
    mxc_rope_frequencies(&y, 5000, fy, &sy);
    assert_int_equal(x.scaling, y.scaling);
    assert_int_equal(x.dims, y.dims);
    assert_true(sx == sy);
    assert_memory_equal(fx, fy, (size_t)x.dims / 2 * sizeof *fx);
}

static void spellings(void **state) {
    (void)state;
    same("{}", "{\"rope_theta\": 10000}");
    same("{\"rope_scaling\": null}", "{\"rope_parameters\": {\"rope_type\": \"default\"}}");
    same("{\"rope_scaling\": {}}", "{\"rope_parameters\": null}");
    same("{\"rope_theta\": 500.0}",
         "{\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 500.0}}");
    same(
        "{\"rope_theta\": 500.0, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}}",
        "{\"rope_parameters\": {\"rope_type\": \"linear\", \"rope_theta\": 500, \"factor\": 2.0}}");
    /* inside wins over beside, rope_type over type, rope_scaling over rope_parameters */
    same("{\"rope_theta\": 7.0, \"rope_parameters\": {\"rope_theta\": 500.0}}",
         "{\"rope_theta\": 500.0}");
    same("{\"rope_scaling\": {\"type\": \"yarn\", \"rope_type\": \"linear\", \"factor\": 4}}",
         "{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 4}}");
    same("{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 4}, \"rope_parameters\": "
         "{\"rope_type\": \"default\"}}",
         "{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 4}}");
    same("{\"partial_rotary_factor\": 0.5}",
         "{\"rope_parameters\": {\"partial_rotary_factor\": 0.5}}");
    assert_int_equal(must_read("{\"partial_rotary_factor\": 0.5}").dims, 8);
    assert_int_equal(must_read("{}").dims, 16);
}

static void scalings(void **state) {
    (void)state;
    struct mxc_rope r = must_read("{\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}, "
                                  "\"max_position_embeddings\": 2048}");
    assert_int_equal(r.scaling, MXC_ROPE_DYNAMIC);
    assert_true(r.max_position == 2048 && r.factor == 2);
    r = must_read("{\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, "
                  "\"low_freq_factor\": 1, \"high_freq_factor\": 4, "
                  "\"original_max_position_embeddings\": 64}}");
    assert_int_equal(r.scaling, MXC_ROPE_LLAMA3);
    assert_true(r.factor == 8 && r.low_freq_factor == 1 && r.high_freq_factor == 4);
    assert_true(r.original_max == 64);
    r = must_read("{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4}, "
                  "\"max_position_embeddings\": 2048}");
    assert_int_equal(r.scaling, MXC_ROPE_YARN);
    assert_true(r.beta_fast == 32 && r.beta_slow == 1 && r.truncate && r.original_max == 2048);
    r = must_read("{\"rope_scaling\": {\"type\": \"yarn\", \"beta_fast\": 16, \"beta_slow\": 2, "
                  "\"truncate\": false, \"mscale\": 0.5, \"mscale_all_dim\": 1, "
                  "\"attention_factor\": 1.5, \"original_max_position_embeddings\": 512}, "
                  "\"max_position_embeddings\": 2048}");
    assert_true(r.factor == 4); /* derived from the two contexts */
    assert_true(r.beta_fast == 16 && r.beta_slow == 2 && !r.truncate && r.mscale == 0.5 &&
                r.mscale_all_dim == 1 && r.attention_factor == 1.5);
    r = must_read("{\"rope_scaling\": {\"type\": \"su\", \"short_factor\": [1,1,1,1,1,1,1,1], "
                  "\"long_factor\": [2,2,2,2,2,2,2,4]}, \"max_position_embeddings\": 2048, "
                  "\"original_max_position_embeddings\": 512}");
    assert_int_equal(r.scaling, MXC_ROPE_LONGROPE);
    assert_true(r.original_max == 512 && r.factor == 4 && r.long_factor[7] == 4.0f &&
                r.short_factor[0] == 1.0f);
}

static void sections(void **state) {
    (void)state;
    struct mxc_rope r =
        must_read("{\"rope_scaling\": {\"type\": \"mrope\", \"mrope_section\": [2, 3, 3]}}");
    assert_int_equal(r.scaling, MXC_ROPE_NONE);
    assert_true(r.sections[0] == 2 && r.sections[1] == 3 && r.sections[2] == 3);
    assert_false(r.sections_interleaved || r.restart);
    r = must_read("{\"rope_parameters\": {\"rope_type\": \"default\", \"mrope_section\": "
                  "[4, 2, 2], \"mrope_interleaved\": true}}");
    assert_true(r.sections[0] == 4 && r.sections_interleaved);
    r = must_read("{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2, \"mrope_section\": "
                  "[2, 3, 3], \"original_max_position_embeddings\": 64}}");
    assert_true(r.scaling == MXC_ROPE_YARN && r.sections[1] == 3);
    r = must_read("{}");
    assert_int_equal(r.sections[0], 0);
}

static void refusals(void **state) {
    (void)state;
    static const struct {
        const char *json, *message;
    } cases[] = {
        {"{\"rope_scaling\": {\"rope_type\": \"warp\", \"factor\": 2.0}}",
         "rope_scaling: rope type \"warp\" is not supported (nearest: \"yarn\")"},
        {"{\"rope_parameters\": {\"rope_type\": \"lineal\"}}", "nearest: \"linear\""},
        {"{\"rope_scaling\": {\"rope_type\": 3}}", "rope_scaling: rope_type: not a string"},
        {"{\"rope_scaling\": {\"type\": []}}", "rope_scaling: type: not a string"},
        {"{\"rope_scaling\": {\"rope_type\": \"llama3\"}}", "rope_scaling: factor: missing"},
        {"{\"rope_scaling\": {\"rope_type\": \"linear\"}}", "factor: missing"},
        {"{\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 0}}", "factor: 0 is not"},
        {"{\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": \"2\"}}",
         "factor: not a number"},
        {"{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 2}}",
         "original_max_position_embeddings: missing"},
        {"{\"rope_scaling\": {\"rope_type\": \"dynamic\", \"factor\": 2}}",
         "max_position_embeddings: missing"},
        {"{\"rope_scaling\": {\"rope_type\": \"yarn\", \"original_max_position_embeddings\": 64}}",
         "factor: missing"},
        {"{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 2, \"beta_fast\": -1, "
         "\"original_max_position_embeddings\": 64}}",
         "beta_fast: -1"},
        {"{\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 2, \"low_freq_factor\": 1, "
         "\"original_max_position_embeddings\": 64}}",
         "high_freq_factor: missing"},
        {"{\"rope_scaling\": {\"rope_type\": \"longrope\", \"factor\": 2, "
         "\"original_max_position_embeddings\": 64}}",
         "short_factor: not a list of 8 numbers"},
        {"{\"rope_scaling\": {\"rope_type\": \"longrope\", \"factor\": 2, \"short_factor\": "
         "[1,1,1,1,1,1,1,0], \"original_max_position_embeddings\": 64}}",
         "short_factor[7] is not a positive number"},
        {"{\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2, \"factr\": 2}}",
         "option \"factr\" is not supported (nearest: \"factor\")"},
        {"{\"rope_scaling\": {\"rope_type\": \"default\", \"mrope_section\": [2, 3]}}",
         "rope_scaling: mrope_section: not a list of 3"},
        {"{\"rope_scaling\": {\"type\": \"mrope\", \"mrope_section\": [2, 3, 4]}}",
         "rope_scaling: mrope_section: 9 pairs in all, not 8"},
        {"{\"rope_parameters\": {\"mrope_section\": [2, 0, 6]}}", "rope_parameters: mrope_section"},
        {"{\"rope_parameters\": {\"mrope_interleaved\": \"yes\"}}", "mrope_interleaved"},
        {"{\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"default\"}}}",
         "\"full_attention\": settings per layer type are not supported"},
        {"{\"rope_scaling\": 3}", "rope_scaling: not an object"},
        {"{\"rope_parameters\": [1]}", "rope_parameters: not an object"},
        {"{\"rope_theta\": 0}", "rope_theta: 0"},
        {"{\"rope_theta\": -1}", "rope_theta: -1"},
        {"{\"rope_theta\": \"x\"}", "rope_theta: not a number"},
        {"{\"partial_rotary_factor\": 0.2}", "partial_rotary_factor: 3 rotated"},
        {"{\"partial_rotary_factor\": 0}", "partial_rotary_factor: 0 rotated"},
        {"{\"partial_rotary_factor\": 1.5}", "partial_rotary_factor: 0 rotated"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mxc_rope rope = {.dims = 77};
        struct mxc_err err = {0};
        enum mxc_code code = read_rope(cases[i].json, &rope, &err);
        if (!code || !strstr(err.message, cases[i].message))
            fail_msg("%s: \"%s\" does not say \"%s\"", cases[i].json, err.message,
                     cases[i].message);
        assert_int_equal(rope.dims, 77);
    }
}

static enum mxc_code with_table(const struct test_tensor *table, struct mxc_rope *rope,
                                struct mxc_err *err) {
    struct mxc_config config = test_config("{}");
    struct mxc_graph *g = NULL;
    struct test_change change = {.extra = *table};
    struct test_checkpoint c;
    assert_int_equal(mxc_graph_new("none", &g, NULL), MXC_OK);
    test_checkpoint_open(g, &change, &c);
    mxc_graph_free(g);
    enum mxc_code code = mxc_rope_read(&config, c.weights, &plain, 8, 0, rope, err);
    test_checkpoint_close(&c);
    test_config_fini(&config);
    return code;
}

static void frequency_table(void **state) {
    (void)state;
    const float good[] = {1, 1, 2.5f, 8}, bad[] = {1, 1, -2, 8};
    struct test_tensor table = {"rope_freqs.weight", 1, {4}, good};
    struct mxc_rope rope;
    struct mxc_err err = {0};
    float inv_freq[4], factor;
    assert_int_equal(with_table(&table, &rope, &err), MXC_OK);
    mxc_rope_frequencies(&rope, 1, inv_freq, &factor);
    assert_true(inv_freq[0] == 1.0f);
    assert_true(inv_freq[2] == 0.01f / 2.5f);
    assert_true(fabsf(inv_freq[3] - 0.001f / 8) < 1e-10f);
    table.data = bad;
    assert_int_equal(with_table(&table, &rope, &err), MXC_E_FORMAT);
    assert_non_null(strstr(err.message, "rope_freqs.weight: factor 2 is not positive"));
    table.shape[0] = 3;
    table.data = good;
    assert_int_equal(with_table(&table, &rope, &err), MXC_E_FORMAT);
    assert_non_null(strstr(err.message, "rope_freqs.weight"));
    table.name = "rope_factors_long.weight";
    assert_int_equal(with_table(&table, &rope, &err), MXC_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "rope_factors_long.weight"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spellings), cmocka_unit_test(scalings),        cmocka_unit_test(sections),
        cmocka_unit_test(refusals),  cmocka_unit_test(frequency_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
