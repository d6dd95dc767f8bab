/* The PJRT client against a real CPU plugin: that our declarations are those of the plugin. Small
 * programs of every type that weights go up as, donation, memory used in place, misuse that the
 * plugin refuses, programs from disk, two devices. Skipped with a line when there is no plugin. */
#define _GNU_SOURCE
#include "test.h"

#ifndef MLXCEL_XLA_DEVICE_RUNTIME

int main(void) {
    return 0; /* nothing to test: the client is not in this build */
}

#else

#include "backend/xla/client.h"

#include "real_plugin.h"

#include <dirent.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *plugin;

#define OK(call)                                                                                   \
    do {                                                                                           \
        if (call)                                                                                  \
            fail_msg("%s", err.message);                                                           \
    } while (0)

static struct mxc_xla_client *open_client(int n_devices, const char *cache_dir) {
    struct mxc_xla_client *client = NULL;
    struct mxc_err err;
    const struct mxc_xla_client_options options = {
        .plugin = plugin, .n_devices = n_devices, .n_threads = 2, .cache_dir = cache_dir};
    OK(mxc_xla_client_open(&options, &client, &err));
    return client;
}

static void facts_are_read(void **state) {
    (void)state;
    struct mxc_xla_client *client = open_client(0, NULL);
    const struct mxc_xla_client_info *info = mxc_xla_client_info(client);
    assert_string_equal(info->platform, "cpu");
    assert_true(info->is_cpu);
    assert_int_equal(info->api_major, 0);
    assert_true(info->api_minor >= 100);
    assert_int_equal(info->n_devices, 1);
    assert_string_not_equal(info->devices[0].kind, "");
    assert_string_not_equal(info->devices[0].description, "");
    mxc_xla_client_close(client);
}

static const char STEP[] =
    "module @m { func.func public @main(%s: tensor<4xf32> {tf.aliasing_output = 0 : i32}, "
    "%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<f32>) {\n"
    "%0 = stablehlo.add %s, %x : tensor<4xf32>\n"
    "%z = stablehlo.constant dense<0.0> : tensor<f32>\n"
    "%1 = stablehlo.reduce(%0 init: %z) applies stablehlo.add across dimensions = [0] : "
    "(tensor<4xf32>, tensor<f32>) -> tensor<f32>\n"
    "return %0, %1 : tensor<4xf32>, tensor<f32> } }";
static const struct mxc_xla_shape FOUR = {MXC_XLA_F32, 1, {4}};
static const struct mxc_xla_shape SCALAR = {MXC_XLA_F32, 0, {0}};
static alignas(64) const float ones[4] = {1, 2, 3, 4};

static struct mxc_xla_compile_options step_options(void) {
    static struct mxc_xla_param inputs[2], outputs[2];
    inputs[0] = (struct mxc_xla_param){FOUR, true};
    inputs[1] = (struct mxc_xla_param){FOUR, false};
    outputs[0] = (struct mxc_xla_param){FOUR, false};
    outputs[1] = (struct mxc_xla_param){SCALAR, false};
    return (struct mxc_xla_compile_options){
        .inputs = inputs, .outputs = outputs, .n_inputs = 2, .n_outputs = 2};
}

static void state_goes_round_by_donation(void **state) {
    (void)state;
    struct mxc_xla_client *client = open_client(0, NULL);
    struct mxc_xla_program *program = NULL;
    struct mxc_xla_buffer *in[2], *out[2];
    const struct mxc_xla_compile_options options = step_options();
    struct mxc_err err;
    OK(mxc_xla_compile(client, "step", STEP, strlen(STEP), &options, &program, &err));
    OK(mxc_xla_buffer_new(client, 0, &FOUR, (const float[4]){0}, MXC_XLA_COPY, &in[0], &err));
    OK(mxc_xla_buffer_new(client, 0, &FOUR, ones, MXC_XLA_BORROW, &in[1], &err));
    assert_true(mxc_xla_buffer_borrowed(in[1]));
    for (int i = 1; i <= 5; i++) {
        float sum, back[4];
        OK(mxc_xla_execute(program, in, 2, out, 2, &err));
        assert_int_equal(mxc_xla_buffer_read(in[0], back, sizeof back, &err), MXC_E_ARG);
        mxc_xla_buffer_free(in[0]);
        in[0] = out[0];
        OK(mxc_xla_buffer_read(out[1], &sum, sizeof sum, &err));
        mxc_xla_buffer_free(out[1]);
        OK(mxc_xla_buffer_read(in[0], back, sizeof back, &err));
        assert_true(sum == (float)(10 * i) && back[3] == (float)(4 * i));
    }
    assert_int_equal(mxc_xla_program_executions(program), 5);
    mxc_xla_buffer_free(in[0]);
    mxc_xla_buffer_free(in[1]);
    mxc_xla_program_free(program);
    mxc_xla_client_close(client);
}

