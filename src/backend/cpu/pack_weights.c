/* Packing: fills the region of packed matrices, the vectors and the column norms of a plan whose
 * weights are found and measured (weights.c).
 *
 * Matrices are read in the order of the files, whatever weights they belong to, so that a tensor
 * seen by several weights goes through memory once. Windows of WINDOW_BYTES of them: scales are
 * read, then rows, while the files are in memory. Workers take units of about UNIT_BYTES of packed
 * strips from a counter; source pages are dropped behind them, those of a tensor with several
 * readers when the last is done. So memory peaks at the packed size plus some units. */
#include "backend/cpu/cpu.h"

#include "backend/weight_view.h"
#include "base/mem.h"

#include <math.h>
#include <stdlib.h>

enum { UNIT_BYTES = 1 << 20, SEGMENT_UNITS = 64, WINDOW_BYTES = 128 << 20 };

struct unit {
    int32_t matrix, strip0, strip1;
};

/* A slice to pack, and the tensor rows [row0, row1) that it is in. */
struct matrix {
    struct mxc_cpu_slice *slice;
    int64_t row0, row1;
    bool exact; /* packed as f32 */
    bool alone; /* no other slice is in these rows */
};

struct packer {
    struct mxc_plan *plan;
    const struct mxc_plan_options *options;
    struct matrix *matrices;
    struct unit *units;
    int32_t n_matrices, n_units;
    uint8_t *scratch;
    size_t scratch_bytes; /* of one worker */
    struct mxc_err *errs; /* [n_workers] */
    /* the job at hand: matrices or units [next, last) */
    _Atomic int32_t next;
    int32_t last;
    atomic_bool failed;
    size_t done, all; /* packed bytes */
    /* pages of the tensor before this row are dropped */
    const struct mxc_tensor *dropping;
    int64_t dropped;
};

/* ---- order */

static int compare(const void *left, const void *right) {
    const struct matrix *a = left, *b = right;
    const uint8_t *p = a->slice->view->tensor->data, *q = b->slice->view->tensor->data;
    if (p != q)
        return (uintptr_t)p < (uintptr_t)q ? -1 : 1;
    if (a->row0 != b->row0)
        return a->row0 < b->row0 ? -1 : 1;
    return a->slice < b->slice ? -1 : a->slice > b->slice;
}

static void add_matrix(struct packer *p, struct mxc_cpu_slice *slice, bool exact) {
    const struct mxc_view *v = slice->view;
    int64_t n = v->transposed ? v->k : (v->n - 1) * v->row_step + 1;
    p->matrices[p->n_matrices++] = (struct matrix){slice, v->row0, v->row0 + n, exact, true};
}

static int32_t unit_strips(const struct mxc_packed *packed) {
    size_t n = UNIT_BYTES / (packed->strip_bytes ? packed->strip_bytes : 1);
    return n < 1 ? 1 : n > INT32_MAX / 2 ? INT32_MAX / 2 : (int32_t)n;
}

static void order_matrices(struct packer *p) {
    qsort(p->matrices, (size_t)p->n_matrices, sizeof *p->matrices, compare);
    int64_t end = 0;
    for (int32_t i = 0; i < p->n_matrices; i++) {
        struct matrix *m = &p->matrices[i], *before = i ? m - 1 : NULL;
        if (!before || before->slice->view->tensor->data != m->slice->view->tensor->data)
            end = 0;
        if (end > m->row0)
            m->alone = before->alone = false;
        end = m->row1 > end ? m->row1 : end;
    }
}

static enum mxc_code start(struct packer *p, struct mxc_err *err) {
    struct mxc_plan *plan = p->plan;
    size_t n_units = 0, n_workers = (size_t)mxc_team_size(plan->backend->team), total;
    p->matrices = mxc_mem_zalloc(plan->n_slices, sizeof *p->matrices);
    p->errs = mxc_mem_zalloc(n_workers, sizeof *p->errs);
    if (!p->matrices || !p->errs)
        return mxc_err_nomem(err);
    for (int32_t i = 0; i < plan->graph->n_weights; i++)
        for (int32_t s = 0; plan->weights[i].multiplied && s < plan->weights[i].n_slices; s++) {
            struct mxc_cpu_slice *slice = &plan->weights[i].slices[s];
            size_t bytes = mxc_pack_scratch_bytes(slice->view, &slice->packed);
            int32_t strips = mxc_packed_strips(&slice->packed), most = unit_strips(&slice->packed);
            bytes = (bytes + 4095) / 4096 * 4096;
            p->scratch_bytes = bytes > p->scratch_bytes ? bytes : p->scratch_bytes;
            n_units += (size_t)((strips + most - 1) / most);
            p->all += mxc_packed_bytes(&slice->packed);
            add_matrix(p, slice, plan->exact || plan->weights[i].exact);
        }
    order_matrices(p);
    if (!mxc_size_mul(p->scratch_bytes, n_workers, &total) || n_units > INT32_MAX / 2)
        return mxc_err_nomem(err);
    p->units = mxc_mem_array(n_units, sizeof *p->units);
    p->scratch = mxc_mem_aligned(MXC_ALIGN, total, false);
    return p->units && p->scratch ? MXC_OK : mxc_err_nomem(err);
}

