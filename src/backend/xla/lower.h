/* Lowering: how the ops of a graph become StableHLO. module.c walks the nodes and calls the op's
 * function; a function reads its inputs and weights through this header, appends text, and gives
 * the value that the op makes: F32 [rows, width], rows being mxc_xla_rows of the graph's value.
 * Bucket sizes are static, so rows behind the real ones hold anything finite or not: a function may
 * compute them, but must never let one row's numbers into another's where ranges do not say so.
 * What a step brings (tokens' rows, positions, ranges, tables) comes in as feeds: arrays that
 * whoever runs the program fills by kind. Adding an op: a function in a lower_*.c, its row in
 * lower_table.c, and, if it reads something new of a step, a feed here with its filling in run.c or
 * tower.c. Inside a loop over like layers (rolled) a function is called once, with the first
 * layer's node; weights and KV stores that it asks for are those of the loop's turn. */
#ifndef MXC_BACKEND_XLA_LOWER_H
#define MXC_BACKEND_XLA_LOWER_H

#include "backend/backend.h"
#include "backend/xla/hlo.h"

struct mxc_xla_model;

/* ---- sizes of a program */
struct mxc_xla_buckets {
    int32_t rows;                   /* T */
    int32_t out;                    /* R */
    int32_t seqs;                   /* 1: all rows are of one sequence; else one row of each */
    int32_t blocks[MXC_N_KV_KINDS]; /* of a sequence's block table */
    int32_t state[MXC_N_KV_KINDS];  /* blocks of the state: the engine's, then one of zeros,
                                        then one for waste */
    int32_t slots[MXC_MAX_SLOTS];   /* towers: rows of every slot */
    int32_t keys[MXC_MAX_RANGES];   /* towers: keys that a tile of rows of a range sees, at most */
    bool taps;                      /* all named values are results too */
};

/* How a program is written; all forms compute the same. */
struct mxc_xla_form {
    bool roll;      /* like layers are a loop over stacked weights */
    int32_t reduce; /* products with up to so many rows are multiply and reduce, not dot */
    int64_t chunk;  /* matrices of more numbers are dequantised and multiplied in pieces of about so
                       many, by a loop; 0: never */
    enum mxc_xla_precision narrow; /* of the inputs of dots; AUTO is F32 */
    int devices;                   /* that share the work (split.h); 0 is 1 */
};

/* ---- feeds: what a step or a tower's input brings. which: see the kind. */
enum mxc_xla_feed_kind {
    /* decoders; T rows */
    MXC_XLA_FEED_EMBED,    /* f32 [T, width] rows of EMBED node `which`, scaled and spliced */
    MXC_XLA_FEED_POSITION, /* s32 [T] position + offset of ADD_POSITION node `which` */
    MXC_XLA_FEED_COS,      /* f32 [T, half] of rope `which`, times its factor */
    MXC_XLA_FEED_SIN,
    MXC_XLA_FEED_TABLE, /* s32 [seqs, blocks] of kind `which`; holes and the rest: the zero block
                         */
    MXC_XLA_FEED_SLOT, /* s32 [T, 2] block of kind `which` and place in it where a row's K and V go;
                          rows that are none: the waste block */
    MXC_XLA_FEED_NEXT, /* s32 [T] 1 + the row's number in its sequence (causal end) */
    MXC_XLA_FEED_END,  /* s32 [T] a row sees keys < end */
    MXC_XLA_FEED_OUT,  /* s32 [R] rows whose output is wanted */
    MXC_XLA_FEED_CROSS_BEGIN,  /* s32 [T] tokens of the CROSS store that a row sees; begin = end: */
    MXC_XLA_FEED_CROSS_END,    /* the row's range is empty */
    MXC_XLA_FEED_CROSS_TOKENS, /* s32 [T] tokens in the CROSS store of the row's sequence */
    MXC_XLA_FEED_LEVEL,        /* f32 [T, hidden] level `which` of spliced rows, zeros elsewhere */
    /* towers; rows of the slot that the index or range has */
    MXC_XLA_FEED_INPUT,     /* f32 [rows, width] */
    MXC_XLA_FEED_INDEX,     /* s32 [terms, rows] index `which` */
    MXC_XLA_FEED_FACTOR,    /* f32 [terms, rows] of index `which` */
    MXC_XLA_FEED_RANGE,     /* s32 [2, rows] range `which` */
    MXC_XLA_FEED_TOWER_COS, /* f32 [rows, half] of ATTEND node `which` */
    MXC_XLA_FEED_TOWER_SIN,
    MXC_XLA_FEED_EXTRA, /* s32, as the asker lays it out: `which` is its own business */
    MXC_XLA_N_FEED_KINDS
};
/* All feeds of one type come in one array, so that a step is two uploads. */
struct mxc_xla_feed {
    enum mxc_xla_feed_kind kind;
    int32_t which;
    struct mxc_xla_shape shape; /* F32 or S32 */
    size_t offset, n;           /* numbers, in the array of its type */
};

