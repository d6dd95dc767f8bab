/* The loopback hub: the three kinds of address that a download asks for, HTTP/1.1, close after each
 * answer. */
#define _GNU_SOURCE
#include "hub_server.h"

#include "test.h"

#include <arpa/inet.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

struct conn {
    int fd;
    SSL *ssl; /* or NULL */
};

static void put(struct conn *c, const void *data, size_t length) {
    const char *p = data;
    while (length) {
        ssize_t n =
            c->ssl ? SSL_write(c->ssl, p, (int)length) : send(c->fd, p, length, MSG_NOSIGNAL);
        if (n <= 0)
            return;
        p += n;
        length -= (size_t)n;
    }
}

static void answer(struct conn *c, const char *status, const char *headers, const char *body) {
    char head[4096];
    int n = snprintf(head, sizeof head,
                     "HTTP/1.1 %s\r\nConnection: close\r\nContent-Length: %zu\r\n%s\r\n", status,
                     strlen(body), headers);
    put(c, head, (size_t)n);
    put(c, body, strlen(body));
}

static void hash_of(const struct hub_file *file, char hex[65]) {
    unsigned char raw[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    char head[32];
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    EVP_DigestInit_ex(context, file->lfs ? EVP_sha256() : EVP_sha1(), NULL);
    if (!file->lfs) {
        int h = snprintf(head, sizeof head, "blob %zu", file->length);
        EVP_DigestUpdate(context, head, (size_t)h + 1);
    }
    EVP_DigestUpdate(context, file->data, file->length);
    EVP_DigestFinal_ex(context, raw, &n);
    EVP_MD_CTX_free(context);
    for (unsigned i = 0; i < n; i++)
        (void)snprintf(hex + (size_t)i * 2, 3, "%02x", raw[i]);
}

static void send_list(struct hub *hub, struct conn *c, const char *target) {
    char body[16384] = "[{\"type\":\"directory\",\"path\":\"x\",\"oid\":\"\",\"size\":0}",
         link[256] = "";
    const char *cursor = strstr(target, "cursor=");
    size_t first = cursor ? (size_t)atoi(cursor + 7) : 0;
    size_t last = hub->page && first + hub->page < hub->n_files ? first + hub->page : hub->n_files;
    size_t n = strlen(body);
    if (hub->raw_list) {
        answer(c, "200 OK", "", hub->raw_list);
        return;
    }
    for (size_t i = first; i < last; i++) {
        const struct hub_file *file = &hub->files[i];
        size_t bytes = file->listed_bytes ? file->listed_bytes : file->length;
        char hex[65];
        hash_of(file, hex);
        const char *hash = file->hash ? file->hash : hex;
        if (file->lfs)
            n += (size_t)snprintf(body + n, sizeof body - n,
                                  ",{\"type\":\"file\",\"path\":\"%s\",\"size\":%zu,"
                                  "\"oid\":\"0123456789012345678901234567890123456789\","
                                  "\"lfs\":{\"oid\":\"%s\",\"size\":%zu,\"pointerSize\":134}}",
                                  file->path, bytes, hash, bytes);
        else
            n +=
                (size_t)snprintf(body + n, sizeof body - n,
                                 ",{\"type\":\"file\",\"path\":\"%s\",\"size\":%zu,\"oid\":\"%s\"}",
                                 file->path, bytes, hash);
        assert_true(n < sizeof body - 2);
    }
    memcpy(body + n, "]", 2);
    if (last < hub->n_files)
        (void)snprintf(link, sizeof link, "Link: <%s%.*s?recursive=1&cursor=%zu>; rel=\"next\"\r\n",
                       hub->url, (int)strcspn(target, "?"), target, last);
    answer(c, "200 OK", link, body);
}

static void send_file(struct hub *hub, struct conn *c, const char *path, const char *request) {
    const struct hub_file *file = NULL;
    for (size_t i = 0; i < hub->n_files; i++)
        if (!strcmp(hub->files[i].path, path))
            file = &hub->files[i];
    if (!file) {
        answer(c, "404 Not Found", "", "{\"error\":\"Entry not found\"}");
        return;
    }
    const char *range = strcasestr(request, "\r\nRange: bytes=");
    size_t from = range ? (size_t)strtoull(range + 15, NULL, 10) : 0;
    if (range)
        atomic_fetch_add(&hub->n_range_requests, 1);
    if (hub->no_range)
        range = NULL, from = 0;
    if (from >= file->length && range) {
        answer(c, "416 Range Not Satisfiable", "", "");
        return;
    }
    size_t length = file->length - from, sent = length;
    char head[512];
    int n = range
                ? snprintf(head, sizeof head,
                           "HTTP/1.1 206 Partial Content\r\nConnection: close\r\n"
                           "Content-Range: bytes %zu-%zu/%zu\r\nContent-Length: %zu\r\n\r\n",
                           hub->bad_range ? from + 1 : from, file->length - 1, file->length, length)
                : snprintf(head, sizeof head,
                           "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n",
                           length);
    put(c, head, (size_t)n);
    if (atomic_load(&hub->n_cuts) > 0 && hub->cut_bytes < length) {
        atomic_fetch_sub(&hub->n_cuts, 1);
        sent = hub->cut_bytes;
    }
    put(c, file->data + from, sent / 2);
    if (atomic_load(&hub->slow_ms)) {
        struct timespec pause = {.tv_nsec = atomic_load(&hub->slow_ms) * 1000000L};
        nanosleep(&pause, NULL);
    }
    put(c, file->data + from + sent / 2, sent - sent / 2);
}

static void serve(struct hub *hub, struct conn *c) {
    char request[8192], target[2048], header[512];
    size_t n = 0;
    while (n < sizeof request - 1) {
        ssize_t r = c->ssl ? SSL_read(c->ssl, request + n, (int)(sizeof request - 1 - n))
                           : recv(c->fd, request + n, sizeof request - 1 - n, 0);
        if (r <= 0)
            return;
        n += (size_t)r;
        request[n] = 0;
        if (strstr(request, "\r\n\r\n"))
            break;
    }
    if (sscanf(request, "GET %2047s", target) != 1)
        return;
    atomic_fetch_add(&hub->n_requests, 1);
    const char *auth = strcasestr(request, "\r\nAuthorization: Bearer ");
    if (auth)
        atomic_fetch_add(&hub->n_tokens_seen, 1);
    if (hub->token && (!auth || strncmp(auth + 24, hub->token, strlen(hub->token)) != 0)) {
        answer(c, "401 Unauthorized", "", "{\"error\":\"Repository not found\"}");
        return;
    }
    const char *resolve = strstr(target, "/resolve/"), *cdn = strstr(target, "/cdn/");
    if (strstr(target, "/revision/missing")) {
        answer(c, "404 Not Found", "", "{\"error\":\"Invalid rev id\"}");
    } else if (strstr(target, "/revision/")) {
        (void)snprintf(header, sizeof header, "{\"id\":\"o/n\",\"sha\":\"%s\"}", hub->commit);
        answer(c, "200 OK", "", header);
    } else if (strstr(target, "/tree/")) {
        send_list(hub, c, target);
    } else if (cdn) {
        atomic_fetch_add(&hub->n_file_requests, 1);
        send_file(hub, c, cdn + 5, request);
    } else if (resolve) {
        const char *path = strchr(resolve + 9, '/');
        atomic_fetch_add(&hub->n_file_requests, 1);
        if (atomic_load(&hub->n_failures) > 0) {
            atomic_fetch_sub(&hub->n_failures, 1);
            answer(c, "503 Service Unavailable", "", "busy\n");
        } else if (hub->status) {
            (void)snprintf(header, sizeof header, "%d Refused", hub->status);
            answer(c, header, "", "{\"error\":\"no\"}");
        } else if (hub->redirect_loop) {
            (void)snprintf(header, sizeof header, "Location: %s%.400s\r\n", hub->url, target);
            answer(c, "302 Found", header, "");
        } else if (hub->redirect) {
            (void)snprintf(header, sizeof header, "Location: %s/cdn/%s\r\n", hub->redirect,
                           path ? path + 1 : "");
            answer(c, "302 Found", header, "moved");
        } else {
            send_file(hub, c, path ? path + 1 : "", request);
        }
    } else {
        answer(c, "404 Not Found", "", "");
    }
}

static void *loop(void *arg) {
    struct hub *hub = arg;
    while (!atomic_load(&hub->stop)) {
        struct pollfd poller = {.fd = hub->fd, .events = POLLIN};
        if (poll(&poller, 1, 20) <= 0)
            continue;
        int fd = accept(hub->fd, NULL, NULL);
        if (fd < 0)
            continue;
        struct conn c = {.fd = fd, .ssl = hub->tls ? SSL_new(hub->tls) : NULL};
        if (!c.ssl) {
            serve(hub, &c);
        } else if (SSL_set_fd(c.ssl, fd) == 1 && SSL_accept(c.ssl) == 1) {
            serve(hub, &c);
            SSL_shutdown(c.ssl);
        }
        SSL_free(c.ssl);
        shutdown(fd, SHUT_WR);
        close(fd);
    }
    return NULL;
}

void hub_start(struct hub *hub) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    if (!hub->commit)
        hub->commit = "1111111111111111111111111111111111111111";
    hub->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(hub->fd >= 0);
    assert_int_equal(bind(hub->fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(hub->fd, 16), 0);
    assert_int_equal(getsockname(hub->fd, (struct sockaddr *)&address, &length), 0);
    hub->port = ntohs(address.sin_port);
    (void)snprintf(hub->url, sizeof hub->url, "%s://127.0.0.1:%d", hub->tls ? "https" : "http",
                   hub->port);
    signal(SIGPIPE, SIG_IGN); /* a client that hangs up on TLS */
    atomic_store(&hub->stop, false);
    assert_int_equal(pthread_create(&hub->thread, NULL, loop, hub), 0);
}

void hub_stop(struct hub *hub) {
    atomic_store(&hub->stop, true);
    pthread_join(hub->thread, NULL);
    close(hub->fd);
    SSL_CTX_free(hub->tls);
    hub->tls = NULL;
}

void hub_tls(struct hub *hub, const char *pem_path) {
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = X509_new();
    X509_NAME *name = X509_get_subject_name(cert);
    X509V3_CTX context;
    assert_non_null(key);
    X509_set_version(cert, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
    X509_gmtime_adj(X509_getm_notBefore(cert), -3600);
    X509_gmtime_adj(X509_getm_notAfter(cert), 3600);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)"hub", -1, -1, 0);
    X509_set_issuer_name(cert, name);
    X509_set_pubkey(cert, key);
    X509V3_set_ctx_nodb(&context);
    X509V3_set_ctx(&context, cert, cert, NULL, NULL, 0);
    X509_EXTENSION *san = X509V3_EXT_conf_nid(NULL, &context, NID_subject_alt_name, "IP:127.0.0.1");
    assert_non_null(san);
    assert_int_equal(X509_add_ext(cert, san, -1), 1);
    X509_EXTENSION_free(san);
    assert_true(X509_sign(cert, key, EVP_sha256()) > 0);
    FILE *file = fopen(pem_path, "w");
    assert_non_null(file);
    assert_int_equal(PEM_write_X509(file, cert), 1);
    fclose(file);
    hub->tls = SSL_CTX_new(TLS_server_method());
    assert_int_equal(SSL_CTX_use_certificate(hub->tls, cert), 1);
    assert_int_equal(SSL_CTX_use_PrivateKey(hub->tls, key), 1);
    X509_free(cert);
    EVP_PKEY_free(key);
}

void hub_add(struct hub *hub, const char *path, const char *data, size_t length, bool lfs) {
    assert_true(hub->n_files < HUB_MAX_FILES);
    hub->files[hub->n_files++] =
        (struct hub_file){.path = path, .data = data, .length = length, .lfs = lfs};
}
