/* Media: files through openat2, which resolves beneath the folder and follows no link; addresses
 * through libcurl with our own socket function, so that what is checked is what is connected to.
 * Invariants: no redirect is followed before its host was checked; no proxy is used; what was read
 * never exceeds the limit. */
#define _GNU_SOURCE
#include "server/media.h"

#include "base/arena.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { DEFAULT_BYTES = 32 << 20, DEFAULT_MS = 20000, CONNECT_MS = 5000, MAX_REDIRECTS = 3 };

struct domain {
    const char *host;
    long port; /* 0: 80 and 443 */
};

struct mxc_media {
    struct mxc_arena arena;
    int folder;       /* -1: none */
    const char *root; /* its path, without a slash at the end; NULL: none */
    struct domain *domains;
    size_t n_domains, max_bytes;
    long timeout_ms;
    bool (*is_public)(const struct sockaddr *address);
    atomic_bool stopped;
};

/* ---- opening */

static enum mxc_code add_domain(struct mxc_media *m, const char *text, struct mxc_err *err) {
    char *host = mxc_arena_strdup(&m->arena, text);
    if (!host)
        return mxc_err_nomem(err);
    char *colon = strrchr(host, ':');
    long port = 0;
    if (colon) {
        int64_t value;
        *colon = 0;
        if (!mxc_parse_i64(colon + 1, &value) || value < 1 || value > 65535)
            return mxc_err_set(err, MXC_E_ARG, "media domain \"%.200s\": not HOST or HOST:PORT",
                               text);
        port = (long)value;
    }
    if (!*host || strpbrk(host, "/@ *:"))
        return mxc_err_set(err, MXC_E_ARG, "media domain \"%.200s\": not HOST or HOST:PORT", text);
    m->domains[m->n_domains++] = (struct domain){host, port};
    return MXC_OK;
}

