/* Parser of Oniguruma-style patterns. One pass of recursive descent writes PCRE2 syntax in which
 * every character, class and escape is a mark for a set of code points; sets are collected beside
 * it. Depth and the number of sets are bounded. Refused by name: what would need semantics we do
 * not have (back references, conditions, options but i) or that nobody uses in tokenisers. */
#include "text/regex_parse.h"

#include "base/mem.h"

#include <string.h>

enum { MAX_DEPTH = 64, MAX_REPEAT = 1000, NOT_CP = -1 };

struct parser {
    const char *begin, *p, *end;
    struct mxc_regex_parsed *parsed;
    struct mxc_err *err;
    int depth;
};

static enum mxc_code parse_alternatives(struct parser *ps, bool icase);

static enum mxc_code refuse(struct parser *ps, const char *what, size_t n) {
    return mxc_err_at(ps->err, MXC_E_UNSUPPORTED, ps->p - ps->begin,
                      "regular expression: \"%.*s\" is not supported", (int)n, what);
}

static enum mxc_code broken(struct parser *ps, const char *why) {
    return mxc_err_at(ps->err, MXC_E_FORMAT, ps->p - ps->begin, "regular expression: %s", why);
}

static bool more(const struct parser *ps) {
    return ps->p < ps->end;
}

static bool looking_at(const struct parser *ps, const char *text) {
    size_t n = strlen(text);
    return (size_t)(ps->end - ps->p) >= n && !memcmp(ps->p, text, n);
}

static bool eat(struct parser *ps, const char *text) {
    if (!looking_at(ps, text))
        return false;
    ps->p += strlen(text);
    return true;
}

static void put(struct parser *ps, const char *text) {
    mxc_buf_puts(&ps->parsed->out, text);
}

/* Takes the set over (its memory moves or is freed) and writes its mark. */
static enum mxc_code put_set(struct parser *ps, struct mxc_charset *set, bool icase) {
    struct mxc_regex_parsed *r = ps->parsed;
    size_t i = 0;
    mxc_charset_settle(set);
    if (icase)
        mxc_charset_close_case(set);
    if (set->failed) {
        mxc_charset_fini(set);
        return mxc_err_nomem(ps->err);
    }
    while (i < r->n_sets && !mxc_charset_equal(&r->sets[i], set))
        i++;
    if (i < r->n_sets) {
        mxc_charset_fini(set);
    } else if (r->n_sets == MXC_REGEX_MAX_SETS) {
        mxc_charset_fini(set);
        return mxc_err_set(ps->err, MXC_E_UNSUPPORTED,
                           "regular expression: more than %d different characters and classes",
                           MXC_REGEX_MAX_SETS);
    } else {
        r->sets[r->n_sets++] = *set;
    }
    mxc_buf_putc(&r->out, MXC_REGEX_SET_MARK);
    mxc_buf_putc(&r->out, (char)(i + 1));
    return MXC_OK;
}

static enum mxc_code put_cp(struct parser *ps, uint32_t cp, bool icase) {
    struct mxc_charset set;
    mxc_charset_init(&set);
    mxc_charset_add(&set, cp, cp);
    return put_set(ps, &set, icase);
}

static enum mxc_code take_cp(struct parser *ps, uint32_t *cp) {
    size_t n = mxc_utf8_decode(ps->p, (size_t)(ps->end - ps->p), cp);
    if (!n || *cp == 0xFFFFFFFFu)
        return broken(ps, "not UTF-8");
    ps->p += n;
    return MXC_OK;
}

/* min to max hex digits. */
static enum mxc_code take_hex(struct parser *ps, int min, int max, uint32_t *cp) {
    uint32_t v = 0;
    int n = 0;
    while (n < max && more(ps) && mxc_hex_digit(*ps->p) >= 0) {
        v = v * 16 + (uint32_t)mxc_hex_digit(*ps->p++);
        n++;
    }
    if (n < min || v > 0x10FFFF)
        return broken(ps, "bad hexadecimal escape");
    *cp = v;
    return MXC_OK;
}

