/* base/: errors, memory, arena, buffer, strings, map, files, JSON, half floats, team. */
#define _GNU_SOURCE
#include "test.h"

#include "base/arena.h"
#include "base/buf.h"
#include "base/cpu.h"
#include "base/file.h"
#include "base/half.h"
#include "base/json.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/team.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void err_context_is_prepended_and_cut(void **state) {
    (void)state;
    struct mxc_err err;
    assert_int_equal(mxc_err_at(&err, MXC_E_FORMAT, 7, "tensor %s", "x"), MXC_E_FORMAT);
    assert_int_equal(mxc_err_context(&err, "loading %s", "a.gguf"), MXC_E_FORMAT);
    assert_string_equal(err.message, "loading a.gguf: tensor x");
    assert_int_equal(err.position, 7);
    char big[600];
    memset(big, 'b', sizeof big);
    big[sizeof big - 1] = 0;
    (void)mxc_err_context(&err, "%s", big);
    assert_int_equal(strlen(err.message), sizeof err.message - 1);
    assert_int_equal(mxc_err_context(NULL, "x"), MXC_E_INTERNAL);
    /* names out of files: one line of UTF-8, no escape codes; a character cut at the end too */
    (void)mxc_err_set(&err, MXC_E_FORMAT, "\xC3\xA9 %s", "a\nb\xFF\x1B[2J\xC2\x9B");
    assert_string_equal(err.message, "\xC3\xA9 a b??[2J??");
    (void)mxc_err_context(&err, "%s\xE2\x82\xAC", big);
    assert_true(mxc_utf8_valid(err.message, strlen(err.message)));
}

static void err_table_is_complete(void **state) {
    (void)state;
    for (int i = 0; i < MXC_N_CODES; i++) {
        const struct mxc_code_info *info = mxc_code_info((enum mxc_code)i);
        assert_non_null(info->name);
        assert_in_range(info->exit_status, 0, 2);
        assert_in_range(info->http_status, 200, 599);
        assert_non_null(info->openai_type);
    }
    assert_string_equal(mxc_code_info((enum mxc_code)999)->name, "internal");
}

static void mem_checks_sizes_and_fails_on_demand(void **state) {
    (void)state;
    size_t out = 5;
    assert_false(mxc_size_mul(SIZE_MAX, 2, &out));
    assert_false(mxc_size_add(SIZE_MAX, 1, &out));
    assert_int_equal(out, 5);
    assert_null(mxc_mem_array(SIZE_MAX / 2, 4));
    mxc_mem_fail_at(2);
    void *a = mxc_mem_alloc(1), *b = mxc_mem_alloc(1);
    mxc_mem_fail_at(0);
    assert_non_null(a);
    assert_null(b);
    mxc_mem_free(a);
    unsigned char *p = mxc_mem_aligned(64, 3 << 20, true);
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % (2 << 20), 0);
    p[0] = p[(3 << 20) - 1] = 1;
    mxc_mem_free_aligned(p, 3 << 20);
}

static void arena_zeroes_aligns_and_bounds(void **state) {
    (void)state;
    struct mxc_arena arena;
    mxc_arena_init(&arena, 200000);
    char *a = mxc_arena_alloc(&arena, 3), *big = mxc_arena_alloc(&arena, 100000);
    assert_non_null(a);
    assert_non_null(big);
    assert_int_equal((uintptr_t)big % 16, 0);
    for (int i = 0; i < 100000; i++)
        assert_int_equal(big[i], 0);
    assert_null(mxc_arena_alloc(&arena, 150000));
    assert_null(mxc_arena_array(&arena, SIZE_MAX, 16));
    assert_string_equal(mxc_arena_printf(&arena, "%d-%s", 12, "x"), "12-x");
    mxc_arena_fini(&arena);
}

static void buf_grows_to_its_maximum(void **state) {
    (void)state;
    struct mxc_buf buf;
    struct mxc_err err;
    mxc_buf_init(&buf, 100);
    assert_string_equal(mxc_buf_text(&buf), "");
    for (int i = 0; i < 10; i++)
        assert_true(mxc_buf_printf(&buf, "%09d,", i));
    assert_int_equal(buf.length, 100);
    assert_false(mxc_buf_putc(&buf, 'x'));
    assert_int_equal(mxc_buf_status(&buf, &err), MXC_E_LIMIT);
    mxc_buf_clear(&buf);
    assert_int_equal(mxc_buf_status(&buf, &err), MXC_OK);
    assert_false(mxc_buf_append(&buf, "x", 101)); /* one long piece on an empty buffer */
    assert_int_equal(mxc_buf_status(&buf, &err), MXC_E_LIMIT);
    mxc_buf_fini(&buf);
    mxc_mem_fail_at(1);
    assert_false(mxc_buf_putc(&buf, 'x'));
    mxc_mem_fail_at(0);
    assert_int_equal(mxc_buf_status(&buf, &err), MXC_E_NOMEM);
    mxc_buf_clear(&buf);
    assert_true(mxc_buf_utf8(&buf, 0x1F680) && mxc_buf_utf8(&buf, 0xD800));
    char *text = mxc_buf_take(&buf);
    assert_string_equal(text, "\xF0\x9F\x9A\x80\xEF\xBF\xBD");
    mxc_mem_free(text);
    mxc_buf_fini(&buf);
}

