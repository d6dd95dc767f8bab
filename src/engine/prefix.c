/* Prefix cache: a forest of nodes in one array, found through a chained hash table.
 * Invariants: a node outlives its children; users of a node use all its ancestors; for every kind
 * but the window one, a user of a node holds the node's block, so a node without users holds idle
 * blocks only and the leaves among them can always be evicted. Window blocks are dropped one by
 * one: a node may stay as a link of the chain without its window block. */
#include "engine/prefix.h"

#include "base/mem.h"
#include "base/str.h"

#include <assert.h>
#include <string.h>

enum mxc_code mxc_prefix_init(struct mxc_prefix *prefix, struct mxc_pool *pools, int32_t n_nodes,
                              struct mxc_err *err) {
    struct mxc_prefix p = {.n_nodes = n_nodes, .pools = pools};
    uint32_t n_buckets = 16;
    while (n_buckets < (uint32_t)n_nodes)
        n_buckets *= 2;
    size_t n = (size_t)n_nodes, n_tokens;
    p.bucket_mask = n_buckets - 1;
    if (!mxc_size_mul(n, MXC_KV_BLOCK, &n_tokens))
        return mxc_err_nomem(err);
    p.nodes = mxc_mem_zalloc(n, sizeof *p.nodes);
    p.tokens = mxc_mem_array(n_tokens, sizeof *p.tokens);
    p.buckets = mxc_mem_array(n_buckets, sizeof *p.buckets);
    if (!p.nodes || !p.tokens || !p.buckets) {
        mxc_mem_free(p.nodes);
        mxc_mem_free(p.tokens);
        mxc_mem_free(p.buckets);
        return mxc_err_nomem(err);
    }
    for (uint32_t i = 0; i < n_buckets; i++)
        p.buckets[i] = -1;
    p.free_node = n_nodes ? 0 : -1;
    for (int32_t i = 0; i < n_nodes; i++)
        p.nodes[i].next = i + 1 < n_nodes ? i + 1 : -1;
    for (int i = 0; i < 2; i++)
        p.to_shelve[i].first = p.to_shelve[i].last = -1;
    *prefix = p;
    return MXC_OK;
}

static uint64_t hash_of(int32_t parent, const struct mxc_block_key *key) {
    uint64_t h = mxc_hash_bytes(&parent, sizeof parent, 0x6D786370u);
    h = mxc_hash_bytes(key->tokens, MXC_KV_BLOCK * sizeof *key->tokens, h);
    if (key->extra_bytes)
        h = mxc_hash_bytes(key->extra, key->extra_bytes, h);
    return h ^ h >> 32;
}

void mxc_prefix_digest(const uint8_t *parent, const struct mxc_block_key *key,
                       uint8_t digest[MXC_BLAKE2B_BYTES]) {
    static const uint8_t root[MXC_BLAKE2B_BYTES];
    struct mxc_blake2b hash;
    mxc_blake2b_init(&hash);
    mxc_blake2b_add(&hash, parent ? parent : root, sizeof root);
    mxc_blake2b_add(&hash, key->tokens, MXC_KV_BLOCK * sizeof *key->tokens);
    if (key->extra_bytes)
        mxc_blake2b_add(&hash, key->extra, key->extra_bytes);
    mxc_blake2b_end(&hash, digest);
}

static int32_t *tokens_of(const struct mxc_prefix *prefix, int32_t node) {
    return prefix->tokens + (size_t)node * MXC_KV_BLOCK;
}

int32_t mxc_prefix_find(const struct mxc_prefix *prefix, int32_t parent,
                        const struct mxc_block_key *key) {
    uint64_t hash = hash_of(parent, key);
    int32_t i = prefix->buckets[hash & prefix->bucket_mask];
    for (; i >= 0; i = prefix->nodes[i].next) {
        const struct mxc_prefix_node *n = &prefix->nodes[i];
        if (n->hash == hash && n->parent == parent && n->extra_bytes == key->extra_bytes &&
            !memcmp(tokens_of(prefix, i), key->tokens, MXC_KV_BLOCK * sizeof *key->tokens) &&
            (!n->extra_bytes || !memcmp(n->extra, key->extra, n->extra_bytes)))
            return i;
    }
    return -1;
}

static void unlink_node(struct mxc_prefix *prefix, int32_t node) {
    struct mxc_prefix_node *n = &prefix->nodes[node];
    int32_t *link = &prefix->buckets[n->hash & prefix->bucket_mask];
    while (*link != node)
        link = &prefix->nodes[*link].next;
    *link = n->next;
}

static bool holds_blocks(const struct mxc_prefix_node *n) {
    for (int k = 0; k < MXC_N_KV_KINDS; k++)
        if (n->blocks[k] >= 0)
            return true;
    return false;
}

