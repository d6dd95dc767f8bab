/* Hash map: linear probing in a table whose size is a power of two, load at most 1/2.
 * In: byte strings and 64-bit values. Out: the value of a key. Keys are copied into an arena that
 * ends with the map, or borrowed.
 * Invariants: a free slot always exists, so every search ends; nothing is ever removed. Hashes are
 * kept in the slots, so growing touches no key. Each map has a seed of its own against chosen
 * collisions. */
#include "base/map.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/mem.h"

#include <string.h>

struct mxc_map_slot {
    const char *key; /* NULL: free */
    size_t length;
    uint64_t hash, value;
};

void mxc_map_init(struct mxc_map *map) {
    *map =
        (struct mxc_map){.seed = (mxc_clock_ns() ^ (uint64_t)(uintptr_t)map) * 0x9E3779B97F4A7C15u};
}

void mxc_map_fini(struct mxc_map *map) {
    struct mxc_arena keys = {.chunks = map->key_chunks_};
    mxc_arena_fini(&keys);
    mxc_mem_free(map->slots);
    mxc_map_init(map);
}

static struct mxc_map_slot *find(const struct mxc_map *map, struct mxc_str key, uint64_t hash) {
    for (size_t i = (size_t)hash;; i++) {
        struct mxc_map_slot *s = &map->slots[i & (map->n_slots - 1)];
        if (!s->key || (s->hash == hash && s->length == key.length &&
                        (!key.length || !memcmp(s->key, key.ptr, key.length))))
            return s;
    }
}

static uint64_t hash_of(const struct mxc_map *map, struct mxc_str key) {
    uint64_t h = mxc_hash_bytes(key.ptr, key.length, map->seed);
    return h ^ h >> 32;
}

static bool grow(struct mxc_map *map, size_t n_slots) {
    struct mxc_map next = *map;
    next.n_slots = n_slots;
    next.slots = mxc_mem_zalloc(n_slots, sizeof *next.slots);
    if (!next.slots)
        return false;
    for (size_t i = 0; i < map->n_slots; i++) {
        const struct mxc_map_slot *s = &map->slots[i];
        if (s->key)
            *find(&next, (struct mxc_str){s->key, s->length}, s->hash) = *s;
    }
    mxc_mem_free(map->slots);
    *map = next;
    return true;
}

bool mxc_map_reserve(struct mxc_map *map, size_t n) {
    size_t want = 16;
    while (want / 2 < n) {
        if (want > SIZE_MAX / 2 / sizeof *map->slots)
            return false;
        want *= 2;
    }
    return want <= map->n_slots || grow(map, want);
}

static bool put(struct mxc_map *map, struct mxc_str key, uint64_t value, bool copy) {
    if (!mxc_map_reserve(map, map->n_used + 1))
        return false;
    uint64_t hash = hash_of(map, key);
    struct mxc_map_slot *s = find(map, key, hash);
    if (!s->key) {
        const char *bytes = key.ptr;
        if (copy) {
            struct mxc_arena keys = {.chunks = map->key_chunks_};
            bytes = mxc_arena_dup(&keys, key.ptr, key.length);
            map->key_chunks_ = keys.chunks;
        }
        if (!bytes)
            return false;
        *s = (struct mxc_map_slot){.key = bytes, .length = key.length, .hash = hash};
        map->n_used++;
    }
    s->value = value;
    return true;
}

bool mxc_map_put(struct mxc_map *map, struct mxc_str key, uint64_t value) {
    return put(map, key, value, true);
}

bool mxc_map_put_borrowed(struct mxc_map *map, struct mxc_str key, uint64_t value) {
    return put(map, key, value, false);
}

bool mxc_map_get(const struct mxc_map *map, struct mxc_str key, uint64_t *value) {
    if (!map->n_slots)
        return false;
    const struct mxc_map_slot *s = find(map, key, hash_of(map, key));
    if (!s->key)
        return false;
    *value = s->value;
    return true;
}
