/* Auth: API keys and CORS origins. Keys are compared in constant time, as digests of equal length,
 * against every key, so that time tells neither which key matched nor how much of it.
 * Thread rules: any thread; reload may run beside checks. */
#ifndef MXC_SERVER_AUTH_H
#define MXC_SERVER_AUTH_H

#include "base/err.h"
#include "base/str.h"

#include <stdbool.h>

struct mxc_auth;

/* keys: given one by one; file: one a line, or NULL. An empty key is MXC_E_ARG. */
enum mxc_code mxc_auth_new(const char *const *keys, size_t n_keys, const char *file,
                           struct mxc_auth **auth, struct mxc_err *err) MXC_MUST;
void mxc_auth_free(struct mxc_auth *auth);
/* Reads the file again. On failure the keys stay as they were. */
enum mxc_code mxc_auth_reload(struct mxc_auth *auth, struct mxc_err *err) MXC_MUST;
size_t mxc_auth_count(struct mxc_auth *auth);
/* Number of the key, from 0; -1: it is none. */
int mxc_auth_check(struct mxc_auth *auth, struct mxc_str key);
/* The key of "Bearer KEY" (any case of the scheme); empty: another scheme, or none. */
struct mxc_str mxc_auth_bearer(const char *header);

#endif