/* After "\p" or "\P". */
static enum mxc_code parse_property(struct parser *ps, bool negate, struct mxc_charset *set) {
    struct mxc_str name;
    uint32_t mask;
    enum mxc_unicode_set property;
    struct mxc_charset part;
    if (eat(ps, "{")) {
        const char *close = memchr(ps->p, '}', (size_t)(ps->end - ps->p));
        if (!close)
            return broken(ps, "\\p{ without }");
        if (eat(ps, "^"))
            negate = !negate;
        name = (struct mxc_str){ps->p, (size_t)(close - ps->p)};
        ps->p = close + 1;
    } else {
        if (!more(ps))
            return broken(ps, "\\p without a name");
        name = (struct mxc_str){ps->p++, 1};
    }
    const char *equals = memchr(name.ptr, '=', name.length);
    if (equals && (mxc_str_starts(name, "Script=") || mxc_str_starts(name, "sc=") ||
                   mxc_str_starts(name, "gc=") || mxc_str_starts(name, "General_Category="))) {
        name.length -= (size_t)(equals + 1 - name.ptr);
        name.ptr = equals + 1;
    }
    mxc_charset_init(&part);
    if (mxc_unicode_categories_by_name(name, &mask))
        mxc_charset_add_categories(&part, mask);
    else if (mxc_unicode_set_by_name(name, &property))
        mxc_charset_add_property(&part, property);
    else if (mxc_str_is(name, "Any"))
        mxc_charset_add(&part, 0, 0x10FFFF);
    else
        return mxc_err_at(ps->err, MXC_E_UNSUPPORTED, ps->p - ps->begin,
                          "regular expression: property \\p{%.*s} is not supported",
                          (int)(name.length < 40 ? name.length : 40), name.ptr);
    mxc_charset_settle(&part);
    if (negate)
        mxc_charset_negate(&part);
    mxc_charset_add_set(set, &part);
    mxc_charset_fini(&part);
    return MXC_OK;
}

/* \s \d \w and their opposites. Alone, outside of brackets, Oniguruma looks characters below U+0100
 * up in a Latin-1 table, in which superscript digits and fractions are word characters. */
static void add_shorthand(struct mxc_charset *set, char c, bool alone) {
    struct mxc_charset part;
    mxc_charset_init(&part);
    if (c == 's' || c == 'S')
        mxc_charset_add_property(&part, MXC_UNICODE_SET_SPACE);
    else if (c == 'd' || c == 'D')
        mxc_charset_add_categories(&part, 1u << MXC_UNICODE_ND);
    else
        mxc_charset_add_word(&part);
    if (alone && (c == 'w' || c == 'W')) {
        mxc_charset_add(&part, 0xB2, 0xB3);
        mxc_charset_add(&part, 0xB9, 0xB9);
        mxc_charset_add(&part, 0xBC, 0xBE);
    }
    mxc_charset_settle(&part);
    if (c == 'S' || c == 'D' || c == 'W')
        mxc_charset_negate(&part);
    mxc_charset_add_set(set, &part);
    mxc_charset_fini(&part);
}

/* An escape that names characters, after the backslash: one code point in *cp, or a set added to
 * *set and *cp = NOT_CP. */
