/* Scheduling on the fake backend: every request must get exactly the tokens it gets alone. */
#include "test.h"

#include "base/mem.h"
#include "engine/engine.h"
#include "engine/rng.h"
#include "fake_backend.h"

#include <stdlib.h>
#include <string.h>

static struct mxc_engine_options options_of(const struct fake_model *m, int32_t batch, int32_t rows,
                                            int32_t context, int32_t n_sequences) {
    struct mxc_engine_options o;
    mxc_engine_options_init(&o);
    o.max_batch = batch;
    o.max_rows = rows;
    o.prefill_rows = rows / 2;
    o.stall = 0; /* what is tested does not depend on time */
    o.context = context;
    mxc_engine_blocks_for(&m->graph, context, n_sequences, rows, o.n_blocks);
    return o;
}

static struct mxc_engine *engine_of(struct fake_model *m, const struct mxc_engine_options *o) {
    struct mxc_engine_target target = fake_target(m);
    struct mxc_engine *e = NULL;
    struct mxc_err err;
    assert_int_equal(mxc_engine_new(&target, o, &e, &err), MXC_OK);
    return e;
}

static void random_tokens(struct mxc_rng *rng, int32_t *tokens, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        tokens[i] = (int32_t)(mxc_rng_next(rng) % FAKE_VOCAB);
}

static struct mxc_prompt prompt_of(const int32_t *tokens, int32_t n) {
    return (struct mxc_prompt){.tokens = tokens, .n_tokens = n, .adapter = -1};
}

static uint64_t submit(struct mxc_engine *e, const int32_t *tokens, int32_t n, int32_t max_tokens,
                       struct sink *sink) {
    struct mxc_request_params params;
    struct mxc_prompt prompt = prompt_of(tokens, n);
    uint64_t id = 0;
    mxc_request_params_init(&params);
    params.max_tokens = max_tokens;
    params.event = sink_event;
    params.user = sink;
    assert_int_equal(mxc_engine_submit(e, &prompt, &params, &id, NULL), MXC_OK);
    assert_true(id > 0);
    return id;
}

static void run_all(struct mxc_engine *e) {
    for (int i = 0; i < 100000; i++)
        if (!mxc_engine_step(e))
            return;
    fail_msg("the engine does not come to an end");
}

/* All blocks are free or idle once nothing runs. */
static void assert_no_leak(struct mxc_engine *e) {
    struct mxc_engine_stats s;
    mxc_engine_get_stats(e, &s);
    assert_int_equal(s.n_running + s.n_queued, 0);
    for (int k = 0; k < MXC_N_KV_KINDS; k++)
        assert_int_equal(s.n_free[k] + s.n_idle[k], s.n_blocks[k]);
    mxc_engine_clear_cache(e);
    mxc_engine_get_stats(e, &s);
    for (int k = 0; k < MXC_N_KV_KINDS; k++)
        assert_int_equal(s.n_free[k], s.n_blocks[k]);
}

static void assert_reference(struct fake_model *m, const int32_t *tokens, int32_t n,
                             const struct sink *sink, int32_t expect_n) {
    static int32_t ids[4096];
    struct mxc_prompt p = prompt_of(tokens, n);
    assert_int_equal(sink->n, expect_n);
    fake_reference(m, &p, expect_n, ids);
    assert_memory_equal(ids, sink->ids, (size_t)expect_n * sizeof *ids);
    assert_int_equal(sink->n_done, 1);
}

/* Alone and in batches, with every kind of KV, through chunks of many sizes. */
static void batches_and_chunks(void **state) {
    (void)state;
    static const struct {
        bool full;
        int32_t window;
    } kinds[] = {{true, 0}, {true, 40}, {false, 33}, {true, 300}};
    static const int32_t rows[] = {18, 19, 64, 512};
    static struct sink sinks[17];
    static int32_t tokens[17][300];
    struct mxc_rng rng;
    mxc_rng_seed(&rng, 1);
    for (size_t k = 0; k < 4; k++)
        for (size_t r = 0; r < 4; r++) {
            struct fake_model m;
            fake_model_init(&m, kinds[k].full, kinds[k].window);
            struct mxc_engine_options o = options_of(&m, 17, rows[r], 400, 17);
            struct mxc_engine *e = engine_of(&m, &o);
            memset(sinks, 0, sizeof sinks);
            for (int i = 0; i < 17; i++) {
                int32_t n = 1 + i * 17;
                random_tokens(&rng, tokens[i], n);
                submit(e, tokens[i], n, 20 + i, &sinks[i]);
            }
            run_all(e);
            for (int i = 0; i < 17; i++) {
                assert_int_equal(sinks[i].reason, MXC_DONE_LENGTH);
                assert_reference(&m, tokens[i], 1 + i * 17, &sinks[i], 20 + i);
            }
            assert_int_equal(m.bad, 0);
            assert_true(m.most_rows <= rows[r]);
            assert_true(m.most_spans > 4);
            assert_no_leak(e);
            mxc_engine_free(e);
            assert_int_equal(m.n_states, 0);
        }
}

