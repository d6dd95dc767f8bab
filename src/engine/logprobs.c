/* Log-probabilities of raw logits, and the exponential that the samplers share. Sums run over eight
 * interleaved partial sums that are added in a fixed order: fast, and the same bits every time. */
#include "engine/sample.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { LANES = 8 };

/* 2^n * e^r with n = round(x / ln 2): r is split in two parts of ln 2 (Cody and Waite), e^r is its
 * Taylor polynomial of degree 6 on |r| <= 0.35, good to 2e-7. */
static inline float exp_nonpositive(float x) {
    float clamped = x < -87.0f ? -87.0f : x;
    float shifted = clamped * 1.44269504f + 12582912.0f; /* 1.5 * 2^23: rounds to an integer */
    float n = shifted - 12582912.0f;
    float r = clamped - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    int32_t bits = ((int32_t)n + 127) * (1 << 23);
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return x < -87.0f ? 0.0f : p * scale;
}

float mxc_exp_nonpositive(float x) {
    return exp_nonpositive(x);
}

enum mxc_code mxc_logsumexp(const float *logits, int32_t vocab, double *lse, struct mxc_err *err) {
    float max = -INFINITY;
    bool bad = false;
    for (int32_t i = 0; i < vocab; i++) {
        max = logits[i] > max ? logits[i] : max;
        bad |= !(logits[i] < INFINITY);
    }
    if (bad)
        return mxc_err_set(err, MXC_E_BACKEND, "a logit is not a number or infinite");
    if (max == -INFINITY)
        return mxc_err_set(err, MXC_E_BACKEND, "no token is possible: every logit is -infinity");
    double total = 0;
    for (int32_t i = 0; i < vocab;) {
        /* float inside blocks of 4096, double between them */
        int32_t end = vocab - i > 4096 ? i + 4096 : vocab;
        float sum[LANES] = {0};
        for (; i + LANES <= end; i += LANES)
            for (int j = 0; j < LANES; j++)
                sum[j] += exp_nonpositive(logits[i + j] - max);
        for (; i < end; i++)
            sum[0] += exp_nonpositive(logits[i] - max);
        for (int j = 0; j < LANES; j++)
            total += (double)sum[j];
    }
    *lse = (double)max + log(total);
    return MXC_OK;
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
