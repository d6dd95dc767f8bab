/* Client: opening a plugin and a client of it, facts about its devices, and errors.
 * In: a path. Out: an open client whose table of calls was checked before any of them was used:
 * major version, length, and that every call we cannot do without is there.
 * How a lost device is recognised: the plugin answers UNAVAILABLE, DATA_LOSS or ABORTED to anything
 * after the client is there, or INTERNAL or UNKNOWN to a run or a transfer (that is how device
 * runtimes report a fault of the device; a program that is wrong is refused when it is compiled,
 * an argument that is wrong with INVALID_ARGUMENT). The client is then marked, and the state on the
 * device counts as gone.
 * The plugin is never unloaded: device runtimes leave threads behind. */
#define _GNU_SOURCE
#ifdef MLXCEL_XLA_DEVICE_RUNTIME

#include "backend/xla/client_private.h"

#include "base/log.h"
#include "base/mem.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_CACHE_BYTES (UINT64_C(4) << 30)
enum { MAX_DEVICES = 1024, MAX_FACT_BYTES = 4096 };

/* ---- errors ---- */

static const char *code_name(int code) {
    static const char *const names[] = {"OK",
                                        "CANCELLED",
                                        "UNKNOWN",
                                        "INVALID_ARGUMENT",
                                        "TIMEOUT",
                                        "NOT_FOUND",
                                        "ALREADY_EXISTS",
                                        "PERMISSION_DENIED",
                                        "NO_MEMORY",
                                        "FAILED_PRECONDITION",
                                        "ABORTED",
                                        "OUT_OF_RANGE",
                                        "UNIMPLEMENTED",
                                        "INTERNAL",
                                        "UNAVAILABLE",
                                        "DATA_LOSS",
                                        "UNAUTHENTICATED"};
    return code >= 0 && (size_t)code < sizeof names / sizeof *names ? names[code] : "error";
}

static bool loses_device(int code, enum mxc_xla_phase phase) {
    if (phase == MXC_XLA_OPENING)
        return false;
    if (code == PJRT_UNAVAILABLE || code == PJRT_DATA_LOSS || code == PJRT_ABORTED)
        return true;
    return phase == MXC_XLA_RUNNING && (code == PJRT_INTERNAL || code == PJRT_UNKNOWN);
}

static enum mxc_code our_code(int code, enum mxc_xla_phase phase) {
    if (loses_device(code, phase))
        return MXC_E_DEVICE_LOST;
    if (code == PJRT_RESOURCE_EXHAUSTED)
        return MXC_E_NOMEM;
    if (code == PJRT_UNIMPLEMENTED)
        return MXC_E_UNSUPPORTED;
    return MXC_E_BACKEND;
}

bool mxc_xla_client_drop(const struct mxc_xla_client *client, struct pjrt_error *error) {
    if (error)
        client->api->error_destroy(&(struct pjrt_error_args){
            .struct_size = PJRT_SIZE(pjrt_error_args, error), .error = error});
    return error != NULL;
}

int mxc_xla_client_code(const struct mxc_xla_client *client, const struct pjrt_error *error) {
    if (!error)
        return 0;
    struct pjrt_error_code_args a = {.struct_size = PJRT_SIZE(pjrt_error_code_args, code),
                                     .error = error};
    if (mxc_xla_client_drop(client, client->api->error_code(&a)))
        return PJRT_UNKNOWN;
    return a.code;
}

enum mxc_code mxc_xla_client_check(struct mxc_xla_client *client, struct pjrt_error *error,
                                   enum mxc_xla_phase phase, struct mxc_err *err, const char *what,
                                   ...) {
    if (!error)
        return MXC_OK;
    char doing[160];
    va_list ap;
    va_start(ap, what);
    (void)vsnprintf(doing, sizeof doing, what, ap);
    va_end(ap);
    int theirs = mxc_xla_client_code(client, error);
    struct pjrt_error_message_args m = {
        .struct_size = PJRT_SIZE(pjrt_error_message_args, message_size), .error = error};
    client->api->error_message(&m);
    size_t size = m.message ? m.message_size : 0;
    enum mxc_code code = our_code(theirs, phase);
    if (code == MXC_E_DEVICE_LOST)
        client->lost = true;
    code = mxc_err_set(err, code, "XLA: %s: %s%s: %.*s", doing,
                       code == MXC_E_DEVICE_LOST ? "the device was lost: " : "", code_name(theirs),
                       (int)(size < MAX_FACT_BYTES ? size : MAX_FACT_BYTES),
                       m.message ? m.message : "");
    (void)mxc_xla_client_drop(client, error);
    return code;
}

