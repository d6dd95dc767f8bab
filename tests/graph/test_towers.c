/* Ops of towers and of decoders that see: each rule broken once, what the builder notes beside the
 * ops, and the text of a graph that has all of them. */
#define _GNU_SOURCE
#include "test.h"

#include "graph/private.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 12, HIDDEN = 8, VOCAB = 20 };

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

static int32_t table(struct mxc_graph *g, int64_t rows, int64_t width) {
    return mxc_graph_table(g, rows, width, "table%d.%d", (int)rows, (int)width);
}

static int32_t linear(struct mxc_graph *g, int32_t x, int64_t out) {
    struct mxc_linear_part p = {mat(g, out, g->values[x].width), MXC_NONE};
    return mxc_graph_linear(g, x, 1, &p, 1, MXC_NONE);
}

/* ---- towers: x is [N0, 12] */

static void input_late(struct mxc_graph *g, int32_t x) {
    (void)x;
    mxc_graph_input(g, 4);
}
static void index_terms(struct mxc_graph *g, int32_t x) {
    mxc_graph_index(g, x, 17, false);
}
static void index_value(struct mxc_graph *g, int32_t x) {
    mxc_graph_index(g, x + 1, 1, false);
}
static void index_many(struct mxc_graph *g, int32_t x) {
    for (int i = 0; i <= MXC_MAX_INDICES; i++)
        mxc_graph_index(g, x, 1, false);
}
static void range_many(struct mxc_graph *g, int32_t x) {
    for (int i = 0; i <= MXC_MAX_RANGES; i++)
        mxc_graph_range(g, x);
}
static void gather_many(struct mxc_graph *g, int32_t x) {
    for (int i = 0; i <= MXC_MAX_SLOTS; i++)
        x = mxc_graph_gather(g, x);
}
static void lookup_matrix(struct mxc_graph *g, int32_t x) {
    mxc_graph_lookup(g, x, mat(g, 5, WIDTH), mxc_graph_index(g, x, 1, false), MXC_NONE, false);
}
static void lookup_width(struct mxc_graph *g, int32_t x) {
    mxc_graph_lookup(g, x, table(g, 5, 11), mxc_graph_index(g, x, 1, false), MXC_NONE, false);
}
static void lookup_gate(struct mxc_graph *g, int32_t x) {
    mxc_graph_lookup(g, x, table(g, 5, WIDTH), mxc_graph_index(g, x, 1, false), vec(g, 2), false);
}
static void lookup_rows(struct mxc_graph *g, int32_t x) {
    int32_t index = mxc_graph_index(g, x, 1, false);
    x = mxc_graph_mean_rows(g, x, 2);
    mxc_graph_lookup(g, x, table(g, 5, WIDTH), index, MXC_NONE, false);
}
static void lookup_none(struct mxc_graph *g, int32_t x) {
    int32_t y = mxc_graph_lookup(g, x, table(g, 5, WIDTH), mxc_graph_index(g, x, 1, false),
                                 MXC_NONE, false);
    g->nodes[y].u.lookup.index = 1;
}
static void gather_terms(struct mxc_graph *g, int32_t x) {
    int32_t y = mxc_graph_gather(g, x);
    g->nodes[y].u.lookup.index = mxc_graph_index(g, x, 2, false);
}
static void gather_weighted(struct mxc_graph *g, int32_t x) {
    int32_t y = mxc_graph_gather(g, x);
    g->nodes[y].u.lookup.index = mxc_graph_index(g, x, 1, true);
}
static void merge_none(struct mxc_graph *g, int32_t x) {
    mxc_graph_merge(g, x, 0);
}
static void merge_wide(struct mxc_graph *g, int32_t x) {
    mxc_graph_merge(g, mxc_graph_merge(g, x, 1 << 16), 1 << 16);
}
static void mean_many(struct mxc_graph *g, int32_t x) {
    mxc_graph_mean_rows(g, x, (1 << 16) + 1);
}
static void concat_rows(struct mxc_graph *g, int32_t x) {
    int32_t values[2] = {x, mxc_graph_mean_rows(g, x, 2)};
    mxc_graph_concat(g, 2, values, false);
}
static void concat_turns(struct mxc_graph *g, int32_t x) {
    int32_t values[2] = {x, linear(g, x, 11)};
    mxc_graph_concat(g, 2, values, true);
}
static void concat_many(struct mxc_graph *g, int32_t x) {
    int32_t values[MXC_MAX_IN + 1] = {x, x, x, x, x, x, x, x, x};
    mxc_graph_concat(g, MXC_MAX_IN + 1, values, false);
}
static void concat_wide(struct mxc_graph *g, int32_t x) {
    x = mxc_graph_merge(g, linear(g, x, 256), 1 << 15);
    int32_t values[3] = {x, x, x};
    mxc_graph_concat(g, 3, values, false);
}
static void scale_residual(struct mxc_graph *g, int32_t x) {
    mxc_graph_tanh_scale(g, x, vec(g, 1), linear(g, x, 11));
}
static void scale_rows(struct mxc_graph *g, int32_t x) {
    mxc_graph_tanh_scale(g, x, vec(g, 1), mxc_graph_mean_rows(g, x, 2));
}
static void scale_none(struct mxc_graph *g, int32_t x) {
    mxc_graph_tanh_scale(g, x, MXC_NONE, MXC_NONE);
}
static void scale_gate(struct mxc_graph *g, int32_t x) {
    mxc_graph_tanh_scale(g, x, vec(g, 2), MXC_NONE);
}
static void groups_uneven(struct mxc_graph *g, int32_t x) {
    mxc_graph_group_norm(g, x, vec(g, 2), 1e-5f, 5);
}
static void groups_none(struct mxc_graph *g, int32_t x) {
    mxc_graph_group_norm(g, x, vec(g, 2), 1e-5f, 0);
}
static void groups_weight(struct mxc_graph *g, int32_t x) {
    mxc_graph_group_norm(g, x, vec(g, 2), 1e-5f, 3);
}

