/* The public library on the OpenXLA backend, in whichever of the three builds this is: none (the
 * error says how to rebuild), seam (sessions can be opened, running them is MLXCEL_NOT_WIRED, the
 * program's text is there) or device (without a plugin, on one that is none, on the plugin of the
 * tests). */
#define _GNU_SOURCE
#include "test.h"

#include "mlxcel.h"
#include "store/tree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LLAMA   MXC_TEST_DATA "/golden/llama"
#define LLAVA   MXC_TEST_DATA "/golden/llava_clip_llama"
#define QWEN    MXC_TEST_DATA "/golden/qwen2_vl"
#define REBUILD "rebuild with -DMLXCEL_XLA=ON -DMLXCEL_XLA_DEVICE_RUNTIME=ON"
#define LACKS   "this build lacks the device runtime (feature xla-device): " REBUILD

static char cache[] = "/tmp/mlxcel-api-xla-XXXXXX"; /* no plugin is installed there */

static int set_up(void **state) {
    static const char *const names[] = {"MLXCEL_BACKEND", "MLXCEL_XLA_PLUGIN",
                                        "MLXCEL_XLA_PRECISION", "MLXCEL_XLA_CONTEXT_CAPACITY",
                                        "MLXCEL_XLA_VISION_BACKEND"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        (void)unsetenv(names[i]);
    (void)setenv("MXC_FAKE_LOSE_AFTER", "40", 1); /* read when the plugin is loaded */
    return mkdtemp(cache) ? setenv("MLXCEL_CACHE_DIR", cache, 1) : -1;
}

static int tear_down(void **state) {
    struct mxc_err err;
    (void)state;
    return mxc_tree_remove(cache, &err) ? -1 : 0;
}

static mlxcel_status open_on(const char *path, const char *plugin, struct mlxcel_model **model,
                             struct mlxcel_error *error) {
    struct mlxcel_model_options options;
    mlxcel_model_options_init(&options);
    options.backend = "xla";
    options.threads = 1;
    options.xla_plugin = plugin;
    return mlxcel_model_open(path, &options, model, error);
}

/* How a request of two tokens on the model ends. */
static struct mlxcel_event last_event(struct mlxcel_engine *engine,
                                      const struct mlxcel_model *model) {
    struct mlxcel_request request;
    struct mlxcel_event e;
    struct mlxcel_error error;
    uint64_t id;
    mlxcel_request_init(model, &request);
    request.prompt = "one two three";
    request.max_tokens = 2;
    request.sampling.temperature = 0;
    request.ignore_eos = true;
    if (mlxcel_engine_submit(engine, &request, &id, &error))
        fail_msg("%s", error.message);
    do
        assert_true(mlxcel_engine_next(engine, 60000, &e));
    while (e.type != MLXCEL_EVENT_DONE);
    return e;
}

static mlxcel_status emit(bool decode, char **text, struct mlxcel_error *error) {
    const struct mlxcel_xla_program program = {
        .decode = decode, .rows = decode ? 4 : 16, .context = 256};
    return mlxcel_xla_emit(LLAMA, &program, text, error);
}

#ifndef MLXCEL_XLA

static void nothing_is_there(void **state) {
    (void)state;
    static const char says[] = "backend 'xla' is not in this build: " REBUILD;
    struct mlxcel_model *model = NULL;
    struct mlxcel_xla_devices *devices = NULL;
    struct mlxcel_error error;
    char *text = NULL;
    assert_int_equal(open_on(LLAMA, NULL, &model, &error), MLXCEL_CONFIG);
    assert_string_equal(error.message, says);
    assert_int_equal(mlxcel_xla_devices_new(NULL, &devices, &error), MLXCEL_CONFIG);
    assert_string_equal(error.message, says);
    assert_int_equal(emit(true, &text, &error), MLXCEL_CONFIG);
    assert_string_equal(error.message, says);
    mlxcel_xla_devices_free(NULL);
    (void)last_event;
}

#else

/* The text of programs needs no device, and no image loader. */
static void text_is_there(void **state) {
    (void)state;
    struct mlxcel_error error;
    for (int decode = 0; decode < 2; decode++) {
        char *text = NULL;
        if (emit(decode != 0, &text, &error))
            fail_msg("%s", error.message);
        assert_non_null(strstr(text, "func.func public @main("));
        assert_non_null(strstr(text, "stablehlo."));
        assert_non_null(strstr(text, "tf.aliasing_output")); /* the KV store is donated */
        mlxcel_free(text);
    }
    const struct mlxcel_xla_program program = {.decode = true, .rows = 1, .context = 64};
    char *text = NULL;
    assert_int_equal(mlxcel_xla_emit(QWEN, &program, &text, &error), MLXCEL_OK);
    mlxcel_free(text);
    const struct mlxcel_xla_program none = {.decode = true, .rows = 0, .context = 64};
    assert_int_equal(mlxcel_xla_emit(LLAMA, &none, &text, &error), MLXCEL_ARGUMENT);
}

static void policies_are_checked(void **state) {
    (void)state;
    struct mlxcel_model_options options;
    struct mlxcel_model *model = NULL;
    struct mlxcel_error error;
    mlxcel_model_options_init(&options);
    options.backend = "xla";
    options.xla_vision_backend = "gpu";
    assert_int_equal(mlxcel_model_open(LLAMA, &options, &model, &error), MLXCEL_CONFIG);
    assert_string_equal(error.message,
                        "OpenXLA image preprocessor load failed: MLXCEL_XLA_VISION_BACKEND: "
                        "\"gpu\" must be auto, host, device or iree");
    assert_null(model);
}

#endif

#if defined MLXCEL_XLA && !defined MLXCEL_XLA_DEVICE_RUNTIME

/* A session can be made and looked at; what would run is a typed error. */
static void running_is_not_wired(void **state) {
    (void)state;
    static const char *const paths[] = {LLAMA, LLAVA};
    struct mlxcel_error error;
    for (size_t i = 0; i < 2; i++) {
        struct mlxcel_model *model = NULL;
        struct mlxcel_engine *engine = NULL;
        struct mlxcel_model_info info;
        if (open_on(paths[i], NULL, &model, &error) || mlxcel_engine_new(model, &engine, &error))
            fail_msg("%s", error.message);
        mlxcel_model_info(model, &info);
        assert_string_equal(info.model_type, i ? "llava" : "llama");
        assert_string_equal(info.vision_reason, i ? LACKS : "");
        for (int k = 0; k < 2; k++) {
            struct mlxcel_event e = last_event(engine, model);
            assert_int_equal(e.finish, MLXCEL_FINISH_ERROR);
            assert_int_equal(e.error.status, MLXCEL_NOT_WIRED);
            assert_string_equal(e.error.message,
                                "XLA: this build has no device runtime: rebuild with "
                                "-DMLXCEL_XLA_DEVICE_RUNTIME=ON");
        }
        mlxcel_engine_free(engine);
        mlxcel_model_close(model);
    }
    struct mlxcel_xla_devices *devices = NULL;
    assert_int_equal(mlxcel_xla_devices_new("/a/plugin.so", &devices, &error), MLXCEL_NOT_WIRED);
    assert_string_equal(error.message, LACKS);
    struct mlxcel_model *model = NULL;
    assert_int_equal(open_on(QWEN, NULL, &model, &error), MLXCEL_CONFIG);
    assert_string_equal(
        error.message, "OpenXLA image preprocessor load failed: qwen2_vl: the image path needs "
                       "the device runtime (feature xla-device), which this build lacks: " REBUILD);
}

#endif

#ifdef MLXCEL_XLA_DEVICE_RUNTIME

static void plugins_that_cannot_be_used(void **state) {
    (void)state;
    struct mlxcel_model *model = NULL;
    struct mlxcel_xla_devices *devices = NULL;
    struct mlxcel_error error;
    assert_int_equal(open_on(LLAMA, NULL, &model, &error), MLXCEL_NOT_FOUND);
    assert_string_equal(error.message,
                        "XLA: no plugin: set MLXCEL_XLA_PLUGIN or --xla-plugin to the path of a "
                        "PJRT plugin, or get one with \"mlxcel xla install cpu\"");
    assert_int_equal(open_on(LLAMA, "/nowhere/p.so", &model, &error), MLXCEL_NOT_FOUND);
    assert_string_equal(error.message, "XLA: /nowhere/p.so: there is no such plugin file");
    assert_int_equal(mlxcel_xla_devices_new("/nowhere/p.so", &devices, &error), MLXCEL_NOT_FOUND);
    assert_string_equal(error.message, "XLA: /nowhere/p.so: there is no such plugin file");
    assert_null(model);
    assert_null(devices);
}

static void devices_are_told(void **state) {
    (void)state;
    struct mlxcel_xla_devices *d = NULL;
    struct mlxcel_error error;
    if (mlxcel_xla_devices_new(MXC_FAKE_PLUGIN, &d, &error))
        fail_msg("%s", error.message);
    assert_string_equal(d->plugin, MXC_FAKE_PLUGIN);
    assert_string_equal(d->platform, "cpu");
    assert_int_equal(d->api_major, 0);
    assert_int_equal(d->api_minor, 115);
    assert_int_equal(d->n_devices, 1);
    assert_string_equal(d->devices[0].kind, "fake device");
    assert_true(d->devices[0].memory_bytes == 1 << 30);
    assert_true(d->devices[0].in_use_bytes == 1000);
    mlxcel_xla_devices_free(d);
}

/* A session; then its device is lost: the request in flight, and those that come, end with that. */
static void a_session_and_its_end(void **state) {
    (void)state;
    struct mlxcel_model *model = NULL;
    struct mlxcel_engine *engine = NULL;
    struct mlxcel_error error;
    struct mlxcel_request request;
    uint64_t id;
    if (open_on(LLAMA, MXC_FAKE_PLUGIN, &model, &error) ||
        mlxcel_engine_new(model, &engine, &error))
        fail_msg("%s", error.message);
    struct mlxcel_event e = last_event(engine, model);
    int n = 0;
    for (; e.finish != MLXCEL_FINISH_ERROR; n++) {
        assert_int_equal(e.finish, MLXCEL_FINISH_LENGTH);
        assert_true(n < 40);
        e = last_event(engine, model);
    }
    assert_true(n > 1);
    assert_int_equal(e.error.status, MLXCEL_DEVICE_LOST);
    assert_non_null(strstr(e.error.message, "the device was lost: UNAVAILABLE: "));
    mlxcel_request_init(model, &request);
    request.prompt = "more";
    assert_int_equal(mlxcel_engine_submit(engine, &request, &id, &error), MLXCEL_DEVICE_LOST);
    mlxcel_engine_free(engine);
    mlxcel_model_close(model);
}

#endif

int main(void) {
    const struct CMUnitTest tests[] = {
#ifndef MLXCEL_XLA
        cmocka_unit_test(nothing_is_there),
#else
        cmocka_unit_test(text_is_there),
        cmocka_unit_test(policies_are_checked),
#endif
#if defined MLXCEL_XLA && !defined MLXCEL_XLA_DEVICE_RUNTIME
        cmocka_unit_test(running_is_not_wired),
#endif
#ifdef MLXCEL_XLA_DEVICE_RUNTIME
        cmocka_unit_test(devices_are_told),
        cmocka_unit_test(plugins_that_cannot_be_used),
        cmocka_unit_test(a_session_and_its_end),
#endif
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
