/* Sampler: logits of one row to one token. The sampler belongs to a request, the work arrays to the
 * engine; sampling allocates nothing. Thread rules: the engine thread only.
 * Implemented in sample.c (the chain), penalties.c, select.c and logprobs.c. */
#ifndef MXC_ENGINE_SAMPLE_H
#define MXC_ENGINE_SAMPLE_H

#include "engine/rng.h"
#include "engine/sampling.h"

#include <stddef.h>

struct mxc_candidate {
    int32_t id;
    float logit, mass, key; /* mass: exp(logit - max); key: what a truncation sorts by, ascending */
};

enum { MXC_N_BUCKETS = 1024 };
struct mxc_sample_work {
    int32_t vocab, context;
    struct mxc_candidate *candidates; /* [vocab] */
    int32_t *count;                   /* [vocab], zero between calls */
    int32_t *z;                       /* [context] */
    double bucket_mass[MXC_N_BUCKETS];
};

struct mxc_sampler {
    struct mxc_sampling params; /* arrays owned */
    struct mxc_rng rng;
    float mirostat_mu;
    uint64_t *breaker_bits; /* [vocab / 64 rounded up], single-token DRY breakers; NULL: none */
    struct mxc_token_list *breakers; /* longer ones, of params.dry_breakers */
    int32_t n_breakers;
    void *memory; /* everything owned */
};

struct mxc_top_logprob {
    int32_t id;
    float logprob; /* natural log, of the raw logits' softmax; finite */
};

enum mxc_code mxc_sample_work_init(struct mxc_sample_work *work, int32_t vocab, int32_t context,
                                   struct mxc_err *err) MXC_MUST;
void mxc_sample_work_fini(struct mxc_sample_work *work);

/* Copies params, which must have passed mxc_sampling_check. */
enum mxc_code mxc_sampler_init(struct mxc_sampler *sampler, const struct mxc_sampling *params,
                               int32_t vocab, struct mxc_err *err) MXC_MUST;
void mxc_sampler_fini(struct mxc_sampler *sampler);
/* logits[vocab] are used up. history: prompt and answer so far, n <= work->context. A NaN or
 * infinite logit, or no token left, is MXC_E_BACKEND. */
enum mxc_code mxc_sampler_next(struct mxc_sampler *sampler, struct mxc_sample_work *work,
                               float *logits, const int32_t *history, int32_t n_history,
                               int32_t *id, struct mxc_err *err) MXC_MUST;

/* Pieces, for the sampler itself and tests. */

/* Bias, filter, penalties, DRY: in place. (penalties.c) */
void mxc_sample_penalise(const struct mxc_sampler *sampler, struct mxc_sample_work *work,
                         float *logits, const int32_t *history, int32_t n_history);
/* The highest logit; MXC_E_BACKEND for NaN, +infinity, or nothing but -infinity. (logprobs.c) */
enum mxc_code mxc_logits_max(const float *logits, int32_t vocab, float *max,
                             struct mxc_err *err) MXC_MUST;
/* log(sum(exp(logits))); MXC_E_BACKEND for NaN, +infinity, or nothing but -infinity. (logprobs.c)
 */
enum mxc_code mxc_logsumexp(const float *logits, int32_t vocab, double *lse,
                            struct mxc_err *err) MXC_MUST;
float mxc_logprob(const float *logits, int32_t id, double lse);
/* The n (<= vocab) most likely ids, most likely first, the lower id among equals. */
void mxc_top_logprobs(const float *logits, int32_t vocab, double lse, int32_t n,
                      struct mxc_top_logprob *top);
/* Candidates of the k highest logits, highest first, the lower id among equals. (select.c) */
int32_t mxc_select_top(const float *logits, int32_t vocab, int32_t k, struct mxc_candidate *out);
/* Keeps the candidates with the smallest keys (the lower id among equals) until their mass reaches
 * limit, but at least min_keep. No order is promised. Returns how many. (select.c) */
int32_t mxc_select_mass(struct mxc_sample_work *work, int32_t n, double limit, int32_t min_keep);
/* out[i] = exp((logits[i] - max) * scale). */
void mxc_exp_block(const float *logits, int32_t n, float max, float scale, float *out);
/* The sum of the above over all; blocks[b], unless NULL: of MXC_EXP_BLOCK logits each. */
enum { MXC_EXP_BLOCK = 4096 };
double mxc_exp_sum(const float *logits, int32_t vocab, float max, float scale, double *blocks);
/* exp(x) for x <= 0 to about 1e-7 relative; 0 below -87. Plain arithmetic: the same everywhere. */
float mxc_exp_nonpositive(float x);

#endif
