/* Sessions on a backend called "xla" (here the CPU backend under that name, with knobs and counts),
 * as engine/load.c opens them: where the vision tower goes and really runs, when it falls back to
 * the host, what errors are called, the capacity and what is admitted by it, options as text. */
#define _GNU_SOURCE
#include "test.h"

#include "base/log.h"
#include "base/mem.h"
#include "engine/grey.h"
#include "engine/load.h"
#include "engine/xla_image.h"
#include "fake_backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN  MXC_TEST_DATA "/golden/"
#define REBUILD "rebuild with -DMLXCEL_XLA=ON -DMLXCEL_XLA_DEVICE_RUNTIME=ON"
#define FAILED  "OpenXLA image preprocessor load failed: "

/* ---- the device */

static struct {
    enum mxc_code tower_fails;               /* what compiling a tower gives */
    int n_opened, n_texts, n_towers, n_seen; /* n_seen: runs of a tower */
    struct mxc_xla_options options;
    char plugin[64];
} device;

static enum mxc_code device_open(const struct mxc_backend_options *options,
                                 struct mxc_backend **backend, struct mxc_err *err) {
    device.n_opened++;
    device.options = options->xla;
    (void)snprintf(device.plugin, sizeof device.plugin, "%s",
                   options->xla.plugin ? options->xla.plugin : "");
    return mxc_backend_cpu.open(options, backend, err);
}

static enum mxc_code device_compile(struct mxc_backend *backend, const struct mxc_graph *graph,
                                    const struct mxc_weights *weights,
                                    const struct mxc_plan_options *options, struct mxc_plan **plan,
                                    struct mxc_err *err) {
    bool tower = graph->input >= 0;
    device.n_texts += !tower;
    device.n_towers += tower;
    if (tower && device.tower_fails)
        return mxc_err_set(err, device.tower_fails, "XLA: the device has no such op");
    return mxc_backend_cpu.compile(backend, graph, weights, options, plan, err);
}

static enum mxc_code device_tower_new(struct mxc_plan *plan, const struct mxc_tower_input *input,
                                      struct mxc_tower **tower, struct mxc_err *err) {
    device.n_seen++;
    return mxc_backend_cpu.tower_new(plan, input, tower, err);
}

static struct mxc_backend_ops ops;

static int set_up(void **state) {
    (void)state;
    memset(&device, 0, sizeof device);
    ops = mxc_backend_cpu;
    ops.name = "xla";
    ops.open = device_open;
    ops.compile = device_compile;
    ops.tower_new = device_tower_new;
    return 0;
}

static char logged[2048];
static void take_line(enum mxc_log_level level, const char *line, void *user) {
    (void)level;
    (void)user;
    size_t n = strlen(logged);
    (void)snprintf(logged + n, sizeof logged - n, "%s\n", line);
}

/* ---- sessions */

static enum mxc_code session(const char *name, const struct mxc_xla_given *given, int32_t context,
                             struct mxc_model **model, struct mxc_err *err) {
    struct mxc_load_options o;
    char path[256];
    (void)snprintf(path, sizeof path, GOLDEN "%s", name);
    mxc_load_options_init(&o);
    o.ops = &ops;
    o.precision = MXC_PRECISION_EXACT;
    o.n_threads = 2;
    o.max_batch = o.max_out = 4;
    o.context = context;
    o.xla = *given;
    logged[0] = 0;
    mxc_log_set(take_line, MXC_LOG_WARN, NULL);
    enum mxc_code code = mxc_model_open(path, &o, model, err);
    mxc_log_set(NULL, MXC_LOG_WARN, NULL);
    return code;
}

static struct mxc_model *must_open(const char *name, const struct mxc_xla_given *given) {
    struct mxc_model *model = NULL;
    struct mxc_err err = {.message = ""};
    if (session(name, given, 0, &model, &err))
        fail_msg("%s: %s", name, err.message);
    return model;
}