/* 2 heads of 2 */
static struct mxc_attend_attr fitting_attend(struct mxc_graph *g, int32_t x) {
    struct mxc_rope rope = {.dims = 2, .theta = 1e4};
    return (struct mxc_attend_attr){.n_heads = 2,
                                    .head_dim = 2,
                                    .scale = 1,
                                    .rope = mxc_graph_rope(g, &rope),
                                    .positions = mxc_graph_index(g, x, 1, false),
                                    .range = mxc_graph_range(g, x)};
}

#define ATTEND_RULE(name, change)                                                                  \
    static void name(struct mxc_graph *g, int32_t x) {                                             \
        struct mxc_attend_attr a = fitting_attend(g, x);                                           \
        change;                                                                                    \
        mxc_graph_attend(g, x, &a);                                                                \
    }
ATTEND_RULE(attend_heads, a.n_heads = 3)
ATTEND_RULE(attend_none, a.n_heads = 0)
ATTEND_RULE(attend_scale, a.scale = NAN)
ATTEND_RULE(attend_range, a.range = 1)
ATTEND_RULE(attend_range_rows, a.range = mxc_graph_range(g, mxc_graph_mean_rows(g, x, 2)))
ATTEND_RULE(attend_rope, a.rope = 1)
ATTEND_RULE(attend_wide_rope,
            a.rope = mxc_graph_rope(g, &(struct mxc_rope){.dims = 4, .theta = 1e4}))
ATTEND_RULE(attend_index, a.positions = 1)
ATTEND_RULE(attend_index_rows,
            a.positions = mxc_graph_index(g, mxc_graph_mean_rows(g, x, 2), 1, false))
ATTEND_RULE(attend_axes,
            a.rope = mxc_graph_rope(g, &(struct mxc_rope){
                                           .dims = 2, .theta = 1e4, .sections = {0, 1}}))

