/* Memory of devices, on a plugin that computes nothing: what one device holds of a model that is
 * whole or shared, what is refused when that is more than the device admits, and how much KV then
 * has room; of a CPU, whose devices share the host's memory, that copies are counted. */
#define _GNU_SOURCE
#include "test.h"

#ifndef MLXCEL_XLA_DEVICE_RUNTIME

static void nothing_to_do(void **state) {
    (void)state;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_to_do)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

#include "engine/load.h"

#include "fake_plugin.h"

#include <string.h>

static enum mxc_code open_on(const char *devices, struct mxc_model **model, struct mxc_err *err) {
    struct mxc_load_options o;
    mxc_load_options_init(&o);
    o.backend = "xla";
    o.n_threads = 1;
    o.max_rows = 32;
    o.context = 64;
    o.xla = (struct mxc_xla_given){.plugin = MXC_FAKE_PLUGIN, .tp_size = devices};
    return mxc_model_open(MXC_TEST_DATA "/golden/llama", &o, model, err);
}

static struct mxc_plan_memory memory_on(const char *devices) {
    struct mxc_model *m = NULL;
    struct mxc_err err = {.message = ""};
    if (open_on(devices, &m, &err))
        fail_msg("%s", err.message);
    struct mxc_plan_memory memory = m->memory;
    mxc_model_close(m);
    return memory;
}

static void of_their_own(void **state) {
    (void)state;
    struct fake_plugin *fake = mxc_fake_plugin_open();
    fake->platform = "cuda";
    fake->memory = 1 << 28;
    const struct mxc_plan_memory one = memory_on("1"), two = memory_on("2");
    assert_int_equal(one.device.limit_bytes, 1 << 28);
    assert_int_equal(one.device.weights_bytes, one.weights_bytes);
    assert_int_equal(two.weights_bytes, one.weights_bytes); /* the host's packed ones */
    assert_true(two.device.weights_bytes < one.device.weights_bytes);
    assert_true(two.device.weights_bytes > one.device.weights_bytes / 2); /* norms are whole */
    assert_true(one.kv_block_bytes[MXC_KV_FULL] > 0);
    assert_int_equal(one.device.kv_block_bytes[MXC_KV_FULL], one.kv_block_bytes[MXC_KV_FULL]);
    assert_int_equal(two.kv_block_bytes[MXC_KV_FULL], one.kv_block_bytes[MXC_KV_FULL]);
    assert_int_equal(two.device.kv_block_bytes[MXC_KV_FULL], one.kv_block_bytes[MXC_KV_FULL] / 2);
    mxc_fake_plugin_check(fake);
}

/* A device that is too small for the whole, not for its half. */
static void too_small(void **state) {
    (void)state;
    struct fake_plugin *fake = mxc_fake_plugin_open();
    struct mxc_model *m = NULL;
    struct mxc_err err = {.message = ""};
    int32_t blocks[MXC_N_KV_KINDS];
    fake->platform = "cuda";
    const struct mxc_plan_memory one = memory_on("1"), two = memory_on("2");
    fake->memory = (int64_t)one.device.weights_bytes;
    assert_int_equal(open_on("1", &m, &err), MXC_E_LIMIT);
    assert_non_null(strstr(err.message, "MiB are needed on a device (weights "));
    fake->memory = (int64_t)(two.device.weights_bytes + two.activation_bytes +
                             10 * two.device.kv_block_bytes[MXC_KV_FULL]);
    if (open_on("2", &m, &err) || mxc_model_blocks(m, 64, 1, 0, 0, blocks, &err))
        fail_msg("%s", err.message);
    /* half of the room is for KV, or what one sequence needs */
    assert_in_range(blocks[MXC_KV_FULL], 2, 5);
    mxc_model_close(m);
    mxc_fake_plugin_check(fake);
}

/* A plugin that states no limit is asked for nothing. */
static void without_a_limit(void **state) {
    (void)state;
    struct fake_plugin *fake = mxc_fake_plugin_open();
    fake->platform = "cuda";
    fake->memory = 0;
    const struct mxc_plan_memory one = memory_on("1");
    assert_int_equal(one.device.limit_bytes, 0);
    mxc_fake_plugin_check(fake);
}

static void of_the_host(void **state) {
    (void)state;
    struct fake_plugin *fake = mxc_fake_plugin_open();
    const struct mxc_plan_memory one = memory_on("1"), two = memory_on("2");
    assert_int_equal(one.device.limit_bytes, 0);
    assert_int_equal(two.device.limit_bytes, 0);
    assert_true(two.weights_bytes > one.weights_bytes);
    assert_true(two.weights_bytes < 2 * one.weights_bytes);
    mxc_fake_plugin_check(fake);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(of_their_own), cmocka_unit_test(too_small),
                                       cmocka_unit_test(without_a_limit),
                                       cmocka_unit_test(of_the_host)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
