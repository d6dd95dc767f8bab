/* Writes a safetensors file (https://huggingface.co/docs/safetensors): an 8-byte little-endian
 * header length, a JSON header, the tensors' bytes. */
#ifndef MXC_FORMAT_SAFETENSORS_WRITE_H
#define MXC_FORMAT_SAFETENSORS_WRITE_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

enum mxc_write_dtype { MXC_WRITE_F32, MXC_WRITE_I32 };

struct mxc_write_tensor {
    const char *name; /* plain ASCII without quotes */
    enum mxc_write_dtype dtype;
    int n_dims; /* 1 to 4 */
    int64_t shape[4];
    const void *data; /* row-major, little-endian */
};

/* Replaces path atomically. */
enum mxc_code mxc_safetensors_write(const char *path, const struct mxc_write_tensor *tensors,
                                    size_t n, struct mxc_err *err) MXC_MUST;

#endif
