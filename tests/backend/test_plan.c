/* Plans and states: estimate, memory, cancelling, failed allocations, wrong steps, block copies and
 * exports. */
#include "backend/runner.h"
#include "backend/tiny.h"

#include "base/cpu.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

static const struct tiny_shape shape = {.n_layers = 2,
                                        .hidden = 64,
                                        .ffn = 96,
                                        .n_heads = 4,
                                        .n_kv_heads = 2,
                                        .head_dim = 16,
                                        .vocab = 70,
                                        .window = 40,
                                        .tied = true,
                                        .storage = MXC_ST_BF16};

static const struct mxc_plan_options options = {.max_rows = 48, .max_out = 4, .max_spans = 3};

static void test_find(void **state) {
    (void)state;
    const struct mxc_backend_ops *ops = NULL;
    struct mxc_err err;
    assert_int_equal(mxc_backend_find(NULL, &ops, &err), MXC_OK);
    assert_string_equal(ops->name, "cpu");
    assert_int_equal(mxc_backend_find("", &ops, &err), MXC_OK);
    assert_int_equal(mxc_backend_find("cpu", &ops, &err), MXC_OK);
    ops = NULL;
    assert_int_equal(mxc_backend_find("abacus", &ops, &err), MXC_E_UNSUPPORTED);
    assert_null(ops);
#ifdef MLXCEL_XLA
    assert_string_equal(err.message, "backend 'abacus' is not in this build (it has: cpu xla)");
#else
    assert_string_equal(err.message, "backend 'abacus' is not in this build (it has: cpu)");
#endif
}

/* ---- compile */

static bool count_progress(void *user, double fraction) {
    double *last = user;
    assert_true(fraction >= *last && fraction <= 1);
    *last = fraction;
    return true;
}

static bool stop(void *user, double fraction) {
    (void)user;
    return fraction < 0.5;
}

static void test_memory(void **state) {
    (void)state;
    struct tiny tiny;
    tiny_open(&tiny, &shape);
    struct mxc_backend *backend;
    struct mxc_plan *plan;
    struct mxc_plan_memory guess, real;
    struct mxc_plan_options o = options;
    const struct mxc_backend_ops *ops = &mxc_backend_cpu;
    double last = 0;
    o.progress = count_progress;
    o.progress_user = &last;
    assert_int_equal(ops->open(&(struct mxc_backend_options){.n_threads = 2}, &backend, NULL),
                     MXC_OK);
    assert_int_equal(ops->estimate(backend, tiny.graph, tiny.weights, &o, &guess, NULL), MXC_OK);
    assert_true(last == 0);
    assert_int_equal(ops->compile(backend, tiny.graph, tiny.weights, &o, &plan, NULL), MXC_OK);
    assert_true(last == 1);
    ops->plan_memory(plan, &real);
    assert_memory_equal(&guess, &real, sizeof real);
    /* one layer of each kind: 32 tokens, 2 heads, 16 + 16 numbers, bf16 */
    assert_int_equal(real.kv_block_bytes[MXC_KV_FULL], 32 * 2 * 32 * 2);
    assert_int_equal(real.kv_block_bytes[MXC_KV_WINDOW], 32 * 2 * 32 * 2);
    assert_int_equal(real.kv_block_bytes[MXC_KV_CROSS], 0);
    assert_true(real.weights_bytes > 2 * (70 * 64 + 2 * (64 * 64 * 3 + 96 * 64 * 3)));
    assert_non_null(strstr(ops->plan_describe(plan), "fast: BF16 x 15; kv bf16"));
    ops->plan_free(plan);

    struct mxc_err err;
    o.progress = stop;
    plan = NULL;
    assert_int_equal(ops->compile(backend, tiny.graph, tiny.weights, &o, &plan, &err),
                     MXC_E_CANCELLED);
    assert_null(plan);
    ops->close(backend);
    tiny_close(&tiny);
}

