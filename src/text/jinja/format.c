/* Text formatting: str % args, str.format() and HTML escaping. In: a format string and values. Out:
 * text whose pieces keep the taint of the format or the value they came from. Width and precision
 * are bounded by the run's memory. */
#include "text/jinja/run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PRECISION = 400 };

struct spec {
    uint32_t fill;
    char align; /* '<' '>' '^' '=' or 0 */
    char sign;  /* '+', ' ' or 0 */
    bool alternate, grouped;
    char group;
    int64_t width, precision; /* precision -1: none */
    char type;                /* 0: none */
};

bool mxc_j_escape(struct mxc_jrun *run, struct mxc_jval v, bool force, struct mxc_jval *out) {
    struct mxc_jsb sb;
    if (!mxc_j_to_str(run, v, &v))
        return false;
    const struct mxc_jstr *s = v.u.s;
    if (s->markup && !force) {
        *out = v;
        return true;
    }
    mxc_j_sb_init(&sb, run);
    size_t from = 0;
    for (size_t i = 0; i < s->len; i++) {
        const char *with = s->p[i] == '&'    ? "&amp;"
                           : s->p[i] == '<'  ? "&lt;"
                           : s->p[i] == '>'  ? "&gt;"
                           : s->p[i] == '\'' ? "&#39;"
                           : s->p[i] == '"'  ? "&#34;"
                                             : NULL;
        if (!with)
            continue;
        if (!mxc_j_put_part(&sb, s, from, i - from) ||
            !mxc_j_put_text(&sb, with, mxc_j_tainted(s, i)))
            return false;
        from = i + 1;
    }
    if (!mxc_j_put_part(&sb, s, from, s->len - from) || !mxc_j_sb_done(&sb, out))
        return false;
    out->u.s->markup = true;
    return true;
}

/* Pads [sign][body] to the width; '=' puts the fill behind the sign. */
static bool put_padded(struct mxc_jsb *sb, const struct spec *spec, const char *sign,
                       const struct mxc_jstr *body, bool user) {
    struct mxc_jstr copy = *body;
    int64_t n = (int64_t)(mxc_j_str_count(&copy) + strlen(sign));
    size_t pad = spec->width > n ? (size_t)(spec->width - n) : 0;
    size_t left = spec->align == '>' ? pad : spec->align == '^' ? pad / 2 : 0;
    size_t inner = spec->align == '=' ? pad : 0;
    return mxc_j_put_fill(sb, spec->fill, left, false) && mxc_j_put_text(sb, sign, user) &&
           mxc_j_put_fill(sb, spec->fill, inner, false) && mxc_j_put_str(sb, body) &&
           mxc_j_put_fill(sb, spec->fill, pad - left - inner, false);
}

static void group_digits(char *text, size_t size, char mark, size_t every) {
    size_t n = strspn(text, "0123456789abcdefABCDEF");
    for (size_t i = n; i > every && strlen(text) + 2 < size;) {
        i -= every;
        memmove(text + i + 1, text + i, strlen(text + i) + 1);
        text[i] = mark;
    }
}

static const char *sign_of(bool negative, const struct spec *spec) {
    return negative ? "-" : spec->sign == '+' ? "+" : spec->sign == ' ' ? " " : "";
}

static bool put_int(struct mxc_jsb *sb, const struct spec *spec, int64_t i, bool user) {
    char text[MAX_PRECISION + 200], sign[8];
    uint64_t u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    int precision = spec->precision > 0 ? (int)spec->precision : 0;
    const char *prefix = "";
    size_t every = 4;
    switch (spec->type) {
    case 'x':
        (void)snprintf(text, sizeof text, "%.*llx", precision, (unsigned long long)u);
        prefix = "0x";
        break;
    case 'X':
        (void)snprintf(text, sizeof text, "%.*llX", precision, (unsigned long long)u);
        prefix = "0X";
        break;
    case 'o':
        (void)snprintf(text, sizeof text, "%.*llo", precision, (unsigned long long)u);
        prefix = "0o";
        break;
    case 'b': {
        size_t n = 0;
        for (int bit = 63; bit >= 0; bit--)
            if (n || u >> bit & 1 || !bit)
                text[n++] = (char)('0' + (u >> bit & 1));
        text[n] = 0;
        prefix = "0b";
        break;
    }
    default:
        (void)snprintf(text, sizeof text, "%.*llu", precision, (unsigned long long)u);
        every = 3;
    }
    if (!u && precision == 0 && !*text)
        (void)snprintf(text, sizeof text, "0");
    if (spec->grouped)
        group_digits(text, sizeof text, spec->group, every);
    (void)snprintf(sign, sizeof sign, "%s%s", sign_of(i < 0, spec), spec->alternate ? prefix : "");
    struct mxc_jstr body = {.p = text, .len = strlen(text), .n_cp = SIZE_MAX, .user = user};
    return put_padded(sb, spec, sign, &body, user);
}

