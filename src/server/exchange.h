/* Exchange: one HTTP request and its reply, as route handlers see it.
 *
 * Life: the HTTP thread reads headers and body and checks size, key and route; the exchange is then
 * suspended and its handler runs on a prep worker (INLINE routes: on the HTTP thread). The handler
 * fills the reply (one of mxc_reply_*), returns a fault, or leaves the exchange with a source:
 *   - settle: the reply comes later; after a wake the HTTP thread asks settle for it;
 *   - read:   the reply is a stream; the HTTP thread reads bytes and sleeps until the next wake.
 * When the client goes away, a deadline passes or the server closes, source->gone is called once,
 * from any thread; source->release once, last.
 *
 * An exchange lives while somebody holds it: the HTTP side, a worker, a source that still runs.
 * Thread rules: fields up to "private" are constant while a handler runs. mxc_exchange_wake, hold
 * and drop from any thread, all else from where the handler, settle or read runs. */
#ifndef MXC_SERVER_EXCHANGE_H
#define MXC_SERVER_EXCHANGE_H

#include "base/buf.h"
#include "server/fault.h"

#include <jansson.h>
#include <stdatomic.h>

struct mxc_server;
struct mxc_route;
struct mxc_exchange;

enum mxc_source_state {
    MXC_SOURCE_WAIT, /* nothing now; a wake will come */
    MXC_SOURCE_MORE, /* bytes were appended */
    MXC_SOURCE_LAST, /* bytes were appended, and all there is to come is known */
    MXC_SOURCE_END,  /* the body is complete */
    MXC_SOURCE_CUT   /* the connection is to be ended without a proper end */
};
struct mxc_source_ops {
    /* true: the reply is filled. NULL for streams. */
    bool (*settle)(void *user, struct mxc_exchange *x);
    /* Appends at most about max_bytes. NULL for replies that are whole. */
    enum mxc_source_state (*read)(void *user, struct mxc_buf *out, size_t max_bytes);
    void (*gone)(void *user);
    void (*release)(void *user);
};

enum { MXC_EXCHANGE_ID = 40, MXC_EXCHANGE_MAX_HEADERS = 8 };

struct mxc_exchange {
    struct mxc_server *server;
    const struct mxc_route *route;
    const char *method;       /* "GET" for HEAD too */
    const char *path;         /* without the prefix, percent-decoded, no query */
    const char *tail;         /* what stands where the route has "*"; "" */
    char id[MXC_EXCHANGE_ID]; /* request id, the client's own when it is a plain word */
    int key;                  /* number of the API key, -1: none */
    struct mxc_buf body;
    json_t *json; /* in handlers of JSON routes: an object. NULL on others */
    uint64_t start_ns;
    /* for the access log; -1: none */
    int64_t n_prompt, n_cached, n_generated;
    char model[128];

    struct mxc_exchange_private *private;
};

/* A header of the request, or NULL; a query argument, or NULL. Borrowed. Inside handlers only. */
const char *mxc_exchange_header(const struct mxc_exchange *x, const char *name);
const char *mxc_exchange_query(const struct mxc_exchange *x, const char *name);
bool mxc_exchange_is_gone(const struct mxc_exchange *x);
void mxc_exchange_hold(struct mxc_exchange *x);
void mxc_exchange_drop(struct mxc_exchange *x);
/* The handler has read what it needs: of the JSON only this member stays until the exchange ends,
 * NULL: nothing. A tree takes many times its bytes, and the request may wait long. */
void mxc_exchange_keep_json(struct mxc_exchange *x, const char *member);
/* There is something for settle or read. */
void mxc_exchange_wake(struct mxc_exchange *x);

/* ---- the reply, once. After a failed allocation it is a plain 503. */

/* Another header of the reply; name and value are copied. At most MXC_EXCHANGE_MAX_HEADERS. */
void mxc_reply_header(struct mxc_exchange *x, const char *name, const char *value);
void mxc_reply_json(struct mxc_exchange *x, int status, json_t *body); /* takes body */
void mxc_reply_text(struct mxc_exchange *x, int status, const char *type, char *text,
                    size_t length); /* takes text (mxc_mem) */
void mxc_reply_static(struct mxc_exchange *x, int status, const char *type, const void *bytes,
                      size_t length); /* bytes outlive the server */
void mxc_reply_fault(struct mxc_exchange *x, const struct mxc_fault *fault);
/* The reply comes from the source. type NULL: settle will fill it; else a stream of that type. */
void mxc_reply_source(struct mxc_exchange *x, const char *type, const struct mxc_source_ops *ops,
                      void *user);

#endif
