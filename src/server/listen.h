/* Listen: the listening socket, before libmicrohttpd gets it: address, unix socket, port 0. */
#ifndef MXC_SERVER_LISTEN_H
#define MXC_SERVER_LISTEN_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

struct mxc_listener {
    int fd;
    int port;      /* the one that was taken; 0: a unix socket */
    bool loopback; /* nobody else reaches it (a unix socket counts) */
    bool v6;
    char text[128];    /* "127.0.0.1:8080", "[::1]:8080", or the path */
    char *unlink_path; /* of the unix socket; owned */
};

/* host: an address, a name, or a path that ends in ".sock". A socket file that nobody listens on
 * any more is replaced; anything else at the path is MXC_E_IO. A new socket file is for its owner
 * only. send_bytes: size of the send buffer of every connection. */
enum mxc_code mxc_listen_open(const char *host, int port, int send_bytes,
                              struct mxc_listener *listener, struct mxc_err *err) MXC_MUST;
/* Closes fd (when it is not -1) and removes the socket file. */
void mxc_listen_close(struct mxc_listener *listener);
/* "127.0.0.1:53124" or "unix" of an accepted connection. */
void mxc_listen_peer(int fd, char *text, size_t size);

#endif
