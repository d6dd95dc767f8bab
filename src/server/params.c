/* Common parameters of a generation. Numbers of struct mxc_sampling are read by the table of
 * surface.def; lists (stops, ids, biases) become arrays that live as long as the params. */
#define _GNU_SOURCE
#include "server/params.h"

#include "base/clock.h"
#include "base/mem.h"
#include "server/fields.h"
#include "server/internal.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

/* of a picture that a request may ask for: more than any family's own limit */
#define MAX_PIXELS (INT64_C(16) << 20)

/* ---- the model */

static enum mxc_code not_ready(const struct mxc_host_info *info, struct mxc_fault *fault) {
    bool loading = info->state == MXC_HOST_LOADING;
    (void)mxc_fault_status(
        fault, MXC_E_BUSY, 503, "model: \"%s\" is %s%s", info->name,
        loading ? "being loaded" : "unavailable: ", loading ? "" : info->err.message);
    if (loading)
        fault->retry_after = 1;
    return MXC_E_BUSY;
}

enum mxc_code mxc_params_model(struct mxc_exchange *x, const json_t *json, int *model,
                               struct mxc_fault *fault) {
    struct mxc_host *host = x->server->host;
    struct mxc_host_info info;
    struct mxc_str name = {"", 0};
    enum mxc_code code = mxc_field_text(json, "model", &name, fault);
    if (code)
        return code;
    int found = name.length && strlen(name.ptr) == name.length ? mxc_host_find(host, name.ptr) : -1;
    if (found < 0 && (mxc_host_count(host) == 1 || !name.length))
        found = 0;
    if (found < 0)
        return mxc_fault_status(fault, MXC_E_NOT_FOUND, 404,
                                "model: there is no \"%.100s\"; GET /v1/models lists them",
                                name.ptr);
    mxc_host_info(host, found, &info);
    (void)snprintf(x->model, sizeof x->model, "%s", info.name);
    if (info.state != MXC_HOST_READY)
        return not_ready(&info, fault);
    *model = found;
    return MXC_OK;
}

/* ---- tables */

static enum mxc_code read_sampling(const json_t *json, unsigned fields, struct mxc_sampling *s,
                                   struct mxc_fault *fault) {
    static const struct {
        unsigned fields;
        const char *name;
        bool is_int;
        size_t offset;
        double min, max;
    } rows[] = {
#define MXC_FIELD_REAL(where, name, member, min, max, help)                                        \
    {where, name, false, offsetof(struct mxc_sampling, member), min, max},
#define MXC_FIELD_INT(where, name, member, min, max, help)                                         \
    {where, name, true, offsetof(struct mxc_sampling, member), min, max},
#include "server/surface.def"
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *at = (char *)s + rows[i].offset;
        double real = NAN;
        int64_t whole = INT64_MIN;
        enum mxc_code code = MXC_OK;
        if (!(rows[i].fields & fields))
            continue;
        if (rows[i].is_int)
            code = mxc_field_int(json, rows[i].name, (int64_t)rows[i].min, (int64_t)rows[i].max,
                                 &whole, fault);
        else
            code = mxc_field_real(json, rows[i].name, rows[i].min, rows[i].max, &real, fault);
        if (code)
            return code;
        if (rows[i].is_int && whole != INT64_MIN)
            *(int32_t *)(void *)at = (int32_t)whole;
        if (!rows[i].is_int && !isnan(real))
            *(float *)(void *)at = (float)real;
    }
    return MXC_OK;
}

/* Whether the value asks for nothing: the neutral one, or what means the same. */
static bool is_neutral(const json_t *value, const json_t *neutral) {
    if (json_is_number(value) && json_is_number(neutral)) {
        double v = json_number_value(value), n = json_number_value(neutral);
        return v == n || (v <= 0 && n <= 0);
    }
    if (json_is_array(value) && !json_array_size(value))
        return json_is_array(neutral) && !json_array_size(neutral);
    return json_equal(value, neutral);
}

