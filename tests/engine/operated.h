/* Models opened with operations on their weights, and what they compute: logits of a few tokens,
 * features of a grey picture, both of a prompt with a picture. Everything fails the running test
 * when it cannot be done. */
#ifndef MXC_TESTS_ENGINE_OPERATED_H
#define MXC_TESTS_ENGINE_OPERATED_H

#include "engine/load.h"

#include <stdbool.h>
#include <stddef.h>

enum { OPERATED_TOKENS = 8 };

/* golden: a checkpoint of tests/data/golden. yaml: the operations, or NULL for none. options: with
 * backend, precision and so on. */
struct mxc_model *operated_open(const char *golden, const char *yaml,
                                const struct mxc_load_options *options);
/* [OPERATED_TOKENS][vocab], malloc'ed. */
float *operated_logits(const struct mxc_model *model);
/* [rows][width] of a grey picture, *n numbers, malloc'ed. */
float *operated_features(const struct mxc_model *model, size_t *n);
/* What a model makes of a prompt with one coloured picture: the tower's rows, and logits of the
 * last rows, OPERATED_TOKENS at most; no logits of families that put text around a picture. The
 * load options need max_rows 64 and max_out OPERATED_TOKENS. */
struct operated_seen {
    float *features, *logits;
    size_t n_features, n_logits; /* numbers */
};
void operated_see(const struct mxc_model *model, struct operated_seen *seen);
void operated_seen_fini(struct operated_seen *seen);

/* A safetensors file with one matrix as "NAME.weight", MLX affine of 4 bits in groups of 64 or,
 * with the same numbers, F32. rows, columns: 256 and 512 at most, columns a multiple of 64. */
void operated_donor(const char *path, const char *name, int rows, int columns, bool quantised);

#endif
