/* Opening a checkpoint (config, weights, graph) and a model (backend, plan) on it, in that order,
 * and closing in the reverse one: a plan borrows graph and weights.
 * Nothing is left open or allocated when a step of it fails. */
#include "engine/load.h"

#include "base/log.h"
#include "base/mem.h"
#include "engine/blocks.h"
#include "engine/sample.h"
#include "engine/xla_image.h"
#include "models/family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void mxc_load_options_init(struct mxc_load_options *options) {
    *options = (struct mxc_load_options){.max_rows = 512, .max_out = 16, .max_batch = 16};
}

/* The operations are done before graph, tower or plan have seen a weight: so all of them see the
 * result. */
static enum mxc_code operate(const char *path, struct mxc_checkpoint *c, struct mxc_err *err) {
    if (!path)
        path = getenv("MLXCEL_SURGERY");
    if (!path || !*path)
        return MXC_OK;
    enum mxc_code code = mxc_surgery_open(path, &c->surgery, err);
    return code ? code : mxc_surgery_apply(c->surgery, c->config, c->weights, err);
}

/* What was done, and what was not, of a model that is being loaded: said once. */
static void say_operations(const struct mxc_surgery *surgery) {
    struct mxc_surgery_note note;
    for (size_t i = 0; surgery && mxc_surgery_note(surgery, i, &note); i++) {
        mxc_log(MXC_LOG_INFO, "surgery operation #%zu (%s): %zu tensors", i, note.op,
                note.n_tensors);
        if (*note.left)
            mxc_log(MXC_LOG_WARN, "surgery operation #%zu (%s): %s", i, note.op, note.left);
    }
}

/* hidden: the graph without its head. eye: the vision part is opened too. */
static enum mxc_code open_checkpoint(const char *path, const char *surgery, bool hidden, bool eye,
                                     struct mxc_checkpoint **checkpoint, struct mxc_err *err) {
    enum mxc_code code;
    struct mxc_checkpoint *c = mxc_mem_zalloc(1, sizeof *c);
    if (!c || !(c->path = mxc_mem_strdup(path))) {
        mxc_mem_free(c);
        return mxc_err_nomem(err);
    }
    if ((code = mxc_config_open(path, &c->config, err)) ||
        (code = mxc_weights_open(path, c->config, &c->weights, err)) ||
        (code = operate(surgery, c, err)))
        goto out;
    code = hidden ? mxc_model_hidden_graph(c->config, c->weights, &c->graph, err)
                  : mxc_model_graph(c->config, c->weights, &c->graph, err);
    if (code) { /* tensors are named with their file, config fields are not */
        if (err && !strstr(err->message, path))
            (void)mxc_err_context(err, "%s", path);
        goto out;
    }
    if (eye && (code = mxc_vision_open(path, c->config, c->weights, &c->vision, err)))
        goto out;
    *checkpoint = c;
    c = NULL;
out:
    mxc_checkpoint_close(c);
    return code;
}

enum mxc_code mxc_checkpoint_open_with(const char *path, const char *surgery,
                                       struct mxc_checkpoint **checkpoint, struct mxc_err *err) {
    return open_checkpoint(path, surgery, false, true, checkpoint, err);
}

enum mxc_code mxc_checkpoint_open(const char *path, struct mxc_checkpoint **checkpoint,
                                  struct mxc_err *err) {
    return mxc_checkpoint_open_with(path, NULL, checkpoint, err);
}

void mxc_checkpoint_close(struct mxc_checkpoint *c) {
    if (!c)
        return;
    mxc_vision_close(c->vision);
    mxc_graph_free(c->graph);
    mxc_weights_close(c->weights);
    mxc_surgery_close(c->surgery);
    mxc_config_close(c->config);
    mxc_mem_free(c->path);
    mxc_mem_free(c);
}

int32_t mxc_checkpoint_context(const struct mxc_checkpoint *c) {
    enum { UNKNOWN = 4096, MOST = 1 << 26 };
    int64_t n = c->graph->max_position > 0 ? c->graph->max_position : c->config->max_position;
    return n <= 0 ? UNKNOWN : n > MOST ? MOST : (int32_t)n;
}

/* Steps as the graph needs them: a text that is seen both ways runs in one, beside others that have
 * begun; of hidden rows all are wanted. */
