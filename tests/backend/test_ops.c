/* Every op of the graph on the CPU backend: small models against the interpreter of mini.h, and
 * equal bits whether rows come alone, in chunks, with other sequences, and on 1, 2 or 3 threads; at
 * every ISA level, in exact and in fast. */
#include "backend/mini.h"
#include "backend/runner.h"

#include "base/cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N = MINI_POSITIONS, VOCAB = MINI_VOCAB, MAX_ROWS = 128, N_BLOCKS = 131 };

static void make_tokens(int32_t *tokens, int32_t n, uint32_t seed) {
    for (int32_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        tokens[i] = (int32_t)(seed >> 8) % VOCAB;
    }
}

static float *numbers(size_t n) {
    float *x = calloc(n, sizeof *x);
    assert_non_null(x);
    return x;
}

static void open_runner(struct runner *r, const struct mini *m, int level, int threads,
                        enum mxc_precision precision) {
    struct mxc_err err;
    assert_int_equal(mxc_cpu_mask((enum mxc_cpu_level)level, &err), MXC_OK);
    runner_open(r, m->graph, m->weights,
                &(struct runner_options){.threads = threads,
                                         .precision = precision,
                                         .max_rows = MAX_ROWS,
                                         .n_blocks = N_BLOCKS,
                                         .stride = 37});
}

/* ---- against the interpreter */

/* Rows that differ by more than the tolerance, as a part of the largest number. */
static int32_t wrong_rows(const float *have, const float *want, double tolerance) {
    double largest = 0;
    int32_t n = 0;
    for (int32_t i = 0; i < N * VOCAB; i++)
        largest = fmax(largest, fabs((double)want[i]));
    for (int32_t row = 0; row < N; row++) {
        bool wrong = false;
        for (int32_t i = row * VOCAB; i < (row + 1) * VOCAB; i++)
            wrong |= !(fabs((double)have[i] - (double)want[i]) <= tolerance * largest);
        n += wrong;
    }
    return n;
}

/* most: rows that may differ more, because rounding made them choose another expert. */
static void check_numbers(enum mini_model model, enum mxc_storage storage,
                          enum mxc_precision precision, double tolerance, int32_t most) {
    struct mini m;
    int32_t tokens[N];
    float *want = numbers(N * VOCAB), *have = numbers(N * VOCAB);
    mini_model(&m, model, storage);
    make_tokens(tokens, N, 7);
    mini_reference(&m, tokens, N, want);
    for (int level = 0; level <= (int)mxc_cpu_best(); level++) {
        struct runner r;
        open_runner(&r, &m, level, 2, precision);
        runner_chunks(&r, tokens, N, 40, have);
        int32_t wrong = wrong_rows(have, want, tolerance);
        if (wrong > most)
            print_message("model %d level %d storage %d: %d rows, %g\n", (int)model, level,
                          (int)storage, wrong, relative_difference(have, want, N * VOCAB));
        assert_true(wrong <= most);
        runner_close(&r);
    }
    free(want);
    free(have);
    mini_close(&m);
}

static void test_exact(void **state) {
    (void)state;
    for (enum mini_model model = 0; model < MINI_N_MODELS; model++) {
        check_numbers(model, MXC_ST_F32, MXC_PRECISION_EXACT, 2e-5, 0);
        check_numbers(model, MXC_ST_MLX_AFFINE, MXC_PRECISION_EXACT, 2e-5, 0);
    }
}

static void test_fast(void **state) {
    (void)state;
    for (enum mini_model model = 0; model < MINI_N_MODELS; model++) {
        check_numbers(model, MXC_ST_BF16, MXC_PRECISION_FAST, 6e-2, N / 10);
        check_numbers(model, MXC_ST_MLX_AFFINE, MXC_PRECISION_FAST, 6e-2, N / 10);
    }
}

/* ---- equal bits */

enum { UNSEEN = 30 }; /* first rows of sequence 1, whose logits a batch does not ask for */

