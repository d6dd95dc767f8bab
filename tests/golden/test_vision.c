/* Golden checkpoints that see, from pictures to tokens, in exact precision at every ISA level:
 * towers give the reference's features, prompts with spliced rows (or a filled CROSS store) its
 * logits, 24 greedy tokens follow; and all cases of a checkpoint in one step give the bits that
 * each gives alone. */
#include "backend/backend.h"
#include "models/vlm.h"

#include "base/cpu.h"
#include "golden/checkpoint.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CASES = 8, MAX_ROWS = 1024 };
enum { CASE_BLOCKS = 16, N_BLOCKS = CASE_BLOCKS * MAX_CASES };

/* The manifest's tolerance for f32 arithmetic. */
static const double tolerance = 1e-4;

static const struct mxc_backend_ops *const ops = &mxc_backend_cpu;

struct stage {
    const struct vlm *m;
    struct mxc_graph *graph;
    struct mxc_backend *backend;
    struct mxc_plan *tower, *plan;
    struct mxc_state *state;
};

static void need(enum mxc_code code, const struct mxc_err *err) {
    if (code)
        print_message("%s\n", err->message);
    assert_int_equal(code, MXC_OK);
}

static void stage_open(struct stage *s, const struct vlm *m, enum mxc_cpu_level level,
                       enum mxc_precision precision) {
    struct mxc_err err;
    int32_t n_blocks[MXC_N_KV_KINDS];
    struct mxc_plan_options options = {
        .precision = precision, .max_rows = MAX_ROWS, .max_out = MAX_ROWS, .max_spans = MAX_CASES};
    s->m = m;
    need(mxc_cpu_mask(level, &err), &err);
    need(mxc_model_graph(m->config, m->weights, &s->graph, &err), &err);
    need(ops->open(&(struct mxc_backend_options){.n_threads = 2}, &s->backend, &err), &err);
    need(ops->compile(s->backend, mxc_vision_tower(m->vision), m->weights, &options, &s->tower,
                      &err),
         &err);
    need(ops->compile(s->backend, s->graph, m->weights, &options, &s->plan, &err), &err);
    for (int k = 0; k < MXC_N_KV_KINDS; k++)
        n_blocks[k] = N_BLOCKS;
    need(ops->state_new(s->plan, n_blocks, &s->state, &err), &err);
}

static void stage_close(struct stage *s) {
    ops->state_free(s->state);
    ops->plan_free(s->plan);
    ops->plan_free(s->tower);
    ops->close(s->backend);
    mxc_graph_free(s->graph);
}

/* ---- towers */

/* One case in progress. */
struct item {
    struct vlm_case c;
    float *features[VLM_MAX_PICTURES]; /* [n_features][vocab of the tower] */
    int32_t blocks[CASE_BLOCKS], cross_tokens;
    float *logits; /* [n_tokens][vocab] */
};

static float *see(const struct stage *s, const struct mxc_vision_picture *picture) {
    struct mxc_tower *tower = NULL;
    struct mxc_err err;
    bool done = false;
    int32_t rows;
    need(ops->tower_new(s->tower, &picture->input, &tower, &err), &err);
    while (!done)
        need(ops->tower_step(tower, 1000000, &done, &err), &err);
    const float *from = ops->tower_output(tower, &rows);
    assert_int_equal(rows, picture->cost.n_features);
    size_t n = (size_t)rows * (size_t)mxc_vision_tower(s->m->vision)->vocab;
    float *copy = calloc(n, sizeof *copy);
    assert_non_null(copy);
    memcpy(copy, from, n * sizeof *copy);
    ops->tower_free(tower);
    return copy;
}

/* The largest difference from the reference's rows, as a part of the largest number; columns
 * [column, column + width of the tensor) of the features. -1: there is no such tensor. */
