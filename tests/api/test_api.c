/* The public library: models, text, engines, their errors, and failing allocations. */
#define _GNU_SOURCE
#include "test.h"

#include "base/mem.h"
#include "mlxcel.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LLAMA MXC_TEST_DATA "/golden/llama"
#define GGUF  MXC_TEST_DATA "/golden/llama_gguf_q4_k/model.gguf"

static struct mlxcel_model *open_model(const char *path, int max_sequences) {
    struct mlxcel_model_options options;
    struct mlxcel_model *model = NULL;
    struct mlxcel_error error;
    mlxcel_model_options_init(&options);
    options.max_sequences = max_sequences;
    options.threads = 2;
    if (mlxcel_model_open(path, &options, &model, &error))
        fail_msg("%s", error.message);
    return model;
}

static struct mlxcel_engine *open_engine(struct mlxcel_model *model) {
    struct mlxcel_engine *engine = NULL;
    struct mlxcel_error error;
    if (mlxcel_engine_new(model, &engine, &error))
        fail_msg("%s", error.message);
    return engine;
}

static struct mlxcel_request greedy(const struct mlxcel_model *model, const char *prompt, int n) {
    struct mlxcel_request request;
    mlxcel_request_init(model, &request);
    request.prompt = prompt;
    request.max_tokens = n;
    request.sampling.temperature = 0;
    request.ignore_eos = true;
    return request;
}

/* Runs one request to its end; text has room for size bytes. Returns the DONE event. */
static struct mlxcel_event answer(struct mlxcel_engine *engine,
                                  const struct mlxcel_request *request, char *text, size_t size) {
    struct mlxcel_event e;
    struct mlxcel_error error;
    uint64_t id;
    size_t used = 0;
    text[0] = 0;
    if (mlxcel_engine_submit(engine, request, &id, &error))
        fail_msg("%s", error.message);
    do {
        assert_true(mlxcel_engine_next(engine, 60000, &e));
        assert_true(e.request == id);
        size_t n = strlen(e.text);
        assert_true(used + n < size);
        memcpy(text + used, e.text, n + 1);
        used += n;
    } while (e.type != MLXCEL_EVENT_DONE);
    return e;
}

static void model_tells_what_it_is(void **state) {
    (void)state;
    struct mlxcel_model *model = open_model(GGUF, 2);
    struct mlxcel_model_info info;
    mlxcel_model_info(model, &info);
    assert_string_equal(info.family, "llama");
    assert_non_null(strstr(info.quantisation, "Q4_K"));
    assert_int_equal(info.vocab, 720);
    assert_true(info.layers > 0 && info.parameters > 100000 && info.context == 2048);
    assert_true(*info.plan);
    mlxcel_model_close(model);
}

static void wrong_paths_and_options_are_named(void **state) {
    (void)state;
    struct mlxcel_model *model = NULL;
    struct mlxcel_model_options options;
    struct mlxcel_error error;
    assert_int_equal(mlxcel_model_open("/nowhere/x", NULL, &model, &error), MLXCEL_NOT_FOUND);
    assert_non_null(strstr(error.message, "/nowhere/x"));
    mlxcel_model_options_init(&options);
    options.max_sequences = 0;
    assert_int_equal(mlxcel_model_open(LLAMA, &options, &model, &error), MLXCEL_ARGUMENT);
    assert_non_null(strstr(error.message, "max_sequences"));
    mlxcel_model_options_init(&options);
    options.backend = "quantum";
    assert_int_equal(mlxcel_model_open(LLAMA, &options, &model, &error), MLXCEL_UNSUPPORTED);
    assert_non_null(strstr(error.message, "cpu"));
    assert_null(model);
}

