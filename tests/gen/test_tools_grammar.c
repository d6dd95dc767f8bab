/* Enforced calls: whatever a grammar of calls lets through, the parser of the same shape reads as
 * complete calls of the tools, with arguments that keep to the schema. Random walks over a
 * vocabulary of bytes and marks. */
#include "test.h"

#include "../engine/fake_backend.h"
#include "base/mem.h"
#include "gen/budget.h"
#include "gen/generate.h"
#include "gen/tools/tools.h"

#include <stdlib.h>
#include <string.h>

static const char folder[] = MXC_TEST_DATA "/golden/llama";
static struct mxc_chat *chat;
static struct mxc_grammar_vocab *vocab;
static struct mxc_grammar_piece pieces[400];
static size_t n_pieces;
static char bytes[256];

enum { EOS = 0, N_FIRST = 1 };
/* Two strings: \x9CD would be another letter. */
static const char dsml_close[] = "</\xEF\xBD\x9C"
                                 "DSML\xEF\xBD\x9Cparameter>\n";
/* They bring a text to its end. */
static const char *const closers[] = {"</parameter>\n",
                                      "</arg_value>\n",
                                      dsml_close,
                                      "<|\"|>",
                                      "</function>",
                                      "</tool_call>",
                                      "</invoke>",
                                      "\"",
                                      "}",
                                      ")",
                                      "]",
                                      ">"};
static const char *const specials[] = {"<|channel|>", "<|message|>", "<|end|>", "<|start|>"};

enum { N_LAST = sizeof closers / sizeof *closers + sizeof specials / sizeof *specials };

static void add_piece(const char *text, size_t length, bool special) {
    pieces[n_pieces++] = (struct mxc_grammar_piece){{text, length}, special};
}

static int setup(void **state) {
    (void)state;
    static const int32_t eos[] = {EOS};
    if (mxc_chat_open(folder, NULL, 0, &chat, NULL))
        return -1;
    add_piece("", 0, false);
    for (size_t i = 0; i < sizeof closers / sizeof *closers; i++)
        add_piece(closers[i], strlen(closers[i]), false);
    for (size_t i = 0; i < sizeof specials / sizeof *specials; i++)
        add_piece(specials[i], strlen(specials[i]), true);
    for (int c = 1; c < 256; c++) {
        bytes[c] = (char)c;
        add_piece(&bytes[c], 1, false);
    }
    return mxc_grammar_vocab_new_pieces(pieces, n_pieces, eos, 1, &vocab, NULL) ? -1 : 0;
}

static int teardown(void **state) {
    (void)state;
    mxc_grammar_vocab_free(vocab);
    mxc_chat_close(chat);
    return 0;
}

static struct mxc_tools tools_of(const char *list, const char *choice, const char *parallel) {
    struct mxc_tools t = {.n = 0};
    struct mxc_err err;
    json_t *l = json_loads(list, 0, NULL), *c = json_loads(choice, JSON_DECODE_ANY, NULL);
    json_t *p = json_loads(parallel, JSON_DECODE_ANY, NULL);
    if (mxc_tools_read(l, c, p, &t, &err))
        fail_msg("%s", err.message);
    json_decref(l);
    json_decref(c);
    json_decref(p);
    return t;
}

struct seen {
    const struct mxc_tools *tools;
    size_t n_calls;
    const char *name;
    struct mxc_buf arguments;
    const char *text; /* for messages */
    const char *shape;
};

static void check_arguments(const struct seen *s) {
    json_t *value =
        json_loadb(mxc_buf_text(&s->arguments), s->arguments.length, JSON_ALLOW_NUL, NULL);
    if (!json_is_object(value))
        fail_msg("%s: %s\n  arguments %s", s->shape, s->text, mxc_buf_text(&s->arguments));
    if (!strcmp(s->name, "get_weather")) {
        const json_t *city = json_object_get(value, "city"), *days = json_object_get(value, "days");
        const json_t *unit = json_object_get(value, "unit"), *ok = json_object_get(value, "exact");
        bool good = json_is_string(city) && (!days || json_is_integer(days)) &&
                    (!ok || json_is_boolean(ok)) &&
                    (!unit || (json_is_string(unit) && strchr("CF", *json_string_value(unit))));
        if (!good)
            fail_msg("%s: %s\n  arguments %s", s->shape, s->text, mxc_buf_text(&s->arguments));
    }
    json_decref(value);
}

