/* View: rows of a tensor, or its columns as rows. Plain views pass straight through to the tensor's
 * own decoding; a transposed one decodes each tensor row once for all the rows that are asked for,
 * so callers ask for a strip at a time. A transposed view has no group form: the groups of a
 * quantised tensor run along the other axis.
 * In: tensors that the loaders have checked. Out: f32 rows, or codes with scales. */
#include "format/view.h"

#include "quant/decode.h"

struct mxc_view mxc_view_whole(const struct mxc_tensor *tensor) {
    return (struct mxc_view){.tensor = tensor,
                             .n = mxc_tensor_rows(tensor),
                             .k = mxc_tensor_columns(tensor),
                             .row_step = 1,
                             .col_step = 1};
}

/* Whether first + (count - 1) * step < limit, without overflow. */
static bool inside(int64_t first, int64_t count, int64_t step, int64_t limit) {
    if (first < 0 || count < 1 || step < 0 || first >= limit)
        return false;
    return step == 0 || count - 1 <= (limit - 1 - first) / step;
}

bool mxc_view_fits(const struct mxc_view *view) {
    int64_t rows = mxc_tensor_rows(view->tensor), columns = mxc_tensor_columns(view->tensor);
    if (!view->transposed)
        return view->k == columns && inside(view->row0, view->n, view->row_step, rows);
    return inside(view->row0, view->k, 1, rows) &&
           inside(view->col0, view->n, view->col_step, columns);
}

size_t mxc_view_scratch(const struct mxc_view *view) {
    return view->transposed ? (size_t)mxc_tensor_columns(view->tensor) : 0;
}

/* Columns [first, first + n) of the tensor's row for column c of the view. Where every number has
 * bytes of its own, only those are decoded. */
static const float *columns_from(const struct mxc_view *view, int64_t c, int64_t first, int64_t n,
                                 float *scratch) {
    const struct mxc_tensor *t = view->tensor;
    const struct mxc_storage_info *info = mxc_storage_info(t->storage);
    if (info->block != 1 || t->parts || t->permuted_heads) {
        mxc_tensor_row(t, view->row0 + c, scratch);
        return scratch + first;
    }
    int64_t at = (view->row0 + c) * mxc_tensor_columns(t) + first;
    mxc_quant_decode(t->storage, t->data + (size_t)at * info->block_bytes, (size_t)n, scratch);
    return scratch;
}

void mxc_view_rows(const struct mxc_view *view, int64_t row, int64_t n_rows, float *out, size_t ld,
                   float *scratch) {
    if (!view->transposed && view->row_step == 1) {
        mxc_tensor_read(view->tensor, view->row0 + row, n_rows, out, ld);
        return;
    }
    if (!view->transposed) {
        for (int64_t i = 0; i < n_rows; i++)
            mxc_tensor_row(view->tensor, view->row0 + (row + i) * view->row_step,
                           out + (size_t)i * ld);
        return;
    }
    int64_t first = view->col0 + row * view->col_step;
    for (int64_t c = 0; c < view->k; c++) {
        const float *from =
            columns_from(view, c, first, (n_rows - 1) * view->col_step + 1, scratch);
        for (int64_t i = 0; i < n_rows; i++)
            out[(size_t)i * ld + (size_t)c] = from[i * view->col_step];
    }
}

bool mxc_view_group_form(const struct mxc_view *view, struct mxc_group_form *form) {
    return !view->transposed && mxc_tensor_group_form(view->tensor, form);
}

void mxc_view_group_row(const struct mxc_view *view, int64_t row, const struct mxc_group_row *out) {
    mxc_tensor_group_row(view->tensor, view->row0 + row * view->row_step, out);
}

void mxc_view_group_rows(const struct mxc_view *view, int64_t row, int64_t n_rows,
                         const struct mxc_group_row *out, size_t code_ld, size_t group_ld) {
    if (view->row_step == 1) {
        mxc_tensor_group_rows(view->tensor, view->row0 + row, n_rows, out, code_ld, group_ld);
        return;
    }
    for (int64_t i = 0; i < n_rows; i++) {
        const struct mxc_group_row to = {out->codes + (size_t)i * code_ld,
                                         out->scales + (size_t)i * group_ld,
                                         out->biases + (size_t)i * group_ld};
        mxc_view_group_row(view, row + i, &to);
    }
}

void mxc_view_drop(const struct mxc_view *view, int64_t row0, int64_t row1) {
    if (view->transposed) {
        if (row1 >= view->n)
            mxc_tensor_drop(view->tensor, view->row0, view->row0 + view->k);
        return;
    }
    if (row1 > row0)
        mxc_tensor_drop(view->tensor, view->row0 + row0 * view->row_step,
                        view->row0 + (row1 - 1) * view->row_step + 1);
}

size_t mxc_view_bytes(const struct mxc_view *view) {
    int64_t rows = mxc_tensor_rows(view->tensor);
    size_t bytes = view->tensor->bytes + view->tensor->companion_bytes;
    return bytes / (size_t)(rows > 0 ? rows : 1) * (size_t)(view->transposed ? view->k : view->n);
}
