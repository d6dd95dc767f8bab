/* Mistral: Llama without biases and with a sliding window on every layer, unless sliding_window is
 * null. A config.json that does not mention it means 4096, the default of the reference; a GGUF
 * that does not means none. */
#include "models/blocks.h"
#include "models/families.h"

static enum mxc_code read_window(const struct mxc_config *config, struct mxc_hyper *hyper,
                                 struct mxc_err *err) {
    const json_t *given = json_object_get(config->text, "sliding_window");
    if (json_is_null(given) || (!given && config->from_gguf))
        return MXC_OK;
    int64_t window = 4096, min = config->from_gguf ? 0 : 1; /* a GGUF's 0 means none */
    enum mxc_code code =
        mxc_json_get_int(config->text, "sliding_window", min, INT32_MAX, &window, err);
    if (code)
        return code;
    hyper->window = (int32_t)window;
    hyper->window_from = 0;
    return MXC_OK;
}

static enum mxc_code build(const struct mxc_config *config, const struct mxc_weights *weights,
                           struct mxc_graph *graph, struct mxc_err *err) {
    struct mxc_hyper hyper;
    enum mxc_code code = mxc_hyper_read(config, weights, 0, &hyper, err);
    if (!code)
        code = read_window(config, &hyper, err);
    if (code)
        return code;
    hyper.qkv_bias = hyper.o_bias = hyper.mlp_bias = MXC_ABSENT;
    return mxc_graph_finish(
        graph, mxc_blocks_decoder(graph, config, weights, &hyper, "model.", "lm_head.weight"), err);
}

static const char *const model_types[] = {"mistral", NULL};
static const char *const gguf_archs[] = {NULL};

const struct mxc_family mxc_family_mistral = {
    .name = "mistral",
    .summary = "Mistral 7B and Nemo",
    .model_types = model_types,
    .gguf_archs = gguf_archs,
    .build = build,
};
