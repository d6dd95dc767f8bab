/* Regular expressions, the part that is regular: characters, classes, . \d \w \s \p{..}, groups, |,
 * * + ? {m,n} (lazy ones mean the same language), ^ and $ at the ends of the pattern or of an
 * alternative that spans it. References, lookaround and flags are refused by name.
 * In: a pattern. Out: a node; either the whole text matches, or (JSON) the pattern occurs in a JSON
 * string's content, every character as it stands inside the quotes.
 * Invariants: classes are those of ECMA-262 (\d and \w are ASCII; \s and \S leave out what other
 * engines read otherwise); nesting is bounded. */
#include "gen/grammar/ir.h"

#include "base/mem.h"

#include <string.h>

struct parser {
    struct mxc_grammar_builder *b;
    struct mxc_str text;
    size_t at;
    enum mxc_gregex_mode mode;
    const char *where; /* a JSON pointer, or "" */
    int depth;
};

static int32_t fail_at(struct parser *p, size_t at, enum mxc_code code, const char *what) {
    return mxc_grammar_fail(p->b, code, "%s%spattern, character %zu: %s", p->where,
                            *p->where ? ": " : "", at + 1, what);
}

static int32_t fail(struct parser *p, const char *what) {
    return fail_at(p, p->at, MXC_E_ARG, what);
}

static int32_t refuse(struct parser *p, const char *what) {
    return fail_at(p, p->at, MXC_E_UNSUPPORTED, what);
}

static bool more(const struct parser *p) {
    return p->at < p->text.length;
}

static char peek(const struct parser *p) {
    return more(p) ? p->text.ptr[p->at] : 0;
}

static bool looks(const struct parser *p, const char *text) {
    size_t n = strlen(text);
    return p->text.length - p->at >= n && !memcmp(p->text.ptr + p->at, text, n);
}

static int32_t emit(struct parser *p, struct mxc_charset *set) {
    return p->mode == MXC_GREGEX_JSON ? mxc_grammar_add_json_chars(p->b, set)
                                      : mxc_grammar_add_charset(p->b, set);
}

static void add_line_ends(struct mxc_charset *set) {
    mxc_charset_add(set, '\n', '\n');
    mxc_charset_add(set, '\r', '\r');
    mxc_charset_add(set, 0x2028, 0x2029);
}

/* White space that validators agree on; wide: that any of them counts as such (ECMA-262 has U+FEFF,
 * others have U+0085 and the separators of ASCII). */
static void add_space(struct mxc_charset *set, bool wide) {
    static const uint32_t spaces[][2] = {{9, 13},          {32, 32},         {0xa0, 0xa0},
                                         {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029},
                                         {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}};
    for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++)
        mxc_charset_add(set, spaces[i][0], spaces[i][1]);
    if (!wide)
        return;
    mxc_charset_add(set, 0x1c, 0x1f);
    mxc_charset_add(set, 0x85, 0x85);
    mxc_charset_add(set, 0xfeff, 0xfeff);
}

/* \d, \w, \s and their complements. false: not one of them. */
static bool add_escape_class(struct mxc_charset *set, char c) {
    struct mxc_charset own;
    char lower = (char)(c | 0x20);
    if (lower != 'd' && lower != 'w' && lower != 's')
        return false;
    mxc_charset_init(&own);
    if (lower == 's') {
        add_space(&own, c != lower);
    } else {
        mxc_charset_add(&own, '0', '9');
        if (lower == 'w') {
            mxc_charset_add(&own, 'a', 'z');
            mxc_charset_add(&own, 'A', 'Z');
            mxc_charset_add(&own, '_', '_');
        }
    }
    mxc_charset_settle(&own);
    if (c != lower && !own.failed)
        mxc_charset_negate(&own);
    mxc_charset_add_set(set, &own);
    set->failed |= own.failed;
    mxc_charset_fini(&own);
    return true;
}

