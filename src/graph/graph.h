/* Graph: a model as a straight-line list of coarse ops, built once per loaded model by its family.
 * Everything reads this one list: weight validation, memory estimate, CPU plan, StableHLO, dumps.
 * Values are f32 matrices [rows, width]; rows are symbolic: T (rows of the step), R (rows whose
 * output is wanted), or for towers slots whose sizes come with each run. Owned by the caller of
 * new; the graph copies names. Read-only after mxc_graph_finish; then safe from any thread. */
#ifndef MXC_GRAPH_GRAPH_H
#define MXC_GRAPH_GRAPH_H

#include "base/err.h"
#include "graph/rope.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum mxc_op {
#define OP(NAME, name, in0, in1, w0, w1, doc) MXC_OP_##NAME,
#include "graph/ops.def"
#undef OP
    MXC_N_OPS
};
const char *mxc_op_name(enum mxc_op op);

enum { MXC_MAX_IN = 8, MXC_MAX_NODE_WEIGHTS = 8, MXC_MAX_TOP_EXPERTS = 64, MXC_NONE = -1 };

/* Symbolic number of rows. A tower's rows come in slots whose sizes the image planner gives with
 * each run (slot 0: the input's rows); merging rows divides. */
enum mxc_extent_kind { MXC_ROWS_T, MXC_ROWS_R, MXC_ROWS_TOWER };
struct mxc_extent {
    enum mxc_extent_kind kind;
    int32_t slot, divisor; /* tower: rows of the slot / divisor */
};
enum { MXC_MAX_SLOTS = 8, MXC_MAX_INDICES = 8, MXC_MAX_RANGES = 4 };

struct mxc_value {
    const char *name; /* "" or a name for taps: "layer.3.out", "final_norm", "logits" */
    struct mxc_extent rows;
    int32_t width;
    int32_t producer, last_use; /* node indices; filled by mxc_graph_finish */
};

enum mxc_weight_role {
    MXC_W_MATRIX, /* [out, in], multiplied */
    MXC_W_VECTOR, /* [n], or [slices, n] */
    MXC_W_TABLE,  /* rows that are looked up; may be multiplied too (tied head) */
    MXC_W_STACK   /* [slices, out, in]: experts, heads; each slice is multiplied */
};
/* Where a weight's numbers stand when the file's tensor is not the weight itself (fused or
 * transposed matrices). The tensor is seen as [rows, columns], rows being all extents but the last.
 * Row r of slice s is row row0 + s * stride + r * row_step of it; transposed: element (r, c) is at
 * row row0 + s * stride + c and column col0 + r * col_step. A vector counts elements, not rows.
 * Flat: the weight's numbers are the tensor's, in the same order, under another shape (a
 * convolution's kernel as a matrix); all else but row_step = 1 is 0 then. Only of tensors whose
 * numbers stand alone (mxc_tensor_is_plain). */
enum { MXC_MAX_VIEW_DIMS = 5 };
struct mxc_weight_view {
    int n_dims; /* 0: no view, the tensor is the weight */
    int64_t shape[MXC_MAX_VIEW_DIMS];
    int64_t stride, row0, row_step, col0, col_step;
    bool transposed, flat;
};
struct mxc_weight {
    const char *name; /* logical name, see format/weights.h. A stack whose name holds '*' is one
                         tensor per slice, with the slice's number in its place */
    enum mxc_weight_role role;
    int n_dims;
    int64_t shape[3];
    struct mxc_weight_view view;
};

enum mxc_act {
    MXC_ACT_SILU,
    MXC_ACT_GELU,
    MXC_ACT_GELU_TANH,
    MXC_ACT_RELU,
    MXC_ACT_GELU_QUICK,  /* x * sigmoid(1.702 x) */
    MXC_ACT_SWIGLU_CLIP, /* GLU and MOE only, gpt-oss: g = min(g, 7), u = clamp(u, -7, 7),
                            y = g * sigmoid(1.702 g) * (u + 1) */
    MXC_N_ACTS
};

/* KV kinds: each has block tables and lengths of its own in a step. A KV store is one layer's:
 * exactly one attention op appends to it. */
