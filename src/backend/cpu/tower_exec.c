/* Tower execution: a run in units, each an op on one tile of rows, the packing of some heads' keys,
 * or some (head, tile) pairs of an ATTEND. A step runs units until the budget is spent. Every
 * worker finds the same units by itself, does its share and meets the others before the next one.
 * Invariant: units only ever cut work that is independent, so the budget changes no bit. */
#include "backend/cpu/cpu.h"

#include <string.h>

enum unit_kind { UNIT_OP, UNIT_PACK, UNIT_ITEMS };
struct unit {
    enum unit_kind kind;
    int32_t op, row0, n_rows;
    struct mxc_cpu_attend attend;
    uint64_t cost; /* multiply-adds, about */
};

/* Of one row of an op that is no ATTEND. */
static uint64_t row_cost(const struct mxc_graph *g, const struct mxc_cpu_op *op) {
    uint64_t cost = 0;
    if (op->kind != MXC_CPU_LINEAR && op->kind != MXC_CPU_HEADS)
        return 4 * (uint64_t)g->values[op->out].width;
    for (int32_t i = 0; i < op->node->n_weights; i += 2) {
        const struct mxc_weight *w = &g->weights[op->node->weights[i]];
        cost += (uint64_t)w->shape[0] * (uint64_t)w->shape[1] *
                (uint64_t)(w->n_dims > 2 ? w->shape[2] : 1);
    }
    return cost;
}

/* Rows of the tiles of a segment: about equal, so that the last one is not a small rest, for which
 * all weights would be read. */
static int32_t tile_rows(const struct mxc_cpu_segment *s, int32_t rows) {
    int32_t n = (rows + s->tile - 1) / s->tile, even = (rows + n - 1) / n;
    even = (even + s->grain - 1) / s->grain * s->grain;
    return even < s->tile ? even : s->tile;
}

/* The next op on a tile; false: the segment is done. */
static bool next_op(const struct mxc_tower *t, struct mxc_cpu_cursor *c, struct unit *u) {
    const struct mxc_graph *g = t->plan->graph;
    const struct mxc_cpu_segment *s = &t->program->segments[c->segment];
    int32_t rows = t->input.n_rows[s->slot];
    if (c->row0 >= rows)
        return false;
    const int32_t tile = tile_rows(s, rows);
    const struct mxc_cpu_op *op = &t->program->ops[s->op0 + c->op];
    *u = (struct unit){.kind = UNIT_OP,
                       .op = s->op0 + c->op,
                       .row0 = c->row0,
                       .n_rows = rows - c->row0 < tile ? rows - c->row0 : tile};
    u->cost = (uint64_t)(u->n_rows / g->values[op->out].rows.divisor) * row_cost(g, op);
    if (s->op0 + ++c->op == s->op1) {
        c->op = 0;
        c->row0 += tile;
    }
    return true;
}

/* Multiply-adds of a (head, tile) pair, on average over components [c0, c1). */
static uint64_t item_cost(const struct mxc_cpu_range *r, int32_t c0, int32_t c1, int32_t dim) {
    uint64_t sum = 0;
    int32_t n = r->components[c1].tile0 - r->components[c0].tile0;
    for (int32_t c = c0; c < c1; c++) {
        int32_t tiles = r->components[c + 1].tile0 - r->components[c].tile0;
        sum += (uint64_t)tiles * (uint64_t)r->components[c].n_rows;
    }
    return n ? sum / (uint64_t)n * 2 * MXC_ATTN_COLUMNS * (uint64_t)dim + 1 : 1;
}

/* The next piece of an ATTEND; false: it is done. */
static bool next_attend(const struct mxc_tower *t, struct mxc_cpu_cursor *c, uint64_t left,
                        struct unit *u) {
    const struct mxc_cpu_segment *s = &t->program->segments[c->segment];
    const struct mxc_attend_attr *a = &t->program->ops[s->op0].node->u.attend;
    const struct mxc_cpu_range *r = &t->ranges[a->range];
    int32_t heads = mxc_cpu_attend_heads(t->plan, a, r->pages), c0 = c->component0, c1 = c0;
    if (c->head0 >= a->n_heads)
        return false;
    heads = a->n_heads - c->head0 < heads ? a->n_heads - c->head0 : heads;
    while (c1 < r->n_components &&
           r->components[c1 + 1].page0 - r->components[c0].page0 <= r->pages)
        c1++;
    *u = (struct unit){.kind = c->packed ? UNIT_ITEMS : UNIT_PACK,
                       .op = s->op0,
                       .attend = {c->head0, heads, c0, c1, 0, 0}};
    if (!c->packed) {
        int32_t pages = r->components[c1].page0 - r->components[c0].page0;
        u->cost = (uint64_t)pages * MXC_ATTN_PAGE * 8 * (uint64_t)heads * (uint64_t)a->head_dim;
        c->packed = true;
        return true;
    }
    int32_t n = heads * (r->components[c1].tile0 - r->components[c0].tile0);
    uint64_t each = item_cost(r, c0, c1, a->head_dim), most = left / each + 1;
    u->attend.item0 = c->item;
    u->attend.item1 = (uint64_t)(n - c->item) < most ? n : c->item + (int32_t)most;
    u->cost = each * (uint64_t)(u->attend.item1 - c->item);
    c->item = u->attend.item1;
    if (c->item < n)
        return true;
    c->item = 0;
    c->packed = false;
    c->component0 = c1;
    if (c1 == r->n_components) {
        c->component0 = 0;
        c->head0 += heads;
    }
    return true;
}