enum mxc_code mxc_params_refused(const json_t *json, unsigned fields, struct mxc_fault *fault) {
    static const struct {
        unsigned fields;
        const char *name, *neutral, *instead;
    } rows[] = {
#define MXC_FIELD_ONLY(where, name, json, instead) {where, name, json, instead},
#include "server/surface.def"
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const json_t *value = mxc_field(json, rows[i].name);
        if (!value || !(rows[i].fields & fields))
            continue;
        json_t *neutral = json_loads(rows[i].neutral, JSON_DECODE_ANY, NULL);
        bool ok = neutral && is_neutral(value, neutral);
        json_decref(neutral);
        if (!ok)
            return mxc_fault_set(fault, MXC_E_UNSUPPORTED, rows[i].name,
                                 "%s: only %s is supported; %s", rows[i].name, rows[i].neutral,
                                 rows[i].instead);
    }
    return MXC_OK;
}

/* ---- lists */

static enum mxc_code nomem(struct mxc_fault *fault) {
    return mxc_fault_set(fault, MXC_E_NOMEM, NULL, "out of memory");
}

static enum mxc_code read_stops(const json_t *json, struct mxc_params *p, struct mxc_fault *fault) {
    const json_t *value = mxc_field(json, "stop");
    if (!value)
        return MXC_OK;
    size_t n = json_is_array(value) ? json_array_size(value) : 1;
    if (n > MXC_MAX_STOPS)
        return mxc_fault_set(fault, MXC_E_ARG, "stop", "stop: %zu strings; the limit is %d", n,
                             MXC_MAX_STOPS);
    if (!(p->stops = mxc_mem_array(n, sizeof *p->stops)))
        return nomem(fault);
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_is_array(value) ? json_array_get(value, i) : value;
        if (!json_is_string(item))
            return mxc_field_wrong(fault, "stop", "a string or a list of strings", item);
        const char *text = json_string_value(item);
        if (!*text || strlen(text) != json_string_length(item))
            return mxc_fault_set(fault, MXC_E_ARG, "stop", "stop: a string is %s",
                                 *text ? "cut by U+0000" : "empty");
        p->stops[i] = text;
    }
    p->gen.stops = p->stops;
    p->gen.n_stops = n;
    return MXC_OK;
}

static enum mxc_code read_stop_ids(const json_t *json, struct mxc_params *p,
                                   struct mxc_fault *fault) {
    const json_t *list = NULL;
    enum mxc_code code = mxc_field_list(json, "stop_token_ids", &list, fault);
    if (code || !list)
        return code;
    size_t n = json_array_size(list);
    if (n > MXC_MAX_STOP_IDS)
        return mxc_fault_set(fault, MXC_E_ARG, "stop_token_ids",
                             "stop_token_ids: %zu ids; the limit is %d", n, MXC_MAX_STOP_IDS);
    if (!(p->stop_ids = mxc_mem_array(n, sizeof *p->stop_ids)))
        return nomem(fault);
    p->gen.request.stop_ids = p->stop_ids;
    p->gen.request.n_stop_ids = (int32_t)n;
    return mxc_field_ids(list, "stop_token_ids", p->info.vocab, p->stop_ids, fault);
}

