/* The server's life: parts made in order, ended in the opposite one.
 * Closing: HTTP first (every connection ends, running generations are cancelled), then the prep
 * workers, then a wait for the last exchange (the host still runs and delivers every DONE), then
 * the rest. */
#define _GNU_SOURCE
#include "server/server.h"

#include "base/clock.h"
#include "base/mem.h"
#include "server/constrain.h"
#include "server/http.h"
#include "server/job.h"
#include "server/prompt_cache.h"
#include "server/responses.h"
#include "server/slots.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

void mxc_server_options_init(struct mxc_server_options *options) {
    *options = (struct mxc_server_options){.host = "127.0.0.1",
                                           .port = 8080,
                                           .max_body_bytes = 64 << 20,
                                           .max_header_bytes = 32 << 10,
                                           .max_buffered_bytes = 256 << 20,
                                           .max_json_depth = 128,
                                           .header_ms = 10000,
                                           .body_ms = 60000,
                                           .write_ms = 60000,
                                           .idle_ms = 75000,
                                           .max_connections = 512,
                                           .http_threads = 2,
                                           .prep_threads = 2,
                                           .max_waiting = 256,
                                           .max_stream_bytes = 1 << 20,
                                           .ping_ms = 15000,
                                           .max_stored_bytes = 256 << 20,
                                           .max_cache_bytes = 1 << 30,
                                           .max_slot_bytes = (uint64_t)4 << 30};
}