static const struct rule tower_rules[] = {
    {"input: 4 wide, after 1 ops", MXC_E_INTERNAL, input_late},
    {"index 0 with 17 terms", MXC_E_LIMIT, index_terms},
    {"value 1 has no tower rows", MXC_E_INTERNAL, index_value},
    {"index 8 with 1 terms", MXC_E_LIMIT, index_many},
    {"more than 4 ranges", MXC_E_LIMIT, range_many},
    {"more than 8 slots", MXC_E_LIMIT, gather_many},
    {"not a table with rows of 12", MXC_E_INTERNAL, lookup_matrix},
    {"not a table with rows of 12", MXC_E_INTERNAL, lookup_width},
    {"vec2 has 2 numbers, not 1", MXC_E_INTERNAL, lookup_gate},
    {"index 0 is not for these rows", MXC_E_INTERNAL, lookup_rows},
    {"there is no index 1", MXC_E_INTERNAL, lookup_none},
    {"index 1 is none of one plain term", MXC_E_INTERNAL, gather_terms},
    {"index 1 is none of one plain term", MXC_E_INTERNAL, gather_weighted},
    {"0 rows of 12", MXC_E_INTERNAL, merge_none},
    {"65536 rows of 786432", MXC_E_INTERNAL, merge_wide},
    {"65537 rows of 12", MXC_E_INTERNAL, mean_many},
    {"concat (op 2): inputs differ in rows", MXC_E_INTERNAL, concat_rows},
    {"take turns differ in width", MXC_E_INTERNAL, concat_turns},
    {"9 inputs are not in [1, 8]", MXC_E_INTERNAL, concat_many},
    {"25165824 columns are more than", MXC_E_LIMIT, concat_wide},
    {"residual and input differ in shape", MXC_E_INTERNAL, scale_residual},
    {"residual and input differ in shape", MXC_E_INTERNAL, scale_rows},
    {"weight 0 is absent", MXC_E_INTERNAL, scale_none},
    {"vec2 has 2 numbers, not 1", MXC_E_INTERNAL, scale_gate},
    {"5 groups of an input of 12", MXC_E_INTERNAL, groups_uneven},
    {"0 groups of an input of 12", MXC_E_INTERNAL, groups_none},
    {"vec2 has 2 numbers, not 4", MXC_E_INTERNAL, groups_weight},
    {"input is 12 wide for 3 heads of 2", MXC_E_INTERNAL, attend_heads},
    {"input is 12 wide for 0 heads", MXC_E_INTERNAL, attend_none},
    {"scale is out of range", MXC_E_INTERNAL, attend_scale},
    {"range 1 is not for these rows", MXC_E_INTERNAL, attend_range},
    {"range 1 is not for these rows", MXC_E_INTERNAL, attend_range_rows},
    {"there is no rope 1 for heads of 2", MXC_E_INTERNAL, attend_rope},
    {"there is no rope 1 for heads of 2", MXC_E_INTERNAL, attend_wide_rope},
    {"there is no index 1", MXC_E_INTERNAL, attend_index},
    {"index 1 is not for these rows", MXC_E_INTERNAL, attend_index_rows},
    {"index 0 has 1 terms for more axes", MXC_E_INTERNAL, attend_axes},
};

/* ---- decoders: x is [T, 8] */

static struct mxc_cross_attr fitting_cross(struct mxc_graph *g) {
    struct mxc_kv kv = {.kind = MXC_KV_CROSS, .n_heads = 2, .k_dim = 2, .v_dim = 2};
    return (struct mxc_cross_attr){.n_heads = 4,
                                   .n_kv_heads = 2,
                                   .head_dim = 2,
                                   .scale = 1,
                                   .q_norm_eps = 1e-5f,
                                   .kv = mxc_graph_kv(g, &kv)};
}

#define CROSS_RULE(name, change)                                                                   \
    static void name(struct mxc_graph *g, int32_t x) {                                             \
        struct mxc_cross_attr a = fitting_cross(g);                                                \
        int32_t q = x, norm = vec(g, 2);                                                           \
        change;                                                                                    \
        mxc_graph_cross(g, q, &a, norm);                                                           \
    }
