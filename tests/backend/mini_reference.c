/* The interpreter of mini.h: every op of a graph for all rows of one sequence, in double precision
 * and in the plainest way. Output rows are all rows. */
#define _GNU_SOURCE
#include "backend/mini.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct pass {
    const struct mini *m;
    const struct mxc_graph *g;
    const struct mxc_node *node;
    const int32_t *tokens;
    int32_t n;
    double **values; /* [n_values][n * width] */
    double *y;
};

static const double *weight(const struct pass *p, int slot) {
    int32_t id = p->node->weights[slot];
    return id == MXC_NONE ? NULL : p->m->numbers[id];
}

static int64_t extent(const struct pass *p, int slot, int dim) {
    return p->g->weights[p->node->weights[slot]].shape[dim];
}

static int32_t width_of(const struct pass *p, int32_t value) {
    return p->g->values[value].width;
}

static const double *row_of(const struct pass *p, int in, int32_t row) {
    return p->values[p->node->in[in]] + (ptrdiff_t)row * width_of(p, p->node->in[in]);
}

static double *zeros(size_t n) {
    double *x = calloc(n ? n : 1, sizeof *x);
    assert_non_null(x);
    return x;
}

/* y[out] = W x, W: [out, in] */
static void apply(const double *w, const double *x, int64_t out, int64_t in, double *y) {
    for (int64_t i = 0; i < out; i++) {
        y[i] = 0;
        for (int64_t k = 0; k < in; k++)
            y[i] += w[i * in + k] * x[k];
    }
}

static double activate(enum mxc_act act, double x) {
    switch (act) {
    case MXC_ACT_SILU:
        return x / (1 + exp(-x));
    case MXC_ACT_GELU:
        return 0.5 * x * (1 + erf(x / sqrt(2)));
    case MXC_ACT_GELU_TANH:
        return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case MXC_ACT_GELU_QUICK:
        return x / (1 + exp(-1.702 * x));
    default:
        return x > 0 ? x : 0;
    }
}

static double combine(enum mxc_act act, double g, double u) {
    if (act != MXC_ACT_SWIGLU_CLIP)
        return activate(act, g) * u;
    g = fmin(g, 7);
    u = fmax(fmin(u, 7), -7);
    return g / (1 + exp(-1.702 * g)) * (u + 1);
}

static void rms(const double *x, const double *w, int32_t n, double eps, double offset, double *y) {
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (int32_t i = 0; i < n; i++)
        y[i] = x[i] / sqrt(sum / n + eps) * (w[i] + offset);
}

static void layer(const double *x, const double *w, const double *b, int32_t n, double eps,
                  double *y) {
    double mean = 0, var = 0;
    for (int32_t i = 0; i < n; i++)
        mean += x[i] / n;
    for (int32_t i = 0; i < n; i++)
        var += (x[i] - mean) * (x[i] - mean) / n;
    for (int32_t i = 0; i < n; i++)
        y[i] = (x[i] - mean) / sqrt(var + eps) * w[i] + (b ? b[i] : 0);
}

static void linear_row(const struct pass *p, int32_t row, double *y) {
    const struct mxc_node *node = p->node;
    int32_t out = width_of(p, node->out);
    for (int32_t i = 0, at = 0; i < node->u.linear.n_parts; i++) {
        int64_t n = extent(p, 2 * i, 0);
        apply(weight(p, 2 * i), row_of(p, 0, row), n, extent(p, 2 * i, 1), y + at);
        for (int64_t k = 0; weight(p, 2 * i + 1) && k < n; k++)
            y[at + k] += weight(p, 2 * i + 1)[k];
        at += (int32_t)n;
    }
    for (int32_t i = 0; i < out; i++)
        y[i] = y[i] * (double)node->u.linear.scale + (node->n_in > 1 ? row_of(p, 1, row)[i] : 0);
}

static void heads_row(const struct pass *p, int32_t row, double *y) {
    int32_t heads = p->node->u.heads.n_heads, w = width_of(p, p->node->in[0]) / heads;
    int64_t out = extent(p, 0, 1), in = extent(p, 0, 2);
    for (int32_t h = 0; h < heads; h++, y += out + w - in) {
        const double *x = row_of(p, 0, row) + (ptrdiff_t)h * w;
        apply(weight(p, 0) + h * out * in, x, out, in, y);
        memcpy(y + out, x + in, (size_t)(w - in) * sizeof *y);
    }
}

