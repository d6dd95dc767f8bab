/* Writes a safetensors file: header and data are put together in memory, then written at once.
 * In: tensors of f32 or i32 with names that need no escaping in JSON (they are constants of ours).
 * Out: a file that mxc_file_write puts in place as a whole.
 * The header is padded with spaces to eight bytes, so the data stays aligned in a map. Made for
 * traces: the file must fit in memory twice. */
#include "format/safetensors_write.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

enum { MAX_HEADER = 1 << 20 };

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {{"F32", 4}, {"I32", 4}};

static bool tensor_bytes(const struct mxc_write_tensor *t, size_t *bytes) {
    size_t n = dtypes[t->dtype].bytes;
    for (int i = 0; i < t->n_dims; i++)
        if (t->shape[i] < 0 || !mxc_size_mul(n, (size_t)t->shape[i], &n))
            return false;
    *bytes = n;
    return true;
}

enum mxc_code mxc_safetensors_write(const char *path, const struct mxc_write_tensor *tensors,
                                    size_t n, struct mxc_err *err) {
    struct mxc_buf header;
    enum mxc_code code = MXC_OK;
    unsigned char *file = NULL;
    size_t offset = 0, total;
    mxc_buf_init(&header, MAX_HEADER);
    (void)mxc_buf_putc(&header, '{');
    for (size_t i = 0; i < n; i++) {
        const struct mxc_write_tensor *t = &tensors[i];
        size_t bytes, end;
        if (!tensor_bytes(t, &bytes) || !mxc_size_add(offset, bytes, &end)) {
            code = mxc_err_set(err, MXC_E_ARG, "%s: tensor %s is too large", path, t->name);
            goto out;
        }
        (void)mxc_buf_printf(&header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i ? "," : "",
                             t->name, dtypes[t->dtype].name);
        for (int d = 0; d < t->n_dims; d++)
            (void)mxc_buf_printf(&header, d ? ",%" PRId64 : "%" PRId64, t->shape[d]);
        (void)mxc_buf_printf(&header, "],\"data_offsets\":[%zu,%zu]}", offset, end);
        offset = end;
    }
    (void)mxc_buf_putc(&header, '}');
    while (header.length % 8 && mxc_buf_putc(&header, ' '))
        ;
    code = mxc_buf_status(&header, err);
    if (code)
        goto out;
    if (!mxc_size_add(8 + header.length, offset, &total) || !(file = mxc_mem_alloc(total))) {
        code = mxc_err_nomem(err);
        goto out;
    }
    for (int i = 0; i < 8; i++)
        file[i] = (unsigned char)((uint64_t)header.length >> 8 * i);
    memcpy(file + 8, header.data, header.length);
    unsigned char *p = file + 8 + header.length;
    for (size_t i = 0; i < n; i++) {
        size_t bytes;
        if (!tensor_bytes(&tensors[i], &bytes))
            continue;
        memcpy(p, tensors[i].data, bytes);
        p += bytes;
    }
    code = mxc_file_write(path, file, total, err);
out:
    mxc_mem_free(file);
    mxc_buf_fini(&header);
    return code;
}
