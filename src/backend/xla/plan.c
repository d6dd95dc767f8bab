/* Plans of the XLA backend, and its table of functions. compile makes the model (model.c), packs
 * its weights and leaves programs to the first steps that need them (run.c); weights go to the
 * device when a program first asks for them, in place where host memory is device memory. Without
 * the device runtime a backend opens without a device, so that a session can be made and looked at;
 * what would run is MXC_E_NOT_WIRED. */
#include "backend/xla/plan.h"

#include "backend/check.h"
#include "backend/xla/choice.h"
#include "backend/xla/split.h"
#include "backend/xla/tower.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>

/* Smaller models get the default form: measuring would take longer than they could win. */
enum { MEASURED_BYTES = 64 << 20 };

/* ---- the backend */

static void close_xla(struct mxc_backend *backend) {
    if (!backend)
        return;
#ifdef MLXCEL_XLA_DEVICE_RUNTIME
    mxc_xla_client_close(backend->client);
#endif
    mxc_mem_free(backend->cache_dir);
    mxc_mem_free(backend);
}

static enum mxc_code open_xla(const struct mxc_backend_options *options, struct mxc_backend **out,
                              struct mxc_err *err) {
    static const struct mxc_backend_options none = {0};
    struct mxc_backend *b = mxc_mem_zalloc(1, sizeof *b);
    enum mxc_code code = MXC_OK;
    if (!b)
        return mxc_err_nomem(err);
    options = options ? options : &none;
    b->precision = options->xla.precision;
    b->n_threads = options->n_threads;
    if (options->xla.cache_dir && *options->xla.cache_dir &&
        !(b->cache_dir = mxc_mem_strdup(options->xla.cache_dir))) {
        code = mxc_err_nomem(err);
        goto out;
    }
#ifdef MLXCEL_XLA_DEVICE_RUNTIME
    code = mxc_xla_client_open(
        &(struct mxc_xla_client_options){.plugin = options->xla.plugin,
                                         .n_devices = options->xla.n_devices,
                                         .n_threads = options->n_threads,
                                         .cache_dir = b->cache_dir,
                                         .cache_bytes = options->xla.cache_bytes},
        &b->client, err);
#endif
    if (!code) {
        *out = b;
        b = NULL;
    }
out:
    close_xla(b);
    return code;
}

/* ---- plans */

/* The widest values of a step, two at a time, and the logits: a guess, as the device decides. */
static uint64_t activation_bytes(const struct mxc_graph *graph, int32_t max_rows, int32_t max_out) {
    uint64_t widest = 0, last = (uint64_t)graph->values[graph->logits].width;
    for (int32_t v = 0; v < graph->n_values; v++)
        if (v != graph->logits && (uint64_t)graph->values[v].width > widest)
            widest = (uint64_t)graph->values[v].width;
    return 4 * (4 * widest * (uint64_t)max_rows + last * (uint64_t)max_out);
}

static void model_memory(const struct mxc_xla_model *model, int32_t max_rows, int32_t max_out,
                         struct mxc_plan_memory *memory) {
    *memory = (struct mxc_plan_memory){.weights_bytes = model->bytes,
                                       .activation_bytes =
                                           activation_bytes(model->graph, max_rows, max_out)};
    for (int k = 0; k < MXC_N_KV_KINDS; k++)
        memory->kv_block_bytes[k] = model->block_bytes[k];
}

#ifdef MLXCEL_XLA_DEVICE_RUNTIME
/* Weights of one device, and of all of them what is cut, and so copied. */
static uint64_t share_of_weights(const struct mxc_xla_model *model, int devices, uint64_t *cut) {
    uint64_t bytes = 0;
    *cut = 0;
    for (int32_t i = 0; i < model->n_stacks; i++)
        for (enum mxc_xla_part part = MXC_XLA_NUMBERS; part < MXC_XLA_N_PARTS; part++) {
            uint64_t n =
                (uint64_t)model->stacks[i].arrays[part].bytes * (uint64_t)model->stacks[i].n;
            bool whole = mxc_xla_split_weight(&model->stacks[i], part, devices) == MXC_NONE;
            bytes += whole ? n : n / (uint64_t)devices;
            *cut += whole ? 0 : n;
        }
    return bytes;
}

