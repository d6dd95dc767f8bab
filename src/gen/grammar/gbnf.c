/* GBNF, llama.cpp's notation for grammars: name ::= alternatives, with "literals", [classes], any
 * character (.), groups, * + ? {m} {m,} {m,n}, and # comments. A rule ends with its line, unless a
 * group is open or the next line begins with |.
 * In: text. Out: the node of rule `root`; every rule becomes a rule of the builder.
 * Invariants: escapes stand for code points (\xHH too), as in llama.cpp; groups are nested at most
 * MXC_GRAMMAR_MAX_NESTING deep; each error has a line and a column. */
#include "gen/grammar/ir.h"

#include "base/mem.h"

#include <string.h>

struct parser {
    struct mxc_grammar_builder *b;
    struct mxc_str text;
    size_t at;
    struct mxc_map names; /* name -> rule */
    int depth;
};

struct items {
    int32_t *items;
    size_t n, capacity;
};

static void put(struct parser *p, struct items *list, int32_t node) {
    if (!mxc_grammar_grow((void **)&list->items, &list->capacity, list->n + 1, sizeof *list->items))
        (void)mxc_grammar_fail(p->b, MXC_E_NOMEM, "out of memory");
    else
        list->items[list->n++] = node;
}

static int32_t fail_at(struct parser *p, size_t at, enum mxc_code code, const char *what) {
    size_t line = 1, column = 1;
    for (size_t i = 0; i < at && i < p->text.length; i++) {
        column++;
        if (p->text.ptr[i] == '\n') {
            line++;
            column = 1;
        }
    }
    return mxc_grammar_fail(p->b, code, "grammar, line %zu, column %zu: %s", line, column, what);
}

static int32_t fail(struct parser *p, const char *what) {
    return fail_at(p, p->at, MXC_E_ARG, what);
}

static char peek(const struct parser *p) {
    return p->at < p->text.length ? p->text.ptr[p->at] : 0;
}

static bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
}

static void space(struct parser *p, bool newlines) {
    while (p->at < p->text.length) {
        char c = peek(p);
        if (c == '#') {
            while (p->at < p->text.length && peek(p) != '\n')
                p->at++;
        } else if (c == ' ' || c == '\t' || c == '\r' || (newlines && c == '\n')) {
            p->at++;
        } else {
            break;
        }
    }
}

static struct mxc_str name(struct parser *p) {
    size_t from = p->at;
    while (p->at < p->text.length && is_name(peek(p)))
        p->at++;
    return (struct mxc_str){p->text.ptr + from, p->at - from};
}

/* false: failed. */
static bool hex(struct parser *p, int digits, uint32_t *out) {
    uint32_t value = 0;
    for (int i = 0; i < digits; i++, p->at++) {
        int digit = p->at < p->text.length ? mxc_hex_digit(peek(p)) : -1;
        if (digit < 0) {
            (void)fail(p, "a hexadecimal digit is missing in an escape");
            return false;
        }
        value = value << 4 | (uint32_t)digit;
    }
    if (value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) {
        (void)fail(p, "an escape that is no character");
        return false;
    }
    *out = value;
    return true;
}

/* One character, perhaps escaped. */
static bool character(struct parser *p, uint32_t *out) {
    if (p->at >= p->text.length || peek(p) == '\n') {
        (void)fail(p, "the line ends inside quotes or brackets");
        return false;
    }
    if (peek(p) != '\\') {
        size_t n = mxc_utf8_decode(p->text.ptr + p->at, p->text.length - p->at, out);
        if (*out > 0x10ffff) {
            (void)fail(p, "not UTF-8");
            return false;
        }
        p->at += n;
        return true;
    }
    p->at++;
    char c = peek(p);
    p->at += p->at < p->text.length;
    switch (c) {
    case 'x':
        return hex(p, 2, out);
    case 'u':
        return hex(p, 4, out);
    case 'U':
        return hex(p, 8, out);
    case 'n':
        *out = '\n';
        return true;
    case 'r':
        *out = '\r';
        return true;
    case 't':
        *out = '\t';
        return true;
    case '\\':
    case '"':
    case '[':
    case ']':
    case '-':
    case '^':
        *out = (uint32_t)c;
        return true;
    default:
        p->at--;
        (void)fail(p, "an unknown escape");
        return false;
    }
}

