/* The models of a server. One loader thread opens them one after another, so that their memory is
 * never asked for at once; one loop steps all their engines.
 * The mutex guards states, progress and errors. What a model's READY state publishes (chat, engine,
 * facts) is written before the state under the mutex and never again, so readers that saw READY
 * need no lock. A device that is lost takes that model to LOST, where all of it is still there. */
#define _GNU_SOURCE
#include "gen/host.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/thread.h"
#include "engine/thread.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

struct hosted {
    struct mxc_host *host;
    struct mxc_host_model_options options; /* text owned */
    atomic_int state;                      /* enum mxc_host_state */
    struct mxc_err err;
    double progress;
    struct mxc_model *model;
    struct mxc_chat *chat;
    struct mxc_engine *engine;
    int32_t context, max_token_bytes;
    struct mxc_embed_rule rule; /* of a model for embeddings */
    uint64_t kv_bytes;
    double load_seconds;
    char quantisation[48];
};

struct mxc_host {
    struct mxc_loop *loop;
    pthread_mutex_t mutex;
    pthread_t loader;
    bool started;
    atomic_bool stop;
    void (*changed)(void *user);
    void *changed_user;
    struct hosted models[MXC_HOST_MAX_MODELS];
    int n_models;
};

void mxc_host_model_options_init(struct mxc_host_model_options *options) {
    *options = (struct mxc_host_model_options){.parallel = 4, .max_chunk = 512, .max_queue = 64};
}

/* Bytes of one storage, bits and groups included. */
static uint64_t stored_like(const struct mxc_weights *weights, const char *name) {
    uint64_t sum = 0;
    for (size_t i = 0; i < mxc_weights_count(weights); i++) {
        const struct mxc_tensor *t = mxc_weights_at(weights, i);
        char own[MXC_STORAGE_NAME];
        mxc_tensor_storage_name(t, own);
        if (!strcmp(own, name))
            sum += (uint64_t)t->bytes + t->companion_bytes;
    }
    return sum;
}

void mxc_host_quantisation(const struct mxc_weights *weights, char *out, size_t size) {
    char seen[16][MXC_STORAGE_NAME], name[MXC_STORAGE_NAME];
    size_t n = 0, best = 0;
    uint64_t most = 0;
    for (size_t i = 0; i < mxc_weights_count(weights); i++) {
        const struct mxc_tensor *t = mxc_weights_at(weights, i);
        size_t k = 0;
        if (!mxc_storage_info(t->storage)->quantised)
            continue;
        mxc_tensor_storage_name(t, name);
        while (k < n && strcmp(seen[k], name))
            k++;
        if (k < n || n == sizeof seen / sizeof *seen)
            continue;
        memcpy(seen[n], name, sizeof name);
        uint64_t bytes = stored_like(weights, name);
        if (bytes > most) {
            most = bytes;
            best = n;
        }
        n++;
    }
    if (!n)
        (void)snprintf(out, size, "none");
    else
        (void)snprintf(out, size, "%s%s", n > 1 ? "mixed " : "", seen[best]);
}

/* ---- life */

enum mxc_code mxc_host_new(struct mxc_host **host, struct mxc_err *err) {
    struct mxc_host *h = mxc_mem_zalloc(1, sizeof *h);
    if (!h)
        return mxc_err_nomem(err);
    pthread_mutex_init(&h->mutex, NULL); /* cannot fail with default attributes */
    enum mxc_code code = mxc_loop_new(&h->loop, err);
    if (code) {
        mxc_host_free(h);
        return code;
    }
    *host = h;
    return MXC_OK;
}

enum { N_TEXTS = 10 };

static void texts_of(struct mxc_host_model_options *o, const char **texts[N_TEXTS]) {
    const char **all[N_TEXTS] = {
        &o->path,         &o->name,       &o->backend,     &o->xla.plugin,    &o->xla.precision,
        &o->xla.capacity, &o->xla.vision, &o->xla.tp_size, &o->xla.cache_dir, &o->surgery};
    memcpy(texts, all, sizeof all);
}

static void free_texts(struct mxc_host_model_options *o) {
    const char **texts[N_TEXTS];
    texts_of(o, texts);
    for (int i = 0; i < N_TEXTS; i++)
        mxc_mem_free((char *)(uintptr_t)*texts[i]);
}

