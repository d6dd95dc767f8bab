/* The graph builder: a tiny decoder printed against a golden text, liveness, sticky failure, every
 * rule of finish broken once, bounds, and a failed n-th allocation. */
#define _GNU_SOURCE
#include "test.h"

#include "base/file.h"
#include "base/mem.h"
#include "graph/private.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HIDDEN = 8, FFN = 12, VOCAB = 20, LAYERS = 2 };

static struct mxc_rope rope_of(int dims) {
    return (struct mxc_rope){.dims = dims, .theta = 1e4};
}

static int32_t tiny_layer(struct mxc_graph *g, int32_t layer, int32_t rope, int32_t x) {
    struct mxc_kv kv = {MXC_KV_FULL, 1, 4, 4, 0};
    struct mxc_attn_attr attr = {.n_heads = 2,
                                 .n_kv_heads = 1,
                                 .head_dim = 4,
                                 .scale = 0.5f,
                                 .rope = rope,
                                 .kv = mxc_graph_kv(g, &kv),
                                 .qk_norm_eps = 1e-6f};
    mxc_graph_begin_layer(g, layer);
    int32_t y = mxc_graph_vector(g, HIDDEN, "l%d.norm1", layer);
    y = mxc_graph_rms_norm(g, x, y, 1e-5f, 0);
    struct mxc_linear_part qkv[3];
    for (int i = 0; i < 3; i++) {
        qkv[i].weight = mxc_graph_matrix(g, i ? 4 : 8, HIDDEN, "l%d.%c", layer, "qkv"[i]);
        qkv[i].bias =
            i == 1 ? MXC_NONE : mxc_graph_vector(g, i ? 4 : 8, "l%d.%cb", layer, "qkv"[i]);
    }
    y = mxc_graph_linear(g, y, 3, qkv, 1, MXC_NONE);
    int32_t q_norm = mxc_graph_vector(g, 4, "l%d.q_norm", layer);
    int32_t k_norm = mxc_graph_vector(g, 4, "l%d.k_norm", layer);
    y = mxc_graph_attention(g, y, &attr, q_norm, k_norm, MXC_NONE);
    struct mxc_linear_part o = {mxc_graph_matrix(g, HIDDEN, 8, "l%d.o", layer), MXC_NONE};
    x = mxc_graph_linear(g, y, 1, &o, 1, x);
    struct mxc_linear_part up[2] = {{mxc_graph_matrix(g, FFN, HIDDEN, "l%d.gate", layer), MXC_NONE},
                                    {mxc_graph_matrix(g, FFN, HIDDEN, "l%d.up", layer), MXC_NONE}};
    y = mxc_graph_linear(g, x, 2, up, 1, MXC_NONE);
    y = mxc_graph_glu(g, y, MXC_ACT_GELU_TANH);
    struct mxc_linear_part down = {mxc_graph_matrix(g, HIDDEN, FFN, "l%d.down", layer), MXC_NONE};
    y = mxc_graph_linear(g, y, 1, &down, 0.5f, MXC_NONE);
    x = mxc_graph_add(g, x, y);
    mxc_graph_mark_layer_value(g, layer + 1, x);
    return x;
}

/* Writes the tiny decoder; returns the logits, the last value. */
static int32_t tiny(struct mxc_graph *g) {
    struct mxc_rope rope = rope_of(4);
    int32_t r = mxc_graph_rope(g, &rope);
    int32_t table = mxc_graph_table(g, VOCAB, HIDDEN, "embed");
    int32_t x = mxc_graph_embed(g, table, 2);
    mxc_graph_mark_layer_value(g, 0, x);
    for (int32_t i = 0; i < LAYERS; i++)
        x = tiny_layer(g, i, r, x);
    mxc_graph_begin_layer(g, MXC_NONE);
    x = mxc_graph_select_out(g, x);
    x = mxc_graph_rms_norm(g, x, mxc_graph_vector(g, HIDDEN, "norm"), 1e-5f, 1);
    mxc_graph_mark_layer_value(g, LAYERS + 1, x);
    struct mxc_linear_part head = {table, MXC_NONE};
    return mxc_graph_linear(g, x, 1, &head, 1, MXC_NONE);
}

