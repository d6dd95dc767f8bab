/* Methods of strings, dicts, lists, tuples and cyclers, in tables by type; `op` of a row tells
 * variants of one function apart.
 * In: the object and bound arguments. Out: Python's result. Objects are immutable, cyclers apart:
 * no list.append or its like, and a copy is the object itself.
 * Results that are parts of a string share its bytes and its taint; positions are code points for
 * the template and bytes inside. Searches are charged in steps by the length they may look at. */
#include "text/jinja/run.h"

#include <string.h>

#define METHOD(name)                                                                               \
    static bool name(struct mxc_jrun *run, const struct mxc_jmethod *m, struct mxc_jval *a,        \
                     const struct mxc_jargs *args, struct mxc_jval *out)

static bool is_given(struct mxc_jval v) {
    return v.type != MJ_MISSING && v.type != MJ_NONE;
}

static bool in_set(const struct mxc_jstr *set, const char *p, size_t len) {
    if (!set) {
        uint32_t cp;
        mxc_j_decode(p, len, &cp);
        return mxc_j_is_space(cp);
    }
    for (size_t i = 0, n; i < set->len; i += n) {
        uint32_t cp;
        n = mxc_j_decode(set->p + i, set->len - i, &cp);
        if (n == len && !memcmp(set->p + i, p, len))
            return true;
    }
    return false;
}

static size_t char_before(const struct mxc_jstr *s, size_t i) {
    do
        i--;
    while (i > 0 && ((unsigned char)s->p[i] & 0xC0) == 0x80);
    return i;
}

/* op: 1 left, 2 right, 3 both */
METHOD(str_strip) {
    struct mxc_jstr *s = m->self.u.s, *set = NULL;
    size_t from = 0, to = s->len;
    (void)args;
    if (is_given(a[0]) && !mxc_j_arg_str(run, a[0], &set))
        return false;
    if (!mxc_j_step(run, (1 + s->len / 64) * (1 + (set ? set->len / 4 : 0))))
        return false;
    while (m->def->op & 1 && from < to) {
        uint32_t cp;
        size_t n = mxc_j_decode(s->p + from, to - from, &cp);
        if (!in_set(set, s->p + from, n))
            break;
        from += n;
    }
    while (m->def->op & 2 && to > from) {
        size_t i = char_before(s, to);
        if (!in_set(set, s->p + i, to - i))
            break;
        to = i;
    }
    return mxc_j_str_part(run, s, from, to - from, out);
}

static bool push_part(struct mxc_jrun *run, struct mxc_jseq *q, const struct mxc_jstr *s,
                      size_t from, size_t to) {
    struct mxc_jval part;
    return mxc_j_str_part(run, s, from, to - from, &part) && mxc_j_push(run, q, part);
}

static void reverse(struct mxc_jseq *q) {
    for (size_t i = 0, j = q->n; i + 1 < j; i++) {
        struct mxc_jval t = q->v[i];
        q->v[i] = q->v[--j];
        q->v[j] = t;
    }
}

static bool split_space(struct mxc_jrun *run, const struct mxc_jstr *s, int64_t max, bool from_end,
                        struct mxc_jseq *q) {
    size_t low = 0, high = s->len;
    uint32_t cp;
    while (low < high) {
        size_t n = 0, i;
        if (!from_end) {
            while (low < high &&
                   (n = mxc_j_decode(s->p + low, high - low, &cp), mxc_j_is_space(cp)))
                low += n;
            if (low == high)
                break;
            for (i = low; i < high; i += n) {
                n = mxc_j_decode(s->p + i, high - i, &cp);
                if (mxc_j_is_space(cp))
                    break;
            }
            if (max >= 0 && (int64_t)q->n >= max)
                i = high; /* the rest, its trailing space included */
            if (!push_part(run, q, s, low, i))
                return false;
            low = i;
        } else {
            while (high > low &&
                   in_set(NULL, s->p + char_before(s, high), high - char_before(s, high)))
                high = char_before(s, high);
            if (low == high)
                break;
            for (i = high; i > low;) {
                size_t j = char_before(s, i);
                if (in_set(NULL, s->p + j, i - j))
                    break;
                i = j;
            }
            if (max >= 0 && (int64_t)q->n >= max) {
                i = low;
            }
            if (!push_part(run, q, s, i, high))
                return false;
            high = i;
        }
    }
    return true;
}

