/* Programs: the node list of a graph becomes a list of ops, with places for their values.
 *
 * Fused: a norm (or the pick of output rows) whose only reader is a LINEAR is done while that
 * LINEAR prepares its rows; a GLU behind a LINEAR of two parts, or one whose halves are whole
 * strips, is done strip by strip, and so are activations and soft caps; and everything behind the
 * last attention runs on the output rows only, because nothing but attention looks at other rows.
 * Plain: one op per node, every value is there to look at.
 *
 * Places: values live from the op that writes them to the last op that reads them and share one
 * arena, first fit in order of writing. A LINEAR with a residual that dies there writes in place.
 */
#include "backend/cpu/cpu.h"

#include "base/mem.h"

#include <string.h>

/* What the builder knows about every value. */
struct life {
    int32_t n_uses;      /* nodes that read it, and 1 for the graph's logits */
    int32_t first, last; /* ops; -1: not in this program */
    int32_t alias;       /* value whose place is taken over */
    size_t bytes;
};

struct builder {
    struct mxc_cpu_program *program;
    const struct mxc_plan *plan;
    const struct mxc_graph *graph;
    struct life *lives;
    bool *skip; /* nodes that are part of another op */
};

int32_t mxc_cpu_ld(int32_t width) {
    int32_t lines = (width + MXC_CPU_LINE_FLOATS - 1) / MXC_CPU_LINE_FLOATS;
    return (lines | 1) * MXC_CPU_LINE_FLOATS;
}

static const struct mxc_node *producer(const struct builder *b, int32_t value) {
    int32_t i = b->graph->values[value].producer;
    return i < 0 || i >= b->graph->n_nodes ? NULL : &b->graph->nodes[i];
}

static const struct mxc_node *only_reader(const struct builder *b, int32_t value) {
    if (b->lives[value].n_uses != 1 || value == b->graph->logits)
        return NULL;
    int32_t last = b->graph->values[value].last_use;
    return last < 0 || last >= b->graph->n_nodes ? NULL : &b->graph->nodes[last];
}

static void skip(struct builder *b, const struct mxc_node *node) {
    b->skip[node - b->graph->nodes] = true;
}

static bool same_halves(const struct builder *b, const struct mxc_node *node) {
    const struct mxc_weight *w = b->graph->weights;
    if (node->u.linear.n_parts == 1)
        return w[node->weights[0]].shape[0] % (2 * MXC_STRIP) == 0;
    return node->u.linear.n_parts == 2 &&
           w[node->weights[0]].shape[0] == w[node->weights[2]].shape[0];
}

/* Takes norm and pick in front of a LINEAR and GLU behind it into the op. */
static void fuse_linear(struct builder *b, const struct mxc_node *node, struct mxc_cpu_op *op) {
    for (;;) {
        const struct mxc_node *from = producer(b, op->source);
        if (!from || only_reader(b, op->source) != node)
            break;
        if ((from->op == MXC_OP_RMS_NORM || from->op == MXC_OP_LAYER_NORM) && !op->norm)
            op->norm = from;
        else if (from->op == MXC_OP_SELECT_OUT && !op->select)
            op->select = true;
        else
            break;
        skip(b, from);
        op->source = from->in[0];
        node = from;
    }
    const struct mxc_node *reader = only_reader(b, op->out);
    if (op->residual != MXC_NONE || !reader)
        return;
    if (reader->op == MXC_OP_GLU && same_halves(b, op->node)) {
        op->glu = true;
        op->act = reader->u.glu.act;
    } else if (reader->op == MXC_OP_ACT || reader->op == MXC_OP_SOFTCAP) {
        op->after = reader;
    } else {
        return;
    }
    op->out = reader->out;
    skip(b, reader);
}

static void use_form(const struct builder *b, struct mxc_cpu_op *op, int slot) {
    const struct mxc_cpu_weight *w = &b->plan->weights[op->node->weights[slot]];
    op->forms[mxc_packed_form(&w->slices[0].packed)] = true;
}

static void find_forms(const struct builder *b, struct mxc_cpu_op *op) {
    if (op->node->op == MXC_OP_LINEAR)
        for (int32_t i = 0; i < op->node->u.linear.n_parts; i++)
            use_form(b, op, 2 * i);
    if (op->node->op == MXC_OP_HEADS_LINEAR)
        use_form(b, op, 0);
    if (op->node->op == MXC_OP_MOE) {
        use_form(b, op, MXC_MOE_GATE);
        use_form(b, op, MXC_MOE_UP);
    }
}

/* Towers have no steps, so nothing of one; decoders have no tower rows. */
static bool fits(const struct builder *b, const struct mxc_node *node) {
    if (!b->plan->tower)
        return b->graph->values[node->out].rows.kind != MXC_ROWS_TOWER;
    return b->graph->values[node->out].rows.kind == MXC_ROWS_TOWER && node->op != MXC_OP_MOE;
}

