/* Fake plugin: see fake_plugin.h. Objects are kept in one list until reset and only marked when
 * they are destroyed, so that a second destroy or a later use is seen and harmless. */
#define _GNU_SOURCE
#include "fake_plugin.h"

#include "backend/xla/pjrt.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEVICES = 8, MAX_DIMS = 8, MAX_PARAMS = 4096 };
#define BLOB_MARK "fake blob 1\n"

enum kind { ERROR, EVENT, CLIENT, BUFFER, EXECUTABLE, LOADED, SERIALIZED, DEVICE, N_KINDS };

struct param {
    int32_t type;
    size_t n_dims;
    int64_t dims[MAX_DIMS];
    bool donated;
    int alias; /* result that takes the memory over, -1: none */
};

struct object {
    enum kind kind;
    bool dead;
    struct object *next;
    /* error */
    int code;
    char text[200];
    /* event */
    bool awaited, never; /* never: awaiting it would not end */
    /* buffer */
    struct param shape;
    unsigned char *data;
    bool host, deleted, packed;
    const struct object *device;
    /* executable, loaded */
    struct param *inputs, *outputs;
    size_t n_inputs, n_outputs, n_devices;
    bool spmd;
    char *blob; /* what it is made of: BLOB_MARK, options in hex, newline, text */
    size_t blob_size;
};

struct pjrt_error {
    struct object o;
};

static struct object *objects;
static struct object devices[MAX_DEVICES];
static struct fake_plugin state;

__attribute__((format(printf, 1, 2))) static void bad(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    if (!state.n_bad++)
        (void)vsnprintf(state.bad, sizeof state.bad, fmt, ap);
    va_end(ap);
}

static uint64_t *live(enum kind kind) {
    switch (kind) {
    case ERROR:
        return &state.live_errors;
    case EVENT:
        return &state.live_events;
    case CLIENT:
        return &state.live_clients;
    case BUFFER:
        return &state.live_buffers;
    case EXECUTABLE:
        return &state.live_executables;
    case LOADED:
        return &state.live_loaded;
    default:
        return &state.live_serialized;
    }
}

static struct object *make(enum kind kind) {
    struct object *o = calloc(1, sizeof *o);
    if (!o)
        abort();
    o->kind = kind;
    o->next = objects;
    objects = o;
    ++*live(kind);
    return o;
}

/* The object behind a handle; NULL, and noted, when it is none or gone. */
static struct object *object(const void *handle, enum kind kind, const char *call) {
    static const char *const names[N_KINDS] = {"error",      "event",  "client",     "buffer",
                                               "executable", "loaded", "serialized", "device"};
    if (kind == DEVICE) {
        for (int i = 0; i < MAX_DEVICES; i++)
            if (handle == &devices[i])
                return &devices[i];
    }
    for (struct object *o = objects; o; o = o->next)
        if (o == handle && o->kind == kind) {
            if (!o->dead)
                return o;
            bad("%s: the %s was destroyed before", call, names[kind]);
            return NULL;
        }
    bad("%s: not one of our %ss", call, names[kind]);
    return NULL;
}

static void note(const char *name) {
    size_t n = strlen(state.order);
    (void)snprintf(state.order + n, sizeof state.order - n, " %s", name);
}

static void destroy(const void *handle, enum kind kind, const char *name) {
    if (kind != ERROR)
        note(name);
    struct object *o = object(handle, kind, name);
    if (!o)
        return;
    if (kind == EVENT && !o->awaited && !o->never)
        bad("an event was destroyed before it was awaited");
    if (kind == CLIENT &&
        (state.live_buffers || state.live_loaded || state.live_executables || state.live_events))
        bad("a client was destroyed before what was made with it");
    o->dead = true;
    --*live(kind);
    if (kind == BUFFER && !o->host) {
        free(o->data);
        o->data = NULL;
    }
}

