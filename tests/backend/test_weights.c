/* Weights of a plan: memory as estimated, progress, failed allocations, and checkpoints whose
 * tensors do not hold what the graph wants. */
#include "backend/mini.h"
#include "backend/runner.h"

#include "base/cpu.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

static const struct mxc_plan_options options = {.max_rows = 48, .max_out = 4, .max_spans = 3};

static bool count_progress(void *user, double fraction) {
    double *last = user;
    assert_true(fraction >= *last && fraction <= 1);
    *last = fraction;
    return true;
}

/* An estimate is what a plan then has, for stacks, views, latents and experts too. */
static void test_memory(void **state) {
    (void)state;
    static const enum mxc_storage storages[] = {MXC_ST_F32, MXC_ST_BF16, MXC_ST_MLX_AFFINE};
    const struct mxc_backend_ops *ops = &mxc_backend_cpu;
    for (size_t i = 0; i < 3 * (size_t)MINI_N_MODELS; i++) {
        struct mini m;
        struct mxc_backend *backend;
        struct mxc_plan *plan;
        struct mxc_plan_memory guess, real;
        struct mxc_plan_options o = options;
        double last = 0;
        o.progress = count_progress;
        o.progress_user = &last;
        mini_model(&m, (enum mini_model)(i / 3), storages[i % 3]);
        assert_int_equal(ops->open(&(struct mxc_backend_options){.n_threads = 2}, &backend, NULL),
                         MXC_OK);
        assert_int_equal(ops->estimate(backend, m.graph, m.weights, &o, &guess, NULL), MXC_OK);
        assert_int_equal(ops->compile(backend, m.graph, m.weights, &o, &plan, NULL), MXC_OK);
        assert_true(last == 1);
        ops->plan_memory(plan, &real);
        assert_memory_equal(&guess, &real, sizeof real);
        ops->plan_free(plan);
        ops->close(backend);
        mini_close(&m);
    }
}

static void test_sizes(void **state) {
    (void)state;
    const struct mxc_backend_ops *ops = &mxc_backend_cpu;
    struct mini m;
    struct mxc_backend *backend;
    struct mxc_plan *plan;
    struct mxc_plan_memory memory;
    mini_model(&m, MINI_BEST_GROUP, MXC_ST_BF16);
    assert_int_equal(ops->open(&(struct mxc_backend_options){.n_threads = 1}, &backend, NULL),
                     MXC_OK);
    assert_int_equal(ops->compile(backend, m.graph, m.weights, &options, &plan, NULL), MXC_OK);
    ops->plan_memory(plan, &memory);
    /* 32 tokens of 64 + 16 numbers, and their first 64 again as values, bf16 */
    assert_int_equal(memory.kv_block_bytes[MXC_KV_LATENT], 32 * (80 + 64) * 2);
    assert_int_equal(memory.kv_block_bytes[MXC_KV_FULL], 0);
    assert_true(memory.weights_bytes > 2 * 6 * 3 * 64 * 64);
    /* three stacks of experts, two of heads, q, kv_a, o, head; the router stays exact */
    assert_non_null(strstr(ops->plan_describe(plan), "BF16 x 9"));
    assert_non_null(strstr(ops->plan_describe(plan), "F32 x 1"));
    ops->plan_free(plan);
    ops->close(backend);
    mini_close(&m);
}

static enum mxc_code whole_life(const struct mini *m) {
    const struct mxc_backend_ops *ops = &mxc_backend_cpu;
    struct mxc_backend *backend = NULL;
    struct mxc_plan *plan = NULL;
    struct mxc_state *kv = NULL;
    struct mxc_err err;
    int32_t n_blocks[MXC_N_KV_KINDS] = {40, 40, 40, 40}, blocks[40], zero = 0, position = 5;
    static float logits[MINI_VOCAB];
    for (int32_t i = 0; i < 40; i++)
        blocks[i] = i;
    struct mxc_span span = {.n_rows = 1, .context = 1100, .adapter = -1};
    for (int k = 0; k < MXC_N_KV_KINDS; k++) {
        span.blocks[k] = blocks;
        span.n_blocks[k] = 40;
    }
    struct mxc_step step = {.n_rows = 1,
                            .tokens = &zero,
                            .positions = &position,
                            .n_axes = 1,
                            .n_spans = 1,
                            .spans = &span,
                            .n_out = 1,
                            .out_row = &zero};
    struct mxc_out out = {.logits = logits};
    enum mxc_code code = ops->open(&(struct mxc_backend_options){.n_threads = 3}, &backend, &err);
    if (!code)
        code = ops->compile(backend, m->graph, m->weights, &options, &plan, &err);
    if (!code)
        code = ops->state_new(plan, n_blocks, &kv, &err);
    if (!code)
        code = ops->run(plan, kv, &step, &out, &err);
    ops->state_free(kv);
    ops->plan_free(plan);
    ops->close(backend);
    return code;
}

