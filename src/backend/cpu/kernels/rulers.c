/* Rulers: read bandwidth and multiply-add peaks of this machine.
 * In: the team; for arithmetic also the level. Out: GB/s, TOP/s or TFLOP/s over all threads; 0
 * where the level has no such instruction or memory ran out.
 * All threads run at the same time, from a barrier on, because cores share memory and clock limits.
 * Each figure is the best of four runs, made long enough for the clock; about 50 ms in all.
 * Reads always use the best level of the machine: bandwidth does not change with MLXCEL_CPU. */
#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/kernels/rulers.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/team.h"

/* By level; best: of I8MM, which has only what NEON has not. */
#if defined(__x86_64__)
#define LEVELS(name, best)                                                                         \
    { mxc_scalar_##name, mxc_avx2_##name, mxc_avx512_##name, mxc_scalar_##name, mxc_scalar_##name }
#elif defined(__aarch64__)
#define LEVELS(name, best)                                                                         \
    {                                                                                              \
        mxc_scalar_##name, mxc_scalar_##name, mxc_scalar_##name, mxc_neon_##name,                  \
            mxc_##best##_##name                                                                    \
    }
#else
#define LEVELS(name, best)                                                                         \
    {                                                                                              \
        mxc_scalar_##name, mxc_scalar_##name, mxc_scalar_##name, mxc_scalar_##name,                \
            mxc_scalar_##name                                                                      \
    }
#endif

enum { RUNS = 4, READ_UNIT = 512 };

struct job {
    struct mxc_team *team;
    mxc_ruler_read_fn *read;
    mxc_ruler_peak_fn *peak;
    const uint8_t *data;
    size_t bytes;
    long rounds;
    double operations; /* of one round, one thread */
    uint64_t start_ns;
    uint64_t sink; /* worker 0's; keeps the reads alive */
};

static void work(void *arg, int worker, int n_workers) {
    struct job *job = arg;
    mxc_team_barrier(job->team);
    if (!worker)
        job->start_ns = mxc_clock_ns();
    if (job->read) {
        size_t units = job->bytes / READ_UNIT, n = (size_t)n_workers, i = (size_t)worker;
        size_t from = units * i / n, to = units * (i + 1) / n;
        uint64_t sum = job->read(job->data + from * READ_UNIT, (to - from) * READ_UNIT);
        if (!worker)
            job->sink ^= sum;
    } else {
        double operations = job->peak(job->rounds);
        if (!worker)
            job->operations = operations;
    }
}

/* Shortest of RUNS runs in seconds. */
static double best_seconds(struct job *job) {
    double best = 0;
    for (int i = 0; i < RUNS; i++) {
        mxc_team_run(job->team, work, job);
        double seconds = (double)(mxc_clock_ns() - job->start_ns) * 1e-9;
        if (!i || seconds < best)
            best = seconds;
    }
    return best;
}

double mxc_ruler_read_gbs(struct mxc_team *team) {
    static mxc_ruler_read_fn *const reads[MXC_N_CPU_LEVELS] = LEVELS(ruler_read, neon);
    size_t bytes = (size_t)256 << 20; /* above any last-level cache that serves a few cores */
    uint8_t *data = mxc_mem_aligned(MXC_ALIGN, bytes, true);
    if (!data)
        return 0;
    for (size_t i = 0; i < bytes; i += 64) /* pages that were never written read as one page */
        data[i] = (uint8_t)i;
    struct job job = {.team = team, .read = reads[mxc_cpu_best()], .data = data, .bytes = bytes};
    double gbs = (double)bytes / best_seconds(&job) * 1e-9;
    mxc_mem_free_aligned(data, bytes);
    return gbs;
}

static double peak(struct mxc_team *team, mxc_ruler_peak_fn *fn) {
    struct job job = {.team = team, .peak = fn, .rounds = 1000};
    double seconds = best_seconds(&job);
    while (seconds < 2e-3) { /* long enough for the clock */
        job.rounds *= 4;
        seconds = best_seconds(&job);
    }
    return job.operations * (double)job.rounds * mxc_team_size(team) / seconds * 1e-12;
}

double mxc_ruler_int8_tops(struct mxc_team *team, enum mxc_cpu_level level) {
    static mxc_ruler_peak_fn *const fns[MXC_N_CPU_LEVELS] = LEVELS(ruler_int8, i8mm);
    return peak(team, fns[level < mxc_cpu_best() ? level : mxc_cpu_best()]);
}

double mxc_ruler_bf16_tflops(struct mxc_team *team, enum mxc_cpu_level level) {
#if defined(__x86_64__)
    if (level >= MXC_CPU_AVX512 && mxc_cpu_best() >= MXC_CPU_AVX512)
        return peak(team, mxc_avx512_ruler_bf16);
#elif defined(__aarch64__)
    if (level >= MXC_CPU_I8MM && mxc_cpu_best() >= MXC_CPU_I8MM)
        return peak(team, mxc_i8mm_ruler_bf16);
#endif
    (void)team;
    (void)level;
    return 0;
}

double mxc_ruler_f32_tflops(struct mxc_team *team, enum mxc_cpu_level level) {
    static mxc_ruler_peak_fn *const fns[MXC_N_CPU_LEVELS] = LEVELS(ruler_f32, neon);
    return peak(team, fns[level < mxc_cpu_best() ? level : mxc_cpu_best()]);
}
