/* SmolLM3: Llama in which some layers do not rotate q and k: those where no_rope_layers holds 0 (1
 * means that the layer rotates), else every no_rope_layer_interval-th.
 * In: a config and the names of the weights. Out: the graph. */
#include "models/blocks.h"
#include "models/families.h"

struct smollm3 {
    const json_t *rotates; /* no_rope_layers, or NULL */
    int64_t interval;
};

static int32_t layer(struct mxc_decoder *d, int32_t x) {
    const struct smollm3 *f = d->family;
    bool rotates = f->rotates
                       ? json_integer_value(json_array_get(f->rotates, (size_t)d->layer)) != 0
                       : (d->layer + 1) % f->interval != 0;
    if (!rotates)
        d->rope = MXC_NONE;
    return mxc_layer_llama(d, x);
}

static enum mxc_code read_rotating(const struct mxc_decoder *d, struct smollm3 *f,
                                   struct mxc_err *err) {
    const json_t *list = json_object_get(d->config->text, "no_rope_layers");
    if (!list || json_is_null(list))
        return mxc_json_get_int(d->config->text, "no_rope_layer_interval", 1, 1 << 20, &f->interval,
                                err);
    if (!json_is_array(list) || json_array_size(list) != (size_t)d->h.n_layers)
        return mxc_err_set(err, MXC_E_FORMAT, "no_rope_layers: not a list of %d numbers",
                           d->h.n_layers);
    for (int32_t i = 0; i < d->h.n_layers; i++) {
        const json_t *v = json_array_get(list, (size_t)i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > 1)
            return mxc_err_set(err, MXC_E_FORMAT, "no_rope_layers[%d]: not 0 or 1", i);
    }
    f->rotates = list;
    return MXC_OK;
}

static enum mxc_code build(const struct mxc_config *config, const struct mxc_weights *weights,
                           struct mxc_graph *graph, struct mxc_err *err) {
    struct mxc_decoder d;
    static const char *const accepts[] = {"no_rope_layers", NULL};
    static const struct mxc_hyper_rules rules = {.theta = 2e6, .accepts = accepts};
    struct smollm3 f = {.interval = 4};
    enum mxc_code code = mxc_decoder_open(&d, graph, config, weights, &rules, err);
    if (!code)
        code = mxc_hyper_read_windows(config, &d.h, err);
    if (!code)
        code = read_rotating(&d, &f, err);
    if (code)
        return code;
    d.family = &f;
    return mxc_decoder_run(&d, layer, err);
}

static const char *const model_types[] = {"smollm3", NULL};
static const char *const gguf_archs[] = {"smollm3", NULL};

const struct mxc_family mxc_family_smollm3 = {
    .name = "smollm3",
    .summary = "SmolLM3",
    .notes = "layers without rotation (no_rope_layers)",
    .model_types = model_types,
    .gguf_archs = gguf_archs,
    .build = build,
};
