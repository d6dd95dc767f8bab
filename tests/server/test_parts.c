/* The parts of the server that need no connection: routes, keys, limits, log lines, SSE framing,
 * JSON depth, faults, fields, work queue. */
#define _GNU_SOURCE
#include "test.h"

#include "base/mem.h"
#include "server/auth.h"
#include "server/fields.h"
#include "server/json_depth.h"
#include "server/limits.h"
#include "server/log.h"
#include "server/route.h"
#include "server/server.h"
#include "server/sse.h"
#include "server/surface.h"
#include "server/work.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void routes_are_found(void **state) {
    char allow[64], tail[256];
    (void)state;
    const struct mxc_route *r = mxc_route_find("GET", "/v1/models/owner/name", allow, tail);
    assert_non_null(r);
    assert_string_equal(tail, "owner/name");
    assert_non_null(mxc_route_find("HEAD", "/health", allow, tail));
    assert_null(mxc_route_find("POST", "/health", allow, tail));
    assert_string_equal(allow, "GET, HEAD, OPTIONS");
    assert_null(mxc_route_find("GET", "/v1/chat/completions", allow, tail));
    assert_string_equal(allow, "POST, OPTIONS");
    static const char *const none[] = {"",         "/x",          "/v1",    "/v1/models/",
                                       "/health/", "/v1/modelsx", "health", "/v1//models"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        if (mxc_route_find("GET", none[i], allow, tail))
            fail_msg("there is a route for \"%s\"", none[i]);
        assert_string_equal(allow, "");
    }
    char long_path[600] = "/v1/models/";
    memset(long_path + 11, 'x', 500);
    assert_null(mxc_route_find("GET", long_path, allow, tail));
}

static void routes_are_unique_and_listed(void **state) {
    const struct mxc_route *a, *b;
    size_t n = 0;
    (void)state;
    for (; (a = mxc_route_at(n)); n++) {
        assert_non_null(a->fn);
        assert_true(a->path[0] == '/' && a->summary[0]);
        for (size_t k = 0; k < n && (b = mxc_route_at(k)); k++)
            assert_true(strcmp(a->path, b->path) || strcmp(a->method, b->method));
        if (!strcmp(a->method, "GET"))
            assert_false(a->flags & MXC_ROUTE_JSON);
    }
    json_t *all = mxc_surface_json();
    assert_non_null(all);
    assert_int_equal(json_array_size(json_object_get(all, "routes")), n);
    json_decref(all);
}

static char *file_with(const char *text) {
    char path[] = "/tmp/mlxcel_keys_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    return mxc_mem_strdup(path);
}

static void put_file(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void keys_are_checked_and_reloaded(void **state) {
    static const char *const keys[] = {"one", "two"};
    struct mxc_auth *auth;
    struct mxc_err err;
    (void)state;
    char *path = file_with("# comment\n\n three \r\nfour");
    assert_int_equal(mxc_auth_new(keys, 2, path, &auth, &err), MXC_OK);
    assert_int_equal(mxc_auth_count(auth), 4);
    assert_int_equal(mxc_auth_check(auth, MXC_STR("one")), 0);
    assert_int_equal(mxc_auth_check(auth, MXC_STR("three")), 2);
    assert_int_equal(mxc_auth_check(auth, MXC_STR("four")), 3);
    assert_int_equal(mxc_auth_check(auth, MXC_STR("# comment")), -1);
    assert_int_equal(mxc_auth_check(auth, MXC_STR("")), -1);
    assert_int_equal(mxc_auth_check(auth, MXC_STR("on")), -1);
    assert_int_equal(mxc_auth_check(auth, MXC_STR("onee")), -1);
    put_file(path, "five\n");
    assert_int_equal(mxc_auth_reload(auth, &err), MXC_OK);
    assert_int_equal(mxc_auth_check(auth, MXC_STR("five")), 2);
    assert_int_equal(mxc_auth_check(auth, MXC_STR("three")), -1);
    put_file(path, "# nothing\n");
    assert_int_equal(mxc_auth_reload(auth, &err), MXC_E_ARG);
    assert_non_null(strstr(err.message, path));
    assert_int_equal(mxc_auth_check(auth, MXC_STR("five")), 2); /* as they were */
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mxc_auth_reload(auth, &err), MXC_E_NOT_FOUND);
    assert_int_equal(mxc_auth_check(auth, MXC_STR("one")), 0);
    mxc_auth_free(auth);
    static const char *const empty[] = {""};
    assert_int_equal(mxc_auth_new(empty, 1, NULL, &auth, &err), MXC_E_ARG);
    for (uint64_t n = 1;; n++) { /* every allocation fails once */
        mxc_mem_fail_at(n);
        enum mxc_code code = mxc_auth_new(keys, 2, NULL, &auth, &err);
        mxc_mem_fail_at(0);
        if (!code)
            break;
        assert_int_equal(code, MXC_E_NOMEM);
    }
    mxc_auth_free(auth);
    mxc_mem_free(path);
}

