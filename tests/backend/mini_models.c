/* The models of mini.h. In: a model's number. Out: a graph that a family might build, over tensors
 * whose layout is awkward on purpose: fused, interleaved, transposed, one for each expert. */
#include "backend/mini.h"

/* ---- pieces of models */

static int32_t linear(struct mxc_graph *g, int32_t x, int32_t weight, int32_t bias, int32_t to) {
    struct mxc_linear_part part = {weight, bias};
    return mxc_graph_linear(g, x, 1, &part, 1, to);
}

static int32_t rms(struct mxc_graph *g, int32_t x, const char *name) {
    return mxc_graph_rms_norm(g, x, mxc_graph_vector(g, MINI_HIDDEN, "%s", name), 1e-5f, 0.25f);
}

struct attention {
    int32_t n_heads, n_kv_heads, head_dim, window, rotated, rope_offset;
    bool norms, latent_norm;
    enum mxc_qk_norm kind;
};

static int32_t rope_of(struct mxc_graph *g, const struct attention *a) {
    struct mxc_rope rope = {.dims = a->rotated, .theta = 10000};
    return a->rotated ? mxc_graph_rope(g, &rope) : MXC_NONE;
}

/* norm, q k v from three row ranges of one tensor, attention, o */
static int32_t attend(struct mxc_graph *g, int32_t x, const struct attention *a) {
    int32_t q = a->n_heads * a->head_dim, kv = a->n_kv_heads * a->head_dim;
    struct mxc_linear_part parts[3];
    for (int i = 0; i < 3; i++) {
        struct mxc_weight w = {
            .role = MXC_W_MATRIX, .n_dims = 2, .shape = {i ? kv : q, MINI_HIDDEN}};
        struct mxc_weight_view v = {.n_dims = 2,
                                    .shape = {q + 2 * kv, MINI_HIDDEN},
                                    .row0 = i ? q + (i - 1) * kv : 0,
                                    .row_step = 1};
        parts[i] = (struct mxc_linear_part){mxc_graph_view(g, &w, &v, "qkv.weight"), MXC_NONE};
    }
    struct mxc_kv store = {.kind = a->window ? MXC_KV_WINDOW : MXC_KV_FULL,
                           .n_heads = a->n_kv_heads,
                           .k_dim = a->head_dim,
                           .v_dim = a->head_dim,
                           .window = a->window};
    struct mxc_attn_attr attr = {.n_heads = a->n_heads,
                                 .n_kv_heads = a->n_kv_heads,
                                 .head_dim = a->head_dim,
                                 .scale = 0.3f,
                                 .window = a->window,
                                 .rope = rope_of(g, a),
                                 .rope_offset = a->rope_offset,
                                 .kv = mxc_graph_kv(g, &store),
                                 .qk_norm = a->kind,
                                 .qk_norm_eps = 1e-5f,
                                 .qk_norm_offset = a->kind == MXC_QK_LAYER_HEADS ? 0 : 0.5f};
    int32_t norms[2] = {MXC_NONE, MXC_NONE};
    for (int i = 0; a->norms && i < 2; i++) {
        const char *name = i ? "k_norm" : "q_norm";
        int32_t heads = i ? a->n_kv_heads : a->n_heads;
        norms[i] = a->kind == MXC_QK_RMS_HEAD ? mxc_graph_vector(g, a->head_dim, "%s", name)
                   : a->kind == MXC_QK_RMS_WHOLE
                       ? mxc_graph_vector(g, heads * a->head_dim, "%s", name)
                       : mxc_graph_vectors(g, heads, a->head_dim, "%s.*", name);
    }
    int32_t qkv = mxc_graph_linear(g, rms(g, x, "norm1"), 3, parts, 1, MXC_NONE);
    int32_t y = mxc_graph_attention(g, qkv, &attr, norms[0], norms[1], MXC_NONE);
    return linear(g, y, mxc_graph_matrix(g, MINI_HIDDEN, q, "o.weight"), MXC_NONE, x);
}