static bool put_float(struct mxc_jsb *sb, const struct spec *spec, double f, bool user) {
    char text[MAX_PRECISION + 400], form[16];
    int precision = spec->precision >= 0 ? (int)spec->precision : 6;
    bool percent = spec->type == '%';
    double magnitude = fabs(f) * (percent ? 100 : 1);
    char type = spec->type == 'n' ? 'g' : percent ? 'f' : spec->type;
    if (isnan(f) || isinf(f)) {
        bool upper = type == 'E' || type == 'F' || type == 'G';
        (void)snprintf(text, sizeof text, "%s",
                       isnan(f) ? (upper ? "NAN" : "nan")
                       : upper  ? "INF"
                                : "inf");
    } else if (!type && spec->precision < 0) {
        mxc_j_float_repr(magnitude, text);
    } else {
        (void)snprintf(form, sizeof form, "%%%s.*%c", spec->alternate ? "#" : "",
                       type ? type : 'g');
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        (void)snprintf(text, sizeof text, form, precision, magnitude);
#pragma GCC diagnostic pop
        for (char *c = text; *c; c++)
            if (*c == ',')
                *c = '.'; /* the locale's decimal sign */
        if (!type && !strpbrk(text, ".en") && strlen(text) + 3 < sizeof text)
            memcpy(text + strlen(text), ".0", 3);
    }
    if (spec->grouped)
        group_digits(text, sizeof text, spec->group, 3);
    if (percent && strlen(text) + 2 < sizeof text)
        memcpy(text + strlen(text), "%", 2);
    struct mxc_jstr body = {.p = text, .len = strlen(text), .n_cp = SIZE_MAX, .user = user};
    return put_padded(sb, spec, sign_of(signbit(f) && !isnan(f), spec), &body, user);
}

static bool put_cut(struct mxc_jsb *sb, struct spec *spec, struct mxc_jstr *s) {
    struct mxc_jval v = mxc_j_str_val(s);
    if (spec->precision >= 0 && (size_t)spec->precision < mxc_j_str_count(s) &&
        !mxc_j_str_part(sb->run, s, 0, mxc_j_str_offset(s, (size_t)spec->precision), &v))
        return false;
    return put_padded(sb, spec, "", v.u.s, false);
}

static bool repr_of(struct mxc_jrun *run, struct mxc_jval v, bool ascii, struct mxc_jval *out) {
    struct mxc_jsb sb, plain;
    mxc_j_sb_init(&sb, run);
    if (!mxc_j_put_repr(&sb, v) || !mxc_j_sb_done(&sb, out))
        return false;
    if (!ascii)
        return true;
    const struct mxc_jstr *s = out->u.s;
    mxc_j_sb_init(&plain, run);
    for (size_t i = 0, n; i < s->len; i += n) {
        uint32_t cp;
        char text[16];
        n = mxc_j_decode(s->p + i, s->len - i, &cp);
        (void)snprintf(text, sizeof text,
                       cp < 0x100     ? "\\x%02x"
                       : cp < 0x10000 ? "\\u%04x"
                                      : "\\U%08x",
                       cp);
        if (!(cp < 0x80 ? mxc_j_put_part(&plain, s, i, n)
                        : mxc_j_put_text(&plain, text, mxc_j_tainted(s, i))))
            return false;
    }
    return mxc_j_sb_done(&plain, out);
}

/* --- % --- */

struct percent {
    struct mxc_jrun *run;
    const struct mxc_jstr *format;
    struct mxc_jval args;
    size_t next, n;
    bool markup;
};

static bool next_arg(struct percent *p, struct mxc_jval *out) {
    if (p->next >= p->n)
        return mxc_j_fail(p->run, "TypeError", "not enough arguments for format string");
    *out = p->args.type == MJ_TUPLE ? p->args.u.q->v[p->next] : p->args;
    p->next++;
    return true;
}

