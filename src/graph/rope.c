/* RoPE frequencies: one inverse frequency per rotated pair and the factor on cos and sin, for every
 * scaling of rope.h. In comes a checked struct mxc_rope and the sequence's length at admission, out
 * go floats. The reference computes in single precision and rounds after every operation; the same
 * roundings are made here (powers in double, rounded once), so that positions in the thousands
 * still see the same angles. */
#include "graph/private.h"

#include <math.h>

static const double two_pi = 6.283185307179586476925286766559;

static bool positive(double x) {
    return x > 0 && isfinite(x);
}

enum mxc_code mxc_rope_check(const struct mxc_rope *r, struct mxc_err *err) {
    if (r->dims < 2 || r->dims % 2 || r->dims > 2 * MXC_MAX_ROPE_HALF)
        return mxc_err_set(err, MXC_E_LIMIT,
                           "rope: %d rotated dimensions: not even or not in [2, %d]", r->dims,
                           2 * MXC_MAX_ROPE_HALF);
    if (!positive(r->theta))
        return mxc_err_set(err, MXC_E_FORMAT, "rope: theta %g is not a positive number", r->theta);
    if (r->scaling < MXC_ROPE_NONE || r->scaling > MXC_ROPE_LONGROPE)
        return mxc_err_set(err, MXC_E_INTERNAL, "rope: scaling %d", (int)r->scaling);
    int pairs = 0;
    for (int i = 0; i < MXC_MAX_ROPE_AXES; i++) {
        if (r->sections[i] < 0 || r->sections[i] > r->dims / 2)
            return mxc_err_set(err, MXC_E_FORMAT, "rope: section %d has %d pairs", i,
                               r->sections[i]);
        pairs += r->sections[i];
    }
    if (pairs && pairs != r->dims / 2)
        return mxc_err_set(err, MXC_E_FORMAT, "rope: sections hold %d pairs, not %d", pairs,
                           r->dims / 2);
    if (r->restart && (!pairs || r->sections_interleaved || r->scaling != MXC_ROPE_NONE))
        return mxc_err_set(err, MXC_E_FORMAT,
                           "rope: only plain sections that stand apart can begin anew");
    for (int i = 0; i < r->dims / 2; i++) {
        if (r->freq_factor[i] != 0 && !positive((double)r->freq_factor[i]))
            return mxc_err_set(err, MXC_E_FORMAT, "rope: frequency factor %d is not positive", i);
        if (r->scaling == MXC_ROPE_LONGROPE &&
            (!positive((double)r->short_factor[i]) || !positive((double)r->long_factor[i])))
            return mxc_err_set(err, MXC_E_FORMAT, "rope: short or long factor %d is not positive",
                               i);
    }
    if (r->scaling == MXC_ROPE_NONE)
        return MXC_OK;
    if (!positive(r->factor))
        return mxc_err_set(err, MXC_E_FORMAT, "rope: factor %g is not a positive number",
                           r->factor);
    if (r->scaling == MXC_ROPE_DYNAMIC) {
        if (!positive(r->max_position) || r->dims < 4)
            return mxc_err_set(err, MXC_E_FORMAT,
                               "rope: dynamic needs a known context and 4 or more dimensions");
        return MXC_OK;
    }
    if (r->scaling != MXC_ROPE_LINEAR && !positive(r->original_max))
        return mxc_err_set(err, MXC_E_FORMAT, "rope: original context %g is not a positive number",
                           r->original_max);
    if (r->scaling == MXC_ROPE_LLAMA3 &&
        (!positive(r->low_freq_factor) || !positive(r->high_freq_factor) ||
         r->high_freq_factor <= r->low_freq_factor))
        return mxc_err_set(err, MXC_E_FORMAT, "rope: frequency factors %g and %g are out of order",
                           r->low_freq_factor, r->high_freq_factor);
    if (r->scaling == MXC_ROPE_YARN &&
        (!positive(r->beta_fast) || !positive(r->beta_slow) || r->theta == 1 ||
         !isfinite(r->mscale) || !isfinite(r->mscale_all_dim)))
        return mxc_err_set(err, MXC_E_FORMAT,
                           "rope: yarn's betas, theta or mscale are out of range");
    if (r->scaling == MXC_ROPE_LONGROPE && r->attention_factor <= 0 && r->factor > 1 &&
        r->original_max <= 1)
        return mxc_err_set(err, MXC_E_FORMAT, "rope: longrope's original context %g is too short",
                           r->original_max);
    return MXC_OK;
}

/* theta^(2i / dims) */
static float power(double theta, int i, int dims) {
    float exponent = (float)(2 * i) / (float)dims;
    return (float)pow((double)(float)theta, (double)exponent);
}

/* Every section as if it were alone. */
static void restarted(const struct mxc_rope *r, float *inv_freq) {
    for (int axis = 0; axis < MXC_MAX_ROPE_AXES; axis++)
        for (int i = 0; i < r->sections[axis]; i++)
            *inv_freq++ = 1.0f / power(r->theta, i, 2 * r->sections[axis]);
}

static void plain(const struct mxc_rope *r, double theta, float *inv_freq) {
    for (int i = 0; i < r->dims / 2; i++)
        inv_freq[i] = 1.0f / power(theta, i, r->dims);
}

