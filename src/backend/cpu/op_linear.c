/* LINEAR: prepare the rows of the input, multiply with every part, finish with bias, scale and
 * residual; in front of it a norm or a pick of output rows, behind it a GLU, an activation or a
 * soft cap, when the program took them in. Few rows: every worker prepares all of them for itself,
 * which costs less than a barrier, and workers split strips. Some: workers prepare rows [24 i, 24
 * j) into shared memory, meet, and split strips. Many: workers split rows and do everything for
 * them, so that numbers stay in the cache of the core that made them (lines that the other core has
 * written cost more than the arithmetic on them), and the activations of a strip fit it. */
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

/* Rows [row0, row1) of the input into the prepared activations of every form, whose row 0 is row
 * `first` of the input. */
static void prepare_rows(struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op,
                         struct mxc_activation *a, float *rows, size_t rows_ld, int32_t first,
                         int32_t row0, int32_t row1) {
    const struct mxc_cpu_run *run = worker->run;
    size_t ld;
    const float *x = mxc_cpu_value(run, op->source, &ld);
    if (op->norm || op->select) {
        for (int32_t row = row0; row < row1; row++)
            input_row(run, op, x, ld, row, rows + (size_t)row * rows_ld);
        x = rows;
        ld = rows_ld;
    }
    x += (size_t)first * ld;
    for (int f = 0; f < MXC_N_ACT_FORMS; f++)
        if (op->forms[f])
            run->plan->kernels->prepare[f](&a[f], x, ld, row0 - first, row1 - first);
}

/* Rows [begin, end) in batches, each normalised and prepared while it is in the first cache. */
static void prepare_batches(struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op,
                            struct mxc_activation *a, int32_t first, int32_t begin, int32_t end) {
    size_t ld = 0;
    float *rows = NULL;
    if (op->norm || op->select)
        rows = mxc_cpu_value(worker->run, op->node->in[0], &ld);
    for (int32_t row = begin; row < end; row += MXC_PREPARE_TILE) {
        int32_t row1 = end - row > MXC_PREPARE_TILE ? row + MXC_PREPARE_TILE : end;
        prepare_rows(worker, op, a, rows, ld, first, row, row1);
    }
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
        prepare_rows(worker, op, a, worker->rows, (size_t)plan->row_ld, 0, 0, m);
        return;
    }
    int32_t begin, end;
    mxc_cpu_split(worker, m, MXC_PREPARE_TILE, &begin, &end);
    prepare_batches(worker, op, a, 0, begin, end);
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

/* Rows [row0, row0 + m) of the output: a holds their prepared inputs. */
struct job {
    struct mxc_cpu_worker *worker;
    const struct mxc_cpu_op *op;
    int32_t row0, m;
    struct mxc_activation a[MXC_N_ACT_FORMS];
};

/* Strips [begin, end); what is read after them, NULL: what stands behind them. */
struct strips {
    int32_t begin, end;
    const uint8_t *next;
};

