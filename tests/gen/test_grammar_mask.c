/* Token masks: every bit against advancing a copy by that token, random walks that end in text the
 * grammar accepts, tokens that cut characters, EOS, lazy grammars, special tokens, the cache's
 * bound, the engine's hook, and failing memory. */
#include "test.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/thread.h"
#include "format/tokenizer_json.h"
#include "gen/grammar/grammar.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static uint64_t seed;

static uint32_t draw(uint32_t n) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (uint32_t)((seed >> 11) % n);
}

/* All bytes, some longer tokens (characters cut in two among them), one of them twice, an empty
 * one, a special one, EOS. */
static const char *const longer[] = {
    "\"",
    "\",\"",
    "\":",
    "\": ",
    "{\"",
    "}",
    "],",
    "true",
    "false",
    "null",
    " \"",
    "12",
    "0.5",
    "-1",
    "\xc3\xa4",
    "\xf0\x9f",
    "\x98\x80x",
    "\xa4\"",
    "\\u00",
    "abc",
    "ab\"}",
    "\"}",
    "}}",
    ", \"",
    "[{\"",
    "[]",
    "{}",
    "[[[[",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "  ",
    "\xff\xfe",
    "",
    "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\"",
    "\\n"};
enum { N_LONGER = sizeof longer / sizeof *longer, SPECIAL = 256 + N_LONGER, EOS, N };

static struct mxc_grammar_piece pieces[N];
static char bytes[256];

static struct mxc_grammar_vocab *vocab_new(void) {
    struct mxc_grammar_vocab *v = NULL;
    int32_t eos = EOS;
    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        pieces[i].bytes = (struct mxc_str){bytes + i, 1};
    }
    for (int i = 0; i < N_LONGER; i++)
        pieces[256 + i].bytes = mxc_str_of(longer[i]);
    pieces[SPECIAL] = (struct mxc_grammar_piece){MXC_STR("[CALL]"), true};
    pieces[EOS] = (struct mxc_grammar_piece){MXC_STR("</s>"), true};
    if (mxc_grammar_vocab_new_pieces(pieces, N, &eos, 1, &v, NULL))
        return NULL;
    return v;
}

static struct mxc_grammar_vocab *vocab;

static bool bit(const uint64_t *bits, int32_t id) {
    return bits[id / 64] >> (id % 64) & 1;
}

static struct mxc_grammar_state *state_of(struct mxc_grammar *g, size_t cache) {
    struct mxc_grammar_masks *masks = NULL;
    struct mxc_grammar_state *s = NULL;
    assert_int_equal(mxc_grammar_masks_new(g, vocab, cache, &masks, NULL), MXC_OK);
    assert_int_equal(mxc_grammar_state_new(masks, NULL, &s, NULL), MXC_OK);
    mxc_grammar_masks_unref(masks);
    return s;
}

static struct mxc_grammar_state *gbnf_state(const char *text) {
    struct mxc_grammar *g = NULL;
    struct mxc_err err = {0};
    if (mxc_grammar_parse_gbnf(mxc_str_of(text), &g, &err))
        fail_msg("%s: %s", text, err.message);
    return state_of(g, 0);
}

/* Compares the mask with what advancing allows; returns how many tokens are allowed. */
static int check_mask(struct mxc_grammar_state *s, const char *what, int32_t list[N]) {
    const uint64_t *bits = NULL;
    struct mxc_err err = {0};
    int n = 0, n_text = 0;
    if (mxc_grammar_mask(s, &bits, &err))
        fail_msg("%s: %s", what, err.message);
    for (int32_t id = 0; id < N; id++) {
        struct mxc_grammar_state *copy = NULL;
        if (id == EOS)
            continue;
        assert_int_equal(mxc_grammar_state_dup(s, &copy, NULL), MXC_OK);
        bool allowed = mxc_grammar_advance(copy, id, &err) == MXC_OK;
        if (allowed != bit(bits, id))
            fail_msg("%s: token %d is %s by the mask and not by advancing", what, id,
                     allowed ? "banned" : "allowed");
        mxc_grammar_state_free(copy);
        if (allowed)
            list[n++] = id;
    }
    n_text = n;
    bool ends = mxc_grammar_accepts_end(s);
    if (bit(bits, EOS) != (ends || !n_text))
        fail_msg("%s: EOS is %d, the text may end %d", what, bit(bits, EOS), ends);
    if (ends)
        list[n++] = EOS;
    return n;
}

