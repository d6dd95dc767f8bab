/* /v1/embeddings and llama-server's /embedding: texts or ids in, one vector each out.
 * A batch owns the ids of its inputs and the vectors. A few inputs are in the engine at a time; the
 * end of one brings the next, so that a long list neither fills the engine's queue nor keeps others
 * waiting. The first failure ends the batch: what flies is cancelled, what waits is not begun.
 * A batch is held by its exchange (until release) and by every input in the engine; who lets go
 * last frees it. Thread rules: start on a prep worker, results on the loop's thread, settle on the
 * HTTP thread; all that changes is guarded by the mutex. */
#define _GNU_SOURCE
#include "base/mem.h"
#include "format/base64.h"
#include "server/api.h"
#include "server/fields.h"
#include "server/sse.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum {
    MAX_INPUTS = 2048,
    MAX_TOKENS = 300000,      /* of all inputs together; both bounds are OpenAI's */
    MAX_TEXT_BYTES = 8 << 20, /* of one input */
    MAX_REPLY = 512 << 20,
    LEAST_FLYING = 8
};

struct batch;
struct input {
    struct batch *batch;
    int32_t *ids;
    int32_t n_ids;
    enum { WAITS, FLIES, OVER } state;
    uint64_t id; /* of the engine; 0: not known yet */
};

struct batch {
    struct mxc_exchange *x;
    int model, max_flying;
    bool openai, base64;
    char name[128]; /* the model's */
    int32_t max_tokens, vocab, dimensions;
    bool truncate;
    struct mxc_chat *chat;
    struct mxc_embed_params params;
    struct input *inputs;
    int n_inputs;
    float *vectors; /* [n_inputs][dimensions] */
    atomic_int n_holders;
    pthread_mutex_t mutex; /* of what follows and of the inputs' states */
    int next;              /* inputs below it do not wait */
    int n_flying, n_over;
    int64_t n_tokens;
    struct mxc_fault fault; /* the first failure; code MXC_OK: none */
};

static void drop_batch(struct batch *b) {
    if (atomic_fetch_sub(&b->n_holders, 1) != 1)
        return;
    struct mxc_exchange *x = b->x;
    for (int i = 0; i < b->n_inputs; i++)
        mxc_mem_free(b->inputs[i].ids);
    mxc_mem_free(b->inputs);
    mxc_mem_free(b->vectors);
    pthread_mutex_destroy(&b->mutex);
    mxc_limits_leave(&x->server->limits, x->key);
    mxc_mem_free(b);
    mxc_exchange_drop(x);
}

/* ---- through the engine */

/* The mutex is held. */
static bool is_over(const struct batch *b) {
    return b->fault.err.code ? !b->n_flying : b->n_over == b->n_inputs;
}

/* Keeps the first failure. The mutex is held. */
static void fail(struct batch *b, enum mxc_code code, const char *message) {
    if (b->fault.err.code)
        return;
    (void)mxc_fault_set(&b->fault, code, NULL, "%s", message);
    if (code == MXC_E_BUSY)
        b->fault.retry_after = 1;
}

static void cancel_all(struct batch *b) {
    for (int i = 0; i < b->n_inputs; i++) {
        pthread_mutex_lock(&b->mutex);
        uint64_t id = b->inputs[i].state == FLIES ? b->inputs[i].id : 0;
        pthread_mutex_unlock(&b->mutex);
        if (id)
            mxc_host_cancel(b->x->server->host, b->model, id);
    }
}

/* The next input that waits, now flying; NULL: none, or enough fly. */
static struct input *take_next(struct batch *b) {
    struct input *in = NULL;
    pthread_mutex_lock(&b->mutex);
    if (!b->fault.err.code && b->n_flying < b->max_flying) {
        while (b->next < b->n_inputs && b->inputs[b->next].state != WAITS)
            b->next++;
        if (b->next < b->n_inputs) {
            in = &b->inputs[b->next++];
            in->state = FLIES;
            b->n_flying++;
        }
    }
    pthread_mutex_unlock(&b->mutex);
    return in;
}

static void on_result(void *user, const struct mxc_embed_result *result);

