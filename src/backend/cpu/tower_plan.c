/* Tower plans: what is settled once for a tower's program. Ops are cut into segments: tiles of rows
 * go through all ops of a segment one after the other, so most values are only ever one tile large
 * and stay in cache. ATTEND, which looks at all rows, is a segment of its own, and a GATHER begins
 * one. A MERGE moves nothing: its value is its input seen otherwise, so that input has rows without
 * a gap.
 *
 * Places: tile values share the arena of one tile; values that cross segments share the memory of a
 * run, whose size depends on the input. Two of those with equal rows and strides may share a place
 * when the first is done with before the second is written in the same tile: tiles touch their own
 * rows only (a GATHER reads others, of another slot). A LINEAR with a residual that dies there
 * writes in place, and an ATTEND over q. */
#include "backend/cpu/cpu.h"

#include "base/mem.h"

#include <assert.h>

struct layout {
    struct mxc_cpu_program *program;
    const struct mxc_graph *graph;
    int32_t *segment_of; /* [n_ops] */
    bool *tight;         /* [n_values] rows without a gap */
    bool *added;         /* [n_values] a LINEAR's residual */
};

static struct mxc_extent rows_of(const struct layout *l, int32_t value) {
    return l->graph->values[value].rows;
}

/* ---- segments */

static int32_t common(int64_t a, int32_t b) {
    int64_t x = a, y = b;
    while (y) {
        int64_t rest = x % y;
        x = y;
        y = rest;
    }
    a = a / x * b;
    return a > MXC_CPU_TOWER_ROWS ? MXC_CPU_TOWER_ROWS + 1 : (int32_t)a;
}

static enum mxc_code size_tile(struct layout *l, struct mxc_cpu_segment *s, struct mxc_err *err) {
    int32_t unit = 1;
    for (int32_t i = s->op0; i < s->op1; i++) {
        const struct mxc_cpu_op *op = &l->program->ops[i];
        int32_t values[MXC_MAX_IN + 2];
        int n = op->kind == MXC_CPU_GATHER ? 0 : mxc_cpu_op_reads(op, values);
        for (int k = 0; k < n; k++)
            unit = common(unit, rows_of(l, values[k]).divisor);
        unit = common(unit, rows_of(l, op->out).divisor);
    }
    if (unit > MXC_CPU_TOWER_ROWS)
        return mxc_err_set(err, MXC_E_UNSUPPORTED,
                           "cpu: rows of a tower are merged by more than %d", MXC_CPU_TOWER_ROWS);
    s->tile = MXC_CPU_TOWER_ROWS / unit * unit;
    s->grain = common(unit, MXC_PREPARE_TILE) <= s->tile ? common(unit, MXC_PREPARE_TILE) : unit;
    return MXC_OK;
}

static enum mxc_code make_segments(struct layout *l, struct mxc_err *err) {
    struct mxc_cpu_program *p = l->program;
    for (int32_t i = 0; i < p->n_ops; i++) {
        const struct mxc_cpu_op *op = &p->ops[i];
        struct mxc_cpu_segment *s = p->n_segments ? &p->segments[p->n_segments - 1] : NULL;
        int32_t slot = rows_of(l, op->out).slot;
        bool attend = op->kind == MXC_CPU_ATTEND;
        assert(op->kind != MXC_CPU_GATHER || rows_of(l, op->source).slot != slot);
        if (!s || attend || s->attend || op->kind == MXC_CPU_GATHER || s->slot != slot) {
            s = &p->segments[p->n_segments++];
            *s = (struct mxc_cpu_segment){.op0 = i, .slot = slot, .attend = attend};
        }
        s->op1 = i + 1;
        l->segment_of[i] = p->n_segments - 1;
    }
    enum mxc_code code = MXC_OK;
    for (int32_t i = 0; !code && i < p->n_segments; i++)
        code = size_tile(l, &p->segments[i], err);
    return code;
}

/* ---- values */

