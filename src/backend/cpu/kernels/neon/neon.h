/* Shared by the NEON kernels (aarch64 with dot products): declarations made from kernels.def. */
#ifndef MXC_BACKEND_CPU_KERNELS_NEON_H
#define MXC_BACKEND_CPU_KERNELS_NEON_H

#include "backend/cpu/kernels/layout.h"
#include "base/half.h"

#define MXC_INLINE static inline __attribute__((always_inline))
#define MXC_KERNEL_SCALAR(isa, slot, name)
#define MXC_KERNEL_NEON(isa, slot, name)                                                           \
    extern __typeof__(*((struct mxc_kernels *)0)->slot) mxc_##isa##_##name;
#define MXC_KERNEL(LEVEL, isa, KIND, slot, index, name) MXC_KERNEL_##LEVEL(isa, slot, name)
#include "backend/cpu/kernels/kernels.def"
#undef MXC_KERNEL

#endif
