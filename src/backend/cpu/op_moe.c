/* MOE: routed experts. Rows are chosen experts for (moe_route.c), then only the experts that some
 * row uses are read: gate and up of each expert on the rows it has, combined into hidden rows; then
 * down, strip by strip for all experts, and each row's results summed in rank order.
 *
 * Few rows: every worker chooses for all of them and prepares an expert's rows when it comes to
 * that expert; workers meet once, between hidden rows and down. Many: rows are shared out for
 * choosing and preparing too. Units of gate and up are (expert, strip), of down strips, so all
 * workers are busy with one row as with many.
 * Invariant: an entry (row, rank) is computed by kernels that promise the same bits in any block.
 */
#include "backend/cpu/cpu.h"

#include <string.h>

struct job {
    struct mxc_cpu_worker *worker;
    const struct mxc_plan *plan;
    const struct mxc_cpu_op *op;
    const struct mxc_moe_attr *attr;
    const struct mxc_cpu_moe *moe;
    const int32_t *expert; /* [entry number] */
    const float *share;
    const float *x, *logits;
    float *out;
    size_t ld_x, ld_logits, ld_out;
    int32_t m, n, d; /* rows, entries, width of a row */
    int32_t n_blocks, n_used;
    int32_t *used; /* [n_used + 1] first block of every expert that is used */
    bool few;
    int32_t prepared; /* block whose rows the worker has prepared for itself; -1: none */
};

static const struct mxc_cpu_weight *weight(const struct job *job, int slot) {
    return &job->plan->weights[job->op->node->weights[slot]];
}

static const float *vector(const struct job *job, int slot, int32_t expert) {
    int32_t id = job->op->node->weights[slot];
    if (id == MXC_NONE)
        return NULL;
    const struct mxc_weight *w = &job->plan->graph->weights[id];
    int64_t n = w->n_dims > 1 ? w->shape[1] : w->shape[0];
    return job->plan->weights[id].vector + expert * n;
}

/* ---- choosing */

static void choose(struct job *job) {
    struct mxc_cpu_worker *worker = job->worker;
    int32_t *expert = job->few ? worker->moe.expert : job->plan->moe_expert;
    float *share = job->few ? worker->moe.share : job->plan->moe_share;
    int32_t begin = 0, end = job->m;
    if (!job->few)
        mxc_cpu_split(worker, job->m, 1, &begin, &end);
    for (int32_t row = begin; row < end; row++) {
        size_t at = (size_t)row * (size_t)job->attr->top_k;
        mxc_cpu_moe_choose(job->attr, job->logits + (size_t)row * job->ld_logits,
                           vector(job, MXC_MOE_CHOICE, 0), job->moe, expert + at, share + at);
    }
    if (!job->few)
        mxc_cpu_barrier(worker);
    job->expert = expert;
    job->share = share;
    job->n_blocks = mxc_cpu_moe_list(job->attr, job->m, expert, job->moe);
    job->used = job->moe->counts;
    job->n_used = 0;
    for (int32_t b = 0; b < job->n_blocks; b++)
        if (!b || job->moe->blocks[b].expert != job->moe->blocks[b - 1].expert)
            job->used[job->n_used++] = b;
    job->used[job->n_used] = job->n_blocks;
}

/* ---- prepared rows. Those of a block stand together, one form after the other. */

static size_t row_bytes(const bool forms[MXC_N_ACT_FORMS], int32_t k, int before) {
    size_t bytes = 0;
    for (int f = 0; f < before; f++)
        if (forms[f])
            bytes += mxc_activation_bytes((enum mxc_activation_form)f, 1, k);
    return bytes;
}

static struct mxc_activation shared_rows(const struct job *job, const bool forms[MXC_N_ACT_FORMS],
                                         enum mxc_activation_form form, int32_t k,
                                         const struct mxc_cpu_moe_block *block) {
    size_t at = (size_t)block->first * row_bytes(forms, k, MXC_N_ACT_FORMS) +
                (size_t)block->n * row_bytes(forms, k, (int)form);
    return (struct mxc_activation){
        .form = form, .m = block->n, .k = k, .data = job->plan->moe_prepared + at};
}

static struct mxc_activation own_rows(const struct job *job, enum mxc_activation_form form,
                                      int32_t k, int32_t first, int32_t n) {
    return (struct mxc_activation){.form = form,
                                   .m = n,
                                   .k = k,
                                   .data = job->worker->prepared[form] +
                                           (size_t)first * mxc_activation_bytes(form, 1, k)};
}

/* The input rows of a block, side by side. */
static const float *gather(const struct job *job, const struct mxc_cpu_moe_block *block,
                           size_t *ld) {
    *ld = job->ld_x;
    if (job->m == 1)
        return job->x;
    *ld = (size_t)job->plan->row_ld;
    for (int32_t i = 0; i < block->n; i++) {
        int32_t row = job->moe->list[block->first + i] / job->attr->top_k;
        memcpy(job->worker->rows + (size_t)i * *ld, job->x + (size_t)row * job->ld_x,
               (size_t)job->d * sizeof *job->x);
    }
    return job->worker->rows;
}

