/* Threads of the library. A new thread inherits the signal mask of the one that starts it, so the
 * mask is filled around the call and put back: nothing else of the calling thread changes, and the
 * new thread never sees a signal that a host program handles (SIGINT, SIGTERM, timers). Synchronous
 * faults (SIGSEGV, SIGBUS) are not affected by the mask. */
#define _GNU_SOURCE
#include "base/thread.h"

#include <signal.h>

bool mxc_thread_start(pthread_t *thread, void *(*fn)(void *arg), void *arg) {
    sigset_t all, before;
    (void)sigfillset(&all);
    if (pthread_sigmask(SIG_SETMASK, &all, &before))
        return false;
    bool ok = !pthread_create(thread, NULL, fn, arg);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return ok;
}
