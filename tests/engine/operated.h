/* Models opened with operations on their weights, and what they compute: logits of a few tokens,
 * features of a grey picture. Everything fails the running test when it cannot be done. */
#ifndef MXC_TESTS_ENGINE_OPERATED_H
#define MXC_TESTS_ENGINE_OPERATED_H

#include "engine/load.h"

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

#endif
