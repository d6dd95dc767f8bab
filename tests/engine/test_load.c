/* A checkpoint through load, backend and engine: the reference's greedy ids, and the same tokens
 * and log-probabilities whoever else is served, however the prompt is cut, cached or not. */
#include "test.h"

#include "base/json.h"
#include "base/mem.h"
#include "engine/load.h"
#include "fake_backend.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char checkpoint[] = MXC_TEST_DATA "/golden/llama";

static struct mxc_model *model_of(const char *path, enum mxc_precision precision, int n_threads) {
    struct mxc_load_options options;
    struct mxc_model *model = NULL;
    struct mxc_err err = {.message = ""};
    mxc_load_options_init(&options);
    options.precision = precision;
    options.n_threads = n_threads;
    options.max_rows = 256;
    options.max_batch = options.max_out = 17;
    if (mxc_model_open(path, &options, &model, &err))
        fail_msg("%s", err.message);
    return model;
}

static struct mxc_engine *engine_of(const struct mxc_model *model, int32_t rows) {
    struct mxc_engine_options o;
    struct mxc_engine *e = NULL;
    struct mxc_engine_target target = mxc_model_target(model);
    mxc_engine_options_init(&o);
    o.max_batch = rows < 18 ? rows - 1 : 17;
    o.max_rows = rows;
    o.context = 512;
    assert_int_equal(mxc_model_blocks(model, o.context, 17, 0, 0, o.n_blocks, NULL), MXC_OK);
    assert_int_equal(mxc_engine_new(&target, &o, &e, NULL), MXC_OK);
    return e;
}

struct text {
    int32_t ids[400], n;
    int32_t greedy[64], n_greedy;
};

static int read_ids(const json_t *list, int32_t *ids) {
    size_t i;
    const json_t *value;
    json_array_foreach(list, i, value) ids[i] = (int32_t)json_integer_value(value);
    return (int)json_array_size(list);
}

static int read_texts(struct text *texts, int most) {
    json_t *golden = NULL, *item;
    size_t i;
    int n = 0;
    assert_int_equal(
        mxc_json_load(MXC_TEST_DATA "/golden/llama/golden/golden.json", 1 << 26, &golden, NULL),
        MXC_OK);
    json_array_foreach(json_object_get(golden, "cases"), i, item) {
        if (n == most || json_array_size(json_object_get(item, "ids")) > 400)
            continue;
        texts[n].n = read_ids(json_object_get(item, "ids"), texts[n].ids);
        texts[n].n_greedy = read_ids(json_object_get(item, "greedy_ids"), texts[n].greedy);
        n++;
    }
    json_decref(golden);
    assert_true(n > 0);
    return n;
}

static void submit(struct mxc_engine *e, const int32_t *ids, int32_t n, int32_t max_tokens,
                   float temperature, struct sink *sink) {
    struct mxc_prompt p = {.tokens = ids, .n_tokens = n, .adapter = -1};
    struct mxc_request_params params;
    struct mxc_err err = {.message = ""};
    uint64_t id;
    mxc_request_params_init(&params);
    params.event = sink_event;
    params.user = sink;
    params.max_tokens = max_tokens;
    params.n_logprobs = 4;
    params.sampling.temperature = temperature;
    params.sampling.seed = (uint64_t)n;
    memset(sink, 0, sizeof *sink);
    if (mxc_engine_submit(e, &p, &params, &id, &err))
        fail_msg("%s", err.message);
}

static void run_all(struct mxc_engine *e) {
    while (mxc_engine_step(e)) {
    }
}

static void golden_greedy(void **state) {
    (void)state;
    static struct text texts[8];
    static struct sink sinks[8];
    int n = read_texts(texts, 8);
    struct mxc_model *model = model_of(checkpoint, MXC_PRECISION_EXACT, 1);
    struct mxc_engine *e = engine_of(model, 40);
    for (int i = 0; i < n; i++)
        submit(e, texts[i].ids, texts[i].n, texts[i].n_greedy, 0, &sinks[i]);
    run_all(e);
    for (int i = 0; i < n; i++) {
        assert_int_equal(sinks[i].reason, MXC_DONE_LENGTH);
        assert_int_equal(sinks[i].n, texts[i].n_greedy);
        assert_memory_equal(sinks[i].ids, texts[i].greedy,
                            (size_t)texts[i].n_greedy * sizeof(int32_t));
    }
    mxc_engine_free(e);
    mxc_model_close(model);
}

static void assert_same(const struct sink *a, const struct sink *b) {
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->ids, b->ids, (size_t)a->n * sizeof(int32_t));
    assert_memory_equal(a->logprobs, b->logprobs, (size_t)a->n * sizeof(float));
    assert_memory_equal(a->top, b->top, sizeof a->top);
}

