/* Tiny models for tests of a backend: random weights in a safetensors file of a temporary folder, a
 * llama-like graph over them, and a plain double-precision forward pass to compare with. */
#ifndef MXC_TESTS_BACKEND_TINY_H
#define MXC_TESTS_BACKEND_TINY_H

#include "test.h"

#include "backend/backend.h"

struct tiny_shape {
    int32_t n_layers, hidden, ffn, n_heads, n_kv_heads, head_dim, vocab;
    int32_t window; /* odd layers; 0: none */
    bool biases, qk_norm, sinks, tied, interleaved;
    float softcap;
    enum mxc_storage storage; /* of matrices: F32, F16, BF16 */
    enum mxc_rope_scaling scaling;
    int sections[MXC_MAX_ROPE_AXES];
};

struct tiny {
    struct tiny_shape shape;
    struct mxc_graph *graph;
    struct mxc_weights *weights;
};

void tiny_open(struct tiny *tiny, const struct tiny_shape *shape);
void tiny_close(struct tiny *tiny);
/* Logits [n][vocab] of one sequence; ends: row_end, or NULL. */
void tiny_reference(const struct tiny *tiny, const int32_t *tokens, int32_t n, const int32_t *ends,
                    float *logits);
/* n token ids below vocab. */
void tiny_tokens(const struct tiny *tiny, uint32_t seed, int32_t *tokens, int32_t n);

#endif
