/* What conversions of request families share: building the chat request, naming places in the
 * client's own request, and starting the generation. */
#define _GNU_SOURCE
#include "server/dialect.h"

#include "base/mem.h"
#include "server/api.h"
#include "server/fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum mxc_code nomem(struct mxc_fault *fault) {
    return mxc_fault_set(fault, MXC_E_NOMEM, NULL, "out of memory");
}

enum mxc_code mxc_dialect_init(struct mxc_dialect *d, const char *list, const char *head,
                               const struct mxc_dialect_name *names, struct mxc_fault *fault) {
    *d = (struct mxc_dialect){.list = list,
                              .head = head,
                              .history = "previous_response_id",
                              .names = names,
                              .chat = json_pack("{s:[]}", "messages")};
    d->messages = json_object_get(d->chat, "messages");
    return d->messages ? MXC_OK : nomem(fault);
}

void mxc_dialect_fini(struct mxc_dialect *d) {
    json_decref(d->chat);
    mxc_mem_free(d->origins);
    *d = (struct mxc_dialect){.chat = NULL};
}

enum mxc_code mxc_dialect_add(struct mxc_dialect *d, json_t *message, int32_t origin,
                              struct mxc_fault *fault) {
    if (d->n_origins == d->capacity) {
        size_t more = d->capacity ? 2 * d->capacity : 16;
        int32_t *grown = mxc_mem_realloc(d->origins, more, sizeof *grown);
        if (!grown) {
            json_decref(message);
            return nomem(fault);
        }
        d->origins = grown;
        d->capacity = more;
    }
    if (json_array_append_new(d->messages, message))
        return nomem(fault);
    d->origins[d->n_origins++] = origin;
    return MXC_OK;
}

enum mxc_code mxc_dialect_set(struct mxc_dialect *d, const char *name, json_t *value,
                              struct mxc_fault *fault) {
    return json_object_set_new(d->chat, name, value) ? nomem(fault) : MXC_OK;
}

enum mxc_code mxc_dialect_copy(struct mxc_dialect *d, const json_t *json, const char *const *names,
                               struct mxc_fault *fault) {
    for (; *names; names++) {
        json_t *value = json_object_get(json, *names);
        if (value && json_object_set(d->chat, *names, value))
            return nomem(fault);
    }
    return MXC_OK;
}

/* ---- names */

/* Appends at most n bytes of text to a place. */
static void append(struct mxc_place *place, const char *text, size_t n) {
    size_t used = strlen(place->text);
    (void)snprintf(place->text + used, sizeof place->text - used, "%.*s", (int)n, text);
}

/* "messages[3]..." by where message 3 came from. Returns the rest of the path. */
static const char *rename_message(const struct mxc_dialect *d, const char *path,
                                  struct mxc_place *out) {
    char *end = NULL;
    unsigned long long i = strtoull(path + 9, &end, 10);
    int32_t origin = i < d->n_origins ? d->origins[i] : 0;
    if (origin < 0) {
        append(out, origin == MXC_FROM_HEAD ? d->head : d->history, 64);
        return end + strcspn(end, " :"); /* what stands inside has no name there */
    }
    *out = mxc_place_item(&(struct mxc_place){""}, (size_t)origin);
    struct mxc_place item = *out;
    out->text[0] = 0;
    append(out, d->list, 64);
    append(out, item.text, sizeof item.text);
    return end + (*end == ']');
}

/* Own name of the path, as far as it reaches. */
static void rename_path(const struct mxc_dialect *d, const char *path, struct mxc_place *out) {
    out->text[0] = 0;
    if (!strncmp(path, "messages[", 9)) {
        path = rename_message(d, path, out);
    } else if (!strcmp(path, "messages")) {
        append(out, d->list, 64);
        return;
    }
    while (*path) {
        const struct mxc_dialect_name *n = d->names;
        size_t length = 1;
        for (; n->chat; n++) {
            length = strlen(n->chat);
            bool at_start = n->chat[0] == '.' || !out->text[0];
            char behind = strncmp(path, n->chat, length) ? 'x' : path[length];
            if (at_start && (!behind || behind == '.' || behind == '['))
                break;
        }
        if (!n->chat)
            length = 1;
        append(out, n->chat ? n->own : path, n->chat ? 64 : 1);
        path += length;
    }
}

void mxc_dialect_fault(const struct mxc_dialect *d, struct mxc_fault *fault) {
    struct mxc_place own;
    size_t n = strlen(fault->param);
    char rest[sizeof fault->err.message];
    if (!n)
        return;
    rename_path(d, fault->param, &own);
    bool named = !strncmp(fault->err.message, fault->param, n);
    (void)snprintf(rest, sizeof rest, "%s", fault->err.message + (named ? n : 0));
    (void)snprintf(fault->param, sizeof fault->param, "%s", own.text);
    if (named)
        (void)mxc_err_set(&fault->err, fault->err.code, "%s%s", own.text, rest);
}

