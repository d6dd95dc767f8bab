/* Monotonic clock: nanoseconds since some fixed point, for durations and as seeds.
 * In: nothing. Out: a number that never runs backwards while the machine is up; it is no date, and
 * two runs cannot be compared by it.
 * On Linux the call cannot fail, so the result of clock_gettime is not looked at. */
#define _GNU_SOURCE
#include "base/clock.h"

#include <time.h>

uint64_t mxc_clock_ns(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
