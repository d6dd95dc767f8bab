/* Allocation, and the counter with which tests fail the n-th call, alone or with all after it.
 * In: sizes whose products and sums are checked. Out: memory or NULL; a size of 0 is a valid block.
 * Large aligned buffers come from mmap: huge pages can be asked for, and memory goes back to the
 * system at once. The mapping is made too large and trimmed to the alignment, so freeing needs only
 * pointer and size.
 * The counter is the one thing shared between threads, and atomic. */
#define _GNU_SOURCE
#include "base/mem.h"

#include "base/mem_fail.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static _Atomic uint64_t n_calls, fail_at, fail_to;

static bool fails(void) {
    uint64_t n = atomic_fetch_add_explicit(&n_calls, 1, memory_order_relaxed) + 1;
    uint64_t at = atomic_load_explicit(&fail_at, memory_order_relaxed);
    return at && n >= at && n < atomic_load_explicit(&fail_to, memory_order_relaxed);
}

bool mxc_size_add(size_t a, size_t b, size_t *out) {
    size_t r;
    if (__builtin_add_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

bool mxc_size_mul(size_t a, size_t b, size_t *out) {
    size_t r;
    if (__builtin_mul_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

void *mxc_mem_alloc(size_t bytes) {
    return fails() ? NULL : malloc(bytes ? bytes : 1);
}

void *mxc_mem_zalloc(size_t count, size_t size) {
    return fails() ? NULL : calloc(count ? count : 1, size ? size : 1);
}

void *mxc_mem_array(size_t count, size_t size) {
    size_t bytes;
    return mxc_size_mul(count, size, &bytes) ? mxc_mem_alloc(bytes) : NULL;
}

void *mxc_mem_realloc(void *ptr, size_t count, size_t size) {
    size_t bytes;
    if (!mxc_size_mul(count, size, &bytes) || fails())
        return NULL;
    return realloc(ptr, bytes ? bytes : 1);
}

void mxc_mem_free(void *ptr) {
    free(ptr);
}

char *mxc_mem_dup(const char *text, size_t length) {
    size_t bytes;
    char *copy = mxc_size_add(length, 1, &bytes) ? mxc_mem_alloc(bytes) : NULL;
    if (copy) {
        if (length)
            memcpy(copy, text, length);
        copy[length] = 0;
    }
    return copy;
}

char *mxc_mem_strdup(const char *text) {
    return mxc_mem_dup(text, strlen(text));
}

enum { HUGE_BYTES = 2 << 20 };

static size_t round_up(size_t bytes, size_t align) {
    size_t sum;
    return mxc_size_add(bytes, align - 1, &sum) ? sum / align * align : 0;
}

void *mxc_mem_aligned(size_t align, size_t bytes, bool huge) {
    size_t unit = huge && align < HUGE_BYTES ? HUGE_BYTES : align < 4096 ? 4096 : align;
    size_t n = round_up(bytes ? bytes : 1, 4096), total;
    if (!n || !mxc_size_add(n, unit, &total) || fails())
        return NULL;
    char *base = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return NULL;
    size_t skip = (size_t)(-(uintptr_t)base & (unit - 1));
    if (skip)
        munmap(base, skip);
    if (total - skip > n)
        munmap(base + skip + n, total - skip - n);
    if (huge)
        (void)madvise(base + skip, n, MADV_HUGEPAGE);
    return base + skip;
}

void mxc_mem_make_huge(void *ptr, size_t bytes) {
    size_t n = round_up(bytes, 4096);
    if (n)
        (void)madvise(ptr, n, MADV_HUGEPAGE);
}

void mxc_mem_free_aligned(void *ptr, size_t bytes) {
    if (ptr)
        munmap(ptr, round_up(bytes ? bytes : 1, 4096));
}

void mxc_mem_fail_at(uint64_t n) {
    atomic_store(&n_calls, 0);
    atomic_store(&fail_to, UINT64_MAX);
    atomic_store(&fail_at, n);
}

void mxc_mem_fail_once(uint64_t n) {
    atomic_store(&n_calls, 0);
    atomic_store(&fail_to, n + 1);
    atomic_store(&fail_at, n);
}

uint64_t mxc_mem_calls(void) {
    return atomic_load(&n_calls);
}
