/* Matmul: every row of kernels.def against a double-precision product of what is stored, ragged
 * shapes, guards, the epilogue, exact integer sums across levels, and equal bits for every number
 * of rows. */
#include "synthetic.h"

#include "backend/cpu/kernels/layout.h"
#include "base/half.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

/* A case: one of case_storages, packed, or one of case_layouts, made directly. */
static size_t n_cases(void) {
    return n_case_storages + n_case_layouts;
}

static const char *case_name(size_t i) {
    return i < n_case_storages ? case_storages[i].name : case_layouts[i - n_case_storages].name;
}

static enum mxc_layout layout_of(size_t i) {
    return i < n_case_storages ? case_storages[i].layout : case_layouts[i - n_case_storages].layout;
}

static struct mxc_packed make_case(size_t i, int32_t n, int32_t k) {
    if (i >= n_case_storages)
        return make_packed(&case_layouts[i - n_case_storages], n, k);
    struct mxc_tensor *t = make_tensor(&case_storages[i], n, k);
    struct mxc_packed w = pack(t, false);
    assert_int_equal(w.layout, case_storages[i].layout);
    free_tensor(t);
    return w;
}

/* k that suits the case and is as ragged as it allows. */
static int32_t ragged_k(size_t i) {
    if (i >= n_case_storages)
        return layout_of(i) == MXC_LAYOUT_K6                   ? 2 * MXC_K6_BLOCK
               : case_layouts[i - n_case_storages].group == 64 ? 5 * 64
                                                               : 5 * 32;
    const struct case_storage *c = &case_storages[i];
    const struct mxc_storage_info *info = mxc_storage_info(c->storage);
    if (c->storage == MXC_ST_MLX_AFFINE)
        return 3 * (int32_t)c->group;
    return info->block == 1 ? 75 : info->block == 256 ? 512 : 5 * (int32_t)info->block;
}

/* What row c of the prepared activations holds, as numbers. */
static void activation_row(const struct mxc_activation *a, int32_t c, float *out) {
    int32_t tile = mxc_tile_rows(a->form), c0 = c / tile * tile;
    size_t width = (size_t)mxc_tile_width(a, c0), kp = mxc_padded_k(a->form, a->k);
    size_t cell = a->form == MXC_ACT_FORM_F32 ? MXC_CELL_F32 : MXC_CELL_I8;
    for (size_t i = 0; i < (size_t)a->k; i++) {
        size_t at = (size_t)c0 * kp + (i / cell * width + (size_t)(c - c0)) * cell + i % cell;
        if (a->form == MXC_ACT_FORM_F32)
            out[i] = ((const float *)(const void *)a->data)[at];
        else if (a->form == MXC_ACT_FORM_BF16)
            out[i] = mxc_bf16_to_f32(((const uint16_t *)(const void *)a->data)[at]);
        else
            out[i] = (float)((const int8_t *)a->data)[at] * mxc_i8_view(a).scale[at / cell];
    }
}

static struct mxc_activation prepared(const struct mxc_kernels *kernels,
                                      enum mxc_activation_form form, const float *x, size_t ldx,
                                      int32_t m, int32_t k) {
    struct mxc_activation a = activation_new(form, m, k);
    memset(a.data, 0xFF, mxc_activation_bytes(form, m, k));
    /* in the units that threads would take */
    for (int32_t r = 0; r < m; r += MXC_PREPARE_TILE)
        kernels->prepare[form](&a, x, ldx, r, r + MXC_PREPARE_TILE < m ? r + MXC_PREPARE_TILE : m);
    return a;
}

