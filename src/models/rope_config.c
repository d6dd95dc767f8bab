/* RoPE settings of a config: rope_parameters (transformers 5), rope_scaling with "rope_type" or
 * "type", rope_theta and partial_rotary_factor beside or inside them, and a GGUF's table of
 * frequency factors. Out goes a struct mxc_rope whose fields are all in range. An unknown type or
 * key is refused by name: a scaling read by halves is exact at position 0 and drifts with length.
 */
#include "models/blocks.h"

#include <math.h>
#include <string.h>

static const char *const type_names[] = {"default",  "linear", "dynamic", "yarn", "llama3",
                                         "longrope", "su",     "mrope",   NULL};
static const enum mxc_rope_scaling type_values[] = {
    MXC_ROPE_NONE,   MXC_ROPE_LINEAR,   MXC_ROPE_DYNAMIC,  MXC_ROPE_YARN,
    MXC_ROPE_LLAMA3, MXC_ROPE_LONGROPE, MXC_ROPE_LONGROPE, MXC_ROPE_NONE};

/* Keys that are read here, or that are known not to change anything. */
static const char *const known_keys[] = {"rope_type",
                                         "type",
                                         "rope_theta",
                                         "partial_rotary_factor",
                                         "factor",
                                         "original_max_position_embeddings",
                                         "max_position_embeddings",
                                         "attention_factor",
                                         "beta_fast",
                                         "beta_slow",
                                         "mscale",
                                         "mscale_all_dim",
                                         "truncate",
                                         "low_freq_factor",
                                         "high_freq_factor",
                                         "short_factor",
                                         "long_factor",
                                         "finetuned",
                                         "mrope_section",
                                         "mrope_interleaved",
                                         NULL};

struct reader {
    const json_t *params; /* NULL: no scaling object */
    const json_t *text;
    const char *params_key; /* for messages */
    const struct mxc_hyper_rules *rules;
    struct mxc_err *err;
};

/* A positive number of the scaling object; 0 stays when absent and not needed. */
static enum mxc_code positive(const struct reader *r, const char *key, bool needed, double *out) {
    double x = *out;
    enum mxc_code code = mxc_json_get_real(r->params, key, &x, r->err);
    const json_t *v = json_object_get(r->params, key);
    if (code)
        return mxc_err_context(r->err, "%s", r->params_key);
    if (!v || json_is_null(v))
        return needed ? mxc_err_set(r->err, MXC_E_FORMAT, "%s: %s: missing", r->params_key, key)
                      : MXC_OK;
    if (!(x > 0) || !isfinite(x))
        return mxc_err_set(r->err, MXC_E_FORMAT, "%s: %s: %g is not a positive number",
                           r->params_key, key, x);
    *out = x;
    return MXC_OK;
}

static enum mxc_code read_theta(const struct reader *r, double *theta) {
    const char *where = "rope_theta";
    double x = r->rules->theta > 0 ? r->rules->theta : 10000;
    enum mxc_code code = mxc_json_get_real(r->text, "rope_theta", &x, r->err);
    if (!code && r->params)
        code = mxc_json_get_real(r->params, "rope_theta", &x, r->err);
    if (code)
        return code;
    if (!(x > 0) || x > 1e18)
        return mxc_err_set(r->err, MXC_E_FORMAT, "%s: %g is not a positive number", where, x);
    *theta = x;
    return MXC_OK;
}

static enum mxc_code read_dims(const struct reader *r, int32_t head_dim, int *dims) {
    double part = r->rules->rotary_part > 0 ? r->rules->rotary_part : 1;
    enum mxc_code code = mxc_json_get_real(r->text, "partial_rotary_factor", &part, r->err);
    if (!code && r->params)
        code = mxc_json_get_real(r->params, "partial_rotary_factor", &part, r->err);
    if (code)
        return code;
    /* 1e-6: a factor written as the rounded quotient of two integers */
    int n = part > 0 && part <= 1 ? (int)(head_dim * part + 1e-6) : 0;
    if (n < 2 || n % 2 || n > 2 * MXC_MAX_ROPE_HALF)
        return mxc_err_set(
            r->err, MXC_E_FORMAT, "%s: %d rotated dimensions of %d: not even or not in [2, %d]",
            part == 1 ? "head_dim" : "partial_rotary_factor", n, head_dim, 2 * MXC_MAX_ROPE_HALF);
    *dims = n;
    return MXC_OK;
}

static enum mxc_code read_type(const struct reader *r, enum mxc_rope_scaling *scaling) {
    const char *type = NULL;
    enum mxc_code code = mxc_json_get_string(r->params, "type", &type, r->err);
    if (!code)
        code = mxc_json_get_string(r->params, "rope_type", &type, r->err);
    if (code)
        return mxc_err_context(r->err, "%s", r->params_key);
    if (!type)
        type = "default";
    for (int i = 0; type_names[i]; i++) {
        if (!strcmp(type, type_names[i])) {
            *scaling = type_values[i];
            return MXC_OK;
        }
    }
    return mxc_err_set(r->err, MXC_E_UNSUPPORTED,
                       "%s: rope type \"%s\" is not supported (nearest: \"%s\")", r->params_key,
                       type, mxc_models_nearest(type, type_names));
}

