/* Tiny models, see tiny.h. */
#include "backend/tiny.h"

#include "backend/mini.h"
#include "format/weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t next_random(uint32_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

void tiny_tokens(const struct tiny *tiny, uint32_t seed, int32_t *tokens, int32_t n) {
    uint32_t state = seed * 2654435761u + 1;
    for (int32_t i = 0; i < n; i++)
        tokens[i] = (int32_t)(next_random(&state) % (uint32_t)tiny->shape.vocab);
}

/* ---- graph */

static int32_t make_attention(struct mxc_graph *g, const struct tiny_shape *s, int32_t layer,
                              int32_t x, int32_t rope) {
    int64_t q_width = (int64_t)s->n_heads * s->head_dim,
            kv_width = (int64_t)s->n_kv_heads * s->head_dim;
    struct mxc_linear_part parts[3] = {
        {mxc_graph_matrix(g, q_width, s->hidden, "l%d.q.weight", layer), MXC_NONE},
        {mxc_graph_matrix(g, kv_width, s->hidden, "l%d.k.weight", layer), MXC_NONE},
        {mxc_graph_matrix(g, kv_width, s->hidden, "l%d.v.weight", layer), MXC_NONE}};
    if (s->biases) {
        parts[0].bias = mxc_graph_vector(g, q_width, "l%d.q.bias", layer);
        parts[1].bias = mxc_graph_vector(g, kv_width, "l%d.k.bias", layer);
        parts[2].bias = mxc_graph_vector(g, kv_width, "l%d.v.bias", layer);
    }
    int32_t norm =
        mxc_graph_rms_norm(g, x, mxc_graph_vector(g, s->hidden, "l%d.norm1", layer), 1e-5f, 0);
    int32_t qkv = mxc_graph_linear(g, norm, 3, parts, 1, MXC_NONE);
    int32_t window = layer % 2 ? s->window : 0;
    struct mxc_kv kv = {window ? MXC_KV_WINDOW : MXC_KV_FULL, s->n_kv_heads, s->head_dim,
                        s->head_dim, window};
    struct mxc_attn_attr attr = {.n_heads = s->n_heads,
                                 .n_kv_heads = s->n_kv_heads,
                                 .head_dim = s->head_dim,
                                 .scale = 1 / sqrtf((float)s->head_dim),
                                 .softcap = s->softcap,
                                 .window = window,
                                 .rope = rope,
                                 .kv = mxc_graph_kv(g, &kv),
                                 .qk_norm_eps = 1e-6f};
    int32_t q_norm = MXC_NONE, k_norm = MXC_NONE, sinks = MXC_NONE;
    if (s->qk_norm) {
        q_norm = mxc_graph_vector(g, s->head_dim, "l%d.q_norm", layer);
        k_norm = mxc_graph_vector(g, s->head_dim, "l%d.k_norm", layer);
    }
    if (s->sinks)
        sinks = mxc_graph_vector(g, s->n_heads, "l%d.sinks", layer);
    int32_t y = mxc_graph_attention(g, qkv, &attr, q_norm, k_norm, sinks);
    struct mxc_linear_part out = {mxc_graph_matrix(g, s->hidden, q_width, "l%d.o.weight", layer),
                                  MXC_NONE};
    return mxc_graph_linear(g, y, 1, &out, 1, x);
}

static int32_t make_ffn(struct mxc_graph *g, const struct tiny_shape *s, int32_t layer, int32_t x) {
    struct mxc_linear_part parts[2] = {
        {mxc_graph_matrix(g, s->ffn, s->hidden, "l%d.gate.weight", layer), MXC_NONE},
        {mxc_graph_matrix(g, s->ffn, s->hidden, "l%d.up.weight", layer), MXC_NONE}};
    struct mxc_linear_part down = {mxc_graph_matrix(g, s->hidden, s->ffn, "l%d.down.weight", layer),
                                   MXC_NONE};
    if (s->biases) {
        parts[1].bias = mxc_graph_vector(g, s->ffn, "l%d.up.bias", layer);
        down.bias = mxc_graph_vector(g, s->hidden, "l%d.down.bias", layer);
    }
    int32_t norm =
        mxc_graph_rms_norm(g, x, mxc_graph_vector(g, s->hidden, "l%d.norm2", layer), 1e-5f, 0.5f);
    int32_t both = mxc_graph_linear(g, norm, 2, parts, 1, MXC_NONE);
    return mxc_graph_linear(g, mxc_graph_glu(g, both, MXC_ACT_SILU), 1, &down, 1, x);
}

