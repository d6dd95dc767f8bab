/* HTTP GET over libcurl. One easy handle is reused, so connections are kept. libcurl follows no
 * redirect by itself: each hop is checked here (scheme, credentials), and the token goes only to
 * the endpoint's own origin. Bodies of failures are kept up to 1 KiB for the message. */
#define _GNU_SOURCE
#include "store/http.h"

#include "base/mem.h"
#include "store/tree.h"

#include <curl/curl.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_HOPS = 10, KEEP_BYTES = 1024 };

struct mxc_http {
    CURL *curl;
    char *endpoint, *token, *extra_ca;
    char *origin; /* "scheme://host:port" of the endpoint */
    bool plain;   /* plain http is allowed beyond loopback */
    bool endpoint_plain;
};

/* One answer on its way. */
struct flow {
    const struct mxc_http_get *get;
    struct mxc_http_reply *reply;
    CURL *curl;
    bool begun, refused, cancelled, bad_range;
    uint64_t range_start;
    bool has_range;
    char kept[KEEP_BYTES];
    size_t n_kept;
};

/* ---- addresses ---- */

struct address {
    char *scheme, *host, *port;
};

static void address_fini(struct address *a) {
    curl_free(a->scheme);
    curl_free(a->host);
    curl_free(a->port);
}

static bool address_parse(const char *url, struct address *a) {
    *a = (struct address){0};
    CURLU *u = curl_url();
    bool fine = u && !curl_url_set(u, CURLUPART_URL, url, CURLU_DISALLOW_USER) &&
                !curl_url_get(u, CURLUPART_SCHEME, &a->scheme, 0) &&
                !curl_url_get(u, CURLUPART_HOST, &a->host, 0) &&
                !curl_url_get(u, CURLUPART_PORT, &a->port, CURLU_DEFAULT_PORT) &&
                (!strcasecmp(a->scheme, "http") || !strcasecmp(a->scheme, "https"));
    curl_url_cleanup(u);
    if (!fine) {
        address_fini(a);
        *a = (struct address){0};
    }
    return fine;
}

static bool is_plain(const struct address *a) {
    return !strcasecmp(a->scheme, "http");
}

static bool is_loopback(const char *host) {
    if (!strcasecmp(host, "localhost") || !strcmp(host, "[::1]"))
        return true;
    unsigned parts = 0;
    for (const char *p = host; parts < 4; parts++) {
        size_t n = strspn(p, "0123456789");
        if (!n || n > 3 || (p[n] && p[n] != '.'))
            return false;
        p += n;
        if (!*p)
            return parts == 3 && !strncmp(host, "127.", 4);
        p++;
    }
    return false;
}

static char *origin_of(const struct address *a) {
    return mxc_text_printf("%s://%s:%s", a->scheme, a->host, a->port);
}

/* Whether this address may be asked at all. */
static enum mxc_code check(const struct mxc_http *http, const struct address *a, bool redirected,
                           struct mxc_err *err) {
    if (!is_plain(a) || http->plain)
        return MXC_OK;
    if (redirected && !http->endpoint_plain)
        return mxc_err_set(err, MXC_E_NETWORK, "redirected from https to plain http (%s): refused",
                           a->host);
    if (!is_loopback(a->host))
        return mxc_err_set(
            err, redirected ? MXC_E_NETWORK : MXC_E_ARG,
            "plain http to %s is refused (MLXCEL_ALLOW_INSECURE_ENDPOINT=1 allows it)", a->host);
    return MXC_OK;
}

/* ---- open ---- */

static bool truthy(const char *name) {
    const char *value = getenv(name);
    return value && *value && strcmp(value, "0") != 0 && strcasecmp(value, "false") != 0 &&
           strcasecmp(value, "off") != 0 && strcasecmp(value, "no") != 0;
}