static struct mxc_load_options fit_steps(const struct mxc_load_options *options,
                                         const struct mxc_checkpoint *c) {
    enum { MOST = 1 << 16 };
    struct mxc_load_options o = *options;
    int32_t context = mxc_checkpoint_context(c);
    context = o.context && o.context < context ? o.context : context;
    if (c->graph->both_ways && o.max_rows - o.max_batch < context)
        o.max_rows = (context < MOST ? context : MOST) + o.max_batch;
    if (c->graph->hidden_out)
        o.max_out = o.max_rows;
    return o;
}

static struct mxc_plan_options plan_options(const struct mxc_load_options *o) {
    return (struct mxc_plan_options){.precision = o->precision,
                                     .max_rows = o->max_rows,
                                     .max_out = o->max_out,
                                     .max_spans = o->max_batch,
                                     .progress = o->progress,
                                     .progress_user = o->progress_user};
}

static enum mxc_code find_backend(const struct mxc_load_options *options,
                                  const struct mxc_backend_ops **ops, struct mxc_err *err) {
    if (!options->ops)
        return mxc_backend_find(options->backend, ops, err);
    *ops = options->ops;
    return MXC_OK;
}

static bool is_xla(const struct mxc_backend_ops *ops) {
    return !strcmp(ops->name, "xla");
}

/* A model that should be split is not quietly run whole. */
static enum mxc_code check_whole(const struct mxc_load_options *options, const char *backend,
                                 struct mxc_err *err) {
    const struct mxc_xla_given given = {.tp_size = options->xla.tp_size};
    struct mxc_xla_settings settings;
    enum mxc_code code = mxc_xla_given_read(&given, &settings, err);
    if (code || settings.devices == 1)
        return code;
    return mxc_err_set(err, MXC_E_CONFIG,
                       "MLXCEL_TP_SIZE: %d: the %s backend runs a model on one device (threads "
                       "share it); --backend xla splits one over several",
                       (int)settings.devices, backend);
}

static enum mxc_code open_backend(const struct mxc_load_options *options,
                                  const struct mxc_backend_ops **ops, struct mxc_backend **backend,
                                  struct mxc_err *err) {
    struct mxc_backend_options backend_options = {.n_threads = options->n_threads};
    struct mxc_xla_settings settings;
    enum mxc_code code = find_backend(options, ops, err);
    if (!code && !is_xla(*ops))
        code = check_whole(options, (*ops)->name, err);
    else if (!code && !(code = mxc_xla_given_read(&options->xla, &settings, err)))
        backend_options.xla = (struct mxc_xla_options){.plugin = options->xla.plugin,
                                                       .cache_dir = options->xla.cache_dir,
                                                       .n_devices = settings.devices,
                                                       .precision = settings.precision};
    return code ? code : (*ops)->open(&backend_options, backend, err);
}

/* A tower's plan; its activations are taken with each run. */
static struct mxc_plan_options tower_options(const struct mxc_load_options *o) {
    return (struct mxc_plan_options){.precision = o->precision,
                                     .max_rows = 1,
                                     .max_out = 1,
                                     .max_spans = 1,
                                     .progress = o->progress,
                                     .progress_user = o->progress_user};
}

/* What compiles the decoder, and what the tower. */
struct backends {
    const struct mxc_backend_ops *ops, *tower_ops;
    struct mxc_backend *backend, *tower_backend;
};

/* What compiling decoder and tower takes. */
static enum mxc_code estimate_plans(const struct backends *b, const struct mxc_checkpoint *c,
                                    const struct mxc_load_options *options,
                                    struct mxc_plan_memory *memory, struct mxc_err *err) {
    struct mxc_plan_options plan = plan_options(options), eye = tower_options(options);
    struct mxc_plan_memory tower = {0};
    enum mxc_code code = b->ops->estimate(b->backend, c->graph, c->weights, &plan, memory, err);
    if (!code && c->vision)
        code = b->tower_ops->estimate(b->tower_backend, mxc_vision_tower(c->vision), c->weights,
                                      &eye, &tower, err);
    memory->weights_bytes += tower.weights_bytes + mxc_surgery_bytes(c->surgery);
    memory->activation_bytes += tower.activation_bytes;
    memory->device.weights_bytes += tower.device.weights_bytes;
    return code;
}

