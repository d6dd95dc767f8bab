/* Steps of decoders on a device, against the CPU backend's exact precision: every form of program,
 * prompts in pieces, several sequences of different lengths in one step and more than the largest
 * bucket holds, contexts that outgrow their bucket, shared and copied blocks, blocks that were
 * exported and imported, narrowed dots and their stated bounds, two devices; and ops without a
 * lowering. What runs programs needs a plugin and is skipped without one. */
#define _GNU_SOURCE
#include "backend/runner.h"
#include "backend/xla/choice.h"
#include "backend/xla/module.h"
#include "backend/xla/split.h"
#include "base/mem.h"
#include "golden/checkpoint.h"
#include "xla/real_plugin.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- refused */

static mxc_xla_lower_fn *without_glu(enum mxc_op op) {
    return op == MXC_OP_GLU ? NULL : mxc_xla_lower_find(op);
}

static void test_lowerings(void **state) {
    struct checkpoint c;
    struct mxc_err err;
    (void)state;
    for (int op = 0; op < MXC_N_OPS; op++)
        assert_true(mxc_xla_lower_find((enum mxc_op)op));
    assert_false(mxc_xla_lower_find(MXC_N_OPS));
    checkpoint_open(&c, "llama");
    assert_int_equal(mxc_xla_model_check(c.graph, mxc_xla_lower_find, &err), MXC_OK);
    assert_int_equal(mxc_xla_model_check(c.graph, without_glu, &err), MXC_E_UNSUPPORTED);
    assert_string_equal(err.message, "XLA: there is no lowering of glu (layer 0)");
    checkpoint_close(&c);
}

/* ---- texts */

static enum mxc_code make(const struct checkpoint *c, const struct mxc_xla_form *form,
                          struct mxc_xla_module *module, struct mxc_err *err) {
    const struct mxc_xla_buckets buckets = {
        .rows = 4, .out = 4, .seqs = 4, .blocks = {8}, .state = {40}};
    struct mxc_xla_model *model = NULL;
    enum mxc_code code = mxc_xla_model_new(c->graph, c->weights, &model, err);
    if (!code)
        code = mxc_xla_module_make(model, &buckets, form, NULL, module, err);
    mxc_xla_model_free(model);
    return code;
}

/* How arguments lie on two devices; one device is not told. */
static void test_split_text(void **state) {
    const struct mxc_xla_form one = {.roll = true}, two = {.roll = true, .devices = 2};
    struct mxc_xla_module module;
    struct checkpoint c;
    struct mxc_err err;
    (void)state;
    checkpoint_open(&c, "llama");
    assert_int_equal(make(&c, &one, &module, &err), MXC_OK);
    assert_null(strstr(module.text, "sharding"));
    mxc_xla_module_fini(&module);
    assert_int_equal(make(&c, &two, &module, &err), MXC_OK);
    assert_int_equal(module.devices, 2);
    assert_non_null(strstr(module.text, "mhlo.sharding = \"{devices=[1,1,1,2,1]<=[2]}\", "
                                        "tf.aliasing_output = 1 : i32}")); /* heads */
    assert_non_null(strstr(module.text, "\"{devices=[1,2,1]<=[2]}\""));    /* rows */
    assert_non_null(strstr(module.text, "\"{devices=[1,1,2]<=[2]}\""));    /* columns */
    assert_non_null(strstr(module.text, "\"{replicated}\""));
    mxc_xla_module_fini(&module);
    checkpoint_close(&c);
}

/* Every n-th allocation fails: an error, and nothing is left. */
static void test_no_memory(void **state) {
    const struct mxc_xla_form form = {.roll = true, .devices = 2};
    struct mxc_xla_module module;
    struct checkpoint c;
    enum mxc_code code = MXC_E_NOMEM;
    int failures = 0;
    (void)state;
    checkpoint_open(&c, "llama_gguf_q4_1");
    for (uint64_t n = 1; code; n++, failures++) {
        struct mxc_err err;
        mxc_mem_fail_at(n);
        code = make(&c, &form, &module, &err);
        mxc_mem_fail_at(0);
        assert_true(!code || code == MXC_E_NOMEM);
        assert_true(n < 100000);
    }
    assert_true(failures > 20);
    mxc_xla_module_fini(&module);
    checkpoint_close(&c);
}

/* ---- the choice */