/* Gives the engine what it may have now. */
static void feed(struct batch *b) {
    struct mxc_host *host = b->x->server->host;
    struct input *in;
    bool go_on = true;
    while (go_on && (in = take_next(b))) {
        struct mxc_embed_params params = b->params;
        struct mxc_err err;
        uint64_t id = 0;
        params.done = on_result;
        params.user = in;
        atomic_fetch_add(&b->n_holders, 1); /* for the engine, until the result */
        enum mxc_code code = mxc_host_embed(host, b->model, in->ids, in->n_ids, &params, &id, &err);
        pthread_mutex_lock(&b->mutex);
        if (!code) {
            in->id = id; /* perhaps it is over already */
            bool late = b->fault.err.code && in->state == FLIES;
            pthread_mutex_unlock(&b->mutex);
            if (late)
                mxc_host_cancel(host, b->model, id);
            continue;
        }
        b->n_flying--;
        in->state = WAITS;
        go_on = false;
        if (code != MXC_E_BUSY || !b->n_flying)
            fail(b, code, err.message);
        else if (in - b->inputs < b->next) /* the queue is full: the next end tries again */
            b->next = (int)(in - b->inputs);
        pthread_mutex_unlock(&b->mutex);
        drop_batch(b); /* whoever calls has a hold of its own */
    }
}

static void on_result(void *user, const struct mxc_embed_result *result) {
    struct input *in = user;
    struct batch *b = in->batch;
    struct mxc_limits *limits = &b->x->server->limits;
    pthread_mutex_lock(&b->mutex);
    in->state = OVER;
    b->n_flying--;
    b->n_over++;
    b->n_tokens += result->stats->n_prompt;
    if (result->vector)
        memcpy(b->vectors + (size_t)(in - b->inputs) * (size_t)b->dimensions, result->vector,
               (size_t)b->dimensions * sizeof *result->vector);
    else if (result->err)
        fail(b, result->err->code, result->err->message);
    else
        fail(b, MXC_E_BUSY, "the request was cancelled");
    bool failed = b->fault.err.code != MXC_OK;
    pthread_mutex_unlock(&b->mutex);
    atomic_fetch_add(&limits->prompt_tokens, (uint64_t)result->stats->n_prompt);
    atomic_fetch_add(&limits->prompt_us,
                     (result->stats->prefill_ns + result->stats->decode_ns) / 1000);
    if (failed)
        cancel_all(b);
    else
        feed(b);
    pthread_mutex_lock(&b->mutex);
    bool over = is_over(b);
    pthread_mutex_unlock(&b->mutex);
    if (over)
        mxc_exchange_wake(b->x);
    drop_batch(b);
}

/* ---- the reply */

static void put_vector(const struct batch *b, int index, struct mxc_buf *out) {
    const float *v = b->vectors + (size_t)index * (size_t)b->dimensions;
    size_t n = (size_t)b->dimensions;
    if (b->base64) { /* floats as they lie in memory: little-endian */
        (void)mxc_buf_putc(out, '"');
        mxc_base64_encode(v, n * sizeof *v, out);
        (void)mxc_buf_putc(out, '"');
        return;
    }
    for (size_t i = 0; i < n; i++) {
        (void)mxc_buf_putc(out, i ? ',' : '[');
        mxc_put_number(out, (double)v[i]);
    }
    (void)mxc_buf_putc(out, ']');
}

static void put_openai(const struct batch *b, struct mxc_buf *out) {
    (void)mxc_buf_puts(out, "{\"object\":\"list\",\"data\":[");
    for (int i = 0; i < b->n_inputs; i++) {
        (void)mxc_buf_printf(
            out, "%s{\"object\":\"embedding\",\"index\":%d,\"embedding\":", i ? "," : "", i);
        put_vector(b, i, out);
        (void)mxc_buf_putc(out, '}');
    }
    (void)mxc_buf_puts(out, "],\"model\":");
    mxc_put_json_text(out, mxc_str_of(b->name));
    (void)mxc_buf_printf(out, ",\"usage\":{\"prompt_tokens\":%lld,\"total_tokens\":%lld}}",
                         (long long)b->n_tokens, (long long)b->n_tokens);
}

/* llama-server's: a list of vectors for each input, here always one. */
static void put_llama(const struct batch *b, struct mxc_buf *out) {
    for (int i = 0; i < b->n_inputs; i++) {
        (void)mxc_buf_printf(out, "%s{\"index\":%d,\"embedding\":[", i ? "," : "[", i);
        put_vector(b, i, out);
        (void)mxc_buf_puts(out, "]}");
    }
    (void)mxc_buf_putc(out, ']');
}

static bool settle(void *user, struct mxc_exchange *x) {
    struct batch *b = user;
    struct mxc_buf out;
    pthread_mutex_lock(&b->mutex);
    bool over = is_over(b);
    pthread_mutex_unlock(&b->mutex);
    if (!over)
        return false;
    x->n_prompt = b->n_tokens;
    x->n_cached = x->n_generated = 0;
    if (b->fault.err.code) {
        mxc_reply_fault(x, &b->fault);
        return true;
    }
    mxc_buf_init(&out, MAX_REPLY);
    (b->openai ? put_openai : put_llama)(b, &out);
    size_t length = out.length;
    char *text = out.failed ? NULL : mxc_buf_take(&out);
    mxc_buf_fini(&out);
    mxc_reply_text(x, 200, "application/json; charset=utf-8", text, length);
    return true;
}

