/* LINEAR: prepare the rows of the input, multiply with every part, finish with bias, scale and
 * residual; in front of it a norm or a pick of output rows, behind it a GLU, an activation or a
 * soft cap, when the program took them in. Few rows: every worker prepares all of them for itself,
 * which costs less than a barrier. Many: workers prepare rows [24 i, 24 j) into shared memory and
 * meet. Then workers split strips.
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
        mxc_cpu_norm_row(run->plan, op->norm, to, source, width);
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

/* Part i of a LINEAR, and its bias. Two halves of one part in front of a GLU are two parts. */
static struct mxc_packed get_part(const struct mxc_plan *plan, const struct mxc_cpu_op *op, int i,
                                  const float **bias) {
    bool halves = op->glu && op->node->u.linear.n_parts == 1;
    int32_t b = op->node->weights[halves ? 1 : 2 * i + 1];
    const struct mxc_packed *w =
        &plan->weights[op->node->weights[halves ? 0 : 2 * i]].slices->packed;
    *bias = b == MXC_NONE ? NULL : plan->weights[b].vector;
    if (!halves)
        return *w;
    int32_t half = w->n / 2 / MXC_STRIP; /* the program made sure that there is no rest */
    if (i && *bias)
        *bias += w->n / 2;
    return i ? mxc_cpu_strips(w, half, 2 * half) : mxc_cpu_strips(w, 0, half);
}

/* Strips [strips[0], strips[1]) of part i; out is where the first of them begins. */
static void multiply(const struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op, int i,
                     const struct mxc_activation *a, const int32_t strips[2], float *out, size_t ld,
                     const float *residual) {
    const struct mxc_plan *plan = worker->run->plan;
    const float *bias;
    struct mxc_packed all = get_part(plan, op, i, &bias);
    struct mxc_packed w = mxc_cpu_strips(&all, strips[0], strips[1]);
    struct mxc_epilogue epilogue = {.bias = bias ? bias + strips[0] * MXC_STRIP : NULL,
                                    .scale = op->node->u.linear.scale,
                                    .residual = residual};
    bool plain = !bias && epilogue.scale == 1.0f && !residual;
    plan->kernels->matmul[w.layout](&w, &a[mxc_packed_form(&w)], 0, strips[1] - strips[0], out, ld,
                                    plain ? NULL : &epilogue);
}

int32_t mxc_cpu_turn(const struct mxc_cpu_worker *worker, int32_t m, int32_t n_units,
                     size_t bytes) {
    enum { TURNS = 8, LONG_BYTES = 2 << 20 };
    if (worker->n == 1 || (m <= MXC_CPU_SMALL_ROWS && bytes < LONG_BYTES * (size_t)worker->n))
        return 0;
    int32_t turn = n_units / (worker->n * TURNS);
    return turn ? turn : 1;
}

/* What the program took in behind the LINEAR, on finished columns [0, n) of all rows. */
static void finish_columns(const struct mxc_plan *plan, const struct mxc_node *after, int32_t m,
                           float *out, size_t ld, int32_t n) {
    for (size_t row = 0; row < (size_t)m; row++) {
        float *y = out + row * ld;
        if (after->op == MXC_OP_SOFTCAP)
            plan->kernels->softcap(y, y, after->u.softcap.cap, n);
        else
            plan->kernels->act[after->u.glu.act](y, y, n);
    }
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
        const struct mxc_packed *w = &plan->weights[op->node->weights[2 * i]].slices->packed;
        int32_t n = mxc_packed_strips(w);
        int32_t strips[2] = {begin > first ? begin - first : 0, end - first < n ? end - first : n};
        if (strips[0] < strips[1]) {
            size_t at = column + (size_t)strips[0] * MXC_STRIP;
            int32_t last = strips[1] * MXC_STRIP < w->n ? strips[1] * MXC_STRIP : w->n;
            multiply(worker, op, i, a, strips, out + at, ld, residual ? residual + at : NULL);
            if (op->after)
                finish_columns(plan, op->after, a[mxc_packed_form(w)].m, out + at, ld,
                               last - strips[0] * MXC_STRIP);
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
        total += mxc_packed_strips(&plan->weights[op->node->weights[2 * i]].slices->packed);
    size_t bytes = plan->weights[op->node->weights[0]].slices->packed.strip_bytes;
    int32_t strips = mxc_cpu_turn(worker, m, total, (size_t)total * bytes);
    while (mxc_cpu_take(worker, op->ticket, total, strips, &turn, &begin, &end))
        multiply_strips(worker, op, a, begin, end);
}

/* Gate and up strips side by side in a buffer that stays in cache, combined at once. */
static void glu_strips(struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op, int32_t m,
                       const struct mxc_activation *a, const int32_t strips[2]) {
    const struct mxc_plan *plan = worker->run->plan;
    int32_t column = strips[0] * MXC_STRIP, last = strips[1] * MXC_STRIP;
    const float *unused;
    int32_t n = get_part(plan, op, 0, &unused).n;
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
    const float *unused;
    struct mxc_packed gate = get_part(plan, op, 0, &unused);
    int32_t most = (int32_t)(plan->glu_floats / ((size_t)m * 2 * MXC_STRIP));
    int32_t total = mxc_packed_strips(&gate), turn = 0, begin, end;
    int32_t chunk = mxc_cpu_turn(worker, m, total, 2 * gate.strip_bytes * (size_t)total);
    while (mxc_cpu_take(worker, op->ticket, total, chunk, &turn, &begin, &end))
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
