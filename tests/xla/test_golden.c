/* Golden checkpoints through the XLA backend and a real plugin: logits and 24 greedy tokens as the
 * references have them, from prompts in one step and tokens one by one; hidden rows of encoders.
 * No folder is left out: each is a decoder's, an encoder's, or known to be no model. Compiling
 * takes most of the time, so a sample is run unless all is asked for (real_plugin.h); MXC_XLA_ONLY
 * names one folder. */
#define _GNU_SOURCE
#include "backend/runner.h"
#include "golden/checkpoint.h"
#include "xla/real_plugin.h"

#ifdef MLXCEL_XLA_DEVICE_RUNTIME

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The manifest's tolerance for f32 arithmetic. */
static const double tolerance = 1e-4;

enum { MAX_TOKENS = 512, N_BLOCKS = 64, MAX_FOLDERS = 256 };

/* What the sample must not leave out: windows, softcaps, experts, latents, sinks, scalings of RoPE,
 * norms of heads, integers with scales and biases, both ways. */
static const char *const sample[] = {"llama",         "gemma2",           "deepseek_v3",
                                     "gpt_oss",       "qwen3_moe",        "llama_gguf_q4_1",
                                     "phi3_longrope", "llama_tied_rope3", "bert"};
static const char *const no_models[] = {"gguf_blocks"};

static bool among(const char *name, const char *const *names, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!strcmp(names[i], name))
            return true;
    return false;
}

static bool wanted(const char *name) {
    const char *only = getenv("MXC_XLA_ONLY");
    return only ? !strcmp(only, name)
                : mxc_real_all() || among(name, sample, sizeof sample / sizeof *sample);
}

static bool is_encoder(const char *name) {
    char path[512];
    (void)snprintf(path, sizeof path, MXC_TEST_DATA "/golden/%s/modules.json", name);
    return access(path, R_OK) == 0;
}

static void need(enum mxc_code code, const struct mxc_err *err) {
    if (code)
        print_message("%s\n", err->message);
    assert_int_equal(code, MXC_OK);
}

static void open_backend(struct runner *r) {
    struct mxc_err err;
    *r = (struct runner){.n_blocks = N_BLOCKS, .stride = 5};
    const struct mxc_backend_options options = {
        .xla = {.plugin = mxc_real_plugin(), .cache_dir = mxc_real_cache()}};
    need(mxc_backend_find("xla", &r->ops, &err), &err);
    need(r->ops->open(&options, &r->backend, &err), &err);
}

static void open_plan(struct runner *r, const struct checkpoint *c) {
    struct mxc_err err;
    struct mxc_plan_options plan = {
        .max_rows = MAX_TOKENS, .max_out = MAX_TOKENS, .max_spans = RUNNER_MAX_SEQS};
    int32_t n_blocks[MXC_N_KV_KINDS];
    r->graph = c->graph;
    need(r->ops->compile(r->backend, c->graph, c->weights, &plan, &r->plan, &err), &err);
    for (int k = 0; k < MXC_N_KV_KINDS; k++)
        n_blocks[k] = N_BLOCKS;
    need(r->ops->state_new(r->plan, n_blocks, &r->state, &err), &err);
}

static void close_plan(struct runner *r) {
    r->ops->state_free(r->state);
    r->ops->plan_free(r->plan);
}

/* ---- decoders */

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

static void check_decoder(struct runner *r, const char *name) {
    struct checkpoint c;
    double worst = 0;
    checkpoint_open(&c, name);
    open_plan(r, &c);
    for (int32_t i = 0; i < checkpoint_cases(&c); i++) {
        struct golden_case g;
        checkpoint_case(&c, i, &g);
        worst = fmax(worst, check_case(r, &g));
        golden_case_fini(&g);
    }
    print_message("%-32s logits %.1e  %s\n", name, worst, r->ops->plan_describe(r->plan));
    close_plan(r);
    checkpoint_close(&c);
    assert_true(worst <= tolerance);
}

/* ---- encoders */

