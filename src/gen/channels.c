/* Channels (gpt-oss): an answer is a row of messages, each with a header that names its channel and
 * perhaps whom it is to, and a body up to an end mark. Bodies of the channel analysis are the
 * thought, those to a function are passed on as a call in one form, all others are the answer.
 * A text without a header is an answer. Marks begin with a byte that stands in them once. */
#define _GNU_SOURCE
#include "gen/reasoning.h"

#include <string.h>

enum state { FIRST, BODY, HEADER, BETWEEN }; /* FIRST: perhaps a header */
enum { MAX_HEADER = 1024 };
static const char message[] = "<|message|>", start[] = "<|start|>";
static const char *const ends[] = {"<|end|>", "<|call|>", "<|return|>", start};

static bool is_space(char c) {
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* Whether text may begin with the mark; *whole: it does. */
static bool may_be(const char *mark, const char *text, size_t length, bool *whole) {
    size_t n = strlen(mark);
    *whole = length >= n && !memcmp(text, mark, n);
    return *whole || (length < n && !memcmp(text, mark, length));
}

/* The word behind `key` in a header: up to white space or the next mark. */
static struct mxc_str word_after(struct mxc_str header, const char *key) {
    const char *at = header.length ? memmem(header.ptr, header.length, key, strlen(key)) : NULL;
    struct mxc_str word = {NULL, 0};
    if (!at)
        return word;
    word.ptr = at + strlen(key);
    const char *end = header.ptr + header.length;
    while (word.ptr + word.length < end && !is_space(word.ptr[word.length]) &&
           word.ptr[word.length] != '<')
        word.length++;
    return word;
}

static void separate(struct mxc_buf *out, bool *has, bool *apart) {
    if (*has && *apart)
        (void)mxc_buf_puts(out, "\n\n");
    *apart = false;
    *has = true;
}

static void begin_body(struct mxc_reasoning *s, struct mxc_str header, struct mxc_buf *answer) {
    struct mxc_str to = word_after(header, "to="), channel = word_after(header, "<|channel|>");
    s->state = BODY;
    s->to_function = to.length > 0;
    s->inside = !s->to_function && mxc_str_is(channel, "analysis");
    if (s->to_function) {
        (void)mxc_buf_puts(answer, "<|channel|>commentary to=");
        (void)mxc_buf_append(answer, to.ptr, to.length);
        (void)mxc_buf_puts(answer, message);
    }
    s->answered = s->answered || !s->inside;
    s->apart = true; /* a blank line between the bodies of one kind */
}

static void end_body(struct mxc_reasoning *s, struct mxc_buf *answer) {
    if (s->to_function)
        (void)mxc_buf_puts(answer, "<|call|>");
    s->to_function = s->inside = false;
    s->state = BETWEEN;
}

static void put(struct mxc_reasoning *s, const char *text, size_t n, struct mxc_buf *answer,
                struct mxc_buf *thought) {
    if (!n)
        return;
    if (s->inside)
        separate(thought, &s->has_thought, &s->apart);
    else if (!s->to_function)
        separate(answer, &s->has_answer, &s->apart);
    (void)mxc_buf_append(s->inside ? thought : answer, text, n);
}

/* Bytes of a header that are dealt with; 0: more must come. */
static size_t in_header(struct mxc_reasoning *s, const char *text, size_t length, bool more,
                        struct mxc_buf *answer) {
    size_t skip = 0;
    bool whole, first = s->state == FIRST;
    while (skip < length && is_space(text[skip]))
        skip++;
    if (skip == length && more)
        return 0;
    if (first && !may_be("<|channel|>", text + skip, length - skip, &whole) &&
        !may_be(start, text + skip, length - skip, &whole) &&
        !may_be("to=", text + skip, length - skip, &whole)) {
        begin_body(s, (struct mxc_str){NULL, 0}, answer); /* no header at all: the answer */
        s->apart = false;
        return 0;
    }
    const char *at = memmem(text, length, message, sizeof message - 1);
    if (at) {
        begin_body(s, (struct mxc_str){text, (size_t)(at - text)}, answer);
        return (size_t)(at - text) + sizeof message - 1;
    }
    if (length > MAX_HEADER) {
        begin_body(s, (struct mxc_str){NULL, 0}, answer);
        return 0;
    }
    return more ? 0 : length; /* a header that was cut off says nothing */
}

static size_t in_body(struct mxc_reasoning *s, const char *text, size_t length, bool more,
                      struct mxc_buf *answer, struct mxc_buf *thought) {
    const char *mark = memchr(text, '<', length);
    size_t before = mark ? (size_t)(mark - text) : length;
    put(s, text, before, answer, thought);
    if (!mark)
        return length;
    bool maybe = false, whole = false;
    for (size_t i = 0; i < sizeof ends / sizeof *ends && !whole; i++) {
        maybe = may_be(ends[i], mark, length - before, &whole) || maybe;
        if (!whole)
            continue;
        end_body(s, answer);
        if (ends[i] == start)
            s->state = HEADER;
        return before + strlen(ends[i]);
    }
    if (maybe && more)
        return before;
    put(s, mark, 1, answer, thought);
    return before + 1;
}

/* Between messages: what is no beginning of one goes to the answer. */
static size_t between(struct mxc_reasoning *s, const char *text, size_t length, bool more,
                      struct mxc_buf *answer) {
    size_t n = 0;
    bool whole = false;
    while (n < length && is_space(text[n]))
        n++;
    if (n == length)
        return n;
    if (may_be(start, text + n, length - n, &whole) && (whole || more)) {
        if (whole)
            s->state = HEADER;
        return whole ? n + strlen(start) : n;
    }
    begin_body(s, (struct mxc_str){NULL, 0}, answer);
    return n;
}

size_t mxc_channels_consume(struct mxc_reasoning *s, const char *text, size_t length, bool more,
                            struct mxc_buf *answer, struct mxc_buf *thought) {
    size_t at = 0;
    while (at < length) {
        unsigned char state = s->state;
        size_t n = state == BODY      ? in_body(s, text + at, length - at, more, answer, thought)
                   : state == BETWEEN ? between(s, text + at, length - at, more, answer)
                                      : in_header(s, text + at, length - at, more, answer);
        at += n;
        if (!n && s->state == state)
            break;
    }
    return at;
}
