/* Block bookkeeping driven at random beside a model of the storage: what a table points at must be
 * exactly what its sequence wrote, every count must agree, and nothing may be lost. */
#include "test.h"

#include "base/mem.h"
#include "engine/blocks.h"
#include "engine/rng.h"

#include <stdlib.h>
#include <string.h>

enum { N_BLOCKS = 40, N_SEQUENCES = 8, MAX_TOKENS = 30 * MXC_KV_BLOCK };

/* What a slot holds: a hash of all tokens up to it. */
static uint64_t storage[MXC_N_KV_KINDS][N_BLOCKS * MXC_KV_BLOCK];

static void copy_block(void *user, enum mxc_kv_kind kind, int32_t from, int32_t to) {
    (*(int *)user)++;
    memcpy(storage[kind] + to * MXC_KV_BLOCK, storage[kind] + from * MXC_KV_BLOCK,
           MXC_KV_BLOCK * sizeof(uint64_t));
}

struct sequence {
    struct mxc_table table;
    int32_t tokens[MAX_TOKENS];
    uint64_t salt;
    int32_t no_cut_from, no_cut_to; /* rows that must not be parted */
    bool live;
};

static size_t extra(void *user, int32_t block, uint8_t *out) {
    const struct sequence *s = user;
    if (block)
        return 0;
    memcpy(out, &s->salt, sizeof s->salt);
    return sizeof s->salt;
}

static bool may_cut(void *user, int32_t n) {
    const struct sequence *s = user;
    return n <= s->no_cut_from || n >= s->no_cut_to;
}

static struct mxc_block_source source_of(struct sequence *s) {
    return (struct mxc_block_source){s->tokens, extra, may_cut, s, MAX_TOKENS};
}

static uint64_t chain(const struct sequence *s, int32_t n) {
    uint64_t h = s->salt;
    for (int32_t i = 0; i <= n; i++)
        h = (h ^ (uint64_t)s->tokens[i]) * 0x100000001B3u + 1;
    return h;
}

static void write_tokens(const struct mxc_blocks *b, struct sequence *s, int32_t to) {
    for (int k = 0; k < MXC_N_KV_KINDS; k++)
        for (int32_t i = s->table.n_tokens; b->options.n_blocks[k] && i < to; i++) {
            int32_t block = s->table.blocks[k][i / MXC_KV_BLOCK];
            assert_in_range(block, 0, b->options.n_blocks[k] - 1);
            storage[k][block * MXC_KV_BLOCK + i % MXC_KV_BLOCK] = chain(s, i);
        }
}

/* Everything that rows from n_tokens on may read. */
static void assert_readable(const struct mxc_blocks *b, const struct sequence *s) {
    const struct mxc_table *t = &s->table;
    for (int k = 0; k < MXC_N_KV_KINDS; k++) {
        if (!b->options.n_blocks[k])
            continue;
        int32_t from = k == MXC_KV_WINDOW ? t->n_tokens - b->options.window + 1 : 0;
        for (int32_t i = from > 0 ? from : 0; i < t->n_tokens; i += 1 + i % 3) {
            int32_t block = t->blocks[k][i / MXC_KV_BLOCK];
            assert_in_range(block, 0, b->options.n_blocks[k] - 1);
            assert_int_equal(storage[k][block * MXC_KV_BLOCK + i % MXC_KV_BLOCK], chain(s, i));
        }
    }
}

static void assert_consistent(const struct mxc_blocks *b, struct sequence *s) {
    const struct mxc_table *tables[N_SEQUENCES];
    for (int i = 0; i < N_SEQUENCES; i++)
        tables[i] = &s[i].table;
    assert_true(mxc_blocks_consistent(b, tables, N_SEQUENCES));
}

static void release(struct mxc_blocks *b, struct sequence *s) {
    mxc_blocks_release(b, &s->table);
    mxc_table_fini(&s->table);
    s->live = false;
}

static int n_copies, n_forks, n_refused;
static uint64_t n_hits, n_evicted;

