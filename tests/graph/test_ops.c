/* Ops of other families than Llama's: each rule broken once, what they make of their inputs,
 * weights that are stacks or views of tensors, and the text of a graph that has all of them. */
#define _GNU_SOURCE
#include "test.h"

#include "graph/private.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HIDDEN = 8, VOCAB = 20 };

struct rule {
    const char *message;
    enum mxc_code code;
    void (*breaks)(struct mxc_graph *g, int32_t x);
};

static struct mxc_graph *begin(int32_t *x) {
    struct mxc_graph *g = NULL;
    assert_int_equal(mxc_graph_new("ops", &g, NULL), MXC_OK);
    *x = mxc_graph_embed(g, mxc_graph_table(g, VOCAB, HIDDEN, "embed"), 1);
    mxc_graph_begin_layer(g, 0);
    return g;
}

static int32_t vec(struct mxc_graph *g, int64_t n) {
    return mxc_graph_vector(g, n, "vec%d", (int)n);
}

static int32_t mat(struct mxc_graph *g, int64_t out, int64_t in) {
    return mxc_graph_matrix(g, out, in, "mat%d.%d", (int)out, (int)in);
}

static int32_t stack(struct mxc_graph *g, int64_t n, int64_t out, int64_t in) {
    return mxc_graph_stack(g, n, out, in, "stack%d.%d.%d", (int)n, (int)out, (int)in);
}

static int32_t linear(struct mxc_graph *g, int32_t x, int64_t out, int64_t in) {
    struct mxc_linear_part p = {mat(g, out, in), MXC_NONE};
    return mxc_graph_linear(g, x, 1, &p, 1, MXC_NONE);
}

/* ---- a mixture of 4 experts, 3 wide, that fits x [T, 8] */

struct moe {
    struct mxc_moe_attr attr;
    int32_t weights[MXC_N_MOE_WEIGHTS];
    int32_t router;
};

static struct moe fitting_moe(struct mxc_graph *g, int32_t x) {
    struct moe m = {
        .attr = {
            .n_experts = 4, .top_k = 2, .width = 3, .scale = 1, .n_groups = 1, .top_groups = 1}};
    for (int i = 0; i < MXC_N_MOE_WEIGHTS; i++)
        m.weights[i] = MXC_NONE;
    m.weights[MXC_MOE_GATE] = mxc_graph_stack(g, 4, 3, HIDDEN, "e.*.gate");
    m.weights[MXC_MOE_UP] = mxc_graph_stack(g, 4, 3, HIDDEN, "e.*.up");
    m.weights[MXC_MOE_DOWN] = mxc_graph_stack(g, 4, HIDDEN, 3, "e.*.down");
    m.router = linear(g, x, 4, HIDDEN);
    return m;
}

#define MOE_RULE(name, change)                                                                     \
    static void name(struct mxc_graph *g, int32_t x) {                                             \
        struct moe m = fitting_moe(g, x);                                                          \
        change;                                                                                    \
        mxc_graph_moe(g, x, m.router, &m.attr, m.weights);                                         \
    }
MOE_RULE(moe_top, m.attr.top_k = 5)
MOE_RULE(moe_none, m.attr.top_k = 0)
MOE_RULE(moe_many, (m.attr.n_experts = 4096, m.attr.top_k = MXC_MAX_TOP_EXPERTS + 1))
MOE_RULE(moe_groups, m.attr.n_groups = 3)
MOE_RULE(moe_top_groups, (m.attr.n_groups = 2, m.attr.top_groups = 3))
MOE_RULE(moe_small_groups, m.attr.n_groups = 4)
MOE_RULE(moe_score, m.attr.score = (enum mxc_moe_score)7)
MOE_RULE(moe_act, m.attr.act = MXC_N_ACTS)
MOE_RULE(moe_scale, m.attr.scale = NAN)
MOE_RULE(moe_eps, m.attr.normalise_eps = -1)
MOE_RULE(moe_router, m.router = x)
MOE_RULE(moe_router_rows, m.router = mxc_graph_select_out(g, m.router))
MOE_RULE(moe_no_gate, m.weights[MXC_MOE_GATE] = MXC_NONE)
MOE_RULE(moe_gate_matrix, m.weights[MXC_MOE_GATE] = mat(g, 3, HIDDEN))
MOE_RULE(moe_width, m.attr.width = 4)
MOE_RULE(moe_down, m.weights[MXC_MOE_DOWN] = m.weights[MXC_MOE_UP])
MOE_RULE(moe_bias, m.weights[MXC_MOE_GATE_BIAS] = vec(g, 3))
MOE_RULE(moe_choice, m.weights[MXC_MOE_CHOICE] = vec(g, 3))