/* op 1: rsplit */
METHOD(str_split) {
    struct mxc_jstr *s = m->self.u.s, *sep = NULL;
    int64_t max = -1;
    struct mxc_jval list;
    (void)args;
    if ((is_given(a[0]) && !mxc_j_arg_str(run, a[0], &sep)) || !mxc_j_arg_int(run, a[1], &max) ||
        !mxc_j_step(run, s->len / 64) || !mxc_j_seq(run, MJ_LIST, 0, &list))
        return false;
    struct mxc_jseq *q = list.u.q;
    if (sep && !sep->len)
        return mxc_j_fail(run, "ValueError", "empty separator");
    if (!sep) {
        if (!split_space(run, s, max, m->def->op, q))
            return false;
    } else if (!m->def->op) {
        size_t from = 0, at;
        while ((max < 0 || (int64_t)q->n < max) &&
               (at = mxc_j_find(s, from, s->len, sep)) != SIZE_MAX) {
            if (!push_part(run, q, s, from, at))
                return false;
            from = at + sep->len;
        }
        if (!push_part(run, q, s, from, s->len))
            return false;
    } else {
        size_t to = s->len, at;
        if (!mxc_j_step(run, s->len / 64 * (1 + sep->len / 8)))
            return false;
        while ((max < 0 || (int64_t)q->n < max) && (at = mxc_j_rfind(s, 0, to, sep)) != SIZE_MAX) {
            if (!push_part(run, q, s, at + sep->len, to))
                return false;
            to = at;
        }
        if (!push_part(run, q, s, 0, to))
            return false;
    }
    if (m->def->op)
        reverse(q);
    *out = list;
    return true;
}

METHOD(str_splitlines) {
    const struct mxc_jstr *s = m->self.u.s;
    bool keep = mxc_j_truth(a[0]);
    struct mxc_jval list;
    (void)args;
    if (!mxc_j_step(run, s->len / 64) || !mxc_j_seq(run, MJ_LIST, 0, &list))
        return false;
    for (size_t from = 0, i = 0; from < s->len;) {
        uint32_t cp = 0;
        size_t n = 0;
        while (i < s->len && (n = mxc_j_decode(s->p + i, s->len - i, &cp), !mxc_j_is_line_end(cp)))
            i += n;
        size_t end = i;
        if (i < s->len) {
            i += n;
            i += cp == '\r' && i < s->len && s->p[i] == '\n';
        }
        if (!push_part(run, list.u.q, s, from, keep ? i : end))
            return false;
        from = i;
    }
    *out = list;
    return true;
}

/* Python's optional start and end, in code points, to byte offsets. false in *valid: beyond. */
static bool window(struct mxc_jrun *run, struct mxc_jstr *s, const struct mxc_jval *a, size_t *from,
                   size_t *to, bool *valid) {
    int64_t n = (int64_t)mxc_j_str_count(s), start = 0, end = n;
    if ((is_given(a[0]) && !mxc_j_arg_int(run, a[0], &start)) ||
        (is_given(a[1]) && !mxc_j_arg_int(run, a[1], &end)))
        return false;
    if (end > n)
        end = n;
    if (end < 0)
        end = end + n < 0 ? 0 : end + n;
    if (start < 0)
        start = start + n < 0 ? 0 : start + n;
    *valid = start <= end;
    *from = mxc_j_str_offset(s, (size_t)(start > n ? n : start));
    *to = mxc_j_str_offset(s, (size_t)end);
    if (*to < *from)
        *to = *from;
    return true;
}

/* op 1: endswith */
METHOD(str_starts) {
    struct mxc_jstr *s = m->self.u.s;
    size_t from, to;
    bool valid, yes = false;
    (void)args;
    if (!window(run, s, a + 1, &from, &to, &valid))
        return false;
    if (a[0].type != MJ_STR && a[0].type != MJ_TUPLE)
        return mxc_j_fail(run, "TypeError", "%s first arg must be str or a tuple of str, not %s",
                          m->def->name, mxc_j_type_name(a[0]));
    size_t n = a[0].type == MJ_STR ? 1 : a[0].u.q->n;
    for (size_t i = 0; i < n && !yes; i++) {
        struct mxc_jval v = a[0].type == MJ_STR ? a[0] : a[0].u.q->v[i];
        if (v.type != MJ_STR)
            return mxc_j_fail(run, "TypeError", "tuple for %s must only contain str, not %s",
                              m->def->name, mxc_j_type_name(v));
        const struct mxc_jstr *t = v.u.s;
        yes = valid && t->len <= to - from &&
              !memcmp(s->p + (m->def->op ? to - t->len : from), t->p, t->len);
    }
    *out = mxc_j_bool(yes);
    return true;
}