static int32_t literal(struct parser *p) {
    struct mxc_buf text;
    int32_t node = -1;
    mxc_buf_init(&text, MXC_GRAMMAR_MAX_TEXT);
    p->at++;
    while (peek(p) != '"') {
        uint32_t cp;
        if (!character(p, &cp))
            goto out;
        mxc_buf_utf8(&text, cp);
    }
    p->at++;
    if (mxc_buf_status(&text, NULL))
        (void)mxc_grammar_fail(p->b, MXC_E_NOMEM, "out of memory");
    node = mxc_grammar_add_literal(p->b, (struct mxc_str){mxc_buf_text(&text), text.length});
out:
    mxc_buf_fini(&text);
    return node;
}

static int32_t class(struct parser *p) {
    struct mxc_charset set;
    int32_t node = -1;
    mxc_charset_init(&set);
    p->at++;
    bool negated = peek(p) == '^';
    p->at += negated;
    while (peek(p) != ']') {
        uint32_t first, last;
        size_t from = p->at;
        if (!character(p, &first))
            goto out;
        last = first;
        if (peek(p) == '-' && p->at + 1 < p->text.length && p->text.ptr[p->at + 1] != ']') {
            p->at++;
            if (!character(p, &last))
                goto out;
        }
        if (last < first) {
            (void)fail_at(p, from, MXC_E_ARG, "a range that ends before it begins");
            goto out;
        }
        mxc_charset_add(&set, first, last);
    }
    p->at++;
    mxc_charset_settle(&set);
    if (negated && !set.failed)
        mxc_charset_negate(&set);
    node = mxc_grammar_add_charset(p->b, &set);
out:
    mxc_charset_fini(&set);
    return node;
}

static bool number(struct parser *p, int32_t *out) {
    int64_t value = 0;
    size_t from = p->at;
    while (peek(p) >= '0' && peek(p) <= '9') {
        value = value * 10 + (peek(p) - '0');
        if (value > MXC_GRAMMAR_MAX_REPEAT) {
            (void)mxc_grammar_fail(p->b, MXC_E_LIMIT,
                                   "grammar, offset %zu: a repetition of more than %d times (%lld)",
                                   from, MXC_GRAMMAR_MAX_REPEAT, (long long)value);
            return false;
        }
        p->at++;
    }
    if (p->at == from) {
        (void)fail(p, "a number is missing");
        return false;
    }
    *out = (int32_t)value;
    return true;
}

static int32_t repetition(struct parser *p, int32_t item) {
    int32_t min = 0, max;
    size_t from = p->at++;
    space(p, false);
    if (peek(p) != ',' && !number(p, &min))
        return -1;
    max = min;
    space(p, false);
    if (peek(p) == ',') {
        p->at++;
        space(p, false);
        max = -1;
        if (peek(p) != '}' && !number(p, &max))
            return -1;
        space(p, false);
    }
    if (peek(p) != '}')
        return fail(p, "a } is missing");
    if (max >= 0 && max < min)
        return fail_at(p, from, MXC_E_ARG, "a repetition whose end is less than its beginning");
    p->at++;
    return mxc_grammar_add_repeat(p->b, item, min, max);
}

static int32_t reference(struct parser *p) {
    struct mxc_str n = name(p);
    uint64_t rule;
    if (!mxc_map_get(&p->names, n, &rule)) {
        int32_t made = mxc_grammar_add_rule(p->b, n);
        if (made < 0 || !mxc_map_put(&p->names, n, (uint64_t)made))
            return mxc_grammar_fail(p->b, MXC_E_NOMEM, "out of memory");
        rule = (uint64_t)made;
    }
    return mxc_grammar_add_ref(p->b, (int32_t)rule);
}

static int32_t alternatives(struct parser *p, bool nested);

