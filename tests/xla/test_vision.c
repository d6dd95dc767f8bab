/* Golden checkpoints that see, from pictures to tokens, on a device: towers give the reference's
 * features, prompts with spliced rows (or a filled CROSS store) its logits, 24 greedy tokens
 * follow; and everything is as near to the CPU backend's exact precision. Needs a plugin. */
#include "backend/backend.h"
#include "golden/checkpoint.h"
#include "models/vlm.h"
#include "xla/real_plugin.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Compiling takes most of the time, so a sample is run unless all is asked for. It must not leave
 * out: three position axes, a CROSS store, rows that see later ones, levels. */
static const char *const sample[] = {"qwen2_vl", "mllama", "gemma3", "qwen3_vl"};
enum { MAX_CASES = 8, MAX_ROWS = 1024, GREEDY = 24 };
enum { CASE_BLOCKS = 16, N_BLOCKS = CASE_BLOCKS * MAX_CASES };

static const double tolerance = 1e-4;

static void need(enum mxc_code code, const struct mxc_err *err) {
    if (code)
        print_message("%s\n", err->message);
    assert_int_equal(code, MXC_OK);
}

/* The model on one backend. */
struct stage {
    const struct mxc_backend_ops *ops;
    const struct vlm *m;
    struct mxc_graph *graph;
    struct mxc_backend *backend;
    struct mxc_plan *tower, *plan;
    struct mxc_state *state;
};

static void stage_open(struct stage *s, const struct vlm *m, const char *backend, int n_devices) {
    struct mxc_err err;
    int32_t n_blocks[MXC_N_KV_KINDS];
    struct mxc_backend_options open = {.n_threads = 2};
    struct mxc_plan_options options = {.precision = MXC_PRECISION_EXACT,
                                       .max_rows = MAX_ROWS,
                                       .max_out = MAX_ROWS,
                                       .max_spans = MAX_CASES};
    open.xla.plugin = mxc_real_plugin();
    open.xla.cache_dir = mxc_real_cache();
    open.xla.n_devices = n_devices;
    *s = (struct stage){.m = m};
    need(mxc_backend_find(backend, &s->ops, &err), &err);
    need(mxc_model_graph(m->config, m->weights, &s->graph, &err), &err);
    need(s->ops->open(&open, &s->backend, &err), &err);
    need(s->ops->compile(s->backend, mxc_vision_tower(m->vision), m->weights, &options, &s->tower,
                         &err),
         &err);
    need(s->ops->compile(s->backend, s->graph, m->weights, &options, &s->plan, &err), &err);
    for (int k = 0; k < MXC_N_KV_KINDS; k++)
        n_blocks[k] = N_BLOCKS;
    need(s->ops->state_new(s->plan, n_blocks, &s->state, &err), &err);
}

static void stage_close(struct stage *s) {
    s->ops->state_free(s->state);
    s->ops->plan_free(s->plan);
    s->ops->plan_free(s->tower);
    s->ops->close(s->backend);
    mxc_graph_free(s->graph);
}

/* Largest difference as a part of the largest number. */
static double apart(const float *have, const float *want, size_t n) {
    double worst = 0, largest = 1e-30;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)have[i] - (double)want[i]);
        if (!(d <= worst))
            worst = d;
        largest = fmax(largest, fabs((double)want[i]));
    }
    return worst / largest;
}

/* ---- towers */

/* One case in progress on one stage. */
struct item {
    const struct vlm_case *c;
    float *features[VLM_MAX_PICTURES]; /* [n_features][vocab of the tower] */
    int32_t blocks[CASE_BLOCKS], cross_tokens;
    float *logits; /* [n_tokens + GREEDY][vocab] */
};

static size_t feature_width(const struct stage *s) {
    return (size_t)mxc_vision_tower(s->m->vision)->vocab;
}

static float *see(const struct stage *s, const struct mxc_tower_input *input, uint64_t budget,
                  int32_t *rows, int *steps) {
    struct mxc_tower *tower = NULL;
    struct mxc_err err;
    bool done = false;
    need(s->ops->tower_new(s->tower, input, &tower, &err), &err);
    for (*steps = 0; !done; ++*steps)
        need(s->ops->tower_step(tower, budget, &done, &err), &err);
    const float *from = s->ops->tower_output(tower, rows);
    size_t n = (size_t)*rows * feature_width(s);
    float *copy = calloc(n, sizeof *copy);
    assert_non_null(copy);
    memcpy(copy, from, n * sizeof *copy);
    s->ops->tower_free(tower);
    return copy;
}

/* Against the reference's rows: columns [column, ...) of the features. -1: there is no such tensor.
 */