static void text_goes_to_ids_and_back(void **state) {
    (void)state;
    struct mlxcel_model_options options;
    struct mlxcel_model *model;
    struct mlxcel_engine *engine;
    struct mlxcel_error error;
    mlxcel_model_options_init(&options);
    options.tokenizer_only = true;
    assert_int_equal(mlxcel_model_open(LLAMA, &options, &model, &error), MLXCEL_OK);
    static const char text[] = "Où est la clé? \xF0\x9F\x9A\x80";
    int32_t *ids, *with_bos;
    size_t n, n_with_bos, length;
    char *back;
    assert_int_equal(mlxcel_tokenize(model, text, sizeof text - 1, 0, &ids, &n, &error), 0);
    assert_int_equal(mlxcel_tokenize(model, text, sizeof text - 1, MLXCEL_ADD_SPECIAL, &with_bos,
                                     &n_with_bos, &error),
                     0);
    assert_int_equal(n_with_bos, n + 1);
    assert_memory_equal(with_bos + 1, ids, n * sizeof *ids);
    assert_int_equal(mlxcel_detokenize(model, with_bos, n_with_bos, true, &back, &length, &error),
                     0);
    assert_string_equal(back, text);
    assert_int_equal(length, sizeof text - 1);
    mlxcel_free(ids);
    mlxcel_free(with_bos);
    mlxcel_free(back);
    assert_int_equal(mlxcel_tokenize(model, "", 0, 0, &ids, &n, &error), 0);
    assert_int_equal(n, 0);
    assert_non_null(ids);
    mlxcel_free(ids);
    assert_int_equal(mlxcel_engine_new(model, &engine, &error), MLXCEL_ARGUMENT);
    mlxcel_model_close(model);
}

static void users_cannot_write_control_tokens(void **state) {
    (void)state;
    struct mlxcel_model_options options;
    struct mlxcel_model *model;
    struct mlxcel_error error;
    int32_t *ids, *eot;
    size_t n, n_eot, count = 0, plain = 0;
    mlxcel_model_options_init(&options);
    options.tokenizer_only = true;
    assert_int_equal(mlxcel_model_open(LLAMA, &options, &model, &error), MLXCEL_OK);
    assert_int_equal(
        mlxcel_tokenize(model, "<|eot_id|>", 10, MLXCEL_PARSE_SPECIAL, &eot, &n_eot, &error), 0);
    assert_int_equal(n_eot, 1);
    static const char *const said[] = {
        "[{\"role\":\"user\",\"content\":\"hi\"}]",
        "[{\"role\":\"user\",\"content\":\"hi<|eot_id|><|eot_id|>\"}]"};
    for (int k = 0; k < 2; k++) {
        assert_int_equal(mlxcel_tokenize_messages(model, said[k], NULL, &ids, &n, &error), 0);
        size_t *sum = k ? &count : &plain;
        for (size_t i = 0; i < n; i++)
            *sum += ids[i] == eot[0];
        mlxcel_free(ids);
    }
    assert_true(plain > 0);
    assert_int_equal(count, plain);
    assert_int_equal(mlxcel_tokenize_messages(model, "{}", NULL, &ids, &n, &error),
                     MLXCEL_ARGUMENT);
    assert_int_equal(mlxcel_tokenize_messages(model, "[", NULL, &ids, &n, &error), MLXCEL_ARGUMENT);
    mlxcel_free(eot);
    mlxcel_model_close(model);
}

static void requests_give_text_and_figures(void **state) {
    (void)state;
    struct mlxcel_model *model = open_model(LLAMA, 4);
    struct mlxcel_engine *engine = open_engine(model);
    struct mlxcel_request request = greedy(model, "The lamp on the desk is", 8);
    char first[4096], second[4096];
    struct mlxcel_event e = answer(engine, &request, first, sizeof first);
    assert_int_equal(e.finish, MLXCEL_FINISH_LENGTH);
    assert_int_equal(e.n_generated, 8);
    assert_true(e.n_prompt > 4 && *first);
    (void)answer(engine, &request, second, sizeof second);
    assert_string_equal(first, second);

    const char *middle = first + strlen(first) / 2;
    while (((unsigned char)*middle & 0xC0) == 0x80)
        middle--;
    request.stop = &middle;
    request.n_stop = 1;
    e = answer(engine, &request, second, sizeof second);
    assert_int_equal(e.finish, MLXCEL_FINISH_STOP);
    assert_null(strstr(second, middle));
    assert_memory_equal(first, second, strlen(second));
    mlxcel_engine_free(engine);
    mlxcel_model_close(model);
}

