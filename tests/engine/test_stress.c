/* Random traffic against one engine: arrivals, cancels, priorities, groups, shared prefixes,
 * failing steps, tight pools. Every request that comes to its natural end must have exactly the
 * tokens of the same request served alone. */
#include "test.h"

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/rng.h"
#include "fake_backend.h"

#include <stdlib.h>
#include <string.h>

enum { N_REQUESTS = 60, MAX_PROMPT = 400 };

struct job {
    int32_t tokens[MAX_PROMPT], n_tokens, max_tokens;
    uint64_t id, seed;
    struct mxc_request_params params;
    struct sink sink;
};

static struct job jobs[N_REQUESTS];

static void make_job(struct job *j, struct mxc_rng *rng) {
    j->n_tokens = 1 + (int32_t)(mxc_rng_next(rng) % (mxc_rng_next(rng) % 4 ? 60 : MAX_PROMPT));
    int32_t shared = (int32_t)(mxc_rng_next(rng) % 300), style = (int32_t)(mxc_rng_next(rng) % 2);
    for (int32_t i = 0; i < j->n_tokens; i++)
        j->tokens[i] = i < shared ? (i + style) % 7 : (int32_t)(mxc_rng_next(rng) % FAKE_VOCAB);
    mxc_request_params_init(&j->params);
    j->params.event = sink_event;
    j->params.user = &j->sink;
    j->params.max_tokens = (int32_t)(mxc_rng_next(rng) % 80);
    j->params.priority = (int32_t)(mxc_rng_next(rng) % 8) == 0;
    j->params.group = mxc_rng_next(rng) % 4 ? 0 : 1 + mxc_rng_next(rng) % 3;
    j->params.no_cache = mxc_rng_next(rng) % 6 == 0;
    j->params.progress = mxc_rng_next(rng) % 2;
    j->params.n_logprobs = (int32_t)(mxc_rng_next(rng) % 4) - 1;
    if (mxc_rng_next(rng) % 2) {
        j->params.sampling.temperature = 1.5f;
        j->params.sampling.seed = mxc_rng_next(rng);
        j->params.sampling.top_p = 0.9f;
        j->params.sampling.frequency_penalty = 0.1f;
        j->params.sampling.dry_multiplier = 0.5f;
    }
}

static struct mxc_engine *open_engine(struct fake_model *m, const struct mxc_engine_options *o) {
    struct mxc_engine_target target = fake_target(m);
    struct mxc_engine *e = NULL;
    assert_int_equal(mxc_engine_new(&target, o, &e, NULL), MXC_OK);
    return e;
}

/* Alone, in one chunk, in a pool of its own. */
static void assert_as_alone(const struct fake_model *like, const struct job *j) {
    static struct sink alone;
    struct fake_model m = *like;
    m.graph.kvs = m.kvs;
    m.fail_run_at = 0;
    m.n_runs = 0;
    struct mxc_engine_options o;
    mxc_engine_options_init(&o);
    o.max_rows = 1024;
    o.max_batch = 1;
    o.context = 600;
    mxc_engine_blocks_for(&m.graph, o.context, 1, o.max_rows, o.n_blocks);
    struct mxc_engine *e = open_engine(&m, &o);
    struct mxc_request_params params = j->params;
    struct mxc_prompt p = {.tokens = j->tokens, .n_tokens = j->n_tokens, .adapter = -1};
    uint64_t id;
    memset(&alone, 0, sizeof alone);
    params.user = &alone;
    params.group = 0;
    assert_int_equal(mxc_engine_submit(e, &p, &params, &id, NULL), MXC_OK);
    while (mxc_engine_step(e)) {
    }
    assert_int_equal(alone.n, j->sink.n);
    assert_memory_equal(alone.ids, j->sink.ids, (size_t)alone.n * sizeof(int32_t));
    if (params.n_logprobs >= 0)
        assert_memory_equal(alone.logprobs, j->sink.logprobs, (size_t)alone.n * sizeof(float));
    assert_int_equal(alone.n_top, j->sink.n_top);
    mxc_engine_free(e);
}

