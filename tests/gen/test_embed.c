/* Embeddings: what checkpoints say about pooling, vectors against the goldens' at every ISA level,
 * the same bits alone, in a batch and in small chunks, decoders' hidden rows against their logits,
 * truncation, and requests that must be refused. */
#define _GNU_SOURCE
#include "test.h"

#include "base/cpu.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "engine/load.h"
#include "format/safetensors.h"
#include "gen/embed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_WIDTH = 256, MAX_TEXTS = 20, MAX_TOKENS = 512 };

static const char *folder_of(const char *name) {
    static char path[256];
    (void)snprintf(path, sizeof path, MXC_TEST_DATA "/golden/%s", name);
    return path;
}

/* ---- a model, its tokeniser, an engine */

struct setup {
    struct mxc_model *model;
    struct mxc_chat *chat;
    struct mxc_engine *engine;
    int32_t width, context;
    struct mxc_embed_rule rule;
};

struct shape {
    int32_t max_rows, max_batch, context;
    bool text; /* opened for text, not for embeddings */
};

static void open_setup(struct setup *s, const char *name, struct shape shape) {
    struct mxc_load_options load;
    struct mxc_engine_options o;
    struct mxc_err err;
    mxc_load_options_init(&load);
    load.n_threads = 2;
    load.precision = MXC_PRECISION_EXACT;
    load.max_rows = shape.max_rows;
    load.max_out = load.max_batch = shape.max_batch;
    load.context = shape.context;
    load.hidden = !shape.text;
    if (mxc_model_open(folder_of(name), &load, &s->model, &err))
        fail_msg("%s", err.message);
    const struct mxc_graph *graph = s->model->checkpoint->graph;
    assert_int_equal(
        mxc_chat_open(folder_of(name), s->model->checkpoint->config, graph->vocab, &s->chat, &err),
        MXC_OK);
    mxc_engine_options_init(&o);
    o.max_rows = s->model->options.max_rows;
    o.max_batch = o.max_prefills = shape.max_batch;
    o.context = s->context = shape.context;
    assert_int_equal(
        mxc_model_blocks(s->model, shape.context, shape.max_batch, 0, 0, o.n_blocks, &err), MXC_OK);
    const struct mxc_engine_target target = mxc_model_target(s->model);
    assert_int_equal(mxc_engine_new(&target, &o, &s->engine, &err), MXC_OK);
    s->width = graph->hidden;
    assert_true(s->width <= MAX_WIDTH);
    assert_int_equal(mxc_embed_rule_read(folder_of(name), graph, MXC_POOL_DEFAULT, &s->rule, &err),
                     MXC_OK);
}

static void close_setup(struct setup *s) {
    mxc_engine_free(s->engine);
    mxc_chat_close(s->chat);
    mxc_model_close(s->model);
}

struct answer {
    float vector[MAX_WIDTH];
    int32_t n, n_done, n_tokens;
    bool has;
    enum mxc_done_reason reason;
    enum mxc_code code;
};

static void on_done(void *user, const struct mxc_embed_result *r) {
    struct answer *a = user;
    a->n_done++;
    a->n = r->n;
    a->has = r->vector != NULL;
    a->reason = r->reason;
    a->code = r->err ? r->err->code : MXC_OK;
    a->n_tokens = r->stats->n_prompt;
    if (r->vector)
        memcpy(a->vector, r->vector, (size_t)r->n * sizeof *r->vector);
}

static enum mxc_code ask(struct setup *s, const int32_t *ids, int32_t n, struct mxc_embed_rule rule,
                         int32_t dimensions, struct answer *answer, uint64_t *id) {
    const struct mxc_embed_params params = {
        .rule = rule, .dimensions = dimensions, .done = on_done, .user = answer};
    struct mxc_err err;
    uint64_t none;
    *answer = (struct answer){.n_done = 0};
    return mxc_embed_submit(s->engine, s->width, ids, n, &params, id ? id : &none, &err);
}

static void work(struct setup *s) {
    while (mxc_engine_step(s->engine))
        ;
}

static void ids_of(const struct setup *s, const char *text, bool truncate, int32_t most,
                   int32_t ids[], int32_t *n) {
    struct mxc_ids made = {0};
    struct mxc_err err;
    if (mxc_embed_ids(s->chat, text, strlen(text), most, truncate, &made, &err))
        fail_msg("%s", err.message);
    assert_true(made.count <= MAX_TOKENS);
    for (size_t i = 0; i < made.count; i++)
        ids[i] = (int32_t)made.items[i];
    *n = (int32_t)made.count;
    mxc_ids_fini(&made);
}

