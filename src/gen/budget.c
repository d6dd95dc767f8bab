/* The budget follows the text of the accepted tokens with a splitter of its own (reasoning.h), so
 * it knows marks however they are cut into tokens. When the thought has used its tokens, and no
 * character is half said, only the next id of the closing mark is left a chance, id by id. */
#define _GNU_SOURCE
#include "gen/budget.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

enum { MAX_WAIT = 4, MAX_PIECES = 1 << 20 };

/* ---- what a request says */

static bool is_absent(const json_t *value) {
    return !value || json_is_null(value);
}

struct effort {
    const char *name, *told; /* told: to a template that asks */
    int32_t budget;
};
static const struct effort efforts[] = {{"none", "low", 0},   {"minimal", "low", 256},
                                        {"low", "low", 1024}, {"medium", "medium", 4096},
                                        {"high", "high", -1}, {"xhigh", "high", -1}};

static enum mxc_code read_effort(const json_t *value, const struct effort **out,
                                 struct mxc_err *err) {
    const char *name = json_string_value(value);
    if (is_absent(value))
        return MXC_OK;
    for (size_t i = 0; name && i < sizeof efforts / sizeof *efforts; i++)
        if (!strcmp(efforts[i].name, name)) {
            *out = &efforts[i];
            return MXC_OK;
        }
    return mxc_err_set(err, MXC_E_ARG,
                       "reasoning_effort: none of \"none\", \"minimal\", \"low\", \"medium\", "
                       "\"high\", \"xhigh\"");
}

/* on: -1 not said, 0, 1. */
static enum mxc_code read_thinking(const json_t *value, int *on, int64_t *budget,
                                   struct mxc_err *err) {
    const json_t *tokens = json_object_get(value, "budget_tokens");
    const char *type = json_string_value(json_object_get(value, "type"));
    if (is_absent(value))
        return MXC_OK;
    if (json_is_boolean(value)) {
        *on = json_is_true(value);
        return MXC_OK;
    }
    if (!json_is_object(value))
        return mxc_err_set(err, MXC_E_ARG, "thinking: not an object");
    if (!type || (strcmp(type, "enabled") != 0 && strcmp(type, "disabled") != 0 &&
                  strcmp(type, "adaptive") != 0))
        return mxc_err_set(err, MXC_E_ARG,
                           "thinking.type: none of \"enabled\", \"disabled\", \"adaptive\"");
    if (!is_absent(tokens) && (!json_is_integer(tokens) || json_integer_value(tokens) < 0))
        return mxc_err_set(err, MXC_E_ARG, "thinking.budget_tokens: not an integer of 0 or more");
    if (strcmp(type, "adaptive") != 0)
        *on = !strcmp(type, "enabled");
    if (!is_absent(tokens) && *on != 0)
        *budget = json_integer_value(tokens);
    return MXC_OK;
}

static enum mxc_code read_kwargs(const json_t *kwargs, int *on, struct mxc_err *err) {
    static const char *const ours[] = {"messages", "tools", "add_generation_prompt"};
    if (is_absent(kwargs))
        return MXC_OK;
    if (!json_is_object(kwargs))
        return mxc_err_set(err, MXC_E_ARG, "chat_template_kwargs: not an object");
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (json_object_get(kwargs, ours[i]))
            return mxc_err_set(err, MXC_E_ARG,
                               "chat_template_kwargs.%s: is the request's own field", ours[i]);
    for (int i = 0; i < 2; i++) {
        const json_t *value = json_object_get(kwargs, i ? "enable_thinking" : "thinking");
        if (json_is_boolean(value))
            *on = json_is_true(value);
    }
    return MXC_OK;
}

static bool knows(const struct mxc_chat *chat, const char *word) {
    return (chat->text && strstr(chat->text, word)) ||
           (chat->tool_text && strstr(chat->tool_text, word));
}