static struct mxc_graph *new_graph(void) {
    struct mxc_graph *g = NULL;
    assert_int_equal(mxc_graph_new("tiny", &g, NULL), MXC_OK);
    return g;
}

static void print_golden(void **state) {
    (void)state;
    struct mxc_graph *g = new_graph();
    g->max_position = 64;
    assert_int_equal(mxc_graph_finish(g, tiny(g), NULL), MXC_OK);
    char *text = NULL, *want = NULL;
    size_t length = 0, want_length = 0;
    FILE *out = open_memstream(&text, &length);
    mxc_graph_print(g, out);
    fclose(out);
    assert_int_equal(
        mxc_file_read(MXC_TEST_DATA "/graph/tiny.txt", 1 << 16, &want, &want_length, NULL), MXC_OK);
    assert_string_equal(text, want);
    free(text);
    mxc_mem_free(want);
    mxc_graph_free(g);
}

static void contents(void **state) {
    (void)state;
    struct mxc_graph *g = new_graph();
    int32_t logits = tiny(g);
    assert_int_equal(mxc_graph_finish(g, logits, NULL), MXC_OK);
    assert_string_equal(g->family, "tiny");
    assert_int_equal(g->n_layers, LAYERS);
    assert_int_equal(g->hidden, HIDDEN);
    assert_int_equal(g->vocab, VOCAB);
    assert_int_equal(g->logits, logits);
    assert_int_equal(g->n_kvs, LAYERS);
    /* the tied table counts once */
    uint64_t layer = 8 + 64 + 8 + 32 + 32 + 4 + 4 + 4 + 64 + 3 * 96;
    assert_int_equal(mxc_graph_parameters(g), 160 + 2 * layer + 8);
    assert_string_equal(g->values[g->layer_values[0]].name, "layer.0.in");
    assert_string_equal(g->values[g->layer_values[1]].name, "layer.0.out");
    assert_string_equal(g->values[g->layer_values[2]].name, "layer.1.out");
    assert_string_equal(g->values[g->layer_values[3]].name, "final_norm");
    assert_string_equal(g->values[logits].name, "logits");
    assert_int_equal(g->values[logits].rows.kind, MXC_ROWS_R);
    for (int32_t i = 0; i < g->n_values; i++) {
        int32_t last = i == logits ? g->n_nodes - 1 : g->values[i].producer;
        for (int32_t j = 0; j < g->n_nodes; j++) {
            for (int32_t k = 0; k < g->nodes[j].n_in; k++)
                last = g->nodes[j].in[k] == i ? j : last;
        }
        assert_int_equal(g->values[i].producer, i);
        assert_int_equal(g->values[i].last_use, last);
    }
    assert_int_equal(g->nodes[0].layer, MXC_NONE);
    assert_int_equal(g->nodes[1].layer, 0);
    assert_int_equal(g->nodes[g->n_nodes - 1].layer, MXC_NONE);
    /* finished: read-only, and finish again is refused */
    int32_t n = g->n_nodes;
    assert_int_equal(mxc_graph_add(g, 1, 1), 0);
    assert_int_equal(g->n_nodes, n);
    assert_int_not_equal(mxc_graph_finish(g, logits, NULL), MXC_OK);
    mxc_graph_free(g);
}

static void no_marks(void **state) {
    (void)state;
    struct mxc_graph *g = new_graph();
    struct mxc_linear_part head = {mxc_graph_table(g, 5, 4, "t"), MXC_NONE};
    int32_t x = mxc_graph_select_out(g, mxc_graph_embed(g, head.weight, 1));
    assert_int_equal(mxc_graph_finish(g, mxc_graph_linear(g, x, 1, &head, 1, MXC_NONE), NULL),
                     MXC_OK);
    assert_int_equal(g->layer_values[0], MXC_NONE);
    assert_int_equal(g->layer_values[1], MXC_NONE);
    mxc_graph_free(g);
}

