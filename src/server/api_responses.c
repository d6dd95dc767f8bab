/* OpenAI's routes of responses: /v1/responses, and a stored one's retrieval, deletion, cancelling
 * and input items. Responses belong to the API key that made them: to others they are not there. */
#define _GNU_SOURCE
#include "base/json.h"
#include "base/mem.h"
#include "server/api.h"
#include "server/responses.h"

#include <stdio.h>
#include <string.h>

enum { MAX_CHAIN = 4096, MAX_CHAIN_BYTES = 256 << 20 };

static enum mxc_code nomem(struct mxc_fault *fault) {
    return mxc_fault_set(fault, MXC_E_NOMEM, NULL, "out of memory");
}

/* What the request's key stands for. Without a store nobody keeps it: the number will do. */
static enum mxc_code owner_of(const struct mxc_exchange *x, unsigned char owner[MXC_STORED_OWNER],
                              struct mxc_fault *fault) {
    struct mxc_response_store *store = mxc_responses_store(x->server->responses);
    struct mxc_str key = {"", 0};
    struct mxc_err err;
    memset(owner, 0, MXC_STORED_OWNER);
    if (!store) {
        memcpy(owner, &x->key, sizeof x->key);
        return MXC_OK;
    }
    if (x->key >= 0)
        key = mxc_auth_bearer(mxc_exchange_header(x, "Authorization"));
    if (x->key >= 0 && !key.length)
        key = mxc_str_of(mxc_exchange_header(x, "X-Api-Key"));
    enum mxc_code code = mxc_response_store_owner(store, key, owner, &err);
    return code ? mxc_fault_from(fault, &err, NULL) : MXC_OK;
}

/* ---- the conversation so far */

/* A stored response and its input, parsed. */
struct link {
    struct mxc_stored row; /* their text */
    json_t *response, *input;
};

static void free_link(struct link *link) {
    json_decref(link->response);
    json_decref(link->input);
    mxc_stored_fini(&link->row);
}

static enum mxc_code load(struct mxc_exchange *x, const unsigned char *owner, const char *id,
                          struct link *out, struct mxc_fault *fault) {
    struct mxc_response_store *store = mxc_responses_store(x->server->responses);
    struct mxc_err err;
    struct link link = {.response = NULL};
    if (!store)
        return mxc_fault_status(fault, MXC_E_NOT_FOUND, 404,
                                "there is no response \"%.64s\": this server stores none", id);
    enum mxc_code code = mxc_response_store_get(store, owner, id, &link.row, &err);
    if (code == MXC_E_NOT_FOUND)
        return mxc_fault_status(fault, code, 404, "%s", err.message);
    if (code)
        return mxc_fault_from(fault, &err, NULL);
    code = mxc_json_parse(link.row.response, link.row.n_response, "stored response", &link.response,
                          &err);
    if (!code)
        code = mxc_json_parse(link.row.input, link.row.n_input, "stored input", &link.input, &err);
    if (code) {
        free_link(&link);
        return mxc_fault_set(fault, code == MXC_E_NOMEM ? code : MXC_E_IO, NULL, "%s", err.message);
    }
    *out = link;
    return MXC_OK;
}

/* Items of all links from the oldest on; newest first in links. */
static json_t *join(const struct link *links, size_t n) {
    json_t *items = json_array();
    for (size_t i = n; items && i-- > 0;) {
        if (json_array_extend(items, links[i].input) ||
            json_array_extend(items, json_object_get(links[i].response, "output"))) {
            json_decref(items);
            items = NULL;
        }
    }
    return items;
}

