/* The host of a server's models: loading in the background, one that fails, requests and their end.
 */
#define _GNU_SOURCE
#include "test.h"

#include "base/clock.h"
#include "base/mem.h"
#include "gen/host.h"

#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

static struct mxc_host_model_options options_of(const char *path, const char *name) {
    struct mxc_host_model_options o;
    mxc_host_model_options_init(&o);
    o.path = path;
    o.name = name;
    o.n_threads = 1;
    return o;
}

static const char llama[] = MXC_TEST_DATA "/golden/llama";

static void wait_for(struct mxc_host *host, int model, enum mxc_host_state state) {
    struct mxc_host_info info;
    uint64_t end = mxc_clock_ns() + 60000000000u;
    do {
        mxc_host_info(host, model, &info);
        assert_true(mxc_clock_ns() < end);
        (void)usleep(1000);
    } while (info.state != state);
}

struct seen {
    atomic_int n_text, n_done, reason;
    bool end_now;
};

static bool on_event(void *user, const struct mxc_gen_event *event) {
    struct seen *s = user;
    if (event->kind == MXC_GEN_DONE) {
        atomic_store(&s->reason, (int)event->reason);
        atomic_fetch_add(&s->n_done, 1);
    } else if (event->kind == MXC_GEN_TEXT) {
        atomic_fetch_add(&s->n_text, 1);
    }
    return !s->end_now;
}

static enum mxc_code ask(struct mxc_host *host, int model, struct seen *seen, int32_t max_tokens,
                         uint64_t *id, struct mxc_err *err) {
    static const int32_t ids[] = {1, 2, 3};
    const struct mxc_prompt prompt = {.tokens = ids, .n_tokens = 3, .adapter = -1};
    struct mxc_gen_params params;
    mxc_gen_params_init(&params);
    params.request.max_tokens = max_tokens;
    params.request.ignore_eos = true;
    params.event = on_event;
    params.user = seen;
    return mxc_host_submit(host, model, &prompt, &params, id, err);
}

static void wait_done(struct seen *seen, int n) {
    uint64_t end = mxc_clock_ns() + 60000000000u;
    while (atomic_load(&seen->n_done) < n) {
        assert_true(mxc_clock_ns() < end);
        (void)usleep(1000);
    }
}

static void count_change(void *user) {
    atomic_fetch_add((atomic_int *)user, 1);
}

static void models_load_and_answer(void **state) {
    struct mxc_host *host;
    struct mxc_host_info info;
    struct mxc_engine_stats stats;
    struct mxc_sampling sampling;
    struct mxc_err err;
    struct seen seen = {0};
    atomic_int changes = 0;
    uint64_t id;
    (void)state;
    assert_int_equal(mxc_host_new(&host, &err), MXC_OK);
    struct mxc_host_model_options good = options_of(llama, "good");
    struct mxc_host_model_options bad = options_of("/nonexistent", "bad");
    good.context = 64;
    assert_int_equal(mxc_host_add(host, &bad, &err), MXC_OK);
    assert_int_equal(mxc_host_add(host, &good, &err), MXC_OK);
    assert_int_equal(mxc_host_add(host, &good, &err), MXC_E_ARG); /* the name is taken */
    assert_int_equal(mxc_host_count(host), 2);
    assert_int_equal(mxc_host_find(host, "good"), 1);
    assert_int_equal(mxc_host_find(host, "none"), -1);
    assert_null(mxc_host_chat(host, 1));
    assert_int_equal(ask(host, 1, &seen, 4, &id, &err), MXC_E_BUSY); /* not loaded yet */
    mxc_host_stats(host, 1, &stats);
    assert_int_equal(stats.n_running, 0);
    assert_int_equal(mxc_host_start(host, count_change, &changes, &err), MXC_OK);
    wait_for(host, 0, MXC_HOST_UNAVAILABLE);
    wait_for(host, 1, MXC_HOST_READY);
    mxc_host_info(host, 0, &info);
    assert_non_null(strstr(info.err.message, "/nonexistent"));
    assert_int_equal(ask(host, 0, &seen, 4, &id, &err), MXC_E_NOT_FOUND);
    mxc_host_info(host, 1, &info);
    assert_int_equal(info.context, 64);
    assert_int_equal(info.vocab, 720);
    assert_string_equal(info.family, "llama");
    assert_string_equal(info.quantisation, "none");
    assert_true(info.kv_bytes > 0 && info.weight_bytes > 0);
    assert_non_null(mxc_host_chat(host, 1));
    mxc_host_sampling(host, 1, &sampling);
    assert_int_equal(ask(host, 1, &seen, 4, &id, &err), MXC_OK);
    wait_done(&seen, 1);
    assert_int_equal(atomic_load(&seen.n_text), 4);
    assert_int_equal(atomic_load(&seen.reason), MXC_DONE_LENGTH);
    mxc_host_clear_cache(host, 1);
    mxc_host_cancel(host, 1, id); /* over already */
    mxc_host_cancel(host, 0, id);
    while (atomic_load(&changes) < 2)
        (void)usleep(1000);
    mxc_host_free(host);
    assert_int_equal(atomic_load(&seen.n_done), 1);
}