static enum mxc_code read_breakers(const json_t *json, struct mxc_params *p,
                                   struct mxc_fault *fault) {
    static const char name[] = "dry_sequence_breakers";
    const char *texts[MXC_MAX_STOPS];
    struct mxc_sampling *s = &p->gen.request.sampling;
    struct mxc_err err;
    const json_t *list = NULL;
    enum mxc_code code = mxc_field_list(json, name, &list, fault);
    if (code || !list)
        return code;
    size_t n = json_array_size(list);
    if (!n || n > MXC_MAX_STOPS)
        return mxc_fault_set(fault, MXC_E_ARG, name, "%s: %zu texts; it takes 1 to %d", name, n,
                             MXC_MAX_STOPS);
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(list, i);
        texts[i] = json_string_value(item);
        if (!texts[i] || !*texts[i] || strlen(texts[i]) != json_string_length(item))
            return mxc_fault_set(fault, MXC_E_ARG, name, "%s[%zu]: not a text, or an empty one",
                                 name, i);
    }
    if (!(s->dry_multiplier > 0))
        return MXC_OK;
    code = mxc_gen_breakers(p->chat->tokenizer, p->info.vocab, texts, n, &p->breakers,
                            &s->n_dry_breakers, &err);
    if (code)
        return mxc_fault_from(fault, &err, name);
    s->dry_breakers = p->breakers;
    return MXC_OK;
}

/* ---- logit_bias */

struct biases {
    struct mxc_params *params;
    size_t n, capacity;
};

static enum mxc_code too_many(struct mxc_fault *fault) {
    return mxc_fault_set(fault, MXC_E_ARG, "logit_bias", "logit_bias: more than %d entries",
                         MXC_MAX_BIAS);
}

static enum mxc_code add_bias(struct biases *b, int64_t id, float bias, struct mxc_fault *fault) {
    struct mxc_params *p = b->params;
    if (id < 0 || id >= p->info.vocab)
        return mxc_fault_set(fault, MXC_E_ARG, "logit_bias",
                             "logit_bias: token %lld is not in the vocabulary of %d", (long long)id,
                             p->info.vocab);
    if (b->n == MXC_MAX_BIAS)
        return too_many(fault);
    if (b->n == b->capacity) {
        size_t more = b->capacity ? 2 * b->capacity : 16;
        struct mxc_logit_bias *grown = mxc_mem_realloc(p->bias, more, sizeof *grown);
        if (!grown)
            return nomem(fault);
        p->bias = grown;
        b->capacity = more;
    }
    p->bias[b->n++] = (struct mxc_logit_bias){(int32_t)id, bias};
    return MXC_OK;
}

/* A number, or false: never. */
static enum mxc_code bias_value(const json_t *value, float *out, struct mxc_fault *fault) {
    if (json_is_false(value)) {
        *out = -INFINITY;
        return MXC_OK;
    }
    double n = json_is_number(value) ? json_number_value(value) : NAN;
    if (!(n >= -1e6 && n <= 1e6))
        return mxc_fault_set(fault, MXC_E_ARG, "logit_bias",
                             "logit_bias: a bias is neither a number nor false");
    *out = (float)n;
    return MXC_OK;
}

static enum mxc_code bias_of_text(struct biases *b, const json_t *text, float bias,
                                  struct mxc_fault *fault) {
    if (json_string_length(text) / MXC_MAX_BIAS > (size_t)b->params->info.max_token_bytes)
        return too_many(fault); /* whatever its tokens are: not worth the tokeniser's time */
    struct mxc_ids ids = {0};
    struct mxc_err err;
    struct mxc_encode_options options = {.add_special = false, .parse_special = true};
    enum mxc_code code = mxc_chat_text(b->params->chat, json_string_value(text),
                                       json_string_length(text), options, &ids, &err);
    if (code)
        (void)mxc_fault_set(fault, code, "logit_bias", "logit_bias: %s", err.message);
    for (size_t i = 0; i < ids.count && !code; i++)
        code = add_bias(b, ids.items[i], bias, fault);
    mxc_ids_fini(&ids);
    return code;
}

static enum mxc_code biases_of_list(struct biases *b, const json_t *list, struct mxc_fault *fault) {
    size_t i;
    const json_t *pair;
    json_array_foreach(list, i, pair) {
        const json_t *what = json_array_get(pair, 0);
        float bias = 0;
        if (json_array_size(pair) != 2 || !(json_is_integer(what) || json_is_string(what)))
            return mxc_fault_set(fault, MXC_E_ARG, "logit_bias",
                                 "logit_bias[%zu]: not [token id or text, bias]", i);
        enum mxc_code code = bias_value(json_array_get(pair, 1), &bias, fault);
        if (!code)
            code = json_is_integer(what) ? add_bias(b, json_integer_value(what), bias, fault)
                                         : bias_of_text(b, what, bias, fault);
        if (code)
            return code;
    }
    return MXC_OK;
}