static enum mxc_code make_op(struct builder *b, const struct mxc_node *node, bool fuse,
                             struct mxc_err *err) {
    static const enum mxc_cpu_op_kind kinds[MXC_N_OPS] = {
        [MXC_OP_EMBED] = MXC_CPU_EMBED,
        [MXC_OP_ADD_POSITION] = MXC_CPU_ADD_POSITION,
        [MXC_OP_RMS_NORM] = MXC_CPU_NORM,
        [MXC_OP_LAYER_NORM] = MXC_CPU_NORM,
        [MXC_OP_LINEAR] = MXC_CPU_LINEAR,
        [MXC_OP_HEADS_LINEAR] = MXC_CPU_HEADS,
        [MXC_OP_ATTENTION] = MXC_CPU_ATTENTION,
        [MXC_OP_GLU] = MXC_CPU_GLU,
        [MXC_OP_ACT] = MXC_CPU_ACT,
        [MXC_OP_SOFTCAP] = MXC_CPU_SOFTCAP,
        [MXC_OP_MOE] = MXC_CPU_MOE,
        [MXC_OP_GATE] = MXC_CPU_GATE,
        [MXC_OP_UNIT_COLUMNS] = MXC_CPU_UNIT_COLUMNS,
        [MXC_OP_ADD] = MXC_CPU_ADD,
        [MXC_OP_SELECT_OUT] = MXC_CPU_SELECT,
        [MXC_OP_CROSS] = MXC_CPU_ATTENTION,
        [MXC_OP_TANH_SCALE] = MXC_CPU_TANH_SCALE,
        [MXC_OP_ROW_MASK] = MXC_CPU_ROW_MASK,
        [MXC_OP_ADD_LEVEL] = MXC_CPU_ADD_LEVEL,
        [MXC_OP_CONCAT] = MXC_CPU_CONCAT,
        [MXC_OP_INPUT] = MXC_CPU_INPUT,
        [MXC_OP_LOOKUP] = MXC_CPU_LOOKUP,
        [MXC_OP_GATHER] = MXC_CPU_GATHER,
        [MXC_OP_MERGE] = MXC_CPU_MERGE,
        [MXC_OP_MEAN_ROWS] = MXC_CPU_MEAN_ROWS,
        [MXC_OP_ATTEND] = MXC_CPU_ATTEND};
    if (!fits(b, node))
        return mxc_err_set(err, MXC_E_UNSUPPORTED, "cpu: %s in a %s", mxc_op_name(node->op),
                           b->plan->tower ? "tower" : "decoder");
    if (kinds[node->op] == MXC_CPU_NO_OP)
        return mxc_err_set(err, MXC_E_UNSUPPORTED, "cpu: there is no %s", mxc_op_name(node->op));
    if (node->op == MXC_OP_LINEAR && node->n_in > 1 && node->out == b->graph->logits &&
        !b->plan->tower)
        return mxc_err_set(err, MXC_E_UNSUPPORTED, "cpu: logits with a residual");
    struct mxc_cpu_op *op = &b->program->ops[b->program->n_ops++];
    *op = (struct mxc_cpu_op){.kind = kinds[node->op],
                              .node = node,
                              .source = node->n_in ? node->in[0] : MXC_NONE,
                              .residual = node->n_in > 1 ? node->in[1] : MXC_NONE,
                              .out = node->out,
                              .attention = MXC_NONE};
    op->rows_out = b->graph->values[node->out].rows.kind == MXC_ROWS_R;
    if (node->op == MXC_OP_LINEAR && fuse)
        fuse_linear(b, node, op);
    find_forms(b, op);
    for (int32_t i = 0; i < b->plan->n_attentions; i++)
        if (b->plan->attentions[i].node == node)
            op->attention = i;
    return MXC_OK;
}

/* An input-side scan ends at the LINEAR, so fused nodes in front of it are known only then: mark
 * first, emit second. */
static enum mxc_code make_ops(struct builder *b, bool fuse, struct mxc_err *err) {
    struct mxc_cpu_op probe;
    for (int32_t i = 0; fuse && i < b->graph->n_nodes; i++) {
        const struct mxc_node *node = &b->graph->nodes[i];
        if (node->op != MXC_OP_LINEAR)
            continue;
        probe = (struct mxc_cpu_op){.node = node,
                                    .source = node->in[0],
                                    .residual = node->n_in > 1 ? node->in[1] : MXC_NONE,
                                    .out = node->out};
        fuse_linear(b, node, &probe);
    }
    for (int32_t i = 0; i < b->graph->n_nodes; i++) {
        if (b->skip[i])
            continue;
        enum mxc_code code = make_op(b, &b->graph->nodes[i], fuse, err);
        if (code)
            return code;
    }
    return MXC_OK;
}