static void random_walk(uint64_t seed, int32_t full, int32_t window_blocks, int32_t window) {
    static struct sequence all[N_SEQUENCES];
    struct mxc_blocks b;
    struct mxc_rng rng;
    mxc_rng_seed(&rng, seed);
    memset(all, 0, sizeof all);
    for (int i = 0; i < N_SEQUENCES; i++)
        all[i].table.node = -1;
    struct mxc_blocks_options o = {{full, window_blocks, 0, 0}, window, copy_block, &n_copies};
    assert_int_equal(mxc_blocks_init(&b, &o, NULL), MXC_OK);
    for (int step = 0; step < 1500; step++) {
        struct sequence *s = &all[mxc_rng_next(&rng) % N_SEQUENCES];
        struct sequence *other = &all[mxc_rng_next(&rng) % N_SEQUENCES];
        struct mxc_block_source source = source_of(s);
        if (!s->live) {
            assert_int_equal(mxc_table_init(&s->table, &b, MAX_TOKENS, 0, NULL), MXC_OK);
            s->live = true;
            s->salt = mxc_rng_next(&rng) % 2;
            s->no_cut_from = 32 * (int32_t)(mxc_rng_next(&rng) % 8) + 27;
            s->no_cut_to = s->no_cut_from + 40;
            if (mxc_rng_next(&rng) % 3 == 0 && other->live && other->table.n_tokens > 1) {
                int32_t n = 1 + (int32_t)(mxc_rng_next(&rng) % (uint64_t)other->table.n_tokens);
                s->salt = other->salt;
                memcpy(s->tokens, other->tokens, sizeof s->tokens);
                n_forks += mxc_blocks_fork(&b, &s->table, &other->table, n);
            } else {
                /* few different texts, so that prefixes are found again */
                for (int32_t i = 0; i < MAX_TOKENS; i++)
                    s->tokens[i] = i / 50;
                s->tokens[mxc_rng_next(&rng) % 4 * 70] = 3;
                s->table.sealed = mxc_rng_next(&rng) % 10 == 0;
                mxc_blocks_reuse(&b, &s->table, &source, 1 + (int32_t)(mxc_rng_next(&rng) % 900));
                assert_int_equal(s->table.n_tokens % MXC_KV_BLOCK, 0);
                assert_true(may_cut(s, s->table.n_tokens));
            }
            assert_readable(&b, s);
        } else if (mxc_rng_next(&rng) % 9 == 0) {
            release(&b, s);
        } else {
            int32_t n = s->table.n_tokens + 1 + (int32_t)(mxc_rng_next(&rng) % 60);
            if (n > MAX_TOKENS) {
                release(&b, s);
                continue;
            }
            if (s->table.n_nodes * MXC_KV_BLOCK == s->table.n_tokens) /* a text of its own */
                s->tokens[s->table.n_tokens] = (int32_t)(mxc_rng_next(&rng) % 3);
            if (!mxc_blocks_extend(&b, &s->table, n, true)) {
                n_refused++;
                assert_readable(&b, s);
                if (mxc_rng_next(&rng) % 3 == 0)
                    release(&b, s);
                continue;
            }
            write_tokens(&b, s, n);
            mxc_blocks_commit(&b, &s->table, &source, n);
            assert_readable(&b, s);
        }
        if (step % 16 == 0) {
            assert_consistent(&b, all);
            for (int i = 0; i < N_SEQUENCES; i++)
                if (all[i].live)
                    assert_readable(&b, &all[i]);
        }
    }
    n_hits += b.n_hit_tokens;
    n_evicted += b.prefix.n_evicted;
    for (int i = 0; i < N_SEQUENCES; i++)
        if (all[i].live)
            release(&b, &all[i]);
    assert_consistent(&b, all);
    mxc_blocks_fini(&b); /* asserts that all blocks are free */
}

static void random_walks(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 3; seed++) {
        random_walk(seed, N_BLOCKS, 0, 0);
        random_walk(seed + 10, N_BLOCKS, 30, 45);
        random_walk(seed + 20, N_BLOCKS, 24, 1);
        random_walk(seed + 30, 0, N_BLOCKS, 100);
        random_walk(seed + 40, 30, N_BLOCKS, 2000);
    }
    assert_true(n_copies > 100 && n_forks > 100 && n_refused > 100); /* the walks went there */
    assert_true(n_hits > 5000 && n_evicted > 100);
}

