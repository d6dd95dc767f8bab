/* Counters with bounds: a place is taken by an increment that is taken back when it went too far.
 */
#include "server/limits.h"

#include <string.h>

void mxc_limits_init(struct mxc_limits *limits, size_t max_buffered_bytes, int max_per_key) {
    memset(limits, 0, sizeof *limits);
    limits->max_buffered_bytes = max_buffered_bytes;
    limits->max_per_key = max_per_key;
}

bool mxc_limits_buffer(struct mxc_limits *limits, size_t bytes) {
    size_t before = atomic_fetch_add(&limits->buffered_bytes, bytes);
    if (bytes <= limits->max_buffered_bytes && before <= limits->max_buffered_bytes - bytes)
        return true;
    atomic_fetch_sub(&limits->buffered_bytes, bytes);
    return false;
}

void mxc_limits_unbuffer(struct mxc_limits *limits, size_t bytes) {
    atomic_fetch_sub(&limits->buffered_bytes, bytes);
}

static atomic_int *place_of(struct mxc_limits *limits, int key) {
    return &limits->per_key[key > 0 && key < MXC_LIMITS_KEYS ? key : 0];
}

bool mxc_limits_enter(struct mxc_limits *limits, int key) {
    int before = atomic_fetch_add(place_of(limits, key), 1);
    if (limits->max_per_key && before >= limits->max_per_key) {
        atomic_fetch_sub(place_of(limits, key), 1);
        return false;
    }
    atomic_fetch_add(&limits->n_generations, 1);
    return true;
}

void mxc_limits_leave(struct mxc_limits *limits, int key) {
    atomic_fetch_sub(place_of(limits, key), 1);
    atomic_fetch_sub(&limits->n_generations, 1);
}
