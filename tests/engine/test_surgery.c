/* Operations on weights as engine/load.c does them: what is left alone gives the same logits to the
 * last bit, a scaled head scales logits, a scaled projector scales features, and the variable, the
 * memory that is counted, and errors are as they should be. */
#define _GNU_SOURCE
#include "test.h"

#include "base/mem.h"
#include "engine/operated.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HEAD "version: 1\noperations:\n"

static struct mxc_load_options options(enum mxc_precision precision) {
    struct mxc_load_options o;
    mxc_load_options_init(&o);
    o.backend = "cpu";
    o.n_threads = 1;
    o.max_rows = 64;
    o.precision = precision;
    return o;
}

static float *logits_of(const char *golden, const char *yaml, enum mxc_precision precision,
                        size_t *n) {
    const struct mxc_load_options o = options(precision);
    struct mxc_model *m = operated_open(golden, yaml, &o);
    float *logits = operated_logits(m);
    *n = OPERATED_TOKENS * (size_t)m->checkpoint->graph->vocab;
    mxc_model_close(m);
    return logits;
}

static const char *const texts[] = {"llama", "llama_bf16", "llama_mlx_q4_g64",
                                    "llama_gguf_q4_0/model.gguf", "llama_gptq_q4"};
enum { N_TEXTS = sizeof texts / sizeof *texts };

static void same_bits(void **state) {
    (void)state;
    static const char *const documents[] = {
        "version: 1\n", "version: 1\noperations: []\n",
        HEAD "  - {op: scale, pattern: \"*\", factor: 1.0}\n",
        /* there and back: in memory, with the same numbers */
        HEAD "  - {op: scale, pattern: \"*proj.weight\", factor: 2}\n"
             "  - {op: scale, pattern: \"*proj.weight\", factor: 0.5}\n"};
    for (int t = 0; t < N_TEXTS; t++) {
        size_t n, m;
        float *plain = logits_of(texts[t], NULL, MXC_PRECISION_AUTO, &n);
        for (int d = 0; d < 4; d++) {
            float *have = logits_of(texts[t], documents[d], MXC_PRECISION_AUTO, &m);
            assert_int_equal(m, n);
            if (memcmp(have, plain, n * sizeof *have))
                fail_msg("%s: document %d changes logits", texts[t], d);
            free(have);
        }
        free(plain);
    }
}

static void expect_factor(const float *have, const float *plain, size_t n, double factor,
                          double tolerance) {
    double worst = 0, largest = 0;
    for (size_t i = 0; i < n; i++) {
        worst = fmax(worst, fabs((double)have[i] - factor * (double)plain[i]));
        largest = fmax(largest, fabs(factor * (double)plain[i]));
    }
    assert_true(largest > 0.01);
    if (!(worst <= tolerance * largest))
        fail_msg("apart by %g of %g", worst, largest);
}

static void scaled_head(void **state) {
    (void)state;
    for (int t = 0; t < N_TEXTS; t++) {
        for (int p = MXC_PRECISION_AUTO; p <= MXC_PRECISION_EXACT; p++) {
            size_t n, m;
            float *plain = logits_of(texts[t], NULL, (enum mxc_precision)p, &n);
            float *have =
                logits_of(texts[t], HEAD "  - {op: scale, pattern: lm_head.weight, factor: -2}\n",
                          (enum mxc_precision)p, &m);
            assert_int_equal(m, n);
            expect_factor(have, plain, n, -2, 1e-5);
            free(plain);
            free(have);
        }
    }
}

/* A layer of zeros passes its input on: the same as with only its two outputs at zero. */
static void pruned_layer(void **state) {
    (void)state;
    size_t n, m;
    float *all = logits_of(
        "llama",
        HEAD "  - {op: prune, granularity: layer, pattern: \"model.layers.*\", layer_ids: [1]}\n",
        MXC_PRECISION_AUTO, &n);
    float *two =
        logits_of("llama",
                  HEAD "  - {op: scale, pattern: \"model.layers.1.*.{o,down}_proj.weight\", "
                       "factor: 0}\n",
                  MXC_PRECISION_AUTO, &m);
    float *plain = logits_of("llama", NULL, MXC_PRECISION_AUTO, &m);
    assert_memory_equal(all, two, n * sizeof *all);
    assert_true(memcmp(all, plain, n * sizeof *all) != 0);
    free(all);
    free(two);
    free(plain);
}

