/* A device that is lost while an engine runs on it: every request in flight or waiting ends once,
 * with that error; whoever watches hears of it before the first of them; no other request is taken
 * and nothing more is asked of the backend. On a loop, the other engines go on. */
#define _GNU_SOURCE
#include "test.h"

#include "engine/thread.h"
#include "fake_backend.h"

#include <pthread.h>
#include <string.h>

enum { N = 9, BATCH = 3, PROMPT = 40, TOKENS = 20 };

/* What whoever watches hears. */
struct watch {
    int n;
    struct mxc_err err;
    const struct sink *sinks; /* none of them has ended when it hears */
    int n_sinks, n_early;
};

static void on_lost(void *user, const struct mxc_err *err) {
    struct watch *w = user;
    w->n++;
    w->err = *err;
    for (int i = 0; i < w->n_sinks; i++)
        w->n_early += w->sinks[i].reason == MXC_DONE_ERROR;
}

static struct mxc_engine *engine_of(struct fake_model *m, struct watch *watch,
                                    struct mxc_loop *loop) {
    struct mxc_engine_options o;
    struct mxc_engine *e = NULL;
    struct mxc_engine_target target = fake_target(m);
    mxc_engine_options_init(&o);
    o.max_batch = BATCH;
    o.max_rows = 64;
    o.context = 100;
    o.lost = on_lost;
    o.lost_user = watch;
    o.max_queue = loop ? 6 : N;
    o.wake = loop ? mxc_loop_wake : NULL;
    o.wake_user = loop;
    mxc_engine_blocks_for(&m->graph, o.context, BATCH, o.max_rows, o.n_blocks);
    assert_int_equal(mxc_engine_new(&target, &o, &e, NULL), MXC_OK);
    return e;
}

static enum mxc_code submit(struct mxc_engine *e, const struct mxc_prompt *prompt,
                            mxc_event_fn *event, void *user, struct mxc_err *err) {
    struct mxc_request_params params;
    uint64_t id;
    mxc_request_params_init(&params);
    params.max_tokens = TOKENS;
    params.event = event;
    params.user = user;
    return mxc_engine_submit(e, prompt, &params, &id, err);
}

static void tokens_of(int seed, int32_t tokens[PROMPT]) {
    for (int j = 0; j < PROMPT; j++)
        tokens[j] = (seed * 7 + j * j) % FAKE_VOCAB;
}

static void expect_lost(const struct sink *s) {
    assert_int_equal(s->n_done, 1);
    assert_int_equal(s->reason, MXC_DONE_ERROR);
    assert_int_equal(s->err.code, MXC_E_DEVICE_LOST);
    assert_string_equal(s->err.message, "the device fell over");
}