static void check_against_double(const struct mxc_kernels *kernels, size_t c, int32_t n,
                                 int32_t m) {
    int32_t k = ragged_k(c);
    size_t nn = (size_t)n, kk = (size_t)k, mm = (size_t)m, ld = nn + 3, ldx = kk + 5;
    struct mxc_packed w = make_case(c, n, k);
    float *x = mxc_mem_array(mm * ldx, sizeof *x), *row = mxc_mem_array(2 * kk, sizeof *row);
    float *bias = mxc_mem_array(nn, sizeof *bias), *before = mxc_mem_array(mm * ld, sizeof *before);
    assert_true(x && row && bias && before);
    rnd_fill(x, mm * ldx, 2);
    rnd_fill(bias, nn, 1);
    rnd_fill(before, mm * ld, 1);
    struct mxc_activation a = prepared(kernels, mxc_packed_form(&w), x, ldx, m, k);
    struct guarded plain = guarded_new(mm * ld), full = guarded_new(mm * ld);
    int32_t strips = mxc_packed_strips(&w);
    kernels->matmul[w.layout](&w, &a, 0, strips, plain.data, ld, NULL);
    /* in two ranges of strips, with everything in the epilogue, residual in place */
    for (size_t i = 0; i < mm; i++)
        memcpy(full.data + i * ld, before + i * ld, nn * sizeof(float));
    struct mxc_epilogue e = {.bias = bias, .scale = 0.5f, .residual = full.data};
    kernels->matmul[w.layout](&w, &a, strips / 2, strips, full.data, ld, &e);
    kernels->matmul[w.layout](&w, &a, 0, strips / 2, full.data, ld, &e);
    for (size_t i = 0; i < mm; i++) {
        activation_row(&a, (int32_t)i, row + kk);
        for (size_t j = 0; j < nn; j++) {
            double sum = 0, size = 0;
            mxc_packed_row(&w, (int32_t)j, row);
            for (size_t d = 0; d < kk; d++) {
                sum += (double)row[d] * (double)row[kk + d];
                size += fabs((double)row[d] * (double)row[kk + d]);
            }
            /* affine codes and biases cancel: their parts are up to 16 times the weights */
            double bound = (w.group ? 2e-5 : 1e-6) * size + 1e-6;
            float y = plain.data[i * ld + j];
            if (!(fabs((double)y - sum) <= bound))
                fail_msg("%s, %s, n %d m %d: %g, not %g", mxc_cpu_level_name(kernels->level),
                         case_name(c), n, m, (double)y, sum);
            float want = (y + bias[j]) * 0.5f + before[i * ld + j];
            assert_true(full.data[i * ld + j] == want);
        }
        for (size_t j = nn; j < ld; j++)
            assert_true(is_canary(plain.data[i * ld + j]) && is_canary(full.data[i * ld + j]));
    }
    guarded_free(&plain);
    guarded_free(&full);
    activation_free(&a);
    mxc_mem_free(x);
    mxc_mem_free(row);
    mxc_mem_free(bias);
    mxc_mem_free(before);
    free_packed(&w);
}

static void test_against_double(void **unused) {
    (void)unused;
    static const int32_t ns[] = {1, 31, 32, 70}, ms[] = {1, 2, 3, 5, 6, 7, 12, 13, 25};
    for (size_t i = 0; i < n_kernel_rows; i++) {
        const struct kernel_row *row = kernel_row(i, KIND_MATMUL);
        for (size_t c = 0; row && c < n_cases(); c++) {
            if ((int)layout_of(c) != row->index)
                continue;
            /* the scalar level has no tiles: a few row counts are enough */
            size_t step = row->level == MXC_CPU_SCALAR ? 4 : 1;
            for (size_t a = 0; a < sizeof ns / sizeof *ns; a++)
                for (size_t b = 0; b < sizeof ms / sizeof *ms; b += step)
                    check_against_double(mxc_kernels_get(row->level), c, ns[a], ms[b]);
        }
    }
}

/* Scales of one and small integer activations: every sum is an integer below 2^24, so that all
 * levels must give the same numbers. */
