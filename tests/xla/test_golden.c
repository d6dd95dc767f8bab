/* Golden checkpoints through the XLA backend and a real plugin: logits and 24 greedy tokens as the
 * references have them, from prompts in one step and tokens one by one; hidden rows of encoders.
 * No folder is left out: each is a decoder's, an encoder's, or known to be no model. Compiling
 * takes most of the time, so a sample is run unless all is asked for (real_plugin.h); MXC_XLA_ONLY
 * names one folder. */
#define _GNU_SOURCE
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

static void check_decoder(struct runner *r, const char *name) {
    struct checkpoint c;
    double worst = 0;
    checkpoint_open(&c, name);
    open_plan(r, &c);
    for (int32_t i = 0; i < checkpoint_cases(&c); i++) {
        struct golden_case g;
        checkpoint_case(&c, i, &g);
        worst = fmax(worst, golden_case_run(r, &g));
        golden_case_fini(&g);
    }
    print_message("%-32s logits %.1e  %s\n", name, worst, r->ops->plan_describe(r->plan));
    close_plan(r);
    checkpoint_close(&c);
    assert_true(worst <= tolerance);
}

/* ---- encoders */

static void check_encoder(struct runner *r, const char *name) {
    struct checkpoint c;
    double worst = 0;
    struct golden_text texts[GOLDEN_MAX_TEXTS];
    checkpoint_open(&c, name);
    assert_true(c.graph->hidden_out && c.graph->both_ways);
    open_plan(r, &c);
    for (int32_t i = 0, n = checkpoint_texts(&c, texts); i < n; i++) {
        const struct golden_text *t = &texts[i];
        size_t numbers = (size_t)t->n * (size_t)c.graph->hidden;
        float *have = calloc(numbers, sizeof *have);
        assert_non_null(have);
        golden_texts_run(r, &t, 1, have, NULL, NULL);
        worst = fmax(worst, relative_difference(have, t->hidden, numbers));
        free(have);
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
