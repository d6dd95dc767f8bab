/* Feeds of a step: the arrays that a program reads of it, made from the engine's plain arrays. A
 * part is the rows of one span (prefill), or rows of several spans, one each (decode). Rows behind
 * the part's last are filled so that they read zeros, write to the waste block, and see nothing.
 * In: a checked step. Out: numbers in the program's order. */
#include "backend/xla/plan.h"

#include "backend/check.h"
#include "backend/xla/pack.h"

#include <math.h>
#include <string.h>

struct filler {
    const struct mxc_plan *plan;
    const struct mxc_xla_part_of_step *part;
    const struct mxc_xla_buckets *buckets;
    const struct mxc_xla_feed *feed;
    const struct mxc_step *step;
};

/* Row i of the part in the step, and its span. */
static int32_t row_of(const struct filler *f, int32_t i) {
    return f->part->rows ? f->part->rows[i] : f->part->row0 + i;
}

static const struct mxc_span *span_of(const struct filler *f, int32_t i) {
    return &f->step->spans[f->part->rows ? f->part->spans[i] : f->part->spans[0]];
}

/* The row's number in its sequence. */
static int32_t token_of(const struct filler *f, int32_t i) {
    const struct mxc_span *span = span_of(f, i);
    return span->context + (row_of(f, i) - span->row0);
}

static void fill_embed(const struct filler *f, float *to) {
    const struct mxc_node *node = &f->plan->graph->nodes[f->feed->which];
    const struct mxc_tensor *table = f->plan->model->sources[node->weights[0]].views[0].tensor;
    size_t width = (size_t)f->feed->shape.dims[1];
    float scale = node->u.embed.scale;
    for (int32_t i = 0; i < f->part->n_rows; i++, to += width) {
        int32_t row = row_of(f, i);
        const float *spliced = mxc_step_splice(f->step, row);
        if (spliced) {
            memcpy(to, spliced, width * sizeof *to);
            continue;
        }
        mxc_tensor_row(table, f->step->tokens[row], to);
        for (size_t k = 0; scale != 1.0f && k < width; k++)
            to[k] *= scale;
    }
}

static void fill_level(const struct filler *f, float *to) {
    size_t width = (size_t)f->feed->shape.dims[1];
    for (int32_t i = 0; i < f->part->n_rows; i++, to += width) {
        const float *spliced = mxc_step_splice(f->step, row_of(f, i));
        if (spliced)
            memcpy(to, spliced + (size_t)(1 + f->feed->which) * width, width * sizeof *to);
    }
}

static void fill_angles(const struct filler *f, float *to) {
    const struct mxc_rope *rope = &f->plan->graph->ropes[f->feed->which];
    int half = rope->dims / 2;
    bool sine = f->feed->kind == MXC_XLA_FEED_SIN;
    uint8_t axes[MXC_MAX_ROPE_HALF];
    float inv_freq[MXC_MAX_ROPE_HALF], factor;
    const struct mxc_span *last = NULL;
    mxc_rope_axes(rope, axes);
    for (int32_t i = 0; i < f->part->n_rows; i++) {
        const struct mxc_span *span = span_of(f, i);
        if (!last || (span != last && mxc_rope_length_dependent(rope)))
            mxc_rope_frequencies(rope, span->rope_length, inv_freq, &factor);
        last = span;
        for (int k = 0; k < half; k++) {
            size_t axis = f->step->n_axes > 1 ? axes[k] : 0;
            int32_t position =
                f->step->positions[axis * (size_t)f->step->n_rows + (size_t)row_of(f, i)];
            double angle = (double)((float)position * inv_freq[k]);
            *to++ = (float)(sine ? sin(angle) : cos(angle)) * factor;
        }
    }
}

static void fill_table(const struct filler *f, int32_t *to) {
    int kind = f->feed->which;
    int32_t blocks = f->buckets->blocks[kind], n = f->part->rows ? f->part->n_rows : 1;
    for (int32_t s = 0; s < f->buckets->seqs; s++)
        for (int32_t b = 0; b < blocks; b++) {
            int32_t block = mxc_xla_zero_block(f->part->state, kind);
            if (s < n) {
                const struct mxc_span *span = span_of(f, s);
                int32_t tokens =
                    kind == MXC_KV_CROSS ? span->cross_tokens : span->context + span->n_rows;
                if (b < (tokens + MXC_KV_BLOCK - 1) / MXC_KV_BLOCK && span->blocks[kind][b] >= 0)
                    block = span->blocks[kind][b];
            }
            *to++ = block;
        }
}

static void fill_slot(const struct filler *f, int32_t *to) {
    int kind = f->feed->which;
    for (int32_t i = 0; i < f->buckets->rows; i++) {
        to[2 * i] = mxc_xla_waste_block(f->part->state, kind);
        to[2 * i + 1] = i % MXC_KV_BLOCK;
        if (i >= f->part->n_rows)
            continue;
        int32_t token = token_of(f, i);
        to[2 * i] = span_of(f, i)->blocks[kind][token / MXC_KV_BLOCK];
        to[2 * i + 1] = token % MXC_KV_BLOCK;
    }
}

static int32_t row_number(const struct filler *f, int32_t i) {
    const struct mxc_step *step = f->step;
    int32_t row = row_of(f, i);
    const struct mxc_node *node = &f->plan->graph->nodes[0];
    bool crossed =
        step->cross_range && step->cross_range[row] < step->cross_range[step->n_rows + row];
    switch (f->feed->kind) {
    case MXC_XLA_FEED_POSITION:
        node += f->feed->which;
        return (node->u.position.fixed ? 0 : step->positions[row]) + node->u.position.offset;
    case MXC_XLA_FEED_NEXT:
        return token_of(f, i) + 1;
    case MXC_XLA_FEED_END:
        return step->row_end ? step->row_end[row] : token_of(f, i) + 1;
    case MXC_XLA_FEED_CROSS_BEGIN:
        return crossed ? step->cross_range[row] : 0;
    case MXC_XLA_FEED_CROSS_END:
        return crossed ? step->cross_range[step->n_rows + row] : 0;
    case MXC_XLA_FEED_CROSS_TOKENS:
        return span_of(f, i)->cross_tokens;
    default:
        return 0;
    }
}

void mxc_xla_feed_fill(const struct mxc_plan *plan, const struct mxc_xla_part_of_step *part,
                       const struct mxc_xla_buckets *buckets, const struct mxc_xla_feed *feed,
                       void *to) {
    struct filler f = {plan, part, buckets, feed, part->step};
    int32_t *ints = to;
    memset(to, 0, feed->n * sizeof(float));
    switch (feed->kind) {
    case MXC_XLA_FEED_EMBED:
        fill_embed(&f, to);
        break;
    case MXC_XLA_FEED_LEVEL:
        fill_level(&f, to);
        break;
    case MXC_XLA_FEED_COS:
    case MXC_XLA_FEED_SIN:
        fill_angles(&f, to);
        break;
    case MXC_XLA_FEED_TABLE:
        fill_table(&f, ints);
        break;
    case MXC_XLA_FEED_SLOT:
        fill_slot(&f, ints);
        break;
    case MXC_XLA_FEED_OUT:
        for (int32_t i = 0; i < part->n_out; i++)
            ints[i] = part->out[i];
        break;
    default:
        for (int32_t i = 0; i < part->n_rows; i++)
            ints[i] = row_number(&f, i);
    }
}
