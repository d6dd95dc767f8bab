/* Config: reads config.json and generation_config.json, or GGUF metadata, into one object. In: a
 * path. Out: the JSON tree and the few fields that other layers use. Fields that every family has
 * are checked for type and range here, so that an absurd size is refused by name before anything
 * is built from it; each family checks the rest. */
#include "format/config.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "format/gguf.h"
#include "format/gguf_config.h"
#include "format/hf_quant.h"

#include <math.h>
#include <string.h>

enum { MAX_CONFIG = 16 << 20 };

struct bounds {
    const char *key;
    int64_t min, max;
};

static const struct bounds sizes[] = {
    {"hidden_size", 1, 1 << 20},
    {"num_hidden_layers", 1, 10000},
    {"num_attention_heads", 1, 65536},
    {"num_key_value_heads", 1, 65536},
    {"head_dim", 1, 65536},
    {"intermediate_size", 1, 1 << 24},
    {"vocab_size", 1, 1 << 26},
    {"max_position_embeddings", 1, UINT32_MAX},
};

/* Lists (one number per layer) are the family's to check. */
static enum mxc_code check_sizes(const json_t *text, struct mxc_err *err) {
    int64_t n[8] = {0};
    enum mxc_code code = MXC_OK;
    for (size_t i = 0; !code && i < sizeof sizes / sizeof *sizes; i++)
        if (!json_is_array(json_object_get(text, sizes[i].key)))
            code = mxc_json_get_int(text, sizes[i].key, sizes[i].min, sizes[i].max, &n[i], err);
    if (code)
        return code;
    int64_t hidden = n[0], heads = n[2], kv = n[3], head_dim = n[4];
    if (heads && kv && heads % kv)
        return mxc_err_set(err, MXC_E_FORMAT,
                           "num_attention_heads: %lld heads are not a multiple of "
                           "num_key_value_heads, %lld",
                           (long long)heads, (long long)kv);
    if (heads && hidden && !head_dim && hidden % heads &&
        !json_object_get(text, "qk_nope_head_dim"))
        return mxc_err_set(err, MXC_E_FORMAT, "hidden_size: %lld does not divide into %lld heads",
                           (long long)hidden, (long long)heads);
    return MXC_OK;
}

static enum mxc_code check_reals(const json_t *text, struct mxc_err *err) {
    static const struct {
        const char *key;
        double min, max;
    } rows[] = {{"rms_norm_eps", 0, 1}, {"layer_norm_eps", 0, 1}, {"rope_theta", 1e-6, 1e15}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double d = rows[i].min;
        enum mxc_code code = mxc_json_get_real(text, rows[i].key, &d, err);
        if (code)
            return code;
        if (!(d >= rows[i].min && d <= rows[i].max))
            return mxc_err_set(err, MXC_E_FORMAT, "%s: %g is out of range", rows[i].key, d);
    }
    return MXC_OK;
}

static enum mxc_code check_quantization(const json_t *object, const char *key,
                                        struct mxc_err *err) {
    struct mxc_hf_quant quant;
    if (!json_is_object(object))
        return mxc_err_set(err, MXC_E_FORMAT, "%s: not an object", key);
    enum mxc_code code = mxc_hf_quant_read(object, &quant, err);
    if (code)
        (void)mxc_err_context(err, "%s", key);
    return code;
}

static enum mxc_code find_quantization(struct mxc_config *c, struct mxc_err *err) {
    static const char *const keys[] = {"quantization", "quantization_config"};
    const json_t *owners[] = {c->root, c->text};
    for (size_t i = 0; i < 4; i++) {
        json_t *object = json_object_get(owners[i / 2], keys[i % 2]);
        if (!object || json_is_null(object))
            continue;
        enum mxc_code code = check_quantization(object, keys[i % 2], err);
        if (!code)
            c->quantization = object;
        return code;
    }
    return MXC_OK;
}

