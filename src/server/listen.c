/* The listening socket. The send buffer is set here, and accepted sockets inherit it: without it
 * the kernel takes megabytes for a reader that reads nothing, and no bound of ours would see it. */
#define _GNU_SOURCE
#include "server/listen.h"

#include "base/mem.h"
#include "base/str.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 256 };

static enum mxc_code fail(const char *what, const char *host, int port, struct mxc_err *err) {
    int reason = errno;
    if (port < 0)
        return mxc_err_set(err, MXC_E_IO, "%s: cannot %s: %s", host, what, strerror(reason));
    return mxc_err_set(err, MXC_E_IO, "%s port %d: cannot %s: %s", host, port, what,
                       strerror(reason));
}

/* Whether somebody listens on the socket file. */
static bool answers(const struct sockaddr_un *address) {
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool yes = fd >= 0 && !connect(fd, (const struct sockaddr *)address, sizeof *address);
    if (fd >= 0)
        (void)close(fd);
    return yes;
}

static enum mxc_code open_unix(const char *path, struct mxc_listener *l, struct mxc_err *err) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct stat st;
    size_t length = strlen(path);
    if (length >= sizeof address.sun_path)
        return mxc_err_set(err, MXC_E_ARG, "%s: the path of a socket has at most %zu bytes", path,
                           sizeof address.sun_path - 1);
    memcpy(address.sun_path, path, length);
    if (!lstat(path, &st)) {
        if (!S_ISSOCK(st.st_mode))
            return mxc_err_set(err, MXC_E_IO, "%s: is there and is no socket", path);
        if (answers(&address))
            return mxc_err_set(err, MXC_E_IO, "%s: another server listens there", path);
        (void)unlink(path);
    }
    if (!(l->unlink_path = mxc_mem_strdup(path)))
        return mxc_err_nomem(err);
    l->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (l->fd < 0)
        return fail("make a socket", path, -1, err);
    mode_t before = umask(0177);
    int failed = bind(l->fd, (struct sockaddr *)&address, sizeof address);
    (void)umask(before);
    if (failed)
        return fail("listen", path, -1, err);
    l->loopback = true;
    (void)snprintf(l->text, sizeof l->text, "%s", path);
    return MXC_OK;
}

static bool is_loopback(const struct sockaddr *a) {
    if (a->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24 == 127;
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(v6) || (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr[12] == 127);
}

/* The address as text, and its port. */
static int describe(const struct sockaddr *a, char *text, size_t size) {
    char address[INET6_ADDRSTRLEN] = "";
    if (a->sa_family == AF_INET) {
        const struct sockaddr_in *v4 = (const void *)a;
        (void)inet_ntop(AF_INET, &v4->sin_addr, address, sizeof address);
        (void)snprintf(text, size, "%s:%d", address, ntohs(v4->sin_port));
        return ntohs(v4->sin_port);
    }
    const struct sockaddr_in6 *v6 = (const void *)a;
    (void)inet_ntop(AF_INET6, &v6->sin6_addr, address, sizeof address);
    (void)snprintf(text, size, "[%s]:%d", address, ntohs(v6->sin6_port));
    return ntohs(v6->sin6_port);
}

static enum mxc_code bind_to(const struct addrinfo *a, const char *host, int port,
                             struct mxc_listener *l, struct mxc_err *err) {
    int one = 1, zero = 0;
    l->fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (l->fd < 0)
        return fail("make a socket", host, port, err);
    (void)setsockopt(l->fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (a->ai_family == AF_INET6) /* "::" takes IPv4 too */
        (void)setsockopt(l->fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
    if (bind(l->fd, a->ai_addr, a->ai_addrlen))
        return fail("listen", host, port, err);
    struct sockaddr_storage bound;
    socklen_t length = sizeof bound;
    if (getsockname(l->fd, (struct sockaddr *)&bound, &length))
        return fail("listen", host, port, err);
    l->v6 = a->ai_family == AF_INET6;
    l->loopback = is_loopback((struct sockaddr *)&bound);
    l->port = describe((struct sockaddr *)&bound, l->text, sizeof l->text);
    return MXC_OK;
}

static enum mxc_code open_tcp(const char *host, int port, struct mxc_listener *l,
                              struct mxc_err *err) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list;
    char service[16];
    (void)snprintf(service, sizeof service, "%d", port);
    int status = getaddrinfo(host, service, &hints, &list);
    if (status)
        return mxc_err_set(err, MXC_E_ARG, "%s: %s", host, gai_strerror(status));
    enum mxc_code code = bind_to(list, host, port, l, err);
    freeaddrinfo(list);
    return code;
}

enum mxc_code mxc_listen_open(const char *host, int port, int send_bytes,
                              struct mxc_listener *listener, struct mxc_err *err) {
    struct mxc_listener l = {.fd = -1};
    bool is_path = mxc_str_ends(mxc_str_of(host), ".sock");
    enum mxc_code code = is_path ? open_unix(host, &l, err) : open_tcp(host, port, &l, err);
    if (!code) {
        (void)setsockopt(l.fd, SOL_SOCKET, SO_SNDBUF, &send_bytes, sizeof send_bytes);
        if (listen(l.fd, BACKLOG))
            code = fail("listen", host, is_path ? -1 : port, err);
    }
    if (code) {
        if (l.fd < 0) { /* nothing was bound: leave what is there */
            mxc_mem_free(l.unlink_path);
            l.unlink_path = NULL;
        }
        mxc_listen_close(&l);
        return code;
    }
    *listener = l;
    return MXC_OK;
}

void mxc_listen_close(struct mxc_listener *l) {
    if (l->fd >= 0)
        (void)close(l->fd);
    l->fd = -1;
    if (l->unlink_path)
        (void)unlink(l->unlink_path);
    mxc_mem_free(l->unlink_path);
    l->unlink_path = NULL;
}

void mxc_listen_peer(int fd, char *text, size_t size) {
    struct sockaddr_storage peer;
    socklen_t length = sizeof peer;
    (void)snprintf(text, size, "unix");
    if (!getpeername(fd, (struct sockaddr *)&peer, &length) &&
        (peer.ss_family == AF_INET || peer.ss_family == AF_INET6))
        (void)describe((struct sockaddr *)&peer, text, size);
}
