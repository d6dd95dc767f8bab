/* Runner: drives a backend's plan as the engine would, for tests: sequences with block tables of
 * their own, steps of any rows of any sequences, logits of every row. Asserts that calls succeed.
 */
#ifndef MXC_TESTS_BACKEND_RUNNER_H
#define MXC_TESTS_BACKEND_RUNNER_H

#include "test.h"

#include "backend/backend.h"

enum { RUNNER_MAX_SEQS = 32 };

struct runner {
    const struct mxc_backend_ops *ops;
    struct mxc_backend *backend;
    const struct mxc_graph *graph;
    struct mxc_plan *plan;
    struct mxc_state *state;
    int32_t n_blocks; /* of every kind */
    int32_t stride;   /* blocks are given out in steps of it (1: in order); prime to n_blocks */
    int32_t next;
};

struct sequence {
    int32_t *blocks; /* [n_blocks] the same for every kind */
    int32_t n_blocks, context;
    int32_t rope_length; /* room, unless the test says otherwise */
};

struct runner_options {
    int threads;
    enum mxc_precision precision;
    int32_t max_rows, n_blocks, stride;
};

void runner_open(struct runner *r, const struct mxc_graph *graph, const struct mxc_weights *weights,
                 const struct runner_options *options);
void runner_close(struct runner *r);
/* Room for n tokens. */
void sequence_open(struct runner *r, struct sequence *s, int32_t n_tokens);
void sequence_close(struct sequence *s);

/* Rows of one sequence in a step: tokens context .. context + n. */
struct feed {
    struct sequence *sequence;
    const int32_t *tokens;
    int32_t n;
    float *logits; /* [n][vocab]; NULL: not wanted */
};
/* One step; contexts go on. tap may be NULL. */
void runner_step(struct runner *r, const struct feed *feeds, int32_t n_feeds, mxc_tap_fn *tap,
                 void *tap_user);
/* One sequence in chunks of `chunk` rows (0: all at once), on fresh blocks. */
void runner_chunks(struct runner *r, const int32_t *tokens, int32_t n, int32_t chunk,
                   float *logits);

/* max |a - b| / max |b| */
double relative_difference(const float *a, const float *b, size_t n);

#endif
