/* A request's text side lives in one allocation that its DONE event frees. Text that a stop string
 * cut off ends the engine's request through the event function's answer, so no token is run in
 * vain. */
#define _GNU_SOURCE
#include "gen/generate.h"

#include "base/mem.h"

#include <string.h>

struct generation {
    struct mxc_deltas deltas;
    mxc_gen_event_fn *event;
    void *user;
    struct mxc_pictures *pictures; /* the engine borrows their arrays */
    bool stopped;                  /* by a stop string */
    struct mxc_err err;
    enum mxc_code code; /* of the text side */
};

void mxc_gen_params_init(struct mxc_gen_params *params) {
    *params = (struct mxc_gen_params){.n_stops = 0};
    mxc_request_params_init(&params->request);
}

static bool send_text(struct generation *g, const struct mxc_event *token, uint64_t request) {
    struct mxc_gen_event event = {.kind = MXC_GEN_TEXT, .request = request, .token = token};
    event.answer = (struct mxc_str){mxc_buf_text(&g->deltas.answer), g->deltas.answer.length};
    event.thought = (struct mxc_str){mxc_buf_text(&g->deltas.thought), g->deltas.thought.length};
    event.stop_id = event.stop = -1;
    return g->event(g->user, &event);
}

static void finish(struct generation *g, const struct mxc_event *engine_event) {
    struct mxc_gen_event event = {.kind = MXC_GEN_DONE, .request = engine_event->request};
    event.reason = engine_event->reason;
    event.stop_id = engine_event->stop_id;
    event.err = engine_event->err;
    event.stats = engine_event->stats;
    if (!g->stopped && !g->code && event.reason != MXC_DONE_CANCELLED &&
        event.reason != MXC_DONE_ERROR) {
        g->code = mxc_deltas_finish(&g->deltas, &g->stopped, &g->err);
        if (!g->code && (g->deltas.answer.length || g->deltas.thought.length))
            (void)send_text(g, NULL, engine_event->request);
    }
    if (g->code) {
        event.reason = MXC_DONE_ERROR;
        event.err = &g->err;
    } else if (g->stopped) { /* also when the last token, or its end, completed it */
        event.reason = MXC_DONE_STOP;
        event.stop_id = -1;
    }
    event.stop = g->stopped ? g->deltas.stops.hit : -1;
    (void)g->event(g->user, &event);
    mxc_deltas_fini(&g->deltas);
    mxc_pictures_release(g->pictures);
    mxc_mem_free(g);
}

static bool on_event(void *user, const struct mxc_event *event) {
    struct generation *g = user;
    if (event->kind == MXC_EVENT_DONE) {
        finish(g, event);
        return false;
    }
    if (event->kind == MXC_EVENT_PROGRESS) {
        struct mxc_gen_event progress = {.kind = MXC_GEN_PROGRESS,
                                         .request = event->request,
                                         .token = event,
                                         .stop_id = -1,
                                         .stop = -1};
        return g->event(g->user, &progress);
    }
    g->code = mxc_deltas_push(&g->deltas, (uint32_t)event->id, &g->stopped, &g->err);
    return !g->code && send_text(g, event, event->request) && !g->stopped;
}

static bool holds_any(const char *piece, size_t length, const char *const *texts, size_t n_texts) {
    for (size_t i = 0; i < n_texts; i++)
        if (memmem(piece, length, texts[i], strlen(texts[i])))
            return true;
    return false;
}

/* Ids of texts[i] when it is no single token. */
static enum mxc_code encode_text(const struct mxc_tokenizer *tokenizer, const char *text,
                                 struct mxc_ids *ids, struct mxc_err *err) {
    struct mxc_text_span span = {text, strlen(text), false};
    struct mxc_encode_options options = {.parse_special = false};
    return mxc_tokenizer_encode(tokenizer, &span, 1, options, ids, err);
}

