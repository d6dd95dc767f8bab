/* For fuzz targets of tensor files: what is done with weights that open. */
#ifndef MXC_TESTS_FUZZ_USE_WEIGHTS_H
#define MXC_TESTS_FUZZ_USE_WEIGHTS_H

#include "format/view.h"

/* Reads first and last row of each tensor of moderate width, in every form that it has. */
static void use_weights(const struct mxc_weights *w) {
    static float row[1 << 16], scales[1 << 16], biases[1 << 16];
    static uint8_t codes[1 << 16];
    for (size_t i = 0; i < mxc_weights_count(w); i++) {
        const struct mxc_tensor *t = mxc_weights_at(w, i);
        struct mxc_group_form form;
        int64_t rows = mxc_tensor_rows(t), columns = mxc_tensor_columns(t);
        if (rows < 1 || columns > 1 << 16)
            continue;
        for (int64_t r = 0;; r = rows - 1) {
            mxc_tensor_row(t, r, row);
            if (mxc_tensor_group_form(t, &form))
                mxc_tensor_group_row(t, r, &(struct mxc_group_row){codes, scales, biases});
            if (r == rows - 1)
                break;
        }
        struct mxc_view view = {.tensor = t, .n = 1, .k = rows, .col_step = 1, .transposed = true};
        if (rows <= 1 << 12 && columns > 0)
            mxc_view_rows(&view, 0, 1, scales, (size_t)rows, row);
        mxc_tensor_drop(t, 0, rows);
    }
}

#endif
