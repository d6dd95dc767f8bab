/* Pool: the blocks of one KV kind as numbers [0, n_blocks) with reference counts. A block is free
 * (no reference), in use, or idle (held by the prefix cache alone). Storage is the backend's.
 * Thread rules: the engine thread only. */
#ifndef MXC_ENGINE_POOL_H
#define MXC_ENGINE_POOL_H

#include "base/err.h"

#include <stdint.h>

struct mxc_pool {
    int32_t n_blocks; /* 0: the kind is not used */
    int32_t n_free, n_idle;
    uint32_t *refs;
    int32_t *node;       /* prefix node that holds the block, -1: none */
    uint64_t *free_bits; /* bit b & 63 of word b >> 6: block b is free */
};

enum mxc_code mxc_pool_init(struct mxc_pool *pool, int32_t n_blocks, struct mxc_err *err) MXC_MUST;
void mxc_pool_fini(struct mxc_pool *pool);
/* Takes a free block with one reference, or -1 when none is free. Prefers after + 1, so that a
 * sequence lies in one run, then the start of the first free run of `want` blocks, then of the
 * longest one. */
int32_t mxc_pool_take(struct mxc_pool *pool, int32_t after, int32_t want);
void mxc_pool_ref(struct mxc_pool *pool, int32_t block);
/* The last reference frees the block. */
void mxc_pool_unref(struct mxc_pool *pool, int32_t block);
/* The prefix cache takes (gives up) a reference of its own, in the name of node. */
void mxc_pool_cache(struct mxc_pool *pool, int32_t block, int32_t node);
void mxc_pool_uncache(struct mxc_pool *pool, int32_t block);

#endif
