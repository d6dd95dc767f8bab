/* Plans: compile makes one, estimate makes one without its memory. In go a finished graph and a
 * checkpoint; out comes everything a step needs: packed weights, the fused program with its arena,
 * attention classes, RoPE settings and the scratch of every worker. Memory that steps write is
 * touched here, so that the first step meets no page faults; KV pages are not. */
#include "backend/cpu/cpu.h"

#include "backend/check.h"
#include "base/mem.h"

#include <string.h>

void *mxc_cpu_cut(struct mxc_cpu_cutter *c, size_t count, size_t size, size_t align) {
    size_t bytes, end;
    size_t start = (c->used + align - 1) / align * align;
    if (start < c->used || !mxc_size_mul(count, size, &bytes) ||
        !mxc_size_add(start, bytes, &end)) {
        c->overflow = true;
        return NULL;
    }
    c->used = end;
    return c->base ? c->base + start : NULL;
}

/* ---- attention and RoPE settings */

static int32_t find_class(struct mxc_plan *plan, const struct mxc_attn_attr *attr,
                          enum mxc_kv_kind kind) {
    int32_t group = attr->n_heads / attr->n_kv_heads, subs = 1;
    while (group % subs || group / subs > MXC_ATTN_COLUMNS)
        subs++;
    struct mxc_cpu_class want = {.n_heads = attr->n_heads,
                                 .n_kv_heads = attr->n_kv_heads,
                                 .window = attr->window,
                                 .kind = kind,
                                 .columns_per_token = group / subs,
                                 .n_subs = subs};
    want.tokens_per_tile = MXC_ATTN_COLUMNS / want.columns_per_token;
    for (int32_t i = 0; i < plan->n_classes; i++) {
        const struct mxc_cpu_class *c = &plan->classes[i];
        if (c->n_heads == want.n_heads && c->n_kv_heads == want.n_kv_heads &&
            c->window == want.window && c->kind == want.kind)
            return i;
    }
    plan->classes[plan->n_classes] = want;
    return plan->n_classes++;
}

/* A CROSS is an attention whose keys are there already. */
static struct mxc_attn_attr attention_attr(const struct mxc_node *node) {
    if (node->op == MXC_OP_ATTENTION)
        return node->u.attn;
    return (struct mxc_attn_attr){.n_heads = node->u.cross.n_heads,
                                  .n_kv_heads = node->u.cross.n_kv_heads,
                                  .head_dim = node->u.cross.head_dim,
                                  .scale = node->u.cross.scale,
                                  .rope = MXC_NONE,
                                  .kv = node->u.cross.kv,
                                  .qk_norm_eps = node->u.cross.q_norm_eps};
}

/* Heads of a tower have the same limits. */
static enum mxc_code check_attends(const struct mxc_graph *graph, struct mxc_err *err) {
    for (int32_t i = 0; i < graph->n_nodes; i++) {
        int32_t dim = graph->nodes[i].u.attend.head_dim;
        if (graph->nodes[i].op == MXC_OP_ATTEND && (dim > MXC_ATTN_MAX_DIM || dim % 2))
            return mxc_err_set(err, MXC_E_UNSUPPORTED,
                               "layer %d: heads of %d numbers (the CPU backend takes even sizes "
                               "up to %d)",
                               graph->nodes[i].layer, dim, MXC_ATTN_MAX_DIM);
    }
    return MXC_OK;
}

