/* The CPU backend on tiny models: numbers against a plain forward pass in double precision, KV
 * features (windows, shared chunks, many query heads), M-RoPE, spliced rows, taps. */
#include "backend/runner.h"
#include "backend/tiny.h"

#include "base/cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct tiny_shape plain = {.n_layers = 2,
                                        .hidden = 64,
                                        .ffn = 96,
                                        .n_heads = 4,
                                        .n_kv_heads = 2,
                                        .head_dim = 16,
                                        .vocab = 70,
                                        .storage = MXC_ST_F32};

static int worst_level(void) {
    return (int)mxc_cpu_best();
}

static void mask(int level) {
    struct mxc_err err;
    assert_int_equal(mxc_cpu_mask((enum mxc_cpu_level)level, &err), MXC_OK);
}

/* One model against the reference at every level, in chunks. */
static void check_shape(const struct tiny_shape *shape, int32_t n, double tolerance,
                        enum mxc_precision precision) {
    struct tiny tiny;
    tiny_open(&tiny, shape);
    size_t numbers = (size_t)n * (size_t)shape->vocab;
    int32_t *tokens = calloc((size_t)n, sizeof *tokens);
    float *want = calloc(numbers, sizeof *want), *have = calloc(numbers, sizeof *have);
    assert_true(tokens && want && have);
    tiny_tokens(&tiny, 7, tokens, n);
    tiny_reference(&tiny, tokens, n, NULL, want);
    for (int level = 0; level <= worst_level(); level++) {
        struct runner r;
        mask(level);
        struct runner_options options = {
            .threads = 2, .precision = precision, .max_rows = 64, .n_blocks = 131, .stride = 37};
        runner_open(&r, tiny.graph, tiny.weights, &options);
        runner_chunks(&r, tokens, n, 50, have);
        double worst = relative_difference(have, want, numbers);
        if (!(worst <= tolerance))
            print_message("level %d: %g\n", level, worst);
        assert_true(worst <= tolerance);
        runner_close(&r);
    }
    free(tokens);
    free(want);
    free(have);
    tiny_close(&tiny);
}

static void test_plain(void **state) {
    (void)state;
    check_shape(&plain, 70, 2e-5, MXC_PRECISION_EXACT);
}

static void test_biases_norms_sinks(void **state) {
    (void)state;
    struct tiny_shape shape = plain;
    shape.biases = shape.qk_norm = shape.sinks = shape.tied = shape.interleaved = true;
    shape.softcap = 20;
    check_shape(&shape, 70, 2e-5, MXC_PRECISION_EXACT);
}

/* Widths that fill neither strips, lines nor tiles. */
static void test_ragged_widths(void **state) {
    (void)state;
    struct tiny_shape shape = {.n_layers = 1,
                               .hidden = 52,
                               .ffn = 77,
                               .n_heads = 3,
                               .n_kv_heads = 3,
                               .head_dim = 10,
                               .vocab = 41,
                               .storage = MXC_ST_F32};
    check_shape(&shape, 53, 2e-5, MXC_PRECISION_EXACT);
}

static void test_sixteen_bit(void **state) {
    (void)state;
    struct tiny_shape shape = plain;
    shape.storage = MXC_ST_F16;
    check_shape(&shape, 40, 2e-5, MXC_PRECISION_EXACT);
    check_shape(&shape, 40, 3e-2, MXC_PRECISION_FAST); /* f16 weights, bf16 KV */
    shape.storage = MXC_ST_BF16;
    check_shape(&shape, 40, 2e-5, MXC_PRECISION_EXACT);
    check_shape(&shape, 40, 6e-2, MXC_PRECISION_AUTO); /* bf16 weights, activations, KV */
}

/* 24 query heads on one KV head: more than the kernels take at once. */
static void test_many_query_heads(void **state) {
    (void)state;
    struct tiny_shape shape = plain;
    shape.n_heads = 24;
    shape.n_kv_heads = 1;
    check_shape(&shape, 40, 2e-5, MXC_PRECISION_EXACT);
}

/* Past a chunk of keys, with a window that begins inside an earlier one. */
static void test_long_and_window(void **state) {
    (void)state;
    struct tiny_shape shape = plain;
    shape.hidden = 32;
    shape.ffn = 32;
    shape.n_heads = 3;
    shape.n_kv_heads = 3;
    shape.window = 600;
    check_shape(&shape, 1200, 5e-5, MXC_PRECISION_EXACT);
    shape.window = 5;
    check_shape(&shape, 100, 5e-5, MXC_PRECISION_EXACT);
}

