/* The prep workers: a ring of tasks behind one mutex. Tasks are milliseconds of JSON, template and
 * tokeniser work, so one lock is no bottleneck. */
#define _GNU_SOURCE
#include "server/work.h"

#include "base/mem.h"
#include "base/thread.h"

struct task {
    mxc_work_fn *fn;
    void *arg;
};

struct mxc_work {
    pthread_mutex_t mutex;
    pthread_cond_t more;
    pthread_t threads[MXC_WORK_THREADS];
    int n_threads;
    bool stop;
    struct task *ring; /* [size] */
    size_t size, first, count;
};

static void *run(void *arg) {
    struct mxc_work *w = arg;
    pthread_mutex_lock(&w->mutex);
    for (;;) {
        while (!w->count && !w->stop)
            pthread_cond_wait(&w->more, &w->mutex);
        if (!w->count)
            break;
        struct task task = w->ring[w->first];
        w->first = (w->first + 1) % w->size;
        w->count--;
        pthread_mutex_unlock(&w->mutex);
        task.fn(task.arg);
        pthread_mutex_lock(&w->mutex);
    }
    pthread_mutex_unlock(&w->mutex);
    return NULL;
}

enum mxc_code mxc_work_new(int n_threads, int max_waiting, struct mxc_work **work,
                           struct mxc_err *err) {
    if (n_threads < 1 || n_threads > MXC_WORK_THREADS || max_waiting < 1)
        return mxc_err_set(err, MXC_E_ARG, "%d prep workers and %d places to wait", n_threads,
                           max_waiting);
    struct mxc_work *w = mxc_mem_zalloc(1, sizeof *w);
    if (!w)
        return mxc_err_nomem(err);
    w->ring = mxc_mem_array((size_t)max_waiting, sizeof *w->ring);
    w->size = (size_t)max_waiting;
    pthread_mutex_init(&w->mutex, NULL); /* cannot fail with default attributes */
    pthread_cond_init(&w->more, NULL);
    while (w->ring && w->n_threads < n_threads &&
           mxc_thread_start(&w->threads[w->n_threads], run, w))
        w->n_threads++;
    if (w->n_threads < n_threads) {
        mxc_work_free(w);
        return mxc_err_set(err, MXC_E_NOMEM, "the prep workers cannot be started");
    }
    *work = w;
    return MXC_OK;
}

void mxc_work_free(struct mxc_work *w) {
    if (!w)
        return;
    pthread_mutex_lock(&w->mutex);
    w->stop = true;
    pthread_cond_broadcast(&w->more);
    pthread_mutex_unlock(&w->mutex);
    for (int i = 0; i < w->n_threads; i++)
        pthread_join(w->threads[i], NULL);
    pthread_cond_destroy(&w->more);
    pthread_mutex_destroy(&w->mutex);
    mxc_mem_free(w->ring);
    mxc_mem_free(w);
}

bool mxc_work_put(struct mxc_work *w, mxc_work_fn *fn, void *arg) {
    pthread_mutex_lock(&w->mutex);
    bool room = w->count < w->size && !w->stop;
    if (room) {
        w->ring[(w->first + w->count++) % w->size] = (struct task){fn, arg};
        pthread_cond_signal(&w->more);
    }
    pthread_mutex_unlock(&w->mutex);
    return room;
}

int mxc_work_waiting(struct mxc_work *w) {
    pthread_mutex_lock(&w->mutex);
    int n = (int)w->count;
    pthread_mutex_unlock(&w->mutex);
    return n;
}
