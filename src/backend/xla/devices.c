/* Devices of a plugin, for people. In: the path of a plugin. Out: what it and its devices say of
 * themselves. The client lives for this call only: no program is compiled. */
#define _GNU_SOURCE
#include "backend/xla.h"

#include "backend/xla/client.h"
#include "base/mem.h"

#include <unistd.h>

void mxc_xla_devices_fini(struct mxc_xla_devices *devices) {
    for (int i = 0; i < devices->n; i++) {
        mxc_mem_free(devices->items[i].kind);
        mxc_mem_free(devices->items[i].description);
    }
    mxc_mem_free(devices->items);
    mxc_mem_free(devices->platform);
    mxc_mem_free(devices->version);
    *devices = (struct mxc_xla_devices){.n = 0};
}

#ifdef MLXCEL_XLA_DEVICE_RUNTIME

static uint64_t machine_memory(void) {
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : 0;
}

/* All or nothing is the caller's business: what could be copied stands in *out. */
static bool copy(const struct mxc_xla_client_info *info, struct mxc_xla_devices *out) {
    out->api_major = info->api_major;
    out->api_minor = info->api_minor;
    out->platform = mxc_mem_strdup(info->platform);
    out->version = mxc_mem_strdup(info->version);
    out->items = mxc_mem_zalloc((size_t)info->n_devices, sizeof *out->items);
    if (!out->platform || !out->version || !out->items)
        return false;
    for (out->n = 0; out->n < info->n_devices; out->n++) {
        const struct mxc_xla_device_info *from = &info->devices[out->n];
        struct mxc_xla_device *to = &out->items[out->n];
        to->kind = mxc_mem_strdup(from->kind);
        to->description = mxc_mem_strdup(from->description);
        if (!to->kind || !to->description) {
            out->n++; /* this one's parts are there to be freed */
            return false;
        }
        to->memory_bytes = from->memory_bytes;
        to->in_use_bytes = from->in_use_bytes;
        if (!to->memory_bytes && info->is_cpu)
            to->memory_bytes = machine_memory();
    }
    return true;
}

enum mxc_code mxc_xla_devices_read(const char *plugin, struct mxc_xla_devices *devices,
                                   struct mxc_err *err) {
    const struct mxc_xla_client_options options = {.plugin = plugin,
                                                   .n_devices = MXC_XLA_ALL_DEVICES};
    struct mxc_xla_devices found = {.n = 0};
    struct mxc_xla_client *client = NULL;
    enum mxc_code code = mxc_xla_client_open(&options, &client, err);
    if (code)
        return code;
    if (copy(mxc_xla_client_info(client), &found)) {
        *devices = found;
    } else {
        mxc_xla_devices_fini(&found);
        code = mxc_err_nomem(err);
    }
    mxc_xla_client_close(client);
    return code;
}

#else

enum mxc_code mxc_xla_devices_read(const char *plugin, struct mxc_xla_devices *devices,
                                   struct mxc_err *err) {
    (void)plugin, (void)devices;
    return mxc_err_set(err, MXC_E_NOT_WIRED,
                       "this build lacks the device runtime (feature xla-device): rebuild with "
                       "-DMLXCEL_XLA=ON -DMLXCEL_XLA_DEVICE_RUNTIME=ON");
}

#endif
