/* Packing: fills the memory of a model's stacks from the checkpoint. Units of rows are taken from a
 * counter by a team; source pages are dropped behind them. Vectors and column norms are small and
 * done by the caller's thread. In: a model whose storage is decided. Out: model->memory. */
#include "backend/xla/pack.h"

#include "backend/weight_view.h"
#include "base/mem.h"
#include "base/team.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

enum { UNIT_NUMBERS = 1 << 18, STRIP = 64 };

/* Rows [row0, row1) of slice `slice` of weight `index` of a stack. */
struct unit {
    int32_t stack, index;
    int64_t slice, row0, row1;
};

struct packer {
    struct mxc_xla_model *model;
    struct unit *units;
    size_t n_units, last;
    _Atomic size_t next;
    uint8_t *scratch; /* of each worker */
    size_t scratch_bytes;
};

static const struct mxc_xla_source *source(const struct mxc_xla_model *m, const struct unit *u) {
    return &m->sources[m->order[m->stacks[u->stack].first + u->index]];
}

static uint8_t *target(const struct mxc_xla_model *m, const struct unit *u, enum mxc_xla_part part,
                       size_t row_numbers) {
    const struct mxc_xla_array *a = &m->stacks[u->stack].arrays[part];
    const struct mxc_view *v = &source(m, u)->views[u->slice];
    size_t row = (size_t)u->slice * (size_t)v->n + (size_t)u->row0;
    return m->memory + a->offset + (size_t)u->index * a->bytes +
           row * row_numbers * ((size_t)mxc_hlo_type_bits(a->shape.type) / 8);
}

/* ---- matrices */

/* Groups of `own` numbers as groups of `group`: every number of the row stands `times` times. */
static void widen(float *out, const float *in, size_t n, size_t times) {
    for (size_t i = 0; i < n; i++)
        for (size_t t = 0; t < times; t++)
            out[i * times + t] = in[i];
}

static void shift_codes(int8_t *to, const uint8_t *from, size_t n, const struct mxc_group_form *f) {
    int zero = f->zero_point > 0 ? f->zero_point : f->zero_point < 0 && f->bits == 8 ? 128 : 0;
    if (f->table) {
        for (size_t i = 0; i < n; i++)
            to[i] = f->table[from[i] & 15];
        return;
    }
    for (size_t i = 0; i < n; i++)
        to[i] = (int8_t)(from[i] - zero);
}

static void pack_groups(struct packer *p, const struct unit *u, uint8_t *scratch) {
    struct mxc_xla_model *m = p->model;
    const struct mxc_xla_stack *s = &m->stacks[u->stack];
    const struct mxc_view *v = &source(m, u)->views[u->slice];
    struct mxc_group_form form;
    (void)mxc_view_group_form(v, &form);
    size_t k = (size_t)v->k, own = k / form.group, groups = k / (size_t)s->group;
    size_t times = groups / own;
    float *scales = (float *)(void *)scratch, *biases = scales + STRIP * own;
    uint8_t *codes = (uint8_t *)(biases + STRIP * own);
    int8_t *out = (int8_t *)target(m, u, MXC_XLA_NUMBERS, k);
    float *to_scale = (float *)(void *)target(m, u, MXC_XLA_SCALES, groups);
    float *to_bias = s->arrays[MXC_XLA_BIASES].shape.n_dims
                         ? (float *)(void *)target(m, u, MXC_XLA_BIASES, groups)
                         : NULL;
    for (int64_t row = u->row0; row < u->row1; row += STRIP) {
        size_t n = (size_t)(u->row1 - row < STRIP ? u->row1 - row : STRIP);
        struct mxc_group_row rows = {codes, scales, biases};
        mxc_view_group_rows(v, row, (int64_t)n, &rows, k, own);
        shift_codes(out, codes, n * k, &form);
        widen(to_scale, scales, n * own, times);
        for (size_t i = 0; to_bias && i < n * own; i++)
            biases[i] = form.zero_point >= 0 ? 0
                        : form.bits == 8     ? biases[i] + 128 * scales[i]
                                             : biases[i];
        if (to_bias) {
            widen(to_bias, biases, n * own, times);
            to_bias += n * groups;
        }
        out += n * k;
        to_scale += n * groups;
    }
}