static void bearer_is_read(void **state) {
    (void)state;
    assert_true(mxc_str_is(mxc_auth_bearer("Bearer abc"), "abc"));
    assert_true(mxc_str_is(mxc_auth_bearer("bEARER   abc  "), "abc"));
    static const char *const none[] = {NULL, "", "Bearer", "Bearer ", "Basic abc", "Bearerabc"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        assert_int_equal(mxc_auth_bearer(none[i]).length, 0);
}

static void limits_hold(void **state) {
    struct mxc_limits l;
    (void)state;
    mxc_limits_init(&l, 100, 2);
    assert_true(mxc_limits_buffer(&l, 60));
    assert_false(mxc_limits_buffer(&l, 41));
    assert_false(mxc_limits_buffer(&l, SIZE_MAX));
    assert_true(mxc_limits_buffer(&l, 40));
    mxc_limits_unbuffer(&l, 100);
    assert_int_equal(atomic_load(&l.buffered_bytes), 0);
    assert_true(mxc_limits_enter(&l, 3) && mxc_limits_enter(&l, 3));
    assert_false(mxc_limits_enter(&l, 3));
    assert_true(mxc_limits_enter(&l, 4));
    assert_true(mxc_limits_enter(&l, -1) && mxc_limits_enter(&l, 1 << 20));
    assert_false(mxc_limits_enter(&l, 0)); /* those without a place of their own share one */
    mxc_limits_leave(&l, 3);
    assert_true(mxc_limits_enter(&l, 3));
    assert_int_equal(atomic_load(&l.n_generations), 5);
}

static void log_lines_are_clean(void **state) {
    struct mxc_buf out;
    json_error_t e;
    (void)state;
    const struct mxc_access a = {.time = "2026-01-01T00:00:00.000Z",
                                 .id = "a b",
                                 .method = "GET",
                                 .path = "/x\n\x1b[31m\"\\\xff\xc3\xa9",
                                 .client = "unix",
                                 .model = "m",
                                 .status = 200,
                                 .key = 1,
                                 .ms = 1.25,
                                 .n_prompt = 3,
                                 .n_cached = 1,
                                 .n_generated = 2,
                                 .end = "ok"};
    mxc_buf_init(&out, 1 << 16);
    assert_true(mxc_access_format(&a, MXC_LOG_TEXT, &out));
    for (size_t i = 0; i < out.length; i++)
        assert_true((unsigned char)out.data[i] >= 0x20);
    assert_non_null(strstr(out.data, " /x??[31m\"\\?\xc3\xa9 200 "));
    assert_non_null(strstr(out.data, "tokens 3(1 cached)+2 ok"));
    mxc_buf_clear(&out);
    assert_true(mxc_access_format(&a, MXC_LOG_JSON, &out));
    json_t *line = json_loads(out.data, 0, &e);
    assert_non_null(line);
    assert_string_equal(json_string_value(json_object_get(line, "path")), "/x??[31m\"\\?\xc3\xa9");
    assert_int_equal(json_integer_value(json_object_get(line, "generated_tokens")), 2);
    json_decref(line);
    mxc_buf_fini(&out);
}

static void text_becomes_json(void **state) {
    static const char text[] = "a\"\\\n\t\x01\x7f\0z \xF0\x9F\xA4\x96";
    struct mxc_buf out;
    (void)state;
    mxc_buf_init(&out, 1 << 16);
    mxc_put_json_text(&out, (struct mxc_str){text, sizeof text - 1});
    json_t *back = json_loadb(out.data, out.length, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    assert_non_null(back);
    assert_int_equal(json_string_length(back), sizeof text - 1);
    assert_memory_equal(json_string_value(back), text, sizeof text - 1);
    json_decref(back);
    assert_null(strchr(out.data, '\n')); /* an event is one line */
    mxc_buf_clear(&out);
    mxc_sse_begin(&out, "ping");
    mxc_put_number(&out, 0.5);
    mxc_put_number(&out, NAN);
    mxc_put_number(&out, -INFINITY);
    mxc_sse_end(&out);
    assert_string_equal(out.data, "event: ping\ndata: 0.5nullnull\n\n");
    mxc_buf_fini(&out);
}

static bool depth_ok(const char *text, int max) {
    return mxc_json_shape(text, strlen(text), max, 1000) == MXC_JSON_FINE;
}

static void depth_is_counted(void **state) {
    (void)state;
    assert_true(depth_ok("[[{\"a\": []}]]", 4));
    assert_false(depth_ok("[[{\"a\": []}]]", 3));
    assert_true(depth_ok("[\"[[[[\\\"[[\", \"]]\"]", 1));
    assert_true(depth_ok("\"\\", 1)); /* ends in an escape */
    assert_true(depth_ok("]]]]", 1));
    assert_true(depth_ok("[],[],[]", 1));
    assert_int_equal(mxc_json_shape("[1,2,3,4]", 9, 5, 7), MXC_JSON_FINE);
    assert_int_equal(mxc_json_shape("[1,2,3,4]", 9, 5, 6), MXC_JSON_TOO_MANY);
    assert_int_equal(mxc_json_shape("{\"a\":{}}", 8, 5, 12), MXC_JSON_FINE);
    assert_int_equal(mxc_json_shape("{\"a\":{}}", 8, 5, 11), MXC_JSON_TOO_MANY);
    assert_int_equal(mxc_json_shape("\",,,,,,\"", 8, 5, 4), MXC_JSON_FINE);
}

static void faults_have_bodies(void **state) {
    struct mxc_fault f;
    struct mxc_err err;
    (void)state;
    assert_int_equal(mxc_fault_set(&f, MXC_E_CONTEXT, "prompt", "prompt: %d", 5), MXC_E_CONTEXT);
    json_t *body = mxc_fault_json(&f, MXC_API_OPENAI, "id"), *e = json_object_get(body, "error");
    assert_int_equal(json_integer_value(json_object_get(e, "code")), 400);
    assert_string_equal(json_string_value(json_object_get(e, "type")), "exceed_context_size_error");
    assert_string_equal(json_string_value(json_object_get(e, "param")), "prompt");
    json_decref(body);
    (void)mxc_fault_status(&f, MXC_E_BUSY, 429, "slow down");
    assert_int_equal(mxc_fault_http(&f), 429);
    body = mxc_fault_json(&f, MXC_API_ANTHROPIC, "id");
    assert_string_equal(json_string_value(json_object_get(body, "type")), "error");
    e = json_object_get(body, "error");
    assert_string_equal(json_string_value(json_object_get(e, "type")), "rate_limit_error");
    json_decref(body);
    (void)mxc_err_set(&err, MXC_E_FORMAT, "tools[2].function.name: not good");
    assert_int_equal(mxc_fault_from(&f, &err, "tools"), MXC_E_ARG);
    assert_string_equal(f.param, "tools[2].function.name");
    (void)mxc_err_set(&err, MXC_E_ARG, "something is not good");
    assert_int_equal(mxc_fault_from(&f, &err, "tools"), MXC_E_ARG);
    assert_string_equal(f.param, "tools");
}

static void fields_are_typed(void **state) {
    json_t *o = json_loads("{\"i\": 8, \"r\": 8.0, \"h\": 8.5, \"b\": true, \"s\": \"x\","
                           " \"n\": null, \"l\": [1, 2], \"big\": 1e300, \"bad\": [1, -1]}",
                           0, NULL);
    struct mxc_fault f;
    struct mxc_str s = {NULL, 0};
    const json_t *list = NULL;
    int64_t i = 1;
    double r = 1;
    bool b = false;
    int32_t ids[2];
    (void)state;
    assert_non_null(o);
    assert_int_equal(mxc_field_int(o, "i", 0, 10, &i, &f), MXC_OK);
    assert_int_equal(i, 8);
    assert_int_equal(mxc_field_int(o, "r", 0, 10, &i, &f), MXC_OK);
    assert_int_equal(mxc_field_int(o, "absent", 0, 10, &i, &f), MXC_OK);
    assert_int_equal(mxc_field_int(o, "n", 0, 10, &i, &f), MXC_OK);
    assert_int_equal(i, 8);
    static const char *const bad[] = {"h", "b", "s", "l", "big"};
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        assert_int_equal(mxc_field_int(o, bad[k], 0, 10, &i, &f), MXC_E_ARG);
        assert_string_equal(f.param, bad[k]);
        assert_int_equal(strncmp(f.err.message, bad[k], strlen(bad[k])), 0);
    }
    assert_int_equal(mxc_field_int(o, "i", 0, 7, &i, &f), MXC_E_ARG);
    assert_int_equal(mxc_field_real(o, "h", 0, 10, &r, &f), MXC_OK);
    assert_true(r == 8.5);
    assert_int_equal(mxc_field_real(o, "big", 0, 10, &r, &f), MXC_E_ARG);
    assert_int_equal(mxc_field_bool(o, "b", &b, &f), MXC_OK);
    assert_true(b);
    assert_int_equal(mxc_field_bool(o, "i", &b, &f), MXC_E_ARG);
    assert_int_equal(mxc_field_text(o, "s", &s, &f), MXC_OK);
    assert_true(mxc_str_is(s, "x"));
    assert_int_equal(mxc_field_list(o, "l", &list, &f), MXC_OK);
    assert_int_equal(mxc_field_ids(list, "l", 3, ids, &f), MXC_OK);
    assert_int_equal(ids[1], 2);
    assert_int_equal(mxc_field_ids(list, "l", 2, ids, &f), MXC_E_ARG);
    assert_int_equal(mxc_field_ids(json_object_get(o, "bad"), "bad", 2, ids, &f), MXC_E_ARG);
    assert_int_equal(mxc_field_object(o, "l", &list, &f), MXC_E_ARG);
    json_decref(o);
}

static void count_up(void *arg) {
    atomic_fetch_add((atomic_int *)arg, 1);
}

static void hold_on(void *arg) {
    while (!atomic_load((atomic_int *)arg))
        (void)usleep(1000);
}

static void work_is_bounded_and_done(void **state) {
    struct mxc_work *work;
    struct mxc_err err;
    atomic_int go = 0, n = 0;
    (void)state;
    assert_int_equal(mxc_work_new(0, 1, &work, &err), MXC_E_ARG);
    assert_int_equal(mxc_work_new(1, 3, &work, &err), MXC_OK);
    assert_true(mxc_work_put(work, hold_on, &go));
    while (mxc_work_waiting(work))
        (void)usleep(1000);
    for (int i = 0; i < 3; i++)
        assert_true(mxc_work_put(work, count_up, &n));
    assert_false(mxc_work_put(work, count_up, &n));
    assert_int_equal(mxc_work_waiting(work), 3);
    atomic_store(&go, 1);
    mxc_work_free(work); /* runs what waits */
    assert_int_equal(atomic_load(&n), 3);
}

static void bad_options_are_refused(void **state) {
    struct mxc_server_options o;
    struct mxc_server *server;
    struct mxc_host *host;
    struct mxc_err err;
    (void)state;
    assert_int_equal(mxc_host_new(&host, &err), MXC_OK);
    mxc_server_options_init(&o);
    o.port = 0;
    o.prefix = "x/";
    assert_int_equal(mxc_server_open(&o, host, &server, &err), MXC_E_ARG);
    mxc_server_options_init(&o);
    o.port = 70000;
    assert_int_equal(mxc_server_open(&o, host, &server, &err), MXC_E_ARG);
    mxc_server_options_init(&o);
    o.port = 0;
    o.host = "0.0.0.0";
    assert_int_equal(mxc_server_open(&o, host, &server, &err), MXC_E_ARG);
    assert_non_null(strstr(err.message, "API key"));
    mxc_server_options_init(&o);
    o.port = 0;
    o.key_file = "/nonexistent/keys";
    assert_int_equal(mxc_server_open(&o, host, &server, &err), MXC_E_NOT_FOUND);
    for (uint64_t n = 1;; n++) { /* every allocation fails once */
        mxc_server_options_init(&o);
        o.port = 0;
        mxc_mem_fail_at(n);
        enum mxc_code code = mxc_server_open(&o, host, &server, &err);
        mxc_mem_fail_at(0);
        if (!code)
            break;
        assert_true(code == MXC_E_NOMEM || code == MXC_E_IO);
        assert_true(n < 1000);
    }
    assert_int_equal(strncmp(mxc_server_url(server), "http://127.0.0.1:", 17), 0);
    assert_false(mxc_server_needs_key(server));
    mxc_server_close(server);
    mxc_host_free(host);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(routes_are_found),
        cmocka_unit_test(routes_are_unique_and_listed),
        cmocka_unit_test(keys_are_checked_and_reloaded),
        cmocka_unit_test(bearer_is_read),
        cmocka_unit_test(limits_hold),
        cmocka_unit_test(log_lines_are_clean),
        cmocka_unit_test(text_becomes_json),
        cmocka_unit_test(depth_is_counted),
        cmocka_unit_test(faults_have_bodies),
        cmocka_unit_test(fields_are_typed),
        cmocka_unit_test(work_is_bounded_and_done),
        cmocka_unit_test(bad_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