static void test_integer_sums_are_exact(void **unused) {
    (void)unused;
    for (size_t c = 0; c < n_cases(); c++) {
        if (!mxc_layout_integer(layout_of(c)))
            continue;
        int32_t n = 64, k = 512, m = 17;
        struct mxc_packed w = make_case(c, n, k);
        int32_t strips = mxc_packed_strips(&w);
        set_scales(&w, 1, -10, 0);
        w.unit = 1;
        float *x = mxc_mem_array((size_t)(m * k), sizeof *x);
        assert_non_null(x);
        for (size_t i = 0; i < (size_t)(m * k); i++) /* the extremes are the dangerous ones */
            x[i] = i % 3 ? (i % 2 ? 127.0f : -127.0f) : (float)((int32_t)(rnd_u32() % 255) - 127);
        for (size_t i = 0; i < (size_t)m; i++)
            x[i * (size_t)k] = 127;
        struct guarded want = guarded_new((size_t)(m * n)), got = guarded_new((size_t)(m * n));
        for (enum mxc_cpu_level level = 0; level <= mxc_cpu_best(); level++) {
            const struct mxc_kernels *kernels = mxc_kernels_get(level);
            struct mxc_activation a = prepared(kernels, MXC_ACT_FORM_I8, x, (size_t)k, m, k);
            kernels->matmul[w.layout](&w, &a, 0, strips, level ? got.data : want.data, (size_t)n,
                                      NULL);
            if (level)
                if (memcmp(got.data, want.data, (size_t)(m * n) * sizeof(float)))
                    fail_msg("%s: %s", case_name(c), mxc_cpu_level_name(level));
            activation_free(&a);
        }
        for (int32_t r = 0; r < n; r++) { /* and the scalar level is right */
            float row[512];
            mxc_packed_row(&w, r, row);
            double sum = 0;
            for (size_t i = 0; i < 512; i++)
                sum += (double)row[i] * (double)x[i];
            if ((double)want.data[r] != sum)
                fail_msg("%s: %g, not %g", case_name(c), (double)want.data[r], sum);
        }
        guarded_free(&want);
        guarded_free(&got);
        mxc_mem_free(x);
        free_packed(&w);
    }
}

/* Codes of six bits give the bits that the same codes of eight bits give: the same integers, scales
 * and order. */
static void test_six_bits_equal_eight(void **unused) {
    (void)unused;
    for (size_t i = 0; i < n_case_layouts; i++) {
        if (case_layouts[i].layout != MXC_LAYOUT_I6)
            continue;
        enum { N = 70, K = 256, M = 17 };
        struct case_layout eight = case_layouts[i];
        eight.layout = MXC_LAYOUT_I8;
        struct mxc_packed a = make_packed(&case_layouts[i], N, K), b = make_packed(&eight, N, K);
        size_t group = (size_t)a.group, blocks = mxc_packed_bytes(&a) / mxc_block_bytes(&a);
        for (size_t g = 0; g < blocks; g++) {
            const uint8_t *from = a.data + g * mxc_block_bytes(&a);
            uint8_t *to = b.data + g * mxc_block_bytes(&b);
            for (size_t r = 0; r < MXC_STRIP; r++)
                for (size_t e = 0; e < group; e++)
                    to[e / 4 * 4 * MXC_STRIP + 4 * r + e % 4] = mxc_six_get(from, e, r);
            memcpy(to + mxc_block_codes(&b), from + mxc_block_codes(&a),
                   mxc_block_bytes(&a) - mxc_block_codes(&a));
        }
        float *x = mxc_mem_array(M * K, sizeof *x);
        assert_non_null(x);
        rnd_fill(x, M * K, 2);
        struct guarded want = guarded_new(M * N), got = guarded_new(M * N);
        for (enum mxc_cpu_level level = 0; level <= mxc_cpu_best(); level++) {
            const struct mxc_kernels *kernels = mxc_kernels_get(level);
            struct mxc_activation act = prepared(kernels, MXC_ACT_FORM_I8, x, K, M, K);
            kernels->matmul[a.layout](&a, &act, 0, mxc_packed_strips(&a), got.data, N, NULL);
            kernels->matmul[b.layout](&b, &act, 0, mxc_packed_strips(&b), want.data, N, NULL);
            if (memcmp(got.data, want.data, got.n * sizeof(float)))
                fail_msg("%s, %s", case_layouts[i].name, mxc_cpu_level_name(level));
            activation_free(&act);
        }
        guarded_free(&want);
        guarded_free(&got);
        mxc_mem_free(x);
        free_packed(&a);
        free_packed(&b);
    }
}

