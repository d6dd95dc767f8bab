/* What all backends check of their callers, asked directly: plan options; which blocks of a window
 * may be missing; stores that are not there; splices and ranges of the CROSS store, and finding
 * them again; blocks of states. Wrong steps through a backend are test_plan's and test_cross's. */
#include "backend/tiny.h"

#include "backend/check.h"

#include <string.h>

enum { VOCAB = 70, WINDOW = 40, ROWS = 4 };
static const struct tiny_shape shape = {.n_layers = 2,
                                        .hidden = 64,
                                        .ffn = 96,
                                        .n_heads = 4,
                                        .n_kv_heads = 2,
                                        .head_dim = 16,
                                        .vocab = VOCAB,
                                        .window = WINDOW,
                                        .storage = MXC_ST_F32};

/* A step of one span of ROWS rows that is right. */
struct asked {
    int32_t tokens[ROWS], positions[ROWS], out_row[ROWS], cross[2 * ROWS];
    int32_t blocks[MXC_N_KV_KINDS][8], n_blocks[MXC_N_KV_KINDS];
    float logits[ROWS], embedding[1];
    struct mxc_span span;
    struct mxc_splice splices[2];
    struct mxc_step step;
    struct mxc_step_limits limits;
};

static void ask(struct asked *a, const struct mxc_graph *graph, int32_t context) {
    *a = (struct asked){.n_blocks = {8, 8, 0, 8},
                        .cross = {0, 0, 3, 70, 0, 1, 3, 70},
                        .span = {.n_rows = ROWS, .context = context, .adapter = -1}};
    for (int k = 0; k < MXC_N_KV_KINDS; k++) {
        for (int i = 0; i < 8; i++)
            a->blocks[k][i] = i;
        a->span.blocks[k] = a->blocks[k];
        a->span.n_blocks[k] = 8;
    }
    for (int32_t i = 0; i < ROWS; i++)
        a->out_row[i] = i;
    a->span.cross_tokens = 70;
    a->splices[0] = (struct mxc_splice){1, a->embedding};
    a->splices[1] = (struct mxc_splice){3, a->embedding};
    a->step = (struct mxc_step){.n_rows = ROWS,
                                .tokens = a->tokens,
                                .positions = a->positions,
                                .n_axes = 1,
                                .cross_range = a->cross,
                                .n_spans = 1,
                                .spans = &a->span,
                                .n_out = ROWS,
                                .out_row = a->out_row,
                                .n_splices = 2,
                                .splices = a->splices};
    a->limits = (struct mxc_step_limits){graph, ROWS, ROWS, 1, a->n_blocks};
}

/* text NULL: nothing is wrong. */
static void answer(struct asked *a, const char *text) {
    struct mxc_err err = {0};
    const struct mxc_out out = {.logits = a->logits};
    enum mxc_code code = mxc_step_check(&a->step, &out, &a->limits, &err);
    if (text && !strstr(err.message, text))
        fail_msg("\"%s\" does not say \"%s\"", err.message, text);
    assert_int_equal(code, text ? MXC_E_ARG : MXC_OK);
    ask(a, a->limits.graph, 0);
}