/* \p{..} behind the backslash. */
static bool add_property(struct parser *p, struct mxc_charset *set) {
    bool negated = peek(p) == 'P';
    size_t from = p->at + 2, end = from;
    uint32_t mask;
    enum mxc_unicode_set named;
    struct mxc_charset own;
    while (end < p->text.length && p->text.ptr[end] != '}')
        end++;
    if (p->at + 1 >= p->text.length || p->text.ptr[p->at + 1] != '{' || end >= p->text.length) {
        (void)fail(p, "a property without {...}");
        return false;
    }
    struct mxc_str name = {p->text.ptr + from, end - from};
    mxc_charset_init(&own);
    bool known = mxc_unicode_categories_by_name(name, &mask);
    if (known)
        mxc_charset_add_categories(&own, mask);
    else if ((known = mxc_unicode_set_by_name(name, &named)))
        mxc_charset_add_property(&own, named);
    mxc_charset_settle(&own);
    if (negated && !own.failed)
        mxc_charset_negate(&own);
    mxc_charset_add_set(set, &own);
    set->failed |= own.failed;
    mxc_charset_fini(&own);
    if (!known)
        (void)refuse(p, "an unknown Unicode property");
    p->at = end + 1;
    return known;
}

static bool hex(struct parser *p, int digits, uint32_t *out) {
    uint32_t value = 0;
    for (int i = 0; i < digits; i++, p->at++) {
        int digit = more(p) ? mxc_hex_digit(peek(p)) : -1;
        if (digit < 0) {
            (void)fail(p, "a hexadecimal digit is missing");
            return false;
        }
        value = value << 4 | (uint32_t)digit;
    }
    *out = value;
    return true;
}

/* \u behind the u: four digits, a surrogate pair, or {...}. */
static bool unicode_escape(struct parser *p, uint32_t *out) {
    uint32_t value = 0, low;
    if (peek(p) == '{') {
        for (p->at++; more(p) && peek(p) != '}'; p->at++) {
            int digit = mxc_hex_digit(peek(p));
            if (digit < 0 || (value = value << 4 | (uint32_t)digit) > 0x10ffff) {
                (void)fail(p, "not a code point");
                return false;
            }
        }
        p->at++;
    } else {
        if (!hex(p, 4, &value))
            return false;
        if (value >= 0xd800 && value < 0xdc00 && looks(p, "\\u")) {
            p->at += 2;
            if (!hex(p, 4, &low))
                return false;
            if (low >= 0xdc00 && low < 0xe000)
                value = 0x10000 + ((value - 0xd800) << 10) + (low - 0xdc00);
        }
    }
    if (value >= 0xd800 && value < 0xe000) {
        (void)refuse(p, "half a surrogate pair");
        return false;
    }
    *out = value;
    return true;
}

/* An escape that stands for one character, behind the backslash. */
static bool char_escape(struct parser *p, uint32_t *out) {
    static const char from[] = "nrtfv0", to[] = "\n\r\t\f\v\0";
    char c = peek(p);
    const char *known = c ? strchr(from, c) : NULL;
    if (!more(p)) {
        (void)fail(p, "the pattern ends with a backslash");
        return false;
    }
    if (known) {
        p->at++;
        *out = (uint32_t)to[known - from];
        return true;
    }
    if (c == 'x' || c == 'u') {
        p->at++;
        return c == 'x' ? hex(p, 2, out) : unicode_escape(p, out);
    }
    if (c >= '1' && c <= '9') {
        (void)refuse(p, "back references are not supported");
        return false;
    }
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
        (void)refuse(p, c == 'b' || c == 'B' ? "word boundaries (\\b) are not supported"
                                             : "an escape that is not supported");
        return false;
    }
    p->at += mxc_utf8_decode(p->text.ptr + p->at, p->text.length - p->at, out);
    return true;
}

