/* llama-server's own routes: /completion, /infill, /tokenize, /detokenize, /apply-template. The
 * shapes are the ones its documentation shows. */
#define _GNU_SOURCE
#include "base/mem.h"
#include "gen/prompt.h"
#include "server/api.h"
#include "server/fields.h"
#include "server/sse.h"

#include <string.h>

enum { MAX_TEXT = 1 << 30, MAX_TOKENIZE = 8 << 20 };

static enum mxc_code nomem(struct mxc_fault *fault) {
    return mxc_fault_set(fault, MXC_E_NOMEM, NULL, "out of memory");
}

/* ---- /completion */

static void put_probability(const struct mxc_job *job, const struct mxc_piece *p,
                            struct mxc_buf *out) {
    const struct mxc_chat *chat = job->params.chat;
    (void)mxc_buf_printf(out, "{\"id\":%d,", p->id);
    mxc_put_logprob(out, chat, p->id, p->logprob);
    (void)mxc_buf_puts(out, ",\"top_logprobs\":[");
    for (int32_t i = 0; i < p->n_top; i++) {
        (void)mxc_buf_printf(out, "%s{\"id\":%d,", i ? "," : "", p->top[i].id);
        mxc_put_logprob(out, chat, p->top[i].id, p->top[i].logprob);
        (void)mxc_buf_putc(out, '}');
    }
    (void)mxc_buf_puts(out, "]}");
}

static const char *stop_type(const struct mxc_choice *c) {
    if (c->reason == MXC_DONE_LENGTH)
        return "limit";
    return c->stop >= 0 ? "word" : c->stop_id >= 0 ? "eos" : "none";
}

/* The members of a finished choice but for its content. */
static void put_final(const struct mxc_choice *c, struct mxc_buf *out) {
    const struct mxc_job *job = c->job;
    const struct mxc_sampling *s = &job->params.gen.request.sampling;
    (void)mxc_buf_puts(out, ",\"stop\":true,\"model\":");
    mxc_put_json_text(out, mxc_str_of(job->params.info.name));
    (void)mxc_buf_printf(out,
                         ",\"tokens_predicted\":%d,\"tokens_evaluated\":%d,\"tokens_cached\":%d,"
                         "\"truncated\":false,\"stop_type\":\"%s\",\"stopping_word\":",
                         c->stats.n_generated, c->stats.n_prompt, c->stats.n_cached, stop_type(c));
    /* the exchange keeps the JSON that the strings lie in */
    mxc_put_json_text(out, mxc_str_of(c->stop >= 0 ? job->params.gen.stops[c->stop] : NULL));
    (void)mxc_buf_puts(out, ",\"generation_settings\":{");
    (void)mxc_buf_printf(out, "\"n_predict\":%d,\"seed\":%llu,\"temperature\":",
                         job->params.gen.request.max_tokens, (unsigned long long)s->seed);
    mxc_put_number(out, (double)s->temperature);
    (void)mxc_buf_printf(out, ",\"top_k\":%d,\"top_p\":", s->top_k);
    mxc_put_number(out, (double)s->top_p);
    (void)mxc_buf_puts(out, ",\"min_p\":");
    mxc_put_number(out, (double)s->min_p);
    (void)mxc_buf_puts(out, "},\"timings\":");
    mxc_put_timings(out, c);
}

static void progress(struct mxc_job *job, const struct mxc_choice *c, const struct mxc_piece *p,
                     struct mxc_buf *out) {
    (void)job;
    mxc_sse_begin(out, NULL);
    (void)mxc_buf_printf(out,
                         "{\"index\":%d,\"content\":\"\",\"tokens\":[],\"stop\":false,"
                         "\"prompt_progress\":{\"total\":%d,\"cache\":%d,\"processed\":%d}}",
                         c->index, p->n_total, p->n_cached, p->n_done);
    mxc_sse_end(out);
}

