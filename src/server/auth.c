/* API keys as SHA-256 digests. The list is replaced as a whole under a lock, so a check sees either
 * the old keys or the new ones. Keys given one by one come first and keep their numbers. */
#define _GNU_SOURCE
#include "server/auth.h"

#include "base/file.h"
#include "base/mem.h"
#include "server/server.h"

#include <gnutls/crypto.h>
#include <pthread.h>
#include <string.h>
#include <strings.h>

enum { DIGEST = 32, MAX_FILE = 1 << 20, MAX_KEY = 4096 };

struct digests {
    uint8_t of[MXC_SERVER_MAX_KEYS][DIGEST];
    size_t n;
};

struct mxc_auth {
    pthread_mutex_t mutex;
    struct digests fixed, all; /* all: fixed, then those of the file */
    char *file;
};

static enum mxc_code add(struct digests *d, struct mxc_str key, struct mxc_err *err) {
    if (!key.length || key.length > MAX_KEY)
        return mxc_err_set(err, MXC_E_ARG, "an API key has 1 to %d characters", MAX_KEY);
    if (d->n == MXC_SERVER_MAX_KEYS)
        return mxc_err_set(err, MXC_E_LIMIT, "more than %d API keys", MXC_SERVER_MAX_KEYS);
    if (gnutls_hash_fast(GNUTLS_DIG_SHA256, key.ptr, key.length, d->of[d->n]) < 0)
        return mxc_err_set(err, MXC_E_INTERNAL, "SHA-256 is not available");
    d->n++;
    return MXC_OK;
}

static struct mxc_str trim(struct mxc_str s) {
    while (s.length && strchr(" \t\r", s.ptr[0]))
        s.ptr++, s.length--;
    while (s.length && strchr(" \t\r", s.ptr[s.length - 1]))
        s.length--;
    return s;
}

static enum mxc_code read_file(const char *path, struct digests *d, struct mxc_err *err) {
    char *text;
    size_t length, before = d->n;
    enum mxc_code code = mxc_file_read(path, MAX_FILE, &text, &length, err);
    if (code)
        return code;
    for (const char *p = text, *end = text + length; p < end && !code;) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        struct mxc_str line = {p, (size_t)((stop ? stop : end) - p)};
        p = stop ? stop + 1 : end;
        line = trim(line);
        if (line.length && line.ptr[0] != '#')
            code = add(d, line, err);
    }
    if (!code && d->n == before)
        code = mxc_err_set(err, MXC_E_ARG, "the file holds no key");
    if (code)
        (void)mxc_err_context(err, "%s", path);
    memset(text, 0, length);
    mxc_mem_free(text);
    return code;
}

enum mxc_code mxc_auth_reload(struct mxc_auth *auth, struct mxc_err *err) {
    struct digests *now = mxc_mem_zalloc(1, sizeof *now);
    if (!now)
        return mxc_err_nomem(err);
    *now = auth->fixed;
    enum mxc_code code = auth->file ? read_file(auth->file, now, err) : MXC_OK;
    if (!code) {
        pthread_mutex_lock(&auth->mutex);
        auth->all = *now;
        pthread_mutex_unlock(&auth->mutex);
    }
    mxc_mem_free(now);
    return code;
}

enum mxc_code mxc_auth_new(const char *const *keys, size_t n_keys, const char *file,
                           struct mxc_auth **auth, struct mxc_err *err) {
    struct mxc_auth *a = mxc_mem_zalloc(1, sizeof *a);
    enum mxc_code code = MXC_OK;
    if (!a)
        return mxc_err_nomem(err);
    pthread_mutex_init(&a->mutex, NULL); /* cannot fail with default attributes */
    if (file && !(a->file = mxc_mem_strdup(file)))
        code = mxc_err_nomem(err);
    for (size_t i = 0; i < n_keys && !code; i++)
        code = add(&a->fixed, mxc_str_of(keys[i]), err);
    if (!code)
        code = mxc_auth_reload(a, err);
    if (code) {
        mxc_auth_free(a);
        return code;
    }
    *auth = a;
    return MXC_OK;
}

void mxc_auth_free(struct mxc_auth *auth) {
    if (!auth)
        return;
    pthread_mutex_destroy(&auth->mutex);
    mxc_mem_free(auth->file);
    mxc_mem_free(auth);
}

size_t mxc_auth_count(struct mxc_auth *auth) {
    pthread_mutex_lock(&auth->mutex);
    size_t n = auth->all.n;
    pthread_mutex_unlock(&auth->mutex);
    return n;
}

int mxc_auth_check(struct mxc_auth *auth, struct mxc_str key) {
    uint8_t digest[DIGEST];
    int found = -1;
    if (key.length > MAX_KEY ||
        gnutls_hash_fast(GNUTLS_DIG_SHA256, key.length ? key.ptr : "", key.length, digest) < 0)
        return -1;
    pthread_mutex_lock(&auth->mutex);
    for (size_t i = 0; i < auth->all.n; i++) { /* all of them: time must not tell which */
        int same = !gnutls_memcmp(digest, auth->all.of[i], DIGEST);
        found = same && found < 0 ? (int)i : found;
    }
    pthread_mutex_unlock(&auth->mutex);
    return found;
}

struct mxc_str mxc_auth_bearer(const char *header) {
    struct mxc_str s = trim(mxc_str_of(header));
    if (s.length < 7 || strncasecmp(s.ptr, "bearer ", 7) != 0)
        return (struct mxc_str){"", 0};
    s.ptr += 7;
    s.length -= 7;
    return trim(s);
}
