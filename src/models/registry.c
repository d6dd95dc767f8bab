/* Registry: the list of families, finding one for a checkpoint, and making a checkpoint's graph. A
 * new family is one line in the list.
 * In: config and weights. Out: a graph whose every weight exists in the checkpoint with the shape
 * it was given, checked before a backend sees it.
 * Errors name config.json (or the GGUF's metadata) and what in it; an unknown architecture is told
 * together with the nearest known one. */
#include "models/blocks.h"
#include "models/families.h"

#include <string.h>

enum { MAX_NAMES = 64 };

static const struct mxc_family *const families[] = {
    &mxc_family_llama,
    &mxc_family_mistral,
    &mxc_family_mixtral,
    &mxc_family_qwen2,
    &mxc_family_qwen2_moe,
    &mxc_family_qwen3,
    &mxc_family_qwen3_moe,
    &mxc_family_gemma,
    &mxc_family_gemma2,
    &mxc_family_gemma3_text,
    &mxc_family_phi3,
    &mxc_family_smollm3,
    &mxc_family_olmo2,
    &mxc_family_granite,
    &mxc_family_cohere,
    &mxc_family_glm4,
    &mxc_family_starcoder2,
    &mxc_family_stablelm,
    &mxc_family_ernie4_5,
    &mxc_family_bailing_moe,
    &mxc_family_deepseek_v3,
    &mxc_family_gpt_oss,
    &mxc_family_qwen2_vl,
    &mxc_family_qwen2_5_vl,
    &mxc_family_qwen3_vl,
    &mxc_family_llava,
    &mxc_family_mllama,
    &mxc_family_gemma3,
    &mxc_family_idefics3,
    &mxc_family_bert,
    NULL,
};

const struct mxc_family *const *mxc_family_list(void) {
    return families;
}

static bool listed(const char *type, const char *const *names) {
    for (; *names; names++) {
        if (!strcmp(type, *names))
            return true;
    }
    return false;
}

/* A GGUF's architecture is its own name, or has been translated to a model_type by format/. */
static bool matches(const struct mxc_family *family, const char *type, bool gguf) {
    return (gguf && listed(type, family->gguf_archs)) || listed(type, family->model_types);
}

enum mxc_code mxc_family_find(const struct mxc_config *config, const struct mxc_family **family,
                              struct mxc_err *err) {
    const char *key = config->from_gguf ? "general.architecture" : "model_type";
    const char *type = config->model_type;
    const char *all[MAX_NAMES + 1] = {NULL};
    int n = 0;
    if (!type || !*type)
        return mxc_err_set(err, MXC_E_FORMAT, "%s: missing", key);
    for (int i = 0; families[i]; i++) {
        if (matches(families[i], type, config->from_gguf)) {
            *family = families[i];
            return MXC_OK;
        }
        const char *const *name =
            config->from_gguf ? families[i]->gguf_archs : families[i]->model_types;
        for (; *name && n < MAX_NAMES; name++)
            all[n++] = *name;
    }
    return mxc_err_set(
        err, MXC_E_UNSUPPORTED,
        "%s: \"%.100s\" is not supported (nearest: \"%s\"; \"mlxcel arch\" lists all)", key, type,
        mxc_models_nearest(type, all));
}

/* A flat view needs numbers that stand alone, and as many of them. */
static enum mxc_code check_flat(const struct mxc_weight *w, const struct mxc_tensor *tensor,
                                struct mxc_err *err) {
    if (!mxc_tensor_is_plain(tensor))
        return mxc_err_set(err, MXC_E_UNSUPPORTED,
                           "tensor %s: stored as %s, where plain numbers are needed", tensor->name,
                           mxc_storage_info(tensor->storage)->name);
    int64_t want = 1, have = mxc_tensor_rows(tensor) * mxc_tensor_columns(tensor);
    for (int i = 0; i < w->n_dims; i++)
        want *= w->shape[i];
    return want == have ? MXC_OK
                        : mxc_err_set(err, MXC_E_FORMAT,
                                      "tensor %s: %lld numbers where the config asks for %lld",
                                      tensor->name, (long long)have, (long long)want);
}

enum mxc_code mxc_models_check_weights(const struct mxc_graph *g, const struct mxc_weights *weights,
                                       struct mxc_err *err) {
    for (int32_t i = 0; i < g->n_weights; i++) {
        const struct mxc_weight *w = &g->weights[i];
        int64_t shape[MXC_MAX_VIEW_DIMS];
        int n_dims = mxc_weight_tensor_shape(w, shape);
        for (int64_t j = 0; j < mxc_weight_tensors(w); j++) {
            const struct mxc_tensor *tensor;
            char name[MXC_MAX_WEIGHT_NAME];
            mxc_weight_tensor_name(w, j, name);
            enum mxc_code code = mxc_weights_get(weights, name, n_dims, shape, &tensor, err);
            if (!code && w->view.flat)
                code = check_flat(w, tensor, err);
            if (code)
                return code;
        }
    }
    return MXC_OK;
}

static enum mxc_code make_graph(const struct mxc_config *config, const struct mxc_weights *weights,
                                bool hidden, struct mxc_graph **graph, struct mxc_err *err) {
    const char *source = config->from_gguf ? "GGUF metadata" : "config.json";
    const struct mxc_family *family;
    struct mxc_graph *g = NULL;
    enum mxc_code code = mxc_family_find(config, &family, err);
    if (!code)
        code = mxc_graph_new(family->name, &g, err);
    if (!code) {
        g->hidden_out = hidden;
        code = family->build(config, weights, g, err);
    }
    if (code) {
        if (code != MXC_E_NOMEM)
            (void)mxc_err_context(err, "%s", source);
        goto out;
    }
    code = mxc_models_check_weights(g, weights, err);
    if (code) {
        (void)mxc_err_context(err, "tensors that %s asks for", source);
        goto out;
    }
    *graph = g;
    g = NULL;
out:
    mxc_graph_free(g);
    return code;
}

enum mxc_code mxc_model_graph(const struct mxc_config *config, const struct mxc_weights *weights,
                              struct mxc_graph **graph, struct mxc_err *err) {
    return make_graph(config, weights, false, graph, err);
}

enum mxc_code mxc_model_hidden_graph(const struct mxc_config *config,
                                     const struct mxc_weights *weights, struct mxc_graph **graph,
                                     struct mxc_err *err) {
    return make_graph(config, weights, true, graph, err);
}
