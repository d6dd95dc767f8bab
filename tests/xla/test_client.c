/* The PJRT client against a plugin that checks how it is used: what it calls and in which order,
 * that everything made is destroyed once, every call failing in its turn, a device lost in the
 * middle, the plugins that are refused, and the bytes of the compile options. */
#define _GNU_SOURCE
#include "test.h"

#ifndef MLXCEL_XLA_DEVICE_RUNTIME

int main(void) {
    return 0; /* nothing to test: the client is not in this build */
}

#else

#include "backend/xla/client.h"
#include "backend/xla/pjrt.h"
#include "base/mem.h"

#include "fake_plugin.h"

#include <dlfcn.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char ADD[] =
    "module @m { func.func public @main(%x: tensor<2x3xf32> {tf.aliasing_output = 1 : i32}, "
    "%q: tensor<5xi4>, %s: tensor<f32>) -> (tensor<f32>, tensor<2x3xf32>) {} }";
static const struct mxc_xla_shape MATRIX = {MXC_XLA_F32, 2, {2, 3}};
static const struct mxc_xla_shape NIBBLES = {MXC_XLA_S4, 1, {5}};
static const struct mxc_xla_shape SCALAR = {MXC_XLA_F32, 0, {0}};

static struct mxc_xla_compile_options add_options(void) {
    static struct mxc_xla_param inputs[3], outputs[2];
    inputs[0] = (struct mxc_xla_param){MATRIX, true};
    inputs[1] = (struct mxc_xla_param){NIBBLES, false};
    inputs[2] = (struct mxc_xla_param){SCALAR, false};
    outputs[0] = (struct mxc_xla_param){SCALAR, false};
    outputs[1] = (struct mxc_xla_param){MATRIX, false};
    return (struct mxc_xla_compile_options){
        .inputs = inputs, .outputs = outputs, .n_inputs = 3, .n_outputs = 2};
}

static struct mxc_xla_client *open_fake(const char *cache_dir) {
    struct mxc_xla_client *client = NULL;
    struct mxc_err err;
    const struct mxc_xla_client_options options = {.plugin = MXC_FAKE_PLUGIN,
                                                   .cache_dir = cache_dir};
    if (mxc_xla_client_open(&options, &client, &err))
        fail_msg("%s", err.message);
    return client;
}

/* ---- a whole life ---- */

static alignas(64) const float matrix[6] = {1, 2, 3, 4, 5, 6};
static alignas(64) const uint8_t nibbles[3] = {0x21, 0xF7, 0x08};
static const float half = 0.5F;

/* Opens, compiles, uploads, runs n times with the matrix going round, reads back. */
static enum mxc_code live(const char *cache_dir, int n, struct mxc_err *err) {
    struct mxc_xla_client *client = NULL;
    struct mxc_xla_program *program = NULL;
    struct mxc_xla_buffer *in[3] = {0}, *out[2] = {0};
    const struct mxc_xla_client_options options = {.plugin = MXC_FAKE_PLUGIN,
                                                   .cache_dir = cache_dir};
    const struct mxc_xla_compile_options compile = add_options();
    float back[6] = {0};
    enum mxc_code code = mxc_xla_client_open(&options, &client, err);
    if (code ||
        (code = mxc_xla_compile(client, "add", ADD, strlen(ADD), &compile, &program, err)) ||
        (code = mxc_xla_buffer_new(client, 0, &MATRIX, matrix, MXC_XLA_COPY, &in[0], err)) ||
        (code = mxc_xla_buffer_new(client, 0, &NIBBLES, nibbles, MXC_XLA_BORROW, &in[1], err)) ||
        (code = mxc_xla_buffer_new(client, 0, &SCALAR, &half, MXC_XLA_COPY, &in[2], err)))
        goto out;
    for (int i = 0; i < n; i++) {
        if ((code = mxc_xla_execute(program, in, 3, out, 2, err)))
            goto out;
        mxc_xla_buffer_free(in[0]);
        in[0] = out[1];
        mxc_xla_buffer_free(out[0]);
        out[0] = out[1] = NULL;
    }
    if ((code = mxc_xla_buffer_read(in[0], back, sizeof back, err)))
        goto out;
    assert_memory_equal(back, matrix, sizeof back);
    assert_int_equal(mxc_xla_program_executions(program), n);
out:
    for (int i = 0; i < 3; i++)
        mxc_xla_buffer_free(in[i]);
    assert_null(out[0]);
    mxc_xla_program_free(program);
    mxc_xla_client_close(client);
    return code;
}

