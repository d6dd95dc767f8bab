/* ATTEND: a tower's attention. K (rotated) and V of some heads are packed into pages, those of a
 * component side by side from its first row on; then tiles of rows attend to the pages of their
 * component with the kernels of paged attention, chunk by chunk, and the result may go where q was.
 * Angles are made once for a run.
 * Invariant: a row's result depends on its component's rows and its place there, on nothing before
 * or behind: a picture packed with others gives the same bits as alone. */
#include "backend/cpu/cpu.h"

#include <math.h>
#include <string.h>

enum { PAGES_BYTES = 16 << 20, SPARE_PAGES = 64 };

/* One ATTEND as one worker sees it. */
struct job {
    struct mxc_cpu_worker *worker;
    const struct mxc_plan *plan;
    const struct mxc_tower *tower;
    const struct mxc_attend_attr *attr;
    const struct mxc_cpu_attend *what;
    const struct mxc_cpu_range *range;
    const struct mxc_cpu_component *components; /* [what->component0 ...] */
    const struct mxc_rope *rope;                /* NULL: none */
    const struct mxc_cpu_angles *angles;
    const int32_t *begin, *end;
    const float *qkv;
    float *out;
    size_t ld, ld_out, dim, page_bytes, head_bytes;
};

int32_t mxc_cpu_attend_pages(int32_t rows) {
    int32_t pages = (rows + MXC_ATTN_PAGE - 1) / MXC_ATTN_PAGE + SPARE_PAGES;
    return pages < rows ? pages : rows;
}

int32_t mxc_cpu_attend_heads(const struct mxc_plan *plan, const struct mxc_attend_attr *attr,
                             int32_t pages) {
    size_t head = mxc_page_bytes(plan->kv_type, attr->head_dim, attr->head_dim) * (size_t)pages;
    size_t n = head < PAGES_BYTES ? PAGES_BYTES / head : 1;
    return n < (size_t)attr->n_heads ? (int32_t)n : attr->n_heads;
}

static struct job make_job(struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op,
                           const struct mxc_cpu_attend *what) {
    const struct mxc_tower *t = worker->run->tower;
    const struct mxc_attend_attr *a = &op->node->u.attend;
    struct job job = {.worker = worker, .plan = t->plan, .tower = t, .attr = a, .what = what};
    int32_t rows = mxc_tower_rows(&t->input, t->plan->graph->ranges[a->range]);
    job.range = &t->ranges[a->range];
    job.components = job.range->components + what->component0;
    job.begin = t->input.range[a->range];
    job.end = job.begin + rows;
    job.dim = (size_t)a->head_dim;
    job.qkv = mxc_cpu_tower_value(t, op->source, 0, &job.ld);
    job.out = mxc_cpu_tower_value(t, op->out, 0, &job.ld_out);
    job.page_bytes = mxc_page_bytes(t->plan->kv_type, a->head_dim, a->head_dim);
    job.head_bytes = job.page_bytes * (size_t)job.range->pages;
    for (int32_t i = 0; a->rope != MXC_NONE && i < t->n_angles; i++)
        if (t->angles[i].rope == a->rope && t->angles[i].positions == a->positions) {
            job.rope = &t->plan->graph->ropes[a->rope];
            job.angles = &t->angles[i];
        }
    return job;
}

/* A head's q (part 0) or k (part 1) of a row, rotated, in scratch when it needs any. */
static const float *turned(const struct job *job, int32_t row, int32_t head, size_t part) {
    const float *x = job->qkv + (size_t)row * job->ld +
                     (part * (size_t)job->attr->n_heads + (size_t)head) * job->dim;
    if (!job->rope)
        return x;
    const struct mxc_kernels *kernels = job->plan->kernels;
    size_t at = (size_t)row * (size_t)(job->rope->dims / 2);
    float *to = job->worker->heads;
    memcpy(to, x, job->dim * sizeof *to);
    (job->rope->interleaved ? kernels->rope_pairs : kernels->rope_half)(
        to, job->angles->cos + at, job->angles->sin + at, job->rope->dims);
    return to;
}

/* ---- packing */

static void pack_page(const struct job *job, const struct mxc_cpu_component *c, int32_t head,
                      int32_t page) {
    int32_t row0 = c->row0 + (page - c->page0) * MXC_ATTN_PAGE;
    int32_t n = c->row0 + c->n_rows - row0;
    uint8_t *to = job->tower->pages + (size_t)(head - job->what->head0) * job->head_bytes +
                  (size_t)(page - job->components->page0) * job->page_bytes;
    for (int32_t slot = 0; slot < n && slot < MXC_ATTN_PAGE; slot++) {
        const float *k = turned(job, row0 + slot, head, 1);
        const float *v = job->qkv + (size_t)(row0 + slot) * job->ld +
                         (2 * (size_t)job->attr->n_heads + (size_t)head) * job->dim;
        job->plan->kernels->append[job->plan->kv_type](to, slot, k, v, job->attr->head_dim,
                                                       job->attr->head_dim);
    }
}

