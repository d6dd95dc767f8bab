/* Rows of a logical tensor: decoding, group view, page dropping. In: a tensor that the loader has
 * checked (sizes agree with shape and storage). Out: floats or codes of one row. The rope
 * permutation of GGUF q and k rows is undone here and nowhere else. */
#include "format/weights.h"

#include "quant/decode.h"

#include <stdio.h>

/* What shares a scale: a block, a group, a row, or (for "") all of a matrix. */
static void scale_name(const struct mxc_tensor *t, char out[32]) {
    const struct mxc_quant_parts *p = t->parts;
    out[0] = 0;
    if (t->n_dims == 3 && p->scale_rows > 1 && p->scale_rows == (size_t)t->shape[1])
        return; /* a matrix of each expert */
    if (p->scale_rows > 1)
        (void)snprintf(out, 32, " %zux%zu", p->scale_rows, p->group);
    else if (p->n_groups > 1)
        (void)snprintf(out, 32, " g%zu", p->group);
    else if (p->scale_step_r)
        (void)snprintf(out, 32, " rows");
}

void mxc_tensor_storage_name(const struct mxc_tensor *t, char name[MXC_STORAGE_NAME]) {
    const char *base = mxc_storage_info(t->storage)->name;
    char scale[32];
    (void)snprintf(name, MXC_STORAGE_NAME, "%s", base);
    if (t->storage == MXC_ST_MLX_AFFINE)
        (void)snprintf(name, MXC_STORAGE_NAME, "%s %u-bit g%u", base, t->bits, t->group);
    if (!t->parts || t->storage == MXC_ST_MXFP4 || t->storage == MXC_ST_MXFP8 ||
        t->storage == MXC_ST_NVFP4)
        return; /* its name says it all */
    scale_name(t, scale);
    if (t->storage == MXC_ST_FP8)
        (void)snprintf(name, MXC_STORAGE_NAME, "%s %s%s", base,
                       t->parts->number == MXC_ST_F8_E5M2 ? "e5m2" : "e4m3", scale);
    else
        (void)snprintf(name, MXC_STORAGE_NAME, "%s %u-bit%s",
                       t->storage == MXC_ST_INT_GROUPS ? "int" : base, t->bits, scale);
}

int64_t mxc_tensor_columns(const struct mxc_tensor *tensor) {
    return tensor->n_dims ? tensor->shape[tensor->n_dims - 1] : 1;
}

int64_t mxc_tensor_rows(const struct mxc_tensor *tensor) {
    int64_t rows = 1;
    for (int i = 0; i + 1 < tensor->n_dims; i++)
        rows *= tensor->shape[i];
    return rows;
}

bool mxc_tensor_is_plain(const struct mxc_tensor *tensor) {
    return mxc_storage_info(tensor->storage)->block == 1 && !tensor->parts &&
           tensor->storage != MXC_ST_MLX_AFFINE && !tensor->permuted_heads;
}

struct mxc_tensor mxc_tensor_reshape(const struct mxc_tensor *tensor, int n_dims,
                                     const int64_t *shape) {
    struct mxc_tensor out = *tensor;
    out.n_dims = n_dims;
    for (int i = 0; i < n_dims; i++)
        out.shape[i] = shape[i];
    return out;
}

/* Where logical row `row` of `rows` stands in the file: files of llama-like architectures hold
 * rows i and i + d/2 of a head of d rows side by side. */
static int64_t file_row(const struct mxc_tensor *t, int64_t row, int64_t rows) {
    if (!t->permuted_heads)
        return row;
    int64_t d = rows / t->permuted_heads, half = d / 2, head = row / d, x = row % d;
    return head * d + x % half * 2 + x / half;
}

static size_t row_bytes(const struct mxc_tensor *t) {
    int64_t rows = mxc_tensor_rows(t);
    return rows > 0 ? t->bytes / (size_t)rows : 0;
}

static struct mxc_mlx_row mlx_row(const struct mxc_tensor *t, int64_t row) {
    size_t n = (size_t)mxc_tensor_columns(t);
    size_t step = n / t->group * mxc_storage_info(t->scale_storage)->block_bytes * (size_t)row;
    return (struct mxc_mlx_row){
        .codes = t->data + row_bytes(t) * (size_t)row,
        .scales = t->scales + step,
        .biases = t->biases + step,
        .n = n,
        .bits = t->bits,
        .group = t->group,
        .scale_storage = t->scale_storage,
    };
}

