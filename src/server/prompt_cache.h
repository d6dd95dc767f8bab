/* Prompt cache: KV of prompt prefixes in files of the state folder, so that a restart does not lose
 * them. It is the shelf (engine/shelf.h) of every model of a host that makes text.
 *
 * STATE/prompts/index.db   which records there are (prompt_index.h)
 * STATE/prompts/KEY.kv     one record: one block and the text that it stands for
 *
 * KEY is a digest of the text from its start and of all that KV depends on besides: program,
 * weights and config byte for byte, ISA level, precision, layouts, KV type. So a record of another
 * model or an older program is never found; it goes when room is needed. A record whose checksum is
 * wrong is as good as none, and the operator is told once. The bytes of all files stay within a
 * limit; what was used longest ago goes first, the ends of prefixes before their beginnings. One
 * server at a time uses a folder; another one works without.
 *
 * One thread of its own does what takes time. All functions from any thread but open and close. */
#ifndef MXC_SERVER_PROMPT_CACHE_H
#define MXC_SERVER_PROMPT_CACHE_H

#include "base/blake2b.h"
#include "gen/host.h"

#include <stdatomic.h>

struct mxc_prompt_cache;
struct mxc_prompt_cache_options {
    const char *state_dir;
    uint64_t max_bytes; /* of all records */
    struct mxc_host *host;
    void (*warn)(const char *line, void *user); /* NULL: nobody listens */
    void *user;
};

/* Starts the thread; what it cannot do later (open a file) is told through warn. */
enum mxc_code mxc_prompt_cache_open(const struct mxc_prompt_cache_options *options,
                                    struct mxc_prompt_cache **cache, struct mxc_err *err) MXC_MUST;
/* Puts what engines still have for it, for a few seconds at most, and lets go of them. The host
 * still runs. NULL is fine. */
void mxc_prompt_cache_close(struct mxc_prompt_cache *cache);

struct mxc_prompt_cache_stats {
    uint64_t n_records, bytes, n_found, n_written, n_damaged;
    bool ready; /* every model that is loaded uses it */
};
void mxc_prompt_cache_get_stats(struct mxc_prompt_cache *cache,
                                struct mxc_prompt_cache_stats *stats); /* NULL: zeros */

/* What KV of a READY model depends on besides its text. index (may be NULL) remembers the digests
 * of its files; stop (may be NULL) ends the reading of them: MXC_E_CANCELLED. MXC_E_IO: a file
 * cannot be read. */
struct mxc_prompt_index;
enum mxc_code mxc_prompt_identity(struct mxc_host *host, int model, struct mxc_prompt_index *index,
                                  const atomic_bool *stop, uint8_t identity[MXC_BLAKE2B_BYTES],
                                  struct mxc_err *err) MXC_MUST;

#endif
