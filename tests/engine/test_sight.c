/* Pictures in prompts, on the fake backend: the tower runs once for each picture, in pieces between
 * the steps of others; what a request gets is what it would get with the rows given; features are
 * kept within their limit. */
#include "test.h"

#include "base/mem.h"
#include "engine/engine.h"
#include "engine/features.h"
#include "fake_backend.h"

#include <string.h>

enum { N = 40, ROWS = 8, FIRST = 10 };

static struct mxc_engine *engine_of(struct fake_model *m, size_t feature_bytes) {
    struct mxc_engine_target target = fake_target(m);
    struct mxc_engine_options o;
    struct mxc_engine *e = NULL;
    mxc_engine_options_init(&o);
    o.max_batch = 4;
    o.max_rows = 64;
    o.prefill_rows = 32;
    o.context = 256;
    o.feature_bytes = feature_bytes;
    mxc_engine_blocks_for(&m->graph, 256, 4, 64, o.n_blocks);
    assert_int_equal(mxc_engine_new(&target, &o, &e, NULL), MXC_OK);
    return e;
}

/* A prompt of N tokens with a picture of ROWS rows at FIRST. */
struct seen {
    int32_t tokens[N];
    float pixels[ROWS * FAKE_HIDDEN], features[ROWS * FAKE_HIDDEN];
    struct mxc_tower_input input;
    struct mxc_prompt_picture picture;
    struct mxc_embed_run run;
    struct mxc_prompt prompt;
};

static void seen_init(struct seen *s, int which) {
    *s = (struct seen){.run = {.row0 = FIRST, .n_rows = ROWS}};
    for (int i = 0; i < N; i++)
        s->tokens[i] = i * 7 % FAKE_VOCAB;
    for (int i = 0; i < ROWS * FAKE_HIDDEN; i++) {
        s->pixels[i] = (float)(which * 100 + i);
        s->features[i] = fake_feature(s->pixels[i]);
    }
    s->input = (struct mxc_tower_input){.rows = s->pixels, .n_rows = {ROWS}};
    s->picture = (struct mxc_prompt_picture){
        .input = &s->input, .digest = {(uint8_t)(which + 1)}, .n_rows = ROWS};
    s->run.digest[0] = (uint8_t)(which + 1);
    s->prompt = (struct mxc_prompt){.tokens = s->tokens,
                                    .n_tokens = N,
                                    .embeds = &s->run,
                                    .n_embeds = 1,
                                    .pictures = &s->picture,
                                    .n_pictures = 1,
                                    .adapter = -1};
}

static enum mxc_code submit(struct mxc_engine *e, const struct mxc_prompt *prompt, int32_t n,
                            struct sink *sink, uint64_t *id, struct mxc_err *err) {
    struct mxc_request_params params;
    mxc_request_params_init(&params);
    params.max_tokens = n;
    params.event = sink_event;
    params.user = sink;
    return mxc_engine_submit(e, prompt, &params, id, err);
}

static void must_submit(struct mxc_engine *e, const struct mxc_prompt *prompt, int32_t n,
                        struct sink *sink, uint64_t *id) {
    uint64_t unused;
    assert_int_equal(submit(e, prompt, n, sink, id ? id : &unused, NULL), MXC_OK);
}

static void run_all(struct mxc_engine *e) {
    for (int i = 0; mxc_engine_step(e); i++)
        assert_true(i < 10000);
}

/* What the prompt gives when the features are handed over as rows. */
static void expect_seen(struct fake_model *m, const struct seen *s, const struct sink *sink,
                        int32_t n) {
    int32_t ids[64];
    struct mxc_embed_run run = s->run;
    struct mxc_prompt prompt = s->prompt;
    run.rows = s->features;
    prompt.embeds = &run;
    prompt.n_pictures = 0;
    fake_reference(m, &prompt, n, ids);
    assert_int_equal(sink->n, n);
    assert_memory_equal(sink->ids, ids, (size_t)n * sizeof *ids);
}

