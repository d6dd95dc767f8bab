/* EMBED, and the RoPE tables of a step: what depends on tokens and positions only. Rows of the
 * embedding are decoded from the mapped checkpoint; spliced rows are copied. A read brings in the
 * pages around it, too, so all of the table would be resident after some thousand tokens; its pages
 * are let go at every DROP_EVERY-th position of a sequence. Angles are rounded to f32 before cos
 * and sin, as the reference does. */
#include "backend/cpu/cpu.h"

#include "backend/check.h"

#include <math.h>
#include <string.h>

enum { DROP_EVERY = 64 };

void mxc_cpu_op_embed(struct mxc_cpu_worker *worker, const struct mxc_cpu_op *op) {
    const struct mxc_cpu_run *run = worker->run;
    const struct mxc_tensor *table =
        run->plan->weights[op->node->weights[0]].slices[0].view->tensor;
    int32_t width = run->plan->graph->values[op->out].width, begin, end;
    float scale = op->node->u.embed.scale;
    size_t ld;
    float *out = mxc_cpu_value(run, op->out, &ld);
    mxc_cpu_split(worker, run->step->n_rows, 1, &begin, &end);
    for (int32_t row = begin; row < end; row++) {
        float *y = out + (size_t)row * ld;
        const float *spliced = mxc_step_splice(run->step, row);
        if (spliced) {
            memcpy(y, spliced, (size_t)width * sizeof *y);
            continue;
        }
        mxc_tensor_row(table, run->step->tokens[row], y);
        for (int32_t i = 0; scale != 1.0f && i < width; i++)
            y[i] *= scale;
        if (run->step->positions[row] % DROP_EVERY == DROP_EVERY - 1)
            mxc_tensor_drop(table, 0, mxc_tensor_rows(table));
    }
}

static void rope_row(const struct mxc_cpu_rope *rope, const struct mxc_step *step, int32_t row,
                     const float *inv_freq, float factor) {
    float *cos_row = rope->cos + (size_t)row * (size_t)rope->half;
    float *sin_row = rope->sin + (size_t)row * (size_t)rope->half;
    for (int32_t i = 0; i < rope->half; i++) {
        size_t axis = step->n_axes > 1 ? rope->axis[i] : 0;
        int32_t position = step->positions[axis * (size_t)step->n_rows + (size_t)row];
        double angle = (double)((float)position * inv_freq[i]);
        cos_row[i] = (float)cos(angle) * factor;
        sin_row[i] = (float)sin(angle) * factor;
    }
}

void mxc_cpu_rope_tables(struct mxc_cpu_worker *worker) {
    const struct mxc_cpu_run *run = worker->run;
    const struct mxc_step *step = run->step;
    int32_t begin, end;
    mxc_cpu_split(worker, step->n_rows, MXC_CPU_LINE_FLOATS, &begin, &end);
    for (int32_t i = 0; i < run->plan->graph->n_ropes; i++) {
        const struct mxc_cpu_rope *rope = &run->plan->ropes[i];
        float own[MXC_MAX_ROPE_HALF], factor = rope->factor;
        const float *inv_freq = rope->inv_freq;
        const struct mxc_span *span = step->spans, *last = NULL;
        for (int32_t row = begin; row < end; row++) {
            while (row >= span->row0 + span->n_rows)
                span++;
            if (rope->by_length && span != last) {
                mxc_rope_frequencies(rope->rope, span->rope_length, own, &factor);
                inv_freq = own;
                last = span;
            }
            rope_row(rope, step, row, inv_freq, factor);
        }
    }
}
