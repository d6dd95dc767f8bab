/* Buffers: arrays on a device, and the types they are made of.
 * In: host memory in row-major order, 4-bit types two to a byte. Out: handles whose type and shape
 * are known here, because plugins take a wrong type of the same size in silence.
 * A plugin copies 4-bit values one to a byte, so they are spread out before and packed after; used
 * in place they are packed as in host memory. Host memory is used in place only on CPU and at
 * MXC_XLA_ALIGN: elsewhere, or when the plugin refuses, a copy is made.
 * The event of a copy is awaited; that of memory used in place would only come when the buffer
 * goes, and is let go of unawaited. */
#define _GNU_SOURCE
#include "backend/xla/client_private.h"

#include "base/mem.h"

#include <string.h>

static const struct type_row {
    const char *name;
    int bits, pjrt;
} types[MXC_XLA_N_TYPES] = {
    [MXC_XLA_F32] = {"f32", 32, PJRT_F32},  [MXC_XLA_BF16] = {"bf16", 16, PJRT_BF16},
    [MXC_XLA_F16] = {"f16", 16, PJRT_F16},  [MXC_XLA_S64] = {"i64", 64, PJRT_S64},
    [MXC_XLA_S32] = {"i32", 32, PJRT_S32},  [MXC_XLA_S16] = {"i16", 16, PJRT_S16},
    [MXC_XLA_S8] = {"i8", 8, PJRT_S8},      [MXC_XLA_U32] = {"ui32", 32, PJRT_U32},
    [MXC_XLA_U16] = {"ui16", 16, PJRT_U16}, [MXC_XLA_U8] = {"ui8", 8, PJRT_U8},
    [MXC_XLA_S4] = {"i4", 4, PJRT_S4},      [MXC_XLA_U4] = {"ui4", 4, PJRT_U4},
    [MXC_XLA_PRED] = {"i1", 8, PJRT_PRED},
};

const char *mxc_xla_type_name(enum mxc_xla_type type) {
    return (unsigned)type < MXC_XLA_N_TYPES ? types[type].name : "?";
}

static bool four_bits(enum mxc_xla_type type) {
    return types[type].bits == 4;
}

static bool count_of(const struct mxc_xla_shape *shape, size_t *count) {
    if ((unsigned)shape->type >= MXC_XLA_N_TYPES || shape->n_dims < 0 ||
        shape->n_dims > MXC_XLA_MAX_DIMS)
        return false;
    size_t n = 1;
    for (int i = 0; i < shape->n_dims; i++)
        if (shape->dims[i] < 0 || !mxc_size_mul(n, (size_t)shape->dims[i], &n))
            return false;
    *count = n;
    return n <= SIZE_MAX / 8;
}

bool mxc_xla_shape_bytes(const struct mxc_xla_shape *shape, size_t *bytes) {
    size_t n;
    if (!count_of(shape, &n))
        return false;
    *bytes = four_bits(shape->type) ? (n + 1) / 2 : n * (size_t)types[shape->type].bits / 8;
    return true;
}

bool mxc_xla_shape_equal(const struct mxc_xla_shape *a, const struct mxc_xla_shape *b) {
    if (a->type != b->type || a->n_dims != b->n_dims)
        return false;
    for (int i = 0; i < a->n_dims; i++)
        if (a->dims[i] != b->dims[i])
            return false;
    return true;
}

#ifdef MLXCEL_XLA_DEVICE_RUNTIME /* types and shapes are the emitter's too */

/* ---- 4-bit values ---- */

static void spread(const uint8_t *packed, size_t n, bool is_signed, uint8_t *out) {
    for (size_t i = 0; i < n; i++) {
        unsigned v = (unsigned)packed[i / 2] >> (i % 2 * 4) & 15U;
        out[i] = (uint8_t)(is_signed && v > 7 ? v | 0xF0U : v);
    }
}