static void calls_come_in_order_and_all_is_destroyed(void **state) {
    (void)state;
    struct fake_plugin *fake = mxc_fake_plugin_open();
    struct mxc_err err;
    if (live(NULL, 2, &err))
        fail_msg("%s", err.message);
    mxc_fake_plugin_check(fake);
    assert_int_equal(fake->executions, 2);
    assert_string_equal(
        fake->order,
        " Initialize Create PlatformName PlatformVersion Devices Description Kind DebugString "
        "MemoryStats Compile GetExecutable NumOutputs CompiledMemory executable_destroy "
        "FromHost Await event_destroy View FromHost Await event_destroy "
        "Execute Await event_destroy buffer_destroy buffer_destroy "
        "Execute Await event_destroy buffer_destroy buffer_destroy "
        "ToHost Await event_destroy buffer_destroy buffer_destroy buffer_destroy "
        "loaded_destroy client_destroy");
    assert_int_equal(fake->client_devices, 1);
    assert_string_equal(fake->log_level, "3");
}

static bool optional(enum fake_call call) {
    return call == FAKE_DESCRIPTION || call == FAKE_KIND || call == FAKE_DEBUG_STRING ||
           call == FAKE_MEMORY_STATS || call == FAKE_COMPILED_MEMORY || call == FAKE_SERIALIZE ||
           call == FAKE_VIEW;
}

static void every_call_may_fail(void **state) {
    (void)state;
    struct fake_plugin *fake = mxc_fake_plugin_open();
    struct mxc_err err;
    assert_int_equal(live(NULL, 2, &err), MXC_OK);
    const uint64_t n = fake->n_calls;
    assert_true(n > 20);
    const int codes[] = {PJRT_INVALID_ARGUMENT, PJRT_RESOURCE_EXHAUSTED, PJRT_INTERNAL,
                         PJRT_UNAVAILABLE};
    for (size_t c = 0; c < sizeof codes / sizeof *codes; c++)
        for (uint64_t i = 1; i <= n; i++) {
            fake = mxc_fake_plugin_open();
            fake->fail_at = i;
            fake->fail_code = codes[c];
            err = (struct mxc_err){0};
            enum mxc_code code = live(NULL, 2, &err);
            mxc_fake_plugin_check(fake);
            if (!code) /* facts for people, a view that is refused, an option that is refused */
                continue;
            assert_int_equal(err.code, code);
            assert_int_equal(strncmp(err.message, "XLA: ", 5), 0);
            assert_non_null(strstr(err.message, "was told to fail"));
        }
    for (int call = 0; call < FAKE_N_CALLS; call++) {
        fake = mxc_fake_plugin_open();
        fake->fail_call = call;
        enum mxc_code code = live(NULL, 1, &err);
        mxc_fake_plugin_check(fake);
        assert_int_equal(code != MXC_OK,
                         !optional((enum fake_call)call) && call != FAKE_DESERIALIZE);
    }
}

static void memory_may_run_out(void **state) {
    (void)state;
    struct mxc_err err;
    struct fake_plugin *fake = mxc_fake_plugin_open();
    mxc_mem_fail_at(UINT64_MAX);
    assert_int_equal(live(NULL, 2, &err), MXC_OK);
    const uint64_t n = mxc_mem_calls();
    for (uint64_t i = 1; i <= n; i++) {
        fake = mxc_fake_plugin_open();
        mxc_mem_fail_at(i);
        enum mxc_code code = live(NULL, 2, &err);
        mxc_mem_fail_at(0);
        mxc_fake_plugin_check(fake);
        assert_int_equal(code, MXC_E_NOMEM);
    }
}

/* ---- a lost device ---- */