/* Every allocation of open, compile, state_new and the first step fails once. */
static void test_allocations(void **state) {
    (void)state;
    for (enum mini_model model = 0; model < MINI_N_MODELS; model++) {
        struct mini m;
        mini_model(&m, model, MXC_ST_MLX_AFFINE);
        mxc_mem_fail_at(0);
        assert_int_equal(whole_life(&m), MXC_OK);
        uint64_t n = mxc_mem_calls();
        assert_true(n > 15);
        for (uint64_t i = 1; i <= n; i++) {
            mxc_mem_fail_at(i);
            enum mxc_code code = whole_life(&m);
            mxc_mem_fail_at(0);
            assert_int_equal(code, MXC_E_NOMEM);
        }
        mini_close(&m);
    }
}

/* ---- checkpoints that do not fit */

static void expect(const struct mxc_graph *g, const struct mxc_weights *weights, enum mxc_code want,
                   const char *text) {
    const struct mxc_backend_ops *ops = &mxc_backend_cpu;
    struct mxc_backend *backend;
    struct mxc_plan *plan = NULL;
    struct mxc_plan_memory memory;
    struct mxc_err err = {0};
    assert_int_equal(ops->open(&(struct mxc_backend_options){.n_threads = 1}, &backend, NULL),
                     MXC_OK);
    enum mxc_code code = ops->compile(backend, g, weights, &options, &plan, &err);
    if (code != want || !strstr(err.message, text))
        print_message("expected '%s', got '%s'\n", text, err.message);
    assert_int_equal(code, want);
    assert_null(plan);
    assert_non_null(strstr(err.message, text));
    assert_int_equal(ops->estimate(backend, g, weights, &options, &memory, NULL), want);
    ops->close(backend);
}

/* A model of nothing but a head of `experts` stacked matrices and a vector. */
static struct mxc_graph *stack_graph(int64_t experts, const struct mxc_weight_view *view,
                                     const struct mxc_weight_view *vector_view) {
    struct mxc_graph *g;
    struct mxc_err err;
    assert_int_equal(mxc_graph_new("mini", &g, NULL), MXC_OK);
    int32_t x = mxc_graph_embed(g, mxc_graph_table(g, 40, 64, "embed"), 1);
    int32_t stack = mxc_graph_stack(g, experts, 8, 32, "e.*.weight");
    int32_t bias = mxc_graph_vector(g, 16, "bias");
    if (view) {
        struct mxc_weight w = {.role = MXC_W_STACK, .n_dims = 3, .shape = {experts, 8, 32}};
        stack = mxc_graph_view(g, &w, view, "all");
    }
    if (vector_view) {
        struct mxc_weight w = {.role = MXC_W_VECTOR, .n_dims = 1, .shape = {16}};
        bias = mxc_graph_view(g, &w, vector_view, "all_bias");
    }
    (void)mxc_graph_matrix(g, 16, 32, "all");
    (void)mxc_graph_vector(g, 20, "all_bias");
    x = mxc_graph_heads_linear(g, mxc_graph_select_out(g, x), stack, (int32_t)experts);
    int64_t width = 8 * experts + 64 - 32 * experts; /* what a head does not multiply passes */
    struct mxc_linear_part part = {mxc_graph_matrix(g, 16, width, "head"), bias};
    enum mxc_code code = mxc_graph_finish(g, mxc_graph_linear(g, x, 1, &part, 1, MXC_NONE), &err);
    if (code)
        print_message("%s\n", err.message);
    assert_int_equal(code, MXC_OK);
    return g;
}

