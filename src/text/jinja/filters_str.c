/* Filters over text and numbers: case, layout, conversion, tojson, escaping, wrapping.
 * In: the value and bound arguments (a[0] is the value). Out: text whose bytes keep the taint of
 * those they came from, or numbers.
 * Filters that are string methods in Python share the code of those. Numbers parse as int() and
 * float() do with ASCII text, underscores included, but integers have 64 bits.
 * Work that grows faster than its input is charged in steps. */
#include "text/jinja/run.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILTER(name)                                                                               \
    static bool name(struct mxc_jrun *run, struct mxc_jval *a, const struct mxc_jargs *rest,       \
                     struct mxc_jval *out)

static bool is_given(struct mxc_jval v) {
    return v.type != MJ_MISSING && v.type != MJ_NONE;
}

/* The string method of that name on str(a[0]). */
static bool call_method(struct mxc_jrun *run, struct mxc_jval v, const char *name,
                        struct mxc_jval *args, size_t n, struct mxc_jval *out) {
    const struct mxc_jmethod_def *def = mxc_j_str_methods;
    while (strcmp(def->name, name) != 0)
        def++;
    struct mxc_jmethod method = {.def = def};
    struct mxc_jargs list = {.v = args, .n = n};
    return mxc_j_to_str(run, v, &method.self) &&
           mxc_j_call(run, mxc_j_of(MJ_METHOD, &method), &list, out);
}

static bool need_text(struct mxc_jrun *run, struct mxc_jval v) {
    if (v.type == MJ_UNDEF)
        return mxc_j_undef_fail(run, v);
    return v.type == MJ_STR ||
           mxc_j_fail(run, "TypeError", "expected a string, got %s", mxc_j_type_name(v));
}

static bool map_case(struct mxc_jrun *run, struct mxc_jval v, enum mxc_jcase how,
                     struct mxc_jval *out) {
    return mxc_j_to_str(run, v, &v) && mxc_j_case(run, v.u.s, how, out);
}

FILTER(f_upper) {
    (void)rest;
    return map_case(run, a[0], MJ_UPPER, out);
}
FILTER(f_lower) {
    (void)rest;
    return map_case(run, a[0], MJ_LOWER, out);
}
FILTER(f_title) {
    (void)rest;
    if (!map_case(run, a[0], MJ_TITLE, out))
        return false;
    out->u.s->markup = false;
    return true;
}
FILTER(f_capitalize) {
    (void)rest;
    return map_case(run, a[0], MJ_CAPITALIZE, out);
}

FILTER(f_trim) {
    (void)rest;
    return call_method(run, a[0], "strip", a + 1, 1, out);
}

FILTER(f_center) {
    struct mxc_jval width = a[1].type == MJ_MISSING ? mxc_j_int(80) : a[1];
    (void)rest;
    return call_method(run, a[0], "center", &width, 1, out);
}

static bool plain(struct mxc_jrun *run, struct mxc_jval v, struct mxc_jval *out) {
    if (!mxc_j_to_str(run, v, out))
        return false;
    if (!out->u.s->markup)
        return true;
    if (!mxc_j_str_part(run, out->u.s, 0, out->u.s->len, out))
        return false;
    out->u.s->markup = false;
    return true;
}

FILTER(f_replace) {
    struct mxc_jval s, args[3];
    (void)rest;
    args[2] = is_given(a[3]) ? a[3] : mxc_j_int(-1);
    return plain(run, a[0], &s) && mxc_j_to_str(run, a[1], &args[0]) &&
           mxc_j_to_str(run, a[2], &args[1]) && call_method(run, s, "replace", args, 3, out);
}

FILTER(f_string) {
    (void)rest;
    return mxc_j_to_str(run, a[0], out);
}

FILTER(f_safe) {
    (void)rest;
    if (!mxc_j_to_str(run, a[0], out) || !mxc_j_str_part(run, out->u.s, 0, out->u.s->len, out))
        return false;
    out->u.s->markup = true;
    return true;
}

