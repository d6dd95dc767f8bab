/* Public models: opening, facts, memory estimate. */
#define _GNU_SOURCE
#include "api/api.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "gen/host.h"
#include "store/xla_place.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_SEQUENCES = 8, DEFAULT_CHUNK = 512 };

void mlxcel_model_options_init(struct mlxcel_model_options *options) {
    *options = (struct mlxcel_model_options){.max_sequences = DEFAULT_SEQUENCES,
                                             .max_chunk = DEFAULT_CHUNK};
}

static enum mxc_code check_options(const struct mlxcel_model_options *o, struct mxc_err *err) {
    if (o->threads < 0 || o->threads > 256)
        return mxc_err_set(err, MXC_E_ARG, "threads: %d is not in [0, 256]", o->threads);
    if (o->max_sequences < 1 || o->max_sequences > 1024)
        return mxc_err_set(err, MXC_E_ARG, "max_sequences: %d is not in [1, 1024]",
                           o->max_sequences);
    if (o->max_chunk < 32 || o->max_chunk > 8192)
        return mxc_err_set(err, MXC_E_ARG, "max_chunk: %d is not in [32, 8192]", o->max_chunk);
    if (o->context < 0 || o->kv_tokens < 0)
        return mxc_err_set(err, MXC_E_ARG, "context and kv_tokens cannot be negative");
    if (o->context == 1)
        return mxc_err_set(err, MXC_E_ARG, "context: 1 holds no prompt and answer; 2 is the least");
    if ((unsigned)o->precision > MLXCEL_PRECISION_FAST)
        return mxc_err_set(err, MXC_E_ARG, "precision: %d is none", (int)o->precision);
    return MXC_OK;
}

/* Options of an OpenXLA session. place: what they borrow; to be released when the model is open. */
static enum mxc_code xla_options(const struct mlxcel_model_options *o, struct mxc_xla_given *given,
                                 struct mxc_xla_place *place, struct mxc_err *err) {
    *given = (struct mxc_xla_given){.plugin = o->xla_plugin,
                                    .precision = o->xla_precision,
                                    .capacity = o->xla_context_capacity,
                                    .vision = o->xla_vision_backend,
                                    .tp_size = o->tp_size};
    mxc_xla_given_environment(given);
    enum mxc_code code = mxc_xla_place_find(place, err);
    if (code)
        return code;
    given->cache_dir = place->programs;
    if (!given->plugin || !*given->plugin)
        given->plugin = place->plugin;
    return MXC_OK;
}

static enum mxc_code load_options(const struct mlxcel_model_options *o,
                                  struct mxc_load_options *out, struct mxc_xla_place *place,
                                  struct mxc_err *err) {
    mxc_load_options_init(out);
    out->backend = o->backend ? o->backend : getenv("MLXCEL_BACKEND");
    out->surgery = o->surgery;
    out->n_threads = o->threads;
    out->precision = (enum mxc_precision)o->precision;
    out->max_batch = o->max_sequences;
    out->max_rows = o->max_chunk > o->max_sequences ? o->max_chunk : o->max_sequences + 1;
    out->max_out = o->all_logits ? out->max_rows : o->max_sequences;
    out->context = o->context > INT32_MAX ? INT32_MAX : (int32_t)o->context;
    out->force = o->force;
    out->progress = o->progress;
    out->progress_user = o->progress_user;
    return xla_options(o, &out->xla, place, err);
}

static enum mxc_code open_weights(struct mlxcel_model *m, const char *path, struct mxc_err *err) {
    struct mxc_load_options load;
    struct mxc_xla_place place = {.plugin = NULL};
    enum mxc_code code = load_options(&m->options, &load, &place, err);
    if (!code)
        code = mxc_model_open(path, &load, &m->loaded, err);
    mxc_xla_place_fini(&place);
    if (code)
        return code;
    int32_t trained = mxc_checkpoint_context(m->loaded->checkpoint);
    if (m->options.context > trained)
        mxc_log(MXC_LOG_WARN, "a context of %lld tokens is more than the model's; %d are used",
                (long long)m->options.context, trained);
    m->context = mxc_model_context(m->loaded, m->options.context);
    mxc_host_quantisation(m->loaded->checkpoint->weights, m->quantisation, sizeof m->quantisation);
    return MXC_OK;
}

