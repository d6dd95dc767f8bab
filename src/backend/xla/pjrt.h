/* The part of the PJRT C API that client*.c use, declared from its layout: OpenXLA's stable ABI of
 * compiled device plugins, major version 0. A plugin exports GetPjrtApi(), which returns a table of
 * functions that only grows at its end; every function takes one struct that begins with its own
 * size and an extension pointer, and which only grows at its end too. Sizes and offsets are checked
 * below against those of version 0.114; nothing but layout, numbers and names of calls is taken
 * from there. The caller fills struct_size (PJRT_ARGS) and the inputs; outputs stand after them.
 * Calls return NULL or an error that the caller destroys. */
#ifndef MXC_BACKEND_XLA_PJRT_H
#define MXC_BACKEND_XLA_PJRT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pjrt_error;
struct pjrt_event;
struct pjrt_client;
struct pjrt_device;
struct pjrt_device_description;
struct pjrt_buffer;
struct pjrt_executable;
struct pjrt_loaded;     /* an executable on its devices */
struct pjrt_serialized; /* holds the bytes that serialize gives */

#define PJRT_HEAD                                                                                  \
    size_t struct_size;                                                                            \
    void *extensions
/* Bytes of an argument struct up to the end of its last member: padding behind it is not said. */
#define PJRT_SIZE(type, last) (offsetof(struct type, last) + sizeof(((struct type *)0)->last))

enum { PJRT_MAJOR = 0 };

enum pjrt_code {
    PJRT_CANCELLED = 1,
    PJRT_UNKNOWN = 2,
    PJRT_INVALID_ARGUMENT = 3,
    PJRT_DEADLINE_EXCEEDED = 4,
    PJRT_NOT_FOUND = 5,
    PJRT_ALREADY_EXISTS = 6,
    PJRT_PERMISSION_DENIED = 7,
    PJRT_RESOURCE_EXHAUSTED = 8,
    PJRT_FAILED_PRECONDITION = 9,
    PJRT_ABORTED = 10,
    PJRT_OUT_OF_RANGE = 11,
    PJRT_UNIMPLEMENTED = 12,
    PJRT_INTERNAL = 13,
    PJRT_UNAVAILABLE = 14,
    PJRT_DATA_LOSS = 15,
    PJRT_UNAUTHENTICATED = 16
};

enum pjrt_type {
    PJRT_PRED = 1,
    PJRT_S8 = 2,
    PJRT_S16 = 3,
    PJRT_S32 = 4,
    PJRT_S64 = 5,
    PJRT_U8 = 6,
    PJRT_U16 = 7,
    PJRT_U32 = 8,
    PJRT_F16 = 10,
    PJRT_F32 = 11,
    PJRT_BF16 = 13,
    PJRT_S4 = 21,
    PJRT_U4 = 22
};

/* What a plugin may do with host memory that becomes a buffer. */
enum pjrt_host_semantics {
    PJRT_HOST_UNTIL_TRANSFER = 1, /* read it until the done event */
    PJRT_HOST_ZERO_COPY = 2       /* keep using it, unchanged, until the buffer goes */
};

/* ---- argument structs ---- */

struct pjrt_error_args {
    PJRT_HEAD;
    struct pjrt_error *error;
};
struct pjrt_error_message_args {
    PJRT_HEAD;
    const struct pjrt_error *error;
    const char *message; /* out: lives as long as the error */
    size_t message_size;
};
struct pjrt_error_code_args {
    PJRT_HEAD;
    const struct pjrt_error *error;
    int32_t code; /* out: enum pjrt_code */
};
struct pjrt_plugin_initialize_args {
    PJRT_HEAD;
};
struct pjrt_event_args { /* destroy, await */
    PJRT_HEAD;
    struct pjrt_event *event;
};