static void make_graph(struct tiny *tiny) {
    const struct tiny_shape *s = &tiny->shape;
    struct mxc_err err;
    assert_int_equal(mxc_graph_new("tiny", &tiny->graph, &err), MXC_OK);
    struct mxc_graph *g = tiny->graph;
    struct mxc_rope rope = {.dims = s->head_dim,
                            .interleaved = s->interleaved,
                            .theta = 10000,
                            .scaling = s->scaling,
                            .factor = 4,
                            .original_max = 32,
                            .max_position = 32};
    memcpy(rope.sections, s->sections, sizeof rope.sections);
    int32_t r = mxc_graph_rope(g, &rope);
    int32_t table = mxc_graph_table(g, s->vocab, s->hidden, "embed.weight");
    int32_t x = mxc_graph_embed(g, table, 1.5f);
    mxc_graph_mark_layer_value(g, 0, x);
    for (int32_t i = 0; i < s->n_layers; i++) {
        mxc_graph_begin_layer(g, i);
        x = make_ffn(g, s, i, make_attention(g, s, i, x, r));
        mxc_graph_mark_layer_value(g, i + 1, x);
    }
    mxc_graph_begin_layer(g, MXC_NONE);
    x = mxc_graph_rms_norm(g, x, mxc_graph_vector(g, s->hidden, "norm"), 1e-5f, 0);
    mxc_graph_mark_layer_value(g, s->n_layers + 1, x);
    struct mxc_linear_part head = {
        s->tied ? table : mxc_graph_matrix(g, s->vocab, s->hidden, "head.weight"), MXC_NONE};
    int32_t logits = mxc_graph_linear(g, mxc_graph_select_out(g, x), 1, &head, 2, MXC_NONE);
    enum mxc_code code = mxc_graph_finish(g, logits, &err);
    if (code)
        print_message("%s\n", err.message);
    assert_int_equal(code, MXC_OK);
}

void tiny_open(struct tiny *tiny, const struct tiny_shape *shape) {
    *tiny = (struct tiny){.shape = *shape};
    make_graph(tiny);
    mini_write(tiny->graph, shape->storage, NULL, &tiny->weights);
}

void tiny_close(struct tiny *tiny) {
    mxc_graph_free(tiny->graph);
    mxc_weights_close(tiny->weights);
}

/* ---- reference */

/* y[n_out] = W x + b, of the named tensors; b may be missing */
static void apply(const struct tiny *tiny, const char *weight, const char *bias, const double *x,
                  double *y) {
    const struct mxc_tensor *w = mxc_weights_find(tiny->weights, weight);
    assert_non_null(w);
    float *row = calloc((size_t)w->shape[1], sizeof *row);
    const struct mxc_tensor *b = bias ? mxc_weights_find(tiny->weights, bias) : NULL;
    float *all = b ? calloc((size_t)w->shape[0], sizeof *all) : NULL;
    if (b)
        mxc_tensor_row(b, 0, all);
    for (int64_t i = 0; i < w->shape[0]; i++) {
        mxc_tensor_row(w, i, row);
        y[i] = b ? (double)all[i] : 0;
        for (int64_t k = 0; k < w->shape[1]; k++)
            y[i] += (double)row[k] * x[k];
    }
    free(row);
    free(all);
}

static void norm(const struct tiny *tiny, const char *name, double eps, double offset, int32_t n,
                 const double *x, double *y) {
    float *w = calloc((size_t)n, sizeof *w);
    const struct mxc_tensor *t = mxc_weights_find(tiny->weights, name);
    assert_non_null(t);
    mxc_tensor_row(t, 0, w);
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (int32_t i = 0; i < n; i++)
        y[i] = x[i] / sqrt(sum / n + eps) * ((double)w[i] + offset);
    free(w);
}