static void test_best_form(void **state) {
    (void)state;
    struct mxc_xla_measured m = {.n = 4,
                                 .forms = {{.roll = true},
                                           {.roll = true, .reduce = 1},
                                           {.roll = false},
                                           {.roll = false, .reduce = 1}},
                                 .seconds = {1.0, 2.0, 1.5, 1.2}};
    assert_int_equal(mxc_xla_form_best(&m, 50), 0);
    m.seconds[1] = 0.99; /* noise */
    assert_int_equal(mxc_xla_form_best(&m, 50), 0);
    m.seconds[1] = 0.7;
    assert_int_equal(mxc_xla_form_best(&m, 50), 1);
    m.seconds[3] = 0.5; /* few nodes: compiled soon enough */
    assert_int_equal(mxc_xla_form_best(&m, 50), 3);
    assert_int_equal(mxc_xla_form_best(&m, 500), 1);
    m.seconds[3] = 0.3; /* worth waiting for */
    assert_int_equal(mxc_xla_form_best(&m, 500), 3);
    m.n = 1;
    assert_int_equal(mxc_xla_form_best(&m, 500), 0);
}

#ifdef MLXCEL_XLA_DEVICE_RUNTIME

enum { MAX_TOKENS = 640, N_BLOCKS = 96, BLOCK = MXC_KV_BLOCK };

static const double tolerance = 1e-4;

static void need(enum mxc_code code, const struct mxc_err *err) {
    if (code)
        print_message("%s\n", err->message);
    assert_int_equal(code, MXC_OK);
}

/* A checkpoint on both backends. */
struct pair {
    struct checkpoint c;
    struct runner cpu, xla;
    size_t vocab;
};

static void pair_open_on(struct pair *p, const char *name, enum mxc_xla_precision precision,
                         int n_devices) {
    struct mxc_err err;
    const struct mxc_backend_options options = {.xla = {.plugin = mxc_real_plugin(),
                                                        .cache_dir = mxc_real_cache(),
                                                        .precision = precision,
                                                        .n_devices = n_devices}};
    const struct mxc_plan_options plan = {
        .max_rows = MAX_TOKENS, .max_out = MAX_TOKENS, .max_spans = RUNNER_MAX_SEQS};
    int32_t n_blocks[MXC_N_KV_KINDS];
    checkpoint_open(&p->c, name);
    p->vocab = (size_t)p->c.graph->vocab;
    runner_open(&p->cpu, p->c.graph, p->c.weights,
                &(struct runner_options){.threads = 2,
                                         .precision = MXC_PRECISION_EXACT,
                                         .max_rows = MAX_TOKENS,
                                         .n_blocks = N_BLOCKS});
    p->xla = (struct runner){.graph = p->c.graph, .n_blocks = N_BLOCKS, .stride = 5};
    need(mxc_backend_find("xla", &p->xla.ops, &err), &err);
    need(p->xla.ops->open(&options, &p->xla.backend, &err), &err);
    need(p->xla.ops->compile(p->xla.backend, p->c.graph, p->c.weights, &plan, &p->xla.plan, &err),
         &err);
    for (int k = 0; k < MXC_N_KV_KINDS; k++)
        n_blocks[k] = N_BLOCKS;
    need(p->xla.ops->state_new(p->xla.plan, n_blocks, &p->xla.state, &err), &err);
}

static void pair_open(struct pair *p, const char *name, enum mxc_xla_precision precision) {
    pair_open_on(p, name, precision, 1);
}

static void pair_close(struct pair *p) {
    runner_close(&p->xla);
    runner_close(&p->cpu);
    checkpoint_close(&p->c);
}

static float *floats(size_t n) {
    float *x = calloc(n, sizeof *x);
    assert_non_null(x);
    return x;
}

static void tokens_of(const struct pair *p, uint32_t seed, int32_t *to, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        to[i] = (int32_t)(seed >> 8) % p->c.graph->vocab;
    }
}

/* Logits of a text, by the CPU. */
static float *reference(struct pair *p, const int32_t *tokens, int32_t n) {
    float *logits = floats((size_t)n * p->vocab);
    runner_chunks(&p->cpu, tokens, n, 0, logits);
    return logits;
}

static void step(struct pair *p, struct sequence *s, const int32_t *tokens, int32_t n,
                 float *logits) {
    struct feed feed = {s, tokens, n, logits};
    runner_step(&p->xla, &feed, 1, NULL, NULL);
}

