/* A hub on loopback for the tests: one thread, one connection at a time, misbehaving on demand. */
#ifndef MXC_TESTS_HUB_SERVER_H
#define MXC_TESTS_HUB_SERVER_H

#include <openssl/ssl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

enum { HUB_MAX_FILES = 16 };

struct hub_file {
    const char *path;
    const char *data;
    size_t length;
    bool lfs;            /* listed with a SHA-256 */
    const char *hash;    /* instead of the true one */
    size_t listed_bytes; /* instead of length; 0: length */
};

/* Set before a download starts; the server reads and the test reads back after it has ended. */
struct hub {
    struct hub_file files[HUB_MAX_FILES];
    size_t n_files;
    size_t page;           /* files per page of the list; 0: all */
    const char *raw_list;  /* sent as the list of files instead */
    const char *redirect;  /* base URL that file requests are sent on to */
    bool redirect_loop;    /* file requests are sent to where they are */
    const char *token;     /* 401 without it */
    int status;            /* answer file requests with this */
    atomic_int n_failures; /* answer that many file requests with 503 first */
    atomic_int n_cuts;     /* cut that many file answers off after cut_bytes */
    size_t cut_bytes;
    bool no_range;  /* ignores Range */
    bool bad_range; /* answers another range than asked */
    const char *commit;
    SSL_CTX *tls;

    atomic_int n_requests, n_file_requests, n_range_requests, n_tokens_seen;
    atomic_int slow_ms; /* pause in the middle of each file */
    int fd, port;
    atomic_bool stop;
    pthread_t thread;
    char url[64];
};

void hub_start(struct hub *hub); /* keeps the settings made before */
/* Before hub_start: speaks TLS with a certificate of its own, which is also written to pem_path. */
void hub_tls(struct hub *hub, const char *pem_path);
void hub_stop(struct hub *hub);
void hub_add(struct hub *hub, const char *path, const char *data, size_t length, bool lfs);

#endif
