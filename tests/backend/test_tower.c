/* Towers on the CPU backend: every op against the interpreter of towers.h, at every ISA level, in
 * exact and in fast; attention for heads of many sizes; equal bits whether a picture comes alone or
 * packed with others, whatever the budget of a step and the number of threads; taps. */
#include "backend/towers.h"

#include "backend/runner.h"
#include "base/cpu.h"

#include <stdlib.h>
#include <string.h>

static const struct mxc_backend_ops *const ops = &mxc_backend_cpu;

static void need(enum mxc_code code, const struct mxc_err *err) {
    if (code)
        print_message("%s\n", err->message);
    assert_int_equal(code, MXC_OK);
}

static void stage_open(struct tower_stage *s, const struct mini *m, int level, int threads,
                       enum mxc_precision precision) {
    struct mxc_err err;
    s->ops = ops;
    need(mxc_cpu_mask((enum mxc_cpu_level)level, &err), &err);
    need(ops->open(&(struct mxc_backend_options){.n_threads = threads}, &s->backend, &err), &err);
    struct mxc_plan_options options = {.precision = precision};
    need(ops->compile(s->backend, m->graph, m->weights, &options, &s->plan, &err), &err);
}

static void stage_close(struct tower_stage *s) {
    ops->plan_free(s->plan);
    ops->close(s->backend);
}

/* ---- against the interpreter */

static void check_numbers(const struct mini *m, const struct mxc_tower_input *input,
                          enum mxc_precision precision, double tolerance) {
    double **want = tower_reference(m, input);
    size_t n = (size_t)tower_rows(m, input, m->graph->logits) * (size_t)m->graph->vocab;
    for (int level = 0; level <= (int)mxc_cpu_best(); level++) {
        struct tower_stage s;
        double named;
        stage_open(&s, m, level, 2, precision);
        float *have = tower_run(&s, m, input, UINT64_MAX, NULL);
        float *again = tower_run_watched(&s, m, input, want, &named);
        double worst = tower_difference(have, want[m->graph->logits], n);
        if (!(worst <= tolerance && named <= tolerance))
            print_message("level %d: %g, named values %g\n", level, worst, named);
        assert_true(worst <= tolerance && named <= tolerance);
        assert_memory_equal(have, again, n * sizeof *have); /* with a tap, nothing is fused */
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

static void check_attend(int32_t dim, bool interleaved, int32_t rows, bool odd) {
    struct mini m;
    struct tower_feed feed;
    uint32_t seed = 5;
    tower_attend(&m, 3, dim, interleaved);
    tower_feed(&feed, &m, 1, &rows, &seed);
    if (odd)
        tower_odd_ranges(&feed);
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

static void check_packed(const struct tower_stage *s, const struct mini *m,
                         float *const want[N_PICTURES], uint64_t budget) {
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
        int steps;
        float *have = tower_run(s, m, &feed.input, budget, &steps), *at = have;
        assert_true(budget == UINT64_MAX || steps > 1);
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
            int steps;
            struct tower_stage s;
            stage_open(&s, &m, level, threads, precision);
            for (int i = 0; i < N_PICTURES; i++) {
                struct tower_feed feed;
                tower_feed(&feed, &m, 1, &sizes[i], &picture_seeds[i]);
                float *alone =
                    tower_run(&s, &m, &feed.input, threads == 2 ? 1 : UINT64_MAX, &steps);
                assert_true(threads != 2 || steps > 1);
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

static void test_turns(void **state) {
    (void)state;
    struct mini m;
    struct tower_stage s;
    tower_model(&m, TOWER_MIXED, MXC_ST_F32);
    stage_open(&s, &m, (int)mxc_cpu_best(), 2, MXC_PRECISION_EXACT);
    tower_check_turns(&s, &m, 10000);
    stage_close(&s);
    mini_close(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact),   cmocka_unit_test(test_fast), cmocka_unit_test(test_attend),
        cmocka_unit_test(test_windows), cmocka_unit_test(test_bits), cmocka_unit_test(test_turns)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