static enum mxc_code parse_escape(struct parser *ps, struct mxc_charset *set, bool alone,
                                  int64_t *cp) {
    static const char from[] = "tnrfvae", to[] = "\t\n\r\f\v\a\x1b";
    enum mxc_code code = MXC_OK;
    uint32_t v = 0;
    if (!more(ps))
        return broken(ps, "it ends with a backslash");
    char c = *ps->p;
    const char *simple = memchr(from, c, sizeof from - 1);
    *cp = NOT_CP;
    if (simple) {
        ps->p++;
        *cp = to[simple - from];
    } else if (strchr("sSdDwW", c)) {
        ps->p++;
        add_shorthand(set, c, alone);
    } else if (c == 'p' || c == 'P') {
        ps->p++;
        code = parse_property(ps, c == 'P', set);
    } else if (c == 'x') {
        ps->p++;
        bool brace = eat(ps, "{");
        code = brace ? take_hex(ps, 1, 8, &v) : take_hex(ps, 1, 2, &v);
        if (!code && brace && !eat(ps, "}"))
            code = broken(ps, "\\x{ without }");
        if (!code && !brace && v > 0x7F) /* a raw byte there, not a character */
            code = refuse(ps, "\\x80 to \\xFF", 12);
        *cp = v;
    } else if (c == 'u') {
        ps->p++;
        code = take_hex(ps, 4, 4, &v);
        *cp = v;
    } else if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
        code = refuse(ps, ps->p - 1, 2);
    } else {
        code = take_cp(ps, &v);
        *cp = v;
    }
    return code;
}

static enum mxc_code parse_class(struct parser *ps, struct mxc_charset *out, bool icase);

/* One member of a class: a code point (*cp), or something added to set. */
static enum mxc_code class_item(struct parser *ps, struct mxc_charset *set, bool icase,
                                int64_t *cp) {
    enum mxc_code code;
    uint32_t v;
    *cp = NOT_CP;
    if (looking_at(ps, "&&"))
        return refuse(ps, "&&", 2);
    if (looking_at(ps, "[:"))
        return refuse(ps, "[: :] class", 11);
    if (eat(ps, "[")) {
        struct mxc_charset inner;
        mxc_charset_init(&inner);
        code = parse_class(ps, &inner, icase);
        if (!code)
            mxc_charset_add_set(set, &inner);
        mxc_charset_fini(&inner);
        return code;
    }
    if (eat(ps, "\\"))
        return parse_escape(ps, set, false, cp);
    code = take_cp(ps, &v);
    *cp = v;
    return code;
}

/* After "[": adds the members, closed under case when icase, negated when it says so. */
static enum mxc_code parse_class(struct parser *ps, struct mxc_charset *out, bool icase) {
    enum mxc_code code = MXC_OK;
    bool negate = eat(ps, "^"), first = true;
    if (++ps->depth > MAX_DEPTH)
        return mxc_err_set(ps->err, MXC_E_LIMIT, "regular expression: nested too deep");
    for (;; first = false) {
        int64_t a, b;
        if (!more(ps))
            return broken(ps, "[ without ]");
        if (!first && eat(ps, "]"))
            break;
        if ((code = class_item(ps, out, icase, &a)))
            return code;
        if (a == NOT_CP)
            continue;
        b = a;
        if (looking_at(ps, "-") && ps->end - ps->p > 1 && ps->p[1] != ']') {
            ps->p++;
            if ((code = class_item(ps, out, icase, &b)))
                return code;
            if (b == NOT_CP || b < a)
                return broken(ps, "bad range in a class");
        }
        mxc_charset_add(out, (uint32_t)a, (uint32_t)b);
    }
    ps->depth--;
    mxc_charset_settle(out);
    if (icase)
        mxc_charset_close_case(out);
    if (negate)
        mxc_charset_negate(out);
    return MXC_OK;
}

static enum mxc_code put_shorthand(struct parser *ps, char c) {
    struct mxc_charset set;
    mxc_charset_init(&set);
    add_shorthand(&set, c, true);
    return put_set(ps, &set, false);
}

static enum mxc_code put_word_border(struct parser *ps, bool negate) {
    static const char *const parts[2][6] = {{"(?:(?<=", ")(?!", ")|(?<!", ")(?=", "))", ""},
                                            {"(?:(?<=", ")(?=", ")|(?<!", ")(?!", "))", ""}};
    for (int i = 0; i < 5; i++) {
        put(ps, parts[negate][i]);
        enum mxc_code code = i < 4 ? put_shorthand(ps, 'w') : MXC_OK;
        if (code)
            return code;
    }
    return MXC_OK;
}

