/* What a run of a tower is fed with: every array broken once, with an error that names it; memory
 * as announced and bounded for large pictures; allocations that fail; runs given up halfway; graphs
 * that the backend refuses. */
#include "backend/towers.h"

#include "backend/cpu/cpu.h"
#include "base/cpu.h"
#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct mxc_backend_ops *const ops = &mxc_backend_cpu;

struct stage {
    struct mini m;
    struct mxc_backend *backend;
    struct mxc_plan *plan;
    struct tower_feed feed;
};

static const int32_t sizes[2] = {40, 60};
static const uint32_t seeds[2] = {1, 2};

static void stage_open(struct stage *s, enum tower_model model) {
    struct mxc_err err;
    assert_int_equal(mxc_cpu_mask(mxc_cpu_best(), &err), MXC_OK);
    tower_model(&s->m, model, MXC_ST_F32);
    assert_int_equal(ops->open(&(struct mxc_backend_options){.n_threads = 2}, &s->backend, &err),
                     MXC_OK);
    struct mxc_plan_options options = {.precision = MXC_PRECISION_EXACT};
    assert_int_equal(ops->compile(s->backend, s->m.graph, s->m.weights, &options, &s->plan, &err),
                     MXC_OK);
    tower_feed(&s->feed, &s->m, 2, sizes, seeds);
}

static void stage_close(struct stage *s) {
    tower_feed_fini(&s->feed);
    ops->plan_free(s->plan);
    ops->close(s->backend);
    mini_close(&s->m);
}

static void refused(const struct stage *s, const struct mxc_tower_input *input,
                    const char *message) {
    struct mxc_tower *tower = NULL;
    struct mxc_err err = {0};
    assert_int_equal(ops->tower_new(s->plan, input, &tower, &err), MXC_E_ARG);
    assert_null(tower);
    if (!strstr(err.message, message))
        fail_msg("\"%s\" does not say \"%s\"", err.message, message);
}

#define REFUSED(change, back, message)                                                             \
    do {                                                                                           \
        struct mxc_tower_input input = s.feed.input;                                               \
        change;                                                                                    \
        refused(&s, &input, message);                                                              \
        back;                                                                                      \
    } while (0)

static void test_wrong(void **state) {
    (void)state;
    struct stage s;
    stage_open(&s, TOWER_MIXED); /* 100 patches, 125 rows with classes */
    int32_t **index = s.feed.index, **range = s.feed.range, keep;
    REFUSED(input.n_rows[0] = 0, , "slot 0: 0 rows");
    REFUSED(input.n_rows[1] = -5, , "slot 1: -5 rows");
    REFUSED(input.n_rows[2] = 1 << 30, , "slot 2: 1073741824 rows");
    REFUSED(input.n_rows[2] = 98, , "slot 2: 98 rows are no multiple of 4");
    REFUSED(input.rows = NULL, , "rows are missing");
    REFUSED(input.index[2] = NULL, , "index 2 is missing");
    REFUSED(input.factor[0] = NULL, , "factors of index 0");
    REFUSED(input.range[0] = NULL, , "range 0 is missing");
    float factor = s.feed.factor[0][7];
    REFUSED(s.feed.factor[0][7] = NAN, s.feed.factor[0][7] = factor, "factor 7 is not finite");
    keep = index[0][203];
    REFUSED(index[0][203] = 20, index[0][203] = keep,
            "index 0, term 2, row 3: 20 is not in [-1, 20)");
    REFUSED(index[0][203] = -2, index[0][203] = keep, "term 2, row 3: -2");
    keep = index[1][4];
    REFUSED(index[1][4] = 100, index[1][4] = keep,
            "index 1, term 0, row 4: 100 is not in [-1, 100)");
    keep = index[4][99];
    REFUSED(index[4][99] = 125, index[4][99] = keep, "index 4, term 0, row 99: 125");
    keep = range[0][3];
    REFUSED(range[0][3] = -1, range[0][3] = keep, "range 0, row 3: [-1, 50)");
    REFUSED(range[0][3] = 50, range[0][3] = keep, "range 0, row 3: [50, 50)");
    keep = range[0][125 + 124];
    REFUSED(range[0][125 + 124] = 126, range[0][125 + 124] = keep, "row 124: [50, 126)");
    struct mxc_tower *tower = NULL; /* and it is as good as before */
    struct mxc_err err;
    assert_int_equal(ops->tower_new(s.plan, &s.feed.input, &tower, &err), MXC_OK);
    ops->tower_free(tower);
    stage_close(&s);
}

