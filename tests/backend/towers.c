/* Towers for tests, see towers.h. */
#include "backend/towers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 32, HEADS = 2, DIM = 16, FFN = 48, OUT = 36, POSITIONS = 20 };

/* ---- graphs */

static int32_t linear(struct mxc_graph *g, int32_t x, int64_t out, int32_t residual,
                      const char *name, int n) {
    struct mxc_linear_part part = {
        mxc_graph_matrix(g, out, g->values[x].width, "%s.%d.weight", name, n),
        mxc_graph_vector(g, out, "%s.%d.bias", name, n)};
    return mxc_graph_linear(g, x, 1, &part, 1, residual);
}

static int32_t layer_norm(struct mxc_graph *g, int32_t x, const char *name, int n) {
    int32_t width = g->values[x].width;
    return mxc_graph_layer_norm(g, x, mxc_graph_vector(g, width, "%s.%d.norm", name, n),
                                mxc_graph_vector(g, width, "%s.%d.bias", name, n), 1e-6f);
}

static int32_t qwen(struct mxc_graph *g) {
    struct mxc_weight kernel = {.role = MXC_W_MATRIX, .n_dims = 2, .shape = {WIDTH, TOWER_INPUT}};
    struct mxc_weight_view view = {
        .n_dims = 5, .shape = {WIDTH, 3, 2, 2, 2}, .row_step = 1, .flat = true};
    struct mxc_rope rope = {
        .dims = DIM, .theta = 100, .sections = {DIM / 4, DIM / 4, 0}, .restart = true};
    int32_t x = mxc_graph_input(g, TOWER_INPUT);
    int32_t positions = mxc_graph_index(g, x, 2, false), range = mxc_graph_range(g, x);
    struct mxc_linear_part part = {mxc_graph_view(g, &kernel, &view, "patch"), MXC_NONE};
    struct mxc_attend_attr attr = {.n_heads = HEADS,
                                   .head_dim = DIM,
                                   .scale = 0.25f,
                                   .rope = mxc_graph_rope(g, &rope),
                                   .positions = positions,
                                   .range = range};
    x = mxc_graph_linear(g, x, 1, &part, 1, MXC_NONE);
    for (int i = 0; i < 2; i++) {
        mxc_graph_begin_layer(g, i);
        mxc_graph_mark_layer_value(g, i, x);
        int32_t h = layer_norm(g, x, "norm1", i);
        h = mxc_graph_attend(g, linear(g, h, 3 * WIDTH, MXC_NONE, "qkv", i), &attr);
        x = linear(g, h, WIDTH, x, "proj", i);
        h = linear(g, layer_norm(g, x, "norm2", i), FFN, MXC_NONE, "fc1", i);
        x = linear(g, mxc_graph_act(g, h, i ? MXC_ACT_GELU : MXC_ACT_GELU_QUICK), WIDTH, x, "fc2",
                   i);
    }
    mxc_graph_begin_layer(g, MXC_NONE);
    mxc_graph_mark_layer_value(g, 2, x);
    x = layer_norm(g, x, "final", 0);
    mxc_graph_mark_layer_value(g, 3, x);
    x = mxc_graph_merge(g, x, 4);
    x = mxc_graph_act(g, linear(g, x, 4 * WIDTH, MXC_NONE, "merge", 0), MXC_ACT_GELU);
    return linear(g, x, OUT, MXC_NONE, "merge", 1);
}

