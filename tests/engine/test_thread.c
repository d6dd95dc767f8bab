/* The loop: several engines on one thread, submits and cancels from many, clean ends. Run under
 * ThreadSanitizer too. */
#define _GNU_SOURCE
#include "test.h"

#include "base/mem.h"
#include "engine/thread.h"
#include "fake_backend.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { N_CLIENTS = 4, N_EACH = 25, N_TOKENS = 20 };

struct client {
    struct mxc_engine *engine;
    int seed;
    atomic_int n_done;
    struct sink sinks[N_EACH];
    int32_t tokens[N_EACH][40];
};

static struct client clients[N_CLIENTS];
static pthread_mutex_t done_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t done_cond = PTHREAD_COND_INITIALIZER;
static int n_done;

static bool counting_event(void *user, const struct mxc_event *e) {
    bool go_on = sink_event(user, e);
    if (e->kind == MXC_EVENT_DONE) {
        pthread_mutex_lock(&done_mutex);
        n_done++;
        pthread_cond_broadcast(&done_cond);
        pthread_mutex_unlock(&done_mutex);
    }
    return go_on;
}

static void *client_main(void *arg) {
    struct client *c = arg;
    for (int i = 0; i < N_EACH; i++) {
        struct mxc_prompt p = {.tokens = c->tokens[i], .n_tokens = 40, .adapter = -1};
        struct mxc_request_params params;
        uint64_t id;
        mxc_request_params_init(&params);
        params.event = counting_event;
        params.user = &c->sinks[i];
        params.max_tokens = N_TOKENS;
        for (int j = 0; j < 40; j++)
            c->tokens[i][j] = (c->seed * 7 + i * 3 + j * j) % FAKE_VOCAB;
        enum mxc_code code;
        while ((code = mxc_engine_submit(c->engine, &p, &params, &id, NULL)) == MXC_E_BUSY) {
            struct mxc_engine_stats stats;
            mxc_engine_get_stats(c->engine, &stats);
            if (stats.n_queued < 0)
                return arg;
        }
        if (code)
            return arg;
        if (i % 5 == 4)
            mxc_engine_cancel(c->engine, id);
    }
    return NULL;
}

static void set_flag(void *arg) {
    *(int *)arg += 1;
}

static void many_threads(void **state) {
    (void)state;
    struct fake_model models[2];
    struct mxc_engine *engines[2];
    struct mxc_loop *loop;
    pthread_t threads[N_CLIENTS];
    assert_int_equal(mxc_loop_new(&loop, NULL), MXC_OK);
    for (int i = 0; i < 2; i++) {
        struct mxc_engine_options o;
        fake_model_init(&models[i], true, i ? 33 : 0);
        mxc_engine_options_init(&o);
        o.max_batch = 4;
        o.max_rows = 64;
        o.context = 100;
        o.max_queue = 6;
        o.wake = mxc_loop_wake;
        o.wake_user = loop;
        mxc_engine_blocks_for(&models[i].graph, o.context, 3, o.max_rows, o.n_blocks);
        struct mxc_engine_target target = fake_target(&models[i]);
        assert_int_equal(mxc_engine_new(&target, &o, &engines[i], NULL), MXC_OK);
        assert_int_equal(mxc_loop_add(loop, engines[i], NULL), MXC_OK);
    }
    memset(clients, 0, sizeof clients);
    n_done = 0;
    for (int i = 0; i < N_CLIENTS; i++) {
        clients[i].engine = engines[i % 2];
        clients[i].seed = i;
        assert_int_equal(pthread_create(&threads[i], NULL, client_main, &clients[i]), 0);
    }
    int called = 0;
    for (int i = 0; i < 20; i++)
        mxc_loop_call(loop, set_flag, &called);
    assert_int_equal(called, 20);
    for (int i = 0; i < N_CLIENTS; i++) {
        void *failed;
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    pthread_mutex_lock(&done_mutex);
    while (n_done < N_CLIENTS * N_EACH)
        pthread_cond_wait(&done_cond, &done_mutex);
    pthread_mutex_unlock(&done_mutex);
    /* an engine can leave while the other goes on; both end with nothing held */
    mxc_loop_remove(loop, engines[0]);
    mxc_engine_free(engines[0]);
    struct sink late = {0};
    struct mxc_prompt p = {.tokens = clients[1].tokens[0], .n_tokens = 40, .adapter = -1};
    struct mxc_request_params params;
    uint64_t id;
    mxc_request_params_init(&params);
    params.event = sink_event;
    params.user = &late;
    assert_int_equal(mxc_engine_submit(engines[1], &p, &params, &id, NULL), MXC_OK);
    mxc_loop_free(loop);
    mxc_engine_free(engines[1]); /* whatever the late one was at: it has its end */
    assert_int_equal(late.n_done, 1);
    for (int i = 0; i < N_CLIENTS; i++)
        for (int j = 0; j < N_EACH; j++) {
            struct sink *s = &clients[i].sinks[j];
            int32_t ids[N_TOKENS];
            struct mxc_prompt q = {.tokens = clients[i].tokens[j], .n_tokens = 40, .adapter = -1};
            assert_int_equal(s->n_done, 1);
            assert_true(s->n == N_TOKENS || s->reason == MXC_DONE_CANCELLED);
            fake_reference(&models[i % 2], &q, N_TOKENS, ids);
            assert_memory_equal(ids, s->ids, (size_t)s->n * sizeof *ids);
        }
    assert_int_equal(models[0].bad + models[1].bad, 0);
    assert_int_equal(models[0].n_states + models[1].n_states, 0);
}

static void no_memory_for_a_loop(void **state) {
    (void)state;
    struct mxc_loop *loop = NULL;
    mxc_mem_fail_at(1);
    enum mxc_code code = mxc_loop_new(&loop, NULL);
    mxc_mem_fail_at(0);
    assert_int_equal(code, MXC_E_NOMEM);
    assert_null(loop);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(many_threads),
                                       cmocka_unit_test(no_memory_for_a_loop)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
