/* The watcher thread: an epoll set of all descriptors, edge-triggered for hang-ups, and a look at
 * every deadline ten times a second (a thousand loads; connections are bounded).
 * In: entries of connections. Out: notify calls and shutdowns. An epoll event carries the entry's
 * number, not its address, and is looked up under the lock, so that one that was removed meanwhile
 * is not touched. remove takes the descriptor out before it can be closed and used again. */
#define _GNU_SOURCE
#include "server/watch.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/thread.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { TICK_MS = 100, MAX_EVENTS = 64, MAX_LINGER = 256, LINGER_MS = 2000 };

struct lingering {
    int fd;
    uint64_t end_ns;
};

struct mxc_watch {
    pthread_mutex_t mutex;
    pthread_t thread;
    int epoll, stop_fd;
    struct mxc_watched *head;
    uint64_t last_number;
    struct lingering lingering[MAX_LINGER];
    int n_lingering;
};

static struct mxc_watched *find(struct mxc_watch *w, uint64_t number) {
    for (struct mxc_watched *e = w->head; e; e = e->next)
        if (e->number == number)
            return e;
    return NULL;
}

static void drain_lingering(struct mxc_watch *w, uint64_t now) {
    char waste[16384];
    for (int i = 0; i < w->n_lingering;) {
        struct lingering *l = &w->lingering[i];
        ssize_t n = 0;
        int rounds = 0;
        while (rounds++ < 256 && (n = recv(l->fd, waste, sizeof waste, MSG_DONTWAIT)) > 0)
            continue;
        bool open = n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
        if (open && now < l->end_ns) {
            i++;
            continue;
        }
        (void)close(l->fd);
        *l = w->lingering[--w->n_lingering];
    }
}

/* One look at every entry: late ones are shut down. */
static void look(struct mxc_watch *w) {
    uint64_t now = mxc_clock_ns();
    for (struct mxc_watched *e = w->head; e; e = e->next) {
        uint64_t deadline = atomic_load(&e->deadline_ns), alarm = atomic_load(&e->alarm_ns);
        if (deadline && now >= deadline) {
            atomic_store(&e->deadline_ns, 0);
            (void)shutdown(e->fd, SHUT_RDWR);
            e->notify(e, MXC_WATCH_LATE);
        } else if (alarm && now >= alarm) {
            atomic_store(&e->alarm_ns, 0);
            e->notify(e, MXC_WATCH_ALARM);
        }
    }
    drain_lingering(w, now);
}

static void *run(void *arg) {
    struct mxc_watch *w = arg;
    struct epoll_event events[MAX_EVENTS];
    uint64_t next_look = 0;
    for (;;) {
        int n = epoll_wait(w->epoll, events, MAX_EVENTS, TICK_MS);
        pthread_mutex_lock(&w->mutex);
        for (int i = 0; i < n; i++) {
            if (!events[i].data.u64) {
                pthread_mutex_unlock(&w->mutex);
                return NULL;
            }
            struct mxc_watched *e = find(w, events[i].data.u64);
            if (e && !e->hung_up && (events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))) {
                e->hung_up = true;
                e->notify(e, MXC_WATCH_HUNG_UP);
            }
        }
        uint64_t now = mxc_clock_ns();
        if (now >= next_look) {
            look(w);
            next_look = now + (uint64_t)TICK_MS * 1000000 / 2;
        }
        pthread_mutex_unlock(&w->mutex);
    }
}

enum mxc_code mxc_watch_new(struct mxc_watch **watch, struct mxc_err *err) {
    struct mxc_watch *w = mxc_mem_zalloc(1, sizeof *w);
    if (!w)
        return mxc_err_nomem(err);
    pthread_mutex_init(&w->mutex, NULL); /* cannot fail with default attributes */
    w->epoll = epoll_create1(EPOLL_CLOEXEC);
    w->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data = {.u64 = 0}};
    bool ok = w->epoll >= 0 && w->stop_fd >= 0 &&
              !epoll_ctl(w->epoll, EPOLL_CTL_ADD, w->stop_fd, &event) &&
              mxc_thread_start(&w->thread, run, w);
    if (ok) {
        *watch = w;
        return MXC_OK;
    }
    int reason = errno;
    if (w->epoll >= 0)
        (void)close(w->epoll);
    if (w->stop_fd >= 0)
        (void)close(w->stop_fd);
    pthread_mutex_destroy(&w->mutex);
    mxc_mem_free(w);
    return mxc_err_set(err, MXC_E_IO, "the watcher cannot be started: %s", strerror(reason));
}

void mxc_watch_free(struct mxc_watch *w) {
    if (!w)
        return;
    uint64_t one = 1;
    while (write(w->stop_fd, &one, sizeof one) < 0 && errno == EINTR)
        continue;
    pthread_join(w->thread, NULL);
    for (int i = 0; i < w->n_lingering; i++)
        (void)close(w->lingering[i].fd);
    (void)close(w->epoll);
    (void)close(w->stop_fd);
    pthread_mutex_destroy(&w->mutex);
    mxc_mem_free(w);
}

enum mxc_code mxc_watch_add(struct mxc_watch *w, struct mxc_watched *e) {
    pthread_mutex_lock(&w->mutex);
    e->number = ++w->last_number;
    e->hung_up = false;
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLET, .data = {.u64 = e->number}};
    bool ok = !epoll_ctl(w->epoll, EPOLL_CTL_ADD, e->fd, &event);
    if (ok) {
        e->previous = NULL;
        e->next = w->head;
        if (w->head)
            w->head->previous = e;
        w->head = e;
    }
    pthread_mutex_unlock(&w->mutex);
    return ok ? MXC_OK : MXC_E_IO;
}

void mxc_watch_remove(struct mxc_watch *w, struct mxc_watched *e) {
    pthread_mutex_lock(&w->mutex);
    (void)epoll_ctl(w->epoll, EPOLL_CTL_DEL, e->fd, NULL);
    if (e->previous)
        e->previous->next = e->next;
    else
        w->head = e->next;
    if (e->next)
        e->next->previous = e->previous;
    pthread_mutex_unlock(&w->mutex);
}

void mxc_watch_linger(struct mxc_watch *w, int fd) {
    (void)shutdown(fd, SHUT_WR);
    pthread_mutex_lock(&w->mutex);
    bool room = w->n_lingering < MAX_LINGER;
    if (room)
        w->lingering[w->n_lingering++] =
            (struct lingering){fd, mxc_clock_ns() + (uint64_t)LINGER_MS * 1000000};
    pthread_mutex_unlock(&w->mutex);
    if (!room)
        (void)close(fd);
}

void mxc_watch_lock(struct mxc_watch *w) {
    pthread_mutex_lock(&w->mutex);
}

void mxc_watch_unlock(struct mxc_watch *w) {
    pthread_mutex_unlock(&w->mutex);
}

void mxc_watch_each(struct mxc_watch *w, void (*each)(struct mxc_watched *entry, void *user),
                    void *user) {
    pthread_mutex_lock(&w->mutex);
    for (struct mxc_watched *e = w->head; e; e = e->next)
        each(e, user);
    pthread_mutex_unlock(&w->mutex);
}
