/* Towers: one run's input and memory. An input is checked against the graph (graph/tower.c), so
 * that the ops need not look twice; then one region is taken for everything the run needs: results,
 * values that cross segments, one tile's values, angles, the ranges as components and tiles, and
 * pages for the keys of some heads. Its size follows from the numbers of rows alone.
 * Out: a run whose steps are tower_exec.c's. */
#include "backend/cpu/cpu.h"

#include "base/mem.h"

#include <string.h>

/* ---- checks */

static enum mxc_code check_input(const struct mxc_plan *plan, const struct mxc_tower_input *input,
                                 struct mxc_err *err) {
    if (!plan->tower)
        return mxc_err_set(err, MXC_E_ARG, "tower: the plan is a decoder's");
    return mxc_tower_check(plan->graph, input, err);
}

/* ---- memory */

/* Which pairs of rope and positions there are; returns how many. With angles NULL: how many there
 * are at most. */
static int32_t list_angles(const struct mxc_graph *g, struct mxc_cpu_angles *angles) {
    int32_t n = 0;
    for (int32_t i = 0; i < g->n_nodes; i++) {
        const struct mxc_attend_attr *a = &g->nodes[i].u.attend;
        if (g->nodes[i].op != MXC_OP_ATTEND || a->rope == MXC_NONE)
            continue;
        int32_t k = 0;
        while (angles && k < n &&
               (angles[k].rope != a->rope || angles[k].positions != a->positions))
            k++;
        if (angles && k < n)
            continue;
        if (angles)
            angles[n] = (struct mxc_cpu_angles){.rope = a->rope, .positions = a->positions};
        n++;
    }
    return n;
}

static void cut_angles(struct mxc_tower *t, struct mxc_cpu_cutter *c) {
    const struct mxc_graph *g = t->plan->graph;
    for (int32_t i = 0; i < t->n_angles; i++) {
        struct mxc_cpu_angles *a = &t->angles[i];
        size_t rows = (size_t)mxc_tower_rows(&t->input, mxc_tower_index_rows(g, a->positions));
        size_t row = (size_t)t->plan->ropes[a->rope].half * sizeof(float);
        a->cos = mxc_cpu_cut(c, rows, row, MXC_ALIGN);
        a->sin = mxc_cpu_cut(c, rows, row, MXC_ALIGN);
    }
}

static void cut_ranges(struct mxc_tower *t, struct mxc_cpu_cutter *c) {
    for (int32_t i = 0; i < t->plan->graph->n_ranges; i++) {
        struct mxc_cpu_range *r = &t->ranges[i];
        int32_t rows = mxc_tower_rows(&t->input, t->plan->graph->ranges[i]);
        size_t n = (size_t)rows;
        r->pages = mxc_cpu_attend_pages(rows);
        r->components = mxc_cpu_cut(c, n + 1, sizeof *r->components, MXC_ALIGN);
        r->tiles = mxc_cpu_cut(c, n, sizeof *r->tiles, MXC_ALIGN);
        r->order = mxc_cpu_cut(c, n, sizeof *r->order, MXC_ALIGN);
    }
}

static void cut_pages(struct mxc_tower *t, struct mxc_cpu_cutter *c) {
    const struct mxc_graph *g = t->plan->graph;
    size_t most = 0, pages = 0;
    for (int32_t i = 0; i < g->n_nodes; i++) {
        const struct mxc_attend_attr *a = &g->nodes[i].u.attend;
        if (g->nodes[i].op != MXC_OP_ATTEND)
            continue;
        int32_t n = t->ranges[a->range].pages;
        size_t bytes = 0, page = mxc_page_bytes(t->plan->kv_type, a->head_dim, a->head_dim);
        c->overflow |= !mxc_size_mul(page, (size_t)n, &bytes) ||
                       !mxc_size_mul(bytes, (size_t)mxc_cpu_attend_heads(t->plan, a, n), &bytes);
        most = bytes > most ? bytes : most;
        pages = (size_t)n > pages ? (size_t)n : pages;
    }
    t->pages = mxc_cpu_cut(c, most, 1, MXC_ALIGN);
    t->identity = mxc_cpu_cut(c, pages, sizeof *t->identity, MXC_ALIGN);
}

/* Counts, and places when the region is there. `full` bytes are for FULL values. */
static bool cut_memory(struct mxc_tower *t, uint8_t *base, size_t full) {
    struct mxc_cpu_cutter c = {.base = base};
    const struct mxc_graph *g = t->plan->graph;
    const struct mxc_value *out = &g->values[g->logits];
    bool borrowed = t->program->values[g->logits].home == MXC_CPU_BORROWED;
    t->tile = mxc_cpu_cut(&c, t->program->arena_bytes, 1, MXC_ALIGN);
    t->full = mxc_cpu_cut(&c, full, 1, MXC_ALIGN);
    t->result = mxc_cpu_cut(&c, borrowed ? 0 : (size_t)mxc_tower_rows(&t->input, out->rows),
                            (size_t)out->width * sizeof(float), MXC_ALIGN);
    cut_angles(t, &c);
    cut_ranges(t, &c);
    cut_pages(t, &c);
    t->bytes = c.used;
    return !c.overflow;
}

