/* Between the prefix cache and the shelf: making records of nodes, nodes of records, and deciding
 * when. In: the lists of nodes to be shelved, and requests that wait. Out: calls of the shelf.
 * Invariants: a node is in the cache only when its storage is written, for imports too; blocks that
 * come in are taken from what is free or idle, never from a sequence; a record that does not fit
 * the model is as good as none. */
#include "engine/shelving.h"

#include "base/mem.h"

#include <assert.h>
#include <string.h>

enum {
    MS = 1000000,
    FETCH_NS = 8 * MS,        /* of a step in which others generate */
    FETCH_ALONE_NS = 50 * MS, /* cancels are seen in between */
    PUT_EVERY_NS = 50 * MS,   /* while the engine is busy */
    IDLE_NS = 500 * MS        /* without work, until prompts that were used once are put */
};

/* ---- records */

static uint32_t number_of(const struct mxc_prefix *prefix, int32_t node) {
    uint32_t n = 0;
    while ((node = prefix->nodes[node].parent) >= 0)
        n++;
    return n;
}

enum mxc_code mxc_shelving_record(struct mxc_shelving *s, int32_t node, uint8_t **record,
                                  size_t *n_bytes, struct mxc_err *err) {
    const struct mxc_prefix *prefix = &s->blocks->prefix;
    const struct mxc_prefix_node *n = &prefix->nodes[node];
    if (!s->ops->state_export)
        return mxc_err_set(err, MXC_E_UNSUPPORTED, "the backend cannot take KV out");
    struct mxc_record r = {.version = MXC_RECORD_VERSION,
                           .extra_bytes = (uint32_t)n->extra_bytes,
                           .number = number_of(prefix, node)};
    memcpy(r.magic, MXC_RECORD_MAGIC, sizeof r.magic);
    memcpy(r.digest, n->digest, sizeof r.digest);
    if (n->parent >= 0)
        memcpy(r.parent, prefix->nodes[n->parent].digest, sizeof r.parent);
    memcpy(r.tokens, prefix->tokens + (size_t)node * MXC_KV_BLOCK, sizeof r.tokens);
    for (int k = 0; k < MXC_N_KV_KINDS; k++)
        if (n->blocks[k] >= 0) {
            r.kinds |= 1u << k;
            r.block_bytes[k] = s->block_bytes[k];
        }
    size_t bytes = sizeof r + r.extra_bytes + mxc_record_payload(&r) + MXC_BLAKE2B_BYTES;
    uint8_t *made = mxc_mem_alloc(bytes), *to = made;
    if (!made)
        return mxc_err_nomem(err);
    memcpy(to, &r, sizeof r);
    to += sizeof r;
    if (n->extra_bytes)
        memcpy(to, n->extra, n->extra_bytes);
    to += n->extra_bytes;
    for (int k = 0; k < MXC_N_KV_KINDS; k++) {
        if (n->blocks[k] < 0)
            continue;
        enum mxc_code code =
            s->ops->state_export(s->state, (enum mxc_kv_kind)k, n->blocks[k], to, err);
        if (code) {
            mxc_mem_free(made);
            return code;
        }
        to += r.block_bytes[k];
    }
    memset(to, 0, MXC_BLAKE2B_BYTES);
    *record = made;
    *n_bytes = bytes;
    return MXC_OK;
}

/* ---- in */

static bool used(const struct mxc_blocks *blocks, int kind) {
    return kind != MXC_KV_CROSS && blocks->options.n_blocks[kind] > 0;
}

static bool fits(const struct mxc_shelving *s, const struct mxc_record *r) {
    for (int k = 0; k < MXC_N_KV_KINDS; k++) {
        bool has = r->kinds >> k & 1;
        if (has && (!used(s->blocks, k) || r->block_bytes[k] != s->block_bytes[k]))
            return false;
        if (!has && used(s->blocks, k) && k != MXC_KV_WINDOW)
            return false;
    }
    return true;
}

/* Blocks for the record's kinds with their bytes in place, one reference each; -1: no room. */
static bool bring(struct mxc_shelving *s, const struct mxc_record *r, const uint8_t *bytes,
                  int32_t own[MXC_N_KV_KINDS]) {
    for (int k = 0; k < MXC_N_KV_KINDS; k++) {
        struct mxc_pool *pool = &s->blocks->pools[k];
        if (!(r->kinds >> k & 1))
            continue;
        if (!pool->n_free && !mxc_prefix_evict(&s->blocks->prefix, (enum mxc_kv_kind)k))
            return false;
        own[k] = mxc_pool_take(pool, -1, 1);
        struct mxc_err err;
        if (s->ops->state_import(s->state, (enum mxc_kv_kind)k, own[k], bytes, &err))
            return false;
        bytes += r->block_bytes[k];
    }
    return true;
}

