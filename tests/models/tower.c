/* Plain run of a tower's graph; see tower.h. */
#include "tower.h"

#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct run {
    const struct mxc_graph *g;
    const struct mxc_weights *weights;
    const struct mxc_tower_input *in;
    float **values;
    const float *want; /* NULL: nothing is looked for */
    size_t n_want;
    double nearest;
};

static void *room(size_t n, size_t size) {
    void *out = calloc(n ? n : 1, size);
    assert_non_null(out);
    return out;
}

static int32_t rows_of(const struct run *r, int32_t value) {
    struct mxc_extent e = r->g->values[value].rows;
    assert_int_equal(r->in->n_rows[e.slot] % e.divisor, 0);
    return r->in->n_rows[e.slot] / e.divisor;
}

/* The numbers of a weight, row-major in its own shape. */
static float *weight_of(const struct run *r, int32_t id) {
    const struct mxc_weight *w = &r->g->weights[id];
    const struct mxc_tensor *found = mxc_weights_find(r->weights, w->name);
    assert_non_null(found);
    struct mxc_tensor t = *found;
    int64_t n = w->n_dims > 1 ? w->shape[0] : 1, k = w->shape[w->n_dims - 1];
    if (w->view.flat) {
        assert_true(mxc_tensor_is_plain(found));
        t = mxc_tensor_reshape(found, w->n_dims, w->shape);
    }
    float *out = room((size_t)(n * k), sizeof *out);
    if (!w->view.transposed) {
        assert_int_equal(mxc_tensor_rows(&t) * mxc_tensor_columns(&t), n * k);
        for (int64_t i = 0; i < n; i++)
            mxc_tensor_row(&t, i, out + i * k);
        return out;
    }
    float *row = room((size_t)n, sizeof *row);
    for (int64_t c = 0; c < k; c++) {
        mxc_tensor_row(&t, c, row);
        for (int64_t i = 0; i < n; i++)
            out[i * k + c] = row[i];
    }
    free(row);
    return out;
}

static void linear(const struct run *r, const struct mxc_node *n, float *y) {
    int32_t rows = rows_of(r, n->out), width = r->g->values[n->out].width, at = 0;
    const float *x = r->values[n->in[0]], *residual = n->n_in > 1 ? r->values[n->in[1]] : NULL;
    for (int32_t p = 0; p < n->u.linear.n_parts; p++) {
        const struct mxc_weight *m = &r->g->weights[n->weights[2 * p]];
        float *w = weight_of(r, n->weights[2 * p]);
        float *b = n->weights[2 * p + 1] == MXC_NONE ? NULL : weight_of(r, n->weights[2 * p + 1]);
        for (int32_t i = 0; i < rows; i++)
            for (int64_t o = 0; o < m->shape[0]; o++) {
                double sum = b ? (double)b[o] : 0;
                const float *at_x = x + i * m->shape[1], *at_w = w + o * m->shape[1];
                const float *end = at_x + m->shape[1];
                while (at_x < end)
                    sum += (double)*at_x++ * (double)*at_w++;
                sum *= (double)n->u.linear.scale;
                int64_t to = (int64_t)i * width + at + o;
                y[to] = (float)(sum + (residual ? (double)residual[to] : 0));
            }
        at += (int32_t)m->shape[0];
        free(w);
        free(b);
    }
}

static void norm(const struct run *r, const struct mxc_node *n, float *y) {
    bool rms = n->op == MXC_OP_RMS_NORM;
    int32_t rows = rows_of(r, n->out), groups = rms ? n->u.norm.groups : 1,
            width = r->g->values[n->out].width / groups;
    float *w = weight_of(r, n->weights[0]),
          *b = rms || n->weights[1] == MXC_NONE ? NULL : weight_of(r, n->weights[1]);
    for (int32_t i = 0; i < rows * groups; i++) {
        const float *x = r->values[n->in[0]] + (size_t)i * (size_t)width;
        double mean = 0, square = 0;
        for (int32_t k = 0; k < width; k++)
            mean += rms ? 0 : (double)x[k] / width;
        for (int32_t k = 0; k < width; k++)
            square += ((double)x[k] - mean) * ((double)x[k] - mean) / width;
        for (int32_t k = 0; k < width; k++)
            y[(size_t)i * (size_t)width + (size_t)k] =
                (float)(((double)x[k] - mean) / sqrt(square + (double)n->u.norm.eps) *
                            ((double)w[k] + (rms ? (double)n->u.norm.offset : 0)) +
                        (b ? (double)b[k] : 0));
    }
    free(w);
    free(b);
}

