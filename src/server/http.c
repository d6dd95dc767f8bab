/* libmicrohttpd's daemon and its callbacks: connection started, request headers, body, reply,
 * request completed, connection closed.
 * In: a listening socket. Out: exchanges that run through handlers, and their replies.
 * Deadlines of a connection: header (from accept), body (from the header), none while the handler
 * and the engine work, write (from the reply, and for every piece of a stream), idle (to the next
 * request's header). Each is absolute: bytes that trickle in or out do not move it.
 * A request that is refused before its body is read is answered at once when the body may be large,
 * and after the body, with the connection kept, when it is small. */
#define _GNU_SOURCE
#include "server/http.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "server/json_depth.h"
#include "server/listen.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

enum {
    SMALL_BODY = 1 << 20,
    SEND_BUFFER = 128 << 10,
    BLOCK = 16 << 10,
    POOL_BYTES = 128 << 10,
    MAX_PEM = 1 << 20,
    MAX_JSON_VALUES = 2000000
};

struct mxc_front {
    struct mxc_server *server;
    struct mxc_listener listener;
    struct MHD_Daemon *daemon;
    char *key, *cert; /* PEM */
    char url[512];
    atomic_bool closing;
    bool quiesced;
};

static uint64_t after_ms(int ms) {
    return mxc_clock_ns() + (uint64_t)ms * 1000000;
}

static void set_deadline(struct mxc_exchange *x, int ms) {
    atomic_store(&x->private->conn->watched.deadline_ns, ms ? after_ms(ms) : 0);
}

/* ---- connections */

/* On the watcher's thread, with the watch locked. */
static void on_watch(struct mxc_watched *entry, enum mxc_watch_event event) {
    struct mxc_conn *conn = (struct mxc_conn *)entry;
    struct mxc_limits *limits = &conn->server->limits;
    struct mxc_exchange *x = conn->x;
    if (event == MXC_WATCH_LATE)
        atomic_fetch_add(&limits->n_timeouts, 1);
    if (!x)
        return; /* libmicrohttpd finds out */
    struct mxc_exchange_private *p = x->private;
    if (event == MXC_WATCH_ALARM) {
        pthread_mutex_lock(&p->mutex);
        p->ping_due = true;
        pthread_mutex_unlock(&p->mutex);
        mxc_exchange_wake(x);
        return;
    }
    if (event == MXC_WATCH_LATE) {
        mxc_exchange_gone(x, "timeout");
        return;
    }
    pthread_mutex_lock(&p->mutex);
    bool cut = p->dispatched && !(p->ready && !p->stream);
    pthread_mutex_unlock(&p->mutex);
    if (cut) { /* a half-closed connection counts as closed while an answer is being made */
        (void)shutdown(entry->fd, SHUT_RDWR);
        mxc_exchange_gone(x, "gone");
    }
}

static void on_connection(void *cls, struct MHD_Connection *connection, void **context,
                          enum MHD_ConnectionNotificationCode event) {
    struct mxc_front *http = cls;
    struct mxc_server *server = http->server;
    struct mxc_conn *conn = *context;
    if (event == MHD_CONNECTION_NOTIFY_CLOSED) {
        if (!conn)
            return;
        mxc_watch_remove(server->watch, &conn->watched);
        mxc_mem_free(conn);
        *context = NULL;
        atomic_fetch_sub(&server->limits.n_connections, 1);
        return;
    }
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    conn = info ? mxc_mem_zalloc(1, sizeof *conn) : NULL;
    if (!conn)
        return; /* the first request finds no context and is refused */
    conn->server = server;
    conn->watched.fd = info->connect_fd;
    conn->watched.notify = on_watch;
    atomic_store(&conn->watched.deadline_ns, after_ms(server->options.header_ms));
    mxc_listen_peer(info->connect_fd, conn->client, sizeof conn->client);
    if (mxc_watch_add(server->watch, &conn->watched)) {
        mxc_mem_free(conn);
        return;
    }
    atomic_fetch_add(&server->limits.n_connections, 1);
    *context = conn;
}

/* ---- replies */

static void free_hold(void *cls) {
    mxc_exchange_drop(cls);
}

/* Whether the request's origin may read replies; *value: what the header says. */
static bool origin_allowed(const struct mxc_exchange *x, const char **value) {
    const struct mxc_server_options *o = &x->server->options;
    const char *origin = mxc_exchange_header(x, "Origin");
    if (!origin)
        return false;
    for (size_t i = 0; i < o->n_origins; i++) {
        if (!strcmp(o->origins[i], "*")) {
            *value = "*";
            return true;
        }
        if (!strcasecmp(o->origins[i], origin)) {
            *value = origin;
            return true;
        }
    }
    return false;
}