static void prefix_hits(void **state) {
    (void)state;
    static struct sink a, b, c, d;
    int32_t tokens[200], other[200];
    struct mxc_rng rng;
    mxc_rng_seed(&rng, 2);
    for (int32_t window = 0; window < 100; window += 45) {
        struct fake_model m;
        fake_model_init(&m, true, window);
        struct mxc_engine_options o = options_of(&m, 4, 64, 400, 4);
        struct mxc_engine *e = engine_of(&m, &o);
        random_tokens(&rng, tokens, 200);
        memset(&a, 0, sizeof a), memset(&b, 0, sizeof b);
        memset(&c, 0, sizeof c), memset(&d, 0, sizeof d);
        submit(e, tokens, 160, 50, &a);
        run_all(e);
        uint64_t runs = m.n_runs;
        submit(e, tokens, 160, 50, &b);
        run_all(e);
        assert_int_equal(a.stats.n_cached, 0);
        assert_int_equal(b.stats.n_cached, 128); /* 160 is 5 blocks, but one row must run */
        assert_true(m.n_runs - runs < 54);
        /* a second turn: prompt, answer and a new question share more */
        memcpy(other, tokens, 160 * sizeof *tokens);
        memcpy(other + 160, a.ids, 40 * sizeof *tokens);
        submit(e, other, 200, 9, &c);
        run_all(e);
        assert_int_equal(c.stats.n_cached, 192);
        /* a difference in the first token shares nothing */
        other[0] = (other[0] + 1) % FAKE_VOCAB;
        submit(e, other, 200, 9, &d);
        run_all(e);
        assert_int_equal(d.stats.n_cached, 0);
        assert_reference(&m, tokens, 160, &a, 50);
        assert_reference(&m, tokens, 160, &b, 50);
        assert_reference(&m, other, 200, &d, 9);
        other[0] = tokens[0];
        assert_reference(&m, other, 200, &c, 9);
        assert_int_equal(m.bad, 0);
        assert_no_leak(e);
        mxc_engine_free(e);
    }
}

/* Requests that differ in salt, or want no cache, share nothing. */
static void cache_limits(void **state) {
    (void)state;
    struct fake_model m;
    fake_model_init(&m, true, 0);
    struct mxc_engine_options o = options_of(&m, 4, 64, 400, 4);
    struct mxc_engine *e = engine_of(&m, &o);
    int32_t tokens[100];
    struct mxc_rng rng;
    mxc_rng_seed(&rng, 3);
    random_tokens(&rng, tokens, 100);
    static const struct {
        uint64_t salt;
        bool no_cache;
        int32_t cached;
    } cases[] = {{1, false, 0}, {1, false, 96}, {2, false, 0}, {1, true, 0}, {2, false, 96}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sink sink = {0};
        struct mxc_prompt p = prompt_of(tokens, 100);
        struct mxc_request_params params;
        uint64_t id;
        mxc_request_params_init(&params);
        params.event = sink_event;
        params.user = &sink;
        params.max_tokens = 5;
        params.no_cache = cases[i].no_cache;
        p.cache_salt = cases[i].salt;
        assert_int_equal(mxc_engine_submit(e, &p, &params, &id, NULL), MXC_OK);
        run_all(e);
        assert_int_equal(sink.stats.n_cached, cases[i].cached);
        assert_reference(&m, tokens, 100, &sink, 5);
    }
    assert_no_leak(e);
    mxc_engine_free(e);
}

/* A pool for less than the batch: sequences are preempted, recomputed, and lose nothing. */
static void preemption(void **state) {
    (void)state;
    static struct sink sinks[8];
    static int32_t tokens[8][60];
    for (int32_t window = 0; window < 80; window += 50) {
        struct fake_model m;
        struct mxc_rng rng;
        mxc_rng_seed(&rng, 4);
        fake_model_init(&m, true, window);
        struct mxc_engine_options o = options_of(&m, 8, 64, 600, 8);
        o.n_blocks[MXC_KV_FULL] = 24;
        if (window)
            o.n_blocks[MXC_KV_WINDOW] = 14;
        struct mxc_engine *e = engine_of(&m, &o);
        memset(sinks, 0, sizeof sinks);
        for (int i = 0; i < 8; i++) {
            random_tokens(&rng, tokens[i], 60);
            submit(e, tokens[i], 60 - i, 200, &sinks[i]);
        }
        run_all(e);
        struct mxc_engine_stats s;
        mxc_engine_get_stats(e, &s);
        assert_true(s.n_preempted > 0);
        int32_t preempted = 0;
        for (int i = 0; i < 8; i++) {
            assert_reference(&m, tokens[i], 60 - i, &sinks[i], 200);
            preempted += sinks[i].stats.n_preempted;
        }
        assert_int_equal(sinks[0].stats.n_preempted, 0); /* the oldest always goes on */
        assert_int_equal(preempted, s.n_preempted);
        assert_int_equal(m.bad, 0);
        assert_no_leak(e);
        mxc_engine_free(e);
    }
}