/* finish reports `text`; later calls did nothing. */
static void expect_failure(struct mxc_graph *g, int32_t logits, enum mxc_code code,
                           const char *text) {
    struct mxc_err err = {0};
    enum mxc_code got = mxc_graph_finish(g, logits, &err);
    if (got == MXC_OK || !strstr(err.message, text) || (code && got != code))
        fail_msg("code %d, \"%s\": expected \"%s\"", (int)got, err.message, text);
    assert_int_equal(err.code, got);
    mxc_graph_free(g);
}

static void sticky(void **state) {
    (void)state;
    struct mxc_graph *g = new_graph();
    int32_t logits = tiny(g), n = g->n_nodes;
    mxc_graph_fail(g, MXC_E_UNSUPPORTED, "option %s", "one");
    mxc_graph_fail(g, MXC_E_FORMAT, "option two");
    struct mxc_rope rope = rope_of(4);
    struct mxc_kv kv = {MXC_KV_FULL, 1, 4, 4, 0};
    assert_int_equal(mxc_graph_select_out(g, 3), 0);
    assert_int_equal(mxc_graph_vector(g, 3, "v"), 0);
    assert_int_equal(mxc_graph_rope(g, &rope), 0);
    assert_int_equal(mxc_graph_kv(g, &kv), 0);
    assert_int_equal(mxc_graph_linear(g, 0, 9, NULL, 1, 0), 0);
    mxc_graph_begin_layer(g, 99);
    mxc_graph_mark_layer_value(g, 77, 1234);
    assert_int_equal(g->n_nodes, n);
    expect_failure(g, logits, MXC_E_UNSUPPORTED, "option one");
}

/* ---- one broken rule each; x: a [T, 8] value, the graph is in layer 0 */

struct rule {
    const char *message;
    enum mxc_code code;
    void (*breaks)(struct mxc_graph *g, int32_t x);
};

static int32_t vec(struct mxc_graph *g, int64_t n) {
    return mxc_graph_vector(g, n, "vec%d", (int)n);
}

static int32_t mat(struct mxc_graph *g, int64_t out, int64_t in) {
    return mxc_graph_matrix(g, out, in, "mat%d.%d", (int)out, (int)in);
}

static void linear1(struct mxc_graph *g, int32_t x, int32_t weight, int32_t bias,
                    int32_t residual) {
    struct mxc_linear_part p = {weight, bias};
    mxc_graph_linear(g, x, 1, &p, 1, residual);
}

