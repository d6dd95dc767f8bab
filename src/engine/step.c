/* From the plan to plain arrays: rows of one request are consecutive, requests in the plan's order,
 * positions axis by axis, row_end only when some row of the step sees ahead.
 * In: the plan and the requests' tables. Out: struct mxc_step, which borrows both until it is run.
 */
#include "engine/step.h"

#include "base/mem.h"

#include <assert.h>

int32_t mxc_step_axes(const struct mxc_graph *graph) {
    for (int32_t i = 0; i < graph->n_ropes; i++)
        for (int j = 0; j < MXC_MAX_ROPE_AXES; j++)
            if (graph->ropes[i].sections[j])
                return MXC_MAX_ROPE_AXES;
    return 1;
}

enum mxc_code mxc_step_arrays_init(struct mxc_step_arrays *arrays, int32_t max_rows,
                                   int32_t max_spans, const struct mxc_graph *graph,
                                   struct mxc_err *err) {
    struct mxc_step_arrays a = {.max_rows = max_rows, .max_spans = max_spans};
    size_t n = (size_t)max_rows, n_positions;
    a.n_axes = mxc_step_axes(graph);
    a.splice_width = graph->hidden * (1 + graph->n_levels);
    a.all_rows = graph->hidden_out;
    if (!mxc_size_mul(n, (size_t)a.n_axes, &n_positions))
        return mxc_err_nomem(err);
    a.tokens = mxc_mem_array(n, sizeof *a.tokens);
    a.positions = mxc_mem_array(n_positions, sizeof *a.positions);
    a.row_end = mxc_mem_array(n, sizeof *a.row_end);
    a.out_row = mxc_mem_array(a.all_rows ? n : (size_t)max_spans, sizeof *a.out_row);
    a.spans = mxc_mem_array((size_t)max_spans, sizeof *a.spans);
    a.splices = mxc_mem_array(n, sizeof *a.splices);
    a.cross_range = mxc_mem_array(n, 2 * sizeof *a.cross_range);
    if (!a.cross_range || !a.tokens || !a.positions || !a.row_end || !a.out_row || !a.spans ||
        !a.splices) {
        mxc_step_arrays_fini(&a);
        return mxc_err_nomem(err);
    }
    *arrays = a;
    return MXC_OK;
}

void mxc_step_arrays_fini(struct mxc_step_arrays *arrays) {
    mxc_mem_free(arrays->tokens);
    mxc_mem_free(arrays->positions);
    mxc_mem_free(arrays->row_end);
    mxc_mem_free(arrays->out_row);
    mxc_mem_free(arrays->spans);
    mxc_mem_free(arrays->splices);
    mxc_mem_free(arrays->cross_range);
    *arrays = (struct mxc_step_arrays){0};
}

static void fill_row(struct mxc_step_arrays *a, const struct mxc_request *r, int32_t row,
                     int32_t token, int32_t n_rows, bool *ahead) {
    a->tokens[row] = r->tokens[token];
    for (int axis = 0; axis < a->n_axes; axis++)
        a->positions[axis * n_rows + row] = mxc_request_position(r, token, axis);
    a->row_end[row] = r->row_end && token < r->n_prompt ? r->row_end[token] : token + 1;
    *ahead |= a->row_end[row] > token + 1;
    const float *embedding = r->n_embeds && token < r->n_prompt
                                 ? mxc_request_embedding(r, token, a->splice_width)
                                 : NULL;
    if (embedding)
        a->splices[a->step.n_splices++] = (struct mxc_splice){row, embedding};
    mxc_request_cross(r, token, &a->cross_range[row], &a->cross_range[n_rows + row]);
}

void mxc_step_arrays_build(struct mxc_step_arrays *a, const struct mxc_sched *sched) {
    int32_t row = 0;
    bool ahead = false;
    assert(sched->n_rows <= a->max_rows && sched->n_items <= a->max_spans);
    a->step = (struct mxc_step){.n_rows = sched->n_rows,
                                .tokens = a->tokens,
                                .positions = a->positions,
                                .n_axes = a->n_axes,
                                .n_spans = sched->n_items,
                                .spans = a->spans,
                                .out_row = a->out_row,
                                .splices = a->splices};
    for (int32_t i = 0; i < sched->n_items; i++) {
        const struct mxc_sched_item *item = &sched->items[i];
        const struct mxc_request *r = item->request;
        const struct mxc_table *table = &r->table;
        struct mxc_span *span = &a->spans[i];
        *span = (struct mxc_span){.row0 = row,
                                  .n_rows = item->n_rows,
                                  .context = table->n_tokens,
                                  .rope_length = r->rope_length,
                                  .adapter = r->adapter,
                                  .cross_tokens = r->cross_tokens};
        if (r->cross_tokens)
            a->step.cross_range = a->cross_range;
        for (int k = 0; k < MXC_N_KV_KINDS; k++) {
            span->blocks[k] = table->blocks[k];
            span->n_blocks[k] = table->n_blocks[k];
        }
        for (int32_t j = 0; j < item->n_rows; j++)
            fill_row(a, r, row + j, table->n_tokens + j, sched->n_rows, &ahead);
        for (int32_t j = 0; j < item->n_rows && a->all_rows; j++)
            a->out_row[a->step.n_out++] = row + j;
        row += item->n_rows;
        if (item->out && !a->all_rows)
            a->out_row[a->step.n_out++] = row - 1;
    }
    if (ahead)
        a->step.row_end = a->row_end;
}
