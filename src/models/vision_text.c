/* Language models inside vision models: text_config completed with what its config class has as
 * defaults (published configs leave them out), handed to the family that its model_type names.
 * In: the config of the whole. Out: the text graph. The tensors' prefix is found by decoder.c. */
#include "models/vision_family.h"

#include <string.h>

enum { MAX_TYPE = 64 };

static const struct {
    const char *type, *defaults;
} known[] = {
    {"llama", "{\"hidden_size\": 4096, \"intermediate_size\": 11008, \"num_hidden_layers\": 32,"
              " \"num_attention_heads\": 32, \"vocab_size\": 32000,"
              " \"max_position_embeddings\": 2048}"},
    {"mistral", "{\"hidden_size\": 4096, \"intermediate_size\": 14336, \"num_hidden_layers\": 32,"
                " \"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"vocab_size\": 32000,"
                " \"max_position_embeddings\": 131072}"},
    {"qwen2", "{\"hidden_size\": 4096, \"intermediate_size\": 22016, \"num_hidden_layers\": 32,"
              " \"num_attention_heads\": 32, \"num_key_value_heads\": 32, \"vocab_size\": 151936,"
              " \"max_position_embeddings\": 32768}"},
    {"gemma3_text", "{\"hidden_size\": 2304, \"intermediate_size\": 9216,"
                    " \"num_hidden_layers\": 26, \"num_attention_heads\": 8,"
                    " \"num_key_value_heads\": 4, \"head_dim\": 256, \"vocab_size\": 262208,"
                    " \"max_position_embeddings\": 131072}"},
    {"mllama_text_model",
     "{\"hidden_size\": 4096, \"intermediate_size\": 14336, \"num_hidden_layers\": 40,"
     " \"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"vocab_size\": 128256,"
     " \"rms_norm_eps\": 1e-05, \"rope_theta\": 500000.0, \"max_position_embeddings\": 131072,"
     " \"cross_attention_layers\": [3, 8, 13, 18, 23, 28, 33, 38]}"},
};

json_t *mxc_vision_text_config(const struct mxc_config *config, const char *type) {
    const char *given = json_string_value(json_object_get(config->text, "model_type"));
    json_t *out = json_copy(config->text);
    if (config->text != config->root && given)
        type = given;
    for (size_t i = 0; out && i < sizeof known / sizeof *known; i++) {
        if (strcmp(type, known[i].type))
            continue;
        json_t *defaults = json_loads(known[i].defaults, 0, NULL);
        bool done = defaults && !json_object_update_missing(out, defaults);
        json_decref(defaults);
        if (!done) {
            json_decref(out);
            return NULL;
        }
    }
    return out;
}

enum mxc_code mxc_vision_text_build(const struct mxc_config *config,
                                    const struct mxc_weights *weights, const char *type,
                                    struct mxc_graph *graph, struct mxc_err *err) {
    const char *given = NULL;
    char name[MAX_TYPE];
    const struct mxc_family *family;
    struct mxc_config inner = *config;
    enum mxc_code code = MXC_OK;
    if (config->text != config->root)
        code = mxc_json_get_string(config->text, "model_type", &given, err);
    if (code)
        return code;
    given = given ? given : type;
    if (strlen(given) >= sizeof name)
        return mxc_err_set(err, MXC_E_UNSUPPORTED, "text_config: model_type: longer than %d bytes",
                           MAX_TYPE - 1);
    memcpy(name, given, strlen(given) + 1);
    inner.model_type = name;
    if ((code = mxc_family_find(&inner, &family, err)))
        return mxc_err_context(err, "text_config");
    if (family->vision)
        return mxc_err_set(err, MXC_E_UNSUPPORTED,
                           "text_config: model_type: \"%s\" is no language model", name);
    if (!(inner.text = mxc_vision_text_config(config, type)))
        return mxc_err_nomem(err);
    code = family->build(&inner, weights, graph, err);
    json_decref(inner.text);
    return code;
}

enum mxc_code mxc_vision_sections(struct mxc_rope *rope, const int sections[MXC_MAX_ROPE_AXES],
                                  struct mxc_err *err) {
    int sum = 0;
    if (rope->sections[0])
        return MXC_OK;
    for (int i = 0; i < MXC_MAX_ROPE_AXES; i++) {
        rope->sections[i] = sections[i];
        sum += sections[i];
    }
    return sum == rope->dims / 2
               ? MXC_OK
               : mxc_err_set(err, MXC_E_FORMAT, "rope_scaling: mrope_section: missing");
}
