/* Vision runner for tests, see vision_run.h. */
#include "golden/vision_run.h"

#include "backend/runner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_BLOCKS = VISION_CASE_BLOCKS * VISION_MAX_CASES };

static void need(enum mxc_code code, const struct mxc_err *err) {
    if (code)
        print_message("%s\n", err->message);
    assert_int_equal(code, MXC_OK);
}

void vision_stage_open(struct vision_stage *s, const struct vlm *m, const char *backend,
                       const struct mxc_backend_options *options, enum mxc_precision precision) {
    struct mxc_err err;
    int32_t n_blocks[MXC_N_KV_KINDS];
    const struct mxc_plan_options plan = {.precision = precision,
                                          .max_rows = VISION_MAX_ROWS,
                                          .max_out = VISION_MAX_ROWS,
                                          .max_spans = VISION_MAX_CASES};
    *s = (struct vision_stage){.m = m};
    need(mxc_backend_find(backend, &s->ops, &err), &err);
    need(mxc_model_graph(m->config, m->weights, &s->graph, &err), &err);
    need(s->ops->open(options, &s->backend, &err), &err);
    need(s->ops->compile(s->backend, mxc_vision_tower(m->vision), m->weights, &plan, &s->tower,
                         &err),
         &err);
    need(s->ops->compile(s->backend, s->graph, m->weights, &plan, &s->plan, &err), &err);
    for (int k = 0; k < MXC_N_KV_KINDS; k++)
        n_blocks[k] = N_BLOCKS;
    need(s->ops->state_new(s->plan, n_blocks, &s->state, &err), &err);
}

void vision_stage_close(struct vision_stage *s) {
    s->ops->state_free(s->state);
    s->ops->plan_free(s->plan);
    s->ops->plan_free(s->tower);
    s->ops->close(s->backend);
    mxc_graph_free(s->graph);
}

/* ---- towers */

size_t vision_feature_width(const struct vision_stage *s) {
    return (size_t)mxc_vision_tower(s->m->vision)->vocab;
}

float *vision_see(const struct vision_stage *s, const struct mxc_tower_input *input,
                  uint64_t budget, int32_t *rows) {
    struct mxc_tower *tower = NULL;
    struct mxc_err err;
    bool done = false;
    need(s->ops->tower_new(s->tower, input, &tower, &err), &err);
    while (!done)
        need(s->ops->tower_step(tower, budget, &done, &err), &err);
    const float *from = s->ops->tower_output(tower, rows);
    size_t n = (size_t)*rows * vision_feature_width(s);
    float *copy = calloc(n, sizeof *copy);
    assert_non_null(copy);
    memcpy(copy, from, n * sizeof *copy);
    s->ops->tower_free(tower);
    return copy;
}

/* Columns [column, column + 1) times the width of the reference's tensor. -1: there is none. */
static double compare(const struct vision_stage *s, const struct vision_item *item,
                      const char *what, size_t column) {
    char name[128];
    size_t count, rows = 0, ld = vision_feature_width(s), at = 0;
    (void)snprintf(name, sizeof name, "%s.%s", item->c->name, what);
    const float *want = vlm_tensor(s->m, name, &count);
    for (int32_t i = 0; i < item->c->n_pictures; i++)
        rows += (size_t)item->c->pictures[i].cost.n_features;
    if (!want || !rows)
        return -1;
    size_t width = count / rows;
    assert_int_equal(width * rows, count);
    float *have = calloc(count, sizeof *have);
    assert_non_null(have);
    for (int32_t i = 0; i < item->c->n_pictures; i++)
        for (size_t r = 0; r < (size_t)item->c->pictures[i].cost.n_features; r++, at += width)
            memcpy(have + at, item->features[i] + r * ld + column * width, width * sizeof *have);
    double worst = relative_difference(have, want, count);
    free(have);
    return worst;
}

double vision_features_difference(const struct vision_stage *s, const struct vision_item *item) {
    if (item->c->layout.cross_range) /* keys and values, compared by what comes of them */
        return -1;
    double worst = compare(s, item, "projected", 0);
    for (int k = 0; k < s->graph->n_levels && worst >= 0; k++) {
        char name[32];
        (void)snprintf(name, sizeof name, "deepstack_%d", k);
        double level = compare(s, item, name, (size_t)(1 + k));
        assert_true(level >= 0);
        worst = fmax(worst, level);
    }
    return worst;
}