void mxc_xla_client_event_free(const struct mxc_xla_client *client, struct pjrt_event *event) {
    if (event)
        (void)mxc_xla_client_drop(
            client, client->api->event_destroy(&(struct pjrt_event_args){
                        .struct_size = PJRT_SIZE(pjrt_event_args, event), .event = event}));
}

struct pjrt_error *mxc_xla_client_await(const struct mxc_xla_client *client,
                                        struct pjrt_event *event) {
    if (!event)
        return NULL;
    struct pjrt_error *error = client->api->event_await(&(struct pjrt_event_args){
        .struct_size = PJRT_SIZE(pjrt_event_args, event), .event = event});
    mxc_xla_client_event_free(client, event);
    return error;
}

enum mxc_code mxc_xla_client_usable(const struct mxc_xla_client *client, struct mxc_err *err) {
    if (!client->lost)
        return MXC_OK;
    return mxc_err_set(err, MXC_E_DEVICE_LOST, "XLA: the device was lost earlier");
}

/* ---- the plugin ---- */

/* Finds the table and checks all of it that we use. */
static enum mxc_code check_table(const char *path, const struct pjrt_api *api,
                                 struct mxc_err *err) {
    if (!api)
        return mxc_err_set(err, MXC_E_BACKEND, "XLA: %s: GetPjrtApi gave no table", path);
    if (api->struct_size < offsetof(struct pjrt_api, error_destroy))
        return mxc_err_set(err, MXC_E_UNSUPPORTED,
                           "XLA: %s: a table of %zu bytes is too short to hold a version", path,
                           api->struct_size);
    if (api->major != PJRT_MAJOR)
        return mxc_err_set(err, MXC_E_UNSUPPORTED,
                           "XLA: %s: PJRT API version %d.%d; this program speaks %d.x", path,
                           (int)api->major, (int)api->minor, PJRT_MAJOR);
    const size_t needed = offsetof(struct pjrt_api, buffer_to_host) + sizeof api->buffer_to_host;
    if (api->struct_size < needed)
        return mxc_err_set(err, MXC_E_UNSUPPORTED,
                           "XLA: %s: its table of calls (PJRT API %d.%d) is too short: %zu bytes, "
                           "%zu are needed",
                           path, (int)api->major, (int)api->minor, api->struct_size, needed);
    const struct {
        bool there;
        const char *name;
    } calls[] = {{api->error_destroy, "Error_Destroy"},
                 {api->error_message, "Error_Message"},
                 {api->error_code, "Error_GetCode"},
                 {api->plugin_initialize, "Plugin_Initialize"},
                 {api->event_destroy, "Event_Destroy"},
                 {api->event_await, "Event_Await"},
                 {api->client_create, "Client_Create"},
                 {api->client_destroy, "Client_Destroy"},
                 {api->client_platform_name, "Client_PlatformName"},
                 {api->client_platform_version, "Client_PlatformVersion"},
                 {api->client_addressable_devices, "Client_AddressableDevices"},
                 {api->client_compile, "Client_Compile"},
                 {api->client_buffer_from_host, "Client_BufferFromHostBuffer"},
                 {api->executable_destroy, "Executable_Destroy"},
                 {api->executable_num_outputs, "Executable_NumOutputs"},
                 {api->loaded_destroy, "LoadedExecutable_Destroy"},
                 {api->loaded_get_executable, "LoadedExecutable_GetExecutable"},
                 {api->loaded_execute, "LoadedExecutable_Execute"},
                 {api->buffer_destroy, "Buffer_Destroy"},
                 {api->buffer_to_host, "Buffer_ToHostBuffer"}};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (!calls[i].there)
            return mxc_err_set(err, MXC_E_UNSUPPORTED, "XLA: %s: the plugin has no %s", path,
                               calls[i].name);
    return MXC_OK;
}

