/* What client*.c share: the open client and its objects, and how an error of the plugin becomes one
 * of ours. Nobody else includes this. */
#ifndef MXC_BACKEND_XLA_CLIENT_PRIVATE_H
#define MXC_BACKEND_XLA_CLIENT_PRIVATE_H

#include "backend/xla/client.h"
#include "backend/xla/pjrt.h"
#include "backend/xla/program_cache.h"

struct mxc_xla_client {
    const struct pjrt_api *api;
    struct pjrt_client *client;
    struct pjrt_device **devices; /* [info.n_devices] */
    struct mxc_xla_cache *cache;  /* NULL: none */
    struct mxc_xla_client_info info;
    struct mxc_xla_device_info *device_info;
    struct mxc_xla_counters counters;
    uint64_t run; /* number of the next execute: finds a buffer that stands twice in one */
    int n_threads;
    bool lost;
    char digest[2 * MXC_XLA_DIGEST_BYTES + 1];
};

struct mxc_xla_program {
    struct mxc_xla_client *client;
    struct pjrt_loaded *loaded;
    char *name;
    struct mxc_xla_param *inputs, *outputs;
    size_t n_inputs, n_outputs, n_devices;
    uint64_t temp_bytes, executions;
    bool from_cache;
    /* Room of one run, by device. */
    struct mxc_xla_buffer **made; /* handles of the results */
    struct pjrt_buffer **args, **results;
    struct pjrt_buffer *const **arg_lists;
    struct pjrt_buffer ***result_lists;
    struct pjrt_event **events;
};

struct mxc_xla_buffer {
    struct mxc_xla_client *client;
    struct pjrt_buffer *buffer;
    struct mxc_xla_shape shape;
    int device;
    bool borrowed, donated;
    uint64_t run; /* the last execute that it is an argument of, donated there or not */
};

/* When a call failed decides what it says of the device (client.c). */
enum mxc_xla_phase { MXC_XLA_OPENING, MXC_XLA_COMPILING, MXC_XLA_RUNNING };

/* MXC_OK for NULL; otherwise takes the error, destroys it and sets *err to "XLA: what: ...". A
 * device that it shows to be lost is noted in the client. */
MXC_MUST enum mxc_code mxc_xla_client_check(struct mxc_xla_client *client, struct pjrt_error *error,
                                            enum mxc_xla_phase phase, struct mxc_err *err,
                                            const char *what, ...) MXC_PRINTF(5, 6);
/* Destroys an error that nobody asks about; NULL is fine. Tells whether there was one. */
bool mxc_xla_client_drop(const struct mxc_xla_client *client, struct pjrt_error *error);
/* The error's code, 0 for NULL. */
int mxc_xla_client_code(const struct mxc_xla_client *client, const struct pjrt_error *error);
/* Awaits the event and destroys it; NULL is fine. The caller owns the error. */
MXC_MUST struct pjrt_error *mxc_xla_client_await(const struct mxc_xla_client *client,
                                                 struct pjrt_event *event);
void mxc_xla_client_event_free(const struct mxc_xla_client *client, struct pjrt_event *event);
/* MXC_E_DEVICE_LOST once a failure has lost the device. */
MXC_MUST enum mxc_code mxc_xla_client_usable(const struct mxc_xla_client *client,
                                             struct mxc_err *err);
/* Buffers (client_buffer.c): a handle that holds no buffer yet; NULL: out of memory. */
struct mxc_xla_buffer *mxc_xla_buffer_blank(struct mxc_xla_client *client, int device,
                                            const struct mxc_xla_shape *shape);
/* NULL is fine. */
void mxc_xla_buffer_destroy(struct mxc_xla_client *client, struct pjrt_buffer *buffer);

#endif
