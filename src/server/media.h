/* Media: pictures that a request names instead of bringing them, under the operator's policy.
 * Nothing is opened unless it was allowed: files under one folder (no link, no "..", regular files
 * only); http(s) addresses of listed hosts, at public addresses only, checked on the socket that is
 * used, redirects checked again, size and time bounded. A file is given by its path in the folder
 * or by its whole one, as text or as a file: URI. Thread rules: fetch from any thread. */
#ifndef MXC_SERVER_MEDIA_H
#define MXC_SERVER_MEDIA_H

#include "base/err.h"
#include "base/str.h"
#include "image/input.h"

#include <stdbool.h>
#include <stddef.h>

struct sockaddr;

struct mxc_media_options {
    const char *folder;         /* NULL: no files */
    const char *const *domains; /* "host" (ports 80 and 443) or "host:port"; none: no addresses */
    size_t n_domains;
    size_t max_bytes; /* of one picture; 0: 32 MiB */
    long timeout_ms;  /* of one fetch, redirects included; 0: 20 s */
    /* Which addresses are connected to; NULL: mxc_media_is_public. For tests. */
    bool (*is_public)(const struct sockaddr *address);
};

struct mxc_media;
/* Copies the options. MXC_E_IO: the folder cannot be opened; MXC_E_ARG: a domain is none. */
enum mxc_code mxc_media_open(const struct mxc_media_options *options, struct mxc_media **media,
                             struct mxc_err *err) MXC_MUST;
void mxc_media_close(struct mxc_media *media); /* NULL is fine; no fetch may be under way */
/* Fetches that wait for the network end with an error, from any thread. NULL is fine. */
void mxc_media_stop(struct mxc_media *media);
/* For mxc_picture_options.fetch; user: the media. MXC_E_ARG: not allowed, or it cannot be had. The
 * message never says more of a file than that it cannot be had. */
enum mxc_code mxc_media_fetch(void *user, struct mxc_str where, enum mxc_image_source source,
                              uint8_t **data, size_t *size, struct mxc_err *err) MXC_MUST;
/* Whether a socket address is one of the public internet. */
bool mxc_media_is_public(const struct sockaddr *address);

#endif