/* A prompt and a few tokens; largest difference. */
static double run_plain(struct pair *p, int32_t n, int32_t more, uint32_t seed) {
    int32_t tokens[MAX_TOKENS];
    struct sequence s;
    tokens_of(p, seed, tokens, n + more);
    float *want = reference(p, tokens, n + more);
    float *have = floats((size_t)(n + more) * p->vocab);
    sequence_open(&p->xla, &s, n + more);
    step(p, &s, tokens, n, have);
    for (int32_t i = n; i < n + more; i++)
        step(p, &s, tokens + i, 1, have + (size_t)i * p->vocab);
    double worst = relative_difference(have, want, (size_t)(n + more) * p->vocab);
    sequence_close(&s);
    free(have);
    free(want);
    return worst;
}

/* ---- forms */

static void test_forms(void **state) {
    static const char *const names[] = {"llama_gguf_q4_1", "qwen3_moe", "llama_bf16", "gemma2"};
    (void)state;
    if (!mxc_real_plugin())
        skip();
    for (size_t i = 0; i < (mxc_real_all() ? sizeof names / sizeof *names : 2); i++)
        for (int f = 0; f < (mxc_real_all() ? 5 : 2); f++) {
            static const struct mxc_xla_form forms[] = {{.roll = true, .chunk = 512},
                                                        {.roll = false, .reduce = 16},
                                                        {.roll = false},
                                                        {.roll = true, .reduce = 16},
                                                        {.roll = true, .chunk = 1 << 20}};
            struct pair p;
            pair_open(&p, names[i], MXC_XLA_PRECISION_F32);
            p.xla.plan->form = forms[f];
            double worst = run_plain(&p, 20, 2, 7);
            print_message("%-20s roll %d reduce %2d chunk %7d: %.1e\n", names[i], forms[f].roll,
                          (int)forms[f].reduce, (int)forms[f].chunk, worst);
            assert_true(worst <= tolerance);
            pair_close(&p);
        }
}

/* The bounds that docs/xla.md states for MLXCEL_XLA_PRECISION, of the largest logit. */
static void test_narrow(void **state) {
    static const struct {
        enum mxc_xla_precision precision;
        const char *name;
        double bound;
    } rows[] = {{MXC_XLA_PRECISION_F16, "f16", 5e-3}, {MXC_XLA_PRECISION_BF16, "bf16", 3e-2}};
    (void)state;
    if (!mxc_real_plugin())
        skip();
    for (size_t i = 0; i < 2; i++) {
        struct pair p;
        pair_open(&p, "llama", rows[i].precision);
        double worst = run_plain(&p, 40, 3, 3);
        print_message("%s: %.1e\n", rows[i].name, worst);
        assert_non_null(strstr(p.xla.ops->plan_describe(p.xla.plan), rows[i].name));
        assert_true(worst <= rows[i].bound);
        assert_true(worst > tolerance); /* it does narrow */
        pair_close(&p);
    }
}

/* ---- choosing */

static void test_choice(void **state) {
    char folder[] = "/tmp/mlxcel-test-XXXXXX", command[128];
    struct mxc_xla_measured m;
    struct mxc_err err;
    struct pair p;
    (void)state;
    if (!mxc_real_plugin())
        skip();
    pair_open(&p, "llama", MXC_XLA_PRECISION_F32);
    assert_non_null(mkdtemp(folder));
    char *before = p.xla.backend->cache_dir;
    p.xla.backend->cache_dir = NULL;
    need(mxc_xla_form_choose(p.xla.plan, 0, &m, &err), &err);
    assert_true(!m.n && !m.remembered); /* nowhere to keep it */
    p.xla.backend->cache_dir = folder;
    need(mxc_xla_form_choose(p.xla.plan, SIZE_MAX, &m, &err), &err);
    assert_true(!m.n && !m.remembered); /* too small */
    need(mxc_xla_form_choose(p.xla.plan, 0, &m, &err), &err);
    assert_true(m.n == MXC_XLA_MAX_FORMS && !m.remembered);
    for (int i = 0; i < m.n; i++)
        assert_true(m.seconds[i] > 0 && m.seconds[i] < 10);
    struct mxc_xla_form chosen = p.xla.plan->form;
    const struct mxc_xla_form *best = &m.forms[mxc_xla_form_best(&m, p.c.graph->n_nodes)];
    assert_true(chosen.roll == best->roll && chosen.reduce == best->reduce);
    p.xla.plan->form = mxc_xla_form_default(p.xla.plan->model);
    need(mxc_xla_form_choose(p.xla.plan, 0, &m, &err), &err);
    assert_true(!m.n && m.remembered);
    assert_true(p.xla.plan->form.roll == chosen.roll && p.xla.plan->form.reduce == chosen.reduce);
    assert_true(run_plain(&p, 20, 2, 5) <= tolerance);
    p.xla.backend->cache_dir = before;
    pair_close(&p);
    (void)snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0); /* NOLINT(cert-env33-c) */
}