CROSS_RULE(cross_width, a.head_dim = 4)
CROSS_RULE(cross_heads, a.n_kv_heads = 3)
CROSS_RULE(cross_rows, q = mxc_graph_select_out(g, x))
CROSS_RULE(cross_scale, a.scale = 0)
CROSS_RULE(cross_eps, a.q_norm_eps = -1)
CROSS_RULE(cross_kv, a.kv = 1)
CROSS_RULE(cross_store, a.n_kv_heads = 1)
CROSS_RULE(cross_norm, norm = vec(g, 3))
CROSS_RULE(cross_kind,
           a.kv = mxc_graph_kv(g, &(struct mxc_kv){.n_heads = 2, .k_dim = 2, .v_dim = 2}))

static void cross_twice(struct mxc_graph *g, int32_t x) {
    struct mxc_cross_attr a = fitting_cross(g);
    x = mxc_graph_cross(g, x, &a, MXC_NONE);
    mxc_graph_cross(g, x, &a, MXC_NONE);
}
static void cross_window(struct mxc_graph *g, int32_t x) {
    (void)x;
    mxc_graph_kv(g, &(struct mxc_kv){
                        .kind = MXC_KV_CROSS, .n_heads = 2, .k_dim = 2, .v_dim = 2, .window = 4});
}
static void mask_rows(struct mxc_graph *g, int32_t x) {
    mxc_graph_row_mask(g, mxc_graph_select_out(g, x));
}
static void level_rows(struct mxc_graph *g, int32_t x) {
    mxc_graph_add_level(g, mxc_graph_select_out(g, x));
}
static void level_width(struct mxc_graph *g, int32_t x) {
    mxc_graph_add_level(g, linear(g, x, 9));
}
static void merge_tokens(struct mxc_graph *g, int32_t x) {
    mxc_graph_merge(g, x, 2);
}
static void gather_tokens(struct mxc_graph *g, int32_t x) {
    mxc_graph_gather(g, x);
}
static void attend_tokens(struct mxc_graph *g, int32_t x) {
    struct mxc_attend_attr a = {.n_heads = 1, .head_dim = 4, .scale = 1, .rope = MXC_NONE};
    mxc_graph_attend(g, linear(g, x, 12), &a);
}

static const struct rule decoder_rules[] = {
    {"input is 8 wide for 4 heads of 4", MXC_E_INTERNAL, cross_width},
    {"input is 8 wide for 4 heads", MXC_E_INTERNAL, cross_heads},
    {"input is 8 wide for 4 heads", MXC_E_INTERNAL, cross_rows},
    {"scale or q_norm_eps", MXC_E_INTERNAL, cross_scale},
    {"scale or q_norm_eps", MXC_E_INTERNAL, cross_eps},
    {"kv 1 is not a cross store", MXC_E_INTERNAL, cross_kv},
    {"kv 0 is not a cross store of such heads", MXC_E_INTERNAL, cross_store},
    {"vec3 has 3 numbers, not 2", MXC_E_INTERNAL, cross_norm},
    {"kv 1 is not a cross store", MXC_E_INTERNAL, cross_kind},
    {"write the same kv 0", MXC_E_INTERNAL, cross_twice},
    {"window 4 does not go with its kind", MXC_E_INTERNAL, cross_window},
    {"rows are not those of the step", MXC_E_INTERNAL, mask_rows},
    {"rows are not those of the step", MXC_E_INTERNAL, level_rows},
    {"a level is 8 wide, not 9", MXC_E_INTERNAL, level_width},
    {"2 rows of 8", MXC_E_INTERNAL, merge_tokens},
    {"value 0 has no tower rows", MXC_E_INTERNAL, gather_tokens},
    {"input is 12 wide for 1 heads of 4", MXC_E_INTERNAL, attend_tokens},
};

static void check_rules(const struct rule *rules, size_t n, bool tower) {
    for (size_t i = 0; i < n; i++) {
        struct mxc_graph *g = NULL;
        assert_int_equal(mxc_graph_new("towers", &g, NULL), MXC_OK);
        int32_t x =
            tower ? mxc_graph_input(g, WIDTH) : mxc_graph_embed(g, table(g, VOCAB, HIDDEN), 1);
        rules[i].breaks(g, x);
        struct mxc_err err = {0};
        enum mxc_code code = mxc_graph_finish(g, tower ? x : mxc_graph_select_out(g, x), &err);
        if (code != rules[i].code || !strstr(err.message, rules[i].message))
            fail_msg("rule %zu: code %d, \"%s\": expected \"%s\"", i, (int)code, err.message,
                     rules[i].message);
        mxc_graph_free(g);
    }
}