/* One member of a class; single: it is a character, which may open a range. */
static bool class_member(struct parser *p, struct mxc_charset *set, uint32_t *cp, bool *single) {
    *single = true;
    if (peek(p) != '\\') {
        p->at += mxc_utf8_decode(p->text.ptr + p->at, p->text.length - p->at, cp);
        return true;
    }
    p->at++;
    if (add_escape_class(set, peek(p))) {
        p->at++;
        *single = false;
        return true;
    }
    if (peek(p) == 'p' || peek(p) == 'P') {
        *single = false;
        return add_property(p, set);
    }
    if (peek(p) == 'b') {
        p->at++;
        *cp = '\b';
        return true;
    }
    return char_escape(p, cp);
}

static int32_t class(struct parser *p) {
    struct mxc_charset set;
    int32_t node = -1;
    size_t open = p->at++;
    bool negated = peek(p) == '^';
    mxc_charset_init(&set);
    p->at += negated;
    while (more(p) && peek(p) != ']') {
        uint32_t first = 0, last;
        bool single, ends_single = true;
        size_t from = p->at;
        if (looks(p, "[:")) {
            (void)refuse(p, "POSIX classes are not supported");
            goto out;
        }
        if (!class_member(p, &set, &first, &single))
            goto out;
        last = first;
        if (single && peek(p) == '-' && p->at + 1 < p->text.length &&
            p->text.ptr[p->at + 1] != ']') {
            p->at++;
            if (!class_member(p, &set, &last, &ends_single))
                goto out;
            if (!ends_single) { /* [a-\d]: the - is itself */
                mxc_charset_add(&set, '-', '-');
                last = first;
            }
        }
        if (last < first) {
            (void)fail_at(p, from, MXC_E_ARG, "a range that ends before it begins");
            goto out;
        }
        if (single)
            mxc_charset_add(&set, first, last);
    }
    if (!more(p)) {
        (void)fail_at(p, open, MXC_E_ARG, "a [ that is not closed");
        goto out;
    }
    p->at++;
    mxc_charset_settle(&set);
    if (negated && !set.failed)
        mxc_charset_negate(&set);
    node = emit(p, &set);
out:
    mxc_charset_fini(&set);
    return node;
}

static int32_t one_char(struct parser *p, uint32_t cp) {
    struct mxc_charset set;
    mxc_charset_init(&set);
    mxc_charset_add(&set, cp, cp);
    int32_t node = emit(p, &set);
    mxc_charset_fini(&set);
    return node;
}

static int32_t dot(struct parser *p) {
    struct mxc_charset set;
    mxc_charset_init(&set);
    add_line_ends(&set);
    mxc_charset_settle(&set);
    if (!set.failed)
        mxc_charset_negate(&set);
    int32_t node = emit(p, &set);
    mxc_charset_fini(&set);
    return node;
}

static int32_t escape(struct parser *p) {
    struct mxc_charset set;
    uint32_t cp;
    int32_t node = -1;
    p->at++;
    if (peek(p) == 'A' || peek(p) == 'Z' || peek(p) == 'z')
        return refuse(p, "\\A and \\Z are not supported; use ^ and $");
    mxc_charset_init(&set);
    if (add_escape_class(&set, peek(p))) {
        p->at++;
        node = emit(p, &set);
    } else if (peek(p) == 'p' || peek(p) == 'P') {
        if (add_property(p, &set))
            node = emit(p, &set);
    } else if (peek(p) == 'k') {
        node = refuse(p, "back references are not supported");
    } else if (char_escape(p, &cp)) {
        node = one_char(p, cp);
    }
    mxc_charset_fini(&set);
    return node;
}

/* Everything that is matched, with the ends: whether ^ or $ stood there. */
struct piece {
    int32_t node;
    bool begins, ends;
};

static struct piece alternatives(struct parser *p);

