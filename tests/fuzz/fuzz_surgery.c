/* YAML document -> operations -> small weights, which are the sources, too. Invariants: no crash; a
 * result or one error line; after it every tensor can be read and has its old name and shape. */
#define _GNU_SOURCE
#include "scratch.h"

#include "surgery/surgery.h"

#include "must_say.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char header[] =
    "{\"model.layers.0.self_attn.q_proj.weight\":{\"dtype\":\"F32\",\"shape\":[4,4],"
    "\"data_offsets\":[0,64]},"
    "\"model.layers.0.self_attn.o_proj.weight\":{\"dtype\":\"BF16\",\"shape\":[4,4],"
    "\"data_offsets\":[64,96]},"
    "\"model.layers.1.mlp.down_proj.weight\":{\"dtype\":\"F16\",\"shape\":[4,4],"
    "\"data_offsets\":[96,128]},"
    "\"m.weight\":{\"dtype\":\"U32\",\"shape\":[1,4],\"data_offsets\":[128,144]},"
    "\"m.scales\":{\"dtype\":\"F16\",\"shape\":[1,1],\"data_offsets\":[144,146]},"
    "\"m.biases\":{\"dtype\":\"F16\",\"shape\":[1,1],\"data_offsets\":[146,148]}}";
enum { HEADER = sizeof header - 1, DATA = 148 };

static const char *weights_file(void) {
    uint8_t file[8 + HEADER + DATA] = {HEADER & 255, HEADER >> 8};
    if (*scratch_file[1])
        return scratch_file[1];
    memcpy(file + 8, header, HEADER);
    for (int i = 0; i < DATA; i++)
        file[8 + HEADER + i] = (uint8_t)(i * 37 % 61);
    return scratch_put(1, "w.safetensors", file, sizeof file);
}

static void operate(struct mxc_surgery *surgery, const char *path) {
    struct mxc_config config = {.root = json_pack("{s:i, s:i, s:{s:i, s:i}}", "num_attention_heads",
                                                  2, "num_hidden_layers", 2, "quantization", "bits",
                                                  4, "group_size", 32)};
    struct mxc_weights *weights = NULL;
    struct mxc_err err = {0};
    config.text = config.root;
    config.quantization = json_object_get(config.root, "quantization");
    if (mxc_weights_open(path, &config, &weights, &err))
        abort();
    if (mxc_surgery_apply(surgery, &config, weights, &err))
        must_say(&err);
    for (size_t i = 0; i < mxc_weights_count(weights); i++) {
        const struct mxc_tensor *t = mxc_weights_at(weights, i);
        float row[64];
        if (mxc_weights_find(weights, t->name) != t || mxc_tensor_columns(t) > 64)
            abort();
        for (int64_t r = 0; r < mxc_tensor_rows(t); r++)
            mxc_tensor_row(t, r, row);
    }
    mxc_weights_close(weights);
    mxc_surgery_close(surgery);
    json_decref(config.root);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *path = weights_file();
    struct mxc_surgery *surgery = NULL;
    struct mxc_err err = {0};
    if (mxc_surgery_open(scratch_write("surgery.yaml", data, size), &surgery, &err))
        must_say(&err);
    else
        operate(surgery, path);
    return 0;
}
