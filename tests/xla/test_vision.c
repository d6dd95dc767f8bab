/* Golden checkpoints that see, from pictures to tokens, on a device: towers give the reference's
 * features, prompts with spliced rows (or a filled CROSS store) its logits, 24 greedy tokens
 * follow; and everything is as near to the CPU backend's exact precision. Needs a plugin. */
#include "golden/vision_run.h"

#include "backend/runner.h"
#include "golden/checkpoint.h"
#include "xla/real_plugin.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Compiling takes most of the time, so a sample is run unless all is asked for. It must not leave
 * out: three position axes, a CROSS store, rows that see later ones, levels. */
static const char *const sample[] = {"qwen2_vl", "mllama", "gemma3", "qwen3_vl"};

static const double tolerance = 1e-4;

static void need(enum mxc_code code, const struct mxc_err *err) {
    if (code)
        print_message("%s\n", err->message);
    assert_int_equal(code, MXC_OK);
}

static void stage_open(struct vision_stage *s, const struct vlm *m, const char *backend,
                       int n_devices) {
    struct mxc_backend_options options = {.n_threads = 2};
    options.xla.plugin = mxc_real_plugin();
    options.xla.cache_dir = mxc_real_cache();
    options.xla.n_devices = n_devices;
    vision_stage_open(s, m, backend, &options, MXC_PRECISION_EXACT);
}

/* Features, prompts one by one, and generated tokens together. */
static void run_all(const struct vision_stage *s, const struct vlm_case *cases,
                    struct vision_item *items, size_t n) {
    for (size_t i = 0; i < n; i++) {
        vision_item_open(s, &cases[i], i, &items[i]);
        vision_run_prompt(s, &items[i]);
    }
    vision_greedy(s, items, n);
}

/* All prompts in one step, then once more in three chunks each, the middle one a single row of a
 * picture where there is one: the same logits. */
static void check_chunks(const struct vision_stage *s, const struct vision_item *items, size_t n) {
    size_t vocab = (size_t)s->graph->vocab, count = 0, at = 0;
    struct vision_rows *rows = vision_rows_new();
    for (size_t i = 0; i < n; i++)
        count += (size_t)items[i].c->layout.n_tokens * vocab;
    float *logits = calloc(count, sizeof *logits);
    assert_non_null(logits);
    for (size_t i = 0; i < n; i++)
        vision_add_prompt(s, rows, &items[i], 0, items[i].c->layout.n_tokens);
    vision_run(s, rows, logits);
    for (size_t i = 0; i < n; i++) {
        size_t all = (size_t)items[i].c->layout.n_tokens * vocab;
        assert_true(relative_difference(logits + at, items[i].logits, all) <= tolerance);
        at += all;
    }
    for (size_t i = 0; i < n && !items[i].c->layout.row_end; i++) {
        const struct mxc_vision_layout *l = &items[i].c->layout;
        int32_t middle = l->n_runs && !l->cross_range ? l->runs[0].row0 + 1 : l->n_tokens / 2;
        const int32_t ends[3] = {middle, middle + 1, l->n_tokens};
        for (int32_t k = 0, from = 0; k < 3; from = ends[k++]) {
            vision_add_prompt(s, rows, &items[i], from, ends[k]);
            vision_run(s, rows, logits + (size_t)from * vocab);
        }
        assert_true(relative_difference(logits, items[i].logits, (size_t)l->n_tokens * vocab) <=
                    tolerance);
    }
    free(logits);
    free(rows);
}

/* The host's features in the device's prompt. */
static void check_host_tower(const struct vision_stage *device, const struct vision_item *ours,
                             const struct vision_item *theirs) {
    size_t n = (size_t)ours->c->layout.n_tokens * (size_t)device->graph->vocab;
    struct vision_item mixed = *ours;
    mixed.logits = calloc(n, sizeof *mixed.logits);
    assert_non_null(mixed.logits);
    memcpy(mixed.features, theirs->features, sizeof mixed.features);
    vision_item_put(device, &mixed);
    vision_run_prompt(device, &mixed);
    assert_true(relative_difference(mixed.logits, theirs->logits, n) <= tolerance);
    free(mixed.logits);
}

