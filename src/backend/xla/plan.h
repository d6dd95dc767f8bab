/* Plan: a model on a device: its weights as buffers, the programs that were met so far, and the
 * form they have. Shared by plan.c, run.c, state.c, choice.c and the tower's files. Without the
 * device runtime there is no client: a plan can be made and looked at, not run. */
#ifndef MXC_BACKEND_XLA_PLAN_H
#define MXC_BACKEND_XLA_PLAN_H

#include "backend/xla/module.h"

struct mxc_xla_towers;

struct mxc_backend {
    struct mxc_xla_client *client; /* NULL: built without the device runtime */
    char *cache_dir;               /* NULL: none */
    enum mxc_xla_precision precision;
    int n_threads;
};

/* A program of steps of some size. */
struct mxc_xla_step_program {
    struct mxc_xla_buckets buckets;
    struct mxc_xla_module module;
    struct mxc_xla_program *program;
    struct mxc_xla_step_program *next;
};

struct mxc_plan {
    struct mxc_backend *backend;
    struct mxc_xla_client *client;
    const struct mxc_graph *graph;
    struct mxc_xla_model *model;
    struct mxc_xla_form form;
    int devices; /* that share the model; of a tower: 1 */
    int32_t max_rows, max_out, max_spans;
    /* [n_stacks][N_PARTS][devices] whole stacks, and [n_weights of all stacks][N_PARTS][devices]
     * single weights */
    struct mxc_xla_buffer **whole, **single;
    struct mxc_xla_step_program *programs;
    struct mxc_xla_towers *towers; /* the tower files' own */
    float *feed_floats;            /* memory of the last step's feeds */
    int32_t *feed_ints;
    size_t feed_floats_n, feed_ints_n;
    float *out_rows; /* a program's results on the host */
    size_t out_rows_n;
    char describe[160];
};

struct mxc_state {
    struct mxc_plan *plan;
    int32_t n_blocks[MXC_N_KV_KINDS]; /* the engine's */
    int32_t blocks[MXC_N_KV_KINDS];   /* of the arrays: those, one of zeros, one for waste, and some
                                         that nobody uses, so that sizes are few */
    struct mxc_xla_buffer **kv;       /* [devices][2 * groups] K, V; V of LATENT: NULL */
    bool lost;                        /* a copy failed: nothing here can be trusted */
    struct mxc_xla_state_program *programs; /* state.c's own */
};

/* Arrays of one device. */
static inline size_t mxc_xla_state_arrays(const struct mxc_state *state) {
    return 2 * (size_t)state->plan->model->n_groups;
}
static inline int32_t mxc_xla_zero_block(const struct mxc_state *state, int kind) {
    return state->n_blocks[kind];
}
static inline int32_t mxc_xla_waste_block(const struct mxc_state *state, int kind) {
    return state->n_blocks[kind] + 1;
}

/* ---- plan.c */
/* The buffers of a weight argument, one of each device, borrowed; uploaded when they are asked for
 * first. */
enum mxc_code mxc_xla_plan_weight(struct mxc_plan *plan, const struct mxc_xla_module_param *param,
                                  struct mxc_xla_buffer *const **out, struct mxc_err *err) MXC_MUST;
/* Lets all of them go; what is asked for again is uploaded again. */
void mxc_xla_plan_drop_weights(struct mxc_plan *plan);
/* Compiles a module; donation and signature are taken from it. */
enum mxc_code mxc_xla_plan_program(struct mxc_plan *plan, const char *name,
                                   const struct mxc_xla_module *module,
                                   struct mxc_xla_program **program, struct mxc_err *err) MXC_MUST;

/* ---- feed.c: one part of a step as the arrays of a program */
struct mxc_xla_part_of_step {
    const struct mxc_step *step;
    const struct mxc_state *state;
    int32_t row0, n_rows;        /* a prefill: rows of one span */
    const int32_t *rows, *spans; /* a decode: [n_rows] rows of the step, and their spans */
    const int32_t *out;          /* [n_out] wanted rows, counted in the part */
    int32_t n_out;
};
void mxc_xla_feed_fill(const struct mxc_plan *plan, const struct mxc_xla_part_of_step *part,
                       const struct mxc_xla_buckets *buckets, const struct mxc_xla_feed *feed,
                       void *to);

/* ---- run.c */
enum mxc_code mxc_xla_run_step(struct mxc_plan *plan, struct mxc_state *state,
                               const struct mxc_step *step, const struct mxc_out *out,
                               struct mxc_err *err) MXC_MUST;
/* Program of these sizes, compiled when it is new. */
enum mxc_code mxc_xla_program_for(struct mxc_plan *plan, const struct mxc_xla_buckets *buckets,
                                  struct mxc_xla_step_program **out, struct mxc_err *err) MXC_MUST;

/* ---- state.c */
enum mxc_code mxc_xla_state_new(struct mxc_plan *plan, const int32_t n_blocks[MXC_N_KV_KINDS],
                                struct mxc_state **state, struct mxc_err *err) MXC_MUST;
void mxc_xla_state_free(struct mxc_state *state);
void mxc_xla_state_copy(struct mxc_state *state, enum mxc_kv_kind kind, int32_t from, int32_t to);
enum mxc_code mxc_xla_state_export(struct mxc_state *state, enum mxc_kv_kind kind, int32_t block,
                                   void *bytes, struct mxc_err *err) MXC_MUST;
enum mxc_code mxc_xla_state_import(struct mxc_state *state, enum mxc_kv_kind kind, int32_t block,
                                   const void *bytes, struct mxc_err *err) MXC_MUST;
enum mxc_code mxc_xla_state_put(struct mxc_state *state, const int32_t *blocks, int32_t token0,
                                int32_t n, const float *rows, size_t ld,
                                struct mxc_err *err) MXC_MUST;

#endif
