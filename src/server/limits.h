/* Limits: what is in use and what may be: requests in work, generations per key, bytes of bodies,
 * totals for /metrics. Thread rules: any thread; plain atomics. */
#ifndef MXC_SERVER_LIMITS_H
#define MXC_SERVER_LIMITS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MXC_LIMITS_KEYS = 1024 };

struct mxc_limits {
    size_t max_buffered_bytes;
    int max_per_key; /* 0: no cap */
    atomic_size_t buffered_bytes;
    atomic_int n_connections, n_exchanges, n_generations;
    atomic_int per_key[MXC_LIMITS_KEYS]; /* generations; requests without a key count as key 0 */
    atomic_bool draining;
    /* totals */
    _Atomic uint64_t n_requests, n_errors, n_cancelled, n_cut, n_timeouts;
    _Atomic uint64_t prompt_tokens, cached_tokens, generated_tokens, prompt_us, generate_us;
    _Atomic uint64_t by_status[6]; /* 1xx ... 5xx */
};

void mxc_limits_init(struct mxc_limits *limits, size_t max_buffered_bytes, int max_per_key);
/* Counts bytes in; false: the bound is reached, nothing was counted. */
bool mxc_limits_buffer(struct mxc_limits *limits, size_t bytes);
void mxc_limits_unbuffer(struct mxc_limits *limits, size_t bytes);
/* Takes a place among the key's generations; false: there is none. */
bool mxc_limits_enter(struct mxc_limits *limits, int key);
void mxc_limits_leave(struct mxc_limits *limits, int key);

#endif