static double act(enum mxc_act kind, double x) {
    switch (kind) {
    case MXC_ACT_SILU:
        return x / (1 + exp(-x));
    case MXC_ACT_GELU:
        return x * 0.5 * (1 + erf(x / sqrt(2)));
    case MXC_ACT_GELU_TANH:
        return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
    case MXC_ACT_GELU_QUICK:
        return x / (1 + exp(-1.702 * x));
    default:
        fail_msg("activation %d", (int)kind);
        return 0;
    }
}

static double gate_of(const struct run *r, int32_t id) {
    float *w = weight_of(r, id);
    double g = tanh((double)w[0]);
    free(w);
    return g;
}

static void lookup(const struct run *r, const struct mxc_node *n, float *y) {
    int32_t rows = rows_of(r, n->out), width = r->g->values[n->out].width, i = n->u.lookup.index;
    const struct mxc_weight *t = &r->g->weights[n->weights[0]];
    float *table = weight_of(r, n->weights[0]);
    double f = n->weights[1] == MXC_NONE ? 1 : gate_of(r, n->weights[1]);
    f = n->u.lookup.complement ? 1 - f : f;
    for (int32_t row = 0; row < rows; row++)
        for (int32_t k = 0; k < width; k++) {
            double sum = 0;
            for (int32_t j = 0; j < r->g->indices[i].terms; j++) {
                int32_t at = r->in->index[i][j * rows + row];
                assert_in_range(at + 1, 0, t->shape[0]);
                double c = r->g->indices[i].weighted ? (double)r->in->factor[i][j * rows + row] : 1;
                sum += at < 0 ? 0 : c * (double)table[(int64_t)at * width + k];
            }
            y[row * width + k] = (float)((double)r->values[n->in[0]][row * width + k] + f * sum);
        }
    free(table);
}

/* The angles of one row: [head_dim / 2]. */
static void angles(const struct run *r, const struct mxc_attend_attr *a, int32_t row, int32_t rows,
                   double *out) {
    const struct mxc_rope *rope = &r->g->ropes[a->rope];
    int pair = 0;
    assert_true(rope->restart && rope->dims == a->head_dim && !rope->interleaved);
    for (int axis = 0; axis < MXC_MAX_ROPE_AXES; axis++)
        for (int i = 0; i < rope->sections[axis]; i++)
            out[pair++] = r->in->index[a->positions][axis * rows + row] *
                          pow(rope->theta, -(double)i / rope->sections[axis]);
}

static void rotate(const double *angle, int32_t dim, float *x) {
    for (int32_t i = 0; i < dim / 2; i++) {
        double a = (double)x[i], b = (double)x[i + dim / 2];
        x[i] = (float)(a * cos(angle[i]) - b * sin(angle[i]));
        x[i + dim / 2] = (float)(b * cos(angle[i]) + a * sin(angle[i]));
    }
}