FILTER(f_escape) {
    (void)rest;
    return mxc_j_escape(run, a[0], false, out);
}
FILTER(f_forceescape) {
    (void)rest;
    return mxc_j_escape(run, a[0], true, out);
}

FILTER(f_format) {
    struct mxc_jval s, args;
    (void)a;
    if (rest->n && rest->n_kw)
        return mxc_j_fail(run, "FilterArgumentError",
                          "can't handle positional and keyword arguments at the same time");
    if (!mxc_j_to_str(run, a[0], &s))
        return false;
    if (rest->n_kw) {
        if (!mxc_j_dict(run, &args))
            return false;
        for (size_t i = 0; i < rest->n_kw; i++)
            if (!mxc_j_dict_put(run, args.u.d, mxc_j_str_val(rest->kw[i].name), rest->kw[i].v))
                return false;
    } else {
        if (!mxc_j_seq(run, MJ_TUPLE, rest->n, &args))
            return false;
        for (size_t i = 0; i < rest->n; i++)
            if (!mxc_j_push(run, args.u.q, rest->v[i]))
                return false;
    }
    return mxc_j_percent(run, s.u.s, args, out);
}

FILTER(f_indent) {
    struct mxc_jval width = {0}, lines, s;
    struct mxc_jsb sb;
    int64_t n = 4;
    bool first = mxc_j_truth(a[2]), blank = mxc_j_truth(a[3]);
    (void)rest;
    if (!need_text(run, a[0]))
        return false;
    if (a[1].type == MJ_STR) {
        width = a[1];
    } else {
        if (!mxc_j_arg_int(run, a[1], &n))
            return false;
        mxc_j_sb_init(&sb, run);
        if (!mxc_j_put_fill(&sb, ' ', n > 0 ? (size_t)n : 0, false) || !mxc_j_sb_done(&sb, &width))
            return false;
    }
    struct mxc_jstr newline = {.p = "\n", .len = 1, .n_cp = 1};
    if (!mxc_j_str_concat(run, a[0].u.s, &newline, &s) ||
        !call_method(run, s, "splitlines", NULL, 0, &lines))
        return false;
    mxc_j_sb_init(&sb, run);
    if (first && !mxc_j_put_str(&sb, width.u.s))
        return false;
    for (size_t i = 0; i < lines.u.q->n; i++) {
        const struct mxc_jstr *line = lines.u.q->v[i].u.s;
        if (i && (!mxc_j_put_text(&sb, "\n", mxc_j_any_tainted(a[0].u.s)) ||
                  ((blank || line->len) && !mxc_j_put_str(&sb, width.u.s))))
            return false;
        if (!mxc_j_put_str(&sb, line))
            return false;
    }
    if (!mxc_j_sb_done(&sb, out))
        return false;
    out->u.s->markup = a[0].u.s->markup;
    return true;
}

FILTER(f_truncate) {
    int64_t length = 255, leeway = 5;
    struct mxc_jval dots;
    (void)rest;
    if (!mxc_j_text(run, "...", &dots))
        return false;
    struct mxc_jstr *end = dots.u.s, *s;
    if (!mxc_j_arg_int(run, a[1], &length) || !mxc_j_arg_str(run, a[3], &end) ||
        (is_given(a[4]) && !mxc_j_arg_int(run, a[4], &leeway)))
        return false;
    int64_t tail = (int64_t)mxc_j_str_count(end);
    if (length < tail || leeway < 0)
        return mxc_j_fail(run, "AssertionError", "expected length >= %lld, got %lld",
                          (long long)tail, (long long)length);
    size_t n;
    if (!mxc_j_length(run, a[0], &n))
        return false;
    if ((int64_t)n - leeway <= length) {
        *out = a[0];
        return true;
    }
    if (!need_text(run, a[0]))
        return false;
    s = a[0].u.s;
    size_t cut = mxc_j_str_offset(s, (size_t)(length - tail));
    if (!mxc_j_truth(a[2])) {
        struct mxc_jstr space = {.p = " ", .len = 1};
        size_t at = mxc_j_rfind(s, 0, cut, &space);
        cut = at == SIZE_MAX ? cut : at;
    }
    struct mxc_jval head;
    return mxc_j_str_part(run, s, 0, cut, &head) && mxc_j_str_concat(run, head.u.s, end, out);
}