/* ---- windows */

static void forms_worker(void *arg, int worker, int n_workers) {
    (void)n_workers;
    struct packer *p = arg;
    for (;;) {
        int32_t i = atomic_fetch_add(&p->next, 1);
        if (i >= p->last || atomic_load(&p->failed))
            return;
        struct mxc_cpu_slice *slice = p->matrices[i].slice;
        if (mxc_pack_form(slice->view, p->matrices[i].exact, &slice->packed, &p->errs[worker]))
            atomic_store(&p->failed, true);
        slice->packed.data = p->plan->packed + slice->offset;
        if (slice->packed.unit != 1) /* scales were looked at */
            mxc_tensor_drop(slice->view->tensor, p->matrices[i].row0, p->matrices[i].row1);
    }
}

/* Reads the scales of matrices [first, last). */
static enum mxc_code read_forms(struct packer *p, int32_t first, int32_t last,
                                struct mxc_err *err) {
    struct mxc_team *team = p->plan->backend->team;
    atomic_store(&p->next, first);
    p->last = last;
    mxc_team_run(team, forms_worker, p);
    for (int i = 0; i < mxc_team_size(team); i++)
        if (p->errs[i].code) {
            if (err)
                *err = p->errs[i];
            return p->errs[i].code;
        }
    return MXC_OK;
}

static void pack_worker(void *arg, int worker, int n_workers) {
    (void)n_workers;
    struct packer *p = arg;
    void *scratch = p->scratch + (size_t)worker * p->scratch_bytes;
    for (;;) {
        int32_t i = atomic_fetch_add(&p->next, 1);
        if (i >= p->last)
            return;
        const struct unit *u = &p->units[i];
        const struct matrix *m = &p->matrices[u->matrix];
        struct mxc_packed *packed = &m->slice->packed;
        mxc_pack_strips(m->slice->view, packed, u->strip0, u->strip1, scratch);
        int64_t r0 = (int64_t)u->strip0 * MXC_STRIP, r1 = (int64_t)u->strip1 * MXC_STRIP;
        if (m->alone)
            mxc_view_drop(m->slice->view, r0, r1 < packed->n ? r1 : packed->n);
    }
}

/* Matrix i is packed: no later one needs its tensor before the next one's first row. */
static void drop_behind(struct packer *p, int32_t i) {
    const struct mxc_tensor *t = p->matrices[i].slice->view->tensor;
    const struct matrix *next = i + 1 < p->n_matrices ? &p->matrices[i + 1] : NULL;
    if (!p->dropping || p->dropping->data != t->data)
        p->dropped = p->matrices[i].row0;
    p->dropping = t;
    int64_t end =
        next && next->slice->view->tensor->data == t->data ? next->row0 : mxc_tensor_rows(t);
    if (p->matrices[i].alone && p->dropped == p->matrices[i].row0 && end == p->matrices[i].row1)
        p->dropped = end; /* its units have dropped their rows */
    mxc_tensor_drop(t, p->dropped, end);
    p->dropped = end > p->dropped ? end : p->dropped;
}

/* Units [0, n_units) of the window; false: the caller wants to stop. */
static bool pack_units(struct packer *p) {
    const struct mxc_plan_options *o = p->options;
    for (int32_t u = 0; u < p->n_units;) {
        int32_t first = u;
        p->last = p->n_units - u > SEGMENT_UNITS ? u + SEGMENT_UNITS : p->n_units;
        atomic_store(&p->next, u);
        mxc_team_run(p->plan->backend->team, pack_worker, p);
        for (u = first; u < p->last; u++) {
            const struct unit *unit = &p->units[u];
            const struct mxc_packed *packed = &p->matrices[unit->matrix].slice->packed;
            p->done += (size_t)(unit->strip1 - unit->strip0) * packed->strip_bytes;
            if (unit->strip1 == mxc_packed_strips(packed))
                drop_behind(p, unit->matrix);
        }
        double fraction = p->done < p->all ? (double)p->done / (double)p->all : 1;
        if (o->progress && !o->progress(o->progress_user, fraction))
            return false;
    }
    return true;
}

static enum mxc_code pack_window(struct packer *p, int32_t *matrix, struct mxc_err *err) {
    size_t window = 0;
    int32_t first = *matrix, end = first;
    p->n_units = 0;
    for (; end < p->n_matrices && window < WINDOW_BYTES; end++) {
        const struct mxc_cpu_slice *slice = p->matrices[end].slice;
        int32_t strips = mxc_packed_strips(&slice->packed), most = unit_strips(&slice->packed);
        window += mxc_view_bytes(slice->view);
        for (int32_t s = 0; s < strips; s += most)
            p->units[p->n_units++] = (struct unit){end, s, strips - s > most ? s + most : strips};
    }
    *matrix = end;
    enum mxc_code code = read_forms(p, first, end, err);
    if (!code && !pack_units(p))
        code = mxc_err_set(err, MXC_E_CANCELLED, "loading was cancelled");
    return code;
}

/* ---- vectors */