/* Random walks with every mask checked; the text must be accepted. */
static void walk(struct mxc_grammar *g, const char *what, int n_walks, size_t cache) {
    struct mxc_grammar_state *first = state_of(g, cache);
    int n_ended = 0;
    for (int k = 0; k < n_walks; k++) {
        struct mxc_grammar_state *s = NULL;
        struct mxc_buf text;
        int32_t list[N], id = 0;
        mxc_buf_init(&text, 1 << 20);
        assert_int_equal(mxc_grammar_state_dup(first, &s, NULL), MXC_OK);
        for (int step = 0; step < 60 && id != EOS; step++) {
            int n = check_mask(s, what, list);
            if (!n)
                fail_msg("%s: stuck after %s", what, mxc_buf_text(&text));
            id = list[draw((uint32_t)n)];
            if (list[n - 1] == EOS && (step > 30 || draw(4) == 0))
                id = EOS;
            assert_int_equal(mxc_grammar_advance(s, id, NULL), MXC_OK);
            if (id < SPECIAL)
                mxc_buf_append(&text, pieces[id].bytes.ptr, pieces[id].bytes.length);
        }
        if (id == EOS) {
            bool yes = false;
            assert_int_equal(mxc_grammar_accepts(
                                 g, (struct mxc_str){mxc_buf_text(&text), text.length}, &yes, NULL),
                             MXC_OK);
            if (!yes)
                fail_msg("%s: a walk ended in %s", what, mxc_buf_text(&text));
            n_ended++;
        }
        mxc_buf_fini(&text);
        mxc_grammar_state_free(s);
    }
    assert_true(n_ended > 0 || n_walks < 6); /* walks that never end would test little */
    mxc_grammar_state_free(first);
}

static void walks_schema(void **state) {
    (void)state;
    json_t *cases = NULL;
    assert_int_equal(mxc_json_load(MXC_TEST_DATA "/grammar/schemas.json", 16 << 20, &cases, NULL),
                     MXC_OK);
    seed = 88172645463325252u;
    for (size_t i = 0; i < json_array_size(cases); i += 5) {
        struct mxc_grammar *g = NULL;
        char what[32];
        (void)snprintf(what, sizeof what, "case %zu", i);
        assert_int_equal(
            mxc_grammar_parse_schema(json_object_get(json_array_get(cases, i), "schema"),
                                     i % 3 ? MXC_JSON_SPACED : MXC_JSON_PRETTY, &g, NULL),
            MXC_OK);
        walk(g, what, 2, i % 2 ? 0 : 2000);
    }
    json_decref(cases);
}

static void walks_gbnf(void **state) {
    (void)state;
    static const char *const texts[] = {
        "root ::= [a-z]{3,70} \"\\\"\"",
        "root ::= ([a-b]{2} | \"a\"){20,40}",
        "root ::= .*",
        "root ::= (\"[\" root \"]\")* ",
        "root ::= a | b\na ::= \"x\" a \"y\" | \"x\"\nb ::= \"x\" b \"z\" | \"x\"",
        "root ::= [\\u00e0-\\u00ff\\U0001F600-\\U0001F64F]{1,3} \"x\"?",
        "root ::= w (\", \" w){0,5}\nw ::= \"abc\" | \"ab\" | \"a\"+ \"\\\"\"",
        "root ::= (\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\" | [ab]){1,100} \"\\\"}\"",
    };
    seed = 123456789;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct mxc_grammar *g = NULL;
        assert_int_equal(mxc_grammar_parse_gbnf(mxc_str_of(texts[i]), &g, NULL), MXC_OK);
        walk(g, texts[i], 6, i % 2 ? 0 : 1500);
    }
}

static void take(struct mxc_grammar_state *s, const char *text) {
    struct mxc_err err = {0};
    for (; *text; text++)
        if (mxc_grammar_advance(s, (uint8_t)*text, &err))
            fail_msg("at %s: %s", text, err.message);
}

