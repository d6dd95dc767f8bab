/* safetensors: one mapped file and its checked list of tensors. The header is read without a tree,
 * so a hostile one costs at most a small multiple of its length.
 * Checked on open: header length against the file and a cap; JSON syntax, UTF-8, depth; dtype,
 * shape and data_offsets of every tensor; bytes == product(shape) * size; no two tensors share
 * bytes; names unique. Bytes that belong to no tensor are logged.
 * data is not aligned to anything: read it with memcpy or the decoders.
 * Thread rules: read-only after open. */
#ifndef MXC_FORMAT_SAFETENSORS_H
#define MXC_FORMAT_SAFETENSORS_H

#include "base/arena.h"
#include "base/err.h"
#include "base/file.h"
#include "format/weights.h"

struct mxc_st_tensor {
    const char *name; /* NUL-terminated UTF-8 */
    enum mxc_storage storage;
    int n_dims; /* 0: a scalar */
    int64_t shape[MXC_MAX_DIMS];
    size_t begin, end; /* in the data section */
    const uint8_t *data;
};

struct mxc_safetensors {
    struct mxc_file file;
    struct mxc_st_tensor *tensors; /* by place in the file */
    size_t n_tensors;
    const char *format;     /* __metadata__.format ("pt", "mlx"), or NULL */
    struct mxc_arena arena; /* names */
};

/* Errors name path and, where there is one, the tensor. */
enum mxc_code mxc_safetensors_open(const char *path, struct mxc_safetensors **st,
                                   struct mxc_err *err) MXC_MUST;
void mxc_safetensors_close(struct mxc_safetensors *st);

#endif
