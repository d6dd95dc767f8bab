/* Paged KV bookkeeping over the pools and the prefix cache.
 * Invariants: a table holds one reference per entry that is not -1; entries of a kind other than
 * the window one are never -1; blocks [0, n_nodes) of a table are the blocks of its node chain
 * (window entries may differ: a node can have lost its own); blocks at and after n_tokens are not
 * shared while a step writes them. */
#include "engine/blocks.h"

#include "base/mem.h"

#include <assert.h>
#include <string.h>

enum { RUN_BLOCKS = 16 }; /* a free run worth looking for */

enum mxc_code mxc_blocks_init(struct mxc_blocks *blocks, const struct mxc_blocks_options *options,
                              struct mxc_err *err) {
    struct mxc_blocks b = {.options = *options};
    int64_t n_nodes = 0;
    for (int k = 0; k < MXC_N_KV_KINDS; k++) {
        if (options->n_blocks[k] < 0)
            return mxc_err_set(err, MXC_E_ARG, "KV kind %d cannot have %d blocks", k,
                               options->n_blocks[k]);
        n_nodes += k == MXC_KV_CROSS ? 0 : options->n_blocks[k];
    }
    if (!n_nodes || n_nodes > INT32_MAX / MXC_KV_BLOCK)
        return mxc_err_set(err, MXC_E_ARG, "%lld KV blocks in all", (long long)n_nodes);
    enum mxc_code code = MXC_OK;
    for (int k = 0; k < MXC_N_KV_KINDS && !code; k++)
        code = mxc_pool_init(&b.pools[k], options->n_blocks[k], err);
    *blocks = b; /* the cache keeps a pointer to the pools, so they must be in place */
    if (!code)
        code = mxc_prefix_init(&blocks->prefix, blocks->pools, (int32_t)n_nodes, err);
    if (code)
        mxc_blocks_fini(blocks);
    return code;
}

void mxc_blocks_fini(struct mxc_blocks *blocks) {
    mxc_prefix_fini(&blocks->prefix);
    for (int k = 0; k < MXC_N_KV_KINDS; k++) {
        assert(blocks->pools[k].n_free == blocks->pools[k].n_blocks);
        mxc_pool_fini(&blocks->pools[k]);
    }
    *blocks = (struct mxc_blocks){0};
}

/* Whether the kind grows with the text. */
static bool used(const struct mxc_blocks *blocks, int kind) {
    return kind != MXC_KV_CROSS && blocks->options.n_blocks[kind] > 0;
}

int32_t mxc_blocks_available(const struct mxc_blocks *blocks, enum mxc_kv_kind kind) {
    return blocks->pools[kind].n_free + blocks->pools[kind].n_idle;
}

enum mxc_code mxc_table_init(struct mxc_table *table, const struct mxc_blocks *blocks,
                             int64_t max_tokens, int64_t cross_tokens, struct mxc_err *err) {
    struct mxc_table t = {.node = -1, .capacity = mxc_blocks_of_tokens(max_tokens)};
    for (int k = 0; k < MXC_N_KV_KINDS; k++) {
        int32_t n = k == MXC_KV_CROSS ? mxc_blocks_of_tokens(cross_tokens) : t.capacity;
        if (!blocks->options.n_blocks[k] || !n)
            continue;
        t.blocks[k] = mxc_mem_array((size_t)n, sizeof *t.blocks[k]);
        if (!t.blocks[k]) {
            mxc_table_fini(&t);
            return mxc_err_nomem(err);
        }
    }
    *table = t;
    return MXC_OK;
}

void mxc_table_fini(struct mxc_table *table) {
    for (int k = 0; k < MXC_N_KV_KINDS; k++) {
        assert(!table->n_blocks[k]);
        mxc_mem_free(table->blocks[k]);
    }
    *table = (struct mxc_table){.node = -1};
}

void mxc_blocks_release(struct mxc_blocks *blocks, struct mxc_table *table) {
    for (int k = 0; k < MXC_N_KV_KINDS; k++) {
        for (int32_t i = 0; i < table->n_blocks[k]; i++)
            if (table->blocks[k][i] >= 0)
                mxc_pool_unref(&blocks->pools[k], table->blocks[k][i]);
        table->n_blocks[k] = 0;
    }
    mxc_prefix_unuse(&blocks->prefix, table->node);
    table->node = -1;
    table->n_nodes = table->n_tokens = table->n_behind = 0;
}