static bool take(void *user, const struct mxc_tool_event *e) {
    struct seen *s = user;
    if (e->kind == MXC_TOOL_TEXT) {
        fail_msg("%s: %s\n  text %.*s", s->shape, s->text, (int)e->text.length, e->text.ptr);
    } else if (e->kind == MXC_TOOL_BEGIN) {
        s->n_calls++;
        s->name = e->name;
        mxc_buf_clear(&s->arguments);
    } else if (e->kind == MXC_TOOL_ARGUMENTS) {
        (void)mxc_buf_append(&s->arguments, e->text.ptr, e->text.length);
    } else {
        if (!e->complete)
            fail_msg("%s: %s\n  is incomplete", s->shape, s->text);
        check_arguments(s);
    }
    return true;
}

static uint32_t seed = 4711;
static uint32_t draw(uint32_t n) {
    seed = seed * 1664525 + 1013904223;
    return (seed >> 8) % n;
}

static bool allowed(const uint64_t *bits, size_t id) {
    return bits[id / 64] >> (id % 64) & 1;
}

/* A token that the mask allows: any, or later one that ends. */
static int32_t choose(const uint64_t *bits, size_t n_said) {
    bool end = n_said > 150;
    size_t first = draw(N_LAST);
    if (allowed(bits, EOS) && (end || draw(2)))
        return EOS;
    for (size_t i = 0; i < N_LAST && (end || !draw(4)); i++) {
        size_t id = N_FIRST + (first + i) % N_LAST;
        if (allowed(bits, id) && (end || draw(2)))
            return (int32_t)id;
    }
    for (int tries = 0; tries < 5000; tries++) {
        size_t id = draw((uint32_t)n_pieces);
        if (allowed(bits, id))
            return (int32_t)id;
    }
    return -1;
}

/* Says something that the grammar allows, to its end. */
static void walk(struct mxc_grammar_masks *masks, struct mxc_buf *text, const char *shape) {
    struct mxc_grammar_state *state = NULL;
    const uint64_t *bits = NULL;
    struct mxc_err err = {.message = ""};
    assert_int_equal(mxc_grammar_state_new(masks, NULL, &state, &err), MXC_OK);
    for (size_t n = 0;; n++) {
        if (mxc_grammar_mask(state, &bits, &err))
            fail_msg("%s: %s", shape, err.message);
        assert_non_null(bits);
        int32_t id = choose(bits, n);
        if (id < 0 || n > 3000)
            fail_msg("%s: nothing can follow %s", shape, mxc_buf_text(text));
        if (id == EOS)
            break;
        assert_int_equal(mxc_grammar_advance(state, id, &err), MXC_OK);
        (void)mxc_buf_append(text, pieces[id].bytes.ptr, pieces[id].bytes.length);
    }
    mxc_grammar_state_free(state);
}