/* Removes an unused leaf, and then ancestors that have become unused leaves without blocks. */
static void remove_leaf(struct mxc_prefix *prefix, int32_t node) {
    do {
        struct mxc_prefix_node *n = &prefix->nodes[node];
        int32_t parent = n->parent;
        assert(n->live && !n->n_children && !n->n_users);
        for (int k = 0; k < MXC_N_KV_KINDS; k++)
            if (n->blocks[k] >= 0)
                mxc_pool_uncache(&prefix->pools[k], n->blocks[k]);
        unlink_node(prefix, node);
        mxc_mem_free(n->extra);
        *n = (struct mxc_prefix_node){.next = prefix->free_node,
                                      .to_shelve = {n->to_shelve[0], n->to_shelve[1]}};
        prefix->free_node = node;
        prefix->n_live--;
        if (parent >= 0)
            prefix->nodes[parent].n_children--;
        node = parent;
    } while (node >= 0 && !prefix->nodes[node].n_children && !prefix->nodes[node].n_users &&
             !holds_blocks(&prefix->nodes[node]));
}

/* The least recently used node that nobody uses and nothing hangs on, or -1. */
static int32_t oldest_leaf(const struct mxc_prefix *prefix) {
    int32_t best = -1;
    for (int32_t i = 0; i < prefix->n_nodes; i++) {
        const struct mxc_prefix_node *n = &prefix->nodes[i];
        if (n->live && !n->n_users && !n->n_children &&
            (best < 0 || n->stamp < prefix->nodes[best].stamp))
            best = i;
    }
    return best;
}

int32_t mxc_prefix_add(struct mxc_prefix *prefix, int32_t parent, const struct mxc_block_key *key) {
    uint8_t *extra = NULL;
    assert(parent < 0 || prefix->nodes[parent].n_users > 0);
    if (key->extra_bytes) {
        extra = mxc_mem_alloc(key->extra_bytes);
        if (!extra)
            return -1;
        memcpy(extra, key->extra, key->extra_bytes);
    }
    if (prefix->free_node < 0) {
        int32_t leaf = oldest_leaf(prefix);
        if (leaf < 0) {
            mxc_mem_free(extra);
            return -1;
        }
        remove_leaf(prefix, leaf);
        prefix->n_evicted++;
    }
    int32_t node = prefix->free_node;
    struct mxc_prefix_node *n = &prefix->nodes[node];
    prefix->free_node = n->next;
    uint64_t hash = hash_of(parent, key);
    int32_t *bucket = &prefix->buckets[hash & prefix->bucket_mask];
    *n = (struct mxc_prefix_node){.parent = parent,
                                  .next = *bucket,
                                  .hash = hash,
                                  .to_shelve = {n->to_shelve[0], n->to_shelve[1]}};
    mxc_prefix_digest(parent >= 0 ? prefix->nodes[parent].digest : NULL, key, n->digest);
    n->extra = extra;
    n->extra_bytes = key->extra_bytes;
    n->live = true;
    n->stamp = ++prefix->tick;
    for (int k = 0; k < MXC_N_KV_KINDS; k++)
        n->blocks[k] = -1;
    *bucket = node;
    memcpy(tokens_of(prefix, node), key->tokens, MXC_KV_BLOCK * sizeof *key->tokens);
    if (parent >= 0)
        prefix->nodes[parent].n_children++;
    prefix->n_live++;
    return node;
}

void mxc_prefix_use_one(struct mxc_prefix *prefix, int32_t node) {
    prefix->nodes[node].n_users++;
    prefix->nodes[node].stamp = ++prefix->tick;
}

void mxc_prefix_use(struct mxc_prefix *prefix, int32_t node) {
    for (; node >= 0; node = prefix->nodes[node].parent)
        mxc_prefix_use_one(prefix, node);
}

void mxc_prefix_unuse(struct mxc_prefix *prefix, int32_t node) {
    while (node >= 0) {
        struct mxc_prefix_node *n = &prefix->nodes[node];
        int32_t parent = n->parent;
        assert(n->n_users > 0);
        n->n_users--;
        n->stamp = ++prefix->tick;
        if (!n->n_users && !n->n_children && !holds_blocks(n))
            remove_leaf(prefix, node); /* stops at the parent: it still has its user */
        node = parent;
    }
}