static bool percent_number(struct percent *p, size_t *i, int64_t *out, bool *negative) {
    const struct mxc_jstr *f = p->format;
    *negative = false;
    if (*i < f->len && f->p[*i] == '*') {
        struct mxc_jval v;
        ++*i;
        if (!next_arg(p, &v))
            return false;
        if (!mxc_j_is_int(v))
            return mxc_j_fail(p->run, "TypeError", "* wants int");
        *out = mxc_j_as_int(v);
        *negative = *out < 0;
        if (*negative)
            *out = *out == INT64_MIN ? INT64_MAX : -*out;
        return true;
    }
    *out = 0;
    for (; *i < f->len && f->p[*i] >= '0' && f->p[*i] <= '9'; ++*i)
        if (*out < 100000000)
            *out = *out * 10 + (f->p[*i] - '0');
    return true;
}

static bool percent_value(struct percent *p, struct mxc_jsb *sb, struct spec *spec,
                          struct mxc_jval v) {
    struct mxc_jval text;
    char type = spec->type;
    if (type == 's' || type == 'r' || type == 'a') {
        if (!(type == 's' ? mxc_j_to_str(p->run, v, &text)
                          : repr_of(p->run, v, type == 'a', &text)) ||
            (p->markup && !mxc_j_escape(p->run, text, false, &text)))
            return false;
        spec->fill = ' ';
        if (spec->align == '=')
            spec->align = '>';
        return put_cut(sb, spec, text.u.s);
    }
    if (type == 'c') {
        struct mxc_jsb one;
        mxc_j_sb_init(&one, p->run);
        if (v.type == MJ_STR && mxc_j_str_count(v.u.s) == 1)
            text = v;
        else if (!mxc_j_is_int(v))
            return mxc_j_fail(p->run, "TypeError", "%%c requires int or char");
        else if (mxc_j_as_int(v) < 0 || mxc_j_as_int(v) > 0x10FFFF)
            return mxc_j_fail(p->run, "OverflowError", "%%c arg not in range(0x110000)");
        else if (!mxc_j_put_char(&one, (uint32_t)mxc_j_as_int(v), v.user) ||
                 !mxc_j_sb_done(&one, &text))
            return false;
        spec->fill = ' ';
        spec->precision = -1;
        return put_cut(sb, spec, text.u.s);
    }
    if (!mxc_j_is_number(v))
        return mxc_j_fail(p->run, "TypeError", "%%%c format: a real number is required, not %s",
                          type, mxc_j_type_name(v));
    if (strchr("eEfFgG", type))
        return put_float(sb, spec, mxc_j_as_float(v), v.user);
    if (strchr("xXo", type) && v.type == MJ_FLOAT)
        return mxc_j_fail(p->run, "TypeError", "%%%c format: an integer is required, not float",
                          type);
    if (v.type == MJ_FLOAT && !(v.u.f > -9.2e18 && v.u.f < 9.2e18))
        return mxc_j_fail(p->run, "OverflowError", "cannot convert float to integer");
    return put_int(sb, spec, v.type == MJ_FLOAT ? (int64_t)v.u.f : mxc_j_as_int(v), v.user);
}

/* One conversion at *i, behind its '%'. */
static bool percent_one(struct percent *p, struct mxc_jsb *sb, size_t *i) {
    const struct mxc_jstr *f = p->format;
    struct spec spec = {.fill = ' ', .align = '>', .precision = -1};
    struct mxc_jval v = {0}, *found = NULL;
    bool left = false, zero = false, negative;
    if (*i < f->len && f->p[*i] == '(') {
        size_t from = ++*i;
        for (int depth = 1; *i < f->len; ++*i) {
            depth += f->p[*i] == '(';
            depth -= f->p[*i] == ')';
            if (!depth)
                break;
        }
        if (*i >= f->len)
            return mxc_j_fail(p->run, "ValueError", "incomplete format key");
        if (p->args.type != MJ_DICT)
            return mxc_j_fail(p->run, "TypeError", "format requires a mapping");
        if (!mxc_j_str_part(p->run, f, from, *i - from, &v) ||
            !mxc_j_dict_get(p->run, p->args.u.d, v, &found))
            return false;
        if (!found)
            return mxc_j_fail(p->run, "KeyError", "'%.*s'", (int)(*i - from < 80 ? *i - from : 80),
                              f->p + from);
        p->next = p->n;
        ++*i;
    }
    for (; *i < f->len && f->p[*i] && strchr("-+ #0", f->p[*i]); ++*i) {
        char c = f->p[*i];
        left |= c == '-';
        zero |= c == '0';
        spec.alternate |= c == '#';
        if (c == '+' || (c == ' ' && !spec.sign))
            spec.sign = c;
    }
    if (!percent_number(p, i, &spec.width, &negative))
        return false;
    left |= negative;
    if (*i < f->len && f->p[*i] == '.') {
        ++*i;
        if (!percent_number(p, i, &spec.precision, &negative))
            return false;
        if (negative)
            spec.precision = 0;
    }
    while (*i < f->len && f->p[*i] && strchr("hlL", f->p[*i]))
        ++*i;
    if (*i >= f->len)
        return mxc_j_fail(p->run, "ValueError", "incomplete format");
    spec.type = f->p[(*i)++];
    if (spec.type == '%')
        return mxc_j_put_text(sb, "%", mxc_j_tainted(f, *i - 1));
    if (!spec.type || !strchr("diuoxXeEfFgGcrsa", spec.type))
        return mxc_j_fail(p->run, "ValueError", "unsupported format character at index %zu",
                          *i - 1);
    if (left)
        spec.align = '<';
    else if (zero) {
        spec.align = '=';
        spec.fill = '0';
    }
    if (spec.precision > MAX_PRECISION && !strchr("srac", spec.type))
        return mxc_j_fail(p->run, "ValueError", "precision is too large");
    if (found)
        v = *found;
    else if (!next_arg(p, &v))
        return false;
    return percent_value(p, sb, &spec, v);
}

