/* Client: a device runtime behind the PJRT C API, as the rest of the XLA backend sees it: a client
 * opened from a plugin (a shared library), programs compiled from StableHLO text, buffers on the
 * client's devices, and runs of programs on buffers. No PJRT name appears here.
 * Every call waits until its work is done, so that a failure belongs to the call that caused it.
 * Errors are MXC_E_* codes with messages that begin with "XLA: ". MXC_E_DEVICE_LOST means that the
 * device or its memory can no longer be trusted (client.c states how that is recognised): from then
 * on every call but close, free and the reading of facts fails with it at once, and the way out is
 * to close the client. Objects of a client must be freed before it is closed.
 * Thread rules: one thread at a time uses a client and everything made with it.
 * Only built with the device runtime (MLXCEL_XLA_DEVICE_RUNTIME). */
#ifndef MXC_BACKEND_XLA_CLIENT_H
#define MXC_BACKEND_XLA_CLIENT_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mxc_xla_client;
struct mxc_xla_program;
struct mxc_xla_buffer;

/* ---- types and shapes ---- */

enum mxc_xla_type {
    MXC_XLA_F32,
    MXC_XLA_BF16,
    MXC_XLA_F16,
    MXC_XLA_S64,
    MXC_XLA_S32,
    MXC_XLA_S16,
    MXC_XLA_S8,
    MXC_XLA_U32,
    MXC_XLA_U16,
    MXC_XLA_U8,
    MXC_XLA_S4, /* two to a byte in host memory, low nibble first */
    MXC_XLA_U4,
    MXC_XLA_PRED, /* one byte, 0 or 1 */
    MXC_XLA_N_TYPES
};

enum { MXC_XLA_MAX_DIMS = 8, MXC_XLA_ALIGN = 64, MXC_XLA_ALL_DEVICES = -1 };

/* A dense row-major array; no dims is a scalar. */
struct mxc_xla_shape {
    enum mxc_xla_type type;
    int n_dims; /* [0, MXC_XLA_MAX_DIMS] */
    int64_t dims[MXC_XLA_MAX_DIMS];
};

/* "f32", "bf16", "i32", "ui8", "i4", "i1" ...: the type's name in StableHLO. Never NULL. */
const char *mxc_xla_type_name(enum mxc_xla_type type);
/* Bytes of the array in host memory; false when the shape is out of range or the size overflows. */
bool mxc_xla_shape_bytes(const struct mxc_xla_shape *shape, size_t *bytes);
bool mxc_xla_shape_equal(const struct mxc_xla_shape *a, const struct mxc_xla_shape *b);

/* ---- client ---- */

struct mxc_xla_client_options {
    const char *plugin;    /* path of the shared library; NULL or "" is MXC_E_NOT_FOUND */
    int n_devices;         /* wanted; 0: one; MXC_XLA_ALL_DEVICES: all that there are (of a CPU:
                              one). More than the plugin has is MXC_E_UNSUPPORTED. The CPU plugin
                              makes as many virtual devices as are asked for */
    int n_threads;         /* of a CPU plugin; 0: the plugin's choice (the environment's
                              PJRT_NPROC wins over both) */
    const char *cache_dir; /* folder of compiled programs, made when missing; NULL: none */
    uint64_t cache_bytes;  /* bound of that folder; 0: 4 GiB */
};

struct mxc_xla_device_info {
    const char *kind;        /* e.g. "cpu", "NVIDIA H200" */
    const char *description; /* the plugin's own line */
    uint64_t memory_bytes;   /* limit that the plugin states; 0: it states none */
    uint64_t in_use_bytes;
};

/* Facts of an open client; borrowed from it. */
struct mxc_xla_client_info {
    const char *plugin;   /* the path */
    const char *platform; /* "cpu", "cuda", "rocm" ... */
    const char *version;  /* the platform's, free text */
    int api_major, api_minor;
    bool is_cpu;        /* platform is "cpu": host memory is device memory */
    const char *digest; /* hex digest of the plugin file; "" without cache_dir */
    int n_devices;      /* those the client uses */
    const struct mxc_xla_device_info *devices; /* [n_devices] as they were at open */
};

/* May set TF_CPP_MIN_LOG_LEVEL and PJRT_NPROC in the environment, where the user has not, before
 * the plugin is loaded. A plugin stays loaded for the life of the process. */
MXC_MUST enum mxc_code mxc_xla_client_open(const struct mxc_xla_client_options *options,
                                           struct mxc_xla_client **client, struct mxc_err *err);
/* NULL is fine. */
void mxc_xla_client_close(struct mxc_xla_client *client);
const struct mxc_xla_client_info *mxc_xla_client_info(const struct mxc_xla_client *client);
/* A failure lost the device. */
bool mxc_xla_client_lost(const struct mxc_xla_client *client);