/* The items of the response and of all that it continues. */
static enum mxc_code read_chain(struct mxc_exchange *x, const unsigned char *owner, const char *id,
                                json_t **history, struct mxc_fault *fault) {
    static const char name[] = "previous_response_id";
    struct link *links = NULL;
    size_t n = 0, capacity = 0, bytes = 0;
    char next[MXC_STORED_ID];
    enum mxc_code code = MXC_OK;
    if (!mxc_responses_store(x->server->responses))
        return mxc_fault_set(fault, MXC_E_ARG, name,
                             "%s: this server stores no responses (--no-store); send the whole "
                             "conversation in input",
                             name);
    (void)snprintf(next, sizeof next, "%s", strlen(id) < sizeof next ? id : "?");
    while (next[0] && !code) {
        if (n == capacity) {
            capacity = capacity ? 2 * capacity : 8;
            struct link *grown = mxc_mem_realloc(links, capacity, sizeof *grown);
            if (!grown) {
                code = nomem(fault);
                break;
            }
            links = grown;
        }
        code = load(x, owner, next, &links[n], fault);
        if (code == MXC_E_NOT_FOUND)
            code = mxc_fault_set(fault, MXC_E_ARG, name,
                                 "%s: there is no response \"%.64s\" (any more)", name, next);
        if (code)
            break;
        struct mxc_stored *row = &links[n++].row;
        bytes += row->n_response + row->n_input;
        memcpy(next, row->previous, sizeof next);
        mxc_stored_fini(row);
        if (n == MAX_CHAIN || bytes > MAX_CHAIN_BYTES)
            code = mxc_fault_set(fault, MXC_E_ARG, name,
                                 "%s: the conversation has more than %d responses or %d MiB", name,
                                 MAX_CHAIN, MAX_CHAIN_BYTES >> 20);
    }
    if (!code && !(*history = join(links, n)))
        code = nomem(fault);
    for (size_t i = 0; i < n; i++)
        free_link(&links[i]);
    mxc_mem_free(links);
    return code;
}

/* The request with what it continues; previous: the id of that, or NULL. */
static enum mxc_code read_request(struct mxc_exchange *x, unsigned char owner[MXC_STORED_OWNER],
                                  const char **previous, struct mxc_responses_request *request,
                                  struct mxc_fault *fault) {
    json_t *history = NULL;
    enum mxc_code code = mxc_responses_previous(x->json, previous, fault);
    if (!code)
        code = owner_of(x, owner, fault);
    if (!code && *previous)
        code = read_chain(x, owner, *previous, &history, fault);
    if (!code)
        code = mxc_responses_read(x->json, history, request, fault);
    json_decref(history);
    return code;
}

enum mxc_code mxc_count_response_tokens(struct mxc_exchange *x, struct mxc_fault *fault) {
    struct mxc_responses_request request;
    unsigned char owner[MXC_STORED_OWNER];
    const char *previous = NULL;
    int32_t n_prompt = 0;
    enum mxc_code code = read_request(x, owner, &previous, &request, fault);
    if (code)
        return code;
    code = mxc_dialect_count(x, &request.dialect, &n_prompt, fault);
    mxc_responses_request_fini(&request);
    if (!code)
        mxc_reply_json(
            x, 200,
            json_pack("{s:s,s:i}", "object", "response.input_tokens", "input_tokens", n_prompt));
    return code;
}

enum mxc_code mxc_post_responses(struct mxc_exchange *x, struct mxc_fault *fault) {
    struct mxc_responses_request request;
    struct mxc_responses *all = x->server->responses;
    struct mxc_responses_state *state = NULL;
    unsigned char owner[MXC_STORED_OWNER];
    const char *previous = NULL;
    enum mxc_code code = read_request(x, owner, &previous, &request, fault);
    if (code)
        return code;
    request.store = request.store && mxc_responses_store(all);
    state = mxc_responses_state_new(all, &request);
    if (state) {
        memcpy(state->owner, owner, sizeof owner);
        if (previous)
            (void)snprintf(state->previous, sizeof state->previous, "%s", previous);
        code = mxc_dialect_start(x, &request.dialect, &mxc_responses_format, state, NULL, fault);
    } else {
        code = nomem(fault);
    }
    mxc_responses_request_fini(&request);
    return code;
}

/* ---- stored responses */

enum mxc_code mxc_get_response(struct mxc_exchange *x, struct mxc_fault *fault) {
    unsigned char owner[MXC_STORED_OWNER];
    struct link link;
    const char *stream = mxc_exchange_query(x, "stream");
    if (stream && strcmp(stream, "false") != 0)
        return mxc_fault_set(fault, MXC_E_UNSUPPORTED, "stream",
                             "stream: a stored response is complete; read it without");
    enum mxc_code code = owner_of(x, owner, fault);
    if (!code)
        code = load(x, owner, x->tail, &link, fault);
    if (code)
        return code;
    mxc_reply_text(x, 200, "application/json; charset=utf-8", link.row.response,
                   link.row.n_response);
    link.row.response = NULL;
    free_link(&link);
    return MXC_OK;
}