void mxc_host_free(struct mxc_host *host) {
    if (!host)
        return;
    atomic_store(&host->stop, true);
    if (host->started)
        pthread_join(host->loader, NULL);
    if (host->loop)
        mxc_loop_free(host->loop);
    for (int i = 0; i < host->n_models; i++) {
        struct hosted *m = &host->models[i];
        mxc_engine_free(m->engine);
        mxc_chat_close(m->chat);
        mxc_model_close(m->model);
        free_texts(&m->options);
    }
    pthread_mutex_destroy(&host->mutex);
    mxc_mem_free(host);
}

static enum mxc_code check_options(const struct mxc_host *host,
                                   const struct mxc_host_model_options *o, struct mxc_err *err) {
    if (host->n_models == MXC_HOST_MAX_MODELS)
        return mxc_err_set(err, MXC_E_LIMIT, "at most %d models are served", MXC_HOST_MAX_MODELS);
    if (!o->path || !o->name || !*o->name)
        return mxc_err_set(err, MXC_E_ARG, "a model needs a path and a name");
    if (mxc_host_find(host, o->name) >= 0)
        return mxc_err_set(err, MXC_E_ARG, "two models are called \"%s\"", o->name);
    if (o->parallel < 1 || o->parallel > 1024)
        return mxc_err_set(err, MXC_E_ARG, "parallel: %d is not in [1, 1024]", o->parallel);
    if (o->max_chunk < 32 || o->max_chunk > 8192)
        return mxc_err_set(err, MXC_E_ARG, "max_chunk: %d is not in [32, 8192]", o->max_chunk);
    if (o->context < 0 || o->context == 1)
        return mxc_err_set(err, MXC_E_ARG, "context: %d holds no prompt and answer", o->context);
    if (o->max_queue < 1 || o->max_queue > 1 << 20)
        return mxc_err_set(err, MXC_E_ARG, "max_queue: %d is not in [1, %d]", o->max_queue,
                           1 << 20);
    return MXC_OK;
}

enum mxc_code mxc_host_add(struct mxc_host *host, const struct mxc_host_model_options *options,
                           struct mxc_err *err) {
    enum mxc_code code = check_options(host, options, err);
    if (code)
        return code;
    struct mxc_host_model_options own = *options;
    const char **texts[N_TEXTS];
    bool ok = true;
    texts_of(&own, texts);
    for (int i = 0; i < N_TEXTS; i++)
        if (*texts[i])
            ok &= (*texts[i] = mxc_mem_strdup(*texts[i])) != NULL;
    if (!ok) {
        free_texts(&own);
        return mxc_err_nomem(err);
    }
    struct hosted *m = &host->models[host->n_models++];
    m->host = host;
    m->options = own;
    return MXC_OK;
}

/* ---- loading */

static bool on_progress(void *user, double fraction) {
    struct hosted *m = user;
    pthread_mutex_lock(&m->host->mutex);
    m->progress = fraction;
    pthread_mutex_unlock(&m->host->mutex);
    return !atomic_load(&m->host->stop);
}

static int32_t longest_token(const struct mxc_tokenizer *tokenizer) {
    size_t longest = 1, n = mxc_tokenizer_n_ids(tokenizer);
    for (size_t id = 0; id < n; id++) {
        size_t length = mxc_tokenizer_spelling(tokenizer, (uint32_t)id).length;
        longest = length > longest ? length : longest;
    }
    return longest < 1 << 20 ? (int32_t)longest : 1 << 20;
}

static enum mxc_code open_model(struct hosted *m, struct mxc_err *err) {
    const struct mxc_host_model_options *o = &m->options;
    struct mxc_load_options load;
    mxc_load_options_init(&load);
    load.backend = o->backend;
    load.xla = o->xla;
    load.surgery = o->surgery;
    load.n_threads = o->n_threads;
    load.precision = o->precision;
    load.max_batch = o->parallel;
    load.max_rows = o->max_chunk > o->parallel ? o->max_chunk : o->parallel + 1;
    load.max_out = o->parallel;
    load.context = o->context;
    load.force = o->force;
    load.hidden = o->embeddings;
    load.progress = on_progress;
    load.progress_user = m;
    enum mxc_code code = mxc_model_open(o->path, &load, &m->model, err);
    if (code)
        return code;
    const struct mxc_checkpoint *c = m->model->checkpoint;
    m->context = mxc_model_context(m->model, o->context);
    mxc_host_quantisation(c->weights, m->quantisation, sizeof m->quantisation);
    code = mxc_chat_open(o->path, c->config, c->graph->vocab, &m->chat, err);
    if (!code)
        m->max_token_bytes = longest_token(m->chat->tokenizer);
    if (!code && c->graph->hidden_out)
        return mxc_embed_rule_read(o->path, c->graph, o->pooling, &m->rule, err);
    if (!code && o->pooling != MXC_POOL_DEFAULT)
        return mxc_err_set(err, MXC_E_ARG,
                           "pooling is of embeddings, but the model is opened for text");
    return code;
}

