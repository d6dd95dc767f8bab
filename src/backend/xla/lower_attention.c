/* ATTENTION, and attending in general. K rows are normed and rotated and written with their V rows
 * into the donated KV arrays; then the blocks of the sequences' tables are gathered and every query
 * row attends to its range of keys. Over a latent, K is the latent and V its first numbers.
 * In a prefill program all rows are of one sequence (K and V have one set of blocks); in a decode
 * program every row has blocks of its own. Keys outside of a row's range weigh nothing, and values
 * that no row may see are made zero first: memory of freed blocks may hold anything. */
#include "backend/xla/model.h"

#define UNARY(op, a)     mxc_hlo_unary(h, op, a)
#define BINARY(op, a, b) mxc_hlo_binary(h, op, a, b)
#define WITH(op, a, x)   mxc_hlo_binary_x(h, op, a, x)

/* Scores of one tile of query rows hold at most so many numbers. */
enum { MOST_SCORES = 1 << 24 };
static const double nothing = -1e30;

struct mxc_hlo_value mxc_xla_rotate(struct mxc_xla_lower *l, struct mxc_hlo_value x,
                                    const struct mxc_rope *rope, int32_t offset,
                                    struct mxc_hlo_value cos, struct mxc_hlo_value sin) {
    struct mxc_hlo *h = l->h;
    int64_t rows = x.shape.dims[0], heads = x.shape.dims[1], dim = x.shape.dims[2];
    int64_t half = rope->dims / 2, end = offset + rope->dims;
    struct mxc_hlo_value parts[3], a, b;
    int n = 0;
    if (offset)
        parts[n++] = mxc_hlo_slice(h, x, 2, 0, offset);
    struct mxc_hlo_value turned = mxc_hlo_slice(h, x, 2, offset, end);
    if (rope->interleaved) {
        turned = mxc_hlo_reshape(h, turned, MXC_DIMS(rows, heads, half, 2));
        a = mxc_hlo_reshape(h, mxc_hlo_slice(h, turned, 3, 0, 1), MXC_DIMS(rows, heads, half));
        b = mxc_hlo_reshape(h, mxc_hlo_slice(h, turned, 3, 1, 2), MXC_DIMS(rows, heads, half));
    } else {
        a = mxc_hlo_slice(h, turned, 2, 0, half);
        b = mxc_hlo_slice(h, turned, 2, half, 2 * half);
    }
    cos = mxc_hlo_spread(h, cos, MXC_AXES(0, 2), a);
    sin = mxc_hlo_spread(h, sin, MXC_AXES(0, 2), a);
    struct mxc_hlo_value y[2] = {
        BINARY("subtract", BINARY("multiply", a, cos), BINARY("multiply", b, sin)),
        BINARY("add", BINARY("multiply", b, cos), BINARY("multiply", a, sin))};
    if (rope->interleaved) {
        for (int i = 0; i < 2; i++)
            y[i] = mxc_hlo_reshape(h, y[i], MXC_DIMS(rows, heads, half, 1));
        y[0] = mxc_hlo_concat(h, y, 2, 3);
        parts[n++] = mxc_hlo_reshape(h, y[0], MXC_DIMS(rows, heads, 2 * half));
    } else {
        parts[n++] = mxc_hlo_concat(h, y, 2, 2);
    }
    if (end < dim)
        parts[n++] = mxc_hlo_slice(h, x, 2, end, dim);
    return mxc_hlo_concat(h, parts, n, 2);
}

/* ---- attending */

/* [rows, N] or [S, N]: number < bound[row]. */
static struct mxc_hlo_value below(struct mxc_hlo *h, struct mxc_hlo_value bound, int64_t n) {
    struct mxc_hlo_value number = mxc_hlo_iota(h, MXC_XLA_S32, 1, MXC_DIMS(bound.shape.dims[0], n));
    return mxc_hlo_compare(h, "LT", number, mxc_hlo_spread(h, bound, MXC_AXES(0), number));
}

static struct mxc_hlo_value in_range(struct mxc_hlo *h, struct mxc_hlo_value begin,
                                     struct mxc_hlo_value end, int64_t n) {
    struct mxc_hlo_value low = below(h, begin, n);
    return mxc_hlo_binary(h, "and", mxc_hlo_unary(h, "not", low), below(h, end, n));
}

