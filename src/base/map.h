/* Hash map from byte strings to 64-bit values (FNV-1a, open addressing, a seed of its own so that a
 * file cannot choose names that collide). Keys are copied unless put_borrowed. Not thread-safe. */
#ifndef MXC_BASE_MAP_H
#define MXC_BASE_MAP_H

#include "base/str.h"

struct mxc_map {
    struct mxc_map_slot *slots;
    size_t n_slots, n_used;
    struct mxc_arena_chunk *key_chunks_; /* private */
    uint64_t seed;
};

void mxc_map_init(struct mxc_map *map);
void mxc_map_fini(struct mxc_map *map);
/* Makes room for n keys in all. false: out of memory. */
bool mxc_map_reserve(struct mxc_map *map, size_t n);
/* Inserts or replaces. false: out of memory, the map is unchanged. */
bool mxc_map_put(struct mxc_map *map, struct mxc_str key, uint64_t value);
/* As put, but the key's bytes are borrowed and must outlive the map. */
bool mxc_map_put_borrowed(struct mxc_map *map, struct mxc_str key, uint64_t value);
bool mxc_map_get(const struct mxc_map *map, struct mxc_str key, uint64_t *value);

#endif
