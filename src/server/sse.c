/* Framing of server-sent events, and JSON text. */
#include "server/sse.h"

#include <math.h>

void mxc_put_json_text(struct mxc_buf *out, struct mxc_str text) {
    size_t plain = 0;
    (void)mxc_buf_putc(out, '"');
    for (size_t i = 0; i < text.length; i++) {
        unsigned char c = (unsigned char)text.ptr[i];
        if (c >= 0x20 && c != '"' && c != '\\' && c != 0x7F)
            continue;
        (void)mxc_buf_append(out, text.ptr + plain, i - plain);
        plain = i + 1;
        if (c == '\n')
            (void)mxc_buf_puts(out, "\\n");
        else if (c == '"' || c == '\\')
            (void)mxc_buf_printf(out, "\\%c", c);
        else
            (void)mxc_buf_printf(out, "\\u%04x", c);
    }
    if (text.length > plain)
        (void)mxc_buf_append(out, text.ptr + plain, text.length - plain);
    (void)mxc_buf_putc(out, '"');
}

static int append(const char *bytes, size_t length, void *buf) {
    return mxc_buf_append(buf, bytes, length) ? 0 : -1;
}

void mxc_put_json(struct mxc_buf *out, const json_t *value) {
    if (!value || json_dump_callback(value, append, out, JSON_COMPACT | JSON_ENCODE_ANY))
        out->failed = true;
}

void mxc_put_number(struct mxc_buf *out, double value) {
    if (isfinite(value))
        (void)mxc_buf_printf(out, "%.9g", value);
    else
        (void)mxc_buf_puts(out, "null");
}

void mxc_sse_begin(struct mxc_buf *out, const char *name) {
    if (name)
        (void)mxc_buf_printf(out, "event: %s\n", name);
    (void)mxc_buf_puts(out, "data: ");
}

void mxc_sse_end(struct mxc_buf *out) {
    (void)mxc_buf_puts(out, "\n\n");
}