/* A head without queries still attends, to all keys alike; without its columns of o_proj nothing
 * of it is left: both ways of naming the tensors of that prune agree. */
static void pruned_head(void **state) {
    (void)state;
    size_t n, m;
    float *both = logits_of("llama",
                            HEAD "  - {op: prune, granularity: attention_head, pattern: "
                                 "\"*.self_attn.*\", head_ids: [2]}\n",
                            MXC_PRECISION_AUTO, &n);
    float *out = logits_of("llama",
                           HEAD "  - {op: prune, granularity: attention_head, pattern: "
                                "\"*.o_proj.weight\", head_ids: [2]}\n",
                           MXC_PRECISION_AUTO, &m);
    assert_int_equal(m, n);
    assert_memory_equal(both, out, n * sizeof *both);
    free(both);
    free(out);
}

static float *features_of(const char *golden, const char *yaml, size_t *n) {
    const struct mxc_load_options o = options(MXC_PRECISION_EXACT);
    struct mxc_model *m = operated_open(golden, yaml, &o);
    float *features = operated_features(m, n);
    mxc_model_close(m);
    return features;
}

static void scaled_projector(void **state) {
    (void)state;
    static const char *const rows[][2] = {{"llava_clip_llama", "multi_modal_projector.linear_2.*"},
                                          {"qwen2_vl", "visual.merger.mlp.2.*"}};
    for (int i = 0; i < 2; i++) {
        char yaml[256];
        size_t n, m;
        (void)snprintf(yaml, sizeof yaml, HEAD "  - {op: scale, pattern: \"%s\", factor: 2}\n",
                       rows[i][1]);
        float *plain = features_of(rows[i][0], NULL, &n);
        float *have = features_of(rows[i][0], yaml, &m);
        assert_int_equal(m, n);
        expect_factor(have, plain, n, 2, 1e-6);
        free(plain);
        free(have);
    }
}

static void seen_with(const char *golden, const char *yaml, struct operated_seen *seen) {
    struct mxc_load_options o = options(MXC_PRECISION_EXACT);
    o.max_out = OPERATED_TOKENS;
    struct mxc_model *m = operated_open(golden, yaml, &o);
    operated_see(m, seen);
    mxc_model_close(m);
}

/* Two documents that say the same of a tower in different words, and none. */
static void same_tower(const char *golden, const char *a, const char *b, double tolerance) {
    struct operated_seen one, other, plain;
    seen_with(golden, a, &one);
    seen_with(golden, b, &other);
    seen_with(golden, NULL, &plain);
    assert_int_equal(one.n_features, other.n_features);
    assert_int_equal(one.n_logits, other.n_logits);
    expect_factor(one.features, other.features, one.n_features, 1, tolerance);
    expect_factor(one.logits, other.logits, one.n_logits, 1, tolerance);
    assert_true(memcmp(one.features, plain.features, one.n_features * sizeof(float)) != 0);
    assert_true(memcmp(one.logits, plain.logits, one.n_logits * sizeof(float)) != 0);
    operated_seen_fini(&one);
    operated_seen_fini(&other);
    operated_seen_fini(&plain);
}

static void pruned_tower(void **state) {
    (void)state;
    static const char layer[] = HEAD "  - {op: prune, granularity: layer, pattern: \"vis*\", "
                                     "layer_ids: [1]}\n";
    same_tower("qwen2_vl", layer,
               HEAD "  - {op: scale, pattern: \"visual.blocks.1.{attn.proj,mlp.fc2}.*\", factor: "
                    "0}\n",
               0);
    same_tower("llava_clip_llama", layer,
               HEAD "  - {op: scale, pattern: \"*.encoder.layers.1.*{out_proj,fc2}.*\", factor: "
                    "0}\n",
               0);
}

/* A quantised projector is as good as its numbers. */
static void quantised_projector(void **state) {
    (void)state;
    char path[2][64], yaml[2][512];
    for (int i = 0; i < 2; i++) {
        (void)snprintf(path[i], sizeof path[i], "/tmp/mxc-donor-%d-%d.safetensors", (int)getpid(),
                       i);
        operated_donor(path[i], "vision_tower.merger.mlp.2", 128, 192, i);
        (void)snprintf(yaml[i], sizeof yaml[i],
                       HEAD "  - {op: replace, pattern: &w vision_tower.merger.mlp.2.weight, "
                            "source: %s, source_key: *w}\n"
                            "  - {op: scale, pattern: *w, factor: 2}\n",
                       path[i]);
    }
    same_tower("qwen2_vl_mlx_q4_g64", yaml[1], yaml[0], 1e-5);
    (void)unlink(path[0]);
    (void)unlink(path[1]);
}

