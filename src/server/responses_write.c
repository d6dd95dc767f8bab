/* Answers in the shape of OpenAI's responses, whole and as a stream of events, each with its
 * sequence_number:
 *   response.created, response.in_progress;
 *   per output item output_item.added, for texts content_part.added, the deltas, and their done
 *   events up to output_item.done;
 *   response.completed, .incomplete or .failed with the whole response, which is stored before.
 * Output items follow each other as the model produces them: reasoning, message, function_call. A
 * cancelled answer ends with response.incomplete and the status cancelled. */
#define _GNU_SOURCE
#include "base/mem.h"
#include "server/api.h"
#include "server/responses.h"
#include "server/sse.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_LOGPROBS = 256 << 20 };

struct mxc_responses_state *mxc_responses_state_new(struct mxc_responses *all,
                                                    struct mxc_responses_request *request) {
    struct mxc_responses_state *s = mxc_mem_zalloc(1, sizeof *s);
    json_t *output = json_array();
    if (!s || !output) {
        mxc_mem_free(s);
        json_decref(output);
        return NULL;
    }
    s->all = all;
    s->echo = request->echo;
    s->items = request->items;
    request->echo = request->items = NULL;
    s->output = output;
    s->store = request->store;
    mxc_buf_init(&s->logprobs, MAX_LOGPROBS);
    atomic_init(&s->cancelled, false);
    return s;
}

static void free_state(void *state) {
    struct mxc_responses_state *s = state;
    mxc_responses_forget(s);
    json_decref(s->echo);
    json_decref(s->items);
    json_decref(s->output);
    mxc_buf_fini(&s->logprobs);
    mxc_mem_free(s);
}

/* ---- the response object; NULL: out of memory */

static json_t *usage_of(const struct mxc_job *job) {
    struct mxc_usage u;
    mxc_job_usage(job, &u);
    return json_pack("{s:I,s:{s:I},s:I,s:{s:I},s:I}", "input_tokens", (json_int_t)u.prompt,
                     "input_tokens_details", "cached_tokens", (json_int_t)u.cached, "output_tokens",
                     (json_int_t)u.generated, "output_tokens_details", "reasoning_tokens",
                     (json_int_t)u.reasoning, "total_tokens", (json_int_t)(u.prompt + u.generated));
}

/* A sampling number as a client would write it: floats have some seven digits. */
static json_t *number(float value) {
    return json_real(round((double)value * 1e6) / 1e6);
}

static json_t *response_of(const struct mxc_job *job, const char *status, const char *error) {
    const struct mxc_responses_state *s = job->state;
    const struct mxc_sampling *sampling = &job->params.gen.request.sampling;
    bool over = strcmp(status, "in_progress") != 0;
    json_t *r = json_pack("{s:s,s:s,s:I,s:s,s:b,s:s,s:s}", "id", job->id, "object", "response",
                          "created_at", (json_int_t)job->created, "status", status, "background", 0,
                          "model", job->params.info.name, "service_tier", "default");
    bool ok = r && !json_object_update(r, s->echo) &&
              !json_object_set_new(r, "store", json_boolean(s->store)) &&
              !json_object_set_new(
                  r, "error",
                  error ? json_pack("{s:s,s:s}", "code", "server_error", "message", error)
                        : json_null()) &&
              !json_object_set_new(r, "incomplete_details",
                                   strcmp(status, "incomplete") != 0
                                       ? json_null()
                                       : json_pack("{s:s}", "reason", "max_output_tokens")) &&
              !json_object_set_new(r, "output", over ? json_incref(s->output) : json_array()) &&
              !json_object_set_new(r, "usage", over ? usage_of(job) : json_null());
    if (ok && json_is_null(json_object_get(r, "temperature")))
        ok = !json_object_set_new(r, "temperature", number(sampling->temperature));
    if (ok && json_is_null(json_object_get(r, "top_p")))
        ok = !json_object_set_new(r, "top_p", number(sampling->top_p));
    if (ok)
        return r;
    json_decref(r);
    return NULL;
}

/* The finished response, stored. */
static json_t *final_response(struct mxc_job *job, const char *status, const char *error) {
    struct mxc_responses_state *s = job->state;
    json_t *r = response_of(job, status, error);
    if (r && s->store && !mxc_responses_keep(s, job, r)) {
        s->store = false;
        if (json_object_set_new(r, "store", json_false())) {
            json_decref(r);
            return NULL;
        }
    }
    return r;
}