static void utf8_rejects_what_is_not(void **state) {
    (void)state;
    static const char *const bad[] = {"\x80",         "\xC0\x80",         "\xE0\x9F\xBF",
                                      "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80",
                                      "\xE2\x82"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(mxc_utf8_valid(bad[i], strlen(bad[i])));
    for (uint32_t cp = 0; cp <= 0x10FFFF; cp += 37) {
        char bytes[4];
        uint32_t back;
        if (cp >= 0xD800 && cp < 0xE000)
            continue;
        size_t n = mxc_utf8_encode(cp, bytes);
        assert_int_equal(mxc_utf8_decode(bytes, n, &back), n);
        assert_int_equal(back, cp);
    }
}

static void numbers_parse_whole_or_not_at_all(void **state) {
    (void)state;
    int64_t i = 1;
    double r = 1;
    assert_true(mxc_parse_i64("-42", &i));
    assert_int_equal(i, -42);
    assert_false(mxc_parse_i64("42x", &i) || mxc_parse_i64("", &i) ||
                 mxc_parse_i64("9223372036854775808", &i));
    assert_true(mxc_parse_f64("1e-3", &r));
    assert_false(mxc_parse_f64("1e-3 ", &r));
    assert_int_equal(mxc_str_distance("lama", "llama"), 1);
    assert_int_equal(mxc_str_distance("", "abc"), 3);
}

static void map_keeps_many_keys(void **state) {
    (void)state;
    struct mxc_map map;
    mxc_map_init(&map);
    uint64_t v;
    assert_false(mxc_map_get(&map, MXC_STR("x"), &v));
    for (unsigned i = 0; i < 5000; i++) {
        char key[16];
        int n = snprintf(key, sizeof key, "k%u", i);
        assert_true(mxc_map_put(&map, (struct mxc_str){key, (size_t)n}, i));
    }
    assert_true(mxc_map_put(&map, MXC_STR("k7"), 70));
    assert_true(mxc_map_get(&map, MXC_STR("k7"), &v));
    assert_int_equal(v, 70);
    assert_true(mxc_map_get(&map, MXC_STR("k4999"), &v));
    assert_int_equal(v, 4999);
    assert_false(mxc_map_get(&map, MXC_STR("k5000"), &v));
    assert_int_equal(map.n_used, 5000);
    mxc_map_fini(&map);
}

static void files_are_mapped_read_and_written_whole(void **state) {
    (void)state;
    char dir[] = "/tmp/mxc_base_XXXXXX";
    assert_non_null(mkdtemp(dir));
    struct mxc_err err;
    char *sub = mxc_path_join(dir, "a/b"), *path = mxc_path_join(sub, "f");
    assert_int_equal(mxc_dir_make(sub, &err), MXC_OK);
    assert_int_equal(mxc_file_write(path, "hello", 5, &err), MXC_OK);
    char *text;
    size_t n;
    assert_int_equal(mxc_file_read(path, 5, &text, &n, &err), MXC_OK);
    assert_string_equal(text, "hello");
    mxc_mem_free(text);
    assert_int_equal(mxc_file_read(path, 4, &text, &n, &err), MXC_E_LIMIT);
    struct mxc_file file;
    assert_int_equal(mxc_file_open(path, &file, &err), MXC_OK);
    assert_int_equal(file.size, 5);
    mxc_file_drop(&file, 0, 5);
    assert_memory_equal(file.data, "hello", 5);
    mxc_file_close(&file);
    assert_int_equal(mxc_file_open(sub, &file, &err), MXC_E_IO);
    assert_non_null(strstr(err.message, "not a regular file"));
    assert_int_equal(mxc_file_open("/nowhere/x", &file, &err), MXC_E_NOT_FOUND);
    assert_int_equal(mxc_dir_make(path, &err), MXC_E_IO);
    (void)unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0); /* is written to, not replaced */
    int fd = open(path, O_RDWR | O_NONBLOCK);
    char piped[8] = "";
    assert_int_equal(mxc_file_write(path, "hello", 5, &err), MXC_OK);
    assert_int_equal(read(fd, piped, sizeof piped), 5);
    assert_string_equal(piped, "hello");
    (void)close(fd);
    (void)unlink(path);
    (void)rmdir(sub);
    char *a = mxc_path_join(dir, "a");
    (void)rmdir(a);
    (void)rmdir(dir);
    mxc_mem_free(a);
    mxc_mem_free(sub);
    mxc_mem_free(path);
}

