/* Runner for tests, see runner.h. */
#include "backend/runner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void need(enum mxc_code code, const struct mxc_err *err) {
    if (code)
        print_message("%s\n", err->message);
    assert_int_equal(code, MXC_OK);
}

void runner_open(struct runner *r, const struct mxc_graph *graph, const struct mxc_weights *weights,
                 const struct runner_options *options) {
    struct mxc_err err;
    *r = (struct runner){.graph = graph,
                         .n_blocks = options->n_blocks,
                         .stride = options->stride ? options->stride : 1};
    need(mxc_backend_find("cpu", &r->ops, &err), &err);
    need(r->ops->open(&(struct mxc_backend_options){.n_threads = options->threads}, &r->backend,
                      &err),
         &err);
    struct mxc_plan_options plan = {
        .precision = options->precision,
        .max_rows = options->max_rows,
        .max_out = options->max_rows,
        .max_spans = options->max_rows < RUNNER_MAX_SEQS ? options->max_rows : RUNNER_MAX_SEQS};
    need(r->ops->compile(r->backend, graph, weights, &plan, &r->plan, &err), &err);
    int32_t n_blocks[MXC_N_KV_KINDS];
    for (int k = 0; k < MXC_N_KV_KINDS; k++)
        n_blocks[k] = options->n_blocks;
    need(r->ops->state_new(r->plan, n_blocks, &r->state, &err), &err);
}

void runner_close(struct runner *r) {
    r->ops->state_free(r->state);
    r->ops->plan_free(r->plan);
    r->ops->close(r->backend);
}

void sequence_open(struct runner *r, struct sequence *s, int32_t n_tokens) {
    s->n_blocks = (n_tokens + MXC_KV_BLOCK - 1) / MXC_KV_BLOCK;
    s->context = 0;
    s->rope_length = n_tokens;
    s->blocks = calloc((size_t)s->n_blocks, sizeof *s->blocks);
    assert_non_null(s->blocks);
    for (int32_t i = 0; i < s->n_blocks; i++) {
        s->blocks[i] = r->next;
        r->next = (r->next + r->stride) % r->n_blocks;
    }
}

void sequence_close(struct sequence *s) {
    free(s->blocks);
}

void runner_step(struct runner *r, const struct feed *feeds, int32_t n_feeds, mxc_tap_fn *tap,
                 void *tap_user) {
    int32_t n_rows = 0, n_out = 0, row = 0;
    struct mxc_span spans[RUNNER_MAX_SEQS];
    size_t vocab = (size_t)r->graph->vocab;
    for (int32_t i = 0; i < n_feeds; i++) {
        n_rows += feeds[i].n;
        n_out += feeds[i].logits ? feeds[i].n : 0;
    }
    int32_t *tokens = calloc((size_t)n_rows, sizeof *tokens);
    int32_t *positions = calloc((size_t)n_rows, sizeof *positions);
    int32_t *out_row = calloc((size_t)n_rows, sizeof *out_row);
    float *logits = calloc((size_t)n_rows * vocab, sizeof *logits);
    assert_true(tokens && positions && out_row && logits);
    n_out = 0;
    for (int32_t i = 0; i < n_feeds; i++) {
        struct sequence *s = feeds[i].sequence;
        spans[i] = (struct mxc_span){.row0 = row,
                                     .n_rows = feeds[i].n,
                                     .context = s->context,
                                     .rope_length = s->rope_length,
                                     .adapter = -1};
        for (int k = 0; k < MXC_N_KV_KINDS; k++) {
            spans[i].blocks[k] = s->blocks;
            spans[i].n_blocks[k] = s->n_blocks;
        }
        for (int32_t t = 0; t < feeds[i].n; t++, row++) {
            tokens[row] = feeds[i].tokens[t];
            positions[row] = s->context + t;
            if (feeds[i].logits)
                out_row[n_out++] = row;
        }
    }
    struct mxc_step step = {.n_rows = n_rows,
                            .tokens = tokens,
                            .positions = positions,
                            .n_axes = 1,
                            .n_spans = n_feeds,
                            .spans = spans,
                            .n_out = n_out,
                            .out_row = out_row};
    struct mxc_out out = {.logits = logits, .tap = tap, .tap_user = tap_user};
    struct mxc_err err;
    need(r->ops->run(r->plan, r->state, &step, &out, &err), &err);
    const float *from = logits;
    for (int32_t i = 0; i < n_feeds; i++) {
        feeds[i].sequence->context += feeds[i].n;
        if (!feeds[i].logits)
            continue;
        memcpy(feeds[i].logits, from, (size_t)feeds[i].n * vocab * sizeof *from);
        from += (size_t)feeds[i].n * vocab;
    }
    free(tokens);
    free(positions);
    free(out_row);
    free(logits);
}

void runner_chunks(struct runner *r, const int32_t *tokens, int32_t n, int32_t chunk,
                   float *logits) {
    struct sequence s;
    sequence_open(r, &s, n);
    for (int32_t at = 0, count; at < n; at += count) {
        count = chunk && n - at > chunk ? chunk : n - at;
        struct feed feed = {&s, tokens + at, count,
                            logits ? logits + (size_t)at * (size_t)r->graph->vocab : NULL};
        runner_step(r, &feed, 1, NULL, NULL);
    }
    sequence_close(&s);
}

double relative_difference(const float *a, const float *b, size_t n) {
    double difference = 0, largest = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        if (!(d <= difference))
            difference = d; /* a NaN stays */
        largest = fmax(largest, fabs((double)b[i]));
    }
    return difference / (largest > 0 ? largest : 1);
}