static void no_value(struct mxc_graph *g, int32_t x) {
    mxc_graph_add(g, x, 1000);
}
static void negative_value(struct mxc_graph *g, int32_t x) {
    mxc_graph_add(g, -2, x);
}
static void no_weight(struct mxc_graph *g, int32_t x) {
    mxc_graph_rms_norm(g, x, 1000, 1e-5f, 0);
}
static void no_norm(struct mxc_graph *g, int32_t x) {
    mxc_graph_rms_norm(g, x, MXC_NONE, 1e-5f, 0);
}
static void norm_matrix(struct mxc_graph *g, int32_t x) {
    mxc_graph_rms_norm(g, x, mat(g, 8, 8), 1e-5f, 0);
}
static void norm_width(struct mxc_graph *g, int32_t x) {
    mxc_graph_rms_norm(g, x, vec(g, 9), 1e-5f, 0);
}
static void norm_eps(struct mxc_graph *g, int32_t x) {
    mxc_graph_rms_norm(g, x, vec(g, 8), NAN, 0);
}
static void embed_matrix(struct mxc_graph *g, int32_t x) {
    (void)x;
    mxc_graph_embed(g, mat(g, 8, 8), 1);
}
static void embed_none(struct mxc_graph *g, int32_t x) {
    (void)x;
    mxc_graph_embed(g, MXC_NONE, 1);
}
static void embed_scale(struct mxc_graph *g, int32_t x) {
    (void)x;
    mxc_graph_embed(g, 0, INFINITY);
}
static void linear_parts(struct mxc_graph *g, int32_t x) {
    mxc_graph_linear(g, x, 0, NULL, 1, MXC_NONE);
}
static void linear_columns(struct mxc_graph *g, int32_t x) {
    linear1(g, x, mat(g, 8, 9), MXC_NONE, MXC_NONE);
}
static void linear_none(struct mxc_graph *g, int32_t x) {
    linear1(g, x, MXC_NONE, MXC_NONE, MXC_NONE);
}
static void linear_vector(struct mxc_graph *g, int32_t x) {
    linear1(g, x, vec(g, 8), MXC_NONE, MXC_NONE);
}
static void linear_bias(struct mxc_graph *g, int32_t x) {
    linear1(g, x, mat(g, 8, 8), vec(g, 9), MXC_NONE);
}
static void linear_residual(struct mxc_graph *g, int32_t x) {
    linear1(g, x, mat(g, 6, 8), MXC_NONE, x);
}
static void linear_residual_rows(struct mxc_graph *g, int32_t x) {
    linear1(g, mxc_graph_select_out(g, x), mat(g, 8, 8), MXC_NONE, x);
}
static void linear_scale(struct mxc_graph *g, int32_t x) {
    struct mxc_linear_part p = {mat(g, 8, 8), MXC_NONE};
    mxc_graph_linear(g, x, 1, &p, NAN, MXC_NONE);
}
static void linear_wide(struct mxc_graph *g, int32_t x) {
    struct mxc_linear_part p[2] = {{mat(g, 1 << 24, 8), MXC_NONE}, {mat(g, 8, 8), MXC_NONE}};
    mxc_graph_linear(g, x, 2, p, 1, MXC_NONE);
}
static void glu_odd(struct mxc_graph *g, int32_t x) {
    struct mxc_linear_part p = {mat(g, 7, 8), MXC_NONE};
    mxc_graph_glu(g, mxc_graph_linear(g, x, 1, &p, 1, MXC_NONE), MXC_ACT_SILU);
}
static void glu_act(struct mxc_graph *g, int32_t x) {
    mxc_graph_glu(g, x, MXC_N_ACTS);
}
static void add_width(struct mxc_graph *g, int32_t x) {
    mxc_graph_add(g, x, mxc_graph_glu(g, x, MXC_ACT_SILU));
}
static void add_rows(struct mxc_graph *g, int32_t x) {
    mxc_graph_add(g, x, mxc_graph_select_out(g, x));
}
static void select_twice(struct mxc_graph *g, int32_t x) {
    mxc_graph_select_out(g, mxc_graph_select_out(g, x));
}

/* x is 8 wide: 2 heads, 1 kv head, 2 dimensions fit. */
static struct mxc_attn_attr fitting(struct mxc_graph *g) {
    struct mxc_rope rope = rope_of(2);
    struct mxc_kv kv = {MXC_KV_FULL, 1, 2, 2, 0};
    return (struct mxc_attn_attr){.n_heads = 2,
                                  .n_kv_heads = 1,
                                  .head_dim = 2,
                                  .scale = 1,
                                  .rope = mxc_graph_rope(g, &rope),
                                  .kv = mxc_graph_kv(g, &kv)};
}

#define ATTENTION_RULE(name, change)                                                               \
    static void name(struct mxc_graph *g, int32_t x) {                                             \
        int32_t q_norm = MXC_NONE, sinks = MXC_NONE;                                               \
        struct mxc_attn_attr a = fitting(g);                                                       \
        change;                                                                                    \
        mxc_graph_attention(g, x, &a, q_norm, MXC_NONE, sinks);                                    \
    }