int mxc_cpu_op_reads(const struct mxc_cpu_op *op, int32_t values[MXC_MAX_IN + 2]) {
    int n = 0;
    if (op->source != MXC_NONE)
        values[n++] = op->source;
    if (op->residual != MXC_NONE)
        values[n++] = op->residual;
    for (int32_t i = 2; op->kind == MXC_CPU_CONCAT && i < op->node->n_in; i++)
        values[n++] = op->node->in[i];
    /* prepared rows stand in the LINEAR's own input value when they are many */
    if (op->kind == MXC_CPU_LINEAR && (op->norm || op->select))
        values[n++] = op->node->in[0];
    return n;
}

static bool reads(const struct mxc_cpu_op *op, int32_t value) {
    int32_t values[MXC_MAX_IN + 2];
    int n = mxc_cpu_op_reads(op, values);
    for (int i = 0; i < n; i++)
        if (values[i] == value)
            return true;
    return false;
}

/* Everything behind the last attention works on output rows: values that come from before are
 * compacted first. */
static void prune_tail(struct builder *b) {
    struct mxc_cpu_program *p = b->program;
    int32_t last = p->n_ops - 1;
    while (last >= 0 && p->ops[last].kind != MXC_CPU_ATTENTION)
        last--;
    if (last < 0 || last == p->n_ops - 1)
        return;
    int32_t tail = last + 1, n_compact = 0;
    struct mxc_cpu_op compact[MXC_MAX_IN];
    for (int32_t v = 0; v < b->graph->n_values; v++) {
        bool before = false, after = false;
        if (b->graph->values[v].rows.kind != MXC_ROWS_T)
            continue;
        for (int32_t i = 0; i < p->n_ops; i++) {
            before |= i < tail && p->ops[i].out == v;
            after |= i >= tail && reads(&p->ops[i], v);
        }
        if (!before || !after)
            continue;
        if (n_compact == MXC_MAX_IN)
            return; /* an unusual graph: it runs unpruned */
        compact[n_compact++] = (struct mxc_cpu_op){.kind = MXC_CPU_COMPACT,
                                                   .node = p->ops[last].node,
                                                   .source = v,
                                                   .residual = MXC_NONE,
                                                   .out = v,
                                                   .rows_out = true,
                                                   .attention = MXC_NONE};
    }
    memmove(p->ops + tail + n_compact, p->ops + tail, (size_t)(p->n_ops - tail) * sizeof *p->ops);
    memcpy(p->ops + tail, compact, (size_t)n_compact * sizeof *compact);
    p->n_ops += n_compact;
    p->n_tail = p->n_ops - tail;
    p->ops[last].append_only = true;
    for (int32_t i = tail + n_compact; i < p->n_ops; i++) {
        p->ops[i].rows_out = true;
        p->ops[i].select = false;
        if (p->ops[i].kind == MXC_CPU_SELECT) /* rows are picked already */
            p->ops[i].kind = MXC_CPU_COPY;
    }
}

static void touch(struct builder *b, int32_t value, int32_t op) {
    if (value == MXC_NONE)
        return;
    struct life *l = &b->lives[value];
    if (l->first < 0)
        l->first = op;
    l->last = op;
}

static void make_lives(struct builder *b) {
    struct mxc_cpu_program *p = b->program;
    for (int32_t i = 0; i < p->n_ops; i++) {
        int32_t values[MXC_MAX_IN + 2];
        int n = mxc_cpu_op_reads(&p->ops[i], values);
        for (int k = 0; k < n; k++)
            touch(b, values[k], i);
        touch(b, p->ops[i].out, i);
    }
    for (int32_t i = 0; i < p->n_ops; i++) {
        const struct mxc_cpu_op *op = &p->ops[i];
        if (op->kind != MXC_CPU_LINEAR || op->residual == MXC_NONE || op->out == b->graph->logits)
            continue;
        const struct mxc_value *from = &b->graph->values[op->residual],
                               *to = &b->graph->values[op->out];
        if (op->residual != op->source && op->residual != op->node->in[0] &&
            b->lives[op->residual].last == i && from->rows.kind == to->rows.kind)
            b->lives[op->out].alias = op->residual;
    }
}

static enum mxc_code size_values(struct builder *b, struct mxc_err *err) {
    for (int32_t v = 0; v < b->graph->n_values; v++) {
        const struct mxc_value *value = &b->graph->values[v];
        struct mxc_cpu_place *place = &b->program->places[v];
        size_t rows =
            (size_t)(value->rows.kind == MXC_ROWS_R ? b->plan->max_out : b->plan->max_rows);
        place->ld = v == b->graph->logits ? value->width : mxc_cpu_ld(value->width);
        place->used = b->lives[v].first >= 0 && v != b->graph->logits;
        if (!mxc_size_mul(rows, (size_t)place->ld * sizeof(float), &b->lives[v].bytes))
            return mxc_err_nomem(err);
    }
    return MXC_OK;
}