bool mxc_j_percent(struct mxc_jrun *run, const struct mxc_jstr *format, struct mxc_jval args,
                   struct mxc_jval *out) {
    struct percent p = {run,           format, args, 0, args.type == MJ_TUPLE ? args.u.q->n : 1,
                        format->markup};
    struct mxc_jsb sb;
    size_t from = 0;
    mxc_j_sb_init(&sb, run);
    for (size_t i = 0; i < format->len;) {
        if (format->p[i] != '%') {
            i++;
            continue;
        }
        if (!mxc_j_step(run, 1) || !mxc_j_put_part(&sb, format, from, i - from))
            return false;
        i++;
        if (!percent_one(&p, &sb, &i))
            return false;
        from = i;
    }
    if (p.next < p.n &&
        (args.type == MJ_TUPLE || !(args.type == MJ_DICT || args.type == MJ_LIST ||
                                    args.type == MJ_UNDEF || args.type == MJ_RANGE)))
        return mxc_j_fail(run, "TypeError", "not all arguments converted during string formatting");
    if (!mxc_j_put_part(&sb, format, from, format->len - from) || !mxc_j_sb_done(&sb, out))
        return false;
    out->u.s->markup = format->markup;
    return true;
}

/* --- str.format --- */

struct fields {
    const struct mxc_jargs *args;
    int64_t next; /* automatic numbering; -1: numbered by hand */
    bool markup;
};

static bool parse_spec(struct mxc_jrun *run, struct mxc_jstr *s, bool number, struct spec *spec) {
    size_t i = 0;
    uint32_t cp;
    *spec = (struct spec){.fill = ' ', .precision = -1};
    size_t n = mxc_j_decode(s->p, s->len, &cp);
    if (n && n < s->len && strchr("<>=^", s->p[n])) {
        spec->fill = cp;
        spec->align = s->p[n];
        i = n + 1;
    } else if (s->len && s->p[0] && strchr("<>=^", s->p[0])) {
        spec->align = s->p[i++];
    }
    if (i < s->len && s->p[i] && strchr("+- ", s->p[i]))
        spec->sign = s->p[i++];
    if (i < s->len && s->p[i] == '#')
        spec->alternate = s->p[i++] == '#';
    if (i < s->len && s->p[i] == '0') {
        if (!spec->align) {
            spec->align = number ? '=' : '<';
            spec->fill = '0';
        }
        i++;
    }
    for (; i < s->len && s->p[i] >= '0' && s->p[i] <= '9'; i++)
        if (spec->width < 100000000)
            spec->width = spec->width * 10 + (s->p[i] - '0');
    if (i < s->len && (s->p[i] == ',' || s->p[i] == '_')) {
        spec->grouped = true;
        spec->group = s->p[i++];
    }
    if (i < s->len && s->p[i] == '.') {
        spec->precision = 0;
        size_t digits = ++i;
        for (; i < s->len && s->p[i] >= '0' && s->p[i] <= '9'; i++)
            if (spec->precision < 100000000)
                spec->precision = spec->precision * 10 + (s->p[i] - '0');
        if (i == digits)
            return mxc_j_fail(run, "ValueError", "Format specifier missing precision");
    }
    if (i < s->len)
        spec->type = s->p[i++];
    if (i < s->len)
        return mxc_j_fail(run, "ValueError", "Invalid format specifier");
    return true;
}

