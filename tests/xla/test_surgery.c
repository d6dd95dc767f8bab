/* Operations on weights reach what a device gets, too: a scaled head scales logits, and a scaled
 * projector features, that a plugin computes; of every family that sees, a changed tower and
 * projector give what the CPU backend makes of them, also where they are quantised. Needs a plugin.
 */
#define _GNU_SOURCE
#include "test.h"

#include "engine/operated.h"
#include "golden/checkpoint.h"
#include "xla/real_plugin.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* ---- what sees, on both backends */

static const double tolerance = 1e-4;

static double apart(const float *a, const float *b, size_t n) {
    double worst = 0, largest = 0;
    for (size_t i = 0; i < n; i++) {
        worst = fmax(worst, fabs((double)a[i] - (double)b[i]));
        largest = fmax(largest, fabs((double)b[i]));
    }
    assert_true(!n || largest > 0);
    return n ? worst / largest : 0;
}

static void see(const char *golden, const char *yaml, const char *backend,
                struct operated_seen *seen) {
    struct mxc_load_options o = options();
    o.max_rows = 64;
    o.backend = backend;
    o.precision = MXC_PRECISION_EXACT;
    struct mxc_model *m = operated_open(golden, yaml, &o);
    assert_string_equal(m->tower_ops->name, backend);
    operated_see(m, seen);
    mxc_model_close(m);
}

/* The same on xla as on cpu, and something else than without the document. */
static void compare(const char *golden, const char *yaml) {
    struct operated_seen plain, host, device;
    see(golden, NULL, "cpu", &plain);
    see(golden, yaml, "cpu", &host);
    see(golden, yaml, "xla", &device);
    assert_int_equal(host.n_features, device.n_features);
    assert_int_equal(host.n_logits, device.n_logits);
    const double features = apart(device.features, host.features, host.n_features);
    const double logits = apart(device.logits, host.logits, host.n_logits);
    const double changed[] = {apart(plain.features, host.features, host.n_features),
                              apart(plain.logits, host.logits, host.n_logits)};
    print_message("%-20s features %.1e logits %.1e  without: %.1e %.1e\n", golden, features, logits,
                  changed[0], changed[1]);
    assert_true(features <= tolerance && logits <= tolerance);
    assert_true(changed[0] > 100 * tolerance && (!host.n_logits || changed[1] > 100 * tolerance));
    operated_seen_fini(&plain);
    operated_seen_fini(&host);
    operated_seen_fini(&device);
}

static void every_family(void **state) {
    (void)state;
    static const char *const rows[][2] = {
        {"qwen2_vl",
         "  - {op: prune, granularity: attention_head, pattern: \"visual.blocks.0.attn.*\", "
         "head_ids: [1]}\n"
         "  - {op: scale, pattern: \"visual.blocks.*.mlp.fc1.*\", factor: 1.5}\n"},
        {"llava_clip_llama",
         "  - {op: prune, granularity: layer, pattern: \"vision_tower.*\", layer_ids: [1]}\n"
         "  - {op: scale, pattern: \"*.{class_embedding,position_embedding.weight}\", factor: -2}\n"
         "  - {op: scale, pattern: \"multi_modal_projector.linear_1.*\", factor: 1.5}\n"},
        {"mllama", "  - {op: prune, granularity: attention_head, pattern: "
                   "\"vision_model.*.layers.0.self_attn.{q,o}_proj.weight\", head_ids: [0]}\n"
                   "  - {op: scale, pattern: \"vision_model.*gate*\", factor: 3}\n"
                   "  - {op: scale, pattern: \"*.cross_attn.{k,v}_proj.weight\", factor: 2}\n"},
        {"qwen2_5_vl",
         "  - {op: prune, granularity: mlp_channel, pattern: \"visual.blocks.*.mlp.*.weight\", "
         "channel_ids: [0, 3, 5]}\n"
         "  - {op: scale, pattern: \"visual.patch_embed.*\", factor: 0.5}\n"},
        {"qwen3_vl",
         "  - {op: scale, pattern: \"*visual.deepstack_merger_list.*.weight\", factor: 2}\n"
         "  - {op: scale, pattern: \"*visual.pos_embed.*\", factor: 3}\n"},
        {"gemma3",
         "  - {op: scale, pattern: \"multi_modal_projector.mm_input_projection_weight\", factor: "
         "-1}\n"
         "  - {op: prune, granularity: layer, pattern: \"vision_tower.*\", layer_ids: [0]}\n"},
        {"idefics3", "  - {op: scale, pattern: \"model.connector.*\", factor: -1}\n"
                     "  - {op: scale, pattern: \"*.vision_model.*.fc2.*\", factor: 0.25}\n"},
    };
    /* compiling takes most of the time; the first ones are of three kinds of towers */
    const size_t n = CHECKPOINT_SAMPLE ? 1 : mxc_real_all() ? sizeof rows / sizeof *rows : 3;
    if (!mxc_real_plugin())
        skip();
    for (size_t i = 0; i < n; i++) {
        char yaml[1024];
        (void)snprintf(yaml, sizeof yaml, HEAD "%s", rows[i][1]);
        compare(rows[i][0], yaml);
    }
}

/* A merger that was quantised: as it is, scaled, and pruned; codes stay, scales change. */
static void quantised_tower(void **state) {
    (void)state;
    static const char *const more[] = {
        "", "  - {op: scale, pattern: vision_tower.merger.mlp.2.weight, factor: -1.5}\n",
        "  - {op: prune, granularity: mlp_channel, pattern: vision_tower.blocks.0.mlp.fc1.weight, "
        "channel_ids: [1]}\n"
        "  - {op: scale, pattern: \"vision_tower.merger.mlp.2.*\", factor: 0.5}\n"};
    char yaml[1024], donor[64];
    if (!mxc_real_plugin())
        skip();
    (void)snprintf(donor, sizeof donor, "/tmp/mxc-donor-%d.safetensors", (int)getpid());
    operated_donor(donor, "vision_tower.merger.mlp.2", 128, 192, true);
    for (size_t i = 0; i < (CHECKPOINT_SAMPLE ? 1 : sizeof more / sizeof *more); i++) {
        (void)snprintf(yaml, sizeof yaml,
                       HEAD
                       "  - {op: replace, pattern: &w vision_tower.merger.mlp.2.weight, source: "
                       "%s, source_key: *w}\n%s",
                       donor, more[i]);
        compare("qwen2_vl_mlx_q4_g64", yaml);
    }
    (void)unlink(donor);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scaled_head), cmocka_unit_test(scaled_projector),
        cmocka_unit_test(every_family), cmocka_unit_test(quantised_tower)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