static void pack(const uint8_t *values, size_t n, uint8_t *out) {
    memset(out, 0, (n + 1) / 2);
    for (size_t i = 0; i < n; i++)
        out[i / 2] = (uint8_t)(out[i / 2] | (values[i] & 15U) << (i % 2 * 4));
}

/* ---- making ---- */

struct mxc_xla_buffer *mxc_xla_buffer_blank(struct mxc_xla_client *client, int device,
                                            const struct mxc_xla_shape *shape) {
    struct mxc_xla_buffer *b = mxc_mem_zalloc(1, sizeof *b);
    if (!b)
        return NULL;
    b->client = client;
    b->shape = *shape;
    b->device = device;
    client->counters.live_buffers++;
    return b;
}

void mxc_xla_buffer_destroy(struct mxc_xla_client *client, struct pjrt_buffer *buffer) {
    if (buffer)
        (void)mxc_xla_client_drop(
            client, client->api->buffer_destroy(&(struct pjrt_buffer_args){
                        .struct_size = PJRT_SIZE(pjrt_buffer_args, buffer), .buffer = buffer}));
}

void mxc_xla_buffer_free(struct mxc_xla_buffer *buffer) {
    if (!buffer)
        return;
    mxc_xla_buffer_destroy(buffer->client, buffer->buffer);
    buffer->client->counters.live_buffers--;
    mxc_mem_free(buffer);
}

/* A view without such a call ends the process when it goes. */
static void keep_memory(void *data, void *user) {
    (void)data;
    (void)user;
}

/* 4-bit values in place: only a view takes them packed. */
static struct pjrt_error *view(struct mxc_xla_client *c, int device,
                               const struct mxc_xla_shape *shape, const void *data,
                               struct pjrt_buffer **buffer) {
    struct pjrt_buffer_view_args a = {.struct_size = PJRT_SIZE(pjrt_buffer_view_args, memory),
                                      .client = c->client,
                                      .data = (void *)(uintptr_t)data,
                                      .dims = shape->dims,
                                      .n_dims = (size_t)shape->n_dims,
                                      .type = types[shape->type].pjrt,
                                      .device = c->devices[device],
                                      .on_delete = keep_memory};
    struct pjrt_error *error = c->api->client_view(&a);
    if (!error)
        *buffer = a.buffer;
    return error;
}

static struct pjrt_error *upload(struct mxc_xla_client *c, int device,
                                 const struct mxc_xla_shape *shape, const void *data,
                                 int32_t semantics, struct pjrt_buffer **buffer) {
    struct pjrt_buffer_from_host_args a = {.struct_size =
                                               PJRT_SIZE(pjrt_buffer_from_host_args, buffer),
                                           .client = c->client,
                                           .data = data,
                                           .type = types[shape->type].pjrt,
                                           .dims = shape->dims,
                                           .n_dims = (size_t)shape->n_dims,
                                           .semantics = semantics,
                                           .device = c->devices[device]};
    struct pjrt_error *error = c->api->client_buffer_from_host(&a);
    if (error)
        return error;
    if (semantics == PJRT_HOST_ZERO_COPY)
        mxc_xla_client_event_free(c, a.done);
    else if ((error = mxc_xla_client_await(c, a.done))) {
        mxc_xla_buffer_destroy(c, a.buffer);
        return error;
    }
    *buffer = a.buffer;
    return NULL;
}

/* Tries to use the memory in place; true when *buffer does. */
static bool in_place(struct mxc_xla_client *c, int device, const struct mxc_xla_shape *shape,
                     const void *data, struct pjrt_buffer **buffer) {
    if (!c->info.is_cpu || (uintptr_t)data % MXC_XLA_ALIGN)
        return false;
    if (four_bits(shape->type))
        return PJRT_HAS(c->api, client_view) &&
               !mxc_xla_client_drop(c, view(c, device, shape, data, buffer));
    return !mxc_xla_client_drop(c, upload(c, device, shape, data, PJRT_HOST_ZERO_COPY, buffer));
}