static void test_misfits(void **state) {
    (void)state;
    struct mxc_weight_view good = {.n_dims = 2, .shape = {16, 32}, .stride = 8, .row_step = 1};
    struct mxc_weight_view far = good, wide = good, columns = good;
    struct mxc_weight_view numbers = {.n_dims = 1, .shape = {0}, .row0 = 3, .row_step = 1};
    struct mxc_weight_view too_many = numbers;
    struct mxc_weights *weights;
    struct mxc_graph *whole = stack_graph(2, NULL, NULL), *g;
    mini_write(whole, MXC_ST_BF16, NULL, &weights);
    far.shape[0] = 0;
    far.row0 = 1;
    wide.stride = INT64_MAX / 2;
    columns.transposed = true;
    columns.col_step = 5;
    too_many.row0 = 5;
    struct {
        const struct mxc_weight_view *view, *vector;
        const char *text;
    } cases[] = {
        {&far, NULL, "model.safetensors: tensor all: 16 rows of 32 do not hold what is cut"},
        {&wide, NULL, "tensor all: 16 rows of 32 do not hold"},
        {&columns, NULL, "tensor all: 16 rows of 32 do not hold"},
        {&good, &too_many, "model.safetensors: tensor all_bias: 1 rows of 20 do not hold"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        g = stack_graph(2, cases[i].view, cases[i].vector);
        expect(g, weights, MXC_E_FORMAT, cases[i].text);
        mxc_graph_free(g);
    }
    g = stack_graph(2, &good, &numbers); /* and what fits is taken */
    struct mxc_plan_memory memory;
    struct mxc_backend *backend;
    const struct mxc_backend_ops *ops = &mxc_backend_cpu;
    assert_int_equal(ops->open(&(struct mxc_backend_options){.n_threads = 1}, &backend, NULL),
                     MXC_OK);
    assert_int_equal(ops->estimate(backend, g, weights, &options, &memory, NULL), MXC_OK);
    ops->close(backend);
    mxc_graph_free(g);
    mxc_weights_close(weights);

    struct mxc_graph *half = stack_graph(1, NULL, NULL);
    mini_write(half, MXC_ST_BF16, NULL, &weights); /* slice 1 is missing */
    expect(whole, weights, MXC_E_NOT_FOUND, "e.1.weight");
    mxc_graph_free(half);
    mxc_weights_close(weights);

    mini_write(whole, MXC_ST_BF16, "e.1.weight", &weights);
    expect(whole, weights, MXC_E_UNSUPPORTED,
           "tensors e.0.weight and e.1.weight are stored differently");
    mxc_weights_close(weights);
    mxc_graph_free(whole);
}

/* A position behind the end of the table is an error of the step. */
static void test_positions(void **state) {
    (void)state;
    struct mini m;
    struct runner r;
    mini_model(&m, MINI_WHOLE_NORM, MXC_ST_F32);
    runner_open(&r, m.graph, m.weights,
                &(struct runner_options){.threads = 1, .max_rows = 4, .n_blocks = 4});
    int32_t tokens[2] = {0, 0}, positions[2] = {0, MINI_POSITIONS}, block = 0;
    struct mxc_span span = {.n_rows = 2, .adapter = -1};
    for (int k = 0; k < MXC_N_KV_KINDS; k++) {
        span.blocks[k] = &block;
        span.n_blocks[k] = 1;
    }
    struct mxc_step step = {.n_rows = 2,
                            .tokens = tokens,
                            .positions = positions,
                            .n_axes = 1,
                            .n_spans = 1,
                            .spans = &span};
    struct mxc_out out = {0};
    struct mxc_err err;
    assert_int_equal(r.ops->run(r.plan, r.state, &step, &out, &err), MXC_E_ARG);
    assert_non_null(strstr(err.message, "row 1: position 60 is not in the model's table of 62"));
    positions[1] = -3;
    assert_int_equal(r.ops->run(r.plan, r.state, &step, &out, &err), MXC_E_ARG);
    positions[1] = MINI_POSITIONS - 1;
    assert_int_equal(r.ops->run(r.plan, r.state, &step, &out, &err), MXC_OK);
    runner_close(&r);
    mini_close(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_memory), cmocka_unit_test(test_sizes),
                                       cmocka_unit_test(test_allocations),
                                       cmocka_unit_test(test_misfits),
                                       cmocka_unit_test(test_positions)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
