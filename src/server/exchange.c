/* The exchange object: who holds it, its reply, and the one way to wake it.
 * Invariants: suspended is true exactly while libmicrohttpd has the connection suspended by us, and
 * changes under the mutex together with the call; a wake that comes while it is not suspended is
 * kept in woken, and whoever wants to suspend looks at it first. A reply is filled once: what comes
 * after `ready` is thrown away. */
#define _GNU_SOURCE
#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "server/http.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

enum { OUT_BYTES = 64 << 20 };

/* The client's own id when it is a plain word, else a random one. */
static void make_id(struct mxc_exchange *x) {
    const char *given = mxc_exchange_header(x, "X-Request-Id");
    static const char plain[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.:";
    if (given && *given && strlen(given) < sizeof x->id && strspn(given, plain) == strlen(given)) {
        (void)snprintf(x->id, sizeof x->id, "%s", given);
        return;
    }
    uint64_t random[2];
    if (getrandom(random, sizeof random, GRND_NONBLOCK) != sizeof random)
        random[0] = mxc_clock_ns(), random[1] = (uint64_t)(uintptr_t)x;
    (void)snprintf(x->id, sizeof x->id, "req_%016llx%08llx", (unsigned long long)random[0],
                   (unsigned long long)random[1] >> 32);
}

struct mxc_exchange *mxc_exchange_new(struct mxc_server *server, struct mxc_conn *conn,
                                      struct MHD_Connection *connection) {
    struct mxc_exchange *x = mxc_mem_zalloc(1, sizeof *x);
    struct mxc_exchange_private *p = mxc_mem_zalloc(1, sizeof *p);
    if (!x || !p) {
        mxc_mem_free(x);
        mxc_mem_free(p);
        return NULL;
    }
    x->server = server;
    x->private = p;
    x->key = -1;
    x->tail = x->path = x->method = "";
    x->n_prompt = x->n_cached = x->n_generated = -1;
    x->start_ns = mxc_clock_ns();
    mxc_buf_init(&x->body, server->options.max_body_bytes);
    p->conn = conn;
    p->connection = connection;
    p->end = "ok";
    atomic_init(&p->n_holders, 1);
    pthread_mutex_init(&p->mutex, NULL); /* cannot fail with default attributes */
    mxc_buf_init(&p->out, OUT_BYTES);
    make_id(x);
    atomic_fetch_add(&server->limits.n_exchanges, 1);
    return x;
}

void mxc_exchange_hold(struct mxc_exchange *x) {
    atomic_fetch_add(&x->private->n_holders, 1);
}

void mxc_exchange_drop(struct mxc_exchange *x) {
    struct mxc_exchange_private *p = x->private;
    if (atomic_fetch_sub(&p->n_holders, 1) != 1)
        return;
    struct mxc_server *server = x->server;
    for (int i = 0; i < p->n_headers; i++) {
        mxc_mem_free(p->headers[i].name);
        mxc_mem_free(p->headers[i].value);
    }
    mxc_mem_free(p->text);
    mxc_buf_fini(&p->out);
    mxc_limits_unbuffer(&server->limits, p->buffered);
    pthread_mutex_destroy(&p->mutex);
    mxc_mem_free(p);
    mxc_buf_fini(&x->body);
    json_decref(x->json);
    mxc_mem_free((char *)(uintptr_t)(x->path[0] ? x->path : NULL));
    mxc_mem_free((char *)(uintptr_t)(x->tail[0] ? x->tail : NULL));
    mxc_mem_free(x);
    atomic_fetch_sub(&server->limits.n_exchanges, 1); /* last: closing waits for it */
}

void mxc_exchange_keep_json(struct mxc_exchange *x, const char *member) {
    json_t *kept = json_incref(json_object_get(x->json, member));
    json_decref(x->json);
    x->json = kept;
}

/* The mutex is held. */
static void wake_locked(struct mxc_exchange_private *p) {
    if (p->suspended) {
        p->suspended = false;
        MHD_resume_connection(p->connection);
    } else {
        p->woken = true;
    }
}

void mxc_exchange_wake(struct mxc_exchange *x) {
    pthread_mutex_lock(&x->private->mutex);
    wake_locked(x->private);
    pthread_mutex_unlock(&x->private->mutex);
}

void mxc_exchange_gone(struct mxc_exchange *x, const char *why) {
    struct mxc_exchange_private *p = x->private;
    pthread_mutex_lock(&p->mutex);
    if (!p->gone)
        p->end = why;
    p->gone = true;
    const struct mxc_source_ops *source = p->source_gone ? NULL : p->source;
    p->source_gone = p->source_gone || source;
    void *user = p->source_user;
    pthread_mutex_unlock(&p->mutex);
    if (source)
        source->gone(user);
    mxc_exchange_wake(x);
}

void mxc_exchange_detach(struct mxc_exchange *x) {
    struct mxc_exchange_private *p = x->private;
    pthread_mutex_lock(&p->mutex);
    p->connection = NULL;
    p->conn = NULL;
    const struct mxc_source_ops *source = p->source;
    bool told = p->source_gone;
    p->source = NULL;
    p->source_gone = true;
    p->gone = true;
    pthread_mutex_unlock(&p->mutex);
    if (source) {
        if (!told && !p->ended)
            source->gone(p->source_user);
        source->release(p->source_user);
    }
}

bool mxc_exchange_is_gone(const struct mxc_exchange *x) {
    struct mxc_exchange_private *p = x->private;
    pthread_mutex_lock(&p->mutex);
    bool gone = p->gone;
    pthread_mutex_unlock(&p->mutex);
    return gone;
}

static const char *lookup(const struct mxc_exchange *x, enum MHD_ValueKind kind, const char *name) {
    struct MHD_Connection *c = x->private->connection;
    return c ? MHD_lookup_connection_value(c, kind, name) : NULL;
}

const char *mxc_exchange_header(const struct mxc_exchange *x, const char *name) {
    return lookup(x, MHD_HEADER_KIND, name);
}

const char *mxc_exchange_query(const struct mxc_exchange *x, const char *name) {
    return lookup(x, MHD_GET_ARGUMENT_KIND, name);
}

/* ---- the reply */

/* Starts filling; false: a reply is there already. */
static bool begin(struct mxc_exchange *x) {
    struct mxc_exchange_private *p = x->private;
    pthread_mutex_lock(&p->mutex);
    return !p->ready;
}

static void finish(struct mxc_exchange *x, bool filled) {
    struct mxc_exchange_private *p = x->private;
    p->ready = p->ready || filled;
    if (filled)
        wake_locked(p);
    pthread_mutex_unlock(&p->mutex);
}

void mxc_reply_header(struct mxc_exchange *x, const char *name, const char *value) {
    struct mxc_exchange_private *p = x->private;
    char *n = mxc_mem_strdup(name), *v = mxc_mem_strdup(value);
    pthread_mutex_lock(&p->mutex);
    bool room = n && v && !p->ready && p->n_headers < MXC_EXCHANGE_MAX_HEADERS;
    if (room) {
        p->headers[p->n_headers].name = n;
        p->headers[p->n_headers++].value = v;
    }
    pthread_mutex_unlock(&p->mutex);
    if (!room) {
        mxc_mem_free(n);
        mxc_mem_free(v);
    }
}

void mxc_reply_text(struct mxc_exchange *x, int status, const char *type, char *text,
                    size_t length) {
    struct mxc_exchange_private *p = x->private;
    bool take = begin(x);
    if (take && text) {
        p->text = text;
        p->bytes = text;
        p->length = length;
        p->status = status;
        (void)snprintf(p->type, sizeof p->type, "%s", type);
    } else if (take) {
        static const char none[] = "{\"error\":{\"code\":503,\"message\":\"out of memory\","
                                   "\"type\":\"server_error\",\"param\":null}}";
        p->bytes = none;
        p->length = sizeof none - 1;
        p->status = 503;
        (void)snprintf(p->type, sizeof p->type, "application/json");
    } else {
        mxc_mem_free(text);
    }
    finish(x, take);
}

void mxc_reply_static(struct mxc_exchange *x, int status, const char *type, const void *bytes,
                      size_t length) {
    struct mxc_exchange_private *p = x->private;
    bool take = begin(x);
    if (take) {
        p->bytes = bytes;
        p->length = length;
        p->status = status;
        (void)snprintf(p->type, sizeof p->type, "%s", type);
    }
    finish(x, take);
}

void mxc_reply_json(struct mxc_exchange *x, int status, json_t *body) {
    char *text = body ? mxc_json_dump(body) : NULL;
    json_decref(body);
    mxc_reply_text(x, status, "application/json; charset=utf-8", text, text ? strlen(text) : 0);
}

void mxc_reply_fault(struct mxc_exchange *x, const struct mxc_fault *fault) {
    int status = mxc_fault_http(fault);
    if (fault->retry_after) {
        char seconds[16];
        (void)snprintf(seconds, sizeof seconds, "%d", fault->retry_after);
        mxc_reply_header(x, "Retry-After", seconds);
    }
    if (status == 401)
        mxc_reply_header(x, "WWW-Authenticate", "Bearer");
    mxc_reply_json(x, status,
                   mxc_fault_json(fault, x->route ? x->route->api : mxc_route_api(x->path), x->id));
}

void mxc_reply_source(struct mxc_exchange *x, const char *type, const struct mxc_source_ops *ops,
                      void *user) {
    struct mxc_exchange_private *p = x->private;
    bool take = begin(x) && p->connection && !p->source;
    bool gone = p->gone;
    if (take) {
        p->source = ops;
        p->source_user = user;
        p->source_gone = gone;
        if (type) {
            p->stream = true;
            p->status = 200;
            (void)snprintf(p->type, sizeof p->type, "%s", type);
        }
    }
    finish(x, take && type);
    if (!take || gone)
        ops->gone(user);
    if (!take)
        ops->release(user);
}
