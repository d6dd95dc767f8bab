/* Towers for tests: graphs that between them use every op that towers have, inputs for them, and a
 * plain interpreter in double precision that reads the definitions of graph.h literally. */
#ifndef MXC_TESTS_BACKEND_TOWERS_H
#define MXC_TESTS_BACKEND_TOWERS_H

#include "backend/backend.h"
#include "backend/mini.h"

enum tower_model {
    TOWER_QWEN,  /* flat kernel, 2-D rope over sections that begin anew, packed pictures, MERGE of 4
                  */
    TOWER_MIXED, /* lookups of all kinds, GATHER there and back, RMS norms by groups, GLU, CONCAT of
                    both kinds, MEAN_ROWS, gated residuals, a deep level, an output with a residual
                  */
    TOWER_N_MODELS
};
enum { TOWER_INPUT = 24, TOWER_MOST_PICTURES = 8 };

void tower_model(struct mini *m, enum tower_model model, enum mxc_storage storage);
/* One ATTEND of `heads` heads of `dim` with a rope over all of a head, and nothing else. */
void tower_attend(struct mini *m, int32_t heads, int32_t dim, bool interleaved);

/* Arrays of an input, owned. */
struct tower_feed {
    struct mxc_tower_input input;
    float *rows;
    int32_t *index[MXC_MAX_INDICES], *range[MXC_MAX_RANGES];
    float *factor[MXC_MAX_INDICES];
};
/* Pictures of so many rows each (multiples of 4), packed; picture i is made from seeds[i]. */
void tower_feed(struct tower_feed *feed, const struct mini *m, int n, const int32_t *rows,
                const uint32_t *seeds);
void tower_feed_fini(struct tower_feed *feed);

/* All values in double precision, [n_values] arrays; free with tower_values_free. */
double **tower_reference(const struct mini *m, const struct mxc_tower_input *input);
void tower_values_free(const struct mini *m, double **values);
/* Rows of a value. */
int32_t tower_rows(const struct mini *m, const struct mxc_tower_input *input, int32_t value);

/* ---- runs on a backend */
struct tower_stage {
    const struct mxc_backend_ops *ops;
    struct mxc_backend *backend;
    struct mxc_plan *plan;
};
/* Features of a run with steps of `budget`, the caller's to free. steps: how many there were; may
 * be NULL. */
float *tower_run(const struct tower_stage *s, const struct mini *m,
                 const struct mxc_tower_input *input, uint64_t budget, int *steps);
/* The same, in steps as short as can be, with a tap that compares every named value with the
 * interpreter's: each is seen once, in the order of the graph. */
float *tower_run_watched(const struct tower_stage *s, const struct mini *m,
                         const struct mxc_tower_input *input, double **want, double *worst);
/* max |have - want| / max |want| */
double tower_difference(const float *have, const double *want, size_t n);
/* Two runs of the plan step by step in turns, of `budget` each, and a third that is given up: the
 * features of a run alone. */
void tower_check_turns(const struct tower_stage *s, const struct mini *m, uint64_t budget);
/* Ranges of one picture of more than 150 rows that slide, look back or forward row by row, and are
 * longer than a chunk. */
void tower_odd_ranges(struct tower_feed *feed);

#endif
