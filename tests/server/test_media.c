/* Pictures that requests name: nothing without permission; of the folder's files regular ones
 * beneath it only, however the path is spelled; of addresses the listed hosts at public addresses
 * only, redirects checked again, within bounds of size and time. The web is a thread of this
 * program on the loopback addresses. */
#define _GNU_SOURCE
#include "test.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/thread.h"
#include "server/media.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- fetching */

static enum mxc_code fetch(struct mxc_media *media, const char *where, char *out, size_t room,
                           struct mxc_err *err) {
    uint8_t *data = NULL;
    size_t size = 0;
    const struct mxc_str text = {where, strlen(where)};
    enum mxc_code code = mxc_media_fetch(media, text, mxc_image_source_of(text), &data, &size, err);
    if (!code) {
        assert_non_null(data);
        assert_true(size < room);
        memcpy(out, data, size);
        out[size] = 0;
    }
    mxc_mem_free(data);
    return code;
}

static void expect(struct mxc_media *media, const char *where, const char *wanted) {
    struct mxc_err err;
    char have[64];
    if (fetch(media, where, have, sizeof have, &err))
        fail_msg("%s: %s", where, err.message);
    assert_string_equal(have, wanted);
}

static void refuse(struct mxc_media *media, const char *where, const char *why) {
    struct mxc_err err = {0};
    char have[64];
    enum mxc_code code = fetch(media, where, have, sizeof have, &err);
    if (code != MXC_E_ARG || !strstr(err.message, why) || strchr(err.message, '\n'))
        fail_msg("%s: code %d, \"%s\", not \"%s\"", where, (int)code, err.message, why);
}

static struct mxc_media *open_media(const struct mxc_media_options *options) {
    struct mxc_media *media;
    struct mxc_err err;
    if (mxc_media_open(options, &media, &err))
        fail_msg("%s", err.message);
    return media;
}

static void nothing_by_default(void **state) {
    (void)state;
    struct mxc_media *media = open_media(&(struct mxc_media_options){0});
    refuse(media, "http://example.org/a.png", "--allow-media-domain");
    refuse(media, "HTTPS://example.org/a.png", "--allow-media-domain");
    refuse(media, "file:///etc/passwd", "--media-path");
    refuse(media, "/etc/passwd", "--media-path");
    refuse(media, "ftp://example.org/a.png", "--media-path");
    mxc_media_close(media);
    mxc_media_close(NULL);
    mxc_media_stop(NULL);
}

static void options_are_checked(void **state) {
    (void)state;
    static const char *const bad[] = {"",       "a/b",   "a b",      "*.org",    "u@a.org",
                                      "a.org:", ":80",   "a.org:0",  "a.org:x",  "a.org:65536",
                                      "[::1]",  "a:b:1", "http://a", "a.org:+1x"};
    struct mxc_media *media = NULL;
    struct mxc_err err;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const struct mxc_media_options o = {.domains = &bad[i], .n_domains = 1};
        if (mxc_media_open(&o, &media, &err) != MXC_E_ARG)
            fail_msg("\"%s\" is taken for a domain", bad[i]);
        assert_null(media);
    }
    assert_int_equal(
        mxc_media_open(&(struct mxc_media_options){.folder = "/none/such"}, &media, &err),
        MXC_E_IO);
    assert_non_null(strstr(err.message, "/none/such"));
    assert_int_equal(
        mxc_media_open(&(struct mxc_media_options){.folder = "/dev/null"}, &media, &err), MXC_E_IO);
    static const char *const domain = "a.org:80";
    const struct mxc_media_options o = {.folder = "/tmp", .domains = &domain, .n_domains = 1};
    for (uint64_t n = 1;; n++) {
        mxc_mem_fail_at(n);
        enum mxc_code code = mxc_media_open(&o, &media, &err);
        mxc_mem_fail_at(0);
        if (!code)
            break;
        assert_int_equal(code, MXC_E_NOMEM);
        assert_true(n < 50);
    }
    mxc_media_close(media);
}