/* op: 0 find, 1 rfind, 2 index, 3 rindex, 4 count */
METHOD(str_find) {
    struct mxc_jstr *s = m->self.u.s, *needle = NULL;
    size_t from, to;
    bool valid;
    (void)args;
    if (!mxc_j_arg_str(run, a[0], &needle) || !window(run, s, a + 1, &from, &to, &valid) ||
        !mxc_j_step(run, s->len / 16))
        return false;
    if (m->def->op == 4) {
        int64_t n = 0;
        if (valid && !needle->len) {
            struct mxc_jval part;
            if (!mxc_j_str_part(run, s, from, to - from, &part))
                return false;
            n = (int64_t)mxc_j_str_count(part.u.s) + 1;
        }
        for (size_t at; valid && needle->len && (at = mxc_j_find(s, from, to, needle)) != SIZE_MAX;
             n++)
            from = at + needle->len;
        *out = mxc_j_int(n);
        return true;
    }
    if (m->def->op & 1 && !mxc_j_step(run, s->len / 64 * (1 + needle->len / 8)))
        return false;
    size_t at = !valid           ? SIZE_MAX
                : m->def->op & 1 ? mxc_j_rfind(s, from, to, needle)
                                 : mxc_j_find(s, from, to, needle);
    if (at == SIZE_MAX) {
        if (m->def->op >= 2)
            return mxc_j_fail(run, "ValueError", "substring not found");
        *out = mxc_j_int(-1);
        return true;
    }
    struct mxc_jval head;
    if (!mxc_j_str_part(run, s, 0, at, &head))
        return false;
    *out = mxc_j_int((int64_t)mxc_j_str_count(head.u.s));
    return true;
}

METHOD(str_replace) {
    struct mxc_jstr *s = m->self.u.s, *old = NULL, *with = NULL;
    int64_t max = -1;
    struct mxc_jsb sb;
    (void)args;
    if (!mxc_j_arg_str(run, a[0], &old) || !mxc_j_arg_str(run, a[1], &with) ||
        !mxc_j_arg_int(run, a[2], &max))
        return false;
    if (s->markup) {
        struct mxc_jval escaped;
        if (!mxc_j_escape(run, a[1], false, &escaped))
            return false;
        with = escaped.u.s;
    }
    mxc_j_sb_init(&sb, run);
    size_t from = 0;
    if (!old->len) { /* before every character and at the end */
        for (size_t i = 0, n; max != 0; i += n) {
            uint32_t cp;
            if (max > 0)
                max--;
            if (!mxc_j_step(run, 1) || !mxc_j_put_str(&sb, with))
                return false;
            n = mxc_j_decode(s->p + i, s->len - i, &cp);
            if (!n)
                break;
            if (!mxc_j_put_part(&sb, s, i, n))
                return false;
            from = i + n;
        }
    } else {
        for (size_t at; max != 0 && (at = mxc_j_find(s, from, s->len, old)) != SIZE_MAX;
             from = at + old->len) {
            if (max > 0)
                max--;
            if (!mxc_j_step(run, 1) || !mxc_j_put_part(&sb, s, from, at - from) ||
                !mxc_j_put_str(&sb, with))
                return false;
        }
    }
    if (!from && !sb.len) {
        *out = m->self;
        return true;
    }
    if (!mxc_j_put_part(&sb, s, from, s->len - from) || !mxc_j_sb_done(&sb, out))
        return false;
    out->u.s->markup = s->markup;
    return true;
}

METHOD(str_case) {
    (void)a;
    (void)args;
    return mxc_j_case(run, m->self.u.s, (enum mxc_jcase)m->def->op, out);
}

METHOD(str_join) {
    struct mxc_jiter *it;
    struct mxc_jval v;
    struct mxc_jsb sb;
    (void)args;
    if (!mxc_j_iterable(a[0]))
        return mxc_j_fail(run, "TypeError", "can only join an iterable");
    if (!mxc_j_iter(run, a[0], &it))
        return false;
    mxc_j_sb_init(&sb, run);
    int more;
    for (size_t i = 0; (more = mxc_j_next(run, it, &v)) > 0; i++) {
        if (v.type != MJ_STR)
            return mxc_j_fail(run, "TypeError",
                              "sequence item %zu: expected str instance, %s found", i,
                              mxc_j_type_name(v));
        if ((m->self.u.s->markup && !mxc_j_escape(run, v, false, &v)) ||
            (i && !mxc_j_put_str(&sb, m->self.u.s)) || !mxc_j_put_str(&sb, v.u.s))
            return false;
    }
    if (more < 0 || !mxc_j_sb_done(&sb, out))
        return false;
    out->u.s->markup = m->self.u.s->markup;
    return true;
}