/* ---- attention over a latent of 8: 2 heads of 8, 6 of them values */

struct latent {
    struct mxc_attn_attr attr;
    int32_t q, latent;
};

static struct latent fitting_latent(struct mxc_graph *g, int32_t x, enum mxc_kv_kind kind) {
    struct mxc_rope rope = {.dims = 2, .theta = 1e4};
    struct mxc_kv kv = {.kind = kind, .n_heads = 1, .k_dim = 8, .v_dim = 6};
    return (struct latent){.attr = {.n_heads = 2,
                                    .n_kv_heads = 1,
                                    .head_dim = 8,
                                    .v_dim = 6,
                                    .scale = 1,
                                    .rope = mxc_graph_rope(g, &rope),
                                    .rope_offset = 6,
                                    .kv = mxc_graph_kv(g, &kv)},
                           .q = linear(g, x, 16, HIDDEN),
                           .latent = x};
}

#define LATENT_RULE(name, kind, change)                                                            \
    static void name(struct mxc_graph *g, int32_t x) {                                             \
        struct latent l = fitting_latent(g, x, kind);                                              \
        change;                                                                                    \
        mxc_graph_latent_attention(g, l.q, l.latent, &l.attr);                                     \
    }
LATENT_RULE(latent_q, MXC_KV_LATENT, l.q = x)
LATENT_RULE(latent_width, MXC_KV_LATENT, l.latent = l.q)
LATENT_RULE(latent_rows, MXC_KV_LATENT, l.latent = mxc_graph_select_out(g, x))
LATENT_RULE(latent_heads, MXC_KV_LATENT, l.attr.n_kv_heads = 2)
LATENT_RULE(latent_v, MXC_KV_LATENT, l.attr.v_dim = 9)
LATENT_RULE(latent_no_v, MXC_KV_LATENT, l.attr.v_dim = 0)
LATENT_RULE(latent_kind, MXC_KV_FULL, (void)0)
LATENT_RULE(latent_rope, MXC_KV_LATENT, l.attr.rope_offset = 7)
LATENT_RULE(latent_offset, MXC_KV_LATENT, l.attr.rope_offset = -1)
LATENT_RULE(latent_store, MXC_KV_LATENT, l.attr.v_dim = 5)

static void qkv_v_dim(struct mxc_graph *g, int32_t x) {
    struct mxc_kv kv = {.kind = MXC_KV_FULL, .n_heads = 1, .k_dim = 2, .v_dim = 1};
    struct mxc_attn_attr a = {.n_heads = 2,
                              .n_kv_heads = 1,
                              .head_dim = 2,
                              .v_dim = 1,
                              .scale = 1,
                              .rope = MXC_NONE,
                              .kv = mxc_graph_kv(g, &kv)};
    mxc_graph_attention(g, x, &a, MXC_NONE, MXC_NONE, MXC_NONE);
}
static void qk_norm_kind(struct mxc_graph *g, int32_t x) {
    struct mxc_kv kv = {.kind = MXC_KV_FULL, .n_heads = 1, .k_dim = 2, .v_dim = 2};
    struct mxc_attn_attr a = {.n_heads = 2,
                              .n_kv_heads = 1,
                              .head_dim = 2,
                              .scale = 1,
                              .rope = MXC_NONE,
                              .kv = mxc_graph_kv(g, &kv),
                              .qk_norm = MXC_QK_RMS_WHOLE};
    mxc_graph_attention(g, x, &a, vec(g, 2), vec(g, 2), MXC_NONE);
}

