/* What the server says about itself: health, metrics, models, props, slots. */
#define _GNU_SOURCE
#include "base/clock.h"
#include "base/mem.h"
#include "server/api.h"
#include "server/prompt_cache.h"
#include "server/sse.h"

#include <stdio.h>
#include <string.h>

static enum mxc_code nomem(struct mxc_fault *fault) {
    return mxc_fault_set(fault, MXC_E_NOMEM, NULL, "out of memory");
}

static enum mxc_code reply(struct mxc_exchange *x, json_t *body, struct mxc_fault *fault) {
    if (!body)
        return nomem(fault);
    mxc_reply_json(x, 200, body);
    return MXC_OK;
}

/* ---- health */

enum mxc_code mxc_get_health(struct mxc_exchange *x, struct mxc_fault *fault) {
    struct mxc_host *host = x->server->host;
    struct mxc_host_info info;
    int loading = 0, ready = 0, lost = -1;
    for (int i = 0; i < mxc_host_count(host); i++) {
        mxc_host_info(host, i, &info);
        loading += info.state == MXC_HOST_LOADING;
        ready += info.state == MXC_HOST_READY;
        lost = info.state == MXC_HOST_LOST ? i : lost;
    }
    if (atomic_load(&x->server->limits.draining))
        return mxc_fault_set(fault, MXC_E_BUSY, NULL, "the server is shutting down");
    if (lost >= 0) { /* only another start helps: whoever watches the server has to know */
        mxc_host_info(host, lost, &info);
        return mxc_fault_status(fault, MXC_E_BUSY, 503, "\"%s\" cannot be served any more: %s",
                                info.name, info.err.message);
    }
    if (!loading && ready)
        return reply(x, json_pack("{s:s}", "status", "ok"), fault);
    (void)mxc_fault_set(fault, MXC_E_BUSY, NULL,
                        loading ? "Loading model" : "no model could be loaded");
    fault->retry_after = 1;
    return MXC_E_BUSY;
}

/* ---- models */

/* "supported", "none" (a text-only checkpoint), "unavailable" (vision_reason says why). */
static const char *vision_of(const struct mxc_server *server, const struct mxc_host_info *info) {
    if (info->state != MXC_HOST_READY || *info->vision_reason)
        return "unavailable";
    int model = mxc_host_find(server->host, info->name);
    return mxc_host_vision(server->host, model) ? "supported" : "none";
}

static json_t *model_json(const struct mxc_server *server, const struct mxc_host_info *info) {
    static const char *const states[] = {"loading", "ready", "unavailable", "unavailable"};
    const bool failed = info->state == MXC_HOST_UNAVAILABLE || info->state == MXC_HOST_LOST;
    const struct mxc_chat *chat =
        mxc_host_chat(server->host, mxc_host_find(server->host, info->name));
    json_t *meta = NULL, *about = NULL;
    json_t *m = json_pack("{s:s,s:s,s:I,s:s,s:s,s:s?}", "id", info->name, "object", "model",
                          "created", (json_int_t)server->start_time, "owned_by", "mlxcel", "status",
                          states[info->state], "error", failed ? info->err.message : NULL);
    if (!m)
        return NULL;
    if (info->state == MXC_HOST_READY) {
        meta = json_pack("{s:i,s:i,s:i,s:i,s:I,s:I,s:I}", "n_vocab", info->vocab, "n_ctx",
                         info->context, "n_ctx_train", info->trained_context, "n_embd",
                         info->hidden, "n_params", (json_int_t)info->parameters, "size",
                         (json_int_t)info->weight_bytes, "kv_bytes", (json_int_t)info->kv_bytes);
        about =
            json_pack("{s:s,s:s,s:s,s:s,s:b,s:i,s:b,s:b}", "family", info->family, "model_type",
                      info->model_type, "quantisation", info->quantisation, "backend",
                      info->backend, "batch_invariant", strcmp(info->backend, "xla") != 0,
                      "parallel", info->parallel, "chat_template", chat && chat->templates != NULL,
                      "reasoning", chat && chat->marks != NULL);
        if (!meta || !about || json_object_set(m, "meta", meta) || json_object_update(m, about) ||
            json_object_set_new(m, "context_length", json_integer(info->context)))
            goto fail;
    }
    const char *vision = vision_of(server, info);
    json_t *modalities =
        json_pack("{s:[s],s:[s]}", "input", "text", "output", info->embeds ? "embeddings" : "text");
    if (!modalities || json_object_set_new(m, "modalities", modalities) ||
        json_object_set_new(m, "vision", json_string(vision)) ||
        (!strcmp(vision, "supported") &&
         (json_array_append_new(json_object_get(modalities, "input"), json_string("image")) ||
          json_object_set_new(m, "image_max_pixels",
                              json_integer((json_int_t)info->image_budget.max_pixels)))))
        goto fail;
    if (!strcmp(vision, "unavailable") &&
        json_object_set_new(m, "vision_reason",
                            json_string(info->state == MXC_HOST_LOADING ? "the model is loading"
                                        : info->state == MXC_HOST_READY ? info->vision_reason
                                                                        : info->err.message)))
        goto fail;
    json_decref(meta);
    json_decref(about);
    return m;
fail:
    json_decref(meta);
    json_decref(about);
    json_decref(m);
    return NULL;
}