static void a_lost_device_is_said_and_stays_lost(void **state) {
    (void)state;
    struct fake_plugin *fake = mxc_fake_plugin_open();
    fake->lose_after = 3;
    struct mxc_xla_client *client = open_fake(NULL);
    struct mxc_xla_program *program = NULL, *other = NULL;
    struct mxc_xla_buffer *in[3] = {0}, *out[2] = {0}, *spare = NULL;
    const struct mxc_xla_compile_options compile = add_options();
    struct mxc_err err;
    float back[6];
    assert_int_equal(mxc_xla_compile(client, "add", ADD, strlen(ADD), &compile, &program, &err),
                     MXC_OK);
    assert_int_equal(mxc_xla_buffer_new(client, 0, &MATRIX, matrix, MXC_XLA_COPY, &in[0], &err), 0);
    assert_int_equal(mxc_xla_buffer_new(client, 0, &NIBBLES, nibbles, MXC_XLA_COPY, &in[1], &err),
                     0);
    assert_int_equal(mxc_xla_buffer_new(client, 0, &SCALAR, &half, MXC_XLA_COPY, &in[2], &err), 0);
    enum mxc_code code;
    int runs = 0;
    while (!(code = mxc_xla_execute(program, in, 3, out, 2, &err))) {
        runs++;
        mxc_xla_buffer_free(in[0]);
        mxc_xla_buffer_free(out[0]);
        in[0] = out[1];
        out[0] = out[1] = NULL;
    }
    assert_int_equal(runs, 3);
    assert_int_equal(code, MXC_E_DEVICE_LOST);
    assert_non_null(strstr(err.message, "XLA: running add: the device was lost: UNAVAILABLE: "));
    assert_true(mxc_xla_client_lost(client));
    struct mxc_xla_counters counters;
    mxc_xla_client_counters(client, &counters);
    assert_int_equal(counters.executions, 3);
    assert_int_equal(counters.live_buffers, 3);
    /* nothing more reaches the plugin but destroying (calls_when_lost in the check) */
    assert_int_equal(mxc_xla_execute(program, in, 3, out, 2, &err), MXC_E_DEVICE_LOST);
    assert_int_equal(mxc_xla_buffer_read(in[2], back, 4, &err), MXC_E_DEVICE_LOST);
    assert_int_equal(mxc_xla_buffer_new(client, 0, &SCALAR, &half, MXC_XLA_COPY, &spare, &err),
                     MXC_E_DEVICE_LOST);
    assert_int_equal(mxc_xla_compile(client, "add", ADD, strlen(ADD), &compile, &other, &err),
                     MXC_E_DEVICE_LOST);
    assert_string_equal(err.message, "XLA: the device was lost earlier");
    assert_null(spare);
    assert_null(other);
    for (int i = 0; i < 3; i++)
        mxc_xla_buffer_free(in[i]);
    mxc_xla_program_free(program);
    mxc_xla_client_close(client);
    mxc_fake_plugin_check(fake);
}

/* Which failures lose the device depends on when they come. */
static void the_code_and_the_moment_tell_a_lost_device(void **state) {
    (void)state;
    const struct {
        int call, theirs;
        enum mxc_code ours;
    } rows[] = {
        {FAKE_CREATE, PJRT_UNAVAILABLE, MXC_E_BACKEND},
        {FAKE_CREATE, PJRT_RESOURCE_EXHAUSTED, MXC_E_NOMEM},
        {FAKE_COMPILE, PJRT_INTERNAL, MXC_E_BACKEND},
        {FAKE_COMPILE, PJRT_UNIMPLEMENTED, MXC_E_UNSUPPORTED},
        {FAKE_COMPILE, PJRT_DATA_LOSS, MXC_E_DEVICE_LOST},
        {FAKE_FROM_HOST, PJRT_RESOURCE_EXHAUSTED, MXC_E_NOMEM},
        {FAKE_FROM_HOST, PJRT_UNKNOWN, MXC_E_DEVICE_LOST},
        {FAKE_EXECUTE, PJRT_INVALID_ARGUMENT, MXC_E_BACKEND},
        {FAKE_EXECUTE, PJRT_INTERNAL, MXC_E_DEVICE_LOST},
        {FAKE_EXECUTE, PJRT_ABORTED, MXC_E_DEVICE_LOST},
        {FAKE_TO_HOST, PJRT_INTERNAL, MXC_E_DEVICE_LOST},
        {FAKE_AWAIT, PJRT_FAILED_PRECONDITION, MXC_E_BACKEND},
        {FAKE_AWAIT, PJRT_INTERNAL, MXC_E_DEVICE_LOST},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct fake_plugin *fake = mxc_fake_plugin_open();
        struct mxc_err err;
        fake->fail_call = rows[i].call;
        fake->fail_code = rows[i].theirs;
        assert_int_equal(live(NULL, 1, &err), rows[i].ours);
        mxc_fake_plugin_check(fake);
    }
}

/* ---- plugins that are refused ---- */

static enum mxc_code try_open(const char *path, struct mxc_err *err) {
    struct mxc_xla_client *client = NULL;
    const struct mxc_xla_client_options options = {.plugin = path};
    enum mxc_code code = mxc_xla_client_open(&options, &client, err);
    assert_null(client);
    return code;
}

