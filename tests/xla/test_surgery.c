/* Operations on weights reach what a device gets, too: a scaled head scales logits, and a scaled
 * projector features, that a plugin computes. Needs one. */
#define _GNU_SOURCE
#include "test.h"

#include "engine/operated.h"
#include "xla/real_plugin.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define HEAD "version: 1\noperations:\n"

static struct mxc_load_options options(void) {
    struct mxc_load_options o;
    mxc_load_options_init(&o);
    o.backend = "xla";
    o.n_threads = 1;
    o.max_rows = 32;
    o.max_out = o.max_batch = OPERATED_TOKENS;
    o.context = 64;
    o.xla = (struct mxc_xla_given){
        .plugin = mxc_real_plugin(), .vision = "device", .cache_dir = mxc_real_cache()};
    return o;
}

static void expect_twice(const float *have, const float *plain, size_t n) {
    double worst = 0, largest = 0;
    for (size_t i = 0; i < n; i++) {
        worst = fmax(worst, fabs((double)have[i] - 2 * (double)plain[i]));
        largest = fmax(largest, fabs(2 * (double)plain[i]));
    }
    assert_true(largest > 0.01);
    if (!(worst <= 1e-5 * largest))
        fail_msg("apart by %g of %g", worst, largest);
}

static void scaled_head(void **state) {
    (void)state;
    if (!mxc_real_plugin())
        skip();
    const struct mxc_load_options o = options();
    float *logits[2];
    size_t n = 0;
    for (int i = 0; i < 2; i++) {
        struct mxc_model *m = operated_open(
            "llama_mlx_q4_g64",
            i ? HEAD "  - {op: scale, pattern: lm_head.weight, factor: 2}\n" : NULL, &o);
        logits[i] = operated_logits(m);
        n = OPERATED_TOKENS * (size_t)m->checkpoint->graph->vocab;
        mxc_model_close(m);
    }
    expect_twice(logits[1], logits[0], n);
    free(logits[0]);
    free(logits[1]);
}

static void scaled_projector(void **state) {
    (void)state;
    if (!mxc_real_plugin())
        skip();
    const struct mxc_load_options o = options();
    float *features[2];
    size_t n = 0;
    for (int i = 0; i < 2; i++) {
        struct mxc_model *m = operated_open(
            "qwen2_vl",
            i ? HEAD "  - {op: scale, pattern: \"visual.merger.mlp.2.*\", factor: 2}\n" : NULL, &o);
        assert_string_equal(m->tower_ops->name, "xla");
        features[i] = operated_features(m, &n);
        mxc_model_close(m);
    }
    expect_twice(features[1], features[0], n);
    free(features[0]);
    free(features[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(scaled_head),
                                       cmocka_unit_test(scaled_projector)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