/* ---- one module while it is written */
struct mxc_xla_kv_value {
    struct mxc_hlo_value k, v; /* [layers, blocks, MXC_KV_BLOCK, heads, dim]; v: none of a LATENT */
};
struct mxc_xla_lower {
    struct mxc_hlo *h;
    const struct mxc_xla_model *model;
    const struct mxc_graph *graph;
    const struct mxc_xla_buckets *buckets;
    const struct mxc_xla_form *form;
    struct mxc_hlo_value *values;  /* [graph->n_values] what nodes made; none yet: no name */
    struct mxc_xla_kv_value *kv;   /* [groups of the model] as they are now */
    struct mxc_xla_writer *writer; /* module.c's own */
};

typedef enum mxc_code mxc_xla_lower_fn(struct mxc_xla_lower *l, const struct mxc_node *node,
                                       struct mxc_hlo_value *out, struct mxc_err *err);
/* NULL: there is no lowering of the op. */
mxc_xla_lower_fn *mxc_xla_lower_find(enum mxc_op op);

/* Bucket's number of rows of an extent. */
int32_t mxc_xla_rows(const struct mxc_xla_lower *l, const struct mxc_extent *extent);
/* Input i of a node. */
static inline struct mxc_hlo_value mxc_xla_in(const struct mxc_xla_lower *l,
                                              const struct mxc_node *node, int i) {
    return l->values[node->in[i]];
}
/* The feed as a value of that shape; asked for again, it is the same. */
struct mxc_hlo_value mxc_xla_feed(struct mxc_xla_lower *l, enum mxc_xla_feed_kind kind,
                                  int32_t which, int n_dims, const int64_t *dims);

/* ---- weights (lower_weights.c). weight: an id of the graph. */
/* One array of a weight as it is stored (part: enum mxc_xla_part). slice NULL: all of it, [.., n,
 * k]; else that matrix of a stack. */
struct mxc_hlo_value mxc_xla_weight_part(struct mxc_xla_lower *l, int32_t weight, int part,
                                         const struct mxc_hlo_value *slice);
/* A vector: F32 [n] or [slices, n]. */
struct mxc_hlo_value mxc_xla_vector(struct mxc_xla_lower *l, int32_t weight);
/* |W[:, j]| + 1e-7: F32 [columns]. */
struct mxc_hlo_value mxc_xla_column_norms(struct mxc_xla_lower *l, int32_t weight);
/* x [m, k] times the transposed matrix [n, k]: F32 [m, n]. */
struct mxc_hlo_value mxc_xla_multiply(struct mxc_xla_lower *l, struct mxc_hlo_value x,
                                      int32_t weight);
/* The same with matrix `slice` (S32 scalar) of a stack. */
struct mxc_hlo_value mxc_xla_multiply_slice(struct mxc_xla_lower *l, struct mxc_hlo_value x,
                                            int32_t weight, struct mxc_hlo_value slice);
/* All numbers: F32 [n, k], or [slices, n, k] of a stack. */
struct mxc_hlo_value mxc_xla_dense(struct mxc_xla_lower *l, int32_t weight);
/* Rows of a table at index (S32 [m]): F32 [m, width]. */
struct mxc_hlo_value mxc_xla_table_rows(struct mxc_xla_lower *l, int32_t weight,
                                        struct mxc_hlo_value index);