enum mxc_code mxc_get_models(struct mxc_exchange *x, struct mxc_fault *fault) {
    struct mxc_host_info info;
    json_t *list = json_array();
    bool ok = list != NULL;
    for (int i = 0; i < mxc_host_count(x->server->host) && ok; i++) {
        mxc_host_info(x->server->host, i, &info);
        ok = !json_array_append_new(list, model_json(x->server, &info));
    }
    if (!ok) {
        json_decref(list);
        return nomem(fault);
    }
    return reply(x, json_pack("{s:s,s:o}", "object", "list", "data", list), fault);
}

enum mxc_code mxc_get_model(struct mxc_exchange *x, struct mxc_fault *fault) {
    struct mxc_host_info info;
    int i = mxc_host_find(x->server->host, x->tail);
    if (i < 0)
        return mxc_fault_status(fault, MXC_E_NOT_FOUND, 404, "there is no model \"%s\"", x->tail);
    mxc_host_info(x->server->host, i, &info);
    return reply(x, model_json(x->server, &info), fault);
}

/* ---- props, slots, adapters */

enum mxc_code mxc_model_of_query(struct mxc_exchange *x, struct mxc_host_info *info, int *model,
                                 struct mxc_fault *fault) {
    const char *name = mxc_exchange_query(x, "model");
    *model = name ? mxc_host_find(x->server->host, name) : 0;
    if (*model < 0)
        return mxc_fault_status(fault, MXC_E_NOT_FOUND, 404, "there is no model \"%.100s\"", name);
    mxc_host_info(x->server->host, *model, info);
    if (info->state == MXC_HOST_READY)
        return MXC_OK;
    (void)mxc_fault_status(fault, MXC_E_BUSY, 503, "\"%s\" is %s%s", info->name,
                           info->state == MXC_HOST_LOADING ? "being loaded" : "unavailable: ",
                           info->state == MXC_HOST_LOADING ? "" : info->err.message);
    fault->retry_after = info->state == MXC_HOST_LOADING;
    return MXC_E_BUSY;
}

static json_t *defaults_json(const struct mxc_sampling *s) {
    return json_pack("{s:f,s:i,s:f,s:f,s:f,s:f,s:i,s:f,s:f,s:f,s:f,s:i,s:i}", "temperature",
                     (double)s->temperature, "top_k", s->top_k, "top_p", (double)s->top_p, "min_p",
                     (double)s->min_p, "typical_p", (double)s->typical_p, "repeat_penalty",
                     (double)s->repetition_penalty, "repeat_last_n", s->penalty_last_n,
                     "presence_penalty", (double)s->presence_penalty, "frequency_penalty",
                     (double)s->frequency_penalty, "xtc_probability", (double)s->xtc_probability,
                     "dry_multiplier", (double)s->dry_multiplier, "mirostat", s->mirostat,
                     "max_tokens", -1);
}

enum mxc_code mxc_get_props(struct mxc_exchange *x, struct mxc_fault *fault) {
    const struct mxc_server_options *o = &x->server->options;
    struct mxc_host_info info;
    struct mxc_sampling sampling;
    int model;
    enum mxc_code code = mxc_model_of_query(x, &info, &model, fault);
    if (code)
        return code;
    const struct mxc_chat *chat = mxc_host_chat(x->server->host, model);
    mxc_host_sampling(x->server->host, model, &sampling);
    json_t *body =
        json_pack("{s:{s:o,s:i},s:i,s:s,s:s,s:s,s:s?,s:{s:b,s:b},s:s}",
                  "default_generation_settings", "params", defaults_json(&sampling), "n_ctx",
                  info.context, "total_slots", info.parallel, "model_alias", info.name,
                  "model_path", info.name, "chat_template", chat->text ? chat->text : "",
                  "chat_template_error", chat->templates ? NULL : chat->template_err.message,
                  "modalities", "vision", mxc_host_vision(x->server->host, model) != NULL, "audio",
                  0, "build_info", "mlxcel-" MLXCEL_VERSION);
    json_t *limits = json_pack(
        "{s:I,s:I,s:i,s:i,s:i,s:I,s:i}", "max_body_bytes", (json_int_t)o->max_body_bytes,
        "max_header_bytes", (json_int_t)o->max_header_bytes, "max_json_depth", o->max_json_depth,
        "max_queue", info.max_queue, "max_per_key", o->max_per_key, "max_stream_bytes",
        (json_int_t)o->max_stream_bytes, "max_choices", MXC_MAX_CHOICES);
    if (!body || !limits || json_object_set_new(body, "limits", limits)) {
        json_decref(body);
        return nomem(fault);
    }
    return reply(x, body, fault);
}