static uint64_t pool_bytes(const struct hosted *m, const int32_t n_blocks[MXC_N_KV_KINDS]) {
    uint64_t bytes = 0;
    for (int k = 0; k < MXC_N_KV_KINDS; k++)
        bytes += (uint64_t)n_blocks[k] * m->model->memory.kv_block_bytes[k];
    return bytes;
}

/* On the loop's thread, before the first request hears of it. */
static void on_lost(void *user, const struct mxc_err *err) {
    struct hosted *m = user;
    pthread_mutex_lock(&m->host->mutex);
    m->err = *err;
    atomic_store(&m->state, MXC_HOST_LOST);
    pthread_mutex_unlock(&m->host->mutex);
    if (m->host->changed)
        m->host->changed(m->host->changed_user);
}

static enum mxc_code make_engine(struct hosted *m, struct mxc_err *err) {
    struct mxc_engine_options o;
    mxc_engine_options_init(&o);
    o.max_rows = m->model->options.max_rows;
    o.max_batch = m->model->options.max_batch;
    o.max_queue = m->options.max_queue;
    if (m->model->checkpoint->graph->hidden_out)
        o.max_prefills = o.max_batch; /* there is nothing else to do */
    o.context = m->context;
    o.wake = mxc_loop_wake;
    o.wake_user = m->host->loop;
    o.lost = on_lost;
    o.lost_user = m;
    enum mxc_code code = mxc_model_blocks(m->model, m->context, m->options.parallel, 0,
                                          m->options.kv_bytes, o.n_blocks, err);
    if (code)
        return code;
    m->kv_bytes = pool_bytes(m, o.n_blocks);
    const struct mxc_engine_target target = mxc_model_target(m->model);
    code = mxc_engine_new(&target, &o, &m->engine, err);
    return code ? code : mxc_loop_add(m->host->loop, m->engine, err);
}

static void load(struct hosted *m) {
    struct mxc_err err;
    uint64_t start = mxc_clock_ns();
    enum mxc_code code = open_model(m, &err);
    if (!code)
        code = make_engine(m, &err);
    m->load_seconds = (double)(mxc_clock_ns() - start) * 1e-9;
    pthread_mutex_lock(&m->host->mutex);
    if (code)
        m->err = err;
    atomic_store(&m->state, code ? MXC_HOST_UNAVAILABLE : MXC_HOST_READY);
    pthread_mutex_unlock(&m->host->mutex);
}

static void *run_loader(void *arg) {
    struct mxc_host *host = arg;
    for (int i = 0; i < host->n_models && !atomic_load(&host->stop); i++) {
        load(&host->models[i]);
        if (host->changed)
            host->changed(host->changed_user);
    }
    return NULL;
}

enum mxc_code mxc_host_start(struct mxc_host *host, void (*changed)(void *user), void *user,
                             struct mxc_err *err) {
    host->changed = changed;
    host->changed_user = user;
    if (!mxc_thread_start(&host->loader, run_loader, host))
        return mxc_err_set(err, MXC_E_NOMEM, "the loader thread cannot be started");
    host->started = true;
    return MXC_OK;
}

/* ---- what is there */

int mxc_host_count(const struct mxc_host *host) {
    return host->n_models;
}

int mxc_host_find(const struct mxc_host *host, const char *name) {
    for (int i = 0; i < host->n_models; i++)
        if (!strcmp(host->models[i].options.name, name))
            return i;
    return -1;
}

static bool has_all(enum mxc_host_state state) {
    return state == MXC_HOST_READY || state == MXC_HOST_LOST;
}

/* What READY published is there. */
static bool is_there(const struct hosted *m) {
    return has_all((enum mxc_host_state)atomic_load(&m->state));
}