static struct pjrt_error *fail(int code, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
static struct pjrt_error *fail(int code, const char *fmt, ...) {
    struct object *o = make(ERROR);
    va_list ap;
    va_start(ap, fmt);
    o->code = code;
    (void)vsnprintf(o->text, sizeof o->text, fmt, ap);
    va_end(ap);
    return (struct pjrt_error *)(void *)o;
}

/* Counts a call that can fail; the error that the test wants of it, or NULL. */
static struct pjrt_error *enter(enum fake_call call, const char *name, size_t given,
                                size_t wanted) {
    note(name);
    state.n_calls++;
    state.calls[call]++;
    if (given != wanted)
        bad("%s: struct_size %zu, not %zu", name, given, wanted);
    if (state.lost) {
        state.calls_when_lost++;
        return fail(PJRT_UNAVAILABLE, "the fake device is lost");
    }
    if (state.n_calls == state.fail_at || state.fail_call == (int)call)
        return fail(state.fail_code, "%s was told to fail", name);
    return NULL;
}

#define ENTER(call, type, last)                                                                    \
    struct pjrt_error *error_ = enter(call, __func__, a->struct_size, PJRT_SIZE(type, last));      \
    if (error_)                                                                                    \
    return error_

/* ---- errors, events ---- */

static void error_destroy(struct pjrt_error_args *a) {
    destroy(a->error, ERROR, __func__);
}

static void error_message(struct pjrt_error_message_args *a) {
    const struct object *o = object(a->error, ERROR, __func__);
    a->message = o ? o->text : NULL;
    a->message_size = o ? strlen(o->text) : 0;
}

static struct pjrt_error *error_code(struct pjrt_error_code_args *a) {
    const struct object *o = object(a->error, ERROR, __func__);
    a->code = o ? o->code : 0;
    return NULL;
}

static struct object *event(bool never) {
    struct object *o = make(EVENT);
    o->never = never;
    return o;
}

static struct pjrt_error *event_destroy(struct pjrt_event_args *a) {
    destroy(a->event, EVENT, __func__);
    return NULL;
}

static struct pjrt_error *Await(struct pjrt_event_args *a) {
    struct object *o = object(a->event, EVENT, __func__);
    if (o && o->never)
        bad("the event of memory used in place was awaited");
    if (o && o->awaited)
        bad("an event was awaited twice");
    if (o)
        o->awaited = true;
    ENTER(FAKE_AWAIT, pjrt_event_args, event);
    return NULL;
}

/* ---- client ---- */

static struct pjrt_error *Initialize(struct pjrt_plugin_initialize_args *a) {
    ENTER(FAKE_INITIALIZE, pjrt_plugin_initialize_args, extensions);
    return NULL;
}

static struct pjrt_error *Create(struct pjrt_client_create_args *a) {
    ENTER(FAKE_CREATE, pjrt_client_create_args, try_get_user);
    state.client_devices = state.n_devices;
    for (size_t i = 0; i < a->n_options; i++) {
        const struct pjrt_named_value *v = &a->options[i];
        bool cpu = v->name_size == 16 && !memcmp(v->name, "cpu_device_count", 16);
        bool gpu = v->name_size == 15 && !memcmp(v->name, "visible_devices", 15);
        if (cpu && !state.no_cpu_option)
            state.client_devices = (int)v->value.i;
        else if (!gpu || state.no_gpu_option)
            return fail(PJRT_INVALID_ARGUMENT, "unknown option %.*s", (int)v->name_size, v->name);
    }
    const char *threads = getenv("PJRT_NPROC"), *level = getenv("TF_CPP_MIN_LOG_LEVEL");
    (void)snprintf(state.threads, sizeof state.threads, "%s", threads ? threads : "");
    (void)snprintf(state.log_level, sizeof state.log_level, "%s", level ? level : "");
    a->client = (struct pjrt_client *)(void *)make(CLIENT);
    return NULL;
}

static struct pjrt_error *client_destroy(struct pjrt_client_args *a) {
    destroy(a->client, CLIENT, __func__);
    return NULL;
}

static struct pjrt_error *PlatformName(struct pjrt_client_text_args *a) {
    ENTER(FAKE_PLATFORM_NAME, pjrt_client_text_args, text_size);
    a->text = state.platform;
    a->text_size = strlen(a->text);
    return NULL;
}

static struct pjrt_error *PlatformVersion(struct pjrt_client_text_args *a) {
    ENTER(FAKE_PLATFORM_VERSION, pjrt_client_text_args, text_size);
    a->text = "fake 1";
    a->text_size = 6;
    return NULL;
}

static struct pjrt_error *Devices(struct pjrt_client_devices_args *a) {
    ENTER(FAKE_DEVICES, pjrt_client_devices_args, n_devices);
    static struct pjrt_device *list[MAX_DEVICES];
    int n = state.client_devices < MAX_DEVICES ? state.client_devices : MAX_DEVICES;
    for (int i = 0; i < n; i++)
        list[i] = (struct pjrt_device *)(void *)&devices[i];
    a->devices = list;
    a->n_devices = (size_t)n;
    return NULL;
}

static struct pjrt_error *Description(struct pjrt_device_description_args *a) {
    ENTER(FAKE_DESCRIPTION, pjrt_device_description_args, description);
    a->description = (struct pjrt_device_description *)(void *)a->device;
    return NULL;
}

static struct pjrt_error *Kind(struct pjrt_description_text_args *a) {
    ENTER(FAKE_KIND, pjrt_description_text_args, text_size);
    a->text = "fake device";
    a->text_size = 11;
    return NULL;
}

static struct pjrt_error *DebugString(struct pjrt_description_text_args *a) {
    ENTER(FAKE_DEBUG_STRING, pjrt_description_text_args, text_size);
    a->text = "a device that is none";
    a->text_size = 21;
    return NULL;
}

static struct pjrt_error *MemoryStats(struct pjrt_device_memory_args *a) {
    ENTER(FAKE_MEMORY_STATS, pjrt_device_memory_args, peak_allocated_set);
    a->in_use = 1000;
    a->limit = state.memory;
    a->limit_set = true;
    return NULL;
}

/* ---- programs ---- */

static size_t count_of(const struct param *p) {
    size_t n = 1;
    for (size_t i = 0; i < p->n_dims; i++)
        n *= (size_t)p->dims[i];
    return n;
}

/* Bytes in memory; 4-bit values one to a byte. */
static size_t bytes_of(const struct param *p) {
    size_t size =
        p->type == PJRT_S64                                                 ? 8
        : p->type == PJRT_F32 || p->type == PJRT_S32 || p->type == PJRT_U32 ? 4
        : p->type == PJRT_F16 || p->type == PJRT_BF16 || p->type == PJRT_S16 || p->type == PJRT_U16
            ? 2
            : 1;
    return size * count_of(p);
}

/* "4x8xf32>": false when it is none. */
static bool parse_type(const char *p, struct param *out) {
    static const struct {
        const char *name;
        int32_t type;
    } names[] = {{"f32>", PJRT_F32},  {"bf16>", PJRT_BF16}, {"f16>", PJRT_F16}, {"i64>", PJRT_S64},
                 {"i32>", PJRT_S32},  {"i16>", PJRT_S16},   {"i8>", PJRT_S8},   {"ui32>", PJRT_U32},
                 {"ui16>", PJRT_U16}, {"ui8>", PJRT_U8},    {"i4>", PJRT_S4},   {"ui4>", PJRT_U4},
                 {"i1>", PJRT_PRED}};
    *out = (struct param){.alias = -1};
    for (char *end; isdigit((unsigned char)*p); p = end + 1) {
        long n = strtol(p, &end, 10);
        if (*end != 'x' || out->n_dims == MAX_DIMS)
            return false;
        out->dims[out->n_dims++] = n;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strncmp(p, names[i].name, strlen(names[i].name))) {
            out->type = names[i].type;
            return true;
        }
    return false;
}

/* Types of a list up to the parenthesis that closes it; NULL: malformed. */
static const char *parse_list(const char *p, struct param **list, size_t *n) {
    static struct param room[MAX_PARAMS];
    int braces = 0;
    for (*n = 0; *p; p++) {
        if (*p == '"') {
            if (!(p = strchr(p + 1, '"')))
                return NULL;
        } else if (*p == '{' || *p == '}') {
            braces += *p == '{' ? 1 : -1;
        } else if (braces) {
            if (*n && !strncmp(p, "tf.aliasing_output = ", 21)) {
                room[*n - 1].alias = atoi(p + 21);
                room[*n - 1].donated = true;
            } else if (*n && !strncmp(p, "jax.buffer_donor = true", 23)) {
                room[*n - 1].donated = true;
            }
        } else if (!strncmp(p, "tensor<", 7)) {
            if (*n == MAX_PARAMS || !parse_type(p + 7, &room[(*n)++]))
                return NULL;
        } else if (*p == ')') {
            break;
        }
    }
    if (!(*list = malloc((*n + 1) * sizeof **list)))
        abort();
    memcpy(*list, room, *n * sizeof **list);
    return *p ? p + 1 : NULL;
}

static bool parse_main(const char *text, struct object *o) {
    const char *p = strstr(text, "@main(");
    if (!p || !(p = parse_list(p + 6, &o->inputs, &o->n_inputs)) || !(p = strstr(p, "->")))
        return false;
    p += strspn(p, "-> ");
    if (*p == '(')
        return parse_list(p + 1, &o->outputs, &o->n_outputs) != NULL;
    if (strncmp(p, "tensor<", 7) || !(o->outputs = malloc(sizeof *o->outputs)))
        return false;
    o->n_outputs = 1;
    return parse_type(p + 7, o->outputs);
}

static uint64_t varint(const unsigned char **p, const unsigned char *end) {
    uint64_t v = 0;
    for (unsigned shift = 0; *p < end && shift < 64; shift += 7) {
        unsigned char b = *(*p)++;
        v |= (uint64_t)(b & 127) << shift;
        if (!(b & 128))
            break;
    }
    return v;
}

/* Replicas times partitions of a CompileOptionsProto; 0 where a real plugin would abort. */
static size_t parse_options(const unsigned char *p, size_t n, bool *spmd) {
    const unsigned char *end = p + n;
    uint64_t replicas = 0, partitions = 0;
    *spmd = false;
    while (p < end) {
        uint64_t key = varint(&p, end), length = varint(&p, end);
        const unsigned char *inner = p, *stop = p + length;
        if ((key & 7) != 2 || length > (size_t)(end - p))
            return 0;
        p = stop;
        while (key >> 3 == 3 && inner < stop) {
            uint64_t field = varint(&inner, stop) >> 3, value = varint(&inner, stop);
            replicas = field == 4 ? value : replicas;
            partitions = field == 5 ? value : partitions;
            *spmd = *spmd || (field == 6 && value);
        }
    }
    return (size_t)(replicas * partitions);
}

static struct pjrt_error *load(const char *text, size_t text_size, const unsigned char *options,
                               size_t options_size, struct pjrt_loaded **loaded) {
    bool spmd;
    char *copy = strndup(text, text_size);
    size_t n_devices = parse_options(options, options_size, &spmd);
    if (!copy)
        abort();
    if (!n_devices)
        bad("options without counts of replicas and partitions");
    struct object *o = make(LOADED);
    o->n_devices = n_devices;
    o->spmd = spmd;
    if (!parse_main(copy, o)) {
        free(copy);
        o->dead = true;
        state.live_loaded--;
        return fail(PJRT_INVALID_ARGUMENT, "no main that can be read");
    }
    o->blob_size = sizeof BLOB_MARK - 1 + 2 + options_size + text_size;
    if (!(o->blob = malloc(o->blob_size)))
        abort();
    char *p = o->blob;
    memcpy(p, BLOB_MARK, sizeof BLOB_MARK - 1);
    p += sizeof BLOB_MARK - 1;
    *p++ = (char)(options_size & 255);
    *p++ = (char)(options_size >> 8);
    memcpy(p, options, options_size);
    memcpy(p + options_size, text, text_size);
    free(copy);
    *loaded = (struct pjrt_loaded *)(void *)o;
    return NULL;
}

static struct pjrt_error *Compile(struct pjrt_client_compile_args *a) {
    ENTER(FAKE_COMPILE, pjrt_client_compile_args, loaded);
    (void)object(a->client, CLIENT, __func__);
    state.options_size = a->options_size < sizeof state.options ? a->options_size : 0;
    memcpy(state.options, a->options, state.options_size);
    static const char flag[] = "xla_cpu_scheduler_type", unknown[] = "xla_no_such_flag";
    if (state.no_scheduler && memmem(a->options, a->options_size, flag, sizeof flag - 1))
        return fail(PJRT_INVALID_ARGUMENT, "no such flag: %s", flag);
    if (memmem(a->options, a->options_size, unknown, sizeof unknown - 1))
        return fail(PJRT_INVALID_ARGUMENT, "no such flag: %s", unknown);
    if (a->program->format_size != 4 || memcmp(a->program->format, "mlir", 4))
        bad("the format of a program");
    return load(a->program->code, a->program->code_size, (const unsigned char *)a->options,
                a->options_size, &a->loaded);
}

static struct pjrt_error *GetExecutable(struct pjrt_get_executable_args *a) {
    ENTER(FAKE_GET_EXECUTABLE, pjrt_get_executable_args, executable);
    const struct object *loaded = object(a->loaded, LOADED, __func__);
    struct object *o = make(EXECUTABLE);
    o->n_outputs = loaded->n_outputs;
    o->blob_size = loaded->blob_size;
    if (!(o->blob = malloc(o->blob_size)))
        abort();
    memcpy(o->blob, loaded->blob, o->blob_size);
    a->executable = (struct pjrt_executable *)(void *)o;
    return NULL;
}

static struct pjrt_error *NumOutputs(struct pjrt_num_outputs_args *a) {
    ENTER(FAKE_NUM_OUTPUTS, pjrt_num_outputs_args, n_outputs);
    const struct object *o = object(a->executable, EXECUTABLE, __func__);
    a->n_outputs = o->n_outputs + (size_t)state.n_results_wrong;
    return NULL;
}

static struct pjrt_error *CompiledMemory(struct pjrt_memory_stats_args *a) {
    ENTER(FAKE_COMPILED_MEMORY, pjrt_memory_stats_args, peak_unpadded);
    (void)object(a->executable, EXECUTABLE, __func__);
    a->temp = 4242;
    return NULL;
}

static void release(struct pjrt_serialized *serialized) {
    destroy(serialized, SERIALIZED, __func__);
}

static struct pjrt_error *Serialize(struct pjrt_serialize_args *a) {
    ENTER(FAKE_SERIALIZE, pjrt_serialize_args, release);
    const struct object *o = object(a->executable, EXECUTABLE, __func__);
    if (state.no_serialize)
        return fail(PJRT_UNIMPLEMENTED, "no serialising here");
    a->bytes = o->blob;
    a->n_bytes = o->blob_size;
    a->serialized = (struct pjrt_serialized *)(void *)make(SERIALIZED);
    a->release = release;
    return NULL;
}

static struct pjrt_error *Deserialize(struct pjrt_deserialize_args *a) {
    ENTER(FAKE_DESERIALIZE, pjrt_deserialize_args, load_options);
    const size_t mark = sizeof BLOB_MARK - 1;
    const unsigned char *p = (const unsigned char *)a->bytes + mark;
    if (a->n_bytes < mark + 2 || memcmp(a->bytes, BLOB_MARK, mark) != 0)
        return fail(PJRT_INVALID_ARGUMENT, "not a blob of ours");
    size_t options = (size_t)p[0] | (size_t)p[1] << 8;
    if (options > a->n_bytes - mark - 2)
        return fail(PJRT_INVALID_ARGUMENT, "a blob that was cut");
    return load(a->bytes + mark + 2 + options, a->n_bytes - mark - 2 - options, p + 2, options,
                &a->loaded);
}

static struct pjrt_error *executable_destroy(struct pjrt_executable_args *a) {
    destroy(a->executable, EXECUTABLE, __func__);
    return NULL;
}

static struct pjrt_error *loaded_destroy(struct pjrt_loaded_args *a) {
    destroy(a->loaded, LOADED, __func__);
    return NULL;
}

/* ---- buffers ---- */

static struct object *buffer(const struct param *shape, const struct object *device) {
    struct object *o = make(BUFFER);
    o->shape = *shape;
    o->device = device;
    return o;
}

static struct param shape_of(int32_t type, const int64_t *dims, size_t n_dims) {
    struct param p = {.type = type, .n_dims = n_dims < MAX_DIMS ? n_dims : MAX_DIMS, .alias = -1};
    for (size_t i = 0; i < p.n_dims; i++)
        p.dims[i] = dims[i];
    return p;
}

static struct pjrt_error *FromHost(struct pjrt_buffer_from_host_args *a) {
    ENTER(FAKE_FROM_HOST, pjrt_buffer_from_host_args, buffer);
    (void)object(a->client, CLIENT, __func__);
    struct param shape = shape_of(a->type, a->dims, a->n_dims);
    struct object *o = buffer(&shape, object(a->device, DEVICE, __func__));
    size_t n = bytes_of(&shape);
    o->host = a->semantics == PJRT_HOST_ZERO_COPY && (uintptr_t)a->data % 64 == 0;
    if (o->host) {
        o->data = (unsigned char *)(uintptr_t)a->data;
    } else {
        if (!(o->data = malloc(n + 1)))
            abort();
        memcpy(o->data, a->data, n);
    }
    a->done = (struct pjrt_event *)(void *)event(a->semantics == PJRT_HOST_ZERO_COPY);
    a->buffer = (struct pjrt_buffer *)(void *)o;
    return NULL;
}

static struct pjrt_error *View(struct pjrt_buffer_view_args *a) {
    ENTER(FAKE_VIEW, pjrt_buffer_view_args, memory);
    if (!a->on_delete)
        bad("a view without on_delete: real plugins abort when it goes");
    if (state.no_view || (uintptr_t)a->data % 64)
        return fail(PJRT_INVALID_ARGUMENT, "no view of that");
    struct param shape = shape_of(a->type, a->dims, a->n_dims);
    struct object *o = buffer(&shape, object(a->device, DEVICE, __func__));
    o->host = o->packed = true;
    o->data = a->data;
    a->buffer = (struct pjrt_buffer *)(void *)o;
    return NULL;
}

static struct pjrt_error *buffer_destroy(struct pjrt_buffer_args *a) {
    destroy(a->buffer, BUFFER, __func__);
    return NULL;
}

static struct pjrt_error *ToHost(struct pjrt_buffer_to_host_args *a) {
    ENTER(FAKE_TO_HOST, pjrt_buffer_to_host_args, done);
    const struct object *o = object(a->buffer, BUFFER, __func__);
    size_t n = o ? bytes_of(&o->shape) : 0;
    if (!o || o->deleted || !o->data) {
        bad("a buffer that is gone was read");
        return fail(PJRT_INVALID_ARGUMENT, "the buffer is gone");
    }
    if (a->n_bytes < n)
        return fail(PJRT_INVALID_ARGUMENT, "room for %zu bytes of %zu", a->n_bytes, n);
    unsigned char *to = a->data;
    for (size_t i = 0; i < n; i++)
        if (o->packed)
            to[i] = (unsigned char)(o->data[i / 2] >> (i % 2 * 4) & 15);
        else
            to[i] = o->data[i];
    a->done = (struct pjrt_event *)(void *)event(false);
    return NULL;
}

static bool same(const struct param *a, const struct param *b) {
    return a->type == b->type && a->n_dims == b->n_dims &&
           !memcmp(a->dims, b->dims, a->n_dims * sizeof *a->dims);
}

static struct pjrt_error *Execute(struct pjrt_execute_args *a) {
    if (state.lose_after && state.executions == state.lose_after && !state.lost) {
        note(__func__);
        state.lost = true;
        return fail(PJRT_UNAVAILABLE, "the fake device was lost");
    }
    ENTER(FAKE_EXECUTE, pjrt_execute_args, device);
    const struct object *p = object(a->loaded, LOADED, __func__);
    if (a->options->struct_size != PJRT_SIZE(pjrt_execute_options, n_output_callbacks))
        bad("the size of the options of a run");
    if (a->n_arguments != p->n_inputs || a->n_devices != p->n_devices || !a->events)
        return fail(PJRT_INVALID_ARGUMENT, "%zu arguments on %zu devices", a->n_arguments,
                    a->n_devices);
    for (size_t d = 0; d < a->n_devices; d++)
        for (size_t i = 0; i < a->n_arguments; i++) {
            struct object *in = object(a->arguments[d][i], BUFFER, __func__);
            if (!in || in->deleted) {
                bad("argument %zu is gone", i);
                return fail(PJRT_INVALID_ARGUMENT, "argument %zu is gone", i);
            }
            if (!p->spmd && !same(&in->shape, &p->inputs[i]))
                bad("argument %zu has another type or shape", i);
            if (in->device != &devices[d])
                bad("argument %zu is on another device", i);
            if (p->inputs[i].donated && in->host)
                bad("host memory was donated");
        }
    for (size_t d = 0; d < a->n_devices; d++) {
        for (size_t i = 0; i < p->n_outputs; i++) {
            struct object *out = buffer(&p->outputs[i], &devices[d]);
            if (!(out->data = calloc(bytes_of(&out->shape) + 1, 1)))
                abort();
            a->outputs[d][i] = (struct pjrt_buffer *)(void *)out;
        }
        for (size_t i = 0; i < p->n_inputs; i++) {
            const struct param *param = &p->inputs[i];
            struct object *in = (struct object *)(void *)a->arguments[d][i];
            if (!param->donated)
                continue;
            if (param->alias >= 0 && (size_t)param->alias < p->n_outputs &&
                same(param, &p->outputs[param->alias])) {
                struct object *out = (struct object *)(void *)a->outputs[d][param->alias];
                unsigned char *spare = out->data;
                out->data = in->data;
                in->data = spare;
            }
            in->deleted = true;
        }
        a->events[d] = (struct pjrt_event *)(void *)event(false);
    }
    state.executions++;
    return NULL;
}

/* ---- the table ---- */

__attribute__((visibility("default"))) const struct pjrt_api *GetPjrtApi(void);
__attribute__((visibility("default"))) struct fake_plugin *fake_plugin_control(void);
__attribute__((visibility("default"))) void fake_plugin_reset(void);

struct fake_plugin *fake_plugin_control(void) {
    return &state;
}

void fake_plugin_reset(void) {
    for (struct object *o; (o = objects);) {
        objects = o->next;
        if (o->kind == BUFFER && !o->host && !o->dead)
            free(o->data);
        free(o->inputs);
        free(o->outputs);
        free(o->blob);
        free(o);
    }
    const char *lose = getenv("MXC_FAKE_LOSE_AFTER");
    state = (struct fake_plugin){.minor = 115,
                                 .platform = "cpu",
                                 .n_devices = 4,
                                 .memory = 1 << 30,
                                 .fail_call = -1,
                                 .fail_code = PJRT_INVALID_ARGUMENT,
                                 .lose_after = lose ? strtoull(lose, NULL, 10) : 0};
}

/* In a program that is no test, one line to the file MXC_FAKE_REPORT when it ends. */
__attribute__((destructor)) static void report(void) {
    const char *path = getenv("MXC_FAKE_REPORT");
    FILE *f = path ? fopen(path, "w") : NULL;
    if (!f)
        return;
    (void)fprintf(f, "executions %d calls_when_lost %d live %d bad %d %s\n", (int)state.executions,
                  (int)state.calls_when_lost,
                  (int)(state.live_errors + state.live_events + state.live_buffers +
                        state.live_executables + state.live_loaded + state.live_serialized +
                        state.live_clients),
                  (int)state.n_bad, state.bad);
    (void)fclose(f);
}

const struct pjrt_api *GetPjrtApi(void) {
    static struct pjrt_api api;
    if (!state.platform)
        fake_plugin_reset();
    if (state.no_table)
        return NULL;
    api = (struct pjrt_api){
        .struct_size = state.struct_size ? state.struct_size : sizeof api,
        .version_size = 24,
        .major = state.major,
        .minor = state.minor,
        .error_destroy = error_destroy,
        .error_message = error_message,
        .error_code = error_code,
        .plugin_initialize = Initialize,
        .event_destroy = event_destroy,
        .event_await = Await,
        .client_create = Create,
        .client_destroy = client_destroy,
        .client_platform_name = PlatformName,
        .client_platform_version = PlatformVersion,
        .client_addressable_devices = Devices,
        .client_compile = Compile,
        .client_buffer_from_host = FromHost,
        .description_kind = Kind,
        .description_debug_string = DebugString,
        .device_description = Description,
        .device_memory_stats = MemoryStats,
        .executable_destroy = executable_destroy,
        .executable_num_outputs = NumOutputs,
        .executable_serialize = Serialize,
        .loaded_destroy = loaded_destroy,
        .loaded_get_executable = GetExecutable,
        .loaded_execute = state.no_execute ? NULL : Execute,
        .deserialize_and_load = Deserialize,
        .buffer_destroy = buffer_destroy,
        .buffer_to_host = ToHost,
        .client_view = View,
        .executable_memory_stats = CompiledMemory,
    };
    return &api;
}
