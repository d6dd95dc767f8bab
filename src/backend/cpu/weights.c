/* Weights of a plan: every weight of the graph is found in the checkpoint, through its view and
 * slice by slice, and becomes what its readers need: a matrix (or each matrix of a stack) is
 * packed, all in one region in the order of the graph; a vector is decoded to f32; a table stays
 * mapped and its rows are decoded when asked for. A tied table is both mapped and packed.
 *
 * What this file decides needs no look at the numbers, so an estimate reads headers only. The
 * packing itself is pack_weights.c. */
#include "backend/cpu/cpu.h"

#include "base/mem.h"

static bool is_fast(enum mxc_precision precision, const struct mxc_plan *plan) {
    if (precision != MXC_PRECISION_AUTO)
        return precision == MXC_PRECISION_FAST;
    for (int32_t i = 0; i < plan->graph->n_weights; i++) {
        if (!plan->weights[i].multiplied)
            continue;
        enum mxc_storage storage = plan->weights[i].slices[0].view.tensor->storage;
        if (storage == MXC_ST_BF16 || mxc_storage_info(storage)->quantised)
            return true;
    }
    return false;
}

/* ---- finding */

static int64_t n_slices(const struct mxc_weight *w) {
    return w->role == MXC_W_STACK ? w->shape[0] : mxc_weight_tensors(w);
}

/* The tensors of a weight; with out NULL they are only looked for. */
static enum mxc_code find_tensors(const struct mxc_weights *weights, const struct mxc_weight *w,
                                  struct mxc_cpu_weight *out, struct mxc_err *err) {
    int64_t shape[MXC_MAX_VIEW_DIMS] = {0}, n = mxc_weight_tensors(w), slices = n_slices(w);
    int n_dims = mxc_weight_tensor_shape(w, shape);
    const struct mxc_tensor *tensor = NULL;
    for (int64_t i = 0; i < (out ? slices : n); i++) {
        char name[MXC_MAX_WEIGHT_NAME];
        if (i < n) {
            mxc_weight_tensor_name(w, i, name);
            enum mxc_code code = mxc_weights_get(weights, name, n_dims, shape, &tensor, err);
            if (code)
                return code;
        }
        if (out)
            out->slices[i].view = mxc_view_whole(tensor);
    }
    return MXC_OK;
}

static enum mxc_code misfit(const struct mxc_tensor *t, struct mxc_err *err) {
    const char *path = t->file && t->file->path ? t->file->path : "";
    return mxc_err_set(err, MXC_E_FORMAT,
                       "%s: tensor %s: %lld rows of %lld do not hold what is cut from it", path,
                       t->name, (long long)mxc_tensor_rows(t), (long long)mxc_tensor_columns(t));
}

/* Where slice s of a matrix or stack stands in its tensor. */
static enum mxc_code view_slice(const struct mxc_weight *w, int64_t s, struct mxc_view *view,
                                struct mxc_err *err) {
    const struct mxc_weight_view *v = &w->view;
    int64_t skipped = 0;
    size_t at = 0;
    view->n = w->shape[w->n_dims - 2];
    view->k = w->shape[w->n_dims - 1];
    if ((!v->n_dims || v->flat) && w->role == MXC_W_STACK && mxc_weight_tensors(w) == 1)
        skipped = view->n;
    if (v->n_dims && !v->flat) {
        skipped = v->stride;
        view->row0 = v->row0;
        view->row_step = v->row_step;
        view->col0 = v->col0;
        view->col_step = v->col_step;
        view->transposed = v->transposed;
    }
    if (!mxc_size_mul((size_t)s, (size_t)skipped, &at) ||
        !mxc_size_add(at, (size_t)view->row0, &at) || at > INT64_MAX / 2)
        return misfit(view->tensor, err);
    view->row0 = (int64_t)at;
    return mxc_view_fits(view) ? MXC_OK : misfit(view->tensor, err);
}

