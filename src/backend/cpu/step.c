/* Steps: what run does before the team starts. Every array of the step is checked against plan and
 * state (a wrong step is an error, never a stray read), block tables are copied with holes filled,
 * and each attention class gets its schedule: rows cut into tiles that see the same chunks of keys,
 * and how workers share them. The schedule never changes what a tile computes. */
#include "backend/cpu/cpu.h"

#include "base/mem.h"

#define BAD(err, ...) mxc_err_set(err, MXC_E_ARG, "step: " __VA_ARGS__)

void mxc_cpu_row_keys(const struct mxc_step *step, const struct mxc_span *span, int32_t row,
                      int32_t window, int32_t *begin, int32_t *end) {
    int32_t next = span->context + (row - span->row0) + 1;
    *begin = window && next > window ? next - window : 0;
    *end = step->row_end ? step->row_end[row] : next;
}

bool mxc_cpu_cross_keys(const struct mxc_step *step, int32_t row, int32_t *begin, int32_t *end) {
    if (!step->cross_range || step->cross_range[row] >= step->cross_range[step->n_rows + row])
        return false;
    *begin = step->cross_range[row];
    *end = step->cross_range[step->n_rows + row];
    return true;
}

void mxc_cpu_class_keys(const struct mxc_cpu_class *class, const struct mxc_step *step,
                        const struct mxc_span *span, int32_t row, int32_t *begin, int32_t *end) {
    if (class->kind != MXC_KV_CROSS) {
        mxc_cpu_row_keys(step, span, row, class->window, begin, end);
    } else if (!mxc_cpu_cross_keys(step, row, begin, end)) {
        *begin = 0;
        *end = span->cross_tokens;
    }
}

/* ---- checks */

/* Positions that are looked up in a table must be there. */
static enum mxc_code check_positions(const struct mxc_plan *plan, const struct mxc_step *step,
                                     struct mxc_err *err) {
    for (int32_t i = 0; i < plan->graph->n_nodes; i++) {
        const struct mxc_node *node = &plan->graph->nodes[i];
        if (node->op != MXC_OP_ADD_POSITION || node->u.position.fixed)
            continue;
        int64_t rows = plan->graph->weights[node->weights[0]].shape[0];
        for (int32_t r = 0; r < step->n_rows; r++) {
            int64_t at = (int64_t)step->positions[r] + node->u.position.offset;
            if (at < 0 || at >= rows)
                return BAD(err, "row %d: position %d is not in the model's table of %lld", r,
                           step->positions[r], (long long)rows);
        }
    }
    return MXC_OK;
}

static enum mxc_code check_rows(const struct mxc_plan *plan, const struct mxc_step *step,
                                const struct mxc_out *out, struct mxc_err *err) {
    int32_t vocab = 0;
    for (int32_t i = 0; i < plan->graph->n_nodes; i++)
        if (plan->graph->nodes[i].op == MXC_OP_EMBED)
            vocab = (int32_t)plan->graph->weights[plan->graph->nodes[i].weights[0]].shape[0];
    if (step->n_rows < 1 || step->n_rows > plan->max_rows)
        return BAD(err, "%d rows are not in [1, %d]", step->n_rows, plan->max_rows);
    if (!step->tokens || !step->positions || (step->n_axes != 1 && step->n_axes != 3))
        return BAD(err, "tokens or positions are missing, or %d position axes", step->n_axes);
    int32_t splice = 0;
    if (step->n_splices < 0 || (step->n_splices && !step->splices))
        return BAD(err, "splices are missing");
    for (int32_t i = 0; i < step->n_splices; i++) {
        const struct mxc_splice *s = &step->splices[i];
        if (s->row < 0 || s->row >= step->n_rows || (i && s->row <= s[-1].row) || !s->embedding)
            return BAD(err, "splice %d: row %d is out of range or order", i, s->row);
    }
    for (int32_t i = 0; vocab && i < step->n_rows; i++) {
        bool spliced = splice < step->n_splices && step->splices[splice].row == i;
        splice += spliced;
        if (!spliced && (step->tokens[i] < 0 || step->tokens[i] >= vocab))
            return BAD(err, "row %d: token %d is not in [0, %d)", i, step->tokens[i], vocab);
    }
    enum mxc_code code = check_positions(plan, step, err);
    if (code)
        return code;
    if (step->n_out < 0 || step->n_out > plan->max_out || (step->n_out && !step->out_row))
        return BAD(err, "%d output rows are not in [0, %d]", step->n_out, plan->max_out);
    if (step->n_out && (!out || !out->logits))
        return BAD(err, "no place for logits");
    for (int32_t i = 0; i < step->n_out; i++) {
        int32_t row = step->out_row[i];
        if (row < 0 || row >= step->n_rows || (i && row <= step->out_row[i - 1]))
            return BAD(err, "output %d: row %d is out of range or order", i, row);
    }
    return MXC_OK;
}

/* What a span says of its CROSS store. */
static enum mxc_code check_cross(const struct mxc_plan *plan, const struct mxc_step *step,
                                 int32_t index, struct mxc_err *err) {
    const struct mxc_span *span = &step->spans[index];
    int32_t tokens = span->cross_tokens;
    if (!plan->kv_block_bytes[MXC_KV_CROSS])
        return MXC_OK;
    if (tokens < 0 || tokens > INT32_MAX - MXC_ATTN_CHUNK ||
        (tokens && (!span->blocks[MXC_KV_CROSS] ||
                    (int64_t)span->n_blocks[MXC_KV_CROSS] * MXC_KV_BLOCK < tokens)))
        return BAD(err, "span %d: %d blocks do not hold %d tokens of pictures", index,
                   span->n_blocks[MXC_KV_CROSS], tokens);
    for (int32_t r = span->row0; r < span->row0 + span->n_rows; r++) {
        int32_t begin, end;
        if (mxc_cpu_cross_keys(step, r, &begin, &end) && (begin < 0 || end > tokens))
            return BAD(err, "row %d: it sees [%d, %d) of %d tokens of pictures", r, begin, end,
                       tokens);
    }
    return MXC_OK;
}

