/* Lowering of ATTEND, a tower's attention. Query rows go in tiles of MXC_XLA_TOWER_TILE; a tile
 * sees a window of keys that begins where the run says (EXTRA feed of the range: the first key of
 * every tile, then the number of real rows) and is as wide as the bucket says, and of those what
 * every row's range says. So there is never an array of rows x rows, and windows and packed
 * pictures cost what they see. In: qkv [rows, 3 heads dim]. Out: [rows, heads * dim]. V of rows
 * behind the real ones is taken as zero, since nothing times a number that is none would be none
 * too. */
#include "backend/xla/tower.h"

/* One ATTEND while it is written. */
struct job {
    struct mxc_xla_lower *l;
    struct mxc_hlo *h;
    const struct mxc_attend_attr *attr;
    int64_t rows, tile, keys, tiles, heads, dim;
    struct mxc_hlo_value q, k, v; /* [heads, rows, dim] */
    struct mxc_hlo_value begin, end, extra;
};

/* Part 0, 1 or 2 of qkv: [rows, heads, dim]. */
static struct mxc_hlo_value part(const struct job *job, struct mxc_hlo_value qkv, int64_t i) {
    int64_t width = job->heads * job->dim;
    struct mxc_hlo_value x = mxc_hlo_slice(job->h, qkv, 1, i * width, (i + 1) * width);
    return mxc_hlo_reshape(job->h, x, MXC_DIMS(job->rows, job->heads, job->dim));
}

/* Numbers [first, first + 1) of the extra feed, as a scalar. */
static struct mxc_hlo_value extra_at(const struct job *job, struct mxc_hlo_value at) {
    struct mxc_hlo_value x = mxc_hlo_dynamic_slice(job->h, job->extra, &at, (const int64_t[]){1});
    return mxc_hlo_reshape(job->h, x, 0, NULL);
}

static struct mxc_hlo_value real_rows_only(const struct job *job, struct mxc_hlo_value v) {
    struct mxc_hlo *h = job->h;
    struct mxc_hlo_value n = extra_at(job, mxc_hlo_scalar(h, MXC_XLA_S32, (double)job->tiles));
    struct mxc_hlo_value row = mxc_hlo_iota(h, MXC_XLA_S32, 0, v.shape.n_dims, v.shape.dims);
    struct mxc_hlo_value real = mxc_hlo_compare(h, "LT", row, mxc_hlo_spread(h, n, NULL, row));
    return mxc_hlo_select(h, real, v, mxc_hlo_like(h, v, 0));
}

static void make_parts(struct job *job, const struct mxc_node *node) {
    const struct mxc_attend_attr *a = job->attr;
    struct mxc_hlo *h = job->h;
    struct mxc_hlo_value qkv = mxc_xla_in(job->l, node, 0);
    struct mxc_hlo_value q = part(job, qkv, 0), k = part(job, qkv, 1), v = part(job, qkv, 2);
    if (a->rope != MXC_NONE) {
        const struct mxc_rope *rope = &job->l->graph->ropes[a->rope];
        int32_t number = (int32_t)(node - job->l->graph->nodes);
        int32_t which = mxc_xla_tower_angles_node(job->l->graph, number);
        int64_t half = rope->dims / 2;
        struct mxc_hlo_value cos =
            mxc_xla_feed(job->l, MXC_XLA_FEED_TOWER_COS, which, MXC_DIMS(job->rows, half));
        struct mxc_hlo_value sin =
            mxc_xla_feed(job->l, MXC_XLA_FEED_TOWER_SIN, which, MXC_DIMS(job->rows, half));
        q = mxc_xla_rotate(job->l, q, rope, 0, cos, sin);
        k = mxc_xla_rotate(job->l, k, rope, 0, cos, sin);
    }
    q = mxc_hlo_binary_x(h, "multiply", q, (double)a->scale);
    job->q = mxc_hlo_transpose(h, q, MXC_AXES(1, 0, 2));
    job->k = mxc_hlo_transpose(h, k, MXC_AXES(1, 0, 2));
    job->v = mxc_hlo_transpose(h, real_rows_only(job, v), MXC_AXES(1, 0, 2));
}

/* Which of a window's keys the tile's rows see: [tile, keys], true or false. */
static struct mxc_hlo_value visible(const struct job *job, struct mxc_hlo_value row0,
                                    struct mxc_hlo_value key0) {
    struct mxc_hlo *h = job->h;
    const int64_t size[1] = {job->tile};
    struct mxc_hlo_value key = mxc_hlo_iota(h, MXC_XLA_S32, 1, MXC_DIMS(job->tile, job->keys));
    key = mxc_hlo_binary(h, "add", key, mxc_hlo_spread(h, key0, NULL, key));
    struct mxc_hlo_value begin = mxc_hlo_dynamic_slice(h, job->begin, &row0, size);
    struct mxc_hlo_value end = mxc_hlo_dynamic_slice(h, job->end, &row0, size);
    begin = mxc_hlo_spread(h, begin, MXC_AXES(0), key);
    end = mxc_hlo_spread(h, end, MXC_AXES(0), key);
    return mxc_hlo_binary(h, "and", mxc_hlo_compare(h, "GE", key, begin),
                          mxc_hlo_compare(h, "LT", key, end));
}

