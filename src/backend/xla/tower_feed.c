/* Feeds of towers: an input's rows and side inputs, padded up to buckets. In: arrays that
 * graph/tower.c has checked. Out: buckets, and the arrays as programs read them.
 * Invariant: rows behind the real ones add nothing to any real row: they are never gathered, never
 * looked up, and in nobody's range. */
#include "backend/xla/tower.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { DOUBLED = 4096, STEP = 2048, LEAST_KEYS = 64 };

/* ---- buckets */

static int32_t common_multiple(int32_t a, int32_t b) {
    int32_t x = a, y = b;
    while (y) {
        int32_t rest = x % y;
        x = y;
        y = rest;
    }
    return a / x * b;
}

static int32_t bucket_of(int32_t rows) {
    static const int32_t few[] = {16, 64, 256, 512, 1024, 2048, DOUBLED};
    for (size_t i = 0; i < sizeof few / sizeof *few; i++)
        if (rows <= few[i])
            return few[i];
    return (rows + STEP - 1) / STEP * STEP;
}

/* Rows that a tile sees: [*begin, *end). Rows behind the real ones see what the last real one does.
 */
static void tile_window(const int32_t *range, int32_t real, int32_t rows, int32_t tile,
                        int32_t *begin, int32_t *end) {
    int32_t n = mxc_xla_tower_tile(rows), row0 = tile * n;
    row0 = row0 < rows - n ? row0 : rows - n;
    *begin = rows;
    *end = 0;
    for (int32_t i = row0; i < row0 + n; i++) {
        int32_t r = i < real ? i : real - 1;
        *begin = range[r] < *begin ? range[r] : *begin;
        *end = range[real + r] > *end ? range[real + r] : *end;
    }
}

static int32_t window_bucket(const int32_t *range, int32_t real, int32_t rows) {
    int32_t most = 0, keys = LEAST_KEYS;
    for (int32_t t = 0; t < mxc_xla_tower_tiles(rows); t++) {
        int32_t begin, end;
        tile_window(range, real, rows, t, &begin, &end);
        most = end - begin > most ? end - begin : most;
    }
    while (keys < most)
        keys *= 2;
    return keys < rows ? keys : rows;
}

void mxc_xla_tower_buckets(const struct mxc_graph *g, const struct mxc_tower_input *input,
                           struct mxc_xla_buckets *b) {
    *b = (struct mxc_xla_buckets){.rows = 0};
    for (int32_t s = 0; s < g->n_slots; s++) {
        int32_t multiple = 1;
        for (int32_t v = 0; v < g->n_values; v++)
            if (g->values[v].rows.slot == s)
                multiple = common_multiple(multiple, g->values[v].rows.divisor);
        b->slots[s] = (bucket_of(input->n_rows[s]) + multiple - 1) / multiple * multiple;
    }
    for (int32_t i = 0; i < g->n_ranges; i++)
        b->keys[i] = window_bucket(input->range[i], mxc_tower_rows(input, g->ranges[i]),
                                   mxc_xla_tower_bucket(b, g->ranges[i]));
}

/* ---- feeds */

int32_t mxc_xla_tower_angles_node(const struct mxc_graph *g, int32_t node) {
    const struct mxc_attend_attr *a = &g->nodes[node].u.attend;
    for (int32_t i = 0; i < node; i++)
        if (g->nodes[i].op == MXC_OP_ATTEND && g->nodes[i].u.attend.rope == a->rope &&
            g->nodes[i].u.attend.positions == a->positions)
            return i;
    return node;
}