/* A dot whose inputs are narrowed as the form says. */
struct mxc_hlo_value mxc_xla_dot(struct mxc_xla_lower *l, struct mxc_hlo_value a,
                                 struct mxc_hlo_value b, const struct mxc_hlo_dot *dot);

/* ---- KV stores */
/* Group of stores of equal kind, heads and dims that kv belongs to, and its place in the group: an
 * S32 scalar. */
int32_t mxc_xla_kv_group(const struct mxc_xla_lower *l, int32_t kv);
struct mxc_hlo_value mxc_xla_kv_layer(struct mxc_xla_lower *l, int32_t kv);
/* Blocks of the sequences' tables: F32 [seqs, blocks * MXC_KV_BLOCK, heads, dim]. */
struct mxc_hlo_value mxc_xla_kv_read(struct mxc_xla_lower *l, int32_t kv, struct mxc_hlo_value of);

/* What attends (lower_attend.c): q [T, heads, dim]; k, v [S, N, kv heads, dim], S being 1 or T; row
 * t sees keys [begin[t], end[t]) (S32 [T]). sinks: F32 [heads] or none. Query rows go in tiles
 * where the scores would be large. Result: [T, heads * v_dim]. A row that sees nothing gives 0
 * (or anything finite when it is a padded one). */
struct mxc_xla_attend {
    struct mxc_hlo_value q, k, v, begin, end, sinks;
    float scale, softcap;
};
struct mxc_hlo_value mxc_xla_attend(struct mxc_xla_lower *l, const struct mxc_xla_attend *attend);
/* Rotates dims [offset, offset + rope dims) of x [T, heads, dim] by cos and sin [T, half]. */
struct mxc_hlo_value mxc_xla_rotate(struct mxc_xla_lower *l, struct mxc_hlo_value x,
                                    const struct mxc_rope *rope, int32_t offset,
                                    struct mxc_hlo_value cos, struct mxc_hlo_value sin);
/* act(x), of any shape; not SWIGLU_CLIP. */
struct mxc_hlo_value mxc_xla_act(struct mxc_hlo *h, enum mxc_act act, struct mxc_hlo_value x);
/* act(gate) * up, any activation. */
struct mxc_hlo_value mxc_xla_glu(struct mxc_hlo *h, enum mxc_act act, struct mxc_hlo_value gate,
                                 struct mxc_hlo_value up);
/* RMS over the last axis, times (w + offset) where w is not none. */
struct mxc_hlo_value mxc_xla_rms(struct mxc_hlo *h, struct mxc_hlo_value x, struct mxc_hlo_value w,
                                 float eps, float offset);

#define MXC_XLA_LOWERS(X)                                                                          \
    X(EMBED, embed)                                                                                \
    X(ADD_POSITION, add_position)                                                                  \
    X(RMS_NORM, rms_norm)                                                                          \
    X(LAYER_NORM, layer_norm)                                                                      \
    X(LINEAR, linear)                                                                              \
    X(HEADS_LINEAR, heads_linear)                                                                  \
    X(ATTENTION, attention)                                                                        \
    X(GLU, glu)                                                                                    \
    X(ACT, act)                                                                                    \
    X(SOFTCAP, softcap)                                                                            \
    X(MOE, moe)                                                                                    \
    X(GATE, gate)                                                                                  \
    X(UNIT_COLUMNS, unit_columns)                                                                  \
    X(ADD, add)                                                                                    \
    X(SELECT_OUT, select_out)                                                                      \
    X(INPUT, input)                                                                                \
    X(LOOKUP, lookup)                                                                              \
    X(GATHER, gather)                                                                              \
    X(MERGE, merge)                                                                                \
    X(MEAN_ROWS, mean_rows)                                                                        \
    X(CONCAT, concat)                                                                              \
    X(TANH_SCALE, tanh_scale)                                                                      \
    X(ATTEND, attend)                                                                              \
    X(CROSS, cross)                                                                                \
    X(ROW_MASK, row_mask)                                                                          \
    X(ADD_LEVEL, add_level)
#define X(NAME, name) mxc_xla_lower_fn mxc_xla_lower_##name;
MXC_XLA_LOWERS(X)
#undef X

#endif
