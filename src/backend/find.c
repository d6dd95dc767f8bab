/* Backend registry: the names a build knows. Another backend is one line in the list.
 * In: a name from the user or the environment; missing or empty means the first of the list.
 * Out: the backend's table, which is constant and lives as long as the program. An unknown name is
 * an error that lists the known ones. */
#include "backend/backend.h"

#include <string.h>

static const struct mxc_backend_ops *const list[] = {
    &mxc_backend_cpu,
#ifdef MLXCEL_XLA
    &mxc_backend_xla,
#endif
};

enum mxc_code mxc_backend_find(const char *name, const struct mxc_backend_ops **ops,
                               struct mxc_err *err) {
    if (!name || !*name)
        name = list[0]->name;
#ifndef MLXCEL_XLA
    if (!strcmp(name, "xla"))
        return mxc_err_set(err, MXC_E_CONFIG,
                           "backend 'xla' is not in this build: rebuild with -DMLXCEL_XLA=ON "
                           "-DMLXCEL_XLA_DEVICE_RUNTIME=ON");
#endif
    char names[128] = "";
    size_t used = 0;
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        if (!strcmp(list[i]->name, name)) {
            *ops = list[i];
            return MXC_OK;
        }
        size_t n = strlen(list[i]->name);
        if (used + n + 2 < sizeof names) {
            if (used)
                names[used++] = ' ';
            memcpy(names + used, list[i]->name, n + 1);
            used += n;
        }
    }
    return mxc_err_set(err, MXC_E_UNSUPPORTED, "backend '%.40s' is not in this build (it has: %s)",
                       name, names);
}