ATTENTION_RULE(attn_heads, a.n_heads = 0)
ATTENTION_RULE(attn_groups, (a.n_heads = 3, a.n_kv_heads = 2))
ATTENTION_RULE(attn_width, a.n_heads = 4)
ATTENTION_RULE(attn_overflow, (a.n_heads = 1 << 30, a.head_dim = 1 << 30))
ATTENTION_RULE(attn_rope, a.rope = 9)
ATTENTION_RULE(attn_kv, a.kv = 9)
ATTENTION_RULE(attn_window, a.window = 5)
ATTENTION_RULE(attn_scale, a.scale = 0)
ATTENTION_RULE(attn_softcap, a.softcap = -1)
ATTENTION_RULE(attn_norm, q_norm = vec(g, 3))
ATTENTION_RULE(attn_norm_eps, (q_norm = vec(g, 2), a.qk_norm_eps = -1))
ATTENTION_RULE(attn_sinks, sinks = vec(g, 3))
ATTENTION_RULE(attn_rows, x = mxc_graph_select_out(g, x))

static void attn_rope_dims(struct mxc_graph *g, int32_t x) {
    struct mxc_rope rope = rope_of(4);
    struct mxc_attn_attr a = fitting(g);
    a.rope = mxc_graph_rope(g, &rope);
    mxc_graph_attention(g, x, &a, MXC_NONE, MXC_NONE, MXC_NONE);
}
static void attn_kv_heads(struct mxc_graph *g, int32_t x) {
    struct mxc_kv kv = {MXC_KV_FULL, 2, 2, 2, 0};
    struct mxc_attn_attr a = fitting(g);
    a.kv = mxc_graph_kv(g, &kv);
    mxc_graph_attention(g, x, &a, MXC_NONE, MXC_NONE, MXC_NONE);
}
static void kv_shared(struct mxc_graph *g, int32_t x) {
    struct mxc_attn_attr a = fitting(g);
    mxc_graph_attention(g, x, &a, MXC_NONE, MXC_NONE, MXC_NONE);
    mxc_graph_attention(g, x, &a, MXC_NONE, MXC_NONE, MXC_NONE);
}
static void kv_unused(struct mxc_graph *g, int32_t x) {
    (void)x;
    (void)fitting(g);
}
static void kv_kind(struct mxc_graph *g, int32_t x) {
    (void)x;
    mxc_graph_kv(g, &(struct mxc_kv){MXC_N_KV_KINDS, 1, 2, 2, 0});
}
static void kv_size(struct mxc_graph *g, int32_t x) {
    (void)x;
    mxc_graph_kv(g, &(struct mxc_kv){MXC_KV_FULL, 1 << 20, 1 << 20, 0, 0});
}
static void kv_window(struct mxc_graph *g, int32_t x) {
    (void)x;
    mxc_graph_kv(g, &(struct mxc_kv){MXC_KV_WINDOW, 1, 2, 2, 0});
}
static void bad_rope(struct mxc_graph *g, int32_t x) {
    (void)x;
    struct mxc_rope rope = rope_of(3);
    mxc_graph_rope(g, &rope);
}
static void too_many_ropes(struct mxc_graph *g, int32_t x) {
    (void)x;
    struct mxc_rope rope = rope_of(2);
    for (int i = 0; i <= MXC_GRAPH_MAX_ROPES; i++)
        mxc_graph_rope(g, &rope);
}
static void layer_order(struct mxc_graph *g, int32_t x) {
    (void)x;
    mxc_graph_begin_layer(g, 2);
}
static void layer_again(struct mxc_graph *g, int32_t x) {
    (void)x;
    mxc_graph_begin_layer(g, 0);
}
static void too_many_layers(struct mxc_graph *g, int32_t x) {
    (void)x;
    for (int32_t i = 1; i < 2000; i++)
        mxc_graph_begin_layer(g, i);
}
static void too_many_nodes(struct mxc_graph *g, int32_t x) {
    for (int i = 0; i <= MXC_GRAPH_MAX_NODES; i++)
        mxc_graph_add(g, x, x);
}
static void too_many_weights(struct mxc_graph *g, int32_t x) {
    (void)x;
    for (int i = 0; i <= MXC_GRAPH_MAX_WEIGHTS; i++)
        mxc_graph_vector(g, 1, "w%d", i);
}
static void weight_zero(struct mxc_graph *g, int32_t x) {
    (void)x;
    mxc_graph_matrix(g, 0, 8, "zero");
}
static void weight_huge(struct mxc_graph *g, int32_t x) {
    (void)x;
    mxc_graph_table(g, (int64_t)1 << 31, 8, "huge");
}
static void weight_twice(struct mxc_graph *g, int32_t x) {
    (void)x;
    mxc_graph_vector(g, 8, "same");
    mxc_graph_vector(g, 9, "same");
}
static void weight_role(struct mxc_graph *g, int32_t x) {
    (void)x;
    mxc_graph_matrix(g, 8, 8, "same");
    mxc_graph_table(g, 8, 8, "same");
}
static void weight_name(struct mxc_graph *g, int32_t x) {
    (void)x;
    mxc_graph_vector(g, 8, "%0300d", 1);
}
static void weight_no_name(struct mxc_graph *g, int32_t x) {
    (void)x;
    mxc_graph_vector(g, 8, "%s", "");
}
static void mark_value(struct mxc_graph *g, int32_t x) {
    (void)x;
    mxc_graph_mark_layer_value(g, 0, 1000);
}
static void mark_index(struct mxc_graph *g, int32_t x) {
    mxc_graph_mark_layer_value(g, MXC_GRAPH_MAX_LAYERS + 2, x);
}
static void mark_twice(struct mxc_graph *g, int32_t x) {
    mxc_graph_mark_layer_value(g, 0, x);
    mxc_graph_mark_layer_value(g, 0, x);
}
static void mark_some(struct mxc_graph *g, int32_t x) {
    mxc_graph_mark_layer_value(g, 0, x);
}
static void mark_hole(struct mxc_graph *g, int32_t x) {
    mxc_graph_mark_layer_value(g, 0, x);
    mxc_graph_mark_layer_value(g, 2, x);
}