static size_t parse(const struct mxc_tools *tools, const char *shape, const struct mxc_buf *said) {
    struct seen s = {.tools = tools, .text = mxc_buf_text(said), .shape = shape};
    struct mxc_tool_parser *parser = NULL;
    struct mxc_tool_parser_options options = {
        .shape = mxc_tool_shape_named(shape), .tools = tools, .event = take, .user = &s};
    struct mxc_buf answer, thought;
    struct mxc_reasoning split;
    const struct mxc_reasoning_marks *marks =
        strcmp(shape, "harmony") != 0
            ? NULL
            : mxc_reasoning_find(MXC_STR("<|channel|>analysis<|message|>"), NULL, NULL);
    mxc_buf_init(&s.arguments, 1 << 20);
    mxc_buf_init(&answer, 1 << 20);
    mxc_buf_init(&thought, 1 << 20);
    mxc_reasoning_init(&split, marks, false);
    assert_int_equal(mxc_reasoning_push(&split, s.text, said->length, &answer, &thought, NULL),
                     MXC_OK);
    assert_int_equal(mxc_reasoning_finish(&split, &answer, &thought, NULL), MXC_OK);
    assert_int_equal(mxc_tool_parser_new(&options, &parser, NULL), MXC_OK);
    assert_int_equal(mxc_tool_parser_push(parser, mxc_buf_text(&answer), answer.length, NULL),
                     MXC_OK);
    assert_int_equal(mxc_tool_parser_finish(parser, NULL), MXC_OK);
    mxc_tool_parser_free(parser);
    mxc_reasoning_fini(&split);
    mxc_buf_fini(&s.arguments);
    mxc_buf_fini(&answer);
    mxc_buf_fini(&thought);
    return s.n_calls;
}

static const char offered[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":"
    "\"object\",\"properties\":{\"city\":{\"type\":\"string\",\"maxLength\":20},\"days\":{\"type\":"
    "\"integer\"},\"unit\":{\"type\":\"string\",\"enum\":[\"C\",\"F\"]},\"exact\":{\"type\":"
    "\"boolean\"}},\"required\":[\"city\"],\"additionalProperties\":false}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"now\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"o\":{\"$ref\":\"#/$defs/o\"}},\"additionalProperties\":false,\"$defs\":{"
    "\"o\":{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"maxItems\":3}}}}}]";

static struct mxc_grammar_masks *masks_of(const char *shape, const struct mxc_tools *tools) {
    struct mxc_tools_grammar_options o = {
        .shape = mxc_tool_shape_named(shape), .tools = tools, .tokenizer = chat->tokenizer};
    struct mxc_grammar *grammar = NULL;
    struct mxc_grammar_masks *masks = NULL;
    struct mxc_err err;
    if (mxc_tools_grammar(&o, &grammar, &err) ||
        mxc_grammar_masks_new(grammar, vocab, 0, &masks, &err))
        fail_msg("%s: %s", shape, err.message);
    return masks;
}

static void walks(void **state) {
    (void)state;
    static const struct {
        const char *choice, *parallel;
    } ways[] = {{"\"required\"", "true"},
                {"\"required\"", "false"},
                {"{\"type\":\"function\",\"name\":\"now\"}", "true"}};
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        struct mxc_tools tools = tools_of(offered, ways[w].choice, ways[w].parallel);
        for (size_t i = 0; mxc_tool_shape_list(i); i++) {
            const char *shape = mxc_tool_shape_list(i);
            struct mxc_grammar_masks *masks = masks_of(shape, &tools);
            for (int round = 0; round < 20; round++) {
                struct mxc_buf text;
                mxc_buf_init(&text, 1 << 20);
                walk(masks, &text, shape);
                size_t n = parse(&tools, shape, &text);
                if (!n || (!tools.parallel && n != 1))
                    fail_msg("%s: %zu calls in %s", shape, n, mxc_buf_text(&text));
                mxc_buf_fini(&text);
            }
            mxc_grammar_masks_unref(masks);
        }
        mxc_tools_fini(&tools);
    }
}