/* A long prompt never holds decoders up: each step has their rows, and few of the prompt. */
static void decoders_advance(void **state) {
    (void)state;
    static struct sink d[3], book, note;
    static int32_t tokens[3000];
    struct fake_model m;
    struct mxc_rng rng;
    mxc_rng_seed(&rng, 5);
    fake_model_init(&m, true, 0);
    struct mxc_engine_options o = options_of(&m, 8, 128, 4000, 8);
    o.prefill_rows = 40;
    struct mxc_engine *e = engine_of(&m, &o);
    random_tokens(&rng, tokens, 3000);
    memset(d, 0, sizeof d), memset(&book, 0, sizeof book), memset(&note, 0, sizeof note);
    for (int i = 0; i < 3; i++)
        submit(e, tokens + i, 10, 500, &d[i]);
    mxc_engine_step(e);
    submit(e, tokens, 2500, 3, &book);
    for (int i = 0; i < 10; i++) {
        int32_t before = d[0].n + d[1].n + d[2].n;
        mxc_engine_step(e);
        assert_int_equal(d[0].n + d[1].n + d[2].n, before + 3);
        assert_true(m.last_rows <= 43);
    }
    /* a short prompt beside the long one gets its quarter: 30 rows in 3 or 4 steps */
    submit(e, tokens + 100, 30, 2, &note);
    for (int i = 0; i < 4; i++)
        mxc_engine_step(e);
    assert_true(note.n > 0);
    assert_int_equal(book.n, 0);
    run_all(e);
    assert_reference(&m, tokens, 2500, &book, 3);
    assert_reference(&m, tokens + 2, 10, &d[2], 500);
    mxc_engine_free(e);
}

/* A clock of a machine on which a step takes 2 ms, and half of one more for each row. */
static const struct fake_model *timed;
static uint64_t machine_clock(void) {
    static uint64_t at_ns, n_runs;
    if (timed->n_runs != n_runs)
        at_ns += 2000000 + (uint64_t)timed->last_rows * 500000;
    n_runs = timed->n_runs;
    return at_ns;
}

/* Beside a long prompt a step takes at most `stall` times as long as one without; both go on. */
static void decoders_keep_their_pace(void **state) {
    (void)state;
    static struct sink d[4], book;
    static int32_t tokens[3000];
    struct fake_model m;
    struct mxc_rng rng;
    mxc_rng_seed(&rng, 6);
    fake_model_init(&m, true, 0);
    timed = &m;
    struct mxc_engine_options o = options_of(&m, 8, 1024, 4000, 8);
    o.stall = 4;
    o.clock = machine_clock;
    struct mxc_engine *e = engine_of(&m, &o);
    random_tokens(&rng, tokens, 3000);
    memset(d, 0, sizeof d), memset(&book, 0, sizeof book);
    for (int i = 0; i < 4; i++)
        submit(e, tokens + i, 10, 500, &d[i]);
    for (int i = 0; i < 5; i++)
        mxc_engine_step(e);
    submit(e, tokens, 2500, 3, &book);
    for (int i = 0; i < 110; i++) {
        int32_t before = d[0].n + d[1].n + d[2].n + d[3].n;
        mxc_engine_step(e);
        assert_int_equal(d[0].n + d[1].n + d[2].n + d[3].n, before + 4);
        /* alone 2 + 4 / 2 = 4 ms; 16 ms allow for 24 rows of the prompt */
        assert_true(m.last_rows <= 4 + 24);
    }
    assert_true(book.n > 0); /* 2,500 rows in 110 steps */
    run_all(e);
    assert_reference(&m, tokens, 2500, &book, 3);
    assert_reference(&m, tokens + 2, 10, &d[2], 500);
    mxc_engine_free(e);
    o.stall = 0.5;
    struct mxc_engine_target target = fake_target(&m);
    assert_int_equal(mxc_engine_new(&target, &o, &e, NULL), MXC_E_ARG);
}

