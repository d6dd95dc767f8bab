/* bench_vision MODEL PICTURE [MAX_PIXELS [THREADS]]: from a picture's file to the first token, one
 * step at a time, on a model that sees. Loads the model, says "ready", and does one run for every
 * line on standard input, so that bench/vision.py can let it take turns with another program. A run
 * is one line of JSON: for each step seconds and, with "cpu_" in front, seconds of processors.
 * decode: file to pixels; resize: to the tower's rows; tower: its layers; projector: what joins the
 * rows and maps them to the language model, which runs with the tower and is timed by itself on the
 * same number of rows; prefill: the prompt with the picture in it, to the first token's logits. */
#define _GNU_SOURCE
#include "base/file.h"
#include "base/mem.h"
#include "engine/load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_ROWS = 512, TEXT = 20, MAX_BYTES = 256 << 20 };
enum step { DECODE, RESIZE, TOWER, PROJECTOR, PREFILL, N_STEPS };
static const char *const step_names[N_STEPS] = {"decode", "resize", "tower", "projector",
                                                "prefill"};

struct bench {
    struct mxc_model *model;
    char *file;
    size_t file_bytes;
    struct mxc_vision_budget budget;
    struct mxc_graph *graph; /* of the projector alone; NULL: it is timed with the tower */
    struct mxc_plan *projector;
    struct mxc_state *state;
    int32_t *blocks, n_blocks;
    double wall[N_STEPS], cpu[N_STEPS];
    int32_t patches, tokens;
};

