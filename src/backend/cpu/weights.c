/* Weights of a plan: every weight of the graph is found in the checkpoint, through its view and
 * slice by slice (weight_view.h), and becomes what its readers need: a matrix (or each matrix of a
 * stack) is packed, all in one region in the order of the graph; a vector is decoded to f32; a
 * table stays mapped and its rows are decoded when asked for. A tied table is both mapped and
 * packed.
 *
 * What this file decides needs no look at the numbers, so an estimate reads headers only. The
 * packing itself is pack_weights.c. */
#include "backend/cpu/cpu.h"

#include "backend/weight_view.h"
#include "base/mem.h"

static bool is_fast(enum mxc_precision precision, const struct mxc_plan *plan) {
    if (precision != MXC_PRECISION_AUTO)
        return precision == MXC_PRECISION_FAST;
    for (int32_t i = 0; i < plan->graph->n_weights; i++) {
        if (!plan->weights[i].multiplied)
            continue;
        enum mxc_storage storage = plan->weights[i].slices[0].view->tensor->storage;
        if (storage == MXC_ST_BF16 || mxc_storage_info(storage)->quantised)
            return true;
    }
    return false;
}

/* ---- finding */

/* All tensors are looked for before anything is allocated by the graph's word. */
static enum mxc_code find_weights(struct mxc_plan *plan, const struct mxc_weights *weights,
                                  struct mxc_err *err) {
    const struct mxc_graph *graph = plan->graph;
    enum mxc_code code;
    size_t n_flats = 0;
    for (int32_t i = 0; i < graph->n_weights; i++) {
        const struct mxc_weight *w = &graph->weights[i];
        if ((code = mxc_weight_find(weights, w, err)))
            return code;
        plan->n_slices += (size_t)mxc_weight_n_views(w);
        n_flats += w->view.flat ? (size_t)mxc_weight_n_views(w) : 0;
    }
    if (plan->n_slices > INT32_MAX / 2)
        return mxc_err_set(err, MXC_E_LIMIT, "%zu matrices in one model", plan->n_slices);
    plan->slices = mxc_mem_zalloc(plan->n_slices, sizeof *plan->slices);
    plan->views = mxc_mem_zalloc(plan->n_slices, sizeof *plan->views);
    plan->flats = mxc_mem_zalloc(n_flats, sizeof *plan->flats);
    if (!plan->slices || !plan->views || !plan->flats)
        return mxc_err_nomem(err);
    for (size_t i = 0; i < plan->n_slices; i++)
        plan->slices[i].view = &plan->views[i];
    struct mxc_tensor *flat = plan->flats;
    size_t next = 0;
    for (int32_t i = 0; i < graph->n_weights; i++) {
        struct mxc_cpu_weight *w = &plan->weights[i];
        w->slices = &plan->slices[next];
        w->n_slices = (int32_t)mxc_weight_n_views(&graph->weights[i]);
        if ((code = mxc_weight_views(weights, &graph->weights[i], &plan->views[next], flat, err)))
            return code;
        next += (size_t)w->n_slices;
        flat += graph->weights[i].view.flat ? w->n_slices : 0;
    }
    return MXC_OK;
}

/* A router's matrix: small, and rounding that changes which experts are chosen changes everything
 * behind it. */
static void keep_exact(struct mxc_plan *plan, int32_t value) {
    const struct mxc_node *node = &plan->graph->nodes[plan->graph->values[value].producer];
    for (int32_t p = 0; node->op == MXC_OP_LINEAR && p < node->n_weights; p += 2)
        plan->weights[node->weights[p]].exact = true;
}

/* What the nodes do with their weights. */
static void find_uses(struct mxc_plan *plan) {
    for (int32_t i = 0; i < plan->graph->n_nodes; i++) {
        const struct mxc_node *node = &plan->graph->nodes[i];
        switch (node->op) {
        case MXC_OP_LINEAR:
            for (int32_t p = 0; p < node->n_weights; p += 2)
                plan->weights[node->weights[p]].multiplied = true;
            break;
        case MXC_OP_MOE:
            keep_exact(plan, node->in[1]);
            for (int32_t p = MXC_MOE_GATE; p <= MXC_MOE_DOWN; p++)
                plan->weights[node->weights[p]].multiplied = true;
            break;
        case MXC_OP_HEADS_LINEAR:
            plan->weights[node->weights[0]].multiplied = true;
            break;
        case MXC_OP_UNIT_COLUMNS:
            plan->weights[node->weights[0]].columns = true;
            break;
        default:
            break;
        }
    }
}