static bool put_formatted(struct mxc_jsb *sb, struct mxc_jval v, struct mxc_jstr *text) {
    struct mxc_jrun *run = sb->run;
    struct spec spec;
    bool number = mxc_j_is_number(v);
    if (!text->len)
        return mxc_j_put_val(sb, v);
    if (!number && v.type != MJ_STR)
        return mxc_j_fail(run, "TypeError", "unsupported format string passed to %s.__format__",
                          mxc_j_type_name(v));
    if (!parse_spec(run, text, number, &spec))
        return false;
    if (!number) {
        if ((spec.type && spec.type != 's') || spec.align == '=' || spec.sign || spec.grouped)
            return mxc_j_fail(run, "ValueError", "Invalid format specifier for a str");
        if (!spec.align)
            spec.align = '<';
        return put_cut(sb, &spec, v.u.s);
    }
    if (!spec.align)
        spec.align = '>';
    if (spec.precision > MAX_PRECISION)
        return mxc_j_fail(run, "ValueError", "precision is too large");
    if (spec.type && strchr("eEfFgGn%", spec.type) && !(spec.type == 'n' && mxc_j_is_int(v)))
        return put_float(sb, &spec, mxc_j_as_float(v), v.user);
    if (v.type == MJ_FLOAT) {
        if (spec.type)
            return mxc_j_fail(run, "ValueError",
                              "Unknown format code '%c' for object of type 'float'", spec.type);
        return put_float(sb, &spec, v.u.f, v.user);
    }
    if (spec.precision >= 0)
        return mxc_j_fail(run, "ValueError", "Precision not allowed in integer format specifier");
    if (spec.type == 'c')
        return mxc_j_as_int(v) >= 0 && mxc_j_as_int(v) < 0x110000
                   ? mxc_j_put_char(sb, (uint32_t)mxc_j_as_int(v), v.user)
                   : mxc_j_fail(run, "OverflowError", "%%c arg not in range(0x110000)");
    if (spec.type && !strchr("dxXobn", spec.type))
        return mxc_j_fail(run, "ValueError", "Unknown format code '%c' for object of type 'int'",
                          spec.type);
    return put_int(sb, &spec, mxc_j_as_int(v), v.user);
}

/* "0.name[key]" */
static bool get_field(struct mxc_jrun *run, struct fields *fields, const struct mxc_jstr *f,
                      size_t from, size_t to, struct mxc_jval *out) {
    size_t end = from;
    while (end < to && f->p[end] != '.' && f->p[end] != '[')
        end++;
    bool digits = end > from;
    int64_t index = 0;
    for (size_t i = from; i < end; i++) {
        digits = digits && f->p[i] >= '0' && f->p[i] <= '9';
        if (digits && index < 1000000)
            index = index * 10 + (f->p[i] - '0');
    }
    if (end == from || digits) {
        if ((end == from) != (fields->next >= 0) && fields->next)
            return mxc_j_fail(
                run, "ValueError",
                "cannot mix manual field specification and automatic field numbering");
        if (end == from)
            index = fields->next++;
        else
            fields->next = -1;
        if (index >= (int64_t)fields->args->n)
            return mxc_j_fail(run, "IndexError",
                              "Replacement index %lld out of range for positional args tuple",
                              (long long)index);
        *out = fields->args->v[index];
    } else {
        size_t k = 0;
        while (k < fields->args->n_kw && !mxc_str_equal(mxc_j_slice_of(fields->args->kw[k].name),
                                                        (struct mxc_str){f->p + from, end - from}))
            k++;
        if (k == fields->args->n_kw)
            return mxc_j_fail(run, "KeyError", "'%.*s'", (int)(end - from < 80 ? end - from : 80),
                              f->p + from);
        *out = fields->args->kw[k].v;
    }
    for (size_t i = end; i < to;) {
        bool item = f->p[i] == '[';
        size_t start = ++i;
        while (i < to && (item ? f->p[i] != ']' : f->p[i] != '.' && f->p[i] != '['))
            i++;
        struct mxc_jval name;
        if (i == start)
            return mxc_j_fail(run, "ValueError", "Empty attribute in format string");
        if (!mxc_j_str_part(run, f, start, i - start, &name))
            return false;
        char number[24];
        int64_t key;
        if (item && i - start < sizeof number) {
            memcpy(number, f->p + start, i - start);
            number[i - start] = 0;
            if (number[0] >= '0' && number[0] <= '9' && mxc_parse_i64(number, &key))
                name = mxc_j_int(key);
        }
        if (!(item ? mxc_j_getitem(run, *out, name, out) : mxc_j_getattr(run, *out, name, out)))
            return false;
        i += item;
    }
    return true;
}