static void rotate(const struct tiny *tiny, double *v, int32_t position) {
    int32_t half = tiny->shape.head_dim / 2;
    float inv_freq[MXC_MAX_ROPE_HALF], factor;
    mxc_rope_frequencies(&tiny->graph->ropes[0], 0, inv_freq, &factor);
    for (int32_t i = 0; i < half; i++) {
        int32_t a = tiny->shape.interleaved ? 2 * i : i;
        int32_t b = tiny->shape.interleaved ? 2 * i + 1 : i + half;
        double angle = position * (double)inv_freq[i], c = cos(angle) * (double)factor,
               s = sin(angle) * (double)factor, x = v[a], y = v[b];
        v[a] = x * c - y * s;
        v[b] = y * c + x * s;
    }
}

static void name_of(char *to, size_t size, int32_t layer, const char *what) {
    snprintf(to, size, "l%d.%s", layer, what);
}

/* q, k, v of all rows after norm and rotation */
static void project(const struct tiny *tiny, int32_t layer, const double *x, int32_t n, double *q,
                    double *k, double *v) {
    const struct tiny_shape *s = &tiny->shape;
    double *h = calloc((size_t)s->hidden, sizeof *h);
    char weight[32], bias[32];
    for (int32_t t = 0; t < n; t++) {
        double *rows[3] = {q + (ptrdiff_t)t * s->n_heads * s->head_dim,
                           k + (ptrdiff_t)t * s->n_kv_heads * s->head_dim,
                           v + (ptrdiff_t)t * s->n_kv_heads * s->head_dim};
        static const char *const names[3] = {"q", "k", "v"};
        name_of(weight, sizeof weight, layer, "norm1");
        norm(tiny, weight, 1e-5, 0, s->hidden, x + (ptrdiff_t)t * s->hidden, h);
        for (int i = 0; i < 3; i++) {
            snprintf(weight, sizeof weight, "l%d.%s.weight", layer, names[i]);
            snprintf(bias, sizeof bias, "l%d.%s.bias", layer, names[i]);
            apply(tiny, weight, s->biases ? bias : NULL, h, rows[i]);
        }
        for (int i = 0; i < 2; i++)
            for (int32_t head = 0; head < (i ? s->n_kv_heads : s->n_heads); head++) {
                double *one = rows[i] + (ptrdiff_t)head * s->head_dim;
                name_of(weight, sizeof weight, layer, i ? "k_norm" : "q_norm");
                if (s->qk_norm)
                    norm(tiny, weight, 1e-6, 0, s->head_dim, one, one);
                rotate(tiny, one, t);
            }
    }
    free(h);
}

static void attend(const struct tiny *tiny, int32_t layer, int32_t n, const int32_t *ends,
                   const double *q, const double *k, const double *v, double *out) {
    const struct tiny_shape *s = &tiny->shape;
    int32_t window = layer % 2 ? s->window : 0, d = s->head_dim;
    float *sinks = calloc((size_t)s->n_heads, sizeof *sinks);
    double *p = calloc((size_t)n, sizeof *p);
    char name[32];
    name_of(name, sizeof name, layer, "sinks");
    if (s->sinks)
        mxc_tensor_row(mxc_weights_find(tiny->weights, name), 0, sinks);
    for (int32_t t = 0; t < n; t++)
        for (int32_t head = 0; head < s->n_heads; head++) {
            int32_t kv = head / (s->n_heads / s->n_kv_heads), end = ends ? ends[t] : t + 1;
            int32_t begin = window && t + 1 > window ? t + 1 - window : 0;
            double sum = s->sinks ? exp((double)sinks[head]) : 0;
            double *y = out + ((ptrdiff_t)t * s->n_heads + head) * d;
            memset(y, 0, (size_t)d * sizeof *y);
            for (int32_t j = begin; j < end; j++) {
                double z = 0;
                for (int32_t i = 0; i < d; i++)
                    z += q[((ptrdiff_t)t * s->n_heads + head) * d + i] *
                         k[((ptrdiff_t)j * s->n_kv_heads + kv) * d + i];
                z /= sqrt(d);
                if (s->softcap > 0)
                    z = (double)s->softcap * tanh(z / (double)s->softcap);
                sum += p[j] = exp(z);
            }
            for (int32_t j = begin; j < end; j++)
                for (int32_t i = 0; i < d; i++)
                    y[i] += p[j] / sum * v[((ptrdiff_t)j * s->n_kv_heads + kv) * d + i];
        }
    free(sinks);
    free(p);
}

