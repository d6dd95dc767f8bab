/* bench_tower [LAYERS [PATCHES...]]: the tower of a Qwen2-VL-2B-shaped random model (width 1280, 16
 * heads of 80, MLP 5120; 32 layers there, 4 here unless told: a layer costs the same) on one
 * picture of 1024 and of 4096 patches. Prints time, processor time, arithmetic and memory. The
 * share of the machine's bf16 peak is that of a quiet machine; TFLOP/s of processor time is the
 * figure to compare where others run, too. */
#define _GNU_SOURCE
#include "backend/backend.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { WIDTH = 1280, HEADS = 16, DIM = 80, FFN = 5120, PATCH = 1176, MERGE = 4, OUT = 1536 };

static int die(const struct mxc_err *err) {
    fprintf(stderr, "bench_tower: %s\n", err->message);
    return 1;
}

/* ---- the graph */

static int32_t linear(struct mxc_graph *g, int32_t x, int64_t out, int32_t residual,
                      const char *name, int n) {
    struct mxc_linear_part part = {
        mxc_graph_matrix(g, out, g->values[x].width, "%s.%d.weight", name, n),
        mxc_graph_vector(g, out, "%s.%d.bias", name, n)};
    return mxc_graph_linear(g, x, 1, &part, 1, residual);
}

static int32_t norm(struct mxc_graph *g, int32_t x, const char *name, int n) {
    return mxc_graph_layer_norm(g, x, mxc_graph_vector(g, WIDTH, "%s.%d.weight", name, n),
                                mxc_graph_vector(g, WIDTH, "%s.%d.bias", name, n), 1e-6f);
}

static int32_t build(struct mxc_graph *g, int layers) {
    struct mxc_rope rope = {
        .dims = DIM, .theta = 1e4, .sections = {DIM / 4, DIM / 4, 0}, .restart = true};
    int32_t x = mxc_graph_input(g, PATCH);
    struct mxc_attend_attr attr = {.n_heads = HEADS,
                                   .head_dim = DIM,
                                   .scale = 1 / sqrtf(DIM),
                                   .rope = mxc_graph_rope(g, &rope),
                                   .positions = mxc_graph_index(g, x, 2, false),
                                   .range = mxc_graph_range(g, x)};
    x = linear(g, x, WIDTH, MXC_NONE, "patch", 0);
    for (int i = 0; i < layers; i++) {
        mxc_graph_begin_layer(g, i);
        int32_t h = linear(g, norm(g, x, "norm1", i), 3 * WIDTH, MXC_NONE, "qkv", i);
        x = linear(g, mxc_graph_attend(g, h, &attr), WIDTH, x, "proj", i);
        h = linear(g, norm(g, x, "norm2", i), FFN, MXC_NONE, "fc1", i);
        x = linear(g, mxc_graph_act(g, h, MXC_ACT_GELU_QUICK), WIDTH, x, "fc2", i);
    }
    mxc_graph_begin_layer(g, MXC_NONE);
    x = mxc_graph_merge(g, norm(g, x, "final", 0), MERGE);
    x = mxc_graph_act(g, linear(g, x, MERGE * WIDTH, MXC_NONE, "merge", 0), MXC_ACT_GELU);
    return linear(g, x, OUT, MXC_NONE, "merge", 1);
}

/* ---- its checkpoint: bf16 numbers around 0, in a file without a name */

static bool write_weights(const struct mxc_graph *g, const char *path) {
    FILE *file = fopen(path, "wb");
    char *header = NULL;
    size_t n = 0, at = 0;
    FILE *text = open_memstream(&header, &n);
    if (!file || !text)
        return false;
    for (int32_t i = 0; i < g->n_weights; i++) {
        const struct mxc_weight *w = &g->weights[i];
        size_t bytes = 2 * (size_t)w->shape[0] * (size_t)(w->n_dims > 1 ? w->shape[1] : 1);
        fprintf(text, "%c\"%s\":{\"dtype\":\"BF16\",\"shape\":[%lld", i ? ',' : '{', w->name,
                (long long)w->shape[0]);
        if (w->n_dims > 1)
            fprintf(text, ",%lld", (long long)w->shape[1]);
        fprintf(text, "],\"data_offsets\":[%zu,%zu]}", at, at + bytes);
        at += bytes;
    }
    fputc('}', text);
    while (ftell(text) % 8)
        fputc(' ', text);
    fclose(text);
    uint64_t length = n;
    fwrite(&length, sizeof length, 1, file);
    fwrite(header, 1, n, file);
    free(header);
    uint32_t seed = 1;
    uint16_t block[4096];
    for (size_t left = at; left;) {
        size_t take = left < sizeof block ? left : sizeof block;
        for (size_t i = 0; i < take / 2; i++) { /* +- 2^-8 ... 2^-5 */
            seed = seed * 1664525u + 1013904223u;
            block[i] = (uint16_t)((seed >> 16 & 0x81FF) | 0x3C00);
        }
        fwrite(block, 1, take, file);
        left -= take;
    }
    return !fclose(file);
}