static void check(const char *name, int n_devices) {
    struct vlm m;
    struct vision_stage host, device;
    struct vlm_case cases[VISION_MAX_CASES];
    struct vision_item ours[VISION_MAX_CASES], theirs[VISION_MAX_CASES];
    double features = -1, logits = 0, seen = 0, said = 0;
    vlm_open(&m, name);
    size_t n = json_array_size(json_object_get(m.golden, "cases"));
    assert_true(n >= 4 && n <= VISION_MAX_CASES);
    for (size_t i = 0; i < n; i++)
        vlm_case_open(&m, i, &cases[i]);
    stage_open(&host, &m, "cpu", 1);
    stage_open(&device, &m, "xla", n_devices);
    run_all(&host, cases, theirs, n);
    run_all(&device, cases, ours, n);
    for (size_t i = 0; i < n; i++) {
        size_t rows = (size_t)(cases[i].layout.n_tokens + VISION_GREEDY);
        features = fmax(features, vision_features_difference(&device, &ours[i]));
        logits = fmax(logits, vision_logits_difference(&device, &ours[i]));
        for (int32_t k = 0; k < cases[i].n_pictures; k++)
            seen = fmax(seen, relative_difference(ours[i].features[k], theirs[i].features[k],
                                                  (size_t)cases[i].pictures[k].cost.n_features *
                                                      vision_feature_width(&device)));
        said = fmax(said, relative_difference(ours[i].logits, theirs[i].logits,
                                              rows * (size_t)device.graph->vocab));
    }
    print_message("%-20s reference: features %.1e logits %.1e  CPU: features %.1e logits %.1e\n",
                  name, features, logits, seen, said);
    assert_true(features <= tolerance && logits <= tolerance);
    assert_true(features >= 0 || strstr(name, "mlx") || !strcmp(name, "mllama"));
    assert_true(seen <= tolerance && said <= tolerance);
    check_chunks(&device, ours, n);
    check_host_tower(&device, &ours[n - 1], &theirs[n - 1]);
    for (size_t i = 0; i < n; i++) {
        vision_item_close(&ours[i]);
        vision_item_close(&theirs[i]);
        vlm_case_close(&cases[i]);
    }
    vision_stage_close(&device);
    vision_stage_close(&host);
    vlm_close(&m);
}

static void test_all(void **state) {
    (void)state;
    if (!mxc_real_plugin())
        skip();
    const char *const *names = vlm_names();
    int n = 0, run = 0;
    for (; names[n]; n++) {
        bool wanted = mxc_real_all() || getenv("MXC_GOLDEN");
        for (size_t i = 0; i < (CHECKPOINT_SAMPLE ? 2 : sizeof sample / sizeof *sample); i++)
            wanted |= !strcmp(sample[i], names[n]);
        if (wanted)
            check(names[n], 1);
        run += wanted;
    }
    print_message("%d of %d folders\n", run, n);
    assert_true(run > 0);
}

/* Pictures of thousands of patches: windows, tiles, buckets that are not full. */
static void check_large(const char *name, int width, int height, int32_t least) {
    struct vlm m;
    struct vision_stage host, device;
    struct mxc_image image;
    struct mxc_vision_picture picture;
    struct mxc_err err;
    int32_t rows[2];
    vlm_open(&m, name);
    stage_open(&host, &m, "cpu", 1);
    stage_open(&device, &m, "xla", 1);
    need(mxc_image_init(width, height, &image, &err), &err);
    for (int i = 0; i < 3 * width * height; i++)
        image.rgb[i] = (uint8_t)((i % 3 + 1) * (i / 3 % width) / 4 + i / width);
    const struct mxc_vision_budget budget = {.max_pixels = 1 << 20};
    need(mxc_vision_prepare(m.vision, &image, &budget, &picture, &err), &err);
    float *want = vision_see(&host, &picture.input, UINT64_MAX, &rows[0]);
    float *have = vision_see(&device, &picture.input, UINT64_MAX, &rows[1]);
    double worst = relative_difference(have, want, (size_t)rows[0] * vision_feature_width(&host));
    print_message("%-20s %d patches: %.1e\n", name, picture.input.n_rows[0], worst);
    assert_true(picture.input.n_rows[0] >= least && rows[0] == rows[1]);
    assert_true(worst <= tolerance);
    free(want);
    free(have);
    mxc_vision_picture_fini(&picture);
    mxc_image_fini(&image);
    vision_stage_close(&device);
    vision_stage_close(&host);
    vlm_close(&m);
}

static void test_large(void **state) {
    (void)state;
    if (!mxc_real_plugin())
        skip();
    check_large("qwen2_5_vl", 700, 500, 1500);
    if (!mxc_real_all())
        return;
    check_large("qwen3_vl", 500, 300, 500);
    check_large("idefics3", 600, 400, 64);
}

/* The decoder on two devices, the tower on the first of them. */
static void test_devices(void **state) {
    (void)state;
    if (!mxc_real_plugin())
        skip();
    check("qwen3_vl", 2);
    if (mxc_real_all())
        check("mllama", 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all), cmocka_unit_test(test_devices),
                                       cmocka_unit_test(test_large)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
