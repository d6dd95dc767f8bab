/* Pack: where the numbers of a model's weights come from; shared by weights.c and pack.c. */
#ifndef MXC_BACKEND_XLA_PACK_H
#define MXC_BACKEND_XLA_PACK_H

#include "backend/xla/model.h"

#include "base/half.h"
#include "format/view.h"

struct mxc_xla_source {
    struct mxc_view *views; /* one for each matrix of a stack, or each tensor of a vector */
    int64_t n;
    struct mxc_tensor *flats; /* tensors that are seen under another shape */
};

#endif
