/* Execution: one team run walks a program. Every worker does its share of an op and meets the
 * others at a barrier before the next, so an op may read whatever earlier ones wrote. Worker 0 is
 * the caller's thread and calls the tap. */
#include "backend/cpu/cpu.h"

#include "base/mem.h"

#include <string.h>

float *mxc_cpu_value(const struct mxc_cpu_run *run, int32_t value, size_t *ld) {
    if (run->tower)
        return mxc_cpu_tower_value(run->tower, value, run->row0, ld);
    const struct mxc_cpu_place *place = &run->program->places[value];
    *ld = (size_t)place->ld;
    if (value == run->plan->graph->logits)
        return run->out->logits;
    return (float *)(void *)(run->program->arena + place->offset);
}

void mxc_cpu_split(const struct mxc_cpu_worker *worker, int32_t n, int32_t unit, int32_t *begin,
                   int32_t *end) {
    int64_t units = ((int64_t)n + unit - 1) / unit;
    int64_t from = units * worker->id / worker->n * unit;
    int64_t to = units * (worker->id + 1) / worker->n * unit;
    *begin = (int32_t)(from < n ? from : n);
    *end = (int32_t)(to < n ? to : n);
}

bool mxc_cpu_take(const struct mxc_cpu_worker *worker, int32_t ticket, int32_t n, int32_t chunk,
                  int32_t *turn, int32_t *begin, int32_t *end) {
    if (chunk) {
        *begin = atomic_fetch_add(&worker->run->plan->tickets[ticket].next, chunk);
        *end = n - chunk > *begin ? *begin + chunk : n;
    } else {
        mxc_cpu_split(worker, n, 1, begin, end);
        if ((*turn)++)
            return false;
    }
    return *begin < *end;
}

/* Takes up to `chunk` units of a range of n; from the front or the back. false: nothing left. */
static bool take_share(struct mxc_cpu_share *share, uint32_t step, int32_t n, int32_t chunk,
                       bool front, int32_t *at, int32_t *count) {
    enum { HALF = 16, MASK = (1 << HALF) - 1 };
    uint64_t old = atomic_load_explicit(&share->taken, memory_order_relaxed), new;
    do {
        int32_t first = 0, last = 0;
        if (old >> 32 == step) {
            first = (int32_t)(old & MASK);
            last = (int32_t)(old >> HALF & MASK);
        }
        int32_t left = n - first - last;
        if (left <= 0)
            return false;
        *count = chunk < left ? chunk : left;
        *at = front ? first : n - last - *count;
        first += front ? *count : 0;
        last += front ? 0 : *count;
        new = (uint64_t)step << 32 | (uint64_t)last << HALF | (uint64_t)first;
    } while (!atomic_compare_exchange_weak_explicit(&share->taken, &old, new, memory_order_relaxed,
                                                    memory_order_relaxed));
    return true;
}

bool mxc_cpu_take_near(const struct mxc_cpu_worker *worker, int32_t ticket, int32_t n,
                       int32_t chunk, int32_t *turn, int32_t *begin, int32_t *end) {
    const struct mxc_plan *plan = worker->run->plan;
    if (!chunk || worker->run->tower || n / worker->n >= UINT16_MAX)
        return mxc_cpu_take(worker, ticket, n, chunk, turn, begin, end);
    for (int i = 0; i < worker->n; i++) {
        struct mxc_cpu_worker owner = {.id = (worker->id + i) % worker->n, .n = worker->n};
        int32_t from, to, at, count;
        mxc_cpu_split(&owner, n, 1, &from, &to);
        if (!take_share(&plan->shares[ticket * worker->n + owner.id], plan->n_steps, to - from,
                        chunk, !i, &at, &count))
            continue;
        *begin = from + at;
        *end = from + at + count;
        return true;
    }
    return false;
}