static double compare(const struct stage *s, const struct item *item, const char *what,
                      size_t column) {
    char name[128];
    size_t count, rows = 0, at = 0, ld = (size_t)mxc_vision_tower(s->m->vision)->vocab;
    double worst = 0, largest = 0;
    snprintf(name, sizeof name, "%s.%s", item->c.name, what);
    const float *want = vlm_tensor(s->m, name, &count);
    for (int32_t i = 0; i < item->c.n_pictures; i++)
        rows += (size_t)item->c.pictures[i].cost.n_features;
    if (!want || !rows)
        return -1;
    size_t width = count / rows;
    assert_int_equal(width * rows, count);
    for (int32_t i = 0; i < item->c.n_pictures; i++)
        for (size_t r = 0; r < (size_t)item->c.pictures[i].cost.n_features; r++)
            for (size_t k = 0; k < width; k++, at++) {
                double have = (double)item->features[i][r * ld + column * width + k];
                if (!(fabs(have - (double)want[at]) <= worst))
                    worst = fabs(have - (double)want[at]);
                largest = fmax(largest, fabs((double)want[at]));
            }
    return worst / largest;
}

static double check_features(const struct stage *s, const struct item *item) {
    if (item->c.layout.cross_range) /* keys and values, compared by what comes of them */
        return -1;
    double worst = compare(s, item, "projected", 0);
    for (int k = 0; k < s->graph->n_levels && worst >= 0; k++) {
        char name[32];
        snprintf(name, sizeof name, "deepstack_%d", k);
        double level = compare(s, item, name, (size_t)(1 + k));
        assert_true(level >= 0);
        worst = fmax(worst, level);
    }
    return worst;
}

static void item_open(const struct stage *s, size_t index, struct item *item) {
    struct mxc_err err;
    *item = (struct item){.logits = NULL};
    vlm_case_open(s->m, index, &item->c);
    for (int32_t i = 0; i < CASE_BLOCKS; i++)
        item->blocks[i] = ((int32_t)index * CASE_BLOCKS + i) * 37 % N_BLOCKS;
    for (int32_t i = 0; i < item->c.n_pictures; i++)
        item->features[i] = see(s, &item->c.pictures[i]);
    const struct mxc_vision_layout *l = &item->c.layout;
    size_t ld = (size_t)mxc_vision_tower(s->m->vision)->vocab;
    for (int32_t i = 0; l->cross_range && i < l->n_runs; i++) {
        const struct mxc_vision_run *r = &l->runs[i];
        need(ops->state_put(s->state, item->blocks, r->row0, r->n_rows,
                            item->features[r->picture] + (size_t)r->feature0 * ld, ld, &err),
             &err);
        item->cross_tokens = r->row0 + r->n_rows;
    }
    assert_true(item->cross_tokens <= CASE_BLOCKS * MXC_KV_BLOCK);
    assert_true(l->n_tokens + 32 <= CASE_BLOCKS * MXC_KV_BLOCK);
    item->logits = calloc((size_t)l->n_tokens * (size_t)s->graph->vocab, sizeof *item->logits);
    assert_non_null(item->logits);
}

static void item_close(struct item *item) {
    for (int32_t i = 0; i < item->c.n_pictures; i++)
        free(item->features[i]);
    free(item->logits);
    vlm_case_close(&item->c);
}

/* ---- steps */

/* Arrays of a step that grows span by span. */
struct rows {
    int32_t tokens[MAX_ROWS], axes[3][MAX_ROWS], ends[MAX_ROWS], cross[2][MAX_ROWS];
    int32_t flat[3 * MAX_ROWS], flat_cross[2 * MAX_ROWS], out_row[MAX_ROWS];
    struct mxc_splice splices[MAX_ROWS];
    struct mxc_span spans[MAX_CASES];
    int32_t n, n_splices, n_spans;
    bool many_axes, ends_given;
};

static void add_span(const struct stage *s, struct rows *rows, const struct item *item,
                     int32_t context, int32_t n) {
    struct mxc_span *span = &rows->spans[rows->n_spans++];
    *span = (struct mxc_span){.row0 = rows->n,
                              .n_rows = n,
                              .context = context,
                              .rope_length = item->c.layout.n_tokens,
                              .adapter = -1,
                              .cross_tokens = item->cross_tokens};
    for (int k = 0; k < MXC_N_KV_KINDS; k++) {
        span->blocks[k] = item->blocks;
        span->n_blocks[k] = CASE_BLOCKS;
    }
    (void)s;
}