static void touch(struct layout *l, int32_t value, int32_t op) {
    struct mxc_cpu_tower_value *v = &l->program->values[l->program->values[value].root];
    if (v->first < 0) {
        v->first = op;
        v->first_segment = l->segment_of[op];
    }
    v->last = op;
    v->last_segment = l->segment_of[op];
}

static void make_lives(struct layout *l, bool fuse) {
    struct mxc_cpu_program *p = l->program;
    struct mxc_cpu_tower_value *v = p->values;
    for (int32_t i = 0; i < l->graph->n_values; i++) {
        const struct mxc_node *node = &l->graph->nodes[l->graph->values[i].producer];
        v[i] =
            (struct mxc_cpu_tower_value){.root = node->op == MXC_OP_MERGE ? v[node->in[0]].root : i,
                                         .alias = MXC_NONE,
                                         .first = -1,
                                         .last = -1};
    }
    for (int32_t i = 0; i < p->n_ops; i++) {
        int32_t values[MXC_MAX_IN + 2];
        int n = mxc_cpu_op_reads(&p->ops[i], values);
        for (int k = 0; k < n; k++)
            touch(l, values[k], i);
        touch(l, p->ops[i].out, i);
    }
    touch(l, l->graph->logits, p->n_ops - 1);
    for (int32_t i = 0; !fuse && i < l->graph->n_values; i++)
        if (l->graph->values[i].name[0])
            touch(l, i, p->n_ops - 1);
    for (int32_t i = 0; i < l->graph->n_values; i++) {
        bool kept = !fuse && v[i].last == p->n_ops - 1; /* to be shown */
        bool inside = v[i].first >= 0 && v[i].first_segment == v[i].last_segment && !kept;
        v[i].home = inside && !p->segments[v[i].first_segment].attend ? MXC_CPU_TILE : MXC_CPU_FULL;
    }
    v[v[l->graph->logits].root].home = MXC_CPU_RESULT;
    v[l->graph->input].home = MXC_CPU_BORROWED;
    for (int32_t i = 0; i < l->graph->n_values; i++)
        v[i].home = v[v[i].root].home;
}

/* A residual and its sum are read and written with one stride. */
static bool spread(struct layout *l, const struct mxc_cpu_op *op) {
    bool *a = &l->tight[op->out], *b = &l->tight[op->residual];
    bool changed = *a != *b;
    *a = *b = *a || *b;
    return changed;
}

static void find_strides(struct layout *l) {
    struct mxc_cpu_program *p = l->program;
    l->tight[l->graph->logits] = l->tight[l->graph->input] = true;
    for (int32_t i = 0; i < p->n_ops; i++) {
        const struct mxc_cpu_op *op = &p->ops[i];
        if (op->kind == MXC_CPU_MERGE)
            l->tight[op->source] = l->tight[op->out] = true;
        if (op->kind == MXC_CPU_LINEAR && op->residual != MXC_NONE)
            l->added[op->residual] = true;
    }
    for (bool changed = true; changed;) {
        changed = false;
        for (int32_t i = 0; i < 2 * p->n_ops; i++) {
            const struct mxc_cpu_op *op = &p->ops[i < p->n_ops ? i : 2 * p->n_ops - 1 - i];
            if (op->kind == MXC_CPU_LINEAR && op->residual != MXC_NONE)
                changed |= spread(l, op);
        }
    }
    for (int32_t v = 0; v < l->graph->n_values; v++) {
        int32_t width = l->graph->values[v].width;
        p->places[v].ld = l->tight[v] ? width : mxc_cpu_ld(width);
    }
}

/* Whether op i may write over what it reads from `from`. */
static bool may_take(const struct layout *l, int32_t i, int32_t from, int32_t to) {
    const struct mxc_cpu_tower_value *v = l->program->values;
    return v[from].root == from && v[from].last == i && v[from].home == v[to].home &&
           (v[to].home == MXC_CPU_TILE || v[to].home == MXC_CPU_FULL);
}

