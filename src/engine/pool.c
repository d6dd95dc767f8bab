/* Block numbers of one KV kind: reference counts and a bitmap of free blocks that is searched for
 * runs, because attention reads a sequence's blocks in order and likes them adjacent.
 * Invariants: free bit set <=> refs == 0; n_idle counts blocks with a node and exactly one
 * reference; a block with a node always has at least the cache's reference. */
#include "engine/pool.h"

#include "base/mem.h"

#include <assert.h>

enum mxc_code mxc_pool_init(struct mxc_pool *pool, int32_t n_blocks, struct mxc_err *err) {
    struct mxc_pool p = {.n_blocks = n_blocks, .n_free = n_blocks};
    assert(n_blocks >= 0);
    size_t n = (size_t)n_blocks, n_words = (n + 63) / 64;
    p.refs = mxc_mem_zalloc(n, sizeof *p.refs);
    p.node = mxc_mem_array(n, sizeof *p.node);
    p.free_bits = mxc_mem_zalloc(n_words, sizeof *p.free_bits);
    if (!p.refs || !p.node || !p.free_bits) {
        mxc_pool_fini(&p);
        return mxc_err_nomem(err);
    }
    for (size_t b = 0; b < n; b++) {
        p.node[b] = -1;
        p.free_bits[b / 64] |= (uint64_t)1 << b % 64;
    }
    *pool = p;
    return MXC_OK;
}

void mxc_pool_fini(struct mxc_pool *pool) {
    mxc_mem_free(pool->refs);
    mxc_mem_free(pool->node);
    mxc_mem_free(pool->free_bits);
    *pool = (struct mxc_pool){0};
}

static int is_free(const struct mxc_pool *pool, int32_t block) {
    return (int)(pool->free_bits[block / 64] >> block % 64 & 1);
}

/* Start of the first free run of at least want blocks, else of the longest run. */
static int32_t find_run(const struct mxc_pool *pool, int32_t want) {
    int32_t best = -1, best_length = 0, start = -1;
    for (int32_t b = 0; b <= pool->n_blocks; b++) {
        if (b < pool->n_blocks && start < 0 && b % 64 == 0 && !pool->free_bits[b / 64]) {
            b += 63;
            continue;
        }
        if (b < pool->n_blocks && is_free(pool, b)) {
            if (start < 0)
                start = b;
            if (b - start + 1 >= want)
                return start;
        } else if (start >= 0) {
            if (b - start > best_length) {
                best = start;
                best_length = b - start;
            }
            start = -1;
        }
    }
    return best;
}

int32_t mxc_pool_take(struct mxc_pool *pool, int32_t after, int32_t want) {
    if (!pool->n_free)
        return -1;
    int32_t block = after + 1;
    if (after < 0 || block >= pool->n_blocks || !is_free(pool, block))
        block = find_run(pool, want);
    assert(block >= 0);
    pool->free_bits[block / 64] &= ~((uint64_t)1 << block % 64);
    pool->refs[block] = 1;
    pool->n_free--;
    return block;
}

void mxc_pool_ref(struct mxc_pool *pool, int32_t block) {
    assert(pool->refs[block] > 0);
    if (pool->node[block] >= 0 && pool->refs[block] == 1)
        pool->n_idle--;
    pool->refs[block]++;
}

void mxc_pool_unref(struct mxc_pool *pool, int32_t block) {
    assert(pool->refs[block] > 0);
    if (--pool->refs[block] == 0) {
        assert(pool->node[block] < 0);
        pool->free_bits[block / 64] |= (uint64_t)1 << block % 64;
        pool->n_free++;
    } else if (pool->refs[block] == 1 && pool->node[block] >= 0) {
        pool->n_idle++;
    }
}

void mxc_pool_cache(struct mxc_pool *pool, int32_t block, int32_t node) {
    assert(pool->refs[block] > 0 && pool->node[block] < 0);
    pool->node[block] = node;
    pool->refs[block]++;
}

void mxc_pool_uncache(struct mxc_pool *pool, int32_t block) {
    assert(pool->node[block] >= 0);
    if (pool->refs[block] == 1)
        pool->n_idle--;
    pool->node[block] = -1;
    mxc_pool_unref(pool, block);
}
