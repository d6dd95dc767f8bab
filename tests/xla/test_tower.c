/* Towers on a device: every op against the interpreter of towers.h, padded to buckets; attention
 * for heads of many sizes and for ranges of every kind; pictures packed with others; runs in turns
 * and in parts; memory that a text would betray (no array of rows x rows); failures. What runs
 * programs needs a plugin and is skipped without one. */
#define _GNU_SOURCE
#include "backend/towers.h"

#include "backend/xla/plan.h"
#include "backend/xla/tower.h"
#include "base/mem.h"
#include "xla/real_plugin.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void need(enum mxc_code code, const struct mxc_err *err) {
    if (code)
        print_message("%s\n", err->message);
    assert_int_equal(code, MXC_OK);
}

/* ---- buckets and feeds */

static void test_buckets(void **state) {
    static const int32_t rows[][2] = {{4, 16},      {16, 16},     {20, 64},     {256, 256},
                                      {260, 512},   {1000, 1024}, {1028, 2048}, {4096, 4096},
                                      {4100, 6144}, {9000, 10240}};
    (void)state;
    struct mini m;
    tower_model(&m, TOWER_QWEN, MXC_ST_F32);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct tower_feed feed;
        struct mxc_xla_buckets b;
        uint32_t seed = 1;
        tower_feed(&feed, &m, 1, rows[i], &seed);
        mxc_xla_tower_buckets(m.graph, &feed.input, &b);
        assert_int_equal(b.slots[0], rows[i][1]);
        /* one picture sees itself, its keys are counted in powers of two */
        int32_t keys = 64;
        while (keys < rows[i][0])
            keys *= 2;
        assert_int_equal(b.keys[0], keys < rows[i][1] ? keys : rows[i][1]);
        tower_feed_fini(&feed);
    }
    mini_close(&m);
}

/* Small pictures side by side: a tile of 64 rows sees two or three of them, not all rows. */
static void test_windows(void **state) {
    enum { N = 8, ROWS = 40 };
    int32_t rows[N], real = N * ROWS;
    uint32_t seeds[N] = {1, 2, 3, 4, 5, 6, 7, 8};
    (void)state;
    struct mini m;
    struct tower_feed feed;
    struct mxc_xla_buckets b;
    for (int i = 0; i < N; i++)
        rows[i] = ROWS;
    tower_model(&m, TOWER_QWEN, MXC_ST_F32);
    tower_feed(&feed, &m, N, rows, seeds);
    mxc_xla_tower_buckets(m.graph, &feed.input, &b);
    assert_int_equal(b.slots[0], 512);
    assert_int_equal(b.keys[0], 128);
    int32_t tiles = mxc_xla_tower_tiles(512), tile = mxc_xla_tower_tile(512), extra[64];
    int32_t *range = calloc(2 * 512, sizeof *range);
    const struct mxc_xla_feed feeds[2] = {{.kind = MXC_XLA_FEED_EXTRA, .n = (size_t)tiles + 1},
                                          {.kind = MXC_XLA_FEED_RANGE, .n = 2 * 512}};
    assert_non_null(range);
    assert_true(tiles < 64);
    mxc_xla_tower_fill(m.graph, &feed.input, &b, &feeds[0], extra);
    mxc_xla_tower_fill(m.graph, &feed.input, &b, &feeds[1], range);
    assert_int_equal(extra[tiles], real);
    for (int32_t r = 0; r < 512; r++) {
        int32_t key0 = extra[r / tile], shown = r < real ? r : real - 1;
        assert_int_equal(range[r], shown / ROWS * ROWS);
        assert_int_equal(range[512 + r], shown / ROWS * ROWS + ROWS);
        assert_true(key0 >= 0 && key0 + 128 <= 512);
        assert_true(range[r] >= key0 && range[512 + r] <= key0 + 128);
    }
    free(range);
    tower_feed_fini(&feed);
    mini_close(&m);
}