enum mxc_code mxc_http_open(const char *endpoint, const char *token, struct mxc_http **http,
                            struct mxc_err *err) {
    const char *ca = getenv("MLXCEL_EXTRA_CA_CERTS");
    struct address address = {0};
    enum mxc_code code = MXC_OK;
    struct mxc_http *h = mxc_mem_zalloc(1, sizeof *h);
    if (!h)
        return mxc_err_nomem(err);
    if (token && strpbrk(token, "\r\n")) {
        code = mxc_err_set(err, MXC_E_ARG, "the access token holds a line break");
        goto out;
    }
    if (!address_parse(endpoint, &address)) {
        code = mxc_err_set(err, MXC_E_ARG, "\"%.200s\" is not an http(s) address", endpoint);
        goto out;
    }
    h->plain = truthy("MLXCEL_ALLOW_INSECURE_ENDPOINT");
    h->endpoint_plain = is_plain(&address);
    if ((code = check(h, &address, false, err)))
        goto out;
    h->origin = origin_of(&address);
    h->endpoint = mxc_mem_strdup(endpoint);
    h->token = token && *token ? mxc_mem_strdup(token) : NULL;
    h->extra_ca = ca && *ca ? mxc_mem_strdup(ca) : NULL;
    h->curl = curl_easy_init();
    if (!h->origin || !h->endpoint || (token && *token && !h->token) ||
        (ca && *ca && !h->extra_ca) || !h->curl) {
        code = mxc_err_nomem(err);
        goto out;
    }
    for (size_t n = strlen(h->endpoint); n && h->endpoint[n - 1] == '/'; n--)
        h->endpoint[n - 1] = 0;
    *http = h;
    h = NULL;
out:
    address_fini(&address);
    mxc_http_close(h);
    return code;
}

void mxc_http_close(struct mxc_http *http) {
    if (!http)
        return;
    if (http->curl)
        curl_easy_cleanup(http->curl);
    mxc_mem_free(http->origin);
    mxc_mem_free(http->endpoint);
    mxc_mem_free(http->token);
    mxc_mem_free(http->extra_ca);
    mxc_mem_free(http);
}

const char *mxc_http_endpoint(const struct mxc_http *http) {
    return http->endpoint;
}

/* ---- callbacks ---- */

/* The value of "name: value\r\n", or NULL. */
static const char *header_value(const char *line, size_t length, const char *name,
                                size_t *value_length) {
    size_t n = strlen(name);
    if (length <= n || strncasecmp(line, name, n) != 0 || line[n] != ':')
        return NULL;
    const char *value = line + n + 1, *end = line + length;
    while (value < end && (*value == ' ' || *value == '\t'))
        value++;
    while (end > value && (end[-1] == '\r' || end[-1] == '\n' || end[-1] == ' '))
        end--;
    *value_length = (size_t)(end - value);
    return value;
}

static uint64_t digits(const char *text, size_t length) {
    uint64_t value = 0;
    for (size_t i = 0; i < length && text[i] >= '0' && text[i] <= '9' && value < UINT64_MAX / 16;
         i++)
        value = value * 10 + (uint64_t)(text[i] - '0');
    return value;
}

/* Link: <url>; rel="next", <url>; rel="last" */
static void read_link(const char *value, size_t length, struct mxc_http_reply *reply) {
    const char *end = value + length, *p = value;
    while (p < end && (p = memchr(p, '<', (size_t)(end - p)))) {
        const char *close = memchr(p, '>', (size_t)(end - p));
        if (!close)
            return;
        const char *stop = memchr(close, '<', (size_t)(end - close));
        const char *rel = memmem(close, (size_t)((stop ? stop : end) - close), "rel=\"next\"", 10);
        size_t n = (size_t)(close - p - 1);
        if (rel && n < sizeof reply->next) {
            memcpy(reply->next, p + 1, n);
            reply->next[n] = 0;
        }
        p = close;
    }
}

static size_t on_header(char *line, size_t size, size_t count, void *user) {
    struct flow *flow = user;
    size_t length = size * count, n;
    const char *value;
    if (length > 5 && !strncmp(line, "HTTP/", 5)) { /* a new answer */
        flow->has_range = false;
        flow->reply->next[0] = 0;
        flow->reply->wait_s = 0;
    } else if ((value = header_value(line, length, "content-range", &n))) {
        if (n > 6 && !strncasecmp(value, "bytes ", 6)) {
            flow->has_range = true;
            flow->range_start = digits(value + 6, n - 6);
        }
    } else if ((value = header_value(line, length, "link", &n))) {
        read_link(value, n, flow->reply);
    } else if ((value = header_value(line, length, "retry-after", &n))) {
        uint64_t wait = digits(value, n);
        flow->reply->wait_s = wait > 300 ? 300 : (unsigned)wait;
    }
    return length;
}

