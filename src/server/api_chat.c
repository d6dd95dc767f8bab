/* OpenAI's chat completions: /v1/chat/completions, whole and as a stream of chunks.
 * A stream: one chunk with the role for every choice; a chunk per delta (content,
 * reasoning_content, tool_calls); one with finish_reason and llama-server's timings for every
 * choice; with stream_options.include_usage one without choices; [DONE]. */
#define _GNU_SOURCE
#include "base/mem.h"
#include "server/api.h"
#include "server/sse.h"

#include <string.h>

static void put_head(const struct mxc_job *job, const char *object, struct mxc_buf *out) {
    (void)mxc_buf_printf(out,
                         "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", job->id,
                         object, (long long)job->created);
    mxc_put_json_text(out, mxc_str_of(job->params.info.name));
    (void)mxc_buf_puts(out, ",\"system_fingerprint\":\"mlxcel-" MLXCEL_VERSION "\"");
}

/* A chunk up to its delta's members. */
static void open_chunk(const struct mxc_job *job, const struct mxc_choice *c, struct mxc_buf *out) {
    mxc_sse_begin(out, NULL);
    put_head(job, "chat.completion.chunk", out);
    (void)mxc_buf_printf(out, ",\"choices\":[{\"index\":%d,\"delta\":{", c->index);
}

static void close_chunk(const struct mxc_job *job, const struct mxc_piece *piece,
                        const char *finish, struct mxc_buf *out) {
    (void)mxc_buf_puts(out, "},\"logprobs\":");
    if (job->params.logprobs && piece && piece->id >= 0) {
        (void)mxc_buf_puts(out, "{\"content\":[");
        mxc_put_logprobs(out, job->params.chat, piece);
        (void)mxc_buf_puts(out, "],\"refusal\":null}");
    } else {
        (void)mxc_buf_puts(out, "null");
    }
    if (finish)
        (void)mxc_buf_printf(out, ",\"finish_reason\":\"%s\"}]", finish);
    else
        (void)mxc_buf_puts(out, ",\"finish_reason\":null}]");
}

static void end_chunk(struct mxc_buf *out) {
    (void)mxc_buf_putc(out, '}');
    mxc_sse_end(out);
}

static void begin(struct mxc_job *job, struct mxc_buf *out) {
    for (int i = 0; i < job->n_choices; i++) {
        open_chunk(job, &job->choices[i], out);
        (void)mxc_buf_puts(out, "\"role\":\"assistant\",\"content\":\"\"");
        close_chunk(job, NULL, NULL, out);
        end_chunk(out);
    }
}

static void progress(struct mxc_job *job, const struct mxc_choice *c, const struct mxc_piece *p,
                     struct mxc_buf *out) {
    open_chunk(job, c, out);
    close_chunk(job, NULL, NULL, out);
    (void)mxc_buf_printf(out, ",\"prompt_progress\":{\"total\":%d,\"cache\":%d,\"processed\":%d}",
                         p->n_total, p->n_cached, p->n_done);
    end_chunk(out);
}

static void put_call(const struct mxc_delta *d, struct mxc_buf *out) {
    (void)mxc_buf_printf(out, "\"tool_calls\":[{\"index\":%zu,", d->call);
    if (d->kind == MXC_DELTA_CALL) {
        (void)mxc_buf_puts(out, "\"id\":");
        mxc_put_json_text(out, mxc_str_of(d->call_id));
        (void)mxc_buf_puts(out, ",\"type\":\"function\",\"function\":{\"name\":");
        mxc_put_json_text(out, mxc_str_of(d->call_name));
        (void)mxc_buf_puts(out, ",\"arguments\":\"\"}}]");
    } else {
        (void)mxc_buf_puts(out, "\"function\":{\"arguments\":");
        mxc_put_json_text(out, d->text);
        (void)mxc_buf_puts(out, "}}]");
    }
}

static void delta(struct mxc_job *job, struct mxc_choice *c, const struct mxc_delta *d,
                  struct mxc_buf *out) {
    open_chunk(job, c, out);
    if (d->kind == MXC_DELTA_CALL || d->kind == MXC_DELTA_ARGUMENTS) {
        put_call(d, out);
    } else {
        (void)mxc_buf_puts(out, d->kind == MXC_DELTA_THOUGHT ? "\"reasoning_content\":"
                                                             : "\"content\":");
        mxc_put_json_text(out, d->text);
    }
    close_chunk(job, d->piece, NULL, out);
    if (job->params.return_tokens && d->piece)
        (void)mxc_buf_printf(out, ",\"tokens\":[%d]", d->piece->id);
    end_chunk(out);
}

static void done(struct mxc_job *job, struct mxc_choice *c, struct mxc_buf *out) {
    open_chunk(job, c, out);
    close_chunk(job, NULL, mxc_choice_finish(c), out);
    (void)mxc_buf_puts(out, ",\"timings\":");
    mxc_put_timings(out, c);
    end_chunk(out);
}

static void fail(struct mxc_job *job, const struct mxc_fault *fault, struct mxc_buf *out) {
    json_t *body = mxc_fault_json(fault, MXC_API_OPENAI, job->x->id);
    mxc_sse_begin(out, NULL);
    mxc_put_json(out, body);
    mxc_sse_end(out);
    json_decref(body);
}

