/* A pooled request is one allocation: sums of the rows so far, freed by its DONE event. Sums are
 * double, row after row, so that how the engine cuts the text does not show in them.
 * The files of sentence-transformers: modules.json lists a pipeline (Transformer, Pooling, perhaps
 * Normalize), the pooling module's folder has a config.json with one flag for each mode. */
#define _GNU_SOURCE
#include "gen/embed.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- names */

static const char *const names[MXC_N_POOLINGS] = {"default", "mean", "cls", "last", "max"};

const char *mxc_pooling_name(enum mxc_pooling pooling) {
    return (unsigned)pooling < MXC_N_POOLINGS ? names[pooling] : NULL;
}

bool mxc_pooling_find(const char *name, enum mxc_pooling *pooling) {
    for (int i = 0; i < MXC_N_POOLINGS; i++)
        if (!strcmp(name, names[i])) {
            *pooling = (enum mxc_pooling)i;
            return true;
        }
    return false;
}

/* ---- what the checkpoint says */

static enum mxc_code load_json(const char *folder, const char *file, json_t **root,
                               struct mxc_err *err) {
    enum { MOST = 1 << 20 };
    char *path = mxc_path_join(folder, file);
    enum mxc_code code = path ? mxc_json_load(path, MOST, root, err) : mxc_err_nomem(err);
    mxc_mem_free(path);
    return code;
}

/* One mode, or two that are asked for together. */
static enum mxc_code add_mode(const char *mode, enum mxc_pooling *pooling, struct mxc_err *err) {
    static const struct {
        const char *name;
        enum mxc_pooling pooling;
    } modes[] = {{"mean_tokens", MXC_POOL_MEAN}, {"mean", MXC_POOL_MEAN},
                 {"cls_token", MXC_POOL_CLS},    {"cls", MXC_POOL_CLS},
                 {"lasttoken", MXC_POOL_LAST},   {"max_tokens", MXC_POOL_MAX},
                 {"max", MXC_POOL_MAX}};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        if (strcmp(mode, modes[i].name) != 0)
            continue;
        if (*pooling != MXC_POOL_DEFAULT)
            return mxc_err_set(err, MXC_E_UNSUPPORTED, "several pooling modes at once");
        *pooling = modes[i].pooling;
        return MXC_OK;
    }
    return mxc_err_set(err, MXC_E_UNSUPPORTED,
                       "pooling mode \"%.40s\" is not supported (cls_token, mean_tokens, "
                       "max_tokens and lasttoken are)",
                       mode);
}

/* Modes as flags ("pooling_mode_mean_tokens": true) or by name ("pooling_mode": "mean"). */
static enum mxc_code read_modes(const json_t *config, enum mxc_pooling *pooling,
                                struct mxc_err *err) {
    const char *key, *mode = NULL;
    const json_t *value;
    enum mxc_code code = mxc_json_get_string(config, "pooling_mode", &mode, err);
    if (!code && mode)
        code = add_mode(mode, pooling, err);
    json_object_foreach((json_t *)(uintptr_t)config, key, value) {
        if (code)
            break;
        if (!strncmp(key, "pooling_mode_", 13) && json_is_true(value))
            code = add_mode(key + 13, pooling, err);
    }
    if (!code && *pooling == MXC_POOL_DEFAULT)
        code = mxc_err_set(err, MXC_E_FORMAT, "no pooling mode is set");
    return code;
}

static enum mxc_code read_pooling(const char *folder, const json_t *module, int32_t width,
                                  enum mxc_pooling *pooling, struct mxc_err *err) {
    const char *name = NULL;
    char file[300];
    int64_t given = width;
    json_t *config = NULL;
    enum mxc_code code = mxc_json_get_string(module, "path", &name, err);
    if (code)
        return code;
    if (!name || !*name || strlen(name) > 255 || strpbrk(name, "/\\") || name[0] == '.')
        return mxc_err_set(err, MXC_E_FORMAT, "path: the pooling module's is no plain name");
    (void)snprintf(file, sizeof file, "%s/config.json", name);
    if ((code = load_json(folder, file, &config, err)))
        return code;
    code = mxc_json_get_int(config, "word_embedding_dimension", 1, INT32_MAX, &given, err);
    if (!code && given != width)
        code = mxc_err_set(err, MXC_E_FORMAT, "word_embedding_dimension: %lld, but rows have %d",
                           (long long)given, width);
    if (!code)
        code = read_modes(config, pooling, err);
    json_decref(config);
    return code ? mxc_err_context(err, "%s", file) : MXC_OK;
}

