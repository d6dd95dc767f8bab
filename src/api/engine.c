/* Public engine: requests in, a queue of events out. The inner engine's events come on its own
 * thread; each is turned into text there and put into the queue, from which mlxcel_engine_next
 * takes. The DONE event of a request is allocated with it, so that it can always be delivered. */
#define _GNU_SOURCE
#include "api/api.h"

#include "api/request.h"
#include "base/mem.h"
#include "engine/thread.h"
#include "gen/generate.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

enum { MAX_QUEUED = 1 << 20 };

/* An event in the queue, with what it points to behind it. */
struct queued {
    struct queued *next;
    struct mlxcel_event event;
    struct mlxcel_token_logprob *top; /* in memory behind the struct, as is the text */
};

struct mlxcel_engine {
    struct mlxcel_model *model;
    struct mxc_engine *engine;
    struct mxc_loop *loop;
    pthread_mutex_t mutex;
    pthread_cond_t more;
    bool mutex_ready, more_ready;
    struct queued *head, **tail; /* guarded by mutex */
    size_t n_queued;
    struct queued *current; /* handed out by next */
};

struct answer {
    struct mlxcel_engine *owner;
    int64_t n_prompt, n_prompt_done, n_cached, n_generated;
    struct mxc_err err; /* an error of our own that ended it */
    struct queued *done;
};

/* ---- the queue */

static void push(struct mlxcel_engine *e, struct queued *q) {
    q->next = NULL;
    pthread_mutex_lock(&e->mutex);
    *e->tail = q;
    e->tail = &q->next;
    e->n_queued++;
    pthread_cond_signal(&e->more);
    pthread_mutex_unlock(&e->mutex);
}

static size_t n_queued(struct mlxcel_engine *e) {
    pthread_mutex_lock(&e->mutex);
    size_t n = e->n_queued;
    pthread_mutex_unlock(&e->mutex);
    return n;
}

/* Waits until there is an event or the time is over. The mutex is held. */
static void wait_for_event(struct mlxcel_engine *e, int timeout_ms) {
    struct timespec end;
    (void)clock_gettime(CLOCK_MONOTONIC, &end);
    if (timeout_ms > 0) {
        end.tv_sec += timeout_ms / 1000;
        end.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
        if (end.tv_nsec >= 1000000000) {
            end.tv_nsec -= 1000000000;
            end.tv_sec++;
        }
    }
    while (!e->head && timeout_ms) {
        if (timeout_ms < 0)
            (void)pthread_cond_wait(&e->more, &e->mutex);
        else if (pthread_cond_timedwait(&e->more, &e->mutex, &end))
            break;
    }
}

bool mlxcel_engine_next(struct mlxcel_engine *e, int timeout_ms, struct mlxcel_event *event) {
    pthread_mutex_lock(&e->mutex);
    wait_for_event(e, timeout_ms);
    struct queued *q = e->head;
    if (q) {
        e->head = q->next;
        e->n_queued--;
        if (!e->head)
            e->tail = &e->head;
    }
    pthread_mutex_unlock(&e->mutex);
    mxc_mem_free(e->current);
    e->current = q;
    if (q)
        *event = q->event;
    return q != NULL;
}

/* ---- events of the inner engine, on its thread */

static bool fail(struct answer *a, enum mxc_code code) {
    if (code == MXC_E_NOMEM)
        (void)mxc_err_nomem(&a->err);
    else
        (void)mxc_err_set(&a->err, code, "%d events wait and nobody takes them", MAX_QUEUED);
    return false;
}

static void count(const struct answer *a, struct mlxcel_event *event) {
    event->n_prompt = a->n_prompt;
    event->n_prompt_done = a->n_prompt_done;
    event->n_cached = a->n_cached;
    event->n_generated = a->n_generated;
}

static char *copy_text(char *to, struct mxc_str text) {
    if (text.length)
        memcpy(to, text.ptr, text.length);
    to[text.length] = 0;
    return to + text.length + 1;
}

