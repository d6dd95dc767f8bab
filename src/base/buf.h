/* Byte buffer that grows up to a maximum. Failure is sticky: after one failed append every later
 * append fails too, so a caller may append many times and check once. Always NUL-terminated. */
#ifndef MXC_BASE_BUF_H
#define MXC_BASE_BUF_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

struct mxc_buf {
    char *data; /* NULL until the first append; NUL-terminated afterwards */
    size_t length, capacity, max_bytes;
    bool failed, full; /* full: the maximum is why it failed */
};

/* max_bytes is the largest length allowed and must be > 0. */
void mxc_buf_init(struct mxc_buf *buf, size_t max_bytes);
void mxc_buf_fini(struct mxc_buf *buf);
void mxc_buf_clear(struct mxc_buf *buf); /* length 0, not failed, memory kept */
bool mxc_buf_append(struct mxc_buf *buf, const void *bytes, size_t length);
bool mxc_buf_puts(struct mxc_buf *buf, const char *text);
bool mxc_buf_putc(struct mxc_buf *buf, char c);
bool mxc_buf_printf(struct mxc_buf *buf, const char *fmt, ...) MXC_PRINTF(2, 3);
/* Encodes one code point as UTF-8 (values that are none become U+FFFD). */
bool mxc_buf_utf8(struct mxc_buf *buf, uint32_t cp);
/* MXC_OK, or MXC_E_LIMIT / MXC_E_NOMEM when an append failed. */
enum mxc_code mxc_buf_status(const struct mxc_buf *buf, struct mxc_err *err) MXC_MUST;
/* The text (never NULL unless allocation fails), owned by the caller; the buffer is empty then. */
char *mxc_buf_take(struct mxc_buf *buf);
/* The text, "" when empty; borrowed until the next append. */
const char *mxc_buf_text(const struct mxc_buf *buf);

#endif