static void pack_dense(struct packer *p, const struct unit *u, uint8_t *scratch) {
    struct mxc_xla_model *m = p->model;
    const struct mxc_view *v = &source(m, u)->views[u->slice];
    size_t k = (size_t)v->k;
    enum mxc_xla_type type = m->stacks[u->stack].arrays[MXC_XLA_NUMBERS].shape.type;
    uint8_t *out = target(m, u, MXC_XLA_NUMBERS, k);
    float *rows = (float *)(void *)scratch;
    for (int64_t row = u->row0; row < u->row1; row += STRIP) {
        size_t n = (size_t)(u->row1 - row < STRIP ? u->row1 - row : STRIP);
        if (type == MXC_XLA_F32) {
            mxc_view_rows(v, row, (int64_t)n, (float *)(void *)out, k, rows);
            out += n * k * sizeof(float);
            continue;
        }
        /* the decoder widens, so the halves come back as they were */
        mxc_view_rows(v, row, (int64_t)n, rows, k, rows + STRIP * k);
        uint16_t *half = (uint16_t *)(void *)out;
        for (size_t i = 0; i < n * k; i++)
            half[i] = type == MXC_XLA_BF16 ? mxc_f32_to_bf16(rows[i]) : mxc_f32_to_f16(rows[i]);
        out += n * k * sizeof *half;
    }
}

static void pack_worker(void *arg, int worker, int n_workers) {
    struct packer *p = arg;
    (void)n_workers;
    for (;;) {
        size_t i = atomic_fetch_add(&p->next, 1);
        if (i >= p->last)
            return;
        const struct unit *u = &p->units[i];
        uint8_t *scratch = p->scratch + (size_t)worker * p->scratch_bytes;
        if (p->model->stacks[u->stack].group)
            pack_groups(p, u, scratch);
        else
            pack_dense(p, u, scratch);
        mxc_view_drop(&source(p->model, u)->views[u->slice], u->row0, u->row1);
    }
}

static int64_t unit_rows(int64_t k) {
    int64_t rows = UNIT_NUMBERS / (k ? k : 1) / STRIP * STRIP;
    return rows < STRIP ? STRIP : rows;
}

/* Counts units, and lists them when there is room. */
static size_t list_units(struct packer *p) {
    const struct mxc_xla_model *m = p->model;
    size_t n = 0;
    for (int32_t s = 0; s < m->n_stacks; s++) {
        const struct mxc_xla_stack *stack = &m->stacks[s];
        for (int32_t i = 0; i < stack->n; i++) {
            int32_t weight = m->order[stack->first + i];
            const struct mxc_xla_source *from = &m->sources[weight];
            if (!stack->used || m->graph->weights[weight].role == MXC_W_VECTOR)
                continue;
            for (int64_t slice = 0; slice < from->n; slice++) {
                const struct mxc_view *v = &from->views[slice];
                size_t k = (size_t)v->k, own = k / 16 + 1;
                size_t bytes =
                    STRIP * (k * 5 + 2 * own * sizeof(float)) + mxc_view_scratch(v) * sizeof(float);
                bytes = (bytes + 4095) / 4096 * 4096;
                p->scratch_bytes = bytes > p->scratch_bytes ? bytes : p->scratch_bytes;
                int64_t step = unit_rows(v->k);
                for (int64_t row = 0; row < v->n; row += step, n++)
                    if (p->units)
                        p->units[n] =
                            (struct unit){s, i, slice, row, v->n - row < step ? v->n : row + step};
            }
        }
    }
    return n;
}

/* ---- vectors and norms */