/* The largest sums that scales of eight bits can make of codes of six are still exact. */
static void test_k6_extremes(void **unused) {
    (void)unused;
    enum { N = 32, K = 256, M = 7 };
    struct case_layout k6 = {.name = "k6", .layout = MXC_LAYOUT_K6, .group = 16, .zero_point = 32};
    struct mxc_packed w = make_packed(&k6, N, K);
    float x[M * K], out[M * N];
    for (int sign = -1; sign <= 1; sign += 2) {
        for (int code = 0; code < 64; code += 63) {
            set_scales(&w, 1, 0, 0);
            w.unit = 1;
            for (size_t cell = MXC_BLOCK_TAIL; cell < MXC_K6_BYTES; cell += MXC_K6_CELL) {
                memset(w.data + cell, 0x80, MXC_K6_SCALES);
                memset(w.data + cell + MXC_K6_SCALES, code ? 0xFF : 0, MXC_SIX_CELL);
            }
            for (size_t i = 0; i < M * K; i++)
                x[i] = i % K < 32 ? 127.0f * (float)sign : 0;
            for (enum mxc_cpu_level level = 0; level <= mxc_cpu_best(); level++) {
                const struct mxc_kernels *kernels = mxc_kernels_get(level);
                struct mxc_activation a = prepared(kernels, MXC_ACT_FORM_I8, x, K, M, K);
                kernels->matmul[w.layout](&w, &a, 0, 1, out, N, NULL);
                for (size_t i = 0; i < M * N; i++)
                    assert_true(out[i] == (float)(32 * 127 * -128 * sign * (code - 32)));
                activation_free(&a);
            }
        }
    }
    free_packed(&w);
}

/* The prepared bytes are the same at every level. */
static void test_prepare_equals_scalar(void **unused) {
    (void)unused;
    static const int32_t ms[] = {1, 6, 7, 24, 50}, ks[] = {1, 31, 64, 75, 192};
    for (size_t i = 0; i < n_kernel_rows; i++) {
        const struct kernel_row *row = kernel_row(i, KIND_PREPARE);
        if (!row || row->level == MXC_CPU_SCALAR)
            continue;
        enum mxc_activation_form form = (enum mxc_activation_form)row->index;
        for (size_t a = 0; a < 5; a++)
            for (size_t b = 0; b < 5; b++) {
                int32_t m = ms[a], k = ks[b];
                size_t ldx = (size_t)k + 1, bytes = mxc_activation_bytes(form, m, k);
                float *x = mxc_mem_array((size_t)m * ldx, sizeof *x);
                assert_non_null(x);
                rnd_fill(x, (size_t)m * ldx, 3);
                if (m > 6) {
                    x[2] = INFINITY;
                    memset(x + 3 * ldx, 0, (size_t)k * sizeof *x);
                    x[4 * ldx] = NAN;
                }
                struct mxc_activation got =
                    prepared(mxc_kernels_get(row->level), form, x, ldx, m, k);
                struct mxc_activation want =
                    prepared(mxc_kernels_get(MXC_CPU_SCALAR), form, x, ldx, m, k);
                for (size_t j = 0; j < bytes; j++)
                    if (got.data[j] != want.data[j])
                        fail_msg("%s m %d k %d byte %zu", row->name, m, k, j);
                activation_free(&got);
                activation_free(&want);
                mxc_mem_free(x);
            }
    }
}

/* Rows that are also multiplied alone: the first ones, the last ones, every place of a tile. */
static bool is_sampled(int32_t row) {
    return row < 24 || row % 7 == 0 || row >= 506;
}