static enum mxc_code open_folder(struct mxc_media *m, const char *path, struct mxc_err *err) {
    char whole[PATH_MAX];
    if (realpath(path, whole))
        m->folder = open(whole, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (m->folder < 0)
        return mxc_err_set(err, MXC_E_IO, "media folder %.300s: %s", path, strerror(errno));
    m->root = mxc_arena_strdup(&m->arena, strcmp(whole, "/") != 0 ? whole : "");
    return m->root ? MXC_OK : mxc_err_nomem(err);
}

enum mxc_code mxc_media_open(const struct mxc_media_options *o, struct mxc_media **media,
                             struct mxc_err *err) {
    enum mxc_code code = MXC_OK;
    struct mxc_media *m = mxc_mem_zalloc(1, sizeof *m);
    if (!m)
        return mxc_err_nomem(err);
    mxc_arena_init(&m->arena, 0);
    m->folder = -1;
    m->max_bytes = o->max_bytes ? o->max_bytes : DEFAULT_BYTES;
    m->timeout_ms = o->timeout_ms ? o->timeout_ms : DEFAULT_MS;
    m->is_public = o->is_public ? o->is_public : mxc_media_is_public;
    atomic_init(&m->stopped, false);
    m->domains = mxc_arena_array(&m->arena, o->n_domains + 1, sizeof *m->domains);
    if (!m->domains)
        code = mxc_err_nomem(err);
    for (size_t i = 0; !code && i < o->n_domains; i++)
        code = add_domain(m, o->domains[i], err);
    if (!code && o->folder)
        code = open_folder(m, o->folder, err);
    if (!code && m->n_domains && curl_global_init(CURL_GLOBAL_DEFAULT))
        code = mxc_err_set(err, MXC_E_IO, "libcurl cannot be set up");
    if (code) {
        mxc_media_close(m);
        return code;
    }
    *media = m;
    return MXC_OK;
}

void mxc_media_close(struct mxc_media *m) {
    if (!m)
        return;
    if (m->folder >= 0)
        (void)close(m->folder);
    mxc_arena_fini(&m->arena);
    mxc_mem_free(m);
}

/* ---- files */

static enum mxc_code too_large(const struct mxc_media *m, struct mxc_err *err) {
    return mxc_err_set(err, MXC_E_ARG, "the picture has more than %zu bytes", m->max_bytes);
}

/* The bytes read, moved out; the buffer is released. */
static enum mxc_code hand_over(struct mxc_buf *buf, enum mxc_code code, uint8_t **data,
                               size_t *size, struct mxc_err *err) {
    size_t length = buf->length;
    uint8_t *taken = code ? NULL : (uint8_t *)mxc_buf_take(buf);
    mxc_buf_fini(buf);
    if (code)
        return code;
    if (!taken)
        return mxc_err_nomem(err);
    *data = taken;
    *size = length;
    return MXC_OK;
}

static enum mxc_code read_all(const struct mxc_media *m, int fd, uint8_t **data, size_t *size,
                              struct mxc_err *err) {
    struct mxc_buf buf;
    uint8_t chunk[16384];
    ssize_t n;
    mxc_buf_init(&buf, m->max_bytes);
    while ((n = read(fd, chunk, sizeof chunk)) > 0 || (n < 0 && errno == EINTR))
        if (n > 0 && !mxc_buf_append(&buf, chunk, (size_t)n))
            break;
    enum mxc_code code = buf.full ? too_large(m, err) : mxc_buf_status(&buf, err);
    if (!code && n < 0)
        code = mxc_err_set(err, MXC_E_ARG, "the file cannot be read");
    return hand_over(&buf, code, data, size, err);
}

static bool starts(struct mxc_str s, const char *word) {
    size_t n = strlen(word);
    return s.length >= n && !strncasecmp(s.ptr, word, n);
}

static bool is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static void skip(struct mxc_str *s, size_t n) {
    s->ptr += n;
    s->length -= n;
}

/* The path in a file: URI (its percent-encoding undone) or in plain text, relative to the folder:
 * "/cat.png" is cat.png in it, and so is the folder's own path in front of it. false: none. */
static bool path_of(const struct mxc_media *m, struct mxc_str where, char *path, size_t room) {
    size_t n = 0;
    bool uri = starts(where, "file:");
    if (uri) {
        skip(&where, 5);
        if (starts(where, "//localhost/"))
            skip(&where, 11);
        else if (starts(where, "//"))
            skip(&where, 2);
    }
    for (size_t i = 0; i < where.length; i++) {
        char c = where.ptr[i];
        if (uri && c == '%') {
            int high = i + 2 < where.length ? mxc_hex_digit(where.ptr[i + 1]) : -1;
            int low = high >= 0 ? mxc_hex_digit(where.ptr[i + 2]) : -1;
            if (low < 0)
                return false;
            c = (char)(high * 16 + low);
            i += 2;
        }
        if (!c || n + 1 >= room)
            return false;
        path[n++] = c;
    }
    path[n] = 0;
    size_t root = strlen(m->root);
    if (n > root && !memcmp(path, m->root, root) && path[root] == '/')
        memmove(path, path + root, n - root + 1);
    size_t slashes = strspn(path, "/");
    memmove(path, path + slashes, strlen(path) - slashes + 1);
    return *path != 0;
}

static enum mxc_code read_file(const struct mxc_media *m, struct mxc_str where, uint8_t **data,
                               size_t *size, struct mxc_err *err) {
    struct open_how how = {.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY,
                           .resolve =
                               RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS};
    char path[4096];
    struct stat st;
    if (m->folder < 0)
        return mxc_err_set(err, MXC_E_ARG,
                           "not a data: URI or base64; files are read only where the server runs "
                           "with --media-path");
    if (!path_of(m, where, path, sizeof path))
        return mxc_err_set(err, MXC_E_ARG, "not a path under the media folder");
    int fd = (int)syscall(SYS_openat2, m->folder, path, &how, sizeof how);
    if (fd < 0)
        return mxc_err_set(err, MXC_E_ARG, "there is no such file under the media folder");
    enum mxc_code code;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode))
        code = mxc_err_set(err, MXC_E_ARG, "there is no such file under the media folder");
    else
        code = read_all(m, fd, data, size, err);
    (void)close(fd);
    return code;
}

/* ---- addresses */