/* ---- cases */

void vision_item_put(const struct vision_stage *s, struct vision_item *item) {
    const struct mxc_vision_layout *l = &item->c->layout;
    struct mxc_err err;
    size_t ld = vision_feature_width(s);
    for (int32_t i = 0; l->cross_range && i < l->n_runs; i++) {
        const struct mxc_vision_run *r = &l->runs[i];
        need(s->ops->state_put(s->state, item->blocks, r->row0, r->n_rows,
                               item->features[r->picture] + (size_t)r->feature0 * ld, ld, &err),
             &err);
        item->cross_tokens = r->row0 + r->n_rows;
    }
    assert_true(item->cross_tokens <= VISION_CASE_BLOCKS * MXC_KV_BLOCK);
}

void vision_item_open(const struct vision_stage *s, const struct vlm_case *c, size_t number,
                      struct vision_item *item) {
    int32_t n = c->layout.n_tokens + VISION_GREEDY;
    *item = (struct vision_item){.c = c};
    for (int32_t i = 0; i < VISION_CASE_BLOCKS; i++)
        item->blocks[i] = ((int32_t)number * VISION_CASE_BLOCKS + i) * 37 % N_BLOCKS;
    for (int32_t i = 0; i < c->n_pictures; i++) {
        int32_t rows;
        item->features[i] = vision_see(s, &c->pictures[i].input, 1000000, &rows);
        assert_int_equal(rows, c->pictures[i].cost.n_features);
    }
    vision_item_put(s, item);
    assert_true(n <= VISION_CASE_BLOCKS * MXC_KV_BLOCK);
    item->logits = calloc((size_t)n * (size_t)s->graph->vocab, sizeof *item->logits);
    assert_non_null(item->logits);
}

void vision_item_close(struct vision_item *item) {
    for (int32_t i = 0; i < item->c->n_pictures; i++)
        free(item->features[i]);
    free(item->logits);
}

double vision_logits_difference(const struct vision_stage *s, const struct vision_item *item) {
    size_t vocab = (size_t)s->graph->vocab, count;
    const float *want =
        vlm_tensor(s->m, json_string_value(json_object_get(item->c->item, "logits")), &count);
    const json_t *list = json_object_get(item->c->item, "logits_positions");
    assert_non_null(want);
    assert_int_equal(count, vocab * (json_is_array(list) ? json_array_size(list)
                                                         : (size_t)item->c->layout.n_tokens));
    float *have = calloc(count, sizeof *have);
    assert_non_null(have);
    for (size_t i = 0; i < count / vocab; i++) {
        size_t row = json_is_array(list) ? (size_t)json_integer_value(json_array_get(list, i)) : i;
        memcpy(have + i * vocab, item->logits + row * vocab, vocab * sizeof *have);
    }
    double worst = relative_difference(have, want, count);
    free(have);
    return worst;
}

/* ---- steps */

struct vision_rows *vision_rows_new(void) {
    struct vision_rows *rows = calloc(1, sizeof *rows);
    assert_non_null(rows);
    return rows;
}

static void add_span(struct vision_rows *rows, const struct vision_item *item, int32_t context,
                     int32_t n) {
    assert_true(rows->n_spans < VISION_MAX_CASES && rows->n + n <= VISION_MAX_ROWS);
    struct mxc_span *span = &rows->spans[rows->n_spans++];
    *span = (struct mxc_span){.row0 = rows->n,
                              .n_rows = n,
                              .context = context,
                              .rope_length = item->c->layout.n_tokens,
                              .adapter = -1,
                              .cross_tokens = item->cross_tokens};
    for (int k = 0; k < MXC_N_KV_KINDS; k++) {
        span->blocks[k] = item->blocks;
        span->n_blocks[k] = VISION_CASE_BLOCKS;
    }
}