enum mxc_code mxc_xla_buffer_new(struct mxc_xla_client *client, int device,
                                 const struct mxc_xla_shape *shape, const void *data,
                                 enum mxc_xla_hold hold, struct mxc_xla_buffer **buffer,
                                 struct mxc_err *err) {
    size_t n, bytes;
    enum mxc_code code = mxc_xla_client_usable(client, err);
    if (code)
        return code;
    if (device < 0 || device >= client->info.n_devices)
        return mxc_err_set(err, MXC_E_ARG, "XLA: device %d of %d", device, client->info.n_devices);
    if (!count_of(shape, &n) || !mxc_xla_shape_bytes(shape, &bytes))
        return mxc_err_set(err, MXC_E_ARG, "XLA: a buffer's shape is out of range");
    struct mxc_xla_buffer *b = mxc_xla_buffer_blank(client, device, shape);
    uint8_t *values = NULL;
    if (!b)
        return mxc_err_nomem(err);
    b->borrowed = hold == MXC_XLA_BORROW && in_place(client, device, shape, data, &b->buffer);
    if (!b->borrowed) {
        bool nibbles = four_bits(shape->type);
        if (nibbles && !(values = mxc_mem_alloc(n + 1))) {
            code = mxc_err_nomem(err);
            goto out;
        }
        if (nibbles)
            spread(data, n, shape->type == MXC_XLA_S4, values);
        code = mxc_xla_client_check(client,
                                    upload(client, device, shape, nibbles ? values : data,
                                           PJRT_HOST_UNTIL_TRANSFER, &b->buffer),
                                    MXC_XLA_RUNNING, err, "copying %zu bytes to device %d", bytes,
                                    device);
        if (code)
            goto out;
        client->counters.uploads++;
    } else {
        client->counters.borrows++;
    }
    *buffer = b;
    b = NULL;
out:
    mxc_mem_free(values);
    mxc_xla_buffer_free(b);
    return code;
}

const struct mxc_xla_shape *mxc_xla_buffer_shape(const struct mxc_xla_buffer *buffer) {
    return &buffer->shape;
}

bool mxc_xla_buffer_borrowed(const struct mxc_xla_buffer *buffer) {
    return buffer->borrowed;
}

/* ---- reading ---- */

enum mxc_code mxc_xla_buffer_read(struct mxc_xla_buffer *buffer, void *data, size_t bytes,
                                  struct mxc_err *err) {
    struct mxc_xla_client *c = buffer->client;
    enum mxc_code code = mxc_xla_client_usable(c, err);
    if (code)
        return code;
    size_t n, whole;
    if (buffer->donated)
        return mxc_err_set(err, MXC_E_ARG, "XLA: a donated buffer cannot be read");
    if (!count_of(&buffer->shape, &n) || !mxc_xla_shape_bytes(&buffer->shape, &whole) ||
        whole != bytes)
        return mxc_err_set(err, MXC_E_ARG, "XLA: %zu bytes were asked of a buffer of another size",
                           bytes);
    if (!n)
        return MXC_OK;
    bool nibbles = four_bits(buffer->shape.type);
    uint8_t *values = NULL;
    if (nibbles && !(values = mxc_mem_alloc(n)))
        return mxc_err_nomem(err);
    struct pjrt_buffer_to_host_args a = {.struct_size = PJRT_SIZE(pjrt_buffer_to_host_args, done),
                                         .buffer = buffer->buffer,
                                         .data = nibbles ? values : data,
                                         .n_bytes = nibbles ? n : bytes};
    struct pjrt_error *error = c->api->buffer_to_host(&a);
    if (!error)
        error = mxc_xla_client_await(c, a.done);
    code = mxc_xla_client_check(c, error, MXC_XLA_RUNNING, err, "reading %zu bytes from device %d",
                                bytes, buffer->device);
    if (!code && nibbles)
        pack(values, n, data);
    mxc_mem_free(values);
    return code;
}

#endif