static void test_precision(void **state) {
    (void)state;
    static const struct {
        enum mxc_storage storage;
        enum mxc_precision precision;
        const char *text;
    } cases[] = {{MXC_ST_F32, MXC_PRECISION_AUTO, "exact: F32 x 15; kv f32"},
                 {MXC_ST_F16, MXC_PRECISION_AUTO, "exact: F32 x 15; kv f32"},
                 {MXC_ST_F16, MXC_PRECISION_FAST, "fast: F16 x 15; kv bf16"},
                 {MXC_ST_BF16, MXC_PRECISION_EXACT, "exact: F32 x 15; kv f32"},
                 {MXC_ST_F32, MXC_PRECISION_FAST, "fast: F32 x 15; kv bf16"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tiny tiny;
        struct tiny_shape s = shape;
        struct runner r;
        s.storage = cases[i].storage;
        tiny_open(&tiny, &s);
        runner_open(
            &r, tiny.graph, tiny.weights,
            &(struct runner_options){
                .threads = 1, .precision = cases[i].precision, .max_rows = 8, .n_blocks = 1});
        if (!strstr(r.ops->plan_describe(r.plan), cases[i].text))
            print_message("%s\n", r.ops->plan_describe(r.plan));
        assert_non_null(strstr(r.ops->plan_describe(r.plan), cases[i].text));
        runner_close(&r);
        tiny_close(&tiny);
    }
}

static void test_options(void **state) {
    (void)state;
    static const struct mxc_plan_options bad[] = {
        {.max_rows = 0, .max_out = 0, .max_spans = 1},
        {.max_rows = 8, .max_out = 9, .max_spans = 1},
        {.max_rows = 8, .max_out = -1, .max_spans = 1},
        {.max_rows = 8, .max_out = 1, .max_spans = 0},
        {.max_rows = 8, .max_out = 1, .max_spans = 9},
        {.precision = (enum mxc_precision)7, .max_rows = 8, .max_out = 1, .max_spans = 1}};
    struct tiny tiny;
    struct mxc_backend *backend;
    const struct mxc_backend_ops *ops = &mxc_backend_cpu;
    tiny_open(&tiny, &shape);
    assert_int_equal(ops->open(&(struct mxc_backend_options){.n_threads = -3}, &backend, NULL),
                     MXC_E_ARG);
    assert_int_equal(ops->open(&(struct mxc_backend_options){.n_threads = 1}, &backend, NULL),
                     MXC_OK);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct mxc_plan *plan = NULL;
        struct mxc_err err;
        assert_int_equal(ops->compile(backend, tiny.graph, tiny.weights, &bad[i], &plan, &err),
                         MXC_E_ARG);
        assert_null(plan);
    }
    ops->close(backend);
    tiny_close(&tiny);
}

/* Every allocation of open, compile, state_new and the first steps fails once. */
static enum mxc_code whole_life(const struct tiny *tiny, bool tapped);

static void test_allocations(void **state) {
    (void)state;
    struct tiny tiny;
    tiny_open(&tiny, &shape);
    for (int tapped = 0; tapped < 2; tapped++) {
        mxc_mem_fail_at(0);
        assert_int_equal(whole_life(&tiny, tapped), MXC_OK);
        uint64_t n = mxc_mem_calls();
        assert_true(n > 15);
        for (uint64_t i = 1; i <= n; i++) {
            mxc_mem_fail_at(i);
            enum mxc_code code = whole_life(&tiny, tapped);
            mxc_mem_fail_at(0);
            assert_int_equal(code, MXC_E_NOMEM);
        }
    }
    tiny_close(&tiny);
}

static void no_tap(void *user, const struct mxc_graph *graph, int32_t value, const float *data,
                   int32_t rows, int32_t width) {
    (void)user, (void)graph, (void)value, (void)data, (void)rows, (void)width;
}

static enum mxc_code whole_life(const struct tiny *tiny, bool tapped) {
    const struct mxc_backend_ops *ops = &mxc_backend_cpu;
    struct mxc_backend *backend = NULL;
    struct mxc_plan *plan = NULL;
    struct mxc_state *kv = NULL;
    struct mxc_err err;
    int32_t n_blocks[MXC_N_KV_KINDS] = {40, 40, 40, 40}, blocks[40], zero = 0, position = 1100;
    static float logits[70];
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
    struct mxc_out out = {.logits = logits, .tap = tapped ? no_tap : NULL};
    enum mxc_code code = ops->open(&(struct mxc_backend_options){.n_threads = 3}, &backend, &err);
    if (!code)
        code = ops->compile(backend, tiny->graph, tiny->weights, &options, &plan, &err);
    if (!code)
        code = ops->state_new(plan, n_blocks, &kv, &err);
    if (!code)
        code = ops->run(plan, kv, &step, &out, &err);
    ops->state_free(kv);
    ops->plan_free(plan);
    ops->close(backend);
    return code;
}

/* ---- wrong steps */