static enum mxc_code read_bias(const json_t *json, struct mxc_params *p, struct mxc_fault *fault) {
    struct biases b = {.params = p};
    json_t *value = json_object_get(json, "logit_bias"), *item;
    enum mxc_code code = MXC_OK;
    const char *key;
    if (!value || json_is_null(value))
        return MXC_OK;
    if (json_is_array(value)) {
        code = biases_of_list(&b, value, fault);
    } else if (json_is_object(value)) {
        json_object_foreach(value, key, item) {
            int64_t id;
            float bias = 0;
            if (!mxc_parse_i64(key, &id))
                return mxc_fault_set(fault, MXC_E_ARG, "logit_bias",
                                     "logit_bias: \"%.40s\" is no token id", key);
            code = bias_value(item, &bias, fault);
            if (!code)
                code = add_bias(&b, id, bias, fault);
            if (code)
                break;
        }
    } else {
        return mxc_field_wrong(fault, "logit_bias", "an object or a list", value);
    }
    p->gen.request.sampling.bias = p->bias;
    p->gen.request.sampling.n_bias = (int32_t)b.n;
    return code;
}

/* ---- the rest */

static enum mxc_code read_seed(const json_t *json, struct mxc_sampling *s,
                               struct mxc_fault *fault) {
    int64_t seed = -1;
    enum mxc_code code = mxc_field_int(json, "seed", INT64_MIN, INT64_MAX, &seed, fault);
    if (code)
        return code;
    s->seed = (uint64_t)seed;
    if (seed == -1 && getrandom(&s->seed, sizeof s->seed, GRND_NONBLOCK) != sizeof s->seed)
        s->seed = mxc_clock_ns();
    return MXC_OK;
}

/* The first of the spellings that is there; -1 is no bound for llama-server's. */
static enum mxc_code read_length(const json_t *json, unsigned fields, int32_t *max_tokens,
                                 struct mxc_fault *fault) {
    static const struct {
        unsigned fields;
        const char *name;
        int64_t min;
    } names[] = {{MXC_FIELDS_CHAT, "max_completion_tokens", 0},
                 {MXC_FIELDS_LLAMA, "n_predict", -2},
                 {MXC_FIELDS_LLAMA, "max_tokens", -1},
                 {MXC_FIELDS_CHAT | MXC_FIELDS_COMPLETION, "max_tokens", -1},
                 {MXC_FIELDS_CHAT | MXC_FIELDS_COMPLETION, "n_predict", -2}};
    int64_t n = INT64_MIN;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int64_t given = INT64_MIN;
        if (!(names[i].fields & fields))
            continue;
        enum mxc_code code =
            mxc_field_int(json, names[i].name, names[i].min, INT32_MAX, &given, fault);
        if (code)
            return code;
        if (n == INT64_MIN)
            n = given;
    }
    *max_tokens = n < 0 ? -1 : (int32_t)n;
    return MXC_OK;
}

static enum mxc_code read_logprobs(const json_t *json, unsigned fields, struct mxc_params *p,
                                   struct mxc_fault *fault) {
    enum mxc_code code = MXC_OK;
    int64_t n = -1, top = -1;
    if (fields & MXC_FIELDS_CHAT) {
        code = mxc_field_bool(json, "logprobs", &p->logprobs, fault);
        if (!code)
            code = mxc_field_int(json, "top_logprobs", 0, 20, &top, fault);
        if (!code && top >= 0 && !p->logprobs)
            return mxc_fault_set(fault, MXC_E_ARG, "top_logprobs",
                                 "top_logprobs: needs logprobs to be true");
        n = top > 0 ? top : 0;
    } else if (fields & MXC_FIELDS_COMPLETION) {
        code = mxc_field_int(json, "logprobs", 0, 20, &n, fault);
        p->logprobs = n >= 0;
    } else {
        code = mxc_field_int(json, "n_probs", 0, MXC_MAX_TOP_LOGPROBS, &n, fault);
        p->logprobs = n > 0;
    }
    p->gen.request.n_logprobs = p->logprobs ? (int32_t)n : -1;
    return code;
}