/* ---- the others */

static void heads_none(struct mxc_graph *g, int32_t x) {
    mxc_graph_heads_linear(g, x, mat(g, 8, 8), 2);
}
static void heads_uneven(struct mxc_graph *g, int32_t x) {
    mxc_graph_heads_linear(g, x, stack(g, 3, 4, 2), 3);
}
static void heads_count(struct mxc_graph *g, int32_t x) {
    mxc_graph_heads_linear(g, x, stack(g, 4, 4, 2), 2);
}
static void heads_narrow(struct mxc_graph *g, int32_t x) {
    mxc_graph_heads_linear(g, x, stack(g, 2, 4, 5), 2);
}
static void layer_norm_weight(struct mxc_graph *g, int32_t x) {
    mxc_graph_layer_norm(g, x, vec(g, 7), MXC_NONE, 1e-5f);
}
static void layer_norm_bias(struct mxc_graph *g, int32_t x) {
    mxc_graph_layer_norm(g, x, vec(g, 8), vec(g, 7), 1e-5f);
}
static void layer_norm_eps(struct mxc_graph *g, int32_t x) {
    mxc_graph_layer_norm(g, x, vec(g, 8), MXC_NONE, -1);
}
static void position_matrix(struct mxc_graph *g, int32_t x) {
    mxc_graph_add_position(g, x, mat(g, 8, 8), 0);
}
static void position_width(struct mxc_graph *g, int32_t x) {
    mxc_graph_add_position(g, x, mxc_graph_table(g, 9, 7, "p"), 0);
}
static void position_offset(struct mxc_graph *g, int32_t x) {
    mxc_graph_add_position(g, x, mxc_graph_table(g, 9, 8, "p"), -1);
}
static void act_glu(struct mxc_graph *g, int32_t x) {
    mxc_graph_act(g, x, MXC_ACT_SWIGLU_CLIP);
}
static void cap_zero(struct mxc_graph *g, int32_t x) {
    mxc_graph_softcap(g, x, 0);
}
static void gate_width(struct mxc_graph *g, int32_t x) {
    mxc_graph_gate(g, x, x);
}
static void gate_rows(struct mxc_graph *g, int32_t x) {
    mxc_graph_gate(g, x, mxc_graph_select_out(g, linear(g, x, 1, HIDDEN)));
}
static void unit_width(struct mxc_graph *g, int32_t x) {
    mxc_graph_unit_columns(g, x, mat(g, 8, 7));
}
static void linear_stack(struct mxc_graph *g, int32_t x) {
    struct mxc_linear_part p = {stack(g, 2, 8, 8), MXC_NONE};
    mxc_graph_linear(g, x, 1, &p, 1, MXC_NONE);
}

static void viewed(struct mxc_graph *g, enum mxc_weight_role role, struct mxc_weight_view view) {
    struct mxc_weight w = {.role = role, .n_dims = 2, .shape = {4, 8}};
    mxc_graph_view(g, &w, &view, "tensor");
}
static void view_columns(struct mxc_graph *g, int32_t x) {
    (void)x;
    viewed(g, MXC_W_MATRIX,
           (struct mxc_weight_view){.n_dims = 2, .shape = {4, 9}, .row_step = 1, .col0 = 1});
}
static void view_step(struct mxc_graph *g, int32_t x) {
    (void)x;
    viewed(g, MXC_W_MATRIX, (struct mxc_weight_view){.n_dims = 2, .shape = {4, 8}});
}
static void view_table(struct mxc_graph *g, int32_t x) {
    (void)x;
    viewed(g, MXC_W_TABLE, (struct mxc_weight_view){.n_dims = 2, .shape = {4, 8}, .row_step = 1});
}
static void view_vector(struct mxc_graph *g, int32_t x) {
    (void)x;
    viewed(
        g, MXC_W_VECTOR,
        (struct mxc_weight_view){.n_dims = 2, .shape = {8, 4}, .col_step = 1, .transposed = true});
}
static void view_dims(struct mxc_graph *g, int32_t x) {
    (void)x;
    viewed(g, MXC_W_MATRIX, (struct mxc_weight_view){.row_step = 1});
}
static void view_extent(struct mxc_graph *g, int32_t x) {
    (void)x;
    viewed(g, MXC_W_MATRIX, (struct mxc_weight_view){.n_dims = 2, .shape = {-4, 8}, .row_step = 1});
}