/* ---- output items */

static struct mxc_str tail_of(const struct mxc_buf *buf, size_t start) {
    start = start < buf->length ? start : buf->length;
    return (struct mxc_str){mxc_buf_text(buf) + start, buf->length - start};
}

static struct mxc_str item_text(const struct mxc_responses_state *s, const struct mxc_choice *c) {
    return tail_of(s->kind == MXC_DELTA_THOUGHT ? &c->thought : &c->answer, s->start);
}

static json_t *logprobs_of(const struct mxc_responses_state *s) {
    struct mxc_buf text;
    mxc_buf_init(&text, MAX_LOGPROBS + 2);
    (void)mxc_buf_putc(&text, '[');
    (void)mxc_buf_append(&text, mxc_buf_text(&s->logprobs), s->logprobs.length);
    (void)mxc_buf_putc(&text, ']');
    json_t *list = text.failed || s->logprobs.failed
                       ? NULL
                       : json_loadb(mxc_buf_text(&text), text.length, 0, NULL);
    mxc_buf_fini(&text);
    return list;
}

/* The part of a message or a thought. */
static json_t *part_of(const struct mxc_responses_state *s, struct mxc_str text) {
    if (s->kind == MXC_DELTA_THOUGHT)
        return json_pack("{s:s,s:s%}", "type", "reasoning_text", "text", text.ptr, text.length);
    return json_pack("{s:s,s:[],s:o,s:s%}", "type", "output_text", "annotations", "logprobs",
                     logprobs_of(s), "text", text.ptr, text.length);
}

/* The open item; bare: as it is when it begins. */
static json_t *item_of(const struct mxc_responses_state *s, const struct mxc_choice *c, bool bare,
                       const char *status) {
    if (s->kind == MXC_DELTA_CALL) {
        const struct mxc_call *call = &c->calls[s->call];
        return json_pack("{s:s,s:s,s:s,s:s,s:s,s:s%}", "id", s->item, "type", "function_call",
                         "status", status, "call_id", call->id, "name", call->name, "arguments",
                         bare ? "" : mxc_buf_text(&call->arguments),
                         bare ? (size_t)0 : call->arguments.length);
    }
    json_t *content = json_array();
    if (!bare && json_array_append_new(content, part_of(s, item_text(s, c)))) {
        json_decref(content);
        return NULL;
    }
    if (s->kind == MXC_DELTA_THOUGHT)
        return json_pack("{s:s,s:s,s:[],s:o,s:s}", "id", s->item, "type", "reasoning", "summary",
                         "content", content, "status", status);
    return json_pack("{s:s,s:s,s:s,s:s,s:o}", "id", s->item, "type", "message", "status", status,
                     "role", "assistant", "content", content);
}

static void start_item(const struct mxc_job *job, struct mxc_responses_state *s,
                       enum mxc_delta_kind kind, size_t start, size_t call) {
    static const char *const prefixes[] = {"msg", "rs", "fc", "fc"};
    const char *hex = strchr(job->id, '_');
    s->open = true;
    s->kind = kind;
    s->start = start;
    s->call = call;
    mxc_buf_clear(&s->logprobs);
    (void)snprintf(s->item, sizeof s->item, "%s_%so%zu", prefixes[kind], hex ? hex + 1 : job->id,
                   json_array_size(s->output));
}

/* Whether an answer has a message though it has no text. */
static bool has_empty_message(const struct mxc_choice *c) {
    return !c->answer.length && !c->n_calls && !(c->thought.length && c->reason == MXC_DONE_LENGTH);
}

/* ---- streams */

static void open_event(struct mxc_responses_state *s, const char *name, struct mxc_buf *out) {
    mxc_sse_begin(out, name);
    (void)mxc_buf_printf(out, "{\"type\":\"%s\",\"sequence_number\":%d", name, s->sequence++);
}

static void close_event(struct mxc_buf *out) {
    (void)mxc_buf_putc(out, '}');
    mxc_sse_end(out);
}

/* Takes value. */
static void put_member(const char *name, json_t *value, struct mxc_buf *out) {
    (void)mxc_buf_printf(out, ",\"%s\":", name);
    mxc_responses_put(out, value);
    json_decref(value);
}

static void put_text(const char *name, struct mxc_str text, struct mxc_buf *out) {
    (void)mxc_buf_printf(out, ",\"%s\":", name);
    mxc_put_json_text(out, text);
}