enum mxc_code mxc_gen_breakers(const struct mxc_tokenizer *tokenizer, int32_t vocab,
                               const char *const *texts, size_t n_texts,
                               struct mxc_token_list **lists, int32_t *n_lists,
                               struct mxc_err *err) {
    struct mxc_buf piece;
    struct mxc_ids ids = {0}; /* single tokens, then the ids of the longer ones */
    size_t *ends = mxc_mem_array(n_texts, sizeof *ends), n_ids = mxc_tokenizer_n_ids(tokenizer);
    enum mxc_code code = MXC_OK;
    mxc_buf_init(&piece, 1 << 20);
    if (!ends) {
        code = mxc_err_nomem(err);
        goto out;
    }
    for (uint32_t id = 0; id < n_ids && id < (uint32_t)vocab; id++) {
        mxc_buf_clear(&piece);
        if (!mxc_tokenizer_piece(tokenizer, id, &piece)) {
            code = mxc_buf_status(&piece, err);
            goto out;
        }
        if (holds_any(mxc_buf_text(&piece), piece.length, texts, n_texts) &&
            !mxc_ids_push(&ids, id)) {
            code = mxc_err_nomem(err);
            goto out;
        }
    }
    size_t n_single = ids.count, n = 0;
    for (size_t i = 0; i < n_texts; i++) {
        if ((code = encode_text(tokenizer, texts[i], &ids, err)))
            goto out;
        ends[i] = ids.count;
    }
    size_t most = n_single + n_texts;
    if (most > MXC_MAX_DRY_BREAKERS) {
        code = mxc_err_set(err, MXC_E_LIMIT, "%zu tokens hold a DRY breaker; the limit is %d", most,
                           MXC_MAX_DRY_BREAKERS);
        goto out;
    }
    struct mxc_token_list *made = mxc_mem_alloc(most * sizeof *made + ids.count * sizeof(int32_t));
    if (!made) {
        code = mxc_err_nomem(err);
        goto out;
    }
    int32_t *copy = (int32_t *)(made + most);
    for (size_t i = 0; i < ids.count; i++)
        copy[i] = (int32_t)ids.items[i];
    for (; n < n_single; n++)
        made[n] = (struct mxc_token_list){copy + n, 1};
    for (size_t i = 0, from = n_single; i < n_texts; from = ends[i++])
        if (ends[i] - from > 1 && ends[i] - from <= 64)
            made[n++] = (struct mxc_token_list){copy + from, (int32_t)(ends[i] - from)};
    *lists = made;
    *n_lists = (int32_t)n;
out:
    mxc_buf_fini(&piece);
    mxc_ids_fini(&ids);
    mxc_mem_free(ends);
    return code;
}

static enum mxc_code default_breakers(const struct mxc_chat *chat, int32_t vocab,
                                      struct mxc_sampling *sampling, struct mxc_token_list **lists,
                                      struct mxc_err *err) {
    static const char *const texts[] = {"\n", ":", "\"", "*"};
    int32_t n = 0;
    if (!(sampling->dry_multiplier > 0) || sampling->n_dry_breakers)
        return MXC_OK;
    enum mxc_code code = mxc_gen_breakers(chat->tokenizer, vocab, texts, 4, lists, &n, err);
    if (!code) {
        sampling->dry_breakers = *lists;
        sampling->n_dry_breakers = n;
    }
    return code;
}

enum mxc_code mxc_gen_submit(struct mxc_engine *engine, const struct mxc_chat *chat,
                             const struct mxc_prompt *prompt, const struct mxc_gen_params *params,
                             uint64_t *id, struct mxc_err *err) {
    struct mxc_request_params request = params->request;
    struct mxc_token_list *lists = NULL;
    struct mxc_deltas_options options = {.stops = params->stops,
                                         .n_stops = params->n_stops,
                                         .marks = params->no_split ? NULL : chat->marks,
                                         .inside = params->inside,
                                         .keep_special = params->keep_special,
                                         .shown = params->shown,
                                         .n_shown = params->n_shown};
    if (!params->event)
        return mxc_err_set(err, MXC_E_ARG, "a request needs an event function");
    struct generation *g = mxc_mem_zalloc(1, sizeof *g);
    if (!g)
        return mxc_err_nomem(err);
    g->event = params->event;
    g->user = params->user;
    g->pictures = mxc_pictures_hold(params->pictures);
    enum mxc_code code = mxc_deltas_init(&g->deltas, chat->tokenizer, &options, err);
    if (code) {
        mxc_pictures_release(g->pictures);
        mxc_mem_free(g);
        return code;
    }
    request.event = on_event;
    request.user = g;
    if (!request.eos_ids) {
        request.eos_ids = chat->eos_ids;
        request.n_eos_ids = chat->n_eos_ids;
    }
    code = default_breakers(chat, mxc_engine_vocab(engine), &request.sampling, &lists, err);
    if (!code)
        code = mxc_engine_submit(engine, prompt, &request, id, err);
    mxc_mem_free(lists);
    if (code) {
        mxc_deltas_fini(&g->deltas);
        mxc_pictures_release(g->pictures);
        mxc_mem_free(g);
    }
    return code;
}