/* Positions may be anything. */
static void test_positions(void **state) {
    (void)state;
    struct stage s;
    struct mxc_tower *tower = NULL;
    struct mxc_err err;
    stage_open(&s, TOWER_QWEN);
    s.feed.index[0][5] = -1000000;
    s.feed.index[0][6] = INT32_MAX;
    assert_int_equal(ops->tower_new(s.plan, &s.feed.input, &tower, &err), MXC_OK);
    ops->tower_free(tower);
    stage_close(&s);
}

static void test_memory(void **state) {
    (void)state;
    struct stage s;
    struct mxc_tower *tower = NULL;
    struct mxc_err err;
    for (enum tower_model model = 0; model < TOWER_N_MODELS; model++) {
        stage_open(&s, model);
        assert_int_equal(ops->tower_new(s.plan, &s.feed.input, &tower, &err), MXC_OK);
        assert_int_equal(tower->bytes, ops->tower_bytes(s.plan, &s.feed.input));
        /* sizes are enough */
        struct mxc_tower_input input = {0};
        memcpy(input.n_rows, s.feed.input.n_rows, sizeof input.n_rows);
        assert_int_equal(tower->bytes, ops->tower_bytes(s.plan, &input));
        input.n_rows[0] = 0;
        assert_int_equal(ops->tower_bytes(s.plan, &input), 0);
        ops->tower_free(tower);
        struct mxc_plan_memory made, guessed;
        struct mxc_plan_options options = {.precision = MXC_PRECISION_EXACT};
        ops->plan_memory(s.plan, &made);
        assert_int_equal(ops->estimate(s.backend, s.m.graph, s.m.weights, &options, &guessed, &err),
                         MXC_OK);
        assert_memory_equal(&made, &guessed, sizeof made);
        assert_true(made.weights_bytes > 0 && made.activation_bytes > 0);
        stage_close(&s);
    }
    /* rows that cross segments: x [32] and qkv [96], whose place the next qkv takes, with their
     * gaps; angles of 8, ranges; not one MLP for all rows */
    enum { ROWS = 16384 };
    stage_open(&s, TOWER_QWEN);
    struct mxc_tower_input large = {.n_rows = {ROWS}};
    uint64_t values = (48 + 112 + 36 / 4 + 2 * 8) * sizeof(float) * (uint64_t)ROWS;
    uint64_t ranges = 36 * (uint64_t)ROWS, rest = (17 << 20) + MXC_CPU_TOWER_ROWS * 2048;
    assert_true(ops->tower_bytes(s.plan, &large) < values + ranges + rest);
    stage_close(&s);
}

static void no_tap(void *user, const struct mxc_graph *graph, int32_t value, const float *data,
                   int32_t rows, int32_t width) {
    (void)user, (void)graph, (void)value, (void)data, (void)rows, (void)width;
}

static void test_allocations(void **state) {
    (void)state;
    struct stage s;
    struct mxc_tower *tower = NULL;
    struct mxc_err err;
    stage_open(&s, TOWER_MIXED);
    enum mxc_code code = MXC_E_NOMEM;
    uint64_t n = 1;
    for (; code; n++) {
        mxc_mem_fail_at(n);
        code = ops->tower_new(s.plan, &s.feed.input, &tower, &err);
        mxc_mem_fail_at(0);
        assert_true(code == MXC_OK || (code == MXC_E_NOMEM && !tower));
    }
    assert_true(n > 5);
    code = MXC_E_NOMEM;
    for (n = 1; code; n++) {
        mxc_mem_fail_at(n);
        code = ops->tower_tap(tower, no_tap, NULL, &err);
        mxc_mem_fail_at(0);
        assert_true(code == MXC_OK || code == MXC_E_NOMEM);
    }
    assert_true(n > 10);
    ops->tower_free(tower);
    struct mxc_plan_options options = {.precision = MXC_PRECISION_EXACT};
    struct mxc_plan *plan = NULL;
    code = MXC_E_NOMEM;
    for (n = 1; code; n++) {
        mxc_mem_fail_at(n);
        code = ops->compile(s.backend, s.m.graph, s.m.weights, &options, &plan, &err);
        mxc_mem_fail_at(0);
        assert_true(code == MXC_OK || (code == MXC_E_NOMEM && !plan));
    }
    assert_true(n > 20);
    ops->plan_free(plan);
    stage_close(&s);
}

