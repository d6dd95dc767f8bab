/* Phi-3 and Phi-4: Llama with fused projections (q, k and v; gate and up), partial rotation where
 * the config says so, longrope, and a window on every layer when sliding_window is given. In: a
 * config and the names of the weights. Out: the graph. */
#include "models/blocks.h"
#include "models/families.h"

static enum mxc_code build(const struct mxc_config *config, const struct mxc_weights *weights,
                           struct mxc_graph *graph, struct mxc_err *err) {
    struct mxc_decoder d;
    enum mxc_code code = mxc_decoder_open(&d, graph, config, weights, NULL, err);
    if (!code)
        code = mxc_hyper_read_window(config, 0, &d.h, err);
    if (code)
        return code;
    d.qkv = "qkv_proj";
    d.gate_up = "gate_up_proj";
    return mxc_decoder_run(&d, mxc_layer_llama, err);
}

static const char *const model_types[] = {"phi3", NULL};
static const char *const gguf_archs[] = {"phi3", NULL};

const struct mxc_family mxc_family_phi3 = {
    .name = "phi3",
    .summary = "Phi-3, Phi-3.5 and Phi-4 (text)",
    .notes = "fused projections, partial rotation, longrope, window when given",
    .model_types = model_types,
    .gguf_archs = gguf_archs,
    .build = build,
};
