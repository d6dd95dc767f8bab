/* Public measuring functions: trace, bench, limits. */
#include "api/api.h"

#include "base/mem.h"
#include "engine/timing.h"
#include "engine/trace.h"

#include <string.h>

/* The public struct first, so that its address is ours. */
struct trace {
    struct mlxcel_trace shown;
    struct mxc_trace *inner;
};

mlxcel_status mlxcel_trace_new(struct mlxcel_model *model, const int32_t *ids, size_t n_ids,
                               size_t n_steps, struct mlxcel_trace **trace,
                               struct mlxcel_error *error) {
    struct mxc_err err;
    enum mxc_code code = mxc_api_take(model, &err);
    if (code)
        return mxc_api_fail(&err, error);
    if (!model->options.all_logits)
        code = mxc_err_set(&err, MXC_E_ARG, "the model was not opened with all_logits");
    if (!code && (n_ids > (1u << 27) || n_steps > (1u << 27)))
        code = mxc_err_set(&err, MXC_E_ARG, "trace: %zu tokens and %zu steps", n_ids, n_steps);
    struct trace *t = code ? NULL : mxc_mem_zalloc(1, sizeof *t);
    if (!code && !t)
        code = mxc_err_nomem(&err);
    if (!code) {
        const struct mxc_model *m = model->loaded;
        code = mxc_trace_new(m->ops, m->plan, m->checkpoint->graph, m->options.max_rows, ids,
                             (int32_t)n_ids, (int32_t)n_steps, &t->inner, &err);
    }
    mxc_api_give_back(model);
    if (code) {
        mxc_mem_free(t);
        return mxc_api_fail(&err, error);
    }
    t->shown = (struct mlxcel_trace){.n_tokens = n_ids,
                                     .n_steps = n_steps,
                                     .vocab = t->inner->vocab,
                                     .layers = t->inner->n_layers,
                                     .logits = t->inner->logits,
                                     .layer_l2 = t->inner->layer_l2,
                                     .greedy_ids = t->inner->greedy};
    *trace = &t->shown;
    return MLXCEL_OK;
}

void mlxcel_trace_free(struct mlxcel_trace *trace) {
    struct trace *t = (struct trace *)trace;
    if (t)
        mxc_trace_free(t->inner);
    mxc_mem_free(t);
}

mlxcel_status mlxcel_bench_run(struct mlxcel_model *model, const struct mlxcel_bench *bench,
                               uint64_t seed, double *seconds, struct mlxcel_error *error) {
    struct mxc_err err;
    enum mxc_code code = mxc_api_take(model, &err);
    if (code)
        return mxc_api_fail(&err, error);
    if (bench->n_sequences > model->options.max_sequences)
        code = mxc_err_set(&err, MXC_E_ARG, "bench: %d sequences, but max_sequences is %d",
                           bench->n_sequences, model->options.max_sequences);
    if (!code) {
        const struct mxc_model *m = model->loaded;
        const struct mxc_timing_case timing = {.n_prompt = bench->n_prompt,
                                               .n_gen = bench->n_gen,
                                               .n_depth = bench->n_depth,
                                               .n_sequences = bench->n_sequences};
        code = mxc_timing_run(m->ops, m->plan, m->checkpoint->graph, m->options.max_rows, &timing,
                              seed, seconds, &err);
    }
    mxc_api_give_back(model);
    return code ? mxc_api_fail(&err, error) : MLXCEL_OK;
}

mlxcel_status mlxcel_limits_measure(int threads, struct mlxcel_limits *limits,
                                    struct mlxcel_error *error) {
    struct mxc_cpu_limits inner;
    struct mxc_err err;
    if (mxc_backend_cpu_limits(threads, &inner, &err))
        return mxc_api_fail(&err, error);
    *limits = (struct mlxcel_limits){.read_gbs = inner.read_gbs,
                                     .int8_tops = inner.int8_tops,
                                     .bf16_tflops = inner.bf16_tflops,
                                     .f32_tflops = inner.f32_tflops};
    return MLXCEL_OK;
}

bool mlxcel_model_matrix(const struct mlxcel_model *model, int32_t index,
                         struct mlxcel_matrix *matrix) {
    struct mxc_plan_matrix m;
    if (!model->loaded || index < 0 || !model->loaded->ops->plan_matrix ||
        !model->loaded->ops->plan_matrix(model->loaded->plan, index, &m))
        return false;
    *matrix = (struct mlxcel_matrix){.name = m.name,
                                     .storage = m.storage,
                                     .kernel = m.kernel,
                                     .rows = m.rows,
                                     .columns = m.columns,
                                     .slices = m.slices,
                                     .used = m.used,
                                     .bytes = m.bytes,
                                     .bits = m.bits,
                                     .outputs_only = m.outputs_only};
    memcpy(matrix->layout, m.layout, sizeof matrix->layout);
    return true;
}

uint64_t mlxcel_model_kv_bytes(const struct mlxcel_model *model) {
    struct mxc_plan_memory memory;
    uint64_t bytes = 0;
    if (!model->loaded)
        return 0;
    model->loaded->ops->plan_memory(model->loaded->plan, &memory);
    for (int k = 0; k < MXC_N_KV_KINDS; k++)
        if (k != MXC_KV_CROSS)
            bytes += memory.kv_block_bytes[k] / MXC_KV_BLOCK;
    return bytes;
}