static void test_padding(void **state) {
    static const int32_t rows[] = {12, 24};
    static const uint32_t seeds[] = {1, 2};
    (void)state;
    struct mini m;
    struct tower_feed feed;
    struct mxc_xla_buckets b;
    tower_model(&m, TOWER_MIXED, MXC_ST_F32);
    tower_feed(&feed, &m, 2, rows, seeds);
    mxc_xla_tower_buckets(m.graph, &feed.input, &b);
    for (int32_t i = 0; i < m.graph->n_indices; i++) {
        struct mxc_extent extent = mxc_tower_index_rows(m.graph, i);
        int32_t real = mxc_tower_rows(&feed.input, extent), terms = m.graph->indices[i].terms;
        int32_t bucket = mxc_xla_tower_bucket(&b, extent);
        size_t n = (size_t)terms * (size_t)bucket;
        const struct mxc_xla_feed index = {.kind = MXC_XLA_FEED_INDEX, .which = i, .n = n};
        const struct mxc_xla_feed factor = {.kind = MXC_XLA_FEED_FACTOR, .which = i, .n = n};
        int32_t *ints = calloc(n, sizeof *ints);
        float *floats = calloc(n, sizeof *floats);
        assert_true(ints && floats && real <= bucket);
        mxc_xla_tower_fill(m.graph, &feed.input, &b, &index, ints);
        if (m.graph->indices[i].weighted)
            mxc_xla_tower_fill(m.graph, &feed.input, &b, &factor, floats);
        for (int32_t t = 0; t < terms; t++)
            for (int32_t r = 0; r < bucket; r++) {
                size_t to = (size_t)t * (size_t)bucket + (size_t)r;
                size_t from = (size_t)t * (size_t)real + (size_t)r;
                assert_int_equal(ints[to], r < real ? feed.input.index[i][from] : -1);
                if (m.graph->indices[i].weighted)
                    assert_true(floats[to] == (r < real ? feed.input.factor[i][from] : 0));
            }
        free(ints);
        free(floats);
    }
    tower_feed_fini(&feed);
    mini_close(&m);
}

/* ---- texts */

/* Text of nodes [node0, node1), or of all; the caller's. */
static char *text_of(const struct mini *m, const struct mxc_tower_input *input,
                     const struct mxc_xla_cut *cut) {
    struct mxc_xla_model *model = NULL;
    struct mxc_xla_module module;
    struct mxc_xla_buckets b;
    struct mxc_err err;
    const struct mxc_xla_form form = {.roll = false};
    need(mxc_xla_model_new(m->graph, m->weights, &model, &err), &err);
    mxc_xla_tower_buckets(m->graph, input, &b);
    need(mxc_xla_module_make(model, &b, &form, cut, &module, &err), &err);
    char *text = strdup(module.text);
    assert_non_null(text);
    mxc_xla_module_fini(&module);
    mxc_xla_model_free(model);
    return text;
}

/* 2000 rows see each other, and there is no array of rows x rows. */
static void test_no_square(void **state) {
    static const int32_t rows = 2000;
    static const uint32_t seed = 1;
    (void)state;
    for (enum tower_model model = 0; model < TOWER_N_MODELS; model++) {
        struct mini m;
        struct tower_feed feed;
        tower_model(&m, model, MXC_ST_F32);
        tower_feed(&feed, &m, 1, &rows, &seed);
        char *text = text_of(&m, &feed.input, NULL);
        assert_non_null(strstr(text, "2048x"));
        assert_null(strstr(text, "2048x2048"));
        assert_non_null(strstr(text, "stablehlo.while"));
        free(text);
        tower_feed_fini(&feed);
        mini_close(&m);
    }
}