static void wrong_plugins_are_refused_clearly(void **state) {
    (void)state;
    struct mxc_err err;
    assert_int_equal(try_open(NULL, &err), MXC_E_NOT_FOUND);
    assert_non_null(strstr(err.message, "MLXCEL_XLA_PLUGIN"));
    assert_int_equal(try_open("/nowhere/plugin.so", &err), MXC_E_NOT_FOUND);
    assert_string_equal(err.message, "XLA: /nowhere/plugin.so: there is no such plugin file");
    Dl_info libc; /* a shared object that is no plugin */
    void *function = dlsym(RTLD_DEFAULT, "getpid");
    assert_true(function && dladdr(function, &libc));
    char text[] = "not-a-library-XXXXXX";
    int fd = mkstemp(text);
    assert_true(fd >= 0 && write(fd, "hello\n", 6) == 6);
    close(fd);
    assert_int_equal(try_open(text, &err), MXC_E_BACKEND);
    assert_non_null(strstr(err.message, ": cannot be loaded: "));
    unlink(text);
    assert_int_equal(try_open(libc.dli_fname, &err), MXC_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, ": not a PJRT plugin: it has no GetPjrtApi"));

    struct fake_plugin *fake = mxc_fake_plugin_open();
    fake->no_table = true;
    assert_int_equal(try_open(MXC_FAKE_PLUGIN, &err), MXC_E_BACKEND);
    fake = mxc_fake_plugin_open();
    fake->major = 1;
    assert_int_equal(try_open(MXC_FAKE_PLUGIN, &err), MXC_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, ": PJRT API version 1.115; this program speaks 0.x"));
    fake = mxc_fake_plugin_open();
    fake->struct_size = 32;
    assert_int_equal(try_open(MXC_FAKE_PLUGIN, &err), MXC_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, "a table of 32 bytes is too short to hold a version"));
    fake = mxc_fake_plugin_open();
    fake->struct_size = 40 + 8 * 70;
    assert_int_equal(try_open(MXC_FAKE_PLUGIN, &err), MXC_E_UNSUPPORTED);
    assert_non_null(
        strstr(err.message, "(PJRT API 0.115) is too short: 600 bytes, 608 are needed"));
    fake = mxc_fake_plugin_open();
    fake->no_execute = true;
    assert_int_equal(try_open(MXC_FAKE_PLUGIN, &err), MXC_E_UNSUPPORTED);
    assert_non_null(strstr(err.message, ": the plugin has no LoadedExecutable_Execute"));
    assert_int_equal(fake->n_calls, 0); /* no slot of any of them was used */
}

/* A table that ends before the calls we can do without. */
static void a_short_table_is_enough(void **state) {
    (void)state;
    struct fake_plugin *fake = mxc_fake_plugin_open();
    struct mxc_err err;
    fake->struct_size = 40 + 8 * 71;
    if (live(NULL, 1, &err))
        fail_msg("%s", err.message);
    assert_int_equal(fake->calls[FAKE_VIEW], 0);
    assert_int_equal(fake->calls[FAKE_COMPILED_MEMORY], 0);
    mxc_fake_plugin_check(fake);
}

static void options_that_a_plugin_does_not_know_are_left_out(void **state) {
    (void)state;
    struct mxc_err err;
    struct fake_plugin *fake = mxc_fake_plugin_open();
    fake->no_cpu_option = true;
    fake->platform = "cuda";
    struct mxc_xla_client *client = open_fake(NULL);
    assert_int_equal(fake->calls[FAKE_CREATE], 2);
    assert_false(mxc_xla_client_info(client)->is_cpu);
    assert_string_equal(mxc_xla_client_info(client)->platform, "cuda");
    assert_string_equal(mxc_xla_client_info(client)->devices[0].kind, "fake device");
    assert_int_equal(mxc_xla_client_info(client)->devices[0].memory_bytes, 1 << 30);
    mxc_xla_client_close(client);
    fake->no_gpu_option = true;
    client = open_fake(NULL);
    assert_int_equal(fake->calls[FAKE_CREATE], 5);
    mxc_xla_client_close(client);
    mxc_fake_plugin_check(fake);
    const struct mxc_xla_client_options every = {.plugin = MXC_FAKE_PLUGIN,
                                                 .n_devices = MXC_XLA_ALL_DEVICES};
    assert_int_equal(mxc_xla_client_open(&every, &client, &err), MXC_OK);
    assert_int_equal(fake->calls[FAKE_CREATE], 7);
    assert_int_equal(mxc_xla_client_info(client)->n_devices, 4);
    mxc_xla_client_close(client);
    mxc_fake_plugin_check(fake);
    /* no device: what the last try says */
    fake = mxc_fake_plugin_open();
    fake->fail_call = FAKE_CREATE;
    assert_int_equal(try_open(MXC_FAKE_PLUGIN, &err), MXC_E_BACKEND);
    assert_int_equal(fake->calls[FAKE_CREATE], 3);
    mxc_fake_plugin_check(fake);
    fake = mxc_fake_plugin_open();
    fake->no_cpu_option = fake->no_gpu_option = true;
    fake->n_devices = 0;
    assert_int_equal(try_open(MXC_FAKE_PLUGIN, &err), MXC_E_UNSUPPORTED);
    assert_string_equal(err.message, "XLA: platform cpu has 0 devices; 1 was asked for");
    mxc_fake_plugin_check(fake);
}