/* scores: F32, keys along the last axis; mask has its shape; sink: one number for each row of
 * scores, or none. What keys weigh, summing to less than one where there is a sink. */
static struct mxc_hlo_value weigh(struct mxc_hlo *h, struct mxc_hlo_value scores,
                                  struct mxc_hlo_value mask, struct mxc_hlo_value sink) {
    int last = scores.shape.n_dims - 1;
    const int *axes = MXC_AXES(0, 1, 2, 3, 4);
    struct mxc_hlo_value x = mxc_hlo_select(h, mask, scores, mxc_hlo_like(h, scores, nothing));
    struct mxc_hlo_value top = mxc_hlo_reduce(h, "maximum", x, 1, MXC_AXES(last));
    if (!mxc_hlo_none(sink))
        top = BINARY("maximum", top, sink);
    x = UNARY("exponential", BINARY("subtract", x, mxc_hlo_spread(h, top, axes, x)));
    x = mxc_hlo_select(h, mask, x, mxc_hlo_like(h, x, 0));
    struct mxc_hlo_value sum = mxc_hlo_reduce(h, "add", x, 1, MXC_AXES(last));
    if (!mxc_hlo_none(sink))
        sum = BINARY("add", sum, UNARY("exponential", BINARY("subtract", sink, top)));
    sum = WITH("maximum", sum, 1e-30); /* a row that sees nothing */
    return BINARY("divide", x, mxc_hlo_spread(h, sum, axes, x));
}

static struct mxc_hlo_value scale_scores(struct mxc_hlo *h, const struct mxc_xla_attend *a,
                                         struct mxc_hlo_value scores) {
    double cap = (double)a->softcap;
    scores = WITH("multiply", scores, (double)a->scale);
    if (cap > 0)
        scores = WITH("multiply", UNARY("tanh", WITH("divide", scores, cap)), cap);
    return scores;
}

/* q [T, kv heads, group, dim], k and v [N, kv heads, dim]: [T, kv heads * group * v_dim]. */
static struct mxc_hlo_value attend_one(struct mxc_xla_lower *l, const struct mxc_xla_attend *a,
                                       struct mxc_hlo_value q, struct mxc_hlo_value k,
                                       struct mxc_hlo_value v, struct mxc_hlo_value mask) {
    struct mxc_hlo *h = l->h;
    int64_t rows = q.shape.dims[0], heads = q.shape.dims[1], group = q.shape.dims[2];
    const struct mxc_hlo_dot by_k = {
        .n_batch = 1, .a_batch = MXC_AXES(1), .b_batch = MXC_AXES(1), .a_axis = 3, .b_axis = 2};
    struct mxc_hlo_value scores = mxc_xla_dot(l, q, k, &by_k), sink = {0};
    scores = scale_scores(h, a, scores); /* [kv heads, T, group, N] */
    if (!mxc_hlo_none(a->sinks)) {
        sink = mxc_hlo_reshape(h, a->sinks, MXC_DIMS(heads, group));
        sink = mxc_hlo_broadcast(h, sink, MXC_AXES(0, 2), MXC_DIMS(heads, rows, group));
    }
    mask = mxc_hlo_broadcast(h, mask, MXC_AXES(1, 3), scores.shape.n_dims, scores.shape.dims);
    scores = weigh(h, scores, mask, sink);
    const struct mxc_hlo_dot by_v = {
        .n_batch = 1, .a_batch = MXC_AXES(0), .b_batch = MXC_AXES(1), .a_axis = 3, .b_axis = 0};
    struct mxc_hlo_value y = mxc_xla_dot(l, scores, v, &by_v); /* [kv heads, T, group, v_dim] */
    y = mxc_hlo_transpose(h, y, MXC_AXES(1, 0, 2, 3));
    return mxc_hlo_reshape(h, y, MXC_DIMS(rows, heads * group * y.shape.dims[3]));
}

