/* Log: one process-wide sink. Silent by default. */
#ifndef MXC_BASE_LOG_H
#define MXC_BASE_LOG_H

#include "base/err.h"

enum mxc_log_level { MXC_LOG_ERROR, MXC_LOG_WARN, MXC_LOG_INFO, MXC_LOG_DEBUG };

/* line has no newline. May be called from any thread, also at the same time. */
typedef void mxc_log_fn(enum mxc_log_level level, const char *line, void *user);
/* Set once, before other threads run. NULL: silent. */
void mxc_log_set(mxc_log_fn *sink, enum mxc_log_level max_level, void *user);
void mxc_log(enum mxc_log_level level, const char *fmt, ...) MXC_PRINTF(2, 3);

#endif