enum mxc_code mxc_delete_response(struct mxc_exchange *x, struct mxc_fault *fault) {
    struct mxc_response_store *store = mxc_responses_store(x->server->responses);
    unsigned char owner[MXC_STORED_OWNER];
    struct mxc_err err;
    enum mxc_code code = owner_of(x, owner, fault);
    if (!code && !store)
        code = mxc_fault_status(fault, MXC_E_NOT_FOUND, 404,
                                "there is no response \"%.64s\": this server stores none", x->tail);
    if (code)
        return code;
    code = mxc_response_store_remove(store, owner, x->tail, &err);
    if (code == MXC_E_NOT_FOUND)
        return mxc_fault_status(fault, code, 404, "%s", err.message);
    if (code)
        return mxc_fault_from(fault, &err, NULL);
    mxc_reply_json(x, 200,
                   json_pack("{s:s,s:s,s:b}", "id", x->tail, "object", "response", "deleted", 1));
    return MXC_OK;
}

enum mxc_code mxc_cancel_response(struct mxc_exchange *x, struct mxc_fault *fault) {
    unsigned char owner[MXC_STORED_OWNER];
    struct link link;
    enum mxc_code code = owner_of(x, owner, fault);
    if (code)
        return code;
    if (mxc_responses_cancel(x->server->responses, owner, x->tail)) {
        mxc_reply_json(x, 200,
                       json_pack("{s:s,s:s,s:s,s:[]}", "id", x->tail, "object", "response",
                                 "status", "cancelled", "output"));
        return MXC_OK;
    }
    if ((code = load(x, owner, x->tail, &link, fault)))
        return code;
    free_link(&link);
    return mxc_fault_set(fault, MXC_E_ARG, NULL,
                         "the response is complete: only one that is being streamed can be "
                         "cancelled");
}

/* ---- input items */

static enum mxc_code read_limit(const struct mxc_exchange *x, int64_t *limit,
                                struct mxc_fault *fault) {
    const char *text = mxc_exchange_query(x, "limit");
    *limit = 20;
    if (text && (!mxc_parse_i64(text, limit) || *limit < 1 || *limit > 100))
        return mxc_fault_set(fault, MXC_E_ARG, "limit", "limit: not a number from 1 to 100");
    return MXC_OK;
}

/* The page of the items behind `after`, in the order asked for. */
static enum mxc_code make_page(const struct mxc_exchange *x, const json_t *items, json_t **out,
                               struct mxc_fault *fault) {
    const char *order = mxc_exchange_query(x, "order"), *after = mxc_exchange_query(x, "after");
    size_t n = json_array_size(items), first = 0;
    int64_t limit;
    enum mxc_code code = read_limit(x, &limit, fault);
    if (code)
        return code;
    bool ascending = order && !strcmp(order, "asc");
    if (order && !ascending && strcmp(order, "desc") != 0)
        return mxc_fault_set(fault, MXC_E_ARG, "order", "order: not asc or desc");
    json_t *page = json_array();
    for (size_t i = 0; after && i <= n; i++) {
        const json_t *item = json_array_get(items, ascending ? i : n - 1 - i);
        const char *id = json_string_value(json_object_get(item, "id"));
        first = i + 1;
        if (id && !strcmp(id, after))
            break;
        if (i == n)
            code = mxc_fault_set(fault, MXC_E_ARG, "after", "after: there is no item \"%.64s\"",
                                 after);
    }
    for (size_t i = first; i < n && !code && (int64_t)json_array_size(page) < limit; i++)
        if (json_array_append(page, json_array_get(items, ascending ? i : n - 1 - i)))
            code = nomem(fault);
    if (!code && !page)
        code = nomem(fault);
    if (code) {
        json_decref(page);
        return code;
    }
    size_t count = json_array_size(page);
    const json_t *head = json_array_get(page, 0), *last = json_array_get(page, count - 1);
    *out = json_pack("{s:s,s:o,s:s?,s:s?,s:b}", "object", "list", "data", page, "first_id",
                     json_string_value(json_object_get(head, "id")), "last_id",
                     json_string_value(json_object_get(last, "id")), "has_more", first + count < n);
    return MXC_OK;
}

enum mxc_code mxc_get_response_items(struct mxc_exchange *x, struct mxc_fault *fault) {
    unsigned char owner[MXC_STORED_OWNER];
    struct link link;
    json_t *page = NULL;
    enum mxc_code code = owner_of(x, owner, fault);
    if (!code)
        code = load(x, owner, x->tail, &link, fault);
    if (code)
        return code;
    code = make_page(x, link.input, &page, fault);
    free_link(&link);
    if (!code)
        mxc_reply_json(x, 200, page);
    return code;
}