static struct mxc_engine *engine_of(const struct mxc_model *model, int32_t context) {
    struct mxc_engine_options o;
    struct mxc_engine *e = NULL;
    struct mxc_err err = {.message = ""};
    struct mxc_engine_target target = mxc_model_target(model);
    mxc_engine_options_init(&o);
    o.max_batch = 4;
    o.context = context;
    if (mxc_model_blocks(model, context, 4, 0, 0, o.n_blocks, &err) ||
        mxc_engine_new(&target, &o, &e, &err))
        fail_msg("%s", err.message);
    return e;
}

static enum mxc_code submit(struct mxc_engine *e, const struct mxc_prompt *prompt, int32_t more,
                            struct sink *sink, struct mxc_err *err) {
    struct mxc_request_params params;
    uint64_t id;
    mxc_request_params_init(&params);
    params.max_tokens = more;
    params.ignore_eos = true;
    params.event = sink_event;
    params.user = sink;
    return mxc_engine_submit(e, prompt, &params, &id, err);
}

/* What the session says about a grey picture: greedy ids. */
static void look(const struct mxc_model *model, int32_t ids[4]) {
    struct grey grey;
    struct sink *sink = mxc_mem_zalloc(1, sizeof *sink);
    struct mxc_engine *e = engine_of(model, 256);
    assert_non_null(sink);
    grey_init(&grey, model->checkpoint->vision);
    assert_int_equal(submit(e, &grey.prompt, 4, sink, NULL), MXC_OK);
    while (mxc_engine_step(e))
        ;
    assert_int_equal(sink->n_done, 1);
    assert_int_equal(sink->reason, MXC_DONE_LENGTH);
    assert_int_equal(sink->n, 4);
    memcpy(ids, sink->ids, 4 * sizeof *ids);
    mxc_engine_free(e);
    grey_fini(&grey);
    mxc_mem_free(sink);
}

/* What the CPU backend alone makes of it. */
static void look_on_cpu(const char *name, int32_t ids[4]) {
    const struct mxc_xla_given none = {.plugin = NULL};
    ops.name = "cpu";
    struct mxc_model *model = must_open(name, &none);
    look(model, ids);
    mxc_model_close(model);
    ops.name = "xla";
    memset(&device, 0, sizeof device);
}

static const char *const families[] = {"llava_clip_llama", "qwen2_vl"};

/* Under host the device never hears of a tower, and what is seen is the same. */
static void tower_on_the_host(void **state) {
    (void)state;
    const struct mxc_xla_given given = {.vision = "host"};
    for (size_t i = 0; i < 2; i++) {
        int32_t own[4], cpu[4];
        if (i && !mxc_xla_has_device_runtime())
            continue;
        look_on_cpu(families[i], cpu);
        struct mxc_model *model = must_open(families[i], &given);
        assert_ptr_equal(model->tower_ops, &mxc_backend_cpu);
        assert_non_null(model->tower_backend);
        look(model, own);
        assert_memory_equal(own, cpu, sizeof own);
        assert_int_equal(device.n_texts, 1);
        assert_int_equal(device.n_towers, 0);
        assert_int_equal(device.n_seen, 0);
        assert_string_equal(logged, "");
        mxc_model_close(model);
    }
}

/* Under auto and device the tower runs on the device, once for a picture. */
static void tower_on_the_device(void **state) {
    (void)state;
    static const char *const policies[] = {"auto", "device", "iree", NULL};
    for (size_t i = 0; i < 2 && mxc_xla_has_device_runtime(); i++) {
        int32_t own[4], cpu[4];
        look_on_cpu(families[i], cpu);
        for (size_t k = 0; k < 4; k++) {
            const struct mxc_xla_given given = {.vision = policies[k]};
            memset(&device, 0, sizeof device);
            struct mxc_model *model = must_open(families[i], &given);
            assert_ptr_equal(model->tower_ops, &ops);
            assert_null(model->tower_backend);
            look(model, own);
            assert_memory_equal(own, cpu, sizeof own);
            assert_int_equal(device.n_towers, 1);
            assert_int_equal(device.n_seen, 1);
            mxc_model_close(model);
        }
    }
}