static void add_headers(struct mxc_exchange *x, struct MHD_Response *response) {
    struct mxc_exchange_private *p = x->private;
    const char *origin;
    if (p->type[0])
        (void)MHD_add_response_header(response, "Content-Type", p->type);
    (void)MHD_add_response_header(response, "X-Request-Id", x->id);
    (void)MHD_add_response_header(response, "Server", "mlxcel");
    (void)MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    if (p->is_event_stream) {
        (void)MHD_add_response_header(response, "Cache-Control", "no-cache");
        (void)MHD_add_response_header(response, "X-Accel-Buffering", "no");
    }
    if (origin_allowed(x, &origin)) {
        (void)MHD_add_response_header(response, "Access-Control-Allow-Origin", origin);
        (void)MHD_add_response_header(response, "Access-Control-Expose-Headers",
                                      "X-Request-Id, Retry-After");
        if (strcmp(origin, "*") != 0)
            (void)MHD_add_response_header(response, "Vary", "Origin");
    }
    for (int i = 0; i < p->n_headers; i++)
        (void)MHD_add_response_header(response, p->headers[i].name, p->headers[i].value);
    if (atomic_load(&x->server->limits.draining))
        (void)MHD_add_response_header(response, "Connection", "close");
}

/* What the source has, into out. */
static enum mxc_source_state read_source(struct mxc_exchange *x) {
    struct mxc_exchange_private *p = x->private;
    mxc_buf_clear(&p->out);
    p->out_sent = 0;
    enum mxc_source_state state = p->source->read(p->source_user, &p->out, BLOCK);
    if (p->out.failed)
        return MXC_SOURCE_CUT;
    if (state == MXC_SOURCE_END)
        p->ended = true;
    if ((state == MXC_SOURCE_LAST || state == MXC_SOURCE_END) && !p->final_ns)
        p->final_ns = after_ms(x->server->options.write_ms);
    return state;
}

/* Nothing to send: waits for a wake. false: one has come meanwhile. */
static bool wait_for_wake(struct mxc_exchange *x) {
    struct mxc_exchange_private *p = x->private;
    pthread_mutex_lock(&p->mutex);
    bool wait = !p->woken && !p->gone && !p->ping_due;
    if (wait) {
        set_deadline(x, 0);
        int ping = p->is_event_stream ? x->server->options.ping_ms : 0;
        atomic_store(&p->conn->watched.alarm_ns, ping ? after_ms(ping) : 0);
        p->suspended = true;
        MHD_suspend_connection(p->connection);
    }
    pthread_mutex_unlock(&p->mutex);
    return wait;
}

/* Takes the flags that a read looks at. false: the client is away. */
static bool take_flags(struct mxc_exchange_private *p, bool *ping) {
    pthread_mutex_lock(&p->mutex);
    p->woken = false;
    *ping = p->ping_due;
    p->ping_due = false;
    bool here = !p->gone;
    pthread_mutex_unlock(&p->mutex);
    return here;
}

static ssize_t on_read(void *cls, uint64_t position, char *to, size_t max) {
    struct mxc_exchange *x = cls;
    struct mxc_exchange_private *p = x->private;
    bool ping;
    (void)position;
    while (p->out_sent == p->out.length) {
        if (p->ended)
            return MHD_CONTENT_READER_END_OF_STREAM;
        if (!take_flags(p, &ping))
            return MHD_CONTENT_READER_END_WITH_ERROR;
        enum mxc_source_state state = read_source(x);
        if (state == MXC_SOURCE_CUT) {
            atomic_fetch_add(&x->server->limits.n_cut, 1);
            mxc_exchange_gone(x, "slow reader");
            return MHD_CONTENT_READER_END_WITH_ERROR;
        }
        if (p->out.length || state != MXC_SOURCE_WAIT)
            continue;
        if (ping)
            (void)mxc_buf_puts(&p->out, ": ping\n\n");
        else if (wait_for_wake(x))
            return 0;
    }
    size_t n = p->out.length - p->out_sent;
    n = n < max ? n : max;
    memcpy(to, p->out.data + p->out_sent, n);
    p->out_sent += n;
    p->bytes_out += n;
    uint64_t deadline = after_ms(x->server->options.write_ms);
    if (p->final_ns && p->final_ns < deadline)
        deadline = p->final_ns;
    atomic_store(&p->conn->watched.deadline_ns, deadline);
    atomic_store(&p->conn->watched.alarm_ns, 0);
    return (ssize_t)n;
}

