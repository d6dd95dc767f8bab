/* Server: the HTTP front of a host (gen/host.h). Opens a listening socket at once, answers 503 on
 * what needs a model while it loads, and runs until closed.
 * Threads: HTTP threads (libmicrohttpd) parse, route and write; prep workers run handlers (JSON,
 * template, tokeniser); the host's loop emits token events into bounded queues; one watcher ends
 * connections whose client went away or whose deadline passed. See exchange.h for a request's life.
 * Nothing is printed: lines go to the sink of the options. */
#ifndef MXC_SERVER_SERVER_H
#define MXC_SERVER_SERVER_H

#include "gen/host.h"
#include "server/log.h"
#include "server/media.h"

#include <stdbool.h>

enum { MXC_SERVER_MAX_KEYS = 1024, MXC_SERVER_MAX_ORIGINS = 64, MXC_SERVER_MAX_DOMAINS = 256 };

struct mxc_server_options {
    const char *host;         /* address or name; a path that ends in ".sock": a unix socket */
    int port;                 /* 0: any free one */
    const char *prefix;       /* of every path, "/llm"; NULL, "": none */
    const char *tls_key_file; /* PEM; both or none */
    const char *tls_cert_file;
    const char *const *keys; /* API keys */
    size_t n_keys;
    const char *key_file;       /* one key a line, '#' starts a comment; read again by reload */
    bool no_key_needed;         /* may listen on an address that others reach without any key */
    const char *const *origins; /* CORS: origins allowed, "*" for all; none: no CORS headers */
    size_t n_origins;
    size_t max_body_bytes, max_header_bytes;
    size_t max_buffered_bytes; /* of all request bodies together */
    int max_json_depth;
    int header_ms, body_ms, write_ms, idle_ms; /* absolute deadlines; idle: between requests */
    int max_connections, http_threads, prep_threads;
    int max_waiting;         /* requests waiting for a prep worker */
    int max_per_key;         /* generations of one key at a time; 0: no cap */
    size_t max_stream_bytes; /* what a reader may lag behind before it is cut off */
    int ping_ms;             /* SSE comment while nothing else is sent; 0: none */
    bool no_metrics, no_slots;
    bool reasoning_inline;          /* thoughts stay in the answer, marks included */
    const char *state_dir;          /* where responses are stored; NULL: they are not */
    uint64_t max_stored_bytes;      /* of all of them */
    const char *cache_dir;          /* state folder of the prompt cache; NULL: none on disk */
    uint64_t max_cache_bytes;       /* of it */
    const char *slot_dir;           /* where slots are saved; NULL: they are not */
    uint64_t max_slot_bytes;        /* of all of them */
    struct mxc_media_options media; /* pictures that requests name; zeros: none may be */
    struct mxc_image_options image; /* limits and background of pictures; zeros: the default */
    mxc_log_line_fn *warn;          /* what the operator should know; NULL: nobody listens */
    void *warn_user;
    enum mxc_log_style log_style;
    mxc_log_line_fn *log; /* NULL: no access log */
    void *log_user;
};
/* 127.0.0.1:8080, no key, no CORS, and the limits that docs/server.md lists. */
void mxc_server_options_init(struct mxc_server_options *options);

struct mxc_server;
/* Borrows host, which must outlive the server, and copies the options. MXC_E_ARG: options that
 * contradict each other, or an open address without a key; MXC_E_IO: the address is taken, a file
 * cannot be read. Start the host's loading afterwards. */
enum mxc_code mxc_server_open(const struct mxc_server_options *options, struct mxc_host *host,
                              struct mxc_server **server, struct mxc_err *err) MXC_MUST;
/* "http://127.0.0.1:8080/llm", "unix:/run/x.sock". Borrowed. */
const char *mxc_server_url(const struct mxc_server *server);
bool mxc_server_needs_key(const struct mxc_server *server);
/* Reads the key file again; on failure the keys stay as they were. */
enum mxc_code mxc_server_reload(struct mxc_server *server, struct mxc_err *err) MXC_MUST;
/* Takes no new connections and requests (503, Connection: close) and waits until the running ones
 * have ended, at most timeout_ms. Returns how many are left. stop is polled; true ends the wait. */
int mxc_server_drain(struct mxc_server *server, int timeout_ms, bool (*stop)(void *user),
                     void *user);
/* Cancels what runs and closes everything. NULL is fine. */
void mxc_server_close(struct mxc_server *server);

#endif
