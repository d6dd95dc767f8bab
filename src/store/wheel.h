/* Plugins of OpenXLA devices out of Python wheels: a pinned wheel is fetched from the configured
 * package index, its hash verified, the plugin taken out of it and put into the store. No Python is
 * needed, nothing of the wheel is run.
 * Everything is under <root> (${MLXCEL_CACHE_DIR:-~/.cache/mlxcel}/xla): plugins/<kind>-<version>/
 * holds a wheel's plugin under its path in the wheel, so that device libraries that it looks for
 * beside itself can be put there; the link "plugin" names the one installed last, which
 * store/xla_place.h finds. Only built with the device runtime (libzip). */
#ifndef MXC_STORE_WHEEL_H
#define MXC_STORE_WHEEL_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A wheel that is known byte for byte. */
struct mxc_wheel_pin {
    const char *kind;    /* "cpu", "cuda12" ... */
    const char *project; /* on the index */
    const char *version;
    const char *file;   /* the wheel's name */
    const char *sha256; /* of the wheel */
    uint64_t bytes;     /* of the wheel */
    const char *plugin; /* path of the shared object in it */
};
/* The pin of a kind; MXC_E_ARG lists those there are, MXC_E_UNSUPPORTED: not for this processor. */
enum mxc_code mxc_wheel_pin_find(const char *kind, const struct mxc_wheel_pin **pin,
                                 struct mxc_err *err) MXC_MUST;

struct mxc_wheel_progress {
    const char *doing;    /* "downloading", "unpacking", or why it waits */
    uint64_t done, total; /* bytes of that; total 0: not known */
};
/* Called often on the calling thread; false cancels. */
typedef bool mxc_wheel_progress_fn(const struct mxc_wheel_progress *progress, void *user);

struct mxc_wheel_request {
    const struct mxc_wheel_pin *pin;
    const char *root;                /* NULL: as said above */
    const char *index_url;           /* NULL: pip's configuration (pip_index.h) */
    unsigned retries;                /* further tries without progress; 0: 5 */
    unsigned retry_ms;               /* first pause, doubled each time up to 30 s; 0: 1000 */
    mxc_wheel_progress_fn *progress; /* or NULL */
    void *user;
};

/* Fetches, verifies, unpacks, and makes it the plugin that is found. path: of the plugin, owned by
 * the caller. One that is there already is only made the one that is found. An interrupted
 * download is taken up where it stopped. Other versions of the kind are deleted. Errors:
 * MXC_E_NOT_FOUND (index, project or file), MXC_E_NETWORK, MXC_E_FORMAT (hash, size, wheel),
 * MXC_E_IO, MXC_E_BUSY (another process at it), MXC_E_CANCELLED. */
enum mxc_code mxc_wheel_install(const struct mxc_wheel_request *request, char **path,
                                struct mxc_err *err) MXC_MUST;

#endif
