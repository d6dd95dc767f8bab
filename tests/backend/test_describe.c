/* What a plan says of its matrices: every one of the graph's, with the layout its storage gives,
 * and bytes that add up to what the plan holds. */
#include "tiny.h"

static const struct tiny_shape shape = {.n_layers = 2,
                                        .hidden = 64,
                                        .ffn = 96,
                                        .n_heads = 4,
                                        .n_kv_heads = 2,
                                        .head_dim = 16,
                                        .vocab = 80,
                                        .tied = true,
                                        .storage = MXC_ST_BF16};

static void check(enum mxc_precision precision, const char *layout, const char *kernel, int bits) {
    const struct mxc_backend_ops *ops = &mxc_backend_cpu;
    const struct mxc_backend_options options = {.n_threads = 1};
    const struct mxc_plan_options plan_options = {
        .precision = precision, .max_rows = 8, .max_out = 8, .max_spans = 2};
    struct mxc_backend *backend;
    struct mxc_plan *plan;
    struct mxc_plan_memory memory;
    struct mxc_plan_matrix m;
    struct mxc_err err;
    struct tiny tiny;
    tiny_open(&tiny, &shape);
    assert_int_equal(ops->open(&options, &backend, &err), MXC_OK);
    assert_int_equal(ops->compile(backend, tiny.graph, tiny.weights, &plan_options, &plan, &err),
                     MXC_OK);
    ops->plan_memory(plan, &memory);
    uint64_t bytes = 0;
    int n = 0, heads = 0;
    for (; ops->plan_matrix(plan, n, &m); n++) {
        assert_string_equal(m.layout, layout);
        assert_string_equal(m.kernel, kernel);
        assert_string_equal(m.storage, "BF16");
        assert_int_equal(m.bits, bits);
        assert_int_equal(m.slices, 1);
        assert_int_equal(m.used, 1);
        assert_true(m.bytes >= (uint64_t)(m.rows * m.columns) * (bits == 32 ? 4 : 2));
        heads += m.outputs_only;
        if (m.outputs_only)
            assert_int_equal(m.rows, shape.vocab);
        bytes += m.bytes;
    }
    assert_int_equal(n, 2 * 7 + 1); /* q, k, v, o, gate, up, down; the head */
    assert_int_equal(heads, 1);
    assert_true(bytes <= memory.weights_bytes);
    assert_true(bytes + (64 << 10) > memory.weights_bytes); /* the rest: norms, alignment */
    assert_false(ops->plan_matrix(plan, n, &m));
    assert_false(ops->plan_matrix(plan, INT32_MAX, &m));
    ops->plan_free(plan);
    ops->close(backend);
    tiny_close(&tiny);
}

static void tells_of_every_matrix(void **state) {
    (void)state;
    check(MXC_PRECISION_FAST, "BF16", "matmul_bf16", 16);
    check(MXC_PRECISION_EXACT, "F32", "matmul_f32", 32);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(tells_of_every_matrix)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