/* ^ and $ are line anchors in Oniguruma, whatever the options. */
static enum mxc_code put_line_anchor(struct parser *ps, char c) {
    put(ps, c == '^' ? "(?:\\A|(?<=" : "(?:\\z|(?=");
    enum mxc_code code = put_cp(ps, '\n', false);
    put(ps, "))");
    return code;
}

/* After "(". */
static enum mxc_code parse_group(struct parser *ps, bool icase, bool *is_option) {
    static const char *const plain[] = {"?:", "?=", "?!", "?>", "?<=", "?<!"};
    enum mxc_code code;
    *is_option = false;
    if (++ps->depth > MAX_DEPTH)
        return mxc_err_set(ps->err, MXC_E_LIMIT, "regular expression: nested too deep");
    const char *open = "?:"; /* captures are of no use to us */
    if (looking_at(ps, "?")) {
        open = NULL;
        for (size_t i = 0; i < sizeof plain / sizeof *plain && !open; i++)
            if (eat(ps, plain[i]))
                open = plain[i];
        if (!open && eat(ps, "?i:")) {
            open = "?:";
            icase = true;
        } else if (!open && eat(ps, "?-i:")) {
            open = "?:";
            icase = false;
        } else if (!open && (looking_at(ps, "?i)") || looking_at(ps, "?-i)"))) {
            /* holds to the end of the enclosing group, over its alternatives */
            icase = looking_at(ps, "?i)");
            ps->p += icase ? 3 : 4;
            put(ps, "(?:");
            if ((code = parse_alternatives(ps, icase)))
                return code;
            put(ps, ")");
            ps->depth--;
            *is_option = true;
            return MXC_OK;
        }
        if (!open) {
            size_t n = (size_t)(ps->end - ps->p);
            return refuse(ps, ps->p - 1, n < 3 ? n + 1 : 4);
        }
    }
    put(ps, "(");
    put(ps, open);
    if ((code = parse_alternatives(ps, icase)))
        return code;
    if (!eat(ps, ")"))
        return broken(ps, "( without )");
    put(ps, ")");
    ps->depth--;
    return MXC_OK;
}

/* "{n}", "{n,}", "{,m}", "{n,m}": false when the brace is just a character. */
static bool take_interval(struct parser *ps, int *min, int *max) {
    const char *p = ps->p + 1;
    int v[2] = {-1, -1}, k = 0;
    for (; p < ps->end && *p != '}'; p++) {
        if (*p == ',' && !k) {
            k = 1;
        } else if (*p >= '0' && *p <= '9') {
            int d = *p - '0';
            v[k] = v[k] < 0 ? d : v[k] > MAX_REPEAT ? v[k] : v[k] * 10 + d;
        } else {
            return false;
        }
    }
    if (p >= ps->end || (v[0] < 0 && v[1] < 0))
        return false;
    *min = v[0] < 0 ? 0 : v[0];
    *max = k ? v[1] : v[0];
    ps->p = p + 1;
    return true;
}

/* Quantifiers after an atom that begins at `atom` in the output; stacked ones wrap the atom. */
static enum mxc_code parse_quantifiers(struct parser *ps, size_t atom) {
    struct mxc_buf *out = &ps->parsed->out;
    for (bool first = true; more(ps); first = false) {
        char c = *ps->p;
        int min = 0, max = 0;
        bool interval = false;
        if (c == '{')
            interval = take_interval(ps, &min, &max);
        if (!interval && !strchr("*+?", c))
            return MXC_OK;
        if (interval && (min > MAX_REPEAT || max > MAX_REPEAT || (max >= 0 && max < min)))
            return broken(ps, "bad repeat counts");
        if (!first) { /* Oniguruma: a quantifier of the quantified */
            size_t n = out->length - atom;
            if (!mxc_buf_puts(out, "(?:)"))
                return mxc_buf_status(out, ps->err);
            memmove(out->data + atom + 3, out->data + atom, n);
            memcpy(out->data + atom, "(?:", 3);
        }
        if (interval && max < 0)
            mxc_buf_printf(out, "{%d,}", min);
        else if (interval)
            mxc_buf_printf(out, "{%d,%d}", min, max);
        else
            mxc_buf_putc(out, *ps->p++);
        if (interval && min == max && looking_at(ps, "?"))
            return refuse(ps, "{n}?", 4);
        if (eat(ps, "?"))
            put(ps, "?");
        else if (!interval && eat(ps, "+")) /* after an interval + is a quantifier of its own */
            put(ps, "+");
    }
    return MXC_OK;
}

