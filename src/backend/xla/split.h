/* Split: how the arrays of a program lie on several devices. One axis of an array is cut into equal
 * parts, a part for each device; or every device has all of it. Programs are written as for one
 * device and say of each argument and result how it lies (mhlo.sharding); the plugin's partitioner
 * makes the parts work together and puts all-reduces where sums were cut. With one device nothing
 * is said. */
#ifndef MXC_BACKEND_XLA_SPLIT_H
#define MXC_BACKEND_XLA_SPLIT_H

#include "backend/xla/hlo.h"
#include "backend/xla/model.h"

/* Axis of the array of a stack that is cut for so many devices, counted in the array of one weight;
 * MXC_NONE: none. */
int mxc_xla_split_weight(const struct mxc_xla_stack *stack, enum mxc_xla_part part, int devices);
/* Axis of a KV array: that of the heads, or MXC_NONE. */
int mxc_xla_split_kv(const struct mxc_xla_kv_group *group, int devices);
/* The part of one device. axis MXC_NONE: the shape itself. */
struct mxc_xla_shape mxc_xla_split_part(const struct mxc_xla_shape *shape, int axis, int devices);
/* Appends the attribute: mhlo.sharding = "...", or nothing for one device. */
void mxc_xla_split_attribute(struct mxc_buf *to, int n_dims, int axis, int devices);

#ifdef MLXCEL_XLA_DEVICE_RUNTIME
/* A host array of a shape as a buffer of each device: buffers [devices], all of them NULL on
 * failure. hold: for arrays that are not cut; parts are always copied. */
enum mxc_code mxc_xla_split_upload(struct mxc_xla_client *client, int devices,
                                   const struct mxc_xla_shape *shape, int axis, const void *data,
                                   enum mxc_xla_hold hold, struct mxc_xla_buffer **buffers,
                                   struct mxc_err *err) MXC_MUST;
#endif

#endif