/* ---- goldens */

struct golden {
    json_t *root;
    struct mxc_safetensors *tensors;
};

static void open_golden(struct golden *g, const char *name) {
    char path[512];
    struct mxc_err err;
    (void)snprintf(path, sizeof path, "%s/golden/golden.json", folder_of(name));
    assert_int_equal(mxc_json_load(path, 1 << 24, &g->root, &err), MXC_OK);
    (void)snprintf(path, sizeof path, "%s/golden/golden.safetensors", folder_of(name));
    assert_int_equal(mxc_safetensors_open(path, &g->tensors, &err), MXC_OK);
}

static void close_golden(struct golden *g) {
    json_decref(g->root);
    mxc_safetensors_close(g->tensors);
}

static const float *tensor_of(const struct golden *g, const char *text, const char *what,
                              int64_t *rows) {
    char name[128];
    (void)snprintf(name, sizeof name, "%s.%s", text, what);
    for (size_t i = 0; i < g->tensors->n_tensors; i++) {
        const struct mxc_st_tensor *t = &g->tensors->tensors[i];
        if (strcmp(t->name, name) != 0)
            continue;
        assert_int_equal(t->storage, MXC_ST_F32);
        if (rows)
            *rows = t->shape[0];
        return (const float *)(const void *)t->data;
    }
    fail_msg("no golden tensor %s", name);
    return NULL;
}

static double distance(const float *a, const float *b, int32_t n) {
    double worst = 0;
    for (int32_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        worst = d <= worst ? worst : d;
    }
    return worst;
}

static void check_encoder(struct setup *s, const struct golden *g, double *worst) {
    static const struct {
        const char *name;
        struct mxc_embed_rule rule;
    } others[] = {{"mean", {MXC_POOL_MEAN, false}}, {"cls", {MXC_POOL_CLS, false}}};
    size_t i;
    const json_t *item;
    int n_texts = 0;
    json_array_foreach(json_object_get(g->root, "cases"), i, item) {
        const char *text = json_string_value(json_object_get(item, "text"));
        const char *name = json_string_value(json_object_get(item, "name"));
        int32_t ids[MAX_TOKENS], n;
        struct answer a, b[2];
        if (!text)
            continue; /* a pair */
        n_texts++;
        ids_of(s, text, false, s->context, ids, &n);
        const json_t *want = json_object_get(item, "ids");
        assert_int_equal(n, json_array_size(want));
        for (int32_t k = 0; k < n; k++)
            assert_int_equal(ids[k], json_integer_value(json_array_get(want, (size_t)k)));
        assert_int_equal(ask(s, ids, n, s->rule, 0, &a, NULL), MXC_OK);
        for (int k = 0; k < 2; k++)
            assert_int_equal(ask(s, ids, n, others[k].rule, 0, &b[k], NULL), MXC_OK);
        work(s);
        assert_true(a.has && a.n == s->width && a.n_done == 1 && a.n_tokens == n);
        *worst = fmax(*worst, distance(a.vector, tensor_of(g, name, "embedding", NULL), a.n));
        for (int k = 0; k < 2; k++) {
            assert_true(b[k].has);
            *worst =
                fmax(*worst, distance(b[k].vector, tensor_of(g, name, others[k].name, NULL), a.n));
        }
    }
    assert_true(n_texts >= 3);
}

static void encoders(void **state) {
    static const char *const names[] = {"bert", "bert_cls"};
    (void)state;
    for (size_t i = 0; i < 2; i++)
        for (int level = 0; level <= (int)mxc_cpu_best(); level++) {
            struct setup s;
            struct golden g;
            struct mxc_err err;
            double worst = 0;
            assert_int_equal(mxc_cpu_mask((enum mxc_cpu_level)level, &err), MXC_OK);
            open_setup(&s, names[i], (struct shape){64, 4, 512, false});
            open_golden(&g, names[i]);
            check_encoder(&s, &g, &worst);
            print_message("%-10s %-7s vectors %.1e\n", names[i],
                          mxc_cpu_level_name((enum mxc_cpu_level)level), worst);
            assert_true(worst <= 1e-5);
            close_golden(&g);
            close_setup(&s);
        }
}

/* ---- the same bits */