static void fail_everywhere(const struct mini *m, const struct mxc_tower_input *input) {
    struct mxc_xla_model *model = NULL;
    struct mxc_xla_module module;
    struct mxc_xla_buckets b;
    struct mxc_err err;
    const struct mxc_xla_form form = {.roll = false};
    need(mxc_xla_model_new(m->graph, m->weights, &model, &err), &err);
    mxc_xla_tower_buckets(m->graph, input, &b);
    enum mxc_code code = MXC_E_NOMEM;
    for (uint64_t n = 1; code; n++) {
        mxc_mem_fail_at(n);
        code = mxc_xla_module_make(model, &b, &form, NULL, &module, &err);
        mxc_mem_fail_at(0);
        assert_true(code == MXC_OK || code == MXC_E_NOMEM);
    }
    mxc_xla_module_fini(&module);
    mxc_xla_model_free(model);
}

static void test_module_faults(void **state) {
    static const int32_t rows = 8;
    static const uint32_t seed = 1;
    (void)state;
    struct mini m;
    struct tower_feed feed;
    tower_model(&m, TOWER_MIXED, MXC_ST_F32);
    tower_feed(&feed, &m, 1, &rows, &seed);
    fail_everywhere(&m, &feed.input);
    tower_feed_fini(&feed);
    mini_close(&m);
}

/* ---- runs */

static bool backend_open(struct tower_stage *s) {
    struct mxc_err err;
    struct mxc_backend_options options = {.n_threads = 2};
    options.xla.plugin = mxc_real_plugin();
    options.xla.cache_dir = mxc_real_cache();
    if (!options.xla.plugin)
        return false;
    *s = (struct tower_stage){.plan = NULL};
    need(mxc_backend_find("xla", &s->ops, &err), &err);
    need(s->ops->open(&options, &s->backend, &err), &err);
    return true;
}

static void plan_open(struct tower_stage *s, const struct mini *m) {
    struct mxc_err err;
    const struct mxc_plan_options options = {.precision = MXC_PRECISION_EXACT};
    need(s->ops->compile(s->backend, m->graph, m->weights, &options, &s->plan, &err), &err);
}

static void plan_close(struct tower_stage *s) {
    s->ops->plan_free(s->plan);
    s->plan = NULL;
}

/* Whether matrices are integers on the device. */
static bool check_numbers(struct tower_stage *s, const struct mini *m,
                          const struct mxc_tower_input *input, bool taps, double tolerance) {
    double **want = tower_reference(m, input);
    size_t n = (size_t)tower_rows(m, input, m->graph->logits) * (size_t)m->graph->vocab;
    plan_open(s, m);
    bool integers = !strstr(s->ops->plan_describe(s->plan), "integers with scales x 0,");
    float *have = tower_run(s, m, input, UINT64_MAX, NULL);
    double worst = tower_difference(have, want[m->graph->logits], n), named = 0;
    if (taps)
        free(tower_run_watched(s, m, input, want, &named));
    if (!(worst <= tolerance && named <= tolerance))
        print_message("%d rows: %g, named values %g\n", input->n_rows[0], worst, named);
    assert_true(worst <= tolerance && named <= tolerance);
    free(have);
    tower_values_free(m, want);
    plan_close(s);
    return integers;
}

static void test_numbers(void **state) {
    static const int32_t rows[] = {60, 4, 300, 84};
    static const uint32_t seeds[] = {1, 2, 3, 4};
    static const enum mxc_storage storages[] = {MXC_ST_F32, MXC_ST_BF16, MXC_ST_MLX_AFFINE};
    (void)state;
    struct tower_stage s;
    int quantised = 0;
    if (!backend_open(&s))
        skip();
    for (enum tower_model model = 0; model < TOWER_N_MODELS; model++)
        for (size_t i = 0; i < sizeof storages / sizeof *storages; i++) {
            struct mini m;
            struct tower_feed feed;
            tower_model(&m, model, storages[i]);
            tower_feed(&feed, &m, 4, rows, seeds);
            bool integers = check_numbers(&s, &m, &feed.input, !i, 2e-5);
            assert_true(!integers || storages[i] == MXC_ST_MLX_AFFINE);
            quantised += integers;
            tower_feed_fini(&feed);
            mini_close(&m);
        }
    assert_true(quantised > 0);
    s.ops->close(s.backend);
}