static enum mxc_code check_span(const struct mxc_plan *plan, const struct mxc_step *step,
                                int32_t index, int32_t row, struct mxc_err *err) {
    const struct mxc_span *span = &step->spans[index];
    if (span->row0 != row || span->n_rows < 1 || span->n_rows > step->n_rows - row)
        return BAD(err, "span %d: rows %d + %d do not go on at row %d of %d", index, span->row0,
                   span->n_rows, row, step->n_rows);
    if (span->context < 0 || span->context > INT32_MAX - span->n_rows - MXC_ATTN_CHUNK)
        return BAD(err, "span %d: context %d", index, span->context);
    if (span->adapter != -1)
        return mxc_err_set(err, MXC_E_UNSUPPORTED,
                           "step: span %d: adapter %d (adapters are not "
                           "supported)",
                           index, span->adapter);
    for (int32_t r = row; step->row_end && r < row + span->n_rows; r++) {
        int32_t next = span->context + (r - row) + 1, end = step->row_end[r];
        if (end < next || end > span->context + span->n_rows)
            return BAD(err, "row %d: its end %d is not in [%d, %d]", r, end, next,
                       span->context + span->n_rows);
    }
    for (int k = 0; k < MXC_N_KV_KINDS; k++) {
        int64_t have = (int64_t)span->n_blocks[k] * MXC_KV_BLOCK;
        if (k == MXC_KV_CROSS)
            continue;
        if (plan->kv_block_bytes[k] &&
            (!span->blocks[k] || have < (int64_t)span->context + span->n_rows))
            return BAD(err, "span %d: %d blocks of kind %d do not hold %d + %d tokens", index,
                       span->n_blocks[k], k, span->context, span->n_rows);
    }
    return check_cross(plan, step, index, err);
}

static enum mxc_code check_spans(const struct mxc_plan *plan, const struct mxc_step *step,
                                 struct mxc_err *err) {
    if (step->n_spans < 1 || step->n_spans > plan->max_spans || !step->spans)
        return BAD(err, "%d spans are not in [1, %d]", step->n_spans, plan->max_spans);
    int32_t row = 0;
    for (int32_t i = 0; i < step->n_spans; i++) {
        enum mxc_code code = check_span(plan, step, i, row, err);
        if (code)
            return code;
        row += step->spans[i].n_rows;
    }
    if (row != step->n_rows)
        return BAD(err, "spans hold %d rows of %d", row, step->n_rows);
    return MXC_OK;
}

/* ---- block tables */

static int32_t span_blocks(const struct mxc_span *span, int kind) {
    int32_t tokens = kind == MXC_KV_CROSS ? span->cross_tokens : span->context + span->n_rows;
    return (tokens + MXC_KV_BLOCK - 1) / MXC_KV_BLOCK;
}

/* First block of a kind that some row of the span sees. */
static int32_t first_block(const struct mxc_plan *plan, const struct mxc_step *step,
                           const struct mxc_span *span, int kind) {
    int32_t first = INT32_MAX;
    for (int32_t i = 0; i < plan->n_classes; i++) {
        int32_t begin, end;
        if ((int)plan->classes[i].kind != kind)
            continue;
        if (kind == MXC_KV_CROSS)
            return 0;
        mxc_cpu_row_keys(step, span, span->row0, plan->classes[i].window, &begin, &end);
        first = begin / MXC_KV_BLOCK < first ? begin / MXC_KV_BLOCK : first;
    }
    return first;
}

static enum mxc_code copy_table(struct mxc_plan *plan, const struct mxc_state *state,
                                const struct mxc_step *step, int32_t index, int kind,
                                int32_t *table, struct mxc_err *err) {
    const struct mxc_span *span = &step->spans[index];
    int32_t n = span_blocks(span, kind), first = first_block(plan, step, span, kind);
    const int32_t *blocks = span->blocks[kind];
    for (int32_t i = 0; i < n; i++) {
        if (blocks[i] < state->n_blocks[kind] && (blocks[i] >= 0 || (blocks[i] == -1 && i < first)))
            table[i] = blocks[i] < 0 ? blocks[n - 1] : blocks[i];
        else
            return BAD(err, "span %d: block %d of kind %d is %d, not in [0, %d)", index, i, kind,
                       blocks[i], state->n_blocks[kind]);
    }
    return MXC_OK;
}

static enum mxc_code copy_tables(struct mxc_plan *plan, const struct mxc_state *state,
                                 const struct mxc_step *step, struct mxc_err *err) {
    size_t n = 0;
    for (int32_t i = 0; i < step->n_spans; i++)
        for (int k = 0; k < MXC_N_KV_KINDS; k++)
            n += plan->kv_block_bytes[k] ? (size_t)span_blocks(&step->spans[i], k) : 0;
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
            enum mxc_code code = copy_table(plan, state, step, i, k, table, err);
            if (code)
                return code;
            plan->span_tables[i * MXC_N_KV_KINDS + k] = table;
            table += span_blocks(&step->spans[i], k);
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
    if (plan->n_attentions && (!state || state->plan != plan))
        return BAD(err, "the KV state is not one of this plan");
    enum mxc_code code;
    if ((code = check_rows(plan, step, out, err)) || (code = check_spans(plan, step, err)) ||
        (code = copy_tables(plan, state, step, err)))
        return code;
    return make_schedules(plan, step, err);
}