static void texts_of(int32_t vocab, int32_t most, int32_t ids[MAX_TEXTS][MAX_TOKENS],
                     int32_t n[MAX_TEXTS]) {
    for (int32_t i = 0; i < MAX_TEXTS; i++) {
        n[i] = 1 + (i * 37) % most;
        for (int32_t k = 0; k < n[i]; k++)
            ids[i][k] = (i * 7919 + k * 31 + 5) % vocab;
    }
}

/* All texts of the list at once, in an engine of some shape. */
static void embed_all(const char *name, struct shape shape, enum mxc_pooling pooling,
                      int32_t (*ids)[MAX_TOKENS], const int32_t *n, bool together,
                      struct answer *answers) {
    struct setup s;
    open_setup(&s, name, shape);
    for (int i = 0; i < MAX_TEXTS; i++) {
        const struct mxc_embed_rule rule = {pooling, true};
        assert_int_equal(ask(&s, ids[i], n[i], rule, 0, &answers[i], NULL), MXC_OK);
        if (!together)
            work(&s);
    }
    work(&s);
    close_setup(&s);
}

static void same_bits(void **state) {
    static const struct {
        const char *name;
        enum mxc_pooling pooling;
        int32_t chunk;
    } cases[] = {{"bert", MXC_POOL_MEAN, 16},
                 {"bert_cls", MXC_POOL_MAX, 16},
                 {"llama", MXC_POOL_MEAN, 24},
                 {"qwen3", MXC_POOL_LAST, 24},
                 {"gemma3_text", MXC_POOL_MEAN, 24}};
    static int32_t ids[MAX_TEXTS][MAX_TOKENS], n[MAX_TEXTS];
    static struct answer alone[MAX_TEXTS], other[MAX_TEXTS];
    struct mxc_err err;
    (void)state;
    assert_int_equal(mxc_cpu_mask(mxc_cpu_best(), &err), MXC_OK);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        texts_of(600, 150, ids, n);
        embed_all(cases[c].name, (struct shape){256, 1, 200, false}, cases[c].pooling, ids, n,
                  false, alone);
        for (int turn = 0; turn < 2; turn++) {
            struct shape shape = {turn ? cases[c].chunk : 256, 8, 200, false};
            embed_all(cases[c].name, shape, cases[c].pooling, ids, n, true, other);
            for (int i = 0; i < MAX_TEXTS; i++) {
                assert_true(alone[i].has && other[i].has && alone[i].n == other[i].n);
                assert_memory_equal(alone[i].vector, other[i].vector,
                                    (size_t)alone[i].n * sizeof(float));
            }
        }
    }
}

/* ---- decoders */

struct rows {
    float *at;
    int32_t n, width;
    bool done;
};

static bool take_rows(void *user, const struct mxc_event *event) {
    struct rows *r = user;
    r->done |= event->kind == MXC_EVENT_DONE;
    if (event->kind != MXC_EVENT_ROWS)
        return true;
    assert_int_equal(event->row0, r->n);
    memcpy(r->at + (size_t)r->n * (size_t)r->width, event->rows,
           (size_t)event->n_rows * (size_t)r->width * sizeof(float));
    r->n += event->n_rows;
    return true;
}

static void hidden_rows(struct setup *s, const int32_t *ids, int32_t n, float *rows) {
    struct mxc_request_params params;
    struct mxc_prompt prompt = {.tokens = ids, .n_tokens = n, .adapter = -1};
    struct rows r = {rows, 0, s->width, false};
    struct mxc_err err;
    uint64_t id;
    mxc_request_params_init(&params);
    params.max_tokens = 0;
    params.rows = true;
    params.event = take_rows;
    params.user = &r;
    assert_int_equal(mxc_engine_submit(s->engine, &prompt, &params, &id, &err), MXC_OK);
    work(s);
    assert_true(r.done && r.n == n);
}