enum mxc_kv_kind { MXC_KV_FULL, MXC_KV_WINDOW, MXC_KV_LATENT, MXC_KV_CROSS, MXC_N_KV_KINDS };
struct mxc_kv {
    enum mxc_kv_kind kind;
    int32_t n_heads, k_dim, v_dim; /* per token: n_heads * (k_dim + v_dim) numbers. LATENT: one
                                      head; V is the first v_dim numbers of K */
    int32_t window;                /* MXC_KV_WINDOW: a row sees keys > position - window */
};

/* How q and k are normalised before RoPE, when there are weights for it. */
enum mxc_qk_norm {
    MXC_QK_RMS_HEAD,   /* RMS per head, weights [head_dim] shared by the heads */
    MXC_QK_RMS_WHOLE,  /* RMS over all heads together, weights [heads * head_dim] */
    MXC_QK_LAYER_HEADS /* (x - mean) / sqrt(var + eps) per head, weights [heads * head_dim] */
};
struct mxc_attn_attr {
    int32_t n_heads, n_kv_heads, head_dim; /* input width: (n_heads + 2 n_kv_heads) * head_dim */
    int32_t v_dim;                         /* 0: head_dim. With a latent: < head_dim, see below */
    float scale;                           /* of q . k */
    float softcap;                         /* 0: none */
    int32_t window;                        /* 0: none */
    int32_t rope;                          /* index into graph->ropes, MXC_NONE: no rotation */
    int32_t rope_offset;                   /* first rotated dimension of a head */
    int32_t kv;                            /* index into graph->kvs */
    enum mxc_qk_norm qk_norm;
    float qk_norm_eps, qk_norm_offset; /* weights[0], weights[1]: of q and k, MXC_NONE when absent;
                                          offset: added to RMS weights. weights[2]: sinks */
};
/* Attention over a latent (multi-head latent attention in its absorbed form): in[0] is q
 * [T, n_heads * head_dim], in[1] is [T, head_dim], the one KV head: it is K, and its first v_dim
 * numbers are V. Output [T, n_heads * v_dim]. The KV store's kind is LATENT. */

/* A tower's attention: in[0] is [rows, 3 * n_heads * head_dim], q, k, v. positions: index with one
 * term per rope axis; range: of the rows. Nothing is kept. */
struct mxc_attend_attr {
    int32_t n_heads, head_dim;
    float scale;
    int32_t rope, positions; /* MXC_NONE: no rotation */
    int32_t range;
};
/* Attention over what a picture left in the CROSS store. in[0]: [T, n_heads * head_dim];
 * weights[0]: per-head RMS norm of q, or MXC_NONE. The store's K are normalised already. A row of a
 * sequence without pictures gives 0; a row whose range is empty sees all of the store's tokens, as
 * the reference's mask has it. */
struct mxc_cross_attr {
    int32_t n_heads, n_kv_heads, head_dim;
    float scale, q_norm_eps;
    int32_t kv;
};

/* Choice of experts from router logits [T, n_experts]. score: softmax or sigmoid of the logits;
 * choice = score (+ weights[6][e]). With n_groups > 1 the experts are n_groups equal runs; a
 * group's score is the sum of its two best choices (or its best); all but top_groups groups have
 * their choices set to 0. The top_k largest choices win, ties to the lower number. p_e = score[e],
 * divided by their sum when normalise, times scale. */
enum mxc_moe_score { MXC_MOE_SOFTMAX, MXC_MOE_SIGMOID };
struct mxc_moe_attr {
    int32_t n_experts, top_k, width; /* width: of an expert's hidden layer */
    enum mxc_moe_score score;
    bool normalise;
    float normalise_eps; /* added to the sum */
    float scale;
    int32_t n_groups, top_groups; /* 1, 1: no groups */
    bool group_best;              /* a group's score is its best choice */
    enum mxc_act act;
};
/* Slots of a MOE node's weights; all but gate, up and down may be MXC_NONE. */
enum {
    MXC_MOE_GATE,      /* stack [n_experts, width, d] */
    MXC_MOE_UP,        /* stack [n_experts, width, d] */
    MXC_MOE_DOWN,      /* stack [n_experts, d, width] */
    MXC_MOE_GATE_BIAS, /* vector [n_experts, width] */
    MXC_MOE_UP_BIAS,   /* vector [n_experts, width] */
    MXC_MOE_DOWN_BIAS, /* vector [n_experts, d] */
    MXC_MOE_CHOICE,    /* vector [n_experts], added to the scores for the choice only */
    MXC_N_MOE_WEIGHTS
};