static bool v4_is_public(uint32_t a) {
    static const struct {
        uint32_t net;
        int bits;
    } none[] = {{0x00000000, 8},  {0x0a000000, 8},  {0x64400000, 10}, {0x7f000000, 8},
                {0xa9fe0000, 16}, {0xac100000, 12}, {0xc0000000, 24}, {0xc0000200, 24},
                {0xc0586300, 24}, {0xc0a80000, 16}, {0xc6120000, 15}, {0xc6336400, 24},
                {0xcb007100, 24}, {0xe0000000, 3}};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        if ((a ^ none[i].net) >> (32 - none[i].bits) == 0)
            return false;
    return true;
}

bool mxc_media_is_public(const struct sockaddr *address) {
    if (address->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, address, sizeof in);
        return v4_is_public(ntohl(in.sin_addr.s_addr));
    }
    if (address->sa_family != AF_INET6)
        return false;
    struct sockaddr_in6 in6;
    memcpy(&in6, address, sizeof in6);
    const uint8_t *b = in6.sin6_addr.s6_addr;
    /* 2000::/3 is what is routed; of it not 6to4 and Teredo (they hold IPv4 addresses) and not the
     * documentation range */
    bool routed = (b[0] & 0xe0) == 0x20;
    bool tunnel = (b[0] == 0x20 && b[1] == 0x02) || (b[0] == 0x20 && b[1] == 0x01 && b[2] < 2);
    bool documents = b[0] == 0x20 && b[1] == 0x01 && b[2] == 0x0d && b[3] == 0xb8;
    return routed && !tunnel && !documents;
}

struct transfer {
    const struct mxc_media *media;
    struct mxc_buf body;
    bool private_; /* an address was refused */
};

static curl_socket_t open_socket(void *user, curlsocktype purpose, struct curl_sockaddr *a) {
    struct transfer *t = user;
    (void)purpose;
    if (!t->media->is_public(&a->addr)) {
        t->private_ = true;
        return CURL_SOCKET_BAD;
    }
    return socket(a->family, a->socktype | SOCK_CLOEXEC, a->protocol);
}

static size_t on_body(char *bytes, size_t size, size_t n, void *user) {
    struct transfer *t = user;
    return mxc_buf_append(&t->body, bytes, size * n) ? size * n : 0;
}

/* Whether an address may be fetched: scheme, host and port, and no user name in it. */
static bool allowed(const struct mxc_media *m, const char *url) {
    CURLU *parts = curl_url();
    char *scheme = NULL, *host = NULL, *port = NULL, *user = NULL;
    bool ok = parts && !curl_url_set(parts, CURLUPART_URL, url, 0) &&
              !curl_url_get(parts, CURLUPART_SCHEME, &scheme, 0) &&
              !curl_url_get(parts, CURLUPART_HOST, &host, 0) &&
              !curl_url_get(parts, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT) &&
              curl_url_get(parts, CURLUPART_USER, &user, 0) != CURLUE_OK &&
              (!strcmp(scheme, "http") || !strcmp(scheme, "https"));
    bool found = false;
    long number = ok ? strtol(port, NULL, 10) : 0;
    for (size_t i = 0; ok && i < m->n_domains && !found; i++) {
        const struct domain *d = &m->domains[i];
        found = !strcasecmp(d->host, host) &&
                (d->port ? d->port == number : number == 80 || number == 443);
    }
    curl_free(scheme);
    curl_free(host);
    curl_free(port);
    curl_free(user);
    curl_url_cleanup(parts);
    return found;
}

static int on_progress(void *user, curl_off_t total, curl_off_t now, curl_off_t total_up,
                       curl_off_t now_up) {
    const struct transfer *t = user;
    (void)total, (void)now, (void)total_up, (void)now_up;
    return atomic_load(&t->media->stopped);
}

static bool set_options(CURL *curl, struct transfer *t) {
    const struct mxc_media *m = t->media;
    return !curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https") &&
           !curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L) &&
           !curl_easy_setopt(curl, CURLOPT_PROXY, "") &&
           !curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L) &&
           !curl_easy_setopt(curl, CURLOPT_FRESH_CONNECT, 1L) &&
           !curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS) &&
           !curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L) &&
           !curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress) &&
           !curl_easy_setopt(curl, CURLOPT_XFERINFODATA, t) &&
           !curl_easy_setopt(curl, CURLOPT_MAXFILESIZE_LARGE, (curl_off_t)m->max_bytes) &&
           !curl_easy_setopt(curl, CURLOPT_USERAGENT, "mlxcel/" MLXCEL_VERSION) &&
           !curl_easy_setopt(curl, CURLOPT_OPENSOCKETFUNCTION, open_socket) &&
           !curl_easy_setopt(curl, CURLOPT_OPENSOCKETDATA, t) &&
           !curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body) &&
           !curl_easy_setopt(curl, CURLOPT_WRITEDATA, t);
}

