/* Running hash of a download: SHA-256, or the SHA-1 that git names a blob by. */
#ifndef MXC_STORE_DIGEST_H
#define MXC_STORE_DIGEST_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MXC_DIGEST_HEX = 65 };

struct mxc_digest;
/* sha256, or git's blob hash of bytes bytes. */
enum mxc_code mxc_digest_new(bool sha256, uint64_t bytes, struct mxc_digest **digest,
                             struct mxc_err *err) MXC_MUST;
void mxc_digest_free(struct mxc_digest *digest);
/* Back to the start. */
bool mxc_digest_reset(struct mxc_digest *digest);
bool mxc_digest_add(struct mxc_digest *digest, const void *data, size_t length);
/* Lower-case hexadecimal. Ends the digest; reset starts it anew. */
bool mxc_digest_hex(struct mxc_digest *digest, char hex[MXC_DIGEST_HEX]);
/* 64 (sha256) or 40 lower-case hexadecimal digits. */
bool mxc_digest_valid(const char *hex, bool sha256);

#endif