mlxcel_status mlxcel_model_open(const char *path, const struct mlxcel_model_options *options,
                                struct mlxcel_model **model, struct mlxcel_error *error) {
    struct mxc_err err;
    uint64_t start = mxc_clock_ns();
    struct mlxcel_model *m = mxc_mem_zalloc(1, sizeof *m);
    if (!m)
        return mxc_api_fail((mxc_err_nomem(&err), &err), error);
    atomic_flag_clear(&m->busy);
    mlxcel_model_options_init(&m->options);
    if (options)
        m->options = *options;
    enum mxc_code code = check_options(&m->options, &err);
    if (!code && !m->options.tokenizer_only)
        code = open_weights(m, path, &err);
    const struct mxc_checkpoint *c = m->loaded ? m->loaded->checkpoint : NULL;
    if (!code)
        code = mxc_chat_open(path, c ? c->config : NULL, c ? c->graph->vocab : 0, &m->chat, &err);
    if (code) {
        mlxcel_model_close(m);
        return mxc_api_fail(&err, error);
    }
    m->options.progress = NULL;
    m->load_seconds = (double)(mxc_clock_ns() - start) * 1e-9;
    *model = m;
    return MLXCEL_OK;
}

enum mxc_code mxc_api_take(struct mlxcel_model *model, struct mxc_err *err) {
    if (!model->loaded)
        return mxc_err_set(err, MXC_E_ARG, "the model was opened as a tokenizer only");
    if (atomic_flag_test_and_set(&model->busy))
        return mxc_err_set(err, MXC_E_BUSY, "the model is run by another engine, trace or bench");
    return MXC_OK;
}

void mxc_api_give_back(struct mlxcel_model *model) {
    atomic_flag_clear(&model->busy);
}

void mlxcel_model_close(struct mlxcel_model *model) {
    if (!model)
        return;
    mxc_chat_close(model->chat);
    mxc_model_close(model->loaded);
    mxc_mem_free(model);
}

void mlxcel_model_info(const struct mlxcel_model *model, struct mlxcel_model_info *info) {
    *info = (struct mlxcel_model_info){.family = "",
                                       .model_type = "",
                                       .quantisation = model->quantisation,
                                       .plan = "",
                                       .vision_reason = "",
                                       .load_seconds = model->load_seconds};
    if (!model->loaded)
        return;
    const struct mxc_checkpoint *c = model->loaded->checkpoint;
    info->family = c->graph->family;
    info->model_type = c->config->model_type;
    info->plan = model->loaded->ops->plan_describe(model->loaded->plan);
    info->parameters = mxc_graph_parameters(c->graph);
    info->file_bytes = mxc_weights_bytes(c->weights);
    info->context = model->context;
    info->trained_context = c->config->max_position;
    info->vocab = c->graph->vocab;
    info->hidden = c->graph->hidden;
    info->layers = c->graph->n_layers;
    info->sees = c->vision != NULL;
    info->vision_reason = model->loaded->vision_reason;
    if (c->vision) {
        struct mxc_vision_budget budget;
        mxc_vision_default_budget(c->vision, &budget);
        info->image_max_pixels = budget.max_pixels;
    }
}

mlxcel_status mlxcel_model_estimate(const char *path, const struct mlxcel_model_options *options,
                                    int64_t n_tokens, int batch, struct mlxcel_memory *memory,
                                    struct mlxcel_error *error) {
    struct mlxcel_model_options o;
    struct mxc_load_options load;
    struct mxc_xla_place place = {.plugin = NULL};
    struct mxc_memory_estimate e;
    struct mxc_checkpoint *c = NULL;
    struct mxc_err err;
    mlxcel_model_options_init(&o);
    if (options)
        o = *options;
    if (n_tokens < 0 || n_tokens > INT32_MAX || batch < 1 || batch > 1024)
        return mxc_api_error(error, MXC_E_ARG, "estimate: %lld tokens, batch %d",
                             (long long)n_tokens, batch);
    o.max_sequences = batch > o.max_sequences ? batch : o.max_sequences;
    enum mxc_code code = check_options(&o, &err);
    if (!code)
        code = load_options(&o, &load, &place, &err);
    if (!code)
        code = mxc_checkpoint_open_with(path, load.surgery, &c, &err);
    if (!code) {
        int32_t context = n_tokens ? (int32_t)n_tokens : mxc_checkpoint_context(c);
        code = mxc_checkpoint_estimate(c, &load, context, batch, &e, &err);
    }
    mxc_checkpoint_close(c);
    mxc_xla_place_fini(&place);
    if (code)
        return mxc_api_fail(&err, error);
    *memory = (struct mlxcel_memory){.weights = e.weights,
                                     .activations = e.activations,
                                     .kv = e.kv,
                                     .overhead = e.overhead,
                                     .total = e.total,
                                     .kv_full = e.kv_kinds[MXC_KV_FULL],
                                     .kv_window = e.kv_kinds[MXC_KV_WINDOW],
                                     .kv_latent = e.kv_kinds[MXC_KV_LATENT],
                                     .kv_cross = e.kv_kinds[MXC_KV_CROSS],
                                     .kv_per_token = e.kv_per_token,
                                     .available = mxc_memory_available()};
    memory->fits = !memory->available || memory->total <= memory->available;
    return MLXCEL_OK;
}