struct wrong {
    struct tiny tiny;
    struct runner runner;
    int32_t tokens[48], positions[48], out_row[4], blocks[4], ends[48];
    struct mxc_span spans[3];
    struct mxc_splice splices[2];
    struct mxc_step step;
    float logits[4 * 70];
};

static void wrong_reset(struct wrong *w) {
    memset(w->tokens, 0, sizeof w->tokens);
    for (int32_t i = 0; i < 48; i++) {
        w->positions[i] = i;
        w->ends[i] = i + 1;
    }
    for (int32_t i = 0; i < 4; i++) {
        w->out_row[i] = i;
        w->blocks[i] = i;
    }
    for (int32_t i = 0; i < 3; i++) {
        w->spans[i] = (struct mxc_span){.row0 = 4 * i, .n_rows = 4, .adapter = -1};
        for (int k = 0; k < MXC_N_KV_KINDS; k++) {
            w->spans[i].blocks[k] = w->blocks;
            w->spans[i].n_blocks[k] = 4;
        }
    }
    w->step = (struct mxc_step){.n_rows = 12,
                                .tokens = w->tokens,
                                .positions = w->positions,
                                .n_axes = 1,
                                .n_spans = 3,
                                .spans = w->spans,
                                .n_out = 2,
                                .out_row = w->out_row};
}

static void expect(struct wrong *w, enum mxc_code want, const char *text) {
    struct mxc_err err = {0};
    struct mxc_out out = {.logits = w->logits};
    const struct runner *r = &w->runner;
    enum mxc_code code = r->ops->run(r->plan, r->state, &w->step, &out, &err);
    if (code != want || (text && !strstr(err.message, text)))
        print_message("expected '%s', got '%s'\n", text ? text : "", err.message);
    assert_int_equal(code, want);
    assert_true(!text || strstr(err.message, text));
    wrong_reset(w);
}

static void wrong_rows(struct wrong *w) {
    expect(w, MXC_OK, NULL);
    w->step.n_rows = 0;
    expect(w, MXC_E_ARG, "0 rows");
    w->step.n_rows = 49;
    expect(w, MXC_E_ARG, "49 rows");
    w->step.tokens = NULL;
    expect(w, MXC_E_ARG, "missing");
    w->step.n_axes = 2;
    expect(w, MXC_E_ARG, "2 position axes");
    w->tokens[5] = 70;
    expect(w, MXC_E_ARG, "row 5: token 70");
    w->tokens[5] = -1;
    expect(w, MXC_E_ARG, "row 5: token -1");
    w->step.n_out = 5;
    expect(w, MXC_E_ARG, "5 output rows");
    w->out_row[1] = 12;
    expect(w, MXC_E_ARG, "output 1: row 12");
    w->out_row[1] = 0;
    expect(w, MXC_E_ARG, "output 1: row 0");
    w->splices[0] = (struct mxc_splice){12, w->logits};
    w->step.splices = w->splices;
    w->step.n_splices = 1;
    expect(w, MXC_E_ARG, "splice 0: row 12");
    w->step.row_end = w->ends;
    w->spans[1].context = w->spans[2].context = 30; /* ends are too small now */
    expect(w, MXC_E_ARG, "row 4: its end 5");
}

static void wrong_spans(struct wrong *w) {
    w->step.n_spans = 4;
    expect(w, MXC_E_ARG, "4 spans");
    w->step.n_spans = 2;
    expect(w, MXC_E_ARG, "8 rows of 12");
    w->spans[1].row0 = 5;
    expect(w, MXC_E_ARG, "span 1: rows 5 + 4");
    w->spans[2].n_rows = 5;
    expect(w, MXC_E_ARG, "span 2: rows 8 + 5");
    w->spans[2].n_rows = 0;
    expect(w, MXC_E_ARG, "span 2: rows 8 + 0");
    w->spans[0].context = -1;
    expect(w, MXC_E_ARG, "context -1");
    w->spans[0].context = INT32_MAX - 4;
    expect(w, MXC_E_ARG, "context");
    w->spans[1].adapter = 0;
    expect(w, MXC_E_UNSUPPORTED, "adapter 0");
    w->spans[0].context = 125;
    expect(w, MXC_E_ARG, "4 blocks of kind 0 do not hold 125 + 4");
    w->blocks[0] = 4;
    expect(w, MXC_E_ARG, "block 0 of kind 0 is 4");
    w->blocks[0] = -1;
    expect(w, MXC_E_ARG, "block 0 of kind 0 is -1");
    w->blocks[1] = INT32_MIN; /* not needed: no row reaches it */
    expect(w, MXC_OK, NULL);
    struct mxc_state *mine = w->runner.state;
    w->runner.state = NULL;
    expect(w, MXC_E_ARG, "KV state");
    w->runner.state = mine;
}