/* Fresh blocks come in one run, also beside others that grow. */
static void adjacent_runs(void **state) {
    (void)state;
    struct mxc_pool pool;
    assert_int_equal(mxc_pool_init(&pool, 200, NULL), MXC_OK);
    int32_t a = -1, b = -1;
    for (int i = 0; i < 10; i++) {
        int32_t next = mxc_pool_take(&pool, a, 10);
        assert_true(i == 0 || next == a + 1);
        a = next;
    }
    b = mxc_pool_take(&pool, -1, 16);
    for (int i = 0; i < 15; i++) {
        int32_t next = mxc_pool_take(&pool, b, 1);
        assert_int_equal(next, b + 1);
        b = next;
    }
    /* a hole of 5 is left alone while there is a run of the wanted length */
    for (int32_t i = 2; i < 7; i++)
        mxc_pool_unref(&pool, i);
    int32_t c = mxc_pool_take(&pool, -1, 6);
    assert_int_equal(c, b + 1);
    /* and used when nothing else is left */
    while (pool.n_free > 5)
        c = mxc_pool_take(&pool, c, 1);
    assert_in_range(mxc_pool_take(&pool, 100, 20), 2, 6);
    while (pool.n_free)
        (void)mxc_pool_take(&pool, -1, 1);
    assert_int_equal(mxc_pool_take(&pool, -1, 1), -1);
    mxc_pool_fini(&pool);
}

/* Equal hashes must not be enough: a node is compared token by token and byte by byte. */
static void keys_are_compared(void **state) {
    (void)state;
    struct mxc_pool pools[MXC_N_KV_KINDS];
    struct mxc_prefix prefix;
    int32_t tokens[MXC_KV_BLOCK] = {1};
    uint8_t bytes[2] = {1, 2};
    memset(pools, 0, sizeof pools);
    assert_int_equal(mxc_pool_init(&pools[0], 4, NULL), MXC_OK);
    assert_int_equal(mxc_prefix_init(&prefix, pools, 4, NULL), MXC_OK);
    struct mxc_block_key key = {tokens, bytes, 2};
    int32_t node = mxc_prefix_add(&prefix, -1, &key);
    assert_true(node >= 0);
    assert_int_equal(mxc_prefix_find(&prefix, -1, &key), node);
    assert_int_equal(mxc_prefix_find(&prefix, node, &key), -1);
    bytes[1] = 3; /* the same hash on purpose */
    uint64_t hash = prefix.nodes[node].hash;
    assert_int_equal(mxc_prefix_find(&prefix, -1, &key), -1);
    int32_t other = mxc_prefix_add(&prefix, -1, &key);
    assert_true(other >= 0 && other != node);
    bytes[1] = 2;
    prefix.nodes[other].hash = hash; /* collide: same bucket, same hash, other bytes */
    for (uint32_t i = 0; i <= prefix.bucket_mask; i++)
        prefix.buckets[i] = i == (hash & prefix.bucket_mask) ? other : -1;
    prefix.nodes[other].next = node;
    prefix.nodes[node].next = -1;
    assert_int_equal(mxc_prefix_find(&prefix, -1, &key), node);
    bytes[1] = 3;
    tokens[MXC_KV_BLOCK - 1] = 9;
    assert_int_equal(mxc_prefix_find(&prefix, -1, &key), -1);
    mxc_prefix_fini(&prefix);
    mxc_pool_fini(&pools[0]);
}

static void bad_options_and_memory(void **state) {
    (void)state;
    struct mxc_blocks b;
    struct mxc_blocks_options o = {{0, 0, 0, 0}, 0, copy_block, NULL};
    assert_int_equal(mxc_blocks_init(&b, &o, NULL), MXC_E_ARG);
    o.n_blocks[MXC_KV_CROSS] = 3;
    assert_int_equal(mxc_blocks_init(&b, &o, NULL), MXC_E_ARG);
    o.n_blocks[MXC_KV_CROSS] = 0;
    o.n_blocks[MXC_KV_FULL] = 3;
    int n = 0;
    for (uint64_t at = 1;; at++, n++) {
        mxc_mem_fail_at(at);
        enum mxc_code code = mxc_blocks_init(&b, &o, NULL);
        mxc_mem_fail_at(0);
        if (!code)
            break;
        assert_int_equal(code, MXC_E_NOMEM);
    }
    assert_true(n >= 6);
    mxc_blocks_fini(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_walks), cmocka_unit_test(adjacent_runs),
        cmocka_unit_test(keys_are_compared), cmocka_unit_test(bad_options_and_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
