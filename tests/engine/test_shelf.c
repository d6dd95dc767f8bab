/* The shelf: what one engine puts there another one finds, and whatever is lost, damaged or evicted
 * in between, every request gets exactly the tokens it gets alone. */
#include "test.h"

#include "base/mem.h"
#include "engine/engine.h"
#include "engine/rng.h"
#include "engine/shelf.h"
#include "fake_backend.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_RECORDS = 512 };

/* A shelf in memory. */
struct memory {
    struct mxc_shelf shelf;
    struct {
        uint8_t *bytes;
        size_t n;
    } records[MAX_RECORDS];
    int n, room; /* room: records that fit; less than n: none now */
    int n_got, n_put, n_forgotten, n_wakes;
    int lose; /* one in so many get calls finds nothing; 0: none */
    struct mxc_rng rng;
};

static int index_of(const struct memory *m, const uint8_t *digest) {
    for (int i = 0; i < m->n; i++)
        if (!memcmp(m->records[i].bytes + offsetof(struct mxc_record, digest), digest,
                    MXC_BLAKE2B_BYTES))
            return i;
    return -1;
}

static bool find(void *user, const uint8_t digest[MXC_BLAKE2B_BYTES]) {
    return index_of(user, digest) >= 0;
}

static bool get(void *user, const uint8_t digest[MXC_BLAKE2B_BYTES], uint8_t **record,
                size_t *n_bytes) {
    struct memory *m = user;
    int i = index_of(m, digest);
    if (i < 0 || (m->lose && mxc_rng_next(&m->rng) % (uint64_t)m->lose == 0))
        return false;
    assert_true(mxc_record_check(m->records[i].bytes, m->records[i].n));
    *record = (uint8_t *)mxc_mem_dup((const char *)m->records[i].bytes, m->records[i].n);
    *n_bytes = m->records[i].n;
    m->n_got++;
    return *record != NULL;
}

static bool has_room(void *user) {
    const struct memory *m = user;
    return m->n < m->room;
}

static void put(void *user, uint8_t *record, size_t n_bytes) {
    struct memory *m = user;
    static const uint8_t model[MXC_BLAKE2B_BYTES] = {7}, none[MXC_BLAKE2B_BYTES];
    const uint8_t *parent = record + offsetof(struct mxc_record, parent);
    assert_true(m->n < MAX_RECORDS);
    mxc_record_seal(record, n_bytes, model);
    /* what it goes on from was put before it */
    assert_true(!memcmp(parent, none, sizeof none) || index_of(m, parent) >= 0);
    int i = index_of(m, record + offsetof(struct mxc_record, digest));
    if (i >= 0) {
        mxc_mem_free(m->records[i].bytes);
    } else {
        i = m->n++;
    }
    m->records[i].bytes = record;
    m->records[i].n = n_bytes;
    m->n_put++;
}

static void forget(void *user, const uint8_t digest[MXC_BLAKE2B_BYTES]) {
    struct memory *m = user;
    int i = index_of(m, digest);
    m->n_forgotten++;
    if (i < 0)
        return;
    mxc_mem_free(m->records[i].bytes);
    m->records[i] = m->records[--m->n];
}

static void wake_in(void *user, uint64_t ns) {
    struct memory *m = user;
    (void)ns;
    m->n_wakes++;
}

static void memory_init(struct memory *m) {
    memset(m, 0, sizeof *m);
    m->room = MAX_RECORDS;
    m->shelf = (struct mxc_shelf){find, get, has_room, put, forget, wake_in, m};
    mxc_rng_seed(&m->rng, 5);
}

static void memory_fini(struct memory *m) {
    for (int i = 0; i < m->n; i++)
        mxc_mem_free(m->records[i].bytes);
}

static uint64_t now_ns, tick_ns;
static uint64_t clock_ns(void) {
    return now_ns += tick_ns;
}

