/* The files of the chat page, embedded at build time (cmake/embed.cmake). */
#ifndef MXC_SERVER_PAGE_FILES_H
#define MXC_SERVER_PAGE_FILES_H

#include <stddef.h>

struct mxc_page_file {
    const char *name;
    const unsigned char *bytes; /* a zero stands behind the last one */
    size_t length;
};
extern const struct mxc_page_file mxc_page_files[];
extern const size_t mxc_page_n_files;
extern const char mxc_page_hash[]; /* of all of them; part of their address */

#endif
