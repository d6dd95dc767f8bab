/* Steps: what run does before the team starts. A step is checked against plan and state (check.h),
 * block tables are copied with holes filled, and each attention class gets its schedule: rows cut
 * into tiles that see the same chunks of keys, and how workers share them. The schedule never
 * changes what a tile computes. */
#include "backend/cpu/cpu.h"

#include "backend/check.h"
#include "base/mem.h"

void mxc_cpu_class_keys(const struct mxc_cpu_class *class, const struct mxc_step *step,
                        const struct mxc_span *span, int32_t row, int32_t *begin, int32_t *end) {
    int32_t next = span->context + (row - span->row0) + 1;
    if (class->kind != MXC_KV_CROSS) {
        *begin = class->window && next > class->window ? next - class->window : 0;
        *end = step->row_end ? step->row_end[row] : next;
    } else if (!mxc_step_cross_range(step, row, begin, end)) {
        *begin = 0;
        *end = span->cross_tokens;
    }
}

/* ---- block tables */

/* A hole stands for blocks that no row sees: any block does. */
static void copy_table(const struct mxc_span *span, int kind, int32_t *table) {
    const int32_t *blocks = span->blocks[kind];
    int32_t n = mxc_span_blocks(span, kind);
    for (int32_t i = 0; i < n; i++)
        table[i] = blocks[i] < 0 ? blocks[n - 1] : blocks[i];
}

static enum mxc_code copy_tables(struct mxc_plan *plan, const struct mxc_step *step,
                                 struct mxc_err *err) {
    size_t n = 0;
    for (int32_t i = 0; i < step->n_spans; i++)
        for (int k = 0; k < MXC_N_KV_KINDS; k++)
            n += plan->kv_block_bytes[k] ? (size_t)mxc_span_blocks(&step->spans[i], k) : 0;
    if (n > plan->n_tables) {
        int32_t *grown = mxc_mem_array(n + n / 2, sizeof *grown);
        if (!grown)
            return mxc_err_nomem(err);
        mxc_mem_free(plan->tables);
        plan->tables = grown;
        plan->n_tables = n + n / 2;
    }
    int32_t *table = plan->tables;
    for (int32_t i = 0; i < step->n_spans; i++)
        for (int k = 0; k < MXC_N_KV_KINDS; k++) {
            if (!plan->kv_block_bytes[k])
                continue;
            copy_table(&step->spans[i], k, table);
            plan->span_tables[i * MXC_N_KV_KINDS + k] = table;
            table += mxc_span_blocks(&step->spans[i], k);
        }
    return MXC_OK;
}

/* ---- schedules */

/* A tile ends where its tokens would fill the columns or see other chunks than its first row. */
static void cut_tiles(const struct mxc_cpu_class *class, const struct mxc_step *step,
                      struct mxc_cpu_schedule *s) {
    s->n_tiles = 0;
    for (int32_t i = 0; i < step->n_spans; i++) {
        const struct mxc_span *span = &step->spans[i];
        struct mxc_cpu_tile *tile = NULL;
        for (int32_t row = span->row0; row < span->row0 + span->n_rows; row++) {
            int32_t begin, end;
            mxc_cpu_class_keys(class, step, span, row, &begin, &end);
            int32_t chunk0 = begin / MXC_ATTN_CHUNK, chunk1 = (end - 1) / MXC_ATTN_CHUNK + 1;
            if (!tile || tile->n_rows == class->tokens_per_tile || tile->chunk0 != chunk0 ||
                tile->chunk1 != chunk1) {
                tile = &s->tiles[s->n_tiles++];
                *tile = (struct mxc_cpu_tile){
                    .span = i, .row0 = row, .chunk0 = chunk0, .chunk1 = chunk1};
            }
            tile->n_rows++;
        }
    }
}

