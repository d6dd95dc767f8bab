/* JSON as a grammar: values, objects, strings, numbers, white space, constants. The rules of free
 * JSON are made once per builder and stay rules, so their token masks are shared by all places that
 * use them.
 * Invariants: white space is bounded; numbers have at most 16 digits before and behind the point
 * and two in the exponent, so no number runs on for ever or overflows a double; strings have no
 * half surrogate pairs and no \u0000. */
#include "gen/grammar/ir.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_DIGITS = 16, MAX_INDENT = 32 };

int32_t mxc_grammar_add_json_space(struct mxc_grammar_builder *b) {
    if (b->space == MXC_JSON_COMPACT)
        return mxc_grammar_add_literal(b, (struct mxc_str){"", 0});
    int32_t space = mxc_grammar_add_text(b, " ");
    if (b->space == MXC_JSON_PRETTY) {
        struct mxc_code_range indent[2] = {{' ', ' '}, {'\t', '\t'}};
        int32_t line = mxc_grammar_add_pair(
            b, mxc_grammar_add_text(b, "\n"),
            mxc_grammar_add_repeat(b, mxc_grammar_add_class(b, indent, 2, false), 0, MAX_INDENT));
        space = mxc_grammar_add_alt(b, (int32_t[]){space, line}, 2);
        return mxc_grammar_add_optional(b, space);
    }
    return mxc_grammar_add_optional(b, space);
}

static int32_t range(struct mxc_grammar_builder *b, uint32_t first, uint32_t last) {
    return mxc_grammar_add_class(b, &(struct mxc_code_range){first, last}, 1, false);
}

static int32_t hex(struct mxc_grammar_builder *b) {
    struct mxc_code_range digits[3] = {{'0', '9'}, {'a', 'f'}, {'A', 'F'}};
    return mxc_grammar_add_class(b, digits, 3, false);
}

/* Behind \u: a character of the basic plane but U+0000, or a surrogate pair. */
static int32_t unicode_escape(struct mxc_grammar_builder *b) {
    struct mxc_code_range plain[3] = {{'1', '9'}, {'a', 'c'}, {'A', 'C'}};
    struct mxc_code_range ef[2] = {{'e', 'f'}, {'E', 'F'}}, d[2] = {{'d', 'd'}, {'D', 'D'}};
    struct mxc_code_range high[3] = {{'8', '9'}, {'a', 'b'}, {'A', 'B'}};
    struct mxc_code_range low[2] = {{'c', 'f'}, {'C', 'F'}};
    struct mxc_code_range some[3] = {{'1', '9'}, {'a', 'f'}, {'A', 'F'}};
    int32_t h = hex(b), zero = mxc_grammar_add_text(b, "0"),
            dd = mxc_grammar_add_class(b, d, 2, false);
    int32_t nonzero = mxc_grammar_add_class(b, some, 3, false);
    int32_t ways[] = {
        mxc_grammar_add_seq(b, (int32_t[]){mxc_grammar_add_class(b, plain, 3, false), h, h, h}, 4),
        mxc_grammar_add_seq(b, (int32_t[]){mxc_grammar_add_class(b, ef, 2, false), h, h, h}, 4),
        mxc_grammar_add_seq(b, (int32_t[]){dd, range(b, '0', '7'), h, h}, 4),
        mxc_grammar_add_seq(b, (int32_t[]){zero, nonzero, h, h}, 4),
        mxc_grammar_add_seq(b, (int32_t[]){zero, zero, nonzero, h}, 4),
        mxc_grammar_add_seq(b, (int32_t[]){zero, zero, zero, nonzero}, 4),
        mxc_grammar_add_seq(b,
                            (int32_t[]){dd, mxc_grammar_add_class(b, high, 3, false), h, h,
                                        mxc_grammar_add_text(b, "\\u"), dd,
                                        mxc_grammar_add_class(b, low, 2, false), h, h},
                            9)};
    return mxc_grammar_add_alt(b, ways, sizeof ways / sizeof *ways);
}

static void add_never_raw(struct mxc_charset *set) {
    mxc_charset_add(set, 0, 0x1f);
    mxc_charset_add(set, '"', '"');
    mxc_charset_add(set, '\\', '\\');
}

