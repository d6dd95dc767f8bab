/* mlxcel bench: prompt and generation speed in the terms of llama-bench, over lists of lengths,
 * batch sizes, depths and thread counts; with --limits also what the machine can do and the share
 * reached.
 * In: the command line and a model. Out: a Markdown table, row by row, or one JSON array at the
 * end.
 * A model is opened anew for each backend and number of threads, which are fixed at opening. Every
 * case has one warm-up run that is not counted; mean and sample deviation are of the others. */
#define _GNU_SOURCE
#include "cli/commands.h"

#include "base/json.h"
#include "base/str.h"
#include "cli/limits.h"
#include "cli/options.h"
#include "cli/term.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_VALUES = 16, MAX_REPEATS = 100, MAX_BACKENDS = 4 };

struct values {
    int64_t items[MAX_VALUES];
    size_t n;
};

struct bench {
    struct mxc_model_args model;
    const char *prompts, *gens, *batches, *threads, *depths, *backend;
    int64_t repeats;
    bool json, limits, headed;
    const char *name;
    json_t *results;
};

struct row {
    const struct mlxcel_model_info *info;
    const struct mxc_limits_report *limits; /* NULL: not measured */
    struct mlxcel_bench bench;
    const char *backend;
    int64_t threads, n;
    double rates[MAX_REPEATS]; /* [n] tokens per second */
    double mean, deviation;
};

/* "512,128" */
static bool parse_values(const char *text, int64_t min, int64_t max, struct values *out) {
    out->n = 0;
    for (;;) {
        char *end;
        long long v = strtoll(text, &end, 10);
        if (end == text || v < min || v > max || out->n == MAX_VALUES)
            return false;
        out->items[out->n++] = v;
        if (!*end)
            return true;
        if (*end != ',')
            return false;
        text = end + 1;
    }
}

static int64_t tokens_of(const struct mlxcel_bench *b) {
    return (int64_t)b->n_sequences * (b->n_prompt + b->n_gen);
}

static int measure(struct mlxcel_model *model, int64_t repeats, struct row *row) {
    struct mlxcel_error error;
    double *rates = row->rates, seconds, sum = 0, squares = 0;
    struct mxc_progress progress;
    mxc_progress_start(&progress, "measuring");
    for (int64_t i = -1; i < repeats; i++) { /* the first is a warm-up */
        mxc_progress_fraction(&progress, (double)(i + 1) / (double)(repeats + 1));
        if (mlxcel_bench_run(model, &row->bench, (uint64_t)(i + 2), &seconds, &error))
            return mxc_term_fail(&error);
        if (mxc_term_interrupted())
            return 130;
        if (i >= 0) {
            rates[i] = (double)tokens_of(&row->bench) / seconds;
            sum += rates[i];
        }
    }
    mxc_progress_done(&progress);
    row->n = repeats;
    row->mean = sum / (double)repeats;
    for (int64_t i = 0; i < repeats; i++)
        squares += (rates[i] - row->mean) * (rates[i] - row->mean);
    row->deviation = repeats > 1 ? sqrt(squares / (double)(repeats - 1)) : 0;
    return 0;
}

static void test_name(const struct mlxcel_bench *b, char text[64]) {
    int n = b->n_prompt ? snprintf(text, 64, "pp%d", b->n_prompt)
                        : snprintf(text, 64, "tg%d", b->n_gen);
    if (b->n_sequences > 1)
        n += snprintf(text + n, 64 - (size_t)n, " x%d", b->n_sequences);
    if (b->n_depth)
        (void)snprintf(text + n, 64 - (size_t)n, " @d%d", b->n_depth);
}

/* Share of the machine's limit, and what that limit is. 0: not measured. */
static double share(const struct row *row, const char **bound) {
    double seconds = row->limits ? mxc_limits_seconds(row->limits, &row->bench, bound) : 0;
    return seconds * row->mean / (double)tokens_of(&row->bench);
}

static void print_head(void) {
    (void)printf("| %-10s | %-16s | %9s | %-7s | %7s | %12s | %17s |\n"
                 "| ---------- | ---------------- | --------: | ------- | ------: | -----------: | "
                 "----------------: |\n",
                 "model", "quantisation", "size", "backend", "threads", "test", "tokens/s");
}

static void print_row(const struct row *row) {
    char name[64], size[16], reached[32] = "";
    test_name(&row->bench, name);
    const char *bound;
    double s = share(row, &bound);
    if (s > 0)
        (void)snprintf(reached, sizeof reached, "%.0f %% of %s", 100 * s, bound);
    (void)printf("| %-10s | %-16s | %9s | %-7s | %7lld | %12s | %9.2f ± %.2f |%s%s\n",
                 row->info->family, row->info->quantisation,
                 mxc_term_size(row->info->file_bytes, size), row->backend, (long long)row->threads,
                 name, row->mean, row->deviation, *reached ? " " : "", reached);
    (void)fflush(stdout);
}