static void ffn(const struct tiny *tiny, int32_t layer, double *x) {
    const struct tiny_shape *s = &tiny->shape;
    double *h = calloc((size_t)s->hidden, sizeof *h), *y = calloc((size_t)s->hidden, sizeof *y);
    double *g = calloc((size_t)s->ffn, sizeof *g), *u = calloc((size_t)s->ffn, sizeof *u);
    char name[32], bias[32];
    name_of(name, sizeof name, layer, "norm2");
    norm(tiny, name, 1e-5, 0.5, s->hidden, x, h);
    name_of(name, sizeof name, layer, "gate.weight");
    apply(tiny, name, NULL, h, g);
    name_of(name, sizeof name, layer, "up.weight");
    name_of(bias, sizeof bias, layer, "up.bias");
    apply(tiny, name, s->biases ? bias : NULL, h, u);
    for (int32_t i = 0; i < s->ffn; i++)
        g[i] = g[i] / (1 + exp(-g[i])) * u[i];
    name_of(name, sizeof name, layer, "down.weight");
    name_of(bias, sizeof bias, layer, "down.bias");
    apply(tiny, name, s->biases ? bias : NULL, g, y);
    for (int32_t i = 0; i < s->hidden; i++)
        x[i] += y[i];
    free(h);
    free(y);
    free(g);
    free(u);
}

static void layer_forward(const struct tiny *tiny, int32_t layer, double *x, int32_t n,
                          const int32_t *ends) {
    const struct tiny_shape *s = &tiny->shape;
    size_t q_width = (size_t)s->n_heads * (size_t)s->head_dim;
    size_t kv_width = (size_t)s->n_kv_heads * (size_t)s->head_dim;
    double *q = calloc((size_t)n * q_width, sizeof *q),
           *k = calloc((size_t)n * kv_width, sizeof *k);
    double *v = calloc((size_t)n * kv_width, sizeof *v),
           *y = calloc((size_t)n * q_width, sizeof *y);
    double *o = calloc((size_t)s->hidden, sizeof *o);
    char name[32];
    project(tiny, layer, x, n, q, k, v);
    attend(tiny, layer, n, ends, q, k, v, y);
    name_of(name, sizeof name, layer, "o.weight");
    for (int32_t t = 0; t < n; t++) {
        double *row = x + (ptrdiff_t)t * s->hidden;
        apply(tiny, name, NULL, y + (size_t)t * q_width, o);
        for (int32_t i = 0; i < s->hidden; i++)
            row[i] += o[i];
        ffn(tiny, layer, row);
    }
    free(q);
    free(k);
    free(v);
    free(y);
    free(o);
}

void tiny_reference(const struct tiny *tiny, const int32_t *tokens, int32_t n, const int32_t *ends,
                    float *logits) {
    const struct tiny_shape *s = &tiny->shape;
    size_t hidden = (size_t)s->hidden, vocab = (size_t)s->vocab;
    double *x = calloc((size_t)n * hidden, sizeof *x), *h = calloc(hidden, sizeof *h);
    double *y = calloc(vocab, sizeof *y);
    float *row = calloc(hidden, sizeof *row);
    for (int32_t t = 0; t < n; t++) {
        mxc_tensor_row(mxc_weights_find(tiny->weights, "embed.weight"), tokens[t], row);
        for (size_t i = 0; i < hidden; i++)
            x[(size_t)t * hidden + i] = 1.5 * (double)row[i];
    }
    for (int32_t layer = 0; layer < s->n_layers; layer++)
        layer_forward(tiny, layer, x, n, ends);
    for (int32_t t = 0; t < n; t++) {
        norm(tiny, "norm", 1e-5, 0, s->hidden, x + (size_t)t * hidden, h);
        apply(tiny, s->tied ? "embed.weight" : "head.weight", NULL, h, y);
        for (size_t i = 0; i < vocab; i++)
            logits[(size_t)t * vocab + i] = (float)(2 * y[i]);
    }
    free(x);
    free(h);
    free(y);
    free(row);
}
