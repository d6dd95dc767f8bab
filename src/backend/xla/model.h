/* Model: a graph and its checkpoint as programs see them, device or no device. model.c finds runs
 * of like layers and groups the KV stores; weights.c decides how every weight is stored and packs
 * them.
 *
 * A stack is one weight, or the weights that stand at one place of like layers: equal shape, stored
 * alike, side by side in memory, so that one array [n, ...] serves a loop over the layers and n
 * arrays serve unrolled ones, both in place. A quantised matrix is integers with a scale (and a
 * bias) per group: W[r, c] = scale[r, c / group] * code[r, c] (+ bias[r, c / group]); anything else
 * is dense. Owned by the plan; read-only after packing. */
#ifndef MXC_BACKEND_XLA_MODEL_H
#define MXC_BACKEND_XLA_MODEL_H

#include "backend/xla/lower.h"

/* Arrays of a stack. */
enum mxc_xla_part {
    MXC_XLA_NUMBERS, /* dense [.., n, k], vector [n], or codes S8 [.., n, k] */
    MXC_XLA_SCALES,  /* F32 [.., n, k / group] */
    MXC_XLA_BIASES,
    MXC_XLA_NORMS, /* F32 [k], see mxc_xla_column_norms */
    MXC_XLA_N_PARTS
};
struct mxc_xla_array {
    struct mxc_xla_shape shape; /* of one weight; n_dims 0: there is no such array */
    size_t bytes;               /* of one weight */
    size_t offset;              /* of the first one, in the model's memory */
};
/* Which axis of its matrices devices share: rows, where what comes out may be cut; columns, where
 * what goes in is cut already. */
enum mxc_xla_split { MXC_XLA_WHOLE, MXC_XLA_SPLIT_ROWS, MXC_XLA_SPLIT_COLUMNS };
struct mxc_xla_stack {
    int32_t n;     /* weights */
    int32_t first; /* they are order[first .. first + n) */
    bool used;     /* some program needs it */
    bool norms;    /* column norms are wanted */
    bool matrix;   /* multiplied */
    bool exact;    /* never narrowed: a router's */
    int32_t group; /* 0: dense */
    enum mxc_xla_split split;
    struct mxc_xla_array arrays[MXC_XLA_N_PARTS];
};
struct mxc_xla_place {
    int32_t stack, index;
};

/* Nodes [node0, node0 + n_nodes) are one turn; `turns` like ones follow each other. */
enum { MXC_XLA_MAX_CARRIED = 16 };
struct mxc_xla_run {
    int32_t node0, n_nodes, turns;
    /* Values of a turn that the next one or a later node reads: node of the turn that makes it, and
     * what the first turn reads in its place (MXC_NONE: nothing does). */
    int32_t n_carried;
    struct {
        int32_t node, start;
        bool inside; /* the next turn reads it */
    } carried[MXC_XLA_MAX_CARRIED];
};

struct mxc_xla_kv_group {
    enum mxc_kv_kind kind;
    int32_t heads, k_dim, v_dim; /* v_dim 0: LATENT, V is in K */
    int32_t layers;
};

struct mxc_xla_model {
    const struct mxc_graph *graph;
    struct mxc_xla_run *runs;
    int32_t n_runs;
    struct mxc_xla_kv_group *groups;
    int32_t n_groups;
    struct mxc_xla_place *kv_places; /* [graph->n_kvs] group, and index in it */
    struct mxc_xla_stack *stacks;
    int32_t n_stacks;
    struct mxc_xla_place *places;   /* [graph->n_weights] stack -1: not used */
    int32_t *order;                 /* [graph->n_weights] */
    struct mxc_xla_source *sources; /* weights.c's own: [graph->n_weights] */
    uint8_t *memory;                /* all arrays, aligned to MXC_XLA_ALIGN; NULL until packed */
    size_t bytes;
    size_t block_bytes[MXC_N_KV_KINDS]; /* of one block in every store of the kind */
};

/* Checks that every op has a lowering (MXC_E_UNSUPPORTED names the one that has none), finds runs,
 * groups and stacks. weights NULL: shapes only, everything dense F32 (no packing then). */
enum mxc_code mxc_xla_model_new(const struct mxc_graph *graph, const struct mxc_weights *weights,
                                struct mxc_xla_model **model, struct mxc_err *err) MXC_MUST;
void mxc_xla_model_free(struct mxc_xla_model *model);
/* The check alone, by a table of lowerings of one's own. */
enum mxc_code mxc_xla_model_check(const struct mxc_graph *graph,
                                  mxc_xla_lower_fn *(*find)(enum mxc_op),
                                  struct mxc_err *err) MXC_MUST;

/* ---- weights.c: parts of the above */
enum mxc_code mxc_xla_weights_plan(struct mxc_xla_model *model, const struct mxc_weights *weights,
                                   struct mxc_err *err) MXC_MUST;
void mxc_xla_weights_fini(struct mxc_xla_model *model);
/* Fills model->memory; threads: 0 for one per core. */
enum mxc_code mxc_xla_weights_pack(struct mxc_xla_model *model, int threads,
                                   const struct mxc_plan_options *options,
                                   struct mxc_err *err) MXC_MUST;
/* Data of weight `index` of a stack (the first: of the whole stack). */
static inline const uint8_t *mxc_xla_array_data(const struct mxc_xla_model *model, int32_t stack,
                                                enum mxc_xla_part part, int32_t index) {
    const struct mxc_xla_array *a = &model->stacks[stack].arrays[part];
    return model->memory + a->offset + (size_t)index * a->bytes;
}

#endif
