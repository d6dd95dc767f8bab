/* Ops that only towers have, row by row: LOOKUP, GATHER, MEAN_ROWS and CONCAT (decoders too).
 * In: a worker and an op on a tile of rows. Out: this worker's share of the rows.
 * The side inputs were checked when the run began (tower.c); they count rows of the whole input,
 * values begin at the tile. */
#include "backend/cpu/cpu.h"

#include <math.h>
#include <string.h>

/* First row of the tile and all rows, of a value. */
struct rows {
    size_t first, all;
};
static struct rows rows_of(const struct mxc_cpu_run *run, int32_t value) {
    struct mxc_extent extent = run->plan->graph->values[value].rows;
    return (struct rows){(size_t)(run->row0 / extent.divisor),
                         (size_t)mxc_tower_rows(&run->tower->input, extent)};
}

/* f of a LOOKUP. */
static float gate_of(const struct mxc_plan *plan, const struct mxc_node *node) {
    int32_t gate = node->weights[1];
    if (gate == MXC_NONE)
        return 1;
    float t = tanhf(plan->weights[gate].vector[0]);
    return node->u.lookup.complement ? 1 - t : t;
}

void mxc_cpu_op_lookup(struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op) {
    const struct mxc_cpu_run *run = worker->run;
    const struct mxc_plan *plan = run->plan;
    const struct mxc_tensor *table = plan->weights[op->node->weights[0]].slices[0].view->tensor;
    int32_t i = op->node->u.lookup.index, n = plan->graph->values[op->out].width, begin, end;
    const int32_t *index = run->tower->input.index[i];
    const float *factor = plan->graph->indices[i].weighted ? run->tower->input.factor[i] : NULL;
    struct rows rows = rows_of(run, op->out);
    float gate = gate_of(plan, op->node), *sum = worker->rows, *row = sum + plan->row_ld;
    size_t ld, ld_x;
    float *y = mxc_cpu_value(run, op->out, &ld);
    const float *x = mxc_cpu_value(run, op->source, &ld_x);
    mxc_cpu_split(worker, mxc_cpu_op_rows(run, op), 1, &begin, &end);
    for (size_t r = (size_t)begin; r < (size_t)end; r++) {
        bool first = true;
        for (size_t j = 0; j < (size_t)plan->graph->indices[i].terms; j++) {
            size_t at = j * rows.all + rows.first + r;
            if (index[at] < 0)
                continue;
            mxc_tensor_row(table, index[at], row);
            plan->kernels->weighted_add(sum, row, factor ? factor[at] : 1, first, n);
            first = false;
        }
        if (first) {
            memcpy(y + r * ld, x + r * ld_x, (size_t)n * sizeof *y);
            continue;
        }
        if (op->node->weights[1] != MXC_NONE)
            plan->kernels->weighted_add(sum, sum, gate, true, n);
        plan->kernels->add(y + r * ld, x + r * ld_x, sum, n);
    }
}

void mxc_cpu_op_gather(struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op) {
    const struct mxc_cpu_run *run = worker->run;
    const int32_t *index = run->tower->input.index[op->node->u.lookup.index];
    size_t ld, ld_x, bytes = (size_t)run->plan->graph->values[op->out].width * sizeof(float);
    float *y = mxc_cpu_value(run, op->out, &ld);
    const float *x = mxc_cpu_tower_value(run->tower, op->source, 0, &ld_x);
    size_t first = rows_of(run, op->out).first;
    int32_t begin, end;
    mxc_cpu_split(worker, mxc_cpu_op_rows(run, op), 1, &begin, &end);
    for (size_t r = (size_t)begin; r < (size_t)end; r++) {
        int32_t from = index[first + r];
        if (from < 0)
            memset(y + r * ld, 0, bytes);
        else
            memcpy(y + r * ld, x + (size_t)from * ld_x, bytes);
    }
}

void mxc_cpu_op_mean_rows(struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op) {
    const struct mxc_cpu_run *run = worker->run;
    const struct mxc_kernels *kernels = run->plan->kernels;
    size_t ld, ld_x, b = (size_t)op->node->u.merge.rows;
    int32_t n = run->plan->graph->values[op->out].width, begin, end;
    float *y = mxc_cpu_value(run, op->out, &ld);
    const float *x = mxc_cpu_value(run, op->source, &ld_x);
    mxc_cpu_split(worker, mxc_cpu_op_rows(run, op), 1, &begin, &end);
    for (size_t r = (size_t)begin; r < (size_t)end; r++) {
        float *to = y + r * ld;
        for (size_t i = 0; i < b; i++)
            kernels->weighted_add(to, x + (r * b + i) * ld_x, 1, !i, n);
        for (int32_t i = 0; i < n; i++)
            to[i] /= (float)b;
    }
}

void mxc_cpu_op_concat(struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op) {
    const struct mxc_cpu_run *run = worker->run;
    const struct mxc_node *node = op->node;
    const struct mxc_value *values = run->plan->graph->values;
    size_t ld, column = 0, n = (size_t)node->n_in;
    float *y = mxc_cpu_value(run, op->out, &ld);
    int32_t begin, end;
    mxc_cpu_split(worker, mxc_cpu_op_rows(run, op), 1, &begin, &end);
    for (size_t i = 0; i < n; i++) {
        size_t ld_x, width = (size_t)values[node->in[i]].width;
        const float *x = mxc_cpu_value(run, node->in[i], &ld_x);
        for (size_t r = (size_t)begin; r < (size_t)end; r++) {
            float *to = y + r * ld;
            const float *from = x + r * ld_x;
            for (size_t j = 0; node->u.concat.turns && j < width; j++)
                to[j * n + i] = from[j];
            if (!node->u.concat.turns)
                memcpy(to + column, from, width * sizeof *to);
        }
        column += width;
    }
}