static void check_attend(struct tower_stage *s, int32_t dim, bool interleaved, int32_t rows,
                         bool odd) {
    struct mini m;
    struct tower_feed feed;
    uint32_t seed = 5;
    tower_attend(&m, 3, dim, interleaved);
    tower_feed(&feed, &m, 1, &rows, &seed);
    if (odd)
        tower_odd_ranges(&feed);
    (void)check_numbers(s, &m, &feed.input, false, 4e-6);
    tower_feed_fini(&feed);
    mini_close(&m);
}

static void test_attend(void **state) {
    static const int32_t dims[] = {16, 72, 80, 128};
    (void)state;
    struct tower_stage s;
    if (!backend_open(&s))
        skip();
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        check_attend(&s, dims[i], i % 2, 140, false);
    check_attend(&s, 16, false, 700, true);
    check_attend(&s, 8, true, 1, false);
    s.ops->close(s.backend);
}

/* A picture gives the same alone and packed with others, whatever the budget. */
static void check_packed(struct tower_stage *s, enum tower_model model) {
    enum { N = 3 };
    static const int32_t sizes[N] = {92, 360, 16};
    static const uint32_t seeds[N] = {11, 12, 13};
    struct mini m;
    struct tower_feed feed;
    tower_model(&m, model, MXC_ST_F32);
    plan_open(s, &m);
    tower_feed(&feed, &m, N, sizes, seeds);
    float *together = tower_run(s, &m, &feed.input, 1, NULL), *at = together;
    tower_feed_fini(&feed);
    for (int i = 0; i < N; i++) {
        size_t n = (size_t)(sizes[i] / 4) * (size_t)m.graph->vocab;
        tower_feed(&feed, &m, 1, &sizes[i], &seeds[i]);
        float *alone = tower_run(s, &m, &feed.input, UINT64_MAX, NULL);
        for (size_t k = 0; k < n; k++)
            assert_true(fabsf(alone[k] - at[k]) <= 1e-4f);
        at += n;
        free(alone);
        tower_feed_fini(&feed);
    }
    free(together);
    plan_close(s);
    mini_close(&m);
}

static void test_packed(void **state) {
    (void)state;
    struct tower_stage s;
    if (!backend_open(&s))
        skip();
    for (enum tower_model model = 0; model < TOWER_N_MODELS; model++)
        check_packed(&s, model);
    s.ops->close(s.backend);
}

static struct mxc_xla_counters counters(const struct tower_stage *s) {
    struct mxc_xla_counters n = {0};
#ifdef MLXCEL_XLA_DEVICE_RUNTIME
    mxc_xla_client_counters(s->backend->client, &n);
#else
    (void)s; /* without the runtime there is no plugin to test with either */
#endif
    return n;
}

