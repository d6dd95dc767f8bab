/* Log-probabilities of raw logits, and the exponential that the samplers share. Sums run over eight
 * interleaved partial sums that are added in a fixed order: fast, and the same bits every time.
 * In: logits of one row, finite or -infinity. Nothing here keeps state. */
#include "engine/sample.h"

#include "base/half.h"

#include <math.h>

enum { LANES = 8 };

/* 2^n * e^r with n = round(x / ln 2): r is split in two parts of ln 2 (Cody and Waite), e^r is its
 * Taylor polynomial of degree 6 on |r| <= 0.35, good to 2e-7. Without branches, so that loops over
 * it become vector code. */
static inline float exp_nonpositive(float x) {
    const int32_t limit = 0x42AE0000; /* 87, as bits: magnitudes compare like integers */
    int32_t magnitude = (int32_t)(mxc_f32_bits(x) & 0x7FFFFFFFu);
    uint32_t below = 0u - (uint32_t)(magnitude > limit);
    int32_t clamped = magnitude > limit ? limit : magnitude;
    float y = -mxc_f32_of_bits((uint32_t)clamped);
    float n = y * 1.44269504f + 12582912.0f - 12582912.0f; /* 1.5 * 2^23: rounds to an integer */
    float r = y - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    float scaled = p * mxc_f32_of_bits((uint32_t)((int32_t)n + 127) << 23);
    return mxc_f32_of_bits(mxc_f32_bits(scaled) & ~below);
}

float mxc_exp_nonpositive(float x) {
    return exp_nonpositive(x);
}

void mxc_exp_block(const float *logits, int32_t n, float max, float scale, float *out) {
    for (int32_t i = 0; i < n; i++)
        out[i] = exp_nonpositive((logits[i] - max) * scale);
}

double mxc_exp_sum(const float *logits, int32_t vocab, float max, float scale, double *blocks) {
    float masses[MXC_EXP_BLOCK];
    double total = 0;
    for (int32_t from = 0, b = 0; from < vocab; from += MXC_EXP_BLOCK, b++) {
        int32_t n = vocab - from < MXC_EXP_BLOCK ? vocab - from : MXC_EXP_BLOCK, i = 0;
        float lane[LANES] = {0};
        double sum = 0;
        mxc_exp_block(logits + from, n, max, scale, masses);
        for (; i + LANES <= n; i += LANES)
            for (int j = 0; j < LANES; j++)
                lane[j] += masses[i + j];
        for (; i < n; i++)
            lane[0] += masses[i];
        for (int j = 0; j < LANES; j++)
            sum += (double)lane[j];
        if (blocks)
            blocks[b] = sum;
        total += sum;
    }
    return total;
}

enum mxc_code mxc_logits_max(const float *logits, int32_t vocab, float *max, struct mxc_err *err) {
    float lane[LANES], m = -INFINITY;
    unsigned bad = 0;
    int32_t i = 0;
    for (int j = 0; j < LANES; j++)
        lane[j] = -INFINITY;
    for (; i + LANES <= vocab; i += LANES)
        for (int j = 0; j < LANES; j++) {
            lane[j] = logits[i + j] > lane[j] ? logits[i + j] : lane[j];
            bad |= !(logits[i + j] < INFINITY);
        }
    for (; i < vocab; i++) {
        lane[0] = logits[i] > lane[0] ? logits[i] : lane[0];
        bad |= !(logits[i] < INFINITY);
    }
    for (int j = 0; j < LANES; j++)
        m = lane[j] > m ? lane[j] : m;
    if (bad)
        return mxc_err_set(err, MXC_E_BACKEND, "a logit is not a number or infinite");
    if (m == -INFINITY)
        return mxc_err_set(err, MXC_E_BACKEND, "no token is possible: every logit is -infinity");
    *max = m;
    return MXC_OK;
}

enum mxc_code mxc_logsumexp(const float *logits, int32_t vocab, double *lse, struct mxc_err *err) {
    float max;
    enum mxc_code code = mxc_logits_max(logits, vocab, &max, err);
    if (!code)
        *lse = (double)max + log(mxc_exp_sum(logits, vocab, max, 1, NULL));
    return code;
}

float mxc_logprob(const float *logits, int32_t id, double lse) {
    double p = (double)logits[id] - lse;
    return p < -9999.0 ? -9999.0f : p > 0 ? 0.0f : (float)p;
}

void mxc_top_logprobs(const float *logits, int32_t vocab, double lse, int32_t n,
                      struct mxc_top_logprob *top) {
    int32_t used = 0;
    for (int32_t i = 0; i < vocab; i++) {
        /* insertion into a short sorted list; top[].logprob holds the logit meanwhile */
        if (used == n && !(n && logits[i] > top[n - 1].logprob))
            continue;
        int32_t at = used < n ? used++ : n - 1;
        for (; at > 0 && logits[i] > top[at - 1].logprob; at--)
            top[at] = top[at - 1];
        top[at] = (struct mxc_top_logprob){i, logits[i]};
    }
    for (int32_t i = 0; i < used; i++)
        top[i].logprob = mxc_logprob(logits, top[i].id, lse);
}