/* Of that many blocks, where they lie: on one device, when devices have memory of their own. */
static uint64_t kv_bytes(const struct mxc_plan_memory *memory,
                         const int32_t n_blocks[MXC_N_KV_KINDS]) {
    const uint64_t *block =
        memory->device.limit_bytes ? memory->device.kv_block_bytes : memory->kv_block_bytes;
    uint64_t bytes = 0;
    for (int k = 0; k < MXC_N_KV_KINDS; k++)
        bytes += block[k] * (uint64_t)n_blocks[k];
    return bytes;
}

/* What is neither weights nor activations nor KV: the program and its libraries, stacks, table rows
 * read of late (16 MiB where measured); the tokeniser, 20 to 60 bytes a token; logits and the
 * sampler's arrays. */
static uint64_t overhead_bytes(const struct mxc_load_options *o, const struct mxc_graph *graph) {
    enum { PROGRAM = 14 << 20, TOKEN = 40 };
    uint64_t vocab = (uint64_t)graph->vocab, rows = (uint64_t)o->max_batch * vocab;
    if (graph->hidden_out)
        rows = (uint64_t)o->max_rows * (uint64_t)graph->hidden;
    return PROGRAM + vocab * (TOKEN + sizeof(struct mxc_candidate) + 2 * sizeof(float)) +
           rows * sizeof(float);
}

/* Tokens of a sequence that has to fit: as asked for, or the least. */
static int32_t least_context(const struct mxc_load_options *options,
                             const struct mxc_checkpoint *c) {
    enum { LEAST = 256 };
    int32_t most = mxc_checkpoint_context(c), n = options->context ? options->context : LEAST;
    return n < most ? n : most;
}

/* A device with memory of its own has room for its weights, and activations and KV. */
static enum mxc_code check_device(const struct mxc_model *m, const struct mxc_plan_memory *need,
                                  int32_t context, uint64_t kv, struct mxc_err *err) {
    const struct mxc_device_memory *d = &need->device;
    uint64_t total = d->weights_bytes + need->activation_bytes + kv;
    if (total <= d->limit_bytes)
        return MXC_OK;
    return mxc_err_set(err, MXC_E_LIMIT,
                       "%s: %llu MiB are needed on a device (weights %llu, activations %llu, KV of "
                       "%d tokens %llu), it has %llu MiB; the option force loads it all the same",
                       m->checkpoint->path, (unsigned long long)(total >> 20),
                       (unsigned long long)(d->weights_bytes >> 20),
                       (unsigned long long)(need->activation_bytes >> 20), context,
                       (unsigned long long)(kv >> 20), (unsigned long long)(d->limit_bytes >> 20));
}

static enum mxc_code check_memory(const struct mxc_model *m, const struct mxc_load_options *options,
                                  struct mxc_err *err) {
    struct mxc_plan_memory need;
    int32_t n_blocks[MXC_N_KV_KINDS], context = least_context(options, m->checkpoint);
    uint64_t available = options->memory ? options->memory : mxc_memory_available();
    if (options->force)
        return MXC_OK;
    const struct backends backends = {m->ops, m->tower_ops, m->backend,
                                      m->tower_backend ? m->tower_backend : m->backend};
    enum mxc_code code = estimate_plans(&backends, m->checkpoint, options, &need, err);
    if (code)
        return code;
    mxc_engine_blocks_for(m->checkpoint->graph, context, 1, options->max_rows, n_blocks);
    uint64_t kv = kv_bytes(&need, n_blocks);
    if (need.device.limit_bytes) {
        if ((code = check_device(m, &need, context, kv, err)))
            return code;
        need.activation_bytes = kv = 0; /* of the host */
    }
    uint64_t overhead = overhead_bytes(options, m->checkpoint->graph);
    uint64_t total = need.weights_bytes + need.activation_bytes + kv + overhead;
    if (total <= available || !available)
        return MXC_OK;
    return mxc_err_set(err, MXC_E_LIMIT,
                       "%s: %llu MiB are needed (weights %llu, activations %llu, KV of %d tokens "
                       "%llu, overhead %llu), %llu MiB are available; the option force loads it "
                       "all the same",
                       m->checkpoint->path, (unsigned long long)(total >> 20),
                       (unsigned long long)(need.weights_bytes >> 20),
                       (unsigned long long)(need.activation_bytes >> 20), context,
                       (unsigned long long)(kv >> 20), (unsigned long long)(overhead >> 20),
                       (unsigned long long)(available >> 20));
}