/* softmax(q k^T) v of one tile: [heads, tile, dim]. Every row sees a key. */
static struct mxc_hlo_value one_tile(const struct job *job, struct mxc_hlo_value row0,
                                     struct mxc_hlo_value key0) {
    static const int head[] = {0};
    struct mxc_hlo *h = job->h;
    struct mxc_hlo_value zero = mxc_hlo_scalar(h, MXC_XLA_S32, 0);
    const struct mxc_hlo_value row_at[3] = {zero, row0, zero}, key_at[3] = {zero, key0, zero};
    const int64_t tile[3] = {job->heads, job->tile, job->dim};
    const int64_t window[3] = {job->heads, job->keys, job->dim};
    const struct mxc_hlo_dot scores = {1, head, head, 2, 2}, sums = {1, head, head, 2, 1};
    struct mxc_hlo_value q = mxc_hlo_dynamic_slice(h, job->q, row_at, tile);
    struct mxc_hlo_value k = mxc_hlo_dynamic_slice(h, job->k, key_at, window);
    struct mxc_hlo_value v = mxc_hlo_dynamic_slice(h, job->v, key_at, window);
    struct mxc_hlo_value s = mxc_xla_dot(job->l, q, k, &scores);
    struct mxc_hlo_value sees = visible(job, row0, key0);
    sees = mxc_hlo_broadcast(h, sees, MXC_AXES(1, 2), s.shape.n_dims, s.shape.dims);
    s = mxc_hlo_select(h, sees, s, mxc_hlo_like(h, s, -1e30));
    struct mxc_hlo_value most = mxc_hlo_reduce(h, "maximum", s, 1, MXC_AXES(2));
    s = mxc_hlo_binary(h, "subtract", s, mxc_hlo_spread(h, most, MXC_AXES(0, 1), s));
    s = mxc_hlo_unary(h, "exponential", s);
    struct mxc_hlo_value sum = mxc_hlo_reduce(h, "add", s, 1, MXC_AXES(2));
    struct mxc_hlo_value y = mxc_xla_dot(job->l, s, v, &sums);
    return mxc_hlo_binary(h, "divide", y, mxc_hlo_spread(h, sum, MXC_AXES(0, 1), y));
}

/* Tiles one after the other; the last one ends with the rows, and does some of them again. */
static struct mxc_hlo_value all_tiles(const struct job *job) {
    struct mxc_hlo *h = job->h;
    struct mxc_hlo_loop loop;
    struct mxc_hlo_value zero = mxc_hlo_scalar(h, MXC_XLA_S32, 0);
    struct mxc_hlo_value out =
        mxc_hlo_splat(h, MXC_XLA_F32, 0, MXC_DIMS(job->heads, job->rows, job->dim));
    mxc_hlo_loop_begin(h, &loop, mxc_hlo_scalar(h, MXC_XLA_S32, (double)job->tiles), &out, 1);
    struct mxc_hlo_value row0 = mxc_hlo_binary_x(h, "multiply", loop.index, (double)job->tile);
    row0 = mxc_hlo_binary(h, "minimum", row0,
                          mxc_hlo_scalar(h, MXC_XLA_S32, (double)(job->rows - job->tile)));
    const struct mxc_hlo_value at[3] = {zero, row0, zero};
    struct mxc_hlo_value y = one_tile(job, row0, extra_at(job, loop.index));
    out = mxc_hlo_dynamic_update(h, out, y, at);
    mxc_hlo_loop_end(h, &loop, &out);
    return out;
}

enum mxc_code mxc_xla_lower_attend(struct mxc_xla_lower *l, const struct mxc_node *node,
                                   struct mxc_hlo_value *out, struct mxc_err *err) {
    const struct mxc_attend_attr *a = &node->u.attend;
    struct job job = {.l = l, .h = l->h, .attr = a, .heads = a->n_heads, .dim = a->head_dim};
    (void)err;
    job.rows = mxc_xla_rows(l, &l->graph->values[node->out].rows);
    job.tile = mxc_xla_tower_tile((int32_t)job.rows);
    job.tiles = mxc_xla_tower_tiles((int32_t)job.rows);
    job.keys = l->buckets->keys[a->range];
    job.extra = mxc_xla_feed(l, MXC_XLA_FEED_EXTRA, a->range, MXC_DIMS(job.tiles + 1));
    struct mxc_hlo_value range =
        mxc_xla_feed(l, MXC_XLA_FEED_RANGE, a->range, MXC_DIMS(2, job.rows));
    job.begin = mxc_hlo_reshape(l->h, mxc_hlo_slice(l->h, range, 0, 0, 1), MXC_DIMS(job.rows));
    job.end = mxc_hlo_reshape(l->h, mxc_hlo_slice(l->h, range, 0, 1, 2), MXC_DIMS(job.rows));
    make_parts(&job, node);
    struct mxc_hlo_value y = all_tiles(&job);
    y = mxc_hlo_transpose(l->h, y, MXC_AXES(1, 0, 2));
    *out = mxc_hlo_reshape(l->h, y, MXC_DIMS(job.rows, job.heads * job.dim));
    return MXC_OK;
}
