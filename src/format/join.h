/* Joining: what the passes share that make one tensor of a quantised matrix's pieces (mlx_join.c,
 * hf_join.c). In: raw tensors of a folder. A pass changes codes' tensors in place and marks the
 * pieces that it attached; weights.c drops those and indexes the names again.
 * Thread rules: one thread. */
#ifndef MXC_FORMAT_JOIN_H
#define MXC_FORMAT_JOIN_H

#include "base/arena.h"
#include "base/json.h"
#include "base/map.h"
#include "format/weights.h"

enum { MXC_JOIN_MAX_NAME = 1100 };

struct mxc_join {
    struct mxc_tensor *tensors; /* [n], as they stand in the files */
    size_t n;
    const struct mxc_map *by_name; /* indices into tensors, by raw name */
    const json_t *quantization;    /* the config's object, or NULL */
    bool *gone;                    /* [n]: attached to another tensor */
    struct mxc_arena *arena;       /* for names and parts */
    struct mxc_err *err;
};

/* The tensor module + suffix, or NULL. */
struct mxc_tensor *mxc_join_find(const struct mxc_join *j, const char *module, const char *suffix);
/* "FILE: tensor NAME: what". */
enum mxc_code mxc_join_refuse(const struct mxc_join *j, const struct mxc_tensor *t,
                              enum mxc_code code, const char *what);
/* The name without suffix, into module[MXC_JOIN_MAX_NAME]. */
enum mxc_code mxc_join_module(const struct mxc_join *j, const struct mxc_tensor *t,
                              const char *suffix, char *module) MXC_MUST;
/* Marks a piece as attached to w. NULL pieces are none. */
void mxc_join_take(struct mxc_join *j, struct mxc_tensor *w, const struct mxc_tensor *piece);
/* Gives w storage and parts (a copy); bits, group and the like follow from them. */
enum mxc_code mxc_join_parts(struct mxc_join *j, struct mxc_tensor *w, enum mxc_storage storage,
                             const struct mxc_quant_parts *parts) MXC_MUST;
/* Numbers in all. */
int64_t mxc_join_numbers(const struct mxc_tensor *t);
bool mxc_join_is_float(enum mxc_storage storage);

#endif