/* First block that a row at position n_tokens, or any later one, reads in the window kind. */
static int32_t first_in_window(const struct mxc_blocks *blocks, int32_t n_tokens) {
    int32_t first = n_tokens - blocks->options.window + 1;
    return first > 0 ? first / MXC_KV_BLOCK : 0;
}

static size_t key_of(const struct mxc_block_source *source, int32_t block, uint8_t *extra,
                     struct mxc_block_key *key) {
    size_t n = source->extra ? source->extra(source->user, block, extra) : 0;
    assert(n <= MXC_MAX_BLOCK_EXTRA);
    *key = (struct mxc_block_key){source->tokens + (size_t)block * MXC_KV_BLOCK, extra, n};
    return n;
}

void mxc_blocks_reuse(struct mxc_blocks *blocks, struct mxc_table *table,
                      const struct mxc_block_source *source, int32_t max_tokens) {
    struct mxc_prefix *prefix = &blocks->prefix;
    uint8_t extra[MXC_MAX_BLOCK_EXTRA];
    struct mxc_block_key key;
    int32_t node = -1, best = -1, n_best = 0, window_run = 0;
    int32_t limit = max_tokens / MXC_KV_BLOCK;
    assert(!table->n_tokens && table->node < 0);
    blocks->n_lookup_tokens += (uint64_t)(max_tokens > 0 ? max_tokens : 0);
    if (limit > table->capacity)
        limit = table->capacity;
    for (int32_t b = 0; b < limit; b++) {
        key_of(source, b, extra, &key);
        node = mxc_prefix_find(prefix, node, &key);
        if (node < 0)
            break;
        window_run = prefix->nodes[node].blocks[MXC_KV_WINDOW] >= 0 ? window_run + 1 : 0;
        int32_t n = b + 1;
        bool window_ok = !used(blocks, MXC_KV_WINDOW) ||
                         n - window_run <= first_in_window(blocks, n * MXC_KV_BLOCK);
        if (window_ok && (!source->may_cut || source->may_cut(source->user, n * MXC_KV_BLOCK))) {
            best = node;
            n_best = n;
        }
    }
    if (!n_best)
        return;
    table->n_tokens = n_best * MXC_KV_BLOCK;
    table->node = best;
    table->n_nodes = n_best;
    mxc_prefix_use(prefix, best);
    int32_t first = first_in_window(blocks, table->n_tokens);
    table->n_behind = used(blocks, MXC_KV_WINDOW) ? first : 0;
    for (int k = 0; k < MXC_N_KV_KINDS; k++)
        if (used(blocks, k))
            table->n_blocks[k] = n_best;
    node = best;
    for (int32_t b = n_best - 1; b >= 0; b--, node = prefix->nodes[node].parent) {
        mxc_prefix_to_shelve(prefix, node, MXC_SHELVE_USED);
        for (int k = 0; k < MXC_N_KV_KINDS; k++) {
            if (!used(blocks, k))
                continue;
            bool behind = k == MXC_KV_WINDOW && b < first;
            int32_t block = behind ? -1 : prefix->nodes[node].blocks[k];
            assert(behind || block >= 0);
            table->blocks[k][b] = block;
            if (block >= 0)
                mxc_pool_ref(&blocks->pools[k], block);
        }
    }
    blocks->n_hit_tokens += (uint64_t)table->n_tokens;
}