/* All rows of a prompt. */
static void add_prompt(const struct stage *s, struct rows *rows, const struct item *item) {
    const struct mxc_vision_layout *l = &item->c.layout;
    size_t ld = (size_t)mxc_vision_tower(s->m->vision)->vocab;
    int32_t row0 = rows->n, n = l->n_tokens;
    assert_true(row0 + n <= MAX_ROWS);
    add_span(s, rows, item, 0, n);
    for (int32_t r = 0; r < n; r++) {
        rows->tokens[row0 + r] = l->tokens[r];
        rows->ends[row0 + r] = l->row_end ? l->row_end[r] : r + 1;
        for (int a = 0; a < 3; a++)
            rows->axes[a][row0 + r] = l->positions ? l->positions[a * n + r] : r;
        for (int a = 0; a < 2; a++)
            rows->cross[a][row0 + r] = l->cross_range ? l->cross_range[a * n + r] : 0;
    }
    for (int32_t i = 0; !l->cross_range && i < l->n_runs; i++)
        for (int32_t k = 0; k < l->runs[i].n_rows; k++)
            rows->splices[rows->n_splices++] = (struct mxc_splice){
                row0 + l->runs[i].row0 + k,
                item->features[l->runs[i].picture] + (size_t)(l->runs[i].feature0 + k) * ld};
    rows->many_axes |= l->positions != NULL;
    rows->ends_given |= l->row_end != NULL;
    rows->n += n;
}

/* A generated token. */
static void add_token(const struct stage *s, struct rows *rows, const struct item *item,
                      int32_t context, int32_t token) {
    const struct mxc_vision_layout *l = &item->c.layout;
    add_span(s, rows, item, context, 1);
    rows->tokens[rows->n] = token;
    for (int a = 0; a < 3; a++)
        rows->axes[a][rows->n] = context + (l->positions ? l->rope_delta : 0);
    for (int a = 0; a < 2; a++)
        rows->cross[a][rows->n] =
            l->cross_range ? l->cross_range[a * l->n_tokens + l->n_tokens - 1] : 0;
    rows->many_axes |= l->positions != NULL;
    rows->n++;
}

static void run(const struct stage *s, struct rows *rows, float *logits) {
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
    need(ops->run(s->plan, s->state, &step, &(struct mxc_out){.logits = logits}, &err), &err);
}

static struct rows *new_rows(void) {
    struct rows *rows = calloc(1, sizeof *rows);
    assert_non_null(rows);
    return rows;
}

/* ---- cases */

static double check_logits(const struct stage *s, const struct item *item) {
    size_t vocab = (size_t)s->graph->vocab, count;
    const float *want =
        vlm_tensor(s->m, json_string_value(json_object_get(item->c.item, "logits")), &count);
    const json_t *list = json_object_get(item->c.item, "logits_positions");
    double worst = 0, largest = 0;
    assert_non_null(want);
    assert_int_equal(count % vocab, 0);
    assert_int_equal(count / vocab,
                     json_is_array(list) ? json_array_size(list) : (size_t)item->c.layout.n_tokens);
    for (size_t i = 0; i < count / vocab; i++) {
        size_t row = json_is_array(list) ? (size_t)json_integer_value(json_array_get(list, i)) : i;
        for (size_t k = 0; k < vocab; k++) {
            double have = (double)item->logits[row * vocab + k];
            double x = (double)want[i * vocab + k];
            if (!(fabs(have - x) <= worst))
                worst = fabs(have - x);
            largest = fmax(largest, fabs(x));
        }
    }
    return worst / largest;
}

static void check_greedy(const struct stage *s, const struct item *item) {
    size_t vocab = (size_t)s->graph->vocab;
    const json_t *want = json_object_get(item->c.item, "greedy_ids");
    float *next = calloc(vocab, sizeof *next);
    const float *last = item->logits + (size_t)(item->c.layout.n_tokens - 1) * vocab;
    struct rows *rows = new_rows();
    assert_non_null(next);
    assert_int_equal(json_array_size(want), 24);
    for (size_t i = 0; i < json_array_size(want); i++) {
        int32_t best = 0;
        for (int32_t k = 1; k < (int32_t)vocab; k++)
            best = last[k] > last[best] ? k : best;
        assert_int_equal(best, json_integer_value(json_array_get(want, i)));
        memset(rows, 0, sizeof *rows);
        add_token(s, rows, item, item->c.layout.n_tokens + (int32_t)i, best);
        run(s, rows, next);
        last = next;
    }
    free(next);
    free(rows);
}