void vision_add_prompt(const struct vision_stage *s, struct vision_rows *rows,
                       const struct vision_item *item, int32_t from, int32_t to) {
    const struct mxc_vision_layout *l = &item->c->layout;
    size_t ld = vision_feature_width(s);
    int32_t row0 = rows->n - from, n = l->n_tokens;
    add_span(rows, item, from, to - from);
    for (int32_t r = from; r < to; r++) {
        rows->tokens[row0 + r] = l->tokens[r];
        rows->ends[row0 + r] = l->row_end ? l->row_end[r] : r + 1;
        for (int a = 0; a < 3; a++)
            rows->axes[a][row0 + r] = l->positions ? l->positions[a * n + r] : r;
        for (int a = 0; a < 2; a++)
            rows->cross[a][row0 + r] = l->cross_range ? l->cross_range[a * n + r] : 0;
    }
    for (int32_t i = 0; !l->cross_range && i < l->n_runs; i++)
        for (int32_t k = 0; k < l->runs[i].n_rows; k++) {
            int32_t row = l->runs[i].row0 + k;
            if (row >= from && row < to)
                rows->splices[rows->n_splices++] =
                    (struct mxc_splice){row0 + row, item->features[l->runs[i].picture] +
                                                        (size_t)(l->runs[i].feature0 + k) * ld};
        }
    rows->many_axes |= l->positions != NULL;
    rows->ends_given |= l->row_end != NULL;
    rows->n += to - from;
}

void vision_add_token(struct vision_rows *rows, const struct vision_item *item, int32_t context,
                      int32_t token) {
    const struct mxc_vision_layout *l = &item->c->layout;
    add_span(rows, item, context, 1);
    rows->tokens[rows->n] = token;
    rows->ends[rows->n] = context + 1;
    for (int a = 0; a < 3; a++)
        rows->axes[a][rows->n] = context + (l->positions ? l->rope_delta : 0);
    for (int a = 0; a < 2; a++)
        rows->cross[a][rows->n] =
            l->cross_range ? l->cross_range[a * l->n_tokens + l->n_tokens - 1] : 0;
    rows->many_axes |= l->positions != NULL;
    rows->n++;
}

void vision_run(const struct vision_stage *s, struct vision_rows *rows, float *logits) {
    struct mxc_err err;
    size_t n = (size_t)rows->n;
    for (size_t a = 0; a < 3; a++)
        memcpy(rows->flat + a * n, rows->axes[a], n * sizeof *rows->flat);
    for (size_t a = 0; a < 2; a++)
        memcpy(rows->flat_cross + a * n, rows->cross[a], n * sizeof *rows->flat);
    for (int32_t r = 0; r < rows->n; r++)
        rows->out_row[r] = r;
    struct mxc_step step = {.n_rows = rows->n,
                            .tokens = rows->tokens,
                            .positions = rows->flat,
                            .n_axes = rows->many_axes ? 3 : 1,
                            .row_end = rows->ends_given ? rows->ends : NULL,
                            .cross_range = rows->flat_cross,
                            .n_spans = rows->n_spans,
                            .spans = rows->spans,
                            .n_out = rows->n,
                            .out_row = rows->out_row,
                            .n_splices = rows->n_splices,
                            .splices = rows->splices};
    need(s->ops->run(s->plan, s->state, &step, &(struct mxc_out){.logits = logits}, &err), &err);
    rows->n = rows->n_splices = rows->n_spans = 0;
    rows->many_axes = rows->ends_given = false;
}

void vision_run_prompt(const struct vision_stage *s, struct vision_item *item) {
    struct vision_rows *rows = vision_rows_new();
    vision_add_prompt(s, rows, item, 0, item->c->layout.n_tokens);
    vision_run(s, rows, item->logits);
    free(rows);
}

void vision_greedy(const struct vision_stage *s, struct vision_item *items, size_t n) {
    size_t vocab = (size_t)s->graph->vocab;
    struct vision_rows *rows = vision_rows_new();
    float *next = calloc(n * vocab, sizeof *next);
    assert_non_null(next);
    for (int32_t i = 0; i < VISION_GREEDY; i++) {
        for (size_t k = 0; k < n; k++) {
            const json_t *want = json_object_get(items[k].c->item, "greedy_ids");
            int32_t at = items[k].c->layout.n_tokens + i, best = 0;
            const float *last = items[k].logits + (size_t)(at - 1) * vocab;
            for (int32_t v = 1; v < (int32_t)vocab; v++)
                best = last[v] > last[best] ? v : best;
            assert_int_equal(json_array_size(want), VISION_GREEDY);
            assert_int_equal(best, json_integer_value(json_array_get(want, (size_t)i)));
            vision_add_token(rows, &items[k], at, best);
        }
        vision_run(s, rows, next);
        for (size_t k = 0; k < n; k++)
            memcpy(items[k].logits + (size_t)(items[k].c->layout.n_tokens + i) * vocab,
                   next + k * vocab, vocab * sizeof *next);
    }
    free(next);
    free(rows);
}