static void do_op(struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op) {
    switch (op->kind) {
    case MXC_CPU_EMBED:
        mxc_cpu_op_embed(worker, op);
        break;
    case MXC_CPU_LINEAR:
        mxc_cpu_op_linear(worker, op);
        break;
    case MXC_CPU_ATTENTION:
        mxc_cpu_op_attention(worker, op);
        break;
    case MXC_CPU_HEADS:
        mxc_cpu_op_heads(worker, op);
        break;
    case MXC_CPU_MOE:
        mxc_cpu_op_moe(worker, op);
        break;
    case MXC_CPU_CONCAT:
        mxc_cpu_op_concat(worker, op);
        break;
    case MXC_CPU_COMPACT:
        mxc_cpu_op_compact(worker, op);
        break;
    default:
        mxc_cpu_op_rows_only(worker, op);
    }
}

/* Shows a named value: rows of whole width, one after the other. */
static void tap(const struct mxc_cpu_run *run, int32_t value) {
    const struct mxc_value *v = &run->plan->graph->values[value];
    int32_t rows = v->rows.kind == MXC_ROWS_R ? run->step->n_out : run->step->n_rows;
    size_t ld, width = (size_t)v->width;
    float *data = mxc_cpu_value(run, value, &ld);
    if (!rows)
        return;
    float *copy = run->tap_rows;
    for (size_t r = 0; r < (size_t)rows && ld != width; r++)
        memcpy(copy + r * width, data + r * ld, width * sizeof(float));
    run->out->tap(run->out->tap_user, run->plan->graph, value, ld == width ? data : copy, rows,
                  v->width);
}

static void run_worker(void *arg, int id, int n_workers) {
    (void)n_workers;
    struct mxc_cpu_run *run = arg;
    struct mxc_cpu_worker *worker = &run->plan->workers[id];
    const struct mxc_cpu_program *program = run->program;
    worker->run = run;
    mxc_cpu_rope_tables(worker);
    int32_t n = run->step->n_out ? program->n_ops : program->n_ops - program->n_tail;
    for (int32_t i = 0; i < n; i++) {
        const struct mxc_cpu_op *op = &program->ops[i];
        do_op(worker, op);
        bool show = run->tap_rows && run->plan->graph->values[op->out].name[0];
        if (i + 1 < n || show)
            mxc_cpu_barrier(worker);
        if (!show)
            continue;
        if (!id)
            tap(run, op->out);
        mxc_cpu_barrier(worker);
    }
}

/* The plain program keeps every value; it is made when the first tap asks for it. */
static enum mxc_code plain_program(struct mxc_plan *plan, struct mxc_err *err) {
    if (plan->plain.arena)
        return MXC_OK;
    struct mxc_cpu_program made;
    enum mxc_code code = mxc_cpu_program_build(&made, plan, false, err);
    if (code)
        return code;
    if ((code = mxc_cpu_program_allocate(&made, err))) {
        mxc_cpu_program_fini(&made);
        return code;
    }
    plan->plain = made;
    return MXC_OK;
}

enum mxc_code mxc_cpu_run(struct mxc_plan *plan, struct mxc_state *state,
                          const struct mxc_step *step, const struct mxc_out *out,
                          struct mxc_err *err) {
    enum mxc_code code = mxc_cpu_step_begin(plan, state, step, out, err);
    if (code)
        return code;
    if (state)
        mxc_cpu_state_expect(state, step);
    struct mxc_cpu_run run = {
        .plan = plan, .state = state, .step = step, .out = out, .program = &plan->fused};
    if (out && out->tap) {
        if ((code = plain_program(plan, err)))
            return code;
        run.program = &plan->plain;
        run.tap_rows =
            mxc_mem_array((size_t)plan->max_rows, (size_t)plan->tap_width * sizeof(float));
        if (!run.tap_rows)
            return mxc_err_nomem(err);
    }
    mxc_team_run(plan->backend->team, run_worker, &run);
    mxc_mem_free(run.tap_rows);
    return MXC_OK;
}
