/* Golden checkpoints, see checkpoint.h. */
#define _GNU_SOURCE
#include "golden/checkpoint.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void need(enum mxc_code code, const struct mxc_err *err, const char *what) {
    if (code)
        print_message("%s: %s\n", what, err->message);
    assert_int_equal(code, MXC_OK);
}

static void path_of(char path[512], const char *name, const char *file) {
    snprintf(path, 512, "%s/golden/%s%s%s", MXC_TEST_DATA, name, *file ? "/" : "", file);
}

void checkpoint_open(struct checkpoint *c, const char *name) {
    char path[512];
    struct mxc_err err;
    *c = (struct checkpoint){0};
    snprintf(c->name, sizeof c->name, "%s", name);
    path_of(path, name, "model.gguf");
    if (access(path, R_OK))
        path_of(path, name, "");
    need(mxc_config_open(path, &c->config, &err), &err, name);
    need(mxc_weights_open(path, c->config, &c->weights, &err), &err, name);
    need(mxc_model_graph(c->config, c->weights, &c->graph, &err), &err, name);
    path_of(path, name, "golden/golden.json");
    need(mxc_json_load(path, 1 << 24, &c->golden, &err), &err, name);
    path_of(path, name, "golden/golden.safetensors");
    need(mxc_safetensors_open(path, &c->tensors, &err), &err, name);
}

void checkpoint_close(struct checkpoint *c) {
    mxc_graph_free(c->graph);
    mxc_weights_close(c->weights);
    mxc_config_close(c->config);
    json_decref(c->golden);
    mxc_safetensors_close(c->tensors);
}

static bool has_pictures(const json_t *item) {
    return json_array_size(json_object_get(item, "images")) > 0;
}

int32_t checkpoint_cases(const struct checkpoint *c) {
    const json_t *item;
    size_t i;
    int32_t n = 0;
    json_array_foreach(json_object_get(c->golden, "cases"), i, item) n += !has_pictures(item);
    return n;
}

static const json_t *text_case(const struct checkpoint *c, int32_t index) {
    const json_t *item;
    size_t i;
    json_array_foreach(json_object_get(c->golden, "cases"), i, item) {
        if (!has_pictures(item) && !index--)
            return item;
    }
    return NULL;
}

static int32_t *numbers(const json_t *array, int32_t *n) {
    *n = (int32_t)json_array_size(array);
    int32_t *out = calloc((size_t)*n + 1, sizeof *out);
    assert_non_null(out);
    for (int32_t i = 0; i < *n; i++)
        out[i] = (int32_t)json_integer_value(json_array_get(array, (size_t)i));
    return out;
}

static const float *floats(const struct checkpoint *c, const char *name, int32_t *n0, int32_t *n1) {
    for (size_t i = 0; i < c->tensors->n_tensors; i++) {
        const struct mxc_st_tensor *t = &c->tensors->tensors[i];
        if (strcmp(t->name, name))
            continue;
        assert_int_equal(t->storage, MXC_ST_F32);
        assert_int_equal(t->n_dims, 2);
        *n0 = (int32_t)t->shape[0];
        *n1 = (int32_t)t->shape[1];
        return (const float *)(const void *)t->data;
    }
    fail_msg("%s: no golden tensor %s", c->name, name);
    return NULL;
}

void checkpoint_case(const struct checkpoint *c, int32_t index, struct golden_case *out) {
    const json_t *from = text_case(c, index), *ids = json_object_get(from, "ids");
    int32_t n, vocab;
    *out = (struct golden_case){.name = json_string_value(json_object_get(from, "name"))};
    out->ids = numbers(ids ? ids : json_object_get(from, "expanded_ids"), &out->n_ids);
    out->greedy = numbers(json_object_get(from, "greedy_ids"), &out->n_greedy);
    assert_true(out->n_ids > 0 && out->n_greedy > 0);
    const char *name = json_string_value(json_object_get(from, "logits"));
    assert_non_null(name);
    out->logits = floats(c, name, &out->n_rows, &vocab);
    assert_int_equal(vocab, c->graph->vocab);
    const json_t *rows = json_object_get(from, "logits_positions");
    if (json_is_array(rows)) {
        out->rows = numbers(rows, &n);
        assert_int_equal(n, out->n_rows);
    } else {
        assert_int_equal(out->n_rows, out->n_ids);
        out->rows = calloc((size_t)out->n_rows, sizeof *out->rows);
        assert_non_null(out->rows);
        for (int32_t i = 0; i < out->n_rows; i++)
            out->rows[i] = i;
    }
    name = json_string_value(json_object_get(from, "layer_l2"));
    if (!name) /* vision models in MLX's formats have none */
        return;
    out->layer_l2 = floats(c, name, &n, &out->n_l2);
    assert_int_equal(n, c->graph->n_layers + 2);
    assert_true(out->n_l2 == out->n_ids || out->n_l2 == out->n_rows);
}

void golden_case_fini(struct golden_case *out) {
    free(out->ids);
    free(out->greedy);
    free(out->rows);
}

double golden_case_difference(const struct golden_case *g, const float *logits, size_t vocab) {
    double difference = 0, largest = 0;
    for (int32_t r = 0; r < g->n_rows; r++)
        for (size_t i = 0; i < vocab; i++) {
            double want = (double)g->logits[(size_t)r * vocab + i];
            double have = (double)logits[(size_t)g->rows[r] * vocab + i];
            if (!(fabs(have - want) <= difference))
                difference = fabs(have - want);
            largest = fmax(largest, fabs(want));
        }
    return difference / largest;
}