/* Hands the filled reply to libmicrohttpd. */
static enum MHD_Result queue_reply(struct mxc_exchange *x) {
    struct mxc_exchange_private *p = x->private;
    struct MHD_Response *response;
    p->is_event_stream = p->stream && !strncmp(p->type, "text/event-stream", 17);
    mxc_exchange_hold(x); /* for the response, until it is destroyed */
    if (p->stream)
        response =
            MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK, on_read, x, free_hold);
    else
        response = MHD_create_response_from_buffer_with_free_callback_cls(
            p->length, (void *)(uintptr_t)p->bytes, free_hold, x);
    if (!response) {
        mxc_exchange_drop(x);
        return MHD_NO;
    }
    add_headers(x, response);
    p->whole_queued = !p->stream;
    if (!p->stream)
        p->bytes_out = p->length;
    set_deadline(x, x->server->options.write_ms);
    enum MHD_Result queued = MHD_queue_response(p->connection, (unsigned)p->status, response);
    MHD_destroy_response(response);
    return queued;
}

/* The client is away and nothing was sent: whatever is queued, nobody reads it. */
static enum MHD_Result queue_nothing(struct mxc_exchange *x) {
    struct MHD_Response *response =
        MHD_create_response_from_buffer(0, (void *)(uintptr_t) "", MHD_RESPMEM_PERSISTENT);
    if (!response)
        return MHD_NO;
    x->private->status = 499;
    (void)MHD_add_response_header(response, "Connection", "close");
    enum MHD_Result queued = MHD_queue_response(x->private->connection, 503, response);
    MHD_destroy_response(response);
    return queued;
}

/* ---- handlers */

static enum mxc_code parse_body(struct mxc_exchange *x, struct mxc_fault *fault) {
    const char *text = mxc_buf_text(&x->body);
    size_t length = x->body.length;
    struct mxc_err err;
    if (length >= 3 && !memcmp(text, "\xEF\xBB\xBF", 3)) {
        text += 3;
        length -= 3;
    }
    if (!length)
        return mxc_fault_set(fault, MXC_E_ARG, NULL, "the body is empty; a JSON object is wanted");
    int max_depth = x->server->options.max_json_depth;
    enum mxc_json_shape shape = mxc_json_shape(text, length, max_depth, MAX_JSON_VALUES);
    if (shape == MXC_JSON_TOO_DEEP)
        return mxc_fault_set(fault, MXC_E_ARG, NULL, "the body is nested deeper than %d levels",
                             max_depth);
    if (shape == MXC_JSON_TOO_MANY)
        return mxc_fault_set(fault, MXC_E_ARG, NULL, "the body has more than %d values",
                             MAX_JSON_VALUES);
    if (mxc_json_parse(text, length, "body", &x->json, &err))
        return mxc_fault_set(fault, err.code == MXC_E_NOMEM ? MXC_E_NOMEM : MXC_E_ARG, NULL, "%s",
                             err.message);
    if (!json_is_object(x->json)) {
        json_decref(x->json);
        x->json = NULL;
        return mxc_fault_set(fault, MXC_E_ARG, NULL, "the body is not a JSON object");
    }
    return MXC_OK;
}

static void forget_body(struct mxc_exchange *x) {
    mxc_buf_fini(&x->body);
    mxc_buf_init(&x->body, 1);
    mxc_limits_unbuffer(&x->server->limits, x->private->buffered);
    x->private->buffered = 0;
}

static void run_handler(struct mxc_exchange *x) {
    struct mxc_fault fault;
    enum mxc_code code = MXC_OK;
    if (x->route->flags & MXC_ROUTE_JSON) {
        code = parse_body(x, &fault);
        forget_body(x); /* the text is not needed any more */
    }
    if (!code)
        code = x->route->fn(x, &fault);
    if (code)
        mxc_reply_fault(x, &fault);
}

static void on_worker(void *arg) {
    struct mxc_exchange *x = arg;
    if (!mxc_exchange_is_gone(x))
        run_handler(x);
    pthread_mutex_lock(&x->private->mutex);
    x->private->working = false;
    pthread_mutex_unlock(&x->private->mutex);
    mxc_exchange_wake(x);
    mxc_exchange_drop(x);
}

