/* Checks of plan options, steps and KV blocks, see check.h. In: words of a caller, and what a plan
 * and a state have room for. Out: MXC_OK, or one line that names the first wrong thing.
 * Invariant: an array is read only as far as what was checked before says that it reaches. */
#include "backend/check.h"

#define BAD(err, ...) mxc_err_set(err, MXC_E_ARG, "step: " __VA_ARGS__)

enum { MOST_TOKENS = INT32_MAX / 2 };

/* ---- options */

enum mxc_code mxc_plan_options_check(const struct mxc_plan_options *options,
                                     const struct mxc_graph *graph, struct mxc_err *err) {
    enum { MOST = 1 << 20 };
    if (options->precision < MXC_PRECISION_AUTO || options->precision > MXC_PRECISION_FAST)
        return mxc_err_set(err, MXC_E_ARG, "precision: %d is unknown", (int)options->precision);
    if (graph->input != MXC_NONE)
        return MXC_OK;
    if (options->max_rows < 1 || options->max_rows > MOST)
        return mxc_err_set(err, MXC_E_ARG, "max_rows: %d is not in [1, %d]", options->max_rows,
                           MOST);
    if (options->max_out < 0 || options->max_out > options->max_rows)
        return mxc_err_set(err, MXC_E_ARG, "max_out: %d is not in [0, max_rows %d]",
                           options->max_out, options->max_rows);
    if (options->max_spans < 1 || options->max_spans > options->max_rows)
        return mxc_err_set(err, MXC_E_ARG, "max_spans: %d is not in [1, max_rows %d]",
                           options->max_spans, options->max_rows);
    if (graph->logits < 0 || graph->logits >= graph->n_values ||
        graph->values[graph->logits].rows.kind != MXC_ROWS_R)
        return mxc_err_set(err, MXC_E_UNSUPPORTED,
                           "a graph whose result is not logits of the output rows");
    return MXC_OK;
}

/* ---- rows */

/* Positions that are looked up in a table must be there. */
static enum mxc_code check_positions(const struct mxc_step *step, const struct mxc_graph *graph,
                                     struct mxc_err *err) {
    for (int32_t i = 0; i < graph->n_nodes; i++) {
        const struct mxc_node *node = &graph->nodes[i];
        if (node->op != MXC_OP_ADD_POSITION || node->u.position.fixed)
            continue;
        int64_t rows = graph->weights[node->weights[0]].shape[0];
        for (int32_t r = 0; r < step->n_rows; r++) {
            int64_t at = (int64_t)step->positions[r] + node->u.position.offset;
            if (at < 0 || at >= rows)
                return BAD(err, "row %d: position %d is not in the model's table of %lld", r,
                           step->positions[r], (long long)rows);
        }
    }
    return MXC_OK;
}

/* A token of a spliced row says nothing. */
static enum mxc_code check_tokens(const struct mxc_step *step, const struct mxc_graph *graph,
                                  struct mxc_err *err) {
    int32_t vocab = 0, splice = 0;
    for (int32_t i = 0; i < graph->n_nodes; i++)
        if (graph->nodes[i].op == MXC_OP_EMBED)
            vocab = (int32_t)graph->weights[graph->nodes[i].weights[0]].shape[0];
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

static enum mxc_code check_rows(const struct mxc_step *step, const struct mxc_out *out,
                                const struct mxc_step_limits *limits, struct mxc_err *err) {
    if (step->n_rows < 1 || step->n_rows > limits->max_rows)
        return BAD(err, "%d rows are not in [1, %d]", step->n_rows, limits->max_rows);
    if (!step->tokens || !step->positions || (step->n_axes != 1 && step->n_axes != 3))
        return BAD(err, "tokens or positions are missing, or %d position axes", step->n_axes);
    enum mxc_code code = check_tokens(step, limits->graph, err);
    if (code || (code = check_positions(step, limits->graph, err)))
        return code;
    if (step->n_out < 0 || step->n_out > limits->max_out || (step->n_out && !step->out_row))
        return BAD(err, "%d output rows are not in [0, %d]", step->n_out, limits->max_out);
    if (step->n_out && (!out || !out->logits))
        return BAD(err, "no place for logits");
    for (int32_t i = 0; i < step->n_out; i++) {
        int32_t row = step->out_row[i];
        if (row < 0 || row >= step->n_rows || (i && row <= step->out_row[i - 1]))
            return BAD(err, "output %d: row %d is out of range or order", i, row);
    }
    return MXC_OK;
}

/* ---- spans */

int32_t mxc_span_blocks(const struct mxc_span *span, int kind) {
    int32_t tokens = kind == MXC_KV_CROSS ? span->cross_tokens : span->context + span->n_rows;
    return (tokens + MXC_KV_BLOCK - 1) / MXC_KV_BLOCK;
}

/* Blocks of a kind that lie wholly before what any row of the span sees: they may be missing. */
static int32_t unseen_blocks(const struct mxc_span *span, int kind, const struct mxc_graph *graph) {
    int32_t first = INT32_MAX, next = span->context + 1;
    if (kind == MXC_KV_CROSS)
        return 0;
    for (int32_t i = 0; i < graph->n_kvs; i++) {
        int32_t window = graph->kvs[i].window;
        int32_t block = window && next > window ? (next - window) / MXC_KV_BLOCK : 0;
        if ((int)graph->kvs[i].kind == kind && block < first)
            first = block;
    }
    return first;
}

static enum mxc_code check_blocks(const struct mxc_step *step, int32_t index, int kind,
                                  const struct mxc_step_limits *limits, struct mxc_err *err) {
    const struct mxc_span *span = &step->spans[index];
    int64_t have = span->blocks[kind] ? (int64_t)span->n_blocks[kind] * MXC_KV_BLOCK : 0;
    if (kind == MXC_KV_CROSS &&
        (span->cross_tokens < 0 || span->cross_tokens > MOST_TOKENS || have < span->cross_tokens))
        return BAD(err, "span %d: %d blocks do not hold %d tokens of pictures", index,
                   span->n_blocks[kind], span->cross_tokens);
    if (kind != MXC_KV_CROSS && have < (int64_t)span->context + span->n_rows)
        return BAD(err, "span %d: %d blocks of kind %d do not hold %d + %d tokens", index,
                   span->n_blocks[kind], kind, span->context, span->n_rows);
    int32_t n = mxc_span_blocks(span, kind), unseen = unseen_blocks(span, kind, limits->graph);
    for (int32_t i = 0; i < n; i++) {
        int32_t block = span->blocks[kind][i];
        if (block >= limits->n_blocks[kind] || block < (i < unseen ? -1 : 0))
            return BAD(err, "span %d: block %d of kind %d is %d, not in [0, %d)", index, i, kind,
                       block, limits->n_blocks[kind]);
    }
    return MXC_OK;
}

static enum mxc_code check_cross(const struct mxc_step *step, const struct mxc_span *span,
                                 struct mxc_err *err) {
    for (int32_t r = span->row0; r < span->row0 + span->n_rows; r++) {
        int32_t begin, end;
        if (mxc_step_cross_range(step, r, &begin, &end) && (begin < 0 || end > span->cross_tokens))
            return BAD(err, "row %d: it sees [%d, %d) of %d tokens of pictures", r, begin, end,
                       span->cross_tokens);
    }
    return MXC_OK;
}

static enum mxc_code check_span(const struct mxc_step *step, int32_t index, int32_t row,
                                const struct mxc_step_limits *limits, struct mxc_err *err) {
    const struct mxc_span *span = &step->spans[index];
    if (span->row0 != row || span->n_rows < 1 || span->n_rows > step->n_rows - row)
        return BAD(err, "span %d: rows %d + %d do not go on at row %d of %d", index, span->row0,
                   span->n_rows, row, step->n_rows);
    if (span->context < 0 || span->context > MOST_TOKENS - span->n_rows)
        return BAD(err, "span %d: context %d", index, span->context);
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
            limits->n_blocks[k] ? check_blocks(step, index, k, limits, err) : MXC_OK;
        if (code)
            return code;
    }
    return limits->n_blocks[MXC_KV_CROSS] ? check_cross(step, span, err) : MXC_OK;
}