bool mxc_blocks_fork(struct mxc_blocks *blocks, struct mxc_table *table,
                     const struct mxc_table *from, int32_t n_tokens) {
    struct mxc_prefix *prefix = &blocks->prefix;
    int32_t n = mxc_blocks_of_tokens(n_tokens), first = first_in_window(blocks, n_tokens);
    assert(!table->n_tokens && table->node < 0);
    if (n_tokens > from->n_tokens || n > table->capacity ||
        (used(blocks, MXC_KV_WINDOW) && from->n_behind > first))
        return false;
    for (int k = 0; k < MXC_N_KV_KINDS; k++) {
        if (!used(blocks, k))
            continue;
        for (int32_t b = 0; b < n; b++) {
            bool behind = k == MXC_KV_WINDOW && b < first;
            table->blocks[k][b] = behind ? -1 : from->blocks[k][b];
            if (!behind)
                mxc_pool_ref(&blocks->pools[k], table->blocks[k][b]);
        }
        table->n_blocks[k] = n;
    }
    table->n_tokens = n_tokens;
    table->n_behind = used(blocks, MXC_KV_WINDOW) ? first : 0;
    table->node = from->node;
    table->n_nodes = from->n_nodes;
    for (; table->n_nodes > n_tokens / MXC_KV_BLOCK; table->n_nodes--)
        table->node = prefix->nodes[table->node].parent;
    mxc_prefix_use(prefix, table->node);
    return true;
}

/* Entries that a write to [table->n_tokens, ...) would touch and that others hold too. */
static int32_t count_shared(const struct mxc_blocks *blocks, const struct mxc_table *table,
                            int kind) {
    int32_t n = 0;
    for (int32_t b = table->n_tokens / MXC_KV_BLOCK; b < table->n_blocks[kind]; b++)
        n += blocks->pools[kind].refs[table->blocks[kind][b]] > 1;
    return n;
}

static int32_t take(struct mxc_blocks *blocks, int kind, int32_t after, int32_t want) {
    struct mxc_pool *pool = &blocks->pools[kind];
    if (!pool->n_free && !mxc_prefix_evict(&blocks->prefix, (enum mxc_kv_kind)kind))
        return -1;
    return mxc_pool_take(pool, after, want > RUN_BLOCKS ? want : RUN_BLOCKS);
}

bool mxc_blocks_extend(struct mxc_blocks *blocks, struct mxc_table *table, int32_t n_tokens,
                       bool with_window) {
    int32_t n = mxc_blocks_of_tokens(n_tokens);
    assert(n <= table->capacity);
    for (int k = 0; k < MXC_N_KV_KINDS; k++) {
        if (!used(blocks, k) || (k == MXC_KV_WINDOW && !with_window))
            continue;
        int32_t need =
            (n > table->n_blocks[k] ? n - table->n_blocks[k] : 0) + count_shared(blocks, table, k);
        if (need > mxc_blocks_available(blocks, (enum mxc_kv_kind)k))
            return false;
    }
    for (int k = 0; k < MXC_N_KV_KINDS; k++) {
        if (!used(blocks, k) || (k == MXC_KV_WINDOW && !with_window))
            continue;
        struct mxc_pool *pool = &blocks->pools[k];
        int32_t *entry = table->blocks[k];
        for (int32_t b = table->n_tokens / MXC_KV_BLOCK; b < table->n_blocks[k]; b++) {
            if (pool->refs[entry[b]] == 1)
                continue;
            int32_t own = take(blocks, k, b ? entry[b - 1] : -1, 1);
            assert(own >= 0);
            blocks->options.copy(blocks->options.copy_user, (enum mxc_kv_kind)k, entry[b], own);
            mxc_pool_unref(pool, entry[b]);
            entry[b] = own;
            blocks->n_copies++;
        }
        while (table->n_blocks[k] < n) {
            int32_t b = table->n_blocks[k];
            entry[b] = take(blocks, k, b ? entry[b - 1] : -1, n - b);
            assert(entry[b] >= 0);
            table->n_blocks[k]++;
        }
    }
    return true;
}

bool mxc_blocks_take_cross(struct mxc_blocks *blocks, struct mxc_table *table,
                           int32_t cross_tokens) {
    struct mxc_pool *pool = &blocks->pools[MXC_KV_CROSS];
    int32_t n = mxc_blocks_of_tokens(cross_tokens), *entry = table->blocks[MXC_KV_CROSS];
    assert(!table->n_blocks[MXC_KV_CROSS]);
    if (pool->n_free < n)
        return false;
    for (int32_t b = 0; b < n; b++) {
        entry[b] = mxc_pool_take(pool, b ? entry[b - 1] : -1, n - b);
        assert(entry[b] >= 0);
    }
    table->n_blocks[MXC_KV_CROSS] = n;
    return true;
}

