/* OpenAI's completions: /v1/completions. Text, token ids, or a list of either; n answers each.
 * Reasoning is not split off: what is said is the text. */
#define _GNU_SOURCE
#include "base/mem.h"
#include "server/api.h"
#include "server/fields.h"
#include "server/sse.h"

#include <string.h>

static void put_head(const struct mxc_job *job, struct mxc_buf *out) {
    (void)mxc_buf_printf(out,
                         "{\"id\":\"%s\",\"object\":\"text_completion\",\"created\":%lld,"
                         "\"model\":",
                         job->id, (long long)job->created);
    mxc_put_json_text(out, mxc_str_of(job->params.info.name));
    (void)mxc_buf_puts(out, ",\"system_fingerprint\":\"mlxcel-" MLXCEL_VERSION "\"");
}

/* Bytes of a token's text as it counts for text_offset: code points. */
static size_t n_characters(struct mxc_str text) {
    size_t n = 0;
    for (size_t i = 0; i < text.length; i++)
        n += ((unsigned char)text.ptr[i] & 0xC0) != 0x80;
    return n;
}

/* The old logprobs object: four lists of one length, over the pieces from first to (not) last. */
static void put_logprobs(const struct mxc_job *job, const struct mxc_piece *first,
                         const struct mxc_piece *last, size_t offset, struct mxc_buf *out) {
    const struct mxc_chat *chat = job->params.chat;
    const struct mxc_piece *p;
    (void)mxc_buf_puts(out, "{\"tokens\":[");
    for (p = first; p != last; p = p->next) {
        (void)mxc_buf_puts(out, p == first ? "" : ",");
        mxc_put_token(out, chat, p->id);
    }
    (void)mxc_buf_puts(out, "],\"token_logprobs\":[");
    for (p = first; p != last; p = p->next) {
        (void)mxc_buf_puts(out, p == first ? "" : ",");
        mxc_put_number(out, (double)p->logprob);
    }
    (void)mxc_buf_puts(out, "],\"top_logprobs\":[");
    for (p = first; p != last; p = p->next) {
        (void)mxc_buf_puts(out, p == first ? "{" : ",{");
        for (int32_t i = 0; i < p->n_top; i++) {
            (void)mxc_buf_puts(out, i ? "," : "");
            mxc_put_token(out, chat, p->top[i].id);
            (void)mxc_buf_putc(out, ':');
            mxc_put_number(out, (double)p->top[i].logprob);
        }
        (void)mxc_buf_putc(out, '}');
    }
    (void)mxc_buf_puts(out, "],\"text_offset\":[");
    for (p = first; p != last; p = p->next) {
        (void)mxc_buf_printf(out, "%s%zu", p == first ? "" : ",", offset);
        offset += n_characters(p->answer);
    }
    (void)mxc_buf_puts(out, "]}");
}

static void put_chunk(const struct mxc_job *job, struct mxc_choice *c, struct mxc_str text,
                      const struct mxc_piece *piece, const char *finish, struct mxc_buf *out) {
    mxc_sse_begin(out, NULL);
    put_head(job, out);
    (void)mxc_buf_puts(out, ",\"choices\":[{\"text\":");
    mxc_put_json_text(out, text);
    (void)mxc_buf_printf(out, ",\"index\":%d,\"logprobs\":", c->index);
    if (piece && job->params.logprobs && piece->id >= 0)
        put_logprobs(job, piece, piece->next, c->text_offset, out);
    else
        (void)mxc_buf_puts(out, "null");
    c->text_offset += n_characters(text);
    (void)mxc_buf_puts(out, ",\"finish_reason\":");
    if (finish)
        (void)mxc_buf_printf(out, "\"%s\"", finish);
    else
        (void)mxc_buf_puts(out, "null");
    if (job->params.return_tokens && piece && piece->id >= 0)
        (void)mxc_buf_printf(out, ",\"tokens\":[%d]", piece->id);
    (void)mxc_buf_puts(out, "}]");
    if (finish) {
        (void)mxc_buf_puts(out, ",\"timings\":");
        mxc_put_timings(out, c);
    }
    (void)mxc_buf_putc(out, '}');
    mxc_sse_end(out);
}

