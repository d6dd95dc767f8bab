/* Graph: a model as a straight-line list of coarse ops, built once per loaded model by its family.
 * Everything reads this one list: weight validation, memory estimate, CPU plan, StableHLO, dumps.
 * Values are f32 matrices [rows, width]; rows are symbolic: T (rows of the step), R (rows whose
 * output is wanted), or for towers a*N/b + c*I of declared inputs. Owned by the caller of new; the
 * graph copies names. Read-only after mxc_graph_finish; then safe from any thread. */
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

enum { MXC_MAX_IN = 4, MXC_MAX_NODE_WEIGHTS = 8, MXC_NONE = -1 };

/* Symbolic number of rows. */
enum mxc_extent_kind { MXC_ROWS_T, MXC_ROWS_R, MXC_ROWS_TOWER };
struct mxc_extent {
    enum mxc_extent_kind kind;
    int32_t a, b, c; /* tower: a * N / b + c * I */
};

struct mxc_value {
    const char *name; /* "" or a name for taps: "layer.3.out", "final_norm", "logits" */
    struct mxc_extent rows;
    int32_t width;
    int32_t producer, last_use; /* node indices; filled by mxc_graph_finish */
};

enum mxc_weight_role { MXC_W_MATRIX, MXC_W_VECTOR, MXC_W_TABLE /* embedding rows */ };
struct mxc_weight {
    const char *name; /* logical name, see format/weights.h */
    enum mxc_weight_role role;
    int n_dims;
    int64_t shape[3];
};

enum mxc_act { MXC_ACT_SILU, MXC_ACT_GELU, MXC_ACT_GELU_TANH, MXC_ACT_RELU, MXC_N_ACTS };

/* KV kinds: each has block tables and lengths of its own in a step. A KV store is one layer's:
 * exactly one attention op appends to it. */
enum mxc_kv_kind { MXC_KV_FULL, MXC_KV_WINDOW, MXC_KV_LATENT, MXC_KV_CROSS, MXC_N_KV_KINDS };
struct mxc_kv {
    enum mxc_kv_kind kind;
    int32_t n_heads, k_dim, v_dim; /* per token: n_heads * (k_dim + v_dim) numbers */
    int32_t window;                /* MXC_KV_WINDOW: a row sees keys > position - window */
};

struct mxc_attn_attr {
    int32_t n_heads, n_kv_heads, head_dim; /* input width: (n_heads + 2 n_kv_heads) * head_dim */
    float scale;                           /* of q . k */
    float softcap;                         /* 0: none */
    int32_t window;                        /* 0: none */
    int32_t rope;                          /* index into graph->ropes, MXC_NONE: no rotation */
    int32_t kv;                            /* index into graph->kvs */
    float qk_norm_eps; /* weights[0], weights[1]: per-head RMS norm of q and k before RoPE, MXC_NONE
                          when absent; weights[2]: sinks */
};

struct mxc_node {
    enum mxc_op op;
    int32_t layer; /* MXC_NONE outside the layers */
    int32_t n_in, n_weights;
    int32_t in[MXC_MAX_IN];
    int32_t weights[MXC_MAX_NODE_WEIGHTS]; /* LINEAR: w0, b0, w1, b1, ... (a bias may be MXC_NONE; a
                                              matrix may be the TABLE of an EMBED: tied head);
                                              ATTENTION: always 3, each may be MXC_NONE */
    int32_t out;
    union {
        struct {
            float scale;
        } embed;
        struct {
            float eps, offset;
        } norm;
        struct {
            int32_t n_parts;
            float scale;
        } linear;
        struct mxc_attn_attr attn;
        struct {
            enum mxc_act act;
        } glu;
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
    int32_t logits;        /* value [R, vocab] */
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
int32_t mxc_graph_rope(struct mxc_graph *g, const struct mxc_rope *rope);
int32_t mxc_graph_kv(struct mxc_graph *g, const struct mxc_kv *kv);
/* Layers begin in order, 0 first; MXC_NONE: outside. Sets n_layers. */
void mxc_graph_begin_layer(struct mxc_graph *g, int32_t layer);

int32_t mxc_graph_embed(struct mxc_graph *g, int32_t table, float scale);
int32_t mxc_graph_rms_norm(struct mxc_graph *g, int32_t x, int32_t weight, float eps, float offset);
struct mxc_linear_part {
    int32_t weight, bias; /* bias: MXC_NONE when absent */
};
/* residual: value or MXC_NONE. */
int32_t mxc_graph_linear(struct mxc_graph *g, int32_t x, int n_parts,
                         const struct mxc_linear_part *parts, float scale, int32_t residual);
/* q_norm, k_norm, sinks: weights or MXC_NONE. */
int32_t mxc_graph_attention(struct mxc_graph *g, int32_t qkv, const struct mxc_attn_attr *attr,
                            int32_t q_norm, int32_t k_norm, int32_t sinks);
int32_t mxc_graph_glu(struct mxc_graph *g, int32_t x, enum mxc_act act);
int32_t mxc_graph_add(struct mxc_graph *g, int32_t a, int32_t b);
int32_t mxc_graph_select_out(struct mxc_graph *g, int32_t x);
/* Names a value for taps and marks it as input of layer 0 (index 0), output of layer i (i + 1) or
 * final norm (n_layers + 1). All are marked or none (layer_values then holds MXC_NONE). */
void mxc_graph_mark_layer_value(struct mxc_graph *g, int32_t index, int32_t value);
/* Records a family's own error (unsupported option); later calls do nothing. */
void mxc_graph_fail(struct mxc_graph *g, enum mxc_code code, const char *fmt, ...) MXC_PRINTF(3, 4);
/* Checks widths, extents, use before definition and weight shapes; fills producer and last_use (the
 * logits live to the last node) and sets vocab, the logits' width; hidden is the first embed's. */
enum mxc_code mxc_graph_finish(struct mxc_graph *g, int32_t logits, struct mxc_err *err) MXC_MUST;

/* ---- reading */
/* One line per op, for people and golden tests. */
void mxc_graph_print(const struct mxc_graph *g, FILE *out);
/* Number of parameters (product of shapes over weights). */
uint64_t mxc_graph_parameters(const struct mxc_graph *g);

#endif