/* A row's bits do not depend on how many rows there are. */
static void check_invariance(const struct mxc_kernels *kernels, size_t c) {
    static const int32_t ms[] = {2, 3, 4, 5, 6, 7, 8, 17, 64, 512};
    bool blocks = c < n_case_storages && mxc_storage_info(case_storages[c].storage)->block == 256;
    int32_t n = 70, k = blocks || layout_of(c) == MXC_LAYOUT_K6 ? 256 : 128;
    enum { MAX_M = 512 };
    struct mxc_packed w = make_case(c, n, k);
    enum mxc_activation_form form = mxc_packed_form(&w);
    size_t nn = (size_t)n, kk = (size_t)k;
    float *x = mxc_mem_array(MAX_M * kk, sizeof *x);
    assert_non_null(x);
    rnd_fill(x, MAX_M * kk, 1);
    struct guarded alone = guarded_new(MAX_M * nn), batch = guarded_new(MAX_M * nn);
    for (int32_t i = 0; i < MAX_M; i++) {
        if (!is_sampled(i))
            continue;
        struct mxc_activation a = prepared(kernels, form, x + (size_t)i * kk, kk, 1, k);
        kernels->matmul[w.layout](&w, &a, 0, mxc_packed_strips(&w), alone.data + (size_t)i * nn, nn,
                                  NULL);
        activation_free(&a);
    }
    for (size_t i = 0; i < sizeof ms / sizeof *ms; i++) {
        struct mxc_activation a = prepared(kernels, form, x, kk, ms[i], k);
        kernels->matmul[w.layout](&w, &a, 0, mxc_packed_strips(&w), batch.data, nn, NULL);
        for (int32_t r = 0; r < ms[i]; r++)
            if (is_sampled(r) && memcmp(alone.data + (size_t)r * nn, batch.data + (size_t)r * nn,
                                        nn * sizeof(float)))
                fail_msg("%s at M = %d row %d", case_name(c), ms[i], r);
        activation_free(&a);
    }
    guarded_free(&alone);
    guarded_free(&batch);
    mxc_mem_free(x);
    free_packed(&w);
}

static void test_invariance(void **unused) {
    (void)unused;
    for (size_t i = 0; i < n_kernel_rows; i++) {
        const struct kernel_row *row = kernel_row(i, KIND_MATMUL);
        for (size_t c = 0; row && c < n_cases(); c++)
            if ((int)layout_of(c) == row->index)
                check_invariance(mxc_kernels_get(row->level), c);
    }
}

/* A fault in a row of activations stays visible in that row, and in that row only. */
static void test_not_a_number_stays_in_its_row(void **unused) {
    (void)unused;
    for (enum mxc_cpu_level level = 0; level <= mxc_cpu_best(); level++)
        for (size_t c = 0; c < n_cases(); c++) {
            const struct mxc_kernels *kernels = mxc_kernels_get(level);
            struct mxc_packed w = make_case(c, 32, 256);
            float x[4 * 256], out[4 * 32];
            rnd_fill(x, 4 * 256, 1);
            x[2 * 256 + 100] = NAN;
            struct mxc_activation a = prepared(kernels, mxc_packed_form(&w), x, 256, 4, 256);
            kernels->matmul[w.layout](&w, &a, 0, 1, out, 32, NULL);
            for (size_t i = 0; i < 4 * 32; i++)
                assert_int_equal(i / 32 == 2, isnan(out[i]) != 0);
            activation_free(&a);
            free_packed(&w);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_double),
        cmocka_unit_test(test_integer_sums_are_exact),
        cmocka_unit_test(test_six_bits_equal_eight),
        cmocka_unit_test(test_k6_extremes),
        cmocka_unit_test(test_prepare_equals_scalar),
        cmocka_unit_test(test_invariance),
        cmocka_unit_test(test_not_a_number_stays_in_its_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