/* Every case's logits again, all in one step. */
static void check_together(const struct stage *s, const struct item *items, size_t n) {
    size_t vocab = (size_t)s->graph->vocab;
    struct rows *rows = new_rows();
    for (size_t i = 0; i < n; i++)
        add_prompt(s, rows, &items[i]);
    float *logits = calloc((size_t)rows->n * vocab, sizeof *logits), *at = logits;
    assert_non_null(logits);
    run(s, rows, logits);
    for (size_t i = 0; i < n; i++) {
        size_t count = (size_t)items[i].c.layout.n_tokens * vocab;
        assert_memory_equal(at, items[i].logits, count * sizeof *at);
        at += count;
    }
    free(logits);
    free(rows);
}

static void check_level(const struct vlm *m, const char *name, enum mxc_cpu_level level) {
    struct stage s;
    struct item items[MAX_CASES];
    size_t n = json_array_size(json_object_get(m->golden, "cases"));
    double features = -1, logits = 0;
    assert_true(n >= 4 && n <= MAX_CASES);
    stage_open(&s, m, level, MXC_PRECISION_EXACT);
    for (size_t i = 0; i < n; i++) {
        struct rows *rows = new_rows();
        item_open(&s, i, &items[i]);
        features = fmax(features, check_features(&s, &items[i]));
        add_prompt(&s, rows, &items[i]);
        run(&s, rows, items[i].logits);
        logits = fmax(logits, check_logits(&s, &items[i]));
        free(rows);
    }
    print_message("%-24s %-7s features %.1e  logits %.1e\n", name, mxc_cpu_level_name(level),
                  features, logits);
    assert_true(features <= tolerance && logits <= tolerance);
    assert_true(features >= 0 || strstr(name, "mlx") || !strcmp(name, "mllama"));
    check_together(&s, items, n);
    for (size_t i = 0; i < n; i++) {
        check_greedy(&s, &items[i]);
        item_close(&items[i]);
    }
    stage_close(&s);
}

static void test_all(void **state) {
    (void)state;
    for (const char *const *model = vlm_names(); *model; model++) {
        struct vlm m;
        vlm_open(&m, *model);
        for (int level = CHECKPOINT_SAMPLE ? (int)mxc_cpu_best() : 0; level <= (int)mxc_cpu_best();
             level++)
            check_level(&m, *model, (enum mxc_cpu_level)level);
        vlm_close(&m);
    }
}

/* bf16 arithmetic: near to the reference, and the same whatever the company. */
static void test_fast(void **state) {
    (void)state;
    struct vlm m;
    struct stage s;
    struct item items[MAX_CASES];
    double features = -1, logits = 0;
    vlm_open(&m, "qwen2_vl_bf16");
    size_t n = json_array_size(json_object_get(m.golden, "cases"));
    assert_true(n >= 4 && n <= MAX_CASES);
    stage_open(&s, &m, mxc_cpu_best(), MXC_PRECISION_FAST);
    for (size_t i = 0; i < n; i++) {
        struct rows *rows = new_rows();
        item_open(&s, i, &items[i]);
        features = fmax(features, check_features(&s, &items[i]));
        add_prompt(&s, rows, &items[i]);
        run(&s, rows, items[i].logits);
        logits = fmax(logits, check_logits(&s, &items[i]));
        free(rows);
    }
    print_message("fast: features %.1e  logits %.1e\n", features, logits);
    assert_true(features >= 0 && features < 0.03 && logits < 0.05);
    check_together(&s, items, n);
    for (size_t i = 0; i < n; i++)
        item_close(&items[i]);
    stage_close(&s);
    vlm_close(&m);
}

/* ---- mllama's ragged batches */

/* The indices of a tower of mllama, in the order in which its graph makes them, that say which
 * aspect ratio a picture has. */
enum { PRE_TILE, TILE_POSITION = 3, POST_TILE = 5, TILES = 4, PLANE = 17 };

/* The picture that the reference puts where a sample of a batch has none: zeros of aspect ratio 0,
 * its first tile counted; made from a picture of one tile. Its features. */
