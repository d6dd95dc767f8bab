/* Tower: the input of one run of a tower graph, as plain arrays: the rows, how many rows every slot
 * has, and the side inputs that the graph declared. Made by the image planner of a family
 * (models/), checked and read by a backend. */
#ifndef MXC_GRAPH_TOWER_H
#define MXC_GRAPH_TOWER_H

#include "graph/graph.h"

/* What a tower is fed with: the arrays that its graph declares. */
struct mxc_tower_input {
    const float *rows;                     /* [n_rows[0]][width of the input] */
    int32_t n_rows[MXC_MAX_SLOTS];         /* of every slot */
    const int32_t *index[MXC_MAX_INDICES]; /* [terms][rows] */
    const float *factor[MXC_MAX_INDICES];  /* [terms][rows] where weighted, else NULL */
    const int32_t *range[MXC_MAX_RANGES];  /* [2][rows]: begin, end */
};

#endif