/* ---- files */

static void put(const char *folder, const char *name, const char *text) {
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

struct folder {
    char top[64], inside[96];
};

/* top/secret.png and top/media with what may be had and what may not. */
static struct folder make_folder(void) {
    struct folder f = {.top = "/tmp/mlxcel_media_XXXXXX"};
    char path[512], to[512];
    assert_non_null(mkdtemp(f.top));
    (void)snprintf(f.inside, sizeof f.inside, "%s/media", f.top);
    put(f.top, "secret.png", "secret");
    assert_int_equal(mkdir(f.inside, 0700), 0);
    (void)snprintf(path, sizeof path, "%s/sub", f.inside);
    assert_int_equal(mkdir(path, 0700), 0);
    put(f.inside, "cat.png", "a cat");
    put(f.inside, "sub/a b.png", "a dog");
    put(f.inside, "large.png", "more than sixteen bytes");
    (void)snprintf(path, sizeof path, "%s/link.png", f.inside);
    assert_int_equal(symlink("cat.png", path), 0);
    (void)snprintf(path, sizeof path, "%s/out.png", f.inside);
    (void)snprintf(to, sizeof to, "%s/secret.png", f.top);
    assert_int_equal(symlink(to, path), 0);
    (void)snprintf(path, sizeof path, "%s/up", f.inside);
    assert_int_equal(symlink("..", path), 0);
    (void)snprintf(path, sizeof path, "%s/pipe", f.inside);
    assert_int_equal(mkfifo(path, 0600), 0);
    return f;
}

static void remove_folder(const struct folder *f) {
    static const char *const names[] = {"secret.png",      "media/cat.png",  "media/sub/a b.png",
                                        "media/large.png", "media/link.png", "media/out.png",
                                        "media/up",        "media/pipe"};
    char path[512];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", f->top, names[i]);
        assert_int_equal(unlink(path), 0);
    }
    (void)snprintf(path, sizeof path, "%s/sub", f->inside);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(rmdir(f->inside), 0);
    assert_int_equal(rmdir(f->top), 0);
}

static void files_beneath_the_folder(void **state) {
    (void)state;
    struct folder f = make_folder();
    struct mxc_media *media =
        open_media(&(struct mxc_media_options){.folder = f.inside, .max_bytes = 16});
    char whole[256];
    expect(media, "cat.png", "a cat");
    expect(media, "/cat.png", "a cat");
    expect(media, "./cat.png", "a cat");
    expect(media, "  FILE:///cat.png\n", "a cat");
    expect(media, "file:cat.png", "a cat");
    expect(media, "file://localhost/cat.png", "a cat");
    expect(media, "file:///sub/a%20b.png", "a dog");
    expect(media, "sub/a b.png", "a dog");
    (void)snprintf(whole, sizeof whole, "file://%s/cat.png", f.inside);
    expect(media, whole, "a cat");
    refuse(media, "large.png", "more than 16 bytes");
    static const char *const none[] = {"none.png",
                                       "../secret.png",
                                       "sub/../../secret.png",
                                       "file:///../secret.png",
                                       "file:///%2e%2e/secret.png",
                                       "file:///%2E%2e%2fsecret.png",
                                       "link.png",
                                       "out.png",
                                       "up/secret.png",
                                       "up/media/cat.png",
                                       "sub",
                                       ".",
                                       "pipe",
                                       "/etc/passwd",
                                       "/proc/self/environ",
                                       "cat.png/",
                                       "sub/none",
                                       "a%20b.png"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        refuse(media, none[i], "no such file under the media folder");
    (void)snprintf(whole, sizeof whole, "file://%s/secret.png", f.top);
    refuse(media, whole, "no such file");
    (void)snprintf(whole, sizeof whole, "%s/../secret.png", f.inside);
    refuse(media, whole, "no such file");
    static const char *const no_paths[] = {
        "", "/", "file:", "file://", "file:///", "file:///a%", "file:a%0g", "file:cat.png%00x"};
    for (size_t i = 0; i < sizeof no_paths / sizeof *no_paths; i++)
        refuse(media, no_paths[i], "not a path");
    struct mxc_err err;
    for (uint64_t n = 1; n <= 2; n++) {
        mxc_mem_fail_at(n);
        enum mxc_code code = fetch(media, "cat.png", whole, sizeof whole, &err);
        mxc_mem_fail_at(0);
        assert_true(!code || code == MXC_E_NOMEM);
    }
    mxc_media_close(media);
    remove_folder(&f);
}

/* ---- addresses */

static bool is_public(const char *text) {
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6};
    struct sockaddr_in in = {.sin_family = AF_INET};
    if (inet_pton(AF_INET, text, &in.sin_addr) == 1)
        return mxc_media_is_public((struct sockaddr *)&in);
    assert_int_equal(inet_pton(AF_INET6, text, &in6.sin6_addr), 1);
    return mxc_media_is_public((struct sockaddr *)&in6);
}