static struct piece group(struct parser *p) {
    struct piece none = {-1, false, false};
    if (p->depth >= MXC_GRAMMAR_MAX_NESTING) {
        (void)mxc_grammar_fail(p->b, MXC_E_LIMIT,
                               "%spattern: groups are nested more than %d deep; the limit is %d",
                               p->where, MXC_GRAMMAR_MAX_NESTING, MXC_GRAMMAR_MAX_NESTING);
        return none;
    }
    size_t open = p->at++;
    if (looks(p, "?:")) {
        p->at += 2;
    } else if (looks(p, "?<") && !looks(p, "?<=") && !looks(p, "?<!")) {
        while (more(p) && peek(p) != '>')
            p->at++;
        p->at++;
    } else if (looks(p, "?P<")) {
        while (more(p) && peek(p) != '>')
            p->at++;
        p->at++;
    } else if (peek(p) == '?') {
        (void)refuse(p, looks(p, "?=") || looks(p, "?!") || looks(p, "?<")
                            ? "lookaround is not supported"
                            : "flags and special groups are not supported");
        return none;
    }
    p->depth++;
    struct piece inner = alternatives(p);
    p->depth--;
    if (inner.node >= 0 && peek(p) != ')')
        inner.node = fail_at(p, open, MXC_E_ARG, "a ( that is not closed");
    p->at++;
    return inner;
}

static bool bound(struct parser *p, int32_t *out) {
    int64_t value = 0;
    while (peek(p) >= '0' && peek(p) <= '9') {
        value = value * 10 + (peek(p) - '0');
        if (value > MXC_GRAMMAR_MAX_REPEAT) {
            (void)mxc_grammar_fail(
                p->b, MXC_E_LIMIT, "%s%spattern: a repetition of %lld times; the limit is %d",
                p->where, *p->where ? ": " : "", (long long)value, MXC_GRAMMAR_MAX_REPEAT);
            return false;
        }
        p->at++;
    }
    *out = (int32_t)value;
    return true;
}

/* Whether a { opens a quantifier: {m}, {m,} or {m,n}. */
static bool is_quantifier(const struct parser *p) {
    size_t i = p->at + 1, digits = i;
    while (i < p->text.length && p->text.ptr[i] >= '0' && p->text.ptr[i] <= '9')
        i++;
    if (i == digits)
        return false;
    if (i < p->text.length && p->text.ptr[i] == ',')
        i++;
    while (i < p->text.length && p->text.ptr[i] >= '0' && p->text.ptr[i] <= '9')
        i++;
    return i < p->text.length && p->text.ptr[i] == '}';
}

static int32_t quantified(struct parser *p, int32_t node) {
    for (int n = 0; node >= 0; n++) {
        char c = peek(p);
        int32_t min = c == '+', max = c == '?' ? 1 : -1;
        if (c == '{' && is_quantifier(p)) {
            p->at++;
            if (!bound(p, &min))
                return -1;
            max = min;
            if (peek(p) == ',') {
                p->at++;
                max = -1;
                if (peek(p) != '}' && !bound(p, &max))
                    return -1;
            }
            if (max >= 0 && max < min)
                return fail(p, "a repetition whose end is less than its beginning");
        } else if (c != '*' && c != '+' && c != '?') {
            return node;
        }
        if (n)
            return fail(p, "nothing to repeat");
        p->at++;
        node = mxc_grammar_add_repeat(p->b, node, min, max);
        if (peek(p) == '?') /* lazy: the same texts */
            p->at++;
        else if (peek(p) == '+')
            return refuse(p, "possessive repetitions are not supported");
    }
    return node;
}

static int32_t atom(struct parser *p) {
    uint32_t cp;
    switch (peek(p)) {
    case '[':
        return class(p);
    case '.':
        p->at++;
        return dot(p);
    case '\\':
        return escape(p);
    case '*':
    case '+':
    case '?':
        return fail(p, "nothing to repeat");
    default:
        p->at += mxc_utf8_decode(p->text.ptr + p->at, p->text.length - p->at, &cp);
        return one_char(p, cp);
    }
}

