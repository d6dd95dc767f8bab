/* Prompt index: the SQLite file (WAL) beside the files of the prompt cache: which records there
 * are, in which order they were used, and the digests of weight files, so that those are read once.
 * It is advice: a row without its file, or a file without its row, does no harm. A file that is
 * damaged or of another version is begun anew. Thread rules: one thread at a time. */
#ifndef MXC_SERVER_PROMPT_INDEX_H
#define MXC_SERVER_PROMPT_INDEX_H

#include "base/blake2b.h"
#include "base/err.h"

#include <stdatomic.h>
#include <stdbool.h>

struct mxc_prompt_index;

struct mxc_prompt_row {
    uint8_t key[MXC_BLAKE2B_BYTES], parent[MXC_BLAKE2B_BYTES]; /* parent: zeros for the first */
    uint64_t bytes, used;                                      /* used: grows with each use */
};

/* *renewed: what was there was damaged and is gone. MXC_E_IO. */
enum mxc_code mxc_prompt_index_open(const char *path, struct mxc_prompt_index **index,
                                    bool *renewed, struct mxc_err *err) MXC_MUST;
void mxc_prompt_index_close(struct mxc_prompt_index *index); /* NULL is fine */
/* Every row, the one that was used longest ago first. each returns false to end. */
enum mxc_code mxc_prompt_index_each(struct mxc_prompt_index *index,
                                    bool (*each)(void *user, const struct mxc_prompt_row *row),
                                    void *user, struct mxc_err *err) MXC_MUST;
/* Inserts or replaces. */
enum mxc_code mxc_prompt_index_put(struct mxc_prompt_index *index, const struct mxc_prompt_row *row,
                                   struct mxc_err *err) MXC_MUST;
enum mxc_code mxc_prompt_index_remove(struct mxc_prompt_index *index,
                                      const uint8_t key[MXC_BLAKE2B_BYTES],
                                      struct mxc_err *err) MXC_MUST;
/* Several changes at once: begin, then end. */
enum mxc_code mxc_prompt_index_begin(struct mxc_prompt_index *index, struct mxc_err *err) MXC_MUST;
enum mxc_code mxc_prompt_index_end(struct mxc_prompt_index *index, struct mxc_err *err) MXC_MUST;
/* The digest of a file's bytes; remembered as long as the file's stamp (size, times, number) is the
 * same. index NULL: always reads. stop, unless NULL, ends it: MXC_E_CANCELLED. MXC_E_IO. */
enum mxc_code mxc_prompt_index_digest(struct mxc_prompt_index *index, const char *path,
                                      const atomic_bool *stop, uint8_t digest[MXC_BLAKE2B_BYTES],
                                      struct mxc_err *err) MXC_MUST;

#endif