/* Every type goes up, through a program that converts it, and comes back as f32. */
static void every_type_goes_up(void **state) {
    (void)state;
    static alignas(64)
        const uint8_t bytes[16] = {0x21, 0xF7, 0x80, 0x3F, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    const struct {
        enum mxc_xla_type type;
        float first, second;
    } rows[] = {{MXC_XLA_BF16, -3.2654679e+33F, 1.0F},
                {MXC_XLA_F16, -29200.0F, 1.875F},
                {MXC_XLA_S64, 0, 0},
                {MXC_XLA_S32, 1065416481.0F, 65537.0F},
                {MXC_XLA_S16, -2271.0F, 16256.0F},
                {MXC_XLA_S8, 33, -9},
                {MXC_XLA_U32, 1065416481.0F, 65537.0F},
                {MXC_XLA_U16, 63265.0F, 16256.0F},
                {MXC_XLA_U8, 33, 247},
                {MXC_XLA_S4, 1, 2},
                {MXC_XLA_U4, 1, 2}};
    struct mxc_xla_client *client = open_client(0, NULL);
    struct mxc_err err;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct mxc_xla_shape shape = {rows[i].type, 1, {2}}, two = {MXC_XLA_F32, 1, {2}};
        const struct mxc_xla_param in = {shape, false}, out = {two, false};
        const struct mxc_xla_compile_options options = {
            .inputs = &in, .outputs = &out, .n_inputs = 1, .n_outputs = 1};
        const char *name = mxc_xla_type_name(rows[i].type);
        char text[400];
        (void)snprintf(text, sizeof text,
                       "func.func public @main(%%x: tensor<2x%s>) -> tensor<2xf32> {\n"
                       "%%0 = stablehlo.convert %%x : (tensor<2x%s>) -> tensor<2xf32>\n"
                       "return %%0 : tensor<2xf32> }",
                       name, name);
        struct mxc_xla_program *program = NULL;
        OK(mxc_xla_compile(client, name, text, strlen(text), &options, &program, &err));
        float results[2][2];
        for (int hold = MXC_XLA_COPY; hold <= MXC_XLA_BORROW; hold++) {
            struct mxc_xla_buffer *b, *result;
            uint8_t back[16];
            size_t n;
            assert_true(mxc_xla_shape_bytes(&shape, &n));
            OK(mxc_xla_buffer_new(client, 0, &shape, bytes, (enum mxc_xla_hold)hold, &b, &err));
            assert_int_equal(mxc_xla_buffer_borrowed(b), hold == MXC_XLA_BORROW);
            OK(mxc_xla_execute(program, &b, 1, &result, 1, &err));
            OK(mxc_xla_buffer_read(result, results[hold], sizeof results[hold], &err));
            OK(mxc_xla_buffer_read(b, back, n, &err));
            assert_memory_equal(back, bytes, n);
            mxc_xla_buffer_free(result);
            mxc_xla_buffer_free(b);
        }
        assert_memory_equal(results[0], results[1], sizeof results[0]);
        if (rows[i].first != 0) {
            float off = results[0][0] / rows[i].first - 1;
            assert_true(off < 1e-4F && off > -1e-4F);
            assert_true(results[0][1] == rows[i].second);
        }
        mxc_xla_program_free(program);
    }
    mxc_xla_client_close(client);
}

static void misuse_is_an_error_with_a_reason(void **state) {
    (void)state;
    struct mxc_xla_client *client = open_client(0, NULL);
    struct mxc_xla_program *program = NULL;
    struct mxc_err err;
    struct mxc_xla_compile_options options = step_options();
    static const char nonsense[] = "this is no program";
    assert_int_equal(
        mxc_xla_compile(client, "n", nonsense, strlen(nonsense), &options, &program, &err),
        MXC_E_BACKEND);
    assert_int_equal(strncmp(err.message, "XLA: compiling n: ", 18), 0);
    static const char wrong[] = "func.func public @main(%x: tensor<4xf32>) -> tensor<5xf32> {\n"
                                "return %x : tensor<4xf32> }";
    assert_int_equal(mxc_xla_compile(client, "w", wrong, strlen(wrong), &options, &program, &err),
                     MXC_E_BACKEND);
    const struct mxc_xla_flag flag = {.name = "xla_no_such_flag", .kind = MXC_XLA_FLAG_BOOL};
    options.flags = &flag;
    options.n_flags = 1;
    assert_int_equal(mxc_xla_compile(client, "f", STEP, strlen(STEP), &options, &program, &err),
                     MXC_E_BACKEND);
    assert_non_null(strstr(err.message, "xla_no_such_flag"));
    options = step_options();
    options.n_outputs = 1;
    assert_int_equal(mxc_xla_compile(client, "o", STEP, strlen(STEP), &options, &program, &err),
                     MXC_E_INTERNAL);
    assert_null(program);
    assert_false(mxc_xla_client_lost(client));
    mxc_xla_client_close(client);
}

/* The only program in the folder, with one byte of it changed. */
static void damage(const char *dir, bool remove) {
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));) {
        char path[400];
        (void)snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (e->d_name[0] == '.')
            continue;
        if (remove) {
            unlink(path);
        } else if (strstr(e->d_name, ".xlaprog")) {
            FILE *f = fopen(path, "r+");
            assert_true(f && !fseek(f, 200, SEEK_SET) && fputc('?', f) != EOF && !fclose(f));
        }
    }
    closedir(d);
}