FILTER(f_wordcount) {
    int64_t n = 0;
    bool in_word = false;
    (void)rest;
    if (!mxc_j_to_str(run, a[0], &a[0]) || !mxc_j_step(run, a[0].u.s->len / 16))
        return false;
    const struct mxc_jstr *s = a[0].u.s;
    for (size_t i = 0, len; i < s->len; i += len) {
        uint32_t cp;
        len = mxc_j_decode(s->p + i, s->len - i, &cp);
        bool word = cp == '_' || mxc_j_is_alnum(cp);
        n += word && !in_word;
        in_word = word;
    }
    *out = mxc_j_int(n);
    return true;
}

/* --- numbers --- */

static bool unwrap(struct mxc_jrun *run, struct mxc_jval v) {
    return v.type != MJ_UNDEF || mxc_j_undef_fail(run, v);
}

/* Trimmed ASCII text without underscores; false when it is no number's text. */
static bool number_text(const struct mxc_jstr *s, char *text, size_t size) {
    size_t from = 0, to = s->len, n = 0;
    while (from < to && isspace((unsigned char)s->p[from]))
        from++;
    while (to > from && isspace((unsigned char)s->p[to - 1]))
        to--;
    if (to == from || to - from >= size)
        return false;
    for (size_t i = from; i < to; i++) {
        bool joint = s->p[i] == '_' && i > from && i + 1 < to &&
                     isalnum((unsigned char)s->p[i - 1]) && isalnum((unsigned char)s->p[i + 1]);
        if (joint)
            continue;
        if (!strchr("+-.0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", s->p[i]) ||
            !s->p[i])
            return false;
        text[n++] = s->p[i];
    }
    text[n] = 0;
    return n > 0;
}

static bool text_to_float(const struct mxc_jstr *s, double *out) {
    char text[400];
    if (!number_text(s, text, sizeof text) || strpbrk(text, "xXpP") || strchr(text, '('))
        return false;
    if (mxc_parse_f64(text, out))
        return true;
    char *end;
    double f = strtod(text, &end);
    if (*end || end == text)
        return false;
    *out = f;
    return true;
}

/* 1: done, 0: not an integer's text, -1: error set. */
static int text_to_int(struct mxc_jrun *run, const struct mxc_jstr *s, int64_t base, int64_t *out) {
    char text[400];
    if (!number_text(s, text, sizeof text))
        return 0;
    const char *p = text + (*text == '-' || *text == '+');
    bool negative = *text == '-';
    if (p[0] == '0' && p[1]) {
        int64_t prefix = (p[1] | 32) == 'x'   ? 16
                         : (p[1] | 32) == 'o' ? 8
                         : (p[1] | 32) == 'b' ? 2
                                              : 0;
        if (prefix && (base == prefix || base == 0)) {
            p += 2;
            base = prefix;
        }
    }
    if (base == 0)
        base = 10;
    if (base < 2 || base > 36 || !*p)
        return 0;
    uint64_t value = 0;
    for (; *p; p++) {
        int digit = *p >= '0' && *p <= '9'       ? *p - '0'
                    : isalpha((unsigned char)*p) ? (*p | 32) - 'a' + 10
                                                 : 99;
        if (digit >= base)
            return 0;
        if (__builtin_mul_overflow(value, (uint64_t)base, &value) ||
            __builtin_add_overflow(value, (uint64_t)digit, &value) ||
            value > (uint64_t)INT64_MAX + negative)
            return mxc_j_fail(run, "OverflowError", "an integer does not fit in 64 bits"), -1;
    }
    *out = negative ? (int64_t)(0 - value) : (int64_t)value;
    return 1;
}

