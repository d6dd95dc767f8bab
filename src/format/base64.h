/* Base64 with the alphabet of RFC 4648, padded, without white space. */
#ifndef MXC_FORMAT_BASE64_H
#define MXC_FORMAT_BASE64_H

#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"

/* Decodes into out, which has room for text.length / 4 * 3 bytes. false: not base64. */
bool mxc_base64_into(struct mxc_str text, char *out, size_t *length);
/* The same into memory of its own (mxc_mem_free). MXC_E_FORMAT: not base64. */
enum mxc_code mxc_base64_decode(struct mxc_str text, char **out, size_t *length,
                                struct mxc_err *err) MXC_MUST;
/* Appends the base64 of bytes; the buffer tells whether it could. */
void mxc_base64_encode(const void *bytes, size_t length, struct mxc_buf *out);

#endif
