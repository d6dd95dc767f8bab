/* Choice of forms, see choice.h. In: a plan whose weights are packed. Out: plan->form, and an entry
 * in the cache folder. Steps of zeros are measured: times do not depend on the numbers. */
#define _GNU_SOURCE
#include "backend/xla/choice.h"

struct mxc_xla_form mxc_xla_form_default(const struct mxc_xla_model *model) {
    (void)model;
    return (struct mxc_xla_form){.roll = true, .reduce = 0, .chunk = 1 << 20};
}

int mxc_xla_form_best(const struct mxc_xla_measured *m, int32_t nodes) {
    /* Unrolled programs of more nodes compile for more than about three seconds. */
    enum { FEW_NODES = 96 };
    int best = 0;
    for (int i = 1; i < m->n; i++) {
        double better = m->forms[i].roll == m->forms[best].roll ? 0.95 : 0.9;
        if (!m->forms[i].roll && m->forms[best].roll && nodes > FEW_NODES)
            better = 0.5;
        if (m->seconds[i] < better * m->seconds[best])
            best = i;
    }
    return best;
}

#ifdef MLXCEL_XLA_DEVICE_RUNTIME

#include "backend/xla/program_cache.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 8, STATE_BLOCKS = BLOCKS + 2, MIN_ROUNDS = 6, MAX_ROUNDS = 40 };

/* A program of two turns with everything that it reads. */
struct trial {
    struct mxc_plan *plan;
    struct mxc_xla_model model; /* the plan's, with one run of two turns */
    struct mxc_xla_run run;
    struct mxc_xla_buckets buckets;
    struct mxc_xla_cut cut;
};

static void trial_init(struct trial *t, struct mxc_plan *plan, const struct mxc_xla_run *run) {
    *t = (struct trial){.plan = plan, .model = *plan->model, .run = *run};
    t->run.turns = 2;
    t->model.runs = &t->run;
    t->model.n_runs = 1;
    t->buckets = (struct mxc_xla_buckets){.rows = 1, .out = 1, .seqs = 1};
    for (int k = 0; k < MXC_N_KV_KINDS; k++)
        if (plan->model->block_bytes[k]) {
            t->buckets.blocks[k] = BLOCKS;
            t->buckets.state[k] = STATE_BLOCKS;
        }
    t->cut = (struct mxc_xla_cut){run->node0, run->node0 + 2 * run->n_nodes};
}

/* The run whose turns hold most nodes. */
static const struct mxc_xla_run *longest_run(const struct mxc_xla_model *m) {
    const struct mxc_xla_run *best = NULL;
    for (int32_t i = 0; i < m->n_runs; i++)
        if (!best || m->runs[i].n_nodes * m->runs[i].turns > best->n_nodes * best->turns)
            best = &m->runs[i];
    return best;
}

/* ---- what is remembered */

static void key_of(const struct mxc_plan *plan, const struct mxc_xla_module *m,
                   uint8_t key[MXC_XLA_DIGEST_BYTES]) {
    static const char what[] = "form of a program, 1";
    const struct mxc_xla_client_info *info = mxc_xla_client_info(plan->client);
    struct mxc_blake2b state;
    mxc_blake2b_init(&state);
    mxc_blake2b_add(&state, what, sizeof what);
    mxc_blake2b_add(&state, info->digest, strlen(info->digest) + 1);
    mxc_blake2b_add(&state, info->version, strlen(info->version) + 1);
    mxc_blake2b_add(&state, info->devices[0].kind, strlen(info->devices[0].kind) + 1);
    mxc_blake2b_add(&state, &plan->backend->n_threads, sizeof plan->backend->n_threads);
    mxc_blake2b_add(&state, &plan->graph->n_nodes, sizeof plan->graph->n_nodes);
    mxc_xla_cache_add_cpu(&state);
    mxc_blake2b_add(&state, m->text, m->length);
    mxc_blake2b_end(&state, key);
}

