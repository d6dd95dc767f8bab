/* Weights of a plan: every weight of the graph is found in the checkpoint and becomes what its
 * readers need: a matrix is packed (one region for all, in the order of the graph), a vector is
 * decoded to f32, a table stays mapped and its rows are decoded when asked for. A tied table is
 * both mapped and packed.
 *
 * Packing runs on the team in slices of strips and drops source pages behind itself, so memory
 * peaks at the packed size plus one slice per worker. */
#include "backend/cpu/cpu.h"

#include "base/mem.h"

enum { SLICE_BYTES = 1 << 20, SEGMENT_SLICES = 64, WINDOW_BYTES = 128 << 20 };

/* ---- forms */

struct forms_job {
    struct mxc_plan *plan;
    int32_t last;
    bool whole; /* read every scale; else look at one row, which settles everything but `unit` */
    _Atomic int32_t next;
    atomic_bool failed;
    struct mxc_err *errs; /* [n_workers] */
};

static enum mxc_code find_form(const struct forms_job *job, struct mxc_cpu_weight *w,
                               struct mxc_err *err) {
    int64_t rows = mxc_tensor_rows(w->tensor);
    struct mxc_tensor one = *w->tensor;
    if (job->whole || one.n_dims != 2 || rows < 1 || rows > INT32_MAX - MXC_STRIP)
        return mxc_pack_form(w->tensor, job->plan->exact, &w->packed, err);
    one.shape[0] = 1;
    one.bytes /= (size_t)rows;
    one.permuted_heads = 0;
    enum mxc_code code = mxc_pack_form(&one, job->plan->exact, &w->packed, err);
    if (!code)
        w->packed.n = (int32_t)rows;
    return code;
}

static void forms_worker(void *arg, int worker, int n_workers) {
    (void)n_workers;
    struct forms_job *job = arg;
    for (;;) {
        int32_t i = atomic_fetch_add(&job->next, 1);
        if (i >= job->last || atomic_load(&job->failed))
            return;
        struct mxc_cpu_weight *w = &job->plan->weights[i];
        if (!w->multiplied)
            continue;
        if (find_form(job, w, &job->errs[worker]))
            atomic_store(&job->failed, true);
        mxc_tensor_drop(w->tensor, 0, job->whole ? mxc_tensor_rows(w->tensor) : 1);
    }
}

/* Of the matrices among weights [first, last). */
static enum mxc_code find_forms(struct mxc_plan *plan, int32_t first, int32_t last, bool whole,
                                struct mxc_err *err) {
    struct mxc_team *team = plan->backend->team;
    struct forms_job job = {.plan = plan, .last = last, .whole = whole, .next = first};
    size_t n = (size_t)mxc_team_size(team);
    job.errs = mxc_mem_zalloc(n, sizeof *job.errs);
    if (!job.errs)
        return mxc_err_nomem(err);
    mxc_team_run(team, forms_worker, &job);
    enum mxc_code code = MXC_OK;
    for (size_t i = 0; i < n && !code; i++)
        if (job.errs[i].code) {
            code = job.errs[i].code;
            if (err)
                *err = job.errs[i];
        }
    mxc_mem_free(job.errs);
    return code;
}

static bool is_fast(enum mxc_precision precision, const struct mxc_plan *plan) {
    if (precision != MXC_PRECISION_AUTO)
        return precision == MXC_PRECISION_FAST;
    for (int32_t i = 0; i < plan->graph->n_weights; i++) {
        enum mxc_storage storage = plan->weights[i].tensor->storage;
        if (plan->weights[i].multiplied &&
            (storage == MXC_ST_BF16 || mxc_storage_info(storage)->quantised))
            return true;
    }
    return false;
}

/* What a matrix takes of the region. */
static size_t packed_room(const struct mxc_packed *packed) {
    size_t bytes = mxc_packed_bytes(packed), align = MXC_CPU_PACK_ALIGN;
    return (bytes + align - 1) / align * align;
}