static void delta(struct mxc_job *job, struct mxc_choice *c, const struct mxc_delta *d,
                  struct mxc_buf *out) {
    mxc_sse_begin(out, NULL);
    (void)mxc_buf_printf(out, "{\"index\":%d,\"content\":", c->index);
    mxc_put_json_text(out, d->text);
    if (d->piece && d->piece->id >= 0)
        (void)mxc_buf_printf(out, ",\"tokens\":[%d],\"stop\":false", d->piece->id);
    else
        (void)mxc_buf_puts(out, ",\"tokens\":[],\"stop\":false");
    if (d->piece && d->piece->id >= 0 && job->params.logprobs) {
        (void)mxc_buf_puts(out, ",\"completion_probabilities\":[");
        put_probability(job, d->piece, out);
        (void)mxc_buf_putc(out, ']');
    }
    (void)mxc_buf_putc(out, '}');
    mxc_sse_end(out);
}

static void done(struct mxc_job *job, struct mxc_choice *c, struct mxc_buf *out) {
    (void)job;
    mxc_sse_begin(out, NULL);
    (void)mxc_buf_printf(out, "{\"index\":%d,\"content\":\"\",\"tokens\":[]", c->index);
    put_final(c, out);
    (void)mxc_buf_putc(out, '}');
    mxc_sse_end(out);
}

static void fail(struct mxc_job *job, const struct mxc_fault *fault, struct mxc_buf *out) {
    json_t *body = mxc_fault_json(fault, MXC_API_LLAMA, job->x->id);
    mxc_sse_begin(out, NULL);
    mxc_put_json(out, body);
    mxc_sse_end(out);
    json_decref(body);
}

static void end(struct mxc_job *job, struct mxc_buf *out) {
    (void)job;
    (void)out;
}

static void put_whole(const struct mxc_job *job, const struct mxc_choice *c, struct mxc_buf *out) {
    (void)mxc_buf_printf(out, "{\"index\":%d,\"content\":", c->index);
    mxc_put_json_text(out, (struct mxc_str){mxc_buf_text(&c->answer), c->answer.length});
    (void)mxc_buf_puts(out, ",\"tokens\":[");
    for (const struct mxc_piece *p = c->pieces; p && job->params.return_tokens; p = p->next)
        (void)mxc_buf_printf(out, "%s%d", p == c->pieces ? "" : ",", p->id);
    (void)mxc_buf_putc(out, ']');
    if (job->params.logprobs) {
        (void)mxc_buf_puts(out, ",\"completion_probabilities\":[");
        for (const struct mxc_piece *p = c->pieces; p; p = p->next) {
            (void)mxc_buf_puts(out, p == c->pieces ? "" : ",");
            put_probability(job, p, out);
        }
        (void)mxc_buf_putc(out, ']');
    }
    put_final(c, out);
    (void)mxc_buf_putc(out, '}');
}

static void whole(struct mxc_job *job, struct mxc_buf *out) {
    if (job->n_choices > 1)
        (void)mxc_buf_putc(out, '[');
    for (int i = 0; i < job->n_choices; i++) {
        (void)mxc_buf_puts(out, i ? "," : "");
        put_whole(job, &job->choices[i], out);
    }
    if (job->n_choices > 1)
        (void)mxc_buf_putc(out, ']');
}

static const struct mxc_format format = {.id_prefix = "cmpl-",
                                         .progress = progress,
                                         .delta = delta,
                                         .done = done,
                                         .fault = fail,
                                         .end = end,
                                         .whole = whole};

static enum mxc_code start(struct mxc_exchange *x, struct mxc_params *params,
                           struct mxc_constraint *constraint, const struct mxc_prompts *prompts,
                           struct mxc_fault *fault) {
    params->gen.no_split = true;
    const struct mxc_job_start s = {.params = params,
                                    .constraint = constraint,
                                    .format = &format,
                                    .prompts = prompts->items,
                                    .n_prompts = prompts->n};
    return mxc_job_start(x, &s, fault);
}

