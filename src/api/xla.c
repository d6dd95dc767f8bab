/* Public functions about OpenXLA devices: what a plugin finds, and a program's text.
 * In builds without the backend they are there and say how to rebuild. */
#include "api/api.h"

#include "base/mem.h"
#include "store/xla_place.h"

#ifdef MLXCEL_XLA

#include "backend/xla.h"

/* The public struct first, so that its address is ours. */
struct devices {
    struct mlxcel_xla_devices shown;
    struct mxc_xla_devices inner;
    char *plugin;
    struct mlxcel_xla_device *items;
};

void mlxcel_xla_devices_free(struct mlxcel_xla_devices *devices) {
    struct devices *d = (struct devices *)devices;
    if (!d)
        return;
    mxc_xla_devices_fini(&d->inner);
    mxc_mem_free(d->items);
    mxc_mem_free(d->plugin);
    mxc_mem_free(d);
}

/* The plugin to ask, owned by the caller; NULL: none is known. */
static enum mxc_code find_plugin(const char *plugin, char **path, struct mxc_err *err) {
    struct mxc_xla_given given = {.plugin = plugin};
    struct mxc_xla_place place;
    mxc_xla_given_environment(&given);
    enum mxc_code code = mxc_xla_place_find(&place, err);
    if (code)
        return code;
    const char *found = given.plugin && *given.plugin ? given.plugin : place.plugin;
    if (found && !(*path = mxc_mem_strdup(found)))
        code = mxc_err_nomem(err);
    mxc_xla_place_fini(&place);
    return code;
}

mlxcel_status mlxcel_xla_devices_new(const char *plugin, struct mlxcel_xla_devices **devices,
                                     struct mlxcel_error *error) {
    struct mxc_err err;
    struct devices *d = mxc_mem_zalloc(1, sizeof *d);
    enum mxc_code code = d ? find_plugin(plugin, &d->plugin, &err) : mxc_err_nomem(&err);
    if (!code)
        code = mxc_xla_devices_read(d->plugin, &d->inner, &err);
    if (!code && !(d->items = mxc_mem_zalloc((size_t)d->inner.n + 1, sizeof *d->items)))
        code = mxc_err_nomem(&err);
    if (code) {
        mlxcel_xla_devices_free(d ? &d->shown : NULL);
        return mxc_api_fail(&err, error);
    }
    for (int i = 0; i < d->inner.n; i++)
        d->items[i] = (struct mlxcel_xla_device){.kind = d->inner.items[i].kind,
                                                 .description = d->inner.items[i].description,
                                                 .memory_bytes = d->inner.items[i].memory_bytes,
                                                 .in_use_bytes = d->inner.items[i].in_use_bytes};
    d->shown = (struct mlxcel_xla_devices){.plugin = d->plugin,
                                           .platform = d->inner.platform,
                                           .version = d->inner.version,
                                           .api_major = d->inner.api_major,
                                           .api_minor = d->inner.api_minor,
                                           .n_devices = d->inner.n,
                                           .devices = d->items};
    *devices = &d->shown;
    return MLXCEL_OK;
}

mlxcel_status mlxcel_xla_emit(const char *path, const struct mlxcel_xla_program *program,
                              char **text, struct mlxcel_error *error) {
    struct mxc_xla_given given = {.precision = program->precision};
    struct mxc_xla_settings settings;
    struct mxc_checkpoint *c = NULL;
    struct mxc_err err;
    size_t length;
    mxc_xla_given_environment(&given);
    given.capacity = NULL; /* is not asked for here */
    enum mxc_code code = mxc_xla_given_read(&given, &settings, &err);
    if (!code && !(code = mxc_checkpoint_open_with(path, program->surgery, &c, &err))) {
        const struct mxc_xla_emit_options options = {.decode = program->decode,
                                                     .rows = program->rows,
                                                     .context = program->context,
                                                     .unrolled = program->unrolled,
                                                     .precision = settings.precision};
        code = mxc_xla_emit(c->graph, c->weights, &options, text, &length, &err);
    }
    mxc_checkpoint_close(c);
    return code ? mxc_api_fail(&err, error) : MLXCEL_OK;
}

#else

#define REBUILD                                                                                    \
    "backend 'xla' is not in this build: rebuild with -DMLXCEL_XLA=ON "                            \
    "-DMLXCEL_XLA_DEVICE_RUNTIME=ON"

mlxcel_status mlxcel_xla_devices_new(const char *plugin, struct mlxcel_xla_devices **devices,
                                     struct mlxcel_error *error) {
    (void)plugin, (void)devices;
    return mxc_api_error(error, MXC_E_CONFIG, REBUILD);
}

void mlxcel_xla_devices_free(struct mlxcel_xla_devices *devices) {
    (void)devices;
}

mlxcel_status mlxcel_xla_emit(const char *path, const struct mlxcel_xla_program *program,
                              char **text, struct mlxcel_error *error) {
    (void)path, (void)program, (void)text;
    return mxc_api_error(error, MXC_E_CONFIG, REBUILD);
}

#endif