static void prepare_shared_input(struct job *job) {
    int32_t begin, end;
    mxc_cpu_split(job->worker, job->n_blocks, 1, &begin, &end);
    for (int32_t b = begin; b < end; b++) {
        const struct mxc_cpu_moe_block *block = &job->moe->blocks[b];
        size_t ld;
        const float *rows = gather(job, block, &ld);
        for (int f = 0; f < MXC_N_ACT_FORMS; f++) {
            if (!job->op->forms[f])
                continue;
            struct mxc_activation a =
                shared_rows(job, job->op->forms, (enum mxc_activation_form)f, job->d, block);
            job->plan->kernels->prepare[f](&a, rows, ld, 0, block->n);
        }
    }
    mxc_cpu_barrier(job->worker);
}

/* With one row, all experts have the same. */
static void prepare_own_input(struct job *job, int32_t b) {
    if (job->prepared == b || (job->m == 1 && job->prepared >= 0))
        return;
    const struct mxc_cpu_moe_block *block = &job->moe->blocks[b];
    job->prepared = b;
    size_t ld;
    const float *rows = gather(job, block, &ld);
    for (int f = 0; f < MXC_N_ACT_FORMS; f++) {
        if (!job->op->forms[f])
            continue;
        struct mxc_activation a = own_rows(job, (enum mxc_activation_form)f, job->d, 0, block->n);
        job->plan->kernels->prepare[f](&a, rows, ld, 0, block->n);
    }
}

static float *hidden_row(const struct job *job, int32_t place) {
    return job->plan->moe_hidden + (size_t)place * job->plan->moe_room.hidden_ld;
}

static void hidden_form(const struct job *job, bool forms[MXC_N_ACT_FORMS],
                        enum mxc_activation_form *form) {
    *form = mxc_packed_form(&weight(job, MXC_MOE_DOWN)->slices[0].packed);
    for (int f = 0; f < MXC_N_ACT_FORMS; f++)
        forms[f] = f == (int)*form;
}

/* The rows between gate and down. */
static struct mxc_activation hidden_rows(const struct job *job,
                                         const struct mxc_cpu_moe_block *block) {
    bool forms[MXC_N_ACT_FORMS];
    enum mxc_activation_form form;
    hidden_form(job, forms, &form);
    return job->n <= MXC_CPU_SMALL_ROWS
               ? own_rows(job, form, job->attr->width, block->first, block->n)
               : shared_rows(job, forms, form, job->attr->width, block);
}

static void prepare_hidden(struct job *job) {
    bool own = job->n <= MXC_CPU_SMALL_ROWS;
    int32_t begin = 0, end = job->n_blocks;
    if (!own)
        mxc_cpu_split(job->worker, job->n_blocks, 1, &begin, &end);
    for (int32_t b = begin; b < end; b++) {
        const struct mxc_cpu_moe_block *block = &job->moe->blocks[b];
        struct mxc_activation a = hidden_rows(job, block);
        job->plan->kernels->prepare[a.form](&a, hidden_row(job, block->first),
                                            job->plan->moe_room.hidden_ld, 0, block->n);
    }
    if (!own)
        mxc_cpu_barrier(job->worker);
}

/* ---- gate, up, down */

/* Strips [s0, s1) of one expert's matrix; out is where the first of them begins. */
static void multiply(const struct job *job, int slot, int bias_slot, int32_t expert, int32_t s0,
                     int32_t s1, const struct mxc_activation *a, float *out, size_t ld) {
    struct mxc_packed w = mxc_cpu_strips(&weight(job, slot)->slices[expert].packed, s0, s1);
    const float *bias = vector(job, bias_slot, expert);
    struct mxc_epilogue epilogue = {.bias = bias ? bias + (size_t)s0 * MXC_STRIP : NULL,
                                    .scale = 1};
    job->plan->kernels->matmul[w.layout](&w, a, 0, s1 - s0, out, ld, bias ? &epilogue : NULL);
}

static struct mxc_activation input_rows(const struct job *job, int slot,
                                        const struct mxc_cpu_moe_block *block) {
    enum mxc_activation_form form = mxc_packed_form(&weight(job, slot)->slices[0].packed);
    return job->few ? own_rows(job, form, job->d, 0, block->n)
                    : shared_rows(job, job->op->forms, form, job->d, block);
}

