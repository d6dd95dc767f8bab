/* Ops that go number by number or row by row: norms, GLU, ACT, SOFTCAP, GATE, UNIT_COLUMNS, ADD,
 * ADD_POSITION, TANH_SCALE, ROW_MASK, ADD_LEVEL, SELECT_OUT and copies.
 * In: a worker and an op. Out: this worker's share of the op's rows, or of their columns where a
 * number depends on its own column only (a row of logits is wide and alone).
 * Norms and picks run by themselves only where the program did not take them into a LINEAR.
 * Invariant: workers write disjoint parts; a row's result never depends on how rows are split. */
#include "backend/cpu/cpu.h"

#include "backend/check.h"

#include <math.h>
#include <string.h>

void mxc_cpu_norm_row(const struct mxc_plan *plan, const struct mxc_node *norm, float *y,
                      const float *x, int32_t width) {
    const struct mxc_kernels *kernels = plan->kernels;
    const float *w = plan->weights[norm->weights[0]].vector;
    if (norm->op == MXC_OP_LAYER_NORM) {
        int32_t b = norm->weights[1];
        kernels->layer_norm(y, x, w, b == MXC_NONE ? NULL : plan->weights[b].vector, width,
                            norm->u.norm.eps);
        return;
    }
    if (norm->u.norm.groups > 1) {
        int32_t n = width / norm->u.norm.groups;
        for (int32_t at = 0; at < width; at += n)
            kernels->rms_norm(y + at, x + at, w, n, norm->u.norm.eps, norm->u.norm.offset);
        return;
    }
    const struct mxc_weight *weight = &plan->graph->weights[norm->weights[0]];
    int64_t have = weight->n_dims > 1 ? weight->shape[0] * weight->shape[1] : weight->shape[0];
    int32_t n = have < width ? (int32_t)have : width;
    kernels->rms_norm(y, x, w, n, norm->u.norm.eps, norm->u.norm.offset);
    if (n < width && y != x)
        memcpy(y + n, x + n, (size_t)(width - n) * sizeof *y);
}

/* What an op reads for one row. */
struct row_job {
    const struct mxc_cpu_run *run;
    const struct mxc_cpu_op *op;
    float *y;
    const float *x, *x2;
    int32_t row, width; /* of the output */
};

static void position_row(const struct row_job *job) {
    const struct mxc_cpu_run *run = job->run;
    const struct mxc_node *node = job->op->node;
    int32_t at = job->op->rows_out ? run->step->out_row[job->row] : job->row;
    int32_t position = node->u.position.fixed ? 0 : run->step->positions[at];
    mxc_tensor_row(run->plan->weights[node->weights[0]].slices[0].view->tensor,
                   position + node->u.position.offset, job->y);
    run->plan->kernels->add(job->y, job->x, job->y, job->width);
}

/* The row of the step that an op's row is. */
static int32_t step_row(const struct row_job *job) {
    return job->op->rows_out ? job->run->step->out_row[job->row] : job->row;
}

/* y = tanh(w) * x (+ x2) */
static void tanh_scale(const struct row_job *job, int32_t c0, int32_t n) {
    const struct mxc_plan *plan = job->run->plan;
    float *y = job->y + c0, t = tanhf(plan->weights[job->op->node->weights[0]].vector[0]);
    plan->kernels->weighted_add(y, job->x + c0, t, true, n);
    if (job->x2)
        plan->kernels->add(y, y, job->x2 + c0, n);
}

static void row_mask(const struct row_job *job, int32_t c0, int32_t n) {
    int32_t begin, end;
    if (mxc_step_cross_range(job->run->step, step_row(job), &begin, &end))
        memcpy(job->y + c0, job->x + c0, (size_t)n * sizeof *job->y);
    else
        memset(job->y + c0, 0, (size_t)n * sizeof *job->y);
}

static void add_level(const struct row_job *job, int32_t c0, int32_t n) {
    const float *splice = mxc_step_splice(job->run->step, step_row(job));
    if (!splice) {
        memcpy(job->y + c0, job->x + c0, (size_t)n * sizeof *job->y);
        return;
    }
    splice += (size_t)(1 + job->op->node->u.level.level) * (size_t)job->width;
    job->run->plan->kernels->add(job->y + c0, job->x + c0, splice + c0, n);
}

