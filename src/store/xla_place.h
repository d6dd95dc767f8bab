/* Where OpenXLA sessions find what lies on this machine: compiled programs, and a plugin that
 * `mlxcel xla install` fetched. All of it is under ${MLXCEL_CACHE_DIR:-~/.cache/mlxcel}/xla. */
#ifndef MXC_STORE_XLA_PLACE_H
#define MXC_STORE_XLA_PLACE_H

#include "base/err.h"

/* Owned paths. */
struct mxc_xla_place {
    char *root;     /* the folder of it all, which need not exist yet; NULL: there is no home */
    char *programs; /* folder in it; NULL with root */
    char *plugin;   /* the one installed last (wheel.h), links resolved, or NULL */
};
/* Only the memory can fail. */
enum mxc_code mxc_xla_place_find(struct mxc_xla_place *place, struct mxc_err *err) MXC_MUST;
void mxc_xla_place_fini(struct mxc_xla_place *place);

#endif