/* op 1: rpartition */
METHOD(str_partition) {
    struct mxc_jstr *s = m->self.u.s, *sep = NULL;
    struct mxc_jval tuple;
    (void)args;
    if (!mxc_j_arg_str(run, a[0], &sep) || !mxc_j_seq(run, MJ_TUPLE, 3, &tuple))
        return false;
    if (!sep->len)
        return mxc_j_fail(run, "ValueError", "empty separator");
    if (!mxc_j_step(run, s->len / 64 * (1 + sep->len / 8)))
        return false;
    size_t at = m->def->op ? mxc_j_rfind(s, 0, s->len, sep) : mxc_j_find(s, 0, s->len, sep);
    struct mxc_jseq *q = tuple.u.q;
    bool hit = at != SIZE_MAX;
    if (!hit)
        at = m->def->op ? 0 : s->len;
    size_t end = hit ? at + sep->len : at;
    if (!push_part(run, q, s, 0, at) || !push_part(run, q, s, at, end) ||
        !push_part(run, q, s, end, s->len))
        return false;
    *out = tuple;
    return true;
}

/* op 1: removesuffix */
METHOD(str_remove) {
    struct mxc_jstr *s = m->self.u.s, *t = NULL;
    (void)args;
    if (!mxc_j_arg_str(run, a[0], &t))
        return false;
    bool hit = t->len <= s->len && !memcmp(s->p + (m->def->op ? s->len - t->len : 0), t->p, t->len);
    return mxc_j_str_part(run, s, hit && !m->def->op ? t->len : 0, s->len - (hit ? t->len : 0),
                          out);
}

/* op: 0 center, 1 ljust, 2 rjust, 3 zfill */
METHOD(str_pad) {
    struct mxc_jstr *s = m->self.u.s, *with = NULL;
    int64_t width = 0;
    uint32_t cp = m->def->op == 3 ? '0' : ' ';
    struct mxc_jsb sb;
    (void)args;
    if (!mxc_j_arg_int(run, a[0], &width) || !mxc_j_arg_str(run, a[1], &with))
        return false;
    if (with) {
        if (mxc_j_str_count(with) != 1)
            return mxc_j_fail(run, "TypeError",
                              "The fill character must be exactly one character long");
        mxc_j_decode(with->p, with->len, &cp);
    }
    int64_t n = (int64_t)mxc_j_str_count(s), pad = width > n ? width - n : 0;
    size_t left = (size_t)(m->def->op == 0   ? pad / 2 + (pad & width & 1)
                           : m->def->op == 1 ? 0
                                             : pad);
    size_t sign = m->def->op == 3 && s->len && (s->p[0] == '-' || s->p[0] == '+');
    bool user = with && mxc_j_any_tainted(with);
    mxc_j_sb_init(&sb, run);
    if (!mxc_j_put_part(&sb, s, 0, sign) || !mxc_j_put_fill(&sb, cp, left, user) ||
        !mxc_j_put_part(&sb, s, sign, s->len - sign) ||
        !mxc_j_put_fill(&sb, cp, (size_t)pad - left, user) || !mxc_j_sb_done(&sb, out))
        return false;
    out->u.s->markup = s->markup;
    return true;
}

METHOD(str_expandtabs) {
    const struct mxc_jstr *s = m->self.u.s;
    int64_t size = 8, column = 0;
    struct mxc_jsb sb;
    (void)args;
    if (!mxc_j_arg_int(run, a[0], &size))
        return false;
    mxc_j_sb_init(&sb, run);
    for (size_t i = 0, n; i < s->len; i += n) {
        uint32_t cp;
        n = mxc_j_decode(s->p + i, s->len - i, &cp);
        if (cp == '\t') {
            int64_t fill = size > 0 ? size - column % size : 0;
            column += fill;
            if (!mxc_j_put_fill(&sb, ' ', (size_t)fill, mxc_j_tainted(s, i)))
                return false;
            continue;
        }
        column = cp == '\n' || cp == '\r' ? 0 : column + 1;
        if (!mxc_j_put_part(&sb, s, i, n))
            return false;
    }
    return mxc_j_sb_done(&sb, out);
}