enum mxc_code mxc_get_slots(struct mxc_exchange *x, struct mxc_fault *fault) {
    struct mxc_host_info info;
    int model;
    if (x->server->options.no_slots)
        return mxc_fault_status(fault, MXC_E_UNSUPPORTED, 501,
                                "/slots is switched off (--no-slots)");
    enum mxc_code code = mxc_model_of_query(x, &info, &model, fault);
    return code ? code : reply(x, mxc_jobs_slots(x->server->jobs, &info, model), fault);
}

enum mxc_code mxc_get_lora(struct mxc_exchange *x, struct mxc_fault *fault) {
    return reply(x, json_array(), fault);
}

/* ---- metrics */

static void put(struct mxc_buf *out, const char *name, const char *type, const char *help,
                double value) {
    (void)mxc_buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n%s %.17g\n", name, help, name, type,
                         name, value);
}

/* Sums over the models; labels would split what llama-server's dashboards read as one number. */
static void put_engines(struct mxc_exchange *x, struct mxc_buf *out) {
    struct mxc_engine_stats sum = {0}, s;
    double blocks = 0, used = 0;
    for (int i = 0; i < mxc_host_count(x->server->host); i++) {
        mxc_host_stats(x->server->host, i, &s);
        sum.n_queued += s.n_queued;
        sum.n_running += s.n_running;
        sum.n_steps += s.n_steps;
        sum.n_preempted += s.n_preempted;
        sum.n_failed_steps += s.n_failed_steps;
        sum.n_lookup_tokens += s.n_lookup_tokens;
        sum.n_hit_tokens += s.n_hit_tokens;
        sum.n_evicted += s.n_evicted;
        sum.n_feature_hits += s.n_feature_hits;
        sum.n_feature_misses += s.n_feature_misses;
        sum.feature_bytes += s.feature_bytes;
        for (size_t k = 0; k < sizeof s.n_blocks / sizeof *s.n_blocks; k++) {
            blocks += s.n_blocks[k];
            used += s.n_blocks[k] - s.n_free[k] - s.n_idle[k];
        }
    }
    put(out, "llamacpp:requests_processing", "gauge", "Sequences in flight.", sum.n_running);
    put(out, "llamacpp:requests_deferred", "gauge", "Sequences that wait.", sum.n_queued);
    put(out, "llamacpp:n_decode_total", "counter", "Steps of the engines.", (double)sum.n_steps);
    put(out, "llamacpp:kv_cache_usage_ratio", "gauge", "KV blocks in use, of all.",
        blocks > 0 ? used / blocks : 0);
    put(out, "mlxcel_kv_blocks", "gauge", "KV blocks.", blocks);
    put(out, "mlxcel_kv_blocks_used", "gauge", "KV blocks of sequences in flight.", used);
    put(out, "mlxcel_preempted_total", "counter", "Sequences that gave up their KV for a while.",
        (double)sum.n_preempted);
    put(out, "mlxcel_failed_steps_total", "counter", "Steps that failed.",
        (double)sum.n_failed_steps);
    put(out, "mlxcel_prefix_lookup_tokens_total", "counter", "Prompt tokens looked up.",
        (double)sum.n_lookup_tokens);
    put(out, "mlxcel_prefix_hit_tokens_total", "counter", "Prompt tokens found in the cache.",
        (double)sum.n_hit_tokens);
    put(out, "mlxcel_prefix_evicted_total", "counter", "Cached blocks that were evicted.",
        (double)sum.n_evicted);
    put(out, "mlxcel_image_features_hits_total", "counter", "Pictures whose features were kept.",
        (double)sum.n_feature_hits);
    put(out, "mlxcel_image_features_misses_total", "counter", "Pictures not found there.",
        (double)sum.n_feature_misses);
    put(out, "mlxcel_image_feature_bytes", "gauge", "Bytes of the features that are kept.",
        (double)sum.feature_bytes);
}

