/* BLAKE2b with 32 bytes of digest and no key (RFC 7693): keys of caches by content. Not for
 * secrets. Any number of add calls between init and end; one thread at a time per state. */
#ifndef MXC_BASE_BLAKE2B_H
#define MXC_BASE_BLAKE2B_H

#include <stddef.h>
#include <stdint.h>

enum { MXC_BLAKE2B_BYTES = 32, MXC_BLAKE2B_BLOCK = 128 };

struct mxc_blake2b {
    uint64_t h[8], length[2];
    uint8_t block[MXC_BLAKE2B_BLOCK];
    size_t used;
};

void mxc_blake2b_init(struct mxc_blake2b *state);
void mxc_blake2b_add(struct mxc_blake2b *state, const void *data, size_t length);
/* The state is used up. */
void mxc_blake2b_end(struct mxc_blake2b *state, uint8_t digest[MXC_BLAKE2B_BYTES]);

#endif