enum pjrt_value_kind { PJRT_VALUE_INT64 = 1, PJRT_VALUE_INT64_LIST = 2 };
struct pjrt_named_value {
    PJRT_HEAD;
    const char *name;
    size_t name_size;
    int32_t kind; /* enum pjrt_value_kind */
    union {
        int64_t i;
        const int64_t *list;
    } value;
    size_t value_size; /* 1, or the list's length */
};
struct pjrt_client_create_args {
    PJRT_HEAD;
    const struct pjrt_named_value *options;
    size_t n_options;
    void *get_fn, *get_user, *put_fn, *put_user; /* a store shared by hosts: none */
    struct pjrt_client *client;                  /* out */
    void *try_get_fn, *try_get_user;
};
struct pjrt_client_args { /* destroy */
    PJRT_HEAD;
    struct pjrt_client *client;
};
struct pjrt_client_text_args { /* platform name, platform version */
    PJRT_HEAD;
    struct pjrt_client *client;
    const char *text; /* out: lives as long as the client */
    size_t text_size;
};
struct pjrt_client_devices_args {
    PJRT_HEAD;
    struct pjrt_client *client;
    struct pjrt_device *const *devices; /* out: lives as long as the client */
    size_t n_devices;
};

struct pjrt_program {
    PJRT_HEAD;
    const char *code;
    size_t code_size;
    const char *format; /* "mlir" */
    size_t format_size;
};
struct pjrt_client_compile_args {
    PJRT_HEAD;
    struct pjrt_client *client;
    const struct pjrt_program *program;
    const char *options; /* serialized CompileOptionsProto */
    size_t options_size;
    struct pjrt_loaded *loaded; /* out */
};
struct pjrt_buffer_from_host_args {
    PJRT_HEAD;
    struct pjrt_client *client;
    const void *data;
    int32_t type; /* enum pjrt_type */
    const int64_t *dims;
    size_t n_dims;
    const int64_t *byte_strides; /* NULL: dense */
    size_t n_byte_strides;
    int32_t semantics; /* enum pjrt_host_semantics */
    struct pjrt_device *device;
    void *memory, *layout;      /* NULL: the device's own */
    struct pjrt_event *done;    /* out: the host memory is no longer read */
    struct pjrt_buffer *buffer; /* out */
};
struct pjrt_buffer_view_args {
    PJRT_HEAD;
    struct pjrt_client *client;
    void *data;
    const int64_t *dims;
    size_t n_dims;
    int32_t type;
    void *layout;
    struct pjrt_device *device;
    void (*on_delete)(void *data, void *user); /* must be there */
    void *on_delete_user;
    intptr_t stream;
    struct pjrt_buffer *buffer; /* out */
    void *memory;
};

struct pjrt_device_description_args { /* of a device */
    PJRT_HEAD;
    struct pjrt_device *device;
    struct pjrt_device_description *description; /* out */
};
struct pjrt_description_text_args { /* kind, debug string */
    PJRT_HEAD;
    struct pjrt_device_description *description;
    const char *text; /* out: lives as long as the description */
    size_t text_size;
};
struct pjrt_device_memory_args {
    PJRT_HEAD;
    struct pjrt_device *device;
    int64_t in_use; /* out, this and all that follows */
    int64_t peak_in_use;
    bool peak_in_use_set;
    int64_t n_allocs;
    bool n_allocs_set;
    int64_t largest_alloc;
    bool largest_alloc_set;
    int64_t limit;
    bool limit_set;
    int64_t reserved;
    bool reserved_set;
    int64_t peak_reserved;
    bool peak_reserved_set;
    int64_t reservable_limit;
    bool reservable_limit_set;
    int64_t largest_free;
    bool largest_free_set;
    int64_t pool;
    bool pool_set;
    int64_t peak_pool;
    bool peak_pool_set;
    int64_t peak_allocated;
    bool peak_allocated_set;
};

