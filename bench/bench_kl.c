/* bench_kl MODEL TEXT [TOKENS]: what the fast precision costs. Runs the first TOKENS (4096) tokens
 * of a text, teacher-forced, in both precisions and prints the mean KL divergence of fast from
 * exact per token (natural logarithm) and how often the most likely token is the same. */
#define _GNU_SOURCE
#include "base/file.h"
#include "base/mem.h"
#include "engine/load.h"
#include "engine/probe.h"
#include "gen/chat.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 256 };

struct side {
    struct mxc_model *model;
    struct mxc_probe *probe;
    float *logits; /* [ROWS][vocab] */
};

static int die(const struct mxc_err *err) {
    fprintf(stderr, "bench_kl: %s\n", err->message);
    return 1;
}

static enum mxc_code side_open(struct side *s, const char *path, enum mxc_precision precision,
                               int32_t n, struct mxc_err *err) {
    struct mxc_load_options o;
    mxc_load_options_init(&o);
    o.precision = precision;
    o.max_rows = ROWS;
    o.max_out = ROWS;
    o.max_batch = 1;
    enum mxc_code code = mxc_model_open(path, &o, &s->model, err);
    if (code)
        return code;
    const struct mxc_graph *g = s->model->checkpoint->graph;
    s->logits = mxc_mem_array((size_t)g->vocab, ROWS * sizeof(float));
    if (!s->logits)
        return mxc_err_nomem(err);
    code = mxc_probe_new(s->model->ops, s->model->plan, g, 1, n, &s->probe, err);
    if (!code)
        mxc_probe_reset(s->probe, n);
    return code;
}

static void side_close(struct side *s) {
    mxc_probe_free(s->probe);
    mxc_mem_free(s->logits);
    mxc_model_close(s->model);
}

static double log_sum_exp(const float *x, int32_t n, int32_t *best) {
    double sum = 0;
    *best = 0;
    for (int32_t i = 1; i < n; i++)
        if (x[i] > x[*best])
            *best = i;
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)x[i] - (double)x[*best]);
    return (double)x[*best] + log(sum);
}

/* sum p log(p / q) */
static double divergence(const float *exact, const float *fast, int32_t n, bool *same) {
    int32_t a, b;
    double za = log_sum_exp(exact, n, &a), zb = log_sum_exp(fast, n, &b), kl = 0;
    for (int32_t i = 0; i < n; i++) {
        double lp = (double)exact[i] - za;
        kl += exp(lp) * (lp - ((double)fast[i] - zb));
    }
    *same = a == b;
    return kl;
}

static enum mxc_code compare(struct side sides[2], const int32_t *ids, int32_t n,
                             struct mxc_err *err) {
    int32_t vocab = sides[0].model->checkpoint->graph->vocab, same = 0;
    double sum = 0, most = 0;
    for (int32_t i = 0; i < n;) {
        int32_t rows = n - i < ROWS ? n - i : ROWS;
        for (int k = 0; k < 2; k++) {
            const struct mxc_probe_run run = {
                .tokens = ids + i, .n_rows = rows, .all_rows = true, .logits = sides[k].logits};
            enum mxc_code code = mxc_probe_step(sides[k].probe, &run, err);
            if (code)
                return code;
        }
        for (int32_t r = 0; r < rows; r++) {
            bool equal;
            double kl = divergence(sides[0].logits + (size_t)r * (size_t)vocab,
                                   sides[1].logits + (size_t)r * (size_t)vocab, vocab, &equal);
            sum += kl;
            same += equal;
            most = kl > most ? kl : most;
        }
        i += rows;
        fprintf(stderr, "\r%d of %d", i, n);
    }
    printf("\n%d tokens: KL(exact || fast) %.5f per token (largest %.3f), top-1 equal %.2f %%\n", n,
           sum / n, most, 100.0 * same / n);
    return MXC_OK;
}

static enum mxc_code tokens(const char *model, const char *path, struct mxc_ids *ids,
                            struct mxc_err *err) {
    const struct mxc_encode_options options = {.add_special = true};
    struct mxc_chat *chat = NULL;
    char *text = NULL;
    size_t length;
    enum mxc_code code = mxc_file_read(path, 64 << 20, &text, &length, err);
    if (!code)
        code = mxc_chat_open(model, NULL, 0, &chat, err);
    if (!code)
        code = mxc_chat_text(chat, text, length, options, ids, err);
    mxc_chat_close(chat);
    mxc_mem_free(text);
    return code;
}

int main(int argc, char **argv) {
    struct side sides[2] = {{0}};
    struct mxc_ids ids = {0};
    struct mxc_err err;
    if (argc < 3) {
        fprintf(stderr, "usage: bench_kl MODEL TEXT [TOKENS]\n");
        return 2;
    }
    int32_t n = argc > 3 ? atoi(argv[3]) : 4096;
    enum mxc_code code = tokens(argv[1], argv[2], &ids, &err);
    if (!code && (n < 1 || (size_t)n > ids.count))
        code = mxc_err_set(&err, MXC_E_ARG, "%s has %zu tokens, not %d", argv[2], ids.count, n);
    if (!code)
        code = side_open(&sides[0], argv[1], MXC_PRECISION_EXACT, n, &err);
    if (!code)
        code = side_open(&sides[1], argv[1], MXC_PRECISION_FAST, n, &err);
    if (!code)
        code = compare(sides, (const int32_t *)ids.items, n, &err);
    side_close(&sides[0]);
    side_close(&sides[1]);
    mxc_ids_fini(&ids);
    return code ? die(&err) : 0;
}
