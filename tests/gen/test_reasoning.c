/* Reasoning: every way of cutting a text gives the same thought and the same answer. */
#include "test.h"

#include "gen/reasoning.h"

#include <string.h>

static const struct mxc_reasoning_marks think = {.open = "<think>", .close = "</think>"};

static void split(const char *text, const struct mxc_reasoning_marks *marks, bool inside,
                  size_t piece, const char *thought, const char *answer) {
    struct mxc_reasoning s;
    struct mxc_buf a, t;
    size_t length = strlen(text);
    mxc_reasoning_init(&s, marks, inside);
    mxc_buf_init(&a, 1 << 16);
    mxc_buf_init(&t, 1 << 16);
    for (size_t at = 0; at < length; at += piece)
        assert_int_equal(mxc_reasoning_push(&s, text + at,
                                            piece < length - at ? piece : length - at, &a, &t,
                                            NULL),
                         MXC_OK);
    assert_int_equal(mxc_reasoning_finish(&s, &a, &t, NULL), MXC_OK);
    assert_string_equal(mxc_buf_text(&t), thought);
    assert_string_equal(mxc_buf_text(&a), answer);
    mxc_reasoning_fini(&s);
    mxc_buf_fini(&a);
    mxc_buf_fini(&t);
}

static void cases(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool inside;
        const char *thought, *answer;
    } table[] = {{"<think>\nHm, 2 + 2.\n</think>\n\nFour.", false, "Hm, 2 + 2.", "Four."},
                 {"Hm, 2 + 2.\n</think>\n\nFour.\n", true, "Hm, 2 + 2.", "Four.\n"},
                 {"<think></think>Four.", false, "", "Four."},
                 {"\n\n</think>\n\nFour.", true, "", "Four."},
                 {"  \n<think>a  b</think> c", false, "a  b", "c"},
                 {"Just text, < and <thin> and <think>no mark</think>.", false, "",
                  "Just text, < and <thin> and <think>no mark</think>."},
                 {"  leading space stays", false, "", "  leading space stays"},
                 {"<thinkk>", false, "", "<thinkk>"},
                 {"<thi", false, "", "<thi"},
                 {"  ", false, "", "  "},
                 {"<think>never closed, a < b \n", false, "never closed, a < b", ""},
                 {"<think>ends in a mark's start </thi", false, "ends in a mark's start </thi", ""},
                 {"<think>one</think>\n<think>two</think>three <think>four</think>", false,
                  "onetwo", "three <think>four</think>"},
                 {"<think>x</thinker></think>y", false, "x</thinker>", "y"},
                 {"<think>caf\xC3\xA9\n\n\xE2\x82\xAC</think>\xC3\xA9", false,
                  "caf\xC3\xA9\n\n\xE2\x82\xAC", "\xC3\xA9"},
                 {"</think>", false, "", "</think>"},
                 {"", false, "", ""},
                 {"", true, "", ""}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        for (size_t piece = 1; piece < 40; piece++)
            split(table[i].text, &think, table[i].inside, piece, table[i].thought, table[i].answer);
    static const struct mxc_reasoning_marks other = {.open = "<|START_THINKING|>",
                                                     .close = "<|END_THINKING|>"};
    for (size_t piece = 1; piece < 40; piece++) {
        split("<|START_THINKING|>a<|END_THINKING|>b", &other, false, piece, "a", "b");
        split("<think>a</think>b", NULL, true, piece, "", "<think>a</think>b");
    }
}

/* What is certain does not wait: an answer without marks streams at once. */
static void streams(void **state) {
    (void)state;
    struct mxc_reasoning s;
    struct mxc_buf a, t;
    mxc_reasoning_init(&s, &think, false);
    mxc_buf_init(&a, 1 << 16);
    mxc_buf_init(&t, 1 << 16);
    assert_int_equal(mxc_reasoning_push(&s, "Hello <th", 9, &a, &t, NULL), MXC_OK);
    assert_string_equal(mxc_buf_text(&a), "Hello <th");
    assert_int_equal(mxc_reasoning_push(&s, "ere", 3, &a, &t, NULL), MXC_OK);
    assert_string_equal(mxc_buf_text(&a), "Hello <there");
    mxc_reasoning_fini(&s);
    mxc_reasoning_init(&s, &think, true);
    assert_int_equal(mxc_reasoning_push(&s, " so far", 7, &a, &t, NULL), MXC_OK);
    assert_string_equal(mxc_buf_text(&t), "so far");
    mxc_reasoning_fini(&s);
    mxc_buf_fini(&a);
    mxc_buf_fini(&t);
}