static void attend(const struct run *r, const struct mxc_node *n, float *y) {
    const struct mxc_attend_attr *a = &n->u.attend;
    int32_t rows = rows_of(r, n->out), d = a->head_dim, width = a->n_heads * d;
    const int32_t *range = r->in->range[a->range];
    size_t size = (size_t)rows * 3 * (size_t)width;
    float *x = room(size, sizeof *x);
    double *angle = room((size_t)d, sizeof *angle), *score = room((size_t)rows, sizeof *score);
    memcpy(x, r->values[n->in[0]], size * sizeof *x);
    for (int32_t row = 0; row < rows && a->rope != MXC_NONE; row++) {
        angles(r, a, row, rows, angle);
        for (int32_t h = 0; h < 2 * a->n_heads; h++)
            rotate(angle, d, x + (row * 3 * width + h * d));
    }
    for (int32_t row = 0; row < rows; row++) {
        int32_t begin = range[row], end = range[rows + row];
        assert_true(begin >= 0 && begin < end && end <= rows);
        for (int32_t h = 0; h < a->n_heads; h++) {
            double most = -INFINITY, sum = 0;
            for (int32_t k = begin; k < end; k++) {
                double s = 0;
                for (int32_t i = 0; i < d; i++)
                    s += (double)x[row * 3 * width + h * d + i] *
                         (double)x[k * 3 * width + width + h * d + i];
                score[k] = s * (double)a->scale;
                most = fmax(most, score[k]);
            }
            for (int32_t k = begin; k < end; k++)
                sum += score[k] = exp(score[k] - most);
            for (int32_t i = 0; i < d; i++) {
                double v = 0;
                for (int32_t k = begin; k < end; k++)
                    v += score[k] / sum * (double)x[k * 3 * width + 2 * width + h * d + i];
                y[row * width + h * d + i] = (float)v;
            }
        }
    }
    free(x);
    free(angle);
    free(score);
}

static void concat(const struct run *r, const struct mxc_node *n, float *y) {
    int32_t rows = rows_of(r, n->out), width = r->g->values[n->out].width;
    for (int32_t row = 0; row < rows; row++)
        for (int32_t i = 0, at = 0; i < n->n_in; i++) {
            int32_t w = r->g->values[n->in[i]].width;
            for (int32_t k = 0; k < w; k++)
                y[row * width + (n->u.concat.turns ? k * n->n_in + i : at + k)] =
                    r->values[n->in[i]][row * w + k];
            at += w;
        }
}

static void gather(const struct run *r, const struct mxc_node *n, float *y) {
    int32_t rows = rows_of(r, n->out), width = r->g->values[n->out].width,
            from = rows_of(r, n->in[0]);
    for (int32_t row = 0; row < rows; row++) {
        int32_t at = r->in->index[n->u.lookup.index][row];
        assert_in_range(at + 1, 0, from);
        if (at >= 0)
            memcpy(y + row * width, r->values[n->in[0]] + at * width, (size_t)width * sizeof *y);
    }
}

static void elementwise(const struct run *r, const struct mxc_node *n, float *y) {
    int32_t rows = rows_of(r, n->out), width = r->g->values[n->out].width,
            few = n->op == MXC_OP_MEAN_ROWS ? n->u.merge.rows : 1;
    const float *x = r->values[n->in[0]], *b = n->n_in > 1 ? r->values[n->in[1]] : NULL;
    double g = n->op == MXC_OP_TANH_SCALE ? gate_of(r, n->weights[0]) : 1;
    for (int32_t i = 0; i < rows; i++)
        for (int32_t k = 0; k < width; k++) {
            int32_t at = i * width + k;
            double v = 0;
            if (n->op == MXC_OP_GLU)
                v = act(n->u.glu.act, (double)x[2 * i * width + k]) *
                    (double)x[(2 * i + 1) * width + k];
            else if (n->op == MXC_OP_ACT)
                v = act(n->u.glu.act, (double)x[at]);
            else if (n->op == MXC_OP_MEAN_ROWS)
                for (int32_t j = 0; j < few; j++)
                    v += (double)x[(i * few + j) * width + k] / few;
            else
                v = g * (double)x[at] + (b ? (double)b[at] : 0);
            y[at] = (float)v;
        }
}