static size_t on_body(char *data, size_t size, size_t count, void *user) {
    struct flow *flow = user;
    size_t length = size * count;
    long status = 0;
    curl_easy_getinfo(flow->curl, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200 && status != 206) {
        size_t n = sizeof flow->kept - 1 - flow->n_kept;
        n = n < length ? n : length;
        memcpy(flow->kept + flow->n_kept, data, n);
        flow->n_kept += n;
        return length;
    }
    if (!flow->begun) {
        uint64_t start = status == 206 && flow->has_range ? flow->range_start : 0;
        if (status == 206 && start != flow->get->from) {
            flow->bad_range = true;
            return 0;
        }
        flow->begun = true;
        if (!flow->get->begin(start, flow->get->user)) {
            flow->refused = true;
            return 0;
        }
    }
    if (!flow->get->write(data, length, flow->get->user)) {
        flow->refused = true;
        return 0;
    }
    return length;
}

static int on_progress(void *user, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d) {
    struct flow *flow = user;
    (void)a, (void)b, (void)c, (void)d;
    if (flow->get->tick && !flow->get->tick(flow->get->user)) {
        flow->cancelled = true;
        return 1;
    }
    return 0;
}

/* Trusts the certificates of a file besides the system's. */
static CURLcode on_ssl(CURL *curl, void *context, void *user) {
    (void)curl;
    return SSL_CTX_load_verify_file(context, user) == 1 ? CURLE_OK : CURLE_SSL_CACERT_BADFILE;
}

/* ---- one request ---- */

static enum mxc_code status_error(const struct flow *flow, const char *host, struct mxc_err *err) {
    struct mxc_http_reply *reply = flow->reply;
    char note[160];
    size_t n = 0;
    /* {"error": "..."} or whatever was said, on one line */
    for (size_t i = 0; i < flow->n_kept && n < sizeof note - 1; i++) {
        char c = flow->kept[i];
        if (c >= 32 && c < 127)
            note[n++] = c;
    }
    note[n] = 0;
    reply->again = reply->status == 408 || reply->status == 429 || reply->status >= 500;
    switch (reply->status) {
    case 401:
        return mxc_err_set(err, MXC_E_NOT_FOUND,
                           "%s: not there, or private (401); HF_TOKEN gives an access token", host);
    case 403:
        return mxc_err_set(err, MXC_E_NETWORK, "%s: access refused (403)%s%s", host, n ? ": " : "",
                           note);
    case 404:
        return mxc_err_set(err, MXC_E_NOT_FOUND, "%s: not found (404)", host);
    default:
        return mxc_err_set(err, MXC_E_NETWORK, "%s: HTTP status %ld%s%s", host, reply->status,
                           n ? ": " : "", note);
    }
}

static bool may_pass(CURLcode result) {
    switch (result) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
    case CURLE_PARTIAL_FILE:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
    case CURLE_SSL_CONNECT_ERROR:
        return true;
    default:
        return false;
    }
}

/* One hop. Sets what is common and performs. */
static CURLcode perform(struct mxc_http *http, const char *url, const struct address *address,
                        struct flow *flow, char *why) {
    CURL *curl = http->curl;
    struct curl_slist *headers = NULL;
    char *origin = origin_of(address);
    char *bearer = NULL;
    CURLcode result = CURLE_OUT_OF_MEMORY;
    if (!origin)
        return result;
    curl_easy_reset(curl);
    if (http->token && !strcasecmp(origin, http->origin)) {
        bearer = mxc_text_printf("Authorization: Bearer %s", http->token);
        headers = bearer ? curl_slist_append(NULL, bearer) : NULL;
        if (!headers)
            goto out;
    }
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_USERAGENT, "mlxcel/" MLXCEL_VERSION);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, 30L);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, 60L);
    curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, 256L << 10);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, why);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, flow);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, flow);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, flow);
    if (is_loopback(address->host))
        curl_easy_setopt(curl, CURLOPT_PROXY, "");
    if (http->extra_ca) {
        curl_easy_setopt(curl, CURLOPT_SSL_CTX_FUNCTION, on_ssl);
        curl_easy_setopt(curl, CURLOPT_SSL_CTX_DATA, http->extra_ca);
    }
    if (flow->get->from) { /* not CURLOPT_RESUME_FROM: an answer 200 is welcome too */
        char range[32];
        (void)snprintf(range, sizeof range, "%llu-", (unsigned long long)flow->get->from);
        curl_easy_setopt(curl, CURLOPT_RANGE, range); /* copied */
    }
    result = curl_easy_perform(curl);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, NULL); /* the handle outlives the caller's */
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, NULL);
out:
    curl_slist_free_all(headers);
    mxc_mem_free(bearer);
    mxc_mem_free(origin);
    return result;
}