/* Multi-head latent attention, absorbed: q into the latent, attention over it, values out of it.
 * The latent's first `rank` numbers are normed, the other 16 rotated. */
static int32_t attend_latent(struct mxc_graph *g, int32_t x, int32_t heads, int32_t rank) {
    enum { ROTATED = 16, PLAIN = 24, VALUE = 20 };
    int32_t h = rms(g, x, "norm1");
    int32_t q =
        linear(g, h, mxc_graph_matrix(g, heads * (PLAIN + ROTATED), MINI_HIDDEN, "q.weight"),
               MXC_NONE, MXC_NONE);
    /* kv_b: [heads * (PLAIN + VALUE), rank]; k part transposed for q, v part as it is */
    struct mxc_weight wk = {.role = MXC_W_STACK, .n_dims = 3, .shape = {heads, rank, PLAIN}};
    struct mxc_weight_view vk = {.n_dims = 2,
                                 .shape = {heads * (PLAIN + VALUE), rank},
                                 .stride = PLAIN + VALUE,
                                 .row_step = 0,
                                 .col_step = 1,
                                 .transposed = true};
    struct mxc_weight wv = {.role = MXC_W_STACK, .n_dims = 3, .shape = {heads, VALUE, rank}};
    struct mxc_weight_view vv = {.n_dims = 2,
                                 .shape = {heads * (PLAIN + VALUE), rank},
                                 .stride = PLAIN + VALUE,
                                 .row0 = PLAIN,
                                 .row_step = 1};
    q = mxc_graph_heads_linear(g, q, mxc_graph_view(g, &wk, &vk, "kv_b.weight"), heads);
    int32_t latent = linear(g, h, mxc_graph_matrix(g, rank + ROTATED, MINI_HIDDEN, "kv_a.weight"),
                            MXC_NONE, MXC_NONE);
    latent = mxc_graph_rms_norm(g, latent, mxc_graph_vector(g, rank, "kv_norm"), 1e-6f, 0);
    struct mxc_rope rope = {.dims = ROTATED, .theta = 10000, .interleaved = true};
    struct mxc_kv store = {
        .kind = MXC_KV_LATENT, .n_heads = 1, .k_dim = rank + ROTATED, .v_dim = rank};
    struct mxc_attn_attr attr = {.n_heads = heads,
                                 .n_kv_heads = 1,
                                 .head_dim = rank + ROTATED,
                                 .v_dim = rank,
                                 .scale = 0.2f,
                                 .rope = mxc_graph_rope(g, &rope),
                                 .rope_offset = rank,
                                 .kv = mxc_graph_kv(g, &store)};
    int32_t y = mxc_graph_latent_attention(g, q, latent, &attr);
    y = mxc_graph_heads_linear(g, y, mxc_graph_view(g, &wv, &vv, "kv_b.weight"), heads);
    return linear(g, y, mxc_graph_matrix(g, MINI_HIDDEN, heads * VALUE, "o.weight"), MXC_NONE, x);
}

static const struct attention plain = {
    .n_heads = 4, .n_kv_heads = 2, .head_dim = 16, .rotated = 16};

static int32_t start(struct mxc_graph *g) {
    return mxc_graph_embed(g, mxc_graph_table(g, MINI_VOCAB, MINI_HIDDEN, "embed"), 1.5f);
}

static int32_t finish(struct mxc_graph *g, int32_t x) {
    return linear(g, mxc_graph_select_out(g, rms(g, x, "last_norm")),
                  mxc_graph_matrix(g, MINI_VOCAB, MINI_HIDDEN, "head.weight"), MXC_NONE, MXC_NONE);
}

static int32_t moe(struct mxc_graph *g, int32_t x, const struct mxc_moe_attr *a,
                   const int32_t weights[MXC_N_MOE_WEIGHTS]) {
    int32_t h = rms(g, x, "norm2");
    int32_t router =
        linear(g, h, mxc_graph_matrix(g, a->n_experts, MINI_HIDDEN, "router"), MXC_NONE, MXC_NONE);
    return mxc_graph_add(g, x, mxc_graph_moe(g, h, router, a, weights));
}