static const struct rule rules[] = {
    {"layer 0: add (op 1): input 1: there is no value 1000", MXC_E_INTERNAL, no_value},
    {"there is no value -2", MXC_E_INTERNAL, negative_value},
    {"there is no weight 1000", MXC_E_INTERNAL, no_weight},
    {"weight 0 is absent", MXC_E_INTERNAL, no_norm},
    {"mat8.8 is not a vector", MXC_E_INTERNAL, norm_matrix},
    {"vec9 has 9 numbers, not 8", MXC_E_INTERNAL, norm_width},
    {"eps or offset", MXC_E_INTERNAL, norm_eps},
    {"mat8.8 is not a table", MXC_E_INTERNAL, embed_matrix},
    {"the table is absent", MXC_E_INTERNAL, embed_none},
    {"scale is not finite", MXC_E_INTERNAL, embed_scale},
    {"0 parts", MXC_E_INTERNAL, linear_parts},
    {"mat8.9 has 9 columns, its input 8", MXC_E_INTERNAL, linear_columns},
    {"the matrix of part 0 is absent", MXC_E_INTERNAL, linear_none},
    {"vec8 is not a matrix", MXC_E_INTERNAL, linear_vector},
    {"vec9 has 9 numbers, not 8", MXC_E_INTERNAL, linear_bias},
    {"residual is 8 wide, the output 6", MXC_E_INTERNAL, linear_residual},
    {"differ in rows", MXC_E_INTERNAL, linear_residual_rows},
    {"scale is not finite", MXC_E_INTERNAL, linear_scale},
    {"16777224 outputs", MXC_E_LIMIT, linear_wide},
    {"width 7 is odd", MXC_E_INTERNAL, glu_odd},
    {"there is no activation", MXC_E_INTERNAL, glu_act},
    {"inputs differ in shape (8 and 4 wide)", MXC_E_INTERNAL, add_width},
    {"inputs differ in shape", MXC_E_INTERNAL, add_rows},
    {"rows are not those of the step", MXC_E_INTERNAL, select_twice},
    {"0 heads", MXC_E_INTERNAL, attn_heads},
    {"3 heads, 2 kv heads", MXC_E_INTERNAL, attn_groups},
    {"input is 8 wide, (4 + 2 * 1) * 2", MXC_E_INTERNAL, attn_width},
    {"input is 8 wide", MXC_E_INTERNAL, attn_overflow},
    {"there is no rope 9", MXC_E_INTERNAL, attn_rope},
    {"there is no kv 9", MXC_E_INTERNAL, attn_kv},
    {"another kind or window", MXC_E_INTERNAL, attn_window},
    {"scale or softcap", MXC_E_INTERNAL, attn_scale},
    {"scale or softcap", MXC_E_INTERNAL, attn_softcap},
    {"vec3 has 3 numbers, not 2", MXC_E_INTERNAL, attn_norm},
    {"qk_norm_eps", MXC_E_INTERNAL, attn_norm_eps},
    {"vec3 has 3 numbers, not 2", MXC_E_INTERNAL, attn_sinks},
    {"rows are not those of the step", MXC_E_INTERNAL, attn_rows},
    {"rope rotates 4 dimensions of 2", MXC_E_INTERNAL, attn_rope_dims},
    {"has other heads than the op", MXC_E_INTERNAL, attn_kv_heads},
    {"write the same kv 0", MXC_E_INTERNAL, kv_shared},
    {"kv 0 is used by no op", MXC_E_INTERNAL, kv_unused},
    {"kv: kind", MXC_E_INTERNAL, kv_kind},
    {"kv: 1048576 heads", MXC_E_LIMIT, kv_size},
    {"kv: window 0", MXC_E_INTERNAL, kv_window},
    {"rope: 3 rotated dimensions", MXC_E_LIMIT, bad_rope},
    {"more than 64 rope settings", MXC_E_LIMIT, too_many_ropes},
    {"layer 2 begins after layer 0", MXC_E_INTERNAL, layer_order},
    {"layer 0 begins after layer 0", MXC_E_INTERNAL, layer_again},
    {"more than 1024 layers", MXC_E_LIMIT, too_many_layers},
    {"more than 65536 ops", MXC_E_LIMIT, too_many_nodes},
    {"more than 65536 weights", MXC_E_LIMIT, too_many_weights},
    {"weight zero: extent 0", MXC_E_LIMIT, weight_zero},
    {"weight huge: extent 2147483648", MXC_E_LIMIT, weight_huge},
    {"weight same is declared twice", MXC_E_INTERNAL, weight_twice},
    {"weight same is declared twice", MXC_E_INTERNAL, weight_role},
    {"name is empty or longer", MXC_E_LIMIT, weight_name},
    {"name is empty or longer", MXC_E_LIMIT, weight_no_name},
    {"layer mark 0 names value 1000", MXC_E_INTERNAL, mark_value},
    {"layer mark 1026", MXC_E_INTERNAL, mark_index},
    {"layer mark 0 is set twice", MXC_E_INTERNAL, mark_twice},
    {"1 layer values are marked, not 3", MXC_E_INTERNAL, mark_some},
    {"layer value 1 is not marked", MXC_E_INTERNAL, mark_hole},
};

