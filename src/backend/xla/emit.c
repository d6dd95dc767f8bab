/* A model's program as text, without a device: what `mlxcel xla emit` shows. In: a decoder's graph
 * and its weights, of which only shapes and storage are looked at, and the sizes of one program.
 * Out: StableHLO text, the same that a session of those sizes and that form would compile. */
#include "backend/xla.h"

#include "backend/xla/choice.h"
#include "backend/xla/module.h"
#include "base/mem.h"

enum { MAX_ROWS = 4096, SPARE_BLOCKS = 2 };

enum mxc_code mxc_xla_emit(const struct mxc_graph *graph, const struct mxc_weights *weights,
                           const struct mxc_xla_emit_options *options, char **text, size_t *length,
                           struct mxc_err *err) {
    struct mxc_xla_model *model = NULL;
    struct mxc_xla_module module;
    if (options->rows < 1 || options->rows > MAX_ROWS)
        return mxc_err_set(err, MXC_E_ARG, "%d rows: must be 1 to %d", options->rows, MAX_ROWS);
    if (options->context < 1)
        return mxc_err_set(err, MXC_E_ARG, "a context of %d tokens", options->context);
    if (graph->input != MXC_NONE)
        return mxc_err_set(err, MXC_E_UNSUPPORTED, "a tower's program depends on its pictures");
    enum mxc_code code = mxc_xla_model_new(graph, weights, &model, err);
    if (code)
        return code;
    const int32_t blocks = (options->context - 1) / MXC_KV_BLOCK + 1;
    const int32_t seqs = options->decode ? options->rows : 1;
    struct mxc_xla_buckets buckets = {
        .rows = options->rows, .out = options->decode ? options->rows : 1, .seqs = seqs};
    for (int k = 0; k < MXC_N_KV_KINDS; k++)
        if (model->block_bytes[k]) {
            buckets.blocks[k] = blocks;
            buckets.state[k] =
                blocks < INT32_MAX / seqs - SPARE_BLOCKS ? blocks * seqs + SPARE_BLOCKS : INT32_MAX;
        }
    struct mxc_xla_form form = mxc_xla_form_default(model);
    form.roll = form.roll && !options->unrolled;
    form.narrow = options->precision;
    code = mxc_xla_module_make(model, &buckets, &form, NULL, &module, err);
    if (!code) {
        *text = module.text;
        *length = module.length;
        module.text = NULL;
        mxc_xla_module_fini(&module);
    }
    mxc_xla_model_free(model);
    return code;
}