/* ---- MOE */

/* The order of e and f among equals or not: e is chosen before f. */
static bool before(const double *choice, int32_t e, int32_t f) {
    return choice[e] > choice[f] || (choice[e] == choice[f] && e < f);
}

static void choose(const struct mxc_moe_attr *a, const double *logits, const double *bias,
                   double *score, int32_t *expert) {
    int32_t n = a->n_experts, size = n / a->n_groups;
    double *choice = zeros((size_t)n), *groups = zeros((size_t)a->n_groups), sum = 0;
    for (int32_t e = 0; e < n; e++) {
        score[e] = a->score == MXC_MOE_SIGMOID ? 1 / (1 + exp(-logits[e])) : exp(logits[e]);
        sum += score[e];
    }
    for (int32_t e = 0; e < n; e++) {
        score[e] /= a->score == MXC_MOE_SIGMOID ? 1 : sum;
        choice[e] = score[e] + (bias ? bias[e] : 0);
    }
    for (int32_t g = 0; g < a->n_groups; g++) {
        double best = -INFINITY, second = -INFINITY;
        for (int32_t e = g * size; e < (g + 1) * size; e++) {
            second = fmax(second, fmin(best, choice[e]));
            best = fmax(best, choice[e]);
        }
        groups[g] = a->group_best ? best : best + second;
    }
    for (int32_t g = 0; a->n_groups > 1 && g < a->n_groups; g++) {
        int32_t rank = 0;
        for (int32_t h = 0; h < a->n_groups; h++)
            rank += h != g && before(groups, h, g);
        for (int32_t e = g * size; rank >= a->top_groups && e < (g + 1) * size; e++)
            choice[e] = 0;
    }
    for (int32_t e = 0; e < n; e++) {
        int32_t rank = 0;
        for (int32_t f = 0; f < n; f++)
            rank += f != e && before(choice, f, e);
        if (rank < a->top_k)
            expert[rank] = e;
    }
    free(choice);
    free(groups);
}

static void moe_row(const struct pass *p, int32_t row, double *y) {
    const struct mxc_moe_attr *a = &p->node->u.moe;
    int32_t d = width_of(p, p->node->out), f = a->width, expert[MXC_MAX_TOP_EXPERTS];
    double *score = zeros((size_t)a->n_experts), *g = zeros((size_t)f), *u = zeros((size_t)f);
    double *o = zeros((size_t)d), sum = 0;
    choose(a, row_of(p, 1, row), weight(p, MXC_MOE_CHOICE), score, expert);
    for (int32_t i = 0; i < a->top_k; i++)
        sum += score[expert[i]];
    for (int32_t i = 0; i < a->top_k; i++) {
        int32_t e = expert[i];
        double share = score[e] * (double)a->scale;
        if (a->normalise)
            share /= sum + (double)a->normalise_eps;
        apply(weight(p, MXC_MOE_GATE) + (ptrdiff_t)e * f * d, row_of(p, 0, row), f, d, g);
        apply(weight(p, MXC_MOE_UP) + (ptrdiff_t)e * f * d, row_of(p, 0, row), f, d, u);
        for (int32_t k = 0; k < f; k++) {
            if (weight(p, MXC_MOE_GATE_BIAS))
                g[k] += weight(p, MXC_MOE_GATE_BIAS)[e * f + k];
            if (weight(p, MXC_MOE_UP_BIAS))
                u[k] += weight(p, MXC_MOE_UP_BIAS)[e * f + k];
            g[k] = combine(a->act, g[k], u[k]);
        }
        apply(weight(p, MXC_MOE_DOWN) + (ptrdiff_t)e * f * d, g, d, f, o);
        for (int32_t k = 0; k < d; k++)
            y[k] += share *
                    (o[k] +
                     (weight(p, MXC_MOE_DOWN_BIAS) ? weight(p, MXC_MOE_DOWN_BIAS)[e * d + k] : 0));
    }
    free(score);
    free(g);
    free(u);
    free(o);
}

/* ---- attention */