static void logprobs_are_finite_and_ordered(void **state) {
    (void)state;
    struct mlxcel_model *model = open_model(LLAMA, 1);
    struct mlxcel_engine *engine = open_engine(model);
    struct mlxcel_request request = greedy(model, "One", 5);
    struct mlxcel_event e;
    struct mlxcel_error error;
    uint64_t id;
    int tokens = 0;
    request.n_logprobs = 4;
    assert_int_equal(mlxcel_engine_submit(engine, &request, &id, &error), 0);
    for (;;) {
        assert_true(mlxcel_engine_next(engine, 60000, &e));
        if (e.type == MLXCEL_EVENT_DONE)
            break;
        if (e.type != MLXCEL_EVENT_TEXT || e.id < 0)
            continue;
        tokens++;
        assert_int_equal(e.n_top, 4);
        assert_int_equal(e.top[0].id, e.id);
        assert_true(isfinite(e.logprob) && e.logprob <= 0);
        for (int i = 1; i < 4; i++)
            assert_true(e.top[i].logprob <= e.top[i - 1].logprob);
    }
    assert_int_equal(tokens, 5);
    mlxcel_engine_free(engine);
    mlxcel_model_close(model);
}

static void neighbours_do_not_change_an_answer(void **state) {
    (void)state;
    enum { N = 6 };
    static const char *const prompts[N] = {"One", "Two boats", "A ferry crosses",
                                           "x",   "Le chat",   "1 2 3 4"};
    struct mlxcel_model *model = open_model(LLAMA, 4);
    struct mlxcel_engine *engine = open_engine(model);
    struct mlxcel_error error;
    char alone[N][1024], together[N][1024] = {{0}};
    uint64_t ids[N];
    for (int i = 0; i < N; i++) {
        struct mlxcel_request r = greedy(model, prompts[i], 12);
        (void)answer(engine, &r, alone[i], sizeof alone[i]);
    }
    for (int i = 0; i < N; i++) {
        struct mlxcel_request r = greedy(model, prompts[i], 12);
        assert_int_equal(mlxcel_engine_submit(engine, &r, &ids[i], &error), 0);
    }
    for (int left = N; left;) {
        struct mlxcel_event e;
        assert_true(mlxcel_engine_next(engine, 60000, &e));
        for (int i = 0; i < N; i++)
            if (ids[i] == e.request && strlen(together[i]) + strlen(e.text) < 1024)
                memcpy(together[i] + strlen(together[i]), e.text, strlen(e.text) + 1);
        left -= e.type == MLXCEL_EVENT_DONE;
    }
    for (int i = 0; i < N; i++)
        assert_string_equal(alone[i], together[i]);
    mlxcel_engine_free(engine);
    mlxcel_model_close(model);
}

static void requests_can_be_cancelled_and_refused(void **state) {
    (void)state;
    struct mlxcel_model *model = open_model(LLAMA, 1);
    struct mlxcel_engine *engine = open_engine(model);
    struct mlxcel_request request = greedy(model, "The", 1900);
    struct mlxcel_event e;
    struct mlxcel_error error;
    uint64_t id;
    assert_int_equal(mlxcel_engine_submit(engine, &request, &id, &error), 0);
    mlxcel_engine_cancel(engine, id);
    mlxcel_engine_cancel(engine, 999999);
    do
        assert_true(mlxcel_engine_next(engine, 60000, &e));
    while (e.type != MLXCEL_EVENT_DONE);
    assert_int_equal(e.finish, MLXCEL_FINISH_CANCELLED);
    assert_false(mlxcel_engine_next(engine, 0, &e));

    request.ids = &(int32_t){1};
    request.n_ids = 1;
    assert_int_equal(mlxcel_engine_submit(engine, &request, &id, &error), MLXCEL_ARGUMENT);
    request.prompt = NULL;
    request.ids = &(int32_t){720};
    assert_int_equal(mlxcel_engine_submit(engine, &request, &id, &error), MLXCEL_ARGUMENT);
    request.ids = &(int32_t){1};
    request.sampling.top_p = NAN;
    assert_int_equal(mlxcel_engine_submit(engine, &request, &id, &error), MLXCEL_ARGUMENT);
    int32_t *many = calloc(4000, sizeof *many);
    assert_non_null(many);
    request = greedy(model, NULL, 1);
    request.ids = many;
    request.n_ids = 4000;
    assert_int_equal(mlxcel_engine_submit(engine, &request, &id, &error), MLXCEL_CONTEXT);
    assert_non_null(strstr(error.message, "4000"));
    free(many);
    request = greedy(model, "x", 2000); /* still running when the engine goes */
    assert_int_equal(mlxcel_engine_submit(engine, &request, &id, &error), 0);
    mlxcel_engine_free(engine);
    mlxcel_model_close(model);
}