/* ---- layouts and sizes */

/* The kernels are picked once for a stack, so its slices must be stored alike. */
static enum mxc_code plan_forms(struct mxc_plan *plan, const struct mxc_cpu_weight *w,
                                struct mxc_err *err) {
    for (int32_t s = 0; s < w->n_slices; s++) {
        struct mxc_cpu_slice *slice = &w->slices[s];
        enum mxc_code code =
            mxc_pack_plan(slice->view, plan->exact || w->exact, &slice->packed, err);
        if (code)
            return code;
        const struct mxc_packed *a = &w->slices[0].packed, *b = &slice->packed;
        if (a->layout != b->layout || a->group != b->group || a->affine != b->affine)
            return mxc_err_set(err, MXC_E_UNSUPPORTED, "tensors %s and %s are stored differently",
                               w->slices[0].view->tensor->name, slice->view->tensor->name);
    }
    return MXC_OK;
}

static bool add_packed(struct mxc_plan *plan, const struct mxc_cpu_weight *w) {
    enum { ALIGN = MXC_CPU_PACK_ALIGN };
    enum mxc_activation_form form = mxc_packed_form(&w->slices[0].packed);
    for (int32_t s = 0; s < w->n_slices; s++) {
        struct mxc_cpu_slice *slice = &w->slices[s];
        size_t bytes = (mxc_packed_bytes(&slice->packed) + ALIGN - 1) / ALIGN * ALIGN;
        slice->offset = plan->packed_bytes;
        if (!mxc_size_add(plan->packed_bytes, bytes, &plan->packed_bytes))
            return false;
    }
    if (w->slices[0].packed.k > plan->form_k[form])
        plan->form_k[form] = w->slices[0].packed.k;
    return true;
}

/* A vector's slices stand side by side; it ends on a whole strip, and kernels may read that far. */
static bool add_vector(int64_t slices, int64_t n, size_t *total) {
    size_t numbers = 0, bytes;
    return mxc_size_mul((size_t)slices, (size_t)n, &numbers) &&
           mxc_size_add(numbers, MXC_STRIP - 1, &numbers) &&
           mxc_size_mul(numbers / MXC_STRIP, MXC_STRIP * sizeof(float), &bytes) &&
           mxc_size_add(*total, bytes, total);
}

static bool add_sizes(struct mxc_plan *plan) {
    for (int32_t i = 0; i < plan->graph->n_weights; i++) {
        struct mxc_cpu_weight *w = &plan->weights[i];
        const struct mxc_weight *weight = &plan->graph->weights[i];
        int64_t slices = weight->n_dims > 1 ? weight->shape[0] : 1;
        int64_t n = weight->shape[weight->n_dims - 1];
        if (weight->role == MXC_W_VECTOR && !add_vector(slices, n, &plan->vectors_bytes))
            return false;
        if (w->columns && !add_vector(1, n, &plan->vectors_bytes))
            return false;
        if (w->multiplied && !add_packed(plan, w))
            return false;
    }
    return true;
}

enum mxc_code mxc_cpu_weights_plan(struct mxc_plan *plan, const struct mxc_weights *weights,
                                   enum mxc_precision precision, struct mxc_err *err) {
    plan->weights = mxc_mem_zalloc((size_t)plan->graph->n_weights, sizeof *plan->weights);
    if (!plan->weights)
        return mxc_err_nomem(err);
    enum mxc_code code = find_weights(plan, weights, err);
    if (code)
        return code;
    find_uses(plan);
    plan->exact = !is_fast(precision, plan);
    for (int32_t i = 0; i < plan->graph->n_weights; i++)
        if (plan->weights[i].multiplied && (code = plan_forms(plan, &plan->weights[i], err)))
            return code;
    return add_sizes(plan) ? MXC_OK : mxc_err_nomem(err);
}