enum mxc_code mxc_post_completion(struct mxc_exchange *x, struct mxc_fault *fault) {
    struct mxc_params params;
    struct mxc_constraint *constraint = NULL;
    struct mxc_prompts prompts = {NULL, 0, NULL};
    enum mxc_code code = mxc_params_init(x, x->json, MXC_FIELDS_LLAMA, &params, fault);
    if (!code)
        code = mxc_constraint_read(x, x->json, false, &params, &constraint, fault);
    if (!code)
        code = mxc_prompts_read(x->json, &params, false, true, &prompts, fault);
    if (code) {
        mxc_params_fini(&params);
        mxc_constraint_free(constraint);
    } else {
        code = start(x, &params, constraint, &prompts, fault);
    }
    mxc_prompts_fini(&prompts);
    return code;
}

/* ---- /infill */

/* Spellings of the three tokens that models use to be asked for the middle. */
static const char *const fim[][3] = {
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},
    {"<fim-prefix>", "<fim-suffix>", "<fim-middle>"},
    {"<|fim\xE2\x96\x81"
     "begin|>",
     "<|fim\xE2\x96\x81hole|>",
     "<|fim\xE2\x96\x81"
     "end|>"},
    {"\xE2\x96\x81<PRE>", "\xE2\x96\x81<SUF>", "\xE2\x96\x81<MID>"},
    {"[PREFIX]", "[SUFFIX]", "[MIDDLE]"}};

static bool fim_ids(const struct mxc_chat *chat, uint32_t ids[3]) {
    for (size_t i = 0; i < sizeof fim / sizeof *fim; i++) {
        int n = 0;
        while (n < 3 &&
               (ids[n] = mxc_tokenizer_id(chat->tokenizer, mxc_str_of(fim[i][n]))) != MXC_TOK_NO_ID)
            n++;
        if (n == 3)
            return true;
    }
    return false;
}

static enum mxc_code add_plain(const struct mxc_chat *chat, struct mxc_str text,
                               struct mxc_ids *ids, struct mxc_fault *fault) {
    struct mxc_err err;
    struct mxc_text_span span = {text.ptr, text.length, false};
    struct mxc_encode_options options = {.add_special = false};
    enum mxc_code code = mxc_tokenizer_encode(chat->tokenizer, &span, 1, options, ids, &err);
    return code ? mxc_fault_set(fault, code, NULL, "%s", err.message) : MXC_OK;
}

static enum mxc_code infill_ids(const struct mxc_exchange *x, const struct mxc_params *params,
                                struct mxc_ids *ids, struct mxc_fault *fault) {
    const struct mxc_chat *chat = params->chat;
    struct mxc_str prefix = {"", 0}, suffix = {"", 0}, prompt = {"", 0};
    uint32_t marks[3];
    enum mxc_code code = mxc_field_text(x->json, "input_prefix", &prefix, fault);
    if (!code)
        code = mxc_field_text(x->json, "input_suffix", &suffix, fault);
    if (!code)
        code = mxc_field_text(x->json, "prompt", &prompt, fault);
    if (!code)
        code = mxc_prompts_check_bytes(params, prefix.length + suffix.length + prompt.length,
                                       "input_prefix", fault);
    if (code)
        return code;
    if (!fim_ids(chat, marks))
        return mxc_fault_set(fault, MXC_E_UNSUPPORTED, NULL,
                             "infill: the model has no tokens for a middle to be filled in; "
                             "use /completion");
    if (chat->bos_id >= 0 && !mxc_ids_push(ids, (uint32_t)chat->bos_id))
        return nomem(fault);
    if (!mxc_ids_push(ids, marks[0]))
        return nomem(fault);
    code = add_plain(chat, prefix, ids, fault);
    if (!code && !mxc_ids_push(ids, marks[1]))
        code = nomem(fault);
    if (!code)
        code = add_plain(chat, suffix, ids, fault);
    if (!code && !mxc_ids_push(ids, marks[2]))
        code = nomem(fault);
    return code ? code : add_plain(chat, prompt, ids, fault);
}

