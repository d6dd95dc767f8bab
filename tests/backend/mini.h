/* Mini models for tests of ops: any graph, with made-up weights in a safetensors file of a
 * temporary folder, and a plain interpreter in double precision to compare with. The interpreter
 * reads the definitions of graph.h literally: every row of one sequence, one number after the
 * other. */
#ifndef MXC_TESTS_BACKEND_MINI_H
#define MXC_TESTS_BACKEND_MINI_H

#include "test.h"

#include "backend/backend.h"

struct mini {
    struct mxc_graph *graph;
    struct mxc_weights *weights;
    double **numbers; /* [n_weights] as the graph sees them: [slices][out][in] */
};

/* Finishes the graph (taken over) and writes the tensors that its weights are made of. Matrices are
 * stored as `storage`: F32, F16, BF16, or MXC_ST_MLX_AFFINE (4 bits in groups of 64) for two-
 * dimensional ones named *.weight that have whole groups; others are BF16 then. Vectors are F32. */
void mini_open(struct mini *m, struct mxc_graph *graph, int32_t logits, enum mxc_storage storage);
void mini_close(struct mini *m);
/* Logits [n][vocab] of one sequence. */
void mini_reference(const struct mini *m, const int32_t *tokens, int32_t n, float *logits);
/* Only the checkpoint: the tensors that mini_open would write, but the one named `odd` as F32. */
void mini_write(const struct mxc_graph *graph, enum mxc_storage storage, const char *odd,
                struct mxc_weights **weights);

/* Models that between them use every op; storages as mini_open's. */
enum { MINI_VOCAB = 83, MINI_HIDDEN = 64, MINI_POSITIONS = 60 };
enum mini_model {
    MINI_SOFTMAX,    /* MoE, a tensor for each expert, a gated shared expert */
    MINI_GROUPS,     /* MoE with sigmoid, choice bias and groups, over a latent */
    MINI_BEST_GROUP, /* MoE with groups by their best, many heads over a latent */
    MINI_CLIP, /* MoE with clipped swiglu, biases, interleaved and transposed tensors; window */
    MINI_WHOLE_NORM, /* positions, layer norms, an activation, q and k normed as a whole, soft cap
                      */
    MINI_UNIT,       /* layer norms of heads, unit columns, halves that are no whole strips */
    MINI_HALVES,     /* RMS norms of heads, halves that are whole strips, soft cap in the middle */
    MINI_N_MODELS
};
void mini_model(struct mini *m, enum mini_model model, enum mxc_storage storage);

#endif