static void broken_rules(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        struct mxc_graph *g = new_graph();
        int32_t x = mxc_graph_embed(g, mxc_graph_table(g, VOCAB, HIDDEN, "embed"), 1);
        mxc_graph_begin_layer(g, 0);
        rules[i].breaks(g, x);
        expect_failure(g, mxc_graph_select_out(g, x), rules[i].code, rules[i].message);
    }
}

/* ---- rules that only someone who writes into the arrays can break */

static void swap_order(struct mxc_graph *g) {
    g->nodes[1].in[0] = 5;
}
static void wrong_out(struct mxc_graph *g) {
    g->nodes[3].out = 2;
}
static void wrong_width(struct mxc_graph *g) {
    g->values[3].width++;
}
static void wrong_rows(struct mxc_graph *g) {
    g->values[g->n_values - 2].rows.kind = MXC_ROWS_T;
}
static void wrong_op(struct mxc_graph *g) {
    g->nodes[2].op = MXC_N_OPS;
}
static void wrong_inputs(struct mxc_graph *g) {
    g->nodes[1].n_in = 3;
}
static void wrong_weights(struct mxc_graph *g) {
    g->nodes[1].n_weights = 5;
}
static void wrong_parts(struct mxc_graph *g) {
    g->nodes[2].u.linear.n_parts = 2;
}
static void lost_value(struct mxc_graph *g) {
    g->n_values--;
}
static void wrong_attention_weights(struct mxc_graph *g) {
    g->nodes[3].n_weights = 2;
}

