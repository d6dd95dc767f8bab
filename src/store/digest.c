/* Hashes of downloads through libcrypto: SHA-256, or SHA-1 in the form that names a git blob.
 * In: bytes in order, as they arrive; for git also the size, known beforehand. Out: lower-case hex.
 * A git blob hash covers "blob <bytes>\0" and the content, so the size is part of what is verified.
 * reset starts over when a transfer does. SHA-1 is used because hubs name small files by it, not as
 * a protection against forgery. */
#include "store/digest.h"

#include "base/mem.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

struct mxc_digest {
    EVP_MD_CTX *context;
    bool sha256;
    uint64_t bytes;
};

enum mxc_code mxc_digest_new(bool sha256, uint64_t bytes, struct mxc_digest **digest,
                             struct mxc_err *err) {
    struct mxc_digest *d = mxc_mem_zalloc(1, sizeof *d);
    if (!d)
        return mxc_err_nomem(err);
    d->sha256 = sha256;
    d->bytes = bytes;
    d->context = EVP_MD_CTX_new();
    if (!d->context || !mxc_digest_reset(d)) {
        mxc_digest_free(d);
        return mxc_err_set(err, MXC_E_INTERNAL, "libcrypto offers no %s",
                           sha256 ? "SHA-256" : "SHA-1");
    }
    *digest = d;
    return MXC_OK;
}

void mxc_digest_free(struct mxc_digest *digest) {
    if (digest)
        EVP_MD_CTX_free(digest->context);
    mxc_mem_free(digest);
}

bool mxc_digest_reset(struct mxc_digest *digest) {
    char head[32];
    if (!EVP_DigestInit_ex(digest->context, digest->sha256 ? EVP_sha256() : EVP_sha1(), NULL))
        return false;
    if (digest->sha256)
        return true;
    int n = snprintf(head, sizeof head, "blob %llu", (unsigned long long)digest->bytes);
    return n > 0 && EVP_DigestUpdate(digest->context, head, (size_t)n + 1);
}

bool mxc_digest_add(struct mxc_digest *digest, const void *data, size_t length) {
    return EVP_DigestUpdate(digest->context, data, length) == 1;
}

bool mxc_digest_hex(struct mxc_digest *digest, char hex[MXC_DIGEST_HEX]) {
    unsigned char raw[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    if (!EVP_DigestFinal_ex(digest->context, raw, &n) || n > (MXC_DIGEST_HEX - 1) / 2)
        return false;
    for (unsigned i = 0; i < n; i++)
        (void)snprintf(hex + (size_t)i * 2, 3, "%02x", raw[i]);
    return true;
}

bool mxc_digest_valid(const char *hex, bool sha256) {
    size_t n = sha256 ? 64 : 40;
    return strlen(hex) == n && strspn(hex, "0123456789abcdef") == n;
}