static void share_of_kv(const struct mxc_xla_model *model, int devices,
                        uint64_t kv[MXC_N_KV_KINDS]) {
    for (int32_t i = 0; i < model->n_groups; i++) {
        const struct mxc_xla_kv_group *g = &model->groups[i];
        uint64_t n = sizeof(float) * MXC_KV_BLOCK * (uint64_t)g->layers * (uint64_t)g->heads *
                     ((uint64_t)g->k_dim + (uint64_t)g->v_dim);
        kv[g->kind] += mxc_xla_split_kv(g, devices) == MXC_NONE ? n : n / (uint64_t)devices;
    }
}

/* The packed weights stay on the host. Devices of the host's memory use them in place, where they
 * are not cut; others have copies. */
static void device_memory(const struct mxc_xla_client *client, const struct mxc_xla_model *model,
                          struct mxc_plan_memory *memory) {
    const struct mxc_xla_client_info *info = mxc_xla_client_info(client);
    const int devices = model->graph->input == MXC_NONE ? info->n_devices : 1;
    struct mxc_device_memory *d = &memory->device;
    uint64_t cut, weights = share_of_weights(model, devices, &cut);
    if (info->is_cpu) {
        memory->weights_bytes += cut;
        return;
    }
    d->weights_bytes = weights;
    share_of_kv(model, devices, d->kv_block_bytes);
    d->limit_bytes = info->devices[0].memory_bytes;
    for (int i = 1; i < devices; i++)
        if (info->devices[i].memory_bytes < d->limit_bytes)
            d->limit_bytes = info->devices[i].memory_bytes;
}
#endif

static enum mxc_code estimate(struct mxc_backend *backend, const struct mxc_graph *graph,
                              const struct mxc_weights *weights,
                              const struct mxc_plan_options *options,
                              struct mxc_plan_memory *memory, struct mxc_err *err) {
    struct mxc_xla_model *model = NULL;
    enum mxc_code code = mxc_plan_options_check(options, graph, err);
    (void)backend;
    if (code || (code = mxc_xla_model_new(graph, weights, &model, err)))
        return code;
    model_memory(model, options->max_rows, options->max_out, memory);
#ifdef MLXCEL_XLA_DEVICE_RUNTIME
    device_memory(backend->client, model, memory);
#endif
    mxc_xla_model_free(model);
    return MXC_OK;
}

static void plan_memory(const struct mxc_plan *plan, struct mxc_plan_memory *memory) {
    model_memory(plan->model, plan->max_rows, plan->max_out, memory);
#ifdef MLXCEL_XLA_DEVICE_RUNTIME
    device_memory(plan->client, plan->model, memory);
#endif
}

/* Places for buffers of weights; one more than there are, so that none is no failure. */
static size_t n_whole(const struct mxc_plan *plan) {
    return (size_t)plan->model->n_stacks * MXC_XLA_N_PARTS * (size_t)plan->devices + 1;
}

static size_t n_single(const struct mxc_plan *plan) {
    return (size_t)plan->graph->n_weights * MXC_XLA_N_PARTS * (size_t)plan->devices + 1;
}

static void plan_free(struct mxc_plan *plan) {
    if (!plan)
        return;
#ifdef MLXCEL_XLA_DEVICE_RUNTIME
    mxc_xla_towers_free(plan->towers);
    mxc_xla_plan_drop_weights(plan);
    while (plan->programs) {
        struct mxc_xla_step_program *p = plan->programs;
        plan->programs = p->next;
        mxc_xla_program_free(p->program);
        mxc_xla_module_fini(&p->module);
        mxc_mem_free(p);
    }
#endif
    mxc_mem_free(plan->whole);
    mxc_mem_free(plan->single);
    mxc_mem_free(plan->feed_floats);
    mxc_mem_free(plan->feed_ints);
    mxc_mem_free(plan->out_rows);
    mxc_xla_model_free(plan->model);
    mxc_mem_free(plan);
}