static void step(const struct run *r, const struct mxc_node *n, float *y) {
    size_t size = (size_t)rows_of(r, n->out) * (size_t)r->g->values[n->out].width;
    switch (n->op) {
    case MXC_OP_INPUT:
        memcpy(y, r->in->rows, size * sizeof *y);
        break;
    case MXC_OP_MERGE:
        memcpy(y, r->values[n->in[0]], size * sizeof *y);
        break;
    case MXC_OP_LINEAR:
        linear(r, n, y);
        break;
    case MXC_OP_RMS_NORM:
    case MXC_OP_LAYER_NORM:
        norm(r, n, y);
        break;
    case MXC_OP_LOOKUP:
        lookup(r, n, y);
        break;
    case MXC_OP_ATTEND:
        attend(r, n, y);
        break;
    case MXC_OP_CONCAT:
        concat(r, n, y);
        break;
    case MXC_OP_GATHER:
        gather(r, n, y);
        break;
    case MXC_OP_ACT:
    case MXC_OP_GLU:
    case MXC_OP_ADD:
    case MXC_OP_MEAN_ROWS:
    case MXC_OP_TANH_SCALE:
        elementwise(r, n, y);
        break;
    default:
        fail_msg("%s is no op of towers", mxc_op_name(n->op));
    }
}

/* The largest difference of a wanted row from the row of the value that is nearest to it. */
static void look(struct run *r, int32_t value) {
    size_t width = (size_t)r->g->values[value].width, rows = (size_t)rows_of(r, value);
    double worst = 0, most = 0;
    if (!r->want || rows * width != r->n_want)
        return;
    for (size_t i = 0; i < rows; i++) {
        double nearest = INFINITY;
        for (size_t j = 0; j < rows; j++) {
            double apart = 0;
            for (size_t k = 0; k < width; k++)
                apart = fmax(apart, fabs((double)r->values[value][j * width + k] -
                                         (double)r->want[i * width + k]));
            nearest = fmin(nearest, apart);
        }
        for (size_t k = 0; k < width; k++)
            most = fmax(most, fabs((double)r->want[i * width + k]));
        worst = fmax(worst, nearest);
    }
    r->nearest = fmin(r->nearest, worst / most);
}

static float *run_all(struct run *r, int32_t *rows) {
    const struct mxc_graph *g = r->g;
    const struct mxc_tower_input *input = r->in;
    for (int32_t i = 0; i < g->n_slots; i++)
        assert_true(input->n_rows[i] > 0);
    for (int32_t i = 0; i < g->n_indices; i++) {
        assert_non_null(input->index[i]);
        assert_int_equal(input->factor[i] != NULL, g->indices[i].weighted);
    }
    for (int32_t i = 0; i < g->n_ranges; i++)
        assert_non_null(input->range[i]);
    r->values = room((size_t)g->n_values, sizeof *r->values);
    for (int32_t i = 0; i < g->n_nodes; i++) {
        const struct mxc_node *n = &g->nodes[i];
        r->values[n->out] =
            room((size_t)rows_of(r, n->out) * (size_t)g->values[n->out].width, sizeof(float));
        step(r, n, r->values[n->out]);
        look(r, n->out);
        for (int32_t k = 0; k < n->n_in; k++) {
            if (g->values[n->in[k]].last_use == i) {
                free(r->values[n->in[k]]);
                r->values[n->in[k]] = NULL;
            }
        }
    }
    *rows = rows_of(r, g->logits);
    float *out = r->values[g->logits];
    for (int32_t i = 0; i < g->n_values; i++)
        if (i != g->logits)
            free(r->values[i]);
    free(r->values);
    return out;
}

float *tower_run(const struct mxc_graph *g, const struct mxc_weights *weights,
                 const struct mxc_tower_input *input, int32_t *rows) {
    struct run r = {.g = g, .weights = weights, .in = input};
    return run_all(&r, rows);
}

double tower_nearest(const struct mxc_graph *g, const struct mxc_weights *weights,
                     const struct mxc_tower_input *input, const float *want, size_t count) {
    struct run r = {.g = g,
                    .weights = weights,
                    .in = input,
                    .want = want,
                    .n_want = count,
                    .nearest = INFINITY};
    int32_t rows;
    free(run_all(&r, &rows));
    return r.nearest;
}
