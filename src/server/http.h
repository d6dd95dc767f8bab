/* HTTP: libmicrohttpd's daemon and the life of exchanges (exchange.h). Private to the server. */
#ifndef MXC_SERVER_HTTP_H
#define MXC_SERVER_HTTP_H

#include "server/internal.h"

#include <microhttpd.h>
#include <pthread.h>

/* One TCP or unix connection. */
struct mxc_conn {
    struct mxc_watched watched; /* first: notify gets its address */
    struct mxc_server *server;
    struct mxc_exchange *x; /* the request it is on, or NULL; under the watch's lock */
    char client[64];
};

/* Guarded by the mutex unless said otherwise. */
struct mxc_exchange_private {
    struct mxc_conn *conn;             /* HTTP thread */
    struct MHD_Connection *connection; /* NULL once the exchange is over for HTTP */
    atomic_int n_holders;
    pthread_mutex_t mutex;
    bool suspended, woken, ping_due;
    bool gone;       /* the client is away, or too slow, or the server closes */
    bool dispatched; /* the handler has been started */
    bool working;    /* it runs, or waits for a worker: the connection is kept for it */
    bool ready;      /* the reply is filled; then constant */
    const char *end; /* how it ended, for the log; static */

    /* the reply */
    int status;
    char type[96];
    char *text; /* owned */
    const void *bytes;
    size_t length;
    struct {
        char *name, *value;
    } headers[MXC_EXCHANGE_MAX_HEADERS];
    int n_headers;
    const struct mxc_source_ops *source;
    void *source_user;
    bool stream, source_gone; /* source_gone: its gone was called */

    /* HTTP thread only */
    bool early;        /* answered before the body was read */
    bool whole_queued; /* a reply that is no stream has been handed to libmicrohttpd */
    bool fault_kept;   /* early_fault is sent once the body is read */
    struct mxc_fault early_fault;
    bool is_event_stream, source_ended, ended;
    struct mxc_buf out;
    size_t out_sent;
    uint64_t final_ns; /* the last byte has to be written by then; 0: more is being made */
    uint64_t bytes_in, bytes_out, buffered, discarded;
};

struct mxc_exchange *mxc_exchange_new(struct mxc_server *server, struct mxc_conn *conn,
                                      struct MHD_Connection *connection);
/* The HTTP side is done with it: the source is released. */
void mxc_exchange_detach(struct mxc_exchange *x);
/* Cancels what works for it and wakes it. why: for the log, static. */
void mxc_exchange_gone(struct mxc_exchange *x, const char *why);

enum mxc_code mxc_front_open(struct mxc_server *server, struct mxc_front **http,
                             struct mxc_err *err) MXC_MUST;
/* Accepts no more connections. */
void mxc_front_quiesce(struct mxc_front *http);
/* Ends every connection. */
void mxc_front_close(struct mxc_front *http);
const char *mxc_front_url(const struct mxc_front *http);

#endif