/* The whole request is here: starts the handler. */
static void dispatch(struct mxc_exchange *x) {
    struct mxc_exchange_private *p = x->private;
    struct mxc_fault fault;
    mxc_watch_lock(x->server->watch);
    pthread_mutex_lock(&p->mutex);
    p->dispatched = true;
    bool is_inline = x->route->flags & MXC_ROUTE_INLINE;
    p->working = !is_inline;
    bool hung_up = p->conn->watched.hung_up && !is_inline;
    pthread_mutex_unlock(&p->mutex);
    mxc_watch_unlock(x->server->watch);
    set_deadline(x, 0);
    if (is_inline) {
        run_handler(x);
        return;
    }
    if (hung_up)
        mxc_exchange_gone(x, "gone");
    mxc_exchange_hold(x);
    if (mxc_work_put(x->server->work, on_worker, x))
        return;
    (void)mxc_fault_set(&fault, MXC_E_BUSY, NULL, "too many requests wait; try again");
    fault.retry_after = 1;
    mxc_reply_fault(x, &fault);
    pthread_mutex_lock(&p->mutex);
    p->working = false;
    pthread_mutex_unlock(&p->mutex);
    mxc_exchange_drop(x);
}

/* After the body: starts the handler, waits for it, sends what it made. */
static enum MHD_Result go_on(struct mxc_exchange *x) {
    struct mxc_exchange_private *p = x->private;
    if (p->fault_kept && !p->ready)
        mxc_reply_fault(x, &p->early_fault);
    if (!p->dispatched && !p->ready)
        dispatch(x);
    for (;;) {
        pthread_mutex_lock(&p->mutex);
        p->woken = false;
        bool ready = p->ready, working = p->working, gone = p->gone;
        const struct mxc_source_ops *source = p->source;
        pthread_mutex_unlock(&p->mutex);
        if (!ready && !working && !gone && source && source->settle)
            ready = source->settle(p->source_user, x);
        if (gone && !working)
            return queue_nothing(x);
        if (ready && !working)
            return queue_reply(x);
        pthread_mutex_lock(&p->mutex);
        bool wait = !p->woken;
        if (wait) {
            p->suspended = true;
            MHD_suspend_connection(p->connection);
        }
        pthread_mutex_unlock(&p->mutex);
        if (wait)
            return MHD_YES;
    }
}

/* ---- requests */

/* Path without the prefix, "/" for the bare prefix; NULL: not below it. */
static const char *below_prefix(const struct mxc_server *server, const char *path) {
    const char *prefix = server->options.prefix;
    size_t n = prefix ? strlen(prefix) : 0;
    if (!n)
        return path;
    if (strncmp(path, prefix, n) != 0 || (path[n] && path[n] != '/'))
        return NULL;
    return path[n] ? path + n : "/";
}

static enum mxc_code check_key(struct mxc_exchange *x, struct mxc_fault *fault) {
    if (!mxc_auth_count(x->server->auth))
        return MXC_OK;
    struct mxc_str key = mxc_auth_bearer(mxc_exchange_header(x, "Authorization"));
    if (!key.length)
        key = mxc_str_of(mxc_exchange_header(x, "X-Api-Key"));
    x->key = key.length ? mxc_auth_check(x->server->auth, key) : -1;
    if (x->key >= 0 || (x->route->flags & MXC_ROUTE_PUBLIC))
        return MXC_OK;
    return mxc_fault_status(fault, MXC_E_ARG, 401,
                            key.length ? "the API key is not valid"
                                       : "an API key is needed: send "
                                         "\"Authorization: Bearer KEY\" or "
                                         "\"X-Api-Key: KEY\"");
}

static bool is_json_type(const char *type) {
    if (!type)
        return false;
    size_t n = strcspn(type, "; \t");
    return (n == 16 && !strncasecmp(type, "application/json", 16)) ||
           (n > 17 && !strncasecmp(type, "application/", 12) &&
            !strncasecmp(type + n - 5, "+json", 5));
}

/* Declared length of the body, 0: none, UINT64_MAX: not known before it was read. */
static uint64_t declared_length(const struct mxc_exchange *x) {
    const char *coding = mxc_exchange_header(x, "Transfer-Encoding");
    const char *length = mxc_exchange_header(x, "Content-Length");
    return coding ? UINT64_MAX : length ? strtoull(length, NULL, 10) : 0;
}

static enum MHD_Result add_header_bytes(void *cls, enum MHD_ValueKind kind, const char *name,
                                        const char *value) {
    size_t *bytes = cls;
    (void)kind;
    *bytes += strlen(name) + (value ? strlen(value) : 0) + 4;
    return MHD_YES;
}

