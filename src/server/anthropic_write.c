/* Answers in Anthropic's shape, whole and as a stream of events:
 *   message_start, ping; per block content_block_start, content_block_delta ...,
 * content_block_stop; message_delta with the stop reason and the usage; message_stop. An error
 * event ends a stream. Blocks follow each other as the model produces them: thinking, text,
 * tool_use. Thoughts are not signed: the signature is empty, and none is asked for when they come
 * back. */
#define _GNU_SOURCE
#include "server/anthropic.h"

#include "base/mem.h"
#include "server/api.h"
#include "server/sse.h"

static struct mxc_str text_of(const struct mxc_buf *buf) {
    return (struct mxc_str){mxc_buf_text(buf), buf->length};
}

/* input_tokens are those that were not in the cache. */
static void put_usage(const struct mxc_job *job, struct mxc_buf *out) {
    struct mxc_usage u;
    mxc_job_usage(job, &u);
    (void)mxc_buf_printf(out,
                         "{\"input_tokens\":%lld,\"cache_creation_input_tokens\":0,"
                         "\"cache_read_input_tokens\":%lld,\"output_tokens\":%lld}",
                         (long long)(u.prompt - u.cached), (long long)u.cached,
                         (long long)u.generated);
}

/* "stop_reason":...,"stop_sequence":... */
static void put_reason(const struct mxc_job *job, const struct mxc_choice *c, struct mxc_buf *out) {
    bool by_text = c->reason == MXC_DONE_STOP && c->stop >= 0 && job->params.stops;
    const char *reason = c->reason == MXC_DONE_LENGTH ? "max_tokens"
                         : c->n_calls                 ? "tool_use"
                         : by_text                    ? "stop_sequence"
                                                      : "end_turn";
    (void)mxc_buf_printf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":", reason);
    if (by_text && !c->n_calls)
        mxc_put_json_text(out, mxc_str_of(job->params.stops[c->stop]));
    else
        (void)mxc_buf_puts(out, "null");
}