static enum mxc_code outcome(CURLcode result, struct flow *flow, const char *host, const char *why,
                             struct mxc_err *err) {
    struct mxc_http_reply *reply = flow->reply;
    if (flow->cancelled)
        return mxc_err_set(err, MXC_E_CANCELLED, "cancelled");
    if (flow->refused)
        return mxc_err_set(err, MXC_E_IO, "%s: the data was not taken", host);
    if (flow->bad_range) {
        reply->again = true;
        return mxc_err_set(err, MXC_E_NETWORK, "%s: sent another part than was asked for", host);
    }
    if (result == CURLE_OUT_OF_MEMORY)
        return mxc_err_nomem(err);
    if (result) {
        reply->again = may_pass(result);
        return mxc_err_set(err, MXC_E_NETWORK, "%s: %s", host,
                           *why ? why : curl_easy_strerror(result));
    }
    if (reply->status == 200 || reply->status == 206) {
        if (flow->begun ||
            flow->get->begin(reply->status == 206 ? flow->get->from : 0, flow->get->user))
            return MXC_OK;
        return mxc_err_set(err, MXC_E_IO, "%s: the data was not taken", host);
    }
    return status_error(flow, host, err);
}

enum mxc_code mxc_http_get(struct mxc_http *http, const struct mxc_http_get *get,
                           struct mxc_http_reply *reply, struct mxc_err *err) {
    enum mxc_code code = MXC_OK;
    char why[CURL_ERROR_SIZE];
    char *url = mxc_mem_strdup(get->url);
    *reply = (struct mxc_http_reply){0};
    for (int hop = 0; url; hop++) {
        struct flow flow = {.get = get, .reply = reply, .curl = http->curl};
        struct address address;
        if (!address_parse(url, &address)) {
            code = mxc_err_set(err, MXC_E_NETWORK, "\"%.200s\" is not an http(s) address", url);
            break;
        }
        if ((code = check(http, &address, hop > 0, err))) {
            address_fini(&address);
            break;
        }
        *why = 0;
        CURLcode result = perform(http, url, &address, &flow, why);
        curl_easy_getinfo(http->curl, CURLINFO_RESPONSE_CODE, &reply->status);
        char *target = NULL;
        if (!result && reply->status >= 300 && reply->status < 400 && reply->status != 304)
            curl_easy_getinfo(http->curl, CURLINFO_REDIRECT_URL, &target);
        if (target && hop >= MAX_HOPS)
            code = mxc_err_set(err, MXC_E_NETWORK, "%s: too many redirects", address.host);
        else if (!target)
            code = outcome(result, &flow, address.host, why, err);
        address_fini(&address);
        char *next = target && !code ? mxc_mem_strdup(target) : NULL;
        mxc_mem_free(url);
        url = next;
        if (!target || code)
            return code;
    }
    if (!url)
        return mxc_err_nomem(err);
    mxc_mem_free(url);
    return code;
}

/* ---- small answers ---- */

struct text_sink {
    struct mxc_buf *text;
    bool (*tick)(void *user);
    void *user;
};

static bool text_begin(uint64_t start, void *user) {
    struct text_sink *sink = user;
    mxc_buf_clear(sink->text);
    return !start;
}

static bool text_write(const void *data, size_t length, void *user) {
    struct text_sink *sink = user;
    return mxc_buf_append(sink->text, data, length);
}

static bool text_tick(void *user) {
    struct text_sink *sink = user;
    return !sink->tick || sink->tick(sink->user);
}

enum mxc_code mxc_http_text(struct mxc_http *http, const char *url, bool (*tick)(void *user),
                            void *user, struct mxc_buf *text, struct mxc_http_reply *reply,
                            struct mxc_err *err) {
    struct text_sink sink = {.text = text, .tick = tick, .user = user};
    struct mxc_http_get get = {
        .url = url, .begin = text_begin, .write = text_write, .tick = text_tick, .user = &sink};
    enum mxc_code code = mxc_http_get(http, &get, reply, err);
    if (code == MXC_E_IO && mxc_buf_status(text, err))
        return mxc_err_context(err, "%s", url);
    return code;
}
