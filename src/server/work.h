/* Work: a few threads that run short tasks in the order in which they came, from a bounded queue.
 * Thread rules: put from any thread. */
#ifndef MXC_SERVER_WORK_H
#define MXC_SERVER_WORK_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

struct mxc_work;
typedef void mxc_work_fn(void *arg);

enum { MXC_WORK_THREADS = 64 };
enum mxc_code mxc_work_new(int n_threads, int max_waiting, struct mxc_work **work,
                           struct mxc_err *err) MXC_MUST;
/* Runs what waits, then ends the threads. */
void mxc_work_free(struct mxc_work *work);
/* false: the queue is full. */
bool mxc_work_put(struct mxc_work *work, mxc_work_fn *fn, void *arg);
int mxc_work_waiting(struct mxc_work *work);

#endif