/* Only auto falls back, and says so. */
static void falling_back(void **state) {
    (void)state;
    if (!mxc_xla_has_device_runtime())
        return;
    struct mxc_model *model = NULL;
    struct mxc_err err = {.message = ""};
    const struct mxc_xla_given automatic = {.vision = "auto"}, fixed = {.vision = "device"},
                               iree = {.vision = "iree"};
    int32_t own[4], cpu[4];
    look_on_cpu("qwen2_vl", cpu);
    device.tower_fails = MXC_E_UNSUPPORTED;
    model = must_open("qwen2_vl", &automatic);
    assert_ptr_equal(model->tower_ops, &mxc_backend_cpu);
    assert_string_equal(logged, "the vision tower runs on the host, not on the device: XLA: the "
                                "device has no such op\n");
    look(model, own);
    assert_memory_equal(own, cpu, sizeof own);
    assert_int_equal(device.n_seen, 0);
    mxc_model_close(model);
    model = NULL;
    assert_int_equal(session("qwen2_vl", &fixed, 0, &model, &err), MXC_E_UNSUPPORTED);
    assert_string_equal(err.message, "XLA: the device has no such op");
    assert_int_equal(session("llava_clip_llama", &iree, 0, &model, &err), MXC_E_UNSUPPORTED);
    assert_null(model);
    /* giving up is not falling back */
    device.tower_fails = MXC_E_CANCELLED;
    assert_int_equal(session("qwen2_vl", &automatic, 0, &model, &err), MXC_E_CANCELLED);
    assert_string_equal(logged, "");
}

/* What the image loader refuses is the session's error, before a device is opened. */
static void refusals(void **state) {
    (void)state;
    const struct mxc_xla_given bad = {.vision = "cuda"}, automatic = {.vision = ""};
    struct mxc_model *model = NULL;
    struct mxc_err err = {.message = ""};
    assert_int_equal(session("llama", &bad, 0, &model, &err), MXC_E_CONFIG);
    assert_string_equal(err.message, FAILED
                        "MLXCEL_XLA_VISION_BACKEND: \"cuda\" must be auto, host, device or iree");
    assert_int_equal(session("nowhere", &automatic, 0, &model, &err), MXC_E_NOT_FOUND);
    assert_string_equal(err.message, FAILED GOLDEN "nowhere: no such model folder or .gguf file");
    if (!mxc_xla_has_device_runtime()) {
        assert_int_equal(session("qwen2_vl", &automatic, 0, &model, &err), MXC_E_CONFIG);
        assert_string_equal(err.message,
                            FAILED "qwen2_vl: the image path needs the device runtime (feature "
                                   "xla-device), which this build lacks: " REBUILD);
    }
    assert_null(model);
    assert_int_equal(device.n_opened, 0);
}

/* What the checkpoint cannot do and what this build cannot do are told apart. */
static void reasons(void **state) {
    (void)state;
    const struct mxc_xla_given automatic = {.vision = NULL};
    struct mxc_model *model = must_open("llama", &automatic);
    assert_null(model->checkpoint->vision);
    assert_string_equal(model->vision_reason, "");
    mxc_model_close(model);
    model = must_open("llava_siglip_qwen2", &automatic);
    assert_non_null(model->checkpoint->vision);
    assert_string_equal(model->vision_reason,
                        mxc_xla_has_device_runtime()
                            ? ""
                            : "this build lacks the device runtime (feature xla-device): " REBUILD);
    mxc_model_close(model);
}

/* A backend's name that the build lacks. */
static void another_build(void **state) {
    (void)state;
    const struct mxc_backend_ops *found = NULL;
    struct mxc_err err = {.message = ""};
    enum mxc_code code = mxc_backend_find("xla", &found, &err);
    if (mxc_xla_has_backend()) {
        assert_int_equal(code, MXC_OK);
        assert_string_equal(found->name, "xla");
    } else {
        assert_int_equal(code, MXC_E_CONFIG);
        assert_string_equal(err.message, "backend 'xla' is not in this build: " REBUILD);
    }
    assert_int_equal(mxc_backend_find("tpu", &found, &err), MXC_E_UNSUPPORTED);
}

/* ---- options and capacity */

