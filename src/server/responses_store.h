/* Response store: the answers of /v1/responses in one SQLite file (WAL) of the state folder, so
 * that they can be read again and continued after a restart.
 * Rows belong to an owner, a keyed digest of the API key that made them: without that key they are
 * not there. The bytes of all rows stay within a limit; the oldest go first. A file that is damaged
 * or of another version is renamed to "responses.db.damaged" (in place of an older one) with one
 * warning, and a new one is begun, whether that shows at opening or later.
 * A process that is killed loses nothing that was put; a power failure may lose the last rows.
 * Thread rules: every function from any thread but close; one mutex around one connection. */
#ifndef MXC_SERVER_RESPONSES_STORE_H
#define MXC_SERVER_RESPONSES_STORE_H

#include "base/err.h"
#include "base/str.h"

#include <stddef.h>

enum { MXC_STORED_OWNER = 32, MXC_STORED_ID = 96 };

struct mxc_response_store;
struct mxc_response_store_options {
    const char *folder;                         /* made when it is not there */
    uint64_t max_bytes;                         /* of all rows */
    void (*warn)(const char *line, void *user); /* NULL: nobody listens */
    void *user;
};

struct mxc_stored {
    char id[MXC_STORED_ID], previous[MXC_STORED_ID]; /* previous "": none */
    int64_t created;                                 /* Unix time */
    char *response, *input; /* JSON; of get: owned (mxc_stored_fini), of put: borrowed */
    size_t n_response, n_input;
};
void mxc_stored_fini(struct mxc_stored *stored);

/* MXC_E_IO: the folder or the file cannot be made or opened. */
enum mxc_code mxc_response_store_open(const struct mxc_response_store_options *options,
                                      struct mxc_response_store **store,
                                      struct mxc_err *err) MXC_MUST;
void mxc_response_store_close(struct mxc_response_store *store); /* NULL is fine */
/* The owner that a key stands for; an empty key is an owner too. */
enum mxc_code mxc_response_store_owner(struct mxc_response_store *store, struct mxc_str key,
                                       unsigned char owner[MXC_STORED_OWNER],
                                       struct mxc_err *err) MXC_MUST;
/* Inserts or replaces. MXC_E_LIMIT: the row alone is larger than the limit. */
enum mxc_code mxc_response_store_put(struct mxc_response_store *store,
                                     const unsigned char owner[MXC_STORED_OWNER],
                                     const struct mxc_stored *stored, struct mxc_err *err) MXC_MUST;
/* MXC_E_NOT_FOUND: no such row of this owner. */
enum mxc_code mxc_response_store_get(struct mxc_response_store *store,
                                     const unsigned char owner[MXC_STORED_OWNER], const char *id,
                                     struct mxc_stored *stored, struct mxc_err *err) MXC_MUST;
enum mxc_code mxc_response_store_remove(struct mxc_response_store *store,
                                        const unsigned char owner[MXC_STORED_OWNER], const char *id,
                                        struct mxc_err *err) MXC_MUST;
/* Rows and their bytes, as they are counted against the limit. */
enum mxc_code mxc_response_store_size(struct mxc_response_store *store, uint64_t *rows,
                                      uint64_t *bytes, struct mxc_err *err) MXC_MUST;

#endif