/* What models are trained to write is in the language, and where a lazy grammar begins. */
static void wrappers(void **state) {
    (void)state;
    static const struct {
        const char *shape, *trigger, *text;
    } table[] = {
        {"hermes", "<tool_call>",
         "\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"x\"}}\n</tool_call>"},
        {"mistral", "[TOOL_CALLS]", "[{\"name\": \"now\", \"arguments\": {}}]"},
        {"mistral-args", "[TOOL_CALLS]", "now[ARGS]{}"},
        {"qwen-xml", "<tool_call>",
         "\n<function=get_weather>\n<parameter=city>\nx\n</parameter>\n<parameter=days>\n3\n"
         "</parameter>\n</function>\n</tool_call>"},
        {"glm", "<tool_call>",
         "get_weather\n<arg_key>city</arg_key>\n<arg_value>x</arg_value>\n</tool_call>"},
        {"llama-json", "<|python_tag|>", "{\"name\": \"now\", \"parameters\": {}}"},
        {"pythonic-marked", "<|tool_call_start|>",
         "[get_weather(city=\"x\", exact=True), now()]<|tool_call_end|>"},
        {"gemma",
         "<|tool_call>call:", "get_weather{city:<|\"|>x<|\"|>,unit:<|\"|>C<|\"|>}<tool_call|>"},
        {"harmony", " to=functions.", "now <|constrain|>json<|message|>{}"},
    };
    struct mxc_tools tools = tools_of(offered, "\"auto\"", "true");
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct mxc_tools_grammar_options o = {.shape = mxc_tool_shape_named(table[i].shape),
                                              .tools = &tools,
                                              .tokenizer = chat->tokenizer,
                                              .lazy = true};
        struct mxc_grammar_trigger trigger;
        struct mxc_grammar_lazy lazy;
        struct mxc_grammar *grammar = NULL;
        struct mxc_err err;
        bool yes = false;
        if (mxc_tools_grammar(&o, &grammar, &err) ||
            mxc_grammar_accepts(grammar, mxc_str_of(table[i].text), &yes, &err))
            fail_msg("%s: %s", table[i].shape, err.message);
        if (!yes)
            fail_msg("%s refuses %s", table[i].shape, table[i].text);
        mxc_tools_lazy(&o, &trigger, &lazy);
        struct mxc_str spelling =
            trigger.text.length ? trigger.text
                                : mxc_tokenizer_spelling(chat->tokenizer, (uint32_t)trigger.token);
        assert_true(mxc_str_is(spelling, table[i].trigger));
        assert_ptr_equal(lazy.triggers, &trigger);
        assert_true(lazy.rearm);
        mxc_grammar_free(grammar);
    }
    mxc_tools_fini(&tools);
}

/* A mark that is a special token is matched as that, and is the trigger. */
static void special_marks(void **state) {
    (void)state;
    static const struct mxc_tokenizer *t;
    t = chat->tokenizer;
    struct mxc_tools tools = tools_of(offered, "\"auto\"", "false");
    struct mxc_tools_grammar_options o = {
        .shape = mxc_tool_shape_named("llama-json"), .tools = &tools, .tokenizer = t, .lazy = true};
    struct mxc_grammar_trigger trigger;
    struct mxc_grammar_lazy lazy;
    uint32_t id = mxc_tokenizer_id(t, MXC_STR("<|python_tag|>"));
    mxc_tools_lazy(&o, &trigger, &lazy);
    if (id != MXC_TOK_NO_ID) {
        assert_int_equal(trigger.token, id);
        assert_int_equal(trigger.text.length, 0);
    } else {
        assert_string_equal(trigger.text.ptr, "<|python_tag|>");
    }
    assert_false(lazy.rearm);
    mxc_tools_fini(&tools);
}