/* Workers split (page, head) pairs: a row's heads are read together. */
void mxc_cpu_attend_pack(struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op,
                         const struct mxc_cpu_attend *what) {
    struct job job = make_job(worker, op, what);
    const struct mxc_cpu_component *c = job.components;
    int32_t page0 = c->page0, n = job.range->components[what->component1].page0 - page0;
    int32_t begin, end;
    mxc_cpu_split(worker, n, 1, &begin, &end);
    for (int32_t page = page0 + begin; page < page0 + end; page++) {
        while (page >= c[1].page0)
            c++;
        for (int32_t head = what->head0; head < what->head0 + what->n_heads; head++)
            pack_page(&job, c, head, page);
    }
}

/* ---- attending */

static void attend_tile(const struct job *job, const struct mxc_cpu_row_tile *tile, int32_t head) {
    const struct mxc_kernels *kernels = job->plan->kernels;
    const struct mxc_cpu_component *c = &job->range->components[tile->component];
    enum mxc_kv_type type = job->plan->kv_type;
    struct mxc_attn_part *part = job->worker->part, *total = job->worker->total;
    int32_t begin[MXC_ATTN_COLUMNS], end[MXC_ATTN_COLUMNS];
    uint8_t *query = (uint8_t *)job->worker->query;
    struct mxc_attend attend = {.k_dim = job->attr->head_dim,
                                .v_dim = job->attr->head_dim,
                                .n_columns = tile->n_rows,
                                .q = query,
                                .pages = job->tower->pages +
                                         (size_t)(head - job->what->head0) * job->head_bytes,
                                .page_stride = job->page_bytes,
                                .table = job->tower->identity + (c->page0 - job->components->page0),
                                .begin = begin,
                                .end = end};
    for (int32_t i = 0; i < tile->n_rows; i++) {
        int32_t row = tile->row0 + i;
        begin[i] = job->begin[row] - c->row0;
        end[i] = job->end[row] - c->row0;
        kernels->prepare_q[type](query + (size_t)i * job->dim * (type == MXC_KV_F32 ? 4 : 2),
                                 turned(job, row, head, 0), job->attr->head_dim, job->attr->scale);
    }
    int32_t chunk0 = begin[0] / MXC_ATTN_CHUNK, chunk1 = (end[0] - 1) / MXC_ATTN_CHUNK;
    kernels->attend[type](&attend, chunk0 * MXC_ATTN_CHUNK, total);
    for (int32_t chunk = chunk0 + 1; chunk <= chunk1; chunk++) {
        kernels->attend[type](&attend, chunk * MXC_ATTN_CHUNK, part);
        kernels->attn_merge(total, part, false, attend.n_columns, attend.v_dim);
    }
    kernels->attn_finish(total, NULL,
                         job->out + (size_t)tile->row0 * job->ld_out + (size_t)head * job->dim,
                         job->ld_out, attend.n_columns, attend.v_dim);
}

/* Head by head, so that workers are at the same pages. */
void mxc_cpu_attend_items(struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op,
                          const struct mxc_cpu_attend *what) {
    struct job job = make_job(worker, op, what);
    int32_t tile0 = job.components->tile0;
    int32_t n_tiles = job.range->components[what->component1].tile0 - tile0;
    int32_t turn = 0, begin, end, n = what->item1 - what->item0;
    while (mxc_cpu_take(worker, op->ticket, n, worker->n > 1, &turn, &begin, &end))
        for (int32_t i = what->item0 + begin; i < what->item0 + end; i++) {
            int32_t tile = job.range->order[tile0 + i % n_tiles];
            attend_tile(&job, &job.range->tiles[tile], what->head0 + i / n_tiles);
        }
}

/* ---- angles */

static void angle_row(const struct mxc_cpu_rope *rope, const int32_t *positions, size_t rows,
                      size_t row, const struct mxc_cpu_angles *a) {
    size_t half = (size_t)rope->half;
    for (size_t i = 0; i < half; i++) {
        int32_t position = positions[rope->axis[i] * rows + row];
        double angle = (double)((float)position * rope->inv_freq[i]);
        a->cos[row * half + i] = (float)cos(angle) * rope->factor;
        a->sin[row * half + i] = (float)sin(angle) * rope->factor;
    }
}

static void angles_worker(void *arg, int id, int n_workers) {
    const struct mxc_tower *t = arg;
    for (int32_t i = 0; i < t->n_angles; i++) {
        const struct mxc_cpu_angles *a = &t->angles[i];
        const struct mxc_graph *g = t->plan->graph;
        size_t rows = (size_t)(t->input.n_rows[g->indices[a->positions].slot] /
                               g->indices[a->positions].divisor);
        size_t begin = rows * (size_t)id / (size_t)n_workers;
        size_t end = rows * (size_t)(id + 1) / (size_t)n_workers;
        for (size_t row = begin; row < end; row++)
            angle_row(&t->plan->ropes[a->rope], t->input.index[a->positions], rows, row, a);
    }
}

void mxc_cpu_tower_angles(struct mxc_tower *tower) {
    if (tower->n_angles)
        mxc_team_run(tower->plan->backend->team, angles_worker, tower);
}