/* Deeper than where cached masks are used, and up to the bound. */
static void deep(void **state) {
    (void)state;
    struct mxc_grammar_state *s = gbnf_state("root ::= \"[\" root \"]\" | \"\"");
    int32_t list[N];
    int depth = 0;
    while (mxc_grammar_advance(s, '[', NULL) == MXC_OK) {
        depth++;
        if (depth % 150 == 0 || depth > 1000)
            (void)check_mask(s, "deep", list);
    }
    assert_true(depth >= MXC_GRAMMAR_MAX_DEPTH - 1 && depth <= MXC_GRAMMAR_MAX_DEPTH + 1);
    (void)check_mask(s, "deepest", list);
    for (int i = 0; i < depth; i++)
        assert_int_equal(mxc_grammar_advance(s, ']', NULL), MXC_OK);
    assert_true(mxc_grammar_accepts_end(s));
    mxc_grammar_state_free(s);
}

/* Many frames come and go: what is kept stays small, and the answers right. */
static void long_text(void **state) {
    (void)state;
    struct mxc_grammar_state *s = gbnf_state(
        "root ::= (\"[\" item \"]\" sep){1,60000}\nitem ::= [a-z] item? \"!\"\nsep ::= \",\"");
    int32_t list[N];
    for (int i = 0; i < 20000; i++)
        take(s, "[abc!!!],");
    (void)check_mask(s, "long text", list);
    assert_true(mxc_grammar_accepts_end(s));
    take(s, "[ab!");
    assert_int_equal(mxc_grammar_advance(s, ']', NULL), MXC_E_ARG);
    take(s, "!],");
    mxc_grammar_state_free(s);
}

/* A mask that would take too long is an error, not a stall. */
static void slow(void **state) {
    (void)state;
    static const char text[] = "root ::= s | \"z\" x y\ns ::= [a-z] x | [a-z] y | [a-z]\n"
                               "x ::= s \"1\"\ny ::= s\n";
    enum { WORDS = 90000 };
    struct mxc_grammar_piece *many = mxc_mem_zalloc(WORDS, sizeof *many);
    char *spelled = mxc_mem_zalloc(WORDS, 8);
    struct mxc_grammar_vocab *v = NULL;
    struct mxc_grammar_masks *masks = NULL;
    struct mxc_grammar_state *s = NULL;
    struct mxc_grammar *g = NULL;
    struct mxc_err err = {0};
    const uint64_t *bits = NULL;
    assert_true(many && spelled);
    for (int i = 0; i < WORDS; i++) {
        int n = i;
        for (int k = 0; k < 4; k++, n /= 26)
            spelled[8 * i + k] = (char)('a' + n % 26);
        many[i].bytes = (struct mxc_str){spelled + 8 * i, 4};
    }
    assert_int_equal(mxc_grammar_vocab_new_pieces(many, WORDS, NULL, 0, &v, NULL), MXC_OK);
    assert_int_equal(mxc_grammar_parse_gbnf(mxc_str_of(text), &g, NULL), MXC_OK);
    assert_int_equal(mxc_grammar_masks_new(g, v, 0, &masks, NULL), MXC_OK);
    assert_int_equal(mxc_grammar_state_new(masks, NULL, &s, NULL), MXC_OK);
    enum mxc_code code = MXC_OK;
    for (int i = 0; i < 70 && !code; i++)
        if (!(code = mxc_grammar_mask(s, &bits, &err)))
            code = mxc_grammar_advance(s, 5, &err);
    assert_int_equal(code, MXC_E_LIMIT);
    mxc_grammar_state_free(s);
    mxc_grammar_masks_unref(masks);
    mxc_grammar_vocab_free(v);
    mxc_mem_free(many);
    mxc_mem_free(spelled);
}