/* Lowest offset at which v fits between the placed values that live at the same time. */
static bool place_value(struct builder *b, int32_t v) {
    const struct life *mine = &b->lives[v];
    struct mxc_cpu_place *places = b->program->places;
    if (mine->alias != MXC_NONE) {
        places[v].offset = places[mine->alias].offset;
        return true;
    }
    size_t offset = 0, end;
    for (bool moved = true; moved;) {
        moved = false;
        if (!mxc_size_add(offset, mine->bytes, &end))
            return false;
        for (int32_t w = 0; w < b->graph->n_values; w++) {
            const struct life *other = &b->lives[w];
            if (w == v || !places[w].used || other->first > mine->first ||
                (other->first == mine->first && w > v) || other->last < mine->first)
                continue;
            size_t other_end = places[w].offset + other->bytes;
            if (places[w].offset < end && offset < other_end) {
                offset = (other_end + MXC_CPU_LINE - 1) / MXC_CPU_LINE * MXC_CPU_LINE;
                moved = true;
                break;
            }
        }
    }
    places[v].offset = offset;
    if (end > b->program->arena_bytes)
        b->program->arena_bytes = end;
    return true;
}

static enum mxc_code place_values(struct builder *b, struct mxc_err *err) {
    for (int32_t op = 0; op < b->program->n_ops; op++)
        for (int32_t v = 0; v < b->graph->n_values; v++)
            if (b->program->places[v].used && b->lives[v].first == op && !place_value(b, v))
                return mxc_err_nomem(err);
    return MXC_OK;
}

enum mxc_code mxc_cpu_program_build(struct mxc_cpu_program *program, const struct mxc_plan *plan,
                                    bool fuse, struct mxc_err *err) {
    const struct mxc_graph *graph = plan->graph;
    struct mxc_cpu_program made = {0};
    enum mxc_code code = MXC_E_NOMEM;
    struct builder b = {.program = &made, .plan = plan, .graph = graph};
    b.lives = mxc_mem_zalloc((size_t)graph->n_values, sizeof *b.lives);
    b.skip = mxc_mem_zalloc((size_t)graph->n_nodes, sizeof *b.skip);
    made.ops = mxc_mem_zalloc((size_t)graph->n_nodes + MXC_MAX_IN, sizeof *made.ops);
    made.places = mxc_mem_zalloc((size_t)graph->n_values, sizeof *made.places);
    if (!b.lives || !b.skip || !made.ops || !made.places) {
        code = mxc_err_nomem(err);
        goto out;
    }
    for (int32_t v = 0; v < graph->n_values; v++)
        b.lives[v] = (struct life){.first = -1, .last = -1, .alias = MXC_NONE};
    for (int32_t i = 0; i < graph->n_nodes; i++)
        for (int32_t k = 0; k < graph->nodes[i].n_in; k++)
            b.lives[graph->nodes[i].in[k]].n_uses++;
    b.lives[graph->logits].n_uses++;
    if ((code = make_ops(&b, fuse, err)))
        goto out;
    if (fuse && graph->values[graph->logits].rows.kind == MXC_ROWS_R)
        prune_tail(&b);
    for (int32_t i = 0, ticket = 0; i < made.n_ops; i++) {
        made.ops[i].ticket = ticket;
        ticket += made.ops[i].kind == MXC_CPU_MOE ? 2 : 1;
    }
    if (plan->tower) {
        code = mxc_cpu_tower_layout(&made, plan, fuse, err);
    } else {
        make_lives(&b);
        if (!(code = size_values(&b, err)))
            code = place_values(&b, err);
    }
    if (code)
        goto out;
    *program = made;
    made = (struct mxc_cpu_program){0};
out:
    mxc_cpu_program_fini(&made);
    mxc_mem_free(b.lives);
    mxc_mem_free(b.skip);
    return code;
}

enum mxc_code mxc_cpu_program_allocate(struct mxc_cpu_program *program, struct mxc_err *err) {
    program->arena = mxc_mem_aligned(MXC_CPU_LINE, program->arena_bytes, true);
    return program->arena ? MXC_OK : mxc_err_nomem(err);
}

void mxc_cpu_program_fini(struct mxc_cpu_program *program) {
    mxc_mem_free_aligned(program->arena, program->arena_bytes);
    mxc_mem_free(program->ops);
    mxc_mem_free(program->places);
    mxc_mem_free(program->segments);
    mxc_mem_free(program->values);
    *program = (struct mxc_cpu_program){0};
}