static void one_round(uint64_t seed, int *n_checked, uint64_t *n_preempted) {
    struct mxc_rng rng;
    struct fake_model m;
    struct mxc_engine_options o;
    mxc_rng_seed(&rng, seed);
    bool full = mxc_rng_next(&rng) % 4 != 0;
    int32_t window = full && mxc_rng_next(&rng) % 2 ? 0 : 2 + (int32_t)(mxc_rng_next(&rng) % 150);
    fake_model_init(&m, full, window);
    mxc_engine_options_init(&o);
    o.max_batch = 1 + (int32_t)(mxc_rng_next(&rng) % 12);
    o.max_rows = o.max_batch + 1 + (int32_t)(mxc_rng_next(&rng) % 200);
    o.prefill_rows = 1 + (int32_t)(mxc_rng_next(&rng) % 100);
    o.max_prefills = 1 + (int32_t)(mxc_rng_next(&rng) % 5);
    o.max_queue = 10;
    o.context = 600;
    mxc_engine_blocks_for(&m.graph, o.context, 1, o.max_rows, o.n_blocks);
    for (int k = 0; k < MXC_N_KV_KINDS; k++)
        if (o.n_blocks[k])
            o.n_blocks[k] += (int32_t)(mxc_rng_next(&rng) % 20);
    m.fail_run_at = mxc_rng_next(&rng) % 3 ? 0 : 50 + mxc_rng_next(&rng) % 100;
    struct mxc_engine *e = open_engine(&m, &o);
    memset(jobs, 0, sizeof jobs);
    int submitted = 0;
    for (int step = 0; submitted < N_REQUESTS || mxc_engine_has_work(e); step++) {
        assert_true(step < 100000);
        if (submitted < N_REQUESTS && mxc_rng_next(&rng) % 3 == 0) {
            struct job *j = &jobs[submitted];
            if (j->params.group && submitted) { /* an equal prompt, sometimes */
                memcpy(j->tokens, jobs[submitted - 1].tokens, sizeof j->tokens);
                j->n_tokens = jobs[submitted - 1].n_tokens;
            } else if (!j->n_tokens) {
                make_job(j, &rng);
            }
            struct mxc_prompt p = {.tokens = j->tokens, .n_tokens = j->n_tokens, .adapter = -1};
            enum mxc_code code = mxc_engine_submit(e, &p, &j->params, &j->id, NULL);
            assert_true(code == MXC_OK || code == MXC_E_BUSY);
            submitted += code == MXC_OK;
        }
        if (submitted && mxc_rng_next(&rng) % 25 == 0)
            mxc_engine_cancel(e, jobs[mxc_rng_next(&rng) % (uint64_t)submitted].id);
        if (mxc_rng_next(&rng) % 200 == 0)
            mxc_engine_clear_cache(e);
        mxc_engine_step(e);
        struct mxc_engine_stats s;
        mxc_engine_get_stats(e, &s);
        assert_true(s.n_running <= o.max_batch && m.last_rows <= o.max_rows);
    }
    struct mxc_engine_stats s;
    mxc_engine_clear_cache(e);
    mxc_engine_get_stats(e, &s);
    for (int k = 0; k < MXC_N_KV_KINDS; k++)
        assert_int_equal(s.n_free[k], s.n_blocks[k]);
    *n_preempted += s.n_preempted;
    assert_int_equal(m.bad, 0);
    for (int i = 0; i < N_REQUESTS; i++) {
        assert_int_equal(jobs[i].sink.n_done, 1);
        if (jobs[i].sink.reason == MXC_DONE_LENGTH) {
            assert_as_alone(&m, &jobs[i]);
            (*n_checked)++;
        } else {
            assert_true(jobs[i].sink.reason == MXC_DONE_CANCELLED || m.fail_run_at);
        }
    }
    mxc_engine_free(e);
    assert_int_equal(m.n_states, 0);
}

static void random_traffic(void **state) {
    (void)state;
    int n_checked = 0;
    uint64_t n_preempted = 0, start = mxc_clock_ns(), seed = 0;
    /* rounds are the same on every machine; how many of them are run depends on the time, but
     * enough for each of the two counts below */
    while (seed < 12 || (seed < 200 && (n_preempted <= 10 || n_checked <= 300 ||
                                        mxc_clock_ns() - start < 2000000000u)))
        one_round(++seed, &n_checked, &n_preempted);
    assert_true(n_checked > 300);
    assert_true(n_preempted > 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_traffic)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
