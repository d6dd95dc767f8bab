/* Errors: formatting, context, and the table that maps a code to the outside world.
 * In: a code and printf arguments, some of which come from files and users. Out: one line of UTF-8
 * in the caller's struct, or only the code when there is none.
 * Invariant: a message holds no control character and no broken UTF-8, however it was cut, so it
 * can go to a terminal or into JSON. Adding context keeps code and position.
 * The table is the only place where exit statuses, HTTP statuses and API error types are chosen. */
#include "base/err.h"

#include "base/str.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Names out of files and what was cut at the end: one line of UTF-8 that a terminal can take. */
static void clean(char *message) {
    uint32_t cp;
    size_t n, length = strlen(message);
    for (char *p = message; (n = mxc_utf8_decode(p, length - (size_t)(p - message), &cp)); p += n)
        if (cp < 0x20 || (cp >= 0x7F && cp < 0xA0) || cp == UINT32_MAX)
            memset(p, cp == '\n' || cp == '\t' || cp == '\r' ? ' ' : '?', n);
}

static enum mxc_code set(struct mxc_err *err, enum mxc_code code, int64_t position, const char *fmt,
                         va_list ap) {
    if (err) {
        err->code = code;
        err->position = position;
        (void)vsnprintf(err->message, sizeof err->message, fmt, ap);
        clean(err->message);
    }
    return code;
}

enum mxc_code mxc_err_set(struct mxc_err *err, enum mxc_code code, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    set(err, code, -1, fmt, ap);
    va_end(ap);
    return code;
}

enum mxc_code mxc_err_at(struct mxc_err *err, enum mxc_code code, int64_t position, const char *fmt,
                         ...) {
    va_list ap;
    va_start(ap, fmt);
    set(err, code, position, fmt, ap);
    va_end(ap);
    return code;
}

enum mxc_code mxc_err_context(struct mxc_err *err, const char *fmt, ...) {
    if (!err)
        return MXC_E_INTERNAL;
    char head[sizeof err->message], tail[sizeof err->message];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(head, sizeof head, fmt, ap);
    va_end(ap);
    memcpy(tail, err->message, sizeof tail);
    tail[sizeof tail - 1] = 0;
    size_t n = strlen(head);
    if (n > sizeof head - 3)
        n = sizeof head - 3;
    memcpy(err->message, head, n);
    memcpy(err->message + n, ": ", 2);
    size_t left = sizeof err->message - n - 3, m = strlen(tail);
    memcpy(err->message + n + 2, tail, m < left ? m : left);
    err->message[n + 2 + (m < left ? m : left)] = 0;
    clean(err->message);
    return err->code;
}

enum mxc_code mxc_err_nomem(struct mxc_err *err) {
    return mxc_err_set(err, MXC_E_NOMEM, "out of memory");
}

#define INVALID "invalid_request_error"
static const struct mxc_code_info table[MXC_N_CODES] = {
    [MXC_OK] = {"ok", 0, 200, "", ""},
    [MXC_E_USAGE] = {"usage", 2, 400, INVALID, INVALID},
    [MXC_E_ARG] = {"argument", 2, 400, INVALID, INVALID},
    [MXC_E_NOMEM] = {"no_memory", 1, 503, "server_error", "overloaded_error"},
    [MXC_E_IO] = {"io", 1, 500, "server_error", "api_error"},
    [MXC_E_NOT_FOUND] = {"not_found", 1, 404, "not_found_error", "not_found_error"},
    [MXC_E_FORMAT] = {"format", 1, 400, INVALID, INVALID},
    [MXC_E_UNSUPPORTED] = {"unsupported", 1, 400, "not_supported_error", INVALID},
    [MXC_E_LIMIT] = {"limit", 1, 413, INVALID, "request_too_large"},
    [MXC_E_CONTEXT] = {"context", 1, 400, "exceed_context_size_error", INVALID},
    [MXC_E_TEMPLATE] = {"template", 1, 400, INVALID, INVALID},
    [MXC_E_NETWORK] = {"network", 1, 502, "server_error", "api_error"},
    [MXC_E_BUSY] = {"busy", 1, 503, "unavailable_error", "overloaded_error"},
    [MXC_E_CANCELLED] = {"cancelled", 1, 499, INVALID, INVALID},
    [MXC_E_NOT_WIRED] = {"not_wired", 1, 501, "not_supported_error", "api_error"},
    [MXC_E_BACKEND] = {"backend", 1, 500, "server_error", "api_error"},
    [MXC_E_INTERNAL] = {"internal", 1, 500, "server_error", "api_error"},
    [MXC_E_DEVICE_LOST] = {"device_lost", 1, 500, "server_error", "api_error"},
    [MXC_E_CONFIG] = {"invalid_config", 2, 500, "server_error", "api_error"},
};

const struct mxc_code_info *mxc_code_info(enum mxc_code code) {
    if ((unsigned)code >= MXC_N_CODES)
        code = MXC_E_INTERNAL;
    return &table[code];
}