static void column_norms(const struct mxc_view *v, float *out, float *row, double *sums) {
    size_t k = (size_t)v->k;
    memset(sums, 0, k * sizeof *sums);
    for (int64_t r = 0; r < v->n; r++) {
        mxc_view_rows(v, r, 1, row, k, row + k);
        for (size_t i = 0; i < k; i++)
            sums[i] += (double)row[i] * (double)row[i];
    }
    for (size_t i = 0; i < k; i++)
        out[i] = (float)sqrt(sums[i]) + 1e-7f;
}

static enum mxc_code pack_small(struct mxc_xla_model *m, struct mxc_err *err) {
    size_t most = 1;
    for (int32_t i = 0; i < m->graph->n_weights; i++)
        for (int64_t k = 0; k < m->sources[i].n; k++) {
            size_t columns = (size_t)mxc_tensor_columns(m->sources[i].views[k].tensor);
            columns = columns > (size_t)m->sources[i].views[k].k ? columns
                                                                 : (size_t)m->sources[i].views[k].k;
            most = columns > most ? columns : most;
        }
    float *row = mxc_mem_array(2 * most, sizeof *row);
    double *sums = mxc_mem_array(most, sizeof *sums);
    enum mxc_code code = row && sums ? MXC_OK : mxc_err_nomem(err);
    for (int32_t s = 0; !code && s < m->n_stacks; s++) {
        const struct mxc_xla_stack *stack = &m->stacks[s];
        for (int32_t i = 0; i < stack->n; i++) {
            int32_t id = m->order[stack->first + i];
            const struct mxc_xla_array *numbers = &stack->arrays[MXC_XLA_NUMBERS];
            const struct mxc_xla_array *norms = &stack->arrays[MXC_XLA_NORMS];
            if (stack->used && m->graph->weights[id].role == MXC_W_VECTOR)
                mxc_weight_vector(
                    &m->graph->weights[id], m->sources[id].views,
                    (float *)(void *)(m->memory + numbers->offset + (size_t)i * numbers->bytes),
                    row);
            if (stack->norms)
                column_norms(
                    &m->sources[id].views[0],
                    (float *)(void *)(m->memory + norms->offset + (size_t)i * norms->bytes), row,
                    sums);
        }
    }
    mxc_mem_free(row);
    mxc_mem_free(sums);
    return code;
}

enum mxc_code mxc_xla_weights_pack(struct mxc_xla_model *m, int threads,
                                   const struct mxc_plan_options *options, struct mxc_err *err) {
    struct packer p = {.model = m};
    struct mxc_team *team = NULL;
    size_t all = 0;
    enum mxc_code code = mxc_team_new(threads, &team, err);
    if (code)
        return code;
    m->memory = mxc_mem_aligned(MXC_XLA_ALIGN, m->bytes, true);
    if (!m->memory || (code = pack_small(m, err))) {
        code = code ? code : mxc_err_nomem(err);
        goto out;
    }
    p.n_units = list_units(&p);
    p.units = mxc_mem_array(p.n_units + 1, sizeof *p.units);
    if (mxc_size_mul(p.scratch_bytes, (size_t)mxc_team_size(team), &all) && all)
        p.scratch = mxc_mem_aligned(MXC_XLA_ALIGN, all, false);
    if (!p.units || (all && !p.scratch)) {
        code = mxc_err_nomem(err);
        goto out;
    }
    (void)list_units(&p);
    for (size_t done = 0; !code && done < p.n_units; done = p.last) {
        p.last = p.n_units - done > STRIP ? done + STRIP : p.n_units;
        atomic_store(&p.next, done);
        mxc_team_run(team, pack_worker, &p);
        if (options && options->progress &&
            !options->progress(options->progress_user, (double)p.last / (double)p.n_units))
            code = mxc_err_set(err, MXC_E_CANCELLED, "loading was cancelled");
    }
out:
    mxc_mem_free_aligned(p.scratch, all);
    mxc_mem_free(p.units);
    mxc_team_free(team);
    return code;
}