/* Hidden rows times the head are the golden logits; pooled vectors are made of the rows. */
static void check_decoder(struct setup *s, const struct golden *g, const json_t *item,
                          const float *head, int32_t vocab, double *worst) {
    const json_t *list = json_object_get(item, "ids");
    const char *logits_name = json_string_value(json_object_get(item, "logits"));
    const float *logits = NULL;
    int32_t ids[MAX_TOKENS], n = (int32_t)json_array_size(list);
    double want[MAX_WIDTH] = {0}, largest = 0, difference = 0, norm = 0;
    for (int32_t i = 0; i < n; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(list, (size_t)i));
    for (size_t i = 0; i < g->tensors->n_tensors; i++)
        if (!strcmp(g->tensors->tensors[i].name, logits_name)) {
            const struct mxc_st_tensor *t = &g->tensors->tensors[i];
            logits = (const float *)(const void *)t->data;
            logits += (t->shape[0] - 1) * vocab; /* of the last row */
        }
    float *rows = calloc((size_t)n * (size_t)s->width, sizeof *rows);
    assert_true(rows && logits);
    hidden_rows(s, ids, n, rows);
    const float *last = rows + (size_t)(n - 1) * (size_t)s->width;
    for (int32_t v = 0; v < vocab; v++) {
        double sum = 0;
        for (int32_t i = 0; i < s->width; i++)
            sum += (double)last[i] * (double)head[(size_t)v * (size_t)s->width + (size_t)i];
        largest = fmax(largest, fabs((double)logits[v]));
        difference = fmax(difference, fabs(sum - (double)logits[v]));
    }
    *worst = fmax(*worst, difference / largest);

    struct answer mean, end;
    assert_int_equal(ask(s, ids, n, (struct mxc_embed_rule){MXC_POOL_MEAN, true}, 0, &mean, NULL),
                     MXC_OK);
    assert_int_equal(ask(s, ids, n, (struct mxc_embed_rule){MXC_POOL_LAST, false}, 0, &end, NULL),
                     MXC_OK);
    work(s);
    assert_memory_equal(end.vector, last, (size_t)s->width * sizeof *last);
    for (int32_t r = 0; r < n; r++)
        for (int32_t i = 0; i < s->width; i++)
            want[i] += (double)rows[(size_t)r * (size_t)s->width + (size_t)i] / n;
    for (int32_t i = 0; i < s->width; i++)
        norm += want[i] * want[i];
    for (int32_t i = 0; i < s->width; i++)
        assert_true(fabs((double)mean.vector[i] - want[i] / sqrt(norm)) <= 1e-6);
    free(rows);
}

static void decoders(void **state) {
    static const char *const names[] = {"llama", "qwen2", "gemma3_text", "qwen3_moe"};
    (void)state;
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        struct setup s;
        struct golden g;
        size_t i;
        const json_t *item;
        double worst = 0;
        open_setup(&s, names[k], (struct shape){100, 4, 512, false});
        open_golden(&g, names[k]);
        const struct mxc_weights *weights = s.model->checkpoint->weights;
        const struct mxc_tensor *t = mxc_weights_find(weights, "lm_head.weight");
        if (!t)
            t = mxc_weights_find(weights, "model.embed_tokens.weight");
        int32_t vocab = s.model->checkpoint->graph->vocab;
        float *head = calloc((size_t)vocab * (size_t)s.width, sizeof *head);
        assert_true(t && head);
        for (int32_t v = 0; v < vocab; v++)
            mxc_tensor_row(t, v, head + (size_t)v * (size_t)s.width);
        json_array_foreach(json_object_get(g.root, "cases"), i, item) {
            check_decoder(&s, &g, item, head, vocab, &worst);
        }
        print_message("%-12s logits of hidden rows %.1e\n", names[k], worst);
        assert_true(worst <= 1e-4);
        assert_int_equal(s.rule.pooling, MXC_POOL_LAST);
        assert_true(s.rule.normalise);
        free(head);
        close_golden(&g);
        close_setup(&s);
    }
}

/* ---- shortening */

static void dimensions_and_length(void **state) {
    struct setup s;
    struct answer whole, few, raw;
    int32_t ids[MAX_TOKENS], n;
    double norm = 0;
    (void)state;
    open_setup(&s, "bert", (struct shape){64, 4, 512, false});
    ids_of(&s, "The lamp on the desk is", false, 512, ids, &n);
    assert_int_equal(ask(&s, ids, n, s.rule, 0, &whole, NULL), MXC_OK);
    assert_int_equal(ask(&s, ids, n, s.rule, 5, &few, NULL), MXC_OK);
    assert_int_equal(ask(&s, ids, n, (struct mxc_embed_rule){MXC_POOL_MEAN, false}, 5, &raw, NULL),
                     MXC_OK);
    work(&s);
    assert_true(few.n == 5 && raw.n == 5 && whole.n == 64);
    for (int i = 0; i < 5; i++)
        norm += (double)few.vector[i] * (double)few.vector[i];
    assert_true(fabs(norm - 1) < 1e-6);
    for (int i = 1; i < 5; i++) { /* the same direction */
        assert_true(fabsf(few.vector[i] / few.vector[0] - whole.vector[i] / whole.vector[0]) <
                    1e-4f);
        assert_true(fabsf(few.vector[i] / few.vector[0] - raw.vector[i] / raw.vector[0]) < 1e-4f);
    }
    close_setup(&s);
}