/* Makes the record a child of parent (-1: root), which must be in use. *node is -1: no room. */
static void add_child(struct mxc_shelving *s, int32_t parent, const struct mxc_record *r,
                      const uint8_t *record, int32_t *node) {
    struct mxc_prefix *prefix = &s->blocks->prefix;
    const struct mxc_block_key key = {r->tokens, record + sizeof *r, r->extra_bytes};
    int32_t own[MXC_N_KV_KINDS];
    for (int k = 0; k < MXC_N_KV_KINDS; k++)
        own[k] = -1;
    *node = -1;
    if (bring(s, r, record + sizeof *r + r->extra_bytes, own))
        *node = mxc_prefix_add(prefix, parent, &key);
    for (int k = 0; k < MXC_N_KV_KINDS; k++) {
        if (own[k] < 0)
            continue;
        if (*node >= 0) {
            prefix->nodes[*node].blocks[k] = own[k];
            mxc_pool_cache(&s->blocks->pools[k], own[k], *node);
        }
        mxc_pool_unref(&s->blocks->pools[k], own[k]);
    }
}

enum mxc_code mxc_shelving_adopt(struct mxc_shelving *s, const uint8_t *record,
                                 struct mxc_err *err) {
    static const uint8_t none[MXC_BLAKE2B_BYTES];
    struct mxc_prefix *prefix = &s->blocks->prefix;
    struct mxc_record r;
    if (!s->ops->state_import)
        return mxc_err_set(err, MXC_E_UNSUPPORTED, "the backend cannot put KV in");
    memcpy(&r, record, sizeof r);
    if (!fits(s, &r))
        return mxc_err_set(err, MXC_E_FORMAT, "the KV blocks are of another model");
    int32_t parent = -1, node;
    if (memcmp(r.parent, none, sizeof none) != 0 &&
        (parent = mxc_prefix_by_digest(prefix, r.parent)) < 0)
        return mxc_err_set(err, MXC_E_NOT_FOUND, "block %u goes on from one that is not there",
                           r.number);
    const struct mxc_block_key key = {r.tokens, record + sizeof r, r.extra_bytes};
    if (mxc_prefix_find(prefix, parent, &key) >= 0)
        return MXC_OK;
    mxc_prefix_use(prefix, parent);
    add_child(s, parent, &r, record, &node);
    mxc_prefix_unuse(prefix, parent);
    return node >= 0 ? MXC_OK
                     : mxc_err_set(err, MXC_E_LIMIT, "there is no room for block %u", r.number);
}

static void key_of(const struct mxc_block_source *source, int32_t block, uint8_t *extra,
                   struct mxc_block_key *key) {
    size_t n = source->extra ? source->extra(source->user, block, extra) : 0;
    *key = (struct mxc_block_key){source->tokens + (size_t)block * MXC_KV_BLOCK, extra, n};
}

/* The chain of the request's blocks that are in the cache; those of them that the shelf has lost go
 * there again. */
static int32_t walk(struct mxc_shelving *s, const struct mxc_block_source *source, int32_t limit,
                    int32_t *last) {
    struct mxc_prefix *prefix = &s->blocks->prefix;
    uint8_t extra[MXC_MAX_BLOCK_EXTRA];
    struct mxc_block_key key;
    int32_t b = 0, node = -1, next;
    for (; b < limit; b++, node = next) {
        key_of(source, b, extra, &key);
        if ((next = mxc_prefix_find(prefix, node, &key)) < 0)
            break;
    }
    for (int32_t i = node; i >= 0; i = prefix->nodes[i].parent) {
        if (!prefix->nodes[i].shelved)
            continue;
        if (s->shelf->find(s->shelf->user, prefix->nodes[i].digest))
            break; /* and so are those before it */
        prefix->nodes[i].shelved = false;
    }
    *last = node;
    return b;
}