/* Slot 0: patches; slot 1: a class row in front of every four patches; slot 2: patches again. */
static int32_t mixed(struct mxc_graph *g) {
    int32_t x = mxc_graph_input(g, TOWER_INPUT), values[3];
    int32_t bilinear = mxc_graph_index(g, x, 4, true);
    x = linear(g, x, WIDTH, MXC_NONE, "patch", 0);
    x = mxc_graph_lookup(g, x, mxc_graph_table(g, POSITIONS, WIDTH, "positions"), bilinear,
                         mxc_graph_vector(g, 1, "gate.0"), true);
    x = mxc_graph_gather(g, x);
    int32_t rows = mxc_graph_index(g, x, 1, false), range = mxc_graph_range(g, x);
    x = mxc_graph_lookup(g, x, mxc_graph_table(g, 3, WIDTH, "class"), rows, MXC_NONE, false);
    x = mxc_graph_lookup(g, x, mxc_graph_table(g, 5, WIDTH, "tiles"),
                         mxc_graph_index(g, x, 1, false), mxc_graph_vector(g, 1, "gate.1"), false);
    struct mxc_attend_attr attr = {
        .n_heads = HEADS, .head_dim = DIM, .scale = 0.3f, .rope = MXC_NONE, .range = range};
    int32_t h = mxc_graph_group_norm(g, x, mxc_graph_vector(g, WIDTH / 2, "group.norm"), 1e-5f, 2);
    h = mxc_graph_attend(g, linear(g, h, 3 * WIDTH, MXC_NONE, "qkv", 0), &attr);
    h = linear(g, h, WIDTH, MXC_NONE, "proj", 0);
    x = mxc_graph_tanh_scale(g, h, mxc_graph_vector(g, 1, "gate.2"), x);
    h = mxc_graph_rms_norm(g, x, mxc_graph_vector(g, WIDTH, "rms.norm"), 1e-5f, 0);
    struct mxc_linear_part gate_up[2] = {{mxc_graph_matrix(g, FFN, WIDTH, "gate.weight"), MXC_NONE},
                                         {mxc_graph_matrix(g, FFN, WIDTH, "up.weight"), MXC_NONE}};
    h = mxc_graph_glu(g, mxc_graph_linear(g, h, 2, gate_up, 1, MXC_NONE), MXC_ACT_GELU_QUICK);
    int32_t deep = linear(g, h, WIDTH, x, "down", 0);
    h = mxc_graph_attend(g, linear(g, deep, 3 * WIDTH, MXC_NONE, "qkv", 1), &attr);
    x = mxc_graph_add(g, deep, linear(g, h, WIDTH, MXC_NONE, "proj", 1));
    values[0] = deep;
    values[1] = x;
    values[2] = mxc_graph_tanh_scale(g, x, mxc_graph_vector(g, 1, "gate.3"), MXC_NONE);
    x = mxc_graph_concat(g, 3, values, true);
    x = mxc_graph_gather(g, x); /* patches again */
    x = mxc_graph_mean_rows(g, x, 2);
    values[0] = x;
    values[1] = linear(g, x, 8, MXC_NONE, "side", 0);
    x = mxc_graph_concat(g, 2, values, false);
    x = mxc_graph_merge(g, mxc_graph_softcap(g, x, 5), 2);
    h = linear(g, x, OUT, MXC_NONE, "out", 0);
    return linear(g, x, OUT, h, "out", 1);
}

void tower_model(struct mini *m, enum tower_model model, enum mxc_storage storage) {
    struct mxc_graph *g = NULL;
    assert_int_equal(mxc_graph_new("tower", &g, NULL), MXC_OK);
    int32_t out = model == TOWER_QWEN ? qwen(g) : mixed(g);
    mini_open(m, g, out, storage);
}

void tower_attend(struct mini *m, int32_t heads, int32_t dim, bool interleaved) {
    struct mxc_graph *g = NULL;
    struct mxc_rope rope = {.dims = dim, .theta = 50, .interleaved = interleaved};
    assert_int_equal(mxc_graph_new("attend", &g, NULL), MXC_OK);
    int32_t x = mxc_graph_input(g, 3 * heads * dim);
    struct mxc_attend_attr attr = {.n_heads = heads,
                                   .head_dim = dim,
                                   .scale = 1 / sqrtf((float)dim),
                                   .rope = mxc_graph_rope(g, &rope),
                                   .positions = mxc_graph_index(g, x, 1, false),
                                   .range = mxc_graph_range(g, x)};
    x = mxc_graph_attend(g, x, &attr);
    mini_open(m, g, mxc_graph_tanh_scale(g, x, mxc_graph_vector(g, 1, "gate"), MXC_NONE),
              MXC_ST_F32);
}

