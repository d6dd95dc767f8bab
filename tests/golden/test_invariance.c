/* A row's logits have the same bits alone, in a batch of 2, 3, 8 and 17, in prefill chunks of 1, 7,
 * 64 and all, with 1 and 2 threads, and on blocks in another order: on real families, in exact and
 * in fast, at every ISA level. All sequences are prefixes of one list of tokens, so one prefill of
 * the list is the reference for every row. */
#include "backend/runner.h"
#include "golden/checkpoint.h"

#include "base/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_TOKENS = 560, N_FEW = 160, N_BLOCKS = 337 }; /* past one chunk of keys; less; a prime */

struct setup {
    const struct checkpoint *checkpoint;
    struct runner runner;
    int32_t tokens[N_TOKENS];
    int32_t n;
    size_t vocab;
    float *want, *have; /* [N_TOKENS][vocab] */
};

static void open_runner(struct setup *s, int threads, enum mxc_precision precision,
                        int32_t stride) {
    runner_open(&s->runner, s->checkpoint->graph, s->checkpoint->weights,
                &(struct runner_options){.threads = threads,
                                         .precision = precision,
                                         .max_rows = N_TOKENS,
                                         .n_blocks = N_BLOCKS,
                                         .stride = stride});
}

static void check_rows(const struct setup *s, int32_t first, int32_t n, const float *have,
                       const char *what) {
    const float *want = s->want + (size_t)first * s->vocab;
    if (!memcmp(want, have, (size_t)n * s->vocab * sizeof *have))
        return;
    int32_t row = 0;
    while (!memcmp(want + (size_t)row * s->vocab, have + (size_t)row * s->vocab,
                   s->vocab * sizeof *have))
        row++;
    fail_msg("%s, %s: %s: row %d differs by %g", s->checkpoint->name,
             s->runner.ops->plan_describe(s->runner.plan), what, first + row,
             relative_difference(have + (size_t)row * s->vocab, want + (size_t)row * s->vocab,
                                 s->vocab));
}

static void check_chunks(struct setup *s) {
    static const int32_t chunks[] = {1, 7, 64, 0};
    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
        memset(s->have, 0, (size_t)s->n * s->vocab * sizeof *s->have);
        runner_chunks(&s->runner, s->tokens, s->n, chunks[i], s->have);
        char what[48];
        snprintf(what, sizeof what, "chunks of %d", chunks[i]);
        check_rows(s, 0, s->n, s->have, what);
    }
}

/* k sequences of different lengths; then three steps in which most decode and some prefill. */
static void check_batch(struct setup *s, int32_t k) {
    enum { MOST = 17 };
    struct sequence sequences[MOST];
    struct feed feeds[MOST];
    for (int32_t i = 0; i < k; i++) {
        int32_t length = 5 + i * (s->n - 40) / MOST;
        sequence_open(&s->runner, &sequences[i], N_TOKENS);
        runner_step(&s->runner, &(struct feed){&sequences[i], s->tokens, length, NULL}, 1, NULL,
                    NULL);
    }
    for (int32_t step = 0; step < 3; step++) {
        float *next = s->have;
        for (int32_t i = 0; i < k; i++) {
            int32_t n = (i + step) % 4 == 3 ? 9 : 1;
            feeds[i] = (struct feed){&sequences[i], s->tokens + sequences[i].context, n, next};
            next += (size_t)n * s->vocab;
        }
        runner_step(&s->runner, feeds, k, NULL, NULL);
        for (int32_t i = 0; i < k; i++) {
            char what[48];
            snprintf(what, sizeof what, "batch of %d, sequence %d", k, i);
            check_rows(s, sequences[i].context - feeds[i].n, feeds[i].n, feeds[i].logits, what);
        }
    }
    for (int32_t i = 0; i < k; i++)
        sequence_close(&sequences[i]);
}

static void check_model(const struct checkpoint *c, enum mxc_precision precision, int32_t n) {
    static const int32_t batches[] = {2, 3, 8, 17};
    struct setup s = {.checkpoint = c, .n = n, .vocab = (size_t)c->graph->vocab};
    s.want = calloc(N_TOKENS * s.vocab, sizeof *s.want);
    s.have = calloc(N_TOKENS * s.vocab, sizeof *s.have);
    assert_true(s.want && s.have);
    for (int32_t i = 0; i < N_TOKENS; i++)
        s.tokens[i] = (i * 7919 + 13) % c->graph->vocab;
    open_runner(&s, 1, precision, 1);
    runner_chunks(&s.runner, s.tokens, n, 0, s.want);
    check_chunks(&s);
    runner_close(&s.runner);
    open_runner(&s, 2, precision, 59);
    check_chunks(&s);
    for (size_t i = 0; i < sizeof batches / sizeof batches[0]; i++)
        check_batch(&s, batches[i]);
    runner_close(&s.runner);
    free(s.want);
    free(s.have);
}

/* One checkpoint for each compute layout, and the families' attention variants and experts. */
static void check_level(enum mxc_cpu_level level) {
    static const char *const names[] = {
        "llama",           "llama_f16",       "llama_bf16",      "llama_mlx_q4_g64",
        "llama_mlx_mixed", "llama_gguf_q4_0", "llama_gguf_q6_k", "llama_gguf_q8_0",
        "mistral",         "qwen2",           "qwen3",           "gemma3_text",
        "qwen3_moe",       "deepseek_v3",     "gpt_oss"};
    struct mxc_err err;
    assert_int_equal(mxc_cpu_mask(level, &err), MXC_OK);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct checkpoint c;
        checkpoint_open(&c, names[i]);
        bool few = CHECKPOINT_SAMPLE || (level == MXC_CPU_SCALAR && i); /* scalar is slow */
        for (int fast = 0; fast < 2; fast++)
            if (!CHECKPOINT_SAMPLE || ((int)i + (int)level) % 2 == fast)
                check_model(&c, fast ? MXC_PRECISION_FAST : MXC_PRECISION_EXACT,
                            few ? N_FEW : N_TOKENS);
        checkpoint_close(&c);
    }
}

static void test_scalar(void **state) {
    (void)state;
    check_level(MXC_CPU_SCALAR);
}

static void test_avx2(void **state) {
    (void)state;
    if (mxc_cpu_best() < MXC_CPU_AVX2)
        skip();
    check_level(MXC_CPU_AVX2);
}

static void test_avx512(void **state) {
    (void)state;
    if (mxc_cpu_best() < MXC_CPU_AVX512)
        skip();
    check_level(MXC_CPU_AVX512);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_scalar), cmocka_unit_test(test_avx2),
                                       cmocka_unit_test(test_avx512)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