static void characters(void **state) {
    (void)state;
    struct mxc_grammar_state *s = gbnf_state("root ::= [\\u00e4\\U0001F600] \"\\\"\"");
    const uint64_t *bits = NULL;
    assert_int_equal(mxc_grammar_mask(s, &bits, NULL), MXC_OK);
    assert_true(bit(bits, 0xc3) && bit(bits, 0xf0) && !bit(bits, 0xa4) && !bit(bits, 'a'));
    assert_true(bit(bits, 256 + 14) &&
                bit(bits, 256 + 15)); /* the whole one, a half of the other */
    assert_int_equal(mxc_grammar_advance(s, 256 + 15, NULL), MXC_OK);
    assert_int_equal(mxc_grammar_mask(s, &bits, NULL), MXC_OK);
    assert_true(bit(bits, 0x98) && !bit(bits, 256 + 16) && !bit(bits, EOS));
    take(s, "\x98\x80\"");
    assert_int_equal(mxc_grammar_mask(s, &bits, NULL), MXC_OK);
    for (int32_t id = 0; id < N; id++)
        assert_int_equal(bit(bits, id), id == EOS);
    assert_int_equal(mxc_grammar_advance(s, 'a', NULL), MXC_E_ARG);
    assert_int_equal(mxc_grammar_advance(s, EOS, NULL), MXC_OK);
    assert_int_equal(mxc_grammar_advance(s, 'a', NULL), MXC_E_ARG);
    mxc_grammar_state_free(s);
}

static void forced(void **state) {
    (void)state;
    struct mxc_grammar_state *s = gbnf_state("root ::= \"{\\\"name\\\": \" ([a-z] | \"1\") \"}\"");
    struct mxc_buf text;
    mxc_buf_init(&text, 100);
    assert_int_equal(mxc_grammar_forced(s, 100, &text, NULL), MXC_OK);
    assert_string_equal(mxc_buf_text(&text), "{\"name\": ");
    take(s, "{\"name\": x");
    mxc_buf_clear(&text);
    assert_int_equal(mxc_grammar_forced(s, 100, &text, NULL), MXC_OK);
    assert_string_equal(mxc_buf_text(&text), "}");
    mxc_buf_fini(&text);
    mxc_grammar_state_free(s);
}

static void special(void **state) {
    (void)state;
    struct mxc_grammar_builder *b = NULL;
    struct mxc_grammar *g = NULL;
    const uint64_t *bits = NULL;
    assert_int_equal(mxc_grammar_builder_new(MXC_JSON_SPACED, &b, NULL), MXC_OK);
    int32_t root = mxc_grammar_add_seq(b,
                                       (int32_t[]){mxc_grammar_add_special(b, MXC_STR("[CALL]")),
                                                   mxc_grammar_add_until(b, MXC_STR("}"))},
                                       2);
    assert_int_equal(mxc_grammar_builder_finish(b, root, &g, NULL), MXC_OK);
    mxc_grammar_builder_free(b);
    struct mxc_grammar_state *s = state_of(g, 0);
    assert_int_equal(mxc_grammar_mask(s, &bits, NULL), MXC_OK);
    for (int32_t id = 0; id < N; id++)
        assert_int_equal(bit(bits, id), id == SPECIAL);
    assert_int_equal(mxc_grammar_advance(s, SPECIAL, NULL), MXC_OK);
    assert_int_equal(mxc_grammar_mask(s, &bits, NULL), MXC_OK);
    assert_true(bit(bits, 'a') && bit(bits, EOS) && !bit(bits, SPECIAL) && !bit(bits, '}'));
    mxc_grammar_state_free(s);
}

