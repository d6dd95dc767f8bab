/* Shelf: a second place for KV blocks, outside the pool: files that outlive the process (the server
 * has one), or a file that a client asked for. What is put there is a record: one block of every
 * KV kind with the text that it stands for, under a digest of that text from its start.
 *
 * A record (little-endian, as this machine lays it out): struct mxc_record, the extra bytes of its
 * key, the blocks in the order of the kinds, 32 bytes of BLAKE2b over all that. The identity of the
 * model, program and settings is the owner's to fill in and to compare: KV of another one must
 * never come back. Thread rules: the shelf is called on the stepping thread; record functions from
 * any thread. */
#ifndef MXC_ENGINE_SHELF_H
#define MXC_ENGINE_SHELF_H

#include "backend/backend.h"
#include "base/blake2b.h"

#include <stdbool.h>

/* What an engine calls; all from its stepping thread, between two steps, and quickly. */
struct mxc_shelf {
    /* Whether a record is there; marks it as used now, and all it goes on from. */
    bool (*find)(void *user, const uint8_t digest[MXC_BLAKE2B_BYTES]);
    /* Reads it: checked (mxc_record_check) and of this model. The caller frees (mxc_mem). false: it
     * is not there any more, or was damaged. */
    bool (*get)(void *user, const uint8_t digest[MXC_BLAKE2B_BYTES], uint8_t **record,
                size_t *n_bytes);
    bool (*has_room)(void *user); /* for one more to be put now; a wake follows when not */
    /* Takes a record (not sealed) over. */
    void (*put)(void *user, uint8_t *record, size_t n_bytes);
    void (*forget)(void *user, const uint8_t digest[MXC_BLAKE2B_BYTES]);
    /* Asks for a wake after that time. */
    void (*wake_in)(void *user, uint64_t ns);
    void *user;
};

#define MXC_RECORD_MAGIC "mxcKV\r\n"
enum { MXC_RECORD_VERSION = 1 };
struct mxc_record {
    char magic[8];                        /* "mxcKV" */
    uint32_t version, kinds;              /* bit k: a block of kind k */
    uint64_t block_bytes[MXC_N_KV_KINDS]; /* of the kinds that are there, else 0 */
    uint32_t extra_bytes, number;         /* block of the sequence, from 0 */
    uint8_t model[MXC_BLAKE2B_BYTES];     /* the owner's */
    uint8_t digest[MXC_BLAKE2B_BYTES], parent[MXC_BLAKE2B_BYTES]; /* parent of block 0: zeros */
    int32_t tokens[MXC_KV_BLOCK];
};
/* Bytes of its blocks. */
size_t mxc_record_payload(const struct mxc_record *record);
/* Whether the bytes are one whole, undamaged record of a possible text; its digest is then
 * that text's. */
bool mxc_record_check(const uint8_t *record, size_t n_bytes);
/* Fills in the model and the checksum. */
void mxc_record_seal(uint8_t *record, size_t n_bytes, const uint8_t model[MXC_BLAKE2B_BYTES]);

#endif
