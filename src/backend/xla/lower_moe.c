/* MOE: experts are chosen per row (the rule stands in graph/graph.h); (row, rank) entries are
 * sorted by expert and go through their experts in blocks of equal size, by a loop that runs as
 * often as there are blocks, so that only experts that some row uses are read. A block that is not
 * full computes rows of the next expert too; the next block writes over them. Results go back to
 * their rows and are summed in rank order. */
#include "backend/xla/model.h"

#define UNARY(op, a)     mxc_hlo_unary(h, op, a)
#define BINARY(op, a, b) mxc_hlo_binary(h, op, a, b)
#define WITH(op, a, x)   mxc_hlo_binary_x(h, op, a, x)

struct job {
    struct mxc_xla_lower *l;
    struct mxc_hlo *h;
    const struct mxc_node *node;
    const struct mxc_moe_attr *attr;
    int64_t rows, entries, experts, block; /* block: entries of one turn of the loop */
};

static struct mxc_hlo_value counted(struct mxc_hlo *h, struct mxc_hlo_value like, int axis) {
    return mxc_hlo_iota(h, MXC_XLA_S32, axis, like.shape.n_dims, like.shape.dims);
}

/* ---- choosing */

/* [rows, experts]: scores by which p is weighed. */
static struct mxc_hlo_value scores_of(const struct job *j, struct mxc_hlo_value logits) {
    struct mxc_hlo *h = j->h;
    if (j->attr->score == MXC_MOE_SIGMOID)
        return UNARY("logistic", logits);
    struct mxc_hlo_value top = mxc_hlo_reduce(h, "maximum", logits, 1, MXC_AXES(1));
    logits = BINARY("subtract", logits, mxc_hlo_spread(h, top, MXC_AXES(0), logits));
    logits = UNARY("exponential", logits);
    struct mxc_hlo_value sum = mxc_hlo_reduce(h, "add", logits, 1, MXC_AXES(1));
    return BINARY("divide", logits, mxc_hlo_spread(h, sum, MXC_AXES(0), logits));
}

/* Choices of all but the best groups become 0. */
static struct mxc_hlo_value cut_groups(const struct job *j, struct mxc_hlo_value choice) {
    struct mxc_hlo *h = j->h;
    int64_t groups = j->attr->n_groups, size = j->experts / groups, best = j->attr->top_groups;
    struct mxc_hlo_value parts = mxc_hlo_reshape(h, choice, MXC_DIMS(j->rows, groups, size)), score;
    if (j->attr->group_best) {
        score = mxc_hlo_reduce(h, "maximum", parts, 1, MXC_AXES(2));
    } else {
        struct mxc_hlo_value number = counted(h, parts, 2);
        mxc_hlo_sort(h, &parts, &number);
        score = mxc_hlo_reduce(h, "add", mxc_hlo_slice(h, parts, 2, 0, 2), 1, MXC_AXES(2));
    }
    struct mxc_hlo_value order = counted(h, score, 1);
    mxc_hlo_sort(h, &score, &order);
    order = mxc_hlo_slice(h, order, 1, 0, best);
    order = mxc_hlo_broadcast(h, order, MXC_AXES(0, 1), MXC_DIMS(j->rows, best, groups));
    struct mxc_hlo_value kept = mxc_hlo_compare(h, "EQ", order, counted(h, order, 2));
    kept = mxc_hlo_reduce(h, "or", kept, 1, MXC_AXES(1));
    kept = mxc_hlo_broadcast(h, kept, MXC_AXES(0, 1), MXC_DIMS(j->rows, groups, size));
    kept = mxc_hlo_reshape(h, kept, MXC_DIMS(j->rows, j->experts));
    return mxc_hlo_select(h, kept, choice, mxc_hlo_like(h, choice, 0));
}