/* Decoding with a long past shares chunks among workers; bits equal those of one worker. */
static void test_shared_chunks(void **state) {
    (void)state;
    enum { N = 1100 };
    struct tiny_shape shape = plain;
    shape.n_heads = 6;
    shape.n_kv_heads = 3;
    shape.window = 700;
    struct tiny tiny;
    tiny_open(&tiny, &shape);
    size_t vocab = (size_t)shape.vocab;
    int32_t tokens[N];
    float *logits[2][2];
    tiny_tokens(&tiny, 3, tokens, N);
    for (int t = 0; t < 2; t++) {
        struct runner r;
        struct runner_options options = {.threads = 1 + 3 * t,
                                         .precision = MXC_PRECISION_EXACT,
                                         .max_rows = 256,
                                         .n_blocks = 80,
                                         .stride = 1};
        mask(worst_level());
        runner_open(&r, tiny.graph, tiny.weights, &options);
        for (int way = 0; way < 2; way++) {
            struct sequence s;
            logits[t][way] = calloc(N * vocab, sizeof(float));
            assert_non_null(logits[t][way]);
            sequence_open(&r, &s, N);
            for (int32_t at = 0, n; at < N; at += n) {
                n = at < 1024 || !way ? 256 : 1;
                n = N - at < n ? N - at : n;
                struct feed feed = {&s, tokens + at, n, logits[t][way] + (size_t)at * vocab};
                runner_step(&r, &feed, 1, NULL, NULL);
            }
            sequence_close(&s);
        }
        runner_close(&r);
    }
    for (int i = 1; i < 4; i++) {
        assert_memory_equal(logits[0][0], logits[i / 2][i % 2], N * vocab * sizeof(float));
        free(logits[i / 2][i % 2]);
    }
    free(logits[0][0]);
    tiny_close(&tiny);
}

/* A window's blocks that no row sees any more may be gone. */
static void test_window_holes(void **state) {
    (void)state;
    enum { N = 200 };
    struct tiny_shape shape = plain;
    shape.n_layers = 2; /* layer 1 has the window, layer 0 sees everything */
    shape.window = 40;
    struct tiny tiny;
    struct runner r;
    tiny_open(&tiny, &shape);
    struct runner_options options = {.threads = 2, .max_rows = 64, .n_blocks = 20};
    mask(worst_level());
    runner_open(&r, tiny.graph, tiny.weights, &options);
    size_t vocab = (size_t)shape.vocab;
    int32_t tokens[N], window_blocks[8], position;
    float *want = calloc(N * vocab, sizeof *want), *have = calloc(vocab, sizeof *have);
    assert_true(want && have);
    tiny_tokens(&tiny, 5, tokens, N);
    runner_chunks(&r, tokens, N, 0 + 50, want);
    struct sequence s;
    sequence_open(&r, &s, N);
    for (int32_t at = 0; at < N - 1; at += 50) {
        struct feed feed = {&s, tokens + at, N - 1 - at < 50 ? N - 1 - at : 50, NULL};
        runner_step(&r, &feed, 1, NULL, NULL);
    }
    memcpy(window_blocks, s.blocks, 7 * sizeof *window_blocks);
    struct mxc_span span = {.n_rows = 1, .context = N - 1, .adapter = -1};
    for (int k = 0; k < MXC_N_KV_KINDS; k++) {
        span.blocks[k] = k == MXC_KV_WINDOW ? window_blocks : s.blocks;
        span.n_blocks[k] = 7;
    }
    position = N - 1;
    int32_t zero = 0;
    struct mxc_step step = {.n_rows = 1,
                            .tokens = tokens + N - 1,
                            .positions = &position,
                            .n_axes = 1,
                            .n_spans = 1,
                            .spans = &span,
                            .n_out = 1,
                            .out_row = &zero};
    struct mxc_out out = {.logits = have};
    struct mxc_err err;
    for (int i = 0; i < 5; i++) /* keys 160 .. 199 are seen: blocks 0 .. 4 are not */
        window_blocks[i] = -1;
    assert_int_equal(r.ops->run(r.plan, r.state, &step, &out, &err), MXC_OK);
    assert_memory_equal(have, want + (N - 1) * vocab, vocab * sizeof *have);
    window_blocks[5] = -1;
    assert_int_equal(r.ops->run(r.plan, r.state, &step, &out, &err), MXC_E_ARG);
    sequence_close(&s);
    free(want);
    free(have);
    runner_close(&r);
    tiny_close(&tiny);
}