/* libmicrohttpd has room for more than the limit, so that the refusal is ours, as JSON. */
static enum mxc_code check_headers(const struct mxc_exchange *x, struct mxc_fault *fault) {
    size_t bytes = 0, limit = x->server->options.max_header_bytes;
    if (mxc_exchange_header(x, "Transfer-Encoding") && mxc_exchange_header(x, "Content-Length"))
        return mxc_fault_set(fault, MXC_E_ARG, NULL,
                             "the body's length is given twice, by Content-Length and "
                             "Transfer-Encoding");
    (void)MHD_get_connection_values(x->private->connection, MHD_HEADER_KIND, add_header_bytes,
                                    &bytes);
    (void)MHD_get_connection_values(x->private->connection, MHD_GET_ARGUMENT_KIND, add_header_bytes,
                                    &bytes);
    if (bytes <= limit)
        return MXC_OK;
    return mxc_fault_status(fault, MXC_E_LIMIT, 431, "the headers have %zu bytes; the limit is %zu",
                            bytes, limit);
}

static const char *known_method(const char *method) {
    static const char *const known[] = {"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(method, known[i]))
            return known[i];
    return "?";
}

/* A body's type. No type will do, but not from a page of another origin: with the type of JSON its
 * browser asks first (preflight), with none it just posts. */
static enum mxc_code check_type(const struct mxc_exchange *x, const char *method,
                                struct mxc_fault *fault) {
    const char *type = mxc_exchange_header(x, "Content-Type"), *origin;
    bool foreign =
        !strcmp(method, "POST") && mxc_exchange_header(x, "Origin") && !origin_allowed(x, &origin);
    bool wanted = foreign || (type && (x->route->flags & MXC_ROUTE_JSON));
    if (!wanted || is_json_type(type))
        return MXC_OK;
    return mxc_fault_status(fault, MXC_E_ARG, 415, "Content-Type: %.80s is not application/json",
                            type ? type : "nothing");
}

/* Everything that the headers tell. */
static enum mxc_code check_request(struct mxc_exchange *x, const char *method,
                                   struct mxc_fault *fault) {
    char allow[64], tail[256];
    const struct mxc_server_options *o = &x->server->options;
    x->route = x->path[0] ? mxc_route_find(method, x->path, allow, tail) : NULL;
    if (!x->route && x->path[0] && allow[0]) {
        mxc_reply_header(x, "Allow", allow);
        return mxc_fault_status(fault, MXC_E_ARG, 405, "%s %s: the method is not one of %s", method,
                                x->path, allow);
    }
    if (!x->route)
        return mxc_fault_status(fault, MXC_E_NOT_FOUND, 404, "%s: there is no such route",
                                x->path[0] ? x->path : "the path");
    if (tail[0] && !(x->tail = mxc_mem_strdup(tail))) {
        x->tail = "";
        return mxc_fault_set(fault, MXC_E_NOMEM, NULL, "out of memory");
    }
    enum mxc_code code = check_headers(x, fault);
    if (!code)
        code = check_key(x, fault);
    if (code)
        return code;
    if (atomic_load(&x->server->limits.draining) && !(x->route->flags & MXC_ROUTE_INLINE)) {
        (void)mxc_fault_set(fault, MXC_E_BUSY, NULL, "the server is shutting down");
        fault->retry_after = 5;
        return MXC_E_BUSY;
    }
    uint64_t length = declared_length(x);
    if (length != UINT64_MAX && length > o->max_body_bytes)
        return mxc_fault_status(fault, MXC_E_LIMIT, 413,
                                "the body has %llu bytes; the limit is %zu",
                                (unsigned long long)length, o->max_body_bytes);
    return check_type(x, method, fault);
}

/* A CORS preflight, or a plain OPTIONS. */
static void reply_options(struct mxc_exchange *x) {
    char allow[64], tail[256];
    const char *origin;
    struct mxc_fault fault;
    (void)mxc_route_find("OPTIONS", x->path, allow, tail);
    if (!allow[0]) {
        (void)mxc_fault_status(&fault, MXC_E_NOT_FOUND, 404, "%s: there is no such route", x->path);
        mxc_reply_fault(x, &fault);
        return;
    }
    mxc_reply_header(x, "Allow", allow);
    if (mxc_exchange_header(x, "Access-Control-Request-Method") && origin_allowed(x, &origin)) {
        mxc_reply_header(x, "Access-Control-Allow-Methods", allow);
        mxc_reply_header(x, "Access-Control-Allow-Headers",
                         "Authorization, Content-Type, X-Api-Key, X-Request-Id, "
                         "Anthropic-Version, Anthropic-Beta, OpenAI-Organization, OpenAI-Project");
        mxc_reply_header(x, "Access-Control-Max-Age", "600");
    }
    mxc_reply_static(x, 204, "", "", 0);
}

/* GET of the prefix without a slash behind it: addresses in the page are relative to the slash. */
static bool reply_bare_prefix(struct mxc_exchange *x, const char *url, const char *method) {
    const char *prefix = x->server->options.prefix;
    char to[512];
    if (!prefix || !*prefix || strcmp(url, prefix) != 0 ||
        (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0))
        return false;
    const char *slash = strrchr(prefix, '/');
    int n = snprintf(to, sizeof to, "./%s/", slash ? slash + 1 : prefix);
    if (n < 0 || (size_t)n >= sizeof to)
        return false;
    x->method = "GET";
    mxc_reply_header(x, "Location", to);
    mxc_reply_static(x, 308, "", "", 0);
    return true;
}

static enum MHD_Result on_headers(struct mxc_front *http, struct mxc_exchange *x, const char *url,
                                  const char *method) {
    struct mxc_exchange_private *p = x->private;
    const char *path = below_prefix(http->server, url);
    char *copy = path ? mxc_mem_strdup(path) : NULL;
    if (path && !copy)
        return MHD_NO;
    x->path = copy ? copy : "";
    set_deadline(x, http->server->options.body_ms);
    if (reply_bare_prefix(x, url, method))
        return MHD_YES;
    if (!strcmp(method, "OPTIONS")) {
        x->method = "OPTIONS";
        reply_options(x);
        return MHD_YES; /* sent after the body, should there be one */
    }
    enum mxc_code code = check_request(x, method, &p->early_fault);
    x->method = known_method(method);
    if (!code)
        return MHD_YES;
    p->fault_kept = true;
    uint64_t length = declared_length(x);
    if (length <= SMALL_BODY && !mxc_exchange_header(x, "Expect"))
        return MHD_YES;
    p->early = true;
    mxc_reply_header(x, "Connection", "close");
    mxc_reply_fault(x, &p->early_fault);
    return queue_reply(x);
}

/* A piece of the body. */
static enum MHD_Result on_body(struct mxc_exchange *x, const char *data, size_t *size) {
    struct mxc_exchange_private *p = x->private;
    const struct mxc_server_options *o = &x->server->options;
    size_t n = *size;
    *size = 0;
    p->bytes_in += n;
    if (p->ready || p->fault_kept) {
        p->discarded += n;
        return p->discarded > o->max_body_bytes + SMALL_BODY ? MHD_NO : MHD_YES;
    }
    if (n > o->max_body_bytes - x->body.length) {
        (void)mxc_fault_status(&p->early_fault, MXC_E_LIMIT, 413,
                               "the body has more than %zu bytes", o->max_body_bytes);
        p->fault_kept = true;
    } else if (!mxc_limits_buffer(&x->server->limits, n)) {
        (void)mxc_fault_set(&p->early_fault, MXC_E_BUSY, NULL,
                            "the bodies of all requests take %zu bytes; try again",
                            o->max_buffered_bytes);
        p->early_fault.retry_after = 1;
        p->fault_kept = true;
    } else {
        p->buffered += n;
        if (!mxc_buf_append(&x->body, data, n)) {
            (void)mxc_fault_set(&p->early_fault, MXC_E_NOMEM, NULL, "out of memory");
            p->fault_kept = true;
        }
    }
    if (p->fault_kept)
        forget_body(x);
    return MHD_YES;
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *size, void **context) {
    struct mxc_front *http = cls;
    struct mxc_exchange *x = *context;
    (void)version;
    if (x)
        return *size ? on_body(x, data, size) : go_on(x);
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct mxc_conn *conn = info ? info->socket_context : NULL;
    if (!conn || !(x = mxc_exchange_new(http->server, conn, connection)))
        return MHD_NO;
    *context = x;
    atomic_fetch_add(&http->server->limits.n_requests, 1);
    mxc_watch_lock(http->server->watch);
    conn->x = x;
    bool closing = atomic_load(&http->closing);
    mxc_watch_unlock(http->server->watch);
    if (closing)
        return MHD_NO;
    return on_headers(http, x, url, method);
}

static void log_access(struct mxc_exchange *x) {
    const struct mxc_server_options *o = &x->server->options;
    struct mxc_exchange_private *p = x->private;
    char when[40];
    struct timespec now;
    struct tm utc;
    struct mxc_buf line;
    if (!o->log)
        return;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)gmtime_r(&now.tv_sec, &utc);
    size_t n = strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &utc);
    (void)snprintf(when + n, sizeof when - n, ".%03ldZ", now.tv_nsec / 1000000);
    const struct mxc_access access = {.time = when,
                                      .id = x->id,
                                      .method = x->method,
                                      .path = x->path,
                                      .client = p->conn->client,
                                      .model = x->model,
                                      .status = p->status,
                                      .key = x->key,
                                      .ms = (double)(mxc_clock_ns() - x->start_ns) * 1e-6,
                                      .bytes_in = p->bytes_in,
                                      .bytes_out = p->bytes_out,
                                      .n_prompt = x->n_prompt,
                                      .n_cached = x->n_cached,
                                      .n_generated = x->n_generated,
                                      .end = p->end};
    mxc_buf_init(&line, 1 << 16);
    if (mxc_access_format(&access, o->log_style, &line))
        o->log(mxc_buf_text(&line), o->log_user);
    mxc_buf_fini(&line);
}

