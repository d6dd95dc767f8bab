/* Gemma 3, its text model: as Gemma 2 without softcaps, with RMS norms on the heads of q and k, and
 * five layers with a window to one without. Layers with a window rotate with a base of their own
 * (rope_local_base_freq) and without scaling.
 * In: a config and the names of the weights. Out: the graph. */
#include "models/blocks.h"
#include "models/families.h"

#include <math.h>

struct gemma3 {
    int32_t local; /* rope of layers with a window */
    int64_t pattern;
};

static int32_t layer(struct mxc_decoder *d, int32_t x) {
    const struct gemma3 *f = d->family;
    if (!d->h.layer_types)
        d->window = (d->layer + 1) % f->pattern ? d->h.window : 0;
    if (d->window)
        d->rope = f->local;
    int32_t y = mxc_block_attention(d, mxc_block_norm(d, x, "input_layernorm"), MXC_NONE);
    x = mxc_graph_add(d->g, mxc_block_norm(d, y, "post_attention_layernorm"), x);
    y = mxc_block_glu(d, mxc_block_norm(d, x, "pre_feedforward_layernorm"), MXC_NONE);
    return mxc_graph_add(d->g, mxc_block_norm(d, y, "post_feedforward_layernorm"), x);
}

/* rope_parameters per layer type (transformers 5), or rope_local_base_freq beside the global keys.
 */
static enum mxc_code read_local_rope(struct mxc_decoder *d, struct mxc_err *err) {
    const json_t *text = d->config->text;
    const json_t *sections = json_object_get(text, "rope_parameters");
    static const struct mxc_hyper_rules local = {.rope_section = "sliding_attention"};
    struct mxc_rope rope = {.dims = d->h.head_dim, .theta = 1e4};
    double theta = 1e4;
    enum mxc_code code;
    if (json_is_object(json_object_get(sections, "sliding_attention")))
        code = mxc_rope_read(d->config, NULL, &local, d->h.head_dim, d->h.max_position, &rope, err);
    else if (!(code = mxc_json_get_real(text, "rope_local_base_freq", &theta, err)))
        rope.theta = theta;
    if (code)
        return code;
    if (!(theta > 0) || theta > 1e18)
        return mxc_err_set(err, MXC_E_FORMAT, "rope_local_base_freq: %g is not a positive number",
                           theta);
    ((struct gemma3 *)d->family)->local = mxc_graph_rope(d->g, &rope);
    return MXC_OK;
}

static enum mxc_code build(const struct mxc_config *config, const struct mxc_weights *weights,
                           struct mxc_graph *graph, struct mxc_err *err) {
    struct mxc_decoder d;
    static const char *const accepts[] = {"attn_logit_softcapping", "final_logit_softcapping",
                                          "query_pre_attn_scalar", NULL};
    static const struct mxc_hyper_rules rules = {.head_dim = 256,
                                                 .act_key = "hidden_activation",
                                                 .act = "gelu_pytorch_tanh",
                                                 .rope_section = "full_attention",
                                                 .theta = 1e6,
                                                 .accepts = accepts};
    struct gemma3 f = {.pattern = 6};
    float scalar = 256;
    enum mxc_code code = mxc_decoder_open(&d, graph, config, weights, &rules, err);
    d.family = &f;
    if (code || (code = mxc_hyper_read_window(config, 4096, &d.h, err)) ||
        (code = mxc_hyper_read_layer_types(config, &d.h, err)) ||
        (code = mxc_json_get_int(config->text, "sliding_window_pattern", 1, 1 << 20, &f.pattern,
                                 err)) ||
        (code = mxc_read_positive(config->text, "query_pre_attn_scalar", &scalar, err)) ||
        (code =
             mxc_read_positive(config->text, "attn_logit_softcapping", &d.h.attn_softcap, err)) ||
        (code =
             mxc_read_positive(config->text, "final_logit_softcapping", &d.h.logit_softcap, err)) ||
        (code = read_local_rope(&d, err)))
        return code;
    d.h.attn_scale = 1 / sqrtf(scalar);
    d.h.embed_scale = sqrtf((float)d.h.hidden);
    d.h.norm_offset = config->from_gguf ? 0 : 1;
    d.h.qk_norm = true;
    return mxc_decoder_run(&d, layer, err);
}

static const char *const model_types[] = {"gemma3_text", NULL};
static const char *const gguf_archs[] = {"gemma3", NULL};

const struct mxc_family mxc_family_gemma3_text = {
    .name = "gemma3_text",
    .summary = "Gemma 3 (270M, 1B; text)",
    .notes = "local and global attention with ropes of their own, norms on the heads of q and k",
    .model_types = model_types,
    .gguf_archs = gguf_archs,
    .build = build,
};