/* Angles are rounded to f32 before cos and sin, as the reference does. */
static void fill_angles(const struct mxc_graph *g, const struct mxc_tower_input *input,
                        const struct mxc_xla_feed *feed, float *to) {
    const struct mxc_attend_attr *a = &g->nodes[feed->which].u.attend;
    const struct mxc_rope *rope = &g->ropes[a->rope];
    size_t rows = (size_t)mxc_tower_rows(input, mxc_tower_index_rows(g, a->positions));
    size_t half = (size_t)rope->dims / 2;
    float inv_freq[MXC_MAX_ROPE_HALF], factor;
    uint8_t axis[MXC_MAX_ROPE_HALF];
    mxc_rope_axes(rope, axis);
    mxc_rope_frequencies(rope, 0, inv_freq, &factor);
    memset(to, 0, feed->n * sizeof *to);
    for (size_t row = 0; row < rows; row++)
        for (size_t i = 0; i < half; i++) {
            int32_t position = input->index[a->positions][axis[i] * rows + row];
            double angle = (double)((float)position * inv_freq[i]);
            to[row * half + i] =
                (float)(feed->kind == MXC_XLA_FEED_TOWER_COS ? cos(angle) : sin(angle)) * factor;
        }
}

static void fill_range(const int32_t *range, int32_t real, int32_t rows, int32_t *to) {
    for (int32_t side = 0; side < 2; side++)
        for (int32_t r = 0; r < rows; r++)
            *to++ = range[side * real + (r < real ? r : real - 1)];
}

/* First keys of tiles, then the number of real rows. */
static void fill_windows(const int32_t *range, int32_t real, int32_t rows, int32_t keys,
                         int32_t *to) {
    int32_t tiles = mxc_xla_tower_tiles(rows);
    for (int32_t t = 0; t < tiles; t++) {
        int32_t begin, end;
        tile_window(range, real, rows, t, &begin, &end);
        to[t] = begin < rows - keys ? begin : rows - keys;
    }
    to[tiles] = real;
}

/* [terms][real] to [terms][rows] */
static void fill_terms(const void *from, size_t real, size_t rows, size_t terms, uint8_t *to) {
    for (size_t t = 0; t < terms; t++)
        memcpy(to + t * rows * 4, (const uint8_t *)from + t * real * 4, real * 4);
}

void mxc_xla_tower_fill(const struct mxc_graph *g, const struct mxc_tower_input *input,
                        const struct mxc_xla_buckets *b, const struct mxc_xla_feed *feed,
                        void *to) {
    int32_t i = feed->which;
    switch (feed->kind) {
    case MXC_XLA_FEED_INPUT: {
        size_t width = (size_t)g->values[g->input].width, n = (size_t)input->n_rows[0] * width;
        memset(to, 0, feed->n * sizeof(float));
        memcpy(to, input->rows, n * sizeof(float));
        break;
    }
    case MXC_XLA_FEED_INDEX:
    case MXC_XLA_FEED_FACTOR: {
        struct mxc_extent extent = mxc_tower_index_rows(g, i);
        size_t real = (size_t)mxc_tower_rows(input, extent);
        size_t rows = (size_t)mxc_xla_tower_bucket(b, extent), terms = (size_t)g->indices[i].terms;
        bool index = feed->kind == MXC_XLA_FEED_INDEX;
        memset(to, index ? 0xff : 0, feed->n * 4); /* -1 in every entry */
        fill_terms(index ? (const void *)input->index[i] : input->factor[i], real, rows, terms, to);
        break;
    }
    case MXC_XLA_FEED_RANGE:
        fill_range(input->range[i], mxc_tower_rows(input, g->ranges[i]),
                   mxc_xla_tower_bucket(b, g->ranges[i]), to);
        break;
    case MXC_XLA_FEED_EXTRA:
        fill_windows(input->range[i], mxc_tower_rows(input, g->ranges[i]),
                     mxc_xla_tower_bucket(b, g->ranges[i]), b->keys[i], to);
        break;
    case MXC_XLA_FEED_TOWER_COS:
    case MXC_XLA_FEED_TOWER_SIN:
        fill_angles(g, input, feed, to);
        break;
    default:
        assert(false); /* a decoder's feed */
    }
}
