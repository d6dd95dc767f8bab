/* Tests: failing a single allocation. All from the n-th on: mxc_mem_fail_at (base/mem.h). */
#ifndef MXC_BASE_MEM_FAIL_H
#define MXC_BASE_MEM_FAIL_H

#include <stdint.h>

/* The n-th call from now (1 = the next) fails and no other; mxc_mem_fail_at(0) switches it off.
 * mxc_mem_calls counts from here. */
void mxc_mem_fail_once(uint64_t n);

#endif