/* Query rows in tiles: a loop over slices of q and of the ranges. */
static struct mxc_hlo_value attend_tiles(struct mxc_xla_lower *l, const struct mxc_xla_attend *a,
                                         struct mxc_hlo_value q, struct mxc_hlo_value k,
                                         struct mxc_hlo_value v, int64_t tile) {
    struct mxc_hlo *h = l->h;
    int64_t rows = q.shape.dims[0], heads = q.shape.dims[1], group = q.shape.dims[2];
    int64_t width = heads * group * v.shape.dims[2], tiles = rows / tile;
    struct mxc_hlo_value out = mxc_hlo_splat(h, MXC_XLA_F32, 0, MXC_DIMS(rows, width));
    struct mxc_hlo_value zero = mxc_hlo_scalar(h, MXC_XLA_S32, 0);
    struct mxc_hlo_loop loop;
    mxc_hlo_loop_begin(h, &loop, mxc_hlo_scalar(h, MXC_XLA_S32, (double)tiles), &out, 1);
    struct mxc_hlo_value row = mxc_hlo_binary_x(h, "multiply", loop.index, (double)tile);
    struct mxc_hlo_value part =
        mxc_hlo_dynamic_slice(h, q, (struct mxc_hlo_value[]){row, zero, zero, zero},
                              (const int64_t[]){tile, heads, group, q.shape.dims[3]});
    struct mxc_hlo_value begin = mxc_hlo_dynamic_slice(h, a->begin, &row, &tile);
    struct mxc_hlo_value end = mxc_hlo_dynamic_slice(h, a->end, &row, &tile);
    struct mxc_hlo_value y = attend_one(l, a, part, k, v, in_range(h, begin, end, k.shape.dims[0]));
    out = mxc_hlo_dynamic_update(h, out, y, (struct mxc_hlo_value[]){row, zero});
    mxc_hlo_loop_end(h, &loop, &out);
    return out;
}

/* Largest power of two of rows whose scores are few enough. */
static int64_t tile_rows(int64_t rows, int64_t per_row) {
    int64_t tile = rows;
    while (tile > 16 && tile % 2 == 0 && tile * per_row > MOST_SCORES)
        tile /= 2;
    return tile;
}

/* Every row has keys of its own. */
static struct mxc_hlo_value attend_rows(struct mxc_xla_lower *l, const struct mxc_xla_attend *a,
                                        struct mxc_hlo_value q, struct mxc_hlo_value v) {
    struct mxc_hlo *h = l->h;
    int64_t rows = q.shape.dims[0], heads = q.shape.dims[1], group = q.shape.dims[2];
    const struct mxc_hlo_dot by_k = {.n_batch = 2,
                                     .a_batch = MXC_AXES(0, 1),
                                     .b_batch = MXC_AXES(0, 2),
                                     .a_axis = 3,
                                     .b_axis = 3};
    struct mxc_hlo_value scores = scale_scores(h, a, mxc_xla_dot(l, q, a->k, &by_k)), sink = {0};
    struct mxc_hlo_value mask = in_range(h, a->begin, a->end, a->k.shape.dims[1]);
    if (!mxc_hlo_none(a->sinks)) {
        sink = mxc_hlo_reshape(h, a->sinks, MXC_DIMS(heads, group));
        sink = mxc_hlo_broadcast(h, sink, MXC_AXES(1, 2), MXC_DIMS(rows, heads, group));
    }
    mask = mxc_hlo_broadcast(h, mask, MXC_AXES(0, 3), scores.shape.n_dims, scores.shape.dims);
    scores = weigh(h, scores, mask, sink); /* [S, kv heads, group, N] */
    const struct mxc_hlo_dot by_v = {.n_batch = 2,
                                     .a_batch = MXC_AXES(0, 1),
                                     .b_batch = MXC_AXES(0, 2),
                                     .a_axis = 3,
                                     .b_axis = 1};
    struct mxc_hlo_value y = mxc_xla_dot(l, scores, v, &by_v);
    return mxc_hlo_reshape(h, y, MXC_DIMS(rows, heads * group * y.shape.dims[3]));
}

struct mxc_hlo_value mxc_xla_attend(struct mxc_xla_lower *l, const struct mxc_xla_attend *a) {
    struct mxc_hlo *h = l->h;
    int64_t rows = a->q.shape.dims[0], all = a->q.shape.dims[1], dim = a->q.shape.dims[2];
    int64_t seqs = a->k.shape.dims[0], n = a->k.shape.dims[1], heads = a->k.shape.dims[2];
    struct mxc_hlo_value q = mxc_hlo_reshape(h, a->q, MXC_DIMS(rows, heads, all / heads, dim));
    struct mxc_hlo_value last = a->end;
    if (seqs == 1) {
        last = mxc_hlo_reduce(h, "maximum", a->end, 1, MXC_AXES(0));
        last = mxc_hlo_reshape(h, last, MXC_DIMS(1));
    }
    struct mxc_hlo_value seen = mxc_hlo_spread(h, below(h, last, n), MXC_AXES(0, 1), a->v);
    struct mxc_hlo_value v = mxc_hlo_select(h, seen, a->v, mxc_hlo_like(h, a->v, 0));
    if (seqs != 1 || rows == 1)
        return attend_rows(l, a, q, v);
    struct mxc_hlo_value k = mxc_hlo_reshape(h, a->k, MXC_DIMS(n, heads, dim));
    v = mxc_hlo_reshape(h, v, MXC_DIMS(n, heads, v.shape.dims[3]));
    int64_t tile = tile_rows(rows, all * n);
    if (tile < rows)
        return attend_tiles(l, a, q, k, v, tile);
    return attend_one(l, a, q, k, v, in_range(h, a->begin, a->end, n));
}