/* The tower goes to the CPU backend, beside a text plan that is elsewhere. */
static enum mxc_code take_host(struct mxc_model *m, const struct mxc_load_options *options,
                               struct mxc_err *err) {
    const struct mxc_backend_options host = {.n_threads = options->n_threads};
    m->tower_ops = &mxc_backend_cpu;
    return m->tower_ops->open(&host, &m->tower_backend, err);
}

static enum mxc_code compile_tower(struct mxc_model *m, const struct mxc_load_options *options,
                                   struct mxc_err *err) {
    struct mxc_plan_options eye = tower_options(options);
    struct mxc_backend *backend = m->tower_backend ? m->tower_backend : m->backend;
    return m->tower_ops->compile(backend, mxc_vision_tower(m->checkpoint->vision),
                                 m->checkpoint->weights, &eye, &m->tower, err);
}

static void say_fall_back(const struct mxc_err *why) {
    mxc_log(MXC_LOG_WARN, "the vision tower runs on the host, not on the device: %s", why->message);
}

/* The same when a picture showed that the device cannot run it: see struct mxc_engine_target. */
static enum mxc_code fall_back(void *user, const struct mxc_err *why,
                               const struct mxc_backend_ops **ops, struct mxc_plan **plan,
                               struct mxc_err *err) {
    struct mxc_model *m = user;
    struct mxc_plan_options eye = tower_options(&m->options);
    const struct mxc_backend_options host = {.n_threads = m->options.n_threads};
    enum mxc_code code = MXC_OK;
    say_fall_back(why);
    if (!m->spare_backend)
        code = mxc_backend_cpu.open(&host, &m->spare_backend, err);
    if (!code && !m->spare_tower)
        code = mxc_backend_cpu.compile(m->spare_backend, mxc_vision_tower(m->checkpoint->vision),
                                       m->checkpoint->weights, &eye, &m->spare_tower, err);
    if (code)
        return code;
    *ops = &mxc_backend_cpu;
    *plan = m->spare_tower;
    return MXC_OK;
}

/* image: how an OpenXLA session sees; NULL for other backends. */
static enum mxc_code compile(struct mxc_model *m, const struct mxc_load_options *options,
                             const struct mxc_xla_image *image, struct mxc_err *err) {
    const struct mxc_checkpoint *c = m->checkpoint;
    struct mxc_plan_options plan = plan_options(options);
    struct mxc_plan_memory tower = {0};
    struct mxc_err why = {.message = ""};
    enum mxc_code code = m->ops->compile(m->backend, c->graph, c->weights, &plan, &m->plan, err);
    if (!code && c->vision) {
        code = compile_tower(m, options, &why);
        if (code && image && image->may_fall_back && code != MXC_E_CANCELLED &&
            code != MXC_E_NOMEM) {
            say_fall_back(&why);
            if (!(code = take_host(m, options, &why)))
                code = compile_tower(m, options, &why);
        }
        if (code && err)
            *err = why;
        if (!code)
            m->tower_ops->plan_memory(m->tower, &tower);
    }
    if (code)
        return code;
    m->ops->plan_memory(m->plan, &m->memory);
    m->memory.weights_bytes += tower.weights_bytes + mxc_surgery_bytes(c->surgery);
    m->memory.activation_bytes += tower.activation_bytes;
    m->memory.device.weights_bytes += tower.device.weights_bytes;
    return MXC_OK;
}