static enum mxc_code check_keys(const struct reader *r) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)r->params, key, value) {
        bool known = json_is_null(value);
        for (int i = 0; known_keys[i] && !known; i++)
            known = !strcmp(key, known_keys[i]);
        if (known)
            continue;
        if (json_is_object(value))
            return mxc_err_set(r->err, MXC_E_UNSUPPORTED,
                               "%s: \"%s\": settings per layer type are not supported",
                               r->params_key, key);
        return mxc_err_set(r->err, MXC_E_UNSUPPORTED,
                           "%s: option \"%s\" is not supported (nearest: \"%s\")", r->params_key,
                           key, mxc_models_nearest(key, known_keys));
    }
    return MXC_OK;
}

static enum mxc_code read_factors(const struct reader *r, const char *key, int n, float *out) {
    const json_t *list = json_object_get(r->params, key);
    if (!json_is_array(list) || json_array_size(list) != (size_t)n)
        return mxc_err_set(r->err, MXC_E_FORMAT, "%s: %s: not a list of %d numbers", r->params_key,
                           key, n);
    for (int i = 0; i < n; i++) {
        double x = json_number_value(json_array_get(list, (size_t)i));
        if (!(x > 0) || !((float)x > 0) || !isfinite((float)x))
            return mxc_err_set(r->err, MXC_E_FORMAT, "%s: %s[%d] is not a positive number",
                               r->params_key, key, i);
        out[i] = (float)x;
    }
    return MXC_OK;
}

/* The original context: beside the object (Phi 3), inside it, or the model's own. */
static enum mxc_code read_original(const struct reader *r, struct mxc_rope *rope) {
    const char *key = "original_max_position_embeddings";
    double x = 0;
    enum mxc_code code = positive(r, key, false, &x);
    if (!code)
        code = mxc_json_get_real(r->text, key, &x, r->err);
    if (code)
        return code;
    if (x == 0)
        x = rope->max_position;
    if (!(x > 0) || !isfinite(x))
        return mxc_err_set(r->err, MXC_E_FORMAT, "%s: %s: missing or not positive", r->params_key,
                           key);
    rope->original_max = x;
    return MXC_OK;
}

static enum mxc_code read_yarn(const struct reader *r, struct mxc_rope *rope) {
    enum mxc_code code;
    rope->beta_fast = 32;
    rope->beta_slow = 1;
    rope->truncate = true;
    if ((code = positive(r, "beta_fast", false, &rope->beta_fast)) ||
        (code = positive(r, "beta_slow", false, &rope->beta_slow)) ||
        (code = mxc_json_get_real(r->params, "mscale", &rope->mscale, r->err)) ||
        (code = mxc_json_get_real(r->params, "mscale_all_dim", &rope->mscale_all_dim, r->err)) ||
        (code = mxc_json_get_bool(r->params, "truncate", &rope->truncate, r->err)))
        return code;
    return positive(r, "attention_factor", false, &rope->attention_factor);
}

static enum mxc_code read_scaling(const struct reader *r, struct mxc_rope *rope) {
    enum mxc_code code = read_type(r, &rope->scaling);
    if (!code)
        code = check_keys(r);
    if (code || rope->scaling == MXC_ROPE_NONE)
        return code;
    bool derives = rope->scaling == MXC_ROPE_YARN || rope->scaling == MXC_ROPE_LONGROPE;
    code = positive(r, "factor", !derives, &rope->factor);
    if (!code && rope->scaling != MXC_ROPE_LINEAR && rope->scaling != MXC_ROPE_DYNAMIC)
        code = read_original(r, rope);
    if (code)
        return code;
    if (!(rope->factor > 0)) {
        if (!(rope->max_position > 0))
            return mxc_err_set(r->err, MXC_E_FORMAT, "%s: factor: missing", r->params_key);
        rope->factor = rope->max_position / rope->original_max;
    }
    switch (rope->scaling) {
    case MXC_ROPE_DYNAMIC:
        return rope->max_position > 0
                   ? MXC_OK
                   : mxc_err_set(r->err, MXC_E_FORMAT,
                                 "max_position_embeddings: missing (%s is dynamic)", r->params_key);
    case MXC_ROPE_YARN:
        return read_yarn(r, rope);
    case MXC_ROPE_LLAMA3:
        code = positive(r, "low_freq_factor", true, &rope->low_freq_factor);
        return code ? code : positive(r, "high_freq_factor", true, &rope->high_freq_factor);
    case MXC_ROPE_LONGROPE:
        if (!(code = read_factors(r, "short_factor", rope->dims / 2, rope->short_factor)) &&
            !(code = read_factors(r, "long_factor", rope->dims / 2, rope->long_factor)))
            code = positive(r, "attention_factor", false, &rope->attention_factor);
        return code;
    case MXC_ROPE_NONE:
    case MXC_ROPE_LINEAR:
        break;
    }
    return MXC_OK;
}