/* The run without its region: places, angles, sizes. */
static enum mxc_code outline(struct mxc_tower *t, size_t *full, struct mxc_err *err) {
    const struct mxc_graph *g = t->plan->graph;
    t->places = mxc_mem_zalloc((size_t)g->n_values, sizeof *t->places);
    t->angles = mxc_mem_zalloc((size_t)list_angles(g, NULL), sizeof *t->angles);
    if (!t->places || !t->angles)
        return mxc_err_nomem(err);
    t->n_angles = list_angles(g, t->angles);
    if (!mxc_cpu_tower_place(t->program, g, t->input.n_rows, t->places, full) ||
        !cut_memory(t, NULL, *full))
        return mxc_err_nomem(err);
    return MXC_OK;
}

/* ---- ranges */

/* Components in the order of rows; `last` is scratch. */
static void find_components(struct mxc_cpu_range *r, int32_t rows, const int32_t *begin,
                            const int32_t *end, int32_t *last) {
    for (int32_t i = 0; i < rows; i++)
        last[i] = 0;
    for (int32_t i = 0; i < rows; i++)
        last[begin[i]] = end[i] > last[begin[i]] ? end[i] : last[begin[i]];
    struct mxc_cpu_component *c = NULL;
    for (int32_t i = 0; i < rows; i++) {
        if (!last[i])
            continue;
        if (!c || i >= c->row0 + c->n_rows) {
            int32_t page0 = c ? c->page0 + (c->n_rows + MXC_ATTN_PAGE - 1) / MXC_ATTN_PAGE : 0;
            c = &r->components[r->n_components++];
            *c = (struct mxc_cpu_component){.row0 = i, .page0 = page0};
        }
        if (last[i] > c->row0 + c->n_rows)
            c->n_rows = last[i] - c->row0;
    }
    int32_t page0 = c ? c->page0 + (c->n_rows + MXC_ATTN_PAGE - 1) / MXC_ATTN_PAGE : 0;
    r->components[r->n_components] = (struct mxc_cpu_component){.page0 = page0};
}