static int32_t raw_char(struct mxc_grammar_builder *b) {
    struct mxc_code_range never[3] = {{0, 0x1f}, {'"', '"'}, {'\\', '\\'}};
    return mxc_grammar_add_class(b, never, 3, true);
}

int32_t mxc_grammar_add_json_any_char(struct mxc_grammar_builder *b) {
    struct mxc_code_range simple[8] = {{'"', '"'}, {'\\', '\\'}, {'/', '/'}, {'b', 'b'},
                                       {'f', 'f'}, {'n', 'n'},   {'r', 'r'}, {'t', 't'}};
    int32_t behind[2] = {mxc_grammar_add_class(b, simple, 8, false),
                         mxc_grammar_add_pair(b, mxc_grammar_add_text(b, "u"), unicode_escape(b))};
    int32_t escaped =
        mxc_grammar_add_pair(b, mxc_grammar_add_text(b, "\\"), mxc_grammar_add_alt(b, behind, 2));
    return mxc_grammar_add_alt(b, (int32_t[]){raw_char(b), escaped}, 2);
}

/* The escape of a character that cannot stand for itself. */
static const char *escape_of(uint32_t cp, char out[8]) {
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    const char *known = cp ? strchr(from, (int)cp) : NULL;
    if (known)
        (void)snprintf(out, 8, "\\%c", to[known - from]);
    else
        (void)snprintf(out, 8, "\\u%04x", cp);
    return out;
}

int32_t mxc_grammar_add_json_chars(struct mxc_grammar_builder *b, struct mxc_charset *set) {
    struct mxc_charset raw;
    int32_t items[40];
    size_t n = 0;
    char text[8];
    mxc_charset_settle(set);
    mxc_charset_init(&raw); /* set without what never stands for itself */
    mxc_charset_add_set(&raw, set);
    mxc_charset_settle(&raw);
    if (!raw.failed)
        mxc_charset_negate(&raw);
    add_never_raw(&raw);
    mxc_charset_settle(&raw);
    if (!raw.failed)
        mxc_charset_negate(&raw);
    if (set->failed || raw.failed)
        (void)mxc_grammar_fail(b, MXC_E_NOMEM, "out of memory");
    else if (raw.n_ranges)
        items[n++] = mxc_grammar_add_charset(b, &raw);
    mxc_charset_fini(&raw);
    for (uint32_t cp = 1; cp <= '\\' && !set->failed; cp++)
        if ((cp < 0x20 || cp == '"' || cp == '\\') && mxc_charset_has(set, cp))
            items[n++] = mxc_grammar_add_text(b, escape_of(cp, text));
    return mxc_grammar_add_alt(b, items, n);
}

int32_t mxc_grammar_add_json_text(struct mxc_grammar_builder *b, struct mxc_str text) {
    struct mxc_buf out;
    char escaped[8];
    if (!mxc_utf8_valid(text.ptr, text.length))
        return mxc_grammar_fail(b, MXC_E_ARG, "a string that is not UTF-8");
    mxc_buf_init(&out, MXC_GRAMMAR_MAX_TEXT);
    mxc_buf_putc(&out, '"');
    for (size_t i = 0; i < text.length; i++) {
        uint8_t c = (uint8_t)text.ptr[i];
        if (c < 0x20 || c == '"' || c == '\\')
            mxc_buf_puts(&out, escape_of(c, escaped));
        else
            mxc_buf_putc(&out, (char)c);
    }
    mxc_buf_putc(&out, '"');
    int32_t node = -1;
    if (out.full)
        (void)mxc_grammar_fail(b, MXC_E_LIMIT, "a string of %zu bytes; the limit is %d",
                               text.length, MXC_GRAMMAR_MAX_TEXT);
    else if (out.failed)
        (void)mxc_grammar_fail(b, MXC_E_NOMEM, "out of memory");
    else
        node = mxc_grammar_add_literal(b, (struct mxc_str){mxc_buf_text(&out), out.length});
    mxc_buf_fini(&out);
    return node;
}

/* ---- shared rules */

static int32_t integer(struct mxc_grammar_builder *b) {
    int32_t digits = mxc_grammar_add_repeat(b, range(b, '0', '9'), 0, MAX_DIGITS - 1);
    int32_t some = mxc_grammar_add_pair(b, range(b, '1', '9'), digits);
    int32_t sign = mxc_grammar_add_optional(b, mxc_grammar_add_text(b, "-"));
    return mxc_grammar_add_pair(
        b, sign, mxc_grammar_add_alt(b, (int32_t[]){mxc_grammar_add_text(b, "0"), some}, 2));
}