/* What a schema says and a grammar cannot: an error when strict, any object when not. */
static void unsupported_schemas(void **state) {
    (void)state;
    static const char format[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":%s,"
        "\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{"
        "\"type\":\"string\",\"pattern\":\"(?=x)\"}}}}}]";
    for (int strict = 0; strict < 2; strict++) {
        struct mxc_buf list;
        struct mxc_grammar *grammar = NULL;
        struct mxc_err err = {.message = ""};
        mxc_buf_init(&list, 4096);
        (void)mxc_buf_printf(&list, format, strict ? "true" : "false");
        struct mxc_tools tools = tools_of(mxc_buf_text(&list), "\"required\"", "true");
        struct mxc_tools_grammar_options o = {
            .shape = mxc_tool_shape_named("hermes"), .tools = &tools, .tokenizer = chat->tokenizer};
        enum mxc_code code = mxc_tools_grammar(&o, &grammar, &err);
        if (strict) {
            assert_true(code == MXC_E_UNSUPPORTED || code == MXC_E_ARG);
            assert_ptr_equal(strstr(err.message, "tools[0].function.parameters: "), err.message);
        } else {
            bool yes = false;
            assert_int_equal(code, MXC_OK);
            assert_int_equal(
                mxc_grammar_accepts(grammar,
                                    MXC_STR("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": "
                                            "1}}\n</tool_call>"),
                                    &yes, NULL),
                MXC_OK);
            assert_true(yes);
            mxc_grammar_free(grammar);
        }
        mxc_tools_fini(&tools);
        mxc_buf_fini(&list);
    }
}

static void memory_fails(void **state) {
    (void)state;
    struct mxc_tools tools = tools_of(offered, "\"required\"", "true");
    struct mxc_tools_grammar_options o = {
        .shape = mxc_tool_shape_named("qwen-xml"), .tools = &tools, .tokenizer = chat->tokenizer};
    struct mxc_grammar *grammar = NULL;
    uint64_t step = 1;
    for (uint64_t n = 1; n < 100000; n += step, step += n / 50) {
        mxc_mem_fail_at(n);
        enum mxc_code code = mxc_tools_grammar(&o, &grammar, NULL);
        mxc_mem_fail_at(0);
        if (!code) {
            mxc_grammar_free(grammar);
            mxc_tools_fini(&tools);
            return;
        }
        assert_int_equal(code, MXC_E_NOMEM);
    }
    fail_msg("never enough memory");
}

/* The whole way on an engine: a model of noise thinks for five tokens, is cut off, and then makes
 * the call that was asked for. */
struct answer {
    struct mxc_tool_parser *parser;
    struct mxc_buf thought;
    enum mxc_done_reason reason;
    struct mxc_err err;
};

static bool receive(void *user, const struct mxc_gen_event *e) {
    struct answer *a = user;
    if (e->kind == MXC_GEN_TEXT) {
        (void)mxc_buf_append(&a->thought, e->thought.ptr, e->thought.length);
        assert_int_equal(mxc_tool_parser_push(a->parser, e->answer.ptr, e->answer.length, NULL),
                         MXC_OK);
    } else if (e->kind == MXC_GEN_DONE) {
        a->reason = e->reason;
        if (e->err)
            a->err = *e->err;
        assert_int_equal(mxc_tool_parser_finish(a->parser, NULL), MXC_OK);
    }
    return true;
}

static const char tiny[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"pick\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"a\":{\"enum\":[\"x\",\"y\"]},\"b\":{\"type\":\"boolean\"}},\"required\":["
    "\"a\"],\"additionalProperties\":false}}}]";

static void on_an_engine(void **state) {
    (void)state;
    static const struct mxc_reasoning_marks marks = {.open = "<|start_header_id|>",
                                                     .close = "<|end_header_id|>"};
    static const char *const names[] = {"hermes",   "llama-json", "mistral-args",
                                        "qwen-xml", "glm",        "pythonic"};
    static const int32_t prompt_ids[] = {1, 2, 3};
    struct fake_model model;
    struct mxc_engine *engine = NULL;
    struct mxc_engine_options eo;
    struct mxc_grammar_vocab *real = NULL;
    chat->marks = &marks;
    fake_model_init(&model, true, 0);
    model.graph.vocab = (int32_t)mxc_tokenizer_n_ids(chat->tokenizer);
    mxc_engine_options_init(&eo);
    eo.context = 500;
    mxc_engine_blocks_for(&model.graph, eo.context, 4, eo.max_rows, eo.n_blocks);
    struct mxc_engine_target target = fake_target(&model);
    assert_int_equal(mxc_engine_new(&target, &eo, &engine, NULL), MXC_OK);
    assert_int_equal(
        mxc_grammar_vocab_new(chat->tokenizer, chat->eos_ids, (size_t)chat->n_eos_ids, &real, NULL),
        MXC_OK);
    struct mxc_tools tools = tools_of(tiny, "{\"type\":\"function\",\"name\":\"pick\"}", "true");
    for (size_t i = 0; i < 2 * sizeof names / sizeof *names; i++) {
        const struct mxc_tool_shape *shape = mxc_tool_shape_named(names[i / 2]);
        struct seen seen = {.tools = &tools, .text = "?", .shape = names[i / 2]};
        struct answer a = {.reason = MXC_DONE_ERROR};
        struct mxc_tools_grammar_options go = {
            .shape = shape, .tools = &tools, .tokenizer = chat->tokenizer};
        struct mxc_tool_parser_options po = {
            .shape = shape, .tools = &tools, .event = take, .user = &seen};
        struct mxc_reasoning_budget_options bo = {.tokenizer = chat->tokenizer,
                                                  .marks = &marks,
                                                  .inside = i % 2 != 0,
                                                  .budget = i % 2 ? 5 : 0};
        struct mxc_grammar *grammar = NULL;
        struct mxc_grammar_masks *masks = NULL;
        struct mxc_grammar_state *gs = NULL;
        struct mxc_reasoning_budget *budget = NULL;
        struct mxc_gen_params params;
        struct mxc_prompt prompt = {.tokens = prompt_ids, .n_tokens = 3, .adapter = -1};
        uint64_t id;
        mxc_buf_init(&seen.arguments, 1 << 16);
        mxc_buf_init(&a.thought, 1 << 16);
        assert_int_equal(mxc_tools_grammar(&go, &grammar, NULL), MXC_OK);
        assert_int_equal(mxc_grammar_masks_new(grammar, real, 0, &masks, NULL), MXC_OK);
        assert_int_equal(mxc_grammar_state_new(masks, NULL, &gs, NULL), MXC_OK);
        bo.answer = mxc_grammar_filter(gs);
        assert_int_equal(mxc_reasoning_budget_new(&bo, &budget, NULL), MXC_OK);
        assert_int_equal(mxc_tool_parser_new(&po, &a.parser, NULL), MXC_OK);
        mxc_gen_params_init(&params);
        params.request.sampling.filter = mxc_reasoning_budget_filter(budget);
        params.request.sampling.temperature = 1;
        params.request.sampling.seed = i;
        params.request.max_tokens = 400;
        params.inside = bo.inside;
        params.shown = mxc_tool_shape_shown(shape, &params.n_shown);
        params.event = receive;
        params.user = &a;
        assert_int_equal(mxc_gen_submit(engine, chat, &prompt, &params, &id, &a.err), MXC_OK);
        while (mxc_engine_step(engine)) {
        }
        if (a.reason != MXC_DONE_STOP || seen.n_calls != 1)
            fail_msg("%s: reason %d, %zu calls, %s", names[i / 2], (int)a.reason, seen.n_calls,
                     a.reason == MXC_DONE_ERROR ? a.err.message : "");
        assert_string_equal(seen.name, "pick");
        assert_int_equal(mxc_reasoning_budget_used(budget), i % 2 ? 6 : 0);
        assert_int_equal(a.thought.length > 0, i % 2);
        mxc_tool_parser_free(a.parser);
        mxc_reasoning_budget_free(budget);
        mxc_grammar_state_free(gs);
        mxc_grammar_masks_unref(masks);
        mxc_buf_fini(&seen.arguments);
        mxc_buf_fini(&a.thought);
    }
    mxc_tools_fini(&tools);
    mxc_grammar_vocab_free(real);
    mxc_engine_free(engine);
    assert_int_equal(model.bad, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(walks),         cmocka_unit_test(wrappers),
        cmocka_unit_test(special_marks), cmocka_unit_test(unsupported_schemas),
        cmocka_unit_test(memory_fails),  cmocka_unit_test(on_an_engine)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