static void all_requests_end(void **state) {
    (void)state;
    static struct sink sinks[N];
    int32_t tokens[N][PROMPT];
    for (uint64_t at = 1; at <= 30; at++) {
        struct fake_model m;
        struct watch watch = {.sinks = sinks, .n_sinks = N};
        struct mxc_err err = {.message = ""};
        int n_lost = 0;
        memset(sinks, 0, sizeof sinks);
        fake_model_init(&m, true, at % 2 ? 0 : 33);
        m.fail_run_at = at;
        m.fails = MXC_E_DEVICE_LOST;
        struct mxc_engine *e = engine_of(&m, &watch, NULL);
        for (int i = 0; i < N; i++) {
            tokens_of(i, tokens[i]);
            const struct mxc_prompt p = {.tokens = tokens[i], .n_tokens = PROMPT, .adapter = -1};
            assert_int_equal(submit(e, &p, sink_event, &sinks[i], NULL), MXC_OK);
        }
        for (int i = 0; mxc_engine_step(e); i++)
            assert_true(i < 10000);
        assert_true(mxc_engine_is_lost(e));
        assert_int_equal(m.n_runs, at);
        assert_int_equal(watch.n, 1);
        assert_int_equal(watch.n_early, 0);
        assert_string_equal(watch.err.message, "the device fell over");
        for (int i = 0; i < N; i++) {
            assert_int_equal(sinks[i].n_done, 1);
            if (sinks[i].reason != MXC_DONE_ERROR)
                continue; /* it had ended before */
            expect_lost(&sinks[i]);
            n_lost++;
        }
        assert_in_range(n_lost, 1, N);
        assert_true(at > 10 || n_lost == N);
        /* no other is taken, nothing is run, and nothing is held */
        const struct mxc_prompt p = {.tokens = tokens[0], .n_tokens = PROMPT, .adapter = -1};
        assert_int_equal(submit(e, &p, sink_event, &sinks[0], &err), MXC_E_DEVICE_LOST);
        assert_string_equal(err.message, "the device fell over");
        assert_false(mxc_engine_step(e));
        assert_false(mxc_engine_has_work(e));
        assert_int_equal(m.n_runs, at);
        assert_int_equal(watch.n, 1);
        struct mxc_engine_stats stats;
        mxc_engine_get_stats(e, &stats);
        assert_int_equal(stats.n_queued + stats.n_running, 0);
        for (int k = 0; k < MXC_N_KV_KINDS; k++)
            assert_int_equal(stats.n_free[k] + stats.n_idle[k], stats.n_blocks[k]);
        mxc_engine_free(e);
        assert_int_equal(m.bad + m.n_states, 0);
        for (int i = 0; i < N; i++)
            assert_int_equal(sinks[i].n_done, 1);
    }
}

/* The eye's backend may be the one that loses it; text requests end with it. */
static void a_tower_loses_it(void **state) {
    (void)state;
    enum { ROWS = 4 };
    static struct sink sees, text;
    struct fake_model m;
    float pixels[ROWS * FAKE_HIDDEN] = {0};
    const struct mxc_tower_input input = {.rows = pixels, .n_rows = {ROWS}};
    int32_t tokens[PROMPT];
    struct watch watch = {.n = 0};
    memset(&sees, 0, sizeof sees);
    memset(&text, 0, sizeof text);
    fake_model_init(&m, true, 0);
    m.tower_pieces = 3;
    m.fail_tower_at = 1;
    m.fails = MXC_E_DEVICE_LOST;
    struct mxc_engine *e = engine_of(&m, &watch, NULL);
    tokens_of(1, tokens);
    const struct mxc_prompt_picture picture = {.input = &input, .digest = {1}, .n_rows = ROWS};
    const struct mxc_embed_run run = {.row0 = 2, .n_rows = ROWS, .digest = {1}};
    const struct mxc_prompt with = {.tokens = tokens,
                                    .n_tokens = PROMPT,
                                    .embeds = &run,
                                    .n_embeds = 1,
                                    .pictures = &picture,
                                    .n_pictures = 1,
                                    .adapter = -1};
    const struct mxc_prompt without = {.tokens = tokens, .n_tokens = PROMPT, .adapter = -1};
    assert_int_equal(submit(e, &with, sink_event, &sees, NULL), MXC_OK);
    assert_int_equal(submit(e, &without, sink_event, &text, NULL), MXC_OK);
    while (mxc_engine_step(e))
        ;
    assert_int_equal(watch.n, 1);
    assert_string_equal(sees.err.message, "the tower fell over");
    assert_int_equal(sees.err.code, MXC_E_DEVICE_LOST);
    assert_int_equal(text.err.code, MXC_E_DEVICE_LOST);
    assert_int_equal(sees.n_done + text.n_done, 2);
    mxc_engine_free(e);
    assert_int_equal(m.n_live_towers, 0);
}