enum mxc_code mxc_post_infill(struct mxc_exchange *x, struct mxc_fault *fault) {
    struct mxc_params params;
    struct mxc_constraint *constraint = NULL;
    struct mxc_prompts prompts = {NULL, 0, NULL};
    struct mxc_ids ids = {0};
    enum mxc_code code = mxc_params_init(x, x->json, MXC_FIELDS_LLAMA, &params, fault);
    if (!code)
        code = mxc_constraint_read(x, x->json, false, &params, &constraint, fault);
    if (!code)
        code = infill_ids(x, &params, &ids, fault);
    if (!code)
        code = mxc_prompts_one(&ids, false, &prompts, fault);
    mxc_ids_fini(&ids);
    if (code) {
        mxc_params_fini(&params);
        mxc_constraint_free(constraint);
    } else {
        code = start(x, &params, constraint, &prompts, fault);
    }
    mxc_prompts_fini(&prompts);
    return code;
}

/* ---- /tokenize, /detokenize, /apply-template */

static enum mxc_code chat_of(struct mxc_exchange *x, struct mxc_chat **chat, int32_t *vocab,
                             struct mxc_fault *fault) {
    struct mxc_host_info info;
    int model;
    enum mxc_code code = mxc_params_model(x, x->json, &model, fault);
    if (code)
        return code;
    mxc_host_info(x->server->host, model, &info);
    *chat = mxc_host_chat(x->server->host, model);
    *vocab = info.vocab;
    return MXC_OK;
}

static void reply_made(struct mxc_exchange *x, struct mxc_buf *out) {
    size_t length = out->length;
    char *text = out->failed ? NULL : mxc_buf_take(out);
    mxc_buf_fini(out);
    mxc_reply_text(x, 200, "application/json; charset=utf-8", text, length);
}

/* A token's text, or its bytes when they are no whole characters. */
static void put_piece(struct mxc_buf *out, const struct mxc_chat *chat, uint32_t id) {
    struct mxc_buf bytes;
    mxc_buf_init(&bytes, 1 << 16);
    (void)mxc_tokenizer_piece(chat->tokenizer, id, &bytes);
    if (mxc_utf8_valid(mxc_buf_text(&bytes), bytes.length))
        mxc_put_json_text(out, (struct mxc_str){mxc_buf_text(&bytes), bytes.length});
    else
        mxc_put_token_bytes(out, chat, (int32_t)id);
    mxc_buf_fini(&bytes);
}

enum mxc_code mxc_post_tokenize(struct mxc_exchange *x, struct mxc_fault *fault) {
    struct mxc_chat *chat;
    struct mxc_str content = {NULL, 0};
    struct mxc_ids ids = {0};
    struct mxc_buf out;
    struct mxc_err err;
    bool add_special = false, parse_special = true, pieces = false;
    int32_t vocab;
    enum mxc_code code = mxc_field_text(x->json, "content", &content, fault);
    if (!code)
        code = mxc_field_bool(x->json, "add_special", &add_special, fault);
    if (!code)
        code = mxc_field_bool(x->json, "parse_special", &parse_special, fault);
    if (!code)
        code = mxc_field_bool(x->json, "with_pieces", &pieces, fault);
    if (!code && !content.ptr)
        code = mxc_fault_set(fault, MXC_E_ARG, "content", "content: it is missing");
    if (!code && content.length > MAX_TOKENIZE)
        code = mxc_fault_set(fault, MXC_E_ARG, "content",
                             "content: %zu bytes of text; the limit is %d", content.length,
                             MAX_TOKENIZE);
    if (!code)
        code = chat_of(x, &chat, &vocab, fault);
    if (code)
        return code;
    const struct mxc_encode_options options = {add_special, parse_special};
    if ((code = mxc_chat_text(chat, content.ptr, content.length, options, &ids, &err))) {
        mxc_ids_fini(&ids);
        return mxc_fault_set(fault, code, "content", "content: %s", err.message);
    }
    mxc_buf_init(&out, MAX_TEXT);
    (void)mxc_buf_puts(&out, "{\"tokens\":[");
    for (size_t i = 0; i < ids.count; i++) {
        (void)mxc_buf_printf(&out, pieces ? "%s{\"id\":%u,\"piece\":" : "%s%u", i ? "," : "",
                             ids.items[i]);
        if (pieces) {
            put_piece(&out, chat, ids.items[i]);
            (void)mxc_buf_putc(&out, '}');
        }
    }
    (void)mxc_buf_puts(&out, "]}");
    mxc_ids_fini(&ids);
    reply_made(x, &out);
    return MXC_OK;
}