/* ---- parts */

json_t *mxc_dialect_text(const json_t *text) {
    return json_pack("{s:s,s:O}", "type", "text", "text", text);
}

json_t *mxc_dialect_image(const char *url) {
    return json_pack("{s:s,s:{s:s}}", "type", "image_url", "image_url", "url", url);
}

json_t *mxc_dialect_content(json_t *parts) {
    json_t *text = json_object_get(json_array_get(parts, 0), "text");
    if (json_array_size(parts) != 1 || !text)
        return parts;
    json_incref(text);
    json_decref(parts);
    return text;
}

/* ---- places */

struct mxc_place mxc_place_member(const struct mxc_place *outer, const char *name) {
    struct mxc_place p;
    (void)snprintf(p.text, sizeof p.text, "%.70s%s%.24s", outer ? outer->text : "",
                   outer && outer->text[0] ? "." : "", name);
    return p;
}

struct mxc_place mxc_place_item(const struct mxc_place *outer, size_t i) {
    struct mxc_place p;
    (void)snprintf(p.text, sizeof p.text, "%.70s[%zu]", outer->text, i);
    return p;
}

enum mxc_code mxc_place_missing(const struct mxc_place *place, struct mxc_fault *fault) {
    return mxc_fault_set(fault, MXC_E_ARG, place->text, "%s: it is missing", place->text);
}

enum mxc_code mxc_place_text(const json_t *object, const struct mxc_place *outer, const char *name,
                             bool needed, const json_t **out, struct mxc_fault *fault) {
    const json_t *value = mxc_field(object, name);
    const struct mxc_place place = mxc_place_member(outer, name);
    if (!value && needed)
        return mxc_place_missing(&place, fault);
    if (value && !json_is_string(value))
        return mxc_field_wrong(fault, place.text, "a string", value);
    *out = value;
    return MXC_OK;
}

/* ---- generation */

/* What a started chat request consists of. */
struct ready {
    struct mxc_params params;
    struct mxc_constraint *constraint;
    struct mxc_prompts prompts;
};

static enum mxc_code prepare(struct mxc_exchange *x, const struct mxc_dialect *d, struct ready *r,
                             struct mxc_fault *fault) {
    struct mxc_chat_input input = {.variables = NULL};
    *r = (struct ready){.constraint = NULL};
    enum mxc_code code = mxc_params_init(x, d->chat, MXC_FIELDS_CHAT, &r->params, fault);
    if (!code)
        code = mxc_constraint_read(x, d->chat, true, &r->params, &r->constraint, fault);
    if (!code)
        code = mxc_chat_input_read(x, d->chat, r->params.chat, r->constraint, &input, fault);
    if (!code)
        code = mxc_constraint_budget(&r->params, input.budget, &r->constraint, fault);
    if (!code)
        code = mxc_chat_input_build(&r->params, &input, &r->prompts, fault);
    json_decref(input.variables);
    r->params.gen.no_split = input.no_split;
    if (code) {
        mxc_params_fini(&r->params);
        mxc_constraint_free(r->constraint);
        mxc_dialect_fault(d, fault);
    }
    return code;
}

enum mxc_code mxc_dialect_start(struct mxc_exchange *x, struct mxc_dialect *d,
                                const struct mxc_format *format, void *state, int32_t *n_prompt,
                                struct mxc_fault *fault) {
    struct ready r;
    enum mxc_code code = prepare(x, d, &r, fault);
    if (code) {
        format->free_state(state);
        return code;
    }
    if (n_prompt)
        *n_prompt = r.prompts.items[0].n_ids;
    const struct mxc_job_start start = {.params = &r.params,
                                        .constraint = r.constraint,
                                        .format = format,
                                        .state = state,
                                        .prompts = r.prompts.items,
                                        .n_prompts = r.prompts.n};
    code = mxc_job_start(x, &start, fault);
    if (code)
        mxc_dialect_fault(d, fault);
    mxc_prompts_fini(&r.prompts);
    return code;
}

enum mxc_code mxc_dialect_count(struct mxc_exchange *x, struct mxc_dialect *d, int32_t *n_prompt,
                                struct mxc_fault *fault) {
    struct ready r;
    enum mxc_code code = prepare(x, d, &r, fault);
    if (code)
        return code;
    *n_prompt = r.prompts.items[0].n_ids;
    mxc_params_fini(&r.params);
    mxc_constraint_free(r.constraint);
    mxc_prompts_fini(&r.prompts);
    return MXC_OK;
}