/* ---- models */

/* One tensor for each expert; softmax, shares as they are; a shared expert behind a gate. */
static int32_t softmax_model(struct mxc_graph *g) {
    enum { EXPERTS = 8, WIDTH = 64 };
    struct mxc_moe_attr a = {.n_experts = EXPERTS,
                             .top_k = 3,
                             .width = WIDTH,
                             .scale = 1,
                             .n_groups = 1,
                             .top_groups = 1};
    int32_t w[MXC_N_MOE_WEIGHTS] = {
        mxc_graph_stack(g, EXPERTS, WIDTH, MINI_HIDDEN, "experts.*.gate.weight"),
        mxc_graph_stack(g, EXPERTS, WIDTH, MINI_HIDDEN, "experts.*.up.weight"),
        mxc_graph_stack(g, EXPERTS, MINI_HIDDEN, WIDTH, "experts.*.down.weight"),
        MXC_NONE,
        MXC_NONE,
        MXC_NONE,
        MXC_NONE};
    int32_t x = attend(g, start(g), &plain), h = rms(g, x, "norm3");
    int32_t gate =
        linear(g, h, mxc_graph_matrix(g, 1, MINI_HIDDEN, "shared_gate"), MXC_NONE, MXC_NONE);
    int32_t both = linear(g, h, mxc_graph_matrix(g, 128, MINI_HIDDEN, "shared.both.weight"),
                          MXC_NONE, MXC_NONE);
    int32_t shared =
        linear(g, mxc_graph_glu(g, both, MXC_ACT_GELU_TANH),
               mxc_graph_matrix(g, MINI_HIDDEN, 64, "shared.down.weight"), MXC_NONE, MXC_NONE);
    x = mxc_graph_add(g, x, mxc_graph_gate(g, shared, gate));
    return finish(g, moe(g, x, &a, w));
}

/* All experts in one tensor; sigmoid, a bias for the choice, groups; widths that fill no strip. */
static int32_t groups_model(struct mxc_graph *g) {
    enum { EXPERTS = 16, WIDTH = 40 };
    struct mxc_moe_attr a = {.n_experts = EXPERTS,
                             .top_k = 4,
                             .width = WIDTH,
                             .score = MXC_MOE_SIGMOID,
                             .normalise = true,
                             .normalise_eps = 1e-20f,
                             .scale = 2.5f,
                             .n_groups = 4,
                             .top_groups = 2};
    int32_t w[MXC_N_MOE_WEIGHTS] = {mxc_graph_stack(g, EXPERTS, WIDTH, MINI_HIDDEN, "experts.gate"),
                                    mxc_graph_stack(g, EXPERTS, WIDTH, MINI_HIDDEN, "experts.up"),
                                    mxc_graph_stack(g, EXPERTS, MINI_HIDDEN, WIDTH, "experts.down"),
                                    MXC_NONE,
                                    MXC_NONE,
                                    MXC_NONE,
                                    mxc_graph_vector(g, EXPERTS, "choice_bias")};
    return finish(g, moe(g, attend_latent(g, start(g), 4, 32), &a, w));
}

/* A group's score is its best; many heads on one latent. */
static int32_t best_group_model(struct mxc_graph *g) {
    enum { EXPERTS = 6, WIDTH = 64 };
    struct mxc_moe_attr a = {.n_experts = EXPERTS,
                             .top_k = 2,
                             .width = WIDTH,
                             .scale = 1,
                             .n_groups = 3,
                             .top_groups = 1,
                             .group_best = true};
    int32_t w[MXC_N_MOE_WEIGHTS] = {
        mxc_graph_stack(g, EXPERTS, WIDTH, MINI_HIDDEN, "experts.*.gate.weight"),
        mxc_graph_stack(g, EXPERTS, WIDTH, MINI_HIDDEN, "experts.*.up.weight"),
        mxc_graph_stack(g, EXPERTS, MINI_HIDDEN, WIDTH, "experts.*.down.weight"),
        MXC_NONE,
        MXC_NONE,
        MXC_NONE,
        MXC_NONE};
    return finish(g, moe(g, attend_latent(g, start(g), 20, 64), &a, w));
}

