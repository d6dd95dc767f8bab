/* The whole text side on an engine with a fake backend: a filter forces the ids of a text, so every
 * event can be foreseen. */
#include "test.h"

#include "../engine/fake_backend.h"
#include "base/mem.h"
#include "format/tokenizer_json.h"
#include "gen/generate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char folder[] = MXC_TEST_DATA "/golden/llama";
static struct mxc_chat *chat;
static struct fake_model model;
static struct mxc_engine *engine;

static int setup(void **state) {
    (void)state;
    struct mxc_engine_options o;
    struct mxc_engine_target target;
    if (mxc_chat_open(folder, NULL, 0, &chat, NULL))
        return -1;
    static const struct mxc_reasoning_marks think = {.open = "<think>", .close = "</think>"};
    chat->marks = &think;
    fake_model_init(&model, true, 0);
    model.graph.vocab = (int32_t)mxc_tokenizer_n_ids(chat->tokenizer) + 9; /* padded, as often */
    mxc_engine_options_init(&o);
    o.context = 500;
    mxc_engine_blocks_for(&model.graph, o.context, 4, o.max_rows, o.n_blocks);
    target = fake_target(&model);
    return (int)mxc_engine_new(&target, &o, &engine, NULL);
}

static int teardown(void **state) {
    (void)state;
    mxc_engine_free(engine);
    mxc_chat_close(chat);
    return model.bad;
}

/* Forces ids, then whatever the model says. */
struct script {
    struct mxc_ids ids;
    size_t at;
};

static void apply(void *user, float *logits, int32_t vocab) {
    const struct script *s = user;
    for (int32_t i = 0; s->at < s->ids.count && i < vocab; i++)
        if ((uint32_t)i != s->ids.items[s->at])
            logits[i] = -INFINITY;
}

static void accept(void *user, int32_t id) {
    (void)id;
    ((struct script *)user)->at++;
}

struct receiver {
    struct mxc_buf answer, thought;
    int n_tokens, n_done, n_progress, stop, stop_after;
    int32_t stop_id;
    enum mxc_done_reason reason;
    struct mxc_err err;
    struct mxc_request_stats stats;
};

static bool receive(void *user, const struct mxc_gen_event *e) {
    struct receiver *r = user;
    assert_int_equal(r->n_done, 0);
    if (e->kind == MXC_GEN_PROGRESS) {
        r->n_progress++;
        assert_int_equal(e->token->n_total, 40);
    } else if (e->kind == MXC_GEN_TEXT) {
        assert_true(mxc_utf8_valid(e->answer.ptr, e->answer.length));
        (void)mxc_buf_append(&r->answer, e->answer.ptr, e->answer.length);
        (void)mxc_buf_append(&r->thought, e->thought.ptr, e->thought.length);
        r->n_tokens += e->token != NULL;
        return r->n_tokens != r->stop_after;
    } else {
        r->n_done++;
        r->reason = e->reason;
        r->stop = e->stop;
        r->stop_id = e->stop_id;
        r->stats = *e->stats;
        if (e->err)
            r->err = *e->err;
    }
    return true;
}

static struct script script_of(const char *text) {
    struct script s = {.at = 0};
    struct mxc_text_span span = {text, strlen(text), true};
    struct mxc_encode_options options = {.parse_special = true};
    assert_int_equal(mxc_tokenizer_encode(chat->tokenizer, &span, 1, options, &s.ids, NULL),
                     MXC_OK);
    return s;
}

static struct receiver generate(const char *text, struct mxc_gen_params params, int stop_after) {
    struct script script = script_of(text);
    struct receiver r = {.stop = -2, .stop_after = stop_after};
    int32_t tokens[40] = {1, 2, 3};
    struct mxc_prompt prompt = {.tokens = tokens, .n_tokens = 40, .adapter = -1};
    uint64_t id;
    mxc_buf_init(&r.answer, 1 << 20);
    mxc_buf_init(&r.thought, 1 << 20);
    params.request.sampling.filter = (struct mxc_logit_filter){apply, accept, &script};
    params.event = receive;
    params.user = &r;
    assert_int_equal(mxc_gen_submit(engine, chat, &prompt, &params, &id, NULL), MXC_OK);
    while (mxc_engine_step(engine)) {
    }
    assert_int_equal(r.n_done, 1);
    mxc_ids_fini(&script.ids);
    return r;
}

static void assert_texts(struct receiver *r, const char *answer, const char *thought) {
    assert_string_equal(mxc_buf_text(&r->answer), answer);
    assert_string_equal(mxc_buf_text(&r->thought), thought);
    mxc_buf_fini(&r->answer);
    mxc_buf_fini(&r->thought);
}