static void json_names_the_field(void **state) {
    (void)state;
    static const char text[] = "{\"a\": 3, \"b\": \"x\", \"c\": null, \"d\": 2.0, \"e\": true}";
    struct mxc_err err;
    json_t *root;
    assert_int_equal(mxc_json_parse(text, sizeof text - 1, "t.json", &root, &err), MXC_OK);
    int64_t i = 9;
    double r = 0;
    bool flag = false;
    const char *s = NULL;
    assert_int_equal(mxc_json_get_int(root, "a", 0, 5, &i, &err), MXC_OK);
    assert_int_equal(i, 3);
    assert_int_equal(mxc_json_get_int(root, "d", 0, 5, &i, &err), MXC_OK);
    assert_int_equal(i, 2);
    assert_int_equal(mxc_json_get_int(root, "c", 0, 5, &i, &err), MXC_OK);
    assert_int_equal(mxc_json_get_int(root, "zz", 0, 5, &i, &err), MXC_OK);
    assert_int_equal(i, 2);
    assert_int_equal(mxc_json_get_int(root, "b", 0, 5, &i, &err), MXC_E_FORMAT);
    assert_string_equal(err.message, "b: not an integer");
    assert_int_equal(mxc_json_get_int(root, "a", 4, 5, &i, &err), MXC_E_FORMAT);
    assert_int_equal(mxc_json_get_real(root, "a", &r, &err), MXC_OK);
    assert_true(r > 2.9 && r < 3.1);
    assert_int_equal(mxc_json_get_bool(root, "e", &flag, &err), MXC_OK);
    assert_true(flag);
    assert_int_equal(mxc_json_get_bool(root, "a", &flag, &err), MXC_E_FORMAT);
    assert_int_equal(mxc_json_get_string(root, "b", &s, &err), MXC_OK);
    assert_string_equal(s, "x");
    json_decref(root);
    assert_int_equal(mxc_json_parse("{\"a\":1,\"a\":2}", 13, "t.json", &root, &err), MXC_E_FORMAT);
    assert_non_null(strstr(err.message, "t.json: line 1"));
}

/* Hugging Face's "no limit" and its neighbours. */
static void json_takes_integers_beyond_64_bits(void **state) {
    (void)state;
    static const char text[] =
        "{\"a\": 1000000000000000019884624838656, \"b\": \"\\\"99999999999999999999\", "
        "\"c\": [9223372036854775807, 9223372036854775808, -9223372036854775809], "
        "\"d\": 99999999999999999999.5e1, \"e\": 1e-30, \"f\": 7}";
    struct mxc_err err;
    json_t *root, *c;
    double r = 0;
    int64_t i = 0;
    const char *s = NULL;
    assert_int_equal(mxc_json_parse(text, sizeof text - 1, "t.json", &root, &err), MXC_OK);
    assert_int_equal(mxc_json_get_real(root, "a", &r, &err), MXC_OK);
    assert_true(r > 0.999e30 && r < 1.001e30);
    assert_int_equal(mxc_json_get_int(root, "a", 0, INT64_MAX, &i, &err), MXC_E_FORMAT);
    assert_int_equal(mxc_json_get_string(root, "b", &s, &err), MXC_OK);
    assert_string_equal(s, "\"99999999999999999999");
    c = json_object_get(root, "c");
    assert_true(json_integer_value(json_array_get(c, 0)) == INT64_MAX);
    assert_true(json_real_value(json_array_get(c, 1)) > 9.2e18);
    assert_true(json_real_value(json_array_get(c, 2)) < -9.2e18);
    assert_int_equal(mxc_json_get_real(root, "d", &r, &err), MXC_OK);
    assert_true(r > 9.9e20 && r < 1.1e21);
    assert_int_equal(mxc_json_get_int(root, "f", 0, 9, &i, &err), MXC_OK);
    assert_int_equal(i, 7);
    json_decref(root);
    mxc_mem_fail_at(1);
    assert_int_equal(mxc_json_parse(text, sizeof text - 1, "t.json", &root, &err), MXC_E_NOMEM);
    mxc_mem_fail_at(0);
    assert_int_equal(mxc_json_parse("1e999", 5, "t.json", &root, &err), MXC_E_FORMAT);
}