struct pjrt_executable_args { /* destroy */
    PJRT_HEAD;
    struct pjrt_executable *executable;
};
struct pjrt_loaded_args { /* destroy */
    PJRT_HEAD;
    struct pjrt_loaded *loaded;
};
struct pjrt_get_executable_args {
    PJRT_HEAD;
    struct pjrt_loaded *loaded;
    struct pjrt_executable *executable; /* out: the caller destroys it */
};
struct pjrt_num_outputs_args {
    PJRT_HEAD;
    struct pjrt_executable *executable;
    size_t n_outputs; /* out */
};
struct pjrt_serialize_args {
    PJRT_HEAD;
    struct pjrt_executable *executable;
    const char *bytes; /* out: live until release(serialized) */
    size_t n_bytes;
    struct pjrt_serialized *serialized;
    void (*release)(struct pjrt_serialized *serialized);
};
struct pjrt_deserialize_args {
    PJRT_HEAD;
    struct pjrt_client *client;
    const char *bytes;
    size_t n_bytes;
    struct pjrt_loaded *loaded; /* out */
    const char *options;        /* NULL: those it was compiled with */
    size_t options_size;
    void *load_options;
};
struct pjrt_memory_stats_args { /* of a compiled program: bytes, all out */
    PJRT_HEAD;
    struct pjrt_executable *executable;
    int64_t code, arguments, outputs, aliases, temp;
    int64_t host_code, host_arguments, host_outputs, host_aliases, host_temp;
    int64_t peak, total, total_allocations, indefinite, peak_unpadded;
};

struct pjrt_execute_options {
    PJRT_HEAD;
    void *send_callbacks, *recv_callbacks;
    size_t n_send_ops, n_recv_ops;
    int32_t launch_id;
    const int64_t *non_donatable;
    size_t n_non_donatable;
    void *context;
    const char *call_location;
    size_t n_tasks;
    int32_t *task_ids;
    int64_t *incarnation_ids;
    void *multi_slice;
    bool major_to_minor_callbacks;
    void *output_callbacks;
    size_t n_output_callbacks;
};
struct pjrt_execute_args {
    PJRT_HEAD;
    struct pjrt_loaded *loaded;
    struct pjrt_execute_options *options;
    struct pjrt_buffer *const *const *arguments; /* [n_devices][n_arguments] */
    size_t n_devices, n_arguments;
    struct pjrt_buffer **const *outputs; /* [n_devices][outputs], filled */
    struct pjrt_event **events;          /* [n_devices], filled: the device has finished */
    struct pjrt_device *device;          /* NULL: those it was compiled for */
};

struct pjrt_buffer_args { /* destroy */
    PJRT_HEAD;
    struct pjrt_buffer *buffer;
};
struct pjrt_buffer_to_host_args {
    PJRT_HEAD;
    struct pjrt_buffer *buffer;
    void *layout; /* NULL: the device's; dense row-major for what we make */
    void *data;
    size_t n_bytes;
    struct pjrt_event *done; /* out */
};

/* ---- the table ---- */

#define PJRT_CALL(name, args)  struct pjrt_error *(*name)(struct args *)
#define PJRT_SKIP(first, last) void (*skip_##first[(last) - (first) + 1])(void)
#define PJRT_SKIP_ONE(slot)    void (*skip_##slot)(void)
/* Whether the table, as long as the plugin says it is, has the call. */
#define PJRT_HAS(api, name)                                                                        \
    ((api)->struct_size >= offsetof(struct pjrt_api, name) + sizeof((api)->name) && (api)->name)