enum mxc_code mxc_post_detokenize(struct mxc_exchange *x, struct mxc_fault *fault) {
    struct mxc_chat *chat;
    const json_t *list = NULL;
    struct mxc_buf text, out;
    struct mxc_err err;
    int32_t vocab;
    enum mxc_code code = mxc_field_list(x->json, "tokens", &list, fault);
    if (!code && !list)
        code = mxc_fault_set(fault, MXC_E_ARG, "tokens", "tokens: it is missing");
    if (!code)
        code = chat_of(x, &chat, &vocab, fault);
    if (code)
        return code;
    size_t n = json_array_size(list);
    int32_t *ids = mxc_mem_array(n, sizeof *ids);
    if (!ids)
        return nomem(fault);
    mxc_buf_init(&text, MAX_TEXT);
    code = mxc_field_ids(list, "tokens", vocab, ids, fault);
    if (!code && (code = mxc_tokenizer_decode(chat->tokenizer, (const uint32_t *)(const void *)ids,
                                              n, false, &text, &err)))
        (void)mxc_fault_set(fault, code, "tokens", "tokens: %s", err.message);
    mxc_mem_free(ids);
    if (!code) {
        mxc_buf_init(&out, MAX_TEXT);
        (void)mxc_buf_puts(&out, "{\"content\":");
        mxc_put_json_text(&out, (struct mxc_str){mxc_buf_text(&text), text.length});
        (void)mxc_buf_putc(&out, '}');
        reply_made(x, &out);
    }
    mxc_buf_fini(&text);
    return code;
}

enum mxc_code mxc_post_apply_template(struct mxc_exchange *x, struct mxc_fault *fault) {
    struct mxc_chat *chat;
    struct mxc_chat_input input = {.variables = NULL};
    struct mxc_jinja_result result;
    struct mxc_err err;
    struct mxc_buf out;
    json_t *messages = NULL;
    const json_t *tools = NULL;
    int32_t vocab;
    enum mxc_code code = chat_of(x, &chat, &vocab, fault);
    if (!code)
        code = mxc_params_refused(x->json, MXC_FIELDS_TEMPLATE, fault);
    if (!code)
        code = mxc_field_list(x->json, "tools", &tools, fault);
    if (!code)
        code = mxc_chat_input_read(x, x->json, chat, NULL, &input, fault);
    if (code)
        return code;
    const bool generation = !input.no_generation_prompt && !input.continue_final;
    if (tools && json_object_set(input.variables, "tools", (json_t *)(uintptr_t)tools))
        code = nomem(fault);
    if (code)
        goto out;
    code = mxc_prompt_normalise(chat, input.messages, input.variables, &messages, &err);
    if (!code &&
        (json_object_set(input.variables, "messages", messages) ||
         json_object_set_new(input.variables, "add_generation_prompt", json_boolean(generation))))
        code = mxc_err_nomem(&err);
    if (!code)
        code = mxc_chat_render(chat, input.variables, NULL, &result, &err);
    if (!code && input.continue_final &&
        (code = mxc_prompt_cut_final(messages, result.text, &result.length, &err)))
        mxc_jinja_result_fini(&result);
    if (code) {
        (void)mxc_fault_from(fault, &err, "messages");
        goto out;
    }
    mxc_buf_init(&out, MAX_TEXT);
    (void)mxc_buf_puts(&out, "{\"prompt\":");
    mxc_put_json_text(&out, (struct mxc_str){result.text, result.length});
    (void)mxc_buf_putc(&out, '}');
    mxc_jinja_result_fini(&result);
    reply_made(x, &out);
out:
    json_decref(messages);
    json_decref(input.variables);
    return code;
}