static void end(struct mxc_job *job, struct mxc_buf *out) {
    if (job->params.include_usage) {
        mxc_sse_begin(out, NULL);
        put_head(job, "chat.completion.chunk", out);
        (void)mxc_buf_puts(out, ",\"choices\":[],\"usage\":");
        mxc_put_usage(out, job);
        end_chunk(out);
    }
    mxc_sse_begin(out, NULL);
    (void)mxc_buf_puts(out, "[DONE]");
    mxc_sse_end(out);
}

static struct mxc_str text_of(const struct mxc_buf *buf) {
    return (struct mxc_str){mxc_buf_text(buf), buf->length};
}

static void put_message(const struct mxc_choice *c, struct mxc_buf *out) {
    (void)mxc_buf_puts(out, "{\"role\":\"assistant\",\"content\":");
    if (c->n_calls && !c->answer.length)
        (void)mxc_buf_puts(out, "null");
    else
        mxc_put_json_text(out, text_of(&c->answer));
    (void)mxc_buf_puts(out, ",\"refusal\":null");
    if (c->thought.length) {
        (void)mxc_buf_puts(out, ",\"reasoning_content\":");
        mxc_put_json_text(out, text_of(&c->thought));
    }
    for (size_t i = 0; i < c->n_calls; i++) {
        (void)mxc_buf_puts(out, i ? "," : ",\"tool_calls\":[");
        (void)mxc_buf_puts(out, "{\"id\":");
        mxc_put_json_text(out, mxc_str_of(c->calls[i].id));
        (void)mxc_buf_puts(out, ",\"type\":\"function\",\"function\":{\"name\":");
        mxc_put_json_text(out, mxc_str_of(c->calls[i].name));
        (void)mxc_buf_puts(out, ",\"arguments\":");
        mxc_put_json_text(out, text_of(&c->calls[i].arguments));
        (void)mxc_buf_puts(out, "}}");
    }
    (void)mxc_buf_puts(out, c->n_calls ? "]}" : "}");
}

static void put_choice(const struct mxc_job *job, const struct mxc_choice *c, struct mxc_buf *out) {
    (void)mxc_buf_printf(out, "{\"index\":%d,\"message\":", c->index);
    put_message(c, out);
    (void)mxc_buf_puts(out, ",\"logprobs\":");
    if (job->params.logprobs) {
        (void)mxc_buf_puts(out, "{\"content\":[");
        for (const struct mxc_piece *p = c->pieces; p; p = p->next) {
            if (p != c->pieces)
                (void)mxc_buf_putc(out, ',');
            mxc_put_logprobs(out, job->params.chat, p);
        }
        (void)mxc_buf_puts(out, "],\"refusal\":null}");
    } else {
        (void)mxc_buf_puts(out, "null");
    }
    (void)mxc_buf_printf(out, ",\"finish_reason\":\"%s\"", mxc_choice_finish(c));
    if (job->params.return_tokens) {
        (void)mxc_buf_puts(out, ",\"tokens\":[");
        for (const struct mxc_piece *p = c->pieces; p; p = p->next)
            (void)mxc_buf_printf(out, "%s%d", p == c->pieces ? "" : ",", p->id);
        (void)mxc_buf_putc(out, ']');
    }
    (void)mxc_buf_putc(out, '}');
}

static void whole(struct mxc_job *job, struct mxc_buf *out) {
    put_head(job, "chat.completion", out);
    (void)mxc_buf_puts(out, ",\"choices\":[");
    for (int i = 0; i < job->n_choices; i++) {
        if (i)
            (void)mxc_buf_putc(out, ',');
        put_choice(job, &job->choices[i], out);
    }
    (void)mxc_buf_puts(out, "],\"usage\":");
    mxc_put_usage(out, job);
    (void)mxc_buf_puts(out, ",\"timings\":");
    mxc_put_timings(out, &job->choices[0]);
    (void)mxc_buf_putc(out, '}');
}

static const struct mxc_format format = {.id_prefix = "chatcmpl-",
                                         .begin = begin,
                                         .progress = progress,
                                         .delta = delta,
                                         .done = done,
                                         .fault = fail,
                                         .end = end,
                                         .whole = whole};

enum mxc_code mxc_post_chat(struct mxc_exchange *x, struct mxc_fault *fault) {
    struct mxc_params params;
    struct mxc_constraint *constraint = NULL;
    struct mxc_chat_input input = {.variables = NULL};
    struct mxc_prompts prompts = {NULL, 0, NULL};
    enum mxc_code code = mxc_params_init(x, x->json, MXC_FIELDS_CHAT, &params, fault);
    if (!code)
        code = mxc_constraint_read(x, x->json, true, &params, &constraint, fault);
    if (!code)
        code = mxc_chat_input_read(x, x->json, params.chat, constraint, &input, fault);
    if (!code)
        code = mxc_constraint_budget(&params, input.budget, &constraint, fault);
    if (!code)
        code = mxc_chat_input_build(&params, &input, &prompts, fault);
    if (code) {
        mxc_params_fini(&params);
        mxc_constraint_free(constraint);
    } else {
        params.gen.no_split = input.no_split;
        const struct mxc_job_start start = {.params = &params,
                                            .constraint = constraint,
                                            .format = &format,
                                            .prompts = prompts.items,
                                            .n_prompts = prompts.n};
        code = mxc_job_start(x, &start, fault);
    }
    json_decref(input.variables);
    mxc_prompts_fini(&prompts);
    return code;
}
