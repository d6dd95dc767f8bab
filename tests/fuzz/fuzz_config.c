/* config.json -> config. */
#define _GNU_SOURCE
#include "scratch.h"

#include "format/config.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct mxc_config *c;
    struct mxc_err err = {0};
    (void)scratch_write("config.json", data, size);
    if (mxc_config_open(scratch_folder(), &c, &err)) {
        if (!*err.message || strchr(err.message, '\n'))
            abort();
        return 0;
    }
    if (!c->model_type || !c->text || c->n_eos < 0 || c->n_eos > MXC_MAX_EOS)
        abort();
    mxc_config_close(c);
    return 0;
}
