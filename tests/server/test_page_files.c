/* The chat page's routes: what is answered whole has its policy, with and without memory. The page
 * itself is driven by test_page.sh. */
#define _GNU_SOURCE
#include "test.h"

#include "base/mem.h"
#include "server/page/files.h"
#include "server/server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

struct fixture {
    struct mxc_host *host;
    struct mxc_server *server;
    int port;
};

static int setup(void **state) {
    struct fixture *f = calloc(1, sizeof *f);
    struct mxc_server_options o;
    struct mxc_err err;
    assert_non_null(f);
    assert_int_equal(mxc_host_new(&f->host, &err), MXC_OK);
    mxc_server_options_init(&o);
    o.port = 0;
    assert_int_equal(mxc_server_open(&o, f->host, &f->server, &err), MXC_OK);
    f->port = atoi(strrchr(mxc_server_url(f->server), ':') + 1);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    mxc_server_close(f->server);
    mxc_host_free(f->host);
    free(f);
    return 0;
}

/* The reply's head and body, with a zero behind them; the status, 0: none. */
static int get(const struct fixture *f, const char *path, char *text, size_t size) {
    char head[256];
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)f->port)};
    struct timeval patience = {.tv_sec = 60};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), status = 0;
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    int n = snprintf(head, sizeof head, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                     path);
    (void)send(fd, head, (size_t)n, MSG_NOSIGNAL);
    size_t got = 0;
    ssize_t more;
    while (got < size - 1 && (more = recv(fd, text + got, size - 1 - got, 0)) > 0)
        got += (size_t)more;
    text[got] = 0;
    close(fd);
    if (got)
        assert_int_equal(sscanf(text, "HTTP/1.1 %d ", &status), 1);
    return status;
}

static void never_without_its_policy(void **state) {
    const struct fixture *f = *state;
    size_t size = 1 << 20;
    char *text = malloc(size), path[128];
    assert_non_null(text);
    (void)snprintf(path, sizeof path, "/page/%s/app.js", mxc_page_hash);
    const char *const paths[] = {"/", path};
    for (size_t i = 0; i < 2; i++) {
        mxc_mem_fail_at(0);
        assert_int_equal(get(f, paths[i], text, size), 200);
        uint64_t calls = mxc_mem_calls();
        int n_refused = 0;
        for (uint64_t n = 1; n <= calls; n++) {
            mxc_mem_fail_at(n);
            int status = get(f, paths[i], text, size);
            mxc_mem_fail_at(0);
            assert_true(!status || status == 200 || status == 503);
            if (status == 200)
                assert_non_null(strstr(text, "\r\nContent-Security-Policy: default-src 'none'; "));
            n_refused += status != 200;
        }
        assert_true(n_refused > 0);
        assert_int_equal(get(f, paths[i], text, size), 200);
    }
    free(text);
}

static void names_that_are_not_there(void **state) {
    const struct fixture *f = *state;
    char text[4096], path[512];
    static const char *const names[] = {"",        "index.html", "../app.js",
                                        "app.js/", "page.c",     "a%00b"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        (void)snprintf(path, sizeof path, "/page/%s/%s", mxc_page_hash, names[i]);
        assert_int_equal(get(f, path, text, sizeof text), 404);
    }
    assert_int_equal(get(f, "/page/0123456789abcdef/app.js", text, sizeof text), 404);
    assert_int_equal(get(f, "/page/app.js", text, sizeof text), 404);
}

static void all_files_are_there(void **state) {
    (void)state;
    bool has_page = false;
    assert_int_equal(strlen(mxc_page_hash), 16);
    for (size_t i = 0; i < mxc_page_n_files; i++) {
        const struct mxc_page_file *file = &mxc_page_files[i];
        assert_true(file->length > 100);
        assert_int_equal(file->bytes[file->length], 0);
        assert_int_equal(strlen((const char *)file->bytes), file->length);
        if (strcmp(file->name, "index.html") != 0)
            continue;
        has_page = true;
        assert_non_null(strstr((const char *)file->bytes, mxc_page_hash));
        assert_null(strstr((const char *)file->bytes, "@HASH@"));
    }
    assert_true(has_page);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(never_without_its_policy),
        cmocka_unit_test(names_that_are_not_there),
        cmocka_unit_test(all_files_are_there),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
