/* Ops that go row by row: RMS_NORM, GLU, ADD, SELECT_OUT and copies.
 * In: a worker and an op. Out: this worker's share of the op's rows, or of the columns for the
 * picking of output rows in place.
 * They run by themselves only where the program did not take them into a LINEAR, so this is not a
 * hot path.
 * Invariant: workers write disjoint parts; a row's result never depends on how rows are split. */
#include "backend/cpu/cpu.h"

#include <string.h>

static void one_row(const struct mxc_cpu_run *run, const struct mxc_cpu_op *op, float *y,
                    const float *x, const float *x2) {
    const struct mxc_kernels *kernels = run->plan->kernels;
    int32_t width = run->plan->graph->values[op->out].width;
    switch (op->kind) {
    case MXC_CPU_NORM:
        kernels->rms_norm(y, x, run->plan->weights[op->node->weights[0]].vector, width,
                          op->node->u.norm.eps, op->node->u.norm.offset);
        break;
    case MXC_CPU_GLU:
        kernels->glu[op->node->u.glu.act](y, x, x + width, width);
        break;
    case MXC_CPU_ADD:
        kernels->add(y, x, x2, width);
        break;
    default: /* SELECT, COPY */
        memcpy(y, x, (size_t)width * sizeof *y);
    }
}

void mxc_cpu_op_rows_only(struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op) {
    const struct mxc_cpu_run *run = worker->run;
    size_t ld_out, ld, ld2 = 0;
    if (!mxc_cpu_op_rows(run, op))
        return;
    float *out = mxc_cpu_value(run, op->out, &ld_out);
    const float *x = mxc_cpu_value(run, op->source, &ld), *x2 = NULL;
    if (op->residual != MXC_NONE)
        x2 = mxc_cpu_value(run, op->residual, &ld2);
    int32_t begin, end;
    mxc_cpu_split(worker, mxc_cpu_op_rows(run, op), 1, &begin, &end);
    for (int32_t row = begin; row < end; row++) {
        size_t r = (size_t)row;
        size_t from = op->kind == MXC_CPU_SELECT ? (size_t)run->step->out_row[row] : r;
        one_row(run, op, out + r * ld_out, x + from * ld, x2 ? x2 + r * ld2 : NULL);
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