static void free_ends_what_runs(void **state) {
    struct mxc_host *host;
    struct mxc_err err;
    struct seen seen = {0};
    uint64_t id;
    (void)state;
    assert_int_equal(mxc_host_new(&host, &err), MXC_OK);
    struct mxc_host_model_options o = options_of(llama, "m");
    o.parallel = 1;
    assert_int_equal(mxc_host_add(host, &o, &err), MXC_OK);
    assert_int_equal(mxc_host_start(host, NULL, NULL, &err), MXC_OK);
    wait_for(host, 0, MXC_HOST_READY);
    for (int i = 0; i < 8; i++)
        assert_int_equal(ask(host, 0, &seen, -1, &id, &err), MXC_OK);
    mxc_host_free(host);
    assert_int_equal(atomic_load(&seen.n_done), 8); /* each exactly once */
}

static void free_ends_loading(void **state) {
    struct mxc_host *host;
    struct mxc_err err;
    (void)state;
    for (int i = 0; i < 5; i++) {
        assert_int_equal(mxc_host_new(&host, &err), MXC_OK);
        struct mxc_host_model_options o = options_of(llama, "m");
        assert_int_equal(mxc_host_add(host, &o, &err), MXC_OK);
        assert_int_equal(mxc_host_start(host, NULL, NULL, &err), MXC_OK);
        mxc_host_free(host);
    }
}

static void bad_options_are_refused(void **state) {
    struct mxc_host *host;
    struct mxc_err err;
    (void)state;
    assert_int_equal(mxc_host_new(&host, &err), MXC_OK);
    struct mxc_host_model_options o = options_of(llama, "m");
    o.parallel = 0;
    assert_int_equal(mxc_host_add(host, &o, &err), MXC_E_ARG);
    o = options_of(llama, "");
    assert_int_equal(mxc_host_add(host, &o, &err), MXC_E_ARG);
    o = options_of(llama, "m");
    o.max_chunk = 5;
    assert_int_equal(mxc_host_add(host, &o, &err), MXC_E_ARG);
    o = options_of(llama, "m");
    o.context = 1;
    assert_int_equal(mxc_host_add(host, &o, &err), MXC_E_ARG);
    for (uint64_t n = 1; n < 4; n++) {
        o = options_of(llama, "m");
        o.backend = "cpu";
        mxc_mem_fail_at(n);
        enum mxc_code code = mxc_host_add(host, &o, &err);
        mxc_mem_fail_at(0);
        assert_int_equal(code, MXC_E_NOMEM);
    }
    assert_int_equal(mxc_host_count(host), 0);
    mxc_host_free(host);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_load_and_answer),
        cmocka_unit_test(free_ends_what_runs),
        cmocka_unit_test(free_ends_loading),
        cmocka_unit_test(bad_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
