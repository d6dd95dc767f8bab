/* A machine of three states - before the answer, inside marks, in the answer - that consumes its
 * withheld text as far as it is certain. Withheld are: white space that may belong to a mark, and
 * the beginning of a mark. */
#define _GNU_SOURCE
#include "gen/reasoning.h"

#include <string.h>

static const struct mxc_reasoning_marks known[] = {
    {.open = "<|channel|>analysis<|message|>",
     .close = "<|end|>",
     .channels = true,
     .shown = {"<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>", "<|call|>",
               "<|return|>"}},
    {.open = "<|channel>thought", .close = "<channel|>", .shown = {"<|channel>"}},
    {.open = "<think>", .close = "</think>"},
    {.open = "<thinking>", .close = "</thinking>"},
    {.open = "[THINK]", .close = "[/THINK]"},
    {.open = "<seed:think>", .close = "</seed:think>"},
    {.open = "<mm:think>", .close = "</mm:think>"},
    {.open = "<|START_THINKING|>", .close = "<|END_THINKING|>"},
    {.open = "<|inner_prefix|>", .close = "<|inner_suffix|>"},
    {.open = "<reasoning>", .close = "</reasoning>"},
};

static bool contains(struct mxc_str text, const char *needle) {
    return text.length && memmem(text.ptr, text.length, needle, strlen(needle)) != NULL;
}

const struct mxc_reasoning_marks *
mxc_reasoning_find(struct mxc_str template_text,
                   bool (*has_token)(void *user, const char *spelling), void *user) {
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (contains(template_text, known[i].open) ||
            (!known[i].channels && contains(template_text, known[i].close)))
            return &known[i];
    for (size_t i = 0; has_token && i < sizeof known / sizeof *known; i++)
        if (has_token(user, known[i].open) && has_token(user, known[i].close))
            return &known[i];
    return NULL;
}

static bool is_space(char c) {
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

bool mxc_reasoning_is_open(const struct mxc_reasoning_marks *marks, struct mxc_str prompt) {
    while (prompt.length && is_space(prompt.ptr[prompt.length - 1]))
        prompt.length--;
    return marks && mxc_str_ends(prompt, marks->open);
}

void mxc_reasoning_init(struct mxc_reasoning *split, const struct mxc_reasoning_marks *marks,
                        bool inside) {
    *split = (struct mxc_reasoning){.marks = marks, .inside = marks && inside};
    split->state = split->inside; /* of channels: 1 is inside a body */
    mxc_buf_init(&split->held, 1 << 24);
}

void mxc_reasoning_fini(struct mxc_reasoning *split) {
    mxc_buf_fini(&split->held);
}

static size_t spaces(const char *text, size_t length) {
    size_t n = 0;
    while (n < length && is_space(text[n]))
        n++;
    return n;
}

enum verdict { NO, MAYBE, YES };

static enum verdict match(const char *mark, const char *text, size_t length, bool more) {
    size_t n = strlen(mark), have = n < length ? n : length;
    if (memcmp(mark, text, have) != 0)
        return NO;
    return have == n ? YES : more ? MAYBE : NO;
}

/* Before the answer: white space, then perhaps an opening mark. false: more text must come. */
static bool before_answer(struct mxc_reasoning *s, const char *text, size_t length, bool more,
                          struct mxc_buf *answer, size_t *consumed) {
    size_t n = spaces(text, length);
    if (n == length && more)
        return false;
    enum verdict verdict = n < length ? match(s->marks->open, text + n, length - n, more) : NO;
    if (verdict == MAYBE)
        return false;
    if (verdict == YES) {
        s->inside = true;
        s->started = false;
        *consumed = n + strlen(s->marks->open);
        return true;
    }
    if (!s->closed)
        (void)mxc_buf_append(answer, text, n);
    s->answered = n < length;
    *consumed = n;
    return true;
}

/* Inside marks: up to the closing mark, which takes the white space before it. */
static size_t inside_marks(struct mxc_reasoning *s, const char *text, size_t length, bool more,
                           struct mxc_buf *thought) {
    size_t at = 0;
    while (at < length) {
        size_t n = spaces(text + at, length - at);
        if (at + n == length) {
            if (more)
                return at;
            break; /* white space at the end of an unclosed thought is dropped */
        }
        enum verdict verdict = match(s->marks->close, text + at + n, length - at - n, more);
        if (verdict == MAYBE)
            return at;
        if (verdict == YES) {
            s->inside = false;
            s->closed = true;
            return at + n + strlen(s->marks->close);
        }
        size_t skip = s->started ? 0 : n;
        (void)mxc_buf_append(thought, text + at + skip, n + 1 - skip);
        s->started = true;
        at += n + 1;
    }
    return length;
}

static enum mxc_code consume(struct mxc_reasoning *s, bool more, struct mxc_buf *answer,
                             struct mxc_buf *thought, struct mxc_err *err) {
    const char *text = mxc_buf_text(&s->held);
    size_t at = 0, length = s->held.length;
    if (s->marks->channels)
        at = mxc_channels_consume(s, text, length, more, answer, thought);
    while (at < length && !s->marks->channels) {
        size_t n = length - at;
        if (s->answered) {
            (void)mxc_buf_append(answer, text + at, n);
        } else if (!s->inside) {
            if (!before_answer(s, text + at, length - at, more, answer, &n))
                break;
        } else {
            n = inside_marks(s, text + at, length - at, more, thought);
            if (s->inside) { /* what is left waits */
                at += n;
                break;
            }
        }
        at += n;
    }
    size_t rest = length - at;
    if (rest)
        memmove(s->held.data, s->held.data + at, rest);
    s->held.length = rest;
    if (s->held.data)
        s->held.data[rest] = 0;
    enum mxc_code code = mxc_buf_status(answer, err);
    return code ? code : mxc_buf_status(thought, err);
}

enum mxc_code mxc_reasoning_push(struct mxc_reasoning *s, const char *text, size_t length,
                                 struct mxc_buf *answer, struct mxc_buf *thought,
                                 struct mxc_err *err) {
    if (!s->marks || (!s->marks->channels && s->answered && !s->held.length)) {
        (void)mxc_buf_append(answer, text, length);
        return mxc_buf_status(answer, err);
    }
    if (!mxc_buf_append(&s->held, text, length))
        return mxc_buf_status(&s->held, err);
    return consume(s, true, answer, thought, err);
}

enum mxc_code mxc_reasoning_finish(struct mxc_reasoning *s, struct mxc_buf *answer,
                                   struct mxc_buf *thought, struct mxc_err *err) {
    return s->held.length ? consume(s, false, answer, thought, err) : MXC_OK;
}
