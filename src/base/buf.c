/* Byte buffer: one block that doubles under a maximum.
 * In: bytes, text, printf arguments or code points. Out: a NUL-terminated text that the buffer owns
 * until take moves it out.
 * Invariants: length < capacity whenever there is a block, so the NUL always fits; after a failed
 * append nothing is appended. `full` tells a reached maximum from missing memory, which are
 * different errors. */
#include "base/buf.h"

#include "base/mem.h"
#include "base/str.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void mxc_buf_init(struct mxc_buf *buf, size_t max_bytes) {
    *buf = (struct mxc_buf){.max_bytes = max_bytes};
}

void mxc_buf_fini(struct mxc_buf *buf) {
    mxc_mem_free(buf->data);
    *buf = (struct mxc_buf){.max_bytes = buf->max_bytes};
}

void mxc_buf_clear(struct mxc_buf *buf) {
    buf->length = 0;
    buf->failed = buf->full = false;
    if (buf->data)
        buf->data[0] = 0;
}

static bool reserve(struct mxc_buf *buf, size_t extra) {
    size_t need;
    if (buf->failed)
        return false;
    if (!mxc_size_add(buf->length, extra, &need) || need > buf->max_bytes) {
        buf->failed = buf->full = true;
        return false;
    }
    if (buf->data && need < buf->capacity)
        return true;
    size_t capacity = buf->capacity ? buf->capacity : 64;
    while (capacity <= need)
        capacity *= 2;
    char *data = mxc_mem_realloc(buf->data, capacity, 1);
    if (!data) {
        buf->failed = true;
        return false;
    }
    buf->data = data;
    buf->capacity = capacity;
    return true;
}

bool mxc_buf_append(struct mxc_buf *buf, const void *bytes, size_t length) {
    if (!reserve(buf, length))
        return false;
    if (length)
        memcpy(buf->data + buf->length, bytes, length);
    buf->length += length;
    buf->data[buf->length] = 0;
    return true;
}

bool mxc_buf_puts(struct mxc_buf *buf, const char *text) {
    return mxc_buf_append(buf, text, strlen(text));
}

bool mxc_buf_putc(struct mxc_buf *buf, char c) {
    return mxc_buf_append(buf, &c, 1);
}

bool mxc_buf_printf(struct mxc_buf *buf, const char *fmt, ...) {
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    bool ok = n >= 0 && reserve(buf, (size_t)n);
    if (ok) {
        (void)vsnprintf(buf->data + buf->length, (size_t)n + 1, fmt, again);
        buf->length += (size_t)n;
    }
    va_end(again);
    va_end(ap);
    return ok;
}

bool mxc_buf_utf8(struct mxc_buf *buf, uint32_t cp) {
    char bytes[4];
    return mxc_buf_append(buf, bytes, mxc_utf8_encode(cp, bytes));
}

enum mxc_code mxc_buf_status(const struct mxc_buf *buf, struct mxc_err *err) {
    if (!buf->failed)
        return MXC_OK;
    if (buf->full)
        return mxc_err_set(err, MXC_E_LIMIT, "output is longer than %zu bytes", buf->max_bytes);
    return mxc_err_nomem(err);
}

char *mxc_buf_take(struct mxc_buf *buf) {
    char *data = buf->data ? buf->data : mxc_mem_dup("", 0);
    *buf = (struct mxc_buf){.max_bytes = buf->max_bytes};
    return data;
}

const char *mxc_buf_text(const struct mxc_buf *buf) {
    return buf->data ? buf->data : "";
}