/* ---- steps of many sequences */

/* n sequences of different lengths: prompts in pieces of rows, then single rows of all in one step,
 * some of them with a piece of a prompt besides. */
static void check_ragged(struct pair *p, int32_t n, int32_t more) {
    int32_t tokens[RUNNER_MAX_SEQS][80];
    struct sequence s[RUNNER_MAX_SEQS];
    struct feed feeds[RUNNER_MAX_SEQS];
    float *want[RUNNER_MAX_SEQS], *have[RUNNER_MAX_SEQS];
    for (int32_t i = 0; i < n; i++) {
        int32_t length = 3 + 5 * i % 41, all = length + more;
        tokens_of(p, 100 + (uint32_t)i, tokens[i], all);
        want[i] = reference(p, tokens[i], all);
        have[i] = floats((size_t)all * p->vocab);
        sequence_open(&p->xla, &s[i], all);
        step(p, &s[i], tokens[i], length / 2, have[i]);
        step(p, &s[i], tokens[i] + length / 2, length - length / 2,
             have[i] + (size_t)(length / 2) * p->vocab);
    }
    for (int32_t k = 0; k < more; k++) {
        for (int32_t i = 0; i < n; i++) {
            int32_t at = s[i].context;
            feeds[i] = (struct feed){&s[i], tokens[i] + at, 1, have[i] + (size_t)at * p->vocab};
        }
        runner_step(&p->xla, feeds, n, NULL, NULL);
    }
    for (int32_t i = 0; i < n; i++) {
        assert_true(relative_difference(have[i], want[i], (size_t)s[i].context * p->vocab) <=
                    tolerance);
        sequence_close(&s[i]);
        free(want[i]);
        free(have[i]);
    }
}

static void test_ragged(void **state) {
    struct pair p;
    (void)state;
    if (!mxc_real_plugin())
        skip();
    pair_open(&p, "gemma2", MXC_XLA_PRECISION_F32);
    check_ragged(&p, 3, 4);
    check_ragged(&p, 7, 3);
    check_ragged(&p, 18, 2); /* 16 and 2 */
    pair_close(&p);
}

/* 250 tokens and 12 more: tables of 8 blocks, then of 32; and a prompt of more than one piece. */
static void test_growth(void **state) {
    struct pair p;
    (void)state;
    if (!mxc_real_plugin())
        skip();
    pair_open(&p, "llama", MXC_XLA_PRECISION_F32);
    assert_true(run_plain(&p, 250, 12, 1) <= tolerance);
    assert_true(run_plain(&p, 600, 2, 2) <= tolerance);
    pair_close(&p);
}

/* ---- blocks */

/* A second text that begins like the first: shares its first block, has a copy of the second one,
 * and goes on; a third has what was exported of the first. Freed blocks hold numbers of others. */
