/* Log: formats a line and hands it to the program's sink.
 * In: a level and printf arguments. Out: one call of the sink with a line of at most 1,023 bytes;
 * nothing where there is no sink or the level is not wanted.
 * The sink stands in plain globals without a lock, because it is set once before other threads run.
 * The line lies on the stack, so logging never allocates. */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

static mxc_log_fn *log_sink;
static enum mxc_log_level log_max;
static void *log_user;

void mxc_log_set(mxc_log_fn *sink, enum mxc_log_level max_level, void *user) {
    log_sink = sink;
    log_max = max_level;
    log_user = user;
}

void mxc_log(enum mxc_log_level level, const char *fmt, ...) {
    if (!log_sink || level > log_max)
        return;
    char line[1024];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    log_sink(level, line, log_user);
}