static bool add_sizes(struct mxc_plan *plan) {
    for (int32_t i = 0; i < plan->graph->n_weights; i++) {
        struct mxc_cpu_weight *w = &plan->weights[i];
        if (plan->graph->weights[i].role == MXC_W_VECTOR) {
            size_t strips = ((size_t)plan->graph->weights[i].shape[0] + MXC_STRIP - 1) / MXC_STRIP;
            plan->vectors_bytes += strips * MXC_STRIP * sizeof(float);
        }
        if (!w->multiplied)
            continue;
        size_t end;
        if (!mxc_size_add(plan->packed_bytes, packed_room(&w->packed), &end))
            return false;
        plan->packed_bytes = end;
        enum mxc_activation_form form = mxc_packed_form(&w->packed);
        if (w->packed.k > plan->form_k[form])
            plan->form_k[form] = w->packed.k;
    }
    return true;
}

enum mxc_code mxc_cpu_weights_plan(struct mxc_plan *plan, const struct mxc_weights *weights,
                                   enum mxc_precision precision, struct mxc_err *err) {
    const struct mxc_graph *graph = plan->graph;
    enum mxc_code code;
    plan->weights = mxc_mem_zalloc((size_t)graph->n_weights, sizeof *plan->weights);
    if (!plan->weights)
        return mxc_err_nomem(err);
    for (int32_t i = 0; i < graph->n_weights; i++) {
        const struct mxc_weight *w = &graph->weights[i];
        code =
            mxc_weights_get(weights, w->name, w->n_dims, w->shape, &plan->weights[i].tensor, err);
        if (code)
            return code;
    }
    for (int32_t i = 0; i < graph->n_nodes; i++)
        for (int32_t p = 0; graph->nodes[i].op == MXC_OP_LINEAR && p < graph->nodes[i].n_weights;
             p += 2)
            plan->weights[graph->nodes[i].weights[p]].multiplied = true;
    plan->exact = !is_fast(precision, plan);
    if ((code = find_forms(plan, 0, graph->n_weights, false, err)))
        return code;
    return add_sizes(plan) ? MXC_OK : mxc_err_nomem(err);
}

/* ---- packing */

struct pack_job {
    const struct mxc_tensor *tensor;
    struct mxc_packed *packed;
    int32_t strip1, slice; /* strips of a slice */
    _Atomic int32_t next;  /* strip */
    uint8_t *scratch;
    size_t scratch_bytes; /* of one worker */
};

static void pack_worker(void *arg, int worker, int n_workers) {
    (void)n_workers;
    struct pack_job *job = arg;
    void *scratch = job->scratch + (size_t)worker * job->scratch_bytes;
    for (;;) {
        int32_t s0 = atomic_fetch_add(&job->next, job->slice), s1 = s0 + job->slice;
        if (s0 >= job->strip1)
            return;
        if (s1 > job->strip1)
            s1 = job->strip1;
        mxc_pack_strips(job->tensor, job->packed, s0, s1, scratch);
        int64_t r0 = (int64_t)s0 * MXC_STRIP, r1 = (int64_t)s1 * MXC_STRIP;
        mxc_tensor_drop(job->tensor, r0, r1 < job->packed->n ? r1 : job->packed->n);
    }
}