/* "roll 1 reduce 0"; a text that says something else is measured again. */
static bool recall(struct mxc_xla_cache *cache, const uint8_t key[MXC_XLA_DIGEST_BYTES],
                   struct mxc_xla_form *form) {
    struct mxc_xla_cached entry;
    char text[64] = "";
    int roll, reduce, end = 0;
    if (!mxc_xla_cache_get(cache, key, &entry))
        return false;
    if (entry.size < sizeof text)
        memcpy(text, entry.content, entry.size);
    mxc_xla_cache_release(&entry);
    if (sscanf(text, "roll %1d reduce %4d%n", &roll, &reduce, &end) != 2 || text[end])
        return false;
    form->roll = roll != 0;
    form->reduce = reduce;
    return true;
}

/* What cannot be written is measured again next time. */
static void remember(struct mxc_xla_cache *cache, const uint8_t key[MXC_XLA_DIGEST_BYTES],
                     const struct mxc_xla_form *form) {
    char text[64];
    struct mxc_err err;
    int n = snprintf(text, sizeof text, "roll %d reduce %d", form->roll, (int)form->reduce);
    if (mxc_xla_cache_put(cache, key, text, (size_t)n, &err))
        mxc_log(MXC_LOG_DEBUG, "XLA: the form is not kept on disk: %s", err.message);
}

/* ---- measuring */

/* One form of the trial's program, ready to run. in[i]: ours unless it is a weight. */
struct candidate {
    struct mxc_xla_form form;
    struct mxc_xla_module module;
    struct mxc_xla_program *program;
    struct mxc_xla_buffer **in, **out;
    double seconds; /* of the best run so far */
};

/* A buffer of zeros. */
static enum mxc_code zeros(const struct trial *t, const struct mxc_xla_shape *shape,
                           struct mxc_xla_buffer **out, struct mxc_err *err) {
    size_t bytes = 0;
    void *data = mxc_xla_shape_bytes(shape, &bytes) ? mxc_mem_zalloc(bytes, 1) : NULL;
    if (!data)
        return mxc_err_nomem(err);
    enum mxc_code code =
        mxc_xla_buffer_new(t->plan->client, 0, shape, data, MXC_XLA_COPY, out, err);
    mxc_mem_free(data);
    return code;
}

static void candidate_fini(struct candidate *c) {
    for (int32_t i = 0; c->in && i < c->module.n_params; i++)
        if (c->module.params[i].kind != MXC_XLA_PARAM_WEIGHT)
            mxc_xla_buffer_free(c->in[i]);
    mxc_mem_free(c->in);
    mxc_mem_free(c->out);
    mxc_xla_program_free(c->program);
    mxc_xla_module_fini(&c->module);
}

static enum mxc_code candidate_init(const struct trial *t, const struct mxc_xla_form *form,
                                    struct candidate *c, struct mxc_err *err) {
    *c = (struct candidate){.form = *form, .seconds = 1e9};
    struct mxc_xla_module *m = &c->module;
    enum mxc_code code = mxc_xla_module_make(&t->model, &t->buckets, form, &t->cut, m, err);
    if (code)
        return code;
    c->in = mxc_mem_zalloc((size_t)m->n_params + 1, sizeof(struct mxc_xla_buffer *));
    c->out =
        mxc_mem_zalloc((size_t)m->n_results + (size_t)m->n_kv + 1, sizeof(struct mxc_xla_buffer *));
    code = c->in && c->out ? mxc_xla_plan_program(t->plan, "form", m, &c->program, err)
                           : mxc_err_nomem(err);
    for (int32_t i = 0; !code && i < m->n_params; i++) {
        struct mxc_xla_buffer *const *weight = NULL;
        if (m->params[i].kind != MXC_XLA_PARAM_WEIGHT)
            code = zeros(t, &m->params[i].shape, &c->in[i], err);
        else if (!(code = mxc_xla_plan_weight(t->plan, &m->params[i], &weight, err)))
            c->in[i] = *weight;
    }
    if (code)
        candidate_fini(c);
    return code;
}

