/* Golden checkpoints that see, from pictures to tokens, in exact precision at every ISA level:
 * towers give the reference's features, prompts with spliced rows (or a filled CROSS store) its
 * logits, 24 greedy tokens follow; and all cases of a checkpoint in one step give the bits that
 * each gives alone. */
#include "golden/vision_run.h"

#include "base/cpu.h"
#include "golden/checkpoint.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The manifest's tolerance for f32 arithmetic. */
static const double tolerance = 1e-4;

static void need(enum mxc_code code, const struct mxc_err *err) {
    if (code)
        print_message("%s\n", err->message);
    assert_int_equal(code, MXC_OK);
}

static void stage_open(struct vision_stage *s, const struct vlm *m, enum mxc_cpu_level level,
                       enum mxc_precision precision) {
    struct mxc_err err;
    need(mxc_cpu_mask(level, &err), &err);
    vision_stage_open(s, m, "cpu", &(struct mxc_backend_options){.n_threads = 2}, precision);
}

/* ---- cases */

/* All cases of a checkpoint, their prompts run one by one. */
struct cases {
    struct vlm_case cases[VISION_MAX_CASES];
    struct vision_item items[VISION_MAX_CASES];
    size_t n;
    double features, logits; /* differences; features -1: none to compare with */
};

static void cases_open(struct cases *c, const struct vision_stage *s) {
    *c = (struct cases){.n = json_array_size(json_object_get(s->m->golden, "cases")),
                        .features = -1};
    assert_true(c->n >= 4 && c->n <= VISION_MAX_CASES);
    for (size_t i = 0; i < c->n; i++) {
        vlm_case_open(s->m, i, &c->cases[i]);
        vision_item_open(s, &c->cases[i], i, &c->items[i]);
        vision_run_prompt(s, &c->items[i]);
        c->features = fmax(c->features, vision_features_difference(s, &c->items[i]));
        c->logits = fmax(c->logits, vision_logits_difference(s, &c->items[i]));
    }
}

static void cases_close(struct cases *c) {
    for (size_t i = 0; i < c->n; i++) {
        vision_item_close(&c->items[i]);
        vlm_case_close(&c->cases[i]);
    }
}

/* Every case's logits again, all in one step. */
static void check_together(const struct vision_stage *s, const struct cases *c) {
    size_t vocab = (size_t)s->graph->vocab;
    struct vision_rows *rows = vision_rows_new();
    for (size_t i = 0; i < c->n; i++)
        vision_add_prompt(s, rows, &c->items[i], 0, c->cases[i].layout.n_tokens);
    float *logits = calloc((size_t)rows->n * vocab, sizeof *logits), *at = logits;
    assert_non_null(logits);
    vision_run(s, rows, logits);
    for (size_t i = 0; i < c->n; i++) {
        size_t count = (size_t)c->cases[i].layout.n_tokens * vocab;
        assert_memory_equal(at, c->items[i].logits, count * sizeof *at);
        at += count;
    }
    free(logits);
    free(rows);
}

static void check_level(const struct vlm *m, const char *name, enum mxc_cpu_level level) {
    struct vision_stage s;
    struct cases c;
    stage_open(&s, m, level, MXC_PRECISION_EXACT);
    cases_open(&c, &s);
    print_message("%-24s %-7s features %.1e  logits %.1e\n", name, mxc_cpu_level_name(level),
                  c.features, c.logits);
    assert_true(c.features <= tolerance && c.logits <= tolerance);
    assert_true(c.features >= 0 || strstr(name, "mlx") || !strcmp(name, "mllama"));
    check_together(&s, &c);
    for (size_t i = 0; i < c.n; i++)
        vision_greedy(&s, &c.items[i], 1);
    cases_close(&c);
    vision_stage_close(&s);
}

static void test_all(void **state) {
    (void)state;
    for (const char *const *model = vlm_names(); *model; model++) {
        struct vlm m;
        vlm_open(&m, *model);
        for (int level = CHECKPOINT_SAMPLE ? (int)mxc_cpu_best() : 0; level <= (int)mxc_cpu_best();
             level++)
            check_level(&m, *model, (enum mxc_cpu_level)level);
        vlm_close(&m);
    }
}

/* bf16 arithmetic: near to the reference, and the same whatever the company. */
static void test_fast(void **state) {
    (void)state;
    struct vlm m;
    struct vision_stage s;
    struct cases c;
    vlm_open(&m, "qwen2_vl_bf16");
    stage_open(&s, &m, mxc_cpu_best(), MXC_PRECISION_FAST);
    cases_open(&c, &s);
    print_message("fast: features %.1e  logits %.1e\n", c.features, c.logits);
    assert_true(c.features >= 0 && c.features < 0.03 && c.logits < 0.05);
    check_together(&s, &c);
    cases_close(&c);
    vision_stage_close(&s);
    vlm_close(&m);
}

/* ---- mllama's ragged batches */

/* The indices of a tower of mllama, in the order in which its graph makes them, that say which
 * aspect ratio a picture has. */