static void begin(struct mxc_job *job, struct mxc_buf *out) {
    for (int i = 0; i < job->n_choices && job->echoes; i++) {
        struct mxc_choice *c = &job->choices[i];
        put_chunk(job, c, mxc_str_of(job->echoes[c->prompt]), NULL, NULL, out);
    }
}

static void delta(struct mxc_job *job, struct mxc_choice *c, const struct mxc_delta *d,
                  struct mxc_buf *out) {
    put_chunk(job, c, d->text, d->piece, NULL, out);
}

static void done(struct mxc_job *job, struct mxc_choice *c, struct mxc_buf *out) {
    put_chunk(job, c, (struct mxc_str){"", 0}, NULL, mxc_choice_finish(c), out);
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
        put_head(job, out);
        (void)mxc_buf_puts(out, ",\"choices\":[],\"usage\":");
        mxc_put_usage(out, job);
        (void)mxc_buf_putc(out, '}');
        mxc_sse_end(out);
    }
    mxc_sse_begin(out, NULL);
    (void)mxc_buf_puts(out, "[DONE]");
    mxc_sse_end(out);
}

static void put_choice(const struct mxc_job *job, const struct mxc_choice *c, struct mxc_buf *out) {
    struct mxc_buf text;
    size_t offset = 0;
    mxc_buf_init(&text, SIZE_MAX / 4);
    if (job->echoes) {
        (void)mxc_buf_puts(&text, job->echoes[c->prompt]);
        offset = n_characters(mxc_str_of(job->echoes[c->prompt]));
    }
    (void)mxc_buf_append(&text, mxc_buf_text(&c->answer), c->answer.length);
    (void)mxc_buf_puts(out, "{\"text\":");
    mxc_put_json_text(out, (struct mxc_str){mxc_buf_text(&text), text.length});
    out->failed = out->failed || text.failed;
    mxc_buf_fini(&text);
    (void)mxc_buf_printf(out, ",\"index\":%d,\"logprobs\":", c->index);
    if (job->params.logprobs)
        put_logprobs(job, c->pieces, NULL, offset, out);
    else
        (void)mxc_buf_puts(out, "null");
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
    put_head(job, out);
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

static const struct mxc_format format = {.id_prefix = "cmpl-",
                                         .begin = begin,
                                         .delta = delta,
                                         .done = done,
                                         .fault = fail,
                                         .end = end,
                                         .whole = whole};

enum mxc_code mxc_post_completions(struct mxc_exchange *x, struct mxc_fault *fault) {
    struct mxc_params params;
    struct mxc_constraint *constraint = NULL;
    struct mxc_prompts prompts = {NULL, 0, NULL};
    bool echo = false;
    enum mxc_code code = mxc_params_init(x, x->json, MXC_FIELDS_COMPLETION, &params, fault);
    if (!code)
        code = mxc_field_bool(x->json, "echo", &echo, fault);
    if (!code && echo && params.logprobs)
        code = mxc_fault_set(fault, MXC_E_UNSUPPORTED, "echo",
                             "echo: not together with logprobs; the prompt's are not computed");
    if (!code)
        code = mxc_constraint_read(x, x->json, false, &params, &constraint, fault);
    if (!code)
        code = mxc_prompts_read(x->json, &params, echo, false, &prompts, fault);
    if (code) {
        mxc_params_fini(&params);
        mxc_constraint_free(constraint);
    } else {
        params.gen.no_split = true;
        const struct mxc_job_start start = {.params = &params,
                                            .constraint = constraint,
                                            .format = &format,
                                            .prompts = prompts.items,
                                            .n_prompts = prompts.n,
                                            .echoes = prompts.echoes};
        prompts.echoes = NULL;
        code = mxc_job_start(x, &start, fault);
    }
    mxc_prompts_fini(&prompts);
    return code;
}