static void put_prompt_cache(struct mxc_exchange *x, struct mxc_buf *out) {
    struct mxc_prompt_cache_stats s;
    mxc_prompt_cache_get_stats(x->server->prompt_cache, &s);
    put(out, "mlxcel_prompt_cache_ready", "gauge", "The prompt cache on disk is in use.",
        s.ready && x->server->prompt_cache);
    put(out, "mlxcel_prompt_cache_records", "gauge", "Blocks on disk.", (double)s.n_records);
    put(out, "mlxcel_prompt_cache_bytes", "gauge", "Bytes of them.", (double)s.bytes);
    put(out, "mlxcel_prompt_cache_found_total", "counter", "Blocks read.", (double)s.n_found);
    put(out, "mlxcel_prompt_cache_written_total", "counter", "Blocks written.",
        (double)s.n_written);
    put(out, "mlxcel_prompt_cache_damaged_total", "counter", "Blocks that were damaged.",
        (double)s.n_damaged);
}

enum mxc_code mxc_get_metrics(struct mxc_exchange *x, struct mxc_fault *fault) {
    struct mxc_limits *l = &x->server->limits;
    struct mxc_buf out;
    if (x->server->options.no_metrics)
        return mxc_fault_status(fault, MXC_E_UNSUPPORTED, 501,
                                "/metrics is switched off (--no-metrics)");
    mxc_buf_init(&out, 1 << 20);
    double prompt = (double)atomic_load(&l->prompt_tokens);
    double made = (double)atomic_load(&l->generated_tokens);
    double prompt_s = (double)atomic_load(&l->prompt_us) * 1e-6;
    double made_s = (double)atomic_load(&l->generate_us) * 1e-6;
    put(&out, "llamacpp:prompt_tokens_total", "counter", "Prompt tokens.", prompt);
    put(&out, "llamacpp:prompt_seconds_total", "counter", "Time of prompts.", prompt_s);
    put(&out, "llamacpp:tokens_predicted_total", "counter", "Generated tokens.", made);
    put(&out, "llamacpp:tokens_predicted_seconds_total", "counter", "Time of generation.", made_s);
    put(&out, "llamacpp:prompt_tokens_seconds", "gauge", "Prompt tokens per second.",
        prompt_s > 0 ? prompt / prompt_s : 0);
    put(&out, "llamacpp:predicted_tokens_seconds", "gauge", "Generated tokens per second.",
        made_s > 0 ? made / made_s : 0);
    put_engines(x, &out);
    put(&out, "mlxcel_cached_tokens_total", "counter", "Prompt tokens taken from the cache.",
        (double)atomic_load(&l->cached_tokens));
    put(&out, "mlxcel_requests_total", "counter", "HTTP requests.",
        (double)atomic_load(&l->n_requests));
    put(&out, "mlxcel_request_errors_total", "counter", "Replies with a status of 400 or more.",
        (double)atomic_load(&l->n_errors));
    put(&out, "mlxcel_requests_unfinished_total", "counter", "Requests whose client went away.",
        (double)atomic_load(&l->n_cancelled));
    put(&out, "mlxcel_slow_readers_total", "counter", "Streams cut off for reading too slowly.",
        (double)atomic_load(&l->n_cut));
    put(&out, "mlxcel_timeouts_total", "counter", "Connections ended by a deadline.",
        (double)atomic_load(&l->n_timeouts));
    put(&out, "mlxcel_connections", "gauge", "Open connections.",
        (double)atomic_load(&l->n_connections));
    put(&out, "mlxcel_generations", "gauge", "Requests that generate.",
        (double)atomic_load(&l->n_generations));
    put(&out, "mlxcel_body_bytes", "gauge", "Bytes of request bodies in memory.",
        (double)atomic_load(&l->buffered_bytes));
    put(&out, "mlxcel_prep_waiting", "gauge", "Requests that wait for a prep worker.",
        mxc_work_waiting(x->server->work));
    put(&out, "mlxcel_uptime_seconds", "counter", "Since the start.",
        (double)(mxc_clock_ns() - x->server->start_ns) * 1e-9);
    put_prompt_cache(x, &out);
    size_t length = out.length;
    char *text = out.failed ? NULL : mxc_buf_take(&out);
    mxc_buf_fini(&out);
    mxc_reply_text(x, 200, "text/plain; version=0.0.4; charset=utf-8", text, length);
    return MXC_OK;
}
