/* Graph internals shared by build.c, check.c and rope.c; nobody outside src/graph includes this. */
#ifndef MXC_GRAPH_PRIVATE_H
#define MXC_GRAPH_PRIVATE_H

#include "base/arena.h"
#include "base/map.h"
#include "graph/graph.h"

/* Bounds that keep a hostile config from turning into memory: checked before anything grows. */
enum {
    MXC_GRAPH_MAX_LAYERS = 1024,
    MXC_GRAPH_MAX_EXTENT = 1 << 24, /* of a value's width and of each dimension of a weight */
    MXC_GRAPH_MAX_NODES = 1 << 16,
    MXC_GRAPH_MAX_WEIGHTS = 1 << 16,
    MXC_GRAPH_MAX_ROPES = 64,
    MXC_GRAPH_MAX_KVS = 4096
};

struct mxc_graph_private {
    struct mxc_arena names;
    struct mxc_map weight_ids; /* name -> index */
    struct mxc_err err;        /* the first failure; code MXC_OK: none */
    int32_t layer;             /* of the nodes that follow */
    int32_t n_marks;           /* entries of layer_values set by the family or left MXC_NONE */
    int32_t nodes_cap, values_cap, weights_cap, ropes_cap, kvs_cap, marks_cap;
    bool finished;
};

/* What an op makes of its inputs. */
struct mxc_shape {
    struct mxc_extent rows;
    int32_t width;
};

/* The rules of one node: ids in range, inputs defined before it, widths, extents, weight shapes,
 * attributes. On success *out is the shape of its output. The error names op and layer. */
enum mxc_code mxc_graph_check_node(const struct mxc_graph *g, int32_t node, struct mxc_shape *out,
                                   struct mxc_err *err) MXC_MUST;
bool mxc_extent_equal(struct mxc_extent a, struct mxc_extent b);
/* Ranges of every field that the scaling uses; the error names the field. */
enum mxc_code mxc_rope_check(const struct mxc_rope *rope, struct mxc_err *err) MXC_MUST;
/* Whether a view's fields and shapes go together; extents are checked by the builder. */
enum mxc_code mxc_graph_check_view(const struct mxc_weight *weight,
                                   const struct mxc_weight_view *view,
                                   struct mxc_err *err) MXC_MUST;
enum mxc_code mxc_kv_check(const struct mxc_kv *kv, struct mxc_err *err) MXC_MUST;

#endif
