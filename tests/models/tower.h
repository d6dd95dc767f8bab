/* A tower's graph run the plain way: one value after the other in double, every op as ops.def says.
 * What tests compare towers with the reference's features by, without a backend. */
#ifndef MXC_TESTS_MODELS_TOWER_H
#define MXC_TESTS_MODELS_TOWER_H

#include "format/weights.h"
#include "graph/tower.h"

/* Checks the input against the graph (indices, ranges, numbers of rows) and returns the output
 * [*rows][g->vocab], owned by the caller (free). */
float *tower_run(const struct mxc_graph *g, const struct mxc_weights *weights,
                 const struct mxc_tower_input *input, int32_t *rows);
/* The same, to look inside: how far the value that is nearest to want[count], of those with so many
 * numbers, is from it, as a part of the largest of want; in whatever order its rows are fed (the
 * order of the output shows that). INFINITY: there is none. */
double tower_nearest(const struct mxc_graph *g, const struct mxc_weights *weights,
                     const struct mxc_tower_input *input, const float *want, size_t count);

#endif