static void truncation(void **state) {
    enum { CLS = 2, SEP = 3 };
    struct setup s;
    int32_t all[MAX_TOKENS], cut[MAX_TOKENS], n, m;
    static const char text[] = "A ferry crosses the bay eight times a day";
    (void)state;
    open_setup(&s, "bert", (struct shape){64, 4, 512, false});
    ids_of(&s, text, false, 512, all, &n);
    assert_true(n > 12);
    ids_of(&s, text, true, n, cut, &m);
    assert_int_equal(m, n);
    assert_memory_equal(all, cut, (size_t)n * sizeof *all);
    ids_of(&s, text, true, 10, cut, &m);
    assert_int_equal(m, 10);
    assert_memory_equal(all, cut, 9 * sizeof *all); /* [CLS] and the first words */
    assert_int_equal(cut[0], CLS);
    assert_int_equal(cut[9], SEP);
    ids_of(&s, text, true, 1, cut, &m);
    assert_int_equal(m, 1);
    ids_of(&s, text, false, 10, cut, &m);
    assert_int_equal(m, n); /* submit refuses it */
    close_setup(&s);
}

/* ---- refusals */

static bool no_event(void *user, const struct mxc_event *event) {
    (void)user;
    (void)event;
    fail_msg("an event of a refused request");
    return false;
}

static void refusals(void **state) {
    struct setup s;
    struct answer a;
    struct mxc_err err;
    struct mxc_request_params text;
    static int32_t ids[513];
    static const int32_t row_end[3] = {3, 3, 3};
    struct mxc_prompt prompt = {.tokens = ids, .n_tokens = 3, .adapter = -1};
    uint64_t id;
    (void)state;
    open_setup(&s, "bert", (struct shape){64, 4, 512, false});
    for (int i = 0; i < 513; i++)
        ids[i] = 5;
    assert_int_equal(ask(&s, ids, 513, s.rule, 0, &a, NULL), MXC_E_CONTEXT);
    assert_int_equal(ask(&s, ids, 0, s.rule, 0, &a, NULL), MXC_E_ARG);
    assert_int_equal(ask(&s, ids, 3, s.rule, 65, &a, NULL), MXC_E_ARG);
    assert_int_equal(ask(&s, ids, 3, s.rule, -1, &a, NULL), MXC_E_ARG);
    ids[1] = 607; /* the vocabulary's size */
    assert_int_equal(ask(&s, ids, 3, s.rule, 0, &a, NULL), MXC_E_ARG);
    ids[1] = 5;
    mxc_request_params_init(&text);
    text.event = no_event;
    assert_int_equal(mxc_engine_submit(s.engine, &prompt, &text, &id, &err), MXC_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "generates no text"));
    text.max_tokens = 0;
    assert_int_equal(mxc_engine_submit(s.engine, &prompt, &text, &id, &err), MXC_E_UNSUPPORTED);
    text.rows = true;
    prompt.row_end = row_end;
    assert_int_equal(mxc_engine_submit(s.engine, &prompt, &text, &id, &err), MXC_E_ARG);
    prompt.row_end = NULL;
    text.max_tokens = 1;
    assert_int_equal(mxc_engine_submit(s.engine, &prompt, &text, &id, &err), MXC_E_ARG);
    assert_int_equal(ask(&s, ids, 512, s.rule, 0, &a, &id), MXC_OK); /* a full context is fine */
    work(&s);
    assert_true(a.has);
    assert_int_equal(ask(&s, ids, 9, s.rule, 0, &a, &id), MXC_OK);
    mxc_engine_cancel(s.engine, id);
    work(&s);
    assert_true(a.n_done == 1 && !a.has && a.reason == MXC_DONE_CANCELLED);
    close_setup(&s);
    open_setup(&s, "llama", (struct shape){64, 4, 128, true});
    assert_int_equal(ask(&s, ids, 3, s.rule, 0, &a, NULL), MXC_E_UNSUPPORTED);
    close_setup(&s);
}