static const char *precision_name(enum mxc_xla_precision precision) {
    return precision == MXC_XLA_PRECISION_F16    ? "f16"
           : precision == MXC_XLA_PRECISION_BF16 ? "bf16"
                                                 : "f32";
}

/* "cpu (PJRT 0.115) f32: int8 groups x 210, dense x 61; 1 run of 30 like layers" */
static void describe(struct mxc_plan *plan) {
    const struct mxc_xla_model *m = plan->model;
    const char *platform = "no device";
    int32_t groups = 0, dense = 0, rolled = 0;
#ifdef MLXCEL_XLA_DEVICE_RUNTIME
    platform = mxc_xla_client_info(plan->client)->platform;
#endif
    for (int32_t i = 0; i < m->n_stacks; i++) {
        groups += m->stacks[i].group ? m->stacks[i].n : 0;
        dense += m->stacks[i].matrix && !m->stacks[i].group ? m->stacks[i].n : 0;
    }
    for (int32_t i = 0; i < m->n_runs; i++)
        rolled += m->runs[i].turns;
    int n = snprintf(plan->describe, sizeof plan->describe,
                     "%s %s: integers with scales x %d, dense x %d; %d turns of like layers in %d "
                     "runs; kv f32",
                     platform, precision_name(plan->form.narrow), groups, dense, rolled, m->n_runs);
    if (plan->devices > 1)
        (void)snprintf(plan->describe + n, sizeof plan->describe - (size_t)n, "; %d devices",
                       plan->devices);
}

static enum mxc_code compile_xla(struct mxc_backend *backend, const struct mxc_graph *graph,
                                 const struct mxc_weights *weights,
                                 const struct mxc_plan_options *options, struct mxc_plan **out,
                                 struct mxc_err *err) {
    enum mxc_code code = mxc_plan_options_check(options, graph, err);
    if (code)
        return code;
    struct mxc_plan *plan = mxc_mem_zalloc(1, sizeof *plan);
    bool tower = graph->input != MXC_NONE;
    if (!plan)
        return mxc_err_nomem(err);
    plan->backend = backend;
    plan->client = backend->client;
    plan->graph = graph;
    plan->max_rows = tower ? 1 : options->max_rows;
    plan->max_out = tower ? 1 : options->max_out;
    plan->max_spans = tower ? 1 : options->max_spans;
    if ((code = mxc_xla_model_new(graph, weights, &plan->model, err)))
        goto out;
    plan->devices = 1;
#ifdef MLXCEL_XLA_DEVICE_RUNTIME
    if (!tower)
        plan->devices = mxc_xla_client_info(plan->client)->n_devices;
#endif
    plan->whole = mxc_mem_zalloc(n_whole(plan), sizeof *plan->whole);
    plan->single = mxc_mem_zalloc(n_single(plan), sizeof *plan->single);
    if (!plan->whole || !plan->single) {
        code = mxc_err_nomem(err);
        goto out;
    }
    plan->form = mxc_xla_form_default(plan->model);
    plan->form.narrow = backend->precision;
    plan->form.devices = plan->devices;
#ifdef MLXCEL_XLA_DEVICE_RUNTIME
    if (!mxc_xla_client_info(plan->client)->is_cpu)
        plan->form.chunk = 0; /* pieces are for a CPU's caches */
    if ((code = mxc_xla_weights_pack(plan->model, backend->n_threads, options, err)) ||
        (!tower && (code = mxc_xla_form_choose(plan, MEASURED_BYTES, NULL, err))))
        goto out;
#endif
    describe(plan);
    *out = plan;
    plan = NULL;
out:
    plan_free(plan);
    return code;
}

static const char *plan_describe(const struct mxc_plan *plan) {
    return plan->describe;
}

/* ---- on the device */

#ifdef MLXCEL_XLA_DEVICE_RUNTIME

