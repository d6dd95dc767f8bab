/* GGUF file -> metadata, config and weights; every value and the outer rows are read. */
#define _GNU_SOURCE
#include "scratch.h"

#include "format/config.h"
#include "format/gguf.h"
#include "format/weights.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static double read_values(const struct mxc_gguf *g) {
    double sum = 0;
    for (size_t i = 0; i < mxc_gguf_n_values(g); i++) {
        const struct mxc_gguf_value *v = mxc_gguf_value_at(g, i);
        struct mxc_str s;
        size_t cursor = 0;
        while (mxc_gguf_next_string(v, &cursor, &s))
            sum += s.length ? s.ptr[s.length - 1] : 0;
        for (size_t k = 0; v->element != MXC_GGUF_STRING && k < v->count; k++)
            sum += mxc_gguf_real_at(v, k);
    }
    return sum;
}

static void read_rows(const struct mxc_weights *w) {
    static float row[1 << 16];
    for (size_t i = 0; i < mxc_weights_count(w); i++) {
        const struct mxc_tensor *t = mxc_weights_at(w, i);
        int64_t rows = mxc_tensor_rows(t);
        if (mxc_tensor_columns(t) > 1 << 16)
            continue;
        mxc_tensor_row(t, 0, row);
        mxc_tensor_row(t, rows - 1, row);
        mxc_tensor_drop(t, 0, rows);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct mxc_gguf *g;
    struct mxc_config *c;
    struct mxc_weights *w;
    struct mxc_err err = {0};
    const char *path = scratch_write("x.gguf", data, size);
    if (mxc_gguf_open(path, &g, &err)) {
        if (!*err.message || strchr(err.message, '\n'))
            abort();
        return 0;
    }
    volatile double sum = read_values(g);
    (void)sum;
    mxc_gguf_close(g);
    if (!mxc_config_open(path, &c, &err))
        mxc_config_close(c);
    if (!mxc_weights_open(path, NULL, &w, &err)) {
        read_rows(w);
        mxc_weights_close(w);
    }
    return 0;
}
