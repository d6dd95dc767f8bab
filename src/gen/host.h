/* Host: the models of one server. Opens them in the background, owns the one loop thread, the
 * engines and the chats, and takes requests for any of them by index. A server reaches the engine
 * through this header and gen/generate.h only.
 * A model goes from LOADING to READY or UNAVAILABLE once, and from READY to LOST when its device is
 * lost: then its requests have ended and no other is taken. What info and chat hand out when it is
 * READY stays valid until the host is freed.
 * Thread rules: every function from any thread, but add before start, and free once, last. */
#ifndef MXC_GEN_HOST_H
#define MXC_GEN_HOST_H

#include "engine/load.h"
#include "engine/shelf.h"
#include "gen/chat.h"
#include "gen/embed.h"
#include "gen/generate.h"

enum { MXC_HOST_MAX_MODELS = 32 };
enum mxc_host_state {
    MXC_HOST_LOADING,
    MXC_HOST_READY,
    MXC_HOST_UNAVAILABLE, /* it could not be opened */
    MXC_HOST_LOST         /* was READY until its device was lost */
};

struct mxc_host_model_options {
    const char *path;         /* a folder or a .gguf file */
    const char *name;         /* the id it is served under; names of a host differ */
    const char *backend;      /* NULL: the first one of the build */
    const char *surgery;      /* as of mxc_checkpoint_open_with */
    struct mxc_xla_given xla; /* of the "xla" backend */
    int n_threads;            /* 0: one per core */
    enum mxc_precision precision;
    int32_t context;          /* tokens of a sequence; 0: the model's, which is also the most */
    int32_t parallel;         /* sequences in flight */
    int32_t max_chunk;        /* prompt rows of a step */
    int32_t max_queue;        /* requests that wait */
    bool force;               /* load even if memory does not suffice */
    bool embeddings;          /* for embeddings, not for text; encoders are so by themselves */
    enum mxc_pooling pooling; /* of embeddings; DEFAULT: as the checkpoint says */
    uint64_t kv_bytes; /* of the KV pool; 0: what parallel sequences need, within half of memory */
    struct mxc_vision_budget image_budget; /* of a picture; zeros: the model's default */
};
/* "", auto precision, context 0, 4 in flight, 512 rows, 64 waiting. */
void mxc_host_model_options_init(struct mxc_host_model_options *options);

/* Text is borrowed from the host. What follows `progress` is set once READY, and when LOST. */
struct mxc_host_info {
    const char *name, *path;
    enum mxc_host_state state;
    struct mxc_err err; /* UNAVAILABLE, LOST: why */
    double progress;    /* LOADING: 0 to 1 */
    const char *family, *model_type, *quantisation, *backend;
    int32_t context, trained_context, parallel, max_chunk, max_queue;
    int32_t vocab, hidden, n_layers;
    int32_t max_token_bytes; /* of the longest token's spelling */
    bool embeds;             /* takes mxc_host_embed, else mxc_host_submit */
    struct mxc_embed_rule rule;
    uint64_t parameters;
    uint64_t weight_bytes;     /* of the files */
    uint64_t kv_bytes;         /* of the KV pool, at most */
    const char *vision_reason; /* why it takes no pictures, where that is not the checkpoint's
                                  doing; "": it takes them, or is text only */
    double load_seconds;
    struct mxc_vision_budget image_budget; /* of a picture; zeros: what the files say */
};

struct mxc_host;
enum mxc_code mxc_host_new(struct mxc_host **host, struct mxc_err *err) MXC_MUST;
/* Ends loading and whatever is in flight (DONE with MXC_DONE_CANCELLED), closes everything. */
void mxc_host_free(struct mxc_host *host);
/* Copies the options. MXC_E_ARG: a name twice or a value out of range; MXC_E_LIMIT: too many. */
enum mxc_code mxc_host_add(struct mxc_host *host, const struct mxc_host_model_options *options,
                           struct mxc_err *err) MXC_MUST;
