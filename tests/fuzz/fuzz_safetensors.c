/* safetensors file -> weights: header, places, the pieces of quantised matrices (the file's last
 * byte picks what the config says of them); every row that opens is read. */
#define _GNU_SOURCE
#include "scratch.h"

#include "format/config.h"
#include "format/view.h"

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
        struct mxc_view view = {.tensor = t, .n = 1, .k = rows, .col_step = 1, .transposed = true};
        if (rows <= 1 << 12 && columns > 0)
            mxc_view_rows(&view, 0, 1, scales, (size_t)rows, row);
        mxc_tensor_drop(t, 0, rows);
    }
}

static json_t *quantization_of(uint8_t pick) {
    static const char *const texts[] = {
        "null",
        "{\"bits\":4,\"group_size\":64}",
        "{\"bits\":4,\"group_size\":32,\"mode\":\"mxfp4\"}",
        "{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":32}",
        "{\"quant_method\":\"gptq\",\"bits\":3,\"group_size\":-1}",
        "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":32}",
        "{\"quant_method\":\"compressed-tensors\"}",
        "{\"quant_method\":\"fp8\",\"weight_block_size\":[16,16]}",
        "{\"quant_method\":\"modelopt\"}",
        "{\"quant_method\":\"mxfp4\"}",
    };
    const char *text = texts[pick % (sizeof texts / sizeof *texts)];
    return json_loads(text, JSON_DECODE_ANY, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct mxc_weights *w;
    struct mxc_err err = {0};
    struct mxc_config config = {.quantization = quantization_of(size ? data[size - 1] : 0)};
    if (!json_is_object(config.quantization)) {
        json_decref(config.quantization);
        config.quantization = NULL;
    }
    enum mxc_code code =
        mxc_weights_open(scratch_write("x.safetensors", data, size), &config, &w, &err);
    json_decref(config.quantization);
    if (code) {
        if (!*err.message || strchr(err.message, '\n'))
            abort();
        return 0;
    }
    read_rows(w);
    mxc_weights_close(w);
    return 0;
}
