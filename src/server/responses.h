/* OpenAI's responses API: reading a request (responses_read.c), writing an answer
 * (responses_write.c), and what a server has of it: the stored answers and those that run
 * (responses.c). The handlers are in api_responses.c. */
#ifndef MXC_SERVER_RESPONSES_H
#define MXC_SERVER_RESPONSES_H

#include "server/dialect.h"
#include "server/responses_store.h"

/* ---- reading */

struct mxc_responses_request {
    struct mxc_dialect dialect;
    json_t *echo;  /* what the answer repeats of the request; owned */
    json_t *items; /* the input as a list of items, as it is stored; owned */
    bool store;    /* asked for, or by default */
};
/* The field previous_response_id, NULL: none. Borrowed. */
enum mxc_code mxc_responses_previous(const json_t *json, const char **id,
                                     struct mxc_fault *fault) MXC_MUST;
/* The request as a chat request. history: the items of the conversation so far, NULL: none.
 * MXC_E_ARG, MXC_E_UNSUPPORTED name the field. *out on success only. */
enum mxc_code mxc_responses_read(const json_t *json, const json_t *history,
                                 struct mxc_responses_request *out,
                                 struct mxc_fault *fault) MXC_MUST;
void mxc_responses_request_fini(struct mxc_responses_request *request);

/* ---- writing */

struct mxc_responses;
/* Of one answer; made by mxc_responses_state_new, moved into the job. */
struct mxc_responses_state {
    struct mxc_responses *all;    /* NULL: nothing is stored, nothing can be cancelled */
    json_t *echo, *items;         /* owned */
    json_t *output;               /* items that are complete; owned */
    struct mxc_buf logprobs;      /* of the open item, JSON with commas */
    char previous[MXC_STORED_ID]; /* "": none */
    unsigned char owner[MXC_STORED_OWNER];
    bool store;
    /* the stream */
    int sequence;
    bool open, over;
    enum mxc_delta_kind kind; /* of the open item: TEXT, THOUGHT, CALL */
    size_t start, call;       /* where its text begins; which call */
    char item[MXC_STORED_ID]; /* its id */
    /* of those that run (responses.c) */
    struct mxc_responses_state *next, **back;
    char id[64];
    uint64_t request;
    int model;
    atomic_bool cancelled;
};
/* Takes the request's parts over. NULL: out of memory (nothing was taken). */
struct mxc_responses_state *mxc_responses_state_new(struct mxc_responses *all,
                                                    struct mxc_responses_request *request);
extern const struct mxc_format mxc_responses_format;

/* ---- of a server */

struct mxc_host;
/* store: moved in; NULL: nothing is stored. */
enum mxc_code mxc_responses_new(struct mxc_host *host, struct mxc_response_store *store,
                                struct mxc_responses **all, struct mxc_err *err) MXC_MUST;
void mxc_responses_free(struct mxc_responses *all);                        /* NULL is fine */
struct mxc_response_store *mxc_responses_store(struct mxc_responses *all); /* NULL: none */
/* Appends a value as it is sent and stored: compact, numbers as short as clients write them. */
void mxc_responses_put(struct mxc_buf *out, const json_t *value);
/* Puts a finished answer into the store. false: it is not stored. */
bool mxc_responses_keep(struct mxc_responses_state *state, const struct mxc_job *job,
                        const json_t *response);
/* From here on until the state is freed the answer can be cancelled. */
void mxc_responses_run(struct mxc_responses_state *state, const struct mxc_job *job);
void mxc_responses_forget(struct mxc_responses_state *state);
/* Ends an answer of this owner that runs. false: there is none. */
bool mxc_responses_cancel(struct mxc_responses *all, const unsigned char owner[MXC_STORED_OWNER],
                          const char *id);

#endif
