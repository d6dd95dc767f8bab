/* xoshiro256** and splitmix64, from their published definitions.
 * In: a seed. Out: 64-bit draws and uniform doubles. The state is the caller's, and only its own:
 * no global generator exists. */
#include "engine/rng.h"

static uint64_t rotl(uint64_t x, int k) {
    return x << k | x >> (64 - k);
}

void mxc_rng_seed(struct mxc_rng *rng, uint64_t seed) {
    for (int i = 0; i < 4; i++) {
        uint64_t z = seed += 0x9E3779B97F4A7C15u;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
        z = (z ^ z >> 27) * 0x94D049BB133111EBu;
        rng->s[i] = z ^ z >> 31;
    }
}

uint64_t mxc_rng_next(struct mxc_rng *rng) {
    uint64_t *s = rng->s, result = rotl(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return result;
}

double mxc_rng_uniform(struct mxc_rng *rng) {
    return (double)(mxc_rng_next(rng) >> 11) * 0x1p-53;
}