/* Hidden rows of one text, every row seeing all of it. */
static double check_text(struct runner *r, const struct checkpoint *c, const json_t *item) {
    int32_t ids[MAX_TOKENS], positions[MAX_TOKENS], ends[MAX_TOKENS], blocks[N_BLOCKS], n = 0;
    const json_t *list = json_object_get(item, "ids");
    size_t width = (size_t)c->graph->hidden;
    char name[128];
    const float *want = NULL;
    struct mxc_err err;
    for (n = 0; n < (int32_t)json_array_size(list); n++) {
        assert_true(n < MAX_TOKENS);
        ids[n] = (int32_t)json_integer_value(json_array_get(list, (size_t)n));
        positions[n] = n;
        ends[n] = (int32_t)json_array_size(list);
    }
    (void)snprintf(name, sizeof name, "%s.hidden",
                   json_string_value(json_object_get(item, "name")));
    for (size_t i = 0; i < c->tensors->n_tensors; i++)
        if (!strcmp(c->tensors->tensors[i].name, name))
            want = (const float *)(const void *)c->tensors->tensors[i].data;
    assert_non_null(want);
    for (int32_t i = 0; i < N_BLOCKS; i++)
        blocks[i] = i;
    struct mxc_span span = {.n_rows = n, .rope_length = n, .adapter = -1};
    span.blocks[MXC_KV_FULL] = blocks;
    span.n_blocks[MXC_KV_FULL] = N_BLOCKS;
    const struct mxc_step step = {.n_rows = n,
                                  .tokens = ids,
                                  .positions = positions,
                                  .n_axes = 1,
                                  .row_end = ends,
                                  .n_spans = 1,
                                  .spans = &span,
                                  .n_out = n,
                                  .out_row = positions};
    float *have = calloc((size_t)n * width, sizeof *have);
    assert_non_null(have);
    need(r->ops->run(r->plan, r->state, &step, &(struct mxc_out){.logits = have}, &err), &err);
    double worst = relative_difference(have, want, (size_t)n * width);
    free(have);
    return worst;
}

static void check_encoder(struct runner *r, const char *name) {
    struct checkpoint c;
    double worst = 0;
    size_t i;
    const json_t *item;
    checkpoint_open(&c, name);
    assert_true(c.graph->hidden_out && c.graph->both_ways);
    open_plan(r, &c);
    json_array_foreach(json_object_get(c.golden, "cases"), i, item) {
        if (!json_object_get(item, "texts"))
            worst = fmax(worst, check_text(r, &c, item));
    }
    print_message("%-32s hidden %.1e  %s\n", name, worst, r->ops->plan_describe(r->plan));
    close_plan(r);
    checkpoint_close(&c);
    assert_true(worst <= tolerance);
}

/* ---- all folders */

static int is_folder(const struct dirent *entry) {
    return entry->d_name[0] != '.';
}

static void test_all(void **state) {
    struct dirent **entries = NULL;
    char(*decoders)[CHECKPOINT_MAX_NAME];
    struct runner r;
    int32_t n_decoders, run = 0, encoders = 0, others = 0;
    (void)state;
    if (!mxc_real_plugin())
        skip();
    open_backend(&r);
    n_decoders = checkpoint_list(&decoders);
    int n = scandir(MXC_TEST_DATA "/golden", &entries, is_folder, alphasort);
    assert_in_range(n, 1, MAX_FOLDERS);
    for (int i = 0; i < n; i++) {
        const char *name = entries[i]->d_name;
        bool encoder = is_encoder(name), decoder = false;
        for (int32_t k = 0; k < n_decoders; k++)
            decoder |= !strcmp(decoders[k], name);
        encoders += encoder;
        others += !encoder && !decoder;
        if (!encoder && !decoder) {
            assert_true(among(name, no_models, sizeof no_models / sizeof *no_models));
        } else if (wanted(name)) {
            run++;
            if (encoder)
                check_encoder(&r, name);
            else
                check_decoder(&r, name);
        }
        free(entries[i]);
    }
    print_message("%d of %d folders\n", run, n - others);
    assert_int_equal(n, n_decoders + encoders + others);
    assert_true(run > 0 && (!mxc_real_all() || getenv("MXC_XLA_ONLY") || run == n - others));
    free(entries);
    free(decoders);
    r.ops->close(r.backend);
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