static int32_t number(struct mxc_grammar_builder *b) {
    struct mxc_code_range e[2] = {{'e', 'e'}, {'E', 'E'}}, signs[2] = {{'+', '+'}, {'-', '-'}};
    int32_t digit = range(b, '0', '9');
    int32_t fraction = mxc_grammar_add_pair(b, mxc_grammar_add_text(b, "."),
                                            mxc_grammar_add_repeat(b, digit, 1, MAX_DIGITS));
    int32_t sign = mxc_grammar_add_optional(b, mxc_grammar_add_class(b, signs, 2, false));
    int32_t exponent = mxc_grammar_add_seq(b,
                                           (int32_t[]){mxc_grammar_add_class(b, e, 2, false), sign,
                                                       mxc_grammar_add_repeat(b, digit, 1, 2)},
                                           3);
    return mxc_grammar_add_seq(b,
                               (int32_t[]){integer(b), mxc_grammar_add_optional(b, fraction),
                                           mxc_grammar_add_optional(b, exponent)},
                               3);
}

static int32_t string(struct mxc_grammar_builder *b) {
    int32_t quote = mxc_grammar_add_text(b, "\"");
    int32_t content = mxc_grammar_add_repeat(b, mxc_grammar_add_json_any_char(b), 0, -1);
    return mxc_grammar_add_seq(b, (int32_t[]){quote, content, quote}, 3);
}

/* open item (, item)* close */
static int32_t list(struct mxc_grammar_builder *b, const char *open, int32_t item,
                    const char *close) {
    int32_t space = mxc_grammar_add_json_space(b);
    int32_t more =
        mxc_grammar_add_seq(b, (int32_t[]){mxc_grammar_add_text(b, ","), space, item}, 3);
    int32_t items =
        mxc_grammar_add_seq(b, (int32_t[]){item, mxc_grammar_add_repeat(b, more, 0, -1), space}, 3);
    return mxc_grammar_add_seq(b,
                               (int32_t[]){mxc_grammar_add_text(b, open), space,
                                           mxc_grammar_add_optional(b, items),
                                           mxc_grammar_add_text(b, close)},
                               4);
}

static int32_t object(struct mxc_grammar_builder *b) {
    int32_t pair = mxc_grammar_add_seq(
        b,
        (int32_t[]){mxc_grammar_json_shared(b, MXC_G_JSON_STRING), mxc_grammar_add_text(b, ":"),
                    mxc_grammar_add_json_space(b), mxc_grammar_json_shared(b, MXC_G_JSON_VALUE)},
        4);
    return list(b, "{", pair, "}");
}

static int32_t value(struct mxc_grammar_builder *b) {
    int32_t ways[] = {mxc_grammar_json_shared(b, MXC_G_JSON_OBJECT),
                      list(b, "[", mxc_grammar_json_shared(b, MXC_G_JSON_VALUE), "]"),
                      mxc_grammar_json_shared(b, MXC_G_JSON_STRING),
                      mxc_grammar_json_shared(b, MXC_G_JSON_NUMBER),
                      mxc_grammar_add_text(b, "true"),
                      mxc_grammar_add_text(b, "false"),
                      mxc_grammar_add_text(b, "null")};
    return mxc_grammar_add_alt(b, ways, sizeof ways / sizeof *ways);
}

int32_t mxc_grammar_json_shared(struct mxc_grammar_builder *b, enum mxc_gshared which) {
    static const struct {
        const char *name;
        int32_t (*make)(struct mxc_grammar_builder *b);
    } rules[MXC_G_N_SHARED] = {[MXC_G_JSON_VALUE] = {"value", value},
                               [MXC_G_JSON_OBJECT] = {"object", object},
                               [MXC_G_JSON_STRING] = {"string", string},
                               [MXC_G_JSON_NUMBER] = {"number", number},
                               [MXC_G_JSON_INTEGER] = {"integer", integer}};
    if (b->shared[which] < 0) {
        int32_t rule = mxc_grammar_add_rule(b, mxc_str_of(rules[which].name));
        if (rule < 0)
            return -1;
        b->shared[which] = rule; /* before its body, which may need it */
        b->defs[rule].keep = true;
        mxc_grammar_set_rule(b, rule, rules[which].make(b));
    }
    return mxc_grammar_add_ref(b, b->shared[which]);
}

