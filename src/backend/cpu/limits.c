/* Limits of the machine: runs the rulers of kernels/ on a team of its own.
 * In: the number of threads. Out: bandwidth and arithmetic peaks at the level that MLXCEL_CPU and
 * the CPU allow, or an error with the limits untouched.
 * The team is separate so that no model has to be open. It must not run beside a busy engine: what
 * is measured is what the threads get. */
#include "backend/backend.h"
#include "backend/cpu/kernels/kernels.h"

#include "base/cpu.h"
#include "base/team.h"

enum mxc_code mxc_backend_cpu_limits(int n_threads, struct mxc_cpu_limits *limits,
                                     struct mxc_err *err) {
    struct mxc_team *team;
    enum mxc_code code = mxc_team_new(n_threads, &team, err);
    if (code)
        return code;
    enum mxc_cpu_level level = mxc_cpu_level();
    *limits = (struct mxc_cpu_limits){.read_gbs = mxc_ruler_read_gbs(team),
                                      .int8_tops = mxc_ruler_int8_tops(team, level),
                                      .bf16_tflops = mxc_ruler_bf16_tflops(team, level),
                                      .f32_tflops = mxc_ruler_f32_tflops(team, level)};
    mxc_team_free(team);
    return MXC_OK;
}