static void test_wrong_steps(void **state) {
    (void)state;
    struct wrong w;
    tiny_open(&w.tiny, &shape);
    runner_open(&w.runner, w.tiny.graph, w.tiny.weights,
                &(struct runner_options){.threads = 2, .max_rows = 4, .n_blocks = 4});
    w.runner.ops->state_free(w.runner.state);
    w.runner.ops->plan_free(w.runner.plan);
    struct mxc_err err;
    int32_t n_blocks[MXC_N_KV_KINDS] = {4, 4, 0, 0};
    assert_int_equal(w.runner.ops->compile(w.runner.backend, w.tiny.graph, w.tiny.weights, &options,
                                           &w.runner.plan, &err),
                     MXC_OK);
    assert_int_equal(w.runner.ops->state_new(w.runner.plan, n_blocks, &w.runner.state, &err),
                     MXC_OK);
    wrong_reset(&w);
    wrong_rows(&w);
    wrong_spans(&w);
    runner_close(&w.runner);
    tiny_close(&w.tiny);
}

/* ---- states */

static void test_state(void **state) {
    (void)state;
    enum { N = 33 };
    struct tiny tiny;
    struct runner r;
    tiny_open(&tiny, &shape);
    runner_open(&r, tiny.graph, tiny.weights,
                &(struct runner_options){.threads = 2, .max_rows = 48, .n_blocks = 8});
    int32_t tokens[N];
    float want[70], have[70];
    tiny_tokens(&tiny, 4, tokens, N);
    struct sequence s;
    sequence_open(&r, &s, N);
    runner_step(&r, &(struct feed){&s, tokens, N - 1, NULL}, 1, NULL, NULL);

    /* the block goes to 5 by copy and to 6 through memory; from each the next token is the same */
    struct mxc_plan_memory memory;
    struct mxc_err err;
    r.ops->plan_memory(r.plan, &memory);
    for (int kind = 0; kind < 2; kind++) {
        size_t n = memory.kv_block_bytes[kind];
        void *bytes = malloc(n);
        assert_non_null(bytes);
        r.ops->state_copy(r.state, (enum mxc_kv_kind)kind, s.blocks[0], 5);
        assert_int_equal(
            r.ops->state_export(r.state, (enum mxc_kv_kind)kind, s.blocks[0], bytes, &err), MXC_OK);
        assert_int_equal(r.ops->state_import(r.state, (enum mxc_kv_kind)kind, 6, bytes, &err),
                         MXC_OK);
        assert_int_equal(r.ops->state_export(r.state, (enum mxc_kv_kind)kind, 8, bytes, &err),
                         MXC_E_ARG);
        assert_int_equal(r.ops->state_import(r.state, (enum mxc_kv_kind)kind, -1, bytes, &err),
                         MXC_E_ARG);
        free(bytes);
    }
    assert_int_equal(r.ops->state_export(r.state, MXC_KV_CROSS, 0, have, &err), MXC_E_ARG);
    assert_int_equal(r.ops->state_export(r.state, MXC_N_KV_KINDS, 0, have, &err), MXC_E_ARG);
    r.ops->state_copy(r.state, MXC_KV_FULL, 0, 99); /* out of range: nothing happens */
    runner_step(&r, &(struct feed){&s, tokens + N - 1, 1, want}, 1, NULL, NULL);
    for (int32_t block = 5; block < 7; block++) {
        s.blocks[0] = block;
        s.context = N - 1;
        runner_step(&r, &(struct feed){&s, tokens + N - 1, 1, have}, 1, NULL, NULL);
        assert_memory_equal(have, want, sizeof want);
    }
    sequence_close(&s);
    struct mxc_state *other = NULL;
    assert_int_equal(r.ops->state_new(r.plan, (int32_t[MXC_N_KV_KINDS]){8, 0, 0, 0}, &other, &err),
                     MXC_E_ARG);
    assert_null(other);
    runner_close(&r);
    tiny_close(&tiny);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_find),        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_precision),   cmocka_unit_test(test_options),
        cmocka_unit_test(test_allocations), cmocka_unit_test(test_wrong_steps),
        cmocka_unit_test(test_state)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