static enum mxc_code plan_attentions(struct mxc_plan *plan, struct mxc_err *err) {
    const struct mxc_graph *graph = plan->graph;
    size_t n = 0;
    for (int32_t i = 0; i < graph->n_nodes; i++)
        n += graph->nodes[i].op == MXC_OP_ATTENTION || graph->nodes[i].op == MXC_OP_CROSS;
    plan->attentions = mxc_mem_zalloc(n, sizeof *plan->attentions);
    plan->classes = mxc_mem_zalloc(n, sizeof *plan->classes);
    plan->schedules = mxc_mem_zalloc(n, sizeof *plan->schedules);
    if (!plan->attentions || !plan->classes || !plan->schedules)
        return mxc_err_nomem(err);
    for (int32_t i = 0; i < graph->n_nodes; i++) {
        const struct mxc_node *node = &graph->nodes[i];
        if (node->op != MXC_OP_ATTENTION && node->op != MXC_OP_CROSS)
            continue;
        struct mxc_attn_attr attr = attention_attr(node);
        const struct mxc_kv *kv = &graph->kvs[attr.kv];
        plan->whole_norms |= attr.qk_norm == MXC_QK_RMS_WHOLE;
        if (kv->k_dim > MXC_ATTN_MAX_DIM || kv->k_dim % 2)
            return mxc_err_set(err, MXC_E_UNSUPPORTED,
                               "layer %d: heads of %d numbers (the CPU backend takes even sizes "
                               "up to %d)",
                               node->layer, kv->k_dim, MXC_ATTN_MAX_DIM);
        struct mxc_cpu_attention *a = &plan->attentions[plan->n_attentions++];
        a->node = node;
        a->attr = attr;
        a->class_ = find_class(plan, &attr, kv->kind);
        a->page_bytes = mxc_page_bytes(plan->kv_type, kv->k_dim, kv->v_dim);
        a->layer_offset = plan->kv_block_bytes[kv->kind];
        if (!mxc_size_mul(a->page_bytes, (size_t)kv->n_heads, &a->block_bytes) ||
            !mxc_size_add(a->layer_offset, a->block_bytes, &plan->kv_block_bytes[kv->kind]))
            return mxc_err_nomem(err);
        size_t stride = ((size_t)kv->v_dim + 15) / 16 * 16 * MXC_ATTN_COLUMNS * sizeof(float) +
                        offsetof(struct mxc_attn_part, o);
        plan->part_stride = stride > plan->part_stride ? stride : plan->part_stride;
    }
    return MXC_OK;
}

static enum mxc_code plan_ropes(struct mxc_plan *plan, struct mxc_err *err) {
    plan->ropes = mxc_mem_zalloc((size_t)plan->graph->n_ropes, sizeof *plan->ropes);
    if (!plan->ropes)
        return mxc_err_nomem(err);
    for (int32_t i = 0; i < plan->graph->n_ropes; i++) {
        struct mxc_cpu_rope *rope = &plan->ropes[i];
        rope->rope = &plan->graph->ropes[i];
        rope->half = rope->rope->dims / 2;
        rope->by_length = mxc_rope_length_dependent(rope->rope);
        mxc_rope_frequencies(rope->rope, 0, rope->inv_freq, &rope->factor);
        mxc_rope_axes(rope->rope, rope->axis);
    }
    return MXC_OK;
}

/* ---- scratch */

static void cut_moe(const struct mxc_cpu_moe_room *room, struct mxc_cpu_cutter *c,
                    struct mxc_cpu_moe *m) {
    m->expert = mxc_cpu_cut(c, room->entries, sizeof *m->expert, MXC_ALIGN);
    m->share = mxc_cpu_cut(c, room->entries, sizeof *m->share, MXC_ALIGN);
    m->list = mxc_cpu_cut(c, room->entries, sizeof *m->list, MXC_ALIGN);
    m->place = mxc_cpu_cut(c, room->entries, sizeof *m->place, MXC_ALIGN);
    m->blocks = mxc_cpu_cut(c, room->entries, sizeof *m->blocks, MXC_ALIGN);
    m->counts = mxc_cpu_cut(c, room->experts + 1, sizeof *m->counts, MXC_ALIGN);
    m->scores = mxc_cpu_cut(c, room->experts, 3 * sizeof *m->scores, MXC_ALIGN);
    m->taken = mxc_cpu_cut(c, room->experts, 1, MXC_ALIGN);
}