mlxcel_status mlxcel_image_estimate(const char *path, const struct mlxcel_model_options *options,
                                    int32_t width, int32_t height, int64_t max_pixels,
                                    struct mlxcel_image_cost *cost, struct mlxcel_error *error) {
    struct mlxcel_model_options o;
    struct mxc_load_options load;
    struct mxc_xla_place place = {.plugin = NULL};
    struct mxc_checkpoint *c = NULL;
    struct mxc_vision_cost found;
    uint64_t bytes = 0;
    struct mxc_err err;
    mlxcel_model_options_init(&o);
    if (options)
        o = *options;
    if (width < 1 || height < 1 || width > MXC_IMAGE_MAX_SIDE || height > MXC_IMAGE_MAX_SIDE ||
        (uint64_t)width * (uint64_t)height > MXC_IMAGE_MAX_PIXELS)
        return mxc_api_error(
            error, MXC_E_ARG,
            "a picture of %d x %d pixels: it has 1 to %d on a side and at most %llu", width, height,
            (int)MXC_IMAGE_MAX_SIDE, (unsigned long long)MXC_IMAGE_MAX_PIXELS);
    if (max_pixels < 0)
        return mxc_api_error(error, MXC_E_ARG, "max_pixels: %lld is below 0",
                             (long long)max_pixels);
    const struct mxc_vision_budget budget = {.max_pixels = max_pixels};
    enum mxc_code code = check_options(&o, &err);
    if (!code)
        code = load_options(&o, &load, &place, &err);
    if (!code)
        code = mxc_checkpoint_open_with(path, load.surgery, &c, &err);
    if (!code)
        code = mxc_checkpoint_picture(c, &load, width, height, &budget, &found, &bytes, &err);
    struct mxc_vision_budget used = budget;
    if (!code && !max_pixels)
        mxc_vision_default_budget(c->vision, &used);
    mxc_checkpoint_close(c);
    mxc_xla_place_fini(&place);
    if (code)
        return mxc_api_fail(&err, error);
    *cost = (struct mlxcel_image_cost){.width = found.width,
                                       .height = found.height,
                                       .tiles = found.n_tiles,
                                       .tokens = found.n_tokens,
                                       .patches = found.n_patches,
                                       .bytes = bytes,
                                       .max_pixels = used.max_pixels};
    return MLXCEL_OK;
}

static ssize_t write_to_buf(void *cookie, const char *bytes, size_t n) {
    return mxc_buf_append(cookie, bytes, n) ? (ssize_t)n : 0;
}

mlxcel_status mlxcel_model_graph(const char *path, const struct mlxcel_model_options *options,
                                 char **text, struct mlxcel_error *error) {
    enum { MOST = 1 << 28 };
    struct mxc_checkpoint *c = NULL;
    struct mxc_buf buf;
    struct mxc_err err;
    if (mxc_checkpoint_open_with(path, options ? options->surgery : NULL, &c, &err))
        return mxc_api_fail(&err, error);
    mxc_buf_init(&buf, MOST);
    FILE *out = fopencookie(&buf, "w", (cookie_io_functions_t){.write = write_to_buf});
    bool ok = out != NULL;
    if (out) {
        mxc_graph_print(c->graph, out);
        if (c->vision)
            mxc_graph_print(mxc_vision_tower(c->vision), out);
        ok = !fclose(out) && !buf.failed;
    }
    char *copy = ok ? mxc_buf_take(&buf) : NULL;
    mxc_buf_fini(&buf);
    mxc_checkpoint_close(c);
    if (!copy)
        return mxc_api_fail((mxc_err_nomem(&err), &err), error);
    *text = copy;
    return MLXCEL_OK;
}

bool mlxcel_family_at(size_t index, struct mlxcel_family *family) {
    struct mxc_family_info info;
    if (!mxc_load_family(index, &info))
        return false;
    *family = (struct mlxcel_family){.name = info.name,
                                     .summary = info.summary,
                                     .notes = info.notes,
                                     .model_types = info.model_types,
                                     .gguf_archs = info.gguf_archs};
    return true;
}