static double seconds(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void start(struct bench *b, enum step step) {
    b->wall[step] = -seconds(CLOCK_MONOTONIC);
    b->cpu[step] = -seconds(CLOCK_PROCESS_CPUTIME_ID);
}

static void stop(struct bench *b, enum step step) {
    b->wall[step] += seconds(CLOCK_MONOTONIC);
    b->cpu[step] += seconds(CLOCK_PROCESS_CPUTIME_ID);
}

/* ---- the projector by itself */

/* The tower's weight whose name ends so, or NULL. */
static const struct mxc_weight *weight_of(const struct mxc_graph *tower, const char *end) {
    size_t n = strlen(end);
    for (int32_t i = 0; i < tower->n_weights; i++) {
        size_t length = strlen(tower->weights[i].name);
        if (length >= n && !strcmp(tower->weights[i].name + length - n, end))
            return &tower->weights[i];
    }
    return NULL;
}

static int32_t linear(struct mxc_graph *g, int32_t x, int64_t out, const char *prefix, int n) {
    struct mxc_linear_part part = {
        mxc_graph_matrix(g, out, g->values[x].width, "%smlp.%d.weight", prefix, n),
        mxc_graph_vector(g, out, "%smlp.%d.bias", prefix, n)};
    return mxc_graph_linear(g, x, 1, &part, 1, MXC_NONE);
}

/* Qwen2-VL's merger: four rows joined, two matrices. Another model's is left in the tower. */
static enum mxc_code open_projector(struct bench *b, const struct mxc_plan_options *options,
                                    struct mxc_err *err) {
    static const char end[] = "merger.ln_q.weight";
    const struct mxc_graph *tower = mxc_vision_tower(b->model->checkpoint->vision);
    const struct mxc_weight *norm = weight_of(tower, end);
    const struct mxc_weight *bias = weight_of(tower, "merger.ln_q.bias");
    const struct mxc_weight *first = weight_of(tower, "merger.mlp.0.weight");
    char prefix[128];
    if (!norm || !bias || !first)
        return MXC_OK;
    (void)snprintf(prefix, sizeof prefix, "%.*s", (int)(strlen(norm->name) - strlen("ln_q.weight")),
                   norm->name);
    enum mxc_code code = mxc_graph_new("projector", &b->graph, err);
    if (code)
        return code;
    int64_t width = norm->shape[0];
    int32_t x = mxc_graph_input(b->graph, (int32_t)width);
    x = mxc_graph_layer_norm(b->graph, x,
                             mxc_graph_vector(b->graph, width, "%sln_q.weight", prefix),
                             mxc_graph_vector(b->graph, width, "%sln_q.bias", prefix), 1e-6f);
    x = mxc_graph_merge(b->graph, x, (int32_t)(first->shape[1] / width));
    x = mxc_graph_act(b->graph, linear(b->graph, x, first->shape[0], prefix, 0), MXC_ACT_GELU);
    x = linear(b->graph, x, tower->vocab, prefix, 2);
    code = mxc_graph_finish(b->graph, x, err);
    return code ? code
                : b->model->ops->compile(b->model->backend, b->graph, b->model->checkpoint->weights,
                                         options, &b->projector, err);
}

/* ---- one run */

static enum mxc_code run_tower(struct bench *b, const struct mxc_plan *plan,
                               const struct mxc_tower_input *input, float **rows,
                               struct mxc_err *err) {
    const struct mxc_backend_ops *ops = b->model->ops;
    struct mxc_tower *tower = NULL;
    bool done = false;
    int32_t n = 0;
    enum mxc_code code = ops->tower_new((struct mxc_plan *)(uintptr_t)plan, input, &tower, err);
    while (!code && !done)
        code = ops->tower_step(tower, UINT64_C(5000000000), &done, err);
    if (!code && rows) {
        const float *out = ops->tower_output(tower, &n);
        size_t count = (size_t)n * (size_t)mxc_vision_tower(b->model->checkpoint->vision)->vocab;
        *rows = mxc_mem_array(count, sizeof **rows);
        if (*rows)
            memcpy(*rows, out, count * sizeof **rows);
        else
            code = mxc_err_nomem(err);
    }
    ops->tower_free(tower);
    return code;
}

static enum mxc_code time_projector(struct bench *b, const struct mxc_vision_picture *picture,
                                    struct mxc_err *err) {
    int32_t n = picture->input.n_rows[0];
    size_t width = (size_t)b->graph->values[b->graph->input].width;
    float *rows = mxc_mem_zalloc((size_t)n * width, sizeof *rows);
    if (!rows)
        return mxc_err_nomem(err);
    for (size_t i = 0; i < (size_t)n * width; i++)
        rows[i] = (float)(i * 37 % 256) / 64 - 2;
    const struct mxc_tower_input input = {.rows = rows, .n_rows = {n}};
    start(b, PROJECTOR);
    enum mxc_code code = run_tower(b, b->projector, &input, NULL, err);
    stop(b, PROJECTOR);
    mxc_mem_free(rows);
    return code;
}

/* The laid out prompt in steps of MAX_ROWS, the picture's rows in their places. */
static enum mxc_code run_prompt(struct bench *b, const struct mxc_vision_layout *l,
                                const float *features, float *logits, struct mxc_err *err) {
    const struct mxc_backend_ops *ops = b->model->ops;
    static struct mxc_splice splices[MAX_ROWS];
    static int32_t positions[3 * MAX_ROWS], ends[MAX_ROWS];
    size_t ld = (size_t)mxc_vision_tower(b->model->checkpoint->vision)->vocab;
    int32_t axes = l->positions ? 3 : 1;
    enum mxc_code code = MXC_OK;
    for (int32_t at = 0; at < l->n_tokens && !code; at += MAX_ROWS) {
        int32_t n = l->n_tokens - at < MAX_ROWS ? l->n_tokens - at : MAX_ROWS, out = n - 1;
        struct mxc_span span = {
            .n_rows = n, .context = at, .rope_length = l->n_tokens, .adapter = -1};
        for (int k = 0; k < MXC_N_KV_KINDS; k++) {
            span.blocks[k] = b->blocks;
            span.n_blocks[k] = b->n_blocks;
        }
        struct mxc_step step = {.n_rows = n,
                                .tokens = l->tokens + at,
                                .positions = positions,
                                .n_axes = axes,
                                .row_end = l->row_end ? ends : NULL,
                                .n_spans = 1,
                                .spans = &span,
                                .n_out = at + n == l->n_tokens,
                                .out_row = &out,
                                .splices = splices};
        for (int32_t r = 0; r < n; r++) {
            for (int32_t a = 0; a < axes; a++)
                positions[a * n + r] =
                    l->positions ? l->positions[a * l->n_tokens + at + r] : at + r;
            if (l->row_end)
                ends[r] = l->row_end[at + r];
        }
        for (int32_t i = 0; i < l->n_runs; i++)
            for (int32_t k = 0; k < l->runs[i].n_rows; k++) {
                int32_t row = l->runs[i].row0 + k - at;
                if (row >= 0 && row < n)
                    splices[step.n_splices++] =
                        (struct mxc_splice){row, features + (size_t)(l->runs[i].feature0 + k) * ld};
            }
        code = ops->run(b->model->plan, b->state, &step, &(struct mxc_out){.logits = logits}, err);
    }
    return code;
}

static enum mxc_code time_prefill(struct bench *b, const struct mxc_vision_picture *picture,
                                  const float *features, struct mxc_err *err) {
    const struct mxc_vision *vision = b->model->checkpoint->vision;
    int32_t tokens[TEXT + 1];
    uint8_t is_mark[TEXT + 1] = {0};
    struct mxc_vision_layout layout;
    for (int32_t i = 0; i <= TEXT; i++)
        tokens[i] = 100 + 7 * i;
    tokens[TEXT / 2] = mxc_vision_image_token(vision);
    is_mark[TEXT / 2] = 1;
    const struct mxc_vision_text text = {tokens, is_mark, TEXT + 1};
    enum mxc_code code = mxc_vision_lay_out(vision, &text, &picture, 1, &layout, err);
    if (code)
        return code;
    float *logits = mxc_mem_zalloc((size_t)b->model->checkpoint->graph->vocab, sizeof *logits);
    if (layout.cross_range || layout.n_tokens > b->n_blocks * MXC_KV_BLOCK)
        code = mxc_err_set(err, MXC_E_UNSUPPORTED, "a prompt of %d tokens, or cross attention",
                           layout.n_tokens);
    else if (!logits)
        code = mxc_err_nomem(err);
    start(b, PREFILL);
    if (!code)
        code = run_prompt(b, &layout, features, logits, err);
    stop(b, PREFILL);
    b->tokens = layout.n_tokens;
    mxc_mem_free(logits);
    mxc_vision_layout_fini(&layout);
    return code;
}

static enum mxc_code run(struct bench *b, struct mxc_err *err) {
    struct mxc_image image = {0};
    struct mxc_vision_picture picture;
    float *features = NULL;
    memset(b->wall, 0, sizeof b->wall);
    memset(b->cpu, 0, sizeof b->cpu);
    start(b, DECODE);
    enum mxc_code code = mxc_image_decode(b->file, b->file_bytes, NULL, &image, err);
    stop(b, DECODE);
    if (code)
        return code;
    start(b, RESIZE);
    code = mxc_vision_prepare(b->model->checkpoint->vision, &image, &b->budget, &picture, err);
    stop(b, RESIZE);
    mxc_image_fini(&image);
    if (code)
        return code;
    b->patches = (int32_t)picture.cost.n_patches;
    start(b, TOWER);
    code = run_tower(b, b->model->tower, &picture.input, &features, err);
    stop(b, TOWER);
    if (!code && b->projector)
        code = time_projector(b, &picture, err);
    b->wall[TOWER] -= b->wall[PROJECTOR];
    b->cpu[TOWER] -= b->cpu[PROJECTOR];
    if (!code)
        code = time_prefill(b, &picture, features, err);
    mxc_mem_free(features);
    mxc_vision_picture_fini(&picture);
    if (code)
        return code;
    printf("{\"patches\": %d, \"prompt\": %d", b->patches, b->tokens);
    for (int i = 0; i < N_STEPS; i++)
        printf(", \"%s\": %.4f, \"cpu_%s\": %.4f", step_names[i], b->wall[i], step_names[i],
               b->cpu[i]);
    printf("}\n");
    (void)fflush(stdout);
    return MXC_OK;
}

/* ---- the program */

static enum mxc_code open_bench(struct bench *b, char **argv, int threads, struct mxc_err *err) {
    struct mxc_load_options load;
    int32_t n_blocks[MXC_N_KV_KINDS];
    mxc_load_options_init(&load);
    load.n_threads = threads;
    load.max_rows = MAX_ROWS;
    b->n_blocks = 8192 / MXC_KV_BLOCK;
    enum mxc_code code = mxc_file_read(argv[2], MAX_BYTES, &b->file, &b->file_bytes, err);
    if (code || (code = mxc_model_open(argv[1], &load, &b->model, err)))
        return code;
    if (!b->model->tower)
        return mxc_err_set(err, MXC_E_UNSUPPORTED, "%s does not see", argv[1]);
    if (!b->budget.max_pixels)
        mxc_vision_default_budget(b->model->checkpoint->vision, &b->budget);
    for (int k = 0; k < MXC_N_KV_KINDS; k++)
        n_blocks[k] = b->n_blocks;
    b->blocks = mxc_mem_array((size_t)b->n_blocks, sizeof *b->blocks);
    if (!b->blocks)
        return mxc_err_nomem(err);
    for (int32_t i = 0; i < b->n_blocks; i++)
        b->blocks[i] = i;
    const struct mxc_plan_options options = {.precision = load.precision};
    if ((code = open_projector(b, &options, err)))
        return code;
    return b->model->ops->state_new(b->model->plan, n_blocks, &b->state, err);
}

int main(int argc, char **argv) {
    struct bench b = {.model = NULL};
    struct mxc_err err;
    char line[16];
    if (argc < 3 || argc > 5) {
        fprintf(stderr, "usage: bench_vision MODEL PICTURE [MAX_PIXELS [THREADS]]\n");
        return 2;
    }
    b.budget.max_pixels = argc > 3 ? atoll(argv[3]) : 0;
    enum mxc_code code = open_bench(&b, argv, argc > 4 ? atoi(argv[4]) : 0, &err);
    if (!code) {
        printf("ready\n");
        (void)fflush(stdout);
    }
    while (!code && fgets(line, sizeof line, stdin))
        code = run(&b, &err);
    if (code)
        fprintf(stderr, "bench_vision: %s\n", err.message);
    if (b.model) {
        b.model->ops->state_free(b.state);
        b.model->ops->plan_free(b.projector);
    }
    mxc_graph_free(b.graph);
    mxc_model_close(b.model);
    mxc_mem_free(b.blocks);
    mxc_mem_free(b.file);
    return code != MXC_OK;
}
