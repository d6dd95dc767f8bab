/* Splitting arrays over devices, see split.h. */
#include "backend/xla/split.h"

#include "base/mem.h"

#include <string.h>

int mxc_xla_split_weight(const struct mxc_xla_stack *s, enum mxc_xla_part part, int devices) {
    if (devices < 2 || s->split == MXC_XLA_WHOLE || part == MXC_XLA_NORMS)
        return MXC_NONE;
    for (int i = 0; i < MXC_XLA_NORMS; i++) { /* all arrays, or none */
        const struct mxc_xla_shape *shape = &s->arrays[i].shape;
        int64_t n = shape->n_dims < 2                ? 0
                    : s->split == MXC_XLA_SPLIT_ROWS ? shape->dims[shape->n_dims - 2]
                                                     : shape->dims[shape->n_dims - 1];
        if (n % devices != 0)
            return MXC_NONE;
    }
    int n_dims = s->arrays[part].shape.n_dims;
    return n_dims < 2 ? MXC_NONE : s->split == MXC_XLA_SPLIT_ROWS ? n_dims - 2 : n_dims - 1;
}

int mxc_xla_split_kv(const struct mxc_xla_kv_group *group, int devices) {
    enum { HEADS = 3 };
    return devices > 1 && group->heads % devices == 0 ? HEADS : MXC_NONE;
}

struct mxc_xla_shape mxc_xla_split_part(const struct mxc_xla_shape *shape, int axis, int devices) {
    struct mxc_xla_shape part = *shape;
    if (axis != MXC_NONE)
        part.dims[axis] /= devices;
    return part;
}

void mxc_xla_split_attribute(struct mxc_buf *to, int n_dims, int axis, int devices) {
    if (devices < 2)
        return;
    if (axis == MXC_NONE) {
        (void)mxc_buf_puts(to, "mhlo.sharding = \"{replicated}\"");
        return;
    }
    (void)mxc_buf_puts(to, "mhlo.sharding = \"{devices=[");
    for (int i = 0; i < n_dims; i++)
        (void)mxc_buf_printf(to, "%s%d", i ? "," : "", i == axis ? devices : 1);
    (void)mxc_buf_printf(to, "]<=[%d]}\"", devices);
}

#ifdef MLXCEL_XLA_DEVICE_RUNTIME

/* The bytes of part `device`: all extents before the axis step over the other parts. */
static void cut(const struct mxc_xla_shape *shape, int axis, int devices, int device,
                const uint8_t *from, size_t bytes, uint8_t *to) {
    size_t outer = 1;
    for (int i = 0; i < axis; i++)
        outer *= (size_t)shape->dims[i];
    size_t row = bytes / outer, part = row / (size_t)devices;
    for (size_t i = 0; i < outer; i++)
        memcpy(to + i * part, from + i * row + (size_t)device * part, part);
}

enum mxc_code mxc_xla_split_upload(struct mxc_xla_client *client, int devices,
                                   const struct mxc_xla_shape *shape, int axis, const void *data,
                                   enum mxc_xla_hold hold, struct mxc_xla_buffer **buffers,
                                   struct mxc_err *err) {
    struct mxc_xla_shape part = mxc_xla_split_part(shape, axis, devices);
    enum mxc_code code = MXC_OK;
    size_t bytes = 0;
    uint8_t *copy = NULL;
    memset(buffers, 0, (size_t)devices * sizeof(struct mxc_xla_buffer *));
    if (axis != MXC_NONE && (!mxc_xla_shape_bytes(shape, &bytes) ||
                             !(copy = mxc_mem_array(bytes / (size_t)devices + 1, 1))))
        return mxc_err_nomem(err);
    for (int d = 0; !code && d < devices; d++) {
        if (copy)
            cut(shape, axis, devices, d, data, bytes, copy);
        code = mxc_xla_buffer_new(client, d, &part, copy ? copy : data, copy ? MXC_XLA_COPY : hold,
                                  &buffers[d], err);
    }
    for (int d = 0; code && d < devices; d++) {
        mxc_xla_buffer_free(buffers[d]);
        buffers[d] = NULL;
    }
    mxc_mem_free(copy);
    return code;
}

#endif
