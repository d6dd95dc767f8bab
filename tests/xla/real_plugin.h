/* The CPU plugin that tests run programs on, where there is one: MLXCEL_XLA_PLUGIN, else the one
 * that "./dev setup" put into build/xla. */
#ifndef MXC_TESTS_REAL_PLUGIN_H
#define MXC_TESTS_REAL_PLUGIN_H

#include <stdbool.h>

/* Its path, or NULL after a line that says why the test is skipped (always without the device
 * runtime, and under ThreadSanitizer). */
const char *mxc_real_plugin(void);
/* Folder of compiled programs, so that a test that was run before takes a fraction of the time:
 * MLXCEL_XLA_CACHE (empty: none), else build/xla/programs where build/xla is. NULL: none. */
const char *mxc_real_cache(void);
/* Whether everything is to be run and not a sample: "./dev check --all", or MXC_XLA_ALL is set.
 * Never in a build with a sanitizer, which is some twenty times slower. */
bool mxc_real_all(void);

#endif