static void tampered(void **state) {
    (void)state;
    static const struct {
        void (*breaks)(struct mxc_graph *g);
        const char *message;
    } cases[] = {
        {swap_order, "value 5 is used before it is defined"},
        {wrong_out, "op 3 does not make value 2"},
        {wrong_width, "op 3 does not make value 3 as declared"},
        {wrong_rows, "as declared"},
        {wrong_op, "there is no op"},
        {wrong_inputs, "3 inputs are not in [1, 1]"},
        {wrong_weights, "5 weights are not in [1, 1]"},
        {wrong_parts, "2 parts with 6 weights"},
        {lost_value, "values"},
        {wrong_attention_weights, "2 weights, not 3"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mxc_graph *g = new_graph();
        int32_t logits = tiny(g);
        cases[i].breaks(g);
        expect_failure(g, logits, MXC_E_INTERNAL, cases[i].message);
    }
}

static void logits_rules(void **state) {
    (void)state;
    struct mxc_graph *g = new_graph();
    (void)tiny(g);
    expect_failure(g, 1000, MXC_E_INTERNAL, "there is no value 1000 for the logits");
    g = new_graph();
    (void)tiny(g);
    expect_failure(g, -1, MXC_E_INTERNAL, "there is no value -1");
    g = new_graph();
    (void)tiny(g);
    expect_failure(g, 1, MXC_E_INTERNAL, "the logits' rows");
    g = new_graph();
    expect_failure(g, 0, MXC_E_INTERNAL, "there is no value 0");
}

static void same_weight(void **state) {
    (void)state;
    struct mxc_graph *g = new_graph();
    int32_t a = mxc_graph_matrix(g, 3, 4, "a"), b = mxc_graph_matrix(g, 3, 4, "b");
    assert_int_not_equal(a, b);
    assert_int_equal(mxc_graph_matrix(g, 3, 4, "%c", 'a'), a);
    assert_int_equal(g->n_weights, 2);
    mxc_graph_free(g);
}

static void op_names(void **state) {
    (void)state;
    assert_string_equal(mxc_op_name(MXC_OP_EMBED), "embed");
    assert_string_equal(mxc_op_name(MXC_OP_SELECT_OUT), "select_out");
    assert_string_equal(mxc_op_name(MXC_N_OPS), "?");
}

static void out_of_memory(void **state) {
    (void)state;
    uint64_t n = 1;
    for (;; n++) {
        struct mxc_graph *g = NULL;
        struct mxc_err err = {0};
        mxc_mem_fail_at(n);
        enum mxc_code code = mxc_graph_new("tiny", &g, &err);
        if (code)
            assert_null(g);
        else
            code = mxc_graph_finish(g, tiny(g), &err);
        mxc_mem_fail_at(0);
        mxc_graph_free(g);
        if (!code)
            break;
        assert_int_equal(code, MXC_E_NOMEM);
        assert_string_equal(err.message, "out of memory");
    }
    assert_true(n > 10);
    mxc_graph_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(print_golden),  cmocka_unit_test(contents),     cmocka_unit_test(no_marks),
        cmocka_unit_test(sticky),        cmocka_unit_test(broken_rules), cmocka_unit_test(tampered),
        cmocka_unit_test(logits_rules),  cmocka_unit_test(same_weight),  cmocka_unit_test(op_names),
        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
