/* Encoders (folders with modules.json) in exact precision, at every ISA level: hidden rows and
 * layer norms of every text that stands alone, and equal bits when several texts share a step. */
#include "golden/checkpoint.h"

#include "backend/backend.h"
#include "base/cpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The manifest's tolerance for f32 arithmetic. */
static const double tolerance = 1e-4;

enum { MAX_TOKENS = 512, MAX_TEXTS = 8, N_BLOCKS = 64, TEXT_BLOCKS = 12 };

struct text {
    const char *name;
    int32_t ids[MAX_TOKENS], n;
    const float *hidden, *layer_l2; /* [n][hidden], [n_layers + 1][n] */
};

static const float *floats(const struct checkpoint *c, const char *text, const char *what,
                           int32_t n0, int32_t n1) {
    char name[128];
    (void)snprintf(name, sizeof name, "%s.%s", text, what);
    for (size_t i = 0; i < c->tensors->n_tensors; i++) {
        const struct mxc_st_tensor *t = &c->tensors->tensors[i];
        if (strcmp(t->name, name) != 0)
            continue;
        assert_int_equal(t->storage, MXC_ST_F32);
        assert_int_equal(t->shape[0], n0);
        assert_int_equal(t->shape[1], n1);
        return (const float *)(const void *)t->data;
    }
    fail_msg("%s: no golden tensor %s", c->name, name);
    return NULL;
}

/* All texts that are no pairs. */
static int32_t read_texts(const struct checkpoint *c, struct text texts[MAX_TEXTS]) {
    size_t i, j;
    const json_t *item, *id;
    int32_t n = 0;
    json_array_foreach(json_object_get(c->golden, "cases"), i, item) {
        if (json_object_get(item, "texts"))
            continue;
        assert_true(n < MAX_TEXTS);
        struct text *t = &texts[n++];
        t->name = json_string_value(json_object_get(item, "name"));
        t->n = 0;
        json_array_foreach(json_object_get(item, "ids"), j, id) {
            assert_true(t->n < MAX_TOKENS && t->n < TEXT_BLOCKS * MXC_KV_BLOCK);
            t->ids[t->n++] = (int32_t)json_integer_value(id);
        }
        t->hidden = floats(c, t->name, "hidden", t->n, c->graph->hidden);
        t->layer_l2 = floats(c, t->name, "layer_l2", c->graph->n_layers + 1, t->n);
    }
    assert_true(n >= 3);
    return n;
}

/* ---- a step of whole texts */

struct norms {
    double l2[8][MAX_TOKENS];
};

static void take_norms(void *user, const struct mxc_graph *graph, int32_t value, const float *data,
                       int32_t rows, int32_t width) {
    struct norms *norms = user;
    for (int32_t i = 0; i < graph->n_layers + 2; i++)
        for (int32_t r = 0; r < rows && graph->layer_values[i] == value; r++) {
            double sum = 0;
            for (int32_t k = 0; k < width; k++) {
                double x = (double)data[(size_t)r * (size_t)width + (size_t)k];
                sum += x * x;
            }
            norms->l2[i][r] = sqrt(sum);
        }
}

struct machine {
    const struct mxc_backend_ops *ops;
    struct mxc_backend *backend;
    struct mxc_plan *plan;
    struct mxc_state *state;
};

static void open_machine(struct machine *m, const struct checkpoint *c) {
    struct mxc_err err;
    int32_t n_blocks[MXC_N_KV_KINDS] = {0};
    const struct mxc_plan_options options = {.precision = MXC_PRECISION_EXACT,
                                             .max_rows = MAX_TOKENS,
                                             .max_out = MAX_TOKENS,
                                             .max_spans = MAX_TEXTS};
    n_blocks[MXC_KV_FULL] = N_BLOCKS;
    assert_int_equal(mxc_backend_find("cpu", &m->ops, &err), MXC_OK);
    assert_int_equal(m->ops->open(&(struct mxc_backend_options){.n_threads = 2}, &m->backend, &err),
                     MXC_OK);
    assert_int_equal(m->ops->compile(m->backend, c->graph, c->weights, &options, &m->plan, &err),
                     MXC_OK);
    assert_int_equal(m->ops->state_new(m->plan, n_blocks, &m->state, &err), MXC_OK);
}

static void close_machine(struct machine *m) {
    m->ops->state_free(m->state);
    m->ops->plan_free(m->plan);
    m->ops->close(m->backend);
}