static void lazy(void **state) {
    (void)state;
    struct mxc_grammar *g = NULL;
    struct mxc_grammar_masks *masks = NULL;
    struct mxc_grammar_state *s = NULL, *copy = NULL;
    const uint64_t *bits = NULL;
    assert_int_equal(mxc_grammar_parse_gbnf(MXC_STR("root ::= \"\\\"\" [a-c]+ \"}\""), &g, NULL),
                     MXC_OK);
    assert_int_equal(mxc_grammar_masks_new(g, vocab, 0, &masks, NULL), MXC_OK);
    struct mxc_grammar_trigger triggers[2] = {{.text = MXC_STR("<t>")}, {.token = SPECIAL}};
    struct mxc_grammar_lazy how = {triggers, 2, true, true};
    assert_int_equal(mxc_grammar_state_new(masks, &how, &s, NULL), MXC_OK);
    for (int round = 0; round < 3; round++) {
        assert_false(mxc_grammar_is_active(s));
        assert_int_equal(mxc_grammar_mask(s, &bits, NULL), MXC_OK);
        if (!round) { /* `must`: everything but EOS */
            assert_true(bit(bits, 'x') && bit(bits, SPECIAL) && !bit(bits, EOS));
            assert_false(mxc_grammar_accepts_end(s));
            assert_int_equal(mxc_grammar_advance(s, EOS, NULL), MXC_E_ARG);
        } else {
            assert_null(bits);
            assert_true(mxc_grammar_accepts_end(s));
        }
        take(s, "some text <t");
        assert_int_equal(mxc_grammar_state_dup(s, &copy, NULL), MXC_OK);
        take(copy, "ea>");
        assert_false(mxc_grammar_is_active(copy));
        mxc_grammar_state_free(copy);
        if (round == 1)
            assert_int_equal(mxc_grammar_advance(s, SPECIAL, NULL), MXC_OK);
        else
            take(s, ">");
        assert_true(mxc_grammar_is_active(s));
        assert_int_equal(mxc_grammar_mask(s, &bits, NULL), MXC_OK);
        assert_true(bit(bits, '"') && !bit(bits, 'a') && !bit(bits, EOS));
        take(s, "\"ab");
        assert_int_equal(mxc_grammar_advance(s, 'x', NULL), MXC_E_ARG);
        take(s, "}"); /* the grammar can only end: it waits again */
    }
    /* text outside any token; a rest that the grammar refuses is no trigger */
    assert_int_equal(mxc_grammar_advance_text(s, MXC_STR("a<t>x<t>\"a"), NULL), MXC_OK);
    assert_true(mxc_grammar_is_active(s));
    take(s, "b}");
    assert_int_equal(mxc_grammar_advance(s, EOS, NULL), MXC_OK);
    mxc_grammar_state_free(s);
    triggers[0].text.length = 0;
    triggers[0].token = -1;
    assert_int_equal(mxc_grammar_state_new(masks, &how, &s, NULL), MXC_E_ARG);
    mxc_grammar_masks_unref(masks);
}

static void hook(void **state) {
    (void)state;
    struct mxc_grammar_state *s = gbnf_state("root ::= \"abc\" | \"b\"");
    struct mxc_logit_filter f = mxc_grammar_filter(s);
    float logits[N + 70];
    for (int i = 0; i < N + 70; i++)
        logits[i] = (float)i;
    f.apply(f.user, logits, N + 70); /* a vocabulary with padding */
    for (int i = 0; i < N + 70; i++) {
        bool allowed = i == 'a' || i == 'b' || i == 256 + 19;
        assert_true(allowed ? logits[i] == (float)i : isinf(logits[i]) && logits[i] < 0);
    }
    f.accept(f.user, 'a');
    for (int i = 0; i < 100; i++)
        logits[i] = (float)i;
    f.apply(f.user, logits, 99); /* a smaller vocabulary than the tokenizer's */
    assert_true(logits['b'] == 'b' && isinf(logits['a']) && logits[99] == 99);
    f.accept(f.user, 'x');
    assert_int_equal(mxc_grammar_state_error(s)->code, MXC_E_ARG);
    f.apply(f.user, logits, 100);
    for (int i = 0; i < 100; i++)
        assert_true(isinf(logits[i]));
    mxc_grammar_state_free(s);
}