static void threads_are_the_users_or_ours(void **state) {
    (void)state;
    struct fake_plugin *fake = mxc_fake_plugin_open();
    struct mxc_xla_client *client = NULL;
    struct mxc_err err;
    const struct mxc_xla_client_options options = {.plugin = MXC_FAKE_PLUGIN, .n_threads = 3};
    (void)unsetenv("PJRT_NPROC");
    assert_int_equal(mxc_xla_client_open(&options, &client, &err), MXC_OK);
    mxc_xla_client_close(client);
    assert_string_equal(fake->threads, "3");
    assert_null(getenv("PJRT_NPROC"));
    (void)setenv("PJRT_NPROC", "7", 1);
    (void)setenv("TF_CPP_MIN_LOG_LEVEL", "0", 1);
    assert_int_equal(mxc_xla_client_open(&options, &client, &err), MXC_OK);
    mxc_xla_client_close(client);
    assert_string_equal(fake->threads, "7");
    assert_string_equal(fake->log_level, "0");
    assert_string_equal(getenv("PJRT_NPROC"), "7");
    (void)unsetenv("PJRT_NPROC");
    (void)unsetenv("TF_CPP_MIN_LOG_LEVEL");
}

/* ---- compile options ---- */

static void compile_options_are_written_as_the_format_wants(void **state) {
    (void)state;
    struct fake_plugin *fake = mxc_fake_plugin_open();
    struct mxc_xla_client_options open = {.plugin = MXC_FAKE_PLUGIN, .n_devices = 2};
    struct mxc_xla_client *client = NULL;
    struct mxc_xla_program *program = NULL;
    struct mxc_err err;
    assert_int_equal(mxc_xla_client_open(&open, &client, &err), MXC_OK);
    struct mxc_xla_compile_options o = add_options();
    o.plain_scheduler = true;
    const struct {
        int replicas, partitions;
        bool spmd, shardy;
        const char *bytes;
        size_t size;
    } rows[] = {{0, 0, false, false, "\x1a\x04\x20\x01\x28\x01", 6},
                {2, 1, false, false, "\x1a\x04\x20\x02\x28\x01", 6},
                {1, 2, true, false, "\x1a\x06\x20\x01\x28\x02\x30\x01", 8},
                {1, 2, true, true, "\x1a\x09\x20\x01\x28\x02\x30\x01\x98\x01\x01", 11}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        o.n_replicas = rows[i].replicas;
        o.n_partitions = rows[i].partitions;
        o.spmd = rows[i].spmd;
        o.shardy = rows[i].shardy;
        assert_int_equal(mxc_xla_compile(client, "p", ADD, strlen(ADD), &o, &program, &err),
                         MXC_OK);
        assert_int_equal(fake->options_size, rows[i].size);
        assert_memory_equal(fake->options, rows[i].bytes, rows[i].size);
        mxc_xla_program_free(program);
    }
    o = add_options();
    const struct mxc_xla_flag flags[] = {
        {.name = "a_b", .kind = MXC_XLA_FLAG_BOOL, .value = 1},
        {.name = "c", .kind = MXC_XLA_FLAG_INT, .value = 300},
        {.name = "xla_cpu_scheduler_type", .kind = MXC_XLA_FLAG_STRING, .text = "x"}};
    o.flags = flags;
    o.n_flags = 3;
    static const char expected[] = "\x1a\x04\x20\x01\x28\x01"
                                   "\x3a\x09\x0a\x03"
                                   "a_b\x12\x02\x10\x01"
                                   "\x3a\x08\x0a\x01"
                                   "c\x12\x03\x18\xac\x02"
                                   "\x3a\x1d\x0a\x16"
                                   "xla_cpu_scheduler_type\x12\x03\x0a\x01x";
    assert_int_equal(mxc_xla_compile(client, "p", ADD, strlen(ADD), &o, &program, &err), MXC_OK);
    assert_int_equal(fake->options_size, sizeof expected - 1);
    assert_memory_equal(fake->options, expected, sizeof expected - 1);
    mxc_xla_program_free(program);
    /* ours comes by itself, and goes when the plugin does not know it; theirs is an error */
    o.n_flags = 0;
    assert_int_equal(mxc_xla_compile(client, "p", ADD, strlen(ADD), &o, &program, &err), MXC_OK);
    assert_non_null(memmem(fake->options, fake->options_size, "MEMORY_OPTIMIZED", 16));
    mxc_xla_program_free(program);
    fake->no_scheduler = true;
    assert_int_equal(mxc_xla_compile(client, "p", ADD, strlen(ADD), &o, &program, &err), MXC_OK);
    assert_int_equal(fake->options_size, 6);
    mxc_xla_program_free(program);
    const struct mxc_xla_flag unknown = {.name = "xla_no_such_flag", .kind = MXC_XLA_FLAG_BOOL};
    o.flags = &unknown;
    o.n_flags = 1;
    program = NULL;
    assert_int_equal(mxc_xla_compile(client, "p", ADD, strlen(ADD), &o, &program, &err),
                     MXC_E_BACKEND);
    assert_string_equal(err.message,
                        "XLA: compiling p: INVALID_ARGUMENT: no such flag: xla_no_such_flag");
    /* counts */
    o = add_options();
    o.n_partitions = 3;
    assert_int_equal(mxc_xla_compile(client, "p", ADD, strlen(ADD), &o, &program, &err), MXC_E_ARG);
    assert_string_equal(err.message, "XLA: p: 1 x 3 devices, and 2 are open");
    o.n_partitions = 0;
    fake->n_results_wrong = 1;
    assert_int_equal(mxc_xla_compile(client, "p", ADD, strlen(ADD), &o, &program, &err),
                     MXC_E_INTERNAL);
    assert_null(program);
    mxc_xla_client_close(client);
    mxc_fake_plugin_check(fake);
}