enum mxc_code mxc_thinking_read(const struct mxc_chat *chat,
                                const struct mxc_thinking_request *request,
                                struct mxc_thinking *out, struct mxc_err *err) {
    const struct effort *effort = NULL;
    int on = -1;
    int64_t budget = request->budget;
    enum mxc_code code = read_effort(request->effort, &effort, err);
    if (!code)
        code = read_thinking(request->thinking, &on, &budget, err);
    if (!code && !is_absent(request->enable) && !json_is_boolean(request->enable))
        code = mxc_err_set(err, MXC_E_ARG, "enable_thinking: not true or false");
    if (!code && json_is_boolean(request->enable))
        on = json_is_true(request->enable);
    if (!code)
        code = read_kwargs(request->kwargs, &on, err);
    if (code)
        return code;
    if (on < 0 && effort)
        on = effort->budget != 0;
    if (budget < 0 && effort && !knows(chat, "reasoning_effort"))
        budget = effort->budget;
    if (on < 0 && budget == 0)
        on = 0;
    if (on == 0)
        budget = 0;
    json_t *vars = json_object();
    bool ok = vars && (on < 0 || (!json_object_set_new(vars, "enable_thinking", json_boolean(on)) &&
                                  !json_object_set_new(vars, "thinking", json_boolean(on))));
    if (ok && effort)
        ok = !json_object_set_new(vars, "reasoning_effort", json_string(effort->told));
    if (ok && json_is_object(request->kwargs))
        ok = !json_object_update(vars, (json_t *)(uintptr_t)request->kwargs);
    if (!ok) {
        json_decref(vars);
        return mxc_err_nomem(err);
    }
    *out = (struct mxc_thinking){vars, budget < 0 || budget > INT32_MAX ? -1 : (int32_t)budget};
    return MXC_OK;
}

/* ---- the filter */

struct mxc_reasoning_budget {
    struct mxc_reasoning_budget_options o;
    struct mxc_reasoning split;
    struct mxc_ids forced; /* what closes a thought */
    size_t at;             /* of them; 0: not begun */
    bool forcing;          /* apply left forced[at] alone a chance */
    bool said;             /* a token of the answer came: no thought begins any more */
    uint32_t open_id;      /* of the opening mark, when it is one token */
    int64_t used;
    int wait, partial; /* bytes that a character lacks */
    bool failed;       /* memory: the filter of the answer is all that is left */
    struct mxc_buf piece, answer, thought;
};

static uint32_t single(const struct mxc_reasoning_budget *b, const char *mark) {
    return mxc_tokenizer_id(b->o.tokenizer, mxc_str_of(mark));
}

static enum mxc_code encode_forced(struct mxc_reasoning_budget *b, struct mxc_err *err) {
    const char *message = b->o.message ? b->o.message : "";
    struct mxc_text_span spans[] = {{message, strlen(message), false},
                                    {b->o.marks->close, strlen(b->o.marks->close), true},
                                    {"<|start|>assistant", 0, true}};
    if (b->o.marks->channels)
        spans[2].length = strlen(spans[2].text);
    struct mxc_encode_options options = {.parse_special = true};
    return mxc_tokenizer_encode(b->o.tokenizer, spans, 3, options, &b->forced, err);
}

enum mxc_code mxc_reasoning_budget_new(const struct mxc_reasoning_budget_options *options,
                                       struct mxc_reasoning_budget **out, struct mxc_err *err) {
    struct mxc_reasoning_budget *b = mxc_mem_zalloc(1, sizeof *b);
    enum mxc_code code = MXC_OK;
    if (!b)
        return mxc_err_nomem(err);
    b->o = *options;
    b->open_id = MXC_TOK_NO_ID;
    mxc_reasoning_init(&b->split, options->marks, options->inside);
    mxc_buf_init(&b->piece, MAX_PIECES);
    mxc_buf_init(&b->answer, MAX_PIECES);
    mxc_buf_init(&b->thought, MAX_PIECES);
    if (options->marks) {
        b->open_id = single(b, options->marks->open);
        code = encode_forced(b, err);
    }
    if (code) {
        mxc_reasoning_budget_free(b);
        return code;
    }
    *out = b;
    return MXC_OK;
}

void mxc_reasoning_budget_free(struct mxc_reasoning_budget *b) {
    if (!b)
        return;
    mxc_reasoning_fini(&b->split);
    mxc_ids_fini(&b->forced);
    mxc_buf_fini(&b->piece);
    mxc_buf_fini(&b->answer);
    mxc_buf_fini(&b->thought);
    mxc_mem_free(b);
}