/* ---- the op */

struct mxc_hlo_value mxc_xla_kv_read(struct mxc_xla_lower *l, int32_t kv, struct mxc_hlo_value of) {
    struct mxc_hlo *h = l->h;
    int32_t kind = (int32_t)l->graph->kvs[kv].kind;
    int64_t seqs = l->buckets->seqs, blocks = l->buckets->blocks[kind];
    struct mxc_hlo_value table = mxc_xla_feed(l, MXC_XLA_FEED_TABLE, kind, MXC_DIMS(seqs, blocks));
    table = mxc_hlo_reshape(h, table, MXC_DIMS(seqs * blocks, 1));
    struct mxc_hlo_value index[2] = {mxc_hlo_spread(h, mxc_xla_kv_layer(l, kv), MXC_AXES(0), table),
                                     table};
    struct mxc_hlo_value x = mxc_hlo_gather(h, of, mxc_hlo_concat(h, index, 2, 1), 2);
    return mxc_hlo_reshape(
        h, x, MXC_DIMS(seqs, blocks * MXC_KV_BLOCK, of.shape.dims[3], of.shape.dims[4]));
}

/* x [T, heads, dim] into the places that the step says. */
static struct mxc_hlo_value append(struct mxc_xla_lower *l, int32_t kv, struct mxc_hlo_value to,
                                   struct mxc_hlo_value x) {
    struct mxc_hlo *h = l->h;
    int64_t rows = x.shape.dims[0];
    struct mxc_hlo_value slot =
        mxc_xla_feed(l, MXC_XLA_FEED_SLOT, (int32_t)l->graph->kvs[kv].kind, MXC_DIMS(rows, 2));
    struct mxc_hlo_value layer = mxc_xla_kv_layer(l, kv);
    if (rows > 1) {
        struct mxc_hlo_value index[2] = {
            mxc_hlo_broadcast(h, layer, MXC_AXES(0), MXC_DIMS(rows, 1)), slot};
        return mxc_hlo_scatter(h, to, mxc_hlo_concat(h, index, 2, 1), x);
    }
    struct mxc_hlo_value zero = mxc_hlo_scalar(h, MXC_XLA_S32, 0);
    struct mxc_hlo_value block = mxc_hlo_reshape(h, mxc_hlo_slice(h, slot, 1, 0, 1), 0, NULL);
    struct mxc_hlo_value place = mxc_hlo_reshape(h, mxc_hlo_slice(h, slot, 1, 1, 2), 0, NULL);
    x = mxc_hlo_reshape(h, x, MXC_DIMS(1, 1, 1, x.shape.dims[1], x.shape.dims[2]));
    return mxc_hlo_dynamic_update(h, to, x,
                                  (struct mxc_hlo_value[]){layer, block, place, zero, zero});
}