/* gpt-oss: headers name the channel; calls come out in one form. */
static void channels(void **state) {
    (void)state;
    static const char text[] = "<|channel|>analysis<|message|>";
    const struct mxc_reasoning_marks *marks = mxc_reasoning_find(mxc_str_of(text), NULL, NULL);
    static const struct {
        const char *text;
        bool inside;
        const char *thought, *answer;
    } table[] = {
        {"<|channel|>analysis<|message|>Hm < 3.<|end|><|start|>assistant<|channel|>final<|message|>"
         "Four, <|en.",
         false, "Hm < 3.", "Four, <|en."},
        {"Hm.<|end|><|start|>assistant<|channel|>final<|message|>Four.<|return|>", true, "Hm.",
         "Four."},
        {"<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>analysis<|message|>B"
         "<|end|><|start|>assistant<|channel|>commentary<|message|>C<|end|>\n<|start|>assistant"
         "<|channel|>final<|message|>D",
         false, "A\n\nB", "C\n\nD"},
        {"<|channel|>analysis<|message|>A<|end|><|start|>assistant to=functions.f<|channel|>"
         "commentary json<|message|>{\"a\": 1}<|call|>",
         false, "A", "<|channel|>commentary to=functions.f<|message|>{\"a\": 1}<|call|>"},
        {"<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}", false, "",
         "<|channel|>commentary to=functions.f<|message|>{}"},
        {" to=functions.f<|channel|>commentary<|message|>{}<|call|>", false, "",
         "<|channel|>commentary to=functions.f<|message|>{}<|call|>"},
        {"No header, <|end|>", false, "", "No header, "},
        {"<b> no header", false, "", "<b> no header"},
        {"<|channel|>final<|message|>x<|end|> and more", false, "", "x\n\nand more"},
        {"<|channel|>analysis<|message|><|end|><|start|>assistant<|channel|>final<|message|>x",
         false, "", "x"},
        {"<|channel|>fin", false, "", ""},
        {"", false, "", ""},
        {"", true, "", ""}};
    assert_non_null(marks);
    assert_true(marks->channels);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        for (size_t piece = 1; piece < 200; piece++)
            split(table[i].text, marks, table[i].inside, piece, table[i].thought, table[i].answer);
    assert_true(mxc_reasoning_is_open(marks, mxc_str_of(text)));
    assert_null(mxc_reasoning_find(mxc_str_of("<|user|>{{ m }}<|end|>"), NULL, NULL));
}

static bool knows(void *user, const char *spelling) {
    return strstr(user, spelling) != NULL;
}

static void finds_marks(void **state) {
    (void)state;
    char vocabulary[] = "[THINK] [/THINK] <think>";
    const struct mxc_reasoning_marks *m =
        mxc_reasoning_find(mxc_str_of("{{ '<think>\n' }}"), knows, vocabulary);
    assert_string_equal(m->open, "<think>");
    m = mxc_reasoning_find(mxc_str_of("{{ x.split('</think>')[-1] }}"), NULL, NULL);
    assert_string_equal(m->close, "</think>");
    m = mxc_reasoning_find(mxc_str_of("plain"), knows, vocabulary);
    assert_string_equal(m->open, "[THINK]"); /* both marks are tokens */
    vocabulary[0] = 0;
    assert_null(mxc_reasoning_find(mxc_str_of("plain"), knows, vocabulary));
    assert_null(mxc_reasoning_find(mxc_str_of(NULL), NULL, NULL));
    assert_true(mxc_reasoning_is_open(&think, mxc_str_of("assistant\n<think>\n")));
    assert_false(mxc_reasoning_is_open(&think, mxc_str_of("<think>\n\n</think>\n\n")));
    assert_false(mxc_reasoning_is_open(NULL, mxc_str_of("<think>")));
    assert_false(mxc_reasoning_is_open(&think, mxc_str_of("")));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(cases), cmocka_unit_test(channels),
                                       cmocka_unit_test(streams), cmocka_unit_test(finds_marks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