static int32_t element(struct parser *p, bool nested) {
    int32_t node;
    switch (peek(p)) {
    case '"':
        node = literal(p);
        break;
    case '[':
        node = class(p);
        break;
    case '.':
        p->at++;
        node = mxc_grammar_add_class(p->b, NULL, 0, true);
        break;
    case '(':
        if (p->depth >= MXC_GRAMMAR_MAX_NESTING)
            return mxc_grammar_fail(p->b, MXC_E_LIMIT,
                                    "grammar: groups are nested more than %d deep; the limit is %d",
                                    MXC_GRAMMAR_MAX_NESTING, MXC_GRAMMAR_MAX_NESTING);
        p->depth++;
        p->at++;
        node = alternatives(p, true);
        p->depth--;
        if (node >= 0 && peek(p) != ')')
            return fail(p, "a ) is missing");
        p->at++;
        break;
    case '<':
    case '!':
        return fail_at(p, p->at, MXC_E_UNSUPPORTED, "tokens (<...>) are not supported in grammars");
    default:
        node = reference(p);
    }
    if (node < 0)
        return -1;
    for (;;) {
        space(p, nested);
        char c = peek(p);
        if (c == '*' || c == '+' || c == '?') {
            p->at++;
            node = mxc_grammar_add_repeat(p->b, node, c == '+', c == '?' ? 1 : -1);
        } else if (c == '{') {
            node = repetition(p, node);
        } else {
            return node;
        }
        if (node < 0)
            return -1;
    }
}

static int32_t sequence(struct parser *p, bool nested) {
    struct items list = {0};
    for (;;) {
        space(p, nested);
        char c = peek(p);
        if (c != '"' && c != '[' && c != '.' && c != '(' && c != '<' && c != '!' && !is_name(c))
            break;
        if (mxc_grammar_failed(p->b))
            break;
        put(p, &list, element(p, nested));
    }
    int32_t node = mxc_grammar_add_seq(p->b, list.items, list.n);
    mxc_mem_free(list.items);
    return node;
}

static int32_t alternatives(struct parser *p, bool nested) {
    struct items list = {0};
    for (;;) {
        put(p, &list, sequence(p, nested));
        size_t end = p->at;
        space(p, true);
        if (peek(p) != '|' || mxc_grammar_failed(p->b)) {
            p->at = nested ? p->at : end;
            break;
        }
        p->at++;
        space(p, true);
    }
    int32_t node = mxc_grammar_add_alt(p->b, list.items, list.n);
    mxc_mem_free(list.items);
    return node;
}

static void rule(struct parser *p) {
    size_t from = p->at;
    struct mxc_str n = name(p);
    uint64_t number_of = 0;
    if (!n.length) {
        (void)fail(p, "a rule's name is missing");
        return;
    }
    space(p, false);
    if (p->text.length - p->at < 3 || memcmp(p->text.ptr + p->at, "::=", 3) != 0) {
        (void)fail(p, "::= is missing");
        return;
    }
    p->at += 3;
    space(p, true);
    int32_t body = alternatives(p, false);
    if (body < 0)
        return;
    if (p->at < p->text.length && peek(p) != '\n') {
        (void)fail(p, "an unexpected character");
        return;
    }
    if (!mxc_map_get(&p->names, n, &number_of)) {
        int32_t made = mxc_grammar_add_rule(p->b, n);
        if (made < 0 || !mxc_map_put(&p->names, n, (uint64_t)made)) {
            (void)mxc_grammar_fail(p->b, MXC_E_NOMEM, "out of memory");
            return;
        }
        number_of = (uint64_t)made;
    }
    if (p->b->defs[number_of].node >= 0)
        (void)fail_at(p, from, MXC_E_ARG, "the rule is defined twice");
    mxc_grammar_set_rule(p->b, (int32_t)number_of, body);
}

int32_t mxc_grammar_add_gbnf(struct mxc_grammar_builder *b, struct mxc_str text) {
    struct parser p = {.b = b, .text = text};
    uint64_t root;
    size_t first = b->n_defs;
    if (text.length > MXC_GRAMMAR_MAX_TEXT)
        return mxc_grammar_fail(b, MXC_E_LIMIT, "a grammar of %zu bytes; the limit is %d",
                                text.length, MXC_GRAMMAR_MAX_TEXT);
    mxc_map_init(&p.names);
    for (;;) {
        space(&p, true);
        if (p.at >= text.length || mxc_grammar_failed(b))
            break;
        rule(&p);
    }
    for (size_t i = first; i < b->n_defs && !mxc_grammar_failed(b); i++)
        if (b->defs[i].node < 0)
            (void)mxc_grammar_fail(b, MXC_E_ARG, "grammar: the rule %s is used but not defined",
                                   b->defs[i].name);
    if (!mxc_map_get(&p.names, MXC_STR("root"), &root))
        root = (uint64_t)mxc_grammar_fail(b, MXC_E_ARG, "grammar: there is no rule root");
    mxc_map_fini(&p.names);
    return mxc_grammar_failed(b) ? -1 : mxc_grammar_add_ref(b, (int32_t)root);
}
