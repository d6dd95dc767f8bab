/* Row kernels: norms, activations, caps, gates, additions, rotary embedding; every level against
 * double precision, at lengths around the vector widths, in place, with guards. */
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

static void layer_norm_in_double(const float *x, const float *w, const float *b, int32_t n,
                                 double *y) {
    double mean = 0, square = 0;
    for (int32_t j = 0; j < n; j++)
        mean += (double)x[j] / n;
    for (int32_t j = 0; j < n; j++)
        square += ((double)x[j] - mean) * ((double)x[j] - mean) / n;
    for (int32_t j = 0; j < n; j++)
        y[j] = ((double)x[j] - mean) / sqrt(square + 1e-5) * (double)w[j] + (b ? (double)b[j] : 0);
}

/* middle: far from zero, the squares would cancel if the mean were not taken off first. */
static void check_layer_norm(const struct kernel_row *row, int32_t n, float middle, double bound) {
    const struct mxc_kernels *kernels = mxc_kernels_get(row->level);
    float x[MAX], w[MAX], b[MAX];
    double want[MAX];
    rnd_fill(x, MAX, 3);
    for (int32_t j = 0; j < n; j++)
        x[j] += middle;
    rnd_fill(w, MAX, 1);
    rnd_fill(b, MAX, 1);
    struct guarded y = guarded_new((size_t)n);
    for (int with = 0; with < 2; with++) {
        kernels->layer_norm(y.data, x, w, with ? b : NULL, n, 1e-5f);
        layer_norm_in_double(x, w, with ? b : NULL, n, want);
        for (int32_t j = 0; j < n; j++)
            near(y.data[j], want[j], bound, row->name);
    }
    kernels->layer_norm(x, x, w, b, n, 1e-5f); /* in place */
    assert_memory_equal(x, y.data, (size_t)n * sizeof *x);
    guarded_free(&y);
}