/* gate and up are every other row of one tensor, with biases likewise; down is transposed. */
static int32_t clip_model(struct mxc_graph *g) {
    enum { EXPERTS = 4, WIDTH = 48 };
    struct mxc_moe_attr a = {.n_experts = EXPERTS,
                             .top_k = 2,
                             .width = WIDTH,
                             .normalise = true,
                             .scale = 1,
                             .n_groups = 1,
                             .top_groups = 1,
                             .act = MXC_ACT_SWIGLU_CLIP};
    int32_t w[MXC_N_MOE_WEIGHTS];
    for (int i = 0; i < 2; i++) {
        struct mxc_weight m = {
            .role = MXC_W_STACK, .n_dims = 3, .shape = {EXPERTS, WIDTH, MINI_HIDDEN}};
        struct mxc_weight_view v = {.n_dims = 3,
                                    .shape = {EXPERTS, 2 * WIDTH, MINI_HIDDEN},
                                    .stride = 2 * WIDTH,
                                    .row0 = i,
                                    .row_step = 2};
        struct mxc_weight b = {.role = MXC_W_VECTOR, .n_dims = 2, .shape = {EXPERTS, WIDTH}};
        struct mxc_weight_view vb = {.n_dims = 2,
                                     .shape = {EXPERTS, 2 * WIDTH},
                                     .stride = 2 * WIDTH,
                                     .row0 = i,
                                     .row_step = 2};
        w[MXC_MOE_GATE + i] = mxc_graph_view(g, &m, &v, "gate_up");
        w[MXC_MOE_GATE_BIAS + i] = mxc_graph_view(g, &b, &vb, "gate_up_bias");
    }
    struct mxc_weight m = {
        .role = MXC_W_STACK, .n_dims = 3, .shape = {EXPERTS, MINI_HIDDEN, WIDTH}};
    struct mxc_weight_view v = {.n_dims = 3,
                                .shape = {EXPERTS, WIDTH, MINI_HIDDEN},
                                .stride = WIDTH,
                                .col_step = 1,
                                .transposed = true};
    w[MXC_MOE_DOWN] = mxc_graph_view(g, &m, &v, "down");
    w[MXC_MOE_DOWN_BIAS] = mxc_graph_vectors(g, EXPERTS, MINI_HIDDEN, "down_bias.*");
    w[MXC_MOE_CHOICE] = MXC_NONE;
    struct attention attention = plain;
    attention.window = 9;
    return finish(g, moe(g, attend(g, start(g), &attention), &a, w));
}

/* Positions from a table, layer norms, one activation, q and k normed over all heads, a rotation in
 * the middle of a head, norms behind blocks, a soft cap on the logits. */
static int32_t whole_norm_model(struct mxc_graph *g) {
    enum { WIDTH = 112 };
    struct attention attention = {.n_heads = 4,
                                  .n_kv_heads = 2,
                                  .head_dim = 20,
                                  .rotated = 8,
                                  .rope_offset = 6,
                                  .norms = true,
                                  .kind = MXC_QK_RMS_WHOLE};
    int32_t x = mxc_graph_add_position(
        g, start(g), mxc_graph_table(g, MINI_POSITIONS + 2, MINI_HIDDEN, "places"), 2);
    x = attend(g, x, &attention);
    int32_t h = mxc_graph_layer_norm(g, x, mxc_graph_vector(g, MINI_HIDDEN, "norm2"),
                                     mxc_graph_vector(g, MINI_HIDDEN, "shift2"), 1e-5f);
    h = linear(g, h, mxc_graph_matrix(g, WIDTH, MINI_HIDDEN, "fc1.weight"),
               mxc_graph_vector(g, WIDTH, "fc1.bias"), MXC_NONE);
    h = linear(g, mxc_graph_act(g, h, MXC_ACT_GELU), mxc_graph_matrix(g, MINI_HIDDEN, WIDTH, "fc2"),
               MXC_NONE, MXC_NONE);
    h = mxc_graph_layer_norm(g, h, mxc_graph_vector(g, MINI_HIDDEN, "norm3"), MXC_NONE, 1e-5f);
    return mxc_graph_softcap(g, finish(g, mxc_graph_add(g, x, h)), 3);
}