/* One more block of the request's chain from the shelf. false: that is all. */
static bool fetch_block(struct mxc_shelving *s, const struct mxc_block_source *source, int32_t b,
                        int32_t *node) {
    struct mxc_prefix *prefix = &s->blocks->prefix;
    uint8_t extra[MXC_MAX_BLOCK_EXTRA], digest[MXC_BLAKE2B_BYTES], *record;
    struct mxc_block_key key;
    struct mxc_record r;
    int32_t child = -1;
    size_t n_bytes;
    key_of(source, b, extra, &key);
    mxc_prefix_digest(*node >= 0 ? prefix->nodes[*node].digest : NULL, &key, digest);
    if (!s->shelf->find(s->shelf->user, digest) ||
        !s->shelf->get(s->shelf->user, digest, &record, &n_bytes))
        return false;
    memcpy(&r, record, sizeof r);
    if (!memcmp(r.digest, digest, sizeof digest) && fits(s, &r) &&
        r.extra_bytes == key.extra_bytes && !memcmp(r.tokens, key.tokens, sizeof r.tokens) &&
        !memcmp(record + sizeof r, extra, key.extra_bytes))
        add_child(s, *node, &r, record, &child);
    mxc_mem_free(record);
    if (child < 0)
        return false;
    prefix->nodes[child].shelved = true;
    mxc_prefix_use_one(prefix, child);
    *node = child;
    s->n_fetched++;
    return true;
}

static void fetch(struct mxc_shelving *s, struct mxc_request *r, uint64_t end_ns) {
    const struct mxc_block_source source = mxc_request_source(r);
    int32_t limit = (r->n_tokens - 1) / MXC_KV_BLOCK, node;
    int32_t b = walk(s, &source, limit, &node);
    mxc_prefix_use(&s->blocks->prefix, node); /* what is fetched must not push it out */
    /* One block at least, however slow that is. What others push out again meanwhile is fetched
     * anew, but not for ever. */
    do {
        r->fetched = b >= limit || r->n_fetched >= 2 * limit || !fetch_block(s, &source, b, &node);
        b += !r->fetched;
        r->n_fetched += !r->fetched;
    } while (!r->fetched && s->clock() < end_ns);
    mxc_prefix_unuse(&s->blocks->prefix, node);
}

void mxc_shelving_fetch(struct mxc_shelving *s, struct mxc_request *const *queue, int32_t n,
                        bool others_run) {
    uint64_t end_ns = 0;
    for (int32_t i = 0; i < n; i++) {
        if (queue[i]->fetched)
            continue;
        if (!s->shelf) {
            queue[i]->fetched = true;
            continue;
        }
        if (!end_ns)
            end_ns = s->clock() + (others_run ? FETCH_NS : FETCH_ALONE_NS);
        else if (s->clock() >= end_ns)
            break;
        fetch(s, queue[i], end_ns);
    }
}

/* ---- out */

/* Puts a node, or the first of its ancestors that are not there: a record without the one before it
 * is of no use. false: there is nothing on the list. */
static bool put_next(struct mxc_shelving *s, enum mxc_shelve_list list) {
    struct mxc_prefix *prefix = &s->blocks->prefix;
    int32_t node = mxc_prefix_next_to_shelve(prefix, list), first = node;
    struct mxc_err err;
    uint8_t *record;
    size_t n_bytes;
    if (node < 0)
        return false;
    for (int32_t i = prefix->nodes[node].parent; i >= 0; i = prefix->nodes[i].parent)
        if (!prefix->nodes[i].shelved)
            first = i;
    if (first != node)
        mxc_prefix_to_shelve_next(prefix, node, list);
    prefix->nodes[first].shelved = true; /* also when it fails: it is not tried for ever */
    if (mxc_shelving_record(s, first, &record, &n_bytes, &err))
        return true;
    s->shelf->put(s->shelf->user, record, n_bytes);
    s->n_put++;
    return true;
}

static bool any(const struct mxc_shelving *s) {
    const struct mxc_prefix *p = &s->blocks->prefix;
    return p->to_shelve[0].first >= 0 || p->to_shelve[1].first >= 0;
}

void mxc_shelving_put(struct mxc_shelving *s, bool busy) {
    if (!s->shelf || (!busy && !any(s)))
        return;
    uint64_t now = s->clock();
    if (busy) {
        s->busy_ns = now;
        if (now - s->put_ns < PUT_EVERY_NS)
            return;
    } else if (now - s->busy_ns < IDLE_NS) {
        s->shelf->wake_in(s->shelf->user, IDLE_NS - (now - s->busy_ns));
        return;
    }
    if (!s->shelf->has_room(s->shelf->user))
        return;
    s->put_ns = now;
    if (!put_next(s, MXC_SHELVE_USED) && !busy)
        (void)put_next(s, MXC_SHELVE_PROMPT);
    if (!busy && any(s))
        s->shelf->wake_in(s->shelf->user, 0);
}

bool mxc_shelving_put_all(struct mxc_shelving *s) {
    if (!s->shelf)
        return false;
    while (any(s) && s->shelf->has_room(s->shelf->user))
        if (!put_next(s, MXC_SHELVE_USED))
            (void)put_next(s, MXC_SHELVE_PROMPT);
    return any(s);
}