void mxc_xla_plan_drop_weights(struct mxc_plan *plan) {
    for (size_t i = 0; plan->whole && i < n_whole(plan); i++) {
        mxc_xla_buffer_free(plan->whole[i]);
        plan->whole[i] = NULL;
    }
    for (size_t i = 0; plan->single && i < n_single(plan); i++) {
        mxc_xla_buffer_free(plan->single[i]);
        plan->single[i] = NULL;
    }
}

enum mxc_code mxc_xla_plan_weight(struct mxc_plan *plan, const struct mxc_xla_module_param *param,
                                  struct mxc_xla_buffer *const **out, struct mxc_err *err) {
    bool whole = param->index == MXC_NONE;
    size_t number = whole ? (size_t)param->which
                          : (size_t)plan->model->stacks[param->which].first + (size_t)param->index;
    struct mxc_xla_buffer **slots =
        (whole ? plan->whole : plan->single) +
        (number * MXC_XLA_N_PARTS + (size_t)param->part) * (size_t)plan->devices;
    if (!*slots) {
        const uint8_t *data =
            mxc_xla_array_data(plan->model, param->which, param->part, whole ? 0 : param->index);
        enum mxc_code code = mxc_xla_split_upload(plan->client, plan->devices, &param->shape,
                                                  param->axis, data, MXC_XLA_BORROW, slots, err);
        if (code)
            return code;
    }
    *out = slots;
    return MXC_OK;
}

enum mxc_code mxc_xla_plan_program(struct mxc_plan *plan, const char *name,
                                   const struct mxc_xla_module *m, struct mxc_xla_program **program,
                                   struct mxc_err *err) {
    size_t n_out = (size_t)m->n_results + (size_t)m->n_kv;
    struct mxc_xla_param *in = mxc_mem_zalloc((size_t)m->n_params + 1, sizeof *in);
    struct mxc_xla_param *outputs = mxc_mem_zalloc(n_out + 1, sizeof *outputs);
    enum mxc_code code = MXC_E_NOMEM;
    if (!in || !outputs) {
        code = mxc_err_nomem(err);
        goto out;
    }
    for (int32_t i = 0; i < m->n_params; i++)
        in[i] = (struct mxc_xla_param){
            mxc_xla_split_part(&m->params[i].shape, m->params[i].axis, m->devices),
            m->params[i].kind == MXC_XLA_PARAM_KV};
    for (size_t i = 0; i < (size_t)m->n_results; i++)
        outputs[i].shape = m->outputs[i];
    for (int32_t i = 0, next = m->n_results; i < m->n_params; i++)
        if (m->params[i].kind == MXC_XLA_PARAM_KV)
            outputs[next++].shape = in[i].shape;
    struct mxc_xla_compile_options options = {.inputs = in,
                                              .outputs = outputs,
                                              .n_inputs = m->n_params,
                                              .n_outputs = (int)n_out,
                                              .n_partitions = m->devices,
                                              .spmd = m->devices > 1};
    code = mxc_xla_compile(plan->client, name, m->text, m->length, &options, program, err);
out:
    mxc_mem_free(in);
    mxc_mem_free(outputs);
    return code;
}

#else

/* The table without a device. */
static enum mxc_code not_wired(struct mxc_err *err) {
    return mxc_err_set(err, MXC_E_NOT_WIRED,
                       "XLA: this build has no device runtime: rebuild with "
                       "-DMLXCEL_XLA_DEVICE_RUNTIME=ON");
}

static enum mxc_code bare_state_new(struct mxc_plan *plan, const int32_t n_blocks[MXC_N_KV_KINDS],
                                    struct mxc_state **out, struct mxc_err *err) {
    struct mxc_state *state = mxc_mem_zalloc(1, sizeof *state);
    if (!state)
        return mxc_err_nomem(err);
    state->plan = plan;
    for (int k = 0; k < MXC_N_KV_KINDS; k++)
        state->n_blocks[k] = n_blocks[k];
    *out = state;
    return MXC_OK;
}

static void bare_state_free(struct mxc_state *state) {
    mxc_mem_free(state);
}