struct mxc_node {
    enum mxc_op op;
    int32_t layer; /* MXC_NONE outside the layers */
    int32_t n_in, n_weights;
    int32_t in[MXC_MAX_IN];
    int32_t weights[MXC_MAX_NODE_WEIGHTS]; /* LINEAR: w0, b0, w1, b1, ... (a bias may be MXC_NONE; a
                                              matrix may be the TABLE of an EMBED: tied head);
                                              ATTENTION: always 3, each may be MXC_NONE;
                                              MOE: MXC_N_MOE_WEIGHTS; LAYER_NORM: w, b or
                                              MXC_NONE */
    int32_t out;
    union {
        struct {
            float scale;
        } embed;
        struct {
            float eps, offset;
            int32_t groups; /* RMS_NORM: columns are so many groups, each normalised by itself with
                               the same w; 1: all together */
        } norm;
        struct {
            int32_t n_parts;
            float scale;
        } linear;
        struct mxc_attn_attr attn;
        struct {
            enum mxc_act act;
        } glu; /* and ACT */
        struct {
            float cap;
        } softcap;
        struct {
            int32_t offset;
            bool fixed;
        } position;
        struct {
            int32_t n_heads; /* in[0]'s width is a multiple of it */
        } heads;
        struct mxc_moe_attr moe;
        struct {
            int32_t index;
            bool complement; /* f = 1 - tanh(g); g is weights[1], or MXC_NONE: f = 1 */
        } lookup;            /* and GATHER: index only */
        struct {
            int32_t rows; /* b */
        } merge;          /* and MEAN_ROWS */
        struct {
            bool turns; /* column j of input i becomes column j * n + i */
        } concat;
        struct mxc_attend_attr attend;
        struct mxc_cross_attr cross;
        struct {
            int32_t level;
        } level;
    } u;
};

struct mxc_graph {
    const char *family;
    int32_t n_layers, vocab, hidden;
    int64_t max_position; /* the model's context; 0: unknown */
    struct mxc_node *nodes;
    struct mxc_value *values;
    struct mxc_weight *weights;
    struct mxc_rope *ropes;
    struct mxc_kv *kvs;
    int32_t n_nodes, n_values, n_weights, n_ropes, n_kvs;
    int32_t logits; /* value [R, vocab]; of a tower: its output [rows, vocab] */
    /* Set by the family before finish: */
    bool hidden_out; /* `logits` is [R, hidden], the last hidden rows (embeddings); the family has
                        set vocab: token ids are below it */
    bool both_ways;  /* an encoder: every row sees its whole text, which comes in one step */
    /* towers: */
    int32_t input; /* value of the INPUT op, MXC_NONE: a decoder */
    int32_t n_slots, n_indices, n_ranges;
    struct {
        int32_t slot, terms; /* of the rows it has entries for (slot / divisor: see divisor) */
        int32_t divisor;
        bool weighted; /* every entry comes with a factor */
        int32_t limit; /* entries are in [-1, limit) (lookup: -1 adds nothing; gather: -1 is a row
                          of zeros), positions: any */
    } indices[MXC_MAX_INDICES];
    struct mxc_extent ranges[MXC_MAX_RANGES];
    int32_t cross_tokens; /* decoders with a CROSS store: tokens that one picture leaves, at most */
    int32_t n_levels;     /* decoders: ADD_LEVEL ops; a spliced row is [1 + n_levels][hidden] */
    int32_t *layer_values; /* [n_layers + 2] input of layer 0, output of each layer, final norm */
    struct mxc_graph_private *private_;
};

/* ---- building: a failed call makes the graph failed; finish reports the first error. A builder
 * returns the id of the new value (or weight, rope, kv); after a failure it returns 0 and does
 * nothing, so that families read as straight lines without checks. */
enum mxc_code mxc_graph_new(const char *family, struct mxc_graph **graph,
                            struct mxc_err *err) MXC_MUST;
