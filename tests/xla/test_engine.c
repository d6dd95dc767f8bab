/* Sessions on a plugin that computes nothing but counts and checks everything: the engine over the
 * whole backend. What a request runs on the device, where the tower really runs, a device that is
 * lost in the middle of a batch, and every call of the plugin failing in its turn: each request
 * ends once, whatever was made is destroyed once, and the plugin is never misused. Without the
 * device runtime: every step is the error NOT_WIRED. */
#define _GNU_SOURCE
#include "test.h"

#include <string.h>

#ifndef MLXCEL_XLA_DEVICE_RUNTIME

#include "engine/load.h"

static void expect_not_wired(enum mxc_code code, const struct mxc_err *err) {
    assert_int_equal(code, MXC_E_NOT_WIRED);
    assert_int_equal(err->code, MXC_E_NOT_WIRED);
    assert_string_equal(err->message, "XLA: this build has no device runtime: rebuild with "
                                      "-DMLXCEL_XLA_DEVICE_RUNTIME=ON");
}

/* Plans and stores are there; a prefill, a decode and a batch of them are the typed error. */
static void steps_are_not_wired(void **state) {
    (void)state;
    struct mxc_load_options o;
    struct mxc_model *m = NULL;
    struct mxc_state *kv = NULL;
    struct mxc_err err = {.message = ""};
    const int32_t n_blocks[MXC_N_KV_KINDS] = {4, 4, 4, 4}, table[] = {0, 1};
    const int32_t tokens[] = {5, 6, 7}, positions[] = {0, 1, 2}, out[] = {0, 1, 2};
    float logits[4096] = {0}, block[1] = {0};
    mxc_load_options_init(&o);
    o.backend = "xla";
    assert_int_equal(mxc_model_open(MXC_TEST_DATA "/golden/llama", &o, &m, &err), MXC_OK);
    assert_non_null(strstr(m->ops->plan_describe(m->plan), "no device"));
    assert_true(m->memory.weights_bytes > 0);
    assert_int_equal(m->ops->state_new(m->plan, n_blocks, &kv, &err), MXC_OK);
    struct mxc_span spans[3] = {{.row0 = 0, .n_rows = 3, .adapter = -1}};
    for (int k = 0; k < MXC_N_KV_KINDS; k++) {
        spans[0].blocks[k] = table;
        spans[0].n_blocks[k] = 2;
    }
    spans[1] = spans[2] = spans[0];
    struct mxc_step step = {.n_rows = 3,
                            .tokens = tokens,
                            .positions = positions,
                            .n_axes = 1,
                            .n_spans = 1,
                            .spans = spans,
                            .n_out = 1,
                            .out_row = &out[2]};
    struct mxc_out result = {.logits = logits};
    expect_not_wired(m->ops->run(m->plan, kv, &step, &result, &err), &err);
    spans[0].n_rows = step.n_rows = 1;
    spans[0].context = 3;
    step.out_row = out;
    expect_not_wired(m->ops->run(m->plan, kv, &step, &result, &err), &err);
    for (int i = 0; i < 3; i++)
        spans[i] = spans[0], spans[i].row0 = i;
    step.n_rows = step.n_spans = step.n_out = 3;
    expect_not_wired(m->ops->run(m->plan, kv, &step, &result, &err), &err);
    for (size_t i = 0; i < sizeof logits / sizeof *logits; i++)
        assert_true(logits[i] == 0);
    expect_not_wired(m->ops->state_export(kv, MXC_KV_FULL, 0, block, &err), &err);
    expect_not_wired(m->ops->state_import(kv, MXC_KV_FULL, 0, block, &err), &err);
    m->ops->state_free(kv);
    mxc_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(steps_are_not_wired)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

#include "backend/xla/pjrt.h"
#include "base/log.h"
#include "engine/grey.h"
#include "engine/load.h"

#include "fake_plugin.h"

#include <stdio.h>
#include <stdlib.h>

enum { CONTEXT = 128, BATCH = 3, N = 5, PROMPT = 20, TOKENS = 4 };

/* What came of a request. */
struct end {
    int n_tokens, n_done;
    enum mxc_done_reason reason;
    struct mxc_err err;
};

static bool on_event(void *user, const struct mxc_event *event) {
    struct end *end = user;
    end->n_tokens += event->kind == MXC_EVENT_TOKEN;
    if (event->kind == MXC_EVENT_DONE) {
        end->n_done++;
        end->reason = event->reason;
        if (event->err)
            end->err = *event->err;
    }
    return true;
}

static char logged[1024];
static void take_line(enum mxc_log_level level, const char *line, void *user) {
    (void)level;
    (void)user;
    (void)snprintf(logged, sizeof logged, "%s", line);
}

struct session {
    struct mxc_model *model;
    struct mxc_engine *engine;
    int n_lost;
};

static void on_lost(void *user, const struct mxc_err *err) {
    struct session *s = user;
    assert_int_equal(err->code, MXC_E_DEVICE_LOST);
    s->n_lost++;
}

static enum mxc_code session_open(struct session *s, const char *name, const char *policy,
                                  struct mxc_err *err) {
    struct mxc_load_options o;
    struct mxc_engine_options e;
    char path[256];
    *s = (struct session){.model = NULL};
    (void)snprintf(path, sizeof path, MXC_TEST_DATA "/golden/%s", name);
    mxc_load_options_init(&o);
    o.backend = "xla";
    o.n_threads = 1;
    o.max_batch = o.max_out = BATCH;
    o.max_rows = 64;
    o.context = CONTEXT;
    o.xla = (struct mxc_xla_given){.plugin = MXC_FAKE_PLUGIN, .vision = policy};
    logged[0] = 0;
    enum mxc_code code = mxc_model_open(path, &o, &s->model, err);
    if (code)
        return code;
    mxc_engine_options_init(&e);
    e.max_batch = BATCH;
    e.max_rows = s->model->options.max_rows;
    e.context = CONTEXT;
    e.lost = on_lost;
    e.lost_user = s;
    const struct mxc_engine_target target = mxc_model_target(s->model);
    code = mxc_model_blocks(s->model, CONTEXT, BATCH, 0, 0, e.n_blocks, err);
    if (!code)
        code = mxc_engine_new(&target, &e, &s->engine, err);
    return code;
}

static void session_close(struct session *s) {
    mxc_engine_free(s->engine);
    mxc_model_close(s->model);
}

static void must_open(struct session *s, const char *name, const char *policy) {
    struct mxc_err err = {.message = ""};
    if (session_open(s, name, policy, &err))
        fail_msg("%s: %s", name, err.message);
}

static enum mxc_code submit(struct mxc_engine *e, const struct mxc_prompt *prompt, struct end *end,
                            struct mxc_err *err) {
    struct mxc_request_params params;
    uint64_t id;
    *end = (struct end){.n_tokens = 0};
    mxc_request_params_init(&params);
    params.max_tokens = TOKENS;
    params.ignore_eos = true;
    params.event = on_event;
    params.user = end;
    return mxc_engine_submit(e, prompt, &params, &id, err);
}

/* Prompts that have nothing in common. */
static void text(int seed, int32_t tokens[PROMPT]) {
    for (int i = 0; i < PROMPT; i++)
        tokens[i] = 3 + (seed * 31 + i * 5) % 90;
}

static void run(struct mxc_engine *e) {
    for (int i = 0; mxc_engine_step(e); i++)
        assert_true(i < 1000);
}

/* N requests, more than the batch holds. */
static void run_batch(struct session *s, struct end ends[N]) {
    int32_t tokens[N][PROMPT];
    for (int i = 0; i < N; i++) {
        const struct mxc_prompt prompt = {.tokens = tokens[i], .n_tokens = PROMPT, .adapter = -1};
        text(i, tokens[i]);
        assert_int_equal(submit(s->engine, &prompt, &ends[i], NULL), MXC_OK);
    }
    run(s->engine);
}

static void expect_whole(const struct end *end) {
    assert_int_equal(end->n_done, 1);
    if (end->reason != MXC_DONE_LENGTH)
        fail_msg("%s", end->err.message);
    assert_int_equal(end->n_tokens, TOKENS);
}

/* ---- what runs where */

/* A prompt is one run, every further token is one, for the whole batch. */
static void a_step_is_a_run(void **state) {
    (void)state;
    struct fake_plugin *fake = mxc_fake_plugin_open();
    struct session s;
    struct end ends[N];
    int32_t tokens[PROMPT];
    const struct mxc_prompt one = {.tokens = tokens, .n_tokens = PROMPT, .adapter = -1};
    must_open(&s, "llama", NULL);
    text(7, tokens);
    uint64_t before = fake->executions;
    assert_int_equal(submit(s.engine, &one, &ends[0], NULL), MXC_OK);
    run(s.engine);
    expect_whole(&ends[0]);
    assert_int_equal(fake->executions - before, TOKENS);
    run_batch(&s, ends);
    for (int i = 0; i < N; i++)
        expect_whole(&ends[i]);
    session_close(&s);
    mxc_fake_plugin_check(fake);
}

/* Runs of a device for a picture and TOKENS tokens, and how many programs were compiled for it. */
static uint64_t look(const char *name, const char *policy, uint64_t *compiled) {
    struct fake_plugin *fake = mxc_fake_plugin_open();
    struct session s;
    struct grey grey;
    struct end end;
    must_open(&s, name, policy);
    grey_init(&grey, s.model->checkpoint->vision);
    uint64_t before = fake->executions;
    *compiled = fake->calls[FAKE_COMPILE];
    assert_int_equal(submit(s.engine, &grey.prompt, &end, NULL), MXC_OK);
    run(s.engine);
    expect_whole(&end);
    uint64_t n = fake->executions - before;
    *compiled = fake->calls[FAKE_COMPILE] - *compiled;
    /* the same picture again is not seen again */
    before = fake->executions;
    assert_int_equal(submit(s.engine, &grey.prompt, &end, NULL), MXC_OK);
    run(s.engine);
    assert_int_equal(fake->executions - before, TOKENS);
    grey_fini(&grey);
    session_close(&s);
    mxc_fake_plugin_check(fake);
    return n;
}

/* The device counts: a tower that is said to run on it and runs on the host is caught here. */
static void the_tower_runs_where_it_is_said_to(void **state) {
    (void)state;
    static const char *const names[] = {"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "llava_clip_llama"};
    static const char *const policies[] = {"auto", "device", "iree", NULL};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        uint64_t compiled, on_device, host;
        host = look(names[i], "host", &compiled);
        assert_int_equal(compiled, 2); /* prefill and decode */
        assert_int_equal(host, TOKENS);
        for (size_t k = 0; k < 4; k++) {
            on_device = look(names[i], policies[k], &compiled);
            assert_in_range(compiled, 3, 20);
            assert_in_range(on_device, host + 1, host + 40);
        }
    }
}

/* ---- a lost device */

static void lost_in_the_middle_of_a_batch(void **state) {
    (void)state;
    struct session whole;
    struct end all[N];
    struct fake_plugin *first = mxc_fake_plugin_open();
    must_open(&whole, "llama", NULL);
    uint64_t n_runs = first->executions;
    run_batch(&whole, all);
    n_runs = first->executions - n_runs;
    session_close(&whole);
    assert_in_range(n_runs, TOKENS + 2, 40);
    for (uint64_t at = 0; at < n_runs; at++) {
        struct fake_plugin *fake = mxc_fake_plugin_open();
        struct session s;
        struct end ends[N], late;
        struct mxc_err err = {.message = ""};
        int32_t tokens[PROMPT];
        const struct mxc_prompt prompt = {.tokens = tokens, .n_tokens = PROMPT, .adapter = -1};
        int n_lost = 0;
        must_open(&s, "llama", NULL);
        fake->lose_after = fake->executions + at;
        run_batch(&s, ends);
        uint64_t calls = fake->n_calls;
        assert_true(fake->lost);
        assert_int_equal(s.n_lost, 1);
        for (int i = 0; i < N; i++) {
            assert_int_equal(ends[i].n_done, 1);
            if (ends[i].reason == MXC_DONE_LENGTH)
                continue;
            n_lost++;
            assert_int_equal(ends[i].reason, MXC_DONE_ERROR);
            assert_int_equal(ends[i].err.code, MXC_E_DEVICE_LOST);
            assert_non_null(strstr(ends[i].err.message, ": the device was lost: UNAVAILABLE: "));
        }
        assert_in_range(n_lost, 1, N);
        /* the engine has come to its end: nothing is taken, nothing is asked of the plugin */
        text(1, tokens);
        assert_int_equal(submit(s.engine, &prompt, &late, &err), MXC_E_DEVICE_LOST);
        assert_non_null(strstr(err.message, "the device was lost"));
        assert_false(mxc_engine_step(s.engine));
        assert_int_equal(fake->n_calls, calls);
        session_close(&s);
        mxc_fake_plugin_check(fake);
    }
}

/* Neither under auto nor under device does a tower that lost the device go on elsewhere. */
static void lost_in_a_tower(void **state) {
    (void)state;
    static const char *const policies[] = {"auto", "device"};
    for (size_t k = 0; k < 2; k++) {
        struct fake_plugin *fake = mxc_fake_plugin_open();
        struct session s;
        struct grey grey;
        struct end end;
        must_open(&s, "qwen2_vl", policies[k]);
        grey_init(&grey, s.model->checkpoint->vision);
        fake->lose_after = fake->executions + 1;
        assert_int_equal(submit(s.engine, &grey.prompt, &end, NULL), MXC_OK);
        run(s.engine);
        assert_int_equal(s.n_lost, 1);
        assert_int_equal(end.n_done, 1);
        assert_int_equal(end.n_tokens, 0);
        assert_int_equal(end.err.code, MXC_E_DEVICE_LOST);
        assert_null(s.model->spare_tower);
        assert_string_equal(logged, "");
        grey_fini(&grey);
        session_close(&s);
        mxc_fake_plugin_check(fake);
    }
}

/* ---- failing calls */

/* A call that fails in its turn, of a session and a batch; true: everything went well. */
static bool fails_at(uint64_t n, int code, const char *name) {
    struct fake_plugin *fake = mxc_fake_plugin_open();
    struct session s;
    struct end ends[N];
    struct mxc_err err = {.message = ""};
    bool whole = true;
    fake->fail_at = n;
    fake->fail_code = code;
    enum mxc_code opened = session_open(&s, name, "device", &err);
    if (opened) {
        assert_int_equal(strncmp(err.message, "XLA: ", 5), 0);
        assert_non_null(strstr(err.message, "was told to fail"));
    } else {
        run_batch(&s, ends);
        for (int i = 0; i < N; i++) {
            assert_int_equal(ends[i].n_done, 1);
            if (ends[i].reason == MXC_DONE_LENGTH)
                continue;
            whole = false;
            assert_int_equal(ends[i].reason, MXC_DONE_ERROR);
            assert_int_equal(strncmp(ends[i].err.message, "XLA: ", 5), 0);
        }
        assert_int_equal(s.n_lost, mxc_engine_is_lost(s.engine));
    }
    session_close(&s);
    mxc_fake_plugin_check(fake);
    return whole && !opened;
}

static void every_call_may_fail(void **state) {
    (void)state;
    const int codes[] = {PJRT_INVALID_ARGUMENT, PJRT_RESOURCE_EXHAUSTED, PJRT_INTERNAL};
    bool every = getenv("MLXCEL_TEST_EVERY") != NULL;
    struct fake_plugin *fake = mxc_fake_plugin_open();
    assert_true(fails_at(0, PJRT_INTERNAL, "llama"));
    const uint64_t n = fake->n_calls;
    uint64_t n_harmless = 0;
    assert_in_range(n, 50, 5000);
    for (size_t c = 0; c < sizeof codes / sizeof *codes; c++)
        for (uint64_t i = 1; i <= n; i += every || i < 40 ? 1 : 1 + (i + c) % 7)
            n_harmless += fails_at(i, codes[c], "llama");
    assert_true(n_harmless < 60); /* facts for people, memory that is copied instead of borrowed */
}

/* A tower that the device cannot run: auto goes to the host and says so, device is an error. */
static void a_tower_that_cannot_run(void **state) {
    (void)state;
    static const char *const policies[] = {"auto", "device"};
    for (size_t k = 0; k < 2; k++) {
        struct fake_plugin *fake = mxc_fake_plugin_open();
        struct session s;
        struct grey grey;
        struct end end;
        must_open(&s, "qwen2_vl", policies[k]);
        grey_init(&grey, s.model->checkpoint->vision);
        mxc_log_set(take_line, MXC_LOG_WARN, NULL);
        fake->fail_call = FAKE_COMPILE;
        fake->fail_code = PJRT_UNIMPLEMENTED;
        uint64_t before = fake->executions;
        assert_int_equal(submit(s.engine, &grey.prompt, &end, NULL), MXC_OK);
        uint64_t compiled = fake->calls[FAKE_COMPILE];
        for (int i = 0; i < 20 && fake->calls[FAKE_COMPILE] == compiled; i++)
            (void)mxc_engine_step(s.engine);
        fake->fail_call = -1; /* what runs the text is compiled */
        run(s.engine);
        mxc_log_set(NULL, MXC_LOG_WARN, NULL);
        assert_int_equal(s.n_lost, 0);
        if (k) {
            assert_int_equal(end.reason, MXC_DONE_ERROR);
            assert_int_equal(end.err.code, MXC_E_UNSUPPORTED);
            assert_non_null(strstr(end.err.message, "Compile was told to fail"));
            assert_string_equal(logged, "");
            assert_int_equal(fake->executions, before);
            /* the next one that can be run is, on the device */
            assert_int_equal(submit(s.engine, &grey.prompt, &end, NULL), MXC_OK);
            run(s.engine);
            expect_whole(&end);
            assert_true(fake->executions > before + TOKENS);
        } else {
            expect_whole(&end);
            assert_int_equal(fake->executions, before + TOKENS);
            assert_int_equal(strncmp(logged,
                                     "the vision tower runs on the host, not on the device: "
                                     "XLA: ",
                                     59),
                             0);
        }
        grey_fini(&grey);
        session_close(&s);
        mxc_fake_plugin_check(fake);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_is_a_run),
        cmocka_unit_test(the_tower_runs_where_it_is_said_to),
        cmocka_unit_test(lost_in_the_middle_of_a_batch),
        cmocka_unit_test(lost_in_a_tower),
        cmocka_unit_test(every_call_may_fail),
        cmocka_unit_test(a_tower_that_cannot_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