static void test_layer_norm(void **unused) {
    (void)unused;
    for (size_t i = 0; i < n_kernel_rows; i++) {
        const struct kernel_row *row = kernel_row(i, KIND_LAYER_NORM);
        for (size_t l = 0; row && l < N_LENGTHS; l++) {
            check_layer_norm(row, lengths[l], 0, 4e-6);
            if (lengths[l] >= 8) /* an ulp of 1000 is 6e-5; the deviation is at least 1 here */
                check_layer_norm(row, lengths[l], 1000, 4e-4);
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
    case MXC_ACT_GELU_QUICK:
        return g / (1 + exp(-(double)1.702f * g));
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
            rnd_fill(u, MAX, row->index == MXC_ACT_SWIGLU_CLIP ? 12 : 2);
            struct guarded y = guarded_new((size_t)n);
            mxc_kernels_get(row->level)->glu[row->index](y.data, g, u, n);
            for (int32_t j = 0; j < n; j++) {
                double factor = (double)u[j], gate = (double)g[j];
                double want = activation((enum mxc_act)row->index, gate) * factor;
                if (row->index == MXC_ACT_SWIGLU_CLIP) {
                    gate = gate > 7 ? 7 : gate;
                    factor = (factor > 7 ? 7 : factor < -7 ? -7 : factor) + 1;
                    want = gate / (1 + exp(-(double)1.702f * gate)) * factor;
                }
                /* erf and tanh near -1 cancel in f32: the bound is relative to |g u| */
                double bound = 3e-7 * fabs(gate) * (fabs(factor) + 1) + 1e-30;
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
        bool clip = row->index == MXC_ACT_SWIGLU_CLIP;
        float g[6] = {-1e4f, -100, 0, 100, 1e4f, NAN}, u[6] = {1, 1, 1, 1, 1, 1}, y[6];
        mxc_kernels_get(row->level)->glu[row->index](y, g, u, 6);
        assert_true(y[0] == 0 && y[1] == 0 && y[2] == 0);
        assert_true(clip ? y[3] == y[4] && fabsf(y[3] - 14) < 1e-3f : y[3] == 100 && y[4] == 1e4f);
        assert_true(row->index == MXC_ACT_RELU || isnan(y[5]));
        if (clip) { /* NaN of the other input */
            mxc_kernels_get(row->level)->glu[row->index](y, u, g, 6);
            assert_true(isnan(y[5]) && isfinite(y[0]) && isfinite(y[4]));
        }
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

/* act[x] is glu with a factor of one, bit for bit; also in place. */
static void test_act(void **unused) {
    (void)unused;
    for (size_t i = 0; i < n_kernel_rows; i++) {
        const struct kernel_row *row = kernel_row(i, KIND_ACT);
        for (size_t l = 0; row && l < N_LENGTHS; l++) {
            const struct mxc_kernels *kernels = mxc_kernels_get(row->level);
            size_t n = (size_t)lengths[l];
            float x[MAX], ones[MAX], want[MAX];
            rnd_fill(x, MAX, 12);
            for (size_t j = 0; j < n; j++)
                ones[j] = 1;
            struct guarded y = guarded_new(n);
            kernels->act[row->index](y.data, x, lengths[l]);
            kernels->glu[row->index](want, x, ones, lengths[l]);
            assert_memory_equal(y.data, want, n * sizeof *x);
            for (size_t j = 0; j < n; j++)
                near(y.data[j], activation((enum mxc_act)row->index, (double)x[j]),
                     3e-7 * fabs((double)x[j]) + 1e-30, row->name);
            kernels->act[row->index](x, x, lengths[l]);
            assert_memory_equal(x, want, n * sizeof *x);
            guarded_free(&y);
        }
    }
    for (enum mxc_cpu_level level = 0; level < MXC_N_CPU_LEVELS; level++)
        assert_null(mxc_kernels_get(level)->act[MXC_ACT_SWIGLU_CLIP]);
}

static void test_softcap(void **unused) {
    (void)unused;
    for (size_t i = 0; i < n_kernel_rows; i++) {
        const struct kernel_row *row = kernel_row(i, KIND_SOFTCAP);
        for (size_t l = 0; row && l < N_LENGTHS; l++) {
            const struct mxc_kernels *kernels = mxc_kernels_get(row->level);
            size_t n = (size_t)lengths[l];
            float x[MAX];
            rnd_fill(x, MAX, 100);
            x[0] = l % 2 ? INFINITY : -1e30f;
            struct guarded y = guarded_new(n);
            kernels->softcap(y.data, x, 30.0f, lengths[l]);
            for (size_t j = 0; j < n; j++)
                near(y.data[j], 30 * tanh((double)x[j] / 30), 30 * 2.5e-7, row->name);
            kernels->softcap(x, x, 30.0f, lengths[l]);
            assert_memory_equal(x, y.data, n * sizeof *x);
            x[0] = NAN;
            kernels->softcap(x, x, 30.0f, 1);
            assert_true(isnan(x[0]));
            guarded_free(&y);
        }
    }
}

static void test_gate(void **unused) {
    (void)unused;
    static const float gates[] = {-200, -3.3f, 0, 0.7f, 200};
    for (size_t i = 0; i < n_kernel_rows; i++) {
        const struct kernel_row *row = kernel_row(i, KIND_GATE);
        for (size_t l = 0; row && l < N_LENGTHS; l++)
            for (size_t g = 0; g < sizeof gates / sizeof *gates; g++) {
                const struct mxc_kernels *kernels = mxc_kernels_get(row->level);
                size_t n = (size_t)lengths[l];
                float x[MAX];
                rnd_fill(x, MAX, 5);
                struct guarded y = guarded_new(n);
                kernels->gate(y.data, x, gates[g], lengths[l]);
                for (size_t j = 0; j < n; j++)
                    near(y.data[j], (double)x[j] / (1 + exp(-(double)gates[g])),
                         4e-7 * fabs((double)x[j]), row->name);
                kernels->gate(x, x, gates[g], lengths[l]);
                assert_memory_equal(x, y.data, n * sizeof *x);
                guarded_free(&y);
            }
    }
}

static void test_weighted_add(void **unused) {
    (void)unused;
    for (size_t i = 0; i < n_kernel_rows; i++) {
        const struct kernel_row *row = kernel_row(i, KIND_WEIGHTED_ADD);
        for (size_t l = 0; row && l < N_LENGTHS; l++) {
            const struct mxc_kernels *kernels = mxc_kernels_get(row->level);
            size_t n = (size_t)lengths[l];
            float a[MAX], b[MAX], p[2] = {rnd_float(), rnd_float()};
            rnd_fill(a, MAX, 1);
            rnd_fill(b, MAX, 1);
            struct guarded y = guarded_new(n); /* what stands there does not matter at first */
            kernels->weighted_add(y.data, a, p[0], true, lengths[l]);
            for (size_t j = 0; j < n; j++)
                assert_true(y.data[j] == p[0] * a[j]);
            kernels->weighted_add(y.data, b, p[1], false, lengths[l]);
            for (size_t j = 0; j < n; j++) {
                float first = p[0] * a[j], second = p[1] * b[j];
                assert_true(y.data[j] == first + second);
            }
            guarded_free(&y);
        }
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
        cmocka_unit_test(test_rms_norm),      cmocka_unit_test(test_layer_norm),
        cmocka_unit_test(test_glu),           cmocka_unit_test(test_glu_extremes),
        cmocka_unit_test(test_silu_accuracy), cmocka_unit_test(test_act),
        cmocka_unit_test(test_softcap),       cmocka_unit_test(test_gate),
        cmocka_unit_test(test_add),           cmocka_unit_test(test_weighted_add),
        cmocka_unit_test(test_rope),          cmocka_unit_test(test_tables_have_no_holes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