/* Norm of q or k: x [T, heads, dim]. */
static struct mxc_hlo_value norm_heads(struct mxc_xla_lower *l, const struct mxc_attn_attr *a,
                                       int32_t weight, struct mxc_hlo_value x) {
    struct mxc_hlo *h = l->h;
    if (weight == MXC_NONE)
        return x;
    int64_t rows = x.shape.dims[0], heads = x.shape.dims[1], dim = x.shape.dims[2];
    struct mxc_hlo_value w = mxc_xla_vector(l, weight), none = {0}, whole, mean;
    switch (a->qk_norm) {
    case MXC_QK_RMS_HEAD:
        return mxc_xla_rms(h, x, w, a->qk_norm_eps, a->qk_norm_offset);
    case MXC_QK_RMS_WHOLE:
        whole = mxc_hlo_reshape(h, x, MXC_DIMS(rows, heads * dim));
        whole = mxc_xla_rms(h, whole, w, a->qk_norm_eps, a->qk_norm_offset);
        return mxc_hlo_reshape(h, whole, MXC_DIMS(rows, heads, dim));
    default: /* LAYER_HEADS */
        mean = mxc_hlo_reduce(h, "add", x, 1, MXC_AXES(2));
        mean = WITH("divide", mean, (double)dim);
        x = BINARY("subtract", x, mxc_hlo_spread(h, mean, MXC_AXES(0, 1), x));
        x = mxc_xla_rms(h, x, none, a->qk_norm_eps, 0);
        w = mxc_hlo_reshape(h, w, MXC_DIMS(heads, dim));
        return BINARY("multiply", x, mxc_hlo_spread(h, w, MXC_AXES(1, 2), x));
    }
}

static struct mxc_hlo_value turn(struct mxc_xla_lower *l, const struct mxc_attn_attr *a,
                                 struct mxc_hlo_value x) {
    if (a->rope == MXC_NONE)
        return x;
    const struct mxc_rope *rope = &l->graph->ropes[a->rope];
    int64_t rows = x.shape.dims[0], half = rope->dims / 2;
    return mxc_xla_rotate(l, x, rope, a->rope_offset,
                          mxc_xla_feed(l, MXC_XLA_FEED_COS, a->rope, MXC_DIMS(rows, half)),
                          mxc_xla_feed(l, MXC_XLA_FEED_SIN, a->rope, MXC_DIMS(rows, half)));
}

enum mxc_code mxc_xla_lower_attention(struct mxc_xla_lower *l, const struct mxc_node *node,
                                      struct mxc_hlo_value *out, struct mxc_err *err) {
    struct mxc_hlo *h = l->h;
    const struct mxc_attn_attr *a = &node->u.attn;
    struct mxc_hlo_value x = mxc_xla_in(l, node, 0), k, v = {0};
    int64_t rows = x.shape.dims[0], dim = a->head_dim;
    int64_t q_width = a->n_heads * dim, kv_width = a->n_kv_heads * dim;
    struct mxc_xla_kv_value *store = &l->kv[mxc_xla_kv_group(l, a->kv)];
    (void)err;
    struct mxc_hlo_value q =
        mxc_hlo_reshape(h, mxc_hlo_slice(h, x, 1, 0, q_width), MXC_DIMS(rows, a->n_heads, dim));
    if (node->n_in > 1) {
        k = mxc_hlo_reshape(h, mxc_xla_in(l, node, 1), MXC_DIMS(rows, 1, dim));
    } else {
        k = mxc_hlo_reshape(h, mxc_hlo_slice(h, x, 1, q_width, q_width + kv_width),
                            MXC_DIMS(rows, a->n_kv_heads, dim));
        v = mxc_hlo_reshape(h, mxc_hlo_slice(h, x, 1, q_width + kv_width, q_width + 2 * kv_width),
                            MXC_DIMS(rows, a->n_kv_heads, dim));
    }
    q = turn(l, a, norm_heads(l, a, node->weights[0], q));
    k = turn(l, a, norm_heads(l, a, node->weights[1], k));
    store->k = append(l, a->kv, store->k, k);
    if (node->n_in == 1)
        store->v = append(l, a->kv, store->v, v);
    struct mxc_xla_attend attend = {.q = q, .scale = a->scale, .softcap = a->softcap};
    attend.k = mxc_xla_kv_read(l, a->kv, store->k);
    attend.v = node->n_in == 1 ? mxc_xla_kv_read(l, a->kv, store->v)
                               : mxc_hlo_slice(h, attend.k, 3, 0, a->v_dim);
    attend.end = mxc_xla_feed(l, MXC_XLA_FEED_END, 0, MXC_DIMS(rows));
    attend.begin = mxc_hlo_like(h, attend.end, 0);
    if (a->window) {
        struct mxc_hlo_value next = mxc_xla_feed(l, MXC_XLA_FEED_NEXT, 0, MXC_DIMS(rows));
        attend.begin = WITH("maximum", WITH("subtract", next, a->window), 0);
    }
    if (node->weights[2] != MXC_NONE)
        attend.sinks = mxc_xla_vector(l, node->weights[2]);
    *out = mxc_xla_attend(l, &attend);
    return MXC_OK;
}