/* ---- arguments ---- */

struct bench {
    struct fake_plugin *fake;
    struct mxc_xla_client *client;
    struct mxc_xla_program *program;
    struct mxc_xla_buffer *in[3], *out[2];
};

static void expect_refused(struct bench *b, const char *why) {
    struct mxc_err err;
    assert_int_equal(mxc_xla_execute(b->program, b->in, 3, b->out, 2, &err), MXC_E_ARG);
    if (!strstr(err.message, why))
        fail_msg("\"%s\" and not \"%s\"", err.message, why);
    assert_null(b->out[0]);
}

static void arguments_are_checked_before_a_run(void **state) {
    (void)state;
    struct bench b = {.fake = mxc_fake_plugin_open(), .client = open_fake(NULL)};
    const struct mxc_xla_compile_options compile = add_options();
    struct mxc_err err;
    struct mxc_xla_buffer *wrong, *borrowed;
    const struct mxc_xla_shape integer = {MXC_XLA_S32, 0, {0}};
    assert_int_equal(mxc_xla_compile(b.client, "add", ADD, strlen(ADD), &compile, &b.program, &err),
                     MXC_OK);
    assert_int_equal(mxc_xla_buffer_new(b.client, 0, &MATRIX, matrix, MXC_XLA_COPY, &b.in[0], &err),
                     0);
    assert_int_equal(
        mxc_xla_buffer_new(b.client, 0, &NIBBLES, nibbles, MXC_XLA_COPY, &b.in[1], &err), 0);
    assert_int_equal(mxc_xla_program_temp_bytes(b.program), 4242);
    expect_refused(&b, "argument 2 of device 0 is missing");
    assert_int_equal(mxc_xla_buffer_new(b.client, 0, &integer, &half, MXC_XLA_COPY, &wrong, &err),
                     0);
    b.in[2] = wrong;
    expect_refused(&b, "argument 2 of device 0 has another type or shape than the program's");
    assert_int_equal(mxc_xla_buffer_new(b.client, 0, &SCALAR, &half, MXC_XLA_COPY, &b.in[2], &err),
                     0);
    assert_int_equal(
        mxc_xla_buffer_new(b.client, 0, &MATRIX, matrix, MXC_XLA_BORROW, &borrowed, &err), 0);
    assert_true(mxc_xla_buffer_borrowed(borrowed));
    struct mxc_xla_buffer *own = b.in[0];
    b.in[0] = borrowed;
    expect_refused(&b, "argument 0 of device 0 is borrowed host memory, which cannot be donated");
    b.in[0] = own;
    assert_int_equal(mxc_xla_execute(b.program, b.in, 2, b.out, 2, &err), MXC_E_ARG);
    assert_int_equal(b.fake->calls[FAKE_EXECUTE], 0);
    assert_int_equal(mxc_xla_execute(b.program, b.in, 3, b.out, 2, &err), MXC_OK);
    mxc_xla_buffer_free(b.out[0]);
    mxc_xla_buffer_free(b.out[1]);
    b.out[0] = b.out[1] = NULL;
    expect_refused(&b, "argument 0 of device 0 was donated before");
    float back[6];
    assert_int_equal(mxc_xla_buffer_read(b.in[0], back, sizeof back, &err), MXC_E_ARG);
    assert_int_equal(mxc_xla_buffer_read(b.in[2], back, 8, &err), MXC_E_ARG);
    const struct mxc_xla_shape endless = {MXC_XLA_F32, 2, {INT64_MAX, 8}};
    assert_int_equal(mxc_xla_buffer_new(b.client, 0, &endless, matrix, MXC_XLA_COPY, &own, &err),
                     MXC_E_ARG);
    assert_int_equal(mxc_xla_buffer_new(b.client, 1, &SCALAR, matrix, MXC_XLA_COPY, &own, &err),
                     MXC_E_ARG);
    for (int i = 0; i < 3; i++)
        mxc_xla_buffer_free(b.in[i]);
    mxc_xla_buffer_free(wrong);
    mxc_xla_buffer_free(borrowed);
    mxc_xla_program_free(b.program);
    mxc_xla_client_close(b.client);
    mxc_fake_plugin_check(b.fake);
}

