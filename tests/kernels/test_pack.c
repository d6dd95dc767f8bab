/* Packing: what a packed row decodes to against the storage's own decoder, for every storage, in
 * fast and exact; units, padding, refusals, sizes. */
#include "synthetic.h"

#include "backend/cpu/kernels/layout.h"
#include "base/half.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

static int32_t case_k(const struct case_storage *c) {
    const struct mxc_storage_info *info = mxc_storage_info(c->storage);
    return c->storage == MXC_ST_MLX_AFFINE ? 3 * (int32_t)c->group
           : info->block == 1              ? 77
                                           : 2 * (int32_t)info->block;
}

static void check(const struct case_storage *c, bool exact) {
    int32_t n = 45, k = case_k(c);
    size_t kk = (size_t)k;
    struct mxc_tensor *t = make_tensor(c, n, k);
    struct mxc_packed w = pack(t, exact);
    assert_int_equal(w.layout, exact ? MXC_LAYOUT_F32 : c->layout);
    assert_int_equal(w.n, n);
    assert_int_equal(w.k, k);
    float *got = mxc_mem_array(2 * kk, sizeof *got), *want = got + kk;
    assert_non_null(got);
    for (int32_t r = 0; r < n; r++) {
        mxc_packed_row(&w, r, got);
        mxc_tensor_row(t, r, want);
        float size = 0;
        for (size_t i = 0; i < kk; i++)
            size = fabsf(want[i]) > size ? fabsf(want[i]) : size;
        /* floats and f32 are kept; integers: f16 scales and biases, of terms up to ~10x larger */
        float bound = w.layout == MXC_LAYOUT_I4 || w.layout == MXC_LAYOUT_I8 ? 1.5e-3f * size : 0;
        if (c->storage == MXC_ST_Q4_0 || c->storage == MXC_ST_Q5_0 || c->storage == MXC_ST_Q8_0)
            bound = 0; /* f16 scales, one product */
        for (size_t i = 0; i < kk; i++)
            if (!(fabsf(got[i] - want[i]) <= bound))
                fail_msg("%s row %d: %g, not %g", c->name, r, (double)got[i], (double)want[i]);
    }
    for (int32_t r = n; r < mxc_packed_strips(&w) * MXC_STRIP; r++) { /* the rows of the padding */
        mxc_packed_row(&w, r, got);
        for (size_t i = 0; i < kk; i++)
            assert_true(got[i] == 0);
    }
    mxc_mem_free(got);
    free_packed(&w);
    free_tensor(t);
}

static void test_rows_survive(void **unused) {
    (void)unused;
    for (size_t i = 0; i < n_case_storages; i++) {
        check(&case_storages[i], false);
        check(&case_storages[i], true);
    }
}

static const struct case_storage *find_case(const char *name) {
    for (size_t i = 0; i < n_case_storages; i++)
        if (!strcmp(case_storages[i].name, name))
            return &case_storages[i];
    fail_msg("no case %s", name);
    return NULL;
}

/* bf16 scales convert to f16 exactly, however small or large the matrix is. */
static void test_unit_keeps_bf16_scales(void **unused) {
    (void)unused;
    static const float sizes[] = {1e-9f, 1e-4f, 1, 1e6f, 1e20f};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        struct mxc_tensor *t = make_tensor(find_case("mlx 4 g64 bf16"), 32, 192);
        uint8_t *scales = (uint8_t *)(uintptr_t)t->scales;
        uint8_t *biases = (uint8_t *)(uintptr_t)t->biases;
        for (size_t i = 0; i < 32 * 3; i++) {
            uint16_t h = mxc_f32_to_bf16(sizes[s] * (1.0f + 0.9f * rnd_float()));
            memcpy(scales + 2 * i, &h, sizeof h);
            h = mxc_f32_to_bf16(-sizes[s] * 7 * rnd_float());
            memcpy(biases + 2 * i, &h, sizeof h);
        }
        struct mxc_packed w = pack(t, false);
        assert_true(w.unit > 0 && frexpf(w.unit, &(int){0}) == 0.5f); /* a power of two */
        float got[192], want[192];
        for (int32_t r = 0; r < 32; r++) {
            mxc_packed_row(&w, r, got);
            mxc_tensor_row(t, r, want);
            for (size_t i = 0; i < 192; i++)
                assert_true(got[i] == want[i]);
        }
        free_packed(&w);
        free_tensor(t);
    }
}

static void refused(struct mxc_tensor *t, const char *word) {
    struct mxc_packed w, before;
    memset(&w, 0x5A, sizeof w);
    memcpy(&before, &w, sizeof w);
    struct mxc_err err;
    assert_int_equal(mxc_pack_form(t, false, &w, &err), MXC_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, t->name));
    assert_non_null(strstr(err.message, word));
    assert_memory_equal(&w, &before, sizeof w);
}

static void test_refusals(void **unused) {
    (void)unused;
    struct mxc_tensor *t = make_tensor(find_case("f32"), 4, 32);
    t->storage = MXC_ST_I32;
    refused(t, "I32");
    t->storage = MXC_ST_F32;
    t->shape[1] = 0;
    refused(t, "4 x 0");
    t->shape[1] = (int64_t)1 << 40;
    refused(t, "matrix");
    free_tensor(t);
    t = make_tensor(find_case("q4_0"), 4, 64);
    t->shape[1] = 48; /* not a multiple of the group: a loader's fault, but not a crash */
    refused(t, "Q4_0");
    free_tensor(t);
}

/* Prepared activations never need more than they are given, at the edges of tiles and cells. */
static void test_activation_bytes(void **unused) {
    (void)unused;
    for (int32_t m = 1; m < 30; m += 4)
        for (int32_t k = 1; k < 200; k += 33) {
            struct mxc_activation a = {.form = MXC_ACT_FORM_I8, .m = m, .k = k};
            size_t bytes = mxc_activation_bytes(MXC_ACT_FORM_I8, m, k);
            a.data = mxc_mem_aligned(MXC_ALIGN, bytes, false);
            assert_non_null(a.data);
            struct mxc_i8_view v = mxc_i8_view(&a);
            size_t mk = (size_t)m * v.kp;
            assert_true((uint8_t *)(v.codes + mk) <= (uint8_t *)v.scale);
            assert_true((uint8_t *)(v.scale + mk / 32) <= (uint8_t *)v.sum32);
            assert_true((uint8_t *)(v.sum32 + mk / 32) <= (uint8_t *)v.scaled32);
            assert_true((uint8_t *)(v.scaled32 + mk / 32) <= (uint8_t *)v.sum16);
            assert_true((uint8_t *)(v.sum16 + mk / 16) <= (uint8_t *)v.scaled64);
            assert_true((uint8_t *)(v.scaled64 + mk / 64) <= a.data + bytes);
            mxc_mem_free_aligned(a.data, bytes);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_survive),
        cmocka_unit_test(test_unit_keeps_bf16_scales),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_activation_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
