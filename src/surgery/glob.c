/* Globs over tensor names. In: the text of a pattern. Out: its alternatives without braces, and
 * whether one of them is a name, with what each star stands for.
 * Invariants: an alternative has closed classes only and at most MXC_GLOB_STARS stars, so matching
 * cannot fail; a star that was passed is only widened while it is the last one seen, which keeps
 * matching at the product of both lengths. */
#include "surgery/glob.h"

#include "base/mem.h"

#include <string.h>

/* The end of the class that opens at text[at], or 0 when it does not close. */
static size_t class_end(const char *text, size_t at) {
    size_t i = at + 1;
    if (text[i] == '!' || text[i] == '^')
        i++;
    if (text[i] == ']') /* as the first of a class it is a member */
        i++;
    while (text[i] && text[i] != ']')
        i++;
    return text[i] ? i + 1 : 0;
}

/* One past the element at text[at]: a byte, an escape or a class. 0: it does not end. */
static size_t element_end(const char *text, size_t at) {
    if (text[at] == '[')
        return class_end(text, at);
    if (text[at] == '\\')
        return text[at + 1] ? at + 2 : 0;
    return at + 1;
}

static bool in_class(const char *text, size_t at, size_t end, unsigned char c) {
    size_t i = at + 1, last = end - 1;
    bool negated = text[i] == '!' || text[i] == '^', found = false;
    i += negated;
    while (i < last) {
        unsigned char low = (unsigned char)text[i], high = low;
        if (i + 2 < last && text[i + 1] == '-') {
            high = (unsigned char)text[i + 2];
            i += 2;
        }
        i++;
        found = found || (c >= low && c <= high);
    }
    return found != negated;
}

static bool element_is(const char *text, size_t at, size_t end, char c) {
    if (text[at] == '[')
        return in_class(text, at, end, (unsigned char)c);
    if (text[at] == '?')
        return true;
    return text[end - 1] == c;
}

size_t mxc_glob_stars(const char *text) {
    size_t n = 0, end;
    for (size_t i = 0; text[i]; i = end) {
        end = element_end(text, i);
        if (!end)
            end = i + 1;
        n += text[i] == '*' && text[i + 1] != '*';
    }
    return n;
}

static bool matches(const char *p, const char *name, struct mxc_glob_match *match) {
    size_t at = 0, t = 0, star_at = 0, star_t = 0;
    match->n_stars = 0;
    for (;;) {
        if (p[at] == '*') {
            while (p[at] == '*')
                at++;
            star_at = at;
            star_t = t;
            match->stars[match->n_stars++] = (struct mxc_str){name + t, 0};
            continue;
        }
        if (!p[at] && !name[t])
            return true;
        size_t end = p[at] ? element_end(p, at) : 0;
        if (end && name[t] && element_is(p, at, end, name[t])) {
            at = end;
            t++;
            continue;
        }
        if (!match->n_stars || !name[star_t])
            return false;
        star_t++;
        match->stars[match->n_stars - 1].length++;
        at = star_at;
        t = star_t;
    }
}

bool mxc_glob_matches(const struct mxc_glob *glob, const char *name, struct mxc_glob_match *match) {
    struct mxc_glob_match own;
    for (size_t i = 0; i < glob->n; i++)
        if (matches(glob->alternatives[i], name, match ? match : &own))
            return true;
    return false;
}

/* ---- parsing */

struct alternatives {
    struct mxc_arena *arena;
    const char **items;
    size_t n;
    struct mxc_err *err;
};

/* Finds the first brace of an alternative. begin == end: there is none. */
static enum mxc_code find_brace(const char *text, size_t *begin, size_t *end, struct mxc_err *err) {
    size_t next;
    *begin = *end = 0;
    bool open = false;
    for (size_t i = 0; text[i]; i = next) {
        next = element_end(text, i);
        if (!next)
            return mxc_err_set(err, MXC_E_FORMAT, "%s",
                               text[i] == '[' ? "a [ of the pattern is not closed"
                                              : "the pattern ends in a backslash");
        if (text[i] == '{' && open)
            return mxc_err_set(err, MXC_E_FORMAT, "the pattern has braces inside of braces");
        if (text[i] == '}' && !open)
            return mxc_err_set(err, MXC_E_FORMAT, "a } of the pattern has no {");
        if (text[i] == '{') {
            open = true;
            *begin = i;
        } else if (text[i] == '}') {
            *end = i + 1;
            return MXC_OK;
        }
    }
    return open ? mxc_err_set(err, MXC_E_FORMAT, "a { of the pattern is not closed") : MXC_OK;
}

/* The i-th alternative becomes the first choice of its brace; the others are put behind. */
static enum mxc_code expand(struct alternatives *a, size_t i, size_t begin, size_t end) {
    const char *text = a->items[i];
    size_t from = begin + 1, at = from;
    bool first = true;
    while (at < end) {
        if (text[at] != ',' && at + 1 != end) {
            at = element_end(text, at);
            continue;
        }
        if (!first && a->n == MXC_GLOB_ALTERNATIVES)
            return mxc_err_set(a->err, MXC_E_LIMIT, "the pattern has more than %d alternatives",
                               (int)MXC_GLOB_ALTERNATIVES);
        const char *one = mxc_arena_printf(a->arena, "%.*s%.*s%s", (int)begin, text,
                                           (int)(at - from), text + from, text + end);
        if (!one)
            return mxc_err_nomem(a->err);
        a->items[first ? i : a->n++] = one;
        first = false;
        from = ++at;
    }
    return MXC_OK;
}

enum mxc_code mxc_glob_parse(struct mxc_arena *arena, const char *text, struct mxc_glob *glob,
                             struct mxc_err *err) {
    enum { MOST = 1024 };
    struct alternatives a = {arena, NULL, 1, err};
    if (!*text)
        return mxc_err_set(err, MXC_E_FORMAT, "the pattern is empty");
    if (strlen(text) > MOST)
        return mxc_err_set(err, MXC_E_LIMIT, "the pattern has more than %d bytes", (int)MOST);
    a.items = mxc_arena_array(arena, MXC_GLOB_ALTERNATIVES, sizeof *a.items);
    if (!a.items || !(a.items[0] = mxc_arena_strdup(arena, text)))
        return mxc_err_nomem(err);
    for (size_t i = 0; i < a.n;) {
        size_t begin, end;
        enum mxc_code code = find_brace(a.items[i], &begin, &end, err);
        if (!code && end)
            code = expand(&a, i, begin, end);
        if (code)
            return code;
        if (end)
            continue;
        if (mxc_glob_stars(a.items[i]) > MXC_GLOB_STARS)
            return mxc_err_set(err, MXC_E_LIMIT, "the pattern has more than %d stars",
                               (int)MXC_GLOB_STARS);
        i++;
    }
    *glob = (struct mxc_glob){a.items, a.n};
    return MXC_OK;
}
