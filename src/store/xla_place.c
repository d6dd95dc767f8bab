/* Places of OpenXLA sessions, from the environment (MLXCEL_CACHE_DIR, HOME). In: nothing. Out:
 * paths. Looks at the disk, never writes. */
#define _GNU_SOURCE
#include "store/xla_place.h"

#include "base/file.h"
#include "base/mem.h"

#include <limits.h>
#include <stdlib.h>

enum mxc_code mxc_xla_place_find(struct mxc_xla_place *place, struct mxc_err *err) {
    const char *cache = getenv("MLXCEL_CACHE_DIR"), *home = getenv("HOME");
    struct mxc_xla_place p = {.programs = NULL};
    if ((!cache || !*cache) && (!home || !*home))
        goto out;
    char *base = cache && *cache ? mxc_mem_strdup(cache) : mxc_path_join(home, ".cache/mlxcel");
    p.root = base ? mxc_path_join(base, "xla") : NULL;
    p.programs = p.root ? mxc_path_join(p.root, "programs") : NULL;
    mxc_mem_free(base);
    char *link = p.root ? mxc_path_join(p.root, "plugin") : NULL, resolved[PATH_MAX];
    bool there = link && realpath(link, resolved) && mxc_file_exists(resolved);
    if (there)
        p.plugin = mxc_mem_strdup(resolved);
    bool failed = !p.programs || !link || (there && !p.plugin);
    mxc_mem_free(link);
    if (failed) {
        mxc_xla_place_fini(&p);
        return mxc_err_nomem(err);
    }
out:
    *place = p;
    return MXC_OK;
}

void mxc_xla_place_fini(struct mxc_xla_place *place) {
    mxc_mem_free(place->root);
    mxc_mem_free(place->programs);
    mxc_mem_free(place->plugin);
    *place = (struct mxc_xla_place){.programs = NULL};
}
