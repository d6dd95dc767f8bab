/* Towers on the CPU backend: every op against the interpreter of towers.h, at every ISA level, in
 * exact and in fast; attention for heads of many sizes; equal bits whether a picture comes alone or
 * packed with others, whatever the budget of a step and the number of threads; taps. */
#include "backend/towers.h"

#include "backend/runner.h"
#include "base/cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct mxc_backend_ops *const ops = &mxc_backend_cpu;

struct stage {
    struct mxc_backend *backend;
    struct mxc_plan *plan;
};

static void need(enum mxc_code code, const struct mxc_err *err) {
    if (code)
        print_message("%s\n", err->message);
    assert_int_equal(code, MXC_OK);
}

static void stage_open(struct stage *s, const struct mini *m, int level, int threads,
                       enum mxc_precision precision) {
    struct mxc_err err;
    need(mxc_cpu_mask((enum mxc_cpu_level)level, &err), &err);
    need(ops->open(&(struct mxc_backend_options){.n_threads = threads}, &s->backend, &err), &err);
    struct mxc_plan_options options = {.precision = precision};
    need(ops->compile(s->backend, m->graph, m->weights, &options, &s->plan, &err), &err);
}

static void stage_close(struct stage *s) {
    ops->plan_free(s->plan);
    ops->close(s->backend);
}

/* Features of a run with steps of `budget`, the caller's to free. */
static float *run(const struct stage *s, const struct mini *m, const struct mxc_tower_input *input,
                  uint64_t budget, mxc_tap_fn *tap, void *user) {
    struct mxc_tower *tower = NULL;
    struct mxc_err err;
    bool done = false;
    int32_t rows, steps = 0;
    need(ops->tower_new(s->plan, input, &tower, &err), &err);
    if (tap)
        need(ops->tower_tap(tower, tap, user, &err), &err);
    for (; !done; steps++)
        need(ops->tower_step(tower, budget, &done, &err), &err);
    assert_true(budget == UINT64_MAX ? steps == 1 : steps > 1);
    const float *out = ops->tower_output(tower, &rows);
    assert_int_equal(rows, tower_rows(m, input, m->graph->logits));
    size_t n = (size_t)rows * (size_t)m->graph->vocab;
    float *copy = calloc(n, sizeof *copy);
    assert_non_null(copy);
    memcpy(copy, out, n * sizeof *copy);
    ops->tower_free(tower);
    return copy;
}

/* ---- against the interpreter */

static double difference(const float *have, const double *want, size_t n) {
    double worst = 0, largest = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)have[i] - want[i]);
        if (!(d <= worst))
            worst = d;
        largest = fmax(largest, fabs(want[i]));
    }
    return worst / largest;
}

struct watch {
    double **want;
    double worst;
    int32_t seen;
};

static void watch_value(void *user, const struct mxc_graph *graph, int32_t value, const float *data,
                        int32_t rows, int32_t width) {
    struct watch *w = user;
    assert_true(graph->values[value].name[0]);
    w->worst = fmax(w->worst, difference(data, w->want[value], (size_t)rows * (size_t)width));
    w->seen++;
}

static void check_numbers(const struct mini *m, const struct mxc_tower_input *input,
                          enum mxc_precision precision, double tolerance) {
    double **want = tower_reference(m, input);
    size_t n = (size_t)tower_rows(m, input, m->graph->logits) * (size_t)m->graph->vocab;
    for (int level = 0; level <= (int)mxc_cpu_best(); level++) {
        struct stage s;
        struct watch watch = {want, 0, 0};
        int32_t named = 0;
        stage_open(&s, m, level, 2, precision);
        float *have = run(&s, m, input, UINT64_MAX, NULL, NULL);
        float *again = run(&s, m, input, UINT64_MAX, watch_value, &watch);
        double worst = difference(have, want[m->graph->logits], n);
        if (!(worst <= tolerance && watch.worst <= tolerance))
            print_message("level %d: %g, named values %g\n", level, worst, watch.worst);
        assert_true(worst <= tolerance && watch.worst <= tolerance);
        assert_memory_equal(have, again, n * sizeof *have); /* with a tap, nothing is fused */
        for (int32_t v = 0; v < m->graph->n_values; v++)
            named += m->graph->values[v].name[0] != 0;
        assert_int_equal(watch.seen, named);
        free(have);
        free(again);
        stage_close(&s);
    }
    tower_values_free(m, want);
}