/* Settles what an OpenXLA session takes: its capacity, and how it sees (NULL in *image: not). */
static enum mxc_code look_at_xla(struct mxc_model *m, const char *path,
                                 struct mxc_load_options *options, struct mxc_xla_image **image,
                                 struct mxc_err *err) {
    struct mxc_xla_settings settings;
    struct mxc_xla_image_note note = {.text = ""};
    const struct mxc_xla_image_options eye = {.policy = options->xla.vision, .note = &note};
    enum mxc_xla_vision policy;
    enum mxc_code code = mxc_xla_given_read(&options->xla, &settings, err);
    if (code)
        return code;
    m->capacity = settings.capacity;
    if (m->capacity && (!options->context || options->context > m->capacity))
        options->context = m->capacity;
    if (options->hidden) /* embeddings see nothing */
        return mxc_xla_vision_parse(options->xla.vision, &policy, err);
    if ((code = mxc_xla_image_preprocessor_load(path, &eye, image, err)))
        return mxc_err_context(err, "OpenXLA image preprocessor load failed");
    if (note.kind == MXC_XLA_IMAGE_NOT_QUALIFIED || note.kind == MXC_XLA_IMAGE_MISMATCH) {
        mxc_log(MXC_LOG_WARN, "no pictures: %s", note.text);
        memcpy(m->vision_reason, note.text, sizeof m->vision_reason);
    }
    if (*image && !mxc_xla_has_device_runtime())
        (void)snprintf(m->vision_reason, sizeof m->vision_reason,
                       "this build lacks the device runtime (feature xla-device): rebuild with "
                       "-DMLXCEL_XLA=ON -DMLXCEL_XLA_DEVICE_RUNTIME=ON");
    return MXC_OK;
}

enum mxc_code mxc_model_open(const char *path, const struct mxc_load_options *options,
                             struct mxc_model **model, struct mxc_err *err) {
    enum mxc_code code;
    const struct mxc_backend_ops *ops;
    struct mxc_xla_image *image = NULL;
    struct mxc_model *m = mxc_mem_zalloc(1, sizeof *m);
    if (!m)
        return mxc_err_nomem(err);
    struct mxc_load_options asked = *options;
    if ((code = find_backend(options, &ops, err)) ||
        (is_xla(ops) && (code = look_at_xla(m, path, &asked, &image, err))) ||
        (code = open_checkpoint(path, asked.surgery, asked.hidden, !asked.hidden && !is_xla(ops),
                                &m->checkpoint, err)) ||
        (code = open_backend(&asked, &m->ops, &m->backend, err)))
        goto out;
    say_operations(m->checkpoint->surgery);
    m->tower_ops = m->ops;
    if (image) {
        m->checkpoint->vision = image->vision;
        image->vision = NULL;
        m->may_fall_back = image->may_fall_back;
        if (!image->device && (code = take_host(m, &asked, err)))
            goto out;
    }
    const struct mxc_load_options fit = fit_steps(&asked, m->checkpoint);
    if ((code = check_memory(m, &fit, err)) || (code = compile(m, &fit, image, err)))
        goto out;
    m->options = fit;
    m->options.progress = NULL;
    m->options.progress_user = NULL;
    m->options.backend = NULL;
    m->options.surgery = NULL;
    m->options.xla = (struct mxc_xla_given){.plugin = NULL};
    *model = m;
    m = NULL;
out:
    mxc_xla_image_free(image);
    mxc_model_close(m);
    return code;
}

void mxc_model_close(struct mxc_model *m) {
    if (!m)
        return;
    if (m->tower)
        m->tower_ops->plan_free(m->tower);
    if (m->tower_backend)
        m->tower_ops->close(m->tower_backend);
    if (m->spare_tower)
        mxc_backend_cpu.plan_free(m->spare_tower);
    if (m->spare_backend)
        mxc_backend_cpu.close(m->spare_backend);
    if (m->plan)
        m->ops->plan_free(m->plan);
    if (m->backend)
        m->ops->close(m->backend);
    mxc_checkpoint_close(m->checkpoint);
    mxc_mem_free(m);
}

struct mxc_engine_target mxc_model_target(const struct mxc_model *model) {
    const struct mxc_checkpoint *c = model->checkpoint;
    return (struct mxc_engine_target){
        .ops = model->ops,
        .plan = model->plan,
        .graph = c->graph,
        .tower = model->tower,
        .tower_graph = c->vision ? mxc_vision_tower(c->vision) : NULL,
        .tower_ops = model->tower_ops,
        .spare_tower = model->may_fall_back && !model->tower_backend ? fall_back : NULL,
        .spare_user = (void *)(uintptr_t)model,
        .admit_whole = is_xla(model->ops)};
}