static void broken_rules(void **state) {
    (void)state;
    check_rules(tower_rules, sizeof tower_rules / sizeof *tower_rules, true);
    check_rules(decoder_rules, sizeof decoder_rules / sizeof *decoder_rules, false);
}

/* ---- graphs that have them all */

static int32_t tower(struct mxc_graph *g) {
    int32_t x = mxc_graph_input(g, WIDTH);
    struct mxc_attend_attr a = fitting_attend(g, x);
    int32_t index = mxc_graph_index(g, x, 4, true);
    x = mxc_graph_lookup(g, x, table(g, 5, WIDTH), index, vec(g, 1), true);
    assert_int_equal(g->indices[index].limit, 5);
    assert_int_equal(g->indices[a.positions].limit, INT32_MAX);
    x = mxc_graph_group_norm(g, x, vec(g, 4), 1e-5f, 3);
    int32_t h = mxc_graph_attend(g, x, &a);
    assert_int_equal(g->values[h].width, 4);
    int32_t values[2] = {h, mxc_graph_tanh_scale(g, h, vec(g, 1), h)};
    x = mxc_graph_concat(g, 2, values, true);
    values[1] = mxc_graph_tanh_scale(g, x, vec(g, 1), MXC_NONE);
    x = mxc_graph_concat(g, 2, values, false); /* [N0, 4 + 8] */
    assert_int_equal(g->values[x].width, 12);
    x = mxc_graph_merge(g, x, 2); /* [N0/2, 24] */
    index = mxc_graph_index(g, x, 1, false);
    assert_int_equal(g->indices[index].divisor, 2);
    x = mxc_graph_lookup(g, x, table(g, 3, 24), index, MXC_NONE, false);
    x = mxc_graph_gather(g, x); /* [N1, 24] */
    assert_int_equal(g->n_slots, 2);
    assert_int_equal(g->indices[g->n_indices - 1].slot, 1);
    x = mxc_graph_act(g, mxc_graph_mean_rows(g, x, 3), MXC_ACT_GELU_QUICK);
    return linear(g, x, VOCAB);
}

static int32_t decoder(struct mxc_graph *g) {
    int32_t x = mxc_graph_embed(g, table(g, VOCAB, HIDDEN), 1);
    struct mxc_cross_attr a = fitting_cross(g);
    x = mxc_graph_add_level(g, x);
    x = mxc_graph_add_level(g, mxc_graph_cross(g, x, &a, vec(g, 2)));
    assert_int_equal(g->n_levels, 2);
    x = mxc_graph_row_mask(g, x);
    return linear(g, mxc_graph_select_out(g, x), VOCAB);
}

static void print_all(void **state) {
    (void)state;
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    for (int i = 0; i < 2; i++) {
        struct mxc_graph *g = NULL;
        struct mxc_err err;
        assert_int_equal(mxc_graph_new(i ? "decoder" : "tower", &g, NULL), MXC_OK);
        if (mxc_graph_finish(g, i ? decoder(g) : tower(g), &err))
            fail_msg("%s", err.message);
        assert_int_equal(g->vocab, VOCAB);
        assert_string_equal(g->values[g->logits].name, i ? "logits" : "features");
        mxc_graph_print(g, out);
        mxc_graph_free(g);
    }
    fclose(out);
    FILE *in = fopen(MXC_TEST_DATA "/graph/towers.txt", "r");
    assert_non_null(in);
    char want[8192];
    size_t n = fread(want, 1, sizeof want - 1, in);
    want[n] = 0;
    fclose(in);
    if (strcmp(text, want))
        fail_msg("got\n%s", text);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(broken_rules), cmocka_unit_test(print_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
