/* Table: the dispatch tables of the ISA levels, made from the rows of kernels.def. A table takes
 * the rows of its own level and of the levels below; a later row of the file overrides an earlier
 * one for the same slot, which is the fill order scalar -> avx2 -> avx512, or scalar -> neon ->
 * i8mm. So no table has a hole. The tables are constants: safe from any thread. */
#include "backend/cpu/kernels/kernels.h"

#define MXC_KERNEL(LEVEL, isa, KIND, slot, index, name)                                            \
    extern __typeof__(*((struct mxc_kernels *)0)->slot) mxc_##isa##_##name;
#include "backend/cpu/kernels/kernels.def"
#undef MXC_KERNEL

#pragma GCC diagnostic ignored "-Woverride-init"
#define TAKE(slot, fn) .slot = fn,
#define SKIP(slot, fn)
#define MXC_KERNEL(LEVEL, isa, KIND, slot, index, name) TAKE_##LEVEL(slot, mxc_##isa##_##name)
#define TAKE_SCALAR                                     TAKE
#define TAKE_AVX2                                       SKIP
#define TAKE_AVX512                                     SKIP
#define TAKE_NEON                                       SKIP
#define TAKE_I8MM                                       SKIP

static const struct mxc_kernels scalar_kernels = {
    .level = MXC_CPU_SCALAR,
#include "backend/cpu/kernels/kernels.def"
};

#if defined(__x86_64__)
#undef TAKE_AVX2
#define TAKE_AVX2 TAKE
static const struct mxc_kernels avx2_kernels = {
    .level = MXC_CPU_AVX2,
#include "backend/cpu/kernels/kernels.def"
};

#undef TAKE_AVX512
#define TAKE_AVX512 TAKE
static const struct mxc_kernels avx512_kernels = {
    .level = MXC_CPU_AVX512,
#include "backend/cpu/kernels/kernels.def"
};
#elif defined(__aarch64__)
#undef TAKE_NEON
#define TAKE_NEON TAKE
static const struct mxc_kernels neon_kernels = {
    .level = MXC_CPU_NEON,
#include "backend/cpu/kernels/kernels.def"
};

#undef TAKE_I8MM
#define TAKE_I8MM TAKE
static const struct mxc_kernels i8mm_kernels = {
    .level = MXC_CPU_I8MM,
#include "backend/cpu/kernels/kernels.def"
};
#endif

const struct mxc_kernels *mxc_kernels_get(enum mxc_cpu_level level) {
    enum mxc_cpu_level best = mxc_cpu_best();
    switch (level < best ? level : best) {
#if defined(__x86_64__)
    case MXC_CPU_AVX512:
        return &avx512_kernels;
    case MXC_CPU_AVX2:
        return &avx2_kernels;
#elif defined(__aarch64__)
    case MXC_CPU_I8MM:
        return &i8mm_kernels;
    case MXC_CPU_NEON:
        return &neon_kernels;
#endif
    default:
        return &scalar_kernels;
    }
}
