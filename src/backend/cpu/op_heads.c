/* HEADS_LINEAR: every head's first numbers times a matrix of its own; the rest of the head passes.
 * In: a worker and an op. Out: this worker's heads and strips of all rows.
 * A unit is some strips of one head, and with many rows also one tile of rows; the worker prepares
 * the rows of a head when it comes to it, so there is nothing shared and no barrier. */
#include "backend/cpu/cpu.h"

#include <string.h>

struct job {
    struct mxc_cpu_worker *worker;
    const struct mxc_cpu_op *op;
    const struct mxc_cpu_weight *weight;
    const float *x;
    float *y;
    size_t ld_x, ld_y;
    size_t in, out, rest; /* numbers of a head: multiplied, made, passed on */
    int32_t m, strips;    /* rows; strips of one head */
    struct mxc_activation a;
    int32_t head, row0; /* what a holds; -1: nothing */
};

static void prepare(struct job *job, int32_t head, int32_t row0, int32_t n) {
    enum mxc_activation_form form = mxc_packed_form(&job->weight->slices[0].packed);
    if (job->head == head && job->row0 == row0)
        return;
    job->head = head;
    job->row0 = row0;
    job->a = (struct mxc_activation){
        .form = form, .m = n, .k = (int32_t)job->in, .data = job->worker->prepared[form]};
    const float *x = job->x + (size_t)row0 * job->ld_x + (size_t)head * (job->in + job->rest);
    job->worker->run->plan->kernels->prepare[form](&job->a, x, job->ld_x, 0, n);
}

/* Strips [s0, s1) of a head for rows [row0, row0 + n); whoever has strip 0 passes on the rest. */
static void multiply(struct job *job, int32_t head, int32_t s0, int32_t s1, int32_t row0,
                     int32_t n) {
    struct mxc_packed w = mxc_cpu_strips(&job->weight->slices[head].packed, s0, s1);
    float *y = job->y + (size_t)row0 * job->ld_y + (size_t)head * (job->out + job->rest);
    const float *x =
        job->x + (size_t)row0 * job->ld_x + (size_t)head * (job->in + job->rest) + job->in;
    prepare(job, head, row0, n);
    job->worker->run->plan->kernels->matmul[w.layout](&w, &job->a, 0, s1 - s0,
                                                      y + (size_t)s0 * MXC_STRIP, job->ld_y, NULL);
    for (size_t i = 0; s0 == 0 && job->rest && i < (size_t)n; i++)
        memcpy(y + i * job->ld_y + job->out, x + i * job->ld_x, job->rest * sizeof *y);
}

/* Few rows: units are (head, strip), and a run of them ends with its head. */
static void few_rows(struct job *job) {
    int32_t units = job->strips * job->op->node->u.heads.n_heads, begin, end;
    mxc_cpu_split(job->worker, units, 1, &begin, &end);
    for (int32_t u = begin, next; u < end; u = next) {
        int32_t head = u / job->strips;
        next = (head + 1) * job->strips < end ? (head + 1) * job->strips : end;
        multiply(job, head, u - head * job->strips, next - head * job->strips, 0, job->m);
    }
}

/* Many: units are (head, tile), whole heads at a time. */
static void many_rows(struct job *job) {
    enum { TILE = MXC_CPU_SMALL_ROWS };
    int32_t tiles = (job->m + TILE - 1) / TILE, begin, end;
    mxc_cpu_split(job->worker, tiles * job->op->node->u.heads.n_heads, 1, &begin, &end);
    for (int32_t u = begin; u < end; u++) {
        int32_t row0 = u % tiles * TILE;
        multiply(job, u / tiles, 0, job->strips, row0, job->m - row0 < TILE ? job->m - row0 : TILE);
    }
}

void mxc_cpu_op_heads(struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op) {
    const struct mxc_cpu_run *run = worker->run;
    const struct mxc_cpu_weight *weight = &run->plan->weights[op->node->weights[0]];
    const struct mxc_packed *packed = &weight->slices[0].packed;
    size_t heads = (size_t)op->node->u.heads.n_heads;
    struct job job = {.worker = worker,
                      .op = op,
                      .weight = weight,
                      .in = (size_t)packed->k,
                      .out = (size_t)packed->n,
                      .m = mxc_cpu_op_rows(run, op),
                      .strips = mxc_packed_strips(packed),
                      .head = -1};
    job.rest = (size_t)run->plan->graph->values[op->source].width / heads - job.in;
    job.x = mxc_cpu_value(run, op->source, &job.ld_x);
    job.y = mxc_cpu_value(run, op->out, &job.ld_y);
    if (job.m > MXC_CPU_SMALL_ROWS)
        many_rows(&job);
    else if (job.m)
        few_rows(&job);
}