static void half_floats_round_to_nearest_even(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        float f = mxc_f16_to_f32((uint16_t)h), b = mxc_bf16_to_f32((uint16_t)h);
        if (!isnan(f))
            assert_int_equal(mxc_f32_to_f16(f), h);
        if (!isnan(b))
            assert_int_equal(mxc_f32_to_bf16(b), h);
    }
    assert_int_equal(mxc_f32_to_f16(65520.0f), 0x7C00);
    assert_int_equal(mxc_f32_to_f16(65519.0f), 0x7BFF);
    assert_int_equal(mxc_f32_to_f16(0x1p-25f), 0);
    assert_int_equal(mxc_f32_to_f16(0x1.8p-25f), 1);
    assert_int_equal(mxc_f32_to_f16(1.0f + 0x1p-11f), 0x3C00);
    assert_int_equal(mxc_f32_to_f16(1.0f + 0x3p-11f), 0x3C02);
    assert_true(isnan(mxc_f16_to_f32(mxc_f32_to_f16(NAN))));
    assert_true(isnan(mxc_bf16_to_f32(mxc_f32_to_bf16(NAN))));
}

struct team_job {
    struct mxc_team *team;
    int rounds, slots[8], sum;
};

static void team_fn(void *arg, int worker, int n) {
    struct team_job *job = arg;
    for (int r = 1; r <= job->rounds; r++) {
        job->slots[worker] = r;
        mxc_team_barrier(job->team);
        if (!worker)
            for (int i = 0; i < n; i++)
                job->sum += job->slots[i] == r;
        mxc_team_barrier(job->team);
    }
}

static void team_runs_meets_and_stops(void **state) {
    (void)state;
    struct mxc_err err;
    for (int n = 1; n <= 4; n++) {
        struct team_job job = {.rounds = 200};
        assert_int_equal(mxc_team_new(n, &job.team, &err), MXC_OK);
        for (int i = 0; i < 3; i++) {
            mxc_team_run(job.team, team_fn, &job);
            (void)usleep(300); /* long enough for the workers to park */
        }
        assert_int_equal(job.sum, 3 * 200 * n);
        mxc_team_free(job.team);
    }
    struct mxc_team *team;
    assert_int_equal(mxc_team_new(257, &team, &err), MXC_E_ARG);
    mxc_mem_fail_at(1);
    assert_int_equal(mxc_team_new(2, &team, &err), MXC_E_NOMEM);
    mxc_mem_fail_at(0);
}

static void cpu_level_can_be_masked(void **state) {
    (void)state;
    struct mxc_err err;
    enum mxc_cpu_level level;
    assert_true(mxc_cpu_level_parse("avx2", &level));
    assert_int_equal(level, MXC_CPU_AVX2);
    assert_true(mxc_cpu_level_parse("i8mm", &level));
    assert_int_equal(level, MXC_CPU_I8MM);
    assert_string_equal(mxc_cpu_level_name(level), "i8mm");
    assert_false(mxc_cpu_level_parse("sse2", &level));
    assert_int_equal(mxc_cpu_mask(MXC_CPU_SCALAR, &err), MXC_OK);
    assert_int_equal(mxc_cpu_level(), MXC_CPU_SCALAR);
    assert_int_equal(mxc_cpu_mask(mxc_cpu_best(), &err), MXC_OK);
    assert_int_equal(mxc_cpu_level(), mxc_cpu_best());
    assert_true(mxc_cpu_count() >= 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(err_context_is_prepended_and_cut),
        cmocka_unit_test(err_table_is_complete),
        cmocka_unit_test(mem_checks_sizes_and_fails_on_demand),
        cmocka_unit_test(arena_zeroes_aligns_and_bounds),
        cmocka_unit_test(buf_grows_to_its_maximum),
        cmocka_unit_test(utf8_rejects_what_is_not),
        cmocka_unit_test(numbers_parse_whole_or_not_at_all),
        cmocka_unit_test(map_keeps_many_keys),
        cmocka_unit_test(files_are_mapped_read_and_written_whole),
        cmocka_unit_test(json_names_the_field),
        cmocka_unit_test(json_takes_integers_beyond_64_bits),
        cmocka_unit_test(half_floats_round_to_nearest_even),
        cmocka_unit_test(team_runs_meets_and_stops),
        cmocka_unit_test(cpu_level_can_be_masked),
    };
    return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