static void rotate(const struct pass *p, double *head, int32_t position) {
    const struct mxc_attn_attr *a = &p->node->u.attn;
    if (a->rope == MXC_NONE)
        return;
    const struct mxc_rope *rope = &p->g->ropes[a->rope];
    float inv_freq[MXC_MAX_ROPE_HALF], factor;
    double *v = head + a->rope_offset;
    mxc_rope_frequencies(rope, 0, inv_freq, &factor);
    for (int32_t i = 0; i < rope->dims / 2; i++) {
        int32_t k = rope->interleaved ? 2 * i : i;
        int32_t l = rope->interleaved ? 2 * i + 1 : i + rope->dims / 2;
        double angle = position * (double)inv_freq[i], x = v[k], z = v[l];
        v[k] = (x * cos(angle) - z * sin(angle)) * (double)factor;
        v[l] = (z * cos(angle) + x * sin(angle)) * (double)factor;
    }
}

/* Norm and rotation of all heads of one row, in place. */
static void turn_heads(const struct pass *p, double *heads, int32_t n_heads, const double *w,
                       int32_t position) {
    const struct mxc_attn_attr *a = &p->node->u.attn;
    int32_t d = a->head_dim;
    double eps = (double)a->qk_norm_eps, offset = (double)a->qk_norm_offset;
    if (w && a->qk_norm == MXC_QK_RMS_WHOLE)
        rms(heads, w, n_heads * d, eps, offset, heads);
    for (int32_t h = 0; h < n_heads; h++) {
        double *head = heads + (ptrdiff_t)h * d;
        if (w && a->qk_norm == MXC_QK_RMS_HEAD)
            rms(head, w, d, eps, offset, head);
        if (w && a->qk_norm == MXC_QK_LAYER_HEADS)
            layer(head, w + (ptrdiff_t)h * d, NULL, d, eps, head);
        rotate(p, head, position);
    }
}

static void attend(const struct pass *p, const double *q, const double *k, const double *v,
                   int32_t v_dim) {
    const struct mxc_attn_attr *a = &p->node->u.attn;
    int32_t d = a->head_dim;
    double *s = zeros((size_t)p->n);
    for (int32_t t = 0; t < p->n; t++)
        for (int32_t h = 0; h < a->n_heads; h++) {
            int32_t kv = h / (a->n_heads / a->n_kv_heads);
            int32_t begin = a->window && t + 1 > a->window ? t + 1 - a->window : 0;
            double *y = p->y + ((ptrdiff_t)t * a->n_heads + h) * v_dim;
            double sum = weight(p, 2) ? exp(weight(p, 2)[h]) : 0;
            for (int32_t j = begin; j <= t; j++) {
                double z = 0;
                for (int32_t i = 0; i < d; i++)
                    z += q[((ptrdiff_t)t * a->n_heads + h) * d + i] *
                         k[((ptrdiff_t)j * a->n_kv_heads + kv) * d + i];
                z *= (double)a->scale;
                if (a->softcap > 0)
                    z = (double)a->softcap * tanh(z / (double)a->softcap);
                sum += s[j] = exp(z);
            }
            for (int32_t j = begin; j <= t; j++)
                for (int32_t i = 0; i < v_dim; i++)
                    y[i] += s[j] / sum * v[((ptrdiff_t)j * a->n_kv_heads + kv) * v_dim + i];
        }
    free(s);
}

static void attention(const struct pass *p) {
    const struct mxc_attn_attr *a = &p->node->u.attn;
    size_t q_width = (size_t)a->n_heads * (size_t)a->head_dim;
    size_t k_width = (size_t)a->n_kv_heads * (size_t)a->head_dim, rows = (size_t)p->n;
    bool latent = p->node->n_in > 1;
    size_t v_dim = a->v_dim ? (size_t)a->v_dim : (size_t)a->head_dim;
    size_t v_width = (size_t)a->n_kv_heads * v_dim;
    double *q = zeros(rows * q_width), *k = zeros(rows * k_width), *v = zeros(rows * v_width);
    for (int32_t t = 0; t < p->n; t++) {
        size_t r = (size_t)t;
        const double *x = row_of(p, 0, t), *from = latent ? row_of(p, 1, t) : x + q_width;
        memcpy(q + r * q_width, x, q_width * sizeof *q);
        memcpy(k + r * k_width, from, k_width * sizeof *k);
        turn_heads(p, q + r * q_width, a->n_heads, weight(p, 0), t);
        turn_heads(p, k + r * k_width, a->n_kv_heads, weight(p, 1), t);
        memcpy(v + r * v_width, latent ? k + r * k_width : from + k_width, v_width * sizeof *v);
    }
    attend(p, q, k, v, (int32_t)v_dim);
    free(q);
    free(k);
    free(v);
}

