/* safetensors file -> weights: header, places, MLX triplets; every row that opens is read. */
#define _GNU_SOURCE
#include "scratch.h"

#include "format/weights.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Reads first and last row of each tensor of moderate width. */
static void read_rows(const struct mxc_weights *w) {
    static float row[1 << 16], scales[1 << 16], biases[1 << 16];
    static uint8_t codes[1 << 16];
    for (size_t i = 0; i < mxc_weights_count(w); i++) {
        const struct mxc_tensor *t = mxc_weights_at(w, i);
        struct mxc_group_form form;
        int64_t rows = mxc_tensor_rows(t), columns = mxc_tensor_columns(t);
        if (rows < 1 || columns > 1 << 16)
            continue;
        for (int64_t r = 0; r<rows; r += rows> 1 ? rows - 1 : 1) {
            mxc_tensor_row(t, r, row);
            if (mxc_tensor_group_form(t, &form))
                mxc_tensor_group_row(t, r, &(struct mxc_group_row){codes, scales, biases});
        }
        mxc_tensor_drop(t, 0, rows);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct mxc_weights *w;
    struct mxc_err err = {0};
    if (mxc_weights_open(scratch_write("x.safetensors", data, size), NULL, &w, &err)) {
        if (!*err.message || strchr(err.message, '\n'))
            abort();
        return 0;
    }
    read_rows(w);
    mxc_weights_close(w);
    return 0;
}