METHOD(str_is) {
    const struct mxc_jstr *s = m->self.u.s;
    bool yes = s->len > 0, cased = false, in_word = false;
    (void)a;
    (void)args;
    if (!mxc_j_step(run, s->len / 16))
        return false;
    if (m->def->op == 'A' || m->def->op == 'p') /* isascii, isprintable: true when empty */
        yes = true;
    for (size_t i = 0, n; i < s->len && yes; i += n) {
        uint32_t cp;
        n = mxc_j_decode(s->p + i, s->len - i, &cp);
        bool upper = mxc_j_is_upper(cp) || mxc_j_is_title(cp), lower = mxc_j_is_lower(cp);
        switch (m->def->op) {
        case 'a':
            yes = mxc_j_is_alpha(cp);
            break;
        case 'd':
            yes = mxc_j_is_digit(cp);
            break;
        case 'w':
            yes = mxc_j_is_alnum(cp);
            break;
        case 'n':
            yes = mxc_j_is_alnum(cp) && !mxc_j_is_alpha(cp);
            break;
        case 's':
            yes = mxc_j_is_space(cp);
            break;
        case 'A':
            yes = cp < 0x80;
            break;
        case 'p':
            yes = mxc_j_is_printable(cp);
            break;
        case 'i':
            yes = cp == '_' || mxc_j_is_alpha(cp) || (i && mxc_j_is_alnum(cp));
            break;
        case 'u':
            yes = !lower && !mxc_j_is_title(cp);
            break;
        case 'l':
            yes = !upper;
            break;
        default: /* istitle */
            yes = upper ? !in_word : !lower || in_word;
            in_word = upper || lower;
        }
        cased |= upper || lower;
    }
    if (m->def->op == 'u' || m->def->op == 'l' || m->def->op == 't')
        yes = yes && cased;
    *out = mxc_j_bool(yes);
    return true;
}

METHOD(str_format) {
    (void)a;
    return mxc_j_format(run, m->self.u.s, args, out);
}

METHOD(str_format_map) {
    (void)args;
    if (a[0].type != MJ_DICT)
        return mxc_j_fail(run, "TypeError", "format_map() needs a mapping, not %s",
                          mxc_j_type_name(a[0]));
    struct mxc_jargs named = {.n_kw = a[0].u.d->n};
    if (!(named.kw = mxc_j_alloc(run, named.n_kw + 1, sizeof *named.kw)))
        return false;
    size_t n = 0;
    for (size_t i = 0; i < a[0].u.d->n; i++)
        if (a[0].u.d->e[i].key.type == MJ_STR)
            named.kw[n++] = (struct mxc_jkw){a[0].u.d->e[i].key.u.s, a[0].u.d->e[i].value};
    named.n_kw = n;
    return mxc_j_format(run, m->self.u.s, &named, out);
}

const struct mxc_jmethod_def mxc_j_str_methods[] = {
    {"strip", "/chars", 0, 3, str_strip},
    {"lstrip", "/chars", 0, 1, str_strip},
    {"rstrip", "/chars", 0, 2, str_strip},
    {"split", "sep,maxsplit", 0, 0, str_split},
    {"rsplit", "sep,maxsplit", 0, 1, str_split},
    {"splitlines", "keepends", 0, 0, str_splitlines},
    {"startswith", "/prefix,start,end", 1, 0, str_starts},
    {"endswith", "/suffix,start,end", 1, 1, str_starts},
    {"find", "/sub,start,end", 1, 0, str_find},
    {"rfind", "/sub,start,end", 1, 1, str_find},
    {"index", "/sub,start,end", 1, 2, str_find},
    {"rindex", "/sub,start,end", 1, 3, str_find},
    {"count", "/sub,start,end", 1, 4, str_find},
    {"replace", "/old,new,count", 2, 0, str_replace},
    {"upper", "/", 0, MJ_UPPER, str_case},
    {"lower", "/", 0, MJ_LOWER, str_case},
    {"title", "/", 0, MJ_TITLECASE, str_case},
    {"capitalize", "/", 0, MJ_CAPITALIZE, str_case},
    {"swapcase", "/", 0, MJ_SWAPCASE, str_case},
    {"casefold", "/", 0, MJ_CASEFOLD, str_case},
    {"join", "/iterable", 1, 0, str_join},
    {"partition", "/sep", 1, 0, str_partition},
    {"rpartition", "/sep", 1, 1, str_partition},
    {"removeprefix", "/prefix", 1, 0, str_remove},
    {"removesuffix", "/suffix", 1, 1, str_remove},
    {"center", "/width,fillchar", 1, 0, str_pad},
    {"ljust", "/width,fillchar", 1, 1, str_pad},
    {"rjust", "/width,fillchar", 1, 2, str_pad},
    {"zfill", "/width", 1, 3, str_pad},
    {"expandtabs", "tabsize", 0, 0, str_expandtabs},
    {"isalpha", "/", 0, 'a', str_is},
    {"isdigit", "/", 0, 'd', str_is},
    {"isdecimal", "/", 0, 'd', str_is},
    {"isnumeric", "/", 0, 'n', str_is},
    {"isalnum", "/", 0, 'w', str_is},
    {"isspace", "/", 0, 's', str_is},
    {"isascii", "/", 0, 'A', str_is},
    {"isprintable", "/", 0, 'p', str_is},
    {"isidentifier", "/", 0, 'i', str_is},
    {"isupper", "/", 0, 'u', str_is},
    {"islower", "/", 0, 'l', str_is},
    {"istitle", "/", 0, 't', str_is},
    {"format", NULL, 0, 0, str_format},
    {"format_map", "/mapping", 1, 0, str_format_map},
    {NULL, NULL, 0, 0, NULL}};