static bool is_type(const char *type, const char *last) {
    const char *dot = strrchr(type, '.');
    return !strcmp(dot ? dot + 1 : type, last);
}

/* The pipeline: Transformer, Pooling, Normalize or not. */
static enum mxc_code read_modules(const char *folder, const json_t *modules, int32_t width,
                                  struct mxc_embed_rule *rule, struct mxc_err *err) {
    size_t i;
    const json_t *module;
    enum mxc_code code = MXC_OK;
    if (!json_is_array(modules))
        return mxc_err_set(err, MXC_E_FORMAT, "not a list");
    json_array_foreach(modules, i, module) {
        const char *type = NULL;
        if (!code)
            code = mxc_json_get_string(module, "type", &type, err);
        if (code)
            break;
        if (!type)
            code = mxc_err_set(err, MXC_E_FORMAT, "[%zu].type: missing", i);
        else if (is_type(type, "Pooling"))
            code = rule->pooling == MXC_POOL_DEFAULT
                       ? read_pooling(folder, module, width, &rule->pooling, err)
                       : mxc_err_set(err, MXC_E_UNSUPPORTED, "[%zu]: pools a second time", i);
        else if (is_type(type, "Normalize"))
            rule->normalise = true;
        else if (!is_type(type, "Transformer") || i)
            code = mxc_err_set(err, MXC_E_UNSUPPORTED, "[%zu].type: \"%.80s\" is not supported", i,
                               type);
    }
    return code;
}

enum mxc_code mxc_embed_rule_read(const char *path, const struct mxc_graph *graph,
                                  enum mxc_pooling override, struct mxc_embed_rule *rule,
                                  struct mxc_err *err) {
    struct mxc_embed_rule r = {MXC_POOL_DEFAULT, false};
    json_t *modules = NULL;
    char *file = mxc_path_join(path, "modules.json");
    if (!file)
        return mxc_err_nomem(err);
    bool there = mxc_file_exists(file);
    mxc_mem_free(file);
    enum mxc_code code = there ? load_json(path, "modules.json", &modules, err) : MXC_OK;
    if (!code && there && (code = read_modules(path, modules, graph->hidden, &r, err)))
        (void)mxc_err_context(err, "%s: modules.json", path);
    json_decref(modules);
    if (code)
        return code;
    if (!there)
        r.normalise = true;
    if (r.pooling == MXC_POOL_DEFAULT)
        r.pooling = graph->both_ways ? MXC_POOL_MEAN : MXC_POOL_LAST;
    if (override != MXC_POOL_DEFAULT)
        r.pooling = override;
    *rule = r;
    return MXC_OK;
}

/* ---- ids */

/* How many special tokens stand behind the text: those after the place where the ids of the text
 * alone stand in the ids with special ones. */
static size_t count_behind(const uint32_t *all, size_t n_all, const uint32_t *plain,
                           size_t n_plain) {
    for (size_t at = 0; at + n_plain <= n_all; at++)
        if (!memcmp(all + at, plain, n_plain * sizeof *plain))
            return n_all - n_plain - at;
    return 0;
}

enum mxc_code mxc_embed_ids(const struct mxc_chat *chat, const char *text, size_t length,
                            int32_t max_tokens, bool truncate, struct mxc_ids *ids,
                            struct mxc_err *err) {
    const struct mxc_encode_options with = {.add_special = true, .parse_special = true};
    const struct mxc_encode_options without = {.add_special = false, .parse_special = true};
    struct mxc_ids plain = {0};
    size_t first = ids->count, most = max_tokens > 0 ? (size_t)max_tokens : 1;
    enum mxc_code code = mxc_chat_text(chat, text, length, with, ids, err);
    if (code || !truncate || ids->count - first <= most)
        return code;
    code = mxc_chat_text(chat, text, length, without, &plain, err);
    if (!code) {
        uint32_t *all = ids->items + first;
        size_t n = ids->count - first, behind = count_behind(all, n, plain.items, plain.count);
        behind = behind < most ? behind : most;
        memmove(all + (most - behind), all + (n - behind), behind * sizeof *all);
        ids->count = first + most;
    }
    mxc_ids_fini(&plain);
    return code;
}

