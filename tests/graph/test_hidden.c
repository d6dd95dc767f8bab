/* Graphs whose output is hidden rows: what finish promises and refuses, and a table's row that is
 * added to every row. */
#define _GNU_SOURCE
#include "test.h"

#include "graph/graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HIDDEN = 8, VOCAB = 20, TYPES = 2 };

struct wish {
    bool hidden_out, both_ways, window, wide;
    int32_t vocab, type_row;
};

/* One layer of attention over qkv of width 3 * HIDDEN. */
static enum mxc_code make(const struct wish *w, struct mxc_graph **graph, struct mxc_err *err) {
    struct mxc_graph *g;
    struct mxc_kv kv = {MXC_KV_FULL, 2, 4, 4, 0};
    struct mxc_attn_attr attr = {
        .n_heads = 2, .n_kv_heads = 2, .head_dim = 4, .scale = 0.5f, .rope = MXC_NONE};
    assert_int_equal(mxc_graph_new("test", &g, err), MXC_OK);
    if (w->window) {
        kv.kind = MXC_KV_WINDOW;
        kv.window = attr.window = 4;
    }
    g->hidden_out = w->hidden_out;
    g->both_ways = w->both_ways;
    g->vocab = w->vocab;
    int32_t x = mxc_graph_embed(g, mxc_graph_table(g, VOCAB, HIDDEN, "words"), 1);
    x = mxc_graph_add_table_row(g, x, mxc_graph_table(g, TYPES, HIDDEN, "types"), w->type_row);
    mxc_graph_begin_layer(g, 0);
    struct mxc_linear_part qkv = {mxc_graph_matrix(g, 3 * HIDDEN, HIDDEN, "qkv"), MXC_NONE};
    int32_t y = mxc_graph_linear(g, x, 1, &qkv, 1, MXC_NONE);
    attr.kv = mxc_graph_kv(g, &kv);
    y = mxc_graph_attention(g, y, &attr, MXC_NONE, MXC_NONE, MXC_NONE);
    x = mxc_graph_add(g, x, y);
    mxc_graph_begin_layer(g, MXC_NONE);
    x = mxc_graph_select_out(g, x);
    if (w->wide) {
        struct mxc_linear_part head = {mxc_graph_matrix(g, VOCAB, HIDDEN, "head"), MXC_NONE};
        x = mxc_graph_linear(g, x, 1, &head, 1, MXC_NONE);
    }
    enum mxc_code code = mxc_graph_finish(g, x, err);
    if (code) {
        mxc_graph_free(g);
        return code;
    }
    *graph = g;
    return MXC_OK;
}

static void promises(void **state) {
    static const struct {
        struct wish wish;
        const char *message; /* NULL: fine */
    } cases[] = {
        {{.hidden_out = true, .both_ways = true, .vocab = VOCAB}, NULL},
        {{.hidden_out = true, .vocab = VOCAB, .type_row = TYPES - 1}, NULL},
        {{.hidden_out = true, .window = true, .vocab = VOCAB}, NULL},
        {{.wide = true}, NULL},
        {{.hidden_out = true, .vocab = VOCAB, .wide = true}, "hidden output 20 wide"},
        {{.hidden_out = true}, "vocabulary 0"},
        {{.both_ways = true, .wide = true}, "an encoder with logits"},
        {{.hidden_out = true, .both_ways = true, .window = true, .vocab = VOCAB}, "a window"},
        {{.hidden_out = true, .vocab = VOCAB, .type_row = TYPES}, "row 2 of types, which has 2"},
        {{.hidden_out = true, .vocab = VOCAB, .type_row = -1}, "offset -1"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mxc_graph *g = NULL;
        struct mxc_err err = {.message = ""};
        enum mxc_code code = make(&cases[i].wish, &g, &err);
        if (!code != !cases[i].message)
            fail_msg("case %zu: code %d, \"%s\"", i, (int)code, err.message);
        if (code && !strstr(err.message, cases[i].message))
            fail_msg("case %zu: \"%s\"", i, err.message);
        if (!code) {
            assert_int_equal(g->vocab, VOCAB);
            assert_int_equal(g->hidden, HIDDEN);
            assert_int_equal(g->values[g->logits].width, cases[i].wish.hidden_out ? HIDDEN : VOCAB);
        }
        mxc_graph_free(g);
    }
}

static void print(void **state) {
    const struct wish wish = {.hidden_out = true, .both_ways = true, .vocab = VOCAB, .type_row = 1};
    struct mxc_graph *g;
    struct mxc_err err;
    char *text = NULL;
    size_t length;
    (void)state;
    assert_int_equal(make(&wish, &g, &err), MXC_OK);
    FILE *out = open_memstream(&text, &length);
    assert_non_null(out);
    mxc_graph_print(g, out);
    (void)fclose(out);
    assert_non_null(strstr(text, "hidden output, both ways\n"));
    assert_non_null(strstr(text, "add_position(%0, types [2, 8]) row 1\n"));
    free(text);
    mxc_graph_free(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(promises), cmocka_unit_test(print)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
