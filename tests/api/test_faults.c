/* Memory that runs out: checkpoints of several kinds are opened, answer a request and are closed
 * while the n-th allocation fails, with all after it and then alone, those of the engine's threads
 * included. Each time there is an answer as without a failure, or an error that speaks of memory;
 * what is left over is for the leak check of the sanitizers. jansson's own allocations do not fail
 * here: its parser passes some of them off as errors of syntax.
 * A spread of n; with MLXCEL_TEST_EVERY set, every n. */
#define _GNU_SOURCE
#include "test.h"

#include "base/mem.h"
#include "base/mem_fail.h"
#include "mlxcel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TEXT = 1024 };

struct kind {
    const char *path; /* below tests/data/golden */
    bool chat;        /* it has a template */
};

static const struct kind kinds[] = {
    {"llama", true},       {"llama_mlx_q4_g64", true}, {"llama_gguf_q4_k/model.gguf", true},
    {"mixtral", true},     {"deepseek_v3", true},      {"llama_gptq_q4", false},
    {"gemma3_text", true}, {"gpt_oss", true},
};

static void fill(struct mlxcel_request *request, const struct kind *kind) {
    static const char *const stops[] = {"never said", "nor this"};
    static const struct mlxcel_logit_bias bias[] = {{5, -1}, {6, 0.5f}};
    if (kind->chat)
        request->messages_json = "[{\"role\":\"user\",\"content\":\"Say it: 12 caf\xC3\xA9s\"}]";
    else
        request->prompt = "Say it: 12 caf\xC3\xA9s";
    request->max_tokens = 4;
    request->ignore_eos = true;
    request->sampling.temperature = 0;
    request->sampling.repetition_penalty = 1.1f;
    request->n_logprobs = 2;
    request->stop = stops;
    request->n_stop = 2;
    request->logit_bias = bias;
    request->n_logit_bias = 2;
}

/* Reads events to the end; the error of a request that ended with one. */
static mlxcel_status listen(struct mlxcel_engine *engine, char text[MAX_TEXT]) {
    struct mlxcel_event e;
    do {
        if (!mlxcel_engine_next(engine, 60000, &e))
            fail_msg("%s", "the engine fell silent");
        if (e.type == MLXCEL_EVENT_TEXT)
            (void)snprintf(text + strlen(text), MAX_TEXT - strlen(text), "%d:%s|%s ", (int)e.id,
                           e.reasoning, e.text);
    } while (e.type != MLXCEL_EVENT_DONE);
    return e.finish == MLXCEL_FINISH_ERROR ? e.error.status : MLXCEL_OK;
}

static mlxcel_status live(const struct kind *kind, char text[MAX_TEXT]) {
    struct mlxcel_model_options options;
    struct mlxcel_model *model = NULL;
    struct mlxcel_engine *engine = NULL;
    struct mlxcel_request request;
    struct mlxcel_error error = {.message = ""};
    char path[1024];
    uint64_t id;
    mlxcel_status status;
    (void)snprintf(path, sizeof path, "%s/golden/%s", MXC_TEST_DATA, kind->path);
    text[0] = 0;
    mlxcel_model_options_init(&options);
    options.threads = 1;
    options.max_sequences = 1;
    options.max_chunk = 32;
    options.context = 128;
    if ((status = mlxcel_model_open(path, &options, &model, &error)) ||
        (status = mlxcel_engine_new(model, &engine, &error)))
        goto out;
    mlxcel_request_init(model, &request);
    fill(&request, kind);
    if (!(status = mlxcel_engine_submit(engine, &request, &id, &error)))
        status = listen(engine, text);
out:
    mlxcel_engine_free(engine);
    mlxcel_model_close(model);
    if (status && status != MLXCEL_NO_MEMORY)
        (void)snprintf(text, MAX_TEXT, "%s: %.400s", mlxcel_status_name(status), error.message);
    return status;
}

static void set_failure(uint64_t n, bool once) {
    if (once)
        mxc_mem_fail_once(n);
    else
        mxc_mem_fail_at(n);
}

static void sweep(const struct kind *kind, bool once) {
    enum { POINTS = 24, LAST = 8 };
    char right[MAX_TEXT], text[MAX_TEXT];
    bool every = getenv("MLXCEL_TEST_EVERY") != NULL;
    set_failure(0, false);
    assert_int_equal(live(kind, right), MLXCEL_OK);
    assert_true(strlen(right) > 0);
    uint64_t calls = mxc_mem_calls(), failures = 0, runs = 0, wrong = 0;
    assert_true(calls > 100);
    uint64_t stride = every ? 1 : calls / POINTS;
    for (uint64_t n = 1; n <= calls + 2; n += n + LAST < calls ? stride : 1, runs++) {
        set_failure(n, once);
        mlxcel_status status = live(kind, text);
        bool hit = mxc_mem_calls() >= n;
        failures += status != MLXCEL_OK;
        bool fine = status ? status == MLXCEL_NO_MEMORY && hit : !strcmp(text, right);
        if (!fine && wrong++ < 10)
            print_error("%s%s: allocation %d failed: %s; without a failure: %s\n", kind->path,
                        once ? ", one" : "", (int)n, text, right);
    }
    set_failure(0, false);
    assert_int_equal(live(kind, text), MLXCEL_OK);
    assert_string_equal(text, right);
    print_message("%s%s: %d allocations, %d runs, %d failed\n", kind->path, once ? ", one" : "",
                  (int)calls, (int)runs, (int)failures);
    assert_int_equal(wrong, 0);
    assert_true(failures * 10 >= runs * 8);
}

static void memory_runs_out(void **state) {
    sweep(*state, false);
    sweep(*state, true);
}

int main(void) {
    enum { N = sizeof kinds / sizeof *kinds };
    struct CMUnitTest tests[N];
    for (size_t i = 0; i < N; i++)
        tests[i] = (struct CMUnitTest){kinds[i].path, memory_runs_out, NULL, NULL,
                                       (void *)(uintptr_t)&kinds[i]};
    return cmocka_run_group_tests_name("faults", tests, NULL, NULL);
}