static float *see_missing(const struct stage *s, const struct mxc_vision_picture *one) {
    struct mxc_vision_picture p = *one;
    const struct mxc_graph *g = mxc_vision_tower(s->m->vision);
    int32_t *made[MXC_MAX_INDICES] = {NULL};
    size_t width = (size_t)g->values[g->input].width;
    float *rows = calloc((size_t)p.input.n_rows[0] * width, sizeof *rows);
    assert_non_null(rows);
    assert_int_equal(one->cost.n_tiles, 1);
    for (int32_t i = 0; i < g->n_indices; i++) {
        int32_t step = i == PRE_TILE || i == POST_TILE ? TILES
                       : i == TILE_POSITION            ? TILES * PLANE
                                                       : 0;
        size_t n = (size_t)mxc_tower_rows(&p.input, mxc_tower_index_rows(g, i));
        made[i] = calloc(n, sizeof *made[i]);
        assert_non_null(made[i]);
        for (size_t k = 0; k < n; k++) {
            int32_t at = one->input.index[i][k];
            made[i][k] = at < 0 ? at : at - step; /* of aspect ratio 1, the id of one tile */
            assert_true(at < 0 || made[i][k] >= 0);
        }
        p.input.index[i] = made[i];
    }
    p.input.rows = rows;
    float *features = see(s, &p);
    for (int32_t i = 0; i < g->n_indices; i++)
        free(made[i]);
    free(rows);
    return features;
}

/* A sample of a batch as a case of its own. */
static void add_sample(const struct vlm *m, size_t i) {
    const json_t *batch = json_array_get(json_object_get(m->golden, "batch_cases"), 0);
    json_t *sample = json_deep_copy(json_array_get(json_object_get(batch, "samples"), i));
    assert_non_null(sample);
    json_object_set_new(sample, "name", json_string("sample"));
    json_object_set(sample, "rendered", json_array_get(json_object_get(batch, "texts"), i));
    json_object_set(sample, "images", json_array_get(json_object_get(batch, "images"), i));
    assert_int_equal(json_array_append_new(json_object_get(m->golden, "cases"), sample), 0);
}

/* The reference's batch of one sample with one picture and one with two: it gives the first a
 * second picture of nothing, and text before the first picture sees that. No request of ours gets
 * anything from its neighbours; but with the same rows in its store, and the same masks, it gives
 * the same. */
static void test_ragged(void **state) {
    (void)state;
    struct vlm m;
    struct stage s;
    struct mxc_err err;
    if (getenv("MXC_GOLDEN"))
        skip(); /* of tests/data only */
    vlm_open(&m, "mllama");
    size_t n = json_array_size(json_object_get(m.golden, "cases")), count;
    add_sample(&m, 0);
    add_sample(&m, 1);
    const int32_t *mask = vlm_tensor(&m, "ragged_batch.cross_attention_mask", &count);
    assert_non_null(mask);
    for (int level = 0; level <= (int)mxc_cpu_best(); level++) {
        stage_open(&s, &m, (enum mxc_cpu_level)level, MXC_PRECISION_EXACT);
        for (size_t i = 0; i < 2; i++) {
            struct item item;
            struct rows *rows = new_rows();
            item_open(&s, n + i, &item);
            const struct mxc_vision_layout *l = &item.c.layout;
            if (i == 0) {
                float *features = see_missing(&s, &item.c.pictures[0]);
                need(ops->state_put(s.state, item.blocks, item.cross_tokens, TILES * PLANE,
                                    features, (size_t)mxc_vision_tower(m.vision)->vocab, &err),
                     &err);
                item.cross_tokens += TILES * PLANE;
                free(features);
            }
            assert_int_equal(item.cross_tokens, 2 * TILES * PLANE);
            /* the reference's mask says of every token which tiles it sees */
            for (int32_t row = 0; row < l->n_tokens; row++) {
                int32_t tiles = 0;
                for (int t = 0; t < 2 * TILES; t++)
                    tiles += mask[(i * count / 2) + (size_t)(row * 2 * TILES + t)];
                assert_int_equal(l->cross_range[l->n_tokens + row] - l->cross_range[row],
                                 tiles * PLANE);
            }
            add_prompt(&s, rows, &item);
            run(&s, rows, item.logits);
            double worst = check_logits(&s, &item);
            print_message("sample %zu, %s: %.1e\n", i,
                          mxc_cpu_level_name((enum mxc_cpu_level)level), worst);
            assert_true(worst <= tolerance);
            free(rows);
            item_close(&item);
        }
        stage_close(&s);
    }
    vlm_close(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all), cmocka_unit_test(test_fast),
                                       cmocka_unit_test(test_ragged)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
