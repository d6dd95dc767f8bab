/* Shared by the scalar kernels: declarations made from kernels.def. */
#ifndef MXC_BACKEND_CPU_KERNELS_SCALAR_H
#define MXC_BACKEND_CPU_KERNELS_SCALAR_H

#include "backend/cpu/kernels/layout.h"
#include "base/half.h"

#define MXC_KERNEL_SCALAR(isa, slot, name)                                                         \
    extern __typeof__(*((struct mxc_kernels *)0)->slot) mxc_##isa##_##name;
#define MXC_KERNEL_AVX2(isa, slot, name)
#define MXC_KERNEL_AVX512(isa, slot, name)
#define MXC_KERNEL_NEON(isa, slot, name)
#define MXC_KERNEL_I8MM(isa, slot, name)
#define MXC_KERNEL(LEVEL, isa, KIND, slot, index, name) MXC_KERNEL_##LEVEL(isa, slot, name)
#include "backend/cpu/kernels/kernels.def"
#undef MXC_KERNEL

#endif