static void put_head(const struct mxc_job *job, struct mxc_buf *out) {
    (void)mxc_buf_printf(
        out, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", job->id);
    mxc_put_json_text(out, mxc_str_of(job->params.info.name));
}

/* ---- streams */

static void open_event(const char *name, struct mxc_buf *out) {
    mxc_sse_begin(out, name);
    (void)mxc_buf_printf(out, "{\"type\":\"%s\"", name);
}

static void close_event(struct mxc_buf *out) {
    (void)mxc_buf_putc(out, '}');
    mxc_sse_end(out);
}

static void begin(struct mxc_job *job, struct mxc_buf *out) {
    const struct mxc_anthropic_state *s = job->state;
    open_event("message_start", out);
    (void)mxc_buf_puts(out, ",\"message\":");
    put_head(job, out);
    (void)mxc_buf_printf(out,
                         ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":{"
                         "\"input_tokens\":%d,\"cache_creation_input_tokens\":0,"
                         "\"cache_read_input_tokens\":0,\"output_tokens\":0}}",
                         s->n_prompt);
    close_event(out);
    open_event("ping", out);
    close_event(out);
}

/* An event of the block that is open, up to its delta's or block's type. */
static void open_block_event(const char *name, const struct mxc_anthropic_state *s,
                             struct mxc_buf *out) {
    open_event(name, out);
    (void)mxc_buf_printf(out, ",\"index\":%d", s->n_blocks - 1);
}

static void end_block(struct mxc_anthropic_state *s, struct mxc_buf *out) {
    if (!s->open)
        return;
    if (s->kind == MXC_DELTA_THOUGHT) {
        open_block_event("content_block_delta", s, out);
        (void)mxc_buf_puts(out, ",\"delta\":{\"type\":\"signature_delta\",\"signature\":\"\"}");
        close_event(out);
    }
    open_block_event("content_block_stop", s, out);
    close_event(out);
    s->open = false;
}

static void begin_block(struct mxc_anthropic_state *s, const struct mxc_delta *d,
                        struct mxc_buf *out) {
    end_block(s, out);
    s->open = true;
    s->kind = d->kind;
    s->call = d->call;
    s->n_blocks++;
    open_block_event("content_block_start", s, out);
    (void)mxc_buf_puts(out, ",\"content_block\":{\"type\":");
    if (d->kind == MXC_DELTA_CALL) {
        (void)mxc_buf_puts(out, "\"tool_use\",\"id\":");
        mxc_put_json_text(out, mxc_str_of(d->call_id));
        (void)mxc_buf_puts(out, ",\"name\":");
        mxc_put_json_text(out, mxc_str_of(d->call_name));
        (void)mxc_buf_puts(out, ",\"input\":{}}");
    } else if (d->kind == MXC_DELTA_THOUGHT) {
        (void)mxc_buf_puts(out, "\"thinking\",\"thinking\":\"\",\"signature\":\"\"}");
    } else {
        (void)mxc_buf_puts(out, "\"text\",\"text\":\"\"}");
    }
    close_event(out);
}

static void delta(struct mxc_job *job, struct mxc_choice *c, const struct mxc_delta *d,
                  struct mxc_buf *out) {
    static const char *const types[] = {"text_delta\",\"text", "thinking_delta\",\"thinking", "",
                                        "input_json_delta\",\"partial_json"};
    struct mxc_anthropic_state *s = job->state;
    (void)c;
    if (s->failed || (d->kind != MXC_DELTA_CALL && !d->text.length))
        return;
    bool same = s->open &&
                (d->kind == MXC_DELTA_ARGUMENTS ? s->kind == MXC_DELTA_CALL && s->call == d->call
                                                : s->kind == d->kind && d->kind != MXC_DELTA_CALL);
    if (!same && d->kind != MXC_DELTA_ARGUMENTS)
        begin_block(s, d, out);
    else if (!same)
        return; /* of a call that is not open: calls do not mix */
    if (d->kind == MXC_DELTA_CALL)
        return;
    open_block_event("content_block_delta", s, out);
    (void)mxc_buf_printf(out, ",\"delta\":{\"type\":\"%s\":", types[d->kind]);
    mxc_put_json_text(out, d->text);
    (void)mxc_buf_putc(out, '}');
    close_event(out);
}

static void done(struct mxc_job *job, struct mxc_choice *c, struct mxc_buf *out) {
    struct mxc_anthropic_state *s = job->state;
    end_block(s, out);
    open_event("message_delta", out);
    (void)mxc_buf_puts(out, ",\"delta\":{");
    put_reason(job, c, out);
    (void)mxc_buf_puts(out, "},\"usage\":");
    put_usage(job, out);
    close_event(out);
}

static void fail(struct mxc_job *job, const struct mxc_fault *fault, struct mxc_buf *out) {
    struct mxc_anthropic_state *s = job->state;
    json_t *body = mxc_fault_json(fault, MXC_API_ANTHROPIC, job->x->id);
    s->failed = true;
    mxc_sse_begin(out, "error");
    mxc_put_json(out, body);
    mxc_sse_end(out);
    json_decref(body);
}

static void end(struct mxc_job *job, struct mxc_buf *out) {
    const struct mxc_anthropic_state *s = job->state;
    if (s->failed)
        return;
    open_event("message_stop", out);
    close_event(out);
}

/* ---- whole answers */

/* The arguments when they are an object; a call that was cut off has none. */
static void put_input(const struct mxc_buf *arguments, struct mxc_buf *out) {
    json_t *value = json_loadb(mxc_buf_text(arguments), arguments->length, 0, NULL);
    if (json_is_object(value))
        (void)mxc_buf_append(out, mxc_buf_text(arguments), arguments->length);
    else
        (void)mxc_buf_puts(out, "{}");
    json_decref(value);
}

static void whole(struct mxc_job *job, struct mxc_buf *out) {
    const struct mxc_choice *c = &job->choices[0];
    const char *comma = "";
    put_head(job, out);
    (void)mxc_buf_puts(out, ",\"content\":[");
    if (c->thought.length) {
        (void)mxc_buf_puts(out, "{\"type\":\"thinking\",\"thinking\":");
        mxc_put_json_text(out, text_of(&c->thought));
        (void)mxc_buf_puts(out, ",\"signature\":\"\"}");
        comma = ",";
    }
    if (c->answer.length) {
        (void)mxc_buf_printf(out, "%s{\"type\":\"text\",\"text\":", comma);
        mxc_put_json_text(out, text_of(&c->answer));
        (void)mxc_buf_putc(out, '}');
        comma = ",";
    }
    for (size_t i = 0; i < c->n_calls; i++, comma = ",") {
        (void)mxc_buf_printf(out, "%s{\"type\":\"tool_use\",\"id\":", comma);
        mxc_put_json_text(out, mxc_str_of(c->calls[i].id));
        (void)mxc_buf_puts(out, ",\"name\":");
        mxc_put_json_text(out, mxc_str_of(c->calls[i].name));
        (void)mxc_buf_puts(out, ",\"input\":");
        put_input(&c->calls[i].arguments, out);
        (void)mxc_buf_putc(out, '}');
    }
    (void)mxc_buf_puts(out, "],");
    put_reason(job, c, out);
    (void)mxc_buf_puts(out, ",\"usage\":");
    put_usage(job, out);
    (void)mxc_buf_putc(out, '}');
}

static void free_state(void *state) {
    struct mxc_anthropic_state *s = state;
    json_decref(s->stops);
    mxc_mem_free(s);
}

const struct mxc_format mxc_anthropic_format = {.id_prefix = "msg_",
                                                .begin = begin,
                                                .delta = delta,
                                                .done = done,
                                                .fault = fail,
                                                .end = end,
                                                .whole = whole,
                                                .free_state = free_state};