static enum mxc_code check(const struct mxc_server_options *o, struct mxc_err *err) {
    const struct {
        const char *name;
        int64_t value, min, max;
    } ranges[] = {{"port", o->port, 0, 65535},
                  {"max_body_bytes", (int64_t)o->max_body_bytes, 1024, (int64_t)1 << 31},
                  {"max_header_bytes", (int64_t)o->max_header_bytes, 4096, 1 << 20},
                  {"max_json_depth", o->max_json_depth, 8, 1024},
                  {"header_ms", o->header_ms, 100, 3600000},
                  {"body_ms", o->body_ms, 100, 3600000},
                  {"write_ms", o->write_ms, 100, 3600000},
                  {"idle_ms", o->idle_ms, 100, 3600000},
                  {"max_connections", o->max_connections, 1, 65536},
                  {"http_threads", o->http_threads, 1, 64},
                  {"prep_threads", o->prep_threads, 1, MXC_WORK_THREADS},
                  {"max_waiting", o->max_waiting, 1, 65536},
                  {"max_per_key", o->max_per_key, 0, 65536},
                  {"max_stream_bytes", (int64_t)o->max_stream_bytes, 4096, 1 << 30},
                  {"ping_ms", o->ping_ms, 0, 3600000}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (ranges[i].value < ranges[i].min || ranges[i].value > ranges[i].max)
            return mxc_err_set(err, MXC_E_ARG, "%s: %lld is not in [%lld, %lld]", ranges[i].name,
                               (long long)ranges[i].value, (long long)ranges[i].min,
                               (long long)ranges[i].max);
    size_t n = o->prefix ? strlen(o->prefix) : 0;
    if (n && (o->prefix[0] != '/' || o->prefix[n - 1] == '/' || strpbrk(o->prefix, "?# %")))
        return mxc_err_set(err, MXC_E_ARG,
                           "prefix: \"%s\" is not like \"/llm\": a slash, a path, none at the end",
                           o->prefix);
    if (o->media.n_domains > MXC_SERVER_MAX_DOMAINS)
        return mxc_err_set(err, MXC_E_ARG, "more than %d media domains", MXC_SERVER_MAX_DOMAINS);
    if (o->n_origins > MXC_SERVER_MAX_ORIGINS)
        return mxc_err_set(err, MXC_E_ARG, "more than %d CORS origins", MXC_SERVER_MAX_ORIGINS);
    return MXC_OK;
}

/* Copies the options' text; keys are not kept (auth has their digests). */
static enum mxc_code copy(struct mxc_server *s, const struct mxc_server_options *o,
                          struct mxc_err *err) {
    const char **texts[] = {&s->options.host, &s->options.prefix, &s->options.tls_key_file,
                            &s->options.tls_cert_file, &s->options.key_file};
    s->options = *o;
    s->options.keys = NULL;
    s->options.n_keys = 0;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (*texts[i] && !(*texts[i] = mxc_arena_strdup(&s->arena, *texts[i])))
            return mxc_err_nomem(err);
    const char **origins = mxc_arena_array(&s->arena, o->n_origins + 1, sizeof *origins);
    if (!origins)
        return mxc_err_nomem(err);
    for (size_t i = 0; i < o->n_origins; i++)
        if (!(origins[i] = mxc_arena_strdup(&s->arena, o->origins[i])))
            return mxc_err_nomem(err);
    s->options.origins = origins;
    s->options.media = (struct mxc_media_options){.max_bytes = o->media.max_bytes};
    return MXC_OK;
}

/* Without a store the server works all the same: nothing is stored, and the operator is told. */
static enum mxc_code open_responses(struct mxc_server *s, const struct mxc_server_options *o,
                                    struct mxc_err *err) {
    struct mxc_response_store *store = NULL;
    const struct mxc_response_store_options options = {.folder = o->state_dir,
                                                       .max_bytes = o->max_stored_bytes,
                                                       .warn = o->warn,
                                                       .user = o->warn_user};
    enum mxc_code code = o->state_dir ? mxc_response_store_open(&options, &store, err) : MXC_OK;
    if (code == MXC_E_NOMEM)
        return code;
    if (code && o->warn) {
        char line[sizeof err->message + 64];
        (void)snprintf(line, sizeof line, "responses are not stored: %s", err->message);
        o->warn(line, o->warn_user);
    }
    return mxc_responses_new(s->host, store, &s->responses, err);
}

/* Without it the server works all the same. */
static enum mxc_code open_prompt_cache(struct mxc_server *s, const struct mxc_server_options *o,
                                       struct mxc_err *err) {
    const struct mxc_prompt_cache_options options = {.state_dir = o->cache_dir,
                                                     .max_bytes = o->max_cache_bytes,
                                                     .host = s->host,
                                                     .warn = o->warn,
                                                     .user = o->warn_user};
    return o->cache_dir && o->max_cache_bytes
               ? mxc_prompt_cache_open(&options, &s->prompt_cache, err)
               : MXC_OK;
}

enum mxc_code mxc_server_open(const struct mxc_server_options *options, struct mxc_host *host,
                              struct mxc_server **server, struct mxc_err *err) {
    enum mxc_code code = check(options, err);
    if (code)
        return code;
    struct mxc_server *s = mxc_mem_zalloc(1, sizeof *s);
    if (!s)
        return mxc_err_nomem(err);
    mxc_arena_init(&s->arena, 0);
    s->host = host;
    s->start_ns = mxc_clock_ns();
    s->start_time = (int64_t)time(NULL);
    mxc_limits_init(&s->limits, options->max_buffered_bytes, options->max_per_key);
    code = copy(s, options, err);
    if (!code)
        code = mxc_auth_new(options->keys, options->n_keys, options->key_file, &s->auth, err);
    if (!code)
        code = mxc_jobs_new(&s->jobs, err);
    if (!code)
        code = mxc_constraints_new(&s->constraints, err);
    if (!code)
        code = mxc_media_open(&options->media, &s->media, err);
    if (!code)
        code = open_responses(s, options, err);
    if (!code)
        code = mxc_slots_new(host, options->slot_dir, options->max_slot_bytes, &s->slots, err);
    if (!code)
        code = open_prompt_cache(s, options, err);
    if (!code)
        code = mxc_work_new(options->prep_threads, options->max_waiting, &s->work, err);
    if (!code)
        code = mxc_watch_new(&s->watch, err);
    if (!code)
        code = mxc_front_open(s, &s->http, err);
    if (code) {
        mxc_server_close(s);
        return code;
    }
    *server = s;
    return MXC_OK;
}

const char *mxc_server_url(const struct mxc_server *server) {
    return mxc_front_url(server->http);
}

bool mxc_server_needs_key(const struct mxc_server *server) {
    return mxc_auth_count(server->auth) > 0;
}

enum mxc_code mxc_server_reload(struct mxc_server *server, struct mxc_err *err) {
    return mxc_auth_reload(server->auth, err);
}

int mxc_server_drain(struct mxc_server *server, int timeout_ms, bool (*stop)(void *user),
                     void *user) {
    atomic_store(&server->limits.draining, true);
    mxc_front_quiesce(server->http);
    uint64_t end = mxc_clock_ns() + (uint64_t)timeout_ms * 1000000;
    int left;
    while ((left = atomic_load(&server->limits.n_exchanges)) > 0 && mxc_clock_ns() < end &&
           !(stop && stop(user)))
        (void)usleep(10000);
    return left;
}

void mxc_server_close(struct mxc_server *server) {
    if (!server)
        return;
    atomic_store(&server->limits.draining, true);
    mxc_media_stop(server->media);
    mxc_front_close(server->http);
    mxc_work_free(server->work);
    while (atomic_load(&server->limits.n_exchanges) > 0)
        (void)usleep(2000);
    mxc_prompt_cache_close(server->prompt_cache);
    mxc_slots_free(server->slots);
    mxc_watch_free(server->watch);
    mxc_jobs_free(server->jobs);
    mxc_constraints_free(server->constraints);
    mxc_responses_free(server->responses);
    mxc_media_close(server->media);
    mxc_auth_free(server->auth);
    mxc_arena_fini(&server->arena);
    mxc_mem_free(server);
}