static void run(const struct machine *m, const struct text *const *texts, int32_t n, float *hidden,
                struct norms *norms) {
    int32_t tokens[MAX_TOKENS], positions[MAX_TOKENS], row_end[MAX_TOKENS], out_row[MAX_TOKENS];
    int32_t blocks[MAX_TEXTS][TEXT_BLOCKS], row = 0;
    struct mxc_span spans[MAX_TEXTS];
    struct mxc_err err;
    for (int32_t i = 0; i < n; i++) {
        spans[i] = (struct mxc_span){
            .row0 = row, .n_rows = texts[i]->n, .rope_length = texts[i]->n, .adapter = -1};
        for (int32_t b = 0; b < TEXT_BLOCKS; b++)
            blocks[i][b] = (i * TEXT_BLOCKS + b) % N_BLOCKS;
        spans[i].blocks[MXC_KV_FULL] = blocks[i];
        spans[i].n_blocks[MXC_KV_FULL] = TEXT_BLOCKS;
        for (int32_t t = 0; t < texts[i]->n; t++, row++) {
            assert_true(row < MAX_TOKENS);
            tokens[row] = texts[i]->ids[t];
            positions[row] = t;
            row_end[row] = texts[i]->n;
            out_row[row] = row;
        }
    }
    const struct mxc_step step = {.n_rows = row,
                                  .tokens = tokens,
                                  .positions = positions,
                                  .n_axes = 1,
                                  .row_end = row_end,
                                  .n_spans = n,
                                  .spans = spans,
                                  .n_out = row,
                                  .out_row = out_row};
    const struct mxc_out out = {hidden, norms ? take_norms : NULL, norms};
    if (m->ops->run(m->plan, m->state, &step, &out, &err))
        fail_msg("%s", err.message);
}

/* ---- checks */

static void check_text(const struct machine *m, const struct checkpoint *c, const struct text *t,
                       double worst[2]) {
    struct norms *norms = calloc(1, sizeof *norms);
    size_t n = (size_t)t->n * (size_t)c->graph->hidden;
    float *have = calloc(n, sizeof *have), *tapped = calloc(n, sizeof *tapped);
    double difference = 0, largest = 0;
    assert_true(norms && have && tapped && c->graph->n_layers + 2 <= 8);
    run(m, &t, 1, have, NULL);
    run(m, &t, 1, tapped, norms);
    assert_memory_equal(have, tapped, n * sizeof *have);
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)have[i] - (double)t->hidden[i]);
        difference = d <= difference ? difference : d;
        largest = fmax(largest, fabs((double)t->hidden[i]));
    }
    worst[0] = fmax(worst[0], difference / largest);
    for (int32_t i = 0; i < c->graph->n_layers + 2; i++) /* behind the last layer comes nothing */
        for (int32_t r = 0; r < t->n; r++) {
            int32_t from = i <= c->graph->n_layers ? i : c->graph->n_layers;
            double want = (double)t->layer_l2[(size_t)from * (size_t)t->n + (size_t)r];
            worst[1] = fmax(worst[1], fabs(norms->l2[i][r] - want) / want);
        }
    free(norms);
    free(have);
    free(tapped);
}

/* All texts in one step, first to last and last to first: each has the bits that it has alone. */
static void check_batch(const struct machine *m, const struct checkpoint *c,
                        const struct text *texts, int32_t n) {
    size_t hidden = (size_t)c->graph->hidden;
    float *alone = calloc(MAX_TOKENS * hidden, sizeof *alone);
    float *together = calloc(MAX_TOKENS * hidden, sizeof *together);
    assert_true(alone && together);
    for (int turn = 0; turn < 2; turn++) {
        const struct text *order[MAX_TEXTS];
        for (int32_t i = 0; i < n; i++)
            order[i] = &texts[turn ? n - 1 - i : i];
        run(m, order, n, together, NULL);
        const float *at = together;
        for (int32_t i = 0; i < n; i++) {
            run(m, &order[i], 1, alone, NULL);
            assert_memory_equal(alone, at, (size_t)order[i]->n * hidden * sizeof *alone);
            at += (size_t)order[i]->n * hidden;
        }
    }
    free(alone);
    free(together);
}

static void check_folder(const char *name) {
    struct checkpoint c;
    struct text texts[MAX_TEXTS];
    checkpoint_open(&c, name);
    assert_true(c.graph->hidden_out && c.graph->both_ways);
    int32_t n = read_texts(&c, texts);
    for (int level = 0; level <= (int)mxc_cpu_best(); level++) {
        struct machine m;
        struct mxc_err err;
        double worst[2] = {0, 0};
        assert_int_equal(mxc_cpu_mask((enum mxc_cpu_level)level, &err), MXC_OK);
        open_machine(&m, &c);
        for (int32_t i = 0; i < n; i++)
            check_text(&m, &c, &texts[i], worst);
        check_batch(&m, &c, texts, n);
        close_machine(&m);
        print_message("%-10s %-7s hidden rows %.1e  layer norms %.1e\n", name,
                      mxc_cpu_level_name((enum mxc_cpu_level)level), worst[0], worst[1]);
        assert_true(worst[0] <= tolerance);
        assert_true(worst[1] <= tolerance);
    }
    checkpoint_close(&c);
}

static void plain_names(void **state) {
    (void)state;
    check_folder("bert");
}

static void prefixed_names(void **state) {
    (void)state;
    check_folder("bert_cls");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(plain_names),
                                       cmocka_unit_test(prefixed_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
