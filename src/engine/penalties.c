/* What changes logits before anything is cut off: bias, the request's filter, repetition, frequency
 * and presence penalties, and DRY ("don't repeat yourself", p-e-w 2024): a token that would extend
 * a repeat of length n >= allowed loses multiplier * base^(n - allowed).
 * A prompt may hold tokens above the vocabulary (a picture's mark); they have no logit and count
 * for nothing. work->count is all zero before and after each function. */
#include "engine/sample.h"

#include <math.h>
#include <stdbool.h>

static int32_t window_of(int32_t last_n, int32_t n_history) {
    return last_n < 0 || last_n > n_history ? n_history : last_n;
}

static void repeat_penalties(const struct mxc_sampling *p, struct mxc_sample_work *work,
                             float *logits, const int32_t *history, int32_t n) {
    int32_t window = window_of(p->penalty_last_n, n);
    if (p->repetition_penalty == 1 && p->frequency_penalty == 0 && p->presence_penalty == 0)
        return;
    for (int32_t i = n - window; i < n; i++)
        if (history[i] < work->vocab)
            work->count[history[i]]++;
    for (int32_t i = n - window; i < n; i++) {
        int32_t id = history[i], count = id < work->vocab ? work->count[id] : 0;
        if (!count)
            continue;
        work->count[id] = 0;
        float x = logits[id];
        x = x > 0 ? x / p->repetition_penalty : x * p->repetition_penalty;
        logits[id] = x - (float)count * p->frequency_penalty - p->presence_penalty;
    }
}

static bool is_breaker(const struct mxc_sampler *s, int32_t id) {
    return s->breaker_bits && (s->breaker_bits[id / 64] >> id % 64 & 1);
}

/* Tokens after the last breaker in the window, or the window when it has none. */
static int32_t since_breaker(const struct mxc_sampler *s, const struct mxc_sample_work *work,
                             const int32_t *history, int32_t n, int32_t window) {
    for (int32_t after = 0; after < window; after++) {
        int32_t end = n - after; /* a breaker may end here */
        if (history[end - 1] < work->vocab && is_breaker(s, history[end - 1]))
            return after;
        for (int32_t b = 0; b < s->n_breakers; b++) {
            const struct mxc_token_list *list = &s->breakers[b];
            int32_t i = 0;
            if (list->n > window - after)
                continue;
            while (i < list->n && history[end - list->n + i] == list->ids[i])
                i++;
            if (i == list->n)
                return after;
        }
    }
    return window;
}

static void dry(const struct mxc_sampler *s, struct mxc_sample_work *work, float *logits,
                const int32_t *history, int32_t n) {
    const struct mxc_sampling *p = &s->params;
    int32_t m = window_of(p->dry_last_n, n), allowed = p->dry_allowed_length;
    if (p->dry_multiplier == 0 || m <= allowed)
        return;
    int32_t limit = since_breaker(s, work, history, n, m);
    if (limit < allowed || !limit)
        return;
    /* Z function of the reversed window r[j] = history[n - 1 - j]: z[j] is how many tokens that end
     * j before the last one equal the last ones; r[j - 1] followed them. */
    const int32_t *last = history + n - 1;
    int32_t *z = work->z, left = 0, right = 0;
    z[0] = 0;
    for (int32_t j = 1; j < m; j++) {
        int32_t length = j < right ? (right - j < z[j - left] ? right - j : z[j - left]) : 0;
        while (j + length < m && last[-length] == last[-(j + length)])
            length++;
        z[j] = length;
        if (j + length > right) {
            left = j;
            right = j + length;
        }
        int32_t repeat = length < limit ? length : limit, next = last[-(j - 1)];
        if (repeat >= allowed && next < work->vocab && repeat > work->count[next] &&
            !is_breaker(s, next))
            work->count[next] = repeat;
    }
    for (int32_t j = 1; j < m; j++) {
        int32_t next = last[-(j - 1)], repeat = next < work->vocab ? work->count[next] : 0;
        if (!repeat)
            continue;
        work->count[next] = 0;
        float cost = p->dry_multiplier * powf(p->dry_base, (float)(repeat - allowed));
        logits[next] -= cost < 1e30f ? cost : 1e30f;
    }
}

void mxc_sample_penalise(const struct mxc_sampler *sampler, struct mxc_sample_work *work,
                         float *logits, const int32_t *history, int32_t n_history) {
    const struct mxc_sampling *p = &sampler->params;
    for (int32_t i = 0; i < p->n_bias; i++)
        logits[p->bias[i].id] += p->bias[i].bias;
    if (p->filter.apply)
        p->filter.apply(p->filter.user, logits, work->vocab);
    repeat_penalties(p, work, logits, history, n_history);
    dry(sampler, work, logits, history, n_history);
}