/* Strips of part i; out is where the first of them begins. */
static void multiply(const struct job *job, int i, struct strips strips, float *out, size_t ld,
                     const float *residual) {
    const struct mxc_plan *plan = job->worker->run->plan;
    const float *bias;
    struct mxc_packed all = get_part(plan, job->op, i, &bias);
    struct mxc_packed w = mxc_cpu_strips(&all, strips.begin, strips.end);
    struct mxc_epilogue epilogue = {.bias = bias ? bias + strips.begin * MXC_STRIP : NULL,
                                    .scale = job->op->node->u.linear.scale,
                                    .residual = residual};
    bool plain = !bias && epilogue.scale == 1.0f && !residual;
    w.next = strips.next;
    plan->kernels->matmul[w.layout](&w, &job->a[mxc_packed_form(&w)], 0, strips.end - strips.begin,
                                    out, ld, plain ? NULL : &epilogue);
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
static void finish_columns(const struct job *job, float *out, size_t ld, int32_t n) {
    const struct mxc_plan *plan = job->worker->run->plan;
    const struct mxc_node *after = job->op->after;
    for (size_t row = 0; row < (size_t)job->m; row++) {
        float *y = out + row * ld;
        if (after->op == MXC_OP_SOFTCAP)
            plan->kernels->softcap(y, y, after->u.softcap.cap, n);
        else
            plan->kernels->act[after->u.glu.act](y, y, n);
    }
}

/* Strips of part i, and what follows the LINEAR: as many strips at a time as stay in cache. */
static void finished_strips(const struct job *job, int i, const struct mxc_packed *w,
                            struct strips all, float *out, size_t ld, const float *residual) {
    int32_t most = (int32_t)(job->worker->run->plan->glu_floats / ((size_t)job->m * MXC_STRIP));
    for (int32_t s = all.begin; s < all.end; s += most) {
        bool last = all.end - s <= most;
        struct strips some = {.begin = s,
                              .end = last ? all.end : s + most,
                              .next =
                                  last ? all.next : w->data + (size_t)(s + most) * w->strip_bytes};
        size_t at = (size_t)(s - all.begin) * MXC_STRIP;
        int32_t end = some.end * MXC_STRIP < w->n ? some.end * MXC_STRIP : w->n;
        multiply(job, i, some, out + at, ld, residual ? residual + at : NULL);
        finish_columns(job, out + at, ld, end - s * MXC_STRIP);
    }
}

/* Strips counted over all parts. */
static void part_strips(const struct job *job, struct strips all) {
    const struct mxc_plan *plan = job->worker->run->plan;
    const struct mxc_cpu_op *op = job->op;
    size_t ld, ld_residual, column = 0;
    float *out = mxc_cpu_value(job->worker->run, op->out, &ld) + (size_t)job->row0 * ld;
    const float *residual = NULL;
    if (op->residual != MXC_NONE)
        residual =
            mxc_cpu_value(job->worker->run, op->residual, &ld_residual) + (size_t)job->row0 * ld;
    for (int32_t i = 0, first = 0; i < op->node->u.linear.n_parts && first < all.end; i++) {
        const struct mxc_packed *w = &plan->weights[op->node->weights[2 * i]].slices->packed;
        int32_t n = mxc_packed_strips(w), left = all.end - first;
        struct strips s = {.begin = all.begin > first ? all.begin - first : 0,
                           .end = left < n ? left : n,
                           .next = left <= n ? all.next : NULL};
        if (s.begin < s.end) {
            size_t at = column + (size_t)s.begin * MXC_STRIP;
            const float *added = residual ? residual + at : NULL;
            if (op->after)
                finished_strips(job, i, w, s, out + at, ld, added);
            else
                multiply(job, i, s, out + at, ld, added);
        }
        first += n;
        column += (size_t)w->n;
    }
}

/* Gate and up strips side by side in a buffer that stays in cache, combined at once. */
static void glu_piece(const struct job *job, struct strips strips) {
    const struct mxc_plan *plan = job->worker->run->plan;
    const struct mxc_cpu_op *op = job->op;
    int32_t column = strips.begin * MXC_STRIP, last = strips.end * MXC_STRIP;
    const float *unused;
    struct mxc_packed up = get_part(plan, op, 1, &unused);
    size_t ld, half = (size_t)(last - column), both = 2 * half;
    float *out = mxc_cpu_value(job->worker->run, op->out, &ld) + (size_t)job->row0 * ld + column;
    float *g = job->worker->glu, *u = job->worker->glu + half;
    struct strips gate = strips;
    gate.next = up.data + (size_t)strips.begin * up.strip_bytes;
    multiply(job, 0, gate, g, both, NULL);
    multiply(job, 1, strips, u, both, NULL);
    int32_t n = (last < up.n ? last : up.n) - column;
    for (size_t row = 0; row < (size_t)job->m; row++)
        plan->kernels->glu[op->act](out + row * ld, g + row * both, u + row * both, n);
}

/* As many strips at a time as the buffer holds. */
static void glu_strips(const struct job *job, struct strips all) {
    const struct mxc_plan *plan = job->worker->run->plan;
    const float *unused;
    struct mxc_packed gate = get_part(plan, job->op, 0, &unused);
    int32_t most = (int32_t)(plan->glu_floats / ((size_t)job->m * 2 * MXC_STRIP));
    for (int32_t s = all.begin; s < all.end; s += most) {
        bool last = all.end - s <= most;
        glu_piece(job,
                  (struct strips){
                      .begin = s,
                      .end = last ? all.end : s + most,
                      .next = last ? all.next : gate.data + (size_t)(s + most) * gate.strip_bytes});
    }
}

/* Strips of a LINEAR that workers share out: of all parts, or of a GLU's gate. */
static int32_t shared_strips(const struct mxc_plan *plan, const struct mxc_cpu_op *op) {
    const float *unused;
    struct mxc_packed gate;
    int32_t total = 0;
    if (op->glu) {
        gate = get_part(plan, op, 0, &unused);
        return mxc_packed_strips(&gate);
    }
    for (int i = 0; i < op->node->u.linear.n_parts; i++)
        total += mxc_packed_strips(&plan->weights[op->node->weights[2 * i]].slices->packed);
    return total;
}

/* Where such a strip stands. */
static const uint8_t *strip_at(const struct mxc_plan *plan, const struct mxc_cpu_op *op,
                               int32_t strip) {
    for (int i = 0; i < op->node->u.linear.n_parts; i++) {
        const struct mxc_packed *w = &plan->weights[op->node->weights[2 * i]].slices->packed;
        int32_t n = mxc_packed_strips(w);
        if (strip < n)
            return w->data + (size_t)strip * w->strip_bytes;
        strip -= n;
    }
    return NULL;
}

/* The weights that the worker will read first in the next LINEAR of a step, or NULL: not known. */
static const uint8_t *after_this(const struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op) {
    const struct mxc_plan *plan = worker->run->plan;
    const struct mxc_cpu_program *program = worker->run->program;
    int32_t begin, end;
    if (worker->run->tower)
        return NULL;
    for (op++; op < program->ops + program->n_ops; op++) {
        if (op->kind == MXC_CPU_MOE)
            return NULL;
        if (op->kind == MXC_CPU_LINEAR) {
            mxc_cpu_split(worker, shared_strips(plan, op), 1, &begin, &end);
            return strip_at(plan, op, begin);
        }
    }
    return NULL;
}

/* Workers take strips, for all rows. */
static void share_strips(struct job *job) {
    const struct mxc_plan *plan = job->worker->run->plan;
    const struct mxc_cpu_op *op = job->op;
    int32_t total = shared_strips(plan, op), turn = 0, begin, end, own0, own1;
    size_t bytes = plan->weights[op->node->weights[0]].slices->packed.strip_bytes;
    int32_t chunk =
        mxc_cpu_turn(job->worker, job->m, total, (op->glu ? 2u : 1u) * bytes * (size_t)total);
    mxc_cpu_split(job->worker, total, 1, &own0, &own1);
    while (mxc_cpu_take_near(job->worker, op->ticket, total, chunk, &turn, &begin, &end)) {
        struct strips s = {begin, end, NULL};
        if (end == own1 && job->m <= MXC_CPU_SMALL_ROWS)
            s.next = after_this(job->worker, op);
        else if (op->glu)
            s.next = strip_at(plan, op, end);
        if (op->glu)
            glu_strips(job, s);
        else
            part_strips(job, s);
    }
}

/* Everything for the worker's rows. */
static void share_rows(struct job *job, int32_t m) {
    const struct mxc_plan *plan = job->worker->run->plan;
    int32_t end;
    mxc_cpu_split(job->worker, m, MXC_CPU_ROW_UNIT, &job->row0, &end);
    job->m = end - job->row0;
    if (!job->m)
        return;
    for (int f = 0; f < MXC_N_ACT_FORMS; f++) {
        enum mxc_activation_form form = (enum mxc_activation_form)f;
        struct mxc_activation *a = &job->a[f];
        *a = (struct mxc_activation){
            .form = form, .m = job->m, .k = plan->graph->values[job->op->source].width};
        if (job->op->forms[f]) /* pieces of workers are rounded up one by one */
            a->data = plan->shared[f] + mxc_activation_bytes(form, job->row0, a->k) +
                      (size_t)job->worker->id * MXC_CPU_SHARED_SLACK;
    }
    prepare_batches(job->worker, job->op, job->a, job->row0, job->row0, end);
    struct strips all = {0, shared_strips(plan, job->op), NULL};
    if (job->op->glu)
        glu_strips(job, all);
    else
        part_strips(job, all);
}

void mxc_cpu_op_linear(struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op) {
    int32_t m = mxc_cpu_op_rows(worker->run, op);
    struct job job = {.worker = worker, .op = op, .m = m};
    if (!m)
        return;
    if (worker->n > 1 && m >= worker->n * MXC_CPU_SMALL_ROWS) {
        share_rows(&job, m);
        return;
    }
    prepare(worker, op, m, job.a);
    share_strips(&job);
}