static void check_model(enum tower_model model, enum mxc_storage storage,
                        enum mxc_precision precision, double tolerance) {
    static const int32_t rows[] = {60, 4, 300, 84};
    static const uint32_t seeds[] = {1, 2, 3, 4};
    struct mini m;
    struct tower_feed feed;
    tower_model(&m, model, storage);
    tower_feed(&feed, &m, 4, rows, seeds);
    check_numbers(&m, &feed.input, precision, tolerance);
    tower_feed_fini(&feed);
    mini_close(&m);
}

static void test_exact(void **state) {
    (void)state;
    for (enum tower_model model = 0; model < TOWER_N_MODELS; model++) {
        check_model(model, MXC_ST_F32, MXC_PRECISION_EXACT, 2e-5);
        check_model(model, MXC_ST_BF16, MXC_PRECISION_EXACT, 2e-5);
    }
}

static void test_fast(void **state) {
    (void)state;
    for (enum tower_model model = 0; model < TOWER_N_MODELS; model++) {
        check_model(model, MXC_ST_BF16, MXC_PRECISION_FAST, 4e-2);
        check_model(model, MXC_ST_MLX_AFFINE, MXC_PRECISION_FAST, 6e-2);
    }
}

/* ---- attention */

/* Ranges that overlap, look back or forward, and are longer than a chunk. */
static void odd_ranges(struct tower_feed *feed) {
    int32_t n = feed->input.n_rows[0], *begin = feed->range[0], *end = begin + n;
    for (int32_t r = 0; r < n; r++) {
        if (r < 100) { /* windows that slide */
            begin[r] = r < 40 ? 3 : r - 37;
            end[r] = r + 9;
        } else if (r < 150) { /* elsewhere, row by row */
            begin[r] = r % 2 ? 160 : 7;
            end[r] = begin[r] + 1 + r % 30;
        } else { /* a long one */
            begin[r] = 150;
            end[r] = n - r % 3;
        }
    }
}

static void check_attend(int32_t dim, bool interleaved, int32_t rows, bool odd) {
    struct mini m;
    struct tower_feed feed;
    uint32_t seed = 5;
    tower_attend(&m, 3, dim, interleaved);
    tower_feed(&feed, &m, 1, &rows, &seed);
    if (odd)
        odd_ranges(&feed);
    check_numbers(&m, &feed.input, MXC_PRECISION_EXACT, 2e-6);
    check_numbers(&m, &feed.input, MXC_PRECISION_FAST, 1e-2);
    tower_feed_fini(&feed);
    mini_close(&m);
}

static void test_attend(void **state) {
    static const int32_t dims[] = {16, 64, 72, 80, 88, 128};
    (void)state;
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        check_attend(dims[i], i % 2, 140, false);
    check_attend(16, false, 700, true);
    check_attend(8, true, 1, false);
}

/* More components than there are spare pages. */
static void test_windows(void **state) {
    enum { N = 150 };
    (void)state;
    int32_t rows[N];
    uint32_t seeds[N];
    struct mini m;
    struct tower_feed feed;
    for (int i = 0; i < N; i++) {
        rows[i] = 1 + i % 5;
        seeds[i] = (uint32_t)i;
    }
    tower_attend(&m, 2, 16, false);
    tower_feed(&feed, &m, N, rows, seeds);
    check_numbers(&m, &feed.input, MXC_PRECISION_EXACT, 2e-6);
    tower_feed_fini(&feed);
    mini_close(&m);
}

/* ---- equal bits */

enum { N_PICTURES = 4 };
static const int32_t sizes[N_PICTURES] = {92, 360, 16, 560};
static const uint32_t picture_seeds[N_PICTURES] = {11, 12, 13, 14};

