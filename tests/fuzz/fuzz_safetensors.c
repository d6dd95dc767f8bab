/* safetensors file -> weights: header, places, the pieces of quantised matrices (the file's last
 * byte picks what the config says of them); every row that opens is read. */
#define _GNU_SOURCE
#include "scratch.h"

#include "format/config.h"
#include "must_say.h"
#include "safetensors_mutate.h"
#include "use_weights.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

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
        must_say(&err);
        return 0;
    }
    use_weights(w);
    mxc_weights_close(w);
    return 0;
}

#ifdef MXC_FUZZ
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
    return mutate_safetensors(data, size, max_size, seed);
}
#endif