/* One run; the KV arrays that come back take the places of those that were given. */
static enum mxc_code run_once(struct candidate *c, struct mxc_err *err) {
    const struct mxc_xla_module *m = &c->module;
    uint64_t start = mxc_clock_ns();
    enum mxc_code code = mxc_xla_execute(c->program, c->in, (size_t)m->n_params, c->out,
                                         (size_t)m->n_results + (size_t)m->n_kv, err);
    double spent = (double)(mxc_clock_ns() - start) * 1e-9;
    if (code)
        return code;
    c->seconds = spent < c->seconds ? spent : c->seconds;
    for (int32_t i = 0, next = m->n_results; i < m->n_params; i++)
        if (m->params[i].kind == MXC_XLA_PARAM_KV) {
            mxc_xla_buffer_free(c->in[i]);
            c->in[i] = c->out[next++];
        }
    for (int32_t i = 0; i < m->n_results; i++)
        mxc_xla_buffer_free(c->out[i]);
    return MXC_OK;
}

/* Candidates take turns, so that what else the machine does meets all of them. */
static enum mxc_code race(struct candidate *candidates, int n, struct mxc_err *err) {
    enum mxc_code code = MXC_OK;
    double spent = 0;
    for (int round = 0; !code && round < MAX_ROUNDS && (round < MIN_ROUNDS || spent < 0.3); round++)
        for (int i = 0; !code && i < n; i++) {
            code = run_once(&candidates[i], err);
            spent += candidates[i].seconds;
        }
    return code;
}

/* A form that the plugin does not take is out of the running, unless it is the default. */
static enum mxc_code measure(const struct trial *t, struct mxc_xla_measured *all,
                             struct mxc_err *err) {
    struct candidate candidates[MXC_XLA_MAX_FORMS];
    enum mxc_code code = MXC_OK;
    int n = 0;
    for (int i = 0; i < MXC_XLA_MAX_FORMS; i++) {
        struct mxc_xla_form form = t->plan->form;
        struct mxc_err why;
        form.roll = i < 2;
        form.reduce = i % 2;
        code = candidate_init(t, &form, &candidates[n], &why);
        if (code && (!i || code == MXC_E_NOMEM || mxc_xla_client_lost(t->plan->client))) {
            if (err)
                *err = why;
            goto out;
        }
        if (code)
            mxc_log(MXC_LOG_DEBUG, "XLA: a form of programs is left out: %s", why.message);
        n += !code;
    }
    if ((code = race(candidates, n, err)))
        goto out;
    for (int i = 0; i < n; i++) {
        all->forms[i] = candidates[i].form;
        all->seconds[i] = candidates[i].seconds;
        mxc_log(MXC_LOG_DEBUG, "XLA: two turns of layers, %s, %s: %.3f ms",
                all->forms[i].roll ? "a loop" : "unrolled",
                all->forms[i].reduce ? "multiply and reduce" : "dots", all->seconds[i] * 1e3);
    }
    all->n = n;
out:
    while (n)
        candidate_fini(&candidates[--n]);
    return code;
}

enum mxc_code mxc_xla_form_choose(struct mxc_plan *plan, size_t least,
                                  struct mxc_xla_measured *measured, struct mxc_err *err) {
    const struct mxc_xla_run *run = longest_run(plan->model);
    struct mxc_xla_measured own, *all = measured ? measured : &own;
    const struct mxc_backend *b = plan->backend;
    struct mxc_xla_cache *cache = NULL;
    struct mxc_xla_module m = {0};
    struct trial t;
    uint8_t key[MXC_XLA_DIGEST_BYTES];
    *all = (struct mxc_xla_measured){.n = 0};
    if (!run || !b->cache_dir || plan->model->bytes < least || plan->devices > 1)
        return MXC_OK;
    trial_init(&t, plan, run);
    enum mxc_code code = mxc_xla_module_make(&t.model, &t.buckets, &plan->form, &t.cut, &m, err);
    if (code || (code = mxc_xla_cache_open(b->cache_dir, UINT64_MAX, &cache, err)))
        goto out;
    key_of(plan, &m, key);
    if ((all->remembered = recall(cache, key, &plan->form)) || (code = measure(&t, all, err)))
        goto out;
    plan->form = all->forms[mxc_xla_form_best(all, plan->graph->n_nodes)];
    remember(cache, key, &plan->form);
    mxc_xla_plan_drop_weights(plan); /* of forms that were not taken, too */
out:
    mxc_xla_cache_close(cache);
    mxc_xla_module_fini(&m);
    return code;
}

#endif