/* An atom; *repeatable: quantifiers may follow. */
static enum mxc_code parse_atom(struct parser *ps, bool icase, bool *repeatable) {
    struct mxc_charset set;
    enum mxc_code code;
    char c = *ps->p;
    *repeatable = true;
    if (eat(ps, "(")) {
        bool option;
        code = parse_group(ps, icase, &option);
        *repeatable = !option;
        return code;
    }
    if (c == '^' || c == '$') {
        ps->p++;
        *repeatable = false;
        return put_line_anchor(ps, c);
    }
    if (eat(ps, "\\b") || eat(ps, "\\B")) {
        *repeatable = false;
        return put_word_border(ps, ps->p[-1] == 'B');
    }
    if (eat(ps, "\\A") || eat(ps, "\\z")) {
        *repeatable = false;
        put(ps, ps->p[-1] == 'A' ? "\\A" : "\\z");
        return MXC_OK;
    }
    if (c == '*' || c == '+' || c == '?')
        return broken(ps, "nothing to repeat");
    mxc_charset_init(&set);
    if (eat(ps, "[")) {
        code = parse_class(ps, &set, icase);
        icase = false;
    } else if (eat(ps, ".")) {
        mxc_charset_add(&set, '\n', '\n');
        mxc_charset_negate(&set);
        code = MXC_OK;
    } else {
        int64_t cp = NOT_CP;
        uint32_t v = 0;
        if (eat(ps, "\\")) {
            code = parse_escape(ps, &set, true, &cp);
        } else {
            code = take_cp(ps, &v);
            cp = v;
        }
        if (!code && cp != NOT_CP)
            mxc_charset_add(&set, (uint32_t)cp, (uint32_t)cp);
    }
    if (code) {
        mxc_charset_fini(&set);
        return code;
    }
    return put_set(ps, &set, icase);
}

static enum mxc_code parse_alternatives(struct parser *ps, bool icase) {
    while (more(ps) && *ps->p != ')') {
        if (eat(ps, "|")) {
            put(ps, "|");
            continue;
        }
        bool repeatable;
        size_t atom = ps->parsed->out.length;
        enum mxc_code code = parse_atom(ps, icase, &repeatable);
        if (!code && repeatable)
            code = parse_quantifiers(ps, atom);
        if (code)
            return code;
    }
    return MXC_OK;
}

enum mxc_code mxc_regex_parse(struct mxc_str pattern, struct mxc_regex_parsed *parsed,
                              struct mxc_err *err) {
    struct parser ps = {.begin = pattern.ptr,
                        .p = pattern.ptr,
                        .end = pattern.ptr + pattern.length,
                        .parsed = parsed,
                        .err = err};
    parsed->n_sets = 0;
    mxc_buf_init(&parsed->out, 1 << 16);
    if (pattern.length > 1 << 14)
        return mxc_err_set(err, MXC_E_LIMIT, "regular expression: longer than 16 KiB");
    enum mxc_code code = parse_alternatives(&ps, false);
    if (!code && more(&ps))
        code = broken(&ps, ") without (");
    return code ? code : mxc_buf_status(&parsed->out, err);
}

void mxc_regex_parsed_fini(struct mxc_regex_parsed *parsed) {
    for (size_t i = 0; i < parsed->n_sets; i++)
        mxc_charset_fini(&parsed->sets[i]);
    mxc_buf_fini(&parsed->out);
}