static void bounded_cache(void **state) {
    (void)state;
    struct mxc_grammar *g = NULL;
    struct mxc_grammar_masks *masks = NULL;
    struct mxc_grammar_masks_stats stats;
    struct mxc_grammar_state *s = NULL;
    const uint64_t *bits = NULL;
    assert_int_equal(mxc_grammar_parse_gbnf(MXC_STR("root ::= [a-z]{1,2000}"), &g, NULL), MXC_OK);
    assert_int_equal(mxc_grammar_masks_new(g, vocab, 600, &masks, NULL), MXC_OK);
    assert_int_equal(mxc_grammar_state_new(masks, NULL, &s, NULL), MXC_OK);
    for (int i = 0; i < 2000; i++) {
        assert_int_equal(mxc_grammar_mask(s, &bits, NULL), MXC_OK);
        assert_int_equal(mxc_grammar_advance(s, 'a', NULL), MXC_OK);
        mxc_grammar_masks_get_stats(masks, &stats);
        assert_true(stats.used_bytes <= 600);
    }
    /* counts far from both bounds share one mask */
    assert_true(stats.n_hits > 1900 && stats.n_misses < 60 && stats.n_evicted > 0);
    assert_int_equal(mxc_grammar_advance(s, 'a', NULL), MXC_E_ARG);
    mxc_grammar_state_free(s);
    mxc_grammar_masks_unref(masks);
}

static void *one_of_many(void *arg) {
    static const char text[] = "{\"a\": [[1, {}], \"some text\"], \"b\": -2.5e3}";
    struct mxc_grammar_state *s = NULL;
    const uint64_t *bits = NULL;
    uintptr_t ok = !mxc_grammar_state_new(arg, NULL, &s, NULL);
    for (size_t i = 0; i < sizeof text - 1 && ok; i++)
        ok = !mxc_grammar_mask(s, &bits, NULL) && bit(bits, text[i]) &&
             !mxc_grammar_advance(s, text[i], NULL);
    ok = ok && mxc_grammar_accepts_end(s);
    mxc_grammar_state_free(s);
    return (void *)ok;
}

/* Sequences on several threads share masks, and a cache that is too small for them. */
static void threads(void **state) {
    (void)state;
    struct mxc_grammar *g = NULL;
    struct mxc_grammar_masks *masks = NULL;
    pthread_t ids[4];
    void *ok;
    assert_int_equal(mxc_grammar_json_object(MXC_JSON_SPACED, &g, NULL), MXC_OK);
    assert_int_equal(mxc_grammar_masks_new(g, vocab, 700, &masks, NULL), MXC_OK);
    for (int i = 0; i < 4; i++)
        assert_true(mxc_thread_start(&ids[i], one_of_many, masks));
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(ids[i], &ok), 0);
        assert_non_null(ok);
    }
    mxc_grammar_masks_unref(masks);
}

static enum mxc_code run_all(struct mxc_err *err) {
    struct mxc_grammar *g = NULL;
    struct mxc_grammar_vocab *v = NULL;
    struct mxc_grammar_masks *masks = NULL;
    struct mxc_grammar_state *s = NULL, *copy = NULL;
    const uint64_t *bits = NULL;
    int32_t eos = EOS;
    struct mxc_grammar_trigger trigger = {.text = MXC_STR(">")};
    struct mxc_grammar_lazy how = {&trigger, 1, true, false};
    enum mxc_code code = mxc_grammar_vocab_new_pieces(pieces, N, &eos, 1, &v, err);
    if (!code)
        code = mxc_grammar_json_object(MXC_JSON_SPACED, &g, err);
    if (!code)
        code = mxc_grammar_masks_new(g, v, 0, &masks, err);
    if (!code)
        code = mxc_grammar_state_new(masks, &how, &s, err);
    static const char text[] = "x>{\"a\": [[1, {}], \"bc\"]}";
    for (size_t i = 0; i < sizeof text - 1 && !code; i++) {
        code = mxc_grammar_advance(s, text[i], err);
        if (!code)
            code = mxc_grammar_mask(s, &bits, err);
    }
    if (!code)
        code = mxc_grammar_state_dup(s, &copy, err);
    mxc_grammar_state_free(copy);
    mxc_grammar_state_free(s);
    mxc_grammar_masks_unref(masks);
    mxc_grammar_vocab_free(v);
    return code;
}

static void memory(void **state) {
    (void)state;
    struct mxc_err err = {0};
    mxc_mem_fail_at(0);
    uint64_t before = mxc_mem_calls();
    assert_int_equal(run_all(&err), MXC_OK);
    uint64_t calls = mxc_mem_calls() - before;
    for (uint64_t n = 1; n <= calls; n++) {
        mxc_mem_fail_at(n);
        enum mxc_code code = run_all(&err);
        mxc_mem_fail_at(0);
        if (code != MXC_E_NOMEM)
            fail_msg("call %llu of %llu: code %d, %s", (unsigned long long)n,
                     (unsigned long long)calls, code, err.message);
    }
}