/* A norm for each head; halves of one matrix that are no whole strips; a head with unit columns,
 * cut transposed out of a tensor. */
static int32_t unit_model(struct mxc_graph *g) {
    enum { WIDTH = 40 };
    struct attention attention = plain;
    attention.norms = true;
    attention.kind = MXC_QK_LAYER_HEADS;
    int32_t x = attend(g, start(g), &attention);
    int32_t both =
        linear(g, rms(g, x, "norm2"), mxc_graph_matrix(g, 2 * WIDTH, MINI_HIDDEN, "both"),
               mxc_graph_vector(g, 2 * WIDTH, "both_bias"), MXC_NONE);
    x = linear(g, mxc_graph_glu(g, both, MXC_ACT_RELU),
               mxc_graph_matrix(g, MINI_HIDDEN, WIDTH, "down"), MXC_NONE, x);
    struct mxc_weight w = {.role = MXC_W_MATRIX, .n_dims = 2, .shape = {MINI_VOCAB, MINI_HIDDEN}};
    struct mxc_weight_view v = {.n_dims = 2,
                                .shape = {MINI_HIDDEN + 3, 2 * MINI_VOCAB + 1},
                                .row0 = 3,
                                .col0 = 1,
                                .col_step = 2,
                                .transposed = true};
    int32_t head = mxc_graph_view(g, &w, &v, "head");
    x = mxc_graph_select_out(g, rms(g, x, "last_norm"));
    return linear(g, mxc_graph_unit_columns(g, x, head), head, MXC_NONE, MXC_NONE);
}

/* RMS per head with an offset; halves that are whole strips, with biases; a soft cap in the middle
 * of the model, an activation on its own, a norm of groups. */
static int32_t halves_model(struct mxc_graph *g) {
    enum { WIDTH = 96 };
    struct attention attention = plain;
    attention.norms = true;
    int32_t x = attend(g, start(g), &attention);
    int32_t both =
        linear(g, rms(g, x, "norm2"), mxc_graph_matrix(g, 2 * WIDTH, MINI_HIDDEN, "both.weight"),
               mxc_graph_vector(g, 2 * WIDTH, "both_bias"), MXC_NONE);
    x = linear(g, mxc_graph_glu(g, both, MXC_ACT_SILU),
               mxc_graph_matrix(g, MINI_HIDDEN, WIDTH, "down"), MXC_NONE, x);
    x = mxc_graph_add(g, x, mxc_graph_act(g, mxc_graph_softcap(g, x, 2), MXC_ACT_SILU));
    x = mxc_graph_group_norm(g, x, mxc_graph_vector(g, MINI_HIDDEN / 4, "group_norm"), 1e-5f, 4);
    return finish(g, x);
}

typedef int32_t model_fn(struct mxc_graph *g);

void mini_model(struct mini *m, enum mini_model model, enum mxc_storage storage) {
    static model_fn *const models[MINI_N_MODELS] = {
        [MINI_SOFTMAX] = softmax_model,       [MINI_GROUPS] = groups_model,
        [MINI_BEST_GROUP] = best_group_model, [MINI_CLIP] = clip_model,
        [MINI_WHOLE_NORM] = whole_norm_model, [MINI_UNIT] = unit_model,
        [MINI_HALVES] = halves_model};
    struct mxc_graph *g;
    assert_int_equal(mxc_graph_new("mini", &g, NULL), MXC_OK);
    int32_t logits = models[model](g);
    mini_open(m, g, logits, storage);
}