static void once_for_each_picture(void **state) {
    (void)state;
    static struct sink sinks[4];
    struct fake_model m;
    struct seen a, b;
    fake_model_init(&m, true, 0);
    m.tower_pieces = 3;
    struct mxc_engine *e = engine_of(&m, 1 << 20);
    seen_init(&a, 0);
    seen_init(&b, 1);
    memset(sinks, 0, sizeof sinks);
    must_submit(e, &a.prompt, 12, &sinks[0], NULL);
    must_submit(e, &b.prompt, 12, &sinks[1], NULL);
    must_submit(e, &a.prompt, 12, &sinks[2], NULL); /* the same picture, while it is in the tower */
    run_all(e);
    must_submit(e, &b.prompt, 12, &sinks[3], NULL); /* and later */
    run_all(e);
    expect_seen(&m, &a, &sinks[0], 12);
    expect_seen(&m, &b, &sinks[1], 12);
    expect_seen(&m, &a, &sinks[2], 12);
    expect_seen(&m, &b, &sinks[3], 12);
    assert_int_equal(m.n_towers, 2);
    assert_int_equal(m.n_live_towers, 0);
    assert_int_equal(m.bad, 0);
    assert_true(sinks[3].stats.n_cached >= 32); /* the KV prefix goes through the picture */
    struct mxc_engine_stats stats;
    mxc_engine_get_stats(e, &stats);
    assert_int_equal(stats.n_feature_hits, 2);
    assert_int_equal(stats.feature_bytes, 2 * sizeof a.features);
    mxc_engine_free(e);
}

static void others_go_on(void **state) {
    (void)state;
    static struct sink plain, sees;
    struct fake_model m;
    struct seen a;
    fake_model_init(&m, true, 0);
    m.tower_pieces = 10;
    struct mxc_engine *e = engine_of(&m, 1 << 20);
    seen_init(&a, 0);
    memset(&plain, 0, sizeof plain);
    memset(&sees, 0, sizeof sees);
    struct mxc_prompt prompt = {.tokens = a.tokens, .n_tokens = 5, .adapter = -1};
    must_submit(e, &a.prompt, 4, &sees, NULL);
    must_submit(e, &prompt, 30, &plain, NULL);
    for (int i = 0; i < 9; i++)
        (void)mxc_engine_step(e);
    assert_int_equal(sees.n, 0);
    assert_true(plain.n >= 8); /* a token a step, beside the tower */
    run_all(e);
    expect_seen(&m, &a, &sees, 4);
    assert_int_equal(plain.n, 30);
    mxc_engine_free(e);
}

static void cancelled(void **state) {
    (void)state;
    static struct sink sink, other;
    struct fake_model m;
    struct seen a, b;
    uint64_t id;
    fake_model_init(&m, true, 0);
    m.tower_pieces = 5;
    struct mxc_engine *e = engine_of(&m, 1 << 20);
    seen_init(&a, 0);
    seen_init(&b, 1);
    memset(&sink, 0, sizeof sink);
    memset(&other, 0, sizeof other);
    must_submit(e, &a.prompt, 4, &sink, &id);
    must_submit(e, &b.prompt, 4, &other, NULL);
    (void)mxc_engine_step(e);
    assert_int_equal(m.n_live_towers, 1);
    mxc_engine_cancel(e, id);
    run_all(e);
    assert_int_equal(sink.reason, MXC_DONE_CANCELLED);
    expect_seen(&m, &b, &other, 4);
    must_submit(e, &a.prompt, 4, &sink, &id);
    (void)mxc_engine_step(e);
    mxc_engine_free(e); /* with a tower half-way */
    assert_int_equal(m.n_live_towers, 0);
}

static void a_tower_fails(void **state) {
    (void)state;
    static struct sink sink, other;
    struct fake_model m;
    struct seen a, b;
    fake_model_init(&m, true, 0);
    m.tower_pieces = 2;
    m.fail_tower_at = 1;
    struct mxc_engine *e = engine_of(&m, 1 << 20);
    seen_init(&a, 0);
    seen_init(&b, 1);
    memset(&sink, 0, sizeof sink);
    memset(&other, 0, sizeof other);
    must_submit(e, &a.prompt, 4, &sink, NULL);
    must_submit(e, &b.prompt, 4, &other, NULL);
    run_all(e);
    assert_int_equal(sink.reason, MXC_DONE_ERROR);
    assert_non_null(strstr(sink.err.message, "the tower fell over"));
    expect_seen(&m, &b, &other, 4);
    assert_int_equal(m.n_live_towers, 0);
    mxc_engine_free(e);
}

