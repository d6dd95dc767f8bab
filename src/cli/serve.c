/* mlxcel serve: models behind HTTP. This file reads flags and environment (both from the table of
 * server/surface.def), puts the host and the server together, tells where they are, and waits for
 * signals: SIGHUP reads the key file again, SIGTERM and SIGINT drain and end with 0, a second one
 * ends at once.
 * An environment name stands for its flag; the command line comes later and wins, lists add up.
 * With one model a load that fails ends the program with 1; with several it stays listed. */
#define _GNU_SOURCE
#include "base/arena.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/term.h"
#include "server/server.h"
#include "server/surface.h"
#include "store/xla_place.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

extern char **environ;

struct mxc_serve_args {
    struct mxc_arg_list models, aliases, keys, origins, media_domains, image_min_pixels,
        image_max_pixels;
    const char *models_dir, *kv_bytes, *precision, *backend, *cpu, *host, *prefix, *tls_key_file;
    const char *tls_cert_file, *key_file, *reasoning_format, *log_format, *log_file, *pooling;
    const char *xla_plugin, *xla_precision, *xla_capacity, *xla_vision, *tp_size, *surgery;
    const char *cache_bytes, *slot_dir, *slot_bytes;
    const char *state_dir, *store_bytes, *media_path, *image_background;
    int64_t threads, context, parallel, max_chunk, max_queue, port, max_body_mb, max_header_kb;
    int64_t max_json_depth, max_connections, max_per_key, max_stream_kb, http_threads, prep_threads;
    int64_t max_image_mb, image_megapixels;
    double write_s, header_s, idle_s, ping_s, drain_s;
    bool force, no_key_needed, metrics, no_metrics, slots, no_slots, verbose, always, surface,
        embeddings;
    bool no_store;
    bool none; /* of headings */
};

struct serve {
    struct mxc_serve_args args;
    struct mxc_arena arena;
    struct mxc_xla_place xla;
    struct mxc_host *host;
    struct mxc_server *server;
    int signals, changes; /* descriptors */
    int log_fd;
};

/* ---- flags and environment */

static const struct {
    const char *names, *environment, *instead;
} refused[] = {
#define MXC_REFUSED(names, environment, instead) {names, environment, instead},
#include "server/surface.def"
};

