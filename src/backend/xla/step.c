/* Steps are checked before anything is written or sent: rows, tokens, positions, spans and block
 * tables against what the plan was made for and what the state has. A wrong step is an error of the
 * caller, never a stray read. */
#include "backend/xla/plan.h"

#define BAD(err, ...) mxc_err_set(err, MXC_E_ARG, "step: " __VA_ARGS__)

static bool has_kind(const struct mxc_plan *plan, int kind) {
    return plan->model->block_bytes[kind] > 0;
}

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

static enum mxc_code check_tokens(const struct mxc_plan *plan, const struct mxc_step *step,
                                  struct mxc_err *err) {
    int32_t vocab = 0, splice = 0;
    for (int32_t i = 0; i < plan->graph->n_nodes; i++)
        if (plan->graph->nodes[i].op == MXC_OP_EMBED)
            vocab = (int32_t)plan->graph->weights[plan->graph->nodes[i].weights[0]].shape[0];
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
    return MXC_OK;
}

static enum mxc_code check_rows(const struct mxc_plan *plan, const struct mxc_step *step,
                                const struct mxc_out *out, struct mxc_err *err) {
    if (step->n_rows < 1 || step->n_rows > plan->max_rows)
        return BAD(err, "%d rows are not in [1, %d]", step->n_rows, plan->max_rows);
    if (!step->tokens || !step->positions || (step->n_axes != 1 && step->n_axes != 3))
        return BAD(err, "tokens or positions are missing, or %d position axes", step->n_axes);
    enum mxc_code code = check_tokens(plan, step, err);
    if (code || (code = check_positions(plan, step, err)))
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

/* Blocks of a kind that hold the span's tokens; those before every row's window may be missing. */
static enum mxc_code check_blocks(const struct mxc_plan *plan, const struct mxc_state *state,
                                  const struct mxc_span *span, int32_t index, int kind,
                                  struct mxc_err *err) {
    int64_t tokens =
        kind == MXC_KV_CROSS ? span->cross_tokens : (int64_t)span->context + span->n_rows;
    int32_t n = (int32_t)((tokens + MXC_KV_BLOCK - 1) / MXC_KV_BLOCK),
            first = kind == MXC_KV_CROSS ? 0 : n;
    if (tokens && (!span->blocks[kind] || span->n_blocks[kind] < n))
        return BAD(err, "span %d: %d blocks of kind %d do not hold %lld tokens", index,
                   span->n_blocks[kind], kind, (long long)tokens);
    for (int32_t i = 0; kind != MXC_KV_CROSS && i < plan->graph->n_kvs; i++) {
        const struct mxc_kv *kv = &plan->graph->kvs[i];
        int32_t next = span->context + 1;
        int32_t begin = kv->window && next > kv->window ? next - kv->window : 0;
        if ((int)kv->kind == kind && begin / MXC_KV_BLOCK < first)
            first = begin / MXC_KV_BLOCK;
    }
    for (int32_t i = 0; i < n; i++) {
        int32_t block = span->blocks[kind][i];
        if (block >= state->n_blocks[kind] || block < (i < first ? -1 : 0))
            return BAD(err, "span %d: block %d of kind %d is %d, not in [0, %d)", index, i, kind,
                       block, state->n_blocks[kind]);
    }
    return MXC_OK;
}

static enum mxc_code check_cross(const struct mxc_step *step, const struct mxc_span *span,
                                 struct mxc_err *err) {
    for (int32_t r = span->row0; step->cross_range && r < span->row0 + span->n_rows; r++) {
        int32_t begin = step->cross_range[r], end = step->cross_range[step->n_rows + r];
        if (begin < end && (begin < 0 || end > span->cross_tokens))
            return BAD(err, "row %d: it sees [%d, %d) of %d tokens of pictures", r, begin, end,
                       span->cross_tokens);
    }
    return MXC_OK;
}

static enum mxc_code check_span(const struct mxc_plan *plan, const struct mxc_state *state,
                                const struct mxc_step *step, int32_t index, int32_t row,
                                struct mxc_err *err) {
    const struct mxc_span *span = &step->spans[index];
    if (span->row0 != row || span->n_rows < 1 || span->n_rows > step->n_rows - row)
        return BAD(err, "span %d: rows %d + %d do not go on at row %d of %d", index, span->row0,
                   span->n_rows, row, step->n_rows);
    if (span->context < 0 || span->context > INT32_MAX / 2 - span->n_rows ||
        span->cross_tokens < 0 || span->cross_tokens > INT32_MAX / 2)
        return BAD(err, "span %d: context %d, %d tokens of pictures", index, span->context,
                   span->cross_tokens);
    if (span->adapter != -1)
        return mxc_err_set(err, MXC_E_UNSUPPORTED,
                           "step: span %d: adapter %d (adapters are not supported)", index,
                           span->adapter);
    for (int32_t r = row; step->row_end && r < row + span->n_rows; r++) {
        int32_t next = span->context + (r - row) + 1, end = step->row_end[r];
        if (end < next || end > span->context + span->n_rows)
            return BAD(err, "row %d: its end %d is not in [%d, %d]", r, end, next,
                       span->context + span->n_rows);
    }
    for (int k = 0; k < MXC_N_KV_KINDS; k++) {
        enum mxc_code code =
            has_kind(plan, k) ? check_blocks(plan, state, span, index, k, err) : MXC_OK;
        if (code)
            return code;
    }
    return has_kind(plan, MXC_KV_CROSS) ? check_cross(step, span, err) : MXC_OK;
}

enum mxc_code mxc_xla_step_check(const struct mxc_plan *plan, const struct mxc_state *state,
                                 const struct mxc_step *step, const struct mxc_out *out,
                                 struct mxc_err *err) {
    if (!state || state->plan != plan)
        return BAD(err, "the KV state is not one of this plan");
    enum mxc_code code = check_rows(plan, step, out, err);
    if (code)
        return code;
    if (step->n_spans < 1 || step->n_spans > plan->max_spans || !step->spans)
        return BAD(err, "%d spans are not in [1, %d]", step->n_spans, plan->max_spans);
    int32_t row = 0;
    for (int32_t i = 0; i < step->n_spans; i++) {
        if ((code = check_span(plan, state, step, i, row, err)))
            return code;
        row += step->spans[i].n_rows;
    }
    if (row != step->n_rows)
        return BAD(err, "spans hold %d rows of %d", row, step->n_rows);
    return MXC_OK;
}
