/* CPU features and levels: what this CPU can run, and the mask that lowers it.
 * In: CPUID and XCR0 through the compiler's own detection, on aarch64 the auxiliary vector,
 * MLXCEL_CPU, a mask set by the program, the affinity of the process. Out: a level, its name, a
 * count of cores.
 * Invariant: the level told is never above what the CPU has, so no kernel can meet an unknown
 * instruction. AVX-512 counts only with VNNI and BF16, matrix products of aarch64 only with bf16
 * ones; a CPU with less runs the kernels of the level below. */
#define _GNU_SOURCE
#include "base/cpu.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__aarch64__)
#include <sys/auxv.h>

/* HWCAP_ASIMDDP, HWCAP2_I8MM, HWCAP2_BF16 */
enum { DOT_PRODUCTS = 1 << 20, I8MM = 1 << 13, BF16 = 1 << 14, MATRIX_PRODUCTS = I8MM | BF16 };
#endif

static _Atomic int mask = -1; /* -1: not set */
static const char *const names[MXC_N_CPU_LEVELS] = {"scalar", "avx2", "avx512", "neon", "i8mm"};

enum mxc_cpu_level mxc_cpu_best(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return MXC_CPU_SCALAR;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16"))
        return MXC_CPU_AVX512;
    return MXC_CPU_AVX2;
#elif defined(__aarch64__)
    if (!(getauxval(AT_HWCAP) & DOT_PRODUCTS))
        return MXC_CPU_SCALAR;
    return (getauxval(AT_HWCAP2) & MATRIX_PRODUCTS) == MATRIX_PRODUCTS ? MXC_CPU_I8MM
                                                                       : MXC_CPU_NEON;
#else
    return MXC_CPU_SCALAR;
#endif
}

#if defined(__x86_64__) || defined(__aarch64__)
static void add_word(char text[128], const char *word, bool have) {
    size_t used = strlen(text);
    if (!have)
        (void)snprintf(text + used, 128 - used, "%s%s", used ? " " : "", word);
}
#endif

const char *mxc_cpu_missing(char text[128]) {
    text[0] = 0;
#if defined(__x86_64__)
    if (mxc_cpu_best() == MXC_CPU_SCALAR) {
        add_word(text, "avx2", __builtin_cpu_supports("avx2"));
        add_word(text, "fma", __builtin_cpu_supports("fma"));
    } else {
        add_word(text, "avx512f", __builtin_cpu_supports("avx512f"));
        add_word(text, "avx512bw", __builtin_cpu_supports("avx512bw"));
        add_word(text, "avx512vl", __builtin_cpu_supports("avx512vl"));
        add_word(text, "avx512dq", __builtin_cpu_supports("avx512dq"));
        add_word(text, "avx512_vnni", __builtin_cpu_supports("avx512vnni"));
        add_word(text, "avx512_bf16", __builtin_cpu_supports("avx512bf16"));
    }
#elif defined(__aarch64__)
    if (mxc_cpu_best() == MXC_CPU_SCALAR) {
        add_word(text, "asimddp", false);
    } else {
        add_word(text, "i8mm", getauxval(AT_HWCAP2) & I8MM);
        add_word(text, "bf16", getauxval(AT_HWCAP2) & BF16);
    }
#endif
    return text;
}

enum mxc_cpu_level mxc_cpu_level(void) {
    enum mxc_cpu_level best = mxc_cpu_best(), want;
    int m = atomic_load(&mask);
    if (m >= 0)
        return (enum mxc_cpu_level)m < best ? (enum mxc_cpu_level)m : best;
    const char *env = getenv("MLXCEL_CPU");
    if (env && mxc_cpu_level_parse(env, &want) && want < best)
        return want;
    return best;
}

enum mxc_code mxc_cpu_mask(enum mxc_cpu_level level, struct mxc_err *err) {
    if ((unsigned)level >= MXC_N_CPU_LEVELS || level > mxc_cpu_best())
        return mxc_err_set(err, MXC_E_UNSUPPORTED, "this CPU has no %s (best: %s)",
                           mxc_cpu_level_name(level), mxc_cpu_level_name(mxc_cpu_best()));
    atomic_store(&mask, (int)level);
    return MXC_OK;
}

const char *mxc_cpu_level_name(enum mxc_cpu_level level) {
    return (unsigned)level < MXC_N_CPU_LEVELS ? names[level] : "unknown";
}

bool mxc_cpu_level_parse(const char *name, enum mxc_cpu_level *level) {
    for (int i = 0; i < MXC_N_CPU_LEVELS; i++)
        if (!strcmp(name, names[i])) {
            *level = (enum mxc_cpu_level)i;
            return true;
        }
    return false;
}

int mxc_cpu_count(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) < 0)
        return 1;
    int n = CPU_COUNT(&set);
    return n > 0 ? n : 1;
}
