/* Row kernels: RMS norm, gated activations, addition, rotary embedding; every level against double
 * precision, at lengths around the vector widths, in place, with guards. */
#include "synthetic.h"

#include "base/half.h"

#include <math.h>
#include <string.h>

static const int32_t lengths[] = {1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 64, 100, 577};
enum { N_LENGTHS = sizeof lengths / sizeof *lengths, MAX = 577 };

static void near(float got, double want, double bound, const char *name) {
    if (!(fabs((double)got - want) <= bound))
        fail_msg("%s: %.9g, not %.9g (bound %g)", name, (double)got, want, bound);
}

static void test_rms_norm(void **unused) {
    (void)unused;
    for (size_t i = 0; i < n_kernel_rows; i++) {
        const struct kernel_row *row = kernel_row(i, KIND_NORM);
        for (size_t l = 0; row && l < N_LENGTHS; l++) {
            const struct mxc_kernels *kernels = mxc_kernels_get(row->level);
            int32_t n = lengths[l];
            float x[MAX], w[MAX];
            rnd_fill(x, MAX, 3);
            rnd_fill(w, MAX, 1);
            struct guarded y = guarded_new((size_t)n);
            kernels->rms_norm(y.data, x, w, n, 1e-5f, 1.0f);
            double sum = 0;
            for (int32_t j = 0; j < n; j++)
                sum += (double)x[j] * (double)x[j];
            double r = 1 / sqrt(sum / n + 1e-5);
            for (int32_t j = 0; j < n; j++)
                near(y.data[j], (double)x[j] * r * ((double)w[j] + 1), 4e-6, row->name);
            kernels->rms_norm(x, x, w, n, 1e-5f, 1.0f); /* in place */
            assert_memory_equal(x, y.data, (size_t)n * sizeof *x);
            guarded_free(&y);
        }
    }
}

static double activation(enum mxc_act act, double g) {
    switch (act) {
    case MXC_ACT_SILU:
        return g / (1 + exp(-g));
    case MXC_ACT_GELU:
        return 0.5 * g * erfc(-g * 0.70710678118654752440);
    case MXC_ACT_GELU_TANH:
        return 0.5 * g * (1 + tanh(0.79788456080286535588 * (g + 0.044715 * g * g * g)));
    default:
        return g > 0 ? g : 0;
    }
}

static void test_glu(void **unused) {
    (void)unused;
    for (size_t i = 0; i < n_kernel_rows; i++) {
        const struct kernel_row *row = kernel_row(i, KIND_GLU);
        for (size_t l = 0; row && l < N_LENGTHS; l++) {
            int32_t n = lengths[l];
            float g[MAX], u[MAX];
            rnd_fill(g, MAX, 12);
            rnd_fill(u, MAX, 2);
            struct guarded y = guarded_new((size_t)n);
            mxc_kernels_get(row->level)->glu[row->index](y.data, g, u, n);
            for (int32_t j = 0; j < n; j++) {
                double want = activation((enum mxc_act)row->index, (double)g[j]) * (double)u[j];
                /* erf and tanh near -1 cancel in f32: the bound is relative to |g u| */
                double bound = 3e-7 * fabs((double)g[j] * (double)u[j]) + 1e-30;
                near(y.data[j], want, bound, row->name);
            }
            guarded_free(&y);
        }
    }
}

/* The ends of the range: no NaN from overflow, and NaN stays NaN. */
static void test_glu_extremes(void **unused) {
    (void)unused;
    for (size_t i = 0; i < n_kernel_rows; i++) {
        const struct kernel_row *row = kernel_row(i, KIND_GLU);
        if (!row)
            continue;
        float g[6] = {-1e4f, -100, 0, 100, 1e4f, NAN}, u[6] = {1, 1, 1, 1, 1, 1}, y[6];
        mxc_kernels_get(row->level)->glu[row->index](y, g, u, 6);
        assert_true(y[0] == 0 && y[1] == 0 && y[2] == 0 && y[3] == 100 && y[4] == 1e4f);
        assert_true(row->index == MXC_ACT_RELU || isnan(y[5]));
    }
}

