/* Public requests: the prompt in its three forms, sampling parameters and their defaults. */
#include "api/request.h"

#include "base/clock.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

enum { MAX_LOGPROBS = 64, MAX_IMAGE_BYTES = 256 << 20 };

/* ---- prompt */

/* Makes the ids (uint32) of a list the prompt's. */
static void take_ids(struct mxc_api_prompt *prompt, struct mxc_ids *ids) {
    prompt->ids = (int32_t *)ids->items; /* ids are below 2^22, so both types read the same */
    prompt->n_ids = (int32_t)ids->count;
    *ids = (struct mxc_ids){0};
}

static enum mxc_code parse(const char *text, const char *name, json_t **root, struct mxc_err *err) {
    enum mxc_code code = mxc_json_parse(text, strlen(text), name, root, err);
    return code == MXC_E_FORMAT && err ? (err->code = MXC_E_ARG) : code;
}

static bool is_image(const struct mlxcel_request *request, const char *text, size_t length) {
    for (size_t i = 0; i < request->n_images; i++)
        if (strlen(request->images[i]) == length && !memcmp(request->images[i], text, length))
            return true;
    return false;
}

/* Whether a part of the messages is one of the request's pictures. */
static bool names_image(const struct mlxcel_request *request, const json_t *messages) {
    size_t i, j;
    const json_t *message, *part;
    json_array_foreach(messages, i, message) {
        json_array_foreach(json_object_get(message, "content"), j, part) {
            const json_t *url = json_object_get(part, "url");
            if (json_is_string(url) &&
                is_image(request, json_string_value(url), json_string_length(url)))
                return true;
        }
    }
    return false;
}

/* Reads a file that the request names beside its messages; nothing else. */
static enum mxc_code fetch_image(void *user, struct mxc_str where, enum mxc_image_source source,
                                 uint8_t **data, size_t *size, struct mxc_err *err) {
    const struct mlxcel_request *request = user;
    (void)source;
    if (is_image(request, where.ptr, where.length)) {
        char *path = mxc_mem_dup(where.ptr, where.length);
        if (!path)
            return mxc_err_nomem(err);
        enum mxc_code code = mxc_image_from_file(path, MAX_IMAGE_BYTES, data, size, err);
        mxc_mem_free(path);
        return code;
    }
    return mxc_err_set(err, MXC_E_ARG,
                       "not a data: URI; files and addresses in messages are not "
                       "opened");
}

/* Puts the request's pictures before the text of the last message, which must be the user's. */
static enum mxc_code add_images(const struct mlxcel_request *request, json_t *messages,
                                struct mxc_err *err) {
    json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    json_t *content = json_object_get(last, "content"), *parts = json_array();
    bool ok = parts != NULL;
    if (!role || strcmp(role, "user") != 0) {
        json_decref(parts);
        return mxc_err_set(err, MXC_E_ARG, "pictures go with a user message; the last is none");
    }
    for (size_t i = 0; i < request->n_images && ok; i++)
        ok = !json_array_append_new(
            parts, json_pack("{s:s,s:s}", "type", "image", "url", request->images[i]));
    if (ok && json_is_string(content))
        ok = !json_array_append_new(parts, json_pack("{s:s,s:O}", "type", "text", "text", content));
    else if (ok && json_is_array(content))
        ok = !json_array_extend(parts, content);
    if (!ok || json_object_set_new(last, "content", parts)) {
        if (!ok)
            json_decref(parts);
        return mxc_err_nomem(err);
    }
    return MXC_OK;
}