static enum mxc_code transfer_error(const struct transfer *t, CURLcode result, long status,
                                    struct mxc_err *err) {
    if (t->private_)
        return mxc_err_set(err, MXC_E_ARG, "the picture's host is not at a public address");
    if (t->body.full || result == CURLE_FILESIZE_EXCEEDED)
        return too_large(t->media, err);
    if (t->body.failed || result == CURLE_OUT_OF_MEMORY)
        return mxc_err_nomem(err);
    if (result)
        return mxc_err_set(err, MXC_E_ARG, "the picture cannot be fetched: %s",
                           curl_easy_strerror(result));
    return mxc_err_set(err, MXC_E_ARG, "the picture cannot be fetched: HTTP status %ld", status);
}

/* One address after the other, as long as they redirect to allowed ones; the time is that of all
 * of them together. */
static enum mxc_code follow(CURL *curl, struct transfer *t, char *url, size_t room,
                            struct mxc_err *err) {
    uint64_t start = mxc_clock_ns();
    for (int hop = 0; hop <= MAX_REDIRECTS; hop++) {
        long status = 0, left = t->media->timeout_ms - (long)((mxc_clock_ns() - start) / 1000000);
        char *next = NULL;
        if (!allowed(t->media, url))
            return mxc_err_set(err, MXC_E_ARG,
                               "pictures are not fetched from this host, which is none of "
                               "--allow-media-domain; send a data: URI");
        mxc_buf_clear(&t->body);
        if (curl_easy_setopt(curl, CURLOPT_URL, url) ||
            curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, left > 0 ? left : 1L))
            return mxc_err_nomem(err);
        CURLcode result = curl_easy_perform(curl);
        (void)curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
        (void)curl_easy_getinfo(curl, CURLINFO_REDIRECT_URL, &next);
        if (!result && status == 200)
            return MXC_OK;
        if (result || status < 300 || status > 399 || !next || strlen(next) >= room)
            return transfer_error(t, result, status, err);
        (void)snprintf(url, room, "%s", next);
    }
    return mxc_err_set(err, MXC_E_ARG, "the picture cannot be fetched: too many redirects");
}

static enum mxc_code fetch_address(const struct mxc_media *m, struct mxc_str where, uint8_t **data,
                                   size_t *size, struct mxc_err *err) {
    char url[4096];
    struct transfer t = {.media = m};
    if (!m->n_domains)
        return mxc_err_set(err, MXC_E_ARG,
                           "pictures are fetched only where the server runs with "
                           "--allow-media-domain; send a data: URI");
    if (where.length >= sizeof url || memchr(where.ptr, 0, where.length))
        return mxc_err_set(err, MXC_E_ARG, "the picture's address is too long");
    memcpy(url, where.ptr, where.length);
    url[where.length] = 0;
    CURL *curl = curl_easy_init();
    mxc_buf_init(&t.body, m->max_bytes);
    enum mxc_code code =
        curl && set_options(curl, &t) ? follow(curl, &t, url, sizeof url, err) : mxc_err_nomem(err);
    curl_easy_cleanup(curl);
    return hand_over(&t.body, code, data, size, err);
}

void mxc_media_stop(struct mxc_media *m) {
    if (m)
        atomic_store(&m->stopped, true);
}

enum mxc_code mxc_media_fetch(void *user, struct mxc_str where, enum mxc_image_source source,
                              uint8_t **data, size_t *size, struct mxc_err *err) {
    const struct mxc_media *m = user;
    while (where.length && is_space(*where.ptr))
        skip(&where, 1);
    while (where.length && is_space(where.ptr[where.length - 1]))
        where.length--;
    return source == MXC_SOURCE_HTTP ? fetch_address(m, where, data, size, err)
                                     : read_file(m, where, data, size, err);
}
