/* Calls written as JSON objects. Name and arguments may come in any order, among other members, and
 * inside a member "function"; arguments may be an object or JSON text of one. They are passed on as
 * they come when the name is known by then, and wait for it otherwise. */
#define _GNU_SOURCE
#include "gen/tools/parse.h"

#include <string.h>

enum state { OPEN, FIRST, NEXT, KEY, COLON, VALUE, NAME, ARGUMENTS, ARGUMENT_TEXT, SKIP, AFTER };
enum { MAX_WORD = 512 };

void mxc_parse_begin_object(struct mxc_tool_parser *p) {
    struct mxc_buf word = p->object.word;
    p->object = (struct mxc_call_object){.state = OPEN, .word = word};
    p->tool = NULL;
    mxc_parse_clear(p, &p->args);
    p->state = MXC_PARSE_OBJECT;
}

static bool is_space(char c) {
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static bool is(const struct mxc_call_object *o, const char *text) {
    return o->word.length == strlen(text) && !memcmp(mxc_buf_text(&o->word), text, o->word.length);
}

static bool is_name_key(const struct mxc_tool_parser *p) {
    const struct mxc_call_object *o = &p->object;
    return is(o, "name") || is(o, "tool_name") || is(o, "function");
}

static bool is_arguments_key(const struct mxc_tool_parser *p) {
    const struct mxc_call_object *o = &p->object;
    return is(o, "arguments") || is(o, "parameters");
}

/* Members that a call may have where nothing marks it as one. */
static bool is_usual_key(const struct mxc_tool_parser *p) {
    return is_name_key(p) || is_arguments_key(p) || is(&p->object, "type") || is(&p->object, "id");
}

/* The characters of a key or name up to its quote. false: more must come. */
static bool collect(struct mxc_call_object *o, char c) {
    if (!o->escaped && c == '"')
        return true;
    o->escaped = !o->escaped && c == '\\';
    (void)mxc_buf_putc(&o->word, c);
    return false;
}

static void begin_word(struct mxc_tool_parser *p, enum state state) {
    struct mxc_call_object *o = &p->object;
    mxc_parse_clear(p, &o->word);
    o->escaped = false;
    o->state = (unsigned char)state;
}

static bool find_tool(struct mxc_tool_parser *p) {
    struct mxc_buf *word = &p->object.word;
    p->tool = mxc_tools_get(p->tools, (struct mxc_str){mxc_buf_text(word), word->length});
    return p->tool != NULL;
}

static enum mxc_fed bad(struct mxc_tool_parser *p) {
    return mxc_parse_fail(p, p->object.done);
}

static enum mxc_fed finish_object(struct mxc_tool_parser *p) {
    if (!p->tool) {
        (void)mxc_parse_reject(p); /* the brace is among what is held */
        return MXC_FED;
    }
    if (!p->committed) {
        (void)mxc_buf_puts(&p->args, "{}");
        mxc_parse_commit(p);
    }
    mxc_parse_end_call(p, true);
    if (p->state != MXC_PARSE_DROP)
        p->state = MXC_PARSE_FRAME;
    return MXC_FED;
}

/* The value's first character. */
static enum mxc_fed begin_value(struct mxc_tool_parser *p, char c) {
    struct mxc_call_object *o = &p->object;
    bool keyed = !p->shape->name_key; /* the key is the name */
    mxc_json_scan_init(&p->scan);
    if (keyed && !p->tool && !find_tool(p))
        return bad(p);
    if (!keyed && !p->tool && c == '"' && is_name_key(p)) {
        begin_word(p, NAME);
        return MXC_FED;
    }
    if (!keyed && c == '{' && !o->nested && is(o, "function")) {
        o->nested = true;
        o->state = FIRST;
        return MXC_FED;
    }
    o->is_null = false;
    if (!o->done && (keyed || is_arguments_key(p))) {
        if (c == '{') {
            o->state = ARGUMENTS;
            if (p->tool)
                mxc_parse_commit(p);
            return MXC_FED_AGAIN;
        }
        o->is_null = c == 'n';
        if (c != '"' && !o->is_null)
            return bad(p);
        if (c == '"') {
            mxc_parse_clear(p, &p->raw);
            o->state = ARGUMENT_TEXT;
            return MXC_FED_AGAIN;
        }
    }
    if (p->shape->bare && !is_usual_key(p))
        return bad(p); /* some answer in JSON: it must not be withheld to its end */
    o->state = SKIP;
    return MXC_FED_AGAIN;
}

static enum mxc_fed in_arguments(struct mxc_tool_parser *p, char c) {
    struct mxc_call_object *o = &p->object;
    enum mxc_scan at;
    if (p->committed) {
        mxc_parse_put(p, MXC_TOOL_ARGUMENTS, "", 0);
        at = mxc_json_scan_push(&p->scan, c, &p->out);
    } else {
        at = mxc_json_scan_push(&p->scan, c, &p->args);
    }
    if (at == MXC_SCAN_BAD)
        return bad(p);
    if (at == MXC_SCAN_END) {
        o->done = true;
        o->state = AFTER;
    }
    return MXC_FED;
}

/* JSON text of an object: to p->args, as it stands. */
static bool take_text(struct mxc_tool_parser *p) {
    struct mxc_json_scan scan;
    enum mxc_scan at = MXC_SCAN_GO;
    json_t *text = json_loadb(mxc_buf_text(&p->raw), p->raw.length, JSON_DECODE_ANY, NULL);
    const char *s = json_string_value(text);
    size_t n = json_string_length(text), i = 0;
    mxc_json_scan_init(&scan);
    while (i < n && is_space(s[i]))
        i++;
    bool ok = i < n && s[i] == '{';
    for (; ok && i < n; i++) {
        if (at == MXC_SCAN_END)
            ok = is_space(s[i]);
        else
            at = mxc_json_scan_push(&scan, s[i], &p->args);
        ok = ok && at != MXC_SCAN_BAD;
    }
    json_decref(text);
    return ok && at == MXC_SCAN_END;
}

static enum mxc_fed in_argument_text(struct mxc_tool_parser *p, char c) {
    enum mxc_scan at = mxc_json_scan_push(&p->scan, c, &p->raw);
    if (at == MXC_SCAN_BAD)
        return bad(p);
    if (at != MXC_SCAN_END)
        return MXC_FED;
    if (!take_text(p)) {
        mxc_parse_clear(p, &p->args);
        (void)mxc_buf_putc(&p->held, c);
        (void)bad(p);
        return MXC_FED;
    }
    p->object.done = true;
    p->object.state = AFTER;
    if (p->tool)
        mxc_parse_commit(p);
    return MXC_FED;
}

static enum mxc_fed step(struct mxc_tool_parser *p, char c) {
    struct mxc_call_object *o = &p->object;
    enum mxc_scan at;
    switch ((enum state)o->state) {
    case OPEN:
        o->state = FIRST; /* the caller saw the brace */
        return MXC_FED;
    case FIRST:
    case NEXT:
        if (is_space(c))
            return MXC_FED;
        if (c == '"') {
            begin_word(p, KEY);
            return MXC_FED;
        }
        if (c != '}' || o->state == NEXT)
            return bad(p);
        o->state = AFTER;
        return MXC_FED_AGAIN;
    case KEY:
        if (collect(o, c))
            o->state = COLON;
        return o->word.length > MAX_WORD ? bad(p) : MXC_FED;
    case COLON:
        if (c == ':')
            o->state = VALUE;
        else if (!is_space(c))
            return bad(p);
        return MXC_FED;
    case VALUE:
        return is_space(c) ? MXC_FED : begin_value(p, c);
    case NAME:
        if (!collect(o, c))
            return o->word.length > MAX_WORD ? bad(p) : MXC_FED;
        if (!find_tool(p))
            return bad(p);
        o->state = AFTER;
        if (o->done)
            mxc_parse_commit(p);
        return MXC_FED;
    case ARGUMENTS:
        return in_arguments(p, c);
    case ARGUMENT_TEXT:
        return in_argument_text(p, c);
    case SKIP:
        at = mxc_json_scan_push(&p->scan, c, NULL);
        if (at == MXC_SCAN_BAD)
            return bad(p);
        if (at != MXC_SCAN_GO)
            o->state = AFTER;
        return at == MXC_SCAN_BEFORE ? MXC_FED_AGAIN : MXC_FED;
    case AFTER:
    default:
        if (is_space(c))
            return MXC_FED;
        if (c == ',') {
            o->state = NEXT;
            return MXC_FED;
        }
        if (c != '}')
            return bad(p);
        if (o->nested) {
            o->nested = false;
            return MXC_FED;
        }
        (void)mxc_buf_putc(&p->held, c);
        return finish_object(p);
    }
}

enum mxc_fed mxc_parse_object(struct mxc_tool_parser *p, char c) {
    enum mxc_fed fed = step(p, c);
    /* a byte that ended or broke the candidate was dealt with there */
    if (fed == MXC_FED && p->state == MXC_PARSE_OBJECT && !p->committed)
        (void)mxc_buf_putc(&p->held, c);
    return fed;
}