/* ---- inputs */

static uint32_t next(uint32_t *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static float number(uint32_t *seed) {
    return (float)next(seed) / (float)(1 << 23) - 1;
}

/* Rows of slot 1 or 2 that come from `rows` rows of slot 0: a class row for every four. */
static int32_t slot_rows(const struct mini *m, int slot, int32_t rows) {
    return slot == 1 && m->graph->n_slots == 3 ? rows + rows / 4 : rows;
}

static void *room(size_t n, size_t size) {
    void *p = calloc(n ? n : 1, size);
    assert_non_null(p);
    return p;
}

/* Entry of index i for row r of a picture whose rows of the source begin at `from`. */
static int32_t entry(const struct mini *m, int i, int32_t r, int32_t from, uint32_t *seed) {
    const struct mxc_graph *g = m->graph;
    if (g->n_slots == 1)
        return (int32_t)(next(seed) % 60);
    switch (i) {
    case 1: /* there: class rows are new */
        return r % 5 ? from + r - r / 5 - 1 : -1;
    case 2:
        return r % 5 ? -1 : (int32_t)(next(seed) % 3);
    case 4: /* and back */
        return from + r / 4 * 5 + 1 + r % 4;
    default:
        return (int32_t)(next(seed) % (uint32_t)(g->indices[i].limit + 1)) - 1;
    }
}

static void feed_index(struct tower_feed *f, const struct mini *m, int i, int n,
                       const int32_t *rows, const uint32_t *seeds) {
    const struct mxc_graph *g = m->graph;
    size_t all = (size_t)f->input.n_rows[g->indices[i].slot], at = 0;
    int32_t terms = g->indices[i].terms, from = 0;
    f->index[i] = room(all * (size_t)terms, sizeof(int32_t));
    f->factor[i] = g->indices[i].weighted ? room(all * (size_t)terms, sizeof(float)) : NULL;
    for (int p = 0; p < n; p++) {
        uint32_t seed = seeds[p] + 77u * (uint32_t)i;
        for (int32_t r = 0; r < slot_rows(m, g->indices[i].slot, rows[p]); r++, at++)
            for (int32_t t = 0; t < terms; t++) {
                f->index[i][(size_t)t * all + at] = entry(m, i, r, from, &seed);
                if (f->factor[i])
                    f->factor[i][(size_t)t * all + at] = number(&seed);
            }
        from += slot_rows(m, g->indices[i].slot - 1, rows[p]);
    }
    f->input.index[i] = f->index[i];
    f->input.factor[i] = f->factor[i];
}

void tower_feed(struct tower_feed *f, const struct mini *m, int n, const int32_t *rows,
                const uint32_t *seeds) {
    const struct mxc_graph *g = m->graph;
    *f = (struct tower_feed){{0}, NULL, {0}, {0}, {0}};
    for (int s = 0; s < g->n_slots; s++)
        for (int p = 0; p < n; p++)
            f->input.n_rows[s] += slot_rows(m, s, rows[p]);
    size_t width = (size_t)g->hidden, at = 0;
    f->rows = room((size_t)f->input.n_rows[0] * width, sizeof(float));
    f->input.rows = f->rows;
    for (int p = 0; p < n; p++) {
        uint32_t seed = seeds[p];
        for (size_t i = 0; i < (size_t)rows[p] * width; i++)
            f->rows[at++] = number(&seed);
    }
    for (int i = 0; i < g->n_indices; i++)
        feed_index(f, m, i, n, rows, seeds);
    for (int i = 0; i < g->n_ranges; i++) {
        int32_t slot = g->ranges[i].slot, all = f->input.n_rows[slot], begin = 0;
        f->range[i] = room(2 * (size_t)all, sizeof(int32_t));
        for (int p = 0; p < n; p++) {
            int32_t end = begin + slot_rows(m, slot, rows[p]);
            for (int32_t r = begin; r < end; r++) {
                f->range[i][r] = begin;
                f->range[i][all + r] = end;
            }
            begin = end;
        }
        f->input.range[i] = f->range[i];
    }
}

void tower_feed_fini(struct tower_feed *f) {
    free(f->rows);
    for (int i = 0; i < MXC_MAX_INDICES; i++) {
        free(f->index[i]);
        free(f->factor[i]);
    }
    for (int i = 0; i < MXC_MAX_RANGES; i++)
        free(f->range[i]);
}

/* ---- the interpreter */

struct context {
    const struct mini *m;
    const struct mxc_graph *g;
    const struct mxc_tower_input *input;
    double **values;
};

int32_t tower_rows(const struct mini *m, const struct mxc_tower_input *input, int32_t value) {
    struct mxc_extent e = m->graph->values[value].rows;
    return input->n_rows[e.slot] / e.divisor;
}

static double activation(enum mxc_act act, double x) {
    switch (act) {
    case MXC_ACT_GELU:
        return 0.5 * x * (1 + erf(x / sqrt(2)));
    case MXC_ACT_GELU_QUICK:
        return x / (1 + exp(-1.702 * x));
    default:
        fail();
        return 0;
    }
}

static void do_linear(const struct context *c, const struct mxc_node *n, const double *x, double *y,
                      int32_t rows) {
    int32_t in = c->g->values[n->in[0]].width, width = c->g->values[n->out].width, column = 0;
    for (int p = 0; p < n->n_weights; p += 2) {
        const double *w = c->m->numbers[n->weights[p]];
        const double *b = n->weights[p + 1] == MXC_NONE ? NULL : c->m->numbers[n->weights[p + 1]];
        int32_t out = (int32_t)c->g->weights[n->weights[p]].shape[0];
        for (int32_t r = 0; r < rows; r++)
            for (int32_t o = 0; o < out; o++) {
                double sum = b ? b[o] : 0;
                for (int32_t i = 0; i < in; i++)
                    sum += x[r * in + i] * w[o * in + i];
                int32_t at = r * width + column + o;
                y[at] = sum + (n->n_in > 1 ? c->values[n->in[1]][at] : 0);
            }
        column += out;
    }
}

static void do_norm(const struct context *c, const struct mxc_node *n, const double *x, double *y,
                    int32_t rows) {
    bool layer = n->op == MXC_OP_LAYER_NORM;
    int32_t width = c->g->values[n->out].width / (layer ? 1 : n->u.norm.groups);
    const double *w = c->m->numbers[n->weights[0]];
    rows *= layer ? 1 : n->u.norm.groups;
    for (int32_t r = 0; r < rows; r++) {
        double mean = 0, sum = 0;
        for (int32_t i = 0; layer && i < width; i++)
            mean += x[r * width + i] / width;
        for (int32_t i = 0; i < width; i++)
            sum += pow(x[r * width + i] - mean, 2) / width;
        for (int32_t i = 0; i < width; i++) {
            y[r * width + i] = (x[r * width + i] - mean) / sqrt(sum + (double)n->u.norm.eps) * w[i];
            if (layer)
                y[r * width + i] += c->m->numbers[n->weights[1]][i];
        }
    }
}

static void do_lookup(const struct context *c, const struct mxc_node *n, const double *x, double *y,
                      int32_t rows) {
    int32_t width = c->g->values[n->out].width, i = n->u.lookup.index;
    double f = n->weights[1] == MXC_NONE ? 1 : tanh(c->m->numbers[n->weights[1]][0]);
    f = n->u.lookup.complement ? 1 - f : f;
    for (int32_t r = 0; r < rows; r++)
        for (int32_t k = 0; k < width; k++) {
            double sum = 0;
            for (int32_t t = 0; t < c->g->indices[i].terms; t++) {
                int32_t at = c->input->index[i][t * rows + r];
                double factor =
                    c->g->indices[i].weighted ? (double)c->input->factor[i][t * rows + r] : 1;
                sum += at < 0 ? 0 : factor * c->m->numbers[n->weights[0]][at * width + k];
            }
            y[r * width + k] = x[r * width + k] + f * sum;
        }
}

/* A head's vector, rotated as the frequencies of graph/rope.c say. */
static void rotate(const struct context *c, const struct mxc_attend_attr *a, int32_t row,
                   int32_t rows, const double *x, double *to) {
    memcpy(to, x, (size_t)a->head_dim * sizeof *to);
    if (a->rope == MXC_NONE)
        return;
    const struct mxc_rope *rope = &c->g->ropes[a->rope];
    int half = rope->dims / 2, axis = 0, left = rope->sections[0] ? rope->sections[0] : half;
    float inv[MXC_MAX_ROPE_HALF], factor;
    mxc_rope_frequencies(rope, 0, inv, &factor);
    for (int i = 0; i < half; i++, left--) {
        if (!left)
            left = rope->sections[++axis];
        double angle = (double)c->input->index[a->positions][axis * rows + row] * (double)inv[i];
        int p = rope->interleaved ? 2 * i : i, q = rope->interleaved ? 2 * i + 1 : i + half;
        to[p] = x[p] * cos(angle) - x[q] * sin(angle);
        to[q] = x[q] * cos(angle) + x[p] * sin(angle);
    }
}

static void do_attend(const struct context *c, const struct mxc_node *n, const double *x, double *y,
                      int32_t rows) {
    const struct mxc_attend_attr *a = &n->u.attend;
    int32_t dim = a->head_dim, width = a->n_heads * dim;
    const int32_t *begin = c->input->range[a->range], *end = begin + rows;
    const double *v = x + 2 * width;
    double *k = room((size_t)rows * (size_t)dim, sizeof *k);
    double *p = room((size_t)rows, sizeof *p), *q = room((size_t)dim, sizeof *q);
    for (int32_t h = 0; h < a->n_heads; h++) {
        for (int32_t r = 0; r < rows; r++)
            rotate(c, a, r, rows, x + r * 3 * width + width + h * dim, k + r * dim);
        for (int32_t r = 0; r < rows; r++) {
            double top = -1e300, sum = 0;
            rotate(c, a, r, rows, x + r * 3 * width + h * dim, q);
            for (int32_t s = begin[r]; s < end[r]; s++) {
                p[s] = 0;
                for (int32_t i = 0; i < dim; i++)
                    p[s] += q[i] * k[s * dim + i] * (double)a->scale;
                top = fmax(top, p[s]);
            }
            for (int32_t s = begin[r]; s < end[r]; s++)
                sum += p[s] = exp(p[s] - top);
            for (int32_t s = begin[r]; s < end[r]; s++)
                for (int32_t i = 0; i < dim; i++)
                    y[r * width + h * dim + i] += p[s] / sum * v[s * 3 * width + h * dim + i];
        }
    }
    free(k);
    free(p);
    free(q);
}

static void do_concat(const struct context *c, const struct mxc_node *n, double *y, int32_t rows) {
    int32_t width = c->g->values[n->out].width, column = 0;
    for (int32_t i = 0; i < n->n_in; i++) {
        int32_t w = c->g->values[n->in[i]].width;
        for (int32_t r = 0; r < rows; r++)
            for (int32_t j = 0; j < w; j++)
                y[r * width + (n->u.concat.turns ? j * n->n_in + i : column + j)] =
                    c->values[n->in[i]][r * w + j];
        column += w;
    }
}

/* Number by number. */
static double one(const struct context *c, const struct mxc_node *n, const double *x, int32_t r,
                  int32_t i) {
    int32_t width = c->g->values[n->out].width, at = r * width + i;
    switch (n->op) {
    case MXC_OP_INPUT:
        return (double)c->input->rows[at];
    case MXC_OP_GATHER: {
        int32_t from = c->input->index[n->u.lookup.index][r];
        return from < 0 ? 0 : x[from * width + i];
    }
    case MXC_OP_MERGE:
        return x[at];
    case MXC_OP_MEAN_ROWS: {
        double sum = 0;
        for (int32_t k = 0; k < n->u.merge.rows; k++)
            sum += x[(r * n->u.merge.rows + k) * width + i];
        return sum / n->u.merge.rows;
    }
    case MXC_OP_TANH_SCALE:
        return tanh(c->m->numbers[n->weights[0]][0]) * x[at] +
               (n->n_in > 1 ? c->values[n->in[1]][at] : 0);
    case MXC_OP_GLU:
        return activation(n->u.glu.act, x[r * 2 * width + i]) * x[r * 2 * width + width + i];
    case MXC_OP_ACT:
        return activation(n->u.glu.act, x[at]);
    case MXC_OP_SOFTCAP:
        return (double)n->u.softcap.cap * tanh(x[at] / (double)n->u.softcap.cap);
    case MXC_OP_ADD:
        return x[at] + c->values[n->in[1]][at];
    default:
        fail_msg("%s", mxc_op_name(n->op));
        return 0;
    }
}

static void do_node(const struct context *c, const struct mxc_node *n) {
    int32_t rows = tower_rows(c->m, c->input, n->out), width = c->g->values[n->out].width;
    const double *x = n->n_in ? c->values[n->in[0]] : NULL;
    double *y = c->values[n->out];
    switch (n->op) {
    case MXC_OP_LINEAR:
        do_linear(c, n, x, y, rows);
        break;
    case MXC_OP_LAYER_NORM:
    case MXC_OP_RMS_NORM:
        do_norm(c, n, x, y, rows);
        break;
    case MXC_OP_LOOKUP:
        do_lookup(c, n, x, y, rows);
        break;
    case MXC_OP_ATTEND:
        do_attend(c, n, x, y, rows);
        break;
    case MXC_OP_CONCAT:
        do_concat(c, n, y, rows);
        break;
    default:
        for (int32_t r = 0; r < rows; r++)
            for (int32_t i = 0; i < width; i++)
                y[r * width + i] = one(c, n, x, r, i);
    }
}

double **tower_reference(const struct mini *m, const struct mxc_tower_input *input) {
    struct context c = {m, m->graph, input, room((size_t)m->graph->n_values, sizeof(double *))};
    for (int32_t i = 0; i < m->graph->n_nodes; i++) {
        const struct mxc_node *n = &m->graph->nodes[i];
        c.values[n->out] =
            room((size_t)tower_rows(m, input, n->out) * (size_t)m->graph->values[n->out].width,
                 sizeof(double));
        do_node(&c, n);
    }
    return c.values;
}

void tower_values_free(const struct mini *m, double **values) {
    for (int32_t i = 0; i < m->graph->n_values; i++)
        free(values[i]);
    free(values);
}

/* ---- runs on a backend */

static void need(enum mxc_code code, const struct mxc_err *err) {
    if (code)
        print_message("%s\n", err->message);
    assert_int_equal(code, MXC_OK);
}

/* Steps to the end, and one more, which has nothing to do; takes the tower. */
static float *finish(const struct tower_stage *s, const struct mini *m,
                     const struct mxc_tower_input *input, uint64_t budget, struct mxc_tower *tower,
                     int *steps) {
    struct mxc_err err;
    bool done = false;
    int32_t rows;
    int n = 0;
    for (; !done; n++)
        need(s->ops->tower_step(tower, budget, &done, &err), &err);
    assert_true(budget != UINT64_MAX || n == 1);
    need(s->ops->tower_step(tower, budget, &done, &err), &err);
    assert_true(done);
    const float *out = s->ops->tower_output(tower, &rows);
    assert_int_equal(rows, tower_rows(m, input, m->graph->logits));
    size_t count = (size_t)rows * (size_t)m->graph->vocab;
    float *copy = calloc(count, sizeof *copy);
    assert_non_null(copy);
    memcpy(copy, out, count * sizeof *copy);
    s->ops->tower_free(tower);
    if (steps)
        *steps = n;
    return copy;
}

float *tower_run(const struct tower_stage *s, const struct mini *m,
                 const struct mxc_tower_input *input, uint64_t budget, int *steps) {
    struct mxc_tower *tower = NULL;
    struct mxc_err err;
    need(s->ops->tower_new(s->plan, input, &tower, &err), &err);
    return finish(s, m, input, budget, tower, steps);
}

double tower_difference(const float *have, const double *want, size_t n) {
    double worst = 0, largest = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)have[i] - want[i]);
        if (!(d <= worst))
            worst = d;
        largest = fmax(largest, fabs(want[i]));
    }
    return worst / largest;
}

