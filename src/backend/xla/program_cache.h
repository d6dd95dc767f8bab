/* Program cache: compiled programs on disk, one file each, so that a later start need not compile.
 * A file is named by its key (a digest of all that the program depends on: text, options, plugin,
 * devices, CPU features) and holds that key, a digest of its content, and the content. What is
 * damaged, cut or of another key is deleted and reads as absent. Files are written beside and
 * renamed; when the folder holds more than its bound, the least recently used go. Several processes
 * may use one folder. The folder also remembers digests of plugin files by path, size and time.
 * The content is machine code: whoever can write to the folder can run code as its user. */
#ifndef MXC_BACKEND_XLA_PROGRAM_CACHE_H
#define MXC_BACKEND_XLA_PROGRAM_CACHE_H

#include "base/blake2b.h"
#include "base/err.h"
#include "base/file.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MXC_XLA_DIGEST_BYTES = MXC_BLAKE2B_BYTES };

struct mxc_xla_cache;

/* dir is made when missing (its parents too). max_bytes > 0. */
MXC_MUST enum mxc_code mxc_xla_cache_open(const char *dir, uint64_t max_bytes,
                                          struct mxc_xla_cache **cache, struct mxc_err *err);
void mxc_xla_cache_close(struct mxc_xla_cache *cache);

/* A program that was read: content[0 .. size) until mxc_xla_cache_release. */
struct mxc_xla_cached {
    struct mxc_file file;
    const unsigned char *content;
    size_t size;
};

/* false: there is none that can be used. A hit becomes the most recently used. */
bool mxc_xla_cache_get(struct mxc_xla_cache *cache, const uint8_t key[MXC_XLA_DIGEST_BYTES],
                       struct mxc_xla_cached *cached);
void mxc_xla_cache_release(struct mxc_xla_cached *cached);
/* Keeps the content under the key and deletes what exceeds the bound. A program larger than the
 * whole bound is not kept (MXC_OK). */
MXC_MUST enum mxc_code mxc_xla_cache_put(struct mxc_xla_cache *cache,
                                         const uint8_t key[MXC_XLA_DIGEST_BYTES],
                                         const void *content, size_t size, struct mxc_err *err);
void mxc_xla_cache_drop(struct mxc_xla_cache *cache, const uint8_t key[MXC_XLA_DIGEST_BYTES]);

/* Digest of a file's content, as lower-case hexadecimal; cache may be NULL (nothing is remembered).
 */
MXC_MUST enum mxc_code mxc_xla_cache_file_digest(struct mxc_xla_cache *cache, const char *path,
                                                 char hex[2 * MXC_XLA_DIGEST_BYTES + 1],
                                                 struct mxc_err *err);
/* Adds what compiled code may depend on of this machine's processor. */
void mxc_xla_cache_add_cpu(struct mxc_blake2b *state);
/* The same of a processor that a file like /proc/cpuinfo describes. */
void mxc_xla_cache_add_cpu_of(struct mxc_blake2b *state, const char *cpuinfo);
void mxc_xla_cache_hex(const uint8_t digest[MXC_XLA_DIGEST_BYTES],
                       char hex[2 * MXC_XLA_DIGEST_BYTES + 1]);

#endif
