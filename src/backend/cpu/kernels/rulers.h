/* Rulers of the ISA levels: loops that do nothing but what is measured. Private to kernels/. */
#ifndef MXC_BACKEND_CPU_KERNELS_RULERS_H
#define MXC_BACKEND_CPU_KERNELS_RULERS_H

#include <stddef.h>
#include <stdint.h>

/* Reads bytes (a multiple of 512, aligned to 64) once; the result only keeps the reads alive. */
typedef uint64_t mxc_ruler_read_fn(const uint8_t *p, size_t bytes);
/* Runs `rounds` rounds of the widest multiply-add; returns the operations of one round (a multiply
 * and an addition count as two). */
typedef double mxc_ruler_peak_fn(long rounds);

mxc_ruler_read_fn mxc_scalar_ruler_read, mxc_avx2_ruler_read, mxc_avx512_ruler_read;
mxc_ruler_peak_fn mxc_scalar_ruler_int8, mxc_avx2_ruler_int8, mxc_avx512_ruler_int8;
mxc_ruler_peak_fn mxc_scalar_ruler_f32, mxc_avx2_ruler_f32, mxc_avx512_ruler_f32;
mxc_ruler_peak_fn mxc_avx512_ruler_bf16;
mxc_ruler_read_fn mxc_neon_ruler_read;
mxc_ruler_peak_fn mxc_neon_ruler_int8, mxc_neon_ruler_f32, mxc_i8mm_ruler_int8, mxc_i8mm_ruler_bf16;

#endif
