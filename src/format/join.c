/* Helpers of the joining passes, see join.h. Invariant: a tensor that is given parts has data,
 * bytes and row count of its codes, so that everything else treats it as any other matrix. */
#include "format/join.h"

#include <stdio.h>
#include <string.h>

struct mxc_tensor *mxc_join_find(const struct mxc_join *j, const char *module, const char *suffix) {
    char name[MXC_JOIN_MAX_NAME];
    uint64_t index;
    int n = snprintf(name, sizeof name, "%s%s", module, suffix);
    if (n < 0 || (size_t)n >= sizeof name ||
        !mxc_map_get(j->by_name, (struct mxc_str){name, (size_t)n}, &index))
        return NULL;
    return &j->tensors[index];
}

enum mxc_code mxc_join_refuse(const struct mxc_join *j, const struct mxc_tensor *t,
                              enum mxc_code code, const char *what) {
    return mxc_err_set(j->err, code, "%s: tensor %s: %s", t->file->path, t->name, what);
}

enum mxc_code mxc_join_module(const struct mxc_join *j, const struct mxc_tensor *t,
                              const char *suffix, char *module) {
    size_t length = strlen(t->name) - strlen(suffix);
    if (length >= MXC_JOIN_MAX_NAME)
        return mxc_join_refuse(j, t, MXC_E_FORMAT, "name too long");
    memcpy(module, t->name, length);
    module[length] = 0;
    return MXC_OK;
}

void mxc_join_take(struct mxc_join *j, struct mxc_tensor *w, const struct mxc_tensor *piece) {
    if (!piece || piece == w || j->gone[piece - j->tensors])
        return;
    j->gone[piece - j->tensors] = true;
    w->companion_bytes += piece->bytes;
}

enum mxc_code mxc_join_parts(struct mxc_join *j, struct mxc_tensor *w, enum mxc_storage storage,
                             const struct mxc_quant_parts *parts) {
    struct mxc_quant_parts *copy = mxc_arena_alloc(j->arena, sizeof *copy);
    if (!copy)
        return mxc_err_nomem(j->err);
    *copy = *parts;
    w->storage = storage;
    w->parts = copy;
    w->bits = parts->bits;
    w->group = parts->group <= UINT32_MAX ? (uint32_t)parts->group : UINT32_MAX;
    w->scale_storage = parts->scale_storage;
    w->scales = parts->scales;
    return MXC_OK;
}

int64_t mxc_join_numbers(const struct mxc_tensor *t) {
    return mxc_tensor_rows(t) * mxc_tensor_columns(t);
}

bool mxc_join_is_float(enum mxc_storage s) {
    return s == MXC_ST_F16 || s == MXC_ST_BF16 || s == MXC_ST_F32;
}