static const struct {
    const char *names, *environment, *help;
    enum mxc_arg_kind kind;
    size_t member; /* its place in struct mxc_serve_args */
} flags[] = {
#define MXC_FLAG(kind, names, metavar, environment, member, min, max, help)                        \
    {names, environment, help, MXC_ARG_##kind, offsetof(struct mxc_serve_args, member)},
#include "server/surface.def"
};

/* Whether the word is one of the comma-separated names. */
static bool is_named(const char *names, const char *word) {
    size_t length = strcspn(word, "=");
    for (const char *p = names; *p;) {
        size_t n = strcspn(p, ",");
        if (n == length && !memcmp(p, word, n))
            return true;
        p += n;
        p += strspn(p, ", ");
    }
    return false;
}

/* A flag or variable of llama-server that is not to be had here. 0, or 2 after a message. */
static int check_refused(int argc, char **argv) {
    for (size_t i = 0; i < MXC_COUNT(refused); i++) {
        for (int k = 1; k < argc && strcmp(argv[k], "--") != 0; k++)
            if (argv[k][0] == '-' && is_named(refused[i].names, argv[k]))
                return mxc_term_usage("serve", "%.*s is not supported: %s",
                                      (int)strcspn(argv[k], "="), argv[k], refused[i].instead);
        const char *value = refused[i].environment ? getenv(refused[i].environment) : NULL;
        if (value && *value)
            return mxc_term_usage("serve", "%s is not supported: %s", refused[i].environment,
                                  refused[i].instead);
    }
    return 0;
}

static bool is_known_variable(const char *name, size_t length) {
    for (size_t i = 0; i < MXC_COUNT(flags); i++)
        if (flags[i].environment && strlen(flags[i].environment) == length &&
            !memcmp(flags[i].environment, name, length))
            return true;
    return false;
}

/* 1: on, 0: off, -1: neither. */
static int truth(const char *value) {
    static const char *const on[] = {"1", "true", "on", "enabled", "yes"};
    static const char *const off[] = {"", "0", "false", "off", "disabled", "no"};
    for (size_t i = 0; i < MXC_COUNT(on); i++)
        if (!strcasecmp(value, on[i]))
            return 1;
    for (size_t i = 0; i < MXC_COUNT(off); i++)
        if (!strcasecmp(value, off[i]))
            return 0;
    return -1;
}

/* Words for the variables that are set, in front of the command line's own. */
static int add_environment(struct serve *s, const char **words, int *n) {
    for (char **e = environ; *e; e++) {
        size_t length = strcspn(*e, "=");
        if (!strncmp(*e, "LLAMA_ARG_", 10) && !is_known_variable(*e, length))
            mxc_term_note("%.*s is no variable of this server and has no effect", (int)length, *e);
    }
    for (size_t i = 0; i < MXC_COUNT(flags); i++) {
        const char *value = flags[i].environment ? getenv(flags[i].environment) : NULL;
        const char *name = strstr(flags[i].names, "--");
        if (!value || !*value || !name)
            continue;
        int name_length = (int)strcspn(name, ",");
        int on = flags[i].kind == MXC_ARG_FLAG ? truth(value) : 1;
        if (on < 0)
            return mxc_term_usage("serve", "%s: \"%s\" is neither on nor off", flags[i].environment,
                                  value);
        if (!on && flags[i].member == offsetof(struct mxc_serve_args, always))
            return mxc_term_usage("serve", "%s: \"%s\" is not supported: %s", flags[i].environment,
                                  value, flags[i].help);
        if (!on && flags[i].member == offsetof(struct mxc_serve_args, metrics))
            words[(*n)++] = "--no-metrics";
        if (!on && flags[i].member == offsetof(struct mxc_serve_args, slots))
            words[(*n)++] = "--no-slots";
        const char *word = flags[i].kind == MXC_ARG_FLAG
                               ? mxc_arena_printf(&s->arena, "%.*s", name_length, name)
                               : mxc_arena_printf(&s->arena, "%.*s=%s", name_length, name, value);
        if (!word)
            return mxc_term_error("out of memory");
        if (on)
            words[(*n)++] = word;
    }
    return 0;
}

static int parse(struct serve *s, int argc, char **argv, bool *exit_now) {
    struct mxc_serve_args *a = &s->args;
    const struct mxc_arg table[] = {
#define MXC_FLAG(kind, names, metavar, environment, member, min, max, help)                        \
    {MXC_ARG_##kind, names, metavar, help, &a->member, min, max, NULL},
#include "server/surface.def"
    };
    const char *positional[MXC_ARG_LIST_MAX];
    const char **words =
        mxc_arena_array(&s->arena, (size_t)argc + MXC_COUNT(flags) + 2, sizeof *words);
    int n = 0, status = check_refused(argc, argv);
    if (status)
        return status;
    if (!words)
        return mxc_term_error("out of memory");
    words[n++] = argv[0];
    if ((status = add_environment(s, words, &n)))
        return status;
    for (int i = 1; i < argc; i++)
        words[n++] = argv[i];
    int given = mxc_args_parse(&mxc_command_serve, table, MXC_COUNT(table), n,
                               (char **)(uintptr_t)words, positional, MXC_ARG_LIST_MAX, exit_now);
    if (given < 0)
        return 2;
    for (int i = 0; i < given; i++) {
        if (a->models.n == MXC_ARG_LIST_MAX)
            return mxc_term_usage("serve", "more than %d models", MXC_ARG_LIST_MAX);
        a->models.items[a->models.n++] = positional[i];
    }
    if (!*exit_now && !a->surface && !a->models.n)
        return mxc_term_usage("serve", "which MODEL?");
    return 0;
}

/* "512M", "2G", "1.5g", bytes; "auto", "none", "0": 0. */
static bool parse_size(const char *text, uint64_t *out) {
    char *end;
    *out = 0;
    if (!text || !strcasecmp(text, "auto") || !strcasecmp(text, "none"))
        return true;
    double n = strtod(text, &end);
    static const char units[] = "KMGT";
    const char *unit = *end ? strchr(units, *end & ~0x20) : NULL;
    if (end == text || !(n >= 0) ||
        (*end &&
         (!unit || (end[1] && strcasecmp(end + 1, "b") != 0 && strcasecmp(end + 1, "ib") != 0))))
        return false;
    if (unit)
        n = ldexp(n, 10 * (int)(unit - units + 1));
    if (n > 1e15)
        return false;
    *out = (uint64_t)n;
    return true;
}

/* ---- models */

/* The id of the i-th model: its alias, else owner/name as given, else the file's name. */
static const char *name_of(struct serve *s, size_t i) {
    const char *name = s->args.models.items[i];
    if (i < s->args.aliases.n)
        return s->args.aliases.items[i];
    if (*name != '/' && *name != '.' && access(name, F_OK) != 0)
        return name; /* of the store */
    char *path = mxc_arena_strdup(&s->arena, name);
    if (!path)
        return NULL;
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        path[--n] = 0;
    char *base = strrchr(path, '/');
    base = base ? base + 1 : path;
    if (mxc_str_ends(mxc_str_of(base), ".gguf"))
        base[strlen(base) - 5] = 0;
    return base;
}

/* The number that a list of "N" and "MODEL=N" gives a model; what names the model wins. */
static int pixels_of(const struct mxc_arg_list *list, const char *flag, const char *model,
                     int64_t *pixels) {
    bool named = false;
    for (size_t i = 0; i < list->n; i++) {
        const char *item = list->items[i], *equals = strrchr(item, '=');
        int64_t n;
        if (!mxc_parse_i64(equals ? equals + 1 : item, &n) || n < 1 || n > INT64_C(1) << 40)
            return mxc_term_usage("serve", "%s: \"%s\" is not N or MODEL=N", flag, item);
        size_t length = equals ? (size_t)(equals - item) : 0;
        bool mine = equals && strlen(model) == length && !memcmp(item, model, length);
        if (mine || (!equals && !named))
            *pixels = n;
        named |= mine;
    }
    return 0;
}

/* Every MODEL=N names a model. */
static int check_pixels(struct serve *s, const struct mxc_arg_list *list, const char *flag) {
    for (size_t i = 0; i < list->n; i++) {
        const char *item = list->items[i], *equals = strrchr(item, '=');
        bool found = !equals;
        for (size_t k = 0; k < s->args.models.n && !found; k++) {
            const char *name = name_of(s, k);
            if (!name)
                return mxc_term_error("out of memory");
            found = strlen(name) == (size_t)(equals - item) &&
                    !memcmp(item, name, (size_t)(equals - item));
        }
        if (!found)
            return mxc_term_usage("serve", "%s: \"%s\" names no model", flag, item);
    }
    return 0;
}

static int add_models(struct serve *s, const struct mlxcel_model_options *load) {
    const struct mxc_model_args where = {.models_dir = s->args.models_dir};
    struct mxc_err err;
    uint64_t kv_bytes;
    if (!parse_size(s->args.kv_bytes, &kv_bytes))
        return mxc_term_usage("serve", "--kv-bytes: \"%s\" is no size like 512M", s->args.kv_bytes);
    enum mxc_pooling pooling = MXC_POOL_DEFAULT;
    if (s->args.pooling && !mxc_pooling_find(s->args.pooling, &pooling))
        return mxc_term_usage("serve", "--pooling: \"%s\" is not default, mean, cls, last or max",
                              s->args.pooling);
    if (s->args.aliases.n > s->args.models.n)
        return mxc_term_usage("serve", "--alias: %zu names for %zu models", s->args.aliases.n,
                              s->args.models.n);
    static const char min[] = "--image-min-pixels", max[] = "--image-max-pixels";
    int status = check_pixels(s, &s->args.image_min_pixels, min);
    if (status || (status = check_pixels(s, &s->args.image_max_pixels, max)))
        return status;
    for (size_t i = 0; i < s->args.models.n; i++) {
        struct mxc_host_model_options o;
        char *path = NULL;
        mxc_host_model_options_init(&o);
        if (!(o.name = name_of(s, i)))
            return mxc_term_error("out of memory");
        struct mxc_vision_budget *budget = &o.image_budget;
        if ((status = pixels_of(&s->args.image_min_pixels, min, o.name, &budget->min_pixels)) ||
            (status = pixels_of(&s->args.image_max_pixels, max, o.name, &budget->max_pixels)) ||
            (status = mxc_options_resolve(&where, s->args.models.items[i], &path)))
            return status;
        o.path = path;
        o.backend = load->backend;
        o.xla = (struct mxc_xla_given){.plugin = s->xla.plugin,
                                       .precision = s->args.xla_precision,
                                       .capacity = s->args.xla_capacity,
                                       .vision = s->args.xla_vision,
                                       .tp_size = s->args.tp_size,
                                       .cache_dir = s->xla.programs};
        if (s->args.xla_plugin)
            o.xla.plugin = s->args.xla_plugin;
        o.surgery = s->args.surgery;
        o.n_threads = s->args.threads > 0 ? (int)s->args.threads : 0;
        o.precision = (enum mxc_precision)load->precision;
        o.context = (int32_t)s->args.context;
        o.parallel = s->args.parallel > 0 ? (int32_t)s->args.parallel : o.parallel;
        o.max_chunk = (int32_t)s->args.max_chunk;
        o.max_queue = (int32_t)s->args.max_queue;
        o.force = s->args.force;
        o.embeddings = s->args.embeddings;
        o.pooling = pooling;
        o.kv_bytes = kv_bytes;
        enum mxc_code code = mxc_host_add(s->host, &o, &err);
        mxc_mem_free(path);
        if (code)
            return mxc_term_err(&err);
    }
    return 0;
}

/* ---- the server */

static void write_line(const char *line, void *user) {
    const struct serve *s = user;
    char text[4096];
    int n = snprintf(text, sizeof text, "%s\n", line);
    if (n >= (int)sizeof text) {
        n = (int)sizeof text - 1;
        text[n - 1] = '\n';
    }
    ssize_t written = write(s->log_fd, text, (size_t)n); /* one call: lines do not mix */
    (void)written;
}

static int open_log(struct serve *s, struct mxc_server_options *o) {
    const char *format = s->args.log_format ? s->args.log_format : "text";
    if (strcmp(format, "text") != 0 && strcmp(format, "json") != 0 && strcmp(format, "none") != 0)
        return mxc_term_usage("serve", "--log-format: \"%s\" is not text, json or none", format);
    if (s->args.log_file) {
        s->log_fd =
            open(s->args.log_file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (s->log_fd < 0)
            return mxc_term_error("%s: cannot open: %s", s->args.log_file, strerror(errno));
    }
    o->log_style = !strcmp(format, "json") ? MXC_LOG_JSON : MXC_LOG_TEXT;
    o->log = strcmp(format, "none") != 0 ? write_line : NULL;
    o->log_user = s;
    return 0;
}

/* Splits lists with commas; items may be given again. */
static int split(struct serve *s, const struct mxc_arg_list *list, const char *what,
                 const char **out, size_t max, size_t *n) {
    for (size_t i = 0; i < list->n; i++)
        for (const char *p = list->items[i]; *p;) {
            size_t length = strcspn(p, ",");
            char *item = mxc_arena_dup(&s->arena, p, length);
            if (!item)
                return mxc_term_error("out of memory");
            if (*n == max)
                return mxc_term_usage("serve", "%s: more than %zu", what, max);
            if (length)
                out[(*n)++] = item;
            p += length + (p[length] == ',');
        }
    return 0;
}

static void note(const char *line, void *user) {
    (void)user;
    mxc_term_note("%s", line);
}

/* Where KV of prompts is kept, and how much. */
static int set_cache(struct serve *s, struct mxc_server_options *o, const char *folder) {
    const char *size = s->args.cache_bytes, *slots = s->args.slot_bytes;
    if (size && !parse_size(size, &o->max_cache_bytes))
        return mxc_term_usage("serve", "--prompt-cache-bytes: \"%s\" is no size like 1G", size);
    if (slots && !parse_size(slots, &o->max_slot_bytes))
        return mxc_term_usage("serve", "--slot-save-bytes: \"%s\" is no size like 4G", slots);
    /* prompts are what clients sent, too: who stores nothing has to ask for them by name */
    o->cache_dir = o->max_cache_bytes && (size || !s->args.no_store) ? folder : NULL;
    o->slot_dir = s->args.slot_dir;
    return 0;
}

/* The state folder, what is stored there, and how much. */
static int set_store(struct serve *s, struct mxc_server_options *o) {
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    const char *size = s->args.store_bytes;
    if (size && (!parse_size(size, &o->max_stored_bytes) || !o->max_stored_bytes))
        return mxc_term_usage("serve", "--store-bytes: \"%s\" is no size like 256M", size);
    const char *folder = s->args.state_dir;
    o->warn = note;
    if (!folder && state && *state == '/')
        folder = mxc_arena_printf(&s->arena, "%s/mlxcel", state);
    else if (!folder && home && *home == '/')
        folder = mxc_arena_printf(&s->arena, "%s/.local/state/mlxcel", home);
    else if (!folder)
        note("responses and prompts are not stored: neither --state-dir nor HOME says where", NULL);
    o->state_dir = s->args.no_store ? NULL : folder;
    return set_cache(s, o, folder);
}

/* Where pictures may come from, and what they may be. */
static int set_pictures(struct serve *s, struct mxc_server_options *o, const char **domains,
                        size_t max) {
    const struct mxc_serve_args *a = &s->args;
    o->media.folder = a->media_path;
    o->media.domains = domains;
    o->media.max_bytes = (size_t)a->max_image_mb << 20;
    o->image = mxc_image_defaults;
    o->image.max_pixels = (uint64_t)a->image_megapixels << 20;
    if (a->image_background && !mxc_image_colour(a->image_background, o->image.background))
        return mxc_term_usage("serve", "--image-background: \"%s\" is not RRGGBB",
                              a->image_background);
    return split(s, &a->media_domains, "--allow-media-domain", domains, max, &o->media.n_domains);
}

static int open_server(struct serve *s) {
    const struct mxc_serve_args *a = &s->args;
    struct mxc_server_options o;
    struct mxc_err err;
    const char *keys[MXC_SERVER_MAX_KEYS], *origins[MXC_SERVER_MAX_ORIGINS];
    const char *domains[MXC_SERVER_MAX_DOMAINS];
    const char *thoughts = a->reasoning_format ? a->reasoning_format : "auto";
    mxc_server_options_init(&o);
    o.host = a->host ? a->host : o.host;
    o.port = (int)a->port;
    o.prefix = a->prefix;
    o.tls_key_file = a->tls_key_file;
    o.tls_cert_file = a->tls_cert_file;
    o.key_file = a->key_file;
    o.no_key_needed = a->no_key_needed;
    o.max_body_bytes = (size_t)a->max_body_mb << 20;
    o.max_buffered_bytes =
        4 * o.max_body_bytes > o.max_buffered_bytes ? 4 * o.max_body_bytes : o.max_buffered_bytes;
    o.max_header_bytes = (size_t)a->max_header_kb << 10;
    o.max_json_depth = (int)a->max_json_depth;
    o.max_connections = (int)a->max_connections;
    o.max_per_key = (int)a->max_per_key;
    o.max_stream_bytes = (size_t)a->max_stream_kb << 10;
    o.http_threads = (int)a->http_threads;
    o.prep_threads = (int)a->prep_threads;
    o.header_ms = (int)(a->header_s * 1000);
    o.body_ms = o.write_ms = (int)(a->write_s * 1000);
    o.idle_ms = (int)(a->idle_s * 1000);
    o.ping_ms = (int)(a->ping_s * 1000);
    o.no_metrics = a->no_metrics;
    o.no_slots = a->no_slots;
    o.reasoning_inline = !strcmp(thoughts, "none");
    if (!o.reasoning_inline && strcmp(thoughts, "auto") != 0 && strcmp(thoughts, "deepseek") != 0)
        return mxc_term_usage("serve", "--reasoning-format: \"%s\" is not auto, deepseek or none",
                              thoughts);
    o.keys = keys;
    o.origins = origins;
    int status = split(s, &a->keys, "--api-key", keys, MXC_COUNT(keys), &o.n_keys);
    if (!status)
        status = split(s, &a->origins, "--cors-origin", origins, MXC_COUNT(origins), &o.n_origins);
    if (!status)
        status = set_pictures(s, &o, domains, MXC_COUNT(domains));
    if (!status)
        status = open_log(s, &o);
    if (!status)
        status = set_store(s, &o);
    if (!status && mxc_server_open(&o, s->host, &s->server, &err))
        status = mxc_term_err(&err);
    return status;
}

static void tell(const struct serve *s) {
    const struct mxc_serve_args *a = &s->args;
    const char *url = mxc_server_url(s->server);
    bool key = mxc_server_needs_key(s->server), is_unix = !strncmp(url, "unix:", 5);
    printf("listening on %s\n", url);
    for (int i = 0; i < mxc_host_count(s->host); i++) {
        struct mxc_host_info info;
        mxc_host_info(s->host, i, &info);
        printf("model %s: loading %s\n", info.name, info.path);
    }
    printf("limits: %lld sequences in flight, %lld waiting, bodies of %lld MiB, headers of %lld "
           "KiB, %lld connections, %s\n",
           (long long)(a->parallel > 0 ? a->parallel : 4), (long long)a->max_queue,
           (long long)a->max_body_mb, (long long)a->max_header_kb, (long long)a->max_connections,
           key ? "API key needed" : "no API key");
    printf("try: curl %s%s%s/v1/%s%s -H 'Content-Type: application/json' -d '%s'\n",
           is_unix ? "--unix-socket " : "", is_unix ? url + 5 : url,
           is_unix ? " http://localhost" : "", a->embeddings ? "embeddings" : "chat/completions",
           key ? " -H 'Authorization: Bearer KEY'" : "",
           a->embeddings ? "{\"input\": \"Hello\"}"
                         : "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}");
    (void)fflush(stdout);
}

/* ---- waiting */

static void on_change(void *user) {
    const struct serve *s = user;
    uint64_t one = 1;
    ssize_t n = write(s->changes, &one, sizeof one);
    (void)n;
}

static void tell_pictures(const struct mxc_host_info *info) {
    if (info->image_budget.max_pixels)
        printf("model %s: sees pictures, of at most %lld pixels after resizing "
               "(--image-max-pixels)\n",
               info->name, (long long)info->image_budget.max_pixels);
    else
        printf("model %s: sees pictures, of the size that its files say\n", info->name);
}

/* Says what changed. 1 when nothing can be served; 0: go on. */
static int tell_states(const struct serve *s, enum mxc_host_state said[MXC_HOST_MAX_MODELS]) {
    int left = 0, n = mxc_host_count(s->host);
    for (int i = 0; i < n; i++) {
        struct mxc_host_info info;
        mxc_host_info(s->host, i, &info);
        left += info.state != MXC_HOST_UNAVAILABLE;
        if (info.state == said[i])
            continue;
        said[i] = info.state;
        if (info.state == MXC_HOST_READY && mxc_host_vision(s->host, i))
            tell_pictures(&info);
        if (info.state == MXC_HOST_READY)
            printf("model %s: ready in %.2f s (%s, %s, context %d, KV %llu MiB)\n", info.name,
                   info.load_seconds, info.family, info.quantisation, info.context,
                   (unsigned long long)(info.kv_bytes >> 20));
        else if (info.state == MXC_HOST_LOST)
            mxc_term_note("model %s: lost, it cannot be served any more: %s", info.name,
                          info.err.message);
        else if (n > 1)
            mxc_term_note("model %s: unavailable: %s", info.name, info.err.message);
        else
            (void)mxc_term_err(&info.err);
        (void)fflush(stdout);
    }
    return left == 0;
}

/* A signal that waits; 0: none. */
static int next_signal(const struct serve *s, int timeout_ms) {
    struct pollfd fds[2] = {{s->signals, POLLIN, 0}, {s->changes, POLLIN, 0}};
    struct signalfd_siginfo info;
    uint64_t n;
    (void)poll(fds, 2, timeout_ms);
    ssize_t taken = read(s->changes, &n, sizeof n);
    (void)taken;
    return read(s->signals, &info, sizeof info) == (ssize_t)sizeof info ? (int)info.ssi_signo : 0;
}

static bool second_signal(void *user) {
    int n = next_signal(user, 0);
    return n == SIGTERM || n == SIGINT;
}

static int wait_for_end(struct serve *s) {
    enum mxc_host_state said[MXC_HOST_MAX_MODELS] = {MXC_HOST_LOADING};
    struct mxc_err err;
    for (;;) {
        int n = next_signal(s, -1);
        if (tell_states(s, said))
            return 1;
        if (n == SIGHUP && mxc_server_reload(s->server, &err))
            mxc_term_note("the keys stay as they were: %s", err.message);
        else if (n == SIGHUP)
            mxc_term_note("the key file was read again");
        if (n != SIGTERM && n != SIGINT)
            continue;
        mxc_term_note("draining; another signal ends at once");
        int left = mxc_server_drain(s->server, (int)(s->args.drain_s * 1000), second_signal, s);
        if (left)
            mxc_term_note("%d requests were cut off", left);
        return 0;
    }
}

static int open_signals(struct serve *s) {
    sigset_t set;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGINT);
    (void)sigaddset(&set, SIGHUP);
    /* before any thread is started: all of them inherit the mask */
    if (pthread_sigmask(SIG_BLOCK, &set, NULL) || signal(SIGPIPE, SIG_IGN) == SIG_ERR)
        return mxc_term_error("signals cannot be blocked");
    s->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    s->changes = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return s->signals < 0 || s->changes < 0 ? mxc_term_error("signalfd: %s", strerror(errno)) : 0;
}

static void set_defaults(struct mxc_serve_args *a) {
    *a = (struct mxc_serve_args){.parallel = 4,
                                 .max_chunk = 512,
                                 .max_queue = 64,
                                 .port = 8080,
                                 .max_body_mb = 64,
                                 .max_header_kb = 32,
                                 .max_json_depth = 128,
                                 .max_connections = 512,
                                 .max_stream_kb = 1024,
                                 .max_image_mb = 32,
                                 .image_megapixels = 64,
                                 .http_threads = 2,
                                 .prep_threads = 2,
                                 .write_s = 60,
                                 .header_s = 10,
                                 .idle_s = 75,
                                 .ping_s = 15,
                                 .drain_s = 30};
}

static int run_serve(int argc, char **argv) {
    struct serve s = {.signals = -1, .changes = -1, .log_fd = STDERR_FILENO};
    struct mlxcel_model_options load;
    struct mxc_err err;
    bool exit_now = false;
    mxc_arena_init(&s.arena, 0);
    set_defaults(&s.args);
    int status = parse(&s, argc, argv, &exit_now);
    if (!status && !exit_now && s.args.surface) {
        status = mxc_term_put_json(mxc_surface_json());
        exit_now = true;
    }
    if (status || exit_now) {
        mxc_arena_fini(&s.arena);
        return status;
    }
    const struct mxc_model_args model_args = {.backend = s.args.backend,
                                              .precision = s.args.precision,
                                              .cpu = s.args.cpu,
                                              .verbose = s.args.verbose};
    status = mxc_options_model("serve", &model_args, &load);
    if (!status && mxc_xla_place_find(&s.xla, &err))
        status = mxc_term_err(&err);
    if (!status)
        status = open_signals(&s);
    if (!status && mxc_host_new(&s.host, &err))
        status = mxc_term_err(&err);
    if (!status)
        status = add_models(&s, &load);
    if (!status)
        status = open_server(&s);
    if (!status) {
        tell(&s);
        status =
            mxc_host_start(s.host, on_change, &s, &err) ? mxc_term_err(&err) : wait_for_end(&s);
    }
    mxc_server_close(s.server);
    mxc_host_free(s.host);
    if (s.signals >= 0)
        (void)close(s.signals);
    if (s.changes >= 0)
        (void)close(s.changes);
    if (s.log_fd != STDERR_FILENO)
        (void)close(s.log_fd);
    mxc_xla_place_fini(&s.xla);
    mxc_arena_fini(&s.arena);
    return status;
}

const struct mxc_command mxc_command_serve = {
    "serve", "MODEL... [options]", "serve models to OpenAI, Anthropic and llama-server clients",
    run_serve};
