/* Thoughts of a bounded length: what a request says becomes variables and a budget; on an engine
 * with a fake backend the filter closes a thought in time, and the answer's own filter sees the
 * answer only. */
#include "test.h"

#include "../engine/fake_backend.h"
#include "base/mem.h"
#include "gen/budget.h"
#include "gen/generate.h"

#include <math.h>
#include <string.h>

static const char folder[] = MXC_TEST_DATA "/golden/llama";
static const struct mxc_reasoning_marks think = {.open = "<think>", .close = "</think>"};
static const struct mxc_reasoning_marks tokens = {.open = "<|start_header_id|>",
                                                  .close = "<|end_header_id|>"};
static struct mxc_chat *chat;
static struct fake_model model;
static struct mxc_engine *engine;

static int setup(void **state) {
    (void)state;
    struct mxc_engine_options o;
    if (mxc_chat_open(folder, NULL, 0, &chat, NULL))
        return -1;
    fake_model_init(&model, true, 0);
    model.graph.vocab = (int32_t)mxc_tokenizer_n_ids(chat->tokenizer);
    mxc_engine_options_init(&o);
    o.context = 500;
    mxc_engine_blocks_for(&model.graph, o.context, 4, o.max_rows, o.n_blocks);
    struct mxc_engine_target target = fake_target(&model);
    return mxc_engine_new(&target, &o, &engine, NULL) ? -1 : 0;
}

static int teardown(void **state) {
    (void)state;
    mxc_engine_free(engine);
    mxc_chat_close(chat);
    return model.bad;
}

/* A model that wants to say a thought and then an answer, under a filter. */
struct speaker {
    struct mxc_ids thought, answer;
    size_t at; /* in the thought, then in the answer */
    bool answers;
    struct mxc_reasoning_budget *budget;
    struct mxc_logit_filter filter;
    int n_seen, n_applied; /* by the answer's filter */
    struct mxc_buf said, thoughts;
    bool inside;
};

static void speak(void *user, float *logits, int32_t vocab) {
    struct speaker *s = user;
    const struct mxc_ids *ids = s->answers ? &s->answer : &s->thought;
    if (s->at < ids->count)
        logits[ids->items[s->at]] += 1000;
    s->filter.apply(s->filter.user, logits, vocab);
}

static void spoken(void *user, int32_t id) {
    struct speaker *s = user;
    const struct mxc_ids *ids = s->answers ? &s->answer : &s->thought;
    if (s->at < ids->count && ids->items[s->at] == (uint32_t)id)
        s->at++;
    if (!s->answers && s->at == s->thought.count) {
        s->answers = true;
        s->at = 0;
    }
    s->filter.accept(s->filter.user, id);
}

static void answer_apply(void *user, float *logits, int32_t vocab) {
    (void)logits;
    (void)vocab;
    ((struct speaker *)user)->n_applied++;
}

static void answer_accept(void *user, int32_t id) {
    (void)id;
    ((struct speaker *)user)->n_seen++;
}

static bool receive(void *user, const struct mxc_gen_event *e) {
    struct speaker *s = user;
    if (e->kind != MXC_GEN_TEXT)
        return true;
    (void)mxc_buf_append(&s->said, e->answer.ptr, e->answer.length);
    (void)mxc_buf_append(&s->thoughts, e->thought.ptr, e->thought.length);
    /* the thought is closed: the model goes on with what it wants to answer */
    if (!s->answers && s->thoughts.length && e->answer.length) {
        s->answers = true;
        s->at = 0;
    }
    return true;
}

static void encode(const char *text, struct mxc_ids *ids) {
    struct mxc_text_span span = {text, strlen(text), true};
    struct mxc_encode_options options = {.parse_special = true};
    *ids = (struct mxc_ids){0};
    assert_int_equal(mxc_tokenizer_encode(chat->tokenizer, &span, 1, options, ids, NULL), MXC_OK);
}

static void run(const struct mxc_reasoning_marks *marks, const char *thought, const char *answer,
                bool inside, int32_t budget, const char *message, int32_t n, struct speaker *s) {
    static const int32_t prompt_ids[] = {1, 2, 3};
    struct mxc_prompt prompt = {.tokens = prompt_ids, .n_tokens = 3, .adapter = -1};
    struct mxc_reasoning_budget_options o = {.tokenizer = chat->tokenizer,
                                             .marks = marks,
                                             .inside = inside,
                                             .budget = budget,
                                             .message = message,
                                             .answer = {answer_apply, answer_accept, s}};
    struct mxc_gen_params params;
    uint64_t id;
    *s = (struct speaker){.inside = inside};
    encode(thought, &s->thought);
    encode(answer, &s->answer);
    s->answers = !s->thought.count;
    mxc_buf_init(&s->said, 1 << 16);
    mxc_buf_init(&s->thoughts, 1 << 16);
    assert_int_equal(mxc_reasoning_budget_new(&o, &s->budget, NULL), MXC_OK);
    s->filter = mxc_reasoning_budget_filter(s->budget);
    mxc_gen_params_init(&params);
    chat->marks = marks;
    params.inside = inside;
    params.request.max_tokens = n;
    params.request.sampling.filter = (struct mxc_logit_filter){speak, spoken, s};
    params.event = receive;
    params.user = s;
    assert_int_equal(mxc_gen_submit(engine, chat, &prompt, &params, &id, NULL), MXC_OK);
    while (mxc_engine_step(engine)) {
    }
}