/* SiLU over the whole range, relative: the exponential's own accuracy. */
static void test_silu_accuracy(void **unused) {
    (void)unused;
    for (size_t i = 0; i < n_kernel_rows; i++) {
        const struct kernel_row *row = kernel_row(i, KIND_GLU);
        if (!row || row->index != MXC_ACT_SILU)
            continue;
        double worst = 0;
        for (double x = -80; x < 80; x += 0.37) {
            float g[16], u[16], y[16];
            for (int j = 0; j < 16; j++) {
                g[j] = (float)(x + 0.0217 * j);
                u[j] = 1;
            }
            mxc_kernels_get(row->level)->glu[MXC_ACT_SILU](y, g, u, 16);
            for (int j = 0; j < 16; j++) {
                double want = activation(MXC_ACT_SILU, (double)g[j]);
                double e = fabs((double)y[j] - want) / fabs(want);
                worst = e > worst ? e : worst;
            }
        }
        if (!(worst < 4e-7))
            fail_msg("%s: relative error %g", row->name, worst);
    }
}

static void test_add(void **unused) {
    (void)unused;
    for (size_t i = 0; i < n_kernel_rows; i++) {
        const struct kernel_row *row = kernel_row(i, KIND_ADD);
        for (size_t l = 0; row && l < N_LENGTHS; l++) {
            int32_t n = lengths[l];
            float a[MAX], b[MAX];
            rnd_fill(a, MAX, 1);
            rnd_fill(b, MAX, 1);
            struct guarded y = guarded_new((size_t)n);
            mxc_kernels_get(row->level)->add(y.data, a, b, n);
            for (int32_t j = 0; j < n; j++)
                assert_true(y.data[j] == a[j] + b[j]);
            guarded_free(&y);
        }
    }
}

static void test_rope(void **unused) {
    (void)unused;
    static const int32_t dims[] = {2, 4, 16, 30, 32, 34, 64, 80, 128};
    for (size_t i = 0; i < n_kernel_rows; i++) {
        const struct kernel_row *row = kernel_row(i, KIND_ROPE);
        for (size_t l = 0; row && l < sizeof dims / sizeof *dims; l++) {
            const struct mxc_kernels *kernels = mxc_kernels_get(row->level);
            size_t n = (size_t)dims[l], h = n / 2;
            float x[128], c[64], s[64];
            rnd_fill(x, 128, 1);
            rnd_fill(c, 64, 1);
            rnd_fill(s, 64, 1);
            struct guarded y = guarded_new(n);
            memcpy(y.data, x, n * sizeof *x);
            (row->index ? kernels->rope_pairs : kernels->rope_half)(y.data, c, s, dims[l]);
            for (size_t j = 0; j < h; j++) {
                size_t p = row->index ? 2 * j : j, q = row->index ? 2 * j + 1 : h + j;
                double a = (double)x[p], b = (double)x[q];
                near(y.data[p], a * (double)c[j] - b * (double)s[j], 3e-7, row->name);
                near(y.data[q], b * (double)c[j] + a * (double)s[j], 3e-7, row->name);
            }
            guarded_free(&y);
        }
    }
}

/* Every slot of every table is filled. */
static void test_tables_have_no_holes(void **unused) {
    (void)unused;
    for (enum mxc_cpu_level level = 0; level < MXC_N_CPU_LEVELS; level++) {
        const struct mxc_kernels *kernels = mxc_kernels_get(level);
        assert_non_null(kernels);
        assert_true(kernels->level <= mxc_cpu_best() && kernels->level <= level);
#define MXC_KERNEL(LEVEL, isa, KIND, slot, index, name) assert_true(kernels->slot != NULL);
#include "backend/cpu/kernels/kernels.def"
#undef MXC_KERNEL
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rms_norm),
        cmocka_unit_test(test_glu),
        cmocka_unit_test(test_glu_extremes),
        cmocka_unit_test(test_silu_accuracy),
        cmocka_unit_test(test_add),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_tables_have_no_holes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