static void check_blocks(struct pair *p) {
    enum { COMMON = BLOCK + 9, ALL = COMMON + 20 };
    int32_t tokens[3][ALL];
    struct sequence s[3];
    struct mxc_plan_memory memory;
    struct mxc_err err;
    float *have = floats((size_t)ALL * p->vocab);
    p->xla.ops->plan_memory(p->xla.plan, &memory);
    tokens_of(p, 1, tokens[0], ALL);
    for (int i = 1; i < 3; i++) {
        tokens_of(p, 1, tokens[i], COMMON);
        tokens_of(p, 1 + (uint32_t)i, tokens[i] + COMMON, ALL - COMMON);
    }
    for (int i = 0; i < 3; i++)
        sequence_open(&p->xla, &s[i], ALL);
    step(p, &s[0], tokens[0], COMMON, NULL);
    for (int k = 0; k < MXC_N_KV_KINDS; k++) {
        enum mxc_kv_kind kind = (enum mxc_kv_kind)k;
        if (!memory.kv_block_bytes[k])
            continue;
        char *bytes = malloc(memory.kv_block_bytes[k]);
        assert_non_null(bytes);
        p->xla.ops->state_copy(p->xla.state, kind, s[0].blocks[1], s[1].blocks[1]);
        for (int32_t b = 0; b < 2; b++) {
            need(p->xla.ops->state_export(p->xla.state, kind, s[0].blocks[b], bytes, &err), &err);
            need(p->xla.ops->state_import(p->xla.state, kind, s[2].blocks[b], bytes, &err), &err);
        }
        free(bytes);
    }
    s[1].blocks[0] = s[0].blocks[0];
    for (int i = 0; i < 3; i++) {
        float *want = reference(p, tokens[i], ALL);
        s[i].context = COMMON;
        step(p, &s[i], tokens[i] + COMMON, ALL - COMMON, have);
        assert_true(relative_difference(have, want + (size_t)COMMON * p->vocab,
                                        (size_t)(ALL - COMMON) * p->vocab) <= tolerance);
        free(want);
    }
    for (int i = 0; i < 3; i++)
        sequence_close(&s[i]);
    free(have);
}

static void test_blocks(void **state) {
    static const char *const names[] = {"llama", "gemma2", "deepseek_v3"};
    (void)state;
    if (!mxc_real_plugin())
        skip();
    for (size_t i = 0; i < (mxc_real_all() ? sizeof names / sizeof *names : 2); i++) {
        struct pair p;
        pair_open(&p, names[i], MXC_XLA_PRECISION_F32);
        check_blocks(&p);
        pair_close(&p);
    }
}

/* ---- several devices */

/* Buffers of one array, one of each device: its share of the axis and no more. */
static int count_shares(struct mxc_xla_buffer *const *buffers, const struct mxc_xla_stack *s,
                        int devices) {
    const struct mxc_xla_shape *all = &s->arrays[MXC_XLA_NUMBERS].shape;
    int axis = mxc_xla_split_weight(s, MXC_XLA_NUMBERS, devices), n = 0;
    for (int d = 0; axis != MXC_NONE && *buffers && d < devices; d++, n++) {
        const struct mxc_xla_shape *shape = mxc_xla_buffer_shape(buffers[d]);
        assert_int_equal(shape->dims[shape->n_dims - all->n_dims + axis] * devices,
                         all->dims[axis]);
    }
    return n;
}

/* Parts of matrices that lie on devices. */
static int count_parts(const struct mxc_plan *plan, int devices) {
    const size_t step = (size_t)MXC_XLA_N_PARTS * (size_t)devices;
    int n = 0;
    for (int32_t i = 0; i < plan->model->n_stacks; i++) {
        const struct mxc_xla_stack *s = &plan->model->stacks[i];
        n += count_shares(plan->whole + (size_t)i * step, s, devices);
        for (int32_t k = s->first; k < s->first + s->n; k++)
            n += count_shares(plan->single + (size_t)k * step, s, devices);
    }
    return n;
}

static void test_devices(void **state) {
    static const char *const names[] = {"llama", "llama_gguf_q4_1", "qwen3_moe", "deepseek_v3",
                                        "gemma2"};
    size_t n = mxc_real_all() ? sizeof names / sizeof *names : 2;
    (void)state;
    if (!mxc_real_plugin())
        skip();
    for (size_t i = 0; i < n; i++) {
        struct pair p;
        pair_open_on(&p, names[i], MXC_XLA_PRECISION_F32, 2);
        assert_non_null(strstr(p.xla.ops->plan_describe(p.xla.plan), "2 devices"));
        double worst = run_plain(&p, 20, 3, 9);
        print_message("%-20s on 2 devices: %.1e, %d parts of matrices\n", names[i], worst,
                      count_parts(p.xla.plan, 2));
        assert_true(worst <= tolerance);
        assert_true(count_parts(p.xla.plan, 2) >= 2);
        if (!i)
            check_blocks(&p);
        pair_close(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lowerings),  cmocka_unit_test(test_best_form),
        cmocka_unit_test(test_split_text), cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_forms),      cmocka_unit_test(test_narrow),
        cmocka_unit_test(test_choice),     cmocka_unit_test(test_ragged),
        cmocka_unit_test(test_growth),     cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_devices)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lowerings), cmocka_unit_test(test_best_form),
        cmocka_unit_test(test_split_text), cmocka_unit_test(test_no_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