static void invariance(const char *path, enum mxc_precision precision) {
    enum { N = 17, MAX_TOKENS = 12, MOST = 130 };
    static int32_t prompts[N][MOST], lengths[N];
    static struct sink alone[N], sinks[N];
    struct mxc_model *model = model_of(path, precision, 1);
    int32_t vocab = model->checkpoint->graph->vocab;
    for (int i = 0; i < N; i++) {
        lengths[i] = 1 + (i * 37) % MOST;
        for (int32_t j = 0; j < lengths[i]; j++)
            prompts[i][j] = (j < 40 ? j * 11 + 5 : j * (i + 3) * 7 + 1) % vocab;
    }
    struct mxc_engine *e = engine_of(model, 256);
    for (int i = 0; i < N; i++) {
        mxc_engine_clear_cache(e);
        submit(e, prompts[i], lengths[i], MAX_TOKENS, i % 2 ? 0.8f : 0, &alone[i]);
        run_all(e);
        assert_int_equal(alone[i].n, MAX_TOKENS);
    }
    /* again, after a hit */
    int hits = 0;
    for (int i = 0; i < N; i++) {
        submit(e, prompts[i], lengths[i], MAX_TOKENS, i % 2 ? 0.8f : 0, &sinks[i]);
        run_all(e);
        hits += sinks[i].stats.n_cached > 0;
        assert_same(&alone[i], &sinks[i]);
    }
    assert_true(hits > 5);
    mxc_engine_free(e);
    /* in batches, through chunks of all sizes, on one thread and on two */
    static const int32_t batches[] = {2, 3, 8, 17}, rows[] = {18, 25, 82, 256};
    for (int threads = 1; threads <= 2; threads++) {
        if (threads == 2) {
            mxc_model_close(model);
            model = model_of(path, precision, 2);
        }
        for (int c = 0; c < 4; c++) {
            e = engine_of(model, rows[c]);
            for (int first = 0; first < N; first += batches[c]) {
                for (int i = first; i < N && i < first + batches[c]; i++)
                    submit(e, prompts[i], lengths[i], MAX_TOKENS, i % 2 ? 0.8f : 0, &sinks[i]);
                run_all(e);
            }
            for (int i = 0; i < N; i++)
                assert_same(&alone[i], &sinks[i]);
            mxc_engine_free(e);
        }
    }
    mxc_model_close(model);
}

static void invariance_exact(void **state) {
    (void)state;
    invariance(checkpoint, MXC_PRECISION_EXACT);
}

static void invariance_fast(void **state) {
    (void)state;
    invariance(MXC_TEST_DATA "/golden/llama_gguf_q4_1/model.gguf", MXC_PRECISION_FAST);
}

/* Latent KV, and experts; its blocks are cached and counted like those of full attention. */
static void latent_kind(void **state) {
    (void)state;
    const char *path = MXC_TEST_DATA "/golden/deepseek_v3";
    struct mxc_load_options options;
    struct mxc_checkpoint *c = NULL;
    struct mxc_memory_estimate e;
    struct mxc_err err;
    mxc_load_options_init(&options);
    assert_int_equal(mxc_checkpoint_open(path, &c, &err), MXC_OK);
    assert_int_equal(mxc_checkpoint_estimate(c, &options, 128, 1, &e, &err), MXC_OK);
    assert_true(e.kv > 0);
    assert_int_equal(e.kv, e.kv_kinds[MXC_KV_LATENT]);
    assert_int_equal(e.kv, e.kv_per_token * 128);
    mxc_checkpoint_close(c);
    invariance(path, MXC_PRECISION_EXACT);
}

static bool stop_early(void *user, double fraction) {
    *(double *)user = fraction;
    return false;
}

