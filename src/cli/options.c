/* Shared options: from the command line to the library's structs.
 * In: what args.c stored, MLXCEL_CPU. Out: model options, a resolved path, an open model, sampling
 * parameters; on failure a message was printed and the exit status is returned.
 * Only options that were given overwrite the request, so the checkpoint's own defaults hold for the
 * others: `set` has one flag per option, and its indexes are those of MXC_SAMPLING_ARGS.
 * The log's sink and the CPU mask are set here, before a model is opened. */
#define _GNU_SOURCE
#include "cli/options.h"

#include "base/cpu.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/term.h"
#include "store/store.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void log_line(mlxcel_log_level level, const char *line, void *user) {
    static const char *const names[] = {"error", "warning", "info", "debug"};
    (void)user;
    (void)fprintf(stderr, "mlxcel: %s: %s\n", names[level], line);
}

static int parse_precision(const char *command, const char *text, mlxcel_precision *out) {
    static const char *const names[] = {"auto", "exact", "fast"};
    for (int i = 0; i < 3; i++)
        if (!strcmp(text, names[i])) {
            *out = (mlxcel_precision)i;
            return 0;
        }
    return mxc_term_usage(command, "--precision: \"%s\" is not auto, exact or fast", text);
}

int mxc_options_model(const char *command, const struct mxc_model_args *m,
                      struct mlxcel_model_options *options) {
    mlxcel_model_options_init(options);
    options->backend = m->backend;
    options->xla_plugin = m->xla_plugin;
    options->xla_precision = m->xla_precision;
    options->xla_context_capacity = m->xla_capacity;
    options->xla_vision_backend = m->xla_vision;
    options->tp_size = m->tp_size;
    options->surgery = m->surgery;
    options->threads = (int)m->threads;
    options->context = m->context;
    options->force = m->force;
    if (m->max_sequences)
        options->max_sequences = (int)m->max_sequences;
    if (m->max_chunk)
        options->max_chunk = (int)m->max_chunk;
    mlxcel_log_set(log_line, m->verbose ? MLXCEL_LOG_INFO : MLXCEL_LOG_WARN, NULL);
    if (m->precision) {
        int status = parse_precision(command, m->precision, &options->precision);
        if (status)
            return status;
    }
    const char *cpu = m->cpu ? m->cpu : getenv("MLXCEL_CPU");
    if (cpu && (m->cpu || *cpu)) { /* a variable without a value is none */
        enum mxc_cpu_level level;
        struct mxc_err err;
        if (!mxc_cpu_level_parse(cpu, &level))
            return mxc_term_usage(command, "%s: \"%s\" is not scalar, avx2, avx512, neon or i8mm",
                                  m->cpu ? "--cpu" : "MLXCEL_CPU", cpu);
        if (mxc_cpu_mask(level, &err))
            return mxc_term_err(&err);
    }
    return 0;
}

int mxc_options_cores(void) {
    return mxc_cpu_count();
}

int mxc_options_resolve(const struct mxc_model_args *m, const char *name, char **path) {
    struct mxc_store *store = NULL;
    struct mxc_model_place place;
    struct mxc_err err;
    if (mxc_store_open(m->models_dir, &store, &err) ||
        mxc_store_resolve(store, name, &place, &err)) {
        mxc_store_close(store);
        int status = mxc_term_err(&err);
        if (err.code == MXC_E_NOT_FOUND && *name != '.' && *name != '/')
            mxc_term_note("mlxcel download %s fetches a model of that name", name);
        return status;
    }
    mxc_store_close(store);
    *path = place.path;
    place.path = NULL;
    mxc_model_place_fini(&place);
    return 0;
}

static bool show_packing(void *user, double fraction) {
    mxc_progress_fraction(user, fraction);
    return !mxc_term_interrupted();
}

int mxc_options_open(const struct mxc_model_args *m, const char *name,
                     const struct mlxcel_model_options *options, struct mlxcel_model **model) {
    struct mlxcel_model_options o = *options;
    struct mxc_progress progress;
    struct mlxcel_error error;
    char *path = NULL;
    int status = mxc_options_resolve(m, name, &path);
    if (status)
        return status;
    mxc_progress_start(&progress, "loading");
    o.progress = show_packing;
    o.progress_user = &progress;
    mlxcel_status code = mlxcel_model_open(path, &o, model, &error);
    mxc_progress_done(&progress);
    mxc_mem_free(path);
    if (code == MLXCEL_CANCELLED)
        return 130; /* only Ctrl-C cancels */
    return code ? mxc_term_fail(&error) : 0;
}

/* "ID+X", "ID-X", "ID-inf". */
static bool parse_bias(const char *text, struct mlxcel_logit_bias *out) {
    char *end;
    long id = strtol(text, &end, 10);
    if (end == text || id < 0 || id > INT32_MAX || (*end != '+' && *end != '-'))
        return false;
    const char *value = *end == '+' ? end + 1 : end;
    double bias = strtod(value, &end);
    if (end == value || *end || isnan(bias))
        return false;
    *out = (struct mlxcel_logit_bias){.id = (int32_t)id, .bias = (float)bias};
    return true;
}

int mxc_options_sampling(const char *command, const struct mxc_sampling_args *s,
                         struct mlxcel_logit_bias *biases, struct mlxcel_request *request) {
    struct mlxcel_sampling *p = &request->sampling;
    const struct {
        float *to;
        double from;
        int index;
    } reals[] = {
        {&p->temperature, s->temperature, 0},
        {&p->top_p, s->top_p, 2},
        {&p->min_p, s->min_p, 3},
        {&p->typical_p, s->typical_p, 4},
        {&p->xtc_probability, s->xtc_probability, 5},
        {&p->xtc_threshold, s->xtc_threshold, 6},
        {&p->repetition_penalty, s->repetition_penalty, 7},
        {&p->frequency_penalty, s->frequency_penalty, 8},
        {&p->presence_penalty, s->presence_penalty, 9},
        {&p->dry_multiplier, s->dry_multiplier, 11},
        {&p->dry_base, s->dry_base, 12},
        {&p->mirostat_tau, s->mirostat_tau, 16},
        {&p->mirostat_eta, s->mirostat_eta, 17},
    };
    const struct {
        int32_t *to;
        int64_t from;
        int index;
    } ints[] = {
        {&p->top_k, s->top_k, 1},
        {&p->penalty_last_n, s->penalty_last_n, 10},
        {&p->dry_allowed_length, s->dry_allowed_length, 13},
        {&p->dry_last_n, s->dry_last_n, 14},
        {&p->mirostat, s->mirostat, 15},
    };
    for (size_t i = 0; i < MXC_COUNT(reals); i++)
        if (s->set[reals[i].index])
            *reals[i].to = (float)reals[i].from;
    for (size_t i = 0; i < MXC_COUNT(ints); i++)
        if (s->set[ints[i].index])
            *ints[i].to = (int32_t)ints[i].from;
    if (s->set[18])
        p->seed = (uint64_t)s->seed;
    for (size_t i = 0; i < s->logit_bias.n; i++)
        if (!parse_bias(s->logit_bias.items[i], &biases[i]))
            return mxc_term_usage(command, "--logit-bias: \"%s\" is not ID+X or ID-X",
                                  s->logit_bias.items[i]);
    request->logit_bias = biases;
    request->n_logit_bias = s->logit_bias.n;
    return 0;
}