static bool format_part(struct mxc_jsb *sb, struct fields *fields, const struct mxc_jstr *f,
                        size_t from, size_t to, int depth);

/* A replacement field between its braces. */
static bool format_field(struct mxc_jsb *sb, struct fields *fields, const struct mxc_jstr *f,
                         size_t from, size_t to, int depth) {
    struct mxc_jrun *run = sb->run;
    size_t name_end = from;
    struct mxc_jval v, spec;
    struct mxc_jsb inner;
    for (bool in_item = false; name_end < to; name_end++) {
        in_item = f->p[name_end] == '[' || (in_item && f->p[name_end] != ']');
        if (!in_item && (f->p[name_end] == '!' || f->p[name_end] == ':'))
            break;
    }
    if (!get_field(run, fields, f, from, name_end, &v))
        return false;
    if (name_end < to && f->p[name_end] == '!') {
        char how = name_end + 1 < to ? f->p[name_end + 1] : 0;
        if (!how || !strchr("rsa", how) || (name_end + 2 < to && f->p[name_end + 2] != ':'))
            return mxc_j_fail(run, "ValueError", "Unknown conversion specifier");
        if (!(how == 's' ? mxc_j_to_str(run, v, &v) : repr_of(run, v, how == 'a', &v)))
            return false;
        name_end += 2;
    }
    mxc_j_sb_init(&inner, run);
    if (name_end < to &&
        (depth > 1 || !format_part(&inner, fields, f, name_end + 1, to, depth + 1)))
        return depth > 1 ? mxc_j_fail(run, "ValueError", "Max string recursion exceeded") : false;
    if (!mxc_j_sb_done(&inner, &spec))
        return false;
    if (!fields->markup)
        return put_formatted(sb, v, spec.u.s);
    struct mxc_jval text;
    mxc_j_sb_init(&inner, run);
    return put_formatted(&inner, v, spec.u.s) &&
           (v.type == MJ_STR && v.u.s->markup
                ? mxc_j_sb_done(&inner, &text)
                : mxc_j_sb_done(&inner, &text) && mxc_j_escape(run, text, false, &text)) &&
           mxc_j_put_str(sb, text.u.s);
}

static bool format_part(struct mxc_jsb *sb, struct fields *fields, const struct mxc_jstr *f,
                        size_t from, size_t to, int depth) {
    struct mxc_jrun *run = sb->run;
    for (size_t i = from; i < to;) {
        size_t start = i;
        while (i < to && f->p[i] != '{' && f->p[i] != '}')
            i++;
        if (!mxc_j_step(run, 1) || !mxc_j_put_part(sb, f, start, i - start))
            return false;
        if (i >= to)
            return true;
        if (i + 1 < to && f->p[i + 1] == f->p[i]) {
            if (!mxc_j_put_part(sb, f, i, 1))
                return false;
            i += 2;
            continue;
        }
        if (f->p[i] == '}')
            return mxc_j_fail(run, "ValueError", "Single '}' encountered in format string");
        size_t open = ++i;
        int level = 1;
        for (; i < to; i++) {
            level += f->p[i] == '{';
            level -= f->p[i] == '}';
            if (!level)
                break;
        }
        if (level)
            return mxc_j_fail(run, "ValueError",
                              open == to ? "Single '{' encountered in format string"
                                         : "expected '}' before end of string");
        if (!format_field(sb, fields, f, open, i, depth))
            return false;
        i++;
    }
    return true;
}

bool mxc_j_format(struct mxc_jrun *run, const struct mxc_jstr *format, const struct mxc_jargs *args,
                  struct mxc_jval *out) {
    struct fields fields = {args, 0, format->markup};
    struct mxc_jsb sb;
    mxc_j_sb_init(&sb, run);
    if (!format_part(&sb, &fields, format, 0, format->len, 0) || !mxc_j_sb_done(&sb, out))
        return false;
    out->u.s->markup = format->markup;
    return true;
}