enum mxc_code mxc_api_messages(const struct mlxcel_model *model,
                               const struct mlxcel_request *request, struct mxc_prompt_ids *out,
                               struct mxc_err *err) {
    json_t *messages = NULL, *variables = NULL;
    const struct mxc_vision *vision = model->loaded ? model->loaded->checkpoint->vision : NULL;
    enum mxc_code code = parse(request->messages_json, "messages", &messages, err);
    if (!code && request->template_json)
        code = parse(request->template_json, "template variables", &variables, err);
    if (!code && variables && !json_is_object(variables))
        code = mxc_err_set(err, MXC_E_ARG, "template variables: not a JSON object");
    if (!code && request->n_images && !(vision && names_image(request, messages)))
        code = vision ? add_images(request, messages, err)
                      : mxc_err_set(err, MXC_E_UNSUPPORTED, "the model takes no images");
    if (!code) {
        struct mxc_picture_options pictures = {
            .budget = {request->image_min_pixels, request->image_max_pixels},
            .image = mxc_image_defaults,
            .max_bytes = MAX_IMAGE_BYTES,
            .max_tokens = model->context,
            .fetch = fetch_image,
            .fetch_user = (void *)(uintptr_t)request};
        if (request->image_limit_pixels)
            pictures.image.max_pixels = (uint64_t)request->image_limit_pixels;
        if (request->image_background) /* was checked */
            (void)mxc_image_colour(request->image_background, pictures.image.background);
        const struct mxc_prompt_input input = {
            .messages = messages, .variables = variables, .vision = vision, .pictures = &pictures};
        code = mxc_prompt_build(model->chat, &input, out, err);
    }
    json_decref(messages);
    json_decref(variables);
    return code;
}

static enum mxc_code from_ids(const struct mlxcel_request *request, struct mxc_api_prompt *prompt,
                              struct mxc_err *err) {
    if (!request->n_ids || request->n_ids > INT32_MAX)
        return mxc_err_set(err, MXC_E_ARG, "the prompt has %zu tokens", request->n_ids);
    prompt->ids = mxc_mem_array(request->n_ids, sizeof *prompt->ids);
    if (!prompt->ids)
        return mxc_err_nomem(err);
    memcpy(prompt->ids, request->ids, request->n_ids * sizeof *prompt->ids);
    prompt->n_ids = (int32_t)request->n_ids;
    return MXC_OK;
}

static enum mxc_code from_text(const struct mlxcel_model *model, const char *text,
                               struct mxc_api_prompt *prompt, struct mxc_err *err) {
    const struct mxc_encode_options options = {.add_special = true, .parse_special = true};
    struct mxc_ids ids = {0};
    enum mxc_code code = mxc_chat_text(model->chat, text, strlen(text), options, &ids, err);
    if (!code && !ids.count)
        code = mxc_err_set(err, MXC_E_ARG, "the prompt is empty");
    if (!code)
        take_ids(prompt, &ids);
    mxc_ids_fini(&ids);
    return code;
}

enum mxc_code mxc_api_prompt_init(const struct mlxcel_model *model,
                                  const struct mlxcel_request *request,
                                  struct mxc_api_prompt *prompt, struct mxc_err *err) {
    struct mxc_api_prompt p = {.no_split = !request->messages_json};
    enum mxc_code code;
    if ((request->ids != NULL) + (request->prompt != NULL) + (request->messages_json != NULL) != 1)
        return mxc_err_set(err, MXC_E_ARG,
                           "a request has exactly one of ids, prompt and messages_json");
    uint8_t colour[3];
    if (request->image_max_pixels < 0 || request->image_min_pixels < 0 ||
        request->image_limit_pixels < 0)
        return mxc_err_set(err, MXC_E_ARG, "a number of pixels below zero");
    if (request->image_background && !mxc_image_colour(request->image_background, colour))
        return mxc_err_set(err, MXC_E_ARG, "image_background: \"%.40s\" is not RRGGBB",
                           request->image_background);
    if (request->n_images && !request->messages_json)
        return mxc_err_set(err, MXC_E_ARG, "pictures need messages_json");
    if (request->ids) {
        code = from_ids(request, &p, err);
    } else if (request->prompt) {
        code = from_text(model, request->prompt, &p, err);
    } else {
        struct mxc_prompt_ids built;
        code = mxc_api_messages(model, request, &built, err);
        if (!code) {
            take_ids(&p, &built.ids);
            p.pictures = built.pictures;
            p.inside = built.inside;
        }
    }
    if (!code)
        *prompt = p;
    return code;
}

void mxc_api_prompt_fini(struct mxc_api_prompt *prompt) {
    mxc_mem_free(prompt->ids);
    mxc_pictures_release(prompt->pictures);
    *prompt = (struct mxc_api_prompt){0};
}

/* ---- parameters */