FILTER(f_int) {
    int64_t base = 10, i;
    double f;
    (void)rest;
    if (!unwrap(run, a[0]) || !mxc_j_arg_int(run, a[2], &base))
        return false;
    *out = a[1].type == MJ_MISSING ? mxc_j_int(0) : a[1];
    if (a[0].type == MJ_STR) {
        int found = text_to_int(run, a[0].u.s, base, &i);
        if (found < 0)
            return false;
        if (found) {
            *out = mxc_j_int(i);
        } else if (text_to_float(a[0].u.s, &f) && !isnan(f) && !isinf(f)) {
            if (!(f > -9.2e18 && f < 9.2e18))
                return mxc_j_fail(run, "OverflowError", "an integer does not fit in 64 bits");
            *out = mxc_j_int((int64_t)f);
        }
        out->user = mxc_j_any_tainted(a[0].u.s);
    } else if (a[0].type == MJ_FLOAT) {
        if (isnan(a[0].u.f))
            return true;
        if (!(a[0].u.f > -9.2e18 && a[0].u.f < 9.2e18))
            return mxc_j_fail(run, "OverflowError", "cannot convert float to integer");
        *out = mxc_j_int((int64_t)a[0].u.f);
        out->user = a[0].user;
    } else if (mxc_j_is_int(a[0])) {
        *out = mxc_j_int(mxc_j_as_int(a[0]));
        out->user = a[0].user;
    }
    return true;
}

FILTER(f_float) {
    double f;
    (void)rest;
    if (!unwrap(run, a[0]))
        return false;
    *out = a[1].type == MJ_MISSING ? mxc_j_float(0) : a[1];
    if (a[0].type == MJ_STR && text_to_float(a[0].u.s, &f)) {
        *out = mxc_j_float(f);
        out->user = mxc_j_any_tainted(a[0].u.s);
    } else if (mxc_j_is_number(a[0])) {
        *out = mxc_j_float(mxc_j_as_float(a[0]));
        out->user = a[0].user;
    }
    return true;
}

FILTER(f_abs) {
    (void)rest;
    if (!unwrap(run, a[0]))
        return false;
    if (!mxc_j_is_number(a[0]))
        return mxc_j_fail(run, "TypeError", "bad operand type for abs(): '%s'",
                          mxc_j_type_name(a[0]));
    if (a[0].type == MJ_FLOAT) {
        *out = mxc_j_float(fabs(a[0].u.f));
        out->user = a[0].user;
        return true;
    }
    return mxc_j_unary(run, mxc_j_as_int(a[0]) < 0 ? '-' : '+', a[0], out);
}

static double round_to(double f, int precision) {
    char text[400];
    if (isnan(f) || isinf(f) || precision > 22 || fabs(f) > 1e22)
        return f;
    if (precision < 0) {
        double scale = pow(10, -precision);
        return isinf(scale) ? copysign(0, f) : nearbyint(f / scale) * scale;
    }
    (void)snprintf(text, sizeof text, "%.*f", precision, f);
    return strtod(text, NULL);
}

FILTER(f_round) {
    int64_t precision = 0;
    struct mxc_jstr *method = NULL;
    (void)rest;
    if (!mxc_j_arg_int(run, a[1], &precision) || !mxc_j_arg_str(run, a[2], &method) ||
        !unwrap(run, a[0]))
        return false;
    bool ceiling = method && mxc_j_is(method, "ceil"),
         floored = method && mxc_j_is(method, "floor");
    if (method && !ceiling && !floored && !mxc_j_is(method, "common"))
        return mxc_j_fail(run, "FilterArgumentError", "method must be common, ceil or floor");
    if (!mxc_j_is_number(a[0]))
        return mxc_j_fail(run, "TypeError", "type %s doesn't define __round__ method",
                          mxc_j_type_name(a[0]));
    if (precision > 300 || precision < -300)
        precision = precision > 0 ? 300 : -300;
    if (ceiling || floored) {
        double scale = pow(10, (double)precision), f = mxc_j_as_float(a[0]) * scale;
        *out = mxc_j_float((ceiling ? ceil(f) : floor(f)) / scale);
    } else if (a[0].type == MJ_FLOAT) {
        *out = mxc_j_float(round_to(a[0].u.f, (int)precision));
    } else {
        *out = mxc_j_int(mxc_j_as_int(a[0]));
        if (precision < 0)
            *out = mxc_j_int((int64_t)round_to((double)out->u.i, (int)precision));
    }
    out->user = a[0].user;
    return true;
}