static void check_packed(const struct stage *s, const struct mini *m, float *const want[N_PICTURES],
                         uint64_t budget) {
    static const int orders[2][N_PICTURES] = {{0, 1, 2, 3}, {3, 2, 0, 1}};
    for (size_t o = 0; o < 2; o++) {
        int32_t rows[N_PICTURES];
        uint32_t seeds[N_PICTURES];
        struct tower_feed feed;
        for (int i = 0; i < N_PICTURES; i++) {
            rows[i] = sizes[orders[o][i]];
            seeds[i] = picture_seeds[orders[o][i]];
        }
        tower_feed(&feed, m, N_PICTURES, rows, seeds);
        float *have = run(s, m, &feed.input, budget, NULL, NULL), *at = have;
        for (int i = 0; i < N_PICTURES; i++) {
            size_t n = (size_t)(rows[i] / 4) * (size_t)m->graph->vocab;
            assert_memory_equal(at, want[orders[o][i]], n * sizeof *at);
            at += n;
        }
        free(have);
        tower_feed_fini(&feed);
    }
}

static void check_bits(enum tower_model model, enum mxc_storage storage,
                       enum mxc_precision precision) {
    struct mini m;
    tower_model(&m, model, storage);
    for (int level = 0; level <= (int)mxc_cpu_best(); level++) {
        float *want[N_PICTURES];
        for (int threads = 1; threads <= 3; threads++) {
            struct stage s;
            stage_open(&s, &m, level, threads, precision);
            for (int i = 0; i < N_PICTURES; i++) {
                struct tower_feed feed;
                tower_feed(&feed, &m, 1, &sizes[i], &picture_seeds[i]);
                float *alone = run(&s, &m, &feed.input, threads == 2 ? 1 : UINT64_MAX, NULL, NULL);
                if (threads == 1)
                    want[i] = alone;
                size_t n = (size_t)(sizes[i] / 4) * (size_t)m.graph->vocab;
                assert_memory_equal(alone, want[i], n * sizeof *alone);
                if (threads > 1)
                    free(alone);
                tower_feed_fini(&feed);
            }
            check_packed(&s, &m, want, threads == 3 ? 300000 : UINT64_MAX);
            stage_close(&s);
        }
        for (int i = 0; i < N_PICTURES; i++)
            free(want[i]);
    }
    mini_close(&m);
}

static void test_bits(void **state) {
    (void)state;
    for (enum tower_model model = 0; model < TOWER_N_MODELS; model++) {
        check_bits(model, MXC_ST_F32, MXC_PRECISION_EXACT);
        check_bits(model, MXC_ST_BF16, MXC_PRECISION_FAST);
    }
}

/* Two runs of one plan, step by step in turns. */
static void test_turns(void **state) {
    (void)state;
    struct mini m;
    struct stage s;
    struct tower_feed feeds[2];
    struct mxc_tower *towers[2];
    struct mxc_err err;
    float *want[2];
    bool done[2] = {false, false};
    tower_model(&m, TOWER_MIXED, MXC_ST_F32);
    stage_open(&s, &m, (int)mxc_cpu_best(), 2, MXC_PRECISION_EXACT);
    for (int i = 0; i < 2; i++) {
        tower_feed(&feeds[i], &m, 1, &sizes[i], &picture_seeds[i]);
        want[i] = run(&s, &m, &feeds[i].input, UINT64_MAX, NULL, NULL);
        need(ops->tower_new(s.plan, &feeds[i].input, &towers[i], &err), &err);
    }
    while (!done[0] || !done[1])
        for (int i = 0; i < 2; i++)
            need(ops->tower_step(towers[i], 10000, &done[i], &err), &err);
    for (int i = 0; i < 2; i++) {
        int32_t rows;
        const float *have = ops->tower_output(towers[i], &rows);
        assert_memory_equal(have, want[i], (size_t)rows * (size_t)m.graph->vocab * sizeof *have);
        ops->tower_free(towers[i]);
        free(want[i]);
        tower_feed_fini(&feeds[i]);
    }
    stage_close(&s);
    mini_close(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact),   cmocka_unit_test(test_fast), cmocka_unit_test(test_attend),
        cmocka_unit_test(test_windows), cmocka_unit_test(test_bits), cmocka_unit_test(test_turns)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
