/* The CPU backend's table of functions, and how a backend is opened and closed.
 * In: options, of which only the number of threads counts here. Out: a backend, which is a team of
 * threads and nothing more: weights and buffers belong to plans (plan.c), keys and values to states
 * (state.c).
 * Plans opened from one backend take turns on its team. The team is freed last, so plans must be
 * gone by then. */
#include "backend/cpu/cpu.h"

#include "base/mem.h"

static enum mxc_code open_cpu(const struct mxc_backend_options *options, struct mxc_backend **out,
                              struct mxc_err *err) {
    struct mxc_backend *backend = mxc_mem_zalloc(1, sizeof *backend);
    if (!backend)
        return mxc_err_nomem(err);
    enum mxc_code code = mxc_team_new(options ? options->n_threads : 0, &backend->team, err);
    if (code) {
        mxc_mem_free(backend);
        return code;
    }
    *out = backend;
    return MXC_OK;
}

static void close_cpu(struct mxc_backend *backend) {
    if (!backend)
        return;
    mxc_team_free(backend->team);
    mxc_mem_free(backend);
}

const struct mxc_backend_ops mxc_backend_cpu = {.name = "cpu",
                                                .open = open_cpu,
                                                .close = close_cpu,
                                                .estimate = mxc_cpu_estimate,
                                                .compile = mxc_cpu_compile,
                                                .plan_free = mxc_cpu_plan_free,
                                                .plan_memory = mxc_cpu_plan_memory,
                                                .plan_describe = mxc_cpu_plan_describe,
                                                .plan_matrix = mxc_cpu_plan_matrix,
                                                .state_new = mxc_cpu_state_new,
                                                .state_free = mxc_cpu_state_free,
                                                .state_copy = mxc_cpu_state_copy,
                                                .state_export = mxc_cpu_state_export,
                                                .state_import = mxc_cpu_state_import,
                                                .run = mxc_cpu_run,
                                                .state_put = mxc_cpu_state_put,
                                                .tower_new = mxc_cpu_tower_new,
                                                .tower_step = mxc_cpu_tower_step,
                                                .tower_tap = mxc_cpu_tower_tap,
                                                .tower_output = mxc_cpu_tower_output,
                                                .tower_free = mxc_cpu_tower_free,
                                                .tower_bytes = mxc_cpu_tower_bytes};