static json_t *row_json(const struct row *row) {
    json_t *o =
        json_pack("{s:s, s:s, s:s, s:I, s:I, s:s, s:I, s:i, s:i, s:i, s:i, s:f, s:f}", "family",
                  row->info->family, "backend", row->backend, "quantisation",
                  row->info->quantisation, "model_size", (json_int_t)row->info->file_bytes,
                  "model_n_params", (json_int_t)row->info->parameters, "plan", row->info->plan,
                  "n_threads", (json_int_t)row->threads, "n_prompt", row->bench.n_prompt, "n_gen",
                  row->bench.n_gen, "n_depth", row->bench.n_depth, "n_batch",
                  row->bench.n_sequences, "avg_ts", row->mean, "stddev_ts", row->deviation);
    json_t *samples = json_array();
    const char *bound;
    for (int64_t i = 0; samples && i < row->n; i++)
        (void)json_array_append_new(samples, json_real(row->rates[i]));
    if (o)
        (void)json_object_set_new(o, "samples_ts", samples);
    if (o && row->limits) {
        (void)json_object_set_new(o, "share_of_limit", json_real(share(row, &bound)));
        (void)json_object_set_new(o, "bound_by", json_string(bound));
        (void)json_object_set_new(o, "limits", mxc_limits_json(row->limits));
    }
    return o;
}

static int run_case(struct bench *b, struct mlxcel_model *model,
                    const struct mxc_limits_report *limits, const struct mlxcel_bench *test,
                    int64_t threads) {
    struct mlxcel_model_info info;
    mlxcel_model_info(model, &info);
    int64_t n = (int64_t)test->n_depth + test->n_prompt + test->n_gen;
    if (n > info.context)
        return mxc_term_error("%lld tokens do not fit the model's context of %lld", (long long)n,
                              (long long)info.context);
    struct row row = {
        .info = &info, .limits = limits, .bench = *test, .backend = b->backend, .threads = threads};
    int status = measure(model, b->repeats, &row);
    if (status)
        return status;
    if (b->json)
        (void)json_array_append_new(b->results, row_json(&row));
    else
        print_row(&row);
    return 0;
}

static int run_model(struct bench *b, int64_t threads, const struct values *prompts,
                     const struct values *gens, const struct values *batches,
                     const struct values *depths) {
    struct mlxcel_model_options options;
    struct mlxcel_model *model;
    struct mlxcel_limits limits;
    struct mxc_limits_report report;
    struct mlxcel_model_info info;
    struct mlxcel_error error;
    int status = mxc_options_model("bench", &b->model, &options);
    if (status)
        return status;
    options.threads = (int)threads;
    options.backend = b->backend;
    for (size_t i = 0; i < batches->n; i++)
        if (batches->items[i] > options.max_sequences)
            options.max_sequences = (int)batches->items[i];
    if (b->limits && mlxcel_limits_measure((int)threads, &limits, &error))
        return mxc_term_fail(&error);
    status = mxc_options_open(&b->model, b->name, &options, &model);
    if (status)
        return status;
    mlxcel_model_info(model, &info);
    if (b->limits)
        mxc_limits_look(&report, model, &limits, (int)threads, mxc_options_cores());
    if (b->limits && !b->json)
        mxc_limits_print(&report, info.plan, (int)threads);
    if (!b->json && (b->limits || !b->headed))
        print_head();
    b->headed = true;
    for (size_t d = 0; d < depths->n; d++)
        for (size_t i = 0; i < batches->n; i++)
            for (size_t j = 0; j < prompts->n + gens->n; j++) {
                struct mlxcel_bench test = {.n_depth = (int)depths->items[d],
                                            .n_sequences = (int)batches->items[i]};
                if (j < prompts->n)
                    test.n_prompt = (int)prompts->items[j];
                else
                    test.n_gen = (int)gens->items[j - prompts->n];
                if (!status && (test.n_prompt || test.n_gen))
                    status = run_case(b, model, b->limits ? &report : NULL, &test, threads);
            }
    mlxcel_model_close(model);
    return status;
}