/* Other failures end what was in the step, and nothing else. */
static void other_failures_do_not_end_it(void **state) {
    (void)state;
    static struct sink sinks[N];
    struct fake_model m;
    int32_t tokens[PROMPT];
    struct watch watch = {.n = 0};
    memset(sinks, 0, sizeof sinks);
    fake_model_init(&m, true, 0);
    m.fail_run_at = 2;
    struct mxc_engine *e = engine_of(&m, &watch, NULL);
    tokens_of(1, tokens);
    const struct mxc_prompt p = {.tokens = tokens, .n_tokens = PROMPT, .adapter = -1};
    for (int i = 0; i < N; i++)
        assert_int_equal(submit(e, &p, sink_event, &sinks[i], NULL), MXC_OK);
    while (mxc_engine_step(e))
        ;
    assert_false(mxc_engine_is_lost(e));
    assert_int_equal(watch.n, 0);
    assert_int_equal(sinks[N - 1].reason, MXC_DONE_LENGTH);
    mxc_engine_free(e);
}

/* ---- on a loop, with threads that go on submitting */

struct client {
    struct mxc_engine *engine;
    struct sink sinks[50];
    int32_t tokens[PROMPT];
    int n; /* accepted */
    enum mxc_code refused;
};

static void *client_main(void *arg) {
    struct client *c = arg;
    const struct mxc_prompt p = {.tokens = c->tokens, .n_tokens = PROMPT, .adapter = -1};
    while (c->n < 50) {
        enum mxc_code code = submit(c->engine, &p, sink_event, &c->sinks[c->n], NULL);
        c->n += !code;
        if (code == MXC_E_DEVICE_LOST) {
            c->refused = code;
            break;
        }
    }
    return NULL;
}

static void nothing(void *arg) {
    (void)arg;
}

static void others_go_on(void **state) {
    (void)state;
    enum { THREADS = 3 };
    static struct client clients[THREADS];
    static struct sink fine;
    struct fake_model models[2];
    struct watch watches[2] = {{.n = 0}, {.n = 0}};
    struct mxc_engine *engines[2];
    struct mxc_loop *loop;
    pthread_t threads[THREADS];
    memset(clients, 0, sizeof clients);
    memset(&fine, 0, sizeof fine);
    assert_int_equal(mxc_loop_new(&loop, NULL), MXC_OK);
    for (int i = 0; i < 2; i++) {
        fake_model_init(&models[i], true, 0);
        if (!i) {
            models[i].fail_run_at = 15;
            models[i].fails = MXC_E_DEVICE_LOST;
        }
        engines[i] = engine_of(&models[i], &watches[i], loop);
        assert_int_equal(mxc_loop_add(loop, engines[i], NULL), MXC_OK);
    }
    for (int i = 0; i < THREADS; i++) {
        clients[i].engine = engines[0];
        tokens_of(i, clients[i].tokens);
        assert_int_equal(pthread_create(&threads[i], NULL, client_main, &clients[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(clients[i].refused, MXC_E_DEVICE_LOST);
    }
    const struct mxc_prompt p = {.tokens = clients[0].tokens, .n_tokens = PROMPT, .adapter = -1};
    assert_int_equal(submit(engines[1], &p, sink_event, &fine, NULL), MXC_OK);
    struct mxc_engine_stats stats;
    do /* the other one's work; a call makes the loop go round */
        mxc_loop_call(loop, nothing, NULL);
    while (mxc_engine_get_stats(engines[1], &stats), stats.n_generated < TOKENS);
    mxc_loop_remove(loop, engines[0]); /* it is off the loop already: no harm */
    mxc_loop_free(loop);
    assert_int_equal(models[0].n_runs, 15);
    assert_int_equal(watches[0].n, 1);
    assert_int_equal(watches[1].n, 0);
    assert_int_equal(fine.n_done, 1);
    assert_int_equal(fine.reason, MXC_DONE_LENGTH);
    for (int i = 0; i < THREADS; i++)
        for (int k = 0; k < clients[i].n; k++)
            if (clients[i].sinks[k].reason == MXC_DONE_ERROR)
                expect_lost(&clients[i].sinks[k]);
            else
                assert_int_equal(clients[i].sinks[k].n_done, 1);
    for (int i = 0; i < 2; i++)
        mxc_engine_free(engines[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_requests_end), cmocka_unit_test(a_tower_loses_it),
        cmocka_unit_test(other_failures_do_not_end_it), cmocka_unit_test(others_go_on)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
