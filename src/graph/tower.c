/* Towers: what a backend may rely on when a run begins. In: a tower's graph and the arrays of one
 * run, which come from pictures and the files of a model. Out: an error that names the array and
 * the place, or nothing to fear: no op of a backend looks at an entry again. */
#include "graph/tower.h"

#include <math.h>

#define BAD(err, ...) mxc_err_set(err, MXC_E_ARG, "tower: " __VA_ARGS__)

enum { MOST_ROWS = 1 << 24 };

enum mxc_code mxc_tower_check_rows(const struct mxc_graph *g, const int32_t *n_rows,
                                   struct mxc_err *err) {
    for (int32_t s = 0; s < g->n_slots; s++)
        if (n_rows[s] < 1 || n_rows[s] > MOST_ROWS)
            return BAD(err, "slot %d: %d rows are not in [1, %d]", s, n_rows[s], MOST_ROWS);
    for (int32_t v = 0; v < g->n_values; v++) {
        struct mxc_extent rows = g->values[v].rows;
        if (n_rows[rows.slot] % rows.divisor)
            return BAD(err, "slot %d: %d rows are no multiple of %d", rows.slot, n_rows[rows.slot],
                       rows.divisor);
    }
    return MXC_OK;
}

/* Entries of index i are in [-1, limit). */
static enum mxc_code check_entries(const struct mxc_graph *g, const struct mxc_tower_input *input,
                                   int32_t i, int64_t limit, struct mxc_err *err) {
    size_t rows = (size_t)mxc_tower_rows(input, mxc_tower_index_rows(g, i));
    size_t n = rows * (size_t)g->indices[i].terms;
    for (size_t k = 0; k < n; k++)
        if (input->index[i][k] < -1 || input->index[i][k] >= limit)
            return BAD(err, "index %d, term %zu, row %zu: %d is not in [-1, %lld)", i, k / rows,
                       k % rows, input->index[i][k], (long long)limit);
    return MXC_OK;
}

static enum mxc_code check_indices(const struct mxc_graph *g, const struct mxc_tower_input *input,
                                   struct mxc_err *err) {
    for (int32_t i = 0; i < g->n_indices; i++) {
        size_t n =
            (size_t)mxc_tower_rows(input, mxc_tower_index_rows(g, i)) * (size_t)g->indices[i].terms;
        if (!input->index[i])
            return BAD(err, "index %d is missing", i);
        if (g->indices[i].weighted && !input->factor[i])
            return BAD(err, "the factors of index %d are missing", i);
        for (size_t k = 0; g->indices[i].weighted && k < n; k++)
            if (!isfinite(input->factor[i][k]))
                return BAD(err, "index %d: factor %zu is not finite", i, k);
    }
    enum mxc_code code = MXC_OK;
    for (int32_t i = 0; !code && i < g->n_nodes; i++) {
        const struct mxc_node *node = &g->nodes[i];
        if (node->op == MXC_OP_LOOKUP)
            code = check_entries(g, input, node->u.lookup.index,
                                 g->weights[node->weights[0]].shape[0], err);
        if (node->op == MXC_OP_GATHER)
            code = check_entries(g, input, node->u.lookup.index,
                                 mxc_tower_rows(input, g->values[node->in[0]].rows), err);
    }
    return code;
}

static enum mxc_code check_ranges(const struct mxc_graph *g, const struct mxc_tower_input *input,
                                  struct mxc_err *err) {
    for (int32_t i = 0; i < g->n_ranges; i++) {
        int32_t rows = mxc_tower_rows(input, g->ranges[i]);
        const int32_t *begin = input->range[i];
        if (!begin)
            return BAD(err, "range %d is missing", i);
        const int32_t *end = begin + rows;
        for (int32_t r = 0; r < rows; r++)
            if (begin[r] < 0 || begin[r] >= end[r] || end[r] > rows)
                return BAD(err, "range %d, row %d: [%d, %d) is not within %d rows", i, r, begin[r],
                           end[r], rows);
    }
    return MXC_OK;
}

enum mxc_code mxc_tower_check(const struct mxc_graph *g, const struct mxc_tower_input *input,
                              struct mxc_err *err) {
    enum mxc_code code = mxc_tower_check_rows(g, input->n_rows, err);
    if (code)
        return code;
    if (!input->rows)
        return BAD(err, "the rows are missing");
    code = check_indices(g, input, err);
    return code ? code : check_ranges(g, input, err);
}