void mxc_graph_free(struct mxc_graph *graph);
/* printf-style logical names. A name given again with the same role and shape is the same
 * weight. */
int32_t mxc_graph_matrix(struct mxc_graph *g, int64_t out, int64_t in, const char *fmt, ...)
    MXC_PRINTF(4, 5);
int32_t mxc_graph_vector(struct mxc_graph *g, int64_t n, const char *fmt, ...) MXC_PRINTF(3, 4);
int32_t mxc_graph_table(struct mxc_graph *g, int64_t rows, int64_t width, const char *fmt, ...)
    MXC_PRINTF(4, 5);
/* [slices, out, in]; see mxc_weight.name for '*'. */
int32_t mxc_graph_stack(struct mxc_graph *g, int64_t slices, int64_t out, int64_t in,
                        const char *fmt, ...) MXC_PRINTF(5, 6);
/* [slices, n] */
int32_t mxc_graph_vectors(struct mxc_graph *g, int64_t slices, int64_t n, const char *fmt, ...)
    MXC_PRINTF(4, 5);
/* A weight (role, n_dims and shape are read) that is a view of the named tensor; view->shape may
 * have one extent 0: whatever the file says. The same tensor may be seen by several weights. */
int32_t mxc_graph_view(struct mxc_graph *g, const struct mxc_weight *weight,
                       const struct mxc_weight_view *view, const char *fmt, ...) MXC_PRINTF(4, 5);
int32_t mxc_graph_rope(struct mxc_graph *g, const struct mxc_rope *rope);
int32_t mxc_graph_kv(struct mxc_graph *g, const struct mxc_kv *kv);
/* Layers begin in order, 0 first; MXC_NONE: outside. Sets n_layers. */
void mxc_graph_begin_layer(struct mxc_graph *g, int32_t layer);

int32_t mxc_graph_embed(struct mxc_graph *g, int32_t table, float scale);
/* ---- of towers: the input comes first. An index or range belongs to the rows of a value. */
int32_t mxc_graph_input(struct mxc_graph *g, int32_t width);
int32_t mxc_graph_index(struct mxc_graph *g, int32_t rows_of, int32_t terms, bool weighted);
int32_t mxc_graph_range(struct mxc_graph *g, int32_t rows_of);
/* gate: vector of 1, or MXC_NONE; complement: 1 - tanh(gate). */
int32_t mxc_graph_lookup(struct mxc_graph *g, int32_t x, int32_t table, int32_t index, int32_t gate,
                         bool complement);
/* Makes a new slot with an index of one term; the index's id is the last one of the graph. */
int32_t mxc_graph_gather(struct mxc_graph *g, int32_t x);
int32_t mxc_graph_merge(struct mxc_graph *g, int32_t x, int32_t rows);
int32_t mxc_graph_mean_rows(struct mxc_graph *g, int32_t x, int32_t rows);
int32_t mxc_graph_concat(struct mxc_graph *g, int n, const int32_t *values, bool turns);
/* gate: vector of 1; residual: value or MXC_NONE. */
int32_t mxc_graph_tanh_scale(struct mxc_graph *g, int32_t x, int32_t gate, int32_t residual);
int32_t mxc_graph_attend(struct mxc_graph *g, int32_t qkv, const struct mxc_attend_attr *attr);
/* ---- of decoders that see */
int32_t mxc_graph_cross(struct mxc_graph *g, int32_t q, const struct mxc_cross_attr *attr,
                        int32_t q_norm);
int32_t mxc_graph_row_mask(struct mxc_graph *g, int32_t x);
int32_t mxc_graph_add_level(struct mxc_graph *g, int32_t x);
int32_t mxc_graph_add_position(struct mxc_graph *g, int32_t x, int32_t table, int32_t offset);
/* Adds the same row of the table to every row. */
int32_t mxc_graph_add_table_row(struct mxc_graph *g, int32_t x, int32_t table, int32_t row);
int32_t mxc_graph_rms_norm(struct mxc_graph *g, int32_t x, int32_t weight, float eps, float offset);
/* weight: [width / groups] */
int32_t mxc_graph_group_norm(struct mxc_graph *g, int32_t x, int32_t weight, float eps,
                             int32_t groups);
