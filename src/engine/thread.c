/* The engine thread. One mutex guards the list of engines, the wake flag and one call at a time; it
 * is not held while an engine steps.
 * Functions passed to call run with the mutex free too. */
#define _GNU_SOURCE
#include "engine/thread.h"

#include "base/mem.h"
#include "base/thread.h"

#include <pthread.h>

enum { MAX_ENGINES = 64 };

struct mxc_loop {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t wake, called;
    bool woken, stop;
    struct mxc_engine *engines[MAX_ENGINES];
    int n_engines;
    void (*call)(void *arg); /* pending call; NULL: none */
    void *call_arg;
    uint64_t n_calls; /* calls that have returned */
};

static void take_call(struct mxc_loop *loop) {
    void (*call)(void *arg) = loop->call;
    if (!call)
        return;
    pthread_mutex_unlock(&loop->mutex);
    call(loop->call_arg);
    pthread_mutex_lock(&loop->mutex);
    loop->call = NULL;
    loop->n_calls++;
    pthread_cond_broadcast(&loop->called);
}

/* Takes the engine off the list; the index of the one that is there now in its place. */
static int forget(struct mxc_loop *loop, const struct mxc_engine *engine) {
    int n = 0, place = 0;
    for (int i = 0; i < loop->n_engines; i++)
        if (loop->engines[i] == engine)
            place = n;
        else
            loop->engines[n++] = loop->engines[i];
    loop->n_engines = n;
    return place;
}

static void *run(void *arg) {
    struct mxc_loop *loop = arg;
    bool busy = false;
    pthread_mutex_lock(&loop->mutex);
    while (!loop->stop || loop->call) {
        while (!busy && !loop->woken && !loop->stop && !loop->call)
            pthread_cond_wait(&loop->wake, &loop->mutex);
        loop->woken = false;
        take_call(loop);
        busy = false;
        for (int i = 0; i < loop->n_engines && !loop->stop && !loop->call; i++) {
            struct mxc_engine *engine = loop->engines[i];
            pthread_mutex_unlock(&loop->mutex);
            busy |= mxc_engine_step(engine);
            bool lost = mxc_engine_is_lost(engine);
            pthread_mutex_lock(&loop->mutex);
            if (lost) /* it is never stepped again */
                i = forget(loop, engine) - 1;
        }
        busy |= loop->call != NULL; /* engines after it have not had their turn */
    }
    pthread_mutex_unlock(&loop->mutex);
    return NULL;
}

enum mxc_code mxc_loop_new(struct mxc_loop **loop, struct mxc_err *err) {
    struct mxc_loop *l = mxc_mem_zalloc(1, sizeof *l);
    if (!l)
        return mxc_err_nomem(err);
    pthread_mutex_init(&l->mutex, NULL); /* these three cannot fail with default attributes */
    pthread_cond_init(&l->wake, NULL);
    pthread_cond_init(&l->called, NULL);
    if (!mxc_thread_start(&l->thread, run, l)) {
        pthread_cond_destroy(&l->wake);
        pthread_cond_destroy(&l->called);
        pthread_mutex_destroy(&l->mutex);
        mxc_mem_free(l);
        return mxc_err_set(err, MXC_E_NOMEM, "the engine thread cannot be started");
    }
    *loop = l;
    return MXC_OK;
}

void mxc_loop_free(struct mxc_loop *loop) {
    if (!loop)
        return;
    pthread_mutex_lock(&loop->mutex);
    loop->stop = true;
    pthread_cond_signal(&loop->wake);
    pthread_mutex_unlock(&loop->mutex);
    pthread_join(loop->thread, NULL);
    pthread_cond_destroy(&loop->wake);
    pthread_cond_destroy(&loop->called);
    pthread_mutex_destroy(&loop->mutex);
    mxc_mem_free(loop);
}

void mxc_loop_wake(void *user) {
    struct mxc_loop *loop = user;
    pthread_mutex_lock(&loop->mutex);
    loop->woken = true;
    pthread_cond_signal(&loop->wake);
    pthread_mutex_unlock(&loop->mutex);
}

void mxc_loop_call(struct mxc_loop *loop, void (*fn)(void *arg), void *arg) {
    pthread_mutex_lock(&loop->mutex);
    while (loop->call)
        pthread_cond_wait(&loop->called, &loop->mutex);
    loop->call = fn;
    loop->call_arg = arg;
    uint64_t mine = loop->n_calls + 1; /* one call at a time: it is the next to return */
    pthread_cond_signal(&loop->wake);
    while (loop->n_calls < mine)
        pthread_cond_wait(&loop->called, &loop->mutex);
    pthread_mutex_unlock(&loop->mutex);
}

struct change {
    struct mxc_loop *loop;
    struct mxc_engine *engine;
    bool done;
};

static void add(void *arg) {
    struct change *c = arg;
    c->done = c->loop->n_engines < MAX_ENGINES;
    if (c->done)
        c->loop->engines[c->loop->n_engines++] = c->engine;
}

static void drop(void *arg) {
    struct change *c = arg;
    (void)forget(c->loop, c->engine);
}

enum mxc_code mxc_loop_add(struct mxc_loop *loop, struct mxc_engine *engine, struct mxc_err *err) {
    struct change c = {loop, engine, false};
    mxc_loop_call(loop, add, &c);
    if (!c.done)
        return mxc_err_set(err, MXC_E_LIMIT, "a loop steps at most %d engines", MAX_ENGINES);
    mxc_loop_wake(loop);
    return MXC_OK;
}

void mxc_loop_remove(struct mxc_loop *loop, struct mxc_engine *engine) {
    struct change c = {loop, engine, false};
    mxc_loop_call(loop, drop, &c);
}
