/* Load: joins a checkpoint, its family's graph and a backend. The only file of the engine that
 * knows families. Thread rules: open and close on one thread; a checkpoint is read-only in between
 * and may be read from any thread; the plan belongs to the thread that steps. */
#ifndef MXC_ENGINE_LOAD_H
#define MXC_ENGINE_LOAD_H

#include "backend/backend.h"
#include "engine/engine.h"
#include "format/config.h"
#include "format/weights.h"
#include "engine/xla_options.h"
#include "graph/graph.h"
#include "models/vision.h"
#include "surgery/surgery.h"

/* What is on disk, checked and described, not loaded. */
struct mxc_checkpoint {
    char *path;
    struct mxc_config *config;
    struct mxc_weights *weights;
    struct mxc_surgery *surgery; /* what was done to the weights; NULL: nothing */
    struct mxc_graph *graph;
    struct mxc_vision *vision; /* how it sees; NULL: it does not */
};
/* path: a folder with config.json and safetensors, or a .gguf file. Errors name the path of what
 * they are about. Operations on the weights: as MLXCEL_SURGERY says, if that is set. */
enum mxc_code mxc_checkpoint_open(const char *path, struct mxc_checkpoint **checkpoint,
                                  struct mxc_err *err) MXC_MUST;
/* surgery: the document of operations on the weights; NULL: MLXCEL_SURGERY, if that is set; "":
 * none. */
enum mxc_code mxc_checkpoint_open_with(const char *path, const char *surgery,
                                       struct mxc_checkpoint **checkpoint,
                                       struct mxc_err *err) MXC_MUST;
void mxc_checkpoint_close(struct mxc_checkpoint *checkpoint); /* NULL is fine */
/* Tokens of a sequence the model was made for; 4096 when the checkpoint does not say. */
int32_t mxc_checkpoint_context(const struct mxc_checkpoint *checkpoint);

struct mxc_load_options {
    const char *backend;               /* NULL, "": the first one of the build */
    const struct mxc_backend_ops *ops; /* a backend instead of its name; NULL: by name */
    const char *surgery;               /* as of mxc_checkpoint_open_with */
    struct mxc_xla_given xla;          /* of the "xla" backend */
    int n_threads;                     /* 0: one per core */
    enum mxc_precision precision;
    int32_t max_rows;  /* of a step */
    int32_t max_out;   /* rows of a step whose logits are wanted; max_rows for traces */
    int32_t max_batch; /* sequences of a step */
    int32_t context;   /* tokens of a sequence that KV must have room for; 0: 256, or the model's */
    uint64_t memory;   /* bytes that may be taken; 0: what the system has left */
    bool force;        /* load even if that is not enough */
    bool hidden;       /* for embeddings: without the head, all rows of a step are output rows.
                          Encoders are so by themselves */
    bool (*progress)(void *user, double fraction); /* false cancels. May be NULL */
    void *progress_user;
};
/* "", one thread per core, auto precision, 512 rows, 16 out, batch 16. */
void mxc_load_options_init(struct mxc_load_options *options);

struct mxc_model {
    struct mxc_checkpoint *checkpoint; /* owned */
    const struct mxc_backend_ops *ops;
    struct mxc_backend *backend;
    struct mxc_plan *plan;
    struct mxc_plan *tower;                  /* of the vision part, or NULL */
    const struct mxc_backend_ops *tower_ops; /* with tower: its backend, which may be another one */
    struct mxc_backend *tower_backend;       /* that other one, or NULL */
    struct mxc_plan *spare_tower; /* on the CPU backend, once the device could not run tower */
    struct mxc_backend *spare_backend;
    bool may_fall_back;      /* to spare_tower */
    char vision_reason[256]; /* why pictures are not taken, where that is not the checkpoint's
                                doing; "": they are, or the model is text only */
    int32_t capacity; /* of a sequence, as an OpenXLA session was told; 0: nothing was said */
    struct mxc_plan_memory memory;   /* weights_bytes: the tower's too */
    struct mxc_load_options options; /* without progress and texts. For embeddings max_out is
                                        max_rows; an encoder's max_rows has room for a whole text */
};
/* MXC_E_LIMIT, with what is needed and what there is, when weights, activations and KV of one
 * sequence do not fit; nothing has been packed then. On the "xla" backend xla_image.h decides about
 * pictures first: its errors come with "OpenXLA image preprocessor load failed" in front. */
enum mxc_code mxc_model_open(const char *path, const struct mxc_load_options *options,
                             struct mxc_model **model, struct mxc_err *err) MXC_MUST;
/* Every engine on it must have been freed. NULL is fine. */
void mxc_model_close(struct mxc_model *model);
/* The engine's thread may make the model's spare tower. */
struct mxc_engine_target mxc_model_target(const struct mxc_model *model);
/* Tokens of a sequence when so many are asked for (0: none are): never more than the model was made
 * for, nor than its capacity. */
int32_t mxc_model_context(const struct mxc_model *model, int64_t asked);

/* ---- supported architectures */

struct mxc_family_info {
    const char *name, *summary, *notes;
    const char *const *model_types, *const *gguf_archs; /* NULL-ended, static */
};
/* false: there is no such index. */
bool mxc_load_family(size_t index, struct mxc_family_info *info);

/* ---- memory, in bytes */

/* What this process may still take: the system's available memory, or what the control group
 * leaves, whichever is less; 0: not known. */
uint64_t mxc_memory_available(void);

struct mxc_memory_estimate {
    uint64_t weights, activations, kv; /* the tower's weights too; what a picture takes on top is
                                          told by its size */
    uint64_t kv_kinds[MXC_N_KV_KINDS]; /* the parts of kv */
    uint64_t overhead;                 /* program, tokeniser, logits, sampling: about */
    uint64_t total;
    uint64_t kv_per_token; /* of kinds that grow with the text */
};
/* Loading the checkpoint and running `batch` sequences of `context` tokens; nothing is packed. */
enum mxc_code mxc_checkpoint_estimate(const struct mxc_checkpoint *checkpoint,
                                      const struct mxc_load_options *options, int32_t context,
                                      int32_t batch, struct mxc_memory_estimate *estimate,
                                      struct mxc_err *err) MXC_MUST;
/* What one picture of width x height takes: its cost in patches and tokens, and bytes (the tower's
 * activations while it runs, and its features). budget: NULL for the model's default. The tower is
 * compiled for it. MXC_E_UNSUPPORTED: the model does not see. */
enum mxc_code mxc_checkpoint_picture(const struct mxc_checkpoint *checkpoint,
                                     const struct mxc_load_options *options, int32_t width,
                                     int32_t height, const struct mxc_vision_budget *budget,
                                     struct mxc_vision_cost *cost, uint64_t *bytes,
                                     struct mxc_err *err) MXC_MUST;

/* Blocks for an engine on the model: for n_sequences of context tokens, or for kv_tokens tokens in
 * all when that is not 0 and less; never more than budget_bytes (0: half of what is available, or
 * what one sequence of the load options' context takes, if that is more).
 * MXC_E_LIMIT with both numbers when that is not enough for one sequence of 256 tokens (or
 * context). */
enum mxc_code mxc_model_blocks(const struct mxc_model *model, int32_t context, int32_t n_sequences,
                               int64_t kv_tokens, uint64_t budget_bytes,
                               int32_t n_blocks[MXC_N_KV_KINDS], struct mxc_err *err) MXC_MUST;

#endif