static bool before_answer(const struct mxc_reasoning_budget *b) {
    return b->o.marks && !b->failed && !b->split.inside && !b->split.answered && !b->said;
}

static bool is_blank(const struct mxc_buf *text) {
    for (size_t i = 0; i < text->length; i++)
        if (!strchr(" \t\r\n", text->data[i]) || !text->data[i])
            return false;
    return true;
}

/* Whether the next id of the closing mark comes now. */
static bool must_close(struct mxc_reasoning_budget *b) {
    if (b->failed || !b->forced.count)
        return false;
    if (b->at)
        return true;
    if (!b->split.inside || b->o.budget < 0 || b->used < b->o.budget)
        return false;
    return !b->partial || ++b->wait > MAX_WAIT;
}

static void leave_only(float *logits, int32_t vocab, uint32_t id) {
    if (id >= (uint32_t)vocab)
        return;
    float kept = isfinite(logits[id]) ? logits[id] : 0;
    for (int32_t i = 0; i < vocab; i++)
        logits[i] = -INFINITY;
    logits[id] = kept;
}

static void apply(void *user, float *logits, int32_t vocab) {
    struct mxc_reasoning_budget *b = user;
    bool channels = b->o.marks && b->o.marks->channels;
    b->forcing = must_close(b);
    if (b->forcing) {
        leave_only(logits, vocab, b->forced.items[b->at]);
        return;
    }
    if (b->split.inside && !b->failed && !channels)
        return;
    bool has_open = before_answer(b) && b->open_id < (uint32_t)vocab;
    float open = has_open ? logits[b->open_id] : 0;
    if (b->o.answer.apply)
        b->o.answer.apply(b->o.answer.user, logits, vocab);
    if (has_open) /* a thought may come first, whatever the form of the answer */
        logits[b->open_id] = b->o.budget >= 0 && b->used >= b->o.budget ? -INFINITY : open;
}

/* Counts the bytes that the last character of the text lacks. */
static void count_partial(struct mxc_reasoning_budget *b) {
    for (size_t i = 0; i < b->piece.length; i++) {
        unsigned char c = (unsigned char)b->piece.data[i];
        if (c < 0x80 || c >= 0xC0)
            b->partial = c >= 0xF0 ? 3 : c >= 0xE0 ? 2 : c >= 0xC0;
        else
            b->partial -= b->partial > 0;
    }
}

/* Takes the token's text in. */
static bool follow(struct mxc_reasoning_budget *b, uint32_t id) {
    mxc_buf_clear(&b->piece);
    if (mxc_tokenizer_is_special(b->o.tokenizer, id)) {
        struct mxc_str s = mxc_tokenizer_spelling(b->o.tokenizer, id);
        (void)mxc_buf_append(&b->piece, s.ptr, s.length);
    } else {
        (void)mxc_tokenizer_piece(b->o.tokenizer, id, &b->piece);
    }
    mxc_buf_clear(&b->answer);
    mxc_buf_clear(&b->thought);
    count_partial(b);
    return !b->piece.failed && !mxc_reasoning_push(&b->split, mxc_buf_text(&b->piece),
                                                   b->piece.length, &b->answer, &b->thought, NULL);
}

static void accept(void *user, int32_t id) {
    struct mxc_reasoning_budget *b = user;
    bool was_inside = b->split.inside, channels = b->o.marks && b->o.marks->channels;
    bool forced = b->forcing && b->forced.items[b->at] == (uint32_t)id;
    if (b->o.marks && !b->failed && (channels || !b->split.answered))
        b->failed = !follow(b, (uint32_t)id);
    if (was_inside && !b->failed)
        b->used++;
    b->at = forced ? b->at + 1 : 0;
    if (b->at == b->forced.count)
        b->at = 0;
    bool thought = was_inside || b->split.inside || forced;
    b->said = b->said || (!thought && (b->o.answer.accept || !is_blank(&b->piece)));
    if (b->o.answer.accept && (!thought || channels || b->failed))
        b->o.answer.accept(b->o.answer.user, id);
}

struct mxc_logit_filter mxc_reasoning_budget_filter(struct mxc_reasoning_budget *b) {
    return (struct mxc_logit_filter){apply, accept, b};
}

int64_t mxc_reasoning_budget_used(const struct mxc_reasoning_budget *b) {
    return b->used;
}