static bool on_text(struct answer *a, const struct mxc_gen_event *in) {
    const struct mxc_event *token = in->token;
    size_t n_top = token ? (size_t)token->n_top : 0;
    size_t top_bytes = n_top * sizeof(struct mlxcel_token_logprob);
    if (n_queued(a->owner) >= MAX_QUEUED)
        return fail(a, MXC_E_LIMIT);
    struct queued *q =
        mxc_mem_alloc(sizeof *q + top_bytes + in->answer.length + 1 + in->thought.length + 1);
    if (!q)
        return fail(a, MXC_E_NOMEM);
    *q = (struct queued){.top = (struct mlxcel_token_logprob *)(q + 1)};
    char *text = (char *)q->top + top_bytes, *reasoning = copy_text(text, in->answer);
    (void)copy_text(reasoning, in->thought);
    for (size_t i = 0; i < n_top; i++)
        q->top[i] = (struct mlxcel_token_logprob){token->top[i].id, token->top[i].logprob};
    a->n_generated += token != NULL;
    q->event = (struct mlxcel_event){.request = in->request,
                                     .type = MLXCEL_EVENT_TEXT,
                                     .text = text,
                                     .reasoning = reasoning,
                                     .text_length = in->answer.length,
                                     .reasoning_length = in->thought.length,
                                     .id = token ? token->id : -1,
                                     .logprob = token ? token->logprob : 0,
                                     .top = q->top,
                                     .n_top = (int32_t)n_top};
    count(a, &q->event);
    push(a->owner, q);
    return true;
}

static bool on_progress(struct answer *a, const struct mxc_event *in) {
    a->n_prompt = in->n_total;
    a->n_prompt_done = in->n_done;
    a->n_cached = in->n_cached;
    if (n_queued(a->owner) >= MAX_QUEUED)
        return fail(a, MXC_E_LIMIT);
    struct queued *q = mxc_mem_alloc(sizeof *q);
    if (!q)
        return fail(a, MXC_E_NOMEM);
    *q = (struct queued){.event = {.request = in->request,
                                   .type = MLXCEL_EVENT_PROMPT,
                                   .text = "",
                                   .reasoning = "",
                                   .id = -1}};
    count(a, &q->event);
    push(a->owner, q);
    return true;
}

static mlxcel_finish finish_of(const struct answer *a, enum mxc_done_reason reason) {
    static const mlxcel_finish finish[] = {[MXC_DONE_STOP] = MLXCEL_FINISH_STOP,
                                           [MXC_DONE_LENGTH] = MLXCEL_FINISH_LENGTH,
                                           [MXC_DONE_CANCELLED] = MLXCEL_FINISH_CANCELLED,
                                           [MXC_DONE_ERROR] = MLXCEL_FINISH_ERROR};
    return a->err.code ? MLXCEL_FINISH_ERROR : finish[reason];
}

static void on_done(struct answer *a, const struct mxc_gen_event *in) {
    struct queued *q = a->done;
    if (in->reason == MXC_DONE_ERROR && !a->err.code)
        a->err = *in->err;
    *q = (struct queued){.event = {.request = in->request,
                                   .type = MLXCEL_EVENT_DONE,
                                   .text = "",
                                   .reasoning = "",
                                   .id = -1,
                                   .finish = finish_of(a, in->reason)}};
    a->n_prompt = a->n_prompt_done = in->stats->n_prompt;
    a->n_cached = in->stats->n_cached;
    a->n_generated = in->stats->n_generated;
    count(a, &q->event);
    q->event.queue_seconds = (double)in->stats->queue_ns * 1e-9;
    q->event.prompt_seconds = (double)in->stats->prefill_ns * 1e-9;
    q->event.generate_seconds = (double)in->stats->decode_ns * 1e-9;
    if (q->event.finish == MLXCEL_FINISH_ERROR)
        (void)mxc_api_fail(&a->err, &q->event.error);
    push(a->owner, q);
    mxc_mem_free(a);
}

static bool on_event(void *user, const struct mxc_gen_event *in) {
    struct answer *a = user;
    switch (in->kind) {
    case MXC_GEN_PROGRESS:
        return on_progress(a, in->token);
    case MXC_GEN_TEXT:
        return on_text(a, in);
    case MXC_GEN_DONE:
        on_done(a, in);
    }
    return false;
}

/* ---- submit */

