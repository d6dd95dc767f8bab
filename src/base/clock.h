/* Monotonic clock. */
#ifndef MXC_BASE_CLOCK_H
#define MXC_BASE_CLOCK_H

#include <stdint.h>

uint64_t mxc_clock_ns(void); /* CLOCK_MONOTONIC */

#endif
