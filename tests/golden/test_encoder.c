/* Encoders (folders with modules.json) in exact precision, at every ISA level: hidden rows and
 * layer norms of every text that stands alone, and equal bits when several texts share a step. */
#include "golden/checkpoint.h"

#include "base/cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The manifest's tolerance for f32 arithmetic. */
static const double tolerance = 1e-4;

enum { MAX_TOKENS = 512, N_BLOCKS = 64 };

/* ---- a step of whole texts */

struct norms {
    double l2[8][MAX_TOKENS];
};

static void take_norms(void *user, const struct mxc_graph *graph, int32_t value, const float *data,
                       int32_t rows, int32_t width) {
    struct norms *norms = user;
    for (int32_t i = 0; i < graph->n_layers + 2; i++)
        for (int32_t r = 0; r < rows && graph->layer_values[i] == value; r++) {
            double sum = 0;
            for (int32_t k = 0; k < width; k++) {
                double x = (double)data[(size_t)r * (size_t)width + (size_t)k];
                sum += x * x;
            }
            norms->l2[i][r] = sqrt(sum);
        }
}

static void run(const struct runner *r, const struct golden_text *const *texts, int32_t n,
                float *hidden, struct norms *norms) {
    golden_texts_run(r, texts, n, hidden, norms ? take_norms : NULL, norms);
}

/* ---- checks */

static void check_text(const struct runner *r, const struct checkpoint *c,
                       const struct golden_text *t, double worst[2]) {
    struct norms *norms = calloc(1, sizeof *norms);
    size_t n = (size_t)t->n * (size_t)c->graph->hidden;
    float *have = calloc(n, sizeof *have), *tapped = calloc(n, sizeof *tapped);
    assert_true(norms && have && tapped && c->graph->n_layers + 2 <= 8);
    run(r, &t, 1, have, NULL);
    run(r, &t, 1, tapped, norms);
    assert_memory_equal(have, tapped, n * sizeof *have);
    worst[0] = fmax(worst[0], relative_difference(have, t->hidden, n));
    for (int32_t i = 0; i < c->graph->n_layers + 2; i++) /* behind the last layer comes nothing */
        for (int32_t row = 0; row < t->n; row++) {
            int32_t from = i <= c->graph->n_layers ? i : c->graph->n_layers;
            double want = (double)t->layer_l2[(size_t)from * (size_t)t->n + (size_t)row];
            worst[1] = fmax(worst[1], fabs(norms->l2[i][row] - want) / want);
        }
    free(norms);
    free(have);
    free(tapped);
}

/* All texts in one step, first to last and last to first: each has the bits that it has alone. */
static void check_batch(const struct runner *r, const struct checkpoint *c,
                        const struct golden_text *texts, int32_t n) {
    size_t hidden = (size_t)c->graph->hidden;
    float *alone = calloc(MAX_TOKENS * hidden, sizeof *alone);
    float *together = calloc(MAX_TOKENS * hidden, sizeof *together);
    assert_true(alone && together);
    for (int turn = 0; turn < 2; turn++) {
        const struct golden_text *order[GOLDEN_MAX_TEXTS];
        for (int32_t i = 0; i < n; i++)
            order[i] = &texts[turn ? n - 1 - i : i];
        run(r, order, n, together, NULL);
        const float *at = together;
        for (int32_t i = 0; i < n; i++) {
            run(r, &order[i], 1, alone, NULL);
            assert_memory_equal(alone, at, (size_t)order[i]->n * hidden * sizeof *alone);
            at += (size_t)order[i]->n * hidden;
        }
    }
    free(alone);
    free(together);
}

static void check_folder(const char *name) {
    struct checkpoint c;
    struct golden_text texts[GOLDEN_MAX_TEXTS];
    checkpoint_open(&c, name);
    assert_true(c.graph->hidden_out && c.graph->both_ways);
    int32_t n = checkpoint_texts(&c, texts);
    for (int level = 0; level <= (int)mxc_cpu_best(); level++) {
        struct runner r;
        const struct runner_options options = {.threads = 2,
                                               .precision = MXC_PRECISION_EXACT,
                                               .max_rows = MAX_TOKENS,
                                               .n_blocks = N_BLOCKS};
        struct mxc_err err;
        double worst[2] = {0, 0};
        assert_int_equal(mxc_cpu_mask((enum mxc_cpu_level)level, &err), MXC_OK);
        runner_open(&r, c.graph, c.weights, &options);
        for (int32_t i = 0; i < n; i++)
            check_text(&r, &c, &texts[i], worst);
        check_batch(&r, &c, texts, n);
        runner_close(&r);
        print_message("%-10s %-7s hidden rows %.1e  layer norms %.1e\n", name,
                      mxc_cpu_level_name((enum mxc_cpu_level)level), worst[0], worst[1]);
        assert_true(worst[0] <= tolerance);
        assert_true(worst[1] <= tolerance);
    }
    checkpoint_close(&c);
}

static void plain_names(void **state) {
    (void)state;
    check_folder("bert");
}

static void prefixed_names(void **state) {
    (void)state;
    check_folder("bert_cls");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(plain_names),
                                       cmocka_unit_test(prefixed_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