static enum mxc_code read_switches(const json_t *json, unsigned fields, struct mxc_params *p,
                                   struct mxc_fault *fault) {
    bool cache = true, skip_special = true;
    int64_t n = 1, priority = 0;
    const struct {
        const char *name;
        bool *to;
    } switches[] = {{"stream", &p->stream},
                    {"ignore_eos", &p->gen.request.ignore_eos},
                    {"cache_prompt", &cache},
                    {"return_progress", &p->progress},
                    {"timings_per_token", &p->timings},
                    {"return_tokens", &p->return_tokens},
                    {"skip_special_tokens", &skip_special}};
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++) {
        enum mxc_code code = mxc_field_bool(json, switches[i].name, switches[i].to, fault);
        if (code)
            return code;
    }
    p->gen.request.no_cache = !cache;
    p->gen.keep_special = !skip_special;
    enum mxc_code code = mxc_field_int(json, "priority", 0, 1000, &priority, fault);
    p->gen.request.priority = (int32_t)-priority;
    if (!code && (fields & (MXC_FIELDS_CHAT | MXC_FIELDS_COMPLETION)))
        code = mxc_field_int(json, "n", 1, MXC_MAX_CHOICES, &n, fault);
    p->n = (int)n;
    return code;
}

static enum mxc_code read_stream_options(const json_t *json, struct mxc_params *p,
                                         struct mxc_fault *fault) {
    const json_t *options = NULL;
    enum mxc_code code = mxc_field_object(json, "stream_options", &options, fault);
    if (code || !options)
        return code;
    code = mxc_field_bool(options, "include_usage", &p->include_usage, fault);
    if (code) {
        (void)snprintf(fault->param, sizeof fault->param, "stream_options.include_usage");
        (void)mxc_err_context(&fault->err, "stream_options");
    }
    return code;
}

/* ---- pictures */

/* A number of pixels; MXC_E_ARG names the field with mm_processor_kwargs in front. */
static enum mxc_code read_pixels(const json_t *object, const char *in, const char *name,
                                 int64_t *pixels, struct mxc_fault *fault) {
    enum mxc_code code = mxc_field_int(object, name, 1, MAX_PIXELS, pixels, fault);
    if (code) {
        (void)snprintf(fault->param, sizeof fault->param, "%s.%s", in, name);
        (void)mxc_err_context(&fault->err, "%s", in);
    }
    return code;
}

/* min_pixels and max_pixels, or as the files of newer models spell them, size.shortest_edge and
 * size.longest_edge. */