static void release(struct speaker *s) {
    mxc_reasoning_budget_free(s->budget);
    mxc_ids_fini(&s->thought);
    mxc_ids_fini(&s->answer);
    mxc_buf_fini(&s->said);
    mxc_buf_fini(&s->thoughts);
}

static const char long_thought[] =
    "Well, let me see what this could be: one, two, three, four, five, six, seven, eight.";

static void closes_in_time(void **state) {
    (void)state;
    struct speaker s;
    struct mxc_ids ids;
    encode("</think>", &ids);
    int64_t close = (int64_t)ids.count;
    mxc_ids_fini(&ids);
    for (int32_t budget = 0; budget < 12; budget++) {
        run(&think, long_thought, "", true, budget, NULL, budget + (int32_t)close, &s);
        assert_int_equal(mxc_reasoning_budget_used(s.budget), budget + close);
        assert_int_equal(s.n_seen, 0);
        assert_memory_equal(mxc_buf_text(&s.thoughts), long_thought, s.thoughts.length);
        assert_true(s.thoughts.length < sizeof long_thought - 1);
        assert_int_equal(s.said.length, 0); /* all of the mark was said */
        release(&s);
    }
    run(&think, long_thought, "", true, 3, " Stop.", 40, &s);
    assert_non_null(strstr(mxc_buf_text(&s.thoughts), " Stop."));
    assert_true(s.said.length > 0);
    assert_true(s.n_seen > 0 && s.n_seen == s.n_applied);
    release(&s);
}

static void leaves_alone(void **state) {
    (void)state;
    struct speaker s;
    struct mxc_ids ids;
    encode("<think>Short.</think>", &ids);
    run(&think, "<think>Short.</think>", "Four.", false, 100, NULL, (int32_t)ids.count + 3, &s);
    assert_string_equal(mxc_buf_text(&s.thoughts), "Short.");
    assert_memory_equal(mxc_buf_text(&s.said), "Four", 4);
    release(&s);
    run(&think, "<think>Short.</think>", "Four.", false, -1, NULL, (int32_t)ids.count + 3, &s);
    assert_string_equal(mxc_buf_text(&s.thoughts), "Short.");
    release(&s);
    mxc_ids_fini(&ids);
    run(NULL, "", "Four.", false, 5, NULL, 3, &s); /* no thoughts: the answer's filter is all */
    assert_int_equal(s.n_seen, 3);
    assert_int_equal(s.n_applied, 3);
    release(&s);
}

/* Marks that are tokens: budget 0 bans the opening one, and an answer's filter does not. */
static void mark_tokens(void **state) {
    (void)state;
    struct speaker s;
    static const char text[] = "<|start_header_id|>I think so.<|end_header_id|>";
    run(&tokens, text, "Four.", false, 0, NULL, 4, &s);
    assert_int_equal(s.thoughts.length, 0);
    assert_int_equal(mxc_reasoning_budget_used(s.budget), 0);
    release(&s);
    run(&tokens, text, "Four.", false, 2, NULL, 8, &s);
    assert_true(s.thoughts.length > 0);
    assert_int_equal(mxc_reasoning_budget_used(s.budget), 3);
    assert_int_equal(s.n_seen, 4); /* of 8: open, 2, close */
    release(&s);
}

/* A character that takes several tokens is not cut. */
static void whole_characters(void **state) {
    (void)state;
    struct speaker s;
    static const char text[] =
        "\xF0\x9F\xA4\x96\xE6\xA0\xA1\xF0\x9F\xA6\x96\xC9\xB8\xF0\x9F\xA7\xBF";
    for (int32_t budget = 1; budget < 8; budget++) {
        run(&think, text, "", true, budget, NULL, 60, &s);
        assert_null(strstr(mxc_buf_text(&s.thoughts), "\xEF\xBF\xBD"));
        release(&s);
    }
}

static void memory_fails(void **state) {
    (void)state;
    struct mxc_reasoning_budget_options o = {
        .tokenizer = chat->tokenizer, .marks = &think, .budget = 3, .message = "x"};
    struct mxc_reasoning_budget *b;
    for (uint64_t n = 1; n < 200; n++) {
        struct mxc_err err = {.code = MXC_OK};
        mxc_mem_fail_at(n);
        enum mxc_code code = mxc_reasoning_budget_new(&o, &b, &err);
        mxc_mem_fail_at(0);
        if (!code) {
            mxc_reasoning_budget_free(b);
            mxc_reasoning_budget_free(NULL);
            return;
        }
        assert_int_equal(code, MXC_E_NOMEM);
    }
    fail_msg("never enough memory");
}

