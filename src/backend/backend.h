/* Backend: the seam. A backend compiles a graph into a plan (weights packed or uploaded, buffers
 * laid out, kernels picked) and runs the plan on steps. The engine and the tests' fake backend see
 * nothing else. Thread rules: one thread at a time uses a backend and everything opened from it. */
#ifndef MXC_BACKEND_BACKEND_H
#define MXC_BACKEND_BACKEND_H

#include "base/err.h"
#include "format/weights.h"
#include "graph/graph.h"
#include "graph/tower.h"

enum { MXC_KV_BLOCK = 32 }; /* tokens per KV block */

enum mxc_precision {
    MXC_PRECISION_AUTO,  /* fast for quantised weights and for bf16, exact otherwise */
    MXC_PRECISION_EXACT, /* f32 activations, weights as decoded to f32, f32 KV */
    MXC_PRECISION_FAST   /* int8 activations on quantised weights, bf16 on bf16, bf16 KV */
};

/* A run of consecutive rows of one sequence. Row row0 + i is the sequence's token number
 * context + i; its K and V go to block blocks[kind][(context + i) / MXC_KV_BLOCK]. Blocks that lie
 * wholly before every row's window may be -1. */
struct mxc_span {
    int32_t row0, n_rows;
    int32_t context;     /* tokens of the sequence already in KV */
    int32_t rope_length; /* length fixed at admission, for length-dependent RoPE */
    const int32_t *blocks[MXC_N_KV_KINDS];
    int32_t n_blocks[MXC_N_KV_KINDS];
    int32_t adapter;      /* -1: none */
    int32_t cross_tokens; /* tokens in the sequence's CROSS store; 0: it has seen no picture */
};

/* Replaces the embedding of a row (image features). */
struct mxc_splice {
    int32_t row;
    const float *embedding; /* [1 + n_levels][hidden], borrowed for the run */
};

/* Plain arrays; exactly what rank 0 would broadcast. Rows of spans cover [0, n_rows) in order. */
struct mxc_step {
    int32_t n_rows;
    const int32_t *tokens;      /* [n_rows] */
    const int32_t *positions;   /* [n_axes][n_rows] */
    int32_t n_axes;             /* 1, or 3 for M-RoPE */
    const int32_t *row_end;     /* [n_rows] a row sees keys < row_end; NULL: causal */
    const int32_t *cross_range; /* [2][n_rows]: tokens of the CROSS store that a row sees, first and
                                   one past the last; NULL: no row sees any */
    int32_t n_spans;
    const struct mxc_span *spans;
    int32_t n_out;          /* may be 0 (a prefill chunk that is not the last) */
    const int32_t *out_row; /* [n_out] ascending rows */
    int32_t n_splices;      /* ascending rows */
    const struct mxc_splice *splices;
};

/* Called for every named value (rows x width, row-major, borrowed) in graph order. */
typedef void mxc_tap_fn(void *user, const struct mxc_graph *graph, int32_t value, const float *data,
                        int32_t rows, int32_t width);

struct mxc_out {
    float *logits;   /* [n_out][vocab], the caller's */
    mxc_tap_fn *tap; /* NULL: none */
    void *tap_user;
};

/* What goes into dots on an OpenXLA device. Sums, norms, softmax and RoPE are f32 in all of them.
 */
enum mxc_xla_precision {
    MXC_XLA_PRECISION_AUTO, /* f32, or what the device is made for */
    MXC_XLA_PRECISION_F32,
    MXC_XLA_PRECISION_F16,
    MXC_XLA_PRECISION_BF16
};

/* Of the "xla" backend; the others take no notice. Text is borrowed for the call of open. */
struct mxc_xla_options {
    const char *plugin;    /* path of a PJRT plugin; NULL or "": none is known */
    const char *cache_dir; /* folder of compiled programs; NULL or "": none are kept */
    uint64_t cache_bytes;  /* at most, in that folder; 0: the backend's own bound */
    int n_devices;         /* a model's parts lie on; 0: one */
    enum mxc_xla_precision precision;
};

struct mxc_backend_options {
    int n_threads; /* 0: one per core */
    struct mxc_xla_options xla;
};

struct mxc_plan_options {
    enum mxc_precision precision;
    int32_t max_rows;  /* largest n_rows of a step; of a tower: this and the next two say nothing */
    int32_t max_out;   /* largest n_out */
    int32_t max_spans; /* largest n_spans */
    /* progress in [0, 1]; return false to cancel. May be NULL. */
    bool (*progress)(void *user, double fraction);
    void *progress_user;
};

/* What lies in memory of a device's own: of the device that holds most. */
struct mxc_device_memory {
    uint64_t limit_bytes; /* what it admits; 0: devices use the host's memory, or do not tell */
    uint64_t weights_bytes, kv_block_bytes[MXC_N_KV_KINDS];
};
struct mxc_plan_memory {
    uint64_t weights_bytes; /* on the host; parts of it that devices copy there counted again */
    uint64_t activation_bytes;
    uint64_t
        kv_block_bytes[MXC_N_KV_KINDS]; /* one block of every layer of the kind; 0: kind unused */
    struct mxc_device_memory device;
};