/* ---- taps */

struct seen {
    char names[16][24];
    int n;
    float *logits;
};

static void see(void *user, const struct mxc_graph *graph, int32_t value, const float *data,
                int32_t rows, int32_t width) {
    struct seen *seen = user;
    strncpy(seen->names[seen->n++], graph->values[value].name, sizeof seen->names[0] - 1);
    assert_int_equal(width, graph->values[value].width);
    for (int32_t i = 0; i < rows * width; i++)
        assert_true(isfinite(data[i]));
    if (value == graph->logits)
        memcpy(seen->logits, data, (size_t)rows * (size_t)width * sizeof *data);
}

static void test_taps(void **state) {
    (void)state;
    enum { N = 40 };
    static const char *const names[] = {"layer.0.in", "layer.0.out", "layer.1.out", "final_norm",
                                        "logits"};
    struct tiny tiny;
    struct runner r;
    tiny_open(&tiny, &plain);
    mask(worst_level());
    struct runner_options options = {.threads = 2, .max_rows = 64, .n_blocks = 8};
    runner_open(&r, tiny.graph, tiny.weights, &options);
    int32_t tokens[N];
    size_t numbers = N * (size_t)plain.vocab;
    float *want = calloc(numbers, sizeof *want), *have = calloc(numbers, sizeof *have);
    struct seen seen = {.logits = calloc(numbers, sizeof(float))};
    assert_true(want && have && seen.logits);
    tiny_tokens(&tiny, 1, tokens, N);
    runner_chunks(&r, tokens, N, 0, want);
    struct sequence s;
    sequence_open(&r, &s, N);
    struct feed feed = {&s, tokens, N, have};
    runner_step(&r, &feed, 1, see, &seen);
    assert_int_equal(seen.n, 5);
    for (int i = 0; i < 5; i++)
        assert_string_equal(seen.names[i], names[i]);
    assert_memory_equal(have, want, numbers * sizeof *have);
    assert_memory_equal(seen.logits, want, numbers * sizeof *have);
    s.context = 0; /* no outputs: only what has rows is shown */
    seen.n = 0;
    feed = (struct feed){&s, tokens, N, NULL};
    runner_step(&r, &feed, 1, see, &seen);
    assert_int_equal(seen.n, 4);
    sequence_close(&s);
    runner_close(&r);
    free(want);
    free(have);
    free(seen.logits);
    tiny_close(&tiny);
}

/* ---- inputs of vision models */

struct direct {
    struct tiny tiny;
    struct runner runner;
    struct sequence sequence;
    int32_t tokens[40], positions[120], rows[40];
    struct mxc_span span;
    struct mxc_step step;
    float *logits;
};

static void direct_open(struct direct *d, const struct tiny_shape *shape, int32_t n) {
    *d = (struct direct){0};
    tiny_open(&d->tiny, shape);
    mask(worst_level());
    struct runner_options options = {
        .threads = 2, .precision = MXC_PRECISION_EXACT, .max_rows = 64, .n_blocks = 8};
    runner_open(&d->runner, d->tiny.graph, d->tiny.weights, &options);
    sequence_open(&d->runner, &d->sequence, n);
    tiny_tokens(&d->tiny, 9, d->tokens, n);
    d->span = (struct mxc_span){.n_rows = n, .adapter = -1};
    for (int k = 0; k < MXC_N_KV_KINDS; k++) {
        d->span.blocks[k] = d->sequence.blocks;
        d->span.n_blocks[k] = d->sequence.n_blocks;
    }
    for (int32_t i = 0; i < n; i++) {
        d->rows[i] = i;
        for (int axis = 0; axis < 3; axis++)
            d->positions[axis * n + i] = i;
    }
    d->step = (struct mxc_step){.n_rows = n,
                                .tokens = d->tokens,
                                .positions = d->positions,
                                .n_axes = 1,
                                .n_spans = 1,
                                .spans = &d->span,
                                .n_out = n,
                                .out_row = d->rows};
    d->logits = calloc((size_t)n * (size_t)shape->vocab, sizeof *d->logits);
    assert_non_null(d->logits);
}

static void direct_run(struct direct *d) {
    struct mxc_err err;
    struct mxc_out out = {.logits = d->logits};
    enum mxc_code code = d->runner.ops->run(d->runner.plan, d->runner.state, &d->step, &out, &err);
    if (code)
        print_message("%s\n", err.message);
    assert_int_equal(code, MXC_OK);
}

static void direct_close(struct direct *d) {
    sequence_close(&d->sequence);
    runner_close(&d->runner);
    tiny_close(&d->tiny);
    free(d->logits);
}