static void find_aliases(struct layout *l) {
    struct mxc_cpu_program *p = l->program;
    for (int32_t i = 0; i < p->n_ops; i++) {
        const struct mxc_cpu_op *op = &p->ops[i];
        if (op->kind == MXC_CPU_ATTEND && may_take(l, i, op->source, op->out) &&
            !l->tight[op->out] && !l->added[op->out]) {
            p->values[op->out].alias = op->source;
            p->places[op->out].ld = p->places[op->source].ld;
        }
        if (op->kind == MXC_CPU_LINEAR && op->residual != MXC_NONE && op->residual != op->source &&
            op->residual != op->node->in[0] && may_take(l, i, op->residual, op->out) &&
            p->values[op->source].root != op->residual)
            p->values[op->out].alias = op->residual;
    }
}

/* ---- places */

struct placer {
    const struct mxc_cpu_program *program;
    const struct mxc_graph *graph;
    const int32_t *n_rows; /* of the slots; NULL: tile values are placed */
    size_t *offsets;
    size_t total;
    int32_t *active; /* placed roots that may still be needed */
    int32_t n_active;
};

static bool value_bytes(const struct placer *p, int32_t v, size_t *bytes) {
    struct mxc_extent rows = p->graph->values[v].rows;
    const struct mxc_cpu_tower_value *t = &p->program->values[v];
    int32_t n = p->n_rows ? p->n_rows[rows.slot] : p->program->segments[t->first_segment].tile;
    return mxc_size_mul((size_t)(n / rows.divisor),
                        (size_t)p->program->places[v].ld * sizeof(float), bytes) &&
           mxc_size_add(*bytes, MXC_CPU_LINE - 1, bytes);
}

/* Whether v may stand exactly where w does: w's rows are done with when those of v are written. */
static bool follows(const struct placer *p, int32_t v, int32_t w) {
    const struct mxc_cpu_tower_value *a = &p->program->values[w], *b = &p->program->values[v];
    const struct mxc_value *from = &p->graph->values[w], *to = &p->graph->values[v];
    return p->n_rows && a->last < b->first && a->last_segment == b->first_segment &&
           !p->program->segments[b->first_segment].attend && from->rows.slot == to->rows.slot &&
           from->rows.divisor == to->rows.divisor &&
           p->program->places[v].ld == p->program->places[w].ld;
}

static bool over(const struct placer *p, int32_t v, int32_t w) {
    const struct mxc_cpu_tower_value *a = &p->program->values[w], *b = &p->program->values[v];
    return p->n_rows ? a->last_segment < b->first_segment : a->last < b->first;
}

/* The first placed value in the way of v at an offset, or MXC_NONE. */
static int32_t in_the_way(const struct placer *p, int32_t v, size_t offset, size_t end) {
    for (int32_t i = 0; i < p->n_active; i++) {
        int32_t w = p->active[i];
        size_t from = p->offsets[w], to = from;
        size_t bytes = 0;
        (void)value_bytes(p, w, &bytes);
        to += bytes;
        if (from < end && offset < to && !(from == offset && follows(p, v, w)))
            return w;
    }
    return MXC_NONE;
}

static bool place(struct placer *p, int32_t v) {
    size_t bytes = 0, offset = 0, end = 0;
    int32_t kept = 0, alias = p->program->values[v].alias, w = MXC_NONE;
    if (!value_bytes(p, v, &bytes))
        return false;
    for (int32_t i = 0; i < p->n_active; i++)
        if (!over(p, v, p->active[i]))
            p->active[kept++] = p->active[i];
    p->n_active = kept;
    bool found = alias != MXC_NONE;
    if (found)
        offset = p->offsets[alias];
    for (int32_t i = 0; !found && i < kept; i++) {
        offset = p->offsets[p->active[i]];
        found = follows(p, v, p->active[i]) && mxc_size_add(offset, bytes, &end) &&
                in_the_way(p, v, offset, end) == MXC_NONE;
    }
    for (offset = found ? offset : 0; !found;) {
        if (!mxc_size_add(offset, bytes, &end))
            return false;
        w = in_the_way(p, v, offset, end);
        found = w == MXC_NONE;
        if (found)
            break;
        size_t other = 0;
        if (!value_bytes(p, w, &other))
            return false;
        offset = (p->offsets[w] + other + MXC_CPU_LINE - 1) / MXC_CPU_LINE * MXC_CPU_LINE;
    }
    if (!mxc_size_add(offset, bytes, &end))
        return false;
    p->offsets[v] = offset;
    p->total = end > p->total ? end : p->total;
    p->active[p->n_active++] = v;
    return true;
}