static const struct rule rules[] = {
    {"5 of 4 experts", MXC_E_INTERNAL, moe_top},
    {"0 of 4 experts", MXC_E_INTERNAL, moe_none},
    {"65 of 4096 experts", MXC_E_INTERNAL, moe_many},
    {"1 of 3 groups of 4 experts", MXC_E_INTERNAL, moe_groups},
    {"3 of 2 groups of 4 experts", MXC_E_INTERNAL, moe_top_groups},
    {"groups of one expert", MXC_E_INTERNAL, moe_small_groups},
    {"there is no score 7", MXC_E_INTERNAL, moe_score},
    {"there is no score 0 or activation", MXC_E_INTERNAL, moe_act},
    {"scale or normalise_eps", MXC_E_INTERNAL, moe_scale},
    {"scale or normalise_eps", MXC_E_INTERNAL, moe_eps},
    {"router logits are 8 wide for 4 experts", MXC_E_INTERNAL, moe_router},
    {"router logits are 4 wide for 4 experts, or differ", MXC_E_INTERNAL, moe_router_rows},
    {"weight 0 is absent", MXC_E_INTERNAL, moe_no_gate},
    {"mat3.8 is not a stack of 4 matrices [3, 8]", MXC_E_INTERNAL, moe_gate_matrix},
    {"e.*.gate is not a stack of 4 matrices [4, 8]", MXC_E_INTERNAL, moe_width},
    {"e.*.up is not a stack of 4 matrices [8, 3]", MXC_E_INTERNAL, moe_down},
    {"vec3 does not hold 3 numbers for each expert", MXC_E_INTERNAL, moe_bias},
    {"vec3 has 3 numbers, not 4", MXC_E_INTERNAL, moe_choice},
    {"q is 8 wide, the latent 8", MXC_E_INTERNAL, latent_q},
    {"q is 16 wide, the latent 16", MXC_E_INTERNAL, latent_width},
    {"q is 16 wide", MXC_E_INTERNAL, latent_rows},
    {"q is 16 wide", MXC_E_INTERNAL, latent_heads},
    {"v_dim 9 is not in [1, 8]", MXC_E_INTERNAL, latent_v},
    {"v_dim 0 is not in [1, 8]", MXC_E_INTERNAL, latent_no_v},
    {"another kind or window", MXC_E_INTERNAL, latent_kind},
    {"rope rotates 2 dimensions of 8 from 7 on", MXC_E_INTERNAL, latent_rope},
    {"from -1 on", MXC_E_INTERNAL, latent_offset},
    {"has other heads than the op", MXC_E_INTERNAL, latent_store},
    {"v_dim 1 is not head_dim", MXC_E_INTERNAL, qkv_v_dim},
    {"vec2 has 2 numbers, not 4", MXC_E_INTERNAL, qk_norm_kind},
    {"the weight is not a stack", MXC_E_INTERNAL, heads_none},
    {"does not fit 3 heads of an input of 8", MXC_E_INTERNAL, heads_uneven},
    {"does not fit 2 heads of an input of 8", MXC_E_INTERNAL, heads_count},
    {"does not fit 2 heads", MXC_E_INTERNAL, heads_narrow},
    {"vec7 has 7 numbers, not 8", MXC_E_INTERNAL, layer_norm_weight},
    {"vec7 has 7 numbers, not 8", MXC_E_INTERNAL, layer_norm_bias},
    {"eps is out of range", MXC_E_INTERNAL, layer_norm_eps},
    {"the weight is not a table", MXC_E_INTERNAL, position_matrix},
    {"p does not fit an input of 8", MXC_E_INTERNAL, position_width},
    {"offset -1", MXC_E_INTERNAL, position_offset},
    {"of one input", MXC_E_INTERNAL, act_glu},
    {"cap is out of range", MXC_E_INTERNAL, cap_zero},
    {"the gate is 8 wide", MXC_E_INTERNAL, gate_width},
    {"or differs in rows", MXC_E_INTERNAL, gate_rows},
    {"not a matrix with 8 columns", MXC_E_INTERNAL, unit_width},
    {"stack2.8.8 is not a matrix", MXC_E_INTERNAL, linear_stack},
    {"only a transposed one picks columns", MXC_E_INTERNAL, view_columns},
    {"a stride or step", MXC_E_INTERNAL, view_step},
    {"view: of a table", MXC_E_INTERNAL, view_table},
    {"a vector cannot be transposed", MXC_E_INTERNAL, view_vector},
    {"view: 2 dimensions of 0", MXC_E_INTERNAL, view_dims},
    {"extent -4", MXC_E_LIMIT, view_extent},
};