/* Texts for embeddings leave nothing in the prefix cache, and take nothing out of it. */
static void no_cache(void **state) {
    struct setup s;
    struct answer a;
    struct mxc_engine_stats stats;
    static int32_t ids[100];
    (void)state;
    open_setup(&s, "llama", (struct shape){64, 4, 128, false});
    for (int turn = 0; turn < 3; turn++) {
        assert_int_equal(ask(&s, ids, 100, s.rule, 0, &a, NULL), MXC_OK);
        work(&s);
    }
    mxc_engine_get_stats(s.engine, &stats);
    assert_int_equal(stats.n_hit_tokens, 0);
    assert_int_equal(stats.n_idle[MXC_KV_FULL], 0);
    assert_int_equal(stats.n_free[MXC_KV_FULL], stats.n_blocks[MXC_KV_FULL]);
    assert_int_equal(stats.n_generated, 0);
    close_setup(&s);
}

/* ---- rules */

static void rules(void **state) {
    struct mxc_embed_rule rule;
    struct mxc_err err;
    struct mxc_graph graph = {.hidden = 64, .both_ways = true};
    (void)state;
    assert_int_equal(mxc_embed_rule_read(folder_of("bert"), &graph, MXC_POOL_DEFAULT, &rule, &err),
                     MXC_OK);
    assert_true(rule.pooling == MXC_POOL_MEAN && rule.normalise);
    assert_int_equal(
        mxc_embed_rule_read(folder_of("bert_cls"), &graph, MXC_POOL_DEFAULT, &rule, &err), MXC_OK);
    assert_true(rule.pooling == MXC_POOL_CLS && !rule.normalise);
    assert_int_equal(mxc_embed_rule_read(folder_of("bert_cls"), &graph, MXC_POOL_LAST, &rule, &err),
                     MXC_OK);
    assert_true(rule.pooling == MXC_POOL_LAST && !rule.normalise);
    assert_int_equal(mxc_embed_rule_read(folder_of("llama"), &graph, MXC_POOL_DEFAULT, &rule, &err),
                     MXC_OK);
    assert_true(rule.pooling == MXC_POOL_MEAN && rule.normalise);
    graph.both_ways = false;
    assert_int_equal(mxc_embed_rule_read(folder_of("llama"), &graph, MXC_POOL_DEFAULT, &rule, &err),
                     MXC_OK);
    assert_true(rule.pooling == MXC_POOL_LAST && rule.normalise);
}

#define POOLING  "{\"type\": \"x.Pooling\", \"path\": \"p\"}"
#define PIPELINE "[{\"type\": \"x.Transformer\", \"path\": \"\"}, " POOLING "]"