FILTER(f_filesizeformat) {
    static const char *const names[2][8] = {
        {"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"},
        {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"}};
    double bytes = 0;
    bool binary = mxc_j_truth(a[1]);
    double base = binary ? 1024 : 1000, unit = base;
    char text[400];
    (void)rest;
    if (!unwrap(run, a[0]))
        return false;
    if (mxc_j_is_number(a[0]))
        bytes = mxc_j_as_float(a[0]);
    else if (a[0].type != MJ_STR || !text_to_float(a[0].u.s, &bytes))
        return mxc_j_fail(run, "ValueError", "could not convert to float");
    if (bytes >= 1 && bytes <= 1) {
        (void)snprintf(text, sizeof text, "1 Byte");
    } else if (bytes < base) {
        (void)snprintf(text, sizeof text, "%.0f Bytes", trunc(bytes));
    } else {
        int i = 0;
        for (unit = base * base; i < 7 && bytes >= unit; i++)
            unit *= base;
        (void)snprintf(text, sizeof text, "%.1f %s", base * bytes / unit, names[binary][i]);
    }
    struct mxc_jsb sb;
    mxc_j_sb_init(&sb, run);
    return mxc_j_put_text(&sb, text, a[0].user || a[0].type == MJ_STR) && mxc_j_sb_done(&sb, out);
}

/* --- structured text --- */

FILTER(f_tojson) {
    struct mxc_jjson how = {.ascii = mxc_j_truth(a[1]), .sort_keys = mxc_j_truth(a[4])};
    struct mxc_jval indent, parts;
    struct mxc_jsb sb;
    (void)rest;
    if (is_given(a[2])) {
        int64_t n = 0;
        how.has_indent = true;
        if (a[2].type == MJ_STR) {
            indent = a[2];
        } else {
            mxc_j_sb_init(&sb, run);
            if (!mxc_j_arg_int(run, a[2], &n) ||
                !mxc_j_put_fill(&sb, ' ', n > 0 ? (size_t)n : 0, false) ||
                !mxc_j_sb_done(&sb, &indent))
                return false;
        }
        how.indent = indent.u.s;
    }
    if (is_given(a[3])) {
        if (!mxc_j_collect(run, a[3], &parts))
            return false;
        if (parts.u.q->n != 2 || parts.u.q->v[0].type != MJ_STR || parts.u.q->v[1].type != MJ_STR)
            return mxc_j_fail(run, "ValueError", "separators must be two strings");
        how.item_separator = parts.u.q->v[0].u.s;
        how.key_separator = parts.u.q->v[1].u.s;
    }
    mxc_j_sb_init(&sb, run);
    return mxc_j_put_json(&sb, a[0], &how, 0) && mxc_j_sb_done(&sb, out);
}

FILTER(f_from_json) {
    (void)rest;
    json_error_t error;
    if (!need_text(run, a[0]))
        return false;
    json_t *json = json_loadb(a[0].u.s->p, a[0].u.s->len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
    if (!json)
        return mxc_j_fail(run, "ValueError", "from_json: %s", error.text);
    bool ok = mxc_j_from_json(run, json, mxc_j_any_tainted(a[0].u.s), out);
    json_decref(json);
    return ok;
}

/* Python's pprint for what fits one line: repr() with sorted keys. */
static bool put_pretty(struct mxc_jsb *sb, struct mxc_jval v) {
    if (!mxc_j_stack(sb->run))
        return false;
    if (v.type == MJ_LIST || v.type == MJ_TUPLE) {
        const struct mxc_jseq *q = v.u.q;
        bool list = v.type == MJ_LIST;
        if (!mxc_j_put_text(sb, list ? "[" : "(", q->user))
            return false;
        for (size_t i = 0; i < q->n; i++)
            if ((i && !mxc_j_put_text(sb, ", ", q->user)) || !put_pretty(sb, q->v[i]))
                return false;
        return mxc_j_put_text(sb, list ? "]" : q->n == 1 ? ",)" : ")", q->user);
    }
    if (v.type != MJ_DICT)
        return mxc_j_put_repr(sb, v);
    struct mxc_jdict *d = v.u.d;
    struct mxc_jval *keys = mxc_j_alloc(sb->run, d->n + 1, sizeof *keys);
    struct mxc_jval *values = keys ? mxc_j_alloc(sb->run, d->n + 1, sizeof *values) : NULL;
    if (!values)
        return false;
    for (size_t i = 0; i < d->n; i++) {
        keys[i] = d->e[i].key;
        values[i] = d->e[i].value;
    }
    if (!mxc_j_sort(sb->run, keys, values, d->n, false) || !mxc_j_put_text(sb, "{", d->user))
        return false;
    for (size_t i = 0; i < d->n; i++)
        if ((i && !mxc_j_put_text(sb, ", ", d->user)) || !put_pretty(sb, keys[i]) ||
            !mxc_j_put_text(sb, ": ", d->user) || !put_pretty(sb, values[i]))
            return false;
    return mxc_j_put_text(sb, "}", d->user);
}

FILTER(f_pprint) {
    struct mxc_jsb sb;
    (void)rest;
    mxc_j_sb_init(&sb, run);
    return put_pretty(&sb, a[0]) && mxc_j_sb_done(&sb, out);
}

static bool put_quoted(struct mxc_jsb *sb, struct mxc_jval v, bool query) {
    if (!mxc_j_to_str(sb->run, v, &v))
        return false;
    const struct mxc_jstr *s = v.u.s;
    for (size_t i = 0; i < s->len; i++) {
        unsigned char c = (unsigned char)s->p[i];
        char text[8];
        if (c < 0x80 && (isalnum(c) || strchr("_.-~", c)) && c)
            (void)snprintf(text, sizeof text, "%c", c);
        else if (query && c == ' ')
            (void)snprintf(text, sizeof text, "+");
        else if (!query && c == '/')
            (void)snprintf(text, sizeof text, "/");
        else
            (void)snprintf(text, sizeof text, "%%%02X", c);
        if (!mxc_j_put_text(sb, text, mxc_j_tainted(s, i)))
            return false;
    }
    return true;
}

FILTER(f_urlencode) {
    struct mxc_jsb sb;
    (void)rest;
    mxc_j_sb_init(&sb, run);
    if (a[0].type == MJ_STR || !mxc_j_iterable(a[0]))
        return put_quoted(&sb, a[0], false) && mxc_j_sb_done(&sb, out);
    struct mxc_jval source = a[0], pair;
    struct mxc_jview view = {.d = a[0].type == MJ_DICT ? a[0].u.d : NULL, .kind = MJ_ITEMS};
    struct mxc_jiter *it;
    if (a[0].type == MJ_DICT)
        source = mxc_j_of(MJ_VIEW, &view);
    if (!mxc_j_iter(run, source, &it))
        return false;
    int more;
    for (size_t i = 0; (more = mxc_j_next(run, it, &pair)) > 0; i++) {
        if ((pair.type != MJ_TUPLE && pair.type != MJ_LIST) || pair.u.q->n != 2)
            return mxc_j_fail(run, "ValueError", "urlencode needs pairs");
        if ((i && !mxc_j_put_text(&sb, "&", false)) || !put_quoted(&sb, pair.u.q->v[0], true) ||
            !mxc_j_put_text(&sb, "=", false) || !put_quoted(&sb, pair.u.q->v[1], true))
            return false;
    }
    return more == 0 && mxc_j_sb_done(&sb, out);
}

FILTER(f_xmlattr) {
    struct mxc_jsb sb;
    bool space = a[1].type == MJ_MISSING || mxc_j_truth(a[1]);
    (void)rest;
    if (a[0].type != MJ_DICT)
        return unwrap(run, a[0]) &&
               mxc_j_fail(run, "AttributeError", "'%s' object has no attribute 'items'",
                          mxc_j_type_name(a[0]));
    mxc_j_sb_init(&sb, run);
    for (size_t i = 0; i < a[0].u.d->n; i++) {
        struct mxc_jval key = a[0].u.d->e[i].key, v = a[0].u.d->e[i].value;
        if (v.type == MJ_NONE || v.type == MJ_UNDEF)
            continue;
        if (!need_text(run, key))
            return false;
        for (size_t k = 0; k < key.u.s->len; k++)
            if (strchr(" \t\n\r\f\v/>=", key.u.s->p[k]))
                return mxc_j_fail(run, "ValueError", "Invalid character in attribute name");
        if (((sb.len || space) && !mxc_j_put_text(&sb, " ", false)) ||
            !mxc_j_escape(run, key, false, &key) || !mxc_j_put_str(&sb, key.u.s) ||
            !mxc_j_put_text(&sb, "=\"", false) || !mxc_j_escape(run, v, false, &v) ||
            !mxc_j_put_str(&sb, v.u.s) || !mxc_j_put_text(&sb, "\"", false))
            return false;
    }
    return mxc_j_sb_done(&sb, out);
}

FILTER(f_striptags) {
    struct mxc_jsb sb;
    (void)rest;
    if (!mxc_j_to_str(run, a[0], &a[0]))
        return false;
    const struct mxc_jstr *s = a[0].u.s;
    bool pending = false;
    mxc_j_sb_init(&sb, run);
    for (size_t i = 0, n; i < s->len; i += n) {
        uint32_t cp;
        n = mxc_j_decode(s->p + i, s->len - i, &cp);
        if (cp == '<') {
            bool comment = s->len - i >= 4 && !memcmp(s->p + i, "<!--", 4);
            struct mxc_jstr end = {.p = comment ? "-->" : ">", .len = comment ? 3 : 1};
            size_t at = mxc_j_find(s, i, s->len, &end);
            if (at != SIZE_MAX) {
                n = at + end.len - i;
                continue;
            }
        }
        if (mxc_j_is_space(cp)) {
            pending = true;
            continue;
        }
        if ((pending && sb.len && !mxc_j_put_text(&sb, " ", mxc_j_tainted(s, i))) ||
            !mxc_j_put_part(&sb, s, i, n))
            return false;
        pending = false;
    }
    return mxc_j_sb_done(&sb, out);
}

FILTER(f_urlize) {
    (void)a;
    (void)rest;
    (void)out;
    return mxc_j_fail(run, "TemplateRuntimeError", "the urlize filter is not supported");
}

static bool is_letter_at(const struct mxc_jstr *s, size_t i) {
    uint32_t cp = 0;
    return i < s->len && mxc_j_decode(s->p + i, s->len - i, &cp) && mxc_j_is_alpha(cp);
}

static bool is_blank(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* The end of the chunk at i: a run of spaces, or a word (to its hyphen). */
static size_t chunk_end(const struct mxc_jstr *s, size_t i, size_t to, bool hyphens) {
    bool space = is_blank(s->p[i]);
    size_t letters = 0;
    while (i < to && is_blank(s->p[i]) == space) {
        bool hyphen = s->p[i] == '-';
        i++;
        if (hyphens && !space && hyphen && letters >= 2 && is_letter_at(s, i) &&
            (is_letter_at(s, i + 1) ||
             (i + 1 < to && s->p[i + 1] == '-' && is_letter_at(s, i + 2))))
            break;
        if (((unsigned char)s->p[i - 1] & 0xC0) != 0x80)
            letters = is_letter_at(s, i - 1) ? letters + 1 : 0;
    }
    return i;
}

static size_t count_of(const struct mxc_jstr *s, size_t from, size_t to) {
    size_t n = 0;
    for (; from < to; from++)
        n += ((unsigned char)s->p[from] & 0xC0) != 0x80;
    return n;
}

struct wrap {
    size_t width;
    bool break_long, hyphens;
    const struct mxc_jstr *with;
};

/* One paragraph [i, to) of s; *any says whether a line was written before. */
static bool wrap_line(struct mxc_jsb *sb, const struct mxc_jstr *s, size_t i, size_t to,
                      const struct wrap *w) {
    for (bool first = true; i < to;) {
        size_t start = i, end, used = 0, text_end;
        if (!first && is_blank(s->p[i]))
            start = i = chunk_end(s, i, to, false);
        if (i >= to)
            break;
        if (!mxc_j_step(sb->run, 1))
            return false;
        text_end = start;
        for (; i < to; i = end) {
            end = chunk_end(s, i, to, w->hyphens);
            if (!mxc_j_step(sb->run, 1 + (end - i) / 2))
                return false;
            size_t n = count_of(s, i, end);
            if (used + n > w->width) {
                if (n > w->width && w->break_long) {
                    size_t room = w->width - used, cut = i;
                    for (size_t k = 0; k < room; k++) {
                        uint32_t cp;
                        cut += mxc_j_decode(s->p + cut, end - cut, &cp);
                    }
                    i = text_end = cut;
                } else if (!used) {
                    i = text_end = end;
                }
                break;
            }
            used += n;
            if (!is_blank(s->p[i]))
                text_end = end;
        }
        if (text_end == start)
            continue;
        if ((!first && !mxc_j_put_str(sb, w->with)) ||
            !mxc_j_put_part(sb, s, start, text_end - start))
            return false;
        first = false;
    }
    return true;
}

FILTER(f_wordwrap) {
    int64_t width = 79;
    struct mxc_jstr newline = {.p = "\n", .len = 1, .n_cp = 1}, *with = &newline;
    struct mxc_jval lines;
    struct mxc_jsb sb;
    (void)rest;
    if (!mxc_j_arg_int(run, a[1], &width) || (is_given(a[3]) && !mxc_j_arg_str(run, a[3], &with)) ||
        !need_text(run, a[0]) || !call_method(run, a[0], "splitlines", NULL, 0, &lines))
        return false;
    if (width <= 0)
        return mxc_j_fail(run, "ValueError", "invalid width %lld (must be > 0)", (long long)width);
    struct wrap w = {.width = (size_t)width,
                     .break_long = a[2].type == MJ_MISSING || mxc_j_truth(a[2]),
                     .hyphens = a[4].type == MJ_MISSING || mxc_j_truth(a[4]),
                     .with = with};
    mxc_j_sb_init(&sb, run);
    for (size_t i = 0; i < lines.u.q->n; i++) {
        const struct mxc_jstr *line = lines.u.q->v[i].u.s;
        if ((i && !mxc_j_put_str(&sb, with)) || !wrap_line(&sb, line, 0, line->len, &w))
            return false;
    }
    return mxc_j_sb_done(&sb, out);
}

const struct mxc_jfilter mxc_j_str_filters[] = {
    {"upper", "", 0, f_upper},
    {"lower", "", 0, f_lower},
    {"title", "", 0, f_title},
    {"capitalize", "", 0, f_capitalize},
    {"trim", "chars", 0, f_trim},
    {"center", "width", 0, f_center},
    {"replace", "old,new,count", 2, f_replace},
    {"string", "", 0, f_string},
    {"safe", "", 0, f_safe},
    {"escape", "", 0, f_escape},
    {"e", "", 0, f_escape},
    {"forceescape", "", 0, f_forceescape},
    {"format", NULL, 0, f_format},
    {"indent", "width,first,blank", 0, f_indent},
    {"truncate", "length,killwords,end,leeway", 0, f_truncate},
    {"wordcount", "", 0, f_wordcount},
    {"wordwrap", "width,break_long_words,wrapstring,break_on_hyphens", 0, f_wordwrap},
    {"int", "default,base", 0, f_int},
    {"float", "default", 0, f_float},
    {"abs", "", 0, f_abs},
    {"round", "precision,method", 0, f_round},
    {"filesizeformat", "binary", 0, f_filesizeformat},
    {"tojson", "ensure_ascii,indent,separators,sort_keys", 0, f_tojson},
    {"from_json", "", 0, f_from_json},
    {"pprint", "", 0, f_pprint},
    {"urlencode", "", 0, f_urlencode},
    {"urlize", NULL, 0, f_urlize},
    {"striptags", "", 0, f_striptags},
    {"xmlattr", "autospace", 0, f_xmlattr},
    {NULL, NULL, 0, NULL}};