static void on_completed(void *cls, struct MHD_Connection *connection, void **context,
                         enum MHD_RequestTerminationCode code) {
    struct mxc_front *http = cls;
    struct mxc_exchange *x = *context;
    (void)connection;
    if (!x)
        return;
    *context = NULL;
    struct mxc_exchange_private *p = x->private;
    struct mxc_limits *limits = &http->server->limits;
    mxc_watch_lock(http->server->watch);
    p->conn->x = NULL;
    mxc_watch_unlock(http->server->watch);
    atomic_store(&p->conn->watched.alarm_ns, 0);
    /* a connection that is kept would keep the server */
    set_deadline(x, atomic_load(&limits->draining) ? 1 : http->server->options.idle_ms);
    pthread_mutex_lock(&p->mutex);
    if (code != MHD_REQUEST_TERMINATED_COMPLETED_OK && !strcmp(p->end, "ok"))
        p->end = code == MHD_REQUEST_TERMINATED_DAEMON_SHUTDOWN ? "closed" : "gone";
    bool ok = !strcmp(p->end, "ok");
    pthread_mutex_unlock(&p->mutex);
    if (!ok)
        atomic_fetch_add(&limits->n_cancelled, 1);
    if (p->status >= 100 && p->status < 600) {
        atomic_fetch_add(&limits->by_status[p->status / 100], 1);
        if (p->status >= 400)
            atomic_fetch_add(&limits->n_errors, 1);
    }
    log_access(x);
    if (p->early && !http->cert) { /* the client may still be sending */
        int fd = dup(p->conn->watched.fd);
        if (fd >= 0)
            mxc_watch_linger(http->server->watch, fd);
    }
    mxc_exchange_detach(x);
    mxc_exchange_drop(x);
}

