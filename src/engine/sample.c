/* The sampler chain. Every truncation works on the candidates the one before left over, with
 * probabilities normalised over them; the temperature comes last. Each call draws a fixed number of
 * random numbers (one, and one more for XTC), so a request's stream depends on its seed alone. */
#include "engine/sample.h"

#include "base/mem.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

void mxc_sampling_init(struct mxc_sampling *sampling) {
    *sampling = (struct mxc_sampling){.temperature = 1,
                                      .dynatemp_exponent = 1,
                                      .top_p = 1,
                                      .typical_p = 1,
                                      .xtc_threshold = 0.1f,
                                      .min_keep = 1,
                                      .repetition_penalty = 1,
                                      .penalty_last_n = 64,
                                      .dry_base = 1.75f,
                                      .dry_allowed_length = 2,
                                      .dry_last_n = -1,
                                      .mirostat_tau = 5,
                                      .mirostat_eta = 0.1f};
}

enum mxc_code mxc_sampling_check(const struct mxc_sampling *s, int32_t vocab, struct mxc_err *err) {
    const struct {
        const char *name;
        double value, min, max;
    } ranges[] = {{"temperature", s->temperature, -1e9, 1e9},
                  {"dynatemp_range", s->dynatemp_range, 0, 1e9},
                  {"dynatemp_exponent", s->dynatemp_exponent, 0, 1e9},
                  {"top_p", s->top_p, 0, 1},
                  {"min_p", s->min_p, 0, 1},
                  {"typical_p", s->typical_p, 0, 1},
                  {"xtc_probability", s->xtc_probability, 0, 1},
                  {"xtc_threshold", s->xtc_threshold, 0, 1},
                  {"min_keep", s->min_keep, 0, 1e9},
                  {"repetition_penalty", s->repetition_penalty, 1e-6, 1e6},
                  {"frequency_penalty", s->frequency_penalty, -1e6, 1e6},
                  {"presence_penalty", s->presence_penalty, -1e6, 1e6},
                  {"penalty_last_n", s->penalty_last_n, -1, 1e9},
                  {"dry_multiplier", s->dry_multiplier, 0, 1e6},
                  {"dry_base", s->dry_base, 1, 1e6},
                  {"dry_allowed_length", s->dry_allowed_length, 1, 1e9},
                  {"dry_last_n", s->dry_last_n, -1, 1e9},
                  {"mirostat", s->mirostat, 0, 2},
                  {"mirostat_tau", s->mirostat_tau, 0, 1e6},
                  {"mirostat_eta", s->mirostat_eta, 0, 1e6},
                  {"number of logit biases", s->n_bias, 0, MXC_MAX_BIAS},
                  {"number of DRY breakers", s->n_dry_breakers, 0, MXC_MAX_DRY_BREAKERS}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (!(ranges[i].value >= ranges[i].min && ranges[i].value <= ranges[i].max))
            return mxc_err_set(err, MXC_E_ARG, "%s: %g is not in [%g, %g]", ranges[i].name,
                               ranges[i].value, ranges[i].min, ranges[i].max);
    for (int32_t i = 0; i < s->n_bias; i++) {
        if (s->bias[i].id < 0 || s->bias[i].id >= vocab)
            return mxc_err_set(err, MXC_E_ARG,
                               "logit_bias: token %d is not in the vocabulary of %d", s->bias[i].id,
                               vocab);
        if (!(s->bias[i].bias < INFINITY))
            return mxc_err_set(err, MXC_E_ARG, "logit_bias: the bias of token %d is not a number",
                               s->bias[i].id);
    }
    for (int32_t i = 0; i < s->n_dry_breakers; i++) {
        const struct mxc_token_list *list = &s->dry_breakers[i];
        if (list->n < 1 || list->n > 64)
            return mxc_err_set(err, MXC_E_ARG, "DRY breaker %d has %d tokens", i, list->n);
        for (int32_t j = 0; j < list->n; j++)
            if (list->ids[j] < 0 || list->ids[j] >= vocab)
                return mxc_err_set(err, MXC_E_ARG,
                                   "DRY breaker %d: token %d is not in the vocabulary of %d", i,
                                   list->ids[j], vocab);
    }
    return MXC_OK;
}

enum mxc_code mxc_sample_work_init(struct mxc_sample_work *work, int32_t vocab, int32_t context,
                                   struct mxc_err *err) {
    struct mxc_sample_work w = {.vocab = vocab, .context = context};
    if (vocab > MXC_N_BUCKETS * MXC_EXP_BLOCK)
        return mxc_err_set(err, MXC_E_LIMIT, "a vocabulary of %d; the limit is %d", vocab,
                           MXC_N_BUCKETS * MXC_EXP_BLOCK);
    w.candidates = mxc_mem_array((size_t)vocab, sizeof *w.candidates);
    w.count = mxc_mem_zalloc((size_t)vocab, sizeof *w.count);
    w.z = mxc_mem_array((size_t)context, sizeof *w.z);
    if (!w.candidates || !w.count || !w.z) {
        mxc_sample_work_fini(&w);
        return mxc_err_nomem(err);
    }
    *work = w;
    return MXC_OK;
}

void mxc_sample_work_fini(struct mxc_sample_work *work) {
    mxc_mem_free(work->candidates);
    mxc_mem_free(work->count);
    mxc_mem_free(work->z);
    *work = (struct mxc_sample_work){0};
}

enum mxc_code mxc_sampler_init(struct mxc_sampler *sampler, const struct mxc_sampling *params,
                               int32_t vocab, struct mxc_err *err) {
    struct mxc_sampler s = {.params = *params, .mirostat_mu = 2 * params->mirostat_tau};
    size_t n_bias = (size_t)params->n_bias, n_ids = 0, n_lists = 0, n_words = 0;
    mxc_rng_seed(&s.rng, params->seed);
    for (int32_t i = 0; i < params->n_dry_breakers; i++) {
        if (params->dry_breakers[i].n == 1) {
            n_words = ((size_t)vocab + 63) / 64;
        } else {
            n_lists++;
            n_ids += (size_t)params->dry_breakers[i].n;
        }
    }
    /* all counts are bounded by mxc_sampling_check; 8-byte parts first */
    size_t bytes = n_words * 8 + n_lists * sizeof *s.breakers + n_bias * sizeof *params->bias +
                   n_ids * sizeof(int32_t);
    s.memory = mxc_mem_zalloc(1, bytes);
    if (!s.memory)
        return mxc_err_nomem(err);
    uint64_t *bits = s.memory;
    s.breakers = (struct mxc_token_list *)(bits + n_words);
    struct mxc_logit_bias *bias = (struct mxc_logit_bias *)(s.breakers + n_lists);
    int32_t *ids = (int32_t *)(bias + n_bias);
    s.breaker_bits = n_words ? bits : NULL;
    for (int32_t i = 0; i < params->n_dry_breakers; i++) {
        const struct mxc_token_list *list = &params->dry_breakers[i];
        if (list->n == 1) {
            bits[list->ids[0] / 64] |= (uint64_t)1 << list->ids[0] % 64;
            continue;
        }
        memcpy(ids, list->ids, (size_t)list->n * sizeof *ids);
        s.breakers[s.n_breakers++] = (struct mxc_token_list){ids, list->n};
        ids += list->n;
    }
    if (n_bias)
        memcpy(bias, params->bias, n_bias * sizeof *bias);
    s.params.bias = bias;
    s.params.dry_breakers = NULL;
    s.params.n_dry_breakers = 0;
    *sampler = s;
    return MXC_OK;
}

void mxc_sampler_fini(struct mxc_sampler *sampler) {
    mxc_mem_free(sampler->memory);
    *sampler = (struct mxc_sampler){0};
}

/* The highest logit; the lowest id among equals. */
static int32_t argmax(const float *logits, int32_t vocab, float max) {
    int32_t i = 0;
    while (i < vocab - 1 && logits[i] != max)
        i++;
    return i;
}

static double weigh(struct mxc_candidate *c, int32_t n, float max, float inverse_temperature) {
    double total = 0;
    for (int32_t i = 0; i < n; i++) {
        c[i].mass = mxc_exp_nonpositive((c[i].logit - max) * inverse_temperature);
        total += (double)c[i].mass;
    }
    return total;
}

static double sum(const struct mxc_candidate *c, int32_t n) {
    double total = 0;
    for (int32_t i = 0; i < n; i++)
        total += (double)c[i].mass;
    return total;
}

/* One draw over masses that add up to total. Returns the index. */
static int32_t draw(struct mxc_rng *rng, const struct mxc_candidate *c, int32_t n, double total) {
    double at = mxc_rng_uniform(rng) * total, seen = 0;
    int32_t last = 0;
    for (int32_t i = 0; i < n; i++) {
        if (c[i].mass <= 0)
            continue;
        last = i;
        seen += (double)c[i].mass;
        if (seen > at)
            break;
    }
    return last;
}

static int32_t all_candidates(struct mxc_candidate *c, const float *logits, int32_t vocab,
                              float floor) {
    int32_t n = 0;
    for (int32_t i = 0; i < vocab; i++)
        if (logits[i] >= floor && logits[i] > -INFINITY)
            c[n++] = (struct mxc_candidate){.id = i, .logit = logits[i]};
    return n;
}

static void key_by_logit(struct mxc_candidate *c, int32_t n, float max) {
    for (int32_t i = 0; i < n; i++)
        c[i].key = max - c[i].logit;
}

static int32_t keep_top_p(struct mxc_sample_work *work, int32_t n, float max, double p,
                          int32_t min_keep) {
    key_by_logit(work->candidates, n, max);
    return mxc_select_mass(work, n, p * sum(work->candidates, n), min_keep);
}

static int32_t keep_min_p(struct mxc_sample_work *work, int32_t n, float max, float p,
                          int32_t min_keep) {
    struct mxc_candidate *c = work->candidates;
    float floor = max + logf(p);
    int32_t kept = 0;
    for (int32_t i = 0; i < n; i++)
        kept += c[i].logit >= floor;
    if (kept < min_keep) {
        key_by_logit(c, n, max);
        return mxc_select_mass(work, n, 0, min_keep < n ? min_keep : n);
    }
    kept = 0;
    for (int32_t i = 0; i < n; i++)
        if (c[i].logit >= floor)
            c[kept++] = c[i];
    return kept;
}

static double entropy(const struct mxc_candidate *c, int32_t n, float max, double total) {
    double h = 0, log_total = log(total);
    for (int32_t i = 0; i < n; i++)
        if (c[i].mass > 0)
            h -= (double)c[i].mass / total * ((double)(c[i].logit - max) - log_total);
    return h;
}

/* Locally typical sampling (Meister et al. 2022): surprise closest to the entropy first. */
static int32_t keep_typical(struct mxc_sample_work *work, int32_t n, float max, double p,
                            int32_t min_keep) {
    struct mxc_candidate *c = work->candidates;
    double total = sum(c, n), h = entropy(c, n, max, total), log_total = log(total);
    for (int32_t i = 0; i < n; i++)
        c[i].key = (float)fabs(log_total - (double)(c[i].logit - max) - h);
    return mxc_select_mass(work, n, p * total, min_keep);
}

/* XTC (p-e-w 2024): of the candidates above the threshold only the least likely stays. */
static int32_t exclude_top(struct mxc_sampler *s, struct mxc_candidate *c, int32_t n,
                           int32_t min_keep) {
    double floor = (double)s->params.xtc_threshold * sum(c, n);
    int32_t above = 0, least = -1, kept = 0;
    if (mxc_rng_uniform(&s->rng) >= (double)s->params.xtc_probability)
        return n;
    for (int32_t i = 0; i < n; i++) {
        if ((double)c[i].mass < floor)
            continue;
        above++;
        if (least < 0 || c[i].logit < c[least].logit ||
            (c[i].logit == c[least].logit && c[i].id > c[least].id))
            least = i;
    }
    if (above < 2 || n - above + 1 < min_keep)
        return n;
    for (int32_t i = 0; i < n; i++)
        if ((double)c[i].mass < floor || i == least)
            c[kept++] = c[i];
    return kept;
}

static float highest(const struct mxc_candidate *c, int32_t n) {
    float max = c[0].logit;
    for (int32_t i = 1; i < n; i++)
        max = c[i].logit > max ? c[i].logit : max;
    return max;
}

/* Dynamic temperature (kalomaze 2023): from T - range to T + range with the entropy's share of its
 * maximum, log n, to the power of the exponent. */
static float temperature_of(const struct mxc_sampling *p, const struct mxc_candidate *c, int32_t n,
                            float max) {
    if (p->dynatemp_range == 0 || n < 2)
        return p->temperature;
    double low = fmax(0, (double)p->temperature - (double)p->dynatemp_range);
    double high = (double)p->temperature + (double)p->dynatemp_range;
    double share = entropy(c, n, max, sum(c, n)) / log((double)n);
    return (float)(low + (high - low) * pow(fmax(share, 0), (double)p->dynatemp_exponent));
}

static int32_t pick(struct mxc_sampler *s, struct mxc_candidate *c, int32_t n) {
    float max = highest(c, n), t = temperature_of(&s->params, c, n, max);
    if (t < 1e-6f)
        t = 1e-6f;
    double total = weigh(c, n, max, 1 / t);
    return c[draw(&s->rng, c, n, total)].id;
}

/* Zipf exponent of the head of a distribution (Basu et al. 2021, eq. 8) from sorted candidates. */
static double zipf(const struct mxc_candidate *c, int32_t n) {
    double top = 0, bottom = 0;
    for (int32_t i = 0; i + 1 < n; i++) {
        double t = log((double)(i + 2) / (double)(i + 1));
        top += t * (double)(c[i].logit - c[i + 1].logit);
        bottom += t * t;
    }
    return bottom > 0 ? top / bottom : 1;
}

static int32_t keep_mirostat1(struct mxc_sampler *s, struct mxc_sample_work *work,
                              const float *logits, float inverse_temperature) {
    enum { HEAD = 100 };
    int32_t n = mxc_select_top(logits, work->vocab, HEAD, work->candidates);
    while (n > 1 && work->candidates[n - 1].logit == -INFINITY)
        n--;
    double exponent = zipf(work->candidates, n) * (double)inverse_temperature;
    double epsilon = exponent - 1, vocab = (double)work->vocab, k = vocab;
    if (fabs(epsilon) > 1e-9 && exponent > 0)
        k = pow(epsilon * pow(2, (double)s->mirostat_mu) / (1 - pow(vocab, -epsilon)),
                1 / exponent);
    k = k >= 1 ? fmin(k, vocab) : 1;
    n = mxc_select_top(logits, work->vocab, (int32_t)k, work->candidates);
    while (n > 1 && work->candidates[n - 1].logit == -INFINITY)
        n--;
    return n;
}

/* Mirostat (Basu et al. 2021), both versions: steers the surprise of what it picks towards tau. */
static int32_t mirostat(struct mxc_sampler *s, struct mxc_sample_work *work, const float *logits,
                        float max) {
    const struct mxc_sampling *p = &s->params;
    struct mxc_candidate *c = work->candidates;
    float inverse = 1 / (p->temperature > 1e-6f ? p->temperature : 1e-6f);
    int32_t n;
    if (p->mirostat == 1) {
        n = keep_mirostat1(s, work, logits, inverse);
    } else {
        n = all_candidates(c, logits, work->vocab, -INFINITY);
        double total = weigh(c, n, max, inverse), bits = log2(total);
        int32_t kept = 0;
        for (int32_t i = 0; i < n; i++) {
            double surprise = bits - (double)((c[i].logit - max) * inverse) * 1.4426950408889634;
            if (surprise <= (double)s->mirostat_mu || c[i].logit == max)
                c[kept++] = c[i];
        }
        n = kept;
    }
    double total = weigh(c, n, max, inverse);
    int32_t i = draw(&s->rng, c, n, total);
    double surprise = log2(total / (double)c[i].mass);
    s->mirostat_mu -= p->mirostat_eta * ((float)surprise - p->mirostat_tau);
    return c[i].id;
}

/* One draw over the whole vocabulary: the block first, then the token in it. */
static int32_t draw_all(struct mxc_sampler *s, struct mxc_sample_work *work, const float *logits,
                        float max) {
    float masses[MXC_EXP_BLOCK];
    float t = s->params.temperature < 1e-6f ? 1e-6f : s->params.temperature;
    double *blocks = work->bucket_mass;
    double at = mxc_exp_sum(logits, work->vocab, max, 1 / t, blocks);
    int32_t n_blocks = (work->vocab + MXC_EXP_BLOCK - 1) / MXC_EXP_BLOCK, b = 0, last = 0;
    at *= mxc_rng_uniform(&s->rng);
    while (b + 1 < n_blocks && at >= blocks[b])
        at -= blocks[b++];
    while (b && blocks[b] <= 0) /* rounding led behind the last token that can be */
        at = blocks[--b];
    int32_t from = b * MXC_EXP_BLOCK;
    int32_t n = work->vocab - from < MXC_EXP_BLOCK ? work->vocab - from : MXC_EXP_BLOCK;
    mxc_exp_block(logits + from, n, max, 1 / t, masses);
    double seen = 0;
    for (int32_t i = 0; i < n && seen <= at; i++) {
        if (masses[i] <= 0)
            continue;
        last = from + i;
        seen += (double)masses[i];
    }
    return last;
}

/* Candidates for top-p alone: those near the highest when their mass is enough, which it mostly is,
 * else all. */
static int32_t nucleus(struct mxc_sample_work *work, const float *logits, float max, double p) {
    struct mxc_candidate *c = work->candidates;
    double limit = p * mxc_exp_sum(logits, work->vocab, max, 1, NULL);
    int32_t n = all_candidates(c, logits, work->vocab, max - 12);
    if (weigh(c, n, max, 1) < limit) {
        n = all_candidates(c, logits, work->vocab, -INFINITY);
        (void)weigh(c, n, max, 1);
    }
    key_by_logit(c, n, max);
    return mxc_select_mass(work, n, limit, 1);
}

static int32_t chain(struct mxc_sampler *s, struct mxc_sample_work *work, const float *logits,
                     float max) {
    const struct mxc_sampling *p = &s->params;
    struct mxc_candidate *c = work->candidates;
    int32_t min_keep = p->min_keep > 1 ? p->min_keep : 1, n;
    bool cut_k = p->top_k > 0 && p->top_k < work->vocab;
    bool nothing = !cut_k && p->top_p >= 1 && p->min_p <= 0 && p->typical_p >= 1;
    bool xtc = p->xtc_probability > 0 && p->xtc_threshold <= 0.5f, top_p = p->top_p < 1;
    if (nothing && !xtc && p->dynatemp_range == 0)
        return draw_all(s, work, logits, max);
    if (cut_k) {
        n = mxc_select_top(logits, work->vocab, p->top_k > min_keep ? p->top_k : min_keep, c);
        while (n > 1 && c[n - 1].logit == -INFINITY)
            n--;
    } else if (top_p && min_keep == 1) {
        n = nucleus(work, logits, max, (double)p->top_p);
        top_p = false;
    } else {
        bool floor = p->min_p > 0 && !top_p && min_keep == 1;
        n = all_candidates(c, logits, work->vocab, floor ? max + logf(p->min_p) : -INFINITY);
    }
    weigh(c, n, max, 1);
    if (top_p)
        n = keep_top_p(work, n, max, (double)p->top_p, min_keep < n ? min_keep : n);
    if (p->min_p > 0)
        n = keep_min_p(work, n, max, p->min_p, min_keep);
    if (p->typical_p < 1)
        n = keep_typical(work, n, max, (double)p->typical_p, min_keep < n ? min_keep : n);
    if (xtc)
        n = exclude_top(s, c, n, min_keep);
    return pick(s, c, n);
}

enum mxc_code mxc_sampler_next(struct mxc_sampler *sampler, struct mxc_sample_work *work,
                               float *logits, const int32_t *history, int32_t n_history,
                               int32_t *id, struct mxc_err *err) {
    const struct mxc_sampling *p = &sampler->params;
    float max;
    mxc_sample_penalise(sampler, work, logits, history, n_history);
    enum mxc_code code = mxc_logits_max(logits, work->vocab, &max, err);
    if (code)
        return code;
    if (p->temperature <= 0)
        *id = argmax(logits, work->vocab, max);
    else
        *id =
            p->mirostat ? mirostat(sampler, work, logits, max) : chain(sampler, work, logits, max);
    if (p->filter.accept)
        p->filter.accept(p->filter.user, *id);
    return MXC_OK;
}
