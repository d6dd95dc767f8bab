/* Reaching the fake plugin from a test: see fake_plugin.h. */
#include "fake_plugin.h"

#include "test.h"

#include <dlfcn.h>
#include <string.h>

#ifdef MXC_FAKE_PLUGIN

struct fake_plugin *mxc_fake_plugin_open(void) {
    void *library = dlopen(MXC_FAKE_PLUGIN, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library)
        fail_msg("%s", dlerror());
    fake_plugin_control_fn *control;
    fake_plugin_reset_fn *reset;
    void *symbol = dlsym(library, FAKE_PLUGIN_CONTROL);
    assert_non_null(symbol);
    memcpy(&control, &symbol, sizeof control);
    assert_non_null(symbol = dlsym(library, FAKE_PLUGIN_RESET));
    memcpy(&reset, &symbol, sizeof reset);
    reset();
    return control();
}

void mxc_fake_plugin_check(const struct fake_plugin *fake) {
    if (fake->n_bad)
        fail_msg("the plugin was misused %d times: %s", (int)fake->n_bad, fake->bad);
    assert_int_equal(fake->live_errors, 0);
    assert_int_equal(fake->live_events, 0);
    assert_int_equal(fake->live_buffers, 0);
    assert_int_equal(fake->live_executables, 0);
    assert_int_equal(fake->live_loaded, 0);
    assert_int_equal(fake->live_serialized, 0);
    assert_int_equal(fake->live_clients, 0);
    assert_int_equal(fake->calls_when_lost, 0);
}

#endif