static void cancel_anywhere(void **state) {
    (void)state;
    static struct sink s[6];
    int32_t tokens[300];
    struct mxc_rng rng;
    mxc_rng_seed(&rng, 6);
    random_tokens(&rng, tokens, 300);
    struct fake_model m;
    fake_model_init(&m, true, 0);
    struct mxc_engine_options o = options_of(&m, 2, 32, 400, 3);
    struct mxc_engine *e = engine_of(&m, &o);
    memset(s, 0, sizeof s);
    uint64_t decoding = submit(e, tokens, 5, 100, &s[0]);
    mxc_engine_step(e);
    uint64_t prefilling = submit(e, tokens, 300, 100, &s[1]);
    uint64_t queued = submit(e, tokens, 10, 100, &s[2]);
    mxc_engine_step(e);
    uint64_t inbox = submit(e, tokens, 11, 100, &s[3]);
    assert_true(s[0].n > 0 && s[1].n == 0);
    mxc_engine_cancel(e, decoding);
    mxc_engine_cancel(e, prefilling);
    mxc_engine_cancel(e, queued);
    mxc_engine_cancel(e, inbox);
    mxc_engine_cancel(e, 999);
    mxc_engine_step(e);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(s[i].n_done, 1);
        assert_int_equal(s[i].reason, MXC_DONE_CANCELLED);
    }
    assert_no_leak(e);
    /* from inside an event, and by the event's answer */
    s[4].cancel_in = e;
    submit(e, tokens, 20, 100, &s[4]);
    s[5].stop_after = 3;
    submit(e, tokens, 21, 100, &s[5]);
    run_all(e);
    assert_int_equal(s[4].n, 1);
    assert_int_equal(s[4].reason, MXC_DONE_CANCELLED);
    assert_int_equal(s[5].n, 3);
    assert_int_equal(s[5].reason, MXC_DONE_STOP);
    assert_int_equal(s[5].stop_id, -1);
    /* what is in flight when the engine goes gets its end too */
    memset(s, 0, sizeof s);
    for (int i = 0; i < 3; i++)
        submit(e, tokens, 50, 100, &s[i]);
    mxc_engine_step(e);
    submit(e, tokens, 50, 100, &s[3]);
    mxc_engine_free(e);
    for (int i = 0; i < 4; i++)
        assert_int_equal(s[i].n_done, 1);
}

static enum mxc_code submit_bad(struct mxc_engine *e, struct mxc_prompt p,
                                struct mxc_request_params params, struct mxc_err *err) {
    static struct sink sink;
    uint64_t id = 42;
    if (!params.event)
        params.event = sink_event;
    params.user = &sink;
    enum mxc_code code = mxc_engine_submit(e, &p, &params, &id, err);
    assert_int_not_equal(code, MXC_OK);
    assert_int_equal(id, 42);
    assert_int_equal(sink.n_done, 0);
    return code;
}

