/* CPU features and levels. Detected once (CPUID and XCR0; aarch64: the auxiliary vector);
 * MLXCEL_CPU=scalar|avx2|avx512, or scalar|neon|i8mm, masks downward, so one machine tests every
 * level. */
#ifndef MXC_BASE_CPU_H
#define MXC_BASE_CPU_H

#include "base/err.h"

#include <stdbool.h>

enum mxc_cpu_level {
    MXC_CPU_SCALAR,
    MXC_CPU_AVX2,   /* AVX2, FMA, F16C */
    MXC_CPU_AVX512, /* + AVX512F/BW/VL/DQ, VNNI, BF16 */
    MXC_CPU_NEON,   /* aarch64 with dot products */
    MXC_CPU_I8MM,   /* + int8 and bf16 matrix products */
    MXC_N_CPU_LEVELS
};

/* The best level this machine can run, without any mask. */
enum mxc_cpu_level mxc_cpu_best(void);
/* The level to use: best, lowered by the mask or by MLXCEL_CPU. */
enum mxc_cpu_level mxc_cpu_level(void);
/* Masks the level (tests, --cpu). MXC_E_UNSUPPORTED when the machine lacks it. Set it before a
 * model is loaded. */
enum mxc_code mxc_cpu_mask(enum mxc_cpu_level level, struct mxc_err *err);
const char *mxc_cpu_level_name(enum mxc_cpu_level level);
/* false: no such name. */
bool mxc_cpu_level_parse(const char *name, enum mxc_cpu_level *level);
/* Flags of /proc/cpuinfo that the level above the machine's best needs and the CPU lacks,
 * "avx512_vnni avx512_bf16"; "" at the highest level. Returns text. */
const char *mxc_cpu_missing(char text[128]);
/* Cores this process may run on, at least 1. */
int mxc_cpu_count(void);

#endif