/* ---- life */

static enum mxc_code read_pem(struct mxc_front *http, struct mxc_err *err) {
    const struct mxc_server_options *o = &http->server->options;
    size_t length;
    if (!o->tls_key_file && !o->tls_cert_file)
        return MXC_OK;
    if (!o->tls_key_file || !o->tls_cert_file)
        return mxc_err_set(err, MXC_E_ARG, "TLS needs a key file and a certificate file");
    enum mxc_code code = mxc_file_read(o->tls_key_file, MAX_PEM, &http->key, &length, err);
    return code ? code : mxc_file_read(o->tls_cert_file, MAX_PEM, &http->cert, &length, err);
}

static const char tls_versions[] = "NORMAL:-VERS-TLS-ALL:+VERS-TLS1.3:+VERS-TLS1.2";

/* Percent-decoding that leaves %00 as it stands: a NUL would cut the path short. */
static size_t unescape(void *user, struct MHD_Connection *connection, char *text) {
    (void)user;
    (void)connection;
    char *to = text;
    for (const char *from = text; *from; from++) {
        int high = from[0] == '%' ? mxc_hex_digit(from[1]) : -1;
        int low = high >= 0 ? mxc_hex_digit(from[2]) : -1;
        if (low < 0 || (!high && !low)) {
            *to++ = *from;
            continue;
        }
        *to++ = (char)(high << 4 | low);
        from += 2;
    }
    *to = 0;
    return (size_t)(to - text);
}