/* Three sequences in steps of their own rows each: all of one, some, or one row at a time. */
static void run_batch(struct runner *r, int32_t tokens[3][N], float *logits[3]) {
    static const int32_t sizes[3][4] = {{N, 0, 0, 0}, {UNSEEN, 1, 26, 3}, {5, 50, 1, 4}};
    struct sequence sequences[3];
    int32_t at[3] = {0, 0, 0};
    for (int i = 0; i < 3; i++)
        sequence_open(r, &sequences[i], N);
    for (int step = 0; step < 4; step++) {
        struct feed feeds[3];
        int32_t n = 0;
        for (int i = 0; i < 3; i++) {
            if (!sizes[i][step])
                continue;
            float *to = i == 1 && !step ? NULL : logits[i] + (size_t)at[i] * VOCAB;
            feeds[n++] = (struct feed){&sequences[i], tokens[i] + at[i], sizes[i][step], to};
            at[i] += sizes[i][step];
        }
        runner_step(r, feeds, n, NULL, NULL);
    }
    for (int i = 0; i < 3; i++)
        sequence_close(&sequences[i]);
}

/* The last token's logits after a prefill without any: the last layer only appends then. */
static void check_last(struct runner *r, const int32_t *tokens, const float *want) {
    struct sequence s;
    float logits[VOCAB];
    sequence_open(r, &s, N);
    runner_step(r, &(struct feed){&s, tokens, N - 1, NULL}, 1, NULL, NULL);
    runner_step(r, &(struct feed){&s, tokens + N - 1, 1, logits}, 1, NULL, NULL);
    sequence_close(&s);
    assert_memory_equal(logits, want + (N - 1) * VOCAB, sizeof logits);
}

static void no_tap(void *user, const struct mxc_graph *graph, int32_t value, const float *data,
                   int32_t rows, int32_t width) {
    (void)user, (void)graph, (void)value, (void)data, (void)rows, (void)width;
}

static void check_bits(enum mini_model model, enum mxc_storage storage,
                       enum mxc_precision precision, int first) {
    const int best = (int)mxc_cpu_best();
    struct mini m;
    int32_t tokens[3][N];
    float *want[3], *have[3];
    mini_model(&m, model, storage);
    for (int i = 0; i < 3; i++) {
        make_tokens(tokens[i], N, (uint32_t)i + 1);
        want[i] = numbers(N * VOCAB);
        have[i] = numbers(N * VOCAB);
    }
    for (int level = first; level <= best; level++)
        for (int threads = 1; threads <= 3; threads += level < best ? 2 : 1) {
            static const int32_t chunks[] = {0, 40, 7, 1}; /* row by row takes its time */
            struct runner r;
            open_runner(&r, &m, level, threads, precision);
            for (int i = 0; threads == 1 && i < 3; i++)
                runner_chunks(&r, tokens[i], N, 0, want[i]);
            for (size_t c = 0; c < (level == best && threads > 1 ? 4 : 3); c++) {
                memset(have[0], 0, N * VOCAB * sizeof(float));
                runner_chunks(&r, tokens[0], N, chunks[c], have[0]);
                assert_memory_equal(have[0], want[0], N * VOCAB * sizeof(float));
            }
            run_batch(&r, tokens, have);
            for (int i = 0; i < 3; i++) {
                size_t from = i == 1 ? UNSEEN * VOCAB : 0;
                assert_memory_equal(have[i] + from, want[i] + from,
                                    (N * VOCAB - from) * sizeof(float));
            }
            check_last(&r, tokens[0], want[0]);
            struct sequence s; /* with a tap, ops are not fused */
            sequence_open(&r, &s, N);
            runner_step(&r, &(struct feed){&s, tokens[0], N, have[0]}, 1, no_tap, NULL);
            sequence_close(&s);
            assert_memory_equal(have[0], want[0], N * VOCAB * sizeof(float));
            runner_close(&r);
        }
    for (int i = 0; i < 3; i++) {
        free(want[i]);
        free(have[i]);
    }
    mini_close(&m);
}

static void test_bits_exact(void **state) {
    (void)state;
    for (enum mini_model model = 0; model < MINI_N_MODELS; model++)
        check_bits(model, MXC_ST_F32, MXC_PRECISION_EXACT, 0);
}

static void test_bits_fast(void **state) {
    (void)state;
    for (enum mini_model model = 0; model < MINI_N_MODELS; model++) {
        check_bits(model, MXC_ST_BF16, MXC_PRECISION_FAST, (int)mxc_cpu_best());
        check_bits(model, MXC_ST_MLX_AFFINE, MXC_PRECISION_FAST, 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_exact), cmocka_unit_test(test_fast),
                                       cmocka_unit_test(test_bits_exact),
                                       cmocka_unit_test(test_bits_fast)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