static void unit_columns(float *y, const float *x, const float *norms, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        y[i] = x[i] / norms[i];
}

/* Columns [c0, c1); norms and positions: all of them. */
static void do_columns(const struct row_job *job, int32_t c0, int32_t c1) {
    const struct mxc_plan *plan = job->run->plan;
    const struct mxc_kernels *kernels = plan->kernels;
    const struct mxc_node *node = job->op->node;
    float *y = job->y + c0;
    const float *x = job->x + c0;
    int32_t n = c1 - c0;
    switch (job->op->kind) {
    case MXC_CPU_NORM:
        mxc_cpu_norm_row(plan, node, y, x, n);
        break;
    case MXC_CPU_ADD_POSITION:
        position_row(job);
        break;
    case MXC_CPU_GLU:
        kernels->glu[node->u.glu.act](y, x, x + job->width, n);
        break;
    case MXC_CPU_ACT:
        kernels->act[node->u.glu.act](y, x, n);
        break;
    case MXC_CPU_SOFTCAP:
        kernels->softcap(y, x, node->u.softcap.cap, n);
        break;
    case MXC_CPU_GATE:
        kernels->gate(y, x, job->x2[0], n);
        break;
    case MXC_CPU_UNIT_COLUMNS:
        unit_columns(y, x, plan->weights[node->weights[0]].norms + c0, n);
        break;
    case MXC_CPU_ADD:
        kernels->add(y, x, job->x2 + c0, n);
        break;
    case MXC_CPU_TANH_SCALE:
        tanh_scale(job, c0, n);
        break;
    case MXC_CPU_ROW_MASK:
        row_mask(job, c0, n);
        break;
    case MXC_CPU_ADD_LEVEL:
        add_level(job, c0, n);
        break;
    default: /* SELECT, COPY */
        memcpy(y, x, (size_t)n * sizeof *y);
    }
}

void mxc_cpu_op_rows_only(struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op) {
    enum { PIECE = 1024 }; /* columns, whole lines */
    const struct mxc_cpu_run *run = worker->run;
    size_t ld_out, ld, ld2 = 0;
    int32_t rows = mxc_cpu_op_rows(run, op), width = run->plan->graph->values[op->out].width;
    if (!rows)
        return;
    float *out = mxc_cpu_value(run, op->out, &ld_out);
    const float *x = mxc_cpu_value(run, op->source, &ld), *x2 = NULL;
    if (op->residual != MXC_NONE)
        x2 = mxc_cpu_value(run, op->residual, &ld2);
    bool whole = op->kind == MXC_CPU_NORM || op->kind == MXC_CPU_ADD_POSITION || rows >= worker->n;
    int32_t pieces = whole ? 1 : (width + PIECE - 1) / PIECE, begin, end;
    mxc_cpu_split(worker, rows * pieces, 1, &begin, &end);
    for (int32_t i = begin; i < end; i++) {
        size_t r = (size_t)(i / pieces);
        size_t from = op->kind == MXC_CPU_SELECT ? (size_t)run->step->out_row[r] : r;
        struct row_job job = {.run = run,
                              .op = op,
                              .y = out + r * ld_out,
                              .x = x + from * ld,
                              .x2 = x2 ? x2 + r * ld2 : NULL,
                              .row = i / pieces,
                              .width = width};
        int32_t c0 = i % pieces * PIECE;
        do_columns(&job, c0, whole || width - c0 < PIECE ? width : c0 + PIECE);
    }
}

/* In place: output rows ascend, so row i is read at or behind i. Workers split columns. */
void mxc_cpu_op_compact(struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op) {
    const struct mxc_cpu_run *run = worker->run;
    size_t ld;
    float *x = mxc_cpu_value(run, op->out, &ld);
    int32_t begin, end;
    mxc_cpu_split(worker, run->plan->graph->values[op->out].width, MXC_CPU_LINE_FLOATS, &begin,
                  &end);
    for (int32_t i = 0; i < run->step->n_out; i++) {
        int32_t from = run->step->out_row[i];
        if (from != i)
            memcpy(x + (size_t)i * ld + begin, x + (size_t)from * ld + begin,
                   (size_t)(end - begin) * sizeof *x);
    }
}
