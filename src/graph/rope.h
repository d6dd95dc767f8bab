/* RoPE: rotary position embedding, its scalings, and the frequencies for a prompt length.
 * Formulas: Su et al. 2021 (RoFormer); linear: Chen et al. 2023 (Position Interpolation); dynamic:
 * NTK-aware scaling; yarn: Peng et al. 2023; llama3 and longrope: as Hugging Face's
 * modeling_rope_utils computes them. */
#ifndef MXC_GRAPH_ROPE_H
#define MXC_GRAPH_ROPE_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum { MXC_MAX_ROPE_HALF = 256, MXC_MAX_ROPE_AXES = 3 };

enum mxc_rope_scaling {
    MXC_ROPE_NONE,
    MXC_ROPE_LINEAR,
    MXC_ROPE_DYNAMIC,
    MXC_ROPE_YARN,
    MXC_ROPE_LLAMA3,
    MXC_ROPE_LONGROPE
};

struct mxc_rope {
    int dims;         /* rotated dimensions of a head, even; the rest passes through */
    bool interleaved; /* pairs (0,1)(2,3)...; else (i, i + dims/2) */
    double theta;
    enum mxc_rope_scaling scaling;
    double factor, original_max, max_position;           /* scalings */
    double low_freq_factor, high_freq_factor;            /* llama3 */
    double beta_fast, beta_slow, mscale, mscale_all_dim; /* yarn */
    bool truncate;                                       /* yarn: round the correction range */
    double attention_factor; /* cos and sin are multiplied by it; <= 0: derive */
    float short_factor[MXC_MAX_ROPE_HALF], long_factor[MXC_MAX_ROPE_HALF]; /* longrope */
    float freq_factor[MXC_MAX_ROPE_HALF]; /* GGUF rope_freqs: inv_freq is divided by it; 0: unset */
    int sections[MXC_MAX_ROPE_AXES];      /* M-RoPE: pairs per position axis; all 0: one axis */
    bool sections_interleaved;
    bool restart; /* the frequencies of every section begin anew: theta^(-2 i / (2 * section)) */
};

/* inv_freq[dims / 2] and the factor on cos and sin, for a sequence whose length at admission is
 * `length` (only dynamic and longrope look at it). */
void mxc_rope_frequencies(const struct mxc_rope *rope, int64_t length, float *inv_freq,
                          float *factor);
/* The position axis that turns each pair ([dims / 2]): sections one after the other, or spread
 * T H W T H W ...; 0 where there is one axis. */
void mxc_rope_axes(const struct mxc_rope *rope, uint8_t *axis);
/* Whether the frequencies depend on length. */
bool mxc_rope_length_dependent(const struct mxc_rope *rope);

#endif