/* A vector counts numbers: the last one must be there. */
static enum mxc_code check_vector(const struct mxc_weight *w, const struct mxc_cpu_weight *out,
                                  struct mxc_err *err) {
    const struct mxc_weight_view *v = &w->view;
    int64_t slices = w->n_dims > 1 ? w->shape[0] : 1, n = w->shape[w->n_dims - 1];
    size_t last, step, have;
    for (int32_t i = 0; v->n_dims && !v->flat && i < out->n_slices; i++) {
        const struct mxc_tensor *t = out->slices[i].view.tensor;
        int64_t s = out->n_slices > 1 ? i : slices - 1;
        if (!mxc_size_mul((size_t)s, (size_t)v->stride, &last) ||
            !mxc_size_add(last, (size_t)v->row0, &last) ||
            !mxc_size_mul((size_t)(n - 1), (size_t)v->row_step, &step) ||
            !mxc_size_add(last, step, &last) ||
            !mxc_size_mul((size_t)mxc_tensor_rows(t), (size_t)mxc_tensor_columns(t), &have) ||
            last >= have)
            return misfit(t, err);
    }
    return MXC_OK;
}

/* The tensors of a flat weight under the weight's own shape. */
static enum mxc_code flatten(struct mxc_plan *plan, const struct mxc_weight *w,
                             struct mxc_cpu_weight *out, struct mxc_err *err) {
    int64_t tensors = mxc_weight_tensors(w), first = tensors > 1 ? 1 : 0;
    int64_t shape[2] = {1, w->shape[w->n_dims - 1]};
    for (int64_t i = first; i < w->n_dims - 1; i++)
        shape[0] *= w->shape[i];
    for (int32_t s = 0; s < out->n_slices; s++) {
        const struct mxc_tensor *t = out->slices[s].view.tensor;
        if (!mxc_tensor_is_plain(t) ||
            mxc_tensor_rows(t) * mxc_tensor_columns(t) != shape[0] * shape[1])
            return misfit(t, err);
        struct mxc_tensor *flat = &plan->flats[plan->n_flats++];
        *flat = mxc_tensor_reshape(t, 2, shape);
        out->slices[s].view = mxc_view_whole(flat);
    }
    return MXC_OK;
}

static enum mxc_code find_weight(struct mxc_plan *plan, const struct mxc_weights *weights,
                                 const struct mxc_weight *w, struct mxc_cpu_weight *out,
                                 struct mxc_err *err) {
    enum mxc_code code = find_tensors(weights, w, out, err);
    if (!code && w->view.flat)
        code = flatten(plan, w, out, err);
    if (code || w->role == MXC_W_TABLE)
        return code;
    if (w->role == MXC_W_VECTOR)
        return check_vector(w, out, err);
    for (int32_t s = 0; !code && s < out->n_slices; s++)
        code = view_slice(w, s, &out->slices[s].view, err);
    return code;
}

/* All tensors are looked for before anything is allocated by the graph's word. */
static enum mxc_code find_weights(struct mxc_plan *plan, const struct mxc_weights *weights,
                                  struct mxc_err *err) {
    const struct mxc_graph *graph = plan->graph;
    enum mxc_code code;
    size_t n_flats = 0;
    for (int32_t i = 0; i < graph->n_weights; i++) {
        if ((code = find_tensors(weights, &graph->weights[i], NULL, err)))
            return code;
        plan->n_slices += (size_t)n_slices(&graph->weights[i]);
        n_flats += graph->weights[i].view.flat ? (size_t)n_slices(&graph->weights[i]) : 0;
    }
    if (plan->n_slices > INT32_MAX / 2)
        return mxc_err_set(err, MXC_E_LIMIT, "%zu matrices in one model", plan->n_slices);
    plan->slices = mxc_mem_zalloc(plan->n_slices, sizeof *plan->slices);
    plan->flats = mxc_mem_zalloc(n_flats, sizeof *plan->flats);
    if (!plan->slices || !plan->flats)
        return mxc_err_nomem(err);
    struct mxc_cpu_slice *next = plan->slices;
    for (int32_t i = 0; i < graph->n_weights; i++) {
        struct mxc_cpu_weight *w = &plan->weights[i];
        w->slices = next;
        w->n_slices = (int32_t)n_slices(&graph->weights[i]);
        next += w->n_slices;
        if ((code = find_weight(plan, weights, &graph->weights[i], w, err)))
            return code;
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
            mxc_pack_plan(&slice->view, plan->exact || w->exact, &slice->packed, err);
        if (code)
            return code;
        const struct mxc_packed *a = &w->slices[0].packed, *b = &slice->packed;
        if (a->layout != b->layout || a->group != b->group || a->affine != b->affine)
            return mxc_err_set(err, MXC_E_UNSUPPORTED, "tensors %s and %s are stored differently",
                               w->slices[0].view.tensor->name, slice->view.tensor->name);
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