static void public_addresses(void **state) {
    (void)state;
    static const char *const yes[] = {
        "1.1.1.1",        "9.255.255.255",   "11.0.0.0",        "100.63.255.255", "100.128.0.0",
        "172.15.255.255", "172.32.0.1",      "192.167.255.1",   "198.17.0.1",     "198.20.0.1",
        "223.255.255.1",  "2606:4700::1111", "2001:4860::8888", "3fff::1"};
    static const char *const no[] = {
        "0.0.0.0",     "10.1.2.3",        "100.64.0.1",  "127.0.0.1",        "127.9.9.9",
        "169.254.1.1", "169.254.169.254", "172.16.0.1",  "172.31.255.1",     "192.0.0.1",
        "192.0.2.1",   "192.88.99.1",     "192.168.0.1", "198.18.0.1",       "198.51.100.1",
        "203.0.113.9", "224.0.0.1",       "240.0.0.1",   "255.255.255.255",  "::",
        "::1",         "::ffff:1.1.1.1",  "::1.1.1.1",   "64:ff9b::101:101", "fe80::1",
        "fc00::1",     "fd00::1",         "ff02::1",     "2002:a00:1::1",    "2001::1",
        "2001:db8::1", "100::1"};
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++)
        if (!is_public(yes[i]))
            fail_msg("%s is not public", yes[i]);
    for (size_t i = 0; i < sizeof no / sizeof *no; i++)
        if (is_public(no[i]))
            fail_msg("%s is public", no[i]);
    assert_false(mxc_media_is_public(&(struct sockaddr){.sa_family = AF_UNIX}));
}

/* A server of one page at a time. */
struct web {
    int socket;
    int port;
    atomic_bool stop;
    atomic_int n_requests;
    pthread_t thread;
};

static void say(int fd, const char *text) {
    (void)send(fd, text, strlen(text), MSG_NOSIGNAL);
}

static void redirect(int fd, const char *host, int port, const char *path) {
    char text[256];
    (void)snprintf(text, sizeof text,
                   "HTTP/1.1 302 Found\r\nLocation: %s%s:%d%s\r\nContent-Length: 0\r\n"
                   "Connection: close\r\n\r\n",
                   *host == '/' ? "" : "http://", host, port, path);
    say(fd, text);
}

static bool asks(const char *request, const char *path) {
    return !strncmp(request + 4, path, strlen(path)) && request[4 + strlen(path)] == ' ';
}

