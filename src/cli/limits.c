/* What bounds a model on this machine: matrices with the layout and kernel chosen for each, the
 * work and bytes of a token, and what the machine or the command line leaves unused. In: an open
 * model and the measured limits. Out: text, JSON, and the time a test cannot go below. Prompts are
 * bound by arithmetic (attention is not counted), steps by what they read or, with many sequences,
 * by arithmetic; whichever takes longer. */
#define _GNU_SOURCE
#include "cli/limits.h"

#include "base/cpu.h"
#include "cli/term.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- matrices */

static bool alike(const struct mlxcel_matrix *a, const struct mlxcel_matrix *b) {
    return a->rows == b->rows && a->columns == b->columns && a->slices == b->slices &&
           a->outputs_only == b->outputs_only && !strcmp(a->storage, b->storage) &&
           !strcmp(a->layout, b->layout);
}

static void add_work(struct mxc_limits_work *w, const struct mlxcel_matrix *m) {
    double n = 2.0 * (double)m->rows * (double)m->columns * m->used;
    *(m->bits == 8 ? &w->int8 : m->bits == 16 ? &w->bf16 : &w->f32) += n;
    if (m->used < m->slices) {
        w->slice_bytes += (double)m->bytes * m->used / m->slices;
        w->all_slices += (double)m->bytes;
    } else {
        w->bytes += (double)m->bytes;
    }
}

static void look_at_matrices(struct mxc_limits_report *r, const struct mlxcel_model *model) {
    struct mlxcel_matrix m;
    for (int32_t i = 0; mlxcel_model_matrix(model, i, &m); i++) {
        int k = 0;
        add_work(m.outputs_only ? &r->output : &r->prompt, &m);
        while (k < r->n_rows && !alike(&r->rows[k].first, &m))
            k++;
        if (k == MXC_LIMITS_ROWS)
            continue; /* counted, not shown */
        if (k == r->n_rows)
            r->rows[r->n_rows++].first = m;
        r->rows[k].count++;
        r->rows[k].bytes += m.bytes;
    }
}

/* ---- what is missing */

/* Kilobytes of a field of /proc/self/smaps_rollup; -1: not there. */
static long long smaps_kilobytes(const char *field) {
    FILE *f = fopen("/proc/self/smaps_rollup", "re");
    char line[160];
    long long n = -1;
    size_t length = strlen(field);
    while (f && n < 0 && fgets(line, sizeof line, f))
        if (!strncmp(line, field, length) && line[length] == ':')
            n = strtoll(line + length + 1, NULL, 10);
    if (f)
        (void)fclose(f);
    return n;
}

static char *missing(struct mxc_limits_report *r) {
    return r->missing[r->n_missing++];
}

static void look_at_machine(struct mxc_limits_report *r, int threads, int cores) {
    enum { SIZE = sizeof r->missing[0] };
    char flags[128];
    double weights = r->prompt.bytes + r->prompt.all_slices + r->output.bytes;
    double huge = (double)smaps_kilobytes("AnonHugePages") * 1024;
    if (mxc_cpu_level() < mxc_cpu_best())
        (void)snprintf(missing(r), SIZE, "instructions: %s kernels by request, this CPU has %s",
                       mxc_cpu_level_name(mxc_cpu_level()), mxc_cpu_level_name(mxc_cpu_best()));
    else if (*mxc_cpu_missing(flags))
        (void)snprintf(missing(r), SIZE, "instructions: %s kernels, for this CPU has no %s",
                       mxc_cpu_level_name(mxc_cpu_level()), flags);
    if (threads < cores)
        (void)snprintf(missing(r), SIZE, "threads: %d of %d cores", threads, cores);
    if (huge >= 0 && huge < 0.8 * weights)
        (void)snprintf(missing(r), SIZE,
                       "huge pages: %.0f of %.0f MB of weights "
                       "(/sys/kernel/mm/transparent_hugepage/enabled)",
                       huge * 1e-6, weights * 1e-6);
}

void mxc_limits_look(struct mxc_limits_report *report, const struct mlxcel_model *model,
                     const struct mlxcel_limits *machine, int threads, int cores) {
    *report = (struct mxc_limits_report){.machine = *machine,
                                         .kv_bytes = (double)mlxcel_model_kv_bytes(model)};
    look_at_matrices(report, model);
    look_at_machine(report, threads, cores);
}

/* ---- limits */

static double seconds_of(double operations, double tera) {
    return operations > 0 && tera > 0 ? operations / (tera * 1e12) : 0;
}

/* Of one token's operations; *bound: the larger part. */
static double arithmetic(const struct mlxcel_limits *l, const struct mxc_limits_work *w,
                         const char **bound) {
    double int8 = seconds_of(w->int8, l->int8_tops);
    double bf16 = seconds_of(w->bf16, l->bf16_tflops > 0 ? l->bf16_tflops : l->f32_tflops);
    double f32 = seconds_of(w->f32, l->f32_tflops);
    *bound = int8 >= bf16 && int8 >= f32 ? "int8" : bf16 >= f32 ? "bf16" : "f32";
    return int8 + bf16 + f32;
}

