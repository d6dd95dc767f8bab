/* Shelving: when KV blocks go to the shelf (shelf.h), and when they come back. They go one at a
 * time between steps: those that a second request used, seldom while others generate; those of
 * prompts when the engine has had nothing to do for a while. They come back when a request waits
 * whose prompt goes on where the prefix cache ends. Thread rules: the stepping thread only. */
#ifndef MXC_ENGINE_SHELVING_H
#define MXC_ENGINE_SHELVING_H

#include "engine/request.h"
#include "engine/shelf.h"

struct mxc_shelving {
    const struct mxc_shelf *shelf; /* NULL: none */
    struct mxc_blocks *blocks;
    const struct mxc_backend_ops *ops;
    struct mxc_state *state;
    uint64_t block_bytes[MXC_N_KV_KINDS];
    uint64_t (*clock)(void);
    uint64_t busy_ns, put_ns;  /* when there last was something else to do; when one was put */
    uint64_t n_fetched, n_put; /* blocks */
};

/* Brings in what the shelf has for requests that wait, some milliseconds at a time. */
void mxc_shelving_fetch(struct mxc_shelving *s, struct mxc_request *const *queue, int32_t n,
                        bool others_run);
/* Puts what is due. busy: the engine has other work. */
void mxc_shelving_put(struct mxc_shelving *s, bool busy);
/* Puts as much as the shelf takes now. Returns whether something is left. */
bool mxc_shelving_put_all(struct mxc_shelving *s);
/* The record of a node; MXC_E_NOMEM. */
enum mxc_code mxc_shelving_record(struct mxc_shelving *s, int32_t node, uint8_t **record,
                                  size_t *n_bytes, struct mxc_err *err) MXC_MUST;
/* A checked record becomes a node (one that is there already is fine). MXC_E_NOT_FOUND: the block
 * before it is not there; MXC_E_LIMIT: no room; MXC_E_FORMAT: of another model. */
enum mxc_code mxc_shelving_adopt(struct mxc_shelving *s, const uint8_t *record,
                                 struct mxc_err *err) MXC_MUST;

#endif
