/* Arena: a list of chunks of 64 KiB, newest first; an allocation larger than that gets a chunk of
 * its own size.
 * In: sizes, rounded up to 16 bytes. Out: zeroed memory that never moves.
 * Only the newest chunk is filled: what is left in an older one stays unused, which keeps an
 * allocation a few instructions. The bound counts what callers took, not the chunks. */
#include "base/arena.h"

#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { CHUNK_BYTES = 64 << 10, ALIGN = 16 };

struct mxc_arena_chunk {
    struct mxc_arena_chunk *next;
    size_t used, size;
    _Alignas(ALIGN) unsigned char data[];
};

void mxc_arena_init(struct mxc_arena *arena, size_t max_bytes) {
    *arena = (struct mxc_arena){.max_bytes = max_bytes};
}

void mxc_arena_fini(struct mxc_arena *arena) {
    while (arena->chunks) {
        struct mxc_arena_chunk *next = arena->chunks->next;
        mxc_mem_free(arena->chunks);
        arena->chunks = next;
    }
    arena->used_bytes = 0;
}

void *mxc_arena_alloc(struct mxc_arena *arena, size_t bytes) {
    size_t n, used;
    if (!mxc_size_add(bytes ? bytes : 1, ALIGN - 1, &n))
        return NULL;
    n = n / ALIGN * ALIGN;
    if (!mxc_size_add(arena->used_bytes, n, &used) || (arena->max_bytes && used > arena->max_bytes))
        return NULL;
    struct mxc_arena_chunk *c = arena->chunks;
    if (!c || c->size - c->used < n) {
        size_t size = n > CHUNK_BYTES ? n : CHUNK_BYTES, total;
        if (!mxc_size_add(size, sizeof *c, &total) || !(c = mxc_mem_alloc(total)))
            return NULL;
        c->used = 0;
        c->size = size;
        c->next = arena->chunks;
        arena->chunks = c;
    }
    void *p = c->data + c->used;
    c->used += n;
    arena->used_bytes = used;
    memset(p, 0, n);
    return p;
}

void *mxc_arena_array(struct mxc_arena *arena, size_t count, size_t size) {
    size_t bytes;
    return mxc_size_mul(count, size, &bytes) ? mxc_arena_alloc(arena, bytes) : NULL;
}

char *mxc_arena_dup(struct mxc_arena *arena, const char *text, size_t length) {
    size_t bytes;
    char *copy = mxc_size_add(length, 1, &bytes) ? mxc_arena_alloc(arena, bytes) : NULL;
    if (copy && length)
        memcpy(copy, text, length);
    return copy;
}

char *mxc_arena_strdup(struct mxc_arena *arena, const char *text) {
    return mxc_arena_dup(arena, text, strlen(text));
}

char *mxc_arena_printf(struct mxc_arena *arena, const char *fmt, ...) {
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    char *text = n < 0 ? NULL : mxc_arena_alloc(arena, (size_t)n + 1);
    if (text)
        (void)vsnprintf(text, (size_t)n + 1, fmt, again);
    va_end(again);
    va_end(ap);
    return text;
}