/* An event of the open item, with its place. */
static void open_item_event(struct mxc_responses_state *s, const char *name, bool in_part,
                            struct mxc_buf *out) {
    open_event(s, name, out);
    (void)mxc_buf_printf(out, ",\"item_id\":\"%s\",\"output_index\":%zu", s->item,
                         json_array_size(s->output));
    if (in_part)
        (void)mxc_buf_puts(out, ",\"content_index\":0");
}

static void put_response(struct mxc_responses_state *s, const char *name, json_t *response,
                         struct mxc_buf *out) {
    open_event(s, name, out);
    put_member("response", response, out);
    close_event(out);
}

static void begin(struct mxc_job *job, struct mxc_buf *out) {
    struct mxc_responses_state *s = job->state;
    mxc_responses_run(s, job);
    put_response(s, "response.created", response_of(job, "in_progress", NULL), out);
    put_response(s, "response.in_progress", response_of(job, "in_progress", NULL), out);
}

static void put_item(struct mxc_responses_state *s, const char *name, json_t *item,
                     struct mxc_buf *out) {
    open_event(s, name, out);
    (void)mxc_buf_printf(out, ",\"output_index\":%zu", json_array_size(s->output));
    put_member("item", item, out);
    close_event(out);
}

static void put_part(struct mxc_responses_state *s, const char *name, struct mxc_str text,
                     struct mxc_buf *out) {
    open_item_event(s, name, true, out);
    put_member("part", part_of(s, text), out);
    close_event(out);
}

/* Ends the open item and moves it to the output. */
static void end_item(struct mxc_responses_state *s, const struct mxc_choice *c, const char *status,
                     struct mxc_buf *out) {
    if (!s->open)
        return;
    if (s->kind == MXC_DELTA_CALL) {
        const struct mxc_call *call = &c->calls[s->call];
        open_item_event(s, "response.function_call_arguments.done", false, out);
        put_text("name", mxc_str_of(call->name), out);
        put_text("arguments", tail_of(&call->arguments, 0), out);
        close_event(out);
    } else {
        bool thought = s->kind == MXC_DELTA_THOUGHT;
        open_item_event(s, thought ? "response.reasoning_text.done" : "response.output_text.done",
                        true, out);
        put_text("text", item_text(s, c), out);
        if (!thought)
            put_member("logprobs", logprobs_of(s), out);
        close_event(out);
        put_part(s, "response.content_part.done", item_text(s, c), out);
    }
    json_t *item = item_of(s, c, false, status);
    put_item(s, "response.output_item.done", json_incref(item), out);
    if (json_array_append_new(s->output, item))
        out->failed = true;
    s->open = false;
}

static void begin_item(struct mxc_job *job, const struct mxc_choice *c, const struct mxc_delta *d,
                       struct mxc_buf *out) {
    struct mxc_responses_state *s = job->state;
    const struct mxc_buf *from = d->kind == MXC_DELTA_THOUGHT ? &c->thought : &c->answer;
    size_t start = from->length > d->text.length ? from->length - d->text.length : 0;
    end_item(s, c, "completed", out);
    start_item(job, s, d->kind, start, d->call);
    put_item(s, "response.output_item.added", item_of(s, c, true, "in_progress"), out);
    if (d->kind != MXC_DELTA_CALL)
        put_part(s, "response.content_part.added", (struct mxc_str){"", 0}, out);
}

/* Log probabilities of a delta's token, also kept for the item. */
static void put_delta_logprobs(const struct mxc_job *job, const struct mxc_delta *d,
                               struct mxc_buf *out) {
    struct mxc_responses_state *s = job->state;
    (void)mxc_buf_puts(out, ",\"logprobs\":[");
    if (job->params.logprobs && d->piece && d->piece->id >= 0) {
        size_t before = out->length;
        mxc_put_logprobs(out, job->params.chat, d->piece);
        if (s->logprobs.length)
            (void)mxc_buf_putc(&s->logprobs, ',');
        (void)mxc_buf_append(&s->logprobs, mxc_buf_text(out) + before, out->length - before);
    }
    (void)mxc_buf_putc(out, ']');
}

