/* View: a matrix [n, k] inside a tensor: some of its rows in even steps, or, transposed, some of
 * its columns. What backends pack and upload; a whole tensor is the plainest view.
 * Thread rules: read-only, like the weights it looks into. */
#ifndef MXC_FORMAT_VIEW_H
#define MXC_FORMAT_VIEW_H

#include "format/weights.h"

/* Row r is the tensor's row row0 + r * row_step (rows being all extents but the last); transposed:
 * element (r, c) stands at row row0 + c and column col0 + r * col_step. */
struct mxc_view {
    const struct mxc_tensor *tensor; /* borrowed */
    int64_t n, k;
    int64_t row0, row_step, col0, col_step;
    bool transposed;
};

struct mxc_view mxc_view_whole(const struct mxc_tensor *tensor);
/* Whether the view stays inside its tensor. */
bool mxc_view_fits(const struct mxc_view *view);
/* Numbers of scratch that mxc_view_rows needs; 0 for a view that is not transposed. */
size_t mxc_view_scratch(const struct mxc_view *view);
/* Decodes rows [row, row + n_rows) to out[i * ld]. Fewest tensor rows are decoded when many rows
 * are asked for at once. */
void mxc_view_rows(const struct mxc_view *view, int64_t row, int64_t n_rows, float *out, size_t ld,
                   float *scratch);
/* As mxc_tensor_group_form and _group_row; false for a transposed view. */
bool mxc_view_group_form(const struct mxc_view *view, struct mxc_group_form *form);
void mxc_view_group_row(const struct mxc_view *view, int64_t row, const struct mxc_group_row *out);
/* A strip of rows at once, as mxc_tensor_group_rows: much faster for GPTQ and AWQ. */
void mxc_view_group_rows(const struct mxc_view *view, int64_t row, int64_t n_rows,
                         const struct mxc_group_row *out, size_t code_ld, size_t group_ld);
/* Drops source pages of rows [row0, row1); nothing for a transposed view until row1 is n. */
void mxc_view_drop(const struct mxc_view *view, int64_t row0, int64_t row1);
/* Bytes in files that the view stands for. */
size_t mxc_view_bytes(const struct mxc_view *view);

#endif