static void add_eos(struct mxc_config *c, int64_t id, int64_t vocab) {
    if (id < 0 || id >= vocab) {
        mxc_log(MXC_LOG_WARN, "eos_token_id: %lld is out of range and ignored", (long long)id);
        return;
    }
    for (int i = 0; i < c->n_eos; i++)
        if (c->eos[i] == id)
            return;
    if (c->n_eos < MXC_MAX_EOS)
        c->eos[c->n_eos++] = (int32_t)id;
}

/* Adds an id or a list of ids. */
static enum mxc_code read_eos(struct mxc_config *c, const json_t *object, int64_t vocab,
                              struct mxc_err *err) {
    const json_t *v = json_object_get(object, "eos_token_id");
    if (!v || json_is_null(v))
        return MXC_OK;
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_integer(id))
            return mxc_err_set(err, MXC_E_FORMAT, "eos_token_id: not an integer");
        add_eos(c, json_integer_value(id), vocab);
    }
    return MXC_OK;
}

/* The first given of several objects; a list gives its first id. */
static enum mxc_code read_id(const json_t *object, const char *key, int32_t *out,
                             struct mxc_err *err) {
    const json_t *v = json_object_get(object, key);
    if (*out >= 0 || !v || json_is_null(v))
        return MXC_OK;
    if (json_is_array(v))
        v = json_array_get(v, 0);
    if (!json_is_integer(v))
        return mxc_err_set(err, MXC_E_FORMAT, "%s: not an integer", key);
    int64_t id = json_integer_value(v);
    if (id >= 0 && id <= INT32_MAX)
        *out = (int32_t)id;
    return MXC_OK;
}

static enum mxc_code read_ids(struct mxc_config *c, const json_t *object, struct mxc_err *err) {
    int64_t vocab = INT32_MAX;
    enum mxc_code code = mxc_json_get_int(c->text, "vocab_size", 1, INT32_MAX, &vocab, err);
    if (!code)
        code = read_eos(c, object, vocab, err);
    if (!code)
        code = read_id(object, "bos_token_id", &c->bos, err);
    return code ? code : read_id(object, "pad_token_id", &c->pad, err);
}

static enum mxc_code read_generation(struct mxc_config *c, const json_t *object,
                                     struct mxc_err *err) {
    struct mxc_generation_defaults *d = &c->defaults;
    const struct {
        const char *key;
        double *out, min, max;
    } rows[] = {{"temperature", &d->temperature, 0, 1e6},
                {"top_p", &d->top_p, 0, 1},
                {"min_p", &d->min_p, 0, 1},
                {"repetition_penalty", &d->repetition_penalty, 1e-6, 1e6}};
    enum mxc_code code = read_ids(c, object, err);
    for (size_t i = 0; !code && i < sizeof rows / sizeof *rows; i++) {
        double v = NAN;
        code = mxc_json_get_real(object, rows[i].key, &v, err);
        if (!code && !isnan(v) && (v < rows[i].min || v > rows[i].max))
            code = mxc_err_set(err, MXC_E_FORMAT, "%s: %g is not in [%g, %g]", rows[i].key, v,
                               rows[i].min, rows[i].max);
        if (!code)
            *rows[i].out = v;
    }
    if (!code)
        code = mxc_json_get_int(object, "top_k", -1, INT32_MAX, &d->top_k, err);
    const json_t *sample = json_object_get(object, "do_sample");
    bool on = false;
    if (!code && sample && !json_is_null(sample)) {
        code = mxc_json_get_bool(object, "do_sample", &on, err);
        if (!code)
            d->do_sample = on;
    }
    return code;
}