static bool place_new(struct placer *p, int32_t value, int32_t op) {
    int32_t v = p->program->values[value].root;
    enum mxc_cpu_home home = p->program->values[v].home;
    if (home != (p->n_rows ? MXC_CPU_FULL : MXC_CPU_TILE) || p->program->values[v].first != op)
        return true;
    for (int32_t i = 0; i < p->n_active; i++)
        if (p->active[i] == v)
            return true;
    return place(p, v);
}

static bool place_all(struct placer *p) {
    p->active = mxc_mem_array((size_t)p->graph->n_values, sizeof *p->active);
    bool good = p->active != NULL;
    for (int32_t i = 0; good && i < p->program->n_ops; i++) {
        const struct mxc_cpu_op *op = &p->program->ops[i];
        int32_t values[MXC_MAX_IN + 2];
        int n = mxc_cpu_op_reads(op, values);
        for (int k = 0; good && k < n; k++)
            good = place_new(p, values[k], i);
        good = good && place_new(p, op->out, i);
    }
    mxc_mem_free(p->active);
    return good;
}

bool mxc_cpu_tower_place(const struct mxc_cpu_program *program, const struct mxc_graph *graph,
                         const int32_t *n_rows, size_t *offsets, size_t *bytes) {
    struct placer p = {.program = program, .graph = graph, .n_rows = n_rows, .offsets = offsets};
    bool good = place_all(&p);
    *bytes = p.total;
    return good;
}

static bool place_tiles(struct mxc_cpu_program *program, const struct mxc_graph *graph) {
    struct placer p = {.program = program, .graph = graph};
    p.offsets = mxc_mem_zalloc((size_t)graph->n_values, sizeof *p.offsets);
    bool good = p.offsets && place_all(&p);
    for (int32_t v = 0; good && v < graph->n_values; v++)
        program->places[v].offset = p.offsets[program->values[v].root];
    program->arena_bytes = p.total;
    mxc_mem_free(p.offsets);
    return good;
}

enum mxc_code mxc_cpu_tower_layout(struct mxc_cpu_program *program, const struct mxc_plan *plan,
                                   bool fuse, struct mxc_err *err) {
    const struct mxc_graph *graph = plan->graph;
    struct layout l = {.program = program, .graph = graph};
    enum mxc_code code = MXC_E_NOMEM;
    program->segments = mxc_mem_zalloc((size_t)program->n_ops, sizeof *program->segments);
    program->values = mxc_mem_zalloc((size_t)graph->n_values, sizeof *program->values);
    l.segment_of = mxc_mem_zalloc((size_t)program->n_ops, sizeof *l.segment_of);
    l.tight = mxc_mem_zalloc((size_t)graph->n_values, sizeof *l.tight);
    l.added = mxc_mem_zalloc((size_t)graph->n_values, sizeof *l.added);
    if (!program->segments || !program->values || !l.segment_of || !l.tight || !l.added) {
        (void)mxc_err_nomem(err);
        goto out;
    }
    if ((code = make_segments(&l, err)))
        goto out;
    make_lives(&l, fuse);
    find_strides(&l);
    if (fuse)
        find_aliases(&l);
    code = place_tiles(program, graph) ? MXC_OK : mxc_err_nomem(err);
out:
    mxc_mem_free(l.segment_of);
    mxc_mem_free(l.tight);
    mxc_mem_free(l.added);
    return code;
}