void mxc_host_info(struct mxc_host *host, int model, struct mxc_host_info *info) {
    struct hosted *m = &host->models[model];
    *info = (struct mxc_host_info){.name = m->options.name,
                                   .path = m->options.path,
                                   .parallel = m->options.parallel,
                                   .max_chunk = m->options.max_chunk,
                                   .max_queue = m->options.max_queue,
                                   .family = "",
                                   .model_type = "",
                                   .quantisation = "",
                                   .vision_reason = "",
                                   .backend = ""};
    pthread_mutex_lock(&host->mutex);
    info->state = (enum mxc_host_state)atomic_load(&m->state);
    info->err = m->err;
    info->progress = m->progress;
    pthread_mutex_unlock(&host->mutex);
    if (!has_all(info->state))
        return;
    const struct mxc_checkpoint *c = m->model->checkpoint;
    info->family = c->graph->family;
    info->model_type = c->config->model_type;
    info->quantisation = m->quantisation;
    info->backend = m->model->ops->name;
    info->context = m->context;
    info->trained_context = mxc_checkpoint_context(c);
    info->vocab = c->graph->vocab;
    info->max_token_bytes = m->max_token_bytes;
    info->embeds = c->graph->hidden_out;
    info->rule = m->rule;
    info->hidden = c->graph->hidden;
    info->n_layers = c->graph->n_layers;
    info->parameters = mxc_graph_parameters(c->graph);
    info->weight_bytes = mxc_weights_bytes(c->weights);
    info->vision_reason = m->model->vision_reason;
    info->kv_bytes = m->kv_bytes;
    info->load_seconds = m->load_seconds;
    if (c->vision)
        mxc_vision_default_budget(c->vision, &info->image_budget);
    if (m->options.image_budget.min_pixels)
        info->image_budget.min_pixels = m->options.image_budget.min_pixels;
    if (m->options.image_budget.max_pixels)
        info->image_budget.max_pixels = m->options.image_budget.max_pixels;
}

const struct mxc_vision *mxc_host_vision(struct mxc_host *host, int model) {
    const struct hosted *m = &host->models[model];
    return is_there(m) ? m->model->checkpoint->vision : NULL;
}

struct mxc_chat *mxc_host_chat(struct mxc_host *host, int model) {
    struct hosted *m = &host->models[model];
    return is_there(m) ? m->chat : NULL;
}

void mxc_host_sampling(struct mxc_host *host, int model, struct mxc_sampling *sampling) {
    struct hosted *m = &host->models[model];
    mxc_sampling_init(sampling);
    sampling->temperature = 0.8f;
    sampling->top_k = 40;
    sampling->top_p = 0.95f;
    sampling->min_p = 0.05f;
    sampling->dry_last_n = -1;
    if (!is_there(m))
        return;
    const struct mxc_generation_defaults *d = &m->model->checkpoint->config->defaults;
    if (!isnan(d->temperature))
        sampling->temperature = (float)d->temperature;
    if (!isnan(d->top_p))
        sampling->top_p = (float)d->top_p;
    if (!isnan(d->min_p))
        sampling->min_p = (float)d->min_p;
    if (!isnan(d->repetition_penalty))
        sampling->repetition_penalty = (float)d->repetition_penalty;
    if (d->top_k >= 0 && d->top_k <= INT32_MAX)
        sampling->top_k = (int32_t)d->top_k;
    if (d->do_sample == 0)
        sampling->temperature = 0;
}

/* ---- requests */

static enum mxc_code not_ready(struct mxc_host *host, int model, struct mxc_err *err) {
    struct mxc_host_info info;
    mxc_host_info(host, model, &info);
    if (info.state == MXC_HOST_LOADING)
        return mxc_err_set(err, MXC_E_BUSY, "the model \"%s\" is being loaded", info.name);
    return mxc_err_set(err, MXC_E_NOT_FOUND, "the model \"%s\" is unavailable: %s", info.name,
                       info.err.message);
}

enum mxc_code mxc_host_submit(struct mxc_host *host, int model, const struct mxc_prompt *prompt,
                              const struct mxc_gen_params *params, uint64_t *id,
                              struct mxc_err *err) {
    struct hosted *m = &host->models[model];
    return is_there(m) ? mxc_gen_submit(m->engine, m->chat, prompt, params, id, err)
                       : not_ready(host, model, err);
}

enum mxc_code mxc_host_embed(struct mxc_host *host, int model, const int32_t *ids, int32_t n_ids,
                             const struct mxc_embed_params *params, uint64_t *id,
                             struct mxc_err *err) {
    struct hosted *m = &host->models[model];
    return is_there(m) ? mxc_embed_submit(m->engine, m->model->checkpoint->graph->hidden, ids,
                                          n_ids, params, id, err)
                       : not_ready(host, model, err);
}

void mxc_host_cancel(struct mxc_host *host, int model, uint64_t id) {
    if (is_there(&host->models[model]))
        mxc_engine_cancel(host->models[model].engine, id);
}

