/* Scale, add and interpolate. In: a tensor of the weights and, for the last two, tensors of the
 * same shape from source files. Out: the tensor's numbers, or the scales and biases of a quantised
 * one, changed in memory of its own.
 * The arithmetic is f32, rounded to the tensor's storage; a finite number that would become an
 * infinity is an error. */
#include "surgery/private.h"

#include "base/half.h"
#include "base/mem.h"
#include "quant/decode.h"

#include <math.h>
#include <string.h>

enum { RUN = 256 };

/* Stores x; false when what is stored is not finite. */
static bool put(enum mxc_storage storage, uint8_t *at, float x) {
    uint16_t half;
    double wide = (double)x;
    switch (storage) {
    case MXC_ST_F16:
        half = mxc_f32_to_f16(x);
        memcpy(at, &half, sizeof half);
        return (half & 0x7C00) != 0x7C00;
    case MXC_ST_BF16:
        half = mxc_f32_to_bf16(x);
        memcpy(at, &half, sizeof half);
        return (half & 0x7F80) != 0x7F80;
    case MXC_ST_F64:
        memcpy(at, &wide, sizeof wide);
        return isfinite(x);
    default:
        memcpy(at, &x, sizeof x);
        return isfinite(x);
    }
}

static enum mxc_code too_large(const struct mxc_patient *p, const struct mxc_tensor *t) {
    return mxc_err_set(p->err, MXC_E_ARG, "tensor %s: a number becomes too large for its storage",
                       t->name);
}

/* ---- scale */

/* false: a number became too large. */
static bool scale_run(enum mxc_storage storage, uint8_t *data, size_t n, float factor) {
    size_t width = mxc_storage_info(storage)->block_bytes;
    float x[RUN];
    for (size_t at = 0; at < n; at += RUN) {
        size_t m = n - at < RUN ? n - at : RUN;
        mxc_quant_decode(storage, data + at * width, m, x);
        for (size_t i = 0; i < m; i++)
            if (!put(storage, data + (at + i) * width, x[i] * factor) && isfinite(x[i]))
                return false;
    }
    return true;
}

/* Where the f16 numbers stand that all numbers of a GGUF block are proportional to. */
struct block_scales {
    int n;
    size_t at[2];
};

static struct block_scales block_scales(enum mxc_storage storage) {
    switch (storage) {
    case MXC_ST_Q4_0:
    case MXC_ST_Q5_0:
    case MXC_ST_Q8_0:
    case MXC_ST_IQ4_NL:
    case MXC_ST_IQ4_XS:
        return (struct block_scales){1, {0, 0}};
    case MXC_ST_Q4_1:
    case MXC_ST_Q5_1:
    case MXC_ST_Q4_K:
    case MXC_ST_Q5_K:
        return (struct block_scales){2, {0, 2}};
    case MXC_ST_Q2_K:
        return (struct block_scales){2, {80, 82}};
    case MXC_ST_Q3_K:
        return (struct block_scales){1, {108, 0}};
    case MXC_ST_Q6_K:
        return (struct block_scales){1, {208, 0}};
    case MXC_ST_TQ1_0:
        return (struct block_scales){1, {52, 0}};
    case MXC_ST_TQ2_0:
        return (struct block_scales){1, {64, 0}};
    default:
        return (struct block_scales){0, {0, 0}};
    }
}

static bool scale_blocks(const struct mxc_tensor *t, uint8_t *data, float factor) {
    const struct block_scales scales = block_scales(t->storage);
    size_t step = mxc_storage_info(t->storage)->block_bytes;
    for (size_t at = 0; at + step <= t->bytes; at += step)
        for (int i = 0; i < scales.n; i++)
            if (!scale_run(MXC_ST_F16, data + at + scales.at[i], 1, factor))
                return false;
    return true;
}

enum mxc_code mxc_cut_scale(const struct mxc_patient *p, const struct mxc_cut *cut, size_t index) {
    const struct mxc_tensor *before = mxc_weights_at(p->weights, index);
    bool floats = mxc_cut_is_float(before), affine = before->storage == MXC_ST_MLX_AFFINE;
    struct mxc_cut_memory m;
    struct mxc_tensor t;
    bool ok;
    if (!floats && !affine && !before->parts && !block_scales(before->storage).n)
        return mxc_cut_refuse(p, before, "it has no scale that a factor goes into");
    if (cut->amount == 1.0f)
        return MXC_OK; /* byte for byte */
    enum mxc_code code = mxc_cut_own(p, index, &t, &m);
    if (code)
        return code;
    size_t n = (size_t)mxc_tensor_rows(&t) * (size_t)mxc_tensor_columns(&t);
    if (floats)
        ok = scale_run(t.storage, m.data, n, cut->amount);
    else if (affine)
        ok = scale_run(t.scale_storage, m.scales, n / t.group, cut->amount) &&
             scale_run(t.scale_storage, m.biases, n / t.group, cut->amount);
    else if (t.parts)
        ok = scale_run(MXC_ST_F32, m.scales, m.n_scales, cut->amount);
    else
        ok = scale_blocks(&t, m.data, cut->amount);
    return ok ? MXC_OK : too_large(p, &t);
}

