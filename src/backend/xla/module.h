/* Module: one program's text with everything that whoever runs it must know. */
#ifndef MXC_BACKEND_XLA_MODULE_H
#define MXC_BACKEND_XLA_MODULE_H

#include "backend/xla/model.h"

/* Arguments of @main, in order of params. Results: values of the graph (F32 [rows, width]), then
 * the KV arrays of every group as they are afterwards, in the memory of the arguments (aliased, so
 * these arguments are donated). */
enum mxc_xla_param_kind {
    MXC_XLA_PARAM_INTS,   /* the S32 feeds; left out when there are none */
    MXC_XLA_PARAM_FLOATS, /* the F32 feeds */
    MXC_XLA_PARAM_VALUE,  /* which: a value of the graph that is made before the cut */
    MXC_XLA_PARAM_KV,     /* which: 2 * group, + 1 for V */
    MXC_XLA_PARAM_WEIGHT  /* which: stack */
};
struct mxc_xla_module_param {
    enum mxc_xla_param_kind kind;
    int32_t which;
    enum mxc_xla_part part; /* WEIGHT */
    int32_t index;          /* WEIGHT: of the stack; MXC_NONE: the whole stack */
    struct mxc_xla_shape shape;
    int axis; /* that devices share (split.h); MXC_NONE: each has all of it */
};

struct mxc_xla_module {
    char *text; /* NUL-terminated */
    size_t length;
    struct mxc_xla_module_param *params;
    int32_t n_params;
    struct mxc_xla_feed *feeds;
    int32_t n_feeds;
    size_t n_ints, n_floats; /* numbers of the feed arrays */
    int32_t *results;        /* [n_results] values: graph->logits and, with taps, the named ones, in
                                the order of the nodes; of a cut: what is read after it as well */
    struct mxc_xla_shape *outputs; /* [n_results + n_kv] */
    int32_t n_results, n_kv;       /* n_kv: 2 * groups less the V of LATENT ones */
    int devices;                   /* at least 1; results are whole on each of them */
};

/* Nodes [node0, node1) of a graph. */
struct mxc_xla_cut {
    int32_t node0, node1;
};

/* cut NULL: the whole graph. */
enum mxc_code mxc_xla_module_make(const struct mxc_xla_model *model,
                                  const struct mxc_xla_buckets *buckets,
                                  const struct mxc_xla_form *form, const struct mxc_xla_cut *cut,
                                  struct mxc_xla_module *module, struct mxc_err *err) MXC_MUST;
void mxc_xla_module_fini(struct mxc_xla_module *module);

/* Shape of a group's K (or V) array with so many blocks. */
struct mxc_xla_shape mxc_xla_kv_shape(const struct mxc_xla_kv_group *group, bool v, int32_t blocks);

#endif