/* Strips [s0, s1) of the hidden rows of one block. */
static void hidden_strips(struct job *job, int32_t b, int32_t s0, int32_t s1) {
    const struct mxc_cpu_moe_block *block = &job->moe->blocks[b];
    size_t half = (size_t)(s1 - s0) * MXC_STRIP, both = 2 * half;
    int32_t column = s0 * MXC_STRIP, end = s1 * MXC_STRIP;
    int32_t n = (end < job->attr->width ? end : job->attr->width) - column;
    float *g = job->worker->glu, *u = g + half;
    if (job->few)
        prepare_own_input(job, b);
    struct mxc_activation for_gate = input_rows(job, MXC_MOE_GATE, block);
    struct mxc_activation for_up = input_rows(job, MXC_MOE_UP, block);
    multiply(job, MXC_MOE_GATE, MXC_MOE_GATE_BIAS, block->expert, s0, s1, &for_gate, g, both);
    multiply(job, MXC_MOE_UP, MXC_MOE_UP_BIAS, block->expert, s0, s1, &for_up, u, both);
    for (int32_t i = 0; i < block->n; i++)
        job->plan->kernels->glu[job->attr->act](hidden_row(job, block->first + i) + column,
                                                g + (size_t)i * both, u + (size_t)i * both, n);
}

static void gate_and_up(struct job *job) {
    enum { CACHED = 8 }; /* strips that stay in cache while blocks of rows go by */
    const struct mxc_packed *gate = &weight(job, MXC_MOE_GATE)->slices[0].packed;
    int32_t strips = mxc_packed_strips(gate), units = strips * job->n_used, turn = 0, begin, end;
    int32_t room = (int32_t)(job->plan->glu_floats / (2 * MXC_STRIP * MXC_CPU_SMALL_ROWS));
    int32_t chunk = mxc_cpu_turn(job->worker, job->m, units, (size_t)units * 2 * gate->strip_bytes);
    int32_t part = (strips + job->worker->n - 1) / job->worker->n;
    if (!job->few && chunk > part) /* an expert may have most of the rows */
        chunk = part;
    while (mxc_cpu_take(job->worker, job->op->ticket, units, chunk, &turn, &begin, &end))
        for (int32_t at = begin, next; at < end; at = next) {
            int32_t i = at / strips, s0 = at % strips;
            int32_t most = job->used[i + 1] - job->used[i] > 1 && room > CACHED ? CACHED : room;
            int32_t s1 = end - at < strips - s0 ? s0 + (end - at) : strips;
            s1 = s1 - s0 > most ? s0 + most : s1;
            next = at + (s1 - s0);
            for (int32_t b = job->used[i]; b < job->used[i + 1]; b++)
                hidden_strips(job, b, s0, s1);
        }
}

/* Strips [s0, s1) of down for all entries, then every row's sum of them. */
static void down_strips(const struct job *job, int32_t s0, int32_t s1) {
    size_t ld = (size_t)(s1 - s0) * MXC_STRIP;
    int32_t column = s0 * MXC_STRIP, end = s1 * MXC_STRIP, k = job->attr->top_k;
    int32_t n = (end < job->d ? end : job->d) - column;
    float *results = job->worker->glu;
    for (int32_t b = 0; b < job->n_blocks; b++) {
        const struct mxc_cpu_moe_block *block = &job->moe->blocks[b];
        struct mxc_activation a = hidden_rows(job, block);
        multiply(job, MXC_MOE_DOWN, MXC_MOE_DOWN_BIAS, block->expert, s0, s1, &a,
                 results + (size_t)block->first * ld, ld);
    }
    for (int32_t row = 0; row < job->m; row++) {
        float *y = job->out + (size_t)row * job->ld_out + column;
        for (int32_t i = row * k; i < (row + 1) * k; i++)
            job->plan->kernels->weighted_add(y, results + (size_t)job->moe->place[i] * ld,
                                             job->share[i], i == row * k, n);
    }
}

static void down(struct job *job) {
    const struct mxc_packed *w = &weight(job, MXC_MOE_DOWN)->slices[0].packed;
    int32_t strips = mxc_packed_strips(w), turn = 0, begin, end;
    int32_t most = (int32_t)(job->plan->glu_floats / ((size_t)job->n * MXC_STRIP));
    int32_t chunk = mxc_cpu_turn(job->worker, job->m, strips,
                                 (size_t)strips * (size_t)job->n_used * w->strip_bytes);
    while (mxc_cpu_take(job->worker, job->op->ticket + 1, strips, chunk, &turn, &begin, &end))
        for (int32_t s = begin; s < end; s += most)
            down_strips(job, s, end - s > most ? s + most : end);
}

void mxc_cpu_op_moe(struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op) {
    const struct mxc_cpu_run *run = worker->run;
    struct job job = {.worker = worker,
                      .plan = run->plan,
                      .op = op,
                      .attr = &op->node->u.moe,
                      .moe = &worker->moe,
                      .m = mxc_cpu_op_rows(run, op),
                      .d = run->plan->graph->values[op->out].width,
                      .prepared = -1};
    if (!job.m)
        return;
    job.n = job.m * job.attr->top_k;
    job.few = job.m <= MXC_CPU_SMALL_ROWS;
    job.x = mxc_cpu_value(run, op->source, &job.ld_x);
    job.logits = mxc_cpu_value(run, op->residual, &job.ld_logits);
    job.out = mxc_cpu_value(run, op->out, &job.ld_out);
    choose(&job);
    if (!job.few)
        prepare_shared_input(&job);
    gate_and_up(&job);
    mxc_cpu_barrier(worker);
    prepare_hidden(&job);
    down(&job);
}