static void bad_rules(void **state) {
    static const struct {
        const char *modules, *pooling;
        enum mxc_code code;
        const char *message;
    } cases[] = {
        {PIPELINE, "{\"pooling_mode_max_tokens\": true}", MXC_OK, ""},
        {PIPELINE, "{\"pooling_mode\": \"lasttoken\"}", MXC_OK, ""},
        {PIPELINE, NULL, MXC_E_NOT_FOUND, "p/config.json"},
        {PIPELINE, "[", MXC_E_FORMAT, "p/config.json"},
        {PIPELINE, "{}", MXC_E_FORMAT, "no pooling mode"},
        {PIPELINE, "{\"pooling_mode_mean_tokens\": false}", MXC_E_FORMAT, "no pooling mode"},
        {PIPELINE, "{\"pooling_mode_mean_tokens\": true, \"pooling_mode_cls_token\": true}",
         MXC_E_UNSUPPORTED, "several"},
        {PIPELINE, "{\"pooling_mode_weightedmean_tokens\": true}", MXC_E_UNSUPPORTED,
         "weightedmean_tokens"},
        {PIPELINE, "{\"pooling_mode\": 3}", MXC_E_FORMAT, "pooling_mode"},
        {PIPELINE, "{\"word_embedding_dimension\": 32, \"pooling_mode_cls_token\": true}",
         MXC_E_FORMAT, "32"},
        {"{}", NULL, MXC_E_FORMAT, "not a list"},
        {"[{}]", NULL, MXC_E_FORMAT, "[0].type"},
        {"[{\"type\": 1}]", NULL, MXC_E_FORMAT, "type"},
        {"[{\"type\": \"x.Dense\"}]", NULL, MXC_E_UNSUPPORTED, "Dense"},
        {"[{\"type\": \"x.Pooling\", \"path\": \"../p\"}]", NULL, MXC_E_FORMAT, "path"},
        {"[{\"type\": \"x.Pooling\", \"path\": \"/etc\"}]", NULL, MXC_E_FORMAT, "path"},
        {"[{\"type\": \"x.Pooling\", \"path\": \"..\"}]", NULL, MXC_E_FORMAT, "path"},
        {"[{\"type\": \"x.Pooling\"}]", NULL, MXC_E_FORMAT, "path"},
        {"[" POOLING "," POOLING "]", "{\"pooling_mode_cls_token\": true}", MXC_E_UNSUPPORTED,
         "second"},
    };
    char folder[] = "/tmp/mxc_embed_XXXXXX", modules[64], pooling[64], inner[64];
    const struct mxc_graph graph = {.hidden = 64};
    (void)state;
    assert_non_null(mkdtemp(folder));
    (void)snprintf(modules, sizeof modules, "%s/modules.json", folder);
    (void)snprintf(inner, sizeof inner, "%s/p", folder);
    (void)snprintf(pooling, sizeof pooling, "%s/p/config.json", folder);
    assert_int_equal(mxc_dir_make(inner, NULL), MXC_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mxc_embed_rule rule;
        struct mxc_err err = {.message = ""};
        assert_int_equal(mxc_file_write(modules, cases[i].modules, strlen(cases[i].modules), &err),
                         MXC_OK);
        (void)unlink(pooling);
        if (cases[i].pooling)
            assert_int_equal(
                mxc_file_write(pooling, cases[i].pooling, strlen(cases[i].pooling), &err), MXC_OK);
        enum mxc_code code = mxc_embed_rule_read(folder, &graph, MXC_POOL_DEFAULT, &rule, &err);
        if (code != cases[i].code || (code && !strstr(err.message, cases[i].message)))
            fail_msg("case %zu: code %d, \"%s\"", i, (int)code, err.message);
    }
    (void)unlink(pooling);
    (void)unlink(modules);
    (void)rmdir(inner);
    (void)rmdir(folder);
}

static void names(void **state) {
    enum mxc_pooling p;
    (void)state;
    for (int i = 0; i < MXC_N_POOLINGS; i++) {
        assert_true(mxc_pooling_find(mxc_pooling_name((enum mxc_pooling)i), &p));
        assert_int_equal(p, i);
    }
    assert_false(mxc_pooling_find("none", &p));
    assert_null(mxc_pooling_name(MXC_N_POOLINGS));
}

static void memory_runs_out(void **state) {
    struct setup s;
    (void)state;
    open_setup(&s, "bert", (struct shape){64, 4, 512, false});
    bool done = false;
    for (uint64_t at = 1; !done; at++) {
        static const char text[] = "A ferry crosses the bay";
        struct mxc_embed_rule rule;
        struct mxc_ids ids = {0};
        struct answer a = {.n_done = 0};
        const struct mxc_embed_params params = {.rule = s.rule, .done = on_done, .user = &a};
        struct mxc_err err;
        uint64_t id;
        assert_true(at < 100000);
        mxc_mem_fail_at(at);
        enum mxc_code code =
            mxc_embed_rule_read(MXC_TEST_DATA "/golden/bert", s.model->checkpoint->graph,
                                MXC_POOL_DEFAULT, &rule, &err);
        if (!code)
            code = mxc_embed_ids(s.chat, text, sizeof text - 1, 4, true, &ids, &err);
        if (!code)
            code = mxc_embed_submit(s.engine, s.width, (const int32_t *)(const void *)ids.items,
                                    (int32_t)ids.count, &params, &id, &err);
        mxc_mem_fail_at(0);
        done = !code;
        assert_true(done || code == MXC_E_NOMEM);
        work(&s);
        assert_int_equal(a.n_done, done);
        mxc_ids_fini(&ids);
    }
    close_setup(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),          cmocka_unit_test(rules),
        cmocka_unit_test(bad_rules),      cmocka_unit_test(encoders),
        cmocka_unit_test(same_bits),      cmocka_unit_test(decoders),
        cmocka_unit_test(truncation),     cmocka_unit_test(dimensions_and_length),
        cmocka_unit_test(refusals),       cmocka_unit_test(no_cache),
        cmocka_unit_test(memory_runs_out)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
