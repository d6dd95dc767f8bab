/* Checking and sealing records: sizes first, so that nothing beyond the bytes given is read, then
 * the checksum, then that the digest is that of the text. */
#include "engine/shelf.h"

#include "engine/prefix.h"

#include <string.h>

size_t mxc_record_payload(const struct mxc_record *r) {
    size_t sum = 0;
    for (int k = 0; k < MXC_N_KV_KINDS; k++)
        if (r->kinds >> k & 1)
            sum += (size_t)r->block_bytes[k];
    return sum;
}

static void sum_of(const uint8_t *record, size_t n_bytes, uint8_t out[MXC_BLAKE2B_BYTES]) {
    struct mxc_blake2b hash;
    mxc_blake2b_init(&hash);
    mxc_blake2b_add(&hash, record, n_bytes - MXC_BLAKE2B_BYTES);
    mxc_blake2b_end(&hash, out);
}

bool mxc_record_check(const uint8_t *record, size_t n_bytes) {
    struct mxc_record r;
    uint8_t sum[MXC_BLAKE2B_BYTES];
    const uint64_t most = (uint64_t)1 << 32;
    if (n_bytes < sizeof r + sizeof sum || n_bytes > most)
        return false;
    memcpy(&r, record, sizeof r);
    if (memcmp(r.magic, MXC_RECORD_MAGIC, sizeof r.magic) != 0 || r.version != MXC_RECORD_VERSION ||
        r.kinds >> MXC_N_KV_KINDS || r.extra_bytes > MXC_MAX_BLOCK_EXTRA)
        return false;
    for (int k = 0; k < MXC_N_KV_KINDS; k++)
        if (r.block_bytes[k] > most || !(r.kinds >> k & 1) != !r.block_bytes[k])
            return false;
    if (n_bytes != sizeof r + r.extra_bytes + mxc_record_payload(&r) + sizeof sum)
        return false;
    sum_of(record, n_bytes, sum);
    if (memcmp(sum, record + n_bytes - sizeof sum, sizeof sum) != 0)
        return false;
    const struct mxc_block_key key = {r.tokens, record + sizeof r, r.extra_bytes};
    mxc_prefix_digest(r.parent, &key, sum);
    return !memcmp(sum, r.digest, sizeof sum);
}

void mxc_record_seal(uint8_t *record, size_t n_bytes, const uint8_t model[MXC_BLAKE2B_BYTES]) {
    memcpy(record + offsetof(struct mxc_record, model), model, MXC_BLAKE2B_BYTES);
    sum_of(record, n_bytes, record + n_bytes - MXC_BLAKE2B_BYTES);
}