static void test_blocks(void **state) {
    (void)state;
    struct tiny tiny;
    struct asked a;
    tiny_open(&tiny, &shape);
    /* the first row sees WINDOW keys with its own: from token 32 on, or from 31 on */
    for (int32_t context = 71; context >= 70; context--) {
        ask(&a, tiny.graph, context);
        a.blocks[MXC_KV_WINDOW][0] = -1;
        answer(&a, context == 71 ? NULL : "span 0: block 0 of kind 1 is -1, not in [0, 8)");
    }
    ask(&a, tiny.graph, 71);
    a.blocks[MXC_KV_WINDOW][1] = -1;
    answer(&a, "block 1 of kind 1 is -1");
    ask(&a, tiny.graph, 71);
    a.blocks[MXC_KV_WINDOW][0] = -2; /* a hole is -1 and nothing else */
    answer(&a, "block 0 of kind 1 is -2");
    ask(&a, tiny.graph, 71);
    a.blocks[MXC_KV_FULL][0] = -1;
    answer(&a, "block 0 of kind 0 is -1");
    a.blocks[MXC_KV_CROSS][0] = -1;
    answer(&a, "block 0 of kind 3 is -1");
    a.blocks[MXC_KV_CROSS][3] = 99; /* 70 tokens do not reach it */
    answer(&a, NULL);
    a.span.n_blocks[MXC_KV_CROSS] = 2;
    answer(&a, "span 0: 2 blocks do not hold 70 tokens of pictures");
    ask(&a, tiny.graph, 8 * MXC_KV_BLOCK - ROWS);
    answer(&a, NULL);
    ask(&a, tiny.graph, 8 * MXC_KV_BLOCK - ROWS + 1);
    answer(&a, "8 blocks of kind 0 do not hold 253 + 4 tokens");
    ask(&a, tiny.graph, INT32_MAX / 2);
    answer(&a, "span 0: context");
    /* a store that is not there: nobody looks */
    a.n_blocks[MXC_KV_CROSS] = a.n_blocks[MXC_KV_FULL] = 0;
    a.span.blocks[MXC_KV_FULL] = NULL;
    a.span.cross_tokens = -1;
    answer(&a, NULL);
    tiny_close(&tiny);
}

static void test_rows(void **state) {
    (void)state;
    struct tiny tiny;
    struct asked a;
    struct mxc_err err;
    tiny_open(&tiny, &shape);
    ask(&a, tiny.graph, 0);
    a.tokens[1] = VOCAB; /* a spliced row has no token */
    answer(&a, NULL);
    a.tokens[2] = VOCAB;
    answer(&a, "row 2: token 70 is not in [0, 70)");
    a.splices[1].row = 1;
    answer(&a, "splice 1: row 1 is out of range or order");
    a.splices[0].embedding = NULL;
    answer(&a, "splice 0");
    a.step.splices = NULL;
    answer(&a, "splices are missing");
    a.cross[ROWS + 3] = 71;
    answer(&a, "row 3: it sees [70, 71) of 70 tokens of pictures");
    a.cross[2] = -1;
    answer(&a, "row 2: it sees [-1, 3) of 70");
    assert_int_equal(mxc_step_check(&a.step, NULL, &a.limits, &err), MXC_E_ARG);
    assert_string_equal(err.message, "step: no place for logits");
    a.step.n_out = 0;
    assert_int_equal(mxc_step_check(&a.step, NULL, &a.limits, &err), MXC_OK);
    tiny_close(&tiny);
}

static void test_look_up(void **state) {
    (void)state;
    struct asked a;
    int32_t begin = -5, end = -5;
    ask(&a, NULL, 0);
    for (int32_t row = 0; row < ROWS; row++)
        assert_ptr_equal(mxc_step_splice(&a.step, row), row % 2 ? a.embedding : NULL);
    assert_false(mxc_step_cross_range(&a.step, 0, &begin, &end));
    assert_false(mxc_step_cross_range(&a.step, 3, &begin, &end));
    assert_int_equal(begin, -5);
    assert_true(mxc_step_cross_range(&a.step, 1, &begin, &end));
    assert_true(begin == 0 && end == 1);
    a.step.cross_range = NULL;
    assert_false(mxc_step_cross_range(&a.step, 1, &begin, &end));
    a.step.n_splices = 0;
    assert_null(mxc_step_splice(&a.step, 1));
    a.span.context = 61;
    assert_int_equal(mxc_span_blocks(&a.span, MXC_KV_FULL), 3);
    assert_int_equal(mxc_span_blocks(&a.span, MXC_KV_CROSS), 3);
}