/* ---- with sources */

static enum mxc_code check_floats(const struct mxc_patient *p, const struct mxc_tensor *t,
                                  const struct mxc_tensor *source) {
    if (!mxc_cut_is_float(t))
        return mxc_cut_refuse(p, t, "only floating-point tensors can be combined with others");
    if (!mxc_cut_is_float(source))
        return mxc_cut_refuse(p, source, "a source has to be floating-point");
    return MXC_OK;
}

enum mxc_code mxc_cut_add(const struct mxc_patient *p, const struct mxc_cut *cut, size_t index,
                          const struct mxc_tensor *source) {
    const struct mxc_tensor *before = mxc_weights_at(p->weights, index);
    struct mxc_cut_memory m;
    struct mxc_tensor t;
    enum mxc_code code = check_floats(p, before, source);
    if (code || cut->amount == 0 || (code = mxc_cut_own(p, index, &t, &m)))
        return code;
    size_t width = mxc_storage_info(t.storage)->block_bytes, n = (size_t)mxc_tensor_columns(&t);
    float *rows = mxc_mem_array(2 * n + 1, sizeof *rows);
    if (!rows)
        return mxc_err_nomem(p->err);
    float *w = rows, *x = rows + n;
    for (int64_t r = 0; !code && r < mxc_tensor_rows(&t); r++) {
        uint8_t *row = m.data + (size_t)r * n * width;
        mxc_tensor_row(&t, r, w);
        mxc_tensor_row(source, r, x);
        for (size_t i = 0; !code && i < n; i++)
            if (!put(t.storage, row + i * width, w[i] + cut->amount * x[i]) && isfinite(w[i]) &&
                isfinite(x[i]))
                code = too_large(p, &t);
    }
    mxc_mem_free(rows);
    return code;
}

/* The two weights of an interpolation; cosine: of the angle between the tensors, 2: none. */
static void mix_weights(float ratio, double cosine, float *of_a, float *of_b) {
    const double nearly = 1 - 1e-6;
    *of_a = 1 - ratio;
    *of_b = ratio;
    if (!(fabs(cosine) <= nearly))
        return;
    double angle = acos(cosine), sine = sin(angle);
    *of_a = (float)(sin((1 - (double)ratio) * angle) / sine);
    *of_b = (float)(sin((double)ratio * angle) / sine);
}

/* 2 where one of them is zero. */
static double cosine_of(const struct mxc_tensor *a, const struct mxc_tensor *b, float *x,
                        float *y) {
    double dot = 0, aa = 0, bb = 0;
    int64_t n = mxc_tensor_columns(a);
    for (int64_t r = 0; r < mxc_tensor_rows(a); r++) {
        mxc_tensor_row(a, r, x);
        mxc_tensor_row(b, r, y);
        for (int64_t i = 0; i < n; i++) {
            dot += (double)x[i] * (double)y[i];
            aa += (double)x[i] * (double)x[i];
            bb += (double)y[i] * (double)y[i];
        }
    }
    return aa > 0 && bb > 0 ? dot / (sqrt(aa) * sqrt(bb)) : 2;
}

enum mxc_code mxc_cut_mix(const struct mxc_patient *p, const struct mxc_cut *cut, size_t index,
                          const struct mxc_tensor *a, const struct mxc_tensor *b) {
    const struct mxc_tensor *before = mxc_weights_at(p->weights, index);
    struct mxc_cut_memory m;
    struct mxc_tensor t;
    float of_a, of_b;
    enum mxc_code code;
    if ((code = check_floats(p, before, a)) || (code = check_floats(p, before, b)))
        return code;
    if (a->storage != before->storage || b->storage != before->storage)
        return mxc_err_set(p->err, MXC_E_FORMAT,
                           "tensor %s: %s of the model, %s of source_a and %s of source_b",
                           before->name, mxc_storage_info(before->storage)->name,
                           mxc_storage_info(a->storage)->name, mxc_storage_info(b->storage)->name);
    if ((code = mxc_cut_own(p, index, &t, &m)))
        return code;
    size_t width = mxc_storage_info(t.storage)->block_bytes, n = (size_t)mxc_tensor_columns(&t);
    float *rows = mxc_mem_array(2 * n + 1, sizeof *rows);
    if (!rows)
        return mxc_err_nomem(p->err);
    float *x = rows, *y = rows + n;
    mix_weights(cut->amount, cut->slerp ? cosine_of(a, b, x, y) : 2, &of_a, &of_b);
    for (int64_t r = 0; !code && r < mxc_tensor_rows(&t); r++) {
        uint8_t *row = m.data + (size_t)r * n * width;
        mxc_tensor_row(a, r, x);
        mxc_tensor_row(b, r, y);
        for (size_t i = 0; !code && i < n; i++)
            if (!put(t.storage, row + i * width, of_a * x[i] + of_b * y[i]) && isfinite(x[i]) &&
                isfinite(y[i]))
                code = too_large(p, &t);
    }
    mxc_mem_free(rows);
    return code;
}