/* What a plan made of one matrix, for people. */
struct mxc_plan_matrix {
    const char *name, *storage; /* of the weight; of its numbers in the file. Borrowed */
    const char *kernel;         /* "matmul_i4" */
    char layout[32];            /* "I4 g32 affine" */
    int64_t rows, columns;      /* of one slice */
    int32_t slices, used;       /* experts, heads: how many a row is multiplied with */
    uint64_t bytes;             /* packed, of all slices */
    uint8_t bits;               /* of what its products are made of: 8 (integers), 16 or 32 */
    bool outputs_only;          /* only rows whose output is wanted are multiplied */
};

struct mxc_backend;
struct mxc_plan;
struct mxc_state; /* KV block storage */
struct mxc_tower; /* one run of a tower */

struct mxc_backend_ops {
    const char *name; /* "cpu", "xla" */
    enum mxc_code (*open)(const struct mxc_backend_options *options, struct mxc_backend **backend,
                          struct mxc_err *err);
    void (*close)(struct mxc_backend *backend);
    /* Memory a compile would take, without doing it. */
    enum mxc_code (*estimate)(struct mxc_backend *backend, const struct mxc_graph *graph,
                              const struct mxc_weights *weights,
                              const struct mxc_plan_options *options,
                              struct mxc_plan_memory *memory, struct mxc_err *err);
    /* graph and weights are borrowed until plan_free. */
    enum mxc_code (*compile)(struct mxc_backend *backend, const struct mxc_graph *graph,
                             const struct mxc_weights *weights,
                             const struct mxc_plan_options *options, struct mxc_plan **plan,
                             struct mxc_err *err);
    void (*plan_free)(struct mxc_plan *plan);
    void (*plan_memory)(const struct mxc_plan *plan, struct mxc_plan_memory *memory);
    /* One line for people: ISA level, precision, layouts. Borrowed. */
    const char *(*plan_describe)(const struct mxc_plan *plan);
    /* The plan's index-th matrix; false: there is none. NULL: the backend does not tell. */
    bool (*plan_matrix)(const struct mxc_plan *plan, int32_t index, struct mxc_plan_matrix *out);
    enum mxc_code (*state_new)(struct mxc_plan *plan, const int32_t n_blocks[MXC_N_KV_KINDS],
                               struct mxc_state **state, struct mxc_err *err);
    void (*state_free)(struct mxc_state *state);
    /* Copies one block of every layer of the kind (copy on write). */
    void (*state_copy)(struct mxc_state *state, enum mxc_kv_kind kind, int32_t from, int32_t to);
    /* Bytes of one block of the kind, in the backend's own form, to and from memory
     * (kv_block_bytes of them): prompt-cache files. */
    enum mxc_code (*state_export)(struct mxc_state *state, enum mxc_kv_kind kind, int32_t block,
                                  void *bytes, struct mxc_err *err);
    enum mxc_code (*state_import)(struct mxc_state *state, enum mxc_kv_kind kind, int32_t block,
                                  const void *bytes, struct mxc_err *err);
    enum mxc_code (*run)(struct mxc_plan *plan, struct mxc_state *state,
                         const struct mxc_step *step, const struct mxc_out *out,
                         struct mxc_err *err);
    /* Writes K and V of tokens [token0, token0 + n) of one sequence's CROSS store: rows[i * ld]
     * are, for each CROSS op in the order of the graph, n_kv_heads * head_dim numbers of K, then of
     * V. */
    enum mxc_code (*state_put)(struct mxc_state *state, const int32_t *blocks, int32_t token0,
                               int32_t n, const float *rows, size_t ld, struct mxc_err *err);
    /* A run of a tower (a plan whose graph has an INPUT), in pieces so that decode steps of others
     * fit in between: new checks the input and takes memory for it (the input is borrowed until
     * free); step does about `budget` multiply-adds and tells whether it is done; output is
     * [rows][vocab of the graph], valid until free. A tower may be freed at any time. */
    enum mxc_code (*tower_new)(struct mxc_plan *plan, const struct mxc_tower_input *input,
                               struct mxc_tower **tower, struct mxc_err *err);
    enum mxc_code (*tower_step)(struct mxc_tower *tower, uint64_t budget, bool *done,
                                struct mxc_err *err);
    /* Before the first step: every named value is shown, in the order of the graph, when the run is
     * done. Takes more memory than tower_bytes says; for tests. */
    enum mxc_code (*tower_tap)(struct mxc_tower *tower, mxc_tap_fn *tap, void *user,
                               struct mxc_err *err);
    const float *(*tower_output)(const struct mxc_tower *tower, int32_t *rows);
    void (*tower_free)(struct mxc_tower *tower);
    /* Memory that a run on that input takes, without doing it. */
    uint64_t (*tower_bytes)(const struct mxc_plan *plan, const struct mxc_tower_input *input);
};

extern const struct mxc_backend_ops mxc_backend_cpu;
#ifdef MLXCEL_XLA
extern const struct mxc_backend_ops mxc_backend_xla;
#endif

/* What the processor can do, measured now on n_threads threads (0: one per core), a second or two;
 * 0: no such unit. */
struct mxc_cpu_limits {
    double read_gbs, int8_tops, bf16_tflops, f32_tflops;
};
enum mxc_code mxc_backend_cpu_limits(int n_threads, struct mxc_cpu_limits *limits,
                                     struct mxc_err *err) MXC_MUST;

/* "cpu" (also NULL and ""); another name is MXC_E_UNSUPPORTED that lists what this build has. */
enum mxc_code mxc_backend_find(const char *name, const struct mxc_backend_ops **ops,
                               struct mxc_err *err) MXC_MUST;

#endif
