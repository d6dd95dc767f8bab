/* HTTP GET with the rules of the store: certificates are verified, plain http only to loopback (or
 * when allowed), redirects followed by hand so that a token stays with the host it was given to.
 * One handle per thread. */
#ifndef MXC_STORE_HTTP_H
#define MXC_STORE_HTTP_H

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mxc_http;

/* endpoint: "https://host[:port][/path]"; token: NULL for none; both are copied. The environment
 * gives MLXCEL_ALLOW_INSECURE_ENDPOINT and MLXCEL_EXTRA_CA_CERTS. MXC_E_ARG: not such an address,
 * or plain http where that is refused. */
enum mxc_code mxc_http_open(const char *endpoint, const char *token, struct mxc_http **http,
                            struct mxc_err *err) MXC_MUST;
void mxc_http_close(struct mxc_http *http);
/* Without a slash at the end. */
const char *mxc_http_endpoint(const struct mxc_http *http);

struct mxc_http_get {
    const char *url;
    uint64_t from; /* > 0 asks for the rest from this byte on */
    /* Once before the first byte of an answer 200 (start 0) or 206 (start == from). */
    bool (*begin)(uint64_t start, void *user);
    bool (*write)(const void *data, size_t length, void *user);
    bool (*tick)(void *user); /* now and then; false cancels. May be NULL */
    void *user;
};

struct mxc_http_reply {
    long status;     /* of the last answer, 0: none came */
    bool again;      /* a failure that may pass: worth another try */
    unsigned wait_s; /* the server's Retry-After, 0: none */
    char next[2048]; /* URL of the next page (Link: rel="next"), or "" */
};

/* MXC_OK: 200 or 206 and a whole body as announced. Otherwise err speaks of the host and the cause:
 * MXC_E_NOT_FOUND (401, 404), MXC_E_NETWORK, MXC_E_CANCELLED (tick), MXC_E_IO (begin or write
 * returned false: the caller knows why). reply is filled in every case. */
enum mxc_code mxc_http_get(struct mxc_http *http, const struct mxc_http_get *get,
                           struct mxc_http_reply *reply, struct mxc_err *err) MXC_MUST;
/* As get, into a buffer that is cleared first. */
enum mxc_code mxc_http_text(struct mxc_http *http, const char *url, bool (*tick)(void *user),
                            void *user, struct mxc_buf *text, struct mxc_http_reply *reply,
                            struct mxc_err *err) MXC_MUST;

#endif