static void choose_sharing(const struct mxc_cpu_class *class, int n_workers, int32_t n_rows,
                           struct mxc_cpu_schedule *s) {
    int32_t heads = class->n_kv_heads * class->n_subs, most = 0, chunks = 0;
    for (int32_t i = 0; i < s->n_tiles; i++) {
        int32_t n = s->tiles[i].chunk1 - s->tiles[i].chunk0;
        most = n > most ? n : most;
        s->tiles[i].item0 = chunks * heads;
        chunks += n;
    }
    /* a lone KV head with many query heads (a latent) is too much for one worker */
    s->own_heads =
        n_rows <= MXC_CPU_SMALL_ROWS && (class->n_kv_heads % n_workers == 0 ||
                                         (s->n_tiles <= 2 && most == 1 && class->n_subs == 1));
    s->n_items = s->n_tiles * heads;
    s->share_chunks = !s->own_heads && most > 1 && s->n_items < 4 * n_workers;
    if (s->share_chunks)
        s->n_items = chunks * heads;
}

static enum mxc_code grow_parts(struct mxc_plan *plan, size_t n_parts, size_t n_pending,
                                struct mxc_err *err) {
    size_t bytes;
    if (!mxc_size_mul(n_parts, plan->part_stride, &bytes))
        return mxc_err_nomem(err);
    if (bytes > plan->parts_bytes) {
        uint8_t *grown = mxc_mem_aligned(MXC_ALIGN, bytes, false);
        if (!grown)
            return mxc_err_nomem(err);
        mxc_mem_free_aligned(plan->parts, plan->parts_bytes);
        plan->parts = grown;
        plan->parts_bytes = bytes;
    }
    if (n_pending > plan->n_pending) {
        _Atomic int32_t *grown = mxc_mem_zalloc(n_pending, sizeof *grown);
        if (!grown)
            return mxc_err_nomem(err);
        mxc_mem_free((void *)plan->pending);
        plan->pending = grown;
        plan->n_pending = n_pending;
    }
    return MXC_OK;
}

static enum mxc_code make_schedules(struct mxc_plan *plan, const struct mxc_step *step,
                                    struct mxc_err *err) {
    int n_workers = mxc_team_size(plan->backend->team);
    size_t n_parts = 0, n_pending = 0;
    for (int32_t i = 0; i < plan->n_classes; i++) {
        struct mxc_cpu_schedule *s = &plan->schedules[i];
        cut_tiles(&plan->classes[i], step, s);
        choose_sharing(&plan->classes[i], n_workers, step->n_rows, s);
        s->pending0 = (int32_t)n_pending;
        if (!s->share_chunks)
            continue;
        n_parts = (size_t)s->n_items > n_parts ? (size_t)s->n_items : n_parts;
        n_pending +=
            (size_t)s->n_tiles * (size_t)(plan->classes[i].n_kv_heads * plan->classes[i].n_subs);
    }
    enum mxc_code code = grow_parts(plan, n_parts, n_pending, err);
    if (code)
        return code;
    for (int32_t i = 0; i < plan->n_classes; i++) {
        struct mxc_cpu_schedule *s = &plan->schedules[i];
        int32_t heads = plan->classes[i].n_kv_heads * plan->classes[i].n_subs;
        for (int32_t t = 0; s->share_chunks && t < s->n_tiles; t++)
            for (int32_t h = 0; h < heads; h++)
                atomic_store(&plan->pending[s->pending0 + t * heads + h],
                             s->tiles[t].chunk1 - s->tiles[t].chunk0);
    }
    plan->n_steps++;
    for (int32_t i = 0; i < plan->n_tickets; i++)
        atomic_store_explicit(&plan->tickets[i].next, 0, memory_order_relaxed);
    return MXC_OK;
}

enum mxc_code mxc_cpu_step_begin(struct mxc_plan *plan, const struct mxc_state *state,
                                 const struct mxc_step *step, const struct mxc_out *out,
                                 struct mxc_err *err) {
    static const int32_t no_blocks[MXC_N_KV_KINDS];
    if (plan->n_attentions && (!state || state->plan != plan))
        return mxc_err_set(err, MXC_E_ARG, "step: the KV state is not one of this plan");
    const struct mxc_step_limits limits = {.graph = plan->graph,
                                           .max_rows = plan->max_rows,
                                           .max_out = plan->max_out,
                                           .max_spans = plan->max_spans,
                                           .n_blocks =
                                               plan->n_attentions ? state->n_blocks : no_blocks};
    enum mxc_code code = mxc_step_check(step, out, &limits, err);
    if (code || (code = copy_tables(plan, step, err)))
        return code;
    return make_schedules(plan, step, err);
}
