/* Allocation: the only caller of malloc and friends, so that a test can fail the n-th call.
 * Every function returns NULL on failure or when the size overflows. Thread-safe. */
#ifndef MXC_BASE_MEM_H
#define MXC_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void *mxc_mem_alloc(size_t bytes);                           /* uninitialised */
void *mxc_mem_zalloc(size_t count, size_t size);             /* zeroed, count * size checked */
void *mxc_mem_array(size_t count, size_t size);              /* uninitialised, checked */
void *mxc_mem_realloc(void *ptr, size_t count, size_t size); /* checked; ptr kept on failure */
void mxc_mem_free(void *ptr);                                /* NULL is fine */
char *mxc_mem_dup(const char *text, size_t length);          /* NUL-terminated copy */
char *mxc_mem_strdup(const char *text);
/* Large buffers: align is a power of two >= 8; huge asks for transparent huge pages (zeroed).
 * Release with mxc_mem_free_aligned. */
void *mxc_mem_aligned(size_t align, size_t bytes, bool huge);
/* Asks for huge pages later, for what is not touched yet; align was 2 MiB or more. */
void mxc_mem_make_huge(void *ptr, size_t bytes);
void mxc_mem_free_aligned(void *ptr, size_t bytes);

/* Tests: the n-th call from now (1 = the next) and all later ones fail; 0 switches it off. */
void mxc_mem_fail_at(uint64_t n);
/* Number of calls since the last mxc_mem_fail_at. */
uint64_t mxc_mem_calls(void);

/* Overflow-safe size arithmetic: false on overflow, *out untouched then. */
bool mxc_size_add(size_t a, size_t b, size_t *out);
bool mxc_size_mul(size_t a, size_t b, size_t *out);

#endif