double golden_case_run(struct runner *r, const struct golden_case *g) {
    struct sequence s;
    size_t vocab = (size_t)r->graph->vocab;
    float *logits = calloc((size_t)g->n_ids * vocab, sizeof *logits);
    assert_non_null(logits);
    sequence_open(r, &s, g->n_ids + g->n_greedy);
    s.rope_length = g->n_ids;
    struct feed feed = {&s, g->ids, g->n_ids, logits};
    runner_step(r, &feed, 1, NULL, NULL);
    double worst = golden_case_difference(g, logits, vocab);
    const float *last = logits + (size_t)(g->n_ids - 1) * vocab;
    for (int32_t i = 0; i < g->n_greedy; i++) {
        int32_t best = 0;
        for (int32_t k = 1; k < (int32_t)vocab; k++)
            best = last[k] > last[best] ? k : best;
        assert_int_equal(best, g->greedy[i]);
        feed = (struct feed){&s, &best, 1, logits};
        runner_step(r, &feed, 1, NULL, NULL);
        last = logits;
    }
    sequence_close(&s);
    free(logits);
    return worst;
}

/* ---- encoders */

static const float *text_floats(const struct checkpoint *c, const char *text, const char *what,
                                int32_t want0, int32_t want1) {
    char name[128];
    int32_t n0, n1;
    (void)snprintf(name, sizeof name, "%s.%s", text, what);
    const float *out = floats(c, name, &n0, &n1);
    assert_int_equal(n0, want0);
    assert_int_equal(n1, want1);
    return out;
}

int32_t checkpoint_texts(const struct checkpoint *c, struct golden_text texts[GOLDEN_MAX_TEXTS]) {
    size_t i, j;
    const json_t *item, *id;
    int32_t n = 0;
    json_array_foreach(json_object_get(c->golden, "cases"), i, item) {
        if (json_object_get(item, "texts"))
            continue;
        assert_true(n < GOLDEN_MAX_TEXTS);
        struct golden_text *t = &texts[n++];
        t->name = json_string_value(json_object_get(item, "name"));
        t->n = 0;
        json_array_foreach(json_object_get(item, "ids"), j, id) {
            assert_true(t->n < GOLDEN_TEXT_TOKENS);
            t->ids[t->n++] = (int32_t)json_integer_value(id);
        }
        t->hidden = text_floats(c, t->name, "hidden", t->n, c->graph->hidden);
        t->layer_l2 = text_floats(c, t->name, "layer_l2", c->graph->n_layers + 1, t->n);
    }
    assert_true(n >= 3);
    return n;
}

void golden_texts_run(const struct runner *r, const struct golden_text *const *texts, int32_t n,
                      float *hidden, mxc_tap_fn *tap, void *tap_user) {
    enum { MAX_ROWS = 512, TEXT_BLOCKS = GOLDEN_TEXT_TOKENS / MXC_KV_BLOCK };
    int32_t tokens[MAX_ROWS], positions[MAX_ROWS], row_end[MAX_ROWS], out_row[MAX_ROWS];
    int32_t blocks[GOLDEN_MAX_TEXTS][TEXT_BLOCKS], row = 0;
    struct mxc_span spans[GOLDEN_MAX_TEXTS];
    struct mxc_err err;
    assert_true(n <= GOLDEN_MAX_TEXTS);
    for (int32_t i = 0; i < n; i++) {
        spans[i] = (struct mxc_span){
            .row0 = row, .n_rows = texts[i]->n, .rope_length = texts[i]->n, .adapter = -1};
        for (int32_t b = 0; b < TEXT_BLOCKS; b++)
            blocks[i][b] = (i * TEXT_BLOCKS + b) % r->n_blocks;
        spans[i].blocks[MXC_KV_FULL] = blocks[i];
        spans[i].n_blocks[MXC_KV_FULL] = TEXT_BLOCKS;
        for (int32_t t = 0; t < texts[i]->n; t++, row++) {
            assert_true(row < MAX_ROWS);
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
    const struct mxc_out out = {hidden, tap, tap_user};
    need(r->ops->run(r->plan, r->state, &step, &out, &err), &err, "texts");
}

/* ---- folders */

static int compare_names(const void *a, const void *b) {
    return strcmp(a, b);
}

int32_t checkpoint_list(char (**names)[CHECKPOINT_MAX_NAME]) {
    char path[512], config[512];
    int32_t n = 0;
    DIR *dir = opendir(MXC_TEST_DATA "/golden");
    assert_non_null(dir);
    *names = NULL;
    for (struct dirent *e; (e = readdir(dir));) {
        if (e->d_name[0] == '.' || strlen(e->d_name) >= CHECKPOINT_MAX_NAME)
            continue;
        path_of(path, e->d_name, "model.gguf");
        path_of(config, e->d_name, "config.json");
        if (access(path, R_OK) && access(config, R_OK)) /* a folder of something else */
            continue;
        path_of(path, e->d_name, "modules.json");
        if (!access(path, R_OK)) /* an encoder: no logits */
            continue;
        *names = realloc(*names, (size_t)(n + 1) * sizeof **names);
        assert_non_null(*names);
        memcpy((*names)[n++], e->d_name, strlen(e->d_name) + 1);
    }
    closedir(dir);
    assert_true(n > 0);
    qsort(*names, (size_t)n, sizeof **names, compare_names);
    return n;
}