int32_t mxc_grammar_add_json_value(struct mxc_grammar_builder *b) {
    return mxc_grammar_json_shared(b, MXC_G_JSON_VALUE);
}

int32_t mxc_grammar_add_json_object(struct mxc_grammar_builder *b) {
    return mxc_grammar_json_shared(b, MXC_G_JSON_OBJECT);
}

/* ---- constants */

static int32_t const_number(struct mxc_grammar_builder *b, const json_t *v, const char *where) {
    char text[64];
    if (json_is_integer(v)) {
        (void)snprintf(text, sizeof text, "%lld", (long long)json_integer_value(v));
    } else {
        double real = json_real_value(v);
        if (!isfinite(real))
            return mxc_grammar_fail(b, MXC_E_ARG, "%s: a number that is not finite", where);
        for (int digits = 15; digits <= 17; digits++) {
            (void)snprintf(text, sizeof text, "%.*g", digits, real);
            double back;
            if (mxc_parse_f64(text, &back) && back == real) /* the shortest that reads back */
                break;
        }
    }
    return mxc_grammar_add_text(b, text);
}

struct parts {
    int32_t *items;
    size_t n, capacity;
};

static void put(struct mxc_grammar_builder *b, struct parts *parts, int32_t node) {
    if (!mxc_grammar_grow((void **)&parts->items, &parts->capacity, parts->n + 1,
                          sizeof *parts->items))
        (void)mxc_grammar_fail(b, MXC_E_NOMEM, "out of memory");
    else
        parts->items[parts->n++] = node;
}

static int32_t constant(struct mxc_grammar_builder *b, const json_t *v, const char *where,
                        int depth) {
    struct parts parts = {0};
    bool is_object = json_is_object(v);
    size_t n = is_object ? json_object_size(v) : json_array_size(v);
    if (depth > MXC_GRAMMAR_MAX_NESTING)
        return mxc_grammar_fail(b, MXC_E_LIMIT, "%s: nested more than %d deep; the limit is %d",
                                where, MXC_GRAMMAR_MAX_NESTING, MXC_GRAMMAR_MAX_NESTING);
    if (json_is_string(v))
        return mxc_grammar_add_json_text(
            b, (struct mxc_str){json_string_value(v), json_string_length(v)});
    if (json_is_number(v))
        return const_number(b, v, where);
    if (!is_object && !json_is_array(v))
        return mxc_grammar_add_text(b, json_is_true(v)    ? "true"
                                       : json_is_false(v) ? "false"
                                                          : "null");
    int32_t space = mxc_grammar_add_json_space(b);
    put(b, &parts, mxc_grammar_add_text(b, is_object ? "{" : "["));
    put(b, &parts, space);
    void *at = is_object ? json_object_iter((json_t *)(uintptr_t)v) : NULL;
    for (size_t i = 0; i < n && !mxc_grammar_failed(b); i++) {
        const json_t *item = is_object ? json_object_iter_value(at) : json_array_get(v, i);
        if (i) {
            put(b, &parts, mxc_grammar_add_text(b, ","));
            put(b, &parts, space);
        }
        if (is_object) {
            put(b, &parts, mxc_grammar_add_json_text(b, mxc_str_of(json_object_iter_key(at))));
            put(b, &parts, mxc_grammar_add_text(b, ":"));
            put(b, &parts, space);
            at = json_object_iter_next((json_t *)(uintptr_t)v, at);
        }
        put(b, &parts, constant(b, item, where, depth + 1));
    }
    if (n)
        put(b, &parts, space);
    put(b, &parts, mxc_grammar_add_text(b, is_object ? "}" : "]"));
    int32_t node = mxc_grammar_add_seq(b, parts.items, parts.n);
    mxc_mem_free(parts.items);
    return node;
}

int32_t mxc_grammar_add_json_const(struct mxc_grammar_builder *b, const json_t *v,
                                   const char *where) {
    return constant(b, v, where, 0);
}