static void sampling_of(const struct mlxcel_sampling *from, struct mxc_sampling *to) {
    mxc_sampling_init(to);
    to->seed = from->seed ? from->seed : mxc_clock_ns();
    to->temperature = from->temperature;
    to->top_k = from->top_k;
    to->top_p = from->top_p;
    to->min_p = from->min_p;
    to->typical_p = from->typical_p;
    to->xtc_probability = from->xtc_probability;
    to->xtc_threshold = from->xtc_threshold;
    to->repetition_penalty = from->repetition_penalty;
    to->frequency_penalty = from->frequency_penalty;
    to->presence_penalty = from->presence_penalty;
    to->penalty_last_n = from->penalty_last_n;
    to->dry_multiplier = from->dry_multiplier;
    to->dry_base = from->dry_base;
    to->dry_allowed_length = from->dry_allowed_length;
    to->dry_last_n = from->dry_last_n;
    to->mirostat = from->mirostat;
    to->mirostat_tau = from->mirostat_tau;
    to->mirostat_eta = from->mirostat_eta;
}

enum mxc_code mxc_api_params_init(const struct mlxcel_request *request, struct mxc_api_params *out,
                                  struct mxc_err *err) {
    struct mxc_api_params p = {0};
    if (request->max_tokens < -1 || request->max_tokens > INT32_MAX)
        return mxc_err_set(err, MXC_E_ARG, "max_tokens: %lld is out of range",
                           (long long)request->max_tokens);
    if (request->n_logprobs < 0 || request->n_logprobs > MAX_LOGPROBS)
        return mxc_err_set(err, MXC_E_ARG, "n_logprobs: %d is not in [0, %d]", request->n_logprobs,
                           MAX_LOGPROBS);
    if (request->n_logit_bias > MXC_MAX_BIAS)
        return mxc_err_set(err, MXC_E_ARG, "logit_bias: more than %d entries", MXC_MAX_BIAS);
    mxc_gen_params_init(&p.params);
    struct mxc_request_params *r = &p.params.request;
    sampling_of(&request->sampling, &r->sampling);
    if (request->n_logit_bias) {
        p.bias = mxc_mem_array(request->n_logit_bias, sizeof *p.bias);
        if (!p.bias)
            return mxc_err_nomem(err);
        for (size_t i = 0; i < request->n_logit_bias; i++)
            p.bias[i] =
                (struct mxc_logit_bias){request->logit_bias[i].id, request->logit_bias[i].bias};
        r->sampling.bias = p.bias;
        r->sampling.n_bias = (int32_t)request->n_logit_bias;
    }
    r->max_tokens = (int32_t)request->max_tokens;
    r->ignore_eos = request->ignore_eos;
    r->n_logprobs = request->n_logprobs > 0 ? request->n_logprobs : -1;
    r->no_cache = request->no_cache;
    r->progress = true;
    p.params.stops = request->stop;
    p.params.n_stops = request->n_stop;
    *out = p;
    return MXC_OK;
}

void mxc_api_params_fini(struct mxc_api_params *params) {
    mxc_mem_free(params->bias);
    params->bias = NULL;
}

void mlxcel_request_init(const struct mlxcel_model *model, struct mlxcel_request *request) {
    *request = (struct mlxcel_request){.max_tokens = -1,
                                       .sampling = {.temperature = 0.8f,
                                                    .top_k = 40,
                                                    .top_p = 0.95f,
                                                    .min_p = 0.05f,
                                                    .typical_p = 1,
                                                    .xtc_threshold = 0.1f,
                                                    .repetition_penalty = 1,
                                                    .penalty_last_n = 64,
                                                    .dry_base = 1.75f,
                                                    .dry_allowed_length = 2,
                                                    .dry_last_n = -1,
                                                    .mirostat_tau = 5,
                                                    .mirostat_eta = 0.1f}};
    if (!model || !model->loaded)
        return;
    const struct mxc_generation_defaults *d = &model->loaded->checkpoint->config->defaults;
    struct mlxcel_sampling *s = &request->sampling;
    if (!isnan(d->temperature))
        s->temperature = (float)d->temperature;
    if (!isnan(d->top_p))
        s->top_p = (float)d->top_p;
    if (!isnan(d->min_p))
        s->min_p = (float)d->min_p;
    if (!isnan(d->repetition_penalty))
        s->repetition_penalty = (float)d->repetition_penalty;
    if (d->top_k >= 0 && d->top_k <= INT32_MAX)
        s->top_k = (int32_t)d->top_k;
    if (d->do_sample == 0)
        s->temperature = 0;
}