static void delta(struct mxc_job *job, struct mxc_choice *c, const struct mxc_delta *d,
                  struct mxc_buf *out) {
    struct mxc_responses_state *s = job->state;
    bool arguments = d->kind == MXC_DELTA_ARGUMENTS;
    bool same = s->open && (arguments ? s->kind == MXC_DELTA_CALL && s->call == d->call
                                      : s->kind == d->kind && d->kind != MXC_DELTA_CALL);
    bool empty = d->kind != MXC_DELTA_CALL && !d->text.length;
    if (s->over || (empty && !(same && d->kind == MXC_DELTA_TEXT)) || (arguments && !same))
        return;
    if (!same)
        begin_item(job, c, d, out);
    if (d->kind == MXC_DELTA_CALL)
        return;
    open_item_event(s,
                    arguments                      ? "response.function_call_arguments.delta"
                    : d->kind == MXC_DELTA_THOUGHT ? "response.reasoning_text.delta"
                                                   : "response.output_text.delta",
                    !arguments, out);
    put_text("delta", d->text, out);
    if (d->kind == MXC_DELTA_TEXT)
        put_delta_logprobs(job, d, out);
    close_event(out);
}

static void done(struct mxc_job *job, struct mxc_choice *c, struct mxc_buf *out) {
    struct mxc_responses_state *s = job->state;
    bool cut = c->reason == MXC_DONE_LENGTH;
    const struct mxc_delta nothing = {.kind = MXC_DELTA_TEXT, .text = {"", 0}};
    if (has_empty_message(c))
        begin_item(job, c, &nothing, out);
    end_item(s, c, cut ? "incomplete" : "completed", out);
    s->over = true;
    put_response(s, cut ? "response.incomplete" : "response.completed",
                 final_response(job, cut ? "incomplete" : "completed", NULL), out);
}

static void fail(struct mxc_job *job, const struct mxc_fault *fault, struct mxc_buf *out) {
    struct mxc_responses_state *s = job->state;
    bool cancelled = atomic_load(&s->cancelled);
    end_item(s, &job->choices[0], "incomplete", out);
    s->over = true;
    put_response(s, cancelled ? "response.incomplete" : "response.failed",
                 final_response(job, cancelled ? "cancelled" : "failed",
                                cancelled ? NULL : fault->err.message),
                 out);
}

static void end(struct mxc_job *job, struct mxc_buf *out) {
    (void)job;
    (void)out;
}

/* ---- whole answers */

/* The log probabilities that a stream would have sent with the message. */
static void collect_logprobs(const struct mxc_job *job, const struct mxc_choice *c) {
    struct mxc_responses_state *s = job->state;
    bool begun = false;
    if (!job->params.logprobs)
        return;
    for (const struct mxc_piece *p = c->pieces; p; p = p->next) {
        begun = begun || p->answer.length;
        if (!begun || p->thought.length)
            continue;
        if (s->logprobs.length)
            (void)mxc_buf_putc(&s->logprobs, ',');
        mxc_put_logprobs(&s->logprobs, job->params.chat, p);
    }
}

static bool keep_item(const struct mxc_job *job, enum mxc_delta_kind kind, size_t call, bool last) {
    struct mxc_responses_state *s = job->state;
    const struct mxc_choice *c = &job->choices[0];
    start_item(job, s, kind, 0, call);
    if (kind == MXC_DELTA_TEXT)
        collect_logprobs(job, c);
    bool cut = last && c->reason == MXC_DONE_LENGTH;
    return !json_array_append_new(s->output,
                                  item_of(s, c, false, cut ? "incomplete" : "completed"));
}

static void whole(struct mxc_job *job, struct mxc_buf *out) {
    const struct mxc_choice *c = &job->choices[0];
    bool message = c->answer.length || has_empty_message(c), ok = true;
    if (c->thought.length)
        ok = keep_item(job, MXC_DELTA_THOUGHT, 0, !message && !c->n_calls);
    if (ok && message)
        ok = keep_item(job, MXC_DELTA_TEXT, 0, !c->n_calls);
    for (size_t i = 0; i < c->n_calls && ok; i++)
        ok = keep_item(job, MXC_DELTA_CALL, i, i + 1 == c->n_calls);
    json_t *response =
        ok ? final_response(job, c->reason == MXC_DONE_LENGTH ? "incomplete" : "completed", NULL)
           : NULL;
    mxc_responses_put(out, response);
    json_decref(response);
}

const struct mxc_format mxc_responses_format = {.id_prefix = "resp_",
                                                .keep_whole = true,
                                                .begin = begin,
                                                .delta = delta,
                                                .done = done,
                                                .fault = fail,
                                                .end = end,
                                                .whole = whole,
                                                .free_state = free_state};