static void limits(void **state) {
    (void)state;
    static struct sink s[8];
    static int32_t tokens[500];
    struct mxc_err err;
    struct fake_model m;
    fake_model_init(&m, true, 0);
    struct mxc_engine_options o = options_of(&m, 2, 32, 100, 2);
    o.max_queue = 3;
    struct mxc_engine *e = engine_of(&m, &o);
    struct mxc_request_params params, bad;
    mxc_request_params_init(&params);
    assert_int_equal(submit_bad(e, prompt_of(tokens, 100), params, &err), MXC_E_CONTEXT);
    assert_non_null(strstr(err.message, "100"));
    assert_int_equal(submit_bad(e, prompt_of(tokens, 0), params, &err), MXC_E_ARG);
    tokens[3] = FAKE_VOCAB;
    assert_int_equal(submit_bad(e, prompt_of(tokens, 5), params, &err), MXC_E_ARG);
    tokens[3] = 0;
    bad = params, bad.max_tokens = -2;
    assert_int_equal(submit_bad(e, prompt_of(tokens, 5), bad, &err), MXC_E_ARG);
    bad = params, bad.n_logprobs = 1000;
    assert_int_equal(submit_bad(e, prompt_of(tokens, 5), bad, &err), MXC_E_ARG);
    bad = params, bad.sampling.top_p = 1.5f;
    assert_int_equal(submit_bad(e, prompt_of(tokens, 5), bad, &err), MXC_E_ARG);
    assert_non_null(strstr(err.message, "top_p"));
    int32_t id = -1;
    bad = params, bad.stop_ids = &id, bad.n_stop_ids = 1;
    assert_int_equal(submit_bad(e, prompt_of(tokens, 5), bad, &err), MXC_E_ARG);
    /* the queue */
    memset(s, 0, sizeof s);
    for (int i = 0; i < 3; i++)
        submit(e, tokens, 5, -1, &s[i]);
    assert_int_equal(submit_bad(e, prompt_of(tokens, 5), params, &err), MXC_E_BUSY);
    mxc_engine_step(e); /* two of them run now */
    submit(e, tokens, 99, -1, &s[3]);
    submit(e, tokens, 5, 0, &s[4]);
    assert_int_equal(submit_bad(e, prompt_of(tokens, 5), params, &err), MXC_E_BUSY);
    run_all(e);
    assert_int_equal(s[0].n, 95); /* to the end of the context */
    assert_int_equal(s[0].reason, MXC_DONE_LENGTH);
    assert_int_equal(s[3].n, 1);
    assert_int_equal(s[4].n, 0);
    assert_int_equal(s[4].reason, MXC_DONE_LENGTH);
    mxc_engine_free(e);
    /* the pool bounds the context */
    o.n_blocks[MXC_KV_FULL] = 2;
    e = engine_of(&m, &o);
    assert_int_equal(submit_bad(e, prompt_of(tokens, 64), params, &err), MXC_E_CONTEXT);
    memset(s, 0, sizeof s);
    submit(e, tokens, 40, -1, &s[0]);
    run_all(e);
    assert_int_equal(s[0].n, 24);
    mxc_engine_free(e);
    /* options that cannot be */
    struct mxc_engine_target target = fake_target(&m);
    o.n_blocks[MXC_KV_FULL] = 0;
    assert_int_equal(mxc_engine_new(&target, &o, &e, &err), MXC_E_ARG);
    o.n_blocks[MXC_KV_FULL] = 2, o.max_rows = 2;
    assert_int_equal(mxc_engine_new(&target, &o, &e, &err), MXC_E_ARG);
}

static void stops(void **state) {
    (void)state;
    int32_t tokens[10] = {1, 2, 3}, ids[40];
    struct fake_model m;
    fake_model_init(&m, true, 0);
    struct mxc_engine_options o = options_of(&m, 4, 64, 100, 4);
    struct mxc_engine *e = engine_of(&m, &o);
    struct mxc_prompt p = prompt_of(tokens, 3);
    fake_reference(&m, &p, 40, ids);
    int32_t last = 25;
    for (int32_t i = 0; i < last; i++)
        if (ids[i] == ids[last])
            last = i; /* its first place */
    static const struct {
        bool eos, ignore, stops;
    } cases[] = {{true, false, true}, {true, true, false}, {false, true, true}};
    for (int i = 0; i < 3; i++) {
        struct sink s = {0};
        struct mxc_request_params params;
        uint64_t id;
        mxc_request_params_init(&params);
        params.event = sink_event;
        params.user = &s;
        params.max_tokens = 40;
        params.ignore_eos = cases[i].ignore;
        if (cases[i].eos)
            params.eos_ids = &ids[last], params.n_eos_ids = 1;
        else
            params.stop_ids = &ids[last], params.n_stop_ids = 1;
        assert_int_equal(mxc_engine_submit(e, &p, &params, &id, NULL), MXC_OK);
        run_all(e);
        assert_int_equal(s.n, cases[i].stops ? last : 40);
        assert_int_equal(s.reason, cases[i].stops ? MXC_DONE_STOP : MXC_DONE_LENGTH);
        assert_int_equal(s.stop_id, cases[i].stops ? ids[last] : -1);
        assert_int_equal(s.stats.n_generated, cases[i].stops ? last + 1 : 40);
    }
    mxc_engine_free(e);
}

/* A failing step ends its requests only; a NaN ends its own request only. */
static void failures(void **state) {
    (void)state;
    static struct sink s[4];
    int32_t tokens[50] = {1, 2, 3};
    struct fake_model m;
    fake_model_init(&m, true, 0);
    m.fail_run_at = 3;
    struct mxc_engine_options o = options_of(&m, 2, 32, 100, 2);
    struct mxc_engine *e = engine_of(&m, &o);
    memset(s, 0, sizeof s);
    for (int i = 0; i < 3; i++)
        submit(e, tokens, 3 + i, 10, &s[i]);
    run_all(e);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(s[i].reason, MXC_DONE_ERROR);
        assert_int_equal(s[i].err.code, MXC_E_BACKEND);
        assert_string_equal(s[i].err.message, "the device fell over");
    }
    assert_reference(&m, tokens, 5, &s[2], 10);
    memset(s, 0, sizeof s);
    m.nan_token = 17;
    tokens[40] = 17;
    submit(e, tokens, 40, 10, &s[0]);
    submit(e, tokens, 41, 10, &s[1]);
    run_all(e);
    assert_int_equal(s[1].reason, MXC_DONE_ERROR);
    assert_int_equal(s[1].n, 0);
    assert_non_null(strstr(s[1].err.message, "not a number"));
    assert_int_equal(s[0].n_done, 1);
    assert_no_leak(e);
    mxc_engine_free(e);
}