/* Starts loading, in the order of add. changed (may be NULL) is called after every change of a
 * state, on the loader's thread or the loop's. */
enum mxc_code mxc_host_start(struct mxc_host *host, void (*changed)(void *user), void *user,
                             struct mxc_err *err) MXC_MUST;

int mxc_host_count(const struct mxc_host *host);
/* Index of a name, -1: none. */
int mxc_host_find(const struct mxc_host *host, const char *name);
void mxc_host_info(struct mxc_host *host, int model, struct mxc_host_info *info);
/* Tokeniser and template; NULL while the model is not READY or LOST. */
struct mxc_chat *mxc_host_chat(struct mxc_host *host, int model);
/* How the model sees; NULL while it is not READY or LOST, and for one that does not. */
const struct mxc_vision *mxc_host_vision(struct mxc_host *host, int model);
/* Sampling that a request starts from: the checkpoint's own defaults over the customary ones. */
void mxc_host_sampling(struct mxc_host *host, int model, struct mxc_sampling *sampling);
/* As mxc_gen_submit. MXC_E_BUSY: the queue is full, or the model is LOADING; MXC_E_NOT_FOUND: it is
 * UNAVAILABLE (the message says why); MXC_E_DEVICE_LOST: it is LOST. Events come on the loop's
 * thread. */
enum mxc_code mxc_host_submit(struct mxc_host *host, int model, const struct mxc_prompt *prompt,
                              const struct mxc_gen_params *params, uint64_t *id,
                              struct mxc_err *err) MXC_MUST;
/* As mxc_embed_submit, with the codes of mxc_host_submit. */
enum mxc_code mxc_host_embed(struct mxc_host *host, int model, const int32_t *ids, int32_t n_ids,
                             const struct mxc_embed_params *params, uint64_t *id,
                             struct mxc_err *err) MXC_MUST;
void mxc_host_cancel(struct mxc_host *host, int model, uint64_t id);
/* All zero while the model is not READY or LOST. */
void mxc_host_stats(struct mxc_host *host, int model, struct mxc_engine_stats *stats);
/* Forgets cached prefixes that no request uses; waits for the step that runs. */
void mxc_host_clear_cache(struct mxc_host *host, int model);

/* ---- KV outside the engine (engine/engine.h, engine/shelf.h); each waits for the step that runs.
 * Only while the model is READY. */

/* What the KV of a model depends on besides its text, in pieces: the i-th file of the checkpoint
 * and of the surgery on it, NULL behind the last one. Borrowed. */
const char *mxc_host_file(struct mxc_host *host, int model, size_t i);
/* And the plan in one line (ISA level, precision, layouts, KV type). Borrowed. */
const char *mxc_host_plan(struct mxc_host *host, int model);
/* As mxc_engine_set_shelf, _shelve, _kept_record, _adopt, _forget. */
void mxc_host_set_shelf(struct mxc_host *host, int model, const struct mxc_shelf *shelf);
bool mxc_host_shelve(struct mxc_host *host, int model);
enum mxc_code mxc_host_kept_record(struct mxc_host *host, int model,
                                   const uint8_t digest[MXC_BLAKE2B_BYTES], int32_t number,
                                   uint8_t **record, size_t *n_bytes, struct mxc_err *err) MXC_MUST;
enum mxc_code mxc_host_adopt(struct mxc_host *host, int model, const uint8_t *record,
                             struct mxc_err *err) MXC_MUST;
int32_t mxc_host_forget(struct mxc_host *host, int model, const uint8_t digest[MXC_BLAKE2B_BYTES]);
/* Wakes the thread that steps, so that it looks at its shelf. From any thread, does not wait. */
void mxc_host_wake(struct mxc_host *host);

/* "none", "Q4_1", "MLX affine 4-bit g64" (mxc_tensor_storage_name): the storage that holds most
 * bytes, "mixed " in front of it when another quantised one is there too. */
void mxc_host_quantisation(const struct mxc_weights *weights, char *out, size_t size);

#endif