/* Freed after any number of steps. */
static void test_given_up(void **state) {
    (void)state;
    struct stage s;
    struct mxc_err err;
    stage_open(&s, TOWER_MIXED);
    bool done = false;
    for (int steps = 0; !done; steps++) {
        struct mxc_tower *tower = NULL;
        assert_int_equal(ops->tower_new(s.plan, &s.feed.input, &tower, &err), MXC_OK);
        for (int i = 0; i < steps; i++)
            assert_int_equal(ops->tower_step(tower, 1, &done, &err), MXC_OK);
        if (done) { /* done stays done */
            assert_true(steps > 20);
            assert_int_equal(ops->tower_step(tower, 1, &done, &err), MXC_OK);
            assert_true(done);
        }
        ops->tower_free(tower);
    }
    ops->tower_free(NULL);
    stage_close(&s);
}

static void not_compiled(int32_t (*build)(struct mxc_graph *g), const char *message) {
    struct mini m;
    struct mxc_graph *g = NULL;
    struct mxc_backend *backend = NULL;
    struct mxc_plan *plan = NULL;
    struct mxc_err err = {0};
    assert_int_equal(mxc_graph_new("odd", &g, NULL), MXC_OK);
    mini_open(&m, g, build(g), MXC_ST_F32);
    assert_int_equal(ops->open(&(struct mxc_backend_options){.n_threads = 1}, &backend, &err),
                     MXC_OK);
    struct mxc_plan_options options = {.max_rows = 4, .max_out = 4, .max_spans = 1};
    assert_int_equal(ops->compile(backend, m.graph, m.weights, &options, &plan, &err),
                     MXC_E_UNSUPPORTED);
    if (!strstr(err.message, message))
        fail_msg("\"%s\" does not say \"%s\"", err.message, message);
    ops->close(backend);
    mini_close(&m);
}

static int32_t merged(struct mxc_graph *g) {
    int32_t x = mxc_graph_input(g, 4);
    x = mxc_graph_tanh_scale(g, x, mxc_graph_vector(g, 1, "gate"), MXC_NONE);
    return mxc_graph_mean_rows(g, x, MXC_CPU_TOWER_ROWS + 1);
}

static int32_t odd_heads(struct mxc_graph *g) {
    int32_t x = mxc_graph_input(g, 3 * 5);
    struct mxc_attend_attr attr = {
        .n_heads = 1, .head_dim = 5, .scale = 1, .rope = MXC_NONE, .range = mxc_graph_range(g, x)};
    x = mxc_graph_attend(g, x, &attr);
    return mxc_graph_tanh_scale(g, x, mxc_graph_vector(g, 1, "gate"), MXC_NONE);
}

static int32_t tokens(struct mxc_graph *g) {
    int32_t x = mxc_graph_input(g, 4);
    (void)mxc_graph_embed(g, mxc_graph_table(g, 9, 4, "table"), 1);
    return x;
}

static void test_refused(void **state) {
    (void)state;
    not_compiled(merged, "merged by more than 384");
    not_compiled(odd_heads, "heads of 5 numbers");
    not_compiled(tokens, "embed in a tower");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong),    cmocka_unit_test(test_positions),
        cmocka_unit_test(test_memory),   cmocka_unit_test(test_allocations),
        cmocka_unit_test(test_given_up), cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