/* expert, share: [rows, top_k], S32 and F32. */
static void choose(const struct job *j, struct mxc_hlo_value *expert, struct mxc_hlo_value *share) {
    struct mxc_hlo *h = j->h;
    const struct mxc_moe_attr *a = j->attr;
    struct mxc_hlo_value score = scores_of(j, mxc_xla_in(j->l, j->node, 1)), choice = score;
    if (j->node->weights[MXC_MOE_CHOICE] != MXC_NONE) {
        struct mxc_hlo_value bias = mxc_xla_vector(j->l, j->node->weights[MXC_MOE_CHOICE]);
        bias = mxc_hlo_reshape(h, bias, MXC_DIMS(j->experts));
        choice = BINARY("add", choice, mxc_hlo_spread(h, bias, MXC_AXES(1), choice));
    }
    choice = mxc_hlo_select(h, mxc_hlo_compare(h, "EQ", choice, choice), choice,
                            mxc_hlo_like(h, choice, -1e30));
    if (a->n_groups > 1)
        choice = cut_groups(j, choice);
    struct mxc_hlo_value order = counted(h, choice, 1);
    mxc_hlo_sort(h, &choice, &order);
    *expert = mxc_hlo_slice(h, order, 1, 0, a->top_k);
    struct mxc_hlo_value wide =
        mxc_hlo_broadcast(h, *expert, MXC_AXES(0, 1), MXC_DIMS(j->rows, a->top_k, j->experts));
    struct mxc_hlo_value own = mxc_hlo_compare(h, "EQ", wide, counted(h, wide, 2));
    struct mxc_hlo_value p = mxc_hlo_broadcast(h, score, MXC_AXES(0, 2), 3, wide.shape.dims);
    p = mxc_hlo_select(h, own, p, mxc_hlo_like(h, p, 0));
    p = mxc_hlo_reduce(h, "add", p, 1, MXC_AXES(2));
    if (a->normalise) {
        struct mxc_hlo_value sum = mxc_hlo_reduce(h, "add", p, 1, MXC_AXES(1));
        sum = WITH("add", sum, (double)a->normalise_eps);
        p = BINARY("divide", p, mxc_hlo_spread(h, sum, MXC_AXES(0), p));
    }
    *share = a->scale != 1.0f ? WITH("multiply", p, (double)a->scale) : p;
}

/* ---- the loop */

/* Sums of what stands before: y[e] = x[0] + ... + x[e - 1]. */
static struct mxc_hlo_value before(struct mxc_hlo *h, struct mxc_hlo_value x) {
    int64_t n = x.shape.dims[0];
    struct mxc_hlo_value wide = mxc_hlo_broadcast(h, x, MXC_AXES(1), MXC_DIMS(n, n));
    struct mxc_hlo_value less = mxc_hlo_compare(h, "LT", counted(h, wide, 1), counted(h, wide, 0));
    wide = mxc_hlo_select(h, less, wide, mxc_hlo_like(h, wide, 0));
    return mxc_hlo_reduce(h, "add", wide, 1, MXC_AXES(1));
}

static struct mxc_hlo_value pick(struct mxc_hlo *h, struct mxc_hlo_value x,
                                 struct mxc_hlo_value at) {
    return mxc_hlo_reshape(h, mxc_hlo_dynamic_slice(h, x, &at, (const int64_t[]){1}), 0, NULL);
}

static struct mxc_hlo_value expert_matrix(const struct job *j, struct mxc_hlo_value x, int slot,
                                          int bias_slot, struct mxc_hlo_value expert) {
    struct mxc_hlo_value y = mxc_xla_multiply_slice(j->l, x, j->node->weights[slot], expert);
    int32_t bias = j->node->weights[bias_slot];
    if (bias == MXC_NONE)
        return y;
    struct mxc_hlo_value b = mxc_xla_weight_part(j->l, bias, MXC_XLA_NUMBERS, &expert);
    return mxc_hlo_binary(j->h, "add", y, mxc_hlo_spread(j->h, b, MXC_AXES(1), y));
}

static struct mxc_hlo_value one_expert(const struct job *j, struct mxc_hlo_value x,
                                       struct mxc_hlo_value expert) {
    struct mxc_hlo_value gate = expert_matrix(j, x, MXC_MOE_GATE, MXC_MOE_GATE_BIAS, expert);
    struct mxc_hlo_value up = expert_matrix(j, x, MXC_MOE_UP, MXC_MOE_UP_BIAS, expert);
    struct mxc_hlo_value hidden = mxc_xla_glu(j->h, j->attr->act, gate, up);
    return expert_matrix(j, hidden, MXC_MOE_DOWN, MXC_MOE_DOWN_BIAS, expert);
}