static bool evict_window(struct mxc_prefix *prefix) {
    struct mxc_pool *pool = &prefix->pools[MXC_KV_WINDOW];
    int32_t best = -1;
    for (int32_t i = 0; i < prefix->n_nodes; i++) {
        const struct mxc_prefix_node *n = &prefix->nodes[i];
        int32_t block = n->live ? n->blocks[MXC_KV_WINDOW] : -1;
        if (block >= 0 && pool->refs[block] == 1 &&
            (best < 0 || n->stamp < prefix->nodes[best].stamp))
            best = i;
    }
    if (best < 0)
        return false;
    struct mxc_prefix_node *n = &prefix->nodes[best];
    mxc_pool_uncache(pool, n->blocks[MXC_KV_WINDOW]);
    n->blocks[MXC_KV_WINDOW] = -1;
    if (!n->n_users && !n->n_children && !holds_blocks(n))
        remove_leaf(prefix, best);
    return true;
}

bool mxc_prefix_evict(struct mxc_prefix *prefix, enum mxc_kv_kind kind) {
    if (!prefix->pools[kind].n_idle)
        return false;
    bool done = false;
    if (kind == MXC_KV_WINDOW) {
        done = evict_window(prefix);
    } else {
        int32_t free_before = prefix->pools[kind].n_free;
        for (int32_t leaf; !done && (leaf = oldest_leaf(prefix)) >= 0;) {
            remove_leaf(prefix, leaf);
            done = prefix->pools[kind].n_free > free_before;
        }
    }
    if (done)
        prefix->n_evicted++;
    return done;
}

/* A parent's number is mostly lower than its child's, so a walk from the end is nearly all of it.
 */
void mxc_prefix_clear(struct mxc_prefix *prefix) {
    for (bool again = true; again;) {
        again = false;
        for (int32_t i = prefix->n_nodes - 1; i >= 0; i--) {
            const struct mxc_prefix_node *n = &prefix->nodes[i];
            if (!n->live || n->n_users || n->n_children)
                continue;
            remove_leaf(prefix, i);
            again = true;
        }
    }
}

int32_t mxc_prefix_by_digest(const struct mxc_prefix *prefix,
                             const uint8_t digest[MXC_BLAKE2B_BYTES]) {
    for (int32_t i = 0; i < prefix->n_nodes; i++)
        if (prefix->nodes[i].live && !memcmp(prefix->nodes[i].digest, digest, MXC_BLAKE2B_BYTES))
            return i;
    return -1;
}

void mxc_prefix_to_shelve(struct mxc_prefix *prefix, int32_t node, enum mxc_shelve_list list) {
    struct mxc_prefix_node *n = &prefix->nodes[node];
    if (!prefix->has_shelf || n->shelved || n->to_shelve[list].in)
        return;
    n->to_shelve[list].in = true;
    n->to_shelve[list].next = -1;
    if (prefix->to_shelve[list].last >= 0)
        prefix->nodes[prefix->to_shelve[list].last].to_shelve[list].next = node;
    else
        prefix->to_shelve[list].first = node;
    prefix->to_shelve[list].last = node;
}

void mxc_prefix_to_shelve_next(struct mxc_prefix *prefix, int32_t node, enum mxc_shelve_list list) {
    struct mxc_prefix_node *n = &prefix->nodes[node];
    if (n->to_shelve[list].in)
        return;
    n->to_shelve[list].in = true;
    n->to_shelve[list].next = prefix->to_shelve[list].first;
    prefix->to_shelve[list].first = node;
    if (prefix->to_shelve[list].last < 0)
        prefix->to_shelve[list].last = node;
}

int32_t mxc_prefix_next_to_shelve(struct mxc_prefix *prefix, enum mxc_shelve_list list) {
    int32_t node;
    while ((node = prefix->to_shelve[list].first) >= 0) {
        struct mxc_prefix_node *n = &prefix->nodes[node];
        prefix->to_shelve[list].first = n->to_shelve[list].next;
        if (prefix->to_shelve[list].first < 0)
            prefix->to_shelve[list].last = -1;
        n->to_shelve[list].in = false;
        if (n->live && !n->shelved)
            return node;
    }
    return -1;
}

int32_t mxc_prefix_forget(struct mxc_prefix *prefix, int32_t node) {
    int32_t before = prefix->n_live;
    while (node >= 0 && !prefix->nodes[node].n_children && !prefix->nodes[node].n_users) {
        int32_t parent = prefix->nodes[node].parent;
        remove_leaf(prefix, node);
        node = parent >= 0 && prefix->nodes[parent].live ? parent : -1;
    }
    return before - prefix->n_live;
}

void mxc_prefix_fini(struct mxc_prefix *prefix) {
    if (prefix->nodes)
        mxc_prefix_clear(prefix);
    assert(!prefix->n_live);
    mxc_mem_free(prefix->nodes);
    mxc_mem_free(prefix->tokens);
    mxc_mem_free(prefix->buckets);
    *prefix = (struct mxc_prefix){0};
}
