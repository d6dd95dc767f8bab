/* What a server has of responses: the store, and a list of the streams that run, so that they can
 * be cancelled by id. A listed state is freed only after forget, under the list's mutex; cancelling
 * an engine's request that has just ended does nothing. */
#include "server/responses.h"

#include "base/mem.h"
#include "gen/host.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { MAX_TEXT = 1 << 30 };

struct mxc_responses {
    struct mxc_host *host;
    struct mxc_response_store *store;
    pthread_mutex_t mutex;
    struct mxc_responses_state *head;
};

enum mxc_code mxc_responses_new(struct mxc_host *host, struct mxc_response_store *store,
                                struct mxc_responses **all, struct mxc_err *err) {
    struct mxc_responses *a = mxc_mem_zalloc(1, sizeof *a);
    if (!a) {
        mxc_response_store_close(store);
        return mxc_err_nomem(err);
    }
    a->host = host;
    a->store = store;
    pthread_mutex_init(&a->mutex, NULL); /* cannot fail with default attributes */
    *all = a;
    return MXC_OK;
}

void mxc_responses_free(struct mxc_responses *all) {
    if (!all)
        return;
    mxc_response_store_close(all->store);
    pthread_mutex_destroy(&all->mutex);
    mxc_mem_free(all);
}

struct mxc_response_store *mxc_responses_store(struct mxc_responses *all) {
    return all ? all->store : NULL;
}

/* ---- storing */

/* Lists of parts instead of text, and an id. */
static bool complete_item(json_t *item, const char *response, size_t i) {
    const char *type = json_string_value(json_object_get(item, "type"));
    const char *role = json_string_value(json_object_get(item, "role"));
    json_t *content = json_object_get(item, "content");
    char id[MXC_STORED_ID];
    bool message = type && !strcmp(type, "message");
    bool ours = role && !strcmp(role, "assistant");
    if (message && json_is_string(content)) {
        json_t *parts =
            json_pack("[{s:s,s:O}]", "type", ours ? "output_text" : "input_text", "text", content);
        if (json_object_set_new(item, "content", parts))
            return false;
    }
    if (json_is_string(json_object_get(item, "id")))
        return true;
    const char *prefix = message ? "msg" : type && strstr(type, "function") ? "fc" : "item";
    (void)snprintf(id, sizeof id, "%s_%si%zu", prefix, response, i);
    return !json_object_set_new(item, "id", json_string(id));
}

static bool complete_items(json_t *items, const char *response) {
    const char *hex = strchr(response, '_');
    for (size_t i = 0; i < json_array_size(items); i++)
        if (!complete_item(json_array_get(items, i), hex ? hex + 1 : response, i))
            return false;
    return true;
}

static int append(const char *bytes, size_t length, void *buf) {
    return mxc_buf_append(buf, bytes, length) ? 0 : -1;
}

void mxc_responses_put(struct mxc_buf *out, const json_t *value) {
    const size_t flags = JSON_COMPACT | JSON_REAL_PRECISION(15);
    if (!value || json_dump_callback(value, append, out, flags))
        out->failed = true;
}

static char *dump(const json_t *value, size_t *length) {
    struct mxc_buf text;
    mxc_buf_init(&text, MAX_TEXT);
    mxc_responses_put(&text, value);
    *length = text.length;
    char *taken = text.failed ? NULL : mxc_buf_take(&text);
    mxc_buf_fini(&text);
    return taken;
}

bool mxc_responses_keep(struct mxc_responses_state *s, const struct mxc_job *job,
                        const json_t *response) {
    struct mxc_stored row = {.created = job->created};
    struct mxc_err err;
    if (!s->store || !s->all || !s->all->store || !complete_items(s->items, job->id))
        return false;
    (void)snprintf(row.id, sizeof row.id, "%s", job->id);
    (void)snprintf(row.previous, sizeof row.previous, "%s", s->previous);
    row.response = dump(response, &row.n_response);
    row.input = dump(s->items, &row.n_input);
    bool ok =
        row.response && row.input && !mxc_response_store_put(s->all->store, s->owner, &row, &err);
    mxc_stored_fini(&row);
    return ok;
}

/* ---- running */

void mxc_responses_run(struct mxc_responses_state *s, const struct mxc_job *job) {
    struct mxc_responses *all = s->all;
    if (!all)
        return;
    (void)snprintf(s->id, sizeof s->id, "%s", job->id);
    s->request = job->choices[0].id;
    s->model = job->params.model;
    pthread_mutex_lock(&all->mutex);
    s->next = all->head;
    s->back = &all->head;
    if (s->next)
        s->next->back = &s->next;
    all->head = s;
    pthread_mutex_unlock(&all->mutex);
}

void mxc_responses_forget(struct mxc_responses_state *s) {
    if (!s->all)
        return;
    pthread_mutex_lock(&s->all->mutex);
    if (s->back) {
        *s->back = s->next;
        if (s->next)
            s->next->back = s->back;
    }
    s->back = NULL;
    pthread_mutex_unlock(&s->all->mutex);
}

bool mxc_responses_cancel(struct mxc_responses *all, const unsigned char owner[MXC_STORED_OWNER],
                          const char *id) {
    bool found = false;
    uint64_t request = 0;
    int model = 0;
    pthread_mutex_lock(&all->mutex);
    for (struct mxc_responses_state *s = all->head; s && !found; s = s->next) {
        if (strcmp(s->id, id) != 0 || memcmp(s->owner, owner, MXC_STORED_OWNER) != 0)
            continue;
        found = true;
        request = s->request;
        model = s->model;
        atomic_store(&s->cancelled, true);
    }
    pthread_mutex_unlock(&all->mutex);
    if (found)
        mxc_host_cancel(all->host, model, request);
    return found;
}
