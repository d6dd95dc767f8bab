/* Decoders that see: CROSS over what state_put left, ROW_MASK, ADD_LEVEL and gated residuals,
 * against a plain forward pass in double precision; sequences with and without pictures in one step
 * give what they give alone; a CROSS store is copied, exported and put back like any other KV. */
#include "backend/mini.h"
#include "backend/runner.h"

#include "base/cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 32, HEADS = 4, KV_HEADS = 2, DIM = 8, VOCAB = 40, LAYERS = 2, LEVELS = 2 };
enum { ROW = LAYERS * 2 * KV_HEADS * DIM, N_BLOCKS = 40, MAX_ROWS = 64, N_SEQS = 3 };

static const struct mxc_backend_ops *const ops = &mxc_backend_cpu;

static int32_t linear(struct mxc_graph *g, int32_t x, int64_t out, const char *name, int n) {
    struct mxc_linear_part part = {
        mxc_graph_matrix(g, out, g->values[x].width, "%s.%d.weight", name, n), MXC_NONE};
    return mxc_graph_linear(g, x, 1, &part, 1, MXC_NONE);
}

/* With a last self-attention, which is what prunes rows then. */
static int32_t self_attention(struct mxc_graph *g, int32_t x) {
    struct mxc_kv kv = {.kind = MXC_KV_FULL, .n_heads = 1, .k_dim = DIM, .v_dim = DIM};
    struct mxc_attn_attr attr = {.n_heads = 2,
                                 .n_kv_heads = 1,
                                 .head_dim = DIM,
                                 .scale = 0.4f,
                                 .rope = MXC_NONE,
                                 .kv = mxc_graph_kv(g, &kv)};
    int32_t h = mxc_graph_attention(g, linear(g, x, 4 * DIM, "self", 0), &attr, MXC_NONE, MXC_NONE,
                                    MXC_NONE);
    return mxc_graph_add(g, x, linear(g, h, WIDTH, "self_out", 0));
}

static void open_model(struct mini *m, bool self, enum mxc_storage storage) {
    struct mxc_graph *g = NULL;
    assert_int_equal(mxc_graph_new("sees", &g, NULL), MXC_OK);
    int32_t x = mxc_graph_embed(g, mxc_graph_table(g, VOCAB, WIDTH, "embed"), 1);
    for (int i = 0; i < LAYERS; i++) {
        struct mxc_kv kv = {.kind = MXC_KV_CROSS, .n_heads = KV_HEADS, .k_dim = DIM, .v_dim = DIM};
        struct mxc_cross_attr attr = {.n_heads = HEADS,
                                      .n_kv_heads = KV_HEADS,
                                      .head_dim = DIM,
                                      .scale = 0.6f,
                                      .q_norm_eps = 1e-5f,
                                      .kv = mxc_graph_kv(g, &kv)};
        mxc_graph_begin_layer(g, i);
        x = mxc_graph_add_level(g, x);
        int32_t q = linear(g, x, HEADS * DIM, "q", i);
        int32_t norm = i ? MXC_NONE : mxc_graph_vector(g, DIM, "q.norm");
        int32_t h = linear(g, mxc_graph_cross(g, q, &attr, norm), WIDTH, "o", i);
        x = mxc_graph_tanh_scale(g, h, mxc_graph_vector(g, 1, "gate.%d", i), x);
        h = mxc_graph_row_mask(g, linear(g, x, WIDTH, "mlp", i));
        x = mxc_graph_add(g, x, h);
    }
    if (self)
        x = self_attention(g, x);
    mxc_graph_begin_layer(g, MXC_NONE);
    mini_open(m, g, linear(g, mxc_graph_select_out(g, x), VOCAB, "head", 0), storage);
}

/* ---- sequences */

struct sequence_ {
    int32_t n, cross_tokens;
    int32_t tokens[MAX_ROWS], range[2][MAX_ROWS];
    bool spliced[MAX_ROWS];
    float splice[MAX_ROWS][(1 + LEVELS) * WIDTH];
    float *store; /* [cross_tokens][ROW] */
};

