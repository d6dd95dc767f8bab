/* LINEAR: prepare the rows of the input, multiply with every part, finish with bias, scale and
 * residual; in front of it a norm or a pick of output rows, behind it a GLU, when the program took
 * them in. Few rows: every worker prepares all of them for itself, which costs less than a barrier.
 * Many: workers prepare rows [24 i, 24 j) into shared memory and meet. Then workers split strips.
 */
#include "backend/cpu/cpu.h"

#include <string.h>

/* One input row, picked and normalised. */
static void input_row(const struct mxc_cpu_run *run, const struct mxc_cpu_op *op, const float *x,
                      size_t ld, int32_t row, float *to) {
    size_t from = op->select ? (size_t)run->step->out_row[row] : (size_t)row;
    const float *source = x + from * ld;
    int32_t width = run->plan->graph->values[op->source].width;
    if (op->norm)
        run->plan->kernels->rms_norm(to, source, run->plan->weights[op->norm->weights[0]].vector,
                                     width, op->norm->u.norm.eps, op->norm->u.norm.offset);
    else
        memcpy(to, source, (size_t)width * sizeof *to);
}

/* Rows [row0, row1) of the input into the prepared activations of every form. */
static void prepare_rows(struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op,
                         struct mxc_activation *a, float *rows, size_t rows_ld, int32_t row0,
                         int32_t row1) {
    const struct mxc_cpu_run *run = worker->run;
    size_t ld;
    const float *x = mxc_cpu_value(run, op->source, &ld);
    if (op->norm || op->select) {
        for (int32_t row = row0; row < row1; row++)
            input_row(run, op, x, ld, row, rows + (size_t)row * rows_ld);
        x = rows;
        ld = rows_ld;
    }
    for (int f = 0; f < MXC_N_ACT_FORMS; f++)
        if (op->forms[f])
            run->plan->kernels->prepare[f](&a[f], x, ld, row0, row1);
}

static void prepare(struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op, int32_t m,
                    struct mxc_activation a[MXC_N_ACT_FORMS]) {
    const struct mxc_plan *plan = worker->run->plan;
    bool small = m <= MXC_CPU_SMALL_ROWS;
    for (int f = 0; f < MXC_N_ACT_FORMS; f++)
        a[f] = (struct mxc_activation){.form = (enum mxc_activation_form)f,
                                       .m = m,
                                       .k = plan->graph->values[op->source].width,
                                       .data = small ? worker->prepared[f] : plan->shared[f]};
    if (small) {
        prepare_rows(worker, op, a, worker->rows, (size_t)plan->row_ld, 0, m);
        return;
    }
    size_t ld = 0;
    float *rows = NULL;
    if (op->norm || op->select)
        rows = mxc_cpu_value(worker->run, op->node->in[0], &ld);
    int32_t begin, end;
    mxc_cpu_split(worker, m, MXC_PREPARE_TILE, &begin, &end);
    for (int32_t row = begin; row < end; row += MXC_PREPARE_TILE) {
        int32_t row1 = end - row > MXC_PREPARE_TILE ? row + MXC_PREPARE_TILE : end;
        prepare_rows(worker, op, a, rows, ld, row, row1);
    }
    mxc_cpu_barrier(worker);
}

/* Strips [strips[0], strips[1]) of part i; out is where the first of them begins. */
static void multiply(const struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op, int i,
                     const struct mxc_activation *a, const int32_t strips[2], float *out, size_t ld,
                     const float *residual) {
    const struct mxc_plan *plan = worker->run->plan;
    struct mxc_packed w = plan->weights[op->node->weights[2 * i]].packed;
    int32_t bias = op->node->weights[2 * i + 1], column = strips[0] * MXC_STRIP;
    struct mxc_epilogue epilogue = {.bias = bias == MXC_NONE ? NULL
                                                             : plan->weights[bias].vector + column,
                                    .scale = op->node->u.linear.scale,
                                    .residual = residual};
    bool plain = bias == MXC_NONE && epilogue.scale == 1.0f && !residual;
    w.data += (size_t)strips[0] * w.strip_bytes;
    w.n -= column;
    plan->kernels->matmul[w.layout](&w, &a[mxc_packed_form(&w)], 0, strips[1] - strips[0], out, ld,
                                    plain ? NULL : &epilogue);
}

/* Strips that a worker takes at a time; 0: a fixed share. Taking turns evens out cores that are
 * slower or disturbed, and pays when a turn is long against the counter's cost. */