static void bare_state_copy(struct mxc_state *state, enum mxc_kv_kind kind, int32_t from,
                            int32_t to) {
    (void)state, (void)kind, (void)from, (void)to;
}

static enum mxc_code bare_export(struct mxc_state *state, enum mxc_kv_kind kind, int32_t block,
                                 void *bytes, struct mxc_err *err) {
    (void)state, (void)kind, (void)block, (void)bytes;
    return not_wired(err);
}

static enum mxc_code bare_import(struct mxc_state *state, enum mxc_kv_kind kind, int32_t block,
                                 const void *bytes, struct mxc_err *err) {
    (void)state, (void)kind, (void)block, (void)bytes;
    return not_wired(err);
}

static enum mxc_code bare_run(struct mxc_plan *plan, struct mxc_state *state,
                              const struct mxc_step *step, const struct mxc_out *out,
                              struct mxc_err *err) {
    (void)plan, (void)state, (void)step, (void)out;
    return not_wired(err);
}

static enum mxc_code bare_put(struct mxc_state *state, const int32_t *blocks, int32_t token0,
                              int32_t n, const float *rows, size_t ld, struct mxc_err *err) {
    (void)state, (void)blocks, (void)token0, (void)n, (void)rows, (void)ld;
    return not_wired(err);
}

static enum mxc_code bare_tower_new(struct mxc_plan *plan, const struct mxc_tower_input *input,
                                    struct mxc_tower **tower, struct mxc_err *err) {
    (void)plan, (void)input, (void)tower;
    return not_wired(err);
}

static enum mxc_code bare_tower_step(struct mxc_tower *tower, uint64_t budget, bool *done,
                                     struct mxc_err *err) {
    (void)tower, (void)budget, (void)done;
    return not_wired(err);
}

static enum mxc_code bare_tower_tap(struct mxc_tower *tower, mxc_tap_fn *tap, void *user,
                                    struct mxc_err *err) {
    (void)tower, (void)tap, (void)user;
    return not_wired(err);
}

static const float *bare_tower_output(const struct mxc_tower *tower, int32_t *rows) {
    (void)tower;
    *rows = 0;
    return NULL;
}

static void bare_tower_free(struct mxc_tower *tower) {
    (void)tower;
}

static uint64_t bare_tower_bytes(const struct mxc_plan *plan, const struct mxc_tower_input *input) {
    (void)plan, (void)input;
    return 0;
}

#define mxc_xla_state_new    bare_state_new
#define mxc_xla_state_free   bare_state_free
#define mxc_xla_state_copy   bare_state_copy
#define mxc_xla_state_export bare_export
#define mxc_xla_state_import bare_import
#define mxc_xla_run_step     bare_run
#define mxc_xla_state_put    bare_put
#define mxc_xla_tower_new    bare_tower_new
#define mxc_xla_tower_step   bare_tower_step
#define mxc_xla_tower_tap    bare_tower_tap
#define mxc_xla_tower_output bare_tower_output
#define mxc_xla_tower_free   bare_tower_free
#define mxc_xla_tower_bytes  bare_tower_bytes
#endif

const struct mxc_backend_ops mxc_backend_xla = {.name = "xla",
                                                .open = open_xla,
                                                .close = close_xla,
                                                .estimate = estimate,
                                                .compile = compile_xla,
                                                .plan_free = plan_free,
                                                .plan_memory = plan_memory,
                                                .plan_describe = plan_describe,
                                                .state_new = mxc_xla_state_new,
                                                .state_free = mxc_xla_state_free,
                                                .state_copy = mxc_xla_state_copy,
                                                .state_export = mxc_xla_state_export,
                                                .state_import = mxc_xla_state_import,
                                                .run = mxc_xla_run_step,
                                                .state_put = mxc_xla_state_put,
                                                .tower_new = mxc_xla_tower_new,
                                                .tower_step = mxc_xla_tower_step,
                                                .tower_tap = mxc_xla_tower_tap,
                                                .tower_output = mxc_xla_tower_output,
                                                .tower_free = mxc_xla_tower_free,
                                                .tower_bytes = mxc_xla_tower_bytes};
