/* Golden checkpoints in exact precision, at every ISA level: logits, layer norms, 24 greedy tokens
 * with the KV cache, and equal bits when the prompt goes in token by token. */
#include "golden/checkpoint.h"

#include "base/cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The manifest's tolerance for f32 arithmetic, of logits and of layer norms. */
static const double tolerance = 1e-4;
static const double fast_tolerance = 0.05;

enum { MAX_TOKENS = 512, N_BLOCKS = 64 };

/* ---- layer norms, through the tap */

struct norms {
    const struct mxc_graph *graph;
    double *l2; /* [n_layers + 2][MAX_TOKENS] */
    float *logits;
};

static void take_norms(void *user, const struct mxc_graph *graph, int32_t value, const float *data,
                       int32_t rows, int32_t width) {
    struct norms *norms = user;
    if (value == graph->logits)
        memcpy(norms->logits, data, (size_t)rows * (size_t)width * sizeof *data);
    for (int32_t i = 0; i < graph->n_layers + 2; i++) {
        if (graph->layer_values[i] != value)
            continue;
        for (int32_t r = 0; r < rows; r++) {
            double sum = 0;
            for (int32_t k = 0; k < width; k++) {
                double x = (double)data[(size_t)r * (size_t)width + (size_t)k];
                sum += x * x;
            }
            norms->l2[(size_t)i * MAX_TOKENS + (size_t)r] = sqrt(sum);
        }
    }
}

static double worst_norm(const struct golden_case *g, const struct norms *norms) {
    double worst = 0;
    for (int32_t i = 0; i < norms->graph->n_layers + 2; i++)
        for (int32_t c = 0; c < g->n_l2; c++) {
            int32_t row = g->n_l2 == g->n_ids ? c : g->rows[c];
            double want = (double)g->layer_l2[(size_t)i * (size_t)g->n_l2 + (size_t)c];
            double have = norms->l2[(size_t)i * MAX_TOKENS + (size_t)row];
            worst = fmax(worst, fabs(have - want) / want);
        }
    return worst;
}

/* ---- cases */

static void check_case(struct runner *r, const struct checkpoint *c, const struct golden_case *g,
                       double worst[2]) {
    size_t vocab = (size_t)c->graph->vocab, n = (size_t)g->n_ids * vocab;
    float *full = calloc(n, sizeof *full), *other = calloc(n, sizeof *other);
    struct norms norms = {.graph = c->graph,
                          .l2 =
                              calloc((size_t)(c->graph->n_layers + 2) * MAX_TOKENS, sizeof(double)),
                          .logits = calloc(n, sizeof(float))};
    assert_true(full && other && norms.l2 && norms.logits && g->n_ids <= MAX_TOKENS);
    runner_chunks(r, g->ids, g->n_ids, 0, full);
    worst[0] = fmax(worst[0], golden_case_difference(g, full, vocab));

    struct sequence s;
    sequence_open(r, &s, g->n_ids);
    struct feed feed = {&s, g->ids, g->n_ids, other};
    runner_step(r, &feed, 1, take_norms, &norms);
    sequence_close(&s);
    assert_memory_equal(full, other, n * sizeof *full);
    assert_memory_equal(full, norms.logits, n * sizeof *full);
    worst[1] = fmax(worst[1], worst_norm(g, &norms));

    runner_chunks(r, g->ids, g->n_ids, 1, other);
    assert_memory_equal(full, other, n * sizeof *full);
    worst[0] = fmax(worst[0], golden_case_run(r, g));
    free(full);
    free(other);
    free(norms.l2);
    free(norms.logits);
}

static void check_level(const struct checkpoint *c, enum mxc_cpu_level level) {
    struct mxc_err err;
    struct runner r;
    double worst[2] = {0, 0};
    assert_int_equal(mxc_cpu_mask(level, &err), MXC_OK);
    struct runner_options options = {.threads = 2,
                                     .precision = MXC_PRECISION_EXACT,
                                     .max_rows = MAX_TOKENS,
                                     .n_blocks = N_BLOCKS,
                                     .stride = 1};
    runner_open(&r, c->graph, c->weights, &options);
    for (int32_t i = 0; i < checkpoint_cases(c); i++) {
        struct golden_case g;
        checkpoint_case(c, i, &g);
        check_case(&r, c, &g, worst);
        golden_case_fini(&g);
    }
    runner_close(&r);
    print_message("%-32s %-7s logits %.1e  layer norms %.1e\n", c->name, mxc_cpu_level_name(level),
                  worst[0], worst[1]);
    assert_true(worst[0] <= tolerance);
    assert_true(worst[1] <= tolerance);
}

/* Logits in fast, with int8 activations on quantised weights: within 0.05 of the largest, as the
 * goldens' manifest allows for the GGUF folders. */
static void check_fast(const struct checkpoint *c, enum mxc_cpu_level level) {
    struct mxc_err err;
    struct runner r;
    double worst = 0;
    assert_int_equal(mxc_cpu_mask(level, &err), MXC_OK);
    struct runner_options options = {.threads = 2,
                                     .precision = MXC_PRECISION_FAST,
                                     .max_rows = MAX_TOKENS,
                                     .n_blocks = N_BLOCKS,
                                     .stride = 1};
    runner_open(&r, c->graph, c->weights, &options);
    for (int32_t i = 0; i < checkpoint_cases(c); i++) {
        struct golden_case g;
        checkpoint_case(c, i, &g);
        size_t vocab = (size_t)c->graph->vocab;
        float *logits = calloc((size_t)g.n_ids * vocab, sizeof *logits);
        assert_non_null(logits);
        runner_chunks(&r, g.ids, g.n_ids, 0, logits);
        worst = fmax(worst, golden_case_difference(&g, logits, vocab));
        free(logits);
        golden_case_fini(&g);
    }
    runner_close(&r);
    print_message("%-32s %-7s fast: logits %.1e\n", c->name, mxc_cpu_level_name(level), worst);
    assert_true(worst <= fast_tolerance);
}

static void test_fast(void **state) {
    (void)state;
    char(*names)[CHECKPOINT_MAX_NAME];
    int32_t n = checkpoint_list(&names), n_checked = 0;
    for (int32_t i = 0; i < n; i++) {
        if (strncmp(names[i], "llama_gguf_", 11) != 0)
            continue;
        struct checkpoint c;
        checkpoint_open(&c, names[i]);
        for (int level = 0; level <= (int)mxc_cpu_best(); level++)
            if (!CHECKPOINT_SAMPLE || i % ((int)mxc_cpu_best() + 1) == level)
                check_fast(&c, (enum mxc_cpu_level)level);
        checkpoint_close(&c);
        n_checked++;
    }
    assert_int_equal(n_checked, 11);
    free(names);
}

static void test_all(void **state) {
    (void)state;
    char(*names)[CHECKPOINT_MAX_NAME];
    int32_t n = checkpoint_list(&names);
    for (int32_t i = 0; i < n; i++) {
        struct checkpoint c;
        checkpoint_open(&c, names[i]);
        int n_levels = (int)mxc_cpu_best() + 1;
        for (int level = 0; level < n_levels; level++)
            if (!CHECKPOINT_SAMPLE || i % n_levels == level)
                check_level(&c, (enum mxc_cpu_level)level);
        checkpoint_close(&c);
    }
    free(names);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all), cmocka_unit_test(test_fast)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