static void gone(void *user) {
    struct batch *b = user;
    pthread_mutex_lock(&b->mutex);
    fail(b, MXC_E_CANCELLED, "the client went away");
    pthread_mutex_unlock(&b->mutex);
    cancel_all(b);
}

static void release(void *user) {
    drop_batch(user);
}

static const struct mxc_source_ops ops = {.settle = settle, .gone = gone, .release = release};

/* ---- the request */

/* Ids of one input: text, or ids. */
static enum mxc_code read_input(struct batch *b, const json_t *value, const char *name,
                                struct input *in, struct mxc_fault *fault) {
    struct mxc_ids ids = {0};
    struct mxc_err err;
    enum mxc_code code = MXC_OK;
    size_t n = json_array_size(value);
    if (json_is_string(value) && json_string_length(value) > MAX_TEXT_BYTES) {
        code = mxc_fault_set(fault, MXC_E_ARG, name, "%s: %zu bytes of text; the limit is %d", name,
                             json_string_length(value), MAX_TEXT_BYTES);
    } else if (json_is_string(value)) {
        code = mxc_embed_ids(b->chat, json_string_value(value), json_string_length(value),
                             b->max_tokens, b->truncate, &ids, &err);
        if (code)
            (void)mxc_fault_set(fault, code, name, "%s: %s", name, err.message);
    } else if (json_is_array(value)) {
        ids.items = mxc_mem_array(n, sizeof *ids.items);
        ids.count = b->truncate && n > (size_t)b->max_tokens ? (size_t)b->max_tokens : n;
        code = ids.items ? mxc_field_ids(value, name, b->vocab, (int32_t *)(void *)ids.items, fault)
                         : mxc_fault_set(fault, MXC_E_NOMEM, NULL, "out of memory");
    } else {
        code = mxc_field_wrong(fault, name, "text, or a list of token ids", value);
    }
    if (!code && !ids.count)
        code = mxc_fault_set(fault, MXC_E_ARG, name, "%s: it has no tokens", name);
    if (!code && ids.count > (size_t)b->max_tokens)
        code = mxc_fault_set(fault, MXC_E_CONTEXT, name,
                             "%s: %zu tokens; the context holds %d (truncate cuts the text)", name,
                             ids.count, b->max_tokens);
    if (code) {
        mxc_ids_fini(&ids);
        return code;
    }
    in->batch = b;
    in->ids = (int32_t *)(void *)ids.items; /* ids are below 2^22: both types read the same */
    in->n_ids = (int32_t)ids.count;
    return MXC_OK;
}

/* A list of ids is one input, any other list is one input an element. */
static bool is_list_of_inputs(const json_t *value) {
    return json_is_array(value) && !json_is_integer(json_array_get(value, 0));
}

static enum mxc_code read_inputs(struct batch *b, const json_t *json, const char *field,
                                 struct mxc_fault *fault) {
    const json_t *value = mxc_field(json, field);
    if (!value)
        return mxc_fault_set(fault, MXC_E_ARG, field, "%s: it is missing", field);
    bool list = is_list_of_inputs(value);
    size_t n = list ? json_array_size(value) : 1, total = 0;
    if (!n || n > MAX_INPUTS)
        return mxc_fault_set(fault, MXC_E_ARG, field, "%s: a list of %zu; 1 to %d are taken", field,
                             n, MAX_INPUTS);
    if (!(b->inputs = mxc_mem_zalloc(n, sizeof *b->inputs)))
        return mxc_fault_set(fault, MXC_E_NOMEM, NULL, "out of memory");
    for (size_t i = 0; i < n; i++) {
        char name[64];
        (void)snprintf(name, sizeof name, list ? "%s[%zu]" : "%s", field, i);
        enum mxc_code code =
            read_input(b, list ? json_array_get(value, i) : value, name, &b->inputs[i], fault);
        if (code)
            return code;
        b->n_inputs++;
        total += (size_t)b->inputs[i].n_ids;
        if (total > MAX_TOKENS)
            return mxc_fault_set(fault, MXC_E_ARG, field,
                                 "%s: more than %d tokens in all; send fewer inputs at a time",
                                 field, MAX_TOKENS);
    }
    return MXC_OK;
}