void mxc_tensor_row(const struct mxc_tensor *tensor, int64_t row, float *out) {
    size_t n = (size_t)mxc_tensor_columns(tensor);
    if (tensor->storage == MXC_ST_MLX_AFFINE) {
        struct mxc_mlx_row r = mlx_row(tensor, row);
        mxc_mlx_decode(&r, out);
        return;
    }
    if (tensor->parts) {
        mxc_parts_decode(tensor->parts, (size_t)row, 1, out, n);
        return;
    }
    if (tensor->permuted_heads && tensor->n_dims == 1) { /* a bias: its numbers are permuted */
        size_t width = mxc_storage_info(tensor->storage)->block_bytes;
        for (size_t i = 0; i < n; i++) {
            size_t at = (size_t)file_row(tensor, (int64_t)i, (int64_t)n);
            mxc_quant_decode(tensor->storage, tensor->data + at * width, 1, out + i);
        }
        return;
    }
    size_t at = (size_t)file_row(tensor, row, mxc_tensor_rows(tensor));
    mxc_quant_decode(tensor->storage, tensor->data + at * row_bytes(tensor), n, out);
}

const uint8_t *mxc_tensor_row_data(const struct mxc_tensor *tensor, int64_t row) {
    int64_t at =
        tensor->storage == MXC_ST_MLX_AFFINE ? row : file_row(tensor, row, mxc_tensor_rows(tensor));
    return tensor->data + (size_t)at * row_bytes(tensor);
}

void mxc_tensor_read(const struct mxc_tensor *tensor, int64_t row, int64_t n_rows, float *out,
                     size_t ld) {
    if (tensor->parts) {
        mxc_parts_decode(tensor->parts, (size_t)row, (size_t)n_rows, out, ld);
        return;
    }
    for (int64_t i = 0; i < n_rows; i++)
        mxc_tensor_row(tensor, row + i, out + (size_t)i * ld);
}

bool mxc_tensor_group_form(const struct mxc_tensor *tensor, struct mxc_group_form *form) {
    if (tensor->parts)
        return mxc_parts_form(tensor->parts, form);
    if (tensor->storage != MXC_ST_MLX_AFFINE)
        return mxc_quant_group_form(tensor->storage, form);
    *form = (struct mxc_group_form){
        .group = tensor->group, .bits = tensor->bits, .zero_point = -1, .table = NULL};
    return true;
}

void mxc_tensor_group_row(const struct mxc_tensor *tensor, int64_t row,
                          const struct mxc_group_row *out) {
    mxc_tensor_group_rows(tensor, row, 1, out, 0, 0);
}

void mxc_tensor_group_rows(const struct mxc_tensor *tensor, int64_t row, int64_t n_rows,
                           const struct mxc_group_row *out, size_t code_ld, size_t group_ld) {
    if (tensor->parts) {
        mxc_parts_groups(tensor->parts, (size_t)row, (size_t)n_rows, out, code_ld, group_ld);
        return;
    }
    for (int64_t i = 0; i < n_rows; i++) {
        const struct mxc_group_row to = {out->codes + (size_t)i * code_ld,
                                         out->scales + (size_t)i * group_ld,
                                         out->biases + (size_t)i * group_ld};
        if (tensor->storage == MXC_ST_MLX_AFFINE) {
            struct mxc_mlx_row r = mlx_row(tensor, row + i);
            mxc_mlx_groups(&r, &to);
            continue;
        }
        size_t at = (size_t)file_row(tensor, row + i, mxc_tensor_rows(tensor));
        mxc_quant_groups(tensor->storage, tensor->data + at * row_bytes(tensor),
                         (size_t)mxc_tensor_columns(tensor), &to);
    }
}

/* ---- pages */

/* The start is rounded down to a page, so that drops of consecutive rows leave no page behind. */
static void drop(const struct mxc_file *file, const uint8_t *data, size_t begin, size_t end) {
    const size_t page = 4096;
    uintptr_t at = (uintptr_t)data, map = (uintptr_t)file->data;
    if (at < map || at - map >= file->size)
        return; /* memory, which would read as zeros afterwards */
    size_t offset = at - map;
    size_t from = (offset + begin) / page * page;
    mxc_file_drop(file, from, offset + end - from);
}

void mxc_tensor_drop(const struct mxc_tensor *tensor, int64_t row0, int64_t row1) {
    if (row0 >= row1)
        return;
    size_t step = row_bytes(tensor), a = (size_t)row0, b = (size_t)row1;
    const struct mxc_quant_parts *p = tensor->parts;
    if (p && (p->layout == MXC_CODES_COLUMNS || p->layout == MXC_CODES_AWQ)) {
        if (row1 >= mxc_tensor_rows(tensor))
            drop(tensor->file, tensor->data, 0, tensor->bytes);
        return;
    }
    drop(tensor->file, tensor->data, a * step, b * step);
    if (p && p->scale_rows == 1 && p->scale_step_r == p->n_groups) {
        step = p->n_groups * mxc_storage_info(p->scale_storage)->block_bytes;
        drop(tensor->scales_file, p->scales, a * step, b * step);
    }
    if (tensor->storage != MXC_ST_MLX_AFFINE)
        return;
    step = (size_t)mxc_tensor_columns(tensor) / tensor->group *
           mxc_storage_info(tensor->scale_storage)->block_bytes;
    drop(tensor->scales_file, tensor->scales, a * step, b * step);
    drop(tensor->biases_file, tensor->biases, a * step, b * step);
}
