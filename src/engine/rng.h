/* Random numbers of one request: xoshiro256** (Blackman and Vigna 2018) seeded by splitmix64, so
 * that a seed gives the same draws on every machine, whoever else is being served.
 * Thread rules: a generator belongs to its request. */
#ifndef MXC_ENGINE_RNG_H
#define MXC_ENGINE_RNG_H

#include <stdint.h>

struct mxc_rng {
    uint64_t s[4];
};

void mxc_rng_seed(struct mxc_rng *rng, uint64_t seed);
uint64_t mxc_rng_next(struct mxc_rng *rng);
/* Uniform in [0, 1), a multiple of 2^-53. */
double mxc_rng_uniform(struct mxc_rng *rng);

#endif