int32_t mxc_model_context(const struct mxc_model *model, int64_t asked) {
    int32_t most = mxc_checkpoint_context(model->checkpoint);
    if (model->capacity > most)
        mxc_log(MXC_LOG_WARN, "a capacity of %d tokens is more than the model's; %d are used",
                model->capacity, most);
    else if (model->capacity)
        most = model->capacity;
    return asked && asked < most ? (int32_t)asked : most;
}

enum mxc_code mxc_checkpoint_estimate(const struct mxc_checkpoint *checkpoint,
                                      const struct mxc_load_options *options, int32_t context,
                                      int32_t batch, struct mxc_memory_estimate *estimate,
                                      struct mxc_err *err) {
    const struct mxc_backend_ops *ops;
    struct mxc_backend *backend = NULL;
    struct mxc_plan_memory memory;
    const struct mxc_load_options fit = fit_steps(options, checkpoint);
    int32_t n_blocks[MXC_N_KV_KINDS];
    if (context < 1 || batch < 1)
        return mxc_err_set(err, MXC_E_ARG, "a context of %d tokens and a batch of %d", context,
                           batch);
    enum mxc_code code = open_backend(options, &ops, &backend, err);
    if (code)
        return code;
    const struct backends backends = {ops, ops, backend, backend};
    code = estimate_plans(&backends, checkpoint, &fit, &memory, err);
    ops->close(backend);
    if (code)
        return code;
    mxc_engine_blocks_for(checkpoint->graph, context, batch, fit.max_rows, n_blocks);
    struct mxc_memory_estimate e = {.weights = memory.weights_bytes,
                                    .activations = memory.activation_bytes,
                                    .overhead = overhead_bytes(&fit, checkpoint->graph)};
    for (int k = 0; k < MXC_N_KV_KINDS; k++) {
        e.kv_kinds[k] = memory.kv_block_bytes[k] * (uint64_t)n_blocks[k];
        e.kv += e.kv_kinds[k];
        if (k == MXC_KV_FULL || k == MXC_KV_LATENT)
            e.kv_per_token += memory.kv_block_bytes[k] / MXC_KV_BLOCK;
    }
    e.total = e.weights + e.activations + e.kv + e.overhead;
    *estimate = e;
    return MXC_OK;
}

/* Bytes of the tower's run on a grey picture of that size, and of what it gives. */
static enum mxc_code picture_bytes(const struct mxc_checkpoint *c,
                                   const struct mxc_load_options *options,
                                   const struct mxc_image *image,
                                   const struct mxc_vision_budget *budget, uint64_t *bytes,
                                   struct mxc_err *err) {
    const struct mxc_graph *tower = mxc_vision_tower(c->vision);
    struct mxc_plan_options plan_options = tower_options(options);
    struct mxc_vision_picture picture;
    const struct mxc_backend_ops *ops;
    struct mxc_backend *backend = NULL;
    struct mxc_plan *plan = NULL;
    enum mxc_code code = mxc_vision_prepare(c->vision, image, budget, &picture, err);
    if (code)
        return code;
    if (!(code = open_backend(options, &ops, &backend, err)) &&
        !(code = ops->compile(backend, tower, c->weights, &plan_options, &plan, err))) {
        *bytes = ops->tower_bytes(plan, &picture.input) +
                 (uint64_t)picture.cost.n_features * (uint64_t)tower->vocab * sizeof(float);
        ops->plan_free(plan);
    }
    if (backend)
        ops->close(backend);
    mxc_vision_picture_fini(&picture);
    return code;
}

enum mxc_code mxc_checkpoint_picture(const struct mxc_checkpoint *c,
                                     const struct mxc_load_options *options, int32_t width,
                                     int32_t height, const struct mxc_vision_budget *budget,
                                     struct mxc_vision_cost *cost, uint64_t *bytes,
                                     struct mxc_err *err) {
    struct mxc_vision_budget own;
    struct mxc_image image;
    if (!c->vision)
        return mxc_err_set(err, MXC_E_UNSUPPORTED, "the model does not see pictures");
    mxc_vision_default_budget(c->vision, &own);
    if (budget && budget->min_pixels)
        own.min_pixels = budget->min_pixels;
    if (budget && budget->max_pixels)
        own.max_pixels = budget->max_pixels;
    enum mxc_code code = mxc_vision_measure(c->vision, width, height, &own, cost, err);
    if (code || (code = mxc_image_init(width, height, &image, err)))
        return code;
    memset(image.rgb, 128, (size_t)width * (size_t)height * 3);
    code = picture_bytes(c, options, &image, &own, bytes, err);
    mxc_image_fini(&image);
    return code;
}