/* bias: weight or MXC_NONE. */
int32_t mxc_graph_layer_norm(struct mxc_graph *g, int32_t x, int32_t weight, int32_t bias,
                             float eps);
struct mxc_linear_part {
    int32_t weight, bias; /* bias: MXC_NONE when absent */
};
/* residual: value or MXC_NONE. */
int32_t mxc_graph_linear(struct mxc_graph *g, int32_t x, int n_parts,
                         const struct mxc_linear_part *parts, float scale, int32_t residual);
/* q_norm, k_norm, sinks: weights or MXC_NONE. */
int32_t mxc_graph_attention(struct mxc_graph *g, int32_t qkv, const struct mxc_attn_attr *attr,
                            int32_t q_norm, int32_t k_norm, int32_t sinks);
/* As above, over a latent: in q [T, n_heads * head_dim] and latent [T, head_dim]. */
int32_t mxc_graph_latent_attention(struct mxc_graph *g, int32_t q, int32_t latent,
                                   const struct mxc_attn_attr *attr);
/* stack: [n_heads, out, in]; x: [T, n_heads * w], w >= in; y: [T, n_heads * (out + w - in)]. */
int32_t mxc_graph_heads_linear(struct mxc_graph *g, int32_t x, int32_t stack, int32_t n_heads);
int32_t mxc_graph_glu(struct mxc_graph *g, int32_t x, enum mxc_act act);
int32_t mxc_graph_act(struct mxc_graph *g, int32_t x, enum mxc_act act);
int32_t mxc_graph_softcap(struct mxc_graph *g, int32_t x, float cap);
int32_t mxc_graph_moe(struct mxc_graph *g, int32_t x, int32_t router,
                      const struct mxc_moe_attr *attr, const int32_t weights[MXC_N_MOE_WEIGHTS]);
/* g: [T, 1] */
int32_t mxc_graph_gate(struct mxc_graph *g, int32_t x, int32_t gate);
int32_t mxc_graph_unit_columns(struct mxc_graph *g, int32_t x, int32_t matrix);
int32_t mxc_graph_add(struct mxc_graph *g, int32_t a, int32_t b);
int32_t mxc_graph_select_out(struct mxc_graph *g, int32_t x);
/* Names a value for taps and marks it as input of layer 0 (index 0), output of layer i (i + 1) or
 * final norm (n_layers + 1). All are marked or none (layer_values then holds MXC_NONE). */
void mxc_graph_mark_layer_value(struct mxc_graph *g, int32_t index, int32_t value);
/* Records a family's own error (unsupported option); later calls do nothing. */
void mxc_graph_fail(struct mxc_graph *g, enum mxc_code code, const char *fmt, ...) MXC_PRINTF(3, 4);
/* Checks widths, extents, use before definition and weight shapes; fills producer and last_use (the
 * logits live to the last node) and sets vocab, the logits' width (with hidden_out it is set
 * already, and the width must be hidden); hidden is the first embed's. A tower's output may have
 * any tower rows. */
enum mxc_code mxc_graph_finish(struct mxc_graph *g, int32_t logits, struct mxc_err *err) MXC_MUST;

/* ---- reading */
/* One line per op, for people and golden tests. */
void mxc_graph_print(const struct mxc_graph *g, FILE *out);
/* "full" */
const char *mxc_kv_kind_name(enum mxc_kv_kind kind);
/* How many tensors of the file make a weight (slices of a name with '*', else 1), the name of the
 * i-th (written to `name`), and the shape that it must have (a 0 or -1: any). */
int64_t mxc_weight_tensors(const struct mxc_weight *weight);
enum { MXC_MAX_WEIGHT_NAME = 272 };
void mxc_weight_tensor_name(const struct mxc_weight *weight, int64_t i,
                            char name[MXC_MAX_WEIGHT_NAME]);
int mxc_weight_tensor_shape(const struct mxc_weight *weight, int64_t shape[MXC_MAX_VIEW_DIMS]);
/* Number of parameters (product of shapes over weights). */
uint64_t mxc_graph_parameters(const struct mxc_graph *g);

#endif