static struct mxc_engine *engine_of(struct fake_model *m, const struct mxc_shelf *shelf,
                                    int32_t n_sequences) {
    struct mxc_engine_options o;
    struct mxc_engine_target target = fake_target(m);
    struct mxc_engine *e = NULL;
    struct mxc_err err;
    mxc_engine_options_init(&o);
    o.max_batch = 4;
    o.max_rows = 64;
    o.prefill_rows = 32;
    o.context = 500;
    o.clock = clock_ns;
    mxc_engine_blocks_for(&m->graph, 500, n_sequences, 64, o.n_blocks);
    assert_int_equal(mxc_engine_new(&target, &o, &e, &err), MXC_OK);
    mxc_engine_set_shelf(e, shelf);
    return e;
}

static void submit(struct mxc_engine *e, const int32_t *tokens, int32_t n, struct sink *sink) {
    struct mxc_request_params params;
    struct mxc_prompt prompt = {.tokens = tokens, .n_tokens = n, .adapter = -1};
    uint64_t id;
    memset(sink, 0, sizeof *sink);
    mxc_request_params_init(&params);
    params.max_tokens = 8;
    params.event = sink_event;
    params.user = sink;
    assert_int_equal(mxc_engine_submit(e, &prompt, &params, &id, NULL), MXC_OK);
}

static void run_all(struct mxc_engine *e) {
    for (int i = 0; i < 100000; i++)
        if (!mxc_engine_step(e))
            return;
    fail_msg("the engine does not come to an end");
}

static void assert_right(struct fake_model *m, const int32_t *tokens, int32_t n,
                         const struct sink *sink) {
    int32_t ids[8];
    struct mxc_prompt p = {.tokens = tokens, .n_tokens = n, .adapter = -1};
    assert_int_equal(sink->n_done, 1);
    assert_int_equal(sink->n, 8);
    fake_reference(m, &p, 8, ids);
    assert_memory_equal(ids, sink->ids, sizeof ids);
    assert_int_equal(m->bad, 0);
}

static void random_tokens(struct mxc_rng *rng, int32_t *tokens, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        tokens[i] = (int32_t)(mxc_rng_next(rng) % FAKE_VOCAB);
}

static const struct {
    bool full;
    int32_t window;
} kinds[] = {{true, 0}, {true, 40}, {false, 33}, {true, 300}};

static void from_one_engine_to_the_next(void **state) {
    (void)state;
    static struct sink sink;
    static struct memory shelf;
    int32_t tokens[300];
    struct mxc_rng rng;
    mxc_rng_seed(&rng, 1);
    for (size_t k = 0; k < 4; k++) {
        struct fake_model m;
        fake_model_init(&m, kinds[k].full, kinds[k].window);
        memory_init(&shelf);
        random_tokens(&rng, tokens, 300);
        struct mxc_engine *e = engine_of(&m, &shelf.shelf, 4);
        submit(e, tokens, 300, &sink);
        run_all(e);
        assert_int_equal(sink.stats.n_kept, 288);
        assert_int_equal(shelf.n_put, 0); /* used once, and the engine was busy just now */
        assert_true(shelf.n_wakes > 0);
        assert_false(mxc_engine_shelve(e));
        assert_int_equal(shelf.n, 9);
        mxc_engine_free(e);

        e = engine_of(&m, &shelf.shelf, 4);
        submit(e, tokens, 300, &sink);
        run_all(e);
        assert_int_equal(sink.stats.n_cached, 288);
        assert_right(&m, tokens, 300, &sink);
        assert_int_equal(shelf.n_got, 9);
        struct mxc_engine_stats stats;
        mxc_engine_get_stats(e, &stats);
        assert_int_equal(stats.n_shelf_in, 9);
        /* a prompt that goes on elsewhere takes what is common, from the cache */
        tokens[150] = (tokens[150] + 1) % FAKE_VOCAB;
        submit(e, tokens, 300, &sink);
        run_all(e);
        assert_right(&m, tokens, 300, &sink);
        assert_int_equal(sink.stats.n_cached, 128);
        assert_int_equal(shelf.n_got, 9);
        mxc_engine_set_shelf(e, NULL);
        mxc_engine_clear_cache(e);
        submit(e, tokens, 300, &sink);
        run_all(e);
        assert_int_equal(sink.stats.n_cached, 0);
        mxc_engine_free(e);
        assert_int_equal(m.n_states, 0);
        memory_fini(&shelf);
    }
}

