/* What is asked of the "xla" backend beside its table in backend.h: which devices a plugin has, and
 * a model's program as text. Only in builds with MLXCEL_XLA. */
#ifndef MXC_BACKEND_XLA_H
#define MXC_BACKEND_XLA_H

#include "backend/backend.h"

struct mxc_xla_device {
    char *kind, *description; /* "NVIDIA H200"; the plugin's own line */
    uint64_t memory_bytes;    /* that may be used; of a CPU: the machine's. 0: not known */
    uint64_t in_use_bytes;
};

struct mxc_xla_devices {
    char *platform, *version; /* "cpu", "cuda"; free text */
    int api_major, api_minor; /* of PJRT */
    int n;
    struct mxc_xla_device *items; /* all that the plugin has; of a CPU: one */
};

/* Opens the plugin, asks, closes it. Without the device runtime MXC_E_NOT_WIRED. (devices.c) */
enum mxc_code mxc_xla_devices_read(const char *plugin, struct mxc_xla_devices *devices,
                                   struct mxc_err *err) MXC_MUST;
void mxc_xla_devices_fini(struct mxc_xla_devices *devices);

struct mxc_xla_emit_options {
    bool decode;     /* one row of each of `rows` sequences; else `rows` rows of one */
    int32_t rows;    /* [1, 4096] */
    int32_t context; /* tokens of a sequence, at least 1 */
    bool unrolled;   /* layers one after the other, not a loop over like ones */
    enum mxc_xla_precision precision;
};
/* StableHLO text of a decoder's program of that size (sizes are taken as they are, not rounded up
 * to those that runs use), NUL-terminated, owned by the caller (mxc_mem_free). Needs no device; no
 * weight is read but for its shape and storage. (emit.c) */
enum mxc_code mxc_xla_emit(const struct mxc_graph *graph, const struct mxc_weights *weights,
                           const struct mxc_xla_emit_options *options, char **text, size_t *length,
                           struct mxc_err *err) MXC_MUST;

#endif
