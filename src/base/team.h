/* Team: n threads that run one function together and meet at barriers. The caller is worker 0.
 * Waiting spins at most 20 us and then parks on a futex, so an idle team costs nothing and busy
 * neighbours are not starved. Workers are pinned to the cores of the process's affinity mask, the
 * caller stays where it is.
 * Thread rules: one thread at a time calls run; barrier only inside run, by every worker. */
#ifndef MXC_BASE_TEAM_H
#define MXC_BASE_TEAM_H

#include "base/err.h"

struct mxc_team;
typedef void mxc_team_fn(void *arg, int worker, int n_workers);

/* n_workers: 1 to 256, the caller included; 0: one per core the process may use. */
enum mxc_code mxc_team_new(int n_workers, struct mxc_team **team, struct mxc_err *err) MXC_MUST;
void mxc_team_free(struct mxc_team *team);
int mxc_team_size(const struct mxc_team *team);
/* Runs fn(arg, worker, n) on every worker and returns when all are done. */
void mxc_team_run(struct mxc_team *team, mxc_team_fn *fn, void *arg);
/* Meets all workers; memory written before is visible after. */
void mxc_team_barrier(struct mxc_team *team);

#endif