static enum mxc_code read_processor(const json_t *json, struct mxc_vision_budget *budget,
                                    struct mxc_fault *fault) {
    static const char field[] = "mm_processor_kwargs";
    const json_t *kwargs = NULL, *size = NULL;
    const char *key;
    json_t *value;
    int64_t lo = 0, hi = 0;
    enum mxc_code code = mxc_field_object(json, field, &kwargs, fault);
    if (code || !kwargs)
        return code;
    json_object_foreach((json_t *)(uintptr_t)kwargs, key, value) {
        if (strcmp(key, "min_pixels") != 0 && strcmp(key, "max_pixels") != 0 &&
            strcmp(key, "size") != 0 && !json_is_null(value))
            return mxc_fault_set(fault, MXC_E_UNSUPPORTED, field,
                                 "%s: \"%.40s\" is not supported; min_pixels, max_pixels and size "
                                 "are",
                                 field, key);
    }
    size = mxc_field(kwargs, "size");
    if (size && !json_is_object(size))
        return mxc_field_wrong(fault, "mm_processor_kwargs.size", "an object", size);
    if (size && (code = read_pixels(size, "mm_processor_kwargs.size", "shortest_edge", &lo, fault)))
        return code;
    if (size && (code = read_pixels(size, "mm_processor_kwargs.size", "longest_edge", &hi, fault)))
        return code;
    if ((code = read_pixels(kwargs, field, "min_pixels", &lo, fault)) ||
        (code = read_pixels(kwargs, field, "max_pixels", &hi, fault)))
        return code;
    if (lo && hi && lo > hi)
        return mxc_fault_set(fault, MXC_E_ARG, field,
                             "%s: min_pixels %lld is above max_pixels %lld", field, (long long)lo,
                             (long long)hi);
    if (lo)
        budget->min_pixels = lo;
    if (hi || (lo && budget->max_pixels && budget->max_pixels < lo))
        budget->max_pixels = hi ? hi : lo;
    return MXC_OK;
}

static enum mxc_code read_pictures(const struct mxc_exchange *x, const json_t *json,
                                   struct mxc_params *p, struct mxc_fault *fault) {
    struct mxc_vision_budget files = {0};
    p->pictures = (struct mxc_picture_options){.budget = p->info.image_budget,
                                               .image = x->server->options.image,
                                               .max_bytes = x->server->options.media.max_bytes,
                                               .max_tokens = p->info.context,
                                               .fetch = mxc_media_fetch,
                                               .fetch_user = x->server->media};
    /* a budget that is the model's default may be changed by a picture's detail */
    if (p->vision)
        mxc_vision_default_budget(p->vision, &files);
    if (p->pictures.budget.max_pixels == files.max_pixels)
        p->pictures.budget.max_pixels = 0;
    return read_processor(json, &p->pictures.budget, fault);
}

enum mxc_code mxc_params_init(struct mxc_exchange *x, const json_t *json, enum mxc_fields_of fields,
                              struct mxc_params *params, struct mxc_fault *fault) {
    struct mxc_params *p = params;
    *p = (struct mxc_params){.n = 1};
    mxc_gen_params_init(&p->gen);
    enum mxc_code code = mxc_params_model(x, json, &p->model, fault);
    if (code)
        return code;
    mxc_host_info(x->server->host, p->model, &p->info);
    p->chat = mxc_host_chat(x->server->host, p->model);
    p->vision = mxc_host_vision(x->server->host, p->model);
    struct mxc_request_params *r = &p->gen.request;
    mxc_host_sampling(x->server->host, p->model, &r->sampling);
    code = read_sampling(json, fields, &r->sampling, fault);
    if (!code)
        code = mxc_params_refused(json, fields, fault);
    if (!code)
        code = read_switches(json, fields, p, fault);
    if (!code)
        code = read_stream_options(json, p, fault);
    if (!code)
        code = read_length(json, fields, &r->max_tokens, fault);
    if (!code)
        code = read_seed(json, &r->sampling, fault);
    if (!code)
        code = read_logprobs(json, fields, p, fault);
    if (!code)
        code = read_stops(json, p, fault);
    if (!code)
        code = read_stop_ids(json, p, fault);
    if (!code)
        code = read_bias(json, p, fault);
    if (!code)
        code = read_breakers(json, p, fault);
    if (!code)
        code = read_pictures(x, json, p, fault);
    return code;
}

void mxc_params_fini(struct mxc_params *p) {
    mxc_mem_free(p->bias);
    mxc_mem_free(p->breakers);
    mxc_mem_free(p->stop_ids);
    mxc_mem_free(p->stops);
    p->bias = NULL;
    p->breakers = NULL;
    p->stop_ids = NULL;
    p->stops = NULL;
}