/* Rotated pairs of each position axis (M-RoPE). */
static enum mxc_code read_sections(const struct reader *r, struct mxc_rope *rope) {
    const json_t *list = json_object_get(r->params, "mrope_section");
    bool turns = false;
    int64_t sum = 0;
    enum mxc_code code = mxc_json_get_bool(r->params, "mrope_interleaved", &turns, r->err);
    if (code)
        return mxc_err_context(r->err, "%s", r->params_key);
    if (!list || json_is_null(list))
        return MXC_OK;
    for (size_t i = 0; i < MXC_MAX_ROPE_AXES; i++) {
        const json_t *n = json_array_get(list, i);
        int64_t pairs = json_is_integer(n) ? json_integer_value(n) : 0;
        if (json_array_size(list) != MXC_MAX_ROPE_AXES || pairs < 1 || pairs > rope->dims / 2)
            return mxc_err_set(r->err, MXC_E_FORMAT,
                               "%s: mrope_section: not a list of %d counts of pairs", r->params_key,
                               MXC_MAX_ROPE_AXES);
        rope->sections[i] = (int)pairs;
        sum += pairs;
    }
    if (sum != rope->dims / 2)
        return mxc_err_set(r->err, MXC_E_FORMAT, "%s: mrope_section: %lld pairs in all, not %d",
                           r->params_key, (long long)sum, rope->dims / 2);
    rope->sections_interleaved = turns;
    return MXC_OK;
}

/* A GGUF carries llama3's scaling as a table of divisors. */
static enum mxc_code read_freq_table(const struct mxc_weights *weights, struct mxc_rope *rope,
                                     struct mxc_err *err) {
    static const char *const name = "rope_freqs.weight";
    if (!weights)
        return MXC_OK;
    if (mxc_weights_find(weights, "rope_factors_long.weight"))
        return mxc_err_set(err, MXC_E_UNSUPPORTED,
                           "tensor rope_factors_long.weight: longrope tables are not supported");
    if (!mxc_weights_find(weights, name))
        return MXC_OK;
    const struct mxc_tensor *tensor;
    enum mxc_code code =
        mxc_weights_get(weights, name, 1, (int64_t[]){rope->dims / 2}, &tensor, err);
    if (code)
        return code;
    if (tensor->storage != MXC_ST_F32 && tensor->storage != MXC_ST_F16 &&
        tensor->storage != MXC_ST_BF16)
        return mxc_err_set(err, MXC_E_FORMAT, "tensor %s: stored as %s", name,
                           mxc_storage_info(tensor->storage)->name);
    float factors[MXC_MAX_ROPE_HALF];
    mxc_tensor_row(tensor, 0, factors);
    for (int i = 0; i < rope->dims / 2; i++) {
        if (!(factors[i] > 0) || !isfinite(factors[i]))
            return mxc_err_set(err, MXC_E_FORMAT, "tensor %s: factor %d is not positive", name, i);
        rope->freq_factor[i] = factors[i];
    }
    return MXC_OK;
}

enum mxc_code mxc_rope_read(const struct mxc_config *config, const struct mxc_weights *weights,
                            const struct mxc_hyper_rules *rules, int32_t rotary,
                            int64_t max_position, struct mxc_rope *rope, struct mxc_err *err) {
    struct reader r = {
        .text = config->text, .params_key = "rope_parameters", .rules = rules, .err = err};
    struct mxc_rope out = {.max_position = (double)max_position};
    r.params = json_object_get(r.text, "rope_parameters");
    if (rules->rope_section && json_is_object(json_object_get(r.params, rules->rope_section)))
        r.params = json_object_get(r.params, rules->rope_section);
    const json_t *old = json_object_get(r.text, "rope_scaling");
    if (json_is_object(old) && json_object_size(old)) {
        r.params = old;
        r.params_key = "rope_scaling";
    }
    if (json_is_null(r.params))
        r.params = NULL;
    if ((r.params && !json_is_object(r.params)) ||
        (old && !json_is_object(old) && !json_is_null(old)))
        return mxc_err_set(err, MXC_E_FORMAT, "%s: not an object",
                           old && !json_is_object(old) ? "rope_scaling" : r.params_key);
    enum mxc_code code;
    if ((code = read_theta(&r, &out.theta)) || (code = read_dims(&r, rotary, &out.dims)) ||
        (r.params && ((code = read_scaling(&r, &out)) || (code = read_sections(&r, &out)))) ||
        (code = read_freq_table(weights, &out, err)))
        return code;
    *rope = out;
    return MXC_OK;
}