static void answer(struct web *w, int fd) {
    char request[2048] = "";
    ssize_t n = recv(fd, request, sizeof request - 1, 0);
    if (n < 8)
        return;
    (void)atomic_fetch_add(&w->n_requests, 1);
    if (asks(request, "/ok"))
        say(fd, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\na cat");
    else if (asks(request, "/declared"))
        say(fd, "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nx");
    else if (asks(request, "/endless"))
        for (int i = 0; i < 1000 && !atomic_load(&w->stop); i++)
            say(fd, i ? "0123456789" : "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
    else if (asks(request, "/slow"))
        for (int i = 0; i < 100 && !atomic_load(&w->stop); i++) {
            say(fd, i ? "x" : "HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n");
            (void)poll(NULL, 0, 50);
        }
    else if (asks(request, "/once"))
        redirect(fd, "127.0.0.1", w->port, "/ok");
    else if (asks(request, "/private"))
        redirect(fd, "127.0.0.2", w->port, "/ok");
    else if (asks(request, "/elsewhere"))
        redirect(fd, "example.org", 80, "/ok");
    else if (asks(request, "/loop"))
        redirect(fd, "127.0.0.1", w->port, "/loop");
    else if (asks(request, "/file"))
        say(fd, "HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n");
    else if (asks(request, "/user"))
        say(fd,
            "HTTP/1.1 302 Found\r\nLocation: http://a:b@127.0.0.1/\r\nContent-Length: 0\r\n\r\n");
    else
        say(fd, "HTTP/1.1 404 Not Found\r\nContent-Length: 6\r\nConnection: close\r\n\r\nsecret");
}

static void *run_web(void *user) {
    struct web *w = user;
    while (!atomic_load(&w->stop)) {
        struct pollfd p = {w->socket, POLLIN, 0};
        if (poll(&p, 1, 20) < 1)
            continue;
        int fd = accept(w->socket, NULL, NULL);
        if (fd < 0)
            continue;
        answer(w, fd);
        (void)close(fd);
    }
    return NULL;
}

static void web_open(struct web *w) {
    struct sockaddr_in in = {.sin_family = AF_INET};
    socklen_t n = sizeof in;
    *w = (struct web){.socket = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    assert_true(w->socket >= 0);
    in.sin_addr.s_addr = htonl(INADDR_ANY); /* of 127.0.0.2 too */
    assert_int_equal(bind(w->socket, (struct sockaddr *)&in, sizeof in), 0);
    assert_int_equal(listen(w->socket, 16), 0);
    assert_int_equal(getsockname(w->socket, (struct sockaddr *)&in, &n), 0);
    w->port = ntohs(in.sin_port);
    assert_int_equal(pthread_create(&w->thread, NULL, run_web, w), 0);
}

static void web_close(struct web *w) {
    atomic_store(&w->stop, true);
    assert_int_equal(pthread_join(w->thread, NULL), 0);
    (void)close(w->socket);
}

/* 127.0.0.1 plays the internet, any other address of this machine what must not be reached. */
static bool all_but_two(const struct sockaddr *address) {
    struct sockaddr_in in;
    memcpy(&in, address, sizeof in);
    return address->sa_family == AF_INET && ntohl(in.sin_addr.s_addr) == INADDR_LOOPBACK;
}

struct domains {
    char text[4][64];
    const char *list[4];
    char url[96];
};

static const char *url(struct domains *d, const char *host, int port, const char *path) {
    (void)snprintf(d->url, sizeof d->url, "http://%s:%d%s", host, port, path);
    return d->url;
}

static struct mxc_media_options options_of(struct domains *d, int port) {
    static const char *const hosts[] = {"127.0.0.1", "127.0.0.2", "LocalHost", "none.invalid"};
    for (size_t i = 0; i < 4; i++) {
        (void)snprintf(d->text[i], sizeof d->text[i], "%s:%d", hosts[i], port);
        d->list[i] = d->text[i];
    }
    return (struct mxc_media_options){.domains = d->list,
                                      .n_domains = 4,
                                      .max_bytes = 1000,
                                      .timeout_ms = 400,
                                      .is_public = all_but_two};
}

static void addresses_of_listed_hosts(void **state) {
    (void)state;
    struct web w;
    struct domains d;
    web_open(&w);
    const struct mxc_media_options o = options_of(&d, w.port);
    struct mxc_media *media = open_media(&o);
    static const char one[] = "127.0.0.1";
    expect(media, url(&d, one, w.port, "/ok"), "a cat");
    expect(media, url(&d, one, w.port, "/once"), "a cat");
    expect(media, url(&d, "localhost", w.port, "/ok"), "a cat");
    refuse(media, url(&d, one, w.port, "/none"), "HTTP status 404");
    refuse(media, url(&d, one, w.port, "/declared"), "more than 1000 bytes");
    refuse(media, url(&d, one, w.port, "/endless"), "more than 1000 bytes");
    refuse(media, url(&d, one, w.port, "/loop"), "too many redirects");
    int before = atomic_load(&w.n_requests);
    refuse(media, url(&d, "127.0.0.2", w.port, "/ok"), "not at a public address");
    refuse(media, url(&d, "none.invalid", w.port, "/ok"), "cannot be fetched");
    refuse(media, url(&d, one, 80, "/ok"), "--allow-media-domain");
    refuse(media, url(&d, "127.0.0.3", w.port, "/ok"), "--allow-media-domain");
    refuse(media, url(&d, "u:p@127.0.0.1", w.port, "/ok"), "--allow-media-domain");
    refuse(media, "http://", "--allow-media-domain");
    assert_int_equal(atomic_load(&w.n_requests), before); /* none of them got anywhere */
    refuse(media, url(&d, one, w.port, "/private"), "not at a public address");
    refuse(media, url(&d, one, w.port, "/elsewhere"), "--allow-media-domain");
    refuse(media, url(&d, one, w.port, "/file"), "--allow-media-domain");
    refuse(media, url(&d, one, w.port, "/user"), "--allow-media-domain");
    char large[5000] = "http://127.0.0.1/";
    memset(large + 17, 'a', sizeof large - 18);
    refuse(media, large, "too long");
    mxc_media_close(media);
    /* the real rule: names that resolve to this machine, and its addresses */
    struct mxc_media_options real = o;
    real.is_public = NULL;
    media = open_media(&real);
    refuse(media, url(&d, "localhost", w.port, "/ok"), "not at a public address");
    refuse(media, url(&d, one, w.port, "/ok"), "not at a public address");
    mxc_media_close(media);
    web_close(&w);
}

/* ---- time */

struct stopper {
    struct mxc_media *media;
    atomic_bool go;
};

static void *stop_soon(void *user) {
    struct stopper *s = user;
    while (!atomic_load(&s->go))
        (void)poll(NULL, 0, 5);
    (void)poll(NULL, 0, 50);
    mxc_media_stop(s->media);
    return NULL;
}

static void time_is_bounded(void **state) {
    (void)state;
    struct web w;
    struct domains d;
    pthread_t thread;
    web_open(&w);
    struct mxc_media_options o = options_of(&d, w.port);
    struct mxc_media *media = open_media(&o);
    uint64_t start = mxc_clock_ns();
    refuse(media, url(&d, "127.0.0.1", w.port, "/slow"), "cannot be fetched");
    assert_true(mxc_clock_ns() - start < UINT64_C(3000000000));
    mxc_media_close(media);
    web_close(&w);
    /* stopped from outside, long before its time is up */
    web_open(&w);
    o = options_of(&d, w.port);
    o.timeout_ms = 60000;
    media = open_media(&o);
    struct stopper s = {.media = media};
    atomic_init(&s.go, true);
    start = mxc_clock_ns();
    assert_int_equal(pthread_create(&thread, NULL, stop_soon, &s), 0);
    refuse(media, url(&d, "127.0.0.1", w.port, "/slow"), "cannot be fetched");
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(mxc_clock_ns() - start < UINT64_C(10000000000));
    mxc_media_close(media);
    web_close(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_by_default),        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(files_beneath_the_folder),  cmocka_unit_test(public_addresses),
        cmocka_unit_test(addresses_of_listed_hosts), cmocka_unit_test(time_is_bounded)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