/* Blocks for that many tokens in all; window blocks are bounded by the number of sequences. */
static void blocks_for_tokens(const struct mxc_model *model, int32_t context, int32_t n_sequences,
                              int64_t tokens, int32_t n_blocks[MXC_N_KV_KINDS]) {
    int32_t most[MXC_N_KV_KINDS];
    mxc_engine_blocks_for(model->checkpoint->graph, context, n_sequences, model->options.max_rows,
                          most);
    for (int k = 0; k < MXC_N_KV_KINDS; k++) {
        int64_t n = (tokens + MXC_KV_BLOCK - 1) / MXC_KV_BLOCK;
        n_blocks[k] = k == MXC_KV_WINDOW || n > most[k] ? most[k] : (int32_t)n;
    }
}

/* What KV may take in all where it lies; 0: not known. */
static uint64_t kv_room(const struct mxc_model *model) {
    const struct mxc_device_memory *d = &model->memory.device;
    uint64_t used = d->weights_bytes + model->memory.activation_bytes;
    if (d->limit_bytes)
        return d->limit_bytes > used ? d->limit_bytes - used : 1;
    return model->options.memory ? model->options.memory : mxc_memory_available();
}

enum mxc_code mxc_model_blocks(const struct mxc_model *model, int32_t context, int32_t n_sequences,
                               int64_t kv_tokens, uint64_t budget_bytes,
                               int32_t n_blocks[MXC_N_KV_KINDS], struct mxc_err *err) {
    int32_t least_tokens = least_context(&model->options, model->checkpoint);
    int64_t all = (int64_t)context * n_sequences,
            low = context < least_tokens ? context : least_tokens;
    int64_t high = kv_tokens > 0 && kv_tokens < all ? kv_tokens : all;
    int32_t blocks[MXC_N_KV_KINDS];
    if (context < 1 || n_sequences < 1 || kv_tokens < 0)
        return mxc_err_set(err, MXC_E_ARG, "%d sequences of %d tokens, %lld tokens of KV",
                           n_sequences, context, (long long)kv_tokens);
    if (low > high)
        low = high;
    blocks_for_tokens(model, context, n_sequences, low, blocks);
    uint64_t least = kv_bytes(&model->memory, blocks);
    if (!budget_bytes) {
        uint64_t available = kv_room(model);
        budget_bytes = available ? available / 2 : UINT64_MAX;
        if (model->options.force || (least > budget_bytes && least <= available))
            budget_bytes = least > budget_bytes ? least : budget_bytes;
    }
    if (least > budget_bytes) {
        int shift = budget_bytes >> 20 < 16 ? 10 : 20;
        return mxc_err_set(
            err, MXC_E_LIMIT, "KV for %lld tokens takes %llu %s; %llu %s may be used",
            (long long)low, (unsigned long long)(least >> shift), shift == 10 ? "KiB" : "MiB",
            (unsigned long long)(budget_bytes >> shift), shift == 10 ? "KiB" : "MiB");
    }
    while (low < high) { /* the most tokens that fit */
        int64_t mid = low + (high - low + 1) / 2;
        blocks_for_tokens(model, context, n_sequences, mid, blocks);
        if (kv_bytes(&model->memory, blocks) <= budget_bytes)
            low = mid;
        else
            high = mid - 1;
    }
    blocks_for_tokens(model, context, n_sequences, low, blocks);
    memcpy(n_blocks, blocks, sizeof blocks);
    return MXC_OK;
}

bool mxc_load_family(size_t index, struct mxc_family_info *info) {
    const struct mxc_family *const *list = mxc_family_list();
    for (size_t i = 0; i <= index; i++)
        if (!list[i])
            return false;
    const struct mxc_family *f = list[index];
    *info = (struct mxc_family_info){f->name, f->summary, f->notes, f->model_types, f->gguf_archs};
    return true;
}