/* A plan takes one step at a time, so what runs a model has it alone. */
static void a_model_has_one_engine_at_a_time(void **state) {
    (void)state;
    struct mlxcel_model_options options;
    struct mlxcel_model *model, *other = open_model(LLAMA, 1);
    struct mlxcel_engine *second = NULL;
    struct mlxcel_trace *trace = NULL;
    struct mlxcel_error error;
    const struct mlxcel_bench bench = {.n_prompt = 4, .n_sequences = 1};
    double seconds = -1;
    mlxcel_model_options_init(&options);
    options.all_logits = true;
    assert_int_equal(mlxcel_model_open(LLAMA, &options, &model, &error), 0);
    struct mlxcel_engine *engine = open_engine(model), *others = open_engine(other);
    assert_int_equal(mlxcel_engine_new(model, &second, &error), MLXCEL_BUSY);
    assert_int_equal(mlxcel_trace_new(model, (int32_t[]){1}, 1, 1, &trace, &error), MLXCEL_BUSY);
    assert_int_equal(mlxcel_bench_run(model, &bench, 1, &seconds, &error), MLXCEL_BUSY);
    assert_true(!second && !trace && seconds < 0);
    struct mlxcel_request request = greedy(model, "One", 4);
    char a[256], b[256];
    (void)answer(engine, &request, a, sizeof a);
    (void)answer(others, &request, b, sizeof b);
    assert_string_equal(a, b);
    mlxcel_engine_free(engine);
    assert_int_equal(mlxcel_bench_run(model, &bench, 1, &seconds, &error), 0);
    assert_int_equal(mlxcel_trace_new(model, (int32_t[]){1}, 1, 1, &trace, &error), 0);
    mlxcel_trace_free(trace);
    mlxcel_engine_free(open_engine(model));
    mlxcel_engine_free(others);
    mlxcel_model_close(other);
    mlxcel_model_close(model);
}