static uint32_t next(uint32_t *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static float number(uint32_t *seed) {
    return (float)next(seed) / (float)(1 << 23) - 1;
}

static void make_sequence(struct sequence_ *s, int32_t n, int32_t cross_tokens, uint32_t seed) {
    s->n = n;
    s->cross_tokens = cross_tokens;
    s->store = calloc((size_t)cross_tokens * ROW + 1, sizeof *s->store);
    assert_non_null(s->store);
    for (int32_t i = 0; i < cross_tokens * ROW; i++)
        s->store[i] = number(&seed);
    for (int32_t r = 0; r < n; r++) {
        s->tokens[r] = (int32_t)(next(&seed) % VOCAB);
        s->spliced[r] = r % 5 == 2;
        for (int i = 0; i < (1 + LEVELS) * WIDTH; i++)
            s->splice[r][i] = number(&seed);
        int32_t a = cross_tokens ? (int32_t)(next(&seed) % (uint32_t)cross_tokens) : 0;
        bool none = !cross_tokens || r % 4 == 1 || r < 2;
        s->range[0][r] = none ? 0 : r % 2 ? a : 0;
        s->range[1][r] = none ? 0 : r % 2 ? a + 1 : cross_tokens;
    }
}

/* ---- the plain forward pass (without self-attention) */

static void product(const struct mini *m, const char *name, int n, const double *x, int32_t in,
                    int32_t out, double *y) {
    char full[32];
    snprintf(full, sizeof full, "%s.%d.weight", name, n);
    for (int32_t w = 0; w < m->graph->n_weights; w++) {
        if (strcmp(m->graph->weights[w].name, full))
            continue;
        for (int32_t o = 0; o < out; o++) {
            y[o] = 0;
            for (int32_t i = 0; i < in; i++)
                y[o] += x[i] * m->numbers[w][o * in + i];
        }
        return;
    }
    fail();
}

static const double *vector(const struct mini *m, const char *name) {
    for (int32_t w = 0; w < m->graph->n_weights; w++)
        if (!strcmp(m->graph->weights[w].name, name))
            return m->numbers[w];
    fail();
    return NULL;
}

static void cross(const struct mini *m, const struct sequence_ *s, int32_t row, int layer,
                  double *q, double *y) {
    int32_t lo = s->range[0][row], hi = s->range[1][row];
    double *p = calloc((size_t)s->cross_tokens + 1, sizeof *p);
    assert_non_null(p);
    if (lo >= hi) {
        lo = 0;
        hi = s->cross_tokens;
    }
    for (int h = 0; h < HEADS; h++) {
        double mean = 0, top = -1e300, sum = 0, *head = q + h * DIM;
        for (int i = 0; i < DIM; i++)
            mean += head[i] * head[i] / DIM;
        for (int i = 0; i < DIM && !layer; i++)
            head[i] *= vector(m, "q.norm")[i] / sqrt(mean + 1e-5);
        const float *k = s->store + layer * 2 * KV_HEADS * DIM + h / (HEADS / KV_HEADS) * DIM;
        for (int32_t t = lo; t < hi; t++) {
            p[t] = 0;
            for (int i = 0; i < DIM; i++)
                p[t] += head[i] * (double)k[t * ROW + i] * 0.6;
            top = fmax(top, p[t]);
        }
        for (int32_t t = lo; t < hi; t++)
            sum += p[t] = exp(p[t] - top);
        for (int i = 0; i < DIM; i++) {
            y[h * DIM + i] = 0;
            for (int32_t t = lo; t < hi; t++)
                y[h * DIM + i] += p[t] / sum * (double)k[t * ROW + KV_HEADS * DIM + i];
        }
    }
    free(p);
}

static void reference(const struct mini *m, const struct sequence_ *s, double *logits) {
    for (int32_t row = 0; row < s->n; row++) {
        double x[WIDTH], q[HEADS * DIM], y[HEADS * DIM], h[WIDTH];
        for (int i = 0; i < WIDTH; i++)
            x[i] = s->spliced[row] ? (double)s->splice[row][i]
                                   : vector(m, "embed")[s->tokens[row] * WIDTH + i];
        for (int l = 0; l < LAYERS; l++) {
            for (int i = 0; i < WIDTH && s->spliced[row]; i++)
                x[i] += (double)s->splice[row][(1 + l) * WIDTH + i];
            product(m, "q", l, x, WIDTH, HEADS * DIM, q);
            cross(m, s, row, l, q, y);
            product(m, "o", l, y, HEADS * DIM, WIDTH, h);
            for (int i = 0; i < WIDTH; i++)
                x[i] += tanh(vector(m, l ? "gate.1" : "gate.0")[0]) * h[i];
            product(m, "mlp", l, x, WIDTH, WIDTH, h);
            for (int i = 0; i < WIDTH && s->range[0][row] < s->range[1][row]; i++)
                x[i] += h[i];
        }
        product(m, "head", 0, x, WIDTH, VOCAB, logits + row * VOCAB);
    }
}

/* ---- steps */

struct stage {
    struct mxc_backend *backend;
    struct mxc_plan *plan;
    struct mxc_state *state;
    struct sequence_ *seqs[N_SEQS];
    int32_t blocks[N_SEQS][N_BLOCKS], full[N_SEQS];
};

static void need(enum mxc_code code, const struct mxc_err *err) {
    if (code)
        print_message("%s\n", err->message);
    assert_int_equal(code, MXC_OK);
}

/* Stores are written in two pieces, to blocks in some order. */
static void stage_open(struct stage *s, const struct mini *m, int level, int threads,
                       enum mxc_precision precision) {
    struct mxc_err err;
    int32_t n_blocks[MXC_N_KV_KINDS], block = 0;
    struct mxc_plan_options options = {
        .precision = precision, .max_rows = 3 * MAX_ROWS, .max_out = 3 * MAX_ROWS, .max_spans = 3};
    need(mxc_cpu_mask((enum mxc_cpu_level)level, &err), &err);
    need(ops->open(&(struct mxc_backend_options){.n_threads = threads}, &s->backend, &err), &err);
    need(ops->compile(s->backend, m->graph, m->weights, &options, &s->plan, &err), &err);
    for (int k = 0; k < MXC_N_KV_KINDS; k++)
        n_blocks[k] = N_BLOCKS;
    need(ops->state_new(s->plan, n_blocks, &s->state, &err), &err);
    for (int i = 0; i < N_SEQS; i++) {
        const struct sequence_ *q = s->seqs[i];
        for (int32_t b = 0; b < (q->cross_tokens + MXC_KV_BLOCK - 1) / MXC_KV_BLOCK; b++)
            s->blocks[i][b] = 7 * block++ % N_BLOCKS;
        s->full[i] = i;
        int32_t half = q->cross_tokens / 2;
        need(ops->state_put(s->state, s->blocks[i], 0, half, q->store, ROW, &err), &err);
        need(ops->state_put(s->state, s->blocks[i], half, q->cross_tokens - half,
                            q->store + half * ROW, ROW, &err),
             &err);
    }
}

static void stage_close(struct stage *s) {
    ops->state_free(s->state);
    ops->plan_free(s->plan);
    ops->close(s->backend);
}

/* Rows [from, to) of sequences; logits [MAX_ROWS][VOCAB] of each. outs: every out-th row. */
static void run(const struct stage *s, const int32_t *from, const int32_t *to, int32_t out,
                float *const *logits) {
    int32_t tokens[3 * MAX_ROWS], positions[3 * MAX_ROWS], out_row[3 * MAX_ROWS], n = 0, n_out = 0;
    int32_t range[2][3 * MAX_ROWS], flat[6 * MAX_ROWS], n_spans = 0;
    float *target[3 * MAX_ROWS], *all = calloc(3 * MAX_ROWS * VOCAB, sizeof *all);
    struct mxc_splice splices[3 * MAX_ROWS];
    struct mxc_span spans[N_SEQS];
    int32_t n_splices = 0;
    struct mxc_err err;
    assert_non_null(all);
    for (int i = 0; i < N_SEQS; i++) {
        const struct sequence_ *q = s->seqs[i];
        if (from[i] == to[i])
            continue;
        spans[n_spans] = (struct mxc_span){.row0 = n,
                                           .n_rows = to[i] - from[i],
                                           .context = from[i],
                                           .adapter = -1,
                                           .cross_tokens = q->cross_tokens};
        spans[n_spans].blocks[MXC_KV_CROSS] = q->cross_tokens ? s->blocks[i] : NULL;
        spans[n_spans].n_blocks[MXC_KV_CROSS] = (q->cross_tokens + 31) / 32;
        spans[n_spans].blocks[MXC_KV_FULL] = &s->full[i];
        spans[n_spans++].n_blocks[MXC_KV_FULL] = 1;
        for (int32_t r = from[i]; r < to[i]; r++, n++) {
            tokens[n] = q->spliced[r] ? -1 : q->tokens[r];
            positions[n] = r;
            range[0][n] = q->range[0][r];
            range[1][n] = q->range[1][r];
            if (q->spliced[r])
                splices[n_splices++] = (struct mxc_splice){n, q->splice[r]};
            if (r % out == 0) {
                target[n_out] = logits[i] + r * VOCAB;
                out_row[n_out++] = n;
            }
        }
    }
    memcpy(flat, range[0], (size_t)n * sizeof *flat);
    memcpy(flat + n, range[1], (size_t)n * sizeof *flat);
    struct mxc_step step = {.n_rows = n,
                            .tokens = tokens,
                            .positions = positions,
                            .n_axes = 1,
                            .cross_range = flat,
                            .n_spans = n_spans,
                            .spans = spans,
                            .n_out = n_out,
                            .out_row = out_row,
                            .n_splices = n_splices,
                            .splices = splices};
    need(ops->run(s->plan, s->state, &step, &(struct mxc_out){.logits = all}, &err), &err);
    for (int32_t i = 0; i < n_out; i++)
        memcpy(target[i], all + i * VOCAB, VOCAB * sizeof *all);
    free(all);
}

static void make_sequences(struct sequence_ *seqs, struct stage *s) {
    make_sequence(&seqs[0], 30, 70, 1);
    make_sequence(&seqs[1], 9, 0, 2);
    make_sequence(&seqs[2], 31, 600, 3); /* more than a chunk */
    for (int i = 0; i < N_SEQS; i++)
        s->seqs[i] = &seqs[i];
}

static void check_numbers(enum mxc_storage storage, enum mxc_precision precision,
                          double tolerance) {
    struct mini m;
    struct sequence_ seqs[N_SEQS];
    struct stage s;
    double want[MAX_ROWS * VOCAB];
    open_model(&m, false, storage);
    make_sequences(seqs, &s);
    for (int level = 0; level <= (int)mxc_cpu_best(); level++) {
        float have[N_SEQS][MAX_ROWS * VOCAB];
        float *logits[N_SEQS] = {have[0], have[1], have[2]};
        stage_open(&s, &m, level, 2, precision);
        run(&s, (int32_t[N_SEQS]){0, 0, 0}, (int32_t[N_SEQS]){seqs[0].n, seqs[1].n, seqs[2].n}, 1,
            logits);
        stage_close(&s);
        for (int i = 0; i < N_SEQS; i++) {
            double worst = 0, largest = 0;
            reference(&m, &seqs[i], want);
            for (int32_t k = 0; k < seqs[i].n * VOCAB; k++) {
                worst = fmax(worst, fabs((double)have[i][k] - want[k]));
                largest = fmax(largest, fabs(want[k]));
            }
            if (!(worst <= tolerance * largest))
                print_message("level %d, sequence %d: %g\n", level, i, worst / largest);
            assert_true(worst <= tolerance * largest);
        }
    }
    for (int i = 0; i < N_SEQS; i++)
        free(seqs[i].store);
    mini_close(&m);
}

static void test_numbers(void **state) {
    (void)state;
    check_numbers(MXC_ST_F32, MXC_PRECISION_EXACT, 1e-5);
    check_numbers(MXC_ST_BF16, MXC_PRECISION_FAST, 3e-2);
}

/* Alone, row by row, together in pieces, some rows' logits only. */
static void check_bits(bool self, enum mxc_storage storage, enum mxc_precision precision) {
    struct mini m;
    struct sequence_ seqs[N_SEQS];
    struct stage s;
    static float want[N_SEQS][MAX_ROWS * VOCAB], have[N_SEQS][MAX_ROWS * VOCAB];
    float *to_want[N_SEQS] = {want[0], want[1], want[2]};
    float *to_have[N_SEQS] = {have[0], have[1], have[2]};
    open_model(&m, self, storage);
    make_sequences(seqs, &s);
    for (int level = 0; level <= (int)mxc_cpu_best(); level++)
        for (int threads = 1; threads <= 3; threads++) {
            stage_open(&s, &m, level, threads, precision);
            int32_t zero[N_SEQS] = {0}, all[N_SEQS] = {seqs[0].n, seqs[1].n, seqs[2].n};
            for (int i = 0; threads == 1 && i < N_SEQS; i++) {
                int32_t to[N_SEQS] = {0};
                to[i] = seqs[i].n;
                run(&s, zero, to, 1, to_want);
            }
            memset(have, 0, sizeof have);
            run(&s, zero, all, 1, to_have);
            for (int i = 0; i < N_SEQS; i++)
                assert_memory_equal(have[i], want[i], (size_t)(seqs[i].n * VOCAB) * sizeof(float));
            memset(have, 0, sizeof have);
            for (int32_t r = 0; r < MAX_ROWS; r++) {
                int32_t from[N_SEQS], to[N_SEQS];
                bool any = false;
                for (int i = 0; i < N_SEQS; i++) {
                    from[i] = r < seqs[i].n ? r : seqs[i].n;
                    to[i] = r < seqs[i].n ? r + 1 : seqs[i].n;
                    any |= from[i] < to[i];
                }
                if (any)
                    run(&s, from, to, 1, to_have);
            }
            for (int i = 0; i < N_SEQS; i++)
                assert_memory_equal(have[i], want[i], (size_t)(seqs[i].n * VOCAB) * sizeof(float));
            memset(have, 0, sizeof have);
            run(&s, zero, all, 7, to_have);
            for (int i = 0; i < N_SEQS; i++)
                for (int32_t r = 0; r < seqs[i].n; r += 7)
                    assert_memory_equal(have[i] + r * VOCAB, want[i] + r * VOCAB,
                                        VOCAB * sizeof(float));
            stage_close(&s);
        }
    for (int i = 0; i < N_SEQS; i++)
        free(seqs[i].store);
    mini_close(&m);
}

static void test_bits(void **state) {
    (void)state;
    for (int self = 0; self < 2; self++) {
        check_bits(self, MXC_ST_F32, MXC_PRECISION_EXACT);
        check_bits(self, MXC_ST_BF16, MXC_PRECISION_FAST);
    }
}

/* ---- the store as KV */

static void test_blocks(void **state) {
    (void)state;
    struct mini m;
    struct sequence_ seqs[N_SEQS];
    struct stage s;
    struct mxc_err err;
    struct mxc_plan_memory memory;
    static float want[N_SEQS][MAX_ROWS * VOCAB], have[N_SEQS][MAX_ROWS * VOCAB];
    float *to_want[N_SEQS] = {want[0], want[1], want[2]};
    float *to_have[N_SEQS] = {have[0], have[1], have[2]};
    int32_t zero[N_SEQS] = {0}, one[N_SEQS] = {30, 0, 0};
    open_model(&m, false, MXC_ST_F32);
    make_sequences(seqs, &s);
    stage_open(&s, &m, (int)mxc_cpu_best(), 2, MXC_PRECISION_EXACT);
    ops->plan_memory(s.plan, &memory);
    assert_int_equal(memory.kv_block_bytes[MXC_KV_CROSS], MXC_KV_BLOCK * ROW * sizeof(float));
    assert_int_equal(memory.kv_block_bytes[MXC_KV_FULL], 0);
    run(&s, zero, one, 1, to_want);
    void *bytes = malloc(memory.kv_block_bytes[MXC_KV_CROSS]);
    assert_non_null(bytes);
    /* block 0 of the sequence moves by a copy, block 1 by way of memory */
    int32_t free_block = 39 - 6, other = 39 - 5;
    ops->state_copy(s.state, MXC_KV_CROSS, s.blocks[0][0], free_block);
    need(ops->state_export(s.state, MXC_KV_CROSS, s.blocks[0][1], bytes, &err), &err);
    need(ops->state_import(s.state, MXC_KV_CROSS, other, bytes, &err), &err);
    s.blocks[0][0] = free_block;
    s.blocks[0][1] = other;
    run(&s, zero, one, 1, to_have);
    assert_memory_equal(have[0], want[0], 30 * VOCAB * sizeof(float));
    free(bytes);
    stage_close(&s);
    for (int i = 0; i < N_SEQS; i++)
        free(seqs[i].store);
    mini_close(&m);
}

/* ---- what is refused */

struct wrong {
    const char *message;
    void (*change)(struct mxc_step *step, struct mxc_span *span, int32_t *range, int32_t *blocks);
};

#define WRONG(name, body)                                                                          \
    static void name(struct mxc_step *step, struct mxc_span *span, int32_t *range,                 \
                     int32_t *blocks) {                                                            \
        (void)step, (void)span, (void)range, (void)blocks;                                         \
        body;                                                                                      \
    }
WRONG(range_end, range[2 + 1] = 71)
WRONG(range_begin, range[1] = -1)
WRONG(no_blocks, span->blocks[MXC_KV_CROSS] = NULL)
WRONG(few_blocks, span->n_blocks[MXC_KV_CROSS] = 2)
WRONG(negative, span->cross_tokens = -1)
WRONG(hole, blocks[1] = -1)
WRONG(far, blocks[2] = N_BLOCKS)

static const struct wrong wrongs[] = {
    {"row 1: it sees [0, 71) of 70 tokens", range_end},
    {"row 1: it sees [-1, 70) of 70", range_begin},
    {"span 0: 3 blocks do not hold 70 tokens of pictures", no_blocks},
    {"span 0: 2 blocks do not hold 70 tokens of pictures", few_blocks},
    {"do not hold -1 tokens of pictures", negative},
    {"block 1 of kind 3 is -1", hole},
    {"block 2 of kind 3 is 40", far},
};

static void test_wrong(void **state) {
    (void)state;
    struct mini m;
    struct sequence_ seqs[N_SEQS];
    struct stage s;
    struct mxc_err err;
    float row[ROW] = {0}, logits[2 * VOCAB];
    open_model(&m, false, MXC_ST_F32);
    make_sequences(seqs, &s);
    stage_open(&s, &m, (int)mxc_cpu_best(), 1, MXC_PRECISION_EXACT);
    for (size_t i = 0; i < sizeof wrongs / sizeof *wrongs; i++) {
        int32_t tokens[2] = {1, 2}, positions[2] = {0, 1}, range[4] = {0, 0, 70, 70}, blocks[3];
        int32_t out_row[1] = {1};
        memcpy(blocks, s.blocks[0], sizeof blocks);
        struct mxc_span span = {.n_rows = 2, .adapter = -1, .cross_tokens = 70};
        span.blocks[MXC_KV_CROSS] = blocks;
        span.n_blocks[MXC_KV_CROSS] = 3;
        struct mxc_step step = {.n_rows = 2,
                                .tokens = tokens,
                                .positions = positions,
                                .n_axes = 1,
                                .cross_range = range,
                                .n_spans = 1,
                                .spans = &span,
                                .n_out = 1,
                                .out_row = out_row};
        need(ops->run(s.plan, s.state, &step, &(struct mxc_out){.logits = logits}, &err), &err);
        wrongs[i].change(&step, &span, range, blocks);
        assert_int_equal(
            ops->run(s.plan, s.state, &step, &(struct mxc_out){.logits = logits}, &err), MXC_E_ARG);
        if (!strstr(err.message, wrongs[i].message))
            fail_msg("\"%s\" does not say \"%s\"", err.message, wrongs[i].message);
    }
    int32_t blocks[2] = {0, N_BLOCKS};
    assert_int_equal(ops->state_put(s.state, blocks, 32, 1, row, ROW, &err), MXC_E_ARG);
    assert_non_null(strstr(err.message, "KV block 40 is not in [0, 40) of kind cross"));
    assert_int_equal(ops->state_put(s.state, blocks, -1, 1, row, ROW, &err), MXC_E_ARG);
    assert_int_equal(ops->state_put(s.state, NULL, 0, 1, row, ROW, &err), MXC_E_ARG);
    assert_int_equal(ops->state_put(s.state, NULL, 0, 0, NULL, ROW, &err), MXC_OK);
    stage_close(&s);
    for (int i = 0; i < N_SEQS; i++)
        free(seqs[i].store);
    mini_close(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_numbers), cmocka_unit_test(test_bits),
                                       cmocka_unit_test(test_blocks), cmocka_unit_test(test_wrong)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