static enum mxc_code submit(struct mlxcel_engine *e, const struct mlxcel_request *request,
                            const struct mxc_api_prompt *prompt, uint64_t *id,
                            struct mxc_err *err) {
    struct mxc_api_params p;
    enum mxc_code code = mxc_api_params_init(request, &p, err);
    if (code)
        return code;
    struct answer *a = mxc_mem_zalloc(1, sizeof *a);
    if (!a || !(a->done = mxc_mem_alloc(sizeof *a->done))) {
        mxc_mem_free(a);
        mxc_api_params_fini(&p);
        return mxc_err_nomem(err);
    }
    a->owner = e;
    struct mxc_prompt inner = {.tokens = prompt->ids, .n_tokens = prompt->n_ids, .adapter = -1};
    if (prompt->pictures)
        mxc_pictures_prompt(prompt->pictures, &inner);
    p.params.pictures = prompt->pictures;
    p.params.no_split = prompt->no_split;
    p.params.inside = prompt->inside;
    p.params.event = on_event;
    p.params.user = a;
    code = mxc_gen_submit(e->engine, e->model->chat, &inner, &p.params, id, err);
    if (code) {
        mxc_mem_free(a->done);
        mxc_mem_free(a);
    }
    mxc_api_params_fini(&p);
    return code;
}

mlxcel_status mlxcel_engine_submit(struct mlxcel_engine *e, const struct mlxcel_request *request,
                                   uint64_t *id, struct mlxcel_error *error) {
    struct mxc_api_prompt prompt;
    struct mxc_err err;
    uint64_t given;
    if (mxc_api_prompt_init(e->model, request, &prompt, &err))
        return mxc_api_fail(&err, error);
    enum mxc_code code = submit(e, request, &prompt, &given, &err);
    mxc_api_prompt_fini(&prompt);
    if (code)
        return mxc_api_fail(&err, error);
    *id = given;
    return MLXCEL_OK;
}

void mlxcel_engine_cancel(struct mlxcel_engine *engine, uint64_t id) {
    mxc_engine_cancel(engine->engine, id);
}

/* ---- life */

static enum mxc_code engine_options(const struct mlxcel_model *model, struct mxc_loop *loop,
                                    struct mxc_engine_options *o, struct mxc_err *err) {
    mxc_engine_options_init(o);
    o->max_rows = model->loaded->options.max_rows;
    o->max_batch = model->loaded->options.max_batch;
    o->max_queue = 1024;
    o->context = model->context;
    o->wake = mxc_loop_wake;
    o->wake_user = loop;
    return mxc_model_blocks(model->loaded, model->context, model->options.max_sequences,
                            model->options.kv_tokens, 0, o->n_blocks, err);
}

mlxcel_status mlxcel_engine_new(struct mlxcel_model *model, struct mlxcel_engine **engine,
                                struct mlxcel_error *error) {
    struct mxc_engine_options options;
    struct mxc_err err;
    if (mxc_api_take(model, &err))
        return mxc_api_fail(&err, error);
    struct mlxcel_engine *e = mxc_mem_zalloc(1, sizeof *e);
    if (!e) {
        mxc_api_give_back(model);
        return mxc_api_fail((mxc_err_nomem(&err), &err), error);
    }
    e->model = model;
    e->tail = &e->head;
    pthread_condattr_t attr;
    e->mutex_ready = !pthread_mutex_init(&e->mutex, NULL);
    e->more_ready = !pthread_condattr_init(&attr) &&
                    !pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) &&
                    !pthread_cond_init(&e->more, &attr);
    (void)pthread_condattr_destroy(&attr);
    const struct mxc_engine_target target = mxc_model_target(model->loaded);
    enum mxc_code code =
        e->mutex_ready && e->more_ready ? mxc_loop_new(&e->loop, &err) : mxc_err_nomem(&err);
    if (!code)
        code = engine_options(model, e->loop, &options, &err);
    if (!code)
        code = mxc_engine_new(&target, &options, &e->engine, &err);
    if (!code)
        code = mxc_loop_add(e->loop, e->engine, &err);
    if (code) {
        mlxcel_engine_free(e);
        return mxc_api_fail(&err, error);
    }
    *engine = e;
    return MLXCEL_OK;
}

void mlxcel_engine_free(struct mlxcel_engine *e) {
    if (!e)
        return;
    if (e->loop)
        mxc_loop_free(e->loop);
    mxc_engine_free(e->engine); /* its DONE events still go into the queue */
    while (e->head) {
        struct queued *next = e->head->next;
        mxc_mem_free(e->head);
        e->head = next;
    }
    mxc_mem_free(e->current);
    if (e->more_ready)
        pthread_cond_destroy(&e->more);
    if (e->mutex_ready)
        pthread_mutex_destroy(&e->mutex);
    mxc_api_give_back(e->model);
    mxc_mem_free(e);
}