static bool next_unit(const struct mxc_tower *t, struct mxc_cpu_cursor *c, uint64_t left,
                      struct unit *u) {
    while (c->segment < t->program->n_segments) {
        bool attend = t->program->segments[c->segment].attend;
        if (attend ? next_attend(t, c, left, u) : next_op(t, c, u))
            return true;
        *c = (struct mxc_cpu_cursor){.segment = c->segment + 1};
    }
    return false;
}

static void do_op(struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op) {
    switch (op->kind) {
    case MXC_CPU_INPUT:
    case MXC_CPU_MERGE:
        break;
    case MXC_CPU_LINEAR:
        mxc_cpu_op_linear(worker, op);
        break;
    case MXC_CPU_HEADS:
        mxc_cpu_op_heads(worker, op);
        break;
    case MXC_CPU_LOOKUP:
        mxc_cpu_op_lookup(worker, op);
        break;
    case MXC_CPU_GATHER:
        mxc_cpu_op_gather(worker, op);
        break;
    case MXC_CPU_MEAN_ROWS:
        mxc_cpu_op_mean_rows(worker, op);
        break;
    case MXC_CPU_CONCAT:
        mxc_cpu_op_concat(worker, op);
        break;
    default:
        mxc_cpu_op_rows_only(worker, op);
    }
}

static void do_unit(struct mxc_cpu_worker *worker, struct mxc_cpu_run *run, const struct unit *u,
                    int32_t ticket) {
    struct mxc_cpu_op op = run->program->ops[u->op];
    op.ticket = ticket;
    run->row0 = u->row0;
    run->n_rows = u->n_rows;
    if (u->kind == UNIT_OP)
        do_op(worker, &op);
    else if (u->kind == UNIT_PACK)
        mxc_cpu_attend_pack(worker, &op, &u->attend);
    else
        mxc_cpu_attend_items(worker, &op, &u->attend);
}

struct step {
    struct mxc_tower *tower;
    uint64_t budget;
    struct mxc_cpu_cursor cursor; /* where the step ended; worker 0's */
    bool done;
};

/* Two counters take turns: the one that the next unit will use is not in use by anyone. */
static void step_worker(void *arg, int id, int n_workers) {
    struct step *step = arg;
    struct mxc_tower *t = step->tower;
    struct mxc_cpu_worker *worker = &t->plan->workers[id];
    struct mxc_cpu_run run = {.plan = t->plan, .program = t->program, .tower = t};
    struct mxc_cpu_cursor cursor = t->cursor;
    uint64_t spent = 0;
    struct unit unit;
    bool more;
    (void)n_workers;
    worker->run = &run;
    for (int32_t i = 0; (more = next_unit(t, &cursor, step->budget - spent, &unit)); i++) {
        if (!id)
            atomic_store_explicit(&t->plan->tickets[(i + 1) % 2].next, 0, memory_order_relaxed);
        do_unit(worker, &run, &unit, i % 2);
        mxc_cpu_barrier(worker);
        spent += unit.cost;
        if (spent >= step->budget)
            break;
    }
    worker->run = NULL;
    if (id)
        return;
    struct mxc_cpu_cursor ahead = cursor;
    step->done = !more || !next_unit(t, &ahead, 0, &unit);
    step->cursor = cursor;
}

/* Named values in the order of the graph. */
static void show(const struct mxc_tower *t) {
    const struct mxc_graph *g = t->plan->graph;
    for (int32_t v = 0; v < g->n_values; v++) {
        if (!g->values[v].name[0])
            continue;
        size_t ld, width = (size_t)g->values[v].width;
        int32_t rows = mxc_tower_rows(&t->input, g->values[v].rows);
        const float *data = mxc_cpu_tower_value(t, v, 0, &ld);
        for (size_t r = 0; r < (size_t)rows; r++)
            memcpy(t->tap_rows + r * width, data + r * ld, width * sizeof *data);
        t->tap(t->tap_user, g, v, t->tap_rows, rows, g->values[v].width);
    }
}

enum mxc_code mxc_cpu_tower_step(struct mxc_tower *tower, uint64_t budget, bool *done,
                                 struct mxc_err *err) {
    (void)err;
    if (!tower->done) {
        struct step step = {.tower = tower, .budget = budget ? budget : 1};
        for (int i = 0; i < 2; i++)
            atomic_store_explicit(&tower->plan->tickets[i].next, 0, memory_order_relaxed);
        mxc_team_run(tower->plan->backend->team, step_worker, &step);
        tower->cursor = step.cursor;
        tower->done = step.done;
        if (tower->done && tower->tap)
            show(tower);
    }
    *done = tower->done;
    return MXC_OK;
}