static enum mxc_code open_weights(const struct mxc_graph *g, struct mxc_weights **weights,
                                  struct mxc_err *err) {
    char folder[] = "/tmp/mlxcel-tower-XXXXXX", path[64];
    enum mxc_code code = MXC_E_IO;
    if (!mkdtemp(folder))
        return mxc_err_set(err, MXC_E_IO, "no folder for the weights");
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    if (write_weights(g, path))
        code = mxc_weights_open(folder, NULL, weights, err);
    else
        (void)mxc_err_set(err, MXC_E_IO, "the weights cannot be written");
    unlink(path);
    rmdir(folder);
    return code;
}

/* ---- runs */

static double seconds(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static enum mxc_code run(struct mxc_plan *plan, int32_t n, int layers, double peak,
                         struct mxc_err *err) {
    const struct mxc_backend_ops *ops = &mxc_backend_cpu;
    float *rows = calloc((size_t)n * PATCH, sizeof *rows);
    int32_t *index = calloc((size_t)n * 2, sizeof *index);
    int32_t *range = calloc((size_t)n * 2, sizeof *range);
    struct mxc_tower *tower = NULL;
    enum mxc_code code = MXC_E_NOMEM;
    if (!rows || !index || !range) {
        (void)mxc_err_nomem(err);
        goto out;
    }
    for (int32_t i = 0; i < n; i++) {
        index[i] = i / 32;
        index[n + i] = i % 32;
        range[n + i] = n;
        for (int32_t k = 0; k < PATCH; k++)
            rows[(size_t)i * PATCH + (size_t)k] = (float)((i * 7 + k * 13) % 256) / 64 - 2;
    }
    struct mxc_tower_input input = {
        .rows = rows, .n_rows = {n}, .index = {index}, .range = {range}};
    int32_t merged = n / MERGE;
    double matrices = (double)n * layers * WIDTH * (4.0 * WIDTH + 2.0 * FFN) +
                      (double)n * PATCH * WIDTH +
                      (double)merged * MERGE * WIDTH * (MERGE * WIDTH + OUT);
    double macs = matrices + (double)n * n * 2 * WIDTH * layers;
    double best = 1e9, best_cpu = 1e9;
    for (int i = 0; i < 3; i++) {
        bool done = false;
        double wall = seconds(CLOCK_MONOTONIC), cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
        if ((code = ops->tower_new(plan, &input, &tower, err)))
            goto out;
        while (!done)
            if ((code = ops->tower_step(tower, 5000000000u, &done, err)))
                goto out;
        wall = seconds(CLOCK_MONOTONIC) - wall;
        cpu = seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
        best = wall < best ? wall : best;
        best_cpu = cpu < best_cpu ? cpu : best_cpu;
        ops->tower_free(tower);
        tower = NULL;
    }
    printf("%5d patches: %6.3f s, %6.3f s of processors; %.3f TFLOP/s (%.0f %% of the peak), %.3f "
           "per processor; %.0f %% of it attention; %.1f MB\n",
           n, best, best_cpu, 2e-12 * macs / best, 200e-12 * macs / best / peak,
           2e-12 * macs / best_cpu, 100 - 100 * matrices / macs,
           (double)ops->tower_bytes(plan, &input) / 1e6);
out:
    ops->tower_free(tower);
    free(rows);
    free(index);
    free(range);
    return code;
}

int main(int argc, char **argv) {
    const struct mxc_backend_ops *ops = &mxc_backend_cpu;
    int layers = argc > 1 ? atoi(argv[1]) : 4;
    int threads = getenv("THREADS") ? atoi(getenv("THREADS")) : 0;
    struct mxc_graph *g = NULL;
    struct mxc_weights *weights = NULL;
    struct mxc_backend *backend = NULL;
    struct mxc_plan *plan = NULL;
    struct mxc_plan_options options = {.precision = MXC_PRECISION_FAST};
    struct mxc_cpu_limits limits;
    struct mxc_err err;
    if (layers < 1 || layers > 64) {
        fprintf(stderr, "bench_tower: LAYERS is not in [1, 64]\n");
        return 2;
    }
    enum mxc_code code = mxc_graph_new("qwen2_vl", &g, &err);
    if (code || (code = mxc_graph_finish(g, build(g, layers), &err)) ||
        (code = open_weights(g, &weights, &err)) ||
        (code = ops->open(&(struct mxc_backend_options){.n_threads = threads}, &backend, &err)) ||
        (code = ops->compile(backend, g, weights, &options, &plan, &err)) ||
        (code = mxc_backend_cpu_limits(threads, &limits, &err)))
        goto out;
    printf("%s; %d layers; peak now: bf16 %.3f TFLOP/s\n", ops->plan_describe(plan), layers,
           limits.bf16_tflops);
    static const int32_t usual[] = {1024, 4096};
    int n = argc > 2 ? argc - 2 : 2;
    for (int i = 0; i < n && !code; i++)
        code = run(plan, argc > 2 ? atoi(argv[2 + i]) : usual[i], layers, limits.bf16_tflops, &err);
out:
    ops->plan_free(plan);
    ops->close(backend);
    mxc_weights_close(weights);
    mxc_graph_free(g);
    return code ? die(&err) : 0;
}