static void kept_within_the_limit(void **state) {
    (void)state;
    static struct sink sink;
    struct fake_model m;
    struct seen a;
    struct mxc_engine_stats stats;
    fake_model_init(&m, true, 0);
    m.tower_pieces = 1;
    size_t one = sizeof a.features;
    struct mxc_engine *e = engine_of(&m, 2 * one + one / 2);
    static const int order[] = {0, 1, 0, 2, 0, 1};
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        seen_init(&a, order[i]);
        memset(&sink, 0, sizeof sink);
        must_submit(e, &a.prompt, 2, &sink, NULL);
        run_all(e);
        expect_seen(&m, &a, &sink, 2);
        mxc_engine_get_stats(e, &stats);
        assert_true(stats.feature_bytes <= 2 * one);
    }
    assert_int_equal(m.n_towers, 4); /* 0, 1, 2, and 1 again: it was the least recent */
    mxc_engine_free(e);
    e = engine_of(&m, 1); /* nothing is kept */
    seen_init(&a, 0);
    must_submit(e, &a.prompt, 2, &sink, NULL);
    run_all(e);
    mxc_engine_get_stats(e, &stats);
    assert_int_equal(stats.feature_bytes, 0);
    mxc_engine_free(e);
}

static void refused(void **state) {
    (void)state;
    static struct sink sink;
    struct fake_model m;
    struct seen a;
    struct mxc_err err;
    uint64_t id;
    fake_model_init(&m, true, 0);
    struct mxc_engine *e = engine_of(&m, 1 << 20);
    seen_init(&a, 0);
    assert_int_equal(submit(e, &a.prompt, 2, &sink, &id, &err), MXC_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "does not see"));
    mxc_engine_free(e);
    m.tower_pieces = 1;
    e = engine_of(&m, 1 << 20);
    a.run.n_rows = ROWS + 1;
    assert_int_equal(submit(e, &a.prompt, 2, &sink, &id, &err), MXC_E_ARG);
    assert_non_null(strstr(err.message, "rows [0, 9) of picture 0"));
    a.run.n_rows = ROWS;
    a.run.picture = 1;
    assert_int_equal(submit(e, &a.prompt, 2, &sink, &id, &err), MXC_E_ARG);
    a.run.picture = 0;
    a.prompt.n_pictures = MXC_MAX_PICTURES + 1;
    assert_int_equal(submit(e, &a.prompt, 2, &sink, &id, &err), MXC_E_LIMIT);
    a.prompt.n_pictures = 1;
    a.prompt.cross_range = a.tokens;
    assert_int_equal(submit(e, &a.prompt, 2, &sink, &id, &err), MXC_E_ARG);
    a.prompt.cross_range = NULL;
    a.picture.input = NULL;
    assert_int_equal(submit(e, &a.prompt, 2, &sink, &id, &err), MXC_E_ARG);
    mxc_engine_free(e);
}

static void features_out_of_memory(void **state) {
    (void)state;
    struct mxc_features f;
    struct mxc_feature *entry = NULL;
    float rows[4] = {1, 2, 3, 4};
    uint8_t digest[MXC_FEATURE_DIGEST] = {7};
    mxc_features_init(&f, 1000);
    for (uint64_t n = 1; n <= 2; n++) {
        mxc_mem_fail_at(n);
        enum mxc_code code = mxc_features_add(&f, digest, rows, 2, 2, &entry, NULL);
        mxc_mem_fail_at(0);
        assert_int_equal(code, MXC_E_NOMEM);
        assert_null(entry);
        assert_int_equal(f.bytes, 0);
    }
    assert_int_equal(mxc_features_add(&f, digest, rows, 2, 2, &entry, NULL), MXC_OK);
    assert_int_equal(f.bytes, sizeof rows);
    assert_ptr_equal(mxc_features_take(&f, digest), entry);
    mxc_features_give_back(&f, entry);
    mxc_features_give_back(&f, entry);
    mxc_features_give_back(&f, NULL);
    mxc_features_fini(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(once_for_each_picture),
        cmocka_unit_test(others_go_on),
        cmocka_unit_test(cancelled),
        cmocka_unit_test(a_tower_fails),
        cmocka_unit_test(kept_within_the_limit),
        cmocka_unit_test(refused),
        cmocka_unit_test(features_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