/* Slots are numbered from 0 behind the version; SKIP stands for those we do not call. */
struct pjrt_api {
    PJRT_HEAD;
    size_t version_size;
    void *version_extensions;
    int32_t major, minor;
    void (*error_destroy)(struct pjrt_error_args *);         /* 0 */
    void (*error_message)(struct pjrt_error_message_args *); /* 1 */
    PJRT_CALL(error_code, pjrt_error_code_args);
    PJRT_CALL(plugin_initialize, pjrt_plugin_initialize_args);
    PJRT_SKIP_ONE(4);
    PJRT_CALL(event_destroy, pjrt_event_args); /* 5 */
    PJRT_SKIP(6, 7);
    PJRT_CALL(event_await, pjrt_event_args); /* 8 */
    PJRT_SKIP_ONE(9);
    PJRT_CALL(client_create, pjrt_client_create_args); /* 10 */
    PJRT_CALL(client_destroy, pjrt_client_args);
    PJRT_CALL(client_platform_name, pjrt_client_text_args);
    PJRT_SKIP_ONE(13);
    PJRT_CALL(client_platform_version, pjrt_client_text_args); /* 14 */
    PJRT_SKIP_ONE(15);
    PJRT_CALL(client_addressable_devices, pjrt_client_devices_args); /* 16 */
    PJRT_SKIP(17, 19);
    PJRT_CALL(client_compile, pjrt_client_compile_args); /* 20 */
    PJRT_SKIP_ONE(21);
    PJRT_CALL(client_buffer_from_host, pjrt_buffer_from_host_args); /* 22 */
    PJRT_SKIP(23, 25);
    PJRT_CALL(description_kind, pjrt_description_text_args); /* 26 */
    PJRT_CALL(description_debug_string, pjrt_description_text_args);
    PJRT_SKIP_ONE(28);
    PJRT_CALL(device_description, pjrt_device_description_args); /* 29 */
    PJRT_SKIP(30, 33);
    PJRT_CALL(device_memory_stats, pjrt_device_memory_args); /* 34 */
    PJRT_SKIP(35, 39);
    PJRT_CALL(executable_destroy, pjrt_executable_args); /* 40 */
    PJRT_SKIP(41, 43);
    PJRT_CALL(executable_num_outputs, pjrt_num_outputs_args); /* 44 */
    PJRT_SKIP(45, 48);
    PJRT_CALL(executable_serialize, pjrt_serialize_args); /* 49 */
    PJRT_CALL(loaded_destroy, pjrt_loaded_args);
    PJRT_CALL(loaded_get_executable, pjrt_get_executable_args); /* 51 */
    PJRT_SKIP(52, 54);
    PJRT_CALL(loaded_execute, pjrt_execute_args); /* 55 */
    PJRT_CALL(deserialize_and_load, pjrt_deserialize_args);
    PJRT_SKIP_ONE(57);
    PJRT_CALL(buffer_destroy, pjrt_buffer_args); /* 58 */
    PJRT_SKIP(59, 69);
    PJRT_CALL(buffer_to_host, pjrt_buffer_to_host_args); /* 70 */
    PJRT_SKIP(71, 92);
    PJRT_CALL(client_view, pjrt_buffer_view_args); /* 93 */
    PJRT_SKIP(94, 95);
    PJRT_CALL(executable_memory_stats, pjrt_memory_stats_args); /* 96 */
};

/* ---- the layout, in numbers ---- */

