/* Sampling parameters of a request: plain values, borrowed arrays. The order in which they act:
 * bias and filter; repetition, frequency and presence penalties; DRY; top-k; top-p; min-p; typical;
 * XTC (all on the untempered distribution); temperature. Mirostat replaces top-k to XTC. */
#ifndef MXC_ENGINE_SAMPLING_H
#define MXC_ENGINE_SAMPLING_H

#include "base/err.h"

#include <stdint.h>

enum { MXC_MAX_BIAS = 65536, MXC_MAX_DRY_BREAKERS = 65536 };

struct mxc_logit_bias {
    int32_t id;
    float bias; /* added to the logit; -INFINITY bans the token */
};

struct mxc_token_list {
    const int32_t *ids;
    int32_t n;
};

/* Masks logits (grammars, forced tokens). Called on the engine thread. */
struct mxc_logit_filter {
    /* May change logits[vocab]; -INFINITY bans. NULL: no filter. */
    void (*apply)(void *user, float *logits, int32_t vocab);
    /* The token that was then sampled. May be NULL. */
    void (*accept)(void *user, int32_t id);
    void *user;
};

struct mxc_sampling {
    uint64_t seed;
    float temperature; /* <= 0: greedy, the highest logit, the lowest id among equals */
    float dynatemp_range,
        dynatemp_exponent;                /* range 0: off; else temperature +- range by entropy */
    int32_t top_k;                        /* <= 0: off */
    float top_p, min_p, typical_p;        /* 1, 0, 1: off */
    float xtc_probability, xtc_threshold; /* probability 0 or threshold > 0.5: off */
    int32_t min_keep;                     /* truncation leaves at least this many */
    float repetition_penalty;             /* 1: off */
    float frequency_penalty, presence_penalty; /* 0: off */
    int32_t penalty_last_n; /* last tokens of prompt and answer looked at; -1: all, 0: off */
    float dry_multiplier;   /* 0: off */
    float dry_base;
    int32_t dry_allowed_length, dry_last_n; /* last_n as above */
    const struct mxc_token_list *dry_breakers;
    int32_t n_dry_breakers;
    int32_t mirostat; /* 0: off, 1, 2 */
    float mirostat_tau, mirostat_eta;
    const struct mxc_logit_bias *bias;
    int32_t n_bias;
    struct mxc_logit_filter filter;
};

/* Neutral values: temperature 1, everything else off; the numbers of switched-off parts are the
 * customary ones (DRY base 1.75, allowed length 2, mirostat tau 5, eta 0.1, last_n 64). */
void mxc_sampling_init(struct mxc_sampling *sampling);
/* MXC_E_ARG that names the first value out of range (NaN included); ids must be below vocab. */
enum mxc_code mxc_sampling_check(const struct mxc_sampling *sampling, int32_t vocab,
                                 struct mxc_err *err) MXC_MUST;

#endif