static void cut_worker(struct mxc_plan *plan, struct mxc_cpu_cutter *c, struct mxc_cpu_worker *w) {
    enum { PAGE = 4096 };
    for (int f = 0; f < MXC_N_ACT_FORMS; f++)
        if (plan->form_k[f])
            w->prepared[f] = mxc_cpu_cut(
                c, MXC_CPU_SMALL_ROWS,
                mxc_activation_bytes((enum mxc_activation_form)f, 1, plan->form_k[f]), PAGE);
    if (plan->moe_room.entries)
        cut_moe(&plan->moe_room, c, &w->moe);
    w->rows = mxc_cpu_cut(c, MXC_CPU_SMALL_ROWS, (size_t)plan->row_ld * sizeof(float), PAGE);
    w->glu = mxc_cpu_cut(c, plan->glu_floats, sizeof(float), PAGE);
    w->heads = mxc_cpu_cut(c, 2 * MXC_ATTN_MAX_DIM, sizeof(float), MXC_ALIGN);
    w->query = mxc_cpu_cut(c, MXC_ATTN_COLUMNS * MXC_ATTN_MAX_DIM, sizeof(float), MXC_ALIGN);
    w->result = mxc_cpu_cut(c, MXC_ATTN_COLUMNS * MXC_ATTN_MAX_DIM, sizeof(float), MXC_ALIGN);
    w->part = mxc_cpu_cut(c, 1, sizeof *w->part, MXC_ALIGN);
    w->total = mxc_cpu_cut(c, 1, sizeof *w->total, MXC_ALIGN);
    (void)mxc_cpu_cut(c, 1, PAGE, PAGE); /* workers share no line, nor the line next to it */
}