void mxc_host_stats(struct mxc_host *host, int model, struct mxc_engine_stats *stats) {
    *stats = (struct mxc_engine_stats){0};
    if (is_there(&host->models[model]))
        mxc_engine_get_stats(host->models[model].engine, stats);
}

static void clear(void *arg) {
    mxc_engine_clear_cache(arg);
}

void mxc_host_clear_cache(struct mxc_host *host, int model) {
    if (is_there(&host->models[model]))
        mxc_loop_call(host->loop, clear, host->models[model].engine);
}

/* ---- KV outside the engine */

struct kept_call {
    struct mxc_engine *engine;
    const struct mxc_shelf *shelf;
    const uint8_t *digest, *in;
    int32_t number, n_tokens;
    uint8_t *out;
    size_t n_bytes;
    bool left;
    enum mxc_code code;
    struct mxc_err *err;
};

const char *mxc_host_file(struct mxc_host *host, int model, size_t i) {
    const struct hosted *m = &host->models[model];
    if (!is_there(m))
        return NULL;
    const struct mxc_weights *weights = m->model->checkpoint->weights;
    const struct mxc_file *last = NULL;
    /* tensors of one file stand together, but for pieces that another shard has: those files come
     * again, which does no harm */
    for (size_t t = 0; t < mxc_weights_count(weights); t++) {
        const struct mxc_file *file = mxc_weights_at(weights, t)->file;
        if (!file || file == last)
            continue;
        last = file;
        if (!i--)
            return file->path;
    }
    const struct mxc_surgery *surgery = m->model->checkpoint->surgery;
    return surgery ? mxc_surgery_file(surgery, i) : NULL;
}

const char *mxc_host_plan(struct mxc_host *host, int model) {
    const struct hosted *m = &host->models[model];
    return is_there(m) ? m->model->ops->plan_describe(m->model->plan) : "";
}

static void set_shelf(void *arg) {
    const struct kept_call *c = arg;
    mxc_engine_set_shelf(c->engine, c->shelf);
}

static void shelve(void *arg) {
    struct kept_call *c = arg;
    c->left = mxc_engine_shelve(c->engine);
}

static void kept_record(void *arg) {
    struct kept_call *c = arg;
    c->code = mxc_engine_kept_record(c->engine, c->digest, c->number, &c->out, &c->n_bytes, c->err);
}

static void adopt(void *arg) {
    struct kept_call *c = arg;
    c->code = mxc_engine_adopt(c->engine, c->in, c->err);
}

static void forget(void *arg) {
    struct kept_call *c = arg;
    c->n_tokens = mxc_engine_forget(c->engine, c->digest);
}

static enum mxc_code call(struct mxc_host *host, int model, void (*fn)(void *arg),
                          struct kept_call *c) {
    if (!is_there(&host->models[model]))
        return not_ready(host, model, c->err);
    c->engine = host->models[model].engine;
    mxc_loop_call(host->loop, fn, c);
    return c->code;
}

void mxc_host_set_shelf(struct mxc_host *host, int model, const struct mxc_shelf *shelf) {
    struct kept_call c = {.shelf = shelf};
    (void)call(host, model, set_shelf, &c);
}

bool mxc_host_shelve(struct mxc_host *host, int model) {
    struct kept_call c = {.left = false};
    (void)call(host, model, shelve, &c);
    return c.left;
}

enum mxc_code mxc_host_kept_record(struct mxc_host *host, int model,
                                   const uint8_t digest[MXC_BLAKE2B_BYTES], int32_t number,
                                   uint8_t **record, size_t *n_bytes, struct mxc_err *err) {
    struct kept_call c = {.digest = digest, .number = number, .err = err};
    enum mxc_code code = call(host, model, kept_record, &c);
    if (!code) {
        *record = c.out;
        *n_bytes = c.n_bytes;
    }
    return code;
}

enum mxc_code mxc_host_adopt(struct mxc_host *host, int model, const uint8_t *record,
                             struct mxc_err *err) {
    struct kept_call c = {.in = record, .err = err};
    return call(host, model, adopt, &c);
}

int32_t mxc_host_forget(struct mxc_host *host, int model, const uint8_t digest[MXC_BLAKE2B_BYTES]) {
    struct kept_call c = {.digest = digest};
    (void)call(host, model, forget, &c);
    return c.n_tokens;
}

void mxc_host_wake(struct mxc_host *host) {
    mxc_loop_wake(host->loop);
}