static const char TWICE[] = "module @m { func.func public @main(%a: tensor<f32> "
                            "{jax.buffer_donor = true}, %b: tensor<f32>) -> tensor<f32> {} }";

static void a_donated_buffer_stands_in_one_place(void **state) {
    (void)state;
    struct fake_plugin *fake = mxc_fake_plugin_open();
    struct mxc_xla_client *client = open_fake(NULL);
    struct mxc_xla_param inputs[2] = {{SCALAR, true}, {SCALAR, false}};
    const struct mxc_xla_compile_options o = {
        .inputs = inputs, .outputs = inputs + 1, .n_inputs = 2, .n_outputs = 1};
    struct mxc_xla_program *program;
    struct mxc_xla_buffer *one, *two, *out = NULL;
    struct mxc_err err;
    assert_int_equal(mxc_xla_compile(client, "t", TWICE, strlen(TWICE), &o, &program, &err), 0);
    assert_int_equal(mxc_xla_buffer_new(client, 0, &SCALAR, &half, MXC_XLA_COPY, &one, &err), 0);
    assert_int_equal(mxc_xla_buffer_new(client, 0, &SCALAR, &half, MXC_XLA_COPY, &two, &err), 0);
    assert_int_equal(
        mxc_xla_execute(program, (struct mxc_xla_buffer *[]){one, one}, 2, &out, 1, &err),
        MXC_E_ARG);
    assert_non_null(strstr(err.message, "is donated in another place of the same run"));
    assert_int_equal(
        mxc_xla_execute(program, (struct mxc_xla_buffer *[]){one, two}, 2, &out, 1, &err), MXC_OK);
    mxc_xla_buffer_free(one);
    mxc_xla_buffer_free(two);
    mxc_xla_buffer_free(out);
    mxc_xla_program_free(program);
    mxc_xla_client_close(client);
    mxc_fake_plugin_check(fake);
}

