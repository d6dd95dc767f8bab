/* Threads of the library: started with all signals blocked, so that a host program's handlers run
 * on its own threads only. */
#ifndef MXC_BASE_THREAD_H
#define MXC_BASE_THREAD_H

#include <pthread.h>
#include <stdbool.h>

/* As pthread_create. false: the thread could not be started. Join it as usual. */
bool mxc_thread_start(pthread_t *thread, void *(*fn)(void *arg), void *arg);

#endif
