/* Embed: text as one vector. What a checkpoint says about pooling, ids of a text within a bound,
 * and a request that pools the hidden rows as the engine delivers them. The model must have been
 * opened for embeddings (engine/load.h, hidden), or be an encoder. A text's vector does not depend
 * on what runs beside it: its rows have the same bits alone and in a batch, and are added up in
 * their order. */
#ifndef MXC_GEN_EMBED_H
#define MXC_GEN_EMBED_H

#include "engine/engine.h"
#include "gen/chat.h"

enum mxc_pooling {
    MXC_POOL_DEFAULT, /* as the checkpoint says; else mean for encoders, last for decoders */
    MXC_POOL_MEAN,    /* of all rows, those of special tokens included */
    MXC_POOL_CLS,     /* the first row */
    MXC_POOL_LAST,    /* the last row */
    MXC_POOL_MAX,     /* the largest number of each column */
    MXC_N_POOLINGS
};
/* "mean"; NULL for what is none. */
const char *mxc_pooling_name(enum mxc_pooling pooling);
/* false: no such name. "default" is one. */
bool mxc_pooling_find(const char *name, enum mxc_pooling *pooling);

struct mxc_embed_rule {
    enum mxc_pooling pooling; /* never DEFAULT */
    bool normalise;           /* to length 1 */
};
/* From a folder's modules.json and the pooling folder that it names (sentence-transformers).
 * Without modules.json: mean for an encoder, else last, and normalised. override: DEFAULT for none.
 * MXC_E_UNSUPPORTED: modules or pooling modes that are not done here, by name. */
enum mxc_code mxc_embed_rule_read(const char *path, const struct mxc_graph *graph,
                                  enum mxc_pooling override, struct mxc_embed_rule *rule,
                                  struct mxc_err *err) MXC_MUST;

/* Ids of a text with the tokeniser's special tokens, appended. more than max_tokens: with truncate
 * the text's last tokens are left out and the special ones behind it stay; else they are all there,
 * and submit will refuse them. */
enum mxc_code mxc_embed_ids(const struct mxc_chat *chat, const char *text, size_t length,
                            int32_t max_tokens, bool truncate, struct mxc_ids *ids,
                            struct mxc_err *err) MXC_MUST;

/* Borrowed for the call. */
struct mxc_embed_result {
    uint64_t request;
    const float *vector; /* finite; NULL unless the text has been read to its end */
    int32_t n;
    enum mxc_done_reason reason; /* LENGTH: the vector is there */
    const struct mxc_err *err;   /* with MXC_DONE_ERROR, else NULL */
    const struct mxc_request_stats *stats;
};
/* Called once, on the thread that steps the engine. May submit. */
typedef void mxc_embed_fn(void *user, const struct mxc_embed_result *result);

struct mxc_embed_params {
    struct mxc_embed_rule rule;
    int32_t
        dimensions; /* the first so many numbers; normalised again with rule.normalise. 0: all */
    int32_t priority;
    uint64_t deadline_ns;
    mxc_embed_fn *done;
    void *user;
};
/* As mxc_engine_submit; width is the graph's hidden. Cancel with mxc_engine_cancel. */
enum mxc_code mxc_embed_submit(struct mxc_engine *engine, int32_t width, const int32_t *ids,
                               int32_t n_ids, const struct mxc_embed_params *params, uint64_t *id,
                               struct mxc_err *err) MXC_MUST;

#endif
