/* Inside the public library: what its files share. Public structs are opaque wrappers of inner
 * ones; public enums have the inner values, which a static check in error.c holds. */
#ifndef MXC_API_API_H
#define MXC_API_API_H

#include "engine/load.h"
#include "gen/prompt.h"
#include "mlxcel.h"

#include <stdatomic.h>

struct mlxcel_model {
    struct mxc_model *loaded; /* NULL: tokenizer only */
    struct mxc_chat *chat;    /* tokenizer, template, ends */
    struct mlxcel_model_options options;
    int32_t context; /* tokens a sequence may have */
    char quantisation[48];
    double load_seconds;
    atomic_flag busy; /* an engine, trace or bench runs it: a plan takes one step at a time */
};

/* Takes the model for one that runs it; MXC_E_BUSY when it is taken. */
enum mxc_code mxc_api_take(struct mlxcel_model *model, struct mxc_err *err) MXC_MUST;
void mxc_api_give_back(struct mlxcel_model *model);

/* Copies an inner error to the public struct (which may be NULL). Returns its status. */
mlxcel_status mxc_api_fail(const struct mxc_err *err, struct mlxcel_error *error);
/* A public error of this layer. */
mlxcel_status mxc_api_error(struct mlxcel_error *error, enum mxc_code code, const char *fmt, ...)
    MXC_PRINTF(3, 4);

#endif