static void requests(void **state) {
    (void)state;
    static const struct {
        const char *template_text, *effort, *thinking, *enable, *kwargs;
        int64_t budget;
        const char *error, *variables;
        int32_t expect;
    } table[] = {
        {"", NULL, NULL, NULL, NULL, -1, NULL, "{}", -1},
        {"", "\"low\"", NULL, NULL, NULL, -1, NULL,
         "{\"enable_thinking\":true,\"thinking\":true,\"reasoning_effort\":\"low\"}", 1024},
        {"{{ reasoning_effort }}", "\"minimal\"", NULL, NULL, NULL, -1, NULL,
         "{\"enable_thinking\":true,\"thinking\":true,\"reasoning_effort\":\"low\"}", -1},
        {"", "\"none\"", NULL, NULL, NULL, -1, NULL,
         "{\"enable_thinking\":false,\"thinking\":false,\"reasoning_effort\":\"low\"}", 0},
        {"", "\"high\"", NULL, NULL, NULL, 77, NULL,
         "{\"enable_thinking\":true,\"thinking\":true,\"reasoning_effort\":\"high\"}", 77},
        {"", NULL, "{\"type\":\"enabled\",\"budget_tokens\":500}", NULL, NULL, -1, NULL,
         "{\"enable_thinking\":true,\"thinking\":true}", 500},
        {"", NULL, "{\"type\":\"disabled\"}", NULL, NULL, -1, NULL,
         "{\"enable_thinking\":false,\"thinking\":false}", 0},
        {"", NULL, NULL, "false", NULL, 9, NULL, "{\"enable_thinking\":false,\"thinking\":false}",
         0},
        {"", NULL, NULL, NULL, "{\"enable_thinking\":false,\"x\":[1]}", -1, NULL,
         "{\"enable_thinking\":false,\"thinking\":false,\"x\":[1]}", 0},
        {"", NULL, NULL, NULL, NULL, 0, NULL, "{\"enable_thinking\":false,\"thinking\":false}", 0},
        {"", "\"loud\"", NULL, NULL, NULL, -1, "reasoning_effort: ", NULL, 0},
        {"", "3", NULL, NULL, NULL, -1, "reasoning_effort: ", NULL, 0},
        {"", NULL, "4", NULL, NULL, -1, "thinking: ", NULL, 0},
        {"", NULL, "{}", NULL, NULL, -1, "thinking.type: ", NULL, 0},
        {"", NULL, "{\"type\":\"enabled\",\"budget_tokens\":-1}", NULL, NULL, -1,
         "thinking.budget_tokens: ", NULL, 0},
        {"", NULL, NULL, "1", NULL, -1, "enable_thinking: ", NULL, 0},
        {"", NULL, NULL, NULL, "[]", -1, "chat_template_kwargs: ", NULL, 0},
        {"", NULL, NULL, NULL, "{\"messages\":[]}", -1, "chat_template_kwargs.messages: ", NULL,
         0}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const char *texts[] = {table[i].effort, table[i].thinking, table[i].enable, table[i].kwargs,
                               table[i].variables};
        json_t *values[5];
        struct mxc_chat *c = NULL;
        struct mxc_thinking out = {NULL, -7};
        struct mxc_err err;
        for (int k = 0; k < 5; k++)
            values[k] = texts[k] ? json_loads(texts[k], JSON_DECODE_ANY, NULL) : NULL;
        struct mxc_thinking_request r = {values[0], values[1], values[2], values[3],
                                         table[i].budget};
        assert_int_equal(mxc_chat_new(NULL, table[i].template_text, &c, NULL), MXC_OK);
        enum mxc_code code = mxc_thinking_read(c, &r, &out, &err);
        if (table[i].error) {
            assert_int_equal(code, MXC_E_ARG);
            assert_ptr_equal(strstr(err.message, table[i].error), err.message);
            assert_null(out.variables);
        } else {
            assert_int_equal(code, MXC_OK);
            if (!json_equal(out.variables, values[4]))
                fail_msg("row %zu: %s", i, mxc_json_dump(out.variables));
            assert_int_equal(out.budget, table[i].expect);
        }
        json_decref(out.variables);
        for (int k = 0; k < 5; k++)
            json_decref(values[k]);
        mxc_chat_close(c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(closes_in_time), cmocka_unit_test(leaves_alone),
        cmocka_unit_test(mark_tokens),    cmocka_unit_test(whole_characters),
        cmocka_unit_test(memory_fails),   cmocka_unit_test(requests)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