METHOD(dict_view) {
    struct mxc_jview *view = mxc_j_alloc(run, 1, sizeof *view);
    (void)a;
    (void)args;
    if (!view)
        return false;
    view->d = m->self.u.d;
    view->kind = (enum mxc_jview_kind)m->def->op;
    *out = mxc_j_of(MJ_VIEW, view);
    return true;
}

METHOD(dict_get) {
    struct mxc_jval *found;
    (void)args;
    if (!mxc_j_dict_get(run, m->self.u.d, a[0], &found))
        return false;
    *out = found ? *found : a[1].type == MJ_MISSING ? mxc_j_none() : a[1];
    return true;
}

METHOD(self_copy) {
    (void)run;
    (void)a;
    (void)args;
    *out = m->self; /* immutable here: a copy is the same */
    return true;
}

const struct mxc_jmethod_def mxc_j_dict_methods[] = {
    {"keys", "/", 0, MJ_KEYS, dict_view},   {"values", "/", 0, MJ_VALUES, dict_view},
    {"items", "/", 0, MJ_ITEMS, dict_view}, {"get", "/key,default", 1, 0, dict_get},
    {"copy", "/", 0, 0, self_copy},         {NULL, NULL, 0, 0, NULL}};

/* op 'c' count, 'i' index */
METHOD(seq_find) {
    const struct mxc_jseq *q = m->self.u.q;
    int64_t count = 0, n = (int64_t)q->n, start = 0, stop = n;
    (void)args;
    if (!mxc_j_arg_int(run, a[1], &start) || !mxc_j_arg_int(run, a[2], &stop))
        return false;
    start = start < 0 ? (start + n < 0 ? 0 : start + n) : start;
    stop = stop < 0 ? stop + n : stop > n ? n : stop;
    for (int64_t i = start; i < stop; i++) {
        bool equal;
        if (!mxc_j_equal(run, q->v[i], a[0], &equal))
            return false;
        if (equal && m->def->op == 'i') {
            *out = mxc_j_int(i);
            return true;
        }
        count += equal;
    }
    if (m->def->op == 'i')
        return mxc_j_fail(run, "ValueError", "value is not in %s", mxc_j_type_name(m->self));
    *out = mxc_j_int(count);
    return true;
}

/* op 'n' next, 'r' reset */
METHOD(cycler_step) {
    struct mxc_jcycler *c = m->self.u.cycler;
    (void)run;
    (void)a;
    (void)args;
    *out = mxc_j_none();
    if (m->def->op == 'n') {
        *out = c->v[c->pos];
        c->pos = (c->pos + 1) % c->n;
    } else {
        c->pos = 0;
    }
    return true;
}

const struct mxc_jmethod_def mxc_j_seq_methods[] = {
    {"count", "/value", 1, 'c', seq_find}, {"index", "/value,start,stop", 1, 'i', seq_find},
    {"copy", "/", 0, 'y', self_copy},      {"next", "/", 0, 'n', cycler_step},
    {"reset", "/", 0, 'r', cycler_step},   {NULL, NULL, 0, 0, NULL}};