static void options_as_text(void **state) {
    (void)state;
    struct mxc_xla_settings s = {.capacity = 7};
    struct mxc_err err = {.message = ""};
    const struct {
        const char *capacity, *precision;
        int32_t n;
        enum mxc_xla_precision p;
    } good[] = {{NULL, NULL, 0, MXC_XLA_PRECISION_AUTO},
                {"", " ", 0, MXC_XLA_PRECISION_AUTO},
                {"1", "f32", 1, MXC_XLA_PRECISION_F32},
                {"2147483647", "bf16", INT32_MAX, MXC_XLA_PRECISION_BF16},
                {"0004096", "f16", 4096, MXC_XLA_PRECISION_F16},
                {"256", "auto", 256, MXC_XLA_PRECISION_AUTO}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        const struct mxc_xla_given given = {.capacity = good[i].capacity,
                                            .precision = good[i].precision};
        assert_int_equal(mxc_xla_given_read(&given, &s, &err), MXC_OK);
        assert_int_equal(s.capacity, good[i].n);
        assert_int_equal(s.precision, good[i].p);
    }
    static const char *const bad[] = {
        "0", "-1", "2147483648", "99999999999999999999", "1.5", "256k", "0x100", "+1", "1 "};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const struct mxc_xla_given given = {.capacity = bad[i]};
        char text[128];
        assert_int_equal(mxc_xla_given_read(&given, &s, &err), MXC_E_CONFIG);
        (void)snprintf(text, sizeof text,
                       "MLXCEL_XLA_CONTEXT_CAPACITY: \"%s\" is not a whole number from 1 to "
                       "2147483647",
                       bad[i]);
        assert_string_equal(err.message, text);
    }
    const struct mxc_xla_given two = {.tp_size = "2"}, none = {.tp_size = " "};
    assert_int_equal(mxc_xla_given_read(&two, &s, &err), MXC_OK);
    assert_int_equal(s.devices, 2);
    assert_int_equal(mxc_xla_given_read(&none, &s, &err), MXC_OK);
    assert_int_equal(s.devices, 1);
    const struct mxc_xla_given many = {.tp_size = "1025"};
    assert_int_equal(mxc_xla_given_read(&many, &s, &err), MXC_E_CONFIG);
    assert_string_equal(err.message,
                        "MLXCEL_TP_SIZE: \"1025\" is not a whole number from 1 to 1024");
    const struct mxc_xla_given given = {.precision = "fp8"};
    assert_int_equal(mxc_xla_given_read(&given, &s, &err), MXC_E_CONFIG);
    assert_string_equal(err.message,
                        "MLXCEL_XLA_PRECISION: \"fp8\" must be f32, f16, bf16 or auto");
}

/* Options reach the backend; the environment stands in for what is not given. */
static void options_arrive(void **state) {
    (void)state;
    struct mxc_xla_given given = {
        .precision = "bf16", .tp_size = "3", .cache_dir = "/nowhere/programs"};
    assert_int_equal(setenv("MLXCEL_XLA_PLUGIN", "/a/plugin.so", 1), 0);
    assert_int_equal(setenv("MLXCEL_XLA_PRECISION", "f16", 1), 0);
    mxc_xla_given_environment(&given);
    (void)unsetenv("MLXCEL_XLA_PRECISION");
    struct mxc_model *model = must_open("llama", &given);
    (void)unsetenv("MLXCEL_XLA_PLUGIN");
    assert_string_equal(device.plugin, "/a/plugin.so");
    assert_int_equal(device.options.precision, MXC_XLA_PRECISION_BF16);
    assert_int_equal(device.options.n_devices, 3);
    mxc_model_close(model);
}