/* What a second request used goes out while others run; the rest when all is quiet. */
static void when_it_is_put(void **state) {
    (void)state;
    static struct sink a, b;
    static struct memory shelf;
    int32_t tokens[200];
    struct mxc_rng rng;
    struct fake_model m;
    mxc_rng_seed(&rng, 2);
    fake_model_init(&m, true, 0);
    memory_init(&shelf);
    tick_ns = 60000000;
    struct mxc_engine *e = engine_of(&m, &shelf.shelf, 4);
    random_tokens(&rng, tokens, 200);
    submit(e, tokens, 200, &a);
    run_all(e);
    submit(e, tokens, 200, &b);
    submit(e, tokens, 100, &a);
    run_all(e);
    assert_int_equal(shelf.n, 6);
    random_tokens(&rng, tokens, 200);
    submit(e, tokens, 200, &a);
    run_all(e);
    assert_int_equal(shelf.n, 6);
    tick_ns = 1000000000;
    for (int i = 0; i < 20; i++)
        (void)mxc_engine_step(e);
    assert_int_equal(shelf.n, 12);
    shelf.room = 0; /* and when there is no room nothing is lost */
    random_tokens(&rng, tokens, 200);
    submit(e, tokens, 200, &a);
    run_all(e);
    for (int i = 0; i < 20; i++)
        (void)mxc_engine_step(e);
    assert_int_equal(shelf.n, 12);
    assert_true(mxc_engine_shelve(e));
    shelf.room = MAX_RECORDS;
    assert_false(mxc_engine_shelve(e));
    assert_int_equal(shelf.n, 18);
    tick_ns = 0;
    mxc_engine_free(e);
    memory_fini(&shelf);
}

/* Many requests with common beginnings, a small pool, a shelf that loses things. */
static void random_traffic(void **state) {
    (void)state;
    static struct sink sinks[24];
    static struct memory shelf;
    static int32_t tokens[24][300];
    int32_t lengths[24];
    struct mxc_rng rng;
    mxc_rng_seed(&rng, 3);
    for (size_t k = 0; k < 4; k++) {
        struct fake_model m;
        fake_model_init(&m, kinds[k].full, kinds[k].window);
        memory_init(&shelf);
        for (int round = 0; round < 6; round++) {
            tick_ns = round % 2 ? 3000000 : 40000000; /* budgets run out at different places */
            shelf.lose = round % 3 ? 9 : 0;
            struct mxc_engine *e = engine_of(&m, &shelf.shelf, 2);
            for (int i = 0; i < 24; i++) {
                lengths[i] = 40 + (int32_t)(mxc_rng_next(&rng) % 260);
                if (round < 2 || i % 7 == 6)
                    random_tokens(&rng, tokens[i], 300);
                if (i && round < 2)
                    memcpy(tokens[i], tokens[i / 2], (mxc_rng_next(&rng) % 200) * sizeof(int32_t));
                submit(e, tokens[i], lengths[i], &sinks[i]);
                for (uint64_t n = mxc_rng_next(&rng) % 12; n; n--)
                    (void)mxc_engine_step(e);
            }
            run_all(e);
            for (int i = 0; i < 24; i++)
                assert_right(&m, tokens[i], lengths[i], &sinks[i]);
            if (shelf.n > MAX_RECORDS / 2) { /* it forgets some, as a bounded one does */
                for (int i = 0; i < 100; i++)
                    mxc_mem_free(shelf.records[--shelf.n].bytes);
            }
            (void)mxc_engine_shelve(e);
            mxc_engine_free(e);
        }
        assert_true(shelf.n_got > 20);
        tick_ns = 0;
        memory_fini(&shelf);
    }
}