/* ---- a request */

struct pooled {
    struct mxc_embed_params params;
    int32_t width, n_rows; /* rows taken in so far */
    double sums[];         /* [width] */
};

static void take_row(struct pooled *p, const float *row) {
    bool take = p->params.rule.pooling == MXC_POOL_LAST || !p->n_rows;
    for (int32_t i = 0; i < p->width; i++) {
        double x = (double)row[i];
        if (take)
            p->sums[i] = x;
        else if (p->params.rule.pooling == MXC_POOL_MEAN)
            p->sums[i] += x;
        else if (p->params.rule.pooling == MXC_POOL_MAX && !(x <= p->sums[i]))
            p->sums[i] = x;
    }
    p->n_rows++;
}

/* Makes the vector out of the sums, in their place. false: it holds numbers that are none. */
static bool make_vector(struct pooled *p, float **vector, int32_t *n) {
    const struct mxc_embed_params *params = &p->params;
    double scale = params->rule.pooling == MXC_POOL_MEAN ? 1.0 / p->n_rows : 1.0, norm = 0;
    float *out = (float *)p->sums;
    *n = params->dimensions ? params->dimensions : p->width;
    for (int32_t i = 0; i < *n; i++)
        norm += p->sums[i] * scale * (p->sums[i] * scale);
    if (!isfinite(norm))
        return false;
    if (params->rule.normalise && norm > 0)
        scale /= sqrt(norm);
    for (int32_t i = 0; i < *n; i++) { /* the place of float i is behind us already */
        float x = (float)(p->sums[i] * scale);
        memcpy((char *)out + (size_t)i * sizeof x, &x, sizeof x);
    }
    *vector = out;
    return true;
}

static void finish(struct pooled *p, const struct mxc_event *event) {
    struct mxc_embed_result result = {.request = event->request,
                                      .reason = event->reason,
                                      .err = event->err,
                                      .stats = event->stats};
    struct mxc_err err;
    float *vector;
    if (event->reason == MXC_DONE_LENGTH) {
        if (make_vector(p, &vector, &result.n)) {
            result.vector = vector;
        } else {
            (void)mxc_err_set(&err, MXC_E_BACKEND, "the embedding is not finite");
            result.reason = MXC_DONE_ERROR;
            result.err = &err;
        }
    }
    p->params.done(p->params.user, &result);
    mxc_mem_free(p);
}

static bool on_event(void *user, const struct mxc_event *event) {
    struct pooled *p = user;
    if (event->kind == MXC_EVENT_DONE) {
        finish(p, event);
        return false;
    }
    if (event->kind != MXC_EVENT_ROWS)
        return true;
    if (!event->row0)
        p->n_rows = 0;
    for (int32_t i = 0; i < event->n_rows; i++)
        take_row(p, event->rows + (size_t)i * (size_t)p->width);
    return true;
}

enum mxc_code mxc_embed_submit(struct mxc_engine *engine, int32_t width, const int32_t *ids,
                               int32_t n_ids, const struct mxc_embed_params *params, uint64_t *id,
                               struct mxc_err *err) {
    struct mxc_prompt prompt = {.tokens = ids, .n_tokens = n_ids, .adapter = -1};
    struct mxc_request_params request;
    if (!params->done)
        return mxc_err_set(err, MXC_E_ARG, "a request needs a function that takes its result");
    if (params->dimensions < 0 || params->dimensions > width)
        return mxc_err_set(err, MXC_E_ARG, "dimensions: %d is not in [1, %d]", params->dimensions,
                           width);
    size_t bytes = sizeof(struct pooled) + (size_t)width * sizeof(double);
    struct pooled *p = mxc_mem_alloc(bytes);
    if (!p)
        return mxc_err_nomem(err);
    p->params = *params;
    p->width = width;
    p->n_rows = 0;
    mxc_request_params_init(&request);
    request.max_tokens = 0;
    request.rows = true;
    request.priority = params->priority;
    request.deadline_ns = params->deadline_ns;
    request.event = on_event;
    request.user = p;
    enum mxc_code code = mxc_engine_submit(engine, &prompt, &request, id, err);
    if (code)
        mxc_mem_free(p);
    return code;
}