static void nibbles_travel_packed(void **state) {
    (void)state;
    struct fake_plugin *fake = mxc_fake_plugin_open();
    struct mxc_xla_client *client = open_fake(NULL);
    struct mxc_err err;
    for (int hold = MXC_XLA_COPY; hold <= MXC_XLA_BORROW; hold++)
        for (int offset = 0; offset < 2; offset++) {
            static alignas(64) uint8_t data[4];
            uint8_t back[3] = {0};
            memcpy(data + offset, nibbles, sizeof nibbles);
            struct mxc_xla_buffer *b;
            assert_int_equal(mxc_xla_buffer_new(client, 0, &NIBBLES, data + offset,
                                                (enum mxc_xla_hold)hold, &b, &err),
                             MXC_OK);
            assert_int_equal(mxc_xla_buffer_borrowed(b), hold == MXC_XLA_BORROW && !offset);
            assert_int_equal(mxc_xla_buffer_read(b, back, 3, &err), MXC_OK);
            assert_memory_equal(back, nibbles, 3);
            mxc_xla_buffer_free(b);
        }
    struct mxc_xla_counters n;
    mxc_xla_client_counters(client, &n);
    assert_int_equal(n.uploads, 3);
    assert_int_equal(n.borrows, 1);
    assert_int_equal(n.live_buffers, 0);
    mxc_xla_client_close(client);
    mxc_fake_plugin_check(fake);
}

/* ---- several devices ---- */

static const char SUM[] = "module @m attributes {mhlo.num_partitions = 2 : i32} { func.func public "
                          "@main(%a: tensor<f32>) -> tensor<f32> {} }";

static void a_program_runs_on_its_devices(void **state) {
    (void)state;
    struct fake_plugin *fake = mxc_fake_plugin_open();
    const struct mxc_xla_client_options open = {.plugin = MXC_FAKE_PLUGIN, .n_devices = 2};
    struct mxc_xla_client *client = NULL;
    const struct mxc_xla_param scalar = {SCALAR, false};
    const struct mxc_xla_compile_options o = {
        .inputs = &scalar, .outputs = &scalar, .n_inputs = 1, .n_outputs = 1, .n_partitions = 2};
    struct mxc_xla_program *program;
    struct mxc_xla_buffer *in[2], *out[2];
    struct mxc_err err;
    assert_int_equal(mxc_xla_client_open(&open, &client, &err), MXC_OK);
    assert_int_equal(fake->client_devices, 2);
    assert_int_equal(mxc_xla_compile(client, "sum", SUM, strlen(SUM), &o, &program, &err), MXC_OK);
    for (int d = 0; d < 2; d++)
        assert_int_equal(mxc_xla_buffer_new(client, d, &SCALAR, &half, MXC_XLA_COPY, &in[d], &err),
                         MXC_OK);
    struct mxc_xla_buffer *swapped[2] = {in[1], in[0]};
    assert_int_equal(mxc_xla_execute(program, swapped, 2, out, 2, &err), MXC_E_ARG);
    assert_non_null(strstr(err.message, "argument 0 of device 0 lies on another device"));
    assert_int_equal(mxc_xla_execute(program, in, 2, out, 2, &err), MXC_OK);
    assert_int_equal(fake->live_buffers, 4);
    /* one of the two fails late: both results go */
    fake->fail_at = fake->n_calls + 3;
    fake->fail_code = PJRT_INTERNAL;
    struct mxc_xla_buffer *none[2] = {0};
    assert_int_equal(mxc_xla_execute(program, in, 2, none, 2, &err), MXC_E_DEVICE_LOST);
    assert_null(none[0]);
    assert_int_equal(fake->live_buffers, 4);
    for (int d = 0; d < 2; d++) {
        mxc_xla_buffer_free(in[d]);
        mxc_xla_buffer_free(out[d]);
    }
    mxc_xla_program_free(program);
    mxc_xla_client_close(client);
    mxc_fake_plugin_check(fake);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_come_in_order_and_all_is_destroyed),
        cmocka_unit_test(every_call_may_fail),
        cmocka_unit_test(memory_may_run_out),
        cmocka_unit_test(a_lost_device_is_said_and_stays_lost),
        cmocka_unit_test(the_code_and_the_moment_tell_a_lost_device),
        cmocka_unit_test(wrong_plugins_are_refused_clearly),
        cmocka_unit_test(a_short_table_is_enough),
        cmocka_unit_test(options_that_a_plugin_does_not_know_are_left_out),
        cmocka_unit_test(threads_are_the_users_or_ours),
        cmocka_unit_test(compile_options_are_written_as_the_format_wants),
        cmocka_unit_test(arguments_are_checked_before_a_run),
        cmocka_unit_test(a_donated_buffer_stands_in_one_place),
        cmocka_unit_test(nibbles_travel_packed),
        cmocka_unit_test(a_program_runs_on_its_devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
