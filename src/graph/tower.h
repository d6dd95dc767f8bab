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

/* Rows of an extent in an input. */
static inline int32_t mxc_tower_rows(const struct mxc_tower_input *input,
                                     struct mxc_extent extent) {
    return input->n_rows[extent.slot] / extent.divisor;
}
/* The rows that index i has entries for. */
static inline struct mxc_extent mxc_tower_index_rows(const struct mxc_graph *graph, int32_t i) {
    return (struct mxc_extent){MXC_ROWS_TOWER, graph->indices[i].slot, graph->indices[i].divisor};
}
/* Whether the slots can have so many rows ([n_slots]): MXC_E_ARG that says which cannot. */
enum mxc_code mxc_tower_check_rows(const struct mxc_graph *graph, const int32_t *n_rows,
                                   struct mxc_err *err) MXC_MUST;
/* Whether all of an input goes with the graph: every array there, every entry in its limits, every
 * range not empty and within the rows. MXC_E_ARG names the array and the place. */
enum mxc_code mxc_tower_check(const struct mxc_graph *graph, const struct mxc_tower_input *input,
                              struct mxc_err *err) MXC_MUST;

#endif