/* What was done so far; for tests and statistics. */
struct mxc_xla_counters {
    uint64_t executions; /* successful runs of programs */
    uint64_t compiled;   /* programs that the plugin compiled */
    uint64_t cached;     /* programs that came from the disk cache */
    uint64_t uploads;    /* buffers copied to a device */
    uint64_t borrows;    /* buffers that use host memory in place */
    uint64_t live_buffers, live_programs;
};
void mxc_xla_client_counters(const struct mxc_xla_client *client, struct mxc_xla_counters *out);

/* ---- programs ---- */

/* An argument or result of @main. A donated argument's memory may become a result's: the text must
 * say so too (tf.aliasing_output or jax.buffer_donor). */
struct mxc_xla_param {
    struct mxc_xla_shape shape; /* of the part that one device holds */
    bool donated;               /* arguments only */
};

enum mxc_xla_flag_kind { MXC_XLA_FLAG_STRING, MXC_XLA_FLAG_BOOL, MXC_XLA_FLAG_INT };

/* A compiler flag, as in XLA_FLAGS without the dashes. */
struct mxc_xla_flag {
    const char *name;
    enum mxc_xla_flag_kind kind;
    const char *text; /* STRING */
    int64_t value;    /* BOOL, INT */
};

struct mxc_xla_compile_options {
    /* The signature of @main. The count of results is checked against the plugin's; the types and
     * shapes of arguments are checked against these before every run (the plugin does not). */
    const struct mxc_xla_param *inputs, *outputs;
    int n_inputs, n_outputs;
    /* Devices 0 .. n_replicas * n_partitions - 1 run the program together; 0 reads as 1. */
    int n_replicas, n_partitions;
    bool spmd;   /* the compiler partitions by sharding annotations (mhlo.sharding) */
    bool shardy; /* with spmd: annotations are sdy.sharding */
    /* On CPU xla_cpu_scheduler_type = CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED is added unless a flag of
     * that name is here or plain_scheduler is set. */
    bool plain_scheduler;
    const struct mxc_xla_flag *flags;
    int n_flags;
};

/* Compiles StableHLO text (or takes it from the disk cache). name is for messages. Everything is
 * borrowed for the call only. */
MXC_MUST enum mxc_code mxc_xla_compile(struct mxc_xla_client *client, const char *name,
                                       const char *text, size_t length,
                                       const struct mxc_xla_compile_options *options,
                                       struct mxc_xla_program **program, struct mxc_err *err);
/* NULL is fine. */
void mxc_xla_program_free(struct mxc_xla_program *program);
/* Bytes that a run needs beside its arguments and results, as the plugin states; 0: it does not. */
uint64_t mxc_xla_program_temp_bytes(const struct mxc_xla_program *program);
bool mxc_xla_program_from_cache(const struct mxc_xla_program *program);
uint64_t mxc_xla_program_executions(const struct mxc_xla_program *program);

/* ---- buffers ---- */

enum mxc_xla_hold {
    MXC_XLA_COPY,  /* the data may go after the call */
    MXC_XLA_BORROW /* on CPU used in place when aligned to MXC_XLA_ALIGN, copied otherwise; the data
                      must stay readable and unchanged until the buffer is freed. Never donate a
                      borrowed buffer: execute refuses it with MXC_E_ARG */
};

/* data: shape's bytes, packed as mxc_xla_type says. */
MXC_MUST enum mxc_code mxc_xla_buffer_new(struct mxc_xla_client *client, int device,
                                          const struct mxc_xla_shape *shape, const void *data,
                                          enum mxc_xla_hold hold, struct mxc_xla_buffer **buffer,
                                          struct mxc_err *err);
/* NULL is fine. Whoever got a buffer (from new or as an output of execute) frees it, exactly once,
 * also after it was donated. */
void mxc_xla_buffer_free(struct mxc_xla_buffer *buffer);
const struct mxc_xla_shape *mxc_xla_buffer_shape(const struct mxc_xla_buffer *buffer);
/* Whether it uses the caller's memory in place. */
bool mxc_xla_buffer_borrowed(const struct mxc_xla_buffer *buffer);
/* The whole buffer to host memory; bytes must be the shape's. */
MXC_MUST enum mxc_code mxc_xla_buffer_read(struct mxc_xla_buffer *buffer, void *data, size_t bytes,
                                           struct mxc_err *err);

/* ---- runs ---- */

/* Runs the program on all its devices. inputs: [devices][n_inputs], outputs: [devices][n_outputs]
 * (row-major), devices = n_replicas * n_partitions. Outputs are the caller's to free; on failure
 * none are made. A donated input is consumed, also when the run fails: its handle must still be
 * freed and is refused (MXC_E_ARG) by everything else. An input may stand in several places unless
 * it is donated. */
MXC_MUST enum mxc_code mxc_xla_execute(struct mxc_xla_program *program,
                                       struct mxc_xla_buffer *const *inputs, size_t n_inputs,
                                       struct mxc_xla_buffer **outputs, size_t n_outputs,
                                       struct mxc_err *err);

#endif