static int32_t turn_strips(const struct mxc_cpu_worker *worker, int32_t m, int32_t n,
                           size_t strip_bytes) {
    enum { TURNS = 8, LONG_BYTES = 2 << 20 };
    if (worker->n == 1 ||
        (m <= MXC_CPU_SMALL_ROWS && (size_t)n * strip_bytes < LONG_BYTES * (size_t)worker->n))
        return 0;
    int32_t strips = n / (worker->n * TURNS);
    return strips ? strips : 1;
}

/* Strips [begin, end), counted over all parts. */
static void multiply_strips(struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op,
                            const struct mxc_activation *a, int32_t begin, int32_t end) {
    const struct mxc_plan *plan = worker->run->plan;
    size_t ld, ld_residual, column = 0;
    float *out = mxc_cpu_value(worker->run, op->out, &ld);
    const float *residual = NULL;
    if (op->residual != MXC_NONE)
        residual = mxc_cpu_value(worker->run, op->residual, &ld_residual);
    for (int32_t i = 0, first = 0; i < op->node->u.linear.n_parts && first < end; i++) {
        const struct mxc_packed *w = &plan->weights[op->node->weights[2 * i]].packed;
        int32_t n = mxc_packed_strips(w);
        int32_t strips[2] = {begin > first ? begin - first : 0, end - first < n ? end - first : n};
        if (strips[0] < strips[1]) {
            size_t at = column + (size_t)strips[0] * MXC_STRIP;
            multiply(worker, op, i, a, strips, out + at, ld, residual ? residual + at : NULL);
        }
        first += n;
        column += (size_t)w->n;
    }
}

static void multiply_parts(struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op, int32_t m,
                           const struct mxc_activation *a) {
    const struct mxc_plan *plan = worker->run->plan;
    int32_t total = 0, turn = 0, begin, end;
    for (int i = 0; i < op->node->u.linear.n_parts; i++)
        total += mxc_packed_strips(&plan->weights[op->node->weights[2 * i]].packed);
    size_t bytes = plan->weights[op->node->weights[0]].packed.strip_bytes;
    int32_t strips = turn_strips(worker, m, total, bytes);
    while (mxc_cpu_take(worker, op, total, strips, &turn, &begin, &end))
        multiply_strips(worker, op, a, begin, end);
}

/* Gate and up strips side by side in a buffer that stays in cache, combined at once. */
static void glu_strips(struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op, int32_t m,
                       const struct mxc_activation *a, const int32_t strips[2]) {
    const struct mxc_plan *plan = worker->run->plan;
    int32_t column = strips[0] * MXC_STRIP, last = strips[1] * MXC_STRIP;
    int32_t n = plan->weights[op->node->weights[0]].packed.n;
    size_t ld, half = (size_t)(last - column), both = 2 * half;
    float *out = mxc_cpu_value(worker->run, op->out, &ld) + column;
    float *g = worker->glu, *u = worker->glu + half;
    multiply(worker, op, 0, a, strips, g, both, NULL);
    multiply(worker, op, 1, a, strips, u, both, NULL);
    n = (last < n ? last : n) - column;
    for (size_t row = 0; row < (size_t)m; row++)
        plan->kernels->glu[op->act](out + row * ld, g + row * both, u + row * both, n);
}

static void multiply_glu(struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op, int32_t m,
                         const struct mxc_activation *a) {
    const struct mxc_plan *plan = worker->run->plan;
    const struct mxc_packed *gate = &plan->weights[op->node->weights[0]].packed;
    int32_t most = (int32_t)(plan->glu_floats / ((size_t)m * 2 * MXC_STRIP));
    int32_t total = mxc_packed_strips(gate), turn = 0, begin, end;
    int32_t chunk = turn_strips(worker, m, total, 2 * gate->strip_bytes);
    while (mxc_cpu_take(worker, op, total, chunk, &turn, &begin, &end))
        for (int32_t s = begin; s < end; s += most)
            glu_strips(worker, op, m, a, (int32_t[2]){s, end - s > most ? s + most : end});
}

void mxc_cpu_op_linear(struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op) {
    int32_t m = mxc_cpu_op_rows(worker->run, op);
    struct mxc_activation a[MXC_N_ACT_FORMS];
    if (!m)
        return;
    prepare(worker, op, m, a);
    if (op->glu)
        multiply_glu(worker, op, m, a);
    else
        multiply_parts(worker, op, m, a);
}