/* Block b of the table becomes the block of node, or the node gets the table's. */
static void share(struct mxc_blocks *blocks, struct mxc_table *table, int32_t b, int32_t node) {
    struct mxc_prefix_node *n = &blocks->prefix.nodes[node];
    for (int k = 0; k < MXC_N_KV_KINDS; k++) {
        int32_t own = used(blocks, k) ? table->blocks[k][b] : -1;
        if (own < 0 || n->blocks[k] == own)
            continue;
        if (n->blocks[k] >= 0) {
            mxc_pool_ref(&blocks->pools[k], n->blocks[k]);
            mxc_pool_unref(&blocks->pools[k], own);
            table->blocks[k][b] = n->blocks[k];
        } else {
            n->blocks[k] = own;
            mxc_pool_cache(&blocks->pools[k], own, node);
        }
    }
}

void mxc_blocks_commit(struct mxc_blocks *blocks, struct mxc_table *table,
                       const struct mxc_block_source *source, int32_t n_tokens) {
    struct mxc_prefix *prefix = &blocks->prefix;
    uint8_t extra[MXC_MAX_BLOCK_EXTRA];
    struct mxc_block_key key;
    assert(n_tokens >= table->n_tokens);
    table->n_tokens = n_tokens;
    while (!table->sealed && table->n_nodes < n_tokens / MXC_KV_BLOCK) {
        int32_t b = table->n_nodes;
        key_of(source, b, extra, &key);
        int32_t node = mxc_prefix_find(prefix, table->node, &key);
        if (node < 0)
            node = mxc_prefix_add(prefix, table->node, &key);
        if (node < 0) {
            table->sealed = true;
            break;
        }
        mxc_prefix_use_one(prefix, node);
        share(blocks, table, b, node);
        if ((b + 1) * MXC_KV_BLOCK <= source->n_prompt)
            mxc_prefix_to_shelve(prefix, node, MXC_SHELVE_PROMPT);
        table->node = node;
        table->n_nodes++;
    }
    if (used(blocks, MXC_KV_WINDOW)) {
        int32_t first = first_in_window(blocks, n_tokens);
        for (; table->n_behind < first; table->n_behind++) {
            int32_t *entry = &table->blocks[MXC_KV_WINDOW][table->n_behind];
            mxc_pool_unref(&blocks->pools[MXC_KV_WINDOW], *entry);
            *entry = -1;
        }
    }
}

bool mxc_blocks_consistent(const struct mxc_blocks *blocks, const struct mxc_table *const *tables,
                           int32_t n_tables) {
    const struct mxc_prefix *prefix = &blocks->prefix;
    for (int k = 0; k < MXC_N_KV_KINDS; k++) {
        const struct mxc_pool *pool = &blocks->pools[k];
        int32_t n_free = 0, n_idle = 0;
        for (int32_t block = 0; block < pool->n_blocks; block++) {
            uint32_t refs = 0;
            for (int32_t t = 0; t < n_tables; t++)
                for (int32_t i = 0; i < tables[t]->n_blocks[k]; i++)
                    refs += tables[t]->blocks[k][i] == block;
            int32_t node = pool->node[block];
            if (node >= 0) {
                refs++;
                if (!prefix->nodes[node].live || prefix->nodes[node].blocks[k] != block)
                    return false;
            }
            bool bit = pool->free_bits[block / 64] >> block % 64 & 1;
            if (refs != pool->refs[block] || bit != !refs)
                return false;
            n_free += !refs;
            n_idle += node >= 0 && refs == 1;
        }
        if (n_free != pool->n_free || n_idle != pool->n_idle)
            return false;
    }
    int32_t n_live = 0;
    for (int32_t i = 0; i < prefix->n_nodes; i++) {
        const struct mxc_prefix_node *n = &prefix->nodes[i];
        int32_t users = 0, children = 0;
        if (!n->live)
            continue;
        n_live++;
        for (int32_t t = 0; t < n_tables; t++)
            for (int32_t c = tables[t]->node; c >= 0; c = prefix->nodes[c].parent)
                users += c == i;
        for (int32_t j = 0; j < prefix->n_nodes; j++)
            children += prefix->nodes[j].live && prefix->nodes[j].parent == i;
        if (users != n->n_users || children != n->n_children)
            return false;
    }
    return n_live == prefix->n_live;
}
