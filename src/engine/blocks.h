/* Blocks: paged KV bookkeeping. A sequence's table maps token number / MXC_KV_BLOCK to a block for
 * every KV kind; blocks are shared between sequences and with the prefix cache, and copied before a
 * write when shared. Only whole blocks are ever reused from the cache, so what a sequence reads is
 * bit for bit what it would have computed. Thread rules: the engine thread only. */
#ifndef MXC_ENGINE_BLOCKS_H
#define MXC_ENGINE_BLOCKS_H

#include "engine/prefix.h"

struct mxc_blocks_options {
    int32_t n_blocks[MXC_N_KV_KINDS]; /* 0: kind not used */
    int32_t window; /* tokens a row of the window kind sees, itself included; 0 without the kind */
    /* Copies one block of storage (copy on write). */
    void (*copy)(void *user, enum mxc_kv_kind kind, int32_t from, int32_t to);
    void *copy_user;
};

struct mxc_blocks {
    struct mxc_blocks_options options;
    struct mxc_pool pools[MXC_N_KV_KINDS];
    struct mxc_prefix prefix;
    uint64_t n_lookup_tokens, n_hit_tokens, n_copies;
};

/* One sequence's blocks. blocks[kind][0..n_blocks[kind]) is what a span borrows. */
struct mxc_table {
    int32_t *blocks[MXC_N_KV_KINDS]; /* [capacity], -1: behind the window */
    int32_t n_blocks[MXC_N_KV_KINDS];
    int32_t capacity;
    int32_t n_tokens;      /* tokens whose K and V are written */
    int32_t n_behind;      /* window entries [0, n_behind) are -1 */
    int32_t node, n_nodes; /* last node of the chain of cached blocks, and its length */
    bool sealed;           /* commits no more (cache refused, or not wanted) */
};

/* Where the keys of a sequence's blocks come from. */
struct mxc_block_source {
    const int32_t *tokens; /* all tokens known so far */
    /* Writes the extra bytes of a block, at most MXC_MAX_BLOCK_EXTRA; returns their number. */
    size_t (*extra)(void *user, int32_t block, uint8_t *out);
    /* Whether rows may be cut into [.., n) and [n, ..): not inside a both-ways image span. */
    bool (*may_cut)(void *user, int32_t n_tokens);
    void *user;
    int32_t n_prompt; /* tokens that are worth a place on the shelf */
};

enum mxc_code mxc_blocks_init(struct mxc_blocks *blocks, const struct mxc_blocks_options *options,
                              struct mxc_err *err) MXC_MUST;
/* Every table must have been released. */
void mxc_blocks_fini(struct mxc_blocks *blocks);
/* Blocks of the kind that could be handed out now: free, or idle in the cache. */
int32_t mxc_blocks_available(const struct mxc_blocks *blocks, enum mxc_kv_kind kind);
static inline int32_t mxc_blocks_of_tokens(int64_t n_tokens) {
    return (int32_t)((n_tokens + MXC_KV_BLOCK - 1) / MXC_KV_BLOCK);
}

/* Memory for max_tokens tokens, and cross_tokens of the CROSS kind. */
enum mxc_code mxc_table_init(struct mxc_table *table, const struct mxc_blocks *blocks,
                             int64_t max_tokens, int64_t cross_tokens,
                             struct mxc_err *err) MXC_MUST;
void mxc_table_fini(struct mxc_table *table); /* after release */
/* Gives all blocks up; what was committed stays in the cache as long as nobody needs the room. */
void mxc_blocks_release(struct mxc_blocks *blocks, struct mxc_table *table);

/* For an empty table: attaches the longest usable cached prefix of at most max_tokens tokens. */
void mxc_blocks_reuse(struct mxc_blocks *blocks, struct mxc_table *table,
                      const struct mxc_block_source *source, int32_t max_tokens);
/* For an empty table: shares the first n_tokens tokens of from, the partial last block included.
 * false: from has let go of window blocks that are still needed. */
bool mxc_blocks_fork(struct mxc_blocks *blocks, struct mxc_table *table,
                     const struct mxc_table *from, int32_t n_tokens);
/* Makes blocks for tokens [table->n_tokens, n_tokens) present and the sequence's own. false:
 * too few blocks, nothing changed. with_window false leaves the window kind for later. */
bool mxc_blocks_extend(struct mxc_blocks *blocks, struct mxc_table *table, int32_t n_tokens,
                       bool with_window);
/* Blocks of the CROSS kind for cross_tokens tokens; they are the sequence's own, never shared or
 * cached, and go with release. false: too few, nothing changed. */
bool mxc_blocks_take_cross(struct mxc_blocks *blocks, struct mxc_table *table,
                           int32_t cross_tokens);
/* K and V of tokens up to n_tokens are written: full blocks go into the cache (a block that is
 * there already replaces the sequence's own), blocks behind the window are given up. */
void mxc_blocks_commit(struct mxc_blocks *blocks, struct mxc_table *table,
                       const struct mxc_block_source *source, int32_t n_tokens);
/* Tests: every count agrees with the tables given. */
bool mxc_blocks_consistent(const struct mxc_blocks *blocks, const struct mxc_table *const *tables,
                           int32_t n_tables);

#endif