/* Rows 5 .. 19 see each other both ways, as the patches of a picture do. */
static void test_row_ends(void **state) {
    (void)state;
    enum { N = 33 };
    struct direct d;
    int32_t ends[N];
    float *want = calloc(N * (size_t)plain.vocab, sizeof *want);
    direct_open(&d, &plain, N);
    for (int32_t i = 0; i < N; i++)
        ends[i] = i >= 5 && i < 20 ? 20 : i + 1;
    d.step.row_end = ends;
    direct_run(&d);
    tiny_reference(&d.tiny, d.tokens, N, ends, want);
    assert_true(relative_difference(d.logits, want, N * (size_t)plain.vocab) <= 2e-5);
    direct_close(&d);
    free(want);
}

/* A row spliced with the embedding of another token is that token; its own id is not looked at. */
static void test_splices(void **state) {
    (void)state;
    enum { N = 33 };
    struct direct d;
    size_t numbers = N * (size_t)plain.vocab;
    float *want = calloc(numbers, sizeof *want), rows[2][64];
    direct_open(&d, &plain, N);
    direct_run(&d);
    memcpy(want, d.logits, numbers * sizeof *want);
    struct mxc_splice splices[2] = {{3, rows[0]}, {20, rows[1]}};
    const struct mxc_tensor *table = mxc_weights_find(d.tiny.weights, "embed.weight");
    for (int i = 0; i < 2; i++) {
        mxc_tensor_row(table, d.tokens[splices[i].row], rows[i]);
        for (int k = 0; k < 64; k++)
            rows[i][k] *= 1.5f;
        d.tokens[splices[i].row] = plain.vocab + 8;
    }
    d.step.n_splices = 2;
    d.step.splices = splices;
    direct_run(&d);
    assert_memory_equal(d.logits, want, numbers * sizeof *want);
    direct_close(&d);
    free(want);
}

/* Three equal axes are one axis; a shifted height moves only the pairs of its section. */
static void test_position_axes(void **state) {
    (void)state;
    enum { N = 33 };
    struct tiny_shape shape = plain;
    memcpy(shape.sections, (int[]){4, 2, 2}, sizeof shape.sections);
    struct direct d;
    size_t numbers = N * (size_t)shape.vocab;
    float *want = calloc(numbers, sizeof *want);
    direct_open(&d, &shape, N);
    direct_run(&d);
    memcpy(want, d.logits, numbers * sizeof *want);
    d.step.n_axes = 3;
    direct_run(&d);
    assert_memory_equal(d.logits, want, numbers * sizeof *want);
    d.positions[N + 10] += 3;
    direct_run(&d);
    assert_memory_equal(d.logits, want, 10 * (size_t)shape.vocab * sizeof *want);
    assert_memory_not_equal(d.logits + 10 * shape.vocab, want + 10 * shape.vocab,
                            (size_t)shape.vocab * sizeof *want);
    direct_close(&d);
    free(want);
}

/* Dynamic RoPE follows the length fixed at admission, not the rows of the step. */
static void test_rope_length(void **state) {
    (void)state;
    enum { N = 33 };
    struct tiny_shape shape = plain;
    shape.scaling = MXC_ROPE_DYNAMIC;
    struct direct d;
    size_t numbers = N * (size_t)shape.vocab;
    float *want = calloc(numbers, sizeof *want);
    direct_open(&d, &shape, N);
    d.span.rope_length = 16;
    direct_run(&d);
    tiny_reference(&d.tiny, d.tokens, N, NULL, want);
    assert_true(relative_difference(d.logits, want, numbers) <= 2e-5);
    d.span.rope_length = 64;
    direct_run(&d);
    assert_true(relative_difference(d.logits, want, numbers) > 1e-3);
    direct_close(&d);
    free(want);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_plain),
                                       cmocka_unit_test(test_biases_norms_sinks),
                                       cmocka_unit_test(test_ragged_widths),
                                       cmocka_unit_test(test_sixteen_bit),
                                       cmocka_unit_test(test_many_query_heads),
                                       cmocka_unit_test(test_long_and_window),
                                       cmocka_unit_test(test_shared_chunks),
                                       cmocka_unit_test(test_window_holes),
                                       cmocka_unit_test(test_taps),
                                       cmocka_unit_test(test_row_ends),
                                       cmocka_unit_test(test_splices),
                                       cmocka_unit_test(test_position_axes),
                                       cmocka_unit_test(test_rope_length)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