static enum mxc_code load(const char *path, const struct pjrt_api **api, struct mxc_err *err) {
    if (!path || !*path)
        return mxc_err_set(err, MXC_E_NOT_FOUND,
                           "XLA: no plugin: set MLXCEL_XLA_PLUGIN or --xla-plugin to the path of a "
                           "PJRT plugin, or get one with \"mlxcel xla install cpu\"");
    if (!mxc_file_exists(path))
        return mxc_err_set(err, MXC_E_NOT_FOUND, "XLA: %s: there is no such plugin file", path);
    /* A path without a slash would be searched for elsewhere. */
    char *here = strchr(path, '/') ? NULL : mxc_path_join(".", path);
    if (!here && !strchr(path, '/'))
        return mxc_err_nomem(err);
    /* Nothing of the runtime on the terminal but what ends it: its errors come to us. Where the
     * user has said how much, that holds. */
    (void)setenv("TF_CPP_MIN_LOG_LEVEL", "3", 0);
    void *library = dlopen(here ? here : path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    mxc_mem_free(here);
    if (!library) {
        const char *why = dlerror();
        return mxc_err_set(err, MXC_E_BACKEND, "XLA: %s: cannot be loaded: %s", path,
                           why ? why : "no reason given");
    }
    const struct pjrt_api *(*get)(void);
    void *symbol = dlsym(library, "GetPjrtApi");
    if (!symbol) {
        (void)dlclose(library);
        return mxc_err_set(err, MXC_E_UNSUPPORTED,
                           "XLA: %s: not a PJRT plugin: it has no GetPjrtApi", path);
    }
    memcpy(&get, &symbol, sizeof get);
    const struct pjrt_api *table = get();
    enum mxc_code code = check_table(path, table, err);
    if (!code)
        *api = table;
    return code;
}

/* ---- the client ---- */

/* Options name what only some plugins know, and a plugin refuses those it does not: the CPU's
 * device count first, then the GPUs' choice of devices (unless all are wanted), then none. */
static enum mxc_code create(struct mxc_xla_client *c, int n_devices, struct mxc_err *err) {
    const bool all = n_devices == MXC_XLA_ALL_DEVICES;
    int64_t visible[MAX_DEVICES];
    for (int i = 0; i < n_devices; i++)
        visible[i] = i;
    static const char cpu[] = "cpu_device_count", gpu[] = "visible_devices";
    const struct pjrt_named_value options[] = {
        {.struct_size = sizeof options[0],
         .name = cpu,
         .name_size = sizeof cpu - 1,
         .kind = PJRT_VALUE_INT64,
         .value.i = all ? 1 : n_devices,
         .value_size = 1},
        {.struct_size = sizeof options[0],
         .name = gpu,
         .name_size = sizeof gpu - 1,
         .kind = PJRT_VALUE_INT64_LIST,
         .value.list = visible,
         .value_size = all ? 0 : (size_t)n_devices},
    };
    for (int i = 0;; i += all && !i ? 2 : 1) {
        struct pjrt_client_create_args a = {.struct_size =
                                                PJRT_SIZE(pjrt_client_create_args, try_get_user),
                                            .options = i < 2 ? &options[i] : NULL,
                                            .n_options = i < 2 ? 1 : 0};
        struct pjrt_error *error = c->api->client_create(&a);
        int code = mxc_xla_client_code(c, error);
        if (i < 2 && (code == PJRT_INVALID_ARGUMENT || code == PJRT_UNIMPLEMENTED)) {
            (void)mxc_xla_client_drop(c, error);
            continue;
        }
        if (!error)
            c->client = a.client;
        return mxc_xla_client_check(c, error, MXC_XLA_OPENING, err,
                                    "%s: the plugin finds no device that it can use",
                                    c->info.plugin);
    }
}

/* PJRT_NPROC is read when a client is made; it is set for that moment only. */
static enum mxc_code create_with_threads(struct mxc_xla_client *c, int n_devices, int n_threads,
                                         struct mxc_err *err) {
    static const char name[] = "PJRT_NPROC";
    const char *theirs = getenv(name);
    char text[16];
    bool ours = n_threads > 0 && !(theirs && *theirs);
    (void)snprintf(text, sizeof text, "%d", n_threads);
    if (ours)
        (void)setenv(name, text, 1);
    enum mxc_code code = create(c, n_devices, err);
    theirs = getenv(name);
    c->n_threads = theirs ? atoi(theirs) : 0;
    if (ours)
        (void)unsetenv(name);
    return code;
}

static enum mxc_code take_text(const char *text, size_t size, const char **out,
                               struct mxc_err *err) {
    size_t n = text ? (size < MAX_FACT_BYTES ? size : MAX_FACT_BYTES) : 0;
    *out = mxc_mem_dup(text ? text : "", n);
    return *out ? MXC_OK : mxc_err_nomem(err);
}

static enum mxc_code read_platform(struct mxc_xla_client *c, struct mxc_err *err) {
    struct pjrt_client_text_args a = {.struct_size = PJRT_SIZE(pjrt_client_text_args, text_size),
                                      .client = c->client};
    enum mxc_code code = mxc_xla_client_check(c, c->api->client_platform_name(&a), MXC_XLA_OPENING,
                                              err, "asking for the platform");
    if (code || (code = take_text(a.text, a.text_size, &c->info.platform, err)))
        return code;
    code = mxc_xla_client_check(c, c->api->client_platform_version(&a), MXC_XLA_OPENING, err,
                                "asking for the platform's version");
    if (code || (code = take_text(a.text, a.text_size, &c->info.version, err)))
        return code;
    c->info.is_cpu = !strcmp(c->info.platform, "cpu");
    return MXC_OK;
}

/* What a device says of itself is for people: a plugin that has no such call leaves it empty. */
static enum mxc_code describe(struct mxc_xla_client *c, struct pjrt_device *device,
                              struct mxc_xla_device_info *info, struct mxc_err *err) {
    struct pjrt_device_description_args d = {
        .struct_size = PJRT_SIZE(pjrt_device_description_args, description), .device = device};
    struct pjrt_description_text_args kind = {.struct_size =
                                                  PJRT_SIZE(pjrt_description_text_args, text_size)};
    struct pjrt_description_text_args line = kind;
    if (PJRT_HAS(c->api, device_description) && PJRT_HAS(c->api, description_kind) &&
        PJRT_HAS(c->api, description_debug_string) &&
        !mxc_xla_client_drop(c, c->api->device_description(&d))) {
        kind.description = line.description = d.description;
        if (mxc_xla_client_drop(c, c->api->description_kind(&kind)))
            kind.text = NULL;
        if (mxc_xla_client_drop(c, c->api->description_debug_string(&line)))
            line.text = NULL;
    }
    struct pjrt_device_memory_args m = {
        .struct_size = PJRT_SIZE(pjrt_device_memory_args, peak_allocated_set), .device = device};
    if (PJRT_HAS(c->api, device_memory_stats) &&
        !mxc_xla_client_drop(c, c->api->device_memory_stats(&m))) {
        info->memory_bytes = m.limit_set && m.limit > 0 ? (uint64_t)m.limit : 0;
        info->in_use_bytes = m.in_use > 0 ? (uint64_t)m.in_use : 0;
    }
    enum mxc_code code = take_text(kind.text, kind.text_size, &info->kind, err);
    return code ? code : take_text(line.text, line.text_size, &info->description, err);
}

static enum mxc_code read_devices(struct mxc_xla_client *c, int n_devices, struct mxc_err *err) {
    struct pjrt_client_devices_args a = {
        .struct_size = PJRT_SIZE(pjrt_client_devices_args, n_devices), .client = c->client};
    enum mxc_code code = mxc_xla_client_check(c, c->api->client_addressable_devices(&a),
                                              MXC_XLA_OPENING, err, "asking for the devices");
    if (code)
        return code;
    if (n_devices == MXC_XLA_ALL_DEVICES)
        n_devices = a.n_devices < MAX_DEVICES ? (int)a.n_devices : MAX_DEVICES;
    if (!n_devices || a.n_devices < (size_t)n_devices)
        return mxc_err_set(err, MXC_E_UNSUPPORTED,
                           "XLA: platform %s has %zu device%s; %d %s asked for", c->info.platform,
                           a.n_devices, a.n_devices == 1 ? "" : "s", n_devices ? n_devices : 1,
                           n_devices < 2 ? "was" : "were");
    c->devices = mxc_mem_zalloc((size_t)n_devices, sizeof(struct pjrt_device *));
    c->device_info = mxc_mem_zalloc((size_t)n_devices, sizeof *c->device_info);
    if (!c->devices || !c->device_info)
        return mxc_err_nomem(err);
    c->info.n_devices = n_devices;
    c->info.devices = c->device_info;
    for (int i = 0; !code && i < n_devices; i++) {
        c->devices[i] = a.devices[i];
        code = describe(c, a.devices[i], &c->device_info[i], err);
    }
    return code;
}

/* Without its folder a client works, only slower. */
static enum mxc_code open_cache(struct mxc_xla_client *c,
                                const struct mxc_xla_client_options *options, struct mxc_err *err) {
    struct mxc_err why;
    uint64_t bytes = options->cache_bytes ? options->cache_bytes : DEFAULT_CACHE_BYTES;
    if (mxc_xla_cache_open(options->cache_dir, bytes, &c->cache, &why)) {
        if (why.code == MXC_E_NOMEM)
            return mxc_err_nomem(err);
        mxc_log(MXC_LOG_WARN, "XLA: compiled programs are not kept: %s", why.message);
        c->cache = NULL;
        return MXC_OK;
    }
    return mxc_xla_cache_file_digest(c->cache, c->info.plugin, c->digest, err);
}

enum mxc_code mxc_xla_client_open(const struct mxc_xla_client_options *options,
                                  struct mxc_xla_client **client, struct mxc_err *err) {
    int n_devices = options->n_devices ? options->n_devices : 1;
    if (n_devices != MXC_XLA_ALL_DEVICES && (n_devices < 1 || n_devices > MAX_DEVICES))
        return mxc_err_set(err, MXC_E_ARG, "XLA: %d devices: must be 1 to %d", n_devices,
                           MAX_DEVICES);
    const struct pjrt_api *api = NULL;
    enum mxc_code code = load(options->plugin, &api, err);
    if (code)
        return code;
    struct mxc_xla_client *c = mxc_mem_zalloc(1, sizeof *c);
    if (!c)
        return mxc_err_nomem(err);
    c->api = api;
    c->info.api_major = api->major;
    c->info.api_minor = api->minor;
    c->info.digest = c->digest;
    if (!(c->info.plugin = mxc_mem_strdup(options->plugin))) {
        code = mxc_err_nomem(err);
        goto out;
    }
    struct pjrt_plugin_initialize_args a = {.struct_size = sizeof a};
    if ((code = mxc_xla_client_check(c, api->plugin_initialize(&a), MXC_XLA_OPENING, err,
                                     "%s: the plugin does not start", options->plugin)) ||
        (options->cache_dir && *options->cache_dir && (code = open_cache(c, options, err))) ||
        (code = create_with_threads(c, n_devices, options->n_threads, err)) ||
        (code = read_platform(c, err)) || (code = read_devices(c, n_devices, err)))
        goto out;
    *client = c;
    c = NULL;
out:
    mxc_xla_client_close(c);
    return code;
}

void mxc_xla_client_close(struct mxc_xla_client *client) {
    if (!client)
        return;
    if (client->client)
        (void)mxc_xla_client_drop(client, client->api->client_destroy(&(struct pjrt_client_args){
                                              .struct_size = PJRT_SIZE(pjrt_client_args, client),
                                              .client = client->client}));
    mxc_xla_cache_close(client->cache);
    for (int i = 0; i < client->info.n_devices; i++) {
        mxc_mem_free((void *)(uintptr_t)client->device_info[i].kind);
        mxc_mem_free((void *)(uintptr_t)client->device_info[i].description);
    }
    mxc_mem_free(client->device_info);
    mxc_mem_free(client->devices);
    mxc_mem_free((void *)(uintptr_t)client->info.plugin);
    mxc_mem_free((void *)(uintptr_t)client->info.platform);
    mxc_mem_free((void *)(uintptr_t)client->info.version);
    mxc_mem_free(client);
}

const struct mxc_xla_client_info *mxc_xla_client_info(const struct mxc_xla_client *client) {
    return &client->info;
}

bool mxc_xla_client_lost(const struct mxc_xla_client *client) {
    return client->lost;
}

void mxc_xla_client_counters(const struct mxc_xla_client *client, struct mxc_xla_counters *out) {
    *out = client->counters;
}

#endif