enum mxc_code mxc_step_check(const struct mxc_step *step, const struct mxc_out *out,
                             const struct mxc_step_limits *limits, struct mxc_err *err) {
    enum mxc_code code = check_rows(step, out, limits, err);
    int32_t row = 0;
    if (code)
        return code;
    if (step->n_spans < 1 || step->n_spans > limits->max_spans || !step->spans)
        return BAD(err, "%d spans are not in [1, %d]", step->n_spans, limits->max_spans);
    for (int32_t i = 0; i < step->n_spans; i++) {
        if ((code = check_span(step, i, row, limits, err)))
            return code;
        row += step->spans[i].n_rows;
    }
    return row == step->n_rows ? MXC_OK : BAD(err, "spans hold %d rows of %d", row, step->n_rows);
}

/* ---- looking up */

const float *mxc_step_splice(const struct mxc_step *step, int32_t row) {
    int32_t low = 0, high = step->n_splices;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (step->splices[middle].row < row)
            low = middle + 1;
        else
            high = middle;
    }
    return low < step->n_splices && step->splices[low].row == row ? step->splices[low].embedding
                                                                  : NULL;
}

bool mxc_step_cross_range(const struct mxc_step *step, int32_t row, int32_t *begin, int32_t *end) {
    if (!step->cross_range || step->cross_range[row] >= step->cross_range[step->n_rows + row])
        return false;
    *begin = step->cross_range[row];
    *end = step->cross_range[step->n_rows + row];
    return true;
}

/* ---- blocks of states */

enum mxc_code mxc_kv_block_check(const int32_t n_blocks[MXC_N_KV_KINDS], enum mxc_kv_kind kind,
                                 int32_t block, struct mxc_err *err) {
    if ((unsigned)kind >= MXC_N_KV_KINDS)
        return mxc_err_set(err, MXC_E_ARG, "KV kind %d is unknown", (int)kind);
    if (block < 0 || block >= n_blocks[kind])
        return mxc_err_set(err, MXC_E_ARG, "KV block %d is not in [0, %d) of kind %s", block,
                           n_blocks[kind], mxc_kv_kind_name(kind));
    return MXC_OK;
}

enum mxc_code mxc_kv_put_check(const int32_t n_blocks[MXC_N_KV_KINDS], const int32_t *blocks,
                               int32_t token0, int32_t n, const float *rows, struct mxc_err *err) {
    enum mxc_code code = MXC_OK;
    if (!n_blocks[MXC_KV_CROSS])
        return mxc_err_set(err, MXC_E_ARG, "the model has no KV of kind cross");
    if (token0 < 0 || n < 0 || token0 > INT32_MAX - n || (n && (!blocks || !rows)))
        return mxc_err_set(err, MXC_E_ARG, "KV of kind cross: tokens %d + %d, or nothing to put",
                           token0, n);
    int32_t end = n ? (token0 + n - 1) / MXC_KV_BLOCK + 1 : 0;
    for (int32_t i = token0 / MXC_KV_BLOCK; !code && i < end; i++)
        code = mxc_kv_block_check(n_blocks, MXC_KV_CROSS, blocks[i], err);
    return code;
}