/* One matrix; false: the caller wants to stop. */
static bool pack_matrix(struct mxc_plan *plan, struct pack_job *job,
                        const struct mxc_plan_options *options, size_t done) {
    int32_t strips = mxc_packed_strips(job->packed);
    size_t strip_bytes = job->packed->strip_bytes ? job->packed->strip_bytes : 1;
    job->slice = (int32_t)(SLICE_BYTES / strip_bytes);
    if (job->slice < 1)
        job->slice = 1;
    int32_t segment = job->slice * SEGMENT_SLICES;
    for (int32_t s0 = 0; s0 < strips; s0 += segment) {
        job->strip1 = strips - s0 > segment ? s0 + segment : strips;
        atomic_store(&job->next, s0);
        mxc_team_run(plan->backend->team, pack_worker, job);
        double fraction = (double)(done + (size_t)job->strip1 * strip_bytes) /
                          (double)(plan->packed_bytes ? plan->packed_bytes : 1);
        if (options->progress &&
            !options->progress(options->progress_user, fraction < 1 ? fraction : 1))
            return false;
    }
    mxc_tensor_drop(job->tensor, 0, mxc_tensor_rows(job->tensor)); /* pages shared by slices */
    return true;
}

static void decode_vectors(struct mxc_plan *plan) {
    float *next = plan->vectors;
    for (int32_t i = 0; i < plan->graph->n_weights; i++) {
        const struct mxc_weight *weight = &plan->graph->weights[i];
        if (weight->role != MXC_W_VECTOR)
            continue;
        plan->weights[i].vector = next;
        mxc_tensor_row(plan->weights[i].tensor, 0, next);
        next += (weight->shape[0] + MXC_STRIP - 1) / MXC_STRIP * MXC_STRIP;
    }
}

/* Weights [first, *last) in one go: scales are read, then rows, while the files are in memory. */
static enum mxc_code pack_window(struct mxc_plan *plan, struct pack_job *job,
                                 const struct mxc_plan_options *options, int32_t first,
                                 int32_t *last, size_t *done, struct mxc_err *err) {
    size_t window = 0;
    int32_t end = first;
    while (end < plan->graph->n_weights && (end == first || window < WINDOW_BYTES))
        window += plan->weights[end++].tensor->bytes;
    enum mxc_code code = find_forms(plan, first, end, true, err);
    for (int32_t i = first; !code && i < end; i++) {
        struct mxc_cpu_weight *w = &plan->weights[i];
        if (!w->multiplied)
            continue;
        w->packed.data = plan->packed + *done;
        job->tensor = w->tensor;
        job->packed = &w->packed;
        if (!pack_matrix(plan, job, options, *done))
            code = mxc_err_set(err, MXC_E_CANCELLED, "loading was cancelled");
        *done += packed_room(&w->packed);
    }
    *last = end;
    return code;
}

enum mxc_code mxc_cpu_weights_pack(struct mxc_plan *plan, const struct mxc_plan_options *options,
                                   struct mxc_err *err) {
    size_t n_workers = (size_t)mxc_team_size(plan->backend->team), done = 0, total;
    struct pack_job job = {0};
    enum mxc_code code = MXC_OK;
    for (int32_t i = 0; i < plan->graph->n_weights; i++) {
        const struct mxc_cpu_weight *w = &plan->weights[i];
        size_t bytes = w->multiplied ? mxc_pack_scratch_bytes(&w->packed) : 0;
        bytes = (bytes + 4095) / 4096 * 4096;
        job.scratch_bytes = bytes > job.scratch_bytes ? bytes : job.scratch_bytes;
    }
    if (!mxc_size_mul(job.scratch_bytes, n_workers, &total))
        return mxc_err_nomem(err);
    plan->packed = mxc_mem_aligned(MXC_CPU_PACK_ALIGN, plan->packed_bytes, true);
    plan->vectors = mxc_mem_aligned(MXC_ALIGN, plan->vectors_bytes, false);
    job.scratch = mxc_mem_aligned(MXC_ALIGN, total, false);
    if (!plan->packed || !plan->vectors || !job.scratch) {
        code = mxc_err_nomem(err);
        goto out;
    }
    decode_vectors(plan);
    for (int32_t i = 0; !code && i < plan->graph->n_weights;)
        code = pack_window(plan, &job, options, i, &i, &done, err);
out:
    mxc_mem_free_aligned(job.scratch, total);
    return code;
}