static void estimates_and_errors(void **state) {
    (void)state;
    struct mxc_load_options options;
    struct mxc_checkpoint *c = NULL;
    struct mxc_memory_estimate one, two;
    struct mxc_model *model = NULL;
    struct mxc_err err;
    mxc_load_options_init(&options);
    options.max_rows = 256;
    options.max_batch = options.max_out = 17;
    assert_int_equal(mxc_checkpoint_open(checkpoint, &c, &err), MXC_OK);
    assert_int_equal(mxc_checkpoint_context(c), 2048);
    assert_int_equal(mxc_checkpoint_estimate(c, &options, 1024, 1, &one, &err), MXC_OK);
    assert_int_equal(mxc_checkpoint_estimate(c, &options, 1024, 2, &two, &err), MXC_OK);
    assert_int_equal(two.kv, 2 * one.kv);
    assert_int_equal(one.kv, one.kv_per_token * 1024);
    assert_int_equal(one.kv, one.kv_kinds[MXC_KV_FULL]);
    assert_true(one.weights > 100000 && one.activations > 0);
    assert_int_equal(one.total, one.weights + one.kv + one.activations + one.overhead);
    assert_true(one.overhead > 1 << 20);
    assert_int_equal(mxc_checkpoint_estimate(c, &options, 0, 1, &one, &err), MXC_E_ARG);
    options.backend = "abacus";
    assert_int_equal(mxc_checkpoint_estimate(c, &options, 10, 1, &one, &err), MXC_E_UNSUPPORTED);
    assert_int_equal(mxc_model_open(checkpoint, &options, &model, &err), MXC_E_UNSUPPORTED);
    options.backend = NULL;
    /* what does not fit is refused before anything is packed, unless it is forced */
    options.context = 1024;
    options.memory = one.total - 1;
    assert_int_equal(mxc_model_open(checkpoint, &options, &model, &err), MXC_E_LIMIT);
    assert_non_null(strstr(err.message, "KV of 1024 tokens"));
    assert_non_null(strstr(err.message, "MiB are available"));
    options.force = true;
    assert_int_equal(mxc_model_open(checkpoint, &options, &model, &err), MXC_OK);
    mxc_model_close(model);
    options.force = false;
    options.memory = one.total;
    assert_int_equal(mxc_model_open(checkpoint, &options, &model, &err), MXC_OK);
    int32_t all[MXC_N_KV_KINDS]; /* the context that was asked for, though it is over the half */
    assert_int_equal(mxc_model_blocks(model, 1024, 1, 0, 0, all, &err), MXC_OK);
    assert_int_equal(all[MXC_KV_FULL], 32);
    mxc_model_close(model);
    options.context = 0;
    options.memory = 0;
    /* what was estimated is what is taken */
    model = model_of(checkpoint, MXC_PRECISION_AUTO, 1);
    assert_int_equal(model->memory.weights_bytes, one.weights);
    /* blocks within a budget */
    int32_t n[MXC_N_KV_KINDS];
    uint64_t token = one.kv_per_token;
    assert_int_equal(mxc_model_blocks(model, 1024, 4, 0, token * 1600, n, &err), MXC_OK);
    assert_int_equal(n[MXC_KV_FULL], 50);
    assert_int_equal(mxc_model_blocks(model, 1024, 4, 640, token * 1600, n, &err), MXC_OK);
    assert_int_equal(n[MXC_KV_FULL], 20);
    assert_int_equal(mxc_model_blocks(model, 1024, 4, 0, 0, n, &err), MXC_OK);
    assert_int_equal(n[MXC_KV_FULL], 128);
    assert_int_equal(mxc_model_blocks(model, 1024, 4, 0, token * 255, n, &err), MXC_E_LIMIT);
    assert_int_equal(mxc_model_blocks(model, 64, 4, 0, token * 64, n, &err), MXC_OK);
    assert_int_equal(mxc_model_blocks(model, 0, 4, 0, 0, n, &err), MXC_E_ARG);
    mxc_model_close(model);
    mxc_checkpoint_close(c);
    /* cancelled, missing, broken, out of memory */
    double fraction = -1;
    model = NULL;
    options.progress = stop_early;
    options.progress_user = &fraction;
    assert_int_equal(mxc_model_open(checkpoint, &options, &model, &err), MXC_E_CANCELLED);
    assert_true(fraction >= 0 && fraction <= 1);
    options.progress = NULL;
    assert_int_equal(mxc_model_open("/nowhere", &options, &model, &err), MXC_E_NOT_FOUND);
    assert_null(model);
    assert_true(mxc_memory_available() > 1 << 20);
}

static void out_of_memory(void **state) {
    (void)state;
    struct mxc_load_options options;
    struct mxc_model *model = NULL;
    int n_failed = 0;
    mxc_load_options_init(&options);
    options.n_threads = 1;
    for (uint64_t at = 1; !model && at < 1000000; at += 1 + at / 16) {
        mxc_mem_fail_at(at);
        enum mxc_code code = mxc_model_open(checkpoint, &options, &model, NULL);
        mxc_mem_fail_at(0);
        assert_true(!code == (model != NULL));
        n_failed += code != MXC_OK;
    }
    assert_true(n_failed > 10);
    mxc_model_close(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_greedy),        cmocka_unit_test(invariance_exact),
        cmocka_unit_test(invariance_fast),      cmocka_unit_test(latent_kind),
        cmocka_unit_test(estimates_and_errors), cmocka_unit_test(out_of_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