static double compare(const struct stage *s, const struct item *item, const char *what,
                      size_t column) {
    char name[128];
    size_t count, rows = 0, ld = feature_width(s), at = 0;
    (void)snprintf(name, sizeof name, "%s.%s", item->c->name, what);
    const float *want = vlm_tensor(s->m, name, &count);
    for (int32_t i = 0; i < item->c->n_pictures; i++)
        rows += (size_t)item->c->pictures[i].cost.n_features;
    if (!want || !rows)
        return -1;
    size_t width = count / rows;
    float *have = calloc(count, sizeof *have);
    assert_non_null(have);
    for (int32_t i = 0; i < item->c->n_pictures; i++)
        for (size_t r = 0; r < (size_t)item->c->pictures[i].cost.n_features; r++, at += width)
            memcpy(have + at, item->features[i] + r * ld + column * width, width * sizeof *have);
    double worst = apart(have, want, count);
    free(have);
    return worst;
}

static double check_features(const struct stage *s, const struct item *item) {
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

static void put_cross(const struct stage *s, struct item *item) {
    const struct mxc_vision_layout *l = &item->c->layout;
    struct mxc_err err;
    size_t ld = feature_width(s);
    for (int32_t i = 0; l->cross_range && i < l->n_runs; i++) {
        const struct mxc_vision_run *r = &l->runs[i];
        need(s->ops->state_put(s->state, item->blocks, r->row0, r->n_rows,
                               item->features[r->picture] + (size_t)r->feature0 * ld, ld, &err),
             &err);
        item->cross_tokens = r->row0 + r->n_rows;
    }
}

static void item_open(const struct stage *s, const struct vlm_case *c, size_t index,
                      struct item *item) {
    const struct mxc_vision_layout *l = &c->layout;
    *item = (struct item){.c = c};
    for (int32_t i = 0; i < CASE_BLOCKS; i++)
        item->blocks[i] = ((int32_t)index * CASE_BLOCKS + i) * 37 % N_BLOCKS;
    for (int32_t i = 0; i < c->n_pictures; i++) {
        int32_t rows;
        int steps;
        item->features[i] = see(s, &c->pictures[i].input, 1000000, &rows, &steps);
        assert_int_equal(rows, c->pictures[i].cost.n_features);
    }
    put_cross(s, item);
    assert_true(l->n_tokens + GREEDY <= CASE_BLOCKS * MXC_KV_BLOCK);
    item->logits = calloc((size_t)(l->n_tokens + GREEDY) * (size_t)s->graph->vocab, sizeof(float));
    assert_non_null(item->logits);
}

static void item_close(struct item *item) {
    for (int32_t i = 0; i < item->c->n_pictures; i++)
        free(item->features[i]);
    free(item->logits);
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

static void add_span(struct rows *rows, const struct item *item, int32_t context, int32_t n) {
    struct mxc_span *span = &rows->spans[rows->n_spans++];
    *span = (struct mxc_span){.row0 = rows->n,
                              .n_rows = n,
                              .context = context,
                              .rope_length = item->c->layout.n_tokens,
                              .adapter = -1,
                              .cross_tokens = item->cross_tokens};
    for (int k = 0; k < MXC_N_KV_KINDS; k++) {
        span->blocks[k] = item->blocks;
        span->n_blocks[k] = CASE_BLOCKS;
    }
}

/* Rows [from, to) of a prompt. */
static void add_prompt(const struct stage *s, struct rows *rows, const struct item *item,
                       int32_t from, int32_t to) {
    const struct mxc_vision_layout *l = &item->c->layout;
    size_t ld = feature_width(s);
    int32_t row0 = rows->n - from, n = l->n_tokens;
    assert_true(row0 + to <= MAX_ROWS);
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

/* A generated token. */
static void add_token(struct rows *rows, const struct item *item, int32_t context, int32_t token) {
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
    need(s->ops->run(s->plan, s->state, &step, &(struct mxc_out){.logits = logits}, &err), &err);
    *rows = (struct rows){.n = 0};
}

static struct rows *new_rows(void) {
    struct rows *rows = calloc(1, sizeof *rows);
    assert_non_null(rows);
    return rows;
}

/* ---- checkpoints */

/* A prompt's logits against the reference's. */
static double check_logits(const struct stage *s, const struct item *item) {
    size_t vocab = (size_t)s->graph->vocab, count;
    const float *want =
        vlm_tensor(s->m, json_string_value(json_object_get(item->c->item, "logits")), &count);
    const json_t *list = json_object_get(item->c->item, "logits_positions");
    assert_non_null(want);
    float *have = calloc(count, sizeof *have);
    assert_non_null(have);
    for (size_t i = 0; i < count / vocab; i++) {
        size_t row = json_is_array(list) ? (size_t)json_integer_value(json_array_get(list, i)) : i;
        memcpy(have + i * vocab, item->logits + row * vocab, vocab * sizeof *have);
    }
    double worst = apart(have, want, count);
    free(have);
    return worst;
}

/* 24 tokens of every case that is still to be decoded, together in one step each. */
static void greedy(const struct stage *s, struct item *items, size_t n, struct rows *rows) {
    size_t vocab = (size_t)s->graph->vocab;
    float *next = calloc(n * vocab, sizeof *next);
    assert_non_null(next);
    for (int32_t i = 0; i < GREEDY; i++) {
        for (size_t k = 0; k < n; k++) {
            const json_t *want = json_object_get(items[k].c->item, "greedy_ids");
            int32_t at = items[k].c->layout.n_tokens + i, best = 0;
            const float *last = items[k].logits + (size_t)(at - 1) * vocab;
            for (int32_t v = 1; v < (int32_t)vocab; v++)
                best = last[v] > last[best] ? v : best;
            assert_int_equal(json_array_size(want), GREEDY);
            assert_int_equal(best, json_integer_value(json_array_get(want, (size_t)i)));
            add_token(rows, &items[k], at, best);
        }
        run(s, rows, next);
        for (size_t k = 0; k < n; k++)
            memcpy(items[k].logits + (size_t)(items[k].c->layout.n_tokens + i) * vocab,
                   next + k * vocab, vocab * sizeof *next);
    }
    free(next);
}

/* Features, prompts one by one, and generated tokens together. */
static void run_all(const struct stage *s, const struct vlm_case *cases, struct item *items,
                    size_t n) {
    struct rows *rows = new_rows();
    for (size_t i = 0; i < n; i++) {
        item_open(s, &cases[i], i, &items[i]);
        add_prompt(s, rows, &items[i], 0, cases[i].layout.n_tokens);
        run(s, rows, items[i].logits);
    }
    greedy(s, items, n, rows);
    free(rows);
}

/* All prompts in one step, then once more in three chunks each, the middle one a single row of a
 * picture where there is one: the same logits. */
static void check_chunks(const struct stage *s, const struct item *items, size_t n) {
    size_t vocab = (size_t)s->graph->vocab, count = 0, at = 0;
    struct rows *rows = new_rows();
    for (size_t i = 0; i < n; i++)
        count += (size_t)items[i].c->layout.n_tokens * vocab;
    float *logits = calloc(count, sizeof *logits);
    assert_non_null(logits);
    for (size_t i = 0; i < n; i++)
        add_prompt(s, rows, &items[i], 0, items[i].c->layout.n_tokens);
    run(s, rows, logits);
    for (size_t i = 0; i < n; i++) {
        size_t all = (size_t)items[i].c->layout.n_tokens * vocab;
        assert_true(apart(logits + at, items[i].logits, all) <= tolerance);
        at += all;
    }
    for (size_t i = 0; i < n && !items[i].c->layout.row_end; i++) {
        const struct mxc_vision_layout *l = &items[i].c->layout;
        int32_t middle = l->n_runs && !l->cross_range ? l->runs[0].row0 + 1 : l->n_tokens / 2;
        const int32_t ends[3] = {middle, middle + 1, l->n_tokens};
        for (int32_t k = 0, from = 0; k < 3; from = ends[k++]) {
            add_prompt(s, rows, &items[i], from, ends[k]);
            run(s, rows, logits + (size_t)from * vocab);
        }
        assert_true(apart(logits, items[i].logits, (size_t)l->n_tokens * vocab) <= tolerance);
    }
    free(logits);
    free(rows);
}

/* The host's features in the device's prompt. */
static void check_host_tower(const struct stage *device, const struct item *ours,
                             const struct item *theirs) {
    size_t n = (size_t)ours->c->layout.n_tokens * (size_t)device->graph->vocab;
    struct rows *rows = new_rows();
    struct item mixed = *ours;
    mixed.logits = calloc(n, sizeof *mixed.logits);
    assert_non_null(mixed.logits);
    memcpy(mixed.features, theirs->features, sizeof mixed.features);
    put_cross(device, &mixed);
    add_prompt(device, rows, &mixed, 0, ours->c->layout.n_tokens);
    run(device, rows, mixed.logits);
    assert_true(apart(mixed.logits, theirs->logits, n) <= tolerance);
    free(mixed.logits);
    free(rows);
}

static void check(const char *name, int n_devices) {
    struct vlm m;
    struct stage host, device;
    struct vlm_case cases[MAX_CASES];
    struct item ours[MAX_CASES], theirs[MAX_CASES];
    double features = -1, logits = 0, seen = 0, said = 0;
    vlm_open(&m, name);
    size_t n = json_array_size(json_object_get(m.golden, "cases"));
    assert_true(n >= 4 && n <= MAX_CASES);
    for (size_t i = 0; i < n; i++)
        vlm_case_open(&m, i, &cases[i]);
    stage_open(&host, &m, "cpu", 1);
    stage_open(&device, &m, "xla", n_devices);
    run_all(&host, cases, theirs, n);
    run_all(&device, cases, ours, n);
    for (size_t i = 0; i < n; i++) {
        size_t rows = (size_t)(cases[i].layout.n_tokens + GREEDY);
        features = fmax(features, check_features(&device, &ours[i]));
        logits = fmax(logits, check_logits(&device, &ours[i]));
        for (int32_t k = 0; k < cases[i].n_pictures; k++)
            seen = fmax(
                seen, apart(ours[i].features[k], theirs[i].features[k],
                            (size_t)cases[i].pictures[k].cost.n_features * feature_width(&device)));
        said =
            fmax(said, apart(ours[i].logits, theirs[i].logits, rows * (size_t)device.graph->vocab));
    }
    print_message("%-20s reference: features %.1e logits %.1e  CPU: features %.1e logits %.1e\n",
                  name, features, logits, seen, said);
    assert_true(features <= tolerance && logits <= tolerance);
    assert_true(features >= 0 || strstr(name, "mlx") || !strcmp(name, "mllama"));
    assert_true(seen <= tolerance && said <= tolerance);
    check_chunks(&device, ours, n);
    check_host_tower(&device, &ours[n - 1], &theirs[n - 1]);
    for (size_t i = 0; i < n; i++) {
        item_close(&ours[i]);
        item_close(&theirs[i]);
        vlm_case_close(&cases[i]);
    }
    stage_close(&device);
    stage_close(&host);
    vlm_close(&m);
}

static void test_all(void **state) {
    (void)state;
    if (!mxc_real_plugin())
        skip();
    const char *const *names = vlm_names();
    int n = 0, run = 0;
    for (; names[n]; n++) {
        bool wanted = mxc_real_all() || getenv("MXC_GOLDEN");
        for (size_t i = 0; i < (CHECKPOINT_SAMPLE ? 2 : sizeof sample / sizeof *sample); i++)
            wanted |= !strcmp(sample[i], names[n]);
        if (wanted)
            check(names[n], 1);
        run += wanted;
    }
    print_message("%d of %d folders\n", run, n);
    assert_true(run > 0);
}

/* Pictures of thousands of patches: windows, tiles, buckets that are not full. */
static void check_large(const char *name, int width, int height, int32_t least) {
    struct vlm m;
    struct stage host, device;
    struct mxc_image image;
    struct mxc_vision_picture picture;
    struct mxc_err err;
    int32_t rows[2];
    int steps;
    vlm_open(&m, name);
    stage_open(&host, &m, "cpu", 1);
    stage_open(&device, &m, "xla", 1);
    need(mxc_image_init(width, height, &image, &err), &err);
    for (int i = 0; i < 3 * width * height; i++)
        image.rgb[i] = (uint8_t)((i % 3 + 1) * (i / 3 % width) / 4 + i / width);
    const struct mxc_vision_budget budget = {.max_pixels = 1 << 20};
    need(mxc_vision_prepare(m.vision, &image, &budget, &picture, &err), &err);
    float *want = see(&host, &picture.input, UINT64_MAX, &rows[0], &steps);
    float *have = see(&device, &picture.input, UINT64_MAX, &rows[1], &steps);
    double worst = apart(have, want, (size_t)rows[0] * feature_width(&host));
    print_message("%-20s %d patches: %.1e\n", name, picture.input.n_rows[0], worst);
    assert_true(picture.input.n_rows[0] >= least && rows[0] == rows[1]);
    assert_true(worst <= tolerance);
    free(want);
    free(have);
    mxc_vision_picture_fini(&picture);
    mxc_image_fini(&image);
    stage_close(&device);
    stage_close(&host);
    vlm_close(&m);
}

static void test_large(void **state) {
    (void)state;
    if (!mxc_real_plugin())
        skip();
    check_large("qwen2_5_vl", 700, 500, 1500);
    if (!mxc_real_all())
        return;
    check_large("qwen3_vl", 500, 300, 500);
    check_large("idefics3", 600, 400, 64);
}

/* The decoder on two devices, the tower on the first of them. */
static void test_devices(void **state) {
    (void)state;
    if (!mxc_real_plugin())
        skip();
    check("qwen3_vl", 2);
    if (mxc_real_all())
        check("mllama", 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all), cmocka_unit_test(test_devices),
                                       cmocka_unit_test(test_large)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