static void test_options(void **state) {
    static const struct {
        struct mxc_plan_options options;
        const char *text;
    } rows[] = {
        {{.max_rows = 8, .max_out = 8, .max_spans = 8}, NULL},
        {{.max_rows = 8, .max_out = 0, .max_spans = 1}, NULL},
        {{.precision = 3, .max_rows = 8, .max_spans = 1}, "precision: 3 is unknown"},
        {{.max_rows = 0, .max_spans = 1}, "max_rows: 0 is not in [1, 1048576]"},
        {{.max_rows = (1 << 20) + 1, .max_spans = 1}, "max_rows: 1048577"},
        {{.max_rows = 8, .max_out = 9, .max_spans = 1}, "max_out: 9 is not in [0, max_rows 8]"},
        {{.max_rows = 8, .max_out = -1, .max_spans = 1}, "max_out: -1"},
        {{.max_rows = 8, .max_spans = 0}, "max_spans: 0 is not in [1, max_rows 8]"},
        {{.max_rows = 8, .max_spans = 9}, "max_spans: 9"},
    };
    (void)state;
    struct tiny tiny;
    tiny_open(&tiny, &shape);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct mxc_err err = {0};
        enum mxc_code code = mxc_plan_options_check(&rows[i].options, tiny.graph, &err);
        assert_int_equal(code, rows[i].text ? MXC_E_ARG : MXC_OK);
        assert_true(!rows[i].text || strstr(err.message, rows[i].text));
    }
    tiny_close(&tiny);
}

static void test_state(void **state) {
    static const int32_t have[MXC_N_KV_KINDS] = {0, 4, 0, 8}, blocks[] = {0, 7, 8};
    static const float row[1] = {0};
    (void)state;
    struct mxc_err err;
    assert_int_equal(mxc_kv_block_check(have, MXC_KV_WINDOW, 3, &err), MXC_OK);
    assert_int_equal(mxc_kv_block_check(have, MXC_KV_WINDOW, 4, &err), MXC_E_ARG);
    assert_string_equal(err.message, "KV block 4 is not in [0, 4) of kind window");
    assert_int_equal(mxc_kv_block_check(have, MXC_KV_LATENT, 0, NULL), MXC_E_ARG);
    assert_int_equal(mxc_kv_block_check(have, MXC_N_KV_KINDS, 0, &err), MXC_E_ARG);
    assert_string_equal(err.message, "KV kind 4 is unknown");
    assert_int_equal(mxc_kv_put_check(have, blocks, 0, 64, row, &err), MXC_OK);
    assert_int_equal(mxc_kv_put_check(have, blocks, 0, 65, row, &err), MXC_E_ARG);
    assert_string_equal(err.message, "KV block 8 is not in [0, 8) of kind cross");
    assert_int_equal(mxc_kv_put_check(have, blocks, 64, 1, row, &err), MXC_E_ARG);
    assert_int_equal(mxc_kv_put_check(have, blocks, 63, 1, row, &err), MXC_OK);
    assert_int_equal(mxc_kv_put_check(have, NULL, 500, 0, NULL, &err), MXC_OK);
    assert_int_equal(mxc_kv_put_check(have, blocks, INT32_MAX, 1, row, &err), MXC_E_ARG);
    assert_int_equal(mxc_kv_put_check(have, blocks, 0, 1, NULL, &err), MXC_E_ARG);
    assert_string_equal(err.message, "KV of kind cross: tokens 0 + 1, or nothing to put");
    const int32_t none[MXC_N_KV_KINDS] = {4, 4, 4, 0};
    assert_int_equal(mxc_kv_put_check(none, blocks, 0, 0, NULL, &err), MXC_E_ARG);
    assert_string_equal(err.message, "the model has no KV of kind cross");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks), cmocka_unit_test(test_rows), cmocka_unit_test(test_look_up),
        cmocka_unit_test(test_options), cmocka_unit_test(test_state)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