/* ---- the rest */

static void simple_row(const struct pass *p, int32_t row, double *y) {
    const struct mxc_node *node = p->node;
    int32_t n = width_of(p, node->out);
    const double *x = node->n_in ? row_of(p, 0, row) : NULL;
    const double *x2 = node->n_in > 1 ? row_of(p, 1, row) : NULL;
    for (int32_t i = 0; i < n; i++)
        switch (node->op) {
        case MXC_OP_EMBED:
            y[i] = (double)node->u.embed.scale * weight(p, 0)[(ptrdiff_t)p->tokens[row] * n + i];
            break;
        case MXC_OP_ADD_POSITION:
            y[i] = x[i] + weight(p, 0)[(ptrdiff_t)(row + node->u.position.offset) * n + i];
            break;
        case MXC_OP_GLU:
            y[i] = combine(node->u.glu.act, x[i], x[n + i]);
            break;
        case MXC_OP_ACT:
            y[i] = activate(node->u.glu.act, x[i]);
            break;
        case MXC_OP_SOFTCAP:
            y[i] = (double)node->u.softcap.cap * tanh(x[i] / (double)node->u.softcap.cap);
            break;
        case MXC_OP_GATE:
            y[i] = x[i] / (1 + exp(-x2[0]));
            break;
        case MXC_OP_ADD:
            y[i] = x[i] + x2[i];
            break;
        default:
            y[i] = x[i];
        }
}

static void norm_row(const struct pass *p, int32_t row, double *y) {
    const double *x = row_of(p, 0, row);
    int32_t n = (int32_t)extent(p, 0, 0), width = width_of(p, p->node->out);
    double eps = (double)p->node->u.norm.eps;
    if (p->node->op == MXC_OP_LAYER_NORM) {
        layer(x, weight(p, 0), weight(p, 1), n, eps, y);
        return;
    }
    memcpy(y, x, (size_t)width * sizeof *y);
    for (int32_t g = 0; g < p->node->u.norm.groups; g++)
        rms(x + (ptrdiff_t)g * n, weight(p, 0), n, eps, (double)p->node->u.norm.offset,
            y + (ptrdiff_t)g * n);
}

static void unit_row(const struct pass *p, int32_t row, double *y) {
    int64_t rows = extent(p, 0, 0), n = extent(p, 0, 1);
    for (int64_t j = 0; j < n; j++) {
        double sum = 0;
        for (int64_t r = 0; r < rows; r++)
            sum += weight(p, 0)[r * n + j] * weight(p, 0)[r * n + j];
        y[j] = row_of(p, 0, row)[j] / (sqrt(sum) + 1e-7);
    }
}

static void one_row(const struct pass *p, int32_t row, double *y) {
    switch (p->node->op) {
    case MXC_OP_RMS_NORM:
    case MXC_OP_LAYER_NORM:
        norm_row(p, row, y);
        break;
    case MXC_OP_LINEAR:
        linear_row(p, row, y);
        break;
    case MXC_OP_HEADS_LINEAR:
        heads_row(p, row, y);
        break;
    case MXC_OP_MOE:
        moe_row(p, row, y);
        break;
    case MXC_OP_UNIT_COLUMNS:
        unit_row(p, row, y);
        break;
    default:
        simple_row(p, row, y);
    }
}

void mini_reference(const struct mini *m, const int32_t *tokens, int32_t n, float *logits) {
    struct pass p = {.m = m, .g = m->graph, .tokens = tokens, .n = n};
    p.values = calloc((size_t)m->graph->n_values, sizeof *p.values);
    assert_non_null(p.values);
    for (int32_t i = 0; i < m->graph->n_nodes; i++) {
        p.node = &m->graph->nodes[i];
        int32_t width = width_of(&p, p.node->out);
        p.y = p.values[p.node->out] = zeros((size_t)n * (size_t)width);
        if (p.node->op == MXC_OP_ATTENTION)
            attention(&p);
        for (int32_t row = 0; p.node->op != MXC_OP_ATTENTION && row < n; row++)
            one_row(&p, row, p.y + (ptrdiff_t)row * width);
    }
    const double *last = p.values[m->graph->logits];
    for (size_t i = 0; i < (size_t)n * (size_t)m->graph->vocab; i++)
        logits[i] = (float)last[i];
    for (int32_t i = 0; i < m->graph->n_values; i++)
        free(p.values[i]);
    free(p.values);
}