static uint64_t now_ns;
static uint64_t fake_clock(void) {
    return now_ns;
}

static void deadlines_and_timings(void **state) {
    (void)state;
    struct sink s = {0}, t = {0};
    int32_t tokens[100] = {1};
    struct fake_model m;
    fake_model_init(&m, true, 0);
    struct mxc_engine_options o = options_of(&m, 1, 32, 200, 2);
    o.clock = fake_clock;
    now_ns = 1000;
    struct mxc_engine *e = engine_of(&m, &o);
    struct mxc_request_params params;
    struct mxc_prompt p = prompt_of(tokens, 100);
    uint64_t id;
    mxc_request_params_init(&params);
    params.event = sink_event;
    params.user = &s;
    params.deadline_ns = 1700;
    params.progress = true;
    assert_int_equal(mxc_engine_submit(e, &p, &params, &id, NULL), MXC_OK);
    params.user = &t; /* this one waits in the queue, and is late there */
    assert_int_equal(mxc_engine_submit(e, &p, &params, &id, NULL), MXC_OK);
    for (int i = 0; i < 8; i++) {
        now_ns += 100;
        mxc_engine_step(e);
    }
    assert_int_equal(s.reason, MXC_DONE_ERROR);
    assert_int_equal(s.err.code, MXC_E_LIMIT);
    assert_int_equal(s.n, 3); /* prompt rows in steps 1 to 4, late in step 7 */
    assert_int_equal(s.n_progress, 4);
    assert_int_equal(s.last_progress, 100);
    assert_int_equal(s.stats.queue_ns, 100);
    assert_int_equal(s.stats.prefill_ns, 300);
    assert_int_equal(s.stats.decode_ns, 300);
    assert_int_equal(t.n_done, 1);
    assert_int_equal(t.err.code, MXC_E_LIMIT);
    mxc_engine_free(e);
}

/* Priority goes before arrival; the queue keeps arrival within a priority. */
static void priorities(void **state) {
    (void)state;
    static struct sink s[4];
    int32_t tokens[10] = {4, 5};
    struct fake_model m;
    fake_model_init(&m, true, 0);
    struct mxc_engine_options o = options_of(&m, 1, 32, 100, 1);
    struct mxc_engine *e = engine_of(&m, &o);
    memset(s, 0, sizeof s);
    for (int i = 0; i < 4; i++) {
        struct mxc_request_params params;
        struct mxc_prompt p = prompt_of(tokens, 2);
        uint64_t id;
        mxc_request_params_init(&params);
        params.event = sink_event;
        params.user = &s[i];
        params.max_tokens = 4;
        params.priority = i == 2;
        assert_int_equal(mxc_engine_submit(e, &p, &params, &id, NULL), MXC_OK);
    }
    static const int order[] = {2, 0, 1, 3};
    for (int i = 0; i < 4; i++) {
        while (!s[order[i]].n_done)
            mxc_engine_step(e);
        for (int j = i + 1; j < 4; j++)
            assert_int_equal(s[order[j]].n, 0);
    }
    mxc_engine_free(e);
}

