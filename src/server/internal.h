/* Inside the server: what its files share. */
#ifndef MXC_SERVER_INTERNAL_H
#define MXC_SERVER_INTERNAL_H

#include "base/arena.h"
#include "server/auth.h"
#include "server/exchange.h"
#include "server/limits.h"
#include "server/route.h"
#include "server/server.h"
#include "server/watch.h"
#include "server/work.h"

struct mxc_front;
struct mxc_jobs;
struct mxc_constraints;
struct mxc_responses;
struct mxc_prompt_cache;
struct mxc_slots;

struct mxc_server {
    struct mxc_arena arena; /* of the options' text */
    struct mxc_server_options options;
    struct mxc_host *host; /* borrowed */
    struct mxc_auth *auth;
    struct mxc_limits limits;
    struct mxc_work *work;
    struct mxc_watch *watch;
    struct mxc_jobs *jobs;                 /* generations that run (job.h) */
    struct mxc_constraints *constraints;   /* what structured output shares (constrain.h) */
    struct mxc_responses *responses;       /* stored ones and those that run (responses.h) */
    struct mxc_media *media;               /* where pictures may come from */
    struct mxc_prompt_cache *prompt_cache; /* NULL: none on disk */
    struct mxc_slots *slots;               /* saved ones (slots.h) */
    struct mxc_front *http;
    uint64_t start_ns;
    int64_t start_time; /* Unix time */
};

#endif