/* Prompt and new tokens within the capacity, to the token, or an error with all three numbers. */
static void admission(void **state) {
    (void)state;
    enum { CAPACITY = 48 };
    const struct mxc_xla_given given = {.capacity = "48"};
    struct mxc_model *model = must_open("llama", &given);
    struct sink *sink = mxc_mem_zalloc(1, sizeof *sink);
    struct mxc_err err = {.message = ""};
    int32_t tokens[CAPACITY + 1];
    assert_non_null(sink);
    for (int i = 0; i <= CAPACITY; i++)
        tokens[i] = 3 + i;
    assert_int_equal(mxc_model_context(model, 0), CAPACITY);
    assert_int_equal(mxc_model_context(model, 1000), CAPACITY);
    assert_int_equal(mxc_model_context(model, 20), 20);
    struct mxc_engine *e = engine_of(model, mxc_model_context(model, 0));
    const struct {
        int32_t prompt, more;
        bool fits;
    } rows[] = {{40, 8, true},         {40, 9, false},  {47, 1, true},         {47, -1, true},
                {48, 0, true},         {48, -1, false}, {48, 1, false},        {49, 0, false},
                {1, 47, true},         {1, 48, false},  {1, INT32_MAX, false}, {40, -1, true},
                {48, INT32_MAX, false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct mxc_prompt prompt = {
            .tokens = tokens, .n_tokens = rows[i].prompt, .adapter = -1};
        char text[160];
        memset(sink, 0, sizeof *sink);
        enum mxc_code code = submit(e, &prompt, rows[i].more, sink, &err);
        assert_int_equal(code, rows[i].fits ? MXC_OK : MXC_E_CONTEXT);
        if (code) {
            (void)snprintf(text, sizeof text,
                           "the prompt has %d tokens, pictures included, and %d new tokens are "
                           "asked for: together more than the capacity of %d",
                           rows[i].prompt, rows[i].more < 0 ? 1 : rows[i].more, CAPACITY);
            assert_string_equal(err.message, text);
            assert_int_equal(mxc_code_info(code)->http_status, 400);
            continue;
        }
        while (mxc_engine_step(e))
            ;
        assert_int_equal(sink->n_done, 1);
        assert_int_equal(sink->reason, MXC_DONE_LENGTH);
        assert_int_equal(sink->n, rows[i].more < 0 ? CAPACITY - rows[i].prompt : rows[i].more);
    }
    mxc_engine_free(e);
    mxc_model_close(model);
    mxc_mem_free(sink);
}

/* The least and the most that the variable may say. */
static void extreme_capacities(void **state) {
    (void)state;
    const struct mxc_xla_given least = {.capacity = "1"}, most = {.capacity = "2147483647"};
    struct mxc_model *model = must_open("llama", &least);
    struct sink *sink = mxc_mem_zalloc(1, sizeof *sink);
    int32_t token = 5;
    const struct mxc_prompt prompt = {.tokens = &token, .n_tokens = 1, .adapter = -1};
    assert_non_null(sink);
    struct mxc_engine *e = engine_of(model, mxc_model_context(model, 0));
    assert_int_equal(submit(e, &prompt, 0, sink, NULL), MXC_OK);
    assert_int_equal(submit(e, &prompt, 1, sink, NULL), MXC_E_CONTEXT);
    while (mxc_engine_step(e))
        ;
    assert_int_equal(sink->n_done, 1);
    mxc_engine_free(e);
    mxc_model_close(model);
    model = must_open("llama", &most);
    assert_int_equal(mxc_model_context(model, 0), mxc_checkpoint_context(model->checkpoint));
    mxc_model_close(model);
    mxc_mem_free(sink);
}

/* On another backend none of it counts. */
static void other_backends(void **state) {
    (void)state;
    const struct mxc_xla_given given = {.capacity = "many", .precision = "x", .vision = "nothing"};
    ops.name = "cpu";
    struct mxc_model *model = must_open("llama", &given);
    assert_false(mxc_model_target(model).admit_whole);
    mxc_model_close(model);
    const struct mxc_xla_given capacity = {.capacity = "many"};
    struct mxc_err err = {.message = ""};
    ops.name = "xla";
    assert_int_equal(session("llama", &capacity, 0, &model, &err), MXC_E_CONFIG);
}

int main(void) {
#define TEST(t) cmocka_unit_test_setup(t, set_up)
    const struct CMUnitTest tests[] = {
        TEST(tower_on_the_host), TEST(tower_on_the_device),
        TEST(falling_back),      TEST(refusals),
        TEST(reasons),           TEST(another_build),
        TEST(options_as_text),   TEST(options_arrive),
        TEST(admission),         TEST(extreme_capacities),
        TEST(other_backends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