static void programs_come_back_from_disk(void **state) {
    (void)state;
    char dir[] = "/tmp/mlxcel-plugin-XXXXXX";
    assert_non_null(mkdtemp(dir));
    for (int i = 0; i < 4; i++) {
        struct mxc_xla_client *client = open_client(0, dir);
        struct mxc_xla_program *program = NULL;
        struct mxc_xla_buffer *in[2], *out[2];
        const struct mxc_xla_compile_options options = step_options();
        struct mxc_err err;
        float sum;
        OK(mxc_xla_compile(client, "step", STEP, strlen(STEP), &options, &program, &err));
        assert_int_equal(mxc_xla_program_from_cache(program), i % 2);
        OK(mxc_xla_buffer_new(client, 0, &FOUR, ones, MXC_XLA_COPY, &in[0], &err));
        OK(mxc_xla_buffer_new(client, 0, &FOUR, ones, MXC_XLA_COPY, &in[1], &err));
        OK(mxc_xla_execute(program, in, 2, out, 2, &err));
        OK(mxc_xla_buffer_read(out[1], &sum, sizeof sum, &err));
        assert_true(sum == 20);
        for (int j = 0; j < 2; j++) {
            mxc_xla_buffer_free(in[j]);
            mxc_xla_buffer_free(out[j]);
        }
        mxc_xla_program_free(program);
        mxc_xla_client_close(client);
        if (i == 1)
            damage(dir, false);
    }
    damage(dir, true);
    assert_int_equal(rmdir(dir), 0);
}

static const char SPLIT[] =
    "module @m attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32} {\n"
    "func.func public @main(%x: tensor<2x4xf32> {mhlo.sharding = \"{devices=[1,2]<=[2]}\"}, "
    "%w: tensor<4x3xf32> {mhlo.sharding = \"{devices=[2,1]<=[2]}\"}) -> "
    "(tensor<2x3xf32> {mhlo.sharding = \"{replicated}\"}) {\n"
    "%0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : "
    "(tensor<2x4xf32>, tensor<4x3xf32>) -> tensor<2x3xf32>\n"
    "return %0 : tensor<2x3xf32> } }";

static void two_devices_share_a_product(void **state) {
    (void)state;
    struct mxc_xla_client *client = open_client(2, NULL);
    struct mxc_xla_program *program = NULL;
    const struct mxc_xla_shape x = {MXC_XLA_F32, 2, {2, 2}}, w = {MXC_XLA_F32, 2, {2, 3}},
                               y = {MXC_XLA_F32, 2, {2, 3}};
    const struct mxc_xla_param inputs[2] = {{x, false}, {w, false}}, output = {y, false};
    const struct mxc_xla_compile_options options = {.inputs = inputs,
                                                    .outputs = &output,
                                                    .n_inputs = 2,
                                                    .n_outputs = 1,
                                                    .n_partitions = 2,
                                                    .spmd = true};
    struct mxc_xla_buffer *in[4], *out[2];
    struct mxc_err err;
    OK(mxc_xla_compile(client, "split", SPLIT, strlen(SPLIT), &options, &program, &err));
    float full_x[2][4], full_w[4][3], expected[2][3] = {{0}};
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 4; k++)
            full_x[i][k] = (float)(i + k);
    for (int k = 0; k < 4; k++)
        for (int j = 0; j < 3; j++)
            full_w[k][j] = (float)(k * 3 - j);
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 3; j++)
            for (int k = 0; k < 4; k++)
                expected[i][j] += full_x[i][k] * full_w[k][j];
    for (int d = 0; d < 2; d++) {
        float part[2][2];
        for (int i = 0; i < 2; i++)
            memcpy(part[i], &full_x[i][2 * d], sizeof part[i]);
        OK(mxc_xla_buffer_new(client, d, &x, part, MXC_XLA_COPY, &in[2 * d], &err));
        OK(mxc_xla_buffer_new(client, d, &w, full_w[2 * d], MXC_XLA_COPY, &in[2 * d + 1], &err));
    }
    OK(mxc_xla_execute(program, in, 4, out, 2, &err));
    for (int d = 0; d < 2; d++) {
        float back[2][3];
        OK(mxc_xla_buffer_read(out[d], back, sizeof back, &err));
        assert_memory_equal(back, expected, sizeof back);
        mxc_xla_buffer_free(out[d]);
    }
    for (int i = 0; i < 4; i++)
        mxc_xla_buffer_free(in[i]);
    mxc_xla_program_free(program);
    mxc_xla_client_close(client);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(facts_are_read),
        cmocka_unit_test(state_goes_round_by_donation),
        cmocka_unit_test(every_type_goes_up),
        cmocka_unit_test(misuse_is_an_error_with_a_reason),
        cmocka_unit_test(programs_come_back_from_disk),
        cmocka_unit_test(two_devices_share_a_product),
    };
    plugin = mxc_real_plugin();
    return plugin ? cmocka_run_group_tests(tests, NULL, NULL) : 0;
}

#endif
