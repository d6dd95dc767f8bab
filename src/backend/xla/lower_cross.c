/* Lowering of what text models have because they see: CROSS (attention over what pictures left in
 * the CROSS store), ROW_MASK and ADD_LEVEL. In: values [T, width] (or [R, width] behind a
 * SELECT_OUT), the step's ranges and levels as feeds. Out: values of the same kind.
 * Spliced rows come with the feed of EMBED, three position axes with the feeds of cos and sin. */
#include "backend/xla/lower.h"

/* A feed of the step's rows ([T] or [T, width]) for the rows that `like` has: all, or those whose
 * output is wanted. */
static struct mxc_hlo_value of_rows(struct mxc_xla_lower *l, const struct mxc_node *node,
                                    struct mxc_hlo_value feed) {
    if (l->graph->values[node->out].rows.kind != MXC_ROWS_R)
        return feed;
    int64_t n = l->buckets->out;
    struct mxc_hlo_value rows = mxc_xla_feed(l, MXC_XLA_FEED_OUT, 0, MXC_DIMS(n));
    return mxc_hlo_gather(l->h, feed, rows, 1);
}

static struct mxc_hlo_value ints(struct mxc_xla_lower *l, enum mxc_xla_feed_kind kind) {
    int64_t rows = l->buckets->rows;
    return mxc_xla_feed(l, kind, 0, MXC_DIMS(rows));
}

/* A row whose range is empty sees all of its sequence's store; without a picture that is nothing,
 * and attention over nothing gives 0. */
enum mxc_code mxc_xla_lower_cross(struct mxc_xla_lower *l, const struct mxc_node *node,
                                  struct mxc_hlo_value *out, struct mxc_err *err) {
    struct mxc_hlo *h = l->h;
    const struct mxc_cross_attr *a = &node->u.cross;
    int64_t rows = l->buckets->rows, heads = a->n_heads, dim = a->head_dim;
    int32_t group = mxc_xla_kv_group(l, a->kv);
    struct mxc_hlo_value begin = ints(l, MXC_XLA_FEED_CROSS_BEGIN);
    struct mxc_hlo_value end = ints(l, MXC_XLA_FEED_CROSS_END);
    struct mxc_hlo_value empty = mxc_hlo_compare(h, "GE", begin, end);
    struct mxc_xla_attend attend = {.scale = a->scale};
    (void)err;
    attend.begin = mxc_hlo_select(h, empty, mxc_hlo_like(h, begin, 0), begin);
    attend.end = mxc_hlo_select(h, empty, ints(l, MXC_XLA_FEED_CROSS_TOKENS), end);
    attend.q = mxc_hlo_reshape(h, mxc_xla_in(l, node, 0), MXC_DIMS(rows, heads, dim));
    if (node->weights[0] != MXC_NONE)
        attend.q = mxc_xla_rms(h, attend.q, mxc_xla_vector(l, node->weights[0]), a->q_norm_eps, 0);
    attend.k = mxc_xla_kv_read(l, a->kv, l->kv[group].k);
    attend.v = mxc_xla_kv_read(l, a->kv, l->kv[group].v);
    *out = mxc_xla_attend(l, &attend);
    return MXC_OK;
}

enum mxc_code mxc_xla_lower_row_mask(struct mxc_xla_lower *l, const struct mxc_node *node,
                                     struct mxc_hlo_value *out, struct mxc_err *err) {
    struct mxc_hlo *h = l->h;
    struct mxc_hlo_value x = mxc_xla_in(l, node, 0);
    struct mxc_hlo_value begin = of_rows(l, node, ints(l, MXC_XLA_FEED_CROSS_BEGIN));
    struct mxc_hlo_value end = of_rows(l, node, ints(l, MXC_XLA_FEED_CROSS_END));
    struct mxc_hlo_value sees = mxc_hlo_compare(h, "LT", begin, end);
    (void)err;
    sees = mxc_hlo_broadcast(h, sees, MXC_AXES(0), x.shape.n_dims, x.shape.dims);
    *out = mxc_hlo_select(h, sees, x, mxc_hlo_like(h, x, 0));
    return MXC_OK;
}

enum mxc_code mxc_xla_lower_add_level(struct mxc_xla_lower *l, const struct mxc_node *node,
                                      struct mxc_hlo_value *out, struct mxc_err *err) {
    int64_t rows = l->buckets->rows, width = l->graph->values[node->out].width;
    struct mxc_hlo_value level =
        mxc_xla_feed(l, MXC_XLA_FEED_LEVEL, node->u.level.level, MXC_DIMS(rows, width));
    (void)err;
    *out = mxc_hlo_binary(l->h, "add", mxc_xla_in(l, node, 0), of_rows(l, node, level));
    return MXC_OK;
}