enum { PRE_TILE, TILE_POSITION = 3, POST_TILE = 5, TILES = 4, PLANE = 17 };

/* The picture that the reference puts where a sample of a batch has none: zeros of aspect ratio 0,
 * its first tile counted; made from a picture of one tile. Its features. */
static float *see_missing(const struct vision_stage *s, const struct mxc_vision_picture *one) {
    struct mxc_vision_picture p = *one;
    const struct mxc_graph *g = mxc_vision_tower(s->m->vision);
    int32_t *made[MXC_MAX_INDICES] = {NULL};
    size_t width = (size_t)g->values[g->input].width;
    float *rows = calloc((size_t)p.input.n_rows[0] * width, sizeof *rows);
    assert_non_null(rows);
    assert_int_equal(one->cost.n_tiles, 1);
    for (int32_t i = 0; i < g->n_indices; i++) {
        int32_t step = i == PRE_TILE || i == POST_TILE ? TILES
                       : i == TILE_POSITION            ? TILES * PLANE
                                                       : 0;
        size_t n = (size_t)mxc_tower_rows(&p.input, mxc_tower_index_rows(g, i));
        made[i] = calloc(n, sizeof *made[i]);
        assert_non_null(made[i]);
        for (size_t k = 0; k < n; k++) {
            int32_t at = one->input.index[i][k];
            made[i][k] = at < 0 ? at : at - step; /* of aspect ratio 1, the id of one tile */
            assert_true(at < 0 || made[i][k] >= 0);
        }
        p.input.index[i] = made[i];
    }
    p.input.rows = rows;
    int32_t n_rows;
    float *features = vision_see(s, &p.input, UINT64_MAX, &n_rows);
    assert_int_equal(n_rows, one->cost.n_features);
    for (int32_t i = 0; i < g->n_indices; i++)
        free(made[i]);
    free(rows);
    return features;
}

/* A sample of a batch as a case of its own. */
static void add_sample(const struct vlm *m, size_t i) {
    const json_t *batch = json_array_get(json_object_get(m->golden, "batch_cases"), 0);
    json_t *sample = json_deep_copy(json_array_get(json_object_get(batch, "samples"), i));
    assert_non_null(sample);
    json_object_set_new(sample, "name", json_string("sample"));
    json_object_set(sample, "rendered", json_array_get(json_object_get(batch, "texts"), i));
    json_object_set(sample, "images", json_array_get(json_object_get(batch, "images"), i));
    assert_int_equal(json_array_append_new(json_object_get(m->golden, "cases"), sample), 0);
}

/* The reference's batch of one sample with one picture and one with two: it gives the first a
 * second picture of nothing, and text before the first picture sees that. No request of ours gets
 * anything from its neighbours; but with the same rows in its store, and the same masks, it gives
 * the same. */
static void test_ragged(void **state) {
    (void)state;
    struct vlm m;
    struct vision_stage s;
    struct mxc_err err;
    if (getenv("MXC_GOLDEN"))
        skip(); /* of tests/data only */
    vlm_open(&m, "mllama");
    size_t n = json_array_size(json_object_get(m.golden, "cases")), count;
    add_sample(&m, 0);
    add_sample(&m, 1);
    const int32_t *mask = vlm_tensor(&m, "ragged_batch.cross_attention_mask", &count);
    assert_non_null(mask);
    for (int level = 0; level <= (int)mxc_cpu_best(); level++) {
        stage_open(&s, &m, (enum mxc_cpu_level)level, MXC_PRECISION_EXACT);
        for (size_t i = 0; i < 2; i++) {
            struct vlm_case c;
            struct vision_item item;
            vlm_case_open(&m, n + i, &c);
            vision_item_open(&s, &c, n + i, &item);
            const struct mxc_vision_layout *l = &c.layout;
            if (i == 0) {
                float *features = see_missing(&s, &c.pictures[0]);
                need(s.ops->state_put(s.state, item.blocks, item.cross_tokens, TILES * PLANE,
                                      features, vision_feature_width(&s), &err),
                     &err);
                item.cross_tokens += TILES * PLANE;
                free(features);
            }
            assert_int_equal(item.cross_tokens, 2 * TILES * PLANE);
            /* the reference's mask says of every token which tiles it sees */
            for (int32_t row = 0; row < l->n_tokens; row++) {
                int32_t tiles = 0;
                for (int t = 0; t < 2 * TILES; t++)
                    tiles += mask[(i * count / 2) + (size_t)(row * 2 * TILES + t)];
                assert_int_equal(l->cross_range[l->n_tokens + row] - l->cross_range[row],
                                 tiles * PLANE);
            }
            vision_run_prompt(&s, &item);
            double worst = vision_logits_difference(&s, &item);
            print_message("sample %zu, %s: %.1e\n", i,
                          mxc_cpu_level_name((enum mxc_cpu_level)level), worst);
            assert_true(worst <= tolerance);
            vision_item_close(&item);
            vlm_case_close(&c);
        }
        vision_stage_close(&s);
    }
    vlm_close(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all), cmocka_unit_test(test_fast),
                                       cmocka_unit_test(test_ragged)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