static void broken_rules(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        int32_t x;
        struct mxc_graph *g = begin(&x);
        rules[i].breaks(g, x);
        struct mxc_err err = {0};
        enum mxc_code code = mxc_graph_finish(g, mxc_graph_select_out(g, x), &err);
        if (code != rules[i].code || !strstr(err.message, rules[i].message))
            fail_msg("rule %zu: code %d, \"%s\": expected \"%s\"", i, (int)code, err.message,
                     rules[i].message);
        mxc_graph_free(g);
    }
}

/* ---- a graph that has them all */

static int32_t everything(struct mxc_graph *g, int32_t x) {
    struct moe m = fitting_moe(g, x);
    struct latent l = fitting_latent(g, x, MXC_KV_LATENT);
    m.attr.score = MXC_MOE_SIGMOID;
    m.attr.n_groups = 2;
    m.attr.normalise = true;
    m.attr.scale = 2.5f;
    m.weights[MXC_MOE_CHOICE] = vec(g, 4);
    m.weights[MXC_MOE_DOWN_BIAS] = mxc_graph_vectors(g, 4, HIDDEN, "e.down_bias");
    x = mxc_graph_add_position(g, x, mxc_graph_table(g, 9, HIDDEN, "p"), 2);
    x = mxc_graph_moe(g, x, m.router, &m.attr, m.weights);
    x = mxc_graph_add(g, x, mxc_graph_gate(g, x, linear(g, x, 1, HIDDEN)));
    int32_t y = mxc_graph_latent_attention(g, l.q, l.latent, &l.attr); /* [T, 12] */
    y = mxc_graph_heads_linear(g, y, stack(g, 2, 3, 5), 2);            /* [T, 2 * (3 + 1)] */
    assert_int_equal(g->values[y].width, HIDDEN);
    x = mxc_graph_rms_norm(g, mxc_graph_add(g, x, y), vec(g, 6), 1e-5f, 1);
    x = mxc_graph_layer_norm(g, x, vec(g, HIDDEN), MXC_NONE, 1e-5f);
    x = mxc_graph_act(g, x, MXC_ACT_GELU_TANH);
    mxc_graph_begin_layer(g, MXC_NONE);
    x = mxc_graph_unit_columns(g, mxc_graph_select_out(g, x), 0);
    return mxc_graph_softcap(g, linear(g, x, VOCAB, HIDDEN), 30);
}

static void print_all(void **state) {
    (void)state;
    int32_t x;
    struct mxc_graph *g = begin(&x);
    struct mxc_err err;
    if (mxc_graph_finish(g, everything(g, x), &err))
        fail_msg("%s", err.message);
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    mxc_graph_print(g, out);
    fclose(out);
    FILE *in = fopen(MXC_TEST_DATA "/graph/ops.txt", "r");
    assert_non_null(in);
    char want[8192];
    size_t n = fread(want, 1, sizeof want - 1, in);
    want[n] = 0;
    fclose(in);
    if (strcmp(text, want))
        fail_msg("got\n%s", text);
    free(text);
    mxc_graph_free(g);
}