static struct piece sequence(struct parser *p) {
    struct piece out = {-1, false, false};
    int32_t *items = NULL;
    size_t n = 0, capacity = 0;
    while (more(p) && peek(p) != '|' && peek(p) != ')' && !mxc_grammar_failed(p->b)) {
        struct piece part = {-1, false, false};
        size_t from = p->at;
        if (out.ends) {
            (void)refuse(p, "$ is supported at the end only");
            break;
        }
        if (peek(p) == '^' || peek(p) == '$') {
            bool begin = peek(p) == '^';
            if (begin && n) {
                (void)refuse(p, "^ is supported at the beginning only");
                break;
            }
            p->at++;
            out.begins |= begin;
            out.ends |= !begin;
            continue;
        }
        part.node = -1;
        if (peek(p) == '(')
            part = group(p);
        else
            part.node = atom(p);
        if (part.begins && n) {
            (void)fail_at(p, from, MXC_E_UNSUPPORTED, "^ is supported at the beginning only");
            break;
        }
        size_t at = p->at;
        part.node = quantified(p, part.node);
        if ((part.begins || part.ends) && p->at != at) {
            (void)fail_at(p, from, MXC_E_UNSUPPORTED, "^ or $ inside a repetition");
            break;
        }
        out.begins |= part.begins;
        out.ends |= part.ends;
        if (!mxc_grammar_grow((void **)&items, &capacity, n + 1, sizeof *items)) {
            (void)mxc_grammar_fail(p->b, MXC_E_NOMEM, "out of memory");
            break;
        }
        items[n++] = part.node;
    }
    out.node = mxc_grammar_add_seq(p->b, items, n);
    mxc_mem_free(items);
    return out;
}

/* Where the pattern is searched for, what may stand around it is added per alternative of the
 * outermost level; inside a group all alternatives must agree about their ends. */
static int32_t around(struct parser *p, struct piece s) {
    if (p->mode != MXC_GREGEX_JSON || s.node < 0)
        return s.node;
    int32_t any = mxc_grammar_add_repeat(p->b, mxc_grammar_add_json_any_char(p->b), 0, -1);
    if (!s.begins)
        s.node = mxc_grammar_add_pair(p->b, any, s.node);
    return s.ends ? s.node : mxc_grammar_add_pair(p->b, s.node, any);
}

static struct piece alternatives(struct parser *p) {
    struct piece out = {-1, false, false};
    int32_t *items = NULL;
    size_t n = 0, capacity = 0;
    for (;;) {
        size_t from = p->at;
        struct piece s = sequence(p);
        if (p->depth && n && (s.begins != out.begins || s.ends != out.ends)) {
            (void)fail_at(p, from, MXC_E_UNSUPPORTED,
                          "^ or $ in some alternatives of a group and not in others");
            break;
        }
        out.begins = s.begins;
        out.ends = s.ends;
        if (!p->depth)
            s.node = around(p, s);
        if (!mxc_grammar_grow((void **)&items, &capacity, n + 1, sizeof *items)) {
            (void)mxc_grammar_fail(p->b, MXC_E_NOMEM, "out of memory");
            break;
        }
        items[n++] = s.node;
        if (peek(p) != '|' || mxc_grammar_failed(p->b))
            break;
        p->at++;
    }
    out.node = mxc_grammar_add_alt(p->b, items, n);
    mxc_mem_free(items);
    return out;
}

int32_t mxc_grammar_add_pattern(struct mxc_grammar_builder *b, struct mxc_str pattern,
                                enum mxc_gregex_mode mode, const char *where) {
    struct parser p = {.b = b, .text = pattern, .mode = mode, .where = where};
    if (pattern.length > MXC_GRAMMAR_MAX_TEXT)
        return mxc_grammar_fail(b, MXC_E_LIMIT, "a pattern of %zu bytes; the limit is %d",
                                pattern.length, MXC_GRAMMAR_MAX_TEXT);
    if (!mxc_utf8_valid(pattern.ptr, pattern.length))
        return mxc_grammar_fail(b, MXC_E_ARG, "%s%spattern: not UTF-8", where, *where ? ": " : "");
    struct piece all = alternatives(&p);
    if (all.node >= 0 && more(&p))
        return fail(&p, "a ) without (");
    return all.node;
}

int32_t mxc_grammar_add_regex(struct mxc_grammar_builder *b, struct mxc_str pattern) {
    return mxc_grammar_add_pattern(b, pattern, MXC_GREGEX_WHOLE, "");
}