/* n answers to one prompt: one prefill, shared blocks, copies only where they part. */
static void groups(void **state) {
    (void)state;
    static struct sink s[5];
    int32_t tokens[150];
    struct mxc_rng rng;
    mxc_rng_seed(&rng, 9);
    random_tokens(&rng, tokens, 150);
    for (int32_t window = 0; window < 100; window += 60) {
        for (int32_t n_prompt = 127; n_prompt <= 130; n_prompt++) {
            struct fake_model m;
            fake_model_init(&m, true, window);
            struct mxc_engine_options o = options_of(&m, 8, 64, 400, 5);
            struct mxc_engine *e = engine_of(&m, &o);
            memset(s, 0, sizeof s);
            for (int i = 0; i < 5; i++) {
                struct mxc_request_params params;
                struct mxc_prompt p = prompt_of(tokens, n_prompt);
                uint64_t id;
                mxc_request_params_init(&params);
                params.event = sink_event;
                params.user = &s[i];
                params.max_tokens = 60;
                params.group = 7;
                params.no_cache = i > 2; /* sharing inside a group needs no cache */
                if (i) {
                    params.sampling.temperature = 2;
                    params.sampling.seed = (uint64_t)i;
                }
                assert_int_equal(mxc_engine_submit(e, &p, &params, &id, NULL), MXC_OK);
            }
            run_all(e);
            struct mxc_engine_stats stats;
            mxc_engine_get_stats(e, &stats);
            assert_int_equal(s[0].stats.n_cached, 0);
            for (int i = 1; i < 5; i++)
                assert_int_equal(s[i].stats.n_cached, n_prompt - 1);
            /* prompt once, one row per follower, and 59 fed-back tokens each */
            assert_int_equal(stats.n_rows, n_prompt + 4 + 5 * 59);
            assert_reference(&m, tokens, n_prompt, &s[0], 60);
            assert_true(n_prompt == 129 || m.n_copies >= 4);
            assert_int_not_equal(memcmp(s[1].ids, s[2].ids, 60 * sizeof(int32_t)), 0);
            assert_int_equal(m.bad, 0);
            /* the same seeds alone give the same tokens */
            struct sink again = {0};
            struct mxc_request_params params;
            struct mxc_prompt p = prompt_of(tokens, n_prompt);
            uint64_t id;
            mxc_request_params_init(&params);
            params.event = sink_event;
            params.user = &again;
            params.max_tokens = 60;
            params.sampling.temperature = 2;
            params.sampling.seed = 4;
            assert_int_equal(mxc_engine_submit(e, &p, &params, &id, NULL), MXC_OK);
            run_all(e);
            assert_memory_equal(again.ids, s[4].ids, 60 * sizeof(int32_t));
            assert_no_leak(e);
            mxc_engine_free(e);
        }
    }
}

/* Image rows: spliced, keyed by digest and place, seen both ways, never cut. */
static void images(void **state) {
    (void)state;
    static struct sink s[6];
    static int32_t tokens[200], positions[600], row_end[200], ids[30];
    static float rows[2][50 * FAKE_HIDDEN];
    struct mxc_rng rng;
    mxc_rng_seed(&rng, 10);
    random_tokens(&rng, tokens, 200);
    for (int i = 0; i < 100; i++)
        rows[0][i] = (float)i, rows[1][i] = (float)i + (i > 90);
    for (int32_t i = 0; i < 200; i++) {
        bool image = i >= 40 && i < 90;
        row_end[i] = image ? 90 : i + 1;
        for (int a = 0; a < 3; a++)
            positions[a * 200 + i] = image ? 40 + (i - 40) % 7 * a : i < 40 ? i : i - 20;
    }
    struct fake_model m;
    fake_model_init(&m, true, 0);
    m.graph.n_ropes = 1;
    m.ropes[0].sections[0] = m.ropes[0].sections[1] = 1;
    struct mxc_engine_options o = options_of(&m, 4, 64, 400, 6);
    o.prefill_rows = 16;
    struct mxc_engine *e = engine_of(&m, &o);
    memset(s, 0, sizeof s);
    struct mxc_embed_run run[2] = {{.row0 = 40, .n_rows = 50, .rows = rows[0], .digest = {1}},
                                   {.row0 = 40, .n_rows = 50, .rows = rows[1], .digest = {2}}};
    static const int image_of[] = {0, 1, 0, 1, 0, 0};
    struct mxc_request_params params;
    mxc_request_params_init(&params);
    params.event = sink_event;
    params.max_tokens = 30;
    uint64_t id;
    submit(e, tokens + 7, 9, 300, &s[5]); /* a decoder all the while */
    for (int i = 0; i < 4; i++) {
        struct mxc_prompt p = prompt_of(tokens, 200);
        p.positions = positions;
        p.rope_delta = -20;
        p.row_end = row_end;
        p.embeds = &run[image_of[i]];
        p.n_embeds = 1;
        params.user = &s[i];
        assert_int_equal(mxc_engine_submit(e, &p, &params, &id, NULL), MXC_OK);
        while (!s[i].n_done)
            mxc_engine_step(e);
        assert_int_equal(m.bad, 0);
        fake_reference(&m, &p, 30, ids);
        assert_memory_equal(ids, s[i].ids, sizeof ids);
        /* the same picture again hits, another one only up to where it starts */
        static const int32_t cached[] = {0, 32, 192, 192};
        assert_int_equal(s[i].stats.n_cached, cached[i]);
    }
    assert_memory_not_equal(s[0].ids, s[1].ids, sizeof ids);
    /* a hit that would end inside the image is cut back to before it */
    struct mxc_prompt p = prompt_of(tokens, 91);
    p.positions = positions;
    p.row_end = row_end;
    p.embeds = run;
    p.n_embeds = 1;
    p.rope_delta = 5;
    params.user = &s[4];
    int32_t *short_positions = calloc(273, sizeof *short_positions);
    for (int a = 0; a < 3; a++)
        memcpy(short_positions + a * 91, positions + a * 200, 91 * sizeof *positions);
    p.positions = short_positions;
    assert_int_equal(mxc_engine_submit(e, &p, &params, &id, NULL), MXC_OK);
    free(short_positions); /* copied */
    while (!s[4].n_done)
        mxc_engine_step(e);
    assert_int_equal(s[4].stats.n_cached, 32);
    /* what cannot be */
    struct mxc_err err;
    row_end[10] = 12;
    p = prompt_of(tokens, 200);
    p.row_end = row_end;
    p.embeds = run;
    p.n_embeds = 1;
    assert_int_equal(mxc_engine_submit(e, &p, &params, &id, &err), MXC_E_ARG);
    row_end[10] = 11;
    run[0].row0 = 190;
    assert_int_equal(mxc_engine_submit(e, &p, &params, &id, &err), MXC_E_ARG);
    run[0] = (struct mxc_embed_run){.row0 = 20, .n_rows = 100, .rows = rows[0], .digest = {3}};
    for (int i = 20; i < 120; i++)
        row_end[i] = 120;
    assert_int_equal(mxc_engine_submit(e, &p, &params, &id, &err), MXC_E_LIMIT);
    run_all(e);
    assert_no_leak(e);
    mxc_engine_free(e);
}