static void tensors_of_weights(void **state) {
    (void)state;
    int32_t x;
    struct mxc_graph *g = begin(&x);
    char name[MXC_MAX_WEIGHT_NAME];
    int64_t shape[MXC_MAX_VIEW_DIMS];
    const struct mxc_weight *w;
    int32_t id = mxc_graph_stack(g, 3, 4, 5, "e.*.w");
    w = &g->weights[id];
    assert_int_equal(mxc_weight_tensors(w), 3);
    mxc_weight_tensor_name(w, 2, name);
    assert_string_equal(name, "e.2.w");
    assert_int_equal(mxc_weight_tensor_shape(w, shape), 2);
    assert_int_equal(shape[0], 4);
    assert_int_equal(shape[1], 5);
    w = &g->weights[mxc_graph_stack(g, 3, 4, 5, "e.w")];
    assert_int_equal(mxc_weight_tensors(w), 1);
    assert_int_equal(mxc_weight_tensor_shape(w, shape), 3);
    w = &g->weights[mxc_graph_vectors(g, 3, 4, "n.*")];
    assert_int_equal(mxc_weight_tensors(w), 3);
    assert_int_equal(mxc_weight_tensor_shape(w, shape), 1);
    assert_int_equal(shape[0], 4);
    w = &g->weights[mxc_graph_vector(g, 3, "*")]; /* not a stack: a plain name */
    assert_int_equal(mxc_weight_tensors(w), 1);

    /* two halves of one tensor are two weights; the same half again is the same */
    struct mxc_weight half = {.role = MXC_W_MATRIX, .n_dims = 2, .shape = {4, 8}};
    struct mxc_weight_view a = {.n_dims = 2, .shape = {0, 8}, .row_step = 1}, b = a;
    b.row0 = 4;
    id = mxc_graph_view(g, &half, &a, "fused");
    assert_int_not_equal(mxc_graph_view(g, &half, &b, "fused"), id);
    assert_int_equal(mxc_graph_view(g, &half, &a, "fused"), id);
    assert_string_equal(g->weights[id].name, "fused");
    assert_int_equal(mxc_weight_tensor_shape(&g->weights[id], shape), 2);
    assert_int_equal(shape[0], -1);
    assert_int_equal(shape[1], 8);

    /* a kernel as a matrix, a wide table as a long one */
    const struct mxc_weight kernel = {.role = MXC_W_MATRIX, .n_dims = 2, .shape = {4, 24}};
    const struct mxc_weight table = {.role = MXC_W_TABLE, .n_dims = 2, .shape = {6, 4}};
    struct mxc_weight_view flat = {
        .n_dims = 5, .shape = {4, 3, 2, 2, 2}, .row_step = 1, .flat = true};
    id = mxc_graph_view(g, &kernel, &flat, "conv");
    assert_int_equal(mxc_weight_tensor_shape(&g->weights[id], shape), 5);
    assert_int_equal(shape[4], 2);
    flat.n_dims = 2;
    flat.shape[0] = 2;
    flat.shape[1] = 12;
    id = mxc_graph_view(g, &table, &flat, "wide");
    assert_int_equal(mxc_weight_tensor_shape(&g->weights[id], shape), 2);
    assert_int_equal(shape[1], 12);
    flat.row0 = 1;
    struct mxc_err err;
    (void)mxc_graph_view(g, &table, &flat, "bad");
    assert_int_not_equal(mxc_graph_finish(g, x, &err), MXC_OK);
    assert_non_null(strstr(err.message, "flat"));
    mxc_graph_free(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(broken_rules),
        cmocka_unit_test(print_all),
        cmocka_unit_test(tensors_of_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
