/* The CPU plugin that tests run programs on, where there is one: MLXCEL_XLA_PLUGIN, else the one
 * that "./dev setup" put into build/xla. */
#ifndef MXC_TESTS_REAL_PLUGIN_H
#define MXC_TESTS_REAL_PLUGIN_H

/* Its path, or NULL after a line that says why the test is skipped (always without the device
 * runtime). */
const char *mxc_real_plugin(void);

#endif