static void dynamic(const struct mxc_rope *r, int64_t length, float *inv_freq) {
    double n = (double)length > r->max_position ? (double)length : r->max_position;
    double grow = r->factor * n / r->max_position - (r->factor - 1);
    plain(r, r->theta * pow(grow, (double)r->dims / (r->dims - 2)), inv_freq);
}

static void llama3(const struct mxc_rope *r, float *inv_freq) {
    float low_wave = (float)(r->original_max / r->low_freq_factor);
    float high_wave = (float)(r->original_max / r->high_freq_factor);
    float factor = (float)r->factor, low = (float)r->low_freq_factor;
    float span = (float)(r->high_freq_factor - r->low_freq_factor);
    plain(r, r->theta, inv_freq);
    for (int i = 0; i < r->dims / 2; i++) {
        float f = inv_freq[i], wave = 1.0f / f * (float)two_pi;
        if (wave > low_wave) {
            inv_freq[i] = f / factor;
        } else if (wave >= high_wave) {
            float smooth = (1.0f / wave * (float)r->original_max - low) / span;
            inv_freq[i] = (1.0f - smooth) * f / factor + smooth * f;
        }
    }
}

/* The dimension whose wave turns `rotations` times within the original context. */
static double correction_dim(const struct mxc_rope *r, double rotations) {
    return r->dims * log(r->original_max / (rotations * two_pi)) / (2 * log(r->theta));
}

static void yarn(const struct mxc_rope *r, float *inv_freq) {
    double low = correction_dim(r, r->beta_fast), high = correction_dim(r, r->beta_slow);
    if (r->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = low > 0 ? low : 0;
    high = high < r->dims - 1 ? high : r->dims - 1;
    if (low == high)
        high += 0.001;
    for (int i = 0; i < r->dims / 2; i++) {
        float ramp = ((float)i - (float)low) / (float)(high - low);
        ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
        float p = power(r->theta, i, r->dims), keep = 1.0f - ramp;
        float stretched = 1.0f / ((float)r->factor * p);
        inv_freq[i] = stretched * (1.0f - keep) + 1.0f / p * keep;
    }
}

static double yarn_mscale(double factor, double mscale) {
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

static double attention_factor(const struct mxc_rope *r) {
    if (r->scaling != MXC_ROPE_YARN && r->scaling != MXC_ROPE_LONGROPE)
        return 1;
    if (r->attention_factor > 0)
        return r->attention_factor;
    if (r->scaling == MXC_ROPE_LONGROPE)
        return r->factor <= 1 ? 1 : sqrt(1 + log(r->factor) / log(r->original_max));
    if (r->mscale != 0 && r->mscale_all_dim != 0)
        return yarn_mscale(r->factor, r->mscale) / yarn_mscale(r->factor, r->mscale_all_dim);
    return yarn_mscale(r->factor, 1);
}

static void longrope(const struct mxc_rope *r, int64_t length, float *inv_freq) {
    const float *factors = (double)length > r->original_max ? r->long_factor : r->short_factor;
    for (int i = 0; i < r->dims / 2; i++)
        inv_freq[i] = 1.0f / (factors[i] * power(r->theta, i, r->dims));
}

void mxc_rope_frequencies(const struct mxc_rope *r, int64_t length, float *inv_freq,
                          float *factor) {
    switch (r->scaling) {
    case MXC_ROPE_NONE:
        if (r->restart)
            restarted(r, inv_freq);
        else
            plain(r, r->theta, inv_freq);
        break;
    case MXC_ROPE_LINEAR:
        plain(r, r->theta, inv_freq);
        for (int i = 0; i < r->dims / 2; i++)
            inv_freq[i] /= (float)r->factor;
        break;
    case MXC_ROPE_DYNAMIC:
        dynamic(r, length, inv_freq);
        break;
    case MXC_ROPE_YARN:
        yarn(r, inv_freq);
        break;
    case MXC_ROPE_LLAMA3:
        llama3(r, inv_freq);
        break;
    case MXC_ROPE_LONGROPE:
        longrope(r, length, inv_freq);
        break;
    }
    for (int i = 0; i < r->dims / 2; i++) {
        if (r->freq_factor[i] != 0)
            inv_freq[i] /= r->freq_factor[i];
    }
    *factor = (float)attention_factor(r);
}

bool mxc_rope_length_dependent(const struct mxc_rope *r) {
    return r->scaling == MXC_ROPE_DYNAMIC || r->scaling == MXC_ROPE_LONGROPE;
}

void mxc_rope_axes(const struct mxc_rope *r, uint8_t *axis) {
    int half = r->dims / 2, next = 0;
    for (int i = 0; i < half; i++)
        axis[i] = 0;
    for (int a = 0; a < MXC_MAX_ROPE_AXES; a++)
        for (int i = 0; i < r->sections[a] && next < half; i++)
            axis[next++] = (uint8_t)a;
    for (int i = 0; r->sections_interleaved && i < half; i++) {
        int a = i % MXC_MAX_ROPE_AXES;
        axis[i] = (uint8_t)(i < MXC_MAX_ROPE_AXES * r->sections[a] ? a : 0);
    }
}