/* "cpu,xla"; NULL: what the environment says. Returns their number, 0: none or too long a list. */
static size_t parse_backends(const char *text, char out[MAX_BACKENDS][16]) {
    size_t n = 0;
    const char *usual = getenv("MLXCEL_BACKEND");
    if (!text)
        text = usual && *usual ? usual : "cpu";
    for (;; text++) {
        size_t length = strcspn(text, ",");
        if (!length || length >= sizeof out[0] || n == MAX_BACKENDS)
            return 0;
        (void)snprintf(out[n++], sizeof out[0], "%.*s", (int)length, text);
        text += length;
        if (!*text)
            return n;
    }
}

static int run_all(struct bench *b) {
    struct values prompts, gens, batches, threads, depths;
    if (!parse_values(b->prompts, 0, 1 << 20, &prompts) ||
        !parse_values(b->gens, 0, 1 << 20, &gens) || !parse_values(b->batches, 1, 1024, &batches) ||
        !parse_values(b->threads, 1, 256, &threads) ||
        !parse_values(b->depths, 0, 1 << 20, &depths))
        return mxc_term_usage("bench", "-p, -n, -np, -t and -d take comma-separated numbers");
    char backends[MAX_BACKENDS][16];
    size_t n = parse_backends(b->model.backend, backends);
    if (!n)
        return mxc_term_usage("bench", "--backend takes comma-separated names");
    if (!(b->results = json_array()))
        return mxc_term_error("out of memory");
    int status = 0;
    for (size_t k = 0; !status && k < n; k++) {
        b->backend = backends[k];
        for (size_t i = 0; !status && i < threads.n; i++)
            status = run_model(b, threads.items[i], &prompts, &gens, &batches, &depths);
    }
    if (!status && b->json)
        return mxc_term_put_json(b->results);
    json_decref(b->results);
    return status;
}

static int run(int argc, char **argv) {
    char all_cores[16];
    const char *words[1], *model = NULL;
    bool exit_now;
    (void)snprintf(all_cores, sizeof all_cores, "%d", mxc_options_cores());
    struct bench b = {.prompts = "512",
                      .gens = "128",
                      .batches = "1",
                      .threads = all_cores,
                      .depths = "0",
                      .repeats = 5};
    const struct mxc_arg args[] = {
        {MXC_ARG_TEXT, "-m, --model", "MODEL", "the model, if not the first word", &model, 0, 0,
         NULL},
        {MXC_ARG_TEXT, "-p, --n-prompt", "N,...", "prompt lengths; 0: none (512)", &b.prompts, 0, 0,
         NULL},
        {MXC_ARG_TEXT, "-n, --n-gen", "N,...", "generation lengths; 0: none (128)", &b.gens, 0, 0,
         NULL},
        {MXC_ARG_TEXT, "-np, --n-parallel", "N,...", "sequences that run together (1)", &b.batches,
         0, 0, NULL},
        {MXC_ARG_TEXT, "-d, --n-depth", "N,...", "tokens in the cache before (0)", &b.depths, 0, 0,
         NULL},
        {MXC_ARG_TEXT, "-t, --threads", "N,...", "threads (one per core)", &b.threads, 0, 0, NULL},
        {MXC_ARG_INT, "-r, --repetitions", "N", "timed runs after a warm-up (5)", &b.repeats, 1,
         MAX_REPEATS, NULL},
        {MXC_ARG_FLAG, "--limits", NULL, "measure the machine and tell the share reached",
         &b.limits, 0, 0, NULL},
        {MXC_ARG_FLAG, "--json", NULL, "a JSON array", &b.json, 0, 0, NULL},
        {MXC_ARG_TEXT, "--precision", "P", "auto, exact or fast", &b.model.precision, 0, 0, NULL},
        MXC_BACKEND_ARGS(&b.model),
        MXC_SURGERY_ARG(&b.model),
        {MXC_ARG_TEXT, "--cpu", "LEVEL", "scalar, avx2, avx512, neon or i8mm at most", &b.model.cpu,
         0, 0, NULL},
        {MXC_ARG_INT, "-b, --batch-size", "N", "rows per step (512)", &b.model.max_chunk, 32, 8192,
         NULL},
        {MXC_ARG_TEXT, "--models-dir", "DIR", "model store (default MLXCEL_MODELS_DIR)",
         &b.model.models_dir, 0, 0, NULL},
    };
    int n =
        mxc_args_parse(&mxc_command_bench, args, MXC_COUNT(args), argc, argv, words, 1, &exit_now);
    if (n < 0 || exit_now)
        return n < 0 ? 2 : 0;
    if ((n == 1) == (model != NULL))
        return mxc_term_usage("bench", n ? "MODEL is given twice" : "MODEL is missing");
    b.name = n ? words[0] : model;
    mxc_term_catch_interrupt();
    return run_all(&b);
}

const struct mxc_command mxc_command_bench = {"bench", "MODEL [options]",
                                              "measure prompt and generation speed", run};