static int32_t component_of(const struct mxc_cpu_range *r, int32_t key) {
    int32_t low = 0, high = r->n_components - 1;
    while (low < high) {
        int32_t middle = (low + high + 1) / 2;
        if (r->components[middle].row0 <= key)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* A tile ends where it is full or a row sees another component or other chunks of it. */
static void cut_tiles(struct mxc_cpu_range *r, int32_t rows, const int32_t *begin,
                      const int32_t *end) {
    int32_t component = 0, chunk0 = -1, chunk1 = -1;
    for (int32_t i = 0; i < rows; i++) {
        bool same = i && begin[i] == begin[i - 1] && end[i] == end[i - 1];
        int32_t c = same ? component : component_of(r, begin[i]);
        int32_t first = (begin[i] - r->components[c].row0) / MXC_ATTN_CHUNK;
        int32_t last = (end[i] - 1 - r->components[c].row0) / MXC_ATTN_CHUNK;
        struct mxc_cpu_row_tile *t = r->n_tiles ? &r->tiles[r->n_tiles - 1] : NULL;
        if (!t || t->n_rows == MXC_ATTN_COLUMNS || c != component || first != chunk0 ||
            last != chunk1) {
            t = &r->tiles[r->n_tiles++];
            *t = (struct mxc_cpu_row_tile){.row0 = i, .component = c};
        }
        t->n_rows++;
        component = c;
        chunk0 = first;
        chunk1 = last;
    }
}

/* Tiles by component, in their order. */
static void order_tiles(struct mxc_cpu_range *r) {
    for (int32_t t = 0; t < r->n_tiles; t++)
        r->components[r->tiles[t].component].tile0++;
    int32_t at = 0;
    for (int32_t c = 0; c <= r->n_components; c++) {
        int32_t n = r->components[c].tile0;
        r->components[c].tile0 = at;
        at += n;
    }
    for (int32_t t = 0; t < r->n_tiles; t++)
        r->order[r->components[r->tiles[t].component].tile0++] = t;
    for (int32_t c = r->n_components; c > 0; c--)
        r->components[c].tile0 = r->components[c - 1].tile0;
    r->components[0].tile0 = 0;
}

static void make_ranges(struct mxc_tower *t) {
    for (int32_t i = 0; i < t->plan->graph->n_ranges; i++) {
        struct mxc_cpu_range *r = &t->ranges[i];
        int32_t rows = mxc_tower_rows(&t->input, t->plan->graph->ranges[i]);
        const int32_t *begin = t->input.range[i];
        find_components(r, rows, begin, begin + rows, r->order);
        cut_tiles(r, rows, begin, begin + rows);
        order_tiles(r);
    }
}

/* ---- the run */

/* Takes the region and fills in what the input settles. */
static enum mxc_code settle(struct mxc_tower *t, struct mxc_err *err) {
    size_t full = 0;
    int32_t pages = 0;
    enum mxc_code code = outline(t, &full, err);
    if (code)
        return code;
    t->memory = mxc_mem_aligned(MXC_ALIGN, t->bytes, true);
    if (!t->memory)
        return mxc_err_set(err, MXC_E_NOMEM, "out of memory: a picture of %d rows takes %zu bytes",
                           t->input.n_rows[0], t->bytes);
    (void)cut_memory(t, t->memory, full);
    for (int32_t i = 0; i < t->plan->graph->n_nodes; i++) {
        const struct mxc_node *node = &t->plan->graph->nodes[i];
        if (node->op == MXC_OP_ATTEND && t->ranges[node->u.attend.range].pages > pages)
            pages = t->ranges[node->u.attend.range].pages;
    }
    for (int32_t i = 0; i < pages; i++)
        t->identity[i] = i;
    make_ranges(t);
    mxc_cpu_tower_angles(t);
    return MXC_OK;
}

static void drop(struct mxc_tower *t) {
    mxc_mem_free_aligned(t->memory, t->bytes);
    mxc_mem_free(t->places);
    mxc_mem_free(t->angles);
    mxc_mem_free(t->tap_rows);
}

enum mxc_code mxc_cpu_tower_new(struct mxc_plan *plan, const struct mxc_tower_input *input,
                                struct mxc_tower **out, struct mxc_err *err) {
    enum mxc_code code = check_input(plan, input, err);
    if (code)
        return code;
    struct mxc_tower *t = mxc_mem_zalloc(1, sizeof *t);
    if (!t)
        return mxc_err_nomem(err);
    *t = (struct mxc_tower){.plan = plan, .program = &plan->fused, .input = *input};
    if ((code = settle(t, err)))
        mxc_cpu_tower_free(t);
    else
        *out = t;
    return code;
}

void mxc_cpu_tower_free(struct mxc_tower *tower) {
    if (!tower)
        return;
    drop(tower);
    mxc_mem_free(tower);
}

uint64_t mxc_cpu_tower_bytes(const struct mxc_plan *plan, const struct mxc_tower_input *input) {
    struct mxc_tower t = {
        .plan = (struct mxc_plan *)(uintptr_t)plan, .program = &plan->fused, .input = *input};
    size_t full = 0;
    bool good = plan->tower && !mxc_tower_check_rows(plan->graph, input->n_rows, NULL) &&
                !outline(&t, &full, NULL);
    drop(&t);
    return good ? t.bytes : 0;
}

static enum mxc_code take_tap_rows(struct mxc_tower *t, struct mxc_err *err) {
    const struct mxc_graph *g = t->plan->graph;
    size_t most = 0;
    for (int32_t v = 0; v < g->n_values; v++) {
        size_t n =
            (size_t)mxc_tower_rows(&t->input, g->values[v].rows) * (size_t)g->values[v].width;
        most = g->values[v].name[0] && n > most ? n : most;
    }
    t->tap_rows = mxc_mem_array(most, sizeof(float));
    return t->tap_rows ? MXC_OK : mxc_err_nomem(err);
}

/* The plain program keeps every named value; it is made when the first tap asks for it. */
enum mxc_code mxc_cpu_tower_tap(struct mxc_tower *tower, mxc_tap_fn *tap, void *user,
                                struct mxc_err *err) {
    struct mxc_plan *plan = tower->plan;
    enum mxc_code code = MXC_OK;
    if (!plan->plain.ops && (code = mxc_cpu_program_build(&plan->plain, plan, false, err)))
        return code;
    struct mxc_tower made = {
        .plan = plan, .program = &plan->plain, .input = tower->input, .tap = tap, .tap_user = user};
    if ((code = settle(&made, err)) || (code = take_tap_rows(&made, err))) {
        drop(&made);
        return code;
    }
    drop(tower);
    *tower = made;
    return MXC_OK;
}

float *mxc_cpu_tower_value(const struct mxc_tower *tower, int32_t value, int32_t row0, size_t *ld) {
    const struct mxc_cpu_program *p = tower->program;
    const struct mxc_cpu_tower_value *v = &p->values[value];
    size_t row = (size_t)(row0 / tower->plan->graph->values[value].rows.divisor);
    *ld = (size_t)p->places[value].ld;
    switch (v->home) {
    case MXC_CPU_TILE:
        return (float *)(void *)(tower->tile + p->places[v->root].offset);
    case MXC_CPU_FULL:
        return (float *)(void *)(tower->full + tower->places[v->root]) + row * *ld;
    case MXC_CPU_BORROWED:
        return (float *)(uintptr_t)tower->input.rows + row * *ld;
    case MXC_CPU_RESULT:
        break;
    }
    return tower->result + row * *ld;
}

const float *mxc_cpu_tower_output(const struct mxc_tower *tower, int32_t *rows) {
    const struct mxc_graph *g = tower->plan->graph;
    size_t ld;
    *rows = mxc_tower_rows(&tower->input, g->values[g->logits].rows);
    return mxc_cpu_tower_value(tower, g->logits, 0, &ld);
}