/* ---- the variable, memory, errors */

static const char *document(char path[64], const char *yaml) {
    (void)snprintf(path, 64, "/tmp/mxc-surgery-%d.yaml", (int)getpid());
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(yaml, f) >= 0);
    assert_int_equal(fclose(f), 0);
    return path;
}

static void variable_and_memory(void **state) {
    (void)state;
    const char *golden = MXC_TEST_DATA "/golden/llama";
    struct mxc_load_options o = options(MXC_PRECISION_AUTO);
    struct mxc_memory_estimate before, after;
    struct mxc_checkpoint *c = NULL;
    struct mxc_model *model = NULL;
    struct mxc_err err = {.message = ""};
    char path[64];
    (void)document(path, HEAD "  - {op: scale, pattern: lm_head.weight, factor: 2}\n");
    (void)unsetenv("MLXCEL_SURGERY");
    assert_int_equal(mxc_checkpoint_open(golden, &c, &err), MXC_OK);
    assert_null(c->surgery);
    assert_int_equal(mxc_checkpoint_estimate(c, &o, 64, 1, &before, &err), MXC_OK);
    mxc_checkpoint_close(c);
    assert_int_equal(setenv("MLXCEL_SURGERY", path, 1), 0);
    assert_int_equal(mxc_checkpoint_open(golden, &c, &err), MXC_OK);
    assert_non_null(c->surgery);
    assert_int_equal(mxc_checkpoint_estimate(c, &o, 64, 1, &after, &err), MXC_OK);
    assert_int_equal(after.weights, before.weights + 720 * 64 * 4);
    mxc_checkpoint_close(c);
    /* text wins over the variable, also when it says none */
    assert_int_equal(mxc_checkpoint_open_with(golden, "", &c, &err), MXC_OK);
    assert_null(c->surgery);
    mxc_checkpoint_close(c);
    o.surgery = "/nowhere/surgery.yaml";
    assert_int_equal(mxc_model_open(golden, &o, &model, &err), MXC_E_NOT_FOUND);
    assert_non_null(strstr(err.message, "surgery: /nowhere/surgery.yaml: "));
    (void)document(path, HEAD "  - {op: scale, pattern: lm_tail.weight, factor: 2}\n");
    o.surgery = NULL;
    assert_int_equal(mxc_model_open(golden, &o, &model, &err), MXC_E_NOT_FOUND);
    assert_non_null(strstr(err.message, ".yaml: surgery operation #0 (scale): no tensor matches"));
    assert_int_equal(setenv("MLXCEL_SURGERY", "", 1), 0);
    assert_int_equal(mxc_model_open(golden, &o, &model, &err), MXC_OK);
    mxc_model_close(model);
    (void)unsetenv("MLXCEL_SURGERY");
    (void)unlink(path);
}

static void allocations(void **state) {
    (void)state;
    char path[64];
    (void)document(path, HEAD "  - {op: scale, pattern: \"*.weight\", factor: 2}\n");
    for (uint64_t n = 1;; n++) {
        struct mxc_checkpoint *c = NULL;
        struct mxc_err err = {.message = ""};
        mxc_mem_fail_at(n);
        enum mxc_code code =
            mxc_checkpoint_open_with(MXC_TEST_DATA "/golden/llama", path, &c, &err);
        mxc_mem_fail_at(0);
        if (!code) {
            assert_true(n > 30);
            mxc_checkpoint_close(c);
            break;
        }
        assert_int_equal(code, MXC_E_NOMEM);
        assert_null(c);
    }
    (void)unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits),           cmocka_unit_test(scaled_head),
        cmocka_unit_test(pruned_layer),        cmocka_unit_test(pruned_head),
        cmocka_unit_test(scaled_projector),    cmocka_unit_test(pruned_tower),
        cmocka_unit_test(quantised_projector), cmocka_unit_test(variable_and_memory),
        cmocka_unit_test(allocations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
