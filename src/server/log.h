/* Access log: one line per request, as text or as a JSON object. Lines hold no secrets: no query
 * string, no headers, no bodies; a key shows as its number. */
#ifndef MXC_SERVER_LOG_H
#define MXC_SERVER_LOG_H

#include "base/buf.h"

enum mxc_log_style { MXC_LOG_TEXT, MXC_LOG_JSON };
/* line has no newline. Called from several threads at the same time. */
typedef void mxc_log_line_fn(const char *line, void *user);

struct mxc_access {
    const char *time; /* ISO 8601, UTC */
    const char *id, *method, *path, *client, *model;
    int status, key; /* key -1: none */
    double ms;
    uint64_t bytes_in, bytes_out;
    int64_t n_prompt, n_cached, n_generated; /* -1: no generation */
    const char *end;                         /* "ok", "gone", "timeout", "slow reader", "error" */
};
/* Appends the line. Control characters and bytes that are not UTF-8 are shown as '?'. */
bool mxc_access_format(const struct mxc_access *access, enum mxc_log_style style,
                       struct mxc_buf *out);

#endif