/* Real vocabularies: the tokens of an encoded text are allowed one after another. */
static void tokenizers(void **state) {
    (void)state;
    static const char *const names[] = {"qwen", "llama3", "spm_llava", "spm_metaspace"};
    static const char text[] =
        "{\"name\": \"J\xc3\xbcrgen \xf0\x9f\x98\x80 \\\"x\\\"\", \"n\": [1, -2.5, true]}";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[512];
        struct mxc_tokdesc desc;
        struct mxc_tokenizer *t = NULL;
        struct mxc_grammar_vocab *v = NULL;
        struct mxc_grammar *g = NULL;
        struct mxc_grammar_masks *masks = NULL;
        struct mxc_grammar_state *s = NULL;
        struct mxc_ids ids = {0};
        struct mxc_err err = {0};
        (void)snprintf(path, sizeof path, "%s/tokenizers/%s", MXC_TEST_DATA, names[i]);
        if (mxc_tokenizer_json_load(path, &desc, &err) || mxc_tokenizer_new(&desc, &t, &err))
            fail_msg("%s: %s", path, err.message);
        int32_t eos = (int32_t)mxc_tokenizer_desc(t)->eos;
        assert_int_equal(mxc_grammar_vocab_new(t, &eos, 1, &v, NULL), MXC_OK);
        assert_int_equal(mxc_grammar_json_object(MXC_JSON_SPACED, &g, NULL), MXC_OK);
        assert_int_equal(mxc_grammar_masks_new(g, v, 0, &masks, NULL), MXC_OK);
        assert_int_equal(mxc_grammar_state_new(masks, NULL, &s, NULL), MXC_OK);
        struct mxc_text_span span = {text, sizeof text - 1, true};
        assert_int_equal(
            mxc_tokenizer_encode(t, &span, 1, (struct mxc_encode_options){0}, &ids, NULL), MXC_OK);
        size_t from = 0;
        struct mxc_buf first;
        mxc_buf_init(&first, 100); /* the space that SPM vocabularies put before a text */
        assert_true(mxc_tokenizer_piece(t, ids.items[0], &first));
        if (first.length && first.data[0] == ' ') {
            from = 1;
            assert_int_equal(mxc_grammar_advance_text(
                                 s, (struct mxc_str){first.data + 1, first.length - 1}, NULL),
                             MXC_OK);
        }
        mxc_buf_fini(&first);
        for (size_t k = from; k < ids.count; k++) {
            const uint64_t *bits = NULL;
            assert_int_equal(mxc_grammar_mask(s, &bits, NULL), MXC_OK);
            if (!bit(bits, (int32_t)ids.items[k]))
                fail_msg("%s: token %zu (%u) is banned", names[i], k, ids.items[k]);
            assert_int_equal(mxc_grammar_advance(s, (int32_t)ids.items[k], NULL), MXC_OK);
        }
        assert_true(mxc_grammar_accepts_end(s));
        mxc_ids_fini(&ids);
        mxc_grammar_state_free(s);
        mxc_grammar_masks_unref(masks);
        mxc_grammar_vocab_free(v);
        mxc_tokenizer_free(t);
    }
}

static int setup(void **state) {
    (void)state;
    vocab = vocab_new();
    return !vocab;
}

static int teardown(void **state) {
    (void)state;
    mxc_grammar_vocab_free(vocab);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(walks_schema), cmocka_unit_test(walks_gbnf),
        cmocka_unit_test(deep),         cmocka_unit_test(slow),
        cmocka_unit_test(threads),      cmocka_unit_test(long_text),
        cmocka_unit_test(characters),   cmocka_unit_test(forced),
        cmocka_unit_test(special),      cmocka_unit_test(lazy),
        cmocka_unit_test(hook),         cmocka_unit_test(bounded_cache),
        cmocka_unit_test(memory),       cmocka_unit_test(tokenizers),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