static void ends(void **state) {
    (void)state;
    static const char *const stops[] = {"never", "two three"};
    struct mxc_gen_params params;
    struct receiver r;
    mxc_gen_params_init(&params);
    params.request.progress = true;
    /* EOS of the tokeniser */
    r = generate("one two <|eot_id|>no more", params, 0);
    assert_int_equal(r.reason, MXC_DONE_STOP);
    assert_int_equal(r.stop_id, 710);
    assert_int_equal(r.stop, -1);
    assert_true(r.n_progress > 0);
    assert_int_equal(r.stats.n_generated, r.n_tokens + 1);
    assert_texts(&r, "one two ", "");
    /* ... which ignore_eos ignores; the rest is cut by length, in the middle of a character */
    params.request.ignore_eos = true;
    struct script before = script_of("one <|eot_id|>");
    params.request.max_tokens = (int32_t)before.ids.count + 1;
    mxc_ids_fini(&before.ids);
    r = generate("one <|eot_id|>\xF0\x9F\x98\x80", params, 0);
    assert_int_equal(r.reason, MXC_DONE_LENGTH);
    assert_texts(&r, "one \xEF\xBF\xBD", "");
    /* a stop string ends it at its token, and no further token is run */
    params.request.max_tokens = -1;
    params.request.ignore_eos = false;
    params.stops = stops;
    params.n_stops = 2;
    struct script until = script_of("one two three");
    r = generate("one two three four<|eot_id|>", params, 0);
    assert_int_equal(r.reason, MXC_DONE_STOP);
    assert_int_equal(r.stop, 1);
    assert_int_equal(r.stop_id, -1);
    assert_in_range(r.stats.n_generated, until.ids.count - 1, until.ids.count + 1);
    assert_texts(&r, "one ", "");
    mxc_ids_fini(&until.ids);
    /* the beginning of a stop string is released at the end */
    r = generate("one two th<|eot_id|>", params, 0);
    assert_int_equal(r.stop, -1);
    assert_texts(&r, "one two th", "");
    /* reasoning, and its switch */
    r = generate("<think>hm</think>yes<|eot_id|>", params, 0);
    assert_texts(&r, "yes", "hm");
    params.no_split = true;
    r = generate("<think>hm</think>yes<|eot_id|>", params, 0);
    assert_texts(&r, "<think>hm</think>yes", "");
    params.no_split = false;
    params.inside = true;
    r = generate("hm</think>yes<|eot_id|>", params, 0);
    assert_texts(&r, "yes", "hm");
    params.inside = false;
    /* the receiver has enough */
    r = generate("one two three four", params, 2);
    assert_int_equal(r.reason, MXC_DONE_STOP);
    assert_int_equal(r.n_tokens, 2);
    mxc_buf_fini(&r.answer);
    mxc_buf_fini(&r.thought);
}

static void failures(void **state) {
    (void)state;
    struct mxc_gen_params params;
    struct mxc_err err;
    int32_t tokens[40] = {1};
    struct mxc_prompt prompt = {.tokens = tokens, .n_tokens = 40, .adapter = -1};
    uint64_t id = 9;
    struct receiver r = {.n_done = 0};
    mxc_gen_params_init(&params);
    assert_int_equal(mxc_gen_submit(engine, chat, &prompt, &params, &id, &err), MXC_E_ARG);
    params.event = receive;
    params.user = &r;
    const char *empty = "";
    params.stops = &empty, params.n_stops = 1;
    assert_int_equal(mxc_gen_submit(engine, chat, &prompt, &params, &id, &err), MXC_E_ARG);
    params.n_stops = 0;
    prompt.n_tokens = 0;
    assert_int_equal(mxc_gen_submit(engine, chat, &prompt, &params, &id, &err), MXC_E_ARG);
    assert_int_equal(id, 9);
    assert_int_equal(r.n_done, 0);
    prompt.n_tokens = 40;
    model.fail_run_at = model.n_runs + 1;
    assert_int_equal(mxc_gen_submit(engine, chat, &prompt, &params, &id, &err), MXC_OK);
    while (mxc_engine_step(engine)) {
    }
    assert_int_equal(r.reason, MXC_DONE_ERROR);
    assert_int_equal(r.err.code, MXC_E_BACKEND);
    params.request.sampling.dry_multiplier = 1;
    int n = 0;
    for (uint64_t at = 1; at < 2000; at++, n++) {
        mxc_mem_fail_at(at);
        enum mxc_code code = mxc_gen_submit(engine, chat, &prompt, &params, &id, &err);
        mxc_mem_fail_at(0);
        if (!code)
            break;
        assert_int_equal(code, MXC_E_NOMEM);
    }
    assert_in_range(n, 10, 1900);
    r.n_done = 0;
    mxc_engine_cancel(engine, id);
    while (mxc_engine_step(engine)) {
    }
    assert_int_equal(r.reason, MXC_DONE_CANCELLED);
}

static void breakers(void **state) {
    (void)state;
    static const char *const texts[] = {"\n", "harbour guide"};
    struct mxc_token_list *lists = NULL;
    struct mxc_buf piece;
    int32_t n = 0, vocab = (int32_t)mxc_tokenizer_n_ids(chat->tokenizer);
    assert_int_equal(mxc_gen_breakers(chat->tokenizer, vocab, texts, 2, &lists, &n, NULL), MXC_OK);
    assert_true(n >= 2);
    mxc_buf_init(&piece, 1 << 16);
    for (int32_t i = 0; i < n; i++) {
        mxc_buf_clear(&piece);
        for (int32_t j = 0; j < lists[i].n; j++)
            assert_true(mxc_tokenizer_piece(chat->tokenizer, (uint32_t)lists[i].ids[j], &piece));
        assert_non_null(strstr(mxc_buf_text(&piece), i + 1 < n ? "\n" : "harbour guide"));
    }
    assert_true(lists[n - 1].n > 1);
    struct mxc_sampling sampling;
    mxc_sampling_init(&sampling);
    sampling.dry_breakers = lists;
    sampling.n_dry_breakers = n;
    assert_int_equal(mxc_sampling_check(&sampling, vocab, NULL), MXC_OK);
    mxc_buf_fini(&piece);
    mxc_mem_free(lists);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(ends), cmocka_unit_test(failures),
                                       cmocka_unit_test(breakers)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
