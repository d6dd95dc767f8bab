/* What single GGUF architectures need beyond the tables of gguf_config.c. Private to these two.
 * Thread rules: one thread. */
#ifndef MXC_FORMAT_GGUF_ARCH_H
#define MXC_FORMAT_GGUF_ARCH_H

#include "base/json.h"
#include "format/gguf.h"

/* A config object in the making. */
struct mxc_gguf_context {
    const struct mxc_gguf *g;
    const char *path;
    char arch[64];
    char key[160]; /* the last key made by key_of */
    json_t *root;  /* owned by the caller */
    struct mxc_err *err;
};

/* "ARCH.name", in c->key. */
const char *mxc_gguf_key_of(struct mxc_gguf_context *c, const char *name);
/* object[key] = value, which is given away; NULL is MXC_E_NOMEM. */
enum mxc_code mxc_gguf_put(struct mxc_gguf_context *c, json_t *object, const char *key,
                           json_t *value) MXC_MUST;
/* c->root[key] as an integer; 0 where there is none. */
int64_t mxc_gguf_int_of(const struct mxc_gguf_context *c, const char *key);
const struct mxc_gguf_tensor *mxc_gguf_tensor_of(const struct mxc_gguf_context *c,
                                                 const char *name);

/* The model_type where the architecture alone does not tell it (llama with experts is mixtral). */
enum mxc_code mxc_gguf_arch_type(struct mxc_gguf_context *c) MXC_MUST;
/* Before the general checks: keys whose meaning is the architecture's own. */
enum mxc_code mxc_gguf_arch_shape(struct mxc_gguf_context *c) MXC_MUST;
/* After everything else: keys under a family's own names, and what files leave to the reader. */
enum mxc_code mxc_gguf_arch_finish(struct mxc_gguf_context *c) MXC_MUST;

#endif