double mxc_limits_seconds(const struct mxc_limits_report *r, const struct mlxcel_bench *test,
                          const char **bound) {
    const char *unused;
    double n = test->n_sequences, step = arithmetic(&r->machine, &r->prompt, bound);
    double last = arithmetic(&r->machine, &r->output, &unused);
    if (test->n_prompt)
        return n * (step * test->n_prompt + last);
    double slices = n * (r->prompt.slice_bytes + r->output.slice_bytes);
    double all = r->prompt.all_slices + r->output.all_slices;
    double bytes = r->prompt.bytes + r->output.bytes + (slices < all ? slices : all) +
                   n * r->kv_bytes * (test->n_depth + 0.5 * test->n_gen);
    double read = r->machine.read_gbs > 0 ? bytes / (r->machine.read_gbs * 1e9) : 0;
    if (read >= n * (step + last)) {
        *bound = "read";
        return read * test->n_gen;
    }
    return n * (step + last) * test->n_gen;
}

/* ---- telling */

void mxc_limits_print(const struct mxc_limits_report *r, const char *plan, int threads) {
    const struct mlxcel_limits *l = &r->machine;
    (void)printf("limits, %d threads: read %.1f GB/s, int8 %.2f TOP/s, bf16 %.2f TFLOP/s, "
                 "f32 %.2f TFLOP/s\nplan: %s\n\n",
                 threads, l->read_gbs, l->int8_tops, l->bf16_tflops, l->f32_tflops, plan);
    (void)printf("| %-38s | %10s | %-18s | %-14s | %-11s | %6s | %8s |\n"
                 "| %.38s | ---------: | %.18s | %.14s | %.11s | -----: | -------: |\n",
                 "matrices", "in file", "rows x columns", "layout", "kernel", "bits", "MB",
                 "----------------------------------------", "--------------------",
                 "--------------------", "--------------------");
    for (int i = 0; i < r->n_rows; i++) {
        const struct mlxcel_matrix *m = &r->rows[i].first;
        char name[64], shape[48];
        double numbers = (double)m->rows * (double)m->columns * m->slices;
        size_t length = strlen(m->name);
        length -= length > 7 && !strcmp(m->name + length - 7, ".weight") ? 7 : 0;
        (void)snprintf(name, sizeof name, "%d x %.*s", r->rows[i].count, (int)length, m->name);
        (void)snprintf(shape, sizeof shape, m->slices > 1 ? "%lld x %lld x %d" : "%lld x %lld",
                       (long long)m->rows, (long long)m->columns, m->slices);
        (void)printf("| %-38.38s | %10s | %-18s | %-14s | %-11s | %6.2f | %8.1f |\n", name,
                     m->storage, shape, m->layout, m->kernel, 8 * (double)m->bytes / numbers,
                     (double)r->rows[i].bytes * 1e-6);
    }
    (void)printf("\na token: %.1f MB of weights and %.1f kB of KV for each token before it; "
                 "%.2f int8, %.2f bf16, %.2f f32 GOP (outputs: %.2f more)\n",
                 (r->prompt.bytes + r->output.bytes + r->prompt.slice_bytes) * 1e-6,
                 r->kv_bytes * 1e-3, r->prompt.int8 * 1e-9, r->prompt.bf16 * 1e-9,
                 r->prompt.f32 * 1e-9, (r->output.int8 + r->output.bf16 + r->output.f32) * 1e-9);
    for (int i = 0; i < r->n_missing; i++)
        (void)printf("missing: %s\n", r->missing[i]);
    if (!r->n_missing)
        (void)printf("missing: nothing\n");
    (void)printf("\n");
}

static bool put(json_t *to, const char *key, json_t *value) {
    return value && json_object_set_new(to, key, value) == 0;
}

static json_t *row_json(const struct mxc_limits_row *row) {
    const struct mlxcel_matrix *m = &row->first;
    return json_pack("{s:s, s:i, s:s, s:I, s:I, s:i, s:s, s:s, s:I}", "first", m->name, "count",
                     (int)row->count, "storage", m->storage, "rows", (json_int_t)m->rows, "columns",
                     (json_int_t)m->columns, "slices", (int)m->slices, "layout", m->layout,
                     "kernel", m->kernel, "bytes", (json_int_t)row->bytes);
}

json_t *mxc_limits_json(const struct mxc_limits_report *r) {
    json_t *rows = json_array(), *missing_ = json_array();
    json_t *o = json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "read_gbs", r->machine.read_gbs,
                          "int8_tops", r->machine.int8_tops, "bf16_tflops", r->machine.bf16_tflops,
                          "f32_tflops", r->machine.f32_tflops, "weight_bytes_per_token",
                          r->prompt.bytes + r->output.bytes + r->prompt.slice_bytes,
                          "kv_bytes_per_token", r->kv_bytes);
    bool ok = rows && missing_ && o;
    for (int i = 0; ok && i < r->n_rows; i++)
        ok = json_array_append_new(rows, row_json(&r->rows[i])) == 0;
    for (int i = 0; ok && i < r->n_missing; i++)
        ok = json_array_append_new(missing_, json_string(r->missing[i])) == 0;
    if (ok && put(o, "matrices", json_incref(rows)) && put(o, "missing", json_incref(missing_))) {
        json_decref(rows);
        json_decref(missing_);
        return o;
    }
    json_decref(rows);
    json_decref(missing_);
    json_decref(o);
    return NULL;
}
