/* Arena: allocations that end together. Memory is zeroed. Not thread-safe. */
#ifndef MXC_BASE_ARENA_H
#define MXC_BASE_ARENA_H

#include <stddef.h>

struct mxc_arena {
    struct mxc_arena_chunk *chunks; /* newest first */
    size_t used_bytes, max_bytes;
};

/* max_bytes bounds the sum of all allocations; 0: no bound. */
void mxc_arena_init(struct mxc_arena *arena, size_t max_bytes);
void mxc_arena_fini(struct mxc_arena *arena);
/* Zeroed, aligned to 16. NULL when memory or the bound is exhausted. Valid until fini. */
void *mxc_arena_alloc(struct mxc_arena *arena, size_t bytes);
void *mxc_arena_array(struct mxc_arena *arena, size_t count, size_t size);     /* checked product */
char *mxc_arena_dup(struct mxc_arena *arena, const char *text, size_t length); /* NUL-terminated */
char *mxc_arena_strdup(struct mxc_arena *arena, const char *text);
char *mxc_arena_printf(struct mxc_arena *arena, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

#endif