static int64_t whole_strips(int64_t n) {
    return (n + MXC_STRIP - 1) / MXC_STRIP * MXC_STRIP;
}

static enum mxc_code decode_vectors(struct mxc_plan *plan, struct mxc_err *err) {
    float *next = plan->vectors, *row;
    int64_t most = 1;
    for (int32_t i = 0; i < plan->graph->n_weights; i++) {
        const struct mxc_cpu_weight *w = &plan->weights[i];
        for (int32_t s = 0; plan->graph->weights[i].role == MXC_W_VECTOR && s < w->n_slices; s++) {
            int64_t columns = mxc_tensor_columns(w->slices[s].view->tensor);
            most = columns > most ? columns : most;
        }
    }
    if (!(row = mxc_mem_array((size_t)most, sizeof *row)))
        return mxc_err_nomem(err);
    for (int32_t i = 0; i < plan->graph->n_weights; i++) {
        const struct mxc_weight *weight = &plan->graph->weights[i];
        struct mxc_cpu_weight *w = &plan->weights[i];
        int64_t n = weight->shape[weight->n_dims - 1];
        if (weight->role == MXC_W_VECTOR) {
            w->vector = next;
            next += whole_strips(weight->n_dims > 1 ? weight->shape[0] * n : n);
            mxc_weight_vector(weight, w->slices->view, w->vector, row);
        }
        if (w->columns) {
            w->norms = next;
            next += whole_strips(n);
        }
    }
    mxc_mem_free(row);
    return MXC_OK;
}

/* ---- norms of columns */

enum { NORM_PARTS = 16 }; /* of the rows, whatever the number of workers: sums have one order */

struct norm_job {
    const struct mxc_view *view;
    double *sums; /* [NORM_PARTS][k] */
    float *rows;  /* [n_workers]: a row and what the view needs to decode it */
    size_t rows_ld;
    _Atomic int32_t next;
};

static void norm_worker(void *arg, int worker, int n_workers) {
    (void)n_workers;
    struct norm_job *job = arg;
    const struct mxc_view *v = job->view;
    size_t k = (size_t)v->k;
    float *row = job->rows + (size_t)worker * job->rows_ld;
    int32_t part;
    while ((part = atomic_fetch_add(&job->next, 1)) < NORM_PARTS) {
        double *sums = job->sums + (size_t)part * k;
        int64_t r0 = v->n * part / NORM_PARTS, r1 = v->n * (part + 1) / NORM_PARTS;
        for (int64_t r = r0; r < r1; r++) {
            mxc_view_rows(v, r, 1, row, k, row + k);
            for (size_t i = 0; i < k; i++)
                sums[i] += (double)row[i] * (double)row[i];
        }
        if (!v->transposed)
            mxc_view_drop(v, r0, r1);
    }
}

static enum mxc_code column_norms(struct mxc_plan *plan, struct mxc_cpu_weight *w,
                                  struct mxc_err *err) {
    struct norm_job job = {.view = w->slices[0].view};
    size_t k = (size_t)job.view->k;
    enum mxc_code code = MXC_OK;
    job.rows_ld = k + mxc_view_scratch(job.view);
    job.sums = mxc_mem_zalloc(NORM_PARTS * k, sizeof *job.sums);
    job.rows =
        mxc_mem_array((size_t)mxc_team_size(plan->backend->team) * job.rows_ld, sizeof *job.rows);
    if (!job.sums || !job.rows) {
        code = mxc_err_nomem(err);
        goto out;
    }
    mxc_team_run(plan->backend->team, norm_worker, &job);
    for (size_t i = 0; i < k; i++) {
        double sum = 0;
        for (size_t part = 0; part < NORM_PARTS; part++)
            sum += job.sums[part * k + i];
        w->norms[i] = (float)sqrt(sum) + 1e-7f;
    }
out:
    mxc_mem_free(job.sums);
    mxc_mem_free(job.rows);
    return code;
}

enum mxc_code mxc_cpu_weights_pack(struct mxc_plan *plan, const struct mxc_plan_options *options,
                                   struct mxc_err *err) {
    struct packer p = {.plan = plan, .options = options};
    size_t n_workers = (size_t)mxc_team_size(plan->backend->team);
    enum mxc_code code;
    plan->packed = mxc_mem_aligned(MXC_CPU_PACK_ALIGN, plan->packed_bytes, true);
    plan->vectors = mxc_mem_aligned(MXC_ALIGN, plan->vectors_bytes, false);
    if (!plan->packed || !plan->vectors) {
        code = mxc_err_nomem(err);
        goto out;
    }
    if ((code = start(&p, err)) || (code = decode_vectors(plan, err)))
        goto out;
    for (int32_t i = 0; !code && i < p.n_matrices;)
        code = pack_window(&p, &i, err);
    for (int32_t i = 0; !code && i < plan->graph->n_weights; i++)
        if (plan->weights[i].columns)
            code = column_norms(plan, &plan->weights[i], err);
out:
    mxc_mem_free_aligned(p.scratch, p.scratch_bytes * n_workers);
    mxc_mem_free(p.units);
    mxc_mem_free(p.matrices);
    mxc_mem_free(p.errs);
    return code;
}