/* Settles what follows from root: text, model type, quantization, sizes, ids. */
static enum mxc_code settle(struct mxc_config *c, struct mxc_err *err) {
    static const char *const nested[] = {"text_config", "llm_config", "language_config"};
    const char *type = NULL;
    bool flag = false;
    if (!json_is_object(c->root))
        return mxc_err_set(err, MXC_E_FORMAT, "the top level is not an object");
    c->text = c->root;
    for (size_t i = 0; i < 3; i++) {
        json_t *object = json_object_get(c->root, nested[i]);
        if (!object || json_is_null(object))
            continue;
        if (!json_is_object(object))
            return mxc_err_set(err, MXC_E_FORMAT, "%s: not an object", nested[i]);
        c->text = object;
        break;
    }
    enum mxc_code code = mxc_json_get_string(c->root, "model_type", &type, err);
    if (code)
        return code;
    if (!type || !*type)
        return mxc_err_set(err, MXC_E_FORMAT, "model_type is missing");
    if (!(c->model_type = mxc_mem_strdup(type)))
        return mxc_err_nomem(err);
    if ((code = check_sizes(c->text, err)) || (code = check_reals(c->text, err)) ||
        (code = mxc_json_get_bool(c->root, "tie_word_embeddings", &flag, err)) ||
        (code = find_quantization(c, err)) ||
        (code = mxc_json_get_int(c->text, "max_position_embeddings", 1, UINT32_MAX,
                                 &c->max_position, err)))
        return code;
    code = read_ids(c, c->root, err);
    if (!code && c->text != c->root)
        code = read_ids(c, c->text, err);
    return code;
}

static enum mxc_code load_folder(struct mxc_config *c, const char *folder, struct mxc_err *err) {
    json_t *generation = NULL;
    char *path = mxc_path_join(folder, "config.json");
    char *second = mxc_path_join(folder, "generation_config.json");
    enum mxc_code code = path && second ? MXC_OK : mxc_err_nomem(err);
    if (!code)
        code = mxc_json_load(path, MAX_CONFIG, &c->root, err);
    if (!code && (code = settle(c, err)))
        (void)mxc_err_context(err, "%s", path);
    if (!code && mxc_file_exists(second)) {
        code = mxc_json_load(second, MAX_CONFIG, &generation, err);
        if (!code) {
            code = json_is_object(generation)
                       ? read_generation(c, generation, err)
                       : mxc_err_set(err, MXC_E_FORMAT, "the top level is not an object");
            if (code)
                (void)mxc_err_context(err, "%s", second);
        }
    }
    json_decref(generation);
    mxc_mem_free(path);
    mxc_mem_free(second);
    return code;
}

static enum mxc_code load_gguf(struct mxc_config *c, const char *path, struct mxc_err *err) {
    struct mxc_gguf *gguf;
    enum mxc_code code = mxc_gguf_open(path, &gguf, err);
    if (code)
        return code;
    c->from_gguf = true;
    code = mxc_gguf_config(gguf, &c->root, err);
    mxc_gguf_close(gguf);
    if (!code && (code = settle(c, err)))
        (void)mxc_err_context(err, "%s", path);
    return code;
}

enum mxc_code mxc_config_open(const char *path, struct mxc_config **config, struct mxc_err *err) {
    struct mxc_config *c = mxc_mem_zalloc(1, sizeof *c);
    if (!c)
        return mxc_err_nomem(err);
    c->bos = c->pad = -1;
    c->defaults = (struct mxc_generation_defaults){NAN, NAN, NAN, NAN, -1, -1};
    enum mxc_code code;
    if (mxc_gguf_is_path(path))
        code = load_gguf(c, path, err);
    else if (mxc_dir_exists(path))
        code = load_folder(c, path, err);
    else
        code = mxc_err_set(err, MXC_E_NOT_FOUND, "%s: no such model folder or .gguf file", path);
    if (code) {
        mxc_config_close(c);
        return code;
    }
    *config = c;
    return MXC_OK;
}

void mxc_config_close(struct mxc_config *config) {
    if (!config)
        return;
    json_decref(config->root);
    mxc_mem_free(config->model_type);
    mxc_mem_free(config);
}