#define PJRT_AT(type, member, offset)                                                              \
    _Static_assert(offsetof(struct type, member) == (offset), #type "." #member)
#define PJRT_ENDS(type, last, bytes)                                                               \
    _Static_assert(PJRT_SIZE(type, last) == (bytes), "size of " #type)
#define PJRT_SLOT(name, slot) PJRT_AT(pjrt_api, name, 40 + 8 * (slot))

_Static_assert(sizeof(void *) == 8 && sizeof(size_t) == 8 && sizeof(bool) == 1, "an LP64 machine");
PJRT_AT(pjrt_api, major, 32);
PJRT_AT(pjrt_api, minor, 36);
PJRT_SLOT(error_destroy, 0);
PJRT_SLOT(error_message, 1);
PJRT_SLOT(error_code, 2);
PJRT_SLOT(plugin_initialize, 3);
PJRT_SLOT(event_destroy, 5);
PJRT_SLOT(event_await, 8);
PJRT_SLOT(client_create, 10);
PJRT_SLOT(client_destroy, 11);
PJRT_SLOT(client_platform_name, 12);
PJRT_SLOT(client_platform_version, 14);
PJRT_SLOT(client_addressable_devices, 16);
PJRT_SLOT(client_compile, 20);
PJRT_SLOT(client_buffer_from_host, 22);
PJRT_SLOT(description_kind, 26);
PJRT_SLOT(description_debug_string, 27);
PJRT_SLOT(device_description, 29);
PJRT_SLOT(device_memory_stats, 34);
PJRT_SLOT(executable_destroy, 40);
PJRT_SLOT(executable_num_outputs, 44);
PJRT_SLOT(executable_serialize, 49);
PJRT_SLOT(loaded_destroy, 50);
PJRT_SLOT(loaded_get_executable, 51);
PJRT_SLOT(loaded_execute, 55);
PJRT_SLOT(deserialize_and_load, 56);
PJRT_SLOT(buffer_destroy, 58);
PJRT_SLOT(buffer_to_host, 70);
PJRT_SLOT(client_view, 93);
PJRT_SLOT(executable_memory_stats, 96);

PJRT_ENDS(pjrt_error_args, error, 24);
PJRT_ENDS(pjrt_error_message_args, message_size, 40);
PJRT_ENDS(pjrt_error_code_args, code, 28);
PJRT_ENDS(pjrt_plugin_initialize_args, extensions, 16);
PJRT_ENDS(pjrt_event_args, event, 24);
PJRT_ENDS(pjrt_named_value, value_size, 56);
PJRT_AT(pjrt_named_value, kind, 32);
PJRT_AT(pjrt_named_value, value, 40);
PJRT_ENDS(pjrt_client_create_args, try_get_user, 88);
PJRT_AT(pjrt_client_create_args, n_options, 24);
PJRT_AT(pjrt_client_create_args, client, 64);
PJRT_ENDS(pjrt_client_args, client, 24);
PJRT_ENDS(pjrt_client_text_args, text_size, 40);
PJRT_ENDS(pjrt_client_devices_args, n_devices, 40);
PJRT_ENDS(pjrt_program, format_size, 48);
PJRT_ENDS(pjrt_client_compile_args, loaded, 56);
PJRT_ENDS(pjrt_buffer_from_host_args, buffer, 120);
PJRT_AT(pjrt_buffer_from_host_args, dims, 40);
PJRT_AT(pjrt_buffer_from_host_args, semantics, 72);
PJRT_AT(pjrt_buffer_from_host_args, device, 80);
PJRT_AT(pjrt_buffer_from_host_args, done, 104);
PJRT_ENDS(pjrt_buffer_view_args, memory, 112);
PJRT_AT(pjrt_buffer_view_args, type, 48);
PJRT_AT(pjrt_buffer_view_args, device, 64);
PJRT_AT(pjrt_buffer_view_args, stream, 88);
PJRT_AT(pjrt_buffer_view_args, buffer, 96);
PJRT_ENDS(pjrt_device_description_args, description, 32);
PJRT_ENDS(pjrt_description_text_args, text_size, 40);
PJRT_ENDS(pjrt_device_memory_args, peak_allocated_set, 201);
PJRT_AT(pjrt_device_memory_args, in_use, 24);
PJRT_AT(pjrt_device_memory_args, limit, 80);
PJRT_AT(pjrt_device_memory_args, limit_set, 88);
PJRT_ENDS(pjrt_executable_args, executable, 24);
PJRT_ENDS(pjrt_loaded_args, loaded, 24);
PJRT_ENDS(pjrt_get_executable_args, executable, 32);
PJRT_ENDS(pjrt_num_outputs_args, n_outputs, 32);
PJRT_ENDS(pjrt_serialize_args, release, 56);
PJRT_AT(pjrt_serialize_args, serialized, 40);
PJRT_ENDS(pjrt_deserialize_args, load_options, 72);
PJRT_AT(pjrt_deserialize_args, loaded, 40);
PJRT_ENDS(pjrt_memory_stats_args, peak_unpadded, 144);
PJRT_AT(pjrt_memory_stats_args, temp, 56);
PJRT_ENDS(pjrt_execute_options, n_output_callbacks, 144);
PJRT_AT(pjrt_execute_options, launch_id, 48);
PJRT_AT(pjrt_execute_options, non_donatable, 56);
PJRT_AT(pjrt_execute_options, multi_slice, 112);
PJRT_ENDS(pjrt_execute_args, device, 80);
PJRT_AT(pjrt_execute_args, arguments, 32);
PJRT_AT(pjrt_execute_args, outputs, 56);
PJRT_AT(pjrt_execute_args, events, 64);
PJRT_ENDS(pjrt_buffer_args, buffer, 24);
PJRT_ENDS(pjrt_buffer_to_host_args, done, 56);
PJRT_AT(pjrt_buffer_to_host_args, data, 32);

#endif