static enum mxc_code start(struct mxc_front *http, struct mxc_err *err) {
    const struct mxc_server_options *o = &http->server->options;
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC |
                     (http->cert ? MHD_USE_TLS : 0u);
    struct MHD_OptionItem items[16];
    int n = 0;
    items[n++] = (struct MHD_OptionItem){MHD_OPTION_LISTEN_SOCKET, http->listener.fd, NULL};
    items[n++] = (struct MHD_OptionItem){MHD_OPTION_CONNECTION_LIMIT, o->max_connections, NULL};
    items[n++] = (struct MHD_OptionItem){MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                                         (intptr_t)(2 * o->max_header_bytes + POOL_BYTES), NULL};
    items[n++] = (struct MHD_OptionItem){MHD_OPTION_STRICT_FOR_CLIENT, 1, NULL};
    if (o->http_threads > 1)
        items[n++] = (struct MHD_OptionItem){MHD_OPTION_THREAD_POOL_SIZE, o->http_threads, NULL};
    if (http->cert) {
        items[n++] = (struct MHD_OptionItem){MHD_OPTION_HTTPS_MEM_KEY, 0, http->key};
        items[n++] = (struct MHD_OptionItem){MHD_OPTION_HTTPS_MEM_CERT, 0, http->cert};
        items[n++] = (struct MHD_OptionItem){MHD_OPTION_HTTPS_PRIORITIES, 0,
                                             (char *)(uintptr_t)tls_versions};
    }
    items[n] = (struct MHD_OptionItem){MHD_OPTION_END, 0, NULL};
    http->daemon = MHD_start_daemon(flags, 0, NULL, NULL, on_request, http, MHD_OPTION_ARRAY, items,
                                    MHD_OPTION_NOTIFY_COMPLETED, on_completed, http,
                                    MHD_OPTION_NOTIFY_CONNECTION, on_connection, http,
                                    MHD_OPTION_UNESCAPE_CALLBACK, unescape, NULL, MHD_OPTION_END);
    if (!http->daemon)
        return mxc_err_set(err, MXC_E_IO, "%s: the HTTP daemon cannot be started%s",
                           http->listener.text,
                           http->cert ? " (are key and certificate PEM, and do they fit?)" : "");
    return MXC_OK;
}

enum mxc_code mxc_front_open(struct mxc_server *server, struct mxc_front **http,
                             struct mxc_err *err) {
    const struct mxc_server_options *o = &server->options;
    struct mxc_front *h = mxc_mem_zalloc(1, sizeof *h);
    if (!h)
        return mxc_err_nomem(err);
    h->server = server;
    h->listener.fd = -1;
    enum mxc_code code = read_pem(h, err);
    if (!code)
        code = mxc_listen_open(o->host, o->port, SEND_BUFFER, &h->listener, err);
    if (!code && !h->listener.loopback && !mxc_auth_count(server->auth) && !o->no_key_needed)
        code = mxc_err_set(err, MXC_E_ARG,
                           "%s can be reached from other machines: give an API key (--api-key, "
                           "--api-key-file), or --insecure-no-key to serve anyone",
                           h->listener.text);
    if (!code)
        code = start(h, err);
    if (code) {
        mxc_front_close(h);
        return code;
    }
    if (h->listener.port)
        (void)snprintf(h->url, sizeof h->url, "%s://%s%s", h->cert ? "https" : "http",
                       h->listener.text, o->prefix ? o->prefix : "");
    else
        (void)snprintf(h->url, sizeof h->url, "unix:%s%s%s", h->listener.text,
                       o->prefix && *o->prefix ? " prefix " : "", o->prefix ? o->prefix : "");
    *http = h;
    return MXC_OK;
}

void mxc_front_quiesce(struct mxc_front *http) {
    if (http->quiesced)
        return;
    http->quiesced = true;
    (void)MHD_quiesce_daemon(http->daemon);
}

static void end_one(struct mxc_watched *entry, void *user) {
    struct mxc_conn *conn = (struct mxc_conn *)entry;
    (void)user;
    (void)shutdown(entry->fd, SHUT_RDWR);
    if (conn->x)
        mxc_exchange_gone(conn->x, "closed");
}

/* Exchanges whose connection is suspended, or will be. */
static void count_busy(struct mxc_watched *entry, void *user) {
    struct mxc_conn *conn = (struct mxc_conn *)entry;
    int *n = user;
    *n += conn->x != NULL;
}

void mxc_front_close(struct mxc_front *http) {
    if (!http)
        return;
    if (http->daemon) {
        mxc_front_quiesce(http);
        atomic_store(&http->closing, true);
        /* libmicrohttpd may not be stopped while a connection is suspended */
        for (int busy = 1; busy;) {
            mxc_watch_each(http->server->watch, end_one, NULL);
            busy = 0;
            mxc_watch_each(http->server->watch, count_busy, &busy);
            if (busy)
                (void)usleep(5000);
        }
        MHD_stop_daemon(http->daemon);
    }
    mxc_listen_close(&http->listener);
    if (http->key)
        explicit_bzero(http->key, strlen(http->key));
    mxc_mem_free(http->key);
    mxc_mem_free(http->cert);
    mxc_mem_free(http);
}

const char *mxc_front_url(const struct mxc_front *http) {
    return http->url;
}
