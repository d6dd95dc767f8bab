/* Printed forms: Python's str() and repr(), and json.dumps() as the tojson filter uses it.
 * In: any value. Out: text in a builder; the bytes of a user's container, brackets and commas
 * included, are user text as a whole.
 * Floats print as the shortest decimal that reads back, in Python's notation. JSON keeps the order
 * of keys unless told to sort, and NaN and infinities have Python's names.
 * Recursion checks the C stack, and every value costs a step. */
#include "text/jinja/run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Digits and exponent of the shortest decimal that reads back as f; independent of the locale's
 * decimal sign. */
static int shortest(double f, char digits[20]) {
    char text[40];
    for (int precision = 0; precision < 17; precision++) {
        (void)snprintf(text, sizeof text, "%.*e", precision, f);
        double back = strtod(text, NULL);
        if (!(back < f) && !(back > f))
            break;
    }
    size_t n = 0;
    const char *p = text;
    for (; *p && *p != 'e'; p++)
        if (*p >= '0' && *p <= '9' && n < 18)
            digits[n++] = *p;
    while (n > 1 && digits[n - 1] == '0')
        n--;
    digits[n] = 0;
    return *p ? atoi(p + 1) : 0;
}

void mxc_j_float_repr(double f, char out[40]) {
    if (isnan(f) || isinf(f)) {
        (void)snprintf(out, 40, "%s", isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
        return;
    }
    char digits[20], *o = out;
    int exponent = shortest(fabs(f), digits), n = (int)strlen(digits);
    if (signbit(f))
        *o++ = '-';
    if (exponent < -4 || exponent >= 16) {
        *o++ = digits[0];
        if (n > 1) {
            *o++ = '.';
            memcpy(o, digits + 1, (size_t)n - 1);
            o += n - 1;
        }
        unsigned e = (unsigned)abs(exponent);
        *o++ = 'e';
        *o++ = exponent < 0 ? '-' : '+';
        if (e >= 100)
            *o++ = (char)('0' + e / 100 % 10);
        *o++ = (char)('0' + e / 10 % 10);
        *o++ = (char)('0' + e % 10);
        *o = 0;
        return;
    }
    if (exponent < 0) {
        *o++ = '0';
        *o++ = '.';
        for (int i = -1; i > exponent; i--)
            *o++ = '0';
        memcpy(o, digits, (size_t)n + 1);
        return;
    }
    for (int i = 0; i <= exponent; i++)
        *o++ = i < n ? digits[i] : '0';
    *o++ = '.';
    if (n > exponent + 1) {
        memcpy(o, digits + exponent + 1, (size_t)(n - exponent));
        return;
    }
    *o++ = '0';
    *o = 0;
}

static bool put_str_repr(struct mxc_jsb *sb, const struct mxc_jstr *s) {
    bool single = memchr(s->p, '\'', s->len) != NULL, twice = memchr(s->p, '"', s->len) != NULL;
    char quote = single && !twice ? '"' : '\'';
    bool all = mxc_j_any_tainted(s) && !s->taint;
    if (s->markup && !mxc_j_put_text(sb, "Markup(", all))
        return false;
    if (!mxc_j_put(sb, &quote, 1, NULL, all))
        return false;
    for (size_t i = 0, n; i < s->len; i += n) {
        uint32_t cp;
        n = mxc_j_decode(s->p + i, s->len - i, &cp);
        char text[16];
        if (cp == '\\' || cp == (uint32_t)quote)
            (void)snprintf(text, sizeof text, "\\%c", (char)cp);
        else if (cp == '\n' || cp == '\r' || cp == '\t')
            (void)snprintf(text, sizeof text, "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
        else if (cp < 0x20 || cp == 0x7F || (cp >= 0x80 && !mxc_j_is_printable(cp)))
            (void)snprintf(text, sizeof text,
                           cp < 0x100     ? "\\x%02x"
                           : cp < 0x10000 ? "\\u%04x"
                                          : "\\U%08x",
                           cp);
        else {
            if (!mxc_j_put_part(sb, s, i, n))
                return false;
            continue;
        }
        if (!mxc_j_put_text(sb, text, mxc_j_tainted(s, i)))
            return false;
    }
    return mxc_j_put(sb, &quote, 1, NULL, all) && (!s->markup || mxc_j_put_text(sb, ")", all));
}

static bool put_seq_repr(struct mxc_jsb *sb, struct mxc_jval v) {
    const struct mxc_jseq *q = v.u.q;
    bool list = v.type == MJ_LIST;
    if (!mxc_j_put_text(sb, list ? "[" : "(", q->user))
        return false;
    for (size_t i = 0; i < q->n; i++)
        if ((i && !mxc_j_put_text(sb, ", ", q->user)) || !mxc_j_put_repr(sb, q->v[i]))
            return false;
    return mxc_j_put_text(sb, list ? "]" : q->n == 1 ? ",)" : ")", q->user);
}

static bool put_dict_repr(struct mxc_jsb *sb, const struct mxc_jdict *d) {
    if (!mxc_j_put_text(sb, "{", d->user))
        return false;
    for (size_t i = 0; i < d->n; i++)
        if ((i && !mxc_j_put_text(sb, ", ", d->user)) || !mxc_j_put_repr(sb, d->e[i].key) ||
            !mxc_j_put_text(sb, ": ", d->user) || !mxc_j_put_repr(sb, d->e[i].value))
            return false;
    return mxc_j_put_text(sb, "}", d->user);
}

static bool put_view_repr(struct mxc_jsb *sb, struct mxc_jval v) {
    const struct mxc_jdict *d = v.u.view->d;
    bool user = d->user;
    if (!mxc_j_put_text(sb, mxc_j_type_name(v), user) || !mxc_j_put_text(sb, "([", user))
        return false;
    for (size_t i = 0; i < d->n; i++) {
        struct mxc_jval item;
        if (!mxc_j_item(sb->run, v, i, &item) || (i && !mxc_j_put_text(sb, ", ", user)) ||
            !mxc_j_put_repr(sb, item))
            return false;
    }
    return mxc_j_put_text(sb, "])", user);
}

static bool put_other_repr(struct mxc_jsb *sb, struct mxc_jval v) {
    char text[128];
    switch ((enum mxc_jtype)v.type) {
    case MJ_RANGE:
        if (v.u.range->step == 1)
            (void)snprintf(text, sizeof text, "range(%lld, %lld)", (long long)v.u.range->start,
                           (long long)v.u.range->stop);
        else
            (void)snprintf(text, sizeof text, "range(%lld, %lld, %lld)",
                           (long long)v.u.range->start, (long long)v.u.range->stop,
                           (long long)v.u.range->step);
        return mxc_j_put_text(sb, text, false);
    case MJ_NS:
        return mxc_j_put_text(sb, "<Namespace ", false) && put_dict_repr(sb, v.u.d) &&
               mxc_j_put_text(sb, ">", false);
    case MJ_LOOP:
        return mxc_j_loop_repr(sb, v.u.loop);
    case MJ_MACRO:
        (void)snprintf(text, sizeof text, "<Macro '%s'>",
                       v.u.macro->node->id >= 0 ? sb->run->jinja->names[v.u.macro->node->id]
                                                : "caller");
        return mxc_j_put_text(sb, text, false);
    default:
        (void)snprintf(text, sizeof text, "<%s object>", mxc_j_type_name(v));
        return mxc_j_put_text(sb, text, false);
    }
}

bool mxc_j_put_repr(struct mxc_jsb *sb, struct mxc_jval v) {
    char text[40];
    if (!mxc_j_step(sb->run, 1) || !mxc_j_stack(sb->run))
        return false;
    switch ((enum mxc_jtype)v.type) {
    case MJ_MISSING:
    case MJ_UNDEF:
        return mxc_j_put_text(sb, "Undefined", false);
    case MJ_NONE:
        return mxc_j_put_text(sb, "None", v.user);
    case MJ_BOOL:
        return mxc_j_put_text(sb, v.u.b ? "True" : "False", v.user);
    case MJ_INT:
        (void)snprintf(text, sizeof text, "%lld", (long long)v.u.i);
        return mxc_j_put_text(sb, text, v.user);
    case MJ_FLOAT:
        mxc_j_float_repr(v.u.f, text);
        return mxc_j_put_text(sb, text, v.user);
    case MJ_STR:
        return put_str_repr(sb, v.u.s);
    case MJ_LIST:
    case MJ_TUPLE:
        return put_seq_repr(sb, v);
    case MJ_DICT:
        return put_dict_repr(sb, v.u.d);
    case MJ_VIEW:
        return put_view_repr(sb, v);
    default:
        return put_other_repr(sb, v);
    }
}

bool mxc_j_put_val(struct mxc_jsb *sb, struct mxc_jval v) {
    if (v.type == MJ_STR)
        return mxc_j_put_str(sb, v.u.s);
    if (v.type == MJ_UNDEF)
        return true;
    return mxc_j_put_repr(sb, v);
}

bool mxc_j_to_str(struct mxc_jrun *run, struct mxc_jval v, struct mxc_jval *out) {
    if (v.type == MJ_STR) {
        *out = v;
        return true;
    }
    struct mxc_jsb sb;
    mxc_j_sb_init(&sb, run);
    return mxc_j_put_val(&sb, v) && mxc_j_sb_done(&sb, out);
}

/* --- JSON --- */

static bool put_json_str(struct mxc_jsb *sb, const struct mxc_jstr *s, bool ascii) {
    bool all = mxc_j_any_tainted(s) && !s->taint;
    if (!mxc_j_put_text(sb, "\"", all))
        return false;
    size_t from = 0;
    for (size_t i = 0, n; i < s->len; i += n) {
        uint32_t cp;
        n = mxc_j_decode(s->p + i, s->len - i, &cp);
        if (cp >= 0x20 && cp != '"' && cp != '\\' && (cp < 0x7F || !ascii))
            continue;
        char text[16];
        const char *hit = memchr("\"\\\n\r\t\f\b", (int)(cp & 0x7F), 7);
        if (cp < 0x80 && hit)
            (void)snprintf(text, sizeof text, "\\%c", "\"\\nrtfb"[hit - "\"\\\n\r\t\f\b"]);
        else if (cp < 0x10000)
            (void)snprintf(text, sizeof text, "\\u%04x", cp);
        else
            (void)snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xD7C0 + (cp >> 10),
                           0xDC00 + (cp & 0x3FF));
        if (!mxc_j_put_part(sb, s, from, i - from) ||
            !mxc_j_put_text(sb, text, mxc_j_tainted(s, i)))
            return false;
        from = i + n;
    }
    return mxc_j_put_part(sb, s, from, s->len - from) && mxc_j_put_text(sb, "\"", all);
}

static bool put_json_line(struct mxc_jsb *sb, const struct mxc_jjson *how, unsigned depth,
                          bool user) {
    if (!how->has_indent)
        return true;
    if (!mxc_j_put_text(sb, "\n", user))
        return false;
    for (unsigned i = 0; i < depth; i++)
        if (!mxc_j_put(sb, how->indent->p, how->indent->len, how->indent->taint,
                       user || how->indent->user))
            return false;
    return true;
}

static bool put_json_comma(struct mxc_jsb *sb, const struct mxc_jjson *how, bool user) {
    if (how->item_separator)
        return mxc_j_put_str(sb, how->item_separator);
    return mxc_j_put_text(sb, how->has_indent ? "," : ", ", user);
}

static bool put_json_key(struct mxc_jsb *sb, struct mxc_jval key, const struct mxc_jjson *how) {
    switch ((enum mxc_jtype)key.type) {
    case MJ_STR:
        return put_json_str(sb, key.u.s, how->ascii);
    case MJ_NONE:
    case MJ_BOOL:
    case MJ_INT:
    case MJ_FLOAT:
        return mxc_j_put_text(sb, "\"", key.user) && mxc_j_put_json(sb, key, how, 0) &&
               mxc_j_put_text(sb, "\"", key.user);
    default:
        return mxc_j_fail(sb->run, "TypeError",
                          "keys must be str, int, float, bool or None, not %s",
                          mxc_j_type_name(key));
    }
}

static bool put_json_dict(struct mxc_jsb *sb, const struct mxc_jdict *d,
                          const struct mxc_jjson *how, unsigned depth) {
    struct mxc_jval *keys = NULL, *values = NULL;
    if (!d->n)
        return mxc_j_put_text(sb, "{}", d->user);
    keys = mxc_j_alloc(sb->run, d->n, sizeof *keys);
    values = keys ? mxc_j_alloc(sb->run, d->n, sizeof *values) : NULL;
    if (!values)
        return false;
    for (size_t i = 0; i < d->n; i++) {
        keys[i] = d->e[i].key;
        values[i] = d->e[i].value;
    }
    if ((how->sort_keys && !mxc_j_sort(sb->run, keys, values, d->n, false)) ||
        !mxc_j_put_text(sb, "{", d->user))
        return false;
    for (size_t i = 0; i < d->n; i++) {
        if ((i && !put_json_comma(sb, how, d->user)) ||
            !put_json_line(sb, how, depth + 1, d->user) || !put_json_key(sb, keys[i], how))
            return false;
        if (!(how->key_separator ? mxc_j_put_str(sb, how->key_separator)
                                 : mxc_j_put_text(sb, ": ", d->user)) ||
            !mxc_j_put_json(sb, values[i], how, depth + 1))
            return false;
    }
    return put_json_line(sb, how, depth, d->user) && mxc_j_put_text(sb, "}", d->user);
}

bool mxc_j_put_json(struct mxc_jsb *sb, struct mxc_jval v, const struct mxc_jjson *how,
                    unsigned depth) {
    if (!mxc_j_step(sb->run, 1) || !mxc_j_stack(sb->run))
        return false;
    switch ((enum mxc_jtype)v.type) {
    case MJ_NONE:
        return mxc_j_put_text(sb, "null", v.user);
    case MJ_BOOL:
        return mxc_j_put_text(sb, v.u.b ? "true" : "false", v.user);
    case MJ_INT:
        return mxc_j_put_repr(sb, v);
    case MJ_FLOAT:
        if (isnan(v.u.f) || isinf(v.u.f))
            return mxc_j_put_text(sb,
                                  isnan(v.u.f) ? "NaN"
                                  : v.u.f < 0  ? "-Infinity"
                                               : "Infinity",
                                  v.user);
        return mxc_j_put_repr(sb, v);
    case MJ_STR:
        return put_json_str(sb, v.u.s, how->ascii);
    case MJ_LIST:
    case MJ_TUPLE: {
        const struct mxc_jseq *q = v.u.q;
        if (!q->n)
            return mxc_j_put_text(sb, "[]", q->user);
        if (!mxc_j_put_text(sb, "[", q->user))
            return false;
        for (size_t i = 0; i < q->n; i++)
            if ((i && !put_json_comma(sb, how, q->user)) ||
                !put_json_line(sb, how, depth + 1, q->user) ||
                !mxc_j_put_json(sb, q->v[i], how, depth + 1))
                return false;
        return put_json_line(sb, how, depth, q->user) && mxc_j_put_text(sb, "]", q->user);
    }
    case MJ_DICT:
        return put_json_dict(sb, v.u.d, how, depth);
    default:
        return mxc_j_fail(sb->run, "TypeError", "Object of type %s is not JSON serializable",
                          mxc_j_type_name(v));
    }
}