/* A tower of like layers: a step is a part, and there are three programs, however deep it is. */
static void test_layers(void **state) {
    enum { LAYERS = 6, WIDTH = 32 };
    static const int32_t rows = 20;
    static const uint32_t seed = 3;
    (void)state;
    struct tower_stage s;
    struct mini m;
    struct mxc_graph *g = NULL;
    struct tower_feed feed;
    struct mxc_xla_counters before, after;
    int steps;
    if (!backend_open(&s))
        skip();
    assert_int_equal(mxc_graph_new("layers", &g, NULL), MXC_OK);
    int32_t x = mxc_graph_input(g, TOWER_INPUT), range = mxc_graph_range(g, x);
    const struct mxc_attend_attr attr = {
        .n_heads = 2, .head_dim = 16, .scale = 0.25f, .rope = MXC_NONE, .range = range};
    struct mxc_linear_part part = {mxc_graph_matrix(g, WIDTH, TOWER_INPUT, "in"), MXC_NONE};
    x = mxc_graph_linear(g, x, 1, &part, 1, MXC_NONE);
    for (int i = 0; i < LAYERS; i++) {
        mxc_graph_begin_layer(g, i);
        part.weight = mxc_graph_matrix(g, 3 * WIDTH, WIDTH, "qkv.%d", i);
        int32_t h = mxc_graph_attend(g, mxc_graph_linear(g, x, 1, &part, 1, MXC_NONE), &attr);
        part.weight = mxc_graph_matrix(g, WIDTH, WIDTH, "proj.%d", i);
        x = mxc_graph_linear(g, h, 1, &part, 1, x);
    }
    mxc_graph_begin_layer(g, MXC_NONE);
    mini_open(&m, g, mxc_graph_mean_rows(g, x, 4), MXC_ST_F32);
    tower_feed(&feed, &m, 1, &rows, &seed);
    plan_open(&s, &m);
    before = counters(&s);
    free(tower_run(&s, &m, &feed.input, 1, &steps));
    free(tower_run(&s, &m, &feed.input, 1, &steps));
    after = counters(&s);
    assert_int_equal(steps, LAYERS + 2);
    assert_int_equal(after.executions - before.executions, 2 * (LAYERS + 2));
    assert_int_equal(after.compiled + after.cached - before.compiled - before.cached, 3);
    plan_close(&s);
    (void)check_numbers(&s, &m, &feed.input, false, 1e-5);
    tower_feed_fini(&feed);
    mini_close(&m);
    s.ops->close(s.backend);
}

static void test_turns(void **state) {
    (void)state;
    struct tower_stage s;
    struct mini m;
    if (!backend_open(&s))
        skip();
    tower_model(&m, TOWER_QWEN, MXC_ST_F32);
    plan_open(&s, &m);
    tower_check_turns(&s, &m, 1);
    plan_close(&s);
    mini_close(&m);
    s.ops->close(s.backend);
}

static void test_errors(void **state) {
    static const int32_t rows = 16;
    static const uint32_t seed = 3;
    (void)state;
    struct tower_stage s;
    struct mini m;
    struct tower_feed feed;
    struct mxc_tower *tower = NULL;
    struct mxc_err err;
    if (!backend_open(&s))
        skip();
    tower_model(&m, TOWER_QWEN, MXC_ST_F32);
    plan_open(&s, &m);
    tower_feed(&feed, &m, 1, &rows, &seed);
    assert_true(s.ops->tower_bytes(s.plan, &feed.input) > 0);
    feed.range[0][3] = 15;
    feed.range[0][rows + 3] = 17;
    assert_int_equal(s.ops->tower_new(s.plan, &feed.input, &tower, &err), MXC_E_ARG);
    assert_string_equal(err.message, "tower: range 0, row 3: [15, 17) is not within 16 rows");
    feed.range[0][3] = 0;
    feed.range[0][rows + 3] = 16;
    free(tower_run(&s, &m, &feed.input, UINT64_MAX, NULL));
    /* every allocation of a run fails once; the plan lives on */
    enum mxc_code code = MXC_E_NOMEM;
    for (uint64_t n = 1; code; n++) {
        bool done = false;
        mxc_mem_fail_at(n);
        code = s.ops->tower_new(s.plan, &feed.input, &tower, &err);
        while (!code && !done)
            code = s.ops->tower_step(tower, UINT64_MAX, &done, &err);
        mxc_mem_fail_at(0);
        assert_true(code == MXC_OK || code == MXC_E_NOMEM);
        s.ops->tower_free(tower);
        tower = NULL;
    }
    tower_feed_fini(&feed);
    plan_close(&s);
    mini_close(&m);
    s.ops->close(s.backend);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_buckets),       cmocka_unit_test(test_windows),
        cmocka_unit_test(test_padding),       cmocka_unit_test(test_no_square),
        cmocka_unit_test(test_module_faults), cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_attend),        cmocka_unit_test(test_packed),
        cmocka_unit_test(test_layers),        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_errors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
