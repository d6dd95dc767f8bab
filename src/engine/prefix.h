/* Prefix cache: full KV blocks under the key (parent node, the block's tokens, extra bytes). A node
 * stands for one block of every KV kind; its parent is the block before it, so equal nodes mean
 * equal text from the start. Hashes only find candidates: tokens and extra bytes are compared.
 * Thread rules: the engine thread only. */
#ifndef MXC_ENGINE_PREFIX_H
#define MXC_ENGINE_PREFIX_H

#include "backend/backend.h"
#include "base/blake2b.h"
#include "engine/pool.h"

#include <stdbool.h>

/* What else the KV of a block depends on: image digests and their rows, positions when they are not
 * the token numbers, and for block 0 the RoPE length, adapter and cache salt. */
enum { MXC_MAX_BLOCK_EXTRA = 2560 };
struct mxc_block_key {
    const int32_t *tokens; /* [MXC_KV_BLOCK] */
    const uint8_t *extra;
    size_t extra_bytes; /* <= MXC_MAX_BLOCK_EXTRA */
};

struct mxc_prefix_node {
    int32_t parent, next;           /* -1: none; next in the hash bucket or free list */
    int32_t n_children, n_users;    /* users: sequences whose chain goes through the node */
    int32_t blocks[MXC_N_KV_KINDS]; /* -1: not held (kind unused, or dropped behind the window) */
    uint64_t stamp, hash;
    uint8_t *extra;
    size_t extra_bytes;
    bool live;
    bool shelved;                      /* a copy is on the shelf (shelf.h) */
    uint8_t digest[MXC_BLAKE2B_BYTES]; /* of its text from the start: mxc_prefix_digest */
    struct {
        int32_t next;
        bool in;
    } to_shelve[2]; /* by enum mxc_shelve_list; survive the node: a place in a list is stale then */
};

/* Nodes that are to be copied to the shelf: those that a second request used, and those of a
 * prompt. First in, first out. */
enum mxc_shelve_list { MXC_SHELVE_USED, MXC_SHELVE_PROMPT };

struct mxc_prefix {
    struct mxc_prefix_node *nodes;
    int32_t *tokens; /* [n_nodes][MXC_KV_BLOCK] */
    int32_t *buckets;
    int32_t n_nodes, free_node, n_live;
    uint32_t bucket_mask;
    uint64_t tick, n_evicted;
    struct mxc_pool *pools; /* [MXC_N_KV_KINDS], borrowed */
    bool has_shelf;
    struct {
        int32_t first, last;
    } to_shelve[2];
};

/* n_nodes: room for that many blocks; pools must outlive the cache. */
enum mxc_code mxc_prefix_init(struct mxc_prefix *prefix, struct mxc_pool *pools, int32_t n_nodes,
                              struct mxc_err *err) MXC_MUST;
/* Gives up all blocks. No node may have users. */
void mxc_prefix_fini(struct mxc_prefix *prefix);
/* The child of parent (-1: root) with this key, or -1. */
int32_t mxc_prefix_find(const struct mxc_prefix *prefix, int32_t parent,
                        const struct mxc_block_key *key);
/* A new child without blocks or users; -1 when there is no room or no memory. */
int32_t mxc_prefix_add(struct mxc_prefix *prefix, int32_t parent, const struct mxc_block_key *key);
/* Adds to (or takes from) the users of node and all its ancestors, and marks them recent. */
void mxc_prefix_use(struct mxc_prefix *prefix, int32_t node);
void mxc_prefix_unuse(struct mxc_prefix *prefix, int32_t node);
/* One more user of this node alone (its ancestors have it already). */
void mxc_prefix_use_one(struct mxc_prefix *prefix, int32_t node);
/* Digest of the child of a node with digest `parent` (NULL: root) that has this key. */
void mxc_prefix_digest(const uint8_t *parent, const struct mxc_block_key *key,
                       uint8_t digest[MXC_BLAKE2B_BYTES]);
/* The node with this digest, -1: none. Looks at every node. */
int32_t mxc_prefix_by_digest(const struct mxc_prefix *prefix,
                             const uint8_t digest[MXC_BLAKE2B_BYTES]);
/* Puts a node that is not shelved on a list, at its end; nothing without a shelf. */
void mxc_prefix_to_shelve(struct mxc_prefix *prefix, int32_t node, enum mxc_shelve_list list);
/* Puts one that was just taken off back at the front. */
void mxc_prefix_to_shelve_next(struct mxc_prefix *prefix, int32_t node, enum mxc_shelve_list list);
/* Takes the first live node that is not shelved off a list, -1: none. */
int32_t mxc_prefix_next_to_shelve(struct mxc_prefix *prefix, enum mxc_shelve_list list);
/* Forgets node and then its ancestors as long as nobody uses them and nothing else hangs on them.
 * Returns how many. */
int32_t mxc_prefix_forget(struct mxc_prefix *prefix, int32_t node);
/* Frees one block of the kind: the least recently used idle one. false: none is idle. */
bool mxc_prefix_evict(struct mxc_prefix *prefix, enum mxc_kv_kind kind);
/* Forgets everything that no sequence uses. */
void mxc_prefix_clear(struct mxc_prefix *prefix);

#endif