/* Results of the entries in sorted order: [entries + block, width]. row: [entries] sorted. */
static struct mxc_hlo_value walk(const struct job *j, struct mxc_hlo_value x,
                                 struct mxc_hlo_value expert, struct mxc_hlo_value row) {
    struct mxc_hlo *h = j->h;
    int64_t width = x.shape.dims[1], block = j->block;
    struct mxc_hlo_value wide =
        mxc_hlo_broadcast(h, expert, MXC_AXES(0), MXC_DIMS(j->entries, j->experts));
    struct mxc_hlo_value counts = mxc_hlo_compare(h, "EQ", wide, counted(h, wide, 1));
    counts = mxc_hlo_convert(h, counts, MXC_XLA_S32);
    counts = mxc_hlo_reduce(h, "add", counts, 1, MXC_AXES(0));
    struct mxc_hlo_value first = before(h, counts);
    struct mxc_hlo_value blocks =
        WITH("divide", WITH("add", counts, (double)(block - 1)), (double)block);
    struct mxc_hlo_value block0 = before(h, blocks), block1 = BINARY("add", block0, blocks);
    struct mxc_hlo_value all = mxc_hlo_reduce(h, "add", blocks, 1, MXC_AXES(0));
    struct mxc_hlo_value zero = mxc_hlo_scalar(h, MXC_XLA_S32, 0);
    row = mxc_hlo_pad(h, row, 0, block, 0);
    struct mxc_hlo_value y = mxc_hlo_splat(h, MXC_XLA_F32, 0, MXC_DIMS(j->entries + block, width));
    struct mxc_hlo_loop loop;
    mxc_hlo_loop_begin(h, &loop, all, &y, 1);
    struct mxc_hlo_value number = mxc_hlo_spread(h, loop.index, NULL, block1);
    struct mxc_hlo_value done = mxc_hlo_compare(h, "LE", block1, number);
    done = mxc_hlo_convert(h, done, MXC_XLA_S32);
    struct mxc_hlo_value e = mxc_hlo_reduce(h, "add", done, 1, MXC_AXES(0));
    struct mxc_hlo_value at = BINARY("subtract", loop.index, pick(h, block0, e));
    at = BINARY("add", WITH("multiply", at, (double)block), pick(h, first, e));
    struct mxc_hlo_value rows = mxc_hlo_dynamic_slice(h, row, &at, &block);
    struct mxc_hlo_value made = one_expert(j, mxc_hlo_gather(h, x, rows, 1), e);
    y = mxc_hlo_dynamic_update(h, y, made, (struct mxc_hlo_value[]){at, zero});
    mxc_hlo_loop_end(h, &loop, &y);
    return y;
}

enum mxc_code mxc_xla_lower_moe(struct mxc_xla_lower *l, const struct mxc_node *node,
                                struct mxc_hlo_value *out, struct mxc_err *err) {
    enum { MOST_BLOCK = 64 };
    struct mxc_hlo *h = l->h;
    struct mxc_hlo_value x = mxc_xla_in(l, node, 0), expert, share;
    struct job j = {.l = l,
                    .h = h,
                    .node = node,
                    .attr = &node->u.moe,
                    .rows = x.shape.dims[0],
                    .experts = node->u.moe.n_experts,
                    .block = 1};
    int64_t k = node->u.moe.top_k, width = x.shape.dims[1];
    (void)err;
    j.entries = j.rows * k;
    while (j.block < MOST_BLOCK && j.block * j.experts < 2 * j.entries)
        j.block *= 2;
    choose(&j, &expert, &share);
    expert = mxc_hlo_reshape(h, expert, MXC_DIMS(j.entries));
    struct mxc_hlo_value order = counted(h, expert, 0), place = order, sorted = expert;
    mxc_hlo_sort(h, &sorted, &order);
    struct mxc_hlo_value y = walk(&j, x, expert, WITH("divide", order, (double)k));
    mxc_hlo_sort(h, &order, &place);
    y = mxc_hlo_reshape(h, mxc_hlo_gather(h, y, place, 1), MXC_DIMS(j.rows, k, width));
    y = BINARY("multiply", y, mxc_hlo_spread(h, share, MXC_AXES(0, 1), y));
    *out = mxc_hlo_reduce(h, "add", y, 1, MXC_AXES(1));
    return MXC_OK;
}