/* llama-server's embd_normalize: -1 for none, 2 for length 1; its other norms are not made. */
static enum mxc_code read_norm(const json_t *json, bool *normalise, struct mxc_fault *fault) {
    int64_t norm = *normalise ? 2 : -1;
    enum mxc_code code = mxc_field_int(json, "embd_normalize", -1, INT32_MAX, &norm, fault);
    if (!code && norm != -1 && norm != 2)
        return mxc_fault_set(fault, MXC_E_UNSUPPORTED, "embd_normalize",
                             "embd_normalize: only -1 (none) and 2 (length 1) are supported");
    *normalise = norm == 2;
    return code;
}

static enum mxc_code read_options(struct batch *b, const json_t *json,
                                  const struct mxc_host_info *info, struct mxc_fault *fault) {
    struct mxc_str format = {NULL, 0};
    int64_t dimensions = info->hidden;
    enum mxc_code code = mxc_field_text(json, "encoding_format", &format, fault);
    if (!code && format.ptr && !mxc_str_is(format, "float") && !mxc_str_is(format, "base64"))
        return mxc_fault_set(fault, MXC_E_ARG, "encoding_format",
                             "encoding_format: not float or base64");
    if (!code)
        code = mxc_field_int(json, "dimensions", 1, info->hidden, &dimensions, fault);
    if (!code)
        code = mxc_field_bool(json, "truncate", &b->truncate, fault);
    b->params.rule = info->rule;
    if (!code && !b->openai)
        code = read_norm(json, &b->params.rule.normalise, fault);
    b->base64 = format.ptr && mxc_str_is(format, "base64");
    b->dimensions = b->params.dimensions = (int32_t)dimensions;
    return code;
}

/* Everything but the way through the engine. */
static enum mxc_code read_batch(struct batch *b, struct mxc_exchange *x, struct mxc_fault *fault) {
    struct mxc_host_info info;
    enum mxc_code code = mxc_params_model(x, x->json, &b->model, fault);
    if (code)
        return code;
    mxc_host_info(x->server->host, b->model, &info);
    if (!info.embeds)
        return mxc_fault_set(fault, MXC_E_UNSUPPORTED, "model",
                             "model: \"%.100s\" generates text; start the server with --embeddings "
                             "to have embeddings of it",
                             info.name);
    b->chat = mxc_host_chat(x->server->host, b->model);
    b->vocab = info.vocab;
    b->max_tokens = info.context;
    b->max_flying = 2 * info.parallel > LEAST_FLYING ? 2 * info.parallel : LEAST_FLYING;
    (void)snprintf(b->name, sizeof b->name, "%s", info.name);
    code = read_options(b, x->json, &info, fault);
    if (!code)
        code = read_inputs(b, x->json,
                           b->openai || mxc_field(x->json, "input") ? "input" : "content", fault);
    if (code)
        return code;
    b->vectors = mxc_mem_array((size_t)b->n_inputs * (size_t)b->dimensions, sizeof *b->vectors);
    return b->vectors ? MXC_OK : mxc_fault_set(fault, MXC_E_NOMEM, NULL, "out of memory");
}

static enum mxc_code start(struct mxc_exchange *x, bool openai, struct mxc_fault *fault) {
    struct mxc_limits *limits = &x->server->limits;
    if (!mxc_limits_enter(limits, x->key)) {
        (void)mxc_fault_status(fault, MXC_E_BUSY, 429,
                               "the key has %d requests at a time, and they are all in use",
                               limits->max_per_key);
        fault->retry_after = 1;
        return MXC_E_BUSY;
    }
    struct batch *b = mxc_mem_zalloc(1, sizeof *b);
    if (!b) {
        mxc_limits_leave(limits, x->key);
        return mxc_fault_set(fault, MXC_E_NOMEM, NULL, "out of memory");
    }
    b->x = x;
    b->openai = openai;
    atomic_init(&b->n_holders, 1);
    pthread_mutex_init(&b->mutex, NULL); /* cannot fail with default attributes */
    mxc_exchange_hold(x);
    enum mxc_code code = read_batch(b, x, fault);
    if (!code) {
        feed(b);
        pthread_mutex_lock(&b->mutex);
        if (b->fault.err.code && is_over(b)) { /* nothing could be begun */
            *fault = b->fault;
            code = fault->err.code;
        }
        pthread_mutex_unlock(&b->mutex);
    }
    if (code) {
        drop_batch(b);
        return code;
    }
    mxc_exchange_keep_json(x, NULL);
    mxc_reply_source(x, NULL, &ops, b);
    return MXC_OK;
}

enum mxc_code mxc_post_embeddings(struct mxc_exchange *x, struct mxc_fault *fault) {
    return start(x, true, fault);
}

enum mxc_code mxc_post_embedding(struct mxc_exchange *x, struct mxc_fault *fault) {
    return start(x, false, fault);
}
