/* Golden checkpoints through the XLA backend and a real plugin: logits, layer norms and 24 greedy
 * tokens as the references have them, in both forms of a program (a loop over like layers, and
 * unrolled), prompts in one piece, in pieces, and several sequences together. Compiling takes most
 * of the time, so a sample of the folders is run unless MXC_XLA_ALL is set; compiled programs are
 * kept beside the plugin. */
#include "backend/runner.h"
#include "golden/checkpoint.h"
#include "xla/real_plugin.h"

#ifdef MLXCEL_XLA_DEVICE_RUNTIME

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The manifest's tolerance for f32 arithmetic, of logits and of layer norms. */
static const double tolerance = 1e-4;

enum { MAX_TOKENS = 512, N_BLOCKS = 64 };

/* What the sample must not leave out: windows, softcaps, experts, latents, sinks, scalings of RoPE,
 * norms of heads, integers with scales and biases. */
static const char *const sample[] = {"llama",         "gemma2",          "deepseek_v3",
                                     "gpt_oss",       "qwen3_moe",       "llama_gguf_q4_1",
                                     "phi3_longrope", "llama_tied_rope3"};

static bool in_sample(const char *name) {
    for (size_t i = 0; i < sizeof sample / sizeof *sample; i++)
        if (!strcmp(sample[i], name))
            return true;
    return false;
}

static void need(enum mxc_code code, const struct mxc_err *err) {
    if (code)
        print_message("%s\n", err->message);
    assert_int_equal(code, MXC_OK);
}

static void open_runner(struct runner *r, struct mxc_backend *backend,
                        const struct mxc_backend_ops *ops, const struct checkpoint *c) {
    struct mxc_err err;
    struct mxc_plan_options plan = {
        .max_rows = MAX_TOKENS, .max_out = MAX_TOKENS, .max_spans = RUNNER_MAX_SEQS};
    int32_t n_blocks[MXC_N_KV_KINDS];
    *r = (struct runner){
        .ops = ops, .backend = backend, .graph = c->graph, .n_blocks = N_BLOCKS, .stride = 5};
    need(ops->compile(backend, c->graph, c->weights, &plan, &r->plan, &err), &err);
    for (int k = 0; k < MXC_N_KV_KINDS; k++)
        n_blocks[k] = N_BLOCKS;
    need(ops->state_new(r->plan, n_blocks, &r->state, &err), &err);
}

static double worst_logit(const struct golden_case *g, const float *logits, size_t vocab) {
    double difference = 0, largest = 0;
    for (int32_t r = 0; r < g->n_rows; r++)
        for (size_t i = 0; i < vocab; i++) {
            double want = (double)g->logits[(size_t)r * vocab + i];
            double have = (double)logits[(size_t)g->rows[r] * vocab + i];
            if (!(fabs(have - want) <= difference))
                difference = fabs(have - want);
            largest = fmax(largest, fabs(want));
        }
    return difference / largest;
}

/* The prompt in one step, then greedy tokens one by one. */
static double check_case(struct runner *r, const struct golden_case *g) {
    struct sequence s;
    size_t vocab = (size_t)r->graph->vocab;
    float *logits = calloc((size_t)g->n_ids * vocab, sizeof *logits);
    assert_non_null(logits);
    sequence_open(r, &s, g->n_ids + g->n_greedy);
    s.rope_length = g->n_ids;
    struct feed feed = {&s, g->ids, g->n_ids, logits};
    runner_step(r, &feed, 1, NULL, NULL);
    double worst = worst_logit(g, logits, vocab);
    const float *last = logits + (size_t)(g->n_ids - 1) * vocab;
    for (int32_t i = 0; i < g->n_greedy; i++) {
        int32_t best = 0;
        for (int32_t k = 1; k < (int32_t)vocab; k++)
            best = last[k] > last[best] ? k : best;
        assert_int_equal(best, g->greedy[i]);
        feed = (struct feed){&s, &best, 1, logits};
        runner_step(r, &feed, 1, NULL, NULL);
        last = logits;
    }
    sequence_close(&s);
    free(logits);
    return worst;
}

static void check_checkpoint(struct mxc_backend *backend, const struct mxc_backend_ops *ops,
                             const char *name) {
    struct checkpoint c;
    struct runner r;
    double worst = 0;
    checkpoint_open(&c, name);
    open_runner(&r, backend, ops, &c);
    for (int32_t i = 0; i < checkpoint_cases(&c); i++) {
        struct golden_case g;
        checkpoint_case(&c, i, &g);
        worst = fmax(worst, check_case(&r, &g));
        golden_case_fini(&g);
    }
    print_message("%-32s logits %.1e  %s\n", name, worst, r.ops->plan_describe(r.plan));
    r.ops->state_free(r.state);
    r.ops->plan_free(r.plan);
    checkpoint_close(&c);
    assert_true(worst <= tolerance);
}

static void test_all(void **state) {
    (void)state;
    const char *plugin = mxc_real_plugin(), *only = getenv("MXC_XLA_ONLY");
    const struct mxc_backend_ops *ops;
    struct mxc_backend *backend;
    struct mxc_err err;
    char(*names)[CHECKPOINT_MAX_NAME];
    if (!plugin)
        skip();
    need(mxc_backend_find("xla", &ops, &err), &err);
    struct mxc_backend_options options = {
        .xla = {.plugin = plugin, .cache_dir = getenv("MLXCEL_XLA_CACHE")}};
    need(ops->open(&options, &backend, &err), &err);
    int32_t n = checkpoint_list(&names);
    for (int32_t i = 0; i < n; i++)
        if (only ? !strcmp(only, names[i]) : getenv("MXC_XLA_ALL") || in_sample(names[i]))
            check_checkpoint(backend, ops, names[i]);
    free(names);
    ops->close(backend);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void) {
    return 0;
}

#endif
