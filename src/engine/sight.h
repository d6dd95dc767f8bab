/* Sight: runs the vision tower for requests that wait, picture by picture, in pieces between the
 * steps of those that generate. A request is `seen` when all its pictures' features are there;
 * until then the scheduler passes it over. One tower runs at a time. Thread rules: the engine
 * thread only. */
#ifndef MXC_ENGINE_SIGHT_H
#define MXC_ENGINE_SIGHT_H

#include "engine/features.h"
#include "engine/request.h"

struct mxc_sight {
    const struct mxc_backend_ops *ops; /* of the tower */
    struct mxc_plan *plan;             /* NULL: no eye */
    uint64_t (*clock)(void);
    struct mxc_features features;
    struct mxc_request *request; /* whose picture is in the tower; NULL: none */
    int32_t picture;
    struct mxc_tower *tower;
    double rate; /* multiply-adds a nanosecond, as measured */
    enum mxc_code (*spare)(void *user, const struct mxc_err *why,
                           const struct mxc_backend_ops **ops, struct mxc_plan **plan,
                           struct mxc_err *err); /* of the target; NULL: none, or it is in use */
    void *spare_user;
};

void mxc_sight_init(struct mxc_sight *sight, const struct mxc_engine_target *target,
                    uint64_t (*clock)(void), size_t feature_bytes);
void mxc_sight_fini(struct mxc_sight *sight); /* no request may be left */
/* Works for the first of the requests that is not seen, for about busy_ns when others generate
 * (busy), else longer. Returns a request whose tower failed, with the error, or NULL. */
struct mxc_request *mxc_sight_step(struct mxc_sight *sight, struct mxc_request *const *requests,
                                   int32_t n_requests, bool busy, struct mxc_err *err);
/* The request ends: its tower is stopped, its features are given back. */
void mxc_sight_forget(struct mxc_sight *sight, struct mxc_request *request);

#endif