/* Counts, and places when the region is there. */
static bool cut_scratch(struct mxc_plan *plan, uint8_t *base) {
    struct mxc_cpu_cutter c = {.base = base};
    size_t max_rows = (size_t)plan->max_rows;
    int n = mxc_team_size(plan->backend->team);
    for (int i = 0; i < n; i++) {
        struct mxc_cpu_worker unused = {0};
        cut_worker(plan, &c, base ? &plan->workers[i] : &unused);
    }
    for (int f = 0; f < MXC_N_ACT_FORMS; f++)
        if (plan->form_k[f])
            plan->shared[f] = mxc_cpu_cut(
                &c, 1,
                mxc_activation_bytes((enum mxc_activation_form)f, plan->max_rows, plan->form_k[f]) +
                    (size_t)n * MXC_CPU_SHARED_SLACK,
                MXC_ALIGN);
    const struct mxc_cpu_moe_room *room = &plan->moe_room;
    if (room->entries) {
        plan->moe_expert = mxc_cpu_cut(&c, room->entries, sizeof *plan->moe_expert, MXC_ALIGN);
        plan->moe_share = mxc_cpu_cut(&c, room->entries, sizeof *plan->moe_share, MXC_ALIGN);
        plan->moe_hidden =
            mxc_cpu_cut(&c, room->entries, room->hidden_ld * sizeof(float), MXC_ALIGN);
        plan->moe_prepared = mxc_cpu_cut(&c, room->entries, room->prepared, MXC_ALIGN);
    }
    if (plan->whole_norms)
        plan->row_factors = mxc_cpu_cut(&c, max_rows, 2 * sizeof(float), MXC_ALIGN);
    for (int32_t i = 0; !plan->tower && i < plan->graph->n_ropes; i++) {
        struct mxc_cpu_rope *rope = &plan->ropes[i];
        rope->cos = mxc_cpu_cut(&c, max_rows, (size_t)rope->half * sizeof(float), MXC_ALIGN);
        rope->sin = mxc_cpu_cut(&c, max_rows, (size_t)rope->half * sizeof(float), MXC_ALIGN);
    }
    for (int32_t i = 0; i < plan->n_classes; i++)
        plan->schedules[i].tiles =
            mxc_cpu_cut(&c, max_rows, sizeof(struct mxc_cpu_tile), MXC_ALIGN);
    plan->n_tickets = 2 * plan->graph->n_nodes + MXC_MAX_IN;
    plan->tickets = mxc_cpu_cut(&c, (size_t)plan->n_tickets, sizeof *plan->tickets, MXC_ALIGN);
    if (!plan->tower)
        plan->shares =
            mxc_cpu_cut(&c, (size_t)plan->n_tickets * (size_t)n, sizeof *plan->shares, MXC_ALIGN);
    plan->span_tables = mxc_cpu_cut(&c, (size_t)plan->max_spans * MXC_N_KV_KINDS,
                                    sizeof *plan->span_tables, MXC_ALIGN);
    plan->scratch_bytes = c.used;
    return !c.overflow;
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

static size_t prepared_row(const struct mxc_plan *plan, const struct mxc_node *node, int slot) {
    const struct mxc_packed *p = &plan->weights[node->weights[slot]].slices[0].packed;
    return mxc_activation_bytes(mxc_packed_form(p), 1, p->k);
}

static void size_moe(struct mxc_plan *plan) {
    struct mxc_cpu_moe_room *room = &plan->moe_room;
    for (int32_t i = 0; i < plan->graph->n_nodes; i++) {
        const struct mxc_node *node = &plan->graph->nodes[i];
        const struct mxc_moe_attr *a = &node->u.moe;
        if (node->op != MXC_OP_MOE)
            continue;
        room->entries = larger(room->entries, (size_t)plan->max_rows * (size_t)a->top_k);
        room->experts = larger(room->experts, (size_t)a->n_experts);
        room->hidden_ld = larger(room->hidden_ld, (size_t)mxc_cpu_ld(a->width));
        size_t input =
            prepared_row(plan, node, MXC_MOE_GATE) + prepared_row(plan, node, MXC_MOE_UP);
        if (mxc_packed_form(&plan->weights[node->weights[MXC_MOE_GATE]].slices[0].packed) ==
            mxc_packed_form(&plan->weights[node->weights[MXC_MOE_UP]].slices[0].packed))
            input /= 2;
        room->prepared = larger(room->prepared, input);
        room->prepared = larger(room->prepared, prepared_row(plan, node, MXC_MOE_DOWN));
    }
    plan->glu_floats = larger(plan->glu_floats, room->entries * MXC_STRIP);
}

static enum mxc_code size_scratch(struct mxc_plan *plan, struct mxc_err *err) {
    for (int32_t v = 0; v < plan->graph->n_values; v++) {
        int32_t ld = mxc_cpu_ld(plan->graph->values[v].width);
        if (v != plan->graph->logits && ld > plan->row_ld)
            plan->row_ld = ld;
        if (plan->graph->values[v].name[0] && plan->graph->values[v].width > plan->tap_width)
            plan->tap_width = plan->graph->values[v].width;
    }
    size_t wide = (size_t)plan->max_rows * 2 * MXC_STRIP; /* one strip of gate and up */
    plan->glu_floats = larger(wide, MXC_CPU_GLU_FLOATS);
    size_moe(plan);
    return cut_scratch(plan, NULL) ? MXC_OK : mxc_err_nomem(err);
}

static void touch_worker(void *arg, int worker, int n_workers) {
    struct mxc_plan *plan = arg;
    if (worker == n_workers - 1 && plan->fused.arena)
        memset(plan->fused.arena, 0, plan->fused.arena_bytes);
    if (worker == 0)
        memset(plan->scratch, 0, plan->scratch_bytes);
}

static enum mxc_code allocate(struct mxc_plan *plan, struct mxc_err *err) {
    int n = mxc_team_size(plan->backend->team);
    enum mxc_code code = plan->tower ? MXC_OK : mxc_cpu_program_allocate(&plan->fused, err);
    if (code)
        return code;
    plan->workers = mxc_mem_zalloc((size_t)n, sizeof *plan->workers);
    plan->scratch = mxc_mem_aligned(MXC_ALIGN, plan->scratch_bytes, true);
    if (!plan->workers || !plan->scratch)
        return mxc_err_nomem(err);
    mxc_team_run(plan->backend->team, touch_worker, plan);
    (void)cut_scratch(plan, plan->scratch);
    for (int i = 0; i < n; i++) {
        plan->workers[i].id = i;
        plan->workers[i].n = n;
    }
    return MXC_OK;
}

/* ---- compile and estimate */

/* Everything but memory. */
static enum mxc_code prepare_plan(struct mxc_plan *plan, const struct mxc_weights *weights,
                                  const struct mxc_plan_options *options, struct mxc_err *err) {
    enum mxc_code code = mxc_cpu_weights_plan(plan, weights, options->precision, err);
    if (code)
        return code;
    plan->kv_type = plan->exact ? MXC_KV_F32 : MXC_KV_BF16;
    if ((code = check_attends(plan->graph, err)) || (code = plan_attentions(plan, err)) ||
        (code = plan_ropes(plan, err)) ||
        (code = mxc_cpu_program_build(&plan->fused, plan, true, err)))
        return code;
    return size_scratch(plan, err);
}

static struct mxc_plan *new_plan(struct mxc_backend *backend, const struct mxc_graph *graph,
                                 const struct mxc_plan_options *options) {
    struct mxc_plan *plan = mxc_mem_zalloc(1, sizeof *plan);
    if (!plan)
        return NULL;
    plan->backend = backend;
    plan->graph = graph;
    plan->kernels = mxc_kernels_get(mxc_cpu_level());
    plan->tower = graph->input != MXC_NONE;
    plan->max_rows = plan->tower ? MXC_CPU_TOWER_ROWS : options->max_rows;
    plan->max_out = plan->tower ? 0 : options->max_out;
    plan->max_spans = plan->tower ? 1 : options->max_spans;
    return plan;
}

enum mxc_code mxc_cpu_compile(struct mxc_backend *backend, const struct mxc_graph *graph,
                              const struct mxc_weights *weights,
                              const struct mxc_plan_options *options, struct mxc_plan **out,
                              struct mxc_err *err) {
    enum mxc_code code = mxc_plan_options_check(options, graph, err);
    if (code)
        return code;
    struct mxc_plan *plan = new_plan(backend, graph, options);
    if (!plan)
        return mxc_err_nomem(err);
    if ((code = prepare_plan(plan, weights, options, err)) || (code = allocate(plan, err)) ||
        (code = mxc_cpu_weights_pack(plan, options, err)))
        goto out;
    mxc_cpu_describe(plan);
    *out = plan;
    plan = NULL;
out:
    mxc_cpu_plan_free(plan);
    return code;
}

enum mxc_code mxc_cpu_estimate(struct mxc_backend *backend, const struct mxc_graph *graph,
                               const struct mxc_weights *weights,
                               const struct mxc_plan_options *options,
                               struct mxc_plan_memory *memory, struct mxc_err *err) {
    enum mxc_code code = mxc_plan_options_check(options, graph, err);
    if (code)
        return code;
    struct mxc_plan *plan = new_plan(backend, graph, options);
    if (!plan)
        return mxc_err_nomem(err);
    code = prepare_plan(plan, weights, options, err);
    if (!code)
        mxc_cpu_plan_memory(plan, memory);
    mxc_cpu_plan_free(plan);
    return code;
}

void mxc_cpu_plan_free(struct mxc_plan *plan) {
    if (!plan)
        return;
    mxc_cpu_program_fini(&plan->fused);
    mxc_cpu_program_fini(&plan->plain);
    mxc_mem_free_aligned(plan->packed, plan->packed_bytes);
    mxc_mem_free_aligned(plan->vectors, plan->vectors_bytes);
    mxc_mem_free_aligned(plan->scratch, plan->scratch_bytes);
    mxc_mem_free_aligned(plan->parts, plan->parts_bytes);
    mxc_mem_free((void *)plan->pending);
    mxc_mem_free(plan->tables);
    mxc_mem_free(plan->weights);
    mxc_mem_free(plan->slices);
    mxc_mem_free(plan->views);
    mxc_mem_free(plan->flats);
    mxc_mem_free(plan->attentions);
    mxc_mem_free(plan->classes);
    mxc_mem_free(plan->schedules);
    mxc_mem_free(plan->ropes);
    mxc_mem_free(plan->workers);
    mxc_mem_free(plan);
}

void mxc_cpu_plan_memory(const struct mxc_plan *plan, struct mxc_plan_memory *memory) {
    *memory = (struct mxc_plan_memory){
        .weights_bytes = (uint64_t)plan->packed_bytes + plan->vectors_bytes,
        .activation_bytes =
            (uint64_t)(plan->tower ? 0 : plan->fused.arena_bytes) + plan->scratch_bytes};
    for (int k = 0; k < MXC_N_KV_KINDS; k++)
        memory->kv_block_bytes[k] = plan->kv_block_bytes[k];
}
