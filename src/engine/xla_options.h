/* Options of OpenXLA sessions as people give them (flags, environment), and what they mean. The one
 * place where their text is read; the picture policy's is in xla_image.h. */
#ifndef MXC_ENGINE_XLA_OPTIONS_H
#define MXC_ENGINE_XLA_OPTIONS_H

#include "backend/backend.h"

/* Text, borrowed; NULL: not given. Sessions on another backend take no notice. */
struct mxc_xla_given {
    const char *plugin;    /* path of a PJRT plugin */
    const char *precision; /* f32, f16, bf16, auto */
    const char *capacity;  /* tokens of a sequence, 1 to 2^31-1 */
    const char *vision;    /* auto, host, device, iree */
    const char *tp_size;   /* devices that share a model (tensor parallelism), 1 to 1024 */
    const char *cache_dir; /* of compiled programs */
};
/* Takes MLXCEL_XLA_PLUGIN, -_PRECISION, -_CONTEXT_CAPACITY, -_VISION_BACKEND and MLXCEL_TP_SIZE
 * where nothing was given. Borrowed from the environment. */
void mxc_xla_given_environment(struct mxc_xla_given *given);

struct mxc_xla_settings {
    enum mxc_xla_precision precision;
    int32_t capacity; /* 0: the model's context, or what memory admits */
    int32_t devices;  /* at least 1 */
};
/* MXC_E_CONFIG names the variable, the text and what it must be. Blank text is text not given. */
enum mxc_code mxc_xla_given_read(const struct mxc_xla_given *given,
                                 struct mxc_xla_settings *settings, struct mxc_err *err) MXC_MUST;

#endif