static void records(void **state) {
    (void)state;
    static struct sink sink;
    int32_t tokens[200];
    uint8_t *record, none[MXC_BLAKE2B_BYTES] = {0};
    static const uint8_t model[MXC_BLAKE2B_BYTES] = {9};
    size_t n;
    struct mxc_err err;
    struct mxc_rng rng;
    struct fake_model m, other;
    mxc_rng_seed(&rng, 4);
    fake_model_init(&m, true, 40);
    fake_model_init(&other, true, 0);
    struct mxc_engine *e = engine_of(&m, NULL, 4), *to = engine_of(&m, NULL, 4),
                      *wrong = engine_of(&other, NULL, 4);
    random_tokens(&rng, tokens, 200);
    submit(e, tokens, 200, &sink);
    run_all(e);
    const uint8_t *kept = sink.stats.kept;
    assert_int_equal(mxc_engine_kept_record(e, none, 0, &record, &n, &err), MXC_E_NOT_FOUND);
    assert_int_equal(mxc_engine_kept_record(e, kept, 6, &record, &n, &err), MXC_E_NOT_FOUND);
    for (int32_t i = 5; i >= 0; i--) { /* not in this order */
        assert_int_equal(mxc_engine_kept_record(e, kept, i, &record, &n, &err), MXC_OK);
        assert_false(mxc_record_check(record, n)); /* not sealed */
        mxc_record_seal(record, n, model);
        assert_true(mxc_record_check(record, n));
        assert_int_equal(mxc_engine_adopt(to, record, &err), i ? MXC_E_NOT_FOUND : MXC_OK);
        assert_int_equal(mxc_engine_adopt(wrong, record, &err), MXC_E_FORMAT);
        for (size_t at = 0; at < n; at += 1 + at / 7) { /* every byte counts */
            record[at] ^= 0x10;
            assert_false(mxc_record_check(record, n));
            record[at] ^= 0x10;
        }
        for (size_t less = 0; less < n; less += 1 + less / 3)
            assert_false(mxc_record_check(record, less));
        mxc_mem_free(record);
    }
    for (int32_t i = 0; i < 6; i++) {
        assert_int_equal(mxc_engine_kept_record(e, kept, i, &record, &n, &err), MXC_OK);
        mxc_record_seal(record, n, model);
        assert_int_equal(mxc_engine_adopt(to, record, &err), MXC_OK);
        mxc_mem_free(record);
    }
    submit(to, tokens, 200, &sink);
    run_all(to);
    assert_int_equal(sink.stats.n_cached, 192);
    assert_right(&m, tokens, 200, &sink);
    assert_int_equal(mxc_engine_forget(to, sink.stats.kept), 192);
    assert_int_equal(mxc_engine_forget(to, sink.stats.kept), 0);
    submit(to, tokens, 200, &sink);
    run_all(to);
    assert_int_equal(sink.stats.n_cached, 0);
    mxc_engine_free(e);
    mxc_engine_free(to);
    mxc_engine_free(wrong);
}

/* No allocation that fails makes an answer wrong. */
static void faults(void **state) {
    (void)state;
    static struct sink sink;
    static struct memory shelf;
    int32_t tokens[200];
    struct mxc_rng rng;
    struct fake_model m;
    mxc_rng_seed(&rng, 6);
    fake_model_init(&m, true, 40);
    memory_init(&shelf);
    random_tokens(&rng, tokens, 200);
    for (uint64_t at = 1; at < 60; at++) {
        struct mxc_engine *e = engine_of(&m, &shelf.shelf, 2);
        submit(e, tokens, 200, &sink);
        mxc_mem_fail_at(at);
        for (int i = 0; i < 40 && !sink.n_done; i++)
            (void)mxc_engine_step(e);
        (void)mxc_engine_shelve(e);
        mxc_mem_fail_at(0);
        run_all(e);
        assert_right(&m, tokens, 200, &sink);
        mxc_engine_free(e);
    }
    memory_fini(&shelf);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(from_one_engine_to_the_next), cmocka_unit_test(when_it_is_put),
        cmocka_unit_test(random_traffic), cmocka_unit_test(records), cmocka_unit_test(faults)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
