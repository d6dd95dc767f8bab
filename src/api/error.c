/* Errors, version, log and memory of the public library. */
#include "api/api.h"

#include "base/log.h"
#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define SAME(a, b) _Static_assert((int)(a) == (int)(b), "public and inner values differ")
SAME(MLXCEL_OK, MXC_OK);
SAME(MLXCEL_USAGE, MXC_E_USAGE);
SAME(MLXCEL_NO_MEMORY, MXC_E_NOMEM);
SAME(MLXCEL_FORMAT, MXC_E_FORMAT);
SAME(MLXCEL_NETWORK, MXC_E_NETWORK);
SAME(MLXCEL_INTERNAL, MXC_E_INTERNAL);
SAME(MLXCEL_DEVICE_LOST, MXC_E_DEVICE_LOST);
SAME(MLXCEL_CONFIG, MXC_E_CONFIG);
SAME(MLXCEL_CONFIG + 1, MXC_N_CODES);
SAME(MLXCEL_LOG_ERROR, MXC_LOG_ERROR);
SAME(MLXCEL_LOG_DEBUG, MXC_LOG_DEBUG);
SAME(MLXCEL_PRECISION_AUTO, MXC_PRECISION_AUTO);
SAME(MLXCEL_PRECISION_EXACT, MXC_PRECISION_EXACT);
SAME(MLXCEL_PRECISION_FAST, MXC_PRECISION_FAST);

const char *mlxcel_version(void) {
    return MLXCEL_VERSION;
}

const char *mlxcel_status_name(mlxcel_status status) {
    return mxc_code_info((enum mxc_code)status)->name;
}

void mlxcel_free(void *text) {
    mxc_mem_free(text);
}

/* The inner sink is a type of its own; this one hands a line on. */
static mlxcel_log_fn *public_sink;

static void forward(enum mxc_log_level level, const char *line, void *user) {
    public_sink((mlxcel_log_level)level, line, user);
}

void mlxcel_log_set(mlxcel_log_fn *sink, mlxcel_log_level max_level, void *user) {
    mxc_log_set(NULL, MXC_LOG_ERROR,
                NULL); /* first, so that nothing is handed to a half-set sink */
    public_sink = sink;
    if (sink)
        mxc_log_set(forward, (enum mxc_log_level)max_level, user);
}

mlxcel_status mxc_api_fail(const struct mxc_err *err, struct mlxcel_error *error) {
    if (error) {
        error->status = (mlxcel_status)err->code;
        error->position = err->position;
        memcpy(error->message, err->message, sizeof error->message);
    }
    return (mlxcel_status)err->code;
}

mlxcel_status mxc_api_error(struct mlxcel_error *error, enum mxc_code code, const char *fmt, ...) {
    if (error) {
        va_list ap;
        va_start(ap, fmt);
        error->status = (mlxcel_status)code;
        error->position = -1;
        (void)vsnprintf(error->message, sizeof error->message, fmt, ap);
        va_end(ap);
    }
    return (mlxcel_status)code;
}
