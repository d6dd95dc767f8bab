/* Marks: finding out whether a template knows pictures (by rendering one), naming marks, and
 * cutting rendered text at them. The template's marks are looked for in what the template itself
 * wrote, ours in what came from the messages. Invariants: spans adjoin and cover the text, marks
 * excepted; the order of marks is the order of the pictures. */
#define _GNU_SOURCE
#include "gen/marks.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

enum { NO = 1, YES = 2, MAX_TOKEN = 4096 };

/* Whether the template writes the mark for a picture: YES, NO, or 0 without memory. */
static int knows_pictures(struct mxc_chat *chat, const json_t *variables, const char *mark) {
    struct mxc_jinja_result result;
    int verdict = 0;
    json_t *vars = json_pack("{s:[{s:s,s:[{s:s},{s:s,s:s}]}]}", "messages", "role", "user",
                             "content", "type", "image", "type", "text", "text", "x");
    if (vars && (!variables || !json_object_update_missing(vars, (json_t *)(uintptr_t)variables))) {
        enum mxc_code code = mxc_chat_render(chat, vars, NULL, &result, NULL);
        if (!code) {
            verdict = result.text && strstr(result.text, mark) ? YES : NO;
            mxc_jinja_result_fini(&result);
        } else if (code != MXC_E_NOMEM) {
            verdict = NO;
        }
    }
    json_decref(vars);
    return verdict;
}

enum mxc_code mxc_marks_init(struct mxc_marks *marks, struct mxc_chat *chat,
                             const struct mxc_vision *vision, const json_t *variables,
                             struct mxc_err *err) {
    uint64_t random[2] = {0};
    int32_t id = mxc_vision_image_token(vision);
    *marks = (struct mxc_marks){.natural = false};
    mxc_buf_init(&marks->token, MAX_TOKEN);
    enum mxc_code code = MXC_OK;
    uint32_t ids[1] = {(uint32_t)id};
    if ((code = mxc_tokenizer_decode(chat->tokenizer, ids, 1, false, &marks->token, err)))
        goto out;
    if (id < 0 || !marks->token.length) {
        code = mxc_err_set(err, MXC_E_FORMAT, "the tokeniser has no image token %d", id);
        goto out;
    }
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) {
        code = mxc_err_set(err, MXC_E_INTERNAL, "no random numbers");
        goto out;
    }
    (void)snprintf(marks->name, sizeof marks->name, "mxc%016llx%016llx",
                   (unsigned long long)random[0], (unsigned long long)random[1]);
    int known = atomic_load(&chat->habits.pictures);
    if (!known) {
        known = knows_pictures(chat, variables, mxc_buf_text(&marks->token));
        atomic_store(&chat->habits.pictures, known);
    }
    if (!known)
        code = mxc_err_nomem(err);
    marks->natural = known == YES;
out:
    if (code)
        mxc_marks_fini(marks);
    return code;
}

void mxc_marks_fini(struct mxc_marks *marks) {
    mxc_buf_fini(&marks->token);
}

/* ---- cutting */

struct cutter {
    const struct mxc_marks *marks;
    const struct mxc_pictures *pictures;
    struct mxc_marked *out;
    int32_t n_marks;
    struct mxc_err *err;
};

static enum mxc_code add_span(struct cutter *c, const char *text, size_t length, bool trusted) {
    struct mxc_marked *m = c->out;
    if (!length)
        return MXC_OK;
    if (m->n_spans == m->cap) {
        size_t want = m->cap ? 2 * m->cap : 16;
        void *grown = mxc_mem_realloc(m->spans, want, sizeof *m->spans);
        if (!grown)
            return mxc_err_nomem(c->err);
        m->spans = grown;
        m->cap = want;
    }
    m->spans[m->n_spans++] = (struct mxc_text_span){text, length, trusted};
    return MXC_OK;
}

/* What stands for the next picture. */
static enum mxc_code add_mark(struct cutter *c) {
    const char *token = mxc_buf_text(&c->marks->token);
    int32_t n = mxc_pictures_count(c->pictures), i = c->n_marks++;
    char *text = NULL;
    if (i >= n)
        return MXC_OK; /* counted; place refuses */
    enum mxc_code code = mxc_vision_mark_text(
        mxc_pictures_vision(c->pictures), mxc_pictures_at(c->pictures, i), token, &text, c->err);
    if (code)
        return code;
    if (!text)
        return add_span(c, token, c->marks->token.length, true);
    c->out->texts[c->out->n_texts++] = text;
    return add_span(c, text, strlen(text), true);
}

/* One span of the rendered text, cut at the marks that count in it. */
static enum mxc_code cut(struct cutter *c, const char *text, size_t length, bool trusted) {
    const struct mxc_marks *m = c->marks;
    const char *mark = trusted ? mxc_buf_text(&m->token) : m->name;
    size_t n = trusted ? m->token.length : strlen(m->name);
    const char *end = text + length, *at;
    enum mxc_code code = MXC_OK;
    while (!code && (trusted == m->natural) &&
           (at = memmem(text, (size_t)(end - text), mark, n)) != NULL) {
        code = add_span(c, text, (size_t)(at - text), trusted);
        if (!code)
            code = add_mark(c);
        text = at + n;
    }
    return code ? code : add_span(c, text, (size_t)(end - text), trusted);
}

enum mxc_code mxc_marks_place(const struct mxc_marks *marks, const struct mxc_pictures *pictures,
                              const struct mxc_jinja_result *result, size_t length,
                              struct mxc_marked *marked, struct mxc_err *err) {
    struct mxc_marked out = {0};
    struct cutter c = {.marks = marks, .pictures = pictures, .out = &out, .err = err};
    int32_t n = mxc_pictures_count(pictures);
    enum mxc_code code = MXC_OK;
    out.texts = mxc_mem_zalloc((size_t)n, sizeof *out.texts);
    if (!out.texts)
        return mxc_err_nomem(err);
    for (size_t i = 0; !code && i < result->n_spans && result->spans[i].offset < length; i++) {
        const struct mxc_jinja_span *s = &result->spans[i];
        size_t rest = length - s->offset;
        code = cut(&c, result->text + s->offset, s->length < rest ? s->length : rest, s->trusted);
    }
    if (!code && c.n_marks != n)
        code = mxc_err_set(err, MXC_E_ARG,
                           "the prompt has %d places for pictures, the request has %d pictures",
                           c.n_marks, n);
    if (code)
        mxc_marked_fini(&out);
    else
        *marked = out;
    return code;
}

void mxc_marked_fini(struct mxc_marked *marked) {
    for (size_t i = 0; i < marked->n_texts; i++)
        mxc_mem_free(marked->texts[i]);
    mxc_mem_free(marked->texts);
    mxc_mem_free(marked->spans);
    *marked = (struct mxc_marked){0};
}
