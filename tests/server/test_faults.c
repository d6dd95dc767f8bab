/* A server in this process, with allocations that fail: every request gets some whole answer or a
 * closed connection, nothing leaks or hangs, and afterwards all is as before. */
#define _GNU_SOURCE
#include "test.h"

#include "base/mem.h"
#include "folder.h"
#include "server/server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

struct fixture {
    struct mxc_host *host;
    struct mxc_server *server;
    int port;
    char state[64]; /* folder of stored responses */
};

static int setup(void **state) {
    struct fixture *f = calloc(1, sizeof *f);
    struct mxc_host_model_options model;
    struct mxc_server_options o;
    struct mxc_err err;
    struct mxc_host_info info;
    assert_non_null(f);
    assert_int_equal(mxc_host_new(&f->host, &err), MXC_OK);
    mxc_host_model_options_init(&model);
    model.path = MXC_TEST_DATA "/golden/llama";
    model.name = "tiny";
    model.n_threads = 1;
    assert_int_equal(mxc_host_add(f->host, &model, &err), MXC_OK);
    mxc_server_options_init(&o);
    o.port = 0;
    (void)snprintf(f->state, sizeof f->state, "/tmp/mlxcel_faults_XXXXXX");
    assert_non_null(mkdtemp(f->state));
    o.state_dir = f->state;
    assert_int_equal(mxc_server_open(&o, f->host, &f->server, &err), MXC_OK);
    f->port = atoi(strrchr(mxc_server_url(f->server), ':') + 1);
    assert_int_equal(mxc_host_start(f->host, NULL, NULL, &err), MXC_OK);
    do {
        (void)usleep(1000);
        mxc_host_info(f->host, 0, &info);
    } while (info.state == MXC_HOST_LOADING);
    assert_int_equal(info.state, MXC_HOST_READY);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    mxc_server_close(f->server);
    assert_int_equal(folder_remove(f->state), 0);
    mxc_host_free(f->host);
    free(f);
    return 0;
}

/* Sends a request and reads to the end of the connection. The status, 0: closed without one. A
 * reply that was begun is in text. */
static int ask(const struct fixture *f, const char *path, const char *body, char *text,
               size_t size) {
    char head[512];
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)f->port)};
    struct timeval patience = {.tv_sec = 60};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), status = 0;
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    int n = snprintf(head, sizeof head,
                     "POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: "
                     "application/json\r\nContent-Length: %zu\r\n\r\n",
                     path, strlen(body));
    (void)send(fd, head, (size_t)n, MSG_NOSIGNAL);
    (void)send(fd, body, strlen(body), MSG_NOSIGNAL);
    size_t got = 0;
    ssize_t more;
    while (got < size - 1 && (more = recv(fd, text + got, size - 1 - got, 0)) > 0)
        got += (size_t)more;
    text[got] = 0;
    assert_true(got < size - 1);
    close(fd);
    if (got)
        assert_int_equal(sscanf(text, "HTTP/1.1 %d ", &status), 1);
    return status;
}

static const struct {
    const char *path, *body;
} requests[] = {
    {"/v1/chat/completions",
     "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"max_tokens\":4,\"logprobs\":true,"
     "\"top_logprobs\":2,\"stop\":[\"zzz\"],\"stop_token_ids\":[3],\"logit_bias\":{\"5\":1},"
     "\"temperature\":0}"},
    {"/v1/chat/completions",
     "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"max_tokens\":4,\"stream\":true,"
     "\"n\":2,\"stream_options\":{\"include_usage\":true},\"seed\":1}"},
    {"/v1/completions", "{\"prompt\":[\"a\",\"b\"],\"max_tokens\":3,\"echo\":true}"},
    {"/v1/messages",
     "{\"system\":\"s\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":"
     "\"Hi\"}]}],\"max_tokens\":4,\"stream\":true,\"stop_sequences\":[\"zzz\"],\"temperature\":0}"},
    {"/v1/messages/count_tokens", "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}"},
    {"/v1/responses",
     "{\"input\":\"Hi\",\"max_output_tokens\":4,\"temperature\":0,\"instructions\":\"s\"}"},
    {"/v1/responses", "{\"input\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"max_output_tokens\":4,"
                      "\"stream\":true,\"top_logprobs\":1,\"temperature\":0}"},
    {"/completion", "{\"prompt\":\"a\",\"n_predict\":3,\"n_probs\":2}"},
    {"/tokenize", "{\"content\":\"some words\",\"with_pieces\":true}"},
    {"/detokenize", "{\"tokens\":[1,2,3]}"},
    {"/apply-template", "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}"},
    {"/v1/chat/completions",
     "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"max_tokens\":40,\"guided_choice\":"
     "[\"yes\",\"no\"]}"},
    {"/v1/chat/completions",
     "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"max_tokens\":40,\"tools\":[{"
     "\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
     "\"properties\":{\"a\":{\"enum\":[\"x\"]}},\"required\":[\"a\"]}}}],\"tool_choice\":"
     "\"required\"}"},
};

static void failing_allocations_hurt_one_request(void **state) {
    const struct fixture *f = *state;
    size_t size = 1 << 20;
    char *text = malloc(size);
    assert_non_null(text);
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
        const char *path = requests[i].path, *body = requests[i].body;
        assert_int_equal(ask(f, path, body, text, size), 200);
        mxc_mem_fail_at(0);
        assert_int_equal(ask(f, path, body, text, size), 200);
        uint64_t calls = mxc_mem_calls();
        for (uint64_t n = 1; n <= calls; n++) {
            mxc_mem_fail_at(n);
            int status = ask(f, path, body, text, size);
            mxc_mem_fail_at(0);
            if (status >= 400)
                assert_non_null(strstr(text, "\"error\":{"));
            assert_true(!status || status == 200 || status >= 400);
        }
        assert_int_equal(ask(f, path, body, text, size), 200);
    }
    free(text);
}

static void bodies_of_all_kinds_are_survived(void **state) {
    static const char *const bodies[] = {"",
                                         "{",
                                         "[]",
                                         "null",
                                         "\"\"",
                                         "{\"a\"}",
                                         "{\"a\":1,}",
                                         "{\"messages\":[{}]}",
                                         "\xEF\xBB\xBF{}",
                                         "{\"model\":5}"};
    const struct fixture *f = *state;
    char text[1 << 16];
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++)
        for (size_t k = 0; k < sizeof bodies / sizeof *bodies; k++) {
            assert_int_equal(ask(f, requests[i].path, bodies[k], text, sizeof text), 400);
            assert_non_null(strstr(text, "\"message\":"));
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failing_allocations_hurt_one_request),
        cmocka_unit_test(bodies_of_all_kinds_are_survived),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