/* A model may write NUL characters: the lengths tell. */
static void texts_may_hold_nul(void **state) {
    (void)state;
    struct mlxcel_model *model = open_model(LLAMA, 1);
    struct mlxcel_engine *engine = open_engine(model);
    struct mlxcel_request request = greedy(model, "One", 3);
    struct mlxcel_event e;
    struct mlxcel_error error;
    int32_t *ids;
    size_t n, length = 0, total = 0;
    uint64_t id;
    char *text;
    assert_int_equal(mlxcel_tokenize(model, "", 1, 0, &ids, &n, &error), 0);
    assert_int_equal(n, 1);
    const struct mlxcel_logit_bias bias = {ids[0], 1000};
    request.logit_bias = &bias;
    request.n_logit_bias = 1;
    assert_int_equal(mlxcel_engine_submit(engine, &request, &id, &error), 0);
    do {
        assert_true(mlxcel_engine_next(engine, 60000, &e));
        for (size_t i = 0; i < e.text_length; i++)
            assert_int_equal(e.text[i], 0);
        total += e.text_length;
        assert_int_equal(e.reasoning_length, 0);
    } while (e.type != MLXCEL_EVENT_DONE);
    assert_int_equal(total, 3);
    static const char vars[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\\u0000b\"}]}";
    assert_int_equal(mlxcel_render(model, vars, &text, &length, &error), 0);
    assert_true(length > strlen(text) && !text[length]);
    assert_non_null(memmem(text, length, "a\0b", 3));
    mlxcel_free(text);
    mlxcel_free(ids);
    mlxcel_engine_free(engine);
    mlxcel_model_close(model);
}

/* Wild ids: what is streamed, joined, is the text of all ids. Byte-level and byte-fallback. */
static void streamed_text_is_the_whole(void **state) {
    (void)state;
    static const char *const paths[] = {LLAMA, MXC_TEST_DATA "/golden/mistral"};
    for (int k = 0; k < 2; k++) {
        struct mlxcel_model *model = open_model(paths[k], 1);
        struct mlxcel_engine *engine = open_engine(model);
        for (uint64_t seed = 1; seed <= 6; seed++) {
            struct mlxcel_request request = greedy(model, "One", 150);
            struct mlxcel_event e;
            struct mlxcel_error error;
            int32_t ids[150];
            char joined[8192], *whole;
            size_t n = 0, used = 0, length;
            uint64_t id;
            request.sampling.temperature = 8;
            request.sampling.top_k = 0;
            request.sampling.top_p = 1;
            request.sampling.min_p = 0;
            request.sampling.seed = seed;
            assert_int_equal(mlxcel_engine_submit(engine, &request, &id, &error), 0);
            do {
                assert_true(mlxcel_engine_next(engine, 60000, &e));
                assert_true(used + e.text_length < sizeof joined);
                memcpy(joined + used, e.text, e.text_length);
                used += e.text_length;
                if (e.type == MLXCEL_EVENT_TEXT && e.id >= 0)
                    ids[n++] = e.id;
            } while (e.type != MLXCEL_EVENT_DONE);
            assert_int_equal(mlxcel_detokenize(model, ids, n, true, &whole, &length, &error), 0);
            assert_int_equal(used, length);
            assert_memory_equal(joined, whole, length);
            mlxcel_free(whole);
        }
        mlxcel_engine_free(engine);
        mlxcel_model_close(model);
    }
}

static void count_warning(mlxcel_log_level level, const char *line, void *user) {
    if (level == MLXCEL_LOG_WARN && strstr(line, "context"))
        ++*(int *)user;
}

static void contexts_have_ends(void **state) {
    (void)state;
    struct mlxcel_model_options options;
    struct mlxcel_model *model;
    struct mlxcel_model_info info;
    struct mlxcel_error error;
    uint64_t id;
    int warnings = 0;
    char text[4096];
    mlxcel_model_options_init(&options);
    options.context = 1;
    assert_int_equal(mlxcel_model_open(LLAMA, &options, &model, &error), MLXCEL_ARGUMENT);
    assert_non_null(strstr(error.message, "context"));
    mlxcel_log_set(count_warning, MLXCEL_LOG_WARN, &warnings);
    options.context = 1 << 20;
    assert_int_equal(mlxcel_model_open(LLAMA, &options, &model, &error), 0);
    mlxcel_log_set(NULL, MLXCEL_LOG_WARN, NULL);
    mlxcel_model_info(model, &info);
    assert_true(warnings == 1 && info.context == info.trained_context);
    mlxcel_model_close(model);
    options.context = 8;
    assert_int_equal(mlxcel_model_open(LLAMA, &options, &model, &error), 0);
    struct mlxcel_engine *engine = open_engine(model);
    struct mlxcel_request request = greedy(model, NULL, -1);
    request.ids = (int32_t[]){1, 2, 3, 4, 5, 6, 7, 8};
    request.n_ids = 8;
    assert_int_equal(mlxcel_engine_submit(engine, &request, &id, &error), MLXCEL_CONTEXT);
    request.n_ids = 7;
    struct mlxcel_event e = answer(engine, &request, text, sizeof text);
    assert_true(e.finish == MLXCEL_FINISH_LENGTH && e.n_generated == 1);
    request.max_tokens = 0;
    e = answer(engine, &request, text, sizeof text);
    assert_true(e.finish == MLXCEL_FINISH_LENGTH && e.n_generated == 0 && !*text);
    request.n_ids = 0;
    assert_int_equal(mlxcel_engine_submit(engine, &request, &id, &error), MLXCEL_ARGUMENT);
    request.n_ids = 1;
    request.n_logprobs = -1;
    assert_int_equal(mlxcel_engine_submit(engine, &request, &id, &error), MLXCEL_ARGUMENT);
    request.n_logprobs = 65;
    assert_int_equal(mlxcel_engine_submit(engine, &request, &id, &error), MLXCEL_ARGUMENT);
    request = greedy(model, NULL, 1);
    request.messages_json = "[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]";
    assert_int_equal(mlxcel_engine_submit(engine, &request, &id, &error), MLXCEL_UNSUPPORTED);
    assert_non_null(strstr(error.message, "images"));
    mlxcel_engine_free(engine);
    mlxcel_model_close(model);
}

static void a_long_prompt_tells_its_progress(void **state) {
    (void)state;
    struct mlxcel_model_options options;
    struct mlxcel_model *model;
    struct mlxcel_error error;
    struct mlxcel_event e;
    int32_t ids[200];
    int64_t done = 0;
    int parts = 0;
    uint64_t id;
    mlxcel_model_options_init(&options);
    options.max_chunk = 32;
    options.max_sequences = 1;
    assert_int_equal(mlxcel_model_open(LLAMA, &options, &model, &error), 0);
    struct mlxcel_engine *engine = open_engine(model);
    struct mlxcel_request request = greedy(model, NULL, 1);
    for (int i = 0; i < 200; i++)
        ids[i] = i;
    request.ids = ids;
    request.n_ids = 200;
    assert_int_equal(mlxcel_engine_submit(engine, &request, &id, &error), 0);
    for (;;) {
        assert_true(mlxcel_engine_next(engine, 60000, &e));
        if (e.type != MLXCEL_EVENT_PROMPT)
            break;
        assert_true(e.n_prompt == 200 && e.n_prompt_done > done);
        done = e.n_prompt_done;
        parts++;
    }
    assert_int_equal(done, 200);
    assert_true(parts >= 200 / 32);
    mlxcel_engine_free(engine);
    mlxcel_model_close(model);
}

static void trace_agrees_with_the_engine(void **state) {
    (void)state;
    struct mlxcel_model_options options;
    struct mlxcel_model *model;
    struct mlxcel_trace *trace;
    struct mlxcel_error error;
    static const int32_t ids[] = {704, 612, 584, 358};
    mlxcel_model_options_init(&options);
    options.all_logits = true;
    options.precision = MLXCEL_PRECISION_EXACT;
    assert_int_equal(mlxcel_model_open(LLAMA, &options, &model, &error), 0);
    assert_int_equal(mlxcel_trace_new(model, ids, 4, 6, &trace, &error), 0);
    assert_true(trace->n_tokens == 4 && trace->n_steps == 6);
    for (size_t i = 0; i < trace->n_tokens * (size_t)(trace->layers + 2); i++)
        assert_true(trace->layer_l2[i] > 0);
    struct mlxcel_engine *engine = open_engine(model);
    struct mlxcel_request request = greedy(model, NULL, 6);
    struct mlxcel_event e;
    uint64_t id;
    request.ids = ids;
    request.n_ids = 4;
    assert_int_equal(mlxcel_engine_submit(engine, &request, &id, &error), 0);
    for (size_t i = 0; i < 6;) {
        assert_true(mlxcel_engine_next(engine, 60000, &e));
        if (e.type == MLXCEL_EVENT_TEXT && e.id >= 0)
            assert_int_equal(e.id, trace->greedy_ids[i++]);
    }
    mlxcel_engine_free(engine);
    mlxcel_trace_free(trace);
    assert_int_equal(mlxcel_trace_new(model, (int32_t[]){9999}, 1, 1, &trace, &error),
                     MLXCEL_ARGUMENT);
    mlxcel_model_close(model);
}

static void estimate_covers_what_loading_takes(void **state) {
    (void)state;
    struct mlxcel_memory small, large;
    struct mlxcel_error error;
    assert_int_equal(mlxcel_model_estimate(LLAMA, NULL, 256, 1, &small, &error), 0);
    assert_int_equal(mlxcel_model_estimate(LLAMA, NULL, 2048, 4, &large, &error), 0);
    assert_true(small.fits && small.weights == large.weights);
    assert_true(large.kv == large.kv_full &&
                large.total == large.kv + large.weights + large.activations + large.overhead);
    assert_true(large.kv > 20 * small.kv && small.kv >= 256 * small.kv_per_token);
    assert_int_equal(mlxcel_model_estimate(LLAMA, NULL, -1, 1, &small, &error), MLXCEL_ARGUMENT);
}

static bool never(void *user, double fraction) {
    (void)user;
    (void)fraction;
    return false;
}

static void loading_can_be_cancelled(void **state) {
    (void)state;
    struct mlxcel_model_options options;
    struct mlxcel_model *model = NULL;
    struct mlxcel_error error;
    mlxcel_model_options_init(&options);
    options.progress = never;
    assert_int_equal(mlxcel_model_open(LLAMA, &options, &model, &error), MLXCEL_CANCELLED);
    assert_null(model);
}

/* Opens, answers and closes; false when something was refused. */
static bool whole_life(void) {
    struct mlxcel_model_options options;
    struct mlxcel_model *model = NULL;
    struct mlxcel_engine *engine = NULL;
    struct mlxcel_request request;
    struct mlxcel_event e;
    struct mlxcel_error error;
    uint64_t id;
    bool ok = false;
    mlxcel_model_options_init(&options);
    options.threads = 1;
    options.max_sequences = 1;
    options.context = 64;
    if (mlxcel_model_open(LLAMA, &options, &model, &error) ||
        mlxcel_engine_new(model, &engine, &error))
        goto out;
    request = greedy(model, NULL, 3);
    request.messages_json = "[{\"role\":\"user\",\"content\":\"hi\"}]";
    if (mlxcel_engine_submit(engine, &request, &id, &error))
        goto out;
    do {
        if (!mlxcel_engine_next(engine, 60000, &e))
            goto out;
    } while (e.type != MLXCEL_EVENT_DONE);
    ok = e.finish != MLXCEL_FINISH_ERROR;
out:
    mlxcel_engine_free(engine);
    mlxcel_model_close(model);
    return ok;
}

static void every_failed_allocation_ends_cleanly(void **state) {
    (void)state;
    mxc_mem_fail_at(0);
    assert_true(whole_life());
    uint64_t calls = mxc_mem_calls(), failures = 0;
    assert_true(calls > 100);
    /* every one of the last ones (engine, request), and a spread of those of loading */
    for (uint64_t n = 1; n <= calls + 8; n += n + 160 < calls ? 1 + calls / 150 : 1) {
        mxc_mem_fail_at(n);
        failures += !whole_life();
    }
    mxc_mem_fail_at(0);
    assert_true(failures > 100);
    assert_true(whole_life());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(model_tells_what_it_is),
        cmocka_unit_test(wrong_paths_and_options_are_named),
        cmocka_unit_test(text_goes_to_ids_and_back),
        cmocka_unit_test(users_cannot_write_control_tokens),
        cmocka_unit_test(requests_give_text_and_figures),
        cmocka_unit_test(logprobs_are_finite_and_ordered),
        cmocka_unit_test(neighbours_do_not_change_an_answer),
        cmocka_unit_test(requests_can_be_cancelled_and_refused),
        cmocka_unit_test(a_model_has_one_engine_at_a_time),
        cmocka_unit_test(texts_may_hold_nul),
        cmocka_unit_test(streamed_text_is_the_whole),
        cmocka_unit_test(contexts_have_ends),
        cmocka_unit_test(a_long_prompt_tells_its_progress),
        cmocka_unit_test(trace_agrees_with_the_engine),
        cmocka_unit_test(estimate_covers_what_loading_takes),
        cmocka_unit_test(loading_can_be_cancelled),
        cmocka_unit_test(every_failed_allocation_ends_cleanly),
    };
    return cmocka_run_group_tests_name("api", tests, NULL, NULL);
}
