/* Team: persistent pinned workers and one generation barrier. A worker meets the caller when work
 * is there and again when it is done; in between everybody may meet at the same barrier. Waiting
 * spins at most 20 us and then parks on a futex: a long spin starves a busy neighbour on the same
 * core, and an immediate futex costs more than a decode step's phases. The barrier's counters lie
 * on cache lines of their own. fn, arg and stopping are written before a barrier and read after it.
 */
#define _GNU_SOURCE
#include "base/team.h"

#include "base/clock.h"
#include "base/cpu.h"
#include "base/mem.h"
#include "base/thread.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MAX_WORKERS = 256, SPIN_NS = 20000 };

struct barrier {
    _Alignas(64) _Atomic uint32_t n_in;
    _Alignas(64) _Atomic uint32_t generation;
    _Atomic uint32_t n_parked;
};

struct worker {
    struct mxc_team *team;
    pthread_t thread;
    int id;
};

struct mxc_team {
    struct barrier barrier;
    int n_workers;
    bool stopping;
    mxc_team_fn *fn;
    void *arg;
    struct worker workers[];
};

static void cpu_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void futex(_Atomic uint32_t *word, int op, uint32_t value) {
    (void)syscall(SYS_futex, word, op | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

static void wait_generation(struct barrier *b, uint32_t seen) {
    uint64_t end = 0;
    for (unsigned i = 0; atomic_load_explicit(&b->generation, memory_order_acquire) == seen; i++) {
        cpu_relax();
        if (i % 64)
            continue;
        uint64_t now = mxc_clock_ns();
        if (!end)
            end = now + SPIN_NS;
        if (now < end)
            continue;
        atomic_fetch_add(&b->n_parked, 1);
        while (atomic_load(&b->generation) == seen)
            futex(&b->generation, FUTEX_WAIT, seen);
        atomic_fetch_sub(&b->n_parked, 1);
    }
}

void mxc_team_barrier(struct mxc_team *team) {
    if (team->n_workers == 1)
        return;
    struct barrier *b = &team->barrier;
    uint32_t seen = atomic_load(&b->generation);
    if (atomic_fetch_add(&b->n_in, 1) != (uint32_t)team->n_workers - 1) {
        wait_generation(b, seen);
        return;
    }
    atomic_store(&b->n_in, 0);
    atomic_fetch_add(&b->generation, 1);
    if (atomic_load(&b->n_parked))
        futex(&b->generation, FUTEX_WAKE, MAX_WORKERS);
}

static void pin(int worker) {
    cpu_set_t all, one;
    if (sched_getaffinity(0, sizeof all, &all) < 0)
        return;
    int n = CPU_COUNT(&all), want = n > 0 ? worker % n : 0;
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &all) || want--)
            continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        (void)pthread_setaffinity_np(pthread_self(), sizeof one, &one);
        return;
    }
}

/* A worker meets the caller twice a run: when the work is there and when it is done. */
static void *worker_main(void *arg) {
    struct worker *w = arg;
    struct mxc_team *team = w->team;
    pin(w->id);
    for (;;) {
        mxc_team_barrier(team);
        if (team->stopping)
            return NULL;
        team->fn(team->arg, w->id, team->n_workers);
        mxc_team_barrier(team);
    }
}

/* Joins the first n workers; the others were never started. */
static void stop(struct mxc_team *team, int n_started) {
    team->stopping = true;
    if (n_started == team->n_workers) {
        mxc_team_barrier(team);
    } else {
        for (int i = n_started; i <= team->n_workers; i++) /* stand in for the missing ones */
            if (atomic_fetch_add(&team->barrier.n_in, 1) == (uint32_t)team->n_workers - 1) {
                atomic_fetch_add(&team->barrier.generation, 1);
                futex(&team->barrier.generation, FUTEX_WAKE, MAX_WORKERS);
            }
    }
    for (int i = 1; i < n_started; i++)
        (void)pthread_join(team->workers[i].thread, NULL);
}

enum mxc_code mxc_team_new(int n_workers, struct mxc_team **out, struct mxc_err *err) {
    if (!n_workers)
        n_workers = mxc_cpu_count() < MAX_WORKERS ? mxc_cpu_count() : MAX_WORKERS;
    if (n_workers < 1 || n_workers > MAX_WORKERS)
        return mxc_err_set(err, MXC_E_ARG, "threads: %d is not in [1, %d]", n_workers, MAX_WORKERS);
    size_t bytes = sizeof(struct mxc_team) + (size_t)n_workers * sizeof(struct worker);
    struct mxc_team *team = mxc_mem_aligned(64, bytes, false);
    if (!team)
        return mxc_err_nomem(err);
    team->n_workers = n_workers;
    for (int i = 1; i < n_workers; i++) {
        team->workers[i] = (struct worker){.team = team, .id = i};
        if (!mxc_thread_start(&team->workers[i].thread, worker_main, &team->workers[i])) {
            stop(team, i);
            mxc_mem_free_aligned(team, bytes);
            return mxc_err_set(err, MXC_E_NOMEM, "cannot start thread %d of %d", i, n_workers);
        }
    }
    *out = team;
    return MXC_OK;
}

void mxc_team_free(struct mxc_team *team) {
    if (!team)
        return;
    stop(team, team->n_workers);
    mxc_mem_free_aligned(team, sizeof *team + (size_t)team->n_workers * sizeof(struct worker));
}

int mxc_team_size(const struct mxc_team *team) {
    return team->n_workers;
}

void mxc_team_run(struct mxc_team *team, mxc_team_fn *fn, void *arg) {
    team->fn = fn;
    team->arg = arg;
    mxc_team_barrier(team);
    fn(arg, 0, team->n_workers);
    mxc_team_barrier(team);
}