/* Every allocation of making an engine and of a submit may fail: an error, and nothing is lost. */
static void out_of_memory(void **state) {
    (void)state;
    int32_t tokens[100] = {1};
    struct fake_model m;
    fake_model_init(&m, true, 40);
    struct mxc_engine_options o = options_of(&m, 2, 32, 200, 2);
    struct mxc_engine_target target = fake_target(&m);
    struct mxc_engine *e = NULL;
    struct mxc_err err;
    int n_failed = 0;
    for (uint64_t n = 1;; n++) {
        mxc_mem_fail_at(n);
        enum mxc_code code = mxc_engine_new(&target, &o, &e, &err);
        mxc_mem_fail_at(0);
        if (!code)
            break;
        assert_int_equal(code, MXC_E_NOMEM);
        assert_null(e);
        n_failed++;
    }
    assert_true(n_failed > 10);
    assert_int_equal(m.n_states, 1);
    struct mxc_logit_bias bias = {3, 1};
    float rows[FAKE_HIDDEN * 4] = {0};
    struct mxc_embed_run run = {.row0 = 0, .n_rows = 4, .rows = rows};
    int32_t stop = 5;
    struct mxc_request_params params;
    struct sink sink = {0};
    mxc_request_params_init(&params);
    params.event = sink_event;
    params.user = &sink;
    params.max_tokens = 150;
    params.n_logprobs = 3;
    params.stop_ids = &stop, params.n_stop_ids = 1;
    params.sampling.bias = &bias, params.sampling.n_bias = 1;
    struct mxc_prompt p = prompt_of(tokens, 100);
    p.embeds = &run, p.n_embeds = 1;
    uint64_t id = 0;
    n_failed = 0;
    for (uint64_t n = 1;; n++) {
        mxc_mem_fail_at(n);
        enum mxc_code code = mxc_engine_submit(e, &p, &params, &id, &err);
        mxc_mem_fail_at(0);
        if (!code)
            break;
        assert_int_equal(code, MXC_E_NOMEM);
        n_failed++;
    }
    assert_true(n_failed > 5);
    assert_int_equal(id, 1);
    /* stepping needs no memory, but for keys of image blocks: without them it only caches less */
    mxc_mem_fail_at(1);
    run_all(e);
    mxc_mem_fail_at(0);
    assert_int_equal(sink.n_done, 1);
    assert_true(sink.reason == MXC_DONE_STOP || sink.reason == MXC_DONE_LENGTH);
    assert_no_leak(e);
    mxc_engine_free(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(batches_and_chunks),
                                       cmocka_unit_test(prefix_hits),
                                       cmocka_unit_test(cache_limits),
                                       cmocka_unit_test(preemption),
                                       cmocka_unit_test(decoders_advance),
                                       cmocka_unit_test(decoders_keep_their_pace),
                                       cmocka_unit_test(cancel_anywhere),
                                       cmocka_unit_test(limits),
                                       cmocka_unit_test(stops),
                                       cmocka_unit_test(failures),
                                       cmocka_unit_test(deadlines_and_timings),
                                       cmocka_unit_test(priorities),
                                       cmocka_unit_test(groups),
                                       cmocka_unit_test(images),
                                       cmocka_unit_test(out_of_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
