/* SSE and JSON text: appending to a buffer without a tree in between. */
#ifndef MXC_SERVER_SSE_H
#define MXC_SERVER_SSE_H

#include "base/buf.h"
#include "base/str.h"

#include <jansson.h>

/* The text as a JSON string, quotes included. Well-formed UTF-8 in, valid JSON out. */
void mxc_put_json_text(struct mxc_buf *out, struct mxc_str text);
/* A value, compact. */
void mxc_put_json(struct mxc_buf *out, const json_t *value);
/* A finite number: %.9g; others become null. */
void mxc_put_number(struct mxc_buf *out, double value);
/* Starts and ends an event; name NULL: no "event:" line. What stands between is one line. */
void mxc_sse_begin(struct mxc_buf *out, const char *name);
void mxc_sse_end(struct mxc_buf *out);

#endif
