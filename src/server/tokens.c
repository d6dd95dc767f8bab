/* Tokens, log probabilities, usage and timings as JSON text. */
#include "server/api.h"
#include "server/sse.h"

enum { MAX_PIECE = 1 << 16 };

static void piece_of(const struct mxc_chat *chat, int32_t id, struct mxc_buf *bytes) {
    mxc_buf_init(bytes, MAX_PIECE);
    if (id >= 0)
        (void)mxc_tokenizer_piece(chat->tokenizer, (uint32_t)id, bytes);
}

void mxc_put_token(struct mxc_buf *out, const struct mxc_chat *chat, int32_t id) {
    struct mxc_buf bytes, text;
    uint32_t cp;
    size_t n;
    piece_of(chat, id, &bytes);
    mxc_buf_init(&text, 4 * MAX_PIECE);
    const char *p = mxc_buf_text(&bytes);
    for (size_t i = 0; (n = mxc_utf8_decode(p + i, bytes.length - i, &cp)); i += n)
        (void)mxc_buf_utf8(&text, cp);
    mxc_put_json_text(out, (struct mxc_str){mxc_buf_text(&text), text.length});
    mxc_buf_fini(&bytes);
    mxc_buf_fini(&text);
}

void mxc_put_token_bytes(struct mxc_buf *out, const struct mxc_chat *chat, int32_t id) {
    struct mxc_buf bytes;
    piece_of(chat, id, &bytes);
    const char *p = mxc_buf_text(&bytes);
    (void)mxc_buf_putc(out, '[');
    for (size_t i = 0; i < bytes.length; i++)
        (void)mxc_buf_printf(out, "%s%u", i ? "," : "", (unsigned)(unsigned char)p[i]);
    (void)mxc_buf_putc(out, ']');
    mxc_buf_fini(&bytes);
}

void mxc_put_logprob(struct mxc_buf *out, const struct mxc_chat *chat, int32_t id, float logprob) {
    (void)mxc_buf_puts(out, "\"token\":");
    mxc_put_token(out, chat, id);
    (void)mxc_buf_puts(out, ",\"logprob\":");
    mxc_put_number(out, (double)logprob);
    (void)mxc_buf_puts(out, ",\"bytes\":");
    mxc_put_token_bytes(out, chat, id);
}

void mxc_put_logprobs(struct mxc_buf *out, const struct mxc_chat *chat,
                      const struct mxc_piece *piece) {
    (void)mxc_buf_putc(out, '{');
    mxc_put_logprob(out, chat, piece->id, piece->logprob);
    (void)mxc_buf_puts(out, ",\"top_logprobs\":[");
    for (int32_t i = 0; i < piece->n_top; i++) {
        (void)mxc_buf_puts(out, i ? ",{" : "{");
        mxc_put_logprob(out, chat, piece->top[i].id, piece->top[i].logprob);
        (void)mxc_buf_putc(out, '}');
    }
    (void)mxc_buf_puts(out, "]}");
}

void mxc_put_usage(struct mxc_buf *out, const struct mxc_job *job) {
    struct mxc_usage u;
    mxc_job_usage(job, &u);
    (void)mxc_buf_printf(out,
                         "{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,\"total_tokens\":%lld,"
                         "\"prompt_tokens_details\":{\"cached_tokens\":%lld},"
                         "\"completion_tokens_details\":{\"reasoning_tokens\":%lld}}",
                         (long long)u.prompt, (long long)u.generated,
                         (long long)(u.prompt + u.generated), (long long)u.cached,
                         (long long)u.reasoning);
}

static void put_rate(struct mxc_buf *out, const char *what, int64_t n, uint64_t ns) {
    double ms = (double)ns * 1e-6;
    (void)mxc_buf_printf(out, "\"%s_n\":%lld,\"%s_ms\":%.3f,\"%s_per_token_ms\":", what,
                         (long long)n, what, ms, what);
    mxc_put_number(out, n ? ms / (double)n : 0);
    (void)mxc_buf_printf(out, ",\"%s_per_second\":", what);
    mxc_put_number(out, ms > 0 ? (double)n * 1000 / ms : 0);
}

void mxc_put_timings(struct mxc_buf *out, const struct mxc_choice *c) {
    const struct mxc_request_stats *s = &c->stats;
    (void)mxc_buf_printf(out, "{\"cache_n\":%d,\"queue_ms\":%.3f,", s->n_cached,
                         (double)s->queue_ns * 1e-6);
    put_rate(out, "prompt", s->n_prompt - s->n_cached, s->prefill_ns);
    (void)mxc_buf_putc(out, ',');
    put_rate(out, "predicted", s->n_generated, s->decode_ns);
    (void)mxc_buf_putc(out, '}');
}
