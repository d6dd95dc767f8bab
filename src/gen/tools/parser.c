/* The parser's frame: triggers in text, blocks, names, and calls that are not JSON objects (those
 * are in objects.c). A candidate's bytes are held until it commits, then they are gone; when it
 * fails they become text as a whole, without a second look, so the work is linear in the text. */
#define _GNU_SOURCE
#include "gen/tools/parse.h"

#include "base/mem.h"

#include <string.h>

enum { MAX_BYTES = 1 << 24, MAX_SKIPPED = 64, MAX_KEY = 512 };
enum tag { TAG_OPEN, TAG_CLOSE, TAG_CALL, TAG_PARAM, TAG_CALL_CLOSE, TAG_OTHER };
enum found { FOUND_NONE, FOUND_PART, FOUND };

static bool is_space(char c) {
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static bool is_name_byte(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           c == '-' || c == '.';
}

/* ---- literals */

static struct mxc_str trimmed(const char *text) {
    struct mxc_str s = mxc_str_of(text);
    while (s.length && is_space(s.ptr[0]))
        s.ptr++, s.length--;
    while (s.length && is_space(s.ptr[s.length - 1]))
        s.length--;
    return s;
}

static void marks_add(struct mxc_marks *m, const char *text, enum tag tag) {
    struct mxc_str s = trimmed(text);
    if (!s.length)
        return;
    m->items[m->n].text = s;
    m->items[m->n].at = 0;
    m->items[m->n++].tag = (int)tag;
}

static void marks_reset(struct mxc_marks *m) {
    m->active = false;
    for (int i = 0; i < m->n; i++)
        m->items[i].at = 0;
}

/* One more byte. FOUND: *tag of the one that is complete. */
static enum found marks_step(struct mxc_marks *m, char c, enum tag *tag) {
    bool any = false;
    for (int i = 0; i < m->n; i++) {
        struct mxc_str text = m->items[i].text;
        size_t at = m->items[i].at;
        if (at == SIZE_MAX)
            continue;
        if (is_space(text.ptr[at])) {
            if (is_space(c)) {
                any = true;
                continue;
            }
            while (is_space(text.ptr[at]))
                at++;
        }
        m->items[i].at = c == text.ptr[at] ? at + 1 : SIZE_MAX;
        any = any || c == text.ptr[at];
        if (m->items[i].at == text.length) {
            *tag = (enum tag)m->items[i].tag;
            return FOUND;
        }
    }
    m->active = any;
    return any ? FOUND_PART : FOUND_NONE;
}

/* ---- what comes out */

static struct mxc_buf *buffer(struct mxc_tool_parser *p, size_t i) {
    struct mxc_buf *all[] = {&p->out, &p->space, &p->held,       &p->args,
                             &p->key, &p->raw,   &p->object.word};
    return i < sizeof all / sizeof *all ? all[i] : NULL;
}

void mxc_parse_clear(struct mxc_tool_parser *p, struct mxc_buf *buf) {
    bool word = buf == &p->literal.word; /* its limit only breaks the call */
    if (buf->failed && !p->failed && !(word && buf->full))
        p->failed = buf->full ? MXC_E_LIMIT : MXC_E_NOMEM;
    mxc_buf_clear(buf);
}

static void emit(struct mxc_tool_parser *p, const struct mxc_tool_event *event) {
    const struct mxc_buf *buf;
    bool failed = p->cancelled || p->failed;
    for (size_t i = 0; !failed && (buf = buffer(p, i)); i++)
        failed = buf->failed; /* something is missing: push says so */
    if (!failed)
        p->cancelled = !p->event(p->user, event);
}

static void flush(struct mxc_tool_parser *p) {
    struct mxc_tool_event event = {.kind = p->out_kind};
    if (!p->out.length)
        return;
    event.index = p->n_calls - (p->out_kind == MXC_TOOL_ARGUMENTS);
    event.text = (struct mxc_str){p->out.data, p->out.length};
    emit(p, &event);
    mxc_parse_clear(p, &p->out);
}

void mxc_parse_put(struct mxc_tool_parser *p, enum mxc_tool_event_kind kind, const char *text,
                   size_t length) {
    if (kind != p->out_kind)
        flush(p);
    p->out_kind = kind;
    (void)mxc_buf_append(&p->out, text, length);
}

static void put_text(struct mxc_tool_parser *p, const char *text, size_t length) {
    if (!length)
        return;
    if (!p->after_call)
        mxc_parse_put(p, MXC_TOOL_TEXT, mxc_buf_text(&p->space), p->space.length);
    mxc_parse_clear(p, &p->space);
    p->after_call = p->edge = false;
    mxc_parse_put(p, MXC_TOOL_TEXT, text, length);
}

static void put_arguments(struct mxc_tool_parser *p, const char *text) {
    mxc_parse_put(p, MXC_TOOL_ARGUMENTS, text, strlen(text));
}

static void enter_text(struct mxc_tool_parser *p) {
    p->state = MXC_PARSE_TEXT;
    p->marks.n = 0;
    marks_add(&p->marks, p->shape->open, TAG_OPEN);
    marks_add(&p->marks, p->shape->also, TAG_OPEN);
    if (p->shape->body != MXC_TOOL_OBJECTS)
        marks_add(&p->marks, p->shape->call_open, TAG_CALL);
    marks_reset(&p->marks);
}

/* Back to text; what is held is read once more for the beginning of a mark, from byte `from`. */
static void restart(struct mxc_tool_parser *p, size_t from) {
    size_t n = p->held.length, at = 0;
    const char *s = mxc_buf_text(&p->held);
    enum tag tag;
    enter_text(p);
    for (; at < n; at++) {
        size_t i = at;
        marks_reset(&p->marks);
        while (at >= from && i < n && marks_step(&p->marks, s[i], &tag) == FOUND_PART)
            i++;
        if (at >= from && i == n)
            break;
        if (is_space(s[at]))
            (void)mxc_buf_putc(&p->space, s[at]);
        else
            put_text(p, s + at, 1);
    }
    if (at == n)
        marks_reset(&p->marks);
    if (at)
        memmove(p->held.data, p->held.data + at, n - at);
    p->held.length = n - at;
    if (p->held.data)
        p->held.data[n - at] = 0;
}

enum mxc_fed mxc_parse_reject(struct mxc_tool_parser *p) {
    put_text(p, mxc_buf_text(&p->held), p->held.length);
    mxc_parse_clear(p, &p->held);
    enter_text(p);
    return MXC_FED_AGAIN;
}

void mxc_tool_id(struct mxc_rng *rng, int id_length, char id[MXC_TOOL_ID_BYTES]) {
    static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    size_t at = 0, n = 24;
    if (id_length > 0 && id_length < MXC_TOOL_ID_BYTES) {
        n = (size_t)id_length;
    } else {
        memcpy(id, "call_", 5);
        at = 5;
    }
    for (size_t end = at + n; at < end; at++)
        id[at] = digits[(size_t)(mxc_rng_uniform(rng) * 62)];
    id[at] = 0;
}

void mxc_parse_commit(struct mxc_tool_parser *p) {
    char id[MXC_TOOL_ID_BYTES];
    struct mxc_tool_event event = {.kind = MXC_TOOL_BEGIN, .index = p->n_calls, .id = id};
    flush(p);
    mxc_tool_id(&p->rng, p->shape->id_length, id);
    event.name = p->tool->name;
    emit(p, &event);
    p->n_calls++;
    p->n_block++;
    p->committed = true;
    mxc_parse_clear(p, &p->held);
    mxc_parse_clear(p, &p->space);
    mxc_parse_put(p, MXC_TOOL_ARGUMENTS, mxc_buf_text(&p->args), p->args.length);
    mxc_parse_clear(p, &p->args);
}

void mxc_parse_end_call(struct mxc_tool_parser *p, bool complete) {
    struct mxc_tool_event event = {
        .kind = MXC_TOOL_END, .index = p->n_calls - 1, .complete = complete};
    flush(p);
    emit(p, &event);
    p->committed = false;
    p->after_call = p->edge = true;
    mxc_parse_clear(p, &p->held);
    if (!p->tools->parallel)
        p->state = MXC_PARSE_DROP;
}

enum mxc_fed mxc_parse_fail(struct mxc_tool_parser *p, bool complete) {
    if (!p->committed)
        return mxc_parse_reject(p);
    mxc_parse_end_call(p, complete);
    if (p->state == MXC_PARSE_DROP)
        return MXC_FED;
    p->edge = p->after_call = false;
    enter_text(p);
    return MXC_FED_AGAIN;
}

/* ---- text and blocks */

static void enter_frame(struct mxc_tool_parser *p) {
    p->state = MXC_PARSE_FRAME;
    p->marks.n = 0;
    marks_add(&p->marks, p->shape->call_open, TAG_CALL);
    marks_add(&p->marks, p->shape->close, TAG_CLOSE);
    marks_reset(&p->marks);
}

static void enter_block(struct mxc_tool_parser *p) {
    p->n_block = 0;
    p->list = p->listed = false;
    enter_frame(p);
}

static void enter_name(struct mxc_tool_parser *p) {
    p->n_name = p->skipped = 0;
    p->n_params = 0;
    p->started = false;
    mxc_parse_clear(p, &p->args);
    p->state = MXC_PARSE_NAME;
    p->marks.n = 0;
    if (p->shape->before_name) {
        p->state = MXC_PARSE_BEFORE_NAME;
        marks_add(&p->marks, p->shape->before_name, TAG_OTHER);
    }
}

static void leave_call(struct mxc_tool_parser *p) {
    if (p->state == MXC_PARSE_DROP)
        return;
    if (p->shape->open || p->shape->bare)
        enter_frame(p);
    else
        enter_text(p);
}

static enum mxc_fed in_text(struct mxc_tool_parser *p, char c) {
    enum tag tag;
    bool began = p->marks.active;
    if (!began && is_space(c)) {
        (void)mxc_buf_putc(&p->space, c);
        return MXC_FED;
    }
    bool list = c == '[', object = c == '{' && p->shape->body == MXC_TOOL_OBJECTS;
    if (!began && p->shape->bare && p->edge && (list || object)) {
        enter_block(p);
        return MXC_FED_AGAIN;
    }
    enum found found = marks_step(&p->marks, c, &tag);
    if (found == FOUND_NONE && began) {
        restart(p, 1);
        return MXC_FED_AGAIN;
    }
    if (found == FOUND_NONE) {
        marks_reset(&p->marks);
        put_text(p, &c, 1);
        return MXC_FED;
    }
    (void)mxc_buf_putc(&p->held, c);
    if (found == FOUND && tag == TAG_OPEN) {
        enter_block(p);
    } else if (found == FOUND) {
        p->n_block = 0;
        enter_name(p);
    }
    return MXC_FED;
}

/* Between the calls of a block there is neither call nor close: it ended, or never was one. */
static enum mxc_fed leave_block(struct mxc_tool_parser *p) {
    restart(p, !p->n_block);
    return MXC_FED_AGAIN;
}

static enum mxc_fed close_block(struct mxc_tool_parser *p) {
    if (!p->n_block) {
        (void)mxc_parse_reject(p);
        return MXC_FED;
    }
    mxc_parse_clear(p, &p->held);
    enter_text(p);
    return MXC_FED;
}

/* Lists, objects and separators of blocks that hold bare values. */
static bool in_list(struct mxc_tool_parser *p, char c, enum mxc_fed *fed) {
    bool objects = p->shape->body == MXC_TOOL_OBJECTS;
    *fed = MXC_FED;
    if (c == '[' && !p->list && !p->listed && !p->n_block) {
        p->list = true;
    } else if (c == ']' && p->list && p->n_block) {
        p->list = false;
        p->listed = true;
        if (!trimmed(p->shape->close).length || !p->shape->open)
            *fed = close_block(p);
        else
            mxc_parse_clear(p, &p->held);
        return true;
    } else if ((c == ',' || c == ';') && p->n_block && !p->listed) {
        ;
    } else if (objects && c == '{' && !p->listed) {
        mxc_parse_begin_object(p);
        *fed = MXC_FED_AGAIN;
        return true;
    } else if (!objects && !p->listed && is_name_byte(c)) {
        enter_name(p);
        *fed = MXC_FED_AGAIN;
        return true;
    } else {
        return false;
    }
    (void)mxc_buf_putc(&p->held, c);
    return true;
}

static enum mxc_fed in_frame(struct mxc_tool_parser *p, char c) {
    enum tag tag;
    enum mxc_fed fed;
    bool values = p->shape->body == MXC_TOOL_OBJECTS || p->shape->body == MXC_TOOL_PYTHONIC;
    if (!p->marks.active) {
        if (is_space(c)) {
            (void)mxc_buf_putc(&p->held, c);
            return MXC_FED;
        }
        if (values && in_list(p, c, &fed))
            return fed;
    }
    enum found found = marks_step(&p->marks, c, &tag);
    if (found == FOUND_NONE)
        return leave_block(p);
    (void)mxc_buf_putc(&p->held, c);
    if (found == FOUND && tag == TAG_CLOSE)
        return close_block(p);
    if (found == FOUND)
        enter_name(p);
    return MXC_FED;
}

/* ---- name and JSON arguments */

/* Up to a literal that may stand a little later. */
static enum found skip_to(struct mxc_tool_parser *p, char c) {
    enum tag tag;
    enum found found = marks_step(&p->marks, c, &tag);
    if (found == FOUND_NONE) { /* its first byte stands in it once */
        marks_reset(&p->marks);
        found = marks_step(&p->marks, c, &tag);
    }
    if (found == FOUND_NONE)
        marks_reset(&p->marks);
    if (found != FOUND && ++p->skipped > MAX_SKIPPED)
        return FOUND_NONE;
    (void)mxc_buf_putc(&p->held, c);
    return found == FOUND ? FOUND : FOUND_PART;
}

static void enter_arguments(struct mxc_tool_parser *p) {
    p->marks.n = 0;
    if (p->shape->body == MXC_TOOL_XML) {
        p->state = MXC_PARSE_PARAMS;
        marks_add(&p->marks, p->shape->param_open, TAG_PARAM);
        marks_add(&p->marks, p->shape->call_close, TAG_CALL_CLOSE);
        marks_add(&p->marks, p->shape->close, TAG_CLOSE);
        marks_reset(&p->marks);
        return;
    }
    p->state = MXC_PARSE_ARGUMENTS;
    mxc_json_scan_init(&p->scan);
    mxc_literal_fini(&p->literal);
    mxc_literal_init(&p->literal,
                     p->shape->body == MXC_TOOL_GEMMA ? MXC_GEMMA_VALUE : MXC_PYTHON_CALL);
}

static enum mxc_fed in_name(struct mxc_tool_parser *p, char c) {
    if (is_name_byte(c) && p->n_name < MXC_MAX_TOOL_NAME) {
        p->name[p->n_name++] = c;
        (void)mxc_buf_putc(&p->held, c);
        return MXC_FED;
    }
    if (!p->n_name && is_space(c)) {
        (void)mxc_buf_putc(&p->held, c);
        return MXC_FED;
    }
    p->tool = mxc_tools_get(p->tools, (struct mxc_str){p->name, p->n_name});
    if (!p->tool)
        return mxc_parse_reject(p);
    const char *after = p->shape->body == MXC_TOOL_PYTHONIC ? "(" : p->shape->after_name;
    p->marks.n = 0;
    marks_add(&p->marks, after, TAG_OTHER);
    if (!p->marks.n) {
        enter_arguments(p);
        return MXC_FED_AGAIN;
    }
    marks_reset(&p->marks);
    p->skipped = p->shape->body == MXC_TOOL_PYTHONIC ? MAX_SKIPPED : 0;
    p->state = MXC_PARSE_AFTER_NAME;
    return MXC_FED_AGAIN;
}

static void finish_call(struct mxc_tool_parser *p, bool closes) {
    mxc_parse_end_call(p, true);
    if (p->state == MXC_PARSE_DROP)
        return;
    p->marks.n = 0;
    marks_add(&p->marks, p->shape->call_close, TAG_CALL_CLOSE);
    marks_reset(&p->marks);
    if (closes && p->marks.n)
        p->state = MXC_PARSE_CALL_CLOSE;
    else
        leave_call(p);
}

static enum mxc_fed in_pythonic(struct mxc_tool_parser *p, char c) {
    struct mxc_buf *to = p->committed ? &p->out : &p->args;
    if (!p->committed)
        (void)mxc_buf_putc(&p->held, c);
    else
        put_arguments(p, "");
    enum mxc_scan at = mxc_literal_push(&p->literal, c, to);
    if (at == MXC_SCAN_BAD) {
        if (p->committed)
            return mxc_parse_fail(p, false);
        (void)mxc_parse_reject(p); /* with the byte */
        return MXC_FED;
    }
    if (!p->committed && (p->literal.n_keys || at == MXC_SCAN_END))
        mxc_parse_commit(p);
    if (at == MXC_SCAN_END)
        finish_call(p, false);
    return MXC_FED;
}

static enum mxc_fed in_arguments(struct mxc_tool_parser *p, char c) {
    if (p->shape->body == MXC_TOOL_PYTHONIC)
        return in_pythonic(p, c);
    if (!p->started) {
        struct mxc_str close = trimmed(p->shape->call_close);
        if (is_space(c)) {
            (void)mxc_buf_putc(&p->held, c);
            return MXC_FED;
        }
        if (c != '{' && (!close.length || c != close.ptr[0]))
            return mxc_parse_reject(p);
        mxc_parse_commit(p);
        p->started = true;
        if (c != '{') { /* no arguments at all */
            put_arguments(p, "{}");
            finish_call(p, true);
            return p->state == MXC_PARSE_DROP ? MXC_FED : MXC_FED_AGAIN;
        }
    }
    put_arguments(p, "");
    enum mxc_scan at = p->shape->body == MXC_TOOL_GEMMA ? mxc_literal_push(&p->literal, c, &p->out)
                                                        : mxc_json_scan_push(&p->scan, c, &p->out);
    if (at == MXC_SCAN_BAD)
        return mxc_parse_fail(p, false);
    if (at == MXC_SCAN_END)
        finish_call(p, true);
    return MXC_FED;
}

static enum mxc_fed in_call_close(struct mxc_tool_parser *p, char c) {
    enum tag tag;
    if (!p->marks.active && is_space(c)) {
        (void)mxc_buf_putc(&p->held, c);
        return MXC_FED;
    }
    enum found found = marks_step(&p->marks, c, &tag);
    if (found == FOUND_NONE) {
        restart(p, 0);
        return MXC_FED_AGAIN;
    }
    (void)mxc_buf_putc(&p->held, c);
    if (found == FOUND) {
        mxc_parse_clear(p, &p->held);
        leave_call(p);
    }
    return MXC_FED;
}

/* ---- XML parameters */

static enum mxc_fed fail_params(struct mxc_tool_parser *p) {
    if (!p->committed) {
        restart(p, 1);
        return MXC_FED_AGAIN;
    }
    struct mxc_buf held = p->held; /* a mark that was none: text behind the broken call */
    mxc_buf_init(&p->held, MAX_BYTES);
    enum mxc_fed fed = mxc_parse_fail(p, false);
    if (p->state != MXC_PARSE_DROP)
        put_text(p, mxc_buf_text(&held), held.length);
    mxc_buf_fini(&held);
    return fed;
}

static enum mxc_fed in_params(struct mxc_tool_parser *p, char c) {
    enum tag tag;
    if (!p->marks.active && is_space(c)) {
        if (!p->committed)
            (void)mxc_buf_putc(&p->held, c);
        return MXC_FED;
    }
    enum found found = marks_step(&p->marks, c, &tag);
    if (found == FOUND_NONE)
        return fail_params(p);
    (void)mxc_buf_putc(&p->held, c);
    if (found != FOUND)
        return MXC_FED;
    if (!p->committed)
        mxc_parse_commit(p);
    mxc_parse_clear(p, &p->held);
    if (tag == TAG_PARAM) {
        mxc_parse_clear(p, &p->key);
        p->state = MXC_PARSE_KEY;
        return MXC_FED;
    }
    put_arguments(p, p->n_params ? "}" : "{}");
    finish_call(p, false);
    if (tag == TAG_CLOSE && p->state != MXC_PARSE_DROP)
        return close_block(p);
    return MXC_FED;
}

static void put_key(struct mxc_tool_parser *p) {
    put_arguments(p, p->n_params++ ? ", \"" : "{\"");
    mxc_tool_escape(mxc_buf_text(&p->key), p->key.length, &p->out);
    put_arguments(p, "\": ");
}

/* The attribute that stands before a value (DSML) knows better than the schema. */
static void enter_value(struct mxc_tool_parser *p) {
    const char *attribute = mxc_buf_text(&p->raw);
    struct mxc_str key = {mxc_buf_text(&p->key), p->key.length};
    p->types = mxc_tool_types(p->tool->parameters, key);
    if (strstr(attribute, "string=\"true\""))
        p->types = MXC_TYPE_STRING;
    else if (strstr(attribute, "string=\"false\""))
        p->types &= ~(unsigned)MXC_TYPE_STRING;
    p->as_string = p->types == MXC_TYPE_STRING;
    p->first = true;
    p->line_feed = false;
    p->match = 0;
    p->state = MXC_PARSE_VALUE;
    mxc_parse_clear(p, &p->raw);
    if (p->as_string) {
        put_key(p);
        put_arguments(p, "\"");
    }
}

static enum mxc_fed in_key(struct mxc_tool_parser *p, char c) {
    enum tag tag;
    if (p->state == MXC_PARSE_KEY && c != p->shape->key_end[0]) {
        (void)mxc_buf_putc(&p->key, c);
        return p->key.length > MAX_KEY ? fail_params(p) : MXC_FED;
    }
    if (p->state == MXC_PARSE_KEY) {
        p->marks.n = 0;
        marks_add(&p->marks, p->shape->key_end, TAG_OTHER);
        p->state = MXC_PARSE_KEY_END;
    }
    enum found found = marks_step(&p->marks, c, &tag);
    if (found == FOUND_NONE)
        return fail_params(p);
    if (found != FOUND)
        return MXC_FED;
    mxc_parse_clear(p, &p->raw);
    p->marks.n = 0;
    p->skipped = 0;
    marks_add(&p->marks, p->shape->value_open, TAG_OTHER);
    if (p->marks.n)
        p->state = MXC_PARSE_VALUE_OPEN;
    else
        enter_value(p);
    return MXC_FED;
}

static enum mxc_fed in_value_open(struct mxc_tool_parser *p, char c) {
    enum found found = skip_to(p, c);
    mxc_parse_clear(p, &p->held);
    if (found == FOUND_NONE)
        return fail_params(p);
    (void)mxc_buf_putc(&p->raw, c);
    if (found == FOUND)
        enter_value(p);
    return MXC_FED;
}

static void put_value(struct mxc_tool_parser *p, const char *text, size_t length) {
    if (!p->as_string) {
        (void)mxc_buf_append(&p->raw, text, length);
        return;
    }
    put_arguments(p, "");
    mxc_tool_escape(text, length, &p->out);
}

/* One byte of a value: the line feeds of a frame are not the value's. */
static void value_byte(struct mxc_tool_parser *p, char c) {
    if (!p->shape->framed) {
        put_value(p, &c, 1);
        return;
    }
    bool first = p->first;
    p->first = false;
    if (first && c == '\n')
        return;
    if (p->line_feed)
        put_value(p, "\n", 1);
    p->line_feed = c == '\n';
    if (!p->line_feed)
        put_value(p, &c, 1);
}

static void end_value(struct mxc_tool_parser *p) {
    if (p->as_string) {
        put_arguments(p, "\"");
    } else {
        put_key(p);
        mxc_tool_write_value(p->types, (struct mxc_str){mxc_buf_text(&p->raw), p->raw.length},
                             &p->out);
    }
    enter_arguments(p);
}

static enum mxc_fed in_value(struct mxc_tool_parser *p, char c) {
    struct mxc_str close = trimmed(p->shape->value_close);
    if (c == close.ptr[p->match]) {
        if (++p->match == close.length)
            end_value(p);
        return MXC_FED;
    }
    for (size_t i = 0; i < p->match; i++)
        value_byte(p, close.ptr[i]);
    p->match = c == close.ptr[0]; /* which stands in it once */
    if (!p->match)
        value_byte(p, c);
    return MXC_FED;
}

/* ---- the whole */

static enum mxc_fed feed(struct mxc_tool_parser *p, char c) {
    enum found found;
    switch (p->state) {
    case MXC_PARSE_TEXT:
        return in_text(p, c);
    case MXC_PARSE_FRAME:
        return in_frame(p, c);
    case MXC_PARSE_OBJECT:
        return mxc_parse_object(p, c);
    case MXC_PARSE_BEFORE_NAME:
        if ((found = skip_to(p, c)) == FOUND_NONE)
            return mxc_parse_reject(p);
        if (found == FOUND)
            p->state = MXC_PARSE_NAME;
        return MXC_FED;
    case MXC_PARSE_NAME:
        return in_name(p, c);
    case MXC_PARSE_AFTER_NAME:
        if ((found = skip_to(p, c)) == FOUND_NONE)
            return mxc_parse_reject(p);
        if (found == FOUND)
            enter_arguments(p);
        return MXC_FED;
    case MXC_PARSE_ARGUMENTS:
        return in_arguments(p, c);
    case MXC_PARSE_PARAMS:
        return in_params(p, c);
    case MXC_PARSE_KEY:
    case MXC_PARSE_KEY_END:
        return in_key(p, c);
    case MXC_PARSE_VALUE_OPEN:
        return in_value_open(p, c);
    case MXC_PARSE_VALUE:
        return in_value(p, c);
    case MXC_PARSE_CALL_CLOSE:
        return in_call_close(p, c);
    case MXC_PARSE_DROP:
    default:
        return MXC_FED;
    }
}

enum mxc_code mxc_tool_parser_new(const struct mxc_tool_parser_options *options,
                                  struct mxc_tool_parser **parser, struct mxc_err *err) {
    struct mxc_tool_parser *p = mxc_mem_zalloc(1, sizeof *p);
    if (!p)
        return mxc_err_nomem(err);
    p->shape = options->shape;
    p->tools = options->tools;
    p->event = options->event;
    p->user = options->user;
    mxc_rng_seed(&p->rng, options->seed);
    struct mxc_buf *buf;
    for (size_t i = 0; (buf = buffer(p, i)); i++)
        mxc_buf_init(buf, MAX_BYTES);
    mxc_literal_init(&p->literal, MXC_PYTHON_VALUE);
    p->edge = true;
    enter_text(p);
    *parser = p;
    return MXC_OK;
}

void mxc_tool_parser_free(struct mxc_tool_parser *p) {
    struct mxc_buf *buf;
    if (!p)
        return;
    for (size_t i = 0; (buf = buffer(p, i)); i++)
        mxc_buf_fini(buf);
    mxc_literal_fini(&p->literal);
    mxc_mem_free(p);
}

static enum mxc_code status(struct mxc_tool_parser *p, struct mxc_err *err) {
    struct mxc_buf *buf;
    enum mxc_code code = MXC_OK;
    for (size_t i = 0; !code && (buf = buffer(p, i)); i++)
        code = mxc_buf_status(buf, err);
    if (!code && p->failed == MXC_E_LIMIT)
        code = mxc_err_set(err, MXC_E_LIMIT, "a tool call is longer than %d bytes", MAX_BYTES);
    else if (!code && (p->failed || (p->literal.word.failed && !p->literal.word.full)))
        code = mxc_err_nomem(err);
    if (!code && p->cancelled)
        code = mxc_err_set(err, MXC_E_CANCELLED, "the receiver of tool events ended them");
    return code;
}

enum mxc_code mxc_tool_parser_push(struct mxc_tool_parser *p, const char *text, size_t length,
                                   struct mxc_err *err) {
    if (p->tools->choice == MXC_TOOLS_NONE) {
        put_text(p, text, length);
    } else {
        for (size_t i = 0; i < length && !p->cancelled; i++)
            while (feed(p, text[i]) == MXC_FED_AGAIN)
                ;
    }
    flush(p);
    return status(p, err);
}

enum mxc_code mxc_tool_parser_finish(struct mxc_tool_parser *p, struct mxc_err *err) {
    bool between = p->state == MXC_PARSE_CALL_CLOSE || (p->state == MXC_PARSE_FRAME && p->n_block);
    if (p->committed)
        mxc_parse_end_call(p, p->state == MXC_PARSE_OBJECT && p->object.done);
    else if (p->state != MXC_PARSE_DROP && !between)
        put_text(p, mxc_buf_text(&p->held), p->held.length);
    mxc_parse_clear(p, &p->held);
    if (p->state != MXC_PARSE_DROP && !p->after_call)
        mxc_parse_put(p, MXC_TOOL_TEXT, mxc_buf_text(&p->space), p->space.length);
    mxc_parse_clear(p, &p->space);
    flush(p);
    p->state = MXC_PARSE_DROP;
    return status(p, err);
}

size_t mxc_tool_parser_count(const struct mxc_tool_parser *p) {
    return p->n_calls;
}

bool mxc_tool_parser_is_done(const struct mxc_tool_parser *p) {
    return p->state == MXC_PARSE_DROP;
}
