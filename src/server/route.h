/* Routes: one table (surface.def) of method, path, handler. A path that ends in "*" takes what
 * stands there as x->tail (not empty, no '/'), and may have one more word behind it. */
#ifndef MXC_SERVER_ROUTE_H
#define MXC_SERVER_ROUTE_H

#include "server/exchange.h"

/* Fills the reply, or returns an error in *fault. */
typedef enum mxc_code mxc_route_fn(struct mxc_exchange *x, struct mxc_fault *fault);

enum mxc_route_flags {
    MXC_ROUTE_PUBLIC = 1, /* needs no key */
    MXC_ROUTE_INLINE = 2, /* quick: runs on the HTTP thread, also while the server drains */
    MXC_ROUTE_JSON = 4    /* the body is a JSON object; x->json */
};

struct mxc_route {
    const char *method, *path;
    enum mxc_api api;
    unsigned flags;
    mxc_route_fn *fn;
    const char *summary;
};

/* The route, or NULL; then *allow has the methods of the path ("GET, HEAD"), empty: no such path.
 * HEAD finds GET. tail: where the text of "*" is put. */
const struct mxc_route *mxc_route_find(const char *method, const char *path, char allow[64],
                                       char tail[256]);
/* The i-th route, NULL behind the last one. */
const struct mxc_route *mxc_route_at(size_t i);
/* The family whose error shape fits a path that is no route. */
enum mxc_api mxc_route_api(const char *path);

#endif