struct watch {
    double **want;
    double worst;
    int32_t seen, last;
};

static void watch_value(void *user, const struct mxc_graph *graph, int32_t value, const float *data,
                        int32_t rows, int32_t width) {
    struct watch *w = user;
    assert_true(graph->values[value].name[0] && value > w->last);
    w->worst = fmax(w->worst, tower_difference(data, w->want[value], (size_t)rows * (size_t)width));
    w->last = value;
    w->seen++;
}

float *tower_run_watched(const struct tower_stage *s, const struct mini *m,
                         const struct mxc_tower_input *input, double **want, double *worst) {
    struct watch watch = {.want = want, .last = -1};
    struct mxc_tower *tower = NULL;
    struct mxc_err err;
    int32_t named = 0;
    need(s->ops->tower_new(s->plan, input, &tower, &err), &err);
    need(s->ops->tower_tap(tower, watch_value, &watch, &err), &err);
    float *features = finish(s, m, input, 1, tower, NULL);
    for (int32_t v = 0; v < m->graph->n_values; v++)
        named += m->graph->values[v].name[0] != 0;
    assert_int_equal(watch.seen, named);
    *worst = watch.worst;
    return features;
}

void tower_check_turns(const struct tower_stage *s, const struct mini *m, uint64_t budget) {
    enum { N = 3 };
    static const int32_t sizes[N] = {92, 360, 16};
    static const uint32_t seeds[N] = {11, 12, 13};
    struct tower_feed feeds[N];
    struct mxc_tower *towers[N] = {NULL};
    struct mxc_err err;
    float *want[N];
    bool done[N] = {false};
    for (int i = 0; i < N; i++) {
        tower_feed(&feeds[i], m, 1, &sizes[i], &seeds[i]);
        want[i] = tower_run(s, m, &feeds[i].input, UINT64_MAX, NULL);
        need(s->ops->tower_new(s->plan, &feeds[i].input, &towers[i], &err), &err);
    }
    need(s->ops->tower_step(towers[2], 1, &done[2], &err), &err);
    s->ops->tower_free(towers[2]);
    while (!done[0] || !done[1])
        for (int i = 0; i < 2; i++)
            need(s->ops->tower_step(towers[i], budget, &done[i], &err), &err);
    for (int i = 0; i < N; i++) {
        int32_t rows;
        if (i < 2) {
            const float *have = s->ops->tower_output(towers[i], &rows);
            assert_memory_equal(have, want[i],
                                (size_t)rows * (size_t)m->graph->vocab * sizeof *have);
            s->ops->tower_free(towers[i]);
        }
        free(want[i]);
        tower_feed_fini(&feeds[i]);
    }
}

void tower_odd_ranges(struct tower_feed *feed) {
    int32_t n = feed->input.n_rows[0], *begin = feed->range[0], *end = begin + n;
    for (int32_t r = 0; r < n; r++) {
        if (r < 100) { /* windows that slide */
            begin[r] = r < 40 ? 3 : r - 37;
            end[r] = r + 9;
        } else if (r < 150) { /* elsewhere, row by row */
            begin[r] = r % 2 ? 160 : 7;
            end[r] = begin[r] + 1 + r % 30;
        } else { /* a long one */
            begin[r] = 150;
            end[r] = n - r % 3;
        }
    }
}
